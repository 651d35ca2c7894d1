"""Loss: a store that is older than its witness saw, or has no witness, comes up stopped, in doubt.

On every store, through whole fleets: the target's own record has each effect once.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from msgspec.structs import replace
from tests.contract.store.test_store import KEY
from tests.pg import Server, server

from vedette.adapters.ledger_export import checkpoint_size_before, verify_store, write_segment
from vedette.app.backup import back_up, restore
from vedette.config.settings import StorePlan
from vedette.domain.base.errors import BadCommand, BadStore, Unavailable
from vedette.domain.entry import Draft
from vedette.domain.event import Event
from vedette.domain.run import ActionRow, LossWindow
from vedette.engine.cluster import follow_cluster
from vedette.interfaces.cli.orders import OrderOptions, submit_command
from vedette.interfaces.daemon import Daemon
from vedette.operations.commands import Order
from vedette.store.sqlite import SqliteStore
from vedette.store.witness import read_last_checkpoint
from vedette.testing.clock import ManualClock
from vedette.testing.harness import TESTER, FleetHarness
from vedette.testing.toy_fleet import (
    World,
    job,
    note_proposal,
    send_proposal,
    toy_fleet,
    wait_until,
)

TOOLS = ("order.place", "bell.ring", "wire.send")
LEASE_US = 1_000_000
FILE = "witness.log"


@pytest.fixture
def world() -> World:
    return World()


class Place:
    """Where the store of a test's fleet is, and how it goes back to what it was."""

    def __init__(
        self, folder: Path, world: World, kind: str, postgres: Server | None = None
    ) -> None:
        self.folder, self.world, self.kind = folder, world, kind
        self.url_file = folder / "url"
        self._fleets: dict[str, FleetHarness] = {}
        if kind == "postgresql":
            self.url_file.write_text((postgres or server(fsync=False)).fresh())

    def fleet(self, name: str = "one") -> FleetHarness:
        """Return a worker; one more than the first has a state folder with a copy of its key."""
        if name in self._fleets:
            return self._fleets[name]
        fleet = self._fleets[name] = toy_fleet(self.folder / name, self.world)
        # So long is waited before a target is asked about a call of somebody else.
        declared = self.folder / name / "content/agents/worker/agent.yaml"
        declared.write_text(declared.read_text().replace("timeout: 30s", "timeout: 1s"))
        if self.kind == "postgresql":
            url_file = str(self.url_file)
            fleet._store = StorePlan("postgresql", url_file=url_file, lease_us=LEASE_US)
        if name != "one":
            (self.folder / name / "state").mkdir()
            key = self.folder / "one" / "state" / "ledger.key"
            shutil.copy(key, self.folder / name / "state" / "ledger.key")
        return fleet

    def witness(self, name: str = "one") -> Path:
        return self.folder / name / "state" / FILE

    def keep(self) -> None:
        """Take a copy of the store; nobody is at work."""
        if self.kind == "sqlite":
            shutil.copy(self.folder / "one/state/store.db", self.folder / "store.db")
        else:
            self.copied = server(fsync=False).fresh(template=self._database())

    def go_back(self) -> None:
        """Put the copy in the store's place."""
        if self.kind == "sqlite":
            for left in (self.folder / "one/state").glob("store.db-*"):
                left.unlink()
            shutil.copy(self.folder / "store.db", self.folder / "one/state/store.db")
        else:
            self.url_file.write_text(self.copied)

    def fail_over(self, *, lags: bool = True) -> None:
        """Put a copy under the name of the database in use, and end all sessions.

        It is the one that was kept, or as the database is now.
        """
        live = self._database()
        postgres = server(fsync=False).url("postgres")
        with psycopg.connect(postgres, autocommit=True) as admin:
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname=%s"
            admin.execute(f"ALTER DATABASE {live} WITH ALLOW_CONNECTIONS false".encode())
            admin.execute(ended.encode(), (live,))
            if not lags:
                self.copied = server(fsync=False).fresh(template=live)
            copied = urlsplit(self.copied).path[1:]
            admin.execute(f"ALTER DATABASE {live} RENAME TO {live}_gone".encode())
            admin.execute(f"ALTER DATABASE {copied} RENAME TO {live}".encode())

    def _database(self) -> str:
        return urlsplit(self.url_file.read_text()).path[1:]


