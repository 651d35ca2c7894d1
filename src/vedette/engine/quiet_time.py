"""Quiet time: how long nobody asks a target what came of a call.

A target that has not seen a call yet, or is still at it, truthfully answers that it knows nothing
of it. So that answer counts only once the call's time is over: then it has taken effect, or never
will. TCP keeps such a quiet time after a crash, for the same reason (RFC 9293, 3.4.3).

No wall clock says when that is, since one may be set, or be another machine's. Of a call that this
worker made it knows the instant by its own monotonic clock. Every other call of a key was made
before this worker held the key: whoever held it has ended, or may start nothing of it any more. So
it is asked about when the key has been held for as long as a call may take.
"""

from __future__ import annotations

from msgspec import Struct, field

# Beyond the call's own time: for the permit on its way to whoever makes the call, and for the hands
# of an engine that was killed, which outlive it by a moment.
MARGIN_US = 1_000_000
# Leases of which it is remembered since when they are held. An older one is held anew.
_LEASES = 4096


class QuietTimes(Struct):
    """Since when this worker holds its leases, and when it made calls that may be asked about.

    All instants are monotonic microseconds of this process; nothing of this is durable.
    """

    _lease_since: dict[int, int] = field(default_factory=dict)
    _calls: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note_lease(self, epoch: int, now_us: int) -> None:
        """Say that something is handled under a lease; the first time, its quiet time begins."""
        if epoch in self._lease_since:
            return
        self._lease_since[epoch] = now_us
        if len(self._lease_since) > _LEASES:
            del self._lease_since[next(iter(self._lease_since))]

    def begin_call(self, action: str, epoch: int, now_us: int) -> None:
        """Say that a call is let go now."""
        self._calls[action] = (epoch, now_us)

    def end_call(self, action: str) -> None:
        """Forget a call: what came of it is known."""
        self._calls.pop(action, None)

    def remaining_us(self, action: str, epoch: int, lasts_us: int, now_us: int) -> int:
        """Return for how long a target must not be asked yet about a call that may take `lasts_us`.

        0 if it may be asked now.
        """
        self.note_lease(epoch, now_us)
        under, since = self._calls.get(action, (epoch, self._lease_since[epoch]))
        if under != epoch:
            # The key was another worker's since, who may have called again.
            since = self._lease_since[epoch]
        return max(0, since + lasts_us + MARGIN_US - now_us)
