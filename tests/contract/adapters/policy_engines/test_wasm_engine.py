"""The Wasm engine: its bounds, what it refuses, the call that it pins, its machine code."""

from __future__ import annotations

import ctypes
import gc
import threading
from pathlib import Path

import orjson
import pytest
import wasmtime
from tests.opa import find_opa
from tests.questions import BUNDLE, decide, generated

import vedette
from vedette.adapters.policy_engines.opa_wasm import (
    MachineCodeCache,
    WasmEngine,
    compile_wasm,
    engine,
    instance,
    machine_code,
)
from vedette.adapters.policy_engines.opa_wasm import __main__ as opa_wasm_main
from vedette.adapters.policy_engines.opa_wasm import find_opa as find
from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.domain.base.errors import BadFleet, BadPolicy, EngineFailed
from vedette.domain.bundle import Bundle
from vedette.policy.bundle_data import mount
from vedette.policy.golden_requests import golden_requests

GATEWAY = "vedette/gateway/decide.rego"
GOLDEN = [orjson.dumps(asked) for _, asked in golden_requests(mount(BUNDLE.files))]


def bundle(rules: str, **data: bytes) -> Bundle:
    text = f"package vedette.gateway\n\n{rules}\n".encode()
    return Bundle.of({GATEWAY: text, **{f"{name}/data.json": raw for name, raw in data.items()}})


@pytest.fixture(scope="module")
def opa() -> str:
    return find_opa()


@pytest.fixture(scope="module")
def shipped(opa: str) -> bytes:
    return compile_wasm(opa, BUNDLE)


@pytest.fixture(scope="module")
def greedy(opa: str) -> WasmEngine:
    """An engine whose work and memory the question decides."""
    rules = """
decision := count({[a, b, c] | some a in n; some b in n; some c in n}) if input.many
else := count(concat("", [x | some x in input.texts])) if input.texts
else := replace("abc", input.old, "x") if input.old
else := "quick"

n := numbers.range(1, input.many)
"""
    held = bundle(rules)
    return WasmEngine(held, compile_wasm(opa, held), fuel=20_000_000, memory_pages=160)


# --- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "question",
    [
        {"many": 200},  # too many steps
        {"old": ""},  # a built-in function of OPA's that never ends
        {"texts": ["x" * 100_000] * 60},  # too much memory, or longer than there is room for
        {"texts": ["x" * 50_000] * 60},
    ],
)
def test_a_decision_is_bounded_and_nothing_of_it_stays(
    greedy: WasmEngine, question: dict[str, object]
) -> None:
    small = orjson.dumps({"texts": ["x" * 1000]})
    assert greedy.decide(small) == 1000
    with pytest.raises(EngineFailed):
        greedy.decide(orjson.dumps(question))
    assert greedy.decide(small) == 1000
    assert greedy.decide(b"{}") == "quick"


def test_the_steps_of_a_decision_do_not_depend_on_the_machine(opa: str) -> None:
    """The last amount that is too little is the same in every engine and thread."""
    held = bundle("decision := count({[a, b] | some a in n; some b in n})\n\nn := [1, 2, 3, 4, 5]")
    raw = compile_wasm(opa, held)

    def enough(fuel: int) -> bool:
        try:
            return WasmEngine(held, raw, fuel=fuel).decide(b"{}") == 25
        except BadPolicy:
            return False

    low, high = 0, 1_000_000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.extend([enough(high), enough(low)]))
    thread.start()
    thread.join()
    assert found == [True, False]
    assert 100 < high < 1_000_000


