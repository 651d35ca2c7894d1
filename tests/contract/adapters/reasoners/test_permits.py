"""A stop and a permit that is on its way: what was permitted before does not start after."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tests.bench.bench_fleet import AGENT, readings
from tests.bench.line import Load, open_bench_fleet
from tests.bench.target import happened, marks_file
from tests.workers import until


async def test_no_call_starts_once_a_stop_is_told_though_its_permit_had_gone_out(
    tmp_path: Path,
) -> None:
    """Its worker stood still between the permit and the call, for as long as the stop took."""
    first, second = readings(2, keys=1)
    async with open_bench_fleet(tmp_path, Load()) as fleet:
        marks = marks_file(tmp_path)
        await fleet.send(first)
        await fleet.wait_until_idle()
        assert happened(marks)[0].keys() == {"r0"}
        pool, calls = fleet.app.pool, fleet.app.services.calls
        assert pool is not None
        pid = pool.worker_pids[AGENT, "hands"]
        os.kill(pid, signal.SIGSTOP)
        try:
            await fleet.send(second)
            await until(lambda: bool(calls.unrecorded))
            await fleet.app.commands.stop(fleet.order("enough"), all=True)
        finally:
            os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(0.3)
        assert happened(marks)[0].keys() == {"r0"}, "a call started behind a stop"
        await fleet.app.commands.resume(fleet.order("go on"), all=True)
        await fleet.wait_until_idle()
        assert happened(marks)[0].keys() == {"r0", "r1"}
        assert happened(marks)[1] == 0
