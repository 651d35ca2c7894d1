"""What the PostgreSQL store has to prove for itself: several workers, lost connections, fences."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.jepsen.link import Link
from tests.pg import find_bin, server

from vedette.adapters.ledger_export import verify_store
from vedette.config.settings import load_settings
from vedette.domain.base.errors import BadFleet, BadStore, StoreFailed, Unavailable, WriteConflict
from vedette.domain.budget import BudgetCap
from vedette.domain.bundle import Bundle
from vedette.domain.effect import RowWrite
from vedette.domain.entry import Draft
from vedette.domain.run import CommitStatus, Run
from vedette.ledger.merkle import verifier_key
from vedette.store.postgres import PostgresReader, PostgresStore
from vedette.store.postgres.database import PostgresDatabase
from vedette.store.postgres.dialect import sql_literal
from vedette.store.postgres.schema import SHARDS, shard_of
from vedette.store.postgres.shards import Peer, fair_share, silent_peers, update_peers
from vedette.testing.clock import ManualClock
from vedette.testing.sample_steps import accept_events, closing_step, event

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NAME = "vedette/harbour"
VERIFIER = verifier_key(NAME, KEY.public_key().public_bytes_raw())
LEASE_US = 1_000_000

Opener = Callable[..., PostgresStore]


@pytest.fixture
def url() -> str:
    return server(fsync=False).fresh()


@pytest.fixture
def worker(url: str, tmp_path: Path) -> Iterator[Opener]:
    """Open the fleet's store as a worker of a name; what is still open at the end is closed."""
    opened: list[PostgresStore] = []

    def as_worker(name: str = "one", key: Ed25519PrivateKey = KEY, **more: bool) -> PostgresStore:
        clock = ManualClock()
        opened.append(
            PostgresStore(
                url, tmp_path / name, fleet="harbour", key=key, key_name=NAME,
                now_us=clock.now_us, lease_us=LEASE_US, **more,
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
        await asyncio.sleep(0.01)


def hang(store: PostgresStore) -> None:
    """Let a worker's lease thread end, as if the process had stopped: its beat stands still."""
    store.cluster.leases._stop_event.set()
    store.cluster.leases._thread.join()


def held(*stores: PostgresStore) -> list[int]:
    return [len(store.cluster.leases.epochs) for store in stores]


async def shared(one: PostgresStore, other: PostgresStore) -> None:
    await until(lambda: held(one, other) == [32, 32])


def of_shard(store: PostgresStore, runs: list[Run]) -> list[Run]:
    return [run for run in runs if store.cluster.lease_epoch(run) is not None]


# --- who handles what ------------------------------------------------------------------------


def test_python_and_the_server_agree_on_shards(url: str, worker: Opener) -> None:
    worker()
    database = PostgresDatabase(url, name="test")
    for agent, key in (("a", "k"), ("watcher", ""), ("ä", "prüfen 🎈"), ("x" * 300, "\\ ' \n")):
        assert database.rows("SELECT shard_of(?,?)", (agent, key)) == [(shard_of(agent, key),)]
    database.close()
    assert len({shard_of("a", str(n)) for n in range(2000)}) == SHARDS


async def test_a_second_worker_gets_half_and_gives_it_back(worker: Opener) -> None:
    one = worker("one")
    assert held(one) == [SHARDS]
    runs = await accept_events(one, *(event(n, subject=f"k{n}") for n in range(200)))
    rev = one.cluster.lease_rev
    two = worker("two")
    await shared(one, two)
    assert one.cluster.lease_rev > rev
    assert not one.cluster.leases.epochs.keys() & two.cluster.leases.epochs.keys()
    mine, yours = of_shard(one, runs), of_shard(two, runs)
    assert mine
    assert yours
    assert {run.id for run in (*mine, *yours)} == {run.id for run in runs}
    # Each reads its own backlog only, and each knows the runs that the other accepted.
    assert [run.id for run in one.schedule.ready_runs(0, 1000)] == [run.id for run in mine]
    assert [run.id for run in two.schedule.ready_runs(0, 1000)] == [run.id for run in yours]
    two.close()
    await until(lambda: held(one) == [SHARDS])
    assert of_shard(one, runs) == runs


async def test_a_worker_that_is_not_heard_of_loses_its_keys(worker: Opener) -> None:
    one, two = worker("one"), worker("two")
    await shared(one, two)
    runs = of_shard(one, await accept_events(one, *(event(n, subject=f"k{n}") for n in range(100))))
    old = closing_step(one, runs[0])
    assert one.cluster.is_lease_valid(old.epoch)
    hang(one)
    # Its own clock ends its lease before anybody takes over.
    await until(lambda: not one.cluster.is_lease_valid(old.epoch))
    assert one.cluster.lease_epoch(runs[0]) is None
    assert held(two) == [32]
    await until(lambda: held(two) == [SHARDS])
    assert (await one.steps.commit(old)).status is CommitStatus.FENCED_LEASE
    assert (await two.steps.commit(closing_step(two, runs[0]))).status is CommitStatus.COMMITTED


async def test_the_lease_of_a_lively_worker_is_left_alone(worker: Opener) -> None:
    """The control of the test above: as long as it beats nothing is taken from it."""
    one, two = worker("one"), worker("two")
    await shared(one, two)
    before = dict(one.cluster.leases.epochs)
    await asyncio.sleep(3 * LEASE_US / 1e6)
    assert one.cluster.leases.epochs == before


async def test_its_own_successor_takes_a_worker_s_leases_over_at_once(worker: Opener) -> None:
    one = worker("one")
    (run,) = await accept_events(one, event(1))
    old = closing_step(one, run)
    hang(one)
    one._lock.close()  # what the end of a process does
    again = worker("one")
    assert held(again) == [SHARDS]
    assert (await one.steps.commit(old)).status is CommitStatus.FENCED_LEASE
    assert (await again.steps.commit(closing_step(again, run))).status is CommitStatus.COMMITTED


async def test_a_worker_taken_for_dead_joins_again(worker: Opener) -> None:
    one, two = worker("one"), worker("two")
    await shared(one, two)
    life = one.cluster.epoch
    database: Any = one.parts.database
    with database.connection.cursor() as cursor:
        cursor.execute(b"DELETE FROM worker WHERE life=$1", (life,))
    await until(lambda: one.cluster.epoch > life)
    await shared(one, two)


def test_who_only_visits_takes_no_keys(worker: Opener) -> None:
    visitor = worker("visitor", visit=True)
    assert held(visitor) == [0]
    assert held(worker("one"), visitor) == [SHARDS, 0]


def test_shares_are_fair_and_silence_is_by_one_s_own_clock() -> None:
    assert [fair_share(n) for n in (0, 1, 2, 3, 64, 100)] == [64, 64, 32, 22, 1, 1]
    first = update_peers({}, [("a", 1, 5, 0, 0), ("b", 2, 9, 0, 0)], now=100)
    later = update_peers(first, [("a", 1, 5, 3, 0), ("b", 2, 10, 0, 0), ("c", 3, 0, 0, 0)], now=150)
    assert later["a"] == Peer(1, 5, 3, 0, 100)
    assert (later["b"].since, later["c"].since) == (150, 150)
    assert silent_peers(later, now=200, patience=100).keys() == {"a"}
    # Another life of the same name is not silent because the one before was.
    assert update_peers(later, [("a", 4, 5, 0, 0)], now=210)["a"].since == 210


# --- one ledger ------------------------------------------------------------------------------


async def test_two_writers_make_one_ledger_without_gaps(worker: Opener, tmp_path: Path) -> None:
    one, two = worker("one"), worker("two")
    await shared(one, two)

    async def fill(store: PostgresStore, start: int) -> None:
        for n in range(start, start + 30):
            runs = await accept_events(
                store, *(event(n * 10 + m, subject=f"k{m}") for m in range(5))
            )
            for run in of_shard(store, runs):
                assert (
                    await store.steps.commit(closing_step(store, run))
                ).status is CommitStatus.COMMITTED

    await asyncio.gather(fill(one, 0), fill(two, 100))
    assert one.ledger.last_seq() == two.ledger.last_seq()
    assert [seq for seq, *_ in one.ledger.walk()] == list(range(1, one.ledger.last_seq() + 1))
    assert one.tables.find_wrong_rows() == []  # what people look at is what the entries come to
    for name in ("one", "two"):
        report = verify_store(one.ledger, VERIFIER, tmp_path / name / "witness.log")
        assert report.findings == ()
        assert report.size == one.ledger.last_seq()


async def test_the_same_event_at_two_workers_is_accepted_once(worker: Opener) -> None:
    one, two = worker("one"), worker("two")
    events = [event(n) for n in range(50)]
    answers = await asyncio.gather(
        *(
            accept_events(store, *events[at : at + 10])
            for at in range(0, 50, 10)
            for store in (one, two)
        )
    )
    assert sum(len(runs) for runs in answers) == 50
    assert one.tables.event_counts() == (50, 0)


async def test_64_reservations_at_two_workers_hold_the_ceiling(worker: Opener) -> None:
    one, two = worker("one"), worker("two")
    await shared(one, two)
    runs = await accept_events(one, *(event(n, subject=f"k{n}") for n in range(64)))
    limits = (BudgetCap("agent", "tokens", "day", 100), BudgetCap("fleet", "tokens", "hour", 150))
    asks = [
        store.steps.commit(closing_step(store, run, spend={"tokens": 7}, limits=limits))
        for run in runs
        for store in (one, two)
        if store.cluster.lease_epoch(run) is not None
    ]
    assert len(asks) == 64
    answers = [answer.status for answer in await asyncio.gather(*asks)]
    assert answers.count(CommitStatus.COMMITTED) == 100 // 7
    assert answers.count(CommitStatus.OVER_BUDGET) == 64 - 100 // 7
    assert sum(amount for *_, amount in two.spend.by_minute(0)) == 98


async def test_a_worker_of_another_key_is_refused(worker: Opener) -> None:
    worker("one")
    with pytest.raises(BadStore, match="signs with another key"):
        worker("two", Ed25519PrivateKey.generate())
    worker("three").close()


# --- publications and stops ------------------------------------------------------------------


def bundle(text: str) -> Bundle:
    return Bundle.of({"vedette/gateway/decide.rego": text.encode()})


async def test_nothing_older_commits_at_any_worker_after_a_publication(worker: Opener) -> None:
    one, two = worker("one"), worker("two")
    await shared(one, two)
    runs = of_shard(two, await accept_events(one, *(event(n, subject=f"k{n}") for n in range(20))))
    older = closing_step(two, runs[0])
    await one.commands.publish(bundle("package a"), [Draft("policy.published")])
    assert (await two.steps.commit(older)).status is CommitStatus.FENCED_POLICY
    await one.commands.stop(Draft("stop.set", {"what": "all:"}), "all", "", True)
    stopped = closing_step(two, runs[0], stop_epoch=0, policy_rev=1)
    assert (await two.steps.commit(stopped)).status is CommitStatus.FENCED_STOP
    assert (await two.steps.commit(closing_step(two, runs[0]))).status is CommitStatus.COMMITTED


async def test_what_was_made_from_what_is_live_no_more_is_not_published(worker: Opener) -> None:
    """A bundle edited at one worker while another publishes, also under a number that is free."""
    one, two = worker("one"), worker("two")
    await shared(one, two)
    live = await one.commands.publish(
        bundle("package a"), [Draft("policy.published")], expected_revision=0
    )
    with pytest.raises(WriteConflict):
        await two.commands.publish(
            bundle("package b"), [Draft("policy.published")], number=9, expected_revision=0
        )
    assert one.policy.live_revision() == (live, bundle("package a").digest)
    assert (
        await two.commands.publish(bundle("package b"), [], number=9, expected_revision=live) == 9
    )


async def test_a_publication_waits_until_no_other_worker_calls_under_the_old(
    worker: Opener,
) -> None:
    one, two = worker("one"), worker("two")
    await shared(one, two)
    two.cluster.adopt(0, 0)
    epoch = next(iter(two.cluster.leases.epochs.values()))
    assert two.cluster.is_lease_valid(epoch)
    calling = [0]  # a call is on its way that started under revision 0
    two.cluster.leases.count_in_flight = lambda policy_rev: sum(
        1 for rev in calling if rev < policy_rev
    )
    number = await one.commands.publish(bundle("package a"), [Draft("policy.published")])
    published = asyncio.create_task(one.cluster.wait_for_barrier())
    # The other's thread has seen it: nothing starts there, though its loop has done nothing yet.
    await until(lambda: not two.cluster.is_lease_valid(epoch))
    await asyncio.sleep(0.3)
    assert not published.done()
    assert one.cluster.lagging_workers == [two.cluster.leases.worker]
    calling.clear()
    await asyncio.wait_for(published, 5)
    assert one.cluster.lagging_workers == []
    # It goes on once it has taken the revision up.
    assert not two.cluster.is_lease_valid(epoch)
    two.cluster.adopt(number, 0)
    assert two.cluster.is_lease_valid(epoch)


async def test_a_publication_does_not_wait_for_the_dead(worker: Opener) -> None:
    one, two = worker("one"), worker("two")
    await shared(one, two)
    hang(two)
    began = time.monotonic()
    await one.commands.publish(bundle("package a"), [Draft("policy.published")])
    await asyncio.wait_for(one.cluster.wait_for_barrier(), 20)
    took = time.monotonic() - began
    # Not before its lease has run out, by its own clock; two's is silent from here on.
    assert took > LEASE_US / 1e6 * 0.5
    assert not two.cluster.leases.is_lease_valid(next(iter(two.cluster.leases.epochs.values())))


async def test_alone_nobody_is_waited_for(worker: Opener) -> None:
    one = worker("one")
    await one.commands.publish(bundle("package a"), [Draft("policy.published")])
    await asyncio.wait_for(one.cluster.wait_for_barrier(), 1)


# --- what a server may do to us --------------------------------------------------------------


def cut_off(url: str, like: str) -> int:
    """End the sessions of a name, as a failing server or network does."""
    with psycopg.connect(url, autocommit=True) as connection:
        sql = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name LIKE %s AND datname = current_database()"
        )
        return len(connection.execute(sql, (f"vedette {like}%",)).fetchall())


async def test_lost_connections_fail_what_was_under_way_and_come_back(
    worker: Opener, url: str
) -> None:
    store = worker()
    (run,) = await accept_events(store, event(1))
    assert cut_off(url, "") == 3
    answers: list[object] = []
    for number in range(2, 5):
        answers += await asyncio.gather(accept_events(store, event(number)), return_exceptions=True)
    assert isinstance(answers[0], StoreFailed)
    assert not isinstance(answers[-1], BaseException)
    assert store.runs.run(run.id) == run
    await until(lambda: store.cluster.lease_epoch(run) is not None)
    assert (await store.steps.commit(closing_step(store, run))).status is CommitStatus.COMMITTED
    epoch = store.cluster.lease_epoch(run)
    await asyncio.sleep(2 * LEASE_US / 1e6)
    assert store.cluster.lease_epoch(run) == epoch  # and it beats on


@pytest.mark.parametrize("held", [False, True], ids=["walk", "snapshot"])
def test_a_session_that_ends_while_it_is_read_is_the_stores_failure(url: str, held: bool) -> None:
    """Not the vendor's: whoever reads looks again later, and no worker ends by it."""
    reading = PostgresDatabase(url, name="vedette reader", patience_s=1)

    def read() -> None:
        with reading.snapshot() if held else nullcontext():
            rows = reading.iterate_rows("SELECT generate_series(1, 100000)")
            assert next(rows) == (1,)
            assert cut_off(url, "reader") == 1
            for _ in rows:
                pass

    with pytest.raises(StoreFailed, match="while it was read"):
        read()
    assert reading.rows("SELECT 1") == [(1,)]
    reading.close()


async def test_what_the_line_reads_outlasts_a_server_that_is_away(worker: Opener, url: str) -> None:
    store = worker()
    (run,) = await accept_events(store, event(1))
    other = server(fsync=False).url("postgres")
    name = url.rpartition("/")[2]
    with psycopg.connect(other, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname=%s", (name,)
        )
        back = threading.Timer(
            0.4, connection.execute, (f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode(),)
        )
        back.start()
        assert store.runs.run(run.id) == run
        back.join()
    await until(lambda: store.cluster.lease_epoch(run) is not None)
    await until(lambda: store.cluster.leases.is_lease_valid(closing_step(store, run).epoch))


@pytest.mark.parametrize("how", ["cut", "hung"])
async def test_a_server_that_is_not_heard_of_takes_little_of_who_reads(url: str, how: str) -> None:
    """The network drops all that is sent, or all is taken and nothing is answered."""
    port = int(url.rpartition(":")[2].partition("/")[0])
    link = Link(port)
    await link.open()
    past = url.replace(f":{port}/", f":{link.port}/")
    reading = await asyncio.to_thread(
        partial(PostgresDatabase, past, name="vedette reader", patience_s=1, answer_timeout_s=0.5)
    )
    assert await asyncio.to_thread(reading.rows, "SELECT 1") == [(1,)]
    if how == "cut":
        link.cut(loses=True)
    else:
        link.stall()
    began, waited = time.monotonic(), 0.0
    while time.monotonic() < began + 7:
        asked = time.monotonic()
        with pytest.raises(StoreFailed):
            await asyncio.wait_for(asyncio.to_thread(reading.rows, "SELECT 2"), 6)
        waited += time.monotonic() - asked
        await asyncio.sleep(0.05)
    assert waited < 5, "no more than twice the first time"
    link.resume()
    end = time.monotonic() + 6
    while time.monotonic() < end:
        with suppress(StoreFailed):
            assert await asyncio.to_thread(reading.rows, "SELECT 3") == [(3,)]
            break
        await asyncio.sleep(0.05)
    else:
        raise AssertionError("it is not looked for again")
    await asyncio.to_thread(reading.close)
    link.close()
    await asyncio.sleep(0.01)


async def test_a_statement_that_takes_too_long_is_no_server_that_is_away(url: str) -> None:
    """Who asks for much is refused; whoever asks next is answered at once."""
    reading = await asyncio.to_thread(
        partial(PostgresDatabase, url, name="vedette reader", patience_s=1, answer_timeout_s=0.5)
    )
    with pytest.raises(StoreFailed, match="did not answer a statement: no answer within"):
        await asyncio.to_thread(reading.rows, "SELECT pg_sleep(3)")
    assert await asyncio.to_thread(reading.rows, "SELECT 1") == [(1,)]
    await asyncio.to_thread(reading.close)


async def test_a_group_whose_session_ends_leaves_nothing(worker: Opener, url: str) -> None:
    store = worker()
    (run,) = await accept_events(store, event(1))
    head = store.ledger.last_seq()

    def half() -> None:
        store.parts.commands.append_entries([Draft("fleet.loaded")])
        store.parts.ledger.flush()
        assert cut_off(url, "writer") == 1

    with pytest.raises(StoreFailed):
        await store.writer.submit(half)
    assert not store.steps.is_ready
    assert store.ledger.last_seq() == head
    assert (await store.steps.commit(closing_step(store, run))).last == head + 1
    assert store.steps.is_ready


async def test_text_that_the_server_cannot_hold_fails_its_own_item_only(worker: Opener) -> None:
    store = worker()
    runs = await accept_events(store, *(event(n) for n in range(3)))
    answers = await asyncio.gather(
        store.steps.commit(closing_step(store, runs[0])),
        store.steps.commit(closing_step(store, runs[1], rows=[RowWrite("c", "a\0b", {"x": 1})])),
        accept_events(store, event(9, subject="half \ud800")),
        store.steps.commit(closing_step(store, runs[2])),
        return_exceptions=True,
    )
    assert [isinstance(answer, BaseException) for answer in answers] == [False, True, True, False]
    assert store.steps.is_ready


def test_values_are_written_as_the_server_reads_them(url: str) -> None:
    database = PostgresDatabase(url, name="test")
    text = "O'Brien \\ $$ %s \n ü 🎈 --; DROP TABLE entry"
    for value in (None, 0, -(2**63), 2**63 - 1, True, b"", b"\x00\xff'", "", text):
        ((found,),) = database.rows(f"SELECT {sql_literal(value)}")
        assert found == value
    with pytest.raises(psycopg.DataError):
        sql_literal("a\0b")
    with pytest.raises(psycopg.DataError):
        sql_literal("\udfff")
    with pytest.raises(psycopg.DataError):
        sql_literal(1.5)
    database.close()


# --- opening ---------------------------------------------------------------------------------


def test_who_reads_only_writes_nothing(worker: Opener, url: str) -> None:
    with pytest.raises(BadStore, match="no store here"):
        PostgresReader(url)
    worker()
    store = PostgresReader(url)
    assert store.ledger.last_seq() == 0
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        store.database.execute("DELETE FROM segment")
    store.close()


def test_a_store_of_another_version_is_refused(worker: Opener, url: str) -> None:
    worker().close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE meta SET value='99' WHERE name='schema'")
    with pytest.raises(BadStore, match="schema 99"):
        worker()
    with pytest.raises(BadStore, match="schema 99"):
        PostgresReader(url)


def test_the_settings_say_where_the_store_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "vedette.toml"
    head = 'fleet = "harbour"\n[store]\nkind = "postgresql"\n'
    file.write_text(head + 'url_env = "SOME_DATABASE"\nlease = "2s"\n')
    plan = load_settings(file).store
    assert (plan.kind, plan.lease_us) == ("postgresql", 2_000_000)
    monkeypatch.delenv("SOME_DATABASE", raising=False)
    with pytest.raises(BadFleet, match="SOME_DATABASE is not set"):
        plan.url()
    monkeypatch.setenv("SOME_DATABASE", "postgresql://here/x")
    assert plan.url() == "postgresql://here/x"
    (tmp_path / "secret").write_text("postgresql://there/y\n")
    file.write_text(head + 'url_file = "secret"\n')
    assert load_settings(file).store.url() == "postgresql://there/y"
    for wrong, told in (
        ("", "needs its URL"),
        ('url_env = "A"\nurl_file = "b"\n', "needs its URL"),
        ('url_env = "A"\nlease = "10ms"\n', "too short a lease"),
        ('url_env = "A"\nurl = "postgresql://u:p@h/d"\n', "url"),
    ):
        file.write_text(head + wrong)
        with pytest.raises(BadFleet, match=told):
            load_settings(file)


def test_no_server_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        PostgresDatabase("postgresql://127.0.0.1:1/nothing", name="test")
    with pytest.raises(BadFleet, match="no address"):
        PostgresDatabase("not = a = url", name="test")


def test_without_postgresql_a_person_skips_and_ci_fails() -> None:
    with pytest.raises(pytest.skip.Exception):
        find_bin({"PATH": ""})
    with pytest.raises(pytest.fail.Exception, match="Mend"):
        find_bin({"PATH": "", "CI": "1"})
