"""What is stopped, and what a person must say to stop it."""

from __future__ import annotations

from typing import Any

import pytest

from vedette.domain.base.errors import BadCommand
from vedette.domain.stop import Stops, scope_of


def test_agents_tools_and_everything() -> None:
    stops = Stops()
    assert not stops.tool("a", "t")
    stops.restore(3, [("agent", "a"), ("tool", "t")])
    assert stops.epoch == 3
    assert stops.agent("a")
    assert not stops.agent("b")
    assert stops.tool("a", "x"), "all tools of a stopped agent"
    assert stops.tool("b", "t"), "a stopped tool of any agent"
    assert not stops.tool("b", "x")
    stops.restore(4, [("all", "")])
    assert stops.agent("b")
    assert stops.tool("b", "x")
    assert stops.listed() == [("all", "")]
    stops.restore(5, [])
    assert not stops.agent("a")


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
