"""Kills a publication at each of its crash points and looks at what is left: `... FOLDER`.

A process of its own, because only one without threads may fork. Prints one JSON object: for each
point what the store and the repository said after the death, and again after the next start.
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

from tests.faults.warming import keep

from vedette.adapters.bundles.repository import open_repository
from vedette.app.policy_publication import FolderSigner
from vedette.config.deployment import Deployment, PolicyPlan
from vedette.domain.base import failpoint
from vedette.policy.distribution import Archive, read_repository
from vedette.testing.faults import run_in_child
from vedette.testing.harness import FleetHarness, copy_policies

NAME = "harbour.tar.gz"


def harness(folder: Path) -> FleetHarness:
    return FleetHarness(folder, edges=Deployment(policy=PolicyPlan(bundles=str(folder / "shelf"))))


async def prepare(folder: Path) -> None:
    async with harness(folder):
        pass


async def publish(folder: Path, edited: Path, begun: Callable[[], None]) -> None:
    async with harness(folder) as fleet:
        begun()
        await fleet.apply_policy(edited)


async def look(folder: Path, edited: Path) -> dict[str, Any]:
    """Return what is left, what a start makes of it, and what the same order brings then."""
    state = folder / "state"
    async with harness(folder) as fleet:
        store, signer = fleet.app.store, FolderSigner(state)
        repository = open_repository(str(folder / "shelf"))
        number, digest = store.policy.live_revision()
        kept = Archive.load_live(store)
        entries = {e["policy_rev"]: e for e in fleet.entries("policy.published")}
        found = repository.get(NAME)
        left: dict[str, Any] = {
            "live": number,
            "shelf": signer.read(found[0])[0] if found else None,
            "kept": kept is not None and kept.bundle == digest,
            "recorded": kept is not None and entries[number]["archive"] == kept.digest,
            "revisions": [each for each, _, _ in store.policy.revisions()],
        }
        distributor = fleet.app.rollout.distributor
        assert distributor is not None
        left["told"] = await distributor.repair()
        left["mended"] = read_repository(repository, NAME, signer, number) == (number, digest)
        done = await fleet.apply_policy(edited)
        left["repeated"] = done["revision"]
        left["then"] = read_repository(repository, NAME, signer, 2) == store.policy.live_revision()
        return left


class FromHere:
    """Lets the crash points pass uncounted until a publication begins."""

    def __init__(self) -> None:
        self._counting = failpoint.hook
        failpoint.hook = None

    def __call__(self) -> None:
        failpoint.hook = self._counting


def warm(folder: Path, edited: Path) -> None:
    """Load once, in the parent, what every child would load again."""
    keep("vedette.config.fleet", "load_fleet", lambda root, settings, **_: root)
    keep("vedette.policy.bundle_data", "mount", lambda files: frozenset(files.items()))
    keep("vedette.adapters.policy_engines.regorus.stage", "read_bundle", lambda folder: folder)
    app: Any = import_module("vedette.app.composition_root")
    app.Dispatcher = partial(app.Dispatcher, handlers=8)
    asyncio.run(publish(folder, edited, lambda: None))


def main(folder: Path) -> None:
    template, edited = folder / "template", copy_policies(folder / "edited")
    denies = edited / "denies" / "data.yaml"
    denies.write_text(denies.read_text() + "# looked at\n")
    warm(folder / "warm", edited)
    made = run_in_child(lambda: asyncio.run(prepare(template)))
    assert not made.error, made.error
    found = []
    die_at = 0
    while True:
        die_at += 1
        own = folder / f"at-{die_at}"
        shutil.copytree(template, own)

        def work(own: Path = own) -> None:
            asyncio.run(publish(own, edited, FromHere()))

        ended = run_in_child(work, die_at=die_at)
        assert ended.killed or not ended.error, ended.error
        if not ended.killed:
            break
        path = own / "told.json"

        def see(own: Path = own, path: Path = path) -> None:
            path.write_text(json.dumps(asyncio.run(look(own, edited))))

        seen = run_in_child(see)
        assert not seen.error, seen.error
        found.append({"at": ended.last_point, **json.loads(path.read_text())})
        shutil.rmtree(own)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
