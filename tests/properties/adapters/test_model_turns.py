"""Whatever a model says, it is given back to the letter, and nothing told before is changed."""

from __future__ import annotations

import re
from typing import Any

from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.model_turns import CLAUDE, GEMINI, OPENAI, PLAIN, Talk, json_of, memory

TAKEN = re.compile(r"[a-zA-Z0-9_-]{1,64}")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
ARGS = st.dictionaries(TEXT, JSON, max_size=3)
CALLS = st.builds(
    types.FunctionCall,
    id=st.none() | st.text("abc_:!~", min_size=3, max_size=12),
    name=st.sampled_from(["look", "send", "no.such-tool"]),
    args=st.none() | ARGS,
)


def _ids(content: types.Content) -> list[str]:
    calls = [part.function_call for part in content.parts or [] if part.function_call]
    return [call.id for call in calls if call.id is not None]


SIGNATURES = st.none() | st.binary(max_size=30)
SIGNED_CALLS = st.builds(
    types.Part, function_call=CALLS, thought_signature=SIGNATURES, part_metadata=st.none() | ARGS
)
OTHER_PARTS = st.builds(
    types.Part, text=TEXT, thought=st.none() | st.booleans(), thought_signature=SIGNATURES,
    part_metadata=st.none() | ARGS,
)  # fmt: skip
ANSWERS = st.tuples(
    st.lists(OTHER_PARTS, max_size=3),
    SIGNED_CALLS,
    st.lists(SIGNED_CALLS | OTHER_PARTS, max_size=3),
).map(lambda parts: types.Content(role="model", parts=[*parts[0], parts[1], *parts[2]]))
# An id names one call of an answer; a model may give it again in the next.
ANSWERS = ANSWERS.filter(lambda content: len(ids := _ids(content)) == len(set(ids)))
RESULTS = st.lists(
    st.just({"status": "failed"})
    | st.just({"status": "not permitted"})
    | st.builds(lambda data: {"status": "done", "data": data}, st.dictionaries(TEXT, TEXT)),
    max_size=3,
)
CHANGES = st.lists(st.sampled_from(["m1", "m2", "m3"]), unique=True)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(ANSWERS, RESULTS, CHANGES), min_size=1, max_size=4))
def test_what_is_given_back_is_what_was_said(
    turns: list[tuple[types.Content, list[dict[str, Any]], list[str]]],
) -> None:
    """Byte for byte of its JSON, with every message before it as it was told then."""
    talk = Talk()
    before: list[str] = []
    known: set[str] = set()
    for answer, results, new in turns:
        known |= set(new)
        talk.briefing = replace(talk.briefing, memories=tuple(map(memory, sorted(known))))
        prompt = talk.take(answer, *results)
        now = [json_of(content) for content in prompt.contents]
        assert now[: len(before)] == before
        assert len(now) == len(before) + 1
        before = [*now, json_of(answer)]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(ANSWERS, st.sampled_from([GEMINI, CLAUDE, OPENAI])), max_size=4))
def test_every_call_is_answered_by_its_name_and_id_whoever_speaks(turns: list[Any]) -> None:
    talk = Talk(PLAIN)
    for answer, speaker in turns:
        talk.take(answer, speaker=speaker)
        for other in (GEMINI, CLAUDE, OPENAI):
            contents = talk.ask(other).contents
            for spoke, told in zip(contents[1::2], contents[2::2], strict=True):
                asked = [p.function_call for p in spoke.parts or [] if p.function_call]
                told_of = [p.function_response for p in told.parts or [] if p.function_response]
                assert [(one.id, one.name) for one in asked] == [
                    (one.id, one.name) for one in told_of
                ]
                assert told_of
            # What another said has names and ids that every provider takes.
            calls = [
                part.function_call
                for content in contents
                for part in content.parts or []
                if content.role == "model" and part.function_call
            ]
            if other is OPENAI and all(one is not OPENAI for _, one in turns):
                ids = [one.id or "" for one in calls]
                assert len(ids) == len(set(ids))
                assert all(
                    TAKEN.fullmatch(text)
                    for one in calls
                    for text in (one.id or "", one.name or "")
                )


NAMES = ("ann", "bob", "cyd")
MOMENTS = st.tuples(
    st.sets(st.sampled_from(NAMES)),
    st.sampled_from([GEMINI, CLAUDE, OPENAI]),
    st.sampled_from(["nothing", "anew", "registry", "no record", "window"]),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(MOMENTS, min_size=2, max_size=6))
def test_whatever_happens_nothing_is_told_of_a_memory_that_is_gone(moments: list[Any]) -> None:
    """Of a model that repeats, in each turn, all that it was told of memories."""
    talk = Talk()
    for at, (known, speaker, event) in enumerate(moments):
        memories = tuple(memory(name, f"all about {name}") for name in sorted(known))
        talk.briefing = replace(talk.briefing, memories=memories, anew=event == "anew")
        if event == "registry":
            talk.briefing = replace(talk.briefing, registry={"at": str(at)})
        elif event == "no record" and talk.briefing.turns:
            *turns, last = talk.briefing.turns
            last = {name: value for name, value in last.items() if name != "model"}
            talk.briefing = replace(talk.briefing, turns=(*turns, last))
        room = 3000 if event == "window" else 1_000_000
        told = "".join(map(json_of, talk.ask(speaker, room).contents))
        heard = [name for name in NAMES if f"all about {name}" in told]
        assert set(heard) <= known
        text = " ".join(f"all about {name}" for name in heard)
        answer = types.FunctionCall(name="look", id=f"c{at}", args={"text": text})
        parts = [types.Part(text=text), types.Part(function_call=answer)]
        talk.take(types.Content(role="model", parts=parts), speaker=speaker, room=room)
