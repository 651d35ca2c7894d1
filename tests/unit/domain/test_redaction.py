"""Secrets in what tools answer and raise."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from vedette.domain.effect import Outcome
from vedette.domain.redaction import MAX_ERROR_CHARS, SecretRedactor

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
    hidden = SecretRedactor([SECRET]).redact(f"before {text} after")
    assert "[secret]" in hidden
    assert "nter" not in hidden
    assert (hidden[:7], hidden[-6:]) == ("before ", " after")


def test_it_is_found_however_deep_it_lies_and_nothing_else_changes() -> None:
    data: dict[str, Any] = {
        "url": "x", "n": 3, "deep": [{"a": ("hunter2", 1)}], "hunter2": b"<hunter2>", "none": None,
    }  # fmt: skip
    hidden = SecretRedactor(["hunter2"]).redact_outcome(Outcome("done", data, "of hunter2"))
    assert hidden.data == {
        "url": "x", "n": 3, "deep": [{"a": ("[secret]", 1)}], "[secret]": b"<[secret]>",
        "none": None,
    }  # fmt: skip
    assert (hidden.state, hidden.error) == ("done", "of [secret]")
    assert data["deep"] == [{"a": ("hunter2", 1)}], "what the tool has stays its own"


def test_short_values_stand_for_themselves_and_longer_ones_go_first() -> None:
    made = SecretRedactor(["12345", "123456", "123456-789012"], "[x]")
    assert made.redact("12345 123456 123456-789012") == "12345 [x] [x]"
    outcome = Outcome("done", {"n": "12345"})
    assert SecretRedactor(["12345"]).redact_outcome(outcome) is outcome
    # What is shown instead may be a secret's own text, and is not replaced again.
    assert SecretRedactor(["secret"]).redact("a secret") == "a [secret]"


def test_a_short_secret_is_known_in_texts_where_that_is_wanted() -> None:
    made = SecretRedactor(["2", "true"], "***", min_chars=1)
    assert made.redact([True, 2, "true 2", "-32602"]) == [True, 2, "*** ***", "-3***60***"]


def test_a_secret_that_a_worker_cut_in_two_is_hidden_too() -> None:
    made = SecretRedactor(["hunter2-and-more"])
    long = ("x" * MAX_ERROR_CHARS + "hunter2-and-more")[len("hunter2-and") :][:MAX_ERROR_CHARS]
    assert long.endswith("hunter2-and")
    assert made.redact_error(long).endswith("x[secret]")
    # The control: a short text was not cut, and may end as it likes.
    assert made.redact_error("hunter2-and") == "hunter2-and"


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
        await SecretRedactor(["hunter2"]).redact_call(call())
    assert str(raised.value) == str(instead)
    assert (raised.value.__cause__, raised.value.__context__) == (None, None)


async def test_what_tells_no_secret_is_left_as_it_is() -> None:
    error, outcome = ValueError("no"), Outcome("done", {"n": 1})

    async def call(what: Any) -> Outcome | None:
        if isinstance(what, Exception):
            raise what
        plain: Outcome | None = what
        return plain

    with pytest.raises(ValueError, match="no") as raised:
        await SecretRedactor(["hunter2"]).redact_call(call(error))
    assert raised.value is error
    assert await SecretRedactor(["hunter2"]).redact_call(call(None)) is None
    assert await SecretRedactor(["hunter2"]).redact_call(call(outcome)) == outcome
    assert await SecretRedactor([]).redact_call(call(outcome)) is outcome
