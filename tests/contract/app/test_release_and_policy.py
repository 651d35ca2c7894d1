"""A release and a publication at once: what one decides of the other is true when both are live."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.contract.app.test_releases import running
from tests.contract.ledger.test_reconstruct_stores import plan as plan
from tests.faults.scenario import BANK, BANK_YAML
from tests.pg import server

from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.config.settings import StorePlan
from vedette.config.snapshot import keep_snapshot
from vedette.domain.base.errors import BadCommand, BadFleet, StoreFailed, VedetteError
from vedette.domain.entry import Draft
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import Step
from vedette.engine.cluster import follow_cluster
from vedette.policy.rollout import PublishRequest
from vedette.store.command_queue import CommandQueue
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import World, intercept_commits, job, toy_fleet, wait_until

BOUNDS = "input_tokens_per_call: 100, output_tokens_per_call: 100"
LIMITED = "fleet: {tokens: {hour: 1000}}\ncomplete: true\n"
OPEN = "fleet: {}\ncomplete: true\n"
SCOPES = "memory: [{bank: notes, scope: all}]\n"


class Model(ScriptedReasoner):
    """A model that spends 200 tokens a turn, as soon as it may."""

    def __init__(self) -> None:
        super().__init__([])
        self.answers = asyncio.Event()
        self.answers.set()

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        self.briefings.append(briefing)
        await self.answers.wait()
        spent = {"input_tokens": 100, "output_tokens": 100}
        return ReasonerJudgement(label="x", confidence=1.0, final=True, model_calls=1, spent=spent)


class Fleet:
    """A toy fleet that thinks with a model; its agent says what a call reads and writes, or not."""

    def __init__(self, folder: Path, *, bounded: bool, limits: str = OPEN, **more: Any) -> None:
        self.model = Model()
        self.fleet = toy_fleet(
            folder, World(), reasoner="adk", reasoners={"adk": self.model},
            extra={"budgets/data.yaml": limits}, **more,
        )  # fmt: skip
        self.agent = folder / "content/agents/worker"
        self.file = self.agent / "agent.yaml"
        self.without = self.file.read_text()
        if bounded:
            self.asks(BOUNDS)

    def asks(self, *budget: str) -> None:
        """Let the agent's folder ask for this budget."""
        more = ", ".join(("actions_per_run: 16", *budget))
        self.file.write_text(self.without.replace("actions_per_run: 16", more))

    def policy(self, limits: str) -> Path:
        """Return a folder with the live policy and other limits."""
        folder = self.fleet.folder / f"policy-{len(list(self.fleet.folder.iterdir()))}"
        shutil.copytree(self.fleet.policies, folder)
        (folder / "budgets/data.yaml").write_text(limits)
        return folder

    async def release(self) -> dict[str, Any]:
        return await self.fleet.app.releases.release(self.fleet.order(), "worker")

    async def publish_elsewhere(self, limits: str) -> None:
        """Publish as another worker does, which runs other releases."""
        await publish_elsewhere(self.fleet.app.store.commands, self.policy(limits))

    async def release_elsewhere(self, *, keep: bool = True) -> str:
        """Release as another worker does what is in the folder now; return which."""
        state = self.fleet.app.settings.state if keep else self.fleet.folder / "other"
        release = keep_snapshot(state, self.agent).release
        fields = {"agent": "worker", "release": release, "actor": "person:other"}
        await self.fleet.app.store.commands.append_entries([Draft("agent.released", fields)])
        return release

    def bounded(self) -> bool:
        """Say whether the tokens of every agent have a bound where they are limited."""
        agents, budgets = self.fleet.app.services.fleet.agents, self.fleet.app.services.budgets
        return all(budgets.find_gap(name, agent.budget) is None for name, agent in agents.items())

    async def works(self, name: str) -> bool:
        """Send an event; say whether the model was asked, with its tokens booked before."""
        event, count = job(name, key=name), len(self.model.briefings)
        await self.fleet.send(event)
        await self.fleet.wait_until_idle()
        if len(self.model.briefings) == count:
            return False
        booked = [e for e in self.fleet.entries("budget.reserved") if e["event"] == event.key]
        assert ["tokens" in entry["spend"] for entry in booked] == [True]
        return True


async def publish_elsewhere(commands: Any, folder: Path) -> None:
    bundle = read_bundle(folder)
    fields = {"bundle": bundle.digest, "wasm": None, "actor": "person:other"}
    await commands.publish(bundle, [Draft("policy.published", fields)])


