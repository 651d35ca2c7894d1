"""The fleet of the line bench: the shipped rules, and one agent with a real local judge.

The rules of `policies/` are used as they are; only data is added: a grant and limits that the
bench's load does not reach. The judge keeps running moments of every series and reports how far a
value lies off; each event ends in one call of an idempotent tool, unless the load is `quiet`: then
only those do that lie far off (3 %). Under the load `text` each event brings a text of 60
words that came never before, and the bank holds 200 memories of such words.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from vedette.domain.event import ENVELOPE, Event
from vedette.testing.harness import checkout

AGENT = "gauge_keeper"
KINDS = ("acting", "quiet", "text")
SOURCE = "bench:line"

AGENT_YAML = """\
version: 1
name: gauge_keeper
title: Judges every reading and records its mark
owner: bench@example.org
reasoner: judge
max_turns: 1
mode: act
order_by: subject
triggers: [{on: bench.reading}]
memory: [{bank: bench, scope: gauges, topics: [gauges], limit: 2}]
charter: {threshold: 3.0}
budget: {actions_per_run: 4, actions_per_hour: 100000000, actions_per_day: 1000000000}
tools:
  - name: mark.write
    verb: write
    resource: mark
    args: {event: string, series: string, mark: string, score: string}
    sinks: [/event, /series]
    settles: idempotent
    function: write_mark
    target: marks
"""

JUDGE_PY = '''\
"""Judges a reading by how far it lies off the running mean of its series."""

import json
from math import sqrt

from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref


class Judge(Base):
    """Keeps count, mean and sum of squares of each series (Welford)."""

    def blank(self):
        return [0, 0.0, 0.0]

    def observe(self, state, event):
        value = float(event.data["value"])
        count, mean, squares = state
        spread = sqrt(squares / (count - 1)) if count > 1 else 0.0
        score = abs(value - mean) / spread if spread else 0.0
        off = value - mean
        state[0] = count + 1
        state[1] = mean + off / state[0]
        state[2] = squares + off * (value - state[1])
        return score

    def judge(self, seen, briefing):
        mark = "over" if seen > self.charter["threshold"] else "within"
        args = {
            "event": Ref("/event/id"), "series": Ref("/event/subject"),
            "mark": mark, "score": f"{seen:.3f}",
        }
        return Judgement(
            mark, 0.95, (Proposal("mark.write", args),), score=seen,
            threshold=float(self.charter["threshold"]),
        )

    def dump(self, state):
        return json.dumps(state).encode()

    def load(self, blob):
        return json.loads(blob)
'''

# By how much a reading lies off that has an effect under the load `quiet`: 3 % of them do. In which
# order they came does not matter, so which ones these are can be said beforehand.
FAR_OFF = 4.4
_QUIET_JUDGE_PY = JUDGE_PY.replace(
    "        return score",
    f"        self.is_far = abs(value - 20.0) > {FAR_OFF}\n        return score",
).replace(
    '(Proposal("mark.write", args),)', '(Proposal("mark.write", args),) if self.is_far else ()'
)

TOOLS_PY = '''\
"""Appends a mark to the target's file."""

from vedette.domain.effect import Outcome

from .target import Target

_targets = {}


def _append(call):
    path = call.target["path"]
    target = _targets.get(path)
    if target is None:
        target = _targets[path] = Target(path)
    target.append(call.args["event"])
    return Outcome("done", {"mark": call.args["mark"]})


'''

# How the tool is called: in the event loop, as a tool that awaits, or on a thread of its agent.
TOOL_OF = {
    "async": "async def write_mark(call):\n    return _append(call)\n",
    "thread": "def write_mark(call):\n    return _append(call)\n",
}

AGENT_PY = '''\
"""The agent for ADK; the bench never asks a model."""

from pathlib import Path

from google.adk.agents import LlmAgent
from vedette.adapters.reasoners.adk.tools import declared_tools

