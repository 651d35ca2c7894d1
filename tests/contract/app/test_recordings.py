"""Model agents tried from recordings: asked once, replayed with nobody to ask, refused when stale.

Real providers' clients, a strict server of their wires, the engine's own line and the real policy.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.model_server import KEY, WIRES
from tests.model_trials import (
    DESK,
    JOB,
    NOTE,
    SHOWN,
    Fleet,
    harness_of,
    live_through,
    nobody_asked,
    talk,
)  # fmt: skip

from vedette.config.fleet import load_fleet
from vedette.domain.base.errors import BadCommand, BadFleet
from vedette.domain.model import Provider
from vedette.operations.eval_cases import read_evals
from vedette.operations.recordings import recording_problems
from vedette.testing.model_server import FunctionCall, ModelServer, Request, Turn

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(talk, keys=(KEY,)) as server:
        yield server


@pytest.fixture
def fleet(tmp_path: Path, server: ModelServer) -> Fleet:
    return Fleet(tmp_path, server)


@pytest.mark.parametrize("wire", sorted(WIRES))
def test_what_was_asked_once_is_replayed_without_the_model(
    tmp_path: Path, server: ModelServer, wire: Provider
) -> None:
    fleet = Fleet(tmp_path, server, wire)
    live = fleet.cases(live=True, record=True)
    assert live.differences == ()
    assert [request.turn for request in server.requests] == [0, 1, 2]
    assert server.statuses.keys() == {200}
    assert KEY not in fleet.recording.read_text()
    server.close()  # nobody is there to ask
    fleet.models = {"fast": replace(fleet.models["fast"], key_file="/nowhere")}
    again = fleet.cases()
    assert again.differences == ()
    assert again.rules == live.rules
    assert [(tool, outcome) for tool, outcome, _ in again.rules] == [
        ("note.add", "permit"), ("bell.ring", "deny"), ("big.send", "hold"),
    ]  # fmt: skip
    assert again.usage is not None
    assert live.usage is not None
    assert again.usage.to_json() == live.usage.to_json()
    used = again.usage.to_json()
    assert used["turns"] == used["calls"] == 3
    assert used["recoveries"] == {"denied": 1, "refused": 1, "contexts": 0, "answers": 0}
    assert used["cost_micros"] == used["input_tokens"] + 2 * used["output_tokens"] > 0
    assert fleet.world.calls == []


def test_without_a_recording_a_case_does_not_pass(fleet: Fleet, server: ModelServer) -> None:
    with nobody_asked(server):
        result = fleet.cases()
    assert not result.ok
    assert result.differences == ("not recorded: vedette check cases worker --live --record",)
    assert not (fleet.agent / "evals/recordings").exists()


def test_asked_anew_without_record_nothing_is_written(fleet: Fleet) -> None:
    assert fleet.cases(live=True).ok
    assert not (fleet.agent / "evals/recordings").exists()


def change_yaml(old: str, new: str) -> Callable[[Fleet], None]:
    return lambda fleet: fleet.edit("agent.yaml", old, new)


def change_case(old: str, new: str) -> Callable[[Fleet], None]:
    return lambda fleet: fleet.edit("evals/cases.yaml", old, new)


def change_model(fleet: Fleet) -> None:
    plan = fleet.models["fast"]
    renamed = replace(plan.model, served_name="gemini-4")
    fleet.models = {"fast": replace(plan, model=renamed)}


def change_policy(fleet: Fleet) -> None:
    (fleet.content / "policies/vedette/denies/test.rego").unlink()


STALE: dict[str, tuple[Callable[[Fleet], object], str]] = {
    "instruction": (
        lambda fleet: fleet.edit("instruction.md", "Do", "Never do"),
        "instruction.md is another",
    ),
    "code": (
        lambda fleet: (fleet.agent / "agent.py").write_text(
            "from vedette.sdk import declared_tools\nfrom google.adk.agents import LlmAgent\n"
            "from pathlib import Path\nroot_agent = LlmAgent(name='worker', model='none', "
            "tools=declared_tools(Path(__file__).parent))\n"
        ),
        "agent.py is new",
    ),
    "docstring": (
        lambda fleet: fleet.edit(
            "tools.py", "def act(call):\n", 'def act(call):\n    """Act."""\n'
        ),
        "tools.py is another",
    ),
    "schema": (
        change_yaml(
            "verb: ring, resource: wire, args: {to: string, text: string}",
            "verb: ring, resource: wire, args: {to: string, text: string, loud: boolean?}",
        ),
        "tool bell.ring is another",
    ),
    "description": (
        change_yaml("verb: ring, resource: wire,", "verb: ring, resource: wire, description: No.,"),
        "tool bell.ring is another",
    ),
    "charter": (change_yaml("note: known text", "note: new text"), "charter is another"),
    "event": (change_case("what: job", "what: task"), "event is another"),
    "outcome": (change_case('id: "7"', 'id: "8"'), "what came of turn 2 is another"),
    "model": (change_model, "model is another"),
    "decision": (change_policy, "turn 2 was said when the run went on, and now it bell.ring would"),
}


@pytest.mark.parametrize("what", sorted(STALE))
def test_a_recording_of_something_else_is_refused_by_name(
    fleet: Fleet, server: ModelServer, what: str
) -> None:
    change, words = STALE[what]
    assert fleet.cases(live=True, record=True).ok
    assert fleet.cases().ok
    change(fleet)
    with nobody_asked(server):
        result = fleet.cases()
    assert not result.ok
    assert words in result.differences[0]
    assert result.differences[0].startswith("the recording is stale: ")
    assert "--live --record" in result.differences[0]


def test_a_replay_goes_on_beside_an_imported_agent(fleet: Fleet, server: ModelServer) -> None:
    """Its code may be in no process of ours without a box, so a replay has one too."""
    fleet.workers = True
    assert fleet.cases(live=True, record=True).ok
    other = fleet.content / "agents/berths"
    shutil.copytree(fleet.agent, other)
    shutil.rmtree(other / "evals")
    text = (other / "agent.yaml").read_text().replace("name: worker", "name: berths")
    (other / "agent.yaml").write_text(text.replace("collection: ", "collection: other_"))
    (other / "source").mkdir()
    (other / "source/__init__.py").touch()
    with nobody_asked(server):
        assert fleet.cases().ok


def test_a_memory_that_is_new_makes_a_recording_stale(fleet: Fleet) -> None:
    assert fleet.cases(live=True, record=True).ok
    raw = json.loads(fleet.recording.read_text())
    raw["runs"][0]["turns"][0]["told"]["memory bank/old@1"] = "0" * 64
    fleet.recording.write_text(json.dumps(raw))
    assert "memory bank/old@1 is gone" in fleet.cases().differences[0]


def test_a_held_action_ends_the_run_unless_the_case_says_what_came_of_it(fleet: Fleet) -> None:
    fleet.edit("evals/cases.yaml", '  outcomes: {big.send: {data: {id: "7"}}}\n', "")
    fleet.edit("evals/cases.yaml", "label: no action", "label: big.send")
    live = fleet.cases(live=True, record=True)
    assert live.differences == ()
    assert live.ended == "waits for a person"
    assert live.usage is not None
    assert live.usage.recoveries["denied"] == 0, "it has not reached its end"
    again = fleet.cases()
    assert (again.ok, again.ended) == (True, live.ended)


def test_a_call_of_which_nobody_knows_what_came_ends_the_run(tmp_path: Path) -> None:
    wire = FunctionCall("wire_send", {"to": DESK, "text": "hello"})
    with ModelServer(lambda request: Turn((wire,)), keys=(KEY,)) as server:
        fleet = Fleet(tmp_path, server)
        (fleet.agent / "evals/cases.yaml").write_text(
            "- name: a letter is sent\n"
            "  event: {type: worker.job, source: test, id: j1, subject: k, data: {}}\n"
            "  expect: {permitted: [wire.send]}\n"
        )
        result = fleet.cases(live=True, record=True)
        assert result.ok
        assert result.ended == "wire.send would be called; what would come of it is not known"
        assert server.statuses == {200: 1}
        assert fleet.world.calls == []
        assert fleet.cases().ended == result.ended


def test_recording_anew_says_whether_it_is_another(fleet: Fleet) -> None:
    assert "recording written" in fleet.cases(live=True, record=True).basis
    first = fleet.recording.read_text()
    assert "the same as before" in fleet.cases(live=True, record=True).basis
    assert fleet.recording.read_text() == first
    fleet.edit("instruction.md", "Do", "Please do")
    assert "replaced by another" in fleet.cases(live=True, record=True).basis
    assert fleet.recording.read_text() != first
    assert fleet.cases().ok


def test_recordings_make_no_release(fleet: Fleet) -> None:
    def release() -> str:
        settings = fleet.settings
        return load_fleet(settings.root, settings, now_us=0).fleet.agents["worker"].release

    before = release()
    assert fleet.cases(live=True, record=True).ok
    assert fleet.recording.exists()
    assert release() == before
    fleet.edit("evals/cases.yaml", "j1", "j2")
    assert release() != before


HOSTILE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no JSON": (lambda raw: "{", "is no recording"),
    "deep": (lambda raw: "[" * 100_000, "is no recording"),
    "list": (lambda raw: json.dumps([raw]), "is no recording"),
    "schema": (lambda raw: json.dumps({**raw, "schema": "vedette.recording/9"}), ": schema"),
    "field": (lambda raw: json.dumps({**raw, "key": "x"}), "is no recording"),
    "case": (lambda raw: json.dumps({**raw, "case": "another"}), ": case"),
    "digest": (lambda raw: json.dumps({**raw, "asked": {"model": "x"}}), ": asked[...]"),
    "argument": (
        lambda raw: json.dumps(raw).replace('{"ref": "/event/subject"}', '{"run": "/bin/sh"}'),
        ": runs[0].turns[0].calls[0].args.key",
    ),
    "confidence": (
        lambda raw: json.dumps(raw).replace('"final": ', '"confidence": 1, "final": '),
        "unknown field `confidence`",
    ),
    "tokens": (
        lambda raw: json.dumps(raw).replace('"input_tokens": ', '"input_tokens": -'),
        ": runs[0].turns[0].use.input_tokens",
    ),
    "size": (lambda raw: " " * (5 << 20), "has more than"),
}


@pytest.mark.parametrize("what", sorted(HOSTILE))
def test_a_damaged_recording_is_one_error_by_file_and_field(fleet: Fleet, what: str) -> None:
    damage, words = HOSTILE[what]
    assert fleet.cases(live=True, record=True).ok
    fleet.recording.write_text(damage(json.loads(fleet.recording.read_text())))
    with pytest.raises(BadFleet) as refused:
        fleet.cases()
    where = refused.value.where or ""
    assert where.startswith("agents/worker/evals/recordings/a-job-is-noted")
    assert words in f"{where}: {refused.value.what}"
    assert "--live --record" in (refused.value.mend or "")


def test_a_recording_does_not_lie_elsewhere(fleet: Fleet, tmp_path: Path) -> None:
    assert fleet.cases(live=True, record=True).ok
    folder, elsewhere = fleet.agent / "evals/recordings", tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    with pytest.raises(BadFleet, match="is a link"):
        fleet.cases(live=True, record=True)


def test_what_is_wrong_with_recordings_is_found_by_check(fleet: Fleet) -> None:
    assert fleet.cases(live=True, record=True).ok

    def problems() -> list[str]:
        settings = fleet.settings
        agent = load_fleet(settings.root, settings, now_us=0).fleet.agents["worker"]
        names = [case.name for case in read_evals(agent, SHOWN)[0]]
        return [str(one) for one in recording_problems(agent, SHOWN, names)]

    assert problems() == []
    fleet.recording.write_text(fleet.recording.read_text().replace('"final": true', '"final": 1'))
    (found,) = problems()
    assert found.startswith(f"{SHOWN}/evals/recordings/a-job-is-noted")
    assert "runs[0].turns[2].final: is no recording: Expected `bool`" in found
    fleet.edit("evals/cases.yaml", "a job is noted", "a job was noted")
    (found,) = problems()
    assert "warning: is the recording of no case (remove it)" in found


def test_the_events_of_a_case_follow_upon_one_another(tmp_path: Path) -> None:
    """What the first wrote into the row of their key, the second is told."""

    def script(request: Request) -> Turn:
        is_noted = request.results or "note_add" in request.messages[0].text
        return Turn(("Noted.",) if is_noted else (NOTE,))

    with ModelServer(script, keys=(KEY,)) as server:
        fleet = Fleet(tmp_path, server)
        event = "{type: worker.job, source: test, id: %s, subject: k, data: {}}"
        (fleet.agent / "evals/cases.yaml").write_text(
            f"- name: two jobs\n  events: [{event % 'j1'}, {event % 'j2'}]\n"
            "  expect: {permitted: [note.add, note.add], held: [], denied: []}\n"
        )
        assert fleet.cases(live=True, record=True).differences == ()
    first, second = json.loads(fleet.recording.read_text())["runs"]
    assert first["turns"][0]["told"]["row"] != second["turns"][0]["told"]["row"]
    assert fleet.cases().ok
    one_event = (fleet.agent / "evals/cases.yaml").read_text().replace(f", {event % 'j2'}", "")
    (fleet.agent / "evals/cases.yaml").write_text(one_event)
    (stale, *_) = fleet.cases().differences
    assert "the case has no event test j2 any more" in stale


def test_another_tool_in_a_recording_is_what_the_line_refuses(fleet: Fleet) -> None:
    """What a recording says is proposed, and no more than that."""
    assert fleet.cases(live=True, record=True).ok
    text = fleet.recording.read_text().replace('"note.add"', '"root.shell"')
    fleet.recording.write_text(text)
    result = fleet.cases()
    assert not result.ok
    assert any("permitted: expected note.add, found none" in one for one in result.differences)


def test_bad_answers_and_a_model_that_is_away_are_told(tmp_path: Path) -> None:
    asked: list[int] = []

    def script(request: Request) -> Turn:
        asked.append(request.turn)
        if len(asked) == 1:
            return Turn((FunctionCall("note add!", {}),))
        return Turn(("Nothing to do.",))

    with ModelServer(script, keys=(KEY,)) as server:
        fleet = Fleet(tmp_path, server)
        (fleet.agent / "evals/cases.yaml").write_text(
            "- name: nothing comes of it\n"
            "  event: {type: worker.job, source: test, id: j1, subject: k, data: {}}\n"
            "  expect: {permitted: [], held: [], denied: []}\n"
        )
        live = fleet.cases(live=True, record=True)
        assert live.differences == ()
        assert live.usage is not None
        assert live.usage.recoveries["answers"] == 1
        assert live.usage.calls == 2
        assert live.usage.input_tokens == 200, "what was not taken was paid"
        assert live.usage.cost_micros == 200 + 2 * 40
        again = fleet.cases()
        assert again.usage is not None
        assert again.usage.to_json() == live.usage.to_json()
        kept = fleet.recording.read_text()
    result = fleet.cases(live=True, record=True)
    assert not result.ok
    assert "had no answer of its model" in result.differences[-1]
    assert fleet.recording.read_text() == kept


def test_a_model_that_is_left_alone_holds_no_trial(fleet: Fleet, server: ModelServer) -> None:
    """The fleet would wait five minutes; who tries it is told."""
    (fleet.folder / "fast.key").write_text("another")
    text = (fleet.agent / "evals/cases.yaml").read_text()
    with (fleet.agent / "evals/cases.yaml").open("a") as file:
        file.write(text.replace("a job is noted", "another job is noted"))
    first, second = fleet.all_cases(live=True)
    assert "had no answer of its model: " in first.differences[-1]
    assert "left alone (model-key)" in second.differences[-1]
    assert sum(server.statuses.values()) == 1


# --- one event ------------------------------------------------------------------------------------


def test_a_recorded_event_is_tried_out_of_the_ledger(fleet: Fleet, server: ModelServer) -> None:
    asyncio.run(live_through(fleet, approve=True))
    assert fleet.world.effects("big.send") == 1
    server.close()
    value = fleet.attempt(JOB)
    assert value["is_recording"]
    assert value["models"] == ["gemini-3-pro-preview"]
    assert value["recorded_at"].startswith("20")
    assert [turn["label"] for turn in value["turns"]][-1] == "no action"
    actions = [action for turn in value["turns"] for action in turn["actions"]]
    assert [(one["tool"], one["would"] or one["outcome"], one["end"]) for one in actions] == [
        ("note.add", "permit", "done"),
        ("bell.ring", "deny", "not permitted"),
        ("big.send", "hold", "done"),
    ]
    assert len(value["turns"][0]["refused"]) == 1
    assert value["ended"] == "done"
    assert value["usage"]["input_tokens"] == 300
    assert fleet.world.effects("big.send") == 1


def test_a_held_event_is_tried_as_far_as_it_came(fleet: Fleet) -> None:
    asyncio.run(live_through(fleet, approve=False))
    value = fleet.attempt(JOB)
    assert (value["state_at_end"], value["ended"]) == ("waits", "waits for a person")
    assert len(value["turns"]) == 2


def test_a_trial_ends_where_the_model_would_have_been_told_something_else(fleet: Fleet) -> None:
    asyncio.run(live_through(fleet, approve=True))
    fleet.edit("tools.py", '{"texts": texts}', '{"texts": [*texts, "more"]}')
    value = fleet.attempt(JOB)
    assert value["state_at_end"] == "stale"
    assert "turn 2 was said to something else: what came of turn 1 is another" in value["ended"]
    assert [turn["turn"] for turn in value["turns"]] == [1]


def test_a_recorded_event_is_put_to_the_live_rules(fleet: Fleet) -> None:
    """What was denied would now be done: of what would come of it nothing is on record."""
    asyncio.run(live_through(fleet, approve=False))
    (fleet.content / "policies/vedette/denies/test.rego").unlink()

    async def publish() -> None:
        async with harness_of(fleet) as harness:
            await harness.apply_policy(fleet.content / "policies")

    asyncio.run(publish())
    value = fleet.attempt(JOB)
    assert value["revision"] == 2
    (turn,) = value["turns"]
    assert [(one["tool"], one["outcome"], one["end"]) for one in turn["actions"]] == [
        ("note.add", "permit", "done"), ("bell.ring", "permit", "would be called"),
    ]  # fmt: skip
    assert value["ended"] == "bell.ring would be called; what would come of it is not known"


def test_an_event_without_a_recording_names_live(fleet: Fleet, server: ModelServer) -> None:
    asyncio.run(live_through(fleet, approve=False))
    other = replace(JOB, id="j2")
    with nobody_asked(server), pytest.raises(BadCommand) as refused:
        fleet.attempt(other)
    assert "nothing is recorded" in refused.value.what
    assert "--live" in (refused.value.mend or "")
    value = fleet.attempt(other, live=True)
    assert not value["is_recording"]
    assert value["models"] == ["gemini-3-pro-preview"]
    assert [len(turn["actions"]) for turn in value["turns"]] == [2, 1]
    assert value["ended"] == "waits for a person"
    assert fleet.world.calls == []


def test_a_model_is_asked_anew_in_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a fleet; and its tools see no key that lies in the environment meanwhile."""

    def script(request: Request) -> Turn:
        if request.turn == 1 and "failed" in str(request.results[0].content):
            return Turn(("The note could not be added.",))
        return talk(request)

    with ModelServer(script, keys=(KEY,)) as server:
        fleet = Fleet(tmp_path, server)
        fleet.workers = True
        plan = replace(fleet.models["fast"], key_file=None, key_env="EXAMPLE_KEY")
        fleet.models = {"fast": plan}
        monkeypatch.setenv("EXAMPLE_KEY", KEY)
        fleet.edit("tools.py", "    texts = ", SPY + "    texts = ")
        assert fleet.cases(live=True, record=True).differences == ()
        assert server.statuses == {200: 3}
    monkeypatch.delenv("EXAMPLE_KEY")
    fleet.workers = False
    assert fleet.cases().ok


SPY = """\
    import os
    if "EXAMPLE_KEY" in os.environ:
        raise ValueError("a key lies about")
"""
