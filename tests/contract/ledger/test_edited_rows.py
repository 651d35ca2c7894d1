"""Whoever edits the store is found: each column of each table, on both stores."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import orjson
import pytest
from tests.contract.ledger.test_reconstruct_stores import START, opened, three_hours
from tests.contract.ledger.test_reconstruct_stores import plan as plan

from vedette.adapters.ledger_export import verify_store
from vedette.config.settings import StorePlan
from vedette.domain.base.errors import BadPolicy
from vedette.domain.bundle import Bundle
from vedette.domain.effect import Outcome
from vedette.domain.entry import Draft
from vedette.domain.ports.sources import Refused
from vedette.ledger.verify import Report
from vedette.policy.replay import replay
from vedette.store.row_check import PROVED_TABLES, UNCHECKED, find_mismatches
from vedette.store.schema import TABLES
from vedette.store.sqlite import SqliteReader
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness, TrustingStage
from vedette.testing.toy_fleet import DENY_TOOL, World, job, note_proposal, send_proposal, toy_fleet

# Of the schema itself, so that a new column is either found or listed.
_TABLE = re.compile(r"CREATE TABLE (\w+)\((.*?)\n?\) STRICT", re.DOTALL)


def columns() -> list[tuple[str, str, str]]:
    text = re.sub(r"--[^\n]*", "", TABLES)
    found = []
    for table, inside in _TABLE.findall(text):
        for part in re.split(r",(?![^(]*\))", inside):
            words = part.split()
            if words and words[0] not in ("PRIMARY",) and words[1] in ("INTEGER", "TEXT", "BLOB"):
                found.append((table, words[0], words[1]))
    return found


COLUMNS = columns()
EDITED = [
    (table, column, kind) for table, column, kind in COLUMNS
    if table not in PROVED_TABLES and (table, column) not in UNCHECKED
]  # fmt: skip


def test_each_column_of_the_schema_is_found_or_listed_with_its_reason() -> None:
    assert {table for table, _, _ in COLUMNS} >= {"segment", "run", "action", "policy", "view_base"}
    assert len(COLUMNS) > 110
    names = {(table, column) for table, column, _ in COLUMNS}
    assert UNCHECKED.keys() <= names
    assert all(len(reason) > 20 for reason in UNCHECKED.values())
    assert {("action", "hold"), ("action", "approver"), ("policy", "digest")} <= {
        (table, column) for table, column, _ in EDITED
    }


class CountingStore:
    """A database that counts what it is asked."""

    def __init__(self, database: Any) -> None:
        self.database, self.times = database, 0

    def __getattr__(self, name: str) -> Any:
        self.times += name in ("rows", "each")
        return getattr(self.database, name)


async def test_what_an_audit_asks_does_not_grow_with_rows_of_equal_content(
    tmp_path: Path, plan: StorePlan
) -> None:
    async with opened(tmp_path, plan, World(), ManualClock(START)) as fleet:
        times = []
        for upto in (4, 40):
            events = [
                job(at := f"{upto}-{number}", note_proposal("open"), key=at)
                for number in range(upto)
            ]
            await fleet.send(*events)
            await fleet.wait_until_idle()
            store = CountingStore(fleet.app.store.database)
            assert list(find_mismatches(store)) == []
            times.append(store.times)
        assert len(fleet.app.store.database.rows('SELECT key FROM "row"')) >= 44
        assert times[0] == times[1]
        # The control: a row under a key that none of them wrote it under.
        assert edit(fleet, "UPDATE \"row\" SET key='another' WHERE key='40-3'") == 1
        (odd,) = fleet.app.store.ledger.row_mismatches()
        assert (odd.table, odd.column, odd.actual) == ("row", "key", "another")


def verified(fleet: FleetHarness, folder: Path, **more: Any) -> Report:
    key = (folder / "state" / "ledger.pub").read_text().strip()
    return verify_store(fleet.app.store.ledger, key, folder / "state" / "witness.log", **more)


async def laid(fleet: FleetHarness, clock: ManualClock) -> None:
    """Let there be a row in each table that an edit is tried in."""
    await three_hours(fleet, clock)
    await fleet.send(job("5", send_proposal("five", tool="big.send")))
    await fleet.wait_until_idle()
    refused = Refused("test", "no event", b"x", event="evt_0", subject="k")
    await fleet.app.store.steps.accept([refused], None)
    await fleet.app.commands.stop(fleet.order("x"), agent="worker", for_us=10**9)
    await fleet.app.commands.budget_raise(fleet.order("x"), 10**9, unit="actions", by=5)


@contextmanager
def edited(fleet: FleetHarness) -> Iterator[Any]:
    """Open the database that a running fleet writes to, in one transaction."""
    database = fleet.app.store.parts.database
    database.begin()
    try:
        yield database
    finally:
        database.commit()


def edit(fleet: FleetHarness, sql: str, *values: Any) -> int:
    with edited(fleet) as database:
        return int(database.execute(sql, values))


def other(value: Any, kind: str) -> Any:
    if kind == "INTEGER":
        return (value or 0) + 1_000_000_007
    if kind == "BLOB":
        # Content is JSON: another name or text in it, not white space around it.
        return bytes(value).replace(b"e", b"f", 1) if value else b"x"
    return f"{value or ''}x"


async def test_every_edit_is_found_and_named_and_nothing_before_it(
    tmp_path: Path, plan: StorePlan
) -> None:
    clock = ManualClock(START)
    async with opened(tmp_path, plan, World(), clock) as fleet:
        await laid(fleet, clock)
        store = fleet.app.store
        assert verified(fleet, tmp_path).findings == ()
        assert list(store.ledger.row_mismatches()) == []
        missed: list[tuple[str, ...]] = []
        reported: set[str] = set()
        for table, column, kind in EDITED:
            name = f'"{table}"'
            rows = store.database.rows(f"SELECT * FROM {name}")
            assert rows, table
            keys = [c for t, c, _ in COLUMNS if t == table]
            at = keys.index(column)
            # Of several rows the last: what is still open, or newest.
            row = max(rows, key=lambda one: (one[at] is not None, str(one)))
            was = row[at]
            values = [(k, v) for k, v in zip(keys, row, strict=False) if v is not None]
            where = " AND ".join(f"{k}=?" for k, _ in values)
            given = [v for _, v in values]
            new = other(was, kind)
            assert edit(fleet, f"UPDATE {name} SET {column}=? WHERE {where}", new, *given) == 1
            odd = list(store.ledger.row_mismatches())
            # What finds a row looks at all of them: that it is reported is asked once for each.
            report = table in reported or not verified(fleet, tmp_path).ok
            reported.add(table)
            if not odd or not report:
                missed.append((table, column))
            elif table not in {one.table for one in odd}:
                missed.append((table, column, str(odd[0])))
            back = [(k, new if k == column else v) for k, v in values]
            if was is None:
                back.append((column, new))
            where = " AND ".join(f"{k}=?" for k, _ in back)
            restored = edit(
                fleet, f"UPDATE {name} SET {column}=? WHERE {where}", was, *(v for _, v in back)
            )
            assert restored == 1, (table, column)
        assert missed == []
        assert list(store.ledger.row_mismatches()) == []


FORGED = {
    "approved by somebody": (
        "UPDATE action SET hold='approved', approver='person:the-cfo', until_us=9e15 "
        "WHERE hold='open'", "action", "hold",
    ),
    "done": ("UPDATE action SET effect='done' WHERE hold='open'", "action", "effect"),
    "another hold's answer": (
        "UPDATE action SET approver='person:the-cfo' WHERE hold='used'", "action", "approver",
    ),
    "no hold any more": (
        "UPDATE action SET hold=NULL, decided='permit' WHERE hold='open'", "action", "hold",
    ),
    "stop lifted": ("DELETE FROM stop", "stop", "*"),
    "run gone": ("DELETE FROM run WHERE state='waiting'", "run", "*"),
    "run ended": ("UPDATE run SET state='done' WHERE state='waiting'", "run", "state"),
    "event gone": ("DELETE FROM event WHERE seq=(SELECT MAX(seq) FROM event)", "event", "*"),
    "policy gone": ("DELETE FROM policy", "policy", "*"),
    "bundle gone": ("DELETE FROM bundle", "bundle", "digest"),
    "action gone": ("DELETE FROM action WHERE hold='open'", "action", "*"),
}  # fmt: skip


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of a fleet that did all of it and ended; each forgery has a copy."""
    folder = tmp_path_factory.mktemp("kept")

    async def play() -> None:
        clock = ManualClock(START)
        async with opened(folder, StorePlan(), World(), clock) as fleet:
            await laid(fleet, clock)

    asyncio.run(play())
    return folder / "state"


