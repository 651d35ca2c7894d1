"""A rule added to any set that speaks against an action counts: none is admitted and does nothing.

The sets are found in the shipped packages themselves, so a new package, or a new set in one, is
tried without being named here.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.adapters.policy_engines.regorus.stage import SubprocessStage, read_bundle
from vedette.domain.bundle import Bundle
from vedette.domain.decision import Decision, parse_decision
from vedette.policy.bundle_data import mount
from vedette.policy.golden_requests import build_read_request, build_request

POLICIES = Path(__file__).parents[2] / "policies"
SHIPPED = read_bundle(POLICIES)
DATA = mount(SHIPPED.files)
GRANT = DATA["grants"]["inbox_triage"]
# What speaks against an action, or asks a person or time for it, by the name of its set.
AGAINST = ("asks", "deny", "holds", "reasons", "stops", "waits")
RULE = "mine.added"

FILE: dict[str, Any] = build_request(
    "inbox_triage", "mail.file", {"owner": GRANT["owner"], **GRANT["tools"]["mail.file"]},
    sorted(DATA["sinks"]["tools"]["mail.file"]),
)  # fmt: skip
READ: dict[str, Any] = build_read_request("inbox_triage", GRANT["owner"], "inbox/inbox")


def sets() -> list[tuple[str, str]]:
    """Return (file, set) of every set of the shipped packages that speaks against an action."""
    found = []
    for path, text in SHIPPED.modules().items():
        names = sorted(set(re.findall(r"^(\w+) contains ", text, re.MULTILINE)))
        found += [(path, name) for name in names if name in AGAINST]
    return found


def added(path: str, name: str, body: str = "") -> Bundle:
    rule = f'\n{name} contains "{RULE}" {body}'.rstrip() + "\n"
    return Bundle.of({**SHIPPED.files, path: SHIPPED.files[path] + rule.encode()})


def decide(bundle: Bundle, question: dict[str, Any]) -> Decision:
    return parse_decision(RegorusEngine(bundle).decide(orjson.dumps(question)))


def test_the_sets_are_found_and_the_questions_permitted() -> None:
    """The control: without an added rule both are permitted."""
    assert {
        ("vedette/denies/denies.rego", "deny"), ("vedette/holds/holds.rego", "asks"),
        ("vedette/holds/holds.rego", "stops"), ("vedette/limits/limits.rego", "waits"),
        ("vedette/origins/origins.rego", "holds"), ("vedette/identity/identity.rego", "reasons"),
        ("vedette/grant/grant.rego", "reasons"),
    } <= set(sets())  # fmt: skip
    assert decide(SHIPPED, FILE).outcome == decide(SHIPPED, READ).outcome == "permit"


@pytest.mark.parametrize(("path", "name"), sets(), ids=lambda part: part.rpartition("/")[2])
def test_an_added_rule_takes_the_permit_away(path: str, name: str) -> None:
    """Of an action and of a memory read; with a condition that holds, and as a bare fact."""
    for body in ("", 'if input.subject.agent == "inbox_triage"'):
        changed = added(path, name, body)
        for request in (FILE, READ):
            decision = decide(changed, request)
            assert decision.outcome != "permit", (path, name, body)
    other = added(path, name, 'if input.subject.agent == "anomaly_detection"')
    assert decide(other, FILE).outcome == decide(other, READ).outcome == "permit"


@pytest.mark.parametrize(
    ("path", "name", "wait"),
    [("vedette/holds/holds.rego", "asks", "approval"),
     ("vedette/holds/holds.rego", "stops", "resume"),
     ("vedette/origins/origins.rego", "holds", "approval"),
     ("vedette/origins/links.rego", "holds", "approval")],
)  # fmt: skip
def test_what_asks_holds_under_its_own_name(path: str, name: str, wait: str) -> None:
    decision = decide(added(path, name), FILE)
    assert (decision.outcome, decision.rule, decision.wait) == ("hold", RULE, wait)


def test_an_approval_answers_an_added_ask_and_no_other_addition() -> None:
    approved = copy.deepcopy(FILE)
    approved["context"]["approvals"] = [
        {"action_digest": FILE["action"]["digest"], "by": "person:ada", "until": FILE["now"] + 1}
    ]
    permitted = {
        (path, name) for path, name in sets()
        if decide(added(path, name), approved).outcome == "permit"
    }  # fmt: skip
    assert permitted == {
        ("vedette/holds/holds.rego", "asks"), ("vedette/origins/origins.rego", "holds"),
        ("vedette/origins/links.rego", "holds"),
    }  # fmt: skip


async def test_each_is_admitted() -> None:
    """So none of them is refused for another reason than the one that is tried here."""
    files = dict(SHIPPED.files)
    for path, name in sets():
        rule = f'\n{name} contains "{RULE}" if input.action.tool == "no.tool.of.ours"\n'
        files[path] += rule.encode()
    assert await SubprocessStage().try_out(Bundle.of(files)) == []
