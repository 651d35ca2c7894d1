"""The command line: one module per verb, imported only when the verb is used.

Exit codes: 0 done, 1 findings (something was looked at and is not as it should be), 2 usage or
bad input, 3 unavailable (no fleet, no store, not now).
"""

from __future__ import annotations

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
from vedette.domain.base.errors import AlreadyDone, Unavailable
from vedette.interfaces.cli.error_report import (
    DONE,
    UNAVAILABLE,
    USAGE,
    describe_bad_argument,
    describe_error,
    describe_usage_error,
    exit_code,
    print_already_done,
    print_error,
)
from vedette.interfaces.cli.old_spellings import translate

# Set by a verb that leaves threads which nobody is to wait for: the process then ends at once.
has_stuck_threads = False

# Verb -> (module of this package, name in it, what `vedette --help` says). In the order of a day.
VERBS: dict[str, tuple[str, str, str]] = {
    "init": ("init", "init", "Write a new fleet to start from."),
    "check": ("check", "check", "Check what is written: fleet, policy, agents' cases."),
    "run": ("run", "run", "Run the fleet, or its gateway alone."),
    "send": ("send", "send", "Hand an event to the fleet, or see who would wake."),
    "status": ("status", "status", "Show what runs, waits, is stopped, is live."),
    "runs": ("runs", "runs", "List runs, newest first."),
    "report": ("report", "report", "One page about the last day, to check the fleet by."),
    "explain": ("explain", "explain", "Tell the whole story of an id; what an error means."),
    "artefact": ("artefact", "artefact", "Read large outputs that turns tell of by reference."),
    "plot": ("plot", "plot", "Draw a series, its judgements and incidents as a picture."),
    "hold": ("hold", "hold", "See what waits for a person; claim it, note something."),
    "approve": ("hold", "approve", "Approve exactly what a hold holds, once."),
    "deny": ("hold", "deny", "Deny what a hold holds, for good."),
    "correct": ("correct", "correct", "Say what a run should have been judged."),
    "memory": ("memory", "memory", "See what agents know; propose, promote, take back."),
    "undo": ("undo", "undo", "Take back what an effect did, by its declared inverse."),
    "dead": ("dead", "dead", "See dead letters; take them up again, or close them."),
    "work": ("work", "work", "Give agents tasks; see, steer, pause, cancel them."),
    "stop": ("stop", "stop", "Stop an agent, a tool or everything; lasts until resumed."),
    "resume": ("stop", "resume", "Lift a stop; go on by a clock that jumped."),
    "budget": ("budget", "budget", "See what is spent, and give more room for a while."),
    "agent": ("agent", "agent", "See agents and what they may do; new, import, mode, release."),
    "tool": ("tool", "tool", "Declare the tools of an MCP server, pinned."),
    "try": ("dry_run", "try_", "Try an event on an agent, without effect or trace."),
    "policy": ("policy", "policy", "Publish and roll back the policy, and look at it."),
    "verify": ("verify", "verify", "Verify the record: ledger, rows, decisions, targets."),
    "ledger": ("ledger", "ledger", "Export, prove, archive and reconstruct the ledger."),
    "erase": ("erase", "erase", "Erase content; the ledger's proof still holds."),
    "backup": ("backup", "backup", "Copy the fleet's state into a folder, while it runs."),
    "restore": ("backup", "restore", "Put a backup in the place of a lost store."),
    "upgrade": ("upgrade", "upgrade", "Bring the store of an older version to this one."),
    "migrate": ("migrate", "migrate", "Move the state to PostgreSQL."),
    "pubsub": ("pubsub", "pubsub", "Make what Pub/Sub needs; send dead letters again."),
    "worker": ("worker", "worker", "Run one agent's judge for a gateway."),
    "identity": ("identity", "identity", "Issue and revoke the agents' own keys."),
    "completion": ("completion", "completion", "Print what a shell or an editor completes by."),
}

# What every order takes beside its own: option, what it is given, what help says.
REASON = ("--reason", "TEXT", "Why; it is recorded with your name.")
COMMAND_ID = ("--command-id", "ID", "A repeat of the same id is not done again.")

