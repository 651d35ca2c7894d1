"""What is kept of a task from turn to turn is what a run that is read again has, whatever is done.

Tasks of random turns on the whole line; after each commit the run is read anew, and compared.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict
from tests.contract.engine.test_tasks import add, close, finish, order, says, send, working_fleet

from vedette.domain.action import Proposal
from vedette.domain.memory import Briefing
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import Step
from vedette.engine.run_context import RunContext
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import DESK, World

DONE = """\
version: 1
conditions:
  - {name: sent, action: wire.send, at_least: 3}
  - {name: large, action: big.send, answer: /text, equals: big 2}
  - {name: list, items: closed, at_least: 2}
  - {name: noted, rows: /texts/1, equals: never}
"""
TURNS = 24
WORK = f"{{max_turns: {TURNS}, no_progress: 1000}}"


def propose(draw: random.Random, briefing: Briefing) -> Proposal:
    """Return what an agent might propose, sensible or not."""
    current = briefing.task["items"].get("current", {}).get("id", "none")
    note = {"key": Ref("/event/subject"), "text": f"n{draw.randrange(9)}"}
    turns = {"turn_from": 1, "turn_to": max(1, briefing.turn - 1)}
    choices = [
        add(f"i{draw.randrange(6)}"),
        close(current, draw.choice(("done", "failed", "set_aside", "open"))),
        send(f"letter {draw.randrange(3)}"),
        send(f"letter {draw.randrange(3)}"),
        Proposal("big.send", {"to": DESK, "text": f"big {draw.randrange(3)}"}),
        Proposal("note.add", note),
        Proposal("history.read", turns),
        finish(),
        Proposal("no.such", {}),
    ]
    return draw.choice(choices)


def kept(context: RunContext, *, turns: bool) -> dict[str, Any]:
    """Return all that a context keeps of its task, and what it makes of it."""
    task = context.task
    assert task is not None
    found = asdict(context.history)
    # Read when it is asked for.
    for name in ("_labelled", "_labels", "_targeted", "_target_texts"):
        found.pop(name)
    return {
        **found,
        "texts": set(context.history.target_texts()),
        "labels": context.labels(),
        "items": (task.items, task.step_items),
        "told": task.told,
        "tell": task.tell(context._rest, context.history, {}),
        "history": (task.history.turns, task.history.told) if turns else None,
    }


@pytest.mark.parametrize(("seed", "kind"), [(1, "judge"), (2, "adk"), (3, "judge")])
async def test_what_is_kept_is_what_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, kind: str
) -> None:
    draw, compared = random.Random(seed), [0]

    def answer(briefing: Briefing) -> ReasonerJudgement:
        return says(*[propose(draw, briefing) for _ in range(draw.randint(0, 4))])

    commit = RunContext.commit

    async def commit_and_compare(context: RunContext, step: Step, *more: Any) -> None:
        turn = context.run.turn
        await commit(context, step, *more)
        if context.task is None or not context.run.turn:
            return
        run = context.services.store.runs.run(context.run.id)
        assert run is not None
        fresh = RunContext.open(context.services, run, context.epoch, context.event)
        # A turn that was just committed is taken in a moment later.
        turns = turn == context.run.turn
        assert kept(context, turns=turns) == kept(fresh, turns=turns)
        compared[0] += 1

    monkeypatch.setattr(RunContext, "commit", commit_and_compare)
    fleet, _ = working_fleet(tmp_path, World(), answer, kind=kind, work=WORK, done=DONE)
    async with fleet:
        run = (await order(fleet, "start", agent="worker", goal="at random"))["run"]
        for _ in range(100):
            await fleet.wait_until_idle()
            held = held_of(fleet, run)
            if not held:
                break
            for row in held:
                if draw.random() < 0.7:
                    await fleet.approve(row)
                else:
                    await fleet.app.commands.deny(fleet.order(), row.id)
        found = fleet.app.store.runs.run(run)
        assert found is not None
        assert (found.state, found.waits, found.turn) == ("waiting", "person", TURNS)
    assert compared[0] > TURNS


def held_of(fleet: FleetHarness, run: str) -> list[Any]:
    return [row for row in fleet.app.store.runs.actions(run) if row.waits == "approval"]
