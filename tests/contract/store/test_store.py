"""The contract of the Store port: what every adapter must do, whatever it stands on.

What only one adapter has to prove (its own crashes, its own full disk) is tested beside it:
test_store_sqlite.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import (
    AlreadyDone,
    BadCommand,
    BadStore,
    NotFound,
    StateNotKept,
    StoreBusy,
)
from vedette.domain.budget import FLEET, BudgetCap, BudgetRaise
from vedette.domain.bundle import Bundle
from vedette.domain.effect import RowWrite
from vedette.domain.entry import Body, Draft
from vedette.domain.erasure import ErasureTarget
from vedette.domain.memory import Candidate
from vedette.domain.ports.sources import Refused
from vedette.domain.ports.store import Store
from vedette.domain.run import CommitStatus, Run, Step, run_id
from vedette.testing.clock import ManualClock
from vedette.testing.sample_steps import (
    accept_events,
    action,
    agents_of,
    arrival,
    closing_step,
    entry,
    event,
    held_action,
    step,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
CLOCK = ManualClock()


Opener = Callable[..., Store]


def open_sqlite(folder: Path, fleet: str = "harbour") -> Store:
    from vedette.store.sqlite import SqliteStore

    return SqliteStore(
        folder,
        fleet=fleet,
        key=KEY,
        key_name=f"vedette/{fleet}",
        now_us=CLOCK.now_us,
        synchronous="OFF",
    )


def open_postgres(folder: Path, fleet: str = "harbour") -> Store:
    from tests.pg import database_for

    from vedette.store.postgres import PostgresStore

    return PostgresStore(
        database_for(folder),
        folder,
        fleet=fleet,
        key=KEY,
        key_name=f"vedette/{fleet}",
        now_us=CLOCK.now_us,
    )


ADAPTERS: dict[str, Opener] = {"postgres": open_postgres, "sqlite": open_sqlite}


@pytest.fixture(params=sorted(ADAPTERS))
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Open the same store again and again; what is still open at the end is closed."""
    opened: list[Store] = []

    def again(fleet: str = "harbour") -> Store:
        opened.append(ADAPTERS[request.param](tmp_path / "state", fleet))
        return opened[-1]

    yield again
    for store in reversed(opened):
        store.close()


@pytest.fixture
def store(opener: Opener) -> Store:
    return opener()


def sealed(store: Store, *kinds: str) -> list[dict[str, Any]]:
    return [orjson.loads(raw) for _, raw, _, _ in store.ledger.walk(kinds or None)]


def by_person(kind: str, **fields: Any) -> Draft:
    return Draft(
        kind, {"actor": "person:kim", **fields}, body=Body(canonical_json({"reason": "why"}))
    )


# --- accept ---------------------------------------------------------------------------------


async def test_an_event_makes_a_run_for_each_agent_it_wakes(store: Store) -> None:
    one = event(1)
    (answer,) = await store.steps.accept([arrival(one, "watcher", "sorter")], None)
    assert answer.event == one.key
    assert not answer.duplicate
    assert [run.id for run in answer.runs] == [
        run_id("test", "e1", agent) for agent in ("watcher", "sorter")
    ]
    (entry_,) = sealed(store, "event.accepted")
    assert (entry_["event"], entry_["woke"]) == (one.key, 2)
    assert {run.position for run in answer.runs} == {entry_["seq"]}
    assert store.runs.event(one.key) == one
    assert store.runs.run(answer.runs[0].id) == answer.runs[0]


async def test_a_second_delivery_is_the_same_event(store: Store) -> None:
    first, second = await store.steps.accept([arrival(event(1), "a"), arrival(event(1), "a")], None)
    (third,) = await store.steps.accept([arrival(event(1), "a", "b")], None)
    assert [first.duplicate, second.duplicate, third.duplicate] == [False, True, True]
    assert second.runs == third.runs == ()
    assert len(sealed(store, "event.accepted")) == 1
    (other,) = await store.steps.accept([arrival(event(1, source="elsewhere"), "a")], None)
    assert not other.duplicate


async def test_an_event_that_wakes_nobody_is_recorded_too(store: Store) -> None:
    (answer,) = await store.steps.accept([arrival(event(1))], None)
    assert answer.runs == ()
    assert sealed(store, "event.accepted")[0]["woke"] == 0


async def test_what_is_no_event_is_recorded_beside_the_rest_of_its_batch(store: Store) -> None:
    bad = Refused("line 2", "it is no JSON", b"\xff{")
    answers = await store.steps.accept([arrival(event(1), "a"), bad, arrival(event(2), "a")], None)
    assert [len(answer.runs) for answer in answers] == [1, 0, 1]
    ((_, _, _, body),) = store.ledger.walk(("event.refused",))
    assert body is not None
    assert orjson.loads(body) == {"where": "line 2", "why": "it is no JSON", "raw": "\ufffd{"}


async def test_turns_are_read_back_from_the_newest_as_far_as_asked_for(store: Store) -> None:
    """Of the run alone, over all segments; from before an entry, and none that was erased."""
    run, other = await accept_events(store, event(1), event(2))
    seqs = []
    for number in range(1, 41):
        for one in (run, other):
            drafts = (entry(one, "turn.reasoned", turn=number, text=f"{one.agent} {number}"),)
            made = step(store, one, *drafts, state="ready", turn=number)
            committed = await store.steps.commit(made)
            assert committed.status is CommitStatus.COMMITTED
            one.steps, one.entries, one.turn, one.last = (
                one.steps + 1,
                one.entries + 1,
                number,
                committed.last,
            )
            if one is run:
                seqs.append(committed.last)
    found = [turn["text"] for turn in store.runs.turns_back(run.id)]
    assert found == [f"{run.agent} {number}" for number in range(40, 0, -1)]
    assert found[::-1] == [turn["text"] for turn in store.runs.turns(run.id)]
    first = next(iter(store.runs.turns_back(run.id, seqs[9])))
    assert first == {"text": f"{run.agent} 9"}
    assert list(store.runs.turns_back(run.id, seqs[0])) == []


