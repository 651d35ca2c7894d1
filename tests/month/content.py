"""The fleet of the month: twenty agents of a harbour, their policies, and who decides what.

Two are shipped agents as they are. Of the others the code is small; what they do is said by their
events, by the inputs of their tasks, or by a scripted model.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.simulation.fleet import POLICIES, TIMEOUT_S

from vedette.domain.work_tools import ASK_TOOLS, WORK_TOOLS
from vedette.testing import toy_fleet
from vedette.testing.harness import checkout, copy_policies, remove_tests
from vedette.testing.toy_fleet import without_bars

SHIPPED = ("anomaly_detection", "memory_curator")
# Their judges keep the values of their key; of the last two one asks, and one observes.
KEEPERS = (
    "berth_keeper", "tide_watch", "fuel_dock", "customs_desk", "pilot_roster", "crane_yard",
    "lock_gate", "chandlery",
)  # fmt: skip
ASKS, OBSERVES = "lock_gate", "chandlery"
WOKEN_TOGETHER = KEEPERS[:6]
READERS = {
    "hourly_log": "every: 1h",
    "daily_digest": 'daily: "06:00"',
    "weekly_ledger": 'cron: "30 7 * * mon"',
}
TASKED = ("surveyor", "inventory", "inspector")
WRITERS = ("correspondent", "planner", "auditor")
DESK = "harbour_desk"
AGENTS = (*SHIPPED, *KEEPERS, *READERS, *TASKED, *WRITERS, DESK)
# Whom it may ask.
ASKED = {"surveyor": "inspector", "inventory": "surveyor"}
# How many actions a day this one may take: fewer than it is asked for on a busy day.
SHORT_OF = {"fuel_dock": 60, "surveyor": 40}
# Bytes of a model's request, so that a task of some twenty turns hands off.
ROOM = 24_000
PRICE = (3_000_000, 15_000_000)
BANK = "harbour"

_KEEPER_TOOLS = """\
from vedette.domain.effect import RowWrite


def add_note(call, row):
    texts = [*(row or {}).get("texts", []), call.args["text"]]
    return [RowWrite(f"{call.agent}_notes", call.args["key"], {"texts": texts})]


async def act(call):
    return await call.target["world"].act(call)


async def ask(call):
    return await call.target["world"].ask(call)
"""
_AGENT = """\
version: 1
name: {name}
title: Of the harbour's month
owner: desk@example.org
{reasoner}
max_turns: {turns}
mode: act
{more}order_by: subject
collection: {name}_notes
triggers: [{triggers}]
charter: {{desk: desk@example.org, note: known text, pages: [tides, berths, weather]}}
memory: [{{bank: harbour, scope: notices, limit: 4}}]
budget: {{actions_per_run: 200{budget}}}
tools:
  - {{name: note.add, verb: add, resource: note, args: {{key: string, text: string}},
     sinks: [], settles: transactional, function: add_note}}
  - {{name: wire.send, verb: send, resource: wire, args: {{to: string, text: string}},
     sinks: [/to], settles: idempotent, function: act, target: world, attempts: 3, timeout: 2s}}
  - {{name: order.place, verb: order, resource: wire, args: {{to: string, text: string}},
     sinks: [/to], settles: queryable, function: act, query: ask, target: world, attempts: 3,
     timeout: 2s}}
  - {{name: bell.ring, verb: ring, resource: wire, args: {{to: string, text: string}},
     sinks: [/to], settles: none, function: act, target: world, timeout: 2s}}
  - {{name: big.send, verb: send, resource: wire, args: {{to: string, text: string}},
     sinks: [/to], settles: idempotent, function: act, target: world, high_impact: true,
     timeout: 2s}}
  - {{name: flag.raise, verb: raise, resource: flag, args: {{to: string, text: string}},
     sinks: [/to], settles: idempotent, function: act, target: world, inverse: flag.lower,
     timeout: 2s}}
  - {{name: flag.lower, verb: lower, resource: flag, args: {{to: string, text: string}},
     sinks: [/to], settles: idempotent, function: act, target: world, timeout: 2s}}
  - {{name: book.look, verb: look, resource: wire, args: {{text: string}}, sinks: [],
     settles: idempotent, function: act, target: world, timeout: 2s}}
