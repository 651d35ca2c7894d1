"""Doubt: which effects may have happened already in history that was lost.

A store that went back knows nothing of what came after. Runs that were open in it may have gone on,
and what a source delivers again may have been handled: with the same ids, so under the same keys.
Until it is found out, an effect of such a run is one that perhaps happened.

Nobody knows the ids that were accepted in the interval lost, and what an event says of itself is no
help: who delivers it again may stamp its `time` anew. So whatever is accepted after the loss is in
doubt, until a person says that nothing of it is delivered again.
"""

from __future__ import annotations

from msgspec import Struct


class LossWindow(Struct, frozen=True):
    """A loss: the seq of its entry, and where doubt ends.

    `until` is the last entry that is in doubt, 0 while nobody has said so.
    """

    seq: int
    until: int = 0

    def covers(self, position: int) -> bool:
        """Say whether the lost history may have held a run of the event accepted at an entry."""
        return not self.until or position <= self.until
