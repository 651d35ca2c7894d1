"""`vedette clock`: whether the wall clock is to be believed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from vedette.interfaces.cli.common import human_verb, obey, say, settings_of


@click.group()
def clock() -> None:
    """Confirm the wall clock after it jumped."""


@clock.command()
@human_verb
@click.pass_context
def confirm(ctx: click.Context, /, **given: Any) -> None:
    """Say that this machine's wall clock is right; `vedette status` tells how far it is off.

    Until then the fleet goes on by the time that has passed: a jump makes nothing expire, and
    lets no retry wait. What is over by the confirmed time expires now, so look at
    `vedette hold list` first. With several workers each has a clock of its own to confirm.
    """
    done = obey(settings_of(ctx), "clock_confirm", given["reason"], {}, given["command_id"])
    by_us = int(done["by_us"])
    moved = timedelta(seconds=abs(by_us) // 1_000_000)
    way = "forward" if by_us >= 0 else "back"
    say(
        given["as_json"],
        done,
        f"confirmed in entry {done['seq']:,}: fleet time moved {moved} {way}",
    )
