"""One small fleet in observe: its rights, a try of an event, and what it would have done."""

from __future__ import annotations

import asyncio
import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.said import said
from tests.small import AGENT, small

from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.adapters.schedule.source import cron_walls
from vedette.app.stores import open_reader
from vedette.config.fleet import load_fleet
from vedette.config.settings import load_settings
from vedette.domain.agent import Fleet
from vedette.domain.bundle import Bundle
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.ledger.history.observe_mode import reviews_needed, wilson_interval
from vedette.operations.permissions import PermissionQuery, effective_permissions
from vedette.policy.bundle_data import mount
from vedette.testing.harness import FleetHarness, checkout

MAILS = sorted((checkout() / "samples/mailbox/new").iterdir())[:6]
ONLY = "impact: low, only: {/folder: [Invoices, Junk]}}"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet that observed eight mails, was told of three and is in ask for one more."""
    root = small(tmp_path_factory.mktemp("fleet"), each=2)
    toml = root / "vedette.toml"
    toml.write_text(toml.read_text().replace('".vedette"', '"fleet/state"'))
    asyncio.run(_observe(root))
    return root


async def _observe(root: Path) -> None:
    from vedette.adapters.mail.event import mail_event

    mails = [
        mail_event("maildir:sample", p.name, p.read_bytes(), subject=p.name, received_us=1)
        for p in MAILS
    ]
    async with FleetHarness(root / "fleet", content=root) as fleet:
        for to, some in (("observe", mails[:-1]), ("ask", mails[-1:])):
            await fleet.submit_confirmed("mode", agent=AGENT, mode=to)
            await fleet.send(*some)
            await fleet.wait_until_idle()
        runs = [fleet.runs(mail)[0] for mail in mails]
        for run, should in ((runs[0], None), (runs[1], None), (runs[2], "legal")):
            args: dict[str, Any] = {"run": run.id, "right": True}
            if should is not None:
                args = {"run": run.id, "should": should}
            await dispatch(fleet.app.commands, "correct", fleet.order("looked at it"), args)
        await fleet.wait_until_idle()


def ledger(root: Path) -> list[tuple[dict[str, Any], Any]]:
    store = open_reader(load_settings(root / "vedette.toml"))
    try:
        return [
            (json.loads(raw), json.loads(b) if b else None) for _, raw, _, b in store.ledger.walk()
        ]
    finally:
        store.close()


# --- the report ----------------------------------------------------------------------------------


def test_the_report_says_what_a_recount_of_the_ledger_says(fleet: Path) -> None:
    entries = ledger(fleet)
    tools: Counter[tuple[str, str]] = Counter()
    for entry, body in entries:
        if entry["kind"] == "action.decided" and entry["agent"] == AGENT:
            would = entry.get("would")
            if would is None:
                reasons = body["decision"]["reasons"]
                would = "permit" if reasons == ["mode.ask"] else entry["outcome"]
            tools[entry["tool"], would] += 1
    assert sum(tools.values()) >= len(MAILS)
    document = json.loads(said(fleet, "report", "--agent", AGENT, "--json").out)["would"]
    assert [one["agent"] for one in document] == [AGENT]
    assert {
        (tool, would): count
        for tool, counts in document[0]["tools"].items()
        for would, count in counts.items()
        if count
    } == tools
    assert document[0]["modes"] == ["ask", "observe"]
    by_label = [sum(count.values()) for count in document[0]["labels"].values()]
    assert sum(by_label) == sum(tools.values()) == document[0]["actions"]
    assert (document[0]["reviewed"], document[0]["agreed"]) == (3, 2)
    assert not [entry for entry, _ in entries if entry["kind"].startswith("effect.")]


def test_the_report_says_how_often_people_agree_and_what_is_lacking(fleet: Path) -> None:
    whole = json.loads(said(fleet, "report", "--json").out)
    assert not [one for one in whole["exceptions"] if one["why"] == "mode.observe"]
    out = said(fleet, "report", "--agent", AGENT).out
    low, high = wilson_interval(2, 3)
    assert f"people agree with 2 of 3 reviewed (67%; 95 %: {int(low * 1000) / 10} to " in out
    assert f"to earn act: {reviews_needed(2, 3)} more reviewed, all agreed with" in out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert 0 < low < 2 / 3 < high < 1


def test_the_interval_is_wilsons_and_a_single_disagreement_costs() -> None:
    # Agresti and Coull 1998, the example of 10 in 10; and what nothing says of nothing.
    assert wilson_interval(10, 10)[0] == pytest.approx(0.7225, abs=1e-4)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert reviews_needed(0, 0) == 35
    assert reviews_needed(35, 35) == 0
    assert (reviews_needed(34, 35) or 0) > 0
    assert wilson_interval(34, 34)[0] < 0.9 <= wilson_interval(35, 35)[0]


# --- try -----------------------------------------------------------------------------------------


def test_a_try_tells_what_the_run_told_and_leaves_no_trace(fleet: Path) -> None:
    state = fleet / "fleet/state"
    names = ("store.db", "memory.db", "witness.log")
    before = {name: (state / name).read_bytes() for name in names}
    entries = ledger(fleet)
    turns = [(e, b) for e, b in entries if e["kind"] == "turn.reasoned"][:2]
    for entry, body in turns:
        done = said(fleet, "try", AGENT, entry["run"], "--json")
        assert done.code == 0, done.err
        document = json.loads(done.out)
        assert (document["label"], document["confidence"]) == (
            body["label"],
            float(body["confidence"]),
        )
        assert [a["tool"] for a in document["actions"]] == [p["tool"] for p in body["proposals"]]
    assert {name: (state / name).read_bytes() for name in names} == before
    assert len(ledger(fleet)) == len(entries)
    assert not (state / "mailbox").exists()


def test_a_file_is_tried_as_its_source_would_read_it(fleet: Path, tmp_path: Path) -> None:
    mail = said(fleet, "try", AGENT, str(MAILS[0]), "--json")
    by_file = json.loads(mail.out)
    assert (by_file["event"]["type"], by_file["event"]["id"]) == ("mail.received", MAILS[0].name)
    first = next(b for e, b in ledger(fleet) if e["kind"] == "turn.reasoned")
    assert by_file["label"] == first["label"]
    other = tmp_path / "event.json"
    cloud = {
        "specversion": "1.0",
        "id": "1",
        "source": "maildir:x",
        "type": "mail.received",
        "subject": "s",
        "data": {"from": "a@b.example", "subject": "Invoice", "text": "VAT"},
    }
    other.write_text(json.dumps(cloud))
    out = said(fleet, "try", AGENT, str(other)).out
    assert "nothing was done or written" in out
    assert "touches mailbox (maildir" in out
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("agent", "event", "what"),
    [("inbox_triag", "x", "did you mean"), (AGENT, "run_000000", "nothing is known")],
)
def test_what_cannot_be_tried_is_said(fleet: Path, agent: str, event: str, what: str) -> None:
    done = said(fleet, "try", agent, event)
    assert done.code == 2
    assert what in done.err


# --- rights --------------------------------------------------------------------------------------


@functools.cache
def loaded_of(root: Path) -> Fleet:
    return load_fleet(root, load_settings(root / "vedette.toml")).fleet


def permissions_of(root: Path, edit: tuple[str, str] = ("", "")) -> dict[str, Any]:
    files = dict(read_bundle(root / "policies").files)
    text = files["grants/data.yaml"].decode()
    assert not edit[0] or edit[0] in text
    files["grants/data.yaml"] = text.replace(*edit).encode() if edit[0] else text.encode()
    loaded = loaded_of(root)
    bundle = Bundle.of(files)
    return effective_permissions(
        PermissionQuery(
            loaded.agents[AGENT], RegorusEngine(bundle), 1, files, mount(files), 10**15, cron_walls
        ),
        loaded, [("tool", "mail.send")],
    )  # fmt: skip


def tool(answer: dict[str, Any], name: str = "mail.file") -> dict[str, Any]:
    return next(one for one in answer["tools"] if one["tool"] == name)


def test_rights_are_what_the_engine_decides_with_the_rule_that_does(fleet: Path) -> None:
    answer = permissions_of(fleet, ("mode: ask", "mode: act"))
    assert (tool(answer)["outcome"], tool(answer)["rule"]) == ("permit", "permit.tool")
    assert tool(answer)["bar_milli"] == 800
    assert tool(answer, "mail.send")["rule"] == "impact.high"
    folder = tool(answer)["sinks"]["/folder"]
    assert [folder[o]["outcome"] for o in ("trusted", "registered", "derived", "untrusted")] == [
        "permit", "permit", "deny", "deny",
    ]  # fmt: skip
    assert answer["memory"] == [
        {"scope": "inbox/inbox", "outcome": "permit", "rule": "permit.memory"}
    ]
    assert answer["wakes"][0] == "events of type mail.received from maildir:*"
    assert answer["stopped"] == ["tool:mail.send"]
    assert (answer["not_granted"], answer["not_requested"]) == ([], [])


def test_what_is_requested_and_not_granted_is_said_and_the_other_way_round(fleet: Path) -> None:
    old = "    mail.draft: {verb: draft, resource: mailbox, impact: low}\n"
    new = "    mail.burn: {verb: burn, resource: mailbox, impact: low}\n"
    answer = permissions_of(fleet, (old, new))
    assert answer["not_granted"] == ["mail.draft"]
    assert answer["not_requested"] == ["mail.burn"]
    assert tool(answer, "mail.draft")["rule"] == "grant.tool"
    answer = permissions_of(fleet, ("memory: [inbox/inbox]", "memory: [inbox/other]"))
    assert answer["not_granted"] == ["memory inbox/inbox"]


@pytest.mark.parametrize(
    "triggers", ["[rent, dues]", "{rent: {}, dues: {}}", "{rent: {/folder: [Junk]}}"]
)
def test_what_is_granted_for_some_triggers_is_asked_for_one_of_them(
    fleet: Path, triggers: str
) -> None:
    old = "mail.file: {verb: move, resource: mailbox, impact: low}"
    new = f"mail.file: {{verb: move, resource: mailbox, impact: low, triggers: {triggers}}}"
    for_any, for_some = tool(permissions_of(fleet)), tool(permissions_of(fleet, (old, new)))
    assert for_any["outcome"] == "hold"
    assert (for_some["outcome"], for_some["rule"]) == (for_any["outcome"], for_any["rule"])


def test_a_value_beyond_those_that_the_grant_names_waits_for_a_person(fleet: Path) -> None:
    edit = ("mail.file: {verb: move, resource: mailbox, impact: low}", "mail.file: {verb: move,"
            f" resource: mailbox, {ONLY}")  # fmt: skip
    limited = tool(permissions_of(fleet, edit))["only"]["/folder"]
    assert limited["values"] == ["Invoices", "Junk"]
    assert limited["beyond"]["outcome"] == "hold"
    assert "grant.only" in limited["beyond"]["reasons"]


def test_the_page_shows_the_mode_and_fits_a_terminal(fleet: Path) -> None:
    out = said(fleet, "agent", "show", AGENT).out
    assert "mode ask (requested act, granted ask)" in out
    # What it asks about now it would do in mode act, and the page says by which rule.
    assert "MAY, once a person has decided each" in out
    assert "yes (permit.tool), from a confidence of 0.800" in out
    assert max(len(line) for line in out.splitlines()) <= 80
    listed = json.loads(said(fleet, "agent", "show", "--json").out)
    assert [(one["agent"], one["mode"], one["stopped"]) for one in listed] == [
        (AGENT, "ask", False)
    ]
    shown = json.loads(said(fleet, "agent", "mode", AGENT, "--json").out)
    assert (shown["in_force"], shown["since_revision"], shown["revision"]) == ("ask", 3, 3)
