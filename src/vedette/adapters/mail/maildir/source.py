"""A Maildir as a source: one event per mail of its INBOX, in the order of their unique names.

The unique name of a mail (its file name up to ":2,") survives changes of flags and moves between
folders, so it is the event's id; the store knows a mail that is delivered again. Mails are only
ever read here: what an agent does to them is done by its tools.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from vedette.adapters.mail.event import mail_event
from vedette.domain.base.clock import MICROS, Clock
from vedette.domain.base.errors import BadFleet
from vedette.domain.base.fsync import sync
from vedette.domain.base.state_folder import FILE_MODE, FOLDER_MODE
from vedette.domain.event import Event
from vedette.domain.ports.sources import Intake, Refused

BATCH = 64  # mails read and handed over at once
RAW_BYTES = 256  # how much of a refused mail is kept
MAX_MAIL = 32 * 1024 * 1024  # bytes of one mail with its attachments
POLL_US = 2 * MICROS


class MaildirSource:
    """Reads `new/` and `cur/` of a Maildir; with `watch` it stays and looks every two seconds."""

    def __init__(
        self,
        name: str,
        path: str | Path,
        *,
        clock: Clock,
        copy_from: str | Path | None = None,
        watch: bool = False,
        max_mail: int = MAX_MAIL,
        poll_us: int = POLL_US,
    ) -> None:
        """`copy_from` is a Maildir that is copied to `path` when nothing is there yet.

        `max_mail` is in bytes, `poll_us` in microseconds.
        """
        self.name = f"maildir:{name}"
        self.finite = not watch
        self._path = Path(path)
        self._copy_from = Path(copy_from) if copy_from is not None else None
        self._clock = clock
        self._max_mail = max_mail
        self._poll_us = poll_us
        self._seen: set[str] = set()

    async def deliver(self, intake: Intake) -> None:
        """Hand over every mail once. Raises BadFleet if there is no Maildir at the path."""
        await asyncio.to_thread(self.prepare)
        while True:
            fresh = await asyncio.to_thread(self._scan_new)
            for start in range(0, len(fresh), BATCH):
                batch = await asyncio.to_thread(self._read, fresh[start : start + BATCH])
                if batch:
                    await intake.accept(batch)
            # A mail that changed its file name while we read is found by looking again.
            if fresh:
                continue
            if self.finite:
                return
            await self._clock.sleep_until(self._clock.now_us() + self._poll_us)

    def prepare(self) -> None:
        """Make the first-run copy if one was asked for. Raises BadFleet."""
        if self._copy_from is not None and not self._path.exists():
            copy_maildir(self._copy_from, self._path)
        if not (self._path / "new").is_dir() and not (self._path / "cur").is_dir():
            raise BadFleet(
                f"{self._path} is no Maildir",
                where=self.name,
                mend="make the folders new, cur and tmp in it, or set copy_from",
            )

    def _scan_new(self) -> list[Path]:
        """Return the files of mails not seen yet, one per unique name, in order of the names."""
        found: dict[str, Path] = {}
        for folder in ("new", "cur"):
            try:
                with os.scandir(self._path / folder) as entries:
                    names = [entry.name for entry in entries]
            except FileNotFoundError:
                continue
            for name in names:
                unique = name.split(":", 1)[0]
                # Names with a leading dot are no mails (Maildir specification).
                if unique and not name.startswith(".") and unique not in self._seen:
                    found[unique] = self._path / folder / name
        return [found[unique] for unique in sorted(found)]

    def _read(self, files: Sequence[Path]) -> list[Event | Refused]:
        batch: list[Event | Refused] = []
        for file in files:
            delivery = self._read_mail(file)
            if delivery is not None:
                self._seen.add(file.name.split(":", 1)[0])
                batch.append(delivery)
        return batch

    def _read_mail(self, file: Path) -> Event | Refused | None:
        """Return the delivery of one file; None if it is gone (flagged or filed meanwhile)."""
        unique = file.name.split(":", 1)[0]
        shown = unique.encode("utf-8", "backslashreplace").decode()[:300]
        where = f"{self.name}/{shown}"
        if shown != unique:
            return Refused(where, "the name of the file is no UTF-8 or too long; rename it")
        try:
            # No link is followed and no pipe waited for: a Maildir holds plain files.
            handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            return Refused(where, f"cannot be read: {error.strerror}; mend the file or remove it")
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            os.close(handle)
            return Refused(where, "is not a plain file; remove it")
        with os.fdopen(handle, "rb") as stream:
            try:
                raw = stream.read(self._max_mail + 1)
            except OSError as error:
                return Refused(where, f"cannot be read: {error.strerror}")
        if len(raw) > self._max_mail:
            return Refused(
                where,
                f"mail is {facts.st_size} bytes, the limit is {self._max_mail}; it stays there",
                raw[:RAW_BYTES],
            )
        changed_us = facts.st_mtime_ns // 1000
        return mail_event(self.name, unique, raw, subject=unique, received_us=changed_us)


def copy_maildir(source: Path, target: Path) -> None:
    """Copy a Maildir to a path where nothing is yet: whole or not at all.

    Raises BadFleet if `source` holds no mail folders.
    """
    if not (source / "new").is_dir() and not (source / "cur").is_dir():
        raise BadFleet(f"{source} is no Maildir", mend="set copy_from to a folder with new/ in it")
    partial = target.with_name(target.name + ".partial")
    if partial.exists():  # a copy that was broken off
        shutil.rmtree(partial)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Their modes are not copied: mail is for its owner alone, whatever it was where it lay.
    shutil.copytree(source, partial, copy_function=shutil.copyfile)
    for folder in ("new", "cur", "tmp"):
        (partial / folder).mkdir(exist_ok=True)
    for place, _, names in os.walk(partial):
        Path(place).chmod(FOLDER_MODE)
        for name in names:
            (Path(place) / name).chmod(FILE_MODE)
            sync(Path(place) / name)
        sync(Path(place))
    partial.rename(target)
    sync(target.parent)
