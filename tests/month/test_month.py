"""Two days of the month in the gate, and every promise of them; `make month` plays all thirty."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.month.ledger import read_ledger
from tests.month.month import Month, memory_folder
from tests.said import vedette
from tests.simulation.engine import read_anew

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def month() -> Iterator[Month]:
    """Give two days that were played, and then had time to end."""
    with memory_folder() as work:
        played = Month(work, seed=4, rate=0.1)
        played.play_day()
        played.play_day(ends=True)
        yield played
    read_anew()


def test_two_days_keep_every_promise(month: Month) -> None:
    assert month.judge() == []
    assert month.record.errors == []


def test_who_has_the_public_key_alone_proves_the_ledger(month: Month, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    for name in ("store.db", "ledger.pub", "witness.log"):
        shutil.copy(month.machine / name, tmp_path / "state")
    (tmp_path / "vedette.toml").write_text('fleet = "harbour"\nstate = "state"\n')
    done = vedette(tmp_path, "verify", "ledger", "--json")
    assert done.code == 0, done.out


def test_they_had_of_all_that_a_month_has(month: Month) -> None:
    """What is judged is there: events, calls of a model, tasks that ended, faults, people."""
    record = month.record
    assert len(record.events) > 80
    assert len(record.bills) > 5
    assert {plan.run[:4] for plan in record.tasks.values()} == {"run_"}
    assert {"kill", "slow"} <= {fault.what for fault in record.faults}
    verbs = Counter(order.verb for order in record.orders)
    assert verbs["approve"] > 5
    ledger = read_ledger(month.machine, month.work / "archive")
    cited = [one for body in ledger.bodies.values() for one in body.get("memories", ())]
    assert any(str(one).startswith("harbour/") for one in cited)
    agents = {act.agent for act in record.acts}
    assert {"hourly_log", "daily_digest"} < agents
    assert any(act.text.startswith("T-") for act in record.acts)
