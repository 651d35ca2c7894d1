"""A model's context on the whole line: kept, given back, begun anew once, and charged exactly.

ADK's own Runner and a model that takes back only what it signed; gateway, Rego, store and
dispatcher are the real ones.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import errors, types
from msgspec.structs import replace
from pydantic import Field
from tests.model_turns import PLAIN, call, json_of, said

from vedette.adapters.reasoners.adk.reasoner import AdkReasoner
from vedette.domain.base.errors import StoreFailed, Temporary
from vedette.domain.event import Event
from vedette.domain.model_turn import UNCHARGED, ModelFailed
from vedette.domain.run import Step
from vedette.testing import toy_fleet as toy
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, intercept_commits, job, toy_fleet

SECOND = 1_000_000
DESK = "ref:/charter/desk"
SEND = call("wire_send", to=DESK, text="hello")
BIG = call("big_send", to=DESK, text="hello")
MOST_READ, MOST_WRITTEN = 60_000, 100
WORST = {"model_calls": 2, "tokens": 2 * (MOST_READ + MOST_WRITTEN)}
# What one call costs of which nobody counted the tokens.
BOUND = {"model_calls": 1, "tokens": MOST_READ + MOST_WRITTEN}
USED = types.GenerateContentResponseUsageMetadata(prompt_token_count=90, candidates_token_count=10)

Reply = types.Content | LlmResponse | Exception


def refusal(code: int, message: str) -> errors.APIError:
    body = {"error": {"message": message, "status": "X"}}
    return errors.APIError(code, body, SimpleNamespace(headers={}))


class StrictModel(BaseLlm):
    """Signs the first call of each answer, and refuses a request that lacks one of its signatures.

    `script` gives the reply to a turn, by its number in the run; `rejects` says which requests are
    refused all the same.
    """

    script: Callable[[int], Reply]
    rejects: Callable[[int], bool] = lambda _: False
    asked: list[list[types.Content]] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        contents = [content.model_copy(deep=True) for content in llm_request.contents]
        self.asked.append(contents)
        spoken = [content for content in contents if content.role == "model"]
        for content in spoken:
            signed = [part for part in content.parts or [] if part.function_call]
            if signed[0].thought_signature != _sign(signed[0]):
                raise refusal(400, "Function call is missing a thought_signature")
        if self.rejects(len(self.asked)):
            raise refusal(400, "Corrupted thought signature.")
        opening = (contents[0].parts or [])[0].text or ""
        reply = self.script(len(spoken) + opening.count('"ref":"ref:/outcome/'))
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, LlmResponse):
            yield reply
            return
        reply = reply.model_copy(deep=True)
        for part in [part for part in reply.parts or [] if part.function_call][:1]:
            part.thought_signature = _sign(part)
        yield LlmResponse(content=reply, usage_metadata=USED)


def _sign(part: types.Part) -> bytes:
    assert part.function_call is not None
    return hashlib.sha256(part.function_call.model_dump_json().encode()).digest()


def fleet_of(
    folder: Path,
    script: Callable[[int], Reply],
    world: World | None = None,
    rejects: Callable[[int], bool] = lambda _: False,
    **given: Any,
) -> tuple[FleetHarness, StrictModel]:
    model = StrictModel(model="gemini-strict", script=script, rejects=rejects)
    fleet = toy_fleet(folder, world or World(), reasoner="adk", **given)
    path = fleet.content / "agents" / "worker" / "agent.yaml"
    bounds = f"input_tokens_per_call: {MOST_READ}, output_tokens_per_call: {MOST_WRITTEN}"
    text = path.read_text()
    path.write_text(text.replace("actions_per_run: 16", f"actions_per_run: 16, {bounds}"))
    folders = {"worker": path.parent}
    limits = {"worker": (MOST_READ, MOST_WRITTEN)}
    fleet._reasoners = {"adk": AdkReasoner(folders, model_for=lambda _: model, bounds=limits)}
    return fleet, model


def script(*replies: Reply) -> Callable[[int], Reply]:
    return lambda turn: replies[min(turn, len(replies) - 1)]


def _next(replies: Iterator[Reply], _: int) -> Reply:
    return next(replies)


def settled(fleet: FleetHarness) -> list[dict[str, int]]:
    return [entry["spend"] for entry in fleet.entries("budget.settled")]


def spent(fleet: FleetHarness) -> dict[str, int]:
    """Return what the store has as the agent's spend of a model."""
    totals = fleet.app.store.spend.totals()
    return {
        unit: total.day.total for name, unit, total in totals if name == "worker" and unit in WORST
    }


