"""OPA's own compilation to Wasm as policy engine, in this process."""

from __future__ import annotations

from vedette.adapters.policy_engines.opa_wasm.build import compile_wasm, find_opa
from vedette.adapters.policy_engines.opa_wasm.engine import WasmEngine
from vedette.adapters.policy_engines.opa_wasm.machine_code import MachineCodeCache
from vedette.adapters.policy_engines.opa_wasm.repository import WasmRepository
from vedette.adapters.policy_engines.opa_wasm.stage import WasmStage

__all__ = [
    "MachineCodeCache",
    "WasmEngine",
    "WasmRepository",
    "WasmStage",
    "compile_wasm",
    "find_opa",
]
