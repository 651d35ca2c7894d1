"""The store on SQLite: WAL, full sync, one writer with group commit (see `writer`).

The runner owns the file: it holds an exclusive lock beside it for as long as it lives, so a
second runner is refused; anybody may open it read-only at any time.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, TypeVar

import orjson

from vedette.adapters.sqlite.erase import WAIT_MS, erase, scrub
from vedette.adapters.sqlite.ledger import Ledger, check_witness
from vedette.adapters.sqlite.reads import ACTION, Reads, to_action
from vedette.adapters.sqlite.schema import open_database
from vedette.adapters.sqlite.writer import Writer
from vedette.approval import HoldState, move
from vedette.budget import DAY_US, MINUTE_US, window_start
from vedette.bundle import Bundle
from vedette.digest import canonical
from vedette.entry import Body, Draft
from vedette.errors import AlreadyDone, BadCommand, BadStore, StoreBusy
from vedette.ports import Accepted, Arrival, Erased, Refused
from vedette.proof import SigningKey
from vedette.run import ActionRow, Answer, Committed, Run, Step, run_id

T = TypeVar("T")

_OBSERVED = 65_536

_RUN = "INSERT INTO run VALUES(?,?,?,?,?,'ready',0,0,0,?,0,0,NULL,0)"
_STEP = (
    "UPDATE run SET state=?, steps=steps+1, entries=?, turn=?, last=COALESCE(?,last), attempts=?, "
    "wake_us=?, "
    "waits=?, observed=? WHERE id=? AND steps=?"
)
_ACTION = f"INSERT OR REPLACE INTO action({ACTION}) VALUES({','.join('?' * 24)})"
_SPEND = (
    "INSERT INTO spend VALUES(?,?,?,?) ON CONFLICT(agent,unit,minute) "
    "DO UPDATE SET amount=amount+excluded.amount"
)


class SqliteStore(Reads):
    """One fleet's durable state. See `vedette.ports.Store`; all writes answer after COMMIT."""

    def __init__(
        self,
        folder: Path,
        *,
        fleet: str,
        key: SigningKey,
        key_name: str,
        now_us: Callable[[], int],
        synchronous: str = "FULL",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._observed: dict[tuple[str, str], int] = {}
        self._now_us = now_us
        with ExitStack() as undo:
            self._lock = undo.enter_context(_own(folder / "runner.lock"))
            self._write = open_database(folder / "store.db", write=True, synchronous=synchronous)
            undo.callback(self._write.close)
            # A runner that was killed after an erasure may have left the log uncut.
            self._uncut, self._wait_ms = not scrub(self._write), 0
            super().__init__(open_database(folder / "store.db", write=False))
            undo.callback(self._connection.close)
            self._take_over(folder, fleet, key, key_name)
            undo.pop_all()

    def _take_over(self, folder: Path, fleet: str, key: SigningKey, key_name: str) -> None:
        """Check that the store is this fleet's and whole, and begin a new epoch."""
        named = self.meta("fleet")
        if named not in (None, fleet):
            raise BadStore(
                f"this store belongs to the fleet {named!r}, not {fleet!r}",
                where=str(folder),
                mend="use another state folder or the fleet's own name",
            )
        check_witness(self._write, folder / "witness.log")
        ledger = Ledger(
            self._write,
            origin=f"vedette/{fleet}",
            key_name=key_name,
            key=key,
            witness=folder / "witness.log",
            now_us=self._now_us,
        )
        self._ledger = ledger
        self.epoch = int(self.meta("epoch") or 0) + 1
        self._read_fences()
        with self._write:
            self._set_meta("fleet", fleet)
            self._set_meta("epoch", self.epoch)
        self.writer = Writer(self._write, ledger, self._read_fences, self._cut_log)

    def _read_fences(self) -> None:
        """Take policy revision, stop epoch and order from what stands in the transaction.

        A publication, a stop or a step moves them as soon as it has its place in a group; if the
        item or the group is lost they must not stay ahead of the store, or every later step would
        be refused.
        """
        self._observed.clear()
        revision = self._fetch("SELECT COALESCE(MAX(number),0) FROM policy")
        stop = self._fetch("SELECT value FROM meta WHERE name='stop_epoch'")
        self.policy_rev, self.stop_epoch = int(revision[0][0]), int(stop[0][0]) if stop else 0

    def close(self) -> None:
        """Commit what is queued, close the file and let the next runner in."""
        self.writer.close()
        self._connection.close()
        self._write.close()
        self._lock.close()

    @property
    def ready(self) -> bool:
        """Say whether the last commit stood."""
        return self.writer.ready

    # --- accept -----------------------------------------------------------------------------

    async def accept(
        self, arrivals: Sequence[Arrival | Refused], position: tuple[str, str] | None
    ) -> list[Accepted]:
        """Make a batch durable: events, the runs they wake, refusals, the source's position."""
        return await self.writer.submit(lambda: self._accept(arrivals, position))

    def _accept(
        self, arrivals: Sequence[Arrival | Refused], position: tuple[str, str] | None
    ) -> list[Accepted]:
        at_us = self._now_us()
        accepted = [
            self._refuse(arrival, at_us)
            if isinstance(arrival, Refused)
            else self._arrive(arrival, at_us)
            for arrival in arrivals
        ]
        if position is not None:
            self._write.execute("INSERT OR REPLACE INTO position VALUES(?,?)", position)
        return accepted

    def _arrive(self, arrival: Arrival, at_us: int) -> Accepted:
        event = arrival.event
        key = event.key
        execute = self._write.execute
        execute("INSERT OR IGNORE INTO event VALUES(?,?)", (key, self._ledger.head + 1))
        if not self._write.changes():
            return Accepted(key, True)
        draft = Draft(
            "event.accepted",
            {"event": key, "woke": len(arrival.wakes), "hops": event.hops or None},
            body=Body(arrival.payload, arrival.subject),
        )
        seq = self._ledger.append([draft], None, 0, at_us)
        runs = []
        for agent, order_key in arrival.wakes:
            run = Run(run_id(event.source, event.id, agent), key, agent, order_key, seq, last=seq)
            execute(_RUN, (run.id, key, agent, order_key, seq, seq))
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
        draft = Draft("event.refused", {"event": refused.event}, body=Body(body, refused.subject))
        self._ledger.append([draft], None, 0, at_us)
        return Accepted("", False)

    # --- steps ------------------------------------------------------------------------------

    def send(self, step: Step) -> asyncio.Future[Committed]:
        """Queue a step now, in the order of calls; the future has its answer after COMMIT."""
        return self.writer.enqueue(lambda: self._commit(step))

    async def commit(self, step: Step) -> Committed:
        """Make a step durable, or say why not: see `Answer`."""
        return await self.send(step)

    def _commit(self, step: Step) -> Committed:
        refused = self._fence(step)
        if refused is not None:
            return Committed(refused)
        first = self._ledger.head + 1
        last = self._ledger.head + len(step.drafts) if step.drafts else None
        if step.run is not None:
            entries = step.entries_before + len(step.drafts)
            self._write.execute(
                _STEP,
                (
                    step.state, entries, step.turn, last, step.attempts, step.wake_us, step.waits,
                    int(step.observed), step.run, step.expects,
                ),
            )  # fmt: skip
            if not self._write.changes():
                return Committed(Answer.DUPLICATE)
        if step.order is not None:
            # Taken back as a whole if the item or the group fails: then it is read anew.
            place = (step.agent or "", step.order[0])
            self._observed[place] = max(step.order[2], self._observed.get(place, 0))
        at_us = self._now_us()
        self._ledger.append(step.drafts, step.run, step.entries_before, at_us)
        self._write_content(step, first, at_us)
        return Committed(Answer.COMMITTED, last or 0)

    def _last_observed(self, agent: str, key: str) -> int:
        """Return the position of the last observed event of a key, as of this transaction."""
        known = self._observed.get((agent, key))
        if known is None:
            known = self._observed_before(agent, key, 2**62)
            self._observed[(agent, key)] = known
            if len(self._observed) > _OBSERVED:
                self._observed.pop(next(iter(self._observed)))
        return known

    def _observed_before(self, agent: str, key: str, position: int) -> int:
        rows = self._fetch(
            "SELECT position FROM run WHERE agent=? AND key=? AND position<? AND observed=1 "
            "ORDER BY position DESC LIMIT 1",
            agent, key, position,
        )  # fmt: skip
        return int(rows[0][0]) if rows else 0

    def _fence(self, step: Step) -> Answer | None:
        if step.run is None:
            return None
        if step.epoch != self.epoch:
            return Answer.FENCED_LEASE
        if step.policy_rev is not None and step.policy_rev != self.policy_rev:
            return Answer.FENCED_POLICY
        if step.stop_epoch is not None and step.stop_epoch != self.stop_epoch:
            return Answer.FENCED_STOP
        for unit, cap in step.caps.items():
            since = window_start(self._now_us(), DAY_US) // MINUTE_US
            ((spent,),) = self._fetch(
                "SELECT COALESCE(SUM(amount),0) FROM spend WHERE agent=? AND unit=? AND minute>=?",
                step.agent, unit, since,
            )  # fmt: skip
            if spent + step.spend.get(unit, 0) > cap:
                return Answer.OVER_BUDGET
        if step.order is not None:
            key, before, position = step.order
            last = self._last_observed(step.agent or "", key)
            if last > position:
                # A later event of the key was observed without this one: it may still be made up.
                last = self._observed_before(step.agent or "", key, position)
            if last != before:
                return Answer.FENCED_ORDER
        return None

    def _write_content(self, step: Step, first: int, at_us: int) -> None:
        execute = self._write.execute
        lasts = {
            draft.fields["action"]: first + offset
            for offset, draft in enumerate(step.drafts)
            if "action" in draft.fields
        }
        for action in step.actions:
            action.seq = action.seq or first
            action.last = lasts.get(action.id, action.last)
            execute(_ACTION, _action_row(action))
        for write in step.rows:
            if write.row is None:
                execute(
                    "DELETE FROM row WHERE collection=? AND key=?", (write.collection, write.key)
                )
            else:
                execute(
                    "INSERT OR REPLACE INTO row VALUES(?,?,?,?)",
                    (write.collection, write.key, canonical(dict(write.row)), first),
                )
        for unit, amount in step.spend.items():
            execute(_SPEND, (step.agent, unit, at_us // MINUTE_US, amount))
        for unit, spent_us, amount in step.returns:
            execute(_SPEND, (step.agent, unit, spent_us // MINUTE_US, -amount))
        if step.checkpoint is not None:
            key, position, blob = step.checkpoint
            execute(
                "INSERT OR REPLACE INTO state VALUES(?,?,?,?)", (step.agent, key, position, blob)
            )
        for offset, candidate in enumerate(step.candidates):
            execute(
                "INSERT INTO candidate VALUES(?,?,?,?,?,?)",
                (
                    first * 100 + offset, candidate.bank, candidate.scope, candidate.agent,
                    candidate.run, candidate.event,
                ),
            )  # fmt: skip

    # --- policy, stops, holds ---------------------------------------------------------------

    async def publish(
        self, bundle: Bundle, drafts: Sequence[Draft], *, command: str | None = None
    ) -> int:
        """Make a bundle the live revision; steps made under older ones are refused from here on.

        `drafts` are written with the new number in their `policy_rev`. Returns the number.
        """
        return await self.writer.submit(self._once(command, lambda: self._publish(bundle, drafts)))

    def _publish(self, bundle: Bundle, drafts: Sequence[Draft]) -> int:
        number = self.policy_rev + 1
        self.keep_bundle(bundle)
        placed = [
            Draft(d.kind, {**d.fields, "policy_rev": number}, d.cause, d.back, d.body)
            for d in drafts
        ]
        at_us = self._now_us()
        seq = self._ledger.append(placed, None, 0, at_us)
        self._write.execute(
            "INSERT INTO policy VALUES(?,?,?,?)", (number, bundle.digest, seq, at_us)
        )
        # Only the writer's thread compares steps with this, so steps behind us see it at once.
        self.policy_rev = number
        return number

    def keep_bundle(self, bundle: Bundle) -> None:
        """Store a bundle's bytes, before its first use. On the writer's thread only."""
        files = {path: raw.decode("utf-8") for path, raw in bundle.files.items()}
        self._write.execute(
            "INSERT OR IGNORE INTO bundle VALUES(?,?)", (bundle.digest, orjson.dumps(files))
        )

    async def stop(
        self, draft: Draft, scope: str, name: str, on: bool, *, command: str | None = None
    ) -> int:
        """Set or lift a stop; return the new stop epoch. Raises BadCommand if it is so already."""
        return await self.writer.submit(
            self._once(command, lambda: self._stop(draft, scope, name, on))
        )

    def _stop(self, draft: Draft, scope: str, name: str, on: bool) -> int:
        execute = self._write.execute
        if on:
            execute(
                "INSERT OR IGNORE INTO stop VALUES(?,?,?)", (scope, name, self._ledger.head + 1)
            )
        else:
            execute("DELETE FROM stop WHERE scope=? AND name=?", (scope, name))
        if not self._write.changes():
            raise BadCommand(f"{name or scope} is {'already' if on else 'not'} stopped")
        self._ledger.append([draft], None, 0, self._now_us())
        if not on:
            # What waits for the stop to be lifted is due now; each is decided again.
            execute("UPDATE run SET wake_us=1 WHERE state='waiting' AND waits='resume'")
        self._set_meta("stop_epoch", self.stop_epoch + 1)
        self.stop_epoch += 1
        return self.stop_epoch

    async def settle_hold(
        self,
        action: str,
        to: HoldState,
        draft: Draft,
        *,
        approver: str | None,
        until_us: int,
        command: str | None = None,
    ) -> ActionRow:
        """Move a hold, write the entry into its run and wake the run. Raises BadCommand."""
        return await self.writer.submit(
            self._once(command, lambda: self._settle_hold(action, to, draft, approver, until_us))
        )

    def _settle_hold(
        self, action: str, to: HoldState, draft: Draft, approver: str | None, until_us: int
    ) -> ActionRow:
        execute = self._write.execute
        rows = self._fetch(f"SELECT {ACTION} FROM action WHERE id=?", action)
        if not rows or rows[0][12] is None:
            raise BadCommand(f"there is no hold {action.replace('act_', 'hold_')}")
        held = to_action(rows[0])
        assert held.hold is not None
        held.hold = move(held.hold, to)
        held.approver, held.until_us = approver, until_us
        ((entries, last, event, state),) = self._fetch(
            "SELECT entries,last,event,state FROM run WHERE id=?", held.run
        )
        if state in ("done", "dead"):
            raise BadCommand(f"the run {held.run} of this hold has ended ({state})")
        fields = {**draft.fields, "event": event}
        placed = Draft(draft.kind, fields, held.last or last, 0, draft.body)
        seq = self._ledger.append([placed], held.run, entries, self._now_us())
        held.last = seq
        execute(_ACTION, _action_row(held))
        execute(
            "UPDATE run SET steps=steps+1, entries=entries+1, last=?, wake_us=1 WHERE id=?",
            (seq, held.run),
        )
        return held

    async def note(self, drafts: Sequence[Draft], bundle: Bundle | None = None) -> int:
        """Write entries that belong to no run; return the seq of the last."""

        def work() -> int:
            if bundle is not None:
                self.keep_bundle(bundle)
            return self._ledger.append(list(drafts), None, 0, self._now_us())

        return await self.writer.submit(work)

    async def remember(self, name: str, value: str) -> None:
        """Keep a value of the runner's own under a name; `meta` reads it."""
        await self.writer.submit(lambda: self._set_meta(name, value))

    async def keep_state(self, agent: str, key: str, position: int, blob: bytes) -> None:
        """Keep a checkpoint of a judge's state, unless a newer one is there."""

        def work() -> None:
            rows = self._fetch("SELECT position FROM state WHERE agent=? AND key=?", agent, key)
            if not rows or rows[0][0] <= position:
                self._write.execute(
                    "INSERT OR REPLACE INTO state VALUES(?,?,?,?)", (agent, key, position, blob)
                )

        await self.writer.submit(work)

    async def erase(
        self,
        *,
        event: str | None = None,
        subject: str | None = None,
        entry: int | None = None,
        draft: Draft,
        command: str | None = None,
    ) -> Erased:
        """Delete the bodies found by event, subject or entry, and what the log holds of them.

        The entry that names them is written in the same commit. Action records of the same runs
        lose their arguments; the index columns go with the body rows.
        """

        def work() -> Erased:
            self._uncut, self._wait_ms = True, WAIT_MS
            return erase(
                self._write, self._ledger, event=event, subject=subject, entry=entry, draft=draft,
                at_us=self._now_us(),
            )  # fmt: skip

        erased = await self.writer.submit(self._once(command, work))
        return replace(erased, scrubbed=not self._uncut)

    def _cut_log(self) -> None:
        """Cut the log after an erasure; if a reader needs it still, after each group until it went.

        On the writer's thread, outside of any transaction. Only the erasure itself waits.
        """
        if self._uncut:
            self._uncut = not scrub(self._write, self._wait_ms)
            self._wait_ms = 0

    def _once(self, command: str | None, work: Callable[[], T]) -> Callable[[], T]:
        """Return `work` so that a second command of the same id does nothing but say so."""
        if command is None:
            return work

        def guarded() -> T:
            self._write.execute(
                "INSERT OR IGNORE INTO command VALUES(?,?)", (command, self._ledger.head + 1)
            )
            if not self._write.changes():
                raise AlreadyDone(f"command {command} was carried out before")
            return work()

        return guarded

    def _fetch(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._write.execute(sql, values).fetchall()

    def _set_meta(self, name: str, value: Any) -> None:
        self._write.execute("INSERT OR REPLACE INTO meta VALUES(?,?)", (name, value))


def _action_row(action: ActionRow) -> tuple[Any, ...]:
    return (
        action.id, action.run, action.turn, action.ordinal, action.agent, action.tool,
        action.digest, action.record, action.decided, action.rule, action.policy_rev,
        action.decisions, action.hold, action.waits, action.until_us, action.approver,
        action.effect, action.tries, action.not_before_us, action.answer, action.obliges,
        action.seq, action.last, action.counted_us,
    )  # fmt: skip


def _own(path: Path) -> IO[str]:
    """Hold the runner's lock. Raises StoreBusy if another runner holds it."""
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise StoreBusy(
            f"another runner (process {owner}) owns this store",
            where=str(path.parent),
            mend="stop it, or use another state folder",
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


class OpenedStore(Reads):
    """A store opened to read only, beside a running fleet or with none."""

    def __init__(self, folder: Path) -> None:
        super().__init__(open_database(folder / "store.db", write=False))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


__all__ = ["OpenedStore", "SqliteStore"]
