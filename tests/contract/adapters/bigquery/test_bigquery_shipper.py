"""The ledger in BigQuery: every entry once, over kills, on the real emulator; and what it says."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import Forbidden
from msgspec.structs import replace
from tests.bigquery import PROJECT, Dataset
from tests.contract.adapters.bigquery.bigquery_child import kill, settings_of

from vedette.adapters.bigquery.reconciliation import find_differences
from vedette.adapters.bigquery.shipper import Shipper
from vedette.adapters.bigquery.warehouse import Warehouse
from vedette.app.ledger_followers import build_followers, check_shipped, ship_ledger
from vedette.domain.action import Proposal
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.store.sqlite import SqliteReader
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import (
    DESK,
    World,
    job,
    propose,
    send_proposal,
    toy_fleet,
    wait_until,
)

FLEET = "harbour"


def shipper_of(fleet: FleetHarness, warehouse: Warehouse) -> Shipper:
    def reader() -> SqliteReader:
        return SqliteReader(fleet.folder / "state")

    return Shipper(FLEET, fleet.app.store, reader, warehouse)


def shipped(bigquery: Dataset, table: str = "ledger") -> list[tuple[Any, ...]]:
    """Return (seq, digest) of a table."""
    return bigquery.ask(f"SELECT seq, digest FROM `{{d}}.{table}` ORDER BY seq, digest")


def wrong(fleet: FleetHarness, warehouse: Warehouse) -> dict[str, list[str]]:
    """Return what the comparison by query finds, table by table."""
    found = find_differences(
        warehouse, FLEET, fleet.app.store.ledger, fleet.app.store.ledger.last_seq()
    )
    return {table: what for table, (_, what) in found.items()}


NOTHING: dict[str, list[str]] = {"ledger": [], "decisions": []}


async def a_day(fleet: FleetHarness) -> None:
    """Let there be permits and effects, denials, and holds of which one is approved."""
    await fleet.send(
        *(job(f"s{n}", send_proposal(f"text {n}"), key=f"s{n}") for n in range(4)),
        *(
            job(f"d{n}", propose("big.send", to="elsewhere@example.org", text="x"))
            for n in range(3)
        ),
        *(job(f"h{n}", send_proposal("please", tool="big.send"), key=f"h{n}") for n in range(2)),
    )
    await fleet.wait_until_idle()
    held = fleet.app.store.runs.holds_page(after=0, limit=10)
    assert len(held) == 2, "the toy's policy holds what has a high impact"
    await fleet.approve(held[0])
    await fleet.wait_until_idle()


# --- once each ------------------------------------------------------------------------------


async def test_what_is_shipped_is_the_ledger(
    tmp_path: Path, bigquery: Dataset, warehouse: Warehouse
) -> None:
    """Entry by entry, digests made by BigQuery; and no content goes, so an erasure changes none."""
    phrase = "said nowhere else"
    async with toy_fleet(tmp_path, World()) as fleet:
        shipper = shipper_of(fleet, warehouse)
        await fleet.send(
            job("1", send_proposal(phrase), key="somebody"), job("2", send_proposal("stays"))
        )
        await fleet.wait_until_idle()
        first = await shipper.ship()
        assert first == fleet.app.store.ledger.last_seq()
        assert await shipper.ship() == 0
        decided = len(fleet.entries("action.decided", "recall.decided"))
        assert len(shipped(bigquery, "decisions")) == decided > 0
        assert wrong(fleet, warehouse) == NOTHING
        before = shipped(bigquery)

        await fleet.app.commands.erase(fleet.order(), subject="somebody")
        assert await shipper.ship() == fleet.app.store.ledger.last_seq() - first
        assert wrong(fleet, warehouse) == NOTHING
        assert shipped(bigquery)[: len(before)] == before
        everything = bigquery.ask("SELECT TO_JSON_STRING(t) FROM `{d}.ledger` AS t")
        assert not [row for row in everything if phrase in row[0] or "somebody" in row[0]]
        assert [row for row in everything if "body.erased" in row[0]]
        await shipper.close()


async def test_the_comparison_finds_what_is_wrong(
    tmp_path: Path, bigquery: Dataset, warehouse: Warehouse
) -> None:
    """The control of the comparison: a missing, a changed, a doubled row."""
    async with toy_fleet(tmp_path, World()) as fleet:
        await fleet.send(job("1", send_proposal("hello")))
        await fleet.wait_until_idle()
        shipper = shipper_of(fleet, warehouse)
        await shipper.ship()
        bigquery.ask("UPDATE `{d}.ledger` SET entry = '{}' WHERE seq = 2")
        bigquery.ask("DELETE FROM `{d}.ledger` WHERE seq = 4")
        bigquery.ask("INSERT INTO `{d}.decisions` SELECT * FROM `{d}.decisions` LIMIT 1")
        found = wrong(fleet, warehouse)
        assert found["ledger"] == ["entry 2 is another one there", "entry 4 is not there"]
        assert len(found["decisions"]) == 1
        assert found["decisions"][0].endswith("is there once too often")
        await shipper.close()


async def test_a_kill_doubles_and_loses_nothing(tmp_path: Path, bigquery: Dataset) -> None:
    """kill -9 of a process after an append that its mark does not know of."""
    async with toy_fleet(tmp_path, World()) as fleet:
        await a_day(fleet)
        head = fleet.app.store.ledger.last_seq()
    state = tmp_path / "state"
    await asyncio.to_thread(kill, "ship", state, bigquery.short, "ship.append:after", 1)
    # All of the first append is there, and the store knows nothing of it.
    assert len(shipped(bigquery)) == head
    assert check_shipped(settings_of(state, bigquery.short))["last"] == 0
    assert await ship_ledger(settings_of(state, bigquery.short)) == (0, head)
    report = check_shipped(settings_of(state, bigquery.short))
    assert (report["ok"], report["last"], report["head"]) == (True, head, head)
    assert report["tables"]["ledger"] == {"rows": head, "wrong": []}


async def test_a_running_fleet_ships_by_itself(
    tmp_path: Path, bigquery: Dataset, warehouse: Warehouse
) -> None:
    """Behind the line, and again after BigQuery was away; what is away is told."""
    messages: list[str] = []
    async with toy_fleet(tmp_path, World()) as fleet:
        app = fleet.app
        app.settings = replace(
            app.settings, deployment=settings_of(tmp_path / "state", bigquery.short).deployment
        )
        followers = dict(build_followers(app, messages.append))
        task = asyncio.create_task(followers.pop("shipper"))
        for other in followers.values():
            other.close()
        try:
            await fleet.send(job("1", send_proposal("hello")))
            await fleet.wait_until_idle()
            await wait_until(
                lambda: app.metrics.total("shipped") == app.store.ledger.last_seq(), 60
            )
            assert not messages
            first = app.store.ledger.last_seq()
            bigquery.client.delete_dataset(bigquery.name, delete_contents=True)
            await fleet.send(job("2", send_proposal("hello")))
            await fleet.wait_until_idle()
            await wait_until(lambda: bool(messages), 60)
            await wait_until(
                lambda: app.metrics.total("shipped") == first + app.store.ledger.last_seq(), 60
            )
        finally:
            task.cancel()
        assert "the ledger is not shipped: NotFound" in messages[0]
        assert wrong(fleet, warehouse) == NOTHING


async def test_a_view_that_may_not_be_made_holds_up_nothing(
    tmp_path: Path, bigquery: Dataset
) -> None:
    """Where Terraform makes the views the shipper has no right to."""

    class StartRelease(Warehouse):
        def _make_view(self, view: str, text: str) -> None:
            raise Forbidden("no")  # type: ignore[no-untyped-call]

    async with toy_fleet(tmp_path, World()) as fleet:
        shipper = shipper_of(fleet, StartRelease(PROJECT, bigquery.short))
        assert await shipper.ship() == fleet.app.store.ledger.last_seq() == len(shipped(bigquery))
        assert f"the view {bigquery.name}.holds may not be made or renewed" in shipper.gaps
        await shipper.close()


async def test_without_offsets_a_kill_doubles(tmp_path: Path, bigquery: Dataset) -> None:
    """The control: a shipper that only remembers how far it is, and appends without offsets."""

    class Killed(Exception):
        pass

    class Careless(Warehouse):
        kills = 1

        def append(self, stream: str, offset: int | None, rows: Any, descriptor: Any) -> None:
            super().append(stream, None, rows, descriptor)
            if self.kills:
                self.kills -= 1
                raise Killed

        def close_stream(self, stream: str) -> int | None:
            return None

        def read_progress(self, table: str, fleet: str, history: int) -> tuple[int, int, str]:
            return 1, 0, ""

    careless = Careless(PROJECT, bigquery.short)
    async with toy_fleet(tmp_path, World()) as fleet:
        await fleet.send(job("1", send_proposal("hello")))
        await fleet.wait_until_idle()
        with pytest.raises(Killed):
            await shipper_of(fleet, careless).ship()
        shipper = shipper_of(fleet, careless)
        await shipper.ship()
        head = fleet.app.store.ledger.last_seq()
        assert len(shipped(bigquery)) == 2 * head
        assert wrong(fleet, careless)["ledger"]
        await shipper.close()


# --- what it says ---------------------------------------------------------------------------


async def test_the_views_say_what_the_store_says(
    tmp_path: Path, bigquery: Dataset, warehouse: Warehouse
) -> None:
    async with toy_fleet(tmp_path, World()) as fleet:
        await a_day(fleet)
        shipper = shipper_of(fleet, warehouse)
        await shipper.ship()
        counts = fleet.app.store.tables.counts()["worker"]
        decided = Counter(
            (entry["tool"], entry["outcome"]) for entry in fleet.entries("action.decided")
        )
        rows = bigquery.ask(
            "SELECT tool, SUM(permitted), SUM(held), SUM(denied), SUM(done) "
            "FROM `{d}.actions_per_agent` WHERE agent = 'worker' GROUP BY tool ORDER BY tool"
        )
        assert [row[:4] for row in rows] == [
            (tool, *(decided[tool, outcome] for outcome in ("permit", "hold", "deny")))
            for tool in sorted({tool for tool, _ in decided})
        ]
        assert sum(row[4] for row in rows) == counts["effect.done"] == 5

        denials = Counter(
            entry["rule"] for entry in fleet.entries("action.decided") if entry["outcome"] == "deny"
        )
        assert denials
        rows = bigquery.ask("SELECT rule, SUM(denials) FROM `{d}.denials_by_rule` GROUP BY rule")
        assert dict(rows) == denials

        assert held_of(fleet) == dict(bigquery.ask("SELECT action, held_us FROM `{d}.holds`"))
        assert sorted(held_of(fleet).values(), key=str)[1] is None
        (row,) = bigquery.ask("SELECT holds, still_held, held_s FROM `{d}.held_time`")
        assert row[:2] == (2, 1)
        assert round(row[2] * 1e6) == sum(held or 0 for held in held_of(fleet).values())
        await shipper.close()


def held_of(fleet: FleetHarness) -> dict[str, int | None]:
    """Return how long each action was held, from the ledger's own entries."""
    question: dict[str, int] = {}
    found: dict[str, int | None] = {}
    for entry in fleet.entries():
        action, kind = str(entry.get("action")), entry["kind"]
        if kind == "action.decided" and entry["outcome"] == "hold" and action not in question:
            question[action], found[action] = entry["at"], None
        elif action in question and found[action] is None and kind.startswith(("hold.", "effect.")):
            found[action] = entry["at"] - question[action]
    return found


