"""The log book: a file with a line for each effect, which begins with the effect's key."""

from __future__ import annotations

from pathlib import Path

from vedette.sdk import Call, Outcome


def write(call: Call) -> Outcome:
    """Write a line on a page of the log book."""
    return _add(call, f"{call.args['page']}: {call.args['text']}")


def publish(call: Call) -> Outcome:
    """Publish a page of the log book."""
    return _add(call, f"{call.args['page']}: published")


def find(call: Call) -> Outcome | None:
    """Look whether the line of a key is there."""
    book = Path(call.target["path"], "lines")
    for line in book.read_text(encoding="utf-8").splitlines() if book.is_file() else []:
        key, _, text = line.partition(" ")
        if key == call.key:
            return Outcome("done", {"line": text})
    return None


def _add(call: Call, text: str) -> Outcome:
    with Path(call.target["path"], "lines").open("a", encoding="utf-8") as book:
        book.write(f"{call.key} {' '.join(text.split())}\n")
    return Outcome("done", {"line": text})
