"""The confidence of a model: how often people agreed with it, and never what it says of itself.

People see what is held. While a model is below the bar that is all it proposes; above it, only a
share of what it may do (the audit), drawn so that nobody who sends events can know which. So what
is measured stays a sample of what the model proposes.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from math import comb
from typing import Any

from msgspec import Struct

# Why a person is to decide what a model proposed, whatever policy says: it was drawn for that.
AUDITED = "confidence.audit"
# What stands for the tool of a turn that proposed nothing.
NO_TOOL = ""
# The newest answers of a measure that it must agree with, and below which probability it does not.
RECENT, _IMPROBABLE = 20, 0.05
# Of another release of the agent so many answers are wanted, and until then a larger share audited.
PROBATION, PROBATION_SHARE_MILLI = 20, 500
# What came of an action: an answer after that is about whether it happened.
_BEGAN = frozenset({"effect.started", "effect.done", "effect.failed", "effect.unknown"})


class Verdict(Struct, frozen=True):
    """The verdict of people on what a run's model proposed of a tool, under a release."""

    is_right: bool
    release: str = ""


class Agreement(Struct, frozen=True):
    """The agreement of people with a model: how many cases they answered, how many were right.

    `recent` are the newest of these, at most `RECENT`; `of_release` those of the agent's release.
    """

    cases: int = 0
    right: int = 0
    recent: int = 0
    recent_right: int = 0
    of_release: int = 0

    @classmethod
    def of(cls, verdicts: Iterable[Verdict], release: str) -> Agreement:
        """Count verdicts, the oldest first."""
        found = list(verdicts)
        recent = found[-RECENT:]
        return cls(
            len(found),
            sum(one.is_right for one in found),
            len(recent),
            sum(one.is_right for one in recent),
            sum(one.release == release for one in found),
        )

    def confidence(self, least_cases: int) -> float:
        """Return the probability that the next case is right; 0 while there are too few.

        The share of right cases, drawn towards one half by one case of each kind (Laplace's rule of
        succession), so that a handful of lucky cases never reads as certainty. That of the newest
        alone, if so few of them would be right in one of twenty fleets only: the model is another.
        """
        if self.cases < least_cases:
            return 0.0
        whole = (self.right + 1) / (self.cases + 2)
        if _at_most(self.recent_right, self.recent, whole) >= _IMPROBABLE:
            return whole
        return min(whole, (self.recent_right + 1) / (self.recent + 2))

    def audit_share_milli(self, share_milli: int) -> int:
        """Return the share (thousandths) to audit: a larger one while a release is new to it."""
        is_new = self.of_release < min(PROBATION, self.cases)
        return max(share_milli, PROBATION_SHARE_MILLI) if is_new else share_milli


def _at_most(right: int, cases: int, chance: float) -> float:
    """Return the probability of at most so many right ones (binomial distribution)."""
    return sum(
        comb(cases, one) * chance**one * (1 - chance) ** (cases - one) for one in range(right + 1)
    )


def is_audited(secret: bytes, run: str, last: int, share_milli: int) -> bool:
    """Say whether a turn is among the share (thousandths) that a person decides in any case.

    Drawn by the run's `secret`, which neither who sends its event nor who answers for its agent
    knows; without one every turn is. `last` is the number of the run's last entry: a turn that is
    tried anew is drawn alike.
    """
    if not secret:
        return share_milli > 0
    drawn = int.from_bytes(hmac.digest(secret, f"audit {run} {last}".encode(), "sha256")[:8], "big")
    return drawn % 1000 < share_milli


def read_verdicts(entries: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Verdict]:
    """Return what people said of a run's models, by (route, tool), from its entries, oldest first.

    Of each tool one verdict, however often the run proposed it: wrong if any of it was. A person
    who denies says that it was wrong, whatever they say else, be it before or after; a correction
    says it of all that was proposed by then, and counts more than an approval. An answer after the
    effect began is about what came of it, and says nothing. What policy denies no person said.
    """
    route = release = ""
    is_empty = True
    places: dict[str, tuple[str, str, str]] = {}
    said: dict[str, bool] = {}
    corrected: dict[str, bool] = {}
    denied: set[str] = set()
    began: set[str] = set()
    for entry in entries:
        kind, action = entry["kind"], str(entry.get("action", ""))
        if kind == "turn.reasoned":
            route, release = entry.get("route") or "", entry.get("release") or ""
            if is_empty and not entry.get("proposals"):
                places[""] = (route, NO_TOOL, release)
            else:
                is_empty = is_empty and entry.get("what") == "deferred"
                places.pop("", None)
        elif kind == "action.decided":
            places.setdefault(action, (route, entry["tool"], release))
        elif kind in _BEGAN:
            began.add(action)
        elif kind == "run.corrected":
            corrected.update(dict.fromkeys(places, entry.get("outcome") == "right"))
        elif kind in ("hold.approved", "hold.denied") and action not in began:
            said[action] = kind == "hold.approved"
            denied |= {action} if kind == "hold.denied" else set()
    found: dict[tuple[str, str], Verdict] = {}
    for action, is_right in {**said, **corrected}.items():
        route, tool, release = places.get(action, ("", "", ""))
        if route:
            before = found.get((route, tool))
            is_right = is_right and action not in denied and (before is None or before.is_right)
            found[route, tool] = Verdict(is_right, release)
    return found