def jobs(first: int, last: int) -> list[Event]:
    return [
        job(f"{tool} {n}", send_proposal(f"{tool} {n}", tool), key=f"{tool} {n}", value=n)
        for tool in TOOLS
        for n in range(first, last)
    ]


async def handle(fleet: FleetHarness, *events: Event) -> None:
    await fleet.send(*events)
    await fleet.wait_until_idle()


def ordered(fleet: FleetHarness) -> Order:
    return replace(fleet.order("looked at the targets"), command_id=None)


async def go_on(fleet: FleetHarness) -> None:
    await fleet.app.commands.resume(ordered(fleet), all=True)


def rows(fleet: FleetHarness, events: list[Event]) -> list[ActionRow]:
    return [row for one in events for row in fleet.actions(one)]


async def grown(place: Place) -> list[Event]:
    """Handle, copy the store, handle more, go back to the copy; return what came in between."""
    fleet = place.fleet()
    async with fleet:
        await handle(fleet, *jobs(0, 2))
    place.keep()
    later = jobs(2, 5)
    async with fleet:
        await handle(fleet, *later)
    place.go_back()
    return later


def is_stopped(fleet: FleetHarness) -> bool:
    return (
        "all",
        "",
    ) in fleet.app.services.stops.list_scopes() and fleet.app.services.loss_window is not None


async def nothing_happens_twice(
    fleet: FleetHarness, world: World, later: list[Event], before: int = 15
) -> None:
    """Deliver again what was lost, go on: what can be asked is, and the rest waits for a person."""
    assert is_stopped(fleet)
    assert world.effects() == before
    await handle(fleet, *later)
    assert world.effects() == before  # it is stopped
    await go_on(fleet)
    await happened_once(fleet, world, later, before)


def are_over(fleet: FleetHarness, events: list[Event]) -> bool:
    found = rows(fleet, events)
    over = [row for row in found if row.effect == "done" or row.hold == "open"]
    return len(over) == len(events)


async def happened_once(
    fleet: FleetHarness, world: World, later: list[Event], before: int = 15
) -> None:
    await wait_until(lambda: are_over(fleet, later), 60)
    for tool in ("order.place", "bell.ring"):
        assert set(world.keys(tool).values()) == {1}, tool
    assert len(world.keys()) == before  # wire.send: the same key again, which its target absorbs
    assert len({call.key for call in world.queries}) == len(later) // 3
    found = rows(fleet, later)
    assert {row.effect for row in found if row.tool != "bell.ring"} == {"done"}
    assert {(row.effect, row.hold) for row in found if row.tool == "bell.ring"} == {
        ("unknown", "open")
    }


def stands(fleet: FleetHarness, witness: Path) -> bool:
    line = (fleet.folder / "state" / "ledger.pub").read_text().strip()
    report = verify_store(fleet.app.store.ledger, line, witness)
    assert report.findings == ()
    return bool(report.restored)


# --- a witness that is not there ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "left"),
    [("sqlite", "nothing"), ("sqlite", "an empty file"), ("postgresql", "nothing")],
)
async def test_a_store_whose_witness_was_removed_comes_up_stopped_and_in_doubt(
    tmp_path: Path, world: World, kind: str, left: str
) -> None:
    place = Place(tmp_path, world, kind)
    later = await grown(place)
    place.witness().unlink()
    if left == "an empty file":
        place.witness().touch()
    async with place.fleet() as fleet:
        await nothing_happens_twice(fleet, world, later)
        (messages,) = [one for one in fleet.app.troubles if "no witness" in one]
        assert "no witness tells whether anything was lost after entry" in messages
        assert stands(fleet, place.witness())
        # What a person has settled stays so: the next start has a witness.
        await fleet.restart()
        assert fleet.app.store.loss is None
        assert fleet.app.services.stops.list_scopes() == []


