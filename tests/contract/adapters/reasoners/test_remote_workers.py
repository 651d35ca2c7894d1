"""Judges in workers that come to the gateway over a network: what they may do, and whose they are.

Real connections, real processes, really killed. The contract of the Reasoner port itself is in
test_reasoners.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
from msgspec.structs import replace
from tests.googles import fake_google, google_tokens
from tests.remote import Gateway, gateway, now_us
from tests.workers import CHARTER, EVERY, LIMITS, REGISTRY, alive, brief, until, write_judge
from websockets.asyncio.client import unix_connect
from websockets.asyncio.server import unix_serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from vedette.adapters.identity.google import MetadataServer
from vedette.adapters.reasoners.in_process import InProcessReasoner
from vedette.adapters.reasoners.workers import remote_reasoner, websocket_client, websocket_server
from vedette.adapters.reasoners.workers.pending_call import WorkerLost
from vedette.adapters.reasoners.workers.remote_reasoner import MAX_WAITING
from vedette.adapters.reasoners.workers.websocket_client import gateway_address
from vedette.adapters.reasoners.workers.websocket_server import VERSION
from vedette.config.agent_folder import release_digest
from vedette.config.agent_loader import load_judge
from vedette.domain.base.errors import BadCommand, Unavailable
from vedette.domain.run import Superseded


async def test_what_is_thought_crosses_the_network_unchanged(tmp_path: Path) -> None:
    async with gateway(tmp_path) as there:
        there.host(url=str(there.server.address))
        thought = await there.judges.reason(brief(value=0.1))
        here = InProcessReasoner(lambda _: load_judge(there.agents / "worker", CHARTER, ()))
        assert thought == await here.reason(brief(value=0.1))
        assert (thought.detail["charter"], thought.detail["registry"]) == (CHARTER, REGISTRY)


async def test_who_ends_its_process_is_charged_and_nobody_else(tmp_path: Path) -> None:
    async with gateway(tmp_path) as there:
        there.host()
        assert (await there.judges.reason(brief(key="early"))).label == "seen 1"
        for do, why in (("exit", "exit code 3"), ("segfault", "SIGSEGV"), ("loop", "longer than")):
            guilty = asyncio.create_task(there.judges.reason(brief(key=do, do=do)))
            after = [asyncio.create_task(there.judges.reason(brief(key=f"{do}{n}"))) for n in "ab"]
            with pytest.raises(WorkerLost, match=why):
                await guilty
            assert {t.label for t in await asyncio.gather(*after)} == {"seen 1"}
        assert [agent for agent, _, _ in there.deaths] == ["worker"] * 3
        assert there.pool.worker_counts == {"worker": 1}, "the host itself was never hurt"


async def test_state_is_restored_forgotten_folded_and_renewed(tmp_path: Path) -> None:
    async with gateway(tmp_path) as there:
        with pytest.raises(Unavailable, match="no worker of worker is connected"):
            there.judges.fold_state("worker", None, [])
        there.host()
        judges = there.judges
        await judges.reason(brief(value=2))
        judges.drop_state("worker", "k")
        assert (await judges.reason(brief(2, 1))).needs_state
        judges.restore_state("worker", "k", b"7 0.5", 1, [])
        assert (await judges.reason(brief(2, 1))).label == "seen 8"
        since = [(n, brief(n, value=0.5).event) for n in (3, 4)]
        assert judges.fold_state("worker", b"2 1.0", since) == b"4 2.0"
        judges.renew("worker")
        assert (await judges.reason(brief(3, 2))).needs_state
        assert there.deaths == []


WAITING = """\
import os
import time
from pathlib import Path
from vedette.judging import Judge as Base, Judgement


class Judge(Base):
    def judge(self, seen, briefing):
        gate = Path(briefing.event.data["gate"])
        Path(os.environ["TMPDIR"], gate.name + ".begun").touch()
        while gate.exists():
            time.sleep(0.01)
        return Judgement("judged", 1.0)
