"""SIGINT and SIGTERM to a run: the first asks it to end, the second ends the process.

A run that was asked to end and has not within two seconds is ended too, as a second signal would:
whatever was answered is durable, and the next run finds the rest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended
# How long a run may take to end after the first signal.
GRACE_S = 1.9


class Signals:
    """Takes SIGINT and SIGTERM while the block runs; outside the main thread it takes none.

    Not the event loop's own handlers: those run when the loop comes round, and a second signal is
    sent just when it does not. The same is true of the alarm that ends a run which takes too long.
    """

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self.first: int | None = None
        self._grace_s = grace_s
        self._handler: Callable[[], object] | None = None
        self._previous_handlers: dict[int, Any] = {}

    def set_handler(self, handler: Callable[[], object]) -> None:
        """Say what the first signal does; it is called at once if that has come already.

        `handler` is called between any two instructions of the main thread.
        """
        self._handler = handler
        if self.first is not None:
            handler()

    def _handle_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.first is not None:
            exit_process(EXIT_INTERRUPTED)
        self.first = number
        signal.setitimer(signal.ITIMER_REAL, self._grace_s)
        if self._handler is not None:
            self._handler()

    def _handle_timeout(self, _number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(Exception):
            sys.stderr.write("vedette: did not end in time; the next run goes on from the store\n")
        exit_process(EXIT_INTERRUPTED)

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                self._previous_handlers[number] = signal.signal(number, self._handle_signal)
            self._previous_handlers[signal.SIGALRM] = signal.signal(
                signal.SIGALRM, self._handle_timeout
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous_handlers:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, before in self._previous_handlers.items():
            signal.signal(number, before)
        self._previous_handlers.clear()


def exit_process(code: int) -> NoReturn:
    """End the process now: wait for no thread, and run nothing but what writes out its output."""
    with contextlib.suppress(Exception):
        if sys.stdout.isatty():
            sys.stdout.write("\x1b[?25h")  # the live view hides the cursor
    for stream in (sys.stdout, sys.stderr):
        # The signal may have come in the midst of a write to the same stream.
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
