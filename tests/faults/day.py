"""The day of a fleet on a disk that fails: the script of the crash tests, and all that people do.

A morning is the script (`tests.faults.scenario`) and a memory that a person promotes; then the
fleet is closed and backed up, and started again on the next day, for two more events; what is older
is archived then. Every act may be repeated, and is, as a source and people do: an act that fails is
done again, a fleet that broke is started again. What they are told has to be a sentence that says
what, where, and the mend. If the disk fails for good the day ends with the first act that fails.

Beside the folder's own files: `wrong` is what must not be, a line each; `said` are the sentences.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sqlite3
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace
from tests.faults.auditor import COMMANDS, Held, Plan, held_of
from tests.faults.scenario import (
    EVENTS,
    HOUR_US,
    LAST,
    START_US,
    Act,
    Script,
    Stage,
    dump,
    fleet_of,
    plan,
    settings_of,
    tell_proposal,
)
from tests.faults.world import FileWorld
from tests.segments import read_entries

from vedette.adapters.ledger_export import (
    archived_part,
    checkpoint_size_before,
    verify_store,
    write_segment,
)
from vedette.adapters.ledger_export.archive import Archive, JoinedLedger
from vedette.app.backup import back_up
from vedette.app.stores import open_reader
from vedette.domain.base.disk_errors import convert_disk_errors
from vedette.domain.base.errors import AlreadyDone, VedetteError
from vedette.domain.budget import DAY_US
from vedette.interfaces.cli.error_report import describe_error
from vedette.testing.clock import ManualClock
from vedette.testing.toy_fleet import job, note_proposal

EVENING = [
    job("e12", tell_proposal("wire.send", "e12 a"), key="k4", value=5),
    job("e13", tell_proposal("order.place", "e13 a"), note_proposal("e13"), key="k0", value=6),
]
DAY_EVENTS = [*EVENTS, *EVENING]
REMEMBERED = "that e2"
TRIES = 4
PATIENCE_S = 60.0
_SEGMENT = re.compile(r"archive/[0-9]{12}-[0-9]{12}\Z")
# How long a disk that stays away is waited for.
_AWAY_S = 0.5
_SQLITE = ("store.db", "memory.db")


class TakesNoMore(Exception):
    """The disk is away for good, and the fleet said so."""


def day_plan() -> Plan:
    """Return what the day must come to."""
    return plan(DAY_EVENTS)


def kind_of(folder: Path) -> Callable[[str], str]:
    """Return what says of which kind a file of a played folder is; "" for what is not ours."""
    root = f"{folder}/"

    def kind(path: str) -> str:
        if not path.startswith(root):
            return ""
        top, *rest = path.removeprefix(root).removesuffix(" (deleted)").split("/")
        if top == "backup":
            return f"backup: {_whole_name(rest[1]) if rest[1:] else 'folder'}"
        if top != "state":
            return ""
        name = _whole_name(rest[0]) if rest else "state folder"
        for known in ("ledger.key", "clock.json"):
            if name.startswith(f"{known}."):
                return known
        return "snapshots" if name == "releases" else name

    return kind


def _whole_name(name: str) -> str:
    """Return the name that a file is to have; one that is not whole yet has more before it."""
    return name[1:].rsplit(".", 2)[0] if name.startswith(".") and name.endswith(".part") else name


def play_day(stage: Stage, folder: Path, life: int, *, lasting: bool = False) -> None:
    """Play the day to its end, in whatever state `folder` is; `life` counts the processes.

    `lasting`: the disk fails for good, so nothing is tried again.
    """
    day = _Day(stage, folder, life, lasting=lasting)
    threading.excepthook = lambda args: day.wrong(_trace_text("a thread ended", args.exc_value))
    with suppress(TakesNoMore):
        asyncio.run(day.live())


def dump_day(stage: Stage, folder: Path) -> None:
    """Write what the auditor reads; the product's own verification has to find nothing either."""
    dump(stage, folder, archived=True)
    state, export = folder / "state", folder / "export"
    settings = replace(settings_of(stage.content), state=state)
    store = open_reader(settings)
    try:
        key = (state / "ledger.pub").read_text(encoding="ascii")
        first_size = archived_part(store.ledger).size
        whole = (
            JoinedLedger(Archive(state / "archive"), store.ledger) if first_size else store.ledger
        )
        report = verify_store(whole, key, state / "witness.log")
        assert report.ok, report.findings
    finally:
        store.close()
    for name in ("entries.jsonl", "checkpoints"):
        parts = [(one / name).read_bytes() for one in segments(folder, first_size)]
        own = (export / name).read_bytes()
        if name == "checkpoints" and parts:
            # That at the end of the archived part is in both.
            own = own.partition(b"\n\n")[2]
        (export / name).write_bytes(b"".join([*parts, own]))


