"""What other workers do to a worker's runs and leases, seen from one store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.pg import server

from vedette.adapters.ledger_export import verify_store
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadCommand, StoreFailed
from vedette.domain.bundle import Bundle
from vedette.domain.entry import Body, Draft
from vedette.domain.run import ActionRow, CommitStatus, Run, Step
from vedette.ledger.merkle import verifier_key
from vedette.store import write_runs
from vedette.store.postgres import PostgresReader, PostgresStore
from vedette.store.postgres.database import PostgresDatabase
from vedette.store.postgres.schema import SHARDS, shard_of
from vedette.testing.clock import ManualClock
from vedette.testing.sample_steps import (
    accept_events,
    closing_step,
    entry,
    event,
    held_action,
    step,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NAME = "vedette/harbour"
VERIFIER = verifier_key(NAME, KEY.public_key().public_bytes_raw())
LEASE_US = 1_000_000

Opener = Callable[[str], PostgresStore]


@pytest.fixture
def url() -> str:
    return server(fsync=False).fresh()


@pytest.fixture
def worker(url: str, tmp_path: Path) -> Iterator[Opener]:
    """Open the fleet's store as a worker of a name; what is still open at the end is closed."""
    opened: list[PostgresStore] = []

    def as_worker(name: str) -> PostgresStore:
        clock = ManualClock()
        opened.append(
            PostgresStore(
                url, tmp_path / name, fleet="harbour", key=KEY, key_name=NAME,
                now_us=clock.now_us, lease_us=LEASE_US,
            )
        )  # fmt: skip
        return opened[-1]

    yield as_worker
    for store in reversed(opened):
        store.close()


async def until(condition: Callable[[], object], within_s: float = 20) -> None:
    """Wait for what another thread or the server brings about. Raises AssertionError."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.005)


def shards(*stores: PostgresStore) -> list[int]:
    return [len(store.cluster.leases.epochs) for store in stores]


# --- what is answered at another worker --------------------------------------------------------


async def waiting(store: PostgresStore, run: Run) -> ActionRow:
    """Let a run wait for a person."""
    row = held_action(run)
    made = step(
        store, run, entry(run, "turn.reasoned", turn=1), state="waiting", turn=1, observed=True,
        waits="approval", actions=[row], order=(run.key, -1, run.position),
    )  # fmt: skip
    assert (await store.steps.commit(made)).status is CommitStatus.COMMITTED
    return row


async def approve(store: PostgresStore, run: Run, row: ActionRow) -> None:
    fields = {
        "agent": run.agent, "action": row.id, "action_digest": row.digest, "tool": row.tool,
        "actor": "person:dee", "until": 2**50,
    }  # fmt: skip
    draft = Draft("hold.approved", fields, body=Body(canonical_json({"reason": "it is right"})))
    await store.commands.transition_hold(
        row.id, "approved", draft, approver="person:dee", until_us=2**50
    )


async def two_sharing(worker: Opener) -> tuple[PostgresStore, PostgresStore, list[Run]]:
    """Return two workers, and runs that the first of them holds."""
    one, two = worker("one"), worker("two")
    await until(lambda: shards(one, two) == [32, 32])
    runs = await accept_events(one, *(event(n, subject=f"k{n}") for n in range(40)))
    await until(lambda: not one.cluster.leases.drain_shards)
    return one, two, [run for run in runs if one.cluster.lease_epoch(run) is not None]


async def test_what_was_answered_elsewhere_is_gone_on_from(worker: Opener) -> None:
    one, two, (run, *_) = await two_sharing(worker)
    row = await waiting(one, run)
    await approve(two, run, row)
    fresh = one.runs.run(run.id)
    assert fresh is not None
    made = step(
        one, fresh, entry(fresh, "turn.reasoned", turn=2), state="waiting", turn=2, waits="approval"
    )
    assert (await one.steps.commit(made)).status is CommitStatus.COMMITTED


async def test_a_step_made_before_another_worker_s_answer_does_not_stand(
    worker: Opener, url: str, tmp_path: Path
) -> None:
    one, two, (run, *_) = await two_sharing(worker)
    row = await waiting(one, run)
    stale = one.runs.run(run.id)
    assert stale is not None
    made = step(
        one, stale, entry(stale, "turn.reasoned", turn=2), state="waiting", turn=2, waits="approval"
    )
    await approve(two, run, row)
    head = two.ledger.last_seq()
    assert (await one.steps.commit(made)).status is CommitStatus.DUPLICATE
    assert one.ledger.last_seq() == head
    after = one.runs.run(run.id)
    assert after is not None
    assert (after.steps, after.entries, after.turn) == (2, 2, 1)
    opened = PostgresReader(url)
    for name in ("one", "two"):
        assert verify_store(opened.ledger, VERIFIER, tmp_path / name / "witness.log").findings == ()
    opened.close()


async def test_the_table_itself_refuses_a_step_from_where_a_run_no_longer_is(
    worker: Opener,
) -> None:
    """Were the fence in memory wrong, the group's end would find it: few rows as well as many."""
    store = worker("one")
    (run,) = await accept_events(store, event(1))
    store.parts.steps._step_counts[(run.position, run.agent)] = 3
    run.steps = 3
    assert (await store.steps.commit(closing_step(store, run))).status is CommitStatus.DUPLICATE
    found = store.runs.run(run.id)
    assert found is not None
    assert (found.steps, found.state) == (0, "ready")
    assert store.steps.is_ready


