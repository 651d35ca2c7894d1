"""A kept state of a judge holds whatever its key observed before it, whoever commits meanwhile.

The toy judge's label is the sum of all values that its state holds, and how many they are.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.contract.app.test_judge_replay import replay_all
from tests.contract.engine.test_order import leases
from tests.contract.store.test_store import ADAPTERS, by_person
from tests.pg import server

from vedette.adapters.reasoners.in_process import InProcessReasoner
from vedette.config.agent_loader import build_judge
from vedette.config.settings import StorePlan
from vedette.domain.base.errors import BadCommand, Permanent
from vedette.domain.erasure import ErasureTarget
from vedette.domain.event import Event
from vedette.domain.judge_state import judge_digest
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.ports.store import Store
from vedette.domain.run import CommitStatus, Run, Step
from vedette.store.postgres.schema import shard_of
from vedette.testing.harness import FleetHarness
from vedette.testing.sample_steps import accept_events, closing_step, entry, event, step
from vedette.testing.toy_fleet import World, job, toy_fleet, wait_until, write_policies

AGENT, KEY, ALL = "watcher", "pump", 2**62


class Between:
    """A database that has something done, once, between a history's first read and its second."""

    def __init__(self, database: Any, act: Callable[[], object]) -> None:
        self._database, self._act = database, act
        self.done = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def rows(self, sql: str, values: Any = ()) -> Any:
        found = self._database.rows(sql, values)
        if "FROM state" in sql and not self.done:
            self.done = True
            self._act()
        return found


# --- the store --------------------------------------------------------------------------------


@pytest.fixture(params=sorted(ADAPTERS))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = ADAPTERS[request.param](tmp_path / "state")
    yield opened
    opened.close()


def judged(store: Any, run: Run, after: int, **fields: Any) -> Step:
    return closing_step(store, run, order=(run.key, after, run.position), **fields)


async def with_dead(store: Any, late: int) -> list[Run]:
    """Have three events judged but one, a dead letter that is redriven."""
    runs, last = await accept_events(store, *(event(n) for n in range(3))), 0
    for number, run in enumerate(runs):
        if number == late:
            dead = step(store, run, entry(run, "run.dead"), state="dead")
            assert (await store.steps.commit(dead)).status is CommitStatus.COMMITTED
            continue
        assert (await store.steps.commit(judged(store, run, last))).status is CommitStatus.COMMITTED
        last = run.position
    await store.commands.redrive([runs[late].id], by_person("run.redriven"))
    found = store.runs.run(runs[late].id)
    assert found is not None
    runs[late] = found
    return runs


async def test_a_history_is_read_as_of_one_moment(store: Any) -> None:
    """A state and the events after it that were read apart would lack what went in between."""
    runs = await accept_events(store, *(event(n) for n in range(3)))
    for run in runs:
        await store.steps.commit(closing_step(store, run))
    history = store.judge_states.history(AGENT, KEY, ALL)
    begun, erased = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert erased.wait(20)

    between = Between(store.database, wait)
    store.judge_states._database = between
    reading = asyncio.create_task(asyncio.to_thread(store.judge_states.history, AGENT, KEY, ALL))
    assert await asyncio.to_thread(begun.wait, 20)
    assert await store.steps.keep_state(AGENT, KEY, history, b"all three")
    await store.commands.erase(ErasureTarget("event", runs[0].event), by_person("body.erased"))
    erased.set()
    assert await reading == history
    found = store.judge_states.history(AGENT, KEY, ALL)
    assert found == (b"all three", runs[2].position, [], runs[2].position)