@contextmanager
def forged(kept: Path, folder: Path, sql: str, *values: Any) -> Iterator[SqliteReader]:
    """A copy of a store in which somebody changed a row, opened to be looked at."""
    state = shutil.copytree(kept, folder / "state")
    connection = apsw.Connection(str(state / "store.db"))
    connection.execute(sql, values)
    assert connection.changes() >= 1
    connection.close()
    store = SqliteReader(state)
    try:
        yield store
    finally:
        store.close()


def codes(store: SqliteReader, folder: Path) -> set[str]:
    key = (folder / "state" / "ledger.pub").read_text().strip()
    report = verify_store(store.ledger, key, folder / "state" / "witness.log")
    return {finding.code for finding in report.findings}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_row_is_named(name: str, tmp_path: Path, kept: Path) -> None:
    sql, table, column = FORGED[name]
    with forged(kept, tmp_path, sql) as store:
        assert (table, column) in {(odd.table, odd.column) for odd in store.ledger.row_mismatches()}
        assert codes(store, tmp_path)


async def test_another_bundle_under_its_digest_is_found(tmp_path: Path, plan: StorePlan) -> None:
    clock = ManualClock(START)
    async with opened(tmp_path, plan, World(), clock) as fleet:
        await laid(fleet, clock)
        changed = edit(
            fleet, "UPDATE bundle SET files=?", b'{"a.rego":"package a\\n\\nok := true\\n"}'
        )
        assert changed == 1
        report = verified(fleet, tmp_path)
        assert {finding.code for finding in report.findings} == {"policy-mismatch"}
        assert Bundle.of({"a.rego": b"package a\n\nok := true\n"}).digest[:12] in str(
            next(iter(fleet.app.store.ledger.row_mismatches()))
        )


