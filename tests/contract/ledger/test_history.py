"""The timeline over a real store: what the reads of a store must give explain and the pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from vedette.domain.base.canonical import canonical_json
from vedette.domain.decision import Decision
from vedette.domain.entry import Body, Draft
from vedette.domain.erasure import ErasureTarget
from vedette.domain.ports.store import StoreReader
from vedette.domain.run import Run
from vedette.engine import action_holds
from vedette.interfaces.render.explain_text import explain_text
from vedette.ledger.history.explain import explain
from vedette.ledger.history.lists import inbox, runs_page, status
from vedette.store.sqlite import SqliteReader, SqliteStore
from vedette.testing.clock import ManualClock
from vedette.testing.sample_steps import (
    accept_events,
    action,
    agents_of,
    arrival,
    closing_step,
    decision_entry,
    entry,
    event,
    held_action,
    step,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
HOLD = Decision("hold", "impact.high", ("impact.high:valve.close",), "approval")
PERMIT = Decision("permit", "permit.approved", ("permit.approved:valve.close",))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[SqliteStore]:
    opened = SqliteStore(
        tmp_path, fleet="harbour", key=KEY, key_name="vedette/harbour",
        now_us=clock.now_us, synchronous="OFF",
    )  # fmt: skip
    yield opened
    opened.close()


def fresh(store: SqliteStore, run: Run) -> Run:
    found = store.runs.run(run.id)
    assert found is not None
    return found


async def live(store: SqliteStore, clock: ManualClock) -> Run:
    """Let one run be held, approved and permitted, with the effect recorded."""
    (run,) = await accept_events(store, event(1))
    row = held_action(run, until_us=clock.now_us() + action_holds.HOLD_EXPIRY_US)
    turn = entry(run, "turn.reasoned", turn=1, text="x", label="alarm", proposals=1)
    await store.steps.commit(
        step(store, run, turn, decision_entry(run, row, HOLD, back=1), actions=[row], turn=1,
             state="waiting", waits="approval", wake_us=row.until_us)
    )  # fmt: skip
    clock.advance(60_000_000)
    draft = Draft(
        "hold.approved",
        {"actor": "person:kim", "action": row.id, "agent": run.agent, "tool": row.tool},
        body=Body(canonical_json({"reason": "seen"})),
    )
    await store.commands.transition_hold(
        row.id, "approved", draft, approver="person:kim", until_us=row.until_us
    )
    run = fresh(store, run)
    after = store.runs.action(row.id)
    assert after is not None
    action_holds.apply_decision(after, PERMIT, 2, clock.now_us())
    after.effect, after.tries = "done", 1
    after.answer = canonical_json({"state": "done", "data": {}, "error": ""})
    done = entry(run, "effect.done", back=1, action=row.id, tool=row.tool, policy_rev=2)
    await store.steps.commit(
        step(store, run, decision_entry(run, after, PERMIT, revision=2),
             replace(done, body=Body(after.answer, "pump")), actions=[after], state="done")
    )  # fmt: skip
    return run


def test_a_store_is_a_record(store: SqliteStore) -> None:
    fits: StoreReader = store
    assert fits.ledger.last_seq() == 0


async def test_explain_is_the_same_beside_the_runner_and_in_it(
    store: SqliteStore, clock: ManualClock, tmp_path: Path
) -> None:
    run = await live(store, clock)
    beside = SqliteReader(tmp_path)
    with beside.snapshot():
        explanation = explain(beside, run.id[:10])
    beside.close()
    assert explanation == explain(store, run.id)
    (shown,) = explanation["runs"][0]["actions"]
    assert [(d["outcome"], d["revision"]) for d in shown["decisions"]] == [
        ("hold", 1), ("permit", 2),
    ]  # fmt: skip
    assert shown["hold"]["answers"][0]["reason"] == "seen"
    assert shown["effect"]["outcome"]["state"] == "done"
    causes = [item["cause"] for item in explanation["runs"][0]["timeline"]]
    assert causes == [None, 1, 2, 3, 4, 5]
    assert explain(store, shown["hold"]["id"])["focus"] == shown["id"]
    assert explain_text(explanation)


async def test_explain_after_an_erasure_still_says_who_and_why(
    store: SqliteStore, clock: ManualClock
) -> None:
    run = await live(store, clock)
    reason = Body(canonical_json({"reason": "asked to"}))
    draft = Draft("body.erased", {"actor": "person:kim"}, body=reason)
    await store.commands.erase(ErasureTarget("event", run.event), draft, stateless=agents_of(store))
    explanation = explain(store, run.id)
    assert explanation["event"]["erased"]
    (shown,) = explanation["runs"][0]["actions"]
    assert (shown["arguments"], shown["erased"]) == (None, True)
    assert [d["rule"] for d in shown["decisions"]] == ["impact.high", "permit.approved"]


async def test_pages_of_runs_meet_where_one_event_woke_several(store: SqliteStore) -> None:
    agents = ("a", "b", "c")
    for number in range(5):
        await store.steps.accept([arrival(event(number), *agents)], None)
    seen: list[tuple[int, str]] = []
    pages = [runs_page(store, 0, limit=4)]
    while pages[-1]["older"] is not None:
        pages.append(runs_page(store, 0, before=pages[-1]["older"], limit=4))
    for page in pages:
        seen += [(item["position"], item["agent"]) for item in page["items"]]
    assert seen == [(n, agent) for n in range(5, 0, -1) for agent in reversed(agents)]
    for earlier, later in pairwise(pages):
        assert runs_page(store, 0, after=later["newer"], limit=4)["items"] == earlier["items"]


@pytest.mark.parametrize("state", ["ready", "waiting", "dead", "done"])
async def test_runs_are_found_by_state(store: SqliteStore, state: str) -> None:
    runs = await accept_events(store, *(event(n) for n in range(8)))
    for run, to in zip(runs, ["ready", "waiting", "dead", "done"] * 2, strict=True):
        await store.steps.commit(
            step(store, run, entry(run, "turn.reasoned"), state=to, waits="time")
        )
    found = runs_page(store, 0, state=state, agent="watcher")["items"]
    assert [item["state"] for item in found] == [state, state]
    assert runs_page(store, 0, state=state, agent="nobody")["items"] == []
    assert store.tables.wait_counts() == {"time": 2}


async def test_pages_of_the_inbox_meet_within_one_step(store: SqliteStore) -> None:
    (run,) = await accept_events(store, event(1))
    rows = [held_action(run, ordinal) for ordinal in range(7)]
    await store.steps.commit(
        step(store, run, entry(run, "turn.reasoned", text="t"),
             *(decision_entry(run, row, HOLD, back=1) for row in rows), actions=rows,
             state="waiting", waits="approval", turn=1)
    )  # fmt: skip
    assert len({row.seq for row in rows}) == 1
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = inbox(store, 2**52, after=cursor, limit=3)
        seen += [item["action"] for item in page["items"]]
        cursor = page["newer"]
        if cursor is None:
            break
    assert seen == sorted(row.id for row in rows)
    assert all(item["reasons"] == ["impact.high:valve.close"] for item in page["items"])


async def test_status_counts_what_observe_would_have_done(store: SqliteStore) -> None:
    runs = await accept_events(store, *(event(n) for n in range(3)))
    for run in runs[:2]:
        would = Decision("deny", "mode.observe", ("mode.observe",), would="permit")
        row = action(run, decided="deny", rule="mode.observe")
        await store.steps.commit(
            step(store, run, decision_entry(run, row, would), actions=[row], state="done")
        )
    plain = action(runs[2], decided="deny", rule="sinks")
    await store.steps.commit(
        step(store, runs[2], decision_entry(runs[2], plain, Decision("deny", "sinks", ("s",))),
             actions=[plain], state="done")
    )  # fmt: skip
    state = status(store, 2**52)
    assert state["agents"]["watcher"]["would"] == {"permit": 2}
    assert state["agents"]["watcher"]["denials"] == 3
    assert state["events"] == {"accepted": 3, "woke_nobody": 0}


async def test_no_page_reads_more_than_it_shows(store: SqliteStore) -> None:
    """Every filter goes by an index: the plans say SEARCH, never SCAN, and sort nothing."""
    (run,) = await accept_events(store, event(1))
    await store.steps.commit(closing_step(store, run))
    plans: list[str] = []

    database: Any = store.database
    kept = database.rows

    def rows(sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        found = database.connection.execute("EXPLAIN QUERY PLAN " + sql, values).fetchall()
        plans.extend(str(row[3]) for row in found)
        planned: list[tuple[Any, ...]] = kept(sql, values)
        return planned

    database.rows = rows
    for state in (None, "ready", "waiting", "dead"):
        for agent in (None, "watcher"):
            store.runs.runs_page(agent=agent, state=state, before=9, beside="x", limit=3)
            store.runs.runs_page(agent=agent, state=state, before=None, after=9, limit=3)
    store.runs.holds_page(after=0, limit=3)
    explain(store, run.id)
    store.tables.wait_counts()
    store.tables.would()
    bad = [plan for plan in plans if plan.startswith("SCAN") and "subquery" not in plan]
    assert len(plans) > 20
    assert bad == []
