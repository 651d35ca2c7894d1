"""Confidence: how sure a judgement is, and how sure each of its proposals may be.

A confidence is a probability. What is missing, beyond 0..1 or no number is never read as certainty,
and never brought into the range: whoever does not know how sure they are is refused, with a code.
"""

from __future__ import annotations

import math
from contextlib import suppress

from vedette.domain.base.errors import BadConfidence


def check_confidence(value: object, subject: str) -> float:
    """Return `value` as a probability, 0..1. Raises BadConfidence, which says whose it is
    (`subject`).

    A bool is no number here, and neither is the text of one.
    """
    found = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            # Not by the value's own methods: a subclass could say anything when it is compared.
            found = float.__pos__(value) if isinstance(value, float) else int.__truediv__(value, 1)
    if 0 <= found <= 1:
        return found
    said = "says no confidence" if value is None else f"has the confidence {_describe_value(value)}"
    raise BadConfidence(f"{subject} {said}", mend="say a probability from 0 to 1")


def proposal_confidence(proposed: object, judgement: float, tool: str) -> float:
    """Return how sure an action is: its proposal may lower what its judgement says, never raise it.

    `proposed` is None where the proposal says nothing of its own; `judgement` was checked. Raises
    BadConfidence.
    """
    if proposed is None:
        return judgement
    return min(check_confidence(proposed, f"the proposal of {tool}"), judgement)


def _describe_value(value: object) -> str:
    """Name a value without asking it: it may be an object of somebody's code."""
    if type(value) in (bool, int):
        return str(value)[:40]
    if type(value) is float:
        return "NaN" if math.isnan(value) else f"{value:g}"
    return f"of type {type(value).__name__}"
