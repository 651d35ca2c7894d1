"""What loosens the live policy is shown and confirmed, by every way to it; the folder waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.said import said
from tests.small import AGENT, small

from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.domain.base.errors import AlreadyDone
from vedette.domain.bundle import Bundle
from vedette.interfaces.daemon import Daemon
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.operations.modes import read_grant
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import DENY_TOOL, DESK, World, job, propose, toy_fleet

GRANTS = "grants/data.yaml"


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[FleetHarness]:
    async with toy_fleet(tmp_path, World()) as made:
        yield made


def write(fleet: FleetHarness, name: str, text: str) -> None:
    (fleet.policies / name).write_text(text, encoding="utf-8")


def save(fleet: FleetHarness, old: str, new: str, file: str = GRANTS) -> None:
    text = (fleet.policies / file).read_text(encoding="utf-8")
    assert old in text
    write(fleet, file, text.replace(old, new, 1))


async def order(fleet: FleetHarness, verb: str, **args: Any) -> dict[str, Any]:
    return await dispatch(fleet.app.commands, verb, fleet.order(), args)


async def offer(fleet: FleetHarness) -> str:
    """Have the watcher look at the folder; return the last thing that it told."""
    running = Daemon(fleet.app, until_idle=True)
    await running.offer_policy()
    return running.troubles[-1] if running.troubles else ""


def live(fleet: FleetHarness) -> int:
    return fleet.app.rollout.live.number


def mode(fleet: FleetHarness) -> str:
    files = fleet.app.store.policy.bundle_files(fleet.app.rollout.live.digest)
    assert files is not None
    return str(read_grant(files, "worker")["mode"])


async def test_a_rollback_that_arms_an_agent_again_says_so_and_waits_for_a_yes(
    fleet: FleetHarness,
) -> None:
    await order(fleet, "mode", agent="worker", mode="observe")
    await fleet.send(job("1", propose("wire.send", to=DESK, text="hello")))
    await fleet.wait_until_idle()
    answer = await order(fleet, "policy_rollback", number=1)
    assert (answer["ok"], answer["changed"], mode(fleet)) == (False, False, "observe")
    assert answer["loosens"] == ["worker: mode observe -> act"]
    assert answer["evidence"] == [
        "of the last 1 decisions 1 would have come out looser",
        "worker wire.send: deny (mode.observe) -> permit (permit.tool)",
    ]
    assert fleet.entries("policy.published")[-1]["policy_rev"] == 2
    back = await order(fleet, "policy_rollback", number=1, confirm=answer["confirm"])
    assert (back["ok"], mode(fleet)) == (True, "act")
    body = fleet.body(fleet.entries("policy.published")[-1]["seq"])
    assert body["loosens"] == answer["loosens"]


async def test_what_was_confirmed_is_exactly_what_was_shown(fleet: FleetHarness) -> None:
    await order(fleet, "mode", agent="worker", mode="observe")
    shown = await order(fleet, "mode", agent="worker", mode="ask")
    assert shown["loosens"] == ["worker: mode observe -> ask"]
    other = await order(fleet, "mode", agent="worker", mode="act", confirm=shown["confirm"])
    assert (other["ok"], mode(fleet)) == (False, "observe")
    for wrong in ("", "yes", "0" * 64):
        assert not (await order(fleet, "mode", agent="worker", mode="ask", confirm=wrong))["ok"]
    done = await order(fleet, "mode", agent="worker", mode="ask", confirm=shown["confirm"])
    assert (done["ok"], mode(fleet)) == (True, "ask")


async def test_an_order_that_was_not_confirmed_keeps_its_id(fleet: FleetHarness) -> None:
    from msgspec.structs import replace

    await order(fleet, "mode", agent="worker", mode="observe")
    first = replace(fleet.order(), command_id="first")
    answer = await fleet.app.commands.policy_rollback(first, 1)
    assert not answer["ok"]
    assert (await fleet.app.commands.policy_rollback(first, 1, answer["confirm"]))["ok"]
    await order(fleet, "mode", agent="worker", mode="observe")
    with pytest.raises(AlreadyDone):
        await fleet.app.commands.policy_rollback(first, 1)


async def test_a_changed_rule_is_said_with_what_it_would_have_permitted(
    fleet: FleetHarness,
) -> None:
    write(fleet, "vedette/denies/more.rego", DENY_TOOL.format("wire.send"))
    done = await fleet.apply_policy(fleet.policies)
    assert done["loosens"] == ["rules added: vedette/denies/more.rego"]
    for number in range(3):
        await fleet.send(job(str(number), propose("wire.send", to=DESK, text="hello")))
    await fleet.wait_until_idle()
    (fleet.policies / "vedette/denies/more.rego").unlink()
    answer = await order(fleet, "policy_apply", folder=str(fleet.policies))
    assert answer["loosens"] == ["rules taken away: vedette/denies/more.rego"]
    assert answer["evidence"][0] == "of the last 3 decisions 3 would have come out looser"
    assert "deny (denies.test) -> permit (permit.tool)" in answer["evidence"][1]


async def test_a_save_that_tightens_is_live_by_itself_and_one_that_loosens_waits(
    fleet: FleetHarness,
) -> None:
    save(fleet, "tools: []", "tools: [bell.ring]", "denies/data.yaml")
    assert await offer(fleet) == "policy revision 2 is live"
    save(fleet, "tools: [bell.ring]", "tools: []", "denies/data.yaml")
    answer = await offer(fleet)
    assert "tool bell.ring is denied no longer" in answer
    assert "vedette policy publish" in answer
    assert live(fleet) == 2
    await fleet.restart()
    assert "tool bell.ring is denied no longer" in fleet.app.troubles[0]
    assert live(fleet) == 2
    # What tightens in the same save does not carry the rest along.
    save(fleet, "mode: act", "mode: observe")
    assert "tool bell.ring is denied no longer" in await offer(fleet)
    save(fleet, "tools: []", "tools: [bell.ring]", "denies/data.yaml")
    assert await offer(fleet) == "policy revision 3 is live"


@pytest.mark.parametrize("how", ["rollback", "elsewhere"])
async def test_after_a_publication_from_elsewhere_the_folder_waits_whatever_is_saved(
    fleet: FleetHarness, tmp_path: Path, how: str
) -> None:
    """The next save of any file would bring back all that was taken back."""
    save(fleet, "hops: 8", "hops: 7", "limits/data.yaml")
    await offer(fleet)
    if how == "rollback":
        await fleet.submit_confirmed("policy_rollback", number=1)
    else:
        import shutil

        shutil.copytree(fleet.policies, tmp_path / "other")
        other = tmp_path / "other/denies/data.yaml"
        other.write_text(other.read_text().replace("tools: []", "tools: [wire.send]"))
        await fleet.apply_policy(tmp_path / "other")
    number = live(fleet)
    assert number == 3
    save(fleet, "mode: act", "mode: ask")  # tightens, and yet
    assert "the folder waits, as revision 3 was not published from it" in await offer(fleet)
    await fleet.restart()
    assert live(fleet) == number
    assert "the folder waits" in fleet.app.troubles[0]
    assert fleet.app.metrics.total("policy_published") == 0
    Daemon(fleet.app, until_idle=True)
    assert b"vedette_policy_folder_differs 1.0" in fleet.app.metrics.scrape()[0]
    await fleet.apply_policy(fleet.policies)  # a person publishes it
    save(fleet, "mode: ask", "mode: observe")
    assert await offer(fleet) == f"policy revision {number + 2} is live"


@pytest.mark.parametrize("how", ["order", "folder"])
async def test_what_loosens_the_revision_that_was_faster_is_not_published(
    fleet: FleetHarness, how: str
) -> None:
    """Another worker denies a tool while a bundle is tried that does not deny it yet."""
    emergency = dict(read_bundle(fleet.policies).files)
    denies = "denies/data.yaml"
    emergency[denies] = emergency[denies].replace(b"tools: []", b"tools: [wire.send]")
    store: Any = fleet.app.store
    publish = store.commands.publish
    raced: list[int] = []

    async def outrun(bundle: Bundle, drafts: Any, **more: Any) -> int:
        if not raced:
            raced.append(await publish(Bundle.of(emergency), []))
        number: int = await publish(bundle, drafts, **more)
        return number

    store.commands.publish = outrun
    save(fleet, "hops: 8", "hops: 7", "limits/data.yaml")
    if how == "order":
        answer = await order(fleet, "policy_apply", folder=str(fleet.policies))
        assert (answer["ok"], answer["loosens"]) == (False, ["tool wire.send is denied no longer"])
    else:
        assert "another revision was published meanwhile" in await offer(fleet)
    assert raced == [store.policy.live_revision()[0]]


async def test_a_folder_brought_to_what_is_live_speaks_again(fleet: FleetHarness) -> None:
    before = (fleet.policies / "limits/data.yaml").read_text(encoding="utf-8")
    save(fleet, "hops: 8", "hops: 7", "limits/data.yaml")
    await offer(fleet)
    await fleet.submit_confirmed("policy_rollback", number=1)
    write(fleet, "limits/data.yaml", before + "# the same\n")
    assert "the folder waits" in await offer(fleet)
    write(fleet, "limits/data.yaml", before)
    assert await offer(fleet) == ""
    save(fleet, "hops: 8", "hops: 6", "limits/data.yaml")
    assert await offer(fleet) == "policy revision 4 is live"


async def test_a_running_fleet_tells_at_once_that_its_folder_waits(fleet: FleetHarness) -> None:
    running = Daemon(fleet.app, until_idle=True)
    save(fleet, "hops: 8", "hops: 7", "limits/data.yaml")
    await running.offer_policy()
    await fleet.submit_confirmed("policy_rollback", number=1)
    await running.run()
    assert any("the folder waits" in message for message in running.troubles)


# --- as it is typed ------------------------------------------------------------------------------


def test_nobody_to_ask_is_a_refusal_that_says_what_would_be_loosened(tmp_path: Path) -> None:
    root = small(tmp_path / "fleet", each=1)
    why = ("--reason", "getting to know it")
    assert said(root, "policy", "publish", *why).code == 0
    assert said(root, "agent", "mode", AGENT, "observe", *why).code == 0
    for words in (("agent", "mode", AGENT, "act"), ("policy", "rollback", "1")):
        refused = said(root, *words, *why)
        assert refused.code != 0
        assert f"{AGENT}: mode observe -> act" in refused.err
        assert "loosening-unconfirmed" in said(root, *words, *why, "--json").err
    assert said(root, "agent", "mode", AGENT).out.startswith(f"{AGENT}: observe")
    back = said(root, "policy", "rollback", "1", "--yes", *why)
    assert back.code == 0
    assert f"{AGENT}: mode observe -> act" in back.err
    for verb in ("status", "policy status", "policy history", "check"):
        assert "the folder waits" in " ".join(said(root, *verb.split()).out.split()), verb
    text = (root / "policies" / GRANTS).read_text(encoding="utf-8")
    (root / "policies" / GRANTS).write_text(text.replace("mode: observe", "mode: act", 1))
    for verb in ("status", "policy status", "policy history", "check"):
        assert "the folder waits" not in " ".join(said(root, *verb.split()).out.split()), verb
