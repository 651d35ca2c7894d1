"""What a sink within arguments is worth: the worst of all that it could mean."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from vedette.domain.action import Action, Proposal, bind_proposal
from vedette.domain.origin import RANK, Origin, Ref, Roots, escape_pointer
from vedette.domain.sink import find_places
from vedette.domain.tool import Tool

NAMES = st.sampled_from(["to", "address", "*", "0", "a/b", "~"])
STEPS = st.sampled_from(["*", "*", "to", "address", "0", "1", "a~1b", "~0"])
LEAVES = st.sampled_from(
    [Ref("/charter/desk"), Ref("/event/data/who"), "x@evil.example", "desk@example.org", None, 7]
)
VALUES = st.recursive(
    LEAVES | st.sampled_from([Ref("/charter/all"), Ref("/event/data/all")]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
SINKS = st.lists(STEPS, min_size=1, max_size=3).map(lambda steps: "/a/" + "/".join(steps))
NONE: dict[str, Any] = {}
ROOTS = Roots(
    event={"data": {"who": "x@evil.example", "all": [{"to": "x@evil.example"}, "y"]}},
    vouched=frozenset(), charter={"desk": "desk@example.org", "all": [{"address": "a"}, ["b"]]},
    registry=NONE, memory=NONE, trusted_memories=frozenset(), outcome=NONE,
    trusted_outcomes=frozenset(), row=NONE,
)  # fmt: skip


def bound(value: Any, *sinks: str) -> Action:
    schema = {"type": "object", "properties": {"a": True}}
    tool = Tool(
        name="pay.send", verb="send", resource="bank", args={}, sinks=sinks, settles="none",
        function="send", schema=schema,
    )  # fmt: skip
    return bind_proposal(
        Proposal("pay.send", {"a": value}), {"pay.send": tool}, ROOTS,
        run="run_0123456789abcdef", turn=1, ordinal=0, confidence=1.0,
    )  # fmt: skip


def walk(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    yield at, value
    if isinstance(value, Mapping | list):
        named = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, item in named:
            yield from walk(item, f"{at}/{escape_pointer(str(name))}")


def naive_places(args: Mapping[str, Any], sink: str) -> set[str]:
    """Of all values there are, those whose pointers match the sink, or as much of it as can be."""
    steps = sink[1:].split("/")
    nodes = dict(walk(args))
    places = set()
    for at, value in nodes.items():
        depth = at.count("/")
        own = steps[:depth]
        if depth > len(steps) or not matches(at, own):
            continue
        led = [other for other in nodes if matches(other, steps[: depth + 1])]
        goes_on = any(other.startswith(f"{at}/") for other in led)
        step = steps[depth] if depth < len(steps) else ""
        has_none_such = isinstance(value, Mapping) or (
            isinstance(value, list) and (step == "*" or step.isdecimal())
        )
        is_absent = has_none_such and "*" not in own
        if depth == len(steps) or not (goes_on or is_absent):
            places.add(at)
    return places


def matches(at: str, steps: list[str]) -> bool:
    pattern = "".join("/" + ("[^/]*" if step == "*" else re.escape(step)) for step in steps)
    return re.fullmatch(pattern, at) is not None


@settings(max_examples=500, deadline=None)
@given(VALUES, SINKS)
def test_a_sink_is_worth_the_worst_of_all_that_it_could_mean(value: Any, sink: str) -> None:
    action = bound(value, sink)
    places = naive_places(action.args, sink)
    assert set(find_places(action.args, sink)) == places
    worst = max((action.origins[at] for at in places), key=RANK.__getitem__, default=None)
    if places:
        assert action.judged_origins[sink] == worst
    else:
        assert sink not in action.judged_origins


@settings(max_examples=500, deadline=None)
@given(VALUES, SINKS, st.data())
def test_one_more_element_never_betters_a_sink_that_stands_for_each(
    value: Any, sink: str, data: st.DataObject
) -> None:
    holders = [
        holder
        for at, holder in walk({"a": value})
        if isinstance(holder, list | dict)
        if any(
            step == "*" and matches(at, sink[1:].split("/")[:depth])
            for depth, step in enumerate(sink[1:].split("/"))
        )
    ]
    before = bound(value, sink)
    if not holders or sink not in before.judged_origins:
        return
    holder = data.draw(st.sampled_from(holders))
    more = data.draw(VALUES)
    if isinstance(holder, list):
        holder.insert(data.draw(st.integers(0, len(holder))), more)
    else:
        holder[data.draw(NAMES.filter(lambda name: name not in holder) | st.just("new"))] = more
    after = bound(value, sink)
    assert rank(after, sink) >= rank(before, sink)


def rank(action: Action, sink: str) -> int:
    found: Origin = action.judged_origins[sink]
    return RANK[found]


@settings(max_examples=300, deadline=None)
@given(VALUES, SINKS)
def test_no_call_names_a_member_that_passes_for_a_sink_the_tool_does_not_declare(
    value: Any, sink: str
) -> None:
    judged = bound(value).judged_origins
    assert not any("*" in at.split("/") for at in judged)
    assert judged.get(sink) == (bound(value).origins.get(sink) if "*" not in sink else None)
