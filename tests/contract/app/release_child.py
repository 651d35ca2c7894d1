"""Kills a release at each of its crash points and looks at what is left: `... FOLDER`.

A process of its own, because only one without threads may fork. Prints one JSON list: for each
point which entries the release left, and what the next start runs.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.contract.app.policy_publish_child import FromHere
from tests.faults.scenario import BANK, BANK_YAML
from tests.faults.warming import keep

from vedette.config.agent_folder import release_digest
from vedette.testing.faults import run_in_child
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, toy_fleet

KINDS = ("agent.released", "recall.decided")


def write(folder: Path) -> None:
    """Write a toy fleet whose agent is taught out of a bank."""
    toy_fleet(folder, World())
    bank = folder / "content/memory" / BANK
    bank.mkdir()
    (bank / "bank.yaml").write_text(BANK_YAML.replace("[worker, other]", "[worker]"))
    charter = folder / "content/agents/worker/agent.yaml"
    charter.write_text(charter.read_text() + "memory: [{bank: notes, scope: all}]\n")


def harness(folder: Path) -> FleetHarness:
    return FleetHarness(
        folder, content=folder / "content", policies=folder / "policies",
        targets={"world": {"kind": "world", "world": World()}},
    )  # fmt: skip


async def release(folder: Path, begun: Callable[[], None]) -> None:
    """Start a fleet, change its agent's folder, and release it."""
    async with harness(folder) as fleet:
        agent = folder / "content/agents/worker"
        (agent / "instruction.md").write_text("Do what the event says, and well.\n")
        (folder / "head").write_text(str(fleet.app.store.ledger.last_seq()))
        begun()
        await fleet.app.releases.release(fleet.order(), "worker")


async def look(folder: Path) -> dict[str, Any]:
    """Return what the release left in the ledger, and what a start runs."""
    head = int((folder / "head").read_text())
    async with harness(folder) as fleet:
        entries = [entry for kind in KINDS for entry in fleet.entries(kind) if entry["seq"] > head]
        first = min(e["seq"] for e in fleet.entries("fleet.loaded") if e["seq"] > head)
        return {
            "kinds": [
                e["kind"] for e in sorted(entries, key=lambda e: e["seq"]) if e["seq"] < first
            ],
            "runs": fleet.app.services.fleet.agent("worker").release,
            "folder": release_digest(folder / "content/agents/worker"),
        }


def main(folder: Path) -> None:
    keep("vedette.policy.bundle_data", "mount", lambda files: frozenset(files.items()))
    keep("vedette.adapters.policy_engines.regorus.stage", "read_bundle", lambda folder: folder)
    app: Any = import_module("vedette.app.composition_root")
    app.Dispatcher = partial(app.Dispatcher, handlers=8)
    write(folder / "warm")
    asyncio.run(release(folder / "warm", lambda: None))
    write(folder / "template")
    found = []
    die_at = 0
    while True:
        die_at += 1
        own = folder / f"at-{die_at}"
        shutil.copytree(folder / "template", own)

        def work(own: Path = own) -> None:
            asyncio.run(release(own, FromHere()))

        ended = run_in_child(work, die_at=die_at)
        assert ended.killed or not ended.error, ended.error
        if not ended.killed:
            break

        def see(own: Path = own) -> None:
            (own / "told.json").write_text(json.dumps(asyncio.run(look(own))))

        seen = run_in_child(see)
        assert not seen.error, seen.error
        found.append({"at": ended.last_point, **json.loads((own / "told.json").read_text())})
        shutil.rmtree(own)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
