"""Approvals: answers to one hold or to many that are alike; and claims and notes of a hold.

An answer to many is an answer to each: it names every hold and the digest of what was shown of it,
and each is settled as if it had been answered alone. What joined the group since, or is another by
now, is not touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import AlreadyDone, BadCommand, DisplayMismatch, Forbidden, NotFound
from vedette.domain.entry import Body, Draft
from vedette.domain.event import subject_of
from vedette.domain.roles import require_role
from vedette.domain.run import ActionRow
from vedette.ledger.history.action import history_of
from vedette.ledger.history.entry_view import ClaimEntry, read_entry
from vedette.operations.commands import Commands, Order

VERBS: Mapping[str, Mapping[str, type]] = {
    "approve": {"hold": str, "digest": str},
    "deny": {"hold": str, "digest": str},
    "approve_group": {"holds": dict, "group": str},
    "deny_group": {"holds": dict, "group": str},
    "claim": {"hold": str},
    "note": {"hold": str, "text": str},
}
NEEDED = {
    "approve": "hold",
    "deny": "hold",
    "approve_group": "holds",
    "deny_group": "holds",
    "claim": "hold",
    "note": "hold",
}

CLAIM_US = 30 * 60_000_000
# How many holds one command answers, and how long a note may be.
MAX_HOLDS = 200
MAX_NOTE = 2000


async def dispatch(
    commands: Commands, verb: str, order: Order, args: Mapping[str, Any]
) -> dict[str, Any]:
    """Carry out one order about a hold. Raises BadCommand and what the command raises."""
    if verb in ("approve", "deny"):
        return await answer_hold(commands, verb, order, args["hold"], args.get("digest"))
    authorize(order, verb)
    if verb in ("approve_group", "deny_group"):
        holds, group = args["holds"], args.get("group")
        return await answer_holds(commands, verb.partition("_")[0], order, holds, group)
    if verb == "claim":
        return await claim_hold(commands, order, args["hold"])
    return await note_hold(commands, order, args["hold"], args.get("text") or "")


def authorize(order: Order, verb: str) -> None:
    """Return if a person may give the order, and says why. Raises Forbidden, BadCommand."""
    if order.principal.kind != "person":
        raise Forbidden(f"{order.principal} may not give commands", mend="a person must")
    require_role(order.principal, order.principal.roles, verb)
    if not order.reason.strip():
        raise BadCommand("a reason is missing", mend="add --reason 'why'")


async def answer_hold(
    commands: Commands, verb: str, order: Order, hold: str, digest: str | None
) -> dict[str, Any]:
    """Approve or deny one hold, as ordered; `claimed_by` tells whose claim was passed over.

    Raises DisplayMismatch for an approval without the digest of what was shown.
    """
    claimed = _current_claim(commands, _action_id(hold))
    if verb == "deny":
        done = await commands.deny(order, hold, digest)
    elif digest is None:
        authorize(order, verb)
        what = "an approval names the digest of what its person was shown"
        raise DisplayMismatch(what, mend=f"`vedette hold {hold}` shows it, with the command")
    else:
        done = await commands.approve(order, hold, digest)
    other = claimed is not None and claimed.actor != str(order.principal)
    return {**done, "claimed_by": claimed.actor if claimed and other else None}


async def answer_holds(
    commands: Commands,
    verb: str,
    order: Order,
    holds: Mapping[str, Any],
    group: str | None = None,
) -> dict[str, Any]:
    """Answer every hold of an order for what was shown under its digest; return what came of each.

    Each is durable by itself: what is refused is told, and the others stand. A repeat of the
    command's id answers what was left. Raises BadCommand for a list that is none.
    """
    if not 0 < len(holds) <= MAX_HOLDS:
        raise BadCommand(f"a command answers 1 to {MAX_HOLDS} holds", mend="repeat it for the rest")
    if not all(isinstance(digest, str) and digest for digest in holds.values()):
        mend = "give {hold: digest} as `vedette hold --group` shows them"
        raise BadCommand("every hold is answered for the digest of what was shown", mend=mend)
    results = []
    for hold, digest in holds.items():
        id = f"{order.command_id} {hold}" if order.command_id else None
        try:
            done = await answer_hold(commands, verb, replace(order, command_id=id), hold, digest)
            reply = {"state": done["state"], "claimed_by": done["claimed_by"], "refused": None}
        except AlreadyDone:
            held = commands.services.store.runs.action(_action_id(hold))
            reply = {"state": held.hold if held else None, "claimed_by": None, "refused": None}
        except BadCommand as error:
            reply = {"state": None, "claimed_by": None, "refused": error.what}
        results.append({"hold": hold, "digest": digest, **reply})
    answered = sum(1 for result in results if result["refused"] is None)
    refused = len(results) - answered
    return {"group": group, "answered": answered, "refused": refused, "results": results}


async def claim_hold(commands: Commands, order: Order, hold: str) -> dict[str, Any]:
    """Record a person's claim of a hold, for half an hour. It keeps nobody from answering."""
    row = _require_hold(commands, hold)
    before = _current_claim(commands, row.id)
    until = commands.services.clock.now_us() + CLAIM_US
    draft = _draft(commands, order, row, "hold.claimed", {"reason": order.reason}, until=until)
    await commands.services.store.commands.append_entries([draft], command=order.command_id)
    other = before.actor if before and before.actor != str(order.principal) else None
    return {"hold": hold, "claimed_by": str(order.principal), "until": until, "was": other}


async def note_hold(commands: Commands, order: Order, hold: str, text: str) -> dict[str, Any]:
    """Record a person's note on a hold, for whoever answers it and whoever reads it later."""
    row = _require_hold(commands, hold, ended=True)
    if not text.strip() or len(text) > MAX_NOTE:
        raise BadCommand(
            f"a note has 1 to {MAX_NOTE} characters, not {len(text)}", mend="say it short"
        )
    draft = _draft(commands, order, row, "hold.noted", {"note": text})
    seq = await commands.services.store.commands.append_entries([draft], command=order.command_id)
    return {"hold": hold, "noted_by": str(order.principal), "entry": seq}


def _action_id(hold: str) -> str:
    return f"act_{hold.removeprefix('hold_').removeprefix('act_')}"


def _current_claim(commands: Commands, action: str) -> ClaimEntry | None:
    entries = (
        read_entry(*entry) for entry in commands.services.store.ledger.entries("action", action)
    )
    return history_of(action, entries).claim_at(commands.services.clock.now_us())


def _require_hold(commands: Commands, hold: str, *, ended: bool = False) -> ActionRow:
    row = commands.services.store.runs.action(_action_id(hold))
    if row is None or row.hold is None:
        raise NotFound(f"there is no hold {hold!r}", mend="see `vedette hold`")
    if not ended and row.hold != "open":
        raise BadCommand(f"hold {hold} is {row.hold} already", mend="see `vedette explain`")
    return row


def _draft(
    commands: Commands,
    order: Order,
    row: ActionRow,
    kind: str,
    body: Mapping[str, str],
    **more: Any,
) -> Draft:
    """Return an entry about a hold; its content goes with the content of the hold's event."""
    store = commands.services.store
    run = store.runs.run(row.run)
    event = store.runs.event(run.event) if run is not None else None
    fields = {
        "event": None if run is None else run.event,
        "agent": row.agent,
        "action": row.id,
        "tool": row.tool,
        "actor": str(order.principal),
        **more,
    }
    content = Body(canonical_json(dict(body)), None if event is None else subject_of(event))
    return Draft(kind, fields, row.last, body=content)
