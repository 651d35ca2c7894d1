"""Loading agents: what is wrong is said with file, line, field and the mend, and all at once.

Each case takes a fleet that passes every check, makes one thing wrong and names what must be
said. `test_the_fleet_of_these_tests_is_right` is the control: without a change nothing is said.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from vedette.config.agent_file import agent_schema
from vedette.config.agent_loader import build_judge, load_judge, load_module
from vedette.config.fleet import LoadedFleet, check_fleet, load_fleet
from vedette.config.problem import Problem
from vedette.config.settings import ServedAgent, Settings
from vedette.domain.base.errors import BadFleet
from vedette.domain.event import Event
from vedette.domain.schedule import Tick
from vedette.operations.eval_cases import read_evals

AGENT = """\
version: 1
name: harbour_watch
title: Watches the harbour
owner: desk@harbourlights.example
mode: act
order_by: id
collection: sightings
triggers:
  - on: ship.seen
    source: ["radar:*", "lookout:*"]
  - daily: "06:30"
    zone: Europe/London
memory:
  - bank: harbour
    scope: watch
    topics: [ships]
charter:
  berths: {small: A1, large: B7}
  threshold: 0.25
budget: {actions_per_hour: 20}
tools:
  - name: berth.assign
    verb: assign
    resource: berth
    args: {ship: string, berth: string, note: "string?"}
    sinks: [/berth]
    settles: transactional
    function: assign
    inverse: berth.free
  - name: berth.free
    verb: free
    resource: berth
    args: {berth: string}
    sinks: [/berth]
    settles: transactional
    function: free
  - name: master.call
    verb: call
    resource: radio
    args: {ship: string}
    sinks: [/ship]
    settles: queryable
    function: call_master
    query: was_called
    target: radio
    timeout: 3s
"""

JUDGE = """\
from vedette.judging import Judge as Base
from vedette.judging import Judgement

from .words import LABEL


class Judge(Base):
    def judge(self, seen, briefing):
        return Judgement(LABEL, 1.0)
"""

TOOLS = """\
def assign(call, row):
    return []


def free(call, row):
    return []


async def call_master(call):
    return None


def was_called(call):
    return None
"""

EVALS = """\
- name: a ship is given a berth
  event: {type: ship.seen, source: "radar:1", id: e1, data: {name: Anna}}
  expect: {permitted: [berth.assign], held: [], denied: []}
"""

BANK = """\
bank: harbour
purpose: What the desk knows of ships
scopes:
  - {name: watch, readers: [harbour_watch]}
  - {name: office, readers: []}