async def send(fleet: FleetHarness, event: Event) -> str:
    await fleet.send(event)
    await fleet.wait_until_idle()
    return fleet.runs(event)[0].state


DONE = said(types.Part(text="Done."))


async def test_a_strict_model_goes_on_over_holds_and_restarts(tmp_path: Path) -> None:
    """An empty answer in the end is an end; and nothing that was said stands in an entry."""
    first = said(
        types.Part(text="", thought=True, thought_signature=b"\x00empty"),
        types.Part(text="words of the model"),
        BIG,
        SEND,
    )
    fleet, model = fleet_of(tmp_path, script(first, said(SEND), said()))
    await fleet.open()
    try:
        event = job("1")
        assert await send(fleet, event) == "waiting"
        await fleet.restart()
        await fleet.approve(fleet.actions(event)[0])
        await fleet.wait_until_idle()
        assert fleet.runs(event)[0].state == "done"
        assert [len(contents) for contents in model.asked] == [1, 3, 5]
        for before, after in pairwise(model.asked):
            assert after[: len(before)] == before, "the same messages, to the letter"
        given_back = model.asked[1][1].parts or []
        assert (given_back[0].text, given_back[0].thought_signature) == ("", b"\x00empty")
        answers = [part.function_response for part in model.asked[1][2].parts or []]
        assert [one.name for one in answers if one] == ["big_send", "wire_send"]
        turns = fleet.entries("turn.reasoned")
        assert [fleet.body(turn["seq"])["model"]["opens"] for turn in turns] == ["first", "", ""]
        entries = str(fleet.entries())
        kept = fleet.body(turns[0]["seq"])["model"]
        for word in ("words of the model", kept["content"][:40]):
            assert word not in entries
        assert settled(fleet) == [{"model_calls": 1, "tokens": 100}] * 3
        assert spent(fleet) == {"model_calls": 3, "tokens": 300}
        await fleet.app.commands.erase(fleet.order(), event=event.key)
        assert fleet.app.store.runs.turns(fleet.runs(event)[0].id) == [], "and it can be erased"
    finally:
        await fleet.close()


async def test_a_refusal_of_signatures_gets_one_context_anew(tmp_path: Path) -> None:
    world = World()
    replies = script(said(SEND), said(SEND), DONE)
    fleet, model = fleet_of(tmp_path, replies, world, lambda number: number == 2)
    async with fleet:
        event = job("1")
        assert await send(fleet, event) == "done"
        assert [len(contents) for contents in model.asked] == [1, 3, 1, 3]
        assert '\\"status\\":\\"done\\"' in json_of(model.asked[2][0]), "told out of the ledger"
        assert model.asked[3][0] == model.asked[2][0], "and that is frozen in its turn"
        opens = [fleet.body(e["seq"])["model"]["opens"] for e in fleet.entries("turn.reasoned")]
        assert opens == ["first", "refused", ""]
        assert world.effects() == 2
        assert fleet.runs(event)[0].attempts == 0, "no failure of the run"
        assert sorted(map(str, settled(fleet))) == sorted(map(str, [COUNTED] * 3 + [NOTHING]))
        assert spent(fleet) == {"model_calls": 3, "tokens": 300}, "what was refused costs nothing"


async def test_whatever_a_request_is_refused_for_its_context_is_begun_anew_once(
    tmp_path: Path,
) -> None:
    """By its provider, or by its client, which has no place for what a stranger's server sent."""
    for at, error in enumerate([refusal(400, "Name cannot be empty"), ValueError("no place")]):
        replies: Iterator[Reply] = iter([said(SEND), error, said(SEND), DONE])
        fleet, model = fleet_of(tmp_path / str(at), partial(_next, replies))
        async with fleet:
            assert await send(fleet, job("1")) == "done"
            assert [len(contents) for contents in model.asked] == [1, 3, 1, 3]
            assert spent(fleet) == {"model_calls": 3, "tokens": 300}


