"""What `vedette` says, asked in this process: for verbs that only look, or write a few files."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

import pytest

from vedette.cli import main


@dataclass(frozen=True)
class Said:
    """How a verb ended and what it said."""

    code: int
    out: str
    err: str


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
