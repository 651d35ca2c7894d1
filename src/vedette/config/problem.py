"""A Problem: one thing wrong with a file of the fleet, where it stands and how it is mended."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from vedette.domain.base.errors import BadFleet


class Problem(Struct, frozen=True):
    """One finding of `check`. `line` counts from 1; 0 means the file as a whole.

    `field` is a path into the file (`tools[1].settles`), empty where there is none. A `warning`
    is worth reading but does not keep the fleet from starting. `code` says what kind it is of,
    for `vedette explain --error`.
    """

    file: str
    line: int
    field: str
    what: str
    mend: str = ""
    warning: bool = False
    code: str = "bad-fleet"

    @property
    def where(self) -> str:
        """Return file, line and field as one text, as far as they are known."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.field}" if self.field else place

    def __str__(self) -> str:
        kind = "warning: " if self.warning else ""
        return f"{self.where}: {kind}{self.what}" + (f" ({self.mend})" if self.mend else "")

    def to_json(self) -> dict[str, str | int | bool]:
        """Return the problem as the object that `--json` prints."""
        return {
            "file": self.file,
            "line": self.line,
            "field": self.field,
            "what": self.what,
            "mend": self.mend,
            "warning": self.warning,
            "code": self.code,
        }


def field_path(path: Sequence[str | int]) -> str:
    """Write a path into a document the way a person points at it: `tools[1].settles`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def find_nearest(word: str, known: Sequence[str]) -> str | None:
    """Return the known word that a file's `word` was probably meant to be."""
    from difflib import get_close_matches

    found = get_close_matches(word, known, n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return the mend for a name that is not known: the nearest one, else all there are."""
    nearest = find_nearest(word, known)
    if nearest:
        return f"did you mean {nearest!r}?"
    return f"there are: {', '.join(sorted(known))}" if known else "there are none"


def sort_problems(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems of a fleet's files by file and line, each only once."""
    return sorted(dict.fromkeys(problems), key=lambda p: (p.file, p.line, p.field, p.what))


def raise_first_error(problems: Sequence[Problem]) -> None:
    """Raise BadFleet with the first error among `problems`, and how many more there are."""
    errors = [problem for problem in problems if not problem.warning]
    if not errors:
        return
    first = errors[0]
    more = len(errors) - 1
    what = f"{first.what}; and {more} more, see `vedette check`" if more else first.what
    raise BadFleet(what, where=first.where, mend=first.mend or None, code=first.code)
