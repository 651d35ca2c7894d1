"""The command line: one module per verb, imported only when the verb is used.

Exit codes: 0 done, 1 findings (something was looked at and is not as it should be), 2 usage or
bad input, 3 unavailable (no fleet, no store, not now).
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import select
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from vedette import __version__
from vedette.domain.base.disk_errors import (
    FAILURE_ERRNOS,
    FAILURE_MEND,
    FULL_ERRNOS,
    FULL_MEND,
    to_disk_error,
)
from vedette.domain.base.errors import (
    AlreadyDone,
    BadStore,
    StoreBusy,
    Temporary,
    Unavailable,
    VedetteError,
)
from vedette.interfaces.cli.text_width import columns, fit_text

DONE, FINDINGS, USAGE, UNAVAILABLE = 0, 1, 2, 3

# Set by a verb that leaves threads which nobody is to wait for: the process then ends at once.
has_stuck_threads = False

# Verb -> (module of this package, name in it, what `vedette --help` says). In the order of a day.
VERBS: dict[str, tuple[str, str, str]] = {
    "init": ("init", "init", "Write a new fleet to start from."),
    "check": ("check", "check", "Check everything, by file and line; handle no event."),
    "run": ("run", "run", "Run the fleet."),
    "send": ("send", "send", "Hand an event to the fleet, or see who would wake."),
    "status": ("status", "status", "Show what runs, waits, is stopped, is live."),
    "runs": ("runs", "runs", "List runs, newest first."),
    "report": ("report", "report", "One page about the last day, to check the fleet by."),
    "explain": ("explain", "explain", "Tell the whole story of a run, event, action or hold."),
    "plot": ("plot", "plot", "Draw a series, its judgements and incidents as a picture."),
    "hold": ("hold", "hold", "See what waits for a person; claim it, note something."),
    "approve": ("approve", "approve", "Approve exactly what a hold holds, once."),
    "deny": ("approve", "deny", "Deny what a hold holds, for good."),
    "correct": ("correct", "correct", "Say what a run should have been judged."),
    "memory": ("memory", "memory", "See what agents know; promote it, take it back."),
    "undo": ("undo", "undo", "Take back what an effect did, by its declared inverse."),
    "dead": ("dead", "dead", "See dead letters; take them up again, or close them."),
    "stop": ("stop", "stop", "Stop an agent, a tool or everything; lasts until resumed."),
    "resume": ("stop", "resume", "Lift a stop."),
    "clock": ("clock", "clock", "Confirm the wall clock after it jumped."),
    "budget": ("budget", "budget", "See what is spent, and give more room for a while."),
    "mode": ("mode", "mode", "See or set whether an agent observes, asks or acts."),
    "agent": ("agent", "agent", "See the agents, and what each of them may do."),
    "try": ("dry_run", "try_", "Try an event on an agent, without effect or trace."),
    "new": ("new", "new", "Write a new agent like one that is there."),
    "policy": ("policy", "policy", "Check, publish and roll back the policy."),
    "replay": ("replay", "replay", "Decide every recorded decision again."),
    "eval": ("eval", "evaluate", "Try the agents on their own cases."),
    "ledger": ("ledger", "ledger", "Verify and export the ledger."),
    "audit": ("audit", "audit", "Hold targets' own records against the ledger."),
    "erase": ("erase", "erase", "Erase content; the ledger's proof still holds."),
    "store": ("store", "store", "Move the state to PostgreSQL; check its rows."),
    "pubsub": ("pubsub", "pubsub", "Make what Pub/Sub needs; send dead letters again."),
    "backup": ("backup", "backup", "Copy the fleet's state into a folder, while it runs."),
    "restore": ("restore", "restore", "Put a backup in the place of a lost store."),
    "gateway": ("gateway", "gateway", "Run the gateway alone; agents' judges connect to it."),
    "worker": ("worker", "worker", "Run one agent's judge for a gateway."),
    "identity": ("identity", "identity", "Issue, rotate and revoke the agents' own keys."),
    "keys": ("keys", "keys", "Rotate the key that signs the ledger."),
    "explain-error": ("explain_error", "explain_error", "Tell what an error code means."),
    "completion": ("completion", "completion", "Print a script that completes verbs in a shell."),
    "schema": ("schema", "schema", "Print the JSON Schema of agent.yaml or bank.yaml."),
}

# What these write is content, for whoever shares the folder; all else is for its owner alone.
SHARED_CONTENT_VERBS = frozenset({"init", "new"})


class OutputClosed(Exception):
    """Whoever reads our output went away, as `head` does."""


class UnknownVerb(click.UsageError):
    """There is no such verb; `suggestion` is the one that was probably meant."""

    def __init__(self, name: str, ctx: click.Context) -> None:
        from difflib import get_close_matches

        found = get_close_matches(name, VERBS, n=1, cutoff=0.6)
        self.suggestion = found[0] if found else None
        super().__init__(f"there is no verb {name!r}", ctx)


class LazyGroup(click.Group):
    """A group that knows its verbs' help lines without importing them."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        """Read the arguments; `--help` writes here."""
        with _translate_broken_pipe():
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """Do the verb."""
        with _translate_broken_pipe():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the table's order."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb."""
        if cmd_name not in VERBS:
            return None
        module, name, _ = VERBS[cmd_name]
        found: click.Command = getattr(
            importlib.import_module(f"vedette.interfaces.cli.{module}"), name
        )
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb that is meant; raises UnknownVerb, which knows the nearest one."""
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            raise UnknownVerb(args[0], ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs and their help lines."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, told) for name, (_, _, told) in VERBS.items()])


@contextmanager
def _translate_broken_pipe() -> Iterator[None]:
    """Raise SeenEnough for a broken pipe that is our output.

    Within click, because click ends the process with 1 for it, which would say "findings".
    """
    try:
        yield
    except BrokenPipeError as error:
        if not _is_output_closed():
            raise Unavailable("a connection was closed at its other end") from error
        raise OutputClosed from error


def _is_output_closed() -> bool:
    """Say whether nobody reads what we write. Another pipe may break, too: one to the fleet."""
    poller = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # no such stream
            poller.register(stream.fileno(), 0)
    return any(seen & (select.POLLERR | select.POLLHUP) for _, seen in poller.poll(0))


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"vedette {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="vedette.toml, or the folder it is in. Default: from here upward.",
)
@click.option(
    "--utc",
    is_flag=True,
    help="Show times in UTC instead of this machine's time zone.",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Print the version.",
)  # fmt: skip
@click.pass_context
def cli(ctx: click.Context, config: Path | None, utc: bool) -> None:
    """Run a fleet of ambient agents, each action decided by one policy gateway.

    Exit codes: 0 done, 1 findings, 2 usage or bad input, 3 unavailable.
    """
    ctx.obj = config


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    if not SHARED_CONTENT_VERBS.intersection(given[:1]):
        os.umask(0o077)
    try:
        code = cli.main(given, prog_name="vedette", standalone_mode=False)
        _exit(code if isinstance(code, int) else DONE)
    except click.ClickException as error:
        _print_usage_error(error, as_json)
        _exit(USAGE)
    except (click.Abort, KeyboardInterrupt):
        _exit(130)
    except AlreadyDone as error:
        # Whoever repeats a command under its id wants it done, and it is.
        told = {"already_done": True, "what": error.what}
        click.echo(json.dumps(told) if as_json else f"nothing to do: {error.what}")
        _exit(DONE)
    except OutputClosed:
        # The interpreter must not try to flush what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _exit(DONE)
    except Exception as error:
        if (said := describe_error(error)) is not None:
            _print_error(said, as_json)
            _exit(exit_code(error))
        if _is_encoding_error(error) and (wrong := _describe_bad_argument(given)) is not None:
            _print_error(wrong, as_json)
            _exit(USAGE)
        # A bug of ours. 1 would say "findings" to a script.
        traceback.print_exc()
        click.echo("error: this is a bug in vedette; the lines above say where", err=True)
        _exit(UNAVAILABLE)


_OS_ERRORS = {
    **dict.fromkeys(FULL_ERRNOS, ("no-space", FULL_MEND)),
    **dict.fromkeys(FAILURE_ERRNOS, ("disk-failed", FAILURE_MEND)),
    errno.EACCES: ("no-permission", "run as its owner, or set VEDETTE_STATE to another folder"),
    errno.EPERM: ("no-permission", "run as its owner, or set VEDETTE_STATE to another folder"),
    errno.EROFS: ("no-permission", "it is read-only; set VEDETTE_STATE to another folder"),
    errno.EADDRINUSE: ("port-taken", "stop what listens there, or serve on another port"),
}


def describe_error(error: Exception) -> dict[str, str | None] | None:
    """Return what a person is told of an error, as JSON; None if it is a bug of ours."""
    if isinstance(error, OSError):
        return describe_os_error(error)
    if (full := describe_full_disk(error)) is not None:
        return full
    told = to_disk_error(error, "the state folder") or error
    return told.to_json() if isinstance(told, VedetteError) else None


def describe_os_error(error: OSError) -> dict[str, str | None]:
    """Return what the operating system refused, as an error in JSON."""
    code, mend = _OS_ERRORS.get(error.errno or 0, ("system", None))
    where = str(error.filename) if error.filename else None
    return {"code": code, "what": error.strerror or str(error), "where": where, "mend": mend}


def describe_full_disk(error: BaseException) -> dict[str, str | None] | None:
    """Return what to say if a full disk is at the bottom of an error; None for any other.

    Whoever met it may have taken it for something else: a file that cannot be read, a broken part.
    """
    where = getattr(error, "where", None)
    at: BaseException | None = error
    seen = set[int]()
    # Python lets an error be its own cause, or that of its cause.
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        number = at.errno if isinstance(at, OSError) else None
        # By its name: which library writes the file is the adapter's business.
        sqlite = type(at).__name__ == "FullError" or getattr(at, "extendedresult", 0) == _INDEX_FULL
        server = getattr(at, "sqlstate", None) == _DISK_FULL
        if sqlite or server or number in FULL_ERRNOS:
            named = getattr(at, "filename", None)
            what = "the database server's disk is full" if server else "the disk is full"
            mend = FULL_MEND
            return {
                "code": "no-space", "what": what, "where": str(named) if named else where,
                "mend": mend,
            }  # fmt: skip
        at = at.__cause__ or at.__context__
    return None


# What PostgreSQL calls it; and SQLite, where its log's index had no room to grow.
_DISK_FULL, _INDEX_FULL = "53100", 4874


def _is_encoding_error(error: Exception) -> bool:
    """Say whether text could not be written as UTF-8; orjson says so with a TypeError."""
    return isinstance(error, UnicodeEncodeError | TypeError) and "surrogates" in str(error)


def _describe_bad_argument(arguments: list[str]) -> dict[str, str | None] | None:
    """Return what is wrong with the first argument that is no text, as an error in JSON.

    Not before it is used: a file may well have such a name.
    """
    for word in arguments:
        try:
            word.encode()
        except UnicodeEncodeError:
            mend = "write it in UTF-8, as the terminal's locale says"
            return {
                "code": "usage", "what": f"the argument {word[:80]!r} is no text", "where": None,
                "mend": mend,
            }  # fmt: skip
    return None


def exit_code(error: Exception) -> int:
    """Return the exit code of an error that a person is told about."""
    asked = isinstance(error, VedetteError) and not isinstance(
        error, Temporary | StoreBusy | BadStore
    )
    return USAGE if asked and describe_full_disk(error) is None else UNAVAILABLE


def _exit(code: int) -> NoReturn:
    if has_stuck_threads:
        from vedette.interfaces.signals import exit_process

        exit_process(code)
    raise SystemExit(code)


def _print_error(error: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"error": error}), err=True)
        return
    where = f"{error['where']}: " if error["where"] else ""
    mend = f" ({error['mend']})" if error["mend"] else ""
    told = f"error[{error['code']}]: {where}{error['what']}{mend}"
    click.echo(fit_text(told, columns()), err=True)


def _print_usage_error(error: click.ClickException, as_json: bool) -> None:
    mend = None
    if isinstance(error, click.UsageError) and error.ctx is not None:
        mend = f"see `{error.ctx.command_path} --help`"
    if isinstance(error, UnknownVerb) and error.suggestion:
        mend = f"did you mean `vedette {error.suggestion}`? All: `vedette --help`"
    what = " ".join(error.format_message().split()).rstrip(".")
    _print_error({"code": "usage", "what": what, "where": None, "mend": mend}, as_json)
