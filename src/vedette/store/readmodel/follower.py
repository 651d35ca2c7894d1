"""The follower: folds entries into the read model as they are committed, until nobody wakes it.

It is woken by a byte on a pipe and ends when the pipe does: whoever commits holds the other end, so
that a follower outlives no runner. One follows at a time; another one waits for the lock.
"""

from __future__ import annotations

import os
import select

from vedette.domain.base import machine
from vedette.store.readmodel.model import ViewHome, ViewWriter

# From one fold to the next at least so long while there is something to fold: a batch costs more
# than its entries if it is small.
GATHER_S = 0.25
_LOCK_POLL_S = 0.25
_MAX_WAKES = 65_536


def follow(home: ViewHome, wakes: int, poll_s: float | None = None) -> None:
    """Follow the ledger until the pipe `wakes` is closed at its other end.

    With `poll_s` the ledger is looked at so often though nobody wakes us: others may commit whose
    pipe is not ours. Raises what the databases raise; whoever started it starts it again.
    """
    try:
        while True:
            try:
                if not _follow_model(home, wakes, poll_s):
                    return
            except Exception as error:
                if not home.recover(error):
                    raise
            # It was made anew, or its lock is lost: from the beginning, if not at once.
            home.close()
            if not _pause(wakes, GATHER_S):
                return
    finally:
        home.close()


def _follow_model(home: ViewHome, wakes: int, poll_s: float | None) -> bool:
    """Follow for as long as the model is the one that was opened; False if the pipe was closed."""
    entries, view = home.open()
    while not home.try_lock():
        # Not at each wake: the lock is asked for so often however much is committed.
        if not _pause(wakes, _LOCK_POLL_S):
            return False
    try:
        writer = ViewWriter(entries, view)
        while home.is_current():
            began_s = machine.monotonic_s()
            while writer.advance():
                if not _wait(wakes, 0):
                    return False
            if not _wait(wakes, poll_s):
                return False
            # What comes now comes with more: it is taken with that.
            machine.sleep_s(max(0.0, began_s + GATHER_S - machine.monotonic_s()))
        return True
    finally:
        # A session that is closed may hold the lock of a server for a moment more.
        home.unlock()


def _pause(wakes: int, pause_s: float) -> bool:
    """Let so long pass whoever wakes us, and take up the wakes. False if the pipe was closed."""
    poller = select.poll()
    poller.register(wakes, 0)  # its end is told all the same
    poller.poll(pause_s * 1000)
    return _wait(wakes, 0)


def _wait(wakes: int, timeout_s: float | None) -> bool:
    """Wait for a wake, or so long; take up all there are. False if the pipe was closed."""
    poller = select.poll()
    poller.register(wakes, select.POLLIN)
    if not poller.poll(None if timeout_s is None else timeout_s * 1000):
        return True
    return bool(os.read(wakes, _MAX_WAKES))
