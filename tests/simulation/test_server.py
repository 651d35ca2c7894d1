"""The stand-in server keeps the contract of the Store port, and treats sessions as a server does.

The contract's own tests (`tests.contract.store.test_store`) run here inside an engine's life in
simulated time, over the product's PostgresStore.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.contract.store import test_store as contract
from tests.simulation.loop import Owner, SimLoop
from tests.simulation.server import Lost, Server, SimulatedDatabase, in_place
from tests.simulation.world import closed_world

from vedette.domain.base.errors import Unavailable
from vedette.store.postgres import PostgresStore

T = TypeVar("T")

# Those of the contract that ask for nothing but a store, or for a way to open one again.
CONTRACT = {
    name: test
    for name, test in sorted(vars(contract).items())
    if name.startswith("test_") and set(inspect.signature(test).parameters) <= {"store", "opener"}
}
# Of these the stand-in is no judge.
BUT = {
    name: why
    for name, why in {
        "test_a_second_runner_is_refused": "its lock is the state folder's own",
    }.items()
    if name in CONTRACT
}


class Machine:
    """One engine's machine beside a server, in simulated time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = SimLoop(1)
        folder.mkdir(exist_ok=True)
        self.server = Server(self.loop, folder, lambda _: None)
        self.owner = Owner("one")
        self.opened: list[PostgresStore] = []

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine as this engine, and close what it opened."""

        async def whole() -> T:
            try:
                return await work()
            finally:
                for store in reversed(self.opened):
                    store.close()

        async def world() -> T:
            return await self.loop.spawn(self.owner, whole())

        with closed_world(self.loop, 1), in_place():
            try:
                return self.loop.run(world(), 600)
            finally:
                self.loop.close()
                self.server.close()

    def open(self, fleet: str = "harbour") -> Any:
        """Open the store on this machine."""
        store = PostgresStore(
            self.server.url, self.folder / "state", fleet=fleet, key=contract.KEY,
            key_name=f"vedette/{fleet}", now_us=contract.CLOCK.now_us,
        )  # fmt: skip
        self.opened.append(store)
        return store

    def connect(self, **more: Any) -> SimulatedDatabase:
        """Open a connection of its own."""
        return SimulatedDatabase(self.server.url, name="test", **more)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


@pytest.mark.parametrize("name", CONTRACT)
def test_it_keeps_the_contract_of_the_store(machine: Machine, name: str) -> None:
    if name in BUT:
        pytest.skip(BUT[name])

    async def work() -> None:
        test = CONTRACT[name]
        wants = inspect.signature(test).parameters
        made = {"opener": lambda: machine.open, "store": machine.open}
        given = {name: made[name]() for name in sorted(wants, reverse=True)}
        ended = test(**given)
        if inspect.isawaitable(ended):
            await ended

    machine.run(work)


def test_most_of_the_contract_is_kept_here() -> None:
    assert len(CONTRACT) - len(BUT) > 30


def test_a_session_that_broke_undoes_its_transaction_and_frees_the_lock(machine: Machine) -> None:
    async def work() -> None:
        machine.open()
        one, two = machine.connect(), machine.connect()
        one.begin()
        one.execute("INSERT INTO meta VALUES('x', '1')")
        machine.server.drop(machine.owner)
        with pytest.raises(Lost):
            one.commit()
        two.begin()
        assert two.rows("SELECT 1 FROM meta WHERE name='x'") == []
        two.commit()

    machine.run(work)


def test_who_stays_in_a_transaction_too_long_is_ended(machine: Machine) -> None:
    async def work() -> None:
        machine.open()
        one = machine.connect(hold_ms=500)
        one.begin()
        machine.loop.pause(0.6)
        with pytest.raises(Lost):
            one.execute("INSERT INTO meta VALUES('x', '1')")
        one.rollback()
        assert one.rows("SELECT 1 FROM meta WHERE name='x'") == []

    machine.run(work)


def test_who_waits_for_the_lock_too_long_is_told(machine: Machine) -> None:
    async def work() -> None:
        machine.open()
        one, two = machine.connect(), machine.connect(statement_ms=300)
        one.begin()
        began = machine.loop.time()
        with pytest.raises(Lost):
            two.begin()
        assert 0.29 < machine.loop.time() - began < 0.4
        two.rollback()
        one.commit()
        two.begin()
        two.commit()

    machine.run(work)


def test_a_server_that_is_away_refuses_and_comes_back(machine: Machine) -> None:
    async def work() -> None:
        machine.open()
        one = machine.connect(patience_s=2.0)
        machine.server.stop()
        with pytest.raises(Unavailable):
            machine.connect()
        machine.loop.later(1.0, machine.server.start)
        assert one.rows("SELECT name FROM meta WHERE name='fleet'") == [("fleet",)]

    machine.run(work)


def test_news_come_with_the_commit_and_wake_who_listens(machine: Machine) -> None:
    async def work() -> None:
        machine.open()
        one, two = machine.connect(), machine.connect()
        two.execute_script("LISTEN vedette")
        assert list(two.connection.notifies(timeout=0.1, stop_after=1)) == []
        one.begin()
        one.execute_script("NOTIFY vedette")
        machine.loop.later(0.0, lambda: None)
        one.commit()
        assert list(two.connection.notifies(timeout=1.0, stop_after=1)) == [None]

    machine.run(work)


def test_a_stalled_link_delays_and_loses_nothing(machine: Machine) -> None:
    async def work() -> None:
        machine.open()
        one = machine.connect()
        machine.server.stall(machine.owner, 3.0)
        began = machine.loop.time()
        assert one.rows("SELECT 1") == [(1,)]
        assert machine.loop.time() - began > 2.9

    machine.run(work)


def test_a_failover_loses_what_its_copy_has_not(machine: Machine) -> None:
    async def work() -> None:
        store = machine.open()
        image = machine.server.keep()
        one = machine.connect()
        one.execute("INSERT INTO meta VALUES('x', '1')")
        assert one.rows("SELECT 1 FROM meta WHERE name='x'") == [(1,)]
        machine.server.fail_over(image)
        assert one.rows("SELECT 1 FROM meta WHERE name='x'") == []
        await asyncio.sleep(0.5)
        assert store.ledger.last_seq() == 0

    machine.run(work)
