"""The Wasm engine: its cap, its deadline, what it refuses, and a fleet that decides by it."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from tests.opa import find_opa
from tests.questions import BUNDLE

from vedette.adapters.opa_wasm import WasmEngine, WasmStage, build
from vedette.adapters.opa_wasm import find_opa as find
from vedette.adapters.rego.engine import RegorusEngine
from vedette.bundle import Bundle
from vedette.engines import close_stage
from vedette.errors import BadFleet, BadPolicy, EngineFailed
from vedette.load.edges import Edges, PolicyPlan
from vedette.ports import Finding
from vedette.replay import replay
from vedette.testing.harness import TrustingStage
from vedette.testing.toy import World, job, send, toy_fleet, until

GATEWAY = "vedette/gateway/decide.rego"
TIMEOUT_US = 100_000


def bundle(rules: str) -> Bundle:
    return Bundle.of({GATEWAY: f"package vedette.gateway\n\n{rules}\n".encode()})


@pytest.fixture(scope="module")
def opa() -> str:
    return find_opa()


@pytest.fixture
def greedy(opa: str) -> Iterator[WasmEngine]:
    """An engine whose work and memory the question decides."""
    rules = """
decision := count({[a, b, c] | some a in n; some b in n; some c in n}) if input.many
else := count(concat("", [x | some x in input.texts])) if input.texts
else := "quick"

