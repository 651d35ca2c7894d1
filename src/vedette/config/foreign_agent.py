"""A foreign agent: somebody's ADK agent as plain data, and what its text says without being run.

A worker tells of the root agent (`ForeignAgent`); what it tells may be a lie of the code beside it,
so it is read by type, and what can be known from the text of the source is taken from there.
"""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from vedette.config.agent_folder import Function
from vedette.domain.base.addresses import is_ip_address
from vedette.domain.base.canonical import canonicalize_normalized, normalize_numbers
from vedette.domain.base.errors import BadFleet
from vedette.domain.model import SETTINGS

# The folder of an imported agent that holds its foreign code.
SOURCE = "source"
# The host of an address within the text of a program, as RFC 3986 has it: a name or an IP.
_HOST = re.compile(
    r"\b(?:https?|wss?|grpcs?|ftp)://(?:[^\s/@'\"]*@)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)"
)
_MAX_TOLD = 1024 * 1024  # bytes of all that a worker tells of an agent


class Refusal(Struct, frozen=True):
    """One thing of a foreign agent that is not imported: its author's name for it, and the mend.

    Without `optional` there would be no agent if it were left out.
    """

    name: str
    what: str
    mend: str
    optional: bool = True


class ForeignTool(Struct, frozen=True):
    """One function of a foreign agent: where it is, and what ADK would declare of it.

    `module` is within the source (`tools.orders`). `context` names the parameter that ADK gives its
    ToolContext. `asks_person` says that ADK would wait for somebody.
    """

    name: str
    module: str
    summary: str
    schema: dict[str, Any] | None
    context: str | None = None
    asks_person: bool = False


class ForeignAgent(Struct, frozen=True):
    """A root agent that is not written for this fleet, as a worker tells of it.

    `settings` are of ADK's GenerateContentConfig, by their JSON. `notes` say what became of fields
    that are taken in another form.
    """

    name: str
    description: str
    model: str
    instruction: str
    settings: dict[str, Any] = field(default_factory=dict)
    tools: list[ForeignTool] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def has_foreign_source(folder: Path) -> bool:
    """Say whether an agent's folder holds foreign code, which runs in a box or not at all."""
    return (folder / SOURCE).is_dir()


def is_plain_name(name: str) -> bool:
    """Say whether a text is an ASCII identifier of Python and no keyword: a name, and no code."""
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


def read_foreign_agent(told: object, folder: str) -> ForeignAgent:
    """Return what a worker told, by its types. Raises BadFleet for anything else.

    Modules and parameters are names of Python, since code is made of them; texts are Unicode,
    numbers JSON's, and settings those that may be set.
    """
    try:
        told = normalize_numbers(told)
        if len(canonicalize_normalized(told)) > _MAX_TOLD:
            raise ValueError(f"is more than {_MAX_TOLD >> 20} MiB")
        agent = msgspec.convert(told, ForeignAgent, strict=True)
        for tool in agent.tools:
            names = [*tool.module.split("."), tool.context or "context"]
            if not all(map(is_plain_name, names if tool.module else names[1:])):
                raise ValueError(f"a module or parameter of {tool.name!r} is no name of Python")
            if not isinstance((tool.schema or {}).get("properties", {}), dict):
                raise ValueError(f"the schema of {tool.name!r} has no properties")
        if unknown := set(agent.settings) - SETTINGS:
            raise ValueError(f"settings has {', '.join(sorted(unknown))}")
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        words = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        what = f"what its worker told is no agent: {words}"
        raise BadFleet(what, where=folder, mend="see what its code does when imported") from error
    return agent