async def test_a_source_s_position_moves_with_its_batch(store: Store, opener: Opener) -> None:
    assert store.runs.source_position("csv:a") is None
    await store.steps.accept([arrival(event(1), "a")], ("csv:a", "17"))
    assert store.runs.source_position("csv:a") == "17"
    await store.steps.accept([], ("csv:a", "18"))
    store.close()
    assert opener().runs.source_position("csv:a") == "18"


async def test_a_batch_that_cannot_be_written_leaves_nothing(store: Store) -> None:
    """Beside others of its group: a half of it would be events that nobody answered for."""
    bad = Refused("line 2", "it is no text: \udcff", b"")
    first, second = await asyncio.gather(
        store.steps.accept([arrival(event(1), "a"), bad], None),
        store.steps.accept([arrival(event(2), "a")], None),
        return_exceptions=True,
    )
    assert isinstance(first, Exception)
    assert not isinstance(second, BaseException)
    assert [entry_["event"] for entry_ in sealed(store, "event.accepted")] == [event(2).key]
    ((again,),) = [await store.steps.accept([arrival(event(1), "a")], None)]
    assert (again.duplicate, len(again.runs)) == (False, 1)


# --- steps ----------------------------------------------------------------------------------


async def test_a_step_is_durable_with_everything_in_it(store: Store, opener: Opener) -> None:
    (run,) = await accept_events(store, event(1))
    row = action(run, decided="permit", rule="permit.tool", effect="done", answer=b"{}")
    made = step(
        store, run,
        entry(run, "turn.reasoned", turn=1, text="what was proposed"),
        entry(run, "run.closed", back=1, settled=1),
        state="done", turn=1, observed=True, actions=[row], spend={"actions": 1},
        rows=[RowWrite("incidents", "pump", {"state": "open"})],
        checkpoint=("pump", run.position, b"judge"),
        candidates=[Candidate("inbox", "inbox", "text", (), "watcher", run.id, run.event)],
    )  # fmt: skip
    committed = await store.steps.commit(made)
    assert committed.status is CommitStatus.COMMITTED
    store.close()
    again = opener()
    after = again.runs.run(run.id)
    assert after is not None
    assert (after.state, after.steps, after.entries, after.turn) == ("done", 1, 2, 1)
    assert after.last == committed.last
    assert after.observed
    assert again.runs.actions(run.id) == [row]
    assert again.runs.action(row.id) == row
    assert again.runs.row("incidents", "pump") == {"state": "open"}
    assert again.runs.turns(run.id) == [{"text": "what was proposed"}]
    assert again.judge_states.history("watcher", "pump", 2**40)[:2] == (b"judge", run.position)
    assert [(agent, unit, amount) for agent, unit, _, amount in again.spend.by_minute(0)] == [
        ("watcher", "actions", 1)
    ]
    turn, closed = sealed(again, "turn.reasoned", "run.closed")
    assert [turn["run"], closed["run"]] == [run.id, run.id]
    assert [turn["n"], closed["n"]] == [1, 2]
    assert turn["cause"] == run.position
    assert closed["cause"] == turn["seq"]


async def test_what_a_person_says_of_a_task_is_an_entry_of_its_run_and_wakes_it(
    store: Store,
) -> None:
    (run,) = await accept_events(store, event(1))
    said = Draft("task.steered", {"agent": run.agent, "actor": "person:ada"}, body=Body(b"{}"))
    before = await store.commands.move_task(run.id, said, command="one")
    after = store.runs.run(run.id)
    assert after is not None
    assert (before.steps, after.steps, after.entries) == (run.steps, run.steps + 1, 1)
    assert after.wake_us == 1
    ((seq, raw, body),) = store.ledger.run_entries(run.id, ("task.steered", "task.paused"))
    assert (seq, orjson.loads(raw)["turn"], orjson.loads(raw)["n"], body) == (
        after.last,
        0,
        1,
        b"{}",
    )
    assert store.ledger.run_entries(run.id, ("task.paused",)) == []
    # Whoever had the run finds that it was moved on.
    late = await store.steps.commit(step(store, run))
    assert late.status is not CommitStatus.COMMITTED
    with pytest.raises(AlreadyDone):
        await store.commands.move_task(run.id, said, command="one")
    with pytest.raises(NotFound):
        await store.commands.move_task("run_" + "0" * 32, said)
    await store.steps.commit(step(store, after, state="done"))
    with pytest.raises(BadCommand, match="has ended"):
        await store.commands.move_task(run.id, said)


async def test_a_row_can_be_deleted_and_spend_given_back(store: Store) -> None:
    (run,) = await accept_events(store, event(1))
    write = RowWrite("incidents", "pump", {"state": "open"})
    await store.steps.commit(step(store, run, rows=[write], spend={"actions": 2}))
    again = store.runs.run(run.id)
    assert again is not None
    gone = RowWrite("incidents", "pump", None)
    await store.steps.commit(step(store, again, rows=[gone], spend={"actions": -1}))
    assert store.runs.row("incidents", "pump") is None
    assert [amount for *_, amount in store.spend.by_minute(0)] == [1]


async def test_the_same_step_twice_is_done_once(store: Store) -> None:
    (run,) = await accept_events(store, event(1))
    made = closing_step(store, run)
    first, second = await asyncio.gather(store.steps.commit(made), store.steps.commit(made))
    assert (first.status, second.status) == (CommitStatus.COMMITTED, CommitStatus.DUPLICATE)
    assert len(sealed(store, "run.closed")) == 1


async def test_two_steps_that_follow_the_same_moment_exclude_one_another(store: Store) -> None:
    (run,) = await accept_events(store, event(1))
    one, other = closing_step(store, run), step(store, run, entry(run, "run.dead"), state="dead")
    assert (await store.steps.commit(one)).status is CommitStatus.COMMITTED
    assert (await store.steps.commit(other)).status is CommitStatus.DUPLICATE
    assert sealed(store, "run.dead") == []


