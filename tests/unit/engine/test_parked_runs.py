"""Parking: keys stay in order while one of their runs waits, and everybody is woken once."""

from __future__ import annotations

from vedette.domain.run import Run
from vedette.engine.parked_runs import ParkedRuns


def run(position: int, key: str = "k", agent: str = "a") -> Run:
    return Run(f"run_{key}{position}", "evt", agent, key, position, state="waiting")


def woken(parking: ParkedRuns) -> list[str]:
    found = []
    while (name := parking.pop_woken()) is not None:
        found.append(name)
    return found


def test_what_comes_after_waits_and_what_came_before_does_not() -> None:
    parking = ParkedRuns()
    parking.park_timed(run(5))
    assert parking.find_predecessor(run(6)) == "run_k5"
    assert parking.find_predecessor(run(5)) is None
    assert parking.find_predecessor(run(4)) is None
    assert parking.find_predecessor(run(6, key="other")) is None
    assert parking.find_predecessor(run(6, agent="b")) is None
    assert parking.key_count == 1


def test_they_go_on_one_after_the_other() -> None:
    parking = ParkedRuns()
    parking.park_timed(run(1))
    parking.park_behind(run(3))
    parking.park_behind(run(2))
    assert woken(parking) == []
    parking.unpark(run(1))
    assert woken(parking) == ["run_k2"]
    assert parking.find_predecessor(run(3)) == "run_k2", "it has its place until it is settled"
    parking.unpark(run(2))
    assert woken(parking) == ["run_k3"]
    parking.unpark(run(3))
    assert (woken(parking), parking.key_count) == ([], 0)


def test_the_next_in_a_key_is_not_hurried_if_it_waits_for_its_own_time() -> None:
    parking = ParkedRuns()
    parking.park_timed(run(1))
    parking.park_timed(run(2))
    parking.unpark(run(1))
    assert woken(parking) == []


def test_a_target_wakes_its_oldest_first_and_all_when_it_is_back() -> None:
    parking = ParkedRuns()
    for position, key in ((7, "x"), (3, "y"), (5, "z")):
        parking.park_for_target(run(position, key), "world")
    assert parking.count_waiting("world") == 3
    assert parking.wake_oldest("world")
    assert woken(parking) == ["run_y3"]
    parking.park_for_target(run(3, "y"), "world")
    parking.wake_all("world")
    assert woken(parking) == ["run_y3", "run_z5", "run_x7"]
    assert not parking.wake_oldest("world")
    assert parking.key_count == 3, "they have their places until they are settled"


def test_one_that_waits_for_two_targets_is_woken_by_either() -> None:
    parking = ParkedRuns()
    for target in ("one", "other"):
        parking.park_for_target(run(1), target)
    parking.wake_all("one")
    assert woken(parking) == ["run_k1"]
    assert not parking.wake_oldest("other"), "it is tried with all that it waits for"
    parking.park_for_target(run(1), "one")
    parking.wake("run_k1")  # the target came back meanwhile
    parking.park_for_target(run(1), "other")
    assert woken(parking) == ["run_k1"]
    parking.unpark(run(1))
    assert parking.count_waiting("other") == 0


def test_one_that_left_is_not_woken() -> None:
    parking = ParkedRuns()
    parking.park_for_target(run(1), "world")
    parking.wake_all("world")
    parking.unpark(run(1))
    assert woken(parking) == []
    parking.park_for_target(run(2), "world")
    parking.park_behind(run(3))
    parking.unpark_by_id("run_k2", ("a", "k"))
    assert woken(parking) == ["run_k3"]
    parking.clear()
    assert (parking.key_count, parking.has_woken) == (0, False)
