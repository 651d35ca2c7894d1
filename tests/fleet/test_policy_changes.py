"""What people change while the fleet runs is admitted and takes effect; weaker rules are refused.

The Rego tests beside the rules hold their own data (vedette.testdata), so they must neither refuse
a change of the data in force or an added deny, nor let a rule lose one of its proofs.
"""

from __future__ import annotations

import copy
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.opa import find_opa

from vedette.adapters.policy_engines.regorus.stage import SubprocessStage, read_bundle
from vedette.domain.bundle import Bundle
from vedette.domain.decision import Decision, parse_decision
from vedette.domain.ports.policy_engine import PolicyEngine
from vedette.policy.bundle_data import mount
from vedette.policy.golden_requests import build_read_request, build_request

POLICIES = Path(__file__).parents[2] / "policies"
DATA = mount(read_bundle(POLICIES).files)
DENIES = "denies/data.yaml"
GRANTS = "grants/data.yaml"
LIMITS = "limits/data.yaml"
SINKS = "sinks/data.yaml"
RULES = "vedette/denies/denies.rego"

Question = dict[str, Any]
Edit = tuple[str, str, str]  # file; what is replaced, "" for an added end; by what


def question_of(tool: str, agent: str = "inbox_triage") -> Question:
    """Return what the shipped policy permits: the tool with every sink trusted."""
    grant = DATA["grants"][agent]
    sinks = sorted(DATA["sinks"]["tools"][tool])
    return build_request(agent, tool, {"owner": grant["owner"], **grant["tools"][tool]}, sinks)


def having(one: Question, path: str, value: object) -> Question:
    found = copy.deepcopy(one)
    *inner, last = path.split(".")
    at: Any = found
    for step in inner:
        at = at[step]
    at[last] = value
    return found


FILE = question_of("mail.file")
FLAG = question_of("mail.flag")
OPEN = question_of("incident.open", "anomaly_detection")
DRAFT = having(question_of("mail.draft"), "action.origins./to", "untrusted")
READ = build_read_request("inbox_triage", DATA["grants"]["inbox_triage"]["owner"], "inbox/inbox")


@dataclass(frozen=True)
class Change:
    """A change, what it is for (a question and its new outcome and rule), and what it leaves."""

    edits: tuple[Edit, ...]
    question: Question
    outcome: str
    rule: str
    before: str = "permit"
    untouched: Question | None = None


def deny(rule: str) -> tuple[Edit, ...]:
    return ((RULES, "", f"\n{rule}\n"),)


INBOX_LIMIT = "inbox_triage: {minute: 12000, hour: 120000,"
INBOX_SURE = "inbox_triage:\n      default:"
INBOX_MODE = "inbox_triage:\n  mode: act\n"
NEW_AGENT = """
night_watch:
  mode: act
  tools:
    mail.file: {verb: move, resource: mailbox, impact: low}
  memory: []
"""

