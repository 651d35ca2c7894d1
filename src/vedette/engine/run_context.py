"""A RunContext: what the handler knows of one run, and the steps that make its progress durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from vedette.domain.action import Action, action_digest
from vedette.domain.agent import Agent
from vedette.domain.base.canonical import normalized_json
from vedette.domain.budget import ACTIONS, Reservation, Shortage
from vedette.domain.decision import Approval, DecisionContext, DecisionRecord
from vedette.domain.entry import Body, Draft
from vedette.domain.event import TASK_TYPE, Event, subject_of
from vedette.domain.links import find_argument_links
from vedette.domain.memory import (
    Briefing,
    Memory,
    cite_memories,
    reviewed_citation_ids,
    reviewed_ids,
)
from vedette.domain.origin import KnownValues, Roots, collect_known_values
from vedette.domain.origin_check import recompute_origins
from vedette.domain.readers import (
    Labels,
    Readers,
    argument_readers,
    meet_labels,
    unpack_row,
)
from vedette.domain.row_proof import (
    BadRecord,
    EntryRecord,
    find_row_fault,
    is_approved,
    parse_record,
)
from vedette.domain.run import ActionRow, CommitStatus, Run, RunState, Step, Superseded
from vedette.domain.work_tools import ENGINE_TOOLS, hold_stopped, waits_first
from vedette.engine.action_holds import ActionSlots, approval_of, wake_us
from vedette.engine.artefacts import ArtefactReads, open_reads
from vedette.engine.model_calls import ModelCall
from vedette.engine.services import CanaryCode, Services
from vedette.engine.task_progress import TaskProgress
from vedette.engine.task_telemetry import count_step
from vedette.engine.tool_calls import Outcomes, label_answers
from vedette.engine.turn_history import (
    NO_TURNS,
    read_actions_anew,
    read_turns,
    retell_turns,
    verify_history,
)

# Answers of the store that say something of the run itself, not of what was judged ahead of it.
_OF_THE_RUN = (CommitStatus.COMMITTED, CommitStatus.FENCED_EARLIER, CommitStatus.STATE_ERASED)


class RunContext(Struct):
    """One run being handled. `actions` are all its actions, oldest first, as the store has them.

    `previous` is the position of the key's event that was judged before this one; `citations` are
    (cite, trust) of the memories of each turn; `model_call` is the place of this turn's call of a
    model, `reservation` its worst case, booked; `used` is what its turns have used and booked, by
    unit (None: to be read); `slots` is the room for actions of the step that is being made,
    `artefact_reads` what it reads of artefacts (None: nothing yet).
    `fresh_actions` has the actions that were decided here, by id, with the registry they were bound
    under and their record. `started_here` are actions whose durable start this handler wrote,
    `confirmed_absent` those whose target said after a restore that nothing happened. `is_loaded`
    says that turns of it were recorded before this, `is_resumed` that anything was: it waited, or
    failed, or its process ended. `subject` is what the bodies of its entries are found by, beside
    its event; `told_readers` may read all that its model was told. `accepted_us` is when its event
    was accepted (0: not read). `is_deferred` says that its judge left it to its model, in its first
    turn. `code` runs another release than the fleet's, whose agent is `live_agent` then. A task has
    its progress as `task`; `task_told` is what its turn is told, `escrow_shortages` what asks lack.
    """

    services: Services
    run: Run
    epoch: int
    agent: Agent
    event: Event
    actions: list[ActionRow]
    final: bool = False
    memories: tuple[Memory, ...] = ()
    collection_row: dict[str, Any] = field(default_factory=dict)
    collection_row_readers: Readers = None
    started_here: set[str] = field(default_factory=set)
    confirmed_absent: set[str] = field(default_factory=set)
    is_loaded: bool = False
    is_resumed: bool = False
    previous: int = 0
    model_call: ModelCall | None = None
    reservation: Reservation | None = None
    used: dict[str, int] | None = None
    slots: ActionSlots = field(default_factory=ActionSlots)
    artefact_reads: ArtefactReads | None = None
    citations: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    fresh_actions: dict[str, tuple[Action, object, bytes]] = field(default_factory=dict)
    subject: str | None = None
    told_readers: Readers = None
    accepted_us: int = 0
    is_deferred: bool = False
    code: CanaryCode | None = None
    task: TaskProgress | None = None
    task_told: Mapping[str, Any] = field(default_factory=dict)
    escrow_shortages: dict[str, Shortage] = field(default_factory=dict)
    live_agent: Agent | None = None

    @classmethod
    def open(cls, services: Services, run: Run, epoch: int, event: Event) -> RunContext:
        """Read what the store knows of a run. Raises BadFleet if it outlived its agent, Permanent
        if what was recorded of it is not what the ledger says.
        """
        agent = services.fleet.release_of(run.agent, run.key, run.position)
        context = cls(services, run, epoch, agent, event, [], subject=subject_of(event))
        if services.fleet.agents.get(run.agent) is not agent:
            context.code = services.canary_code[run.agent]
        context.is_resumed = run.steps > 0
        before = services.keys.adopt_lease(run.agent, run.key, epoch)
        if before != epoch:
            services.calls.note_lease(epoch, services.clock.monotonic_us())
            if before is not None:
                services.forget_key(run)
        turns = context._load_turns() if run.turn else []
        if agent.work is not None or event.type == TASK_TYPE or (turns and "task" in turns[0]):
            context.task = TaskProgress.load(
                services.store, services.fleet.name, agent, event, run, turns, context.actions
            )
        return context

    def _load_turns(self) -> list[Mapping[str, Any]]:
        store = self.services.store
        self.is_loaded, self.actions = True, store.runs.actions(self.run.id)
        turns = read_turns(store.runs, self.run)
        self.is_deferred = bool(turns[0].get("deferred"))
        self.final = bool(turns[-1]["final"]) and not turns[-1].get("deferred")
        self.citations = {
            turn["turn"]: list(zip(turn["memories"], turn["trust"], strict=True)) for turn in turns
        }
        self.told_readers = meet_labels(*(frozenset(t["readers"]) for t in turns if "readers" in t))
        verify_history(self.services, self.run, turns, self.actions)
        return turns

    # --- where the run stands ---------------------------------------------------------------

    @property
    def order(self) -> tuple[str, int, int]:
        """Return the run's place among its key's events: the key, the one before, its own."""
        return (self.run.key, self.previous, self.run.position)

    def brief_with(self, memories: tuple[Memory, ...]) -> None:
        """Take these memories for what the next turn is briefed with."""
        self.memories = memories
        self.citations[self.run.turn + 1] = cite_memories(memories)

    @property
    def is_judged(self) -> bool:
        """Say whether the next turn is the judge's: in a cascade it has the first."""
        return self.agent.has_judge and not (self.agent.cascade and self.run.turn)

    @property
    def spends(self) -> bool:
        """Say whether the next turn is counted and booked first: a judge's is not."""
        return not (self.is_judged or self.event.is_undo)

    @property
    def needs_turn(self) -> bool:
        """Say whether the reasoner is to be asked (first or again)."""
        if self.run.turn == 0:
            return True
        rows = self.actions
        return not self._is_ended(rows, self.final) and all(row.is_final for row in rows)

    def is_over(self, changed: Sequence[ActionRow], final: bool) -> bool:
        """Say whether the run is over once these actions stand: nothing more is asked, or done."""
        rows = self.merge_actions(changed)
        return self._is_ended(rows, final) and all(row.is_final for row in rows)

    def _is_ended(self, rows: Sequence[ActionRow], final: bool) -> bool:
        return final if self.task is None else self.task.is_over(rows)

    def due_decisions(self, now_us: int) -> list[ActionRow]:
        """Return the actions whose wait is over: approved, expired, time come, stop lifted."""
        return [row for row in self.actions if self._is_decidable(row, now_us)]

    def next_effect(self, now_us: int) -> ActionRow | None:
        """Return the first action whose effect may be tried now."""
        rows = self.actions
        if self.task is not None:
            rows = waits_first(hold_stopped(rows, self.agent.name, self.services.stops))
        return next((row for row in rows if row.may_try(now_us)), None)

    def _is_decidable(self, row: ActionRow, now_us: int) -> bool:
        if row.is_final or row.effect in ("intended", "started"):
            return False
        if row.hold == "denied":
            return True
        if row.waits == "approval":
            return row.hold == "approved" or row.until_us <= self.services.clock.expiry_us()
        if row.waits in ("time", "policy"):
            return row.not_before_us <= now_us
        if row.waits == "budget":
            # Without an instant only a person's raise makes room, and then sets one.
            return 0 < row.not_before_us <= now_us
        if row.waits == "resume":
            return not self._is_stopped(row) and row.not_before_us <= now_us
        return row.decided is None

    def _is_stopped(self, row: ActionRow) -> bool:
        stops, task = self.services.stops, self.task
        above = task is not None and task.is_stopped_above(stops, row.tool)
        return above or stops.is_tool_stopped(self.agent.name, row.tool)

    def derive_standing(
        self, rows: Sequence[ActionRow], final: bool, now_us: int
    ) -> dict[str, Any]:
        """Return where the run stands: a `Step`'s state, wake_us (0: by no clock) and waits."""
        open_rows = [row for row in rows if not row.is_final]
        if not open_rows:
            return _standing("done" if self._is_ended(rows, final) else "ready")
        if self.task is not None:
            open_rows = hold_stopped(open_rows, self.agent.name, self.services.stops)
            if self.task.is_unread(open_rows):
                return _standing("ready")
        if any(row.may_try(now_us) or self._is_decidable(row, now_us) for row in open_rows):
            return _standing("ready")
        found = [row.waits for row in open_rows if row.waits]
        # The store wakes by this word when a stop is lifted; people's answers wake in any case.
        waits = "resume" if "resume" in found else next(iter(found), None)
        wakes = [at_us for row in open_rows if (at_us := wake_us(row, self._is_stopped(row)))]
        return _standing("waiting", min(wakes, default=0), waits)

    # --- what the reasoner and the gateway are given ------------------------------------------

    def build_briefing(self) -> Briefing:
        """Return all that a reasoner sees of this run."""
        services, run, agent = self.services, self.run, self.agent
        if agent.collection:
            row = services.keys.row(agent.collection, run.key)
            self.collection_row, self.collection_row_readers = unpack_row(row)
        self.previous = services.keys.previous_position(agent.name, run.key, run.position)
        turns = read_turns(services.store.runs, run) if run.turn and self.task is None else ()
        told = retell_turns(turns, self.actions, to_judge=self.is_judged) if turns else NO_TURNS
        if self.task is not None:
            self.task_told = self.task.tell(self.actions, self.collection_row)
        briefing = Briefing(
            run=run.id, agent=agent.name, key=run.key, position=run.position,
            previous=0 if run.turn else self.previous,  # later turns have no state of the key
            turn=run.turn + 1, event=self.event, charter=agent.charter, registry=services.registry,
            memories=self.memories, row=self.collection_row, turns=told.turns,
            model=self.model_call.model.name if agent.model and self.model_call else "",
            opinion=told.opinion, notes=told.notes, task=self.task_told,
        )  # fmt: skip
        if self.task is None:
            return briefing
        complete, judged = self.task.history.complete, self.is_judged
        return complete(briefing, self.actions, agent.tools, to_judge=judged)

    def _own_row(self) -> Mapping[str, Any]:
        collection = self.agent.collection
        return unpack_row(self.services.keys.row(collection, self.run.key))[0] if collection else {}

    def open_artefacts(self) -> ArtefactReads:
        """Return what the step that is being made reads of artefacts."""
        if self.artefact_reads is None:
            self.artefact_reads = open_reads(self.services.store.runs, self.run.id, self.actions)
        return self.artefact_reads

    def roots(self) -> Roots:
        """Return what a proposal may point at."""
        answered = [row for row in self.actions if row.answer is not None]
        return Roots(
            event=self.event.root(),
            vouched=self.event.vouched,
            charter=self.agent.charter,
            registry=self.services.registry,
            memory={m.id: {"text": m.text, "label": m.label} for m in self.memories},
            trusted_memories=reviewed_ids(self.memories),
            outcome=Outcomes(answered) if answered else {},
            trusted_outcomes=frozenset(
                str(at)
                for at, row in enumerate(answered)
                if row.tool in self.agent.tools
                and self.agent.tools[row.tool].output == "trusted"
                and "label_output" not in row.obliges
            ),
            row=self.collection_row,
            known=self.known_values(),
            labels=self.labels(),
            **({} if self.task is None else self.task.list_roots()),
        )

    def known_values(self) -> KnownValues:
        """Return the values that the agent's charter and the registry make known, as of now."""
        charter, registry = self.agent.charter, self.services.registry
        key = (self.agent.name, self.agent.release)
        found = self.services.known_values.get(key)
        if found is None or found[0] is not charter or found[1] is not registry:
            found = (charter, registry, collect_known_values(charter, registry))
            self.services.known_values[key] = found
        return found[2]

    def labels(self, row: Mapping[str, Any] | None = None) -> Labels | None:
        """Return who may read what this run has before it; None if all of it is public.

        What an agent may be taught counts whole: a judge is made of all that its scopes hold. `row`
        is given by whoever holds no lease of the key: what is known of that is not for them.
        """
        row_readers = self.collection_row_readers
        if row is not None:
            row_readers = unpack_row(row)[1]
        elif row_readers is None and self.agent.collection:
            row_value = self.services.keys.row(self.agent.collection, self.run.key)
            row_readers = unpack_row(row_value)[1]
        actions, tools = self.actions, self.agent.tools
        told, turn = self.told_readers, self.run.turn
        answers = label_answers(actions, tools, row_readers, told, turn) if actions else {}
        # A model goes on from what it was told, whatever became of that since.
        answers["told"] = self.told_readers
        if self.task is not None:
            answers |= self.task.session.list_labels()
        return self.agent.label_run(self.event, self.memories, row_readers, answers)

    def build_decision_context(
        self, rows: Sequence[ActionRow], row: ActionRow, entries: Sequence[EntryRecord], now_us: int
    ) -> DecisionContext:
        """Return what the engine knows while one action is decided.

        `rows` are the run's actions (of copies of one the last counts), `entries` this one's.
        """
        latest = {other.id: other for other in rows if other.id != row.id}
        counted = [other for other in latest.values() if other.tool not in ENGINE_TOOLS]
        found = DecisionContext(
            agent=self.agent,
            event=self.event,
            turn=row.turn,
            now_us=now_us,
            memories=self.citations.get(row.turn, ()),
            actions_in_run=sum(other.effect is not None for other in counted),
            stopped=self._is_stopped(row),
            approval=self.find_approval(row, entries, now_us),
        )
        if self.task is None:
            return found
        return self.task.add_facts(self.services, found, row, [*latest.values()], self._own_row)

    def find_approval(
        self, row: ActionRow, entries: Sequence[EntryRecord], now_us: int
    ) -> Approval | None:
        """Return the approval that a person gave for this action, if the ledger has it.

        One that only the row tells of is none: whoever may answer is asked again.
        """
        given = approval_of(row, now_us)
        if given is None or is_approved(row, entries, self.services.store.steps.is_signed):
            return given
        self.services.metrics.count("rows_refused", agent=self.agent.name, what="approval")
        return None

    def rebuild_action(self, row: ActionRow, entries: Sequence[EntryRecord] = ()) -> Action:
        """Rebuild the exact action of a row, with its origins as they are today.

        `entries` are its entries (`reauthorization.read_proofs`); one decided here needs none.

        Raises Superseded if it is not what was decided: its tool was declared anew, charter or
        registry no longer say what an argument was drawn from, or its entries say something else.
        """
        tool = self.agent.tools.get(row.tool)
        fresh, registry, recorded = self.fresh_actions.get(row.id, (None, None, None))
        is_same = registry is self.services.registry and recorded == row.record
        if fresh is not None and is_same and fresh.tool is tool:
            # A tool may change what it is given, and nothing of the next try.
            return replace(fresh, args=orjson.loads(row.record)["args"])
        try:
            record = parse_record(row.record) if row.record else None
        except BadRecord as error:
            raise self._row_mismatch(f"its record cannot be read: {error}") from error
        if not (tool and record and action_digest(tool, record["args"]) == row.digest):
            raise Superseded(f"the tool {row.tool} is not declared as it was when this was decided")
        if fresh is None:
            fault = find_row_fault(row, entries)
            if fault is not None:
                raise self._row_mismatch(fault)
        reviewed = reviewed_citation_ids(self.citations.get(row.turn, ()))
        origins = recompute_origins(record, self.agent.charter, self.services.registry, reviewed)
        return Action(
            run=row.run,
            turn=row.turn,
            ordinal=row.ordinal,
            tool=tool,
            args=record["args"],
            origins=origins,
            sources=record["sources"],
            why=record["why"],
            confidence_milli=record["confidence"],
            digest=row.digest,
            recorded_id=row.id,
            readers=argument_readers(record),
            links=find_argument_links(record["args"], origins, self.known_values),
            asks=record.get("asks", ""),
        )

    def _row_mismatch(self, fault: str) -> Superseded:
        """Count a row that is not what its entries say; return what is to be raised."""
        self.services.metrics.count("rows_refused", agent=self.agent.name, what="row")
        return Superseded(f"the row is not what the ledger says: {fault}")

    # --- entries ----------------------------------------------------------------------------

    def body(self, value: Any) -> Body:
        """Return a body that is found by this run's event and subject."""
        return self.body_of(normalized_json(value))

    def body_of(self, data: bytes) -> Body:
        """Return a body of these canonical bytes, found likewise."""
        return Body(data, self.subject)

    def entry(
        self,
        kind: str,
        *,
        back: int = 0,
        after: int = 0,
        body: Body | None = None,
        **fields: Any,
    ) -> Draft:
        """Return a draft of one of this run's entries, caused by the entry `back` places before it
        in the step, or the entry `after`, or else the run's last.
        """
        run = self.run
        cause = None if back else after or run.last
        about = {"event": run.event, "agent": self.agent.name, **fields}
        return Draft(kind, about, cause, back, body)

    def decision_entry(self, row: ActionRow, decision_record: DecisionRecord, back: int) -> Draft:
        """Return the entry of a decision, with what is needed to make it again."""
        decision = decision_record.decision
        return self.entry(
            "action.decided",
            back=back,
            after=row.last,
            body=self.body_of(decision_record.to_body()),
            release=self.agent.release,
            action=row.id,
            action_digest=row.digest,
            tool=row.tool,
            outcome=decision.outcome,
            rule=decision.rule,
            policy_rev=decision_record.policy_rev,
            bundle=decision_record.bundle,
            engine=decision_record.engine,
            wait=decision.wait,
            until=decision.until_us or None,
            would=decision.would,
        )

    def effect_entry(
        self, kind: str, row: ActionRow, back: int, body: Body | None = None, **more: Any
    ) -> Draft:
        """Return the entry of one change in an effect's life."""
        return self.entry(
            kind, back=back, after=row.last, body=body, action=row.id, tool=row.tool,
            effect_key=row.id.removeprefix("act_"), policy_rev=row.policy_rev,
            tries=row.tries or None, **more,
        )  # fmt: skip

    def final_entry(self, back: int, settled: int, **fields: Any) -> Draft:
        """Return the run's last entry. `settled` is how many actions it had."""
        task = {} if self.task is None else self.task.closing_fields()
        return self.entry("run.closed", back=back, settled=settled, **task, **fields)

    def end_entries(self, changed: Sequence[ActionRow]) -> list[Draft]:
        """Return the run's last entry, if it is over once these actions stand."""
        over = self.is_over(changed, self.final)
        return [self.final_entry(1, len(self.actions))] if over else []

    # --- steps ------------------------------------------------------------------------------

    def build_step(
        self,
        drafts: list[Draft],
        changed: list[ActionRow],
        now_us: int,
        *,
        final: bool | None = None,
        **moves: Any,
    ) -> Step:
        """Return a step that follows the run as it stands. `changed` are the actions it moves.

        `final` says that the reasoner asks for no other turn; `moves` are other fields of the step.
        """
        self.artefact_reads = None
        rows = self.merge_actions(changed)
        standing = self.derive_standing(rows, self.final if final is None else final, now_us)
        stops_epoch = self.services.stops.epoch
        moves = {**standing, "drafts": drafts, "actions": changed, **moves}
        if self.task is not None and moves["state"] == "done":
            moves["wakes"] = (*moves.get("wakes", ()), *self.task.parent_wakes)
        return Step.following(self.run, self.epoch, wait_stop_epoch=stops_epoch, **moves)

    def reset_slots(self, now_us: int) -> None:
        """Begin a step's decisions with what is known of room for actions."""
        found, asks = self.current_shortage(now_us), self.escrow_shortages
        self.slots = ActionSlots(found, escrow_shortages=asks)
        if self.task is not None:
            self.task.begin_step()

    def current_shortage(self, now_us: int) -> Shortage | None:
        """Return what the agent's actions lately had no room for, until its window turns."""
        shortages = self.services.shortages
        found = shortages.get(self.agent.name)
        if found is not None and found.until_us <= now_us:
            del shortages[self.agent.name]
            return None
        return found

    def step_limits(self, permits: int) -> dict[str, Any]:
        """Return what a step with so many new permits has to keep to: fields of a `Step`."""
        caps = self.services.budgets.caps(self.agent.name, self.agent.budget, self.slots.units)
        return self.slots.step_fields(permits, caps)

    def merge_actions(self, changed: Sequence[ActionRow]) -> list[ActionRow]:
        """Return the run's actions with those of `changed` in the place of what they were."""
        before = self.actions
        if len(changed) == 1 and [row.id for row in before] in ([], [changed[0].id]):
            return list(changed)
        by_id = {row.id: row for row in changed}
        return [by_id.pop(row.id, row) for row in before] + list(by_id.values())

    async def commit(self, step: Step, on_sent: Callable[[], None] | None = None) -> None:
        """Make a step durable and move on. Raises Fenced, OverBudget or Superseded.

        `on_sent` is called once the step is on its way: then the key's next event may be judged,
        as if this step stood.
        """
        services, agent = self.services, self.agent.name
        answer = services.store.steps.send(step)
        if on_sent is not None:
            if step.rows:
                services.keys.cache_rows(step.rows)
            on_sent()
        try:
            committed = await answer
        except BaseException:
            services.keys.forget_rows(step.rows)  # whether it stood is for the store to say
            raise
        for alert in committed.alerts:
            services.metrics.count(
                "budget_alerts", agent=alert.name, unit=alert.unit, window=alert.span
            )
        if committed.shortage is not None and committed.shortage.unit == ACTIONS:
            services.shortages[agent] = committed.shortage
        elif committed.shortage is not None and step.escrow:
            self.escrow_shortages[committed.shortage.unit] = committed.shortage
        if committed.status is CommitStatus.BUDGET_AVAILABLE:
            services.shortages.pop(agent, None)
            self.escrow_shortages.clear()
        if committed.status is not CommitStatus.COMMITTED:
            services.keys.forget_rows(step.rows)  # whoever waits for the row is not to see these
        if on_sent is not None and committed.status not in _OF_THE_RUN:
            raise Superseded(f"others were judged ahead of this ({committed.status.value})")
        committed.raise_for_status()
        run = self.run
        run.steps += 1
        run.entries += len(step.drafts)
        run.last = committed.last if step.drafts else run.last
        run.state, run.turn, run.wake_us = step.state, step.turn, step.wake_us
        run.waits, run.observed = step.waits, step.observed
        self.actions = self.merge_actions(step.actions)
        if self.task is not None:
            self.task.take_step(step.actions)
            count_step(services.metrics, agent, step)
        if on_sent is None and step.rows:
            services.keys.cache_rows(step.rows)
        if step.state == "done":
            services.metrics.count("runs", agent=agent, state="done")

    def reload(self) -> None:
        """Read the run again after a person's answer moved it on; what ended here stays so.

        Raises StoreFailed, or Permanent for rows that the ledger does not prove, and then nothing
        is taken in: a run newer than its actions would pass for one that waits for the answer.
        """
        fresh = self.services.store.runs.run(self.run.id)
        if fresh is None:
            raise Superseded("the run is gone")
        actions = read_actions_anew(self.services, fresh, self.actions)
        if self.task is not None:
            self.task.read_words(self.services.store, actions)
        self.run, self.actions = fresh, actions


def _standing(state: RunState, wake_us: int = 0, waits: str | None = None) -> dict[str, Any]:
    return {"state": state, "wake_us": wake_us, "waits": waits}
