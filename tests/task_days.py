"""Days of a fleet whose agent takes tasks: seeded, on a virtual clock, with faults and people.

`plain_counts` counts the raw entries of a day by itself, for tests to compare a report with.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from tests.contract.engine.test_tasks import Scripted, add, close, finish, order, says, send

from vedette.domain.action import Proposal
from vedette.domain.effect import Call, Outcome
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import ActionRow
from vedette.domain.work_tools import WORK_TOOLS
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import DESK, World, job, send_proposal, toy_fleet

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
START_US = 1_750_032_000_000_000 // DAY_US * DAY_US
DONE = "version: 1\nconditions:\n  - {name: list, items: closed, at_least: 1}\n"
_BUDGET = "tokens_per_day: 9000000, input_tokens_per_call: 900, output_tokens_per_call: 900,"


class TaskDays:
    """A fleet over some days: what its worker and its people do is a function of the seed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.clock = ManualClock(START_US)
        self._people = random.Random(f"people {seed}")
        self._seed = seed
        self._targets = random.Random(f"targets {seed}")
        self.world = World(answer=self._answer_call)
        self.runs: list[str] = []
        self.fleet = toy_fleet(
            folder, self.world, reasoner="adk", reasoners={"adk": Scripted(self._answer)},
            work="{max_turns: 40, no_progress: 6}", done=DONE, model_calls=100_000,
            clock=self.clock,
        )  # fmt: skip
        page = folder / "content/agents/worker/agent.yaml"
        page.write_text(page.read_text().replace("budget: {", f"budget: {{{_BUDGET} "))

    async def play(self, days: int, tasks: int, every_h: int = 4) -> None:
        """Play the days in steps of hours, on the open fleet."""
        fleet, people = self.fleet, self._people
        await fleet.send(job("1", send_proposal()))  # no task
        for step in range(days * 24 // every_h):
            for _ in range(people.randint(0, 1)):
                if len(self.runs) < tasks:
                    given = await order(fleet, "start", agent="worker", goal=f"task {step}")
                    self.runs.append(given["run"])
                    self.clock.advance(1_000_000)  # no two at one instant
            await fleet.wait_until_idle()
            for row in self._held():
                await self._answer_hold(row)
            for run in self._open():
                await self._say(run)
            if people.random() < 0.15:
                await fleet.restart()
            await fleet.wait_until_idle()
            self.clock.advance(every_h * HOUR_US)

    def _open(self) -> list[str]:
        store = self.fleet.app.store
        found = [run for name in self.runs if (run := store.runs.run(name)) is not None]
        return [run.id for run in found if run.state == "waiting" and run.waits == "person"]

    def _held(self) -> list[ActionRow]:
        rows = self.fleet.app.store.runs.holds_page(after=0, limit=200)
        return [row for row in rows if row.waits == "approval"]

    async def _answer_hold(self, row: ActionRow) -> None:
        chance = self._people.random()
        if chance < 0.5:
            await self.fleet.approve(row)
        elif chance < 0.7:
            await self.fleet.app.commands.deny(self.fleet.order(), row.id)

    async def _say(self, run: str) -> None:
        chance = self._people.random()
        if chance < 0.4:
            await order(self.fleet, "resume", run=run)
        elif chance < 0.6:
            await order(self.fleet, "steer", run=run, note="go on with the next")
        elif chance < 0.7:
            await order(self.fleet, "cancel", run=run)

    def _answer_call(self, _call: Call) -> Outcome | None:
        chance = self._targets.random()
        if chance < 0.3:
            return Outcome("failed", error="no")
        return Outcome("retry", error="busy") if chance < 0.4 else None

    def _answer(self, briefing: Briefing) -> ReasonerJudgement:
        own = random.Random(f"{self._seed} {briefing.run} {briefing.turn}")
        if not briefing.task:
            return ReasonerJudgement(label="sent", confidence=1.0, proposals=(send("no task"),))
        if briefing.turn == 1:
            proposals = [add(f"i{at}") for at in range(own.randint(1, 4))]
        else:
            proposals = self._work(own, briefing.task["items"])
        said = says(*proposals)
        spent = {"input_tokens": own.randint(10, 800), "output_tokens": own.randint(1, 300)}
        return ReasonerJudgement(
            label=said.label, confidence=1.0, proposals=said.proposals, final=False,
            model_calls=1, spent=spent,
        )  # fmt: skip

    def _work(self, own: random.Random, items: dict[str, Any]) -> list[Proposal]:
        current = items.get("current")
        if current is None:
            return [finish()]
        chance, text = own.random(), f"{current['id']} {own.randint(0, 2)}"
        if chance < 0.45:
            return [send(text)]
        if chance < 0.55:
            return [Proposal("big.send", {"to": DESK, "text": text})]
        if chance < 0.62:
            return [finish()]
        if chance < 0.67:
            return [Proposal("no.such", {"x": 1})]
        state = own.choice(["done", "done", "done", "failed", "set_aside"])
        return [close(current["id"], state)]


def entries_of(fleet: FleetHarness) -> list[dict[str, Any]]:
    """Return all entries of a fleet with their bodies, as plain JSON."""
    walked = fleet.app.store.ledger.walk()
    return [
        {**json.loads(raw), "content": None if data is None else json.loads(data)}
        for _, raw, _, data in walked
    ]


def plain_counts(entries: list[dict[str, Any]], since_us: int, until_us: int) -> dict[str, int]:
    """Count what tasks did in a stretch, entry by entry: a task's turns have bodies that say so."""
    tasks = {one["run"] for one in entries if "task" in (one["content"] or {})}
    entries = [one for one in entries if one.get("run") in tasks]
    items: dict[tuple[str, int], str | None] = {}
    failed_items: set[tuple[str, str | None]] = set()
    turns: dict[str, int] = {}
    found: Counter[str] = Counter()
    decided: dict[str, str | None] = {}  # the item that an action was for
    failed: set[tuple[str, str]] = set()
    digests: dict[str, tuple[str, str]] = {}
    for entry in entries:
        kind, is_in = entry["kind"], since_us <= entry["at"] < until_us
        content = entry["content"] or {}
        names: list[str] = []
        if kind == "turn.reasoned":
            names = ["turns"]
            items[entry["run"], entry["turn"]] = content["task"]["item"]
            turns[entry["run"]] = entry["turn"]
            if content.get("model", {}).get("opens") == "hand-off":
                names.append(f"hand_off {content['briefed']['hand_off']['by']}")
        elif kind == "task.drift":
            names = [f"drift {entry['rule']}"]
        elif kind == "action.decided":
            digests[entry["action"]] = (entry["run"], f"{entry['tool']} {entry['action_digest']}")
            names = [] if entry["action"] in decided else ["actions"]
            decided.setdefault(entry["action"], items[entry["run"], turns[entry["run"]]])
            if entry["outcome"] == "deny":
                names.append(f"refused {entry['rule']}")
        elif kind == "action.refused" and "action" not in entry:
            repeated = entry["what"] == "repeated-proposal"
            names = ["repeated" if repeated else f"refused {entry['what']}"]
        elif kind in ("effect.done", "effect.failed", "effect.unknown"):
            names = [kind]
            digest = digests[entry["action"]]
            if kind != "effect.done" and entry["tool"] not in WORK_TOOLS:
                failed_items.add((entry["run"], decided[entry["action"]]))
            if kind == "effect.failed":
                failed.add(digest)
            elif kind == "effect.done":
                if digest in failed:
                    names.append("recovered effects")
                failed.discard(digest)
                if entry["tool"] == "item.add":
                    names.append("item added")
                elif entry["tool"] == "item.close":
                    item = content["data"]["item"]
                    names.append(f"item {item['state']}")
                    if item["state"] == "done" and (entry["run"], item["id"]) in failed_items:
                        names.append("recovered items")
        elif kind == "budget.settled" and is_in:
            for unit, amount in entry["spend"].items():
                found[f"spend {unit}"] += amount
        elif kind.startswith("task.") and kind != "task.cancelled":
            names = [kind]
        elif kind == "run.closed":
            names = [f"ended {entry.get('what', 'done')}"]
        if is_in:
            found.update(names)
    found.update(_plain_waits(entries, since_us, until_us))
    return {name: number for name, number in found.items() if number}


def _plain_waits(entries: list[dict[str, Any]], since_us: int, until_us: int) -> dict[str, int]:
    """Return how long people were waited for, run by run, in waits that ended in a stretch."""
    waits: dict[str, set[str]] = {}
    began: dict[str, int] = {}
    found: Counter[str] = Counter()
    for entry in entries:
        run, kind, at = entry.get("run"), entry["kind"], entry["at"]
        if run is None:
            continue
        open_now = waits.setdefault(run, set())
        before, is_in = set(open_now), since_us <= at < until_us
        if kind == "action.decided" and entry["outcome"] == "hold" and entry["wait"] == "approval":
            found["holds"] += is_in and entry["action"] not in open_now
            open_now.add(entry["action"])
        elif kind in ("task.stalled", "task.paused"):
            open_now.add("person")
        elif kind in ("task.resumed", "task.steered"):
            open_now.discard("person")
        elif kind in ("task.cancelled", "run.closed"):
            open_now.clear()
        elif kind.startswith(("hold.approved", "hold.denied", "hold.expired", "action.decided")):
            open_now.discard(entry["action"])
        if open_now and not before:
            began[run] = at
        elif before and not open_now and is_in:
            found["waited"] += at - began[run]
    return found


def told_counts(counts: dict[str, Any], tasks: dict[str, int]) -> dict[str, int]:
    """Return an agent's counts of a report in the names of `plain_counts`."""
    found = {name: counts[name] for name in ("turns", "actions", "repeated")}
    found |= {f"refused {rule}": n for rule, n in counts["refused"].items()}
    found |= {f"effect.{state}": n for state, n in counts["effects"].items()}
    found |= {f"item {state}": n for state, n in counts["items"].items()}
    found |= {f"spend {unit}": n for unit, n in counts["spend"].items()}
    stops = counts["interrupts"]
    found |= {"holds": stops["holds"], "waited": counts["waited_us"]}
    words = {"stalls": "stalled", "pauses": "paused", "resumes": "resumed", "steers": "steered"}
    found |= {f"task.{word}": stops[name] for name, word in words.items()}
    found |= {f"ended {state}": tasks[state] for state in ("done", "cancelled")}
    found |= {f"recovered {what}": n for what, n in counts["recovered"].items()}
    found |= {f"hand_off {by}": n for by, n in counts["hand_offs"].items()}
    found |= {f"drift {rule}": n for rule, n in counts["drifts"].items()}
    return {name: number for name, number in found.items() if number}
