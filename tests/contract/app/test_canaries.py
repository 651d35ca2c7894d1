"""Canaries: a canary release has a share of the keys, and is aborted where it does worse."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests import gemini_server
from tests.contract.app.test_releases import FAR
from tests.pg import server

from vedette.app.canaries import Canaries
from vedette.app.rollbacks import roll_back
from vedette.config.agent_folder import release_digest
from vedette.config.settings import StorePlan
from vedette.domain.base.errors import (
    AlreadyDone,
    BadCommand,
    Forbidden,
    Unavailable,
    VedetteError,
)
from vedette.domain.event import Event
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet, wait_until

JUDGE_PY = """\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref

WORD, TOOL, TIMES = "{word}", "{tool}", {times}


class Judge(Base):
    \"\"\"Counts the events of its key; its label says who it is, and how many it has seen.\"\"\"

    def blank(self):
        return []

    def observe(self, state, event):
        state.append(event.id)
        return len(state)

    def dump(self, state):
        return "\\n".join(state).encode()

    def load(self, data):
        return data.decode().split("\\n")

    def judge(self, seen, briefing):
        {first}
        args = {{"to": Ref("/charter/desk"), "text": WORD}}
        made = tuple(Proposal(TOOL, {{**args, "text": WORD + str(n)}}) for n in range(TIMES))
        return Judgement(f"{{WORD}} {{seen}}", 1.0, made)