@pytest.mark.parametrize(
    ("field", "answer"),
    [
        ("epoch", CommitStatus.FENCED_LEASE),
        ("policy_rev", CommitStatus.FENCED_POLICY),
        ("stop_epoch", CommitStatus.FENCED_STOP),
    ],
)
async def test_a_step_of_an_older_world_is_fenced(
    store: Store, field: str, answer: CommitStatus
) -> None:
    (run,) = await accept_events(store, event(1))
    head = store.ledger.last_seq()
    fenced = closing_step(store, run, **{field: getattr(store.cluster, field) - 1})
    assert (await store.steps.commit(fenced)).status is answer
    assert store.ledger.last_seq() == head
    assert store.runs.run(run.id) == run
    unfenced = closing_step(store, run, policy_rev=None, stop_epoch=None)
    assert (await store.steps.commit(unfenced)).status is CommitStatus.COMMITTED


TEN = (BudgetCap("agent", "model_calls", "day", 10),)


async def test_what_is_set_aside_is_the_agents_alone(store: Store) -> None:
    run, other = await accept_events(store, event(1), event(2))
    caps = (
        BudgetCap("agent", "tokens", "day", 10), BudgetCap("fleet", "tokens", "day", 10),
        BudgetCap("agent", "actions", "day", 3), BudgetCap("fleet", "actions", "day", 3),
    )  # fmt: skip
    asks = {"spend": {"actions": 1}, "limits": caps}
    first = step(store, run, escrow={"tokens": 8, "actions": 2}, **asks)
    (await store.steps.commit(first)).raise_for_status()
    now = CLOCK.now_us()
    assert {
        (name, unit): spent.amount_at("day", now) for name, unit, spent in store.spend.totals()
    } == {
        ("watcher", "tokens"): 8, ("watcher", "actions"): 3, (FLEET, "actions"): 1,
    }  # fmt: skip
    refused = await store.steps.commit(step(store, other, escrow={"tokens": 3}, limits=caps))
    assert refused.status is CommitStatus.OVER_BUDGET
    assert refused.shortage is not None
    assert (refused.shortage.scope, refused.shortage.unit) == ("agent", "tokens")
    # What comes back makes room for who waits, once.
    (run,) = [one for one in [store.runs.run(run.id)] if one is not None]
    back = (("tokens", now, 6), ("actions", now, 2))
    (await store.steps.commit(step(store, run, returned=back))).raise_for_status()
    (
        await store.steps.commit(step(store, other, escrow={"tokens": 3}, limits=caps))
    ).raise_for_status()
    found = {(name, unit): spent for name, unit, spent in store.spend.totals()}
    assert found["watcher", "tokens"].amount_at("day", now) == 5
    assert found["watcher", "actions"].amount_at("day", now) == 1


async def test_many_at_once_never_spend_more_than_the_cap(store: Store) -> None:
    runs = await accept_events(store, *(event(n) for n in range(20)))
    answers = await asyncio.gather(
        *(
            store.steps.commit(closing_step(store, run, spend={"model_calls": 3}, limits=TEN))
            for run in runs
        )
    )
    given = [answer.status for answer in answers]
    assert given.count(CommitStatus.COMMITTED) == 3
    assert given.count(CommitStatus.OVER_BUDGET) == 17
    assert sum(amount for *_, amount in store.spend.by_minute(0)) == 9
    # A refused step left nothing behind, and without a cap the same spend is taken.
    late = next(
        run for run, got in zip(runs, given, strict=True) if got is CommitStatus.OVER_BUDGET
    )
    assert store.runs.run(late.id) == late
    uncapped = closing_step(store, late, spend={"model_calls": 3})
    assert (await store.steps.commit(uncapped)).status is CommitStatus.COMMITTED


def wants(store: Store, run: Run, amount: int = 3, **more: Any) -> Step:
    return closing_step(store, run, spend={"model_calls": amount}, limits=TEN, **more)


async def test_64_reservations_at_once_hold_the_ceiling_exactly(store: Store) -> None:
    runs = await accept_events(store, *(event(n) for n in range(64)))
    fleets = (*TEN, BudgetCap("fleet", "tokens", "hour", 33))
    answers = await asyncio.gather(
        *(
            store.steps.commit(
                closing_step(store, run, spend={"model_calls": 1, "tokens": 5}, limits=fleets)
            )
            for run in runs
        )
    )
    given = [answer.status for answer in answers]
    assert (given.count(CommitStatus.COMMITTED), given.count(CommitStatus.OVER_BUDGET)) == (6, 58)
    totals = {(name, unit): total.day.total for name, unit, total in store.spend.totals()}
    assert totals[FLEET, "tokens"] == totals["watcher", "tokens"] == 30
    assert {a.shortage.rule for a in answers if a.shortage} == {"budget.fleet.tokens.hour"}


async def test_a_wait_for_room_is_refused_once_there_is_room(store: Store) -> None:
    first, second, third = await accept_events(store, *(event(n) for n in range(3)))
    assert (await store.steps.commit(wants(store, first, 8))).status is CommitStatus.COMMITTED
    short = await store.steps.commit(wants(store, second))
    assert short.shortage is not None
    assert (short.status, short.shortage.headroom) == (CommitStatus.OVER_BUDGET, 2)
    wait: dict[str, Any] = {
        "state": "waiting", "turn": 0, "observed": False, "waits": "budget", "limits": TEN,
        "shortfall": {"model_calls": 3}, "wake_us": 2**61,
    }  # fmt: skip
    assert (
        await store.steps.commit(closing_step(store, second, **wait))
    ).status is CommitStatus.COMMITTED
    assert store.schedule.due_runs(CLOCK.now_us(), 9) == []
    back = [("model_calls", CLOCK.now_us(), 8)]
    settled = step(store, third, entry(third, "run.closed"), refunds=back)
    assert (await store.steps.commit(settled)).status is CommitStatus.COMMITTED
    assert [run.id for run in store.schedule.due_runs(CLOCK.now_us(), 9)] == [second.id], (
        "it was woken"
    )
    (late,) = await accept_events(store, event(9))
    assert (
        await store.steps.commit(closing_step(store, late, **wait))
    ).status is CommitStatus.BUDGET_AVAILABLE
    assert store.runs.run(late.id) == late