async def test_what_a_useful_action_costs(
    tmp_path: Path, bigquery: Dataset, warehouse: Warehouse
) -> None:
    """Of an agent that thinks; beside what the store has counted of it."""
    prices = "{m: {input: 1000000, output: 2000000}}"
    limits = f"fleet: {{}}\nagents: {{}}\nprices: {prices}\ncomplete: true\n"
    plan = [
        ReasonerJudgement(
            proposals=(Proposal("wire.send", {"to": DESK, "text": "hello"}),),
            model_calls=1,
            spent={"input_tokens": 90, "output_tokens": 10},
        )
    ]
    fleet = toy_fleet(
        tmp_path, World(), reasoner="adk", reasoners={"adk": ScriptedReasoner(plan)},
        extra={"budgets/data.yaml": limits},
    )  # fmt: skip
    path = tmp_path / "content/agents/worker/agent.yaml"
    more = (
        "actions_per_run: 16, input_tokens_per_call: 900, output_tokens_per_call: 100, "
        "tokens_per_day: 100000, money_micros_per_day: 1000000, price: m"
    )
    path.write_text(path.read_text().replace("actions_per_run: 16", more))
    async with fleet:
        await fleet.send(*(job(str(n), key=str(n)) for n in range(3)))
        await fleet.wait_until_idle()
        shipper = shipper_of(fleet, warehouse)
        await shipper.ship()
        totals = fleet.app.store.spend.totals()
        spent = {unit: total.day.total for name, unit, total in totals if name == "worker"}
        done = fleet.app.store.tables.counts()["worker"]["effect.done"]
        (row,) = bigquery.ask(
            "SELECT useful_actions, model_calls, tokens, money_micros, tokens_per_useful_action "
            "FROM `{d}.cost_per_useful_action`"
        )
        assert done == 3
        assert row[:4] == (done, spent["model_calls"], spent["tokens"], spent["money_micros"])
        assert row[4] == spent["tokens"] / done > 0
        await shipper.close()
