"""Error report of a verb, to people and as JSON, and the exit code that it makes."""

from __future__ import annotations

import errno
import json
from typing import Any

import click

from vedette.domain.base.disk_errors import (
    FAILURE_ERRNOS,
    FAILURE_MEND,
    FULL_ERRNOS,
    FULL_MEND,
    to_disk_error,
)
from vedette.domain.base.errors import BadStore, StoreBusy, Temporary, VedetteError
from vedette.interfaces.cli.output import fit_text, terminal_columns

DONE, FINDINGS, USAGE, UNAVAILABLE = 0, 1, 2, 3

ErrorJson = dict[str, str | None]

_OTHER_FOLDER = "set VEDETTE_STATE to another folder"
_OS_ERRORS = {
    **dict.fromkeys(FULL_ERRNOS, ("no-space", FULL_MEND)),
    **dict.fromkeys(FAILURE_ERRNOS, ("disk-failed", FAILURE_MEND)),
    errno.EACCES: ("no-permission", f"run as its owner, or {_OTHER_FOLDER}"),
    errno.EPERM: ("no-permission", f"run as its owner, or {_OTHER_FOLDER}"),
    errno.EROFS: ("no-permission", f"it is read-only; {_OTHER_FOLDER}"),
    errno.EADDRINUSE: ("port-taken", "stop what listens there, or serve on another port"),
}
# What PostgreSQL calls a full disk; and SQLite, where its log's index had no room to grow.
_DISK_FULL, _INDEX_FULL = "53100", 4874


def describe_error(error: Exception) -> ErrorJson | None:
    """Return what a verb tells a person of an error, as JSON; None if it is a bug of ours."""
    if isinstance(error, OSError):
        code, mend = _OS_ERRORS.get(error.errno or 0, ("system", None))
        where = str(error.filename) if error.filename else None
        return {"code": code, "what": error.strerror or str(error), "where": where, "mend": mend}
    if (full := _describe_full_disk(error)) is not None:
        return full
    known = to_disk_error(error, "the state folder") or error
    return known.to_json() if isinstance(known, VedetteError) else None


def exit_code(error: Exception) -> int:
    """Return the exit code of an error that a person is told about."""
    is_usage = isinstance(error, VedetteError) and not isinstance(
        error, Temporary | StoreBusy | BadStore
    )
    return USAGE if is_usage and _describe_full_disk(error) is None else UNAVAILABLE


def _describe_full_disk(error: BaseException) -> ErrorJson | None:
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
            where = str(named) if named else where
            return {"code": "no-space", "what": what, "where": where, "mend": FULL_MEND}
        at = at.__cause__ or at.__context__
    return None


def describe_bad_argument(error: Exception, arguments: list[str]) -> ErrorJson | None:
    """Return the error of the command line's first argument that is no text, if that failed.

    Not before it is used: a file may well have such a name. orjson says so with a TypeError.
    """
    if not (isinstance(error, UnicodeEncodeError | TypeError) and "surrogates" in str(error)):
        return None
    for word in arguments:
        try:
            word.encode()
        except UnicodeEncodeError:
            what = f"the argument {word[:80]!r} is no text"
            mend = "write it in UTF-8, as the terminal's locale says"
            return {"code": "usage", "what": what, "where": None, "mend": mend}
    return None


def describe_usage_error(error: click.ClickException) -> ErrorJson:
    """Return what click found wrong with the command line; a `mend` of its own goes first."""
    mend = getattr(error, "mend", None)
    if mend is None and isinstance(error, click.UsageError) and error.ctx is not None:
        mend = f"see `{error.ctx.command_path} --help`"
    what = " ".join(error.format_message().split()).rstrip(".")
    return {"code": "usage", "what": what, "where": None, "mend": mend}


def print_error(error: ErrorJson, as_json: bool) -> None:
    """Print an error on standard error, as JSON or for people."""
    if as_json:
        click.echo(json.dumps({"error": error}), err=True)
        return
    where = f"{error['where']}: " if error["where"] else ""
    mend = f" ({error['mend']})" if error["mend"] else ""
    text = f"error[{error['code']}]: {where}{error['what']}{mend}"
    click.echo(fit_text(text, terminal_columns()), err=True)


def print_already_done(what: str, as_json: bool) -> None:
    """Print that an order was carried out before: who repeats it wants it done, and it is."""
    done: dict[str, Any] = {"already_done": True, "what": what}
    click.echo(json.dumps(done) if as_json else f"nothing to do: {what}")
