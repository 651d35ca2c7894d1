"""What engine and worker say to one another.

The engine's words are `marshal` (exact, and the worker has every reason to trust them); the
worker's are plain data (`plain`), put together here only from values of the expected type. An
argument by reference travels apart from arguments by value, so that no value can be taken for a
reference.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from typing import Any

from vedette.adapters.reasoners.workers.frames import BadFrame
from vedette.adapters.reasoners.workers.plain_data import pack_plain, read_plain
from vedette.domain.action import Proposal
from vedette.domain.effect import Call, Outcome, RowWrite
from vedette.domain.event import Event
from vedette.domain.judge_state import is_name
from vedette.domain.memory import KINDS, Briefing, Candidate, Memory
from vedette.domain.origin import Ref
from vedette.domain.ports import Thought
from vedette.domain.tool import Tool

# What the engine asks of a worker.
MAKE, REASON, RESTORE, FORGET, FOLD, MEMORIES, REGISTRY = range(1, 8)
PERFORM, ASK, ROWS, MAY, PING, CANCEL, NAMED, ROOT = range(8, 16)
# What a worker answers.
DONE, FAILED, NEEDS_STATE, MAY_I, PONG, NAME = range(64, 70)

_VERSION = 2  # of marshal: the later ones look for shared parts, which costs more than it saves


def pack(value: Any) -> bytes:
    """Return the engine's words as bytes. Raises TypeError for what is not data."""
    try:
        return marshal.dumps(value, _VERSION)
    except ValueError:
        return marshal.dumps(builtin(value), _VERSION)


def read(data: bytes) -> Any:
    """Return what `pack` wrote. For the worker only: the engine never reads marshal."""
    return marshal.loads(data)  # noqa: S302 (the engine's own words)


def builtin(value: Any) -> Any:
    """Return a value made of nothing but built-in types. Raises TypeError if it is not data."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return "".join(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, Mapping):
        return {builtin(name): builtin(item) for name, item in value.items()}
    if isinstance(value, frozenset | set):
        return frozenset(map(builtin, value))
    if isinstance(value, tuple):
        return tuple(map(builtin, value))
    if isinstance(value, Sequence):
        return list(map(builtin, value))
    raise TypeError(f"{type(value).__name__} cannot go to a worker process: it is no plain data")


# --- engine to worker ------------------------------------------------------------------------


def event_out(event: Event) -> tuple[Any, ...]:
    """Return an event as built-in types."""
    return (
        event.source, event.id, event.type, event.subject, event.time, event.data, event.hops,
        event.lineage, event.vouched, dict(event.extensions),
    )  # fmt: skip


def event_in(told: tuple[Any, ...]) -> Event:
    """Return the event that `event_out` told of."""
    return Event(*told)


def memory_out(memory: Memory) -> tuple[Any, ...]:
    """Return a memory as built-in types."""
    return tuple(getattr(memory, name) for name in Memory.__slots__)


def memories_in(told: Sequence[tuple[Any, ...]]) -> tuple[Memory, ...]:
    """Return the memories that `memory_out` told of."""
    return tuple(Memory(*one) for one in told)


def briefing_out(briefing: Briefing, memories: int) -> tuple[Any, ...]:
    """Return a briefing as built-in types.

    Without its agent, charter and registry, which the worker has; `memories` is the number under
    which it has those.
    """
    return (
        briefing.run, briefing.key, briefing.position, briefing.previous, briefing.turn,
        event_out(briefing.event), memories, dict(briefing.row), briefing.turns,
    )  # fmt: skip


def briefing_in(
    told: tuple[Any, ...],
    agent: str,
    charter: Mapping[str, Any],
    registry: Mapping[str, Any],
    memories: Mapping[int, tuple[Memory, ...]],
) -> Briefing:
    """Return the briefing that `briefing_out` told of."""
    run, key, position, previous, turn, event, known, row, turns = told
    return Briefing(
        run, agent, key, position, previous, turn, Event(*event), charter, registry,
        memories[known], row, turns,
    )  # fmt: skip


def call_out(call: Call) -> tuple[Any, ...]:
    """Return a call as built-in types."""
    return (
        call.tool, dict(call.args), call.key, call.agent, call.run, dict(call.target),
        call.lineage, call.attempt, call.timeout_us, call.person, call.readers,
    )  # fmt: skip


def tool_out(tool: Tool) -> tuple[Any, ...]:
    """Return a tool's declaration as built-in types."""
    return (
        tool.name, tool.verb, tool.resource, dict(tool.args), tool.sinks, tool.settles,
        tool.function, tool.query, tool.inverse, tool.target, tool.output, tool.high_impact,
        tool.timeout_us, tool.attempts, tool.verify,
    )  # fmt: skip


# --- worker to engine ------------------------------------------------------------------------


