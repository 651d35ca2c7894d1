"""Somebody's ADK agent told as plain data, in a worker beside its code: what `agent import` reads.

Of an agent that was not written for this fleet its texts, settings and function tools are taken.
Whatever else it has acts by itself, or offers the model something, past the gateway; each such
thing is a refusal with its own name. A field that ADK adds later is one, too.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from vedette.config.agent_loader import PARENT_PACKAGE, load_module
from vedette.config.foreign_agent import ForeignTool, Refusal
from vedette.domain.base.errors import BadFleet
from vedette.domain.model import SETTINGS

if TYPE_CHECKING:
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.tools.function_tool import FunctionTool

# What is read below, says nothing to who proposes, or only says how ADK is to transfer.
_READ = frozenset(
    {"name", "description", "model", "instruction", "global_instruction", "static_instruction",
     "tools", "generate_content_config", "output_key", "disallow_transfer_to_parent",
     "disallow_transfer_to_peers", "parent_agent"}
)  # fmt: skip
_MENDS = {
    "sub_agents": "import each as an agent of its own, woken by an event",
    "planner": "say in the instruction how it is to go about it",
    "code_executor": "write a function for what it may compute",
    "output_schema": "give it a tool whose arguments are that schema",
    "input_schema": "an event is its input: say what wakes it",
}
_CALLBACK = "say it in a policy (policies/), which decides before each call"
_LEAVE_OUT = "leave it out of the agent"
# ADK's own place of a value of the session in an instruction.
_PLACE = re.compile(r"{+[^{}]*}+")
_VARIABLE = re.compile(r"(?:app:|user:|temp:|artifact\.)?[A-Za-z_]\w*\??")


def describe_foreign_agent(folder: Path, release: str | None, source: str) -> dict[str, Any]:
    """Import the ADK agent in the folder `source` of an agent's folder; return it as plain data.

    The shape is `ForeignAgent`'s. Raises BadFleet if it cannot be imported, or is no agent.
    """
    import msgspec

    root, refusals = _find_root(folder, release, source)
    told = {"name": folder.name, "description": "", "model": "", "instruction": ""}
    if root is not None:
        told = _read_agent(root, f"{PARENT_PACKAGE}.{folder.name}.{source}", refusals)
    return {**told, "refusals": [msgspec.to_builtins(one) for one in refusals]}


def _find_root(
    folder: Path, release: str | None, source: str
) -> tuple[LlmAgent | None, list[Refusal]]:
    """Return the root agent as ADK's loader would find it, None if it is of another kind.

    What its App adds around it, and another kind, are refusals. Raises BadFleet if there is none.
    """
    from google.adk.agents.base_agent import BaseAgent
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.apps.app import App
    from google.adk.workflow import BaseNode

    found: Any = None
    # The order of google.adk.cli.utils.agent_loader: the package, then its module agent.
    for name in (source, f"{source}.agent"):
        if found is None and _is_there(folder, name):
            module = load_module(folder, name, release)
            named = [getattr(module, "app", None), getattr(module, "root_agent", None)]
            kinds: list[Any] = [App, (BaseAgent, BaseNode)]
            fit = [one for one, kind in zip(named, kinds, strict=True) if isinstance(one, kind)]
            found = fit[0] if fit else None
    refusals: list[Refusal] = []
    if isinstance(found, App):
        refusals = [
            Refusal(f"app.{name}", "is what ADK's App adds around the agent", _LEAVE_OUT)
            for name, info in App.model_fields.items()
            if name not in ("name", "root_agent")
            and getattr(found, name) != info.get_default(call_default_factory=True)
        ]
        found = found.root_agent
    if found is None:
        where, mend = f"{folder.name}/{source}/agent.py", "name it root_agent, in agent.py"
        raise BadFleet("there is no root_agent", where=where, mend=mend)
    if type(found) is LlmAgent:
        return found, refusals
    what = f"is a {type(found).__name__}, whose own code would run between its calls"
    mend = "make it a plain LlmAgent, and of each step an agent that is woken by an event"
    return None, [*refusals, Refusal("root_agent", what, mend, optional=False)]


def _is_there(folder: Path, name: str) -> bool:
    path = folder / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _read_agent(root: LlmAgent, package: str, refusals: list[Refusal]) -> dict[str, Any]:
    """Return the root agent's fields as data; add to `refusals` what is not taken."""
    import msgspec
    from google.adk.agents.llm_agent import LlmAgent

    for name, info in LlmAgent.model_fields.items():
        value = getattr(root, name)
        if name not in _READ and value != info.get_default(call_default_factory=True):
            mend = _CALLBACK if name.endswith("_callback") else _MENDS.get(name, _LEAVE_OUT)
            what = f"acts or decides beside the gateway ({_describe_value(value)})"
            refusals.append(Refusal(name, what, mend))
    tools = [_read_tool(tool, package) for tool in root.tools]
    refusals += [tool for tool in tools if isinstance(tool, Refusal)]
    for tool in tools:
        if tool.name in LlmAgent.model_fields:
            mend = "rename it, so that --without can name one of them"
            what = "is the name of a tool and of a field of the agent"
            refusals.append(Refusal(tool.name, what, mend, optional=False))
    notes = _read_notes(root)
    return {
        "name": root.name,
        "description": root.description,
        "model": _read_model(root, refusals, notes),
        "instruction": _read_instruction(root, refusals),
        "settings": _read_settings(root, refusals),
        "tools": [msgspec.to_builtins(tool) for tool in tools if isinstance(tool, ForeignTool)],
        "notes": notes,
    }


