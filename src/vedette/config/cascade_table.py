"""Who reasons for an agent, one after the other, and how sure its model is, in agent.yaml."""

from __future__ import annotations

from vedette.config.agent_file import CASCADE, AgentFile, CascadeFile, ConfidenceFile
from vedette.config.problem import Problem
from vedette.config.yaml import Document
from vedette.domain.agent import Cascade, ConfidencePlan
from vedette.domain.base.clock import duration_us
from vedette.domain.ports.plugin import ReasonerPlugin

# A constant in the charter that a model's confidence was.
_FORMER_CONFIDENCE = "model_confidence"


def read_reasoners(shape: AgentFile) -> tuple[str, ...]:
    """Return what reasons for an agent, of a cascade both; who names a model and nothing else has
    it asked by ADK.
    """
    if shape.reasoner == CASCADE:
        return ("judge", "adk")
    implied = shape.model is not None and "reasoner" not in shape.model_fields_set
    return ("adk" if implied else shape.reasoner,)


def read_cascade(shape: AgentFile) -> Cascade | None:
    """Return how judge and model share the work; None if there are not both."""
    if shape.reasoner != CASCADE:
        return None
    given = shape.cascade or CascadeFile()
    after = given.person_after
    return Cascade(given.settle_at, 0 if after is None else duration_us(after))


def read_confidence_plan(shape: AgentFile) -> ConfidencePlan:
    """Return how the confidence of an agent's model is measured."""
    given = shape.confidence or ConfidenceFile()
    return ConfidencePlan(given.cases, given.audit_share)


def cascade_problems(shape: AgentFile, document: Document, last: ReasonerPlugin) -> list[Problem]:
    """Say what is declared of a cascade, or of a model's confidence, and counts for nothing."""
    problems = []
    if shape.cascade is not None and shape.reasoner != CASCADE:
        what = "is for an agent with a judge and a model"
        problems.append(document.problem(("cascade",), what, "write reasoner: [judge, model]"))
    if shape.confidence is not None and not last.asks_model:
        what = "is a model's, and no model is asked"
        problems.append(document.problem(("confidence",), what, "remove it"))
    if _FORMER_CONFIDENCE in shape.charter and last.asks_model:
        what = "counts no more: a model's confidence is what people's answers say"
        problems.append(
            document.problem(("charter", _FORMER_CONFIDENCE), what, "remove it", warning=True)
        )
    return problems
