"""The benches of latency, misbehaviour, stops and long ledgers measure what they say."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.bench import flat, latency, standing, stop
from tests.bench.bench_fleet import AGENT
from tests.bench.calibrate import Calibration
from tests.bench.flat import Size
from tests.bench.flat_fill import KEYS, Copy, Filler, Stencils, _state
from tests.bench.flat_fleet import open_flat_fleet
from tests.bench.flat_plot import plot
from tests.bench.latency import Through, named, put_through
from tests.bench.line import Load
from tests.bench.start import noted, running, until
from tests.bench.start_fleet import events, small_fleet
from tests.bench.target import happened, marks_file
from tests.bench.verdict import Verdict, print_verdicts
from tests.faults import test_noisy_neighbours as cases
from tests.faults.noise import Seen

from vedette.adapters.ledger_export import verify_store
from vedette.store.sqlite import SqliteReader
from vedette.testing.toy_fleet import job, send_proposal

RAW = [Calibration(50_000.0, 400.0, 900.0), Calibration(50_000.0, 600.0, 900.0)]
THROUGH = Through(1000, 2.0, 100.0, (4.0,) * 1000, 0, 0)
SIZE = Size(
    10_000, 10_000, 1000, 1000, 20.0, 3.0, 2.0, 500.0, 400.0, 2.0, 9.0, 60.0, 80.0, 0, 0,
    50_000.0, 400.0, 0.5,
)  # fmt: skip


def met(verdicts: list[Verdict]) -> list[bool]:
    return [verdict.met for verdict in verdicts]


# --- verdicts ----------------------------------------------------------------------------------


def test_a_bench_ends_with_1_if_one_promise_is_not_met(capsys: pytest.CaptureFixture[str]) -> None:
    kept, missed = Verdict("p99", 50.0, 50.0, "ms"), Verdict("p99", 50.1, 50.0, "ms")
    assert print_verdicts([kept]) == 0
    assert print_verdicts([kept, missed]) == 1
    assert capsys.readouterr().out.split("p99")[2].startswith(": 50.00 ms")
    assert "NOT MET" in missed.line()
    assert Verdict("pace", 499.0, 500.0, least=True).met is False
    assert not Verdict("nothing measured", math.nan, 1.0).met


def test_latency_is_held_against_the_syncs_of_the_moment() -> None:
    # 3 x 0.5 ms + 3 ms.
    assert all(met(latency.verdicts(THROUGH, RAW, 500.0)))
    pace, p50, p99, right = range(4)
    for number, wrong in (
        (pace, replace(THROUGH, seconds=2.1)),
        (p50, replace(THROUGH, late_ms=(4.6,) * 1000)),
        (p99, replace(THROUGH, late_ms=(4.0,) * 980 + (51.0,) * 20)),
        (right, replace(THROUGH, lost=1)),
        (right, replace(THROUGH, repeated=1)),
    ):
        assert met(latency.verdicts(wrong, RAW, 500.0)) == [each != number for each in range(4)]


def test_a_cost_that_grows_is_not_flat() -> None:
    longer = replace(SIZE, size=1_000_000, entries=1_000_000, peak_mb=150.0)
    longest = replace(longer, size=5_000_000, entries=5_000_000)
    assert all(met(flat.verdicts([SIZE, longer, longest])))
    for wrong in (
        replace(longest, cpu_us=501.0),
        replace(longest, events_per_s=399.0),
        replace(longest, peak_mb=166.0),
        replace(longest, lost=1),
    ):
        assert not all(met(flat.verdicts([SIZE, longer, wrong])))


# --- latency -----------------------------------------------------------------------------------


async def test_latency_counts_every_event_at_its_pace(tmp_path: Path) -> None:
    load = Load(events=30, rate=60.0, keys=5)
    through = await latency.measure(tmp_path, load, workers=False)
    assert (len(through.late_ms), through.lost, through.repeated) == (30, 0, 0)
    assert through.per_s < 66
    assert 0 < through.share(0.5) <= through.share(0.99)


@pytest.mark.slow
async def test_latency_with_agents_code_in_other_processes(tmp_path: Path) -> None:
    through = await latency.measure(tmp_path, Load(events=20, rate=40.0, keys=5), workers=True)
    assert (len(through.late_ms), through.lost, through.repeated) == (20, 0, 0)


# --- a long ledger -----------------------------------------------------------------------------


async def test_a_filled_ledger_is_one_that_the_line_might_have_written(tmp_path: Path) -> None:
    load = Load(events=8, in_flight=8, keys=4)
    async with open_flat_fleet(tmp_path, 4) as fleet:
        filler = await Filler.of(fleet, 4)
        began = fleet.app.store.ledger.last_seq()
        await filler.waiting(9)
        await filler.entries(began + 200)
        assert filler.filled("waiting") == 9
        ended = fleet.app.store.ledger.last_seq()
        assert began + 200 <= ended < began + 200 + 8
        kinds = _kinds(fleet, filler._done.event.key)
        assert kinds == _kinds(fleet, _filled(filler, 3).event.key)
        assert {"event.accepted", "action.decided", "effect.done", "run.closed"} <= set(kinds)
        for _, raw, _, body in fleet.app.store.ledger.walk(after=began):
            assert b"thepattern" not in raw + (body or b"")
    # The proof tree, the chains of causes, the typed columns and the bodies' digests.
    store, state = SqliteReader(tmp_path / "state"), tmp_path / "state"
    report = verify_store(
        store.ledger, (state / "ledger.pub").read_text().strip(), state / "witness.log"
    )
    store.close()
    assert report.findings == ()
    assert report.size >= ended
    # And the line goes on from it: a judge takes up a state that was filled in.
    async with open_flat_fleet(tmp_path, 4) as fleet:
        await fleet.wait_until_idle()
        assert flat._waiting(fleet) == 10
        through = await put_through(fleet, marks_file(tmp_path), named("new-", load), load)
        assert (through.events, through.lost, through.repeated) == (8, 0, 0)
        assert fleet.app.store.tables.counts()[AGENT].get("run.dead") is None
        repeat = await Filler.of(fleet, 4)
        await repeat.waiting(9)
        assert repeat.filled("waiting") == 9


def _filled(filler: Filler, number: int) -> Copy:
    names = (AGENT, f"fill-{number}", "gauge")
    return Copy(filler._done, Stencils(filler._done), filler._store, *names)


def _kinds(fleet: Any, event: str) -> list[str]:
    found = fleet.app.store.ledger.entries("event", event)
    return [json.loads(raw)["kind"] for _, raw, _ in found]


def test_a_filled_judge_has_its_checkpoints() -> None:
    due = [number for number in range(0, 600 * KEYS, KEYS) if _state(number) is not None]
    assert [number // KEYS + 1 for number in due] == [256, 512]
    assert json.loads(_state(due[0]) or b"")[0] == 256


@pytest.mark.slow
def test_a_soak_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = [
        str(tmp_path / "soak"), "--agents", "5", "--waiting", "20", "--events", "40", "--keys", "5",
        "--plot", str(tmp_path / "flat.svg"),
    ]  # fmt: skip
    flat.main([*order, "--sizes", "200"])
    flat.main([*order, "--sizes", "200", "2000"])
    kept = [Size(**each) for each in json.loads((tmp_path / "soak" / "flat.json").read_text())]
    assert [each.size for each in kept] == [200, 2000]
    for each in kept:
        assert each.size <= each.entries < each.size + 300
        assert each.waiting >= 20
        assert (each.lost, each.repeated) == (0, 0)
        assert each.peak_mb >= each.opened_mb > 10
        assert each.events_per_s > 0
    first, repeated = happened(marks_file(tmp_path / "soak"))
    assert repeated == 0
    assert len(first) > 2 * flat.ROUNDS * 20
    monkeypatch.setattr(flat, "fill", lambda plan, size: pytest.fail("filled again"))
    flat.main([*order, "--sizes", "200", "2000"])
    with pytest.raises(SystemExit, match="beyond"):
        flat.main([*order, "--sizes", "100"])


def test_the_plot_shows_every_size() -> None:
    sizes = [{"entries": 10 ** (4 + at), "waiting": 9, "agents": 5, "events_per_s": 400.0 + at,
              "cpu_us": 300.0, "peak_mb": 80.0} for at in range(3)]  # fmt: skip
    drawn = ElementTree.fromstring(plot(sizes, "2 cores <&>"))
    texts = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"10,000", "100,000", "1,000,000", "400", "401", "402", "2 cores <&>"} <= set(texts)
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}circle"))) == 9


# --- misbehaviour ------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_others_are_measured_beside_a_storm(tmp_path: Path) -> None:
    found = await standing.beside(tmp_path / "storm", "storm", {"seconds": 1.0, "per_second": 20.0})
    assert len(found.quiet) == len(found.noisy) == 20
    assert (found.lost, found.repeated) == (0, 0)
    assert not found.note.startswith("0 ")
    twice = replace(found, quiet=[1.0] * 20, noisy=[2.1] * 20, repeated=1)
    assert met(standing.verdicts("storm", twice)) == [False, False]


async def test_an_effect_that_is_missing_or_repeated_is_seen(tmp_path: Path) -> None:
    world = Seen()
    async with cases.fleet_of(tmp_path, world) as fleet:
        await fleet.send(job("quiet 0", send_proposal("quiet 0"), agent="alpha"))
        await fleet.wait_until_idle()
        assert standing.accounted(fleet, world, 1) == (0, 0)
        assert standing.accounted(fleet, world, 2) == (1, 0)
        world.record.append(world.record[0])
        assert standing.accounted(fleet, world, 1) == (0, 1)


@pytest.mark.slow
async def test_a_disturbance_that_does_nothing_is_no_measurement(tmp_path: Path) -> None:
    pace = {"seconds": standing.LIMIT_S, "per_second": 8.0}
    with pytest.raises(AssertionError, match="idle did nothing"):
        await standing.beside(tmp_path / "idle", "idle", pace)


# --- stops -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_stops_are_measured_on_a_running_fleet(tmp_path: Path) -> None:
    found = stop.measure(tmp_path, stops=2, typed=1, rate=60.0)
    assert (len(found.took_ms), len(found.typed_ms), len(found.between)) == (2, 1, 3)
    assert (found.late, found.after_restart, found.lost) == (0, 0, 0)
    assert min(found.took_ms) > 0
    kept = replace(found, per_s=60.0, took_ms=[999.0], typed_ms=[999.0], between=[1])
    assert all(met(stop.verdicts(kept, 60.0)))
    for wrong in (
        replace(kept, per_s=50.0),
        replace(kept, took_ms=[1001.0]),
        replace(kept, typed_ms=[1001.0]),
        replace(kept, between=[0]),
        replace(kept, late=1),
        replace(kept, after_restart=1),
        replace(kept, lost=1),
    ):
        assert met(stop.verdicts(wrong, 60.0)).count(False) == 1


class Deaf:
    """Who says that all is stopped, and stops nothing."""

    def send_command(self, verb: str, reason: str, args: Any) -> dict[str, Any]:
        return {"took_us": 1}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_control_calls_after_a_stop_that_stops_nothing_are_seen(tmp_path: Path) -> None:
    fleet = small_fleet(tmp_path, events(4000))
    fleet.config.write_text(fleet.config.read_text().replace("rate = 0\n", "rate = 100\n"))
    deaf: Any = Deaf()
    with running(fleet.config) as (process, _):
        until(lambda: noted(fleet.record), process)
        seen = [stop.one_stop(fleet, deaf, typed=False) for _ in range(5)]
    assert sum(one.late for one in seen) > 0
    assert sum(one.between for one in seen) > 0
