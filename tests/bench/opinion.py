"""`python -m tests.bench.opinion`: what the second opinion adds to a decision of the gateway.

The same actions are decided in turn, in one run (A B C A B C), by a gateway that asks one engine,
by one that asks both on every permit, and by one that asks a sample of the shipped share only. Wall
and CPU of this process, for permits; beside them a loop of plain Python, to compare machines by.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from tests.bench.machine import described, percentile
from tests.fleet.deciding import NOW_US, POLICIES, REGISTRY, shipped
from tests.opa import find_opa

from vedette.adapters.policy_engines.opa_wasm import WasmEngine, compile_wasm
from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.adapters.telemetry.prometheus import PrometheusMetrics
from vedette.domain.action import Action, Proposal, bind_proposal
from vedette.domain.decision import DecisionContext
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.memory import Briefing
from vedette.domain.origin import Ref
from vedette.domain.ports.policy_engine import PolicyEngine
from vedette.operations.evaluation import first_roots
from vedette.policy.gateway import Gateway
from vedette.policy.second_opinion import ONE_IN, SampledDecisions, SecondOpinion

AGENT, BANK, TOOL = "inbox_triage", "inbox", "mail.flag"
ROUND, WARM = 200, 100


@dataclass(frozen=True, slots=True)
class Price:
    """What one decision costs one way, in microseconds."""

    way: str
    decisions: int
    p50_us: float
    p99_us: float
    cpu_us: float

    def line(self) -> str:
        """Return it for people."""
        return (
            f"{self.way:<34} p50 {self.p50_us:6.0f} us, p99 {self.p99_us:6.0f} us, "
            f"CPU {self.cpu_us:6.0f} us"
        )


def build_question() -> tuple[Action, DecisionContext]:
    """Return an action of a shipped agent that the shipped policy permits."""
    agent, _ = shipped(AGENT, BANK, "mailbox")
    event = Event("maildir:x", "1", "mail.received", "1", None, {"text": "hello"}, vouched=ENVELOPE)
    proposal = Proposal(TOOL, {"message": Ref("/event/id"), "flag": "flagged"})
    briefing = Briefing("run_1", AGENT, "1", 1, 0, 1, event, agent.charter, REGISTRY)
    roots = first_roots(agent, briefing)
    action = bind_proposal(
        proposal, agent.tools, roots, run="run_1", turn=1, ordinal=0, confidence=1.0
    )
    return action, DecisionContext(agent, event, 1, NOW_US)


def gateway(
    engine: PolicyEngine, other: PolicyEngine | None, *, always: bool
) -> tuple[Gateway, SampledDecisions]:
    """Return a gateway with a second opinion on each permit (`always`), or on the sample only."""
    second, samples = None, SampledDecisions(PrometheusMetrics())
    if other is not None:
        grants = {} if always else {AGENT: {"inward": [TOOL], "tools": {TOOL: {"impact": "low"}}}}
        second = SecondOpinion(other, grants, PrometheusMetrics(), samples, one_in=ONE_IN)
    return Gateway(engine, 1, second_opinion=second), samples


def measure(ways: dict[str, tuple[Gateway, SampledDecisions]], rounds: int) -> list[Price]:
    """Decide in turn, `ROUND` at a time; the samples put aside are compared in their way's time."""
    action, situation = build_question()
    walls: dict[str, list[float]] = {name: [] for name in ways}
    cpu = dict.fromkeys(ways, 0.0)

    def decide(gate: Gateway) -> None:
        decided = gate.decide(action, situation)
        assert decided.decision.outcome == "permit", decided.decision

    for gate, _ in ways.values():
        for _ in range(WARM):
            decide(gate)
    for _ in range(rounds):
        for name, (gate, samples) in ways.items():
            began = time.process_time()
            for _ in range(ROUND):
                at = time.perf_counter()
                decide(gate)
                walls[name].append((time.perf_counter() - at) * 1e6)
            for second, decided in samples.pop_batch():
                second.compare(decided)
            cpu[name] += time.process_time() - began
    return [
        Price(
            name,
            len(wall),
            percentile(wall, 0.5),
            percentile(wall, 0.99),
            cpu[name] / len(wall) * 1e6,
        )
        for name, wall in ((name, sorted(wall)) for name, wall in walls.items())
    ]


def calibration() -> float:
    """Return the microseconds of CPU that 1,000 squares in Python take here now."""
    began = time.process_time()
    for _ in range(200):
        sum(number * number for number in range(1000))
    return (time.process_time() - began) / 200 * 1e6


def main() -> int:
    """Measure both directions and print."""
    parser = argparse.ArgumentParser(prog="make bench-opinion", description=__doc__)
    parser.add_argument("--rounds", type=int, default=25, help=f"of {ROUND} decisions each way")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    bundle = read_bundle(POLICIES)
    engines: dict[str, Callable[[], PolicyEngine]] = {
        "regorus": lambda: RegorusEngine(bundle),
        "OPA's Wasm": lambda: WasmEngine(bundle, compile_wasm(find_opa(), bundle)),
    }
    made = {name: make() for name, make in engines.items()}
    found = []
    for first, second in (("OPA's Wasm", "regorus"), ("regorus", "OPA's Wasm")):
        one, other = made[first], made[second]
        ways = {
            f"{first} alone": gateway(one, None, always=False),
            f"{first}, {second} on each permit": gateway(one, other, always=True),
            f"{first}, {second} on 1 in {ONE_IN}": gateway(one, other, always=False),
        }
        found.append(measure(ways, given.rounds))
    figures = {"machine": described(), "calibration_us": calibration()}
    if given.json:
        print(json.dumps({**figures, "prices": [asdict(one) for each in found for one in each]}))
        return 0
    print(figures["machine"])
    print(f"calibration: 1,000 squares in Python {figures['calibration_us']:.0f} us")
    for prices in found:
        print()
        alone = prices[0]
        for price in prices:
            more = price.cpu_us - alone.cpu_us
            print(price.line() + (f" ({more:+.0f} us)" if price is not alone else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
