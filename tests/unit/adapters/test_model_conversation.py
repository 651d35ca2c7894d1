"""A model's context: given back as it was, added to, and begun anew where that will not do."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from google.genai import types
from msgspec.structs import replace
from tests.model_turns import CLAUDE, GEMINI, OPENAI, PLAIN, Talk, call, json_of, memory, said

from vedette.adapters.reasoners.adk.conversation import Prompt, has_begun_anew
from vedette.adapters.reasoners.adk.wire import Speaker

SIGNED = said(
    types.Part(text="", thought=True, thought_signature=b"\x00empty and signed\xff"),
    types.Part(text="I look."),
    types.Part(
        function_call=types.FunctionCall(id="call_7", name="look", args={"n": 1.5, "no": None}),
        thought_signature=b"of the first",
        part_metadata={"openai": {"id": "fc_1"}},
    ),
    call("send", "call_8", to="a"),
)
NOTED = said(call("note", "call_1", text="x"))


def told_turns(prompt: Prompt) -> list[dict[str, Any]]:
    """Return the turns that an opening tells of."""
    (message,) = prompt.contents
    (part,) = message.parts or []
    found = re.search(r'^<data name="turns" [^>]*>\n(.*)\n</data>$', part.text or "", re.MULTILINE)
    assert found
    return list(orjson.loads(found.group(1)))


def responses(prompt: Prompt) -> list[types.FunctionResponse]:
    found = [part.function_response for part in prompt.contents[-1].parts or []]
    assert all(one is not None for one in found)
    return [one for one in found if one is not None]


def test_what_a_model_said_goes_back_to_the_letter() -> None:
    talk = Talk()
    talk.take(SIGNED)
    prompt = talk.ask()
    assert prompt.opens == ""
    assert json_of(prompt.contents[1]) == json_of(SIGNED)
    assert [content.role for content in prompt.contents] == ["user", "model", "user"]


def test_all_calls_of_an_answer_are_answered_together_in_order_by_their_ids() -> None:
    talk = Talk()
    talk.take(SIGNED, {"status": "not permitted"}, {"status": "done", "data": {"id": "7"}})
    found = [(one.id, one.name, one.response) for one in responses(talk.ask())]
    assert found == [
        ("call_7", "look", {"status": "not permitted"}),
        ("call_8", "send", {"status": "done", "data": {"id": "7"}, "ref": "ref:/outcome/0"}),
    ]


def test_no_id_is_made_up_for_a_call_that_came_without() -> None:
    talk = Talk()
    talk.take(said(call("look")))
    assert responses(talk.ask())[0].id is None


def test_later_messages_only_append() -> None:
    talk = Talk()
    before: list[str] = []
    for answer in (SIGNED, NOTED, said(call("look", "call_9"))):
        now = [json_of(content) for content in talk.take(answer).contents]
        assert now[: len(before)] == before
        before = [*now, json_of(answer)]
    assert len(before) == 6


def test_a_new_memory_is_told_in_the_next_message() -> None:
    talk = Talk()
    opening = talk.take(SIGNED)
    talk.briefing = replace(talk.briefing, memories=(memory("m1", "Ann is away"),))
    prompt = talk.take(NOTED)
    assert prompt.opens == ""
    assert prompt.contents[0] == opening.contents[0]
    first, last = responses(prompt)
    assert "changed" not in (first.response or {})
    (told,) = (last.response or {})["changed"]["/memory"]
    assert told["text"] == "Ann is away"
    # It stays where it was told, and is told once.
    later = talk.ask()
    assert json_of(later.contents[2]) == json_of(prompt.contents[2])
    assert "changed" not in (responses(later)[-1].response or {})


@pytest.mark.parametrize(
    ("before", "was"), [({}, {}), ({"texts": ["a"]}, {"was": {"texts": ["a"]}})]
)
def test_a_row_that_the_run_wrote_itself_opens_no_context(
    before: dict[str, Any], was: dict[str, Any]
) -> None:
    talk = Talk(replace(PLAIN, row=before))
    wrote = {"rows": [{"texts": ["a", "b"], "vedette.readers": ["x"]}], **was}
    talk.take(NOTED, {"status": "done", "data": wrote})
    talk.briefing = replace(talk.briefing, row={"texts": ["a", "b"]})
    prompt = talk.ask()
    assert prompt.opens == ""
    assert (responses(prompt)[0].response or {})["changed"] == {"/row": {"texts": ["a", "b"]}}


def test_a_row_of_before_that_no_outcome_has_is_told_no_more_and_opens_one_context() -> None:
    """It is not kept for that: what stood there may be another event's."""
    talk = Talk(replace(PLAIN, row={"texts": ["a secret"]}))
    talk.take(NOTED, {"status": "done", "data": {"rows": [{"texts": ["b"]}]}})
    talk.briefing = replace(talk.briefing, row={"texts": ["b"]})
    prompt = talk.take(NOTED, {"status": "done", "data": {"rows": [{"texts": ["c"]}]}})
    assert prompt.opens == "changed"
    assert "a secret" not in json_of(prompt.contents[0])
    talk.briefing = replace(talk.briefing, row={"texts": ["c"]})
    assert talk.ask().opens == "", "that it wrote itself by then is known"


