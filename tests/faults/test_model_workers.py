"""A model that blocks, exits or eats memory harms its own run only; so does a kill."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.contract.adapters.reasoners.test_adk_reasoner import AGENT_PY, AGENT_YAML, TOOLS_PY
from tests.gemini_server import KEY, ModelServer, model_server
from tests.model_workers import MODEL, Models, misbehaving, models
from tests.workers import until

from vedette.adapters.reasoners.workers import model_client
from vedette.adapters.reasoners.workers.model_client import (
    ModelTurnSuperseded,
    ModelWorkerLost,
)
from vedette.adapters.reasoners.workers.pending_call import WorkerLost
from vedette.domain.agent import ResourceLimits
from vedette.domain.base.errors import Temporary
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.model_turn import BadModelAnswer, ModelAway, ModelUse
from vedette.testing.toy_fleet import World, toy_fleet


def write(parent: Path, name: str, model: str) -> Path:
    folder = parent / name
    folder.mkdir(parents=True)
    (folder / "agent.yaml").write_text(AGENT_YAML.replace("sorter", name))
    (folder / "tools.py").write_text(TOOLS_PY)
    code = AGENT_PY.replace('"sorter"', f'"{name}"').replace('"none"', f'"{model}"')
    (folder / "agent.py").write_text(code)
    return folder


def brief(do: str, number: int = 0, agent: str = "sorter") -> Briefing:
    key, data = f"{do}{number}", {"do": do, "number": number}
    event = Event("test", key, "mail.received", key, None, data)
    return Briefing(f"run_{key}", agent, key, 1, 0, 1, event, {}, {})


@asynccontextmanager
async def two_agents(tmp_path: Path, server: ModelServer, **changes: Any) -> AsyncIterator[Models]:
    with models(tmp_path, **misbehaving()) as there:
        for agent in ("sorter", "other"):
            folder = write(tmp_path / "agents", agent, "bad-gemini")
            await there.prepare(agent, folder, server, **changes)
        yield there


class Neighbour:
    """Another agent's turns, one after the other, and the longest pause of the engine's loop."""

    def __init__(self, there: Models) -> None:
        self.there, self.done, self.longest_s = there, 0, 0.0

    async def __aenter__(self) -> Neighbour:
        self.tasks = [asyncio.create_task(self._ask()), asyncio.create_task(self._tick())]
        return self

    async def __aexit__(self, *error: object) -> None:
        failures = [task.exception() for task in self.tasks if task.done()]
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert failures == [], "the other agent's turns went on"
        assert self.done > 0
        assert self.longest_s < 1.0, "the engine's loop turned all the while"

    def has_more(self, turns: int) -> bool:
        """Say whether more turns have ended."""
        return self.done > turns

    async def _ask(self) -> None:
        while True:
            await self.there.reasoner.reason(brief("slow", self.done, "other"))
            self.done += 1

    async def _tick(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            self.longest_s = max(self.longest_s, time.monotonic() - before)
            before = time.monotonic()


def has_begun(server: ModelServer, count: int) -> bool:
    """Say whether so many held turns have come to the server."""
    return server.count("held") >= count


ENDS = [
    ("stall", "did not answer for 3 s"),
    ("spin", "did not answer for 3 s"),
    ("leave", "ended by itself with exit code 7"),
    ("crash", "was ended by SIGSEGV"),
    ("kill", "was ended by SIGKILL"),
    ("eat", "went over its memory limit"),
]


@pytest.mark.parametrize("ends", [pytest.param(ENDS[2:4], id="two"), pytest.param(ENDS, id="all")])
async def test_what_ends_its_worker_ends_its_own_turn_only(
    tmp_path: Path, ends: list[tuple[str, str]]
) -> None:
    """Each is charged alone; who was asked beside it is asked again, and other agents go on."""
    with model_server() as server:
        async with two_agents(tmp_path, server) as there:
            reasoner = there.reasoner
            async with Neighbour(there) as neighbour:
                for number, (do, why) in enumerate(ends):
                    server.hold.clear()
                    seen = server.count("held")
                    held = asyncio.create_task(reasoner.reason(brief("held", number)))
                    await until(partial(has_begun, server, seen + 1))
                    before, turns = there.pid("sorter"), neighbour.done
                    with pytest.raises(ModelWorkerLost, match=why) as lost:
                        await reasoner.reason(brief(do, number))
                    assert lost.value.is_culprit
                    with pytest.raises(ModelTurnSuperseded, match="beside this turn") as beside_it:
                        await held
                    for error in (lost.value, beside_it.value):
                        assert (error.use, error.is_answered) == (ModelUse(1), False)
                    server.hold.set()
                    again = await reasoner.reason(brief("held", 100 + number))
                    assert again.final
                    assert there.pid("sorter") != before
                    # It is asked for again apart: who is beside it by now loses nothing.
                    beside = asyncio.create_task(reasoner.reason(brief("slow", number)))
                    with pytest.raises(WorkerLost, match=why):
                        await reasoner.reason(brief(do, number))
                    assert (await beside).final
                    await until(partial(neighbour.has_more, turns))
                await until(lambda: len(there.deaths) == 2 * len(ends))
                assert {agent for agent, _, _ in there.deaths} == {"sorter"}
                assert server.keys == {KEY}


async def test_a_provider_that_never_answers_keeps_nobody(tmp_path: Path) -> None:
    with model_server() as server:
        async with two_agents(tmp_path, server, timeout_s=5.0) as there:
            blocked = [
                asyncio.create_task(there.reasoner.reason(brief("block", number)))
                for number in range(8)
            ]
            await until(lambda: server.count("block") == 8)
            pid = there.pid("sorter")
            for number in range(4):
                assert (await there.reasoner.reason(brief("slow", number))).final
            for task in blocked:
                with pytest.raises(Temporary, match="did not answer within 5 s"):
                    await task
            assert there.pid("sorter") == pid, "no worker was ended for it"
            assert there.deaths == []


async def test_a_turn_that_will_not_end_is_ended_with_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_client, "GRACE_S", 1.0)
    with model_server() as server:
        async with two_agents(tmp_path, server, timeout_s=1.0) as there:
            began = time.monotonic()
            with pytest.raises(Temporary, match="did not answer within 2 s"):
                await there.reasoner.reason(brief("deaf"))
            assert time.monotonic() - began < 6
            await until(lambda: there.deaths != [])
            assert "did not end a turn" in there.deaths[0][2]
            assert (await there.reasoner.reason(brief("answer"))).final


async def test_an_answer_of_any_size_is_its_own_run_s_trouble(tmp_path: Path) -> None:
    """20 MB are refused by the bound of an answer; what does not end meets the memory's."""
    with model_server() as server, models(tmp_path) as there:
        for agent in ("sorter", "other"):
            folder = write(tmp_path / "agents", agent, MODEL)
            await there.prepare(agent, folder, server, limits=ResourceLimits(time_us=20_000_000))
        async with Neighbour(there):
            with pytest.raises(BadModelAnswer, match="more than 1048576 bytes"):
                await there.reasoner.reason(brief("huge"))
            with pytest.raises(WorkerLost, match="memory"):
                await there.reasoner.reason(brief("endless"))
            assert (await there.reasoner.reason(brief("answer"))).final


