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

from vedette.adapters.policy_engines.regorus.engine import InterpreterEngine, RegorusEngine
from vedette.adapters.policy_engines.regorus.profile import check_profile
from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.adapters.policy_engines.regorus.syntax import read_modules
from vedette.domain.base.canonical import MAX_SAFE_INTEGER
from vedette.domain.base.errors import EngineFailed
from vedette.domain.bundle import Bundle
from vedette.policy.bundle_data import mount

POLICIES = Path(__file__).parents[4] / "policies"
DENIES = "vedette/denies/denies.rego"

# Rules that give `answer`, a question, what the compiled program says, what OPA says, and words of
# the refusal. An undefined answer is None.
TRAPS: dict[str, tuple[str, Any, Any, Any, str]] = {
    "an assignment that nobody asks for": (
        "answer if { given := input.missing }", {}, True, None, "given may be undefined",
    ),
    "every, where one holds": (
        'answer if { every name in input.all { input.kinds[name] == "x" } }',
        {"all": ["y", "x"], "kinds": {"x": "x", "y": "z"}}, True, None, "`every`",
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
    "an assignment to nobody": ("answer if { _ := input.missing }", {}, True, None, "to _"),
    "an assignment to nobody that asks for nothing": (
        "answer if { given := input.missing; _ := given }", {}, True, None, "given may be",
    ),
    "an assignment to nobody in a collection": (
        "answer := count([each | some each in [1, 2]; _ := input.missing])", {}, 2, 0, "to _",
    ),
    "membership with a key": (
        'answer if "a", 1 in input.o', {"o": {"b": 1}}, True, None, "looks at the value only",
    ),
    "membership with a missing key": (
        "answer if input.missing, 1 in input.o", {"o": {"b": 1}}, True, None, "the value only",
    ),
    "digits": (
        r"answer := regex.match(`^\d+$`, input.t)", {"t": "٣٤"}, True, False, "regex.match",
    ),
    "letters of a word": (
        r"answer := regex.match(`^\w+$`, input.t)", {"t": "é"}, True, False, "regex.match",
    ),
    "spaces": (
        r"answer := regex.match(`^\s+$`, input.t)", {"t": "\u00a0"}, True, False, "regex.match",
    ),
    "the end of a word": (
        r"answer := regex.match(`a\b`, input.t)", {"t": "aé"}, False, True, "regex.match",
    ),
    "no digits": (
        r"answer := regex.match(`^\D+$`, input.t)", {"t": "٣"}, False, True, "regex.match",
    ),
    "spaced patterns": (
        "answer := regex.match(`(?x)a b`, input.t)", {"t": "ab"}, True, None, "regex.match",
    ),
    "a class within a class": (
        "answer := regex.match(`^[[a]]$`, input.t)", {"t": "a"}, True, False, "regex.match",
    ),
    "a class less another": (
        "answer := regex.match(`^[a-z--b]$`, input.t)", {"t": "b"}, False, True, "regex.match",
    ),
    "one class or the other": (
        "answer := regex.match(`^[a-c~~b]$`, input.t)", {"t": "b"}, False, True, "regex.match",
    ),
    "a quoted pattern": (
        r"answer := regex.match(`^\Qa.b\E$`, input.t)", {"t": "a.b"}, None, True, "regex.match",
    ),
    "many repetitions": (
        "answer := regex.match(`^a{1001}$`, input.t)", {"t": "a"}, False, None, "regex.match",
    ),
    "a class of Unicode": (
        r"answer := regex.match(`^\p{Alphabetic}$`, input.t)", {"t": "a"}, True, None,
        "regex.match",
    ),
    "a star at a delimiter": (
        'answer := glob.match("team:*", [":"], input.t)', {"t": "team:a:root"}, True, False,
        "glob.match",
    ),
    "two stars": (
        'answer := glob.match("a**", ["/"], input.t)', {"t": "a/c"}, False, True, "glob.match",
    ),
    "one character at a delimiter": (
        'answer := glob.match("a?c", [":"], input.t)', {"t": "a:c"}, True, False, "glob.match",
    ),
    "one character of two bytes": (
        'answer := glob.match("?", [":"], input.t)', {"t": "ä"}, False, True, "glob.match",
    ),
    "none of some characters": (
        'answer := glob.match("[^a]c", [":"], input.t)', {"t": "bc"}, True, False, "glob.match",
    ),
    "a letter with two small forms": (
        "answer := lower(input.t)", {"t": "ΑΣ"}, "ας", "ασ", "lower",
    ),
    "a letter that splits": ("answer := lower(input.t)", {"t": "İ"}, "i̇", "i", "lower"),
    "IPv4 in IPv6": (
        'answer := net.cidr_contains("10.0.0.0/8", input.t)', {"t": "::ffff:10.9.9.9"}, False,
        True, "net.cidr_contains",
    ),
    "too few values for a format": (
        'answer := sprintf("%v %v", [input.t])', {"t": "a"}, None, "a %!v(MISSING)", "sprintf",
    ),
    "too many values for a format": (
        'answer := sprintf("%v", [input.t, 1])', {"t": "a"}, None, "a%!(EXTRA int64=1)",
        "sprintf",
    ),
    "a list of who knows how many values for a format": (
        'answer := sprintf("%v", input.t)', {"t": ["a", "b"]}, None, "a%!(EXTRA string=b)",
        "sprintf",
    ),
    "the place of a set": (
        'answer := sort([{1}, {"b": 1}])[0]', {}, [1], {"b": 1}, "sort",
    ),
    "a product beyond 64 bits": (
        "answer := input.n * 5001", {"n": MAX_SAFE_INTEGER}, MAX_SAFE_INTEGER * 5001 / 1,
        MAX_SAFE_INTEGER * 5001, "beyond 64 bits",
    ),
    "a product of two fields": (
        "answer := abs(0 - (input.n * input.n)) % 1000", {"n": MAX_SAFE_INTEGER}, 81, 0,
        "beyond 64 bits",
    ),
    "a product of a product": (
        "answer := y if { x := input.n * 1000; y := x * 1000 }", {"n": MAX_SAFE_INTEGER},
        9.007199254740991e21, MAX_SAFE_INTEGER * 1_000_000, "beyond 64 bits",
    ),
    "a product of a list": (
        "answer := product([input.n, 5001])", {"n": MAX_SAFE_INTEGER}, MAX_SAFE_INTEGER * 5001 / 1,
        MAX_SAFE_INTEGER * 5001, "product",
    ),
    "a literal at the end of 64 bits": (
        "answer := input.n + 18446744073709551615", {"n": MAX_SAFE_INTEGER}, 1.8455751272964293e19,
        MAX_SAFE_INTEGER + 18446744073709551615, "beyond what every reader holds",
    ),
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
    modules = read_modules(InterpreterEngine(bundle, DATA, tests=True).syntax_trees())
    return [f"{each.file}: {each.what}" for each in check_profile(modules, DATA, sample={})]


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
        InterpreterEngine(module(rules)).decide(question)


# Near each trap, what is certainly defined or asked for: nobody must write around a false alarm.
FINE = (
    "other if { given := input.now; is_number(given) }",
    "other if { given := input.now; given > 3 }",
    "other if { one := input.subject; two := one.agent; is_string(two) }",
    "other if { count({each | some each in input.action.sinks}) > 0 }",
    "other if { names := {name | some name, _ in data.grants}; count(names) > 3 }",
    "found contains sink if some sink in input.action.sinks",
    'found contains {"a": sink, "n": 1} if some sink in input.action.sinks',
    "found contains name if { some each in data.grants; name := each.owner; is_string(name) }",
    "other if { some name, _ in data.grants; count([name | input.now > 1]) > 3 }",
    "plus(x) := x + 1 if is_number(x)",
    'word(x) := {"word": x} if is_string(x)',
    'kind(x) := 1 if x == "a"',
    "names(x) := [y | some y in x] if is_array(x)",
    'found contains t if { some s in input.x; is_string(s); t := concat("%", [s]); t != "" }',
    "other if { sinks := input.action.sinks; is_array(sinks); last := sinks[1]; is_string(last) }",
    "other if { some sink in input.action.sinks; sink == data.limits.hops }",
    "other if { is_number(input.action.args.n); input.action.args.n * 1000 > 5 }",
    "other if { is_number(data.limits.hops); 100 * data.limits.hops > input.now }",
    "other if { n := input.action.args.amount; is_number(n); n > 9007199254740991 }",
    'other if "a" in input.action.sinks',
    'other if { some key, value in input.action.args; key == "a"; value == 1 }',
    "near(x, y) if x < y",
)


@pytest.mark.parametrize("rules", FINE)
def test_what_is_certain_is_not_refused(rules: str) -> None:
    assert [each for each in refusals(rules) if each.startswith(DENIES)] == []


def test_the_shipped_policies_hold_none() -> None:
    assert refused(SHIPPED) == []
