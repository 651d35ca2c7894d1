"""Replay of judges finds what was judged out of order, on a stale state, or by chance."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from vedette.adapters.ledger_export import write_segment
from vedette.adapters.reasoners.in_process import InProcessReasoner
from vedette.app.composition_root import App
from vedette.app.judge_releases import open_judges
from vedette.app.stores import open_reader
from vedette.app.workers import build_judge_reasoner
from vedette.config.agent_loader import build_judge
from vedette.domain.event import Event
from vedette.domain.judge_state import judge_digest
from vedette.domain.run import Lease, Step
from vedette.engine.handle import handle
from vedette.engine.key_state import KeyStates
from vedette.ledger.merkle import Checkpoint, parse_note
from vedette.operations.judge_replay import replay_judges
from vedette.operations.judge_report import ARCHIVED, CHANGED, ERASED, UNNAMED, JudgeReport
from vedette.store.sqlite import SqliteReader
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (
    JUDGE_PY,
    World,
    intercept_commits,
    job,
    note_proposal,
    send_proposal,
    toy_fleet,
)

EVENTS = 12
CONFIG = """\
fleet = "harbour"
state = "state"
[content]
agents = "content/agents"
policies = "policies"
memory = "content/memory"
[targets.world]
kind = "webhook"
url = "http://127.0.0.1:9/hook"
"""


async def replay_all(app: App) -> JudgeReport:
    """Replay what a fleet judged."""
    store = open_reader(app.settings)
    try:
        with open_judges(app.settings, store, app.services.clock) as found:
            return await replay_judges(store, found)
    finally:
        store.close()


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[FleetHarness]:
    async with toy_fleet(tmp_path, World()) as made:
        yield made


async def some(fleet: FleetHarness, first: int = 1, number: int = EVENTS, **data: Any) -> None:
    """Have events of two keys judged; some act, and some write the row of their key."""
    for at in range(first, first + number):
        does = (
            (send_proposal(f"{at}"),)
            if at % 3 == 0
            else (note_proposal(f"{at}"),)
            if at % 3 == 1
            else ()
        )
        await fleet.send(job(f"e{at}", *does, key="ab"[at % 2], value=at, **data))
    await fleet.wait_until_idle()


async def test_a_sound_record_is_judged_again_with_the_same_answers(fleet: FleetHarness) -> None:
    await some(fleet)
    await fleet.restart()
    await some(fleet, EVENTS + 1)
    report = await replay_all(fleet.app)
    assert (report.ok, report.judgements, report.equal) == (True, 2 * EVENTS, 2 * EVENTS)
    assert {entry["state"] for entry in fleet.entries("run.closed") if "label" in entry}


def checkpoint_often(fleet: FleetHarness) -> None:
    """Have the fleet's judges make a checkpoint of every eighth event of a key."""
    agent = fleet.app.services.fleet.agent("worker")
    often = InProcessReasoner(
        lambda _: build_judge(agent, ()), checkpoint_every=8,
        digest_of=lambda _: judge_digest(agent.release, ()),
    )  # fmt: skip
    fleet.app.services.reasoners = {"judge": often}


async def test_checkpoints_are_made_again(fleet: FleetHarness) -> None:
    checkpoint_often(fleet)
    await some(fleet, number=36)
    await fleet.restart()
    await some(fleet, 37)
    report = await replay_all(fleet.app)
    assert (report.to_json()["differences"], report.equal, report.states) == ([], 48, 2)


# --- what it has to find ------------------------------------------------------------------------


@contextmanager
def another_worker(fleet: FleetHarness) -> Iterator[None]:
    """Let what is handled inside be judged by a process that holds other states."""
    line = fleet.app.services
    here, keys = line.reasoners, line.keys
    lessons = fleet.app.releases.lessons
    line.reasoners = {"judge": build_judge_reasoner(line.fleet, lessons, line.clock, None)}
    line.keys = KeyStates(line.store.judge_states, line.store.runs)
    try:
        yield
    finally:
        line.reasoners, line.keys = here, keys


async def anywhere(step: Step) -> Step:
    """Let a step be committed whatever its place among its key's events."""
    return step if step.order is None else replace(step, order=(step.order[0], -1, step.order[2]))


async def accept(fleet: FleetHarness, *events: Event) -> list[Lease]:
    """Accept events that nobody handles, in no order; return the leases of their runs."""
    await fleet.app.dispatcher.close()
    intercept_commits(fleet, anywhere)
    await fleet.send(*events)
    store = fleet.app.store
    runs = [run for event in events for run in fleet.runs(event)]
    return [Lease(run, store.cluster.lease_epoch(run) or 0) for run in runs]


