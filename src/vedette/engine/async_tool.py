"""What a tool of the engine's whose outcome comes later says of itself (`async_completion`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from vedette.domain.action import Action
from vedette.domain.effect import Outcome, RowWrite
from vedette.domain.run import ActionRow
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services


class Begun(Struct, frozen=True):
    """What a begun action waits for (of `AWAITED`), until when, and rows of the engine's own.

    With `starts` it is the first `settle` that starts what is waited for: until that stands its run
    is due, or one that a crash cuts short would wait for what never began.
    """

    waits: str
    until_us: int
    own_rows: Sequence[RowWrite] = ()
    starts: bool = False


Begin: TypeAlias = Callable[[Services, RunContext, Action, int], Begun]
Settle: TypeAlias = Callable[
    [Services, RunContext, Action, ActionRow, int], Awaitable[Outcome | None]
]
IsDue: TypeAlias = Callable[[Services, ActionRow, int], bool]


class AsyncTool(Struct, frozen=True):
    """A tool of the engine's whose outcome comes later.

    `begin` is given (services, context, action, now) and changes nothing. `settle` is given the
    action's row beside and returns the outcome; None: not yet. It may be asked any number of times.
    `is_due` is given (services, row, now) and says, at little cost and unproven, whether `settle`
    is to be asked; without one it always is.
    """

    begin: Begin
    settle: Settle
    is_due: IsDue | None = None
