"""`vedette runs`: runs, newest first, page by page."""

from __future__ import annotations

import click

from vedette.domain.base.clock import SystemClock
from vedette.interfaces.cli.common import (
    as_json_option,
    command_prefix,
    format_table,
    print_result,
    sanitize_text,
    settings_of,
    store_reader,
)


@click.command()
@click.option("--agent", metavar="NAME", help="Only this agent's.")
@click.option("--state", metavar="STATE", help="Only these: ready, waiting, done or dead.")
@click.option("--before", metavar="CURSOR", help="The next page: the cursor of this one's end.")
@click.option("--limit", default=20, show_default=True, help="How many; at most 200.")
@as_json_option
@click.pass_context
def runs(
    ctx: click.Context,
    agent: str | None,
    state: str | None,
    before: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List runs, newest first."""
    from vedette.ledger.history.lists import runs_page

    with store_reader(settings_of(ctx)) as store:
        page = runs_page(
            store, SystemClock().now_us(), agent=agent, state=state, before=before, limit=limit
        )
    rows = [
        [
            item["id"],
            item["agent"],
            item["state"] + (f" ({item['waits']})" if item["waits"] else ""),
            sanitize_text(item["key"])[:40],
        ]
        for item in page["items"]
    ]
    text = format_table(["run", "agent", "state", "key"], rows) if rows else "no runs"
    if page["older"]:
        text += f"\nolder: {command_prefix(ctx)} runs --before {page['older']}"
    print_result(as_json, page, text)
