"""What the crash schedules found, each shown again by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from vedette.adapters.signing_keys import KEY_FILE, PUBLIC_FILE, open_ledger_key
from vedette.domain.base import failpoint
from vedette.domain.run import Run
from vedette.engine.action_holds import wake_us
from vedette.testing.sample_steps import held_action

NAME = "vedette/harbour"
RUN = Run("run_1", "evt_1", "watcher", "pump", 1)


class Died(BaseException):
    """Stands for a crash."""


def dying_at(point: str) -> None:
    def hook(passed: str) -> None:
        if passed == point:
            raise Died(point)

    failpoint.hook = hook


@pytest.mark.parametrize("point", ["key:before", "key:mid", "key:after"])
def test_a_crash_while_a_key_is_made_leaves_no_half_of_it(tmp_path: Path, point: str) -> None:
    dying_at(point)
    try:
        with pytest.raises(Died):
            open_ledger_key(tmp_path, NAME, lambda: None)
    finally:
        failpoint.hook = None
    assert not (tmp_path / KEY_FILE).exists() or (tmp_path / KEY_FILE).stat().st_size == 32
    key = open_ledger_key(tmp_path, NAME, lambda: None)
    assert open_ledger_key(tmp_path, NAME, lambda: None).public_key() == key.public_key()
    assert (tmp_path / PUBLIC_FILE).read_text(encoding="ascii").startswith(NAME)
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o077 == 0


def test_what_waits_for_a_person_is_not_woken_by_an_instant_that_it_waited_for_before() -> None:
    row = held_action(RUN, effect="unknown", not_before_us=1)
    assert wake_us(row, False) == row.until_us
    row.waits = "budget"
    assert wake_us(row, False) == 1
