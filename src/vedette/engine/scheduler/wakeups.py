"""Waking: runs that waited and may go on, and those whose turn has come.

By the clock: what the store says is due. By a target: its breaker lets a trial through, or has
closed. By the key: the run in front is settled (`parking`).
"""

from __future__ import annotations

from contextlib import suppress

from vedette.domain.base.errors import StoreFailed
from vedette.domain.run import ActionRow, Run
from vedette.engine.quiet_time import MARGIN_US
from vedette.engine.run_context import Case
from vedette.engine.scheduler.backpressure import Supply
from vedette.engine.services import Line
from vedette.engine.tool_calls import LAST_RETRY_US

# How often it is looked for what is due, and how many runs that woke may be in memory at once.
_EVERY_S = 0.05
_WINDOW = 256
# How many more are looked at while ends of holds are not counted: they are due, and stay.
_HELD = 4096
# No more than this share of the time goes into looking, so a long look is followed by a longer
# pause. But a look may have been long because a server did not answer: it says nothing of the next.
_SHARE = 20
MOST_PAUSE_S = 1.0


class Waking:
    """Brings runs that waited back into memory. Belongs to a dispatcher."""

    def __init__(self, line: Line, supply: Supply) -> None:
        self._line = line
        self._supply = supply
        self._here: dict[str, str] = {}
        self._released: set[str] = set()
        self._later: set[str] = set()
        self._tried_us: dict[str, int] = {}
        self._lease_rev = line.store.lease_rev
        self.pause_s = _EVERY_S
        self._stale = False

    def start(self) -> None:
        """Find again in the store who is parked; the first of each key is looked at at once."""
        line, now = self._line, self._line.clock.now_us()
        runs, since_us = [], line.clock.monotonic_us()
        for run in line.store.parked():
            epoch = line.store.lease(run)
            if epoch is not None:
                # Its target may be asked that much sooner when it comes back.
                line.quiet.hold(epoch, since_us)
                runs.append(run)
        line.parking.clear()
        for run in runs:
            # A retry comes back by the clock, and sooner than what is parked.
            if run.wake_us > now + LAST_RETRY_US:
                line.parking.wait_behind(run)
            else:
                line.parking.wait(run)
        for run in runs:
            line.parking.wake_if_first(run.id, (run.agent, run.key))

    def look_anew(self) -> None:
        """Find parked runs again at the next look: the clock that they wait by was set."""
        self._stale = True
        self._tried_us.clear()

    def leases_moved(self) -> bool:
        """Say whether this worker has been given other runs; then what it may handle is reread."""
        rev = self._line.store.lease_rev
        if rev == self._lease_rev:
            return False
        self._supply.start()
        self.start()
        # Only now: if the store did not answer it is done again.
        self._lease_rev = rev
        return True

    @property
    def due(self) -> bool:
        """Say whether somebody was woken and is not in memory yet."""
        return self._line.parking.any_woken

    def soon(self, by_us: int) -> bool:
        """Say whether a target that runs wait for is tried again by an instant."""
        line = self._line
        return any(
            breaker.retry_us <= by_us and line.parking.waiting(breaker.target)
            for breaker in line.breakers.listed()
        )

    def look(self, now_us: int) -> None:
        """Bring in what may go on now."""
        line = self._line
        began = line.clock.monotonic_us()
        self._supply.look_for_news()
        self._stale |= bool(self._supply.fetch_back())
        if self._stale:
            self.start()
            self._stale = False
        # What could not be loaded when there was room for it, because the store did not answer.
        self._supply.load_all()
        for breaker in line.breakers.listed():
            # One trial at a time; if nothing comes of it another is sent a second later.
            if breaker.ripe(now_us) and self._tried_us.get(breaker.target, 0) <= now_us:
                line.parking.wake_first(breaker.target)
                self._tried_us[breaker.target] = now_us + 1_000_000
        self._by_turn()
        self._by_clock(now_us)
        took_s = (line.clock.monotonic_us() - began) / 1_000_000
        self.pause_s = min(MOST_PAUSE_S, max(_EVERY_S, took_s * _SHARE))

    def _by_turn(self) -> None:
        line = self._line
        while len(self._here) < _WINDOW and (name := line.parking.woken()) is not None:
            try:
                run = line.store.run(name)
            except StoreFailed:
                line.parking.wake(name)
                raise
            if run is None or run.state in ("done", "dead"):
                if run is not None:
                    line.parking.leave(run)
                continue
            if name in self._supply.known:
                # It is about to wait, and was woken before it did.
                self._later.add(name)
            elif self._bring(run):
                self._released.add(name)

    def _by_clock(self, now_us: int) -> None:
        line = self._line
        # Agents that are stopped, or have many runs here that woke, are left out: the window
        # is for the others.
        share = _WINDOW // 2
        counts: dict[str, int] = {}
        for agent in self._here.values():
            counts[agent] = counts.get(agent, 0) + 1
        full = [agent for agent, number in counts.items() if number >= share]
        stopped = [name for name in line.fleet.agents if line.stops.agent(name)]
        most = _WINDOW + len(self._here)
        held_us = line.clock.expiry_us()
        if held_us < now_us:
            most += _HELD
        for run in line.store.due(now_us, most, [*stopped, *full]):
            # What waits for a person is not over while nobody can tell the time.
            if run.waits != "approval" or run.wake_us <= held_us:
                self._bring(run)

    def _bring(self, run: Run) -> bool:
        if self._line.store.lease(run) is None or not self._supply.woken(run):
            return False
        self._here[run.id] = run.agent
        return True

    # --- out --------------------------------------------------------------------------------

    def release(self, case: Case) -> None:
        """Let a run that was woken try what it was parked with, though its time has not come.

        As often as it is taken up until it leaves memory: what came of a try may not be durable.
        """
        if case.run.id in self._released:
            for row in case.rows:
                if row.waits == "target" and not self._line.parking.put_off(row):
                    row.not_before_us = 0

    def finished(self, case: Case) -> None:
        """A run is settled, or waits: whoever waits behind it may go on, or not yet."""
        run, parking = case.run, self._line.parking
        waits = run.state == "waiting" and any(
            row.waits == "target" and not row.settled for row in case.rows
        )
        if not waits:
            parking.leave(run)
            return
        parking.wait(run)
        # One row may be parked while another came back by the clock: the clock wakes nobody for it.
        parked = any(self._parked(case, row) for row in case.rows)
        if parked and not parking.waits_for_target(run):
            parking.wait_behind(run)
            parking.wake_if_first(run.id, (run.agent, run.key))

    def _parked(self, case: Case, row: ActionRow) -> bool:
        """Say whether a row was parked: it waits longer than any call, and no target asked for it.

        It may have been tried before: a person had it repeated, or its outcome is asked for.
        """
        if row.waits != "target" or row.settled or self._line.parking.put_off(row):
            return False
        tool = case.agent.tools.get(row.tool)
        longest_us = max(LAST_RETRY_US, tool.timeout_us + MARGIN_US if tool else 0)
        return row.not_before_us > self._line.clock.now_us() + longest_us

    def gone(self, run: Run) -> None:
        """A run is not in memory any more."""
        self._here.pop(run.id, None)
        self._released.discard(run.id)
        if run.id in self._later:
            self._later.discard(run.id)
            self._line.parking.wake(run.id)
        if self._line.parking.any_woken:
            # If the store does not answer they are looked for again by the clock.
            with suppress(StoreFailed):
                self._by_turn()
