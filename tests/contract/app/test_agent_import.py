"""`agent import`: what of an ADK agent is taken, what is refused by which name, and who runs it."""

from __future__ import annotations

import ast
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.broken_disk import failing_sync
from tests.small import small

from vedette.adapters.reasoners.adk.foreign_root import describe_foreign_agent
from vedette.app.agent_import import import_adk_agent
from vedette.app.check import check_content
from vedette.config.fleet import load_fleet
from vedette.config.models import ModelPlan
from vedette.config.problem import Problem
from vedette.config.settings import Settings, load_settings
from vedette.domain.base.errors import BadCommand, BadFleet
from vedette.domain.model import Model
from vedette.operations.agent_import import (
    ImportChoices,
    ImportedAgent,
    NotImported,
    import_agent,
)
from vedette.sdk import perform_function

HEAD = """
from collections.abc import Callable
from google.adk.agents import Agent, LlmAgent, SequentialAgent
from google.adk.apps import App
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from google.genai import types


def greet(boat: str, nights: int = 1) -> dict:
    '''Greet a "boat".

    Args:
      boat: The boat's name \\\\ registration.
    '''
    return {"greeted": boat, "nights": nights}

"""
ROOT = "root_agent = Agent(name='desk', model='gemini-3-flash', instruction='Greet.', "
CHOICES = ImportChoices("desk", "desk@harbourlights.example", "boat.came", model="fast")


def nothing_wrong(settings: Settings) -> list[Problem]:
    return []


def describe_here(folder: Path, source: str) -> Any:
    """Tell of test code without a box."""
    return describe_foreign_agent(folder, None, source)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("fleet"), each=1)


@pytest.fixture
def settings(written: Path, tmp_path: Path) -> Settings:
    root = Path(shutil.copytree(written, tmp_path / "own"))
    plan = ModelPlan(
        Model("fast", provider="gemini", served_name="gemini-3-flash"), key_env="GEMINI_API_KEY"
    )
    return replace(load_settings(root / "vedette.toml"), models={"fast": plan})


def write_source(folder: Path, agent: str, more: Mapping[str, str] | None = None) -> Path:
    """Write an ADK agent's folder as its author has it."""
    source = folder / "desk"
    for name, text in {"__init__.py": "", "agent.py": agent, **(more or {})}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    return source


def refused_names(settings: Settings, source: Path, choices: ImportChoices = CHOICES) -> set[str]:
    """Return the names of what keeps a source from being imported."""
    with pytest.raises(NotImported) as refused:
        import_agent(settings, source, choices, describe_here, nothing_wrong)
    assert not (settings.agents / choices.name).exists()
    assert all(one.mend for one in refused.value.refusals)
    return {one.name for one in refused.value.refusals}


def imported(settings: Settings, source: Path, choices: ImportChoices = CHOICES) -> ImportedAgent:
    return import_agent(settings, source, choices, describe_here, check_content)


# --- what is refused --------------------------------------------------------------------------