async def test_a_state_is_not_kept_of_another_history_than_there_is(store: Any) -> None:
    runs = await with_dead(store, 1)
    folded = store.judge_states.history(AGENT, KEY, ALL)
    made = judged(store, runs[1], runs[0].position)
    assert (await store.steps.commit(made)).status is CommitStatus.COMMITTED
    assert not await store.steps.keep_state(AGENT, KEY, folded, b"first and last")
    assert store.judge_states.kept() == []
    # What is observed after it changes nothing of it.
    whole = store.judge_states.history(AGENT, KEY, ALL)
    (later,) = await accept_events(store, event(9))
    await store.steps.commit(judged(store, later, runs[2].position))
    assert await store.steps.keep_state(AGENT, KEY, whole, b"all three")
    assert store.judge_states.kept() == [(AGENT, KEY, runs[2].position, b"all three")]
    # Somebody else has kept one: this one may lack what went with that.
    assert not await store.steps.keep_state(AGENT, KEY, whole, b"all three, made elsewhere")
    await store.commands.erase(ErasureTarget("event", runs[0].event), by_person("body.erased"))
    assert store.judge_states.history(AGENT, KEY, ALL).checkpoint == b"all three"


async def test_a_late_event_gives_up_the_state_that_lacks_it(store: Any) -> None:
    runs = await with_dead(store, 1)
    position = runs[2].position
    assert await store.steps.keep_state(
        AGENT, KEY, store.judge_states.history(AGENT, KEY, ALL), b"first and last"
    )
    assert store.judge_states.history(AGENT, KEY, ALL)[:2] == (b"first and last", position)
    made = judged(store, runs[1], runs[0].position)
    assert (await store.steps.commit(made)).status is CommitStatus.COMMITTED
    found = store.judge_states.history(AGENT, KEY, ALL)
    assert (found.checkpoint_position, [at for at, _ in found.later_events]) == (
        0,
        [run.position for run in runs],
    )


@pytest.mark.parametrize(("late", "gone"), [(1, 0), (1, 2), (0, 1), (0, 2)])
async def test_a_late_event_is_refused_once_no_state_can_hold_it(
    store: Any, late: int, gone: int
) -> None:
    runs = await with_dead(store, late)
    assert await store.steps.keep_state(
        AGENT, KEY, store.judge_states.history(AGENT, KEY, ALL), b"without it"
    )
    await store.commands.erase(ErasureTarget("event", runs[gone].event), by_person("body.erased"))
    kept, head = store.judge_states.kept(), store.ledger.last_seq()
    for after in (0, runs[0].position):
        made = judged(store, runs[late], after, checkpoint=(KEY, runs[late].position, b"x"))
        assert (await store.steps.commit(made)).status is CommitStatus.STATE_ERASED
    assert (store.judge_states.kept(), store.ledger.last_seq()) == (kept, head)
    # Nobody is held up by it.
    (later,) = await accept_events(store, event(9))
    assert (await store.steps.commit(judged(store, later, runs[2].position))).status is (
        CommitStatus.COMMITTED
    )


# --- one worker -------------------------------------------------------------------------------


class Refusing(InProcessReasoner):
    """The fleet's judges, which make dead letters of the events that are `refused`."""

    refused: set[str]

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        if briefing.event.id in self.refused:
            raise Permanent("it cannot be judged now")
        return self.reason_sync(briefing)


def refuse(fleet: FleetHarness, *events: Event, every: int = 256) -> None:
    agent = fleet.app.services.fleet.agent("worker")
    judges = Refusing(
        lambda _: build_judge(agent, ()), checkpoint_every=every,
        digest_of=lambda _: judge_digest(agent.release, ()),
    )  # fmt: skip
    judges.refused = {one.id for one in events}
    fleet.app.services.reasoners = {"judge": judges}


async def judge_late(fleet: FleetHarness, event: Event) -> Run:
    """Have a dead letter judged after all, and return its run."""
    judges: Any = fleet.app.services.reasoners["judge"]
    judges.refused = set()
    (run,) = fleet.runs(event)
    assert run.state == "dead"
    await fleet.app.commands.redrive(fleet.order(), [run.id])
    await fleet.wait_until_idle(10)
    (run,) = fleet.runs(event)
    return run


async def some(fleet: FleetHarness, *events: Event) -> None:
    for one in events:
        await fleet.send(one)
        await fleet.wait_until_idle()


