"""A Maildir as a source: each mail once, in order, read only, and bad ones refused by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from vedette.adapters.mail.maildir.source import MaildirSource
from vedette.domain.base.errors import BadFleet
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.ports.sources import Receipt, Refused

MAIL = b"From: a@b.example\nDate: Mon, 02 Mar 2026 13:05:11 +0000\nSubject: s\n\ntext\n"


class SteppedClock:
    """Time that stands until somebody waits for it."""

    def __init__(self) -> None:
        self.now = 0
        self.waits = 0
        self.on_wait: Callable[[int], None] = lambda count: None

    def now_us(self) -> int:
        return self.now

    def monotonic_us(self) -> int:
        return self.now

    async def sleep_until(self, at_us: int) -> None:
        self.now = at_us
        self.waits += 1
        self.on_wait(self.waits)


class Kept:
    """An intake that keeps what it is given."""

    def __init__(self) -> None:
        self.batches: list[list[Event | Refused]] = []
        self.during: Callable[[int], None] = lambda count: None

    @property
    def events(self) -> list[Event]:
        return [item for batch in self.batches for item in batch if isinstance(item, Event)]

    @property
    def refused(self) -> list[Refused]:
        return [item for batch in self.batches for item in batch if isinstance(item, Refused)]

    async def accept(
        self, deliveries: Sequence[Event | Refused], *, position: tuple[str, str] | None = None
    ) -> list[Receipt]:
        self.batches.append(list(deliveries))
        self.during(len(self.batches))
        return [Receipt("accepted") for _ in deliveries]

    def position(self, source: str) -> str | None:
        return None


@pytest.fixture
def box(tmp_path: Path) -> Path:
    root = tmp_path / "mailbox"
    for place in ("new", "cur", "tmp"):
        (root / place).mkdir(parents=True)
    return root


def put(box: Path, name: str, raw: bytes = MAIL, place: str = "new") -> Path:
    path = box / place / name
    path.write_bytes(raw)
    return path


async def deliver(box: Path, max_mail: int = 100_000) -> Kept:
    kept = Kept()
    await MaildirSource("t", box, clock=SteppedClock(), max_mail=max_mail).deliver(kept)
    return kept


async def test_each_mail_once_in_order_of_unique_names(box: Path) -> None:
    put(box, "3.c.host")
    put(box, "1.a.host:2,S", place="cur")
    put(box, "2.b.host")
    put(box, ".hidden")
    put(box, "4.d.host", place="tmp")
    (box / ".Legal" / "cur").mkdir(parents=True)
    put(box / ".Legal", "5.e.host", place="cur")
    kept = await deliver(box)
    assert [event.id for event in kept.events] == ["1.a.host", "2.b.host", "3.c.host"]
    first = kept.events[0]
    assert first.source == "maildir:t"
    assert first.subject == first.id
    assert first.type == "mail.received"
    assert first.vouched == ENVELOPE - {"time"}, "its sender wrote the date"
    assert first.time == "2026-03-02T13:05:11Z"
    assert first.data["from"] == "a@b.example"
    assert (first.hops, first.lineage) == (0, ())


async def test_nothing_in_the_mailbox_changes(box: Path) -> None:
    path = put(box, "1.a.host")
    before = path.stat()
    await deliver(box)
    assert [p.name for p in (box / "new").iterdir()] == ["1.a.host"]
    assert path.stat().st_mtime_ns == before.st_mtime_ns


async def test_batches_are_bounded(box: Path) -> None:
    for number in range(150):
        put(box, f"{number:04}.host")
    kept = await deliver(box)
    assert [len(batch) for batch in kept.batches] == [64, 64, 22]
    assert len({event.id for event in kept.events}) == 150


async def test_without_a_date_the_time_is_that_of_the_file(box: Path) -> None:
    os.utime(put(box, "1.a.host", b"Subject: s\n\nx"), (1_000_000_000, 1_000_000_000))
    assert (await deliver(box)).events[0].time == "2001-09-09T01:46:40Z"


async def test_a_mail_a_fleet_sent_carries_its_lineage(box: Path) -> None:
    head = b"X-Vedette-Run: run_1\nvedettelineage: inbox_triage\n"
    put(box, "1.a.host", head + MAIL)
    event = (await deliver(box)).events[0]
    assert (event.hops, event.lineage) == (1, ("inbox_triage",))


async def test_what_cannot_be_read_is_refused_and_stays(box: Path, tmp_path: Path) -> None:
    put(box, "1.big.host", MAIL + b"x" * 2_000)
    (tmp_path / "secret").write_bytes(MAIL)
    (box / "new" / "2.link.host").symlink_to(tmp_path / "secret")
    (box / "new" / "3.folder.host").mkdir()
    os.mkfifo(box / "new" / "4.pipe.host")
    put(box, os.fsdecode(b"5.\xff.host"))
    put(box, "6.good.host")
    kept = await deliver(box, max_mail=1_000)
    assert [event.id for event in kept.events] == ["6.good.host"]
    said = {item.where.split("/")[1][:2]: item.why for item in kept.refused}
    assert "limit is 1000" in said["1."]
    assert set(said) == {"1.", "2.", "3.", "4.", "5."}
    assert all(len(item.raw) <= 256 for item in kept.refused)
    assert len(list((box / "new").iterdir())) == 6


async def test_a_mail_renamed_while_we_read_is_still_delivered(box: Path) -> None:
    """A mail reader sees the second batch before we do and moves it to cur/."""
    for number in range(70):
        put(box, f"{number:04}.host")
    kept = Kept()

    def reader(count: int) -> None:
        path = box / "new" / "0069.host"
        if count == 1 and path.exists():
            path.rename(box / "cur" / "0069.host:2,S")

    kept.during = reader
    await MaildirSource("t", box, clock=SteppedClock()).deliver(kept)
    assert len([event for event in kept.events if event.id == "0069.host"]) == 1
    assert len(kept.events) == 70


async def test_watching_finds_new_mail_and_delivers_none_twice(box: Path) -> None:
    put(box, "1.a.host")
    clock, kept = SteppedClock(), Kept()

    class Enough(Exception):
        pass

    def on_wait(count: int) -> None:
        if count == 2:
            (box / "new" / "1.a.host").rename(box / "cur" / "1.a.host:2,FS")
            put(box, "2.b.host")
        if count == 4:
            raise Enough

    clock.on_wait = on_wait
    source = MaildirSource("t", box, clock=clock, watch=True, poll_us=5_000_000)
    assert source.finite is False
    with pytest.raises(Enough):
        await source.deliver(kept)
    assert [event.id for event in kept.events] == ["1.a.host", "2.b.host"]
    assert clock.now == 20_000_000


async def test_the_first_run_copies_and_the_next_does_not(box: Path, tmp_path: Path) -> None:
    put(box, "1.a.host")
    target = tmp_path / "state" / "mailbox"
    for _ in range(2):
        kept = Kept()
        source = MaildirSource("t", target, clock=SteppedClock(), copy_from=box)
        await source.deliver(kept)
        assert [event.id for event in kept.events] == ["1.a.host"]
        put(box, "2.late.host")
    assert sorted(p.name for p in target.iterdir()) == ["cur", "new", "tmp"]
    assert sorted(p.name for p in target.parent.iterdir()) == ["mailbox"]


async def test_a_broken_copy_is_begun_again(box: Path, tmp_path: Path) -> None:
    put(box, "1.a.host")
    partial = tmp_path / "state" / "mailbox.partial" / "new"
    partial.mkdir(parents=True)
    (partial / "0.half.host").write_bytes(b"")
    kept = Kept()
    target = tmp_path / "state" / "mailbox"
    await MaildirSource("t", target, clock=SteppedClock(), copy_from=box).deliver(kept)
    assert [event.id for event in kept.events] == ["1.a.host"]


async def test_no_maildir_is_an_error_with_a_mend(tmp_path: Path) -> None:
    with pytest.raises(BadFleet, match="is no Maildir"):
        await deliver(tmp_path / "nothing")
    source = MaildirSource(
        "t", tmp_path / "a", clock=SteppedClock(), copy_from=tmp_path / "nothing"
    )
    with pytest.raises(BadFleet, match="copy_from"):
        await source.deliver(Kept())
