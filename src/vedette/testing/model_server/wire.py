"""What all wires have in common: a request of HTTP, an answer, a refusal, models and schemas."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from vedette.testing.model_server.fault import ErrorAnswer
from vedette.testing.model_server.turn import Message, Request, Turn
from vedette.testing.model_server.turn_history import Parts, TurnHistory

JSON = {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream"}
_PIECE = 65_536


class Model(Struct, frozen=True):
    """A model that the server has.

    `strict`: as the newest of its family. Gemini 3 and later: signatures and call ids demanded.
    Claude since Opus 5.5: thinking is adaptive and bound to the conversation, no tool is forced.
    """

    name: str
    wire: str
    strict: bool = True


class HttpRequest(Struct, frozen=True):
    """A request as it came: names of headers in lower case."""

    number: int
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


class Refusal(Exception):
    """The wire's own error for a request."""

    def __init__(
        self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body
        self.headers = headers or {}


class Answer(Struct, frozen=True):
    """What a wire makes of a turn: pieces of a body; what must come back; its sealed parts."""

    body: Sequence[bytes]
    parts: Parts = ()
    opaque: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)


class Server(Protocol):
    """What a wire needs of its server."""

    history: TurnHistory
    keys: frozenset[str]
    models: dict[tuple[str, str], Model]

    def new_id(self, prefix: str, digits: int = 24) -> str:
        """Return a name that was never given before."""
        ...

    def now_s(self) -> int:
        """Return the time of the server in whole seconds."""
        ...


class Wire(Protocol):
    """One provider's format. `read` raises Refusal."""

    name: str

    def match(self, method: str, path: str) -> bool:
        """Tell whether a request is this wire's."""
        ...

    def read(self, http: HttpRequest) -> Request | Answer:
        """Check a request and read it; an Answer is given as it is, without asking the script."""
        ...

    def write(self, request: Request, turn: Turn) -> Answer:
        """Return the answer that says a turn, whole or as a stream, as was asked."""
        ...

    def trouble(self, fault: ErrorAnswer) -> Refusal:
        """Return the wire's own error for a trouble of the provider's."""
        ...


def ids(seed: str) -> Iterator[str]:
    """Yield opaque names, 64 hexadecimal digits each, never the same twice."""
    for count in itertools.count():
        yield hashlib.sha256(f"{seed}:{count}".encode()).hexdigest()


def encode(value: Any) -> bytes:
    """Return JSON, with NaN if a script says so."""
    return json.dumps(value, separators=(",", ":")).encode()


def pieces(text: str) -> list[str]:
    """Cut a text as a stream would: at least two pieces, where there are two characters."""
    size = max(1, min(_PIECE, len(text) // 2))
    return [text[at : at + size] for at in range(0, len(text), size)]


def parse(body: bytes, refusal: Refusal) -> dict[str, Any]:
    """Return a JSON object, or raise what the wire says of anything else."""
    try:
        value = json.loads(body)
    except ValueError:
        raise refusal from None
    if not isinstance(value, dict):
        raise refusal
    return value


def schema_error(schema: Any) -> str | None:
    """Return what is wrong with a function's JSON Schema (draft 2020-12), None if nothing is.

    The schema of arguments is an object's.
    """
    from jsonschema import Draft202012Validator, SchemaError

    if not isinstance(schema, dict) or schema.get("type") != "object":
        kind = schema.get("type") if isinstance(schema, dict) else None
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return str(error.message)
    return None


def turns_of(messages: Sequence[Message]) -> Iterator[tuple[int, Message]]:
    """Yield the model's messages with their places."""
    return ((at, message) for at, message in enumerate(messages) if message.role == "model")


def joined(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return messages, results that follow one another as one message: wires send each alone."""
    made: list[Message] = []
    for message in messages:
        if made and made[-1].results and message.results:
            made[-1] = Message("user", results=(*made[-1].results, *message.results))
        else:
            made.append(message)
    return tuple(made)
