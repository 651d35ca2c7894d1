"""A Case: what the handler knows of one run, and the steps that make its progress durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from vedette.domain.action import Action, action_digest
from vedette.domain.action_record import BadRecord, parse_record
from vedette.domain.agent import Agent
from vedette.domain.base.canonical import canonical_json, normalize_json
from vedette.domain.base.errors import Permanent
from vedette.domain.budget import ACTIONS, ActionSlots, Reservation
from vedette.domain.conflict import EarlierEventPending, Fenced, OverBudget, Superseded
from vedette.domain.decision_request import (
    Approval,
    DecisionContext,
    DecisionRecord,
    build_difference_entry,
)
from vedette.domain.entry import Body, Draft
from vedette.domain.event import Event, subject_of
from vedette.domain.labels import argument_readers, build_run_labels, unpack_row
from vedette.domain.links import find_argument_links
from vedette.domain.memory import Briefing, Memory, reviewed_citation_ids, reviewed_ids
from vedette.domain.origin import Origin, Roots
from vedette.domain.origin_check import recompute_origins
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.readers import Labels, Readers, meet
from vedette.domain.row_proof import EntryRecord, find_fault, find_outcome_fault, is_approved
from vedette.domain.run import ActionRow, CommitStatus, Run, RunState, Step
from vedette.engine.call_report import coarse_answer, judgement_fields
from vedette.engine.held_actions import approval_of, wake_at
from vedette.engine.services import Services
from vedette.engine.tool_calls import answer_data


class RunContext(Struct):
    """One run being handled. `actions` are all its actions, oldest first, as the store has them.

    `previous` is the position of the key's event that was judged before this one;
    `citations_by_turn` cites what each recorded turn was briefed with; `reservation` is this turn's
    worst case, booked; `places` is the room for actions of the step that is being made.
    `fresh_origins` has the origins of the actions that were decided here, by id, with the registry
    they were bound under.
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
    loaded: bool = False
    previous: int = 0
    reservation: Reservation | None = None
    places: ActionSlots = field(default_factory=ActionSlots)
    citations_by_turn: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    fresh_origins: dict[str, tuple[Mapping[str, Origin], object]] = field(default_factory=dict)

    @classmethod
    def open(cls, services: Services, run: Run, epoch: int, event: Event) -> RunContext:
        """Read what the store knows of a run."""
        services.quiet_times.note_lease(epoch, services.clock.monotonic_us())
        context = cls(services, run, epoch, services.agent(run.agent), event, [])
        services.adopt_lease(run, epoch)
        if run.turn:
            context.loaded = True
            context.actions = services.store.actions(run.id)
            turns = services.store.turns(run.id)
            context.final = bool(turns[-1]["final"]) if turns else True
            context.citations_by_turn = {
                turn["turn"]: list(zip(turn["memories"], turn["trust"], strict=True))
                for turn in turns
            }
        return context

    def verify_history(self) -> None:
        """Count nothing read back from the store that the ledger does not say.

        What comes next is made of earlier turns and of what came of their actions: briefings,
        origins, readers. Raises Permanent for a turn that is missing or was edited, or an ended
        effect whose row is not what its entries say.
        """
        if len(self.citations_by_turn) != self.run.turn:
            raise Permanent("what was thought in an earlier turn was erased, or edited")
        ended = [row for row in self.actions if row.effect in ("done", "failed") or row.answer]
        entries = self.services.store.proof_entries([row.id for row in ended]) if ended else {}
        for row in ended:
            fault = find_outcome_fault(row, entries[row.id])
            if fault is not None:
                self.services.metrics.count("rows_refused", agent=self.agent.name, what="row")
                raise Permanent(f"the row of {row.id} is not what the ledger says: {fault}")

    # --- where the run stands ---------------------------------------------------------------

    @property
    def order(self) -> tuple[str, int, int]:
        """Return the run's place among its key's events: the key, the one before, its own."""
        return (self.run.key, self.previous, self.run.position)

    @property
    def needs_turn(self) -> bool:
        """Say whether the reasoner is to be asked (first or again)."""
        if self.run.turn == 0:
            return True
        return not self.final and all(row.is_final for row in self.actions)

    def due_decisions(self, now_us: int) -> list[ActionRow]:
        """Return the actions whose wait is over: approved, expired, time come, stop lifted."""
        return [row for row in self.actions if self._is_decidable(row, now_us)]

    def due_effects(self, now_us: int) -> list[ActionRow]:
        """Return the actions whose effect may be tried now."""
        return [row for row in self.actions if row.may_try(now_us)]

    def _is_decidable(self, row: ActionRow, now_us: int) -> bool:
        if row.is_final or row.effect in ("intended", "started"):
            return False
        if row.hold == "denied":
            return True
        if row.waits == "approval":
            return row.hold == "approved" or row.until_us <= self.services.clock.expiry_us()
        if row.waits == "time":
            return row.not_before_us <= now_us
        if row.waits == "policy":
            return row.not_before_us <= now_us
        if row.waits == "budget":
            # Without an instant only a person's raise makes room, and then sets one.
            return 0 < row.not_before_us <= now_us
        if row.waits == "resume":
            return not self._is_stopped(row) and row.not_before_us <= now_us
        return row.decided is None

    def _is_stopped(self, row: ActionRow) -> bool:
        return self.services.stops.is_tool_stopped(self.agent.name, row.tool)

    def derive_state(self, rows: Sequence[ActionRow], final: bool, now_us: int) -> dict[str, Any]:
        """Return the run's state, wake-up instant and wait, given its actions."""
        if not rows or all(row.is_final for row in rows):
            state: RunState = "done" if final else "ready"
            return {"state": state, "wake_us": 0, "waits": None}
        if any(row.may_try(now_us) or self._is_decidable(row, now_us) for row in rows):
            return {"state": "ready", "wake_us": 0, "waits": None}
        open_rows = [row for row in rows if not row.is_final]
        ends = [row.until_us for row in open_rows if row.waits == "approval" and row.until_us]
        # What is stopped here is woken when that is lifted, and by no clock.
        timed = [row for row in open_rows if row.waits != "resume" or not self._is_stopped(row)]
        wakes = [instant for instant in (wake_at(timed), *ends) if instant]
        found = [row.waits for row in open_rows if row.waits]
        # The store wakes by this word when a stop is lifted; people's answers wake in any case.
        waits = "resume" if "resume" in found else next(iter(found), None)
        return {"state": "waiting", "wake_us": min(wakes, default=0), "waits": waits}

    # --- what the reasoner and the gateway are given ------------------------------------------

    def build_briefing(self) -> Briefing:
        """Return all that a reasoner sees of this run."""
        services, run, agent = self.services, self.run, self.agent
        if agent.collection:
            self.collection_row, self.collection_row_readers = unpack_row(
                services.collection_row(agent.collection, run.key)
            )
        self.previous = services.previous_position(agent.name, run.key, run.position)
        return Briefing(
            run=run.id,
            agent=agent.name,
            key=run.key,
            position=run.position,
            previous=self.previous,
            turn=run.turn + 1,
            event=self.event,
            charter=agent.charter,
            registry=services.registry,
            memories=self.memories,
            row=self.collection_row,
            turns=self.past_turns(),
        )

    def past_turns(self) -> tuple[dict[str, Any], ...]:
        """Return the recorded turns as the reasoner may see them: coarse answers, labelled."""
        if not self.run.turn:
            return ()
        turns = []
        for turn in self.services.store.turns(self.run.id):
            answers = [
                {"tool": row.tool, "ordinal": row.ordinal, **coarse_answer(row)}
                for row in self.actions
                if row.turn == turn["turn"]
            ]
            turns.append(
                {"proposals": turn["proposals"], "label": turn["label"], "answers": answers}
            )
        return tuple(turns)

    def roots(self) -> Roots:
        """Return what a proposal may point at."""
        event = self.event
        answered = [row for row in self.actions if row.answer is not None]
        return Roots(
            event=event.root(),
            vouched=event.vouched,
            charter=self.agent.charter,
            registry=self.services.registry,
            memory={m.id: {"text": m.text, "label": m.label} for m in self.memories},
            trusted_memories=reviewed_ids(self.memories),
            outcome={str(at): answer_data(row) for at, row in enumerate(answered)},
            trusted_outcomes=frozenset(
                str(at)
                for at, row in enumerate(answered)
                if self.agent.tools[row.tool].output == "trusted"
                and "label_output" not in row.obliges
            ),
            row=self.collection_row,
            known=self.services.known_values(self.agent),
            labels=self.labels(),
        )

    def labels(self) -> Labels | None:
        """Return who may read what this run has before it; None if all of it is public.

        What an agent may be taught counts whole: a judge is made of all that its scopes hold.
        """
        row_readers = self.collection_row_readers
        if row_readers is None and self.agent.collection:
            row_readers = unpack_row(
                self.services.collection_row(self.agent.collection, self.run.key)
            )[1]
        answers: dict[str, Readers] = {}
        answered = (row for row in self.actions if row.answer is not None)
        for at, row in enumerate(answered):
            tool = self.agent.tools.get(row.tool)
            readers = frozenset[str]() if tool is None else tool.readers
            if tool is not None and tool.settles == "transactional":
                readers = meet(readers, row_readers)  # it answers with what stood in the row
            args = argument_readers(parse_record(row.record)) if row.record else {}
            answers[f"outcome/{at}"] = meet(readers, *args.values())
        return build_run_labels(self.agent, self.event, self.memories, row_readers, answers)

    def build_decision_context(
        self, rows: Sequence[ActionRow], row: ActionRow, entries: Sequence[EntryRecord], now_us: int
    ) -> DecisionContext:
        """Return what the engine knows while one action is decided.

        `actions` are the run's actions; of several copies of one the last counts. `entries` are the
        entries of the action.
        """
        latest = {other.id: other for other in rows if other.id != row.id}
        return DecisionContext(
            agent=self.agent,
            event=self.event,
            turn=row.turn,
            now_us=now_us,
            memories=self.citations(row),
            actions_in_run=sum(other.effect is not None for other in latest.values()),
            stopped=self.services.stops.is_tool_stopped(self.agent.name, row.tool),
            approval=self.find_approval(row, entries, now_us),
        )

    def citations(self, row: ActionRow) -> list[tuple[str, str]]:
        """Return (cite, trust) of the memories that an action's turn was briefed with."""
        return self.citations_by_turn.get(row.turn) or [(m.cite(), m.trust) for m in self.memories]

    def read_entries(
        self, rows: Sequence[ActionRow], *, to_decide: bool = True
    ) -> Mapping[str, Sequence[EntryRecord]]:
        """Return the entries that rows are proved by, read at once; none for what needs no proof.

        An action that was decided here needs none. But if it is to be decided: an approval came
        from outside, and since when policy denies what may have happened stands in that entry.
        """
        unproved = [
            row.id
            for row in rows
            if row.id not in self.fresh_origins or (to_decide and _needs_entries(row))
        ]
        return self.services.store.proof_entries(unproved) if unproved else {}

    def find_approval(
        self, row: ActionRow, entries: Sequence[EntryRecord], now_us: int
    ) -> Approval | None:
        """Return the approval that a person gave for this action, if the ledger has it.

        One that only the row tells of is none: whoever may answer is asked again.
        """
        given = approval_of(row, now_us)
        if given is None or is_approved(row, entries, self.services.store.is_signed):
            return given
        self.services.metrics.count("rows_refused", agent=self.agent.name, what="approval")
        return None

    def rebuild_action(self, row: ActionRow, entries: Sequence[EntryRecord] = ()) -> Action:
        """Rebuild the exact action of a row, with its origins as they are today.

        `entries` are its entries (`read_entries`), which one that was decided here does not need.

        Raises Superseded if its tool was declared anew, or if charter or registry no longer say
        what an argument was drawn from, or if the row is not what its entries say: then it is not
        the action that was decided.
        """
        tool = self.agent.tools.get(row.tool)
        try:
            record = parse_record(row.record) if row.record else None
        except BadRecord as error:
            raise self._row_mismatch(f"its record cannot be read: {error}") from error
        origins, registry = self.fresh_origins.get(row.id, ({}, None))
        same = registry is self.services.registry
        if not (tool and record and (same or action_digest(tool, record["args"]) == row.digest)):
            raise Superseded(f"the tool {row.tool} is not declared as it was when this was decided")
        if row.id not in self.fresh_origins:
            fault = find_fault(row, entries)
            if fault is not None:
                raise self._row_mismatch(fault)
        if not same:
            reviewed = reviewed_citation_ids(self.citations(row))
            origins = recompute_origins(
                record, self.agent.charter, self.services.registry, reviewed
            )
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
            links=find_argument_links(
                record["args"], origins, lambda: self.services.known_values(self.agent)
            ),
        )

    def _row_mismatch(self, fault: str) -> Superseded:
        """Count a row that is not what its entries say; return what is to be raised."""
        self.services.metrics.count("rows_refused", agent=self.agent.name, what="row")
        return Superseded(f"the row is not what the ledger says: {fault}")

    def end_kind(self, row: ActionRow) -> str:
        """Return the entry of an effect that is not to be: cancelled, or nobody knows."""
        tool = self.agent.tools.get(row.tool)
        settles = None if tool is None else tool.settles
        unsure = (
            row.tries > 0
            or row.waits == "policy"
            or row.effect in ("started", "unknown")
            or self.services.may_have_begun(row, settles, loaded=self.loaded)
        )
        return "effect.unknown" if unsure else "effect.cancelled"

    # --- entries ----------------------------------------------------------------------------

    def body(self, value: Any) -> Body:
        """Return a body that is found by this run's event and subject."""
        return self.body_of(canonical_json(normalize_json(value)))

    def body_of(self, data: bytes) -> Body:
        return Body(data, subject_of(self.event))

    def entry(
        self,
        kind: str,
        *,
        back: int = 0,
        after: int = 0,
        body: Body | None = None,
        **fields: Any,
    ) -> Draft:
        """Return a draft of one of this run's entries.

        Its cause is the entry `back` places before it in the step, or the entry `after`, or else
        the run's last.
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

    def difference_entry(self, row: ActionRow, decision_record: DecisionRecord, back: int) -> Draft:
        """Return the entry that says which engines differed about a permit that is now a deny."""
        about = {"event": self.run.event, "agent": self.agent.name, "action_digest": row.digest}
        found = build_difference_entry(
            decision_record, "permit", action=row.id, tool=row.tool, **about
        )
        return replace(found, cause_offset=back)

    def effect_entry(
        self, kind: str, row: ActionRow, back: int, body: Body | None = None, **more: Any
    ) -> Draft:
        """Return the entry of one change in an effect's life."""
        return self.entry(
            kind, back=back, after=row.last, body=body, action=row.id, tool=row.tool,
            effect_key=row.id.removeprefix("act_"), policy_rev=row.policy_rev,
            tries=row.tries or None, **more,
        )  # fmt: skip

    def final_entry(self, back: int, judgement: ReasonerJudgement | None, settled: int) -> Draft:
        """Return the run's last entry; for an uneventful run it is the only one."""
        fields: dict[str, Any] = {"settled": settled}
        if judgement is not None:
            fields |= judgement_fields(judgement)
            if self.memories:
                fields["memory"] = ",".join(memory.cite() for memory in self.memories)
        return self.entry("run.closed", back=back, **fields)

    # --- steps ------------------------------------------------------------------------------

    def build_step(
        self, drafts: list[Draft], changed: list[ActionRow], now_us: int, **extra: Any
    ) -> Step:
        """Return a step that follows the run as it stands. `changed` are the actions it moves."""
        after = self.merge_actions(changed)
        final = extra.pop("final", self.final)
        return Step(
            drafts=drafts,
            run=self.run.id,
            position=self.run.position,
            agent=self.agent.name,
            expected_steps=self.run.steps,
            entries_before=self.run.entries,
            epoch=self.epoch,
            wait_stop_epoch=self.services.stops.epoch,
            turn=extra.pop("turn", self.run.turn),
            attempts=self.run.attempts,
            observed=extra.pop("observed", self.run.observed),
            actions=changed,
            **self.derive_state(after, final, now_us),
            **extra,
        )

    def reset_places(self, now_us: int) -> None:
        """Begin a step's decisions with what is known of room for actions."""
        self.places = ActionSlots(self.services.current_shortage(self.agent.name, now_us))

    def step_limits(self, permits: int) -> dict[str, Any]:
        """Return what a step with so many new permits has to keep to: parts of a `Step`."""
        caps = self.services.budgets.caps(self.agent.name, self.agent.budget, (ACTIONS,))
        return self.places.step_fields(permits, caps)

    def merge_actions(self, changed: Sequence[ActionRow]) -> list[ActionRow]:
        """Return the run's actions with those of `changed` in the place of what they were."""
        if not self.actions and len(changed) < 2:
            return list(changed)
        by_id = {row.id: row for row in changed}
        return [by_id.pop(row.id, row) for row in self.actions] + list(by_id.values())

    async def commit(self, step: Step, on_sent: Callable[[], None] | None = None) -> None:
        """Make a step durable and move on. Raises Fenced, OverBudget or Superseded.

        `on_sent` is called once the step is on its way: then the key's next event may be judged,
        as if this step stood.
        """
        answer = self.services.store.send(step)
        if on_sent is not None:
            self.services.cache_rows(step.rows)
            on_sent()
        committed = await answer
        for alert in committed.alerts:
            self.services.metrics.count(
                "budget_alerts", agent=alert.name, unit=alert.unit, window=alert.span
            )
        if committed.shortage is not None and committed.shortage.unit == ACTIONS:
            self.services.shortages[self.agent.name] = committed.shortage
        if committed.status is CommitStatus.FENCED_EARLIER:
            raise EarlierEventPending("an earlier event of its key waits to be judged")
        if committed.status is CommitStatus.STATE_ERASED:
            raise Permanent(
                "it comes too late: later events of its key are in the judge's state, which cannot "
                "be made again with it, because content that it was made of was erased"
            )
        if on_sent is not None and committed.status is not CommitStatus.COMMITTED:
            raise Superseded(f"others were judged ahead of this ({committed.status.value})")
        if committed.status in (CommitStatus.FENCED_POLICY, CommitStatus.FENCED_STOP):
            raise Fenced("the live policy or a stop changed")
        if committed.status is CommitStatus.OVER_BUDGET and committed.shortage is not None:
            raise OverBudget(committed.shortage)
        if committed.status is CommitStatus.BUDGET_AVAILABLE:
            self.services.shortages.pop(self.agent.name, None)
            raise Fenced("the budget has room by now")
        if committed.status is not CommitStatus.COMMITTED:
            raise Superseded(f"the run was moved on by somebody else ({committed.status.value})")
        run = self.run
        run.steps += 1
        run.entries += len(step.drafts)
        run.last = committed.last if step.drafts else run.last
        run.state, run.turn, run.wake_us = step.state, step.turn, step.wake_us
        run.waits, run.observed = step.waits, step.observed
        self.actions = self.merge_actions(step.actions)
        if on_sent is None:
            self.services.cache_rows(step.rows)
        if step.state == "done":
            self.services.metrics.count("runs", agent=self.agent.name, state="done")

    def reload(self) -> None:
        """Read the run again after a person's answer moved it on; what ended here stays so.

        Raises StoreFailed, and then nothing is taken in: a run that is newer than its actions
        would pass for one that still waits for the answer that moved it.
        """
        fresh = self.services.store.run(self.run.id)
        if fresh is None:
            raise Superseded("the run is gone")
        rows = self.services.store.actions(fresh.id)
        ended = {row.id: row for row in self.actions if row.is_final}
        self.run, self.actions = fresh, [ended.get(row.id, row) for row in rows]


def _needs_entries(row: ActionRow) -> bool:
    return row.hold in ("approved", "used") or row.waits == "policy"
