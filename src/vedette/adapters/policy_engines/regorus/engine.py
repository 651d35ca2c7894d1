"""Rego in this process: the embedded PolicyEngine, on regorus' compiled programs.

Traps of the vendor that this module keeps from its callers (research: docs/design/policy.md):
whatever it makes belongs to the thread that made it and must end there, so engines hold only the
serialised program and every thread keeps its own VMs (`get_or_create`); panics are no `Exception`;
undefined comes back as the text `<undefined>`; and a recursive policy crashes the process while
compiling, so only an admitted bundle may be loaded.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import orjson

from vedette.domain.base.canonical import sha256_hex
from vedette.domain.base.errors import BadPolicy, EngineFailed
from vedette.domain.base.recent_cache import RecentCache
from vedette.domain.bundle import ENTRYPOINT, Bundle
from vedette.policy.bundle_data import mount

# Per thread: the live bundle, the one before it, and two that are being tried or replayed.
MAX_ENTRIES = 4

_T = TypeVar("_T")
_UNDEFINED = '"<undefined>"'


def call_vendor(call: Callable[[], _T]) -> _T:
    """Run a call into regorus. Raises EngineFailed for its errors and its panics.

    The vendor's error comes without its frames: they hold the vendor's objects, and whoever
    receives the error may be another thread.
    """
    try:
        return call()
    except Exception as error:
        raise EngineFailed(strip_backtrace(error)) from error.with_traceback(None)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as panic:  # pyo3's PanicException is not an Exception
        what = f"the engine panicked: {strip_backtrace(panic)}"
        raise EngineFailed(what) from panic.with_traceback(None)


def strip_backtrace(error: BaseException) -> str:
    """Return the message of a regorus error without its backtrace."""
    return str(error).split("Stack backtrace:", 1)[0].strip()


@functools.cache
def version() -> str:
    """Return the version of regorus, as `name` and the ledger carry it."""
    import regorus

    # Beside the package; asking importlib.metadata reads every distribution (50 ms).
    folders = Path(regorus.__file__).parent.parent.glob("gordon_to_regorus-*.dist-info")
    found = [path.name.removesuffix(".dist-info").rpartition("-")[2] for path in folders]
    return found[0] if found else "unknown"


class _ThreadCache(threading.local):
    """What a thread keeps of the vendor: compiled programs and interpreters, the last few used.

    The vendor's objects belong to the thread that made them, and so does their end: dropped on
    another thread they are leaked and reported as an unraisable error. Whoever drops the last
    reference to an engine may be any thread (a policy swap, the garbage collector), so engines hold
    none: they name what they need by a key, and each thread makes it anew and drops it itself.
    """

    def __init__(self) -> None:
        self.entries: RecentCache[Any] = RecentCache(MAX_ENTRIES)


_CACHE = _ThreadCache()


def get_thread_object(key: str, create: Callable[[], Any]) -> Any:
    """Return this thread's regorus object under `key`, made now if it has none.

    To be called below `call_vendor`, whose errors carry no frames: a traceback that is handed to
    another thread would take what was borrowed with it.
    """
    entries = _CACHE.entries
    found = entries.get(key)
    return entries.keep(key, create() if found is None else found)


def drop_thread_object(key: str) -> None:
    """Drop this thread's regorus object under `key`, if it has one."""
    _CACHE.entries.pop(key, None)


def thread_object_keys() -> list[str]:
    """Return the keys of this thread's regorus objects, the one used longest ago first."""
    return list(_CACHE.entries)


