"""What ends a canary, what it leaves alone, and what is read of it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.contract.app.test_canaries import running

from vedette.app.canaries import Canaries
from vedette.config.agent_folder import release_digest
from vedette.domain.base.errors import BadCommand, StoreFailed
from vedette.domain.effect import Call
from vedette.testing.toy_fleet import job, wait_until


async def test_one_that_always_fails_with_few_keys_is_said_to_have_had_too_few(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as made:
        made.write("new", first="raise RuntimeError('bad')")
        for share in range(500, 480, -1):
            await made.begin(share, min_runs=50)
            trial = made.canaries.running["worker"]
            if sum(trial.canary.has_key(f"k{n}") for n in range(4)) == 1:
                break
            await made.give("agent_canary_end", agent="worker")
        await made.send(240, keys=4)
        await made.tick()
        assert trial.to_json()["canary_side"]["runs"] >= 50
        assert not trial.to_json()["can_find_fault"]
        trial.until_us = 0
        (told,) = await made.tick()
        assert "prove nothing" in told
        assert made.fleet.entries("canary.ended")[-1]["outcome"] == "few"


async def test_a_canary_in_good_health_releases_nothing_by_itself(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.write("new")
        with pytest.raises(BadCommand, match="promote"):
            await made.begin(500, min_runs=5, promote=True)
        await made.begin(500, min_runs=5)
        await made.send(60)
        made.canaries.running["worker"].until_us = 0
        await made.tick()
        await made.fleet.restart()
        assert made.fleet.entries("agent.released") == []


async def test_its_errors_end_it_and_do_not_park_its_agent(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        made.write("new", first="raise RuntimeError('bad')")
        await made.begin(100)
        await made.send(1200)  # before anybody looks
        assert made.fleet.entries("stop.set") == []
        trial = made.canaries.running["worker"]
        trial.last = None
        trial.comparison.looks = 30  # that no look finds it first
        (told,) = await made.tick()
        assert "ceiling" in told
        (aborted,) = made.fleet.entries("canary.aborted")
        assert aborted["rule"] == "ceiling"
        assert "errors within an hour" in made.fleet.body(aborted["seq"])["reason"]
        for event in await made.send(10):
            assert made.turns(event) == [("old 1", old)]


async def test_what_only_a_canary_declares_can_be_stopped_and_its_undo_is_looked_up(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as made:
        path = made.agent / "agent.yaml"
        text = path.read_text()
        path.write_text(text.replace("wire.send", "wire.post"))
        made.write("old", times=0)
        await made.give("agent_release", agent="worker")
        path.write_text(text)
        made.write("new")
        await made.begin(500)
        rows = [row for event in await made.send(20) for row in made.fleet.actions(event)]
        assert {(row.tool, row.effect) for row in rows} == {("wire.send", "done")}
        with pytest.raises(BadCommand, match=r"wire\.send declares no inverse"):
            await made.give("undo", effect=rows[0].id)
        done = await made.fleet.app.commands.stop(made.fleet.order(), tool="wire.send")
        assert done["stopped"] == ["tool:wire.send"]


class CountedTools:
    """A tool executor that counts what it is to perform."""

    def __init__(self, tools: Any) -> None:
        self._tools, self.calls = tools, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tools, name)

    async def perform(self, tool: Any, call: Any, may_start: Any) -> Any:
        self.calls += 1
        return await self._tools.perform(tool, call, may_start)


async def test_an_ended_canary_begins_no_effect(tmp_path: Path) -> None:
    """The call that it has begun ends; what it had decided beyond that, the release decides."""
    async with running(tmp_path) as made:
        made.write("new", times=6)
        await made.begin(500)
        canary = made.canaries.running["worker"].canary
        key = next(f"q{n}" for n in range(99) if canary.has_key(f"q{n}"))
        code = made.fleet.app.services.canary_code["worker"]
        code.tool_executor = counted = CountedTools(code.tool_executor)
        began, go = threading.Event(), threading.Event()

        def answer(call: Call) -> None:
            began.set()
            go.wait(20)

        made.world.answer = answer
        await made.fleet.send(job("x1", key=key, agent="worker"))
        await wait_until(began.is_set, 20)
        before = len(made.world.calls)
        await made.give("agent_canary_end", agent="worker")
        go.set()
        await made.fleet.wait_until_idle(30)
        assert (before, counted.calls) == (1, 1)
        assert len(made.world.calls) == 6


async def test_a_second_canary_is_read_from_its_own_beginning(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.write("new")
        await made.begin()
        await made.send(40)
        await made.tick()
        await made.give("agent_canary_end", agent="worker")
        await made.send(40)
        begun = await made.begin()
        assert made.canaries._last_seq == begun["entry"]
        await made.send(10)
        await made.tick()
        (now,) = made.canaries.to_json()
        assert now["canary_side"]["runs"] + now["baseline_side"]["runs"] == 10


async def test_two_canaries_count_once_each(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.write("new")
        await made.begin()
        await made.send(40)
        await made.tick()
        path = made.fleet.content / "agents" / "other" / "agent.yaml"
        path.write_text(path.read_text().replace("title: ", "title: Now "))
        await made.give("agent_canary", agent="other", share_milli=200)
        await made.send(20, agent="other")
        await made.tick()
        sides = ("canary_side", "baseline_side")
        runs = [sum(one[side]["runs"] for side in sides) for one in made.canaries.to_json()]
        assert runs == [40, 20]


async def test_a_found_fault_is_not_lost_to_what_is_read_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as made:
        made.write("new", first="raise RuntimeError('bad')")
        await made.begin(200)
        await made.send(80)
        real = Canaries._take_in

        def take_in(self: Canaries, trial: Any, entry: Any, keys: Any) -> None:
            real(self, trial, entry, keys)
            if trial.is_faulty:  # from here on all keys are as bad
                for key in list(trial.comparison.keys):
                    trial.comparison.mark(key, "errors")

        monkeypatch.setattr(Canaries, "_take_in", take_in)
        (told,) = await made.tick()
        assert "aborted for errors" in told


async def test_a_start_whose_answer_was_lost_runs_and_such_an_end_ends_it(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.write("new")
        commands = made.fleet.app.services.store.commands

        class Deaf:
            def __getattr__(self, name: str) -> Any:
                return getattr(commands, name)

            async def append_entries(self, drafts: Any, **more: Any) -> int:
                await commands.append_entries(drafts, **more)
                raise StoreFailed("the answer was lost")

        store = made.fleet.app.services.store
        made.fleet.app.services.store = CommandsOf(store, Deaf())
        try:
            begun = await made.begin()
            assert list(made.canaries.running) == ["worker"]
            await made.give("agent_canary_end", agent="worker")
            assert made.canaries.running == {}
        finally:
            made.fleet.app.services.store = store
        (entry,) = made.fleet.entries("canary.started")
        assert begun["entry"] == entry["seq"]
        assert len(made.fleet.entries("canary.ended")) == 1


class CommandsOf:
    """A store that takes orders through something else."""

    def __init__(self, store: Any, commands: Any) -> None:
        self._store, self.commands = store, commands

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_nobody_is_woken_while_no_canary_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vedette.app.canaries._EVERY_S", 0.01)
    async with running(tmp_path) as made:
        ticks = 0

        async def tick() -> list[str]:
            nonlocal ticks
            ticks += 1
            return await real()

        real = made.canaries.tick
        monkeypatch.setattr(Canaries, "tick", lambda self: tick())
        watching = asyncio.create_task(made.canaries.watch(lambda message: None))
        await asyncio.sleep(0.2)
        assert ticks == 0
        made.write("new")
        await made.begin()
        await wait_until(lambda: ticks > 2, 10)
        mode = (made.fleet.app.settings.state / "canaries").stat().st_mode
        assert mode & 0o777 == 0o700
        watching.cancel()


@pytest.mark.parametrize("ends", ["by itself", "too late"])
async def test_its_workers_end_after_its_last_call_or_after_a_bounded_time(
    tmp_path: Path, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as made:
        made.write("new")
        await made.begin(500)
        trial = made.canaries.running["worker"]
        key = next(f"q{n}" for n in range(99) if trial.canary.has_key(f"q{n}"))
        began, go, closed = threading.Event(), threading.Event(), asyncio.Event()
        close = trial.opened.close

        async def note() -> None:
            closed.set()
            await close()

        def answer(call: Call) -> None:
            began.set()
            go.wait(20)

        trial.opened.close = note
        made.world.answer = answer
        try:
            await made.fleet.send(job("one", key=key))
            await asyncio.to_thread(began.wait, 20)
            if ends == "too late":
                monkeypatch.setattr("vedette.app.canaries._LINGER_S", 0.2)
                tools = {n: replace(t, timeout_us=1) for n, t in trial.agent.tools.items()}
                agent = replace(trial.agent, tools=tools)
                trial.canary = replace(trial.canary, agent=agent)
            await made.give("agent_canary_end", agent="worker")
            await asyncio.sleep(0.1)
            assert not closed.is_set(), "its call has begun"
            if ends == "by itself":
                go.set()
            await asyncio.wait_for(closed.wait(), 5)
        finally:
            go.set()
        await made.fleet.wait_until_idle()
        assert made.world.effects("wire.send") == 1
