"""Doubt: after a restore, which effects may have happened already in the history that was lost.

A backup knows nothing of what came after it. Runs that were open in it may have gone on, and what
a source delivers again may have been handled: with the same ids, so under the same keys. Until it
is found out, an effect of such a run is one that perhaps happened.
"""

from __future__ import annotations

from datetime import UTC, datetime

from vedette.event import Event
from vedette.quick_data import dataclass


@dataclass(frozen=True, slots=True)
class Doubt:
    """A restore: the seq of its entry, when it was made (microseconds UTC), and where doubt ends.

    `until` is the last entry that is in doubt, 0 while nobody has said so.
    """

    seq: int
    at_us: int
    until: int = 0

    def covers(self, position: int, event: Event) -> bool:
        """Say whether the lost history may have held a run of this event at this position.

        Only a time that the source vouches for shows that an event is younger than the loss.
        """
        if position < self.seq:
            return True
        if self.until and position > self.until:
            return False
        if event.time is None or "time" not in event.vouched:
            return True
        try:
            found = datetime.fromisoformat(event.time)
        except ValueError:
            return True
        if found.tzinfo is None:
            found = found.replace(tzinfo=UTC)
        return int(found.timestamp() * 1_000_000) <= self.at_us
