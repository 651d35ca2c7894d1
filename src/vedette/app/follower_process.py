"""The follower's process as a runner has it: started, woken after each commit, started again.

Without it the fleet works all the same: whoever reads a list brings the read model up by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from vedette.adapters.reasoners.workers.environment import filter_environment

if TYPE_CHECKING:
    from vedette.app.stores import FleetStore
    from vedette.config.settings import Settings

COMMAND = (sys.executable, "-P", "-m", "vedette.app.follower_main")
# How long from a start to the next one after it ended, at first and at most.
_MIN_RETRY_S, _MAX_RETRY_S = 0.5, 30.0
# One that lived so long begins anew with the shortest wait.
_STEADY_S = 60.0
_EXIT_TIMEOUT_S = 2.0
_MAX_TOLD = 4_096


class FollowerProcess:
    """The follower of one runner's store. `run` keeps one alive until it is cancelled."""

    def __init__(self, settings: Settings, store: FleetStore) -> None:
        place: dict[str, str] = {"state": str(settings.state)}
        if settings.store.kind == "postgresql":
            place = {"url": settings.store.url()}
        self._place = json.dumps(place).encode() + b"\n"
        self._process: asyncio.subprocess.Process | None = None
        self._wakes = -1
        store.subscribe(self.wake)

    @property
    def pid(self) -> int | None:
        """Return the process id of the follower that lives; None if none does."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def wake(self) -> None:
        """Tell the follower that there is more to fold. Never waits: a full pipe says it too."""
        if self._wakes >= 0:
            with contextlib.suppress(OSError):
                os.write(self._wakes, b"\1")

    async def run(self, report: Callable[[str], None]) -> None:
        """Keep a follower alive; `report` is told when one ends. Cancelled, it is ended.

        An end like the one before, soon after it, is not told again.
        """
        retry_s, loop, told = _MIN_RETRY_S, asyncio.get_running_loop(), ""
        try:
            while True:
                began_s = loop.time()
                try:
                    how = await self._live()
                except Exception as error:  # the fleet does not end for this
                    how = f"could not be started: {type(error).__name__}: {error}"
                if loop.time() - began_s > _STEADY_S:
                    retry_s, told = _MIN_RETRY_S, ""
                if how != told:
                    report(f"the follower of the read model {how}; it is started again")
                    told = how
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _MAX_RETRY_S)
        finally:
            await self._end()

    async def _live(self) -> str:
        """Start a follower and wait for its end; say how it ended."""
        try:
            theirs, ours = os.pipe()
        except OSError as error:
            return f"could not be started: {error.strerror}"
        try:
            try:
                self._process = process = await asyncio.create_subprocess_exec(
                    *COMMAND, stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                    start_new_session=True, env=_environment(),
                )  # fmt: skip
            finally:
                os.close(theirs)
            os.set_blocking(ours, False)
            os.write(ours, self._place)
            self._wakes = ours
            why = await _read_last_line(process)
            how = f"ended with exit code {await process.wait()}"
            return f"{how}: {why}" if why else how
        except OSError as error:
            return f"could not be started: {error.strerror}"
        finally:
            self._wakes = -1
            os.close(ours)

    async def _end(self) -> None:
        """Let the follower end, whose pipe is closed by now; one that does not is killed."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            async with asyncio.timeout(_EXIT_TIMEOUT_S):
                await _read_last_line(process)
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _read_last_line(process: asyncio.subprocess.Process) -> str:
    """Read what a process tells until it ends; return the last line of it."""
    assert process.stderr is not None
    tail = b""
    while read := await process.stderr.read(_MAX_TOLD):
        tail = (tail + read)[-_MAX_TOLD:]
    lines = tail.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _environment() -> dict[str, str]:
    """Return what environment the follower needs: a Python's, and what libpq goes by."""
    for_server = {name: value for name, value in os.environ.items() if name.startswith("PG")}
    return filter_environment(os.environ) | for_server
