"""A short trial in the gate: that the harness works, and that it finds what it looks for.

`make jepsen` is the trial that counts: minutes long, on both stores. What the model finds in a
spoiled history is shown in tests/simulation/test_model.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import apsw
import pytest
from tests.jepsen.link import Link
from tests.jepsen.schedule import OUTAGES, draw_outage, draw_schedule
from tests.jepsen.trial import Trial
from tests.jepsen.verification import VERBS, verify
from tests.segments import Entry, change_entries
from tests.simulation.history import NEVER
from tests.simulation.model import judge


def test_a_schedule_is_the_seed_s() -> None:
    one = draw_schedule(7, 600, workers=3)
    assert one == draw_schedule(7, 600, workers=3)
    assert one != draw_schedule(8, 600, workers=3)
    assert {each.what for each in one} >= {"kill", "freeze", "stall", "shutdown", "stop", "publish"}
    assert all(each.at_s + each.for_s < 600 for each in one)
    alone = {each.what for each in draw_schedule(7, 600, workers=1)}
    assert not alone & {"stall", "drop", "slow", "shutdown"}


@pytest.mark.parametrize("what", OUTAGES)
def test_an_outage_is_over_when_the_trial_ends(what: str) -> None:
    schedule, seconds = draw_outage(7, 480, workers=3, what=what)
    assert (schedule, seconds) == draw_outage(7, 480, workers=3, what=what)
    assert all(each.at_s + each.for_s <= seconds for each in schedule)
    assert {each.what for each in schedule} & {"cut", "failover"}


# --- a link ---------------------------------------------------------------------------------------


@asynccontextmanager
async def echo(link_to: list[bytes]) -> AsyncIterator[Link]:
    """A link to a port that notes what it hears, and says it again."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(100):
                link_to.append(data)
                writer.write(data)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    link = Link(server.sockets[0].getsockname()[1])
    await link.open()
    try:
        yield link
    finally:
        link.close()
        server.close()
        await asyncio.sleep(0.01)  # who is served hears of it


async def says(link: Link, said: bytes) -> bytes:
    """Connect, say something and return what is answered within a tenth of a second."""
    async with asyncio.timeout(0.1):
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        try:
            writer.write(said)
            return await reader.read(100)
        finally:
            writer.transport.abort()


@pytest.mark.parametrize("loses", [True, False])
async def test_a_cut_link_drops_what_is_sent_and_refuses_nobody(loses: bool) -> None:
    heard: list[bytes] = []
    async with echo(heard) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"before")
        assert await reader.read(100) == b"before"
        link.cut(loses=loses)
        writer.write(b"under way")
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await says(link, b"lost")
        assert heard == [b"before"]
        link.resume()
        came = b""
        with suppress(ConnectionResetError):
            came = await reader.read(100)
        assert came == (b"" if loses else b"under way")
        assert await says(link, b"after") == b"after"
        assert heard == [b"before", *([] if loses else [b"under way"]), b"after"]
        writer.transport.abort()


# --- a trial --------------------------------------------------------------------------------------


# For each verb a change of the record that it has to find.
def spoil_entries(store: apsw.Connection) -> None:
    change_entries(store, lambda one: one._replace(raw=one.raw.replace(b"turn", b"tern")))


def spoil_rows(store: apsw.Connection) -> None:
    store.execute("UPDATE row SET data=CAST(replace(CAST(data AS TEXT), '.0', '.7') AS BLOB)")
    assert store.changes()


def spoil_content(store: apsw.Connection, kind: bytes, old: bytes, new: bytes) -> None:
    def change(one: Entry) -> Entry:
        if one.data is None or b'"kind":"%s"' % kind not in one.raw:
            return one
        return one._replace(data=one.data.replace(old, new))

    change_entries(store, change)


SPOILED: dict[str, Callable[[apsw.Connection], None]] = {
    "verify": spoil_entries,
    "verify rows": spoil_rows,
    "verify decisions": lambda store: spoil_content(
        store, b"action.decided", b"permit", b"perhaps"
    ),
    "verify judgements": lambda store: spoil_content(
        store, b"event.accepted", b'"value":1', b'"value":7'
    ),
}


def what_is_found(trial: Trial, spare: Path, verb: Sequence[str]) -> list[str]:
    """Spoil a copy of the state for a verb, and return what it finds there."""
    shutil.copytree(trial.environment["VEDETTE_STATE"], spare)
    with contextlib.closing(apsw.Connection(str(spare / "store.db"))) as store:
        SPOILED[" ".join(verb)](store)
    return verify(trial.config, {**trial.environment, "VEDETTE_STATE": str(spare)}, [verb])


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_short_trial_on_sqlite_breaks_no_promise(tmp_path: Path) -> None:
    """Ten seconds; seed 76 kills and freezes it while targets are late and an agent is stopped."""
    schedule = draw_schedule(76, 10.0, workers=1)
    trial = Trial(tmp_path, 76, schedule, 10.0, store="sqlite", rate=10.0, told=lambda text: None)
    seen = await trial.run()
    history = seen.history
    assert not judge(history), judge(history)[:10]
    assert {"kill", "stop"} <= {fault.what for fault in history.faults}
    assert len(history.events) > 15
    assert sum(act.what == "done" for act in history.acts) > 5
    assert seen.live_after_s < 60
    for at, verb in enumerate(VERBS):
        (found,) = what_is_found(trial, tmp_path / f"spoiled{at}", verb)
        assert found.startswith(f"vedette {' '.join(verb)} ends with 1"), found
    # The control: one event that nobody handled, and one effect that happened once more.
    history.events[0].ref = "evt_nobody"
    done = [act for act in history.acts if act.what == "done"]
    history.acts.append(done[-1])
    assert {one.kind for one in judge(history)} >= {"lost", "doubled"}
    assert history.events[0].told_s < NEVER
