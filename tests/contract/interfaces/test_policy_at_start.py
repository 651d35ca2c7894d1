"""A policy folder that cannot be read keeps no fleet down that has a last good revision."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from vedette.domain.base.errors import BadPolicy
from vedette.interfaces.daemon import Daemon
from vedette.testing.toy_fleet import DENY_TOOL, World, job, send_proposal, toy_fleet


def not_utf8(policies: Path) -> None:
    (policies / "vedette" / "denies" / "denies.rego").write_bytes(b"package vedette.denies\n\xff")


def link_out(policies: Path) -> None:
    outside = policies.parent / "outside.rego"
    outside.write_text("package outside\n")
    (policies / "more.rego").symlink_to(outside)


def data_yml(policies: Path) -> None:
    (policies / "grants" / "data.yml").write_text("worker: {}\n")


def gone(policies: Path) -> None:
    policies.rename(policies.parent / "elsewhere")


BREAKING = [not_utf8, link_out, data_yml, gone]


@pytest.mark.parametrize("breaking", BREAKING)
async def test_the_last_good_revision_goes_on_and_the_refusal_is_told(
    tmp_path: Path, breaking: Callable[[Path], None]
) -> None:
    world = World()
    fleet = toy_fleet(tmp_path, world)
    async with fleet:
        pass
    breaking(fleet.policies)
    async with fleet:
        assert fleet.app.rollout.live.number == 1
        (refused,) = fleet.entries("policy.refused")
        assert refused["actor"] == "engine:vedette"
        assert fleet.body(refused["seq"])["findings"]
        (troubles,) = Daemon(fleet.app, until_idle=True).troubles
        assert troubles.startswith("policy refused, revision 1 stays: ")
        await fleet.send(job("1", send_proposal("hello")))
        await fleet.wait_until_idle()
        assert world.effects() == 1


@pytest.mark.parametrize("breaking", BREAKING)
async def test_without_a_revision_nothing_is_opened(
    tmp_path: Path, breaking: Callable[[Path], None]
) -> None:
    fleet = toy_fleet(tmp_path, World())
    breaking(fleet.policies)
    with pytest.raises(BadPolicy):
        await fleet.open()


async def test_a_folder_that_can_be_read_is_no_trouble(tmp_path: Path) -> None:
    fleet = toy_fleet(tmp_path, World())
    for _ in range(2):
        async with fleet:
            assert fleet.app.troubles == []
            assert fleet.entries("policy.refused") == []


async def test_a_folder_that_is_spoilt_while_the_fleet_runs_is_recorded_too(
    tmp_path: Path,
) -> None:
    async with toy_fleet(tmp_path, World()) as fleet:
        data_yml(fleet.policies)
        running = Daemon(fleet.app, until_idle=True)
        await running.offer_policy()
        assert len(fleet.entries("policy.refused")) == 1
        assert running.troubles[0].startswith("policy refused, revision 1 stays: ")


@pytest.mark.parametrize("how", ["start", "rollback"])
async def test_a_recorded_bundle_that_was_edited_neither_decides_nor_comes_back(
    tmp_path: Path, how: str
) -> None:
    fleet = toy_fleet(tmp_path, World())
    async with fleet:
        if how == "rollback":
            limits = fleet.policies / "limits/data.yaml"
            limits.write_text(limits.read_text().replace("hops: 8", "hops: 7"))
            await fleet.apply_policy(fleet.policies)
        digest = {number: known for number, known, _ in fleet.app.store.policy.revisions()}[1]
    (database,) = (
        path
        for path in fleet.folder.rglob("*")
        if path.is_file() and path.read_bytes()[:6] == b"SQLite" and _has_bundle(path, digest)
    )
    with closing(sqlite3.connect(database)) as rows, rows:
        ((files,),) = rows.execute("SELECT files FROM bundle WHERE digest=?", (digest,))
        edited = files.replace(b"impact: high", b"impact: low").replace(b"hops: 8", b"hops: 80")
        assert edited != files
        rows.execute("UPDATE bundle SET files=? WHERE digest=?", (edited, digest))
    if how == "start":
        denies = fleet.policies / "vedette/denies/more.rego"
        denies.write_text(DENY_TOOL.format("bell.ring"))
        with pytest.raises(BadPolicy, match="was changed"):
            await fleet.__aenter__()
        # The folder's bytes are taken for it where they are exactly that policy.
        denies.unlink()
        async with fleet:
            assert fleet.app.store.policy.bundle_files(digest) is not None
            assert fleet.app.rollout.live.digest == digest
            assert fleet.app.troubles == []
        return
    async with fleet:
        with pytest.raises(BadPolicy, match="was changed"):
            await fleet.app.commands.policy_rollback(fleet.order(), 1)


def _has_bundle(path: Path, digest: str) -> bool:
    with closing(sqlite3.connect(path)) as rows:
        tables = {name for (name,) in rows.execute("SELECT name FROM sqlite_master")}
        return "bundle" in tables and bool(
            rows.execute("SELECT 1 FROM bundle WHERE digest=?", (digest,)).fetchall()
        )
