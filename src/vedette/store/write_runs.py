"""Accepting events and committing steps: what the line does all day.

Each is looked at first, with everything that can fail; then what it writes is gathered (see
`pending`), which cannot. What a group knows of runs and keys is held here between groups: the
fences are compared with it, and with the database where it is not known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from vedette.domain.base.canonical import canonical
from vedette.domain.budget import FLEET, MINUTE_US, Alert, Shortage
from vedette.domain.entry import Body, Draft
from vedette.domain.ports import Accepted, Arrival, Refused
from vedette.domain.run import Answer, Committed, Run, Step, run_of
from vedette.store.dialect import Database
from vedette.store.ledger_writer import Ledger
from vedette.store.row_mapper import BEFORE, find_position
from vedette.store.schema import tag
from vedette.store.states import is_behind
from vedette.store.write_buffer import Pending

_KNOWN = 65_536
_BATCH = 128
# How many of a key's events that wait to be judged are read at once.
_AHEAD = 32

# A key's events after a position that wait to be judged, oldest first; see `schema.WAITING`.
_WAITING = (
    "SELECT position FROM run WHERE agent=? AND key=? AND state='ready' AND turn=0 "
    "AND position>? ORDER BY position LIMIT ?"
)

_POSITION = (
    "INSERT INTO position(source,value) VALUES(?,?) "
    "ON CONFLICT(source) DO UPDATE SET value=excluded.value"
)


class Fences:
    """What steps are compared with: the live revision, the stop epoch, the worker's epoch."""

    def __init__(self) -> None:
        self.epoch = self.policy_rev = self.stop_epoch = 0