async def test_a_raise_makes_room_for_everybody_and_is_carried_out_once(opener: Opener) -> None:
    store = opener()
    first, second = await accept_events(store, event(1), event(2))
    await store.steps.commit(wants(store, first, 9))
    wait = closing_step(
        store, second, state="waiting", turn=0, observed=False, waits="budget", limits=TEN,
        shortfall={"model_calls": 3},
    )  # fmt: skip
    assert (await store.steps.commit(wait)).status is CommitStatus.COMMITTED
    until = CLOCK.now_us() + 1000
    more = [BudgetRaise("watcher", "model_calls", "day", 5, until)]
    draft = by_person("budget.raised", agent="watcher", until=until)
    seq = await store.commands.raise_budget(draft, more, command="r1")
    with pytest.raises(AlreadyDone):
        await store.commands.raise_budget(draft, more, command="r1")
    assert [e["seq"] for e in sealed(store, "budget.raised")] == [seq]
    (due,) = store.schedule.due_runs(CLOCK.now_us(), 9)
    assert due.id == second.id
    store.close()
    store = opener()
    assert store.spend.raises(until - 1) == more
    assert store.spend.raises(until) == []
    (due,) = store.schedule.due_runs(CLOCK.now_us(), 9)
    over = await store.steps.commit(wants(store, due, 7))
    assert over.shortage is not None
    assert (over.shortage.limit, over.shortage.total) == (15, 9)
    assert (await store.steps.commit(wants(store, due, 5))).status is CommitStatus.COMMITTED


async def test_what_a_refused_item_spent_is_not_counted(store: Store) -> None:
    good, bad, later = await accept_events(store, event(1), event(2), event(3))
    answers = await asyncio.gather(
        store.steps.commit(wants(store, good, 4)),
        store.steps.commit(wants(store, bad, 4, expected_steps=7)),
        store.steps.commit(wants(store, later, 4)),
    )
    assert [a.status.value for a in answers] == ["committed", "duplicate", "committed"]
    assert {total.day.total for *_, total in store.spend.totals()} == {8}


async def test_the_alert_is_written_with_the_step_that_brings_it(store: Store) -> None:
    runs = await accept_events(store, *(event(n) for n in range(10)))
    answers = await asyncio.gather(*(store.steps.commit(wants(store, run, 1)) for run in runs))
    assert [len(answer.alerts) for answer in answers] == [0] * 7 + [1, 0, 0]
    (alert,) = sealed(store, "budget.alerted")
    assert alert["cause"] == answers[7].last
    assert (alert["amount"], alert["limit"]) == (8, 10)


async def test_what_a_run_has_reserved_is_read_from_its_entries(store: Store) -> None:
    (run,) = await accept_events(store, event(1))
    assert store.spend.of_run(run.id) == {}
    for number, settles in ((1, True), (2, False)):
        booked = entry(run, "budget.reserved", spend={"model_calls": 2, "tokens": 900})
        at = (await store.steps.commit(step(store, run, booked))).last
        run.steps, run.entries, run.last = run.steps + 1, run.entries + 1, at
        if settles:
            used = entry(run, "budget.settled", spend={"model_calls": number, "tokens": 70})
            at = (await store.steps.commit(step(store, run, used))).last
            run.steps, run.entries, run.last = run.steps + 1, run.entries + 1, at
    assert store.spend.of_run(run.id) == {"model_calls": 3, "tokens": 970}


async def test_a_step_that_counts_on_another_is_refused_without_it(store: Store) -> None:
    first, second, third = await accept_events(store, *(event(n) for n in range(3)))
    key = first.key

    def judged(run: Run, after: int) -> Step:
        return closing_step(store, run, observed=True, order=(key, after, run.position))

    assert (
        await store.steps.commit(judged(second, first.position))
    ).status is CommitStatus.FENCED_ORDER
    assert (await store.steps.commit(judged(first, 0))).status is CommitStatus.COMMITTED
    # Whoever does not know of an earlier one that waits does not go before it, in any group.
    both = [judged(third, first.position), judged(second, first.position)]
    answers = await asyncio.gather(*(store.steps.commit(each) for each in both))
    assert [each.status for each in answers] == [
        CommitStatus.FENCED_EARLIER,
        CommitStatus.COMMITTED,
    ]
    assert (
        await store.steps.commit(judged(third, second.position))
    ).status is CommitStatus.COMMITTED


async def test_a_step_that_was_refused_lets_nobody_go_before_its_event(store: Store) -> None:
    first, second = await accept_events(store, *(event(n) for n in range(2)))
    moved = closing_step(store, first, order=(first.key, 0, first.position), expected_steps=7)
    passing = closing_step(store, second, order=(first.key, 0, second.position))
    answers = await asyncio.gather(*(store.steps.commit(each) for each in (moved, passing)))
    assert [each.status for each in answers] == [
        CommitStatus.DUPLICATE,
        CommitStatus.FENCED_EARLIER,
    ]
    assert (await store.steps.commit(passing)).status is CommitStatus.FENCED_EARLIER


async def test_a_dead_letter_holds_nobody_and_is_made_up_for(store: Store) -> None:
    first, second, third = await accept_events(store, *(event(n) for n in range(3)))
    key = first.key

    def judged(run: Run, after: int) -> Step:
        return closing_step(store, run, observed=True, order=(key, after, run.position))

    assert (await store.steps.commit(judged(first, 0))).status is CommitStatus.COMMITTED
    assert [run.id for run in store.schedule.unjudged_runs("watcher", key, 9)] == [
        second.id,
        third.id,
    ]
    dead = step(store, second, entry(second, "run.dead"), state="dead")
    assert (await store.steps.commit(dead)).status is CommitStatus.COMMITTED
    assert (
        await store.steps.commit(judged(third, first.position))
    ).status is CommitStatus.COMMITTED
    await store.commands.redrive([second.id], by_person("run.redriven"))
    found = store.runs.run(second.id)
    assert found is not None
    # It must not be locked out for ever by a later one.
    assert (await store.steps.commit(judged(found, 0))).status is CommitStatus.FENCED_ORDER
    assert (
        await store.steps.commit(judged(found, first.position))
    ).status is CommitStatus.COMMITTED
    assert store.schedule.unjudged_runs("watcher", key, 9) == []


