"""Events: their key, their one canonical form, and what is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from vedette.domain.base.errors import BadEvent
from vedette.domain.event import ENVELOPE, Event, check_event, metric_value

EVENT = Event(
    "csv:pumps", "1", "metric.point", "pump", "2026-01-01T00:00:00Z", {"value": 19.5}, 1, ("a",),
    ENVELOPE, {"traceparent": "00"},
)  # fmt: skip


def test_the_key_is_that_of_source_and_id() -> None:
    assert EVENT.key == replace(EVENT, type="other", data=None, subject=None).key
    assert EVENT.key != replace(EVENT, id="2").key
    assert Event("ab", "c", "t").key != Event("a", "bc", "t").key
    assert EVENT.key.startswith("evt_")


def test_everybody_sees_the_event_as_it_is_stored() -> None:
    stored = Event.from_body(orjson.loads(EVENT.to_body()))
    assert stored.data == {"value": "19.5"}
    assert stored.to_body() == EVENT.to_body()
    assert replace(stored, data=EVENT.data) == EVENT


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"source": ""}, "source"), ({"id": "  "}, "id"), ({"type": ""}, "type"),
        ({"id": "x" * 1025}, "1024"), ({"subject": "x" * 1025}, "1024"), ({"id": 7}, "id"),
        ({"hops": -1}, "hops"), ({"hops": 0, "lineage": ("a",)}, "hops"),
        ({"data": {"x": float("nan")}}, "JSON"), ({"data": {"x": float("inf")}}, "JSON"),
        ({"data": b"raw"}, "JSON"), ({"data": "\ud800"}, "JSON"), ({"data": {"x": {1, 2}}}, "JSON"),
        ({"data": "x" * 2000}, "limit is 1000"),
        ({"source": "a\0b"}, "'source' holds a NUL"), ({"id": "a\0b"}, "'id' holds a NUL"),
        ({"type": "a\0b"}, "'type' holds"), ({"subject": "\0"}, "'subject' holds a NUL"),
        ({"time": "\0"}, "'time' holds"), ({"time": 1.5}, "'time' is no text"),
        ({"time": ["\0"]}, "'time' is no text"), ({"subject": 5}, "'subject' is no text"),
        ({"type": "mail.in", "data": {"from": "a\0@b"}}, "the sender in data holds a NUL"),
    ],
)  # fmt: skip
def test_what_is_no_event_is_refused_with_the_mend(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadEvent, match=says) as error:
        check_event(replace(EVENT, **change), max_bytes=1000)
    assert error.value.mend


def test_the_limit_is_inclusive() -> None:
    size = len(EVENT.to_body())
    assert check_event(EVENT, max_bytes=size) == EVENT.to_body()
    with pytest.raises(BadEvent):
        check_event(EVENT, max_bytes=size - 1)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ({"value": 3}, 3.0), ({"value": "19.5"}, 19.5), ({"value": "-1e3"}, -1000.0),
        ({"value": True}, None), ({"value": "nan"}, None), ({"value": "1e999"}, None),
        ({"value": 10**400}, None), ({"value": "x"}, None), ({"value": [1]}, None),
        ({"other": 1}, None), ([1], None), (None, None),
    ],
)  # fmt: skip
def test_a_metric_has_one_finite_value_or_none(data: Any, value: float | None) -> None:
    assert metric_value(data) == value