"""
_GRANTS = """\
{name}:
  mode: act
  tools:
    note.add: {{verb: add, resource: note, impact: low}}
    wire.send: {{verb: send, resource: wire, impact: low}}
    order.place: {{verb: order, resource: wire, impact: low}}
    bell.ring: {{verb: ring, resource: wire, impact: low}}
    big.send: {{verb: send, resource: wire, impact: high}}
    flag.raise: {{verb: raise, resource: flag, impact: low}}
    flag.lower: {{verb: lower, resource: flag, impact: low}}
    book.look: {{verb: look, resource: wire, impact: low}}
"""
_READER = '''\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref


class Judge(Base):
    """Reads the charter's pages, one a turn; then notes what it read and hoists a flag."""

    def judge(self, seen, briefing):
        return self._next(briefing, [])

    def judge_outcomes(self, briefing):
        read = briefing.notes
        if len(read) < len(self.charter["pages"]):
            read = [*read, briefing.turns[-1]["answers"][0]["status"]]
        return self._next(briefing, read)

    def _next(self, briefing, read):
        name = briefing.event.id
        if len(read) < len(self.charter["pages"]):
            text = f"{name}/{len(read)}"
            look = Proposal("book.look", {"text": text})
            return Judgement("reads", 1.0, (look,), final=False, notes=read)
        note = Proposal("note.add", {"key": Ref("/event/subject"), "text": f"{name} {read}"})
        flag = Proposal("flag.raise", {"to": Ref("/charter/desk"), "text": f"{name}/flag"})
        return Judgement("read", 1.0, (note, flag))
'''
_TASK_JUDGE = '''\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref

DESK = Ref("/charter/desk")


def say(label, *proposals, notes=None):
    return Judgement(label, 1.0, proposals, final=False, notes=notes)


