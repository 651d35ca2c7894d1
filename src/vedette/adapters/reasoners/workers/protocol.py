"""The protocol of engine and worker processes: the messages that each packs and reads.

The engine's words are `marshal` (exact, and the worker has every reason to trust them); the
worker's are plain data (`plain`), put together here only from values of the expected type. An
argument by reference travels apart from arguments by value, so that no value can be taken for a
reference.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, TypeVar

from msgspec import (
    UNSET,
    Meta,
    Struct,
    ValidationError,
    convert,
    defstruct,
    structs,
    to_builtins,
)

from vedette.adapters.reasoners.workers.frames import BadFrame
from vedette.adapters.reasoners.workers.plain_data import pack_plain, read_plain
from vedette.domain.action import Proposal
from vedette.domain.effect import Call, Outcome, RowWrite
from vedette.domain.event import Event
from vedette.domain.judge_state import is_state_name
from vedette.domain.memory import MEMORY_KINDS, Briefing, Candidate, Memory
from vedette.domain.model_turn import ModelTurn
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.tool import Tool

# What the engine asks of a worker.
MAKE, REASON, RESTORE, FORGET, FOLD, MEMORIES, REGISTRY = range(1, 8)
PERFORM, ASK, ROWS, PERMIT, PING, CANCEL, NAME_ANSWER, ROOT, TOOL, PERMITS, TRY = range(8, 19)
KEYS = 19
# What a worker answers.
DONE, FAILED, NEEDS_STATE, PERMIT_QUERY, PONG, NAME_QUERY, OWN_ERROR = range(64, 71)

T = TypeVar("T")

_VERSION = 2  # of marshal: the later ones look for shared parts, which costs more than it saves


def pack(value: Any) -> bytes:
    """Return the engine's message to a worker as bytes. Raises TypeError for what is not data."""
    try:
        return marshal.dumps(value, _VERSION)
    except ValueError:
        return marshal.dumps(to_builtin(value), _VERSION)


def read(data: bytes) -> Any:
    """Return, in a worker, the message that `pack` wrote: the engine itself never reads marshal."""
    return marshal.loads(data)  # noqa: S302 (the engine's own words)


def to_builtin(value: Any) -> Any:
    """Return a value in built-in types, to go to a worker. Raises TypeError if it is not data."""
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
        return {to_builtin(name): to_builtin(item) for name, item in value.items()}
    if isinstance(value, frozenset | set):
        return frozenset(map(to_builtin, value))
    if isinstance(value, tuple):
        return tuple(map(to_builtin, value))
    if isinstance(value, Sequence):
        return list(map(to_builtin, value))
    raise TypeError(f"{type(value).__name__} cannot go to a worker process: it is no plain data")


# --- engine to worker ------------------------------------------------------------------------


def event_to_tuple(event: Event) -> tuple[Any, ...]:
    """Return an event as built-in types, as it goes to a worker."""
    return (
        event.source, event.id, event.type, event.subject, event.time, event.data, event.hops,
        event.lineage, event.vouched, dict(event.extensions),
    )  # fmt: skip


def event_from_tuple(values: tuple[Any, ...]) -> Event:
    """Return, in a worker, the event that `event_to_tuple` packed."""
    return Event(*values)


def memory_to_tuple(memory: Memory) -> tuple[Any, ...]:
    """Return a memory as built-in types, as it goes to a worker."""
    return tuple(getattr(memory, name) for name in Memory.__struct_fields__)


def memories_from_tuples(values: Sequence[tuple[Any, ...]]) -> tuple[Memory, ...]:
    """Return, in a worker, the memories that `memory_to_tuple` packed."""
    return tuple(Memory(*one) for one in values)


