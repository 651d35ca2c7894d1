"""Queries of the operator API: each read takes the record, the time and the query.

A query names nothing but what its read takes; all that is read is paged and bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vedette.domain.base.errors import BadCommand
from vedette.domain.erasure import ErasureTarget
from vedette.domain.ports.store import StoreReader

Query = dict[str, str]
_FILTERS = frozenset(
    {"agent", "kind", "run", "event", "rule", "outcome", "policy_rev", "actor"}
)  # fmt: skip


def read_changes(record: StoreReader, now_us: int, query: Query) -> dict[str, Any]:
    """Answer the operator API's query what was touched after an entry (`after`, `topics`)."""
    from vedette.ledger.history.changes import list_ledger_changes

    _check_names(query, "after", "topics")
    topics = query.get("topics")
    wanted = None if topics is None else frozenset(topics.split(","))
    after = _parse_number(query, "after")
    if after is None:
        raise BadCommand("after is a place in the ledger", mend="take `head` of an answer")
    return list_ledger_changes(record.ledger, after, wanted)


def read_holds(record: StoreReader, now_us: int, query: Query) -> dict[str, Any]:
    """Answer the operator API's query for a page of holds (`waits`, `after`, `limit`)."""
    from vedette.ledger.history.lists import inbox

    _check_names(query, "waits", "after", "limit")
    waits = query.get("waits", "approval")
    return inbox(
        record,
        now_us,
        waits=None if waits == "all" else waits,
        after=query.get("after"),
        **_parse_limit(query),
    )


def read_runs(record: StoreReader, now_us: int, query: Query) -> dict[str, Any]:
    """Answer the operator API's query for runs (`agent`, `state`, `before`, `after`, `limit`)."""
    from vedette.ledger.history.lists import runs_page

    _check_names(query, "agent", "state", "before", "after", "limit")
    given: dict[str, Any] = {
        name: query.get(name) for name in ("agent", "state", "before", "after")
    }
    return runs_page(record, now_us, **given, **_parse_limit(query))


def read_entries(record: StoreReader, now_us: int, query: Query) -> dict[str, Any]:
    """Answer the operator API's query for entries (`at`, `before`, `after`, `limit`, _FILTERS)."""
    from vedette.ledger.history.changes import entries_page

    _check_names(query, "at", "before", "after", "limit", *_FILTERS)
    filters: dict[str, Any] = {name: query[name] for name in query if name in _FILTERS}
    if "policy_rev" in filters:
        filters["policy_rev"] = _parse_number(query, "policy_rev")
    return entries_page(
        record.ledger,
        now_us,
        filters,
        at_us=_parse_number(query, "at"),
        before=_parse_number(query, "before"),
        after=_parse_number(query, "after"),
        **_parse_limit(query),
    )


def read_dead_letters(record: StoreReader, now_us: int, query: Query) -> dict[str, Any]:
    """Answer the operator API's query for dead letters (`agent`, `error`, `before`, `limit`)."""
    from vedette.ledger.history.dead_letters import dead_letter_page

    _check_names(query, "agent", "error", "before", "limit")
    given: dict[str, Any] = {name: query.get(name) for name in ("agent", "error", "before")}
    return dead_letter_page(record, now_us, **given, **_parse_limit(query))


def erasable_content(record: StoreReader, now_us: int, query: Query) -> dict[str, Any]:
    """Answer the operator API's query what `erase` would find (`event`, `subject` or `entry`)."""
    _check_names(query, "event", "subject", "entry")
    if len(query) != 1:
        raise BadCommand("say what to erase", mend="give one of event, subject and entry")
    entry = _parse_number(query, "entry")
    target = ErasureTarget.of(event=query.get("event"), subject=query.get("subject"), entry=entry)
    found = record.runs.survey(target)
    return found.to_json(len(record.memories.candidates(found.events)))


def read_range(record: StoreReader, now_us: int, query: Query) -> dict[str, Any]:
    """Answer the operator API's query for a range of an artefact (`id`, `offset`, `length`)."""
    from vedette.ledger.history.artefacts import read_artefact

    _check_names(query, "id", "offset", "length")
    given = {name: _parse_number(query, name) for name in ("offset", "length") if name in query}
    found = {name: number for name, number in given.items() if number is not None}
    return read_artefact(record, query.get("id", ""), **found)


def read_releases(record: StoreReader, now_us: int, query: Query) -> dict[str, Any]:
    """Answer the operator API's query for the releases of an `agent`, newest first."""
    from vedette.ledger.history.release_history import read_release_history

    _check_names(query, "agent")
    agent = query.get("agent", "")
    periods = read_release_history(record.ledger, agent)
    return {"agent": agent, "releases": [period.to_json() for period in periods]}


READS: Mapping[str, Callable[[StoreReader, int, Query], dict[str, Any]]] = {
    "changes": read_changes,
    "holds": read_holds,
    "runs": read_runs,
    "entries": read_entries,
    "dead": read_dead_letters,
    "erasable": erasable_content,
    "artefact": read_range,
    "releases": read_releases,
}


def _check_names(query: Query, *names: str) -> None:
    odd = sorted(set(query) - set(names))
    if odd:
        raise BadCommand(f"there is no {odd[0]!r} to ask for", mend=f"one of: {', '.join(names)}")


def _parse_number(query: Query, name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BadCommand(f"{name} is a whole number", mend="for example 0")
    return int(text)


def _parse_limit(query: Query) -> dict[str, Any]:
    found = _parse_number(query, "limit")
    return {} if found is None else {"limit": found}
