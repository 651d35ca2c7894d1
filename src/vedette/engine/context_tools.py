"""What the engine does for `task.hand_off` and `history.read`, and when they may be proposed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from vedette.domain.action import Action
from vedette.domain.base.canonical import normalized_json
from vedette.domain.base.errors import BadProposal
from vedette.domain.effect import Outcome
from vedette.domain.entry import Draft
from vedette.domain.hand_off import MAX_CHARS, read_words
from vedette.domain.hand_off_check import (
    RECORDED,
    TaskBounds,
    check_hand_off,
    check_texts,
    collect_texts,
    other_tools,
)
from vedette.domain.memory import Candidate
from vedette.domain.model_turn import HAND_OFF
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.row_proof import parse_record
from vedette.domain.run import ActionRow
from vedette.domain.work_tools import (
    ASK_TOOL,
    FINISH_TOOL,
    HAND_OFF_TOOL,
    READ_HISTORY_TOOL,
    WAIT_TOOL,
)
from vedette.engine.delegation import require_ask
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services
from vedette.engine.task_history import number_answers, tell_in_line
from vedette.engine.task_wait import MAX_WAITS, require_wait
from vedette.engine.tool_calls import answer_data, coarse_answer

# What `history.read` answers at most, as JSON, and of one outcome.
_MAX_READ, _MAX_OUTCOME = 12_000, 400


def require_in_place(judgement: ReasonerJudgement, ordinal: int) -> None:
    """Raise BadProposal for what follows a finish in its turn, for a hand-off that nobody asked
    for, and for all else where it is asked.

    One that is asked for is the first proposal of its turn that is one.
    """
    if any(one.tool == FINISH_TOOL for one in judgement.proposals[:ordinal]):
        raise BadProposal(f"nothing follows {FINISH_TOOL} in its turn")
    said = judgement.model_turn
    asked = said is not None and said.asks == HAND_OFF
    tool = judgement.proposals[ordinal].tool
    waits = [one for one in judgement.proposals[:ordinal] if one.tool == WAIT_TOOL]
    if tool == WAIT_TOOL and len(waits) >= MAX_WAITS:
        # Those of a turn are all that a run has open, and each is one to wake by an event.
        raise BadProposal(f"a turn has {MAX_WAITS} waits at most")
    if asked and tool != HAND_OFF_TOOL:
        raise BadProposal("a hand-off was asked for in this turn, and nothing else")
    if tool == HAND_OFF_TOOL:
        if not asked:
            raise BadProposal("no hand-off was asked for in this turn")
        if any(one.tool == HAND_OFF_TOOL for one in judgement.proposals[:ordinal]):
            raise BadProposal("a context has one hand-off")
        read_words(1, judgement.proposals[ordinal].args)


def require_valid(context: RunContext, action: Action) -> None:
    """Raise BadProposal for arguments that a tool of the engine's cannot take."""
    if action.tool.name == WAIT_TOOL:
        require_wait(context, action.args)
    if action.tool.name == ASK_TOOL:
        require_ask(context, action.args)


def take_hand_off(services: Services, context: RunContext, action: Action) -> Outcome:
    """Return what comes of a permitted hand-off, and which rules it breaks: whether it is taken."""
    words = read_words(action.turn, action.args)
    findings = check_hand_off(words, _bounds_of(services, context))
    if not findings:
        return Outcome("done", {"turn": action.turn})
    data: dict[str, Any] = {
        "rules": [one.rule for one in findings],
        "texts": [one.text for one in findings],
    }
    if RECORDED.issuperset(data["rules"]):
        return Outcome("done", {"turn": action.turn, **data})
    return Outcome("failed", data, error=f"drifts: {', '.join(data['rules'])}")


def drift_entries(context: RunContext, row: ActionRow) -> Iterator[Draft]:
    """Yield an entry for each rule that a hand-off broke."""
    if row.tool != HAND_OFF_TOOL or row.effect not in ("done", "failed"):
        return
    data = answer_data(row)
    found = zip(data.get("rules", ()), data.get("texts", ()), strict=True)
    for at, (rule, text) in enumerate(found, 1):
        yield context.entry(
            "task.drift", back=at, action=row.id, tool=row.tool, turn=row.turn, rule=rule,
            body=context.body({"text": text}),
        )  # fmt: skip


def check_candidates(
    services: Services, context: RunContext, candidates: Collection[Candidate]
) -> dict[str, list[str]]:
    """Return which rules the memories break that a turn of a task proposes, by their ids.

    They are read up to MAX_CHARS together, as a hand-off is. In which language one is, is no fault.
    """
    if context.task is None or not candidates:
        return {}
    bounds, left = _bounds_of(services, context), MAX_CHARS
    found = {}
    for one in candidates:
        found[one.id] = [finding.rule for finding in check_texts((one.text[:left],), bounds)]
        left -= min(left, len(one.text))
    return found


