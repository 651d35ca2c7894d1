"""`vedette gateway`: the hands without the brains."""

from __future__ import annotations

import gc
from typing import Any

import click

from vedette.interfaces.cli.common import as_json_option, command_prefix, print_result, settings_of


@click.command()
@as_json_option
@click.pass_context
def gateway(ctx: click.Context, as_json: bool) -> None:
    """Run the fleet's gateway: store, policy, credentials and tools; agents' judges connect to it.

    The judges of `[gateway] agents` (all, if it names none) are run by `vedette worker`, which
    reaches this process at `[gateway] listen` or at workers.sock in the state folder. While no
    worker of an agent is connected its runs wait. Until Ctrl-C, as `vedette run`.
    """
    gc.disable()
    import asyncio

    import vedette.interfaces.cli
    from vedette.app.remote_workers import gateway_settings
    from vedette.interfaces.cli import run as running
    from vedette.interfaces.cli.live_table import PlainView
    from vedette.interfaces.signals import Signals

    settings = gateway_settings(settings_of(ctx))
    warm_up = running._WarmUp(settings)
    with Signals() as signals:
        try:
            view = PlainView(silent=as_json)
            done: dict[str, Any] = asyncio.run(
                running._run_fleet(settings, False, view, signals, warm_up)
            )
            print_result(as_json, done, running.summary_text(done, command_prefix(ctx)))
        finally:
            gc.enable()
            warm_up.cancel()
            vedette.interfaces.cli.has_stuck_threads = running._has_stuck_calls()
