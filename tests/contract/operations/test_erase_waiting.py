"""Whoever sent what waits cannot keep it from being erased; what would go is shown, and asked."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.contract.ledger.test_reconstruct_stores import START, opened
from tests.contract.ledger.test_reconstruct_stores import plan as plan
from tests.said import START as PROGRAM
from tests.said import environment, vedette
from tests.small import small

from vedette.adapters.ledger_export import verify_store
from vedette.adapters.mail.event import mail_event
from vedette.config.settings import StorePlan
from vedette.domain.base.errors import BadCommand, DisplayMismatch, Forbidden
from vedette.domain.erasure import ErasureTarget
from vedette.domain.identity import Principal
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.ledger.history.explain import explain
from vedette.ledger.history.reconstruction import reconstruct
from vedette.operations.commands import Order
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness, checkout
from vedette.testing.toy_fleet import World, job, note_proposal, send_proposal

WHO = "mallory"
PHRASE = "a phrase that is said nowhere else"


@asynccontextmanager
async def waiting(tmp_path: Path, plan: StorePlan, world: World) -> AsyncIterator[FleetHarness]:
    """A fleet with a held action of mallory's and one that was done, and one of somebody else's."""
    async with opened(tmp_path, plan, world, ManualClock(START)) as fleet:
        await fleet.send(
            job("1", note_proposal("n"), send_proposal(PHRASE, tool="big.send"), key=WHO),
            job("2", send_proposal("fine"), key=WHO),
            job("3", send_proposal("stays", tool="big.send"), key="ann"),
        )
        await fleet.wait_until_idle()
        yield fleet


async def erase(fleet: FleetHarness, who: Principal | None = None, **args: Any) -> dict[str, Any]:
    order = fleet.order("asked for it")
    if who is not None:
        order = Order(who, "asked for it")
    return await dispatch(fleet.app.commands, "erase", order, {"subject": WHO, **args})


async def test_a_hold_blocks_erasure_until_it_is_denied_with_it(
    tmp_path: Path, plan: StorePlan
) -> None:
    world = World()
    async with waiting(tmp_path, plan, world) as fleet:
        head = fleet.app.store.ledger.last_seq()
        with pytest.raises(BadCommand, match="--deny-holds"):
            await erase(fleet)
        assert fleet.app.store.ledger.last_seq() == head
        done = await erase(fleet, deny_holds=True)
        assert done["erased"]
        (denied,) = fleet.entries("hold.denied")
        (dropped,) = fleet.entries("run.dropped")
        (erased,) = fleet.entries("body.erased")
        assert denied["seq"] < dropped["seq"] < erased["seq"]
        for entry in (denied, dropped, erased):
            assert entry["actor"] == "person:tester"
            assert fleet.body(entry["seq"])["reason"] == "asked for it"
        (left,) = fleet.app.store.runs.holds_page(after=0, limit=10)
        assert left.run != denied["run"]
        assert fleet.app.store.runs.run(denied["run"]).state == "done"  # type: ignore[union-attr]
        story = explain(fleet.app.store, denied["run"])
        assert PHRASE not in json.dumps(story)
        # What is left goes on: the hold of somebody else is approved and done.
        await fleet.approve(left, "right")
        await fleet.wait_until_idle()
        assert sorted(world.texts()) == ["fine", "stays"]
        assert reconstruct(fleet.app.store.ledger, 0, 2**62).findings == []
        assert fleet.app.store.tables.find_wrong_rows() == []
        key = (tmp_path / "state" / "ledger.pub").read_text()
        report = verify_store(
            fleet.app.store.ledger, key.strip(), tmp_path / "state" / "witness.log"
        )
        assert report.ok, report.findings


async def test_it_works_while_everything_is_stopped_and_after_a_restart(
    tmp_path: Path, plan: StorePlan
) -> None:
    async with waiting(tmp_path, plan, World()) as fleet:
        await fleet.app.commands.stop(fleet.order("an incident"), all=True)
        await fleet.restart()
        assert (await erase(fleet, deny_holds=True))["erased"]
        await fleet.restart()
        assert len(fleet.app.store.runs.holds_page(after=0, limit=10)) == 1
        assert fleet.app.store.runs.survey(ErasureTarget("subject", WHO)).body_count == 0


async def test_an_approval_that_is_not_used_yet_is_denied_too(
    tmp_path: Path, plan: StorePlan
) -> None:
    world = World()
    async with waiting(tmp_path, plan, world) as fleet:
        await fleet.app.commands.stop(fleet.order("an incident"), all=True)
        (row, _) = fleet.app.store.runs.holds_page(after=0, limit=10)
        await fleet.approve(row, "right")
        await fleet.wait_until_idle()
        assert (await erase(fleet, deny_holds=True))["erased"]
        await fleet.app.commands.resume(fleet.order("over"), all=True)
        await fleet.wait_until_idle()
        assert world.texts() == ["fine"]


async def test_an_effect_that_may_have_happened_is_not_lost(
    tmp_path: Path, plan: StorePlan
) -> None:
    world = World(answer=lambda call: OSError("the line broke"))
    async with opened(tmp_path, plan, world, ManualClock(START)) as fleet:
        await fleet.send(job("1", send_proposal(PHRASE, tool="bell.ring"), key=WHO))
        await fleet.wait_until_idle()
        (run,) = fleet.app.store.runs.survey(ErasureTarget("subject", WHO)).open_runs
        assert run.state == "waiting"
        with pytest.raises(BadCommand, match="may have happened"):
            await erase(fleet, deny_holds=True)


async def test_who_may_erase_may_not_deny_by_it(tmp_path: Path, plan: StorePlan) -> None:
    operator = Principal("person", "op", frozenset({"operator"}))
    both = Principal("person", "both", frozenset({"operator", "approver"}))
    async with waiting(tmp_path, plan, World()) as fleet:
        head = fleet.app.store.ledger.last_seq()
        with pytest.raises(Forbidden):
            await erase(fleet, operator, deny_holds=True)
        assert fleet.app.store.ledger.last_seq() == head
        assert (await erase(fleet, both, deny_holds=True))["erased"]
        assert {entry["actor"] for entry in fleet.entries("hold.denied")} == {"person:both"}


async def test_what_would_go_is_what_goes(tmp_path: Path, plan: StorePlan) -> None:
    async with waiting(tmp_path, plan, World()) as fleet:
        store = fleet.app.store
        found = store.runs.survey(ErasureTarget("subject", WHO))
        assert (len(found.events), found.runs, len(found.open_runs), len(found.holds)) == (
            2,
            2,
            1,
            1,
        )
        assert store.runs.survey(ErasureTarget("subject", "nobody")).body_count == 0
        head = store.ledger.last_seq()
        done = await erase(fleet, deny_holds=True)
        assert store.ledger.last_seq() > head
        assert len(done["erased"]) == found.body_count
        assert store.runs.survey(ErasureTarget("subject", WHO)).body_count == 0


async def test_nothing_goes_but_what_was_shown(tmp_path: Path, plan: StorePlan) -> None:
    """Whatever joins or leaves between the look and the word: an event, a hold, an answer."""
    world = World()
    async with waiting(tmp_path, plan, world) as fleet:
        store = fleet.app.store

        async def refused(shown: str) -> None:
            head = store.ledger.last_seq()
            with pytest.raises(DisplayMismatch, match="nothing was erased"):
                await erase(fleet, deny_holds=True, digest=shown)
            assert store.ledger.last_seq() == head

        for word in ("", "0" * 7, "0" * 64, "%"):
            await refused(word)
        seen = store.runs.survey(ErasureTarget("subject", WHO)).digest
        await fleet.send(job("4", send_proposal("joined"), key=WHO))
        await fleet.wait_until_idle()
        await refused(seen)
        seen = store.runs.survey(ErasureTarget("subject", WHO)).digest
        await fleet.send(job("5", send_proposal("waits", tool="big.send"), key=WHO))
        await fleet.wait_until_idle()
        await refused(seen)
        seen = store.runs.survey(ErasureTarget("subject", WHO)).digest
        (row,) = [
            row for row in store.runs.survey(ErasureTarget("subject", WHO)).holds if row.turn == 1
        ][:1]
        await fleet.app.commands.deny(fleet.order("no"), row.id)
        await fleet.wait_until_idle()
        await refused(seen)
        found = store.runs.survey(ErasureTarget("subject", WHO))
        done = await erase(fleet, deny_holds=True, digest=found.digest[:8])
        assert len(done["erased"]) == found.body_count
        assert store.runs.survey(ErasureTarget("subject", WHO)).body_count == 0


# --- the verb ------------------------------------------------------------------------------------


@pytest.fixture
async def mails(tmp_path: Path) -> Path:
    """A fleet, not running, whose agent asks before it files each of two senders' mails."""
    root = small(tmp_path / "content")
    toml = root / "vedette.toml"
    toml.write_text(toml.read_text().replace('".vedette"', '"fleet/state"'))
    async with FleetHarness(root / "fleet", content=root) as fleet:
        await dispatch(
            fleet.app.commands, "mode", fleet.order(), {"agent": "inbox_triage", "mode": "ask"}
        )
        names = sorted((checkout() / "samples/mailbox/new").iterdir())[:4]
        for path in names:
            raw = path.read_bytes()
            event = mail_event("maildir:sample", path.name, raw, subject=path.name, received_us=1)
            await fleet.send(event)
        await fleet.wait_until_idle()
        assert fleet.app.store.runs.holds_page(after=0, limit=10)
    return root


