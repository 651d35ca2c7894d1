"""What wakes another run in the same transaction: a step that names it, an event it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace
from tests.contract.store.test_store import ADAPTERS, CLOCK

from vedette.domain.effect import RowWrite
from vedette.domain.entry import Draft
from vedette.domain.event import Event
from vedette.domain.event_wait import WAITS, EventWait
from vedette.domain.ports.store import Store
from vedette.domain.run import ActionRow, CommitStatus, Run, RunWake
from vedette.domain.task_words import CANCELLED, JOINED
from vedette.store.event_waits import EventWaits
from vedette.testing.sample_steps import (
    accept_events,
    action,
    arrival,
    closing_step,
    entry,
    event,
    step,
)

ASKED = EventWait("metric.point", {"/data/value": 7})


@pytest.fixture(params=sorted(ADAPTERS))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = ADAPTERS[request.param](tmp_path / "state")
    yield opened
    opened.close()


def read(store: Store, run: Run) -> Run:
    found = store.runs.run(run.id)
    assert found is not None
    return found


async def begin_wait(store: Store, run: Run, waits: str = "child", **more: Any) -> ActionRow:
    """Commit that a run's only action has begun and waits, as the engine does."""
    row = action(run, decided="permit", effect="started", waits=waits, not_before_us=2**50)
    draft = entry(run, "effect.started", action=row.id, tool=row.tool)
    fields = {"state": "waiting", "wake_us": 2**50, "waits": waits, "actions": [row], **more}
    (await store.steps.commit(step(store, run, draft, turn=1, **fields))).raise_for_status()
    return row


async def test_a_step_makes_a_run_due_that_waits(store: Store) -> None:
    parent, child, other = await accept_events(store, event(1), event(2), event(3), agent="a")
    await begin_wait(store, parent)
    before, quiet = read(store, parent), read(store, other)
    wakes = (RunWake(parent.id), RunWake(other.id), RunWake("run_" + "0" * 32))
    done = closing_step(store, child, observed=False, wakes=wakes)
    assert (await store.steps.commit(done)).status is CommitStatus.COMMITTED
    woken = read(store, parent)
    assert (woken.wake_us, woken.steps, woken.entries) == (1, before.steps + 1, before.entries)
    assert [run.id for run in store.schedule.due_runs(CLOCK.now_us(), 9)] == [parent.id]
    assert read(store, other) == quiet  # nothing of it is awaited


async def test_who_has_the_run_finds_that_it_was_moved_on(store: Store) -> None:
    """Or the wait that it commits would be the last word, and the wake lost."""
    parent, child = await accept_events(store, event(1), event(2), agent="a")
    await begin_wait(store, parent, state="ready", wake_us=0)
    seen = read(store, parent)
    later = step(store, seen, state="waiting", wake_us=2**50, waits="child")
    child_done = closing_step(store, child, observed=False, wakes=(RunWake(parent.id),))
    # Of one group, in this order.
    first, second = store.steps.send(child_done), store.steps.send(later)
    assert (await first).status is CommitStatus.COMMITTED
    assert (await second).status is CommitStatus.DUPLICATE
    assert read(store, parent).wake_us == 1


async def test_a_wake_that_comes_behind_the_wait_stands(store: Store) -> None:
    parent, child = await accept_events(store, event(1), event(2), agent="a")
    await begin_wait(store, parent, state="ready", wake_us=0)
    seen = read(store, parent)
    later = step(store, seen, state="waiting", wake_us=2**50, waits="child")
    child_done = closing_step(store, child, observed=False, wakes=(RunWake(parent.id),))
    first, second = store.steps.send(later), store.steps.send(child_done)
    assert (await first).status is (await second).status is CommitStatus.COMMITTED
    found = read(store, parent)
    assert (found.state, found.wake_us) == ("waiting", 1)


async def test_an_entry_goes_into_an_open_run_alone(store: Store) -> None:
    one, two, three = await accept_events(store, event(1), event(2), event(3), agent="a")
    await store.steps.commit(step(store, one, turn=1, state="waiting"))
    wake = RunWake(one.id, Draft("event.matched", {"action": "act_1", "tool": "t"}, two.position))
    joined = closing_step(store, two, observed=False, wakes=(wake, wake))
    assert (await store.steps.commit(joined)).status is CommitStatus.COMMITTED
    found = read(store, one)
    assert (found.entries, found.wake_us) == (2, 1)
    written = [
        orjson.loads(raw) for _, raw, _ in store.ledger.run_entries(one.id, ("event.matched",))
    ]
    assert [(each["n"], each["cause"]) for each in written] == [
        (1, two.position),
        (2, two.position),
    ]
    assert found.last == written[-1]["seq"]
    await store.steps.commit(closing_step(store, found, observed=False))
    late = closing_step(store, three, observed=False, wakes=(wake,))
    assert (await store.steps.commit(late)).status is CommitStatus.FENCED_RUN
    assert read(store, three).state == "ready"  # nothing of it stands


