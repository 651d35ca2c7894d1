"""Loader of an agent's code, by path, under a private parent package.

`agents/calendar/judge.py` becomes the module `vedette_fleet.calendar.judge`: relative imports
work, nothing lands on `sys.path`, and no agent can shadow another module. Bytecode is neither
written nor read: nothing the program writes lands in content. The folder is read once, whole; what
runs is compiled from those bytes, whose digest was compared with the release that was asked for,
also where a module is imported long after.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

from vedette.config.agent_folder import digest_files, read_files
from vedette.config.former_names import FormerFinder
from vedette.domain.agent import Agent
from vedette.domain.base import machine
from vedette.domain.base.disk_errors import convert_disk_errors
from vedette.domain.base.errors import BadFleet, StoreFailed
from vedette.domain.memory import Memory
from vedette.domain.ports.judge import Judge

PARENT_PACKAGE = "vedette_fleet"

_LOCK = machine.RLock()


class _BytesLoader(SourceFileLoader):
    """Compiles the bytes that it is given; knows no bytecode files."""

    def __init__(self, fullname: str, path: str, data: bytes) -> None:
        super().__init__(fullname, path)
        self._data = data

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self._data, path)


class _Finder:
    """Finds modules below the parent package, by the `__path__` of the package they are in.

    They are found among the files of their agent that were read together, and nowhere else.
    """

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{PARENT_PACKAGE}.") or not path:
            return None
        name = fullname.rpartition(".")[2]
        agent = ".".join(fullname.split(".")[:2])
        files: Mapping[str, bytes] = sys.modules[agent].__dict__["__files__"]
        for place in path:
            package, module = f"{place}/{name}/__init__.py", f"{place}/{name}.py"
            if package in files:
                return importlib.util.spec_from_file_location(
                    fullname,
                    package,
                    loader=_BytesLoader(fullname, package, files[package]),
                    submodule_search_locations=[f"{place}/{name}"],
                )
            if module in files:
                loader = _BytesLoader(fullname, module, files[module])
                return importlib.util.spec_from_file_location(fullname, module, loader=loader)
        return None


def load_module(folder: Path, name: str, release: str | None = None) -> ModuleType:
    """Import `name` (judge, tools, agent) of an agent's folder; the same module each time.

    A dot leads into a package of the folder (`source.agent`; `source` is the package itself).

    `release` is the digest that the folder's files must have; None tries a folder as it lies
    there. If a file of the folder changed since, or the agent's name is now another folder's, all
    of the agent's modules are imported afresh. Raises BadFleet: with the code release-changed for
    another release, else with the file and line of the agent's code where the import failed.
    StoreFailed where the disk refused to read: the code may be well.
    """
    folder = folder.resolve()
    with _LOCK:
        package = _ensure_package(folder, release)
        path = f"{folder}/{name.replace('.', '/')}"
        files = sys.modules[package].__dict__["__files__"]
        if f"{path}.py" not in files and f"{path}/__init__.py" not in files:
            raise BadFleet("is not there", where=f"{folder.name}/{name}.py", mend="add it")
        try:
            with convert_disk_errors(folder):
                return importlib.import_module(f"{package}.{name}")
        except StoreFailed:
            raise
        except Exception as error:
            raise _code_error(folder, name, error) from error


T = TypeVar("T")


def isolate_imports(agent: str, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
    """Do something that imports another release's code; what was imported of the agent stays.

    Returns what was done, and what puts the modules of that release in place.
    """
    package = f"{PARENT_PACKAGE}.{agent}"

    def remove_modules() -> dict[str, ModuleType]:
        names = [m for m in sys.modules if m == package or m.startswith(f"{package}.")]
        return {name: sys.modules.pop(name) for name in names}

    with _LOCK:
        before = remove_modules()
        try:
            result = work()
        finally:
            new = remove_modules()
            sys.modules.update(before)

    def install() -> None:
        with _LOCK:
            remove_modules()
            sys.modules.update(new)

    return result, install


def build_judge(agent: Agent, lessons: Sequence[Memory]) -> Judge:
    """Import an agent's judge.py and make its judge, trained on `lessons`. Raises BadFleet."""
    return load_judge(
        Path(agent.folder), agent.charter, lessons, agent.release,
        takes_tasks=agent.judges_tasks,
    )  # fmt: skip


def load_judge(
    folder: Path,
    charter: Mapping[str, Any],
    lessons: Sequence[Memory],
    release: str | None = None,
    *,
    takes_tasks: bool = False,
) -> Judge:
    """Make the judge that a folder holds; `release` and what it raises as in `load_module`.

    With `takes_tasks` raises BadFleet for a judge of one turn, too.
    """
    found = getattr(load_module(folder, "judge", release), "Judge", None)
    where = f"{folder.name}/judge.py"
    if not (isinstance(found, type) and issubclass(found, Judge)):
        mend = "write class Judge(vedette.judging.Judge)"
        raise BadFleet("Judge is not a judge", where=where, mend=mend)
    if takes_tasks and found.judge_outcomes is Judge.judge_outcomes:
        what = "its agent takes tasks (work:), which take several turns, and it has one"
        raise BadFleet(what, where=where, mend="define judge_outcomes(self, briefing)")
    try:
        with convert_disk_errors(folder):
            return found(charter, lessons)
    except StoreFailed:
        raise
    except Exception as error:
        raise _code_error(folder, "judge", error) from error


def require_release(folder: Path, expected: str) -> None:
    """Raise BadFleet, with the code release-changed, if a folder's files are not a release's."""
    _require_digest(folder, digest_files(_read_folder(folder)), expected)


def _require_digest(folder: Path, release: str, expected: str) -> None:
    if release != expected:
        what = f"its files are not those of release {expected[:12]}, but {release[:12]}"
        mend = "start the fleet again, or `vedette agent release`"
        raise BadFleet(what, where=str(folder), mend=mend, code="release-changed")


def _ensure_package(folder: Path, expected: str | None) -> str:
    """Make sure that the agent's package stands for this folder, and release; return its name."""
    for finder in (_Finder, FormerFinder):
        if finder not in sys.meta_path:
            sys.meta_path.insert(0, finder)
    if PARENT_PACKAGE not in sys.modules:
        sys.modules[PARENT_PACKAGE] = _empty_package(PARENT_PACKAGE, [])
    package = f"{PARENT_PACKAGE}.{folder.name}"
    known = sys.modules.get(package)
    current = None if known is None else known.__dict__["__release__"]
    if expected is not None and current == (str(folder), expected):
        return package  # it was read and compared, and is not read again
    files = _read_folder(folder)
    release = digest_files(files)
    if expected is not None:
        _require_digest(folder, release, expected)
    if current == (str(folder), release):
        return package
    for module in [m for m in sys.modules if m == package or m.startswith(f"{package}.")]:
        del sys.modules[module]
    fresh = _empty_package(package, [str(folder)])
    fresh.__dict__["__release__"] = (str(folder), release)
    fresh.__dict__["__files__"] = {f"{folder}/{name}": data for name, data in files.items()}
    sys.modules[package] = fresh
    return package


def _read_folder(folder: Path) -> dict[str, bytes]:
    try:
        with convert_disk_errors(folder):
            return read_files(folder)
    except OSError as error:
        mend = "see who owns it"
        raise BadFleet(f"cannot be read: {error.strerror}", where=str(folder), mend=mend) from error


def _empty_package(name: str, path: list[str]) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = path
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__spec__.submodule_search_locations = path
    module.__package__ = name
    return module


def _code_error(folder: Path, name: str, error: Exception) -> BadFleet:
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
