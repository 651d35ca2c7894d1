"""The PolicyStage on regorus: reads a policy folder, tries it in a throw-away process, loads it."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import os
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

import vedette
from vedette.domain.base import machine
from vedette.domain.base.errors import BadPolicy, NoPolicy
from vedette.domain.bundle import Bundle, Finding
from vedette.policy.bundle_data import DATA_NAMES

if TYPE_CHECKING:
    from vedette.domain.ports.policy_engine import PolicyEngine

MAX_FILE_BYTES = 1 << 20
MAX_BYTES = 8 << 20
MAX_FILES = 2000
DEADLINE_S = 10.0

# What editors put beside the file that is being written.
_EDITORS = ("~", ".swp", ".swo", ".swx", ".tmp", ".bak", ".orig", ".rej", ".part")


def read_bundle(folder: Path) -> Bundle:
    """Read the Rego and data files of a policy folder, as they lie on disk, for a stage to try.

    Taken are `.manifest`, `*.rego`, `data.yaml` and `data.json`; hidden files and folders, what
    editors leave beside a file, and everything else are passed over. Raises BadPolicy for what
    would be taken and cannot be: links that lead out of the folder or nowhere, files over the
    size limits, text that is not UTF-8, a folder without policy.
    """
    if not folder.is_dir():
        raise NoPolicy(
            "there is no such policy folder",
            where=str(folder),
            mend="bring it back, or correct [content] policies in vedette.toml",
        )
    root = folder.resolve()
    files: dict[str, bytes] = {}
    total = 0
    for path in _list_files(folder):
        name = path.relative_to(folder).as_posix()
        raw = _read(path, name, root)
        total += len(raw)
        if total > MAX_BYTES or len(files) >= MAX_FILES:
            mend = f"a bundle holds at most {MAX_FILES} files and {MAX_BYTES >> 20} MiB"
            raise BadPolicy("the policy folder is too large", where=str(folder), mend=mend)
        files[name] = raw
    if not any(name.endswith(".rego") for name in files):
        raise BadPolicy("no *.rego in the policy folder", where=str(folder))
    return Bundle.of(files)


def _list_files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for at, folders, names in os.walk(folder):
        here = Path(at)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name == ".manifest" and here == folder:
                found.append(here / name)
            elif name.startswith((".", "#")) or name.endswith(_EDITORS):
                continue
            elif name == "data.yml":
                where = (here / name).relative_to(folder).as_posix()
                raise BadPolicy("data.yml is not read", where=where, mend="rename it data.yaml")
            elif name.endswith(".rego") or name in DATA_NAMES:
                found.append(here / name)
    return found


def _read(path: Path, name: str, root: Path) -> bytes:
    try:
        target = path.resolve(strict=True)
        if not target.is_relative_to(root):
            # Passing it over would silently drop its rules.
            mend = "copy the file into the folder"
            raise BadPolicy("a link leads out of the policy folder", where=f"{name}:1", mend=mend)
        before = target.stat()
        if not stat.S_ISREG(before.st_mode):
            raise BadPolicy("not a regular file", where=f"{name}:1")
        if before.st_size > MAX_FILE_BYTES:
            raise BadPolicy(f"larger than {MAX_FILE_BYTES >> 20} MiB", where=f"{name}:1")
        raw = target.read_bytes()
        after = target.stat()
    except (OSError, RuntimeError) as error:
        mend = "restore it, or try again if it is being written"
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise BadPolicy(f"cannot be read: {why}", where=f"{name}:1", mend=mend) from error
    if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        raise BadPolicy("is being written", where=f"{name}:1", mend="try again")
    _check_text(raw, name)
    return raw


def _check_text(raw: bytes, name: str) -> None:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadPolicy("not UTF-8", where=f"{name}:{line}", mend="save it as UTF-8") from error
    if b"\0" in raw:
        line = raw[: raw.index(b"\0")].count(b"\n") + 1
        raise BadPolicy("holds a NUL", where=f"{name}:{line}", mend="the file may be half-written")


# --- a trial ----------------------------------------------------------------------------------

# What the trial imports that is not in the standard library.
_NEEDED = ("msgspec", "orjson", "regorus", "yaml")
_BOOT = (
    "import sys; sys.path += sys.argv[1:]; "
    "from vedette.adapters.policy_engines.regorus.trial import main; sys.exit(main())"
)

TrialResult = tuple[int, bytes, bytes]


class Trial:
    """The throw-away process in which regorus tries one bundle (`trial.py`), started at once.

    The process is started without `site`: of what is installed it imports a few modules, and
    finding them again would cost it as much as the trial of a small bundle.

    Without `compare` the evaluators are not compared. `result` becomes its exit code (negative: the
    signal it died of), its output and its errors.
    """

    def __init__(self, bundle: Bundle, *, compare: bool = True) -> None:
        self.result: Future[TrialResult] = Future()
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            # -I: nothing of the environment or of the current folder is imported from.
            [sys.executable, "-I", "-S", *_bytecode(), "-c", _BOOT, *_paths()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=machine.program_environment() | {"RUST_BACKTRACE": "0", "RUST_LIB_BACKTRACE": "0"},
            start_new_session=True,
        )
        files = {path: base64.b64encode(raw).decode() for path, raw in bundle.files.items()}
        request = orjson.dumps({"compare": compare, "files": files})
        watch = threading.Thread(target=self._watch, args=(request,), name="policy trial")
        watch.daemon = True
        watch.start()

    def _watch(self, request: bytes) -> None:
        output, errors = self._process.communicate(request)
        # Whoever gave up on it is not told.
        with contextlib.suppress(Exception):
            self.result.set_result((self._process.returncode, output, errors))

    def kill(self) -> None:
        """Kill the process and what it started, if they still run."""
        if self._process.poll() is None:
            # It leads a group of its own (start_new_session), so this reaches nobody else.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _bytecode() -> list[str]:
    """Return the options about bytecode of this process, which -I would not find out by itself."""
    options = ["-B"] if sys.dont_write_bytecode else []
    prefix = sys.pycache_prefix
    return [*options, "-X", f"pycache_prefix={prefix}"] if prefix else options


@cache
def _paths() -> list[str]:
    """Return the folders that hold this package and what the trial needs beside it."""
    found = [str(Path(vedette.__file__).parent.parent)]
    for name in _NEEDED:
        spec = importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or ()) if spec else []
        found += [str(Path(place).parent) for place in places]
    return list(dict.fromkeys(found))


# --- the stage --------------------------------------------------------------------------------


class SubprocessStage:
    """The stage that tries bundles on regorus in a subprocess, where a crash harms nobody."""

    def __init__(self, *, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._admitted: dict[str, Any] = {}
        self._trials: dict[tuple[str, bool], Trial] = {}

    def begin_trial(self, bundle: Bundle, *, compare: bool = True) -> None:
        """Begin to try a bundle that will be asked about, while other things are done.

        `compare` is for a trial by `try_out`; without it, it is one by `try_rules`.
        """
        key = bundle.digest, compare
        if key not in self._trials:
            self._trials[key] = Trial(bundle, compare=compare)

    def cancel_trials(self) -> None:
        """End the trials that were begun and that nobody asked about."""
        while self._trials:
            self._trials.popitem()[1].kill()

    async def try_out(self, bundle: Bundle) -> list[Finding]:
        """Return what is wrong with the bundle; an empty list admits it.

        A crash, a missed deadline and an answer that cannot be read are findings too.
        """
        return await self._run_trial(bundle, compare=True)

    async def try_rules(self, bundle: Bundle) -> list[Finding]:
        """Return what is wrong with the bundle, but do not compare regorus' two evaluators.

        For whoever compares what `load` makes with the engine that is to decide.
        """
        return await self._run_trial(bundle, compare=False)

    def branch_requests(self, bundle: Bundle) -> list[tuple[str, object]]:
        """Return named questions that take each branch of a bundle's rules. Raises BadPolicy."""
        from vedette.adapters.policy_engines.regorus.branch_inputs import branch_requests
        from vedette.adapters.policy_engines.regorus.engine import InterpreterEngine
        from vedette.adapters.policy_engines.regorus.syntax import read_modules
        from vedette.policy.bundle_data import mount
        from vedette.policy.golden_requests import golden_requests

        data = mount(bundle.files)
        modules = read_modules(InterpreterEngine(bundle, data).syntax_trees())
        return branch_requests(modules, data, golden_requests(data))

    async def _run_trial(self, bundle: Bundle, *, compare: bool) -> list[Finding]:
        # Imported here: a start begins its trial first of all, and what asks for it comes later.
        import asyncio

        trial = self._trials.pop((bundle.digest, compare), None) or Trial(bundle, compare=compare)
        try:
            async with asyncio.timeout(self._deadline_s):
                code, output, errors = await asyncio.wrap_future(trial.result)
        except TimeoutError:
            what = f"the trial took longer than {self._deadline_s:g} s"
            mend = "offer it again if the machine was busy, or look for a rule that multiplies data"
            return [Finding("policies", 1, what, mend, verdict=False)]
        finally:
            trial.kill()
        findings, data = _read_answer(code, output, errors)
        if not findings:
            # Reading the data files again would hold up the fleet when they are long.
            self._admitted = {bundle.digest: data}
        return findings

    def load(self, bundle: Bundle) -> PolicyEngine:
        """Make an engine of an admitted bundle. Raises BadPolicy.

        A bundle that was not admitted may crash this process.
        """
        from vedette.adapters.policy_engines.regorus.engine import RegorusEngine

        return RegorusEngine(bundle, self._admitted.get(bundle.digest))


def _read_answer(code: int, output: bytes, errors: bytes) -> tuple[list[Finding], Any]:
    lines = output.splitlines()
    try:
        last = orjson.loads(lines[-1]) if lines else {}
        if code == 0 and "findings" in last:
            return [Finding(*each) for each in last["findings"]], last["data"]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        last = {}
    file, _, line = str(last.get("at", "")).partition(":")
    step = last.get("step", "starting")
    how = f"signal {_signal(-code)}" if code < 0 else f"exit code {code}"
    words = errors.decode("utf-8", "replace").strip().splitlines()
    why = f": {words[-1][:200]}" if words else ""
    what = f"the trial ended with {how} while {step}{why}"
    return [Finding(file or "policies", int(line) if line.isdigit() else 1, what)], {}


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