def between(commands: Any, verb: str, kind: str, work: Callable[[], Awaitable[Any]]) -> None:
    """Let `work` begin before the next write of a kind reaches the store, and end if it can."""
    write = getattr(commands, verb)

    async def later(*args: Any, **more: Any) -> Any:
        drafts = args[1] if verb == "publish" else args[0]
        if any(draft.kind == kind for draft in drafts):
            setattr(commands, verb, write)
            await asyncio.wait([asyncio.ensure_future(work())], timeout=1.5)
        return await write(*args, **more)

    setattr(commands, verb, later)


async def ended(work: asyncio.Task[Any]) -> Any:
    """Return what came of an order: its answer, or the error that it was refused with."""
    try:
        return await asyncio.wait_for(work, 20)
    except VedetteError as error:
        return error


# --- token budgets ------------------------------------------------------------------------------


async def test_a_release_that_waits_is_decided_again_under_what_was_published(
    tmp_path: Path,
) -> None:
    """It was admitted while no tokens were limited, and waits for its agent to come to rest."""
    made = Fleet(tmp_path, bounded=True)
    async with made.fleet as fleet:
        before = fleet.app.services.fleet.agent("worker").release
        made.model.answers.clear()
        await fleet.send(job("1"))
        await wait_until(lambda: len(made.model.briefings) == 1)
        made.asks()
        releasing = asyncio.create_task(made.release())
        await wait_until(lambda: fleet.app.services.stops.is_agent_stopped("worker"))
        assert (await fleet.apply_policy(made.policy(LIMITED)))["ok"]
        made.model.answers.set()
        refused = await ended(releasing)
        assert isinstance(refused, BadCommand)
        assert "tokens or money are limited" in str(refused)
        assert fleet.entries("agent.released") == []
        assert fleet.app.services.fleet.agent("worker").release == before
        assert await made.works("2")


@pytest.mark.parametrize("verb", ["append_entries", "publish"])
async def test_of_a_release_and_a_publication_that_do_not_fit_one_is_refused(
    tmp_path: Path, verb: str
) -> None:
    """Each was decided on before the other was there; one is about to be written."""
    made = Fleet(tmp_path, bounded=True)
    async with made.fleet as fleet:
        made.asks()
        release: Callable[[], Coroutine[Any, Any, Any]] = made.release

        async def publish() -> dict[str, Any]:
            return await fleet.apply_policy(made.policy(LIMITED))

        first, second = (release, publish) if verb == "append_entries" else (publish, release)
        other: list[asyncio.Task[Any]] = []

        async def start() -> None:
            other.append(asyncio.create_task(second()))
            await asyncio.wait(other)

        kind = {"append_entries": "agent.released", "publish": "policy.published"}[verb]
        between(fleet.app.store.commands, verb, kind, start)
        answers = [await ended(asyncio.create_task(first())), await ended(other[0])]
        refused = [a for a in answers if isinstance(a, BadCommand) or not a.get("changed")]
        assert len(refused) == 1, answers
        assert made.bounded()
        released = [entry["release"] for entry in fleet.entries("agent.released")]
        assert released in ([], [fleet.app.services.fleet.agent("worker").release])


async def test_a_release_is_decided_again_where_another_worker_published(tmp_path: Path) -> None:
    made = Fleet(tmp_path, bounded=True)
    async with made.fleet as fleet:
        before = fleet.app.services.fleet.agent("worker").release
        made.asks()
        between(
            fleet.app.store.commands,
            "append_entries",
            "agent.released",
            lambda: made.publish_elsewhere(LIMITED),
        )
        refused = await ended(asyncio.create_task(made.release()))
        assert isinstance(refused, BadCommand), refused
        assert fleet.entries("agent.released") == []
        assert fleet.app.services.fleet.agent("worker").release == before
        assert await made.works("1")


async def test_a_publication_is_decided_again_where_another_worker_released(tmp_path: Path) -> None:
    """The release is at hand here and does not run yet: it is the fleet's all the same."""
    made = Fleet(tmp_path, bounded=True)
    async with made.fleet as fleet:
        before = fleet.app.services.gateway.policy_rev
        made.asks()
        between(fleet.app.store.commands, "publish", "policy.published", made.release_elsewhere)
        done = await fleet.apply_policy(made.policy(LIMITED))
        assert not done["ok"]
        assert "tokens or money are limited" in str(done["findings"])
        assert fleet.app.services.gateway.policy_rev == before
        made.asks(BOUNDS)
        await made.release_elsewhere()
        assert (await fleet.apply_policy(made.policy(LIMITED)))["ok"], "what fits is not refused"


