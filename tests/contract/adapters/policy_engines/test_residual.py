"""The residual of the shipped policy beside OPA's Wasm: same permits, or it gives way.

A sample; `make diff-residuals` asks a hundred thousand questions of each, and `make diff-engines`
compares residuals of twenty thousand generated modules with a server.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from tests.diff_residuals import granted_requests, mutants
from tests.engines import Engines
from tests.questions import BUNDLE, generated
from tests.rego_compare import GAVE_WAY, bundle_of, by_residual, plain

from vedette.adapters.policy_engines.opa_wasm import WasmEngine
from vedette.adapters.policy_engines.regorus.engine import InterpreterEngine
from vedette.adapters.policy_engines.regorus.residual.code_writer import Unsupported
from vedette.adapters.policy_engines.regorus.residual.compiler import (
    BundleCompiler,
    CompiledResidual,
    build_residual,
)
from vedette.adapters.policy_engines.regorus.residual.forms import find_unsupported_form
from vedette.adapters.policy_engines.regorus.residual.values import GiveWay
from vedette.adapters.policy_engines.regorus.syntax import read_modules
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import EngineFailed
from vedette.domain.bundle import Bundle
from vedette.domain.decision import check_request, evaluate_request
from vedette.domain.ports.policy_engine import MAX_QUESTION_BYTES
from vedette.domain.work_tools import FINISH_TOOL
from vedette.policy.residuals import compare_residual

Request = dict[str, Any]
TOOL = "mail.file"
REQUESTS = {each["action"]["tool"]: each for each in granted_requests(BUNDLE)}


@pytest.fixture(scope="module")
def wasm() -> Iterator[WasmEngine]:
    with Engines() as engines:
        yield engines.wasm(BUNDLE)


@pytest.fixture(scope="module")
def compiler() -> BundleCompiler:
    return BundleCompiler(BUNDLE)


@pytest.fixture(scope="module")
def residual(compiler: BundleCompiler) -> CompiledResidual:
    return compiler.compile(REQUESTS[TOOL])


def changed(path: str, value: Any) -> bytes:
    request: Any = orjson.loads(orjson.dumps(REQUESTS[TOOL]))
    *steps, last = path.split("/")
    inner = request
    for step in steps:
        inner = inner[step]
    inner[last] = value
    return canonical_json(request)


@pytest.mark.parametrize("tool", sorted(REQUESTS))
def test_what_a_residual_permits_the_engine_permits_in_the_same_words(
    tool: str, wasm: WasmEngine, compiler: BundleCompiler
) -> None:
    approved = orjson.loads(orjson.dumps(REQUESTS[tool]))
    approval = {"action_digest": approved["action"]["digest"], "by": "person:ada"}
    approved["context"]["approvals"] = [{**approval, "until": approved["now"] + 1}]
    recorded = [canonical_json(REQUESTS[tool]), canonical_json(approved)]
    permits, difference = compare_residual(
        compiler.compile(REQUESTS[tool]), wasm, recorded, "a test", 20
    )
    assert difference is None
    # The comparison means something only if there was something to compare. No task ends without
    # what the engine found of its conditions, which a residual is never asked about.
    assert (permits > 10) == (tool != FINISH_TOOL)


def test_questions_of_other_tools_and_odd_ones_are_the_engines(
    wasm: WasmEngine, compiler: BundleCompiler
) -> None:
    residuals = {
        (request["subject"]["agent"], tool): compiler.compile(request)
        for tool, request in REQUESTS.items()
    }
    permits = 0
    for request in generated(800, seed=20261127):
        raw = orjson.dumps(request, option=orjson.OPT_SORT_KEYS)
        for residual in residuals.values():
            decision = residual.permit(raw)
            if decision is not None and check_request(request) is None:
                permits += 1
                assert decision == evaluate_request(wasm, raw)
    assert permits > 20


def test_the_guard_asks_for_each_known_field_by_type_and_value(residual: CompiledResidual) -> None:
    right = canonical_json(REQUESTS[TOOL])
    assert residual.permit(right) is not None
    for path, value in (
        ("subject/agent", "other"), ("subject/release", "6" * 64), ("subject/owner", None),
        ("subject/requested_mode", "observe"), ("action/tool", "mail.flag"),
        ("action/verb", ["move"]), ("action/declared", "e" * 64), ("action/settles", "none"),
        ("action/high_impact", 0), ("action/high_impact", True), ("action/sinks", ["/folder"]),
        ("action/sinks", []), ("resource/id", "else"), ("context/budget/hour", False),
        ("context/budget/run", "0"), ("schema", "vedette.question/1"),
        # And the others by their type.
        ("now", True), ("now", "1"), ("now", 2**53), ("action/args", []), ("action/origins", None),
        ("context/approvals", {}), ("context/stopped", 0), ("context/confidence", True),
        ("context/counters/minute", False), ("context/event/hops", "0"), ("context/trigger", 1),
    ):  # fmt: skip
        assert residual.permit(changed(path, value)) is None, path
    assert residual.permit(b"{}") is None
    assert residual.permit(b"no question") is None


def test_a_fraction_is_not_sure(residual: CompiledResidual) -> None:
    request: Any = orjson.loads(canonical_json(REQUESTS[TOOL]))
    request["context"]["confidence"] = 1000.0
    assert residual.permit(orjson.dumps(request)) is None


def test_what_the_engine_may_not_end_in_time_is_not_permitted(residual: CompiledResidual) -> None:
    long = "x" * MAX_QUESTION_BYTES
    assert (
        residual.permit(changed("action/args", {**REQUESTS[TOOL]["action"]["args"], "a": long}))
        is None
    )
    many = dict.fromkeys((f"/{number}" for number in range(100)), "trusted")
    origins = {**REQUESTS[TOOL]["action"]["origins"], **many}
    assert residual.permit(changed("action/origins", origins)) is None


# --- a wrong one is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "find", "put"),
    [
        ("limits/data.yaml", b"hops: 8", b"hops: 9"),
        ("limits/data.yaml", b"default: 800", b"default: 799"),
        ("limits/data.yaml", b"minute: 12000", b"minute: 12001"),
        ("vedette/holds/holds.rego", b"input.context.stopped == false",
         b"is_boolean(input.context.stopped)"),
        ("vedette/approval/approval.rego", b"given.until > input.now", b"given.until >= input.now"),
        ("vedette/origins/origins.rego", b'input.action.origins[sink] == "trusted"',
         b'input.action.origins[sink] != "untrusted"'),
        ("vedette/gateway/decide.rego", b'"label": "untrusted"', b'"label": "trusted"'),
    ],
)  # fmt: skip
def test_a_residual_of_another_policy_is_refused(
    file: str, find: bytes, put: bytes, wasm: WasmEngine
) -> None:
    text = BUNDLE.files[file]
    assert find in text, "the shipped policy says it otherwise now"
    other = Bundle.of({**BUNDLE.files, file: text.replace(find, put)})
    planted = BundleCompiler(other).compile(REQUESTS[TOOL])
    recorded = canonical_json(REQUESTS[TOOL])
    assert compare_residual(planted, wasm, [recorded], "a test")[1] is not None


def test_a_spoilt_residual_is_refused(residual: CompiledResidual, wasm: WasmEngine) -> None:
    """What stands twice in the policy (a condition, and the reasons that count) may be missed."""
    recorded = [canonical_json(REQUESTS[TOOL])]
    chosen = random.Random(7).sample(list(mutants(residual)), 24)
    assert any(compare_residual(each, wasm, recorded, "a test")[1] for _, each in chosen)


# --- source ---------------------------------------------------------------------------------------


def test_no_word_of_a_policy_is_read_as_python() -> None:
    """A package may have any text as a step: here a line of Python follows the end of one."""
    name = "x\n    raise SystemExit('planted')\n    #"
    inner = f"package vedette[{orjson.dumps(name).decode()}]\n\nr if input.x > 1\n"
    main = f"package vedette.gateway\n\ndecision if data.vedette[{orjson.dumps(name).decode()}].r\n"
    bundle = Bundle.of({"a.rego": main.encode(), "b.rego": inner.encode()})
    modules = read_modules(InterpreterEngine(bundle, {}).syntax_trees())
    assert "no word" in str(find_unsupported_form(modules))
    # Nor if that were not seen: nothing of the name is in the source.
    entry = ("vedette", "gateway", "decision")
    planted = build_residual(modules, {}, entry, {}, {}, guarded=False)
    assert "planted" not in planted.source
    assert planted.evaluate({"x": 2}) is True


def test_each_number_and_text_that_is_compared_with_is_a_literal() -> None:
    text = (
        'package vedette.gateway\n\ndecision if {\n\tinput.x == "a#b"\n'
        '\tinput.y != "it\'s \\"q\\"\\n"\n\tinput.z > 41\n\tinput.z - -7 != 3\n}\n'
    )
    modules = read_modules(InterpreterEngine(bundle_of(text), {}).syntax_trees())
    entry = ("vedette", "gateway", "decision")
    found = build_residual(modules, {}, entry, {}, {}, guarded=False).literals
    assert {"a#b", 'it\'s "q"\n', 41, 3} <= {*found}


# --- steps --------------------------------------------------------------------------------------


MANY, NAMES = [str(number) for number in range(64)], [f"k{number}" for number in range(64)]
LOOPS = "some x in input.a; some y in input.b; "
CHOSEN = "decision if count(bad) == 0\n\nbad contains x if { "


@pytest.mark.parametrize(
    ("rules", "question"),
    [
        (f"{CHOSEN}{LOOPS}is_string(x); x in input.c; y in input.c }}",
         {"a": MANY, "b": MANY, "c": ["zz"] * 3000}),
        (f"{CHOSEN}{LOOPS}x != y; x in input.c }}",
         {"a": NAMES, "b": MANY, "c": ["zz"] * 2500}),
        (f"{CHOSEN}{LOOPS}x in input.c; y in input.d }}",
         {"a": ["zz"] * 64, "b": MANY, "c": ["zz"], "d": ["zz"] * 3000}),
        (f"{CHOSEN}{LOOPS}is_string(x); is_string(y); y != x; contains(input.t, x) }}",
         {"a": NAMES, "b": MANY, "t": "a" * 14_000}),
        # A question of 1.5 KB: each place of one text is tried for the other.
        (f"{CHOSEN}some x in input.a; contains(input.t, input.u); x != \"q\" }}",
         {"a": MANY, "t": "a" * 1_000, "u": "a" * 100 + "b"}),
        ("decision if {\n\ta := replace(input.x, \"a\", input.y)\n\ta != \"q\"\n}",
         {"x": "a" * 7_000, "y": "b" * 7_000}),
        ("decision if b != \"q\"\n\na := replace(input.x, \"a\", input.x)\n\n"
         "b := replace(a, \"a\", input.x)", {"x": "a" * 130}),
        ("decision if a != []\n\na := split(replace(input.x, \"a\", input.y), \"b\")",
         {"x": "a" * 3_000, "y": "b" * 3_000}),
        # What is known is gone through by the engine all the same.
        (f"{CHOSEN}some x in input.a; some y in data.probe.many; some z in data.probe.many; "
         "y == 0; z == y; x == y }", {"a": MANY}),
    ],
)  # fmt: skip
def test_what_the_engine_has_no_steps_for_is_not_permitted(rules: str, question: Any) -> None:
    text = f"package vedette.gateway\n\n{rules}\n"
    data = {"probe": {"many": list(range(1, 400))}}
    files = {"vedette/gateway/t.rego": text.encode()}
    bundle = Bundle.of({**files, "probe/data.json": orjson.dumps(data["probe"])})
    with Engines() as engines, pytest.raises(EngineFailed):
        engines.wasm(bundle).decide(orjson.dumps(question))
    modules = read_modules(InterpreterEngine(bundle, data).syntax_trees())
    assert find_unsupported_form(modules) is None
    entry = ("vedette", "gateway", "decision")
    with pytest.raises((Unsupported, GiveWay)):
        build_residual(modules, data, entry, {}, {}, guarded=False).evaluate(question)


@pytest.mark.parametrize(
    "rules",
    [
        f"{CHOSEN}{LOOPS}startswith(x, y) }}", f"{CHOSEN}{LOOPS}count(x) == 1 }}",
        f"{CHOSEN}{LOOPS}f(x) }}\n\nf(x) if x == 1", f"{CHOSEN}{LOOPS}x + y == 1 }}",
        f"{CHOSEN}{LOOPS}[x, y] == input.z }}", f"{CHOSEN}{LOOPS}some z in input.c; x == z }}",
    ],
)  # fmt: skip
def test_within_two_loops_values_are_compared_and_no_more(rules: str) -> None:
    assert answers(rules, {"a": ["x"], "b": ["y"], "c": []}) == [None]


def test_few_and_short_are_answered_many_and_long_are_not() -> None:
    inner = f"{CHOSEN}{LOOPS}x == y; x in input.c }}"
    short = {"a": ["a"] * 32, "b": ["b"] * 8, "c": ["c"] * 8}
    assert answers(
        inner, short, {**short, "a": ["a"] * 33}, {**short, "b": ["b"] * 9},
        {**short, "a": ["b"], "c": ["c"] * 9}, {**short, "a": ["b" * 65], "b": ["b" * 65]},
    ) == [plain(True), None, None, None, None]  # fmt: skip
    near = f'{CHOSEN}some x in input.a; startswith(x, "b") }}'
    assert answers(near, {"a": ["a" * 64]}, {"a": ["a" * 65]}) == [plain(True), None]
    text = 'decision if not h\n\nh if endswith(input.x, "b")'
    assert answers(text, {"x": "a" * 1_024}, {"x": "a" * 1_025}) == [plain(True), None]
    made = 'decision if replace(input.x, "a", "bc") != ""'
    assert answers(made, {"x": "a" * 512}, {"x": "a" * 513}) == [plain(True), None]


# --- forms --------------------------------------------------------------------------------------


def answers(rules: str, *questions: Any) -> list[Any]:
    """Return what a residual of a module answers, nothing of the question being known."""
    found = by_residual(f"package vedette.gateway\n\n{rules}\n", [{}, *questions])
    return [None if each == GAVE_WAY else each for each in found[1:]]


@pytest.mark.parametrize(
    "rules",
    [
        "import data.probe\n\ndecision := probe.z",
        "decision := 1 if input.x == 1\n\ndecision := 2 if input.y == 1",
        "decision := 1 if not f(1)\n\nf(x) if x == input.x",
        "decision := x if some x in input.x",
        "decision := y if {\n\tsome x in input.x\n\ty := x.a\n}",
        "decision := {v: 1 | some k, v in input.x}",
        "decision := {k: v | some k, v in input.x; some w in input.y; w == v}",
        'decision := sprintf("%v", [input.x])',
        "decision if every x in input.x { x == 1 }",
        "decision if input.x[_] == 1",
        "decision if [x, y] := input.x",
        "decision if x = input.x",
        "decision if data.probe.l[input.x] == 1 with input.x as 1",
        "decision if not decision",
        "decision := data.vedette",
        "f(\"a\") := 1\n\ndecision := f(input.x)",
        "decision := 1.5",
    ],
)  # fmt: skip
def test_of_a_form_that_is_not_known_there_is_none(rules: str) -> None:
    assert answers(rules, {"x": [1], "y": [1]}) == [None]


def test_an_error_anywhere_in_the_rules_is_no_undefined() -> None:
    """OPA ends with an error where two values conflict, though the rule is not needed."""
    text = (
        "package vedette.gateway\n\nh := {v: k | some k, v in input.x}\n\n"
        "g if h\n\ndecision if not g\n\ndecision if not h\n"
    )
    syntax = InterpreterEngine(bundle_of(text), {"probe": {}}).syntax_trees()
    found = find_unsupported_form(read_modules(syntax))
    assert found is not None
    assert "vedette.gateway.h" in found


@pytest.mark.parametrize(
    ("rules", "question", "right"),
    [
        ("decision if input.x == 1", {"x": True}, "UNDEFINED"),
        ("decision if input.x == 0", {"x": False}, "UNDEFINED"),
        ("decision if 1 in input.x", {"x": [True]}, "UNDEFINED"),
        ("h if input.x > 1\n\ndecision if not h", {"x": 1}, True),
        ("h := input.x\n\ndecision if not h", {"x": False}, True),
        ("h := input.x\n\ndecision if not h", {"x": None}, "UNDEFINED"),
        ("h if startswith(input.x, \"a\")\n\ndecision if not h", {"x": 1}, True),
        ("decision := count({x | some x in input.x})", {"x": [1, True, 1, "1"]}, 3),
        # Not sure: give way, also under `not`.
        ("h if input.x + 1 > 0\n\ndecision if not h", {"x": 2**53 - 1}, None),
        ("h if count(input.x) > 0\n\ndecision if not h", {"x": "\U0001f6a2"}, None),
        ("h if input.x < []\n\ndecision if not h", {"x": 1}, None),
        ("decision := concat(\"\", {x | some x in input.x})", {"x": ["b", "a"]}, None),
        ("h := [x | some x in input.x]\n\ndecision := h[0]", {"x": {"a": 1}}, None),
        ("h := [x | some x in input.x]\n\ndecision if is_array(h)", {"x": {"a": 1}}, True),
        ("decision := data.probe.l[input.x]", {"x": "1"}, None),
    ],
)  # fmt: skip
def test_undefined_false_and_not_sure_are_kept_apart(rules: str, question: Any, right: Any) -> None:
    said = right if right in ("UNDEFINED", None) else plain(right)
    assert answers(rules, question) == [said]


@pytest.mark.parametrize(
    "rule",
    [
        "h := input.x[_]", "h := input.x[i]", "h := {input.x[_]: 1 | input.x}",
        "h if { [a, b] := input.x }", "h if { some i; input.x[i] }",
        "h := 1 if input.x\n\nh := 2 if input.y", "h := y if { some x in input.x; y := x.a }",
    ],
)  # fmt: skip
def test_a_rule_that_might_fail_refuses_all_though_nothing_needs_it(rule: str) -> None:
    syntax = InterpreterEngine(
        bundle_of(f"package vedette.gateway\n\ndecision if true\n\n{rule}\n"), {"probe": {}}
    ).syntax_trees()
    assert find_unsupported_form(read_modules(syntax)) is not None
