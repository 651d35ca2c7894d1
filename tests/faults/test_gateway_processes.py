"""A gateway and its workers as processes: killed in mid-stream, and looked into."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.gateway_processes import (
    AGENTS,
    GatewayProcesses,
    environment_of,
    family,
    memory_of,
    wrong_with,
)
from tests.remote import now_us

from vedette.adapters.identity.spiffe import Signer
from vedette.domain.event import Event

EVENTS, LATE = 400, 40


@pytest.fixture
def seeds(tmp_path: Path) -> dict[str, str]:
    """Secrets of the gateway: two of its environment, one of them a target's, and one in a file."""
    made = {name: f"seed-{secrets.token_hex(16)}" for name in ("target", "password", "file")}
    (tmp_path / "secret.txt").write_text(made["file"])
    return made


@pytest.fixture
def fleet(tmp_path: Path, seeds: dict[str, str]) -> Iterator[GatewayProcesses]:
    env = {"SEED_TARGET": seeds["target"], "DATABASE_PASSWORD": seeds["password"]}
    made = GatewayProcesses(tmp_path, EVENTS, LATE, env)
    made.lay_out('token_env = "SEED_TARGET"\nhook_file = "secret.txt"')
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.timeout(180)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_and_gateway_killed_in_mid_stream_and_looked_into(
    fleet: GatewayProcesses, seeds: dict[str, str]
) -> None:
    """0 lost, 0 doubled; judges' states are taken up again; a worker holds its own key only."""
    fleet.start_gateway()
    for agent in AGENTS:
        fleet.start_worker(agent)

    def grown(by: int) -> None:
        least = len(fleet.calls()) + by
        fleet.until(lambda: len(fleet.calls()) >= least)

    grown(40)
    fleet.kill(fleet.workers["worker"])
    grown(20)  # the other goes on, and the gateway too
    fleet.start_worker("worker")
    grown(60)
    fleet.kill(fleet.gateway)
    fleet.start_gateway()
    grown(60)
    fleet.kill(fleet.gateway)
    fleet.kill(fleet.workers["other"])
    fleet.start_worker("other")
    fleet.hand_in_late()  # else all may be judged by now, and only calls be left
    fleet.start_gateway()
    fleet.until(fleet.settled, 90)
    assert wrong_with(fleet.calls(), EVENTS) == []
    assert labels(fleet) == expected()
    look_into(fleet, seeds)
    stolen_identity(fleet)


def look_into(fleet: GatewayProcesses, seeds: dict[str, str]) -> None:
    """Scan memory and environment of all processes; the controls say that it can find them."""
    own = {agent: json.loads((fleet.folder / f"{agent}.id").read_text()) for agent in AGENTS}
    needles = {**seeds, **{agent: value["key"]["d"] for agent, value in own.items()}}
    assert fleet.gateway is not None
    there = frozenset({"target", "password"})
    assert environment_of(fleet.gateway.pid, needles) == there
    assert memory_of(fleet.gateway.pid, needles, there) >= there
    for agent in AGENTS:
        host, *children = family(fleet.workers[agent].pid)
        assert len(children) == 2, "the fork server and the judge"
        # It reads its key for each token; the name of that file shows that the scan can see.
        place = {"place": str(fleet.folder / f"{agent}.id")}
        held = memory_of(host, {**needles, **place})
        assert {"place"} <= held <= {"place", agent}, "its own identity and nothing else"
        for child in children:
            assert memory_of(child, needles) == set(), "the judge's process holds not even that"
        for pid in (host, *children):
            assert environment_of(pid, needles) == set()
    # What a gateway forks, as far as it holds: hands were given the secrets of their calls.
    for pid in family(fleet.gateway.pid)[1:]:
        assert memory_of(pid, needles) <= {"target", "file"}
        assert environment_of(pid, needles) == set()


def labels(fleet: GatewayProcesses) -> dict[str, list[str]]:
    """Return by agent and key what its judge said, in order."""
    found: dict[str, list[str]] = {}
    numbers = {Event("test", f"e{n}", "job").key: n for n in range(EVENTS)}
    for entry in fleet.entries("run.closed", "turn.reasoned"):
        if "label" in entry:
            at = f"{entry['agent']} k{numbers[entry['event']] % 8}"
            found.setdefault(at, []).append(entry["label"])
    return found


def expected() -> dict[str, list[str]]:
    """Return what an undisturbed judge says: the sum and the number of all before and this."""
    found: dict[str, list[str]] = {}
    sums: dict[str, int] = {}
    for number in range(EVENTS):
        at = f"{AGENTS[number % 2]} k{number % 8}"
        sums[at] = sums.get(at, 0) + number
        found.setdefault(at, []).append(f"sum {sums[at]} of {len(found[at]) + 1}")
    return found


def stolen_identity(fleet: GatewayProcesses) -> None:
    """A token of one agent is denied for the other, and the ledger says so, without the token."""
    from tests.remote import connect_as

    token = Signer.from_file(fleet.folder / "worker.id").mint(now_us())
    assert connect_as(fleet.state / "workers.sock", "other", token) == 401
    fleet.until(lambda: bool(fleet.entries("identity.refused")))
    (entry,) = [e for e in fleet.entries("identity.refused") if e["what"] == "wrong-subject"]
    assert (entry["agent"], entry["tries"]) == ("other", 1)
    assert fleet.gateway is not None
    with fleet.store() as store:
        assert store is not None
        held = [raw + (data or b"") for _, raw, _, data in store.ledger.walk(("identity.refused",))]
    assert held
    assert not any(
        token.encode() in one or token.rpartition(".")[2].encode() in one for one in held
    )


def test_what_is_lost_and_what_is_doubled_would_be_found() -> None:
    """Negative control of the one above."""
    calls = [{"key": f"a{n}", "text": f"t{n}", "effect": True} for n in range(4)]
    assert wrong_with(calls, 4) == []
    assert wrong_with(calls[1:], 4) == ["lost: t0"]
    assert wrong_with([*calls, calls[0]], 4) == ["doubled: t0", "key twice: a0"]
    assert wrong_with([*calls, {**calls[0], "effect": False}], 4) == []
