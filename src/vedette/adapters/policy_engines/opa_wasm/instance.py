"""OPA's Wasm on wasmtime, called directly: one instance, its data parsed once, many questions.

The calling convention is OPA's (docs "Wasm", "ABI"): `opa_eval` takes the question where we put
it, and a heap that begins behind it, so nothing is left of one question when the next one comes.

The call goes through `ctypes.PyDLL` to wasmtime's unchecked call. The usual way gives up the
interpreter lock for each call, and beside one busy Python thread a decision then waits 5 ms to get
it back. While the lock is held no Python thread could tell a decision to stop, so what bounds it is
fuel, which the machine counts itself and in every run alike. The unchecked call stands in a private
module of wasmtime, which is pinned exactly; without it the public call is used, which waits.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from vedette.adapters.policy_engines.opa_wasm.machine_code import MachineCodeCache, package_cache
from vedette.domain.base.canonical import sha256_hex
from vedette.domain.base.errors import EngineFailed
from vedette.domain.base.recent_cache import RecentCache

PAGE = 1 << 16
# What lies between the data and the heap of a decision: the longest question there may be.
MAX_REQUEST_BYTES = 4 << 20
_UNLIMITED_FUEL = 1 << 62
# Modules that are compiled: the live bundle's, the one before it, and two that are tried.
_MAX_MODULES = 4

# What OPA's Wasm asks of its host. In Wasm too: nothing calls back into Python. A built-in
# function that is not in the module ends the decision; the engine refuses such a module before.
_HOST_SOURCE = """(module
  (global (export "said") (mut i32) (i32.const 0))
  (func (export "opa_abort") (param i32) (global.set 0 (local.get 0)) unreachable)
  (func (export "opa_println") (param i32))
  (func (export "opa_builtin0") (param i32 i32) (result i32) unreachable)
  (func (export "opa_builtin1") (param i32 i32 i32) (result i32) unreachable)
  (func (export "opa_builtin2") (param i32 i32 i32 i32) (result i32) unreachable)
  (func (export "opa_builtin3") (param i32 i32 i32 i32 i32) (result i32) unreachable)
  (func (export "opa_builtin4") (param i32 i32 i32 i32 i32 i32) (result i32) unreachable))"""

_LOCK = threading.Lock()
_MODULES: RecentCache[Any] = RecentCache(_MAX_MODULES)


@cache
def runtime() -> Any:
    """Return wasmtime's engine, one for the process. Its memories do not move when they grow."""
    import wasmtime

    config = wasmtime.Config()
    config.consume_fuel = True
    config.memory_may_move = False
    return wasmtime.Engine(config)


def load_module(wasm: bytes, code_cache: MachineCodeCache | None) -> Any:
    """Return OPA's Wasm as machine code, made at most once in this process (0.6 s of CPU).

    `code_cache` is where it is kept from one process to the next, unless it came with the package.
    Raises EngineFailed for bytes that are no module.
    """
    import wasmtime

    name = sha256_hex(wasm)
    with _LOCK:
        found = _MODULES.get(name)
        if found is None:
            found = _deserialize(package_cache().read(name))
        if found is None and code_cache is not None:
            found = _deserialize(code_cache.read(name))
        if found is None:
            try:
                found = wasmtime.Module(runtime(), wasm)
            except wasmtime.WasmtimeError as error:
                raise EngineFailed(_first_line(error)) from error.with_traceback(None)
            if code_cache is not None:
                code_cache.write(name, bytes(found.serialize()))
        return _MODULES.keep(name, found)


def _deserialize(code: bytes | None) -> Any:
    import wasmtime

    if code is None:
        return None
    try:
        return wasmtime.Module.deserialize(runtime(), code)
    except wasmtime.WasmtimeError:
        return None  # of another wasmtime, or for another processor: made anew