def labels(fleet: FleetHarness) -> list[str]:
    return [e["label"] for e in fleet.entries("run.closed")]


async def judge_anew(fleet: FleetHarness) -> str:
    """Have one more event judged by who takes the key up again; return what is said of it."""
    await fleet.restart()
    await some(fleet, job("last", key="k", value=100))
    return labels(fleet)[-1]


@pytest.mark.parametrize("kept", ["by an erasure", "before an erasure", "by a judge"])
async def test_what_was_judged_late_is_in_the_state_that_is_kept(tmp_path: Path, kept: str) -> None:
    events = [job(str(n), key="k", value=n) for n in (1, 2, 4, 8)]
    async with toy_fleet(tmp_path, World()) as fleet:
        refuse(fleet, events[1], every=3 if kept == "by a judge" else 256)
        await some(fleet, *events)
        store: Any = fleet.app.store
        if kept == "by a judge":
            assert store.judge_states.kept(), "no checkpoint was made, so nothing is shown"
            await judge_late(fleet, events[1])
        else:
            # The erasing order folds, keeps, then erases: the event comes before one of these.
            name = "keep_state" if kept == "by an erasure" else "erase"
            part = store.steps if kept == "by an erasure" else store.commands
            does = getattr(part, name)

            async def late_first(*given: Any, **more: Any) -> Any:
                setattr(part, name, does)
                await judge_late(fleet, events[1])
                return await does(*given, **more)

            setattr(part, name, late_first)
            await fleet.app.commands.erase(fleet.order(), event=events[0].key)
        assert fleet.runs(events[1])[0].observed
        assert await judge_anew(fleet) == "sum 115 of 5"
        assert (await replay_all(fleet.app)).to_json()["differences"] == []


@pytest.mark.parametrize(("late", "gone"), [(1, 0), (1, 2), (0, 1)])
async def test_a_dead_letter_that_cannot_be_judged_truly_stays_one_and_holds_nobody(
    tmp_path: Path, late: int, gone: int
) -> None:
    """Its key's state is kept without content that is gone, and cannot be made again with it."""
    events = [job(str(n), key="k", value=n) for n in (1, 2, 4)]
    async with toy_fleet(tmp_path, World()) as fleet:
        refuse(fleet, events[late])
        await some(fleet, *events)
        await fleet.app.commands.erase(fleet.order(), event=events[gone].key)
        run = await judge_late(fleet, events[late])
        assert (run.state, run.observed) == ("dead", False)
        why = [fleet.body(e["seq"])["why"] for e in fleet.entries("run.dead")][-1]
        assert "comes too late" in why
        assert await judge_anew(fleet) == f"sum {107 - (1, 2)[late]} of 3"
        assert (await replay_all(fleet.app)).to_json()["differences"] == []


async def test_what_an_agent_learned_that_nobody_runs_goes_with_the_content(
    tmp_path: Path,
) -> None:
    first = job("1", key="k", value=1, agent="second")
    async with of_agents(tmp_path, "worker", "second") as fleet:
        await some(fleet, first, job("2", key="k", value=2, agent="second"))
        shutil.rmtree(tmp_path / "content" / "agents" / "second")
        await fleet.restart()
        done = await fleet.app.commands.erase(fleet.order(), event=first.key)
        assert len(done["erased"]) == 1


# --- several workers --------------------------------------------------------------------------


@asynccontextmanager
async def of_agents(
    folder: Path, *agents: str, url_file: Path | None = None, like: Path | None = None
) -> AsyncIterator[FleetHarness]:
    """Open a fleet of these agents; with `url_file` as a worker on PostgreSQL."""
    fleet = toy_fleet(folder, World(), agents=agents)
    # What is published is the same for all, whoever runs which agents.
    shutil.rmtree(folder / "policies")
    write_policies(folder / "policies", ("worker", "second"))
    if url_file is not None:
        fleet._store = StorePlan("postgresql", url_file=str(url_file), lease_us=1_000_000)
    if like is not None:
        (folder / "state").mkdir()
        shutil.copy(like / "state" / "ledger.key", folder / "state" / "ledger.key")
    async with fleet:
        yield fleet