"""


class Fleet:
    """A toy fleet of two agents; the judge of `worker` is what a test says."""

    def __init__(self, fleet: FleetHarness, world: World) -> None:
        self.fleet, self.world = fleet, world
        self.agent = fleet.content / "agents" / "worker"
        self.number = 0

    @property
    def canaries(self) -> Canaries:
        return self.fleet.app.canaries

    def write(self, word: str, *, tool: str = "wire.send", times: int = 1, first: str = "") -> None:
        text = JUDGE_PY.format(word=word, tool=tool, times=times, first=first or "pass")
        (self.agent / "judge.py").write_text(text)

    async def give(self, verb: str, **args: Any) -> dict[str, Any]:
        return await dispatch(self.fleet.app.commands, verb, self.fleet.order(), args)

    async def begin(self, share: int = 200, **args: Any) -> dict[str, Any]:
        return await self.give("agent_canary", agent="worker", share_milli=share, **args)

    async def send(self, count: int, keys: int = 10**9, agent: str = "worker") -> list[Event]:
        made = []
        for _ in range(count):
            self.number += 1
            key = f"k{self.number % keys}"
            given = [] if agent == "worker" else [send_proposal("other")]
            made.append(job(f"e{self.number}", *given, key=key, agent=agent))
        await self.fleet.send(*made)
        await self.fleet.wait_until_idle(60)
        return made

    async def tick(self) -> list[str]:
        return await self.canaries.tick()

    async def send_until_over(self, most: int, step: int = 32, keys: int = 10**9) -> int:
        """Send until the canary is over; return after how many runs of both sides it was."""
        for sent in range(step, most + step, step):
            await self.send(step, keys)
            await self.tick()
            if not self.canaries.running:
                return sent
        return 0

    def turns(self, event: Event) -> list[tuple[str, str]]:
        entries = self.fleet.entries("turn.reasoned")
        return [(e["label"], e["release"]) for e in entries if e["event"] == event.key]


@asynccontextmanager
async def running(folder: Path, *, workers: bool = False) -> AsyncIterator[Fleet]:
    world = World()
    fleet = toy_fleet(folder, world, agents=("worker", "other"), workers=workers)
    made = Fleet(fleet, world)
    made.write("old")
    async with fleet:
        yield made


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "raises": ({"first": "raise RuntimeError('bad')"}, "errors"),
    "holds everything": ({"tool": "big.send"}, "holds"),
    "costs five times": ({"times": 5}, "actions"),
}


@pytest.mark.parametrize("how", BAD)
async def test_a_bad_canary_is_aborted_without_a_person(tmp_path: Path, how: str) -> None:
    args, rule = BAD[how]
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        made.write("new", **args)
        begun = await made.begin()
        bad = begun["canary"]
        sent = await made.send_until_over(256)
        assert 0 < sent <= 64
        (aborted,) = made.fleet.entries("canary.aborted")
        assert (aborted["rule"], aborted["release"], aborted["what"]) == (rule, bad, old)
        assert aborted["actor"] == "engine:vedette" or aborted["actor"].startswith("engine")
        numbers = made.fleet.body(aborted["seq"])
        assert numbers["fault"] == rule
        assert numbers["canary_side"]["marked"][rule] > 2
        assert numbers["baseline_side"]["marked"][rule] == 0
        for event in await made.send(40):
            assert made.turns(event) == [("old 1", old)]
        assert made.fleet.entries("agent.released") == []
        await made.fleet.restart()
        (event,) = await made.send(1)
        assert made.turns(event) == [("old 1", old)], "the folder still has the bad release"


async def test_one_whose_actions_people_correct_is_aborted(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.write("new")
        new = (await made.begin())["canary"]
        for _ in range(8):
            for event in await made.send(16):
                (run,) = made.fleet.runs(event)
                if made.turns(event)[0][1] == new:
                    await made.give("correct", run=run.id, should="right", new_label=True)
            await made.tick()
            if not made.canaries.running:
                break
        (aborted,) = made.fleet.entries("canary.aborted")
        assert aborted["rule"] == "corrections"


async def test_one_whose_holds_people_deny_is_aborted(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.write("old", tool="big.send")
        await made.give("agent_release", agent="worker")
        made.write("new", tool="big.send")
        await made.begin()
        for _ in range(8):
            for event in await made.send(16):
                for row in made.fleet.actions(event):
                    if b"new" in row.record:
                        await made.fleet.app.commands.deny(made.fleet.order(), row.id)
            await made.tick()
            if not made.canaries.running:
                break
        (aborted,) = made.fleet.entries("canary.aborted")
        assert aborted["rule"] == "corrections"


async def test_a_good_canary_is_not_aborted_in_a_thousand_runs(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.write("new")
        await made.begin()
        assert await made.send_until_over(1000, 100) == 0
        (now,) = made.canaries.to_json()
        ours, theirs = now["canary_side"], now["baseline_side"]
        assert ours["runs"] + theirs["runs"] == 1000
        assert 150 < ours["runs"] < 250
        assert made.fleet.entries("canary.aborted") == []


async def test_a_key_keeps_its_side_over_a_restart_and_its_state_is_right(tmp_path: Path) -> None:
    """Every judge sees all events of its key, whoever judged them, there and back again."""
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        await made.send(40, keys=40)
        made.write("new")
        new = (await made.begin(300))["canary"]
        sides: dict[str, set[str]] = {}
        for round in (2, 3, 4, 5):
            if round == 4:
                await made.fleet.restart()
            for event in await made.send(40, keys=40):
                (turn,) = made.turns(event)
                sides.setdefault(str(event.subject), set()).add(turn[1])
                assert turn[0] == f"{'new' if turn[1] == new else 'old'} {round}"
        assert {frozenset(found) for found in sides.values()} == {
            frozenset({old}),
            frozenset({new}),
        }
        assert 4 <= sum(found == {new} for found in sides.values()) <= 20
        await made.give("agent_canary_end", agent="worker")
        for event in await made.send(40, keys=40):
            assert made.turns(event) == [("old 6", old)]
        (ended,) = made.fleet.entries("canary.ended")
        assert (ended["outcome"], ended["actor"]) == ("person", "person:tester")


async def test_a_long_canary_leaves_the_release_its_own_checkpoints(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        await made.send(300, keys=1)
        made.write("new", first="assert not hasattr(self, 'x')")
        for share in (500, 499, 498):  # the key is dealt anew each time: once to the canary
            await made.begin(share)
            (event,) = await made.send(1, keys=1)
            if made.turns(event)[0][0].startswith("new"):
                break
            await made.give("agent_canary_end", agent="worker")
        await made.send(300, keys=1)
        checkpoints = [e for e in made.fleet.entries("turn.reasoned") if e.get("checkpoint")]
        assert all(e["label"].startswith("old") for e in checkpoints)
        if made.canaries.running:
            await made.give("agent_canary_end", agent="worker")
        (event,) = await made.send(1, keys=1)
        assert made.turns(event)[0][0] == f"old {made.number}"


async def test_runs_begun_on_the_release_end_on_it(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        made.write("old", tool="big.send")
        await made.give("agent_release", agent="worker")
        held = await made.send(30)
        old = made.fleet.app.services.fleet.agent("worker").release
        made.write("new", tool="big.send")
        await made.begin(500)
        for event in held:
            (row,) = made.fleet.actions(event)
            await made.fleet.approve(row)
        await made.fleet.wait_until_idle()
        for event in held:
            (row,) = made.fleet.actions(event)
            assert row.effect == "done"
            decided = [e for e in made.fleet.entries("action.decided") if e["action"] == row.id]
            assert {e["release"] for e in decided} == {old}


async def test_other_agents_do_not_know_of_it(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.write("new", first="raise RuntimeError('bad')")
        await made.begin()
        others = await made.send(60, agent="other")
        assert await made.send_until_over(128)
        others += await made.send(60, agent="other")
        release = made.fleet.app.services.fleet.agent("other").release
        assert all(made.turns(event) == [(made.turns(event)[0][0], release)] for event in others)
        assert made.world.texts().count("other") == 120
        dead = {e["agent"] for e in made.fleet.entries("run.dead")}
        assert dead == {"worker"}


async def test_a_canary_in_a_worker_that_ends_its_process_harms_nobody(tmp_path: Path) -> None:
    async with running(tmp_path, workers=True) as made:
        made.write("old", times=0)  # what is sent reaches no target from a worker
        await made.give("agent_release", agent="worker")
        made.write("new", times=0, first="import os; os._exit(3)")
        await made.begin()
        await made.send(64)
        # An attempt that ends its worker is made five times before the run is a dead letter.
        await wait_until(lambda: len(made.fleet.entries("run.dead")) > 5, 60)
        assert await made.send_until_over(256)
        (aborted,) = made.fleet.entries("canary.aborted")
        assert aborted["rule"] == "errors"
        numbers = made.fleet.body(aborted["seq"])
        assert numbers["baseline_side"]["marked"]["errors"] == 0


async def test_its_time_ends_it_and_a_person_releases_it(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.write("new")
        begun = await made.begin(500, min_runs=10, for_us=1_000_000)
        await made.send(60)
        made.canaries.running["worker"].until_us = 0
        (told,) = await made.tick()
        assert "vedette agent release worker" in told
        (ended,) = made.fleet.entries("canary.ended")
        assert ended["outcome"] == "ask"
        assert made.fleet.app.services.fleet.agent("worker").release == begun["release"]
        await made.give("agent_release", agent="worker")
        assert made.fleet.app.services.fleet.agent("worker").release == begun["canary"]


async def test_a_release_or_a_rollback_ends_it(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.write("new")
        await made.begin()
        made.write("newer")
        await made.give("agent_release", agent="worker")
        newer = made.fleet.app.services.fleet.agent("worker").release
        for event in await made.send(30):
            assert made.turns(event) == [("newer 1", newer)]
        await made.tick()
        (ended,) = made.fleet.entries("canary.ended")
        assert ended["outcome"] == "release"
        assert not made.canaries.running


async def test_what_cannot_be_a_canary_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        head = made.fleet.app.store.ledger.last_seq()
        with pytest.raises(BadCommand, match="is the release that runs"):
            await made.begin()
        made.write("new", first='"')
        with pytest.raises(BadCommand, match=r"judge\.py"):
            await made.begin()
        made.write("new")
        for share in (0, 501):
            with pytest.raises(BadCommand, match="share"):
                await made.begin(share)
        with pytest.raises(BadCommand, match="share_milli is missing"):
            await made.give("agent_canary", agent="worker")
        with pytest.raises(BadCommand, match="no canary"):
            await made.give("agent_canary_end", agent="worker")
        text = (made.agent / "agent.yaml").read_text()
        edits = {
            "order_by": ("order_by: subject", "order_by: id"),
            "triggers": ("[{on: worker.job}]", "[{on: worker.job}, {on: more}]"),
        }
        for word, (old, new) in edits.items():
            (made.agent / "agent.yaml").write_text(text.replace(old, new))
            with pytest.raises(BadCommand, match=word):
                await made.begin()
        (made.agent / "agent.yaml").write_text(text)
        viewer = replace(made.fleet.order().principal, roles=frozenset({"approver"}))
        order = replace(made.fleet.order(), principal=viewer)
        with pytest.raises(Forbidden):
            await made.canaries.start(order, "worker", 100)
        assert made.fleet.app.store.ledger.last_seq() == head
        await made.begin()
        with pytest.raises(BadCommand, match="already"):
            await made.begin()


async def test_a_canary_whose_files_are_gone_ends_at_the_start(tmp_path: Path) -> None:
    import shutil

    async with running(tmp_path) as made:
        made.write("new")
        begun = await made.begin()
        state = made.fleet.app.settings.state
        await made.fleet.close()
        shutil.rmtree(state / "releases" / begun["canary"])
        made.write("third")
        await made.fleet.open()
        assert not made.canaries.running
        (ended,) = made.fleet.entries("canary.ended")
        assert made.fleet.body(ended["seq"])["reason"] == "its files are not kept"
        (event,) = await made.send(1)
        assert made.turns(event) == [("old 1", begun["release"])]
        with pytest.raises(VedetteError):
            await made.give("agent_canary_end", agent="worker")


async def test_what_was_judged_in_a_canary_is_judged_again_alike(tmp_path: Path) -> None:
    from vedette.app.judge_releases import open_judges
    from vedette.operations.judge_replay import replay_judges

    async with running(tmp_path) as made:
        await made.send(20, keys=10)
        made.write("new")
        await made.begin(500)
        await made.send(40, keys=10)
        await made.give("agent_canary_end", agent="worker")
        await made.send(20, keys=10)
        app = made.fleet.app
        with open_judges(app.settings, app.store, app.services.clock) as judges:
            report = await replay_judges(app.store, judges)
        assert report.to_json()["ok"], report.to_json()


class Lavish(gemini_server._Handler):
    """Reads as much as it says only where its instruction says so."""

    def _say(self, document: dict[str, Any]) -> None:
        if "LAVISH" in json.dumps(self.server.bodies[-1]["systemInstruction"]):
            usage = {name: 5 * n for name, n in document["usageMetadata"].items()}
            document = {**document, "usageMetadata": usage}
        super()._say(document)


async def test_a_models_canary_that_costs_five_times_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its instruction is the canary's on its keys; a run of several turns keeps one release."""
    world = World()
    fleet = toy_fleet(tmp_path, world, reasoner="adk", workers=True, model_calls=2000)
    code = fleet.content / "agents" / "worker" / "agent.py"
    code.write_text(code.read_text().replace('"none"', '"gemini-2.5-flash"'))
    with gemini_server.model_server(
        ("note_add", {"key": "ref:/event/subject", "text": "x"})
    ) as server:
        server.RequestHandlerClass = Lavish
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        async with fleet:
            made = Fleet(fleet, world)
            before = made.fleet.app.services.fleet.agent("worker").release
            code.write_text(code.read_text().replace("Do what is asked.", "Be LAVISH."))
            new = (await made.begin(300))["canary"]
            assert await made.send_until_over(256)
            (aborted,) = fleet.entries("canary.aborted")
            assert aborted["rule"] == "tokens"
            turns: dict[str, list[str]] = {}
            for entry in fleet.entries("turn.reasoned"):
                turns.setdefault(entry["run"], []).append(entry["release"])
            assert {len(found) for found in turns.values()} == {2}
            assert {frozenset(found) for found in turns.values()} == {
                frozenset({before}), frozenset({new})
            }  # fmt: skip
            (event,) = await made.send(1)
            assert {release for _, release in made.turns(event)} == {before}