def segments(folder: Path, upto: int | None = None) -> list[Path]:
    """Return the folders of an archive's segments, in order; of what ends up to `upto`."""
    found = sorted((folder / "state" / "archive").glob("[0-9]*-[0-9]*[0-9]"))
    return [one for one in found if upto is None or int(one.name.partition("-")[2]) <= upto]


def held(folder: Path) -> Held:
    """Return what the store and its archive hold durably, whatever state they are in."""
    raws = list[bytes]()
    for one in segments(folder):
        raws += (one / "entries.jsonl").read_bytes().splitlines()
    # A copy, which SQLite may mend: what a disk that died left may be half of a change.
    with TemporaryDirectory(dir=folder) as look:
        for path in (folder / "state").glob("store.db*"):
            if not path.name.endswith("-shm"):
                shutil.copy(path, look)
        return _held(Path(look) / "store.db", raws)


def _held(path: Path, raws: list[bytes]) -> Held:
    store = sqlite3.connect(path)
    try:
        if not store.execute("SELECT 1 FROM sqlite_master WHERE name='command'").fetchone():
            return Held()
        raws += [one.raw for one in read_entries(store)]
        return held_of(raws, [id for (id,) in store.execute(COMMANDS)])
    finally:
        store.close()


def left_wrong(folder: Path, expected: frozenset[str]) -> list[str]:
    """Return what is wrong with the files that a day leaves: `expected` are the state's names."""
    found = [f"{name} was left behind" for name in sorted(names_in(folder / "state") - expected)]
    for manifest in (folder / "backup").glob("*/backup.json"):
        found += _backup_wrong(manifest)
    if not list((folder / "backup").glob("*/backup.json")):
        found.append("there is no backup")
    return found


def names_in(state: Path) -> frozenset[str]:
    """Return the names in a state folder, of what a fleet that is not open leaves there."""
    names = {path.relative_to(state).as_posix() for path in state.glob("*")}
    for inside in ("releases", "archive"):
        names |= {path.relative_to(state).as_posix() for path in (state / inside).glob("*")}
    return frozenset(
        _SEGMENT.sub("archive/segment", name)
        for name in names
        if not name.endswith(("-wal", "-shm"))
    )


