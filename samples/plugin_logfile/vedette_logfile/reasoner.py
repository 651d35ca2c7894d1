"""The reasoner `rules`: an agent that goes by a table of its charter, without any code.

reasoner: rules
charter:
  lamps: [north, south]
  rules:
    - {field: lamp, has: now, label: asked, tool: lamp.light, args: {lamp: /charter/lamps/0}}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vedette.judging import Briefing, Proposal, Ref
from vedette.sdk import ReasonerContext, ReasonerJudgement, ReasonerPlugin, StatelessReasoner


class RulesPlugin(ReasonerPlugin):
    """The first rule that fits decides what is proposed. Policy decides whether it is done."""

    asks_model = False

    def problems(self, agent: Any) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
        """Yield what is wrong with an agent.yaml: the keys, what, and the mend."""
        rules = agent.charter.get("rules")
        if not isinstance(rules, list) or not rules:
            yield ("charter",), "has no rules", "add rules: with field, has, label, tool and args"
            return
        for index, rule in enumerate(rules):
            if rule.get("tool") not in {tool.name for tool in agent.tools}:
                yield ("charter", "rules", index, "tool"), "is no tool of the agent", "declare it"

    async def build(self, context: ReasonerContext) -> RulesReasoner:
        """Make what reasons for all agents that name it."""
        return RulesReasoner()


class RulesReasoner(StatelessReasoner):
    """Runs in the engine's process: whatever waits or computes for long belongs into a thread."""

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        """Return what the first rule says that fits the event; nothing where none does."""
        data = briefing.event.data if isinstance(briefing.event.data, Mapping) else {}
        for rule in briefing.charter["rules"]:
            if str(rule["has"]) in str(data.get(rule["field"], "")):
                args = {name: Ref(pointer) for name, pointer in rule["args"].items()}
                proposal = Proposal(rule["tool"], args, why=f"{rule['field']} has {rule['has']}")
                return ReasonerJudgement(str(rule["label"]), 1.0, (proposal,))
        return ReasonerJudgement("none", 1.0)


RULES = RulesPlugin()
