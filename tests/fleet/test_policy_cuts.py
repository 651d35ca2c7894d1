"""No part of the shipped policy permits what the whole of it denies.

Every shipped policy file is cut after every line, and left out; none of these bundles may permit
what must be denied, whether it goes through staging or is loaded past it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pytest

from vedette.adapters.policy_engines.regorus import engine as regorus_engine
from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.adapters.policy_engines.regorus.stage import SubprocessStage, read_bundle
from vedette.domain.base.errors import BadPolicy, EngineFailed
from vedette.domain.bundle import Bundle
from vedette.domain.decision import parse_decision
from vedette.policy.bundle_data import is_data, mount
from vedette.policy.golden_requests import NOW_US, build_read_request, build_request

POLICIES = Path(__file__).parents[2] / "policies"
Question = dict[str, Any]


# No shipped agent takes tasks; so that the end of one may be asked about, this one does.
GRANT = b"  tools:\n    mail.file: "
FINISH = b"    task.finish: {verb: finish, resource: task, impact: low}\n"


def files_of() -> dict[str, bytes]:
    """Return the shipped policy, by which inbox_triage may end tasks."""
    files = dict(read_bundle(POLICIES).files)
    before, grant, after = files["grants/data.yaml"].partition(GRANT)
    assert grant
    head, tools, first = grant.partition(b"  tools:\n")
    return {**files, "grants/data.yaml": before + head + tools + FINISH + first + after}


@pytest.fixture(scope="module")
def shipped() -> dict[str, bytes]:
    return files_of()


def question_of(agent: str, tool: str, sinks: Mapping[str, str], **action: Any) -> Question:
    """Return a question that the shipped policy grants but for the origins given."""
    grant = mount(files_of())["grants"][agent]
    found = build_request(
        agent, tool, {"owner": grant.get("owner", "o"), **grant["tools"][tool]}, list(sinks)
    )
    found["action"]["origins"] = dict(sinks)
    found["action"].update(action)
    return found


def bases() -> dict[str, Question]:
    """Return questions that the whole policy permits (the second only once approved)."""
    return {
        "file": question_of(
            "inbox_triage", "mail.file", {"/message": "trusted", "/folder": "trusted"}
        ),
        "send": approved(
            question_of("inbox_triage", "mail.send", {"/message": "trusted", "/to": "trusted"})
        ),
        "open": question_of("anomaly_detection", "incident.open", {"/series": "trusted"}),
        "finish": finish(),
    }


def finish() -> Question:
    """Return the end of a task whose conditions hold."""
    found = question_of("inbox_triage", "task.finish", {})
    met = {"name": "sent", "held": True, "why": "counted"}
    found["context"]["task"] = {"conditions": [met, met], "person": False}
    return found


def approved(one: Question) -> Question:
    one["context"]["approvals"] = [
        {"action_digest": one["action"]["digest"], "by": "person:ada", "until": NOW_US + 10**9}
    ]
    return one


def must_be_denied() -> dict[str, Question]:
    """Return, by name, what the whole policy denies whatever a person approves."""

    def changed(base: str, *changes: tuple[str, str, Any]) -> Question:
        found = copy.deepcopy(bases()[base])
        for part, name, value in changes:
            found[part][name] = value
        return found

    def origin(base: str, sink: str, value: str) -> Question:
        found = copy.deepcopy(bases()[base])
        found["action"]["origins"][sink] = value
        return found

    def event(base: str, **values: Any) -> Question:
        found = copy.deepcopy(bases()[base])
        found["context"]["event"].update(values)
        return found

    forward = question_of(
        "inbox_triage", "mail.forward", {"/message": "trusted", "/to": "untrusted"}
    )
    exhausted = copy.deepcopy(bases()["file"])
    exhausted["context"]["counters"]["run"] = exhausted["context"]["budget"]["run"] = 8
    # Of a tool that is granted but for its name: what ends a task.
    unfinished = copy.deepcopy(bases()["finish"])
    unfinished["context"]["task"]["conditions"][0]["held"] = False
    taskless = copy.deepcopy(bases()["finish"])
    del taskless["context"]["task"]
    found = {
        "send to an address out of the mail": origin("send", "/to", "untrusted"),
        "send to an address by value": origin("send", "/to", "derived"),
        "forward to an address out of the mail": forward,
        "file a message that the mail names": origin("file", "/message", "untrusted"),
        "open for a series nobody vouches for": origin("open", "/series", "untrusted"),
        "send without an origin": changed("send", ("action", "origins", {"/message": "trusted"})),
        "send with its sinks left out": changed(
            "send",
            ("action", "sinks", []),
            ("action", "origins", {"/message": "trusted", "/to": "untrusted"}),
        ),
        "an unknown agent": changed(
            "open", ("subject", "agent", "stranger"), ("subject", "id", "spiffe://f/agent/stranger")
        ),
        "another agent's identity": changed("open", ("subject", "id", "spiffe://f/agent/stranger")),
        "an ungranted tool": changed("open", ("action", "tool", "mail.send")),
        "another verb": changed("file", ("action", "verb", "delete")),
        "another resource": changed("file", ("resource", "type", "outbox")),
        "too many hops": event("file", hops=9),
        "observe": changed("file", ("subject", "requested_mode", "observe")),
        "a mode that is none": changed("file", ("subject", "requested_mode", "act!")),
        "another owner": changed("file", ("subject", "owner", "x@evil.example")),
        "no release": changed("file", ("subject", "release", "")),
        "an exhausted run": exhausted,
        "the end of a task with a condition unmet": unfinished,
        "the end of what is no task": taskless,
        "another schema": {**bases()["file"], "schema": "vedette.question/3"},
        "another's memory": build_read_request("anomaly_detection", "o", "inbox/inbox"),
        "nothing": {},
    }
    return {name: approved(one) if one else one for name, one in found.items()}


def cuts(files: Mapping[str, bytes]) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield every bundle with one file left out, or cut after one of its lines."""
    for path, raw in files.items():
        if path.endswith("_test.rego"):
            continue
        yield f"{path} left out", {name: raw for name, raw in files.items() if name != path}
        lines = raw.splitlines(keepends=True)
        for kept in range(len(lines)):
            yield f"{path} cut after line {kept}", {**files, path: b"".join(lines[:kept])}