def briefing_to_tuple(briefing: Briefing, memories: int) -> tuple[Any, ...]:
    """Return a briefing as built-in types, as it goes to a worker.

    Without its agent, charter and registry, which the worker has; `memories` is the number under
    which it has those.
    """
    return (
        briefing.run, briefing.key, briefing.position, briefing.previous, briefing.turn,
        event_to_tuple(briefing.event), memories, dict(briefing.row), briefing.turns,
        briefing.notes, dict(briefing.task),
    )  # fmt: skip


def briefing_from_tuple(
    values: tuple[Any, ...],
    agent: str,
    charter: Mapping[str, Any],
    registry: Mapping[str, Any],
    memories: Mapping[int, tuple[Memory, ...]],
) -> Briefing:
    """Return, in a worker, the briefing that `briefing_to_tuple` packed."""
    run, key, position, previous, turn, event, known, row, turns, notes, task = values
    return Briefing(
        run, agent, key, position, previous, turn, Event(*event), charter, registry,
        memories[known], row, turns, notes=notes, task=task,
    )  # fmt: skip


def whole_briefing_to_dict(briefing: Briefing) -> dict[str, Any]:
    """Return a briefing as built-in types, as it goes to a worker that has no part of it yet."""
    fields = {name: getattr(briefing, name) for name in Briefing.__struct_fields__}
    fields["event"] = event_to_tuple(briefing.event)
    fields["memories"] = [memory_to_tuple(memory) for memory in briefing.memories]
    return fields


def whole_briefing_from_dict(fields: Mapping[str, Any]) -> Briefing:
    """Return, in a worker, the briefing that `whole_briefing_to_dict` packed."""
    event, memories = event_from_tuple(fields["event"]), memories_from_tuples(fields["memories"])
    return Briefing(**{**fields, "event": event, "memories": memories})


def call_to_tuple(call: Call) -> tuple[Any, ...]:
    """Return a call as built-in types, as it goes to a worker of tools."""
    return (
        call.tool, dict(call.args), call.key, call.agent, call.run, dict(call.target),
        call.lineage, call.attempt, call.timeout_us, call.person, call.readers,
    )  # fmt: skip


def tool_to_tuple(tool: Tool) -> tuple[Any, ...]:
    """Return a tool's declaration as built-in types, as it goes to a worker."""
    return (
        tool.name, tool.verb, tool.resource, dict(tool.args), tool.sinks, tool.settles,
        tool.function, tool.query, tool.inverse, tool.target, tool.output, tool.high_impact,
        tool.timeout_us, tool.attempts, tool.verify,
    )  # fmt: skip


# --- worker to engine ------------------------------------------------------------------------


def pack_judgement(judgement: ReasonerJudgement) -> tuple[bytes, bytes]:
    """Return a judgement as a worker's frame has it, in two parts. Raises TypeError for no data."""
    proposals = [
        [
            p.tool,
            {name: value.pointer for name, value in p.args.items() if type(value) is Ref},
            {name: value for name, value in p.args.items() if type(value) is not Ref},
            p.why,
            # Absent it is left out: whatever else stands here is for the engine to judge.
            *(() if p.confidence is None else (p.confidence,)),
        ]
        for p in judgement.proposals
    ]
    # An absent number is `false`, so that `null` in the text is rare (see `pack_plain`).
    values = [
        judgement.label,
        judgement.confidence,
        proposals,
        False if judgement.score is None else judgement.score,
        False if judgement.threshold is None else judgement.threshold,
        dict(judgement.detail),
        [_candidate_to_list(candidate) for candidate in judgement.candidates],
        judgement.observed,
        judgement.checkpoint is not None,
        judgement.state,
        *(() if judgement.final else (False, judgement.notes)),
    ]
    return pack_plain(values), judgement.checkpoint or b""


def read_judgement(plain: bytes, blob: bytes) -> ReasonerJudgement:
    """Return the judgement that a worker packed by `pack_judgement`. Raises BadFrame.

    A confidence comes as it was said: the engine refuses what is none, wherever it was judged.
    """
    found = _read_fields(plain, _JudgementFields)
    if not is_state_name(found.state):
        raise BadFrame("a state without a name")
    return _build_judgement(found, blob)


