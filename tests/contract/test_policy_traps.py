"""Where engines differ by nature the portable profile refuses the policy; each with its proof.

Every trap is shown twice: the compiled program and OPA really answer otherwise (or one of them does
not answer at all), and the trial does not admit a bundle that holds it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.opa import find_opa

from vedette.adapters.rego.engine import PlainEngine, RegorusEngine
from vedette.adapters.rego.profile import check
from vedette.adapters.rego.stage import read_bundle
from vedette.adapters.rego.syntax import read_modules
from vedette.bundle import Bundle
from vedette.errors import EngineFailed
from vedette.load.policy_data import mount

POLICIES = Path(__file__).parents[2] / "policies"
DENIES = "vedette/denies/denies.rego"

# Rules that give `answer`, a question, what the compiled program says, what OPA says, and words of
# the refusal. An undefined answer is None.
TRAPS: dict[str, tuple[str, Any, Any, Any, str]] = {
    "an assignment that nobody asks for": (
        "answer if { given := input.missing }", {}, True, None, "given may be undefined",
    ),
    "an assignment of an assignment": (
        "answer if { one := input.missing; two := one }", {}, True, None, "may be undefined",
    ),
    "an assignment that is negated": (
        "answer if { given := input.missing; not given }", {}, True, None, "given may be undefined",
    ),
    "an unknown agent's grant": (
        "answer if { grant := data.grants[input.agent] }", {"agent": "nobody"}, True, None,
        "grant may be undefined",
    ),
    "a list around what is missing": (
        "answer if { pair := [1, input.missing] }", {}, True, None, "pair may be undefined",
    ),
    "a failing function": (
        "answer if { small := lower(input.n) }", {"n": 5}, True, None, "small may be undefined",
    ),
    "a parameter without a name": (
        "any(_) if true\n\nanswer if any(input.missing)", {}, True, None, "without a name",
    ),
    "a set of what is missing": (
        "answer := count({each | each := input.missing})", {}, 1, 0, "may be undefined",
    ),
    "a field that one of them lacks": (
        "answer := count([each.b | some each in input.all])", {"all": [{"b": 1}, {}]}, 2, 1,
        "what is collected may be undefined",
    ),
    "a rule that collects a field": (
        "found contains each.b if some each in input.all\n\nanswer := count(found)",
        {"all": [{"b": 1}, {}]}, 2, 1, "what is collected may be undefined",
    ),
    "a rule that collects a text made of a number": (
        'found contains concat(":", ["a", input.n])\n\nanswer := count(found)', {"n": 5}, 1, 0,
        "what is collected may be undefined",
    ),
    "an object of what is missing": (
        'answer := {"a": each | some one in [1]; each := input.missing}', {}, {"a": "<undefined>"},
        {}, "may be undefined",
    ),
    "a default function": (
        "default mild(_) := true\n\nmild(x) if x > 1\n\nanswer if mild(0)", {}, None, True,
        "default function",
    ),
    "padding": ("answer := base64.decode(input.t)", {"t": "YQ"}, None, None, "base64.decode"),
    "the place of nothing": (
        'answer := indexof(input.t, "")', {"t": "ab"}, 0, None, "indexof",
    ),
    "a number where a text is meant": (
        'answer := sprintf("%s", [input.n])', {"n": 5}, "5", "%!s(int64=5)", "sprintf",
    ),
    "a subset of what has none": (
        "answer := object.subset(input.n, input.n)", {"n": 5}, True, None, "object.subset",
    ),
    "a letter that grows": ("answer := upper(input.t)", {"t": "ß"}, "SS", "ß", "upper"),
}  # fmt: skip


def module(rules: str) -> Bundle:
    return Bundle.of({"vedette/gateway/t.rego": f"package vedette.gateway\n\n{rules}\n".encode()})


def compiled(rules: str, question: Any) -> Any:
    text = f"{rules}\n\ndecision := answer"
    grants = {"data.json": b'{"grants": {}}'}
    return RegorusEngine(Bundle.of({**module(text).files, **grants})).decide(orjson.dumps(question))


def by_opa(rules: str, question: Any, folder: Path) -> Any:
    file = folder / "t.rego"
    file.write_text(f"package vedette.gateway\n\n{rules}\n", encoding="utf-8")
    done = subprocess.run(
        [find_opa(), "eval", "--data", str(file), "--stdin-input", "data.vedette.gateway.answer"],
        input=orjson.dumps(question), capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout).get("result")
    return found[0]["expressions"][0]["value"] if found else None


SHIPPED = read_bundle(POLICIES)
DATA = mount(SHIPPED.files)


def refusals(rules: str) -> list[str]:
    """Return what the profile says against the rules, added to a shipped module."""
    text = SHIPPED.files[DENIES] + f"\n{rules}\n".encode()
    return refused(Bundle.of({DENIES: text}))


def refused(bundle: Bundle) -> list[str]:
    modules = read_modules(PlainEngine(bundle, DATA, tests=True).syntax())
    return [f"{each.file}: {each.what}" for each in check(modules, DATA)]


@pytest.mark.parametrize("name", TRAPS)
def test_the_engines_really_differ_and_the_profile_refuses(name: str, tmp_path: Path) -> None:
    rules, question, here, opa, words = TRAPS[name]
    said = by_opa(rules, question, tmp_path)
    assert said == opa
    if name != "padding":  # there it is OPA's Wasm that differs, not the compiled program
        assert compiled(rules, question) == here
        assert here != said
    found = refusals(rules)
    assert any(DENIES in each and words in each for each in found), found


def test_recursion_that_ends_the_process_is_refused() -> None:
    assert any("recursion" in each for each in refusals("one if two\n\ntwo if one"))


def test_a_misspelt_name_that_is_never_true_is_refused() -> None:
    assert any("agnets" in each for each in refusals("other if data.fleet.agnets"))


def test_rules_that_conflict_are_an_error_to_the_interpreter() -> None:
    """Not a thing of syntax: the golden questions find it, as the interpreter then fails."""
    rules = "decision := 1 if input.a\n\ndecision := 2 if input.b"
    question = b'{"a": true, "b": true}'
    assert RegorusEngine(module(rules)).decide(question) is None
    with pytest.raises(EngineFailed):
        PlainEngine(module(rules)).decide(question)


# Near each trap, what is certainly defined or asked for: nobody must write around a false alarm.
FINE = (
    "other if { given := input.now; is_number(given) }",
    "other if { given := input.now; given > 3 }",
    "other if { one := input.subject; two := one.agent; is_string(two) }",
    'other if { words := ["a", "b"]; input.now == 1 }',
    "other if { count({each | some each in input.action.sinks}) > 0 }",
    "other if { names := {name | some name, _ in data.grants}; count(names) > 3 }",
    "found contains sink if some sink in input.action.sinks",
    'found contains {"a": sink, "n": 1} if some sink in input.action.sinks',
    "found contains name if { some each in data.grants; name := each.owner; is_string(name) }",
    "other if { some name, _ in data.grants; count([name | input.now > 1]) > 3 }",
    "other if { some a in input.x; count([b | some b in a.y; [a | b > 1] != []]) > 3 }",
    "names(x) := [x | input.now > 1]",
    "plus(x) := x + 1",
    'found contains told if { some sink in input.x; told := sprintf("%v%%", [sink]); told != "" }',
    "near(x, y) if x < y",
    'word(x) := {"word": x}',
    'kind("a") := 1',
    'thing(x) := "thing"',
    "other if { every sink in input.action.sinks { is_string(sink) } }",
    "other if { some place; input.action.sinks[place] == data.limits.hops }",
)


@pytest.mark.parametrize("rules", FINE)
def test_what_is_certain_is_not_refused(rules: str) -> None:
    assert not [
        each
        for each in refusals(rules)
        if "undefined" in each or "never" in each or "sprintf" in each
    ]


def test_the_shipped_policies_hold_none() -> None:
    assert refused(SHIPPED) == []
