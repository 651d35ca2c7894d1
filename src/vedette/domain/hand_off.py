"""A hand-off: what one context of a task's model leaves to the next.

Goal and done conditions are no part of it: these are the engine's to tell. What the model wrote is
data to the next context, as a stranger's words are; what the engine makes of the ledger takes its
place where there is none, or none that is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, to_builtins

from vedette.domain.base.errors import BadProposal

# Of its texts together, in characters: a context begins with them, and has to have room beside.
MAX_CHARS = 4000
# So many turns are told in lines beside a model's own words, and without any.
TURNS_BESIDE_WORDS, TURNS_ALONE = 8, 24
# Why the engine's own is told.
UNANSWERED, WITHDRAWN, REOPENED, REVISED = "unanswered", "withdrawn", "reopened", "revised"

_LISTS = ("decisions", "artefacts", "open_questions")


class HandOffWords(Struct, frozen=True):
    """What a model said at the end of a context, its turn `turn`."""

    turn: int
    decisions: tuple[str, ...] = ()
    artefacts: tuple[str, ...] = ()
    open_questions: tuple[str, ...] = ()
    next_step: str = ""

    def texts(self) -> tuple[str, ...]:
        """Return all that it says, in order."""
        return (*self.decisions, *self.artefacts, *self.open_questions, self.next_step)


class HandOff(Struct, frozen=True):
    """What a context is opened with beside the task.

    `turn` is the last one before it; `by` says who made it, and `why` that it is the engine's: a
    rule that the model's broke, or one of the constants above. `words` are the last that a model
    said and that were taken, if they may be told; `last_turns` has the turns before, in lines.
    """

    turn: int
    by: Literal["model", "engine"]
    why: str = ""
    words: HandOffWords | None = None
    last_turns: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as a briefing has it, and the turn that is told it."""
        made: dict[str, Any] = to_builtins(self)
        return {name: value for name, value in made.items() if value or name == "turn"}


def read_words(turn: int, args: Mapping[str, Any]) -> HandOffWords:
    """Return a model's hand-off of its arguments. Raises BadProposal for one that is too long."""
    words = HandOffWords(
        turn, **{name: tuple(args.get(name, ())) for name in _LISTS}, next_step=args["next_step"]
    )
    size = sum(map(len, words.texts()))
    if size > MAX_CHARS:
        what = f"a hand-off has at most {MAX_CHARS} characters, this has {size}"
        raise BadProposal(what, mend="say less of what the ledger knows")
    return words


def read_hand_off(told: Mapping[str, Any]) -> HandOff | None:
    """Return the hand-off that `to_json` told of; None of an empty one."""
    if not told:
        return None
    words = told.get("words")
    return HandOff(
        told["turn"], told.get("by", "engine"), told.get("why", ""),
        None if words is None else _words_of(words), tuple(told.get("last_turns", ())),
    )  # fmt: skip


def _words_of(told: Mapping[str, Any]) -> HandOffWords:
    lists: dict[str, Sequence[str]] = {name: tuple(told[name]) for name in _LISTS}
    return HandOffWords(told["turn"], **lists, next_step=told["next_step"])  # type: ignore[arg-type]
