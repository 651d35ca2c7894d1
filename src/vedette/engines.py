"""Wiring: which engine decides, as `[policy]` of vedette.toml names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vedette.ports import Metrics, PolicyStage

if TYPE_CHECKING:
    from vedette.load import Settings


def policy_stage(settings: Settings, embedded: PolicyStage, metrics: Metrics) -> PolicyStage:
    """Return the stage of the engine that the settings name, around the embedded one's.

    Raises BadFleet if what that engine needs is not here.
    """
    plan = settings.edges.policy
    if plan.engine == "opa":
        from vedette.adapters.opa import OpaLink, OpaStage
        from vedette.load import read_secret

        table = {"token_env": plan.opa_token_env, "token_file": plan.opa_token_file}
        table["token_secret"] = plan.opa_token_secret
        token = read_secret(table, "token", where="[policy]")
        link = OpaLink(plan.opa_url, token=token, timeout_us=plan.timeout_us, metrics=metrics)
        return OpaStage(embedded, link, metrics, otherwise=plan.otherwise)
    if plan.engine == "wasm":
        from vedette.adapters.opa_wasm import WasmStage, find_opa

        opa = find_opa(settings.root)
        return WasmStage(embedded, opa, timeout_us=plan.timeout_us)
    return embedded


def close_stage(stage: Any) -> None:
    """Let go of what a stage holds, if it holds anything."""
    close = getattr(stage, "close", None)
    if close is not None:
        close()