def _read_fields(plain: bytes, kind: type[T]) -> T:
    try:
        return convert(read_plain(plain), kind)
    except (ValidationError, UnicodeEncodeError) as error:
        raise BadFrame(f"no judgement: {error}") from error


def _build_judgement(found: _JudgementFields, blob: bytes) -> ReasonerJudgement:
    return ReasonerJudgement(
        label=found.label,
        confidence=found.confidence,
        proposals=tuple(map(_read_proposal, found.proposals)),
        score=_number(found.score),
        threshold=_number(found.threshold),
        detail=found.detail,
        final=found.final,
        observed=found.observed,
        checkpoint=blob if found.has_checkpoint else None,
        candidates=tuple(map(_read_candidate, found.candidates)),
        state=found.state,
        notes=found.notes,
    )


def pack_model_judgement(judgement: ReasonerJudgement) -> tuple[bytes, bytes]:
    """Return a model's judgement in two parts: what judges say too, and all other fields."""
    others = {name: getattr(judgement, name) for name in _ModelFields.__struct_fields__}
    return pack_judgement(judgement)[0], pack_plain(to_builtins(others))


def read_model_judgement(plain: bytes, blob: bytes) -> ReasonerJudgement:
    """Return the judgement that `pack_model_judgement` packed. Raises BadFrame.

    What an answer may have at most is checked again: who asked may say what is not so.
    """
    judged = _build_judgement(_read_fields(plain, _JudgementFields), b"")
    others: Any = _read_fields(blob, _ModelFields)
    if len(judged.proposals) > _MOST_PROPOSALS:
        raise BadFrame(f"{len(judged.proposals)} proposals, at most {_MOST_PROPOSALS}")
    if judged.notes is not None:
        raise BadFrame("notes of a model: what it said is told to it again")
    _check_model_turn(others.model_turn)
    return structs.replace(
        judged, **{name: getattr(others, name) for name in others.__struct_fields__}
    )


def _check_model_turn(turn: ModelTurn | None) -> None:
    """Raise BadFrame for a record that is larger than an answer can be."""
    if turn is None:
        return
    if len(turn.content) > _MOST_CONTENT or len(turn.shown) > _MOST_SHOWN:
        raise BadFrame("a model's turn that is larger than any")
    names = (turn.model, turn.route, turn.opens, turn.outcomes, turn.asks)
    if any(len(text) > _MOST_NAME for text in chain(names, *turn.shown)):
        raise BadFrame("a model's turn with a name that is longer than any")


def pack_outcome(outcome: Outcome | None) -> bytes:
    """Return an outcome as the plain data of a worker's frame; None stays None."""
    return pack_plain(None if outcome is None else [outcome.state, outcome.data, outcome.error])


def read_outcome(plain: bytes) -> Outcome | None:
    """Return the outcome that a worker packed by `pack_outcome`. Raises BadFrame."""
    values = read_plain(plain)
    if values is None:
        return None
    if not isinstance(values, list | tuple) or len(values) != 3:
        raise BadFrame("no outcome")
    state, data, error = values
    if state not in ("done", "failed", "retry", "unknown"):
        raise BadFrame("an outcome of no known state")
    return Outcome(state, _mapping(data), _text(error))


def pack_rows(rows: Sequence[RowWrite]) -> bytes:
    """Return a tool's rows as the plain data of a worker's frame."""
    return pack_plain([[w.collection, w.key, w.row] for w in rows])


def read_rows(plain: bytes) -> list[RowWrite]:
    """Return the rows that a tool's worker packed by `pack_rows`. Raises BadFrame."""
    found = []
    for one in _list(read_plain(plain)):
        if not isinstance(one, list) or len(one) != 3:
            raise BadFrame("no row")
        row = None if one[2] is None else _mapping(one[2])
        found.append(RowWrite(_text(one[0]), _text(one[1]), row))
    return found