class Judge(Base):
    """Lays out the items that its task names, then works on them one by one.

    Its inputs also say of which item it needs a person's leave, how often it claims to be done
    before it is, which item it does again, and where it stands still until somebody speaks to it.
    """

    def judge(self, seen, briefing):
        given = briefing.task["inputs"]
        adds = [Proposal("item.add", {"id": one, "title": f"the {one}"}) for one in given["items"]]
        return say("lays out", *adds[:14], notes={"claims": 0, "said": 0, "again": ""})

    def judge_outcomes(self, briefing):
        task, notes = briefing.task, dict(briefing.notes)
        given, items = task["inputs"], task["items"]
        if items["of"] < len(given["items"]):
            left = given["items"][items["of"]:][:14]
            adds = [Proposal("item.add", {"id": one, "title": f"the {one}"}) for one in left]
            return say("lays out", *adds, notes=notes)
        current = items.get("current")
        if current is None:
            return say("is done", Proposal("task.finish", {"summary": "all of it"}), notes=notes)
        answers = briefing.turns[-1]["answers"]
        mine = [one for one in answers if one["tool"] not in ("task.finish", "item.add")]
        name = current["id"]
        if notes.get("at") == name and mine and mine[-1]["tool"] != "item.close":
            state = "done" if mine[-1]["status"] in ("done", "done before") else "failed"
            part = mine[-1].get("data", {}).get("items")
            if mine[-1]["tool"] == "agent.ask" and part and part["done"] < part["of"]:
                state = "failed"
            if state == "done" and name in given["repeats"] and not notes["again"]:
                text = f"{given['task']}/{name}"
                same = Proposal("wire.send", {"to": DESK, "text": text})
                return say("forgets", same, notes={**notes, "again": name})
            if state == "done" or notes["tries"] >= 2:
                why = mine[-1]["status"]
                close = Proposal("item.close", {"id": name, "state": state, "why": why})
                return say(f"closes {name}", close, notes={**notes, "at": ""})
        if name in given["delegates"]:
            goal = f"[{given['task']}.{name}] do all items"
            inputs = {"task": f"{given['task']}.{name}", "items": ["x1", "x2"], "claims": 0}
            inputs |= dict.fromkeys(("asks", "stands", "repeats", "delegates", "waits"), [])
            budget = {"actions": 6}
            asks = {"agent": Ref("/charter/asks/0"), "goal": goal, "inputs": inputs}
            part = Proposal("agent.ask", {**asks, "budget": budget, "deadline_s": 86_400})
            return say(f"asks for {name}", part, notes={**notes, "at": name, "tries": 2})
        if name in given["waits"]:
            till = {"for_s": 7200}
            if given["waits"].index(name) % 2:
                where = {"/data/for": given["task"]}
                till = {"for_s": 20_000, "event": Ref("/charter/waits_for/0"), "where": where}
            wait = Proposal("task.wait", till)
            return say(f"waits for {name}", wait, notes={**notes, "at": name, "tries": 2})
        if name in given["stands"] and len(task.get("notes", ())) <= notes["said"]:
            return say("stands still", notes=notes)
        if notes["claims"] < given["claims"] and items["done"]:
            notes["claims"] += 1
            return say("claims", Proposal("task.finish", {"summary": "nearly"}), notes=notes)
        tries = notes["tries"] + 1 if notes.get("at") == name else 1
        tool = "big.send" if name in given["asks"] else "wire.send"
        text = f"{given['task']}/{name}" + ("" if tries == 1 else f"/{tries}")
        work = Proposal(tool, {"to": DESK, "text": text})
        return say(f"works on {name}", work, notes={**notes, "at": name, "tries": tries})
