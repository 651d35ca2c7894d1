"""NAB's rules, and the report over a small folder in its layout."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tools.eval_real import four_views, nab
from tools.eval_real.nab_score import (
    Alarm,
    Costs,
    Judged,
    Series,
    best_threshold,
    by_folder,
    columns,
    interval,
    read,
    ring,
)

from vedette.domain.base.errors import BadCommand
from vedette.judging.rank_anomaly import PAUSE, WARM_UP, Ranks
from vedette.judging.series import generate

COSTS = {
    "standard": Costs(1.0, 1.0, 0.11),
    "reward_low_FP_rate": Costs(1.0, 1.0, 0.22),
    "reward_low_FN_rate": Costs(1.0, 2.0, 0.11),
}


def series(name: str = "a/s.csv", windows: tuple[tuple[int, int], ...] = ()) -> Series:
    return Series(name, (0.0,) * 4000, ("",) * 4000, windows)


def test_silence_is_0_and_the_first_row_of_every_window_100() -> None:
    one = series(windows=((1000, 1400), (3000, 3400)))
    assert columns([ring(one, [])], COSTS) == (0.0, 0.0, 0.0)
    perfect = columns([ring(one, [1000, 3000])], COSTS)
    assert all(abs(score - 100.0) < 0.1 for score in perfect)
    last_scores = columns([ring(one, [1390, 3390])], COSTS)
    assert last_scores[0] < 70.0
    noisy = columns([ring(one, [1000, 3000, *range(700, 720)])], COSTS)
    assert noisy[1] < noisy[0] < perfect[0]
    assert columns([ring(one, [1000, 700])], COSTS)[0] == pytest.approx(47.25, abs=0.1)
    assert columns([ring(one, range(600))], COSTS) == (0.0, 0.0, 0.0)


def test_the_best_alarm_of_a_window_counts_and_a_second_one_is_free() -> None:
    one = series(windows=((1000, 1400),))
    assert columns([ring(one, [1000, 1200])], COSTS) == columns([ring(one, [1000])], COSTS)
    assert ring(one, [1200, 1000]).delays == (0,)


def test_a_false_row_costs_less_soon_after_a_window() -> None:
    one = series(windows=((1000, 1400),))
    soon, late, before = (ring(one, [row]).cost for row in (1410, 3900, 800))
    assert -0.1 < soon < 0.0
    assert late == before == -1.0


def test_no_window_has_no_score() -> None:
    assert all(math.isnan(score) for score in columns([ring(series(), [900])], COSTS))


def test_a_threshold_chosen_on_other_folders_does_not_see_its_own() -> None:
    # In folder b the alarms that are right score 9, in folder a only 3: each would choose its own.
    files = tuple(series(f"{folder}/s.csv", ((1000, 1400),)) for folder in "ab")
    alarms = (
        (Alarm(1000, 3.0),),
        (*(Alarm(2000 + 10 * n, 5.0) for n in range(20)), Alarm(1000, 9.0)),
    )
    judged = Judged(files, tuple(tuple(sorted(a, key=lambda x: x.row)) for a in alarms), COSTS)
    rung, chosen = by_folder(judged, reach=0)
    assert chosen["a"] > 5.0
    assert chosen["b"] <= 3.0
    assert [one.hit for one in rung] == [0, 1]
    assert rung[1].false == 20
    own = best_threshold(judged, "a")
    assert columns(judged.at(own), COSTS)[0] > columns(rung, COSTS)[0]


def test_the_interval_is_wide_for_few_files_and_nothing_against_itself() -> None:
    good = ring(series(windows=((1000, 1400),)), [1000])
    bad = ring(series(windows=((1000, 1400),)), [])
    low, high = interval([good, bad, good, bad], COSTS)[0]
    assert low <= 25.0
    assert high >= 75.0
    assert interval([good, bad], COSTS, [good, bad]) == [(0.0, 0.0)] * 3


def test_patience_over_the_rows_that_might_ring_is_that_of_the_judge() -> None:
    values = generate({"n": 2500, "seed": 8})
    for number, row in enumerate(range(1000, 2500, 90)):
        values[row] += 6.0 + 3.0 * (number % 5) + number
    low = 2.5
    state = Ranks(low)
    seen = [state.observe(value) for value in values]
    might = [
        Alarm(row, r.score) for row, r in enumerate(seen) if r.rows > WARM_UP and r.score > r.peak
    ]
    rung = [row for row, reading in enumerate(seen) if reading.alarm]
    assert len(rung) > 3
    assert nab.patiently(might, low) == rung
    plainly = [alarm.row for alarm in might if alarm.score >= low]
    assert len(plainly) > len(rung)


def test_the_baseline_is_causal_and_finds_a_shift() -> None:
    values = generate({"n": 700, "seed": 6, "base": 20, "shift_at": 600, "shift": 25})
    scores = four_views.scores(values)
    assert four_views.scores(values[:650]) == scores[:650]
    rung = [alarm.row for alarm in four_views.alarms(values) if alarm.score >= 3.785]
    assert rung == [600]
    assert all(alarm.row >= PAUSE for alarm in four_views.alarms(values))


# --- the report ---------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder in NAB's layout: one file with a shift, one without anything."""
    labels = {}
    for folder, shift in (("first", 30), ("second", 0)):
        path = tmp_path / "nab" / "data" / folder / "made.csv"
        path.parent.mkdir(parents=True)
        begin = datetime(2026, 3, 2, tzinfo=UTC)
        stamps = [f"{begin + timedelta(minutes=5 * row):%Y-%m-%d %H:%M:%S}" for row in range(900)]
        spec = {"n": 900, "seed": 6, "base": 20, "shift_at": 600, "shift": shift}
        rows = zip(stamps, generate(spec), strict=True)
        path.write_text("timestamp,value\n" + "".join(f"{at},{value}\n" for at, value in rows))
        windows = [[f"{stamps[590]}.000000", f"{stamps[680]}.000000"]] if shift else []
        labels[f"{folder}/made.csv"] = windows
    (tmp_path / "nab" / "labels").mkdir()
    (tmp_path / "nab" / "labels" / "combined_windows.json").write_text(json.dumps(labels))
    results = {
        name: {"CostMatrix": {"tpWeight": c.hit, "fnWeight": c.miss, "fpWeight": c.false}}
        for name, c in COSTS.items()
    }
    (tmp_path / "nab" / "profiles.json").write_text(json.dumps(results))
    return tmp_path


