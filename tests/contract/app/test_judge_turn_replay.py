"""Each later turn of a judge is judged again from the record; what is wrong with one is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest
from tests.contract.app.test_judge_replay import replay_all
from tests.judge_turns import (
    READER_PY,
    look,
    reader_fleet,
    reading,
    turn_entries,
    turns_job,
    write_reader,
)

from vedette.adapters.ledger_export import write_segment
from vedette.domain.run import Step
from vedette.ledger.merkle import Checkpoint, parse_note
from vedette.operations.judge_report import ARCHIVED, CHANGED, MISSING, UNNAMED
from vedette.store.sqlite import SqliteReader
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (
    World,
    deny_policy,
    intercept_commits,
    note_proposal,
    send_proposal,
)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[FleetHarness]:
    async with reader_fleet(tmp_path, World()) as made:
        yield made


async def send(fleet: FleetHarness, *names: str) -> None:
    """Have events read, and one in between that writes their key's row at once."""
    for name in names:
        await fleet.send(reading(name), turns_job(f"{name}+", [note_proposal(name)]))
    await fleet.wait_until_idle()


async def test_all_of_them_come_out_as_they_were(fleet: FleetHarness) -> None:
    """With a row that others write meanwhile: which of them a turn saw is not on record."""
    await send(fleet, "1", "2")
    await fleet.restart()
    await send(fleet, "3")
    report = await replay_all(fleet.app)
    assert (report.to_json()["differences"], report.equal) == ([], 15)
    assert not report.unrecomputable


@pytest.mark.parametrize("workers", [False, True], ids=["here", "workers"])
async def test_a_judge_that_keeps_what_is_of_no_briefing_is_found(
    tmp_path: Path, workers: bool
) -> None:
    """It counts its turns in itself: after a restart that is another number."""
    code = READER_PY.replace(
        "    def judge_outcomes(self, briefing):\n",
        "    count = 0\n\n    def judge_outcomes(self, briefing):\n        self.count += 1\n"
        "        briefing.notes['seen'] = self.count\n",
    )
    asked = turns_job("1", [note_proposal("1")], [note_proposal("2")], [note_proposal("3")])
    async with reader_fleet(tmp_path, World(), code=code, workers=workers) as fleet:
        for at in range(3):
            event = turns_job(f"{at}", *asked.data["turns"], key=f"{at}")
            await fleet.send(event)
            await fleet.wait_until_idle(60)
            await fleet.restart()
        report = await replay_all(fleet.app)
    assert report.equal >= 3, "the first turns"
    assert {one.what for one in report.differences} == {"not deterministic"}


_EDIT = """
UPDATE action SET answer=CAST(replace(CAST(answer AS TEXT), 'page 1.2', 'page 9.9') AS BLOB)
WHERE CAST(answer AS TEXT) LIKE '%page 1.2%'
"""


async def edit(fleet: FleetHarness, sql: str) -> None:
    """Change the store behind the fleet's back."""
    state = fleet.app.settings.state
    await fleet.close()
    with apsw.Connection(str(state / "store.db")) as store:
        store.execute(sql)
        assert store.changes()
    await fleet.open()


async def test_an_outcome_that_was_edited_is_not_taken_for_what_came_back(
    fleet: FleetHarness,
) -> None:
    await fleet.send(reading("1"))
    await fleet.wait_until_idle()
    await edit(fleet, _EDIT)
    report = await replay_all(fleet.app)
    assert (report.ok, report.equal) == (False, 2)
    assert dict(report.unrecomputable) == {MISSING: 2}, "those that were told of it"


# What a row says of how its action ended, by whoever can write to the database.
EDITED_ENDS = {
    "denied": "UPDATE action SET effect=NULL, answer=NULL, decided='deny' WHERE tool='wire.send'",
    "cancelled": "UPDATE action SET effect='cancelled', answer=NULL WHERE tool='wire.send'",
    "gone": "DELETE FROM action WHERE tool='wire.send'",
    "permitted": "UPDATE action SET effect='cancelled', decided='permit' WHERE tool='bell.ring'",
    "failed": "UPDATE action SET effect='failed' WHERE tool='bell.ring'",
}
# It sends once more what was not sent.
RESENDER_PY = READER_PY.replace(
    "        return self._act(briefing, notes)\n",
    """        if any(answer["status"] != "done" for answer in briefing.turns[-1]["answers"][:2]):
            again = Proposal("wire.send", {"to": Ref("/charter/desk"), "text": "paid"}, "again")
            return Judgement("again", 1.0, (again,))
        return self._act(briefing, notes)
""",
)
PAYING = turns_job(
    "1",
    [look("1"), send_proposal("paid"), send_proposal("no", "bell.ring"),
     send_proposal("held", "big.send")],
    [note_proposal("$notes")],
)  # fmt: skip


