"""How the entries of the ledger move one action: its decision, its hold, its effect.

The read side follows actions by entries alone, so it knows what entries tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vedette.effect import state_after
from vedette.view_row import State, add

Fields = Mapping[str, Any]

OPEN_HOLDS = ("open", "approved")
OPEN_EFFECTS = ("intended", "started", "unknown")


def move(action: State, kind: str, fields: Fields, at_us: int) -> None:
    """Change an action's state as an entry about it tells.

    `action` has `decided`, `rule`, `hold`, `wait`, `until`, `effect`, as far as they are known;
    `asked` is when its hold was opened and `begun` when its effect was intended, in microseconds.
    """
    if kind == "action.decided":
        _decide(action, fields, at_us)
    elif kind[:7] == "effect.":
        state = state_after(kind)
        if state == "cancelled" and action.get("decided") == "hold":
            # It was planned, waits again, and will be planned anew if it is permitted.
            action.pop("effect", None)
            return
        if kind == "effect.intended" or (state in OPEN_EFFECTS and "begun" not in action):
            action["begun"] = at_us
        action["effect"] = state
        if state not in OPEN_EFFECTS and action.get("hold") in OPEN_HOLDS:
            # What has ended waits for nobody.
            action["hold"] = "released"
    elif (moved := _MOVES.get(kind)) is not None:
        moved(action, fields)
        if action.get("hold") == "open":
            action.setdefault("asked", at_us)


def settled(action: State) -> bool:
    """Say whether nothing more will happen to an action."""
    effect = action.get("effect")
    if effect is not None:
        return effect not in OPEN_EFFECTS
    return action.get("decided") == "deny"


def bury(action: State) -> None:
    """Deny what is open of an action whose run became a dead letter."""
    if action.get("hold") in ("open", "approved", "released"):
        action["hold"] = "denied"
    _deny(action, "run.dead")


def take_up(action: State) -> None:
    """Undo what burial did to an action: a person had its run taken up again."""
    if action.get("rule") != "run.dead":
        return
    if action.get("hold") == "denied":
        del action["hold"]
    if action.get("effect") == "unknown":
        action["decided"], action["rule"] = "permit", "run.redriven"
    else:
        for name in ("decided", "rule", "effect", "begun"):
            action.pop(name, None)


def recount(counts: State, before: tuple[Any, Any, Any], action: State) -> None:
    """Count an action by the states it has now, no longer by what was decided, hold and effect."""
    decided, hold, effect = before
    if (now := action.get("decided")) != decided:
        _moved(counts, "decided.", decided, now)
    if (now := action.get("hold")) != hold:
        _moved(counts, "hold.", hold, now)
    if (now := action.get("effect")) != effect:
        _moved(counts, "effect.", effect, now)


def _decide(action: State, fields: Fields, at_us: int) -> None:
    outcome, had = fields["outcome"], action.get("hold")
    action["decided"], action["rule"] = outcome, fields.get("rule")
    if outcome == "hold":
        wait = fields.get("wait")
        # An approval already given stays with the action while it waits for something else.
        if had not in ("approved", "used") or wait == "approval":
            action["hold"] = "open"
            if had != "open":
                action["asked"] = at_us
        action["wait"], action["until"] = wait, fields.get("until")
        return
    action.pop("wait", None)
    action.pop("until", None)
    if had is not None:
        # What is permitted again was denied for a moment only, and its approval stands.
        used = "used" if had in ("approved", "used", "denied") else "released"
        action["hold"] = used if outcome == "permit" else "denied"


def _deny(action: State, rule: str) -> None:
    action["decided"], action["rule"] = "deny", rule
    action.pop("wait", None)
    action.pop("until", None)


def _short(action: State, fields: Fields) -> None:
    """There was no room for what had just been permitted: it waits, with an approval it had."""
    action["hold"] = "approved" if action.get("hold") == "used" else "open"
    action["decided"], action["rule"] = "hold", fields.get("rule")
    action["wait"], action["until"] = "budget", fields.get("until")
    action.pop("effect", None)


def _approved(action: State, fields: Fields) -> None:
    action["hold"], action["until"] = "approved", fields.get("until")


def _denied(action: State, fields: Fields) -> None:
    action["hold"] = "denied"
    _deny(action, "hold.denied")


def _expired(action: State, fields: Fields) -> None:
    action["hold"] = "expired"
    _deny(action, "hold.expired")


def _refused(action: State, fields: Fields) -> None:
    """It is not any more what it was when it was decided."""
    if action.get("hold") is not None:
        action["hold"] = "denied"
    _deny(action, "engine.changed")


def _moved(counts: State, name: str, was: str | None, now: str | None) -> None:
    if was is not None:
        add(counts, name + was, -1)
    if now is not None:
        add(counts, name + now, 1)


_MOVES: Mapping[str, Callable[[State, Fields], None]] = {
    "budget.refused": _short,
    "hold.approved": _approved,
    "hold.denied": _denied,
    "hold.expired": _expired,
    "action.refused": _refused,
}
