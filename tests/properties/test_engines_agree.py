"""One policy, one answer: the OPA server, its Wasm and the embedded engine on the same questions.

Two thousand here; `make diff-engines` asks a hundred thousand.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice

import pytest
from tests.diff_engines import compare, others
from tests.engines import Engines
from tests.questions import BUNDLE, generated, questions

from vedette.adapters.rego.engine import RegorusEngine
from vedette.adapters.rego.golden import golden, must_deny
from vedette.bundle import Bundle
from vedette.load.policy_data import mount

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
    asked = [one for _, one in (*golden(data), *must_deny(data))]
    rest = others(engines, BUNDLE, interpreter=True)
    found = compare(partial(engines.opa_says, BUNDLE), rest, asked)
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
