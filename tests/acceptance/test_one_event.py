"""docs/one-event.md is what the line does today. UPDATE=1 writes it anew."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tools import one_event

LONGEST = 250


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page, made by running the line."""
    text = asyncio.run(one_event.page(tmp_path_factory.mktemp("one-event")))
    if os.environ.get("UPDATE") == "1":
        one_event.PAGE.write_text(text, encoding="utf-8")
    return text


def test_the_page_is_what_the_line_does(made: str) -> None:
    assert one_event.PAGE.read_text(encoding="utf-8") == made, (
        "the line does something else now; if that is meant: "
        "UPDATE=1 .venv/bin/pytest tests/acceptance/test_one_event.py"
    )


def test_the_page_stays_short(made: str) -> None:
    assert len(made.splitlines()) <= LONGEST


def test_it_is_made_again_with_the_same_bytes(made: str, tmp_path: Path) -> None:
    """Salts, signatures and timing differ between two runs; the page must not."""
    assert asyncio.run(one_event.page(tmp_path)) == made


def test_what_is_masked_and_what_is_not() -> None:
    """Control: a changed rule, id or number is not masked away."""
    salted = '{"body":"' + "a1" * 32 + '","run":"run_' + "0f" * 16 + '","confidence":"0.8472228"}'
    assert one_event.mask(salted) == (
        '{"body":"…","run":"run_' + "0f" * 16 + '","confidence":"0.8472…"}'
    )
    for state in ("743e9bd3", "743e9bd3aa07ec059bfc"):
        assert one_event.mask(f'{{"state":"{state}","v":1}}') == '{"state":"…","v":1}'
    row = '{"state": "acknowledged", "v": 1}'
    assert one_event.mask(row) == row
    line = '{"outcome":"deny","rule":"origins.derived","seq":9}'
    assert one_event.mask(line) == line
