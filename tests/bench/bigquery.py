"""What shipping the ledger and polling a table cost: `python -m tests.bench.bigquery`.

Against the real emulator, whose own time is most of what the clock shows; so our share is given in
seconds of a core, and the emulator's beside it. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from tests.bigquery import PROJECT, Dataset, Emulator, find_python
from tests.store_parts import store_of

from vedette.adapters.bigquery.config import BigQueryFile
from vedette.adapters.bigquery.reconciliation import find_differences
from vedette.adapters.bigquery.shipper import Shipper
from vedette.adapters.bigquery.source import BigQuerySource
from vedette.adapters.bigquery.tables import ShippedRowEncoder
from vedette.adapters.bigquery.warehouse import Warehouse
from vedette.domain.base.canonical import canonical_json
from vedette.testing.clock import ManualClock
from vedette.testing.intake import ListIntake
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet

T0 = 1_790_000_000_000_000


class Reader:
    """A ledger in memory, made of a real one's entries over and over, and its marks."""

    def __init__(self, entries: list[tuple[int, bytes]]) -> None:
        self.entries, self.marks = entries, dict[str, str]()

    def entries_after(self, after: int, limit: int) -> list[tuple[int, bytes]]:
        return self.entries[after : after + limit]

    def meta(self, name: str) -> str | None:
        return self.marks.get(name)

    async def compare_and_set_meta(self, name: str, was: str | None, value: str) -> bool:
        held = self.marks.get(name) == was
        if held:
            self.marks[name] = value
        return held

    def close(self) -> None: ...


async def real_entries(folder: Path) -> list[bytes]:
    """Return what a few events leave in a ledger: accepted, turn, decision, effect, closed."""
    async with toy_fleet(folder, World()) as fleet:
        await fleet.send(*(job(str(n), send_proposal("hello"), key=str(n)) for n in range(20)))
        await fleet.wait_until_idle()
        return [raw for _, raw, _, _ in fleet.app.store.ledger.walk() if b"event" in raw]


def ledger_of(raws: list[bytes], count: int) -> Reader:
    made: list[tuple[int, bytes]] = []
    for seq in range(1, count + 1):
        value = {**orjson.loads(raws[seq % len(raws)]), "seq": seq, "at": T0 + seq * 1000}
        made.append((seq, canonical_json(value)))
    return Reader(made)


@contextmanager
def timed(figures: dict[str, Any], name: str, count: int, emulator: Emulator) -> Iterator[None]:
    """Note the seconds, ours and the emulator's microseconds of a core for each of `count`."""
    began, cpu, theirs = time.monotonic(), time.process_time(), emulator.cpu_s()
    yield
    seconds = time.monotonic() - began
    figures[name] = {
        "count": count,
        "seconds": round(seconds, 2),
        "per_second": round(count / seconds),
        "cpu_us_each": round((time.process_time() - cpu) / count * 1e6, 1),
        "emulator_cpu_us_each": round((emulator.cpu_s() - theirs) / count * 1e6, 1),
    }


async def ship(figures: dict[str, Any], emulator: Emulator, raws: list[bytes], count: int) -> None:
    """Ship a ledger, and compare what came of it."""
    data = Dataset(emulator)
    warehouse = Warehouse(PROJECT, data.short)
    warehouse.prepare()
    reader = ledger_of(raws, count)
    encoder = ShippedRowEncoder("ledger", "bench")
    began = time.process_time()
    encoder.batch(reader.entries[:1000], 0)
    figures["encode_cpu_us_each"] = round((time.process_time() - began) * 1e3, 1)
    store = store_of(reader)
    shipper = Shipper("bench", store, lambda: store, warehouse)
    with timed(figures, "ship", count, emulator):
        assert await shipper.ship() == count
    with timed(figures, "ship_nothing", 20, emulator):
        for _ in range(20):
            assert await shipper.ship() == 0
    wrong = find_differences(warehouse, "bench", store.ledger, count)
    assert not any(what for _, what in wrong.values()), wrong
    await shipper.close()
    data.close()


async def poll(figures: dict[str, Any], emulator: Emulator, count: int) -> None:
    """Read the rows of a table, then ask again with nothing new in the overlap and with nothing."""
    data = Dataset(emulator)
    data.ask("CREATE TABLE `{d}.t` (id STRING, at_time TIMESTAMP, value INT64, note STRING)")
    data.ask(
        "INSERT INTO `{d}.t` (id, at_time, value, note) SELECT CAST(n AS STRING), "
        f"TIMESTAMP_MICROS({T0} + n * 1000), n, 'a note of some forty characters, or so' "
        f"FROM UNNEST(GENERATE_ARRAY(1, {count})) AS n"
    )
    plan = BigQueryFile(
        name="t", project=PROJECT, dataset=data.short, table="t", type="x.y",
        time_column="at_time", id_column="id", every="1ms", behind="0s", begin="start",
    )  # fmt: skip
    intake, clock = ListIntake(), ManualClock(T0 + 60_000_000)
    source = BigQuerySource(plan, clock, watch=False)
    with timed(figures, "read_rows", count, emulator):
        await source.deliver(intake)
    assert len(intake.events) == count
    with timed(figures, "look_back_rows", count, emulator):
        await source.deliver(intake)
    far = plan.replace(overlap="0s", begin="now")
    idle = BigQuerySource(far, clock, watch=False)
    with timed(figures, "poll_nothing", 20, emulator):
        for _ in range(20):
            await idle.deliver(intake)
    data.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=5_000)
    given = parser.parse_args()
    emulator = Emulator(find_python())
    os.environ.update(emulator.environ)
    figures: dict[str, Any] = {"load": os.getloadavg()[0], "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder:
        raws = asyncio.run(real_entries(Path(folder)))
    asyncio.run(ship(figures, emulator, raws, given.entries))
    asyncio.run(poll(figures, emulator, given.rows))
    print(json.dumps(figures, indent=2))
    emulator.close()


if __name__ == "__main__":
    main()
