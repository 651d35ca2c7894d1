"""Random trees of delegation over random grants: what a fleet makes of them, and a plain model.

    python -m tests.delegation_trees FOLDER --trees 10000

A tree is a plan: what an agent proposes, turn by turn, and for each ask the plan of the one that it
asks. The model says of each proposal what must become of it, by the rules of design/delegation.md;
it is written from those and calls nothing of the engine's. The fleet is a real one: real store,
real policy, and agents whose turns are the plan's. FOLDER keeps which batches were compared,
so that it goes on where it was ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from tests.delegation_fleet import order, says

from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.domain.action import Proposal
from vedette.domain.base.canonical import canonical_json
from vedette.domain.bundle import Bundle
from vedette.domain.decision import evaluate_request
from vedette.domain.delegation import AncestorState, DelegationState, find_cover
from vedette.domain.memory import Briefing
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import ActionRow
from vedette.domain.tool import Tool
from vedette.domain.work_tools import ASK_TOOL, ASK_TOOLS, FINISH_TOOL, WORK_TOOLS
from vedette.engine.delegation import find_child
from vedette.policy.bundle_data import mount
from vedette.policy.golden_requests import NOW_US, build_request
from vedette.testing.harness import FleetHarness, checkout
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import World, toy_fleet

AGENTS = ("anna", "bert", "carl", "dora", "emil", "fred")
DESK, OTHER = "desk@example.org", "other@example.org"
# What a plan acts with: verb, resource, whether its declaration says that its impact is high.
TOOLS = {
    "wire.send": ("send", "wire", False), "big.send": ("send", "wire", True),
    "order.place": ("order", "wire", False), "book.look": ("look", "wire", False),
}  # fmt: skip
# Tools that each has and no plan acts with.
OTHERS = {
    "slow.send": ("send", "wire"),
    "bell.ring": ("ring", "wire"),
    "book.sure": ("look", "wire"),
}
OWN_TOOLS = (*TOOLS, *OTHERS)
OWNER = "desk@example.org"
PER_RUN = 16
DEPTH = 3
TREES_A_FLEET = 50
DONE = "version: 1\nconditions:\n  - {name: any, items: closed, at_least: 0}\n"


# --- what is drawn ---------------------------------------------------------------------------


@dataclass
class Land:
    """The grants of a fleet's agents, the modes they request, who may read what they look up, and
    which of their tools each declares to be of high impact.
    """

    grants: dict[str, dict[str, dict[str, Any]]]
    modes: dict[str, str]
    requested: dict[str, str]
    labels: dict[str, list[str] | None]
    high: dict[str, frozenset[str]]

    def is_high(self, agent: str, tool: str) -> bool:
        """Say whether an agent declares that its tool's impact is high."""
        return tool in self.high[agent]


@dataclass
class Plan:
    """What one run does, turn by turn. An act is a tool's name; an ask has a plan of its own."""

    id: str
    agent: str
    turns: list[list[str | Ask]] = field(default_factory=list)


@dataclass
class Ask:
    """An ask: whom with which plan, and what it sets aside."""

    plan: Plan
    actions: int


def draw_land(chance: random.Random) -> Land:
    """Draw the grants of a fleet."""
    grants: dict[str, dict[str, dict[str, Any]]] = {}
    for agent in AGENTS:
        tools: dict[str, dict[str, Any]] = {}
        for name, (verb, resource, _) in TOOLS.items():
            if chance.random() < 0.12:
                continue
            tools[name] = {"verb": verb, "resource": resource, "impact": "low"}
            odd = chance.random()
            if odd < 0.1:
                tools[name]["impact"] = "high"
            elif odd < 0.17:
                tools[name]["only"] = {"/to": [DESK]} if chance.random() < 0.5 else {"/to": [OTHER]}
            elif odd < 0.22:
                tools[name]["triggers"] = ["task"] if chance.random() < 0.6 else ["hourly"]
            elif odd < 0.25:
                tools[name]["onyl"] = {"/to": [DESK]}
            elif odd < 0.28:
                tools[name]["verb"] = "look" if verb != "look" else "send"
        if chance.random() < 0.93:
            tools[ASK_TOOL] = {"verb": "ask", "resource": "agent", "impact": "low"}
        for own in WORK_TOOLS.values():
            tools[own.name] = {"verb": own.verb, "resource": own.resource, "impact": "low"}
        grants[agent] = tools

    def draw() -> str:
        return chance.choices(("act", "ask", "observe"), (90, 8, 2))[0]

    def draw_high() -> frozenset[str]:
        drawn = [name for name in OWN_TOOLS if chance.random() < 0.3]
        return frozenset([*drawn, *(name for name, (*_, high) in TOOLS.items() if high)])

    return Land(
        grants,
        {agent: draw() for agent in AGENTS},
        {agent: draw() for agent in AGENTS},
        {agent: chance.choice((None, None, [DESK], [OTHER])) for agent in AGENTS},
        {agent: draw_high() for agent in AGENTS},
    )


