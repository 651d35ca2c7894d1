"""The papers of a week as files, what a run has read of them, and what it wrote.

A target has `read`, one folder with a folder for each week in it, and `path`, which is written:

    READ/2026-W19/017.txt            a paper: `From:`, `Date:`, `Subject:`, an empty line, a text
    READ/2026-W19/incidents.jsonl    an incident a line: id, series, opened_at, closed_at, summary
    PATH/read/RUN/2026-W19-017       the digest of the paper as this run was told it
    PATH/read/RUN/incidents-ID       likewise of an incident's summary
    PATH/reports/2026-W19.md         the report
    PATH/outbox/KEY.json             a message that a person has let go

Every file is written whole or not at all, and the same again changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from vedette.sdk import failpoint

MAX_PAPERS = 240
_MAX_BYTES = 1 << 20
_WEEK = re.compile(r"\d{4}-W\d{2}\Z")
_PAPER = re.compile(r"(\d{4}-W\d{2})/([A-Za-z0-9_-]{1,60})\Z")
_INCIDENT = re.compile(r"[A-Za-z0-9_-]{1,60}\Z")
_INCIDENT_KEYS = ("id", "series", "opened_at", "closed_at", "summary")


class Refused(Exception):
    """What was asked for is not there, or is nothing that can be read; its text says why."""


class Unreadable(Refused):
    """A paper that is there and that nobody can read as a text."""


class Archive:
    """The weeks and the written files of one target, as one run sees them."""

    def __init__(self, target: Mapping[str, Any], run: str) -> None:
        listed, path = target.get("read"), target.get("path")
        if not (isinstance(listed, list) and len(listed) == 1 and isinstance(path, str)):
            raise Refused("the target has not path and one folder to read; see vedette.toml")
        self._weeks, self._own = Path(listed[0]), Path(path)
        self._read = self._own / "read" / run

    def papers(self, week: str) -> dict[str, int]:
        """Return the bytes of each paper of a week, by id, in order. Raises Refused."""
        folder = self._folder(week)
        found = sorted(folder.glob("*.txt"))
        return {
            f"{week}/{file.stem}": file.stat().st_size
            for file in found
            if _PAPER.match(f"{week}/{file.stem}")
        }

    def incidents(self, week: str) -> list[dict[str, Any]]:
        """Return the incidents of a week; none if nobody wrote any. Raises Refused."""
        file = self._folder(week) / "incidents.jsonl"
        lines = file.read_text("utf-8").splitlines() if file.is_file() else []
        try:
            found = [{key: one[key] for key in _INCIDENT_KEYS} for one in map(json.loads, lines)]
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(f"{week}/incidents.jsonl is no list of incidents: {error!r}") from error
        for one in found:
            if not _INCIDENT.match(str(one["id"])) or not isinstance(one["summary"], str):
                raise Refused(f"{week}/incidents.jsonl: {one['id']!r} names no incident")
        return found

    def text(self, id: str) -> str:
        """Return the text of a paper. Raises Refused if there is none, or it is no text."""
        found = _PAPER.match(id)
        if found is None:
            raise Refused(f"{id!r} names no paper")
        file = self._folder(found[1]) / f"{found[2]}.txt"
        if not file.is_file() or file.is_symlink():
            raise Refused(f"there is no paper {id}")
        raw = file.read_bytes()
        if len(raw) > _MAX_BYTES:
            raise Unreadable(f"{id} has {len(raw)} bytes, {_MAX_BYTES} at most are read")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Unreadable(f"{id} is no text: byte {error.start} is no UTF-8") from error
        if "\0" in text:
            raise Unreadable(f"{id} is no text: it has zero bytes")
        return text

    # --- what this run has read --------------------------------------------------------------

    def note_read(self, id: str, text: str) -> None:
        """Keep that this run was told a text."""
        self.write(self._note(id), _digest(text))

    def was_read(self, id: str, text: str) -> bool:
        """Say whether this run was told just this text under this id."""
        try:
            return self._note(id).read_text("utf-8") == _digest(text)
        except OSError:
            return False

    def _note(self, id: str) -> Path:
        return self._read / id.replace("/", "-")

    # --- what is written -----------------------------------------------------------------------

    def write_report(self, week: str, text: str) -> str:
        """Write the report of a week; return where, below the target's folder."""
        self._folder(week)
        return self.write(self._own / "reports" / f"{week}.md", text)

    def write_message(self, key: str, message: Mapping[str, Any]) -> str:
        """Put a message into the outbox; return where, below the target's folder."""
        text = json.dumps(message, ensure_ascii=False, indent=1, sort_keys=True)
        return self.write(self._own / "outbox" / f"{key}.json", f"{text}\n")

    def write(self, file: Path, text: str) -> str:
        """Write a file whole, durably; return where it is, below the target's folder."""
        file.parent.mkdir(parents=True, exist_ok=True)
        half = file.with_name(f".{file.name}.half")
        failpoint("weekly.write.before")
        with half.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        half.replace(file)
        failpoint("weekly.write.after")
        return file.relative_to(self._own).as_posix()

    def _folder(self, week: str) -> Path:
        folder = self._weeks / week
        if not _WEEK.match(week) or not folder.is_dir():
            raise Refused(f"there are no papers of {week}")
        return folder


def week_before(instant: str) -> str:
    """Return the week before an instant, as `2026-W19` (ISO 8601). Raises Refused if it is none."""
    try:
        day = datetime.fromisoformat(instant).date()
    except ValueError as error:
        raise Refused(f"neither a week nor an instant was given: {instant!r}") from error
    year, week, _ = (day - timedelta(days=7)).isocalendar()
    return f"{year}-W{week:02}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
