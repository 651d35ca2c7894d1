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
            await self.warm(bundle)
        except BadPolicy as error:
            file, _, line = (error.where or "policies:1").rpartition(":")
            place = int(line) if line.isdigit() else 1
            return [Finding(file or "policies", place, error.what, error.mend or "")]
        return []

    async def warm(self, bundle: Bundle) -> None:
        """Compile a bundle on another thread, unless it is compiled already. Raises BadPolicy.

        It takes a quarter of a second, on a busy machine up to 30 s: the fleet must not wait.
        """
        if bundle.digest not in self._built:
            self._built = {bundle.digest: await asyncio.to_thread(self._make, bundle)}

    def load(self, bundle: Bundle) -> PolicyEngine:
        """Make an engine of an admitted bundle. Raises BadPolicy.

        A bundle that was tried out or warmed here is compiled already; another is compiled now.
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
