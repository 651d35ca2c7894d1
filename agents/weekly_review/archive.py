"""The papers of a week as files, what a run has read of them, and what it wrote.

A target has `read`, one folder with a folder for each week in it, and `path`, which is written:

    READ/2026-W19/017.txt            a paper: `From:`, `Date:`, `Subject:`, an empty line, a text
    READ/2026-W19/incidents.jsonl    an incident a line: id, series, opened_at, closed_at, summary
    PATH/read/RUN/2026-W19-017       the digest of the paper as this run was told it
    PATH/read/RUN/incidents-ID       likewise of an incident's summary
    PATH/reports/2026-W19/RUN.md     the report of a run
    PATH/answers/KEY.json            what a call that wrote a report has answered
    PATH/outbox/KEY.json             a message that a person has let go, until it is taken
    PATH/sent/KEY                    that it is, or was, in the outbox

Every file is written whole or not at all, and a call that is made again changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from vedette.sdk import failpoint

MAX_PAPERS = 240
_MAX_BYTES = 1 << 20
_MAX_SUMMARY = 600  # characters of an incident's that are told
_WEEK = re.compile(r"[0-9]{4}-W[0-9]{2}\Z")
_PAPER = re.compile(r"([0-9]{4}-W[0-9]{2})/([A-Za-z0-9_-]{1,60})\Z")
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
        self._weeks, self._own, self._run = Path(listed[0]), Path(path), run
        self._read = self._own / "read" / run

    def papers(self, week: str) -> dict[str, int]:
        """Return the bytes of each paper of a week, by id, in order; none if nobody wrote any.

        Raises Refused if that names no week.
        """
        folder = self._folder(week)
        if folder is None:
            return {}
        found = {}
        for file in sorted(folder.glob("*.txt")):
            id, size = f"{week}/{file.stem}", _size(file)
            if size is not None and _PAPER.match(id):
                found[id] = size
        return found

    def incidents(self, week: str) -> list[dict[str, Any]]:
        """Return the incidents of a week; none if nobody wrote any. Raises Refused."""
        folder = self._folder(week)
        file = None if folder is None else folder / "incidents.jsonl"
        if file is None or not os.path.lexists(file):
            return []
        size = _size(file)
        if size is None or size > _MAX_BYTES:
            raise Refused(f"{week}/incidents.jsonl is no file of {_MAX_BYTES} bytes at most")
        try:
            lines = file.read_text("utf-8").splitlines()
            found = [{key: one[key] for key in _INCIDENT_KEYS} for one in map(json.loads, lines)]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Refused(f"{week}/incidents.jsonl is no list of incidents: {error!r}") from error
        for one in found:
            texts = (one["series"], one["opened_at"], one["closed_at"] or "", one["summary"])
            if not _INCIDENT.match(str(one["id"])) or not all(isinstance(x, str) for x in texts):
                raise Refused(f"{week}/incidents.jsonl: {one['id']!r} names no incident")
            one["id"] = str(one["id"])
            one["summary"] = one["summary"][:_MAX_SUMMARY]
            for name in ("series", "opened_at", "closed_at"):
                one[name] = one[name] and one[name][:80]
        return found

    def text(self, id: str) -> str:
        """Return the text of a paper. Raises Refused if there is none, or it is no text."""
        found = _PAPER.match(id)
        if found is None:
            raise Refused(f"{id!r} names no paper")
        folder = self._folder(found[1])
        file = None if folder is None else folder / f"{found[2]}.txt"
        size = None if file is None else _size(file)
        if file is None or size is None:
            raise Refused(f"there is no paper {id}")
        if size > _MAX_BYTES:
            raise Unreadable(f"{id} has {size} bytes, {_MAX_BYTES} at most are read")
        try:
            text = file.read_bytes().decode("utf-8")
        except PermissionError as error:
            raise Unreadable(f"{id} may not be opened") from error
        except UnicodeDecodeError as error:
            raise Unreadable(f"{id} is no text: byte {error.start} is no UTF-8") from error
        if "\0" in text:
            raise Unreadable(f"{id} is no text: it has zero bytes")
        return text

    # --- what this run has read --------------------------------------------------------------

    def note_read(self, id: str, text: str) -> None:
        """Keep that this run was told a text."""
        self._write(self._note(id), _digest(text), "note")

    def was_read(self, id: str, text: str) -> bool:
        """Say whether this run was told just this text under this id."""
        try:
            return self._note(id).read_text("utf-8") == _digest(text)
        except OSError:
            return False

    def why_unread(self, id: str) -> str:
        """Say why a paper was not read by this run as it is now; nothing if it was.

        Raises Unreadable if nobody can read it.
        """
        try:
            return "" if self.was_read(id, self.text(id)) else "it was not read"
        except Unreadable:
            raise
        except Refused as refused:
            return str(refused)

    def _note(self, id: str) -> Path:
        return self._read / id.replace("/", "-")

    # --- what is written -----------------------------------------------------------------------

    def answered(self, key: str) -> dict[str, Any] | None:
        """Return what a call that wrote a report has answered, and write that report again."""
        try:
            answer: dict[str, Any] = json.loads(self._answer(key).read_text("utf-8"))
        except FileNotFoundError:
            return None
        self._write(self._own / answer["path"], answer["report"], "report")
        return answer

    def write_report(self, week: str, key: str, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Keep what a call answers with its `report`, write that as the run's; return the answer.

        What is answered comes first: whoever makes the call again is told the same, though papers
        have changed since.
        """
        told = {**answer, "path": f"reports/{week}/{self._run}.md"}
        self._write(self._answer(key), json.dumps(told, ensure_ascii=False), "answer")
        self._write(self._own / told["path"], told["report"], "report")
        return told

    def write_message(self, key: str, message: Mapping[str, Any]) -> str:
        """Put a message into the outbox, once for each key, whoever empties it; return where.

        `sent/KEY.new` is the message as long as it has not left: it moves into the outbox as one
        step, so a call that is made again finds either that file, or that it has left. The engine
        makes no two calls of one key at once.
        """
        sent, outbox = self._own / "sent" / key, self._own / "outbox" / f"{key}.json"
        staged = sent.with_name(f"{key}.new")
        text = json.dumps(message, ensure_ascii=False, indent=1, sort_keys=True)
        outbox.parent.mkdir(parents=True, exist_ok=True)
        sent.parent.mkdir(parents=True, exist_ok=True)
        if not sent.exists():
            self._write(staged, f"{text}\n", "staged")
            self._write(sent, _digest(text), "sent")
        if staged.exists():
            failpoint("weekly.outbox:before")
            staged.replace(outbox)
            _sync(outbox.parent)
            _sync(staged.parent)
            failpoint("weekly.outbox:after")
        return outbox.relative_to(self._own).as_posix()

    def _answer(self, key: str) -> Path:
        return self._own / "answers" / f"{key}.json"

    def _write(self, file: Path, text: str, what: str) -> None:
        """Write a file whole, durably. No other call writes a half of the same name."""
        file.parent.mkdir(parents=True, exist_ok=True)
        half = file.with_name(f".{file.name}.{os.urandom(6).hex()}.half")
        failpoint(f"weekly.{what}:before")
        try:
            with half.open("x", encoding="utf-8") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            half.replace(file)
        except OSError:
            half.unlink(missing_ok=True)
            raise
        _sync(file.parent)
        failpoint(f"weekly.{what}:after")

    def _folder(self, week: str) -> Path | None:
        if not _WEEK.match(week):
            raise Refused(f"{week!r} names no week, write for example 2026-W19")
        try:
            datetime.fromisocalendar(int(week[:4]), int(week[6:]), 1)
        except ValueError as error:
            raise Refused(f"{week!r} names no week: {error}") from error
        if not self._weeks.is_dir():
            raise Refused(f"{self._weeks} is no folder of weeks; see [targets.week]")
        folder = self._weeks / week
        if not os.path.lexists(folder):
            return None
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise Refused(f"{week} is no folder of papers")
        return folder


def week_before(instant: str) -> str:
    """Return the week before an instant, as `2026-W19` (ISO 8601). Raises Refused if it is none."""
    try:
        year, week, _ = (datetime.fromisoformat(instant) - timedelta(days=7)).isocalendar()
    except (ValueError, OverflowError) as error:
        raise Refused(f"neither a week nor an instant was given: {instant!r}") from error
    return f"{year:04}-W{week:02}"


def _size(file: Path) -> int | None:
    """Return the bytes of a file; nothing if it is none, or a link to one."""
    try:
        found = file.lstat()
    except FileNotFoundError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