async def test_an_edited_bundle_of_a_running_fleet_is_neither_signed_nor_published(
    tmp_path: Path,
) -> None:
    """While it runs nothing decides by the row; the next to read it must not take it for policy."""
    async with opened(tmp_path, StorePlan(), World(), ManualClock(START)) as fleet:
        await fleet.send(job("1", send_proposal("one")))
        await fleet.wait_until_idle()
        app = fleet.app
        first = app.store.policy.bundle_files(app.rollout.live.digest)
        assert first is not None
        (fleet.policies / "vedette/denies/more.rego").write_text(DENY_TOOL.format("bell.ring"))
        assert (await fleet.apply_policy(fleet.policies))["ok"]
        edited = {path: raw.decode().replace("bell.ring", "x") for path, raw in first.items()}
        for files in (orjson.dumps(edited), b"[]", b"no json"):
            assert edit(fleet, "UPDATE bundle SET files=?", files) == 2
            edit(fleet, "DELETE FROM meta WHERE name='policy_archive'")
            distributor = app.rollout.distributor
            assert distributor is not None
            with pytest.raises(BadPolicy, match="was changed"):
                await distributor.repair()
            assert app.store.meta("policy_archive") is None
            for verb, args in (
                ("mode", {"agent": "worker", "mode": "ask"}), ("policy_rollback", {"number": 1}),
            ):  # fmt: skip
                with pytest.raises(BadPolicy, match="was changed"):
                    await fleet.submit_confirmed(verb, **args)
            report = replay(app.store, TrustingStage().load)
            assert report.unreplayable == {"bad bundle": report.decisions}
        # Another policy can be published all the same; what it loosens is not known, so it asks.
        (fleet.policies / "vedette/denies/more.rego").unlink()
        done = await fleet.apply_policy(fleet.policies)
        assert done["ok"]
        assert done["loosens"] == ["the live policy's bytes are not in the store"]
        # What is published again is right again: its bytes come from who publishes it.
        assert app.store.policy.bundle_files(app.rollout.live.digest) == first
        assert edit(fleet, "UPDATE bundle SET files=?", b"[]") == 2
        assert not (await fleet.apply_policy(fleet.policies))["changed"]
        assert app.store.policy.bundle_files(app.rollout.live.digest) == first


