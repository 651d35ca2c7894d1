"""A store that cannot commit: nothing is called, a stop holds, and what happened is kept.

On a real store whose file may not grow, and on a small disk that is really full.
"""

from __future__ import annotations

import asyncio
import json
import random
import shlex
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.contract.app.test_upgrade import SETTINGS
from tests.contract.app.test_upgrade import said as say
from tests.contract.store.test_store_sqlite import mounts, need_mounts

from vedette.domain.base.errors import StoreFailed
from vedette.domain.effect import Call
from vedette.domain.run import Step
from vedette.interfaces.cli.stop import stop_text
from vedette.interfaces.http.local_api import serve_local
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (  # fmt: skip
    World,
    deny_policy,
    intercept_commits,
    job,
    note_proposal,
    send_proposal,
    toy_fleet,
    wait_until,
    write_policies,
)

ROOT = Path(__file__).parents[3]


def heavy(number: int = 0, size: int = 20_000) -> str:
    """Return a text that takes so many bytes, however it is packed, beside others, too."""
    return random.Random(number).randbytes(size).hex()


TOOLS = ("wire.send", "order.place", "bell.ring")


def grow(fleet: FleetHarness, pages: int | None) -> None:
    """Let the store's file grow by so many pages and no further; None lifts the limit."""
    store: Any = fleet.app.store
    ((count,),) = store.parts.database.connection.execute("PRAGMA page_count").fetchall()
    most = 2**30 if pages is None else count + pages
    store.parts.database.connection.execute(f"PRAGMA max_page_count={most}")


