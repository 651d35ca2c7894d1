"""A toy fleet whose judge takes several turns: its events say what is proposed in each of them.

What came of the proposals it accumulates in its notes, and writes those where an argument says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vedette.domain.effect import Call, Outcome
from vedette.domain.event import Event
from vedette.domain.ports.reasoner import Reasoner
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, note_proposal, propose, toy_fleet

READER_PY = '''\
import datetime
import json

from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref


# What the data of an event cannot hold.
EXTRA = {
    "nan": float("nan"), "large": 2**53, "set": {1},
    "date": datetime.date(2020, 1, 1), "huge": "x" * 9_000_000, "deep": [],
    "odd": {"Zürich": (1, -0.25, 1e-6, None, True), "": {"日本": "\\u2028"}},
}
for _ in range(2000):
    EXTRA["deep"] = [EXTRA["deep"]]


class Judge(Base):
    """Counts a key's events; goes through the turns of its event, and notes what came of each."""

    def blank(self):
        return []

    def observe(self, state, event):
        state.append(event.id)
        return len(state)

    def judge(self, seen, briefing):
        return self._act(briefing, {"seen": seen, "half": seen / 2, "told": []})

    def judge_outcomes(self, briefing):
        if briefing.event.data.get("raises") == briefing.turn:
            raise RuntimeError("gave up")
        notes = briefing.notes
        for answer in briefing.turns[-1]["answers"]:
            found = answer.get("data", {}).get("text")
            notes["told"].append([answer["tool"], answer["status"], found, answer.get("ref")])
        return self._act(briefing, notes)

    def _act(self, briefing, notes):
        data, turns = briefing.event.data, briefing.event.data["turns"]
        extra = data.get("notes", {}).get(str(briefing.turn))
        if extra is not None:
            notes["extra"] = EXTRA.get(extra, extra)
        at = min(briefing.turn, len(turns)) - 1
        return Judgement(
            label=f"turn {briefing.turn}, seen {notes['seen']}",
            confidence=float(data.get("confidence", 1)),
            proposals=tuple(
                Proposal(each["tool"], {at: _value(it, notes) for at, it in each["args"].items()})
                for each in turns[at]
            ),
            detail={"previous": briefing.previous, "row": dict(briefing.row)},
            final=briefing.turn >= len(turns) and not data.get("endless"),
            notes=notes,
        )

    def dump(self, state):
        return json.dumps(state).encode()

    def load(self, blob):
        return json.loads(blob)


def _value(given, notes):
    if isinstance(given, dict) and set(given) == {"ref"}:
        return Ref(given["ref"])
    if given == "$notes":
        return json.dumps(notes, sort_keys=True)
    return given
'''

# It writes, where an argument says so, how many texts the row has that it was shown.
COUNTER_PY = READER_PY.replace(
    '    if given == "$notes":\n',
    '    if given == "$row":\n        return str(len(notes["row"]))\n    if given == "$notes":\n',
).replace(
    "        at = min(briefing.turn, len(turns)) - 1\n",
    '        notes["row"] = briefing.row.get("texts", [])\n'
    "        at = min(briefing.turn, len(turns)) - 1\n",
)
COUNT_ROW = note_proposal("$row")

WRITE_NOTES = note_proposal("$notes")


def look(page: str, tool: str = "book.look") -> dict[str, Any]:
    """Return the proposal to read a page."""
    return propose(tool, name=page)


def reading(name: str, pages: int = 3, **data: Any) -> Event:
    """Return an event that has the judge read so many pages, one a turn, and write its notes."""
    turns = [[look(f"{name}.{page}")] for page in range(1, pages + 1)]
    return turns_job(name, *turns, [WRITE_NOTES], **data)


def turns_job(name: str, *turns: list[dict[str, Any]], **data: Any) -> Event:
    """Return an event that has the judge propose this, turn by turn."""
    return job(name, turns=list(turns), **data)


def answer_pages(call: Call) -> Outcome | None:
    """Answer as a book does: a page says which it is."""
    if call.tool.startswith("book."):
        return Outcome("done", {"text": f"page {call.args['name']}", "half": 0.5})
    return None


def write_reader(content: Path, code: str = READER_PY, agent: str = "worker") -> None:
    """Give a toy agent this judge."""
    (content / "agents" / agent / "judge.py").write_text(code, encoding="utf-8")


def reader_fleet(
    folder: Path, world: World, *, code: str = READER_PY,
    reasoners: dict[str, Reasoner] | None = None, **more: Any,
) -> FleetHarness:  # fmt: skip
    """Return a toy fleet of this judge, not opened, whose books answer by page."""
    world.answer = world.answer or answer_pages
    fleet = toy_fleet(folder, world, reasoners=reasoners, **more)
    write_reader(fleet.content, code)
    return fleet


def turns_of(fleet: FleetHarness, event: Event) -> list[dict[str, Any]]:
    """Return the bodies of the turns of an event's run."""
    (run,) = fleet.runs(event)
    return [dict(turn) for turn in fleet.app.store.runs.turns(run.id)]


def turn_entries(fleet: FleetHarness, event: Event) -> list[dict[str, Any]]:
    """Return the entries of an event's turns."""
    (run,) = fleet.runs(event)
    return [one for one in fleet.entries("turn.reasoned") if one["run"] == run.id]


def row_texts(fleet: FleetHarness, key: str = "k") -> list[str]:
    """Return the texts of the agent's row of a key."""
    texts: list[str] = (fleet.app.store.runs.row("worker_notes", key) or {}).get("texts", [])
    return texts