def _backup_wrong(manifest: Path) -> list[str]:
    """Return what is wrong with a folder that bears a manifest: it says that it is whole."""
    try:
        text = json.loads(manifest.read_text("utf-8"))
    except ValueError as error:
        return [f"the manifest of a backup is not whole: {error}"]
    found = []
    for name, value in text["files"].items():
        raw = (manifest.parent / name).read_bytes()
        if sha256(raw).hexdigest() != value["sha256"]:
            found.append(f"the backup's {name} is not what its manifest says")
    for name in _SQLITE:
        copy = sqlite3.connect(f"{(manifest.parent / name).as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            if copy.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                found.append(f"the backup's {name} is damaged")
            if name == "store.db":
                size = copy.execute("SELECT MAX(last) FROM segment").fetchone()[0]
                if size != text["size"]:
                    found.append(f"the backup holds {size} entries, not {text['size']}")
        finally:
            copy.close()
    return found


class _Day(Script):
    events = DAY_EVENTS

    def __init__(self, stage: Stage, folder: Path, life: int, *, lasting: bool) -> None:
        self.folder, self.lasting = folder, lasting
        self.evening = folder / "evening"
        begins = START_US + life * HOUR_US + (DAY_US if self.evening.exists() else 0)
        clock = ManualClock(begins, boot=f"life {life}")
        world = FileWorld(folder / "world.jsonl")
        fleet = fleet_of(stage, folder, world, clock)
        fleet.on_failure = self._broke
        super().__init__(stage, fleet, clock, world)
        self.broken = False
        self.opened = False

    # --- the day ------------------------------------------------------------------------------

    async def live(self) -> None:
        """Live the day. Raises TakesNoMore if the disk stays away, AssertionError for a hang."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, message: self._unheard(message))
        try:
            for name, act in [*self.acts(), ("promote", self._promote)]:
                await self._see_to(name, act)
            await self._close()
            await self._see_to("back up", self._back_up, fleet=False)
            if not self.evening.exists():
                self.evening.touch()
                self.clock.advance(DAY_US)
            for name, act in (
                ("feed in the evening", partial(self._feed, EVENING)),
                ("see the evening through", self._see_through),
                ("archive", self._archive),
            ):
                await self._see_to(name, act)
        finally:
            await self._close()

    async def _see_to(self, name: str, act: Act, *, fleet: bool = True) -> None:
        """Do an act, again if it fails: as people and sources do."""
        for _ in range(TRIES):
            try:
                async with asyncio.timeout(PATIENCE_S):
                    if fleet:
                        await self._open()
                    await act()
            except TakesNoMore:
                raise
            except Exception as error:
                self._hear(name, error)
                if self.lasting:
                    raise TakesNoMore from error
            else:
                return
        raise AssertionError(f"{name} failed {TRIES} times")

    async def _open(self) -> None:
        """Open the fleet if it is not, or broke: as who watches over its process does."""
        if self.broken:
            await self._close()
        if not self.opened:
            await self.fleet.open()
            self.opened, self.broken = True, False

    async def _close(self) -> None:
        if not self.opened:
            return
        self.opened = False
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.fleet.close()
        except Exception as error:
            self._hear("close", error)

    async def _settle(self) -> None:
        """Return when nothing is left to handle now; time passes while the store takes nothing."""
        dispatcher, store = self.fleet.app.dispatcher, self.fleet.app.store
        away_s = 0.0
        while not self.broken:
            if store.steps.is_ready:
                dispatcher.wake_due()
                if dispatcher.is_idle:
                    return
            elif self.lasting and away_s > _AWAY_S:
                self._say("the fleet", {"what": store.writer.failure})
                raise TakesNoMore
            else:
                self.clock.advance(250_000)
                away_s += 0.02
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.001)
        raise RestartedError

    async def _wait_for_budget(self) -> None:
        """Settle until what came last waits for budget: a step the disk refused is made again."""
        await self._settle()
        while any(run.state == "ready" for event in LAST for run in self.fleet.runs(event)):
            self.clock.advance(1_000_000)
            await self._settle()

    async def _promote(self) -> None:
        banks = self.fleet.app.banks
        waiting = [one["id"] for one in banks.list_memories("notes") if one["state"] == "candidate"]
        for id in waiting:
            await self._order(f"promote {id}", "memory_approve", id=id)
        recall, away_s = self.fleet.app.services.recall, 0.0
        while recall.lag_reason and not self.broken:
            if self.lasting and away_s > _AWAY_S:
                raise TakesNoMore
            self.clock.advance(1_000_000)
            away_s += 0.02
            await asyncio.sleep(0.02)
        states = [one["state"] for one in banks.list_memories("notes")]
        assert states == ["active"], f"memories are {states}"

    async def _back_up(self) -> None:
        made = self.folder / "backup"
        if list(made.glob("*/backup.json")):
            return
        settings = replace(settings_of(self.stage.content), state=self.folder / "state")
        back_up(settings, made / str(len(list(made.glob("*")))))

    async def _archive(self) -> None:
        """Do what `vedette ledger archive` does beside a running fleet; errors told as it does."""
        with convert_disk_errors(self.folder / "state"):
            await self._archive_what_is_old()

    async def _archive_what_is_old(self) -> None:
        state = self.folder / "state"
        store = open_reader(replace(settings_of(self.stage.content), state=state))
        try:
            before = self.clock.now_us() - DAY_US // 2
            size = checkpoint_size_before(store.ledger, before, store.ledger.first_open_entry())
            if size <= archived_part(store.ledger).size:
                return
            key = (state / "ledger.pub").read_text(encoding="ascii").strip()
            archived = write_segment(store.ledger, state / "archive", size, key)
        finally:
            store.close()
        await self._order(f"let go {size}", "let_go", archived=archived.to_bytes().decode())

    # --- what is said ---------------------------------------------------------------------------

    def wrong(self, text: str) -> None:
        """Take down what must not be."""
        self._note("wrong", text)

    def _say(self, name: str, answer: dict[str, Any]) -> None:
        self._note("said", json.dumps({"act": name, **answer}))

    def _note(self, file: str, text: str) -> None:
        with (self.folder / file).open("ab", buffering=0) as to:
            to.write(text.encode() + b"\n")

    def _hear(self, name: str, error: Exception) -> None:
        """Judge what a person is told of an error: what, where and the mend, or it is wrong."""
        if isinstance(error, AlreadyDone | RestartedError):
            return
        report = describe_error(error) if not isinstance(error, TimeoutError) else None
        if report is None:
            self.wrong(_trace_text(name, error))
            return
        self._say(name, report)
        lacks = [word for word in ("what", "where", "mend") if not report[word]]
        if lacks:
            self.wrong(f"{name}: without {' and '.join(lacks)}: {report} {_where(error)}")
        if not isinstance(error, VedetteError):
            self.wrong(f"{name}: {type(error).__name__} comes out: {report} {_where(error)}")

    def _broke(self, part: str, error: BaseException | None) -> None:
        self.broken = True
        if isinstance(error, Exception):
            self._hear(part, error)
        else:
            self.wrong(f"{part} ended: {error!r}")

    def _unheard(self, answer: dict[str, Any]) -> None:
        error = answer.get("exception")
        self.wrong(_trace_text(str(answer.get("message")), error))


class RestartedError(Exception):
    """The fleet broke under an act, which has said so: it is begun again."""


def _trace_text(name: str, error: BaseException | None) -> str:
    trace = "".join(traceback.format_exception(error)) if error is not None else ""
    return json.dumps(f"{name}: a traceback: {trace[-1500:]}")


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return " < ".join(f"{os.path.basename(f.filename)}:{f.lineno}" for f in reversed(frames))  # noqa: PTH119