async def test_the_folder_is_published_behind_a_release_of_another_worker(tmp_path: Path) -> None:
    """Who publishes it expects a revision: that is still live, so it need not be told to wait."""
    made = Fleet(tmp_path, bounded=True)
    async with made.fleet as fleet:
        live = fleet.app.services.gateway.policy_rev
        between(fleet.app.store.commands, "publish", "policy.published", made.release_elsewhere)
        bundle = read_bundle(made.policy(LIMITED))
        wish = PublishRequest(fleet.order().principal, "a test", expected_revision=live)
        assert (await fleet.app.rollout.publish(bundle, wish)).ok


async def test_an_agent_whose_tokens_have_no_bound_begins_nothing(tmp_path: Path) -> None:
    """Another worker published, and had not at hand what runs here."""
    made, troubles = Fleet(tmp_path, bounded=False), list[str]()
    async with made.fleet as fleet:
        await made.publish_elsewhere(LIMITED)
        await fleet.app.rollout.catch_up()
        assert not made.bounded()
        for _ in range(2):
            await fleet.app.releases.follow(troubles.append)
        (messages,) = troubles
        assert "worker begins nothing here: tokens or money are limited" in messages
        stricter = LIMITED.replace("1000", "900")
        assert (await fleet.apply_policy(made.policy(stricter)))["ok"], "it is nothing new"
        assert not await made.works("1")
        made.asks(BOUNDS)
        await made.release()
        await wait_until(lambda: len(made.model.briefings) == 1)
        assert await made.works("2")


async def test_a_turn_that_was_about_to_begin_is_not_begun_without_a_bound(tmp_path: Path) -> None:
    made = Fleet(tmp_path, bounded=False)
    async with made.fleet as fleet:

        async def publish(step: Step) -> None:
            if not published and step.drafts[0].kind == "budget.reserved":
                published.append(True)
                await made.publish_elsewhere(LIMITED)
                await fleet.app.rollout.catch_up()

        published: list[bool] = []
        intercept_commits(fleet, publish)
        assert not await made.works("1")
        assert published
        assert fleet.entries("budget.reserved") == []


async def test_an_agent_goes_on_once_its_tokens_are_limited_no_more(tmp_path: Path) -> None:
    made = Fleet(tmp_path, bounded=False)
    async with made.fleet as fleet:
        await made.publish_elsewhere(LIMITED)
        await fleet.app.rollout.catch_up()
        await fleet.send(job("1"))
        await fleet.wait_until_idle()
        assert made.model.briefings == []
        assert (await fleet.apply_policy(made.policy(OPEN)))["ok"]
        await wait_until(lambda: len(made.model.briefings) == 1)


async def test_a_worker_that_starts_while_another_publishes_is_a_release_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Fleet(tmp_path, bounded=False)
    async with made.fleet as fleet:
        note = CommandQueue.append_entries

        async def later(commands: Any, drafts: Any, *args: Any, **more: Any) -> int:
            if any(draft.kind == "fleet.loaded" for draft in drafts):
                monkeypatch.setattr(CommandQueue, "append_entries", note)
                await publish_elsewhere(commands, made.policy(LIMITED))
            return await note(commands, drafts, *args, **more)

        monkeypatch.setattr(CommandQueue, "append_entries", later)
        with pytest.raises(BadFleet, match="tokens or money are limited"):
            await fleet.restart()
        made.asks(BOUNDS)
        await fleet.open()
        assert await made.works("1")


async def test_limits_that_a_release_asks_for_hold_from_then_on(tmp_path: Path) -> None:
    """They were those of the release before, for what had been asked about already."""
    made = Fleet(tmp_path, bounded=True)
    async with made.fleet:
        assert await made.works("1")
        made.asks(BOUNDS, "tokens_per_hour: 500")
        await made.release()
        assert not await made.works("2"), "200 are spent, and a turn may take 400"
        made.asks(BOUNDS, "tokens_per_hour: 700")
        await made.release()
        assert await made.works("3")


# --- memory scopes ------------------------------------------------------------------------------


GRANT = "  memory: [notes/all]\n"