def candidate_drifts(
    context: RunContext, candidate: Candidate, rules: Iterable[str]
) -> Iterator[Draft]:
    """Yield an entry for each rule that a memory breaks which a task proposes, after its own entry.

    It is proposed all the same: a person decides on it, and is told. Nothing of its text is kept
    here: it would outlive the memory.
    """
    for at, rule in enumerate(rules, 1):
        yield context.entry(
            "task.drift", back=at, memory=candidate.bank, what=candidate.id,
            turn=context.run.turn + 1, rule=rule,
        )  # fmt: skip


def _bounds_of(services: Services, context: RunContext) -> TaskBounds:
    agent, task = context.agent, context.task_told
    fleet = [one.tools.keys() for one in services.fleet.agents.values()]
    acted_on = [
        parse_record(row.record)["args"]
        for row in context.actions
        if row.effect == "done" and row.tool in agent.tools and agent.tools[row.tool].sinks
    ]
    given = [] if context.task is None else [dict(one) for one in context.task.words.items]
    texts = collect_texts(
        dict(agent.charter), dict(services.registry), dict(context.event.data), *given, *acted_on
    )
    return TaskBounds(
        goal=str(task.get("goal", "")),
        conditions=tuple(str(one["name"]) for one in task.get("conditions", ())),
        tools=frozenset(agent.tools),
        other_tools=other_tools(agent.tools, fleet),
        known=frozenset(texts),
        outcomes=sum(row.answer is not None for row in context.actions),
    )


def read_history(services: Services, context: RunContext, action: Action) -> Outcome:
    """Return older turns of the action's run in lines: what was proposed, and what came of it.

    Of a turn that had a memory before it which may not be told today, tools and outcomes' names
    alone: its words may be made of that.
    """
    low, high = action.args["turn_from"], action.args["turn_to"]
    if not 1 <= low <= high < action.turn:
        return Outcome("failed", error=f"there are the turns 1 to {action.turn - 1}")
    cites = {one.cite() for one in context.memories}
    answers: dict[int, list[dict[str, Any]]] = {}
    before = None
    for row, at in number_answers(context.actions):
        if row.turn > high:
            before = row.seq
            break
        if row.turn >= low:
            number = {} if at is None else {"outcome": at}
            answer = {"ordinal": row.ordinal, **coarse_answer(row), **number}
            answers.setdefault(row.turn, []).append(answer)
    lines: list[dict[str, Any]] = []
    size = 0
    for turn in services.store.runs.turns_back(context.run.id, before):
        if turn["turn"] > high:
            continue
        if turn["turn"] < low:
            break
        own = answers.get(turn["turn"], [])
        line = tell_in_line(turn, own)
        if cites.issuperset(turn["memories"]):
            line = _tell_more(turn, line, own)
        size += len(normalized_json(line))
        if size > _MAX_READ:
            break
        lines.append(line)
    left_off = high - low + 1 - len(lines)
    return Outcome("done", {"turns": lines[::-1], "left_off": left_off})


def _tell_more(
    turn: Mapping[str, Any], line: dict[str, Any], answers: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a turn's line with what was proposed, and the head of what came of it."""
    data = {one["ordinal"]: one["data"] for one in answers if "data" in one}
    calls = []
    for at, (call, proposal) in enumerate(zip(line["calls"], turn["proposals"], strict=True)):
        more: dict[str, Any] = {"args": _head(proposal["args"])}
        if at in data:
            more["data"] = _head(data[at])
        calls.append({**call, **more})
    text = str(turn.get("detail", {}).get("text", ""))[:_MAX_OUTCOME]
    return {**line, "calls": calls, **({"text": text} if text else {})}


def _head(value: Any) -> str:
    text = normalized_json(value).decode()
    return text if len(text) <= _MAX_OUTCOME else f"{text[:_MAX_OUTCOME]}…"


def perform(services: Services, context: RunContext, action: Action) -> Outcome:
    """Perform a tool of the engine's own: return its outcome, which is all that it writes."""
    if context.task is None:
        return Outcome("failed", error="the run is no task")
    if action.tool.name == HAND_OFF_TOOL:
        return take_hand_off(services, context, action)
    if action.tool.name == READ_HISTORY_TOOL:
        return read_history(services, context, action)
    return context.task.perform(action, context.actions, context.collection_row)