"""


def begun(gate: Path) -> list[Path]:
    """Return what a judge has left in its scratch folder: it waits for this gate."""
    return list(gate.parent.rglob(f"{gate.name}.begun"))


async def test_a_lost_connection_charges_nobody_and_the_next_worker_goes_on(
    tmp_path: Path,
) -> None:
    """The worker is killed with judgements under way: the next one is asked the same again."""
    write_judge(tmp_path / "agents", code=WAITING)
    limits = replace(LIMITS, time_us=60_000_000)
    async with gateway(tmp_path, limits=limits) as there:
        gates = [tmp_path / f"gate{n}" for n in range(3)]
        for gate in gates:
            gate.touch()
        # Where its box lets it write, and we can look.
        process = there.process(env={**os.environ, "TMPDIR": str(tmp_path)})
        tasks = [
            asyncio.create_task(there.judges.reason(brief(key=gate.name, gate=str(gate))))
            for gate in gates
        ]
        await until(lambda: begun(gates[0]) != [])
        judge = psutil.Process(process.pid).children(recursive=True)[-1]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        await there.came(number=0)
        await until(lambda: not alive(judge.pid))
        for one in begun(gates[0]):
            one.unlink()
        there.host()
        await until(lambda: begun(gates[0]) != [])
        assert not any(task.done() for task in tasks)
        for gate in gates:
            gate.unlink()
        assert [thought.label for thought in await asyncio.gather(*tasks)] == ["judged"] * 3


async def test_a_host_that_is_stopped_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be told anything, and another worker stands by."""
    monkeypatch.setattr(remote_reasoner, "_NETWORK_GRACE_S", 0.2)
    monkeypatch.setattr(websocket_server, "_RELEASE_TIMEOUT_S", 0.2)
    async with gateway(tmp_path, limits=replace(LIMITS, time_us=500_000)) as there:
        process = there.process()
        assert (await there.judges.reason(brief())).label == "seen 1"
        there.host()
        await there.came(number=2)
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(WorkerLost, match="took longer than"):
            await there.judges.reason(brief(key="guilty"))
        assert (await there.judges.reason(brief(key="next"))).label == "seen 1"
        await there.came(number=1)


async def test_after_three_lost_connections_in_a_row_what_was_asked_first_is_charged(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path) as there:
        task = asyncio.create_task(there.judges.reason(brief()))
        for _ in range(3):
            async with await _connect(there, "worker") as raw:
                await raw.send(_hello(there))
                assert "begin" in orjson.loads(await raw.recv())
        with pytest.raises(WorkerLost, match="lost its connection"):
            await task


# --- nobody is there -------------------------------------------------------------------------


async def test_without_a_worker_a_few_wait_and_the_others_look_again_later(
    tmp_path: Path,
) -> None:
    """So an agent whose worker is away takes no handler from anybody."""
    async with gateway(tmp_path, "worker", "other") as there:
        there.host("other")
        tasks = [asyncio.create_task(there.judges.reason(brief(key=f"k{n}"))) for n in range(50)]
        answers = await asyncio.gather(*tasks[MAX_WAITING:], return_exceptions=True)
        assert all(isinstance(t, Superseded) and t.wait_us == 1_000_000 for t in answers)
        assert not any(task.done() for task in tasks[:MAX_WAITING])
        assert (await there.judges.reason(brief(agent="other"))).label == "seen 1"
        there.host()
        assert {t.label for t in await asyncio.gather(*tasks[:MAX_WAITING])} == {"seen 1"}


async def test_runs_that_were_asked_when_the_worker_went_are_sent_away_too(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path) as there:
        host = there.host()
        await there.judges.reason(brief(key="warm"))
        slow = brief(key="slow", observe="slow")
        tasks = [asyncio.create_task(there.judges.reason(slow))]
        tasks += [asyncio.create_task(there.judges.reason(brief(key=f"k{n}"))) for n in range(40)]
        await asyncio.sleep(0)
        await asyncio.to_thread(host.stop)
        done = await asyncio.gather(*tasks[MAX_WAITING + 1 :], return_exceptions=True)
        assert all(isinstance(d, Superseded) or d.label == "seen 1" for d in done)  # type: ignore[union-attr]
        there.host()
        for task in tasks[: MAX_WAITING + 1]:
            assert isinstance(await _outcome(task), Superseded | str)
        lost = ("worker", "judge", "lost its connection")
        assert there.deaths == [lost], "the next worker was asked nothing that was given up"