def with_bank(folder: Path, *, granted: bool) -> FleetHarness:
    """Return a toy fleet with a bank that its agent may read, or not, and asks for nothing of."""
    fleet = toy_fleet(folder, World())
    bank = folder / "content/memory" / BANK
    bank.mkdir()
    (bank / "bank.yaml").write_text(BANK_YAML.replace("[worker, other]", "[worker]"))
    grant(fleet.policies, granted=granted)
    return fleet


def grant(policies: Path, *, granted: bool) -> None:
    grants = policies / "grants/data.yaml"
    text = grants.read_text().replace(GRANT, "")
    grants.write_text(text + GRANT if granted else text)


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_release_within_a_publication_is_taught_what_it_asks_for(
    tmp_path: Path, asks: bool, when: str
) -> None:
    fleet = with_bank(tmp_path, granted=True)
    file = tmp_path / "content/agents/worker/agent.yaml"
    without = file.read_text()
    file.write_text(without if asks else without + SCOPES)
    async with fleet:
        curating: Any = fleet.app.commands.curation
        lessons = curating.lessons
        assert lessons.agents_taught(BANK, "all") == ([] if asks else ["worker"])
        file.write_text(without + SCOPES if asks else without)
        newer = tmp_path / "newer"
        shutil.copytree(fleet.policies, newer)
        rego = min(newer.rglob("*.rego"))
        rego.write_text(rego.read_text() + "\n# a comment\n")
        store: Any = fleet.app.store
        publish, releasing = store.commands.publish, list[asyncio.Task[Any]]()

        async def release() -> None:
            order = fleet.app.releases.release(fleet.order(), "worker")
            releasing.append(asyncio.create_task(order))
            await asyncio.wait(releasing, timeout=0.3)

        async def later(*args: Any, **more: Any) -> int:
            store.commands.publish = publish
            if when == "before":
                await release()
            number: int = await publish(*args, **more)
            if when == "after":
                await release()
            return number

        store.commands.publish = later
        assert (await fleet.apply_policy(newer))["ok"]
        assert (await releasing[0])["changed"]
        live = fleet.app.services.gateway.policy_rev
        assert lessons.agents_taught(BANK, "all") == (["worker"] if asks else [])
        assert lessons.policy_rev == live
        if asks:
            read = fleet.entries("recall.decided")[-1]
            assert (read["policy_rev"], read["outcome"]) == (live, "permit")


@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize("way", ["here", "elsewhere"])
async def test_a_publication_within_a_release_says_what_that_is_taught(
    tmp_path: Path, granted: bool, way: str
) -> None:
    """The release is durable already, and about to be put in place."""
    fleet = with_bank(tmp_path, granted=not granted)
    async with fleet:
        file = tmp_path / "content/agents/worker/agent.yaml"
        file.write_text(file.read_text() + SCOPES)
        newer = tmp_path / "newer"
        shutil.copytree(fleet.policies, newer)
        grant(newer, granted=granted)
        store: Any = fleet.app.store
        note, publishing = store.commands.append_entries, list[asyncio.Task[Any]]()

        async def publish() -> None:
            if way == "here":
                assert (await fleet.apply_policy(newer))["ok"]
            else:
                await publish_elsewhere(store.commands, newer)
                await fleet.app.rollout.catch_up()

        async def later(*args: Any, **more: Any) -> int:
            store.commands.append_entries = note
            seq: int = await note(*args, **more)
            publishing.append(asyncio.create_task(publish()))
            await asyncio.wait(publishing, timeout=1.5)
            return seq

        store.commands.append_entries = later
        assert (await fleet.app.releases.release(fleet.order(), "worker"))["changed"]
        await publishing[0]
        curating: Any = fleet.app.commands.curation
        assert curating.lessons.agents_taught(BANK, "all") == (["worker"] if granted else [])
        assert curating.lessons.policy_rev == fleet.app.services.gateway.policy_rev
        if way == "here":
            read = fleet.entries("recall.decided")[-1]
            assert read["outcome"] == ("permit" if granted else "deny")


# --- two releases -------------------------------------------------------------------------------


