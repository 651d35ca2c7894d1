"""The diagrams in docs/lifecycle.md are the state machines of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from vedette.domain import effect, hold, memory_state
from vedette.domain.run import CommitStatus, RunState
from vedette.domain.tool import SETTLEMENT_MODES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "lifecycle.md").read_text(encoding="utf-8")

Moves = set[tuple[str, str]]


def drawn(text: str, heading: str) -> tuple[Moves, set[str], set[str]]:
    """Return (moves, first states, last states) of the diagram under a heading."""
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    (diagram,) = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", section, re.DOTALL)
    arrows = re.findall(r"^    (\S+) --> (\S+)$", diagram, re.MULTILINE)
    assert len(arrows) == diagram.count("-->"), "a line of the diagram was not read"
    return (
        {(a, b) for a, b in arrows if "[*]" not in (a, b)},
        {b for a, b in arrows if a == "[*]"},
        {a for a, b in arrows if b == "[*]"},
    )


def test_holds() -> None:
    moves, first, last = drawn(PAGE, "A hold")
    assert moves == {(a, b) for a, targets in hold._TRANSITIONS.items() for b in targets}
    assert (first, last) == ({"open"}, set(hold.FINAL_STATES))


def test_effects() -> None:
    moves, first, last = drawn(PAGE, "An effect")
    assert moves == {(a, b) for a, targets in effect._TRANSITIONS.items() for b in targets}
    assert (first, last) == ({"intended"}, set(effect.FINAL_STATES))


def test_memories() -> None:
    moves, first, last = drawn(PAGE, "A memory")
    assert moves == {
        (memory_state._REQUIRED_STATE[kind], to) for kind, to in memory_state.TRANSITIONS.items()
    }
    assert (first, last) == ({"candidate"}, {"rejected"})
    assert all(kind in PAGE for kind in memory_state.MEMORY_ENTRY_KINDS)


def test_runs() -> None:
    moves, first, last = drawn(PAGE, "A run")
    assert {state for move in moves for state in move} == set(get_args(RunState))
    assert (first, last) == ({"ready"}, {"done", "dead"})
    assert "done" not in {a for a, _ in moves}, "a run that ended stays ended"
    by_a_person = {b for a, b in moves if a == "dead"}
    assert by_a_person == {"waiting", "done"}, "as a dead letter is redriven, or dropped"


def test_answers_and_ways_to_settle_are_all_named() -> None:
    rows = set(re.findall(r"^\| `?([a-z: ]+?)`? \|", PAGE, re.MULTILINE))
    assert {answer.value for answer in CommitStatus} <= rows
    assert set(SETTLEMENT_MODES) <= rows


@pytest.mark.parametrize(
    ("line", "instead"),
    [("    open --> denied\n", ""), ("    open --> denied\n", "    open --> used\n")],
)
def test_a_missing_and_an_invented_arrow_are_found(line: str, instead: str) -> None:
    """Negative control: a diagram that differs is seen to differ."""
    assert line in PAGE
    moves, _, _ = drawn(PAGE.replace(line, instead), "A hold")
    assert moves != {(a, b) for a, targets in hold._TRANSITIONS.items() for b in targets}
