"""A Tool as declared in agent.yaml: what it does to the world, and what is settled how.

Declarations are data. The code that performs a tool lives in the agent's tools.py behind the
ToolExecutor port and is never consulted about what the tool is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from vedette.domain.argument_schema import ArgumentSchema
from vedette.domain.base.canonical import canonical_json, normalize_numbers, sha256_hex
from vedette.domain.origin import escape_pointer
from vedette.domain.readers import Readers

# How an unknown outcome (call started, no answer recorded) is settled.
SettlementMode = Literal["transactional", "idempotent", "queryable", "none"]
SETTLEMENT_MODES: tuple[SettlementMode, ...] = ("transactional", "idempotent", "queryable", "none")


# What nearly all values of a kind are, and need no other look.
_EXACT_TYPES: Mapping[str, type] = {
    "string": str, "integer": int, "boolean": bool, "list": list, "object": dict,
}  # fmt: skip
_TYPE_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "strings": lambda value: (
        isinstance(value, list) and all(isinstance(each, str) for each in value)
    ),
    "list": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


class Parameter(Struct, frozen=True):
    """One argument that a tool declares: its JSON Pointer, its kind, what says if a value fits.

    What is exactly of `exact_type` fits (None: no type does by itself). Where it may be missing
    (`is_optional`), a value that is there is of its kind all the same.
    """

    name: str
    pointer: str
    kind: str
    is_optional: bool
    exact_type: type | None
    fits: Callable[[Any], bool]

    @classmethod
    def of(cls, name: str, declared: str) -> Parameter:
        """Return the argument of a name and what is declared of it: `string`, `string?`."""
        kind = declared.removesuffix("?")
        fits = _TYPE_CHECKS.get(kind, lambda value: False)
        exact_type = _EXACT_TYPES.get(kind)
        return cls(name, "/" + escape_pointer(name), kind, kind != declared, exact_type, fits)


class Tool(Struct, frozen=True, dict=True):
    """One tool of one agent, as it is declared.

    `args` are its arguments by name, each with a word for its kind. A tool with a `schema` (JSON
    Schema, its numbers as `normalize_numbers` has them) is held to that; its `args` are made of it.
    `sinks` are the arguments (JSON Pointers into the arguments) that decide who, where or which; of
    a tool with a schema `*` in one stands for each element.
    `output` labels what the tool answers: untrusted unless the declaration proves otherwise.
    `timeout_us` bounds one call; `attempts` bounds how often a failed call is tried. `verify`
    names the function that asks the target, after the tool said *done*, whether it is there. With a
    `performer` the plugin of that name does what `request` says (`vedette.tools`), and no function
    is called. `readers` are those who may read what the tool answers. `description` is for models:
    policy is not told it.
    """

    name: str
    verb: str
    resource: str
    args: Mapping[str, str]
    sinks: tuple[str, ...]
    settles: SettlementMode
    function: str
    query: str | None = None
    inverse: str | None = None
    target: str | None = None
    output: Literal["trusted", "untrusted"] = "untrusted"
    high_impact: bool = False
    timeout_us: int = 10_000_000
    attempts: int = 5
    verify: str | None = None
    performer: str | None = None
    request: Mapping[str, Any] | None = None
    readers: Readers = None
    schema: Mapping[str, Any] | None = None

    # The digest of the declaration: asked for with every action, so made once.
    digest: str = ""
    description: str = ""

    def __post_init__(self) -> None:
        if self.schema is not None:
            force_setattr(self, "args", ArgumentSchema(self.schema).kinds())
        force_setattr(self, "digest", sha256_hex(canonical_json(self.facts())))

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The declared arguments, made out once for all proposals."""
        return tuple(Parameter.of(name, declared) for name, declared in self.args.items())

    @cached_property
    def argument_schema(self) -> ArgumentSchema:
        """The schema of the arguments, made out once for all proposals; only where there is one."""
        assert self.schema is not None
        return ArgumentSchema(self.schema)

    def facts(self) -> dict[str, object]:
        """Return what policy and ledger see of the tool."""
        # Only where it is declared, so that the digests of all others stay what they were.
        more: dict[str, object] = {"verify": self.verify} if self.verify is not None else {}
        if self.performer is not None:
            more[self.performer] = dict(self.request or {})
        if self.readers is not None:
            more["readers"] = sorted(self.readers)
        if self.schema is not None:
            # Its numbers as such: an enum of 0.5 is not one of "0.5".
            more["schema"] = normalize_numbers(self.schema)
        return {
            **more,
            "name": self.name,
            "verb": self.verb,
            "resource": self.resource,
            "args": dict(self.args),
            "sinks": list(self.sinks),
            "settles": self.settles,
            "inverse": self.inverse,
            "high_impact": self.high_impact,
            "output": self.output,
        }

    @property
    def is_verifiable(self) -> bool:
        """Say whether it can be known from more than the tool's own word that it is done."""
        return self.settles == "transactional" or bool(self.verify or self.query)

    def verifier(self, obliged: bool) -> str | None:
        """Return the function that verifies; where policy obliges to, what answers queries does."""
        return self.verify or (self.query if obliged else None)
