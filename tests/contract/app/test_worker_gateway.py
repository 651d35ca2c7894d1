"""A gateway's line with judges elsewhere, the record of refusals, and the verbs for identities."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from tests.remote import Host, connect_as, now_us

from vedette.adapters.identity.spiffe import Issuer
from vedette.adapters.reasoners.in_process import InProcessReasoner
from vedette.app.remote_workers import (
    RoutingReasoner,
    add_google_tokens,
    add_remote_reasoners,
    build_issuer,
    build_tokens,
    gateway_settings,
)
from vedette.config.deployment import Deployment, GatewayPlan, TokensPlan
from vedette.config.settings import Settings, load_settings
from vedette.domain.base.errors import BadCommand, BadFleet, StoreFailed
from vedette.domain.ports.tokens import BadToken
from vedette.interfaces.cli import cli
from vedette.interfaces.http import worker_gateway
from vedette.interfaces.http.worker_gateway import serve_workers, socket_path
from vedette.store.command_queue import CommandQueue
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet, wait_until

FAR = Deployment(gateway=GatewayPlan(("127.0.0.1", 0), ("worker",), is_gateway=True))


class Gate:
    """A toy fleet whose agent `worker` lives elsewhere."""

    def __init__(self, fleet: FleetHarness, address: str) -> None:
        self.fleet = fleet
        self.address = address
        self.hosts: list[Host] = []
        self.troubles: list[str] = []

    def host(self, agent: str = "worker") -> Host:
        signer = build_issuer(self.fleet.app.settings, now_us).signer(agent)

        async def mint() -> str:
            return signer.mint(now_us())

        folder = self.fleet.content / "agents" / agent
        state = self.fleet.folder / f"host{len(self.hosts)}"
        self.hosts.append(Host(agent, folder, self.address, mint, state))
        return self.hosts[-1]


@asynccontextmanager
async def gate(folder: Path, world: World, clock: ManualClock | None = None) -> AsyncIterator[Gate]:
    fleet = toy_fleet(folder, world, agents=("worker", "other"), clock=clock)
    fleet._edges = FAR
    troubles: list[str] = []
    async with fleet, serve_workers(fleet.app, troubles.append) as address:
        assert address is not None
        made = Gate(fleet, address)
        made.troubles = troubles
        try:
            yield made
        finally:
            for host in made.hosts:
                await asyncio.to_thread(host.stop)


async def test_events_are_judged_elsewhere_and_acted_on_here(tmp_path: Path) -> None:
    world = World()
    async with gate(tmp_path, world) as made:
        made.host()
        jobs = [job(str(n), send_proposal(f"t{n}"), key=f"k{n % 3}") for n in range(12)]
        await made.fleet.send(*jobs)
        await made.fleet.wait_until_idle()
        assert sorted(world.texts()) == sorted(f"t{n}" for n in range(12))
        assert set(world.keys().values()) == {1}
        router = made.fleet.app.services.reasoners["judge"]
        assert isinstance(router, RoutingReasoner)
        near = router._near
        assert isinstance(near, InProcessReasoner)
        assert near._judges == {}, "none was made in the gateway's process"


async def test_an_agent_without_its_worker_waits_and_the_others_go_on(tmp_path: Path) -> None:
    """More keys than there are handlers: none of them is lost to those who can work."""
    world = World()
    async with gate(tmp_path, world) as made:
        fleet = made.fleet
        away = [job(str(n), send_proposal(f"w{n}"), key=f"k{n}") for n in range(300)]
        await fleet.send(*away)
        await asyncio.sleep(0.3)
        others = [
            job(f"o{n}", send_proposal(f"o{n}"), key=f"k{n}", agent="other") for n in range(40)
        ]
        await fleet.send(*others)
        await wait_until(lambda: len(world.texts()) == 40)
        assert all(text.startswith("o") for text in world.texts())
        runs = [run for event in away for run in fleet.runs(event)]
        assert {(run.state, run.attempts) for run in runs} == {("ready", 0)}, "nobody is charged"
        made.host()
        await wait_until(lambda: len(world.texts()) == 340, 30)
        await fleet.wait_until_idle()
        assert set(world.keys().values()) == {1}


async def test_a_refused_token_is_in_the_ledger_and_bounded(tmp_path: Path) -> None:
    async with gate(tmp_path, World()) as made:
        fleet = made.fleet
        settings = fleet.app.settings
        path = socket_path(settings.state)
        assert path is not None
        stolen = build_issuer(settings, now_us).signer("other").mint(now_us())
        for _ in range(5):
            assert await asyncio.to_thread(connect_as, path, "worker", stolen) == 401
        await wait_until(lambda: bool(fleet.entries("identity.refused")))
        (entry,) = fleet.entries("identity.refused")
        fields = {name: entry[name] for name in ("agent", "what", "tries")}
        assert fields == {"agent": "worker", "what": "wrong-subject", "tries": 1}
        assert fleet.body(entry["seq"]) == {"why": "it is a token of other, not of worker"}
        assert stolen not in json.dumps(fleet.entries()) + json.dumps(fleet.body(entry["seq"]))
        counted = fleet.app.metrics.total("identity_refusals", agent="worker")
        assert counted == 5, "each is counted, one is written"


async def test_what_people_change_is_in_the_ledger_once(tmp_path: Path) -> None:
    async with gate(tmp_path, World()) as made:
        fleet = made.fleet
        issuer = build_issuer(fleet.app.settings, now_us)
        key = issuer.rotate("worker", actor="person:kim", reason="yearly").key
        issuer.revoke("worker", actor="person:kim", reason="stolen")
        await wait_until(lambda: len(fleet.entries("identity.changed")) == 2)
        first, second = fleet.entries("identity.changed")
        assert [e["what"] for e in (first, second)] == ["rotated", "revoked"]
        assert (first["key"], first["agent"], first["actor"]) == (key, "worker", "person:kim")
        assert fleet.body(second["seq"]) == {"reason": "stolen"}
        await asyncio.sleep(0.6)
        assert len(fleet.entries("identity.changed")) == 2


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the book of identities looked at often."""
    monkeypatch.setattr(worker_gateway, "_POLL_S", 0.02)


