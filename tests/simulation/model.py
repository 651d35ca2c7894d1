"""The model: what vedette promises, said of one history. It shares no code with the engine.

A judge of an event keeps the values of its key, and tells in its judgement's detail which it has
`seen`, the event's own last, and in its label their sum: only so are order and state seen from
outside.
"""

from __future__ import annotations

from tests.simulation.history import History
from tests.simulation.promises import effects, events, people, permits
from tests.simulation.promises.reading import Violation

__all__ = ["Violation", "judge"]

_PROMISES = (
    events.check_events,
    events.check_judgements,
    effects.check_effects,
    effects.check_rows,
    effects.check_repeats,
    effects.check_questions,
    effects.check_outcomes,
    permits.check_permits,
    permits.check_policy,
    permits.check_spend,
    people.check_stops,
    people.check_losses,
    people.check_refusals,
    people.check_orders,
    people.check_approvals,
    people.check_erasures,
)


def judge(history: History) -> list[Violation]:
    """Return all that is wrong with a history; an empty list if nothing is."""
    wrong = [Violation("error", said) for said in history.errors]
    wrong += [Violation("unproved", said) for said in history.proof]
    return wrong + sorted({one for check in _PROMISES for one in check(history)})
