"""A task stays on the release that took its turns, and moves where it is told to."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.faults.scenario import BANK_YAML
from tests.pg import server
from tests.task_fleet import Greeter, asks_hand_off, fenced, task_fleet

import vedette.engine.task_release as engine
from vedette.adapters.reasoners.workers.pending_call import WorkerLost
from vedette.app.backup import back_up
from vedette.app.canary_code import OpenedCode
from vedette.app.judge_releases import rejudge_store
from vedette.app.release_archive import pack_files
from vedette.config.agent_folder import release_digest
from vedette.config.deployment import Deployment, GatewayPlan
from vedette.config.settings import StorePlan
from vedette.domain.agent import Agent
from vedette.domain.base.errors import BadCommand
from vedette.domain.effect import Call
from vedette.domain.run import Run, Superseded
from vedette.engine.kill_switch import count_error
from vedette.engine.services import CanaryCode, MoveReason
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.ledger.history.tasks import show_task
from vedette.testing.harness import FleetHarness
from vedette.testing.model_server import ModelServer
from vedette.testing.toy_fleet import World, job, toy_fleet, wait_until

JUDGE_PY = """\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref

WORD = "{word}"


def send(tool, turn):
    args = {{"to": Ref("/charter/desk"), "text": f"{{WORD}} {{turn}}"}}
    return Judgement(WORD, 1.0, (Proposal(tool, args),), final=False)


class Judge(Base):
    \"\"\"Asks a person in its first and third turn, sends in its second, and finishes.\"\"\"

    def judge(self, seen, briefing):
        return send("big.send", 1)

    def judge_outcomes(self, briefing):
        if briefing.turn == 4:
            done = Proposal("task.finish", {{"summary": WORD}})
            return Judgement(WORD, 1.0, (done,), final=False)
        return send("big.send" if briefing.turn == 3 else "{tool}", briefing.turn)
"""
DONE = "version: 1\nconditions:\n  - {name: asked, action: big.send, at_least: 2}\n"
TOOL = """\
  - {{name: {name}, verb: send, resource: wire, args: {{to: string, text: string}},
     sinks: [/to], settles: idempotent, function: act, target: world{more}}}