def reasons(fleet: FleetHarness) -> list[str]:
    """Return why identities were changed, by the ledger."""
    bodies = [fleet.body(entry["seq"]) for entry in fleet.entries("identity.changed")]
    return [body["reason"] for body in bodies if body is not None]


async def test_the_record_goes_on_with_a_new_book_and_with_one_out_of_a_backup(
    tmp_path: Path, often: None
) -> None:
    """The store outlives a state folder; both books count from numbers that the ledger has."""
    async with gate(tmp_path, World()) as made:
        fleet = made.fleet
        folder = fleet.app.settings.state / "identities"
        issuer = build_issuer(fleet.app.settings, now_us)
        issuer.rotate("worker", reason="1")
        backup = (folder / "issuer.json").read_bytes()
        for reason in "23":
            issuer.rotate("worker", reason=reason)
        await wait_until(lambda: reasons(fleet) == ["1", "2", "3"])
        (folder / "issuer.json").write_bytes(backup)
        issuer.revoke("worker", reason="stolen, after a restore")
        await wait_until(lambda: len(reasons(fleet)) == 4)
        for file in folder.iterdir():
            file.unlink()
        issuer.revoke("worker", reason="stolen, on a new host")
        expected = ["1", "2", "3", "stolen, after a restore", "stolen, on a new host"]
        await wait_until(lambda: len(reasons(fleet)) == 5)
        await asyncio.sleep(0.1)
        assert reasons(fleet) == expected, "and none of them twice"


