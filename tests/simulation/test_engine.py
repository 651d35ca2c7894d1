"""The shipped engine in a closed world: it works, it dies and comes back, and a seed says all.

`python -m tests.simulation.test_engine SEED…` prints what each history comes to, for the test that
runs one seed in two processes.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.simulation.disk import SimDisk
from tests.simulation.engine import CrashPoints, Life, read_once, settings_of
from tests.simulation.loop import SimLoop
from tests.simulation.world import Leak, closed_world

from vedette.domain.base.errors import StoreFailed
from vedette.domain.effect import Call, Outcome
from vedette.domain.event import ENVELOPE
from vedette.testing import toy_fleet

AGENTS = ("ant", "bee", "cat")
EVENTS, KILLS = 30, 3
# Where there is a file system in memory the histories lie on it.
MEMORY = next((path for path in ("/dev/shm",) if os.access(path, os.W_OK)), None)


class SlowWorld(toy_fleet.World):
    """A target that takes its time; its tools are plain functions, so they wait on threads."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__()
        self._loop = loop

    def act(self, call: Call) -> Outcome:
        self._loop.pause(self._loop.some(0.001, 0.02))
        outcome = super().act(call)
        self._loop.pause(self._loop.some(0.001, 0.02))
        return outcome


class History:
    """Three agents, one source, and a nemesis that kills and cuts the power."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.loop = SimLoop(seed)
        self.draw = random.Random(f"{seed}/plan")
        self.world = SlowWorld(self.loop)
        self.points = CrashPoints(self.loop)
        self.disk = SimDisk(f"vedette-{folder.name}-{seed}")
        self.folder, self.content = folder / str(seed), folder / "content"
        self.lives = 0
        self.lines: list[str] = []
        self.ledger = b""
        self.life = self.next_life()
        with closed_world(self.loop, seed, self.points.reach):
            try:
                self.loop.run(self.main(), 600)
            finally:
                self.loop.close()
                self.disk.close()
                shutil.rmtree(self.folder)

    def next_life(self) -> Life:
        """Return the next life, on the image that the one before left."""
        self.lives += 1
        folder = self.folder / f"life{self.lives}"
        if self.lives == 1:
            folder.mkdir(parents=True)
        return Life(self.loop, f"life {self.lives}", settings_of(self.content, folder, self.world))

    def kill(self, why: str) -> None:
        """Take what is left of the disk, end the life; from inside this does not return."""
        life, cut = self.life, self.draw.random() < 0.5
        self.tell(f"killed {why}" + (", the power fails" if cut else ""))
        state = life.settings.state
        self.disk.image(state, state.with_name(f"life{self.lives + 1}"), self.draw if cut else None)
        life.kill()

    def tell(self, line: str) -> None:
        self.lines.append(f"{self.loop.time():.6f} {line}")

    async def nemesis(self) -> None:
        for _ in range(KILLS):
            await asyncio.sleep(self.draw.uniform(0.05, 0.3))
            life = self.life
            nth = self.draw.randrange(1, 60)
            self.points.end_at(life.owner, nth, lambda point: self.kill(f"at {point}"))
            for _ in range(20):
                await asyncio.sleep(0.05)
                if life.owner.dead:
                    break
            else:
                self.kill("between")
            self.life = self.next_life()
            await self.life.open()

    async def source(self) -> None:
        for number in range(EVENTS):
            await asyncio.sleep(self.draw.uniform(0, 0.05))
            agent, key = self.draw.choice(AGENTS), f"k{self.draw.randrange(4)}"
            do = toy_fleet.note_proposal(f"n{number}"), toy_fleet.send_proposal(f"s{number}")
            event = toy_fleet.job(f"e{number}", *do, key=key, agent=agent, value=number)
            event = replace(event, vouched=ENVELOPE)
            while True:
                try:
                    await self.life.do(self.life.app.intake.accept([event]))
                    break
                except ConnectionError:
                    await asyncio.sleep(0.05)
            self.tell(f"accepted {number}")

    async def main(self) -> None:
        await self.life.open()
        await asyncio.gather(self.source(), self.nemesis())
        app = self.life.app
        while not app.dispatcher.is_idle or app.store.schedule.due_runs(1 << 62, 9, []):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        self.ledger = b"\n".join(raw for _, raw, _, _ in app.store.ledger.walk(None))
        self.rows = sum(len(self.notes(agent, f"k{n}")) for agent in AGENTS for n in range(4))
        await self.life.close()

    def notes(self, agent: str, key: str) -> list[str]:
        row = self.life.app.store.runs.row(f"{agent}_notes", key)
        return [] if row is None else list(row["texts"])

    def digest(self) -> str:
        """Return what all that was seen and recorded comes to."""
        return hashlib.sha256("\n".join(self.lines).encode() + self.ledger).hexdigest()


def write_content(folder: Path) -> None:
    for agent in AGENTS:
        toy_fleet.write_agent(folder / "agents", agent, reasoner="judge", max_turns=4, calls=100)
    (folder / "memory").mkdir()
    toy_fleet.write_policies(folder / "policies", AGENTS)


@pytest.fixture(scope="module")
def folder() -> Any:
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="vedette-sim-") as name:
        write_content(Path(name) / "content")
        read_once()
        yield Path(name)


def test_everything_is_done_through_kills_and_power_cuts(folder: Path) -> None:
    killed = 0
    for seed in range(4):
        history = History(seed, folder)
        assert not history.life.errors
        assert not history.loop.errors
        assert history.lives == KILLS + 1
        assert len(history.world.keys("wire.send")) == EVENTS
        assert history.rows == EVENTS
        killed += sum("killed at" in line for line in history.lines)
    assert killed, "no crash point was died at"


def test_the_same_seed_gives_the_same_bytes_in_another_process(folder: Path) -> None:
    results = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation.test_engine", "3", "4"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).resolve().parents[2],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        results.append(done.stdout.split())
    assert results[0] == results[1]
    assert results[0][0] != results[0][1]


def test_a_disk_that_fails_is_told_and_gone_on_from(folder: Path) -> None:
    loop = SimLoop(1)
    disk = SimDisk("vedette-sim-fails")
    results = []

    async def main() -> int:
        state = folder / "failing"
        state.mkdir()
        life = Life(loop, "one", settings_of(folder / "content", state, SlowWorld(loop)))
        await life.open()

        async def send(name: str) -> None:
            event = toy_fleet.job(name, toy_fleet.note_proposal(name), agent="ant", value=1)
            await life.do(life.app.intake.accept([replace(event, vouched=ENVELOPE)]))

        disk.fail(state, "sync", 1)
        with pytest.raises(StoreFailed) as error:
            await send("1")
        results.append(str(error.value))
        await send("1")
        await send("2")
        disk.leave_room(state, 0)
        with pytest.raises(StoreFailed) as error:
            await send("3")
        results.append(str(error.value))
        disk.leave_room(state, None)
        await send("3")
        while life.app.store.schedule.ready_counts():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        found = life.app.store.runs.row("ant_notes", "k")
        await life.close()
        return len(found["texts"]) if found else 0

    with closed_world(loop, 1):
        try:
            assert loop.run(main(), 600) == 3
        finally:
            loop.close()
            disk.close()
    assert len(results) == 2


def test_whoever_asks_this_machine_is_told(folder: Path) -> None:
    loop = SimLoop(1)
    asks: dict[str, Any] = {"__name__": "vedette.planted", "time": time}
    exec("def ask():\n    return time.monotonic()", asks)
    before = time.monotonic
    with closed_world(loop, 1):
        with pytest.raises(Leak, match=r"vedette.planted calls time.monotonic"):
            asks["ask"]()
        assert time.monotonic() > 0  # a library may
    assert time.monotonic is before


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="vedette-sim-") as here:
        write_content(Path(here) / "content")
        read_once()
        for word in sys.argv[1:]:
            print(History(int(word), Path(here)).digest())
