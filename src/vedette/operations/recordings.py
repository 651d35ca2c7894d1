"""Recordings: what a model said to a case of an agent's evals, kept to try the agent without it.

    agents/NAME/evals/recordings/CASE.json    one for each case; nothing that the agent's code reads

A recording holds for as long as the model would be told the same: it names a digest of each thing
that the model had before it, and is refused, by name, once one of them is another. It holds what
the reasoner answered at its port, not what went over a provider's wire: no signature, no key.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import orjson
from msgspec import Meta, Struct, field

from vedette.config.agent_folder import RECORDINGS, folder_files
from vedette.config.problem import Problem
from vedette.domain.action import Proposal, decode_arguments, encode_arguments
from vedette.domain.agent import Agent
from vedette.domain.base.canonical import normalized_json, sha256_hex
from vedette.domain.base.errors import BadFleet, Permanent
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.model_turn import ModelTurn, ModelUse
from vedette.domain.ports.reasoner import ReasonerJudgement, StatelessReasoner
from vedette.domain.tool import Tool

MAX_BYTES = 4 << 20  # of a recording's file
_MAX_NAME = 60  # characters of a case's name in its file's
_MAX_DEPTH = 64  # of an argument's lists and objects
# What of an agent's folder is told by name and piece, or is never told.
_APART = ("agent.yaml", "evals")

Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Count = Annotated[int, Meta(ge=0, le=1 << 40)]


class StaleRecording(Permanent):
    """The error of a recording of something else than what its model would be told today."""

    code = "stale-recording"


class RecordedCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a recorded turn; its arguments as entries have them (`encode_arguments`)."""

    tool: str
    args: dict[str, dict[str, Any]]


