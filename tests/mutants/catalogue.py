"""The catalogue of mutants: each a small change of the code that breaks one promise.

`promise_NN.toml` holds those of one promise, `tasks.toml` those of what tasks rest on: each of
these names a test of its own. A mutant replaces a text that stands exactly once in
one file; how that file moves on meanwhile is seen by `Mutant.apply`, which refuses a text that
stands nowhere or twice. Terms: DeMillo, Lipton, Sayward, "Hints on Test Data Selection" (1978).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent
PROMISES = ROOT / "tests" / "acceptance" / "promises"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One violation: which promise it breaks (0: none of them), how, and the text that becomes
    another. `test` is what kills it, where that is not the promise's own.
    """

    promise: int
    name: str
    breaks: str
    file: str
    find: str
    put: str
    test: str = ""

    @property
    def killer(self) -> str:
        """Return what is to fail, as pytest names it from the root."""
        return self.test or str(own_test(self.promise).relative_to(ROOT))

    def apply(self, text: str) -> str:
        """Return the file's text with the violation in it. Raises ValueError if it fits no more."""
        found = text.count(self.find)
        if found != 1:
            raise ValueError(f"{self.name}: its text stands {found} times in {self.file}")
        return text.replace(self.find, self.put)


def own_test(promise: int) -> Path:
    """Return the file of a promise's own test."""
    (path,) = PROMISES.glob(f"test_promise_{promise:02}_*.py")
    return path


def load() -> list[Mutant]:
    """Return all mutants, by promise and in the order of their files."""
    mutants = []
    for path in sorted(FOLDER.glob("promise_*.toml")):
        text = tomllib.loads(path.read_text(encoding="utf-8"))
        promise = int(path.stem.rpartition("_")[2])
        mutants += [Mutant(promise, **each) for each in text["mutant"]]
    return mutants


def load_tasks() -> list[Mutant]:
    """Return the mutants of tasks, in the order of their file."""
    text = tomllib.loads((FOLDER / "tasks.toml").read_text(encoding="utf-8"))
    return [Mutant(0, **each) for each in text["mutant"]]


def listed(mutants: list[Mutant]) -> str:
    """Return the catalogue as a table for people."""
    rows = [f"| {one.promise} | `{one.name}` | {one.breaks} |\n" for one in mutants]
    return "| Promise | Mutant | What it breaks |\n| --- | --- | --- |\n" + "".join(rows)