async def test_another_runner_fences_the_steps_of_the_one_before(
    store: Store, opener: Opener
) -> None:
    (run,) = await accept_events(store, event(1))
    old = closing_step(store, run)
    store.close()
    again = opener()
    assert again.cluster.epoch == store.cluster.epoch + 1
    assert (await again.steps.commit(old)).status is CommitStatus.FENCED_LEASE
    assert (await again.steps.commit(closing_step(again, run))).status is CommitStatus.COMMITTED


async def test_one_bad_step_takes_nobody_with_it(store: Store) -> None:
    good1, bad, broken, good2 = await accept_events(store, *(event(n) for n in range(4)))
    head = store.ledger.last_seq()
    answers = await asyncio.gather(
        store.steps.commit(closing_step(store, good1)),
        # Written as far as its entry before it turns out to have no JSON form.
        store.steps.commit(closing_step(store, bad, rows=[RowWrite("c", "k", {"value": {1, 2}})])),
        # Breaks a rule of the store's own tables.
        store.steps.commit(closing_step(store, broken, actions=[action(broken, rule=None)])),
        store.steps.commit(closing_step(store, good2)),
        return_exceptions=True,
    )
    assert [isinstance(answer, BaseException) for answer in answers] == [False, True, True, False]
    assert store.ledger.last_seq() == head + 2
    for run in (bad, broken):
        assert store.runs.run(run.id) == run
    assert [e["seq"] for e in sealed(store, "run.closed")] == [head + 1, head + 2]
    assert (await store.steps.commit(closing_step(store, bad))).status is CommitStatus.COMMITTED


# --- policy and stops -----------------------------------------------------------------------


def bundle(text: str) -> Bundle:
    return Bundle.of({"vedette/gateway/decide.rego": text.encode()})


async def test_nothing_of_an_older_revision_commits_after_a_publication(store: Store) -> None:
    one, two = await accept_events(store, event(1), event(2))
    before = closing_step(store, one)
    waiting = closing_step(store, two)
    committed, number, fenced = await asyncio.gather(
        store.steps.commit(before),
        store.commands.publish(bundle("package a"), [by_person("policy.published")]),
        store.steps.commit(waiting),
    )
    assert committed.status is CommitStatus.COMMITTED
    assert number == store.cluster.policy_rev == 1
    assert fenced.status is CommitStatus.FENCED_POLICY
    (published,) = sealed(store, "policy.published")
    assert published["policy_rev"] == 1
    assert (await store.steps.commit(closing_step(store, two))).status is CommitStatus.COMMITTED


async def test_a_rollback_is_a_new_revision(store: Store, opener: Opener) -> None:
    first, second = bundle("package a"), bundle("package b")
    numbers = [await store.commands.publish(each, []) for each in (first, second, first)]
    assert numbers == [1, 2, 3]
    store.close()
    again = opener()
    assert again.cluster.policy_rev == 3
    assert again.policy.bundle_files(first.digest) == dict(first.files)
    assert again.policy.bundle_files(second.digest) == dict(second.files)
    assert again.policy.bundle_files("0" * 64) is None


async def test_a_stop_fences_and_outlives_the_runner(store: Store, opener: Opener) -> None:
    (run,) = await accept_events(store, event(1))
    made = closing_step(store, run)
    epoch = await store.commands.stop(
        by_person("stop.set", what="agent:watcher"), "agent", "watcher", True
    )
    assert epoch == store.cluster.stop_epoch == 1
    assert (await store.steps.commit(made)).status is CommitStatus.FENCED_STOP
    with pytest.raises(BadCommand, match="already"):
        await store.commands.stop(
            by_person("stop.set", what="agent:watcher"), "agent", "watcher", True
        )
    store.close()
    again = opener()
    assert again.policy.stop_scopes() == [("agent", "watcher")]
    assert again.cluster.stop_epoch == 1
    await again.commands.stop(
        by_person("stop.lifted", what="agent:watcher"), "agent", "watcher", False
    )
    assert again.policy.stop_scopes() == []
    with pytest.raises(BadCommand, match="not stopped"):
        await again.commands.stop(
            by_person("stop.lifted", what="agent:watcher"), "agent", "watcher", False
        )
    assert len(sealed(again, "stop.set", "stop.lifted")) == 2


async def test_a_run_that_waits_as_of_an_older_stop_misses_no_resume(store: Store) -> None:
    """A resume wakes what waits; what another worker makes wait just then, by what it knew, too."""
    for number, known in enumerate((1, 2), start=1):
        (run,) = await accept_events(store, event(number))
        if number == 1:
            await store.commands.stop(by_person("stop.set", what="tool:x"), "tool", "x", True)
            await store.commands.stop(by_person("stop.lifted", what="tool:x"), "tool", "x", False)
        waits = step(
            store, run, state="waiting", waits="resume", wait_stop_epoch=known, stop_epoch=None
        )
        assert (await store.steps.commit(waits)).status is CommitStatus.COMMITTED
        assert [each.id for each in store.schedule.due_runs(10, 9) if each.id == run.id] == [
            run.id
        ][: 2 - known]


