"""The turns that the server handed out: remembered, never computed again.

A turn is found by its route (wire, model and API key) and by the conversation that it answered.
What a client shows at that place must be what it was given there. Opaque parts are found by
themselves too: a signature that comes at another place is known, or was never given.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from vedette.testing.model_server.turn import Message

# Wire, model, API key.
Route = tuple[str, str, str]
# What a wire must see again of one turn, in its own shape and order.
Parts = Sequence[Any]


def prefixes(messages: Sequence[Message]) -> list[str]:
    """Return what names the conversation before each message, and after the last one.

    Texts count as a whole: a client may join what came in pieces.
    """
    found = [""]
    for message in messages:
        calls = [(call.id, call.name, call.args) for call in message.calls]
        results = [(result.id, result.name, result.content) for result in message.results]
        said = json.dumps([message.role, message.text, calls, results], sort_keys=True)
        found.append(hashlib.sha256((found[-1] + said).encode()).hexdigest())
    return found


class TurnHistory:
    """All turns handed out. Used on the server's loop alone."""

    def __init__(self) -> None:
        self._turns: dict[tuple[Route, str], list[Parts]] = {}
        self._opaque: dict[tuple[Route, str], Any] = {}

    def remember(self, route: Route, prefix: str, parts: Parts, opaque: Mapping[str, Any]) -> None:
        """Keep a turn. `opaque` maps what names each sealed part to what must be found with it."""
        self._turns.setdefault((route, prefix), []).append(parts)
        self._opaque.update({(route, name): value for name, value in opaque.items()})

    def retract(self, route: Route, prefix: str, parts: Parts) -> None:
        """The client did not get this turn whole, so nobody can expect it back."""
        kept = self._turns[route, prefix]
        self._turns[route, prefix] = [other for other in kept if other is not parts]

    def at(self, route: Route, prefix: str) -> Sequence[Parts]:
        """Return the turns that answered this conversation: several, if it was asked again."""
        return self._turns.get((route, prefix), ())

    def opaque(self, route: Route, name: str) -> Any:
        """Return what was kept with a sealed part, None if this route was never given it."""
        return self._opaque.get((route, name))
