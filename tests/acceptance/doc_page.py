"""Reads and executes what a page of docs shows: its console blocks, command by command.

In a block a line `$ …` is a command, given to a shell in the folder where the page is at that
moment. The lines below it are what it prints: each must be found, in this order, in what it does
print. `…` alone stands for anything left out. Times, durations and ids that hang on the moment
are compared as such and not by their value.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_LOOSE = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)"), "TIME"),
    (re.compile(r"\b\d+(?:[.,]\d+)* ?(?:us|ms|s|min|h|d)\b"), "LONG"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "DIGEST"),
    (re.compile(r"(?<![\w/])/\S*/"), "PATH/"),
)


@dataclass(frozen=True)
class Shown:
    """One command of a page with what the page says that it prints."""

    line: int
    command: str
    prints: tuple[str, ...]


@dataclass(frozen=True)
class CommandOutput:
    """What a command did: seconds on the clock, seconds of CPU with all its children."""

    shown: Shown
    code: int
    out: str
    wall_s: float
    cpu_s: float


def commands(page: Path) -> list[Shown]:
    """Return the commands of all console blocks of a page, in order."""
    found: list[Shown] = []
    inside, command, line, prints = False, "", 0, list[str]()

    def keep() -> None:
        if command:
            found.append(Shown(line, command, tuple(prints)))

    for number, text in enumerate(page.read_text("utf-8").splitlines(), 1):
        if text.startswith("```"):
            if inside:
                keep()
                command, prints = "", []
            inside = text == "```console"
        elif inside and text.startswith("$ "):
            keep()
            command, line, prints = text[2:], number, []
        elif inside and command.endswith("\\"):
            command = command[:-1] + text.strip()
        elif inside:
            prints.append(text)
    return found


def loose(text: str) -> str:
    """Return a line with what hangs on the moment made alike."""
    for pattern, word in _LOOSE:
        text = pattern.sub(word, text)
    return " ".join(text.split())


def missing(shown: Shown, out: str) -> str | None:
    """Return the first line that the page shows and the command did not print; None if none."""
    lines = iter([loose(line) for line in out.splitlines()])
    for wanted in shown.prints:
        if wanted.strip() in ("", "…"):
            continue
        start, cut, _ = loose(wanted).partition("…")
        begins = start.rstrip()
        if not any(line.startswith(begins) if cut else line == start for line in lines):
            return wanted
    return None


@dataclass
class Shell:
    """A shell that remembers its folder, with nothing of the tester's environment."""

    folder: Path
    environ: Mapping[str, str]

    def give(self, shown: Shown) -> CommandOutput:
        """Carry out one command and stay where it leads."""
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        script = f"{shown.command}\ncode=$?\npwd > {self._where}\nexit $code"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=dict(self.environ),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=100, check=False,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.folder = Path(self._where.read_text("utf-8").strip())
        return CommandOutput(shown, done.returncode, done.stdout, time.monotonic() - began, cpu)

    @property
    def _where(self) -> Path:
        return Path(self.environ["TMPDIR"]) / "where"


def shell(folder: Path, programs: Path, tmp: Path) -> Shell:
    """Return a shell that finds the programs of a folder first, in a time zone of its own."""
    tmp.mkdir(exist_ok=True)
    environ = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp), "LANG": "C.UTF-8",
        "TMPDIR": str(tmp), "COLUMNS": "80", "TERM": "dumb", "TZ": "UTC",
    }  # fmt: skip
    return Shell(folder, environ)


_CUT = re.compile(r"(?<![\w-])([a-z]+_[0-9a-f]*|--digest )…")


def filled(shown: Shown, seen: str) -> Shown:
    """Return a command with each id and digest that is cut short as it was printed last.

    Raises ValueError if nothing of the kind was printed.
    """

    def whole(cut: re.Match[str]) -> str:
        printed = re.findall(rf"(?<![\w-]){re.escape(cut[1])}[0-9a-f]+", seen)
        if not printed:
            raise ValueError(f"line {shown.line}: no {cut[0]} was printed before")
        return str(printed[-1])

    return Shown(shown.line, _CUT.sub(whole, shown.command), shown.prints)
