"""The contract of PolicyEngine; every engine is a parameter of it. OPA itself is the oracle."""

from __future__ import annotations

import copy
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
from tests.engines import Engines
from tests.opa import find_opa
from tests.questions import decide, generated

from vedette.adapters.policy_engines.regorus import engine as regorus_engine
from vedette.adapters.policy_engines.regorus.engine import InterpreterEngine, RegorusEngine
from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.domain.base.errors import EngineFailed
from vedette.domain.bundle import ENTRYPOINT, Bundle
from vedette.domain.decision import Decision, parse_decision, request_decision
from vedette.domain.ports.policy_engine import PolicyEngine
from vedette.policy.bundle_data import mount
from vedette.policy.golden_requests import golden_requests

ROOT = Path(__file__).parents[4]
POLICIES = ROOT / "policies"
MANY = 800

BUNDLE = read_bundle(POLICIES)
Make = Callable[[Bundle], PolicyEngine]


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """Engines that need something outside this process, ended with the module."""
    with Engines() as found:
        yield found


@pytest.fixture(params=["compiled", "interpreter", "opa", "wasm"])
def make(request: pytest.FixtureRequest, engines: Engines) -> Make:
    """Return what makes an engine of a bundle; that of the server has nobody behind it."""
    makers: dict[str, Make] = {
        "compiled": RegorusEngine,
        "interpreter": InterpreterEngine,
        "opa": engines.opa,
        "wasm": engines.wasm,
    }
    return makers[request.param]


# --- the contract -----------------------------------------------------------------------------


def test_same_question_same_answer(make: Make) -> None:
    engine = make(BUNDLE)
    question = orjson.dumps(golden_requests(mount(BUNDLE.files))[0][1])
    answers = {
        orjson.dumps(engine.decide(question), option=orjson.OPT_SORT_KEYS) for _ in range(50)
    }
    assert len(answers) == 1


def test_what_a_person_is_to_decide_is_held_under_any_policy(make: Make) -> None:
    """What no bar is in the way of; an approval of the very action answers it."""
    engine = make(BUNDLE)
    question = next(
        one for _, one in golden_requests(mount(BUNDLE.files))
        if request_decision(engine, one)[0].outcome == "permit"
        and one["action"]["tool"] != "memory.read"
    )  # fmt: skip
    asked = copy.deepcopy(question)
    asked["context"]["asks"] = "cascade.person"
    decision, raw = request_decision(engine, asked)
    assert decision == Decision("hold", "cascade.person", ("cascade.person",), "approval")
    assert request_decision(engine, orjson.loads(raw))[0] == decision
    approval = {"action_digest": asked["action"]["digest"], "by": "person:a"}
    for changed, outcome in (
        ({}, "permit"),
        ({"action_digest": "b"}, "hold"),
        ({"by": ""}, "hold"),
    ):
        until = {"until": asked["now"] + 1}
        asked["context"]["approvals"] = [{**approval, **until, **changed}]
        assert request_decision(engine, asked)[0].outcome == outcome
    asked["context"]["approvals"] = [{**approval, "until": asked["now"]}]
    assert request_decision(engine, asked)[0].outcome == "hold"
    assert request_decision(engine, question)[0].outcome == "permit"
    asked["context"]["asks"] = ["cascade.person"]
    assert request_decision(engine, asked)[0].rule == "engine.question"


def test_nothing_stays_from_one_question_to_the_next(make: Make) -> None:
    questions = generated(60)
    engine = make(BUNDLE)
    together = [decide(engine, one) for one in questions]
    backwards = [decide(engine, one) for one in reversed(questions)]
    assert backwards[::-1] == together


def test_digest_is_the_bundles_and_the_name_says_the_engine(make: Make) -> None:
    engine = make(BUNDLE)
    assert engine.digest == BUNDLE.digest
    decide(engine, {})
    assert engine.name.startswith(("regorus", "opa/", "opa wasm/"))


def test_undefined_is_none(make: Make) -> None:
    text = b"package vedette.gateway\n\ndecision := 1 if input.never\n"
    assert make(Bundle.of({"vedette/gateway/a.rego": text})).decide(b"{}") is None


def test_what_is_no_json_raises(make: Make) -> None:
    engine = make(BUNDLE)
    for raw in (b"", b"{", b"\xff", b'{"a": 1} {'):
        with pytest.raises((EngineFailed, ValueError)):
            engine.decide(raw)
    assert decide(engine, golden_requests(mount(BUNDLE.files))[0][1]).outcome == "permit"


