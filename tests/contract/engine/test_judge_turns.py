"""A judge that takes several turns: reads, accumulates, acts; outcomes come back to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.cascades import cascade
from tests.contract.app.test_judge_replay import replay_all
from tests.judge_turns import (
    READER_PY,
    WRITE_NOTES,
    answer_pages,
    look,
    reader_fleet,
    reading,
    row_texts,
    turn_entries,
    turns_job,
    turns_of,
    write_reader,
)

from vedette.domain.effect import Call, Outcome
from vedette.domain.memory import Briefing
from vedette.domain.notes import MAX_NOTES
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import Reasoner, ReasonerJudgement, StatelessReasoner
from vedette.interfaces.render.explain_text import explain_text
from vedette.ledger.history.explain import explain
from vedette.testing import toy_fleet as toy
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (
    DESK,
    World,
    deny_policy,
    note_proposal,
    propose,
    send_proposal,
)


async def test_it_reads_accumulates_and_acts_over_four_turns(tmp_path: Path) -> None:
    world, event = World(), reading("1")
    async with reader_fleet(tmp_path, world) as fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        (run,) = fleet.runs(event)
        assert (run.state, run.turn) == ("done", 4)
        assert [call.args["name"] for call in world.calls] == ["1.1", "1.2", "1.3"]
        told = [["book.look", "done", f"page 1.{at}", f"/outcome/{at - 1}"] for at in (1, 2, 3)]
        assert [json.loads(text) for text in row_texts(fleet)] == [
            {"seen": 1, "half": 0.5, "told": told}
        ]
        bodies = turns_of(fleet, event)
        assert [body["final"] for body in bodies] == [False, False, False, True]
        assert [json.loads(body["notes"])["told"] for body in bodies[:3]] == [
            [],
            told[:1],
            told[:2],
        ]
        assert "notes" not in bodies[3], "nobody would be told of them"
        first, *later = [entry["state"] for entry in turn_entries(fleet, event)]
        assert (len(first), set(later)) == (20, {first[:8]}), "later turns have no state of the key"
        assert (await replay_all(fleet.app)).equal == 4


async def test_explain_tells_each_turn_with_its_notes(tmp_path: Path) -> None:
    event = reading("1", pages=1)
    async with reader_fleet(tmp_path, World()) as fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        told = explain(fleet.app.store, event.key)
        (run,) = told["runs"]
        kept = [(one["turn"], one["final"], one["notes"]) for one in run["judgements"]]
        assert kept == [(1, False, {"seen": 1, "half": 0.5, "told": []}), (2, True, None)]
        page = "\n".join(text for _, text in explain_text(told))
        assert "notes: half 0.5, seen 1" in page
        assert page.count("notes:") == 1


async def test_its_key_goes_on_meanwhile_and_its_state_is_not_touched(tmp_path: Path) -> None:
    world = World()
    slow = turns_job("1", [send_proposal("a", "big.send")], [look("2")], [WRITE_NOTES])
    async with reader_fleet(tmp_path, world) as fleet:
        await fleet.send(slow)
        await fleet.wait_until_idle()
        (held,) = fleet.actions(slow)
        assert held.decided == "hold"
        ahead = [turns_job(f"{at}", [note_proposal(f"{at}")]) for at in range(2, 6)]
        await fleet.send(*ahead)
        await fleet.wait_until_idle()
        await fleet.approve(held)
        await fleet.wait_until_idle()
        after = turns_job("6", [])
        await fleet.send(after)
        await fleet.wait_until_idle()
        assert [body["label"] for body in turns_of(fleet, slow)] == [
            f"turn {at}, seen 1" for at in (1, 2, 3)
        ]
        labels = [e["label"] for e in fleet.entries("run.closed") if "label" in e]
        assert labels == ["turn 1, seen 6"]
        # The row is told as it stands then; the place of a state is told in the first turn alone.
        details = [body["detail"] for body in turns_of(fleet, slow)]
        assert [one["row"].get("texts") for one in details] == [None, list("2345"), list("2345")]
        assert {one["previous"] for one in details} == {0}
        report = await replay_all(fleet.app)
        assert (report.to_json()["differences"], report.equal) == ([], 8)


async def test_each_end_of_its_proposals_comes_back(tmp_path: Path) -> None:
    world = World()

    def answer(call: Call) -> Outcome | None:
        if call.args.get("text") == "fails":
            return Outcome("failed", error="a secret of the target")
        return answer_pages(call)

    world.answer = answer
    proposals = [
        look("1"), send_proposal("fails"), send_proposal("no", "bell.ring"),
        send_proposal("yes", "big.send"), send_proposal("never", "big.send"),
        propose("no.such", to="x"), look("2"),
    ]  # fmt: skip
    event = turns_job("1", proposals, [WRITE_NOTES])
    async with reader_fleet(tmp_path, world, extra=deny_policy("bell.ring")) as fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert not row_texts(fleet), "it goes on when all of them are over"
        yes, never = [row for row in fleet.actions(event) if row.decided == "hold"]
        await fleet.approve(yes)
        await fleet.app.commands.deny(fleet.order(), never.id, fleet.shown_digest(never))
        await fleet.wait_until_idle()
        (text,) = row_texts(fleet)
        assert json.loads(text)["told"] == [
            ["book.look", "done", "page 1", "/outcome/0"],
            ["wire.send", "failed", None, None],
            ["bell.ring", "not permitted", None, None],
            ["big.send", "done", "yes", "/outcome/2"],
            ["big.send", "not permitted", None, None],
            ["no.such", "refused", None, None],
            ["book.look", "done", "page 2", "/outcome/3"],
        ]
        assert (await replay_all(fleet.app)).equal == 2


@pytest.mark.parametrize(("tool", "decided"), [("book.look", "deny"), ("book.sure", "permit")])
async def test_what_came_back_is_trusted_if_its_tool_is(
    tmp_path: Path, tool: str, decided: str
) -> None:
    """And was asked with what is trusted. `/to` decides who: a sink takes no stranger's word."""
    world = World(answer=lambda call: Outcome("done", {"who": "desk@example.org"}))
    sent = propose("wire.send", to=Ref("/outcome/0/who"), text="hello")
    event = turns_job("1", [propose(tool, name=DESK)], [sent])
    async with reader_fleet(tmp_path, world) as fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        looked, told = fleet.actions(event)
        assert (looked.decided, told.decided) == ("permit", decided)
        assert json.loads(told.record)["sources"]["/to"] == "/outcome/0/who"


