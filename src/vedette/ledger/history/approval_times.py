"""Approval times: how many holds each person decided, how fast, and how often with a yes.

Not to rank people. Whoever approves everything, within seconds, does not look; and the hold then
keeps nothing out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from statistics import median_low
from typing import Any

from msgspec import Struct, field

from vedette.ledger.history.entry_view import AnswerEntry, DecisionEntry, EntryView, read_entry

# Nobody reads an action in less (microseconds).
FAST_US = 3_000_000

Entries = Callable[[str, str], list[tuple[int, bytes, bytes | None]]]


class _Person(Struct):
    approved: int = 0
    denied: int = 0
    durations_us: list[int] = field(default_factory=list)
    fast_count: int = 0


class AnswerTimes:
    """Counts people's answers to holds for the report, in the order of the ledger's entries.

    `entries` finds the entries of an action, for a hold that was opened before the first entry
    taken; without it such an answer counts, and its time does not.
    """

    def __init__(self, entries: Entries | None = None) -> None:
        self._entries = entries
        self._opened: dict[str, int] = {}
        self._people: dict[str, _Person] = {}

    def add_entry(self, entry: EntryView) -> None:
        """Take the next entry."""
        action, at = str(entry.action), int(entry.at or 0)
        if isinstance(entry, DecisionEntry) and entry.needs_approval:
            self._opened.setdefault(action, at)
        elif isinstance(entry, AnswerEntry) and entry.answer != "expired":
            person = self._people.setdefault(str(entry.actor or "?"), _Person())
            person.approved += entry.answer == "approved"
            person.denied += entry.answer == "denied"
            opened = self._opened.pop(action, None)
            if opened is None:
                opened = self._find_opening(action, entry.seq)
            if opened is not None:
                took = max(0, at - opened)
                person.durations_us.append(took)
                person.fast_count += took < FAST_US

    def _find_opening(self, action: str, seq: int) -> int | None:
        """Return when a hold was opened that was open before the first entry taken."""
        if self._entries is None:
            return None
        opened = None
        for raw in self._entries("action", action):
            entry = read_entry(*raw)
            if entry.seq >= seq:
                break
            if isinstance(entry, AnswerEntry) and entry.answer != "expired":
                opened = None
            elif opened is None and isinstance(entry, DecisionEntry) and entry.needs_approval:
                opened = int(entry.at or 0)
        return opened

    def to_json(self) -> list[dict[str, Any]]:
        """Return who answered, the most frequent first. `median_us` is null where none is known.

        `share_approved` is in thousandths; `fast` counts answers within three seconds.
        """
        found = sorted(
            self._people.items(), key=lambda item: (-item[1].approved - item[1].denied, item[0])
        )
        return [
            {
                "by": by,
                "answered": person.approved + person.denied,
                "approved": person.approved,
                "denied": person.denied,
                "share_approved": person.approved * 1000 // (person.approved + person.denied),
                "median_us": median_low(person.durations_us) if person.durations_us else None,
                "fast": person.fast_count,
            }
            for by, person in found
        ]


def format_answer_times(
    people: list[Mapping[str, Any]], safe: Callable[[Any, int], str]
) -> Iterator[str]:
    """Yield the lines of the report's section on who answered holds, how fast, and with what."""
    if not people:
        yield "  nobody answered a hold"
    for one in people[:10]:
        after = "an unknown time"
        if one["median_us"] is not None:
            after = f"{one['median_us'] / 1e6:,.0f} s"
        yield (
            f"  {safe(one['by'], 40)}: {one['answered']:,} answered, "
            f"{one['share_approved'] / 10:.0f} % approved, half within {after}"
        )
        if one["fast"]:
            yield f"    {one['fast']:,} within 3 s of the hold's opening: nobody reads that fast"
    if len(people) > 10:
        yield f"  and {len(people) - 10:,} more"
