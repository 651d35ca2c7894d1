"""Erasure in the store's tables: bodies, and what action rows hold of them. The proof still holds.

What waits on the content is ended in the same transaction if that is ordered: each hold is denied,
then the run is dropped. So nothing is half done and no worker is needed for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import orjson

from vedette.domain.agent import undo_source
from vedette.domain.base.canonical import DIGEST_PREFIX, short_id
from vedette.domain.base.errors import BadCommand, DisplayMismatch, StateNotKept
from vedette.domain.compensation import undo_ids
from vedette.domain.delegation import find_delegation
from vedette.domain.entry import Body, Draft
from vedette.domain.erasure import ErasureResult, ErasureSurvey, ErasureTarget
from vedette.domain.event import Event
from vedette.domain.event_wait import WAITS, read_event_wait
from vedette.domain.hold import FINAL_STATES, transition
from vedette.domain.memory_state import PROPOSED, TRANSITIONS, LedgerMemory
from vedette.domain.run import ActionRow, Run, RunWake
from vedette.domain.task import child_event_key
from vedette.domain.work_tools import ASK_TOOL
from vedette.store import read_archived_memories, stored_entries
from vedette.store.dead_letters import MOVE_RUN
from vedette.store.dialect import Database, Row
from vedette.store.ledger_writer import LedgerWriter
from vedette.store.meta import read_meta
from vedette.store.row_mapper import find_position, read_actions, select_runs
from vedette.store.run_events import TakenEvent, clear_actions, list_taken
from vedette.store.run_wakes import wake_run
from vedette.store.segment import StoredEntry
from vedette.store.states import find_unkept
from vedette.store.stored_entries import EntryReader, kind_of
from vedette.store.write_buffer import WriteBuffer

_DONE_ACTIONS = "SELECT id, agent FROM action WHERE position=? AND effect IS NOT NULL"
_NO_ROW = 'DELETE FROM "row" WHERE collection=? AND key=?'
_POSSIBLE_EFFECTS = ("intended", "started", "unknown")


def erase_content(
    database: Database,
    ledger: LedgerWriter,
    target: ErasureTarget,
    draft: Draft,
    at_us: int,
    *,
    stateless: Collection[str],
    end: WriteBuffer | None,
    shown: str | None,
) -> ErasureResult:
    """Delete a target's content from the tables: see `ports.command_store.CommandQueue.erase`.

    With `end` what waits on it is ended first. In a transaction of the writer's.
    """
    own, taken = _find_all(database, target)
    found = own | _content_of(database, taken)
    if not found:
        raise BadCommand(f"no body is found by {target.by} {target.value!r}")
    if shown is not None:
        _refuse_unseen(survey_erasure(database, target).digest, shown)
    abouts = event_positions(own.values())
    # Since states were kept a run may have been judged, by this worker or another: a state that is
    # made anew from what is left would lack it.
    if unkept := find_unkept(database, accepted_positions(own.values()), stateless):
        raise StateNotKept(
            f"{unkept[0].agent} has observed the content of {unkept[0].event}, and its state is "
            "not kept without it",
            mend="order it again",
        )
    for run in _open_runs(database, abouts, taken):
        if end is None:
            raise BadCommand(
                f"run {run.id} still needs this content",
                mend="answer its holds, let it finish, or end what waits: --deny-holds",
            )
        _end_run(database, ledger, end, run, str(draft.fields["actor"]), draft.body, at_us)
    if end is not None:
        # What the denials say is not to go with the content: it was found before.
        end.flush()
    events = _keys(database, {*abouts, *(one.run.position for one in taken)})
    rows = list(found.values())
    _delete(database, rows)
    clear_actions(database, taken)
    gone = [(about,) for about in abouts]
    database.execute_many("UPDATE action SET record=NULL, answer=NULL WHERE position=?", gone)
    if target.by != "entry":
        # Under whose name it was goes with the content.
        database.execute_many("UPDATE event SET subject=NULL WHERE seq=?", gone)
        database.execute_many("UPDATE refused SET subject=NULL WHERE seq=?", gone)
    digests = _record_erasure(ledger, rows, draft, at_us)
    return ErasureResult(digests, tuple(sorted(events)))


def survey_erasure(database: Database, target: ErasureTarget) -> ErasureSurvey:
    """Return what `erase` would find in the tables; nothing is changed."""
    own, taken = _find_all(database, target)
    found, abouts = own | _content_of(database, taken), event_positions(own.values())
    open = _open_runs(database, abouts, taken)
    holds = [hold for run in open for hold in _open_holds(database, run)]
    ((runs,),) = database.rows(
        f"SELECT COUNT(*) FROM run WHERE position IN ({','.join('?' * len(abouts)) or 'NULL'})",
        abouts,
    )
    return ErasureSurvey(
        tuple(sorted(_keys(database, abouts))), int(runs) + len(taken), tuple(sorted(found)),
        tuple(open), tuple(holds),
    )  # fmt: skip


def event_positions(rows: Iterable[Row]) -> list[int]:
    """Return the positions of the events that these rows of content belong to."""
    return sorted({row[2] for row in rows if row[2] is not None})


def accepted_positions(rows: Iterable[Row]) -> list[int]:
    """Return the positions of events whose own content is among these rows: what judges observe."""
    return sorted(row[0] for row in rows if row[0] == row[2])


def _refuse_unseen(digest: str, shown: str) -> None:
    if DIGEST_PREFIX.fullmatch(shown) is None or not digest.startswith(shown):
        raise DisplayMismatch(
            f"what would go is not what was shown as {shown[:16]!r}: nothing was erased",
            mend="look at it again: the same order shows what would go now",
        )


def find_content(database: Database, target: ErasureTarget) -> dict[int, Row]:
    """Return the rows (seq, entry bytes, about) of a target's content, and of its copies."""
    own, taken = _find_all(database, target)
    return own | _content_of(database, taken)