root_agent = LlmAgent(
    name="gauge_keeper", model="none", instruction="Record the mark of every reading.",
    tools=declared_tools(Path(__file__).parent),
)
'''

BANK_YAML = """\
bank: bench
purpose: What is known about the gauges of the bench.
scopes:
  - {name: gauges, readers: [gauge_keeper], writers: []}
topics: [gauges]
retention: {days: 365}
"""

MEMORY_MD = """\
---
id: {name}
scope: gauges
topics: [gauges]
kind: fact
reviewed_by: bench@example.org
reviewed_on: 2026-01-05
expires_on: null
---
{text}
"""

MEMORIES = {
    "calm-nights": "Readings of the gauges are calmer between midnight and five.",
    "new-gauges": "A gauge that was replaced reads two units higher for a day.",
}

# Of the load `text`: how many words a text has, how many memories are searched for it, how many
# words there are. The frequent ones are much more frequent, as in any language (Zipf's law).
TEXT_WORDS, TEXT_MEMORIES, VOCABULARY = 60, 200, 2000

GRANT = """
gauge_keeper:
  mode: act
  owner: bench@example.org
  tools:
    mark.write: {verb: write, resource: mark, impact: low}
  memory: [bench/gauges]
"""

LIMITS = "    {name}: {{minute: 100000000, hour: 100000000, day: 1000000000}}\n"
INWARD = "  inward: [mark.write]\n"


def write_content(
    root: Path, *, tool: str = "async", kind: str = "acting", inward: bool = False
) -> None:
    """Write the content folder of the bench fleet for a kind of load: agents, memory, policies.

    Policy calls its tool outward unless `inward`: of what is outward there is no residual.
    """
    agent = root / "agents" / AGENT
    agent.mkdir(parents=True)
    (agent / "__init__.py").touch()
    (agent / "agent.yaml").write_text(AGENT_YAML)
    (agent / "instruction.md").write_text("Record the mark of every reading.\n")
    (agent / "judge.py").write_text(_QUIET_JUDGE_PY if kind == "quiet" else JUDGE_PY)
    (agent / "tools.py").write_text(TOOLS_PY + TOOL_OF[tool])
    (agent / "agent.py").write_text(AGENT_PY)
    shutil.copy(Path(__file__).with_name("target.py"), agent / "target.py")
    bank = root / "memory" / "bench"
    bank.mkdir(parents=True)
    (bank / "bank.yaml").write_text(BANK_YAML)
    for name, text in (_text_memories() if kind == "text" else MEMORIES).items():
        (bank / f"{name}.md").write_text(MEMORY_MD.format(name=name, text=text))
    write_policies(root / "policies", [GRANT + INWARD if inward else GRANT])


def write_policies(to: Path, grants: Sequence[str], agents: Sequence[str] = (AGENT,)) -> None:
    """Copy the shipped policies and add grants, and limits of these agents, to their data."""
    shutil.copytree(checkout() / "policies", to)
    data = to / "grants" / "data.yaml"
    data.write_text(data.read_text(encoding="utf-8") + "".join(grants), encoding="utf-8")
    limits = to / "limits" / "data.yaml"
    text = limits.read_text(encoding="utf-8")
    before, mark, after = text.partition("confidence_milli:\n")
    assert mark, "policies/limits/data.yaml has no confidence_milli any more"
    more = "".join(LIMITS.format(name=agent) for agent in agents)
    limits.write_text(before + more + mark + after, encoding="utf-8")


def readings(
    count: int, *, keys: int = 200, size: int = 1000, seed: int = 1, kind: str = "acting"
) -> Iterator[Event]:
    """Yield events of `keys` series, round robin, each with about `size` bytes of data."""
    draw = random.Random(seed)
    for number in range(count):
        data: dict[str, object] = {"value": round(draw.gauss(20.0, 2.0), 3)}
        text = _draw_words(draw, TEXT_WORDS) if kind == "text" else ""
        if text:
            data["text"] = text
        data["note"] = "x" * max(0, size - 40 - len(text))
        yield Event(
            SOURCE, f"r{number}", "bench.reading", f"gauge-{number % keys}", None,
            data, vouched=ENVELOPE,
        )  # fmt: skip


def warm_readings(keys: int, *, size: int = 1000, kind: str = "acting") -> list[Event]:
    """Return two rounds over all keys, under names of their own: what goes before is not measured.

    They load modules and fill recall, as in a fleet that has been up for a while.
    """
    made = readings(2 * keys, keys=keys, size=size, seed=2, kind=kind)
    return [replace(event, id=f"w{event.id}") for event in made]


def find_acting(events: Iterable[Event], kind: str) -> set[str]:
    """Return the ids of the events that are to have an effect, without asking the judge."""
    return {
        event.id for event in events if kind != "quiet" or abs(event.data["value"] - 20.0) > FAR_OFF
    }


def _draw_words(draw: random.Random, count: int) -> str:
    """Return so many words, the n-th of the vocabulary drawn about 1/n as often as the first."""
    found = (int(VOCABULARY ** draw.random()) for _ in range(count))
    return " ".join(_word(number) for number in found)


def _word(number: int) -> str:
    """Return a made-up word that a stemmer leaves alone."""
    letters = "bdfgklmnprtv"
    return f"{letters[number % 12]}a{letters[number // 12 % 12]}o{letters[number // 144 % 12]}u"


def _text_memories() -> dict[str, str]:
    draw = random.Random(7)
    return {f"note-{number}": _draw_words(draw, 20) for number in range(TEXT_MEMORIES)}
