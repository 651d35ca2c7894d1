"""The release that ran is the release that is named: snapshots, and releases while a fleet runs."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.contract.ledger.test_reconstruct_stores import plan as plan
from tests.pg import server
from tests.remote import Host, now_us
from tests.said import ROOT

from vedette.app.releases import Releases
from vedette.app.remote_workers import build_issuer
from vedette.config.agent_folder import release_digest
from vedette.config.deployment import Deployment, GatewayPlan
from vedette.config.settings import StorePlan
from vedette.config.snapshot import find_snapshot, keep_snapshot, snapshot_folder
from vedette.domain.base.errors import AlreadyDone, BadCommand, BadFleet, Forbidden, NotFound
from vedette.domain.effect import Call, Outcome
from vedette.domain.entry import Draft
from vedette.domain.event import Event
from vedette.engine.cluster import follow_cluster
from vedette.interfaces.http.worker_gateway import serve_workers
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, toy_fleet, wait_until

FAR = Deployment(gateway=GatewayPlan(("127.0.0.1", 0), ("worker",), is_gateway=True))
JUDGE_PY = """\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref

from .words import LABEL


class Judge(Base):
    def judge(self, seen, briefing):
        from .later import MORE

        args = {"to": Ref("/charter/desk"), "text": LABEL + MORE}
        return Judgement(LABEL + MORE, 1.0, (Proposal("wire.send", args),))