def test_no_decision_of_the_shipped_policy_comes_near_its_bound(shipped: bytes) -> None:
    short = WasmEngine(BUNDLE, shipped, fuel=engine.FUEL // 20)
    outcomes = {decide(short, orjson.loads(raw)).outcome for raw in GOLDEN}
    assert outcomes == {"permit", "hold", "deny"}
    assert not [raw for raw in GOLDEN if decide(short, orjson.loads(raw)).rule == "engine.error"]


def test_data_that_has_no_room_is_refused(opa: str) -> None:
    held = bundle(
        "decision := count(data.more.all)", more=orjson.dumps({"all": ["x" * 100] * 50_000})
    )
    with pytest.raises(BadPolicy, match="does not load"):
        WasmEngine(held, compile_wasm(opa, held), memory_pages=100)
    assert WasmEngine(held, compile_wasm(opa, held)).decide(b"{}") == 50_000


# --- error and undefined ------------------------------------------------------------------------


def test_an_error_is_told_and_undefined_is_none(opa: str) -> None:
    held = bundle("""
decision := 1 if input.one
decision := 2 if input.two
decision := 3 if not wrong
wrong := 4 if input.four
wrong := 5 if input.five
""")
    made = WasmEngine(held, compile_wasm(opa, held))
    assert made.decide(b'{"four": true, "one": false}') is None
    assert made.decide(b"{}") == 3
    with pytest.raises(EngineFailed, match=r"decide\.rego:\d+:\d+: var assignment conflict"):
        made.decide(b'{"four": true, "one": true, "two": true}')
    # regorus' compiled form takes the conflict for undefined, and so `not wrong` for true.
    with pytest.raises(EngineFailed, match="conflict"):
        made.decide(b'{"four": true, "five": true}')
    assert made.decide(b'{"two": true, "four": true}') == 2
    found = [made.decide_json(raw) for raw in (b'{"four": true}', b"{}", b'{"four":true,"two":1}')]
    assert found == [None, b"3", b"2"]
    with pytest.raises(EngineFailed, match="conflict"):
        made.decide_json(b'{"four": true, "five": true}')
    assert made.decide_json(b"{}") == b"3"


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff", b'{"a": 1} {', b"nul", b"[1,]", b'{"a":"\xff"}']
)
def test_what_is_no_json_is_not_taken_for_no_question(shipped: bytes, raw: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the words are the JSON reader's
        WasmEngine(BUNDLE, shipped).decide(raw)


# --- what is refused at load --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "name", "line", "rule"),
    [
        ('decision := sprintf("%v", [input.x])', "sprintf", 3, "decision"),
        (
            "decision := 1\n\n# http.send(1)\nslow := x if {\n\tx := yaml.marshal(1)\n}",
            "yaml",
            7,
            "",
        ),
        ("decision := f(1)\n\nf(x) := time.now_ns() + x", "time.now_ns", 5, "f"),
    ],
)
def test_what_the_wasm_would_ask_of_its_host_is_refused_by_rule(
    opa: str, rules: str, name: str, line: int, rule: str
) -> None:
    held = bundle(rules.replace("decision := 1", "decision := slow"))
    with pytest.raises(BadPolicy, match="does not compute") as refused:
        WasmEngine(held, compile_wasm(opa, held))
    assert refused.value.where == f"{GATEWAY}:{line}"
    assert refused.value.mend
    assert name in refused.value.what
    assert rule in refused.value.what


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\0asm\1\0\0\0", b"no wasm",
        wasmtime.wat2wasm('(module (import "env" "system" (func (param i32))))'),
        wasmtime.wat2wasm("(module (func (export \"opa_eval\") (result i32) i32.const 0))"),
    ],
)  # fmt: skip
def test_what_is_none_of_opas_wasm_is_refused(raw: bytes) -> None:
    with pytest.raises(BadPolicy, match="does not load"):
        WasmEngine(bundle("decision := 1"), raw)


def test_opa_checks_the_rules_with_its_types_and_strictly(opa: str) -> None:
    for rules in ("decision := count(1)", "decision := x if { x := 1; y := 2 }", "decision := no"):
        with pytest.raises(BadPolicy, match="opa refuses it") as refused:
            compile_wasm(opa, bundle(rules))
        assert refused.value.where == f"{GATEWAY}:3"
    with pytest.raises(BadPolicy, match="conflicting rule for data path"):
        compile_wasm(
            opa,
            Bundle.of(
                {**bundle("decision := 1").files, "vedette/gateway/data.yaml": b"decision: 7\n"}
            ),
        )


# --- opa ----------------------------------------------------------------------------------------


