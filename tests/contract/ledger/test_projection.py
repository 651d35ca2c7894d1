"""The read side: tables that are what the entries come to, byte by byte, on every store.

Whatever happened (rolled back items, several workers, a reopened store, an answer to a hold), the
stored rows equal a fold over all entries from the first one on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.segments import remove_entries

from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadCommand
from vedette.domain.decision import Decision
from vedette.domain.entry import Body, Draft
from vedette.domain.run import Run
from vedette.ledger.history.ledger_entry import LedgerEntry
from vedette.ledger.history.projection import (
    KEEP_MINUTES,
    MINUTE_US,
    Key,
    Projection,
    ProjectionRow,
    latency_bucket,
)
from vedette.store.postgres import PostgresStore
from vedette.store.readmodel.entry_batches import EntryBatches
from vedette.store.readmodel.tables import RowFold, write_base
from vedette.store.sqlite import SqliteStore
from vedette.testing.clock import ManualClock
from vedette.testing.sample_steps import (
    accept_events,
    action,
    closing_step,
    decision_entry,
    entry,
    event,
    held_action,
    step,
)
from vedette.testing.toy_fleet import World, job, note_proposal, send_proposal, toy_fleet

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PERMIT = Decision("permit", "permit.small", ("p",))
HOLD = Decision("hold", "impact.high", ("h",), "approval")
DENY = Decision("deny", "mode.observe", ("d",), would="permit")

Opener = Callable[..., PostgresStore | SqliteStore]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["postgres", "sqlite"])
def opener(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Opener]:
    opened: list[PostgresStore | SqliteStore] = []

    def again(worker: str = "one") -> PostgresStore | SqliteStore:
        names: dict[str, Any] = {"fleet": "harbour", "key": KEY, "key_name": "vedette/harbour"}
        if request.param == "sqlite":
            opened.append(SqliteStore(tmp_path, now_us=clock.now_us, synchronous="OFF", **names))
        else:
            from vedette.store.postgres import PostgresStore

            opened.append(
                PostgresStore(_url(tmp_path), tmp_path / worker, now_us=clock.now_us, **names)
            )
        return opened[-1]

    yield again
    for store in reversed(opened):
        store.close()


_URLS: dict[Path, str] = {}


def _url(folder: Path) -> str:
    from tests.pg import database_for

    if folder not in _URLS:
        _URLS[folder] = database_for(folder)
    return _URLS[folder]


@pytest.fixture
def store(opener: Opener) -> PostgresStore | SqliteStore:
    return opener()


def fresh(store: PostgresStore | SqliteStore, run: Run) -> Run:
    found = store.runs.run(run.id)
    assert found is not None
    return found


ALL = "SELECT name, id, version, sort, data FROM view_row ORDER BY name, id"


def stored(store: PostgresStore | SqliteStore) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in store.view.rows(ALL)]


def edit_view(store: PostgresStore | SqliteStore, *statements: str) -> None:
    """Edit the read model as a hand on it does."""
    store.view.refresh()
    for statement in statements:
        store.view.stored_rows(statement + " RETURNING 1")


def by_person(kind: str, **fields: Any) -> Draft:
    return Draft(
        kind, {"actor": "person:kim", **fields}, body=Body(canonical_json({"reason": "why"}))
    )


# --- a history by hand ----------------------------------------------------------------------


async def wander(
    store: PostgresStore | SqliteStore,
    clock: ManualClock,
    seed: int,
    steps: int = 60,
    base: int = 0,
) -> None:
    """Let runs of a few agents take random steps; some are refused or rolled back."""
    dice = random.Random(seed)
    open_runs: list[Run] = []
    for number in range(steps):
        clock.advance(dice.choice([1_000, 200_000, 40_000_000]))
        what = dice.randrange(10)
        if what < 3 or not open_runs:
            agent = dice.choice(["watcher", "sorter", "caller"])
            runs = await accept_events(store, event(base + number), agent=agent)
            if dice.random() < 0.4:
                await store.steps.commit(closing_step(store, runs[0]))
                # The same step again is a duplicate and leaves nothing.
                await store.steps.commit(closing_step(store, runs[0]))
            else:
                open_runs += runs
        elif what == 3:
            await store.commands.append_entries(
                [Draft("policy.refused", {"actor": "engine", "bundle": "b" * 64})]
            )
        elif what == 4:
            await both_ways(store, dice)
        elif what == 5:
            # The second has no canonical form: neither has a place.
            bad = by_person("stop.set", what="agent:x", spend={"a": object()})
            with pytest.raises(TypeError):
                await store.commands.append_entries([by_person("stop.set", what="agent:x"), bad])
        else:
            run = open_runs.pop(dice.randrange(len(open_runs)))
            if await onward(store, dice, fresh(store, run)):
                open_runs.append(run)


async def both_ways(store: PostgresStore | SqliteStore, dice: random.Random) -> None:
    name = dice.choice(["watcher", "sorter"])
    on = ("agent", name) not in store.policy.stop_scopes()
    kind = "stop.set" if on else "stop.lifted"
    await store.commands.stop(by_person(kind, what=f"agent:{name}"), "agent", name, on)
    with pytest.raises(BadCommand):
        await store.commands.stop(by_person(kind, what=f"agent:{name}"), "agent", name, on)


async def onward(store: PostgresStore | SqliteStore, dice: random.Random, run: Run) -> bool:
    """Take a run one step on; say whether it goes on."""
    if run.state in ("done", "dead"):
        return False
    rows = store.runs.actions(run.id)
    if not rows:
        row = action(run, decided="permit", rule="r", effect="intended")
        decision = dice.choice([PERMIT, HOLD, DENY])
        if decision is HOLD:
            row = held_action(run)
        elif decision is DENY:
            row = action(run, decided="deny", rule="r")
        drafts = [
            entry(run, "turn.reasoned", text="t", turn=1),
            decision_entry(run, row, decision, back=1),
        ]
        if decision is PERMIT:
            drafts.append(entry(run, "effect.intended", back=1, action=row.id, tool=row.tool))
        state = "waiting" if decision is HOLD else "done" if decision is DENY else "ready"
        if decision is DENY:
            drafts.append(entry(run, "run.closed", back=1, settled=1))
        await store.steps.commit(
            step(store, run, *drafts, actions=[row], state=state, turn=1, waits="approval")
        )
        return decision is not DENY
    (row,) = rows
    about = {"action": row.id, "tool": row.tool}
    if row.hold == "open":
        to = dice.choice(["approved", "denied"])
        draft = by_person(f"hold.{to}", agent=run.agent, **about)
        await store.commands.transition_hold(
            row.id,
            to,  # type: ignore[arg-type]
            draft,
            approver="person:kim",
            until_us=2**50,
        )
        return True
    if row.hold == "approved":
        row.decided, row.hold, row.effect = "permit", "used", "intended"
        drafts = [decision_entry(run, row, PERMIT)]
        drafts.append(entry(run, "effect.intended", back=1, **about))
        await store.steps.commit(step(store, run, *drafts, actions=[row]))
        return True
    if row.hold == "denied":
        row.decided = "deny"
        quiet = entry(run, "run.closed", settled=1)
        await store.steps.commit(step(store, run, quiet, actions=[row], state="done"))
        return False
    return await bring_about(store, dice, run, row, about)


async def bring_about(
    store: PostgresStore | SqliteStore,
    dice: random.Random,
    run: Run,
    row: Any,
    about: Mapping[str, Any],
) -> bool:
    to = dice.choice(["done", "failed", "unknown", "dead"])
    if to == "dead":
        drafts = [entry(run, "run.dead", text="no more")]
        drafts.append(entry(run, "effect.unknown", back=1, **about))
        row.effect, row.decided = "unknown", "deny"
        await store.steps.commit(step(store, run, *drafts, actions=[row], state="dead"))
        return False
    row.effect = to
    drafts = [entry(run, f"effect.{to}", **about)]
    if to != "unknown":
        drafts.append(entry(run, "run.closed", back=1, settled=1))
    state = "ready" if to == "unknown" else "done"
    await store.steps.commit(step(store, run, *drafts, actions=[row], state=state))
    return to == "unknown"


# --- equal to the fold ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_tables_are_what_the_entries_come_to(
    opener: Opener, clock: ManualClock, seed: int
) -> None:
    store = opener()
    await wander(store, clock, seed)
    assert store.tables.find_wrong_rows() == []
    names = {row[0] for row in stored(store)}
    assert {"fleet", "agent", "minute", "rollout"} <= names
    # Nothing of before is in memory, and it goes on from the rows as they stand.
    store.close()
    repeat = opener()
    await wander(repeat, clock, seed + 100, steps=30, base=1000)
    assert repeat.tables.find_wrong_rows() == []


async def test_rebuilt_tables_have_equal_bytes(
    store: PostgresStore | SqliteStore, clock: ManualClock
) -> None:
    await wander(store, clock, 5)
    before = stored(store)
    assert store.view.rebuild() == len(before)
    assert stored(store) == before
    assert len(before) > 10


async def test_a_spoilt_row_is_found_and_mended(
    store: PostgresStore | SqliteStore, clock: ManualClock
) -> None:
    """The negative control: comparing would say so if the tables were anything else."""
    await wander(store, clock, 6)
    before = stored(store)
    edit_view(
        store,
        "UPDATE view_row SET version=version+1 WHERE name='fleet'",
        "DELETE FROM view_row WHERE name='agent' AND id='watcher'",
        "INSERT INTO view_row(name,id,version,sort,data) "
        "SELECT 'hold', 'act_0', 1, 1, data FROM view_row WHERE name='fleet'",
    )
    assert store.tables.find_wrong_rows() == [
        ("agent", "watcher"),
        ("fleet", ""),
        ("hold", "act_0"),
    ]
    store.view.rebuild()
    assert store.tables.find_wrong_rows() == []
    assert stored(store) == before


async def test_what_was_rolled_back_left_nothing(
    store: PostgresStore | SqliteStore, clock: ManualClock
) -> None:
    (run,) = await accept_events(store, event(1))
    before = stored(store)

    def broken() -> None:
        store.parts.ledger.append([by_person("stop.set", what="agent:x")], None, 0, clock.now_us())
        store.parts.ledger.append([entry(run, "run.dead")], run.id, run.entries, clock.now_us(), 1)
        # Written, and then it is all taken back.
        store.writer._buffer.flush()
        raise BadCommand("not after all")

    with pytest.raises(BadCommand):
        await store.writer.submit(broken)
    assert stored(store) == before
    await store.steps.commit(closing_step(store, run))
    assert store.tables.find_wrong_rows() == []
    assert store.tables.counts() == {"watcher": {"run.done": 1}}


@pytest.mark.parametrize("opener", ["postgres"], indirect=True)
async def test_several_workers_keep_one_set_of_tables(opener: Opener, clock: ManualClock) -> None:
    one, two = opener("one"), opener("two")
    for number in range(6):
        (run,) = await accept_events(one if number % 2 else two, event(number))
        row = held_action(run)
        at = one if one.cluster.lease_epoch(run) is not None else two
        other = two if at is one else one
        if at.cluster.lease_epoch(run) is None:
            continue
        turn = entry(run, "turn.reasoned", text="t", turn=1)
        await at.steps.commit(
            step(at, run, turn, decision_entry(run, row, HOLD, back=1), actions=[row], turn=1,
                 state="waiting", waits="approval")
        )  # fmt: skip
        draft = by_person("hold.approved", action=row.id, agent=run.agent, tool=row.tool)
        await other.commands.transition_hold(
            row.id, "approved", draft, approver="kim", until_us=2**50
        )
        kept = fresh(at, run)
        done = [decision_entry(run, row, PERMIT), entry(run, "effect.done", back=1, action=row.id)]
        await at.steps.commit(step(at, kept, *done, state="done"))
        assert one.tables.find_wrong_rows() == []
    assert two.tables.find_wrong_rows() == []


async def test_what_archived_entries_came_to_is_kept(
    store: PostgresStore | SqliteStore, clock: ManualClock
) -> None:
    """Made anew from nothing, the rows are those of before, though their entries are gone."""
    await wander(store, clock, 8, steps=20)
    batches = EntryBatches(store.parts.database)
    size = store.ledger.last_seq()
    await wander(store, clock, 9, steps=5, base=500)
    before = stored(store)
    fold = RowFold(batches)
    for _ in fold.slices(size):
        pass
    write = store.parts.database
    write.begin()
    write_base(write, fold.reached, fold.values().values())
    remove_entries(write, range(size + 1))
    write.execute("DELETE FROM checkpoint WHERE size<?", (size,))
    write.commit()
    assert store.view.rebuild() == len(before)
    assert stored(store) == before
    with pytest.raises(BadCommand, match="archived"):
        store.tables.find_wrong_rows()


# --- equal to what the tables of the line say, over a real line ----------------------------------


def by_tables(store: PostgresStore | SqliteStore) -> dict[str, dict[str, int]]:
    """Count the slow way, over the tables themselves."""
    table: dict[str, dict[str, int]] = {}
    for name, of, column in (
        ("run", "run", "state"), ("decided", "action", "decided"),
        ("effect", "action", "effect"), ("hold", "action", "hold"),
    ):  # fmt: skip
        sql = f"SELECT agent, {column}, COUNT(*) FROM {of} GROUP BY agent, {column}"
        for agent, value, number in store.database.rows(sql):
            if value is not None:
                table.setdefault(agent, {})[f"{name}.{value}"] = int(number)
    return table


async def test_counts_over_a_real_line_and_a_restart(tmp_path: Path) -> None:
    world = World()
    async with toy_fleet(tmp_path, world, agents=("worker", "helper")) as fleet:
        jobs = [
            job("quiet", key="a"),
            job("sent", send_proposal(), key="b"),
            job("noted", note_proposal("hello"), key="c"),
            job("held", send_proposal(tool="big.send"), key="d"),
            job("held too", send_proposal(tool="big.send"), key="e"),
            job("held three", send_proposal(tool="big.send"), key="f"),
        ]
        await fleet.send(*jobs)
        await fleet.wait_until_idle()
        store = fleet.app.store
        (first, second) = (fleet.actions(jobs[3])[0], fleet.actions(jobs[4])[0])
        assert store.tables.counts() == by_tables(store)
        assert store.tables.counts()["worker"]["hold.open"] == 3
        assert {id for id, *_ in store.tables.view_page("hold", limit=9)} >= {first.id, second.id}
        await fleet.approve(first)
        await fleet.wait_until_idle()
        await fleet.restart()
        store = fleet.app.store
        await fleet.app.commands.deny(fleet.order(), second.id)
        await fleet.wait_until_idle()
        assert store.tables.counts() == by_tables(store)
        assert store.tables.find_wrong_rows() == []
        (waiting,) = store.tables.view_page("hold", limit=9)
        assert waiting[3]["tool"] == "big.send"
        assert [id for id, *_ in store.tables.view_page("run", limit=9)] == [waiting[3]["run"]]


# --- the fold itself ------------------------------------------------------------------------

_KINDS = (
    "turn.reasoned", "action.decided|permit", "action.decided|hold", "action.decided|deny",
    "effect.intended", "effect.started", "effect.done", "effect.failed", "effect.unknown",
    "effect.cancelled", "hold.approved", "hold.denied", "hold.expired", "action.refused",
    "budget.refused", "budget.reserved", "run.dead", "run.redriven", "run.closed",
)  # fmt: skip


@st.composite
def histories(draw: st.DrawFn) -> list[LedgerEntry]:
    """Entries of a few runs in any order, sensible or not; instants may go back."""
    results: list[LedgerEntry] = []
    numbers: dict[str, int] = {}
    at = 10 * KEEP_MINUTES * MINUTE_US
    for seq in range(1, draw(st.integers(1, 40)) + 1):
        at += draw(st.sampled_from([0, 5, 90 * MINUTE_US, -MINUTE_US, 3000 * MINUTE_US]))
        run = f"run_{draw(st.integers(0, 2))}"
        kind, _, outcome = draw(st.sampled_from(_KINDS)).partition("|")
        fields = {"agent": draw(st.sampled_from("ab")), "event": "evt_1"}
        if kind.startswith(("action.", "effect.", "hold.")) or draw(st.booleans()):
            fields |= {"action": f"act_{run}_{draw(st.integers(0, 1))}", "tool": "t"}
        if kind.startswith(("turn.", "run.")):
            fields.pop("action", None)
        if outcome:
            fields |= {"outcome": outcome, "rule": "r"}
        numbers[run] = numbers.get(run, 0) + 1
        results.append(LedgerEntry(seq, at, kind, 1, run, numbers[run], **fields))
    return results


@given(histories(), st.data())
@hypothesis_settings(max_examples=200)
def test_groups_of_any_size_come_to_the_same(told: list[LedgerEntry], data: st.DataObject) -> None:
    """Written group by group, forgetting now and then, it is what one fold over all comes to."""
    tables: dict[Key, tuple[int, int, bytes]] = {}

    def fetch(key: Key) -> ProjectionRow | None:
        if key not in tables:
            return None
        version, sort, raw = tables[key]
        return ProjectionRow(version, sort, orjson.loads(raw), stored=True)

    def again(run: str, about: int | None, before: int) -> list[LedgerEntry]:
        return [one for one in told if one.run == run and one.seq < before]

    view, at = Projection(fetch, again), 0
    while at < len(told):
        to = data.draw(st.integers(at + 1, len(told)))
        view.add_entries(told[at:to])
        for key in view.dropped_keys:
            tables.pop(key, None)
        for key in view.changed_keys:
            row = view.rows[key]
            tables[key] = (row.version, row.sort, canonical_json(row.data))
        if view.has_new_minute:
            first = view.first_minute
            tables = {k: v for k, v in tables.items() if k[0] != "minute" or v[1] >= first}
        view.mark_stored()
        if data.draw(st.booleans()):
            view.forget()
        at = to
    at_once = Projection()
    at_once.add_entries(told)
    at_once.drop_old_minutes()
    whole = {
        key: (row.version, row.sort, canonical_json(row.data)) for key, row in at_once.rows.items()
    }
    assert tables == whole


@given(st.integers(1, 2**50))
def test_a_bucket_holds_its_latency(micros: int) -> None:
    octave, _, quarter = latency_bucket(micros).partition(".")
    low = ((4 + int(quarter)) << int(octave)) >> 2
    assert low <= micros < max(low * 1.25 + 1, low + 1)


@pytest.mark.parametrize(
    ("kinds", "listed"),
    [
        (["task.stalled"], True),
        (["task.stalled", "task.moved"], False),
        (["task.paused", "task.moved"], True),
        (["task.paused", "task.moved", "task.resumed"], False),
    ],
)
def test_a_move_ends_the_wait_at_a_bound_and_no_pause(kinds: list[str], listed: bool) -> None:
    view = Projection()
    view.add_entries(
        LedgerEntry(n, n, kind, 1, "run_a", n, event="evt_a", agent="worker", turn=1)
        for n, kind in enumerate(["turn.reasoned", *kinds], 1)
    )
    assert (("run", "run_a") in view.rows) is listed


# --- the verb -------------------------------------------------------------------------------

SETTINGS = """\
fleet = "harbour"
state = "state"
[content]
agents = "agents"
policies = "policies"
memory = "memory"
"""


async def test_a_person_checks_and_rebuilds(tmp_path: Path, clock: ManualClock) -> None:
    import asyncio

    from click.testing import CliRunner

    from vedette.adapters.signing_keys import open_ledger_key
    from vedette.interfaces.cli import cli

    state = tmp_path / "state"
    store = SqliteStore(
        state, fleet="harbour", key=open_ledger_key(state, "vedette/harbour", lambda: None),
        key_name="vedette/harbour", now_us=clock.now_us, synchronous="OFF",
    )  # fmt: skip
    await wander(store, clock, 9, steps=20)
    edit_view(store, "UPDATE view_row SET version=1 WHERE name='fleet'")
    store.close()
    settings = tmp_path / "vedette.toml"
    settings.write_text(SETTINGS)

    async def verb(*words: str) -> tuple[int, str]:
        arguments = ["--config", str(settings), "verify", "views", *words]
        runner = partial(CliRunner().invoke, cli, arguments, standalone_mode=False)
        done = await asyncio.to_thread(runner)
        assert done.exception is None
        return int(done.return_value), done.output

    assert await verb() == (1, "fleet\n")
    code, answer = await verb("--repair")
    assert (code, answer[:5]) == (0, "made ")
    assert await verb() == (0, "every row is what the ledger says\n")
