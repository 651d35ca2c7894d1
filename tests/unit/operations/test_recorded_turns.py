"""What a recording says of what a model was told, and of its calls, without any line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.model_turns import PLAIN, memory

from vedette.domain.action import decode_arguments, encode_arguments
from vedette.domain.memory import Briefing
from vedette.domain.origin import Ref
from vedette.operations.recordings import digest_told, list_changes

BRIEFING = replace(
    PLAIN,
    memories=(memory("hours"),),
    row={"open": 1},
    turn=2,
    turns=({"answers": [{"tool": "mail.file", "ordinal": 0, "status": "done", "data": {}}]},),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**50), 2**50)
    | st.text()
    | st.builds(Ref, st.text()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1), VALUES, max_size=4))
def test_arguments_are_read_as_they_were_given(args: dict[str, Any]) -> None:
    recorded = orjson.loads(orjson.dumps(encode_arguments(args)))
    assert decode_arguments(recorded, None) == args


CHANGES: dict[str, tuple[Callable[[Briefing], Briefing], list[str]]] = {
    "nothing": (lambda one: replace(one, position=7, previous=3, run="run_b"), []),
    "event": (
        lambda one: replace(one, event=replace(one.event, data={"from": "b@example.org"})),
        ["event is another"],
    ),
    "charter": (lambda one: replace(one, charter={}), ["charter is another"]),
    "registry": (lambda one: replace(one, registry={}), ["registry is another"]),
    "row": (lambda one: replace(one, row={}), ["row is another"]),
    "memory": (
        lambda one: replace(one, memories=(memory("hours", "another text"),)),
        ["memory bank/hours@1 is another"],
    ),
    "memories": (
        lambda one: replace(one, memories=(memory("terms"),)),
        ["memory bank/hours@1 is gone", "memory bank/terms@1 is new"],
    ),
    "outcome": (
        lambda one: replace(one, turns=({"answers": []},)),
        ["what came of turn 1 is another"],
    ),
}


@pytest.mark.parametrize("what", sorted(CHANGES))
def test_what_is_told_is_named_where_it_changed(what: str) -> None:
    change, words = CHANGES[what]
    assert list_changes(digest_told(BRIEFING), digest_told(change(BRIEFING))) == words