def _describe_value(value: object) -> str:
    items = value if isinstance(value, list) else [value]
    names = [getattr(one, "name", None) or getattr(one, "__name__", None) for one in items]
    words = [str(name or type(one).__name__) for name, one in zip(names, items, strict=True)]
    return ", ".join(words)[:200]


def _read_model(root: LlmAgent, refusals: list[Refusal], notes: list[str]) -> str:
    """Return the model's name. Of an object its name alone is taken, and what else it has is noted.

    An object of the author's own class, also one that ADK would make of the name, is refused: it
    may be what keeps something from the model.
    """
    from google.adk.models.registry import LLMRegistry

    made: Any = root.model
    if isinstance(made, str):
        try:
            kind = LLMRegistry.resolve(made)
        except ValueError:
            return made  # ADK itself has no class for it
    else:
        kind = type(made)
    if not kind.__module__.startswith("google.adk."):
        what = f"is a {kind.__name__}, whose own code would stand between the agent and its model"
        refusals.append(Refusal("model", what, "an entry of [models] is asked: --model ENTRY"))
    if isinstance(made, str):
        return made
    # LiteLlm keeps what it is given beside its fields. Names only: a value may be a key.
    others = {*made.model_fields_set, *(getattr(made, "_additional_args", None) or ())} - {"model"}
    if others:
        names = ", ".join(sorted(map(str, others)))
        notes.append(f"model: of its {kind.__name__} the name is taken, and not {names}")
    named = getattr(made, "model", "")
    return named if isinstance(named, str) else ""


def _read_instruction(root: LlmAgent, refusals: list[Refusal]) -> str:
    texts = []
    for name in ("global_instruction", "static_instruction", "instruction"):
        value = getattr(root, name)
        if not value:
            continue
        if not isinstance(value, str):
            refusals.append(
                Refusal(name, "is computed by code at each turn", "give a text", optional=False)
            )
            continue
        texts.append(value.strip())
        if name == "static_instruction":
            continue  # ADK puts nothing into it
        for place in dict.fromkeys(_PLACE.findall(value)):
            word = place.strip("{}").strip()
            if _VARIABLE.fullmatch(word):
                what = f"has {place}, a value of the session, which no event brings"
                mend = "write the value; the event and the charter are given to the model anyway"
                refusals.append(Refusal(f"{name}.{word}", what, mend))
    return "\n\n".join(text for text in texts if text)


def _read_settings(root: LlmAgent, refusals: list[Refusal]) -> dict[str, Any]:
    config = root.generate_content_config
    settings = {} if config is None else config.model_dump(mode="json", exclude_none=True)
    for name in sorted(set(settings) - SETTINGS):
        what = "could lead a request, or what stands in it, to another place"
        refusals.append(Refusal(f"generate_content_config.{name}", what, _LEAVE_OUT))
    return {name: value for name, value in settings.items() if name in SETTINGS}


def _read_notes(root: LlmAgent) -> list[str]:
    notes = []
    if root.output_key is not None:
        notes.append(
            f"output_key {root.output_key!r}: what the model says last is in the record of its run"
        )
    if root.static_instruction or root.global_instruction:
        notes.append("all its instructions stand in instruction.md, one after another")
    return notes


# --- tools ------------------------------------------------------------------------------------


def _read_tool(tool: Any, package: str) -> ForeignTool | Refusal:
    from google.adk.tools.function_tool import FunctionTool
    from google.adk.tools.long_running_tool import LongRunningFunctionTool

    if inspect.isfunction(tool):
        tool = FunctionTool(tool)
    if type(tool) in (FunctionTool, LongRunningFunctionTool) and inspect.isfunction(tool.func):
        return _read_function(tool, package)
    kind = type(tool).__name__
    name = str(getattr(tool, "name", None) or getattr(tool, "__name__", None) or kind)
    return Refusal(name, *_name_kind(tool, kind))