class Gate:
    """Holds the calls of a World until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __call__(self, call: Call) -> None:
        assert self.open.wait(30)


async def calls_under_way(fleet: FleetHarness, world: World, tools: tuple[str, ...]) -> int:
    """Have more work accepted than may be called at once; return how many calls wait."""
    for number in range(30):
        name, tool = f"e{number}", tools[number % len(tools)]
        await fleet.send(
            job(name, send_proposal(f"{name} {heavy(number)}", tool=tool), key=f"k{number}")
        )
    await wait_until(lambda: len(world.calls) >= 12)
    await asyncio.sleep(0.05)
    return len(world.calls)


@pytest.mark.parametrize("tools", [TOOLS[:1], TOOLS], ids=["idempotent", "all"])
async def test_nothing_is_called_while_the_store_cannot_commit_and_nothing_is_called_twice(
    tmp_path: Path, tools: tuple[str, ...]
) -> None:
    """What was under way when the disk filled up is recorded later, not called again."""
    gate = Gate()
    world = World(answer=gate)
    fleet = toy_fleet(tmp_path, world)
    async with fleet:
        await calls_under_way(fleet, world, tools)
        grow(fleet, 0)
        gate.open.set()
        await wait_until(lambda: not fleet.app.store.steps.is_ready)
        await asyncio.sleep(0.1)  # calls that had their leave before the store knew
        begun = len(world.calls)
        with pytest.raises(StoreFailed):
            await fleet.send(job("late", note_proposal(heavy(size=100_000)), key="late"))
        await asyncio.sleep(1.2)  # over two rounds of what is tried again after half a second
        assert len(world.calls) == begun
        grow(fleet, None)
        await fleet.wait_until_idle(30)
        assert fleet.app.store.steps.is_ready
        assert world.keys() == Counter(dict.fromkeys(world.keys(), 1))
        assert len(world.keys()) == 30
        assert not world.queries


async def test_a_stop_holds_at_once_though_it_cannot_be_committed(tmp_path: Path) -> None:
    """It says so, is made durable when the store takes writes again, and lasts from then on."""
    gate = Gate()
    world = World(answer=gate)
    fleet = toy_fleet(tmp_path, world)
    async with fleet:
        begun = await calls_under_way(fleet, world, TOOLS[:1])
        grow(fleet, 0)
        huge = fleet.order("the disk is full " + heavy())
        done = await fleet.app.commands.stop(huge, all=True)
        assert (done["recorded"], done["stopped"]) == (False, ["all:"])
        assert "full" in done["why"]
        assert "not recorded yet" in stop_text(done)
        assert "the other workers" in stop_text({**done, "others": True})
        assert not fleet.app.store.policy.stop_scopes()
        with pytest.raises(StoreFailed):  # it is never lifted before it is recorded
            await fleet.app.commands.resume(fleet.order(), all=True)
        gate.open.set()
        await asyncio.sleep(0.6)
        assert len(world.calls) == begun
        grow(fleet, None)
        await wait_until(lambda: fleet.app.store.policy.stop_scopes() == [("all", "")])
        await wait_until(lambda: not fleet.app.services.stops.unrecorded)
        (entry,) = fleet.entries("stop.set")
        assert entry["actor"] == "person:tester"
        assert len(world.calls) == begun
        # What came of the calls is recorded later than the stop, and would be unknown after a kill.
        await wait_until(lambda: len(fleet.entries("effect.done")) == begun)
        await fleet.restart()
        await fleet.wait_until_idle()
        assert len(world.calls) == begun
        await fleet.app.commands.resume(fleet.order(), all=True)
        await fleet.wait_until_idle(30)
        assert world.keys() == Counter(dict.fromkeys(world.keys(), 1))
        assert len(world.keys()) == 30


async def test_what_was_not_recorded_and_is_ordered_again_counts_no_more(tmp_path: Path) -> None:
    async with toy_fleet(tmp_path, World()) as fleet:
        grow(fleet, 0)
        assert not (await fleet.app.commands.stop(fleet.order(heavy(size=100_000)), all=True))[
            "recorded"
        ]
        assert b"vedette_stops_unrecorded 1.0" in fleet.app.metrics.scrape()[0]
        grow(fleet, None)
        assert (await fleet.app.commands.stop(fleet.order(), all=True))["recorded"]
        assert b"vedette_stops_unrecorded 0.0" in fleet.app.metrics.scrape()[0]


async def test_new_work_takes_nothing_of_the_room_for_stops_and_outcomes(tmp_path: Path) -> None:
    """Decisions of which one writes a row of the fleet's own, and so is done with it at once."""
    decided = asyncio.Event()

    async def hold_back(step: Step) -> None:
        await decided.wait()

    async with toy_fleet(tmp_path, World()) as fleet:
        store: Any = fleet.app.store
        intercept_commits(fleet, hold_back)
        await fleet.send(*(job(f"n{n}", note_proposal(heavy(n)), key=f"k{n}") for n in range(5)))
        spare = store.writer._hooks._spare
        hold, spare.reserve = spare.reserve, lambda: False  # no room for the file
        grow(fleet, 0)
        with pytest.raises(StoreFailed):
            await fleet.send(job("late", note_proposal(heavy(size=100_000)), key="late"))
        grow(fleet, None)  # what was given up
        decided.set()
        await wait_until(lambda: fleet.app.metrics.total("store_failures") >= 5)
        assert not fleet.entries("turn.reasoned")
        assert (await fleet.app.commands.stop(fleet.order(), tool="bell.ring"))["recorded"]
        spare.reserve = hold
        await wait_until(lambda: len(fleet.entries("run.closed")) == 5)


async def test_a_commit_that_stands_although_it_raises_parts_nothing(tmp_path: Path) -> None:
    """Memory was behind the file from then on: every later group took numbers that were given."""
    async with toy_fleet(tmp_path, World()) as fleet:
        database: Any = fleet.app.store.parts.database
        commit = database.commit

        def stands() -> None:
            database.commit = commit
            commit()
            raise apsw.IOError("the log cannot be written back")

        database.commit = stands
        with pytest.raises(StoreFailed):
            await fleet.send(job("1", note_proposal("a")))
        (again,) = await fleet.send(job("1", note_proposal("a")))
        assert again.status == "duplicate"
        await fleet.send(job("2", note_proposal("b")))
        await wait_until(lambda: len(fleet.entries("run.closed")) == 2)
        entries = fleet.entries()
        assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
        assert fleet.app.store.runs.row("worker_notes", "k") == {"texts": ["a", "b"]}


async def test_status_says_that_the_store_cannot_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = toy_fleet(tmp_path, World())
    (tmp_path / "vedette.toml").write_text(SETTINGS, encoding="utf-8")
    monkeypatch.setenv("VEDETTE_STATE", str(fleet.folder / "state"))

    async def status() -> str:
        _, told = await asyncio.to_thread(say, capsys, "--config", str(tmp_path), "status")
        return " ".join(told.split())

    async with fleet, serve_local(fleet.app, fleet.app.settings.state):
        assert "cannot commit" not in await status()
        grow(fleet, 0)
        with pytest.raises(StoreFailed):
            await fleet.send(job("1", note_proposal(heavy(size=100_000))))
        assert "the store cannot commit: nothing is accepted" in await status()
        grow(fleet, None)


