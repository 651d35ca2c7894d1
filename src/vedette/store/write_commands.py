"""Orders of people and the runner, written to the store: policy, stops, answers to holds, notes.

Each writes as it goes, in a savepoint of its own, on the writer's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import orjson

from vedette.domain.action import hold_id
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.clock import iso
from vedette.domain.base.errors import AlreadyDone, BadCommand, NotFound, WriteConflict
from vedette.domain.budget import BudgetRaise
from vedette.domain.bundle import Bundle
from vedette.domain.entry import RELEASE_KINDS, Body, Draft, releases_of
from vedette.domain.hold import HoldState, transition
from vedette.domain.identity import ENGINE
from vedette.domain.row_proof import approval_bytes, format_signature
from vedette.domain.run import ActionRow, Run
from vedette.store.dialect import Database
from vedette.store.ledger_writer import LedgerWriter
from vedette.store.meta import STOP_EPOCH, read_meta, write_meta
from vedette.store.reader import StoreReader
from vedette.store.row_mapper import find_position, read_action, read_run
from vedette.store.run_wakes import WAKE_RUN
from vedette.store.spend_totals import write_raises
from vedette.store.stored_entries import EntryReader
from vedette.store.write_buffer import WriteBuffer
from vedette.store.write_runs import Fences


class CommandWriter:
    """The part of the store's writer that carries out orders inside its transaction."""

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

    def claim(self, command: str | None) -> None:
        """Take note of a command's id. Raises AlreadyDone if it was carried out before."""
        if command is not None and not self._database.execute(
            "INSERT INTO command(id,seq) VALUES(?,?) ON CONFLICT DO NOTHING",
            (command, self._ledger.last_seq + 1),
        ):
            raise AlreadyDone(f"command {command} was carried out before")

    def compare_and_set_meta(self, name: str, was: str | None, value: str) -> bool:
        """Keep a value if `name` still holds `was` (None: nothing); say whether it was so."""
        if read_meta(self._database, name) != was:
            return False
        write_meta(self._database, name, value)
        return True

    def set_meta_if_live(
        self, number: int, values: Mapping[str, str], name: str, was: str | None
    ) -> bool:
        """Keep values if `number` is live and `name` still holds `was`; say whether it was so."""
        if self._fences.policy_rev != number or read_meta(self._database, name) != was:
            return False
        for other, value in values.items():
            write_meta(self._database, other, value)
        return True

    def append_entries(
        self, drafts: Sequence[Draft], bundle: Bundle | None = None, policy_rev: int | None = None
    ) -> int:
        """Write entries that belong to no run; return the seq of the last.

        With `policy_rev`, WriteConflict if another revision than that is live.
        """
        live = self._fences.policy_rev
        if policy_rev not in (None, live):
            raise WriteConflict(f"revision {live} was published meanwhile", mend="try again")
        if bundle is not None:
            self.keep_bundle(bundle)
        at_us = self._now_us()
        for draft in drafts:
            event = draft.fields.get("event")
            about = find_position(self._database, event) or None if event else None
            self._ledger.append([draft], None, 0, at_us, about)
        return self._ledger.last_seq

    # --- policy and stops -------------------------------------------------------------------

    def publish(
        self,
        bundle: Bundle,
        drafts: Sequence[Draft],
        number: int | None,
        meta: Mapping[str, str],
        expected_revision: int | None,
        released: int | None,
    ) -> int:
        """Make a bundle the live revision; return its number. Numbers may leave a gap."""
        live = self._fences.policy_rev
        number = live + 1 if number is None else number
        if number <= live or expected_revision not in (None, live):
            raise WriteConflict(f"revision {live} was published meanwhile", mend="try again")
        if released is not None:
            self._refuse_newer_release(released)
        self.keep_bundle(bundle)
        for name, value in meta.items():
            write_meta(self._database, name, value)
        placed = [
            Draft(d.kind, {**d.fields, "policy_rev": number}, d.cause, d.cause_offset, d.body)
            for d in drafts
        ]
        at_us = self._now_us()
        seq = self._ledger.append(placed, None, 0, at_us)
        self._database.execute(
            "INSERT INTO policy(number,digest,seq,at) VALUES(?,?,?,?)",
            (number, bundle.digest, seq, at_us),
        )
        # Only who writes a group compares steps with this, so steps behind us see it at once.
        self._fences.policy_rev = number
        return number

    def _refuse_newer_release(self, after: int) -> None:
        """Raise WriteConflict if an agent was released after an entry."""
        for found in EntryReader(self._database).rare(RELEASE_KINDS, after=after):
            if releases_of(orjson.loads(found.raw)):
                raise WriteConflict("an agent was released meanwhile", mend="try again")

    def keep_bundle(self, bundle: Bundle) -> None:
        """Store a bundle's bytes, before its first use; a row that was changed is right again."""
        files = {path: raw.decode("utf-8") for path, raw in bundle.files.items()}
        self._database.execute(
            "INSERT INTO bundle(digest,files) VALUES(?,?) "
            "ON CONFLICT(digest) DO UPDATE SET files=excluded.files",
            (bundle.digest, orjson.dumps(files)),
        )

    def stop(
        self, draft: Draft, scope: str, name: str, on: bool, lifted_after_us: int | None = None
    ) -> int:
        """Set or lift a stop; return the new stop epoch: see `CommandQueue.stop`."""
        if on:
            self._set_stop(draft, scope, name)
            if lifted_after_us is not None:
                self._lift_overtaken(scope, name, lifted_after_us)
        else:
            self._lift_stop(draft, scope, name)
        self._fences.stop_epoch += 1
        write_meta(self._database, STOP_EPOCH, self._fences.stop_epoch)
        return self._fences.stop_epoch

    def _set_stop(self, draft: Draft, scope: str, name: str) -> None:
        self._refuse_shorter_stop(draft, scope, name)
        self._database.execute(
            "INSERT INTO stop(scope,name,seq) VALUES(?,?,?) "
            "ON CONFLICT(scope,name) DO UPDATE SET seq=excluded.seq",
            (scope, name, self._ledger.last_seq + 1),
        )
        self._ledger.append([draft], None, 0, self._now_us())

    def _lift_stop(self, draft: Draft, scope: str, name: str) -> None:
        run = self._database.execute
        lift, of = "DELETE FROM stop WHERE scope=? AND name=?", (scope, name)
        lifted = run(f"{lift} AND seq=?", (*of, draft.cause)) if draft.cause else run(lift, of)
        if not lifted:
            raise BadCommand(f"{name or scope} is not stopped")
        self._ledger.append([draft], None, 0, self._now_us())
        # What waits for the stop to be lifted is due now; each is decided again.
        run(
            "UPDATE run SET wake_us=1 WHERE state='waiting' AND waits='resume' "
            "AND state IN ('waiting', 'dead')"
        )

    def _lift_overtaken(self, scope: str, name: str, since_us: int) -> None:
        """Lift the stop that was set just now if a person lifted its scope after an instant."""
        what = f"{scope}:{name}"
        entries = EntryReader(self._database, content=False)
        found = entries.rare(["stop.lifted"], after=entries.seq_at(since_us))
        lifts = (orjson.loads(one.raw) for one in found)
        # What the engine lifts is another stop, whose time was over.
        since = [
            one["seq"]
            for one in lifts
            if one["at"] > since_us and one["what"] == what and one["actor"] != str(ENGINE)
        ]
        if since:
            why = f"it was ordered before entry {since[-1]} lifted it"
            fields = {"what": what, "actor": str(ENGINE)}
            body = Body(canonical_json({"reason": why}))
            draft = Draft("stop.lifted", fields, self._ledger.last_seq, body=body)
            self._lift_stop(draft, scope, name)

    def _refuse_shorter_stop(self, draft: Draft, scope: str, name: str) -> None:
        """Raise BadCommand if there is a stop already that ends no earlier than the new one."""
        sql = "SELECT seq FROM stop WHERE scope=? AND name=?"
        rows = self._database.rows(sql, (scope, name))
        if not rows:
            return
        stop = EntryReader(self._database).find(int(rows[0][0]))
        # The end of one whose entry is archived is not known: it is lifted by a person.
        ends = (orjson.loads(stop.raw).get("until") if stop is not None else None) or 0
        if not ends:
            raise BadCommand(f"{name or scope} is already stopped")
        until = draft.fields.get("until") or 0
        if until and until <= ends:
            raise BadCommand(
                f"{name or scope} is already stopped until {iso(ends)}",
                mend="give a later end or none, or `vedette resume` it first",
            )

    # --- budgets ----------------------------------------------------------------------------

    def raise_budget(self, draft: Draft, raises: Sequence[BudgetRaise]) -> int:
        """Give more room until an instant and wake what waits for it; return the entry's seq."""
        seq = self._ledger.append([draft], None, 0, self._now_us())
        write_raises(self._database, seq, raises)
        self._buffer.totals.clear()
        return seq

    # --- tasks ------------------------------------------------------------------------------

    def move_task(self, run: str, draft: Draft) -> Run:
        """Write what a person says of a task into its run, and wake the run.

        Raises NotFound, and BadCommand for one that has ended.
        """
        known = read_run(self._database, run)
        if known is None:
            raise NotFound(f"there is no run {run!r}")
        if known.state in ("done", "dead"):
            raise BadCommand(f"the task {run} has ended ({known.state})")
        fields = {**draft.fields, "event": known.event, "turn": known.turn}
        placed = Draft(draft.kind, fields, known.last, 0, draft.body)
        at_us = self._now_us()
        seq = self._ledger.append([placed], run, known.entries, at_us, known.position)
        self._database.execute(WAKE_RUN, (seq, known.position, known.agent))
        return known

    # --- holds ------------------------------------------------------------------------------

    def transition_hold(
        self, action: str, to: HoldState, draft: Draft, approver: str | None, until_us: int
    ) -> ActionRow:
        """Move a hold, write the entry into its run and wake the run.

        Raises BadCommand; DisplayMismatch if the draft's `shown_digest` is not that of the hold.
        """
        # Here: the first event needs none of it.
        from vedette.ledger.history.lists import hold_item
        from vedette.ledger.history.review import refuse_unseen

        position = find_position(self._database, action)
        held = read_action(self._database, position, action)
        if held is None or held.hold is None:
            raise NotFound(f"there is no hold {hold_id(action)}")
        after = transition(held.hold, to)
        if (digest := draft.fields.get("shown_digest")) is not None:
            refuse_unseen(hold_item(StoreReader(self._database), held, self._now_us()), digest)
        held.hold = after
        held.approver, held.until_us = approver, until_us
        of = (position, held.agent)
        ((entries, last, event, state),) = self._database.rows(
            "SELECT r.entries, r.last, e.key, r.state FROM run r JOIN event e ON e.seq=r.position "
            "WHERE r.position=? AND r.agent=?",
            of,
        )
        if state in ("done", "dead"):
            raise BadCommand(f"the run {held.run} of this hold has ended ({state})")
        fields = {**draft.fields, "event": event}
        if to == "approved":
            signature = self._ledger.sign(approval_bytes(fields))
            fields["signature"] = format_signature(signature)
        placed = Draft(draft.kind, fields, held.last or last, 0, draft.body)
        seq = self._ledger.append([placed], held.run, entries, self._now_us(), position)
        held.last = seq
        self._buffer.add_action(position, held, 0)
        self._database.execute(WAKE_RUN, (seq, *of))
        return held