def test_few_rows_are_counted_where_a_row_may_be_left_alone(url: str) -> None:
    database = PostgresDatabase(url, name="test")
    database.execute_script("CREATE TABLE thing(id BIGINT PRIMARY KEY, at BIGINT)")
    put = "INSERT INTO thing(id,at) VALUES(?,?) ON CONFLICT(id) DO UPDATE SET at=excluded.at"
    with database.connection.transaction():
        assert database.execute_many(put, [(1, 1), (2, 1)]) == 2
        only_next = f"{put} WHERE thing.at=excluded.at-1"
        assert database.execute_many(only_next, [(1, 2), (2, 3)]) == 1
    database.close()


VALUES = [
    (1, "plain", b"\x00\xff", 2**63 - 1),
    (2, "naïve 🎈 'quoted', {braces} \\ \n", b"", -(2**63)),
    (3, "", None, 0),
    (4, None, b"'", None),
]  # fmt: skip


@pytest.mark.parametrize("many", [4, 9], ids=["as text", "as arrays"])
def test_many_rows_are_written_as_they_are(url: str, many: int) -> None:
    database = PostgresDatabase(url, name="test")
    columns = "id BIGINT PRIMARY KEY, word TEXT, data BYTEA, number BIGINT"
    database.execute_script(f"CREATE TABLE thing({columns})")
    rows = [*VALUES, *((at, f"row {at}", b"x" * at, at) for at in range(10, 6 + many))]
    put = (
        "INSERT INTO thing(id,word,data,number) VALUES(?,?,?,?) ON CONFLICT(id) DO UPDATE SET "
        "word=excluded.word, data=excluded.data, number=excluded.number"
    )
    with database.connection.transaction():
        assert database.execute_many(put, [(at, "before", b"", 0) for at, *_ in rows]) == len(rows)
        assert database.execute_many(put, rows) == len(rows)
    found = database.rows("SELECT id, word, data, number FROM thing ORDER BY id")
    assert found == sorted(rows)
    database.close()


def test_the_last_of_many_values_of_a_row_stands(url: str) -> None:
    """A statement of many rows cannot change one twice; the order of a row's values is kept."""
    database = PostgresDatabase(url, name="test")
    database.execute_script("CREATE TABLE thing(id BIGINT PRIMARY KEY, at BIGINT)")
    put = "INSERT INTO thing(id,at) VALUES(?,?) ON CONFLICT(id) DO UPDATE SET at=excluded.at"
    next_only = f"{put} WHERE thing.at=excluded.at-1"
    with database.connection.transaction():
        database.execute_many(put, [(at, 0) for at in range(10)])
        steps = [(at, count) for count in (1, 2, 3) for at in range(10)]
        assert database.execute_many(next_only, steps) == 30
        assert database.execute_many(next_only, [(at, 9) for at in range(9)]) == 0
    assert database.rows("SELECT DISTINCT at FROM thing") == [(3,)]
    database.close()


@pytest.mark.parametrize("value", ["half \ud800", "a\0b", b"bytes", 2**63, 1.5, object()])
def test_what_an_array_cannot_hold_is_a_wrong_value(url: str, value: object) -> None:
    database = PostgresDatabase(url, name="test")
    database.execute_script("CREATE TABLE thing(id BIGINT PRIMARY KEY, word TEXT)")
    put = "INSERT INTO thing(id,word) VALUES(?,?) ON CONFLICT(id) DO UPDATE SET word=excluded.word"
    rows = [(at, "fine") for at in range(9)]
    rows.append((10, value) if isinstance(value, str | bytes) else (value, "fine"))  # type: ignore[arg-type]
    with pytest.raises(database.value_errors), database.connection.transaction():
        database.execute_many(put, rows)
    database.close()


def test_a_query_of_each_answers_as_one_by_one(url: str) -> None:
    database = PostgresDatabase(url, name="test")
    database.execute_script(
        "CREATE TABLE thing(key TEXT, at BIGINT); INSERT INTO thing "
        "SELECT 'k' || n % 3, n FROM generate_series(1, 30) AS n"
    )
    query = "SELECT key, at FROM thing WHERE key=? AND at>? ORDER BY at LIMIT ?"
    values = [("k0", 3, 2), ("k1", 0, 32), ("nobody", 0, 4), ("k2", 29, 4)]
    found = database.rows_of_each(query, values)
    assert sorted(found) == sorted(row for each in values for row in database.rows(query, each))
    assert len(found) == 12
    assert database.rows_of_each(query, []) == []
    database.close()


