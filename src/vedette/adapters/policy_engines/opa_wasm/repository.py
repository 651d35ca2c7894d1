"""The repository of OPA's Wasm of bundles' rules: of the record, this installation, or an opa."""

from __future__ import annotations

import threading
from pathlib import Path

from vedette.adapters.policy_engines.opa_wasm.build import compile_wasm
from vedette.adapters.policy_engines.opa_wasm.machine_code import SHIPPED_FOLDER
from vedette.domain.base.errors import BadPolicy
from vedette.domain.base.recent_cache import RecentCache
from vedette.domain.bundle import Bundle
from vedette.domain.policy_wasm import PolicyWasm, WasmRecord, load_wasm

# The live rules, those before them, and two that are tried.
_CACHE_SIZE = 4


class WasmRepository:
    """Finds what OPA compiled to Wasm of a bundle: first `load_recorded`, then `find`.

    `opa` is the program that compiles; without one, only what was compiled before is found.
    """

    def __init__(self, opa: str | None, record: WasmRecord | None = None) -> None:
        self.opa = opa
        self._record = record
        self._wasm_cache: RecentCache[PolicyWasm] = RecentCache(_CACHE_SIZE)
        self._record_cache: RecentCache[tuple[str | None, PolicyWasm | None]]
        self._record_cache = RecentCache(_CACHE_SIZE)
        self._lock = threading.Lock()

    def load_recorded(self, bundle: Bundle) -> None:
        """Look up what the record has of a bundle, on the thread that reads the record.

        Raises BadPolicy for bytes that are not those that were published.
        """
        if self._record is not None:
            found = load_wasm(self._record, bundle)
            with self._lock:
                self._record_cache.keep(bundle.digest, found)

    def find(self, bundle: Bundle) -> PolicyWasm | None:
        """Return the Wasm of a bundle's rules; None if it is not there and nobody can compile it.

        Where the record names the one that was published with the bundle, it is that or an error.
        May be asked on any thread, and may run opa, which takes 0.1 to 0.3 s, on a busy machine
        longer. Raises BadPolicy.
        """
        with self._lock:
            named, found = self._record_cache.get(bundle.digest, (None, None))
            found = found or self._wasm_cache.get(bundle.rules_digest)
            if found is None or named not in (None, found.digest):
                found = self._find_shipped(bundle) or self._compile(bundle)
            if named is not None and (found is None or found.digest != named):
                raise BadPolicy(
                    "the Wasm that was published with this policy is not in the store",
                    mend='restore the store from a backup, or start with engine = "embedded"',
                )
            if found is not None:
                self._wasm_cache.keep(found.rules, found)
            return found

    def _find_shipped(self, bundle: Bundle) -> PolicyWasm | None:
        try:
            raw = shipped_file(bundle).read_bytes()
        except OSError:
            return None
        return PolicyWasm.of(bundle, raw, "shipped with vedette")

    def _compile(self, bundle: Bundle) -> PolicyWasm | None:
        if self.opa is None:
            return None
        return PolicyWasm.of(bundle, compile_wasm(self.opa, bundle), "compiled here by opa")


def shipped_file(bundle: Bundle) -> Path:
    """Return where OPA's Wasm of a bundle's rules would lie if it were shipped with vedette."""
    return SHIPPED_FOLDER / f"{bundle.rules_digest}.wasm"