def _find_all(database: Database, target: ErasureTarget) -> tuple[dict[int, Row], list[TakenEvent]]:
    """Return the content of a target's events and of their copies, and the runs of other events
    that took one of them in: of these what they recorded since is to go, too.
    """
    places, taken = _find_positions(database, target), list[TakenEvent]()
    copies = _find_copies(database, places)
    while True:
        taken = list_taken(database, copies)
        ids = [row.id for one in taken for row in one.rows_since(database) if row.effect]
        more = {at for one in taken for at in _find_undos(database, one.run.agent, ids)} - copies
        if not more:
            break
        copies |= _find_copies(database, more)
    if target.by != "entry":
        return _bodies_about(database, copies), taken
    seq = int(target.value)
    return _bodies_about(database, copies - {seq}) | _bodies_at(database, {seq}), taken


def _content_of(database: Database, taken: Iterable[TakenEvent]) -> dict[int, Row]:
    return {row[0]: row for one in taken for row in one.content(database)}


def _keys(database: Database, abouts: Iterable[int]) -> list[str]:
    sql = "SELECT key FROM event WHERE seq=?"
    return [key for about in abouts for (key,) in database.rows(sql, (about,))]


def erase_memories(
    database: Database,
    ledger: LedgerWriter,
    old: Collection[LedgerMemory],
    upto: int,
    draft: Draft,
    at_us: int,
) -> ErasureResult:
    """Delete the bodies of proposed memories that are still there; without any, write no entry.

    They were looked at when the ledger's last entry was `upto`: of what a person has ordered since,
    a promotion say, nothing goes, as its retention may count anew. Under whose name it was goes
    too, unless something else of it is left.
    """
    moves = EntryReader(database, content=False).rare(TRANSITIONS, after=upto)
    moved = {orjson.loads(one.raw)["memory"] for one in moves}
    seqs = {one.seq for one in old if one.name not in moved}
    rows = list(_bodies_at(database, seqs).values())
    if not rows:
        return ErasureResult((), ())
    _delete(database, rows)
    clear_subjects(database, {row[2] for row in rows if row[2] is not None})
    return ErasureResult(_record_erasure(ledger, rows, draft, at_us), ())


def clear_subjects(database: Database, abouts: Iterable[int]) -> None:
    """Clear the subject in rows of events of which neither content nor a memory is left.

    While something is remembered of it, whoever it is about can still have it erased.
    """
    remembered = {about for _, _, about in read_archived_memories.entries_with_body(database)}
    left = set(abouts) - remembered
    for one in EntryReader(database).of_events(left):
        if one.data is not None and (one.seq == one.about or kind_of(one.raw) == PROPOSED):
            left.discard(one.about or 0)
    gone = [(about,) for about in sorted(left)]
    database.execute_many("UPDATE event SET subject=NULL WHERE seq=?", gone)
    database.execute_many("UPDATE refused SET subject=NULL WHERE seq=?", gone)


