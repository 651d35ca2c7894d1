"""`mode`: one word of the grants, tried, published once, and in the file only if it is live."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace
from tests.small import AGENT, small

from vedette.domain.base import failpoint
from vedette.domain.base.errors import AlreadyDone, BadCommand, Forbidden
from vedette.domain.bundle import Bundle, Finding
from vedette.domain.event import Event
from vedette.domain.identity import Principal
from vedette.interfaces.daemon import Daemon
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.operations import modes
from vedette.operations.commands import Order
from vedette.testing.harness import FleetHarness, TrustingStage, copy_policies


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("content"), each=1)


@pytest.fixture
def policies(written: Path, tmp_path: Path) -> Path:
    return copy_policies(tmp_path / "policies")


@pytest.fixture
def fleet(written: Path, policies: Path, tmp_path: Path) -> FleetHarness:
    return FleetHarness(tmp_path / "fleet", content=written, policies=policies)


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    failpoint.hook = None


async def mode(fleet: FleetHarness, to: str, agent: str = AGENT) -> dict[str, Any]:
    return await fleet.submit_confirmed("mode", reason="start safely", agent=agent, mode=to)


def grants(policies: Path) -> str:
    return (policies / modes.GRANTS).read_text(encoding="utf-8")


def published(fleet: FleetHarness) -> list[dict[str, Any]]:
    return fleet.entries("policy.published")


async def test_the_one_word_is_changed_published_and_recorded_with_who_and_why(
    fleet: FleetHarness, policies: Path
) -> None:
    before = grants(policies)
    async with fleet:
        done = await mode(fleet, "observe")
        assert (done["was"], done["mode"], done["folder"]) == ("act", "observe", "written")
        head, _, rest = before.partition(f"{AGENT}:\n")
        assert grants(policies) == f"{head}{AGENT}:\n{rest.replace('act', 'observe', 1)}"
        last = published(fleet)[-1]
        assert last["actor"] == "person:tester"
        assert fleet.body(last["seq"])["reason"] == "start safely"
        live = fleet.app.store.policy.bundle_files(done["digest"]) or {}
        assert live[modes.GRANTS].decode() == grants(policies)
        await mode(fleet, "act")
        assert grants(policies) == before


async def test_in_observe_nothing_is_done_and_in_ask_a_person_decides(
    fleet: FleetHarness, policies: Path
) -> None:
    data = {"from": "a@b.example", "subject": "Invoice 7", "text": "Please pay invoice 7, VAT due."}
    async with fleet:
        for to, outcome in (("observe", "deny"), ("ask", "hold")):
            await mode(fleet, to)
            event = Event("maildir:x", to, "mail.received", to, None, data)
            await fleet.send(event)
            await fleet.wait_until_idle()
            assert {row.decided for row in fleet.actions(event)} == {outcome}
        assert not fleet.entries("effect.intended", "effect.done")


async def test_what_the_watcher_read_before_an_order_does_not_undo_it(
    fleet: FleetHarness, policies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vedette.adapters.policy_engines.regorus.stage as stage

    read, began = stage.read_bundle, threading.Event()

    def slowly(folder: Path) -> Bundle:
        bundle = read(folder)
        began.set()
        time.sleep(0.2)
        return bundle

    async with fleet:
        running = Daemon(fleet.app, until_idle=True)
        monkeypatch.setattr(stage, "read_bundle", slowly)
        offering = asyncio.create_task(running.offer_policy())
        await asyncio.to_thread(began.wait, 30)
        await mode(fleet, "observe")
        await offering
        assert len(published(fleet)) == 2
        live = fleet.app.store.policy.bundle_files(fleet.app.rollout.live.digest)
        assert live is not None
        assert modes.read_grant(live, AGENT)["mode"] == "observe"


async def test_the_watched_folder_makes_no_second_revision_of_one_change(
    fleet: FleetHarness, policies: Path
) -> None:
    async with fleet:
        running = Daemon(fleet.app, until_idle=True)
        # The watcher reads the folder at any moment, also between two orders.
        await asyncio.gather(mode(fleet, "observe"), running.offer_policy(), mode(fleet, "ask"))
        await running.offer_policy()
        entries = [fleet.body(entry["seq"])["reason"] for entry in published(fleet)[1:]]
        assert entries == ["start safely", "start safely"]
        assert "mode: ask" in grants(policies).partition(AGENT)[2]
        # The control: a change of another hand is published by it.
        path = policies / modes.GRANTS
        path.write_text(grants(policies) + "# looked at\n", encoding="utf-8")
        await running.offer_policy()
        assert len(published(fleet)) == 4


class Refusing(TrustingStage):
    async def try_out(self, bundle: Bundle) -> list[Finding]:
        return [Finding(modes.GRANTS, 1, "not today")]


async def test_a_refused_change_leaves_the_file_as_it_was(
    fleet: FleetHarness, policies: Path
) -> None:
    before = grants(policies)
    async with fleet:
        fleet.app.rollout.stage = Refusing()
        done = await mode(fleet, "observe")
        assert not done["ok"]
        assert done["findings"] == [f"{modes.GRANTS}:1: not today"]
        assert grants(policies) == before
        assert len(published(fleet)) == 1


@pytest.mark.parametrize("point", ["mode-file:before", "mode-file:after"])
async def test_a_crash_half_way_is_taken_up_by_the_next_start_and_the_same_order(
    fleet: FleetHarness, policies: Path, point: str
) -> None:
    class Crash(BaseException):
        pass

    def crash(at: str) -> None:
        if at == point:
            raise Crash

    async with fleet:
        failpoint.hook = crash
        with pytest.raises(Crash):
            await mode(fleet, "observe")
        failpoint.hook = None
        number, digest = fleet.app.store.policy.live_revision()
        await fleet.restart()
        # It was published, so it stays in force, whatever the folder says.
        assert fleet.app.store.policy.live_revision() == (number, digest) == (2, digest)
        done = await mode(fleet, "observe")
        assert not done["changed"]
        assert (
            modes.read_grant((fleet.app.store.policy.bundle_files(digest) or {}), AGENT)["mode"]
            == "observe"
        )
        assert "mode: observe" in grants(policies).partition(AGENT)[2]


async def test_a_repeat_of_what_was_so_already_does_not_change_it_back(
    fleet: FleetHarness,
) -> None:
    async def repeat(to: str, command: str) -> dict[str, Any]:
        order = replace(fleet.order("start safely"), command_id=command)
        args = {"agent": AGENT, "mode": to}
        return await dispatch(fleet.app.commands, "mode", order, args)

    async with fleet:
        assert not (await repeat("act", "first"))["changed"]
        assert not (await repeat("act", "first"))["changed"], "and so for as long as it is so"
        assert (await repeat("observe", "second"))["changed"]
        with pytest.raises(AlreadyDone, match="first"):
            await repeat("act", "first")
        assert fleet.app.store.policy.live_revision()[0] == 2


async def test_before_it_is_published_a_crash_changes_nothing(
    fleet: FleetHarness, policies: Path
) -> None:
    before = grants(policies)

    def crash(at: str) -> None:
        if at == "mode-publish:before":
            raise KeyboardInterrupt

    async with fleet:
        failpoint.hook = crash
        with pytest.raises(KeyboardInterrupt):
            await mode(fleet, "observe")
        assert grants(policies) == before
        assert fleet.app.store.policy.live_revision()[0] == 1


async def test_what_others_publish_during_its_trial_is_kept(
    fleet: FleetHarness, policies: Path, tmp_path: Path
) -> None:
    """Without a folder: the mode is changed in what is live by then, not in what was."""
    tight = copy_policies(tmp_path / "tight")
    denies = tight / "denies" / "data.yaml"
    denies.write_text(denies.read_text().replace("tools: []", "tools: [mail.send]"))
    async with fleet:
        commands = fleet.app.commands
        commands.policies = None
        applying = asyncio.create_task(commands.policy_apply(fleet.order("tighten"), tight))
        await asyncio.sleep(0)  # it is in its trial, and nobody else gets in between
        done = await mode(fleet, "ask")
        assert (await applying)["revision"] == 2
        assert (done["ok"], done["revision"]) == (True, 3)
        live = fleet.app.store.policy.bundle_files(done["digest"]) or {}
        assert live["denies/data.yaml"] == denies.read_bytes()
        assert modes.read_grant(live, AGENT)["mode"] == "ask"


async def test_where_the_folder_is_behind_what_others_publish_meanwhile_it_is_refused(
    fleet: FleetHarness, policies: Path, tmp_path: Path
) -> None:
    before = grants(policies)
    tight = copy_policies(tmp_path / "tight")
    denies = tight / "denies" / "data.yaml"
    denies.write_text(denies.read_text().replace("tools: []", "tools: [mail.send]"))
    async with fleet:
        apply = fleet.app.commands.policy_apply(fleet.order("tighten"), tight)
        applying = asyncio.create_task(apply)
        await asyncio.sleep(0)
        with pytest.raises(BadCommand, match="says more than the live policy"):
            await mode(fleet, "ask")
        applied = await applying
        assert fleet.app.store.policy.live_revision() == (2, applied["digest"])
        assert grants(policies) == before


async def test_a_file_that_somebody_saves_during_the_trial_is_left_as_it_is(
    fleet: FleetHarness, policies: Path
) -> None:
    path = policies / modes.GRANTS

    def save(at: str) -> None:
        if at == "mode-publish:before":
            path.write_text(before + "# looked at by kim\n", encoding="utf-8")

    before = grants(policies)
    async with fleet:
        failpoint.hook = save
        done = await mode(fleet, "observe")
        assert done["ok"]
        assert "saved meanwhile" in done["folder"]
        assert grants(policies) == before + "# looked at by kim\n"
        # What they saved says the old mode: the watcher tells it and waits.
        running = Daemon(fleet.app, until_idle=True)
        await running.offer_policy()
        assert "the folder waits" in running.troubles[-1]
        live = fleet.app.store.policy.bundle_files(fleet.app.store.policy.live_revision()[1]) or {}
        assert modes.read_grant(live, AGENT)["mode"] == "observe"


async def test_a_folder_that_says_more_than_is_live_is_not_published_by_the_way(
    fleet: FleetHarness, policies: Path
) -> None:
    async with fleet:
        denies = policies / "denies" / "data.yaml"
        denies.write_text(denies.read_text().replace("tools: []", "tools: [mail.send]"))
        with pytest.raises(BadCommand, match="says more than the live policy"):
            await mode(fleet, "observe")
        assert len(published(fleet)) == 1


async def test_where_workers_share_a_store_the_live_policy_alone_is_changed_and_it_is_said(
    fleet: FleetHarness, policies: Path
) -> None:
    before = grants(policies)
    async with fleet:
        fleet.app.store.cluster.multi_worker = True
        done = await mode(fleet, "observe")
        assert done["changed"]
        assert "where the folder is kept" in done["folder"]
        assert grants(policies) == before


async def test_only_a_policy_author_may_and_only_for_an_agent_and_a_mode_there_are(
    fleet: FleetHarness, policies: Path
) -> None:
    async with fleet:
        commands = fleet.app.commands
        kim = Order(Principal("person", "kim", frozenset({"operator", "approver"})), "why")
        with pytest.raises(Forbidden, match="needs policy_author"):
            await dispatch(commands, "mode", kim, {"agent": AGENT, "mode": "act"})
        with pytest.raises(BadCommand, match="no agent 'nobody'"):
            await mode(fleet, "act", "nobody")
        with pytest.raises(BadCommand, match="'on' is no mode"):
            await mode(fleet, "on")
        order = replace(fleet.order(), reason=" ")
        with pytest.raises(BadCommand, match="reason is missing"):
            await dispatch(commands, "mode", order, {"agent": AGENT, "mode": "ask"})
        assert len(published(fleet)) == 1


def test_what_cannot_be_edited_by_lines_is_refused_with_the_mend() -> None:
    with pytest.raises(BadCommand, match="cannot be edited here"):
        modes.replace_mode({modes.GRANTS: b"watch: {mode: act}\n"}, "watch", "ask")
    raw = orjson.dumps({"watch": {"mode": "act"}})
    with pytest.raises(BadCommand, match="another file") as refusal:
        modes.replace_mode({"grants/data.json": raw}, "watch", "ask")
    assert "mode: ask" in str(refusal.value)
    with pytest.raises(BadCommand, match="grants 'other' nothing"):
        modes.replace_mode({modes.GRANTS: b"watch:\n  mode: act\n"}, "other", "ask")


@pytest.mark.parametrize(
    ("requested", "granted", "found"),
    [("act", "observe", "observe"), ("ask", "act", "ask"), ("act", "act", "act")],
)
def test_the_more_careful_mode_is_in_force(requested: str, granted: str, found: str) -> None:
    assert modes.effective_mode(requested, granted) == found