@pytest.mark.parametrize("rows", [7, [7], "ab", None, [{"texts": ["z"]}]])
def test_a_row_that_somebody_else_wrote_opens_one(rows: Any) -> None:
    talk = Talk(replace(PLAIN, row={"texts": ["a secret"]}))
    talk.take(NOTED, {"status": "done", "data": {"rows": rows}})
    talk.briefing = replace(talk.briefing, row={"texts": []})
    prompt = talk.ask()
    assert prompt.opens == "changed"
    assert "a secret" not in json_of(prompt.contents[0])


@pytest.mark.parametrize("changed", [{"charter": {"desk": "c"}}, {"registry": {}}])
def test_another_charter_or_registry_opens_a_context(changed: dict[str, Any]) -> None:
    talk = Talk()
    talk.take(SIGNED)
    talk.briefing = replace(talk.briefing, **changed)
    prompt = talk.ask()
    assert prompt.opens == "changed"
    assert "desk@example.org" not in json_of(prompt.contents[0]) or "registry" in changed
    assert "b@example.org" not in json_of(prompt.contents[0]) or "charter" in changed


def test_what_may_not_be_remembered_any_more_is_in_no_message() -> None:
    talk = Talk(replace(PLAIN, memories=(memory("m1", "Ann is ill"), memory("m2", "Bo is in"))))
    talk.take(said(types.Part(text="Ann is ill, so"), call("send", "1", text="Ann is ill")))
    talk.briefing = replace(talk.briefing, memories=(memory("m2", "Bo is in"),))
    prompt = talk.take(NOTED)
    assert prompt.opens == "withdrawn"
    assert "Bo is in" in json_of(prompt.contents[0])
    line = {"tool": "send", "status": "done", "ref": "ref:/outcome/0"}
    assert told_turns(prompt) == [{"calls": [line]}]
    # Nor in one that is opened later for another reason.
    talk.briefing = replace(talk.briefing, registry={})
    later = talk.ask()
    assert later.opens == "changed"
    assert "Ann is ill" not in json_of(later.contents[0])
    assert told_turns(later)[1]["calls"][0]["args"] == {"text": "x"}


def test_a_record_holds_nothing_of_what_was_told() -> None:
    """It is kept with its event, and what was told is other events', too."""
    talk = Talk(replace(PLAIN, memories=(memory("m1", "Ann is ill"),), row={"note": "of the row"}))
    talk.take(NOTED)
    talk.briefing = replace(talk.briefing, memories=(*talk.briefing.memories, memory("m2", "Bo")))
    assert "Bo" in json_of(talk.take(NOTED).contents[-1])
    kept = str([turn["model"] for turn in talk.briefing.turns])
    for word in ("Ann is ill", "Bo", "of the row", "a@example.org", "desk@example.org"):
        assert word not in kept


BREAKS: dict[str, tuple[Speaker, dict[str, Any]]] = {
    "nothing else": (GEMINI, {}),
    "a refusal": (GEMINI, {"anew": True}),
    "another model": (CLAUDE, {}),
    "another registry": (GEMINI, {"registry": {}}),
}


@pytest.mark.parametrize("name", BREAKS)
@pytest.mark.parametrize("recorded", [True, False])
def test_what_is_withdrawn_is_told_no_more_whatever_else_opens_a_context(
    name: str, recorded: bool
) -> None:
    speaker, changes = BREAKS[name]
    talk = Talk(replace(PLAIN, memories=(memory("m1", "Ann is ill"),)))
    talk.take(said(types.Part(text="Ann is ill, so"), call("send", "1", text="Ann is ill")))
    if not recorded:
        (turn,) = talk.briefing.turns
        old = {name: value for name, value in turn.items() if name != "model"}
        talk.briefing = replace(talk.briefing, turns=(old,))
    talk.briefing = replace(talk.briefing, memories=(), **changes)
    line = {"tool": "send", "status": "done", "ref": "ref:/outcome/0"}
    assert told_turns(talk.take(NOTED, speaker=speaker)) == [{"calls": [line]}]
    talk.briefing = replace(talk.briefing, anew=False, charter={})
    later = talk.ask(speaker)
    assert "Ann is ill" not in json_of(later.contents[0])
    assert told_turns(later)[1]["calls"][0]["args"] == {"text": "x"}