async def test_an_event_that_was_judged_out_of_order_is_found(fleet: FleetHarness) -> None:
    first, second = await accept(fleet, job("1", value=1), job("2", value=2))
    await handle(fleet.app.services, second)
    with another_worker(fleet):
        await handle(fleet.app.services, first)
    report = await replay_all(fleet.app)
    (found,) = report.differences
    assert (found.what, found.event, found.position) == (
        "order", first.run.event, first.run.position,
    )  # fmt: skip
    assert (report.ok, report.equal, report.different) == (False, 1, 1)


async def test_a_judgement_on_a_stale_state_is_found(fleet: FleetHarness) -> None:
    """Also one that a right state would have judged alike: the state itself is named."""
    events = [job(f"{at}", value=0) for at in (1, 2, 3)]
    first, second, third = await accept(fleet, *events)
    await handle(fleet.app.services, second)
    with another_worker(fleet):
        await handle(fleet.app.services, first)
    # The worker that judged the second event never heard of the first.
    await handle(fleet.app.services, third)
    report = await replay_all(fleet.app)
    assert [found.what for found in report.differences] == ["order", "state"]
    stale = report.differences[1]
    assert stale.run == third.run.id
    assert stale.recorded["label"] == "sum 0 of 2"
    assert stale.again["label"] == "sum 0 of 3"
    assert stale.recorded["state"] != stale.again["state"]


async def test_a_state_that_was_edited_in_the_store_is_found(fleet: FleetHarness) -> None:
    checkpoint_often(fleet)
    await some(fleet, number=2 * 8 + 2)
    app = fleet.app
    await fleet.close()
    with apsw.Connection(str(app.settings.state / "store.db")) as store:
        sql = "UPDATE state SET blob=CAST(replace(CAST(blob AS TEXT), '[2,', '[7,') AS BLOB)"
        store.execute(sql)
        assert store.changes()
    report = await replay_all(app)
    assert [(found.what, found.key) for found in report.differences] == [("row", "a")]
    await fleet.open()
    await some(fleet, 1001, 2)
    report = await replay_all(fleet.app)
    first = report.differences[0]
    assert (first.what, first.key) == ("judgement", "a")
    assert first.recorded["label"] != first.again["label"]


@pytest.mark.parametrize("workers", [False, True], ids=["here", "workers"])
async def test_a_judge_that_is_not_deterministic_is_named_so(tmp_path: Path, workers: bool) -> None:
    fleet = toy_fleet(tmp_path, World(), workers=workers)
    judge = fleet.content / "agents" / "worker" / "judge.py"
    # An order that hangs on the seed of the process's own hashes; two of these eight are rare.
    by_chance = "list({f'{item}' for item in range(40)})" if workers else "random.random()"
    code = JUDGE_PY.replace("import json\n", "import json\nimport random\n")
    judge.write_text(code.replace('detail={"seen": seen}', f'detail={{"seen": {by_chance}}}'))
    async with fleet:
        await fleet.send(job("1", send_proposal(), value=1))
        await fleet.wait_until_idle()
        report = await replay_all(fleet.app)
    assert [found.what for found in report.differences] == ["not deterministic"]


def run_verb(config: Path, *verb: str) -> tuple[int, dict[str, Any]]:
    """Return how a verb ended, and what it told."""
    program = [str(Path(sys.executable).with_name("vedette")), "--config", str(config), *verb]
    ended = subprocess.run([*program, "--json"], stdout=subprocess.PIPE, check=False, timeout=120)
    return ended.returncode, json.loads(ended.stdout)


async def test_the_verbs_say_so_and_end_with_1(fleet: FleetHarness) -> None:
    """The program, as it is shipped: the judges run in workers, in their box."""
    config = fleet.folder / "vedette.toml"
    config.write_text(CONFIG, "utf-8")
    await some(fleet, number=4)
    await fleet.close()
    code, answer = run_verb(config, "verify", "judgements")
    assert (code, answer["equal"], answer["different"]) == (0, 4, 0)
    await fleet.open()
    leases = await accept(fleet, job("5", value=5), job("6", value=6))
    for lease in reversed(leases):
        with another_worker(fleet):
            await handle(fleet.app.services, lease)
    await fleet.close()
    code, answer = run_verb(config, "verify", "judgements")
    assert (code, answer["equal"], answer["different"]) == (1, 5, 1)
    assert answer["differences"][0]["what"] == "order"
    code, answer = run_verb(config, "verify", "all")
    assert (code, answer["ok"], answer["findings"], answer["deep"]["rows"]) == (1, False, [], [])
    assert (answer["deep"]["decisions"]["ok"], answer["deep"]["judgements"]["ok"]) == (True, False)


# --- what it must not take for a fault, nor for equal -------------------------------------------


