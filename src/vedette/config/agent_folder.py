"""An agent's folder beside agent.yaml, checked without importing any of it."""

from __future__ import annotations

import ast
import errno
import importlib.util
import keyword
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from vedette.config.problem import Problem, did_you_mean
from vedette.config.yaml import Document, read_text, read_yaml
from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.base.errors import BadFleet
from vedette.domain.identity import is_valid_name

# What tools leave behind in a folder; none of it is part of the agent.
_IGNORED_NAMES = frozenset({"__pycache__", ".adk", ".DS_Store", ".mypy_cache", ".ruff_cache"})

# Where the recordings of an agent's evals lie, below its folder: no code of it reads them, and a
# new one makes no new release.
RECORDINGS = ("evals", "recordings")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class ModuleOutline(Struct, frozen=True):
    """The names that a Python file of an agent binds at its top level, and what defines them.

    Of a file that could not be parsed (`broken`) nothing is known.
    """

    file: str
    names: Mapping[str, int] = field(default_factory=dict)
    functions: Mapping[str, Function] = field(default_factory=dict)
    broken: bool = False


def agent_folders(agents: Path) -> list[Path]:
    """Return the folders under `agents` that should be agents, by name."""
    return sorted(
        child
        for child in agents.iterdir()
        if child.is_dir() and child.name not in _IGNORED_NAMES and not child.name.startswith(".")
    )


def folder_files(folder: Path) -> list[Path]:
    """Return every file of a folder that is part of the agent, in order of its path."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.suffix not in (".pyc", ".pyo")
        and not _IGNORED_NAMES.intersection(path.relative_to(folder).parts)
        and path.relative_to(folder).parts[:2] != RECORDINGS
    )


def read_files(folder: Path) -> dict[str, bytes]:
    """Return every file that is part of the agent, by its path within the folder.

    Raises BadFleet for a file that is a link, and OSError.
    """
    return {
        path.relative_to(folder).as_posix(): read_file(path, folder)
        for path in folder_files(folder)
    }


def read_file(path: Path, folder: Path, limit: int = -1) -> bytes:
    """Return the bytes of a regular file below a folder, at most `limit` of them; never waits.

    Raises BadFleet for a link, a pipe, a socket or a device, and OSError.
    """
    where = f"{folder.name}/{path.relative_to(folder).as_posix()}"
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        opened = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise BadFleet("is no file", where=where, mend="remove it") from error
        if error.errno != errno.ELOOP:
            raise
        raise BadFleet("is a link", where=where, mend="copy it in") from error
    with os.fdopen(opened, "rb") as file:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise BadFleet("is no file", where=where, mend="remove it")
        return file.read(limit)


def digest_files(files: Mapping[str, bytes]) -> str:
    """Return the digest over the paths and bytes of an agent's files: its release."""
    return sha256_hex(canonical_json({name: sha256_hex(data) for name, data in files.items()}))


def release_digest(folder: Path) -> str:
    """Return the release that a folder's present content is. Raises BadFleet, OSError."""
    return digest_files(read_files(folder))


def name_problems(folder: Path, file: str) -> list[Problem]:
    """Say why a folder of this name cannot be an agent.

    ADK imports agent folders by their bare names, so a name that another module already has
    would shadow it, or be shadowed (research: `calendar` was never loaded at all).
    """

    def problem(what: str, mend: str) -> list[Problem]:
        return [Problem(file, 0, "", what, mend)]

    name = folder.name
    if not name.isidentifier() or keyword.iskeyword(name) or not is_valid_name(name):
        words = "".join(c if c.isalnum() and c.isascii() else "_" for c in name.lower())
        plain = words.strip("_0123456789")
        mend = f"rename the folder, for example to {plain}" if is_valid_name(plain) else "rename it"
        return problem(f"folder name {name!r} is not a lower-case Python identifier", mend)
    if name in sys.stdlib_module_names:
        mend = f"rename the folder, for example to {name}_agent"
        return problem(f"folder name {name!r} shadows a module of the standard library", mend)
    if _has_namesake(name, folder):
        mend = f"rename the folder, for example to {name}_agent"
        return problem(f"folder name {name!r} shadows an installed module", mend)
    return []


def _has_namesake(name: str, folder: Path) -> bool:
    """Say whether `import name` finds something that is not this folder. Imports nothing."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return name in sys.modules
    if spec is None:
        return False
    places = [Path(place).resolve() for place in spec.submodule_search_locations or ()]
    return places != [folder.resolve()]


def read_code(path: Path, file: str) -> tuple[ModuleOutline, list[Problem]]:
    """Parse a Python file of an agent's folder; a syntax error is a problem at its line."""
    text, problems = read_text(path, file)
    if problems:
        return ModuleOutline(file, broken=True), problems
    try:
        tree = ast.parse(text, filename=file)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        what = f"is not Python: {getattr(error, 'msg', str(error))}"
        return ModuleOutline(file, broken=True), [
            Problem(file, line, "", what, "correct the syntax")
        ]
    names: dict[str, int] = {}
    functions: dict[str, Function] = {}
    for node in tree.body:
        for bound in _bound_names(node):
            names[bound] = node.lineno
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions[node.name] = node
    return ModuleOutline(file, names, functions), _import_problems(tree, path, file)


