"""Releases looked back on and gone back to: history, diff, rollback, and what a restart makes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from tests.contract.app.test_releases import Fleet, change, running
from tests.contract.app.test_releases import plan as plan

from vedette.adapters.ledger_export import write_segment
from vedette.app.rollbacks import roll_back
from vedette.config.agent_folder import release_digest
from vedette.config.settings import StorePlan
from vedette.config.snapshot import snapshot_folder
from vedette.domain.base.errors import BadCommand, Forbidden, NotFound, Unavailable
from vedette.interfaces.cli.agent_releases import diff, history
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.interfaces.http.operator_queries import READS
from vedette.ledger.history.release_history import read_release_history
from vedette.store.sqlite import SqliteReader
from vedette.testing.toy_fleet import World


async def rollback(made: Fleet, **args: Any) -> dict[str, Any]:
    order = replace(made.fleet.order(), reason="it was better")
    return await dispatch(
        made.fleet.app.commands, "agent_rollback", order, {"agent": "worker", **args}
    )


async def three_releases(made: Fleet) -> list[str]:
    """Release twice, with runs in between; return the digests, oldest first."""
    found = [(await made.judged("1"))[1]]
    for word, names in (("new", ("2", "3")), ("newer", ("4",))):
        made.say(word)
        await made.release(reason=f"now {word}")
        found.append([(await made.judged(name))[1] for name in names].pop())
    return found


async def test_history_tells_who_why_and_what_was_in_force(tmp_path: Path, plan: StorePlan) -> None:
    async with running(tmp_path, "here", plan=plan) as made:
        old, new, newer = await three_releases(made)
        await made.fleet.wait_until_idle()
        store = made.fleet.app.store
        found = read_release_history(store.ledger, "worker")
        assert [(p.release, p.how, p.by, p.reason, p.runs) for p in found] == [
            (newer, "release", "person:tester", "now newer", 1),
            (new, "release", "person:tester", "now new", 2),
            (old, "start", None, None, 1),
        ]
        live, _ = store.policy.live_revision()
        assert {p.policy_rev for p in found} == {live}
        entries = {e["seq"]: e for e in made.fleet.entries("fleet.loaded", "agent.released")}
        assert [entries[p.entry]["at"] for p in found] == [p.at for p in found]
        asked = READS["releases"](store, 0, {"agent": "worker"})
        assert [one["release"] for one in asked["releases"]] == [newer, new, old]
        done = await rollback(made)
        assert await made.judged("5") == ("new new", done["release"])
        with pytest.raises(NotFound):
            READS["releases"](store, 0, {"agent": "nobody"})


async def test_a_start_that_changes_nothing_is_no_release(tmp_path: Path) -> None:
    async with running(tmp_path, "here") as made:
        await made.fleet.restart()
        made.say("new")
        await made.fleet.restart()
        found = read_release_history(made.fleet.app.store.ledger, "worker")
        assert [p.how for p in found] == ["start", "start"]
        assert found[0].release == release_digest(made.agent) != found[1].release


@pytest.mark.parametrize("way", ["here", "worker"])
async def test_a_rollback_runs_what_ran_and_a_restart_keeps_it(tmp_path: Path, way: str) -> None:
    async with running(tmp_path, way) as made:
        old, new, newer = await three_releases(made)
        done = await rollback(made)
        assert (done["was"], done["release"], done["changed"]) == (newer, new, True)
        assert await made.judged("5") == ("new new", new)
        entry = made.fleet.entries("agent.released")[-1]
        assert made.fleet.body(entry["seq"])["reason"] == "it was better"
        assert entry["back_to"] == made.fleet.entries("agent.released")[0]["seq"]
        done = await rollback(made, to=old[:6])
        assert await made.judged("6") == ("old old", old)
        await made.fleet.restart()
        assert await made.judged("7") == ("old old", old), (
            "the folder still has what was taken back"
        )
        assert "was taken back" in " ".join(made.fleet.app.troubles)
        made.say("new")
        await made.fleet.restart()
        assert await made.judged("8") == ("old old", old), "that was taken back before"
        made.say("half edited")
        await made.fleet.restart()
        assert await made.judged("9") == ("old old", old), "who starts it need not mean this"
        await made.release()
        assert (await made.judged("10"))[0] == "half edited half edited"
        made.say("newest")
        await made.fleet.restart()
        assert (await made.judged("11"))[0] == "newest newest", "a start releases again"
        made.say("newer")
        await made.fleet.restart()
        assert await made.judged("12") == ("newer newer", newer), "this, too, by then"
        how = [p.how for p in read_release_history(made.fleet.app.store.ledger, "worker")]
        assert how == [
            "start", "start", "release", "rollback", "rollback", "release", "release", "start"
        ]  # fmt: skip


async def test_a_release_of_the_folder_ends_its_waiting(tmp_path: Path) -> None:
    async with running(tmp_path, "here") as made:
        _, _, newer = await three_releases(made)
        await rollback(made)
        await made.release(reason="it was right after all")
        await made.fleet.restart()
        assert await made.judged("5") == ("newer newer", newer)


async def test_a_rollback_of_a_fleet_that_does_not_run_is_the_next_starts(tmp_path: Path) -> None:
    async with running(tmp_path, "here") as made:
        _, new, _ = await three_releases(made)
        plan = made.fleet._store
        await made.fleet.close()
        made.fleet._store = StorePlan(visit=True)
        await made.fleet.open()
        await rollback(made)
        await made.fleet.close()
        made.fleet._store = plan
        await made.fleet.open()
        assert await made.judged("5") == ("new new", new)


def other_order(made: Fleet) -> None:
    change(made, "agent.yaml", "order_by: subject", "order_by: id")


async def test_what_cannot_be_rolled_back_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, "here") as made:
        first = (await made.judged("1"))[1]
        with pytest.raises(BadCommand, match="no release before"):
            await rollback(made)
        other_order(made)
        await made.fleet.restart()
        second = (await made.judged("2"))[1]
        before = len(made.fleet.entries("agent.released"))
        with pytest.raises(BadCommand, match="order_by"):
            await rollback(made)
        with pytest.raises(BadCommand, match="already"):
            await rollback(made, to=second)
        with pytest.raises(BadCommand, match="no release of it"):
            await rollback(made, to="0000000")
        with pytest.raises(BadCommand, match="shorter"):
            await rollback(made, to=first[:3])
        shutil.rmtree(snapshot_folder(made.fleet.app.settings.state, first, "worker").parent)
        with pytest.raises(BadCommand, match="not kept"):
            await rollback(made)
        viewer = replace(made.fleet.order().principal, roles=frozenset({"approver"}))
        with pytest.raises(Forbidden):
            await roll_back(made.releases, replace(made.fleet.order(), principal=viewer), "worker")
        assert len(made.fleet.entries("agent.released")) == before
        assert (await made.judged("3"))[1] == second


async def test_a_release_taken_back_to_whose_files_are_gone_pauses_its_agent_alone(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, "here") as made:
        _, new, _ = await three_releases(made)
        await rollback(made)
        state = made.fleet.app.settings.state
        await made.fleet.close()
        shutil.rmtree(snapshot_folder(state, new, "worker").parent)
        for word in ("newer", "another"):
            made.say(word)
            await made.fleet.restart()
            assert "begins nothing" in " ".join(made.fleet.app.troubles)
            assert made.releases.missing == {"worker": new}
            assert made.fleet.app.services.stops.is_agent_stopped("worker")
            loaded = made.fleet.entries("fleet.loaded")[-1]
            assert loaded["releases"]["worker"] == new, "no start releases the folder"
        await made.release()
        assert made.releases.missing == {}
        assert (await made.judged("5"))[0] == "another another"
        await made.fleet.restart()
        assert (await made.judged("6"))[0] == "another another"


async def test_a_release_of_what_runs_ends_the_waiting_too(tmp_path: Path) -> None:
    """So that what needs a start (another order of events, say) can be started again."""
    async with running(tmp_path, "here") as made:
        await three_releases(made)
        await rollback(made)
        other_order(made)
        with pytest.raises(BadCommand, match="its folder waits"):
            await made.release()
        change(made, "agent.yaml", "order_by: id", "order_by: subject")
        made.say("new")
        await made.release()
        other_order(made)
        await made.fleet.restart()
        assert made.fleet.app.services.fleet.agent("worker").order_by == "id"


async def test_an_archive_keeps_what_says_that_a_folder_waits(tmp_path: Path) -> None:
    async with running(tmp_path, "here") as made:
        _, new, _ = await three_releases(made)
        await rollback(made)
        await made.fleet.restart()
        await made.judged("5")
        await made.fleet.wait_until_idle()
        app = made.fleet.app
        store = SqliteReader(app.settings.state)
        line = (app.settings.state / "ledger.pub").read_text("utf-8").strip()
        last = app.store.ledger.last_seq()
        part = write_segment(store.ledger, tmp_path / "archive", last, line)
        store.close()
        archived = part.to_bytes().decode()
        with pytest.raises(BadCommand, match="the folder of worker waits since entry"):
            await made.fleet.submit_confirmed("let_go", archived=archived)
        await made.fleet.restart()
        assert await made.judged("6") == ("new new", new)
        await made.release()
        await made.fleet.submit_confirmed("let_go", archived=archived)


def edit_limits(made: Fleet, old: str, new: str) -> None:
    path = made.fleet.policies / "limits/data.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


async def test_a_rollback_with_its_policy(tmp_path: Path) -> None:
    async with running(tmp_path, "here") as made:
        old = (await made.judged("1"))[1]
        loose, _ = made.fleet.app.store.policy.live_revision()
        made.say("new")
        await made.release()
        edit_limits(made, "default: 800", "default: 900")
        await made.fleet.apply_policy(made.fleet.policies)
        tight, _ = made.fleet.app.store.policy.live_revision()
        assert tight > loose
        asked = await rollback(made, policy=True)
        assert not asked["changed"]
        assert asked["confirm"], "it loosens, and nobody has confirmed that"
        assert made.fleet.app.store.policy.live_revision()[0] == tight
        assert (await made.judged("2"))[0] == "new new"
        done = await rollback(made, policy=True, confirm=asked["confirm"])
        assert done["changed"]
        assert done["in_force"]["policy_rev"] == loose
        (published,) = [e for e in made.fleet.entries("policy.published") if e.get("back_to")]
        assert published["back_to"] == loose
        assert await made.judged("3") == ("old old", old)
        author = replace(made.fleet.order().principal, roles=frozenset({"operator"}))
        with pytest.raises(Forbidden):
            await dispatch(
                made.fleet.app.commands, "agent_rollback",
                replace(made.fleet.order(), principal=author), {"agent": "worker", "policy": True},
            )  # fmt: skip


async def test_what_was_published_while_it_ran_is_not_taken_back_with_what_came_after(
    tmp_path: Path,
) -> None:
    """The policy that a release last ran under, not the one it began with."""
    async with running(tmp_path, "here") as made:
        await made.judged("1")
        edit_limits(made, "default: 800", "default: 900")
        await made.fleet.apply_policy(made.fleet.policies)
        tight, _ = made.fleet.app.store.policy.live_revision()
        await made.judged("2")
        made.say("new")
        await made.release()
        done = await rollback(made, policy=True)
        assert done["in_force"]["policy_rev"] == tight
        assert not done["policy"]["changed"]
        assert made.fleet.app.store.policy.live_revision()[0] == tight


async def test_what_a_start_published_with_the_next_release_is_not_the_ones_before(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, "here") as made:
        await made.judged("1")
        loose, _ = made.fleet.app.store.policy.live_revision()
        edit_limits(made, "default: 800", "default: 900")
        made.say("new")
        await made.fleet.restart()
        live, _ = made.fleet.app.store.policy.live_revision()
        assert live > loose
        now, before = read_release_history(made.fleet.app.store.ledger, "worker")
        assert (now.policy_rev, now.last_policy_rev) == (live, live)
        assert (before.policy_rev, before.last_policy_rev) == (loose, loose)


async def test_a_rollback_and_a_canary_tell_what_is_asked_for_beyond(tmp_path: Path) -> None:
    old, new, word = WIDER["a tool"]
    async with running(tmp_path, "here", World()) as made:
        change(made, "agent.yaml", old, new)
        args = {"agent": "worker", "share_milli": 100}
        begun = await dispatch(made.fleet.app.commands, "agent_canary", made.fleet.order(), args)
        assert begun["wider"] == [word]
        await made.release()
        change(made, "agent.yaml", new, old)
        await made.release()
        assert (await rollback(made))["wider"] == [word]


async def test_a_rollback_that_is_refused_publishes_no_policy(tmp_path: Path) -> None:
    async with running(tmp_path, "here") as made:
        await made.judged("1")
        other_order(made)
        edit_limits(made, "default: 800", "default: 700")
        await made.fleet.apply_policy(made.fleet.policies)
        live, _ = made.fleet.app.store.policy.live_revision()
        await made.fleet.restart()
        with pytest.raises(BadCommand, match="order_by"):
            await rollback(made, policy=True)
        assert made.fleet.app.store.policy.live_revision()[0] == live


async def test_a_failure_after_the_publication_says_what_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, "here") as made:
        await made.judged("1")
        made.say("new")
        await made.release()
        edit_limits(made, "default: 800", "default: 700")
        await made.fleet.apply_policy(made.fleet.policies)
        monkeypatch.setattr("vedette.app.releases.REST_S", 0.0)
        monkeypatch.setattr(type(made.fleet.app.dispatcher), "is_active", lambda *_, **__: True)
        with pytest.raises(Unavailable, match=r"is live, and worker stays release"):
            await rollback(made, policy=True)


# --- diff ----------------------------------------------------------------------------------------

LOOK = """\
  - {name: book.look, verb: look, resource: wire, args: {name: string}, sinks: [],
     settles: idempotent, function: act, target: world}
