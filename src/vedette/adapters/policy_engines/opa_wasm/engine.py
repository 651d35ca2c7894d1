"""The PolicyEngine on OPA's Wasm: OPA's semantics, in this process, bounded in steps and memory.

What the compiled policy would ask of its host (sprintf and others that OPA does not compile) is
refused when the module is loaded: such an answer would be ours, not OPA's.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any

import orjson

from vedette.adapters.policy_engines.opa_wasm.instance import Instance, load_module
from vedette.adapters.policy_engines.opa_wasm.machine_code import MachineCodeCache
from vedette.domain.base.errors import BadPolicy, EngineFailed
from vedette.domain.bundle import ENTRY_PATH, Bundle
from vedette.policy.bundle_data import mount

MEMORY_PAGES = 4096  # of 64 KiB: 256 MiB, of which only what is used is taken
# Steps of one decision. The shipped policies burn 0.4 million at most (tests/contract); a hundred
# million take 10 to 20 ms, for which nothing else happens in the process.
FUEL = 100_000_000

# How OPA's Wasm writes the results of an entry point that has one value, or none.
_BEFORE, _AFTER, _UNDEFINED = b'[{"result":', b"}]", b"[]"

_RULE_HEAD = re.compile(r"^(?:default\s+)?([A-Za-z_]\w*)")


class WasmEngine:
    """The engine that decides by OPA's Wasm of one bundle. May be used from any thread.

    Every thread has an instance of its own, made at its first question; one that failed is thrown
    away. An error (rules that conflict, too many steps, too much memory) raises; undefined is None.
    """

    def __init__(
        self,
        bundle: Bundle,
        wasm: bytes,
        data: Mapping[str, Any] | None = None,
        *,
        fuel: int = FUEL,
        memory_pages: int = MEMORY_PAGES,
        code_cache: MachineCodeCache | None = None,
    ) -> None:
        """Load the module of the bundle's rules, and the bundle's data. Raises BadPolicy.

        `data` is the bundle's data where the caller has mounted it already; `fuel` bounds the steps
        of one decision, `memory_pages` (of 64 KiB) what an instance may take; `code_cache` keeps
        the module as machine code.
        """
        self.digest = bundle.digest
        self._data = orjson.dumps(mount(bundle.files) if data is None else data)
        self._fuel, self._pages = fuel, memory_pages
        self._thread_state = threading.local()
        try:
            self._module = load_module(wasm, code_cache)
            first = self._instance()
            _refuse_host_functions(bundle, first.builtins)
            self.name = f"opa wasm/{'.'.join(map(str, first.abi))}"
            self.decide(b"{}")
        except EngineFailed as error:
            raise BadPolicy(f"the policy's Wasm does not load: {error}") from error

    def decide(self, request: bytes) -> object:
        """Return what the entry point says of a canonical question; None if undefined.

        Raises EngineFailed, or ValueError if the question is not JSON in UTF-8.
        """
        # The machine would take what is not JSON for no question at all.
        orjson.loads(request)
        answer = self.decide_json(request)
        return None if answer is None else orjson.loads(answer)

    def decide_json(self, request: bytes) -> bytes | None:
        """Return what `decide` does, as JSON; that the question is JSON is for the caller to know.

        Raises EngineFailed.
        """
        try:
            answer = self._instance().evaluate(request)
        except EngineFailed:
            self._thread_state.instance = None
            raise
        if answer == _UNDEFINED:
            return None
        if not (answer.startswith(_BEFORE) and answer.endswith(_AFTER)):
            raise EngineFailed("the policy's Wasm answers in another form than OPA's")
        return answer[len(_BEFORE) : -len(_AFTER)]

    def _instance(self) -> Instance:
        found: Instance | None = getattr(self._thread_state, "instance", None)
        if found is None:
            found = Instance(
                self._module, self._data, ENTRY_PATH, fuel=self._fuel, pages=self._pages
            )
            self._thread_state.instance = found
        return found


def _refuse_host_functions(bundle: Bundle, needed: Mapping[str, int]) -> None:
    for name in sorted(needed):
        file, line, rule = _find_caller(bundle, name)
        raise BadPolicy(
            f"OPA's Wasm does not compute {name} itself"
            + (f", and {rule} asks for it" * bool(rule)),
            where=f"{file}:{line}",
            mend='do without, or write engine = "embedded" or "opa"',
        )


def _find_caller(bundle: Bundle, name: str) -> tuple[str, int, str]:
    """Return file, line and rule that first name a built-in function."""
    for path, text in bundle.modules().items():
        rule = ""
        for number, line in enumerate(text.splitlines(), 1):
            head = _RULE_HEAD.match(line)
            rule = head[1] if head else rule
            if f"{name}(" in line.partition("#")[0]:
                return path, number, rule
    return "policies", 1, ""