async def test_a_stop_with_an_end_gives_way_to_one_that_lasts_longer(
    store: Store, opener: Opener
) -> None:
    def until(end: int | None) -> Draft:
        return by_person("stop.set", what="agent:watcher", until=end)

    async def stop(end: int | None) -> int:
        return await store.commands.stop(until(end), "agent", "watcher", True)

    first = await stop(2_000_000)
    for sooner in (1_000_000, 2_000_000):
        with pytest.raises(BadCommand, match=r"already stopped until 1970-01-01T00:00:02\.000000Z"):
            await stop(sooner)
    assert store.cluster.stop_epoch == first
    assert await stop(3_000_000) == first + 1
    (timed,) = store.policy.active_stops()
    assert timed.until_us == 3_000_000
    assert await stop(None) == first + 2
    (lasting,) = store.policy.active_stops()
    assert (not lasting.until_us, lasting.seq) == (True, store.ledger.last_seq())
    for later in (9_000_000, None):
        with pytest.raises(BadCommand, match=r"already stopped$"):
            await stop(later)
    # The end of the first has come: who lifts it for that reason lifts nothing else.
    ended = Draft("stop.lifted", {"what": "agent:watcher"}, cause=timed.seq)
    with pytest.raises(BadCommand, match="not stopped"):
        await store.commands.stop(ended, "agent", "watcher", False)
    store.close()
    again = opener()
    assert again.policy.active_stops() == [lasting]
    assert len(sealed(again, "stop.set")) == 3
    await again.commands.stop(
        by_person("stop.lifted", what="agent:watcher"), "agent", "watcher", False
    )
    assert again.policy.stop_scopes() == []


async def test_a_stop_of_the_same_group_gives_way_too(store: Store) -> None:
    """The entry that says when the first ends has been written by then, and not committed."""
    drafts = [by_person("stop.set", what="all:", until=end) for end in (2_000_000, 1_000_000, None)]
    gate, writer = threading.Event(), cast(Any, store).writer
    busy = asyncio.create_task(writer.submit(lambda: gate.wait(10)))
    await asyncio.sleep(0)
    stops = [asyncio.create_task(store.commands.stop(draft, "all", "", True)) for draft in drafts]
    await asyncio.sleep(0)
    gate.set()
    assert await busy
    told = await asyncio.gather(*stops, return_exceptions=True)
    assert [type(answer) for answer in told] == [int, BadCommand, int]
    (stop,) = store.policy.active_stops()
    assert not stop.until_us
    assert len(sealed(store, "stop.set")) == 2


async def test_lifting_a_stop_wakes_what_waits_for_it(store: Store) -> None:
    one, two = await accept_events(store, event(1), event(2))
    await store.commands.stop(
        by_person("stop.set", what="tool:valve.close"), "tool", "valve.close", True
    )
    await store.steps.commit(step(store, one, state="waiting", waits="resume"))
    await store.steps.commit(step(store, two, state="waiting", waits="approval", wake_us=2**50))
    assert store.schedule.due_runs(2**40, 10) == []
    await store.commands.stop(
        by_person("stop.lifted", what="tool:valve.close"), "tool", "valve.close", False
    )
    assert [run.id for run in store.schedule.due_runs(2**40, 10)] == [one.id]


@pytest.mark.parametrize(
    ("who", "what", "after", "stands"),
    [
        ("person:dee", "tool:valve.close", 1, False),
        ("person:dee", "tool:valve.close", 0, True),
        ("person:dee", "tool:valve.open", 1, True),
        # One whose time was over: nobody wanted the valve to be closed again.
        ("engine:vedette", "tool:valve.close", 1, True),
    ],
    ids=["a person's", "before it", "of another", "the engine's"],
)
async def test_a_stop_that_comes_late_is_recorded_and_lifted_in_one_commit(
    store: Store, who: str, what: str, after: int, stands: bool
) -> None:
    """Whether a lift came after it is asked where it is recorded, behind whatever stands there."""
    (run,) = await accept_events(store, event(1))
    scope, _, name = what.partition(":")
    await store.commands.stop(by_person("stop.set", what=what, until=2**50), scope, name, True)
    await store.steps.commit(step(store, run, state="waiting", waits="resume"))
    CLOCK.advance(1)
    await store.commands.stop(
        Draft("stop.lifted", {"what": what, "actor": who}), scope, name, False
    )
    lifted_us = CLOCK.now_us()
    (waiting,) = store.schedule.due_runs(1, 10)
    await store.steps.commit(step(store, waiting, state="waiting", waits="resume"))
    epoch = store.cluster.stop_epoch
    late = by_person("stop.set", what="tool:valve.close")
    assert epoch < await store.commands.stop(
        late, "tool", "valve.close", True, lifted_after_us=lifted_us - after
    )
    assert store.policy.stop_scopes() == ([("tool", "valve.close")] if stands else [])
    # Whoever waits for it to be lifted is decided again.
    assert [due.id for due in store.schedule.due_runs(1, 10)] == ([] if stands else [run.id])
    told = sealed(store, "stop.set", "stop.lifted")
    assert len(told) == (3 if stands else 4)
    if not stands:
        ordered, lift = told[-2:]
        assert (lift["cause"], lift["actor"]) == (ordered["seq"], "engine:vedette")


# --- holds ----------------------------------------------------------------------------------


async def test_a_person_s_answer_moves_the_hold_and_wakes_the_run(store: Store) -> None:
    (run,) = await accept_events(store, event(1))
    row = held_action(run)
    await store.steps.commit(
        step(store, run, entry(run, "turn.reasoned", turn=1, text="t"), actions=[row],
             state="waiting", waits="approval", wake_us=2**50, turn=1)
    )  # fmt: skip
    before = store.runs.run(run.id)
    assert before is not None
    late = closing_step(store, before)
    draft = by_person("hold.approved", action=row.id, action_digest=row.digest)
    answered = await store.commands.transition_hold(
        row.id, "approved", draft, approver="person:kim", until_us=77
    )
    assert (answered.hold, answered.approver, answered.until_us) == ("approved", "person:kim", 77)
    assert store.runs.action(row.id) == answered
    assert [due.id for due in store.schedule.due_runs(1, 10)] == [run.id]
    (told,) = sealed(store, "hold.approved")
    assert (told["run"], told["n"], told["cause"]) == (run.id, 2, before.last)
    # Whoever was about to move the run on looks at it afresh.
    assert (await store.steps.commit(late)).status is CommitStatus.DUPLICATE


