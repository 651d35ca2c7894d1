"""How an effect ends that is not to be: cancelled, or unknown where a call may have been made."""

from __future__ import annotations

from vedette.domain.run import ActionRow
from vedette.engine.run_context import RunContext


def find_end_kind(context: RunContext, row: ActionRow) -> str:
    """Return the entry of an effect that is not to be: cancelled, or nobody knows."""
    tool, store = context.agent.tools.get(row.tool), context.services.store
    settles = None if tool is None else tool.settles
    unsure = not row.is_awaited and (
        row.tries > 0
        or row.waits == "policy"
        or row.effect in ("started", "unknown")
        or context.services.calls.may_have_started(
            row, settles, others=context.is_loaded and store.cluster.multi_worker
        )
    )
    return "effect.unknown" if unsure else "effect.cancelled"
