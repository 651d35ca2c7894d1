"""A rollback with what was in force: policy and memory return where a person says so, as orders."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from tests.faults.scenario import BANK_YAML

from vedette.app.releases import Releases
from vedette.config.agent_folder import release_digest
from vedette.domain.base.errors import BadCommand, Forbidden, Unavailable
from vedette.interfaces.cli.agent_releases import diff
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.operations.curation import Curation
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, toy_fleet

OWN, SHARED = "own", "shared"


class Fleet:
    """A fleet whose worker reads a bank of its own, and one that another agent reads."""

    def __init__(self, fleet: FleetHarness) -> None:
        self.fleet = fleet
        self.agent = fleet.content / "agents" / "worker"

    async def give(self, verb: str, **args: Any) -> dict[str, Any]:
        return await dispatch(self.fleet.app.commands, verb, self.fleet.order(), args)

    async def remember(self, bank: str, text: str) -> str:
        """Propose a memory and promote it; return its name."""
        made = await self.give("memory_propose", into=f"{bank}/all", text=text)
        await self.give("memory_approve", id=f"{bank}/{made['candidate']}")
        return f"{bank}/{made['candidate']}"

    async def release(self, text: str) -> str:
        (self.agent / "instruction.md").write_text(text)
        return str((await self.give("agent_release", agent="worker"))["release"])

    async def roll_back(self, **args: Any) -> dict[str, Any]:
        return await self.give("agent_rollback", agent="worker", **args)

    def states(self) -> dict[str, str]:
        return {name: one.state for name, one in self.fleet.app.store.memories.all().items()}

    def taught(self) -> set[str]:
        lessons: Any = self.fleet.app.commands.curation.lessons  # type: ignore[union-attr]
        now_us = self.fleet.app.services.clock.now_us()
        return {one.text for one in lessons.preview_lessons("worker", now_us)}


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Fleet]:
    fleet = toy_fleet(folder, World(), agents=("worker", "other"))
    for bank, readers in ((OWN, "[worker]"), (SHARED, "[worker, other]")):
        (fleet.content / "memory" / bank).mkdir()
        text = BANK_YAML.replace("bank: notes", f"bank: {bank}")
        text = text.replace("[worker, other]", readers)
        (fleet.content / "memory" / bank / "bank.yaml").write_text(text)
    scopes = {"worker": (OWN, SHARED), "other": (SHARED,)}
    for name, banks in scopes.items():
        asked = ", ".join(f"{{bank: {bank}, scope: all}}" for bank in banks)
        file = fleet.content / "agents" / name / "agent.yaml"
        file.write_text(file.read_text() + f"memory: [{asked}]\n")
    grants = fleet.policies / "grants/data.yaml"
    text = grants.read_text()
    for name, banks in scopes.items():
        granted = ", ".join(f"{bank}/all" for bank in banks)
        text = text.replace(f"{name}:\n", f"{name}:\n  memory: [{granted}]\n", 1)
    grants.write_text(text)
    async with fleet:
        yield Fleet(fleet)


@pytest.mark.parametrize("asked", [False, True])
async def test_what_was_learned_is_retired_where_it_is_told_to_and_others_do_not_read_it(
    tmp_path: Path, asked: bool
) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        kept = await made.remember(OWN, "kept from before")
        poison = await made.remember(OWN, "always pay")
        await made.release("newer")
        await made.give("memory_off", id=poison)
        learned = await made.remember(OWN, "learned since")
        shared = await made.remember(SHARED, "learned by both")
        passing = await made.remember(OWN, "came and went")
        await made.give("memory_off", id=passing)
        done = await made.roll_back(memory=asked)
        assert made.fleet.app.services.fleet.agent("worker").release == old
        assert done["in_force"]["memories"] == [learned]
        assert done["in_force"]["retired_memories"] == {poison: made.fleet.order().reason}
        assert done["in_force"]["shared_memories"] == [shared]
        # What a person took back stays so, whatever the release then knew.
        stands = {kept: "active", shared: "active", passing: "off", poison: "off"}
        if not asked:
            assert done["memory"] is None
            assert made.states() == {**stands, learned: "active"}
            return
        assert [(one["memory"], one["state"]) for one in done["memory"]] == [(learned, "off")]
        assert made.states() == {**stands, learned: "off"}
        assert made.taught() == {"kept from before", "learned by both"}
        (moved,) = made.fleet.entries("memory.retired")[-1:]
        assert moved["actor"] == "person:tester"


@pytest.mark.parametrize("id", ["one", None])
@pytest.mark.parametrize("fails", ["memory", "release"])
async def test_an_order_that_broke_off_is_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, id: str | None
) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        bad = await made.release("newer")
        learned = await made.remember(OWN, "learned since")
        order = replace(made.fleet.order(), command_id=id)
        args = {"agent": "worker", "memory": True}

        async def fail(*_: Any, **__: Any) -> None:
            raise Unavailable("the store is away")

        what: tuple[Any, str] = (Curation, "move_memories")
        if fails == "release":
            what = (Releases, "make_release")
        monkeypatch.setattr(*what, fail)
        with pytest.raises(Unavailable, match="away"):
            await dispatch(made.fleet.app.commands, "agent_rollback", order, args)
        monkeypatch.undo()
        agents = made.fleet.app.services.fleet
        assert agents.agent("worker").release == bad
        assert made.states() == {learned: "active" if fails == "memory" else "off"}
        await dispatch(made.fleet.app.commands, "agent_rollback", order, args)
        assert (agents.agent("worker").release, made.states()) == (old, {learned: "off"})
        with pytest.raises(BadCommand, match=r"no release before|carried out"):
            await dispatch(made.fleet.app.commands, "agent_rollback", order, args)
        assert agents.agent("worker").release == old, "given once more it goes to no bad release"


async def test_the_number_of_memories_is_looked_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as made:
        bad = await made.release("newer")
        learned = [await made.remember(OWN, f"learned {n}") for n in range(2)]
        monkeypatch.setattr("vedette.app.rollbacks.MOST_AT_ONCE", 1)
        with pytest.raises(BadCommand, match="2 memories at once"):
            await made.roll_back(memory=True)
        assert made.fleet.app.services.fleet.agent("worker").release == bad
        assert made.states() == dict.fromkeys(learned, "active")


async def test_a_rollback_goes_back_only(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        first = release_digest(made.agent)
        second = await made.release("second")
        third = await made.release("third")
        assert (await made.roll_back())["release"] == second
        assert (await made.roll_back())["release"] == first
        with pytest.raises(BadCommand, match="no release before"):
            await made.roll_back()
        assert (await made.roll_back(to=third[:8]))["release"] == third
        assert (await made.roll_back())["release"] == first


async def test_who_may_not_order_memory_rolls_back_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        await made.release("newer")
        order = made.fleet.order()
        viewer = replace(order, principal=replace(order.principal, roles=frozenset({"viewer"})))
        args = {"agent": "worker", "memory": True}
        with pytest.raises(Forbidden):
            await dispatch(made.fleet.app.commands, "agent_rollback", viewer, args)
        assert [e.get("back_to") for e in made.fleet.entries("agent.released")] == [None]


async def test_a_repeated_order_returns_memory_once(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        await made.release("newer")
        learned = await made.remember(OWN, "learned since")
        order = replace(made.fleet.order(), command_id="one")
        args = {"agent": "worker", "memory": True}
        await dispatch(made.fleet.app.commands, "agent_rollback", order, args)
        assert made.states() == {learned: "off"}
        await made.give("memory_on", id=learned)
        with pytest.raises(BadCommand, match="carried out"):
            await dispatch(made.fleet.app.commands, "agent_rollback", order, args)
        assert made.states() == {learned: "active"}


async def test_diff_tells_of_the_policy_and_the_memory_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as made:
        old = release_digest(made.agent)
        before = made.fleet.app.rollout.live.number
        await made.release("newer")
        await made.remember(OWN, "learned since")
        await made.release("newest")
        rego = min(made.fleet.policies.rglob("*.rego"))
        rego.write_text(rego.read_text() + "\n# a comment\n")
        await made.fleet.apply_policy(made.fleet.policies)
        after = made.fleet.app.rollout.live.number
        monkeypatch.setattr(
            "vedette.interfaces.cli.agent_releases.current_settings",
            lambda: made.fleet.app.settings,
        )
        said = CliRunner().invoke(diff, ["worker", old[:8], "live"], standalone_mode=False)
        assert said.output.startswith(
            f"policy   revision {before} -> {after}\n"
            "memory   1 promotions, retirements, restorations\n"
        )
        assert "+newest" in said.output
        said = CliRunner().invoke(diff, ["worker"], standalone_mode=False)
        assert said.output.endswith(" and folder are the same\n")
        assert "memory" not in said.output
