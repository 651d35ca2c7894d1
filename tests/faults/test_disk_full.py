"""Showing 9: the disk fills up under load and is freed again; no answer was a lie."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.contract.store.test_store_sqlite import mounts, need_mounts
from tests.faults.full_child import events

from vedette.adapters.ledger_export import verify_store
from vedette.store.sqlite import SqliteReader

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_disk_that_fills_up_under_load_costs_nothing_and_the_fleet_goes_on(
    tmp_path: Path,
) -> None:
    need_mounts(mounts())
    small, outside = tmp_path / "small", tmp_path / "outside"
    small.mkdir()
    outside.mkdir()
    child = shlex.join([sys.executable, "-m", "tests.faults.full_child", str(small), str(outside)])
    script = (
        f"mount -t tmpfs -o size=64m tmpfs {shlex.quote(str(small))} && {child} && "
        f"cp -r {shlex.quote(str(small / 'state'))} {shlex.quote(str(outside))}/"
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        capture_output=True, text=True, timeout=250, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    text = json.loads((outside / "told.json").read_text(encoding="utf-8"))
    assert len(text["failures"]) >= 20, "the disk never was full"
    assert any("full" in failure for failure in text["failures"])
    assert text["unready"], "a fleet that could not commit said that it was ready"
    assert text["ready"]
    audit_outcome(outside)


def audit_outcome(outside: Path) -> None:
    """Compare the target's own record and the source's receipts with the store."""
    wanted = {event.key: event for event in events()}
    accepted = Counter((outside / "accepted").read_text(encoding="ascii").split())
    assert accepted.keys() == wanted.keys()
    assert set(accepted.values()) == {1}
    record = [json.loads(line) for line in (outside / "world.jsonl").read_bytes().splitlines()]
    happened = Counter(line["text"] for line in record if line["effect"])
    assert happened == Counter(event.id for event in wanted.values())
    store = SqliteReader(outside / "state")
    try:
        for key in wanted:
            (run,) = store.runs.runs_of_event(key)
            assert run.state == "done"
        texts = [store.runs.row("worker_notes", f"k{n}") or {} for n in range(7)]
        assert sorted(text for row in texts for text in row["texts"]) == sorted(happened)
        public = (outside / "state" / "ledger.pub").read_text(encoding="ascii")
        report = verify_store(store.ledger, public, outside / "state" / "witness.log")
        assert report.ok, report.findings
    finally:
        store.close()
