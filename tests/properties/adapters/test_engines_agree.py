"""One policy, one answer: the OPA server, its Wasm, the embedded engine, residuals of the rules.

A sample here; `make diff-engines` asks a hundred thousand questions of the shipped policies, and
compares twenty thousand generated modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice

import pytest
from tests.diff_engines import compare, others
from tests.diff_modules import Counts, batch
from tests.engines import Engines
from tests.questions import BUNDLE, generated, questions
from tests.rego_compare import by_regorus, refusals, server

from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.domain.bundle import Bundle
from vedette.policy.bundle_data import mount
from vedette.policy.golden_requests import forbidden_requests, golden_requests

MANY = 800


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    with Engines() as found:
        yield found


def test_all_engines_agree_on_generated_questions(engines: Engines) -> None:
    found = compare(
        partial(engines.opa_says, BUNDLE),
        others(engines, BUNDLE, interpreter=False),
        islice(questions(seed=20261121), MANY),
    )
    assert not found.differences, found.differences[0]
    assert found.asked == MANY
    # The agreement means something only if all three outcomes are among the answers.
    assert min(found.outcomes[name] for name in ("permit", "hold", "deny")) > MANY // 20


def test_all_engines_agree_on_the_golden_questions(engines: Engines) -> None:
    data = mount(BUNDLE.files)
    requests = [one for _, one in (*golden_requests(data), *forbidden_requests(data))]
    rest = others(engines, BUNDLE, interpreter=True)
    found = compare(partial(engines.opa_says, BUNDLE), rest, requests)
    assert not found.differences, found.differences[0]


def test_a_policy_that_decides_otherwise_is_found(engines: Engines) -> None:
    """Negative control: one limit apart, and the comparison tells it."""
    limits = BUNDLE.files["limits/data.yaml"]
    other = Bundle.of({**BUNDLE.files, "limits/data.yaml": limits.replace(b"8", b"9")})
    assert other.digest != BUNDLE.digest
    found = compare(
        partial(engines.opa_says, BUNDLE), {"other": RegorusEngine(other)}, generated(600)
    )
    assert found.differed["other"]


def test_generated_modules_are_decided_alike() -> None:
    """A sample; `make diff-engines` compares twenty thousand modules, a million decisions each."""
    counts = Counts(seed=20261123)
    for _ in range(3):
        batch(counts, size=40, questions_each=25)
    assert counts.examples == []
    assert counts.admitted == 120
    residual = counts.decisions.pop("residual")
    assert counts.decisions == {"wasm": 3000, "regorus": 3000}
    # A residual gives way where it is not sure, which is seldom.
    assert residual + counts.gave_way == 3000
    assert residual > 2000
    # Both answers and no answers were compared, and the profile had something to refuse.
    assert min(counts.values, counts.undefined) > 500
    assert counts.made > counts.admitted


def test_a_module_that_engines_decide_apart_is_found() -> None:
    """Negative control: a form that the profile refuses, and the comparison tells it."""
    rules = "decision := 1 if {\n\tsome x in input.x\n\tx == 1\n} else := 2"
    text = f"package vedette.gateway\n\n{rules}\n"
    requests = [{}, {"x": [1]}, {"x": [2]}]
    with server({0: text}) as opa:
        right = opa.answers(0, requests)
    assert right == ["2", "1", "2"]
    assert by_regorus(text, requests) != right
    assert refusals(text)
