"""Labels of secrecy only narrow: on their way through values, events, memories and rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from vedette.domain.agent import Agent, MemoryScope
from vedette.domain.base.errors import BadEvent
from vedette.domain.budget import Budget
from vedette.domain.cloudevents import from_json
from vedette.domain.effect import Call
from vedette.domain.event import Event
from vedette.domain.identity import Identity
from vedette.domain.readers import (
    PUBLIC,
    ReaderRule,
    Readers,
    event_readers,
    find_reader_fault,
    format_readers,
    is_within,
    meet_labels,
    pack_row,
    parse_readers,
    unpack_row,
)

NAMES = st.sampled_from(["a@x.example", "@y.example", "resource:post", "target:quay"])
AGENT = Agent(
    name="desk", identity=Identity("harbour", "desk"), title="t", owner="o@example.org",
    release="r1", folder="", instruction="", charter={}, subscriptions=(), schedules=(), tools={},
    scopes=(), budget=Budget(9, None, 4), requested_mode="act",
)  # fmt: skip
LABELS = st.none() | st.frozensets(NAMES)


@given(st.lists(LABELS))
def test_what_is_made_of_several_is_for_those_who_may_read_each(labels: list[Readers]) -> None:
    found = meet_labels(*labels)
    assert all(is_within(found, label) for label in labels)
    assert (found is PUBLIC) == all(label is PUBLIC for label in labels)
    if found is not None:
        secret = [label for label in labels if label is not None]
        assert found == secret[0].intersection(*secret)


@given(LABELS, LABELS, LABELS)
def test_within_is_an_order(a: Readers, b: Readers, c: Readers) -> None:
    assert is_within(a, a)
    assert not (is_within(a, b) and is_within(b, c)) or is_within(a, c)
    assert is_within(a, PUBLIC)
    assert is_within(PUBLIC, b) == (b is PUBLIC)


@given(st.frozensets(NAMES))
def test_a_label_travels_as_an_attribute(label: frozenset[str]) -> None:
    assert parse_readers(format_readers(label)) == label


@pytest.mark.parametrize(
    "text", ["", ",", "a b", "a,,b", "A@x.example", "x\n", "é", "a,-", "a" * 300]
)
def test_what_is_no_label_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no list"):
        parse_readers(text)


@pytest.mark.parametrize(
    "reader", ["ada@quay.example", "@quay.example", "target:quay", "resource:post"]
)
def test_a_reader_has_a_form(reader: str) -> None:
    assert find_reader_fault(reader) == ""


def test_every_rule_that_matches_an_event_narrows_its_label() -> None:
    rules = (
        ReaderRule("imap:*", "*", frozenset({"@x.example", "@y.example"})),
        ReaderRule("*", "mail.*", frozenset({"@y.example"})),
    )
    assert event_readers(rules, "http:1", "metric", PUBLIC) is PUBLIC
    assert event_readers(rules, "imap:desk", "mail.received", PUBLIC) == frozenset({"@y.example"})
    assert event_readers(rules, "imap:desk", "note", frozenset({"@x.example"})) == frozenset(
        {"@x.example"}
    )
    assert (
        event_readers(rules, "imap:desk", "mail.received", frozenset({"@x.example"})) == frozenset()
    )


def test_an_event_keeps_its_label_and_a_public_one_is_stored_as_ever() -> None:
    public = Event("s", "1", "t", data={"a": 1})
    assert b"readers" not in public.to_body()
    for label in (frozenset[str](), frozenset({"@y.example"})):
        secret = Event("s", "1", "t", data={"a": 1}, readers=label)
        assert Event.from_body(orjson.loads(secret.to_body())) == secret
    assert Event.from_body(orjson.loads(public.to_body())) == public


def test_a_call_hands_its_label_on_and_an_event_that_comes_of_it_has_it() -> None:
    call = Call(
        "t", {}, "k", "clerk", "run_1", {}, ("clerk",), 1, 1, readers=frozenset({"@y.example"})
    )
    sent = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", **call.labels}
    event = from_json(orjson.dumps(sent), vouched=frozenset())
    assert (event.readers, event.lineage) == (frozenset({"@y.example"}), ("clerk",))
    for message, label in (("-", frozenset[str]()), (None, None)):
        more = {} if message is None else {"vedettereaders": message}
        sent = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", **more}
        assert from_json(orjson.dumps(sent), vouched=frozenset()).readers == label
    for odd in ("", "a b", 7, True):
        with pytest.raises(BadEvent, match="vedettereaders"):
            from_json(orjson.dumps({**sent, "vedettereaders": odd}), vouched=frozenset())


def test_rows_keep_the_label_and_tools_do_not_see_it() -> None:
    label = frozenset({"@y.example"})
    kept = pack_row({"texts": ["a"], "vedette.readers": ["@everybody.example"]}, label)
    assert unpack_row(kept) == ({"texts": ["a"]}, label)
    assert pack_row({"texts": []}, PUBLIC) == {"texts": []}
    assert unpack_row(pack_row({}, frozenset())) == ({}, frozenset())


def test_a_run_has_read_its_event_its_row_its_answers_and_all_it_may_be_taught() -> None:
    def agent(**scopes: Readers) -> Agent:
        made = tuple(MemoryScope("b", name, readers=readers) for name, readers in scopes.items())
        return replace(AGENT, scopes=made)

    event = Event("s", "1", "t", readers=frozenset({"@x.example", "@y.example"}))
    public = Event("s", "1", "t")
    memory: Any = SimpleNamespace(id="m", bank="b", scope="desk")
    assert agent(desk=None).label_run(public, [memory], None, {"outcome/0": None}) is None
    found = agent(desk=frozenset({"@y.example"})).label_run(event, [memory], None, {})
    assert found is not None
    assert found.run == frozenset({"@y.example"})
    assert found.readers_at(("event", "data", "from")) == event.readers
    assert found.readers_at(("memory", "m", "text")) == frozenset({"@y.example"})
    assert found.readers_at(("charter", "desk")) is PUBLIC
    # Not briefed with it, and taught by it all the same.
    taught = agent(desk=frozenset({"@y.example"})).label_run(public, [], None, {})
    assert taught is not None
    assert taught.run == frozenset({"@y.example"})
    # A memory of a scope that the agent does not declare is for nobody.
    other = agent().label_run(event, [memory], None, {})
    assert other is not None
    assert other.readers_at(("memory", "m")) == frozenset()
    answer = agent().label_run(public, [], None, {"outcome/1": frozenset()})
    assert answer is not None
    assert (answer.run, answer.readers_at(("outcome", "1", "id"))) == (frozenset(), frozenset())