def _delete(database: Database, rows: Collection[Row]) -> None:
    stored_entries.erase_content(database, [row[0] for row in rows])
    read_archived_memories.erase_bodies(database, rows)


def _record_erasure(
    ledger: LedgerWriter, rows: Iterable[Row], draft: Draft, at_us: int
) -> tuple[str, ...]:
    digests = sorted(str(orjson.loads(row[1])["body"]) for row in rows)
    placed = Draft(draft.kind, {**draft.fields, "erased": digests}, body=draft.body)
    ledger.append([placed], None, 0, at_us)
    return tuple(digests)


def _find_positions(database: Database, target: ErasureTarget) -> set[int]:
    """Return the positions of what is asked for, be its own content still there or not."""
    of = target.value
    if isinstance(of, int):
        return {of} if database.rows("SELECT 1 FROM event WHERE seq=?", (of,)) else set()
    if target.by == "event":
        refused = database.rows("SELECT seq FROM refused WHERE key=?", (of,))
        return {find_position(database, of), *(seq for (seq,) in refused)} - {0}
    sql = "SELECT seq FROM event WHERE subject=? UNION SELECT seq FROM refused WHERE subject=?"
    return {seq for (seq,) in database.rows(sql, (of, of))}


def _find_copies(database: Database, places: Collection[int]) -> set[int]:
    """Return the positions and those of all events that copied of them, or of such a copy."""
    archived = [
        orjson.loads(raw)
        for _, raw, _ in read_archived_memories.read_entries(
            database, (read_archived_memories.CORRECTED,)
        )
    ]
    corrected: dict[int | None, list[Any]] = {}
    for one in EntryReader(database, content=False).rare([read_archived_memories.CORRECTED]):
        corrected.setdefault(one.about, []).append(orjson.loads(one.raw))
    found, open = set(places), sorted(places)
    while open:
        about = open.pop()
        told = corrected.get(about, [])
        told = told + [one for one in archived if one.get("about") == about]
        led = {find_position(database, one["what"]) for one in told if "what" in one}
        rows = database.rows(_DONE_ACTIONS, (about,))
        led |= {at for id, agent in rows for at in _find_undos(database, agent, [id])}
        led |= set(_find_children(database, about))
        fresh = led - found - {0}
        found |= fresh
        open += sorted(fresh)
    return found


def _find_undos(database: Database, agent: str, actions: Iterable[str]) -> Iterator[int]:
    """Yield the positions of the events that were to undo actions of an agent.

    By their ids, which follow from the action's: so they are found when the entries are archived.
    """
    fleet = read_meta(database, "fleet") or ""
    for action in actions:
        for id in undo_ids(action):
            place = find_position(database, short_id("evt", undo_source(fleet, agent), id))
            if not place:
                break
            yield place


def _find_children(database: Database, about: int) -> Iterator[int]:
    """Yield the positions of the events by which runs of an event gave other agents a task.

    By their ids, which follow from the action's and the agent's; so no record is asked, which may
    be erased.
    """
    asks = database.rows("SELECT id FROM action WHERE position=? AND tool=?", (about, ASK_TOOL))
    agents = database.rows("SELECT DISTINCT agent FROM run", ()) if asks else []
    fleet = read_meta(database, "fleet") or ""
    for (action,) in asks:
        for (agent,) in agents:
            if place := find_position(database, child_event_key(fleet, agent, action)):
                yield place


def _bodies_about(database: Database, abouts: Collection[int]) -> dict[int, Row]:
    """Return (seq, entry bytes, about) of all content that belongs to these positions, by seq."""
    rows = [row for row in read_archived_memories.entries_with_body(database) if row[2] in abouts]
    rows += _with_content(EntryReader(database).of_events(abouts))
    return {row[0]: row for row in rows}


def _bodies_at(database: Database, seqs: Collection[int]) -> dict[int, Row]:
    rows = [row for row in read_archived_memories.entries_with_body(database) if row[0] in seqs]
    rows += _with_content(EntryReader(database).find_all(seqs).values())
    return {row[0]: row for row in rows}


def _with_content(entries: Iterable[StoredEntry]) -> list[Row]:
    return [(one.seq, one.raw, one.about) for one in entries if one.data is not None]


