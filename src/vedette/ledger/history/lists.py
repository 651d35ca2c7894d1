"""Lists for people: pages of runs, what waits for an answer, and where the fleet stands.

Pages go by keyset: a cursor names the place of a row, so nothing shifts while rows are added.
Every page says the ledger's head and the instant it was made at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import orjson

from vedette.domain.base.errors import BadCommand
from vedette.domain.ports.store import StoreReader
from vedette.domain.run import ActionRow, Run, RunState
from vedette.ledger.history.action import action_object, history_of, notes_object
from vedette.ledger.history.entry_view import JudgementEntry, read_entry
from vedette.ledger.history.review import about_event, event_of, shown_digest
from vedette.ledger.history.run import read_run

MAX_PAGE = 200

_WAITS = ("approval", "time", "resume", "target", "budget", "policy")


def runs_page(
    record: StoreReader,
    now_us: int,
    *,
    agent: str | None = None,
    state: str | None = None,
    before: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> dict[str, Any]:
    """Return a page of runs for people, newest first. `before`, `after` are other pages' cursors.

    Raises BadCommand for a cursor, a limit or a state that is none.
    """
    limit = _check_limit(limit)
    if state is not None and state not in get_args(RunState):
        raise BadCommand(f"{state!r} is no state", mend=f"one of: {', '.join(get_args(RunState))}")
    if before is not None and after is not None:
        raise BadCommand("a page is before or after a run, not both", mend="give one cursor")
    newer = after is not None
    place, beside = _parse_cursor(after) if after is not None else _parse_cursor(before)
    runs = record.runs.runs_page(
        agent=agent,
        state=state,
        before=None if newer else place,
        after=place if newer else None,
        beside=beside,
        limit=limit + 1,
    )
    more = len(runs) > limit
    if more:
        runs = runs[1:] if newer else runs[:limit]
    older = runs and (more or newer)
    back = runs and (more if newer else before is not None)
    return _page(
        record,
        now_us,
        [_run_item(run) for run in runs],
        older=_cursor(runs[-1].position, runs[-1].agent) if older else None,
        newer=_cursor(runs[0].position, runs[0].agent) if back else None,
    )


def inbox(
    record: StoreReader,
    now_us: int,
    *,
    after: str | None = None,
    limit: int = 50,
    waits: str | None = "approval",
) -> dict[str, Any]:
    """Return a page of holds, oldest first: what waits for a person, or (`waits`) for what else.

    `waits` None gives all. `newer` is the cursor of the next page. Raises BadCommand.
    """
    limit = _check_limit(limit)
    if waits is not None and waits not in _WAITS:
        raise BadCommand(f"nothing waits for {waits!r}", mend=f"one of: {', '.join(_WAITS)}")
    place, beside = _parse_cursor(after)
    place = place or 0
    found: list[ActionRow] = []
    while len(found) <= limit:
        rows = record.runs.holds_page(after=place, beside=beside, limit=MAX_PAGE)
        found += [row for row in rows if waits is None or row.waits == waits]
        if len(rows) < MAX_PAGE:
            break
        place, beside = rows[-1].seq, rows[-1].id
    more, found = len(found) > limit, found[:limit]
    last = found[-1] if found else None
    return _page(
        record,
        now_us,
        [hold_item(record, row, now_us) for row in found],
        older=None,
        newer=_cursor(last.seq, last.id) if last is not None and more else None,
    )


def hold_item(record: StoreReader, row: ActionRow, now_us: int) -> dict[str, Any]:
    """Return a hold as an item of the inbox, with all that an answer needs. Ages are microseconds.

    `about` is what its event says, by the display of its type; `shown_digest` names all of this,
    and an approval is for it.
    """
    entries = [read_entry(*entry) for entry in record.ledger.entries("action", row.id)]
    history, run = history_of(row.id, entries), read_run(record.ledger, row.run)
    turns, opinion = run.turn(row.turn), run.opinion
    action = action_object(row, history, turns)
    last, claim = history.decision, history.claim_at(now_us)
    since = next((one.at for one in history.decisions if one.outcome == "hold"), None)
    if row.effect == "unknown":
        since = next((e.at for e in reversed(history.effects) if e.state == "unknown"), since)
    accepted = event_of(record, entries)
    item = {
        "hold": "hold_" + row.id.removeprefix("act_"),
        "about": about_event(record, accepted),
        "state": row.hold,
        "agent": row.agent,
        "run": row.run,
        "action": row.id,
        "tool": row.tool,
        "verb": action["verb"],
        "resource": action["resource"],
        "inverse": action["inverse"],
        "high_impact": action["high_impact"],
        "label": turns[0].label if turns else None,
        "confidence_milli": action["confidence_milli"],
        "opinion": opinion and _opinion_object(opinion),
        "arguments": action["arguments"],
        "erased": action["erased"],
        "why": action["why"],
        "rule": row.rule,
        "reasons": last.reasons if last else None,
        "revision": row.policy_rev,
        "waits": row.waits,
        "effect": row.effect,
        "digest": row.digest,
        "by": row.approver,
        "since": since,
        "age_us": None if since is None else now_us - since,
        "expires": row.until_us or None,
        "due": row.not_before_us or None,
        "claim": claim and {"by": claim.actor, "at": claim.at, "until": claim.until},
        "notes": notes_object(history),
    }
    turn = turns[-1] if turns else None
    shown = shown_digest(accepted, turn, row, item, history, opinion)
    return {**item, "shown_digest": shown}


def _opinion_object(opinion: JudgementEntry) -> dict[str, Any]:
    """Return what a judge that deferred would do: its label, how sure, its tools and arguments.

    An argument is its value, or what it points at ("ref").
    """
    return {
        "label": opinion.label,
        "confidence_milli": opinion.confidence_milli,
        "actions": [
            {"tool": one["tool"], "arguments": one["args"]} for one in opinion.proposals or ()
        ],
    }


def status(record: StoreReader, now_us: int) -> dict[str, Any]:
    """Return where the fleet stands by the record: what is live or stopped, counts per agent."""
    number, digest = record.policy.live_revision()
    accepted, nobody = record.tables.event_counts()
    counts, would = record.tables.counts(), record.tables.would()
    return {
        "schema": "vedette.status/1",
        "now": now_us,
        "head": record.ledger.last_seq(),
        "fleet": record.meta("fleet"),
        "revision": number,
        "bundle": digest,
        "stops": [
            {"scope": scope, "name": name} for scope, name in sorted(record.policy.stop_scopes())
        ],
        "events": {"accepted": accepted, "woke_nobody": nobody},
        "agents": {
            name: _agent(found, would.get(name, {})) for name, found in sorted(counts.items())
        },
        "waiting": dict(sorted(record.tables.wait_counts().items())),
        "view": record.tables.lag(now_us),
        "oldest": _oldest_run(record, now_us),
        "notices": _notices(record.meta("notices")),
    }


def _notices(text: str | None) -> dict[str, Any] | None:
    """Return how telling people goes (see `vedette.app.followers.notifications`); None where nobody
    is told.
    """
    if text is None:
        return None
    outbox = orjson.loads(text)
    numbers = {name: outbox[name] for name in ("sent", "failed", "dropped")}
    return {
        "pending": len(outbox["pending"]),
        **numbers,
        "failing": sorted(outbox["tries"]),
    }


def _agent(found: Mapping[str, int], would: Mapping[str, int]) -> dict[str, Any]:
    def under(prefix: str) -> dict[str, int]:
        names = (name for name in sorted(found) if name.startswith(prefix))
        return {name.removeprefix(prefix): found[name] for name in names}

    runs, decided = under("run."), under("decided.")
    return {
        "events": sum(runs.values()),
        "runs": runs,
        "permits": decided.get("permit", 0),
        "holds": decided.get("hold", 0),
        "denials": decided.get("deny", 0),
        "would": dict(would),
        "effects": under("effect."),
        "held": under("hold."),
        "dead": runs.get("dead", 0),
    }


def _oldest_run(record: StoreReader, now_us: int) -> dict[str, Any] | None:
    """Return the oldest run that nobody has handled yet, and its age."""
    ready = record.schedule.ready_runs(0, 1)
    if not ready:
        return None
    entry = record.ledger.entry(ready[0].position)
    at = read_entry(*entry).at if entry else None
    return {
        "run": ready[0].id,
        "agent": ready[0].agent,
        "at": at,
        "age_us": None if at is None else now_us - at,
    }


# --- cursors --------------------------------------------------------------------------------


def _run_item(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "agent": run.agent,
        "event": run.event,
        "key": run.key,
        "position": run.position,
        "state": run.state,
        "waits": run.waits,
        "turns": run.turn,
        "last": run.last,
        "wake_at": run.wake_us or None,
    }


def _page(
    record: StoreReader,
    now_us: int,
    items: Sequence[Mapping[str, Any]],
    *,
    older: str | None,
    newer: str | None,
) -> dict[str, Any]:
    return {
        "items": list(items),
        "older": older,
        "newer": newer,
        "head": record.ledger.last_seq(),
        "now": now_us,
    }


def _cursor(seq: int, beside: str) -> str:
    return f"{seq}.{beside}"


def _parse_cursor(cursor: str | None) -> tuple[int | None, str]:
    if cursor is None:
        return None, ""
    seq, _, beside = cursor.partition(".")
    if not (seq.isascii() and seq.isdigit() and len(seq) < 19):
        raise BadCommand(f"{cursor[:40]!r} is no cursor", mend="take `older` or `newer` of a page")
    return int(seq), beside


def _check_limit(limit: int) -> int:
    if not 1 <= limit <= MAX_PAGE:
        raise BadCommand(
            f"a page has 1 to {MAX_PAGE} items, not {limit}", mend="give another limit"
        )
    return limit
