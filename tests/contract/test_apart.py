"""A gateway's line with judges elsewhere, the record of refusals, and the verbs for identities."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.remote import Host, connect_as, now_us

from vedette.apart import Apart, apart, as_gateway, issuer_of, tokens_of, with_tokens
from vedette.cli import cli
from vedette.errors import BadFleet
from vedette.load import Settings
from vedette.load.edges import Edges, GatewayPlan, TokensPlan
from vedette.ports.tokens import BadToken
from vedette.serve.workers import serve_workers, socket_path
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy import World, job, send, toy_fleet, until

FAR = Edges(gateway=GatewayPlan(("127.0.0.1", 0), ("worker",), apart=True))


class Gate:
    """A toy fleet whose agent `worker` lives elsewhere."""

    def __init__(self, fleet: FleetHarness, address: str) -> None:
        self.fleet = fleet
        self.address = address
        self.hosts: list[Host] = []

    def host(self, agent: str = "worker") -> Host:
        signer = issuer_of(self.fleet.app.settings, now_us).signer(agent)

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
    async with fleet, serve_workers(fleet.app) as address:
        assert address is not None
        made = Gate(fleet, address)
        try:
            yield made
        finally:
            for host in made.hosts:
                await asyncio.to_thread(host.stop)


async def test_events_are_judged_elsewhere_and_acted_on_here(tmp_path: Path) -> None:
    world = World()
    async with gate(tmp_path, world) as made:
        made.host()
        jobs = [job(str(n), send(f"t{n}"), key=f"k{n % 3}") for n in range(12)]
        await made.fleet.send(*jobs)
        await made.fleet.settle()
        assert sorted(world.texts()) == sorted(f"t{n}" for n in range(12))
        assert set(world.keys().values()) == {1}
        near: Any = made.fleet.app.line.reasoners["judge"]
        assert isinstance(near, Apart)
        assert near._near._judges == {}, "none was made in the gateway's process"


async def test_an_agent_without_its_worker_waits_and_the_others_go_on(tmp_path: Path) -> None:
    """More keys than there are handlers: none of them is lost to those who can work."""
    world = World()
    async with gate(tmp_path, world) as made:
        fleet = made.fleet
        away = [job(str(n), send(f"w{n}"), key=f"k{n}") for n in range(300)]
        await fleet.send(*away)
        await asyncio.sleep(0.3)
        others = [job(f"o{n}", send(f"o{n}"), key=f"k{n}", agent="other") for n in range(40)]
        await fleet.send(*others)
        await until(lambda: len(world.texts()) == 40)
        assert all(text.startswith("o") for text in world.texts())
        runs = [run for event in away for run in fleet.runs(event)]
        assert {(run.state, run.attempts) for run in runs} == {("ready", 0)}, "nobody is charged"
        made.host()
        await until(lambda: len(world.texts()) == 340, 30)
        await fleet.settle()
        assert set(world.keys().values()) == {1}


async def test_a_refused_token_is_in_the_ledger_and_bounded(tmp_path: Path) -> None:
    async with gate(tmp_path, World()) as made:
        fleet = made.fleet
        settings = fleet.app.settings
        path = socket_path(settings.state)
        assert path is not None
        stolen = issuer_of(settings, now_us).signer("other").mint(now_us())
        for _ in range(5):
            assert await asyncio.to_thread(connect_as, path, "worker", stolen) == 401
        await until(lambda: bool(fleet.entries("identity.refused")))
        (entry,) = fleet.entries("identity.refused")
        told = {name: entry[name] for name in ("agent", "what", "tries")}
        assert told == {"agent": "worker", "what": "wrong-subject", "tries": 1}
        assert fleet.body(entry["seq"]) == {"why": "it is a token of other, not of worker"}
        assert stolen not in json.dumps(fleet.entries()) + json.dumps(fleet.body(entry["seq"]))
        counted = fleet.app.metrics.total("identity_refusals", agent="worker")
        assert counted == 5, "each is counted, one is written"


async def test_what_people_change_is_in_the_ledger_once(tmp_path: Path) -> None:
    async with gate(tmp_path, World()) as made:
        fleet = made.fleet
        issuer = issuer_of(fleet.app.settings, now_us)
        key = issuer.rotate("worker", actor="person:kim", reason="yearly").key
        issuer.revoke("worker", actor="person:kim", reason="stolen")
        await until(lambda: len(fleet.entries("identity.changed")) == 2)
        first, second = fleet.entries("identity.changed")
        assert [e["what"] for e in (first, second)] == ["rotated", "revoked"]
        assert (first["key"], first["agent"], first["actor"]) == (key, "worker", "person:kim")
        assert fleet.body(second["seq"]) == {"reason": "stolen"}
        await asyncio.sleep(0.6)
        assert len(fleet.entries("identity.changed")) == 2


async def test_with_run_both_stay_on_one_host(tmp_path: Path) -> None:
    near = replace(FAR, gateway=replace(FAR.gateway, apart=False))
    world = World()
    fleet = toy_fleet(tmp_path, world)
    fleet._edges = near
    async with fleet, serve_workers(fleet.app) as address:
        assert address is None
        await fleet.send(job("1", send("here")))
        await fleet.settle()
        assert world.texts() == ["here"]


def test_a_gateways_agents_are_those_named_or_all(tmp_path: Path) -> None:
    settings = Settings.of(tmp_path)
    assert not settings.edges.gateway.remote("a")
    assert as_gateway(settings).edges.gateway.remote("a")
    one = replace(settings, edges=Edges(gateway=GatewayPlan(None, ("a",))))
    assert not one.edges.gateway.remote("a"), "not with `vedette run`"
    plan = as_gateway(one).edges.gateway
    assert (plan.remote("a"), plan.remote("b")) == (True, False)


async def test_agents_that_cannot_live_elsewhere_are_named(tmp_path: Path) -> None:
    async with toy_fleet(tmp_path, World()) as fleet:
        settings = replace(fleet.app.settings, edges=FAR)
        given: Any = (fleet.app.line.reasoners, None, fleet.app.line.clock)
        known = fleet.app.line.fleet
        assert isinstance(apart(settings, known, *given)["judge"], Apart), "the control"
        model = replace(known.agents["worker"], reasoner="adk")
        with pytest.raises(BadFleet, match="reasons with a model"):
            apart(settings, replace(known, agents={"worker": model}), *given)
        with pytest.raises(BadFleet, match="no agent 'worker'"):
            apart(settings, replace(known, agents={}), *given)
        assert apart(fleet.app.settings, known, *given) is given[0], "no gateway, no change"


async def test_google_is_wired_where_the_settings_say_so(tmp_path: Path) -> None:
    plan = TokensPlan("google", service_account="{agent}@p.iam.gserviceaccount.com")
    settings = replace(Settings.of(tmp_path), edges=Edges(tokens=plan))
    tokens = tokens_of(settings, now_us)
    with pytest.raises(BadToken) as error:
        await tokens.verify(issuer_of(settings, now_us).signer("a").mint(now_us()))
    assert error.value.code == "bad-algorithm", "an ES256 token is none of Google's"
    hands: Any = object()
    assert with_tokens(settings, hands) is hands
    asking = {"topic": {"kind": "pubsub", "google_scopes": ["s"]}}
    assert with_tokens(replace(settings, targets=asking), hands) is not hands
    with pytest.raises(BadFleet, match="service accounts"):
        with_tokens(replace(settings, targets=asking, edges=Edges()), hands)
    odd = TokensPlan("google", service_account="everybody@p.iam.gserviceaccount.com")
    with pytest.raises(BadFleet, match="account"):
        tokens_of(replace(settings, edges=Edges(tokens=odd)), now_us)


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
    from vedette.adapters.svid import Signer
    from vedette.load import load_settings

    signer = Signer.of_file(file)
    assert (signer.kid, signer.identity.agent) == (first["key"], "worker")
    tokens = tokens_of(load_settings(content / "vedette.toml"), now_us)
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
    ("given", "told"),
    [
        (("issue", "nobody", "--out", "x.id"), "no agent 'nobody'"),
        (("issue", "worker", "--out", "there.id"), "such a file already"),
        (("revoke", "No Such!"), "no agent, no key"),
        (("rotate", "No Such!"), "cannot name an agent"),
    ],
)
def test_what_cannot_be_done_is_said(
    content: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(content)
    (content / "there.id").touch()
    assert "--reason" in CliRunner().invoke(cli, ["identity", *given]).output
    done = CliRunner().invoke(cli, ["identity", *given, "--reason", "a test"])
    assert told in str(done.exception)
    assert not (content / "x.id").exists()


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
        "import sys, vedette.cli.worker, vedette.adapters.worker_pool.relay, vedette.adapters.svid;"
        "import vedette.load.folder, vedette.adapters.worker_pool.pool;"
        "print([m for m in sys.modules if m.startswith(('vedette.load.settings', 'vedette.app.',"
        " 'vedette.storage', 'vedette.adapters.sqlite', 'vedette.adapters.secrets', 'apsw'))"
        " or m == 'vedette.app'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