async def test_a_change_is_recorded_once_though_it_could_not_be_marked_so(
    tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gate(tmp_path, World()) as made:
        fleet = made.fleet
        set_meta = CommandQueue.set_meta
        failed: list[str] = []

        async def fails(commands: CommandQueue, name: str, value: str) -> None:
            if name.startswith("identity_changes") and len(failed) < 3:
                failed.append(value)
                raise StoreFailed("the disk is full")
            await set_meta(commands, name, value)

        monkeypatch.setattr(CommandQueue, "set_meta", fails)
        issuer = build_issuer(fleet.app.settings, now_us)
        issuer.rotate("worker", reason="yearly")
        await wait_until(lambda: len(failed) == 3)
        issuer.revoke("worker", reason="stolen")
        await wait_until(lambda: "stolen" in reasons(fleet))
        assert reasons(fleet) == ["yearly", "stolen"]


async def test_a_damaged_book_is_said_and_does_not_end_the_record(
    tmp_path: Path, often: None
) -> None:
    async with gate(tmp_path, World()) as made:
        fleet = made.fleet
        issuer = build_issuer(fleet.app.settings, now_us)
        issuer.rotate("worker", reason="yearly")
        await wait_until(lambda: len(reasons(fleet)) == 1)
        book = fleet.app.settings.state / "identities" / "issuer.json"
        kept = book.read_bytes()
        book.write_bytes(b"{")
        await wait_until(lambda: bool(made.troubles))
        await asyncio.sleep(0.1)
        (troubles,) = made.troubles
        assert "changes of identities are not recorded: BadFleet" in troubles
        book.write_bytes(kept)
        issuer.revoke("worker", reason="stolen")
        await wait_until(lambda: reasons(fleet) == ["yearly", "stolen"])


def test_a_key_that_issue_makes_is_made_by_who_issued(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path, "harbour", now_us=now_us)
    issuer.issue("worker", tmp_path / "w.id", actor="person:kim", reason="a new host")
    _, changes = issuer.changes()
    rows = [(change["what"], change["actor"], change["reason"]) for change in changes]
    assert rows == [(what, "person:kim", "a new host") for what in ("made", "issued")]


async def test_with_run_both_stay_on_one_host(tmp_path: Path) -> None:
    near = replace(FAR, gateway=replace(FAR.gateway, is_gateway=False))
    world = World()
    fleet = toy_fleet(tmp_path, world)
    fleet._edges = near
    async with fleet, serve_workers(fleet.app) as address:
        assert address is None
        await fleet.send(job("1", send_proposal("here")))
        await fleet.wait_until_idle()
        assert world.texts() == ["here"]


def test_a_gateways_agents_are_those_named_or_all(tmp_path: Path) -> None:
    settings = Settings.of(tmp_path)
    assert not settings.deployment.gateway.is_remote("a")
    assert gateway_settings(settings).deployment.gateway.is_remote("a")
    one = replace(settings, deployment=Deployment(gateway=GatewayPlan(None, ("a",))))
    assert not one.deployment.gateway.is_remote("a"), "not with `vedette run`"
    plan = gateway_settings(one).deployment.gateway
    assert (plan.is_remote("a"), plan.is_remote("b")) == (True, False)


async def test_agents_that_cannot_live_elsewhere_are_named(tmp_path: Path) -> None:
    async with toy_fleet(tmp_path, World()) as fleet:
        settings = replace(fleet.app.settings, deployment=FAR)
        given: Any = (fleet.app.services.reasoners, None, fleet.app.services.clock)
        known = fleet.app.services.fleet
        assert isinstance(
            add_remote_reasoners(settings, known, *given)["judge"], RoutingReasoner
        ), "the control"
        worker = known.agents["worker"]
        model = replace(worker, reasoner="adk", asks_model=True)
        with pytest.raises(BadFleet, match="reasons with a model"):
            add_remote_reasoners(settings, replace(known, agents={"worker": model}), *given)
        rules = replace(worker, reasoner="rules")
        with pytest.raises(BadFleet, match="reasons with rules"):
            add_remote_reasoners(settings, replace(known, agents={"worker": rules}), *given)
        with pytest.raises(BadFleet, match="no agent 'worker'"):
            add_remote_reasoners(settings, replace(known, agents={}), *given)
        assert add_remote_reasoners(fleet.app.settings, known, *given) is given[0], (
            "no gateway, no change"
        )


async def test_google_is_wired_where_the_settings_say_so(tmp_path: Path) -> None:
    plan = TokensPlan("google", service_account="{agent}@p.iam.gserviceaccount.com")
    settings = replace(Settings.of(tmp_path), deployment=Deployment(tokens=plan))
    tokens = build_tokens(settings, now_us)
    with pytest.raises(BadToken) as error:
        await tokens.verify(build_issuer(settings, now_us).signer("a").mint(now_us()))
    assert error.value.code == "bad-algorithm", "an ES256 token is none of Google's"
    tools: Any = object()
    assert add_google_tokens(settings, tools) is tools
    asking = {"topic": {"kind": "pubsub", "google_scopes": ["s"]}}
    assert add_google_tokens(replace(settings, targets=asking), tools) is not tools
    with pytest.raises(BadFleet, match="service accounts"):
        add_google_tokens(replace(settings, targets=asking, deployment=Deployment()), tools)
    odd = TokensPlan("google", service_account="everybody@p.iam.gserviceaccount.com")
    with pytest.raises(BadFleet, match="account"):
        build_tokens(replace(settings, deployment=Deployment(tokens=odd)), now_us)


# --- verbs -----------------------------------------------------------------------------------


def identity(folder: Path, *given: str) -> Any:
    if given[0] != "list":
        given = (*given, "--reason", "a test")
    done = CliRunner().invoke(cli, ["--config", str(folder), "identity", *given, "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def content(tmp_path: Path) -> Path:
    toy_fleet(tmp_path, World())
    folder = tmp_path / "content"
    text = 'fleet = "harbour"\n[content]\npolicies = "../policies"\n'
    (folder / "vedette.toml").write_text(text + '[targets.world]\nkind = "world"\n')
    return folder


async def test_issue_rotate_and_revoke(content: Path) -> None:
    file = content / "w.id"
    first = await asyncio.to_thread(identity, content, "issue", "worker", "--out", str(file))
    assert oct(file.stat().st_mode & 0o777) == "0o600"
    from vedette.adapters.identity.spiffe import Signer

    signer = Signer.from_file(file)
    assert (signer.kid, signer.identity.agent) == (first["key"], "worker")
    tokens = build_tokens(load_settings(content / "vedette.toml"), now_us)
    await tokens.verify(signer.mint(now_us()), "worker")
    fresh = await asyncio.to_thread(identity, content, "rotate", "worker")
    assert fresh["key"] != first["key"]
    await tokens.verify(signer.mint(now_us()), "worker")
    listed = await asyncio.to_thread(identity, content, "list")
    assert [one["key"] for one in listed["keys"]] == [first["key"], fresh["key"]]
    assert "d" not in listed["bundle"]["keys"][0]
    await asyncio.to_thread(identity, content, "revoke", first["key"])
    with pytest.raises(BadToken) as error:
        await tokens.verify(signer.mint(now_us()), "worker")
    assert error.value.code == "revoked"
    await asyncio.to_thread(identity, content, "revoke", "worker")
    with pytest.raises(BadToken):
        await tokens.mint("worker")
    await asyncio.to_thread(identity, content, "rotate", "worker", "--reinstate")
    await tokens.verify(await tokens.mint("worker"), "worker")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("issue", "nobody", "--out", "x.id"), "no agent 'nobody'"),
        (("issue", "worker", "--out", "there.id"), "such a file already"),
        (("revoke", "No Such!"), "no agent, no key"),
        (("revoke", "wroker"), "no agent, no key"),
        (("rotate", "wroker"), "no agent 'wroker'"),
        (("rotate", "No Such!"), "cannot name an agent"),
    ],
)
def test_what_cannot_be_done_is_said(
    content: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], expected: str
) -> None:
    monkeypatch.chdir(content)
    (content / "there.id").touch()
    assert "--reason" in CliRunner().invoke(cli, ["identity", *given]).output
    done = CliRunner().invoke(cli, ["identity", *given, "--reason", "a test"])
    assert expected in str(done.exception)
    assert not (content / "x.id").exists()


