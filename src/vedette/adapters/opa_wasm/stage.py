"""The stage of the Wasm engine: what the embedded one admits, if OPA compiles it too."""

from __future__ import annotations

import asyncio
from weakref import WeakSet

from vedette.adapters.opa_wasm.build import build
from vedette.adapters.opa_wasm.engine import WasmEngine
from vedette.bundle import Bundle
from vedette.errors import BadPolicy
from vedette.ports import Finding, PolicyEngine, PolicyStage


class WasmStage:
    """Tries bundles as the stage within does, and then compiles them with `opa`."""

    def __init__(self, within: PolicyStage, opa: str, *, timeout_us: int) -> None:
        self._within = within
        self._opa = opa
        self._timeout_us = timeout_us
        self._built: dict[str, WasmEngine] = {}
        self._made: WeakSet[WasmEngine] = WeakSet()

    async def try_out(self, bundle: Bundle) -> list[Finding]:
        """Return what is wrong with the bundle; an empty list admits it."""
        found = await self._within.try_out(bundle)
        if found:
            return found
        try:
            # Compiling takes a quarter of a second, which the fleet must not wait for.
            self._built = {bundle.digest: await asyncio.to_thread(self._make, bundle)}
        except BadPolicy as error:
            file, _, line = (error.where or "policies:1").rpartition(":")
            place = int(line) if line.isdigit() else 1
            return [Finding(file or "policies", place, error.what, error.mend or "")]
        return []

    def load(self, bundle: Bundle) -> PolicyEngine:
        """Make an engine of an admitted bundle. Raises BadPolicy.

        A bundle that was tried out here is compiled already; another takes a quarter of a second.
        """
        return self._built.pop(bundle.digest, None) or self._make(bundle)

    def close(self) -> None:
        """End the engines that were made here, and their threads; they decide nothing any more."""
        self._built.clear()
        for engine in list(self._made):
            engine.close()

    def _make(self, bundle: Bundle) -> WasmEngine:
        engine = WasmEngine(bundle, build(self._opa, bundle), timeout_us=self._timeout_us)
        self._made.add(engine)
        return engine
