"""Identities: a SPIFFE ID for an agent, a Principal for whoever acts."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from vedette.domain.roles import ALL_ROLES, Role

_NAME_PATTERN = re.compile(r"[a-z][a-z0-9_-]{0,62}\Z")


def is_valid_name(name: str) -> bool:
    """Say whether `name` may name a fleet or an agent (it becomes part of a SPIFFE path)."""
    return bool(_NAME_PATTERN.match(name))


class Identity(Struct, frozen=True):
    """An agent's identity. Only the engine makes one; a proposal never carries it."""

    fleet: str
    agent: str

    @property
    def spiffe_id(self) -> str:
        """Return the SPIFFE ID (https://spiffe.io/docs/latest/spiffe-specs/spiffe-id/)."""
        return f"spiffe://{self.fleet}/agent/{self.agent}"


class Principal(Struct, frozen=True):
    """A person (or the engine itself) who gives a command, with the roles it has: none unless told.

    Of whoever owns the fleet on this machine the kernel vouches: `owner` has every role.
    """

    kind: Literal["person", "engine"]
    name: str
    roles: frozenset[Role] = frozenset()

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def owner(cls, name: str) -> Principal:
        """Return the owner of a fleet: a person with every role."""
        return cls("person", name, ALL_ROLES)


ENGINE = Principal("engine", "vedette")