def tool_summaries(folder: Path) -> tuple[dict[str, str], list[Problem]]:
    """Return the first paragraph of each function's docstring in tools.py; it is not imported."""
    path = folder / "tools.py"
    if not path.is_file():
        return {}, []
    code, problems = read_code(path, f"{folder.name}/tools.py")
    texts = {name: ast.get_docstring(node) or "" for name, node in code.functions.items()}
    return {name: " ".join(text.split("\n\n")[0].split()) for name, text in texts.items()}, problems


def _bound_names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
        return [node.target.id]
    return []


def _import_problems(tree: ast.Module, path: Path, file: str) -> list[Problem]:
    """Siblings must be imported relatively: the folder is on nobody's search path."""
    problems = []
    own = {other.stem for other in path.parent.glob("*.py")} | {"agents", path.parent.name}
    own -= {"__init__", "vedette", *sys.stdlib_module_names}
    for node in _statements(tree.body):
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            wanted = [node.module or ""]
        else:
            continue
        for name in wanted:
            if name.split(".")[0] in own:
                what = f"imports {name!r} absolutely, which is found under adk only or not at all"
                mend = f"write from .{name.split('.')[-1]} import …"
                problems.append(Problem(file, node.lineno, "", what, mend))
    return problems


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield every statement of a body, however deep; no expression holds one.

    Looking through all nodes, of which most are expressions, took a third of reading a fleet.
    """
    waiting: list[Any] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            yield node
        # Handlers of `try` and cases of `match` are no statements, but hold some.
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, name, None)
            if isinstance(inner, list):
                waiting += inner


def init_file_problems(path: Path, file: str) -> list[Problem]:
    """Check that an agent's `__init__.py` holds nothing but ADK's own line.

    Here it never runs. `adk eval` looks for the agent in it: `from . import agent as agent`.
    """
    if not path.is_file():
        return [Problem(file, 0, "", "is missing", "add an empty __init__.py")]
    text, problems = read_text(path, file)
    if problems:
        return problems
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return [Problem(file, 1, "", "is not empty", "empty it")]
    others = [node for node in body if not _imports_agent(node)]
    if not others:
        return []
    mend = "move it into agent.py, judge.py or tools.py"
    return [Problem(file, others[0].lineno, "", "is not empty", mend)]


def _imports_agent(node: ast.stmt) -> bool:
    """Say whether a statement of `__init__.py` is `from . import agent`, by that name."""
    return (
        isinstance(node, ast.ImportFrom)
        and (node.level, node.module) == (1, None)
        and [(each.name, each.asname or each.name) for each in node.names] == [("agent", "agent")]
    )


def link_problems(folder: Path, relative_path: str) -> list[Problem]:
    """Check an agent's folder for links: what runs would differ from what was reviewed."""
    return [
        Problem(
            f"{relative_path}/{path.relative_to(folder).as_posix()}",
            0,
            "",
            "is a link",
            "copy it in",
        )
        for path in sorted(folder.rglob("*"))
        if path.is_symlink()
    ]


def eval_problems(folder: Path, relative_path: str, tools: Mapping[str, Any]) -> list[Problem]:
    """Check that every file of evals/ is a list of cases that the runner of evals can take."""
    problems: list[Problem] = []
    names: dict[str, str] = {}
    for path in sorted((folder / "evals").glob("*.y*ml")):
        document, found = read_yaml(path, f"{relative_path}/evals/{path.name}")
        problems += found
        if found:
            continue
        if not isinstance(document.value, list) or not document.value:
            problems.append(document.problem((), "is not a list of cases", "begin with - name: …"))
            continue
        for index, case in enumerate(document.value):
            problems += _case_problems(document, index, case, names, tools)
    return problems


def _case_problems(
    document: Document, index: int, case: Any, names: dict[str, str], tools: Mapping[str, Any]
) -> list[Problem]:
    if not isinstance(case, dict):
        return [document.problem((index,), "is not a case", "give it name, event and expect")]
    problems = []
    name = case.get("name")
    if not isinstance(name, str) or not name.strip():
        problems.append(document.problem((index,), "has no name", "add name:"))
    elif name in names:
        what = f"the name {name!r} stands in {names[name]} already"
        problems.append(document.problem((index, "name"), what, "say what is different"))
    else:
        names[name] = document.file
    given = [key for key in ("event", "events", "series", "task") if key in case]
    if len(given) != 1:
        what = f"has {' and '.join(given)}" if given else "has no event"
        mend = "give exactly one of event, events, series and task"
        problems.append(document.problem((index,), what, mend))
    expect = case.get("expect")
    if not isinstance(expect, dict):
        return [*problems, document.problem((index,), "expects nothing", "add expect:")]
    for answer in ("permitted", "held", "denied"):
        for place, tool in enumerate(_text_items(expect.get(answer))):
            if tool not in tools:
                at = (index, "expect", answer, place)
                what = f"{tool!r} is not a tool of this agent"
                problems.append(document.problem(at, what, did_you_mean(tool, list(tools))))
    return problems


def _text_items(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
