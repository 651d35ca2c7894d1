"""`python -m tests.bench.opa`: a decision by OPA's Wasm, the embedded engine and an OPA server.

Four measurements in one run, each beside a calibration:

- A recorded decision (`Gateway.decide` of a shipped agent's action, and the bytes of its record) by
  OPA's Wasm against the embedded engine, in turn, in CPU time: at most 0.7 of it.
- A permit of a shipped action by OPA's Wasm and by the residual made for it, in turn, in CPU
  time: at most half of it. `Gateway.decide` with either is told too.
- A decision beside one busy Python thread: p99 at most 300 us. It is timed from when its thread has
  the interpreter, as an event loop has it: between two decisions the thread gives it up. How long
  it then waits to get it back is the interpreter's (5 ms) and no engine's. Decisions with nothing
  in between are told too: one in about 120 of them is where its thread has to give way.
- The golden questions of policies/ by every way: what a caller waits for (wall) and what it costs
  (CPU, of this process and of the server).

Ends with 1 if a bar is missed. `--quick` leaves out the server.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice

import orjson
import psutil
from tests.bench.machine import described, percentile
from tests.bench.verdict import Verdict, print_verdicts
from tests.engines import TIMEOUT_US
from tests.fleet.deciding import NOW_US, shipped
from tests.opa import find_opa
from tests.opa_server import OpaServer, opa_server
from tests.questions import BUNDLE

from vedette.adapters.policy_engines.opa import OpaConnection, OpaEngine
from vedette.adapters.policy_engines.opa_wasm import WasmEngine, compile_wasm
from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.adapters.policy_engines.regorus.residual.compiler import BundleCompiler
from vedette.adapters.telemetry.prometheus import PrometheusMetrics
from vedette.domain.action import bind_proposal
from vedette.domain.base.canonical import canonical_json
from vedette.domain.decision import DecisionContext, NullPolicyEngine, evaluate_request
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.memory import Briefing
from vedette.domain.ports.policy_engine import PolicyEngine
from vedette.judging import Proposal, Ref
from vedette.operations.evaluation import first_roots
from vedette.policy.bundle_data import mount
from vedette.policy.gateway import Gateway
from vedette.policy.golden_requests import golden_requests
from vedette.policy.residuals import ResidualSet

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


# --- a recorded decision --------------------------------------------------------------------------


def recorded(engine: PolicyEngine, residuals: ResidualSet | None = None) -> Callable[[], bytes]:
    """Return what decides an action of a shipped agent, and makes its record."""
    plan, _ = shipped("inbox_triage", "inbox", "mailbox")
    data = {"from": "a@harbour.example", "subject": "Berth 4"}
    event = Event("maildir:desk", "1", "mail.received", "m-1", None, data, vouched=ENVELOPE)
    briefing = Briefing("run", plan.name, event.id, 1, 0, 1, event, plan.charter, {}, ())
    folder = next(iter(plan.charter["folders"]))
    proposal = Proposal(
        "mail.file",
        {"message": Ref("/event/subject"), "folder": Ref(f"/charter/folders/{folder}")},
        confidence=0.99,
    )
    roots = first_roots(plan, briefing)
    action = bind_proposal(
        proposal, plan.tools, roots, run="run", turn=1, ordinal=0, confidence=0.99
    )
    gateway = Gateway(engine, 1, residuals=residuals)

    def decide() -> bytes:
        decided = gateway.decide(action, DecisionContext(plan, event, 1, NOW_US))
        assert decided.decision.outcome == "permit", decided.decision
        return decided.to_body()

    return decide


def made_residual(engine: PolicyEngine) -> tuple[ResidualSet, bytes, Callable[[], object]]:
    """Return the residuals of the shipped policy, with the one that `recorded` asks made.

    With them the question, and what asks the residual alone. Raises AssertionError for none.
    """
    residuals = ResidualSet(
        engine, lambda: BundleCompiler(BUNDLE), PrometheusMetrics(), one_in=64, threshold=2
    )
    decide = recorded(engine, residuals)
    decide()
    decide()
    residuals.make_now()
    assert residuals.count == 1, residuals.state
    request = orjson.loads(decide())["question"]
    raw = canonical_json(request)
    return residuals, raw, lambda: residuals.permit(request, raw)


def in_turn(ways: Sequence[Callable[[], object]], rounds: int, calls: int) -> list[list[float]]:
    """Return the CPU microseconds of one call in each round, by every way: A B A B."""
    spent: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for place, way in enumerate(ways):
            began = time.thread_time_ns()
            for _ in range(calls):
                way()
            spent[place].append((time.thread_time_ns() - began) / calls / 1e3)
    return spent


# --- beside a busy thread -------------------------------------------------------------------------


def beside_busy(
    ask: Callable[[], object], calls: int, *, gives_way: bool
) -> tuple[list[float], list[float]]:
    """Return the sorted microseconds of calls beside a thread that computes: wall, and CPU."""
    ended = threading.Event()

    def spin() -> None:
        while not ended.is_set():
            plain(b"")

    busy = threading.Thread(target=spin, name="busy")
    busy.start()
    took: list[float] = []
    spent: list[float] = []
    try:
        for _ in range(calls):
            if gives_way:
                time.sleep(0.0001)
            began, cpu = time.perf_counter(), time.thread_time_ns()
            ask()
            spent.append((time.thread_time_ns() - cpu) / 1e3)
            took.append((time.perf_counter() - began) * 1e6)
    finally:
        ended.set()
        busy.join()
    return sorted(took), sorted(spent)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    questions = [orjson.dumps(one) for _, one in golden_requests(mount(BUNDLE.files))]
    wasm, embedded = WasmEngine(BUNDLE, compile_wasm(find_opa(), BUNDLE)), RegorusEngine(BUNDLE)
    now, before = recorded(wasm), recorded(embedded)
    spent = in_turn([now, before, lambda: plain(b"")], args.rounds, 200)
    cpu, was, calibration = (statistics.median(each) for each in spent)
    residuals, asked, permit = made_residual(wasm)
    turns = [
        lambda: evaluate_request(wasm, asked), permit, now, recorded(wasm, residuals),
        lambda: plain(b""),
    ]  # fmt: skip
    full, short, whole, with_residual, beside = map(
        statistics.median, in_turn(turns, args.rounds, 200)
    )
    busy, busy_cpu = beside_busy(lambda: wasm.decide(questions[0]), args.calls // 5, gives_way=True)
    close, _ = beside_busy(lambda: wasm.decide(questions[0]), args.calls, gives_way=False)
    same, _ = beside_busy(lambda: plain(b""), args.calls // 5, gives_way=True)
    p99 = percentile(busy, 0.99)
    costs = [] if args.quick else everyone(wasm, embedded, questions, args.calls)
    if args.json:
        found = {"permit_us": full, "residual_us": short, "with_residual_us": with_residual}
        found |= {"recorded_us": cpu, "recorded_embedded_us": was, "calibration_us": calibration}
        print(json.dumps({**found, "busy_p99_us": p99, "ways": [asdict(cost) for cost in costs]}))
        return 0
    print(described())
    print(
        f"a recorded decision, CPU, p50 of {args.rounds} rounds in turn: {cpu:.1f} us by "
        f"{wasm.name}, {was:.1f} us by {embedded.name} (1,000 squares: {calibration:.1f} us); "
        f"best {min(spent[0]):.1f} and {min(spent[1]):.1f} us"
    )
    print(
        f"a permit, CPU, in turn: {full:.1f} us by {wasm.name}, {short:.1f} us by its residual; "
        f"recorded {whole:.1f} and {with_residual:.1f} us (1,000 squares: {beside:.1f} us)"
    )
    print(
        f"a decision beside a busy thread, wall: p50 {percentile(busy, 0.5):,.0f} us, p99 "
        f"{p99:,.0f} us of {len(busy):,}, p99 of CPU {percentile(busy_cpu, 0.99):,.0f} us "
        f"(1,000 squares in its place: p50 "
        f"{percentile(same, 0.5):,.0f} us, p99 {percentile(same, 0.99):,.0f} us); "
        f"with nothing in between: p50 "
        f"{percentile(close, 0.5):,.0f} us, p99 {percentile(close, 0.99):,.0f} us of {len(close):,}"
    )
    if costs:
        print(f"{args.calls:,} decisions each, {len(questions)} golden questions, in turn")
    for cost in costs:
        print(cost.line())
    return print_verdicts(
        [
            Verdict("a recorded decision, of what the embedded engine takes", cpu / was, 0.7),
            Verdict("a permit by the residual, of what the Wasm takes", short / full, 0.5),
            Verdict("a decision beside a busy thread, p99", p99, 300.0, "us"),
        ]
    )


def everyone(
    wasm: PolicyEngine, embedded: PolicyEngine, questions: Sequence[bytes], calls: int
) -> list[Cost]:
    """Measure the golden questions by every way, a real OPA server among them."""
    with opa_server(BUNDLE) as opa:
        metrics = PrometheusMetrics()
        link = OpaConnection(opa.url, token=None, timeout_us=TIMEOUT_US, metrics=metrics)
        link.open(BUNDLE.digest)
        server = psutil.Process(opa.pid)

        def server_cpu() -> float:
            spent = server.cpu_times()
            return float(spent.user + spent.system)

        ways: dict[str, Callable[[bytes], object]] = {
            "OPA's Wasm, in process": wasm.decide,
            "embedded (regorus)": embedded.decide,
            "OPA server": OpaEngine(NullPolicyEngine(), link, metrics, BUNDLE.digest).decide,
            "  bare connection": bare(opa),
            "  calibration: 1,000 squares": plain,
        }
        costs = measure(ways, questions, calls, server_cpu)
        link.close()
    return costs


if __name__ == "__main__":
    sys.exit(main())
