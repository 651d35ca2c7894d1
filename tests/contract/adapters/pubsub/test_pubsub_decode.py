"""A Pub/Sub message as an event: the three forms, what is taken from them, and what is refused."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from vedette.adapters.pubsub.decoder import Decoder
from vedette.adapters.pubsub.source_decoder import build_decoder
from vedette.domain.base.clock import from_iso
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.ports.sources import Refused

AT_US = from_iso("2026-03-01T06:00:00.123456Z")
STRUCTURED = {"content-type": "application/cloudevents+json; charset=utf-8"}
BINARY = {
    "ce-specversion": "1.0",
    "ce-id": "7",
    "ce-source": "https://shop.example/orders",
    "ce-type": "order.placed",
    "content-type": "application/json",
}
WHOLE = {"specversion": "1.0", "id": "7", "source": "https://shop.example/o", "type": "order.new"}


def decode(
    data: Any = b"{}",
    attributes: dict[str, str] | None = None,
    *,
    key: str = "",
    id: str = "m1",
    **made: Any,
) -> Event | Refused:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return Decoder("orders", **made).decode(id, raw, attributes or {}, key, AT_US)


def event(*given: Any, **more: Any) -> Event:
    found = decode(*given, **more)
    assert isinstance(found, Event), found
    return found


def why(*given: Any, **more: Any) -> str:
    found = decode(*given, **more)
    assert isinstance(found, Refused), found
    assert found.where == "pubsub:orders message m1"
    return found.why


# --- the three forms ------------------------------------------------------------------------


def test_structured_mode() -> None:
    found = event({**WHOLE, "subject": "s", "data": {"n": 1}}, STRUCTURED)
    assert (found.source, found.id, found.type, found.subject, found.data) == (
        "https://shop.example/o", "7", "order.new", "s", {"n": 1},
    )  # fmt: skip
    assert found.vouched == ENVELOPE


def test_binary_mode() -> None:
    found = event({"n": 1}, {**BINARY, "ce-subject": "Ünï 100%25", "ce-region": "north", "x": "y"})
    assert (found.source, found.id, found.type) == (BINARY["ce-source"], "7", "order.placed")
    assert found.subject == "Ünï 100%25", "values stand as they are, without escapes"
    assert found.extensions == {"region": "north"}


def test_binary_mode_may_name_the_content_type_as_an_attribute_of_the_event() -> None:
    named = {name: value for name, value in BINARY.items() if name != "content-type"}
    assert event({"n": 1}, {**named, "ce-datacontenttype": "application/json"}).data == {"n": 1}
    assert "differs" in why({}, {**BINARY, "ce-datacontenttype": "text/plain"})
    assert "twice" in why({}, {**BINARY, "Content-Type": "text/plain"})


def test_bare_data_is_of_the_type_that_the_settings_give() -> None:
    found = event({"n": 1}, type="order.bare", key="k1")
    assert (found.source, found.id, found.type) == ("pubsub:orders", "m1", "order.bare")
    assert (found.subject, found.time, found.data) == (
        "k1",
        "2026-03-01T06:00:00.123456Z",
        {"n": 1},
    )


@pytest.mark.parametrize("name", ["ce-id", "event_id"])
def test_an_id_of_the_publishers_own_makes_one_event_of_two_tries(name: str) -> None:
    first, second = (event({}, {name: "e9"}, type="t", id=id) for id in ("m1", "m2"))
    assert first.key == second.key
    assert event({}, type="t", id="m1").key != event({}, type="t", id="m2").key


def test_bare_data_may_be_text() -> None:
    assert event(b"hello", {"content-type": "text/plain"}, type="t").data == "hello"
    assert event(b"", type="t").data is None


# --- lineage, order, trust ------------------------------------------------------------------


@pytest.mark.parametrize("form", ["binary", "structured", "bare"])
def test_lineage_is_taken_over(form: str) -> None:
    claims = {"vedettelineage": "harbour/a,harbour/b", "vedettehops": "3"}
    if form == "structured":
        found = event({**WHOLE, **claims}, STRUCTURED)
    elif form == "binary":
        found = event({}, {**BINARY, **{f"ce-{name}": value for name, value in claims.items()}})
    else:
        found = event({}, claims, type="t")
    assert (found.lineage, found.hops) == (("harbour/a", "harbour/b"), 3)


def test_the_ordering_key_is_the_subject_of_what_has_none() -> None:
    assert event(WHOLE, STRUCTURED, key="k").subject == "k"
    assert event({}, BINARY, key="k").subject == "k"
    assert event({}, {**BINARY, "ce-subject": "own"}, key="k").subject == "own"


def test_a_source_that_vouches_for_nothing_vouches_for_nothing() -> None:
    for data, attributes in ((WHOLE, STRUCTURED), ({}, BINARY), ({}, {})):
        assert event(data, attributes, type="t", vouches="none").vouched == frozenset()


@pytest.mark.parametrize(
    ("claim", "named"),
    [
        ({"type": "vedette.tick"}, "type 'vedette.tick'"),
        ({"source": "vedette:harbour"}, "source 'vedette:harbour'"),
        ({"source": "csv:nab"}, "source 'csv:nab'"),
        ({"source": "pubsub:other"}, "source 'pubsub:other'"),
        ({"source": "imap:desk"}, "source 'imap:desk'"),
        ({"vedetteprincipal": "person/boss"}, "attribute 'vedetteprincipal'"),
        ({"vedettereason": "because"}, "attribute 'vedettereason'"),
    ],
)
def test_what_is_the_engines_own_is_refused(claim: dict[str, str], named: str) -> None:
    assert named in why({**WHOLE, **claim}, STRUCTURED)
    assert named in why({}, {**BINARY, **{f"ce-{n}": v for n, v in claim.items()}})


def test_its_own_source_is_a_sources_own() -> None:
    assert event({**WHOLE, "source": "pubsub:orders"}, STRUCTURED).source == "pubsub:orders"


@pytest.mark.parametrize(
    ("data", "attributes", "type", "expected"),
    [
        (b"{}", {}, None, "gives bare data no type"),
        (b"not json", {}, "t", "not JSON"),
        (b'{"a": 1, "a": 2}', {}, "t", "given twice"),
        (b"\xff", {"content-type": "text/plain"}, "t", "not UTF-8"),
        (b"not json", STRUCTURED, None, "not JSON"),
        (b"[]", {"content-type": "application/cloudevents-batch+json"}, None, "one event a m"),
        (b"x", {"content-type": "application/cloudevents+avro"}, None, "one event a message"),
        (b"{}", {**BINARY, "ce-specversion": "0.3"}, None, "specversion"),
        (b"{}", {**BINARY, "ce-id": ""}, None, "id"),
        (b"{}", {**BINARY, "ce-time": "yesterday"}, None, "time"),
        (b"{}", {"vedettehops": "many"}, "t", "vedettehops"),
    ],
)  # fmt: skip
def test_what_is_no_event_is_refused_with_the_reason(
    data: bytes, attributes: dict[str, str], type: str | None, expected: str
) -> None:
    assert expected in why(data, attributes, type=type)


@pytest.mark.parametrize("attributes", [{}, BINARY, STRUCTURED])
def test_data_beyond_the_limit_are_refused_unread(attributes: dict[str, str]) -> None:
    reason = why(b"{" * 1001, attributes, type="t", max_bytes=1000)
    assert "event data is 1001 bytes, the limit is 1000" in reason
    # The control: what is not larger is read.
    assert "JSON" in why(b"{" * 1000, attributes, type="t", max_bytes=1000)


def test_a_fleets_own_limit_holds() -> None:
    context: Any = SimpleNamespace(max_event_bytes=50)
    plan: Any = SimpleNamespace(name="orders", type="t", vouches="envelope", schedules=False)
    assert isinstance(build_decoder(plan, context).decode("m1", b"1" * 50, {}, "", AT_US), Event)
    assert isinstance(build_decoder(plan, context).decode("m1", b"1" * 51, {}, "", AT_US), Refused)


def test_a_refusal_keeps_a_bounded_part_and_is_found_by_its_ordering_key() -> None:
    found = decode(b"x" * 100_000, type="t", key="k")
    assert isinstance(found, Refused)
    assert (len(found.raw), found.subject) == (4096, "k")


def test_a_schedulers_messages_are_the_hooks_to_read() -> None:
    tick = Event("vedette:harbour", "a/b@now", "vedette.tick")
    requests: list[Any] = []

    def scheduled(*given: Any) -> Event:
        requests.append(given)
        return tick

    assert decode(b"{}", {"vedette-schedule": "a/b"}, decode_tick=scheduled) is tick
    assert requests == [({"vedette-schedule": "a/b"}, b"{}", AT_US, "pubsub:orders message m1")]