CHANGES: dict[str, Change] = {
    "tool switched off": Change(
        ((DENIES, "tools: []", "tools: [mail.file]"),), FILE, "deny", "denies.tool", untouched=FLAG
    ),
    "agent switched off": Change(
        ((DENIES, "agents: []", "agents: [inbox_triage]"),), FILE, "deny", "denies.agent"
    ),
    "every agent switched off": Change(
        ((DENIES, "agents: []", "agents: [inbox_triage, anomaly_detection]"),),
        OPEN,
        "deny",
        "denies.agent",
    ),
    "deny rule added": Change(
        deny('deny contains "denies.x" if input.action.tool == "mail.file"'),
        FILE,
        "deny",
        "denies.x",
        untouched=FLAG,
    ),
    "deny rule that sorts before ours": Change(
        deny('deny contains "denies.a" if startswith(input.action.tool, "mail.")'),
        FILE,
        "deny",
        "denies.a",
    ),
    "deny rule by time of day in a file of its own": Change(
        (
            (
                "vedette/denies/night.rego",
                "",
                "package vedette.denies\n\n"
                'deny contains "denies.at_night" if {\n'
                '\tinput.subject.agent == "inbox_triage"\n'
                "\tinput.now % 86400000000 >= 36000000000\n}\n",
            ),
        ),
        FILE,
        "deny",
        "denies.at_night",
    ),
    "deny rule with data of its own": Change(
        (
            (DENIES, "", "sources: [s]\n"),
            *deny(
                'deny contains "denies.source" if {\n'
                "\tinput.context.event.source in data.denies.sources\n}"
            ),
        ),
        FILE,
        "deny",
        "denies.source",
        untouched=having(OPEN, "context.event.source", "t"),
    ),
    "deny rule for everything": Change(
        deny('deny contains "denies.all" if is_string(input.action.tool)'),
        OPEN,
        "deny",
        "denies.all",
    ),
    "deny rule for whatever anyone asks": Change(
        deny('deny contains "denies.closed"'), OPEN, "deny", "denies.closed"
    ),
    "agent set to observe": Change(
        ((GRANTS, INBOX_MODE, INBOX_MODE.replace("act", "observe")),), FILE, "deny", "mode.observe"
    ),
    "agent set to ask": Change(
        ((GRANTS, INBOX_MODE, INBOX_MODE.replace("act", "ask")),), FILE, "hold", "mode.ask"
    ),
    "mode left out": Change(
        ((GRANTS, INBOX_MODE, "inbox_triage:\n"),), FILE, "deny", "mode.observe"
    ),
    "tool no longer granted": Change(
        ((GRANTS, "    mail.file: {verb: move, resource: mailbox, impact: low}\n", ""),),
        FILE,
        "deny",
        "grant.tool",
        untouched=FLAG,
    ),
    "tool made high impact": Change(
        (
            (
                GRANTS,
                "mail.file: {verb: move, resource: mailbox, impact: low}",
                "mail.file: {verb: move, resource: mailbox, impact: high}",
            ),
        ),
        FILE,
        "hold",
        "impact.high",
        untouched=FLAG,
    ),
    "memory scope taken away": Change(
        ((GRANTS, "memory: [inbox/inbox]", "memory: []"),), READ, "deny", "grant.memory"
    ),
    "agent granted": Change(
        ((GRANTS, "", NEW_AGENT),),
        having(
            having(FILE, "subject.agent", "night_watch"),
            "subject.id",
            "spiffe://golden/agent/night_watch",
        ),
        "permit",
        "permit.tool",
        before="deny",
    ),
    "all agents gone": Change(((GRANTS, "*", "{}\n"),), FILE, "deny", "identity.agent"),
    "fewer actions": Change(
        ((LIMITS, INBOX_LIMIT, "inbox_triage: {minute: 5, hour: 20,"),),
        having(FILE, "context.counters.minute", 5),
        "hold",
        "limits.minute",
        untouched=FILE,
    ),
    "no actions": Change(
        ((LIMITS, INBOX_LIMIT, "inbox_triage: {minute: 0, hour: 0,"),),
        FILE,
        "hold",
        "limits.hour",
    ),
    "fewer hops": Change(
        ((LIMITS, "hops: 8", "hops: 2"),),
        having(FILE, "context.event.hops", 3),
        "deny",
        "limits.hops",
        untouched=FILE,
    ),
    "a tool may file into one folder": Change(
        (
            (
                GRANTS,
                "mail.file: {verb: move, ",
                "mail.file: {only: {/folder: [Invoices]}, verb: move, ",
            ),
        ),
        FILE,
        "hold",
        "grant.only",
        untouched=having(FILE, "action.args.folder", "Invoices"),
    ),
    "a limit of a grant is misspelt": Change(
        (
            (
                GRANTS,
                "mail.file: {verb: move, ",
                "mail.file: {onyl: {/folder: [Invoices]}, verb: move, ",
            ),
        ),
        FILE,
        "hold",
        "grant.only",
    ),
    "judges must be surer": Change(
        ((LIMITS, f"{INBOX_SURE} 800\n", f"{INBOX_SURE} 990\n"),),
        having(FILE, "context.confidence", 950),
        "hold",
        "confidence.low",
        untouched=FILE,
    ),
    "sink takes less": Change(
        ((SINKS, "accepts: [trusted, registered, derived, untrusted]", "accepts: [trusted]"),),
        DRAFT,
        "deny",
        "origins.untrusted",
        untouched=FILE,
    ),
    "sink asks a person": Change(
        (
            (
                SINKS,
                "{accepts: [trusted, registered, derived, untrusted], otherwise: deny}",
                "{accepts: [trusted], otherwise: hold}",
            ),
        ),
        DRAFT,
        "hold",
        "origins.untrusted",
        untouched=FILE,
    ),
    "no tool's sinks listed": Change(
        ((SINKS, "*", "tools: {}\ncomplete: true\n"),), DRAFT, "deny", "origins.untrusted"
    ),
}


@pytest.fixture(scope="module")
def opa() -> str:
    return find_opa()


def changed(folder: Path, edits: tuple[Edit, ...]) -> Path:
    """Copy the shipped folder and edit it as a person would."""
    shutil.copytree(POLICIES, folder)
    for name, old, new in edits:
        path = folder / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if old == "*":
            text = new
        elif not old:
            text += new
        else:
            assert old in text, f"{name} holds no {old!r}"
            text = text.replace(old, new, 1)
        path.write_text(text, encoding="utf-8")
    return folder


def says(opa: str, folder: Path) -> str:
    """Return what the real opa says of the folder's tests."""
    arguments = [opa, "test", "--bundle", str(folder)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60).stdout


def decide(engine: PolicyEngine, one: Question) -> Decision:
    return parse_decision(engine.decide(orjson.dumps(one)))


@pytest.fixture(scope="module")
def shipped() -> PolicyEngine:
    return SubprocessStage().load(read_bundle(POLICIES))


@pytest.mark.parametrize("name", CHANGES)
async def test_change_is_admitted_and_takes_effect(
    name: str, tmp_path: Path, opa: str, shipped: PolicyEngine
) -> None:
    change = CHANGES[name]
    folder = changed(tmp_path / "policies", change.edits)
    stage = SubprocessStage()
    bundle = read_bundle(folder)
    assert await stage.try_out(bundle) == []
    assert says(opa, folder).startswith("PASS: ")
    takes_effect(stage.load(bundle), change, shipped)