async def test_others_steps_leave_what_is_known_and_their_orders_do_not(worker: Opener) -> None:
    """What a worker knows of its own runs nobody else's steps can change; an order can."""
    one, two, (run, *_) = await two_sharing(worker)
    row = await waiting(one, run)
    known = one.parts.steps._step_counts
    assert known[(run.position, run.agent)] == 1
    await accept_events(two, *(event(n, subject=f"other{n}") for n in range(500, 520)))
    await accept_events(one, event(600, subject="mine"))
    assert known[(run.position, run.agent)] == 1
    await approve(two, run, row)
    await accept_events(one, event(601, subject="mine"))
    assert (run.position, run.agent) not in known


async def refused_order(store: PostgresStore) -> None:
    draft = Draft("hold.approved", {}, body=Body(canonical_json({"reason": "it is right"})))
    with pytest.raises(BadCommand):
        await store.commands.transition_hold(
            "act_none", "approved", draft, approver="person:dee", until_us=2**50
        )


@pytest.mark.parametrize("together", [True, False])
async def test_an_answer_beside_refused_orders_is_seen(worker: Opener, together: bool) -> None:
    """The count of orders never says again what it said before."""
    one, two, (run, *_) = await two_sharing(worker)
    row = await waiting(one, run)
    await refused_order(two)
    if not together:
        await two.commands.set_meta("x", "1")
    await accept_events(one, event(600, subject="mine"))
    if together:
        await asyncio.gather(refused_order(two), approve(two, run, row))
    else:
        await refused_order(two)
        await approve(two, run, row)
    fresh = one.runs.run(run.id)
    assert fresh is not None
    made = step(
        one, fresh, entry(fresh, "turn.reasoned", turn=2), state="waiting", turn=2, waits="approval"
    )
    assert (await one.steps.commit(made)).status is CommitStatus.COMMITTED


def judged(store: PostgresStore, run: Run, key: str = "") -> Step:
    return step(
        store, run, entry(run, "turn.reasoned", turn=1), state="done", turn=1, observed=True,
        order=(key or run.key, -1, run.position),
    )  # fmt: skip


