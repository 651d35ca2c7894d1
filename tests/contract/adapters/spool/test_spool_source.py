"""A spool folder as a source: each file once, in order, moved when it is durable, nothing lost."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from vedette.adapters.spool.config import SpoolFile
from vedette.adapters.spool.plugin import SPOOL
from vedette.adapters.spool.source import BATCH, SourceUnavailable
from vedette.config.settings import read_settings
from vedette.domain.base.errors import BadFleet, StoreFailed
from vedette.domain.event import EFFECT_ENVELOPE, ENVELOPE, Event
from vedette.domain.ports.plugin import SourceContext
from vedette.domain.ports.sources import Receipt, Refused, Source
from vedette.testing.clock import ManualClock
from vedette.testing.intake import ListIntake
from vedette.testing.toy_fleet import World, toy_fleet

LIMIT = 2000
NOBODY = 65534


class Ended(BaseException):
    """The process ends here."""


class WatchfulIntake(ListIntake):
    """Keeps its answers, and calls `after` when a batch is durable, before it says so."""

    def __init__(self) -> None:
        super().__init__()
        self.receipts: list[Receipt] = []
        self.after: Callable[[], None] = lambda: None

    async def accept(
        self, deliveries: Sequence[Event | Refused], *, position: tuple[str, str] | None = None
    ) -> list[Receipt]:
        receipts = await super().accept(deliveries, position=position)
        self.after()
        self.receipts += receipts
        return receipts

    @property
    def statuses(self) -> list[str]:
        return [receipt.status for receipt in self.receipts]


class WaitedClock(ManualClock):
    """Time that passes when somebody waits for it; each time `waits` has the next to be done."""

    def __init__(self, *waits: Callable[[], object]) -> None:
        super().__init__()
        self.waits = list(waits)

    async def sleep_until(self, at_us: int) -> None:
        if not self.waits:
            raise Ended
        self.waits.pop(0)()
        self.advance(at_us - self.now_us())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "spool"
    path.mkdir()
    return path


@pytest.fixture
def plain_folder() -> Iterator[Path]:
    """A folder that is handled by an account for which modes count, as they do not for root."""
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "inner" / "spool"
        path.mkdir(parents=True)
        root = os.geteuid() == 0
        if root:
            for each in (path.parents[1], path.parent, path):
                os.chown(each, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        try:
            yield path
        finally:
            if root:
                os.seteuid(0)


def event(id: str = "1", **more: Any) -> str:
    fields = {"specversion": "1.0", "id": id, "source": "shop", "type": "order.placed"}
    return json.dumps(fields | more)


def put(folder: Path, name: str, content: str | bytes | None = None) -> Path:
    """Put a file as writers shall: under a dot-name, renamed when it is whole."""
    raw = event(name.removesuffix(".json")) if content is None else content
    partial = folder / f".{os.getpid()}.part"
    partial.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    return partial.rename(folder / name)


def source(
    folder: Path,
    *,
    clock: ManualClock | None = None,
    watch: bool = False,
    leads: Callable[[], bool] = lambda: True,
    **table: Any,
) -> Source:
    """Return the source that a table of [[sources]] comes to."""
    anything: Any = None
    context = SourceContext(
        clock or ManualClock(), anything, watch, LIMIT, leads, anything, anything, anything
    )
    return SPOOL.build(SpoolFile(kind="spool", name="shop", path=str(folder), **table), context)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def names(folder: Path) -> list[bytes]:
    return sorted(os.fsencode(path.name) for path in folder.iterdir())


def ids(intake: ListIntake) -> list[str]:
    return [event.id for event in intake.events]


# --- each file once -------------------------------------------------------------------------------


async def test_files_are_handed_over_in_order_of_name_and_moved(folder: Path) -> None:
    for name in ("2.json", "10.json", "1.json", ".3.json", "4.json.part", "5.txt"):
        put(folder, name)
    intake, made = ListIntake(), source(folder)
    assert (made.name, made.finite) == ("spool:shop", True)
    await made.deliver(intake)
    assert ids(intake) == ["1", "10", "2"]
    assert intake.refusals == []
    assert files(folder) == [
        ".3.json", "4.json.part", "5.txt", "done/1.json", "done/10.json", "done/2.json",
    ]  # fmt: skip
    assert (folder / "done").stat().st_mode & 0o777 == 0o700
    await made.deliver(intake)
    assert len(intake.batches) == 1


async def test_a_file_leaves_only_when_its_event_is_durable(folder: Path) -> None:
    put(folder, "1.json")
    put(folder, "2.json", "no event")
    intake = WatchfulIntake()
    seen: list[list[str]] = []
    intake.after = lambda: seen.append(files(folder))
    await source(folder).deliver(intake)
    assert seen == [["1.json", "2.json"]]
    assert files(folder) == ["done/1.json", "refused/2.json"]


async def test_what_the_intake_raises_moves_nothing(folder: Path) -> None:
    put(folder, "1.json")
    intake, made = ListIntake(), source(folder)
    intake.failure = StoreFailed("the disk is full")
    with pytest.raises(StoreFailed):
        await made.deliver(intake)
    assert files(folder) == ["1.json"]
    intake.failure = None
    await made.deliver(intake)
    assert ids(intake) == ["1"]


async def test_after_a_crash_between_commit_and_move_it_is_a_duplicate(folder: Path) -> None:
    put(folder, "1.json")
    intake = WatchfulIntake()

    def crash() -> None:
        raise Ended

    intake.after = crash
    with pytest.raises(Ended):
        await source(folder).deliver(intake)
    assert files(folder) == ["1.json"]
    intake.after = lambda: None
    await source(folder).deliver(intake)
    assert intake.statuses == ["duplicate"]
    assert files(folder) == ["done/1.json"]


async def test_a_fleet_runs_the_event_of_a_file_once(tmp_path: Path, folder: Path) -> None:
    put(folder, "1.json", event(type="worker.job", data={"do": []}))
    before = (folder / "1.json").read_bytes()
    async with toy_fleet(tmp_path / "fleet", World()) as fleet:
        given = Event("shop", "1", "worker.job")
        for _ in range(2):
            await source(folder).deliver(fleet.app.intake)
            await fleet.wait_until_idle()
            (folder / "done" / "1.json").rename(folder / "1.json")
        assert len(fleet.runs(given)) == 1
    assert (folder / "1.json").read_bytes() == before


async def test_files_that_are_not_kept_are_removed_but_refused_ones_never(folder: Path) -> None:
    put(folder, "1.json")
    put(folder, "2.json", "no event")
    await source(folder, keep=False).deliver(ListIntake())
    assert files(folder) == ["refused/2.json"]
    assert not (folder / "done").exists()


async def test_batches_are_bounded_and_what_vanishes_is_left_out(folder: Path) -> None:
    """One is taken back before it is read, one between its commit and its move."""
    for number in range(BATCH + 2):
        put(folder, f"{number:03}.json")
    intake = WatchfulIntake()

    def take_back() -> None:
        (folder / "000.json").unlink(missing_ok=True)
        (folder / f"{BATCH:03}.json").unlink(missing_ok=True)

    intake.after = take_back
    await source(folder).deliver(intake)
    assert [len(batch) for batch in intake.batches] == [BATCH, 1]
    assert len(files(folder)) == BATCH


async def test_a_file_that_was_replaced_when_its_event_was_durable_is_read(folder: Path) -> None:
    put(folder, "next.json", event("1"))
    intake = WatchfulIntake()
    later = iter(["2"])

    def replace() -> None:
        for id in later:
            put(folder, "next.json", event(id))

    intake.after = replace
    await source(folder).deliver(intake)
    assert ids(intake) == ["1", "2"]


async def test_a_name_that_is_used_again_replaces_nothing_that_is_kept(folder: Path) -> None:
    intake = ListIntake()
    for id in ("1", "2", "3"):
        put(folder, "next.json", event(id))
        await source(folder).deliver(intake)
    kept = [json.loads(path.read_bytes())["id"] for path in (folder / "done").iterdir()]
    assert sorted(kept) == ids(intake) == ["1", "2", "3"]


async def test_with_watch_it_stays_and_looks_every_while(folder: Path) -> None:
    intake = ListIntake()
    clock = WaitedClock(lambda: None, lambda: put(folder, "1.json"))
    began = clock.now_us()
    made = source(folder, clock=clock, watch=True, every="5s")
    assert not made.finite
    with pytest.raises(Ended):
        await made.deliver(intake)
    assert ids(intake) == ["1"]
    assert clock.now_us() - began == 10_000_000


async def test_while_another_worker_leads_nothing_is_handed_over(folder: Path) -> None:
    put(folder, "1.json")
    intake = ListIntake()
    with pytest.raises(StoreFailed, match="another worker leads"):
        await source(folder, leads=lambda: False).deliver(intake)
    assert (intake.batches, files(folder)) == ([], ["1.json"])


# --- what cannot be an event ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not JSON"),
        (event().encode()[:-5], "not JSON"),
        (b"\xff", "UTF-8"),
        (b"[]", "an event is a JSON object"),
        (f"[{event()}]".encode(), "an event is a JSON object"),
        (b'{"specversion":"1.0","id":"1","id":"2"}', "given twice"),
        (event(id=""), "'id'"),
        (event(specversion="0.3"), "specversion"),
        (event(time="now"), "RFC 3339"),
        (event(data="x" * LIMIT), f"longer than {LIMIT} bytes"),
        (event(source="imap:desk"), "source 'imap:desk' belongs to"),
        (event(source="spool:other"), "source 'spool:other' belongs to"),
        (event(type="vedette.tick"), "type 'vedette.tick' belongs to"),
        (event(vedetteprincipal="person:kim"), "'vedetteprincipal' is the engine's own"),
    ],
)
async def test_what_is_no_event_is_refused_and_put_aside(
    folder: Path, content: str | bytes, why: str
) -> None:
    raw = put(folder, "1.json", content).read_bytes()
    put(folder, "2.json")
    intake = ListIntake()
    await source(folder).deliver(intake)
    (refused,) = intake.refusals
    assert (refused.where, refused.raw) == ("spool:shop/1.json", raw[:256])
    assert why in refused.why
    assert refused.why.endswith(")"), "the mend"
    assert ids(intake) == ["2"]
    assert (folder / "refused" / "1.json").read_bytes() == raw


async def test_its_own_source_an_event_may_name(folder: Path) -> None:
    put(folder, "1.json", event(source="spool:shop"))
    intake = ListIntake()
    await source(folder).deliver(intake)
    assert [event.source for event in intake.events] == ["spool:shop"]


async def test_what_the_intake_refuses_is_put_aside_too(folder: Path) -> None:
    put(folder, "1.json", event(data="x" * 500))
    await source(folder).deliver(ListIntake(max_event_bytes=400))
    assert files(folder) == ["refused/1.json"]


def make_link(path: Path) -> None:
    outside = path.parents[1] / "outside.json"
    outside.write_text(event("of another"))
    path.symlink_to(outside)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def make_unreadable(path: Path) -> None:
    path.write_text(event())
    path.chmod(0)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (make_link, "is a link"),
        (lambda path: path.symlink_to("nowhere"), "is a link"),
        (os.mkfifo, "is no plain file"),
        (make_socket, "is no plain file"),
        (Path.mkdir, "is no plain file"),
        (make_unreadable, "cannot be read: Permission denied"),
    ],
)
async def test_what_is_no_file_to_read_is_refused(
    plain_folder: Path, make: Callable[[Path], None], why: str
) -> None:
    folder = plain_folder
    make(folder / "1.json")
    put(folder, "2.json")
    intake = ListIntake()
    await source(folder).deliver(intake)
    assert [why in refused.why for refused in intake.refusals] == [True]
    assert intake.refusals[0].raw == b"", "nothing was read of it"
    assert ids(intake) == ["2"]
    assert names(folder / "refused") == [b"1.json"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"a\x1b[2Jb.json", "a\\x1b[2Jb.json"),
        (b"a\nb.json", "a\\nb.json"),
        (b"a\xffb.json", "a\\udcffb.json"),
        ("a\u202eb.json".encode(), "a\\u202eb.json"),
    ],
)
async def test_a_name_that_cannot_be_shown_is_refused(
    folder: Path, name: bytes, shown: str
) -> None:
    put(folder, os.fsdecode(name), event())
    intake = ListIntake()
    await source(folder).deliver(intake)
    assert [refused.where for refused in intake.refusals] == [f"spool:shop/{shown}"]
    assert intake.events == []
    assert names(folder / "refused") == [name]


# --- whom it trusts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "vouched"),
    [
        ({}, frozenset()),
        ({"vouches": "none"}, frozenset()),
        ({"vouches": "event"}, EFFECT_ENVELOPE),
        ({"vouches": "envelope"}, ENVELOPE),
    ],
)
async def test_what_an_event_says_is_trusted_as_far_as_the_operator_says(
    folder: Path, table: dict[str, Any], vouched: frozenset[str]
) -> None:
    put(folder, "1.json", event(subject="pay@evil.example", time="2026-06-01T10:00:00Z"))
    intake = ListIntake()
    await source(folder, **table).deliver(intake)
    assert [event.vouched for event in intake.events] == [vouched]


@pytest.fixture
def open_folder(folder: Path) -> Path:
    folder.chmod(0o1777)
    return folder


async def test_nobody_vouches_for_a_folder_that_everybody_may_write_into(open_folder: Path) -> None:
    folder = open_folder
    put(folder, "1.json")
    intake = ListIntake()
    with pytest.raises(BadFleet, match=r"every account .* \(take that from others"):
        await source(folder, vouches="event").deliver(intake)
    assert (intake.batches, files(folder)) == ([], ["1.json"])
    await source(folder).deliver(intake)
    assert ids(intake) == ["1"]


# --- the folder -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["done", "refused"])
async def test_no_link_leads_what_is_moved_elsewhere(
    tmp_path: Path, folder: Path, place: str
) -> None:
    put(folder, "1.json")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / place).symlink_to(elsewhere)
    intake = ListIntake()
    with pytest.raises(BadFleet, match=f"{place} in .* is a link"):
        await source(folder).deliver(intake)
    assert intake.batches == []
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("made", [lambda path: None, lambda path: path.write_text("")])
async def test_without_the_folder_it_says_so(
    tmp_path: Path, made: Callable[[Path], object]
) -> None:
    path = tmp_path / "nowhere"
    made(path)
    with pytest.raises(BadFleet, match=r"there is no folder .*nowhere \(make it, or"):
        await source(path).deliver(ListIntake())


@pytest.fixture
def locked_folder(plain_folder: Path) -> Iterator[Path]:
    put(plain_folder, "1.json")
    plain_folder.chmod(0o500)
    yield plain_folder
    plain_folder.chmod(0o700)


async def test_what_could_not_be_moved_is_not_handed_over(locked_folder: Path) -> None:
    intake = ListIntake()
    with pytest.raises(BadFleet, match=r"cannot be written \(see who owns it\)"):
        await source(locked_folder).deliver(intake)
    assert intake.batches == []


async def test_a_folder_that_was_away_is_read_on(folder: Path) -> None:
    away = folder.with_name("away")
    clock = WaitedClock(lambda: folder.rename(away))
    intake, made = ListIntake(), source(folder, clock=clock, watch=True)
    with pytest.raises(SourceUnavailable, match="there is no folder"):
        await made.deliver(intake)
    put(away, "1.json")
    away.rename(folder)
    with pytest.raises(Ended):
        await made.deliver(intake)
    assert ids(intake) == ["1"]


async def test_what_is_durable_and_could_not_be_moved_is_moved_later_and_told_once(
    folder: Path,
) -> None:
    put(folder, "1.json")
    put(folder, "2.json", "no event")
    intake, made = WatchfulIntake(), source(folder)

    def break_it() -> None:
        (folder / "done").rmdir()
        (folder / "done").write_text("")

    intake.after = break_it
    for _ in range(3):
        with pytest.raises(SourceUnavailable, match=r"done in .* is a link or a file"):
            await made.deliver(intake)
    (folder / "done").unlink()
    await made.deliver(intake)
    assert intake.statuses == ["accepted", "refused"]
    assert files(folder) == ["done/1.json", "refused/2.json"]


# --- its table ------------------------------------------------------------------------------------


def test_its_table_names_the_folder(tmp_path: Path) -> None:
    file = tmp_path / "vedette.toml"
    file.write_text('fleet = "x"\n[[sources]]\nkind = "spool"\nname = "shop"\npath = "in"\n')
    settings, problems = read_settings(file)
    assert problems == []
    assert settings is not None
    expected = SpoolFile(kind="spool", name="shop", path=str(tmp_path / "in"))
    assert settings.sources == (expected,)


async def test_check_counts_what_waits_and_changes_nothing(folder: Path) -> None:
    plan = SpoolFile(kind="spool", name="shop", path=str(folder))
    put(folder, "1.json")
    assert await SPOOL.probe(plan) == f"1 files wait in {folder}"
    assert names(folder) == [b"1.json"]
    with pytest.raises(BadFleet, match="there is no folder"):
        await SPOOL.probe(plan.replace(path=f"{folder}/away"))
