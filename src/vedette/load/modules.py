"""Imports an agent's code by path, under a private parent package.

`agents/calendar/judge.py` becomes the module `vedette_fleet.calendar.judge`: relative imports
work, nothing lands on `sys.path`, and no agent can shadow another module. Bytecode is neither
written nor read: nothing the program writes lands in content, and what runs is the source that
was reviewed, however quickly it was changed.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from threading import RLock
from types import CodeType, ModuleType
from typing import Any

from vedette.agent import Agent
from vedette.errors import BadFleet
from vedette.judging import Judge
from vedette.load.folder import release_digest
from vedette.memory import Memory

PARENT = "vedette_fleet"

_LOCK = RLock()


class _Source(SourceFileLoader):
    """Compiles from source each time; knows no bytecode files."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _Finder:
    """Finds modules below the parent package, by the `__path__` of the package they are in."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{PARENT}.") or not path:
            return None
        name = fullname.rpartition(".")[2]
        for place in path:
            package, module = Path(place, name, "__init__.py"), Path(place, f"{name}.py")
            if package.is_file():
                return importlib.util.spec_from_file_location(
                    fullname,
                    package,
                    loader=_Source(fullname, str(package)),
                    submodule_search_locations=[str(package.parent)],
                )
            if module.is_file():
                loader = _Source(fullname, str(module))
                return importlib.util.spec_from_file_location(fullname, module, loader=loader)
        return None


def load_module(folder: Path, name: str) -> ModuleType:
    """Import `name` (judge, tools, agent) of an agent's folder; the same module each time.

    If a file of the folder changed since, or the agent's name is now another folder's, all of the
    agent's modules are imported afresh. Raises BadFleet with the file and line of the agent's
    code where the import failed.
    """
    folder = folder.resolve()
    if not (folder / f"{name}.py").is_file():
        raise BadFleet("is not there", where=f"{folder.name}/{name}.py", mend="add it")
    with _LOCK:
        package = _package(folder)
        try:
            return importlib.import_module(f"{package}.{name}")
        except Exception as error:
            raise _failed(folder, name, error) from error


def build_judge(agent: Agent, lessons: Sequence[Memory]) -> Judge:
    """Make the judge of an agent, trained on `lessons`. Raises BadFleet."""
    return judge_of(Path(agent.folder), agent.charter, lessons)


def judge_of(folder: Path, charter: Mapping[str, Any], lessons: Sequence[Memory]) -> Judge:
    """Make the judge that an agent's folder holds. Raises BadFleet."""
    found = getattr(load_module(folder, "judge"), "Judge", None)
    where = f"{folder.name}/judge.py"
    if not (isinstance(found, type) and issubclass(found, Judge)):
        mend = "write class Judge(vedette.judging.Judge)"
        raise BadFleet("Judge is not a judge", where=where, mend=mend)
    try:
        return found(charter, lessons)
    except Exception as error:
        raise _failed(folder, "judge", error) from error


def _package(folder: Path) -> str:
    """Make sure that the agent's package stands for this folder as it is now; return its name."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
    if PARENT not in sys.modules:
        sys.modules[PARENT] = _bare(PARENT, [])
    package = f"{PARENT}.{folder.name}"
    release = release_digest(folder)
    known = sys.modules.get(package)
    if known is not None and known.__dict__["__release__"] == (str(folder), release):
        return package
    for module in [m for m in sys.modules if m == package or m.startswith(f"{package}.")]:
        del sys.modules[module]
    fresh = _bare(package, [str(folder)])
    fresh.__dict__["__release__"] = (str(folder), release)
    sys.modules[package] = fresh
    return package


def _bare(name: str, path: list[str]) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = path
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__spec__.submodule_search_locations = path
    module.__package__ = name
    return module


def _failed(folder: Path, name: str, error: Exception) -> BadFleet:
    """Say where in the agent's own code an error arose."""
    where = f"{folder.name}/{name}.py"
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{folder.name}/{Path(error.filename).name}:{error.lineno}"
    else:
        for frame in traceback.extract_tb(error.__traceback__):
            if Path(frame.filename).is_relative_to(folder):
                inside = Path(frame.filename).relative_to(folder).as_posix()
                where = f"{folder.name}/{inside}:{frame.lineno}"
    what = f"{type(error).__name__}: {error}"
    return BadFleet(what, where=where, mend="correct the agent's code")
