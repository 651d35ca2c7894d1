"""A Trial: the throw-away process in which one bundle is tried, from its start to its end.

The process is started without `site`: of what is installed it imports six modules, and finding
them again would cost it as much as the trial of a small bundle.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from functools import cache
from pathlib import Path

import orjson

import vedette
from vedette.domain.bundle import Bundle

# What the trial imports that is not in the standard library.
_NEEDED = ("orjson", "regorus", "yaml")
_BOOT = (
    "import sys; sys.path += sys.argv[1:]; "
    "from vedette.adapters.policy_engines.regorus.trial import main; sys.exit(main())"
)

TrialResult = tuple[int, bytes, bytes]


class Trial:
    """One trial, on its way as soon as it is made.

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
            env=_environment(),
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
    """Return what this process was told about bytecode, which -I would not find out by itself."""
    options = ["-B"] if sys.dont_write_bytecode else []
    return (
        [*options, "-X", f"pycache_prefix={sys.pycache_prefix}"] if sys.pycache_prefix else options
    )


@cache
def _paths() -> list[str]:
    """Return the folders that hold this package and what the trial needs beside it."""
    found = [str(Path(vedette.__file__).parent.parent)]
    for name in _NEEDED:
        spec = importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or ()) if spec else []
        found += [str(Path(place).parent) for place in places]
    return list(dict.fromkeys(found))


def _environment() -> dict[str, str]:
    """Return what a Python needs to start; no secret of this process is among it."""
    kept = ("PATH", "LANG", "LC_ALL", "TMPDIR")
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "RUST_BACKTRACE": "0",
        "RUST_LIB_BACKTRACE": "0",
    }
