"""Scaffold: a new agent like one that is there, in observe, with all that others must say of it.

The folder is copied and given a name, a collection and an identity of its own; the policy gets an
entry that grants what the other was granted, but for the mode; banks get one more reader. All is
made beside the fleet and checked there, as `vedette check` does, before anything is put in place.
The folder comes last: without it an entry or a reader is a name that nobody has yet, and the same
order given again completes what a crash cut short.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from vedette.domain.agent import Agent
from vedette.domain.base import failpoint
from vedette.domain.base.errors import BadCommand, BadPolicy, NotFound
from vedette.domain.base.fsync import sync
from vedette.operations.modes import GRANTS, write_edited_file

if TYPE_CHECKING:
    from vedette.config.problem import Problem
    from vedette.config.settings import Settings

LIMITS, BUDGETS = "limits/data.yaml", "budgets/data.yaml"
# Where other data files speak of one agent by name: file, and the path to the names.
_AGENT_KEYS = ((LIMITS, ("actions", "agents")), (LIMITS, ("confidence_milli", "agents")),
          (BUDGETS, ("agents",)))  # fmt: skip
_IGNORE = shutil.ignore_patterns("__pycache__", "*.py[co]", ".*", "*~")

# What is wrong with a fleet of these settings; it imports the agents' code.
CheckFleet = Callable[["Settings"], list["Problem"]]


class NewAgent(Struct):
    """What a scaffolded agent takes. `files` are new texts by path, `before` what each was made of.

    `review_lines` are lines of its code that have a word which is also the other's name or
    collection.
    """

    name: str
    like: Agent
    title: str
    owner: str
    folder: Path
    files: dict[Path, bytes] = field(default_factory=dict)
    before: dict[Path, bytes] = field(default_factory=dict)
    review_lines: list[str] = field(default_factory=list)


def scaffold_agent(
    settings: Settings,
    name: str,
    like: str,
    title: str | None,
    owner: str | None,
    check: CheckFleet,
) -> NewAgent:
    """Write a new agent like one that is there; return what was written.

    Raises BadCommand if the name cannot be one or is taken, if there is no agent `like`, if the
    fleet would not pass `check` with it, or if somebody saved one of the files that it edits
    meanwhile. Then nothing is there that was not before.
    """
    plan = _plan(settings, name, like, title, owner)
    try:
        with tempfile.TemporaryDirectory(prefix="vedette-new-") as scratch_folder:
            scratch = copy_content(settings, Path(scratch_folder))
            _write_agent(plan, scratch.agents / name)
            _edit_policy(plan, settings, scratch)
            _edit_banks(plan, settings, scratch)
            require_sound(scratch, check)
            _install(plan, scratch.agents / name)
    except BadPolicy as error:
        raise BadCommand(error.what, where=error.where, mend=error.mend) from error
    return plan


def _plan(
    settings: Settings, name: str, like: str, title: str | None, owner: str | None
) -> NewAgent:
    from vedette.config.agent_folder import name_problems
    from vedette.config.fleet import load_fleet
    from vedette.config.problem import did_you_mean

    agents = load_fleet(settings.root, settings).fleet.agents
    if like not in agents:
        mend = did_you_mean(like, list(agents))
        raise NotFound(f"there is no agent {like!r} to be like", mend=mend)
    folder = settings.agents / name
    if name in agents or folder.exists() or folder.is_symlink():
        raise BadCommand(f"there is an agent {name!r} already", mend="give it another name")
    if folder.name != name:
        raise BadCommand(f"{name!r} is no name of a folder", mend="for example billing")
    for problem in name_problems(folder, name):
        raise BadCommand(problem.what, mend="name it as Python names a module, for example billing")
    other = agents[like]
    return NewAgent(name, other, title or f"Like {like}", owner or other.owner, folder)


def copy_content(settings: Settings, folder: Path) -> Settings:
    """Return settings of a copy of the content."""
    for part in ("agents", "policies", "memory"):
        shutil.copytree(getattr(settings, part), folder / part, ignore=_hidden_names, symlinks=True)
    return replace(
        settings, root=folder, agents=folder / "agents", policies=folder / "policies",
        memory=folder / "memory",
    )  # fmt: skip


def require_sound(scratch: Settings, check: CheckFleet) -> None:
    """Raise BadCommand if an edited copy of the content would not pass the fleet's check."""
    problems = [one for one in check(scratch) if not one.warning]
    if problems:
        first = problems[0]
        what = f"the fleet would not pass its check with it: {first.what}"
        raise BadCommand(what, where=first.where, mend=first.mend or None)


