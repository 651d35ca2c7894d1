"""Staging asks about the rules themselves: each branch both ways; a lying engine is caught."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from vedette.adapters.policy_engines.regorus.branch_inputs import MAX_REQUESTS, branch_requests
from vedette.adapters.policy_engines.regorus.engine import InterpreterEngine, RegorusEngine
from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.adapters.policy_engines.regorus.syntax import read_modules
from vedette.adapters.policy_engines.regorus.trial import find_engine_differences
from vedette.domain.bundle import Bundle
from vedette.domain.decision import parse_decision
from vedette.domain.ports.policy_engine import PolicyEngine
from vedette.policy.bundle_data import mount
from vedette.policy.golden_requests import golden_requests

SHIPPED = read_bundle(Path(__file__).parents[4] / "policies")
DENIES = "vedette/denies/denies.rego"

# A rule that is added, and the conditions of it that must be seen to fail one by one.
ADDED = {
    "two texts and a number": (
        'deny contains "mine" if {\n\tinput.action.tool == "mail.file"\n\t'
        'input.action.args.folder == "Invoices"\n\tinput.context.counters.hour > 41\n}',
        ("action/tool", "action/args/folder", "context/counters/hour"),
    ),
    "a list and a truth": (
        'deny contains "mine" if {\n\tinput.action.args.folder in {"Spam", "Trash"}\n\t'
        "input.action.high_impact == true\n}",
        ("action/args/folder", "action/high_impact"),
    ),
    "a rule of its own, and not another": (
        'late if input.context.event.hops == 3\n\nknown if input.context.event.source == "mine"\n\n'
        'deny contains "mine" if {\n\tlate\n\tnot known\n}',
        ("context/event/hops", "context/event/source"),
    ),
    "what the data say": (
        'deny contains "mine" if {\n\tis_number(data.limits.hops)\n\t'
        'input.context.event.hops == data.limits.hops\n\tinput.resource.id != "golden"\n}',
        ("context/event/hops", "resource/id"),
    ),
    "a name, and text that begins so": (
        'deny contains "mine" if {\n\tto := input.action.args.to\n\tis_string(to)\n\t'
        'startswith(to, "boss@")\n\tinput.context.confidence <= 907\n}',
        ("action/args/to", "context/confidence"),
    ),
    "an element of a list": (
        'deny contains "mine" if {\n\tsome each in input.context.memories\n\t'
        'each.bank == "mine"\n\tinput.subject.requested_mode != "ask"\n}',
        ("context/memories/*/bank", "subject/requested_mode"),
    ),
}  # fmt: skip


def made(rules: str) -> tuple[Bundle, list[tuple[str, Any]], list[tuple[str, Any]]]:
    text = SHIPPED.files[DENIES] + f"\n{rules}\n".encode()
    bundle = Bundle.of({**SHIPPED.files, DENIES: text})
    data = mount(bundle.files)
    right = golden_requests(data)
    modules = read_modules(InterpreterEngine(bundle, data).syntax_trees())
    return bundle, right, branch_requests(modules, data, right)


@pytest.mark.parametrize("name", ADDED)
def test_each_branch_is_taken_both_ways(name: str) -> None:
    rules, places = ADDED[name]
    bundle, right, inputs = made(rules)
    engine = RegorusEngine(bundle)
    line = SHIPPED.files[DENIES].count(b"\n") + 2
    (held,) = [
        one for reason, one in inputs
        if reason.startswith("deny in") and _line(reason) >= line and reason.endswith("holds")
    ]  # fmt: skip
    assert _denied(engine, held)
    for place in places:
        # By what it asks, not by its name: another rule may have asked the same before.
        steps = place.split("/")
        varied = [one for _, one in inputs if _without(one, steps) == _without(held, steps)]
        assert any(not _denied(engine, one) for one in varied), place
    # Control: the golden questions alone never come by.
    assert not any(_denied(engine, one) for _, one in right)


def test_there_are_at_most_so_many_and_always_the_same() -> None:
    _, _, inputs = made("")
    assert 100 < len(inputs) <= MAX_REQUESTS
    assert made("")[2] == inputs
    raw = {orjson.dumps(one, option=orjson.OPT_SORT_KEYS) for _, one in inputs}
    assert len(raw) == len(inputs)


class Liar:
    """An engine that decides one class of questions otherwise: what one added rule speaks of."""

    name = "liar"

    def __init__(self, honest: PolicyEngine) -> None:
        self._honest = honest
        self.digest = honest.digest

    def decide(self, question: bytes) -> object:
        answer: Any = self._honest.decide(question)
        if "denies.mine" in parse_decision(answer).reasons:
            honest: Any = RegorusEngine(SHIPPED).decide(question)
            return honest
        return answer


@pytest.mark.parametrize("name", ADDED)
def test_a_planted_difference_of_one_engine_is_caught(name: str) -> None:
    rules = ADDED[name][0].replace('"mine" if', '"denies.mine" if')
    bundle, right, inputs = made(rules)
    plain, honest = InterpreterEngine(bundle), RegorusEngine(bundle)
    assert find_engine_differences(plain, [honest], [*right, *inputs], DENIES) == []
    liar = Liar(honest)
    (found,) = find_engine_differences(plain, [honest, liar], [*right, *inputs], DENIES)
    assert (found.file, "the engines differ" in found.what) == (DENIES, True)
    # Control: what was asked before would have let it pass.
    assert find_engine_differences(plain, [liar], right, DENIES) == []


def _denied(engine: PolicyEngine, question: Any) -> bool:
    found: Any = engine.decide(orjson.dumps(question))
    return any(reason.endswith("mine") for reason in parse_decision(found).reasons)


def _without(question: Any, steps: list[str]) -> Any:
    """Return a question without what stands at a place, `*` being any element of a list."""
    if not steps or not isinstance(question, dict | list):
        return None
    step, *inner = steps
    if isinstance(question, list):
        return [_without(each, inner) for each in question] if step == "*" else question
    return {
        name: _without(value, inner) if name == step else value for name, value in question.items()
    } | ({} if step in question else {step: None})


def _line(text: str) -> int:
    return int(text.split(".rego:")[1].split(" ")[0])
