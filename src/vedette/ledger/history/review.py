"""Review: what a person is shown before they answer a hold, and the digest of it.

The digest names everything shown without being a digest of content: beside the action's digest it
has the salted digests under which the ledger keeps the event and the turn. So it can be made again
from the record for as long as the content is there, is another one once that is erased, and tells
nobody what was in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from vedette.domain.base.canonical import DIGEST_PREFIX, canonical_json, sha256_hex
from vedette.domain.base.errors import DisplayMismatch
from vedette.domain.display import DISPLAYS_KEY, Display, find_display, parse_displays, show_event
from vedette.domain.ports.store import StoreReader
from vedette.domain.run import ActionRow
from vedette.ledger.history.action import ActionHistory
from vedette.ledger.history.entry_view import AcceptanceEntry, EntryView, JudgementEntry, read_entry

SHOWN = "vedette.shown/2"


def acceptance(record: StoreReader, event: str) -> AcceptanceEntry | None:
    """Return the entry that accepted an event; None if it is archived."""
    # Refused deliveries under the same key may stand before it.
    for row in record.ledger.entries("event", event):
        first = read_entry(*row)
        if isinstance(first, AcceptanceEntry):
            return first
    return None


def event_of(record: StoreReader, entries: Sequence[EntryView]) -> EntryView | None:
    """Return the acceptance of the event that entries belong to; None if it is archived."""
    for entry in entries:
        if entry.about is not None:
            row = record.ledger.entry(entry.about)
            return None if row is None else read_entry(*row)
    # Entries of older stores name the event alone.
    event = next((entry.event for entry in entries if entry.event), None)
    return None if event is None else acceptance(record, event)


def about_event(record: StoreReader, accepted: EntryView | None) -> dict[str, Any]:
    """Return what people are shown of a recorded event, with its `display`; `erased` if it is gone.

    With `readers`, who may read it, where not everybody may.
    """
    if accepted is None or accepted.body is None:
        return {"event": accepted.event if accepted else None, "erased": True}
    display = _display(record, accepted)
    about = {"event": accepted.event, "erased": False, **show_event(accepted.body, display)}
    readers = {name: accepted.body[name] for name in ("readers",) if name in accepted.body}
    return {**about, "display": display.to_json(), **readers}


def about_run(record: StoreReader, run: str) -> dict[str, Any]:
    """Return what people are shown of the event of a run, which the run's entries name."""
    entries = [read_entry(*row) for row in record.ledger.entries("run", run, 1)]
    return about_event(record, event_of(record, entries))


def about_id(record: StoreReader, id: str) -> dict[str, Any] | None:
    """Return what people are shown of the recorded event behind a run, action, hold or effect.

    None if the id names none of these.
    """
    prefix, _, rest = id.partition("_")
    if prefix == "run":
        return about_run(record, id)
    row = record.runs.action(f"act_{rest}") if prefix in ("act", "hold", "eff") else None
    return None if row is None else about_run(record, row.run)


def shown_digest(
    accepted: EntryView | None,
    turn: JudgementEntry | None,
    row: ActionRow,
    item: Mapping[str, Any],
    history: ActionHistory,
    opinion: JudgementEntry | None = None,
) -> str:
    """Return the digest (SHA-256, hexadecimal) of all that the record shows people of a hold.

    `item` is what is shown of it: display, arguments with their origins, rule, what it waits for
    and whether its effect may have happened. `history` is that of its action: one that is open
    again after an approval is another than before, however alike it looks. `opinion` is the turn of
    a judge that deferred to a model.
    """
    approvals = sum(answer.answer == "approved" for answer in history.answers)
    arguments = [
        [given[name] for name in ("pointer", "origin", "source", "sink")]
        for given in item["arguments"] or ()
    ]
    value = {
        "schema": SHOWN,
        "action": row.digest,
        "event": _body(accepted),
        "display": item["about"].get("display"),
        "turn": _body(turn),
        **({} if opinion is None else {"opinion": _body(opinion)}),
        "arguments": None if item["erased"] else arguments,
        # But the one that stands: whoever takes that back was shown the same hold.
        "approved": approvals - (row.hold == "approved"),
        **{name: item[name] for name in ("hold", "rule", "waits", "effect", "inverse")},
    }
    return sha256_hex(canonical_json(value))


def refuse_unseen(item: Mapping[str, Any], digest: str) -> None:
    """Raise DisplayMismatch unless `digest` begins the `shown_digest` of a hold's review now."""
    hold, mend = item["hold"], f"look at it again: vedette hold {item['hold']}"
    if not DIGEST_PREFIX.fullmatch(digest):
        what = f"{digest[:20]!r} is no digest: it has 8 to 64 hexadecimal digits"
        raise DisplayMismatch(what, mend=mend)
    if not item["shown_digest"].startswith(digest):
        what = f"hold {hold} is not what was shown as {digest[:16]}"
        raise DisplayMismatch(
            f"{what}: its action, its event or what is shown of it is another", mend=mend
        )


def refuse_erased(item: Mapping[str, Any]) -> None:
    """Raise DisplayMismatch for a hold whose review was erased: nobody can see what it is for."""
    if item["erased"] or item["about"]["erased"]:
        what = f"what hold {item['hold']} is about was erased: nobody can see what they approve"
        raise DisplayMismatch(what, mend="deny it")


def _body(entry: EntryView | None) -> str | None:
    """Return the salted digest of an entry's content; None if that is gone."""
    return None if entry is None or entry.erased else entry.get("body")


def _display(record: StoreReader, accepted: EntryView) -> Display:
    text = record.meta(DISPLAYS_KEY)
    declared = parse_displays(orjson.loads(text)) if text else ()
    return find_display(accepted.body, declared)
