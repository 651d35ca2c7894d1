"""Judges the month: each day by what it left, the whole by every promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import apsw
import orjson
from tests.month.content import KEEPERS, SHORT_OF
from tests.month.ledger import Ledger, read_ledger
from tests.month.oracles import (
    CHECKS,
    DAY_US,
    EXPIRY_US,
    MINUTE_US,
    check_booked,
    check_limits,
    check_others,
    check_undos,
    count_booked,
)
from tests.month.record import Record
from tests.month.recount import compare
from tests.simulation.history import History
from tests.simulation.model import judge
from tests.simulation.promises.reading import Violation
from tests.simulation.proof import check_proof

from vedette.ledger.history.report import report
from vedette.policy.replay import replay
from vedette.store.sqlite import SqliteReader
from vedette.testing.harness import TrustingStage

_SPENT = "SELECT agent, unit, SUM(amount) FROM spend WHERE minute>=? AND minute<? GROUP BY 1, 2"


def judge_day(record: Record, ledger: Ledger, machine: Path, since_us: int) -> Iterator[Violation]:
    """Say what is wrong with a day, as the machine has it at its end.

    `ledger` is what there is of that day and of three before it, for bookings that were changed.
    """
    until_us = since_us + DAY_US
    store = SqliteReader(machine)
    try:
        told = report(store, since_us, until_us)
    finally:
        store.close()
    for what in compare(told, ledger.between(since_us, until_us)):
        yield Violation("report", what)
    counted = count_booked(ledger, since_us, until_us)
    yield from check_booked(counted, read_spend(machine, since_us, until_us))
    yield from check_limits(ledger, SHORT_OF, record, since_us, until_us)


def read_spend(machine: Path, since_us: int, until_us: int) -> Counter[tuple[str, str]]:
    """Return what the store has booked at the minutes of an interval, by agent and unit."""
    store = apsw.Connection(str(machine / "store.db"), vfs="unix")
    rows = store.execute(_SPENT, (since_us // MINUTE_US, until_us // MINUTE_US)).fetchall()
    store.close()
    booked: Counter[tuple[str, str]] = Counter()
    for agent, unit, total in rows:
        if agent and total:
            booked[str(agent), str(unit)] = int(str(total))
    return booked


def judge_month(record: Record, machine: Path, archive: Path) -> list[Violation]:
    """Return all that is wrong with the whole, once all has ended."""
    ledger = read_ledger(machine, archive)
    history = make_history(record, ledger, machine)
    found = judge(history)
    for check in CHECKS:
        found += check(record, ledger)
    found += check_others(record, history)
    found += check_undos(record)
    found += check_replay(machine)
    return found


def check_replay(machine: Path) -> Iterator[Violation]:
    """Every decision whose content is kept is made again from the record, with the same answer."""
    store = SqliteReader(machine)
    try:
        replayed = replay(store, TrustingStage().load)
    finally:
        store.close()
    for one in replayed.differences:
        yield Violation("not replayed", f"entry {one.seq}")
    wrong = {why: n for why, n in replayed.unreplayable.items() if why != "erased"}
    if wrong or not replayed.decisions:
        yield Violation("not replayed", f"{replayed.decisions} decisions, {wrong}")


def make_history(record: Record, ledger: Ledger, machine: Path) -> History:
    """Return the month as the simulation's model judges it: of the agents that it knows."""
    history = History(
        events=record.events, orders=record.orders, faults=record.faults, refused=record.refused,
        errors=record.errors, entries=ledger.entries, quiet_s=2.0, expires_us=EXPIRY_US,
        judged=frozenset(KEEPERS), acts=record.acts, end_s=record.end_s,
    )  # fmt: skip
    history.bodies = {
        entry["seq"]: ledger.bodies[entry["seq"]]
        for entry in ledger.of("turn.reasoned", "run.closed") if entry["seq"] in ledger.bodies
    }  # fmt: skip
    store = apsw.Connection(str(machine / "store.db"), vfs="unix")
    for collection, key, data in store.execute("SELECT collection, key, data FROM row"):
        agent = str(collection).removesuffix("_notes")
        if agent in KEEPERS:
            history.rows[agent, str(key)] = orjson.loads(data)["texts"]
    left = [it for row in store.execute("SELECT record, answer FROM action") for it in row if it]
    notes = [str(note) for (note,) in store.execute("SELECT note FROM checkpoint")]
    store.close()
    left += [raw[32:] for raw in ledger.salted.values()]
    history.content = "\n".join(bytes(data).decode("utf-8", "replace") for data in left)
    history.proof = list(check_proof(ledger.raws, notes, ledger.salted, ledger.first))
    return history
