"""Secrets of Google Secret Manager, and what targets refer to, read when a call is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vedette.adapters.identity.secrets.manager import SecretManager

if TYPE_CHECKING:
    from vedette.domain.ports import Performer

__all__ = ["SecretManager", "wire", "with_secrets"]


def wire() -> None:
    """Have `read_secret` read `NAME_secret`. Nothing is loaded or asked before one is read."""
    from vedette.config.secret_reference import read_with

    read_with(SecretManager().read)


def with_secrets(hands: Performer, targets: Mapping[str, Mapping[str, Any]]) -> Performer:
    """Return hands that are given the secrets that targets refer to; the same if none does."""
    from vedette.config.secret_reference import references

    if not any(references(table) for table in targets.values()):
        return hands
    from vedette.adapters.identity.secrets.tools import SecretHands

    return SecretHands(hands)