@pytest.mark.parametrize("verb", ["resume", "settle_restore"])
async def test_the_order_that_meets_a_loss_first_is_not_carried_out(
    tmp_path: Path, world: World, verb: str
) -> None:
    """No fleet runs: whoever gives it is told what is lost, and everything stays stopped."""
    place = Place(tmp_path, world, "sqlite")
    fleet = place.fleet()
    async with fleet:
        await handle(fleet, *jobs(0, 1))
        for _ in range(2):
            await fleet.app.commands.stop(ordered(fleet), all=True)
            await go_on(fleet)
        settings, stops = fleet.app.settings, fleet.app.store.cluster.stop_epoch
    place.witness().unlink()
    args = {"agent": None, "tool": None, "all": True} if verb == "resume" else {}

    def order() -> dict[str, Any]:
        return submit_command(settings, verb, args, OrderOptions("a test"))

    with pytest.raises(BadCommand, match=r"no witness tells.*nothing was ordered"):
        await asyncio.to_thread(order)
    async with fleet:
        assert is_stopped(fleet)
        assert fleet.app.services.loss_window == LossWindow(
            fleet.entries("store.restored")[0]["seq"]
        )
        assert fleet.app.store.cluster.stop_epoch > stops
    assert (await asyncio.to_thread(order))["by"] == "here"


async def test_a_folder_that_was_a_workers_does_not_join_without_its_witness(
    tmp_path: Path, world: World
) -> None:
    """One that never was one joins a fleet that lives: the others vouch for the store."""
    place = Place(tmp_path, world, "postgresql")
    one = place.fleet()
    async with one:
        other = place.fleet("other")
        async with other:
            assert other.app.store.loss is None
            assert one.app.store.policy.stop_scopes() == []
        async with other:
            assert other.app.store.loss is None
        place.witness("other").unlink()
        async with other:
            assert is_stopped(other)
            # The others take the stop over by themselves, also before they follow anything else.
            await wait_until(lambda: is_stopped(one))


async def test_a_newcomer_that_meets_nobody_comes_up_stopped(tmp_path: Path, world: World) -> None:
    place = Place(tmp_path, world, "postgresql")
    async with place.fleet() as one:
        await handle(one, *jobs(0, 1))
    async with place.fleet("other") as other:
        assert is_stopped(other)
        await handle(other, *jobs(1, 2))
        assert world.effects() == 3


async def test_a_first_start_that_was_killed_before_its_head_was_shown_is_no_loss(
    tmp_path: Path,
) -> None:
    def opened() -> SqliteStore:
        return SqliteStore(
            tmp_path, fleet="harbour", key=KEY, key_name="vedette/harbour",
            now_us=ManualClock().now_us,
        )  # fmt: skip

    witness = tmp_path / FILE
    store = opened()
    assert witness.read_bytes() == b""
    await store.commands.append_entries([Draft("store.opened", {"epoch": 1})])
    store.close()
    witness.write_bytes(b"")
    store = opened()
    assert store.loss is None
    await store.commands.append_entries([Draft("store.opened", {"epoch": 1})])
    store.close()
    witness.write_bytes(b"")
    store = opened()
    assert store.loss is not None
    assert store.policy.stop_scopes() == [("all", "")]
    store.close()


# --- a server that went back --------------------------------------------------------------------


