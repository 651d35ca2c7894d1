"""Files as sources: CSV series and JSON lines, replayed in order at a chosen rate.

Several files are read in turns, a slice of each, so that many keys are in flight; the order
within a file is kept. Where each file was left is durable with the events themselves.
"""

from __future__ import annotations

import asyncio
import csv
import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from vedette.config.reserved_names import check_unreserved
from vedette.domain import cloudevents
from vedette.domain.base.clock import MICROS, Clock
from vedette.domain.base.errors import BadEvent, BadFleet
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.ports.sources import Intake, Receipt, Refused

BATCH = 512  # events handed over at once, over all files
OPEN_FILES = 64  # files read in turns at a time
SLICE_US = 25_000  # how often a paced source hands over, at most
RAW_BYTES = 256  # how much of a bad line is kept

_MAX_FLOAT = sys.float_info.max

# Turns a line (with its number, from 1) into an event, or raises BadEvent.
LineDecoder = Callable[[bytes, int], Event]


class _FileSource:
    """What CSV and JSON lines share: which files, in which turns, at what rate."""

    finite = True
    _has_header = False

    def __init__(
        self, kind: str, name: str, path: str, clock: Clock, rate: float, max_bytes: int
    ) -> None:
        self.name = f"{kind}:{name}"
        self._clock = clock
        self._rate = rate
        self._max_bytes = max_bytes
        root, files = _files(path)
        stems = Counter(file.stem for file in files)
        # Two files of one name are told apart by their folders, all others are not.
        self._files = [
            (
                file,
                relative.as_posix(),
                file.stem if stems[file.stem] == 1 else _without_suffix(relative),
            )
            for file in files
            for relative in (file.relative_to(root),)
        ]

    async def deliver(self, intake: Intake) -> None:
        """Hand over all files from where each was left. Raises what the intake raises."""
        waiting = deque(self._files)
        reading: deque[_Reader] = deque()
        pace = _Pace(self._clock, self._rate)
        try:
            while True:
                while waiting and len(reading) < OPEN_FILES:
                    reading.append(self._open(*waiting.popleft(), intake))
                if not reading:
                    return
                want = await pace.wait_for_quota()
                share = max(1, want // len(reading))
                turns: list[Coroutine[Any, Any, list[Receipt]]] = []
                for _ in range(min(len(reading), want)):
                    reader = reading.popleft()
                    batch = reader.read_batch(share)
                    if batch:
                        pace.spend(len(batch))
                        position = (reader.position_name, reader.position)
                        turns.append(intake.accept(batch, position=position))
                    if not reader.ended:
                        reading.append(reader)
                await _gather_all(turns)
        finally:
            for reader in reading:
                reader.close()

    def read_first(self, limit: int) -> list[Event]:
        """Return the first rows of the first file as the events they become; bad ones are left out.

        For who only looks: no position is asked for and none is moved.
        """
        reader = self._reader(*self._files[0], None)
        try:
            return [
                delivery for delivery in reader.read_batch(limit) if isinstance(delivery, Event)
            ]
        finally:
            reader.close()

    def _open(self, file: Path, relative: str, subject: str, intake: Intake) -> _Reader:
        return self._reader(file, relative, subject, intake.position(f"{self.name}/{relative}"))

    def _reader(self, file: Path, relative: str, subject: str, at: str | None) -> _Reader:
        def decoder(header: bytes) -> LineDecoder:
            return self._decoder(subject, header)

        position_name = f"{self.name}/{relative}"
        return _Reader(file, position_name, at, self._has_header, decoder, self._max_bytes)

    def _decoder(self, subject: str, header: bytes) -> LineDecoder:
        """Return what turns the lines of a file into events. Raises BadEvent for its header."""
        raise NotImplementedError


class CsvSource(_FileSource):
    """Metric series out of CSV files: one per file, of the columns `timestamp` and `value`.

    Events are `metric.point` of source `csv:NAME`; the subject is the file's name without its
    suffix, the id has the line. An instant without an offset is UTC. `rate` is events per second
    over all files, 0 as fast as they are taken.
    """

    _has_header = True

    def __init__(
        self, name: str, path: str, clock: Clock, *, rate: float = 0, max_bytes: int = 262_144
    ) -> None:
        super().__init__("csv", name, path, clock, rate, max_bytes)

    def _decoder(self, subject: str, header: bytes) -> LineDecoder:
        source = self.name
        names = _split_row(header.decode("utf-8-sig"))
        if not {"timestamp", "value"} <= set(names):
            raise BadEvent(
                f"the columns are {', '.join(names)[:200]!r}",
                mend="the first line must name the columns timestamp and value",
            )
        when, what, width = names.index("timestamp"), names.index("value"), len(names)

        def row(line: bytes, number: int) -> Event:
            text = line.decode("utf-8")
            columns = _split_row(text) if '"' in text else text.rstrip("\r\n").split(",")
            if len(columns) != width:
                raise BadEvent(
                    f"{len(columns)} columns instead of {width}",
                    mend="give each row as many as the first line",
                )
            return Event(
                source,
                f"{subject}:{number:07d}",
                "metric.point",
                subject,
                _instant(columns[when]),
                {"value": _number(columns[what])},
                vouched=ENVELOPE,
            )

        return row


class JsonlSource(_FileSource):
    """Events out of JSON lines files: one per line, in the JSON format of CloudEvents.

    A line may use any source and type but those of the engine and of other sources of this process.
    With `type`, each line is the bare data of an event of that type: its source is `jsonl:NAME`,
    its subject the file's name without its suffix, its id has the line. `rate` as for CsvSource.
    """

    def __init__(
        self,
        name: str,
        path: str,
        clock: Clock,
        *,
        rate: float = 0,
        max_bytes: int = 262_144,
        type: str | None = None,
    ) -> None:
        super().__init__("jsonl", name, path, clock, rate, max_bytes)
        self._type = type

    def _decoder(self, subject: str, header: bytes) -> LineDecoder:
        source, bare = self.name, self._type

        def whole(line: bytes, number: int) -> Event:
            return check_unreserved(cloudevents.from_json(line, vouched=ENVELOPE), source)

        if bare is None:
            return whole

        def data(line: bytes, number: int) -> Event:
            value = cloudevents.load_json(line)
            event_id = f"{subject}:{number:07d}"
            event = Event(source, event_id, bare, subject, data=value, vouched=ENVELOPE)
            return check_unreserved(event, source)

        return data


class _Reader:
    """One file, read line by line from a position `OFFSET:LINE` (bytes and lines behind it)."""

    def __init__(
        self,
        path: Path,
        position_name: str,
        at: str | None,
        has_header: bool,
        decoder: Callable[[bytes], LineDecoder],
        max_bytes: int,
    ) -> None:
        self.position_name = position_name
        self.ended = False
        self._path = path
        self._max_bytes = max_bytes
        self._offset = self._line = 0
        self._refusals: list[Refused] = []
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise BadFleet(f"cannot be read: {error.strerror}", where=str(path)) from error
        size = path.stat().st_size
        header = self._read_line() if has_header else b""
        try:
            self._decode = decoder(header)
        except (BadEvent, UnicodeDecodeError) as error:
            self._refusals.append(self._refuse(_error_text(error), header))
            self._offset = size  # so that it is told once, not at every start
            self.close()
        if at is not None:
            self._resume(at, size)

    @property
    def position(self) -> str:
        return f"{self._offset}:{self._line}"

    def read_batch(self, count: int) -> list[Event | Refused]:
        """Return up to `count` deliveries; `ended` says that these were the last."""
        batch: list[Event | Refused] = [*self._refusals]
        self._refusals = []
        while not self.ended and len(batch) < count:
            line = self._read_line()
            if not line:
                self.close()
            elif len(line) > self._max_bytes:
                why = f"the line is longer than {self._max_bytes} bytes (split it)"
                batch.append(self._refuse(why, line))
            elif not line.isspace():
                try:
                    batch.append(self._decode(line, self._line))
                except (BadEvent, UnicodeDecodeError) as error:
                    batch.append(self._refuse(_error_text(error), line))
        return batch

    def close(self) -> None:
        self.ended = True
        self._file.close()

    def _resume(self, at: str, size: int) -> None:
        offset, line = (int(part) for part in at.split(":"))
        if size < offset:
            why = f"the file is shorter than the {offset} bytes read before (name it otherwise)"
            self._refusals = [self._refuse(why)]
            self.close()
        elif self.ended:
            self._refusals = []
        else:
            self._file.seek(offset)
        self._offset, self._line = offset, line

    def _read_line(self) -> bytes:
        """Read one line; of one that is too long a part that shows it, and skip the rest."""
        line = rest = self._file.readline(self._max_bytes + 1)
        self._offset += len(rest)
        while len(rest) > self._max_bytes and not rest.endswith(b"\n"):
            rest = self._file.readline(self._max_bytes + 1)
            self._offset += len(rest)
        self._line += bool(line)
        return line

    def _refuse(self, why: str, line: bytes = b"") -> Refused:
        return Refused(f"{self._path}:{self._line}", why, line[:RAW_BYTES])


class _Pace:
    """How many events may go now, so that `rate` a second are reached on the average."""

    def __init__(self, clock: Clock, rate: float) -> None:
        self._clock = clock
        self._rate = rate
        self._start_us = clock.monotonic_us()
        self._spent = 0

    async def wait_for_quota(self) -> int:
        """Wait until at least one event may go; return how many may, at most BATCH."""
        if self._rate <= 0:
            return BATCH
        while True:
            elapsed_us = self._clock.monotonic_us() - self._start_us
            may = 1 + math.floor(elapsed_us * self._rate / MICROS) - self._spent
            if may > 0:
                return min(may, BATCH)
            next_us = math.ceil(self._spent * MICROS / self._rate) - elapsed_us
            await self._clock.sleep_until(self._clock.now_us() + max(next_us, SLICE_US))

    def spend(self, events: int) -> None:
        self._spent += events


async def _gather_all(turns: Sequence[Coroutine[Any, Any, list[Receipt]]]) -> None:
    """Await all turns; then raise the first error, when none is half-way any more."""
    for answer in await asyncio.gather(*turns, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer


def _files(pattern: str) -> tuple[Path, list[Path]]:
    """Return the folder that the pattern starts in, and the files it matches, sorted."""
    parts = Path(pattern).parts
    fixed = next((at for at, part in enumerate(parts) if set(part) & set("*?[")), len(parts) - 1)
    root = Path(*parts[:fixed])
    files = sorted(path for path in root.glob(str(Path(*parts[fixed:]))) if path.is_file())
    if not files:
        raise BadFleet("no file matches", where=pattern, mend="set the path of the source")
    return root, files


def _without_suffix(relative: Path) -> str:
    return relative.with_suffix("").as_posix()


def _split_row(text: str) -> list[str]:
    """Split one line of CSV, quotes and all. A value cannot go over several lines."""
    try:
        rows = list(csv.reader([text.rstrip("\r\n")], strict=True))
    except csv.Error as error:
        raise BadEvent(f"not CSV: {error}", mend="close every quote on its line") from error
    return rows[0] if rows else []


def _instant(text: str) -> str:
    """Return an ISO 8601 instant as RFC 3339 in UTC."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError) as error:
        raise BadEvent(
            f"timestamp {text[:64]!r} is no instant", mend="write it as 2026-03-01T06:00:00Z"
        ) from error
    return moment.isoformat() + "Z"


def _number(text: str) -> float:
    # float() also reads digits of other scripts, 1_000, nan and inf: no series means these.
    try:
        value = float(text)
        if -_MAX_FLOAT <= value <= _MAX_FLOAT and text.isascii() and "_" not in text:
            return value
    except ValueError:
        pass
    mend = "leave the row out or mend it"
    raise BadEvent(f"value {text[:64]!r} is not a finite number", mend=mend)


def _error_text(error: BadEvent | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} of the line is not UTF-8 (save the file as UTF-8)"
    return str(error)