def test_opa_is_found_where_the_project_puts_it(tmp_path: Path) -> None:
    for name in (".tools/bin/opa", "bin/opa"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    environ = {"PATH": str(tmp_path / "bin")}
    assert find(tmp_path, environ) == str(tmp_path / ".tools/bin/opa")
    assert find(tmp_path / "else", environ) == str(tmp_path / "bin/opa")
    named = {**environ, "VEDETTE_OPA": str(tmp_path / "bin/opa")}
    assert find(tmp_path, named) == str(tmp_path / "bin/opa")
    assert find(tmp_path / "else", {"PATH": str(tmp_path)}) is None
    with pytest.raises(BadFleet, match="cannot be run") as refused:
        find(tmp_path, {"PATH": "", "VEDETTE_OPA": str(tmp_path / "no")})
    assert refused.value.where == "[policy] engine"


def test_opa_is_told_nothing_of_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_PASSWORD", "s3cret")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path, opa = tmp_path / "told", tmp_path / "opa"
    opa.write_text(f"#!/bin/sh\nenv > {path}; exit 1\n")
    opa.chmod(0o755)
    with pytest.raises(BadPolicy, match="opa refuses it"):
        compile_wasm(str(opa), bundle("decision := 1"))
    lines = path.read_text().splitlines()
    assert not [each for each in lines if "s3cret" in each]
    assert f"TMPDIR={tmp_path}" in lines


# --- the call -----------------------------------------------------------------------------------


def test_the_unchecked_call_is_where_it_is_pinned() -> None:
    """wasmtime keeps it in a private module; a version without it would wait for the lock."""
    from wasmtime import _bindings, _ffi

    assert instance._load_unchecked_call() is not None
    assert ctypes.sizeof(_ffi.wasmtime_val_raw_t) == 16
    value = _ffi.wasmtime_val_raw_t()
    value.i32 = 7
    assert ctypes.c_int32.from_buffer(value).value == 7
    names = ("wasmtime_context_t", "wasmtime_func_t", "wasmtime_val_raw_t", "wasm_trap_t")
    context, function, values, trap = (getattr(_ffi, name) for name in names)
    pointer = ctypes.POINTER
    assert _bindings._wasmtime_func_call_unchecked.argtypes == [
        pointer(context), pointer(function), pointer(values), ctypes.c_size_t,
        pointer(pointer(trap)),
    ]  # fmt: skip
    assert _bindings._wasmtime_context_set_fuel.argtypes == [pointer(context), ctypes.c_uint64]


def test_both_calls_say_the_same(
    shipped: bytes, greedy: WasmEngine, opa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = bundle("decision := 1 if input.one\ndecision := 2 if input.two")
    raw = compile_wasm(opa, held)
    direct, conflict = WasmEngine(BUNDLE, shipped), WasmEngine(held, raw, fuel=1_000_000)
    expected = [direct.decide(request) for request in GOLDEN]
    wrong = b'{"one": true, "two": true}'
    with pytest.raises(EngineFailed) as first:
        conflict.decide(wrong)
    monkeypatch.setattr(instance, "_load_unchecked_call", lambda: None)
    plain, conflict = WasmEngine(BUNDLE, shipped), WasmEngine(held, raw, fuel=1_000_000)
    assert [plain.decide(request) for request in GOLDEN] == expected
    with pytest.raises(EngineFailed) as second:
        conflict.decide(wrong)
    assert str(first.value) == str(second.value)


def test_failures_leave_no_memory_behind(opa: str) -> None:
    """An error and a trap are wasmtime's to free, and the instance that failed goes whole."""
    import psutil

    held = bundle("decision := 1 if input.one\ndecision := 2 if input.two")
    made = WasmEngine(held, compile_wasm(opa, held))

    def fail(times: int) -> int:
        for _ in range(times):
            with pytest.raises(EngineFailed):
                made.decide(b'{"one": true, "two": true}')
        gc.collect()
        return int(psutil.Process().memory_info().rss)

    before = fail(200)
    # An instance has two pages (128 KiB) at least, so 2,000 that stayed would be 250 MiB.
    assert fail(2000) - before < 60 << 20


def test_threads_decide_alike_and_apart(shipped: bytes) -> None:
    made = WasmEngine(BUNDLE, shipped)
    questions = generated(150)
    here = [decide(made, one) for one in questions]
    there: list[object] = []
    threads = [
        threading.Thread(target=lambda: there.append([decide(made, one) for one in questions]))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert there == [here] * 6


def test_an_engine_may_end_on_another_thread(shipped: bytes) -> None:
    def used() -> None:
        made = WasmEngine(BUNDLE, shipped)
        threading.Thread(target=lambda: made.decide(GOLDEN[0])).start()
        ends.append(made)

    ends: list[WasmEngine] = []
    for _ in range(20):
        thread = threading.Thread(target=used)
        thread.start()
        thread.join()
    ends.clear()
    gc.collect()
    assert WasmEngine(BUNDLE, shipped).decide(GOLDEN[0]) == RegorusEngine(BUNDLE).decide(GOLDEN[0])


# --- machine code -------------------------------------------------------------------------------


def forget() -> None:
    instance._MODULES.clear()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a module was compiled, by its size."""
    found: list[int] = []

    class Counted(wasmtime.Module):
        def __init__(self, runtime: wasmtime.Engine, wasm: bytes) -> None:
            found.append(len(wasm))
            super().__init__(runtime, wasm)

    instance._host_module()
    monkeypatch.setattr(wasmtime, "Module", Counted)
    forget()
    return found


@pytest.fixture(scope="module")
def little(opa: str) -> tuple[Bundle, bytes]:
    held = bundle("decision := 1")
    return held, compile_wasm(opa, held)


def test_a_module_is_compiled_once_and_its_machine_code_kept(
    tmp_path: Path, little: tuple[Bundle, bytes], counted: list[int]
) -> None:
    code = MachineCodeCache(tmp_path / "code")
    for _ in range(2):
        assert WasmEngine(*little, code_cache=code).decide(b"{}") == 1
    assert len(counted) == 1
    forget()  # as another process
    assert WasmEngine(*little, code_cache=code).decide(b"{}") == 1
    assert len(counted) == 1
    (file,) = (tmp_path / "code").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    assert (tmp_path / "code").stat().st_mode & 0o077 == 0


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _flipped(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


def _linked(file: Path) -> None:
    other = file.parent / "other"
    file.rename(other)
    file.symlink_to(other)


def _open_to_all(file: Path) -> None:
    file.chmod(0o666)


def _folder_open_to_all(file: Path) -> None:
    file.parent.chmod(0o777)


def _folder_linked(file: Path) -> None:
    other = file.parent.parent / "elsewhere"
    file.parent.rename(other)
    file.parent.symlink_to(other)


@pytest.mark.parametrize(
    "spoil", [_cut, _flipped, _linked, _open_to_all, _folder_open_to_all, _folder_linked]
)
def test_machine_code_that_others_may_have_made_is_passed_over(
    tmp_path: Path, little: tuple[Bundle, bytes], counted: list[int], spoil: object
) -> None:
    assert callable(spoil)
    code = MachineCodeCache(tmp_path / "code")
    WasmEngine(*little, code_cache=code)
    (file,) = (tmp_path / "code").iterdir()
    spoil(file)
    forget()
    assert WasmEngine(*little, code_cache=code).decide(b"{}") == 1
    assert len(counted) == 2


def test_machine_code_of_another_wasmtime_is_made_anew(
    tmp_path: Path, little: tuple[Bundle, bytes], counted: list[int]
) -> None:
    config = wasmtime.Config()
    config.consume_fuel = False
    other = bytes(wasmtime.Module(wasmtime.Engine(config), little[1]).serialize())
    code = MachineCodeCache(tmp_path / "code")
    WasmEngine(*little, code_cache=code)
    (file,) = (tmp_path / "code").iterdir()
    code.write(file.stem, other)
    forget()
    counted.clear()
    assert WasmEngine(*little, code_cache=code).decide(b"{}") == 1
    assert len(counted) == 1


def test_machine_code_of_four_modules_is_kept(tmp_path: Path) -> None:
    code = MachineCodeCache(tmp_path / "code")
    for number in range(7):
        code.write(f"{number:064}", b"x")
    assert len(list((tmp_path / "code").iterdir())) == 4
    assert code.read(f"{6:064}") == b"x"
    assert code.read(f"{0:064}") is None


@pytest.fixture
def shipped_folder(
    tmp_path: Path, little: tuple[Bundle, bytes], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The package's own folder, with Wasm in it, as an installation leaves it."""
    folder = tmp_path / "_wasm"
    folder.mkdir()
    folder.chmod(0o775)
    (folder / "rules.wasm").write_bytes(little[1])
    for module in (machine_code, opa_wasm_main):
        monkeypatch.setattr(module, "SHIPPED_FOLDER", folder)
    return folder


def test_machine_code_beside_the_shipped_wasm_spares_every_first_start(
    shipped_folder: Path, tmp_path: Path, little: tuple[Bundle, bytes], counted: list[int]
) -> None:
    for _ in range(2):
        opa_wasm_main.main()
        forget()
    assert len(counted) == 1
    own = MachineCodeCache(tmp_path / "code")
    assert WasmEngine(*little, code_cache=own).decide(b"{}") == 1
    assert len(counted) == 1
    assert not (tmp_path / "code").exists()
    (file,) = shipped_folder.glob("*.cwasm")
    assert (file.stat().st_mode & 0o777, shipped_folder.stat().st_mode & 0o777) == (0o644, 0o755)


@pytest.mark.parametrize(
    "spoil", [_cut, _flipped, _linked, _open_to_all, _folder_open_to_all, _folder_linked]
)
def test_machine_code_in_the_package_that_others_may_have_made_is_passed_over(
    shipped_folder: Path, little: tuple[Bundle, bytes], counted: list[int], spoil: object
) -> None:
    assert callable(spoil)
    opa_wasm_main.main()
    (file,) = shipped_folder.glob("*.cwasm")
    spoil(file)
    forget()
    assert WasmEngine(*little).decide(b"{}") == 1
    assert len(counted) == 2


def test_machine_code_of_another_user_than_the_package_is_passed_over(
    shipped_folder: Path, counted: list[int]
) -> None:
    opa_wasm_main.main()
    assert len(counted) == 1
    (file,) = shipped_folder.glob("*.cwasm")
    owner = Path(vedette.__file__).stat().st_uid
    assert MachineCodeCache(shipped_folder, owner=owner).read(file.stem) is not None
    assert MachineCodeCache(shipped_folder, owner=owner + 1).read(file.stem) is None


def test_an_installation_without_shipped_wasm_has_none_to_compile(
    shipped_folder: Path, counted: list[int]
) -> None:
    (shipped_folder / "rules.wasm").unlink()
    shipped_folder.rmdir()
    opa_wasm_main.main()
    assert not shipped_folder.exists()
    assert not counted