def thought_out(thought: Thought) -> tuple[bytes, bytes]:
    """Return a thought as a frame's two byte strings. Raises TypeError if it is not data."""
    proposals = [
        [
            p.tool,
            {name: value.pointer for name, value in p.args.items() if type(value) is Ref},
            {name: value for name, value in p.args.items() if type(value) is not Ref},
            p.why,
            # Absent it is left out: whatever else stands here is for the engine to judge.
            *(() if p.confidence is None else (p.confidence,)),
        ]
        for p in thought.proposals
    ]
    # An absent number is `false`, so that `null` in the text is rare (see `pack_plain`).
    told = [
        thought.label,
        thought.confidence,
        proposals,
        False if thought.score is None else thought.score,
        False if thought.threshold is None else thought.threshold,
        dict(thought.detail),
        [_candidate_out(candidate) for candidate in thought.candidates],
        thought.observed,
        thought.checkpoint is not None,
        thought.state,
    ]
    return pack_plain(told), thought.checkpoint or b""


def thought_in(plain: bytes, blob: bytes) -> Thought:
    """Return the thought that `thought_out` told of. Raises BadFrame.

    A confidence comes as it was said: the engine refuses what is none, wherever it was thought.
    """
    told = read_plain(plain)
    if not isinstance(told, list) or len(told) != 10:
        raise BadFrame("no thought")
    label, confidence, proposals, score, threshold, detail, candidates, observed, kept, state = told
    if not isinstance(state, str) or not is_name(state):
        raise BadFrame("a state without a name")
    return Thought(
        label=_text(label),
        confidence=confidence,
        proposals=tuple(_proposal(one) for one in _list(proposals)),
        score=None if score is False else _number(score),
        threshold=None if threshold is False else _number(threshold),
        detail=_mapping(detail),
        final=True,
        observed=_truth(observed),
        checkpoint=blob if _truth(kept) else None,
        candidates=tuple(_candidate(one) for one in _list(candidates)),
        state=state,
    )


def outcome_out(outcome: Outcome | None) -> bytes:
    """Return an outcome as plain data; None stays None."""
    return pack_plain(None if outcome is None else [outcome.state, outcome.data, outcome.error])


def outcome_in(plain: bytes) -> Outcome | None:
    """Return the outcome that `outcome_out` told of. Raises BadFrame."""
    told = read_plain(plain)
    if told is None:
        return None
    if not isinstance(told, list | tuple) or len(told) != 3:
        raise BadFrame("no outcome")
    state, data, error = told
    if state not in ("done", "failed", "retry", "unknown"):
        raise BadFrame("an outcome of no known state")
    return Outcome(state, _mapping(data), _text(error))


def rows_out(rows: Sequence[RowWrite]) -> bytes:
    """Return rows as plain data."""
    return pack_plain([[w.collection, w.key, w.row] for w in rows])


def rows_in(plain: bytes) -> list[RowWrite]:
    """Return the rows that `rows_out` told of. Raises BadFrame."""
    found = []
    for one in _list(read_plain(plain)):
        if not isinstance(one, list) or len(one) != 3:
            raise BadFrame("no row")
        row = None if one[2] is None else _mapping(one[2])
        found.append(RowWrite(_text(one[0]), _text(one[1]), row))
    return found


def _proposal(told: Any) -> Proposal:
    if not isinstance(told, list) or len(told) not in (4, 5):
        raise BadFrame("no proposal")
    tool, refs, values, why, *said = told
    args: dict[str, Any] = {name: Ref(_text(at)) for name, at in _mapping(refs).items()}
    for name, value in _mapping(values).items():
        if name in args:
            raise BadFrame("an argument both by reference and by value")
        args[name] = value
    return Proposal(_text(tool), args, _text(why), *said)


def _candidate_out(c: Candidate) -> list[Any]:
    # Absent texts are `false`, as absent numbers are.
    label, replaces = (False if text is None else text for text in (c.label, c.replaces))
    return [c.bank, c.scope, c.text, list(c.topics), c.kind, label, list(c.evidence), replaces]


def _candidate(told: Any) -> Candidate:
    if not isinstance(told, list) or len(told) != 8:
        raise BadFrame("no candidate")
    kind = next((known for known in KINDS if known == told[4]), None)
    if kind is None:
        raise BadFrame("a candidate of no known kind")
    topics, evidence = (tuple(_text(item) for item in _list(told[at])) for at in (3, 6))
    label, replaces = (None if told[at] is False else _text(told[at]) for at in (5, 7))
    return Candidate(
        _text(told[0]), _text(told[1]), _text(told[2]), topics, kind=kind, label=label,
        evidence=evidence, replaces=replaces,
    )  # fmt: skip


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise BadFrame("no text where one belongs")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadFrame("no number where one belongs")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadFrame("no truth value where one belongs")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise BadFrame("no list where one belongs")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadFrame("no mapping where one belongs")
    return value
