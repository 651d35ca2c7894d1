"""A call that a worker has not answered yet, and the error of one that lost its worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from vedette.domain.base.errors import Temporary


class WorkerLost(Temporary):
    """The worker that was at this work was ended, or ended itself.

    `is_culprit` says that it was this work which ended it, as far as is known.
    """

    code = "worker-lost"
    is_culprit = False


class PendingCall:
    """One call that was sent to a worker. `build_frame` writes it, again for each worker."""

    __slots__ = ("build_frame", "future", "key", "kind", "number")

    def __init__(self, number: int, kind: int, key: str, build_frame: Callable[[], bytes]) -> None:
        self.number = number
        self.kind = kind
        self.key = key
        self.build_frame = build_frame
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def resolve(self, value: Any) -> None:
        """Give the answer to whoever still waits for it."""
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: Exception) -> None:
        """Raise an error where the answer is waited for."""
        if not self.future.done():
            self.future.set_exception(error)
