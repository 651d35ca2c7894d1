"""Replay of judges: every judgement and every judge's state, made again from the record.

The events of each key are put, in the order in which they were accepted, to the judges that judged
them: of the release and the lessons that the entry names, where they are at hand. What comes out
is held against what is recorded: the order, the name of the state that was judged from
(`vedette.domain.judge_state`), the judgement with its proposals, and the bytes of each checkpoint.
What a model answered is on record and is asked of nobody.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Protocol

import orjson
from msgspec import Struct
from msgspec.structs import replace

from vedette.domain.base.canonical import canonical_json
from vedette.domain.event import Event
from vedette.domain.judge_state import (
    advance_digest_all,
    checkpoint_digest,
    initial_digest,
    parse_state_name,
)
from vedette.domain.memory import Briefing, Memory, cite_memories
from vedette.domain.ports.reasoner import Reasoner, ReasonerJudgement
from vedette.domain.ports.store import StoreReader
from vedette.domain.readers import unpack_row
from vedette.engine.task_history import read_told_task
from vedette.engine.turn import judgement_fields, turn_body
from vedette.engine.turn_history import (
    ToldTurns,
    find_history_fault,
    retell_task_turns,
    retell_turns,
)
from vedette.operations.judge_key_state import JudgeRelease, KeyState
from vedette.operations.judge_record import (
    JUDGEMENT_KINDS,
    NUMBERS,
    RecordedJudgement,
    has_judgement,
)
from vedette.operations.judge_report import (
    ARCHIVED,
    CHANGED,
    ERASED,
    MISSING,
    UNKNOWN,
    UNNAMED,
    Difference,
    JudgeReport,
)
from vedette.policy.replay import erasures

KINDS = (*JUDGEMENT_KINDS, "policy.published", "run.dead", "effect.done")

# A state is taken up from a checkpoint at most so many events back (CHECKPOINT_EVERY, and some).
_MAX_SINCE = 300
# Writes of a row that are remembered: a briefing may have been written before the last of them.
_WRITES = 8


class JudgeProvider(Protocol):
    """The judges that are at hand for a replay."""

    def has_judge(self, agent: str) -> bool:
        """Say whether an agent has a judge, or had one: False if a model reasons for it."""
        ...

    def has_cascade(self, agent: str) -> bool:
        """Say whether an agent has a cascade: its judge has each run's first turn."""
        ...

    def find(self, agent: str, digest: str, at_us: int) -> JudgeRelease | None:
        """Return the judge that is made of what `digest` names, as of an instant; None without."""
        ...

    def reasoner(self, judge: JudgeRelease, attempt: int) -> Reasoner:
        """Return what runs a judge. Attempt 1 shares nothing with attempt 0, not even a seed."""
        ...

    def registry(self, bundle: str) -> Mapping[str, Any]:
        """Return the registry of a recorded bundle."""
        ...


async def replay_judges(record: StoreReader, judges: JudgeProvider) -> JudgeReport:
    """Replay every recorded judgement, in the ledger's order. Raises what the store raises."""
    replaying = _Replay(record, judges)
    for seq, raw, salt, data in record.ledger.walk(KINDS):
        await replaying.process_entry(seq, orjson.loads(raw), salt, data)
    replaying.compare_rows()
    return replaying.report


class _Base(Struct, frozen=True):
    """What a state is taken up from: a checkpoint, and the positions observed since."""

    at: int
    blob: bytes | None
    since: Sequence[int]


