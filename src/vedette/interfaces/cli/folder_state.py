"""What the policy folder says beside the live policy, for every verb that tells of either."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vedette.domain.base.errors import BadPolicy

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.store.read_runs import StoreReader


def folder_state(settings: Settings, store: StoreReader) -> dict[str, Any]:
    """Return whether the folder differs from what is live, whether it waits, and that in words."""
    from vedette.adapters.policy_engines.regorus.stage import read_bundle
    from vedette.domain.bundle import Revision
    from vedette.policy.folder import POLICY_FOLDER, POLICY_REFUSED, is_waiting, waiting_reason

    live = Revision(*store.live_revision())
    state: dict[str, Any] = {"path": str(settings.policies), "digest": None, "differs": True}
    try:
        digest = read_bundle(settings.policies).digest
    except BadPolicy as error:
        return {**state, "waits": is_waiting(store, live), "says": str(error)}
    state["digest"] = digest
    if digest == live.digest:
        return {**state, "differs": False, "waits": False, "says": "the same as live"}
    says = f"differs from live (digest {digest[:12]}); `vedette policy check` says if it may be"
    why_not = store.meta(POLICY_REFUSED) if store.meta(POLICY_FOLDER) == digest else None
    if is_waiting(store, live):
        why_not = waiting_reason(live)
    if why_not:
        says = f"differs from live (digest {digest[:12]}): {why_not}"
    return {**state, "waits": is_waiting(store, live), "says": says}


def folder_note(state: dict[str, Any]) -> list[str]:
    """Return the line that tells of a folder that differs; none where it says what is live."""
    return [f"policy folder {state['path']}: {state['says']}"] if state["differs"] else []
