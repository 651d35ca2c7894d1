"""Every error has a stable code, and every code is taught."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import vedette
from vedette.domain.base.errors import VedetteError
from vedette.domain.ports.tokens import TokenErrorCode
from vedette.interfaces.cli.error_codes import EXPLANATIONS

SRC = Path(vedette.__file__).parent
ABSTRACT = {"error"}
# What another program's API names; our own codes are all in `LESSONS`.
IMPORTED = ("vedette.domain.base.errors", "vedette.domain.run", "vedette.domain.ports.tokens",
            "vedette.adapters.reasoners.workers.pending_call")  # fmt: skip


def all_kinds(kind: type[VedetteError]) -> set[type[VedetteError]]:
    return {kind, *(deeper for child in kind.__subclasses__() for deeper in all_kinds(child))}


def codes_in_use() -> set[str]:
    """Return the codes of all classes and those given where an error or a problem is made."""
    found = set(get_args(TokenErrorCode))
    for name in IMPORTED:
        importlib.import_module(name)
    ours = (kind for kind in all_kinds(VedetteError) if kind.__module__.startswith("vedette."))
    for kind in ours:
        if isinstance(vars(kind).get("code"), str):
            found.add(kind.code)
    for module in pkgutil.walk_packages([str(SRC)], "vedette."):
        path = SRC.parent.joinpath(*module.name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.is_file():
            found.update(re.findall(r'\bcode="([a-z-]+)"', file.read_text("utf-8")))
    return found - ABSTRACT


def test_every_code_is_taught() -> None:
    assert codes_in_use() <= EXPLANATIONS.keys()


def test_a_code_without_a_lesson_is_found() -> None:
    class Unheard(VedetteError):
        __module__ = "vedette.unheard"  # else it is one of the tests' own
        code = "unheard-of"

    try:
        assert codes_in_use() - EXPLANATIONS.keys() == {"unheard-of"}
    finally:
        Unheard.code = "error"


@pytest.mark.parametrize("code", sorted(EXPLANATIONS))
def test_a_lesson_says_what_why_and_the_mend(code: str) -> None:
    lesson = EXPLANATIONS[code]
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code)
    for text in (lesson.meaning, lesson.cause, lesson.mend):
        assert text.strip().endswith((".", "`"))
        assert len(text) < 300


def test_codes_on_a_page_of_eighty_columns() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vedette", "explain", "--error"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert all(code in done.stdout for code in EXPLANATIONS)


def test_an_old_python_is_told_which_one_is_needed() -> None:
    code = "import sys; sys.version_info = (3, 9, 18, 'final', 0); import vedette"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error[wrong-python]: this is Python 3.9, vedette needs 3.11")
    assert len(done.stderr.splitlines()) == 1
