"""Showing 1: killed at every crash point, and again in recovery, nothing is lost or done twice.

Here: every single point, a seeded sample of pairs, power cuts, and the negative controls. The
whole of it (10,000 pairs, both stores) is `make faults`.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.faults import crash, outage
from tests.faults.auditor import Facts, at_crash, audit, facts_of
from tests.faults.scenario import dump, lay_stage, plan, play
from tests.pg import find_bin

from vedette.domain.base.failpoint import hit_failpoint
from vedette.testing.faults import run_in_child

SEED = 20

# Where a fleet on SQLite must have died, or the schedules did not try what they are for.
POINTS = {
    "bank:after", "bank:before", "call:after", "call:before", "candidate:after",
    "candidate:before", "commit:after", "commit:before", "commit:mid", "epoch:after",
    "epoch:before", "forget:after", "forget:before", "in_hand.take:after", "in_hand.take:before",
    "key:after", "key:before", "key:mid", "rotate:after", "rotate:before", "rotate:mid",
    "schema:after", "schema:before", "schema:mid", "scrub:after", "scrub:before", "witness:after",
    "witness:before",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("every", "pairs"), [pytest.param(12, 4, id="some"), pytest.param(1, 12, id="all")]
)
def test_killed_at_every_point_and_at_pairs_of_points_nothing_is_lost_or_done_twice(
    every: int, pairs: int
) -> None:
    """At each kind of point at least once, whatever share of their passes is tried."""
    report = crash.run(shards=2, seed=SEED, pairs=pairs, every=every)
    assert not report.wrong, "\n".join(report.findings[:10])
    assert report.singles >= (100 if every == 1 else len(POINTS) - 2)
    assert report.pairs >= pairs
    assert report.pairs - report.ended_before >= pairs // 2, "hardly any died a second time"
    assert report.points.keys() >= POINTS, sorted(POINTS - report.points.keys())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("every", [48, 16])
def test_killed_at_points_of_a_fleet_on_postgresql_nothing_is_lost_or_done_twice(
    every: int,
) -> None:
    """Every so-manieth point; `python -m tests.faults.crash --store postgresql` tries them all."""
    find_bin()
    report = crash.run(shards=2, seed=SEED, pairs=0, every=every, store="postgresql")
    assert not report.wrong, "\n".join(report.findings[:10])
    assert report.singles >= 160 // every


@pytest.mark.forks
def test_a_fleet_killed_before_it_showed_any_head_and_again_at_its_next_start_goes_on(
    tmp_path: Path,
) -> None:
    """Nothing of it is lost: a witness that has seen nothing yet is none that was removed."""
    stage = lay_stage(tmp_path / "stage")
    folder = tmp_path / "fleet"
    folder.mkdir()
    for life in range(2):
        died = run_in_child(partial(play, stage, folder, life), die_at="witness:before")
        assert died.killed, died.error
    ended = run_in_child(partial(play, stage, folder, 2))
    assert not ended.error, ended.error


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_engine_that_calls_before_it_commits_is_found() -> None:
    """Negative control: the effect comes before the commit of its permit."""
    report = crash.run(shards=2, seed=SEED, pairs=0, control="early", every=8)
    assert any("without a durable permit" in message for message in report.findings), (
        report.to_json()
    )
    assert any("done 2 times" in message for message in report.findings), report.to_json()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_target_that_is_not_idempotent_though_its_tool_says_so_is_found() -> None:
    """Negative control: nothing but the target's word keeps a repeat from being a second effect."""
    report = crash.run(shards=2, seed=SEED, pairs=0, control="repeating", every=6)
    assert any("done 2 times" in message for message in report.findings), report.to_json()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_power_cut_costs_nothing_that_was_answered_for() -> None:
    report = outage.run(shards=2, seed=SEED, cuts=16)
    assert not report.wrong, "\n".join(report.findings[:10])
    assert report.singles >= 12


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_power_cut_under_a_weaker_mode_does_cost_something() -> None:
    """Negative control: synchronous=NORMAL is not synced at each commit, and this must show."""
    report = outage.run(shards=2, seed=SEED, cuts=10, synchronous="NORMAL")
    assert any("answered for and is not durable" in message for message in report.findings), (
        report.to_json()
    )


# --- the kit ----------------------------------------------------------------------------------


