"""Parking: keys stay in order while one of their runs waits, and everybody is woken once."""

from __future__ import annotations

from vedette.domain.run import Run
from vedette.engine.parked_runs import Parking


def run(position: int, key: str = "k", agent: str = "a") -> Run:
    return Run(f"run_{key}{position}", "evt", agent, key, position, state="waiting")


def woken(parking: Parking) -> list[str]:
    found = []
    while (name := parking.woken()) is not None:
        found.append(name)
    return found


def test_what_comes_after_waits_and_what_came_before_does_not() -> None:
    parking = Parking()
    parking.wait(run(5))
    assert parking.before(run(6)) == "run_k5"
    assert parking.before(run(5)) is None
    assert parking.before(run(4)) is None
    assert parking.before(run(6, key="other")) is None
    assert parking.before(run(6, agent="b")) is None
    assert parking.keys == 1


def test_they_go_on_one_after_the_other() -> None:
    parking = Parking()
    parking.wait(run(1))
    parking.wait_behind(run(3))
    parking.wait_behind(run(2))
    assert woken(parking) == []
    parking.leave(run(1))
    assert woken(parking) == ["run_k2"]
    assert parking.before(run(3)) == "run_k2", "it has its place until it is settled"
    parking.leave(run(2))
    assert woken(parking) == ["run_k3"]
    parking.leave(run(3))
    assert (woken(parking), parking.keys) == ([], 0)


def test_the_next_in_a_key_is_not_hurried_if_it_waits_for_its_own_time() -> None:
    parking = Parking()
    parking.wait(run(1))
    parking.wait(run(2))
    parking.leave(run(1))
    assert woken(parking) == []


def test_a_target_wakes_its_oldest_first_and_all_when_it_is_back() -> None:
    parking = Parking()
    for position, key in ((7, "x"), (3, "y"), (5, "z")):
        parking.wait_for(run(position, key), "world")
    assert parking.waiting("world") == 3
    assert parking.wake_first("world")
    assert woken(parking) == ["run_y3"]
    parking.wait_for(run(3, "y"), "world")
    parking.wake_all("world")
    assert woken(parking) == ["run_y3", "run_z5", "run_x7"]
    assert not parking.wake_first("world")
    assert parking.keys == 3, "they have their places until they are settled"


def test_one_that_waits_for_two_targets_is_woken_by_either() -> None:
    parking = Parking()
    for target in ("one", "other"):
        parking.wait_for(run(1), target)
    parking.wake_all("one")
    assert woken(parking) == ["run_k1"]
    assert not parking.wake_first("other"), "it is tried with all that it waits for"
    parking.wait_for(run(1), "one")
    parking.wake("run_k1")  # the target came back meanwhile
    parking.wait_for(run(1), "other")
    assert woken(parking) == ["run_k1"]
    parking.leave(run(1))
    assert not parking.waits_for_target(run(1))
    assert parking.waiting("other") == 0


def test_one_that_left_is_not_woken() -> None:
    parking = Parking()
    parking.wait_for(run(1), "world")
    parking.wake_all("world")
    parking.leave(run(1))
    assert woken(parking) == []
    parking.wait_for(run(2), "world")
    parking.wait_behind(run(3))
    parking.drop("run_k2", ("a", "k"))
    assert woken(parking) == ["run_k3"]
    parking.clear()
    assert (parking.keys, parking.any_woken) == (0, False)