class RecordedUse(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a recorded turn used of its model; tokens that nobody counted are left out."""

    calls: Count = 0
    input_tokens: Count | None = None
    output_tokens: Count | None = None

    @property
    def spent(self) -> dict[str, int]:
        """Return the tokens as `ReasonerJudgement.spent` has them."""
        tokens = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return {name: number for name, number in tokens.items() if number is not None}

    @classmethod
    def of(cls, use: ModelUse) -> RecordedUse:
        """Return the record of a use."""
        return cls(use.calls, use.spent.get("input_tokens"), use.spent.get("output_tokens"))


class RecordedFailure(Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a model that gave no turn: its error's code, who was asked, what it used."""

    code: str
    entry: str
    use: RecordedUse


class RecordedTurn(Struct, frozen=True, forbid_unknown_fields=True):
    """One turn, by its number in its run: what the model had been told (digests by name), who
    answered, and what.

    `entry` is the table of [models] that answered ("": the agent's code names its model), `model`
    and `route` who that is, as in `ModelTurn`, `opens` why the turn began a context. `failures`
    are the calls before it that gave no turn.
    """

    turn: Annotated[int, Meta(ge=1, le=1000)]
    told: dict[str, Digest]
    entry: str
    model: str
    route: str
    opens: str
    label: str
    text: str
    calls: list[RecordedCall]
    final: bool
    use: RecordedUse
    failures: list[RecordedFailure] = field(default_factory=list)


class RecordedRun(Struct, frozen=True, forbid_unknown_fields=True):
    """The turns of one event of a case; `event` is its source and id, with a space between."""

    event: str
    turns: list[RecordedTurn]


class Recording(Struct, frozen=True, forbid_unknown_fields=True):
    """What a model said to one case, and digests of what it was asked with, by name.

    `case` is the name of the case, `at` the instant when it was asked (ISO 8601, UTC).
    """

    schema: Literal["vedette.recording/1"]
    case: str
    at: str
    asked: dict[str, Digest]
    runs: list[RecordedRun]

    @property
    def models(self) -> list[str]:
        """Return the models that spoke, in order."""
        return list(dict.fromkeys(turn.model for run in self.runs for turn in run.turns))


# --- what a model is told -----------------------------------------------------------------------


def digest_asked(agent: Agent, models: Sequence[str], rules: str) -> dict[str, str]:
    """Return digests of what an agent's model is asked with, whatever the event, by name.

    `models` are those that may be asked, as who serves them calls them, the first choice first;
    `rules` is what vedette itself says to a model.
    """
    folder = Path(agent.folder)
    found = {
        f"tool {tool.name}": _digest({**tool.facts(), "description": tool.description})
        for tool in agent.tools.values()
    }
    for path in folder_files(folder):
        name = path.relative_to(folder)
        # Any code may be what an instruction is made of, wherever it is imported from.
        if name.parts[0] not in _APART:
            found[name.as_posix()] = sha256_hex(path.read_bytes())
    return found | {"model": _digest(list(models)), "vedette's own rules": _digest(rules)}


def digest_told(briefing: Briefing) -> dict[str, str]:
    """Return digests of what a model is told in one turn, by name."""
    told = {
        "event": digest_event(briefing.event),
        "charter": _digest(dict(briefing.charter)),
        "registry": _digest(dict(briefing.registry)),
        "row": _digest(dict(briefing.row)),
    }
    for one in briefing.memories:
        told[f"memory {one.cite()}"] = _digest([one.kind, one.label, list(one.topics), one.text])
    if briefing.opinion:
        told["the judge's opinion"] = _digest(dict(briefing.opinion))
    return told | digest_outcomes(briefing)


def digest_event(event: Event) -> str:
    """Return a digest of what a model is told of an event."""
    return _digest([event.source, event.id, event.type, event.subject, event.time, event.data])


def digest_outcomes(briefing: Briefing) -> dict[str, str]:
    """Return digests of what came of a run's earlier calls, by name."""
    found: dict[str, str] = {}
    # A judge's turn that was deferred is not among them.
    for number, turn in enumerate(briefing.turns, briefing.turn - len(briefing.turns)):
        found |= digest_outcome(number, turn["answers"])
    return found


def digest_outcome(number: int, answers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return a digest of what came of the calls of one turn, by its name."""
    return {f"what came of turn {number}": _digest(list(answers))}


def _digest(value: Any) -> str:
    return sha256_hex(normalized_json(value))


def list_changes(recorded: Mapping[str, str], today: Mapping[str, str]) -> list[str]:
    """Say what is another today, is gone or is new."""
    words = []
    for name in sorted({*recorded, *today}):
        if name not in today:
            words.append(f"{name} is gone")
        elif name not in recorded:
            words.append(f"{name} is new")
        elif recorded[name] != today[name]:
            words.append(f"{name} is another")
    return words


def event_name(event: Event) -> str:
    """Return what a recording calls an event of its case."""
    return f"{event.source} {event.id}"


# --- the reasoner out of a recording ------------------------------------------------------------


class RecordedReasoner(StatelessReasoner):
    """The Reasoner port out of recorded turns, by event: no further than they hold.

    `digest` gives what they are compared by. Raises StaleRecording where the model would be told
    something else than what it answered, or was not asked.
    """

    def __init__(
        self,
        agent: Agent,
        runs: Iterable[RecordedRun],
        digest: Callable[[Briefing], dict[str, str]] = digest_told,
    ) -> None:
        self._agent = agent
        self._turns = {(run.event, one.turn): one for run in runs for one in run.turns}
        self._digest = digest

    def recorded(self, briefing: Briefing) -> RecordedTurn:
        """Return the record of a turn that was said. Raises KeyError."""
        return self._turns[event_name(briefing.event), briefing.turn]

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        """Return what was said in this turn."""
        turn = self._turns.get((event_name(briefing.event), briefing.turn))
        if turn is None:
            what = f"the model was not asked for turn {briefing.turn} when this was recorded"
            raise StaleRecording(what)
        if changes := list_changes(turn.told, self._digest(briefing)):
            what = f"turn {briefing.turn} was said to something else: {'; '.join(changes)}"
            raise StaleRecording(what)
        return read_turn(turn, self._agent.tools)


def read_turn(turn: RecordedTurn, tools: Mapping[str, Tool]) -> ReasonerJudgement:
    """Return a recorded turn as its reasoner gave it. Raises BadProposal, ValueError."""
    return ReasonerJudgement(
        label=turn.label,
        confidence=0.0,  # how sure a model is is for the engine to say
        proposals=tuple(
            Proposal(call.tool, decode_arguments(call.args, tools.get(call.tool)), turn.text)
            for call in turn.calls
        ),
        detail={"text": turn.text, "tokens": turn.use.spent},
        final=turn.final,
        model_calls=turn.use.calls,
        spent=turn.use.spent,
        # Its words are not needed: nobody goes on in its context. Who may read what it was told is.
        model_turn=ModelTurn(turn.model, turn.route, turn.opens, "", (), "", '{"role":"model"}'),
    )  # fmt: skip


def record_turn(
    briefing: Briefing,
    judgement: ReasonerJudgement,
    entry: str,
    failures: Iterable[RecordedFailure],
) -> RecordedTurn:
    """Return the record of what a model answered to a briefing."""
    said = judgement.model_turn
    return RecordedTurn(
        turn=briefing.turn,
        told=digest_told(briefing),
        entry=entry,
        model=said.model if said is not None else "",
        route=said.route if said is not None else "",
        opens=said.opens if said is not None else "",
        label=judgement.label,
        text=str(judgement.detail.get("text", "")),
        calls=[RecordedCall(one.tool, encode_arguments(one.args)) for one in judgement.proposals],
        final=judgement.final,
        use=RecordedUse.of(judgement.use),
        failures=list(failures),
    )


# --- the files ----------------------------------------------------------------------------------


def recording_file(agent: Agent, case: str) -> Path:
    """Return where the recording of a case lies."""
    words = re.sub(r"[^a-z0-9]+", "-", case.lower()).strip("-")[:_MAX_NAME].strip("-")
    name = f"{words}-{sha256_hex(case.encode())[:8]}.json".lstrip("-")
    return Path(agent.folder, *RECORDINGS, name)


def read_recording(path: Path, shown: str, case: str) -> Recording | None:
    """Return the recording of a case; None if there is none. `shown` is how errors name its file.

    Raises BadFleet, by file and field, for what is none of this case.
    """
    if not path.exists():
        return None
    mend = "record it anew (check cases AGENT --live --record), or take the file from its history"
    if not path.is_file():
        raise BadFleet("is no file", where=shown, mend=mend)
    if path.stat().st_size > MAX_BYTES:
        raise BadFleet(f"has more than {MAX_BYTES} bytes", where=shown, mend=mend)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Recording)
        _check_calls(found)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        # msgspec ends its sentence with the place: … - at `$.runs[0].turns[1].use`.
        what, _, place = str(error).partition(" - at `$")
        field_name = place.rstrip("`").lstrip(".")
        where = f"{shown}: {field_name}" if field_name else shown
        raise BadFleet(f"is no recording: {what[:300]}", where=where, mend=mend) from error
    if found.case != case:
        what = f"is of the case {found.case[:100]!r}"
        raise BadFleet(what, where=f"{shown}: case", mend=mend)
    return found


def _check_calls(recording: Recording) -> None:
    """Raise ValueError, naming the place, for an argument that is no argument's record."""
    for run_at, run in enumerate(recording.runs):
        for turn_at, turn in enumerate(run.turns):
            for at, call in enumerate(turn.calls):
                for name, value in call.args.items():
                    if (fault := _argument_fault(value, 0)) is not None:
                        place = f"runs[{run_at}].turns[{turn_at}].calls[{at}].args.{name}"
                        raise ValueError(f"{fault} - at `$.{place}`")


def _argument_fault(given: Any, depth: int) -> str | None:
    """Say why something is no argument's record; None if it is one."""
    inner: Iterable[Any] = ()
    match given:
        case {"value": value} if len(given) == 1:
            return _depth_fault(value, depth)
        case {"ref": str()} if len(given) == 1:
            return None
        case {"list": list(items)} if len(given) == 1:
            inner = items
        case {"object": dict(named)} if len(given) == 1:
            inner = named.values()
        case _:
            return "Expected one of ref, value, list and object"
    if depth == _MAX_DEPTH:
        return f"Nested deeper than {_MAX_DEPTH}"
    return next(filter(None, (_argument_fault(item, depth + 1) for item in inner)), None)


def _depth_fault(value: Any, depth: int) -> str | None:
    """Say that a plain value is nested too deeply; None if it is not."""
    if not isinstance(value, dict | list):
        return None
    if depth == _MAX_DEPTH:
        return f"Nested deeper than {_MAX_DEPTH}"
    inner = value.values() if isinstance(value, dict) else value
    return next(filter(None, (_depth_fault(item, depth + 1) for item in inner)), None)


def write_recording(
    path: Path, shown: str, recording: Recording
) -> Literal["new", "same", "changed"]:
    """Write a recording in one rename; say whether there was another.

    `shown` is how errors name its file. Raises BadFleet for one that cannot be written.

    What says the same but for its instant is left as it is.
    """
    made = msgspec.to_builtins(recording)
    try:
        before = orjson.loads(path.read_bytes()) if path.is_file() else None
    except ValueError:
        before = ""
    if isinstance(before, dict) and {**before, "at": made["at"]} == made:
        return "same"
    raw = orjson.dumps(made, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    if len(raw) > MAX_BYTES:
        what = f"would have more than {MAX_BYTES} bytes"
        raise BadFleet(what, where=shown, mend="make the case smaller")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".new")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(raw)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise BadFleet(what, where=shown, mend="make room for a file there") from error
    return "new" if before is None else "changed"


def recording_problems(agent: Agent, relative_path: str, cases: Iterable[str]) -> list[Problem]:
    """Say what is wrong with an agent's recordings: those that cannot be read, or of no case."""
    known = {recording_file(agent, case).name: case for case in cases}
    problems = []
    for path in sorted(Path(agent.folder, *RECORDINGS).glob("*")):
        shown = f"{relative_path}/{'/'.join(RECORDINGS)}/{path.name}"
        if path.name not in known:
            what = "is the recording of no case"
            problems.append(Problem(shown, 0, "", what, "remove it", warning=True))
            continue
        try:
            read_recording(path, shown, known[path.name])
        except BadFleet as error:
            at = (error.where or "").removeprefix(shown).lstrip(": ")
            problems.append(Problem(shown, 0, at, error.what, error.mend or ""))
    return problems
