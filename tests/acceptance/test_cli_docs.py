"""docs/cli.md is what `--help` says; UPDATE=1 with pytest on this file writes it anew."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from vedette.interfaces.cli import cli

DOC = Path(__file__).resolve().parents[2] / "docs" / "cli.md"

HEAD = """\
# The command line

Written by `UPDATE=1 pytest tests/acceptance/test_cli_docs.py` out of `--help`; a test compares.

Every verb works beside a running fleet. Orders (`send`, `approve`, `deny`, `stop`, `resume`,
`policy publish`, `policy rollback`, `budget --raise`, `dead --redrive`, `dead --drop`,
`pubsub --redrive`, `ledger archive`, `ledger rotate-key`, `restore --settled`, `erase`) go to it
over the Unix socket in its state folder; if none runs, the verb opens the store itself. Reads open
the store read-only. Exit codes: 0 done, 1 findings, 2 usage or bad input, 3 unavailable. With
`--json`, which may stand anywhere, the answer goes to standard output, and an error as
`{"error": {"code", "what", "where", "mend"}}` to standard error.

Spellings of before this page (`hold list`, `ledger verify`, `store check` …) are taken for one
release, with a hint on standard error (with `--json` as `{"note": …}`, after the answer):
[decision 54](decisions/0054-fewer-verbs.md), and old and new in the [change log](../CHANGELOG.md).
"""


def test_the_page_is_what_help_says() -> None:
    text = page()
    if os.environ.get("UPDATE"):
        DOC.write_text(text, encoding="utf-8")
    assert DOC.read_text(encoding="utf-8") == text, "run it again with UPDATE=1"


def test_another_help_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = page()
    monkeypatch.setattr(cli, "help", "Something else.")
    assert page() != before


def page() -> str:
    """Return docs/cli.md as it should be."""
    parts = [HEAD]
    for path, context in _commands(
        click.Context(cli, info_name="vedette", **cli.context_settings), ["vedette"]
    ):
        # Narrower than a terminal, and the same wherever the page is made.
        context.max_content_width = context.terminal_width = 88
        parts.append(f"## {' '.join(path)}\n\n```text\n{context.get_help()}\n```\n")
    return "\n".join(parts)


def _commands(context: click.Context, path: list[str]) -> Iterator[tuple[list[str], click.Context]]:
    command = context.command
    # Click keeps the help option of its first use; a test may have used the command by itself.
    vars(command)["_help_option"] = None
    yield path, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            below_context = click.Context(below, info_name=name, parent=context)
            yield from _commands(below_context, [*path, name])