def draw_plan(chance: random.Random, id: str, depth: int, parent: str = "") -> Plan:
    """Draw what a run does, and those that it asks."""
    plan = Plan(id, chance.choice([agent for agent in AGENTS if agent != parent]))
    for turn in range(chance.randint(1, 3)):
        if depth < DEPTH and chance.random() < 0.55:
            number = 2 if chance.random() < 0.25 else 1
            asks = [
                Ask(
                    draw_plan(chance, f"{id}.{turn}{at}", depth + 1, plan.agent),
                    chance.randint(0, 7),
                )
                for at in range(number)
            ]
            plan.turns.append(list(asks))
        else:
            plan.turns.append([chance.choice([*TOOLS]) for _ in range(chance.randint(1, 3))])
    return plan


# --- the model -------------------------------------------------------------------------------


@dataclass
class Expected:
    """What must become of a run: of each proposal (`permit` or `deny`, and whether a person is
    asked first), what it spends, whether it finishes, who may read what it says.
    """

    plan: Plan
    ancestors: tuple[str, ...]
    readers: frozenset[str] | None
    acts: list[tuple[int, int, str, str, bool]] = field(default_factory=list)
    used: int = 0
    finished: bool = False
    children: dict[tuple[int, int], Expected] = field(default_factory=dict)


