"""Hold groups: holds that are alike, of one agent, tool, rule and label, with the same sinks.

What they have in common is shown once, what differs with a few of its values. A group has no life
of its own: it is whatever is open and alike now, so an answer names the holds it is for and the
digest of what was shown of each (see `vedette.operations.approvals`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.base.errors import NotFound
from vedette.domain.ports.store import StoreReader
from vedette.ledger.history.lists import MAX_PAGE, hold_item

# How many holds are looked at, and how many of an argument's different values are shown.
MAX_HOLDS = 2000
_MAX_VALUES = 4
_EVENT_POINTERS = ("/event/id", "/event/subject")


def list_hold_groups(
    record: StoreReader, now_us: int, waits: str | None = "approval"
) -> dict[str, Any]:
    """Return the hold groups that people read, the one with the oldest open hold first.

    `cut` says that there are more holds than were looked at. Ages are microseconds.
    """
    items, cut = _holds(record, now_us, waits)
    found: dict[str, list[dict[str, Any]]] = {}
    for item in items:
        found.setdefault(hold_group_id(item), []).append(item)
    return {
        "items": [_group(name, members) for name, members in found.items()],
        "holds": len(items),
        "cut": cut,
        "head": record.ledger.last_seq(),
        "now": now_us,
    }


def show_hold_group(record: StoreReader, now_us: int, name: str) -> dict[str, Any]:
    """Return one hold group with all that is needed to answer each of its holds, under `members`.

    A unique beginning of its id will do. `cut` says that there are more holds than were looked at.
    Raises NotFound if no open hold is in it (any more).
    """
    members: dict[str, list[dict[str, Any]]] = {}
    items, cut = _holds(record, now_us, "approval")
    for item in items:
        id = hold_group_id(item)
        if id.startswith(name) and len(name) > len("grp_"):
            members.setdefault(id, []).append(item)
    if len(members) != 1:
        several = "may be any of " + ", ".join(members) if members else "is no group of open holds"
        raise NotFound(f"{name!r} {several}", mend="see `vedette hold --group`")
    ((id, held),) = members.items()
    return {**_group(id, held), "cut": cut}


def hold_group_id(item: Mapping[str, Any]) -> str:
    """Return the id of a hold's group: a function of what the holds of the group have in common."""
    # What an event is about makes no other kind of question: a sink that the event's own id or
    # subject fills is different in each hold, and shown among what differs.
    sinks = {
        argument["pointer"]: argument["value"]
        for argument in item["arguments"] or ()
        if argument["sink"] and argument["source"] not in _EVENT_POINTERS
    }
    alike = [item["agent"], item["tool"], item["rule"], item["label"], sinks]
    return "grp_" + sha256_hex(canonical_json(alike))[:16]


def digest_of_group(holds: Mapping[str, str]) -> str:
    """Return the digest of what a hold group shows of its holds: {hold: its `shown_digest`}."""
    return sha256_hex(canonical_json(dict(holds)))


def _holds(
    record: StoreReader, now_us: int, waits: str | None
) -> tuple[list[dict[str, Any]], bool]:
    items: list[dict[str, Any]] = []
    place, beside, seen = 0, "", 0
    while seen < MAX_HOLDS:
        rows = record.runs.holds_page(after=place, beside=beside, limit=MAX_PAGE)
        seen += len(rows)
        for row in rows:
            if row.hold == "open" and waits in (None, row.waits):
                items.append(hold_item(record, row, now_us))
        if len(rows) < MAX_PAGE:
            return items, False
        place, beside = rows[-1].seq, rows[-1].id
    return items, True


def _group(name: str, members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = members[0]
    same, differ = _compare_arguments(members)
    sinces = [item["since"] for item in members if item["since"] is not None]
    expires = [item["expires"] for item in members if item["expires"]]
    return {
        "group": name,
        "agent": first["agent"],
        "tool": first["tool"],
        "rule": first["rule"],
        "label": first["label"],
        "count": len(members),
        "since": min(sinces, default=None),
        "age_us": max((item["age_us"] for item in members if item["age_us"]), default=None),
        "expires": min(expires, default=None),
        "same": same,
        "differ": differ,
        "holds": {item["hold"]: item["shown_digest"] for item in members},
        "members": members,
    }


def _compare_arguments(
    members: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the arguments that all holds share, and those that differ with some values."""
    values: dict[str, list[Any]] = {}
    for item in members:
        for argument in item["arguments"] or ():
            values.setdefault(argument["name"], []).append(argument["value"])
    same, differ = {}, {}
    for name, given in values.items():
        unique = {orjson.dumps(value, option=orjson.OPT_SORT_KEYS): value for value in given}
        if len(unique) == 1 and len(given) == len(members):
            same[name] = given[0]
        else:
            differ[name] = {"values": list(unique.values())[:_MAX_VALUES], "different": len(unique)}
    return same, differ