CALLBACKS = [
    "before_agent_callback", "after_agent_callback", "before_model_callback",
    "after_model_callback", "on_model_error_callback", "before_tool_callback",
    "after_tool_callback", "on_tool_error_callback",
]  # fmt: skip
FIELDS = {
    "sub_agents": "sub_agents=[Agent(name='other', model='m')])",
    "code_executor": "code_executor=BuiltInCodeExecutor())",
    "planner": "planner=PlanReActPlanner())",
    "output_schema": "output_schema=Answer)",
    "input_schema": "input_schema=Answer)",
    "include_contents": "include_contents='none')",
    "generate_content_config.http_options": "generate_content_config=types.GenerateContentConfig("
    "http_options={'headers': {'to': 'elsewhere'}}))",
    "google_search": "tools=[google_search])",
    "load_memory": "tools=[load_memory])",
    "preload_memory": "tools=[preload_memory])",
    "load_artifacts": "tools=[load_artifacts])",
    "exit_loop": "tools=[exit_loop])",
    "transfer_to_agent": "tools=[transfer_to_agent])",
    "other": "tools=[AgentTool(Agent(name='other', model='m'), include_plugins=False)])",
    "OpenAPIToolset": "tools=[OpenAPIToolset(spec_str=SPEC, spec_str_type='json')])",
    "BigQueryToolset": "tools=[BigQueryToolset()])",
    "join": "tools=[join])",
    "Odd": "tools=[Odd()])",
}
IMPORTS = """
import os.path
from os.path import join
from pydantic import BaseModel
from google.adk.code_executors import BuiltInCodeExecutor
from google.adk.planners import PlanReActPlanner
from google.adk.tools import google_search, load_memory, preload_memory, load_artifacts, exit_loop
from google.adk.tools import transfer_to_agent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.openapi_tool import OpenAPIToolset

SPEC = '{"openapi": "3.0.0", "info": {"title": "t", "version": "1"}, "paths": {}}'

class Answer(BaseModel):
    text: str

class Odd(BaseTool):
    def __init__(self):
        super().__init__(name="Odd", description="Odd.")
"""


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_is_refused_by_its_name(settings: Settings, tmp_path: Path, name: str) -> None:
    agent = HEAD + f"def look(*args, **kwargs): ...\n{ROOT}{name}=look, tools=[greet])"
    source = write_source(tmp_path, agent)
    assert refused_names(settings, source) == {name}
    done = imported(settings, source, replace(CHOICES, without=frozenset({name})))
    assert [one.name for one in done.left_out] == [name]
    assert done.tools == ["greet"]


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_what_acts_by_itself_is_refused_by_its_name(
    settings: Settings, tmp_path: Path, name: str
) -> None:
    toolset = "from google.adk.integrations.bigquery import BigQueryToolset\n"
    more = toolset if name == "BigQueryToolset" else ""
    source = write_source(tmp_path, HEAD + IMPORTS + more + ROOT + FIELDS[name])
    assert refused_names(settings, source) == {name}


KINDS = {
    "SequentialAgent": "root_agent = SequentialAgent(name='desk', sub_agents=[])",
    "Own": "from google.adk.agents import BaseAgent\nclass Own(BaseAgent): ...\n"
    "root_agent = Own(name='desk')",
    "Below": "class Below(LlmAgent): ...\nroot_agent = Below(name='desk', model='m')",
    "Workflow": "from google.adk.workflow import START, Workflow\n"
    "root_agent = Workflow(name='desk', edges=[(START, greet)])",
}


@pytest.mark.filterwarnings("ignore:SequentialAgent is deprecated")
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_another_kind_of_agent_cannot_be_left_out(
    settings: Settings, tmp_path: Path, kind: str
) -> None:
    source = write_source(tmp_path, HEAD + KINDS[kind])
    assert refused_names(settings, source) == {"root_agent"}
    choices = replace(CHOICES, without=frozenset({"root_agent"}))
    assert refused_names(settings, source, choices) == {"root_agent"}


