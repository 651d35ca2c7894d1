"""OPA's own compilation to Wasm as policy engine, in this process."""

from __future__ import annotations

from vedette.adapters.opa_wasm.build import build, find_opa
from vedette.adapters.opa_wasm.engine import WasmEngine
from vedette.adapters.opa_wasm.stage import WasmStage

__all__ = ["WasmEngine", "WasmStage", "build", "find_opa"]