n := numbers.range(1, input.many)
"""
    held = bundle(rules)
    engine = WasmEngine(held, build(opa, held), timeout_us=TIMEOUT_US, memory_pages=64)
    yield engine
    engine.close()


def test_a_decision_that_takes_too_long_is_ended(greedy: WasmEngine) -> None:
    began = time.monotonic()
    with pytest.raises(EngineFailed):
        greedy.decide(b'{"many": 200}')
    # A look every 10 ms, on a machine that may do other things.
    assert time.monotonic() - began < TIMEOUT_US / 1e6 + 2
    assert greedy.decide(b"{}") == "quick"


def test_a_decision_that_takes_too_much_memory_is_ended(greedy: WasmEngine) -> None:
    small = orjson.dumps({"texts": ["x" * 1000]})
    assert greedy.decide(small) == 1000
    with pytest.raises(EngineFailed):
        greedy.decide(orjson.dumps({"texts": ["x" * 100_000] * 30}))
    assert greedy.decide(small) == 1000


def test_a_closed_engine_fails(opa: str) -> None:
    held = bundle("decision := 1")
    engine = WasmEngine(held, build(opa, held))
    assert engine.decide(b"{}") == 1
    engine.close()
    with pytest.raises(EngineFailed):
        engine.decide(b"{}")


def test_what_the_wasm_would_ask_of_its_host_is_refused(opa: str) -> None:
    held = bundle('decision := sprintf("%v", [input.x])')
    with pytest.raises(BadPolicy, match="does not compute sprintf itself") as refused:
        WasmEngine(held, build(opa, held))
    assert refused.value.mend


def test_what_is_no_wasm_is_refused() -> None:
    with pytest.raises(BadPolicy, match="does not load"):
        WasmEngine(bundle("decision := 1"), b"\0asm\1\0\0\0")


# --- opa and the extra --------------------------------------------------------------------------


def test_without_opa_the_mend_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadFleet, match="put opa on PATH") as refused:
        find(tmp_path, {"PATH": str(tmp_path)})
    assert refused.value.where == "[policy] engine"
    with pytest.raises(BadFleet, match="cannot be run"):
        find(tmp_path, {"PATH": "", "VEDETTE_OPA": str(tmp_path / "opa")})


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


def test_without_the_extra_the_mend_is_told(opa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = bundle("decision := 1")
    raw = build(opa, held)
    monkeypatch.setitem(sys.modules, "opapywasm", None)
    with pytest.raises(BadFleet, match=r"install vedette\[wasm\]"):
        WasmEngine(held, raw)


# --- the stage ----------------------------------------------------------------------------------


async def test_a_bundle_that_opa_does_not_compile_is_refused_with_its_place(opa: str) -> None:
    stage = WasmStage(TrustingStage(), opa, timeout_us=TIMEOUT_US)
    found = await stage.try_out(bundle("decision := nothing_of_that_name"))
    assert len(found) == 1
    assert (found[0].file, found[0].line) == (GATEWAY, 3)
    found = await stage.try_out(bundle('decision := sprintf("%v", [input.x])'))
    assert "sprintf" in found[0].what


async def test_what_the_stage_within_refuses_is_not_compiled(opa: str) -> None:
    class Refusing(TrustingStage):
        async def try_out(self, bundle: Bundle) -> list[Finding]:
            return [Finding("a.rego", 1, "no")]

    stage = WasmStage(Refusing(), "/nowhere/opa", timeout_us=TIMEOUT_US)
    assert [each.what for each in await stage.try_out(BUNDLE)] == ["no"]


async def test_what_was_tried_out_is_compiled_once(opa: str) -> None:
    stage = WasmStage(TrustingStage(), opa, timeout_us=TIMEOUT_US)
    held = bundle("decision := 1")
    assert await stage.try_out(held) == []
    stage._opa = "/nowhere/opa"
    engine = stage.load(held)
    assert isinstance(engine, WasmEngine)
    assert engine.decide(b"{}") == 1
    with pytest.raises(BadPolicy, match="opa build"):
        stage.load(held)
    stage.close()
    with pytest.raises(EngineFailed):
        engine.decide(b"{}")


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_opa_is_told_nothing_of_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_PASSWORD", "s3cret")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    told = tmp_path / "told"
    with pytest.raises(BadPolicy, match="does not compile"):
        build(script(tmp_path / "opa", f"env > {told}; exit 1"), bundle("decision := 1"))
    lines = told.read_text().splitlines()
    assert not [each for each in lines if "s3cret" in each]
    assert f"TMPDIR={tmp_path}" in lines


async def test_what_another_worker_published_is_compiled_beside_the_event_loop(
    opa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler here ends only when the event loop has done something meanwhile."""
    monkeypatch.setattr(sys.modules[build.__module__], "DEADLINE_S", 10.0)
    began, go = tmp_path / "began", tmp_path / "go"
    slow = f'touch {began}; while [ ! -e {go} ]; do sleep 0.02; done; exec {opa} "$@"'
    async with toy_fleet(tmp_path / "fleet", World()) as fleet:
        rollout = fleet.app.rollout
        rollout.stage = WasmStage(
            TrustingStage(), script(tmp_path / "opa", slow), timeout_us=2_000_000
        )
        files = fleet.app.store.bundle(rollout.live.digest)
        assert files is not None
        held = Bundle.of({**files, "vedette/more.rego": b"package vedette.more\n\none := 1\n"})
        number = rollout.live.number + 1
        following = asyncio.create_task(rollout.follow(held, number))
        await until(began.exists)
        assert rollout.live.number == number - 1
        go.touch()
        await asyncio.wait_for(following, 30)
        assert (rollout.live.number, rollout.live.digest) == (number, held.digest)
        assert fleet.app.line.gateway.policy_rev == number
        close_stage(rollout.stage)


async def test_a_fleet_decides_by_wasm_and_replays_by_the_embedded_engine(
    opa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VEDETTE_OPA", opa)
    before = set(threading.enumerate())
    world = World()
    plan = PolicyPlan(engine="wasm", timeout_us=2_000_000)
    async with toy_fleet(tmp_path, world, edges=Edges(policy=plan)) as fleet:
        await fleet.send(job("1", send("hello")))
        await fleet.settle()
        assert world.texts() == ["hello"]
        (decided,) = fleet.entries("action.decided")
        assert decided["engine"].startswith("opa wasm/")
        assert decided["bundle"] == fleet.app.rollout.live.digest
        report = replay(fleet.app.store, RegorusEngine)
        assert report.ok
        assert report.agreed >= 1
    # The package lets its ticker go without a wait.
    left = [t for t in set(threading.enumerate()) - before if "ticker" in t.name]
    for each in left:
        each.join(10)
    assert not [each for each in left if each.is_alive()]
