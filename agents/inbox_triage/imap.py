"""The mail tools on an IMAP server: what they do on a Maildir, done there, idempotent by the key.

A mail is known by the address its source gave it (`vedette.sdk.MailAddress`): looked
for by its number, then by size and digest, in whatever folder. A move is one command of the server.
What we do leaves a keyword of ours on the mail, which no mail program shows: set before a move, and
in the same command as a flag. So a repeat after a crash still knows what was there before us, and
taking back takes the keyword away too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vedette.sdk import (
    MAX_MAIL,
    Call,
    MailAddress,
    MailSession,
    NoFolder,
    Outcome,
    Permanent,
    Temporary,
    mail_session,
    read_mail_address,
)

from . import compose, sending
from .maildir import Refused, check_folder, found_before

_FLAGS = {"important": "\\Flagged", "seen": "\\Seen"}
_FILED = "$VedetteFiled"
_OURS = {"important": "$VedetteImportant", "seen": "$VedetteSeen"}
_TRIES = 4  # looks for a mail that moves while we look
_ALIKE = 50  # mails of one size that are compared
_REMEMBERED = 1000
# Where mails were put that are no longer where they came to: what is done to them next looks there
# first. Only a guess, so nothing is lost with the process.
_last_folders: dict[str, str] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Found:
    """Where a mail lies: in the folder that is open, by its number there, with its flags."""

    folder: str
    uid: int
    flags: frozenset[str]


class Mailbox:
    """A mailbox that is lent to one call."""

    def __init__(self, session: MailSession, call: Call) -> None:
        self._session, self._call = session, call
        self._prefix = str(call.target.get("prefix", ""))

    def inside(self, folder: str) -> str:
        """Return what the server calls a folder."""
        return folder if folder == "INBOX" else self._prefix + folder

    def named(self) -> str:
        """Return the folder that the call names, as the server calls it. Raises Refused."""
        return self.inside(check_folder(str(self._call.args["folder"])))

    def address(self) -> MailAddress:
        """Return the address of the mail that the call is about. Raises Refused."""
        message = str(self._call.args["message"])
        found = read_mail_address(message)
        if found is None:
            raise Refused(f"message {message!r} is not the address of a mail on an IMAP server")
        return found

    @property
    def marks(self) -> bool:
        """Say whether mails of the open folder keep keywords of our own."""
        opened = self._session.opened
        return opened is not None and opened.keywords

    def find(self, at: MailAddress) -> Found:
        """Return where a mail lies, and open that folder. Raises Refused if it is nowhere."""
        looked = dict.fromkeys((at.folder, _last_folders.get(at.digest, at.folder)))
        for folder in looked:
            if (found := self._look(folder, at)) is not None:
                return found
        for folder in self._session.folders():
            if folder not in looked and (found := self._look(folder, at)) is not None:
                return found
        raise Refused(f"message {at} is not in the mailbox")

    def between(self, at: MailAddress, source: str, target: str, *, filing: bool) -> Found:
        """Return the mail that is to go from one folder to another, wherever it lies.

        A person may have a copy of their own in either: one that we marked comes first wherever
        it would be ours. Raises Refused if it is nowhere.
        """
        # Each look: a folder, and whether only a marked mail counts there.
        if filing:
            looks = [(source, False), (target, True), (target, False)]
        else:
            looks = [(source, True), (target, True), (target, False), (source, False)]
        if not self._session.can("MOVE"):
            # A crash may have left it in both: where it is to go comes first then.
            looks.remove((target, True))
            looks.insert(0, (target, True))
        for folder, ours in looks:
            if (found := self._look(folder, at, ours=ours)) is not None:
                return found
        return self.find(at)

    def move(self, at: MailAddress, found: Found, folder: str, *, mark: bool) -> bool:
        """Move a mail that was just found, marked; False if nobody says that it was still there.

        Raises Refused if there is no such folder.
        """
        marked = mark and self.marks
        if marked:
            self._session.flag(found.uid, [_FILED], on=True)
        try:
            uid = self._with_folder(folder, lambda: self._session.move(found.uid, folder))
        except Refused:
            if marked:
                self._session.flag(found.uid, [_FILED], on=False)
            raise
        with _lock:
            _last_folders[at.digest] = folder
            if len(_last_folders) > _REMEMBERED:
                del _last_folders[next(iter(_last_folders))]
        return uid is not None

    def unmark(self, at: MailAddress, folder: str) -> None:
        """Take the mark of a move from the mail in a folder that has it."""
        found = self._look(folder, at, ours=True)
        if found is not None and _FILED in found.flags:
            self._session.flag(found.uid, [_FILED], on=False)

    def remove_copy(self, at: MailAddress, copy: Found, folder: str) -> None:
        """Remove the original of a mail that was just found where it was to go, as a copy of ours.

        A server without MOVE copies first, with the mark, and a crash may come in between. What
        has no mark is a person's own copy, and so is what lies in the other folder then.
        """
        if self._session.can("MOVE") or (self.marks and _FILED not in copy.flags):
            return
        found = self._look(folder, at, ours=True)
        if found is not None:
            self._session.remove(found.uid)

    def change(self, found: Found, add: frozenset[str], remove: frozenset[str]) -> bool:
        """Change the flags of a mail that was just found; False if it moved meanwhile.

        Keywords of ours are left out where the server keeps none.
        """
        there = True
        for flags, on in ((add, True), (remove, False)):
            named = sorted(flag for flag in flags if self.marks or not flag.startswith("$"))
            if named:
                there &= self._session.flag(found.uid, named, on=on) is not None
        return there

    def ready(self, folder: str) -> None:
        """See that a folder can be opened. Raises Refused if there is no such folder."""

        def look() -> None:
            self._session.open(folder, write=True)

        self._with_folder(folder, look)

    def put(self, folder: str, flags: Sequence[str], mail: bytes) -> None:
        """Put a new mail into a folder. Raises Refused if there is no such folder."""
        self._with_folder(folder, lambda: self._session.append(folder, flags, mail))

    def holds(self, folder: str, message_id: str) -> int | None:
        """Return the number of the mail of ours that a folder holds; None if it holds none.

        Raises Temporary for a folder that is there and is not opened: what it holds is not known.
        """
        try:
            self._session.open(folder, write=True)
        except NoFolder as error:
            if self._session.lists(folder):
                raise Temporary(f"{error}, though the server lists it") from error
            return None
        found = self._session.search_message_id(message_id)
        return found[-1] if found else None

    def original(self) -> bytes | None:
        """Return the bytes of the mail that the call is about; None if it moved. Raises Refused."""
        at = self.address()
        if at.size > MAX_MAIL:
            raise Refused(f"the message is longer than {MAX_MAIL} bytes")
        return self._session.raw(self.find(at).uid)

    def remove(self, folder: str, message_id: str) -> None:
        """Remove our own mail from a folder."""
        uid = self.holds(folder, message_id)
        if uid is not None:
            self._session.remove(uid)

    def move_own(self, message_id: str, folder: str, to: str) -> None:
        """Move our own mail from one folder to another."""
        uid = self.holds(folder, message_id)
        if uid is not None:
            self._session.flag(uid, ["\\Seen"], on=True)
            self._with_folder(to, lambda: self._session.move(uid, to))

    def _look(self, folder: str, at: MailAddress, *, ours: bool = False) -> Found | None:
        """Return where a mail lies in a folder; with `ours` only one that has our mark.

        Where a folder keeps no marks, any will do.
        """
        session = self._session
        try:
            opened = session.open(folder, write=True)
        except NoFolder:
            return None
        if folder == at.folder and opened.validity == at.validity:
            found = self._among([at.uid], folder, at, ours)
            if found is not None:
                return found
        size = ("LARGER", str(max(0, at.size - 1)), "SMALLER", str(at.size + 1))
        return self._among(session.search(*size)[-_ALIKE:], folder, at, ours)

    def _among(self, uids: Sequence[int], folder: str, at: MailAddress, ours: bool) -> Found | None:
        mails = self._session.beginnings(uids)
        for mail in mails.values():
            is_removed = "\\Deleted" in mail.flags or (
                ours and self.marks and _FILED not in mail.flags
            )
            if not is_removed and mail.content is not None and at.is_of(mail.content):
                return Found(folder, mail.uid, mail.flags)
        return None

    def _with_folder(self, folder: str, act: Callable[[], int | None]) -> int | None:
        """Do what needs a folder; make it where the target allows that. Raises Refused."""
        try:
            return act()
        except NoFolder as error:
            if self._call.target.get("create_folders") is not True:
                mend = "make it, or set create_folders = true of the target"
                raise Refused(f"{error}; {mend}") from error
            self._session.create(folder)
            return act()


def file_mail(call: Call) -> Outcome:
    """Move a mail of the folder it came to into another."""
    return _lent(call, lambda box: _move(box, call, None, box.named()))


def unfile_mail(call: Call) -> Outcome:
    """Move a mail back into the folder it came to."""
    return _lent(call, lambda box: _move(box, call, box.named(), None))


def flag_mail(call: Call) -> Outcome:
    """Set a flag of a mail, wherever it lies."""
    return _lent(call, lambda box: _flag(box, call, on=True))


def unflag_mail(call: Call) -> Outcome:
    """Take a flag from a mail, wherever it lies."""
    return _lent(call, lambda box: _flag(box, call, on=False))


def draft_mail(call: Call) -> Outcome:
    """Put an answer among the drafts, unless it is there or has been sent since."""
    return _lent(call, lambda box: _draft(box, call))


def send(call: Call, write: Callable[[Call, bytes], bytes]) -> Outcome:
    """Send a mail through the target's relay."""
    return _lent(call, lambda box: sending.send(_Out(box, call), call, write))


