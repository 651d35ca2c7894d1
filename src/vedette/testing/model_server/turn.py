"""What a script is asked and what it answers: one turn of a model, the same for all wires."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field


class Thinking(Struct, frozen=True):
    """Something the model thought. The server signs it, or seals it, as the wire does.

    Without a text it is what current Claude models send by default: a signature alone.
    """

    text: str = ""


class RedactedThinking(Struct, frozen=True):
    """Thinking that Claude hands out encrypted; on other wires thinking without a text."""


class FunctionCall(Struct, frozen=True):
    """A call of a function by the name it has on the wire.

    `id` is the server's own and ignored in a script. Arguments given as a text are sent as they
    are, be they no JSON, on wires where arguments are a text (OpenAI's; Anthropic's when streamed).
    """

    name: str
    args: Mapping[str, Any] | str = field(default_factory=dict)
    id: str = ""


class FunctionResult(Struct, frozen=True):
    """What a client says came of a call. `content` is as it stood in the request."""

    id: str
    name: str
    content: Any


class Usage(Struct, frozen=True):
    """Tokens of a turn. Not checked: a script may say NaN, or less than nothing.

    `input` is without what was read from or written to a cache, `output` without `thinking`; each
    wire adds up what its original does.
    """

    input: float = 100
    output: float = 20
    thinking: float = 0
    cache_read: float = 0
    cache_write: float = 0


class Turn(Struct, frozen=True):
    """One answer: texts, thinking and calls in their order.

    `finish` is why it ended. Empty: because it was done. "length" and "safety" are said in each
    wire's own word; any other is sent as it stands (`MALFORMED_FUNCTION_CALL`, `refusal`).
    """

    parts: tuple[str | Thinking | RedactedThinking | FunctionCall, ...] = ()
    usage: Usage = Usage()
    finish: str = ""

    @property
    def calls(self) -> tuple[FunctionCall, ...]:
        """Return the calls alone."""
        return tuple(part for part in self.parts if isinstance(part, FunctionCall))


class Message(Struct, frozen=True):
    """One message of a conversation, whatever the wire. `role` is "user" or "model"."""

    role: str
    text: str = ""
    calls: tuple[FunctionCall, ...] = ()
    results: tuple[FunctionResult, ...] = ()


class Request(Struct, frozen=True):
    """What a client asked: `body` as it came, the rest read out of it.

    `number` counts all requests of the server from 1, those of no wire included. `key` is the API
    key, `tools` are the names of the functions offered.
    """

    number: int
    wire: str
    model: str
    key: str
    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    system: str
    streamed: bool
    body: Mapping[str, Any]

    @property
    def results(self) -> tuple[FunctionResult, ...]:
        """Return the results that the last message brings; none if it brings none."""
        return self.messages[-1].results if self.messages else ()

    @property
    def turn(self) -> int:
        """Return how many turns the model has had in this conversation."""
        return sum(message.role == "model" for message in self.messages)


Script = Callable[[Request], Turn]