async def test_a_restart_counts_the_same(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.write("new", times=2)
        await made.begin()
        await made.send(100, keys=30)
        await made.tick()
        (before,) = made.canaries.to_json()
        await made.fleet.restart()
        await made.tick()
        (after,) = made.canaries.to_json()
        assert after == before
        assert before["look"] > 1


async def test_an_agent_without_a_canary_has_the_entries_that_it_had(tmp_path: Path) -> None:
    def entries_of(made: Fleet, event: Event) -> list[dict[str, Any]]:
        # What names the event, or its place in the ledger.
        own = {"seq", "at", "about", "run", "event", "cause", "action", "action_digest",
               "effect_key", "body"}  # fmt: skip
        found = [e for e in made.fleet.entries() if e.get("event") == event.key]
        judges = [e["state"][:8] for e in found if "state" in e]
        return [{k: v for k, v in e.items() if k not in {*own, "state"}} for e in found] + [
            {"judges": judges}
        ]

    async with running(tmp_path) as made:
        (before,) = await made.send(1, agent="other")
        (mine,) = await made.send(1)
        made.write("new")
        await made.begin(1)
        (beside,) = await made.send(1, agent="other")
        assert entries_of(made, beside) == entries_of(made, before)
        await made.give("agent_canary_end", agent="worker")
        (after,) = await made.send(1)
        assert entries_of(made, after) == entries_of(made, mine)


@pytest.mark.parametrize("where", ["several workers", "another host", "no running fleet"])
async def test_where_it_could_not_be_right_it_is_refused(tmp_path: Path, where: str) -> None:
    world = World()
    edges = FAR if where == "another host" else None
    fleet = toy_fleet(tmp_path, world, agents=("worker", "other"), edges=edges)
    made = Fleet(fleet, world)
    made.write("old")
    if where == "several workers":
        url = tmp_path / "url"
        url.write_text(server(fsync=False).fresh())
        fleet._store = StorePlan("postgresql", url_file=str(url))
    elif where == "no running fleet":
        async with fleet:
            pass
        fleet._store = StorePlan(visit=True)
    async with fleet:
        made.write("new")
        with pytest.raises((BadCommand, Unavailable)):
            await made.begin()
        assert fleet.entries("canary.started") == []


async def test_a_repeated_order_is_not_done_again(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.write("new")
        once = replace(made.fleet.order(), command_id="c1")
        await made.canaries.start(once, "worker", 100)
        with pytest.raises(AlreadyDone):
            await made.canaries.start(once, "worker", 100)
        over = replace(made.fleet.order(), command_id="c2")
        await made.canaries.end(over, "worker")
        with pytest.raises(AlreadyDone):
            await made.canaries.end(over, "worker")
        old = made.fleet.app.services.fleet.agent("worker").release
        await made.give("agent_release", agent="worker")
        back = replace(made.fleet.order(), command_id="c3")
        await roll_back(made.fleet.app.releases, back, "worker", old)
        for to in (old, None):
            with pytest.raises(AlreadyDone):
                await roll_back(made.fleet.app.releases, back, "worker", to)
        assert made.fleet.app.services.fleet.agent("worker").release == old
