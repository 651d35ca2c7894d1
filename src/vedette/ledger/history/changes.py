"""Changes of the ledger since a place in it, and pages of its entries.

A page goes by a closed list of filters, each of which an index answers; anything else is refused
rather than scanned for. Changes name what is to be looked at again, never what it says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from vedette.domain.base.errors import BadCommand
from vedette.domain.entry import KINDS
from vedette.domain.ports.ledger_reader import LedgerReader

MAX_PAGE = 200
# How far behind a reader may be and still be told what changed.
MAX_GAP = 2000

FILTERS = (
    (), ("agent",), ("kind",), ("agent", "kind"), ("run",), ("event",), ("rule", "outcome"),
    ("policy_rev", "outcome"), ("actor",),
)  # fmt: skip
_OUTCOMES = ("permit", "hold", "deny")

TOPICS = frozenset(
    {"head", "inbox", "hold", "run", "agent", "fleet", "policy", "memory", "stop", "budget"}
)
_HOLD_KINDS = (
    "hold.approved", "hold.denied", "hold.expired", "hold.claimed", "hold.noted",
    "effect.unknown",
)  # fmt: skip
_TOPIC_BY_PREFIX = {"policy": "policy", "stop": "stop", "budget": "budget", "fleet": "fleet"}


def entries_page(
    ledger: LedgerReader,
    now_us: int,
    filters: Mapping[str, Any] | None = None,
    *,
    at_us: int | None = None,
    before: int | None = None,
    after: int | None = None,
    limit: int = 50,
) -> dict[str, Any]:
    """Return a page of the ledger's entries, newest first; bodies are not loaded.

    `before` and `after` are the `older` and `newer` of another page; `at_us` instead opens the
    page that ends at an instant. Raises BadCommand for filters that no index answers, and for a
    limit or cursor that is none.
    """
    wanted = _check_filters(dict(filters or {}))
    if not 1 <= limit <= MAX_PAGE:
        raise BadCommand(
            f"a page has 1 to {MAX_PAGE} items, not {limit}", mend="give another limit"
        )
    if sum(place is not None for place in (at_us, before, after)) > 1:
        raise BadCommand("a page is at an instant, before or after an entry", mend="give one")
    if any(place is not None and not 0 <= place < 2**62 for place in (at_us, before, after)):
        raise BadCommand("that is no place in the ledger", mend="take `older` or `newer` of a page")
    if at_us is not None:
        before = ledger.seq_at(at_us) + 1
    found = ledger.entries_page(wanted, before=before, after=after, limit=limit + 1)
    more = len(found) > limit
    if more:
        found = found[1:] if after is not None else found[:limit]
    older = bool(found) and (more or after is not None)
    newer = bool(found) and (more if after is not None else before is not None)
    return {
        "items": [_item(raw) for _, raw in found],
        "older": found[-1][0] if older else None,
        "newer": found[0][0] if newer else None,
        "head": ledger.last_seq(),
        "now": now_us,
    }


def list_ledger_changes(
    ledger: LedgerReader, after: int, topics: frozenset[str] | None = None
) -> dict[str, Any]:
    """Return what was touched after a place in the ledger: [topic, id, seq], newest per id.

    `topics` are names out of TOPICS; None is all. `gap` says that the place is too far behind, or
    beyond the end: then there are no items and everything is to be read again. `head` is where to
    ask from next. Raises BadCommand for a topic that is none.
    """
    if topics is not None and not topics <= TOPICS:
        raise BadCommand(
            f"no topic {sorted(topics - TOPICS)[0]!r}", mend=f"one of: {', '.join(sorted(TOPICS))}"
        )
    head = ledger.last_seq()
    if not head - MAX_GAP <= after <= head:
        return {"items": [], "head": head, "gap": True}
    newest: dict[tuple[str, str], int] = {}
    for seq, raw in ledger.entries_after(after, MAX_GAP):
        head = max(head, seq)
        for touched in _find_topics(orjson.loads(raw)):
            if topics is None or touched[0] in topics:
                newest[touched] = seq
    items = sorted((seq, topic, id) for (topic, id), seq in newest.items())
    return {"items": [[topic, id, seq] for seq, topic, id in items], "head": head, "gap": False}


def _find_topics(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    kind, action = entry["kind"], entry.get("action")
    yield "head", ""
    for topic in ("agent", "run"):
        if topic in entry:
            yield topic, entry[topic]
    if kind.startswith("memory."):
        # Named by its bank when it is proposed, and then as `bank/id`.
        yield "memory", str(entry.get("memory")).partition("/")[0]
    if action is not None and (kind in _HOLD_KINDS or kind == "action.decided"):
        # A decision opens a hold or ends one.
        yield "hold", action.replace("act_", "hold_")
        yield "inbox", ""
    room = _TOPIC_BY_PREFIX.get(kind.partition(".")[0])
    if room is not None:
        yield room, ""
    elif kind.startswith("clock.") or kind in ("store.opened", "store.restored", "run.dead"):
        yield "fleet", ""


def _item(raw: bytes) -> dict[str, Any]:
    entry = orjson.loads(raw)
    del entry["v"]
    return {**entry, "body": "body" in entry}


def _check_filters(filters: dict[str, Any]) -> dict[str, Any]:
    if not any(set(names) == set(filters) for names in FILTERS):
        known = "; ".join(" and ".join(names) for names in FILTERS if names)
        raise BadCommand(
            f"no index finds entries by {' and '.join(sorted(filters)) or 'that'}",
            mend=f"filter by one of: {known}",
        )
    for name, value in filters.items():
        if name == "policy_rev":
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
                raise BadCommand(f"{value!r} is no revision", mend="give its number")
        elif not isinstance(value, str) or "\0" in value:
            raise BadCommand(f"{name} is a text", mend="give its name or id")
    if filters.get("kind", "run.dead") not in KINDS:
        raise BadCommand(f"no kind of entry is {filters['kind']!r}", mend="see docs/telemetry.md")
    if filters.get("outcome", "deny") not in _OUTCOMES:
        raise BadCommand(
            f"{filters['outcome']!r} is no outcome", mend=f"one of: {', '.join(_OUTCOMES)}"
        )
    return filters
