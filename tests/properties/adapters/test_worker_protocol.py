"""What crosses the border between engine and worker comes back equal, floats to the last bit."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.frames import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    BadFrame,
    Frame,
    FrameDecoder,
    pack_frame,
)
from vedette.adapters.reasoners.workers.plain_data import pack_plain, read_plain
from vedette.adapters.reasoners.workers.reasoner_worker import pack_failure
from vedette.adapters.reasoners.workers.remote_error import read_error
from vedette.domain.action import Proposal
from vedette.domain.effect import Call, Outcome, RowWrite
from vedette.domain.event import Event
from vedette.domain.memory import MEMORY_KINDS, Briefing, Candidate, Memory
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.tool import Tool

STATE = "0a1b2c3d"
text = st.text(max_size=8)
number = st.floats(allow_nan=False)
scalar = st.none() | st.booleans() | st.integers() | number | text
data: Any = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
mapping = st.dictionaries(text, data, max_size=3)
# Text that no UTF-8 can hold too: a judge may cut a pair in half.
any_text = st.text(st.characters(), max_size=6)

events = st.builds(
    Event, text, text, text, st.none() | text, st.none() | text, data,
    st.integers(0, 9), st.lists(text, max_size=2).map(tuple), st.frozensets(text, max_size=2),
    st.dictionaries(text, st.integers() | text | st.booleans(), max_size=2),
)  # fmt: skip
memories = st.builds(
    Memory, text, text, st.integers(1, 9), text, st.sampled_from(["fact", "example"]),
    st.lists(text, max_size=2).map(tuple), text, text, text, text, st.integers(0, 2**53),
    st.none() | text, st.sampled_from(["reviewed", "learned"]),
)  # fmt: skip
proposals = st.builds(
    Proposal, any_text, st.dictionaries(text, data | st.builds(Ref, text), max_size=3),
    any_text, number,
)  # fmt: skip
some_texts = st.lists(text, max_size=2).map(tuple)
candidates = st.builds(
    Candidate, text, text, any_text, some_texts, kind=st.sampled_from(MEMORY_KINDS),
    label=st.none() | text, evidence=some_texts, replaces=st.none() | text,
)  # fmt: skip
thoughts = st.builds(
    ReasonerJudgement,
    label=any_text,
    confidence=number,
    proposals=st.lists(proposals, max_size=2).map(tuple),
    score=st.none() | number,
    threshold=st.none() | number,
    detail=mapping,
    observed=st.booleans(),
    checkpoint=st.none() | st.binary(max_size=9),
    candidates=st.lists(candidates, max_size=2).map(tuple),
    state=st.text("0123456789abcdef", min_size=8, max_size=8),
)
outcomes = st.builds(
    Outcome, st.sampled_from(["done", "failed", "retry", "unknown"]), mapping, any_text
)
rows = st.lists(st.builds(RowWrite, text, text, st.none() | mapping), max_size=3)
calls = st.builds(
    Call, text, mapping, text, text, text, mapping, st.lists(text, max_size=2).map(tuple),
    st.integers(1, 9), st.integers(1, 2**53), st.booleans(),
)  # fmt: skip
tools = st.builds(
    Tool, text, text, text, st.dictionaries(text, text, max_size=2),
    st.lists(text, max_size=2).map(tuple), st.sampled_from(["none", "queryable"]), text,
    st.none() | text, st.none() | text, st.none() | text, st.sampled_from(["trusted", "untrusted"]),
    st.booleans(), st.integers(1, 2**53), st.integers(1, 100),
)  # fmt: skip


def same(left: Any, right: Any) -> bool:
    """Say whether two values are the same to the type and the last bit; lists equal tuples."""
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        known = left.keys() == right.keys()
        return bool(known) and all(same(left[name], right[name]) for name in left)
    if isinstance(left, float):
        return bool(left.hex() == right.hex())
    if hasattr(left, "__slots__") and not isinstance(left, str | bytes | int):
        return all(same(getattr(left, n), getattr(right, n)) for n in type(left).__slots__)
    return bool(left == right)


@given(
    events, st.lists(memories, max_size=2).map(tuple), mapping, st.lists(mapping, max_size=2), data
)
def test_a_briefing_crosses(
    event: Event, known: tuple[Memory, ...], row: dict[str, Any], turns: list[Any], notes: Any
) -> None:
    charter, registry = {"a": 0.1}, {"b": 1}
    sent = Briefing(
        "run", "agent", "key", 7, 3, 1, event, charter, registry, known, row, tuple(turns),
        notes=notes,
    )  # fmt: skip
    received = protocol.read(protocol.pack(protocol.briefing_to_tuple(sent, 5)))
    there = protocol.memories_from_tuples(
        protocol.read(protocol.pack([protocol.memory_to_tuple(m) for m in known]))
    )
    assert same(
        protocol.briefing_from_tuple(received, "agent", charter, registry, {5: there}), sent
    )


@given(tools, calls)
def test_a_call_crosses(tool: Tool, call: Call) -> None:
    received = protocol.read(
        protocol.pack((protocol.tool_to_tuple(tool), protocol.call_to_tuple(call)))
    )
    assert same(Tool(*received[0]), tool)
    assert same(Call(*received[1]), call)


@given(thoughts, data)
def test_a_thought_crosses(thought: ReasonerJudgement, notes: Any) -> None:
    assert same(protocol.read_judgement(*protocol.pack_judgement(thought)), thought)
    goes_on = replace(thought, final=False, notes=notes)
    assert same(protocol.read_judgement(*protocol.pack_judgement(goes_on)), goes_on)


@given(st.none() | outcomes, rows)
def test_outcomes_and_rows_cross(outcome: Outcome | None, written: list[RowWrite]) -> None:
    assert same(protocol.read_outcome(protocol.pack_outcome(outcome)), outcome)
    assert same(protocol.read_rows(protocol.pack_rows(written)), written)


@pytest.mark.parametrize("state", ["", "0a1b2c3", "0A1B2C3D", "0a1b2c3d\n", "a" * 64, None, 7])
def test_a_thought_whose_state_has_no_name_is_refused(state: Any) -> None:
    with pytest.raises(BadFrame):
        protocol.read_judgement(*protocol.pack_judgement(ReasonerJudgement("x", 1.0, state=state)))


@given(data)
def test_plain_data_crosses_and_nan_too(value: Any) -> None:
    assert same(read_plain(pack_plain(value)), value)
    found = read_plain(pack_plain([value, math.nan, -math.inf]))
    assert same(found[0], value)
    assert math.isnan(found[1])
    assert found[2] == -math.inf


@pytest.mark.parametrize(
    "value", [{"r": "/charter/x"}, ["r", "/charter/x"], {"ref": "/charter/x"}, "/charter/x"]
)
@pytest.mark.parametrize("beside", [0, math.nan, 1 << 70])
def test_no_value_is_ever_taken_for_a_reference(value: Any, beside: Any) -> None:
    """In neither form: a value out of an event must not turn into a trusted one."""
    thought = ReasonerJudgement("x", 1.0, (Proposal("t", {"to": value, "n": beside}),), state=STATE)
    (proposal,) = protocol.read_judgement(*protocol.pack_judgement(thought)).proposals
    assert same(proposal.args["to"], value)
    by = {"to": Ref("/x"), "n": beside}
    (by_ref,) = protocol.read_judgement(
        *protocol.pack_judgement(
            replace(thought, proposals=(replace(thought.proposals[0], args=by),))
        )
    ).proposals
    assert by_ref.args["to"] == Ref("/x")


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_an_answer_or_are_refused(noise: bytes) -> None:
    """Whatever a worker sends, nothing but BadFrame comes of it."""
    for read in (
        read_plain, protocol.read_outcome, protocol.read_rows, read_error,
        lambda b: protocol.read_judgement(b, b""),
    ):  # fmt: skip
        for form in (b"", b"j", b"s"):
            try:
                read(form + noise)
            except BadFrame:
                continue


def read_judgement(plain: bytes) -> ReasonerJudgement:
    return protocol.read_judgement(plain, b"")


@pytest.mark.parametrize(
    "value", ["\ud800", ["x", 1.0, [], "\ud800", False, {}, [], True, False, STATE]]
)
def test_text_that_no_utf8_can_hold_is_refused_where_none_belongs(value: Any) -> None:
    with pytest.raises(BadFrame):
        read_judgement(pack_plain(value))


@given(
    data, st.sampled_from([protocol.read_outcome, protocol.read_rows, read_error, read_judgement])
)
def test_data_of_another_shape_is_refused(value: Any, read: Any) -> None:
    for packed in (pack_plain(value), pack_plain([value, math.nan])):
        try:
            read(packed)
        except BadFrame:
            continue


@given(
    st.lists(st.builds(Frame, st.integers(0, 2**32 - 1), st.integers(0, 255), st.binary(),
                       st.binary()), max_size=5),
    st.lists(st.integers(1, 20), min_size=1),
)  # fmt: skip
def test_frames_come_out_as_they_went_in(sent: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(pack_frame(*frame) for frame in sent)
    frames, found, at = FrameDecoder(MAX_FRAME_BYTES), [], 0
    while at < len(stream):
        step = cuts[at % len(cuts)]
        found += frames.feed(stream[at : at + step])
        at += step
    assert found == sent


def test_a_frame_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadFrame, match="at most"):
        FrameDecoder(MAX_FRAME_BYTES).feed(
            pack_frame(1, 64, b"x" * 9)[: HEADER_BYTES - 13] + b"\xff" * HEADER_BYTES
        )


def test_an_error_that_cannot_say_what_it_is_is_told_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    (frame,) = FrameDecoder(MAX_FRAME_BYTES).feed(pack_failure(3, Mute()))
    error, kind = read_error(frame.plain)
    assert (type(error).__name__, kind) == ("Mute", "other")
    assert "cannot say" in str(error)