async def test_a_server_that_is_older_than_the_witness_saw_comes_up_stopped(
    tmp_path: Path, world: World
) -> None:
    place = Place(tmp_path, world, "postgresql")
    later = await grown(place)
    seen = read_last_checkpoint(place.witness())
    assert seen is not None
    async with place.fleet() as fleet:
        await nothing_happens_twice(fleet, world, later)
        loss = fleet.app.store.loss
        assert loss is not None
        assert loss.last == seen.size
        text = f"entries {loss.size + 1} to {seen.size} are lost: the store goes no further than"
        assert any(text in one for one in fleet.app.troubles)
        assert fleet.body(fleet.entries("store.restored")[0]["seq"])["reason"] == loss.sentence
        # What was learned in the lost history is not known any more.
        assert place.witness().with_name("lost-memory.db").exists()
        assert stands(fleet, place.witness())
        await fleet.restart()
        assert (fleet.app.store.loss, fleet.app.services.stops.list_scopes()) == (None, [])
        await archived(fleet, tmp_path / "archive")
        assert stands(fleet, place.witness())


async def test_after_a_restore_and_an_archive_the_ledger_verifies_by_itself(
    tmp_path: Path, world: World
) -> None:
    """What was lost is told again by the entry that lets the restore's own entry go; twice too."""
    fleet = Place(tmp_path, world, "sqlite").fleet()
    state, kept = fleet.folder / "state", tmp_path / "elsewhere.log"
    later = jobs(2, 5)
    async with fleet:
        settings = fleet.app.settings
        await handle(fleet, *jobs(0, 2))
        await asyncio.to_thread(back_up, settings, tmp_path / "backup", with_keys=True)
        await handle(fleet, *later)
    shutil.copy(state / FILE, kept)
    shutil.rmtree(state)

    backup, reason = tmp_path / "backup", "disk gone"
    await restore(settings, backup, witness=kept, key=None, who=TESTER, reason=reason)
    async with fleet:
        await nothing_happens_twice(fleet, world, later)
        for _ in range(2):
            await archived(fleet, tmp_path / "archive")
            assert stands(fleet, state / FILE)
            assert stands(fleet, kept)
        # Another history is not excused by it.
        forged = state / "forged.log"
        text = kept.read_text()
        forged.write_text(text[: text.rindex("\u2014")] + "\u2014 vedette/harbour AAAA\n\n")
        line = (state / "ledger.pub").read_text().strip()
        assert not verify_store(fleet.app.store.ledger, line, forged).ok


async def test_three_workers_whose_server_went_back(tmp_path: Path, world: World) -> None:
    """Whoever comes first says it for all; each one's witness verifies afterwards."""
    place = Place(tmp_path, world, "postgresql")
    later = jobs(2, 5)
    async with place.fleet() as one:
        await handle(one, *jobs(0, 2))
        names = ("one", "two", "three")
        fleets = [place.fleet(name) for name in names]
    place.keep()
    async with AsyncExitStack() as stack:
        for fleet in fleets:
            await stack.enter_async_context(fleet)
        for at, fleet in enumerate(fleets):
            await fleet.send(*later[at::3])
        await wait_until(lambda: are_over(one, later), 60)
        # Every witness sees what any of them signs.
        head = one.app.store.ledger.last_seq()
        await wait_until(lambda: all(shown(place, name) >= head for name in names), 20)
    place.go_back()
    async with AsyncExitStack() as stack:
        followers = []
        for fleet in reversed(fleets):
            await stack.enter_async_context(fleet)
            assert is_stopped(fleet)
            line, rollout = fleet.app.services, fleet.app.rollout
            followers.append(
                asyncio.create_task(follow_cluster(line, rollout, lambda: None, print))
            )
        assert [fleet.app.store.loss is None for fleet in fleets] == [True, True, False]
        assert len(one.entries("store.restored")) == 1
        for at, fleet in enumerate(fleets):
            await fleet.send(*later[at::3])
        await asyncio.sleep(2 * LEASE_US / 1e6)
        assert world.effects() == 15
        await go_on(one)
        await happened_once(one, world, later)
        assert all(stands(fleet, place.witness(fleet.folder.name)) for fleet in fleets)
        for follower in followers:
            follower.cancel()


def shown(place: Place, name: str) -> int:
    point = read_last_checkpoint(place.witness(name))
    return point.size if point is not None else 0