@contextmanager
def folder_copy(source: Path, target: Path) -> Iterator[Path]:
    """Give a durable copy of a folder beside `target`, hidden, for whoever renames it to that.

    It is gone on an error, and an OSError becomes a BadCommand that says that nothing was changed.
    """
    hidden = target.with_name(f".{target.name}.vedette-new")
    try:
        shutil.rmtree(hidden, ignore_errors=True)
        shutil.copytree(source, hidden, ignore=shutil.ignore_patterns("__pycache__"))
        for path in [hidden, *hidden.rglob("*")]:
            sync(path)
        yield hidden
    except BaseException as error:
        shutil.rmtree(hidden, ignore_errors=True)
        if isinstance(error, OSError):
            what = f"cannot be written: {error.strerror or error}"
            mend = "see who owns the folder and whether there is room; nothing was changed"
            raise BadCommand(what, where=str(error.filename or ""), mend=mend) from error
        raise


def _hidden_names(folder: str, names: list[str]) -> set[str]:
    return {n for n in names if n == "__pycache__" or (n.startswith(".") and n != ".manifest")}


# --- the folder --------------------------------------------------------------------------------


def _write_agent(plan: NewAgent, folder: Path) -> None:
    from vedette.config.yaml_edit import NotEditable, set_line

    shutil.copytree(plan.like.folder, folder, ignore=_IGNORE)
    path = folder / "agent.yaml"
    text = path.read_text(encoding="utf-8")
    changes = {"name": plan.name, "title": _yaml_text(plan.title), "owner": _yaml_text(plan.owner)}
    if plan.like.collection is not None:
        changes["collection"] = plan.name
    try:
        for key, value in changes.items():
            text = set_line(text, [key], value)
    except NotEditable as error:
        mend = "write each of name, title, owner and collection on one line"
        raise BadCommand(str(error), where=str(path.name), mend=mend) from error
    path.write_text(text, encoding="utf-8")
    _rename_code(plan, folder)


def _rename_code(plan: NewAgent, folder: Path) -> None:
    """Give the code its own name and collection; note where the old words stand still."""
    from vedette.config.code_rename import find_remaining, rename_code

    names = {plan.like.name: plan.name}
    rows = {} if plan.like.collection is None else {plan.like.collection: plan.name}
    for module in sorted(folder.rglob("*.py")):
        code = rename_code(module, module.read_text(encoding="utf-8"), names, rows)
        module.write_text(code, encoding="utf-8")
        place = f"agents/{plan.name}/{module.relative_to(folder).as_posix()}"
        plan.review_lines += [f"{place}:{line}" for line in find_remaining(code, names | rows)]


def _yaml_text(text: str) -> str:
    plain = text.replace(" ", "").replace("@", "").replace(".", "").isalnum() and text[0].isalpha()
    return text if plain and text.isascii() else json.dumps(text, ensure_ascii=False)


# --- what others say of it -----------------------------------------------------------------------


