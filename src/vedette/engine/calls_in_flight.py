"""Calls in flight: how many there may be, which are on their way, and what is not known of them.

A target that has not seen a call yet, or is still at it, truthfully answers that it knows nothing
of it. So that answer counts only once the call's *quiet time* is over: then it has taken effect, or
never will. TCP keeps such a quiet time after a crash, for the same reason (RFC 9293, 3.4.3).

No wall clock says when that is, since one may be set, or be another machine's. Of a call that this
worker made it knows the instant by its own monotonic clock. Every other call of a key was made
before this worker held the key: whoever held it has ended, or may start nothing of it any more. So
it is asked about when the key has been held for as long as a call may take.

Nothing of this is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from vedette.domain.base.clock import Clock
from vedette.domain.row_proof import STARTED_KIND, EntryRecord
from vedette.domain.run import ActionRow, Run
from vedette.domain.tool import Tool
from vedette.engine.key_state import KeyedLocks

# Of the whole fleet, and of one agent at one target. An agent's tools have more threads than this,
# and refuse none before more hang: one target's calls leave room for another's.
CALLS = 512
CALLS_AT_A_TARGET = 12
# How often a call may take its tool's time: for an earlier one of its key, for itself, and for
# what the target says of it.
TIMES_TIMEOUT = 3
# Beyond the call's own time: for the permit on its way to whoever makes the call, and for the tools
# of an engine that was killed, which outlive it by a moment.
MARGIN_US = 1_000_000
# Leases of which it is remembered since when they are held. An older one is held anew.
_LEASES = 4096


class CallsInFlight:
    """The calls of this process. Belongs to one event loop. All instants are monotonic (µs).

    `unrecorded` are actions whose call began here and whose outcome is not durable; `start_seq` is
    the ledger's last entry before this process.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.fleet_slots = asyncio.Semaphore(CALLS)
        self.unrecorded: set[str] = set()
        self.start_seq = 0
        self._agent_slots: dict[tuple[str, str], asyncio.Semaphore] = {}
        self._revisions: dict[CallSlot, int] = {}
        # Until when the tool of each (agent, key) with a call may take.
        self._deadlines: dict[tuple[str, str], int] = {}
        self._effect_locks = KeyedLocks()
        self._lease_since: dict[int, int] = {}
        # When a call began, and under which lease, by action.
        self._starts: dict[str, tuple[int, int]] = {}

    # --- on their way -----------------------------------------------------------------------

    def effects_lock(self, run: Run) -> AbstractAsyncContextManager[None]:
        """Let the effects of one key be tried one after the other, in the order they came."""
        key = (run.agent, run.key)
        return self._effect_locks.lock(key, lambda: self._deadlines.pop(key, None))

    def slot(self, run: Run, tool: Tool, target: str, policy_rev: int) -> CallSlot:
        """Return what holds a slot for one call, which counts as in flight under `policy_rev`.

        Slots are an agent's own at each target: what hangs takes none from anybody else. Its key
        counts as calling (`keys_with_calls`) until its effects are let go of (`effects_lock`).
        """
        slots = self._agent_slots.get((run.agent, target))
        if slots is None:
            slots = asyncio.Semaphore(CALLS_AT_A_TARGET)
            self._agent_slots[run.agent, target] = slots
        return CallSlot(self, slots, (run.agent, run.key), tool.timeout_us, policy_rev)

    def keys_with_calls(self) -> list[tuple[str, str]]:
        """Return (agent, key) of calls whose outcome is not durable and whose tool has time left.

        May be asked by any thread. Raises RuntimeError if the calls changed meanwhile.
        """
        now = self._clock.monotonic_us()
        return [key for key, until_us in self._deadlines.items() if until_us > now]

    def count_before(self, policy_rev: int) -> int:
        """Return how many calls are on their way that started under an older revision."""
        return sum(1 for revision in self._revisions.values() if revision < policy_rev)

    # --- what is not known of them ----------------------------------------------------------

    def begin(self, action: str, epoch: int) -> None:
        """Note that the call of an action begins now, under a lease."""
        self.unrecorded.add(action)
        self._starts[action] = (epoch, self._clock.monotonic_us())

    def end(self, action: str) -> None:
        """Forget when a call began: what came of it is known."""
        self._starts.pop(action, None)

    def may_have_started(self, row: ActionRow, settles: str | None, *, others: bool) -> bool:
        """Say whether a call may have been made that left no mark before it.

        A tool that may be repeated under its key needs none, so after a crash nothing durable
        tells. What this process planned it knows; `others` says that another worker may have begun
        it. `settles` is the tool's, None for one that is gone.
        """
        if row.effect != "intended" or settles not in ("idempotent", None):
            return False
        has_started = row.tries > 0 or row.id in self.unrecorded or row.last <= self.start_seq
        return has_started or others

    def note_lease(self, epoch: int, since_us: int) -> None:
        """Say that something is handled under a lease; the first time, its quiet time begins."""
        if epoch in self._lease_since:
            return
        self._lease_since[epoch] = since_us
        if len(self._lease_since) > _LEASES:
            del self._lease_since[next(iter(self._lease_since))]

    def quiet_us(
        self, row: ActionRow, epoch: int, tool: Tool | None, entries: Sequence[EntryRecord]
    ) -> int:
        """Return what is left of a call's quiet time (µs): nobody is asked about it before.

        Whoever asks about a call passes here, a person too: until then *absent* may mean *not yet*.
        The `entries` of the action say what its tool was given when it was started, which may be
        more than it is given today; the tool may be gone by now (None).
        """
        now = self._clock.monotonic_us()
        self.note_lease(epoch, now)
        under, since = self._starts.get(row.id, (epoch, self._lease_since[epoch]))
        if under != epoch:
            # The key was another worker's since, who may have called again.
            since = self._lease_since[epoch]
        given = [entry.get("timeout") or 0 for entry, _ in entries if entry["kind"] == STARTED_KIND]
        lasts_us = max(tool.timeout_us if tool else 0, *given[-1:], 0)
        return max(0, since + lasts_us + MARGIN_US - now)


class CallSlot:
    """The slots of one call, held within an `async with`, and that it is in flight."""

    __slots__ = ("_agent_slots", "_calls", "_key", "_policy_rev", "_timeout_us")

    def __init__(
        self,
        calls: CallsInFlight,
        agent_slots: asyncio.Semaphore,
        key: tuple[str, str],
        timeout_us: int,
        policy_rev: int,
    ) -> None:
        self._calls, self._agent_slots, self._key = calls, agent_slots, key
        self._timeout_us, self._policy_rev = timeout_us, policy_rev

    async def __aenter__(self) -> None:
        calls = self._calls
        await self._agent_slots.acquire()
        try:
            await calls.fleet_slots.acquire()
        except BaseException:
            self._agent_slots.release()
            raise
        calls._revisions[self] = self._policy_rev
        until_us = calls._clock.monotonic_us() + TIMES_TIMEOUT * self._timeout_us
        calls._deadlines[self._key] = until_us

    async def __aexit__(self, *ended: object) -> None:
        del self._calls._revisions[self]
        self._calls.fleet_slots.release()
        self._agent_slots.release()