def test_another_revision_of_a_memory_withdraws_the_one_before() -> None:
    talk = Talk(replace(PLAIN, memories=(memory("m1", "Ann is ill"),)))
    talk.take(SIGNED)
    talk.briefing = replace(talk.briefing, memories=(replace(memory("m1", "?"), revision=2),))
    assert talk.ask().opens == "withdrawn"


def test_to_another_model_go_calls_and_text_only() -> None:
    talk = Talk()
    talk.take(SIGNED)
    prompt = talk.ask(OPENAI)
    parts = prompt.contents[1].parts or []
    assert prompt.opens == ""
    assert [part.text for part in parts if part.text] == ["I look."]
    ids = [part.function_call.id for part in parts if part.function_call]
    assert len({*ids, "call_7", "call_8"}) == 4, "made anew: another model may have given them, too"
    assert ids == [one.id for one in responses(prompt)]
    bare = '"signed', "signature", "thought", "openai"
    assert not [word for word in bare if word in json_of(prompt.contents[1])]


def test_gemini_takes_another_models_first_call_by_its_documented_word() -> None:
    talk = Talk()
    talk.take(SIGNED, speaker=OPENAI)
    parts = talk.ask(GEMINI).contents[1].parts or []
    signatures = [part.thought_signature for part in parts if part.function_call]
    assert signatures == [b"skip_thought_signature_validator", None]
    assert not any(part.thought_signature for part in parts if not part.function_call)


def test_a_call_without_id_gets_one_before_it_goes_to_another_model() -> None:
    talk = Talk()
    talk.take(said(call("look"), call("look")))
    prompt = talk.ask(OPENAI)
    ids = [part.function_call.id for part in prompt.contents[1].parts or [] if part.function_call]
    assert len(set(ids)) == 2
    assert [one.id for one in responses(prompt)] == ids
    talk.take(NOTED, speaker=OPENAI)
    assert talk.ask(OPENAI).opens == "", "and it keeps it"
    assert talk.ask(OPENAI).contents[:3] == prompt.contents[:3]


def test_the_same_model_by_another_route_is_another() -> None:
    talk = Talk()
    talk.take(SIGNED)
    elsewhere = replace(GEMINI, route="f" * 64)
    assert b"of the first" not in json_of(talk.ask(elsewhere).contents[1]).encode()


def test_claude_is_told_in_lines_what_another_model_did() -> None:
    """It takes no call of its loop without the thinking before it, which nobody has for it."""
    talk = Talk()
    talk.take(SIGNED)
    prompt = talk.take(NOTED, speaker=CLAUDE)
    assert prompt.opens == "model"
    (turn,) = told_turns(prompt)
    assert turn["text"] == "I look."
    assert [one["tool"] for one in turn["calls"]] == ["look", "send"]
    assert talk.ask(CLAUDE).opens == "", "from there it goes on by itself"


def test_a_context_that_was_refused_is_begun_anew_with_nothing_signed() -> None:
    talk = Talk()
    talk.take(SIGNED)
    assert not has_begun_anew(talk.briefing)
    talk.briefing = replace(talk.briefing, anew=True)
    prompt = talk.take(NOTED)
    assert (prompt.opens, len(prompt.contents), prompt.gives_back) == ("refused", 1, False)
    assert told_turns(prompt)[0]["calls"][0]["args"] == {"n": "1.5", "no": None}
    talk.briefing = replace(talk.briefing, anew=False)
    assert talk.ask().opens == ""
    assert has_begun_anew(talk.briefing)


def test_an_outcome_that_is_not_what_was_told_opens_a_context() -> None:
    talk = Talk()
    talk.take(SIGNED)
    talk.take(NOTED)
    first, second = talk.briefing.turns
    first = {**first, "answers": [{**first["answers"][0], "data": {}}, first["answers"][1]]}
    talk.briefing = replace(talk.briefing, turns=(first, second))
    assert talk.ask().opens == "outcome"


def test_a_turn_of_before_answers_were_kept_opens_a_context() -> None:
    talk = Talk()
    talk.take(SIGNED)
    (turn,) = talk.briefing.turns
    old = {name: value for name, value in turn.items() if name != "model"}
    talk.briefing = replace(talk.briefing, turns=(old,))
    assert talk.ask().opens == "unrecorded"


