"""A judge's later turns are the same here, in a worker, and in a worker elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.judge_turns import READER_PY, WRITE_NOTES, look
from tests.remote import gateway
from tests.workers import CHARTER, brief, crew, write_judge

from vedette.adapters.reasoners.in_process import InProcessReasoner
from vedette.adapters.reasoners.workers.plain_data import read_plain
from vedette.adapters.reasoners.workers.protocol import pack_judgement
from vedette.adapters.reasoners.workers.remote_error import Raised
from vedette.config.agent_loader import load_judge
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import Reasoner, ReasonerJudgement

TURNS = [[look("1")], [look("2")], [WRITE_NOTES]]


def later(turn: int, notes: Any, /, *answers: dict[str, Any], **data: Any) -> Briefing:
    """Return the briefing of a later turn."""
    told = ({"label": "x", "proposals": [], "memories": [], "answers": list(answers)},)
    first = brief(**{"turns": TURNS, **data})
    return replace(first, turn=turn, turns=told * (turn - 1), notes=deepcopy(notes))


@asynccontextmanager
async def reasoner_of(kind: str, folder: Path) -> AsyncIterator[Reasoner]:
    write_judge(folder / "agents", "worker", READER_PY)
    if kind == "here":
        yield InProcessReasoner(lambda _: load_judge(folder / "agents/worker", CHARTER, ()))
    elif kind == "worker":
        async with crew(folder) as there:
            yield there.judges
    else:
        async with gateway(folder) as far:
            far.host()
            await far.came()
            yield far.judges


@pytest.fixture(params=["here", "worker", "elsewhere"])
async def reasoner(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Reasoner]:
    async with reasoner_of(request.param, tmp_path) as made:
        yield made


ANSWER = {"tool": "book.look", "ordinal": 0, "status": "done", "data": {"text": "a"}, "ref": "/o"}
NOTES = {"seen": 9, "half": 0.5, "told": [], "Zürich": [1e-6, None, True]}


async def test_a_later_turn_asks_for_no_state_and_leaves_that_of_the_key_alone(
    reasoner: Reasoner,
) -> None:
    read = await reasoner.reason(later(2, NOTES, ANSWER, notes={"2": "odd"}))
    assert (read.final, read.label, read.needs_state) == (False, "turn 2, seen 9", False)
    assert read.notes["told"] == [["book.look", "done", "a", "/o"]]
    assert list(read.notes["extra"]["Zürich"]) == [1, -0.25, 1e-6, None, True]
    assert read.notes["Zürich"] == NOTES["Zürich"]
    assert (len(read.state), read.checkpoint) == (8, None)
    first = await reasoner.reason(brief(1, 0, turns=TURNS))
    assert (first.label, first.final) == ("turn 1, seen 1", False)
    acted = await reasoner.reason(later(3, read.notes))
    assert (acted.final, acted.state) == (True, read.state)
    assert acted.proposals[0].args["text"].startswith('{"Z\\u00fcrich"')
    second = await reasoner.reason(brief(2, 1, turns=TURNS))
    assert (second.label, second.state[:8]) == ("turn 1, seen 2", read.state)
    assert len(second.state) == 20


async def test_what_a_later_turn_raises_leaves_the_key_s_state_alone(reasoner: Reasoner) -> None:
    await reasoner.reason(brief(1, 0, turns=TURNS))
    with pytest.raises((Raised, RuntimeError), match="gave up"):
        await reasoner.reason(later(2, NOTES, raises=2))
    assert (await reasoner.reason(brief(2, 1, turns=TURNS))).label == "turn 1, seen 2"


async def test_who_has_no_later_turns_is_found_out_in_the_first(tmp_path: Path) -> None:
    code = READER_PY.replace("def judge_outcomes", "def judge_more")
    write_judge(tmp_path / "agents", "worker", code)
    async with crew(tmp_path) as there:
        with pytest.raises(Raised, match="define judge_outcomes"):
            await there.judges.reason(brief(turns=TURNS))
        assert (await there.judges.reason(brief(turns=[[]]))).final


def test_an_answer_of_one_turn_is_as_it_was() -> None:
    """To the byte: those of several alone say more."""
    only = ReasonerJudgement("a", 1.0, state="0" * 8)
    plain, _ = pack_judgement(only)
    assert plain == b'j["a",1.0,[],false,false,{},[],true,false,"00000000"]'
    more = replace(only, final=False, notes={"a": 1})
    assert read_plain(pack_judgement(more)[0])[10:] == [False, {"a": 1}]