@pytest.mark.parametrize("grouped", [True, False])
async def test_an_event_wakes_who_waits_for_it_once(store: Store, grouped: bool) -> None:
    one, two = await accept_events(store, event(1), event(2), agent="a")
    rows = {}
    for run, asked in ((one, ASKED), (two, EventWait("metric.point", {"/data/value": 8}))):
        id = action(run).id
        rows[run.id] = asked.row_key(id)
        own = RowWrite(WAITS, rows[run.id], {"agent": "a", "places": asked.places})
        waiting = begin_wait(store, run, "event", own_rows=(own,))
        if grouped:
            # The acceptance is in the same group as the wait, behind it.
            task = asyncio.ensure_future(waiting)
            await asyncio.sleep(0)
            answers = await store.steps.accept([arrival(event(run.position + 100), "b")], None)
            await task
            assert answers[0].woken == ()
        else:
            await waiting
    (first,) = await store.steps.accept([arrival(event(7), "b")], None)
    (again,) = await store.steps.accept([arrival(event(7), "b")], None)
    assert (first.woken, again.woken, again.duplicate) == ((one.id,), (), True)
    found = read(store, one)
    ((seq, raw, _),) = store.ledger.run_entries(one.id, ("event.matched",))
    matched = orjson.loads(raw)
    assert (matched["cause"], matched["action"]) == (first.seq, action(one).id)
    assert (found.wake_us, found.last, found.entries) == (1, seq, matched["n"])
    assert store.runs.row(WAITS, rows[one.id]) is None
    assert read(store, two).wake_us == 2**50
    assert store.runs.row(WAITS, rows[two.id]) is not None


async def test_an_edited_row_keeps_no_event_out(store: Store) -> None:
    (one,) = await accept_events(store, event(1), agent="a")
    bad = RowWrite(WAITS, ASKED.row_key(action(one).id), {"agent": 7, "places": "no"})
    await begin_wait(store, one, "event", own_rows=(bad,))
    (answer,) = await store.steps.accept([arrival(event(7), "b")], None)
    assert (answer.duplicate, answer.woken) == (False, ())


async def test_an_event_that_no_wait_can_name_is_accepted_beside_others(store: Store) -> None:
    one, two = await accept_events(store, event(1), event(2), agent="a")
    for run, asked in ((one, EventWait("metric.point", {"/data": {"value": 5}})), (two, ASKED)):
        own = RowWrite(WAITS, asked.row_key(action(run).id), {"agent": "a", "places": asked.places})
        await begin_wait(store, run, "event", own_rows=(own,))
    odd = replace(event(8), data={"\u00fc": 1})
    answers = await store.steps.accept([arrival(event(7), "b"), arrival(odd, "b")], None)
    assert [(one.duplicate, one.woken) for one in answers] == [(False, (two.id,)), (False, ())]
    assert read(store, one).wake_us == 2**50


async def test_only_an_event_of_a_type_that_is_waited_for_is_looked_at(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    find = EventWaits.find

    def note(waits: EventWaits, event: Event) -> list[str]:
        looked.append(event.id)
        return find(waits, event)

    monkeypatch.setattr(EventWaits, "find", note)
    (one,) = await accept_events(store, event(1), agent="a")
    row = RowWrite(WAITS, ASKED.row_key(action(one).id), {"agent": "a", "places": ASKED.places})
    await begin_wait(store, one, "event", own_rows=(row,))
    for seen in (
        replace(event(2), type="other"),
        event(7),  # wakes it: nobody waits for the type any more
        event(9),
    ):
        await store.steps.accept([arrival(seen, "b")], None)
    assert looked == [event(7).id]


async def test_an_event_joins_no_task_that_was_cancelled_in_the_same_group(store: Store) -> None:
    one, two = await accept_events(store, event(1), event(2), agent="a")
    await store.steps.commit(step(store, one, turn=1, state="waiting"))
    cancelled = store.commands.move_task(one.id, Draft(CANCELLED, {"agent": "a", "actor": "p"}))
    said = asyncio.ensure_future(cancelled)
    await asyncio.sleep(0)
    wake = RunWake(one.id, Draft(JOINED, {"turn": 1}, two.position))
    joins = closing_step(store, two, observed=False, wakes=(wake,))
    assert (await store.steps.commit(joins)).status is CommitStatus.FENCED_RUN
    await said
    assert store.ledger.run_entries(one.id, (JOINED,)) == []
