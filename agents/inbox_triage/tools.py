"""Performs the mail tools on a Maildir or an IMAP server, idempotent by the call's key.

A mail is sent through the relay that the target names (`sending.py`). A Maildir without one keeps
it: an outgoing mail waits in `.Outbox/new` for a mail transfer agent, which is to move it on (to
`.Sent`, say) under the same file name: a mail found anywhere in the Maildir is not written again.
Beyond that its Message-ID is the same each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vedette.sdk import Call, Outcome

from . import compose
from .maildir import Found, Maildir, Refused, check_folder, found_before

_FLAGS = {"important": "F", "seen": "S"}
_SENDING, _SENT = "Sending", "Sent"
# Where mail programs put what is removed.
_TRASH = frozenset({"trash", "deleted items", "deleted messages"})
_TRIES = 8  # looks for a mail that moves while we look


def file_mail(call: Call) -> Outcome:
    """Move a mail of the INBOX into a folder."""
    if _on_imap(call):
        from . import imap

        return imap.file_mail(call)
    return _guarded(lambda box: _move(box, call, "", check_folder(str(call.args["folder"]))), call)


def unfile_mail(call: Call) -> Outcome:
    """Move a mail from a folder back into the INBOX."""
    if _on_imap(call):
        from . import imap

        return imap.unfile_mail(call)
    return _guarded(lambda box: _move(box, call, check_folder(str(call.args["folder"])), ""), call)


def flag_mail(call: Call) -> Outcome:
    """Set a flag of a mail, wherever it lies: `important` or `seen`."""
    if _on_imap(call):
        from . import imap

        return imap.flag_mail(call)
    return _guarded(lambda box: _flag(box, call, on=True), call)


def unflag_mail(call: Call) -> Outcome:
    """Take a flag from a mail, wherever it lies."""
    if _on_imap(call):
        from . import imap

        return imap.unflag_mail(call)
    return _guarded(lambda box: _flag(box, call, on=False), call)


def draft_mail(call: Call) -> Outcome:
    """Write an answer into `.Drafts`, where a person may send it."""
    if _on_imap(call):
        from . import imap

        return imap.draft_mail(call)
    return _guarded(lambda box: _write(box, call, "Drafts", "cur", ":2,DS", compose.reply), call)


def send_mail(call: Call) -> Outcome:
    """Send an answer through the target's relay; without one put it into the outgoing spool."""
    return _send(call, compose.reply)


def forward_mail(call: Call) -> Outcome:
    """Send a mail that carries the original, as an answer is sent."""
    return _send(call, compose.forward)


def sent_mail(call: Call) -> Outcome | None:
    """Say what came of a mail that was to be sent; None if it was never handed over."""
    if _on_imap(call):
        from . import imap

        return imap.sent(call)
    found: list[Outcome | None] = []

    def ask(box: Maildir) -> Outcome:
        if call.target.get("smtp_host"):
            from . import sending

            found.append(sending.sent(_Out(box, call), call))
        else:
            name = f"{call.key}.vedette"
            data = {"message": name, "folder": "Outbox", "to": call.args["to"]}
            found.append(Outcome("done", data) if box.find(name) else None)
        return Outcome("done")

    said = _guarded(ask, call)
    # Without a look into the mailbox nothing can be known of it.
    return found[0] if found else Outcome("unknown", error=said.error)


def _send(call: Call, write: Callable[[Call, bytes], bytes]) -> Outcome:
    if _on_imap(call):
        from . import imap

        return imap.send(call, write)
    if call.target.get("smtp_host"):
        from . import sending

        return _guarded(lambda box: sending.send(_Out(box, call), call, write), call)
    return _guarded(lambda box: _write(box, call, "Outbox", "new", "", write), call)


