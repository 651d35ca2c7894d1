"""`vedette migrate`: all of a SQLite store in PostgreSQL, verified, or nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.older_store import turn_back_file
from tests.pg import server

from vedette.adapters.ledger_export import verify_store
from vedette.adapters.signing_keys import (
    KeyFolder,
    format_verifier_key,
    next_key_files,
    open_ledger_key,
    read_signing_key,
)
from vedette.app.store_copy import CopyResult, copy_store, list_copied_tables
from vedette.config.settings import Settings
from vedette.domain.base import failpoint
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadCommand, BadStore, StoreBusy
from vedette.domain.bundle import Bundle
from vedette.domain.decision import Decision
from vedette.domain.effect import RowWrite
from vedette.domain.entry import Body, Draft
from vedette.domain.erasure import ErasureTarget
from vedette.domain.identity import Principal
from vedette.domain.memory import Candidate
from vedette.domain.run import CommitStatus
from vedette.ledger.merkle import SigningKey
from vedette.store.postgres import PostgresReader, PostgresStore, has_store
from vedette.store.postgres.database import PostgresDatabase
from vedette.store.sqlite import SqliteReader, SqliteStore
from vedette.testing.clock import ManualClock
from vedette.testing.sample_steps import (
    accept_events,
    agents_of,
    closing_step,
    decision_entry,
    entry,
    event,
    held_action,
    step,
)

NAME = "vedette/harbour"
WHO = Principal.owner("kim")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(Settings.of(tmp_path, "harbour"), state=tmp_path / "state")


@pytest.fixture
def url() -> str:
    return server(fsync=False).fresh()


def key_of(settings: Settings) -> SigningKey:
    return open_ledger_key(settings.state, NAME, lambda: None)


def open_sqlite(settings: Settings) -> SqliteStore:
    settings.state.mkdir(exist_ok=True)
    return SqliteStore(
        settings.state, fleet="harbour", key=key_of(settings), key_name=NAME,
        now_us=ManualClock().now_us, synchronous="OFF",
    )  # fmt: skip


def order(kind: str, **fields: object) -> Draft:
    return Draft(
        kind, {"actor": "person:kim", **fields}, body=Body(canonical_json({"reason": "why"}))
    )


async def filled(settings: Settings) -> tuple[str, str]:
    """Make a store with something in every corner; return (held action, erased event)."""
    store = open_sqlite(settings)
    bundle = Bundle.of({"a.rego": b"package a"})
    await store.commands.publish(bundle, [order("policy.published", bundle=bundle.digest)])
    one, two, three = await accept_events(store, *(event(n, subject=f"k{n % 2}") for n in range(3)))
    row = held_action(one)
    turn = entry(one, "turn.reasoned", turn=1, text="what was proposed")
    waits = decision_entry(
        one, row, Decision("hold", "impact.high", ("impact.high",), "approval"), back=1
    )
    proposed = Candidate("inbox", "inbox", "text", (), "watcher", one.id, one.event)
    await store.steps.commit(
        step(
            store, one, turn, waits, entry(one, "memory.proposed", back=2, text="remember this"),
            actions=[row], state="waiting", waits="approval", wake_us=2**50, turn=1,
            rows=[RowWrite("incidents", "pump", {"state": "open"})], spend={"actions": 1},
            checkpoint=(one.key, one.position, b"judge \x00 state"), candidates=[proposed],
        )
    )  # fmt: skip
    await store.steps.commit(closing_step(store, two))
    await store.commands.erase(
        ErasureTarget("event", two.event),
        order("body.erased"),
        command="c1",
        stateless=agents_of(store),
    )
    await store.steps.accept([], ("csv:a", "17"))
    await store.commands.stop(order("stop.set", what="agent:other"), "agent", "other", True)
    assert (await store.steps.commit(closing_step(store, three))).status is CommitStatus.COMMITTED
    store.close()
    return row.id, two.event


async def copied(settings: Settings, url: str) -> CopyResult:
    return await copy_store(settings, url, WHO, "we grow")


async def test_everything_is_there_and_the_proof_goes_on(settings: Settings, url: str) -> None:
    action, erased = await filled(settings)
    done = await copied(settings, url)
    old, new = SqliteReader(settings.state), PostgresReader(url)
    target: Any = new.database
    for name in list_copied_tables():
        # The tree lies with the newest head alone, and that is the copy's own by now.
        names = [column for column in target.columns_of(name) if column != "frontier"]
        columns = ", ".join(f'"{column}"' for column in names)
        beyond = {"segment": f" WHERE last<={done.size}", "place": f" WHERE last<={done.size}"}
        beyond |= {"rare_entry": f" WHERE seq<={done.size}"}
        beyond |= {"checkpoint": f" WHERE size<={done.size}"}
        beyond |= {"meta": " WHERE name NOT IN ('schema', 'first_key', 'instance', 'orders')"}
        sql = f'SELECT {columns} FROM "{name}"{beyond.get(name, "")}'
        assert sorted(new.database.rows(sql), key=repr) == sorted(
            old.database.rows(sql), key=repr
        ), name
        assert done.rows[name] == len(old.database.rows(f'SELECT 1 FROM "{name}"')) or (
            name == "meta"
        )
    key = (settings.state / "ledger.pub").read_text().strip()
    report = verify_store(new.ledger, key, settings.state / "witness.log")
    assert (report.findings, report.size) == ((), old.ledger.last_seq() + 1)
    assert [body for *_, body in new.ledger.walk(("memory.proposed",))] == [
        b'{"text":"remember this"}'
    ]
    assert new.runs.event(erased) is None
    old.close()
    new.close()
    # The fleet goes on there: the hold is answered, its epoch grows, the stop stands.
    store = PostgresStore(
        url, settings.state, fleet="harbour", key=key_of(settings), key_name=NAME,
        now_us=ManualClock().now_us,
    )  # fmt: skip
    draft = order("hold.approved", action=action, agent="watcher", tool="valve.close")
    row = await store.commands.transition_hold(
        action, "approved", draft, approver="person:kim", until_us=9
    )
    assert row.hold == "approved"
    assert store.policy.stop_scopes() == [("agent", "other")]
    assert store.cluster.epoch > 1
    assert store.runs.source_position("csv:a") == "17"
    store.close()


async def test_a_rotation_that_was_broken_off_is_ended_by_the_copy(
    settings: Settings, url: str
) -> None:
    await filled(settings)
    store = open_sqlite(settings)
    key, line = KeyFolder(settings.state, NAME).prepare()
    await store.maintenance.rotate(key, line, order("key.rotated"))
    store.close()
    await copied(settings, url)
    assert format_verifier_key(NAME, read_signing_key(settings.state / "ledger.key")) == line
    assert next_key_files(settings.state) == []


async def test_the_old_file_is_not_run_again_by_mistake(settings: Settings, url: str) -> None:
    await filled(settings)
    open_sqlite(settings).close()  # the control
    await copied(settings, url)
    with pytest.raises(BadStore, match="the witness saw"):
        open_sqlite(settings)


@pytest.fixture
def broken_off() -> Iterator[None]:
    """Break off where all is written and nothing committed."""

    def at(point: str) -> None:
        if point == "store-copy:mid":
            raise KeyboardInterrupt

    before, failpoint.hook = failpoint.hook, at
    yield
    failpoint.hook = before


@pytest.mark.usefixtures("broken_off")
async def test_a_copy_that_is_broken_off_leaves_nothing(settings: Settings, url: str) -> None:
    await filled(settings)
    with pytest.raises(KeyboardInterrupt):
        await copied(settings, url)
    failpoint.hook = None
    assert has_store(url)
    database = PostgresDatabase(url, name="test")
    for name in list_copied_tables():
        assert len(database.rows(f'SELECT * FROM "{name}"')) == (name == "meta"), name
    database.close()
    await copied(settings, url)


async def test_a_database_that_holds_a_store_is_refused(settings: Settings, url: str) -> None:
    await filled(settings)
    done = await copied(settings, url)
    with pytest.raises(BadCommand, match="holds a store already"):
        await copied(settings, url)
    store = PostgresReader(url)
    assert store.ledger.last_seq() == done.size + 1
    store.close()


async def test_a_running_fleet_is_not_copied(settings: Settings, url: str) -> None:
    await filled(settings)
    store = open_sqlite(settings)
    with pytest.raises(StoreBusy):
        await copied(settings, url)
    store.close()
    assert not has_store(url)


async def test_a_store_that_does_not_verify_is_not_copied(settings: Settings, url: str) -> None:
    await filled(settings)
    import apsw

    with apsw.Connection(str(settings.state / "store.db")) as connection:
        connection.execute("UPDATE rare_entry SET kind='another' WHERE kind='memory.proposed'")
    connection.close()
    with pytest.raises(BadStore, match="does not verify"):
        await copied(settings, url)
    database = PostgresDatabase(url, name="test")
    assert database.rows("SELECT COUNT(*) FROM segment") == [(0,)]
    database.close()


async def test_an_older_store_is_upgraded_first(settings: Settings, url: str) -> None:
    await filled(settings)
    path = turn_back_file(settings.state)
    before = path.read_bytes()
    with pytest.raises(BadStore, match="vedette upgrade") as refused:
        await copied(settings, url)
    assert refused.value.code == "older-store"
    assert path.read_bytes() == before
    assert not has_store(url)


async def test_without_a_store_there_is_nothing_to_copy(settings: Settings, url: str) -> None:
    with pytest.raises(BadStore, match="no store here"):
        await copied(settings, url)
