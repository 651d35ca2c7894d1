"""`vedette clock`: whether the wall clock is to be believed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from vedette.interfaces.cli.common import order_options, print_result, settings_of, submit_command


@click.group()
def clock() -> None:
    """Confirm the wall clock after it jumped."""


@clock.command()
@order_options
@click.pass_context
def confirm(ctx: click.Context, /, **options: Any) -> None:
    """Say that this machine's wall clock is right; `vedette status` tells how far it is off.

    Until then the fleet goes on by the time that has passed: a jump makes nothing expire, and
    lets no retry wait. What is over by the confirmed time expires now, so look at
    `vedette hold list` first. With several workers each has a clock of its own to confirm.
    """
    done = submit_command(
        settings_of(ctx), "clock_confirm", options["reason"], {}, options["command_id"]
    )
    by_us = int(done["by_us"])
    moved = timedelta(seconds=abs(by_us) // 1_000_000)
    way = "forward" if by_us >= 0 else "back"
    print_result(
        options["as_json"],
        done,
        f"confirmed in entry {done['seq']:,}: fleet time moved {moved} {way}",
    )