class _Out:
    """Where a mail is kept that is on its way: in `.Sending`, then in `.Sent`.

    A person who removes it there has it sent again; a mail program moves it to the trash, or flags
    it. Wherever else it lies says nothing of whether it arrived.
    """

    def __init__(self, box: Maildir, call: Call) -> None:
        self._box, self._call, self._name = box, call, f"{call.key}.vedette"

    def is_sent(self) -> bool:
        return any(found.folder == _SENT for found in self._copies())

    def has_started(self) -> bool:
        # Also what is among the sent by now: a person may have moved it since `is_sent` was asked.
        return bool(self._copies())

    def original(self) -> bytes | None:
        return self._box.read(_find(self._box, self._call))

    def ready(self) -> None:
        self._box.make(_SENDING)
        self._box.make(_SENT)

    def begin(self, mail: bytes) -> None:
        # What a person flagged as removed would be taken for this one.
        for found in self._lying():
            if _is_removed(found):
                self._box.remove(found)
        self._box.put(_SENDING, "cur", f"{self._name}:2,S", mail)

    def drop(self) -> None:
        for found in self._lying():
            self._box.remove(found)

    def finish(self) -> None:
        for found in self._lying():
            self._box.move(found, _SENT)

    def _lying(self) -> list[Found]:
        """Return the mail where it lies among those that are being sent."""
        return [found for found in self._box.every(self._name) if found.folder == _SENDING]

    def _copies(self) -> list[Found]:
        """Return the mail wherever it lies, but where it was removed."""
        # Twice: it may move from a folder not yet looked at to one that was.
        for _ in range(2):
            copies = [found for found in self._box.every(self._name) if not _is_removed(found)]
            if copies:
                return copies
        return []


def _is_removed(found: Found) -> bool:
    if found.folder == _SENT:
        return False  # who tidies up there takes nothing back
    return "T" in found.flags or found.folder.casefold() in _TRASH


def _on_imap(call: Call) -> bool:
    # What acts there is loaded where a target needs it: a fleet on a Maildir loads no network code.
    return call.target.get("kind") == "imap"


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


def _to_state(before: Mapping[str, str]) -> dict[str, str]:
    return {**before, "folder": _shown(before["folder"])}


def _move(box: Maildir, call: Call, source: str, target: str) -> Outcome:
    was = found_before(call)
    # What is taken back found the mail where it was to put it, and left it there: so do we.
    stays = was is not None and was.get("folder") == _shown(source)
    for _ in range(_TRIES):
        found = _find(box, call)
        before = box.before(f"{call.key}.{'file' if target else 'unfile'}", found)
        if found.folder == target or stays:
            box.sync(found)
        elif found.folder != source:
            # Somebody put it elsewhere. That was a decision; it is not ours to undo.
            raise Refused(f"message lies in {_shown(found.folder)}, not in {_shown(source)}")
        elif not box.move(found, target):
            continue
        data = {"message": call.args["message"], "folder": _shown(source if stays else target)}
        return Outcome("done", {**data, "was": _to_state(before)})
    return Outcome("retry", error="the message keeps moving")


def _flag(box: Maildir, call: Call, *, on: bool) -> Outcome:
    name = str(call.args["flag"])
    flag = _FLAGS.get(name)
    if flag is None:
        raise Refused(f"flag {name!r} is not one of {', '.join(sorted(_FLAGS))}")
    was = found_before(call)
    note = f"{call.key}.{'flag' if on else 'unflag'}"
    if was is not None:
        # Taking back: the flag is to be as it was found, whoever had set it then.
        on = flag in was.get("flags", "")
    new = was is not None and was.get("place") == "new"
    for _ in range(_TRIES):
        found = _find(box, call)
        before = box.before(note, found)
        wanted = found.flags.replace(flag, "") + (flag if on else "")
        if (flag in found.flags) is on and not (new and not wanted and found.place == "cur"):
            box.sync(found)
        elif not box.flag(found, wanted, new=new):
            continue
        data = {"message": call.args["message"], "flag": name, "set": on}
        return Outcome("done", {**data, "was": _to_state(before)})
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
