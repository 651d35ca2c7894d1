"""`python -m tests.bench.opa`: a decision by the embedded engine, OPA's Wasm and an OPA server.

The same questions, in turn, in one run: what a caller waits for (wall) and what it costs (CPU, of
this process and of the server), beside two calibrations: the server asked over a bare connection,
and a loop of plain Python.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice

import orjson
import psutil
from tests.bench.machine import described, percentile
from tests.engines import TIMEOUT_US
from tests.opa import find_opa
from tests.opa_server import OpaServer, opa_server
from tests.questions import BUNDLE

from vedette.adapters.opa import OpaEngine, OpaLink
from vedette.adapters.opa_wasm import WasmEngine, build
from vedette.adapters.prometheus import PrometheusMetrics
from vedette.adapters.rego.engine import RegorusEngine
from vedette.adapters.rego.golden import golden
from vedette.load.policy_data import mount
from vedette.question import Nobody

WARM, ROUND = 100, 250


@dataclass(frozen=True, slots=True)
class Cost:
    """What one decision costs, in microseconds. `server_us` is the CPU of the OPA server."""

    name: str
    calls: int
    p50_us: float
    p99_us: float
    cpu_us: float
    server_us: float

    def line(self) -> str:
        """Return it for people."""
        return (
            f"{self.name:<28} wall p50 {self.p50_us:7,.0f} us, p99 {self.p99_us:8,.0f} us; "
            f"CPU here {self.cpu_us:6,.0f} us, in the server {self.server_us:6,.0f} us"
        )


def measure(
    ways: dict[str, Callable[[bytes], object]],
    questions: Sequence[bytes],
    calls: int,
    server: Callable[[], float],
) -> list[Cost]:
    """Ask by every way in turn, some hundred calls at a time, so that all meet the same machine."""
    walls: dict[str, list[float]] = {name: [] for name in ways}
    spent, served = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0.0)
    for ask in ways.values():
        for question in islice(questions, WARM):
            ask(question)
    for start in range(0, calls, ROUND):
        for name, ask in ways.items():
            here, there = time.process_time(), server()
            for number in range(start, min(start + ROUND, calls)):
                began = time.perf_counter()
                ask(questions[number % len(questions)])
                walls[name].append((time.perf_counter() - began) * 1e6)
            spent[name] += time.process_time() - here
            served[name] += server() - there
    return [
        Cost(
            name, calls, percentile(took, 0.5), percentile(took, 0.99),
            spent[name] / calls * 1e6, served[name] / calls * 1e6,
        )
        for name, took in ((name, sorted(took)) for name, took in walls.items())
    ]  # fmt: skip


def bare(opa: OpaServer) -> Callable[[bytes], object]:
    """Return a way to ask the server with nothing around it: the floor of any client."""
    connection = http.client.HTTPConnection("127.0.0.1", opa.port)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(question: bytes) -> object:
        body, kind = b'{"input":%b}' % question, {"Content-Type": "application/json"}
        connection.request("POST", "/v1/data/vedette/gateway/decision?provenance=true", body, kind)
        return orjson.loads(connection.getresponse().read())

    return ask


def plain(question: bytes) -> object:
    """A fixed piece of work of this interpreter: what 1 is on this machine."""
    return sum(number * number for number in range(1000))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    questions = [orjson.dumps(one) for _, one in golden(mount(BUNDLE.files))]
    with opa_server(BUNDLE) as opa:
        metrics = PrometheusMetrics()
        link = OpaLink(opa.url, token=None, timeout_us=TIMEOUT_US, metrics=metrics)
        link.open(BUNDLE.digest)
        wasm = WasmEngine(BUNDLE, build(find_opa(), BUNDLE), timeout_us=TIMEOUT_US)
        server = psutil.Process(opa.pid)

        def server_cpu() -> float:
            spent = server.cpu_times()
            return float(spent.user + spent.system)

        ways: dict[str, Callable[[bytes], object]] = {
            "embedded (regorus)": RegorusEngine(BUNDLE).decide,
            "OPA's Wasm, in process": wasm.decide,
            "OPA server": OpaEngine(Nobody(), link, metrics, BUNDLE.digest).decide,
            "  bare connection": bare(opa),
            "  calibration: 1,000 squares": plain,
        }
        costs = measure(ways, questions, args.calls, server_cpu)
        wasm.close()
        link.close()
    if args.json:
        print(json.dumps([asdict(cost) for cost in costs]))
        return 0
    print(described())
    print(f"{args.calls:,} decisions each, {len(questions)} golden questions of policies/, in turn")
    for cost in costs:
        print(cost.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
