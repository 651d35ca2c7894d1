"""What Pub/Sub's other edges cost: `python -m tests.bench.pubsub_edges [--messages 2000]`.

Push: wrapped messages over real HTTP on the loopback into a fleet of one toy agent whom nothing
wakes, each answered after its commit, beside the same events handed straight to the intake.
Publish: one call after the other, then 16 threads at once, against the real emulator.
Redrive: dead letters published again, pulled to acknowledged. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import quantiles
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace
from starlette.applications import Starlette
from tests.letters import dead_letters
from tests.pubsub import HOST_VARIABLE, server
from tests.push import ACCOUNT, AUDIENCE, ce, issuing, serving, wrapped

from vedette.adapters.pubsub.config import PushFile
from vedette.adapters.pubsub.redrive import DeadLetters
from vedette.domain.effect import Call
from vedette.domain.event import ENVELOPE, Event
from vedette.interfaces.http.pubsub_receiver import push_routes
from vedette.sdk import publish
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, toy_fleet


def figures_of(latencies: list[float], seconds: float, cpu: float) -> dict[str, float]:
    """Return rate, CPU and latencies of some work."""
    cut = quantiles(latencies, n=100)
    number = len(latencies)
    return {
        "per_s": round(number / seconds), "cpu_us": round(cpu / number * 1e6, 1),
        "p50_ms": round(cut[49] * 1e3, 2), "p99_ms": round(cut[98] * 1e3, 2),
    }  # fmt: skip


class Client:
    """One connection that is kept open: as little of a client as there can be."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80

    async def __aenter__(self) -> Client:
        self._in, self._out = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._out.close()

    async def post(self, path: str, token: str, body: bytes) -> int:
        """Post a body; return the status."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._out.write(head.encode() + body)
        answer = (await self._in.readuntil(b"\r\n\r\n")).lower()
        _, _, rest = answer.partition(b"content-length: ")
        if rest:
            await self._in.readexactly(int(rest.split(b"\r", 1)[0]))
        return int(answer[9:12])


async def push(folder: Path, number: int, at_once: int = 32) -> dict[str, Any]:
    """Push messages; the client's CPU is part of it, as it runs in this process."""
    async with AsyncExitStack() as stack:
        issuer = await stack.enter_async_context(issuing())
        fleet = await stack.enter_async_context(toy_fleet(folder, World()))
        plan = PushFile(
            name="m", project="harbour", subscription="metrics", audience=AUDIENCE,
            service_account=ACCOUNT, issuer=issuer.url,
        )  # fmt: skip
        fleet.app.settings = replace(fleet.app.settings, sources=(plan,))
        url = await stack.enter_async_context(serving(Starlette(routes=push_routes(fleet.app))))
        token = issuer.token()
        found = {}
        for name in ("nobody", "m"):
            numbers, latencies = iter(range(number)), list[float]()

            async def one_after_the_other(client: Client, name: str = name) -> None:
                for n in numbers:  # noqa: B023 (all are done before the next name)
                    body = json.dumps(wrapped(f"{n}", {"v": n}, ce(f"{n}"))).encode()
                    began = time.perf_counter()
                    status = await client.post(f"/v1/pubsub/{name}", token, body)
                    latencies.append(time.perf_counter() - began)  # noqa: B023
                    assert status == (204 if name == "m" else 404)

            async with AsyncExitStack() as clients:
                opened = [await clients.enter_async_context(Client(url)) for _ in range(at_once)]
                # The first request loads what tokens are checked with, and fetches the keys.
                await opened[0].post(
                    f"/v1/pubsub/{name}",
                    token,
                    json.dumps(wrapped("first", 1, ce("first"))).encode(),
                )
                began, cpu = time.perf_counter(), time.process_time()
                await asyncio.gather(*(one_after_the_other(client) for client in opened))
                spent = time.process_time() - cpu
                found[name] = figures_of(latencies, time.perf_counter() - began, spent)
        return {
            "push": found["m"],
            "http_alone": found["nobody"],
            "line_alone": await line(fleet, number, at_once),
        }


async def line(fleet: FleetHarness, number: int, at_once: int) -> dict[str, float]:
    """Hand such events to the intake as the requests do: one each, so many at a time."""
    latencies, numbers = list[float](), iter(range(number))

    async def one_after_the_other() -> None:
        for n in numbers:
            event = Event("https://b.example/", f"{n}", "ping", data={"v": n}, vouched=ENVELOPE)
            began = time.perf_counter()
            await fleet.app.intake.accept([event])
            latencies.append(time.perf_counter() - began)

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    return figures_of(latencies, time.perf_counter() - began, time.process_time() - cpu)


async def published(project: str, number: int) -> dict[str, Any]:
    """Publish as agents' tools do."""
    target = {"project": project, "topic": "jobs"}

    def one(n: int) -> float:
        call = Call("t", {}, f"bench-{n}", "worker", "r", target, ("worker",), 1, 10_000_000)
        began = time.perf_counter()
        done = publish(call, {"v": n}, type="ping")
        assert done.state == "done", done
        return time.perf_counter() - began

    def work(threads: int) -> dict[str, float]:
        with ThreadPoolExecutor(threads) as pool:
            began, cpu = time.perf_counter(), time.process_time()
            latencies = list(pool.map(one, range(number)))
            return figures_of(latencies, time.perf_counter() - began, time.process_time() - cpu)

    await asyncio.to_thread(one, 0)
    return {"one": await asyncio.to_thread(work, 1), "sixteen": await asyncio.to_thread(work, 16)}


async def redriven(project: str, number: int) -> dict[str, Any]:
    """Redrive letters that were put into the dead-letter topic by hand."""
    async with dead_letters(project) as letters:
        topic = f"{letters.base}/topics/jobs-dead"
        for start in range(0, number, 500):
            sent = [
                letters.connection.message(b"{}", ce(f"{n}")) for n in range(start, start + 500)
            ]
            await letters.connection.publish(topic, sent)

        async def record(_: int) -> None:
            return None

        began, cpu = time.perf_counter(), time.process_time()
        done = await DeadLetters([letters.plan]).redrive("jobs", number, record)
        seconds = time.perf_counter() - began
        cpu_us = (time.process_time() - cpu) / number * 1e6
        assert done["redriven"] == number
        return {"per_s": round(number / seconds), "cpu_us": round(cpu_us, 1)}


async def main(number: int) -> dict[str, Any]:
    emulator = server()
    os.environ[HOST_VARIABLE] = emulator.host
    project = emulator.project()
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {"messages": number, **await push(Path(folder), number)}
        found["redrive"] = await redriven(project, number // 500 * 500)
        found["publish"] = await published(project, number)
        found["load"] = os.getloadavg()[0]
        return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=2000)
    print(json.dumps(asyncio.run(main(parser.parse_args().messages)), indent=2))
