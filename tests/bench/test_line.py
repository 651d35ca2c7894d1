"""The benches measure what they say: every effect is counted, and a missing one is seen."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench.bench_fleet import AGENT, readings, write_content
from tests.bench.calibrate import calibrate
from tests.bench.line import Load, Offer, bench, check_all_done, measure, open_bench_fleet
from tests.bench.machine import CpuTimes
from tests.bench.peers.environment import LOCK
from tests.bench.peers.rounds import _round, best, mean
from tests.bench.peers.work import KEYS, Work, events
from tests.bench.profiles import Samples, sampling
from tests.bench.target import Target, happened
from tests.unit.test_lock import pins, places

from vedette.testing.harness import checkout

EVENTS = 200


async def test_the_line_bench_counts_every_effect(tmp_path: Path) -> None:
    measured = await measure(tmp_path, Load(events=EVENTS, in_flight=64, batch=256, keys=20))
    assert (measured.effects, measured.lost, measured.repeated) == (EVENTS, 0, 0)
    assert measured.events_per_s > 0
    assert 0 < measured.p50_ms <= measured.p99_ms
    # What was committed went through groups, and left a record of what was decided.
    assert measured.groups > 0
    assert measured.entries_per_event >= 3
    told = json.loads(measured.json())
    assert told["load"]["store"] == "sqlite"
    assert f"{EVENTS:,} by the target's record, 0 lost" in measured.report()


async def test_a_paced_load_keeps_its_pace(tmp_path: Path) -> None:
    measured = await measure(tmp_path, Load(events=40, rate=100.0, keys=10, tool="thread"))
    assert measured.effects == 40
    assert measured.events_per_s <= 110


async def test_calls_of_both_threads_can_be_counted(tmp_path: Path) -> None:
    measured = await measure(tmp_path, Load(events=20, keys=10), "calls")
    assert "--- event loop (cProfile)" in measured.told
    assert "execute" in measured.told.partition("--- writer")[2]


async def test_the_bench_says_so_when_an_event_brings_no_effect(tmp_path: Path) -> None:
    fleet = open_bench_fleet(tmp_path, Load(events=4))
    grants = tmp_path / "content" / "policies" / "grants" / "data.yaml"
    text = grants.read_text(encoding="utf-8")
    assert "mark.write" in text
    grants.write_text(text.replace("mark.write", "mark.other"), encoding="utf-8")
    async with fleet:
        await fleet.app.intake.accept(list(readings(4)))
        await fleet.settle()
        with pytest.raises(AssertionError, match=r"decided\.deny"):
            check_all_done(fleet, 4)


async def test_a_dead_run_is_told_with_its_reason(tmp_path: Path) -> None:
    fleet = open_bench_fleet(tmp_path, Load(events=1))
    judge = tmp_path / "content" / "agents" / AGENT / "judge.py"
    judge.write_text(
        judge.read_text().replace("mark = ", "raise RuntimeError('broken')\n        mark = ")
    )
    async with fleet:
        await fleet.app.intake.accept(list(readings(1)))
        await fleet.settle()
        with pytest.raises(AssertionError, match="broken"):
            check_all_done(fleet, 1)


async def test_a_line_that_stands_still_is_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.bench.line.STALLED_S", 0.2)
    load = Load(events=1)
    async with open_bench_fleet(tmp_path, load) as fleet:
        await fleet.app.dispatcher.close()
        with pytest.raises(AssertionError, match="0 of 1 runs done"):
            await Offer(fleet.app, load).all(list(readings(1)))


def test_the_bench_fleet_runs_under_the_shipped_rules(tmp_path: Path) -> None:
    write_content(tmp_path)
    shipped = checkout() / "policies"
    rules = {path.relative_to(shipped): path.read_bytes() for path in shipped.rglob("*.rego")}
    written = tmp_path / "policies"
    assert rules
    assert rules == {
        path.relative_to(written): path.read_bytes() for path in written.rglob("*.rego")
    }


# --- target, calibration, clocks ---------------------------------------------------------------


def test_the_target_does_a_key_once_and_its_record_shows_a_repeat(tmp_path: Path) -> None:
    path = tmp_path / "marks.log"
    target = Target(str(path))
    assert target.append("a")
    assert not target.append("a")
    assert happened(path)[1] == 0
    # Somebody who does not know the key: the record has it twice, and says so.
    assert Target(str(path)).append("a")
    first, repeated = happened(path)
    assert list(first) == ["a"]
    assert first["a"] <= time.monotonic_ns()
    assert repeated == 1


def test_the_calibration_leaves_nothing_behind(tmp_path: Path) -> None:
    found = asyncio.run(calibrate(tmp_path, in_flight=8, seconds=0.05))
    assert found.per_s > 0
    assert 0 < found.sync_p50_us <= found.sync_p99_us
    assert list(tmp_path.iterdir()) == []


def test_cpu_is_told_by_thread() -> None:
    before = CpuTimes.now()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    spent = CpuTimes.now().since(before)
    assert 0.05 <= spent.process < 5
    assert spent.total >= spent.process
    if spent.threads:
        assert max(spent.threads, key=lambda name: spent.threads[name]) == "MainThread"


def test_samples_fall_where_the_time_goes() -> None:
    samples = Samples()

    def here() -> None:
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            pass

    with sampling(samples):
        here()
    assert samples.taken >= 10
    assert "here" in samples.itself.most_common(1)[0][0]
    assert "here" in samples.table()


def test_a_bench_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    measured = asyncio.run(bench(Load(events=10, keys=5), raw=False))
    assert measured.effects == 10
    assert list(tmp_path.iterdir()) == []


# --- peers -------------------------------------------------------------------------------------


def test_the_peers_do_the_same_three_steps(tmp_path: Path) -> None:
    work = Work(tmp_path)
    for event in events(3):
        assert 900 <= len(json.dumps(event)) <= 1100
        assert work.judge(event, work.recall(event)) == "within"
        assert work.act(event["id"])
    over = {**events(1)[0], "value": 40.0}
    assert work.judge(over, work.recall(over)) == "over"
    assert happened(work.marks)[0].keys() == {"r0", "r1", "r2"}
    assert len({event["series"] for event in events(KEYS + 5)}) == KEYS


def test_a_round_with_a_missing_or_repeated_effect_does_not_count() -> None:
    told = {"events": 10, "events_per_s": 99.0, "cpu_us": 1.0, "p50_ms": 1.0, "p99_ms": 1.0}
    lost = _round("peer", "a", 1, {**told, "effects": 9, "repeated": 0})
    twice = _round("peer", "b", 1, {**told, "effects": 10, "repeated": 1})
    slow = _round("peer", "c", 1, {**told, "effects": 10, "repeated": 0, "events_per_s": 1})
    assert lost.wrong == "1 effects missing, 0 repeated"
    assert twice.wrong == "0 effects missing, 1 repeated"
    assert best([lost, slow, twice]) == slow
    assert best([lost, twice]) is None
    fast = replace(slow, events_per_s=3.0)
    assert mean(slow, fast) == replace(slow, events_per_s=2.0)
    assert mean(slow, lost) == mean(lost, slow) == slow
    assert mean(lost, twice).wrong


def test_the_peers_lock_pins_by_hash_and_names_no_place() -> None:
    text = LOCK.read_text(encoding="utf-8")
    assert {"dbos", "langgraph", "langgraph-checkpoint-sqlite", "google-adk"} <= set(pins(text))
    assert places(text) == []


def test_the_product_imports_no_peer() -> None:
    sources = list((checkout() / "src").rglob("*.py"))
    assert sources
    for path in sources:
        text = path.read_text(encoding="utf-8").lower()
        assert "import dbos" not in text
        assert "langgraph" not in text