def test_what_is_not_known_is_revoked_only_where_that_is_meant(content: Path) -> None:
    """A misspelt name would leave the one that is meant in force."""
    issuer = build_issuer(load_settings(content / "vedette.toml"), now_us)
    with pytest.raises(BadCommand, match="--unknown for an agent that was removed"):
        identity(content, "revoke", "removed")
    assert issuer.revoked_agents() == {}
    assert identity(content, "revoke", "removed", "--unknown")["revoked"] == "removed"
    # One of the fleet that has no key here (with Google's identities), one of the book alone, a
    # token, and again what was revoked: all are known.
    issuer.rotate("gone")
    for name in ("worker", "gone", "token:j1", "removed"):
        identity(content, "revoke", name)
    assert set(issuer.revoked_agents()) == {"worker", "gone", "removed"}
    # Nor does a key wait until the fleet's files are in order.
    kid = issuer.rotate("other").key
    (content / "agents" / "worker" / "agent.yaml").write_text("[")
    assert identity(content, "revoke", kid)["keys"] == [kid]


def test_the_name_of_a_key_may_begin_with_a_dash(content: Path) -> None:
    with pytest.raises(BadCommand, match="'-kDdrJp4Zd' is no agent, no key"):
        identity(content, "revoke", "-kDdrJp4Zd")


def test_a_worker_refuses_an_identity_that_is_not_its_own(
    content: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(content)
    identity(content, "issue", "worker", "--out", "w.id")
    (content / "agents" / "other").mkdir()
    (content / "agents" / "other" / "judge.py").touch()
    given = ["worker", "--agent", "other", "--gateway", "unix:x", "--identity"]
    assert "is the identity of worker" in str(CliRunner().invoke(cli, [*given, "w.id"]).exception)
    (content / "w.id").chmod(0o644)
    assert "others may read" in str(CliRunner().invoke(cli, [*given, "w.id"]).exception)
    assert "no identity file" in str(
        CliRunner().invoke(cli, [*given, "vedette.toml"]).exception
    ) or ("others may read" in str(CliRunner().invoke(cli, [*given, "vedette.toml"]).exception))
    assert "audience" in str(CliRunner().invoke(cli, [*given, "google"]).exception)
    nobody = ["worker", "--agent", "nobody", *given[3:], "w.id"]
    assert "is not there" in str(CliRunner().invoke(cli, nobody).exception)


def test_a_worker_reads_neither_settings_nor_store() -> None:
    """Nothing that knows of either is even loaded by what `vedette worker` is made of."""
    import subprocess

    code = (
        "import sys, vedette.interfaces.cli.worker;"
        "import vedette.adapters.reasoners.workers.websocket_client;"
        "import vedette.adapters.identity.spiffe;"
        "import vedette.config.agent_folder;"
        "import vedette.adapters.reasoners.workers.supervisor;"
        "print([m for m in sys.modules if m.startswith(("
        "'vedette.config.settings', 'vedette.app.composition_root.',"
        " 'vedette.store', 'vedette.store.sqlite',"
        " 'vedette.adapters.identity.secrets', 'apsw'))"
        " or m == 'vedette.app.composition_root'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
