"""Declarations of MCP servers' tools in agent.yaml: proposed from a listing, written, compared.

What a server says of a tool is data that a stranger wrote. Of it agent.yaml takes the name and what
arguments have to look like, without any text; what a model is told a person writes. Unless a person
says otherwise every argument is a sink, and nobody knows what came of a call without an answer.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from vedette.domain.argument_schema import SCHEMA_MAPS, ArgumentSchema
from vedette.domain.base.canonical import normalize_numbers
from vedette.domain.base.errors import BadCommand
from vedette.domain.origin import escape_pointer, split_pointer
from vedette.domain.schema_check import ANNOTATIONS, find_schema_problems
from vedette.domain.tool import Tool
from vedette.operations.modes import write_edited_file
from vedette.operations.scaffold import CheckFleet, copy_content, require_sound

if TYPE_CHECKING:
    from vedette.config.settings import Settings

# Of a schema's keywords that ask something of an argument, the one that is free text: the server
# holds its arguments to its patterns itself.
_LEFT_OUT = frozenset({"pattern"})
# Where a mapping has names of the server's choice for keys, and no keywords.
_NAMED = frozenset({*SCHEMA_MAPS, "dependentRequired"})
_VALUES = frozenset({"enum", "const", "required", "dependentRequired"})

# What any text of a schema may be: a word or a few, and no sentence; or where a schema is.
_NAME = re.compile(r"(#/(\$defs|definitions)/)?[A-Za-z0-9_$@#/+:. -]{0,40}")


class ToolProposal(Struct, frozen=True):
    """What `vedette tool add` may write of a tool; `arguments` are all that could be sinks.

    `description` and `hints` are what the server says: for the person who decides, and nobody else.
    `problem` says why it cannot be taken.
    """

    name: str
    server_name: str
    digest: str
    schema: Mapping[str, Any]
    arguments: tuple[str, ...]
    description: str = ""
    hints: Mapping[str, Any] = {}
    problem: str = ""


def propose_tool(listed: Mapping[str, Any], target: str) -> ToolProposal:
    """Return the proposal for a tool of tools/list of a target's server."""
    word = re.sub(r"[^a-z0-9_]+", "_", _snake(listed["name"])).strip("_") or "tool"
    prefix = re.sub(r"[^a-z0-9_]+", "_", target.lower()).strip("_")
    name = f"{prefix}.{word if word[0].isalpha() else 't_' + word}"
    given = listed.get("inputSchema")
    schema: dict[str, Any] = _assertions(given) if isinstance(given, dict) else {}
    schema.setdefault("properties", {})
    problem = "" if listed.get("digest") else "what the server says of it has no JSON form"
    if not isinstance(given, dict):
        problem = problem or "the server does not say what it takes"
    problems = [] if problem else find_schema_problems(schema)
    odd = None if problem else next(_odd_texts(schema), None)
    if odd is not None:
        problem = f"it has a text that is no name: {odd[:60]!r}"
    if problems:
        place = "/".join(str(part) for part in problems[0].path)
        problem = f"its schema is not taken: {place}: {problems[0].what}"
    arguments = () if problem else tuple(ArgumentSchema(schema).kinds())
    annotations = listed.get("annotations")
    return ToolProposal(
        name, listed["name"], listed.get("digest", ""), schema,
        tuple("/" + escape_pointer(one) for one in arguments),
        str(listed.get("description", "")), annotations if isinstance(annotations, dict) else {},
        problem,
    )  # fmt: skip


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def _assertions(schema: Any) -> Any:
    """Return a schema with what it asks of arguments, and nothing that only a reader goes by.

    A keyword that nobody knows stays, and is refused with the schema.
    """
    if isinstance(schema, list):
        return [_assertions(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value
        if key in _VALUES
        else {name: _assertions(one) for name, one in value.items()}
        if key in _NAMED and isinstance(value, dict)
        else _assertions(value)
        for key, value in schema.items()
        if key not in ANNOTATIONS and key not in _LEFT_OUT and not key.startswith("x-")
    }


def _odd_texts(value: Any) -> Iterator[str]:
    """Yield texts and names, at any depth, that a model could take for orders."""
    if isinstance(value, str) and not _NAME.fullmatch(value):
        yield value
    elif isinstance(value, dict):
        for key, member in value.items():
            yield from _odd_texts(key)
            yield from _odd_texts(member)
    elif isinstance(value, list):
        for one in value:
            yield from _odd_texts(one)


class ToolChoice(Struct, frozen=True):
    """What a person decided about a proposed tool; `errors` as under `mcp:` in agent.yaml."""

    proposal: ToolProposal
    sinks: tuple[str, ...]
    settles: str
    errors: str = "unknown"
    description: str = ""


def declare_tools(
    settings: Settings, agent: str, target: str, choices: Sequence[ToolChoice], check: CheckFleet
) -> Path:
    """Write tools into an agent's agent.yaml, those that are there in their place; return its path.

    Raises BadCommand if the fleet would not pass its check with them; then nothing is written.
    """
    from vedette.config.yaml_edit import NotEditable, append_item, replace_in_item

    path = settings.agents / agent / "agent.yaml"
    before = path.read_bytes()
    text = before.decode("utf-8")
    wanted = _read(text)
    tools = [one for one in wanted.get("tools") or [] if isinstance(one, dict)]
    try:
        # The file by its lines, and beside it what it is to mean.
        for choice in choices:
            index = _find_tool(tools, target, choice.proposal.server_name)
            item = _declaration(choice, target)
            if index is None:
                text = append_item(text, ["tools"], item)
                tools.append(item)
            else:
                changes = _changes(tools[index], item)
                text = replace_in_item(text, ["tools"], index, changes)
                tools[index] |= changes
        if _read(text) != {**wanted, "tools": tools}:
            raise NotEditable("more would change than its tools")
    except NotEditable as error:
        mend = "write tools: as a list in lines of its own, as `vedette init` does"
        raise BadCommand(f"agent.yaml cannot be edited: {error}", mend=mend) from error
    with tempfile.TemporaryDirectory(prefix="vedette-tool-") as folder:
        scratch = copy_content(settings, Path(folder))
        (scratch.agents / agent / "agent.yaml").write_text(text, encoding="utf-8")
        require_sound(scratch, check)
    if not write_edited_file(path, text.encode(), "tool-add", before):
        what = "was saved by somebody meanwhile; nothing was changed"
        raise BadCommand(what, where=str(path), mend="give the same order again")
    return path


def _changes(declared: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a tool that is there is another now; its name, verb and resource stay."""
    decided = ("description", "mcp", "schema", "sinks", "settles")
    return {key: item[key] for key in decided if key in item and item[key] != declared.get(key)}


def _declaration(choice: ToolChoice, target: str) -> dict[str, Any]:
    proposal = choice.proposal
    words = proposal.name.partition(".")
    described = {"description": choice.description} if choice.description else {}
    errors = {"errors": choice.errors} if choice.errors != "unknown" else {}
    return {
        "name": proposal.name,
        **described,
        "verb": words[2],
        "resource": words[0],
        "target": target,
        "mcp": {"tool": proposal.server_name, "digest": proposal.digest, **errors},
        "schema": dict(proposal.schema),
        "sinks": list(choice.sinks),
        "settles": choice.settles,
    }


def _read(text: str) -> dict[str, Any]:
    from vedette.config.problem import raise_first_error
    from vedette.config.yaml import parse_yaml

    document, problems = parse_yaml(text, "agent.yaml")
    raise_first_error(problems)
    return dict(document.value)


def _find_tool(tools: Sequence[Mapping[str, Any]], target: str, server_name: str) -> int | None:
    """Return which item of `tools:` is a server's tool; None if none is."""
    for index, tool in enumerate(tools):
        if tool.get("target") == target and (tool.get("mcp") or {}).get("tool") == server_name:
            return index
    return None


def describe_change(tool: Tool, proposal: ToolProposal) -> list[str]:
    """Say what differs between a declared tool and what its server says now, a line each."""
    import json
    from difflib import unified_diff

    def lines(schema: Any) -> list[str]:
        return json.dumps(schema, indent=1, sort_keys=True).split("\n")

    changed = list(
        unified_diff(
            lines(tool.schema), lines(proposal.schema), "agent.yaml", "server", lineterm=""
        )
    )
    if not changed:
        changed = ["its arguments are the same; its name, texts, answers or hints differ"]
    return changed


def keep_sinks(tool: Tool, proposal: ToolProposal) -> tuple[str, ...]:
    """Return the sinks of a tool whose schema changed: those it had, and what is new.

    An argument that is new, or of which the schema says another thing, is one as a whole, whatever
    was decided of the one before: so are new members of it. Of one that is as it was, a sink that
    has no place any more is replaced by the argument.
    """
    schema = ArgumentSchema(dict(proposal.schema))
    kinds, before, now = schema.kinds(), tool.schema or {}, normalize_numbers(proposal.schema)
    changed = {name for name in kinds if _said_of(before, name) != _said_of(now, name)}
    found = [f"/{escape_pointer(name)}" for name in kinds if name in changed]
    for sink in tool.sinks:
        name = split_pointer(sink)[0]
        if name in kinds and name not in changed:
            found.append(sink if schema.has_place(sink) else f"/{escape_pointer(name)}")
    return tuple(dict.fromkeys(found))


def _said_of(schema: Mapping[str, Any], name: str) -> Any:
    """Return all that a schema of arguments says of one; None if there is no such argument."""
    if name not in schema.get("properties", {}):
        return None
    shared = {key: one for key, one in schema.items() if key not in ("properties", "required")}
    return schema["properties"][name], shared
