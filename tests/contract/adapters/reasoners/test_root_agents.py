"""A root_agent is read in a worker's box; the engine makes it again of what it is told, no more."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.adapters.reasoners.test_adk_reasoner import AGENT_PY, AGENT_YAML, write
from tests.gemini_server import model_server
from tests.workers import LIMITS, Crew, until

from vedette.adapters.reasoners.adk.reasoner import AdkReasoner
from vedette.adapters.reasoners.adk.root_agent import describe_root_agent, read_root_agent
from vedette.adapters.reasoners.adk.tools import read_declared_tools
from vedette.adapters.reasoners.workers.root_agents import describe_in_worker
from vedette.adapters.reasoners.workers.sandbox_probe import protection
from vedette.app.workers import Containment
from vedette.config.agent_folder import release_digest
from vedette.domain.base.errors import BadFleet
from vedette.domain.event import Event
from vedette.testing.harness import checkout
from vedette.testing.toy_fleet import World, toy_fleet

MISSING = protection().gaps()
SHIPPED = ("anomaly_detection", "content_moderation", "inbox_triage", "memory_curator",
           "weekly_review")  # fmt: skip
RICH = """
from google.adk.planners import BuiltInPlanner
from google.genai import types

root_agent = root_agent.clone(update={
    "generate_content_config": types.GenerateContentConfig(
        temperature=0.5, stop_sequences=["END"], max_output_tokens=100,
        safety_settings=[types.SafetySetting(
            category="HARM_CATEGORY_HARASSMENT", threshold="BLOCK_NONE")],
    ),
    "planner": BuiltInPlanner(thinking_config=types.ThinkingConfig(thinking_budget=7)),
    "static_instruction": "Always.", "description": "Sorts.",
    "tools": root_agent.tools[:1], "disallow_transfer_to_peers": True,
})
"""


def described(folder: Path) -> dict[str, Any]:
    """Return what an honest worker tells, told in this process."""
    return describe_root_agent(folder, None)


def made_again(folder: Path, said: object) -> Any:
    return read_root_agent(said, folder, {tool.name: tool for tool in read_declared_tools(folder)})


# --- in a worker ------------------------------------------------------------------------------


async def test_a_fleet_asks_the_models_of_agents_whose_code_it_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model and instruction are the agent's own; another release is read in a worker too."""
    before = imported("worker")
    fleet = toy_fleet(tmp_path, World(), reasoner="adk", workers=True)
    code = fleet.content / "agents" / "worker" / "agent.py"
    mine = code.read_text().replace('"none"', '"gemini-2.5-flash"')
    with model_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        code.write_text(mine)
        async with fleet:
            for at, instruction in enumerate(("Do what is asked.", "Do {braces} as they are.")):
                code.write_text(mine.replace("Do what is asked.", instruction))
                event = Event("test", f"e{at}", "worker.job", "k", None, {})
                if at:
                    done = await fleet.app.releases.release(fleet.order(), "worker")
                    assert done["changed"]
                await fleet.send(event)
                await fleet.wait_until_idle()
                assert [run.state for run in fleet.runs(event)] == ["done"]
                said = server.bodies.pop()["systemInstruction"]["parts"][0]["text"]
                assert said.startswith(instruction)
            assert server.bodies == []
            assert (fleet.app.containment or Containment(None, "none")).gaps() == MISSING
    # What another test had imported may go meanwhile.
    assert imported("worker").items() <= before.items()


SILENT = """
from vedette.adapters.reasoners.adk import root_agent as ours

class Nothing:
    def model_dump(self):
        return None

ours._validate = lambda told, folder: Nothing()
"""
WRONG = [
    ("import os\nos._exit(3)\n", "its worker ended by itself with exit code 3", "agent.py"),
    ("import os\nos._exit(97)\n", "its worker ended by itself with exit code 97", "agent.py"),
    ("raise SystemExit(4)\n", "SystemExit: 4", "agent.py"),
    ("\n1 / 0\n", "division by zero", "agent.py:2"),
    (AGENT_PY + SILENT, "what its worker told is no root_agent", "agent.py"),
]


async def test_what_goes_wrong_in_a_worker_is_told_by_file_and_line(tmp_path: Path) -> None:
    crew = Crew(tmp_path / "crew", LIMITS, preload=("adapters.reasoners.adk.root_agent",))
    try:
        for number, (code, what, where) in enumerate(WRONG):
            folder = write(tmp_path / str(number), code)
            with pytest.raises(BadFleet) as refused:
                await describe_in_worker(crew.pool, "sorter", folder, None)
            assert what in refused.value.what
            assert refused.value.where == f"sorter/{where}"
            assert refused.value.mend
        await until(lambda: crew.pool.worker_pids == {})
    finally:
        crew.pool.close()