async def test_what_a_client_refuses_twice_is_permanent(tmp_path: Path) -> None:
    replies: Iterator[Reply] = iter([said(SEND), *[ValueError("no place")] * 2])
    fleet, _ = fleet_of(tmp_path, partial(_next, replies))
    async with fleet:
        assert await send(fleet, job("1")) == "dead"
        (dead,) = fleet.entries("run.dead")
        assert dead["what"] == "model-request"
        assert "refused a request: ValueError" in fleet.body(dead["seq"])["why"]
        assert spent(fleet) == COUNTED


async def test_a_stopped_agent_begins_no_context_anew(tmp_path: Path) -> None:
    """The refused call took its time, and a stop came meanwhile."""

    def rejects(number: int) -> bool:
        if number == 2:
            fleet.app.services.stops.pause("worker", "test")
        return number == 2

    fleet, model = fleet_of(tmp_path, script(said(SEND), said(SEND), DONE), rejects=rejects)
    async with fleet:
        event = job("1")
        assert await send(fleet, event) != "done"
        assert len(model.asked) == 2
        assert spent(fleet) == COUNTED, "and nothing stays booked"


async def test_what_another_release_is_to_do_is_looked_at_afresh(tmp_path: Path) -> None:
    """It went live during the refused call: no second one is made for the release before."""

    def rejects(number: int) -> bool:
        if number == 2:
            agents = fleet.app.services.fleet.agents
            agents["worker"] = replace(agents["worker"])
        return number == 2

    fleet, model = fleet_of(tmp_path, script(said(SEND), said(SEND), DONE), rejects=rejects)
    async with fleet:
        assert await send(fleet, job("1")) == "done"
        # The release that is live by then does so, with its context begun anew.
        assert [len(contents) for contents in model.asked] == [1, 3, 1, 3]


@pytest.mark.parametrize(("rejected", "asked"), [((2, 3), 3), ((2, 4), 4)])
async def test_a_second_refusal_is_permanent(
    tmp_path: Path, rejected: tuple[int, ...], asked: int
) -> None:
    """Be it of the context begun anew, or of a later turn in it."""
    replies = script(said(SEND))
    fleet, model = fleet_of(tmp_path, replies, rejects=lambda number: number in rejected)
    async with fleet:
        assert await send(fleet, job("1")) == "dead"
        assert len(model.asked) == asked
        (dead,) = fleet.entries("run.dead")
        assert dead["what"] == "model-request"
        assert "refused a request (400" in fleet.body(dead["seq"])["why"]
        assert spent(fleet)["model_calls"] == asked - len(rejected)


async def test_a_first_message_that_is_refused_is_not_asked_again(tmp_path: Path) -> None:
    fleet, model = fleet_of(tmp_path, script(DONE), rejects=lambda _: True)
    async with fleet:
        assert await send(fleet, job("1")) == "dead"
        assert len(model.asked) == 1


HUGE = said(types.Part(text="w" * (1 << 20)))
FAILED = LlmResponse(error_code="500", error_message="no", usage_metadata=USED)
NEGATIVE = LlmResponse(
    content=said(SEND),
    usage_metadata=types.GenerateContentResponseUsageMetadata(
        prompt_token_count=-50_000, candidates_token_count=10
    ),
)
IMPOSSIBLE = LlmResponse(
    content=said(SEND),
    usage_metadata=types.GenerateContentResponseUsageMetadata(
        prompt_token_count=1 << 25, candidates_token_count=10
    ),
)


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def unsigned(**args: Any) -> LlmResponse:
    return LlmResponse(content=said(call("wire_send", to=DESK, **args)), usage_metadata=USED)