@pytest.mark.parametrize("name", CHANGES)
def test_change_takes_effect(name: str, tmp_path: Path, shipped: PolicyEngine) -> None:
    """The same without the tests of the rules, which take most of the time."""
    folder = changed(tmp_path / "policies", CHANGES[name].edits)
    takes_effect(SubprocessStage().load(read_bundle(folder)), CHANGES[name], shipped)


def takes_effect(engine: PolicyEngine, change: Change, shipped: PolicyEngine) -> None:
    """Hold the questions of a change to what they come to before it and after."""
    assert decide(shipped, change.question).outcome == change.before
    after = decide(engine, change.question)
    assert (after.outcome, after.rule) == (change.outcome, change.rule)
    if change.untouched is not None:
        assert decide(engine, change.untouched) == decide(shipped, change.untouched)
        assert decide(engine, change.untouched).outcome == "permit"


def dropped(path: str, line: str, nth: int) -> Bundle:
    """Return the shipped bundle without the nth of the equal lines of a file."""
    files = read_bundle(POLICIES).files
    lines = files[path].decode().splitlines(keepends=True)
    del lines[[place for place, each in enumerate(lines) if each == f"\t{line}\n"][nth]]
    return Bundle.of({**files, path: "".join(lines).encode()})


GATEWAY = "vedette/gateway/decide.rego"
WEAKER = [
    (GATEWAY, "data.vedette.identity.ok", 0),
    (GATEWAY, "data.vedette.grant.would_ok", 0),
    (GATEWAY, "data.vedette.origins.ok", 0),
    (GATEWAY, "data.vedette.limits.ok", 0),
    (GATEWAY, "data.vedette.done.ok", 0),
    (GATEWAY, "data.vedette.delegation.ok", 0),
    (GATEWAY, "data.vedette.delegation.ok", 1),
    (GATEWAY, "data.vedette.holds.ok", 0),
    (GATEWAY, "data.vedette.denies.ok", 0),
    (GATEWAY, "data.vedette.identity.ok", 1),
    (GATEWAY, "data.vedette.grant.tool_granted", 0),
    (GATEWAY, "data.vedette.origins.holdable", 0),
    (GATEWAY, "data.vedette.limits.holdable", 0),
    (GATEWAY, "data.vedette.denies.ok", 1),
    (GATEWAY, "data.vedette.done.ok", 1),
    (GATEWAY, "permitted", 0),
    (GATEWAY, "data.vedette.grant.ok", 0),
    ("vedette/denies/denies.rego", "count(deny) == 0", 0),
    ("vedette/denies/denies.rego", "data.denies.complete == true", 0),
    ("vedette/done/done.rego", "met", 0),
    ("vedette/done/done.rego", "count(held) == count(input.context.task.conditions)", 0),
    ("vedette/done/done.rego", "count(input.context.task.conditions) > 0", 0),
    ("vedette/delegation/delegation.rego", "count(covered) == count(every_place)", 0),
    ("vedette/delegation/delegation.rego", "roomy", 0),
    ("vedette/delegation/delegation.rego", "within", 0),
    ("vedette/delegation/delegation.rego", "granted.verb == input.action.verb", 0),
    ("vedette/delegation/delegation.rego", 'ancestor.cover == "act"', 0),
    ("vedette/holds/holds.rego", "unasked_above", 0),
    ("vedette/identity/identity.rego", "own_identity", 0),
    ("vedette/identity/identity.rego", "owned", 0),
    ("vedette/grant/grant.rego", "active", 0),
    ("vedette/grant/grant.rego", "bound", 0),
    ("vedette/holds/holds.rego", "sure", 0),
    ("vedette/holds/holds.rego", "low_impact", 0),
    ("vedette/limits/limits.rego", "reached", 0),
    ("vedette/limits/limits.rego", "hour_free", 0),
    ("vedette/origins/origins.rego", "count(unsettled) == 0", 0),
    ("vedette/approval/approval.rego", "given.until > input.now", 0),
]


@pytest.mark.parametrize(("path", "line", "nth"), WEAKER, ids=lambda each: str(each).split("/")[-1])
async def test_rule_that_loses_a_proof_is_refused_by_the_tests(
    path: str, line: str, nth: int
) -> None:
    findings = await SubprocessStage().try_out(dropped(path, line, nth))
    assert any(each.file.endswith("_test.rego") and "failed" in each.what for each in findings)


async def test_deny_that_is_deleted_is_refused_by_the_tests(tmp_path: Path) -> None:
    rule = 'deny contains "denies.tool" if input.action.tool in data.denies.tools\n'
    folder = changed(tmp_path / "policies", ((RULES, rule, ""),))
    findings = await SubprocessStage().try_out(read_bundle(folder))
    assert [each.file for each in findings] == [
        "vedette/denies/denies_test.rego",
        "vedette/gateway/decide_test.rego",
    ]