async def _outcome(task: asyncio.Task[Any]) -> object:
    try:
        return (await task).label
    except Superseded as error:
        return error


async def test_a_second_worker_stands_by_and_takes_over(tmp_path: Path) -> None:
    async with gateway(tmp_path) as there:
        first = there.host()
        await there.judges.reason(brief())
        there.host()
        await there.came(number=2)
        assert (await there.judges.reason(brief(2, 1))).label == "seen 2", "the first one's state"
        await asyncio.to_thread(first.stop)
        assert (await there.judges.reason(brief(3, 2))).needs_state


# --- whose it is -----------------------------------------------------------------------------


def _hello(there: Gateway, agent: str = "worker") -> str:
    fields = {"v": VERSION, "release": release_digest(there.agents / agent)}
    return orjson.dumps(fields).decode()


async def _connect(there: Gateway, agent: str, token: str | None = None) -> Any:
    token = token or there.issuer.signer(agent).mint(now_us())
    return unix_connect(
        str(there.path), f"ws://localhost/v1/workers/{agent}", proxy=None,
        additional_headers={"Authorization": f"Bearer {token}"},
    )  # fmt: skip


async def test_a_token_of_one_agent_is_not_taken_for_another(tmp_path: Path) -> None:
    async with gateway(tmp_path, "worker", "other") as there:
        stolen = there.issuer.signer("worker").mint(now_us())
        with pytest.raises(InvalidStatus) as refused:
            async with await _connect(there, "other", stolen):
                pass
        assert refused.value.response.status_code == 401
        await until(lambda: bool(there.refused))
        assert there.refused == [
            ("other", "wrong-subject", "it is a token of worker, not of other")
        ]
        assert not any(stolen in part for refusal in there.refused for part in refusal)
        # The control: it is taken for whose it is.
        async with await _connect(there, "worker", stolen) as taken:
            await taken.send(_hello(there))
            await there.came()


@pytest.mark.parametrize(
    ("token", "code"), [("", "no-token"), ("a.b.c", "no-token"), ("x" * 7_000, "no-token")]
)
async def test_what_is_no_token_is_refused(tmp_path: Path, token: str, code: str) -> None:
    async with gateway(tmp_path) as there:
        with pytest.raises(InvalidStatus):
            async with await _connect(there, "worker", token or " "):
                pass
        await until(lambda: bool(there.refused))
        assert there.refused[0][:2] == ("worker", code)
        assert there.pool.worker_counts == {}


async def test_an_agent_that_is_not_of_this_gateway_is_not_there(tmp_path: Path) -> None:
    async with gateway(tmp_path) as there:
        with pytest.raises(InvalidStatus) as refused:
            async with await _connect(there, "stranger"):
                pass
        assert refused.value.response.status_code == 404


async def test_a_worker_of_another_release_is_refused(tmp_path: Path) -> None:
    async with gateway(tmp_path) as there:
        host = there.host(release="0" * 64)
        await until(lambda: bool(host.reports))
        assert "another release" in host.reports[0]
        assert there.refused[0][:2] == ("worker", "other-release")


def _says(worker: object, gateway: object) -> str:
    return (
        f"the worker speaks version {worker} of the protocol, the gateway version {gateway}: "
        "run the same vedette at both"
    )


