"""The allow list of forms against real `opa`: each family is refused or equal, and really differs.

A hundred and more expressions of each family that engines were seen to decide apart. What the
profile admits of them must be decided alike by the OPA server, by its Wasm and by the compiled
program; and of what it refuses, some really differ, so that the comparison is known to see it.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.engines import Engines
from tests.rego_compare import FAILED, REFUSED, UNDEFINED, by_regorus, by_wasm, refusals, server
from tests.rego_families import FAMILIES

QUESTIONS: list[dict[str, Any]] = [
    {},
    {"x": "a", "y": "k", "t": "a/é"},
    {"x": "1", "y": 1, "t": "\U0001f6a2"},
    {"x": 1, "y": "a", "t": ""},
    {"x": ["a", "b"], "y": ["a"], "t": "a"},
    {"x": [1, "a", None, {"a": 2}], "y": 2, "t": 5},
    {"x": ["b", 3, 1, 2], "y": [1, "x"]},
    {"x": {"a": 1, "k": ["a", "z"]}, "y": "a"},
    {"x": {"a": {"b": "c"}, "k": []}, "y": {"a": "a"}},
    {"x": [["a", 1], [1]], "y": 7},
    {"x": [], "y": []},
    {"x": {}, "y": False},
]


def texts_of(name: str) -> dict[int, str]:
    texts = (f"package vedette.gateway\n\n{rules}\n" for rules in FAMILIES[name]())
    return dict(enumerate(dict.fromkeys(texts)))


@pytest.mark.parametrize("name", FAMILIES)
def test_each_of_a_family_is_refused_or_equal(name: str) -> None:
    texts = texts_of(name)
    assert len(texts) >= 100
    found = {number: refusals(text) for number, text in texts.items()}
    for number, faults in found.items():
        assert all(fault.line >= 1 and fault.what for fault in faults), texts[number]
    admitted = {number: text for number, text in texts.items() if not found[number]}
    # The control is taken of the refused ones; the order of a set only the Wasm sees otherwise.
    with server(texts) as opa, Engines() as engines:
        right = {number: opa.answers(number, QUESTIONS) for number in texts}
        for number, text in admitted.items():
            assert number not in opa.refused, (opa.refused[number], text)
            assert by_regorus(text, QUESTIONS) == right[number], text
        if admitted:
            for number, said in by_wasm(engines, admitted, QUESTIONS).items():
                assert said == right[number], texts[number]
    differences = [
        number
        for number, text in texts.items()
        if found[number] and _differ(by_regorus(text, QUESTIONS), right[number])
    ]
    assert differences or number_of_refused(found) == len(texts), "the family shows no difference"
    assert number_of_refused(found) >= len(texts) // 4
    print(
        f"{name}: {len(texts)}, {len(admitted)} admitted; of the refused {len(differences)} differ"
    )


def number_of_refused(found: dict[int, Any]) -> int:
    return sum(bool(faults) for faults in found.values())


def _differ(said: list[Any], right: list[Any]) -> bool:
    """Say whether a decision would differ: what fails, is refused or undefined gives none."""
    none = (UNDEFINED, FAILED, REFUSED)
    return any(
        one != two
        for one, two in zip(said, right, strict=True)
        if one not in none or two not in none
    )
