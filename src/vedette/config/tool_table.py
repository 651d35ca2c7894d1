"""Tools of agent.yaml: everything that is wrong with them."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from vedette.config.agent_file import ARG_KINDS, AgentFile, ToolFile, performers
from vedette.config.agent_folder import ModuleOutline
from vedette.config.plugins import plugins
from vedette.config.problem import Problem, did_you_mean
from vedette.config.yaml import Document, KeyPath
from vedette.domain.argument_schema import ArgumentSchema
from vedette.domain.artefact import ARTEFACT_TOOLS
from vedette.domain.ports.plugin import TOOLS, TableProblem
from vedette.domain.schema_check import find_schema_problems
from vedette.domain.work_tools import ENGINE_TOOLS


def tool_problems(
    shape: AgentFile, document: Document, code: ModuleOutline | None, targets: Mapping[str, str]
) -> list[Problem]:
    """Say everything that is wrong with the tools of agent.yaml, each for itself and together.

    `targets` are the kinds of the fleet's targets by name ("": of any).
    """
    problems: list[Problem] = []
    tools: dict[str, ToolFile] = {}
    unread: set[str] = set()
    for index, tool in enumerate(shape.tools):
        path: KeyPath = ("tools", index)
        if tool.name in tools:
            what = f"{tool.name!r} is declared twice"
            problems.append(document.problem((*path, "name"), what, "keep one of the two"))
        if tool.name in ENGINE_TOOLS:
            what = f"{tool.name!r} is a tool of the engine's own"
            key = "artefacts: true" if tool.name in ARTEFACT_TOOLS else "work:"
            mend = f"choose another name, or remove it: an agent with {key} has it"
            problems.append(document.problem((*path, "name"), what, mend))
        tools[tool.name] = tool
        if schema_problems := tool_schema_problems(tool, document, path):
            problems += schema_problems
            unread.add(tool.name)
            continue  # what follows needs to know its arguments
        problems += _args_problems(tool, document, path)
        if tool.performer is not None:
            problems += _performer_problems(tool, tool.performer, document, path, targets)
        else:
            problems += _settles_problems(tool, shape, document, path)
            problems += _code_problems(tool, document, path, code)
        if tool.target is not None and tool.target not in targets:
            what = f"vedette.toml has no table [targets.{tool.target}]"
            mend = did_you_mean(tool.target, sorted(targets))
            problems.append(document.problem((*path, "target"), what, mend))
    for index, tool in enumerate(shape.tools):
        if not {tool.name, tool.inverse} & unread:
            problems += _inverse_problems(tool, tools, document, ("tools", index))
    return problems


def tool_schema_problems(tool: ToolFile, document: Document, path: KeyPath) -> list[Problem]:
    """Say what is wrong with the schema of a tool's arguments."""
    if tool.schema is None:
        return []
    if tool.args:
        what = "a tool declares its arguments by args: or by schema:"
        return [document.problem((*path, "schema"), what, "keep one of the two")]
    return [
        document.problem((*path, "schema", *found.path), found.what, found.mend)
        for found in find_schema_problems(tool.schema)
    ]


def _performer_problems(
    tool: ToolFile, name: str, document: Document, path: KeyPath, targets: Mapping[str, str]
) -> list[Problem]:
    """Say what is wrong with a tool that a plugin performs."""
    found: list[TableProblem] = []
    for key in ("function", "query", "verify", *performers()):
        if key != name and vars(tool)[key] is not None:
            what = f"a tool with {name}: is performed by the engine, without tools.py"
            found.append(((key,), what, f"remove it, or remove {name}:"))
    if tool.output == "trusted":
        what, mend = "what a server answers is not trusted", "write output: untrusted"
        found.append((("output",), what, mend))
    if tool.settles == "transactional":
        what = "a request is outside of the fleet's own commit"
        found.append((("settles",), what, "write idempotent, queryable or none"))
    plugin, request = plugins(TOOLS).get(name), vars(tool)[name]
    problems = plugins(TOOLS).problems(name, tool, request)
    if not problems and tool.settles == "queryable" and not plugin.queries(request):
        # Whoever cannot be asked knows of no call, which would be taken for one that never was.
        problems = [(("settles",), "queryable needs a query", "choose another, or none")]
    found += problems
    kind = plugin.target_kind
    if kind is not None and tool.target is None:
        what = "it is not said which server is called"
        found.append(((name,), what, "add target: with the name of a [targets.NAME] table"))
    elif kind is not None and targets.get(tool.target or "", kind) not in (kind, ""):
        of_kind = sorted(name for name, known in targets.items() if known == kind)
        mend = did_you_mean(tool.target or "", of_kind)
        found.append((("target",), f"target {tool.target!r} is not of kind {kind}", mend))
    return [document.problem((*path, *inside), what, mend) for inside, what, mend in found]


