"""Events accepted and steps committed in the store's transaction: what the line does all day.

Each is looked at first, with everything that can fail; then what it writes is gathered (see
`write_buffer`), which cannot. What a group knows of runs and keys is held here between groups: the
fences are compared with it, and with the database where it is not known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import replace

from vedette.domain.base.canonical import canonical_json
from vedette.domain.budget import FLEET, MINUTE_US, Alert, Shortage
from vedette.domain.entry import Body, Draft
from vedette.domain.event_wait import WAITS
from vedette.domain.ports.run_store import AcceptResult, Arrival
from vedette.domain.ports.sources import Refused
from vedette.domain.run import CommitResult, CommitStatus, Run, Step, event_run_id
from vedette.store.dialect import Database
from vedette.store.event_waits import EventWaits
from vedette.store.ledger_writer import LedgerWriter
from vedette.store.row_mapper import FIND_PRIOR, find_position
from vedette.store.run_wakes import are_open, wake_run
from vedette.store.schema import in_list, tag
from vedette.store.states import is_too_late
from vedette.store.write_buffer import WriteBuffer

_CACHE_SIZE = 65_536
_BATCH = 128
# How many of a key's events that wait to be judged are read at once.
_READ_AHEAD = 32

# A key's events after a position that wait to be judged, oldest first; see `schema.WAITING`.
_UNJUDGED = (
    "SELECT agent, key, position FROM run WHERE agent=? AND key=? AND state='ready' AND turn=0 "
    "AND position>? ORDER BY position LIMIT ?"
)

_HEAD = "SELECT agent, key, position FROM head WHERE agent=? AND key=? LIMIT 1"
_STEP_COUNT = "SELECT position, agent, steps FROM run WHERE position=? AND agent=? LIMIT 1"

_POSITION = (
    "INSERT INTO position(source,value) VALUES(?,?) "
    "ON CONFLICT(source) DO UPDATE SET value=excluded.value"
)


class Fences:
    """The fences a store compares steps with: live revision, stop epoch, the worker's epoch."""

    def __init__(self) -> None:
        self.epoch = self.policy_rev = self.stop_epoch = 0

    def epoch_of(self, step: Step) -> int:
        """Return the epoch under which a step's run may be moved on; -1: none. Alone: our own."""
        return self.epoch