class RegorusEngine:
    """Evaluates one admitted bundle by regorus' compiled program. May be used from any thread.

    `digest` is the bundle's. A decision takes 60-120 us of CPU and holds the interpreter lock.
    """

    def __init__(self, bundle: Bundle, data: Mapping[str, Any] | None = None) -> None:
        """Compile the bundle's modules, tests left out. Raises BadPolicy.

        `data` is the bundle's data where the caller has mounted it already.
        """
        self.name = f"regorus/{version()} rvm"
        self.digest = bundle.digest
        self._data = _json(bundle, data)
        self._key = _key(self.name, bundle, self._data)
        try:
            self._program = call_vendor(lambda: _compile(self._data, bundle.modules()))
            self.decide(b"{}")
        except EngineFailed as error:
            raise BadPolicy(f"the policy does not load: {error}") from error

    def decide(self, request: bytes) -> object:
        """Return what the entry point says of a canonical question; None if undefined.

        Raises EngineFailed, or ValueError if the question is not JSON in UTF-8.
        """
        text = request.decode("utf-8")
        try:
            answer = call_vendor(lambda: self._evaluate(text))
        except BaseException:
            # What a failed evaluation leaves behind must not reach the next decision.
            drop_thread_object(self._key)
            raise
        return None if answer == _UNDEFINED else orjson.loads(answer)

    def _evaluate(self, text: str) -> str:
        vm = get_thread_object(self._key, lambda: _vm(self._program, self._data))
        vm.set_input_json(text)
        answer: str = vm.execute_entry_point(ENTRYPOINT)
        return answer


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


class InterpreterEngine:
    """The engine on regorus' interpreter: ten times slower, stricter. For tests and cross-checks.

    It tells conflicts, unknown functions and type errors where the compiled program says
    undefined. May be used from any thread; each parses the bundle for itself.
    """

    def __init__(
        self, bundle: Bundle, data: Mapping[str, Any] | None = None, *, tests: bool = False
    ) -> None:
        """Parse the bundle's modules. Raises BadPolicy for data, EngineFailed for Rego."""
        self.name = "regorus interpreter"
        self.digest = bundle.digest
        self._modules = bundle.modules(tests=tests)
        self._data = _json(bundle, data)
        self._key = _key(f"{self.name} {tests}", bundle, self._data)
        call_vendor(lambda: self._interpreter().engine)

    def decide(self, request: bytes) -> object:
        """Return what the entry point says of a canonical question; None if undefined.

        Raises EngineFailed, also for what the compiled program calls undefined, or ValueError.
        """
        return self.evaluate_rule(ENTRYPOINT, request)

    def evaluate_rule(self, path: str, request: bytes = b"{}") -> object:
        """Return the value of a rule by its full path, None if undefined.

        Raises EngineFailed, or ValueError if the question is not UTF-8.
        """
        text = request.decode("utf-8")
        found = orjson.loads(call_vendor(lambda: self._interpreter().evaluate(path, text)))
        return None if found == "<undefined>" else found

    def syntax_trees(self) -> list[dict[str, Any]]:
        """Return the parsed modules as the vendor describes them."""
        found: list[dict[str, Any]] = orjson.loads(
            call_vendor(lambda: self._interpreter().engine.get_ast_as_json())
        )
        return found

    def _interpreter(self) -> _Interpreter:
        found: _Interpreter = get_thread_object(
            self._key, lambda: _Interpreter(self._modules, self._data)
        )
        return found


class _Interpreter:
    """One thread's interpreter: what was parsed, and the copy of it that answers."""

    def __init__(self, modules: Mapping[str, str], data: str) -> None:
        self.engine = _build_engine(modules, data)
        self._is_analysed = False
        self._copy: Any = None

    def evaluate(self, path: str, text: str) -> str:
        if self._copy is None:
            self._copy = self._clone_engine()
        try:
            self._copy.set_input_json(text)
            answer: str = self._copy.eval_rule_as_json(path)
        except BaseException:
            # As for a VM: what failed answers no further question.
            self._copy = None
            raise
        return answer

    def _clone_engine(self) -> Any:
        # The first evaluation analyses all rules (0.1 s); copies made after it need not.
        if not self._is_analysed:
            self._is_analysed = True
            with contextlib.suppress(EngineFailed):
                call_vendor(lambda: self.engine.eval_rule_as_json(ENTRYPOINT))
        return self.engine.clone()


def _build_engine(modules: Mapping[str, str], data: str) -> Any:
    import regorus

    engine = regorus.Engine()
    for path, text in modules.items():
        engine.add_policy(path, text)
    engine.add_data_json(data)
    return engine


def _json(bundle: Bundle, data: Mapping[str, Any] | None) -> str:
    return orjson.dumps(mount(bundle.files) if data is None else data).decode()


def _key(name: str, bundle: Bundle, data: str) -> str:
    return f"{name} {bundle.digest} {sha256_hex(data.encode())}"
