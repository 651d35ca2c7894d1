"""File models: what fits, what does not and why, and the schema, against pydantic's word.

pydantic is not what the fleet's files are checked with (docs/decisions/0019), but it is installed
with ADK, and a second opinion.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import pydantic
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vedette.config.field import (
    AfterValidator,
    BeforeValidator,
    Field,
    Shape,
    Table,
    Tagged,
    json_schema,
)
from vedette.config.kinds import Errors
from vedette.config.shape import check_document
from vedette.config.yaml import parse_yaml


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty | write it out")
    return text.strip()


def _doubled(value: Any) -> Any:
    return value * 2 if type(value) is int else value


class Inner(Shape):
    """A part."""

    kind: Literal["inner"]
    count: int = Field(default=3, ge=1, le=9, description="how many")


class Other(Shape):
    """Another part."""

    kind: Literal["other"]
    name: str = Field(min_length=2, description="names it")


PARTS = {"inner": Table(Inner), "other": Table(Other)}


class Outer(Shape):
    """All that is understood."""

    name: str = Field(pattern=r"^[a-z]+$", description="a word")
    level: Literal[1, 2, "high"] = 1
    words: list[Annotated[str, AfterValidator(_filled)]] = Field(default_factory=list)
    one: Annotated[str, AfterValidator(_filled)] | list[str] | None = None
    limit: int | None = Field(default=None, gt=0)
    twice: Annotated[int, BeforeValidator(_doubled)] = 0
    share: float = 0.5
    flag: bool = False
    free: dict[str, Any] = Field(default_factory=dict)
    inner: Inner | None = None
    parts: list[Annotated[Any, Tagged("kind", PARTS)]] = Field(default_factory=list, max_length=2)


class PInner(pydantic.BaseModel):
    """A part."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    kind: Literal["inner"]
    count: int = pydantic.Field(default=3, ge=1, le=9, description="how many")


class POther(pydantic.BaseModel):
    """Another part."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    kind: Literal["other"]
    name: str = pydantic.Field(min_length=2, description="names it")


class POuter(pydantic.BaseModel):
    """All that is understood."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    name: str = pydantic.Field(pattern=r"^[a-z]+$", description="a word")
    level: Literal[1, 2, "high"] = 1
    words: list[Annotated[str, pydantic.AfterValidator(_filled)]] = pydantic.Field(
        default_factory=list
    )
    one: Annotated[str, pydantic.AfterValidator(_filled)] | list[str] | None = None
    limit: int | None = pydantic.Field(default=None, gt=0)
    twice: Annotated[int, pydantic.BeforeValidator(_doubled)] = 0
    share: float = 0.5
    flag: bool = False
    free: dict[str, Any] = pydantic.Field(default_factory=dict)
    inner: PInner | None = None
    parts: list[Annotated[PInner | POther, pydantic.Field(discriminator="kind")]] = pydantic.Field(
        default_factory=list, max_length=2
    )


VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, 0, 1, 2, 5, -1, 1.0, 0.25, "", " ", "a", "word", "high", "1", "true", "A\n",
     "word\n", [], ["a"], [" "], ["a", 1], {}, {"a": 1}, {"kind": "inner"},
     {"kind": "inner", "count": 4}, {"kind": "inner", "count": 10}, {"kind": "other", "name": "xy"},
     {"kind": "other", "name": "x"},
     {"kind": "else"}, {"kind": "inner", "more": 1}, [{"kind": "inner"}], [{"kind": "other"}],
     [{"kind": "other", "name": "xy"}, {"kind": "inner"}], [{"name": "x"}], [{"kind": []}],
     [{"kind": "inner"}] * 3]
)  # fmt: skip
FILES = st.builds(
    lambda given, name, more: {"name": name, **given, **({"mroe": 1} if more else {})},
    st.dictionaries(st.sampled_from([*POuter.model_fields]), VALUES, max_size=4),
    st.sampled_from(["word", "word", "word", "Word", 7]),
    st.integers(0, 5).map(lambda number: number == 0),
)


def checked(model: type[Shape], value: Any) -> tuple[Shape | None, Errors]:
    errors: Errors = []
    return model.check(value, (), errors), errors


@settings(deadline=None)
@given(FILES)
def test_it_takes_and_refuses_what_pydantic_does(value: dict[str, Any]) -> None:
    # The one thing known to differ: to pydantic `true` and 1.0 are a 1 where a literal is wanted.
    assume(not isinstance(value.get("level"), bool | float))
    found, errors = checked(Outer, value)
    try:
        known = POuter.model_validate(value)
    except pydantic.ValidationError as error:
        assert found is None
        # The same places; of a union that takes text or a list, pydantic names both.
        fields = {each["loc"][0] for each in error.errors()}
        assert {each["loc"][0] for each in errors} == fields
        return
    assert errors == []
    assert found is not None
    assert found.model_dump() == known.model_dump()
    assert found.model_fields_set == known.model_fields_set


def test_the_schema_says_what_the_check_does() -> None:
    ours, known = json_schema(Outer), POuter.model_json_schema()
    assert ours["required"] == known["required"]
    assert ours["additionalProperties"] is known["additionalProperties"] is False
    for name, value in known["properties"].items():
        mine = ours["properties"][name]
        for word in ("type", "pattern", "description", "items", "const"):
            if word in value and name != "parts":
                assert mine.get(word) == value[word], (name, word)
    assert ours["properties"]["level"]["enum"] == [1, 2, "high"]
    assert ours["properties"]["limit"]["anyOf"] == known["properties"]["limit"]["anyOf"]
    assert ours["$defs"]["Inner"]["properties"]["count"]["maximum"] == 9
    assert ours["properties"]["parts"]["maxItems"] == 2


def test_what_does_not_fit_is_told_with_its_line() -> None:
    document, _ = parse_yaml("name: word\nparts:\n  - kind: other\n    nmae: xy\n", "t.yaml")
    found, problems = check_document(Outer, document)
    assert found is None
    assert [(each.line, each.field, each.what, each.mend) for each in problems] == [
        (3, "parts[0].name", "is missing", "names it"),
        (4, "parts[0].nmae", "unknown key", "did you mean 'name'?"),
    ]


def test_text_becomes_a_number_or_a_flag_only_where_a_model_says_so() -> None:
    class Loose(Shape):
        """From the environment."""

        strict: ClassVar[bool] = False
        count: int = 0
        share: float = 0.0
        flag: bool = False

    found, _ = checked(Loose, {"count": "12", "share": "0.5", "flag": "Yes"})
    assert found is not None
    assert found.model_dump() == {"count": 12, "share": 0.5, "flag": True}
    for wrong in ({"count": "1.5"}, {"count": "x"}, {"share": "nan"}, {"flag": "perhaps"}):
        assert checked(Loose, wrong)[0] is None
    assert checked(Inner, {"kind": "inner", "count": "4"})[0] is None


@pytest.mark.parametrize("value", [True, 1.0, "1"])
def test_what_only_equals_a_literal_is_not_it(value: object) -> None:
    errors = checked(Outer, {"name": "word", "level": value})[1]
    assert [each["type"] for each in errors] == ["literal_error"]


def test_a_model_is_never_changed() -> None:
    found, _ = checked(Inner, {"kind": "inner"})
    with pytest.raises(AttributeError, match="never changed"):
        found.count = 4  # type: ignore[union-attr]
