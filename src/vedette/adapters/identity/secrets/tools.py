"""The ToolExecutor port with the secrets that targets refer to.

Agents' code runs without our environment, so it cannot look a secret up. What `NAME_env`,
`NAME_file` or `NAME_secret` of a target refers to is read here, after the permit and just before
the call, and the tool finds it as `call.target["NAME"]`: in that one call, and nowhere else. What
the tool answers, and what it raises, is rid of it before it is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec.structs import replace

from vedette.config.secret_reference import read_secret, secret_names
from vedette.domain.base.errors import VedetteError
from vedette.domain.effect import Call, Outcome, RowWrite
from vedette.domain.ports.reasoner import ToolExecutor
from vedette.domain.redaction import SecretRedactor
from vedette.domain.tool import Tool


class SecretTools:
    """The tool executor that gives calls the secrets of their targets, and passes them on."""

    def __init__(self, tools: ToolExecutor) -> None:
        self._tools = tools

    def __getattr__(self, name: str) -> Any:
        # `prepare`, `close` and whatever else these tools have beside the port.
        return getattr(self._tools, name)

    def compute_rows(self, tool: Tool, call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
        """Return what a transactional tool writes: it reaches nobody, so it is given no secret."""
        return self._tools.compute_rows(tool, call, row)

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        """Call the tool once. Without its secrets nothing was called: it is tried again."""
        try:
            given, secrets = await _resolve_secrets(call)
        except VedetteError as error:
            return Outcome("retry", error=f"not called, a secret is missing: {error}")
        return await SecretRedactor(secrets).redact_call(
            self._tools.perform(tool, given, may_start)
        )

    async def query(self, tool: Tool, call: Call) -> Outcome | None:
        """Ask the target; without its secrets nothing can be known of it."""
        try:
            given, secrets = await _resolve_secrets(call)
        except VedetteError as error:
            return Outcome("unknown", error=f"not asked, a secret is missing: {error}")
        return await SecretRedactor(secrets).redact_call(self._tools.query(tool, given))


async def _resolve_secrets(call: Call) -> tuple[Call, Collection[str]]:
    """Return a call with the secrets of its target, and these."""
    # What the audit reads a target's record with is no business of its tools.
    names = [name for name in secret_names(call.target) if not name.startswith("record_")]
    if not names:
        return call, ()
    where = f"target {call.target.get('kind', '')} of {call.agent}"

    def read() -> dict[str, str]:
        found = ((name, read_secret(call.target, name, where=where)) for name in names)
        return {name: value for name, value in found if value is not None}

    # Secret Manager and a file may both keep whoever asks waiting; the line does not.
    found = await asyncio.to_thread(read)
    return replace(call, target={**call.target, **found}), found.values()