# What these write is content, for whoever shares the folder; all else is for its owner alone.
SHARED_CONTENT_VERBS = (["init"], ["agent", "new"])


class OutputClosed(Exception):
    """The error that whoever reads a verb's output went away, as `head` does."""


class UnknownVerb(click.UsageError):
    """There is no such verb; `mend` names the one that was probably meant."""

    def __init__(self, name: str, ctx: click.Context) -> None:
        from difflib import get_close_matches

        found = get_close_matches(name, VERBS, n=1, cutoff=0.6)
        self.mend = f"did you mean `vedette {found[0]}`? All: `vedette --help`" if found else None
        super().__init__(f"there is no verb {name!r}", ctx)


class LazyGroup(click.Group):
    """A group that knows its verbs' help lines without importing them."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        """Read the arguments; `--help` writes here."""
        with _translate_broken_pipe():
            return super().make_context(*args, **more)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments: `--json` wherever it stands, and spellings of before."""
        given, as_json = _take_json(args)
        at = _find_verb(given)
        words, _ = translate(given[at:])
        return super().parse_args(ctx, [*(["--json"] if as_json else []), *given[:at], *words])

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
        """Write what every order takes, then the verbs and their help lines."""
        with formatter.section("Every order also takes"):
            formatter.write_dl([(f"{one[0]} {one[1]}", one[2]) for one in (REASON, COMMAND_ID)])
        with formatter.section("Verbs"):
            formatter.write_dl([(name, line) for name, (_, _, line) in VERBS.items()])


def _take_json(args: list[str]) -> tuple[list[str], bool]:
    """Return the arguments without `--json`, and whether it was there; what follows `--` stays."""
    end = args.index("--") if "--" in args else len(args)
    return [*(a for a in args[:end] if a != "--json"), *args[end:]], "--json" in args[:end]


def _find_verb(args: list[str]) -> int:
    """Return where the verb stands, behind the options of the program."""
    at = 0
    while at < len(args) and args[at].startswith("-"):
        at += 2 if args[at] == "--config" else 1
    return min(at, len(args))


@contextmanager
def _translate_broken_pipe() -> Iterator[None]:
    """Raise OutputClosed for a broken pipe that is our output.

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
@click.option("--json", "as_json", is_flag=True, help="Print JSON; may stand anywhere.")
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
def cli(ctx: click.Context, config: Path | None, as_json: bool, utc: bool) -> None:
    """Run a fleet of ambient agents, each action decided by one policy gateway.

    Exit codes: 0 done, 1 findings, 2 usage or bad input, 3 unavailable.
    """
    ctx.obj = config


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    words, as_json = _take_json(given)
    words, now = translate(words[_find_verb(words) :])
    hint = f"this is now `vedette {now}`; the spelling of before goes with the next release"
    if now is not None and not as_json:
        click.echo(f"note: {hint}", err=True)
    if not any(words[: len(verb)] == verb for verb in SHARED_CONTENT_VERBS):
        os.umask(0o077)
    try:
        code = cli.main(given, prog_name="vedette", standalone_mode=False)
        if now is not None and as_json:
            # Afterwards, as what stands there otherwise is one error.
            click.echo(json.dumps({"note": hint}), err=True)
        _exit(code if isinstance(code, int) else DONE)
    except click.ClickException as error:
        print_error(describe_usage_error(error), as_json)
        _exit(USAGE)
    except (click.Abort, KeyboardInterrupt):
        _exit(130)
    except AlreadyDone as error:
        print_already_done(error.what, as_json)
        _exit(DONE)
    except OutputClosed:
        # The interpreter must not try to flush what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _exit(DONE)
    except Exception as error:
        if (report := describe_error(error)) is not None:
            print_error(report, as_json)
            _exit(exit_code(error))
        if (wrong := describe_bad_argument(error, given)) is not None:
            print_error(wrong, as_json)
            _exit(USAGE)
        # A bug of ours. 1 would say "findings" to a script.
        traceback.print_exc()
        click.echo("error: this is a bug in vedette; the lines above say where", err=True)
        _exit(UNAVAILABLE)


def _exit(code: int) -> NoReturn:
    if has_stuck_threads:
        from vedette.interfaces.signals import exit_process

        exit_process(code)
    raise SystemExit(code)