"""
BURN = LOOK.replace("book.look", "book.burn").replace("look", "burn")
SEND = "settles: idempotent, function: act, target: world, attempts: 3"
# What is edited, what stands there then, what is told.
WIDER: dict[str, tuple[str, str, str]] = {
    "a ceiling": ("actions_per_run: 16", "actions_per_run: 32", "budget.actions_per_run: 16 -> 32"),
    "a sink gone": ("sinks: [/to], settles: none", "sinks: [], settles: none", "/to is no sink"),
    "impact": ("target: world, high_impact: true", "target: world", "not of high impact"),
    "attempts": (SEND, SEND.replace("3", "9"), "attempts: 3 -> 9"),
    "trust": (LOOK, LOOK.replace("world}", "world, output: trusted}"), "answers is trusted"),
    "a tool": (LOOK, LOOK + BURN, "tool added: book.burn (burn wire at world)"),
    "a trigger": ("[{on: worker.job}]", "[{on: worker.job}, {on: x.y}]", "trigger added: x.y"),
}
BELL = "settles: none, function: act, target: world"
NARROWER = {
    "a ceiling": ("actions_per_run: 16", "actions_per_run: 8"),
    "impact": (BELL, BELL + ", high_impact: true"),
    "a title": ("title: Does what", "title: Does all that"),
}


async def compared(made: Fleet, edit: Callable[[], Any]) -> list[str]:
    from vedette.config.agent_snapshot import load_released_agent
    from vedette.operations.release_comparison import find_wider_requests

    before = made.fleet.app.services.fleet.agent("worker")
    edit()
    await made.release()
    settings = made.fleet.app.settings
    old = load_released_agent(settings, "worker", before.release)
    assert old is not None
    return find_wider_requests(old, made.fleet.app.services.fleet.agent("worker"))


@pytest.mark.parametrize("how", WIDER)
async def test_what_a_release_asks_for_more_is_told(tmp_path: Path, how: str) -> None:
    old, new, word = WIDER[how]
    async with running(tmp_path, "here", World()) as made:
        found = await compared(made, lambda: change(made, "agent.yaml", old, new))
        assert len(found) == 1, found
        assert word in found[0]
        assert not await compared(made, lambda: change(made, "agent.yaml", new, old))


@pytest.mark.parametrize("how", NARROWER)
async def test_what_asks_for_less_is_not_told(tmp_path: Path, how: str) -> None:
    old, new = NARROWER[how]
    async with running(tmp_path, "here", World()) as made:
        assert not await compared(made, lambda: change(made, "agent.yaml", old, new))


async def test_the_verbs_on_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, "here") as made:
        old, new, newer = await three_releases(made)
        settings = made.fleet.app.settings
        await made.fleet.close()
        monkeypatch.setattr(
            "vedette.interfaces.cli.agent_releases.current_settings", lambda: settings
        )
        run = CliRunner().invoke
        listed = run(history, ["worker"], standalone_mode=False).output
        for digest in (old, new, newer):
            assert digest[:12] in listed
        same = run(diff, ["worker"], standalone_mode=False)
        assert (same.return_value, "the same" in same.output) == (0, True)
        made.say("elsewhere")
        other = run(diff, ["worker", old[:8], new[:8]], standalone_mode=False)
        assert other.return_value == 1
        assert '-LABEL = "old"' in other.output
        assert '+LABEL = "new"' in other.output
        folder = run(diff, ["worker"], standalone_mode=False)
        assert '+LABEL = "elsewhere"' in folder.output