class _ProposalFields(Struct, array_like=True, forbid_unknown_fields=True):
    tool: str
    references: dict[Any, str]
    values: dict[Any, Any]
    why: str
    confidence: Any = UNSET


class _JudgementFields(Struct, array_like=True, forbid_unknown_fields=True):
    label: str
    confidence: Any
    proposals: list[_ProposalFields]
    score: bool | int | float
    threshold: bool | int | float
    detail: dict[Any, Any]
    candidates: list[Any]
    observed: bool
    has_checkpoint: bool
    state: str
    final: bool = True
    notes: Any = None


# Of one turn of a model: its calls, the tokens of each kind (as `adk.answer` bounds them, with what
# its tools read), its proposals, its answer as JSON, and the digests of what it was shown.
_Calls = Annotated[int, Meta(ge=0, le=1024)]
_Tokens = Annotated[int, Meta(ge=0, le=1 << 27)]
_Spent = dict[Annotated[str, Meta(pattern="^(input|output)_tokens$")], _Tokens]
_MOST_PROPOSALS, _MOST_CONTENT, _MOST_SHOWN, _MOST_NAME = 32, 1 << 20, 65_536, 4096


class UseFields(Struct, array_like=True, forbid_unknown_fields=True):
    """What a turn used of its model, as a worker tells it."""

    calls: _Calls
    spent: _Spent


# The fields of a judgement that no judge sets: they go as they are. What the engine alone says of
# one no worker can send.
_BOUNDED = {"model_calls": _Calls, "spent": _Spent}
_ModelFields = defstruct(
    "_ModelFields",
    [
        (one.name, _BOUNDED.get(one.name, one.type))
        for one in structs.fields(ReasonerJudgement)
        if one.name
        not in {
            *_JudgementFields.__struct_fields__,
            "checkpoint",
            "needs_state",
            "deferred",
            "asks",
        }
    ],
    forbid_unknown_fields=True,
)


def _read_proposal(fields: _ProposalFields) -> Proposal:
    args: dict[str, Any] = {name: Ref(at) for name, at in fields.references.items()}
    if not args.keys().isdisjoint(fields.values):
        raise BadFrame("an argument both by reference and by value")
    args |= fields.values
    confidence = None if fields.confidence is UNSET else fields.confidence
    return Proposal(fields.tool, args, fields.why, confidence)


def _candidate_to_list(candidate: Candidate) -> list[Any]:
    # Absent texts are `false`, as absent numbers are.
    label, replaces = (
        False if text is None else text for text in (candidate.label, candidate.replaces)
    )
    return [
        candidate.bank,
        candidate.scope,
        candidate.text,
        list(candidate.topics),
        candidate.kind,
        label,
        list(candidate.evidence),
        replaces,
    ]


def _read_candidate(values: Any) -> Candidate:
    if not isinstance(values, list) or len(values) != 8:
        raise BadFrame("no candidate")
    kind = next((known for known in MEMORY_KINDS if known == values[4]), None)
    if kind is None:
        raise BadFrame("a candidate of no known kind")
    topics, evidence = (tuple(_text(item) for item in _list(values[at])) for at in (3, 6))
    label, replaces = (None if values[at] is False else _text(values[at]) for at in (5, 7))
    return Candidate(
        _text(values[0]), _text(values[1]), _text(values[2]), topics, kind=kind, label=label,
        evidence=evidence, replaces=replaces,
    )  # fmt: skip


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise BadFrame("no text where one belongs")
    return value


def _number(value: bool | int | float) -> float | None:
    """Return a number; None for the `false` that stands where there is none."""
    if value is True:
        raise BadFrame("no number where one belongs")
    return None if value is False else value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise BadFrame("no list where one belongs")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadFrame("no mapping where one belongs")
    return value
