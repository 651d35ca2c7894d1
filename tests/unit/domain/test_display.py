"""What of an event people are shown: declared, or made of it; bounded, and never nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vedette.config.settings import read_settings
from vedette.domain.base.safe_text import escape_text, is_visible, text_width, wrap_line, wrap_text
from vedette.domain.display import (
    MAX_FIELDS,
    TEXT_CHARS,
    TEXT_LINES,
    VALUE_CHARS,
    Display,
    find_display,
    parse_displays,
    show_event,
)
from vedette.domain.display_text import defang_event, format_event, format_event_line
from vedette.domain.event import CALL_TYPE, CORRECTION_TYPE, ENVELOPE, Event


def body(type: str, data: Any, *, subject: str | None = "s", vouched: bool = False) -> Any:
    """Return an event as the record has it."""
    event = Event(
        "shop", "1", type, subject, None, data, vouched=ENVELOPE if vouched else frozenset()
    )
    return orjson.loads(event.to_body())


def shown(event: Any, *declared: Display) -> dict[str, Any]:
    return show_event(event, find_display(event, declared))


def test_a_declared_display_shows_what_it_points_at_and_how_far_it_is_trusted() -> None:
    display = Display(
        "order.*", title="/data/order/title", who="/data/by", when="/data/at",
        fields={"total": "/data/total", "gone": "/data/nowhere"}, text="/data/lines/0",
        source="sh*",
    )  # fmt: skip
    data = {"order": {"title": "rope"}, "by": "Ann", "at": "noon", "total": 3.5, "lines": ["a\nb"]}
    view = shown(body("order.placed", data, vouched=True), display)
    assert view["title"] == {"value": "rope", "trusted": False, "more": 0}
    assert (view["who"]["value"], view["when"]["value"]) == ("Ann", "noon")
    assert view["fields"] == [{"name": "total", "value": "3.5", "trusted": False, "more": 0}]
    assert view["text"]["value"] == "a\nb"
    # Of another source or type it is not, and says so itself.
    for type, source in (("order.placed", "x*"), ("bill.*", "shop")):
        other = Display(type, source=source)
        assert find_display(body("order.placed", data), (other,)).source == "shop"
    assert parse_displays([display.to_json()]) == (display,)
    assert list(parse_displays([display.to_json()])[0].fields) == ["total", "gone"]


def test_no_name_of_a_sender_is_one_of_our_own_words() -> None:
    names = ("from", "when", "about", "title", "type")
    display = shown(body("x.y", dict.fromkeys(names, "the fleet")))
    assert [each["name"] for each in display["fields"]] == [
        f"/data/{name}" for name in sorted(names)
    ]


def test_of_a_type_that_nobody_declared_the_first_values_and_the_longest_text_are_shown() -> None:
    text = "We waited for an hour. " * 5
    display = shown(body("x.y", {"b": {"c": 1, "d": [True, None]}, "a": "one", "note": text}))
    assert display["title"]["value"] == "s"
    assert [(each["name"], each["value"]) for each in display["fields"]] == [
        ("/data/a", "one"), ("/data/b/c", "1"), ("/data/b/d/0", "true"),
    ]  # fmt: skip
    assert display["text"]["value"] == text
    for data in (None, "just text", ["a", "b"], {}, 7, {"deep": {"er": {"and": {"deeper": 1}}}}):
        display = shown(body("x.y", data, subject=None))
        assert display["title"]["value"] == "1", "the id, where there is no subject"
        assert display["who"]["value"] == "shop"
        assert data in (None, {}) or display["fields"] or display["text"]


def test_a_correction_shows_who_said_what_should_have_been() -> None:
    said = {"should": "booking", "was": "spam", "by": "person:ann", "agent": "a", "run": "run_1",
            "note": "a class wants to come aboard"}  # fmt: skip
    event = Event(
        "vedette://harbour/people", "c", CORRECTION_TYPE, "m", None, said, vouched=ENVELOPE
    )
    document = shown(orjson.loads(event.to_body()))
    assert not document["outside"]
    assert (document["who"]["value"], document["title"]["value"]) == ("person:ann", "booking")
    assert document["text"]["value"] == "a class wants to come aboard"
    # The same words from outside are not the fleet's.
    claimed = orjson.loads(Event("x", "c", CORRECTION_TYPE, "m", None, said).to_body())
    assert shown(claimed)["outside"]


def test_a_call_shows_who_calls_what_with_which_arguments_and_is_from_outside() -> None:
    said = {"caller": "spiffe://harbour/agent/courier", "tool": "book.write", "args": {"page": "x"}}
    vouched = frozenset({"source", "type", "time", "data/caller"})
    event = Event(
        "vedette://harbour/call/courier", "c", CALL_TYPE, "c", None, said, vouched=vouched
    )
    document = shown(orjson.loads(event.to_body()))
    # Its arguments are what a client wrote, though the engine made the event of them.
    assert document["outside"]
    assert (document["title"]["value"], document["title"]["trusted"]) == ("book.write", False)
    assert (document["who"]["value"], document["who"]["trusted"]) == (said["caller"], True)
    assert document["fields"][0]["value"] == '{"page":"x"}'


def test_what_is_shown_is_bounded_and_says_how_much_more_there_is() -> None:
    many = {f"f{n:02}": "v" * 300 for n in range(40)}
    long = "\n".join(f"line {n} {'x' * 200}" for n in range(30))
    display = Display("x.y", fields={name: f"/data/{name}" for name in many}, text="/data/text")
    event = body("x.y", {**many, "text": long})
    view = shown(event, display)
    assert len(view["fields"]) == MAX_FIELDS
    assert {(len(each["value"]), each["more"]) for each in view["fields"]} == {
        (VALUE_CHARS, 300 - VALUE_CHARS)
    }
    lines = view["text"]["value"].split("\n")
    assert len(lines) <= TEXT_LINES
    assert sum(map(len, lines)) == TEXT_CHARS
    assert view["text"]["more"] == sum(map(len, long.split("\n"))) - TEXT_CHARS
    assert "characters more)" in "\n".join(format_event({**view, "erased": False}, 80))


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


@given(_TEXT, st.integers(20, 100))
def test_no_text_is_lost_or_shows_what_is_not_there(text: str, width: int) -> None:
    line = escape_text(text)
    assert all(is_visible(char) for char in line)
    for at_spaces in (False, True):
        parts = wrap_text(line, width, at_spaces=at_spaces)
        assert "".join(parts) == line
        assert all(text_width(part) <= width for part in parts)
    first, *rest = wrap_line(f"  name = {line}", width)
    assert first.startswith("  name = "[:width])
    assert all(part.startswith("    │ ") and text_width(part) <= width for part in rest)


@given(_TEXT, _TEXT, st.integers(40, 100))
def test_whatever_a_stranger_writes_stands_behind_the_bar(one: str, other: str, width: int) -> None:
    event = body("x.y", {one: other, "text": other * 3}, subject=one or None)
    about = {"erased": False, **shown(event)}
    for facts in (about, defang_event(about)):
        heading, *lines = format_event(facts, width, 2)
        assert heading == "  written outside, not by us:"
        for line in lines:
            assert line.startswith("  │") or line.endswith(" characters more)")
            assert text_width(line) <= width
    assert format_event_line(about, "│ ").startswith("│ ")
    assert "\n" not in format_event_line(about)


@pytest.mark.parametrize(
    ("written", "where", "said"),
    [
        ('type = "a"\nwho = "data/from"', "who", "is no JSON Pointer"),
        ('type = "a"\ntitle = "/datum/x"', "title", "an event has no 'datum'"),
        ('type = "a"\nvalues = { n = "/nowhere" }', "values", "an event has no 'nowhere'"),
        ('type = "a"\nvalues = { "" = "/data/x" }', "values", "names no value"),
        ('type = "a"\nvalues = { ' + ", ".join(f'v{n} = "/data/x"' for n in range(6)) + " }",
         "values", "6 values are more than are shown"),
        ('type = "a"\n[[displays]]\ntype = "a"', "type", "have a display already"),
        ('text = "/data/x"', "type", "missing"),
    ],
)  # fmt: skip
def test_a_display_that_points_nowhere_is_refused_with_its_line(
    tmp_path: Path, written: str, where: str, said: str
) -> None:
    path = tmp_path / "vedette.toml"
    path.write_text(f'fleet = "harbour"\n[[displays]]\n{written}\n')
    settings, problems = read_settings(path)
    assert settings is None
    (problem,) = problems
    assert said in problem.what
    assert where in problem.field
    assert problem.line >= 2
    assert problem.mend
