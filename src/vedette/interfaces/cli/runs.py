"""`vedette runs`: runs, newest first, page by page."""

from __future__ import annotations

import click

from vedette.app.stores import store_reader
from vedette.domain.base.clock import SystemClock
from vedette.interfaces.cli.fleet import command_prefix, current_settings, page_options
from vedette.interfaces.cli.output import format_table, print_result, sanitize_text


@click.command()
@click.option("--agent", metavar="NAME", help="Only this agent's.")
@click.option("--state", metavar="STATE", help="Only these: ready, waiting, done or dead.")
@page_options
def runs(agent: str | None, state: str | None, page: str | None, limit: int) -> None:
    """List runs, newest first."""
    from vedette.ledger.history.lists import runs_page

    with store_reader(current_settings()) as store:
        found = runs_page(
            store, SystemClock().now_us(), agent=agent, state=state, before=page, limit=limit
        )
    rows = [
        [
            item["id"],
            item["agent"],
            item["state"] + (f" ({item['waits']})" if item["waits"] else ""),
            sanitize_text(item["key"])[:40],
        ]
        for item in found["items"]
    ]
    text = format_table(["run", "agent", "state", "key"], rows) if rows else "no runs"
    if found["older"]:
        text += f"\nolder: {command_prefix()} runs --page {found['older']}"
    print_result(found, text)
