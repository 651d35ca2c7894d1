"""The contract of the Reasoner port, on every reasoner there is.

All three are set up to want the same: file the mail by reference, then stop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace
from tests.gemini_server import model_server
from tests.model_workers import models
from tests.remote import gateway

from vedette.adapters.reasoners.adk.reasoner import AdkReasoner
from vedette.adapters.reasoners.in_process import InProcessReasoner
from vedette.adapters.reasoners.workers.reasoner_client import JudgeSpec, WorkerReasoner
from vedette.adapters.reasoners.workers.remote_reasoner import RemoteReasoner
from vedette.adapters.reasoners.workers.supervisor import WorkerPool
from vedette.domain.action import Proposal
from vedette.domain.event import Event
from vedette.domain.memory import Briefing, Memory
from vedette.domain.model_turn import NO_METADATA
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import Reasoner, ReasonerJudgement
from vedette.judging import Judge, Judgement
from vedette.testing.scripted import ScriptedModel, ScriptedReasoner, ToolCall

AGENT_YAML = """\
version: 1
name: sorter
title: Sorts
owner: desk@example.org
reasoner: adk
max_turns: 4
triggers: [{on: mail.received}]
tools:
  - name: mail.file
    verb: move
    resource: mailbox
    args: {message: string, folder: string}
    sinks: [/message, /folder]
    settles: idempotent
    function: file_mail
"""
AGENT_PY = """\
from pathlib import Path
from google.adk.agents import LlmAgent
from vedette.adapters.reasoners.adk.tools import declared_tools

HERE = Path(__file__).parent
root_agent = LlmAgent(name="sorter", model="none", instruction="Sort.", tools=declared_tools(HERE))
"""
WANTED = Proposal(
    "mail.file",
    {"message": Ref("/event/subject"), "folder": Ref("/charter/folders/invoice")},
)


ARGS = {"message": "ref:/event/subject", "folder": "ref:/charter/folders/invoice"}


class Sorter(Judge):
    """The same wish, as a judge without state."""

    def judge(self, seen: Any, briefing: Briefing) -> Judgement:
        return Judgement("mail.file", 0.9, (WANTED,))


class Counter(Judge):
    """A judge with state: what it says depends on how many events it has seen."""

    def blank(self) -> list[int]:
        return [0]

    def observe(self, state: list[int], event: Event) -> int:
        state[0] += 1
        return state[0]

    def judge(self, seen: int, briefing: Briefing) -> Judgement:
        return Judgement(f"seen {seen}", 1.0)

    def dump(self, state: list[int]) -> bytes:
        return bytes(state)

    def load(self, blob: bytes) -> list[int]:
        return list(blob)


def thought_of_script() -> ReasonerJudgement:
    return ReasonerJudgement("mail.file", 0.9, (WANTED,), final=False, model_calls=1)


HERE = Path(__file__).read_text()
WORKERS = {"sorting worker": "Sorter", "counting worker": "Counter"}
REMOTE = {"counting remote worker": "Counter"}


IN_PROCESS = ("judge", "judge with state", "scripted", "adk")


@pytest.fixture(params=[*IN_PROCESS, *WORKERS, *REMOTE, "adk in a worker"])
async def reasoner(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Reasoner]:
    if request.param in REMOTE:
        write_code(tmp_path / "agents" / "sorter", REMOTE[request.param])
        async with gateway(tmp_path, "sorter") as there:
            there.host("sorter")
            yield RemoteReasoner(there.pool, lambda _agent: JudgeSpec("", briefing().charter))
    elif request.param in WORKERS:
        folder = tmp_path / "sorter"
        write_code(folder, WORKERS[request.param])
        pool = WorkerPool(tmp_path / "state")
        yield WorkerReasoner(pool, lambda _agent: JudgeSpec(str(folder), briefing().charter))
        pool.close()
    elif request.param == "adk in a worker":
        folder = write_agent(tmp_path, AGENT_PY.replace('"none"', '"gemini-2.5-flash"'))
        with model_server(("mail_file", ARGS)) as server, models(tmp_path) as there:
            await there.prepare("sorter", folder, server)
            yield there.reasoner
    else:
        yield in_process(request.param, tmp_path)


def write_code(folder: Path, judge: str) -> None:
    """Write the very judges of this file into an agent's folder."""
    folder.mkdir(parents=True)
    code = HERE.partition("class Sorter")[2].partition("def thought_of")
    head = "from typing import Any\nfrom vedette.judging import *\n"
    wanted = f"WANTED = {WANTED!r}\n"
    made = f"class Judge({judge}): pass\n"
    (folder / "judge.py").write_text(f"{head}{wanted}class Sorter{code[0]}{made}")


def in_process(kind: str, tmp_path: Path) -> Reasoner:
    if kind == "judge":
        return InProcessReasoner(lambda _agent: Sorter({}, ()))
    if kind == "judge with state":
        return InProcessReasoner(lambda _agent: Counter({}, ()))
    if kind == "scripted":
        return ScriptedReasoner([thought_of_script()])
    model = ScriptedModel([ToolCall("mail.file", ARGS)])
    return AdkReasoner({"sorter": write_agent(tmp_path, AGENT_PY)}, model_for=model.model_for)


def write_agent(tmp_path: Path, code: str) -> Path:
    """Write the folder of an agent that a model reasons for."""
    folder = tmp_path / "sorter"
    folder.mkdir()
    (folder / "agent.yaml").write_text(AGENT_YAML)
    (folder / "agent.py").write_text(code)
    return folder