async def test_a_key_that_is_busy_among_many_is_not_lost(
    worker: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a group needs to know is not let go of within it, however many keys there are."""
    monkeypatch.setattr(write_runs, "_CACHE_SIZE", 4)
    store = worker("one")
    for n in range(12):
        runs = await accept_events(
            store, event(2 * n, subject="busy"), event(2 * n + 1, subject=f"new{n}")
        )
        steps = [judged(store, run) for run in runs]
        answers = await asyncio.gather(*map(store.steps.send, steps))
        assert [answer.status for answer in answers] == [CommitStatus.COMMITTED] * 2
    assert store.parts.steps._step_counts.keys() >= {(runs[0].position, runs[0].agent)}
    assert len(store.parts.steps._step_counts) < 10


@pytest.mark.parametrize("key", ["a\0b", "half \ud800"])
async def test_a_key_that_cannot_be_asked_for_fails_its_own_step_only(
    worker: Opener, key: str
) -> None:
    store = worker("one")
    runs = await accept_events(store, *(event(n, subject=f"k{n}") for n in range(3)))
    steps = [judged(store, run, key if at == 1 else "") for at, run in enumerate(runs)]
    answers = await asyncio.gather(*map(store.steps.send, steps), return_exceptions=True)
    good = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert [answer.status for answer in good] == [CommitStatus.COMMITTED] * 2
    assert isinstance(answers[1], store.parts.database.value_errors)


# --- leases that were to go, and stay ----------------------------------------------------------


async def test_a_give_back_that_is_called_off_is_told(worker: Opener) -> None:
    one = worker("one")
    two = worker("two")
    await until(lambda: one.cluster.leases.drain_shards)
    (run,) = await accept_events(one, event(1, subject=key_of(one, leaving=True)))
    assert one.cluster.lease_epoch(run) is None
    rev = one.cluster.lease_rev
    two.close()
    await until(lambda: one.cluster.lease_epoch(run) is not None)
    assert one.cluster.lease_rev > rev, "nobody would look for what was left to the other"
    assert shards(one) == [SHARDS]


async def test_a_lease_that_ran_out_and_was_not_taken_is_told_when_it_is_ours_again(
    worker: Opener,
) -> None:
    one = worker("one")
    (run,) = await accept_events(one, event(1))
    epoch, rev = one.cluster.lease_epoch(run), one.cluster.lease_rev
    one.cluster.leases._expires_at = 0  # as after a time without the database
    assert one.cluster.lease_epoch(run) is None
    await until(lambda: one.cluster.lease_epoch(run) is not None)
    assert one.cluster.lease_epoch(run) == epoch
    await until(lambda: one.cluster.lease_rev > rev)


def key_of(store: PostgresStore, *, leaving: bool) -> str:
    """Return a key of a shard that is leaving, or that stays."""
    keys = (f"k{n}" for n in range(10_000))
    return next(
        key
        for key in keys
        if (shard_of("watcher", key) in store.cluster.leases.drain_shards) is leaving
    )


async def test_a_shard_stays_while_a_call_of_it_is_out(worker: Opener) -> None:
    one = worker("one")
    last = max(one.cluster.leases.epochs)
    key = next(f"k{n}" for n in range(10_000) if shard_of("watcher", f"k{n}") == last)
    out = [("watcher", key)]
    one.cluster.watch_calls(lambda revision: 0, lambda: out)
    two = worker("two")
    await until(lambda: shards(one, two) == [33, 31])
    assert one.cluster.leases.drain_shards == {last}
    epoch = one.cluster.leases.epochs[last]
    await asyncio.sleep(3 * LEASE_US / 1e6)
    # What was begun may go on; nothing is begun.
    assert one.cluster.is_lease_valid(epoch)
    assert one.cluster.leases.epoch("watcher", key) is None
    assert last not in two.cluster.leases.epochs
    out.clear()
    await until(lambda: shards(one, two) == [32, 32])
    assert not one.cluster.is_lease_valid(epoch)
    assert not one.cluster.leases.drain_shards


async def test_a_call_that_had_its_leave_a_moment_ago_keeps_the_shard(worker: Opener) -> None:
    one = worker("one")
    last = max(one.cluster.leases.epochs)
    key = next(f"k{n}" for n in range(10_000) if shard_of("watcher", f"k{n}") == last)
    epoch = one.cluster.leases.epochs[last]
    looks: list[bool] = []

    def calling() -> list[tuple[str, str]]:
        # Between the first look and the second, which is taken after `holds` says no.
        looks.append(one.cluster.is_lease_valid(epoch))
        return [] if len(looks) == 1 else [("watcher", key)]

    one.cluster.watch_calls(lambda revision: 0, calling)
    two = worker("two")
    await until(lambda: shards(one, two) == [33, 31])
    assert looks[:2] == [True, False]
    assert one.cluster.leases.epochs[last] == epoch
    assert last not in two.cluster.leases.epochs


async def test_a_revision_is_acknowledged_when_older_calls_have_ended_though_it_is_live(
    worker: Opener,
) -> None:
    one, two = worker("one"), worker("two")
    await until(lambda: shards(one, two) == [32, 32])
    calling = [0]
    two.cluster.watch_calls(lambda revision: sum(1 for rev in calling if rev < revision), tuple)
    two.cluster.adopt(1, 0)  # it is live there at once
    bundle = Bundle.of({"vedette/gateway/decide.rego": b"package a"})
    assert await one.commands.publish(bundle, [Draft("policy.published")]) == 1
    await until(lambda: two.cluster.leases.live_versions[0] == 1)
    await asyncio.sleep(0.3)
    assert two.cluster.leases._acknowledged[0] == 0
    calling.clear()
    await until(lambda: two.cluster.leases._acknowledged[0] == 1)


async def test_what_another_worker_commits_just_before_us_is_news_too(
    worker: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = worker("one"), worker("two")
    await accept_events(one, event(1))
    # It looks again only when its own group stands on top of the other's.
    monkeypatch.setattr(one.cluster.leases, "_read_fleet_state", lambda: None)
    news = one.cluster.change_counter
    await accept_events(one, event(2))
    assert one.cluster.change_counter == news, "what it commits itself is none"
    await accept_events(two, event(3))
    await accept_events(one, event(4))
    assert one.cluster.change_counter > news


# --- a COMMIT that nobody was told of ----------------------------------------------------------


async def test_a_commit_whose_answer_was_lost_is_looked_for(worker: Opener) -> None:
    store = worker("one")
    write: Any = store.parts.database
    real = write.commit

    def commit() -> None:
        real()
        write._connection.close()
        raise psycopg.OperationalError("the connection was lost after COMMIT was sent")

    news = store.cluster.change_counter
    write.commit = commit
    with pytest.raises(StoreFailed):
        await accept_events(store, event(1))
    write.commit = real
    assert store.cluster.change_counter > news
    # It may have been too early then. The next group holds the lock that the lost one held.
    news = store.cluster.change_counter
    assert await accept_events(store, event(1)) == []
    assert store.cluster.change_counter > news
    (run,) = store.schedule.ready_runs(0, 10)
    assert run.event == event(1).key
