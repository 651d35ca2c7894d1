"""A spool folder as a source: one event a file, in the order of the files' names.

A file leaves the folder only when what became of it is durable, so after a crash it is handed over
again, and the store knows its event by source and id.

Others may write into the folder. So no link in it is followed, neither to a file nor in the place
of `done/` or `refused/`: everything in it is named relative to its open descriptor. And what an
event says of itself is trusted as far as the operator says (`vouches`), which is nothing where
every account of the machine may write.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from msgspec import Struct

from vedette.adapters.spool.config import SpoolFile
from vedette.config.reserved_names import check_unreserved
from vedette.domain import cloudevents
from vedette.domain.base.clock import Clock, duration_us
from vedette.domain.base.errors import BadEvent, BadFleet, StoreFailed
from vedette.domain.base.state_folder import FOLDER_MODE
from vedette.domain.event import VOUCH_LEVELS, Event
from vedette.domain.ports.sources import Intake, Receipt, Refused

BATCH = 64  # files read and handed over at once
RAW_BYTES = 256  # how much of a refused file is kept
SUFFIX = ".json"
DONE, REFUSED = "done", "refused"

Mark = tuple[int, int, int, int]  # inode, mode, size, time of the last write
_Result = TypeVar("_Result")

# Why one file cannot be read where the folder and this process are well: a socket, no permission, a
# link put in its place just now, a bad block.
_FILE_ERRORS = frozenset({errno.ENXIO, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EIO})


class SourceUnavailable(Exception):
    """The spool folder cannot be read or written now; it could be before."""


class SpooledFile(Struct, frozen=True):
    """A file of a spool folder as it was read; one written or replaced since has another mark."""

    name: str
    mark: Mark
    delivery: Event | Refused


class SpoolSource:
    """Reads the files of one spool folder; with `watch` it stays and looks again every while."""

    def __init__(
        self,
        plan: SpoolFile,
        clock: Clock,
        *,
        watch: bool,
        is_leader: Callable[[], bool],
        max_bytes: int,
    ) -> None:
        """`max_bytes` bounds a file; of a longer one no more is read."""
        self.name = f"spool:{plan.name}"
        self.finite = not watch
        self._plan = plan
        self._clock = clock
        self._is_leader = is_leader
        self._max_bytes = max_bytes
        self._has_read = False
        # Durable and not moved yet, each with the folder it goes to; None is to be removed.
        self._files_to_move: deque[tuple[SpooledFile, str | None]] = deque()

    async def deliver(self, intake: Intake) -> None:
        """Hand over every file until cancelled, or until none is left (`finite`).

        Raises BadFleet for what is wrong with the folder from the start, SourceUnavailable for what
        became so: the next call goes on. StoreFailed if another worker leads.
        """
        while True:
            await self._in_thread(self._move_files)
            names = await self._in_thread(self._list)
            self._has_read = True
            progress = False
            for start in range(0, len(names), BATCH):
                files = await self._in_thread(self._read, names[start : start + BATCH])
                if files:
                    self._check_leader()
                    receipts = await intake.accept([file.delivery for file in files])
                    self._record_receipts(files, receipts)
                    await self._in_thread(self._move_files)
                    progress = True
            # What came meanwhile, or was written anew, is found by looking again.
            if progress:
                continue
            if self.finite:
                return
            await self._clock.sleep_until(self._clock.now_us() + duration_us(self._plan.every))

    async def _in_thread(self, work: Callable[..., _Result], *args: Any) -> _Result:
        try:
            return await asyncio.to_thread(work, *args)
        except (BadFleet, OSError) as error:
            found = error if isinstance(error, BadFleet) else _folder_error(self._plan, error)
            if not self._has_read:
                raise found from error
            # It was right before: somebody is at work there.
            raise SourceUnavailable(str(found)) from error

    def _check_leader(self) -> None:
        if not self._is_leader():
            raise StoreFailed("another worker leads")

    # --- reading ----------------------------------------------------------------------------

    def _list(self) -> list[str]:
        with open_folder(self._plan) as folder:
            # That nothing can be moved is told before anything is handed over.
            for place in (DONE, REFUSED) if self._plan.keep else (REFUSED,):
                os.close(_open_place(folder, place, self._plan))
            return _list_files(folder)

    def _read(self, names: Sequence[str]) -> list[SpooledFile]:
        with open_folder(self._plan) as folder:
            return [file for name in names if (file := self._read_file(folder, name)) is not None]

    def _read_file(self, folder: int, name: str) -> SpooledFile | None:
        """Return what a file holds; None if it is gone, or was written meanwhile."""
        before = _mark(folder, name)
        if before is None:
            return None
        try:
            delivery = self._read_delivery(folder, name, before)
        except FileNotFoundError:
            return None
        return SpooledFile(name, before, delivery) if _mark(folder, name) == before else None

    def _read_delivery(self, folder: int, name: str, mark: Mark) -> Event | Refused:
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
        where = f"{self.name}/{shown}"
        if shown != name:
            return Refused(where, "its name holds what cannot be shown (rename it)")
        if not stat.S_ISREG(mark[1]):
            what = "a link" if stat.S_ISLNK(mark[1]) else "no plain file"
            return Refused(where, f"is {what} (put the file itself there)")
        try:
            # No pipe that was put in its place meanwhile is waited for.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as stream:
                raw = stream.read(self._max_bytes + 1)
        except OSError as error:
            if error.errno not in _FILE_ERRORS:
                raise
            return Refused(where, f"cannot be read: {error.strerror} (see who owns it)")
        if len(raw) > self._max_bytes:
            why = f"the file is longer than {self._max_bytes} bytes"
            mend = "send a reference instead of the content, or raise max_event_bytes"
            return Refused(where, f"{why} ({mend})", raw[:RAW_BYTES])
        try:
            event = cloudevents.from_json(raw, vouched=VOUCH_LEVELS[self._plan.vouches])
            return check_unreserved(event, self.name)
        except BadEvent as error:
            return Refused(where, str(error), raw[:RAW_BYTES])

    # --- what is durable leaves the folder ----------------------------------------------------

    def _record_receipts(self, files: Sequence[SpooledFile], receipts: Sequence[Receipt]) -> None:
        place = DONE if self._plan.keep else None
        for file, receipt in zip(files, receipts, strict=True):
            # The intake refuses some events, too.
            self._files_to_move.append((file, REFUSED if receipt.status == "refused" else place))

    def _move_files(self) -> None:
        if not self._files_to_move:
            return
        with open_folder(self._plan) as folder:
            while self._files_to_move:
                self._move(folder, *self._files_to_move[0])
                self._files_to_move.popleft()

    def _move(self, folder: int, file: SpooledFile, place: str | None) -> None:
        if _mark(folder, file.name) != file.mark:
            return  # gone, or written anew: then it is read at the next look
        with suppress(FileNotFoundError):
            if place is None:
                os.unlink(file.name, dir_fd=folder)
                return
            aim = _open_place(folder, place, self._plan)
            try:
                inode, _, _, written_ns = file.mark
                name_exists = _mark(aim, file.name) is not None
                name = f"{written_ns}.{inode}{SUFFIX}" if name_exists else file.name
                os.rename(file.name, name, src_dir_fd=folder, dst_dir_fd=aim)
            finally:
                os.close(aim)


@contextmanager
def open_folder(plan: SpoolFile) -> Iterator[int]:
    """Open the spool folder of a plan; changes nothing. Raises BadFleet, OSError."""
    where = f"spool:{plan.name}"
    try:
        folder = os.open(plan.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        mend = "make it, or set the path of the source"
        raise BadFleet(f"there is no folder {plan.path}", where=where, mend=mend) from error
    try:
        if not os.access(plan.path, os.W_OK | os.X_OK, effective_ids=True):
            mend = "see who owns it"
            raise BadFleet(f"{plan.path} cannot be written", where=where, mend=mend)
        if plan.vouches != "none" and os.fstat(folder).st_mode & stat.S_IWOTH:
            raise BadFleet(
                f"every account of this machine may write into {plan.path}, so nobody can vouch "
                "for what lies there",
                where=where,
                mend='take that from others (chmod o-w), or set vouches = "none"',
            )
        yield folder
    finally:
        os.close(folder)


def probe(plan: SpoolFile) -> str:
    """Count the files that wait in a spool folder. Raises BadFleet, OSError."""
    with open_folder(plan) as folder:
        return f"{len(_list_files(folder))} files wait in {plan.path}"


def _list_files(folder: int) -> list[str]:
    """Return the names of what is to be read, in order."""
    return sorted(
        name for name in os.listdir(folder) if name.endswith(SUFFIX) and not name.startswith(".")
    )


def _open_place(folder: int, place: str, plan: SpoolFile) -> int:
    """Open a folder in the folder, and make it if there is none. Raises BadFleet, OSError."""
    with suppress(FileExistsError):
        os.mkdir(place, FOLDER_MODE, dir_fd=folder)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(place, flags, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        what = f"{place} in {plan.path} is a link or a file"
        mend = f"make {place} a folder"
        raise BadFleet(what, where=f"spool:{plan.name}", mend=mend) from error


def _mark(folder: int, name: str) -> Mark | None:
    """Return what tells a file from another, or from itself once written anew; None if gone."""
    try:
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return (facts.st_ino, facts.st_mode, facts.st_size, facts.st_mtime_ns)


def _folder_error(plan: SpoolFile, error: OSError) -> BadFleet:
    what = f"{plan.path}: {error.strerror or error}"
    return BadFleet(what, where=f"spool:{plan.name}", mend="see who owns it, and its disk")
