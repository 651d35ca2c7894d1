"""Requests by which a residual is compared with the full engine: what was asked, and around it.

Made of questions that were asked and of the numbers and texts that the residual compares with:
each number, one less and one more, in every field that holds a number; what else a field may say;
and several changes at a time, drawn by a seed. So a limit that is off by one is met exactly. The
same input makes the same questions.
"""

from __future__ import annotations

import random  # noqa: TID251 (of a given seed)
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from vedette.domain.base.canonical import MAX_SAFE_INTEGER

Request = dict[str, Any]
_Field = tuple[tuple[str, ...], Sequence[Any]]

_NUMBERS: tuple[tuple[str, ...], ...] = (
    ("now",), ("context", "confidence"), ("context", "event", "hops"), ("context", "turn"),
    *(("context", "counters", name) for name in ("minute", "hour", "day", "run")),
)  # fmt: skip
_ORIGINS = ("trusted", "registered", "derived", "untrusted")
# A residual that compares with more numbers is met at some of them only.
_MOST_NUMBERS = 60


class RequestVariation:
    """Draws requests around some that were asked; `literals` are what a residual compares with."""

    def __init__(self, recorded: Sequence[bytes], literals: Sequence[int | str], seed: str) -> None:
        self._recorded = recorded
        self._chance = random.Random(seed)  # noqa: S311 - the same questions each time
        near = {each + step for each in literals if type(each) is int for step in (-1, 0, 1)}
        near |= {-1, 0, MAX_SAFE_INTEGER}
        numbers = sorted(each for each in near if abs(each) <= MAX_SAFE_INTEGER)
        if len(numbers) > _MOST_NUMBERS:
            numbers = self._chance.sample(numbers, _MOST_NUMBERS)
        self._numbers = numbers
        self._texts = [each for each in literals if type(each) is str] + ["", "value", "x" * 300]
        self._fields = _list_fields(self._texts, numbers)
        self._changes: tuple[Callable[[Request], None], ...] = (
            self._change_number, self._change_number, self._change_origin, self._change_origin,
            self._change_argument, self._change_argument, self._drop, self._change_source,
            self._add_link, self._add_readers, self._approve, self._approve, self._change_field,
            self._change_field,
        )  # fmt: skip

    def draw(self, many: int) -> Iterator[Request]:
        """Yield the recorded requests, each value of each field, and `many` changed more."""
        for raw in self._recorded:
            yield orjson.loads(raw)
        for path, values in [*((path, self._numbers) for path in _NUMBERS), *self._fields]:
            for value in values:
                one = self._pick_recorded()
                _put(one, path, value)
                yield one
        for _ in range(many):
            one = self._pick_recorded()
            for _ in range(self._chance.choice((1, 1, 2, 2, 3))):
                self._chance.choice(self._changes)(one)
            yield one

    def _pick_recorded(self) -> Request:
        found: Request = orjson.loads(self._chance.choice(self._recorded))
        return found

    def _change_number(self, one: Request) -> None:
        _put(one, self._chance.choice(_NUMBERS), self._chance.choice(self._numbers))

    def _place(self, one: Request) -> str:
        """Return the pointer of an argument, a sink, or an element of one."""
        places = [f"/{name}" for name in one["action"]["args"]]
        places += [each for each in one["action"]["sinks"] if isinstance(each, str)]
        found: str = self._chance.choice([*places, "/elsewhere"])
        return found + self._chance.choice(("", "", "", "/0"))

    def _change_origin(self, one: Request) -> None:
        one["action"]["origins"][self._place(one)] = self._chance.choice(_ORIGINS)

    def _change_argument(self, one: Request) -> None:
        text = self._chance.choice(self._texts)
        values: tuple[Any, ...] = (
            text, text, [text], [], {}, {text: text}, None, True, 1, f"a@{text}", ["a@b", 1],
        )  # fmt: skip
        name = self._place(one).split("/")[1]
        one["action"]["args"][name] = self._chance.choice(values)

    def _drop(self, one: Request) -> None:
        part = one["action"][self._chance.choice(("args", "origins", "sources"))]
        if part:
            del part[self._chance.choice(sorted(part))]

    def _change_source(self, one: Request) -> None:
        source = self._chance.choice(("/event/subject", "/charter/x", *self._texts))
        one["action"]["sources"][self._place(one)] = source

    def _add_link(self, one: Request) -> None:
        link = {"at": self._place(one), "link": "https://a.example", "host": "a.example"}
        one["action"]["links"].append({**link, "origin": self._chance.choice(_ORIGINS)})

    def _add_readers(self, one: Request) -> None:
        named = [each for each in one["action"]["args"].values() if isinstance(each, str)]
        kind = one["resource"]["type"]
        words = [*named, *self._texts, f"resource:{kind}", "@b", f"target:{one['resource']['id']}"]
        readers = self._chance.choices(words, k=self._chance.randint(0, 3))
        one["action"]["readers"][self._place(one)] = readers

    def _approve(self, one: Request) -> None:
        digest = self._chance.choice((one["action"]["digest"],) * 3 + ("b" * 64,))
        until = one["now"] + self._chance.choice((-1, 0, 1, 10**6))
        by = self._chance.choice(("person:a", "person:a", ""))
        one["context"]["approvals"].append({"action_digest": digest, "by": by, "until": until})

    def _change_field(self, one: Request) -> None:
        path, values = self._chance.choice(self._fields)
        _put(one, path, self._chance.choice(values))


def _list_fields(texts: Sequence[str], numbers: Sequence[int]) -> list[_Field]:
    """Return fields of a request with what each may be changed to.

    Those of the second half are the same in all requests of a residual: its guard must see them.
    """
    few = [texts[0], *texts[-3:]]
    return [
        (("context", "stopped"), (True, False)),
        (("context", "trigger"), texts),
        (("context", "approvals"), ([],)),
        (("context", "memories"), ([], [{"id": "a/b@1", "trust": "reviewed"}])),
        (("context", "event", "lineage"), ([], ["a", "b"])),
        (("context", "event", "vouched"), ([], ["id"])),
        (("context", "event", "type"), few),
        (("context", "event", "source"), few),
        (("action", "digest"), ("", "c" * 64)),
        (("action", "origins"), ({},)),
        (("action", "args"), ({},)),
        (("subject", "requested_mode"), ("act", "ask", "observe")),
        (("subject", "owner"), few),
        (("subject", "release"), ("", "f" * 64)),
        (("action", "high_impact"), (True, False)),
        (("action", "verb"), few),
        (("action", "declared"), ("", "e" * 64)),
        (("action", "settles"), ("none", "transactional", "idempotent")),
        (("action", "sinks"), ([], ["/elsewhere"])),
        (("resource", "id"), few),
        (("context", "budget", "run"), numbers),
        (("context", "budget", "hour"), numbers),
    ]


def _put(one: Request, path: Sequence[str], value: Any) -> None:
    inner = one
    for step in path[:-1]:
        inner = inner[step]
    # A copy: what is drawn again must be as it was.
    inner[path[-1]] = orjson.loads(orjson.dumps(value))