async def test_the_last_release_of_the_record_runs_whoever_made_it_meanwhile(
    tmp_path: Path, plan: StorePlan
) -> None:
    """Another worker's release is committed behind ours, and read before ours is in place."""
    async with running(tmp_path, "here", plan=plan) as made:
        releases, store, troubles = made.releases, made.fleet.app.store, list[str]()
        await releases.follow(troubles.append)
        made.say("theirs")
        theirs = keep_snapshot(made.fleet.app.settings.state, made.agent).release
        made.say("ours")
        note: Any = store.commands.append_entries
        following: list[asyncio.Task[None]] = []

        async def later(drafts: Any, *args: Any, **more: Any) -> int:
            seq: int = await note(drafts, *args, **more)
            if any(draft.kind == "agent.released" for draft in drafts):
                store.commands.append_entries = note  # type: ignore[method-assign]
                fields = {"agent": "worker", "release": theirs, "actor": "person:other"}
                await note([Draft("agent.released", fields)])
                following.append(asyncio.create_task(releases.follow(troubles.append)))
                for _ in range(5):
                    await asyncio.sleep(0)
            return seq

        store.commands.append_entries = later  # type: ignore[method-assign]
        ours = (await made.release())["release"]
        await asyncio.gather(*following)
        await releases.follow(troubles.append)
        assert made.fleet.app.services.fleet.agent("worker").release == theirs
        # A release of what ran here last is one: the fleet runs another by now.
        await note([Draft("agent.released", {"agent": "worker", "release": ours})])
        done = await made.release()
        assert (done["was"], done["changed"]) == (ours, False) or done["changed"]
        await releases.follow(troubles.append)
        assert made.fleet.app.services.fleet.agent("worker").release == ours
        assert await made.judged("1") == ("ours ours", ours)


async def test_a_release_of_what_runs_here_counts_where_another_was_made(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, "here") as made:
        here = made.fleet.app.services.fleet.agent("worker").release
        made.say("theirs")
        theirs = keep_snapshot(made.fleet.app.settings.state, made.agent).release
        await made.fleet.app.store.commands.append_entries(
            [Draft("agent.released", {"agent": "worker", "release": theirs})]
        )
        made.say("old")
        done = await made.release()
        assert (done["was"], done["release"], done["changed"]) == (theirs, here, True)
        await made.releases.follow(lambda message: None)
        assert made.fleet.app.services.fleet.agent("worker").release == here


@pytest.mark.parametrize("stands", [True, False])
async def test_a_release_whose_commit_raised_runs_if_it_stood(tmp_path: Path, stands: bool) -> None:
    async with running(tmp_path, "here") as made:
        store: Any = made.fleet.app.store
        note = store.commands.append_entries

        async def raises(*args: Any, **more: Any) -> int:
            if stands:
                await note(*args, **more)
            raise StoreFailed("the commit failed")

        store.commands.append_entries = raises
        made.say("new")
        if stands:
            assert (await made.release())["changed"]
        else:
            with pytest.raises(StoreFailed):
                await made.release()
        store.commands.append_entries = note
        assert (await made.judged("1"))[0] == ("new new" if stands else "old old")


async def test_two_workers_that_release_at_once_run_the_last_of_both(tmp_path: Path) -> None:
    url = tmp_path / "url"
    url.write_text(server(fsync=False).fresh())
    store, troubles = StorePlan("postgresql", url_file=str(url)), list[str]()
    async with running(tmp_path / "one", "here", plan=store) as made:
        one, folder = made.fleet, tmp_path / "other"
        (folder / "state").mkdir(parents=True)
        shutil.copy(one.folder / "state/ledger.key", folder / "state/ledger.key")
        shutil.copytree(one.content, folder / "content")
        other = FleetHarness(
            folder, content=folder / "content", policies=one.policies, targets=one.targets,
            store=store,
        )  # fmt: skip
        async with other:
            fleets = (one, other)

            def both_run(release: str) -> bool:
                return all(f.app.services.fleet.agent("worker").release == release for f in fleets)

            tasks = [
                asyncio.create_task(
                    follow_cluster(f.app.services, f.app.rollout, lambda: None, troubles.append,
                           f.app.releases.follow)
                ) for f in fleets
            ]  # fmt: skip
            for number in range(2):
                for fleet in fleets:
                    words = fleet.content / "agents/worker/words.py"
                    words.write_text(f'LABEL = "{number} {fleet.folder.name}"\n')
                    # Both releases are at hand at both.
                    for each in fleets:
                        keep_snapshot(each.app.settings.state, words.parent)
                done = [f.app.releases.release(f.order(), "worker") for f in fleets]
                assert all(answer["changed"] for answer in await asyncio.gather(*done))
                last = one.entries("agent.released")[-1]["release"]
                await wait_until(partial(both_run, last), 20)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert [answer for answer in troubles if "was taken up" not in answer] == []