def test_windows_are_read_by_their_instants(data: Path) -> None:
    files, costs = read(data)
    assert [(one.name, one.windows) for one in files] == [
        ("first/made.csv", ((590, 680),)),
        ("second/made.csv", ()),
    ]
    assert costs == COSTS


def test_the_report_names_every_figure(data: Path) -> None:
    lines = nab.run(data)
    text = "\n".join(lines)
    assert "2 files, 1,800 rows, 1 windows" in text
    for word in ("vedette's judge", "four views, baseline", "clock", "paired by file", "other"):
        assert word in text
    found = next(line for line in lines if line.startswith("vedette's judge"))
    assert "1 of 1" in found
    assert max(map(len, lines)) <= 80
    assert "published_results.json is not there" in text
    board = {name: dict.fromkeys(COSTS, 10.0 * place) for place, name in enumerate(nab.ANCHORS, 1)}
    (data / "nab" / "published_results.json").write_text(json.dumps(board))
    assert any(line.split() == ["HTM", "20.0", "20.0", "20.0"] for line in nab.run(data))


def test_a_file_that_nobody_labelled_is_not_scored(data: Path) -> None:
    extra = data / "nab" / "data" / "second" / "other.csv"
    extra.write_text("timestamp,value\n2026-01-01 00:00:00,1\n")
    assert [one.name for one in read(data)[0]] == ["first/made.csv", "second/made.csv"]


def test_what_is_not_as_the_layout_says_is_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(BadCommand, match="combined_windows"):
        read(tmp_path / "nowhere")
    (data / "nab" / "data" / "first" / "made.csv").write_text("timestamp,value\nno,number\n")
    with pytest.raises(BadCommand, match=r"first/made\.csv"):
        read(data)
