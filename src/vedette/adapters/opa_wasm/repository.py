"""Where the Wasm of a bundle's rules comes from: the record, this installation, or an opa."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

import vedette
from vedette.adapters.opa_wasm.build import build
from vedette.bundle import Bundle
from vedette.errors import BadPolicy
from vedette.policy_wasm import PolicyWasm, WasmRecord, recorded_wasm

# Made when the wheel is built and by `make setup` (tools/policy_wasm.py): the shipped rules.
SHIPPED = Path(vedette.__file__).parent / "_wasm"
# The live rules, those before them, and two that are tried.
_KEPT = 4


class WasmRepository:
    """Finds the Wasm of a bundle. May be used from any thread.

    `opa` is the program that compiles; without one, only what was compiled before is found.
    """

    def __init__(self, opa: str | None, record: WasmRecord | None = None) -> None:
        self.opa = opa
        self._record = record
        self._found: OrderedDict[str, PolicyWasm] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, bundle: Bundle) -> PolicyWasm | None:
        """Return the Wasm of a bundle's rules; None if it is not there and nobody can compile it.

        Where the record names the one that was published with the bundle, it is that or an error.
        May run opa, which takes 0.1 to 0.3 s, on a busy machine longer. Raises BadPolicy.
        """
        with self._lock:
            named, found = (
                recorded_wasm(self._record, bundle) if self._record is not None else (None, None)
            )
            found = found or self._found.get(bundle.rules_digest)
            if found is None or named not in (None, found.digest):
                found = self._of_installation(bundle) or self._compiled(bundle)
            if named is not None and (found is None or found.digest != named):
                raise BadPolicy(
                    "the Wasm that was published with this policy is not in the store",
                    mend='restore the store from a backup, or start with engine = "embedded"',
                )
            if found is not None:
                self._found[found.rules] = found
                self._found.move_to_end(found.rules)
                while len(self._found) > _KEPT:
                    self._found.popitem(last=False)
            return found

    def _of_installation(self, bundle: Bundle) -> PolicyWasm | None:
        try:
            raw = (SHIPPED / f"{bundle.rules_digest}.wasm").read_bytes()
        except OSError:
            return None
        return PolicyWasm.of(bundle, raw, "shipped with vedette")

    def _compiled(self, bundle: Bundle) -> PolicyWasm | None:
        if self.opa is None:
            return None
        return PolicyWasm.of(bundle, build(self.opa, bundle), "compiled here by opa")
