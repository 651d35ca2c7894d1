"""What is stopped, and what a person must say to stop it."""

from __future__ import annotations

from typing import Any

import pytest

from vedette.domain.base.errors import BadCommand
from vedette.domain.stop import StopState, scope_of


def test_agents_tools_and_everything() -> None:
    stops = StopState()
    assert not stops.is_tool_stopped("a", "t")
    stops.restore(3, [("agent", "a"), ("tool", "t")])
    assert stops.epoch == 3
    assert stops.is_agent_stopped("a")
    assert not stops.is_agent_stopped("b")
    assert stops.is_tool_stopped("a", "x"), "all tools of a stopped agent"
    assert stops.is_tool_stopped("b", "t"), "a stopped tool of any agent"
    assert not stops.is_tool_stopped("b", "x")
    stops.restore(4, [("all", "")])
    assert stops.is_agent_stopped("b")
    assert stops.is_tool_stopped("b", "x")
    assert stops.list_scopes() == [("all", "")]
    stops.restore(5, [])
    assert not stops.is_agent_stopped("a")


@pytest.mark.parametrize(
    ("said", "scope"),
    [
        ({"agent": "a"}, ("agent", "a")),
        ({"tool": "t"}, ("tool", "t")),
        ({"everything": True}, ("all", "")),
    ],
)
def test_exactly_one_thing_is_said(said: dict[str, Any], scope: tuple[str, str]) -> None:
    base: dict[str, Any] = {"agent": None, "tool": None, "everything": False}
    assert scope_of(**{**base, **said}) == scope
    for more in ({}, {"agent": "a", "tool": "t"}, {"agent": "a", "everything": True}):
        with pytest.raises(BadCommand):
            scope_of(**{**base, **more})
