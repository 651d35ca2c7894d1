"""The source `alertmanager`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vedette.adapters.alertmanager.config import AlertmanagerFile
from vedette.config.secret_reference import secret_keys
from vedette.domain.ports.plugin import (
    PushedSource,
    SourceContext,
    SourcePlugin,
    TableContext,
    TableProblem,
)

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class AlertmanagerPlugin(SourcePlugin):
    """The plugin of the source `alertmanager`: alerts that are posted to /v1/alertmanager/NAME."""

    table = AlertmanagerFile

    def problems(self, table: AlertmanagerFile, context: TableContext) -> Iterator[TableProblem]:
        """Yield what is wrong beyond the shape."""
        if len(secret_keys(vars(table), "token")) != 1:
            mend = "give one of token_env, token_file, token_secret"
            yield (), "whoever posts alerts needs a token", mend
        if not context.serves_http:
            yield (), "nothing is served here that alerts could be posted to", "set http of [serve]"

    def build(self, plan: AlertmanagerFile, context: SourceContext) -> Source:
        """Make the source."""
        return PushedSource(plan.name)

    async def probe(self, plan: AlertmanagerFile) -> str:
        """Say where alerts are taken. Raises BadFleet if the token is not there."""
        import asyncio

        await asyncio.to_thread(plan.token)
        return f"POST /v1/alertmanager/{plan.name} takes alerts, with the token"


ALERTMANAGER = AlertmanagerPlugin()
