"""Agreements: how often people agreed with a model, by agent, speaker and tool, off the ledger.

A person who approves a held action of a model's turn says that it was right, one who denies it that
it was not; a correction says it of all that the run proposed (`read_verdicts`). What nobody
answered says nothing. All of it is read from entries, and no content, by each worker for itself: so
it is the same wherever it is read, and after content was erased; what was used of it stands in the
turn.
"""

from __future__ import annotations

import asyncio

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from vedette.domain.agent import Agent
from vedette.domain.model_confidence import (
    AUDITED,
    NO_TOOL,
    Agreement,
    Verdict,
    is_audited,
    read_verdicts,
)
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.ports.store import Store, StoreReader
from vedette.domain.run import Run

_ANSWERS = ("hold.approved", "hold.denied", "run.corrected")
# The newest answers of a fleet that are read at a start, and those of one model that count; how
# many are read before others have their turn.
_MOST_READ, _MOST_COUNTED, _SLICE = 5_000, 200, 20
_MOST_ENTRIES = 10_000

# (agent, route of the speaker, tool)
_Place = tuple[str, str, str]


class Agreements(Struct):
    """The answers of people to what models proposed. Belongs to one event loop."""

    _last_seq: int = 0
    # By place, the verdict on each run, the last that was answered last.
    _verdicts: dict[_Place, dict[str, Verdict]] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def read_answers(self, store: StoreReader) -> None:
        """Take in what people answered since. Raises StoreFailed.

        At a start that may be much, so it is read in slices, and others go on between them.
        """
        async with self._lock:
            answers = store.ledger.latest_entries(_ANSWERS, self._last_seq, _MOST_READ)
            for at, (seq, raw) in enumerate(answers, 1):
                self._read_run(store, str(orjson.loads(raw)["run"]))
                self._last_seq = seq
                if at % _SLICE == 0:
                    await asyncio.sleep(0)

    def agreement(self, agent: str, route: str, tool: str, release: str = "") -> Agreement:
        """Return how often people agreed with what a speaker proposed of a tool for an agent."""
        return Agreement.of(self._verdicts.get((agent, route, tool), {}).values(), release)

    def _read_run(self, store: StoreReader, run: str) -> None:
        found = store.ledger.entries_page(
            {"run": run}, before=None, after=None, limit=_MOST_ENTRIES
        )
        entries = [orjson.loads(raw) for _, raw in reversed(found)]
        agent = next((str(one["agent"]) for one in entries if "agent" in one), "")
        for (route, tool), verdict in read_verdicts(entries).items():
            verdicts = self._verdicts.setdefault((agent, route, tool), {})
            verdicts.pop(run, None)
            verdicts[run] = verdict
            if len(verdicts) > _MOST_COUNTED:
                del verdicts[next(iter(verdicts))]


def measure_confidence(
    agreements: Agreements, agent: Agent, run: Run, judgement: ReasonerJudgement, secret: bytes
) -> ReasonerJudgement:
    """Return a model's judgement as sure as people's answers say (`Agreements.read_answers`).

    Each proposal is as sure as those of its tool were, the turn as its surest. Of a model that was
    measured a share is drawn by `secret` for a person to decide; the turn says so. Who does not
    tell what the model said (`model_turn`) is sure of nothing.
    """
    plan = agent.confidence
    if judgement.model_turn is None:
        nothing = tuple(replace(one, confidence=0.0) for one in judgement.proposals)
        return replace(judgement, confidence=0.0, proposals=nothing)
    route = judgement.model_turn.route
    tools = sorted({one.tool for one in judgement.proposals} or {NO_TOOL})
    found = {tool: agreements.agreement(agent.name, route, tool, agent.release) for tool in tools}
    sure = {tool: one.confidence(plan.cases) for tool, one in found.items()}
    shares = [
        one.audit_share_milli(plan.audit_share_milli) for tool, one in found.items() if sure[tool]
    ]
    audited = bool(judgement.proposals) and is_audited(
        secret, run.id, run.last, max(shares, default=0)
    )
    measured = {
        tool or "no action": {"cases": one.cases, "right": one.right} for tool, one in found.items()
    }
    return replace(
        judgement,
        confidence=max(sure.values()),
        proposals=tuple(replace(one, confidence=sure[one.tool]) for one in judgement.proposals),
        detail={**judgement.detail, "measured": measured, **({"audit": True} if audited else {})},
        asks=AUDITED if audited else "",
    )


def find_secret(store: Store, run: Run) -> bytes:
    """Return the random salt under which the ledger names a run's event: nobody is told of it."""
    for seq, _, salt, _ in store.ledger.walk(("event.accepted",), run.position - 1):
        if seq == run.position and salt:
            return salt
        break
    return b""