FORGED = """
from vedette.adapters.reasoners.adk import root_agent as ours
from vedette.domain.base.errors import BadFleet

WORDS = 'fine") (run curl | sh)\\n\\x1b[2Jerror[bad-fleet]: \\u202e\\ud800'

def forged(told, folder):
    raise BadFleet(WORDS, where={where!r}, mend="run curl | sh" + WORDS)

ours._validate = forged
"""
PLACES = (
    ("policies/gate.rego:1", "sorter/agent.py"),
    ("sorter/../policies/gate.py:1", "sorter/agent.py"),
    ("other/agent.py:1", "sorter/agent.py"),
    ("sorter/agent.py:1\nerror", "sorter/agent.py"),
    ("sorter/deeper/words.py:7", "sorter/deeper/words.py:7"),
)
SHOUTS = """
class Raised(BaseException):
    pass

Raised.__name__ = "error[bad-fleet]: \\n"
raise Raised("fine\\n\\x1b[2J")
"""


async def test_code_does_not_write_what_the_engine_says_of_it(tmp_path: Path) -> None:
    """Its words are one quoted line, the place is one of its own, the mend is ours."""
    lies = [(AGENT_PY + FORGED.format(where=where), at) for where, at in PLACES]
    crew = Crew(tmp_path / "crew", LIMITS, preload=("adapters.reasoners.adk.root_agent",))
    try:
        for number, (code, at) in enumerate([*lies, (SHOUTS, "sorter/agent.py")]):
            folder = write(tmp_path / str(number), code)
            with pytest.raises(BadFleet) as refused:
                await describe_in_worker(crew.pool, "sorter", folder, None)
            error = refused.value
            assert str(error).isprintable()
            assert (error.where, error.mend) == (at, "correct the agent's code")
            assert error.what.startswith('its worker says "')
            assert "fine" in error.what
            assert error.what.replace('\\"', "").count('"') == 2
    finally:
        crew.pool.close()


TOUCHES = "from pathlib import Path\nPath({path!r}).touch()\nraise SystemExit(97)\n"


async def test_a_worker_that_is_not_boxed_in_reads_nothing(tmp_path: Path) -> None:
    """Its scratch folder is gone before it can enter: the fleet does not start."""
    ran = tmp_path / "ran"
    folder = write(tmp_path, TOUCHES.format(path=str(ran)))
    crew = Crew(tmp_path / "crew", LIMITS)
    scratch = tmp_path / "crew" / "state" / "scratch"
    try:
        task = asyncio.ensure_future(describe_in_worker(crew.pool, "sorter", folder, None))
        await until(lambda: scratch.is_dir() and list(scratch.iterdir()) != [])
        for place in scratch.iterdir():
            place.rmdir()
        with pytest.raises(BadFleet, match="could not enter its box") as refused:
            await task
        assert "do it again" in str(refused.value.mend), "no line of its code is at fault"
    finally:
        crew.pool.close()
    assert not ran.exists()
    bare = Crew(tmp_path / "bare", LIMITS, sandboxed=False)
    try:
        with pytest.raises(BadFleet, match="SystemExit: 97"):
            await describe_in_worker(bare.pool, "sorter", folder, None)
    finally:
        bare.pool.close()
    assert ran.exists(), "the control: what runs is seen"


async def test_two_releases_at_once_are_both_told_and_leave_nothing(tmp_path: Path) -> None:
    folders = [write(tmp_path / name) for name in ("one", "two")]
    crew = Crew(tmp_path / "crew", LIMITS, preload=("adapters.reasoners.adk.root_agent",))
    try:
        queries = (
            describe_in_worker(crew.pool, "sorter", folder, release_digest(folder))
            for folder in folders
        )
        found = await asyncio.gather(*queries)
        assert [one["name"] for one in found] == ["sorter", "sorter"]
        scratch = tmp_path / "crew" / "state" / "scratch"
        await until(lambda: list(scratch.iterdir()) == [])
    finally:
        crew.pool.close()


# --- what is told, and what is made of it -----------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_root_agent_is_made_again(name: str) -> None:
    from vedette.config.agent_loader import load_module

    folder = checkout() / "agents" / name
    theirs: Any = load_module(folder, "agent").root_agent
    ours = made_again(folder, described(folder))
    assert same(ours) == same(theirs)


def test_all_that_a_root_agent_may_say_is_made_again(tmp_path: Path) -> None:
    folder = write(tmp_path, AGENT_PY + RICH)
    from vedette.config.agent_loader import load_module

    theirs: Any = load_module(folder, "agent").root_agent
    said = described(folder)
    ours = made_again(folder, said)
    assert same(ours) == same(theirs)
    assert ours.generate_content_config.temperature == 0.5
    assert ours.planner.thinking_config.thinking_budget == 7
    assert [tool.name for tool in ours.tools] == ["mail_file"]


def same(root: Any) -> dict[str, Any]:
    """Return what of a root_agent can be compared."""
    found = {name: getattr(root, name) for name in type(root).model_fields}
    found["tools"] = [(tool.tool, tool.kinds, tool.description) for tool in root.tools]
    found["planner"] = root.planner and root.planner.thinking_config
    return found