async def test_a_stopped_caller_has_its_turn_ended_and_nobody_else_s(tmp_path: Path) -> None:
    with model_server() as server, models(tmp_path) as there:
        await there.prepare("sorter", write(tmp_path / "agents", "sorter", MODEL), server)
        one, two = (asyncio.create_task(there.reasoner.reason(brief("held", n))) for n in range(2))
        await until(lambda: server.count("held") == 2)
        one.cancel()
        server.hold.set()
        assert (await two).final
        assert one.cancelled()
        assert there.deaths == []


@pytest.mark.parametrize(("how", "kind"), [("block", "timeout"), ("deaf", "timeout")])
async def test_a_turn_that_is_late_is_weather(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, kind: str
) -> None:
    """Whether the worker says so itself or the engine gives it up: it may have been paid."""
    monkeypatch.setattr(model_client, "GRACE_S", 1.0)
    with model_server() as server:
        async with two_agents(tmp_path, server, timeout_s=1.0) as there:
            with pytest.raises(ModelAway) as late:
                await there.reasoner.reason(brief(how))
            assert (late.value.kind, late.value.use) == (kind, ModelUse(1))


# --- the fleet --------------------------------------------------------------------------------


async def test_a_worker_killed_in_mid_call_loses_nothing_and_nothing_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run is asked again; one is charged with an attempt; a lost answer costs a call."""
    runs = 6
    with model_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        fleet = toy_fleet(tmp_path, World(), reasoner="adk", workers=True, model_calls=1000)
        code = fleet.content / "agents" / "worker" / "agent.py"
        code.write_text(code.read_text().replace('"none"', f'"{MODEL}"'))
        async with fleet:
            events = [
                Event("test", f"e{n}", "worker.job", f"k{n}", None, {"do": "held", "number": n})
                for n in range(runs)
            ]
            await fleet.send(*events)
            await until(lambda: server.count("held") == runs)
            pool = fleet.app.model_pool
            assert pool is not None
            os.kill(pool.worker_pids["worker", "model"], signal.SIGKILL)
            await until(lambda: server.count("held") == 2 * runs)
            server.hold.set()
            await fleet.wait_until_idle()
            found = [run for event in events for run in fleet.runs(event)]
            assert [run.state for run in found] == ["done"] * runs
            spent = fleet.app.store.spend.by_minute(0)
            calls = sum(amount for _, unit, _, amount in spent if unit == "model_calls")
            # Of two calls that a turn may make at worst, a lost one is charged as one.
            assert calls == 2 * runs
            assert calls == len(server.requests)
