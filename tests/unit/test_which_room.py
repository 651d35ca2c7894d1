"""The quiz for new readers asks what can be answered, and gives nothing away."""

from __future__ import annotations

import pytest
from tools import which_room

import vedette


def test_a_seed_draws_the_same_definitions_each_time_and_another_seed_others() -> None:
    assert which_room.draw(13) == which_room.draw(13)
    assert which_room.draw(13) != which_room.draw(14)


def test_what_is_asked_lies_in_one_room_and_says_nothing_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    which_room.main(["--seed", "13"])
    quiz = capsys.readouterr().out.partition("\nRooms:\n")[0]
    which_room.main(["--seed", "13", "--answers"])
    answers = capsys.readouterr().out.splitlines()
    assert len(answers) == which_room.QUESTIONS
    for line in answers:
        _, room, place = line.split()
        module, _, name = place.partition(":")
        assert f" {name}\n" in quiz
        assert room in which_room.rooms()
        assert module.split(".")[1] == room
        assert f"{vedette.__name__}.{room}" not in quiz
