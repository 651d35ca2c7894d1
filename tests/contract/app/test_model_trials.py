"""Where trials of model agents end, what they cost, and what they never make up.

The parts of `test_recordings`: real clients, a strict server, the engine's line, the real policy.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from msgspec.structs import replace
from tests.artefacts import READ_GRANT, answer, long_text
from tests.model_server import KEY
from tests.model_trials import (
    BELL,
    DESK,
    JOB,
    Fleet,
    harness_of,
    live_through,
    nobody_asked,
    talk,
)

from vedette.adapters.reasoners.adk.briefing import RULES
from vedette.app.trial import run_cases
from vedette.config.fleet import load_fleet
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import BadCommand, BadFleet
from vedette.domain.model import Model
from vedette.domain.readers import ReaderRule
from vedette.operations.recordings import StaleRecording, digest_asked
from vedette.testing.harness import copy_policies
from vedette.testing.model_server import FunctionCall, ModelServer, Request, Turn

pytestmark = pytest.mark.timeout(60)

LETTER = FunctionCall("wire_send", {"to": DESK, "text": "ref:/event/data/what"})
TO_THE_BOARD = (ReaderRule("test", "worker.job", frozenset({"board@example.org"})),)
DEAR = "prices: {cheap: {input: 1000000, output: 2000000}, dear: {input: 9000000, output: 9000000}}"


def send_letter(request: Request) -> Turn:
    """Send a letter, then be done."""
    return Turn((LETTER,) if request.turn == 0 else ("Sent.",))


@pytest.fixture
def serve() -> Iterator[Callable[..., ModelServer]]:
    """Return how a test's model is served; it is gone when the test is over."""
    servers: list[ModelServer] = []

    def open_server(script: Callable[[Request], Turn]) -> ModelServer:
        servers.append(ModelServer(script, keys=(KEY,)).__enter__())
        return servers[-1]

    yield open_server
    for server in servers:
        server.close()


Serve = Callable[[Callable[[Request], Turn]], ModelServer]


def write_case(fleet: Fleet, *ids: str, expect: str = "permitted: []", outcomes: str = "") -> None:
    """Give a fleet one case of these events."""
    events = ", ".join(
        f"{{type: worker.job, source: test, id: {one}, subject: k, data: {{what: job}}}}"
        for one in ids
    )
    more = f"  outcomes: {outcomes}\n" if outcomes else ""
    text = f"- name: the case\n  events: [{events}]\n{more}  expect: {{{expect}}}\n"
    (fleet.agent / "evals/cases.yaml").write_text(text)


def publish(fleet: Fleet, *changes: tuple[str, str]) -> None:
    """Make the policy folder live, with these texts of its grants changed before."""
    grants = fleet.content / "policies/grants/data.yaml"
    text = grants.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    grants.write_text(text)

    async def apply() -> None:
        async with harness_of(fleet) as harness:
            await harness.apply_policy(fleet.content / "policies")

    asyncio.run(apply())


def run_in_fleet(fleet: Fleet) -> None:
    """Have a real fleet handle the event as far as it comes by itself."""

    async def run() -> None:
        async with harness_of(fleet) as harness:
            await harness.send(JOB)
            await harness.wait_until_idle()

    asyncio.run(run())