async def test_a_judge_whose_code_has_changed_is_not_judged_again(fleet: FleetHarness) -> None:
    await some(fleet, number=4)
    folder = fleet.app.settings.state / "releases"
    await fleet.close()
    judge = fleet.content / "agents" / "worker" / "judge.py"
    judge.write_text(JUDGE_PY.replace("sum {", "total {"))
    await fleet.open()
    await some(fleet, 5, 4)
    report = await replay_all(fleet.app)
    assert (report.ok, report.equal) == (True, 8)  # the release before is kept
    for kept in folder.iterdir():
        if kept.name != fleet.app.services.fleet.agent("worker").release:
            (kept / "worker" / "judge.py").chmod(0o600)
            (kept / "worker" / "judge.py").write_text("changed")
    report = await replay_all(fleet.app)
    assert (report.ok, report.equal, report.unrecomputable[CHANGED]) == (True, 4, 4)


async def test_turns_from_before_states_had_names_are_read_and_counted(
    fleet: FleetHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vedette.adapters.reasoners.in_process.format_state_name", lambda made, seen: ""
    )
    await some(fleet, number=4)
    monkeypatch.undo()
    await fleet.restart()
    await some(fleet, 5, 4)
    report = await replay_all(fleet.app)
    assert (report.ok, report.equal, report.unrecomputable[UNNAMED]) == (True, 4, 4)


async def test_what_was_erased_is_said_to_be_erased(fleet: FleetHarness) -> None:
    await some(fleet, number=6)
    event = job("e2", key="a", value=2)
    await fleet.submit_confirmed("erase", event=event.key)
    await fleet.restart()
    await some(fleet, 7, 4)
    report = await replay_all(fleet.app)
    assert report.ok, report.to_json()
    assert report.unrecomputable[ERASED]
    assert report.equal >= 3 + 2


async def test_a_dead_letter_that_was_taken_up_again_is_no_fault(fleet: FleetHarness) -> None:
    await some(fleet, number=4)
    judge = fleet.content / "agents" / "worker" / "judge.py"
    raising: dict[str, Any] = {"raise": True}
    bad = job("bad", key="a", value=1, **raising)
    await fleet.send(bad)
    await some(fleet, 5, 4)
    assert [run.state for run in fleet.runs(bad)] == ["dead"]
    await fleet.close()
    judge.write_text(JUDGE_PY.replace('data.get("raise")', "False"))
    await fleet.open()
    (run,) = fleet.runs(bad)
    await fleet.submit_confirmed("redrive", runs=[run.id])
    await fleet.wait_until_idle()
    await some(fleet, 9, 4)
    report = await replay_all(fleet.app)
    assert report.ok, report.to_json()
    assert report.equal == 13


async def test_what_was_archived_is_no_fault_and_what_follows_is_judged_again(
    fleet: FleetHarness, tmp_path: Path
) -> None:
    await some(fleet, number=8)
    app = fleet.app
    store, line = SqliteReader(app.settings.state), app.settings.state / "ledger.pub"
    part = write_segment(
        store.ledger,
        tmp_path / "archive",
        app.store.ledger.last_seq(),
        line.read_text("utf-8").strip(),
    )
    store.close()
    await fleet.submit_confirmed("let_go", archived=part.to_bytes().decode())
    await some(fleet, 9, 6)
    report = await replay_all(app)
    assert report.ok, report.to_json()
    assert report.judgements == 6
    assert report.equal + report.unrecomputable[ARCHIVED] == 6
    await fleet.restart()
    await some(fleet, 15, 6)
    report = await replay_all(fleet.app)
    assert report.ok, report.to_json()
    assert report.judgements == 12


async def test_an_archive_may_end_anywhere_between_events_their_judgements_and_their_ends(
    fleet: FleetHarness, tmp_path: Path
) -> None:
    """What is archived was judged before; what is not is no judgement out of its order."""
    await some(fleet, number=4)
    await fleet.app.commands.stop(fleet.order(), agent="worker")
    for at in range(5, 11):
        await fleet.send(job(f"e{at}", send_proposal(f"{at}"), key="ab"[at % 2], value=at))
    accepted = fleet.app.store.ledger.last_seq()
    await fleet.app.commands.resume(fleet.order(), agent="worker")
    await fleet.wait_until_idle()
    await some(fleet, 11, 4)
    state, key = fleet.folder / "state", (fleet.folder / "state/ledger.pub").read_text().strip()
    await fleet.close()
    store = SqliteReader(state)
    sizes = [
        Checkpoint.from_body(parse_note(note).body).size for note in store.ledger.checkpoints()
    ]
    store.close()
    behind = [size for size in sizes if size >= accepted][:8]
    judged = []
    for size in behind:
        folder = tmp_path / str(size)
        shutil.copytree(state, folder / "state")
        copy = FleetHarness(
            folder, content=fleet.content, policies=fleet.policies, targets=fleet.targets
        )
        async with copy:
            part = write_segment(copy.app.store.ledger, folder / "archive", size, key)
            await copy.submit_confirmed("let_go", archived=part.to_bytes().decode())
            report = await replay_all(copy.app)
        assert report.ok, (size, report.to_json())
        judged.append(report.judgements)
    assert judged[0] == 10
    assert len(set(judged)) > 1
