"""The PolicyEngine on OPA's Wasm: OPA's semantics, in this process, with a cap and a deadline.

The deadline is the vendor's: it looks every 10 ms, so a decision may take up to 10 ms longer. What
the compiled policy would ask of its host (sprintf and others that the vendor only imitates) is
refused when the module is loaded: such an answer would be Python's, not OPA's.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any

import orjson

from vedette.bundle import ENTRYPOINT, Bundle
from vedette.errors import BadFleet, BadPolicy, EngineFailed
from vedette.load.policy_data import mount

MEMORY_PAGES = 1024  # of 64 KiB: 64 MiB
MAX_QUESTION_BYTES = 4 << 20
# Deciding threads at the same time: the engine's, and whoever replays or reads beside it.
_INSTANCES = 4


class WasmEngine:
    """Evaluates one bundle by its Wasm module. May be used from any thread."""

    def __init__(
        self,
        bundle: Bundle,
        wasm: bytes,
        data: Mapping[str, Any] | None = None,
        *,
        timeout_us: int = 50_000,
        memory_pages: int = MEMORY_PAGES,
    ) -> None:
        """Load the module and the bundle's data. Raises BadPolicy, BadFleet without the extra.

        `timeout_us` bounds one decision, `memory_pages` (of 64 KiB) what it may take.
        """
        self._vendor = vendor = _vendor()
        self.digest = bundle.digest
        self.name = "opa wasm"
        config = vendor.PolicyConfig(
            pool_size=_INSTANCES,
            borrow_timeout_seconds=timeout_us / 1e6,
            eval_timeout_seconds=timeout_us / 1e6,
            max_memory_pages=memory_pages,
            max_input_bytes=MAX_QUESTION_BYTES,
            parse_raw_json_input=False,  # it is parsed here, by a stricter reader
        )
        try:
            self._policy = vendor.OpaWasmPolicy.from_wasm_bytes(wasm, config)
            # Threads and native memory of the vendor end with the engine, not with the process.
            self._end = weakref.finalize(self, self._policy.close)
            self._refuse_host_functions()
            found = mount(bundle.files) if data is None else data
            self._policy.set_data(orjson.dumps(found))
            self._entry = ENTRYPOINT.removeprefix("data.").replace(".", "/")
            self.name = f"opa wasm/{'.'.join(map(str, self._policy.abi_version))}"
            self.decide(b"{}")
        except (vendor.OpaWasmError, EngineFailed) as error:
            raise BadPolicy(f"the policy's Wasm does not load: {error}") from error

    def decide(self, question: bytes) -> object:
        """Return what the entry point says of a canonical question; None if undefined.

        Raises EngineFailed (an error in the policy, the deadline, the memory cap), or ValueError
        if the question is not JSON in UTF-8.
        """
        orjson.loads(question)
        try:
            answer = self._policy.evaluate(question, self._entry)
        except self._vendor.OpaWasmError as error:
            raise EngineFailed(str(error)) from error.with_traceback(None)
        return None if answer is self._vendor.UNDEFINED else answer

    def close(self) -> None:
        """Let go of the module's memory; a later question raises EngineFailed."""
        self._end()

    def _refuse_host_functions(self) -> None:
        needed = sorted(self._policy.builtins)
        if needed:
            raise BadPolicy(
                f"OPA's Wasm does not compute {', '.join(needed)} itself",
                where="policies:1",
                mend='do without, or write engine = "embedded" or "opa"',
            )


_LOADING = threading.Lock()


def _vendor() -> Any:
    try:
        with _LOADING:
            import opapywasm
    except ImportError as error:
        raise BadFleet(
            'engine = "wasm" needs the extra: opa-py-wasm is not installed',
            where="[policy] engine",
            mend="install vedette[wasm]",
        ) from error
    return opapywasm