@pytest.mark.parametrize("sql", EDITED_ENDS.values(), ids=EDITED_ENDS)
async def test_no_turn_is_told_of_an_end_that_the_ledger_does_not_say(
    tmp_path: Path, sql: str
) -> None:
    world = World()
    async with reader_fleet(
        tmp_path, world, code=RESENDER_PY, extra=deny_policy("bell.ring")
    ) as fleet:
        await fleet.send(PAYING)
        await fleet.wait_until_idle()
        denied, held = fleet.actions(PAYING)[2:]
        assert (denied.decided, held.decided) == ("deny", "hold")
        await edit(fleet, sql)
        await fleet.approve(held)
        await fleet.wait_until_idle()
        (run,) = fleet.runs(PAYING)
        assert (run.state, run.turn) == ("dead", 1)
        assert [one["what"] for one in fleet.entries("run.dead")] == ["permanent"]
        assert world.texts("wire.send") == ["paid"]


@pytest.mark.parametrize("sql", EDITED_ENDS.values(), ids=EDITED_ENDS)
async def test_nor_is_one_judged_again_of_it(tmp_path: Path, sql: str) -> None:
    async with reader_fleet(tmp_path, World(), extra=deny_policy("bell.ring")) as fleet:
        await fleet.send(PAYING)
        await fleet.wait_until_idle()
        await fleet.approve(fleet.actions(PAYING)[3])
        await fleet.wait_until_idle()
        assert (await replay_all(fleet.app)).equal == 2
        await edit(fleet, sql)
        report = await replay_all(fleet.app)
        assert (report.ok, dict(report.unrecomputable)) == (False, {MISSING: 1})


async def test_a_turn_that_says_it_had_a_state_of_its_key_is_found(fleet: FleetHarness) -> None:
    """Nor does the engine keep a checkpoint that comes with one."""

    async def with_state(step: Step) -> Step | None:
        for draft in step.drafts:
            if draft.kind == "turn.reasoned" and step.turn == 2:
                draft.fields["state"] = f"{draft.fields['state']}{'0' * 12}"  # type: ignore[index]
        return None

    intercept_commits(fleet, with_state)
    await fleet.send(reading("1"))
    await fleet.wait_until_idle()
    report = await replay_all(fleet.app)
    assert [one.what for one in report.differences] == ["state"]
    assert report.equal == 3


async def test_a_later_turn_whose_judge_has_no_name_is_no_answer_of_a_model(
    fleet: FleetHarness,
) -> None:
    async def without_state(step: Step) -> Step | None:
        for draft in step.drafts:
            if draft.kind == "turn.reasoned" and step.turn == 2:
                del draft.fields["state"]  # type: ignore[attr-defined]
        return None

    intercept_commits(fleet, without_state)
    await fleet.send(reading("1"))
    await fleet.wait_until_idle()
    report = await replay_all(fleet.app)
    assert (report.equal, report.answers, dict(report.unrecomputable)) == (3, 0, {UNNAMED: 1})


async def test_another_release_takes_a_later_turn_and_each_is_judged_by_its_own(
    fleet: FleetHarness,
) -> None:
    held = send_proposal("a", "big.send")
    event = turns_job("1", [held], [note_proposal("$notes")])
    await fleet.send(event)
    await fleet.wait_until_idle()
    await fleet.close()
    write_reader(fleet.content, READER_PY.replace('f"turn {', 'f"another turn {'))
    await fleet.open()
    (row,) = fleet.actions(event)
    await fleet.approve(row)
    await fleet.wait_until_idle()
    first, second = turn_entries(fleet, event)
    assert first["release"] != second["release"]
    assert (first["label"], second["label"]) == ("turn 1, seen 1", "another turn 2, seen 1")
    assert (await replay_all(fleet.app)).equal == 2
    for kept in (fleet.app.settings.state / "releases").iterdir():
        if kept.name == first["release"]:
            (kept / "worker/judge.py").chmod(0o600)
            (kept / "worker/judge.py").write_text("changed")
    report = await replay_all(fleet.app)
    assert (report.ok, report.equal, dict(report.unrecomputable)) == (True, 1, {CHANGED: 1})


async def test_an_archive_may_end_between_any_two_turns(
    fleet: FleetHarness, tmp_path: Path
) -> None:
    await send(fleet, "1")
    state, key = fleet.folder / "state", (fleet.folder / "state/ledger.pub").read_text().strip()
    await fleet.close()
    store = SqliteReader(state)
    sizes = [
        Checkpoint.from_body(parse_note(note).body).size for note in store.ledger.checkpoints()
    ]
    turns = {seq: json.loads(raw) for seq, raw, _, _ in store.ledger.walk(("turn.reasoned",))}
    store.close()
    cut: list[tuple[int, int]] = []
    for size in sizes:
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
        left = [one for seq, one in turns.items() if seq > size]
        assert report.judgements == len(left)
        assert report.equal + report.unrecomputable[ARCHIVED] == len(left)
        cut.append((report.equal, len(left)))
    assert any(0 < equal < number for equal, number in cut), "some were told of what is archived"
    assert {number for _, number in cut} >= {1, 2, 3}, "it ended between turns"
