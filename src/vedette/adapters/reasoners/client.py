"""The Reasoner port on an agent's client: each call of it is one proposal, thought out elsewhere.

Nothing is judged here. What a client may do is declared, granted and decided as for any agent.
"""

from __future__ import annotations

from vedette.domain.client_call import call_proposal, client_confidence
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement, StatelessReasoner


class ClientReasoner(StatelessReasoner):
    """The reasoner that turns the event of a client's call into its one proposal."""

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        """Return the call as a proposal. Raises Permanent for an event that is none."""
        return ReasonerJudgement(
            label="call",
            confidence=client_confidence(briefing.agent, briefing.charter),
            proposals=(call_proposal(briefing.event),),
        )