async def test_a_recorded_stop_says_so_and_nothing_else(tmp_path: Path) -> None:
    async with toy_fleet(tmp_path, World()) as fleet:
        done = await fleet.app.commands.stop(fleet.order(), agent="worker")
        assert done["recorded"]
        assert "recorded" not in stop_text(done)
        assert fleet.app.services.stops.unrecorded == {}


def test_on_a_full_disk_a_stop_and_what_was_under_way_are_still_recorded(tmp_path: Path) -> None:
    """Room is kept for them; every verb on the full disk ends with one sentence."""
    need_mounts(mounts())
    small, outside = tmp_path / "small", tmp_path / "outside"
    small.mkdir()
    outside.mkdir()
    child = shlex.join([sys.executable, "-m", "tests.contract.store.full_disk_child"])
    script = (
        f"mount -t tmpfs -o size=40m tmpfs {shlex.quote(str(small))} && "
        f"{child} {shlex.quote(str(small))} {shlex.quote(str(outside))}"
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads((outside / "told.json").read_text(encoding="utf-8"))
    assert told["free_when_full"] < 65_536, "the disk never was full"
    assert told["stop"]["recorded"], told["stop"]
    assert told["calls_after"] == told["calls_before"] >= 12
    assert told["done_when_full"] == told["calls_before"]
    for verb, (code, said) in told["verbs"].items():
        assert code == 3, (verb, said)
        assert "Traceback" not in said, (verb, said)
        assert "error[no-space]" in said, (verb, said)
        assert len(said.strip().splitlines()) <= 3, (verb, said)
    assert told["stops_after"] == [["all", ""]]
    assert set(told["keys_at_the_end"].values()) == {1}
    assert len(told["keys_at_the_end"]) == 30


async def test_a_read_that_fails_between_a_run_and_its_actions_hides_no_answer(
    tmp_path: Path,
) -> None:
    """An approval moves the run while a call is out; the store is away while it is read again."""
    gate = Gate()
    world = World(answer=gate)
    async with toy_fleet(tmp_path, world) as fleet:
        event = job("1", send_proposal("a", tool="big.send"), send_proposal("b", tool="big.send"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        first, second = fleet.actions(event)
        await fleet.approve(first)
        await wait_until(lambda: len(world.calls) == 1)
        await fleet.approve(second)
        store: Any = fleet.app.store
        actions, failed = store.runs.actions, []

        def away(run: str) -> list[Any]:
            failed.append(run)
            store.runs.actions = actions
            raise StoreFailed("the server is away")

        store.runs.actions = away
        gate.open.set()
        await fleet.wait_until_idle()
        assert failed
        assert [row.effect for row in fleet.actions(event)] == ["done", "done"]
        assert fleet.runs(event)[0].state == "done"


@pytest.mark.parametrize("behind", [False, True], ids=["", "bank behind"])
async def test_a_publication_whose_commit_stood_although_it_raised_is_taken_up(
    tmp_path: Path, behind: bool
) -> None:
    """Nobody publishes again; what is decided under the old revision is refused by the store."""
    world = World()
    async with toy_fleet(tmp_path, world) as fleet:
        store: Any = fleet.app.store
        publish = store.commands.publish

        async def stands(*given: Any, **more: Any) -> None:
            await publish(*given, **more)
            raise StoreFailed("the commit failed")

        store.commands.publish = stands
        with pytest.raises(StoreFailed):
            await fleet.apply_policy(
                write_policies(tmp_path / "p2", extra=deny_policy("nothing.real"))
            )
        store.commands.publish = publish
        if behind:
            recall = fleet.app.services.recall
            recall.rebuild_banks = lambda: 1 / 0
            assert not recall.update_banks(recall.rebuild_banks, order=False)
        await fleet.send(job("1", send_proposal()))
        await wait_until(lambda: world.effects() == 1)
        assert {entry["policy_rev"] for entry in fleet.entries("action.decided")} == {2}
