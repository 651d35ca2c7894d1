"""A Tool as declared in agent.yaml: what it does to the world, and what is settled how.

Declarations are data. The code that performs a tool lives in the agent's tools.py behind the
ToolExecutor port and is never consulted about what the tool is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.readers import Readers

# How an unknown outcome (call started, no answer recorded) is settled.
SettlementMode = Literal["transactional", "idempotent", "queryable", "none"]
SETTLEMENT_MODES: tuple[SettlementMode, ...] = ("transactional", "idempotent", "queryable", "none")


class Tool(Struct, frozen=True):
    """One tool of one agent, as it is declared.

    `sinks` are the arguments (JSON Pointers into the arguments) that decide who, where or which.
    `output` labels what the tool answers: untrusted unless the declaration proves otherwise.
    `timeout_us` bounds one call; `attempts` bounds how often a failed call is tried. `verify`
    names the function that asks the target, after the tool said *done*, whether it is there. With a
    `performer` the plugin of that name does what `request` says (`vedette.tools`), and no function
    is called. `readers` are those who may read what the tool answers.
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

    # The digest of the declaration: asked for with every action, so made once.
    digest: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "digest", sha256_hex(canonical_json(self.facts())))

    def facts(self) -> dict[str, object]:
        """Return what policy and ledger see of the tool."""
        # Only where it is declared, so that the digests of all others stay what they were.
        more: dict[str, object] = {"verify": self.verify} if self.verify is not None else {}
        if self.performer is not None:
            more[self.performer] = dict(self.request or {})
        if self.readers is not None:
            more["readers"] = sorted(self.readers)
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