@pytest.mark.parametrize(
    ("version", "spoken"),
    [(1, 1), (VERSION + 1, VERSION + 1), (-1, -1), ("2", "none"), (None, "none"), ([2], "none")],
)
async def test_a_worker_that_speaks_another_version_is_refused(
    tmp_path: Path, version: object, spoken: object
) -> None:
    async with gateway(tmp_path) as there:
        hello = {**orjson.loads(_hello(there)), "v": version}
        async with await _connect(there, "worker") as raw:
            await raw.send(orjson.dumps(hello).decode())
            with pytest.raises(ConnectionClosed):
                await raw.recv()
            assert (raw.close_code, raw.close_reason) == (4400, _says(spoken, VERSION))
        await until(lambda: bool(there.refused))
        (refused,) = there.refused
        assert refused[:2] == ("worker", "other-protocol")
        assert _says(spoken, VERSION).startswith(refused[2])
        assert there.pool.worker_counts == {}
        # The control: the same greeting with the version of this gateway is taken.
        async with await _connect(there, "worker") as raw:
            await raw.send(orjson.dumps({**hello, "v": VERSION}).decode())
            await there.came()


@pytest.mark.parametrize(
    ("side", "versions"), [(websocket_client, (1, VERSION)), (websocket_server, (VERSION, 1))]
)
async def test_a_worker_and_a_gateway_of_two_versions_tell_both_and_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: Any, versions: tuple[int, int]
) -> None:
    """Whichever of the two is the older one, and neither gives up: the other may be replaced."""
    monkeypatch.setattr(side, "VERSION", 1)
    async with gateway(tmp_path) as there:
        host = there.host()
        await until(lambda: bool(host.reports))
        assert host.reports == [f"the connection ended: {_says(*versions)}"]
        assert there.refused[0][:2] == ("worker", "other-protocol")
        assert there.pool.worker_counts == {}
        monkeypatch.setattr(side, "VERSION", VERSION)
        assert (await there.judges.reason(brief())).label == "seen 1"


async def test_a_gateway_of_before_that_tells_its_own_version_only_is_understood(
    tmp_path: Path,
) -> None:
    async def refuse(connection: Any) -> None:
        await connection.recv()
        await connection.close(4400, "version 1 is spoken here")

    before: Any = unix_serve(refuse, str(tmp_path / "before.sock"))
    async with gateway(tmp_path) as there, before:
        host = there.host(url=f"unix:{tmp_path / 'before.sock'}")
        await until(lambda: bool(host.reports))
        assert host.reports == [
            "the connection ended: version 1 is spoken here, and this worker speaks version "
            f"{VERSION}: run the same vedette at both"
        ]


async def test_an_answer_to_what_it_was_not_given_is_refused(tmp_path: Path) -> None:
    """Neither another agent's berth, nor a number that nobody asked, comes to anything."""
    async with gateway(tmp_path, "worker", "other") as there:
        there.host("other")
        first = await there.judges.reason(brief(agent="other"))
        task = asyncio.create_task(there.judges.reason(brief()))
        frame = bytes.fromhex("0000000000000000010000004078")
        async with await _connect(there, "worker") as raw:
            await raw.send(_hello(there))
            begin = orjson.loads(await raw.recv())["begin"]
            await raw.send((begin - 1).to_bytes(4, "little") + frame)
            await raw.wait_closed()
            assert raw.close_code == 4403
        await until(lambda: bool(there.refused))
        assert there.refused == [
            ("worker", "not-given", "it answered what was asked of somebody else")
        ]
        assert not task.done()
        async with await _connect(there, "worker") as raw:
            await raw.send(_hello(there))
            begin = orjson.loads(await raw.recv())["begin"]
            unasked = bytes.fromhex("0000000000000000ffff000040")
            await raw.send(begin.to_bytes(4, "little") + unasked)
            while "end" not in str(await raw.recv()):
                pass
        with pytest.raises(WorkerLost, match="an answer to what nobody asked"):
            await task
        assert (await there.judges.reason(brief(2, 1, agent="other"))).label == "seen 2"
        assert first.label == "seen 1"


# --- tokens on a connection ------------------------------------------------------------------


async def test_a_new_token_is_presented_before_the_old_one_expires(tmp_path: Path) -> None:
    async with gateway(tmp_path, life_us=2_000_000) as there:
        host = there.host()
        await there.judges.reason(brief())
        await asyncio.sleep(2.3)
        assert (await there.judges.reason(brief(2, 1))).label == "seen 2", "never interrupted"
        assert host.relay is not None
        assert host.relay.connections == 1
        assert there.refused == []