class Steps:
    """Accepts and commits. Only for who writes the group, inside its transaction."""

    def __init__(
        self,
        database: Database,
        ledger: Ledger,
        pending: Pending,
        fences: Fences,
        now_us: Callable[[], int],
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._pending = pending
        self._fences = fences
        self._now_us = now_us
        self._steps: dict[tuple[int, str], int] = {}
        self._heads: dict[tuple[str, str], int] = {}
        self._waiting: dict[tuple[str, str], deque[int]] = {}

    def forget(self) -> None:
        """Forget what is known of runs and keys: a group was lost, or somebody else writes too."""
        self._steps.clear()
        self._heads.clear()
        self._waiting.clear()
        self._pending.totals.forget()

    # --- accept -----------------------------------------------------------------------------

    def accept(
        self, arrivals: Sequence[Arrival | Refused], position: tuple[str, str] | None
    ) -> list[Accepted]:
        """Write a batch: events, the runs they wake, refusals, the source's position.

        Raises ValueError for an arrival that has no canonical form; then nothing of the batch is
        left.
        """
        at_us = self._now_us()
        known = self._known([a.event.key for a in arrivals if isinstance(a, Arrival)])
        mark, before = self._ledger.mark(), self._pending.accepted()
        try:
            accepted = [
                self._refuse(arrival, at_us)
                if isinstance(arrival, Refused)
                else self._arrive(arrival, known, at_us)
                for arrival in arrivals
            ]
        except Exception:
            self._ledger.back_to(mark)
            self._pending.take_back(before)
            raise
        if position is not None:
            self._database.run(_POSITION, position)
        return accepted

    def _known(self, keys: Sequence[str]) -> set[str]:
        """Return which of these events were accepted before."""
        known = {key for key in keys if key in self._pending.keys}
        for at in range(0, len(keys), _BATCH):
            tags = [tag(key) for key in keys[at : at + _BATCH]]
            # Few lengths, so that there are few statements to prepare.
            tags += tags[-1:] * ((1 << (len(tags) - 1).bit_length()) - len(tags))
            sql = f"SELECT key FROM event WHERE tag IN ({','.join('?' * len(tags))})"
            known.update(key for (key,) in self._database.rows(sql, tags))
        return known

    def _arrive(self, arrival: Arrival, known: set[str], at_us: int) -> Accepted:
        event = arrival.event
        key = event.key
        if key in known:
            return Accepted(key, True)
        draft = Draft(
            "event.accepted",
            {"event": key, "woke": len(arrival.wakes), "hops": event.hops or None},
            arrival.cause,
            body=Body(arrival.payload),
        )
        seq = self._ledger.head + 1
        self._ledger.append([draft], None, 0, at_us, seq)
        known.add(key)
        pending = self._pending
        pending.keys.add(key)
        pending.events.append((seq, tag(key), key, arrival.subject))
        runs = []
        for agent, order_key in arrival.wakes:
            run = Run(run_of(key, agent), key, agent, order_key, seq, last=seq)
            pending.runs.append(
                (seq, agent, run.id, order_key, "ready", 0, 0, 0, seq, 0, 0, None, 0, 0)
            )
            self._remember((seq, agent), 0)
            runs.append(run)
        return Accepted(key, False, tuple(runs))

    def _refuse(self, refused: Refused, at_us: int) -> Accepted:
        body = canonical(
            {
                "where": refused.where,
                "why": refused.why,
                "raw": refused.raw[:4096].decode("utf-8", "replace"),
            }
        )
        draft = Draft("event.refused", {"event": refused.event}, body=Body(body))
        seq = self._ledger.append([draft], None, 0, at_us, self._ledger.head + 1)
        self._pending.refused.append((seq, refused.event, refused.subject))
        return Accepted("", False)

    # --- steps ------------------------------------------------------------------------------

    def commit(self, step: Step) -> Committed:
        """Write a step, or say why not. Raises ValueError for what has no canonical form."""
        position, before, successor = step.position, None, 0
        if step.run is not None:
            position = position or find_position(self._database, step.run)
            refused = self._fence(step, position)
            if refused is not None:
                return Committed(refused)
            if step.order is not None:
                before, successor = self._place(step.agent or "", step.order[0], step.order[2])
                if successor and is_behind(
                    self._database, step.agent or "", step.order[0], position
                ):
                    return Committed(Answer.BEHIND)
                if step.order[1] != -1:
                    if step.order[1] != before:
                        return Committed(Answer.FENCED_ORDER)
                    key = (step.agent or "", step.order[0])
                    if not successor and not self._is_next(*key, position):
                        return Committed(Answer.FENCED_EARLIER)
            if self._taken(position, step.agent or "") != step.expects:
                return Committed(Answer.DUPLICATE)
            if step.limits:
                shortage = self._no_room(step)
                if shortage is not None:
                    return Committed(Answer.OVER_BUDGET, shortage=shortage)
                if step.lacking and self._room(step):
                    return Committed(Answer.ROOM)
        rows = [
            ((write.collection, write.key), None if write.row is None else canonical(write.row))
            for write in step.rows
        ]
        at_us = self._now_us()
        first = self._ledger.head + 1
        self._ledger.append(step.drafts, step.run, step.entries_before, at_us, position or None)
        last = self._ledger.head if step.drafts else 0
        if step.run is not None:
            self._move(step, position, before, successor, last)
        for key, data in rows:
            self._pending.rows[key] = (data, first)
        self._write(step, position, first, at_us)
        alerts = self._book(step, last, at_us) if step.spend or step.returns else ()
        return Committed(Answer.COMMITTED, last, alerts=alerts)

    def _book(self, step: Step, last: int, at_us: int) -> tuple[Alert, ...]:
        """Count what a step spends and gives back; write the alerts that this brings."""
        agent, pending = step.agent or "", self._pending
        for unit, amount in step.spend.items():
            pending.add_spend(agent, unit, at_us // MINUTE_US, amount)
        for unit, spent_us, amount in step.returns:
            pending.add_spend(agent, unit, spent_us // MINUTE_US, -amount)
        pending.totals.book(agent, step.spend, step.returns, at_us)
        if step.returns:
            # Somebody may wait for just this room: of the agent, or of the fleet.
            pending.room[agent] = pending.room.get(agent, 0) + 1
            pending.room[FLEET] = pending.room.get(FLEET, 0) + 1
        alerts = pending.totals.alerts(agent, step.limits, step.spend, at_us)
        for alert in alerts:
            scope = "fleet" if alert.name == FLEET else "agent"
            fields = {
                "agent": alert.name or None, "scope": scope, "unit": alert.unit,
                "window": alert.span, "limit": alert.limit, "amount": alert.total,
            }  # fmt: skip
            self._ledger.append([Draft("budget.alerted", fields, last or None)], None, 0, at_us)
        return tuple(alerts)

    def _fence(self, step: Step, position: int) -> Answer | None:
        fences = self._fences
        if step.epoch != self.epoch_of(position, step):
            return Answer.FENCED_LEASE
        if step.policy_rev is not None and step.policy_rev != fences.policy_rev:
            return Answer.FENCED_POLICY
        if step.stop_epoch is not None and step.stop_epoch != fences.stop_epoch:
            return Answer.FENCED_STOP
        return None

    def _no_room(self, step: Step) -> Shortage | None:
        """Return the limit that has no room for what the step would spend."""
        totals, now_us = self._pending.totals, self._now_us()
        return totals.shortage(step.agent or "", step.limits, step.spend, step.returns, now_us)

    def _room(self, step: Step) -> bool:
        """Say whether there is room by now for what the step says there is none for."""
        wanted = {unit: amount + step.spend.get(unit, 0) for unit, amount in step.lacking.items()}
        totals, now_us = self._pending.totals, self._now_us()
        agent = step.agent or ""
        return totals.shortage(agent, step.limits, wanted, step.returns, now_us) is None

    def epoch_of(self, position: int, step: Step) -> int:
        """Return the epoch under which a step's run may be moved on. One worker: its own."""
        return self._fences.epoch

    def _taken(self, position: int, agent: str) -> int:
        """Return how many steps a run has taken; -1 if there is none."""
        known = self._steps.get((position, agent))
        if known is None:
            sql = "SELECT steps FROM run WHERE position=? AND agent=?"
            rows = self._database.rows(sql, (position, agent))
            known = int(rows[0][0]) if rows else -1
        return known

    def _remember(self, run: tuple[int, str], steps: int) -> None:
        self._steps[run] = steps
        if len(self._steps) > _KNOWN:
            self._steps.pop(next(iter(self._steps)))

    def _place(self, agent: str, key: str, position: int) -> tuple[int, int]:
        """Return the last observed position of a key before one, and the first after it (or 0)."""
        head = self._heads.get((agent, key))
        if head is None:
            sql = "SELECT position FROM head WHERE agent=? AND key=?"
            rows = self._database.rows(sql, (agent, key))
            head = self._heads[(agent, key)] = int(rows[0][0]) if rows else 0
            if len(self._heads) > _KNOWN:
                self._heads.pop(next(iter(self._heads)))
        if head <= position:
            return head, 0
        # A later event of the key was observed without this one: it may still be made up for.
        self._pending.flush()
        rows = self._database.rows(BEFORE, (agent, key, agent, position, position))
        return int(rows[0][0]), int(rows[0][1])

    def _is_next(self, agent: str, key: str, position: int) -> bool:
        """Say whether a key's event passes over none: nothing after the head waits before it."""
        known = self._waiting.get((agent, key))
        if not known or known[0] != position:
            # What was read may have ended otherwise. What this group has judged is up to the head.
            rows = self._database.rows(_WAITING, (agent, key, self._heads[(agent, key)], _AHEAD))
            known = deque(int(at) for (at,) in rows)
            if known and known[0] < position:
                return False
            self._waiting[(agent, key)] = known
            if len(self._waiting) > _KNOWN:
                self._waiting.pop(next(iter(self._waiting)))
        return True

    def _move(
        self, step: Step, position: int, prior: int | None, successor: int, last: int
    ) -> None:
        agent = step.agent or ""
        if step.order is not None:
            key, _, at = step.order
            if successor:
                self._pending.relinks.append((at, successor, agent))
                # What is kept of later events lacks this one; it is made anew of what is there.
                self._pending.stale.append((agent, key, at))
            else:
                self._heads[(agent, key)] = self._pending.heads[(agent, key)] = at
                # Only now: a step that was looked at may still have been refused.
                waiting = self._waiting.get((agent, key))
                if waiting and waiting[0] == at:
                    waiting.popleft()
        # Who made it may not have known of a resume yet, which has woken all that waited till then.
        late = step.waits == "resume" and step.stops != self._fences.stop_epoch
        wake_us = 1 if late else step.wake_us
        self._pending.step(
            (
                position, agent, "", "", step.state, step.expects + 1,
                step.entries_before + len(step.drafts), step.turn, last, step.attempts,
                wake_us, step.waits, int(step.observed), -1 if prior is None else prior,
            )
        )  # fmt: skip
        self._remember((position, agent), step.expects + 1)

    def _write(self, step: Step, position: int, first: int, at_us: int) -> None:
        pending = self._pending
        if step.actions:
            lasts = {
                draft.fields["action"]: first + offset
                for offset, draft in enumerate(step.drafts)
                if "action" in draft.fields
            }
            for row in step.actions:
                row.last = lasts.get(row.id, row.last)
                pending.action(position, row, first)
        if step.checkpoint is not None:
            key, at, blob = step.checkpoint
            pending.states[(step.agent or "", key)] = (at, blob)