async def test_an_answer_to_nothing_or_to_an_ended_hold_is_refused(store: Store) -> None:
    one, two = await accept_events(store, event(1), event(2))
    row, plain = held_action(one), action(two, decided="deny", rule="r")
    await store.steps.commit(step(store, one, entry(one, "turn.reasoned"), actions=[row]))
    await store.steps.commit(step(store, two, entry(two, "turn.reasoned"), actions=[plain]))
    await store.commands.transition_hold(
        row.id, "denied", by_person("hold.denied"), approver="p", until_us=0
    )
    head = store.ledger.last_seq()
    for name, to in ((row.id, "approved"), (plain.id, "approved"), ("act_0", "denied")):
        with pytest.raises(BadCommand):
            await store.commands.transition_hold(
                name, "approved" if to == "approved" else "denied",
                by_person(f"hold.{to}"), approver="p", until_us=1,
            )  # fmt: skip
    assert store.ledger.last_seq() == head
    left = store.runs.action(row.id)
    assert left is not None
    assert left.hold == "denied"


# --- commands ------------------------------------------------------------------------------


async def test_a_command_is_done_once_whatever_it_is(store: Store, opener: Opener) -> None:
    (run,) = await accept_events(store, event(1))
    row = held_action(run)
    turn = entry(run, "turn.reasoned")
    await store.steps.commit(step(store, run, turn, actions=[row], state="waiting"))
    (other,) = await accept_events(store, event(2))
    await store.steps.commit(step(store, other, entry(other, "run.closed", text="x"), state="done"))

    async def every(now: Store) -> list[object]:
        stop = by_person("stop.set", what="all:")
        answers = await asyncio.gather(
            now.commands.stop(stop, "all", "", True, command="c1"),
            now.commands.publish(bundle("package a"), [], command="c2"),
            now.commands.transition_hold(
                row.id, "approved", by_person("hold.approved"), approver="p", until_us=9,
                command="c3",
            ),
            now.commands.erase(
                ErasureTarget("event", other.event), by_person("body.erased"), command="c4"
            ),
            return_exceptions=True,
        )  # fmt: skip
        return list(answers)

    first = await every(store)
    assert not any(isinstance(answer, BaseException) for answer in first)
    head, revision, stop_epoch = (
        store.ledger.last_seq(),
        store.cluster.policy_rev,
        store.cluster.stop_epoch,
    )
    second = await every(store)
    assert all(isinstance(answer, AlreadyDone) for answer in second)
    store.close()
    again = opener()
    assert all(isinstance(answer, AlreadyDone) for answer in await every(again))
    assert (again.ledger.last_seq(), again.cluster.policy_rev, again.cluster.stop_epoch) == (
        head,
        revision,
        stop_epoch,
    )


async def test_a_command_that_was_refused_may_come_again(store: Store) -> None:
    lifting = by_person("stop.lifted", what="all:")
    with pytest.raises(BadCommand, match="not stopped"):
        await store.commands.stop(lifting, "all", "", False, command="c1")
    await store.commands.stop(by_person("stop.set", what="all:"), "all", "", True)
    await store.commands.stop(lifting, "all", "", False, command="c1")
    assert store.policy.stop_scopes() == []


# --- erasure --------------------------------------------------------------------------------


async def test_erasing_takes_content_and_leaves_the_entries(store: Store) -> None:
    one, two = await accept_events(store, event(1), event(2, subject="valve"))
    row = action(one, decided="permit", rule="r", effect="done", answer=b'{"state":"done"}')
    turn = entry(one, "turn.reasoned", text="secret")
    await store.steps.commit(step(store, one, turn, actions=[row], state="done"))
    before = sealed(store)
    erased = await store.commands.erase(
        ErasureTarget("event", one.event), by_person("body.erased"), stateless=agents_of(store)
    )
    digests = list(erased.digests)
    assert erased.events == (one.event,)
    assert sealed(store)[:-1] == before
    (told,) = sealed(store, "body.erased")
    assert told["erased"] == digests
    assert set(digests) == {e["body"] for e in before if e.get("event") == one.event}
    assert store.runs.event(one.event) is None
    assert store.runs.turns(one.id) == []
    bare = store.runs.action(row.id)
    assert bare is not None
    assert (bare.record, bare.answer, bare.digest) == (b"", None, row.digest)
    assert store.runs.event(two.event) is not None


async def test_erasing_by_subject_finds_all_of_it(store: Store) -> None:
    mine, other = await accept_events(store, event(1), event(2, subject="valve"))
    for run in (mine, other):
        await store.steps.commit(closing_step(store, run))
    erased = await store.commands.erase(
        ErasureTarget("subject", "pump"), by_person("body.erased"), stateless=agents_of(store)
    )
    assert (len(erased.digests), erased.events) == (1, (mine.event,))
    assert (store.runs.event(mine.event), store.runs.event(other.event) is None) == (None, False)
    with pytest.raises(BadCommand, match="no body"):
        await store.commands.erase(
            ErasureTarget("subject", "pump"), by_person("body.erased"), stateless=agents_of(store)
        )


@pytest.mark.parametrize("state", ["ready", "waiting"])
async def test_content_that_a_run_still_needs_is_not_erased(store: Store, state: str) -> None:
    (run,) = await accept_events(store, event(1))
    await store.steps.commit(step(store, run, state=state, waits="approval"))
    with pytest.raises(BadCommand, match="still needs"):
        await store.commands.erase(
            ErasureTarget("event", run.event), by_person("body.erased"), stateless=agents_of(store)
        )
    assert store.runs.event(run.event) is not None


async def test_what_a_judge_has_observed_is_not_erased_before_its_state_is_kept(
    store: Store,
) -> None:
    one, other = await accept_events(store, event(1), event(2))
    await store.steps.commit(closing_step(store, one))
    await store.steps.commit(closing_step(store, other, observed=False))
    await store.commands.erase(ErasureTarget("event", other.event), by_person("body.erased"))
    head, draft = store.ledger.last_seq(), by_person("body.erased")
    assert [run.id for run in store.runs.without_state(ErasureTarget("event", one.event))] == [
        one.id
    ]
    with pytest.raises(StateNotKept, match=one.event):
        await store.commands.erase(ErasureTarget("event", one.event), draft, stateless={"another"})
    assert store.ledger.last_seq() == head
    assert store.runs.event(one.event) is not None
    assert await store.steps.keep_state(
        one.agent, one.key, store.judge_states.history(one.agent, one.key, 2**62), b"1"
    )
    assert store.runs.without_state(ErasureTarget("event", one.event)) == []
    await store.commands.erase(ErasureTarget("event", one.event), draft)
    assert store.runs.event(one.event) is None