async def test_a_worker_that_saw_more_than_was_told_stops_everything_again(
    tmp_path: Path, world: World
) -> None:
    place = Place(tmp_path, world, "postgresql")
    one = place.fleet()
    async with one:
        await handle(one, *jobs(0, 2))
    place.keep()
    async with one:
        await handle(one, *jobs(2, 3))
        other = place.fleet("other")
        async with other:
            pass
    more = jobs(3, 5)
    async with other:
        await handle(other, *more)
    saw = shown(place, "other")
    place.go_back()
    async with one:
        assert is_stopped(one)
        await go_on(one)
        # The restored history grows past what the other one saw.
        while one.app.store.ledger.last_seq() <= saw:
            await handle(
                one,
                *(
                    job(f"n{one.app.store.ledger.last_seq()}-{n}", note_proposal("x"))
                    for n in range(9)
                ),
            )
    async with other:
        loss = other.app.store.loss
        assert loss is not None
        assert loss.last == saw
        await nothing_happens_twice(other, world, more)
        assert stands(other, place.witness("other"))
        assert stands(other, place.witness())


async def test_a_worker_that_saw_nothing_of_what_is_lost_stops_everything_too(
    tmp_path: Path, world: World
) -> None:
    """Its witness agrees with the copy; that it is a copy is told by the database itself."""
    place = Place(tmp_path, world, "postgresql")
    later = jobs(2, 5)
    async with place.fleet() as one:
        await handle(one, *jobs(0, 2))
        other = place.fleet("other")
        async with other:
            pass
    place.keep()
    async with one:
        await handle(one, *later)
    place.go_back()
    async with other:
        loss = other.app.store.loss
        assert loss is not None
        assert (loss.heads, loss.has_moved) == ((), True)
        assert any(loss.sentence in message for message in other.app.troubles)
        await nothing_happens_twice(other, world, later)
        assert stands(other, place.witness("other"))
        await other.restart()
        assert (other.app.store.loss, other.app.services.stops.list_scopes()) == (None, [])
    async with one:  # it knows more
        assert one.app.store.loss is not None
        assert one.app.store.loss.heads
        assert is_stopped(one)


async def test_a_store_of_before_names_its_database_at_the_next_start(
    tmp_path: Path, world: World
) -> None:
    place = Place(tmp_path, world, "postgresql")
    fleet = place.fleet()
    async with fleet:
        await handle(fleet, *jobs(0, 1))
    with psycopg.connect(place.url_file.read_text(), autocommit=True) as admin:
        assert admin.execute("DELETE FROM meta WHERE name='instance'").rowcount == 1
    async with fleet:
        assert (fleet.app.store.loss, fleet.app.services.stops.list_scopes()) == (None, [])
    place.keep()
    place.go_back()
    async with fleet:
        assert is_stopped(fleet)


@pytest.mark.parametrize("first_up", ["one", "newcomer"])
async def test_a_second_loss_is_told_though_the_first_one_was_longer(
    tmp_path: Path, world: World, first_up: str
) -> None:
    """What was named as lost before says nothing of what the restored history lost since.

    Nor does a worker know better that came after it had been restored.
    """
    place = Place(tmp_path, world, "postgresql")
    fleet = place.fleet()
    later, more = jobs(2, 5), jobs(5, 8)
    async with fleet:
        await handle(fleet, *jobs(0, 2))
    place.keep()
    async with fleet:
        # Longer than all that comes after it is lost.
        while fleet.app.store.ledger.last_seq() <= 500:
            at = fleet.app.store.ledger.last_seq()
            await handle(fleet, *(job(f"n{at}-{n}", note_proposal("x")) for n in range(40)))
        await handle(fleet, *later)
    place.go_back()
    async with fleet:
        first = fleet.app.store.loss
        assert first is not None
        await nothing_happens_twice(fleet, world, later)
        await fleet.submit_confirmed("settle_restore")
    place.keep()
    async with fleet:
        async with place.fleet("newcomer"):
            await fleet.send(*more)
            await wait_until(lambda: are_over(fleet, more), 60)
        assert fleet.app.store.ledger.last_seq() < first.last
    place.go_back()
    fleet = place.fleet(first_up)
    async with fleet:
        second = fleet.app.store.loss
        assert second is not None
        assert first.size < second.size < second.last < first.last
        assert is_stopped(fleet)
        world.queries.clear()
        await handle(fleet, *more)
        await go_on(fleet)
        await happened_once(fleet, world, more, 24)
        assert stands(fleet, place.witness())
        assert stands(fleet, place.witness("newcomer"))
        await fleet.restart()
        assert (fleet.app.store.loss, fleet.app.services.stops.list_scopes()) == (None, [])


