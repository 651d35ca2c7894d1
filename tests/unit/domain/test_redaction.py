"""Secrets in what tools answer and raise."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from vedette.domain.effect import Outcome
from vedette.domain.redaction import CUT, Hiding

SECRET = "hünter'2 \"\\/+x"


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        repr(SECRET),
        repr(f"{SECRET} beside \"both\" of 'them'"),
        repr(SECRET.encode()),
        repr(SECRET.encode("latin-1")),
        repr(f"Bearer {SECRET}\n".encode("latin-1")),
        json.dumps({"at": SECRET}),
        json.dumps({"at": SECRET}, ensure_ascii=False),
        f"https://x.example/?t={quote(SECRET)}",
        f"https://x.example/?t={quote(SECRET, safe='')}",
        f"https://x.example/?t={quote_plus(SECRET)}",
    ],
)
def test_a_secret_is_known_however_an_error_writes_it(text: str) -> None:
    hidden = Hiding([SECRET]).value(f"before {text} after")
    assert "[secret]" in hidden
    assert "nter" not in hidden
    assert (hidden[:7], hidden[-6:]) == ("before ", " after")


def test_it_is_found_however_deep_it_lies_and_nothing_else_changes() -> None:
    data: dict[str, Any] = {
        "url": "x", "n": 3, "deep": [{"a": ("hunter2", 1)}], "hunter2": b"<hunter2>", "none": None,
    }  # fmt: skip
    hidden = Hiding(["hunter2"]).outcome(Outcome("done", data, "of hunter2"))
    assert hidden.data == {
        "url": "x", "n": 3, "deep": [{"a": ("[secret]", 1)}], "[secret]": b"<[secret]>",
        "none": None,
    }  # fmt: skip
    assert (hidden.state, hidden.error) == ("done", "of [secret]")
    assert data["deep"] == [{"a": ("hunter2", 1)}], "what the tool has stays its own"


def test_short_values_stand_for_themselves_and_longer_ones_go_first() -> None:
    made = Hiding(["12345", "123456", "123456-789012"], "[x]")
    assert made.value("12345 123456 123456-789012") == "12345 [x] [x]"
    outcome = Outcome("done", {"n": "12345"})
    assert Hiding(["12345"]).outcome(outcome) is outcome
    # What is shown instead may be a secret's own text, and is not replaced again.
    assert Hiding(["secret"]).value("a secret") == "a [secret]"


def test_a_secret_that_a_worker_cut_in_two_is_hidden_too() -> None:
    made = Hiding(["hunter2-and-more"])
    long = ("x" * CUT + "hunter2-and-more")[len("hunter2-and") :][:CUT]
    assert long.endswith("hunter2-and")
    assert made.told(long).endswith("x[secret]")
    # The control: a short text was not cut, and may end as it likes.
    assert made.told("hunter2-and") == "hunter2-and"


@pytest.mark.parametrize(
    ("error", "instead"),
    [
        (ValueError("no to hunter2"), RuntimeError("ValueError: no to [secret]")),
        (KeyError("hunter2"), RuntimeError("KeyError: '[secret]'")),
        (SystemExit("hunter2"), SystemExit("[secret]")),
        (asyncio.CancelledError("hunter2"), asyncio.CancelledError("[secret]")),
    ],
)
async def test_an_error_is_raised_without_the_secret(
    error: BaseException, instead: BaseException
) -> None:
    async def call() -> Outcome | None:
        raise error

    with pytest.raises(type(instead)) as raised:
        await Hiding(["hunter2"]).answer(call())
    assert str(raised.value) == str(instead)
    assert (raised.value.__cause__, raised.value.__context__) == (None, None)


async def test_what_tells_no_secret_is_left_as_it_is() -> None:
    error, outcome = ValueError("no"), Outcome("done", {"n": 1})

    async def call(what: Any) -> Outcome | None:
        if isinstance(what, Exception):
            raise what
        told: Outcome | None = what
        return told

    with pytest.raises(ValueError, match="no") as raised:
        await Hiding(["hunter2"]).answer(call(error))
    assert raised.value is error
    assert await Hiding(["hunter2"]).answer(call(None)) is None
    assert await Hiding(["hunter2"]).answer(call(outcome)) == outcome
    assert await Hiding([]).answer(call(outcome)) is outcome
