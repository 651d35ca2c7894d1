"""What a task's conditions and plan are decided on beside its items, read from what is durable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct, field

from vedette.domain.agent import Agent
from vedette.domain.artefact import JSON, Artefact, ArtefactHead
from vedette.domain.base.canonical import canonical_json
from vedette.domain.budget import ACTIONS, UNITS
from vedette.domain.done_condition import ActionDone, ArtefactFact, ArtefactsMade, DoneCondition
from vedette.domain.plan import Plan, PlanFacts
from vedette.domain.ports.store import Store
from vedette.domain.run import ActionRow
from vedette.domain.schema_validator import list_fits
from vedette.domain.work_tools import (
    ADD_ITEM_TOOL,
    CLOSE_ITEM_TOOL,
    ENGINE_TOOLS,
    FINISH_TOOL,
    HAND_OFF_TOOL,
    PLAN_TOOL,
    PROPOSE_TOOL,
    READ_HISTORY_TOOL,
    WAIT_TOOL,
)
from vedette.engine.tool_calls import answer_data
from vedette.ledger.history.compensations import Standing, find_standing

_UNKNOWN_KIND = "effect.unknown"
# An artefact that is larger fits no schema: it is held to one between two turns.
MAX_CHECKED_CHARS = 1_000_000

# What is done for the next turns alone, or does nothing.
_NO_PROGRESS = frozenset({ADD_ITEM_TOOL, HAND_OFF_TOOL, PLAN_TOOL, PROPOSE_TOOL, READ_HISTORY_TOOL})


def find_last_progress(rows: Sequence[ActionRow], last: int) -> int:
    """Return the last turn whose actions did something, by a run's; `last` if none did after it.

    To set aside what was added since does nothing, and a wait does if an event came of it.
    """
    added: set[str] = set()
    aside: list[tuple[int, str]] = []
    for row in reversed(rows):
        if row.turn <= last:
            break
        if row.effect != "done":
            continue
        answer = answer_data(row)
        if row.tool in (ADD_ITEM_TOOL, PLAN_TOOL):
            added |= {item["id"] for item in answer.get("items", [answer.get("item", {"id": ""})])}
        elif row.tool == CLOSE_ITEM_TOOL and answer.get("item", {}).get("state") == "set_aside":
            aside.append((row.turn, answer["item"]["id"]))
        elif row.tool not in _NO_PROGRESS and (
            row.tool != WAIT_TOOL or answer.get("woke") == "event"
        ):
            last = row.turn
            break
    return max([last, *(turn for turn, id in aside if id not in added)])


class FactReader(Struct):
    """Reads the facts of one task. What was found of an artefact's content is kept, as that never
    changes; whether it was erased since, and what was undone, is looked at where a finish is
    decided. So a turn costs what is new.
    """

    store: Store
    fleet: str
    run: str
    _heads: list[ArtefactHead] = field(default_factory=list)
    _looked: int = 0
    _standings: dict[str, Standing] = field(default_factory=dict)
    _fits: dict[tuple[int, bytes], bool] = field(default_factory=dict)
    _erased: dict[int, bool] = field(default_factory=dict)

    def find_undone(
        self, rows: Iterable[ActionRow], agent: Agent, *, anew: bool = True
    ) -> dict[str, Standing]:
        """Return those of some actions that were undone since (`undone`), or may be (`unknown`).

        Without `anew` none is looked at that was looked at before.
        """
        tools, found = agent.tools, dict[str, Standing]()
        for row in rows:
            if row.effect != "done" or row.tool not in tools or tools[row.tool].inverse is None:
                continue
            if anew or row.id not in self._standings:
                self._standings[row.id] = find_standing(self.store.runs, self.fleet, row)
            if (standing := self._standings[row.id]) != "stands":
                found[row.id] = standing
        return found

    def list_counted(
        self,
        conditions: Sequence[DoneCondition],
        rows: Iterable[ActionRow],
        agent: Agent,
        *,
        anew: bool,
    ) -> list[ActionRow]:
        """Return the actions that count for conditions on what was done: without those undone.

        `anew` is as of `find_undone`.
        """
        done = [row for row in rows if row.effect == "done"]
        if not any(isinstance(one, ActionDone | ArtefactsMade) for one in conditions):
            return done
        tools = {one.tool for one in conditions if isinstance(one, ActionDone)}
        of_all = any(isinstance(one, ArtefactsMade) for one in conditions)
        asked = [row for row in done if of_all or row.tool in tools]
        undone = self.find_undone(asked, agent, anew=anew)
        return [row for row in done if row.id not in undone]

    def list_artefacts(
        self, conditions: Sequence[DoneCondition], counted: Sequence[ActionRow], *, anew: bool
    ) -> list[ArtefactFact]:
        """Return what is known of the artefacts that some conditions are about, of these actions.

        With `anew` it is looked at again whether the content of each is still there.
        """
        asked = [one for one in conditions if isinstance(one, ArtefactsMade)]
        if not asked:
            return []
        # What came with a later step has a later seq than all that these actions have.
        self._heads += self.store.runs.artefact_heads(self.run, self._looked)
        self._looked = max((self._looked, *(row.last for row in counted)))
        if self._heads:
            self._looked = max(self._looked, self._heads[-1].seq)
        if anew:
            self._erased.clear()
        actions = {row.id for row in counted}
        # What was found of a schema stands under its content: another may have the same name later.
        forms = {one.name: canonical_json(one.schema) for one in asked if one.schema is not None}
        made = [head for head in self._heads if head.action in actions]
        return [self._describe(head, asked, forms) for head in made]

    def _describe(
        self, head: ArtefactHead, conditions: Sequence[ArtefactsMade], forms: Mapping[str, bytes]
    ) -> ArtefactFact:
        # What the engine's own tools answer counts as no media type: an agent reads at will.
        type = "" if head.tool in ENGINE_TOOLS else head.type
        asked = [one for one in conditions if one.covers(head.tool, type)]
        schemas = {one.name: one.schema for one in asked if one.schema is not None}
        keys = {name: (head.seq, forms[name]) for name in schemas}
        open_names = [name for name, key in keys.items() if key not in self._fits]
        artefact = None
        if asked and (head.seq not in self._erased or open_names):
            artefact = self.store.runs.artefact_of(head.seq)
            self._erased.setdefault(head.seq, artefact is None)
        is_erased = self._erased.get(head.seq, False)
        if artefact is not None and open_names:
            fit = self._check(artefact, [schemas[name] for name in open_names])
            self._fits |= zip((keys[name] for name in open_names), fit, strict=True)
        misfits = {name for name, key in keys.items() if not self._fits.get(key, False)}
        return ArtefactFact(head.tool, type, head.size, is_erased, frozenset(misfits))

    @staticmethod
    def _check(artefact: Artefact, schemas: Sequence[Mapping[str, Any]]) -> list[bool]:
        """Say which schemas an artefact's content fits; what is too large to check fits none."""
        if len(artefact.text) > MAX_CHECKED_CHARS:
            return [False] * len(schemas)
        value = orjson.loads(artefact.text) if artefact.type == JSON else artefact.text
        return list_fits(schemas, value)

    # --- what a plan is replaced on ------------------------------------------------------------

    def read_plan_facts(
        self, plan: Plan, rows: Sequence[ActionRow], words: Sequence[str], agent: Agent
    ) -> PlanFacts:
        """Return what has come about since a plan, which one of the run's actions made."""
        made = [row for row in rows if row.tool == PLAN_TOOL and row.effect == "done"]
        since = max((row.last for row in made), default=0)
        later = [row for row in rows if row.last > since]
        denials = sum(row.tool == FINISH_TOOL and row.decided == "deny" for row in later)
        unsure = {row.id for row in later if row.effect is not None and row.answer is None}
        unknown: set[str] = set()
        if unsure:
            for _, raw, _ in self.store.ledger.run_entries(self.run, (_UNKNOWN_KIND,)):
                unknown |= {orjson.loads(raw)["action"]} & unsure
        effects = sum(row.effect == "done" and row.tool not in ENGINE_TOOLS for row in later)
        return PlanFacts(words, denials, len(unknown), self.measure_spend(rows, agent), effects)

    def measure_spend(self, rows: Iterable[ActionRow], agent: Agent) -> int:
        """Return how much of its scarcest limit a run has spent, in hundredths."""
        limits = {unit: most for unit in UNITS if (most := agent.budget.limit(unit, "run"))}
        if not limits:
            return 0
        taken = [row for row in rows if row.effect is not None and row.tool not in ENGINE_TOOLS]
        spent = {**self.store.spend.of_run(self.run), ACTIONS: len(taken)}
        return max((spent.get(unit, 0) * 100 // most for unit, most in limits.items()), default=0)
