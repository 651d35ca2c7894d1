"""What the verbs share: where the fleet is, how it is read, how a command reaches it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vedette.domain.base.disk_errors import to_disk_error
from vedette.domain.base.errors import BadCommand, BadStore, NoFleetHere, StoreBusy, VedetteError
from vedette.domain.base.safe_text import is_visible
from vedette.interfaces.cli.text_width import columns, fit_text, format_row

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.store.read_runs import StoreReader

F = TypeVar("F", bound=Callable[..., Any])

SETTINGS_FILE = "vedette.toml"
# A runner takes the store before its socket is there; and leaves its socket before the store.
_MAX_WAIT_S = 5.0

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def order_options(verb: F) -> F:
    """Give a verb what every order of a person has: a reason, and an id to repeat it safely."""
    reason = click.option(
        "--reason", required=True, metavar="TEXT", help="Why; it is recorded with your name."
    )
    command_id = click.option(
        "--command-id", metavar="ID", help="A repeat of the same id is not done again."
    )
    return as_json_option(command_id(reason(verb)))


# --- where the fleet is ----------------------------------------------------------------------


def find_config_file(config_path: Path | None) -> Path:
    """Return the settings file: the one given, or the nearest from the current folder upward.

    Raises BadFleet.
    """
    if config_path is not None:
        path = config_path / SETTINGS_FILE if config_path.is_dir() else config_path
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


def settings_of(ctx: click.Context) -> Settings:
    """Return the fleet's settings. Raises BadFleet."""
    from vedette.adapters.identity.secrets import register_secret_manager
    from vedette.config.settings import load_settings

    register_secret_manager()
    return load_settings(find_config_file(ctx.find_root().obj))


# --- reading ---------------------------------------------------------------------------------


@contextmanager
def store_reader(settings: Settings) -> Iterator[StoreReader]:
    """Open the store to read, beside a running fleet or with none. Raises BadStore."""
    from vedette.app.stores import open_reader

    try:
        store = open_reader(settings)
        try:
            yield store
        finally:
            store.close()
    except Exception as error:
        # By its name: which library reads the file is the adapter's business.
        if type(error).__module__.partition(".")[0] not in ("apsw", "psycopg"):
            raise
        if (told := to_disk_error(error, settings.state / "store.db")) is not None:
            raise told from error
        raise BadStore(
            f"the store cannot be read: {error}",
            where=settings.store.url_env or str(settings.state / "store.db"),
            mend="restore it from a backup; `vedette ledger verify` says what stands",
        ) from error


def refuse_unknown_agent(settings: Settings, store: StoreReader, name: str) -> None:
    """Raise NotFound for an agent that is neither in the fleet nor in the record.

    So that a slip of the pen does not read like an agent that did nothing.
    """
    import orjson

    from vedette.config.problem import did_you_mean
    from vedette.domain.base.errors import NotFound

    if store.entries_page({"agent": name}, before=None, after=None, limit=1):
        return
    known = {path.parent.name for path in settings.agents.glob("*/agent.yaml")}
    for _, raw, _, _ in store.walk(("fleet.loaded",)):
        known |= orjson.loads(raw).get("releases", {}).keys()
    if name not in known:
        what = f"neither the fleet nor its record knows an agent {name!r}"
        raise NotFound(what, mend=did_you_mean(name, sorted(known)))


# --- commands --------------------------------------------------------------------------------


def submit_command(
    settings: Settings, verb: str, reason: str, args: Mapping[str, Any], command_id: str | None
) -> dict[str, Any]:
    """Give a command to the running fleet; without one open the store, do it, and close.

    The answer says under `by` who did it: `fleet` or `here`. Raises what the command raises, and
    StoreBusy or Unavailable if a fleet runs that does not answer, UnicodeEncodeError for what is
    no text.
    """
    import asyncio
    import uuid

    from vedette.interfaces.http.local_client import LocalClient

    command_id = command_id or str(uuid.uuid4())
    # What is no text is refused here: a fleet could only say that it does not understand.
    json.dumps([reason, args, command_id], ensure_ascii=False, default=str).encode()
    end = time.monotonic() + _MAX_WAIT_S
    while True:
        client = LocalClient(settings.state)
        if client.is_alive():
            return {**client.send_command(verb, reason, args, command_id), "by": "fleet"}
        try:
            done = asyncio.run(_execute_in_process(settings, verb, reason, args, command_id))
        except StoreBusy:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
            continue
        return {**done, "by": "here"}


