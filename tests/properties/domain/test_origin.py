"""However a value is named, content never becomes trusted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from vedette.domain.action import Proposal, bind_proposal
from vedette.domain.base.errors import BadProposal
from vedette.domain.event import ENVELOPE
from vedette.domain.origin import (  # fmt: skip
    RANK,
    Ref,
    Roots,
    bare_origin,
    known_values,
    resolve,
    resolve_path,
    split_pointer,
)
from vedette.domain.origin_check import recompute_origins
from vedette.domain.run import Superseded
from vedette.domain.tool import Tool

WORDS = st.text(max_size=6)
VALUES = st.recursive(
    WORDS | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(WORDS, inner),
    max_leaves=4,
)  # fmt: skip
TREES = st.dictionaries(WORDS, VALUES, max_size=2)
PARTS = st.sampled_from(
    ["event", "charter", "registry", "memory", "outcome", "row", "item", "data", "..", ".", "", "0",
     "1", "-1", "subject", "~1", "~0", "text"]
) | WORDS  # fmt: skip
POINTERS = st.lists(PARTS, max_size=6).map(lambda parts: "/" + "/".join(parts))
NONE: dict[str, Any] = {}


@st.composite
def roots(draw: st.DrawFn) -> Roots:
    def tree() -> Any:
        return draw(TREES)

    return Roots(
        event={"source": "s", "id": "i", "type": "t", "subject": "k", "time": None, "data": tree()},
        vouched=frozenset(draw(st.sets(st.sampled_from([*sorted(ENVELOPE), "data"])))),
        charter=tree(), registry=tree(),
        memory={"0": tree(), "1": tree()}, trusted_memories=frozenset({"1"}),
        outcome={"0": tree(), "1": tree()}, trusted_outcomes=frozenset({"1"}), row=tree(),
        item={"0": tree()},
    )  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(roots(), POINTERS)
def test_the_first_part_of_a_pointer_decides(given_roots: Roots, pointer: str) -> None:
    try:
        value, origin = resolve(Ref(pointer), given_roots)
    except BadProposal:
        return
    parts = pointer.split("/")[1:]
    root, second = parts[0], parts[1].replace("~1", "/").replace("~0", "~")
    trusted = (
        root in ("charter", "registry", "item")
        or (root == "event" and second in given_roots.vouched)
        or (root in ("memory", "outcome") and second == "1")
    )
    assert (origin == "trusted") == trusted
    # What was found does not depend on what is vouched for.
    bare = replace(given_roots, vouched=frozenset(), trusted_memories=frozenset())
    assert resolve(Ref(pointer), bare)[0] == value


@settings(max_examples=30, deadline=None)
@given(roots(), VALUES)
def test_a_bare_value_is_never_trusted(given_roots: Roots, value: Any) -> None:
    origin = bare_origin(value, known_values(given_roots))
    assert origin in ("registered", "derived")
    if origin == "registered":
        known = known_values(replace(given_roots, event=NONE, memory=NONE, row=NONE))
        assert all(leaf in known for leaf in leaves(value))


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


COMPOSED = st.recursive(
    VALUES | POINTERS.map(Ref), lambda inner: st.lists(inner) | st.dictionaries(WORDS, inner),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(roots(), st.dictionaries(st.sampled_from(["a", "b", "c"]), COMPOSED))
def test_every_argument_has_an_origin_or_there_is_no_action(
    given_roots: Roots, args: dict[str, Any]
) -> None:
    kinds = {"a": "string?", "b": "object?", "c": "list?"}
    tool = Tool("t", "do", "thing", kinds, ("/a", "/b"), "idempotent", "f")
    try:
        action = bind_proposal(
            Proposal("t", args),
            {"t": tool},
            given_roots,
            run="r",
            turn=1,
            ordinal=0,
            confidence=1.0,
        )
    except BadProposal:
        return
    assert {f"/{name}" for name in action.args} <= set(action.origins)
    for pointer, origin in action.origins.items():
        # Whatever is labelled is there, and no part of it is worse.
        resolve_path(action.args, split_pointer(pointer))
        below = [o for at, o in action.origins.items() if at.startswith(f"{pointer}/")]
        assert RANK[origin] >= max(map(RANK.__getitem__, below), default=0)
        if origin == "trusted" and not isinstance(
            resolve_path(action.args, split_pointer(pointer)), list | dict
        ):
            drawn = (at for at in action.sources if f"{pointer}/".startswith(f"{at}/"))
            assert any(drawn), pointer


@settings(max_examples=30, deadline=None)
@given(roots(), st.dictionaries(st.sampled_from(["b", "c"]), COMPOSED))
def test_origins_of_a_record_are_the_same_while_nothing_changes(
    given_roots: Roots, args: dict[str, Any]
) -> None:
    kinds = {"b": "object?", "c": "list?"}
    tool = Tool("t", "do", "thing", kinds, ("/b",), "idempotent", "f")
    try:
        action = bind_proposal(
            Proposal("t", args),
            {"t": tool},
            given_roots,
            confidence=1.0,
            run="r",
            turn=1,
            ordinal=0,
        )
    except BadProposal:
        return
    record = {"args": action.args, "origins": action.origins, "sources": action.sources}
    roots = given_roots.charter, given_roots.registry, given_roots.trusted_memories
    assert recompute_origins(record, *roots) == action.origins
    # Without a charter nothing is better than it was, and what was drawn from it is gone.
    try:
        today = recompute_origins(record, {}, {})
    except Superseded:
        return
    assert all(RANK[today[at]] >= RANK[origin] for at, origin in action.origins.items())
