"""OPA's own compilation to Wasm as policy engine, in this process."""

from __future__ import annotations

from vedette.adapters.policy_engines.opa_wasm.build import build, find_opa
from vedette.adapters.policy_engines.opa_wasm.engine import WasmEngine
from vedette.adapters.policy_engines.opa_wasm.machine_code import MachineCode
from vedette.adapters.policy_engines.opa_wasm.repository import WasmRepository
from vedette.adapters.policy_engines.opa_wasm.stage import WasmStage

__all__ = ["MachineCode", "WasmEngine", "WasmRepository", "WasmStage", "build", "find_opa"]