@pytest.mark.parametrize(
    ("name", "forged_value"),
    [
        ("origins", {"/text": "trusted", "/to": "trusted"}),
        ("sources", {"/text": "/charter/desk"}),
        ("readers", {"/text": ["person:anybody"]}),
        ("confidence", 1),
        ("args", {"text": "another"}),
    ],
)
def test_what_an_open_hold_is_decided_by_again_is_what_was_first_asked(
    tmp_path: Path, kept: Path, name: str, forged_value: Any
) -> None:
    """After a restart an action is made again of its record: an edit of that is found."""
    with forged(kept, tmp_path, "UPDATE meta SET value=value") as store:
        assert list(store.ledger.row_mismatches()) == []
        ((id, raw),) = store.database.rows("SELECT id, record FROM action WHERE hold='open'")
    record = orjson.dumps({**orjson.loads(raw), name: forged_value})
    sql = "UPDATE action SET record=? WHERE id=?"
    with forged(kept, tmp_path / "more", sql, record, id) as store:
        assert "row-mismatch" in codes(store, tmp_path / "more")


@pytest.mark.parametrize(("kind", "decided"), [("holds", "hold"), ("denies", "deny")])
async def test_a_row_that_was_decided_again_after_a_try_is_accused_of_nothing(
    tmp_path: Path, kind: str, decided: str
) -> None:
    """The entry says that nobody knows whether it happened; the row, that it is not to be."""
    world, clock = World(), ManualClock(START)
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        world.answer = lambda *_, **__: Outcome("retry")
        event = job("1", send_proposal("hello"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        rule = {
            "holds": 'package vedette.holds\n\nstops contains "house" if true\n',
            "denies": DENY_TOOL.format("wire.send"),
        }[kind]
        (fleet.policies / "vedette" / kind).mkdir(exist_ok=True)
        (fleet.policies / "vedette" / kind / "house.rego").write_text(rule)
        await fleet.apply_policy(fleet.policies)
        for _ in range(2):  # a denial is looked at again before it is the last word
            clock.advance(3_700_000_000)
            await fleet.wait_until_idle()
        (row,) = fleet.actions(event)
        assert row.decided == decided
        assert len(fleet.entries("effect.unknown")) == 1
        assert list(fleet.app.store.ledger.row_mismatches()) == []
        for forged in ("intended", "unknown", "done"):
            assert edit(fleet, "UPDATE action SET effect=?", forged) == 1
            assert "effect" in {odd.column for odd in fleet.app.store.ledger.row_mismatches()}


# What lacks a field that its kind has, or has it in another shape.
ODD_ENTRIES = [
    Draft("policy.published", {"policy_rev": 99, "actor": "person:x"}),
    Draft("policy.published", {"bundle": "0" * 64}),
    Draft("budget.raised", {"spend": {"actions.hour": 1}}),
    Draft("budget.raised", {"spend": 3, "until": 1}),
    Draft("stop.set", {"what": 7}),
    Draft("event.accepted", {}),
]


@pytest.mark.parametrize("draft", ODD_ENTRIES, ids=lambda draft: f"{draft.kind} {draft.fields}")
async def test_a_signed_entry_that_is_none_is_named(tmp_path: Path, draft: Draft) -> None:
    """Whoever has the key can write anything: it is a finding, and no traceback."""
    async with opened(tmp_path, StorePlan(), World(), ManualClock(START)) as fleet:
        seq = await fleet.app.store.commands.append_entries([draft])
        entries = [odd for odd in fleet.app.store.ledger.row_mismatches() if odd.table == "entry"]
        assert [(odd.row, odd.column) for odd in entries] == [(str(seq), "bytes")]
        assert f"what a {draft.kind} says" in str(entries[0])
        assert "row-mismatch" in {f.code for f in verified(fleet, tmp_path).findings}


async def test_checkpoints_that_are_gone_are_told_and_so_is_a_witness_that_was_cut(
    tmp_path: Path,
) -> None:
    clock = ManualClock(START)
    async with opened(tmp_path, StorePlan(), World(), clock) as fleet:
        await laid(fleet, clock)
        witness = tmp_path / "state" / "witness.log"
        whole = witness.read_bytes()
        assert verified(fleet, tmp_path, one_witness=True).ok
        notes = whole.split(b"\n\n")
        assert len(notes) > 6
        half = len(whole) // 2
        cut = whole[: whole.index(b"\n\n", whole.index("\N{EM DASH}".encode(), half)) + 2]
        front = whole[len(cut) :]
        for left in (b"", cut, front):
            witness.write_bytes(left)
            codes = {
                finding.code for finding in verified(fleet, tmp_path, one_witness=True).findings
            }
            assert codes == {"witness-short"}, left[:40]
        witness.write_bytes(whole)
        assert edit(fleet, "DELETE FROM checkpoint") > 3
        codes = {finding.code for finding in verified(fleet, tmp_path, one_witness=True).findings}
        assert "checkpoints-gone" in codes
