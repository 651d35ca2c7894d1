"""Killed at any point of a correction, a promotion or a taking back, it is whole or it is not.

A correction stands with its event or not at all; what is recalled after the next start is what the
ledger says; and who repeats the order finds it done exactly once.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.fleet.test_learning import desk, judged, learned, order

from vedette.domain.base import failpoint
from vedette.domain.base.errors import AlreadyDone
from vedette.testing.faults import run_in_child

# A commit is a commit; what comes between it and the bank is the order's own.
ORDERS = {
    "correct": ("commit:mid", "commit:after"),
    "memory_approve": ("settle:before",),
    "memory_off": ("settle:before",),
}


async def prepare(folder: Path) -> None:
    """Bring a fleet to where each order can be given, and keep the state before each."""
    fleet = desk(folder)
    for verb, args in (
        ("correct", None),
        ("memory_approve", {"id": "cnd_"}),
        ("memory_off", {"id": "cnd_"}),
    ):
        await fleet.open()
        if args is None:
            run, _ = await judged(fleet, "1")
            args = {"run": run.id, "should": "legal"}
        await fleet.close()
        shutil.copytree(folder / "state", folder / verb)
        (folder / f"{verb}.json").write_text(json.dumps(args))
        await fleet.open()
        await order(fleet, verb, **args)
        await fleet.close()


async def give(folder: Path, verb: str) -> None:
    """Give the order; only its own crash points count."""
    hook, failpoint.hook = failpoint.hook, None
    fleet = desk(folder)
    async with fleet:
        args = json.loads((folder / f"{verb}.json").read_text())
        failpoint.hook = hook
        try:
            await order(fleet, verb, **args)
        except AlreadyDone:
            (folder / "done").touch()
        failpoint.hook = None


async def look(folder: Path) -> None:
    """Start again, let everything be handled, and write down what there is."""
    async with desk(folder) as fleet:
        await fleet.wait_until_idle()
        kinds = ("run.corrected", "memory.proposed", "memory.promoted", "memory.retired")
        found: dict[str, Any] = {kind: len(fleet.entries(kind)) for kind in kinds}
        events = [
            fleet.app.store.runs.event(one["event"]) for one in fleet.entries("event.accepted")
        ]
        found["events"] = [one.type for one in events if one is not None]
        found["states"] = [one["state"] for one in await learned(fleet)]
        curating = fleet.app.commands.curation
        assert curating is not None
        lessons = curating.lessons.preview_lessons(
            "inbox_triage", fleet.app.services.clock.now_us()
        )
        found["taught"] = sum(one.trust == "learned" for one in lessons)
    (folder / "found.json").write_text(json.dumps(found))


def found(folder: Path) -> dict[str, Any]:
    ended = run_in_child(lambda: asyncio.run(look(folder)))
    assert not ended.error, ended.error
    text: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return text


def whole(answer: dict[str, Any]) -> None:
    """Check that nothing stands half."""
    corrections = answer["events"].count("vedette.correction")
    assert (
        answer["run.corrected"] == corrections == answer["memory.proposed"] == len(answer["states"])
    )
    active = answer["memory.promoted"] - answer["memory.retired"]
    assert answer["taught"] == answer["states"].count("active") == active


@pytest.mark.forks
def test_killed_within_an_order_it_stands_whole_or_not_at_all_and_once_when_repeated(
    tmp_path: Path,
) -> None:
    asyncio.run(prepare(tmp_path))  # here, so that no child has to load what a fleet is made of
    stood: dict[str, set[bool]] = {}
    for verb, points in ORDERS.items():
        kind = {"correct": "run.corrected", "memory_approve": "memory.promoted"}.get(
            verb, "memory.retired"
        )
        for point in points:
            shutil.rmtree(tmp_path / "state", ignore_errors=True)
            shutil.copytree(tmp_path / verb, tmp_path / "state")
            died = run_in_child(lambda: asyncio.run(give(tmp_path, verb)), die_at=point)  # noqa: B023
            assert died.killed, (verb, point, died)
            left = found(tmp_path)
            whole(left)
            stood.setdefault(verb, set()).add(bool(left[kind]))
        repeat = run_in_child(lambda: asyncio.run(give(tmp_path, verb)))  # noqa: B023
        assert not repeat.error, repeat.error
        assert (tmp_path / "done").exists(), "the last point came after the commit"
        (tmp_path / "done").unlink()
        state = found(tmp_path)
        whole(state)
        assert state[kind] == 1
    # Control: some died before it stood, and some after.
    assert stood == {"correct": {False, True}, "memory_approve": {True}, "memory_off": {True}}