def sent(call: Call) -> Outcome | None:
    """Say what came of a mail that was to be sent."""
    try:
        with mail_session(call.target) as session:
            return sending.sent(_Out(Mailbox(session, call), call), call)
    except (Temporary, Permanent) as error:
        return Outcome("unknown", error=str(error))


class _Out:
    """Where a mail is kept that is on its way: in `Sending`, then in `Sent`."""

    def __init__(self, box: Mailbox, call: Call) -> None:
        self._box, self._id = box, compose.message_id(call)
        self._sending = box.inside(str(call.target.get("sending", "Sending")))
        self._sent = box.inside(str(call.target.get("sent", "Sent")))

    def is_sent(self) -> bool:
        return self._box.holds(self._sent, self._id) is not None

    def has_started(self) -> bool:
        return self._box.holds(self._sending, self._id) is not None

    def original(self) -> bytes | None:
        return self._box.original()

    def ready(self) -> None:
        self._box.ready(self._sending)
        self._box.ready(self._sent)

    def begin(self, mail: bytes) -> None:
        self._box.put(self._sending, ["\\Seen"], mail)

    def drop(self) -> None:
        self._box.remove(self._sending, self._id)

    def finish(self) -> None:
        self._box.move_own(self._id, self._sending, self._sent)


def _lent(call: Call, act: Callable[[Mailbox], Outcome]) -> Outcome:
    """Act on the mailbox; say what the server says in the words of an outcome."""
    try:
        with mail_session(call.target) as session:
            return act(Mailbox(session, call))
    except Temporary as error:
        # Whatever was under way may have been done: every tool here finds that out when repeated.
        return Outcome("retry", error=str(error))
    except (Refused, Permanent) as error:
        return Outcome("failed", error=str(error))


