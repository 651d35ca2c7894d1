"""Labels of secrecy: who may read a value. They only narrow on the way from source to sink.

After the readers of the decentralized label model (Myers, Liskov, SOSP 1997): what is made of
several values may be read by those alone who may read each of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct

# Who may read a value: addresses, domains (`@harbour.example`), `resource:TYPE`, `target:NAME`.
# None: everybody; the empty set: nobody.
Readers = frozenset[str] | None

PUBLIC: Readers = None

# In an attribute of an event, which cannot be empty.
_NOBODY = "-"
_READER = re.compile(r"[!-+.-~]{1,256}\Z")  # printable ASCII without comma, blank and a lone dash
MAX_READERS = 256
# In a row of the fleet's own, beside what a tool wrote there; no tool sees it.
ROW_READERS = "vedette.readers"


def meet_labels(*labels: Readers) -> Readers:
    """Return the meet of labels: who may read what was made of values that have them."""
    found: Readers = PUBLIC
    for label in labels:
        if label is not None:
            found = label if found is None else found & label
    return found


def is_within(label: Readers, other: Readers) -> bool:
    """Say whether all that `label` lets read may read what has the label `other`, too."""
    return other is None or (label is not None and label <= other)


def find_reader_fault(text: object) -> str:
    """Say why a text names no reader; "" if it does."""
    if not isinstance(text, str) or not _READER.match(text) or text == _NOBODY:
        return "a reader is 1 to 256 printable ASCII characters without blank and comma"
    if text != text.lower() and "@" in text:
        return "an address is written in lower case"
    return ""


def check_reader(text: str) -> str:
    """Return a text that names a reader. Raises ValueError with what and mend."""
    why = find_reader_fault(text)
    if why:
        raise ValueError(f"{text!r} names no reader: {why} | write for example @harbour.example")
    return text


def format_readers(label: frozenset[str]) -> str:
    """Return a label's readers as the text of an event's attribute."""
    return ",".join(sorted(label)) or _NOBODY


def parse_readers(text: str) -> frozenset[str]:
    """Return the label of readers that an attribute's text tells of. Raises ValueError."""
    if text == _NOBODY:
        return frozenset()
    found = text.split(",")
    if len(found) > MAX_READERS or any(map(find_reader_fault, found)):
        raise ValueError(f"is no list of at most {MAX_READERS} readers")
    return frozenset(found)


class ReaderRule(Struct, frozen=True):
    """A rule of events' labels: by patterns (fnmatch, case kept) of source and type."""

    source: str
    type: str
    readers: frozenset[str]


def event_readers(rules: Sequence[ReaderRule], source: str, type: str, readers: Readers) -> Readers:
    """Return who may read an event: those whom its own label and every rule that matches permit."""
    for rule in rules:
        if fnmatchcase(source, rule.source) and fnmatchcase(type, rule.type):
            readers = meet_labels(readers, rule.readers)
    return readers


# Roots of whose parts each has a label of its own.
_NUMBERED = ("memory", "outcome", "session")


class Labels(Struct, frozen=True):
    """The labels of one run: who may read what it has before it.

    `run` is the label of all that it has read, and so of what it gives bare. `places` has that of
    a root by its path: `event`, `row`, `memory/ID`, `outcome/0`, `session/0`; all else is public.
    """

    run: Readers
    places: Mapping[str, Readers]

    def readers_at(self, path: Sequence[str]) -> Readers:
        """Return who may read what stands at a path below the roots."""
        root = path[0]
        return self.places.get(f"{root}/{path[1]}" if root in _NUMBERED else root)


def argument_readers(record: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return who may read the arguments of a recorded action, as far as they are secret."""
    return {at: frozenset(readers) for at, readers in record.get("readers", {}).items()}


def unpack_row(row: Mapping[str, Any]) -> tuple[dict[str, Any], Readers]:
    """Return a tool's row in two: what it wrote, and its label, who may read that."""
    values = dict(row)
    readers = values.pop(ROW_READERS, None)
    return values, None if readers is None else frozenset(readers)


def pack_row(row: Mapping[str, Any], readers: Readers) -> dict[str, Any]:
    """Return a tool's row as it is kept: what it wrote, with its label, who may read that."""
    values, _ = unpack_row(row)
    return values if readers is None else {**values, ROW_READERS: sorted(readers)}
