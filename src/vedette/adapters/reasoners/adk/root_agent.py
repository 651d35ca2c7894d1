"""ADK's root_agent as data: told by who runs an `agent.py`, put together again by the engine.

A checked root_agent does nothing by itself (`check_root_agent`), so all there is to it are texts,
numbers and the names of declared tools. `describe_root_agent` runs in a worker, beside the agent's
code; whatever it says may be that code's lie. `read_root_agent` takes it as such: it makes an agent
of what a field may hold and of nothing else, from declarations that the engine has read itself. So
no code of an agent that a model reasons for runs in the engine's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from vedette.adapters.reasoners.adk.tools import DeclaredTool, check_root_agent, read_declared_tools
from vedette.config.agent_loader import load_module, require_release
from vedette.domain.base.errors import BadFleet
from vedette.domain.base.safe_text import escape_text
from vedette.domain.model import SETTINGS

if TYPE_CHECKING:
    from google.adk.agents.llm_agent import LlmAgent

_MAX_CHARS = 200  # of the names that a description gives to what nobody knows


class _RootAgentFields(BaseModel):
    """The fields of a root_agent. `settings` and `thinking` are ADK's own, by their JSON."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    description: str
    model: str
    instruction: str
    global_instruction: str
    static_instruction: str | None
    settings: dict[str, Any] | None
    thinking: dict[str, Any] | None
    tools: list[str]
    disallow_transfer_to_parent: bool
    disallow_transfer_to_peers: bool


def load_root_agent(
    folder: Path, release: str | None, tools: Mapping[str, DeclaredTool]
) -> LlmAgent:
    """Import a folder's `agent.py`; return its root_agent. Raises BadFleet if it could act."""
    root = getattr(load_module(folder, "agent", release), "root_agent", None)
    check_root_agent(root, folder, tools)
    checked: LlmAgent = root  # type: ignore[assignment]
    return checked


def make_plain_agent(
    folder: Path, release: str | None, tools: Mapping[str, DeclaredTool]
) -> LlmAgent:
    """Return the agent of a folder without `agent.py`: its instruction.md and declared tools.

    It asks the model that its agent.yaml names; by itself it has none.
    """
    from google.adk.agents.llm_agent import LlmAgent

    if release is not None:
        require_release(folder, release)
    text = (folder / "instruction.md").read_text(encoding="utf-8")
    return LlmAgent(name=folder.name, instruction=text, tools=list(tools.values()))


def describe_root_agent(folder: Path, release: str | None) -> dict[str, Any]:
    """Import a folder's `agent.py`; return its root_agent as plain data. Raises BadFleet."""
    tools = {tool.name: tool for tool in read_declared_tools(folder)}
    root = load_root_agent(folder, release, tools)
    if not isinstance(root.model, str):
        what = f"root_agent's model is a {type(root.model).__name__}, an object of agent.py"
        mend = 'name the model by a text (model="…"): the engine asks it, and runs no agent\'s code'
        raise BadFleet(what, where=f"{folder.name}/agent.py", mend=mend)
    made = {"settings", "thinking", "tools"}
    fields: dict[str, Any] = {
        name: getattr(root, name) for name in set(_RootAgentFields.model_fields) - made
    }
    fields["settings"] = _data(root.generate_content_config)
    fields["thinking"] = _data(getattr(root.planner, "thinking_config", None))
    fields["tools"] = [getattr(tool, "name", None) for tool in root.tools]
    return _validate(fields, folder).model_dump()


def read_root_agent(
    description: object, folder: Path, tools: Mapping[str, DeclaredTool]
) -> LlmAgent:
    """Return ADK's root_agent, made of what `describe_root_agent` told of it. Raises BadFleet."""
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.planners.built_in_planner import BuiltInPlanner
    from google.genai import types

    read = _validate(description, folder)
    missing = [name for name in read.tools if name not in tools]
    if missing:
        what = f"root_agent has the tool {missing[0]!r}, which agent.yaml does not declare"
        mend = "write tools=declared_tools(HERE)"
        raise BadFleet(what, where=f"{folder.name}/agent.py", mend=mend)
    given: dict[str, Any] = read.model_dump(exclude={"tools", "settings", "thinking"})
    given["tools"] = [tools[name] for name in read.tools]
    try:
        if read.settings is not None:
            settings = types.GenerateContentConfig.model_validate(read.settings)
            given["generate_content_config"] = settings
        if read.thinking is not None:
            thinking = types.ThinkingConfig.model_validate(read.thinking)
            given["planner"] = BuiltInPlanner(thinking_config=thinking)
        root = LlmAgent(**given)
    except ValidationError as error:
        raise _refusal(error, folder) from error
    check_root_agent(root, folder, tools)
    return root


def _data(model: BaseModel | None) -> dict[str, Any] | None:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


def _validate(description: object, folder: Path) -> _RootAgentFields:
    """Return what was told by its fields.

    Raises BadFleet for a field of another type, one that nobody knows, and what could lead a
    request to another place.
    """
    where = f"{folder.name}/agent.py"
    try:
        read = _RootAgentFields.model_validate(description)
    except ValidationError as error:
        raise _refusal(error, folder) from error
    if "://" in read.model:
        # Some of the libraries that ADK asks a model by take an address for its name.
        what = f"root_agent's model {read.model!r} is an address"
        raise BadFleet(
            what, where=where, mend="name a model; where it is, is the operator's to say"
        )
    unknown = sorted(set(read.settings or ()) - SETTINGS)
    if unknown:
        what = f"root_agent sets {_one_line(', '.join(unknown))} in generate_content_config"
        mend = f"leave it out; an agent may set {', '.join(sorted(SETTINGS))}"
        raise BadFleet(what, where=where, mend=mend)
    return read


def _refusal(error: ValidationError, folder: Path) -> BadFleet:
    first = error.errors()[0]
    what = f"root_agent: {_one_line('.'.join(map(str, first['loc'])))}: {_one_line(first['msg'])}"
    return BadFleet(what, where=f"{folder.name}/agent.py", mend="correct agent.py")


def _one_line(words: str) -> str:
    """Return words that may be the agent's own, on one line."""
    return escape_text(words[:_MAX_CHARS])