def briefing() -> Briefing:
    memory = Memory(
        id="m1", bank="inbox", revision=2, scope="inbox", kind="example", topics=("filing",),
        text="Invoices of the harbour go to Invoices.", digest="0" * 64, reviewed_by="desk",
        reviewed_on="2026-01-02", label="invoice",
    )  # fmt: skip
    event = Event(
        source="maildir:sample", id="1.M1", type="mail.received", subject="1.M1",
        data={"from": "a@example.org", "text": "Rechnung über 3 €\u2028"},
        vouched=frozenset({"source", "subject"}),
    )  # fmt: skip
    return Briefing(
        run="run_a", agent="sorter", key="1.M1", position=1, previous=0, turn=1,
        event=event, charter={"folders": {"invoice": "Invoices"}},
        registry={"oncall": "desk@example.org"}, memories=(memory,),
    )  # fmt: skip


def over_the_wire(sent: Briefing) -> Briefing:
    """Send a briefing through JSON, as to a worker process."""
    raw = orjson.loads(orjson.dumps(asdict(sent), default=sorted))
    event = raw.pop("event")
    event |= {"lineage": tuple(event["lineage"]), "vouched": frozenset(event["vouched"])}
    memories = [memory | {"topics": tuple(memory["topics"])} for memory in raw.pop("memories")]
    turns = tuple(raw.pop("turns"))
    return Briefing(
        **raw, event=Event(**event), memories=tuple(Memory(**m) for m in memories), turns=turns
    )


def parts_of(thought: ReasonerJudgement) -> Mapping[str, Any]:
    """Send a thought through JSON. Raises TypeError if it holds anything but data."""

    def default(value: object) -> object:
        assert isinstance(value, Ref)
        return {"ref": value.pointer}

    proposals = [{"tool": p.tool, "args": dict(p.args), "why": p.why} for p in thought.proposals]
    plain = {"label": thought.label, "proposals": proposals, "detail": dict(thought.detail)}
    loaded: Mapping[str, Any] = orjson.loads(orjson.dumps(plain, default=default))
    return loaded


async def test_a_briefing_survives_the_process_boundary(reasoner: Reasoner) -> None:
    sent = briefing()
    assert over_the_wire(sent) == sent
    near = await reasoner.reason(sent)
    reasoner.drop_state(sent.agent, sent.key)
    far = await reasoner.reason(over_the_wire(sent))
    assert parts_of(near) == parts_of(far)


async def test_the_same_briefing_gives_the_same_proposals(reasoner: Reasoner) -> None:
    thoughts = []
    for _ in range(3):
        thought = await reasoner.reason(briefing())
        # How long a model took is its own each time.
        thoughts.append(replace(thought, metadata=NO_METADATA))
        reasoner.drop_state("sorter", "1.M1")
    assert thoughts[0] == thoughts[1] == thoughts[2]
    assert not thoughts[0].needs_state


async def test_a_thought_is_in_bounds(reasoner: Reasoner) -> None:
    thought = await reasoner.reason(briefing())
    assert thought.confidence is not None
    assert 0 <= thought.confidence <= 1
    assert thought.observed
    assert thought.label
    own = [p.confidence for p in thought.proposals if p.confidence is not None]
    assert all(0 <= confidence <= 1 for confidence in own)
    assert thought.proposals in ((WANTED,), ())


async def test_a_reasoner_does_not_change_its_briefing(reasoner: Reasoner) -> None:
    given, same = briefing(), briefing()
    await reasoner.reason(given)
    assert given == same


async def test_state_given_back_is_taken_up(reasoner: Reasoner) -> None:
    """At a position whose past it has not seen, it asks for its state or needs none."""
    later = replace(briefing(), position=9, previous=7)
    first = await reasoner.reason(later)
    since = [(at, briefing().event) for at in (3, 7)]
    reasoner.restore_state("sorter", "1.M1", None, 0, since)
    thought = await reasoner.reason(later)
    assert not thought.needs_state
    if first.needs_state:
        assert not first.observed
        assert thought.label == "seen 3"
    else:
        assert parts_of(thought) == parts_of(first)


async def test_a_recorded_turn_is_not_asked_again(reasoner: Reasoner) -> None:
    """Multi-turn reasoners go on from the record; a judge is final and is never asked twice."""
    first = await reasoner.reason(briefing())
    if isinstance(reasoner, InProcessReasoner | WorkerReasoner):
        assert first.final
        return
    assert not first.final
    done = {"tool": "mail.file", "ordinal": 0, "status": "done", "data": {"id": "x"}}
    args = {"message": {"ref": "/event/subject"}, "folder": {"ref": "/charter/folders/invoice"}}
    proposal = {"tool": "mail.file", "args": args, "why": "", "confidence": 0.9}
    turn = {"proposals": [proposal], "label": first.label, "answers": [done]}
    second = await reasoner.reason(replace(briefing(), turn=2, turns=(turn,)))
    assert second.final
    assert second.proposals == ()


async def test_a_renewed_judge_is_made_anew_and_takes_up_its_states() -> None:
    made: list[str] = []

    def make(agent: str) -> Judge:
        made.append(agent)
        return Counter({}, ())

    judges = InProcessReasoner(make)
    first = briefing()
    other = replace(first, agent="other")
    for one in (first, other):
        assert (await judges.reason(one)).label == "seen 1"
    judges.renew("sorter")
    second = replace(first, position=2, previous=1)
    assert (await judges.reason(second)).needs_state
    judges.restore_state("sorter", first.key, None, 0, [(1, first.event)])
    assert (await judges.reason(second)).label == "seen 2"
    # Nobody else lost anything.
    assert (await judges.reason(replace(other, position=2, previous=1))).label == "seen 2"
    assert made == ["sorter", "other", "sorter"]