def actions_of(value: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the actions of a tried event: tool, outcome, end."""
    found = [action for turn in value["turns"] for action in turn["actions"]]
    return [(one["tool"], one["outcome"], one["end"]) for one in found]


# --- labels ---------------------------------------------------------------------------------------


def test_events_of_cases_and_trials_have_the_labels_of_secrecy(
    tmp_path: Path, serve: Serve
) -> None:
    fleet = Fleet(tmp_path, serve(send_letter))
    write_case(fleet, "j1", expect="denied: [wire.send]")
    fleet.secrecy = TO_THE_BOARD
    result = fleet.cases(live=True, record=True)
    assert result.rules == (("wire.send", "deny", "secrecy.readers"),)
    assert fleet.cases().ok
    fleet.secrecy = ()
    assert not fleet.cases().ok, "the control: without the rule it may be sent"
    fleet.secrecy = TO_THE_BOARD
    run_in_fleet(fleet)  # so that there is a store
    value = fleet.attempt(replace(JOB, id="another"), live=True)
    assert actions_of(value) == [("wire.send", "deny", "not permitted")]


def test_a_judges_case_has_the_labels_of_secrecy(tmp_path: Path, serve: Serve) -> None:
    fleet = Fleet(tmp_path, serve(send_letter))
    fleet.edit("agent.yaml", "model: fast", "reasoner: judge")
    args = "{to: {ref: /charter/desk}, text: {ref: /event/data/t}}"
    do = f"{{do: [{{tool: wire.send, args: {args}}}], t: x}}"
    (fleet.agent / "evals/cases.yaml").write_text(
        "- name: sent\n"
        f"  event: {{type: worker.job, source: test, id: j1, subject: k, data: {do}}}\n"
        "  expect: {}\n"
    )
    grants = (fleet.content / "policies/grants/data.yaml").read_text()
    rmtree(fleet.content / "policies")
    copy_policies(fleet.content / "policies", {"grants/data.yaml": grants})  # with their tests
    found = []
    for fleet.secrecy in ((), TO_THE_BOARD):
        settings = fleet.settings
        loaded = load_fleet(settings.root, settings, now_us=0)
        (result,), _ = run_cases(
            settings, loaded, list(loaded.fleet.agents.values()), SystemClock().now_us()
        )
        found.append([outcome for _, outcome, _ in result.rules])
    assert found == [["permit"], ["deny"]]


# --- what people answered -------------------------------------------------------------------------

LOW = "wire.send: {verb: send, resource: wire, impact: low}"
HIGH = "wire.send: {verb: send, resource: wire, impact: high}"


def test_nobodys_answer_is_made_up_where_policy_let_go_by_itself(
    tmp_path: Path, serve: Serve
) -> None:
    fleet = Fleet(tmp_path, serve(send_letter))
    run_in_fleet(fleet)
    assert fleet.world.effects("wire.send") == 1
    publish(fleet, (LOW, HIGH))
    value = fleet.attempt(JOB)
    assert actions_of(value) == [("wire.send", "hold", "waiting")]
    assert (value["state_at_end"], value["ended"]) == ("waits", "waits for a person")


def test_what_policy_denied_is_no_persons_no(tmp_path: Path, serve: Serve) -> None:
    script = {0: (BELL,)}
    fleet = Fleet(tmp_path, serve(lambda request: Turn(script.get(request.turn, ("Done.",)))))
    run_in_fleet(fleet)
    (fleet.content / "policies/vedette/denies/test.rego").unlink()
    publish(fleet, (LOW.replace("wire.send", "bell.ring").replace("send", "ring"),
                    HIGH.replace("wire.send", "bell.ring").replace("send", "ring")))  # fmt: skip
    value = fleet.attempt(JOB)
    assert actions_of(value) == [("bell.ring", "hold", "waiting")]
    assert value["ended"] == "waits for a person"


def test_what_came_of_an_action_is_not_told_of_another(tmp_path: Path, serve: Serve) -> None:
    """The charter says where letters go: to another desk none was sent."""
    fleet = Fleet(tmp_path, serve(send_letter))
    run_in_fleet(fleet)
    assert fleet.attempt(JOB)["ended"] == "done"
    fleet.edit("agent.yaml", "desk: desk@example.org", "desk: other@example.org")
    value = fleet.attempt(JOB)
    assert value["ended"] == "wire.send would be called; what would come of it is not known"


# --- the recorded event ---------------------------------------------------------------------------


def test_an_edited_event_is_not_the_one_on_record(tmp_path: Path, serve: Serve) -> None:
    fleet = Fleet(tmp_path, serve(send_letter))
    run_in_fleet(fleet)
    with pytest.raises(StaleRecording) as refused:
        fleet.attempt(replace(JOB, data={"what": "another thing"}))
    assert refused.value.code == "stale-recording"
    assert "is another than this" in refused.value.what
    # Its label and what its source vouched for are the record's, whatever a file says.
    given = replace(JOB, vouched=frozenset(), readers=frozenset({"board@example.org"}))
    assert actions_of(fleet.attempt(given)) == [("wire.send", "permit", "done")]


def test_whose_release_a_recording_is_of_is_told(tmp_path: Path, serve: Serve) -> None:
    fleet = Fleet(tmp_path, serve(talk))
    asyncio.run(live_through(fleet, approve=True))
    before = fleet.attempt(JOB)
    assert not before["agent_differs"]
    fleet.edit("instruction.md", "Do", "Never do")
    after = fleet.attempt(JOB)
    assert after["agent_differs"]
    assert after["recorded_release"] == before["recorded_release"]
    live = fleet.attempt(JOB, live=True)
    assert (live["recorded_release"], live["agent_differs"]) == (None, False)


# --- where it ends --------------------------------------------------------------------------------


def test_an_agent_that_a_limit_stops_ends_its_case(tmp_path: Path, serve: Serve) -> None:
    fleet = Fleet(tmp_path, serve(send_letter))
    with (fleet.agent / "agent.yaml").open("a") as file:
        file.write("ceilings: {errors_per_hour: 1}\n")
    write_case(
        fleet, "j1", expect="permitted: [wire.send]", outcomes="{wire.send: {state: failed}}"
    )
    result = fleet.cases(live=True, record=True)
    assert result.differences == ("the run was cut off: a limit stopped the agent",)
    assert not (fleet.agent / "evals/recordings").exists()


def test_a_call_that_nobody_knows_of_ends_its_run_before_any_limit(
    tmp_path: Path, serve: Serve
) -> None:
    fleet = Fleet(tmp_path, serve(send_letter))
    with (fleet.agent / "agent.yaml").open("a") as file:
        file.write("ceilings: {errors_per_hour: 1}\n")
    write_case(fleet, "j1", expect="permitted: [wire.send]")
    result = fleet.cases(live=True, record=True)
    assert result.ok
    assert result.ended.startswith("wire.send would be called")


def test_a_case_ends_with_its_first_failed_run(tmp_path: Path, serve: Serve) -> None:
    """Those of its key wait for it, and here nobody mends it."""
    server = serve(lambda request: Turn(("Nothing.",)))
    fleet = Fleet(tmp_path, server)
    write_case(fleet, "j1", "j2")
    server.close()
    (away,) = fleet.cases(live=True).differences
    assert "had no answer of its model" in away


def test_a_case_ends_with_its_first_run_whose_answers_are_not_taken(
    tmp_path: Path, serve: Serve
) -> None:
    fleet = Fleet(tmp_path, serve(lambda request: Turn((FunctionCall("note add!", {}),))))
    write_case(fleet, "j1", "j2")
    result = fleet.cases(live=True)
    (given_up,) = result.differences
    assert "was given up" in given_up
    assert result.usage is not None
    used = result.usage.to_json()
    # Five answers were paid for, though none of them is a turn.
    assert (used["turns"], used["calls"], used["input_tokens"], used["output_tokens"]) == (
        0, 5, 500, 100,
    )  # fmt: skip
    assert used["cost_micros"] == 500 + 2 * 100


@pytest.mark.parametrize("is_trial", [False, True])
def test_the_budget_is_what_is_left_of_it(tmp_path: Path, serve: Serve, is_trial: bool) -> None:
    """Of two calls a day a turn books both, and uses one."""
    server = serve(lambda request: Turn(("Nothing.",)))
    fleet = Fleet(tmp_path, server)
    fleet.edit("agent.yaml", "model_calls_per_day: 100", "model_calls_per_day: 2")
    if is_trial:
        run_in_fleet(fleet)
        value = fleet.attempt(replace(JOB, id="j2"), live=True)
        found = [(True, "done"), (value["state_at_end"] != "failed", value["ended"])]
    else:
        write_case(fleet, "j1")
        text = (fleet.agent / "evals/cases.yaml").read_text()
        text += text.replace("the case", "another").replace("j1", "j2")
        (fleet.agent / "evals/cases.yaml").write_text(text)
        found = [(one.ok, one.ended) for one in fleet.all_cases(live=True, record=True)]
        assert len(list((fleet.agent / "evals/recordings").iterdir())) == 1
    assert found == [(True, "done"), (False, "was cut off: it waits for its budget")]
    assert server.statuses == {200: 1}


def test_a_model_of_a_stopped_agent_is_not_asked(tmp_path: Path, serve: Serve) -> None:
    server = serve(talk)
    fleet = Fleet(tmp_path, server)

    async def stop() -> None:
        async with harness_of(fleet) as harness:
            await harness.app.commands.stop(harness.order(), agent="worker")

    asyncio.run(stop())
    settings = fleet.settings
    loaded = load_fleet(settings.root, settings, now_us=0)
    agents = list(loaded.fleet.agents.values())
    with nobody_asked(server):
        with pytest.raises(BadCommand, match="worker is stopped"):
            fleet.attempt(JOB, live=True)
        with pytest.raises(BadCommand, match="worker is stopped"):
            run_cases(settings, loaded, agents, SystemClock().now_us(), live=True)


# In a process of its own, as locks of files are a process's. Prints 1 if a reader is in the way of
# what was written.
WRITE = """\
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("CREATE TABLE IF NOT EXISTS written (a)")
database.commit()
print(database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
"""


def test_the_store_is_not_held_while_a_model_is_asked(tmp_path: Path, serve: Serve) -> None:
    held: list[int] = []
    fleet = Fleet(tmp_path, serve(lambda request: Turn(("Nothing.",))))
    run_in_fleet(fleet)

    def write_meanwhile(request: Request) -> Turn:
        work = [sys.executable, "-c", WRITE, str(fleet.folder / "state/store.db")]
        held.append(int(subprocess.run(work, capture_output=True, check=True).stdout))
        return Turn(("Nothing.",))

    fleet.models = {"fast": replace(fleet.models["fast"], base_url=serve(write_meanwhile).url)}
    assert fleet.attempt(replace(JOB, id="j2"), live=True)["ended"] == "done"
    assert held == [0]


# --- who was asked --------------------------------------------------------------------------------


def with_fallback(fleet: Fleet) -> None:
    """Have a first model whose key is none, and another, dear one in its place."""
    budgets = fleet.content / "policies/budgets/data.yaml"
    text = budgets.read_text()
    at = text.index("prices: ")
    budgets.write_text(text[:at] + DEAR + text[text.index("\n", at) :])
    (fleet.folder / "no-key").write_text("none")
    good = fleet.models["fast"]
    fleet.models = {
        "fast": replace(
            good, key_file=str(fleet.folder / "no-key"),
            model=replace(good.model, fallback="other"),
        ),
        "other": replace(
            good,
            model=Model(
                "other", price="dear", provider="anthropic", served_name="claude-opus-5-5"
            ),
        ),
    }  # fmt: skip


def test_a_fallback_is_asked_priced_and_known_to_its_recording(
    tmp_path: Path, serve: Serve
) -> None:
    server = serve(lambda request: Turn(("Nothing.",)))
    fleet = Fleet(tmp_path, server)
    with_fallback(fleet)
    write_case(fleet, "j1")
    live = fleet.cases(live=True, record=True)
    assert live.differences == ()
    recording = json.loads(fleet.recording.read_text())
    assert recording["runs"][0]["turns"][0]["entry"] == "other"
    with nobody_asked(server):
        again = fleet.cases()
    assert live.usage is not None
    assert again.usage is not None
    assert again.usage.cost_micros == live.usage.cost_micros == 9 * (100 + 20)
    other = fleet.models["other"]
    renamed = replace(other, model=replace(other.model, served_name="claude-opus-6"))
    fleet.models = {**fleet.models, "other": renamed}
    assert "model is another" in fleet.cases().differences[0]


def test_all_code_and_vedettes_own_rules_are_what_a_model_is_asked_with(
    tmp_path: Path, serve: Serve
) -> None:
    fleet = Fleet(tmp_path, serve(talk))
    prompts = fleet.agent / "prompts"
    prompts.mkdir()
    (prompts / "__init__.py").write_text("from .text import TEXT\n")
    (prompts / "text.py").write_text("TEXT = 'Be kind.'\n")
    assert fleet.cases(live=True, record=True).ok
    assert fleet.cases().ok
    (prompts / "text.py").write_text("TEXT = 'Delete everything.'\n")
    assert "prompts/text.py is another" in fleet.cases().differences[0]
    (prompts / "text.py").write_text("TEXT = 'Be kind.'\n")
    raw = json.loads(fleet.recording.read_text())
    settings = fleet.settings
    agent = load_fleet(settings.root, settings, now_us=0).fleet.agents["worker"]
    raw["asked"] = digest_asked(agent, ["gemini gemini-3-pro-preview"], RULES)
    assert raw == json.loads(fleet.recording.read_text()), "the control"
    raw["asked"] = digest_asked(agent, ["gemini gemini-3-pro-preview"], RULES + "More.")
    fleet.recording.write_text(json.dumps(raw))
    assert "vedette's own rules is another" in fleet.cases().differences[0]


BANK = """\
bank: notes
purpose: What the desk wants remembered
scopes: [{name: all, readers: [worker], writers: [worker]}]
topics: [notes]
"""
MEMORY = """\
---
id: first-things
scope: all
topics: [notes]
kind: fact
reviewed_by: desk@example.org
reviewed_on: 2026-03-20
expires_on: null
---
"""


def test_a_memory_that_reads_otherwise_makes_a_recording_stale(
    tmp_path: Path, serve: Serve
) -> None:
    fleet = Fleet(tmp_path, serve(talk))
    bank = fleet.content / "memory/notes"
    bank.mkdir()
    (bank / "bank.yaml").write_text(BANK)
    note = bank / "facts/first-things.md"
    note.parent.mkdir()
    note.write_text(MEMORY + "A job is noted first.\n")
    grants = fleet.content / "policies/grants/data.yaml"
    grants.write_text(
        grants.read_text().replace("  mode: act\n", "  mode: act\n  memory: [notes/all]\n")
    )
    with (fleet.agent / "agent.yaml").open("a") as file:
        file.write("memory: [{bank: notes, scope: all}]\n")
    assert fleet.cases(live=True, record=True).differences == ()
    told = json.loads(fleet.recording.read_text())["runs"][0]["turns"][0]["told"]
    assert any(name.startswith("memory notes/") for name in told), "the control: it was told"
    assert fleet.cases().ok
    note.write_text(MEMORY + "A job is never noted.\n")
    (stale, *_) = fleet.cases().differences
    assert "turn 1 was said to something else: memory notes/first-things" in stale


# --- the files ------------------------------------------------------------------------------------


def test_a_recording_that_is_as_expected_is_not_replaced_by_one_that_is_not(
    tmp_path: Path, serve: Serve
) -> None:
    refuses: list[bool] = []
    fleet = Fleet(
        tmp_path, serve(lambda request: Turn(("I refuse.",)) if refuses else talk(request))
    )
    assert fleet.cases(live=True, record=True).ok
    kept = fleet.recording.read_text()
    refuses.append(True)
    bad = fleet.cases(live=True, record=True)
    assert not bad.ok
    assert bad.basis.startswith("asked anew, the recording is kept")
    assert fleet.recording.read_text() == kept
    fleet.edit("instruction.md", "Do", "Please do")  # now it is stale
    assert "replaced by another" in fleet.cases(live=True, record=True).basis


@pytest.mark.parametrize("depth", [65, 300])
@pytest.mark.parametrize("kind", ["list", "value"])
def test_a_deep_argument_is_one_error_by_its_place(
    tmp_path: Path, serve: Serve, depth: int, kind: str
) -> None:
    fleet = Fleet(tmp_path, serve(talk))
    assert fleet.cases(live=True, record=True).ok
    if kind == "list":
        deep = '{"list": [' * depth + '{"value": 1}' + "]}" * depth
    else:
        deep = '{"value": ' + "[" * depth + "]" * depth + "}"
    doc = json.loads(fleet.recording.read_text())
    doc["runs"][0]["turns"][0]["calls"][0]["args"]["text"] = {"value": "DEEP"}
    raw = json.dumps(doc).replace('{"value": "DEEP"}', deep)
    fleet.recording.write_text(raw)
    with pytest.raises(BadFleet) as refused:
        fleet.cases()
    assert "Nested deeper than 64" in refused.value.what
    assert (refused.value.where or "").endswith("runs[0].turns[0].calls[0].args.text")


def test_where_a_recording_cannot_be_written_there_is_one_error_and_no_other_file(
    tmp_path: Path, serve: Serve
) -> None:
    fleet = Fleet(tmp_path, serve(talk))
    assert fleet.cases(live=True, record=True).ok
    path = fleet.recording
    path.unlink()
    path.mkdir()
    with pytest.raises(BadFleet, match="cannot be written") as refused:
        fleet.cases(live=True, record=True)
    assert (refused.value.where or "").startswith("agents/worker/evals/recordings/")
    assert list(path.parent.iterdir()) == [path]


# --- artefacts ----------------------------------------------------------------------------------


def read_artefact(request: Request) -> Turn:
    """Look, read of what was told by reference, be done."""
    if request.turn == 0:
        return Turn((FunctionCall("book_look", {"name": "all"}),))
    if request.turn == 1:
        id = request.results[0].content["data"]["text"]["artefact"]
        return Turn((FunctionCall("artefact_read", {"id": id, "length": 20}),))
    return Turn(("All is read.",))


def fleet_with_artefacts(folder: Path, server: ModelServer) -> Fleet:
    fleet = Fleet(folder, server)
    fleet.edit("agent.yaml", "charter:", "artefacts: true\ncharter:")
    grants = fleet.content / "policies/grants/data.yaml"
    grants.write_text(grants.read_text() + READ_GRANT)
    return fleet


def test_a_recorded_run_that_read_an_artefact_is_tried_as_it_was(
    tmp_path: Path, serve: Serve
) -> None:
    fleet = fleet_with_artefacts(tmp_path, serve(read_artefact))
    fleet.world.answer = answer({"text": long_text(50_000)})
    run_in_fleet(fleet)
    told = fleet.attempt(JOB)
    assert actions_of(told) == [
        ("book.look", "permit", "done"), ("artefact.read", "permit", "done")
    ]  # fmt: skip
    assert (told["state_at_end"], len(told["turns"])) == ("done", 3)


def test_what_was_not_read_then_is_not_made_up(tmp_path: Path, serve: Serve) -> None:
    """Nor is it denied as another run's: the rules of today permit it."""
    fleet = fleet_with_artefacts(tmp_path, serve(read_artefact))
    fleet.world.answer = answer({"text": long_text(50_000)})
    publish(fleet, (READ_GRANT, ""))
    run_in_fleet(fleet)
    grants = fleet.content / "policies/grants/data.yaml"
    grants.write_text(grants.read_text() + READ_GRANT)
    publish(fleet)
    told = fleet.attempt(JOB)
    assert actions_of(told)[1] == ("artefact.read", "permit", "would be called")
    assert told["state_at_end"] == "uncalled"


def test_a_recorded_case_with_a_large_outcome_is_not_stale(tmp_path: Path, serve: Serve) -> None:
    """Its ids are those of its recording, however often it is tried."""
    fleet = fleet_with_artefacts(tmp_path, serve(read_artefact))
    text = long_text(50_000).replace("\n", " ")
    outcomes = f"{{book.look: {{data: {{text: {json.dumps(text)}}}}}}}"
    write_case(fleet, "j1", expect="permitted: [artefact.read, book.look]", outcomes=outcomes)
    assert fleet.cases(live=True, record=True).ok
    for _ in range(2):
        result = fleet.cases()
        assert (result.ok, result.ended) == (True, "done")
        assert ("artefact.read", "permit", "permit.tool") in result.rules