def _name_kind(tool: Any, kind: str) -> tuple[str, str]:
    """Return what a tool is that is no function, and what takes its place here."""
    from google.adk.tools.base_toolset import BaseToolset

    if kind in ("McpToolset", "MCPToolset"):
        what = "is an McpToolset, whose server says at each start what there is"
        return what, "vedette tool add NAME --mcp …, which pins what the server has now"
    if kind in ("LoadMemoryTool", "PreloadMemoryTool"):
        mend = "name a bank's scope below memory: in agent.yaml; what matters is recalled for it"
        return f"is ADK's {kind}", mend
    if kind == "AgentTool":
        mend = "import that agent by itself, woken by an event"
        return "is an AgentTool: another agent would run within the call", mend
    if isinstance(tool, BaseToolset):
        mend = "write a function for each thing that it may do, or an http: tool"
        return f"is a {kind}: a set of tools with a way out of its own", mend
    if type(tool).__module__.startswith("google.adk."):
        mend = "write a function for what it is to do"
        return f"is ADK's own {kind}, performed by the model's provider or by ADK", mend
    return f"is a {kind}, not a function", "write it as a function with typed parameters"


def _read_function(tool: FunctionTool, package: str) -> ForeignTool | Refusal:
    from google.adk.tools.long_running_tool import LongRunningFunctionTool

    function, name = tool.func, str(tool.name)
    module = str(function.__module__)
    if module != package and not module.startswith(f"{package}."):
        mend = "write a function in the agent's folder that calls it"
        return Refusal(name, f"is a function of {module}, not of the agent's folder", mend)
    if getattr(sys.modules.get(module), name, None) is not function:
        what = f"is another function than {name} of {module.removeprefix(package) or 'the package'}"
        return Refusal(name, what, "give tools= what its module calls by that name")
    if validator := _find_validator(function, tool._context_param_name):
        mend = "check it in the function: what runs before it would not be its outcome"
        return Refusal(name, f"has code of its own in its hints ({validator})", mend)
    parameters = inspect.signature(function).parameters
    if "input_stream" in parameters:
        return Refusal(name, "takes an input_stream of a live session", "give it plain arguments")
    try:
        declared = tool._get_declaration()
    except Exception as error:
        what = f"cannot be declared: {type(error).__name__}: {str(error)[:200]}"
        return Refusal(name, what, "give its parameters types that JSON has")
    schema = None if declared is None else declared.parameters_json_schema
    if declared is not None and declared.parameters is not None:
        schema = declared.parameters.json_schema.model_dump(mode="json", exclude_none=True)
    context = tool._context_param_name
    return ForeignTool(
        name=name,
        module=module.removeprefix(package).removeprefix("."),
        summary=" ".join((tool.description or "").split()),
        schema=_drop_titles(schema) if isinstance(schema, dict) else None,
        context=context if context in parameters else None,
        asks_person=isinstance(tool, LongRunningFunctionTool) or bool(tool._require_confirmation),
    )


def _find_validator(function: Callable[..., Any], context: str | None) -> str | None:
    """Return the name of code that pydantic would run to read a function's arguments, if any.

    A refused argument says that nothing was called, which such code would make untrue.
    """
    from pydantic import TypeAdapter

    waiting: list[tuple[str, Any]] = []
    with suppress(Exception):  # of which ADK makes no declaration, or no call
        hints = get_type_hints(function, include_extras=True)
        for name in hints.keys() - {"return", context}:
            waiting.append(("", TypeAdapter(hints[name]).core_schema))
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, dict):
            if value.get("type") == "enum":  # asked for what is no member, by its class alone
                waiting.append(("", value["cls"]._missing_))
            ignored = ("cls", "metadata", "serialization")  # runs nothing when it is read
            waiting += [(name, one) for name, one in value.items() if name not in ignored]
        elif isinstance(value, list | tuple):
            waiting += [("", one) for one in value]
        elif key in ("custom_init", "post_init") and value:
            return key
        elif callable(value) and not _is_library(value):
            return str(getattr(value, "__qualname__", type(value).__name__))
    return None


def _is_library(value: Any) -> bool:
    module = str(getattr(value, "__module__", None) or type(value).__module__)
    top = module.partition(".")[0]
    return top in ("pydantic", "pydantic_core") or top in sys.stdlib_module_names


def _drop_titles(schema: Any) -> Any:
    """Return a schema without the titles that pydantic makes of names."""
    if isinstance(schema, list):
        return [_drop_titles(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if key in ("properties", "$defs") and isinstance(value, dict):
            kept[key] = {name: _drop_titles(one) for name, one in value.items()}
        else:
            kept[key] = value if key in ("default", "enum", "const") else _drop_titles(value)
    return kept
