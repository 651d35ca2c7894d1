"""Import of an ADK agent: a folder of this fleet made of somebody's `root_agent`.

What is not taken is named, and left out only by its name; then all is written beside the fleet,
checked there as `vedette check` does, and put in place by one rename. Nothing is granted.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from vedette.config.foreign_agent import (
    SOURCE,
    ForeignAgent,
    ForeignTool,
    Refusal,
    SourceText,
    is_plain_name,
    make_imports_relative,
    read_foreign_agent,
)
from vedette.domain.base.errors import BadCommand, BadFleet
from vedette.domain.base.fsync import sync
from vedette.domain.origin import escape_pointer
from vedette.operations.scaffold import CheckFleet, copy_content, folder_copy, require_sound

if TYPE_CHECKING:
    from vedette.config.settings import Settings

_MAX_BYTES, _MAX_FILES = 10 * 1024 * 1024, 2000
_NAME = re.compile(r"[a-z][a-z0-9_]*")
# How ADK's model names are told from the prefixes of routes: `openai/gpt-5`, `models/gemini-3`.
_ROUTE = re.compile(r"^.*/")
# What is a key by its usual name, or holds one; never copied, and told.
_SECRETS = re.compile(
    r".*credential.*|(?:.*[._-])?(?:client[_-]?)?(?:secret|service[_-]?account|(?:api|private)"
    r"[_-]?key)s?(?![a-z]).*|(?:.*[._-])?tokens?(?:\..*)?|id_(?:rsa|dsa|ecdsa|ed25519)"
    r"|(?:.*\.)?env|.*\.(?:pem|key|p12|pfx|jks|keystore|kdbx)"
)

# Says of (agent's folder, its source's name) what the root agent there is; in a box.
DescribeSource = Callable[[Path, str], Any]

# Asks a person about (tool, its arguments): returns which are sinks, and how it settles.
AskTool = Callable[[str, list[str]], tuple[tuple[str, ...], Literal["none", "idempotent"]]]


class ImportChoices(Struct, frozen=True):
    """What whoever imports an agent chooses.

    `model` is an entry of [models], `wakes_on` a pattern of event types. `sinks` and `settles` are
    by tool; a tool that they do not name has all its arguments for sinks, and settles `none`.
    `without` names what is left out. With `keeps_state` functions may use a state that lasts for
    one call.
    """

    name: str
    owner: str
    wakes_on: str
    model: str | None = None
    target: str | None = None
    sinks: Mapping[str, tuple[str, ...]] = {}
    settles: Mapping[str, Literal["none", "idempotent"]] = {}
    without: frozenset[str] = frozenset()
    keeps_state: bool = False


class NotImported(BadCommand):
    """A foreign agent has what is not imported, and nobody said to leave it out.

    `refusals` are all such things.
    """

    def __init__(self, refusals: list[Refusal], name: str) -> None:
        lines = [f"{one.name}: {one.what}; {one.mend}" for one in refusals]
        names = [one.name for one in refusals if one.optional]
        what = "is not imported:\n  " + "\n  ".join(lines) + "\n"
        mend = "mend them at its source"
        if len(names) == len(refusals):
            mend += ", or leave them out: " + " ".join(f"--without {quote(one)}" for one in names)
        super().__init__(what, where=name, mend=mend)
        self.refusals = refusals


class ImportedAgent(Struct):
    """An agent that was imported: its folder, what it is, what was left out, what it may reach.

    `hosts` stand in the text of its code, and `variables` of an environment that it reads.
    `copied` are its files that are no Python, `not_copied` what was left where it is. `grant` is
    what policy would have to say.
    """

    name: str
    folder: Path
    model: str
    tools: list[str]
    left_out: list[Refusal]
    hosts: list[str]
    variables: list[str]
    copied: list[str]
    not_copied: list[str]
    notes: list[str]
    grant: str


def import_agent(
    settings: Settings,
    source: Path,
    choices: ImportChoices,
    describe: DescribeSource,
    check: CheckFleet,
    ask: AskTool | None = None,
) -> ImportedAgent:
    """Write the agent of an ADK agent's folder into the fleet; return what was written.

    `ask` is asked about each tool that the choices leave open.

    Raises NotImported with all that is not taken, and BadCommand for a name that is none or is
    taken, for choices of tools that are not there, and if the fleet would not pass `check` with it.
    Then nothing is there that was not before.
    """
    target = _free_folder(settings, choices.name)
    isolation = settings.isolation
    if not isolation.is_boxed:
        what = "the hands of this fleet are not boxed, and would run its functions beside the keys"
        mend = 'write workers = "processes" and box = "kernel" in [isolation]'
        raise BadCommand(what, where="vedette.toml: isolation", mend=mend)
    files, not_copied, text = _read_source(source)
    with tempfile.TemporaryDirectory(prefix="vedette-import-") as scratch_folder:
        scratch = copy_content(settings, Path(scratch_folder))
        folder = scratch.agents / choices.name
        for path, data in files.items():
            file = folder / SOURCE / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        told = _describe(describe, folder, text)
        agent, left_out = _select(told, text, choices)
        model = _find_model(settings, agent, choices)
        if ask is not None:
            choices = _ask_open(choices, agent.tools, ask)
        _write_agent(folder, agent, choices, model, settings.models[model].served_name)
        require_sound(scratch, check)
        with folder_copy(folder, target) as copy:
            copy.rename(target)
        sync(target.parent)
    copied = [path for path in files if not path.endswith(".py")]
    return ImportedAgent(
        choices.name, target, model, [tool.name for tool in agent.tools], left_out, text.hosts(),
        text.variables(), copied, not_copied, agent.notes, _grant(choices, agent.tools),
    )  # fmt: skip


def _free_folder(settings: Settings, name: str) -> Path:
    from vedette.config.agent_folder import name_problems

    folder = settings.agents / name
    if folder.exists() or folder.is_symlink():
        raise BadCommand(f"there is an agent {name!r} already", mend="give another one by --name")
    if folder.name != name:
        raise BadCommand(f"{name!r} is no name of a folder", mend="give one by --name")
    for problem in name_problems(folder, name):
        raise BadCommand(problem.what, mend=f"{problem.mend}: --name NAME")
    return folder


# --- the source -------------------------------------------------------------------------------


def _read_source(source: Path) -> tuple[dict[str, bytes], list[str], SourceText]:
    """Return the files of an ADK agent by their paths, what is not taken, and its Python's text.

    Hidden files and what is a key by its name are not taken. Raises BadCommand for what is no
    regular file, cannot be read, or has a path that is no text or no module's.
    """
    from vedette.config.agent_folder import read_file

    source = source.resolve()
    if not source.is_dir():
        raise BadCommand("is no folder", where=str(source), mend="name the folder with agent.py in")
    files: dict[str, bytes] = {}
    not_taken, size = [], 0
    try:
        for place, folders, names in os.walk(source, onerror=_raise):
            here = Path(place)
            linked = [name for name in folders if (here / name).is_symlink()]
            for name in sorted([*names, *folders]):
                path = here / name
                shown = path.relative_to(source).as_posix()
                if name == "__pycache__" or name.endswith((".pyc", ".pyo")):
                    continue
                if not shown.isprintable():  # a control character, a lone surrogate
                    what = f"{shown!a} is no printable text"
                    raise BadCommand(what, mend="rename the file")
                if name in folders and name not in linked:
                    not_taken += [f"{shown}/"] if name.startswith(".") else []
                elif _is_left(shown):
                    not_taken.append(shown)
                else:
                    _require_module(shown)
                    data = read_file(path, source, _MAX_BYTES + 1 - size)
                    size += len(data)
                    files[shown] = make_imports_relative(data, shown, source.name)
                if len(files) > _MAX_FILES or size > _MAX_BYTES:
                    what = f"has more than {_MAX_FILES} files or {_MAX_BYTES >> 20} MiB"
                    mend = "keep what its functions do not need beside it"
                    raise BadCommand(what, where=str(source), mend=mend)
            folders[:] = sorted(n for n in folders if n[0] != "." and n != "__pycache__")
        _require_agent(files)
        return dict(sorted(files.items())), sorted(not_taken), SourceText(files)
    except BadFleet as error:
        raise BadCommand(error.what, where=error.where, mend=error.mend) from error
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise BadCommand(what, where=str(error.filename), mend="see who owns it") from error


def _raise(error: OSError) -> None:
    raise error


def _require_module(path: str) -> None:
    """Refuse the path of a Python file that no code could name."""
    is_module = path.endswith(".py")
    if is_module and not all(map(is_plain_name, path.removesuffix(".py").split("/"))):
        mend = "rename it, or keep it out of the folder"
        raise BadCommand("is no name of a module", where=path, mend=mend)


def _require_agent(files: Mapping[str, bytes]) -> None:
    if "__init__.py" in files:
        return
    if "agent.py" in files:
        mend = "add an empty one, which ADK asks for, too"
        raise BadCommand("is not there", where="__init__.py", mend=mend)
    what, mend = "has no agent.py", "name the folder that `adk run` takes"
    if "root_agent.yaml" in files:
        what, mend = "is made of root_agent.yaml", "write it as root_agent in agent.py"
    raise BadCommand(what, mend=mend)


def _is_left(path: str) -> bool:
    """Say whether a file is hidden, or no Python and a key by its path."""
    parts = path.lower().split("/")
    return parts[-1].startswith(".") or (
        not path.endswith(".py") and any(map(_SECRETS.fullmatch, parts))
    )


def _describe(describe: DescribeSource, folder: Path, text: SourceText) -> ForeignAgent:
    try:
        return read_foreign_agent(describe(folder, SOURCE), SOURCE)
    except BadFleet as error:
        mend = error.mend
        if found := re.search(r"No module named '(\w+)", error.what):
            mend = (
                f"if {found[1]} is its own, import it relatively (from .… import …); if not, "
                "install it where vedette is"
            )
        elif names := text.variables():
            mend = (
                f"{mend or 'correct it'}; it finds no variables here, and reads {', '.join(names)}"
            )
        raise BadCommand(error.what, where=error.where, mend=mend) from error


# --- what is taken ----------------------------------------------------------------------------


def _select(
    told: ForeignAgent, text: SourceText, choices: ImportChoices
) -> tuple[ForeignAgent, list[Refusal]]:
    """Return the agent with what is taken of it, and what is left out. Raises NotImported."""
    from vedette.domain.schema_check import find_schema_problems

    refusals, tools = list(told.refusals), []
    names = [*(tool.name for tool in told.tools), *{one.name for one in told.refusals}]
    for name in sorted({name for name in names if names.count(name) > 1}):
        what, mend = "is the name of several things", "rename all but one of them"
        refusals.append(Refusal(name, what, mend, optional=False))
    for tool in told.tools:
        faults = []
        if not (_NAME.fullmatch(tool.name) and is_plain_name(tool.name)):
            faults.append(("is no lower-case name", "rename it, in the instruction too"))
        faults += text.tool_faults(tool, keeps_state=choices.keeps_state)
        for problem in find_schema_problems(tool.schema) if tool.schema is not None else ():
            place = ".".join(map(str, problem.path))
            faults.append((f"its arguments: {place}: {problem.what}", problem.mend))
        if tool.name in choices.without:
            what, mend = faults[0] if faults else ("is a function", "import it")
            refusals.append(Refusal(tool.name, what, mend))
        elif faults:
            refusals += [Refusal(tool.name, what, mend) for what, mend in faults]
        else:
            tools.append(tool)
    if not told.instruction.strip() and all(one.optional for one in refusals):
        mend = "say what the agent is for and what it must not do"
        refusals.append(Refusal("instruction", "is empty", mend, optional=False))
    left_out = [one for one in refusals if one.optional and one.name in choices.without]
    _refuse_unknown("--without", choices.without, {one.name for one in refusals})
    remaining = [one for one in refusals if one not in left_out]
    if remaining:
        raise NotImported(remaining, choices.name)
    taken = {tool.name for tool in tools}
    _refuse_unknown("--sinks", choices.sinks, taken)
    _refuse_unknown("--settles", choices.settles, taken)
    for tool in tools:
        arguments = set((tool.schema or {}).get("properties", {}))
        _refuse_unknown(f"--sinks {tool.name}", choices.sinks.get(tool.name, ()), arguments)
    return ForeignAgent(
        told.name, told.description, told.model, told.instruction, told.settings, tools, [],
        told.notes,
    ), left_out  # fmt: skip


def _refuse_unknown(option: str, given: Any, known: set[str]) -> None:
    from vedette.config.problem import did_you_mean

    for name in sorted(given):
        if name not in known:
            mend = did_you_mean(name, sorted(known)) if known else "leave it out"
            raise BadCommand(f"{option} names {name!r}, which is not there", mend=mend)


def _ask_open(choices: ImportChoices, tools: list[ForeignTool], ask: AskTool) -> ImportChoices:
    """Return choices with what a person says of each tool that they leave open."""
    sinks, settles = dict(choices.sinks), dict(choices.settles)
    for tool in tools:
        if tool.name in sinks and tool.name in settles:
            continue
        arguments = list((tool.schema or {}).get("properties", {}))
        chosen, how = ask(tool.name, arguments)
        _refuse_unknown(f"--sinks {tool.name}", chosen, set(arguments))
        sinks.setdefault(tool.name, chosen)
        settles.setdefault(tool.name, how)
    return replace(choices, sinks=sinks, settles=settles)


def _find_model(settings: Settings, agent: ForeignAgent, choices: ImportChoices) -> str:
    """Return the entry of [models] that is asked: the one chosen, or the one that has its model."""
    from vedette.config.problem import did_you_mean

    models = settings.models
    if choices.model is not None:
        if choices.model not in models:
            mend = did_you_mean(choices.model, sorted(models)) if models else "add it there"
            what = f"vedette.toml has no table [models.{choices.model}]"
            raise BadCommand(what, mend=mend)
        return choices.model
    asked = agent.model or "its default model"
    same = [
        name
        for name, plan in models.items()
        if _ROUTE.sub("", plan.served_name) == _ROUTE.sub("", agent.model)
    ]
    if len(same) == 1:
        return same[0]
    what = f"it asks {asked}, and {'several entries' if same else 'no entry'} of [models] would"
    names = ", ".join(sorted(same or models)) or "none yet: see docs/guides/models.md"
    raise BadCommand(what, mend=f"name one by --model; there are: {names}")


# --- the folder -------------------------------------------------------------------------------


def _write_agent(
    folder: Path, agent: ForeignAgent, choices: ImportChoices, model: str, served_name: str
) -> None:
    parts = {
        "__init__.py": "from . import agent as agent\n",
        "agent.yaml": _charter(agent, choices, model),
        "instruction.md": agent.instruction.strip() + "\n",
        "agent.py": _agent_code(agent, choices, served_name),
        "tools.py": _tools_code(agent),
    }
    for name, content in parts.items():
        (folder / name).write_text(content, encoding="utf-8")


def _charter(agent: ForeignAgent, choices: ImportChoices, model: str) -> str:
    from vedette.config.yaml_edit import block_yaml

    title = " ".join(agent.description.split())[:100] or agent.name
    document: dict[str, Any] = {
        "version": 1,
        "name": choices.name,
        "title": title,
        "owner": choices.owner,
        "model": model,
        "max_turns": 8,
        "mode": "act",
        "triggers": [{"on": choices.wakes_on}],
        "budget": {"model_calls_per_day": 200, "actions_per_hour": 60},
        "tools": [_declare(tool, choices) for tool in agent.tools],
    }
    return block_yaml(document)


def _declare(tool: ForeignTool, choices: ImportChoices) -> dict[str, Any]:
    arguments = (tool.schema or {}).get("properties", {})
    sinks = choices.sinks.get(tool.name, tuple(arguments))
    declared: dict[str, Any] = {
        "name": tool.name,
        "verb": "call",
        "resource": choices.name,
    }
    if arguments:
        declared["schema"] = tool.schema
    declared |= {
        "sinks": [f"/{escape_pointer(name)}" for name in sinks],
        "settles": choices.settles.get(tool.name, "none"),
        "function": tool.name,
        "timeout": "30s",
    }
    if choices.target is not None:
        declared["target"] = choices.target
    if tool.asks_person:
        declared["high_impact"] = True
    return declared


def _grant(choices: ImportChoices, tools: list[ForeignTool]) -> str:
    lines = [f"{choices.name}:", "  mode: observe", "  tools:" + ("" if tools else " {}")]
    for tool in tools:
        impact = "high" if tool.asks_person else "low"
        rights = {"verb": "call", "resource": choices.name, "impact": impact}
        lines += [f"    {tool.name}:", *(f"      {key}: {value}" for key, value in rights.items())]
    return "\n".join(lines) + "\n"


_AGENT = '''\
"""The agent for ADK, of what was imported: `adk web agents` shows it; nothing of {source}/ runs."""

from __future__ import annotations

from pathlib import Path

from google.adk.agents import LlmAgent
{imports}
from vedette.sdk import declared_tools

_FOLDER = Path(__file__).parent

root_agent = LlmAgent(
    name={name},
    model={model},
    description={description},
    instruction=(_FOLDER / "instruction.md").read_text(encoding="utf-8"),
    tools=declared_tools(_FOLDER),{settings}
)
'''


def _agent_code(agent: ForeignAgent, choices: ImportChoices, served_name: str) -> str:
    imports = settings = ""
    if agent.settings:
        imports = "from google.genai import types\n"
        literal = f"types.GenerateContentConfig.model_validate({agent.settings!r})"
        settings = f"\n    generate_content_config={literal},"
    return _AGENT.format(
        source=SOURCE, imports=imports, settings=settings, name=repr(choices.name),
        model=repr(agent.model or served_name), description=repr(agent.description),
    )  # fmt: skip


_TOOLS = '''\
"""Performs the functions of {source}/ as they are there, in the hands' box.

A function's module is imported when it is first called, so that nothing else runs it.
"""

from __future__ import annotations

from vedette.sdk import Call, Outcome
from vedette.sdk import perform_function as _perform  # a name that no tool has
'''
_TOOL = """

def {name}(call: Call) -> Outcome:
    {summary}
    from .{module} import {name} as function

    return _perform(call, function{context})
"""


def _tools_code(agent: ForeignAgent) -> str:
    """Return tools.py: of what was told, names of Python and reprs of texts stand in it alone."""
    code = _TOOLS.format(source=SOURCE)
    for tool in agent.tools:
        module = f"{SOURCE}.{tool.module}" if tool.module else SOURCE
        context = f", context={tool.context!r}" if tool.context is not None else ""
        summary = repr(tool.summary or f"Call {tool.name}.")
        code += _TOOL.format(name=tool.name, summary=summary, module=module, context=context)
    return code