COUNTED, NOTHING = {"model_calls": 1, "tokens": 100}, {"model_calls": 0, "tokens": 0}
VAIN: dict[str, tuple[Reply, str, dict[str, int]]] = {
    "NaN": (said(call("wire_send", to=DESK, text=math.nan)), "bad-model-answer", COUNTED),
    "huge": (HUGE, "bad-model-answer", COUNTED),
    "a flood": (said(*[SEND] * 33), "bad-model-answer", COUNTED),
    "deep": (unsigned(text=nested(900)), "bad-model-answer", COUNTED),
    "without end": (unsigned(text=nested(5000)), "bad-model-answer", COUNTED),
    "half a pair": (unsigned(text="\ud800"), "bad-model-answer", COUNTED),
    "wide": (unsigned(text=[1] * 500_000), "bad-model-answer", COUNTED),
    "no name": (said(call("")), "bad-model-answer", COUNTED),
    "impossible": (IMPOSSIBLE, "bad-model-answer", BOUND),
    "negative": (NEGATIVE, "bad-model-answer", BOUND),
    "empty": (said(), "model-failed", COUNTED),
    "a failure that was counted": (FAILED, "model-failed", COUNTED),
    "a provider that is away": (refusal(503, "no"), "model-unavailable", NOTHING),
    "a gateway that gives up": (refusal(504, "no"), "model-unavailable", BOUND),
    "a connection that breaks": (ConnectionError("gone"), "model-connection", BOUND),
}  # fmt: skip


@pytest.mark.parametrize("name", VAIN)
async def test_what_came_to_nothing_is_charged_exactly(tmp_path: Path, name: str) -> None:
    reply, code, cost = VAIN[name]
    clock = ManualClock()
    answers = iter([reply, DONE])
    fleet, _ = fleet_of(tmp_path, lambda _: next(answers), clock=clock)
    async with fleet:
        event = job("1")
        away = code.startswith("model-") and code != "model-failed"
        assert await send(fleet, event) == ("waiting" if away else "ready")
        assert settled(fleet) == [cost]
        assert spent(fleet) == cost, "the rest of the reservation went back"
        clock.advance(10 * SECOND)
        await fleet.wait_until_idle()
        assert fleet.runs(event)[0].state == "done"
        assert spent(fleet) == {unit: cost[unit] + COUNTED[unit] for unit in cost}
        assert "w" * 5000 not in str([fleet.body(e["seq"]) for e in fleet.entries() if "body" in e])


@pytest.mark.parametrize(
    "name", ["huge", "without end", "half a pair", "a failure that was counted"]
)
async def test_the_last_failure_is_charged_too(tmp_path: Path, name: str) -> None:
    reply, code, cost = VAIN[name]
    clock = ManualClock()
    fleet, model = fleet_of(tmp_path, lambda _: reply, clock=clock)
    async with fleet:
        event = job("1")
        await send(fleet, event)
        for _ in range(8):
            clock.advance(60 * SECOND)
            await fleet.wait_until_idle()
        assert fleet.runs(event)[0].state == "dead"
        (dead,) = fleet.entries("run.dead")
        assert dead["what"] == code
        assert settled(fleet) == [cost] * len(model.asked)
        assert spent(fleet) == {unit: amount * len(model.asked) for unit, amount in cost.items()}


async def test_a_request_that_is_not_made_costs_nothing(tmp_path: Path) -> None:
    fleet, model = fleet_of(tmp_path, script(DONE))
    async with fleet:
        assert await send(fleet, job("1", told="word " * 20_000)) == "dead"
        assert model.asked == []
        assert fleet.entries("run.dead")[0]["what"] == "model-not-asked"
        assert spent(fleet) == {"model_calls": 0, "tokens": 0}


async def test_what_goes_wrong_before_a_model_is_asked_is_tried_again(tmp_path: Path) -> None:
    """Only what may not be asked is given up at once."""
    fleet, model = fleet_of(tmp_path, script(DONE))
    broken = replace(PLAIN, agent="worker", turn=2, turns=({"proposals": []},))
    with pytest.raises(ModelFailed) as failed:
        await (fleet._reasoners or {})["adk"].reason(broken)
    assert isinstance(failed.value, Temporary)
    assert (failed.value.use, model.asked) == (UNCHARGED, [])


