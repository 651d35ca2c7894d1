"""What `vedette` says: asked in this process, for verbs that only look or write a few files; or in
a process of its own, for whatever opens a store to write.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vedette.interfaces.cli import main

ROOT = Path(__file__).resolve().parents[1]
START = (sys.executable, "-c", "from vedette.interfaces.cli import main; main()")
_OURS = ("VEDETTE", "COV_", "PYTEST")


@dataclass(frozen=True)
class Said:
    """How a verb ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return what it said with --json."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """Return the error that it said with --json."""
        found: dict[str, Any] = json.loads(self.err)["error"]
        return found


def environment(**more: str) -> dict[str, str]:
    """Return where a process of this checkout runs: with nothing that the tests' own was given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "TERM": "dumb", **more}


def vedette(folder: Path, *arguments: str, **more: str) -> Said:
    """Run a verb in a folder, as a process of its own; no error may be a bug of ours."""
    done = subprocess.run(
        [*START, *arguments], cwd=folder, env=environment(**more), capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return Said(done.returncode, done.stdout, done.stderr)


def said(folder: Path, *arguments: str) -> Said:
    """Run a verb in a folder; no error may be a bug of ours."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    assert "Traceback" not in err.getvalue(), err.getvalue()
    return Said(ended.value.code, out.getvalue(), err.getvalue())
