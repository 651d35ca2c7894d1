"""`vedette run`: the fleet at work."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

import vedette.interfaces.cli
from vedette.domain.base.errors import BadPolicy
from vedette.interfaces.cli.fleet import command_prefix, current_settings
from vedette.interfaces.cli.live_table import LiveView, PlainView
from vedette.interfaces.cli.output import format_table, print_result, sanitize_text, wants_json

if TYPE_CHECKING:
    from vedette.adapters.reasoners.workers.fork_server_start import ForkServerProcess
    from vedette.config.settings import Settings
    from vedette.interfaces.signals import Signals

# How long calls that are on their way may take to come back when the fleet has ended.
_CALL_GRACE_S = 0.2
# Threads on which somebody else is waited for: a tool's target, a mail server.
_CALL_THREADS = ("vedette-hand", "vedette-http", "vedette-imap")

_NEXT_VERBS = {"denied": "explain", "hold": "hold", "incident": "explain", "effect": "explain"}
_DEFAULT_COMMANDS = ("hold", "status", "verify decisions")

# Thousands of runs on their way are no garbage: at the usual thresholds looking through them took
# a sixth of the event loop's time.
GC_THRESHOLDS = (20_000, 20, 50)


@click.command()
@click.option("--until-idle", is_flag=True, help="End when nothing is left to do.")
@click.option(
    "--only", multiple=True, metavar="SOURCE", help="Of the sources only this; repeatable."
)
@click.option("--fresh", is_flag=True, help="First delete the state folder's content.")
@click.option("--plain", "plainly", is_flag=True, help="A line now and then, no live view.")
@click.option("--gateway", is_flag=True, help="The gateway alone: agents' judges connect to it.")
def run(until_idle: bool, only: tuple[str, ...], fresh: bool, plainly: bool, gateway: bool) -> None:
    """Run the fleet: its sources, its agents, its policy; until Ctrl-C, or until idle.

    While it runs every other verb works beside it. Ends with a summary. Ctrl-C waits for no call
    that is on its way (the next run finds out what came of it); a second one ends at once.

    With --gateway it runs store, policy, credentials and tools. The judges of `[gateway] agents`
    (all, if it names none) are run by `vedette worker`, which reaches this process at `[gateway]
    listen` or at workers.sock in the state folder. While no worker of an agent is connected its
    runs wait.
    """
    # A start makes many objects and little garbage: collecting costs it a tenth of its time.
    gc.disable()
    settings = current_settings()
    if only:
        settings = select_sources(settings, only)
    if gateway:
        from vedette.app.remote_workers import gateway_settings

        settings = gateway_settings(settings)
    if fresh:
        from vedette.app.reset import wipe_state

        wipe_state(settings)
    # From here on nothing that takes long is imported before what needs another process began.
    warm_up = _WarmUp(settings)
    import asyncio

    from vedette.interfaces.signals import Signals

    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    plainly = plainly or gateway or not terminal or wants_json()
    view = PlainView(silent=wants_json()) if plainly else LiveView(settings.fleet)
    with Signals() as signals:
        try:
            done = asyncio.run(_run_fleet(settings, until_idle, view, signals, warm_up))
            print_result(done, summary_text(done, command_prefix()))
        finally:
            gc.enable()
            warm_up.cancel()
            vedette.interfaces.cli.has_stuck_threads = _has_stuck_calls()


def select_sources(settings: Settings, names: tuple[str, ...]) -> Settings:
    """Return settings with the sources of `run --only` alone; schedules stay. Raises NotFound."""
    from msgspec.structs import replace

    from vedette.config.problem import did_you_mean
    from vedette.domain.base.errors import NotFound

    known = [source.name for source in settings.sources]
    for name in names:
        if name not in known:
            raise NotFound(f"there is no source {name!r}", mend=did_you_mean(name, known))
    return replace(settings, sources=tuple(s for s in settings.sources if s.name in names))


class _WarmUp:
    """What runs in other processes before the fleet is opened: a trial, and what forks workers.

    The trial is most of a first start; where a fleet ran, its policy is known. What may not be
    tried at all is said by whoever opens the fleet.
    """

    def __init__(self, settings: Settings) -> None:
        from vedette.adapters.policy_engines.regorus.stage import SubprocessStage, read_bundle
        from vedette.app.policy_engines import has_shipped_rules

        self.stage = SubprocessStage()
        self.fork_server: ForkServerProcess | None = None
        if not (settings.state / "store.db").exists():
            with suppress(BadPolicy):
                bundle = read_bundle(settings.policies)
                self.stage.begin_trial(bundle, compare=not has_shipped_rules(settings, bundle))
        if settings.isolation.use_processes:
            from vedette.adapters.reasoners.workers.fork_server_start import ForkServerProcess

            self.fork_server = ForkServerProcess()

    def cancel(self) -> None:
        """End what nobody took up."""
        self.stage.cancel_trials()
        if self.fork_server is not None:
            self.fork_server.end_unassigned()


def _has_stuck_calls() -> bool:
    """Say whether a call has not come back: the interpreter would not end before it does."""
    end = time.monotonic() + _CALL_GRACE_S
    for thread in threading.enumerate():
        if thread.name.startswith(_CALL_THREADS):
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                return True
    return False


async def _run_fleet(
    settings: Settings,
    until_idle: bool,
    view: LiveView | PlainView,
    signals: Signals,
    warm_up: _WarmUp,
) -> dict[str, Any]:
    from vedette.app.composition_root import open_app
    from vedette.app.follower_process import FollowerProcess
    from vedette.interfaces.daemon import Daemon, describe_run

    app = await open_app(settings, stage=warm_up.stage, fork_server=warm_up.fork_server)
    # What a fleet is made of stays as long as the fleet: no collection needs to look at it.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    try:
        follower = FollowerProcess(settings, app.store)
        running = Daemon(app, until_idle=until_idle, signals=signals, follower=follower)
        with view:
            await running.run(view.tick)
        return describe_run(running)
    finally:
        await app.close()
        # It ends now: an engine is let go of while the library that frees it is there still.
        gc.unfreeze()


def summary_text(summary: dict[str, Any], program: str = "vedette") -> str:
    """Return what `vedette run` ends with: what it came to, and three commands to try."""
    agents = summary["agents"].values()
    found = {name for agent in agents for name in agent if name in _FIXED_COLUMNS or agent[name]}
    names = sorted(found, key=_column_rank)
    rows = [
        [agent, *(f"{numbers.get(name, 0):,}" for name in names)]
        for agent, numbers in summary["agents"].items()
    ]
    events = summary["events"]
    counted = ", ".join(f"{name.replace('_', ' ')} {events[name]:,}" for name in events)
    lines = [
        "",
        format_table(["agent", *(name.replace("_", " ") for name in names)], rows),
        "",
        f"events: {counted}",
        f"{summary['seconds']:,.1f} s, {summary['events_per_second']:,} events/s, "
        f"{summary['cpu_us_per_event']:,} us of CPU per event, "
        f"policy revision {summary['policy_revision']}",
    ]
    lines += [f"note: {sanitize_text(line)}" for line in summary["troubles"]]
    lines += ["", "try next:"]
    lines += [f"  {program} {command}" for command in next_commands(summary["try_next"])]
    return "\n".join(lines)


# The others have a column only where one of them is not 0: the table is wide enough.
_FIXED_COLUMNS = ("runs", "actions", "permits", "holds", "denials", "effects")
_COLUMN_ORDER = ("events", "runs", "actions", "permits", "holds", "denials", "would", "effects")


def _column_rank(name: str) -> tuple[int, str]:
    return (_COLUMN_ORDER.index(name), "") if name in _COLUMN_ORDER else (len(_COLUMN_ORDER), name)


def next_commands(examples: dict[str, str]) -> list[str]:
    """Return three verbs to try on real ids, as far as there are; else ones that always work."""
    commands = [
        f"{verb} {examples[name]}" for name, verb in _NEXT_VERBS.items() if name in examples
    ]
    return [*commands, *_DEFAULT_COMMANDS][:3]