@pytest.mark.forks
def test_a_child_dies_at_the_pass_that_it_is_told_and_at_no_other(tmp_path: Path) -> None:
    def work() -> None:
        for name in ("a", "b", "c"):
            hit_failpoint(f"{name}:before")
            (tmp_path / name).touch()

    ended = run_in_child(work, die_at=2)
    assert (ended.killed, ended.passes, ended.last_point) == (True, 2, "b:before")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
    ended = run_in_child(work, die_at=4)
    assert (ended.killed, ended.passes, ended.last_point) == (False, 3, "c:before")
    ended = run_in_child(work, die_at="b:before")
    assert (ended.killed, ended.last_point) == (True, "b:before")
    assert ended.points == ("a:before", "b:before")
    assert "ZeroDivisionError" in run_in_child(lambda: 1 // 0).error


def test_nothing_is_forked_beside_another_thread() -> None:
    going = threading.Event()
    thread = threading.Thread(target=going.wait, name="another")
    thread.start()
    try:
        with pytest.raises(RuntimeError, match="another"):
            run_in_child(lambda: None)
    finally:
        going.set()
        thread.join()


# --- the auditor, who has to find what is wrong -----------------------------------------------


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("played")
    stage = lay_stage(folder / "stage")
    play(stage, folder, 0)
    dump(stage, folder, verify=True)
    return folder


@pytest.fixture(scope="module")
def calm(played: Path) -> Facts:
    return facts_of(played)


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines(keepends=True)


def without_an_effect(folder: Path) -> None:
    record = folder / "world.jsonl"
    record.write_text("".join(lines_of(record)[1:]), encoding="utf-8")


def with_one_twice(folder: Path) -> None:
    record = folder / "world.jsonl"
    record.write_text("".join([*lines_of(record), lines_of(record)[0]]), encoding="utf-8")


def with_one_of_nobody(folder: Path) -> None:
    record = folder / "world.jsonl"
    line = {"key": "0" * 32, "tool": "wire.send", "agent": "worker", "text": "x", "effect": True}
    record.write_text("".join([*lines_of(record), json.dumps(line) + "\n"]), encoding="utf-8")


def in_another_order(folder: Path) -> None:
    record = folder / "world.jsonl"
    record.write_text("".join(reversed(lines_of(record))), encoding="utf-8")


def without_an_entry(folder: Path) -> None:
    entries = folder / "export" / "entries.jsonl"
    lines = lines_of(entries)
    entries.write_text("".join(lines[:20] + lines[21:]), encoding="utf-8")


def with_a_changed_entry(folder: Path) -> None:
    entries = folder / "export" / "entries.jsonl"
    text = entries.read_text(encoding="utf-8")
    entries.write_text(text.replace('"hops":0', '"hops":1').replace("impact.high", "impact.low"))


def with_a_changed_body(folder: Path) -> None:
    bodies = folder / "export" / "bodies.jsonl"
    text = bodies.read_text(encoding="utf-8")
    assert "e2 a" in text
    bodies.write_text(text.replace("e2 a", "e2 b"), encoding="utf-8")


def with_a_forked_witness(folder: Path) -> None:
    witness = folder / "export" / "witness"
    lines = lines_of(witness)
    place = next(at for at, line in enumerate(lines) if line.strip().isdigit())
    lines[place] = f"{int(lines[place]) - 1}\n"
    witness.write_text("".join(lines), encoding="utf-8")


def with_an_unheard_event(folder: Path) -> None:
    with (folder / "accepted").open("a", encoding="ascii") as file:
        file.write("evt_never\n")


def with_a_spent_budget(folder: Path) -> None:
    text = json.loads((folder / "told.json").read_text(encoding="utf-8"))
    text["spent"]["worker actions"] += 1
    (folder / "told.json").write_text(json.dumps(text), encoding="utf-8")


@pytest.mark.parametrize(
    "spoil",
    [
        without_an_effect, with_one_twice, with_one_of_nobody, in_another_order, without_an_entry,
        with_a_changed_entry, with_a_changed_body, with_a_forked_witness, with_an_unheard_event,
        with_a_spent_budget,
    ],
)  # fmt: skip
def test_the_auditor_finds_what_is_wrong(
    tmp_path: Path, played: Path, calm: Facts, spoil: Callable[[Path], None]
) -> None:
    assert not audit(played, plan(), calm)
    copy = tmp_path / "copy"
    shutil.copytree(played, copy)
    spoil(copy)
    assert audit(copy, plan(), calm)


def test_the_auditor_finds_what_is_wrong_at_a_crash(tmp_path: Path, played: Path) -> None:
    assert not at_crash(played)
    copy = tmp_path / "copy"
    shutil.copytree(played, copy)
    with_one_of_nobody(copy)
    with (copy / "answered").open("a", encoding="ascii") as file:
        file.write("never\n")
    with_an_unheard_event(copy)
    assert len(at_crash(copy)) == 3