topics: [ships]
"""

MEMORY = """\
---
id: anna-is-large
scope: watch
topics: [ships]
kind: fact
reviewed_by: desk@harbourlights.example
reviewed_on: 2026-03-01
---
The Anna needs a large berth.
"""


@dataclass
class Small:
    """A small fleet in a folder that a test may spoil."""

    root: Path
    settings: Settings

    @property
    def folder(self) -> Path:
        return self.root / "agents" / "harbour_watch"

    def put(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def change(self, old: str, new: str, file: str = "agents/harbour_watch/agent.yaml") -> None:
        text = (self.root / file).read_text(encoding="utf-8")
        assert text.count(old) >= 1, f"{old!r} is not in {file}"
        self.put(file, text.replace(old, new, 1))

    def check(self) -> list[Problem]:
        return check_fleet(self.root, self.settings, read_evals)

    def load(self) -> LoadedFleet:
        return load_fleet(self.root, self.settings)

    def said(self) -> str:
        problems = self.check()
        assert len(problems) == 1, [str(problem) for problem in problems]
        return str(problems[0])


@pytest.fixture
def small(tmp_path: Path) -> Small:
    root = tmp_path / "fleet"
    settings = Settings.of(root, "harbour")
    settings = Settings(
        root=settings.root,
        fleet="harbour",
        state=settings.state,
        agents=settings.agents,
        policies=settings.policies,
        memory=settings.memory,
        targets={"radio": {"kind": "webhook", "url": "http://127.0.0.1:1/"}},
    )
    made = Small(settings.root, settings)
    at = "agents/harbour_watch"
    made.put(f"{at}/agent.yaml", AGENT)
    made.put(f"{at}/__init__.py", "")
    made.put(f"{at}/instruction.md", "Give every ship a berth.\n")
    made.put(f"{at}/judge.py", JUDGE)
    made.put(f"{at}/words.py", 'LABEL = "ship"\n')
    made.put(f"{at}/tools.py", TOOLS)
    made.put(f"{at}/evals/ships.yaml", EVALS)
    made.put("memory/harbour/bank.yaml", BANK)
    made.put("memory/harbour/anna.md", MEMORY)
    return made


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def test_the_fleet_of_these_tests_is_right(small: Small) -> None:
    assert small.check() == []
    loaded = small.load()
    agent = loaded.fleet.agents["harbour_watch"]
    assert agent.identity.spiffe_id == "spiffe://harbour/agent/harbour_watch"
    assert agent.subscriptions[0].sources == ("radar:*", "lookout:*")
    assert (agent.schedules[0].daily, agent.schedules[0].zone) == ("06:30", "Europe/London")
    assert agent.tools["master.call"].timeout_us == 3_000_000
    assert agent.tools["berth.assign"].sinks == ("/berth",)
    assert agent.charter == {"berths": {"small": "A1", "large": "B7"}, "threshold": 0.25}
    assert (agent.requested_mode, agent.order_by, agent.collection) == ("act", "id", "sightings")
    assert agent.budget.actions_per_hour == 20
    assert agent.instruction == "Give every ship a berth.\n"
    assert [memory.id for memory in loaded.banks[0].memories] == ["anna-is-large"]


YAML = "agents/harbour_watch/agent.yaml"


@pytest.mark.parametrize(
    ("old", "new", "field", "what", "mend"),
    [
        ("    settles: queryable\n", "", "tools[2].settles", "is missing", "transactional"),
        ("settles: queryable", "setles: none", "tools[2].setles", "unknown key", "'settles'"),
        ("settles: queryable", "settles: nobody", "tools[2].settles", "'nobody'", "none"),
        ("settles: queryable", "settles: none", "tools[2].query", "never queried", "remove"),
        ("    query: was_called\n", "", "tools[2].settles", "needs a query", "add query:"),
        ("collection: sightings\n", "", "tools[0].settles", "collection", "add collection:"),
        ("sinks: [/ship]", "sinks: [ship]", "tools[2].sinks[0]", "JSON Pointer", "/ship"),
        ("sinks: [/ship]", "sinks: [/shap]", "tools[2].sinks[0]", "no argument", "'ship'"),
        ("    sinks: [/ship]\n", "", "tools[2].sinks", "is missing", "JSON Pointers"),
        ("{ship: string}", "{ship: strnig}", "tools[2].args.ship", "no type", "'string'"),
        ("function: call_master", "function: call", "tools[2].function", "defines no", "call"),
        ("target: radio", "target: radoi", "tools[2].target", "no table", "'radio'"),
        ("inverse: berth.free", "inverse: berth.fre", "tools[0].inverse", "not a", "'berth.free'"),
        ("{berth: string}", "{berth: integer}", "tools[0].inverse", "integer", "one type"),
        ("{berth: string}", "{berth: string, who: string}", "tools[0].inverse", "'who'", "option"),
        ("timeout: 3s", "timeout: 3 bells", "tools[2].timeout", "not a duration", "30s"),
        ("name: berth.free", "name: berth.assign", "tools[1].name", "twice", "keep one"),
        ("name: master.call", "name: artefact.read", "tools[2].name", "engine's own", "another"),
        ("charter:", "reasoner: client\nartefacts: true\ncharter:", "artefacts", "run of", ""),
        ("charter:", "artefacts: large\ncharter:", "artefacts", "true", ""),
        ("mode: act", "mode: acts", "mode", "'acts'", "'act'"),
        ("order_by: id", "orderby: id", "orderby", "unknown key", "'order_by'"),
        ("version: 1", "version: 2", "version", "2", "1"),
        ("title: Watches the harbour", "title: 7", "title", "must be text", "quotes"),
        ("owner: desk@harbourlights.example\n", "", "owner", "is missing", "answers"),
        ("name: harbour_watch", "name: harbor_watch", "name", "the folder is", "harbour_watch"),
        ("hour: 20", "hour: 0", "budget.actions_per_hour", "at least 1", ""),
        ("hour: 20", "hour: many", "budget.actions_per_hour", "whole number", ""),
        ("on: ship.seen", "on: vedette.tick", "triggers[0].on", "ticks", "every"),
        ("on: ship.seen", "on: vedette.call", "triggers[0].on", "its client", "reasoner: client"),
        ("- on: ship.seen\n    s", "- s", "triggers[0]", "wakes on nothing", "exactly one"),
        ('daily: "06:30"', 'daily: "25:30"', "triggers[1].daily", "time of day", "06:30"),
        ("Europe/London", "Europe/Lundon", "triggers[1].zone", "no time zone", "Europe/London"),
        ("bank: harbour", "bank: harbor", "memory[0].bank", "no bank", "'harbour'"),
        ("scope: watch", "scope: wach", "memory[0].scope", "no scope", "'watch'"),
        ("scope: watch", "scope: office", "memory[0].scope", "as reader", "bank.yaml"),
        ("[ships]", "[boats]", "memory[0].topics[0]", "no topic", "ships"),
        ("charter:", "reasoner: adk\ncharter:", "reasoner", "agent.py", "root_agent"),
        ("  threshold: 0.25", "  threshold: .nan", "charter.threshold", "JSON", "use"),
        ("title: W", "name: x\ntitle: W", "", 'key "name" is given twice', "keep one"),
        ("title: W", "title: &a W", "", "anchors", "write the value out"),
        ("title: W", "title: !!str W", "", "tag", "plain"),
        ("title: W", "title: : W", "", "is not YAML", ""),
        ("triggers:", "triggers: [", "", "is not YAML", ""),
    ],
)
def test_a_malformed_agent_yaml(
    small: Small, old: str, new: str, field: str, what: str, mend: str
) -> None:
    small.change(old, new)
    problems = small.check()
    found = [p for p in problems if p.field == field and p.file == YAML]
    assert found, [str(problem) for problem in problems]
    assert what in found[0].what
    assert mend in found[0].mend
    text = (small.folder / "agent.yaml").read_text()
    assert 1 <= found[0].line <= text.count("\n") + 1
    with pytest.raises(BadFleet, match=r"agent\.yaml:\d+"):
        small.load()


SCHEMA = """\
    schema:
      type: object
      properties:
        ship: {type: string, maxLength: 40}
        tonnage: {type: number, minimum: 0, exclusiveMaximum: 250000.5}
        crew:
          type: array
          items:
            type: object
            properties: {mail: {type: string, format: email}}
      required: [ship]
    sinks: [/ship, /crew/*/mail]
"""
WORDS = "    args: {ship: string}\n    sinks: [/ship]\n"


def test_a_tool_declares_its_arguments_by_a_schema(small: Small) -> None:
    small.change(WORDS, SCHEMA)
    assert small.check() == []
    tool = small.load().fleet.agents["harbour_watch"].tools["master.call"]
    assert tool.args == {"ship": "string", "tonnage": "number?", "crew": "list?"}
    assert tool.sinks == ("/ship", "/crew/*/mail")
    assert tool.schema is not None
    assert tool.schema["properties"]["tonnage"] == {
        "type": "number", "minimum": 0, "exclusiveMaximum": 250000.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "field", "what", "mend"),
    [
        ("minimum: 0", "minimun: 0", "tools[2].schema.properties.tonnage.minimun", "no keyword",
         "'minimum'"),
        ("format: email", "format: mail",
         "tools[2].schema.properties.crew.items.properties.mail.format", "no format", "email"),
        ("type: array", "type: list", "tools[2].schema.properties.crew.type", "'list'", "JSON"),
        ("required: [ship]", "required: [shap]", "tools[2].schema.required", "'shap'",
         "properties"),
        ("/crew/*/mail]", "/crew/*/male]", "tools[2].sinks[1]", "no place", "* stands for"),
        ("/crew/*/mail]", "/crew/mail]", "tools[2].sinks[1]", "no place", "* stands for"),
        ("/crew/*/mail]", "/krew]", "tools[2].sinks[1]", "no argument", "'crew'"),
        ("    schema:", "    args: {x: string}\n    schema:", "tools[2].schema", "by args:", "one"),
        ("      type: object\n      prop", "      prop", "tools[2].schema.type", "an object",
         "type:"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_schema_is_said_at_its_line(
    small: Small, old: str, new: str, field: str, what: str, mend: str
) -> None:
    small.change(WORDS, SCHEMA)
    small.change(old, new)
    (problem,) = small.check()
    assert (problem.file, problem.field) == (YAML, field)
    assert what in problem.what
    assert mend in problem.mend
    text = (small.folder / "agent.yaml").read_text()
    first = line_of(text, "name: master.call")
    assert first < problem.line <= text.count("\n")
    with pytest.raises(BadFleet, match=rf"agent\.yaml:{problem.line}"):
        small.load()


def test_an_inverse_is_given_what_its_schema_takes(small: Small) -> None:
    small.change("    args: {berth: string}\n", SCHEMA.partition("    sinks")[0])
    small.change("    sinks: [/berth]\n    settles: transactional\n    function: free",
                 "    sinks: []\n    settles: transactional\n    function: free")  # fmt: skip
    assert small.check() == []  # it needs the ship, and may be told the rest
    small.change("type: string, maxLength: 40", "type: integer")
    assert "one type" in str(small.check()[0])


@pytest.mark.parametrize(
    ("cron", "what"),
    [
        ("0 6 * * 0", "counted differently"),
        ("0 6 * * 1-5", "counted differently"),
        ("0 6 * *", "4 fields"),
        ("60 6 * * *", "outside 0 to 59"),
        ("0 6 * * monday", "not known"),
        ("0 6 1 * mon", "both a day of month and a weekday"),
        ("*/0 6 * * *", "no positive number"),
        ("0 9-6 * * *", "runs backwards"),
    ],
)
def test_a_cron_that_would_fire_on_another_day(small: Small, cron: str, what: str) -> None:
    small.change('daily: "06:30"', f'cron: "{cron}"')
    assert what in small.said()


@pytest.mark.parametrize("cron", ["0 6 * * mon", "*/15 6-18 * * mon-fri", "0 0 1,15 jan-mar *"])
def test_a_cron_that_is_right(small: Small, cron: str) -> None:
    small.change('daily: "06:30"', f'cron: "{cron}"')
    assert small.load().fleet.agents["harbour_watch"].schedules[0].cron == cron


def test_line_and_text_of_a_problem_are_exact(small: Small) -> None:
    small.change("    settles: queryable\n", "    setles: queryable\n")
    line = line_of(AGENT, "    settles: queryable")
    said = [str(problem) for problem in small.check()]
    assert said[1] == (f"{YAML}:{line}: tools[2].setles: unknown key (did you mean 'settles'?)")
    start = line_of(AGENT, "  - name: master.call")
    assert said[0].startswith(f"{YAML}:{start}: tools[2].settles: is missing (say how an unknown")


def test_all_problems_are_found_at_once_and_load_names_the_first(small: Small) -> None:
    small.change("mode: act", "mode: acts")
    small.change("target: radio", "target: radios")
    small.put("agents/harbour_watch/instruction.md", " \n")
    small.change("kind: fact", "kind: rumour", "memory/harbour/anna.md")
    files = {problem.file for problem in small.check()}
    assert files == {YAML, "agents/harbour_watch/instruction.md", "memory/harbour/anna.md"}
    with pytest.raises(BadFleet, match="2 more") as caught:
        small.load()
    assert caught.value.where == f"{YAML}:5: mode"
    assert caught.value.mend == "did you mean 'act'?"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("calendar", "standard library"),
        ("json", "standard library"),
        ("pytest", "installed module"),
        ("vedette", "installed module"),
        ("front-desk", "identifier"),
        ("class", "identifier"),
        ("Watch", "identifier"),
    ],
)
def test_a_folder_name_that_shadows_a_module(small: Small, name: str, what: str) -> None:
    before = set(sys.modules)
    small.folder.rename(small.folder.parent / name)
    small.change("name: harbour_watch", f"name: {name}", f"agents/{name}/agent.yaml")
    small.change("[harbour_watch]", f"[{name}]", "memory/harbour/bank.yaml")
    said = small.said()
    assert what in said
    assert said.startswith(f"agents/{name}: folder name")
    assert "rename" in said
    assert name in before or name not in sys.modules


@pytest.mark.parametrize(
    ("file", "text", "at", "what"),
    [
        ("__init__.py", "# nothing\nimport os\n", ":2", "is not empty"),
        ("instruction.md", "\n", "", "is empty"),
        ("judge.py", "class Jugde:\n    pass\n", ":1", "defines no Judge"),
        ("judge.py", "class Judge\n", ":1", "is not Python"),
        ("judge.py", "from tools import free\nclass Judge: ...\n", ":1", "absolutely"),
        *(
            ("judge.py", f"class Judge: ...\n{text}\n", f":{line}", "absolutely")
            for text, line in (
                ("def f():\n    if f:\n        pass\n    else:\n        import tools", 6),
                ("try:\n    pass\nexcept OSError:\n    import tools", 5),
                ("try:\n    pass\nfinally:\n    import tools", 5),
                ("match 1:\n    case 1:\n        import tools", 4),
                ("class C:\n    async def f(self):\n        with self: import tools", 4),
                ("for _ in ():\n    while 1:\n        import tools", 4),
            )
        ),
        ("tools.py", TOOLS.replace("(call, row)", "(call)", 1), ":1", "must take (call, row)"),
        ("tools.py", TOOLS.replace("(call)", "(call, x)", 1), ":9", "must take (call)"),
        ("tools.py", TOOLS.replace("def ass", "async def ass"), ":1", "plain def"),
        ("evals/ships.yaml", "- name: x\n  expect: {}\n", ":1", "has no event"),
        # What no runner of cases knows is no event of one.
        ("evals/ships.yaml", "- name: x\n  tick: {}\n  expect: {}\n", ":1", "has no event"),
        ("evals/ships.yaml", "{}\n", ":1", "not a list"),
        ("evals/ships.yaml", EVALS.replace("berth.a", "berth.b"), ":3", "not a tool"),
        ("evals/more.yaml", EVALS, ":1", "stands in"),
        ("evals/ships.yaml", EVALS.replace("expect", "expct"), ":1", "expects nothing"),
    ],
)
def test_a_wrong_file_beside_agent_yaml(
    small: Small, file: str, text: str, at: str, what: str
) -> None:
    small.put(f"agents/harbour_watch/{file}", text)
    said = small.said()
    place = "evals/ships.yaml" if file == "evals/more.yaml" else file
    assert said.startswith(f"agents/harbour_watch/{place}{at}:")
    assert what in said


@pytest.mark.parametrize("file", ["__init__.py", "instruction.md", "judge.py"])
def test_a_missing_file(small: Small, file: str) -> None:
    (small.folder / file).unlink()
    assert file in small.said()


def test_what_is_not_utf8_and_what_is_a_link(small: Small) -> None:
    (small.folder / "instruction.md").write_bytes(b"one\ntwo \xff\n")
    assert "instruction.md:2: is not UTF-8" in small.said()
    (small.folder / "instruction.md").unlink()
    (small.root / "elsewhere.md").write_text("Do as you like.")
    (small.folder / "instruction.md").symlink_to(small.root / "elsewhere.md")
    assert "instruction.md: is a link" in small.said()


def test_an_empty_fleet_and_a_folder_without_agent_yaml(small: Small) -> None:
    small.put("agents/drafts/notes.txt", "later")
    assert "agents/drafts: has no agent.yaml" in small.said()
    (small.root / "agents").rename(small.root / "agenda")
    errors = [str(p) for p in small.check() if not p.warning]
    assert errors == [
        "agents: there is no such folder (create it, or correct [content] in vedette.toml)"
    ]


def test_a_collection_has_one_agent(small: Small) -> None:
    """A worker leads an agent's key: what it knows of a row another agent's worker writes over."""
    shared = AGENT.replace("name: harbour_watch", "name: pier_watch", 1)
    for path in sorted(small.folder.rglob("*")):
        if path.is_file() and path.name != "agent.yaml":
            at = path.relative_to(small.folder)
            small.put(f"agents/pier_watch/{at}", path.read_text())
    small.change(
        "readers: [harbour_watch]",
        "readers: [harbour_watch, pier_watch]",
        "memory/harbour/bank.yaml",
    )
    small.put("agents/pier_watch/agent.yaml", shared)
    line = line_of(shared, "collection:")
    said = small.said()
    assert said.startswith(f"agents/pier_watch/agent.yaml:{line}: collection: 'sightings' is the")
    assert "of harbour_watch" in said
    with pytest.raises(BadFleet, match="two would write its rows"):
        small.load()
    small.put("agents/pier_watch/agent.yaml", shared.replace("sightings", "pier_sightings"))
    assert small.check() == [], "the control: each its own"


def test_a_reader_that_is_no_agent_is_a_warning(small: Small) -> None:
    small.change("readers: []", "readers: [ghost]", "memory/harbour/bank.yaml")
    problem = small.check()[0]
    assert problem.warning
    assert "ghost" in str(problem)
    assert small.load().findings == (problem,)


def test_the_release_covers_every_file_and_no_debris(small: Small) -> None:
    def release() -> str:
        return small.load().fleet.agents["harbour_watch"].release

    first = release()
    small.put("agents/harbour_watch/__pycache__/judge.cpython-311.pyc", "debris")
    assert release() == first
    small.put("agents/harbour_watch/words.py", 'LABEL = "boat"\n')
    second = release()
    assert second != first
    small.put("agents/harbour_watch/notes/new.md", "")
    assert release() not in (first, second)


def test_code_is_loaded_under_a_private_parent_and_writes_nothing(small: Small) -> None:
    agent = small.load().fleet.agents["harbour_watch"]
    path = list(sys.path)
    before = sorted(small.root.rglob("*"))
    judge = build_judge(agent, ())
    unused: Any = None
    assert judge.judge(None, unused).label == "ship"
    assert type(judge).__module__ == "vedette_fleet.harbour_watch.judge"
    assert "harbour_watch" not in sys.modules
    assert sys.path == path
    assert sorted(small.root.rglob("*")) == before
    folder = Path(agent.folder)
    assert load_module(folder, "tools") is load_module(folder, "tools")


def test_changed_code_is_loaded_afresh_however_soon_it_changed(small: Small) -> None:
    agent = small.load().fleet.agents["harbour_watch"]
    unused: Any = None
    for label in ("ship", "boat", "raft"):
        small.put("agents/harbour_watch/words.py", f'LABEL = "{label}"\n')
        judge = load_judge(Path(agent.folder), agent.charter, ())
        assert judge.judge(None, unused).label == label


@pytest.mark.parametrize("file", ["words.py", "judge.py", "instruction.md", "evals/more.yaml"])
def test_code_of_another_release_than_is_asked_for_is_refused(small: Small, file: str) -> None:
    agent = small.load().fleet.agents["harbour_watch"]
    path = Path(agent.folder, file)
    path.parent.mkdir(exist_ok=True)
    path.write_text((path.read_text() if path.exists() else "") + "\n")
    folder = Path(agent.folder)
    asks: list[Callable[[], object]] = [
        lambda: build_judge(agent, ()), lambda: load_module(folder, "tools", agent.release)
    ]  # fmt: skip
    for ask in asks:
        with pytest.raises(BadFleet) as refused:
            ask()
        assert refused.value.code == "release-changed"
        assert agent.release[:12] in refused.value.what


def test_what_is_imported_late_is_of_the_release_too(small: Small) -> None:
    """A module that a judge imports when it judges is not read again: it could be another's."""
    small.put(
        "agents/harbour_watch/judge.py",
        "from vedette.judging import Judge as Base, Judgement\n\n\nclass Judge(Base):\n"
        "    def judge(self, seen, briefing):\n        from .words import LABEL\n\n"
        "        return Judgement(LABEL, 1.0)\n",
    )
    agent = small.load().fleet.agents["harbour_watch"]
    judge = build_judge(agent, ())
    small.put("agents/harbour_watch/words.py", 'LABEL = "edited"\n')
    unused: Any = None
    assert judge.judge(None, unused).label == "ship"


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        (lambda s: s.put("agents/harbour_watch/words.py", "LABEL = 1 / 0\n"), "words.py:1"),
        (lambda s: s.put("agents/harbour_watch/words.py", "\nLABEL =\n"), "words.py:2"),
        (lambda s: s.put("agents/harbour_watch/judge.py", "Judge = 3\n"), "judge.py"),
        (lambda s: (s.folder / "judge.py").unlink(), "judge.py"),
    ],
)
def test_code_that_fails_is_named_by_file_and_line(
    small: Small, spoil: Callable[[Small], None], where: str
) -> None:
    agent = small.load().fleet.agents["harbour_watch"]
    spoil(small)
    with pytest.raises(BadFleet) as caught:
        load_judge(Path(agent.folder), agent.charter, ())
    assert caught.value.where == f"harbour_watch/{where}"


