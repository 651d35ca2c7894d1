"""Tools as an ADK agent sees them: declarations that perform nothing.

`declared_tools(folder)` turns the `tools:` of an agent.yaml into ADK tools. Calling one performs
nothing: it only says that something was proposed. Under `vedette run` the call becomes a Proposal
at the gateway; under `adk web agents` it is answered with `{"status": "proposed"}` and that is all.

This module imports ADK. It is imported by the `agent.py` of agents and, once it needs ADK, by the
reasoner; by nobody else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from msgspec import Struct

from vedette.config.agent_file import ARG_KINDS, AgentFile, ToolFile
from vedette.config.agent_folder import tool_summaries
from vedette.config.problem import raise_first_error
from vedette.config.shape import check_document
from vedette.config.tool_table import tool_schema_problems
from vedette.config.yaml import read_yaml
from vedette.domain.argument_schema import ArgumentSchema, offer_references
from vedette.domain.artefact import ARTEFACT_TOOLS
from vedette.domain.base.errors import BadFleet, BadProposal
from vedette.domain.origin import REF, escape_pointer, read_reference
from vedette.domain.tool import Tool
from vedette.domain.work_tools import ASK_TOOLS, WORK_TOOLS

PROPOSED = {"status": "proposed"}

_SCHEMAS: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "strings": {"type": "array", "items": {"type": "string"}},
    "list": {"type": "array"},
    "object": {"type": "object"},
}
_USAGE = """\
Calling this proposes it; whether it happens is decided by policy and told in the answer.
Any text may be given as it is, or as a reference: `ref:/event/data/from` stands for the value at
that place of the data you were given (/event, /charter, /registry, /memory, /outcome, /row). Texts
inside lists and objects too; in a list of texts, a reference to a list stands for its items. Give
a reference wherever the value stands in the data: it is copied exactly, and policy knows where it
comes from."""
_SCHEMA_USAGE = """\
Calling this proposes it; whether it happens is decided by policy and told in the answer.
Any value, of whatever type, may be given as it is, or as a text that is a reference:
`ref:/event/data/from` stands for the value at that place of the data you were given (/event,
/charter, /registry, /memory, /outcome, /row). Values inside lists and objects too. Give a reference
wherever the value stands in the data: it is copied exactly, and policy knows where it comes from.
What it stands for has to fit the schema."""


def function_name(tool: str) -> str:
    """Return the name under which ADK knows a tool: ADK takes identifiers only."""
    return tool.replace(".", "_")


class DeclaredTool(BaseTool):
    """A declared tool as ADK's BaseTool. It performs nothing: `run_async` reports a proposal only.

    `tool` is the declared name (`mail.file`), `kinds` maps its arguments to their types, `schema`
    is their JSON Schema if it declares one.
    """

    def __init__(self, shape: ToolFile, summary: str) -> None:
        super().__init__(name=function_name(shape.name), description=_describe(shape, summary))
        self.tool = shape.name
        self.kinds = dict(shape.kinds)
        self.schema = shape.schema

    def _get_declaration(self) -> types.FunctionDeclaration:
        if self.schema is not None:
            return self._declare(offer_references(self.schema))
        properties = {name: _SCHEMAS[kind.removesuffix("?")] for name, kind in self.kinds.items()}
        needed = [name for name, kind in self.kinds.items() if not kind.endswith("?")]
        return self._declare({"type": "object", "properties": properties, "required": needed})

    def _declare(self, schema: dict[str, Any]) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=schema
        )

    @property
    def declared(self) -> tuple[str, dict[str, str], dict[str, Any] | None]:
        """Return what two tools have alike that are the same tool of agent.yaml."""
        return self.tool, self.kinds, self.schema

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """Report that something was proposed; do nothing."""
        return dict(PROPOSED)

    def read_args(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a model's call as those of a Proposal."""
        return {name: _read_value(value, self.kinds.get(name, "")) for name, value in args.items()}

    def write(self, args: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return recorded arguments (see `encode_argument`) as the model gave them."""
        given = write_args(args, self.kinds)
        if self.schema is None:
            return given
        # The record keeps a fraction as its decimal text.
        places = {"/" + escape_pointer(name) for name in given}
        try:
            return ArgumentSchema(self.schema).read_numbers(self.tool, given, places)
        except BadProposal:  # too much of it, so that it was refused
            return given


def write_args(args: Mapping[str, Mapping[str, Any]], kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return recorded arguments as ADK's model gives them; `kinds` are types of those declared."""
    return {name: _write_value(given, kinds.get(name, "")) for name, given in args.items()}


def declared_tools(folder: Path | str) -> list[BaseTool]:
    """Return the tools that the agent.yaml of a folder declares, as ADK's.

    Raises BadFleet with file and line if the file has another shape, or if two tools would have
    the same name in ADK (`mail.file` and `mail_file`).
    """
    return list(read_declared_tools(Path(folder)))


def read_declared_tools(folder: Path) -> list[DeclaredTool]:
    """Return the ADK tools that `declared_tools` returns, by their own type."""
    file = f"{folder.name}/agent.yaml"
    document, problems = read_yaml(folder / "agent.yaml", file)
    raise_first_error(problems)
    shape, problems = check_document(AgentFile, document)
    raise_first_error(problems)
    assert shape is not None
    summaries, problems = tool_summaries(folder)
    raise_first_error(problems)
    found: dict[str, DeclaredTool] = {}
    own = [
        *(ARTEFACT_TOOLS.values() if shape.artefacts else ()),
        *(WORK_TOOLS.values() if shape.work is not None else ()),
        *(ASK_TOOLS.values() if shape.work is not None and shape.work.asks else ()),
    ]
    for index, tool in enumerate([*shape.tools, *map(_engine_tool_file, own)]):
        for name, kind in tool.args.items():
            if kind.removesuffix("?") not in ARG_KINDS:
                what, at = f"there is no type {kind!r}", ("tools", index, "args", name)
                raise_first_error(
                    [document.problem(at, what, f"there are: {', '.join(ARG_KINDS)}")]
                )
        raise_first_error(tool_schema_problems(tool, document, ("tools", index)))
        made = DeclaredTool(tool, tool.description or summaries.get(tool.function or "", ""))
        twin = found.get(made.name)
        if twin is not None:
            what = f"{tool.name!r} and {twin.tool!r} are both {made.name!r} in ADK"
            mend = "rename one of the two"
            if index >= len(shape.tools):  # one of the engine's own stands nowhere in the file
                index = [one.name for one in shape.tools].index(twin.tool)
                mend = f"rename {twin.tool!r}"
            raise_first_error([document.problem(("tools", index, "name"), what, mend)])
        found[made.name] = made
    return list(found.values())


def _engine_tool_file(tool: Tool) -> ToolFile:
    """Return a tool of the engine's own as agent.yaml would declare it."""
    return ToolFile(
        name=tool.name, verb=tool.verb, resource=tool.resource, args=dict(tool.args), sinks=[],
        settles=tool.settles, description=tool.description,
    )  # fmt: skip


def _describe(shape: ToolFile, summary: str) -> str:
    sentences = [summary or f"{shape.verb} ({shape.resource})."]
    sinks = ", ".join(pointer.removeprefix("/") for pointer in shape.sinks)
    if sinks:
        sentences.append(f"What it acts on is decided by: {sinks}.")
    if shape.high_impact:
        sentences.append("It has high impact and waits for a person.")
    return " ".join(sentences) + "\n" + (_USAGE if shape.schema is None else _SCHEMA_USAGE)


def _read_value(value: Any, kind: str) -> Any:
    if isinstance(value, str):
        return read_reference(value)
    if isinstance(value, list):
        return [_read_value(item, "") for item in value]
    if isinstance(value, dict):
        return {name: _read_value(item, "") for name, item in value.items()}
    if kind.startswith("integer") and isinstance(value, float) and value.is_integer():
        # Some models' wire formats know numbers only as floats.
        return int(value)
    return value


def _write_value(given: Mapping[str, Any], kind: str) -> Any:
    if "list" in given:
        return [_write_value(item, "") for item in given["list"]]
    if "object" in given:
        return {name: _write_value(item, "") for name, item in given["object"].items()}
    if "ref" not in given:
        return given.get("value")
    text = REF + str(given["ref"]).removeprefix("/")
    return [text] if kind.startswith("strings") else text


# --- a model made of a function ---------------------------------------------------------------


class ModelRequest(Struct, frozen=True):
    """What ADK asks a model, as plain data: instruction, contents as JSON, functions by name."""

    instruction: str
    contents: list[dict[str, Any]]
    functions: Mapping[str, str]


class ModelReply(Struct, frozen=True):
    """What a model says: a text, and calls by ADK's function name."""

    text: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()


class FunctionModel(BaseLlm):
    """A model for ADK whose replies come from a Python function: for tests and rehearsals."""

    answer: Callable[[ModelRequest], Awaitable[ModelReply]]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Ask the function once and yield its reply as ADK's own."""
        config = llm_request.config
        functions = {
            str(declaration.name): str(declaration.description)
            for tool in config.tools or []
            for declaration in getattr(tool, "function_declarations", None) or []
        }
        contents = [
            content.model_dump(mode="json", exclude_none=True) for content in llm_request.contents
        ]
        reply = await self.answer(ModelRequest(str(config.system_instruction), contents, functions))
        parts = [types.Part(text=reply.text)] if reply.text else []
        for name, args in reply.calls:
            call = types.FunctionCall(name=name, args=dict(args))
            parts.append(types.Part(function_call=call))
        yield LlmResponse(
            content=types.Content(role="model", parts=parts),
            usage_metadata=types.GenerateContentResponseUsageMetadata(
                prompt_token_count=sum(len(str(content)) for content in contents) // 4,
                candidates_token_count=1,
            ),
        )


# --- what a root_agent may be -----------------------------------------------------------------

_ALLOWED_FIELDS = frozenset(
    {"name", "description", "model", "instruction", "static_instruction", "tools",
     "global_instruction", "generate_content_config", "planner", "disallow_transfer_to_parent",
     "disallow_transfer_to_peers"}
)  # fmt: skip


def check_root_agent(root: object, folder: Path, tools: Mapping[str, DeclaredTool]) -> None:
    """Raise BadFleet if ADK's root_agent could do more than propose what agent.yaml declares.

    Sub-agents, callbacks, code executors, output schemas (ADK adds a tool for them), built-in
    tools, toolsets and plain functions all act, or offer the model something that nobody declared.
    Whatever ADK adds in later versions is refused too: a field must be known here.
    """
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.planners.built_in_planner import BuiltInPlanner

    def refusal(what: str, mend: str) -> BadFleet:
        return BadFleet(what, where=f"{folder.name}/agent.py", mend=mend)

    if type(root) is not LlmAgent:
        raise refusal(f"root_agent is a {type(root).__name__}", "make it a plain LlmAgent")
    if root.name != folder.name:
        raise refusal(f"root_agent is named {root.name!r}", f"write name={folder.name!r}")
    for name, info in LlmAgent.model_fields.items():
        value = getattr(root, name)
        if name not in _ALLOWED_FIELDS and value != info.get_default(call_default_factory=True):
            mend = "leave it out; an agent only proposes the tools that agent.yaml declares"
            raise refusal(f"root_agent sets {name}", mend)
    for name in ("instruction", "global_instruction", "static_instruction"):
        if not isinstance(getattr(root, name), str | None):
            raise refusal(f"root_agent computes its {name}", "give a text")
    if root.planner is not None and type(root.planner) is not BuiltInPlanner:
        raise refusal(f"root_agent has a {type(root.planner).__name__}", "leave out planner")
    config = root.generate_content_config
    if config is not None and (config.tools or config.tool_config):
        raise refusal("root_agent sets tools in generate_content_config", "leave them out")
    for tool in root.tools:
        if type(tool) is not DeclaredTool:
            what = f"root_agent has the tool {getattr(tool, 'name', None) or repr(tool)}"
            raise refusal(f"{what}, which is not declared", "write tools=declared_tools(HERE)")
        twin = tools.get(tool.name)
        if twin is None or twin.declared != tool.declared:
            what = f"root_agent has the tool {tool.tool!r}, which agent.yaml does not declare so"
            raise refusal(what, "write tools=declared_tools(HERE)")
