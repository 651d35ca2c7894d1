"""Spans of a model's turn, out of its entries."""

from __future__ import annotations

from typing import Any

from vedette.ledger.history.trace import spans

S = 1_000_000
ACCEPTED = {"at": 0, "event": "e", "seq": 1}
CALL = {"model": "fast", "began": 100 * S, "took": 30 * S, "call_took": 29 * S, "calls": 1}


def told(*entries: tuple[str, int, dict[str, Any]]) -> list[tuple[str, float, float, str | None]]:
    """Return (name, start, end, failure) of the spans of a run with these entries, in seconds."""
    found = [
        {"kind": kind, "at": at * S, "seq": seq, "n": seq, "run": "r_x", "turn": 1, **fields}
        for seq, (kind, at, fields) in enumerate(entries, 2)
    ]
    return [
        (one.name, one.start_us / S, one.end_us / S, one.failed)
        for one in spans(ACCEPTED, found, None)[2:]
    ]


def test_what_was_recalled_was_before_the_model_was_asked() -> None:
    """Its entries are committed with the turn."""
    assert told(
        ("budget.reserved", 99, {}),
        ("recall.decided", 131, {}),
        ("recall.decided", 131, {}),
        ("budget.settled", 131, {"model_call": CALL}),
        ("turn.reasoned", 131, {}),
        ("run.closed", 131, {}),
    ) == [
        ("recall", 99, 100, None),
        ("recall", 100, 100, None),
        ("reason", 100, 130, None),
        ("chat fast", 101, 130, None),
    ]


def test_a_turn_without_a_call_recalls_until_its_commit() -> None:
    assert told(
        ("recall.decided", 5, {}),
        ("turn.reasoned", 5, {}),
        ("budget.settled", 131, {"model_call": CALL, "turn": 2}),
        ("run.closed", 131, {}),
    )[:2] == [("recall", 0, 5, None), ("reason", 5, 5, None)]


def test_a_turn_that_came_to_nothing_failed_and_its_call_did_not() -> None:
    """The turn that is recorded after it, without a call, has a span of its own."""
    assert told(
        ("budget.settled", 131, {"model_call": CALL, "what": "superseded"}),
        ("turn.reasoned", 140, {}),
        ("run.closed", 140, {}),
    ) == [
        ("reason", 100, 130, "superseded"),
        ("chat fast", 101, 130, None),
        ("reason", 131, 140, None),
    ]