class Cheat(StatelessReasoner):
    """A judge's worker that says of a later turn what is of a first one only."""

    def __init__(self, judge: Reasoner, **says: Any) -> None:
        self.judge, self.says = judge, says
        self.restored: list[Any] = []

    def restore_state(self, *given: Any) -> None:
        self.restored.append(given)

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        judgement = await self.judge.reason(briefing)
        return judgement if briefing.turn == 1 else replace(judgement, **self.says)


async def test_a_later_turn_cannot_change_the_state_of_its_key(tmp_path: Path) -> None:
    async with reader_fleet(tmp_path, World()) as fleet:
        services = fleet.app.services
        cheat = Cheat(services.reasoners["judge"], checkpoint=b'["forged"]', observed=True)
        services.reasoners = {"judge": cheat}
        await fleet.send(reading("1"))
        await fleet.wait_until_idle()
        assert fleet.app.store.judge_states.kept() == []
        assert all("checkpoint" not in one for one in fleet.entries("turn.reasoned"))
        assert (await replay_all(fleet.app)).equal == 4


async def test_a_later_turn_is_given_no_state(tmp_path: Path) -> None:
    async with reader_fleet(tmp_path, World()) as fleet:
        services = fleet.app.services
        cheat = Cheat(services.reasoners["judge"], needs_state=True)
        services.reasoners = {"judge": cheat}
        await fleet.send(reading("1"))
        await fleet.wait_until_idle()
        assert "cannot take up its state" in (await dead(fleet))[1]
        assert cheat.restored == []