async def test_what_is_not_settled_stays_booked_whole(tmp_path: Path) -> None:
    """The control to the exact figures: a settlement that is lost can only overcount."""
    clock = ManualClock()
    answers: Iterator[Reply] = iter([refusal(503, "no"), DONE])
    fleet, _ = fleet_of(tmp_path, lambda _: next(answers), clock=clock)
    async with fleet:
        lost: list[Step] = []

        async def lossy(step: Step) -> Step | None:
            if not lost and any(draft.kind == "budget.settled" for draft in step.drafts):
                lost.append(step)
                raise StoreFailed("the disk is full")
            return None

        intercept_commits(fleet, lossy)
        event = job("1")
        await send(fleet, event)
        clock.advance(10 * SECOND)
        await fleet.wait_until_idle()
        assert fleet.runs(event)[0].state == "done"
        assert spent(fleet) == {unit: WORST[unit] + COUNTED[unit] for unit in WORST}


async def test_a_run_that_writes_its_own_row_keeps_its_context(tmp_path: Path) -> None:
    note = call("note_add", key="ref:/event/subject", text="seen")
    fleet, model = fleet_of(tmp_path, script(said(note), said(note), DONE))
    async with fleet:
        assert await send(fleet, job("1")) == "done"
        assert [len(contents) for contents in model.asked] == [1, 3, 5]
        told = [
            part.function_response.response["changed"]
            for at in (2, 4)
            for part in model.asked[2][at].parts or []
            if part.function_response and part.function_response.response
        ]
        assert told == [{"/row": {"texts": ["seen"]}}, {"/row": {"texts": ["seen", "seen"]}}]


async def test_a_long_run_keeps_within_its_budget(tmp_path: Path) -> None:
    """What is said around the contents counts, too: no request is longer than may be asked."""
    long = call("wire_send", to=DESK, text="w" * 2500)
    replies = script(*[said(long)] * 14, DONE)
    fleet, model = fleet_of(tmp_path, replies, max_turns=16)
    async with fleet:
        assert await send(fleet, job("1")) == "done"
        opens = [fleet.body(e["seq"])["model"]["opens"] for e in fleet.entries("turn.reasoned")]
        assert opens.count("window") in (1, 2)
        assert len(model.asked) == 15


_DROP = """tools:
  - {{name: note.drop, verb: drop, resource: note, args: {{key: string}},
     sinks: [], settles: transactional, function: drop_note}}
"""
_DROP_PY = """

def drop_note(call, row):
    return [RowWrite(f"{call.agent}_notes", call.args["key"], None)]
"""
_GRANT = "    note.drop: {{verb: drop, resource: note, impact: low}}\n    note.add:"


@pytest.mark.parametrize(("secret", "is_read_again"), [(True, False), (True, True), (False, True)])
async def test_what_a_model_was_told_stays_secret_when_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: bool, is_read_again: bool
) -> None:
    """The row is dropped in the first turn, with its label; the opening that had it stands."""
    monkeypatch.setattr(toy, "AGENT_YAML", toy.AGENT_YAML.replace("tools:\n", _DROP, 1))
    monkeypatch.setattr(toy, "TOOLS_PY", toy.TOOLS_PY + _DROP_PY)
    monkeypatch.setattr(toy, "GRANTS", toy.GRANTS.replace("    note.add:", _GRANT, 1))
    note = call("note_add", key="ref:/event/subject", text="known to few")
    drop = call("note_drop", key="ref:/event/subject")
    again = [said(SEND)] if is_read_again else []
    replies = iter([said(note), DONE, said(drop), *again, said(SEND), DONE])
    clock = ManualClock()
    fleet, model = fleet_of(tmp_path, lambda _: next(replies), clock=clock)
    async with fleet:
        lost: list[Step] = []

        async def lossy(step: Step) -> Step | None:
            if (
                is_read_again
                and not lost
                and step.run == fleet.runs(event)[0].id
                and step.turn == 2
            ):
                lost.append(step)
                raise StoreFailed("the disk is full")
            return None

        readers = frozenset({"@elsewhere.example"}) if secret else None
        await send(fleet, replace(job("1"), readers=readers))
        event = job("2")
        intercept_commits(fleet, lossy)
        await fleet.send(event)
        await fleet.wait_until_idle()
        clock.advance(10 * SECOND)
        await fleet.wait_until_idle()
        assert len(lost) == len(again)
        assert "known to few" in json_of(model.asked[2][0])
        sent = [(row.decided, row.rule) for row in fleet.actions(event) if row.tool == "wire.send"]
        assert sent == [("deny", "secrecy.readers") if secret else ("permit", "permit.tool")]