def meet(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """Return who may read what is made of both."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def own_right(land: Land, agent: str, tool: str, high: bool) -> str:
    """Return what an agent may do by itself with its tool: `act`, `ask` or `none`."""
    modes = {land.modes[agent], land.requested[agent]}
    grant = land.grants[agent].get(tool)
    verb, resource = _verb(tool)
    if (
        grant is None
        or "observe" in modes
        or (grant["verb"], grant["resource"]) != (verb, resource)
    ):
        return "none"
    if "task" not in grant.get("triggers", ["task"]):
        return "none"
    limited = tool != "book.look" and grant.get("only", {"/to": [DESK]}) != {"/to": [DESK]}
    limited = limited or (tool == "book.look" and "only" in grant)
    needs = "ask" in modes or grant["impact"] == "high" or high or limited or "onyl" in grant
    return "ask" if needs else "act"


def right_above(land: Land, agent: str, tool: str) -> str:
    """Return what an agent above may do of another's action."""
    modes = {land.modes[agent], land.requested[agent]}
    if "observe" in modes:
        return "none"
    best = "none"
    like = [name for name in OWN_TOOLS if _verb(name) == _verb(tool)]
    careful = like != [] and all(land.is_high(agent, name) for name in like)
    for name, grant in land.grants[agent].items():
        if (grant["verb"], grant["resource"]) != _verb(tool):
            continue
        if set(grant) - {"verb", "resource", "impact", "only"}:
            continue
        plain = grant["impact"] == "low" and "only" not in grant
        # A grant of a tool that the agent has otherwise, or not at all, is as those that it has.
        plain = plain and not (land.is_high(agent, name) if name in like else careful)
        best = "act" if plain else "ask" if best == "none" else best
    return "ask" if best == "act" and "ask" in modes else best


def _verb(tool: str) -> tuple[str, str]:
    if tool in TOOLS:
        return TOOLS[tool][:2]
    if tool in OTHERS:
        return OTHERS[tool]
    own = {**WORK_TOOLS, **ASK_TOOLS}[tool]
    return own.verb, own.resource


def decide(land: Land, run: Expected, tool: str) -> str:
    """Return what becomes of an action but for budgets: `act`, `ask` or `none`."""
    rights = [own_right(land, run.plan.agent, tool, land.is_high(run.plan.agent, tool))]
    rights += [right_above(land, agent, tool) for agent in run.ancestors]
    if "none" in rights:
        return "none"
    # What goes out may be told to whom it goes; a look says nothing that is not known.
    goes_out = tool in TOOLS and tool != "book.look"
    if goes_out and run.readers is not None and DESK not in run.readers:
        return "none"
    return "ask" if "ask" in rights else "act"


def expect(
    land: Land,
    plan: Plan,
    ancestors: tuple[str, ...] = (),
    readers: frozenset[str] | None = None,
    budget: int = PER_RUN,
) -> Expected:
    """Return what must become of a run with these agents above it, and so many actions."""
    run = Expected(plan, ancestors, readers)
    budget = min(budget, PER_RUN)
    for turn, proposals in enumerate(plan.turns, 1):
        label = run.readers
        found = [(at, one, _tool(one)) for at, one in enumerate(proposals)]
        said = {at: decide(land, run, tool) for at, _, tool in found}
        full = _without_room(run, said, found, budget)
        # A person is asked after all that needs none is decided.
        for at, one, tool in sorted(found, key=lambda each: (said[each[0]] == "ask", each[0])):
            right = said[at]
            amount = one.actions if isinstance(one, Ask) else 1
            fits = right != "none" and run.used + amount <= budget
            # No person is asked for what has no room when it is proposed; an ask's is looked at
            # when all else permits it.
            needs = right == "ask" and (isinstance(one, Ask) or at not in full)
            fits = fits and at not in full
            run.acts.append((turn, at, tool, "permit" if fits else "deny", needs))
            if not fits:
                continue
            if isinstance(one, Ask):
                run.used += amount  # until its child is over
            else:
                run.used += 1
                if tool == "book.look":
                    own = land.labels[plan.agent]
                    label = meet(label, None if own is None else frozenset(own))
        run.acts.sort()
        # What each child spends is known when all asks of the turn are decided.
        for at, one, _ in found:
            if not isinstance(one, Ask) or (turn, at) not in _permitted(run):
                continue
            above = (*ancestors, plan.agent)
            if one.plan.agent in above:
                run.used -= one.actions
                continue
            child = expect(land, one.plan, above, run.readers, one.actions)
            run.children[turn, at] = child
            run.used -= one.actions - child.used
            label = meet(label, child.readers)
        run.readers = label
    run.finished = decide(land, run, FINISH_TOOL) != "none"
    return run


def _without_room(
    run: Expected, said: Mapping[int, str], found: list[tuple[int, str | Ask, str]], budget: int
) -> set[int]:
    """Return which acts of a turn have no room when they are proposed: those before are counted
    that needed no person.
    """
    used, full = run.used, set()
    for at, one, _ in found:
        if isinstance(one, Ask) or said[at] == "none":
            continue
        if used >= budget:
            full.add(at)
        elif said[at] == "act":
            used += 1
    return full


def _permitted(run: Expected) -> set[tuple[int, int]]:
    return {(turn, at) for turn, at, _, outcome, _ in run.acts if outcome == "permit"}


def _tool(one: str | Ask) -> str:
    return ASK_TOOL if isinstance(one, Ask) else one


def is_certain(land: Land, run: Expected) -> bool:
    """Say whether the model may be asked of a tree: it ends by itself, and in one order.

    Where a run's finish is denied it hangs; where a person answers two asks of a turn, what the
    first has spent by then is a matter of time.
    """
    for turn, proposals in enumerate(run.plan.turns, 1):
        asked = [one for one in run.acts if one[0] == turn and one[2] == ASK_TOOL]
        if len(proposals) > 1 and any(needs for *_, needs in asked):
            return False
    return run.finished and all(is_certain(land, child) for child in run.children.values())


# --- the fleet -------------------------------------------------------------------------------


class Planned(ScriptedReasoner):
    """Proposes what a run's plan has for the turn; the goal names the plan."""

    def __init__(self) -> None:
        super().__init__(())
        self.plans: dict[str, Plan] = {}

    def add(self, plan: Plan) -> None:
        """Know a plan and those below it."""
        self.plans[plan.id] = plan
        for turn in plan.turns:
            for one in turn:
                if isinstance(one, Ask):
                    self.add(one.plan)

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        plan = self.plans[briefing.task["goal"]]
        if briefing.turn > len(plan.turns):
            return says(Proposal(FINISH_TOOL, {"summary": f"done {plan.id}"}))
        told = {"data": Ref("/event/data/inputs/who")}
        return says(*(_proposal(one, told) for one in plan.turns[briefing.turn - 1]))


def _proposal(one: str | Ask, told: Mapping[str, Any]) -> Proposal:
    if isinstance(one, Ask):
        given = {"bare": "b@example.org", "charter": Ref("/charter/desk"), "who": told["data"]}
        asked = {"agent": one.plan.agent, "goal": one.plan.id, "budget": {"actions": one.actions}}
        return Proposal(ASK_TOOL, {**asked, "inputs": given})
    if one == "book.look":
        return Proposal(one, {"name": Ref("/charter/note")})
    return Proposal(one, {"to": Ref("/charter/desk"), "text": "a letter"})


def write_grants(land: Land) -> str:
    """Return grants/data.yaml."""
    lines = []
    for agent, tools in land.grants.items():
        lines += [f"{agent}:", f"  mode: {land.modes[agent]}", "  tools:"]
        lines += [f"    {name}: {json.dumps(grant)}" for name, grant in tools.items()]
    return "\n".join(lines) + "\n"


def land_fleet(folder: Path, land: Land) -> tuple[FleetHarness, Planned, World]:
    """Write the fleet of a land."""
    world, planned = World(), Planned()
    fleet = toy_fleet(
        folder, world, agents=AGENTS, reasoners={"judge": planned}, work="{}", done=DONE,
        extra={"grants/data.yaml": write_grants(land)},
    )  # fmt: skip
    for agent in AGENTS:
        path = fleet.content / "agents" / agent / "agent.yaml"
        others = ", ".join(other for other in AGENTS if other != agent)
        text = path.read_text()
        text = text.replace("work: {}", f"work: {{max_turns: 9, no_progress: 5, asks: [{others}]}}")
        text = text.replace("mode: act", f"mode: {land.requested[agent]}")
        for tool in land.high[agent]:
            assert f"{{name: {tool}, " in text
            if tool in OTHERS or not TOOLS[tool][2]:
                text = text.replace(f"{{name: {tool}, ", f"{{name: {tool}, high_impact: true, ")
        if (label := land.labels[agent]) is not None:
            look = "- {name: book.look, "
            assert look in text
            text = text.replace(look, f"{look}permitted_readers: {json.dumps(label)}, ")
        path.write_text(text)
    return fleet, planned, world


async def answer_all(fleet: FleetHarness) -> None:
    """Approve what waits for a person, one of each run at a time, until nothing does."""
    while True:
        await fleet.wait_until_idle(120)
        held = fleet.app.store.runs.holds_page(after=0, limit=500)
        first: dict[str, ActionRow] = {}
        for row in held:
            if row.waits == "approval" and row.hold == "open":
                known = first.get(row.run)
                if known is None or (row.turn, row.ordinal) < (known.turn, known.ordinal):
                    first[row.run] = row
        if not first:
            await asyncio.sleep(1.1)  # what a commit made due is looked for once a second
            await fleet.wait_until_idle(120)
            if not fleet.app.store.schedule.due_runs(fleet.app.services.clock.now_us(), 1, ()):
                return
            continue
        for row in first.values():
            await fleet.approve(row)


class Difference(AssertionError):
    """A fleet did something else than the model says."""


def compare(fleet: FleetHarness, expected: Expected, run: str, counts: Counter[str]) -> None:
    """Hold a run, and those below it, to what the model says. Raises Difference."""
    store = fleet.app.store
    found = store.runs.run(run)
    assert found is not None
    where = f"{expected.plan.id} of {expected.plan.agent} below {expected.ancestors}"
    require(found.state == "done", f"{where}: {tell_tree(fleet, run)}")
    rows = {(row.turn, row.ordinal): row for row in store.runs.actions(run)}
    for turn, at, tool, outcome, needs in expected.acts:
        row = rows[turn, at]
        was = row.decided
        place = f"{where}: {tool} at {turn}.{at}: {was} by {row.rule}"
        require(was == outcome, f"{place}, not {outcome}")
        require(
            (row.hold is not None) == needs, f"{place}, asked a person: {row.hold}, not {needs}"
        )
        counts[f"{outcome}{' after a person' if needs else ''}"] += 1
        if outcome == "deny":
            counts[row.rule] += 1
            require(row.effect is None, f"{place}, and has an effect")
            continue
        if tool == ASK_TOOL:
            compare_ask(fleet, expected, row, counts)
    for agent in expected.ancestors:
        # Whatever the model says: nothing is done that an agent above has no grant for.
        for row in rows.values():
            if row.effect == "done":
                require(right_above_any(fleet, agent, row.tool), f"{where}: {row.tool}, {agent}")
    counts["runs"] += 1


def tell_tree(fleet: FleetHarness, run: str) -> str:
    """Return how a run and those below it stand."""
    found = fleet.app.store.runs.run(run)
    rows = fleet.app.store.runs.actions(run)
    below = [
        tell_tree(fleet, child.id) for row in rows
        if row.tool == ASK_TOOL and (child := find_child(fleet.app.services, row)) is not None
    ]  # fmt: skip
    acts = [(row.tool, row.decided, row.rule, row.effect, row.waits) for row in rows]
    return f"{found} {acts} {below}"


def right_above_any(fleet: FleetHarness, agent: str, tool: str) -> bool:
    """Say whether an agent has any grant of a tool's verb and resource, by the policy folder."""
    tools = fleet.app.services.grants[agent]["tools"]
    return any((one["verb"], one["resource"]) == _verb(tool) for one in tools.values())


def compare_ask(
    fleet: FleetHarness, expected: Expected, row: ActionRow, counts: Counter[str]
) -> None:
    """Hold an ask and its child to what the model says."""
    store, child = fleet.app.store, expected.children.get((row.turn, row.ordinal))
    told = orjson.loads(row.answer or b"")["data"]
    if child is None:
        require(told["state"] == "refused", f"an agent above was asked: {told}")
        counts["asked one above"] += 1
        return
    require(told["state"] == "done", f"{child.plan.id}: {told}")
    require(told["spent"].get("actions", 0) == child.used, f"{told['spent']}, not {child.used}")
    budget = orjson.loads(row.record)["args"]["budget"]["actions"]
    require(child.used <= budget, f"{child.used} of {budget}")
    readers = told.get("readers")
    said = None if readers is None else frozenset(readers)
    require(said == child.readers, f"{child.plan.id}: {said}, not {child.readers}")
    run = store.runs.run(told["run"])
    assert run is not None
    event = store.runs.event(run.event)
    assert event is not None
    # What the parent gave bare is untrusted in the child, its charter's value trusted; what came
    # with the person's order is that as long as it was handed on by reference.
    places = {one.removeprefix("data/inputs/") for one in event.vouched if "/inputs/" in one}
    require(places == {"charter", "who"}, f"vouched for: {places}")
    require("data/goal" not in event.vouched, "its goal passed for a person's word")
    require(event.hops == len(expected.ancestors) + 1, f"{event.hops} hops")
    require(event.lineage == (*expected.ancestors, expected.plan.agent), f"{event.lineage}")
    counts["children"] += 1
    counts[f"depth {event.hops}"] += 1
    compare(fleet, child, told["run"], counts)


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Difference(what)


async def run_batch(seed: int, folder: Path, trees: int = TREES_A_FLEET) -> Counter[str]:
    """Compare a fleet's trees with the model; return how many of what there were."""
    chance = random.Random(seed)
    land = draw_land(chance)
    counts: Counter[str] = Counter()
    drawn = [draw_plan(chance, f"t{at}", 1) for at in range(trees)]
    fleet, planned, _ = land_fleet(folder, land)
    async with fleet:
        runs = []
        for plan in drawn:
            expected = expect(land, plan)
            if not is_certain(land, expected):
                counts["uncertain"] += 1
                # It runs all the same: no right and no budget is passed, whatever the order.
            planned.add(plan)
            given = {"agent": plan.agent, "goal": plan.id, "inputs": {"who": "p@example.org"}}
            runs.append((expected, (await order(fleet, "start", **given))["run"]))
        await answer_all(fleet)
        for expected, run in runs:
            check_bounds(fleet, land, run, counts)
            if is_certain(land, expected):
                compare(fleet, expected, run, counts)
                counts["compared"] += 1
            counts["trees"] += 1
        check_totals(fleet, counts)
    return counts


def check_bounds(fleet: FleetHarness, land: Land, run: str, counts: Counter[str]) -> None:
    """Hold a tree to what must be so in any order: no right beyond, no budget beyond."""
    store = fleet.app.store
    found = store.runs.run(run)
    assert found is not None
    event = store.runs.event(found.event)
    assert event is not None
    above = event.lineage
    for row in store.runs.actions(run):
        if row.effect in ("done", "started"):
            rights = [right_above(land, agent, row.tool) for agent in above]
            require("none" not in rights, f"{row.tool} of {found.agent} below {above}: {rights}")
            if "ask" in rights:
                require(row.hold == "used", f"{row.tool} of {found.agent} without a person")
        if row.tool == ASK_TOOL and row.answer is not None:
            told = orjson.loads(row.answer)["data"]
            budget = orjson.loads(row.record)["args"]["budget"]["actions"]
            require("spent" in told, f"{found.agent}: {row.answer!r}")
            require(told["spent"].get("actions", 0) <= budget, f"{told} of {budget}")
            if "run" in told:
                require(
                    count_effects(fleet, told["run"]) <= budget, f"{told['run']} beyond {budget}"
                )
                check_bounds(fleet, land, told["run"], counts)
    counts["bounded runs"] += 1


def count_effects(fleet: FleetHarness, run: str) -> int:
    """Return how many effects outside a run and all below it had."""
    found = 0
    for row in fleet.app.store.runs.actions(run):
        found += row.tool in TOOLS and row.effect == "done"
        if row.tool == ASK_TOOL and row.answer is not None:
            child = orjson.loads(row.answer)["data"].get("run")
            found += 0 if child is None else count_effects(fleet, child)
    return found


def check_totals(fleet: FleetHarness, counts: Counter[str]) -> None:
    """Hold the store's totals to what the rows come to: the fleet's counts no action twice, and an
    agent's has beside its own what those spent that it asked.
    """
    store, now = fleet.app.store, fleet.app.services.clock.now_us()
    permits: Counter[str] = Counter()
    below: Counter[str] = Counter()
    for agent in AGENTS:
        for run in store.runs.runs_page(agent=agent, state=None, before=None, limit=10_000):
            for row in store.runs.actions(run.id):
                permits[agent] += row.counted_us > 0
                if row.tool == ASK_TOOL and row.counted_us:
                    budget = orjson.loads(row.record)["args"]["budget"]["actions"]
                    spent = budget if row.answer is None else (
                        orjson.loads(row.answer)["data"]["spent"].get("actions", 0)
                    )  # fmt: skip
                    below[agent] += spent
    totals = {
        who: spent.amount_at("day", now) for who, unit, spent in store.spend.totals()
        if unit == "actions"
    }  # fmt: skip
    for agent in AGENTS:
        right = permits[agent] + below[agent]
        require(totals.get(agent, 0) == right, f"{agent}: {totals.get(agent, 0)}, not {right}")
    require(totals[""] == sum(permits.values()), f"the fleet: {totals['']}, not {permits.total()}")
    counts["totals"] += 1


# --- decisions alone -------------------------------------------------------------------------


def check_decisions(seed: int, trees: int = TREES_A_FLEET) -> Counter[str]:
    """Put every action of so many trees to the real policy, with all agents above, and hold what is
    decided to the model. No fleet runs: what is compared is rights alone, of many trees.
    """
    chance = random.Random(seed)
    land = draw_land(chance)
    plans = [draw_plan(chance, f"t{at}", 1) for at in range(trees)]
    files = dict(read_bundle(checkout() / "policies").files)
    files = {path: raw for path, raw in files.items() if not path.endswith("_test.rego")}
    engine = RegorusEngine(Bundle.of({**files, "grants/data.yaml": write_grants(land).encode()}))
    grants = mount({"grants/data.yaml": write_grants(land).encode()})["grants"]
    counts: Counter[str] = Counter(trees=trees)
    for plan in plans:
        _check_plan(engine, land, grants, plan, (), counts)
    return counts


def _check_plan(
    engine: RegorusEngine,
    land: Land,
    grants: Mapping[str, Any],
    plan: Plan,
    ancestors: tuple[str, ...],
    counts: Counter[str],
) -> None:
    run = Expected(plan, ancestors, None)
    for proposals in plan.turns:
        for one in proposals:
            tool = _tool(one)
            right = decide(land, run, tool)
            request = _request(land, grants, plan.agent, tool, ancestors)
            outcome = evaluate_request(engine, canonical_json(request)).outcome
            said = {"act": "permit", "ask": "hold", "none": "deny"}[right]
            where = f"{tool} of {plan.agent} below {ancestors}"
            require(outcome == said, f"{where}: {outcome}, not {said}")
            if right == "ask":
                approval = {"action_digest": "a" * 64, "by": "person:p", "until": NOW_US + 1}
                request["context"]["approvals"] = [approval]
                outcome = evaluate_request(engine, canonical_json(request)).outcome
                require(outcome == "permit", f"{where}, approved: {outcome}")
            counts[right] += 1
            counts["decided below an agent"] += bool(ancestors)
            if isinstance(one, Ask):
                _check_plan(engine, land, grants, one.plan, (*ancestors, plan.agent), counts)


def _request(
    land: Land, grants: Mapping[str, Any], agent: str, tool: str, ancestors: tuple[str, ...]
) -> dict[str, Any]:
    """Return the question about an action, as the engine finds the agents above."""
    verb, resource = _verb(tool)
    sinks = {"wire": ["/to"], "agent": ["/agent"]}[resource] if tool != "book.look" else []
    request = build_request(agent, tool, {"verb": verb, "resource": resource, "owner": "o"}, sinks)
    named = {"/to": DESK} if sinks == ["/to"] else {"/agent": "anna"} if sinks else {}
    request["subject"]["requested_mode"] = land.requested[agent]
    request["action"] |= {
        "args": {at[1:]: value for at, value in named.items()},
        "origins": dict.fromkeys(named, "trusted"),
        "high_impact": land.is_high(agent, tool),
    }
    request["context"]["trigger"] = "task"
    if ancestors:
        found = []
        for one in ancestors:
            about, tools = (one, OWNER, land.requested[one]), declare_tools(land, one)
            cover = find_cover(grants, *about, tools, verb, resource)
            found.append(AncestorState(*about, cover))
        request["context"]["delegation"] = DelegationState(tuple(found), True).to_json()
    return request


def declare_tools(land: Land, agent: str) -> dict[str, Tool]:
    """Return the tools of an agent, as far as rights depend on them."""
    return {
        name: Tool(
            name, *_verb(name), {}, (), "idempotent", "act", high_impact=land.is_high(agent, name)
        )
        for name in OWN_TOOLS
    }  # fmt: skip


def main() -> None:
    """Compare as many trees as asked for; go on with what was not compared yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trees", type=int, default=10_000)
    parser.add_argument("--decisions", action="store_true", help="put to the policy, run by nobody")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    kept = given.folder / ("decisions.json" if given.decisions else "batches.json")
    done: dict[str, dict[str, int]] = json.loads(kept.read_text()) if kept.exists() else {}
    batches, began = -(-given.trees // TREES_A_FLEET), time.monotonic()
    for seed in range(batches):
        if str(seed) in done:
            continue
        place = Path(tempfile.mkdtemp(prefix="delegation-"))
        try:
            if given.decisions:
                done[str(seed)] = dict(check_decisions(seed))
            else:
                done[str(seed)] = dict(asyncio.run(run_batch(seed, place)))
        except Difference as error:
            raise SystemExit(f"batch {seed}: {error}") from error
        finally:
            shutil.rmtree(place, ignore_errors=True)
        kept.write_text(json.dumps(done))
        trees = sum(one["trees"] for one in done.values())
        took = time.monotonic() - began
        print(f"{trees} of {batches * TREES_A_FLEET} trees, {took:.0f} s", flush=True)
    counts: Counter[str] = Counter()
    for one in done.values():
        counts.update(one)
    for name, number in sorted(counts.items()):
        print(f"{number:8} {name}")


if __name__ == "__main__":
    main()