def _args_problems(tool: ToolFile, document: Document, path: KeyPath) -> list[Problem]:
    problems = []
    for name, kind in tool.args.items():
        if not name.isidentifier() or not name.isascii():
            what, mend = f"{name!r} cannot name an argument", "use an ASCII identifier"
            problems.append(document.problem((*path, "args", name), what, mend))
        if kind.removesuffix("?") not in ARG_KINDS:
            what = f"there is no type {kind!r}"
            mend = did_you_mean(kind.removesuffix("?"), ARG_KINDS)
            problems.append(document.problem((*path, "args", name), what, mend))
    for place, pointer in enumerate(tool.sinks):
        name = pointer[1:].split("/")[0].replace("~1", "/").replace("~0", "~")
        if not pointer.startswith("/"):
            what, mend = f"{pointer!r} is not a JSON Pointer", f"write /{pointer}"
            problems.append(document.problem((*path, "sinks", place), what, mend))
        elif name not in tool.kinds:
            what = f"points at {name!r}, which is no argument of {tool.name!r}"
            mend = did_you_mean(name, list(tool.kinds))
            problems.append(document.problem((*path, "sinks", place), what, mend))
        elif tool.schema is not None and not ArgumentSchema(tool.schema).has_place(pointer):
            what = f"{pointer!r} is no place that the schema declares"
            mend = "declare it in properties or items; * stands for each element"
            problems.append(document.problem((*path, "sinks", place), what, mend))
    return problems


def _settles_problems(
    tool: ToolFile, shape: AgentFile, document: Document, path: KeyPath
) -> list[Problem]:
    problems = []
    if tool.settles == "queryable" and tool.query is None:
        mend = "add query: with a function of tools.py that asks the target, or choose none"
        problems.append(document.problem((*path, "settles"), "queryable needs a query", mend))
    if tool.settles not in ("queryable", "idempotent") and tool.query is not None:
        what = f"a tool that settles {tool.settles} is never queried"
        problems.append(document.problem((*path, "query"), what, "remove it"))
    if tool.settles == "transactional" and tool.verify is not None:
        what = "what a transactional tool writes is part of the commit"
        problems.append(document.problem((*path, "verify"), what, "remove it"))
    if tool.settles == "transactional" and shape.collection is None:
        mend = "add collection: at the top of the file"
        what = "transactional needs the agent's collection"
        problems.append(document.problem((*path, "settles"), what, mend))
    if tool.settles == "transactional" and tool.target is not None:
        what = "a transactional tool writes the fleet's own rows and calls nothing"
        problems.append(document.problem((*path, "target"), what, "remove it"))
    return problems


def _code_problems(
    tool: ToolFile, document: Document, path: KeyPath, code: ModuleOutline | None
) -> list[Problem]:
    problems: list[Problem] = []
    if tool.function is None:
        mend = "a function of tools.py, or http: with a request"
        return [document.problem((*path, "function"), "is missing", mend, code="missing-key")]
    if code is not None and code.broken:
        return problems
    for key, name in (
        ("function", tool.function),
        ("query", tool.query),
        ("verify", tool.verify),
    ):
        if name is None:
            continue
        if code is None:
            what = f"{name!r} is looked for in tools.py, which is not there"
            problems.append(document.problem((*path, key), what, "add tools.py"))
        elif name not in code.names:
            what = f"tools.py defines no {name!r}"
            mend = did_you_mean(name, [n for n in code.functions if not n.startswith("_")])
            problems.append(document.problem((*path, key), what, mend))
        elif name in code.functions:
            problems += _signature_problems(tool, key, code, name)
    return problems


def _signature_problems(tool: ToolFile, key: str, code: ModuleOutline, name: str) -> list[Problem]:
    node = code.functions[name]
    rows = tool.settles == "transactional" and key == "function"
    wanted = ["call", "row"] if rows else ["call"]
    if rows and isinstance(node, ast.AsyncFunctionDef):
        what = f"{name!r} is async, but {tool.name!r} is transactional and only computes rows"
        return [Problem(code.file, node.lineno, "", what, "make it a plain def")]
    given = node.args
    places = len(given.posonlyargs) + len(given.args)
    needed = places - len(given.defaults)
    strict = [a for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d is None]
    fits = needed <= len(wanted) and (places >= len(wanted) or given.vararg) and not strict
    if fits:
        return []
    what = f"{name!r} must take ({', '.join(wanted)})"
    return [Problem(code.file, node.lineno, "", what, f"{tool.name!r} settles {tool.settles}")]


def _inverse_problems(
    tool: ToolFile, tools: Mapping[str, ToolFile], document: Document, path: KeyPath
) -> list[Problem]:
    """The inverse is called with what the tool was called with, so that must be enough for it."""
    if tool.inverse is None:
        return []
    inverse = tools.get(tool.inverse)
    if inverse is None:
        what = f"{tool.inverse!r} is not a tool of this agent"
        mend = did_you_mean(tool.inverse, [name for name in tools if name != tool.name])
        return [document.problem((*path, "inverse"), what, mend)]
    problems = []
    for name, kind in inverse.kinds.items():
        own = tool.kinds.get(name)
        if own is None and not kind.endswith("?"):
            what = f"{inverse.name!r} needs {name!r}, which {tool.name!r} has not"
            mend = "declare it here too, or make it optional there"
            problems.append(document.problem((*path, "inverse"), what, mend))
        elif own is not None and own.removesuffix("?") != kind.removesuffix("?"):
            what = f"{name!r} is {own} here and {kind} in {inverse.name!r}"
            problems.append(document.problem((*path, "inverse"), what, "give both one type"))
    return problems
