"""A fleet with [models], as it is shipped: agents' code and models in boxed workers."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.model_entries import ask_entry, make_plan
from tests.workers import until

from vedette.domain.event import Event
from vedette.engine.scheduler.failure_policy import ATTEMPTS
from vedette.testing.harness import FleetHarness
from vedette.testing.model_server import (
    FunctionCall,
    ModelServer,
    RawAnswer,
    Request,
    Turn,
)
from vedette.testing.toy_fleet import World, drop_bars, job, note_proposal, toy_fleet

KEYS = {"worker": "sk-shown-to-nobody-0123456789", "other": "sk-of-the-other-987654321"}
EVENTS, IN_FLIGHT = 20, 3


def take_note(request: Request) -> Turn:
    """Write a row by a tool, then say that it is done; slowly enough for calls to meet."""
    time.sleep(0.05)
    if request.turn:
        return Turn(("Done.",))
    call = FunctionCall("note_add", {"key": "ref:/event/subject", "text": "seen"})
    return Turn((call,))


def fleet_of(folder: Path, server: ModelServer, in_flight: int = IN_FLIGHT) -> FleetHarness:
    """Return a fleet of two agents that models reason for, by a key each, and one with a judge."""
    fleet = toy_fleet(
        folder, World(), agents=("worker", "other", "judge"), workers=True, extra=drop_bars(*KEYS)
    )
    for name, key in KEYS.items():
        plan = make_plan(folder, server, name=f"of-{name}", key=key, calls_in_flight=in_flight)
        ask_entry(fleet, plan, name)
    return fleet


def memory_holds(pid: int, words: bytes) -> bool:
    """Say whether the memory that a process may write holds some words."""
    process = Path(f"/proc/{pid}")
    with (process / "maps").open() as maps, (process / "mem").open("rb") as memory:
        for line in maps:
            span, rights, *_ = line.split()
            if rights.startswith("rw"):
                begin, end = (int(at, 16) for at in span.split("-"))
                memory.seek(begin)
                try:
                    if words in memory.read(end - begin):
                        return True
                except (OSError, ValueError):
                    continue  # what the kernel keeps there
    return False


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def spent_calls(fleet: FleetHarness) -> int:
    found = fleet.app.store.spend.by_minute(0)
    return sum(amount for _, unit, _, amount in found if unit == "model_calls")


def has_work(fleet: FleetHarness, event: Event) -> bool:
    return bool(fleet.runs(event)) and fleet.runs(event)[0].state not in ("done", "dead")


async def test_a_fleet_asks_its_model_from_a_worker_and_every_event_is_done(tmp_path: Path) -> None:
    """Strict Gemini: each signature back. A key is in its worker and in no other process."""
    with ModelServer(take_note, keys=KEYS.values()) as server:
        fleet = fleet_of(tmp_path, server)
        own = [job(f"e{n}", key=f"k{n}") for n in range(EVENTS)]
        events = [*own, job("o", agent="other"), job("j", note_proposal("x"), agent="judge")]
        async with fleet:
            await fleet.send(*own)
            await until(lambda: not any(has_work(fleet, one) for one in own), 120)
            assert 1 < server.max_calls_in_flight <= IN_FLIGHT
            await fleet.send(*events[EVENTS:])
            await until(lambda: not any(has_work(fleet, one) for one in events), 60)
            runs = [run for one in events for run in fleet.runs(one)]
            assert [run.state for run in runs] == ["done"] * len(events)
            rows = [fleet.app.store.runs.row("worker_notes", f"k{n}") for n in range(EVENTS)]
            assert rows == [{"texts": ["seen"]}] * EVENTS
            assert spent_calls(fleet) == len(server.exchanges) == 2 * (EVENTS + 1)
            pool, models = fleet.app.pool, fleet.app.model_pool
            assert pool is not None
            assert models is not None
            code = [*pool.worker_pids.values()]
            assert {kind for _, kind in pool.worker_pids} == {"judge", "hands"}
            asking = {name: models.worker_pids[name, "model"] for name in KEYS}
            forkers = [parent_of(asking["worker"]), parent_of(code[0])]
            if sys.platform == "linux":
                for name, key in KEYS.items():
                    others = {*code, *forkers, *asking.values()} - {asking[name]}
                    assert memory_holds(asking[name], key.encode()), "the control"
                    assert not any(memory_holds(pid, key.encode()) for pid in others)
            assert fleet.app.services.run_journal is None
        assert {exchange.status for exchange in server.exchanges} == {200}
        written = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
        assert not any(key.encode() in one.read_bytes() for one in written for key in KEYS.values())


async def test_a_turn_that_always_ends_its_worker_is_a_dead_letter_and_none_of_it_is_free(
    tmp_path: Path,
) -> None:
    """Each lost call is an attempt and costs a call; then the model's one place is free again."""
    with ModelServer(take_note, keys=KEYS.values()) as server:
        fleet = fleet_of(tmp_path, server, in_flight=1)
        text = fleet.content / "agents" / "worker" / "agent.yaml"
        text.write_text(text.read_text() + "limits: {memory: 128MiB}\n")
        server.add_fault(RawAnswer(b'{"x":"' + b"x" * 100_000_000))
        async with fleet:
            bad, good = job("bad"), job("good", key="other")
            await fleet.send(bad)
            await until(lambda: bool(fleet.runs(bad)) and fleet.runs(bad)[0].state == "dead", 120)
            lost = len(server.exchanges)
            (run,) = fleet.runs(bad)
            assert fleet.app.store.spend.of_run(run.id)["model_calls"] == lost == ATTEMPTS
            server.end_faults()
            await fleet.send(good)
            await until(lambda: bool(fleet.runs(good)) and not has_work(fleet, good), 60)
            assert fleet.runs(good)[0].state == "done"
            assert spent_calls(fleet) == len(server.exchanges) == lost + 2
