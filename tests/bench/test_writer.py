"""The bench of the writer: what it gives again is what was written, and the same each time."""

from __future__ import annotations

from pathlib import Path

from tests.bench.line import Load
from tests.bench.writer import record
from tests.bench.writer_replay import PARTS, replay


async def test_a_replay_writes_the_same_rows_each_time(tmp_path: Path) -> None:
    await record(tmp_path, Load(events=40, keys=4, isolated=False))
    first, again = replay(tmp_path), replay(tmp_path)
    assert first["events"] == again["events"] == 40
    assert first["digest"] == again["digest"]
    assert set(first["cpu_us"]) == set(PARTS)
    smaller = replay(tmp_path, group_size=3)
    assert smaller["groups"] > first["groups"]
    # More heads are signed, so more rows are written.
    assert smaller["digest"] != first["digest"]