def test_checking_imports_no_code_of_the_agent(small: Small) -> None:
    small.put("agents/harbour_watch/words.py", 'raise SystemExit("imported")\n')
    assert small.check() == []


def test_the_schema_names_every_key_and_requires_the_class_of_a_tool() -> None:
    schema = agent_schema()
    tool = schema["$defs"]["ToolFile"]
    assert "settles" in tool["required"]
    assert tool["additionalProperties"] is False
    assert tool["properties"]["schema"]["allOf"] == [{"$ref": schema["$schema"]}]
    for line in textwrap.dedent(AGENT).splitlines():
        key = line.split(":")[0]
        if line[:1].isalpha():
            assert key in schema["properties"]


TRIGGERS = """\
triggers:
  - {on: ship.sighted, name: sighted}
  - {on: [ship.moored, ship.left], source: "radar:*"}
  - {on: "ship.*", subject: "ship/1*"}
  - {daily: "06:30", name: morning}
  - {every: 1h}
"""


def with_triggers(small: Small, text: str) -> None:
    whole = (small.root / YAML).read_text()
    start = whole.index("triggers:")
    end = next(
        at for at in range(start + 1, len(whole))
        if whole[at - 1] == "\n" and whole[at] not in " \n#"
    )  # fmt: skip
    small.put(YAML, whole[:start] + text + whole[end:])


