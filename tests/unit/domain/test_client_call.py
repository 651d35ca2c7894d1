"""A client's call: which calls are one, and what one proposes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from vedette.domain.agent import Agent, Fleet, Subscription
from vedette.domain.base.clock import iso
from vedette.domain.base.errors import BadCommand, BadConfidence, Permanent
from vedette.domain.budget import Budget
from vedette.domain.client_call import (
    CONFIDENCE_KEY,
    ClientCall,
    call_proposal,
    client_confidence,
    count_generations,
)
from vedette.domain.event import CALL_TYPE, Event
from vedette.domain.identity import Identity
from vedette.domain.origin import Ref

MINUTE = 60_000_000
CALL = ClientCall("book.write", {"page": "ref:/charter/page", "text": "x"})
KEYED = replace(CALL, key="k")


def agent(name: str, **more: Any) -> Agent:
    fields: dict[str, Any] = {
        "title": "t", "owner": "o", "release": "r", "folder": "f", "instruction": "i",
        "charter": {}, "subscriptions": (Subscription((CALL_TYPE,)),), "schedules": (),
        "tools": {}, "scopes": (), "budget": Budget(), "requested_mode": "act", **more,
    }  # fmt: skip
    return Agent(name=name, identity=Identity("harbour", name), **fields)


COURIER, PORTER = agent("courier"), agent("porter")


def event(call: ClientCall, at_us: int = 0, one: Agent = COURIER, generation: int = 0) -> Event:
    return call.event("harbour", one, at_us, generation)


def test_calls_with_one_key_are_one_of_each_agent() -> None:
    assert event(KEYED).key == event(KEYED, 99 * MINUTE).key
    assert event(KEYED).key == event(replace(KEYED, args={}), 5).key
    assert event(KEYED).key != event(replace(KEYED, key="l")).key
    assert event(KEYED).id != event(KEYED, one=PORTER).id


def test_calls_without_a_key_are_one_of_each_generation_whatever_the_clock() -> None:
    assert event(CALL, 1).key == event(CALL, 99 * MINUTE).key
    assert event(CALL, generation=1).key != event(CALL).key
    assert event(CALL).key != event(replace(CALL, args={"page": "p"})).key
    assert event(CALL).key != event(replace(CALL, tool="book.read")).key
    assert event(CALL).key != event(KEYED).key


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 5, 7, 8, 9, 1000, 1023, 1024, 1025])
def test_generations_are_counted_by_asking_for_few(number: int) -> None:
    asked: list[int] = []

    def exists(one: int) -> bool:
        asked.append(one)
        return one < number

    assert count_generations(exists) == number
    assert len(asked) <= 24


def test_a_digest_and_a_key_that_look_alike_are_not_one() -> None:
    forged = ClientCall("other", {}, key=CALL.digest)
    assert event(forged).id != event(CALL).id


def test_whose_call_it_is_and_what_is_vouched_for() -> None:
    made = event(KEYED, 7)
    assert (made.type, made.source) == ("vedette.call", "vedette://harbour/call/courier")
    assert made.data["caller"] == "spiffe://harbour/agent/courier"
    assert made.time == iso(7)
    # Neither what it is called with nor the ids that are made of the client's key.
    assert made.vouched == {"source", "type"}
    assert KEYED.is_call_of(made)
    assert not replace(KEYED, args={}).is_call_of(made)
    assert not replace(KEYED, tool="x").is_call_of(made)


def test_a_call_wakes_its_own_agent_alone() -> None:
    greedy = agent("greedy", subscriptions=(Subscription(("*",)),))
    fleet = Fleet("harbour", {one.name: one for one in (COURIER, PORTER, greedy)})
    assert fleet.matching_agents(event(KEYED)) == ("courier",)
    assert fleet.matching_agents(replace(event(KEYED), source="imap:desk")) == ()
    # The control: what is no call wakes whoever subscribes.
    assert fleet.matching_agents(replace(event(KEYED), type="other")) == ("greedy",)


def test_what_it_proposes() -> None:
    call = ClientCall(
        "book.write",
        {"a": "ref:/charter/x", "b": ["ref:/registry/y", "z"], "c": {"d": "ref:/charter/id"},
         "e": 5,
         "f": " ref:/charter/x", "g": "ref:"},
    )  # fmt: skip
    proposal = call_proposal(event(call))
    assert proposal.tool == "book.write"
    assert proposal.args == {
        "a": Ref("/charter/x"), "b": [Ref("/registry/y"), "z"], "c": {"d": Ref("/charter/id")},
        "e": 5, "f": " ref:/charter/x", "g": "ref:",
    }  # fmt: skip
    # How sure a client is, is not for it to say.
    assert proposal.confidence is None


def test_another_event_proposes_nothing() -> None:
    with pytest.raises(Permanent, match="no call"):
        call_proposal(replace(event(KEYED), type="mail.received"))


@pytest.mark.parametrize(
    ("charter", "found"),
    [({}, 0.0), ({CONFIDENCE_KEY: 0.9}, 0.9), ({CONFIDENCE_KEY: "0.95"}, 0.95)],
)
def test_confidence_is_what_people_measured(charter: dict[str, Any], found: float) -> None:
    assert client_confidence("courier", charter) == found


@pytest.mark.parametrize("given", ["high", "nan", 2, -0.1, True, None, []])
def test_confidence_fails_closed(given: object) -> None:
    with pytest.raises(BadConfidence, match=CONFIDENCE_KEY):
        client_confidence("courier", {CONFIDENCE_KEY: given})


@pytest.mark.parametrize(
    "fields",
    [
        {"tool": ""},
        {"tool": "x" * 101},
        {"key": ""},
        {"key": "x" * 201},
        {"key": "a\nb"},
        {"args": {"x": float("nan")}},
        {"args": {"x": b"bytes"}},
        {"args": {"x": "\ud800"}},
        {"args": {"x": 1e21}},
        {"args": {"x": [{"y": 2**53}]}},
        {"args": {"x": -(2**53)}},
        {"args": {"x": "ref:/event/time"}},
        {"args": {"x": ["ref:/row/y"]}},
        {"args": {"x": {"y": "ref:/"}}},
    ],
)
def test_what_is_no_call(fields: dict[str, Any]) -> None:
    with pytest.raises(BadCommand):
        ClientCall(**{"tool": "t", "args": {}, **fields})


def test_numbers_come_back_exact_and_texts_stay_texts() -> None:
    given = {
        "a": 1.5, "b": "1.5", "c": [0.1, "0.1", {"d/~": -2.5e-7}], "e": 2**53 - 1, "f": 1.0,
        "g": -0.0, "h": True, "i": {"1": 1e-300},
    }  # fmt: skip
    call = ClientCall("scale.weigh", given, "k")
    stored = Event.from_body(orjson.loads(event(call).to_body()))
    found = call_proposal(stored).args
    assert found == {**given, "f": 1, "g": 0}
    assert [type(found[name]) for name in "abefgh"] == [float, str, int, int, int, bool]
    assert [type(one) for one in found["c"]] == [float, str, dict]
    assert call.is_call_of(stored)
    for other in ({"a": "1.5"}, {"b": 1.5}, {"h": 1}, {"c": [0.1, 0.1, {"d/~": -2.5e-7}]}):
        assert not ClientCall("scale.weigh", {**given, **other}).is_call_of(stored)
    # 1.0 is 1, as in any JSON of RFC 8785.
    assert ClientCall("scale.weigh", {**given, "f": 1, "g": 0}).is_call_of(stored)