class Instance:
    """OPA's Wasm of a bundle on wasmtime, with a memory of its own. For one thread at a time.

    After it raised it must be thrown away: nobody knows in which state it stopped.
    """

    def __init__(self, module: Any, data: bytes, entry: str, *, fuel: int, pages: int) -> None:
        """Instantiate a module and let it parse its data document (JSON).

        `entry` is the entry point, `fuel` what one question may burn, `pages` (of 64 KiB) what all
        may take. Raises EngineFailed for a module that is none of OPA's or data without room.
        """
        import wasmtime

        self._fuel = fuel
        self._trap = wasmtime.Trap
        self._store = wasmtime.Store(runtime())
        self._store.set_fuel(_UNLIMITED_FUEL)
        host: Any = wasmtime.Instance(self._store, _host_module(), []).exports(self._store)
        self._abort_address: Any = host["said"]
        self._memory = wasmtime.Memory(
            self._store, wasmtime.MemoryType(wasmtime.Limits(_min_pages(module), pages))
        )
        imports = [
            self._memory if each.name == "memory" else _host_export(host, each.name)
            for each in module.imports
        ]
        try:
            made = wasmtime.Instance(self._store, module, imports)
            exports: Any = made.exports(self._store)
            self._exports = exports
            self._base = ctypes.addressof(self._memory.data_ptr(self._store).contents)
            self.builtins: dict[str, int] = self._read_table("builtins")
            self.abi = tuple(
                exports[name].value(self._store)
                for name in ("opa_wasm_abi_version", "opa_wasm_abi_minor_version")
            )
            self._data = self._parse_data(data)
            self._heap = self._invoke("opa_heap_ptr_get")
            self._entry = self._read_table("entrypoints")[entry]
            lacks = self._heap + MAX_REQUEST_BYTES - self._memory.data_len(self._store)
            if lacks > 0:
                self._memory.grow(self._store, -(-lacks // PAGE))
        except (wasmtime.WasmtimeError, wasmtime.Trap) as error:
            raise EngineFailed(self._describe_error(error)) from error.with_traceback(None)
        except KeyError as error:
            raise EngineFailed(f"is none that opa compiled: {error} is missing") from error
        self._request_buffer = (ctypes.c_ubyte * MAX_REQUEST_BYTES).from_address(
            self._base + self._heap
        )
        self._request_view = memoryview(self._request_buffer).cast("B")
        self._call = self._build_direct_call() or self._public_call

    def evaluate(self, request: bytes) -> bytes:
        """Return what the entry point says: a JSON list of one object, or of none if undefined.

        A question that is not JSON is taken for none at all. Raises EngineFailed.
        """
        size = len(request)
        if size > MAX_REQUEST_BYTES:
            raise EngineFailed(
                f"the question has {size} bytes, and {MAX_REQUEST_BYTES} at most have room"
            )
        self._request_view[:size] = request
        return ctypes.string_at(self._base + self._call(size))

    # --- the two ways to call ---------------------------------------------------------------

    def _build_direct_call(self) -> Callable[[int], int] | None:
        """Return the call that keeps the interpreter lock; None where wasmtime has it no more."""
        found = _load_unchecked_call()
        if found is None:
            return None
        refuel, evaluate, values = found
        context = ctypes.cast(self._store._context(), ctypes.c_void_p).value
        # The machine reads all three by their addresses: `call` keeps them.
        function, trap = self._exports["opa_eval"]._func, ctypes.c_void_p()
        held = (function, values, trap)
        at_function, at_values, at_trap = map(ctypes.addressof, held)
        # A value takes 16 bytes, of which an i32 is the first four; the first is the answer too.
        words = (ctypes.c_int32 * 28).from_buffer(values)
        words[4], words[8], words[12] = self._entry, self._data, self._heap
        heap, fuel = self._heap + 15, self._fuel

        def call(size: int) -> int:
            refuel(context, fuel)
            words[0] = 0
            words[16] = size
            words[20] = (heap + size) & ~7
            failed = evaluate(context, at_function, at_values, 7, at_trap)
            if failed or held[2].value:
                raise self._direct_call_error(failed, held[2].value)
            return words[0]

        return call

    def _public_call(self, size: int) -> int:
        """Call as everybody may."""
        import wasmtime

        self._store.set_fuel(self._fuel)
        end = (self._heap + size + 15) & ~7
        try:
            return self._invoke("opa_eval", 0, self._entry, self._data, self._heap, size, end, 0)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            raise EngineFailed(self._describe_error(error)) from error.with_traceback(None)

    def _direct_call_error(self, error: Any, trap: Any) -> EngineFailed:
        """Return the error of a direct call, and free what the machine made for it."""
        from wasmtime import WasmtimeError, _ffi

        if trap:
            made = ctypes.cast(trap, ctypes.POINTER(_ffi.wasm_trap_t))
            return EngineFailed(self._describe_error(self._trap._from_ptr(made)))
        broken = ctypes.cast(error, ctypes.POINTER(_ffi.wasmtime_error_t))
        return EngineFailed(self._describe_error(WasmtimeError._from_ptr(broken)))

    def _describe_error(self, error: Exception) -> str:
        """Return what went wrong: OPA's own words if it said any."""
        address = self._abort_address.value(self._store)
        if address:
            return (
                ctypes.string_at(self._base + address, 1000)
                .split(b"\0")[0]
                .decode("utf-8", "replace")
            )
        code = getattr(getattr(error, "trap_code", None), "name", "")
        if code == "OUT_OF_FUEL":
            return f"a decision took more than {self._fuel:,} steps"
        return _first_line(error)

    # --- before the first question ----------------------------------------------------------

    def _invoke(self, name: str, *args: int) -> int:
        done: int = self._exports[name](self._store, *args)
        return done

    def _read_table(self, name: str) -> dict[str, int]:
        import orjson

        address = self._invoke("opa_json_dump", self._invoke(name))
        table: dict[str, int] = orjson.loads(ctypes.string_at(self._base + address))
        return table

    def _parse_data(self, data: bytes) -> int:
        address = self._invoke("opa_malloc", len(data))
        ctypes.memmove(self._base + address, data, len(data))
        return self._invoke("opa_json_parse", address, len(data))


@cache
def _host_module() -> Any:
    import wasmtime

    return wasmtime.Module(runtime(), _HOST_SOURCE)


def _host_export(host: Any, name: str) -> Any:
    try:
        return host[name]
    except KeyError as error:
        raise EngineFailed(f"asks its host for {name}, which none of OPA's does") from error


def _min_pages(module: Any) -> int:
    """Return how many pages of memory a module asks for at first."""
    found = [each.type.limits.min for each in module.imports if each.name == "memory"]
    return int(found[0]) if found else 1


def _load_unchecked_call() -> tuple[Any, Any, Any] | None:
    """Return what sets the fuel, what calls, and seven values for a call; None if one is gone."""
    try:
        from wasmtime import _ffi

        library = ctypes.PyDLL(_ffi.dll._name)
        refuel = library.wasmtime_context_set_fuel
        evaluate = library.wasmtime_func_call_unchecked
        values = (_ffi.wasmtime_val_raw_t * 7)()
    except (ImportError, AttributeError):
        return None
    refuel.restype, evaluate.restype = ctypes.c_void_p, ctypes.c_void_p
    refuel.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    evaluate.argtypes = (pointer, pointer, pointer, size, pointer)
    return refuel, evaluate, values


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