FUNCTIONS = {
    "passes its context on": ("def f(tool_context: ToolContext): greet(tool_context)", "gives its"),
    "keeps an artefact": (
        "async def f(tool_context: ToolContext): await tool_context.save_artifact('a', None)",
        "save_artifact",
    ),
    "moves to another": (
        "def f(tool_context: ToolContext): tool_context.actions.transfer_to_agent = 'x'", "actions",
    ),
    "keeps a state": ("def f(tool_context: ToolContext): tool_context.state['a'] = 1", "state"),
    "under another name": ("def f(mine: ToolContext): mine.state['a'] = 1", "mine.state"),
    "takes anything": ("def f(a: str, *more): ...", "args"),
    "is a generator": ("def f(a: str):\n    yield a", "generator"),
    "takes what JSON has not": ("def f(a: Callable[[], int]): ...", "declared"),
    "is made elsewhere": (
        "def make():\n    def f(a: str): ...\n    return f\nf = make()", "top level",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(FUNCTIONS))
def test_a_function_that_cannot_be_a_tool_is_refused(
    settings: Settings, tmp_path: Path, case: str
) -> None:
    code, why = FUNCTIONS[case]
    source = write_source(tmp_path, f"{HEAD}\n{code}\n{ROOT}tools=[greet, f])")
    with pytest.raises(NotImported) as refused:
        import_agent(settings, source, CHOICES, describe_here, nothing_wrong)
    assert {one.name for one in refused.value.refusals} == {"f"}
    assert why in " ".join(one.what for one in refused.value.refusals)
    done = imported(settings, source, replace(CHOICES, without=frozenset({"f"})))
    assert done.tools == ["greet"]


@pytest.mark.parametrize(
    ("root", "name"),
    [
        (ROOT.replace("'Greet.'", "lambda context: 'x'") + ")", "instruction"),
        (ROOT.replace("Greet.", "") + ")", "instruction"),
        (ROOT.replace("Greet.", "Greet {user:name?}.") + ")", "instruction.user:name?"),
        (f"{ROOT})\napp = App(name='desk', root_agent=root_agent, plugins=[P(name='p')])",
         "app.plugins"),
    ],
)  # fmt: skip
def test_what_else_a_session_or_an_app_would_bring(
    settings: Settings, tmp_path: Path, root: str, name: str
) -> None:
    plugin = "from google.adk.plugins.base_plugin import BasePlugin\nclass P(BasePlugin): ...\n"
    assert refused_names(settings, write_source(tmp_path, HEAD + plugin + root)) == {name}


PLUGIN = """
from google.adk.agents import Agent
from google.adk.apps import App
from google.adk.plugins.base_plugin import BasePlugin
from .agent import greet, root_agent as inner
class Guard(BasePlugin):
    async def before_tool_callback(self, **given): return {"status": "denied"}
def guard(**given): return {"status": "denied"}
"""


@pytest.mark.parametrize(
    ("init", "name"),
    [
        ("app = App(name='desk', root_agent=inner, plugins=[Guard(name='g')])", "app.plugins"),
        ("root_agent = Agent(name='desk', model='m', instruction='x', tools=[greet], "
         "before_tool_callback=guard)", "before_tool_callback"),
    ],
)  # fmt: skip
def test_the_agent_is_the_one_that_adk_loads(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, init: str, name: str
) -> None:
    """The package's own goes before its module `agent`, and so does its author's guard."""
    from google.adk.cli.utils.agent_loader import AgentLoader

    agent = f"{HEAD}{ROOT}tools=[greet])"
    source = write_source(tmp_path, agent, {"__init__.py": PLUGIN + init})
    assert refused_names(settings, source) == {name}
    with monkeypatch.context() as patched:
        patched.setattr(sys, "path", [*sys.path])  # to which ADK adds the folder
        loaded: Any = AgentLoader(str(tmp_path)).load_agent("desk")
        guards = getattr(loaded, "plugins", None) or loaded.before_tool_callback
    for module in [one for one in sys.modules if one.partition(".")[0] == "desk"]:
        del sys.modules[module]
    assert guards, "the control: ADK loads the guarded one"
    inner = write_source(tmp_path / "inner", agent, {"__init__.py": "root_agent = 'no agent'\n"})
    assert imported(settings, inner).tools == ["greet"]


OTHERS = {
    "wrapped": """
import functools
def guarded(function):
    @functools.wraps(function)
    def inner(boat: str, nights: int = 1) -> dict:
        return {"refused": True} if boat != "ours" else function(boat, nights)
    return inner
TOOL = guarded(greet)
""",
    "bound again later": "TOOL = greet\ndef greet(boat: str, nights: int = 1):\n    'Other.'\n",
    "another of its name": """
first = greet
def greet(boat: str, nights: int = 1) -> dict:
    'Another.'
    return {}
TOOL = first
""",
    "a name that is set": "def book(boat: str): ...\nTOOL = book\nTOOL.__name__ = 'greet'\n",
    "a module that is set": "def book(boat: str): ...\nTOOL = book\nTOOL.__module__ += '.x'\n",
}


@pytest.mark.parametrize("case", sorted(OTHERS))
def test_a_tool_is_what_its_module_calls_by_its_name(
    settings: Settings, tmp_path: Path, case: str
) -> None:
    """Else another function would be performed than the author gave: one without its guard, say."""
    source = write_source(tmp_path, f"{HEAD}{OTHERS[case]}{ROOT}tools=[TOOL])")
    name = "book" if "module" in case else "greet"
    assert refused_names(settings, source) == {name}


def test_a_decorator_that_stands_at_the_function_comes_along(
    settings: Settings, tmp_path: Path
) -> None:
    from vedette.config.agent_loader import load_module
    from vedette.domain.effect import Call

    code = OTHERS["wrapped"].partition("TOOL")[0]
    code += "@guarded\ndef moor(boat: str, nights: int = 1) -> dict:\n    return {'moored': boat}\n"
    imported(settings, write_source(tmp_path, f"{HEAD}{code}{ROOT}tools=[moor])"))
    tools = load_module(settings.agents / "desk", "tools")
    call = Call("moor", {"boat": "another's"}, "key", "desk", "run", {}, (), 1, 1_000_000)
    assert tools.moor(call).data == {"refused": True}


MODELS = {
    "its own class": ("class Own(Gemini): ...\n", "Own(model='gemini-3-flash')"),
    "its own class of the name": (
        "class Own(Gemini):\n    @classmethod\n    def supported_models(cls): return ['own-.*']\n"
        "from google.adk.models.registry import LLMRegistry\nLLMRegistry.register(Own)\n",
        "'own-model'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(MODELS))
def test_a_model_of_the_authors_own_class_is_refused(
    settings: Settings, tmp_path: Path, case: str
) -> None:
    code, model = MODELS[case]
    code = f"{HEAD}from google.adk.models.google_llm import Gemini\n{code}"
    root = ROOT.replace("'gemini-3-flash'", model)
    source = write_source(tmp_path, f"{code}{root}tools=[greet])")
    assert refused_names(settings, source) == {"model"}
    done = imported(settings, source, replace(CHOICES, without=frozenset({"model"})))
    assert [one.name for one in done.left_out] == ["model"]


def test_what_is_not_taken_of_adks_own_model_is_noted(settings: Settings, tmp_path: Path) -> None:
    model = "LiteLlm(model='openai/gemini-3-flash', api_base='http://x', fallbacks=['y'], "
    model += "api_key='sk-shown-to-nobody')"
    code = f"{HEAD}from google.adk.models.lite_llm import LiteLlm\n"
    root = ROOT.replace("'gemini-3-flash'", model)
    done = imported(
        settings, write_source(tmp_path, f"{code}{root}tools=[greet])"),
        replace(CHOICES, model=None),
    )  # fmt: skip
    (note,) = done.notes
    assert all(word in note for word in ("LiteLlm", "api_base", "fallbacks", "api_key"))
    written = [path.read_text() for path in (settings.agents / "desk").glob("*.*")]
    assert not any("shown-to-nobody" in text for text in [note, *written])


def test_a_name_of_two_things_leaves_out_neither(settings: Settings, tmp_path: Path) -> None:
    code = "def before_tool_callback(boat: str):\n    'x'\ndef guard(**given): ...\n"
    both = f"{HEAD}{code}{ROOT}tools=[before_tool_callback], before_tool_callback=guard)"
    name = "before_tool_callback"
    choices = replace(CHOICES, without=frozenset({name}))
    assert refused_names(settings, write_source(tmp_path, both), choices) == {name}
    parts = {"a.py": "def book(boat: str): ...\n", "b.py": "def book(boat: str): ...\n"}
    two = f"{HEAD}from . import a, b\n{ROOT}tools=[a.book, b.book])"
    source = write_source(tmp_path / "two", two, parts)
    choices = replace(CHOICES, without=frozenset({"book"}))
    assert refused_names(settings, source, choices) == {"book"}


HINTS = {
    "BeforeValidator": "Annotated[str, BeforeValidator(own)]",
    "AfterValidator": "list[Annotated[str, AfterValidator(own)]]",
    "WrapValidator": "Annotated[str, WrapValidator(own)]",
    "PlainValidator": "Optional[Annotated[str, PlainValidator(own)]]",
    "a model's validator": "Checked",
    "a dataclass's own": "Point",
    "an enumeration's own": "Side",
}
OWN = """
import enum
from dataclasses import dataclass
from typing import Annotated, Optional
from pydantic import AfterValidator, BaseModel, BeforeValidator, PlainValidator, WrapValidator
from pydantic import field_validator
def own(value, *more): return value
class Checked(BaseModel):
    name: str
    @field_validator("name")
    @classmethod
    def look(cls, value): return value
@dataclass
class Point:
    x: int
    def __post_init__(self): ...
class Side(enum.Enum):
    NORTH = "north"
    @classmethod
    def _missing_(cls, value): return cls.NORTH
"""


@pytest.mark.parametrize("case", sorted(HINTS))
def test_hints_with_code_of_their_own_are_refused(
    settings: Settings, tmp_path: Path, case: str
) -> None:
    """It would run before the function, and `failed: not called` would not be true."""
    code = f"{OWN}def f(value: {HINTS[case]}) -> str:\n    'x'\n    return 'x'\n"
    source = write_source(tmp_path, f"{HEAD}{code}{ROOT}tools=[f])")
    assert refused_names(settings, source) == {"f"}


def test_shared_state_is_refused_even_where_calls_have_one(
    settings: Settings, tmp_path: Path
) -> None:
    code = "def f(tool_context: ToolContext): tool_context.state['user:name'] = 1\n"
    source = write_source(tmp_path, f"{HEAD}{code}{ROOT}tools=[f])")
    assert refused_names(settings, source, replace(CHOICES, keeps_state=True)) == {"f"}


def test_choices_of_what_is_not_there_are_refused(settings: Settings, tmp_path: Path) -> None:
    source = write_source(tmp_path, f"{HEAD}{ROOT}tools=[greet])")
    wrong: list[dict[str, Any]] = [
        {"without": frozenset({"before_model_calback"})},
        {"sinks": {"greeet": ("boat",)}},
        {"sinks": {"greet": ("boats",)}},
        {"settles": {"greeet": "none"}},
        {"model": "fats"},
        {"name": "calendar"},
        {"name": "../up"},
        {"name": next(iter(load_fleet(settings.root, settings).fleet.agents))},
        {"target": "nowhere"},
    ]
    for changes in wrong:
        with pytest.raises(BadCommand) as refused:
            imported(settings, source, replace(CHOICES, **changes))
        assert refused.value.mend, changes
    plan = settings.models["fast"]
    other = {"slow": replace(plan, model=replace(plan.model, served_name="other"))}
    for models in ({}, other):
        with pytest.raises(BadCommand, match="gemini-3-flash"):
            imported(replace(settings, models=models), source, replace(CHOICES, model=None))
    assert [path.name for path in settings.agents.glob("*desk*")] == []


def test_a_folder_that_is_no_package_is_refused(settings: Settings, tmp_path: Path) -> None:
    source = write_source(tmp_path, f"{HEAD}{ROOT}tools=[greet])")
    (source / "notes").symlink_to("/etc/passwd")
    with pytest.raises(BadCommand, match="is a link"):
        imported(settings, source)
    (source / "notes").unlink()
    (source / "__init__.py").unlink()
    with pytest.raises(BadCommand, match="is not there"):
        imported(settings, source)
    (source / "agent.py").rename(source / "root_agent.yaml")
    with pytest.raises(BadCommand, match=r"root_agent\.yaml"):
        imported(settings, source)
    (source / "__init__.py").write_text("")
    (source / "big").write_bytes(bytes(11 << 20))
    with pytest.raises(BadCommand, match="MiB"):
        imported(settings, source)


# --- what is taken ----------------------------------------------------------------------------

TAKEN = """
import enum
from typing import Literal, Optional
from pydantic import BaseModel
from desk.parts.names import PREFIX

class Side(enum.Enum):
    NORTH = "north"
    SOUTH = "south"

class Boat(BaseModel):
    name: str
    metres: float

def moor(boat: Boat, side: Side = Side.NORTH, how: Literal["bow", "stern"] = "bow",
         notes: list[str] = [], skipper: Optional[str] = None) -> str:
    '''Moor a boat. See https://Berths.Example/moor.'''
    return f"{PREFIX}{boat.name} {side.name} {how} {notes} {skipper}"

def ask_office(text: str, tool_context: ToolContext) -> dict:
    '''Ask the office.'''
    return {"status": "pending"}

async def count(boat: str, tool_context: ToolContext) -> int:
    tool_context.state["seen"] = [*tool_context.state.get("seen", []), boat]
    return len(boat)

root_agent = LlmAgent(
    name="desk", model="gemini-3-flash", description="Moors  boats.", global_instruction="Be kind.",
    instruction="Moor 'em.", output_key="answer",
    generate_content_config=types.GenerateContentConfig(temperature=0.25),
    tools=[FunctionTool(moor), LongRunningFunctionTool(func=ask_office), count,
           FunctionTool(greet, require_confirmation=True)],
)
"""
PARTS = {"parts/__init__.py": "", "parts/names.py": "from desk.parts import other\nPREFIX = 'MY '",
         "parts/other.py": "", ".env": "KEY=x", "data.txt": "data"}  # fmt: skip


def test_all_that_is_taken_and_asked_for(settings: Settings, tmp_path: Path) -> None:
    source = write_source(tmp_path, HEAD + TAKEN, PARTS)
    choices = replace(
        CHOICES, model=None, keeps_state=True, settles={"count": "idempotent"},
        sinks={"moor": ("boat",), "count": ()},
    )  # fmt: skip
    done = imported(settings, source, choices)
    assert (done.model, done.hosts) == ("fast", ["berths.example"])
    assert (done.copied, done.not_copied) == (["data.txt"], [".env"])
    assert any("output_key" in note for note in done.notes)
    agent = load_fleet(settings.root, settings).fleet.agents["desk"]
    assert agent.requested_mode == "act"
    assert agent.instruction == "Be kind.\n\nMoor 'em.\n"
    assert {name: tool.sinks for name, tool in agent.tools.items()} == {
        "moor": ("/boat",), "ask_office": ("/text",), "count": (), "greet": ("/boat", "/nights"),
    }  # fmt: skip
    assert {name: tool.settles for name, tool in agent.tools.items()} == {
        "moor": "none", "ask_office": "none", "count": "idempotent", "greet": "none",
    }  # fmt: skip
    held = {name for name, tool in agent.tools.items() if tool.high_impact}
    assert held == {"ask_office", "greet"}
    schema: Any = agent.tools["moor"].schema
    assert schema["required"] == ["boat"]
    assert schema["properties"]["how"]["enum"] == ["bow", "stern"]
    assert schema["$defs"]["Side"]["enum"] == ["north", "south"]
    assert schema["$defs"]["Boat"]["properties"]["metres"] == {"type": "number"}
    assert sorted(path.name for path in (settings.agents / "desk" / "source").iterdir()) == [
        "__init__.py", "agent.py", "data.txt", "parts",
    ]  # fmt: skip


def test_texts_that_look_like_numbers_stay_texts(settings: Settings, tmp_path: Path) -> None:
    words = "Literal['1e3', '0o7', 'x', 'a\\u2028b', 'ja']"
    moor = f"def moor(place: {words}) -> str:\n    return place\n\n"
    code = f"from typing import Literal\n{HEAD}\n{moor}"
    imported(settings, write_source(tmp_path, f"{code}{ROOT}tools=[moor])"))
    schema: Any = load_fleet(settings.root, settings).fleet.agents["desk"].tools["moor"].schema
    assert schema["properties"]["place"]["enum"] == ["1e3", "0o7", "x", "a\u2028b", "ja"]


def test_where_it_cannot_be_written_nothing_is_changed(settings: Settings, tmp_path: Path) -> None:
    source = write_source(tmp_path, f"{HEAD}{ROOT}tools=[greet])")
    (settings.agents / ".desk.vedette-new").write_text("in the way")
    with pytest.raises(BadCommand, match="cannot be written: File exists") as refused:
        import_agent(settings, source, CHOICES, describe_here, nothing_wrong)
    assert "nothing was changed" in str(refused.value)
    assert not (settings.agents / "desk").exists()


def test_an_error_after_the_rename_does_not_say_that_nothing_was_changed(
    settings: Settings, tmp_path: Path
) -> None:
    source = write_source(tmp_path, f"{HEAD}{ROOT}tools=[greet])")
    with failing_sync(settings.agents), pytest.raises(OSError, match="Input/output error"):
        import_agent(settings, source, CHOICES, describe_here, nothing_wrong)
    assert "desk" in load_fleet(settings.root, settings).fleet.agents


def test_what_no_option_says_is_asked(settings: Settings, tmp_path: Path) -> None:
    source = write_source(tmp_path, HEAD + TAKEN, PARTS)
    asked: list[tuple[str, list[str]]] = []

    def ask(tool: str, arguments: list[str]) -> tuple[tuple[str, ...], Any]:
        asked.append((tool, arguments))
        return tuple(arguments[:1]), "idempotent"

    choices = replace(
        CHOICES, keeps_state=True, sinks={"greet": (), "count": ()}, settles={"greet": "none"}
    )
    import_agent(settings, source, choices, describe_here, check_content, ask)
    tools = load_fleet(settings.root, settings).fleet.agents["desk"].tools
    assert [name for name, _ in asked] == ["moor", "ask_office", "count"]
    assert asked[0][1] == ["boat", "side", "how", "notes", "skipper"]
    assert tools["moor"].sinks == ("/boat",)
    assert (tools["count"].sinks, tools["count"].settles) == ((), "idempotent")
    assert (tools["greet"].sinks, tools["greet"].settles) == ((), "none")


def test_its_functions_are_called_as_adk_calls_them(settings: Settings, tmp_path: Path) -> None:
    """Types as hints say, defaults the function's own, a coroutine awaited, state for a call."""
    from vedette.config.agent_loader import load_module
    from vedette.domain.effect import Call

    source = write_source(tmp_path, HEAD + TAKEN, PARTS)
    imported(settings, source, replace(CHOICES, keeps_state=True))
    tools = load_module(settings.agents / "desk", "tools")

    def called(tool: str, **args: Any) -> Any:
        call = Call(tool, args, "key", "desk", "run", {}, (), 1, 1_000_000)
        outcome = getattr(tools, tool)(call)
        assert outcome.state == "done"
        return outcome.data

    moored = called("moor", boat={"name": "Ann", "metres": 7}, side="south")
    assert moored == {"result": "MY Ann SOUTH bow [] None"}
    assert called("ask_office", text="x") == {"status": "pending"}
    assert called("greet", boat="Ann") == {"greeted": "Ann", "nights": 1}
    for _ in range(2):
        assert called("count", boat="Ann") == {"result": 3, "state": {"seen": ["Ann"]}}
    call = Call("moor", {"boat": {"name": "secret"}}, "key", "desk", "run", {}, (), 1, 1_000_000)
    refused = tools.moor(call)
    assert (refused.state, refused.error) == ("failed", "not called: Boat.metres: Field required")

    def unread(boat: Nowhere) -> None:  # type: ignore[name-defined] # noqa: F821
        raise AssertionError("it is not called")

    refused = perform_function(replace(call, args={"boat": "x"}), unread)
    assert (refused.state, refused.error) == ("failed", "not called: NameError in its hints")


def test_a_tool_may_have_any_name_of_python(settings: Settings, tmp_path: Path) -> None:
    """No tool takes the place of what tools.py itself names."""
    from vedette.config.agent_loader import load_module
    from vedette.domain.effect import Call

    names = ["perform_function", "call", "function", "annotations", "greet"]
    code = "".join(f"def {name}(a: str = 'x') -> str:\n    return '{name}'\n" for name in names)
    head = "from google.adk.agents import Agent\n"
    source = write_source(tmp_path, f"{head}{code}{ROOT}tools=[{', '.join(names)}])")
    imported(settings, source)
    tools = load_module(settings.agents / "desk", "tools")
    for name in names:
        call = Call(name, {}, "key", "desk", "run", {}, (), 1, 1_000_000)
        assert getattr(tools, name)(call).data == {"result": name}


# --- who runs it ------------------------------------------------------------------------------

CURIOUS = """
import os, socket
from pathlib import Path
found = [name for name in os.environ if "KEY" in name]
try:
    found.append(Path({path!r}).read_text())
except OSError:
    pass
try:
    socket.create_connection(("127.0.0.1", {port}), 1)
    found.append("the network")
except OSError:
    pass
ROOT = f"I found {{found}}."
"""


def test_its_code_runs_in_a_box_alone(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads no key, no file of the fleet and no socket, whatever [isolation] says."""
    import socket

    monkeypatch.setenv("GEMINI_API_KEY", "sk-shown-to-nobody")
    with socket.create_server(("127.0.0.1", 0)) as server:
        secret = str(settings.root / "vedette.toml")
        code = CURIOUS.format(path=secret, port=server.getsockname()[1])
        agent = HEAD + code + ROOT.replace("'Greet.'", "ROOT") + "tools=[greet])"
        import_adk_agent(settings, write_source(tmp_path, agent), CHOICES)
    assert (settings.agents / "desk/instruction.md").read_text() == "I found [].\n"


def test_what_its_code_does_wrong_is_told_and_nothing_written(
    settings: Settings, tmp_path: Path
) -> None:
    for code, what in (
        ("import os\nos._exit(0)\n", "ended by itself"),
        ("import nowhere_at_all\n", "nowhere_at_all"),
        ("import os\nos.environ['HARBOUR_TOKEN']\n", "HARBOUR_TOKEN"),
        ("root = 1\n", "no root_agent"),
    ):
        source = write_source(tmp_path, code)
        with pytest.raises((BadCommand, BadFleet), match=what) as refused:
            import_adk_agent(settings, source, CHOICES)
        assert refused.value.mend
    assert not (settings.agents / "desk").exists()


SCHEMA = {
    "type": "object",
    "properties": {"boat": {"type": "string"}, "nights": {"type": "integer"}},
}
# A name of a function that is one, and beside it what would become code.
ESCAPE = "agent import greet as function\n    import os\n    from os"


def told_of(**changes: Any) -> dict[str, Any]:
    tool = {"name": "greet", "module": "agent", "summary": "", "schema": SCHEMA} | changes
    return {"name": "x", "description": "", "model": "", "instruction": "x", "tools": [tool]}


LIES: list[Any] = [
    None, {}, {"name": 1}, [],
    told_of(name="os.system", module="../..", schema=None),
    told_of(summary='"""\nimport os', schema={"type": 1}),
    told_of(module=ESCAPE), told_of(module="agent.greet"), told_of(module="agent;x"),
    told_of(context="boat)\nimport os\n("), told_of(context="boat"), told_of(context="other"),
    told_of(name="greet\n", schema=SCHEMA), told_of(name="def"), told_of(schema=None),
    told_of(schema={**SCHEMA, "properties": {"boat": {"type": "string"}}}),
    told_of(summary="\ud800"), told_of() | {"instruction": "\ud800"},
    told_of() | {"settings": {"http_options": {"base_url": "http://elsewhere.example"}}},
    told_of() | {"settings": {"temperature": float("nan")}},
    told_of() | {"refusals": [{"name": "a", "what": "b", "mend": "c"}]},
]  # fmt: skip


@pytest.mark.parametrize("told", LIES)
def test_a_lie_about_it_is_refused(settings: Settings, tmp_path: Path, told: Any) -> None:
    source = write_source(tmp_path, f"{HEAD}{ROOT}tools=[greet])")
    with pytest.raises((BadCommand, BadFleet)) as refused:
        import_agent(settings, source, CHOICES, lambda folder, name: told, check_content)
    assert refused.value.mend
    assert not (settings.agents / "desk").exists()


def test_what_it_says_of_itself_is_no_code(settings: Settings, tmp_path: Path) -> None:
    """Texts of a liar stand as texts in what is written."""
    source = write_source(tmp_path, f"{HEAD}{ROOT}tools=[greet])")
    words = "\"\"\"\nraise SystemExit(3)\n'''\\"
    told = {
        "name": words, "description": words, "model": words, "instruction": words,
        "settings": {"labels": {"a": words}}, "notes": [words],
        "tools": [{"name": "greet", "module": "agent", "summary": words, "schema": SCHEMA}],
    }  # fmt: skip
    import_agent(settings, source, CHOICES, lambda folder, name: told, check_content)
    code = ast.parse((settings.agents / "desk/tools.py").read_text())
    (function,) = [node for node in code.body if isinstance(node, ast.FunctionDef)]
    assert ast.get_docstring(function, clean=False) == words
    assert [type(node).__name__ for node in function.body] == ["Expr", "ImportFrom", "Return"]
    described = describe_written(settings.agents / "desk")
    assert described["description"] == words


def describe_written(folder: Path) -> dict[str, Any]:
    from vedette.adapters.reasoners.adk.root_agent import describe_root_agent

    return describe_root_agent(folder, None)