"""


class Fleet:
    """A toy fleet whose judge takes tasks; its labels say which release it is of."""

    def __init__(self, fleet: FleetHarness, world: World) -> None:
        self.fleet, self.world = fleet, world
        self.agent = fleet.content / "agents" / "worker"

    def write(self, word: str, tool: str = "wire.send") -> str:
        (self.agent / "judge.py").write_text(JUDGE_PY.format(word=word, tool=tool))
        return release_digest(self.agent)

    def drop_tool(self, name: str) -> None:
        path = self.agent / "agent.yaml"
        text = path.read_text()
        kept = [f"  - {{{part}" for part in text.split("  - {")[1:] if f"name: {name}," not in part]
        path.write_text(text.split("  - {")[0] + "".join(kept))

    async def give(self, verb: str, **args: Any) -> dict[str, Any]:
        return await dispatch(self.fleet.app.commands, verb, self.fleet.order(), args)

    async def start(self) -> str:
        """Give a task; return its run once its first turn waits for a person."""
        given = await self.give("work_start", agent="worker", goal="two letters")
        await self.fleet.wait_until_idle()
        assert self.run(given["run"]).waits == "approval"
        return str(given["run"])

    async def answer(self, run: str) -> None:
        """Approve what the task waits for, and let it go on."""
        rows = self.fleet.app.store.runs.actions(run)
        (row,) = (one for one in rows if one.hold == "open")
        await self.fleet.approve(row)
        await self.fleet.wait_until_idle()

    def run(self, id: str) -> Run:
        found = self.fleet.app.store.runs.run(id)
        assert found is not None
        return found

    def turns(self, run: str) -> list[tuple[str, str]]:
        """Return of each turn its label, and the release that the ledger names."""
        return [
            (one["label"], one["release"])
            for one in self.fleet.entries("turn.reasoned")
            if one["run"] == run
        ]

    def moves(self, run: str) -> list[tuple[str, str, str]]:
        return [
            (one["what"], one["release"], one["rule"])
            for one in self.fleet.entries("task.moved")
            if one["run"] == run
        ]

    def shown(self, run: str) -> tuple[str, str]:
        found = show_task(self.fleet.app.store, self.fleet.app.services.fleet.agents, run)
        return found["release"], found["live_release"]


@asynccontextmanager
async def running(
    folder: Path, *, workers: bool = False, plan: StorePlan | None = None
) -> AsyncIterator[Fleet]:
    world = World()
    fleet = toy_fleet(
        folder, world, workers=workers, work="{max_turns: 20, no_progress: 9}", done=DONE
    )
    fleet._store = plan
    made = Fleet(fleet, world)
    made.write("old")
    async with fleet:
        yield made


async def test_a_task_goes_on_under_its_release_and_another_takes_the_new(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        run = await made.start()
        new = made.write("new")
        await made.give("agent_release", agent="worker")
        assert made.shown(run) == (old, new)
        await made.answer(run)
        assert made.turns(run) == [("old", old)] * 3
        other = await made.start()
        assert made.turns(other) == [("new", new)]
        await made.fleet.restart()
        await made.answer(run)
        assert made.run(run).state == "done"
        assert made.turns(run) == [("old", old)] * 4
        await made.answer(other)
        assert made.turns(other) == [("new", new)] * 3
        assert made.fleet.entries("task.moved") == []
        assert made.world.texts() == ["old 1", "old 2", "old 3", "new 1", "new 2"]


async def test_a_start_is_a_release_and_leaves_tasks_where_they_are(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        run = await made.start()
        made.write("new")
        await made.fleet.restart()
        await made.answer(run)
        assert made.turns(run) == [("old", old)] * 3


async def test_its_judge_runs_in_a_worker_of_its_own(tmp_path: Path) -> None:
    async with running(tmp_path, workers=True) as made:
        old = release_digest(made.agent)
        run = await made.start()
        made.write("new", tool="book.look")
        await made.give("agent_release", agent="worker")
        rows = made.fleet.app.store.runs.actions(run)
        await made.fleet.app.commands.deny(made.fleet.order(), rows[0].id)
        await made.fleet.wait_until_idle()
        assert made.turns(run)[:2] == [("old", old)] * 2
        former = made.fleet.app.former_releases
        (opened,) = former._opened.values()
        assert opened.code.reasoners["judge"] is not made.fleet.app.services.reasoners["judge"]
        await former.close_idle()
        assert made.fleet.app.services.former_code, "it was used a moment ago"
        former._used_us = dict.fromkeys(former._used_us, -(10**9))
        await former.close_idle()
        assert (made.fleet.app.services.former_code, former._opened) == ({}, {})


async def test_a_person_moves_one_task(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        run, other = await made.start(), await made.start()
        with pytest.raises(BadCommand, match="already"):
            await made.give("work_move", run=run)
        new = made.write("new")
        await made.give("agent_release", agent="worker")
        await made.give("work_move", run=run)
        assert made.moves(run) == [(old, new, "person")]
        assert made.shown(run) == (new, new)
        await made.answer(run)
        assert made.turns(run) == [("old", old), ("new", new), ("new", new)]
        await made.answer(other)
        assert made.turns(other) == [("old", old)] * 3


async def test_a_paused_task_that_is_moved_stays_paused_and_is_listed(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        run = await made.start()
        await made.give("work_pause", run=run)
        await made.fleet.wait_until_idle()
        new = made.write("new")
        await made.give("agent_release", agent="worker")
        await made.give("work_move", run=run)
        await made.fleet.wait_until_idle()
        assert made.run(run).waits == "person"
        (row,) = made.fleet.app.store.runs.actions(run)
        await made.fleet.approve(row)
        await made.fleet.wait_until_idle()
        assert len(made.turns(run)) == 1
        said = show_task(made.fleet.app.store, made.fleet.app.services.fleet.agents, run)["said"]
        assert [one["kind"] for one in said] == ["task.paused", "task.moved"]
        await made.give("work_resume", run=run)
        await made.fleet.wait_until_idle()
        assert made.turns(run)[1:] == [("new", new)] * 2


@pytest.mark.parametrize(("rule", "yaml"), [("limits", "collection: other_notes"), ("host", "")])
async def test_a_release_that_cannot_be_kept_beside_is_left_at_once(
    tmp_path: Path, rule: str, yaml: str
) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        run = await made.start()
        new = made.write("new")
        if yaml:
            path = made.agent / "agent.yaml"
            text = path.read_text()
            assert "collection: worker_notes" in text
            path.write_text(text.replace("collection: worker_notes", yaml))
            new = release_digest(made.agent)
            await made.fleet.restart()
        else:
            await made.give("agent_release", agent="worker")
            former = made.fleet.app.former_releases
            gateway = GatewayPlan(("127.0.0.1", 0), ("worker",), is_gateway=True)
            former.settings = replace(former.settings, deployment=Deployment(gateway=gateway))
        await made.answer(run)
        assert made.moves(run) == [(old, new, rule)]
        assert made.turns(run) == [("old", old), ("new", new), ("new", new)]


async def test_all_tasks_of_an_agent_are_moved_by_one_order(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        runs = [await made.start(), await made.start()]
        new = made.write("new")
        await made.give("agent_release", agent="worker")
        done = await made.give("agent_release", agent="worker", move_tasks=True)
        assert done["changed"]
        for run in runs:
            await made.answer(run)
            assert made.turns(run) == [("old", old), ("new", new), ("new", new)]
            assert made.moves(run) == [(old, new, "withdrawn")]


async def test_a_rollback_moves_what_was_made_since_and_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        oldest = release_digest(made.agent)
        first = await made.start()
        old = made.write("better")
        await made.give("agent_release", agent="worker")
        second = await made.start()
        bad = made.write("bad")
        await made.give("agent_release", agent="worker")
        third = await made.start()
        await made.give("agent_rollback", agent="worker")
        for run in (first, second, third):
            await made.answer(run)
        assert made.turns(first) == [("old", oldest)] * 3
        assert made.turns(second) == [("better", old)] * 3
        assert made.turns(third) == [("bad", bad), ("better", old), ("better", old)]
        assert made.moves(third) == [(bad, old, "withdrawn")]
        made.write("bad")
        await made.give("agent_release", agent="worker")
        assert not made.fleet.app.former_releases.is_withdrawn("worker", old)


async def test_a_task_under_way_leaves_a_release_that_is_withdrawn(tmp_path: Path) -> None:
    """Its call ends; what follows is thought by the release that the fleet runs."""
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        run = await made.start()
        new = made.write("new")
        await made.give("agent_release", agent="worker")
        gate, begun = asyncio.Event(), asyncio.Event()
        executor: Any = None

        async def hold(*args: Any) -> Any:
            begun.set()
            await gate.wait()
            return await perform(*args)

        former = made.fleet.app.former_releases
        code = await former.open_code("worker", old)
        assert isinstance(code, CanaryCode)
        executor, perform = code.tool_executor, code.tool_executor.perform
        executor.perform = hold
        (row,) = made.fleet.app.store.runs.actions(run)
        await made.fleet.approve(row)
        await begun.wait()
        order = asyncio.create_task(made.give("agent_release", agent="worker", move_tasks=True))
        await asyncio.sleep(0.05)
        assert not order.done(), "it waits for the call"
        gate.set()
        await order
        await made.fleet.wait_until_idle()
        assert made.turns(run) == [("old", old), ("new", new), ("new", new)]
        assert made.world.texts() == ["old 1", "new 2"]


async def test_a_task_of_a_canary_that_is_over_is_the_releases(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        bad = made.write("tried")
        await made.give("agent_canary", agent="worker", share_milli=500)
        runs = [await made.start() for _ in range(8)]
        tried = [run for run in runs if made.turns(run) == [("tried", bad)]]
        assert 0 < len(tried) < 8
        await made.give("agent_canary_end", agent="worker")
        for run in runs:
            await made.answer(run)
            assert made.turns(run)[1:] == [("old", old)] * 2
            assert made.moves(run) == ([(bad, old, "withdrawn")] if run in tried else [])


# --- what is never old ------------------------------------------------------------------------


# What the release that runs allows less, as agent.yaml says it before and after.
WIRE = "settles: idempotent, function: act, target: world, attempts: 3,"
TIGHTER = {
    "mode": ("mode: act", "mode: ask"),
    "impact": (f"sinks: [/to], {WIRE}", f"sinks: [/to], high_impact: true, {WIRE}"),
    "sink": (f"sinks: [/to], {WIRE}", f"sinks: [/to, /text], {WIRE}"),
    "readers": (WIRE, f"permitted_readers: [alice], {WIRE}"),
    "charter": ("desk: desk@example.org", "desk: other@example.org"),
    "actions": ("actions_per_run: 16", "actions_per_run: 2"),
    "ceiling": ("mode: act", "mode: act\nceilings: {effects_per_minute: 1}"),
    "turns": ("max_turns: 20", "max_turns: 3"),
}


@pytest.mark.parametrize("case", TIGHTER)
async def test_a_task_leaves_a_release_that_allows_more_than_the_live_one(
    tmp_path: Path, case: str
) -> None:
    wide, tight = TIGHTER[case]
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        run = await made.start()
        path = made.agent / "agent.yaml"
        text = path.read_text()
        assert wide in text
        path.write_text(text.replace(wide, tight))
        new = (await made.give("agent_release", agent="worker"))["release"]
        await made.answer(run)
        assert made.moves(run) == [(old, new, "limits")]
        assert [release for _, release in made.turns(run)][:2] == [old, new]


async def test_a_release_whose_code_is_open_is_compared_with_each_that_runs(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        run = await made.start()
        made.write("new")
        await made.give("agent_release", agent="worker")
        former = made.fleet.app.former_releases
        assert isinstance(await former.open_code("worker", old), CanaryCode)
        path = made.agent / "agent.yaml"
        path.write_text(path.read_text().replace("actions_per_run: 16", "actions_per_run: 8"))
        new = (await made.give("agent_release", agent="worker"))["release"]
        await made.answer(run)
        assert made.moves(run) == [(old, new, "limits")]
        await former.close_idle()


async def test_a_tool_that_the_fleet_does_not_declare_any_more_is_not_used(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        run, waits = await made.start(), await made.start()
        made.write("new", tool="slow.send")
        made.drop_tool("wire.send")
        new = (await made.give("agent_release", agent="worker"))["release"]
        await made.answer(run)
        assert made.moves(run) == [(old, new, "limits")]
        assert made.turns(run)[1] == ("new", new)
        assert made.world.effects("wire.send") == 0
        # What was to be asked about is denied, be it approved.
        made.drop_tool("big.send")
        (made.agent / "done.yaml").unlink()
        await made.give("agent_release", agent="worker")
        rows = made.fleet.app.store.runs.actions(waits)
        await made.fleet.approve(rows[0])
        await made.fleet.wait_until_idle()
        (row,) = (r for r in made.fleet.app.store.runs.actions(waits) if r.id == rows[0].id)
        assert (row.decided, row.rule) == ("deny", "engine.changed")


LESSONS_PY = """\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref


class Judge(Base):
    \"\"\"Sends all that it was taught.\"\"\"

    def judge(self, seen, briefing):
        return self.judge_outcomes(briefing)

    def judge_outcomes(self, briefing):
        text = "|".join(one.text for one in self.lessons)
        send = Proposal("wire.send" if briefing.turn > 1 else "big.send",
                        {"to": Ref("/charter/desk"), "text": text})
        return Judgement("sends", 1.0, (send,), final=False)
"""


@pytest.mark.parametrize("case", ["added", "dropped"])
async def test_a_task_leaves_a_release_that_reads_other_memory(tmp_path: Path, case: str) -> None:
    """Else its judge were taught what its runs are not labelled with, or no record tells of."""
    world = World()
    fleet = toy_fleet(tmp_path, world, work="{max_turns: 3, no_progress: 9}", done=DONE)
    made = Fleet(fleet, world)
    (made.agent / "judge.py").write_text(LESSONS_PY)
    (fleet.content / "memory" / "own").mkdir()
    bank = BANK_YAML.replace("bank: notes", "bank: own")
    permitted = ", permitted_readers: [alice]" if case == "added" else ""
    bank = bank.replace("readers: [worker, other]", f"readers: [worker]{permitted}")
    (fleet.content / "memory" / "own" / "bank.yaml").write_text(bank)
    grants = fleet.policies / "grants/data.yaml"
    grants.write_text(grants.read_text().replace("worker:\n", "worker:\n  memory: [own/all]\n", 1))
    path = made.agent / "agent.yaml"
    plain = path.read_text()
    reads = plain + "memory: [{bank: own, scope: all}]\n"
    before, after = (plain, reads) if case == "added" else (reads, plain)
    path.write_text(before)
    async with fleet:
        old = release_digest(made.agent)
        given = await made.give("work_start", agent="worker", goal="letters")
        await fleet.wait_until_idle()
        run = given["run"]
        told = await made.give("memory_propose", into="own/all", text="SECRET")
        await made.give("memory_approve", id=f"own/{told['candidate']}")
        path.write_text(after)
        new = (await made.give("agent_release", agent="worker"))["release"]
        await made.answer(run)
        assert made.moves(run) == [(old, new, "limits")]
        assert not any("SECRET" in str(call.args) for call in world.calls)


async def test_policy_is_the_live_one(tmp_path: Path) -> None:
    from vedette.testing.toy_fleet import deny_policy, write_policies

    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        run = await made.start()
        made.write("new")
        await made.give("agent_release", agent="worker")
        policies = write_policies(tmp_path / "denying", extra=deny_policy("wire.send"), work=True)
        await made.fleet.apply_policy(policies)
        await made.answer(run)
        assert made.turns(run)[1] == ("old", old)
        rows = made.fleet.app.store.runs.actions(run)
        assert {(r.tool, r.decided) for r in rows if r.turn == 2} == {("wire.send", "deny")}


@pytest.mark.parametrize("verb", ["agent_release", "agent_canary"])
async def test_a_judge_of_one_turn_is_no_release_of_an_agent_that_takes_tasks(
    tmp_path: Path, verb: str
) -> None:
    async with running(tmp_path, workers=True) as made:
        old = release_digest(made.agent)
        made.write("new")
        path = made.agent / "judge.py"
        path.write_text(path.read_text().replace("judge_outcomes", "later_turns"))
        more = {"share_milli": 500} if verb == "agent_canary" else {}
        with pytest.raises(BadCommand, match="several turns, and it has one") as error:
            await made.give(verb, agent="worker", **more)
        assert error.value.where == "worker/judge.py"
        assert made.fleet.app.services.fleet.agent("worker").release == old
        assert made.fleet.entries("agent.released", "canary.started") == []


LOOK_PY = """\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref

WORD = "{word}"


class Judge(Base):
    \"\"\"Looks up a value first, then asks a person, then sends.\"\"\"

    def judge(self, seen, briefing):
        look = Proposal("book.look", {{"name": "known"}})
        return Judgement(WORD, 1.0, (look,), final=False)

    def judge_outcomes(self, briefing):
        tool = "big.send" if briefing.turn == 2 else "wire.send"
        args = {{"to": Ref("/charter/desk"), "text": f"{{WORD}} {{briefing.turn}}"}}
        return Judgement(WORD, 1.0, (Proposal(tool, args),), final=False)
"""


async def test_a_task_whose_tool_was_dropped_sends_what_it_may(tmp_path: Path) -> None:
    """Who may read what that answered is on record with the turn that was told it."""
    async with running(tmp_path) as made:
        judge = made.agent / "judge.py"
        judge.write_text(LOOK_PY.format(word="old"))
        await made.give("agent_release", agent="worker")
        run = await made.start()
        judge.write_text(LOOK_PY.format(word="new"))
        made.drop_tool("book.look")
        await made.give("agent_release", agent="worker")
        await made.answer(run)
        (_, _, rule) = made.moves(run)[0]
        rows = made.fleet.app.store.runs.actions(run)
        sent = [(row.tool, row.effect) for row in rows if row.turn == 3]
        assert (rule, sent) == ("limits", [("wire.send", "done")])


async def test_errors_of_a_former_release_are_its_own(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        path = made.agent / "agent.yaml"
        path.write_text(path.read_text() + "ceilings: {errors_per_hour: 1}\n")
        old = (await made.give("agent_release", agent="worker"))["release"]
        run = await made.start()
        made.write("new")
        await made.give("agent_release", agent="worker")
        services, former = made.fleet.app.services, made.fleet.app.former_releases
        assert isinstance(await former.open_code("worker", old), CanaryCode)
        for _ in range(2):
            await count_error(services, made.run(run))
        assert not services.stops.is_agent_stopped("worker")
        found = await former.open_code("worker", old)
        assert isinstance(found, MoveReason)
        assert (found.rule, "errors" in found.why) == ("ceiling", True)
        other = await made.start()
        for _ in range(2):
            await count_error(services, made.run(other))
        assert services.stops.is_agent_stopped("worker")


# --- where its files are ----------------------------------------------------------------------


async def test_a_lost_snapshot_is_taken_from_the_store(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        run = await made.start()
        made.write("new")
        await made.give("agent_release", agent="worker")
        shutil.rmtree(tmp_path / "state" / "releases" / old)
        await made.answer(run)
        assert made.turns(run) == [("old", old)] * 3


async def test_a_backup_has_the_releases_that_tasks_run_on(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        run = await made.start()
        made.write("new")
        await made.give("agent_release", agent="worker")
        back_up(made.fleet.app.settings, tmp_path / "backup")
        await made.fleet.close()
        state = tmp_path / "state"
        for name in ("store.db", "memory.db"):
            for left in state.glob(f"{name}*"):
                left.unlink()
            shutil.copy(tmp_path / "backup" / name, state / name)
        shutil.rmtree(state / "releases")
        await made.fleet.open()
        await made.answer(run)
        assert made.turns(run) == [("old", old)] * 3


@pytest.mark.parametrize("kept", ["bm90aGluZw==", pack_files({"judge.py": b"import os"})])
async def test_the_tasks_of_a_release_that_is_nowhere_move_and_say_why(
    tmp_path: Path, kept: str
) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        run = await made.start()
        new = made.write("new")
        await made.give("agent_release", agent="worker")
        shutil.rmtree(tmp_path / "state" / "releases" / old)
        await made.fleet.app.store.commands.set_meta(f"release/worker/{old}", kept)
        await made.answer(run)
        assert {path.name for path in (tmp_path / "state/releases").iterdir()} == {new}
        assert made.turns(run) == [("old", old), ("new", new), ("new", new)]
        assert made.moves(run) == [(old, new, "lost")]
        store = made.fleet.app.store
        (said,) = show_task(store, made.fleet.app.services.fleet.agents, run)["said"]
        assert said["why"].startswith(f"lost: {old[:12]} -> {new[:12]} (the files of release")


@pytest.mark.parametrize("fault", [OSError(11, "away"), TimeoutError(), WorkerLost("ended")])
async def test_a_fault_that_passes_is_waited_for(tmp_path: Path, fault: Exception) -> None:
    """No task moves, stalls or dies of it, and its release is not tried again at once."""
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        runs = [await made.start(), await made.start()]
        made.write("new")
        await made.give("agent_release", agent="worker")
        former, tries = made.fleet.app.former_releases, 0
        open_release = former.open_release

        async def fail(agent: Agent) -> OpenedCode:
            nonlocal tries
            tries += 1
            raise fault

        former.open_release = fail
        for run in runs:
            (row,) = made.fleet.app.store.runs.actions(run)
            await made.fleet.approve(row)
        await wait_until(lambda: tries == 1, 30)
        await asyncio.sleep(0.1)
        assert tries == 1
        former.open_release = open_release
        await wait_until(lambda: all(len(made.turns(run)) == 3 for run in runs), 30)
        for run in runs:
            assert made.turns(run) == [("old", old)] * 3
            assert made.moves(run) == []
        assert made.fleet.entries("task.stalled", "run.dead") == []


async def test_what_does_not_open_for_long_is_lost(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        await made.start()
        made.write("new")
        await made.give("agent_release", agent="worker")
        former = made.fleet.app.former_releases

        async def fail(agent: Agent) -> OpenedCode:
            raise WorkerLost("out of memory")

        former.open_release = fail
        waits = []
        for _ in range(9):
            with pytest.raises(Superseded) as error:
                await former.open_code("worker", old)
            waits.append(error.value.wait_us)
            former._faults = {key: replace(one, until_us=0) for key, one in former._faults.items()}
        assert 0 < waits[0] < waits[3] < waits[5] <= 60_000_000
        found = await former.open_code("worker", old)
        assert found == MoveReason("lost", "WorkerLost: out of memory")


async def test_so_many_releases_are_open_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        former, made_here = made.fleet.app.former_releases, []
        for n in range(5):
            await made.start()
            made_here.append(release_digest(made.agent))
            made.write(f"word {n}")
            await made.give("agent_release", agent="worker")
        for old in made_here[:4]:
            await former.open_code("worker", old)
        now_us = made.fleet.app.services.clock.monotonic_us()
        former._used_us = dict.fromkeys(former._used_us, now_us + 60_000_000)
        with pytest.raises(Superseded, match="use 4 releases"):
            await former.open_code("worker", made_here[4])
        former._used_us["worker", made_here[1]] = now_us - 2_000_000
        await former.open_code("worker", made_here[4])
        assert {old for _, old in former._opened} == {*made_here} - {made_here[1]}


async def test_what_is_handed_out_is_not_closed(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        await made.start()
        made.write("new")
        await made.give("agent_release", agent="worker")
        former = made.fleet.app.former_releases
        code = await former.open_code("worker", old)
        former._used_us["worker", old] -= 61_000_000
        async with former._locks["worker", old]:
            taking = asyncio.create_task(former.open_code("worker", old))
            await asyncio.sleep(0)
            closing = asyncio.create_task(former.close_idle())
            await asyncio.sleep(0)
        await closing
        assert await taking is code
        assert former._opened


async def test_what_a_former_release_judged_is_judged_again_from_the_store(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        run = await made.start()
        made.write("new")
        await made.give("agent_release", agent="worker")
        await made.answer(run)
        settings, store = made.fleet.app.settings, made.fleet.app.store
        shutil.rmtree(tmp_path / "state" / "releases" / old)
        report = await asyncio.to_thread(
            rejudge_store, settings, store, made.fleet.app.services.clock
        )
        assert (report.judgements, report.equal, dict(report.unrecomputable)) == (3, 3, {})


async def test_a_rollback_finds_its_files_in_the_store(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        made.write("new")
        await made.give("agent_release", agent="worker")
        shutil.rmtree(tmp_path / "state" / "releases" / old)
        done = await made.give("agent_rollback", agent="worker")
        assert done["release"] == old
        shutil.rmtree(tmp_path / "state" / "releases" / old)
        await made.fleet.restart()
        assert made.turns(await made.start()) == [("old", old)]


async def test_an_agent_without_tasks_is_not_kept_in_the_store(tmp_path: Path) -> None:
    fleet = toy_fleet(tmp_path, World())
    async with fleet:
        (agent,) = fleet.app.services.fleet.agents.values()
        assert fleet.app.store.meta(f"release/worker/{agent.release}") is None


# --- a crash, and another worker --------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_about_a_move_moves_it_once(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        run = await made.start()
        new = made.write("new")
        await made.give("agent_release", agent="worker", move_tasks=True)
        reached, move = asyncio.Event(), engine._move

        async def stuck(*args: Any) -> None:
            if when == "after":
                await move(*args)
            reached.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(engine, "_move", stuck)
        (row,) = made.fleet.app.store.runs.actions(run)
        await made.fleet.approve(row)
        await reached.wait()
        assert len(made.moves(run)) == (when == "after")
        monkeypatch.undo()
        await made.fleet.restart()
        await made.fleet.wait_until_idle()
        assert made.turns(run) == [("old", old), ("new", new), ("new", new)]
        assert made.moves(run) == [(old, new, "withdrawn")]
        assert made.world.texts() == ["old 1", "new 2"]


@pytest.mark.parametrize("rule", ["person", "withdrawn"])
async def test_a_worker_that_has_not_heard_of_a_release_moves_no_task_back(
    tmp_path: Path, rule: str
) -> None:
    """Of two workers on one store one hears of a release, and of a withdrawal, later."""
    url = tmp_path / "url"
    url.write_text(server(fsync=False).fresh())
    plan = StorePlan("postgresql", url_file=str(url))
    async with running(tmp_path / "one", plan=plan) as made:
        one, old = made.fleet, release_digest(made.agent)
        run = await made.start()
        (tmp_path / "other" / "state").mkdir(parents=True)
        shutil.copy(one.folder / "state/ledger.key", tmp_path / "other/state/ledger.key")
        fleet = FleetHarness(
            tmp_path / "other", content=one.content, policies=one.policies, targets=one.targets,
            store=plan,
        )  # fmt: skip
        async with fleet:
            other = Fleet(fleet, made.world)
            new = other.write("new")
            withdraws = rule == "withdrawn"
            await other.give("agent_release", agent="worker", move_tasks=withdraws)
            if not withdraws:
                await other.give("work_move", run=run)
        # The first has neither heard of it nor has its files.
        assert one.app.services.fleet.agent("worker").release == old
        (row,) = one.app.store.runs.actions(run)
        await one.approve(row)
        await wait_until(lambda: len(made.turns(run)) == 3, 30)
        assert made.turns(run) == [("old", old), ("new", new), ("new", new)]
        assert made.moves(run) == [(old, new, rule)]


async def test_withdrawn_code_begins_nothing_at_a_worker_that_has_not_heard(tmp_path: Path) -> None:
    """It was in a call as another worker withdrew its release; a new task waits until it heard."""
    url = tmp_path / "url"
    url.write_text(server(fsync=False).fresh())
    plan = StorePlan("postgresql", url_file=str(url))
    async with running(tmp_path / "one", plan=plan) as made:
        one, old = made.fleet, release_digest(made.agent)
        run = await made.start()
        (tmp_path / "other" / "state").mkdir(parents=True)
        shutil.copy(one.folder / "state/ledger.key", tmp_path / "other/state/ledger.key")
        gate, begun = asyncio.Event(), asyncio.Event()
        executor: Any = one.app.services.tool_executor
        perform = executor.perform

        async def hold(*args: Any) -> Any:
            begun.set()
            await gate.wait()
            return await perform(*args)

        executor.perform = hold
        (row,) = one.app.store.runs.actions(run)
        await one.approve(row)
        await begun.wait()
        fleet = FleetHarness(
            tmp_path / "other", content=one.content, policies=one.policies, targets=one.targets,
            store=plan,
        )  # fmt: skip
        async with fleet:
            other = Fleet(fleet, made.world)
            new = other.write("new")
            await other.give("agent_release", agent="worker", move_tasks=True)
        gate.set()
        await wait_until(lambda: len(made.turns(run)) == 3, 30)
        assert made.turns(run) == [("old", old), ("new", new), ("new", new)]
        assert made.world.texts() == ["old 1", "new 2"]
        assert one.app.services.fleet.agent("worker").release == old
        given = await made.give("work_start", agent="worker", goal="two letters")
        await asyncio.sleep(0.2)
        assert made.turns(given["run"]) == []
        await one.app.releases.follow(lambda said: None)
        await wait_until(lambda: made.turns(given["run"]) == [("new", new)], 30)


async def test_the_next_call_of_a_turn_is_made_after_the_move(tmp_path: Path) -> None:
    """Of two calls of one turn the second had not begun as another worker withdrew the release."""
    url = tmp_path / "url"
    url.write_text(server(fsync=False).fresh())
    plan = StorePlan("postgresql", url_file=str(url))
    async with running(tmp_path / "one", plan=plan) as made:
        one, old = made.fleet, release_digest(made.agent)
        judge = made.agent / "judge.py"
        two = judge.read_text().replace("(Proposal(tool, args),)", "both(tool, args)")
        more = "def both(tool, args):\n    again = {**args, 'text': 'again'}\n"
        judge.write_text(
            f"{two}\n\n{more}    return (Proposal(tool, args), Proposal(tool, again))\n"
        )
        old = (await made.give("agent_release", agent="worker"))["release"]
        run = await made.start()
        (tmp_path / "other" / "state").mkdir(parents=True)
        shutil.copy(one.folder / "state/ledger.key", tmp_path / "other/state/ledger.key")
        gate, begun = asyncio.Event(), asyncio.Event()
        executor: Any = one.app.services.tool_executor
        perform = executor.perform

        async def hold(*args: Any) -> Any:
            begun.set()
            await gate.wait()
            return await perform(*args)

        executor.perform = hold
        for row in one.app.store.runs.actions(run):
            await one.approve(row)
        await begun.wait()
        fleet = FleetHarness(
            tmp_path / "other", content=one.content, policies=one.policies, targets=one.targets,
            store=plan,
        )  # fmt: skip
        async with fleet:
            other = Fleet(fleet, made.world)
            new = other.write("new")
            await other.give("agent_release", agent="worker", move_tasks=True)
        gate.set()
        await wait_until(lambda: len(made.turns(run)) >= 2, 30)
        kinds = [e["kind"] for e in one.entries("effect.done", "task.moved") if e["run"] == run]
        assert kinds[:3] == ["effect.done", "task.moved", "effect.done"]
        assert made.moves(run) == [(old, new, "withdrawn")]


# --- a model's task ---------------------------------------------------------------------------


async def test_a_models_task_moves_with_its_hand_off(tmp_path: Path) -> None:
    world, model = World(), Greeter(12)
    with ModelServer(model) as served:
        fleet = task_fleet(tmp_path, served, world=world, most=12)
        agent = fleet.content / "agents" / "worker"
        done = asyncio.Event()

        def answer(call: Call) -> None:
            if len(world.calls) == 2:
                done.set()

        world.answer = answer
        async with fleet:
            old = release_digest(agent)
            event = job("1")
            await fleet.send(event)
            await done.wait()
            (agent / "instruction.md").write_text("Be the second.\n")
            await dispatch(fleet.app.commands, "agent_release", fleet.order(), {"agent": "worker"})
            await fleet.wait_until_idle(60)
            (run,) = fleet.runs(event)
            assert run.state == "done"
            new = release_digest(agent)
            (moved,) = fleet.entries("task.moved")
            turns = fleet.entries("turn.reasoned")
            last = moved["turn"]
            assert (moved["what"], moved["release"], moved["rule"]) == (old, new, "hand_off")
            assert fleet.body(turns[last - 1]["seq"])["model"]["asks"] == "hand-off"
            assert {one["release"] for one in turns[:last]} == {old}
            assert {one["release"] for one in turns[last:]} == {new}
            second = ["Be the second." in str(one.body) for one in model.requests]
            first = second.index(True)
            assert asks_hand_off(model.requests[first - 1])
            assert fenced(model.requests[first], "hand-off")["turn"] == last
            assert all(second[first:])
            assert world.effects("wire.send") == 12
