"""What plugins perform has the time of a call, and that of an earlier call of its key before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from vedette.adapters.tools import performers
from vedette.adapters.tools.performers import PluginTools
from vedette.domain.effect import Call, Outcome
from vedette.domain.tool import Tool

TOOL = Tool(
    "lamp.light", "light", "lamp", {}, (), "queryable", "lamp", performer="lamp", request={}
)


def a_call(seconds: float) -> Call:
    us = int(seconds * 1_000_000)
    return Call("lamp.light", {}, "eff_1", "worker", "run_1", {}, ("worker",), 1, us)


class Slow:
    """Takes `seconds` for whatever it is to do."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        await asyncio.sleep(self.seconds)
        return Outcome("done") if may_start() else None

    async def query(self, tool: Tool, call: Call) -> Outcome | None:
        return await self.perform(tool, call, lambda: True)

    def close(self) -> None:
        pass


def tools_of(seconds: float) -> PluginTools:
    no_code: Any = None
    return PluginTools(no_code, lambda name: Slow(seconds))


async def test_a_performer_may_wait_for_an_earlier_call_and_then_has_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(performers, "_GRACE_S", 0.1)
    tools, call = tools_of(1.5), a_call(1)
    both = await asyncio.gather(tools.perform(TOOL, call, lambda: True), tools.query(TOOL, call))
    assert [*both] == [Outcome("done"), Outcome("done")]


async def test_of_what_takes_longer_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performers, "_GRACE_S", 0.1)
    outcome = await tools_of(60).perform(TOOL, a_call(0.1), lambda: True)
    assert outcome == Outcome("unknown", error="no answer within 0.1 s")
