"""Wiring of `agent import`: a worker in a box reads somebody's ADK agent, and nothing else does."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vedette.app.check import check_content
from vedette.domain.base.errors import BadFleet
from vedette.operations.agent_import import AskTool, ImportChoices, ImportedAgent, import_agent

if TYPE_CHECKING:
    from vedette.config.settings import Settings


def import_adk_agent(
    settings: Settings, source: Path, choices: ImportChoices, ask: AskTool | None = None
) -> ImportedAgent:
    """Import an ADK agent as `import_agent` does.

    Whatever [isolation] says, its code is read in a box. Raises BadFleet, with the code not-boxed,
    where the kernel has none.
    """

    def describe(folder: Path, name: str) -> Any:
        return asyncio.run(_describe(settings, folder, name))

    return import_agent(settings, source, choices, describe, check_content, ask)


async def _describe(settings: Settings, folder: Path, source: str) -> Any:
    from vedette.adapters.reasoners.workers.root_agents import describe_in_worker
    from vedette.adapters.reasoners.workers.sandbox_probe import protection
    from vedette.adapters.reasoners.workers.supervisor import WorkerPool

    kernel = protection()
    if not kernel.has_box:
        what = f"somebody's code is read in a box only, and here {kernel.gaps()[0]}"
        raise BadFleet(what, mend="import it on such a Linux", code="not-boxed")
    with tempfile.TemporaryDirectory(prefix="vedette-import-") as state:
        pool = WorkerPool(
            Path(state),
            preload=("adapters.reasoners.adk.preload",),
            closed_folders=settings.protected_folders,
        )
        try:
            return await describe_in_worker(pool, folder.name, folder, None, source)
        finally:
            await pool.close_async()
