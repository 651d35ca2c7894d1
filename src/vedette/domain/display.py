"""Displays: what of an event people are shown before they answer for what comes of it.

A display says, for events of a type, where title, who, when, up to five named fields and the text
stand. What is shown is a pure function of the event and its display, cut to what a person reads.
Nothing is without one: of a type that nobody declared the envelope and the first values are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadProposal
from vedette.domain.event import CALL_TYPE, CORRECTION_TYPE, TICK_TYPE, UNDO_TYPE
from vedette.domain.origin import Ref, Roots, resolve

# How many fields a display names; how much of a value and of the text is shown.
MAX_FIELDS = 5
VALUE_CHARS = 200
TEXT_LINES = 6
TEXT_CHARS = 600

# Under which name a fleet keeps the displays of its settings with the record, for whoever reads it.
DISPLAYS_KEY = "displays"

# What people wrote is longer than this, or has lines; a value is shorter.
_PROSE_CHARS = 80
_MAX_LEAVES = 200
_MAX_DEPTH = 3


class Display(Struct, frozen=True):
    """The JSON Pointers to what people are shown of an Event, as /data/from.

    `type` and `source` are patterns (fnmatch) of the events it is for; `fields` are pointers by
    the names that they are shown under, in order.
    """

    type: str
    title: str = "/subject"
    who: str = "/source"
    when: str = "/time"
    fields: Mapping[str, str] = field(default_factory=dict)
    text: str | None = None
    source: str = "*"

    def to_json(self) -> dict[str, Any]:
        """Return the display as plain data, its fields in their order."""
        return {**asdict(self), "fields": [list(one) for one in self.fields.items()]}


_ALERT = Display(
    "alert.*",
    title="/data/labels/alertname",
    who="/source",
    fields={
        "status": "/data/status",
        "severity": "/data/labels/severity",
        "instance": "/data/labels/instance",
        "summary": "/data/annotations/summary",
    },
    text="/data/annotations/description",
    source="alertmanager:*",
)

# The types that our own sources emit: maildir and imap; csv, prometheus and host; alertmanager;
# schedules, undo and corrections. Rows, brokers and HTTP bring types of their own: [[displays]].
BUILT_IN: tuple[Display, ...] = (
    Display(
        "mail.received",
        title="/data/subject",
        who="/data/from",
        fields={
            "name": "/data/from_name",
            "reply to": "/data/reply_to",
            "to": "/data/to",
            "cc": "/data/cc",
            "attachments": "/data/attachments",
        },
        text="/data/text",
    ),
    Display("metric.point", fields={"value": "/data/value"}),
    _ALERT,
    Display(TICK_TYPE, fields={"nominal": "/data/nominal"}, source="vedette:*"),
    Display(
        CALL_TYPE,
        title="/data/tool",
        who="/data/caller",
        fields={"arguments": "/data/args"},
        source="vedette:*",
    ),
    Display(
        UNDO_TYPE,
        title="/data/inverse",
        who="/extensions/vedetteprincipal",
        fields={"takes back": "/data/tool", "effect": "/data/effect", "run": "/data/run"},
        text="/extensions/vedettereason",
        source="vedette:*",
    ),
    Display(
        CORRECTION_TYPE,
        title="/data/should",
        who="/data/by",
        fields={"was": "/data/was", "agent": "/data/agent", "run": "/data/run"},
        text="/data/note",
        source="vedette:*",
    ),
)


def find_display(event: Mapping[str, Any], declared: Sequence[Display] = ()) -> Display:
    """Return the display of an event: the first that is declared for it, ours, or one made of it.

    `event` is the body of its acceptance (`Event.payload`).
    """
    for display in (*declared, *BUILT_IN):
        if fnmatchcase(event["type"], display.type) and fnmatchcase(
            event["source"], display.source
        ):
            return display
    return _default_display(event)


def show_event(event: Mapping[str, Any], display: Display) -> dict[str, Any]:
    """Return what a Display shows people of an event, as plain data.

    `outside` is false for what the engine itself thought of: a tick, an undo. Each part has its
    `value` as text, whether its source vouched for it (`trusted`), and how many characters `more`
    there are; what is not there is None, or not among the fields.
    """
    part = _EventParts(event)
    shown = {name: part.value(getattr(display, name)) for name in ("title", "who", "when")}
    fields = [(name, part.value(pointer)) for name, pointer in display.fields.items()]
    return {
        "type": event["type"],
        "source": event["source"],
        "outside": not _is_our_own(event),
        **shown,
        "fields": [{"name": name, **found} for name, found in fields[:MAX_FIELDS] if found],
        "text": part.text(display.text) if display.text else None,
    }


def _is_our_own(event: Mapping[str, Any]) -> bool:
    """Say whether nobody outside had a part in an event.

    Only the engine may name a type so, where the type is vouched for; a call is what a client says.
    """
    ours = event["type"].startswith("vedette.") and "type" in event["vouched"]
    return ours and event["type"] != CALL_TYPE


def parse_displays(items: Sequence[Mapping[str, Any]]) -> tuple[Display, ...]:
    """Return displays out of plain data (`Display.to_json`)."""
    return tuple(Display(**{**one, "fields": dict(one["fields"])}) for one in items)


class _EventParts:
    """Finds the parts of one event, each with how far it is to be trusted."""

    def __init__(self, event: Mapping[str, Any]) -> None:
        vouched = frozenset(event["vouched"])
        self._roots = Roots(
            event=event,
            # The engine vouches for extensions by their bare names (`event.PRINCIPAL`).
            vouched=vouched | {f"extensions/{name}" for name in vouched},
            charter={},
            registry={},
            memory={},
            trusted_memories=frozenset(),
            outcome={},
            trusted_outcomes=frozenset(),
            row={},
        )

    def value(self, pointer: str) -> dict[str, Any] | None:
        text, trusted = self._resolve(pointer)
        # A value is one line; what is cut off is counted.
        line = " ".join(text.split("\n"))
        if not line.strip():
            return None
        cut = max(0, len(line) - VALUE_CHARS)
        return {"value": line[:VALUE_CHARS], "trusted": trusted, "more": cut}

    def text(self, pointer: str) -> dict[str, Any] | None:
        whole, trusted = self._resolve(pointer)
        whole = whole.replace("\r\n", "\n").strip("\n")
        lines: list[str] = []
        left = TEXT_CHARS
        for line in whole.split("\n"):
            # An empty line shows nothing: a letter of a stranger does not push its own end away.
            if not line.strip():
                continue
            if len(lines) == TEXT_LINES or left <= 0:
                break
            lines.append(line[:left])
            left -= len(line)
        if not lines:
            return None
        cut = sum(map(len, whole.split("\n"))) - sum(map(len, lines))
        return {"value": "\n".join(lines), "trusted": trusted, "more": cut}

    def _resolve(self, pointer: str) -> tuple[str, bool]:
        try:
            value, origin = resolve(Ref(f"/event{pointer}"), self._roots)
        except BadProposal:
            return "", False
        return _text(value), origin == "trusted"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or value in ([], {}):
        return ""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return canonical_json(value).decode()


def _default_display(event: Mapping[str, Any]) -> Display:
    """Return a display for an event of a type that nobody declared: never nothing."""
    leaves = list(islice(_leaves(event.get("data"), "/data", _MAX_DEPTH), _MAX_LEAVES))
    prose = [leaf for leaf in leaves if len(leaf[1]) > _PROSE_CHARS or "\n" in leaf[1]]
    text = max(prose, key=lambda leaf: len(leaf[1]))[0] if prose else None
    values = [pointer for pointer, _ in leaves if pointer != text][:MAX_FIELDS]
    return Display(
        event["type"],
        title="/subject" if event.get("subject") else "/id",
        # Whoever sent it chose the names: the place says that, and is none of our own words.
        fields={pointer: pointer for pointer in values},
        text=text,
        source=event["source"],
    )


def _leaves(value: Any, pointer: str, deep: int) -> Iterator[tuple[str, str]]:
    """Yield pointer and text of the values below, of each mapping or list its own values first."""
    inner: list[tuple[str, Any]] = []
    if isinstance(value, Mapping) and deep:
        inner = [(f"{pointer}/{_escape_pointer(name)}", item) for name, item in value.items()]
    elif isinstance(value, list) and deep and not all(isinstance(item, str) for item in value):
        inner = [(f"{pointer}/{at}", item) for at, item in enumerate(value)]
    elif (text := _text(value)).strip():
        yield pointer, text
    for nested in (False, True):
        for below, item in inner:
            if isinstance(item, Mapping | list) is nested:
                yield from _leaves(item, below, deep - 1)


def _escape_pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
