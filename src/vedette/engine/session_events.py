"""The events that a run took in beside its own: those of its session (`vedette.engine.sessions`
has it take them), and those that its waits looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from vedette.domain.base.canonical import canonical_json
from vedette.domain.event import Event
from vedette.domain.ports.store import Store
from vedette.domain.readers import Readers

# Of how many events of a session one turn is told, and of how many bytes of them unless one is
# larger alone.
MAX_TOLD, MAX_TOLD_BYTES = 50, 100_000


class SessionEvents(Struct):
    """The events that joined a run, oldest first (None: its content is gone).

    `told` is how many of them its turns were told, the last in `last_turn`. `matched` are those
    that its waits looked for.
    """

    events: Sequence[Event | None] = ()
    told: int = 0
    last_turn: int = 0
    matched: Sequence[Event] = ()

    def read(self, store: Store, joined: Sequence[int], matched: Sequence[int]) -> None:
        """Read the events that were accepted at these positions."""
        if joined or matched:
            found = store.runs.events_at([*joined, *matched])
            self.events = [found[at].event if at in found else None for at in joined]
            self.matched = [found[at].event for at in matched if at in found]

    def list_keys(self) -> tuple[str, ...]:
        """Return the ids of all that the run took in, as far as their content is there."""
        taken = [*(one for one in self.events if one is not None), *self.matched]
        return tuple(dict.fromkeys(one.key for one in taken))

    def trace(self, event: Event) -> Event:
        """Return a run's own event with the lineage of all that the run took in, and with the most
        hops: what the run does comes of all of them.
        """
        taken = [event, *(one for one in self.events if one is not None), *self.matched]
        lineage = tuple(dict.fromkeys(name for one in taken for name in one.lineage))
        hops = max(len(lineage), *(one.hops for one in taken))
        if (lineage, hops) == (event.lineage, event.hops):
            return event
        return replace(event, lineage=lineage, hops=hops)

    @property
    def untold(self) -> int:
        """Return how many of them no turn was told of."""
        return len(self.events) - self.told

    def note_told(self, count: int, turn: int) -> None:
        """Say that a turn was told of the first so many."""
        if count > self.told:
            self.told, self.last_turn = count, turn

    def tell(self) -> list[dict[str, Any]]:
        """Return what the next turn is told of those that no turn was told of: the first, as many
        as one turn is told of. The rest is for the turns after it.
        """
        told: list[dict[str, Any]] = []
        size = 0
        for number, event in enumerate(self.events[self.told :][:MAX_TOLD], self.told):
            one: dict[str, Any] = {"number": number, "erased": True}
            if event is not None:
                one = {"number": number, "ref": f"ref:/session/{number}", **event.root()}
            size += len(canonical_json(one))
            if told and size > MAX_TOLD_BYTES:
                break
            told.append(one)
        return told

    def list_roots(self) -> dict[str, Any]:
        """Return what references may point at of them, as fields of `Roots`."""
        return {
            "session": [{} if one is None else one.root() for one in self.events],
            "session_vouched": [frozenset() if one is None else one.vouched for one in self.events],
        }

    def list_labels(self) -> dict[str, Readers]:
        """Return who may read them, by place, where not everybody may."""
        events = enumerate(self.events)
        return {
            f"session/{at}": one.readers for at, one in events if one and one.readers is not None
        }
