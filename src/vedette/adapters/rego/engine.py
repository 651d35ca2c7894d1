"""Rego in this process: the embedded PolicyEngine, on regorus' compiled programs.

Traps of the vendor that this module keeps from its callers (research: docs/design/policy.md):
programs and VMs belong to the thread that made them, so each thread gets its own from the
serialised program; panics are no `Exception`; undefined comes back as the text `<undefined>`; and
a recursive policy crashes the process while compiling, so only an admitted bundle may be loaded.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import orjson

from vedette.adapters.rego.data import mount
from vedette.bundle import ENTRYPOINT, Bundle
from vedette.errors import BadPolicy, Permanent

_T = TypeVar("_T")
_UNDEFINED = '"<undefined>"'


class EngineFailed(Permanent):
    """The engine could not evaluate: a panic, or an error inside the policy."""

    code = "engine-failed"


def guarded(call: Callable[[], _T]) -> _T:
    """Run a call into the vendor. Raises EngineFailed for its errors and its panics."""
    try:
        return call()
    except Exception as error:
        raise EngineFailed(plain(error)) from error
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as panic:  # pyo3's PanicException is not an Exception
        raise EngineFailed(f"the engine panicked: {plain(panic)}") from panic


def plain(error: BaseException) -> str:
    """Return a vendor's message without its backtrace."""
    return str(error).split("Stack backtrace:", 1)[0].strip()


@functools.cache
def version() -> str:
    """Return the version of regorus, as `name` and the ledger carry it."""
    import regorus

    # Beside the package; asking importlib.metadata reads every distribution (50 ms).
    beside = Path(regorus.__file__).parent.parent.glob("gordon_to_regorus-*.dist-info")
    found = [path.name.removesuffix(".dist-info").rpartition("-")[2] for path in beside]
    return found[0] if found else "unknown"


class RegorusEngine:
    """Evaluates one admitted bundle. May be used from any thread.

    `digest` is the bundle's. A decision takes 60-120 us of CPU and holds the interpreter lock.
    """

    def __init__(self, bundle: Bundle, data: Mapping[str, Any] | None = None) -> None:
        """Compile the bundle's modules, tests left out. Raises BadPolicy.

        `data` is the bundle's data where the caller has mounted it already.
        """
        self.name = f"regorus/{version()} rvm"
        self.digest = bundle.digest
        self._data = _json(bundle, data)
        try:
            self._program = guarded(lambda: _compile(self._data, bundle.modules()))
            self._local = threading.local()
            self.decide(b"{}")
        except EngineFailed as error:
            raise BadPolicy(f"the policy does not load: {error}") from error

    def decide(self, question: bytes) -> object:
        """Return what the entry point says of a canonical question; None if undefined.

        Raises EngineFailed, or ValueError if the question is not JSON in UTF-8.
        """
        vm = self._vm()
        text = question.decode("utf-8")

        def run() -> str:
            vm.set_input_json(text)
            answer: str = vm.execute_entry_point(ENTRYPOINT)
            return answer

        try:
            answer = guarded(run)
        except BaseException:
            # What a failed evaluation leaves behind must not reach the next decision.
            self._local.vm = None
            raise
        return None if answer == _UNDEFINED else orjson.loads(answer)

    def _vm(self) -> Any:
        vm = getattr(self._local, "vm", None)
        if vm is None:
            vm = guarded(lambda: _vm(self._program, self._data))
            self._local.vm = vm
        return vm


def _compile(data: str, modules: Mapping[str, str]) -> bytes:
    import regorus

    program = regorus.Program.compile_from_modules(data, list(modules.items()), [ENTRYPOINT])
    return bytes(program.serialize_binary())


def _vm(program: bytes, data: str) -> Any:
    import regorus

    loaded, partial = regorus.Program.deserialize_binary(program)
    if partial:
        raise EngineFailed("the compiled program reads back in part only")
    vm = regorus.Rvm()
    vm.load_program(loaded)
    vm.set_data_json(data)
    return vm


class PlainEngine:
    """The vendor's interpreter: ten times slower, and stricter. For tests and cross-checks.

    It tells conflicts, unknown functions and type errors where the compiled program says
    undefined. Belongs to the thread that made it.
    """

    def __init__(
        self, bundle: Bundle, data: Mapping[str, Any] | None = None, *, tests: bool = False
    ) -> None:
        """Parse the bundle's modules. Raises BadPolicy for data, EngineFailed for Rego."""
        self.name = "regorus interpreter"
        self.digest = bundle.digest
        text = _json(bundle, data)
        self._base = guarded(lambda: _engine(bundle.modules(tests=tests), text))
        self._engine: Any = None
        self._analysed = False

    def decide(self, question: bytes) -> object:
        """Return what the entry point says of a canonical question; None if undefined.

        Raises EngineFailed, also for what the compiled program calls undefined.
        """
        return self.rule(ENTRYPOINT, question)

    def rule(self, path: str, question: bytes = b"{}") -> object:
        """Return the value of a rule by its full path, None if undefined. Raises EngineFailed."""
        if self._engine is None:
            self._engine = self._copy()

        def run() -> str:
            self._engine.set_input_json(question.decode("utf-8"))
            answer: str = self._engine.eval_rule_as_json(path)
            return answer

        try:
            answer = guarded(run)
        except BaseException:
            self._engine = None
            raise
        found = orjson.loads(answer)
        return None if found == "<undefined>" else found

    def _copy(self) -> Any:
        # The first evaluation analyses all rules (0.1 s); copies made after it need not.
        if not self._analysed:
            self._analysed = True
            with contextlib.suppress(EngineFailed):
                guarded(lambda: self._base.eval_rule_as_json(ENTRYPOINT))
        return guarded(self._base.clone)

    def syntax(self) -> list[dict[str, Any]]:
        """Return the parsed modules as the vendor describes them."""
        found: list[dict[str, Any]] = orjson.loads(guarded(self._base.get_ast_as_json))
        return found


def _engine(modules: Mapping[str, str], data: str) -> Any:
    import regorus

    engine = regorus.Engine()
    for path, text in modules.items():
        engine.add_policy(path, text)
    engine.add_data_json(data)
    return engine


def _json(bundle: Bundle, data: Mapping[str, Any] | None) -> str:
    return orjson.dumps(mount(bundle.files) if data is None else data).decode()