def _move(box: Mailbox, call: Call, source: str | None, target: str | None) -> Outcome:
    at, was = box.address(), found_before(call)
    # A mail has one folder that it came to, so the other one of the two is that.
    filing, source, target = source is None, source or at.folder, target or at.folder
    data = {"message": call.args["message"], "folder": target}
    for _ in range(_TRIES):
        found = box.between(at, source, target, filing=filing)
        flags = found.flags - {_FILED}
        before = {"folder": source, "flags": " ".join(sorted(flags))}
        if was is not None and was.get("folder") == source:
            # What is taken back found the mail where it was to put it, and left it there.
            return Outcome("done", {**data, "folder": source, "was": before})
        if found.folder == target:
            if filing and box.marks and _FILED not in found.flags:
                # Somebody had put it there before us.
                before["folder"] = target
            box.remove_copy(at, found, source)
        elif found.folder != source:
            # Somebody put it elsewhere. That was a decision; it is not ours to undo.
            raise Refused(f"message lies in {found.folder}, not in {source}")
        elif not box.move(at, found, target, mark=filing):
            continue
        if not filing:
            box.unmark(at, target)
        return Outcome("done", {**data, "was": before})
    return Outcome("retry", error="the message keeps moving")


def _flag(box: Mailbox, call: Call, *, on: bool) -> Outcome:
    name = str(call.args["flag"])
    if name not in _FLAGS:
        raise Refused(f"flag {name!r} is not one of {', '.join(sorted(_FLAGS))}")
    flag, both = _FLAGS[name], frozenset({_FLAGS[name], _OURS[name]})
    was = found_before(call)
    back: dict[str, str] = {}
    for _ in range(_TRIES):
        found = box.find(box.address())
        has = found.flags & both
        if was is not None:
            # Taking back: all is to be as it was found, whoever had set it then.
            wanted = both & set(was.get("flags", "").split())
        elif on:
            wanted = has if flag in has else both
        else:
            wanted = frozenset()
        if not back:
            # The first look counts: a later one sees what we did. With our mark the flag is ours,
            # of a call that was cut short.
            own_flags = both if was is None and on and _OURS[name] in has else frozenset()
            back = {"folder": found.folder, "flags": " ".join(sorted(found.flags - own_flags))}
        if box.change(found, wanted - has, has - wanted):
            data = {"message": call.args["message"], "flag": name, "set": flag in wanted}
            return Outcome("done", {**data, "was": back})
    return Outcome("retry", error="the message keeps moving")


def _draft(box: Mailbox, call: Call) -> Outcome:
    name = compose.message_id(call)
    drafts = box.inside(str(call.target.get("drafts", "Drafts")))
    sent = box.inside(str(call.target.get("sent", "Sent")))
    if box.holds(drafts, name) is None and box.holds(sent, name) is None:
        original = box.original()
        if original is None:
            return Outcome("retry", error="the message keeps moving")
        box.put(drafts, ["\\Draft", "\\Seen"], compose.reply(call, original))
    return Outcome("done", {"message": name, "folder": drafts, "to": call.args["to"]})