async def test_a_connection_ends_with_its_token(tmp_path: Path) -> None:
    """The control of the one above: a worker that presents no other is sent away."""
    async with gateway(tmp_path, life_us=1_000_000) as there:
        async with await _connect(there, "worker") as raw:
            await raw.send(_hello(there))
            with pytest.raises(ConnectionClosed):
                await raw.recv()
            assert raw.close_code == 4401
        await until(lambda: bool(there.refused))
        assert there.refused[0][:2] == ("worker", "expired")


async def test_a_token_of_another_agent_is_not_taken_on_a_connection_either(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path, "worker", "other") as there:
        async with await _connect(there, "worker") as raw:
            await raw.send(_hello(there))
            other = there.issuer.signer("other").mint(now_us())
            await raw.send(orjson.dumps({"token": other}).decode())
            with pytest.raises(ConnectionClosed):
                await raw.recv()
            assert raw.close_code == 4401
        await until(lambda: bool(there.refused))
        assert there.refused[0][:2] == ("worker", "wrong-subject")


async def test_who_is_revoked_is_sent_away_at_once(tmp_path: Path) -> None:
    async with gateway(tmp_path) as there:
        host = there.host()
        await there.judges.reason(brief())
        there.issuer.revoke("worker")
        await there.came(number=0)
        await until(lambda: any("revoked" in refusal for refusal in host.reports))
        assert ("worker", "revoked") in {refusal[:2] for refusal in there.refused}


@pytest.mark.parametrize("url", ["http://gateway.example", "ftp://localhost", "run", "--gateway"])
def test_a_token_does_not_travel_in_the_clear(url: str) -> None:
    with pytest.raises(BadCommand):
        gateway_address(url)
    assert gateway_address("https://gateway.example:8443/x/")[0].startswith(
        "wss://gateway.example:8443/x/v1/workers/"
    )
    assert gateway_address("unix:/run/w.sock")[1] == "/run/w.sock"
    assert gateway_address("http://127.0.0.1:80")[0].startswith("ws://127.0.0.1:80/")


async def test_decisions_after_lost_connections_equal_those_of_an_undisturbed_run(
    tmp_path: Path,
) -> None:
    """State is taken up again by each next worker."""
    async with gateway(tmp_path) as there:
        host = there.host()
        here = InProcessReasoner(
            lambda _: load_judge(there.agents / "worker", CHARTER, ()), checkpoint_every=EVERY
        )
        seen: list[Any] = []
        kept: tuple[bytes | None, int] = (None, 0)
        for position in range(1, 61):
            if position == 35:
                await asyncio.to_thread(host.stop)
                host = there.host()
            briefing = brief(position, position - 1, value=position / 7)
            far = await there.judges.reason(briefing)
            if far.needs_state:
                since = [(at, event) for at, event in seen if at > kept[1]]
                there.judges.restore_state("worker", "k", kept[0], kept[1], since)
                far = await there.judges.reason(briefing)
            near = await here.reason(briefing)
            assert replace(far, checkpoint=None) == replace(near, checkpoint=None)
            seen.append((position, briefing.event))
            if far.checkpoint is not None:
                kept = (far.checkpoint, position)
        assert kept[1] > 0


async def test_a_worker_with_googles_identity_comes_in(tmp_path: Path) -> None:
    """Its token is the metadata server's (a local one, no real Google)."""
    async with fake_google() as google:
        there = Gateway(tmp_path)
        metadata = MetadataServer(google.host)
        google.own = "worker@proj.iam.gserviceaccount.com"
        there.open("worker", "other", tokens=google_tokens(google, there.issuer))
        try:

            async def mint() -> str:
                return await metadata.id_token(there.issuer.audience)

            there.host(mint=mint)
            assert (await there.judges.reason(brief())).label == "seen 1"
            other = there.host("other", mint=mint)
            await until(lambda: bool(other.reports))
            assert "wrong-subject" in other.reports[0]
            there.issuer.revoke("worker")
            await there.came(number=0)
        finally:
            await there.close()
