"""A quiz for new readers: in which room of src/vedette does each of these definitions lie?

`python -m tools.which_room --seed 13` prints public definitions, drawn at random, by name and first
line of their docstring, and the rooms to choose from; with `--answers` it prints where they lie. A
name that several rooms define is not asked, nor one whose line names a module: it gives the answer.
"""

from __future__ import annotations

import argparse
import ast
import functools
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import vedette

PACKAGE = Path(vedette.__file__).parent
QUESTIONS = 20


class Definition(NamedTuple):
    """A public class or function of a module, and the first line of its docstring."""

    name: str
    about: str
    room: str
    module: str


def rooms() -> dict[str, str]:
    """Return the rooms, each with the first line of its docstring."""
    found = {path.parent.name: path for path in PACKAGE.glob("*/__init__.py")}
    return {name: _first_line(ast.parse(path.read_text("utf-8"))) for name, path in found.items()}


@functools.cache
def definitions() -> tuple[Definition, ...]:
    """Return what may be asked, in the order of the tree."""
    found = []
    for path in sorted(PACKAGE.glob("*/**/*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        module = ".".join(part for part in ("vedette", *parts) if part != "__init__")
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                about = _first_line(node)
                if about and not node.name.startswith("_") and "vedette." not in about:
                    found.append(Definition(node.name, about, parts[0], module))
    homes = Counter(name for name, _ in {(each.name, each.room) for each in found})
    return tuple(each for each in found if homes[each.name] == 1)


def draw(seed: int) -> list[Definition]:
    """Return the definitions that the quiz of a seed asks about: the same ones each time."""
    return random.Random(seed).sample(definitions(), QUESTIONS)  # noqa: S311


def _first_line(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a quiz, or its answers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="which quiz")
    parser.add_argument("--answers", action="store_true", help="print where the definitions lie")
    options = parser.parse_args(arguments)
    questions = draw(options.seed)
    if options.answers:
        for number, each in enumerate(questions, start=1):
            print(f"{number:2}. {each.room:<12} {each.module}:{each.name}")
        return
    print("In which room does each of these lie?\n")
    for number, each in enumerate(questions, start=1):
        print(f"{number:2}. {each.name}\n    {each.about}")
    print("\nRooms:\n")
    for room, about in sorted(rooms().items()):
        print(f"    {room:<12} {about}")


if __name__ == "__main__":
    main()