def outcomes(files: Mapping[str, bytes], questions: Mapping[str, Question]) -> dict[str, str]:
    """Load past staging and decide; what does not load or fails denies, as the gateway does."""
    try:
        engine = RegorusEngine(Bundle.of(files))
    except BadPolicy:
        return dict.fromkeys(questions, "deny")
    found: dict[str, str] = {}
    for name, one in questions.items():
        try:
            found[name] = parse_decision(engine.decide(orjson.dumps(one))).outcome
        except EngineFailed:
            found[name] = "deny"
    return found


@pytest.fixture
def quick_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mount equal data files once: reading YAML is nine tenths of loading a bundle."""
    known: dict[bytes, dict[str, Any]] = {}
    plain: Callable[[Mapping[str, bytes]], dict[str, Any]] = mount

    def cached(files: Mapping[str, bytes]) -> dict[str, Any]:
        key = repr(sorted((path, raw) for path, raw in files.items() if is_data(path))).encode()
        if key not in known:
            known[key] = plain(files)
        return known[key]

    monkeypatch.setattr(regorus_engine, "mount", cached)


def test_whole_policy_permits_the_bases_and_denies_the_rest(shipped: dict[str, bytes]) -> None:
    assert set(outcomes(shipped, bases()).values()) == {"permit"}
    denied = outcomes(shipped, must_be_denied())
    assert {name for name, outcome in denied.items() if outcome != "deny"} == set()


@pytest.mark.usefixtures("quick_mount")
@pytest.mark.parametrize("every", [6, 1])
def test_no_cut_policy_permits_what_must_be_denied(shipped: dict[str, bytes], every: int) -> None:
    questions = must_be_denied()
    tried = 0
    permitted = []
    for name, files in islice(cuts(shipped), 0, None, every):
        tried += 1
        found = outcomes(files, questions)
        permitted += [(name, what) for what, outcome in found.items() if outcome == "permit"]
    assert permitted == []
    assert tried > 400 // every


NAIVE = """package vedette.gateway

deny contains "agent" if not known

known if data.grants[input.subject.agent]

deny contains "hops" if input.context.event.hops > data.limits.hops

deny contains "sink" if {
	some sink in input.action.sinks
	input.action.origins[sink] in {"derived", "untrusted"}
}

outcome := "deny" if count(deny) > 0

else := "permit"

decision := {
	"schema": "vedette.decision/1", "outcome": outcome, "rule": "naive", "reasons": [],
	"wait": null, "until": 0, "would": null, "obligations": [],
}
"""


@pytest.mark.usefixtures("quick_mount")
def test_control_a_policy_of_denies_alone_does_permit_when_cut(shipped: dict[str, bytes]) -> None:
    head, _, rest = NAIVE.partition("outcome :=")
    files = {
        "vedette/gateway/rules.rego": head.encode(),
        "vedette/gateway/answer.rego": ("package vedette.gateway\n\noutcome :=" + rest).encode(),
        **{path: raw for path, raw in shipped.items() if is_data(path)},
    }
    wanted = ("send to an address out of the mail", "an unknown agent", "too many hops")
    questions = {name: must_be_denied()[name] for name in wanted}
    assert set(outcomes(files, questions).values()) == {"deny"}
    permitted = [
        name
        for name, cut in cuts(files)
        if name.startswith("vedette/") or name.endswith("left out")
        if "permit" in outcomes(cut, questions).values()
    ]
    assert any(name.startswith("vedette/gateway/rules.rego cut") for name in permitted)
    assert "limits/data.yaml left out" in permitted


@pytest.mark.slow
@pytest.mark.parametrize("most", [4, 100])
async def test_staging_refuses_or_still_denies(shipped: dict[str, bytes], most: int) -> None:
    """One seeded cut of every file, and every file left out, through the real stage."""
    stage = SubprocessStage()
    every = list(cuts(shipped))
    chosen = [each for each in every if each[0].endswith("left out")]
    for path in sorted({name.split(" ")[0] for name, _ in every}):
        mine = [each for each in every if each[0].startswith(f"{path} cut")]
        chosen.append(random.Random(path).choice(mine))
    chosen = random.Random(most).sample(chosen, min(most, len(chosen)))
    questions = must_be_denied()
    refused = 0
    for name, files in chosen:
        findings = await stage.try_out(Bundle.of(files))
        refused += bool(findings)
        if findings:
            assert all(each.file and each.line > 0 and each.what for each in findings), name
        else:
            assert "permit" not in outcomes(files, questions).values(), name
    rego = [name for name, _ in chosen if ".rego " in name]
    assert refused >= len(rego)