# --- bounds ---------------------------------------------------------------------------------------


async def dead(fleet: FleetHarness) -> tuple[str | None, str]:
    """Return the code and the reason of the one dead letter."""
    ((_, raw, _, body),) = fleet.app.store.ledger.walk(("run.dead",))
    assert body is not None
    return json.loads(raw).get("what"), json.loads(body)["why"]


async def test_a_run_that_wants_more_turns_than_it_may_take(tmp_path: Path) -> None:
    world, event = World(), reading("1")
    async with reader_fleet(tmp_path, world, max_turns=2) as fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        code, why = await dead(fleet)
        assert code == "turn-limit"
        assert "wanted more than 2 turns (raise max_turns in worker/agent.yaml)" in why
        assert [call.args["name"] for call in world.calls] == ["1.1"], "that stands"
        assert fleet.runs(event)[0].turn == 1, "nothing of what asks for a third is decided"
        file = fleet.content / "agents/worker/agent.yaml"
        file.write_text(file.read_text("utf-8").replace("max_turns: 2", "max_turns: 4"), "utf-8")
        await fleet.restart()
        (run,) = fleet.runs(event)
        await fleet.app.commands.redrive(fleet.order(), [run.id])
        await fleet.wait_until_idle()
        assert [call.args["name"] for call in world.calls] == ["1.1", "1.2", "1.3"]
        assert len(row_texts(fleet)) == 1


async def test_one_turn_is_all_unless_agent_yaml_says_more(tmp_path: Path) -> None:
    world = World()
    async with reader_fleet(tmp_path, world, max_turns=1) as fleet:
        await fleet.send(reading("1"), turns_job("2", [send_proposal("hello")]))
        await fleet.wait_until_idle()
        code, why = await dead(fleet)
        assert (code, "more than 1 turn (raise" in why) == ("turn-limit", True)
        assert [call.tool for call in world.calls] == ["wire.send"], "and it reads nothing first"


async def test_it_ends_though_it_would_never_end(tmp_path: Path) -> None:
    """Also where it proposes nothing, so that nothing is waited for."""
    async with reader_fleet(tmp_path, World(), max_turns=64) as fleet:
        event = turns_job("1", [], endless=True)
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert (await dead(fleet))[0] == "turn-limit"
        assert fleet.runs(event)[0].turn == 63


@pytest.mark.parametrize("workers", [False, True], ids=["here", "workers"])
@pytest.mark.parametrize(
    ("notes", "said"),
    [("nan", "no JSON: nan is not JSON"), ("x" * MAX_NOTES, f"at most {MAX_NOTES}"),
     ("large", "no JSON: a number beyond"), ("set", "no JSON: set is not JSON"),
     ("date", "no JSON: "), ("deep", "no JSON: "), ("huge", f"at most {MAX_NOTES}")],
    ids=["nan", "long", "large", "set", "date", "deep", "huge"],
)  # fmt: skip
async def test_notes_that_cannot_be_kept(
    tmp_path: Path, notes: Any, said: str, workers: bool
) -> None:
    world, event = World(), reading("1", notes={"2": notes})
    async with reader_fleet(tmp_path, world, workers=workers) as fleet:
        await fleet.send(event)
        await fleet.wait_until_idle(60)
        code, why = await dead(fleet)
        assert (code, said in why) == ("bad-notes", True), why
        assert (len(fleet.actions(event)), fleet.runs(event)[0].turn) == (1, 1), "nothing of it"


async def test_notes_of_any_language_and_number_come_back_as_they_were(tmp_path: Path) -> None:
    async with reader_fleet(tmp_path, World()) as fleet:
        await fleet.send(reading("1", notes={"2": "odd"}))
        await fleet.wait_until_idle()
        kept = {"Zürich": [1, -0.25, 1e-6, None, True], "": {"日本": "\u2028"}}
        assert json.loads(row_texts(fleet)[0])["extra"] == kept