async def _execute_in_process(
    settings: Settings, verb: str, reason: str, args: Mapping[str, Any], command_id: str
) -> dict[str, Any]:
    from msgspec.structs import replace

    from vedette.app.composition_root import open_app
    from vedette.interfaces.http.command_dispatch import dispatch
    from vedette.interfaces.http.unix_socket import current_person
    from vedette.operations.commands import Order

    app = await open_app(replace(settings, store=replace(settings.store, visit=True)))
    for told in app.store.remarks:
        click.echo(f"note: {told}", err=True)
    try:
        if app.store.loss is not None:
            # It stopped everything just now, and no order that was given before may undo that.
            raise BadCommand(
                f"{app.store.loss.sentence}; everything is stopped, and what may have happened "
                "already is in doubt: nothing was ordered",
                mend="see docs/guides/restore.md; if it is still right then, give the order again",
            )
        return await dispatch(app.commands, verb, Order(current_person(), reason, command_id), args)
    finally:
        await app.close()


# --- saying ----------------------------------------------------------------------------------


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


def command_prefix(ctx: click.Context) -> str:
    """Return the program with the --config it was given: what a further verb is put behind."""
    import shlex

    config = ctx.find_root().obj
    return f"{program()} --config {shlex.quote(str(config))}" if config else program()


def print_result(as_json: bool, value: Any, text: str) -> None:
    """Print `value` as JSON, or `text` for people, no wider than they have columns."""
    click.echo(dumps(value) if as_json else fit_to_terminal(text))


def write_output(path: Path, text: str, what: str, option: str) -> bool:
    """Write the `what` that was asked for into a file; False if that is -: standard output.

    Raises BadCommand, naming the `option` that gives the file.
    """
    if str(path) == "-":
        click.echo(text, nl=False)
        return False
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadCommand(
            f"the {what} cannot be written: {error.strerror}", where=str(path),
            mend=f"name a file that you may write: {option} FILE",
        ) from error  # fmt: skip
    return True


def fit_to_terminal(text: str) -> str:
    """Return text as wide as its reader has columns; commands to copy stay whole."""
    return fit_text(text, columns(), f"{program()} ")


def dumps(value: Any) -> str:
    """Return JSON for people and scripts: keys in the order in which they were put.

    It may be read at a terminal: what would move its cursor or hide itself is escaped.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if text.isascii():
        return text
    return "".join(c if c == "\n" or is_visible(c) else json.dumps(c)[1:-1] for c in text)


def format_table(heads: list[str], rows: list[list[str]], *, fits: bool = True) -> str:
    """Return rows under heads, columns as wide as their widest cell; numbers to the right.

    What is wider than its reader has columns goes on below, further in; not with `fits` off.
    """
    if not rows:
        return "  ".join(heads)
    lines = [heads, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    right = [all(_is_number(row[at]) for row in rows) for at in range(len(heads))]
    width = columns() if fits else None
    return "\n".join(
        format_row(
            [
                cell.rjust(widths[at]) if right[at] else cell.ljust(widths[at])
                for at, cell in enumerate(line)
            ],
            width,
        )
        for line in lines
    )


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").isdigit() or cell in ("-", "")


def format_time(at_us: int) -> str:
    """Return an instant to the second in the viewer's time zone; '-' for none.

    In UTC with `--utc`, or where that is the viewer's zone.
    """
    return time_formatter()(at_us)[:25] if at_us else "-"


def time_formatter() -> Callable[[int], str]:
    """Return how this viewer reads instants: local with its offset, or UTC with a Z."""
    from vedette.domain.base.clock import local_time, utc_time

    ctx = click.get_current_context(silent=True)
    wants_utc = ctx is not None and bool(ctx.find_root().params.get("utc"))
    return utc_time if wants_utc else local_time


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
    """Return the instants between which a stretch of time lies; none is before the calendar.

    Raises BadCommand.
    """
    from vedette.domain.base.clock import SystemClock, duration_us, from_iso, instant_before

    try:
        to_us = SystemClock().now_us() if until is None else from_iso(until)
    except ValueError as error:
        mend = "for example --until 2026-05-01T06:00:00Z"
        raise BadCommand(f"{until!r} is no instant", mend=mend) from error
    try:
        return instant_before(to_us, duration_us(last)), to_us
    except ValueError as error:
        raise BadCommand(f"{last!r} is no length of time", mend="for example --last 24h") from error


def sanitize_text(text: str) -> str:
    """Return text of unknown origin without what would move a terminal's cursor or colours."""
    return "".join(c if is_visible(c) or c in "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def problem_json(error: VedetteError) -> dict[str, Any]:
    """Return an error as one finding of a check."""
    where = error.where or ""
    file, _, line = where.rpartition(":")
    placed = bool(file) and line.isdigit()
    return {
        "file": file if placed else where,
        "line": int(line) if placed else 0,
        "field": "",
        "what": error.what,
        "mend": error.mend or "",
        "warning": False,
        "code": error.code,
    }


def resolve_folder(folder: Path | None, default: Path) -> Path:
    """Return the absolute path of a folder that was named. Raises BadCommand if it is none."""
    found = (folder or default).absolute()
    if not found.is_dir():
        raise BadCommand("there is no such folder", where=str(found), mend="name the policy folder")
    return found
