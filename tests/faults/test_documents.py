"""A worklist of documents through all that can go wrong with one, in one run of a real process.

One document is refused five times, the budget ends, an answer is lost, the process is killed -9 in
the middle of a call. What was done is asked of the outside: the receiving server's own record.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from tests.receiving_server import Fate, ReceivingServer
from tests.said import START, Said, environment, vedette
from tests.task_fleet import Greeter, asks_hand_off, hand_off, task_policies

from vedette.store.sqlite import SqliteReader
from vedette.testing.harness import copy_policies
from vedette.testing.model_server import FunctionCall, ModelServer, Request

TRIES, BATCH = 5, 20
REFUSED = "the desk refused it five times"
_AGENT = """\
version: 1
name: worker
title: Files documents
owner: desk@example.org
REASONER
mode: act
order_by: subject
work: {max_turns: 10000, no_progress: 50}
triggers: [{on: worker.job}]
charter: {desk: desk@example.org}
budget: {actions_per_run: 10000, actions_per_hour: 100000, actions_per_day: ACTIONSMODELCALLS}
tools:
  - {name: doc.file, verb: file, resource: document, args: {to: string, text: string}, sinks: [/to],
     settles: idempotent, target: desk, attempts: 5,
     http: {method: POST, url: /file, body: {to: "{to}", text: "{text}"},
            idempotency_header: Idempotency-Key}}
"""
_MODEL_CALLS = ", model_calls_per_run: 100000, model_calls_per_day: 1000000"
_GRANT = """
worker:
  mode: act
  owner: desk@example.org
  tools:
    doc.file: {verb: file, resource: document, impact: low}
"""
_DONE = "version: 1\nconditions:\n  - {name: list, items: closed, at_least: MOST}\n"
_TOML = """\
fleet = "harbour"
state = "state"
[content]
agents = "agents"
policies = "policies"
memory = "memory"
[serve]
http = ""
[targets.desk]
kind = "http"
base_url = "DESK"
private = true
"""
_MODEL = """\
[models.fast]
provider = "gemini"
model = "gemini-3-pro-preview"
base_url = "MODEL"
key_env = "MODEL_KEY"
"""
_JUDGE = """\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref


def say(*proposals, tries=0):
    return Judgement("at work", 1.0, proposals=proposals, final=False, notes={"tries": tries})


class Judge(Base):
    def judge(self, seen, briefing):
        return self.add(0, briefing)

    def add(self, at, briefing):
        most = min(at + BATCH, briefing.task["inputs"]["documents"])
        ids = [f"doc-{number}" for number in range(at + 1, most + 1)]
        return say(*[Proposal("item.add", {"id": id, "title": id}) for id in ids])

    def judge_outcomes(self, briefing):
        items = briefing.task["items"]
        if items["of"] < briefing.task["inputs"]["documents"]:
            return self.add(items["of"], briefing)
        current = items.get("current")
        if current is None:
            return say(Proposal("task.finish", {"summary": f"{items['done']} of {items['of']}"}))
        id, tries = current["id"], briefing.notes["tries"]
        (last,) = briefing.turns[-1]["answers"][:1] if tries else ({},)
        if last.get("status") == "done":
            return say(Proposal("item.close", {"id": id, "state": "done", "why": "filed"}))
        if tries >= TRIES:
            return say(Proposal("item.close", {"id": id, "state": "failed", "why": REFUSED}))
        file = Proposal("doc.file", {"to": Ref("/charter/desk"), "text": id})
        return say(file, tries=tries + 1)
"""


class Clerk(Greeter):
    """A model that files one document a turn, and closes its item in the next."""

    def __init__(self, documents: int) -> None:
        super().__init__(documents)
        self.added, self.at, self.tries, self.is_filed = 0, 1, 0, False

    def answer(self, request: Request) -> tuple[Any, ...]:
        for result in request.results:
            if result.name == "doc_file":
                self.is_filed = result.content["status"] == "done"
            if result.name == "item_close":
                self.at, self.tries, self.is_filed = self.at + 1, 0, False
        if asks_hand_off(request):
            return (hand_off(f"Document {self.at}."),)
        if self.added < self.most:
            first, self.added = self.added + 1, min(self.added + BATCH, self.most)
            ids = [f"doc-{number}" for number in range(first, self.added + 1)]
            return tuple(FunctionCall("item_add", {"id": id, "title": id}) for id in ids)
        if self.at > self.most:
            return (FunctionCall("task_finish", {"summary": "All are closed."}),)
        id = f"doc-{self.at}"
        if self.is_filed:
            return (FunctionCall("item_close", {"id": id, "state": "done", "why": "filed"}),)
        if self.tries == TRIES:
            return (FunctionCall("item_close", {"id": id, "state": "failed", "why": REFUSED}),)
        self.tries += 1
        return (FunctionCall("doc_file", {"to": "ref:/charter/desk", "text": id}),)


class Trouble(Struct, frozen=True):
    """At which of so many documents what goes wrong."""

    documents: int
    refused: int
    budget: int
    lost: int
    killed: int

    @property
    def actions(self) -> int:
        """Return how many actions there are before the budget's document is filed."""
        return self.documents + 2 * (self.budget - 1) + TRIES - 1