"""


class Fleet:
    """A toy fleet whose judge says what stands in its folder."""

    def __init__(self, fleet: FleetHarness) -> None:
        self.fleet = fleet
        self.agent = fleet.content / "agents" / "worker"
        self.troubles: list[str] = []
        self.again: Callable[[], Any] = lambda: None
        (self.agent / "judge.py").write_text(JUDGE_PY)
        self.say("old")

    def say(self, word: str) -> None:
        (self.agent / "words.py").write_text(f'LABEL = "{word}"\n')
        (self.agent / "later.py").write_text(f'MORE = " {word}"\n')

    @property
    def releases(self) -> Releases:
        return self.fleet.app.releases

    async def judged(self, name: str) -> tuple[str, str]:
        """Return what is said of an event, and the release that the ledger names for it."""
        event = job(name, key=name)
        await self.fleet.send(event)
        await wait_until(lambda: bool(self.fleet.entries("turn.reasoned")) and self._of(event), 20)
        (turn,) = (e for e in self.fleet.entries("turn.reasoned") if e["event"] == event.key)
        return turn["label"], turn["release"]

    def _of(self, event: Event) -> bool:
        return any(e["event"] == event.key for e in self.fleet.entries("turn.reasoned"))

    async def release(self, **order: Any) -> dict[str, Any]:
        return await self.releases.release(replace(self.fleet.order(), **order), "worker")


@asynccontextmanager
async def running(
    folder: Path, way: str, world: World | None = None, plan: StorePlan | None = None
) -> AsyncIterator[Fleet]:
    """Open the fleet; its judge is here, in a worker, or comes from another host."""
    fleet = toy_fleet(
        folder, world or World(), workers=way == "worker", edges=FAR if way == "remote" else None
    )
    fleet._store = plan
    made = Fleet(fleet)
    async with fleet:
        if way != "remote":
            yield made
            return
        async with serve_workers(fleet.app) as address:
            assert address is not None
            signer = build_issuer(fleet.app.settings, now_us).signer("worker")

            async def mint() -> str:
                return signer.mint(now_us())

            host = Host("worker", made.agent, address, mint, folder / "host")
            # Where the folder is edited before the host took its snapshot it has another release.
            await wait_until(lambda: host.relay is not None and host.relay.connections > 0)
            await wait_until(lambda: bool(fleet.app.services.reasoners["judge"].pool.worker_counts))  # type: ignore[attr-defined]
            try:
                yield made
            finally:
                await asyncio.to_thread(host.stop)


WAYS = pytest.mark.parametrize("way", ["here", "worker", "remote"])


@WAYS
async def test_an_edit_before_the_first_event_does_not_run(tmp_path: Path, way: str) -> None:
    async with running(tmp_path, way) as made:
        before = release_digest(made.agent)
        made.say("edited")
        assert await made.judged("1") == ("old old", before)
        (made.agent / "judge.py").write_text("raise SystemExit('broken')\n")
        assert await made.judged("2") == ("old old", before)
        (changed,) = made.releases.changed_agents()
        assert (changed.agent, changed.release, changed.digest) == (
            "worker", before, release_digest(made.agent)
        )  # fmt: skip


async def test_an_edit_of_tools_before_the_first_call_does_not_run(tmp_path: Path) -> None:
    world = World()
    async with running(tmp_path, "here", world) as made:
        (made.agent / "tools.py").write_text("def act(call):\n    raise SystemExit('edited')\n")
        await made.judged("1")
        await made.fleet.wait_until_idle()
        assert world.texts() == ["old old"]


@WAYS
async def test_a_release_takes_effect_without_a_restart(tmp_path: Path, way: str) -> None:
    async with running(tmp_path, way) as made:
        old = (await made.judged("1"))[1]
        made.say("new")
        new = release_digest(made.agent)
        done = await made.release(reason="mended", command_id="c1")
        assert (done["was"], done["release"], done["changed"]) == (old, new, True)
        assert made.releases.changed_agents() == []
        assert await made.judged("2") == ("new new", new)
        made.say("newer")
        with pytest.raises(AlreadyDone):
            await made.release(command_id="c1")
        assert await made.judged("3") == ("new new", new)
        (entry,) = made.fleet.entries("agent.released")
        assert (entry["agent"], entry["release"], entry["what"]) == ("worker", new, old)
        assert entry["actor"] == "person:tester"
        assert made.fleet.body(entry["seq"])["reason"] == "mended"
        for release in (old, new):
            kept = find_snapshot(made.fleet.app.settings.state, release, "worker")
            assert kept is not None, "what ran stays, for who asks what it was"


async def test_a_release_of_nothing_new_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, "here") as made:
        done = await made.release(command_id="c1")
        assert not done["changed"]
        assert made.fleet.entries("agent.released") == []
        with pytest.raises(AlreadyDone):
            await made.release(command_id="c1")


def change(made: Fleet, file: str, old: str, new: str) -> None:
    path = made.agent / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


SPOILT: dict[str, tuple[Callable[[Fleet], Any], str]] = {
    "syntax": (lambda m: m.say('"'), "later.py"),
    "import": (lambda m: change(m, "judge.py", "from .words", "from .nothing"), "judge.py"),
    "no judge": (lambda m: change(m, "judge.py", "class Judge", "class Other"), "Judge"),
    "agent.yaml": (lambda m: change(m, "agent.yaml", "version: 1", "version: 2"), "agent.yaml"),
    "order": (lambda m: change(m, "agent.yaml", "order_by: subject", "order_by: id"), "order_by"),
    "rows": (lambda m: change(m, "agent.yaml", "_notes", "_other"), "collection"),
    "link": (lambda m: (m.agent / "link").symlink_to("/etc/passwd"), "link"),
    "gone": (lambda m: shutil.rmtree(m.agent), "is not there"),
}


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("way", ["here", "worker"])
async def test_what_cannot_be_released_changes_nothing(tmp_path: Path, way: str, how: str) -> None:
    async with running(tmp_path, way) as made:
        before = await made.judged("1")
        spoil, word = SPOILT[how]
        spoil(made)
        with pytest.raises(BadCommand) as refused:
            await made.release()
        assert word in str(refused.value)
        assert made.fleet.entries("agent.released") == []
        assert await made.judged("2") == before


async def test_who_may_release(tmp_path: Path) -> None:
    async with running(tmp_path, "here") as made:
        made.say("new")
        tester = made.fleet.order().principal
        for roles in ((), ("viewer",), ("approver",), ("policy_author",)):
            with pytest.raises(Forbidden):
                await made.release(principal=replace(tester, roles=frozenset(roles)))
        with pytest.raises(BadCommand, match="reason"):
            await made.release(reason=" ")
        with pytest.raises(NotFound):
            await made.releases.release(made.fleet.order(), "nobody")
        assert made.fleet.entries("agent.released") == []


async def test_agent_yaml_takes_effect_too(tmp_path: Path) -> None:
    async with running(tmp_path, "here") as made:
        change(made, "agent.yaml", "worker.job", "worker.task")
        change(made, "agent.yaml", "desk@example.org, note", "other@example.org, note")
        await made.release()
        assert made.fleet.app.services.fleet.matching_agents(job("1")) == ()
        event = replace(job("2"), type="worker.task")
        await made.fleet.send(event)
        await made.fleet.wait_until_idle()
        (row,) = made.fleet.actions(event)
        assert b"other@example.org" in row.record


async def test_a_call_under_way_ends_before_the_release(tmp_path: Path) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slowly(call: Call) -> Outcome | None:
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(10)
        return None

    world = World(answer=slowly)
    async with running(tmp_path, "here", world) as made:
        await made.judged("1")
        await asyncio.wait_for(began.wait(), 10)
        made.say("new")
        releasing = asyncio.create_task(made.release())
        later = job("2", key="2")
        await made.fleet.send(later)
        await asyncio.sleep(0.1)
        assert not releasing.done()
        assert made.fleet.entries("agent.released") == []
        go_on.set()
        assert (await releasing)["changed"]
        await made.fleet.wait_until_idle()
        kinds = [(e["kind"], e.get("release")) for e in made.fleet.entries()]
        rows = [kind for kind, _ in kinds if kind in ("effect.done", "agent.released")]
        assert rows == ["effect.done", "agent.released", "effect.done"]
        assert world.texts() == ["old old", "new new"]


@WAYS
async def test_a_snapshot_that_somebody_edited_is_not_loaded(tmp_path: Path, way: str) -> None:
    async with running(tmp_path, way) as made:
        places = [made.fleet.app.settings.state, tmp_path / "host"]
        release = release_digest(made.agent)
        for state in places:
            file = snapshot_folder(state, release, "worker") / "words.py"
            if file.exists():
                file.chmod(0o600)
                file.write_text('LABEL = "edited"\n')
        event = job("1")
        await made.fleet.send(event)
        await wait_until(lambda: made.fleet.runs(event)[0].attempts > 0
                    or made.fleet.runs(event)[0].state == "dead", 20)  # fmt: skip
        assert made.fleet.entries("turn.reasoned") == []
        if way == "here":
            (dead,) = made.fleet.entries("run.dead")
            assert dead["what"] == "release-changed"
            await made.fleet.restart()
            assert await made.judged("2") == ("old old", release), "a start writes it anew"


async def test_a_release_of_another_worker_is_taken_up_or_not_run(
    tmp_path: Path, plan: StorePlan
) -> None:
    """The record says which release the fleet runs; who has it not takes none of its runs."""
    troubles: list[str] = []
    async with running(tmp_path, "here", plan=plan) as made:
        old = (await made.judged("1"))[1]
        await made.releases.follow(troubles.append)
        assert troubles == []
        made.say("new")
        new = release_digest(made.agent)
        made.say("other")
        released = Draft("agent.released", {"agent": "worker", "release": new})
        await made.fleet.app.store.commands.append_entries([released])
        await made.releases.follow(troubles.append)
        await made.releases.follow(troubles.append)
        (messages,) = troubles
        assert "worker is not run here" in messages
        assert new[:12] in messages
        event = job("2", key="2")
        await made.fleet.send(event)
        await made.fleet.wait_until_idle()
        assert made.fleet.runs(event)[0].turn == 0, "it waits for who has that release"
        made.say("new")
        await made.releases.follow(troubles.append)
        await wait_until(lambda: made.fleet.runs(event)[0].turn == 1)
        assert await made.judged("3") == ("new new", new)
        # What ran here before is here still, whatever lies in the folder.
        made.say("other")
        back = Draft("agent.released", {"agent": "worker", "release": old})
        await made.fleet.app.store.commands.append_entries([back])
        await made.releases.follow(troubles.append)
        assert await made.judged("4") == ("old old", old)
        # Who came for one command decides nothing.
        visit = {"releases": {"worker": "0" * 64}, "what": "visit"}
        await made.fleet.app.store.commands.append_entries([Draft("fleet.loaded", visit)])
        await made.releases.follow(troubles.append)
        assert await made.judged("5") == ("old old", old)


async def test_a_release_made_here_is_not_undone_by_an_older_one_of_elsewhere(
    tmp_path: Path, plan: StorePlan
) -> None:
    """The older one is read while a person's order is under way, and waits for it."""
    async with running(tmp_path, "here", plan=plan) as made:
        made.say("first")
        first = keep_snapshot(made.fleet.app.settings.state, made.agent).release
        fields = {"agent": "worker", "release": first, "what": "x", "actor": "person:other"}
        await made.fleet.app.store.commands.append_entries([Draft("agent.released", fields)])
        made.say("second")
        messages: list[str] = []
        done, _ = await asyncio.gather(made.release(), made.releases.follow(messages.append))
        assert made.fleet.entries("agent.released")[-1]["release"] == done["release"]
        assert (made.fleet.app.services.fleet.agent("worker").release, messages) == (
            done["release"],
            [],
        )


