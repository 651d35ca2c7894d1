"""The public kit that judges are built from.

A judge is a local, deterministic model without a language model behind it: it settles the clear
cases and says how sure it is. An agent's `judge.py` defines `Judge`, a subclass of the one here.
"""

from __future__ import annotations

from vedette.domain.action import Proposal
from vedette.domain.event import Event, metric_value
from vedette.domain.memory import Briefing, Candidate, Memory
from vedette.domain.origin import Ref
from vedette.domain.ports.judge import Judge, Judgement

__all__ = [
    "Briefing", "Candidate", "Event", "Judge", "Judgement", "Memory", "Proposal", "Ref",
    "metric_value",
]  # fmt: skip