class Office:
    """The fleet in a folder, and its process."""

    def __init__(self, root: Path, trouble: Trouble, desk: str, model: str) -> None:
        self.root = root
        agent = root / "agents" / "worker"
        agent.mkdir(parents=True)
        (root / "memory").mkdir()
        (agent / "__init__.py").touch()
        text = _AGENT.replace("ACTIONS", str(trouble.actions))
        text = text.replace("MODELCALLS", _MODEL_CALLS if model else "")
        text = text.replace("REASONER", "model: fast" if model else "reasoner: judge")
        (agent / "agent.yaml").write_text(text)
        (agent / "instruction.md").write_text("File each document, one after the other.\n")
        (agent / "done.yaml").write_text(_DONE.replace("MOST", str(trouble.documents)))
        if not model:
            words = {"BATCH": str(BATCH), "TRIES": str(TRIES), "REFUSED": repr(REFUSED)}
            code = _JUDGE
            for name, value in words.items():
                code = code.replace(name, value)
            (agent / "judge.py").write_text(code)
        copy_policies(root / "policies", task_policies(_GRANT))
        toml = _TOML.replace("DESK", desk) + (
            _MODEL.replace('MODEL"', f'{model}"') if model else ""
        )
        (root / "vedette.toml").write_text(toml)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.root / "output.txt").open("ab") as file:
            self.process = subprocess.Popen(
                [*START, "run", "--plain"], cwd=self.root, stdout=file, stderr=file,
                env=environment(MODEL_KEY="test-key"),
            )  # fmt: skip
        self.wait(lambda: (self.root / "state" / "api.sock").exists(), 120)

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)

    def verb(self, *words: str) -> Said:
        said = vedette(self.root, *words, "--json", MODEL_KEY="test-key")
        assert said.code == 0, said.err
        return said

    def order(self, *words: str) -> Any:
        return self.verb(*words, "--reason", "a test").json

    def show(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.verb("work", "show", run).json
        return found

    def wait(self, holds: Callable[[], bool], within_s: float) -> None:
        end = time.monotonic() + within_s
        while not holds():
            output = (self.root / "output.txt").read_text(errors="replace")
            assert time.monotonic() < end, output[-2000:]
            time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", ["judge", "model"])
@pytest.mark.parametrize(
    "trouble",
    [Trouble(12, 8, 9, 10, 11), Trouble(200, 137, 150, 170, 180)],
    ids=lambda trouble: str(trouble.documents),
)
def test_each_document_is_done_once_and_the_end_says_which_is_not(
    tmp_path: Path, trouble: Trouble, kind: str
) -> None:
    offices: list[Office] = []

    def fate(body: Any) -> Fate:
        number = int(body["text"].removeprefix("doc-"))
        if number == trouble.killed:
            offices[0].kill()  # it has happened, and nobody will say so
        if number in (trouble.killed, trouble.lost):
            return "lose"
        return 422 if number == trouble.refused else None

    clerk = Clerk(trouble.documents)
    with ReceivingServer(fate) as desk, ModelServer(clerk) as served:
        office = Office(tmp_path, trouble, desk.address, served.url if kind == "model" else "")
        offices.append(office)
        try:
            office.start()
            given = ("work", "start", "worker", "--goal", "File each document.")
            run = office.order(*given, "--input", f"documents={trouble.documents}")["run"]
            office.wait(lambda: office.show(run)["waits"] == "budget", 900)
            before = trouble.budget - 1
            assert office.show(run)["items"] == {
                "of": trouble.documents, "done": before - 1, "failed": 1,
                "open": trouble.documents - before,
            }  # fmt: skip
            assert desk.effects.total() == before - 1, "nothing is begun beyond the budget"
            # What cannot be done yet is tried no more than once, and asks nobody.
            asked = len(clerk.requests)
            office.order("budget", "worker", "--raise", "2h", "--unit", "actions", "--by", "10000")
            office.wait(
                lambda: office.process is not None and office.process.poll() is not None, 240
            )
            assert desk.effects[f"doc-{trouble.killed}"] == 1
            office.start()
            office.wait(lambda: office.show(run)["state"] == "done", 900)
            shown = office.show(run)
            office.verb("verify")
        finally:
            office.stop()
        if kind == "model":
            assert len(clerk.requests) > asked
            assert {one.status for one in served.exchanges} <= {200, None}
            assert len(clerk.requests) - shown["turns"] <= 1, "one call is repeated at most"
    # Each but one took effect once, by the server's own record, whatever was called again.
    wanted = {f"doc-{number}" for number in range(1, trouble.documents + 1)}
    wanted.discard(f"doc-{trouble.refused}")
    assert dict(desk.effects) == dict.fromkeys(wanted, 1)
    assert desk.calls[f"doc-{trouble.refused}"] == TRIES
    again = {text for text in wanted if desk.calls[text] != 1}
    assert again == {f"doc-{trouble.lost}", f"doc-{trouble.killed}"}
    # The end says how many of how many, and why not all.
    assert shown["items"] == {"of": trouble.documents, "done": trouble.documents - 1, "failed": 1}
    (failed,) = [item for item in shown["item_list"] if item["state"] != "done"]
    assert (failed["id"], failed["why"]) == (f"doc-{trouble.refused}", REFUSED)
    # The turn that closed it worked on it, too.
    assert failed["attempts"] == TRIES + 1
    store = SqliteReader(tmp_path / "state")
    try:
        (closed,) = [json.loads(raw) for _, raw, _, _ in store.ledger.walk(("run.closed",))]
        assert list(store.ledger.row_mismatches()) == []
    finally:
        store.close()
    assert (closed["items_done"], closed["items"]) == (trouble.documents - 1, trouble.documents)