class _NotRecomputable(Exception):
    """What a judgement was made of is not at hand; `why` is a word of the report."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def _replayed_fields(
    judgement: ReasonerJudgement, memories: tuple[Memory, ...], turn: int
) -> dict[str, Any]:
    """Return of a judgement what would be recorded of it."""
    fields = judgement_fields(judgement)
    recorded = {name: fields[name] for name in NUMBERS if fields.get(name) is not None}
    is_only = turn == 1 and judgement.final and not judgement.deferred
    if judgement.proposals or judgement.candidates or not is_only:
        body = turn_body(judgement, turn, cite_memories(memories))
        recorded |= orjson.loads(canonical_json(body))
    return recorded


class _Replay:
    def __init__(self, record: StoreReader, judges: JudgeProvider) -> None:
        self.report = JudgeReport()
        self._record, self._judges = record, judges
        self._erased = erasures(record)
        self._keys: dict[tuple[str, str], KeyState] = {}
        self._dead: dict[str, int] = {}
        self._rows: dict[tuple[str, str], list[tuple[int, dict[str, Any] | None]]] = {}
        self._registry: Mapping[str, Any] = {}
        self._states = {
            (agent, key): (at, blob) for agent, key, at, blob in record.judge_states.kept()
        }
        first, raw = next(((seq, raw) for seq, raw, _, _ in record.ledger.walk()), (1, b"{}"))
        self._cut = first > 1
        if self._cut:
            self._begin_after(first, orjson.loads(raw)["at"])

    def _begin_after(self, first: int, at_us: int) -> None:
        """Take from rows what entries that are archived would say."""
        before = (digest for _, digest, at in self._record.policy.revisions() if at <= at_us)
        if digest := next(before, None):
            self._registry = self._judges.registry(digest)
        walk = self._record.ledger.walk(JUDGEMENT_KINDS)
        entries = (self._with_position(orjson.loads(raw)) for _, raw, _, _ in walk)
        later = {
            (one["agent"], one["about"])
            for one in entries
            if has_judgement(one) and one.get("turn", 1) == 1
        }
        for agent, key, position, _ in self._record.judge_states.observed_positions():
            if position < first:
                key_state = self._keys.setdefault((agent, key), KeyState(has_unnamed=True))
                if (agent, position) not in later:  # it was judged before the cut, as it came
                    key_state.observe(position, 0, None)

    async def process_entry(
        self, seq: int, entry: Mapping[str, Any], salt: bytes | None, data: bytes | None
    ) -> None:
        """Take in the next entry of KINDS."""
        kind = entry["kind"]
        entry = self._with_position(entry)
        if kind == "policy.published":
            self._registry = self._judges.registry(entry["bundle"])
        elif kind == "run.dead":
            self._dead[entry["run"]] = seq
        elif kind == "effect.done":
            self._record_write(seq, entry, data)
        elif has_judgement(entry):
            step = RecordedJudgement(
                seq, entry, None if data is None or salt is None else (salt, data)
            )
            if "state" not in entry:
                self._skip_unnamed(step)
            elif step.turn > 1:
                await self._replay_later_turn(step)
            else:
                await self._replay_judgement(step)

    def _with_position(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an entry of a run that says what it is about; those of before did not."""
        if "run" not in entry or "about" in entry:
            return entry
        run = self._record.runs.run(entry["run"])
        return {**entry, "about": 0 if run is None else run.position}

    def _record_write(self, seq: int, entry: Mapping[str, Any], data: bytes | None) -> None:
        """Remember what a tool wrote into its key's row."""
        row: dict[str, Any] | None = None
        if data is not None:
            value = orjson.loads(data).get("data")
            rows = value.get("rows") if isinstance(value, dict) else None
            if not rows:
                return
            row = unpack_row(rows[-1])[0]
        elif "body" not in entry:
            return
        writes = self._rows.setdefault((entry["agent"], self._key_of(entry)), [])
        writes.append((seq, row))
        del writes[:-_WRITES]

    def _key_of(self, entry: Mapping[str, Any]) -> str:
        runs = self._record.runs.runs_at([entry["about"]])
        return next((run.key for run in runs if run.agent == entry["agent"]), "")

    def _skip_unnamed(self, step: RecordedJudgement) -> None:
        """Take a turn whose state has no name: a model's, the engine's own, or an old judge's."""
        event = self._record.runs.event_at(step.position)
        own = event.is_undo if event is not None else step.entry.get("label") == "undo"
        is_later = step.turn > 1
        # A model's is known by its route, whatever the agent is by now.
        is_model = "route" in step.entry or (is_later and self._judges.has_cascade(step.agent))
        if own or is_model or not self._judges.has_judge(step.agent):
            self.report.answers += 1
            return
        self.report.judgements += 1
        self.report.unrecomputable[UNNAMED] += 1
        if is_later:
            return  # it has no place in its key's order
        key_state = self._keys.setdefault((step.agent, self._key_of(step.entry)), KeyState())
        key_state.has_unnamed, key_state.reasoner_state = True, None
        key_state.observe(step.position, step.seq, None)

    # --- one judgement ------------------------------------------------------------------------

    async def _replay_judgement(self, step: RecordedJudgement) -> None:
        self.report.judgements += 1
        key = self._key_of(step.entry)
        key_state = self._keys.setdefault((step.agent, key), KeyState())
        wrong, found = self._check_order(key_state, (step.agent, key), step)
        why, judged_fields = await self._rejudge(key_state, key, step)
        self._report(step, key, wrong or why, found | judged_fields)

    def _report(
        self, step: RecordedJudgement, key: str, why: str, found: Mapping[str, Any]
    ) -> None:
        """Count a judgement by why it is no equal ("": it is); `found` is what came out instead."""
        if why in ("order", "state", "judgement", "checkpoint", "not deterministic"):
            recorded = {name: step.entry.get(name) for name in ("state", "checkpoint")}
            recorded |= step.recorded_fields()
            names = [name for name in found if recorded.get(name) != found[name]]
            self.report.add_difference(
                Difference(
                    why, step.agent, key, step.position, step.seq, step.entry["run"],
                    step.entry["event"], {name: recorded.get(name) for name in names},
                    {name: found[name] for name in names},
                )
            )  # fmt: skip
        elif why:
            self.report.unrecomputable[why] += 1
        else:
            self.report.equal += 1

    # --- a later turn -------------------------------------------------------------------------

    async def _replay_later_turn(self, step: RecordedJudgement) -> None:
        """Judge a later turn of a run again. It has no place in its key's order, and no state."""
        self.report.judgements += 1
        key = self._key_of(step.entry)
        found: dict[str, Any] = {}
        made, seen = parse_state_name(step.entry["state"])
        try:
            judge = self._judges.find(step.agent, made, step.entry["at"])
            if judge is None:
                raise _NotRecomputable(CHANGED)
            why = "state" if seen else ""
            if not seen:
                why, found = await self._compare_later(key, step, judge)
        except _NotRecomputable as error:
            why = error.why
        self._report(step, key, why, {"state": made} if seen else found)

    async def _compare_later(
        self, key: str, step: RecordedJudgement, judge: JudgeRelease
    ) -> tuple[str, dict[str, Any]]:
        """Judge a later turn again, twice if it is not alike; compare. Raises _NotRecomputable."""
        ((_, event),) = self._events([step.position])
        memories = self._memories(step, judge)
        told = self._tell_turns(step)
        recorded = step.recorded_fields()
        (row,) = self._rows_before(judge, key, step)
        tries: list[dict[str, Any]] = []
        for attempt in (0, 1):
            # Its own copy each time: a judge may go on with the very notes that it was given.
            (_, turns, notes), task = deepcopy(told)
            briefing = Briefing(
                step.entry["run"], step.agent, key, step.position, 0, step.turn, event,
                judge.agent.charter, self._registry, memories, row, turns, notes=notes, task=task,
            )  # fmt: skip
            tries.append(await self._reason(judge, step, briefing, None, attempt))
            if tries == [recorded]:
                return "", {}
        return "judgement" if tries[0] == tries[-1] else "not deterministic", tries[0]

    def _tell_turns(self, step: RecordedJudgement) -> tuple[ToldTurns, dict[str, Any]]:
        """Return what a later turn was told of those before it, and of its task (empty: it is
        none). Raises _NotRecomputable for what is not as the ledger proves it.
        """
        before = self._record.runs.turns(step.entry["run"])[: step.turn - 1]
        if [turn["turn"] for turn in before] != list(range(1, step.turn)):
            raise _NotRecomputable(ARCHIVED if self._cut else MISSING)
        rows = [row for row in self._record.runs.actions(step.entry["run"]) if row.turn < step.turn]
        fault = find_history_fault(self._record.ledger, step.entry["run"], before, rows)
        if fault is not None or not all(row.is_final for row in rows):
            raise _NotRecomputable(MISSING)
        task = read_told_task([*before, step.body() or {}])
        told = (
            retell_task_turns(before, rows, task)
            if task
            else retell_turns(before, rows, to_judge=True)
        )
        return told, task

    def _check_order(
        self, key_state: KeyState, agent_key: tuple[str, str], step: RecordedJudgement
    ) -> tuple[str, dict[str, Any]]:
        """Say whether an event was judged in its place, and from the state that it should be."""
        made, seen_name = parse_state_name(step.entry["state"])
        position = step.position
        after = bisect_right(key_state.observed, position)
        twice = after > 0 and key_state.observed[after - 1] == position
        earliest = min(key_state.judged[after:], default=step.seq)
        # A dead letter that was taken up again is judged after events that did not wait for it.
        is_late = earliest < step.seq and not self._dead.get(step.entry["run"], step.seq) < earliest
        seen = key_state.expected_seen(position)
        unlike = seen_name and seen.hex() != seen_name
        if unlike and (base := self._other_base(key_state, agent_key, position, seen_name)):
            key_state.base, key_state.blob, key_state.digest, key_state.reasoner_state = (
                base,
                None,
                "",
                None,
            )
            seen = bytes.fromhex(seen_name)
        wrong = (
            "order"
            if twice or is_late
            else "state"
            if seen_name and seen.hex() != seen_name
            else ""
        )
        differences: dict[str, Any] = {"state": made + (seen.hex() if seen_name else "")}
        if wrong == "order":
            differences["judged before entry"] = earliest
        if not twice:
            key_state.observe(position, step.seq, seen)
        return wrong, differences if wrong else {}

    def _other_base(
        self, key_state: KeyState, agent_key: tuple[str, str], position: int, seen_name: str
    ) -> int:
        """Return another checkpoint that explains what a state has seen; 0 if none does.

        One that was kept when content was erased has no entry, nor had any before states had names.
        """
        since = key_state.positions_between(0, position)[-_MAX_SINCE:]
        stored = self._states.get(agent_key, (0, b""))[0]
        for base in since if key_state.has_unnamed else [stored] if stored in since else []:
            if (
                advance_digest_all(
                    initial_digest(base), [*key_state.positions_between(base, position), position]
                ).hex()
                == seen_name
            ):
                return base
        return 0

    async def _rejudge(
        self, key_state: KeyState, key: str, step: RecordedJudgement
    ) -> tuple[str, dict[str, Any]]:
        """Judge an event again. Return why it is no equal, "" if it is, and what came out."""
        made, seen = parse_state_name(step.entry["state"])
        digest, blob = step.entry.get("checkpoint"), None
        judged_fields: dict[str, Any] = {}
        try:
            judge = self._judges.find(step.agent, made, step.entry["at"])
            if judge is None:
                raise _NotRecomputable(CHANGED)
            key_state.judge = judge
            base = self._base(key_state, (step.agent, key), step.position) if seen else None
            why, judged_fields = await self._compare(key_state, key, step, judge, base)
            if digest is not None and base is not None and why != "not deterministic":
                blob = self._fold(judge, base, step.position, attempt=0)
                if checkpoint_digest(blob) != digest:
                    other = self._fold(judge, base, step.position, attempt=1)
                    why = "checkpoint" if blob == other else "not deterministic"
                    judged_fields["checkpoint"], blob = checkpoint_digest(blob), None
        except _NotRecomputable as error:
            why, key_state.reasoner_state = error.why, None
        if digest is not None:
            key_state.checkpoint(step.position, blob, digest)
        return why, judged_fields

    async def _compare(
        self,
        key_state: KeyState,
        key: str,
        step: RecordedJudgement,
        judge: JudgeRelease,
        base: _Base | None,
    ) -> tuple[str, dict[str, Any]]:
        """Judge an event, in each way that the record leaves open; compare.

        Raises _NotRecomputable.
        """
        position = step.position
        ((_, event),) = self._events([position])
        memories = self._memories(step, judge)
        previous = key_state.previous(position)
        briefings = [
            Briefing(
                step.entry["run"], step.agent, key, position, previous, 1, event,
                judge.agent.charter, self._registry, memories, row,
                task=read_told_task([step.body() or {}]),
            )
            for row in self._rows_before(judge, key, step)
        ]  # fmt: skip
        recorded = step.recorded_fields()
        holds = base is None or key_state.reasoner_state == (judge.digest, previous)
        judged_fields: dict[str, Any] = {}
        for briefing in briefings:
            judged_fields = await self._reason(judge, step, briefing, None if holds else base)
            if judged_fields == recorded:
                key_state.reasoner_state = (judge.digest, position)
                return "", {}
            holds = base is None  # what the judge holds is behind the event by now
        key_state.reasoner_state = None
        attempts = [
            await self._reason(judge, step, briefings[0], base, attempt) for attempt in (0, 1)
        ]
        if any(
            one != attempts[0]
            for one in (*attempts, *([judged_fields] if len(briefings) == 1 else []))
        ):
            return "not deterministic", judged_fields
        return "judgement", attempts[0]

    async def _reason(
        self,
        judge: JudgeRelease,
        step: RecordedJudgement,
        briefing: Briefing,
        base: _Base | None,
        attempt: int = 0,
    ) -> dict[str, Any]:
        """Return what a judge says, with its state taken up anew from `base` if there is one."""
        reasoner = self._judges.reasoner(judge, attempt)
        if base is not None:
            since = self._events(base.since)
            reasoner.restore_state(briefing.agent, briefing.key, base.blob, base.at, since)
        try:
            judgement = await reasoner.reason(briefing)
        except Exception as error:
            # Whatever the agent's code raises: at the time it did not.
            return {"error": f"{type(error).__name__}: {error}"}
        if judgement.needs_state:
            return {"error": "the judge cannot take up its state"}
        # Whether it was sure enough is what its agent.yaml said of it, and no judgement.
        deferred = step.entry.get("what") == "deferred"
        judgement = replace(judgement, deferred=deferred)
        return _replayed_fields(judgement, briefing.memories, briefing.turn)

    def _memories(self, step: RecordedJudgement, judge: JudgeRelease) -> tuple[Memory, ...]:
        """Return the memories that an event was briefed with. Raises _NotRecomputable."""
        cites = step.cites()
        if cites is None:
            raise _NotRecomputable(self._missing_reason(step.seq))
        found = []
        for cite in cites:
            bank, _, name = cite.partition("/")
            id, _, revision = name.rpartition("@")
            lesson = next((m for m in judge.lessons if (m.bank, m.id) == (bank, id)), None)
            if lesson is None:
                raise _NotRecomputable(CHANGED)
            found.append(replace(lesson, revision=int(revision)))
        return tuple(found)

    def _rows_before(
        self, judge: JudgeRelease, key: str, step: RecordedJudgement
    ) -> list[dict[str, Any]]:
        """Return the key's row as it was, and as it may have been when the briefing was written.

        A run that goes on beside its key may have written it since the first turn of another was
        briefed. A later turn kept the row to itself (`engine.handle.holds_row`): of that there is
        one. Raises _NotRecomputable.
        """
        if judge.agent.collection is None:
            return [{}]
        writes = self._rows.get((step.agent, key), [])
        if self._cut and not writes:
            raise _NotRecomputable(ARCHIVED)
        rows = [writes[-1][1] if writes else {}]
        for at in range(len(writes) - 1, -1, -1) if step.turn == 1 else ():
            if writes[at][0] < step.position:
                break
            rows.append(writes[at - 1][1] if at else {})
        if any(row is None for row in rows):
            raise _NotRecomputable(ERASED)
        return [row for row in rows if row is not None]

    def _fold(self, judge: JudgeRelease, base: _Base, position: int, attempt: int) -> bytes:
        since = self._events([*base.since, position])
        reasoner = self._judges.reasoner(judge, attempt)
        return reasoner.fold_state(judge.agent.name, base.blob, since) or b""

    def _base(self, key_state: KeyState, agent_key: tuple[str, str], position: int) -> _Base:
        """Return what the state before a position is made of. Raises _NotRecomputable."""
        base = key_state.find_base(position)
        blob = key_state.blob if base else None
        if base and blob is None:
            at, stored = self._states.get(agent_key, (0, b""))
            if at != base or (key_state.digest and checkpoint_digest(stored) != key_state.digest):
                raise _NotRecomputable(UNKNOWN)
            blob = key_state.blob = stored
        return _Base(base, blob, key_state.positions_between(base, position))

    def _events(self, positions: Sequence[int]) -> list[tuple[int, Event]]:
        """Return the events at positions. Raises _NotRecomputable for one that is not there."""
        found = []
        for position in positions:
            event = self._record.runs.event_at(position)
            if event is None:
                raise _NotRecomputable(self._missing_reason(position))
            found.append((position, event))
        return found

    def _missing_reason(self, position: int) -> str:
        entry = self._record.ledger.entry(position)
        if entry is None:
            return ARCHIVED
        return ERASED if orjson.loads(entry[1]).get("body") in self._erased else MISSING

    # --- rows ---------------------------------------------------------------------------------

    def compare_rows(self) -> None:
        """Hold what is kept of judges' states against what the entries come to."""
        for (agent, key), (at, blob) in self._states.items():
            key_state = self._keys.get((agent, key))
            if key_state is not None:
                self._compare_state(key_state, agent, key, at, blob)
        for agent, key, head in self._record.judge_states.last_positions():
            key_state = self._keys.get((agent, key))
            if key_state is not None and key_state.observed[-1:] != [head]:
                self._report_row(agent, key, head, "head", head, key_state.observed[-1:])
        for agent, key, position, prior in self._record.judge_states.observed_positions():
            key_state = self._keys.get((agent, key))
            if (
                key_state is not None
                and not key_state.has_unnamed
                and key_state.previous(position) != prior
            ):
                self._report_row(agent, key, position, "prior", prior, key_state.previous(position))

    def _compare_state(
        self, key_state: KeyState, agent: str, key: str, at: int, blob: bytes
    ) -> None:
        if at == key_state.base and key_state.digest:
            self.report.states += 1
            if checkpoint_digest(blob) != key_state.digest:
                self._report_row(
                    agent, key, at, "checkpoint", checkpoint_digest(blob), key_state.digest
                )
            return
        if at not in key_state.observed:
            if not key_state.has_unnamed:
                self._report_row(agent, key, at, "checkpoint at", at, key_state.base)
            return
        # One that was kept for content that was to be erased, before it was.
        try:
            if key_state.judge is None:
                return
            base = self._base(key_state, (agent, key), at)
            found = self._fold(key_state.judge, base, at, attempt=0)
        except _NotRecomputable:
            return
        self.report.states += 1
        if found != blob:
            self._report_row(
                agent, key, at, "checkpoint", checkpoint_digest(blob), checkpoint_digest(found)
            )

    def _report_row(self, agent: str, key: str, at: int, name: str, says: Any, should: Any) -> None:
        wrong = Difference("row", agent, key, at, recorded={name: says}, again={name: should})
        self.report.add_difference(wrong)