def test_an_opening_that_is_not_what_was_told_is_not_given_back() -> None:
    """What came of an earlier turn, of which it tells, is another by now."""
    talk = Talk()
    talk.take(SIGNED)
    talk.briefing = replace(talk.briefing, anew=True)
    talk.take(NOTED)
    talk.briefing = replace(talk.briefing, anew=False)
    assert talk.ask().opens == ""
    first, second = talk.briefing.turns
    first = {**first, "answers": [{**first["answers"][0], "data": {}}, first["answers"][1]]}
    talk.briefing = replace(talk.briefing, turns=(first, second))
    assert talk.ask().opens == "changed"


@pytest.mark.parametrize("at", [0, 1])
def test_what_is_told_otherwise_since_an_upgrade_is_not_given_back(at: int) -> None:
    talk = Talk()
    talk.take(SIGNED)
    talk.briefing = replace(talk.briefing, memories=(memory("m1"),))
    talk.take(NOTED)
    assert talk.ask().opens == ""
    turns = [dict(turn) for turn in talk.briefing.turns]
    turns[at]["model"] = {**turns[at]["model"], "told": "f" * 64}
    talk.briefing = replace(talk.briefing, turns=tuple(turns))
    assert talk.ask().opens == "changed"


def test_a_row_that_another_run_has_made_opens_a_context() -> None:
    talk = Talk()
    talk.take(NOTED)
    talk.briefing = replace(talk.briefing, row={"texts": ["of another run"]})
    assert talk.ask().opens == "changed"


BAD_RECORDS: list[Any] = [
    {"model": "m"}, 7, {"content": '{"role":"model","parts":[{"a_field_of_tomorrow":1}]}'},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_RECORDS)
def test_a_record_that_cannot_be_read_opens_a_context(bad: Any) -> None:
    """Another version of the provider's client may have written it, or of this."""
    talk = Talk()
    talk.take(SIGNED)
    (turn,) = talk.briefing.turns
    record = {**turn["model"], **bad} if isinstance(bad, dict) and "content" in bad else bad
    talk.briefing = replace(talk.briefing, turns=({**turn, "model": record},))
    prompt = talk.ask()
    assert prompt.opens == "unrecorded"
    assert told_turns(prompt)[0]["text"] == "I look."
    assert not has_begun_anew(talk.briefing)


# --- the window -------------------------------------------------------------------------------


def test_what_leaves_the_window_stays_by_reference() -> None:
    talk = Talk()
    room = 12_000
    long = said(call("look", "1", text="w" * 1500))
    opens = []
    for _ in range(14):
        prompt = talk.take(long, {"status": "done", "data": {"text": "d" * 800}}, room=room)
        assert prompt.size <= room
        opens.append(prompt.opens)
    assert opens[0] == "first"
    begun = opens.count("window")
    assert 1 <= begun <= 5, "not at every turn"
    assert set(opens) == {"first", "", "window"}
    talk.briefing = replace(talk.briefing, registry={})
    turns = told_turns(talk.ask(room=room))
    assert turns[0] == {"calls": [{"tool": "look", "status": "done", "ref": "ref:/outcome/0"}]}
    assert turns[-1]["calls"][0]["args"] == {"text": "w" * 1500}
    assert [turn["calls"][0]["ref"] for turn in turns] == [f"ref:/outcome/{n}" for n in range(14)]


def test_an_open_loop_is_never_cut() -> None:
    """As long as a context goes on, nothing of it is left out."""
    talk = Talk()
    said_so_far: list[str] = []
    for number in range(12):
        answer = said(call("look", str(number), text="w" * 900))
        prompt = talk.take(answer, room=12_000)
        given_back = [json_of(one) for one in prompt.contents if one.role == "model"]
        if prompt.opens:
            said_so_far = []
        assert given_back == said_so_far
        said_so_far.append(json_of(answer))


def test_an_event_that_fills_half_of_the_window_leaves_room_for_turns() -> None:
    event = replace(PLAIN.event, data={"text": "w" * 35_000})
    talk = Talk(replace(PLAIN, event=event))
    talk.take(said(call("look", "1", text="what I did")), {"status": "done", "data": {"a": "b"}})
    talk.briefing = replace(talk.briefing, registry={})
    (turn,) = told_turns(talk.ask(room=60_000))
    assert turn["calls"][0]["args"] == {"text": "what I did"}
    assert turn["calls"][0]["data"] == {"a": "b"}


def test_a_name_of_one_model_is_cut_to_what_every_other_takes() -> None:
    talk = Talk()
    talk.take(said(call("a.b:" + "c" * 100, "id!1")))
    prompt = talk.ask(OPENAI)
    (part,) = prompt.contents[1].parts or []
    (answer,) = responses(prompt)
    assert part.function_call is not None
    for one in (part.function_call, answer):
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", one.name or "")
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", one.id or "")
