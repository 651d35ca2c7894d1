"""Whom an agent may ask is said in agent.yaml, and checked with the fleet."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from vedette.config.fleet import check_fleet, load_fleet
from vedette.config.problem import Problem
from vedette.config.settings import Settings
from vedette.domain.work_tools import ASK_TOOL
from vedette.testing.toy_fleet import write_agent


def write(folder: Path, asks: str, *, clerk: str = "{}", charter: str = "") -> Settings:
    for name, work in (("chief", f"{{asks: {asks}}}"), ("clerk", clerk)):
        write_agent(folder / "agents", name, reasoner="adk", max_turns=4, calls=10, work=work)
    if charter:
        path = folder / "agents/chief/agent.yaml"
        path.write_text(path.read_text().replace("note: known text", charter))
    (folder / "memory").mkdir()
    return replace(Settings.of(folder, "harbour"), targets={"world": {"kind": "world"}})


def errors(root: Path, settings: Settings) -> Problem:
    """Return the only error that a check finds."""
    found = check_fleet(root, settings, lambda agent, path: (None, []))
    (one,) = [problem for problem in found if not problem.warning]
    return one


@pytest.mark.parametrize(
    ("asks", "clerk", "what", "mend"),
    [
        ("[clark]", "{}", "'clark' is no agent of this fleet", "clerk"),
        ("[chief]", "{}", "'chief' would ask itself", "remove it"),
        ("[clerk]", "", "'clerk' takes no tasks", "add work: {} to clerk/agent.yaml"),
        ("[clerk, clerk]", "{}", "'clerk' is named twice", "keep one"),
    ],
)
def test_who_cannot_be_asked_is_said_with_file_line_and_mend(
    tmp_path: Path, asks: str, clerk: str, what: str, mend: str
) -> None:
    settings = write(tmp_path, asks, clerk=clerk)
    found = errors(tmp_path, settings)
    assert found.what == what
    assert mend in found.mend
    assert (found.file, found.line) == ("agents/chief/agent.yaml", 7)


def test_the_charter_has_whom_it_may_ask_and_no_key_of_that_name(tmp_path: Path) -> None:
    fleet = load_fleet(tmp_path, write(tmp_path / "one", "[clerk]")).fleet
    chief, clerk = fleet.agents["chief"], fleet.agents["clerk"]
    assert chief.charter["asks"] == ["clerk"]
    assert ASK_TOOL in chief.tools
    assert ASK_TOOL not in clerk.tools
    settings = write(tmp_path / "two", "[clerk]", charter="asks: me")
    found = errors(tmp_path / "two", settings)
    assert "stands in the charter under this name" in found.what
