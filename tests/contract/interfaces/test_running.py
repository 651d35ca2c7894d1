"""A running fleet ends with the error of whichever part of it broke; it does not wait for ever."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from msgspec.structs import replace

from vedette.adapters.bundles import watch
from vedette.adapters.files.source import JsonlSource
from vedette.domain.agent import Schedule
from vedette.domain.base.errors import BadCommand, Forbidden, StoreFailed, Unavailable, VedetteError
from vedette.domain.budget import MINUTE_US
from vedette.domain.effect import Outcome
from vedette.domain.event import DATA, ENVELOPE, PRINCIPAL, REASON, Event
from vedette.domain.identity import ENGINE, Principal
from vedette.domain.schedule import Tick
from vedette.interfaces.cli.error_report import exit_code
from vedette.interfaces.daemon import Daemon
from vedette.interfaces.http import server
from vedette.interfaces.render.explain_text import explain_text
from vedette.interfaces.signals import Signals
from vedette.ledger.history.explain import explain
from vedette.operations.commands import Order
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet, wait_until


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def fleet(tmp_path: Path, world: World) -> AsyncIterator[FleetHarness]:
    """A toy fleet that a Running is going to start."""
    async with opened(tmp_path, world) as fleet:
        yield fleet


@contextlib.asynccontextmanager
async def opened(tmp_path: Path, world: World, **more: Any) -> AsyncIterator[FleetHarness]:
    async with toy_fleet(tmp_path, world, **more) as fleet:
        await fleet.app.dispatcher.close()
        yield fleet


async def run(fleet: FleetHarness, *, until_idle: bool = True, within_s: float = 20) -> Daemon:
    running = Daemon(fleet.app, until_idle=until_idle)
    async with asyncio.timeout(within_s):
        await running.run()
    return running


async def test_it_ends_when_nothing_is_left(fleet: FleetHarness, world: World) -> None:
    await fleet.app.intake.accept([job("1", send_proposal("hello"))])
    running = await run(fleet)
    assert running.failure is None
    assert world.effects() == 1


# --- a part breaks ---------------------------------------------------------------------------


def break_worker(fleet: FleetHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(run: Any) -> None:
        raise KeyError("a bug of the handler")

    monkeypatch.setattr(fleet.app.dispatcher, "_forget_run", forget)


def cancel_worker(fleet: FleetHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def apply(run: Any, work: Any) -> None:
        work.close()
        raise asyncio.CancelledError

    monkeypatch.setattr(fleet.app.dispatcher._failure_policy, "apply", apply)


def break_waker(fleet: FleetHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def wake() -> None:
        raise KeyError("a bug of the waker")

    monkeypatch.setattr(fleet.app.dispatcher, "wake_due", wake)


def break_finisher(fleet: FleetHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def finish(case: Any) -> None:
        raise KeyError("a bug of the finisher")

    monkeypatch.setattr(fleet.app.dispatcher, "_complete_run", finish)


def break_watcher(fleet: FleetHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def saved(folder: Path) -> AsyncIterator[None]:
        for _ in ():
            yield None
        raise OSError(28, "no inotify watches are left")

    monkeypatch.setattr(watch, "watch_folder", saved)


def end_watcher(fleet: FleetHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def saved(folder: Path) -> AsyncIterator[None]:
        for _ in ():
            yield None

    monkeypatch.setattr(watch, "watch_folder", saved)


def break_local_api(fleet: FleetHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(uvicorn.Server):
        async def serve(self: Any, sockets: Any = None) -> None:
            self.ready.set()
            await asyncio.sleep(0)
            raise RuntimeError("a bug of the server")

    monkeypatch.setattr("uvicorn.Server", Broken)


@pytest.mark.parametrize(
    ("breaking", "kind"),
    [
        (break_worker, KeyError),
        (cancel_worker, Unavailable),
        (break_waker, KeyError),
        (break_finisher, KeyError),
        (break_watcher, OSError),
        (end_watcher, Unavailable),
        (break_local_api, RuntimeError),
    ],
)
async def test_a_broken_part_ends_the_run_with_its_error(
    fleet: FleetHarness,
    monkeypatch: pytest.MonkeyPatch,
    breaking: Callable[[FleetHarness, pytest.MonkeyPatch], None],
    kind: type[Exception],
) -> None:
    await fleet.app.intake.accept([job("1", send_proposal("hello"))])
    breaking(fleet, monkeypatch)
    with pytest.raises(kind) as raised:
        await run(fleet, until_idle=False)
    assert raised.value.__cause__ is not raised.value
    if isinstance(raised.value, VedetteError):
        assert exit_code(raised.value) == 3


async def test_a_store_that_is_away_at_the_end_hides_no_failure(
    fleet: FleetHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line of the view is read from the store."""

    def tick(running: Daemon) -> None:
        raise StoreFailed("PostgreSQL does not answer")

    break_waker(fleet, monkeypatch)
    async with asyncio.timeout(20):
        with pytest.raises(KeyError, match="a bug of the waker"):
            await Daemon(fleet.app, until_idle=False).run(tick)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_dead_writer_ends_the_run(
    fleet: FleetHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for a commit would wait for ever."""
    await fleet.app.intake.accept([job("1", send_proposal("hello"))])

    def committed() -> None:
        raise KeyError("a bug of the writer")

    monkeypatch.setattr(fleet.app.store.parts.ledger, "confirm_group", committed)
    with pytest.raises(KeyError, match="a bug of the writer"):
        await run(fleet)


async def test_an_error_that_would_mean_bad_input_means_unavailable(
    fleet: FleetHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wake() -> None:
        raise BadCommand("not as it should be")

    monkeypatch.setattr(fleet.app.dispatcher, "wake_due", wake)
    with pytest.raises(Unavailable, match="BadCommand: not as it should be") as raised:
        await run(fleet, until_idle=False)
    assert isinstance(raised.value.__cause__, BadCommand)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(4)])
async def test_what_agents_code_raises_ends_its_run_only(
    fleet: FleetHarness, world: World, error: BaseException
) -> None:
    """A cancellation that escapes from a tool is no order to the handler: the call broke off."""
    world.answer = lambda call: error if call.args["text"] == "bad" else None
    bad, good = job("1", send_proposal("bad"), key="a"), job("2", send_proposal("good"), key="b")
    await fleet.app.intake.accept([bad, good])
    running = await run(fleet)
    assert running.failure is None
    assert [fleet.runs(event)[0].state for event in (bad, good)] == ["done", "done"]
    assert [fleet.actions(event)[0].effect for event in (bad, good)] == ["failed", "done"]


async def test_a_policy_that_could_not_be_stored_is_offered_again(
    fleet: FleetHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[int] = []

    async def saved(folder: Path) -> AsyncIterator[None]:
        yield None
        await asyncio.Event().wait()

    async def offer(self: Daemon) -> None:
        offered.append(1)
        if len(offered) == 1:
            raise StoreFailed("the disk is full")
        self.stop()

    async def at_once(at_us: int) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(watch, "watch_folder", saved)
    monkeypatch.setattr(Daemon, "offer_policy", offer)
    monkeypatch.setattr(fleet.app.services.clock, "sleep_until", at_once, raising=False)
    running = await run(fleet, until_idle=False)
    assert len(offered) == 2
    assert any("the disk is full" in message for message in running.troubles)


async def test_a_bank_that_is_behind_is_told_once_and_so_is_its_end(fleet: FleetHarness) -> None:
    recall = fleet.app.services.recall
    mended = recall.rebuild_banks

    def refused() -> None:
        raise OSError(errno.EIO, "Input/output error")

    recall.rebuild_banks = refused
    recall.update_banks(refused, order=True)

    def bank_troubles(running: Daemon) -> list[str]:
        return [
            bank_troubles
            for bank_troubles in running.troubles
            if "the memory bank" in bank_troubles
        ]

    def look(running: Daemon) -> None:
        if bank_troubles(running):
            recall.rebuild_banks = mended
        if len(bank_troubles(running)) == 2:
            running.stop()

    running = Daemon(fleet.app, until_idle=False)
    async with asyncio.timeout(20):
        await running.run(look)
    assert ["Input/output error" in one for one in bank_troubles(running)] == [True, False]


# --- idle --------------------------------------------------------------------------------------


async def test_it_does_not_stay_up_for_what_is_far_off_or_stopped(
    tmp_path: Path, world: World
) -> None:
    clock = ManualClock()
    async with opened(tmp_path, world, clock=clock) as fleet:
        world.answer = lambda call: Outcome("retry", retry_after_us=2 * MINUTE_US, error="later")
        event = job("1", send_proposal("hello"))
        await fleet.app.intake.accept([event])
        running = Daemon(fleet.app, until_idle=False)
        task = asyncio.create_task(running.run())
        await wait_until(lambda: fleet.runs(event)[0].state == "waiting")
        await wait_until(lambda: fleet.app.dispatcher.is_idle)
        # The retry is far off; when it is near it stays up for it.
        assert running._is_idle()
        clock.advance(3 * MINUTE_US // 2)
        assert not running._is_idle()
        await fleet.app.commands.stop(fleet.order(), agent="worker")
        assert running._is_idle()
        running.until_idle = True
        async with asyncio.timeout(10):
            await task


# --- signals -----------------------------------------------------------------------------------


def test_a_signal_before_there_is_anything_to_end_is_not_lost() -> None:
    requests: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    with Signals() as signals:
        signal.raise_signal(signal.SIGTERM)
        signals.set_handler(lambda: requests.append(1))
    assert (signals.first, requests) == (signal.SIGTERM, [1])
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_second_signal_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Left(BaseException): ...

    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr(sys.modules["os"], "_exit", leave)
    with Signals() as signals:
        signals.set_handler(lambda: None)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Left, match="130"):
            signal.raise_signal(signal.SIGTERM)


async def test_the_first_signal_ends_the_run(fleet: FleetHarness) -> None:
    running = Daemon(fleet.app, until_idle=False)
    ticks: list[int] = []

    def tick(_: Daemon) -> None:
        if not ticks:
            signal.raise_signal(signal.SIGINT)
        ticks.append(1)

    async with asyncio.timeout(10):
        await running.run(tick)
    assert running.failure is None


async def test_servers_end_though_a_client_stays(fleet: FleetHarness) -> None:
    """A connection that is left open must not keep the fleet from ending."""
    fleet.app.settings = replace(fleet.app.settings, http=("127.0.0.1", 0))
    async with asyncio.timeout(10):
        async with server.serve_http(fleet.app) as address:
            assert address is not None
            host, _, port = address.removeprefix("http://").partition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
            await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


# --- what people send --------------------------------------------------------------------------

PING = Event("cli:alice", "1", "ping", vouched=ENVELOPE, extensions={"other": 1, PRINCIPAL: "me"})


async def test_who_sent_an_event_and_why_is_part_of_it(fleet: FleetHarness) -> None:
    alice = Order(Principal.owner("alice"), "to see it work\x1b[2J")
    await fleet.app.commands.send(alice, [PING])
    explanation = explain(fleet.app.store, PING.key)
    assert explanation["event"]["attributes"]["extensions"] == {
        "other": 1,
        PRINCIPAL: "person:alice",
        REASON: "to see it work\x1b[2J",
    }
    lines = [line for _, line in explain_text(explanation)]
    assert "  sent by person:alice: to see it work\\u001b[2J" in lines
    assert any('extensions: {"other":1}' in line for line in lines)


async def test_who_an_event_says_it_is_from_is_not_taken_for_it(fleet: FleetHarness) -> None:
    """Control: the same attribute out of a file or a queue is not shown as the engine's word."""
    await fleet.app.intake.accept([PING])
    lines = [line for _, line in explain_text(explain(fleet.app.store, PING.key))]
    assert not any(line.startswith("  sent by") for line in lines)
    assert any(PRINCIPAL in line and "not vouched for" in line for line in lines)


@pytest.mark.parametrize(
    ("order", "error"),
    [
        (Order(Principal.owner("alice"), " "), BadCommand),
        (Order(ENGINE, "I want to"), Forbidden),
    ],
)
async def test_nobody_sends_without_a_name_and_a_reason(
    fleet: FleetHarness, order: Order, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await fleet.app.commands.send(order, [PING])
    assert fleet.app.store.tables.event_counts() == (0, 0)


# --- what a source may vouch for ---------------------------------------------------------------


@pytest.mark.parametrize("type", ["worker.job", "vedette.ticks", "Vedette.tick"])
async def test_no_source_vouches_for_data(fleet: FleetHarness, type: str) -> None:
    event = Event("custom", "1", type, "k", None, {"do": []}, vouched=ENVELOPE | {DATA})
    await fleet.app.intake.accept([event])
    stored = fleet.app.store.runs.event(event.key)
    assert stored is not None
    assert stored.vouched == ENVELOPE


async def test_the_engine_vouches_for_the_data_of_its_ticks(fleet: FleetHarness) -> None:
    tick = Tick("worker", Schedule("s", every_us=MINUTE_US, data={"n": 1}), MINUTE_US, None)
    event = tick.to_event("harbour")
    await fleet.app.intake.accept([event])
    stored = fleet.app.store.runs.event(event.key)
    assert stored is not None
    assert stored.vouched == ENVELOPE | {DATA}


async def test_a_line_of_a_file_that_calls_itself_a_tick_is_refused(
    fleet: FleetHarness, tmp_path: Path
) -> None:
    source = "vedette://harbour/schedule/worker"
    line = {
        "specversion": "1.0", "source": source, "id": "forged", "type": "vedette.tick",
        "data": {"do": []}, "vouched": "data",
    }  # fmt: skip
    path = tmp_path / "ticks.jsonl"
    path.write_text(json.dumps(line) + "\n")
    await JsonlSource("forger", str(path), fleet.app.services.clock).deliver(fleet.app.intake)
    assert fleet.app.store.runs.event(Event(source, "forged", "vedette.tick").key) is None
