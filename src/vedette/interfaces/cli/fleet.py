"""The fleet that a verb is about: where it is, how its settings, agents and record are read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vedette.domain.base.errors import BadCommand, NoFleetHere, NotFound

if TYPE_CHECKING:
    from vedette.config.fleet import LoadedFleet
    from vedette.config.settings import Settings
    from vedette.store.reader import StoreReader

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

SETTINGS_FILE = "vedette.toml"


def find_config_file() -> Path:
    """Return a verb's settings file: --config's, or the nearest from the current folder upward.

    Raises BadFleet.
    """
    given: Path | None = click.get_current_context().find_root().obj
    if given is not None:
        path = given / SETTINGS_FILE if given.is_dir() else given
        if not path.is_file():
            raise NoFleetHere("there is no such file", where=str(path), mend="give --config PATH")
        return path
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / SETTINGS_FILE).is_file():
            return folder / SETTINGS_FILE
    raise NoFleetHere(
        f"there is no {SETTINGS_FILE} here or above",
        where=str(here),
        mend="change into the fleet's folder, give --config PATH, or make one: vedette init DIR",
    )


def current_settings() -> Settings:
    """Return the settings of the fleet that the verb is about. Raises BadFleet."""
    from vedette.adapters.identity.secrets import register_secret_manager
    from vedette.config.settings import load_settings

    register_secret_manager()
    return load_settings(find_config_file())


def load_agents(settings: Settings) -> LoadedFleet:
    """Return the fleet that a verb is about, as its folders declare it. Raises BadFleet."""
    from vedette.config.fleet import load_fleet
    from vedette.domain.base.clock import SystemClock

    return load_fleet(settings.root, settings, now_us=SystemClock().now_us())


def find_agent(agents: Mapping[str, T], name: str) -> T:
    """Return the agent that a verb names. Raises NotFound, with the name probably meant."""
    if name not in agents:
        from vedette.config.problem import did_you_mean

        raise NotFound(f"there is no agent {name!r}", mend=did_you_mean(name, list(agents)))
    return agents[name]


# --- the record ------------------------------------------------------------------------------


def refuse_unknown_agent(settings: Settings, store: StoreReader, name: str) -> None:
    """Raise NotFound for an agent that a verb names and neither the fleet nor the record has.

    So that a slip of the pen does not read like an agent that did nothing.
    """
    import orjson

    from vedette.config.problem import did_you_mean

    if store.runs.runs_page(agent=name, state=None, before=None, limit=1):
        return
    known = {path.parent.name for path in settings.agents.glob("*/agent.yaml")}
    for _, raw, _, _ in store.ledger.walk(("fleet.loaded",)):
        known |= orjson.loads(raw).get("releases", {}).keys()
    if name not in known:
        what = f"neither the fleet nor its record knows an agent {name!r}"
        raise NotFound(what, mend=did_you_mean(name, sorted(known)))


# --- this program ----------------------------------------------------------------------------


def program(*, below: Path | None = None) -> str:
    """Return how this program is started by hand, quoted for a shell.

    `vedette` if that is what the shell would find; else its path, relative where it lies below
    the folder `below` (default: the current one).
    """
    import shlex
    import shutil

    called = Path(sys.argv[0])
    module = called.name == "__main__.py"
    if not module and called.name != "vedette":
        return "vedette"
    found = Path(sys.executable if module else os.path.abspath(called))  # noqa: PTH100 (no link)
    known = shutil.which("vedette")
    if not module and known is not None and os.path.realpath(known) == os.path.realpath(found):
        return "vedette"
    here = below or Path.cwd()
    shown = shlex.quote(str(found.relative_to(here) if found.is_relative_to(here) else found))
    return f"{shown} -m vedette" if module else shown


def command_prefix() -> str:
    """Return the program with the --config it was given: what a further verb is put behind."""
    import shlex

    config = click.get_current_context().find_root().obj
    return f"{program()} --config {shlex.quote(str(config))}" if config else program()


# --- what several verbs take -----------------------------------------------------------------


def refuse_options(names: Collection[str], why: str) -> None:
    """Raise click.UsageError for the first of these parameters that was given, and does nothing.

    Where a verb does several things, whoever gives an option of another one meant that one.
    """
    ctx = click.get_current_context()
    for option in ctx.command.params:
        source = ctx.get_parameter_source(option.name or "")
        if option.name in names and source is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} {why}", ctx)


def page_options(verb: F) -> F:
    """Give a verb `--page` and `--limit`: which part of a list, and how much of it."""
    page = click.option("--page", metavar="CURSOR", help="The next page: this one's end says it.")
    limit = click.option("--limit", default=20, show_default=True, help="How many; at most 200.")
    return page(limit(verb))


def time_range_options(verb: F) -> F:
    """Give a verb `--last` and `--until`: the stretch of time that it tells of."""
    last = click.option(
        "--last", default="24h", show_default=True, metavar="TIME", help="How far back: 24h, 7d."
    )
    until = click.option(
        "--until", metavar="INSTANT", help="Up to then (UTC), as 2026-05-01. Default: now."
    )
    return last(until(verb))


def parse_time_range(last: str, until: str | None) -> tuple[int, int]:
    """Return the instants between which --last and --until lie; none is before the calendar.

    Raises BadCommand.
    """
    from vedette.domain.base.clock import SystemClock, from_iso, instant_before

    try:
        to_us = SystemClock().now_us() if until is None else from_iso(until)
    except ValueError as error:
        mend = "for example --until 2026-05-01T06:00:00Z"
        raise BadCommand(f"{until!r} is no instant", mend=mend) from error
    return instant_before(to_us, parse_length(last, "--last 24h")), to_us


def parse_length(text: str, example: str) -> int:
    """Return an option's length of time in microseconds. Raises BadCommand, with the example."""
    from vedette.domain.base.clock import duration_us

    try:
        return duration_us(text)
    except ValueError as error:
        raise BadCommand(f"{text!r} is no length of time", mend=f"for example {example}") from error


def parse_since(text: str, now_us: int, option: str) -> int:
    """Return the instant that an option names: itself (UTC), or a time ago. Raises BadCommand."""
    from vedette.domain.base.clock import duration_us, from_iso, instant_before

    try:
        return instant_before(now_us, duration_us(text))
    except ValueError:
        pass
    try:
        return from_iso(text)
    except ValueError as error:
        mend = f"for example {option} 30d, or {option} 2026-05-01"
        raise BadCommand(f"{text!r} is neither an instant nor a time ago", mend=mend) from error
