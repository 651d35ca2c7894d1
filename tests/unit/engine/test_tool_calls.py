"""What a call needs before it, and what becomes of what it answers."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from vedette.domain.base.errors import Permanent
from vedette.domain.effect import Call, EffectState, Outcome, transition
from vedette.domain.run import ActionRow
from vedette.domain.tool import SettlementMode, Tool
from vedette.engine.tool_calls import (
    answer_data,
    apply_outcome,
    find_precondition,
    make_call,
    query_target,
)

NOW = 1_780_000_000_000_000
SECOND = 1_000_000
CALL = Call("t", {}, "key", "a", "run_1", {}, ("a",), 1, SECOND)


def tool(settles: SettlementMode, attempts: int = 3) -> Tool:
    return Tool("t", "do", "thing", {}, (), settles, "f", attempts=attempts)


def row(effect: EffectState, **given: Any) -> ActionRow:
    return ActionRow("act_1", "run_1", 1, 0, "a", "t", "d", b"{}", effect=effect, **given)


@pytest.mark.parametrize(
    ("settles", "effect", "mine", "before"),
    [
        ("idempotent", "intended", False, "none"),
        ("idempotent", "started", False, "none"),
        ("queryable", "intended", False, "start"),
        ("queryable", "started", True, "none"),
        ("queryable", "started", False, "query"),
        ("queryable", "unknown", False, "query"),
        ("queryable", "unknown", True, "query"),
        ("none", "intended", False, "start"),
        ("none", "started", True, "none"),
        ("none", "started", False, "person"),
        ("none", "unknown", True, "person"),
    ],
)
def test_what_a_call_needs_first(
    settles: SettlementMode, effect: EffectState, mine: bool, before: str
) -> None:
    assert find_precondition(tool(settles), effect, own_start=mine) == before


@pytest.mark.parametrize(
    ("settles", "query", "effect", "before"),
    [
        ("idempotent", None, "intended", "none"),
        ("idempotent", "q", "intended", "query"),
        ("queryable", "q", "intended", "query"),
        ("queryable", "q", "started", "query"),
        ("none", None, "intended", "person"),
        ("none", None, "unknown", "person"),
    ],
)
def test_what_a_call_in_doubt_needs_first(
    settles: SettlementMode, query: str | None, effect: EffectState, before: str
) -> None:
    """After a restore what was never started here may have happened in what was lost."""
    queried = replace(tool(settles), query=query)
    assert find_precondition(queried, effect, own_start=False, in_loss_window=True) == before


@pytest.mark.parametrize(
    ("settles", "effect", "answer", "after"),
    [
        ("idempotent", "intended", "done", "done"),
        ("idempotent", "intended", "failed", "failed"),
        ("idempotent", "intended", "retry", "intended"),
        ("idempotent", "intended", "unknown", "intended"),
        ("queryable", "started", "done", "done"),
        ("queryable", "started", "retry", "intended"),
        ("queryable", "started", "unknown", "unknown"),
        ("queryable", "unknown", "unknown", "unknown"),
        ("queryable", "unknown", "failed", "failed"),
        ("none", "started", "unknown", "unknown"),
        ("none", "started", "done", "done"),
    ],
)
def test_what_becomes_of_an_effect(
    settles: SettlementMode, effect: EffectState, answer: Any, after: str
) -> None:
    present = row(effect)
    assert apply_outcome(present, tool(settles), Outcome(answer), NOW) == after
    assert present.effect == after
    assert present.tries == 1
    assert (present.answer is not None) == (after in ("done", "failed"))


def test_tries_are_bounded_and_waits_grow() -> None:
    present, waits = row("intended"), []
    for _ in range(8):
        apply_outcome(present, tool("idempotent", attempts=8), Outcome("retry"), NOW)
        waits.append(present.not_before_us - NOW)
    assert present.effect == "failed"
    assert all(0 < wait <= 300 * SECOND for wait in waits[:-1])
    assert all(later > earlier for earlier, later in pairwise(waits[:-1]))
    repeat = row("intended")
    apply_outcome(repeat, tool("idempotent"), Outcome("retry"), NOW)
    assert repeat.not_before_us - NOW == waits[0], "the jitter is drawn from the key, not by chance"
    other = replace(row("intended"), id="act_2")
    apply_outcome(other, tool("idempotent"), Outcome("retry"), NOW)
    assert other.not_before_us != repeat.not_before_us


def test_an_answer_is_kept_in_canonical_form() -> None:
    present = row("intended")
    apply_outcome(present, tool("idempotent"), Outcome("done", {"b": 0.5, "a": [1]}), NOW)
    assert present.answer == b'{"data":{"a":[1],"b":"0.5"},"error":"","state":"done"}'
    assert answer_data(present) == {"a": [1], "b": "0.5"}
    assert answer_data(row("intended")) == {}


class SlowTools:
    """A performer whose tools raise."""

    def compute_rows(self, tool: Tool, call: Call, row: Any) -> list[Any]:
        raise AssertionError

    async def perform(self, tool: Tool, call: Call, may: Callable[[], bool]) -> Outcome | None:
        raise ConnectionError("broken off")

    async def query(self, tool: Tool, call: Call) -> Outcome | None:
        raise ConnectionError("not there")


@pytest.mark.parametrize(
    ("settles", "state"), [("idempotent", "failed"), ("queryable", "unknown"), ("none", "unknown")]
)
async def test_a_tool_that_raises_is_a_failure_only_where_a_repeat_is_harmless(
    settles: SettlementMode, state: str
) -> None:
    outcome = await make_call(SlowTools(), tool(settles), CALL, lambda: True)
    assert outcome is not None
    assert (outcome.state, outcome.error) == (state, "ConnectionError: broken off")


async def test_a_question_without_an_answer_leaves_the_effect_unknown() -> None:
    outcome = await query_target(SlowTools(), tool("queryable"), CALL)
    assert outcome is not None
    assert outcome.state == "unknown"


def test_an_effect_that_ended_stays_ended() -> None:
    ends: list[EffectState] = ["done", "failed", "cancelled"]
    others: list[EffectState] = ["intended", "started", "done", "unknown"]
    for ended in ends:
        for to in others:
            with pytest.raises(Permanent):
                transition(ended, to)


@pytest.mark.parametrize("name", ["vedette-hands_0", "vedette-http-post_0", "vedette-imap_0"])
def test_a_call_that_lingers_is_known_by_its_thread(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever it waits for: the interpreter would wait for it, too."""
    run = importlib.import_module("vedette.interfaces.cli.run")
    monkeypatch.setattr(run, "_CALL_GRACE_S", 0.01)
    lingers = run._has_stuck_calls
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name=name)
    assert not lingers()
    thread.start()
    assert lingers()
    go.set()
    thread.join()
    assert not lingers()