@asynccontextmanager
async def two_workers(folder: Path, *other: str) -> AsyncIterator[tuple[Any, Any, str]]:
    """Open two workers on one store, the second of the agents `other`; a key is the first's."""
    url_file = folder / "url"
    url_file.write_text(server(fsync=False).fresh())
    agents = ("worker", "second")
    async with of_agents(folder / "one", *agents, url_file=url_file) as one:
        beside = of_agents(
            folder / "other", *other or agents, url_file=url_file, like=folder / "one"
        )
        async with beside as two:

            def shared() -> bool:
                held = [leases(fleet) for fleet in (one, two)]
                return all(len(of.epochs) == 32 and not of.drain_shards for of in held)

            await wait_until(shared, 20)
            mine = leases(one).epochs
            names = (f"k{n}" for n in range(9999))
            yield one, two, next(k for k in names if shard_of("second", k) in mine)


def is_closed(fleet: Any, event: Event) -> bool:
    return any(e["event"] == event.key for e in fleet.entries("run.closed"))


async def judge_each(fleet: Any, *events: Event) -> str:
    for one in events:
        await fleet.send(one)
        await wait_until(partial(is_closed, fleet, one), 20)
    return labels(fleet)[-1]


def values(key: str, *numbers: int) -> list[Event]:
    return [job(f"e{n}", key=key, value=n, agent="second") for n in numbers]


async def test_an_erasure_elsewhere_tears_no_state(tmp_path: Path) -> None:
    """As a judge takes its state up, and as states are kept for another erasure."""
    async with two_workers(tmp_path) as (one, two, key):
        judges = one.app.services.reasoners["judge"]
        events = values(key, 1, 2, 4, 8, 16)
        await judge_each(one, *events[:3])

        def erase_elsewhere(event: Event) -> Between:
            def erase() -> None:
                order = two.app.commands.erase(two.order(), event=event.key)
                thread = threading.Thread(target=asyncio.run, args=(order,))
                thread.start()
                thread.join(20)

            between = Between(one.app.store.database, erase)
            states: Any = one.app.store.judge_states
            states._database = between
            return between

        judges.renew("second")
        between = erase_elsewhere(events[0])
        assert await judge_each(one, events[3]) == "sum 15 of 4"
        assert between.done
        await judge_each(one, events[4])
        between = erase_elsewhere(events[3])
        await one.app.commands.erase(one.order(), event=events[4].key)
        assert between.done
        judges.renew("second")
        assert await judge_each(one, *values(key, 100)) == "sum 131 of 6"
        gone = [one.app.store.runs.event(each.key) is None for each in events]
        assert gone == [True, False, False, True, True]


async def test_what_only_other_workers_run_is_erased_there(tmp_path: Path) -> None:
    """They may be about to be of one kind again: in the midst of a rolling start."""
    async with two_workers(tmp_path, "worker") as (one, two, key):
        first, *others = values(key, 1, 2)
        await judge_each(one, first, *others)
        head = one.app.store.ledger.last_seq()
        with pytest.raises(BadCommand, match="does not run second") as refused:
            await two.app.commands.erase(two.order(), event=first.key)
        assert refused.value.mend == "order it at a worker that runs second"
        assert (two.app.store.ledger.last_seq(), two.app.store.judge_states.kept()) == (head, [])
        with pytest.raises(BadCommand, match="does not run second"):
            await two.app.commands.maintenance.expire(two.order().principal, "old", 2**60)
        assert one.app.store.runs.event(first.key) is not None
        await one.app.commands.erase(one.order(), event=first.key)
        # Its state is kept by now, so whoever erases the rest of it needs the agent no more.
        await two.app.commands.erase(two.order(), event=others[0].key)
        one.app.services.reasoners["judge"].renew("second")
        assert await judge_each(one, *values(key, 4)) == "sum 7 of 3"