async def test_two_workers_on_one_store_run_the_release_that_one_of_them_made(
    tmp_path: Path,
) -> None:
    """The other hears of it by the record alone, and has the folder at hand."""
    url = tmp_path / "url"
    url.write_text(server(fsync=False).fresh())
    plan, troubles = StorePlan("postgresql", url_file=str(url)), list[str]()
    async with running(tmp_path / "one", "here", plan=plan) as made:
        one = made.fleet
        (tmp_path / "other" / "state").mkdir(parents=True)
        shutil.copy(one.folder / "state/ledger.key", tmp_path / "other/state/ledger.key")
        other = FleetHarness(
            tmp_path / "other", content=one.content, policies=one.policies, targets=one.targets,
            store=plan,
        )  # fmt: skip
        async with other:
            line, take_up = other.app.services, other.app.releases.follow
            work = follow_cluster(line, other.app.rollout, lambda: None, troubles.append, take_up)
            task = asyncio.create_task(work)
            made.say("new")
            done = await made.release()
            await wait_until(lambda: line.fleet.agent("worker").release == done["release"], 20)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert [message for message in troubles if "was taken up" not in message] == []


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_release_that_is_killed_anywhere_is_recorded_whole_or_not_at_all(tmp_path: Path) -> None:
    """Who released it, and what that release may be taught: one commit."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.app.release_child", str(tmp_path)],
        capture_output=True, text=True, timeout=110, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"commit:before", "commit:mid", "commit:after"} <= {left["at"] for left in found}
    for left in found:
        assert left["kinds"] in ([], ["agent.released", "recall.decided"]), left
        assert left["runs"] == left["folder"], left
    assert {len(left["kinds"]) for left in found} == {0, 2}, "both sides of the commit"


async def test_a_start_is_a_release_of_what_lies_there(tmp_path: Path) -> None:
    async with running(tmp_path, "here") as made:
        old = (await made.judged("1"))[1]
        made.say("new")
        await made.fleet.restart()
        said, new = await made.judged("2")
        assert (said, new) == ("new new", release_digest(made.agent))
        loaded = [entry["releases"]["worker"] for entry in made.fleet.entries("fleet.loaded")]
        assert loaded == [old, new]


# --- snapshots --------------------------------------------------------------------------------


def agent_folder(parent: Path) -> Path:
    folder = parent / "some" / "worker"
    (folder / "evals").mkdir(parents=True)
    (folder / "judge.py").write_text("x = 1\n")
    (folder / "evals" / "a.yaml").write_text("[]\n")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "judge.pyc").write_text("no")
    return folder


def test_a_snapshot_holds_what_the_digest_is_of_and_cannot_be_written(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path)
    made = keep_snapshot(tmp_path / "state", folder)
    assert made.release == release_digest(folder) == release_digest(made.folder)
    files = sorted(p.relative_to(made.folder).as_posix() for p in made.folder.rglob("*.*"))
    assert files == ["evals/a.yaml", "judge.py"]
    assert {p.stat().st_mode & 0o777 for p in made.folder.rglob("*.*")} == {0o400}
    assert keep_snapshot(tmp_path / "state", folder) == made
    assert [p.name for p in (tmp_path / "state" / "releases").iterdir()] == [made.release]


def link(path: Path, to: Path) -> None:
    """Put a link in the place of what is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    path.symlink_to(to)


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: (kept / "judge.py").unlink(),
        lambda kept: (kept / "more.py").write_text("y = 2\n"),
        lambda kept: link(kept / "judge.py", Path("/etc/passwd")),
        shutil.rmtree,
        lambda kept: link(kept.parent, kept.parents[2]),
    ],
)
def test_a_damaged_snapshot_is_none_and_is_written_anew(
    tmp_path: Path, damage: Callable[[Path], Any]
) -> None:
    state, folder = tmp_path / "state", agent_folder(tmp_path)
    made = keep_snapshot(state, folder)
    damage(made.folder)
    assert find_snapshot(state, made.release, "worker") is None
    assert keep_snapshot(state, folder) == made
    assert find_snapshot(state, made.release, "worker") == made


@pytest.mark.parametrize("place", ["link.py", "evals/link.yaml", "deep"])
def test_a_link_is_refused(tmp_path: Path, place: str) -> None:
    folder = agent_folder(tmp_path)
    (folder / place).symlink_to("/etc" if place == "deep" else "/etc/passwd")
    with pytest.raises(BadFleet, match="is a link"):
        keep_snapshot(tmp_path / "state", folder)
    assert not (tmp_path / "state" / "releases").exists()