@pytest.mark.parametrize("what", ["event", "record"])
async def test_no_undo_is_accepted_of_what_was_erased(store: Store, what: str) -> None:
    """It was read before, and its event holds a copy: the erasure did not find that."""
    one, other = await accept_events(store, event(1), event(2))
    rows = [action(run, decided="permit", rule="r", effect="done") for run in (one, other)]
    for run, row in zip((one, other), rows, strict=True):
        turn = entry(run, "turn.reasoned", text="secret")
        await store.steps.commit(step(store, run, turn, actions=[row], state="done"))
    undos = [arrival(event(number), "watcher") for number in (11, 12)]
    if what == "event":
        await store.commands.erase(ErasureTarget("event", one.event), by_person("body.erased"))
    else:  # the content of one entry goes, and what the record holds of the run with it
        seq = next(e["seq"] for e in sealed(store, "turn.reasoned") if e["run"] == one.id)
        await store.commands.erase(ErasureTarget("entry", seq), by_person("body.erased"))
    head = store.ledger.last_seq()
    with pytest.raises(BadCommand, match="was erased"):
        await store.commands.accept_undo(rows[0].id, undos[0], command="c1")
    assert store.ledger.last_seq() == head
    told = await store.commands.accept_undo(rows[1].id, undos[1], command="c1")
    assert [run.event for run in told.runs] == [undos[1].event.key], "the refused one left nothing"
    with pytest.raises(AlreadyDone):
        await store.commands.accept_undo(rows[1].id, undos[1], command="c2")


# --- values of the runner's own ---


async def test_of_two_that_set_a_value_as_it_was_one_does(store: Store) -> None:
    assert not await store.commands.compare_and_set_meta("mark", "1", "2")
    assert store.meta("mark") is None
    both = [store.commands.compare_and_set_meta("mark", None, value) for value in ("1", "2")]
    assert await asyncio.gather(*both) == [True, False]
    assert not await store.commands.compare_and_set_meta("mark", None, "3")
    assert await store.commands.compare_and_set_meta("mark", "1", "3")
    assert store.meta("mark") == "3"


# --- what the line reads --------------------------------------------------------------------


async def test_the_backlog_is_what_is_ready_oldest_first(store: Store) -> None:
    runs = await accept_events(store, *(event(n) for n in range(6)))
    await store.steps.commit(closing_step(store, runs[1]))
    await store.steps.commit(step(store, runs[2], state="waiting", waits="time", wake_us=50))
    await store.steps.commit(step(store, runs[3], entry(runs[3], "run.dead"), state="dead"))
    assert [run.id for run in store.schedule.ready_runs(0, 10)] == [runs[n].id for n in (0, 4, 5)]
    assert [run.id for run in store.schedule.ready_runs(runs[0].position, 1)] == [runs[4].id]
    assert store.schedule.due_runs(49, 10) == []
    assert [run.id for run in store.schedule.due_runs(50, 10)] == [runs[2].id]
    assert store.schedule.due_runs(50, 0) == []


async def test_a_judge_s_history_is_its_checkpoint_and_what_was_observed_since(
    store: Store,
) -> None:
    runs = await accept_events(store, *(event(n) for n in range(5)))
    for number, run in enumerate(runs[:4]):
        checkpoint = ("pump", run.position, b"after 1") if number == 1 else None
        await store.steps.commit(
            closing_step(store, run, observed=number != 2, checkpoint=checkpoint)
        )
    blob, at, since, last = store.judge_states.history("watcher", "pump", runs[4].position)
    assert (blob, at, last) == (b"after 1", runs[1].position, runs[3].position)
    assert [(position, seen.id) for position, seen in since] == [(runs[3].position, "e3")]
    assert (
        store.judge_states.previous_position("watcher", "pump", runs[4].position)
        == runs[3].position
    )
    assert (
        store.judge_states.previous_position("watcher", "pump", runs[3].position)
        == runs[1].position
    )
    assert store.judge_states.previous_position("watcher", "pump", runs[0].position) == 0
    # A checkpoint that lies ahead is of no use to an earlier event.
    assert store.judge_states.history("watcher", "pump", runs[1].position)[:2] == (None, 0)
    assert store.judge_states.history("other", "pump", 2**40) == (None, 0, [], 0)


async def test_notes_belong_to_no_run_and_bring_their_bundle(store: Store) -> None:
    kept = bundle("package noted")
    seq = await store.commands.append_entries(
        [Draft("store.opened", {"epoch": 1}), Draft("fleet.loaded")], kept
    )
    assert seq == store.ledger.last_seq() == 2
    assert [e.get("run") for e in sealed(store)] == [None, None]
    assert store.policy.bundle_files(kept.digest) == dict(kept.files)


# --- whose store it is ----------------------------------------------------------------------


async def test_a_second_runner_is_refused_until_the_first_is_gone(
    store: Store, opener: Opener
) -> None:
    with pytest.raises(StoreBusy, match="another runner"):
        opener()
    await accept_events(store, event(1))
    store.close()
    assert opener().ledger.last_seq() == 1


async def test_a_close_that_is_interrupted_lets_no_other_runner_in(
    store: Any, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the writer is at goes on, so its connection stays open and the lock held."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store.writer, "close", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.close()
    with pytest.raises(StoreBusy):
        opener()
    assert len(await accept_events(store, event(1))) == 1
    store.close()
    assert opener().ledger.last_seq() == 1


def test_the_store_of_another_fleet_is_refused(store: Store, opener: Opener) -> None:
    store.close()
    with pytest.raises(BadStore, match="belongs to the fleet 'harbour'"):
        opener("elsewhere")
    assert (
        opener().cluster.epoch == store.cluster.epoch + 1
    )  # the refusal let go of everything and wrote nothing