def held(root: Path) -> dict[str, Any]:
    holds = vedette(root, "hold", "--json").json["items"]
    assert holds
    found: dict[str, Any] = holds[0]
    return found


def test_the_verb_shows_asks_and_needs_to_be_told_of_holds(mails: Path) -> None:
    event = vedette(mails, "explain", held(mails)["run"], "--json").json["event"]["id"]
    why = ("erase", f"event:{event}", "--reason", "asked for it")
    refused = vedette(mails, *why, "--yes", "--json")
    assert (refused.code, refused.error["code"]) == (2, "bad-command")
    assert "--deny-holds" in refused.error["mend"]
    refused = vedette(mails, *why, "--deny-holds", "--json")
    assert (refused.code, "--digest " in refused.error["mend"]) == (2, True)
    digest = refused.error["mend"].rpartition(" ")[2]
    code, shown = at_terminal(mails, "n\n", *why, "--deny-holds")
    assert code != 0
    assert "would be denied first: mail." in shown
    assert "would be ended first: run_" in shown
    assert event in shown
    assert "erase for good?" in shown
    assert f"shown as {digest}" in shown
    refused = vedette(mails, *why, "--deny-holds", "--digest", "0" * 16, "--json")
    assert (refused.code, refused.error["code"]) == (2, "not-shown")
    assert "erased" not in vedette(mails, "verify").out.split("bodies:")[0]
    code, shown = at_terminal(mails, "y\n", *why, "--deny-holds", "--command-id", "one")
    assert code == 0, shown
    repeat = vedette(mails, *why, "--deny-holds", "--command-id", "one")
    assert (repeat.code, "nothing to do" in repeat.out) == (0, True)
    assert vedette(mails, "verify").code == 0


def at_terminal(root: Path, typed: str, *arguments: str) -> tuple[int, str]:
    """Run a verb at a terminal and type into it; return its code and all that it showed."""
    ours, theirs = pty.openpty()
    try:
        child = subprocess.Popen(
            [*PROGRAM, *arguments], cwd=root, env=environment(), stdin=theirs,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        os.write(ours, typed.encode())
        shown, _ = child.communicate(timeout=120)
    finally:
        os.close(ours)
        os.close(theirs)
    return child.returncode, shown.decode()
