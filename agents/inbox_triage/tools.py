"""Performs the mail tools on a Maildir. All are idempotent by the call's key.

An outgoing mail waits in `.Outbox/new` for a mail transfer agent, which is to move it on (to
`.Sent`, say) under the same file name: a mail found anywhere in the Maildir is not written again.
Beyond that its Message-ID is the same each time.
"""

from __future__ import annotations

from collections.abc import Callable

from vedette.effect import Call, Outcome

from . import compose
from .maildir import Found, Maildir, Refused, check_folder

_FLAGS = {"important": "F", "seen": "S"}
_TRIES = 8  # looks for a mail that moves while we look


def file_mail(call: Call) -> Outcome:
    """Move a mail of the INBOX into a folder."""
    return _guarded(lambda box: _move(box, call, "", check_folder(str(call.args["folder"]))), call)


def unfile_mail(call: Call) -> Outcome:
    """Move a mail from a folder back into the INBOX."""
    return _guarded(lambda box: _move(box, call, check_folder(str(call.args["folder"])), ""), call)


def flag_mail(call: Call) -> Outcome:
    """Set a flag of a mail, wherever it lies: `important` or `seen`."""
    return _guarded(lambda box: _flag(box, call, on=True), call)


def unflag_mail(call: Call) -> Outcome:
    """Take a flag from a mail, wherever it lies."""
    return _guarded(lambda box: _flag(box, call, on=False), call)


def draft_mail(call: Call) -> Outcome:
    """Write an answer into `.Drafts`, where a person may send it."""
    return _guarded(lambda box: _write(box, call, "Drafts", "cur", ":2,DS", compose.reply), call)


def send_mail(call: Call) -> Outcome:
    """Put an answer into the outgoing spool."""
    return _guarded(lambda box: _write(box, call, "Outbox", "new", "", compose.reply), call)


def forward_mail(call: Call) -> Outcome:
    """Put a mail that carries the original into the outgoing spool."""
    return _guarded(lambda box: _write(box, call, "Outbox", "new", "", compose.forward), call)


def _guarded(act: Callable[[Maildir], Outcome], call: Call) -> Outcome:
    path = call.target.get("path")
    if not isinstance(path, str) or not path:
        return Outcome("failed", error="the target has no path; set it in vedette.toml")
    try:
        return act(Maildir(path))
    except Refused as error:
        return Outcome("failed", error=str(error))
    except OSError as error:
        # A full disk or a missing mount passes; every tool may be repeated.
        return Outcome("retry", error=f"{error.strerror or error}")


def _find(box: Maildir, call: Call) -> Found:
    message = str(call.args["message"])
    found = box.find(message)
    if found is None:
        raise Refused(f"message {message} is not in the mailbox")
    return found


def _shown(folder: str) -> str:
    return folder or "INBOX"


def _move(box: Maildir, call: Call, source: str, target: str) -> Outcome:
    for _ in range(_TRIES):
        found = _find(box, call)
        if found.folder == target:
            box.sync(found)
        elif found.folder != source:
            # Somebody put it elsewhere. That was a decision; it is not ours to undo.
            raise Refused(f"message lies in {_shown(found.folder)}, not in {_shown(source)}")
        elif not box.move(found, target):
            continue
        return Outcome("done", {"message": call.args["message"], "folder": _shown(target)})
    return Outcome("retry", error="the message keeps moving")


def _flag(box: Maildir, call: Call, *, on: bool) -> Outcome:
    name = str(call.args["flag"])
    flag = _FLAGS.get(name)
    if flag is None:
        raise Refused(f"flag {name!r} is not one of {', '.join(sorted(_FLAGS))}")
    for _ in range(_TRIES):
        found = _find(box, call)
        wanted = found.flags + flag if on else found.flags.replace(flag, "")
        if (flag in found.flags) is on:
            box.sync(found)
        elif not box.flag(found, wanted):
            continue
        return Outcome("done", {"message": call.args["message"], "flag": name, "set": on})
    return Outcome("retry", error="the message keeps moving")


def _write(
    box: Maildir,
    call: Call,
    folder: str,
    place: str,
    info: str,
    write: Callable[[Call, bytes], bytes],
) -> Outcome:
    name = f"{call.key}.vedette"
    for _ in range(_TRIES):
        mine = box.find(name)
        if mine is None:
            original = box.read(_find(box, call))
            if original is None:
                continue
            box.put(folder, place, name + info, write(call, original))
        else:
            box.sync(mine)
        return Outcome("done", {"message": name, "folder": folder, "to": call.args["to"]})
    return Outcome("retry", error="the message keeps moving")