async def test_a_worker_that_had_ended_before_the_loss_comes_back_to_a_longer_history(
    tmp_path: Path, world: World
) -> None:
    """What it saw last is lost, within what another one told; its witness accuses nobody."""
    place = Place(tmp_path, world, "postgresql")
    one = place.fleet()
    async with one:
        await handle(one, job("1", note_proposal("x")))
        other = place.fleet("other")
        async with other:
            pass
    place.keep()
    async with other:
        pass
    saw = shown(place, "other")
    async with one:
        await handle(one, *(job(f"lost {n}", note_proposal("x")) for n in range(9)))
    place.go_back()
    async with one:
        assert is_stopped(one)
        await go_on(one)
        await handle(one, *(job(f"new {n}", note_proposal("x")) for n in range(9)))
        assert saw < one.app.store.ledger.last_seq()
    async with other:
        assert other.app.store.loss is None
        assert stands(other, place.witness())
        assert stands(other, place.witness("other"))


@pytest.mark.parametrize(
    ("lags", "expected"), [(True, "the server went back"), (False, "the server was promoted")]
)
async def test_a_running_worker_whose_server_goes_back_ends_and_calls_nothing(
    tmp_path: Path, world: World, lags: bool, expected: str
) -> None:
    """The same address, another database: what a failover to a copy that may lag comes to."""
    place = Place(tmp_path, world, "postgresql")
    fleet = place.fleet()
    async with fleet:
        await handle(fleet, *jobs(0, 2))
    place.keep()
    later = jobs(2, 5)
    async with fleet:
        await handle(fleet, *later)
        await fleet.app.dispatcher.close()
        running = Daemon(fleet.app, until_idle=False)
        async with asyncio.timeout(30):
            ticks: list[object] = []
            ending = asyncio.create_task(running.run(ticks.append))
            await wait_until(lambda: bool(ticks) or ending.done(), 20)
            place.fail_over(lags=lags)
            with pytest.raises((BadStore, Unavailable), match=expected):
                await ending
        assert not fleet.app.store.cluster.is_lease_valid(fleet.app.store.cluster.epoch)
        assert world.effects() == 15
    async with fleet:
        assert is_stopped(fleet)
        if lags:
            await nothing_happens_twice(fleet, world, later)
        assert stands(fleet, place.witness())


async def archived(fleet: FleetHarness, to: Path) -> None:
    """Archive what is closed, and let it go: the entries of the loss among it."""
    store, upkeep = fleet.app.store, fleet.app.commands.maintenance
    assert upkeep is not None
    for held in store.runs.holds_page(after=0, limit=100):
        await fleet.app.commands.deny(ordered(fleet), held.id)
    await handle(fleet, *(job(f"more {n}", note_proposal("more"), value=n) for n in range(3)))
    key = (fleet.folder / "state" / "ledger.pub").read_text().strip()
    size = checkpoint_size_before(
        store.ledger, fleet.app.services.clock.now_us(), store.ledger.first_open_entry()
    )
    assert all(one["seq"] <= size for one in fleet.entries("store.restored"))
    await upkeep.prune_archived(TESTER, "old", write_segment(store.ledger, to, size, key))
    assert fleet.entries("store.restored") == []
