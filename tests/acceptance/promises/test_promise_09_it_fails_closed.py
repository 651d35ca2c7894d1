"""Promise 9: it fails closed; with a control that shows the test can fail."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.promises.common import state

from vedette.testing.harness import copy_policies
from vedette.testing.toy import (
    World,
    job,
    note,
    send,
    toy_fleet,
)

PERMIT: dict[str, Any] = {
    "schema": "vedette.decision/1", "outcome": "permit", "rule": "x", "reasons": [], "wait": None,
    "until": 0, "would": None, "obligations": [],
}  # fmt: skip


class Engine:
    """A policy engine that answers what the test wants."""

    name, digest = "test", "0" * 64

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def decide(self, question: bytes) -> object:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


WRONG: list[object] = [
    None, {}, [], True, "permit", 1, b"permit", {"outcome": "permit"}, [PERMIT],
    {**PERMIT, "schema": "vedette.decision/9"}, {**PERMIT, "outcome": "allow"},
    {**PERMIT, "outcome": True}, {**PERMIT, "rule": ""}, {**PERMIT, "extra": 1},
    {**PERMIT, "wait": "approval"}, {**PERMIT, "until": -1}, {**PERMIT, "until": 0.5},
    {**PERMIT, "obligations": [{"type": "encrypt"}]}, {**PERMIT, "obligations": ["notify"]},
    {**PERMIT, "obligations": None}, {k: v for k, v in PERMIT.items() if k != "reasons"},
    RuntimeError("broken"), TimeoutError("late"), MemoryError(), RecursionError(),
    ValueError("undefined"), StopIteration(),
]  # fmt: skip


async def test_promise_09_it_fails_closed(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        gateway = fleet.app.line.gateway
        live = gateway.engine
        for at, wrong in enumerate(WRONG):
            gateway.engine = Engine(wrong)
            event = job(str(at), send(), note("x"))
            await fleet.send(event)
            await fleet.settle()
            assert [row.decided for row in fleet.actions(event)] == ["deny", "deny"], wrong
            assert all(row.rule.startswith("engine.") for row in fleet.actions(event))
            assert state(fleet, event) == "done"
        assert world.calls == []
        assert fleet.app.store.row("worker_notes", "k") is None
        gateway.engine = live
        await fleet.send(job("good", send()))
        await fleet.settle()
        assert world.effects() == 1


@pytest.mark.parametrize(
    "files",
    [
        {"vedette/gateway/decide.rego": "package vedette.gateway\n"},
        {"vedette/gateway/decide.rego": "package vedette.gateway\n\ndecision := true\n"},
        {"vedette/gateway/decide.rego": "package elsewhere\n\ndecision := {}\n"},
        {"grants/data.yaml": "{}\n"},
        {"sinks/data.yaml": "tools: {}\n"},
        {"limits/data.yaml": "hops: 8\n"},
        {"denies/data.yaml": "agents: []\n"},
    ],
)
async def test_promise_09_a_policy_with_nothing_in_it_permits_nothing(
    tmp_path: Path, world: World, files: dict[str, str]
) -> None:
    """Admitted by a stage that looks at nothing, it still permits nothing."""
    async with toy_fleet(tmp_path, world) as fleet:
        broken = copy_policies(tmp_path / "broken")
        shutil.rmtree(broken)
        shutil.copytree(fleet.policies, broken)
        for name, text in files.items():
            (broken / name).write_text(text)
        try:
            await fleet.apply(broken)
        except Exception:
            # It does not even load; then the engine it would have been is no engine.
            fleet.app.line.gateway.engine = Engine(None)
        event = job("1", send(), note("x"))
        await fleet.send(event)
        await fleet.settle()
        assert fleet.outcomes().get("permit", 0) == 0
        assert world.calls == []


async def test_promise_09_control_an_exact_permit_is_done(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        fleet.app.line.gateway.engine = Engine(PERMIT)
        await fleet.send(job("1", send()))
        await fleet.settle()
        assert world.effects() == 1
