"""The Python source that a partial evaluation writes, and the values that it tells apart.

A value is known now or computed by source. What follows a value is a function of it (a
continuation), which says how it ended. NEVER: nothing that was written goes on to what follows.
ALWAYS: it surely does. MAYBE: at run time it is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from vedette.adapters.policy_engines.regorus.residual import values
from vedette.adapters.policy_engines.regorus.residual.values import (
    TYPE_NAMES,
    UNDEFINED,
    GiveWay,
)

# Steps of one evaluation: the shipped policy takes 2,200. What multiplies data is not unrolled.
MAX_STEPS = 20_000
# Loops of one body within one another, each over MAX_ELEMENTS at most; a function has none.
MAX_LOOP_DEPTH = 2
# What a residual's rules may cost the full engine at most, in steps of its Wasm: half of what one
# question may take. Reckoned as source is written, not proved. Measured of OPA 1.3's Wasm: some 100
# steps for an expression, 10 a byte for what is hashed, 27 for a comparison of texts (both stand in
# one question), up to 170 for what else is done with one, 250 for an element that is looked at; in
# each of as many rounds as the loops around it may have.
MAX_WORK = 50_000_000
STEP_WORK, COMPARISON_WORK, _BYTE_WORK, ELEMENT_WORK = 150, 27 * 2_048, 64, 250
_HASH_WORK = 10 * values.MAX_KEY
_ROUNDS = (1, values.MAX_ROUNDS, values.MAX_ROUNDS * values.MAX_INNER)

NEVER, MAYBE, ALWAYS = "never", "maybe", "always"
Path = tuple[str, ...]


class Unsupported(ValueError):
    """The rules have a form that no residual is made of."""


class Known(Struct, frozen=True):
    """A value that is known now."""

    value: Any


class Code(Struct, frozen=True):
    """A value that Python source computes; `kind` is its type in Rego's word, if that is known."""

    text: str
    kind: str | None = None


class QuestionPart(Code, frozen=True):
    """An object of the question of which something is known; `path` is where it stands."""

    path: Path = ()


Value = Known | Code
Then = Callable[[Any], str]


def kind_of(value: Value) -> str | None:
    """Return the type of a value in Rego's word, None if it is not known."""
    return TYPE_NAMES[values.rank(value.value)] if isinstance(value, Known) else value.kind


class SourceWriter:
    """Writes the body of one Python function at a time; `constants` are what all of them name."""

    def __init__(self) -> None:
        self.constants: list[Any] = []
        self.lines: list[str] = []
        self.depth = 1
        self._number = self._steps = 0
        # Of the function that is being written, and what is written of others.
        self.loops = self.work = self.written_work = 0

    def text(self, value: Value) -> str:
        """Return the Python source of a value."""
        return self.constant(value.value) if isinstance(value, Known) else value.text

    def constant(self, value: Any) -> str:
        if value is None or type(value) in (bool, int, str):
            return repr(value)
        if value is UNDEFINED:
            return "UNDEFINED"
        self.constants.append(value)
        return f"K{len(self.constants) - 1}"

    def added(self, name: str, value: Value) -> str:
        """Return the source that adds a value to a set; texts are their own identity."""
        text = self.key(value)
        is_text = kind_of(value) == "string"
        return f"{name}[{text}] = {text}" if is_text else f"{name}.add({text})"

    def key(self, value: Value) -> str:
        """Return the source of an element of a set, or of an index: the engine hashes it."""
        text = self.text(value)
        if isinstance(value, Known) or kind_of(value) in ("number", "boolean"):
            return text
        self.add_work(_HASH_WORK if self.loops else COMPARISON_WORK)
        return f"near_key({text})" if self.loops else text

    def named(self, text: str, kind: str | None, then: Then) -> str:
        name = self.name()
        self.write(f"{name} = {text}")
        return then(Code(name, kind))

    def defined(self, text: str, kind: str | None, then: Then) -> str:
        """Name a value that may be undefined, and go on where it is not."""
        name = self.name()
        self.write(f"{name} = {text}")
        return self.where(f"{name} is not UNDEFINED", lambda: then(Code(name, kind)))

    def where(self, test: str, then: Callable[[], str]) -> str:
        mark = len(self.lines)
        self.write(f"if {test}:")
        self.depth += 1
        status = then()
        self.depth -= 1
        return self.end_block(mark, status)

    def end_block(self, mark: int, status: str) -> str:
        """End a block; one that leads nowhere is taken out."""
        if status == NEVER:
            del self.lines[mark:]
            return NEVER
        return MAYBE

    def write(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    def name(self) -> str:
        self._number += 1
        return f"t{self._number}"

    def count_step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise Unsupported("too much for a function")
        self.add_work(STEP_WORK)

    def count_operations(self, many: int = 1) -> None:
        """Count operations on texts; within two loops there are none, nor of other values."""
        if self.loops == MAX_LOOP_DEPTH:
            raise Unsupported("more than a comparison within two loops")
        self.add_work(many * _BYTE_WORK * (values.MAX_LOOP_TEXT if self.loops else values.MAX_TEXT))

    def count_membership(self) -> None:
        """Count the comparisons of a membership, by what it may have in a loop of such a depth."""
        many = (values.MAX_ELEMENTS, values.MAX_LOOP_ELEMENTS, values.MAX_INNER)[self.loops]
        text = values.MAX_LOOP_TEXT if self.loops else values.MAX_TEXT
        self.add_work(many * ELEMENT_WORK + min(27 * many * text, 2 * COMPARISON_WORK))

    def add_work(self, steps: int) -> None:
        """Add what one round costs, for as many as the loops around it may have."""
        self.work += steps * _ROUNDS[self.loops]
        if self.written_work + self.work > MAX_WORK:
            raise Unsupported("rules that may cost more than the engine's steps")

    def fold(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except GiveWay:
            raise Unsupported("what is not sure of what is known") from None