class StepWriter:
    """The store's writer of events and steps. Only for who writes the group, in its transaction."""

    def __init__(
        self,
        database: Database,
        ledger: LedgerWriter,
        buffer: WriteBuffer,
        fences: Fences,
        now_us: Callable[[], int],
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._buffer = buffer
        self._fences = fences
        self._now_us = now_us
        self._step_counts: dict[tuple[int, str], int] = {}
        self._positions: dict[tuple[str, str], int] = {}
        self._unjudged: dict[tuple[str, str], deque[int]] = {}
        self._waits = EventWaits(database, ledger)

    def forget(self) -> None:
        """Forget what is known of runs and keys: a group was lost, or somebody else writes too."""
        self._step_counts.clear()
        self._positions.clear()
        self._unjudged.clear()
        self._buffer.totals.clear()
        self._waits.forget()

    def forget_waits(self) -> None:
        """Forget which events are waited for: another worker committed something."""
        self._waits.forget()

    def _trim(self) -> None:
        """Let go of what was learned first, where that is too much.

        Not while the group has runs or moves that are not written yet: the tables lack them.
        """
        if self._buffer.runs or self._buffer.steps:
            return
        caches: tuple[dict[Any, Any], ...] = (self._step_counts, self._positions, self._unjudged)
        for known in caches:
            for key in list(islice(known, max(0, len(known) - _CACHE_SIZE))):
                del known[key]

    def read_ahead(self, steps: Sequence[Step]) -> None:
        """Read at once what is not known of the runs and keys of a group's steps.

        For where a query costs more than its answer; each step asks for itself what is missing.
        """
        ask = self._database.rows_of_each
        runs = {(one.position, one.agent or "") for one in steps if one.position}
        for position, agent, count in ask(_STEP_COUNT, sorted(runs - self._step_counts.keys())):
            self._step_counts[(position, agent)] = int(count)
        keys = {(one.agent or "", one.order[0]) for one in steps if one.order is not None}
        if unknown := sorted(keys - self._positions.keys()):
            found = {(agent, key): int(at) for agent, key, at in ask(_HEAD, unknown)}
            self._positions |= {one: found.get(one, 0) for one in unknown}
        idle = sorted(key for key in keys if not self._unjudged.get(key))
        waiting: dict[tuple[str, str], deque[int]] = {key: deque() for key in idle}
        after = [(*key, self._positions[key], _READ_AHEAD) for key in idle]
        for agent, key, position in sorted(ask(_UNJUDGED, after)):
            waiting[(agent, key)].append(int(position))
        self._unjudged |= waiting

    # --- accept -----------------------------------------------------------------------------

    def accept(
        self, arrivals: Sequence[Arrival | Refused], position: tuple[str, str] | None
    ) -> list[AcceptResult]:
        """Write a batch: events, the runs they wake, refusals, the source's position.

        Raises ValueError for an arrival that has no canonical form; then nothing of the batch is
        left.
        """
        at_us = self._now_us()
        self._trim()
        # Each is a digest: made once.
        keys = ["" if isinstance(each, Refused) else each.event.key for each in arrivals]
        known = self._find_known([key for key in keys if key])
        # Where nobody waits, as in most stores, nothing is looked at.
        waiting = {} if self._waits.types == set() else self._find_waiting(arrivals)
        mark, before = self._ledger.mark(), self._buffer.mark()
        try:
            accepted = [
                self._write_refusal(arrival, at_us)
                if isinstance(arrival, Refused)
                else self._accept_event(arrival, key, known, at_us)
                for arrival, key in zip(arrivals, keys, strict=True)
            ]
        except Exception:
            self._ledger.rollback_to(mark)
            self._buffer.rollback_to(before)
            raise
        if position is not None:
            self._database.execute(_POSITION, position)
        return self._wake_waiting(waiting, accepted) if waiting else accepted

    def _find_waiting(self, arrivals: Sequence[Arrival | Refused]) -> dict[int, list[str]]:
        """Return the rows of those who wait for what arrives, by its place in the batch.

        Before anything of it is written: what it says of itself can be at fault.
        """
        found: dict[int, list[str]] = {}
        for at, arrival in enumerate(arrivals):
            if isinstance(arrival, Refused) or arrival.over_hops:
                continue
            if self._waits.is_awaited(arrival.event):
                self._buffer.flush()
                if keys := self._waits.find(arrival.event):
                    found[at] = keys
        return found

    def _wake_waiting(
        self, waiting: dict[int, list[str]], accepted: list[AcceptResult]
    ) -> list[AcceptResult]:
        """Wake the runs that wait for what was accepted; say so in the answers."""
        woken: set[str] = set()
        for at, keys in waiting.items():
            answer = accepted[at]
            if answer.duplicate:
                continue
            fresh = [key for key in keys if key not in woken]
            woken.update(fresh)
            runs = []
            for position, agent, run in self._waits.wake(fresh, answer.seq, answer.at_us):
                self._step_counts.pop((position, agent), None)
                self._buffer.has_wakes = True
                runs.append(run)
            accepted[at] = replace(answer, woken=tuple(runs))
        return accepted

    def _find_known(self, keys: Sequence[str]) -> set[str]:
        """Return which of these events were accepted before."""
        known = {key for key in keys if key in self._buffer.event_keys}
        for at in range(0, len(keys), _BATCH):
            tags = [tag(key) for key in keys[at : at + _BATCH]]
            marks, values = in_list(tags)
            sql = f"SELECT key FROM event WHERE tag IN ({marks})"
            known.update(key for (key,) in self._database.rows(sql, values))
        return known

    def _accept_event(
        self, arrival: Arrival, key: str, known: set[str], at_us: int
    ) -> AcceptResult:
        if key in known:
            return AcceptResult(key, True)
        draft = Draft(
            "event.accepted",
            {"event": key, "woke": len(arrival.wakes), "hops": arrival.event.hops or None},
            arrival.cause,
            body=Body(arrival.body),
        )
        seq = self._ledger.last_seq + 1
        self._ledger.append([draft], None, 0, at_us, seq)
        known.add(key)
        buffer = self._buffer
        buffer.event_keys.add(key)
        buffer.events.append((seq, tag(key), key, arrival.subject))
        runs = []
        for agent, order_key in arrival.wakes:
            run = Run(event_run_id(key, agent), key, agent, order_key, seq, last=seq)
            buffer.runs.append(
                (seq, agent, run.id, order_key, "ready", 0, 0, 0, seq, 0, 0, None, 0, 0)
            )
            self._step_counts[(seq, agent)] = 0
            runs.append(run)
        return AcceptResult(key, False, tuple(runs), at_us, seq)

    def _write_refusal(self, refused: Refused, at_us: int) -> AcceptResult:
        body = canonical_json(
            {
                "where": refused.where,
                "why": refused.why,
                "raw": refused.raw[:4096].decode("utf-8", "replace"),
            }
        )
        draft = Draft("event.refused", {"event": refused.event}, body=Body(body))
        seq = self._ledger.append([draft], None, 0, at_us, self._ledger.last_seq + 1)
        self._buffer.refusals.append((seq, refused.event, refused.subject))
        return AcceptResult("", False)

    # --- steps ------------------------------------------------------------------------------

    def commit(self, step: Step) -> CommitResult:
        """Write a step, or say why not. Raises ValueError for what has no canonical form."""
        at_us = self._now_us()
        self._trim()
        position, before, successor = step.position, None, 0
        if step.run is not None:
            position = position or find_position(self._database, step.run)
            refused = self._check_fences(step)
            if refused is not None:
                return CommitResult(refused)
            if step.order is not None:
                before, successor = self._find_neighbours(
                    step.agent or "", step.order[0], step.order[2]
                )
                if successor and is_too_late(
                    self._database, step.agent or "", step.order[0], position
                ):
                    return CommitResult(CommitStatus.STATE_ERASED)
                if step.order[1] != -1:
                    if step.order[1] != before:
                        return CommitResult(CommitStatus.FENCED_ORDER)
                    key = (step.agent or "", step.order[0])
                    if not successor and not self._is_next(*key, position):
                        return CommitResult(CommitStatus.FENCED_EARLIER)
            if self._step_count(position, step.agent or "") != step.expected_steps:
                return CommitResult(CommitStatus.DUPLICATE)
            if step.wakes:
                self._buffer.flush()  # what the group has of them so far
                if not are_open(self._database, step.wakes):
                    return CommitResult(CommitStatus.FENCED_RUN)
            if step.limits:
                shortage = self._find_shortage(step, at_us)
                if shortage is not None:
                    return CommitResult(CommitStatus.OVER_BUDGET, shortage=shortage)
                if step.shortfall and self._has_budget(step, at_us):
                    return CommitResult(CommitStatus.BUDGET_AVAILABLE)
        rows = [
            (
                (write.collection, write.key),
                None if write.row is None else canonical_json(write.row),
            )
            for write in (*step.rows, *step.own_rows)
        ]
        last = self._ledger.append(
            step.drafts, step.run, step.entries_before, at_us, position or None
        )
        first = last + 1 - len(step.drafts)
        last = last if step.drafts else 0
        if step.run is not None:
            self._move_run(step, position, before, successor, last)
        for key, data in rows:
            self._buffer.rows[key] = (data, first)
        for write in step.own_rows:
            if write.collection == WAITS:
                self._waits.note_written(write.key)
        self._write_actions(step, position, first, at_us)
        for wake in step.wakes:
            self._buffer.flush()
            woken = wake_run(self._database, self._ledger, wake, at_us)
            self._step_counts.pop(woken, None)
            self._buffer.has_wakes = True
        alerts = self._book_spend(step, last, at_us) if step.spend or step.refunds else ()
        if step.escrow or step.returned:
            self._set_aside(step, at_us)
        return CommitResult(CommitStatus.COMMITTED, last, alerts=alerts)

    def _book_spend(self, step: Step, last: int, at_us: int) -> tuple[Alert, ...]:
        """Count what a step spends and gives back; write the alerts that this brings."""
        agent, buffer = step.agent or "", self._buffer
        for unit, amount in step.spend.items():
            buffer.add_spend(agent, unit, at_us // MINUTE_US, amount)
        for unit, spent_us, amount in step.refunds:
            buffer.add_spend(agent, unit, spent_us // MINUTE_US, -amount)
        buffer.totals.book(agent, step.spend, step.refunds, at_us)
        if step.refunds:
            # Somebody may wait for just this room: of the agent, or of the fleet.
            buffer.freed_budgets[agent] = buffer.freed_budgets.get(agent, 0) + 1
            buffer.freed_budgets[FLEET] = buffer.freed_budgets.get(FLEET, 0) + 1
        alerts = buffer.totals.record_alerts(agent, step.limits, step.spend, at_us)
        for alert in alerts:
            scope = "fleet" if alert.name == FLEET else "agent"
            fields = {
                "agent": alert.name or None, "scope": scope, "unit": alert.unit,
                "window": alert.span, "limit": alert.limit, "amount": alert.total,
            }  # fmt: skip
            self._ledger.append([Draft("budget.alerted", fields, last or None)], None, 0, at_us)
        return tuple(alerts)

    def _set_aside(self, step: Step, at_us: int) -> None:
        """Count what a step sets aside for a child's run, and what is given back of such."""
        agent, buffer = step.agent or "", self._buffer
        buffer.totals.set_aside(agent, step.escrow, step.returned, at_us)
        if step.returned:
            # Somebody may wait for just this room.
            buffer.freed_budgets[agent] = buffer.freed_budgets.get(agent, 0) + 1

    def _check_fences(self, step: Step) -> CommitStatus | None:
        fences = self._fences
        if step.epoch != fences.epoch_of(step):
            return CommitStatus.FENCED_LEASE
        if step.policy_rev is not None and step.policy_rev != fences.policy_rev:
            return CommitStatus.FENCED_POLICY
        if step.stop_epoch is not None and step.stop_epoch != fences.stop_epoch:
            return CommitStatus.FENCED_STOP
        return None

    def _find_shortage(self, step: Step, now_us: int) -> Shortage | None:
        """Return the limit that has no room for what the step would spend."""
        totals, agent = self._buffer.totals, step.agent or ""
        return totals.find_shortage(
            agent, step.limits, step.spend, step.refunds, now_us, step.escrow
        )

    def _has_budget(self, step: Step, now_us: int) -> bool:
        """Say whether there is room by now for what the step says there is none for."""
        wanted = {unit: amount + step.spend.get(unit, 0) for unit, amount in step.shortfall.items()}
        totals, agent = self._buffer.totals, step.agent or ""
        found = totals.find_shortage(agent, step.limits, wanted, step.refunds, now_us, step.escrow)
        return found is None

    def _step_count(self, position: int, agent: str) -> int:
        """Return how many steps a run has taken; -1 if there is none."""
        known = self._step_counts.get((position, agent))
        if known is None:
            rows = self._database.rows(_STEP_COUNT, (position, agent))
            known = int(rows[0][2]) if rows else -1
        return known

    def _find_neighbours(self, agent: str, key: str, position: int) -> tuple[int, int]:
        """Return the last observed position of a key before one, and the first after it (or 0)."""
        head = self._positions.get((agent, key))
        if head is None:
            rows = self._database.rows(_HEAD, (agent, key))
            head = int(rows[0][2]) if rows else 0
            self._positions[(agent, key)] = head
        if head <= position:
            return head, 0
        # A later event of the key was observed without this one: it may still be made up for.
        self._buffer.flush()
        rows = self._database.rows(FIND_PRIOR, (agent, key, agent, position, position))
        return int(rows[0][0]), int(rows[0][1])

    def _is_next(self, agent: str, key: str, position: int) -> bool:
        """Say whether a key's event passes over none: nothing after the head waits before it."""
        known = self._unjudged.get((agent, key))
        if not known or known[0] != position:
            # What was read may have ended otherwise. What this group has judged is up to the head.
            rows = self._database.rows(
                _UNJUDGED, (agent, key, self._positions[(agent, key)], _READ_AHEAD)
            )
            known = deque(int(row[2]) for row in rows)
            if known and known[0] < position:
                return False
            self._unjudged[(agent, key)] = known
        return True

    def _move_run(
        self, step: Step, position: int, prior: int | None, successor: int, last: int
    ) -> None:
        agent = step.agent or ""
        if step.order is not None:
            key, _, at = step.order
            if successor:
                self._buffer.relinks.append((at, successor, agent))
                # What is kept of later events lacks this one; it is made anew of what is there.
                self._buffer.stale_states.append((agent, key, at))
            else:
                self._positions[(agent, key)] = self._buffer.positions[(agent, key)] = at
                # Only now: a step that was looked at may still have been refused.
                waiting = self._unjudged.get((agent, key))
                if waiting and waiting[0] == at:
                    waiting.popleft()
        # Who made it may not have known of a resume yet, which has woken all that waited till then.
        late = step.waits == "resume" and step.wait_stop_epoch != self._fences.stop_epoch
        wake_us = 1 if late else step.wake_us
        # Its id and key stay as they are.
        self._buffer.steps.append(
            (
                position, agent, "", "", step.state, step.expected_steps + 1,
                step.entries_before + len(step.drafts), step.turn, last, step.attempts,
                wake_us, step.waits, int(step.observed), -1 if prior is None else prior,
            )
        )  # fmt: skip
        self._step_counts[(position, agent)] = step.expected_steps + 1

    def _write_actions(self, step: Step, position: int, first: int, at_us: int) -> None:
        buffer = self._buffer
        if step.actions:
            lasts = {
                draft.fields["action"]: first + offset
                for offset, draft in enumerate(step.drafts)
                if "action" in draft.fields
            }
            for row in step.actions:
                row.last = lasts.get(row.id, row.last)
                buffer.add_action(position, row, first)
        if step.checkpoint is not None:
            key, at, blob = step.checkpoint
            buffer.states[(step.agent or "", key)] = (at, blob)
