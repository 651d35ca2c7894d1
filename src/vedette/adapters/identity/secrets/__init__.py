"""Secrets of Google Secret Manager, and what targets refer to, read when a call is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vedette.adapters.identity.secrets.manager import SecretManager

if TYPE_CHECKING:
    from vedette.domain.ports.reasoner import ToolExecutor

__all__ = ["SecretManager", "register_secret_manager", "with_secrets"]


def register_secret_manager() -> None:
    """Have `read_secret` read `NAME_secret`. Nothing is loaded or asked before one is read."""
    from vedette.config.secret_reference import set_secret_fetcher

    set_secret_fetcher(SecretManager().read)


def with_secrets(tools: ToolExecutor, targets: Mapping[str, Mapping[str, Any]]) -> ToolExecutor:
    """Return an executor that gives tools the secrets targets refer to; the same if none does."""
    from vedette.config.secret_reference import secret_names

    if not any(secret_names(table) for table in targets.values()):
        return tools
    from vedette.adapters.identity.secrets.tools import SecretTools

    return SecretTools(tools)