def test_every_trigger_has_a_name_and_policy_is_told_the_first_that_matches(small: Small) -> None:
    with_triggers(small, TRIGGERS)
    agent = small.load().fleet.agents["harbour_watch"]
    assert [one.trigger_name for one in agent.subscriptions] == [
        "sighted", "ship.moored,ship.left@radar:*", "ship.*#ship/1*",
    ]  # fmt: skip
    assert [one.name for one in agent.schedules] == ["morning", "every"]

    def woken(
        type: str, source: str = "radar:1", subject: str | None = "ship/12", **more: Any
    ) -> str:
        return agent.trigger_of(Event(source, "1", type, subject, **more))

    assert woken("ship.sighted") == "sighted"
    assert woken("ship.left") == "ship.moored,ship.left@radar:*"
    assert woken("ship.left", "lookout:1") == "ship.*#ship/1*"
    assert woken("ship.left", "lookout:1", "ship/2") == ""
    made = Tick("harbour_watch", agent.schedules[0], 0, "2026-03-01").to_event("harbour")
    assert agent.trigger_of(made) == "morning"
    # What another sends as a tick, or as an undo, has no trigger.
    assert woken("vedette.tick", made.source, "morning") == ""
    assert woken("vedette.undo") == ""
    assert woken("vedette.undo", vouched=frozenset({"data/action"})) == "undo"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[{on: a}, {on: a}]", "two triggers are named 'a'"),
        ("[{on: a, name: every}, {every: 1h}]", "two triggers are named 'every'"),
        ("[{on: a, name: x}, {daily: '06:30', name: x}]", "two triggers are named 'x'"),
        ("[{on: a, name: A b}]", "'A b' cannot name a trigger"),
        ("[{on: a, name: undo}]", "'undo' names the trigger of what a person takes back"),
    ],
)
def test_a_trigger_has_a_name_of_its_own(small: Small, text: str, what: str) -> None:
    with_triggers(small, f"triggers: {text}\n")
    assert any(what in problem.what for problem in small.check())


