"""A gateway whose workers go, or crowd in: what it keeps, whom it charges, how long it waits."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace
from tests.remote import Gateway, connect_as, gateway, now_us, svid_tokens
from tests.workers import LIMITS, brief, until, write_judge
from websockets.asyncio.client import unix_connect
from websockets.sync.client import unix_connect as connect_here

from vedette.adapters.reasoners.workers import reasoner_client, remote_reasoner
from vedette.adapters.reasoners.workers.remote_reasoner import MAX_WAITING
from vedette.adapters.reasoners.workers.websocket_server import VERSION, WorkerServer
from vedette.config.agent_folder import release_digest
from vedette.domain.base.errors import BadFleet, Unavailable
from vedette.domain.run import Superseded

LOST = ("worker", "judge", "lost its connection")
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


def _hello(there: Gateway, agent: str = "worker") -> str:
    fields = {"v": VERSION, "release": release_digest(there.agents / agent)}
    return orjson.dumps(fields).decode()


def _bearer(there: Gateway, agent: str = "worker") -> dict[str, Any]:
    token = there.issuer.signer(agent).mint(now_us())
    return {"additional_headers": {"Authorization": f"Bearer {token}"}}


async def test_a_worker_that_comes_back_is_asked_only_what_is_still_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was sent away meanwhile was in the berth already; its answer would be nobody's."""
    monkeypatch.setattr(remote_reasoner, "_MAX_WAIT_S", 0.1)
    write_judge(tmp_path / "agents", code=WAITING)
    async with gateway(tmp_path, limits=replace(LIMITS, time_us=60_000_000)) as there:
        gate = tmp_path / "gate"
        gate.touch()
        host = there.host()
        await there.came()
        tasks = [
            asyncio.create_task(there.judges.reason(brief(key=f"k{n}", gate=str(gate))))
            for n in range(20)
        ]
        await until(lambda: any(tmp_path.rglob("gate.begun")))
        await asyncio.to_thread(host.stop)
        sent = await asyncio.gather(*tasks[MAX_WAITING:], return_exceptions=True)
        assert all(isinstance(result, Superseded) for result in sent)
        gate.unlink()
        there.host()
        kept = await asyncio.gather(*tasks[:MAX_WAITING])
        assert [thought.label for thought in kept] == ["judged"] * MAX_WAITING
        assert (await there.judges.reason(brief(key="k19", gate=str(gate)))).label == "judged"
        assert there.deaths == [LOST], "the one that came back did nothing wrong"


async def test_what_is_to_be_forgotten_does_not_pile_up_while_nobody_is_there(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path) as there:
        tasks = [
            asyncio.create_task(there.judges.reason(brief(key=f"k{n}"))) for n in range(MAX_WAITING)
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        handle = there.judges._handles["worker"]
        assert handle.worker_number, "there is a berth, and nobody sits in it"
        for n in range(20_000):
            there.judges.drop_state("worker", f"some-key-{n:08d}")
        assert handle._outgoing == []
        await asyncio.sleep(0)
        assert handle._unsent == b""
        there.host()
        assert {thought.label for thought in await asyncio.gather(*tasks)} == {"seen 1"}
        # The control: one that is there is told, and has no state of this key any more.
        assert (await there.judges.reason(brief(2, 1, key="k0"))).label == "seen 2"
        there.judges.drop_state("worker", "k0")
        assert (await there.judges.reason(brief(3, 2, key="k0"))).needs_state


async def test_a_fold_whose_worker_goes_is_given_up_within_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole gateway waits for it. Nor does the next worker answer it to nobody."""
    monkeypatch.setattr(reasoner_client, "START_S", 20.0)  # so long, were it waited for
    since = [(n, brief(n, value=0.5).event) for n in range(1, 5)]
    async with gateway(tmp_path) as there:
        hello, headers = _hello(there), _bearer(there)

        def leaves() -> None:
            url = "ws://localhost/v1/workers/worker"
            with connect_here(str(there.path), url, **headers) as raw:
                raw.send(hello)
                assert "begin" in orjson.loads(raw.recv())

        guest = threading.Thread(target=leaves)
        guest.start()
        await there.came()
        began = time.monotonic()
        with pytest.raises(Unavailable, match="no worker of worker is connected"):
            there.judges.fold_state("worker", None, since)
        assert time.monotonic() - began < 10.0
        await asyncio.to_thread(guest.join)
        await until(lambda: there.pool.worker_counts["worker"] == 0)
        there.host()
        await there.came()
        assert there.judges.fold_state("worker", None, since) == b"4 2.0"
        assert there.deaths == [LOST]


async def test_one_agents_workers_do_not_keep_others_out(tmp_path: Path) -> None:
    async with gateway(tmp_path, "worker", "other") as there:
        url = "ws://localhost/v1/workers/worker"
        async with AsyncExitStack() as stack:
            for _ in range(16):
                opened = unix_connect(str(there.path), url, proxy=None, **_bearer(there))
                raw = await stack.enter_async_context(opened)
                await raw.send(_hello(there))
            token = there.issuer.signer("worker").mint(now_us())
            assert await asyncio.to_thread(connect_as, there.path, "worker", token) == 503
            other = there.issuer.signer("other").mint(now_us())
            assert await asyncio.to_thread(connect_as, there.path, "other", other) == 101
            assert there.refused == []
        await there.came(number=0)
        assert await asyncio.to_thread(connect_as, there.path, "worker", token) == 101


def _server(tmp_path: Path, host: str) -> WorkerServer:
    _, tokens = svid_tokens(tmp_path)
    return WorkerServer(
        tokens=tokens, releases={}, notify=lambda *_: None, now_us=now_us, listen=(host, 0)
    )  # fmt: skip


@pytest.mark.parametrize("host", ["x" * 64, "no\0host"])
def test_a_server_that_cannot_be_opened_says_so_whatever_it_is(tmp_path: Path, host: str) -> None:
    """A name that cannot be looked up is no OSError."""
    with pytest.raises(BadFleet, match=r"workers cannot be let in: (UnicodeError|ValueError)"):
        _server(tmp_path, host).open()


def test_a_server_that_breaks_later_is_its_threads_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner minds threads; `open` has returned by then."""
    server = _server(tmp_path, "127.0.0.1")
    results: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", results.append)

    async def breaks() -> None:
        assert server._ready.is_set()
        raise RuntimeError("broken")

    monkeypatch.setattr(server._stop, "wait", breaks)
    server.open()
    server.close()
    (args,) = results
    assert str(args.exc_value) == "broken"
    assert args.thread.name == "vedette-workers"