def _edit_policy(plan: NewAgent, settings: Settings, scratch: Settings) -> None:
    """Grant it what the other is granted, in observe, and give it the other's limits."""
    from vedette.config.yaml_edit import NotEditable, copy_block, set_line, set_value
    from vedette.policy.bundle_data import mount

    like, name = plan.like.name, plan.name
    texts: dict[str, str] = {}
    for file in (GRANTS, LIMITS, BUDGETS):
        path = scratch.policies / file
        if path.is_file():
            texts[file] = path.read_text(encoding="utf-8")
    data = mount({file: text.encode() for file, text in texts.items()})
    wanted: Any = deepcopy(data)
    granted = data.get("grants", {}).get(like)
    if not isinstance(granted, dict):
        mend = f"grant {like} something first, or write the new one's grant by hand"
        raise BadCommand(f"the policy grants {like!r} nothing to be like", where=GRANTS, mend=mend)
    wanted["grants"][name] = {**granted, "mode": "observe"}
    if "owner" in granted:
        wanted["grants"][name]["owner"] = plan.owner
    _refuse_conflict(data["grants"], name, wanted["grants"][name], GRANTS)
    try:
        if name not in data["grants"]:
            text = copy_block(texts[GRANTS], [like], name)
            text = set_value(text, [name, "mode"], "observe")
            if "owner" in granted:
                text = set_line(text, [name, "owner"], _yaml_text(plan.owner))
            texts[GRANTS] = text
        for file, at in _AGENT_KEYS:
            own = wanted.get(file.partition("/")[0])
            for part in at:
                own = own.get(part, {}) if isinstance(own, dict) else {}
            if not isinstance(own, dict) or like not in own:
                continue
            _refuse_conflict(own, name, own[like], file)
            if name not in own:
                own[name] = deepcopy(own[like])
                texts[file] = copy_block(texts[file], [*at, like], name)
        after = mount({file: text.encode() for file, text in texts.items()})
        if after != wanted:
            raise NotEditable("more would change than one new agent")
    except NotEditable as error:
        mend = f"write the block of {like} in lines of its own, as `vedette init` does"
        raise BadCommand(f"the policy cannot be edited: {error}", mend=mend) from error
    for file, text in texts.items():
        _record_change(plan, settings.policies / file, scratch.policies / file, text)


def _refuse_conflict(names: Mapping[str, Any], name: str, wanted: Any, file: str) -> None:
    """A right that somebody left under this name would be the new agent's."""
    if name in names and names[name] != wanted:
        what = f"the policy speaks of {name!r} already, and otherwise than this would"
        raise BadCommand(what, where=file, mend="remove that entry, or give another name")


def _edit_banks(plan: NewAgent, settings: Settings, scratch: Settings) -> None:
    from vedette.config.yaml_edit import add_list_item

    for path in sorted(scratch.memory.glob("*/bank.yaml")):
        text = path.read_text(encoding="utf-8")
        edited = add_list_item(text, plan.name, plan.like.name, ("readers", "writers"))
        _record_change(plan, settings.memory / path.relative_to(scratch.memory), path, edited)


def _record_change(plan: NewAgent, path: Path, copy: Path, text: str) -> None:
    raw = text.encode("utf-8")
    was = copy.read_bytes()
    if raw != was:
        copy.unlink()  # a link would lead to what is not to be changed yet
        copy.write_bytes(raw)
        plan.files[path.resolve()] = raw
        plan.before[path.resolve()] = was


# --- putting it in place -------------------------------------------------------------------------


def _install(plan: NewAgent, source: Path) -> None:
    """Put everything in place; on an error all is as it was."""
    done: list[Path] = []
    with folder_copy(source, plan.folder) as copy:
        try:
            # Readers first, who read nothing while they are no agent; the policy; then the agent.
            for path in sorted(plan.files, key=lambda path: path.name != "bank.yaml"):
                point = f"found-{path.parent.name}"
                if not write_edited_file(path, plan.files[path], point, plan.before[path]):
                    what = "was saved by somebody while the new agent was made; nothing was changed"
                    raise BadCommand(what, where=str(path), mend="give the same order again")
                done.append(path)
            failpoint.hit_failpoint("found-folder:before")
            copy.rename(plan.folder)
        except BaseException:
            for path in reversed(done):
                write_edited_file(path, plan.before[path], "found-undo", plan.files[path])
            raise
    sync(plan.folder.parent)
    failpoint.hit_failpoint("found-folder:after")