CLIENT = """\
version: 1
name: harbour_watch
title: Watches for somebody else
owner: desk@harbourlights.example
reasoner: client
triggers: [{on: vedette.call}]
charter: {client_confidence: 0.9}
tools:
  - {name: ship.hail, verb: hail, resource: radio, args: {ship: string}, sinks: [/ship],
     settles: none, function: call_master, target: radio}
"""


@pytest.fixture
def served(small: Small) -> Small:
    (small.folder / "agent.yaml").write_text(CLIENT)
    (small.folder / "judge.py").unlink()
    shutil.rmtree(small.folder / "evals")
    small.settings = replace(small.settings, served_agents=(ServedAgent("harbour_watch"),))
    return small


def test_an_agent_may_be_reasoned_for_by_its_client(served: Small) -> None:
    agent = served.load().fleet.agents["harbour_watch"]
    assert (agent.reasoner, agent.asks_model, agent.has_judge) == ("client", False, False)


@pytest.mark.parametrize(
    ("old", "new", "field", "what", "mend"),
    [
        ("on: vedette.call", "on: ship.seen", "triggers[0]", "client's calls", "vedette.call"),
        ("on: vedette.call", 'on: "vedette.*"', "triggers[0]", "client's calls", "vedette.call"),
        ("on: vedette.call", 'daily: "06:30"', "triggers[0]", "client's calls", "vedette.call"),
        (
            "on: vedette.call",
            "on: vedette.call, source: shop",
            "triggers[0].source",
            "leave some out",
            "remove",
        ),
        (
            "on: vedette.call",
            'on: vedette.call, subject: "*"',
            "triggers[0].subject",
            "leave some out",
            "remove",
        ),
        (
            "charter:",
            "memory: [{bank: harbour, scope: watch}]\ncharter:",
            "memory",
            "nobody",
            "rem",
        ),
        ("confidence: 0.9", "confidence: 7", "charter.client_confidence", "has the", "0 to 1"),
        ("reasoner: client\n", "", "reasoner", "judge.py", "add judge.py"),
        ("name: ship.hail", "name: outcome", "tools[0].name", "on MCP's wire", "rename"),
    ],
)
def test_what_a_client_has_no_use_for(
    served: Small, old: str, new: str, field: str, what: str, mend: str
) -> None:
    text = (served.folder / "agent.yaml").read_text()
    assert old in text
    (served.folder / "agent.yaml").write_text(text.replace(old, new, 1))
    problems = served.check()
    found = [p for p in problems if p.field == field and p.file == YAML]
    assert found, [str(problem) for problem in problems]
    assert what in found[0].what
    assert mend in found[0].mend


@pytest.mark.parametrize(
    ("name", "what"), [("harbour_wach", "no agent of this fleet"), ("harbour_watch", "'judge'")]
)
def test_only_an_agent_with_a_client_is_served(small: Small, name: str, what: str) -> None:
    small.settings = replace(small.settings, served_agents=(ServedAgent(name),))
    (found,) = [p for p in small.check() if p.field == "serve.agents"]
    assert what in found.what
    with pytest.raises(BadFleet, match=r"serve\.agents"):
        small.load()
