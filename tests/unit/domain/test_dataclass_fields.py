"""The standard dataclasses module takes what an agent's code is handed, as it did."""

from __future__ import annotations

import dataclasses
from pprint import pformat
from typing import Any

import msgspec
import pytest

from vedette import judging, sdk
from vedette.judging.examples import Example, Near, Prediction

PUBLIC: list[Any] = [
    judging.Briefing, judging.Candidate, judging.Event, judging.Judgement, judging.Memory,
    judging.Proposal, judging.Ref, sdk.Call, sdk.Outcome, sdk.RowWrite, Example, Near, Prediction,
]  # fmt: skip


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_every_value_that_an_agent_is_handed_has_its_fields(kind: Any) -> None:
    names = kind.__struct_fields__
    assert dataclasses.is_dataclass(kind)
    assert tuple(field.name for field in dataclasses.fields(kind)) == names


def test_replace_and_asdict_take_them() -> None:
    found: Any = Prediction("spam", 0.4, (("spam", 0.4),), (Near("a", "spam", 0.5, 0.1),), 0.5)
    sure = dataclasses.replace(found, confidence=0.9)
    assert sure == msgspec.structs.replace(found, confidence=0.9)
    assert dataclasses.asdict(sure)["nearest"] == (
        {"id": "a", "label": "spam", "similarity": 0.5, "weight": 0.1},
    )
    with pytest.raises(TypeError):
        dataclasses.replace(found, nothing=1)


def test_what_is_longer_than_a_line_is_printed() -> None:
    long = judging.Candidate("harbour", "desk", "x" * 200, ())
    assert pformat(long) == repr(long)


def test_a_struct_without_them_is_none() -> None:
    """The control."""

    class Bare(msgspec.Struct):
        name: str

    assert not dataclasses.is_dataclass(Bare)