def _open_runs(database: Database, abouts: Iterable[int], taken: Iterable[TakenEvent]) -> list[Run]:
    """Return the runs of these events that have not ended, in order, and those that took one in."""
    rest = "WHERE r.position=? AND r.state IN ('ready','waiting') ORDER BY r.agent"
    own = [run for at in sorted(abouts) for run in select_runs(database, rest, (at,))]
    known = {run.id for run in own}
    others = [one.run for one in taken if one.run.state in ("ready", "waiting")]
    return own + [run for run in others if run.id not in known]


def _open_holds(database: Database, run: Run) -> list[ActionRow]:
    """Return the actions of a run that are held, or approved and not decided again yet."""
    return [
        row
        for row in read_actions(database, run.position, run.id)
        if row.hold in ("open", "approved")
    ]


def _end_run(
    database: Database,
    ledger: LedgerWriter,
    buffer: WriteBuffer,
    run: Run,
    actor: str,
    body: Body | None,
    at_us: int,
) -> None:
    """Deny what a waiting run holds, and drop it, as a person's order.

    Raises BadCommand for a run that is being handled, or that has an effect which may have
    happened: what came of that must not be lost.
    """
    if run.state != "waiting":
        raise BadCommand(
            f"run {run.id} is being handled, or is about to be", mend="let it finish, then again"
        )
    rows = read_actions(database, run.position, run.id)
    for row in rows:
        if row.is_awaited and row.waits == "child":
            raise BadCommand(
                f"{row.tool} of run {run.id} waits: a task is ended first",
                mend=f"vedette work cancel {run.id}",
            )
        if row.is_awaited:
            continue
        if row.effect in _POSSIBLE_EFFECTS or row.waits == "policy":
            raise BadCommand(
                f"{row.tool} of run {run.id} may have happened ({row.effect or 'denied since'})",
                mend="wait until it is settled, or settle it: `vedette hold`",
            )
    for row in rows:
        if row.is_awaited:
            _end_wait(database, ledger, run, row, at_us)
            buffer.add_action(run.position, row, 0)
            continue
        if row.hold is None or row.hold in FINAL_STATES:
            continue
        fields = {
            "event": run.event, "agent": run.agent, "action": row.id, "action_digest": row.digest,
            "tool": row.tool, "actor": actor,
        }  # fmt: skip
        row.hold = "denied" if row.hold == "released" else transition(row.hold, "denied")
        row.decided, row.rule, row.waits = "deny", "hold.denied", None
        row.approver, row.until_us = actor, 0
        draft = Draft("hold.denied", fields, row.last or run.last, 0, body)
        run.last = row.last = ledger.append([draft], run.id, run.entries, at_us, run.position)
        run.entries += 1
        buffer.add_action(run.position, row, 0)
    fields = {"actor": actor, "event": run.event, "agent": run.agent}
    draft = Draft("run.dropped", fields, run.last, 0, body)
    seq = ledger.append([draft], run.id, run.entries, at_us, run.position)
    entries = run.entries + 1
    database.execute(MOVE_RUN, ("done", entries, seq, 0, run.position, run.agent))
    _wake_parent(database, ledger, run, at_us)


def _wake_parent(database: Database, ledger: LedgerWriter, run: Run, at_us: int) -> None:
    """Make the run due that asked for one that is over by now; the event, which says so, is there
    still.
    """
    accepted = EntryReader(database).find(run.position)
    if accepted is None or accepted.data is None:
        return
    given = find_delegation(Event.from_body(orjson.loads(accepted.data)))
    if given is not None:
        wake_run(database, ledger, RunWake(given.run), at_us)


def _end_wait(
    database: Database, ledger: LedgerWriter, run: Run, row: ActionRow, at_us: int
) -> None:
    """End what an action waits for: nothing happened, and no event finds it any more."""
    if row.waits == "event" and (wait := read_event_wait(orjson.loads(row.record)["args"])):
        database.execute(_NO_ROW, (WAITS, wait.row_key(row.id)))
    row.effect, row.waits, row.not_before_us = "cancelled", None, 0
    fields = {
        "event": run.event, "agent": run.agent, "action": row.id, "tool": row.tool,
        "effect_key": row.id.removeprefix("act_"), "policy_rev": row.policy_rev,
    }  # fmt: skip
    draft = Draft("effect.cancelled", fields, row.last or run.last)
    run.last = row.last = ledger.append([draft], run.id, run.entries, at_us, run.position)
    run.entries += 1
