"""The bench of several workers: each has its share, and what it says was written."""

from __future__ import annotations

import psycopg
import pytest
from tests.bench.postgres_workers import BATCH, measure
from tests.pg import server
from tests.said import ROOT


@pytest.mark.parametrize("options", [[], ["--line", "--in-process"]], ids=["writing", "line"])
def test_what_two_workers_say_was_written_is_there(options: list[str]) -> None:
    found_server = server()
    url = found_server.fresh()
    found = measure(ROOT, url, found_server.pid, 2, 0.2, options)
    assert min(found["per_s"], found["cpu_us"], found["group"], found["p50_ms"]) > 0
    assert found["p50_ms"] <= found["p99_ms"]
    with psycopg.connect(url) as connection:
        ((runs, shards),) = connection.execute(
            "SELECT COUNT(*), COUNT(DISTINCT shard) FROM run WHERE state='done'"
        ).fetchall()
    assert runs >= 2 * BATCH
    assert shards > 32, "one worker alone wrote"