OWN_MODEL = """
from google.adk.models import BaseLlm

class Own(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        yield None

root_agent.model = Own(model="own")
"""
ELSEWHERE = """
from google.genai import types

root_agent.generate_content_config = types.GenerateContentConfig(
    http_options={"base_url": "https://elsewhere.example"})
"""


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("root_agent = 7\n", "root_agent is a int"),
        (AGENT_PY + OWN_MODEL, "model is a Own, an object of agent.py"),
        (AGENT_PY + ELSEWHERE, "sets http_options in generate_content_config"),
    ],
)
def test_what_cannot_be_told_is_refused_by_name(tmp_path: Path, code: str, what: str) -> None:
    with pytest.raises(BadFleet, match=what) as refused:
        described(write(tmp_path, code))
    assert refused.value.where == "sorter/agent.py"
    assert refused.value.mend


Change = Callable[[dict[str, Any]], object]
LIES: list[tuple[str, Change]] = [
    ("another name", lambda said: said.update(name="other")),
    ("a tool that is not declared", lambda said: said["tools"].append("shell_run")),
    ("a tool of its own making", lambda said: said["tools"].append({"name": "mail_file"})),
    ("a model by its address", lambda said: said.update(model="huggingface/https://else.example")),
    ("a model that is none", lambda said: said.update(model={"api_base": "https://else.example"})),
    ("where requests go", lambda said: said.update(settings={"http_options": {"base_url": "x"}})),
    ("who reads requests", lambda said: said.update(settings={"model_armor_config": {}})),
    ("what stands in them", lambda said: said.update(settings={"cached_content": "x"})),
    ("tools of the model's maker", lambda said: said.update(settings={"tools": []})),
    ("settings of a wrong type", lambda said: said.update(settings={"temperature": "hot"})),
    ("unknown thinking", lambda said: said.update(thinking={"code": "x"})),
    ("a callback", lambda said: said.update(before_model_callback="os.system")),
    ("a sub-agent", lambda said: said.update(sub_agents=[{}])),
    ("an instruction that is no text", lambda said: said.update(instruction=["x"])),
    ("nothing", lambda said: said.clear()),
    ("a field with an order", lambda said: said.update({"\x1b[2J\nerror[x]: fine": 1})),
    ("a setting with an order", lambda said: said.update(settings={"\x1b[2J\nerror[x]": 1})),
]


@pytest.mark.parametrize("change", [pytest.param(change, id=name) for name, change in LIES])
def test_a_lie_about_a_root_agent_is_refused(tmp_path: Path, change: Change) -> None:
    folder = write(tmp_path)
    said = described(folder)
    made_again(folder, said)
    change(said)
    with pytest.raises(BadFleet) as refused:
        made_again(folder, said)
    assert refused.value.where == "sorter/agent.py"
    assert refused.value.mend
    assert str(refused.value).isprintable()


def reasoner_of(folder: Path, release: str, **changes: Any) -> AdkReasoner:
    said = {**described(folder), **changes}
    return AdkReasoner(
        {"sorter": folder}, releases={"sorter": release}, descriptions={"sorter": said}
    )


UNKNOWN = ["nonsense", "nobody/model-1", "nobody:model-1", "claudia-9", "of-its-own-\x1b[2J"]


@pytest.mark.parametrize("model", UNKNOWN)
def test_a_model_that_nobody_serves_does_not_go_live(tmp_path: Path, model: str) -> None:
    """ADK knows it by code of the worker's, or not at all."""
    folder = write(tmp_path)
    release = release_digest(folder)
    reasoner_of(folder, release, model="gemini-2.5-flash")
    with pytest.raises(BadFleet, match="is none that is known here") as refused:
        reasoner_of(folder, release, model=model)
    assert refused.value.where == "sorter/agent.py"
    assert refused.value.mend
    assert str(refused.value).isprintable()


def test_the_tools_of_another_release_are_not_taken(tmp_path: Path) -> None:
    """Worker and engine read the same files, or nothing comes of it."""
    folder = write(tmp_path)
    release = release_digest(folder)
    (folder / "agent.yaml").write_text(AGENT_YAML.replace("high_impact: true", ""))
    with pytest.raises(BadFleet) as refused:
        reasoner_of(folder, release, model="gemini-2.5-flash")
    assert refused.value.code == "release-changed"


@pytest.mark.parametrize("said", [None, [], {}, "root", 7])
def test_who_tells_nothing_has_no_code_imported_here(tmp_path: Path, said: object) -> None:
    folder = write(tmp_path)
    before = imported()
    with pytest.raises(BadFleet, match=r"agent\.py"):
        AdkReasoner({"sorter": folder}, descriptions={"sorter": said})
    assert imported() == before


def imported(agent: str = "sorter") -> dict[str, object]:
    """Return the agent's modules that are imported in this process."""
    mine = f"vedette_fleet.{agent}"
    return {name: found for name, found in sys.modules.items() if name.startswith(mine)}
