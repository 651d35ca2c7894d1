"""The benches measure what they say: every effect is counted, and a missing one is seen."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.bench.bench_fleet import AGENT, readings, write_content
from tests.bench.calibrate import calibrate
from tests.bench.databases import Database, find_server, following, fresh, store_plan
from tests.bench.line import Load, Offer, bench, check_all_done, main, measure, open_bench_fleet
from tests.bench.machine import CpuTimes
from tests.bench.matrix import make_cells, run_matrix
from tests.bench.peers.__main__ import BARS, OURS, PEER_SWEEP, Bench, ratios, verdicts
from tests.bench.peers.environment import LOCK
from tests.bench.peers.rounds import PEERS, Peer, Round, _round, best, mean, peer_round
from tests.bench.peers.work import KEYS, Options, Work, drive_tasks, events, warm
from tests.bench.profiles import Samples, sampling
from tests.bench.target import Target, happened
from tests.pg import server
from tests.segments import read_entries
from tests.unit.test_lock import pins, places

from vedette.testing.harness import checkout

EVENTS = 200


async def test_the_line_bench_counts_every_effect(tmp_path: Path) -> None:
    load = Load(events=EVENTS, in_flight=64, batch=256, keys=20, isolated=False)
    measured = await measure(tmp_path, load)
    assert (measured.effects, measured.lost, measured.repeated) == (EVENTS, 0, 0)
    assert measured.events_per_s > 0
    assert 0 < measured.p50_ms <= measured.p99_ms
    # What was committed went through groups, and left a record of what was decided.
    assert measured.groups > 0
    assert measured.entries_per_event >= 3
    document = json.loads(measured.json())
    assert document["load"]["store"] == "sqlite"
    assert f"{EVENTS:,} by the target's record, 0 lost" in measured.report()


async def test_agents_code_is_measured_in_processes_of_its_own(tmp_path: Path) -> None:
    """As `vedette run` has it: what they cost is counted, in their own line."""
    # Enough to be seen: the system counts a child's CPU in hundredths of a second.
    measured = await measure(tmp_path, Load(events=600, in_flight=64, keys=20))
    assert measured.cpu_threads_us["child processes"] > 0
    assert "agents' code in processes of its own" in measured.report()


async def test_a_quiet_load_acts_only_where_a_reading_lies_far_off(tmp_path: Path) -> None:
    load = Load(events=EVENTS, in_flight=64, keys=10, kind="quiet", isolated=False)
    measured = await measure(tmp_path, load)
    assert 0 < measured.acting < EVENTS / 10
    assert (measured.effects, measured.lost) == (measured.acting, 0)


async def test_a_load_of_texts_is_briefed_by_each(tmp_path: Path) -> None:
    load = Load(events=40, in_flight=8, keys=5, kind="text", isolated=False)
    texts = {event.data["text"] for event in readings(40, kind="text")}
    assert len(texts) == 40
    assert {len(text.split()) for text in texts} == {60}
    measured = await measure(tmp_path, load)
    assert (measured.acting, measured.effects) == (40, 40)


def test_the_matrix_measures_each_cell_in_turn() -> None:
    names = [cell.name for cell in make_cells()]
    assert len(names) == len(set(names)) == 12
    assert names[0] == "acting, isolated, sqlite"
    head, row = run_matrix(20, 1, "quiet process sqlite")
    assert "us CPU/event" in head
    assert row.startswith("quiet, in process, sqlite")
    assert float(row.split()[4].replace(",", "")) > 0


async def test_a_paced_load_keeps_its_pace(tmp_path: Path) -> None:
    measured = await measure(tmp_path, Load(events=40, rate=100.0, keys=10, tool="thread"))
    assert measured.effects == 40
    assert measured.events_per_s <= 110


async def test_the_line_bench_runs_on_a_postgresql_that_syncs(tmp_path: Path) -> None:
    load = Load(events=EVENTS, in_flight=64, keys=20, store="postgresql", isolated=False)
    with fresh(server()) as database:
        measured = await measure(tmp_path, load, database=database)
        with psycopg.connect(database.url) as looking:
            sealed = len(read_entries(looking))
    assert (measured.effects, measured.lost, measured.repeated) == (EVENTS, 0, 0)
    # It was this database that the fleet wrote to, and its server's CPU is told by itself.
    assert sealed >= 3 * EVENTS
    assert measured.server_us > 0
    assert "child processes" not in measured.cpu_threads_us
    assert " in the server" in measured.report()
    # The round's database is gone, and the password with it is in no result.
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(database.url)
    assert server().password not in measured.json()


async def test_no_trouble_in_following_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[Callable[[str], None]] = []

    async def follow(*given: Any) -> None:
        reports.append(given[-1])

    monkeypatch.setattr("tests.bench.databases.follow_cluster", follow)
    with fresh(server()) as database:
        async with open_bench_fleet(tmp_path, Load(store="postgresql"), database) as fleet:
            async with following(fleet.app):
                pass
            troubled = following(fleet.app)
            await troubled.__aenter__()
            await asyncio.sleep(0)
            reports[-1]("cannot take up what another published")
            with pytest.raises(AssertionError, match="what another published"):
                await troubled.__aexit__(None, None, None)


def test_a_server_that_does_not_sync_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="fsync"):
        store_plan(tmp_path, Database(server(fsync=False).fresh()))


def test_one_database_serves_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    for more in (["--repeat", "2", "--store", "postgresql"], ["--store", "sqlite"]):
        with pytest.raises(SystemExit):
            main(["--url", "postgresql://nowhere/none", *more])
        assert "one empty database" in capsys.readouterr().err


def test_without_postgresql_the_bench_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.pg.server", lambda: pytest.skip("not here"))
    assert find_server() is None
    with pytest.raises(SystemExit, match="PostgreSQL is not here"):
        open_bench_fleet(tmp_path, Load(store="postgresql"))


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
        await fleet.wait_until_idle()
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
        await fleet.wait_until_idle()
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
    figures = {"events": 10, "events_per_s": 99.0, "cpu_us": 1.0, "p50_ms": 1.0, "p99_ms": 1.0}
    lost = _round("peer", "a", 1, {**figures, "effects": 9, "repeated": 0})
    twice = _round("peer", "b", 1, {**figures, "effects": 10, "repeated": 1})
    slow = _round("peer", "c", 1, {**figures, "effects": 10, "repeated": 0, "events_per_s": 1})
    assert lost.wrong == "1 effects missing, 0 repeated"
    assert twice.wrong == "0 effects missing, 1 repeated"
    assert best([lost, slow, twice]) == slow
    assert best([lost, twice]) is None
    fast = replace(slow, events_per_s=3.0)
    assert mean(slow, fast) == replace(slow, events_per_s=2.0)
    assert mean(slow, lost) == mean(lost, slow) == slow
    assert mean(lost, twice).wrong


def test_the_database_server_counts_in_the_mean() -> None:
    one = Round("a", "line", 1, events_per_s=1.0, cpu_us=2.0, server_us=10.0)
    other = replace(one, server_us=30.0)
    assert mean(one, other).server_us == 20.0
    assert mean(one, other).all_us == 22.0


def test_like_stands_beside_like_first_and_promises_are_held_against_sqlite() -> None:
    speeds = {OURS[0]: 1000.0, "DBOS on PostgreSQL": 50.0, OURS[1]: 3000.0}
    speeds |= {"DBOS on PostgreSQL, lean": 200.0}
    speeds |= {peer.name: 60.0 for peer in PEERS if not peer.postgres}
    bests = {
        name: Round(name, "line", 16, 100, events_per_s=speed, cpu_us=10.0)
        for name, speed in speeds.items()
    }
    lines = ratios(bests, []).splitlines()
    assert lines[0].startswith("vedette on PostgreSQL, best: 1,000")
    assert lines[1].split()[:5] == ["20.0", "x", "DBOS", "on", "PostgreSQL"]
    start = lines.index(next(line for line in lines if line.startswith(OURS[1])))
    assert lines[start + 1].split()[:5] == ["50.0", "x", "DBOS", "on", "SQLite"]
    assert {each.value for each in verdicts(bests)} == {60.0, 50.0, 15.0}
    assert all(each.met for each in verdicts(bests))
    # A slower line keeps no promise, and neither does one that nothing was measured beside.
    slow = bests | {OURS[1]: replace(bests[OURS[1]], events_per_s=1400.0)}
    assert [each.met for each in verdicts(slow)] == [False, False, False, True]
    assert [each.met for each in verdicts({OURS[1]: bests[OURS[1]]})] == [False] * len(BARS)
    assert set(BARS) <= {peer.name for peer in PEERS}


@pytest.mark.parametrize(
    ("fastest", "tried"), [(16, [1, 16, 64]), (64, [1, 16, 64, 128]), (999, [1, 16, 64, 128, 256])]
)
def test_a_peer_is_driven_on_for_as_long_as_that_makes_it_faster(
    monkeypatch: pytest.MonkeyPatch, fastest: int, tried: list[int]
) -> None:
    def measured(peer: Peer, variant: str, concurrency: int, events: int, *more: object) -> Round:
        assert events >= max(40, 4 * concurrency)
        speed = float(-abs(fastest - concurrency))
        return Round(peer.name, variant, concurrency, events, events_per_s=speed)

    monkeypatch.setattr("tests.bench.peers.__main__.peer_round", measured)
    monkeypatch.setattr("tests.bench.peers.__main__.python", lambda: Path(sys.executable))
    options = Namespace(quick=False, events=40, sweep=PEER_SWEEP)
    peer = next(peer for peer in PEERS if not peer.postgres)
    bench = Bench(options)
    found = bench.peer(peer)
    assert [each.concurrency for each in bench.rounds if each.variant == "tasks"] == tried
    assert found is not None
    assert found.concurrency == min(fastest, 256)


def test_a_peer_that_breaks_off_is_told_with_the_pace_of_the_machine() -> None:
    found = peer_round(replace(PEERS[0], module="nothing"), "threads", 1, 1, Path(sys.executable))
    assert "No module named" in found.wrong
    assert found.spin_ns > 0


async def test_peers_are_warm_at_the_concurrency_that_is_timed(tmp_path: Path) -> None:
    given = Options(tmp_path, "tasks", 12, 30, "", 0)
    concurrent, most, seen = 0, 0, []

    async def handle(event: dict[str, Any]) -> None:
        nonlocal concurrent, most
        seen.append(event["id"])
        concurrent += 1
        if event["id"].startswith("w"):
            most = max(most, concurrent)
        await asyncio.sleep(0)
        concurrent -= 1

    clock = await drive_tasks(given, handle)
    assert most == 12
    assert list(clock.began) == [f"r{number}" for number in range(30)]
    # Every one that is not timed is done before the first that is.
    assert [name[0] for name in seen] == ["w"] * warm(given) + ["r"] * 30


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
