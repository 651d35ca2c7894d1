"""Identities: a SPIFFE ID for an agent, a Principal for whoever acts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}\Z")


def valid_name(name: str) -> bool:
    """Say whether `name` may name a fleet or an agent (it becomes part of a SPIFFE path)."""
    return bool(_LABEL.match(name))


@dataclass(frozen=True, slots=True)
class Identity:
    """An agent's identity. Only the engine makes one; a proposal never carries it."""

    fleet: str
    agent: str

    @property
    def spiffe_id(self) -> str:
        """Return the SPIFFE ID (https://spiffe.io/docs/latest/spiffe-specs/spiffe-id/)."""
        return f"spiffe://{self.fleet}/agent/{self.agent}"


@dataclass(frozen=True, slots=True)
class Principal:
    """A person (or the engine itself) who gives a command."""

    kind: Literal["person", "engine"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ENGINE = Principal("engine", "vedette")