'''
_DONE = """\
version: 1
conditions:
  - {name: listed, items: closed, at_least: 1}
"""
_BANK = """\
bank: harbour
purpose: Notices to those who work in the harbour.
scopes:
  - name: notices
    readers: [{readers}]
    writers: [memory_curator]
topics: [berths, tides]
retention:
  days: 365
"""


def write_content(folder: Path) -> None:
    """Write the fleet, its policies (`POLICIES`), and the second release of one agent."""
    root = checkout()
    agents = folder / "agents"
    agents.mkdir(parents=True)
    for name in SHIPPED:
        shutil.copytree(root / "agents" / name, agents / name, ignore=_generated)
    shutil.copytree(root / "memory", folder / "memory", ignore=_generated)
    for name in KEEPERS:
        _write_keeper(agents, name)
    for name, trigger in READERS.items():
        _write(agents, name, "reasoner: judge", 8, f"{{{trigger}}}", _READER)
    for name in TASKED:
        asks = f"asks: [{ASKED[name]}], " if name in ASKED else ""
        work = "work: {max_turns: 200, no_progress: 4, deadline: 9d, %swaits_for: [tide.turned]}\n"
        work %= asks
        _write(agents, name, "reasoner: judge", 1, "{on: never.comes}", _TASK_JUDGE, work)
        (agents / name / "done.yaml").write_text(_DONE)
    bounds = (
        f", model_calls_per_turn: 2, model_calls_per_run: 100000, model_calls_per_day: 2000, "
        f"input_tokens_per_call: {ROOM}, output_tokens_per_call: 2000, tokens_per_run: 100000000, "
        "tokens_per_day: 40000000, price: fast"
    )
    for name in (*WRITERS, DESK):
        work = "work: {max_turns: 400, no_progress: 20}\n" if name != DESK else ""
        on = "{on: desk.letter}" if name == DESK else "{on: never.comes}"
        _write(agents, name, "reasoner: adk", 8, on, "", work, bounds)
        code = toy_fleet.AGENT_PY.format(name=name)
        # A name that ADK knows; who is asked is the month's own model.
        (agents / name / "agent.py").write_text(code.replace('"none"', '"gemini-2.5-flash"'))
    bank = folder / "memory" / BANK
    bank.mkdir()
    (bank / "bank.yaml").write_text(_BANK.format(readers=", ".join(_readers())))
    _write_policies(folder / POLICIES["base"], {})
    _write_policies(folder / POLICIES["strict"], toy_fleet.deny_policy("wire.send"))


def _generated(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name in ("__pycache__", "evals")]


def _readers() -> tuple[str, ...]:
    return (*READERS, *TASKED, *WRITERS, DESK)


def _write_keeper(agents: Path, name: str) -> None:
    toy_fleet.write_agent(agents, name, reasoner="judge", max_turns=4, calls=100_000)
    folder = agents / name
    charter = (folder / "agent.yaml").read_text("utf-8")
    charter = charter.replace("timeout: 30s", f"timeout: {TIMEOUT_S:.0f}s")
    charter = charter.replace("world, high_impact", "world, timeout: 2s, high_impact")
    if name in WOKEN_TOGETHER:
        charter = charter.replace(f"{{on: {name}.job}}", f"{{on: {name}.job}}, {{on: all.job}}")
    (folder / "agent.yaml").write_text(charter, "utf-8")
    (folder / "tools.py").write_text(_KEEPER_TOOLS, "utf-8")
    (folder / "agent.py").unlink()


def _write(
    agents: Path,
    name: str,
    reasoner: str,
    turns: int,
    triggers: str,
    judge: str,
    more: str = "",
    budget: str = "",
) -> None:
    folder = agents / name
    folder.mkdir()
    (folder / "__init__.py").touch()
    text = _AGENT.format(
        name=name, reasoner=reasoner, turns=turns, triggers=triggers, more=more, budget=budget
    )
    (folder / "agent.yaml").write_text(text)
    (folder / "instruction.md").write_text("Do what you are told of the harbour.\n")
    (folder / "tools.py").write_text(_KEEPER_TOOLS)
    if judge:
        (folder / "judge.py").write_text(judge)


def _write_policies(to: Path, extra: dict[str, str]) -> None:
    shipped = (checkout() / "policies/grants/data.yaml").read_text("utf-8")
    parts = re.split(r"^(?=[a-z_]+:$)", shipped, flags=re.MULTILINE)
    grants = "".join(part for part in parts if part.partition(":")[0] in SHIPPED)
    modes = {ASKS: "ask", OBSERVES: "observe"}
    for name in KEEPERS:
        grants += toy_fleet.GRANTS.format(name=name, mode=modes.get(name, "act"))
    own = "".join(
        f"    {tool.name}: {{verb: {tool.verb}, resource: {tool.resource}, impact: low}}\n"
        for tool in {**WORK_TOOLS, **ASK_TOOLS}.values()
    )
    for name in _readers():
        takes = own if name in (*TASKED, *WRITERS) else ""
        grants += _GRANTS.format(name=name) + takes + "  memory: [harbour/notices]\n"
    limits = (checkout() / "policies/limits/data.yaml").read_text("utf-8")
    caps = "".join(f"  {name}: {{actions: {{day: {most}}}}}\n" for name, most in SHORT_OF.items())
    budgets = (
        "fleet:\n  actions: {hour: 100000, day: 1000000}\n"
        "  model_calls: {hour: 2000, day: 20000}\n"
        f"agents:\n{caps}prices:\n  fast: {{input: {PRICE[0]}, output: {PRICE[1]}}}\n"
        "complete: true\n"
    )
    more = {
        "grants/data.yaml": grants,
        "limits/data.yaml": without_bars(limits, (*WRITERS, DESK)),
        "budgets/data.yaml": budgets,
        **extra,
    }
    remove_tests(copy_policies(to, more))
