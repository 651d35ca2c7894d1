"""A client's call: an agent's own event, made of what whoever reasons for it elsewhere asks for.

It becomes exactly one Proposal. Its arguments are bare, and so *derived*, or references as a model
writes them (`ref:/charter/desk`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from vedette.domain.action import Proposal, check_confidence
from vedette.domain.agent import Agent, call_source
from vedette.domain.base.canonical import (
    canonicalize_numbers,
    normalize_numbers,
    sha256_hex,
    short_id,
)
from vedette.domain.base.clock import iso
from vedette.domain.base.errors import BadCommand, Permanent
from vedette.domain.event import CALL_TYPE, Event
from vedette.domain.origin import REF, escape_pointer, read_reference

# Of the charter: how often a client's calls were right, as people measured it. Until then it is
# sure of nothing, and policy says what waits for a person.
CONFIDENCE_KEY = "client_confidence"
CONFIDENCE = 0.0
MAX_KEY_CHARS = 200
_MAX_TOOL_CHARS = 100
# Who calls was authenticated; all else the client chose, if only by when it called.
_VOUCHED = frozenset({"source", "type"})
# What a client may refer to: of its event there is nothing but what it says itself.
_ROOTS = ("charter", "registry")


class ClientCall(Struct, frozen=True):
    """One call of an agent's client: tool, arguments as JSON, and the key that makes it one.

    Raises BadCommand, when it is made, for what is no call.
    """

    tool: str
    args: Mapping[str, Any]
    key: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.tool) <= _MAX_TOOL_CHARS:
            raise BadCommand(f"a tool's name has 1 to {_MAX_TOOL_CHARS} characters")
        if self.key is not None and not (
            1 <= len(self.key) <= MAX_KEY_CHARS and self.key.isprintable()
        ):
            mend = "a new key for what is to be done again, the same one for a retry"
            raise BadCommand(f"a key has 1 to {MAX_KEY_CHARS} printable characters", mend=mend)
        try:
            args = normalize_numbers(dict(self.args))
            canonicalize_numbers(args)
        except ValueError as error:
            raise BadCommand(f"the arguments have no JSON form: {error}") from error
        for _, value in _walk(args, ""):
            if isinstance(value, str) and value.startswith(REF):
                root = value[len(REF) :].partition("/")[0]
                if root not in _ROOTS:
                    mend = "refer to ref:/charter/… or ref:/registry/…"
                    raise BadCommand(f"a client refers to no root {root[:40]!r}", mend=mend)
        force_setattr(self, "args", args)

    @classmethod
    def of(cls, tool: Any, args: Any, key: Any) -> ClientCall:
        """Return the call of what a client sent. Raises BadCommand."""
        if not isinstance(tool, str):
            raise BadCommand("tool is the name of a tool")
        if not isinstance(args, dict | None):
            raise BadCommand("args is an object, by the names of the tool's arguments")
        if not isinstance(key, str | None):
            raise BadCommand("key is a text")
        return cls(tool, args or {}, key)

    @property
    def digest(self) -> str:
        """Return the digest of what is called with what."""
        return sha256_hex(canonicalize_numbers({"tool": self.tool, "args": self.args}))

    def event(self, fleet: str, agent: Agent, now_us: int, generation: int = 0) -> Event:
        """Return the event of the call; calls with one id are one.

        The id is made of the agent and the key; without a key of the digest, and of how many such
        calls were made before (`generation`). No clock is in it.
        """
        parts: tuple[str | int, ...]
        parts = ("digest", self.digest, generation) if self.key is None else ("key", self.key)
        name = short_id("call", agent.name, *parts)
        # The record of an event keeps a fraction as its decimal text; these were none.
        fractions = [at for at, value in _walk(self.args, "") if isinstance(value, float)]
        return Event(
            source=call_source(fleet, agent.name),
            id=name,
            type=CALL_TYPE,
            # Its own, so that calls wait for one another only where agent.yaml orders them so.
            subject=name,
            time=iso(now_us),
            data={
                "caller": agent.identity.spiffe_id,
                "tool": self.tool,
                "args": dict(self.args),
                "key": self.key,
                **({"fractions": fractions} if fractions else {}),
            },
            vouched=_VOUCHED,
        )

    def is_call_of(self, event: Event) -> bool:
        """Say whether an event was made of this very call, be it sent with or without a key."""
        return ClientCall(event.data["tool"], _read_args(event.data)).digest == self.digest


def count_generations(exists: Callable[[int], bool]) -> int:
    """Return how many generations of a call there are; each is made after the one before it.

    `exists` says whether there is a generation, from 0 on. It is asked a logarithm of the answer.
    """
    end = 1
    while exists(end - 1):
        end *= 2
    return bisect_left(range(end), True, lo=end // 2, key=lambda one: not exists(one))


def call_proposal(event: Event) -> Proposal:
    """Return what a call's event proposes. Raises Permanent for an event that is no call."""
    if event.type != CALL_TYPE or not isinstance(event.data, Mapping):
        raise Permanent(f"an event of type {event.type!r} is no call of a client")
    args = _read_args(event.data)
    return Proposal(event.data["tool"], {name: _read_argument(args[name]) for name in args})


def client_confidence(agent: str, charter: Mapping[str, Any]) -> float:
    """Return the confidence of an agent's calls, as its charter says. Raises BadConfidence."""
    given = charter.get(CONFIDENCE_KEY, CONFIDENCE)
    if isinstance(given, str):
        try:
            given = float(given)
        except ValueError:
            given = None
    return check_confidence(given, f"charter.{CONFIDENCE_KEY} of {agent}")


def _walk(value: Any, pointer: str) -> Iterator[tuple[str, Any]]:
    """Yield each value within a value that holds no other, and its JSON Pointer."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _walk(item, f"{pointer}/{escape_pointer(name)}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _walk(item, f"{pointer}/{index}")
    else:
        yield pointer, value


def _read_args(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments in the data of a call's event, fractions as the numbers they were."""
    fractions = frozenset(data.get("fractions", ()))

    def read(value: Any, pointer: str) -> Any:
        if pointer in fractions:
            return float(value)
        if isinstance(value, Mapping):
            return {
                name: read(item, f"{pointer}/{escape_pointer(name)}")
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [read(item, f"{pointer}/{index}") for index, item in enumerate(value)]
        return value

    return {name: read(item, f"/{escape_pointer(name)}") for name, item in data["args"].items()}


def _read_argument(value: Any) -> Any:
    """Return a value as an argument of a Proposal: each text that is a reference as a `Ref`."""
    if isinstance(value, str):
        return read_reference(value)
    if isinstance(value, Mapping):
        return {name: _read_argument(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_read_argument(item) for item in value]
    return value