def _parse(data: bytes, path: str) -> ast.Module:
    """Return the tree of a Python file. Raises BadFleet for what is none, or is nested too deeply.

    Nothing is compiled, so that no code of it runs; `MemoryError` is what the parser's stack says.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its escapes; said by whoever writes it
            return ast.parse(data, filename=path)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        mend = "correct it, or remove the file"
        raise BadFleet("is not Python", where=f"{path}:{line}", mend=mend) from error


def make_imports_relative(data: bytes, path: str, package: str) -> bytes:
    """Return the file `path` of a package with its `from PACKAGE.… import` as `from .… import`.

    ADK puts the folder above an agent on the path of Python; here no agent's name is a module.
    Raises BadFleet for a file that is not Python.
    """
    if not path.endswith(".py"):
        return data
    tree = _parse(data, path)
    dots = b"." * (path.count("/") + 1)
    own = re.compile(rb"\bfrom\s+" + re.escape(package.encode()) + rb"\b\.?")
    lines = data.splitlines(keepends=True)
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.level:
            continue
        if (node.module or "").partition(".")[0] == package:
            line = lines[node.lineno - 1]
            head, rest = line[: node.col_offset], line[node.col_offset :]
            lines[node.lineno - 1] = head + own.sub(b"from " + dots, rest, count=1)
    return b"".join(lines)


class SourceText:
    """The Python files of a source, by their paths in it, read without being run."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._trees = {
            path: _parse(data, path) for path, data in sorted(files.items()) if path.endswith(".py")
        }

    def hosts(self) -> list[str]:
        """Return the hosts of all addresses in texts of the code, and texts that are an IP.

        Comments aside, and a host that a program puts together.
        """
        texts = [
            node.value
            for tree in self._trees.values()
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        named = {host.lower() for text in texts for host in _HOST.findall(text)}
        return sorted(named | {text for text in texts if is_ip_address(text)})

    def variables(self) -> list[str]:
        """Return the names of variables of the environment that the code reads by name."""
        found = (_read_variable(node) for tree in self._trees.values() for node in ast.walk(tree))
        return sorted({name for name in found if name})

    def tool_faults(self, tool: ForeignTool, *, keeps_state: bool) -> Iterator[tuple[str, str]]:
        """Yield what keeps a function from being a tool, each with its mend.

        With `keeps_state` it may use the state of its ToolContext.
        """
        tree = self._tree(tool.module)
        function = None if tree is None else _find_function(tree, tool.name)
        if tree is None or function is None:
            what = f"is no function at the top level of {tool.module or 'the package'}"
            yield what, f"write def {tool.name}(…) there, and give it to tools="
            return
        given = function.args
        if given.vararg or given.kwarg or given.posonlyargs:
            yield "takes *args, **kwargs or parameters without a name", "name its parameters"
        if _yields(function):
            yield "is a generator", "return its whole answer"
        names = {parameter.arg for parameter in (*given.args, *given.kwonlyargs)}
        declared = {*(tool.schema or {}).get("properties", {})}
        if (tool.context or "") in declared or declared | {tool.context} - {None} != names:
            mend = "declare what its signature has: no decorator may change it"
            yield f"declares {_words(declared)}, and its text has {_words(names)}", mend
        if tool.context is not None:
            yield from _context_faults(function, tool.context, keeps_state)

    def _tree(self, module: str) -> ast.Module | None:
        path = module.replace(".", "/")
        # A package before a module of its name, as Python finds them.
        package = f"{path}/__init__.py".removeprefix("/")
        return self._trees.get(package) or self._trees.get(f"{path}.py")


def _read_variable(node: ast.AST) -> str | None:
    """Return NAME of `os.environ["NAME"]`, `os.environ.get("NAME")` and `os.getenv("NAME")`."""
    if isinstance(node, ast.Subscript):
        given: ast.expr | None = node.slice
        called = _dotted_name(node.value)
    elif isinstance(node, ast.Call):
        given = node.args[0] if node.args else None
        called = _dotted_name(node.func)
    else:
        return None
    if called.removeprefix("os.") not in ("environ", "environ.get", "getenv"):
        return None
    name = given.value if isinstance(given, ast.Constant) else None
    return name if isinstance(name, str) else None


def _dotted_name(node: ast.expr) -> str:
    """Return `a.b.c` of such an expression, and nothing of another."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _words(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _find_function(tree: ast.Module, name: str) -> Function | None:
    found = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    return found[-1] if found else None


def _yields(function: Function) -> bool:
    inner = [
        node
        for node in ast.walk(function)
        if node is not function
        and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    ]
    hidden = {id(node) for one in inner for node in ast.walk(one)}
    return any(
        isinstance(node, ast.Yield | ast.YieldFrom) and id(node) not in hidden
        for node in ast.walk(function)
    )


def _attributes(function: Function, parameter: str) -> tuple[set[str], bool]:
    """Return the attributes of a parameter that a function uses; and whether it uses it whole."""
    bases = {
        id(node.value): node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)
    }
    used, whole = set(), False
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == parameter:
            if id(node) in bases:
                used.add(bases[id(node)])
            else:
                whole = True
    return used, whole


def _context_faults(
    function: Function, parameter: str, keeps_state: bool
) -> Iterator[tuple[str, str]]:
    used, whole = _attributes(function, parameter)
    if whole:
        yield f"gives its {parameter} to other code", f"use {parameter}.state in it, or nothing"
    for name in sorted(used - {"state"}):
        mend = "return what is to be known: what a tool returns is in the record"
        yield f"uses {parameter}.{name}", mend
    if "state" not in used:
        return
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            prefix = node.value.partition(":")[0]
            if prefix in ("app", "user") and node.value.startswith(f"{prefix}:"):
                what = f"uses {parameter}.state[{node.value!r}], which all sessions share"
                yield what, "keep it in a memory bank, or behind a target"
    if not keeps_state:
        what = f"uses {parameter}.state, which no later call would find"
        mend = "take what it needs as arguments; or say --state call, if one call is enough for it"
        yield what, mend