async def test_a_judge_without_later_turns_fails_in_its_first(tmp_path: Path) -> None:
    world, event = World(), reading("1")
    code = READER_PY.replace("def judge_outcomes", "def judge_more")
    async with reader_fleet(tmp_path, world, code=code) as fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert "define judge_outcomes" in (await dead(fleet))[1]
        assert not world.calls
        assert fleet.runs(event)[0].turn == 0


async def test_a_judge_that_raises_in_a_later_turn_ends_its_run_only(tmp_path: Path) -> None:
    async with reader_fleet(tmp_path, World()) as fleet:
        await fleet.send(reading("1", raises=3), reading("2"))
        await fleet.wait_until_idle()
        assert "RuntimeError: gave up" in (await dead(fleet))[1]
        assert [json.loads(text)["seen"] for text in row_texts(fleet)] == [2]


@pytest.mark.parametrize("confidence", [1.0, 0.1])
async def test_in_a_cascade_a_judge_has_one_turn(tmp_path: Path, confidence: float) -> None:
    world = World()
    fleet, model = cascade(tmp_path, world, ["done"])
    write_reader(fleet.content)
    async with fleet:
        await fleet.send(reading("1", confidence=confidence))
        await fleet.wait_until_idle()
        code, why = await dead(fleet)
        assert (code, "the judge of a cascade has one turn" in why) == ("turn-limit", True)
        assert (world.calls, model.prompts) == ([], [])


# --- secrecy, erasure -----------------------------------------------------------------------------


async def test_notes_are_as_secret_as_what_their_turn_had_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that was secret may be gone by the next turn; what was noted of it is not."""
    drop = """tools:
  - {{name: note.drop, verb: drop, resource: note, args: {{key: string}},
     sinks: [], settles: transactional, function: drop_note}}
"""
    grant = "    note.drop: {{verb: drop, resource: note, impact: low}}\n    note.add:"
    code = (
        '\n\ndef drop_note(call, row):\n    return [RowWrite(f"{call.agent}_notes", "k", None)]\n'
    )
    monkeypatch.setattr(toy, "AGENT_YAML", toy.AGENT_YAML.replace("tools:\n", drop, 1))
    monkeypatch.setattr(toy, "TOOLS_PY", toy.TOOLS_PY + code)
    monkeypatch.setattr(toy, "GRANTS", toy.GRANTS.replace("    note.add:", grant, 1))
    world, dropped = World(), propose("note.drop", key=Ref("/event/subject"))
    tells = propose("wire.send", to=DESK, text="$notes")
    secret = turns_job("0", [note_proposal("a secret")])
    events = [turns_job("1", [dropped], [], [tells]), turns_job("2", [dropped], [], [tells])]
    async with reader_fleet(tmp_path, world) as fleet:
        for event in (replace(secret, readers=frozenset({"@elsewhere.example"})), *events):
            await fleet.send(event)
            await fleet.wait_until_idle()
        assert [row.rule for row in fleet.actions(events[0])] == ["permit.tool", "secrecy.readers"]
        readers = [body.get("readers") for body in turns_of(fleet, events[0])]
        assert readers == [["@elsewhere.example"], ["@elsewhere.example"], None]
        # Control: the next run never had it before it.
        assert [row.rule for row in fleet.actions(events[1])] == ["permit.tool", "permit.tool"]
        assert all("readers" not in body for body in turns_of(fleet, events[1]))
        report = await replay_all(fleet.app)
        assert (report.to_json()["differences"], report.equal) == ([], 7)


async def test_notes_are_erased_with_their_event(tmp_path: Path) -> None:
    event = reading("1", notes={"2": "a word of somebody's"})
    async with reader_fleet(tmp_path, World()) as fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert "a word of somebody's" in turns_of(fleet, event)[1]["notes"]
        await fleet.app.commands.erase(fleet.order(), subject=event.subject)
        assert turns_of(fleet, event) == []
        report = await replay_all(fleet.app)
        assert (report.ok, dict(report.unrecomputable)) == (True, {"erased": 4})
