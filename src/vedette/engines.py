"""Wiring: which engine decides, as `[policy]` of vedette.toml names it, and which is asked too."""

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


def second_stage(settings: Settings, embedded: PolicyStage) -> PolicyStage | None:
    """Return the stage of the engine that gives the second opinion; None where there is no other.

    Beside OPA's Wasm it is the embedded one; beside the embedded one, or a server, OPA's Wasm
    where this machine can compile and run it; else beside a server the embedded one.
    """
    plan = settings.edges.policy
    if plan.engine == "wasm":
        return embedded
    opa = wasm_compiler(settings)
    if opa is None:
        return embedded if plan.engine == "opa" else None
    from vedette.adapters.opa_wasm import WasmStage

    return WasmStage(embedded, opa, timeout_us=plan.timeout_us)


def wasm_compiler(settings: Settings) -> str | None:
    """Return the opa that compiles policies to Wasm here; None without it or what runs Wasm."""
    from importlib.util import find_spec

    from vedette.adapters.opa_wasm import find_opa
    from vedette.errors import BadFleet

    try:
        return find_opa(settings.root) if find_spec("opapywasm") else None
    except BadFleet:
        return None


def close_stage(stage: Any) -> None:
    """Let go of what a stage holds, if it holds anything."""
    close = getattr(stage, "close", None)
    if close is not None:
        close()
