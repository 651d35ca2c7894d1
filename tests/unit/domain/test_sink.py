"""Which places a sink names."""

from __future__ import annotations

from typing import Any

import pytest

from vedette.domain.origin import Origin
from vedette.domain.sink import find_places, sink_origins

ARGS: dict[str, Any] = {
    "to": [{"address": "a"}, {"name": "b"}, {"address": "c"}], "none": [], "a/b": {"x": 1, "y": 2},
    "text": "t", "null": None, "mixed": ["x", ["y"]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("sink", "places"),
    [
        ("/text", ["/text"]), ("/no", []), ("/to/1/name", ["/to/1/name"]), ("/to/3", []),
        ("/to/*", ["/to/0", "/to/1", "/to/2"]), ("/none/*", []), ("/a~1b/x", ["/a~1b/x"]),
        ("/a~1b/*", ["/a~1b/x", "/a~1b/y"]), ("/a~1b/z", []), ("/to/" + "9" * 5000, ["/to"]),
        # Behind a * an element without the member counts itself.
        ("/to/*/address", ["/to/1", "/to/0/address", "/to/2/address"]),
        # And so does what has no such places at all.
        ("/text/*", ["/text"]), ("/text/x", ["/text"]), ("/to/-1", ["/to"]), ("/to/²", ["/to"]),
        ("/to/address", ["/to"]), ("/null/x", ["/null"]),
        ("/mixed/*/*", ["/mixed/0", "/mixed/1/0"]),
    ],
)  # fmt: skip
def test_a_sink_names_places(sink: str, places: list[str]) -> None:
    assert find_places(ARGS, sink) == places


def test_a_sink_is_worth_the_worst_of_its_places() -> None:
    origins: dict[str, Origin] = {
        "/to": "untrusted", "/to/0": "trusted", "/to/0/address": "trusted", "/to/2": "registered",
    }  # fmt: skip
    # A place without a label of its own has that of what holds it.
    found = sink_origins(["/to/*/address", "/to/0/address", "/to/1/name", "/none/*"], ARGS, origins)
    assert found == {
        "/to/*/address": "untrusted", "/to/0/address": "trusted", "/to/1/name": "untrusted",
    }  # fmt: skip
    found = sink_origins(["/to/*/address"], ARGS, {**origins, "/to/1": "derived"})
    assert found == {"/to/*/address": "derived"}
    assert sink_origins(["/text/*", "/text", "/no"], ARGS, {}) == {
        "/text/*": "untrusted", "/text": "untrusted",
    }  # fmt: skip