def test_data_of_the_bundle_is_what_decides(make: Make) -> None:
    silent = BUNDLE.files["grants/data.yaml"].replace(b"  mode: act\n", b"")
    question = golden_requests(mount(BUNDLE.files))[0][1]
    assert decide(make(BUNDLE), question).outcome == "permit"
    changed = decide(make(Bundle.of({**BUNDLE.files, "grants/data.yaml": silent})), question)
    assert (changed.outcome, changed.rule, changed.would) == ("deny", "mode.observe", "permit")


def test_panic_is_an_exception_and_does_not_outlive_the_question() -> None:
    class Panic(BaseException):
        """As pyo3's PanicException: no Exception."""

    class Broken:
        def set_input_json(self, text: str) -> None:
            raise Panic("index out of bounds\n\nStack backtrace:\n 0: x")

    engine = RegorusEngine(BUNDLE)
    question = golden_requests(mount(BUNDLE.files))[0][1]
    kept = regorus_engine.thread_object_keys()[-1]
    regorus_engine.drop_thread_object(kept)
    regorus_engine.get_thread_object(kept, Broken)
    with pytest.raises(EngineFailed, match=r"the engine panicked: index out of bounds$"):
        engine.decide(b"{}")
    assert decide(engine, question).outcome == "permit"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_stop_passes_through(stop: type[BaseException]) -> None:
    def stopping() -> None:
        raise stop

    with pytest.raises(stop):
        regorus_engine.call_vendor(stopping)


def test_compiled_engine_decides_alike_in_every_thread() -> None:
    engine = RegorusEngine(BUNDLE)
    questions = generated(80)
    here = [decide(engine, one) for one in questions]
    there: list[list[Decision]] = []
    threads = [
        threading.Thread(target=lambda: there.append([decide(engine, one) for one in questions]))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert there == [here] * 3


# --- agreement --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opa() -> str:
    return find_opa()


def test_engines_agree_with_opa(opa: str) -> None:
    questions = generated(MANY)
    query = f"{{i: d | some i, q in input; d := {ENTRYPOINT} with input as q}}"
    answer = subprocess.run(
        [opa, "eval", "--bundle", str(POLICIES), "--stdin-input", "--format", "raw", query],
        input=orjson.dumps(questions),
        capture_output=True,
        timeout=90,
    )
    assert answer.returncode == 0, answer.stderr.decode()
    said = orjson.loads(answer.stdout)
    oracle = [parse_decision(said.get(str(place))) for place in range(len(questions))]
    compiled, interpreter = RegorusEngine(BUNDLE), InterpreterEngine(BUNDLE)
    counts: dict[str, int] = {}
    for request, expected in zip(questions, oracle, strict=True):
        counts[expected.outcome] = counts.get(expected.outcome, 0) + 1
        assert decide(compiled, request) == expected, request
        strict = decide(interpreter, request)
        if strict.rule == "engine.failed":  # stricter: an error where OPA says undefined
            assert expected.outcome == "deny", request
        else:
            assert strict == expected, request
    # The agreement means something only if all three outcomes are among the answers.
    assert min(counts.get(outcome, 0) for outcome in ("permit", "hold", "deny")) > MANY // 20


# --- numbers of arguments ---------------------------------------------------------------------

LIMIT = b"""\
package vedette.denies

deny contains "denies.amount" if {
	is_number(input.action.args.amount)
	input.action.args.amount >= 499.99
}

deny contains "denies.exact" if input.action.args.amount == 0.000003
"""


@pytest.mark.parametrize(
    ("amount", "rules"),
    [
        (499.98, []), (499.99, ["denies.amount"]), (500, ["denies.amount"]), (0.1, []),
        (1e-7, []), (0.000003, ["denies.exact"]), (-0.5, []), (499.9899999999999, []),
        (2**53 - 1, ["denies.amount"]), ("499.99", []),
    ],
)  # fmt: skip
def test_a_rule_compares_an_argument_as_a_number(
    make: Make, amount: float | str, rules: list[str]
) -> None:
    files = {**BUNDLE.files, "vedette/denies/amount.rego": LIMIT}
    engine = make(Bundle.of(files))
    name, request = golden_requests(mount(files))[0]
    request["action"]["args"] |= {"amount": amount}
    decision = parse_decision(engine.decide(orjson.dumps(request)))
    assert [each for each in decision.reasons if each.startswith("denies.")] == rules, name
