"""CloudEvents over HTTP: what is read, and what is refused with which words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vedette.config.reserved_names import reserved_attribute
from vedette.domain.base.errors import BadEvent
from vedette.domain.cloudevents import (
    BATCH,
    MAX_DEPTH,
    STRUCTURED,
    content_mode,
    from_json,
    load_json,
    parse_message,
)
from vedette.domain.event import ENVELOPE, Event, check_event

Headers = list[tuple[str, str]]

MINIMAL = {
    "specversion": "1.0",
    "id": "e1",
    "source": "https://a.example/x",
    "type": "metric.point",
}


def structured(**more: Any) -> Event:
    """Parse a structured event; a value of None takes the attribute away."""
    body = {name: value for name, value in (MINIMAL | more).items() if value is not None}
    (event,) = parse_message([("Content-Type", STRUCTURED)], json.dumps(body).encode())
    return event


def binary(headers: dict[str, str], body: bytes = b"", content_type: str | None = None) -> Event:
    """Parse a binary event; a value of "-" takes the attribute away."""
    sent = {f"ce-{name}": value for name, value in (MINIMAL | headers).items() if value != "-"}
    listed = list(sent.items())
    if content_type:
        listed.append(("Content-Type", content_type))
    (event,) = parse_message(listed, body)
    return event


def test_structured() -> None:
    body = MINIMAL | {
        "subject": "cpu",
        "time": "2026-03-01t06:00:00.5z",
        "data": {"value": 1.5, "n": [1, None]},
        "region": "north",
        "level": 3,
        "test": True,
    }
    (event,) = parse_message(
        [("content-type", "Application/CloudEvents+JSON; charset=UTF-8")],
        json.dumps(body).encode(),
        vouched=ENVELOPE,
    )
    assert event == Event(
        source="https://a.example/x",
        id="e1",
        type="metric.point",
        subject="cpu",
        time="2026-03-01T06:00:00.5Z",
        data={"value": 1.5, "n": [1, None]},
        vouched=ENVELOPE,
        extensions={"region": "north", "level": 3, "test": True},
    )
    assert check_event(event, max_bytes=1000)


def test_nothing_is_vouched_for_unless_it_is_said() -> None:
    assert structured().vouched == frozenset()


def test_null_is_absent() -> None:
    body = json.dumps(MINIMAL | {"subject": None, "region": None}).encode()
    event = from_json(body)
    assert event.subject is None
    assert event.extensions == {}


def test_batch() -> None:
    body = json.dumps([MINIMAL, MINIMAL | {"id": "e2"}]).encode()
    assert [event.id for event in parse_message([("content-type", BATCH)], body)] == ["e1", "e2"]
    assert parse_message([("content-type", BATCH)], b"[]") == []


def test_a_bad_event_of_a_batch_is_named() -> None:
    body = json.dumps([MINIMAL, MINIMAL | {"id": ""}]).encode()
    with pytest.raises(BadEvent, match=r"events\[1\]: attribute 'id' is missing or empty \(give"):
        parse_message([("content-type", BATCH)], body)


def test_binary_json_and_structured_are_the_same_event() -> None:
    sent = binary({"subject": "cpu", "region": "north"}, b'{"value": 1.5}', "application/json")
    assert sent == structured(subject="cpu", region="north", data={"value": 1.5})


@pytest.mark.parametrize(
    ("content_type", "body", "data"),
    [
        ("application/json", b"[1]", [1]),
        ("application/vnd.x+json; charset=utf-8", b"[1]", [1]),
        ("text/plain", "héllo".encode(), "héllo"),
        ("application/octet-stream", b"\xff\x00", {"data_base64": "/wA="}),
        (None, b"x", {"data_base64": "eA=="}),
        ("application/json", b"", None),
    ],
)
def test_binary_data(content_type: str | None, body: bytes, data: object) -> None:
    assert binary({}, body, content_type).data == data


def test_base64_is_what_it_decodes_to() -> None:
    assert structured(data_base64="WzFd", datacontenttype="application/json").data == [1]
    assert structured(data_base64="aGk=", datacontenttype="text/plain").data == "hi"
    assert structured(data_base64="/wA=").data == {"data_base64": "/wA="}


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ("Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),
        ("100%25", "100%"),
        ("%2541", "%41"),
        ('"a \\"b\\" c"', 'a "b" c'),
        ("50% off", "50% off"),
    ],
)
def test_header_values_are_unquoted_and_percent_decoded_once(sent: str, meant: str) -> None:
    assert binary({"subject": sent}).subject == meant


@pytest.mark.parametrize("value", ["%ff", "%E2%82", "caf\u00e9", "a%00b", "a%0ab", "%C2%85"])
def test_header_values_that_are_no_text_are_refused(value: str) -> None:
    with pytest.raises(BadEvent):
        binary({"subject": value})


def test_a_header_given_twice_is_refused() -> None:
    sent = [(f"ce-{name}", value) for name, value in MINIMAL.items()]
    with pytest.raises(BadEvent, match="'id' is given twice"):
        parse_message([*sent, ("CE-ID", "other")], b"")


def test_data_and_its_type_are_not_headers() -> None:
    for name in ("data", "datacontenttype"):
        with pytest.raises(BadEvent, match="is not a header"):
            binary({name: "text/plain"})


@pytest.mark.parametrize("lineage", ["scout", "scout, clerk"])
def test_lineage(lineage: str) -> None:
    names = tuple(name.strip() for name in lineage.split(","))
    for event in (
        structured(vedettelineage=lineage, vedettehops=4),
        binary({"vedettelineage": lineage, "vedettehops": "4"}),
    ):
        assert (event.lineage, event.hops, event.extensions) == (names, 4, {})
    assert structured(vedettelineage=lineage).hops == len(names)
    assert structured(vedettehops=2).hops == 2


@pytest.mark.parametrize(
    ("attribute", "value", "word"),
    [
        ("specversion", None, "missing"),
        ("specversion", "0.3", "0.3"),
        ("specversion", 1.0, "1.0"),
        ("id", None, "missing"),
        ("id", " ", "empty"),
        ("id", 7, "not a string"),
        ("source", "", "empty"),
        ("source", "a b", "URI"),
        ("source", "x:<y>", "URI"),
        ("type", None, "missing"),
        ("type", True, "not a string"),
        ("subject", "", "empty"),
        ("subject", "a\u0000b", "control"),
        ("subject", ["a"], "not a string"),
        ("time", "yesterday", "RFC 3339"),
        ("time", "2026-03-01", "RFC 3339"),
        ("time", "2026-03-01T06:00:00", "RFC 3339"),
        ("time", "2026-02-30T06:00:00Z", "RFC 3339"),
        ("time", "2026-03-01T06:00:00+2:00", "RFC 3339"),
        ("time", "2026-03-01T06:00:00+99:00", "RFC 3339"),
        ("time", "9999-12-31T23:59:59-14:00", "RFC 3339"),
        ("time", "0001-01-01T00:00:00+14:00", "RFC 3339"),
        ("time", 1700000000, "not a string"),
        ("Region", "north", "a-z"),
        ("data_base", "x", "a-z"),
        ("région", "x", "a-z"),
        ("level", 1.5, "integer"),
        ("level", 2**31, "integer"),
        ("level", {"a": 1}, "integer"),
        ("data_base64", "@@", "Base64"),
        ("data_base64", 5, "Base64"),
        ("vedettehops", -1, "count"),
        ("vedettehops", True, "count"),
        ("vedettehops", "x", "count"),
        ("vedettelineage", "a,,b", "names"),
        ("vedettelineage", 3, "names"),
        ("vedettelineage", ",".join("a" * 65), "64 names"),
    ],
)
def test_a_bad_attribute_is_named_with_the_mend(attribute: str, value: Any, word: str) -> None:
    with pytest.raises(BadEvent) as caught:
        structured(**{attribute: value})
    assert repr(attribute) in caught.value.what
    assert word in caught.value.what + str(caught.value.mend)
    assert caught.value.mend


def test_hops_below_the_lineage_are_refused() -> None:
    with pytest.raises(BadEvent, match="vedettehops"):
        structured(vedettelineage="a,b", vedettehops=1)


def test_data_beside_base64_is_refused() -> None:
    with pytest.raises(BadEvent, match="beside data"):
        structured(data=1, data_base64="eA==")


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b'{"a": 1, "a": 2}', "'a' is given twice"),
        (b'{"x": [{"a": 1, "a": 2}]}', "'a' is given twice"),
        (b'"\xff"', "not UTF-8"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b'"\\ud800"', "surrogate"),
        (b'{"\\uDC00": 1}', "surrogate"),
        (b"NaN", "NaN"),
        (b"[-Infinity]", "Infinity"),
        (b"1e999", "range"),
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b"1 2", "not JSON"),
        (b"\xef\xbb\xbf1", "not JSON"),
        (b"1" * 5000, "not JSON"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "deeper"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "deeper"),
        (b"[" * 100_000, "deeper"),
    ],
)
def test_doubtful_json_is_refused(raw: bytes, word: str) -> None:
    with pytest.raises(BadEvent, match=word) as caught:
        load_json(raw, where="here")
    assert caught.value.where == "here"


def test_json_within_the_limits_is_taken() -> None:
    load_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    assert load_json(b'"\\ud83d\\ude00"') == "😀"
    assert load_json(b"[" + b"[]," * 500 + b"[]]") == [[]] * 501


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"null"])
def test_an_event_is_an_object(body: bytes) -> None:
    with pytest.raises(BadEvent, match="object"):
        from_json(body)
    with pytest.raises(BadEvent):
        parse_message([("content-type", BATCH)], b"[" + body + b"]")


def test_a_batch_is_an_array() -> None:
    with pytest.raises(BadEvent, match="array"):
        parse_message([("content-type", BATCH)], json.dumps(MINIMAL).encode())


@pytest.mark.parametrize(
    ("headers", "form"),
    [
        ([("Content-Type", STRUCTURED)], "structured"),
        ([("Content-Type", BATCH + ";charset=utf-8")], "batch"),
        ([("Content-Type", "application/json"), ("Ce-Id", "1")], "binary"),
        ([("Content-Type", "application/json")], None),
        ([("Content-Type", "application/cloudevents+avro"), ("ce-id", "1")], None),
        ([("Content-Type", STRUCTURED + "; charset=utf-16")], None),
        ([], None),
    ],
)
def test_content_modes(headers: Headers, form: str | None) -> None:
    assert content_mode(headers) == form
    if form is None:
        with pytest.raises(BadEvent, match="content type"):
            parse_message(headers, b"{}")


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_no_body_makes_anything_but_events_or_bad_event(body: bytes) -> None:
    for headers in (
        [("content-type", STRUCTURED)],
        [("content-type", BATCH)],
        [("content-type", "application/json"), *((f"ce-{k}", v) for k, v in MINIMAL.items())],
    ):
        try:
            for event in parse_message(headers, body):
                check_event(event, max_bytes=100_000)
        except BadEvent:
            pass


texts = st.text("a1 é😀\ud800\x00\x85<,%:TZ-", max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*MINIMAL, "subject", "time", "vedettehops"]), json_values))
def test_no_attribute_value_breaks_the_parser(attributes: dict[str, Any]) -> None:
    try:
        raw = json.dumps(MINIMAL | attributes).encode()
        event = from_json(raw)
    except BadEvent:
        return
    check_event(event, max_bytes=1_000_000)


@pytest.mark.parametrize(
    ("source", "type", "extensions", "claimed"),
    [
        ("a:b", "t", {}, None),
        ("vedettes:b", "vedettes.t", {"vedettehop": 1}, None),
        ("vedette:engine", "t", {}, "source"),
        ("a:b", "vedette.tick", {}, "type"),
        ("a:b", "t", {"vedetteprincipal": "person:kim"}, "vedetteprincipal"),
        ("a:b", "t", {"vedettereason": "why"}, "vedettereason"),
        *[(f"{kind}:x", "t", {}, "source") for kind in ("csv", "jsonl", "maildir", "host")],
    ],
)
def test_what_is_the_engines_or_an_adapters_is_reserved(
    source: str, type: str, extensions: dict[str, Any], claimed: str | None
) -> None:
    event = Event(source, "1", type, extensions=extensions)
    assert reserved_attribute(event) == claimed
    # To be whose source it is lifts nothing but that.
    lifted = claimed == "source" and not source.startswith("vedette:")
    assert reserved_attribute(event, own_source=event.source) == (None if lifted else claimed)
