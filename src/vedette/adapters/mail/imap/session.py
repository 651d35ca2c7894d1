"""A session with an IMAP server (RFC 3501; UIDPLUS, RFC 4315; MOVE, RFC 6851): what we ask of it.

`server` is a table as in vedette.toml: `host`, `port` (993 or 143 by `tls`), `tls` (`implicit`,
`starttls`, or `none` on loopback alone), `user`, `password` or a reference to it, `ca_file` for a
private authority. Everything here blocks: call it in a thread.
"""

from __future__ import annotations

import imaplib
import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from vedette.adapters.mail.imap.address import PREFIX_BYTES
from vedette.adapters.mail.imap.connection import ImapConnection
from vedette.adapters.mail.imap.fetch_response import Mail, mails_of, uid_set
from vedette.adapters.mail.imap.folder_name import parse_list_line, quote_name
from vedette.domain.base import failpoint
from vedette.domain.base.errors import Permanent, Temporary, VedetteError
from vedette.domain.base.urls import is_loopback

TIMEOUT_S = 8.0  # for one command; a tool's call has ten seconds and several of them
MAX_MAIL = 32 * 1024 * 1024  # bytes of one mail with its attachments
_SLACK = 16 * 1024 * 1024  # what may come beside a mail: other answers, a long SEARCH
_PORTS = {"implicit": 993, "starttls": 143, "none": 143}
_COPYUID = re.compile(rb"\d+ \d+ (\d+)")
_CODE = re.compile(rb"\[([A-Z]+)[] ]")
_PLAIN = re.compile(r"[ -~]*")  # what a quoted string of a command can hold
_TRANSIENT_CODES = frozenset(
    {b"OVERQUOTA", b"UNAVAILABLE", b"INUSE", b"LIMIT", b"SERVERBUG"}
)  # RFC 5530
_FOLDERS = 500  # folders of a mailbox that are looked at


class NoFolder(Permanent):
    """There is no such folder on the mail server, or it may not be opened."""

    code = "no-such-folder"


class OpenFolder(Struct, frozen=True):
    """An IMAP folder as it was when opened; `keywords` says that mails keep ones of our own."""

    folder: str
    validity: int
    keywords: bool


@dataclass(slots=True)
class MailSession:
    """One logged-in IMAP connection, not for two threads at once, but `interrupt`.

    Every method raises Temporary where the server does not answer, and the session is then of no
    more use (`broken`), and Permanent where the server says no.
    """

    server: Mapping[str, Any]
    timeout_s: float = TIMEOUT_S
    connection: ImapConnection = field(init=False)
    opened: OpenFolder | None = None
    broken: bool = False
    _writable: bool = False

    def __post_init__(self) -> None:
        """Connect and log in."""
        host, tls = str(self.server.get("host") or ""), str(self.server.get("tls") or "implicit")
        if not host or tls not in _PORTS:
            raise Permanent("needs host, and tls = implicit, starttls or none", where=self.where)
        if tls == "none" and not is_loopback(host):
            mend = "write tls = implicit or starttls"
            raise Permanent("without TLS only loopback is reached", where=self.where, mend=mend)
        port = int(self.server.get("port") or _PORTS[tls])
        with self._command():
            context = _context(self.server) if tls != "none" else None
            first = context if tls == "implicit" else None
            self.connection = ImapConnection(
                host, port, first, timeout_s=self.timeout_s, max_bytes=MAX_MAIL + _SLACK
            )  # fmt: skip
        try:
            if context is not None and first is None:
                with self._command():
                    self.connection.start_tls(context)
            self._log_in()
        except BaseException:
            self.close()
            raise

    @property
    def where(self) -> str:
        """Return which server this is, for people."""
        port = self.server.get("port")
        return f"imap {self.server.get('host', '')}" + (f":{port}" if port else "")

    def can(self, capability: str) -> bool:
        """Say whether the server offers an extension."""
        return capability in self.connection.capabilities

    # --- reading ------------------------------------------------------------------------------

    def open(self, folder: str, *, write: bool = False) -> OpenFolder:
        """Open a folder, to read only unless `write`. Raises NoFolder."""
        known = self.opened
        if known is not None and known.folder == folder and (self._writable or not write):
            if not self.is_alive():
                raise Temporary("the server ended the session", where=self.where)
            return known
        self.opened = None
        with self._command():
            kind, answer = self.connection.select(_name(folder), readonly=not write)
        if kind != "OK":
            raise NoFolder(f"no folder {folder!r}: {_text(answer)}", where=self.where)
        validity, keywords = self._number("UIDVALIDITY"), self._code("PERMANENTFLAGS")
        if not validity:
            what = f"folder {folder!r} has no lasting numbers (UIDVALIDITY)"
            raise Permanent(what, where=self.where, mend="use a server that has them")
        self.opened, self._writable = OpenFolder(folder, validity, rb"\*" in keywords), write
        return self.opened

    def search(self, *criteria: str) -> list[int]:
        """Return the UIDs of the open folder's mails that fit, in order."""
        found: list[int] = []
        for line in self._uid_data("SEARCH", *criteria):
            found += (int(number) for number in (line or b"").split() if number.isdigit())
        return sorted(found)

    def mails(self, uids: Sequence[int], *, items: str = "") -> dict[int, Mail]:
        """Return flags, size and date of mails of the open folder; of those that are there.

        `items` asks for more: BODY.PEEK[HEADER] or BODY.PEEK[].
        """
        if not uids:
            return {}
        attributes = f"(UID FLAGS INTERNALDATE RFC822.SIZE {items})".replace(" )", ")")
        found = mails_of(self._uid_data("FETCH", uid_set(uids), attributes))
        wanted = set(uids)
        return {uid: mail for uid, mail in found.items() if uid in wanted}

    def raw(self, uid: int) -> bytes | None:
        """Return the bytes of a mail; None if it is gone. `seen` stays as it is."""
        mail = self.mails([uid], items="BODY.PEEK[]").get(uid)
        return None if mail is None else mail.content

    def beginnings(self, uids: Sequence[int]) -> dict[int, Mail]:
        """Return mails as `mails` does, with as much of each as its `Address` is told by."""
        return self.mails(uids, items=f"BODY.PEEK[]<0.{PREFIX_BYTES}>")

    def search_message_id(self, message_id: str) -> list[int]:
        """Return the UIDs of the open folder's mails that have this Message-ID, in order."""
        return self.search("HEADER", "Message-ID", quote_name(message_id))

    def folders(self) -> list[str]:
        """Return the folders that can be opened, a bounded number."""
        with self._command():
            kind, answer = self.connection.list('""', '"*"')
        if kind != "OK":
            raise Permanent(f"no list of folders: {_text(answer)}", where=self.where)
        found = [name for line in answer if (name := parse_list_line(line)) is not None]
        return found[:_FOLDERS]

    def lists(self, folder: str) -> bool:
        """Say whether the server has a folder of this name, by its own list. Raises NoFolder."""
        with self._command():
            kind, answer = self.connection.list('""', _name(folder))
        if kind != "OK":
            raise Permanent(f"no list of folders: {_text(answer)}", where=self.where)
        return any(line is not None for line in answer)

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until something happens in the open folder; say whether it did."""
        with self._command():
            return self.connection.wait(seconds)

    # --- writing ------------------------------------------------------------------------------

    def flag(self, uid: int, flags: Iterable[str], *, on: bool) -> frozenset[str] | None:
        """Set flags of a mail of the open folder, or take them away, in one command.

        Returns the flags that it has then; None if the server says nothing of them, as where the
        mail is gone: that is no error to it.
        """
        failpoint.hit_failpoint("imap.store:before")
        answer = self._uid_data("STORE", str(uid), ("+" if on else "-") + "FLAGS", _flags(flags))
        failpoint.hit_failpoint("imap.store:after")
        found = mails_of(answer).get(uid)
        return None if found is None else found.flags

    def move(self, uid: int, folder: str) -> int | None:
        """Move a mail of the open folder; return its new UID where the server says it.

        Without MOVE a copy is made and the original expunged, by its UID alone: after a crash in
        between there are two. Raises NoFolder.
        """
        failpoint.hit_failpoint("imap.move:before")
        if self.can("MOVE"):
            kind, answer = self._run_uid("MOVE", str(uid), _name(folder))
            self._check_target(kind, answer, folder)
        elif self.can("UIDPLUS"):
            kind, answer = self._run_uid("COPY", str(uid), _name(folder))
            self._check_target(kind, answer, folder)
            failpoint.hit_failpoint("imap.copy:after")
            self._expunge(uid)
        else:
            # A plain EXPUNGE would remove what others marked too.
            mend = "use a server with MOVE or UIDPLUS"
            raise Permanent("the server can move no single mail", where=self.where, mend=mend)
        failpoint.hit_failpoint("imap.move:after")
        copied = _COPYUID.search(self._code("COPYUID"))
        return int(copied[1]) if copied else None

    def remove(self, uid: int) -> None:
        """Remove a mail of the open folder, and no other one."""
        if not self.can("UIDPLUS"):
            mend = "use a server with UIDPLUS"
            raise Permanent("the server can remove no single mail", where=self.where, mend=mend)
        failpoint.hit_failpoint("imap.remove:before")
        self._expunge(uid)
        failpoint.hit_failpoint("imap.remove:after")

    def append(self, folder: str, flags: Iterable[str], raw: bytes) -> None:
        """Put a new mail into a folder: all of it or nothing. Raises NoFolder."""
        failpoint.hit_failpoint("imap.append:before")
        with self._command():
            # The server sets the date: ours would need a clock.
            kind, answer = self.connection.append(_name(folder), _flags(flags), "", raw)
        self._check_target(kind, answer, folder)
        failpoint.hit_failpoint("imap.append:after")

    def create(self, folder: str) -> None:
        """Make a folder, unless it is there."""
        failpoint.hit_failpoint("imap.create:before")
        with self._command():
            kind, answer = self.connection.create(_name(folder))
            if kind == "OK":
                self.connection.subscribe(_name(folder))
        failpoint.hit_failpoint("imap.create:after")
        if kind != "OK" and b"ALREADYEXISTS" not in b" ".join(part for part in answer if part):
            raise NoFolder(f"folder {folder!r} cannot be made: {_text(answer)}", where=self.where)

    # --- the end ------------------------------------------------------------------------------

    def is_alive(self) -> bool:
        """Say whether the server still answers; lets it tell what changed."""
        try:
            with self._command():
                kind, _ = self.connection.noop()
                # What it said unasked the library keeps until somebody asks, which nobody does.
                self.connection.untagged_responses.clear()
                return kind == "OK"
        except VedetteError:
            return False

    def interrupt(self) -> None:
        """Break the connection off from another thread."""
        self.broken = True
        self.connection.interrupt()

    def close(self) -> None:
        """Take leave, and close the connection whatever the server says."""
        with suppress(Exception):
            if not self.broken:
                self.connection.reset_limits()
                self.connection.logout()
        with suppress(Exception):
            self.connection.shutdown()
        self.broken = True

    # --- inside -------------------------------------------------------------------------------

    def _log_in(self) -> None:
        user, password = str(self.server.get("user") or ""), self._password()
        if not self.can("AUTH=PLAIN") and not _PLAIN.fullmatch(user + password):
            what = "the server has no AUTH=PLAIN, and LOGIN cannot say this user and password"
            mend = "see that both are plain ASCII, or ask who runs it for AUTH=PLAIN"
            raise Permanent(what, where=self.where, mend=mend)
        try:
            with self._command():
                if self.can("AUTH=PLAIN"):
                    credentials = f"\0{user}\0{password}".encode()
                    self.connection.authenticate("PLAIN", lambda _: credentials)
                else:
                    self.connection.login(quote_name(user), password)
                # What it can do after the login is more than it said before.
                self.connection.capabilities = _capabilities(self.connection)
        except Permanent as error:
            # Not for ever: a password is mended, and a server says so too when it is overloaded.
            what = f"login of {user!r} refused: {error.what}"
            raise Temporary(what, where=self.where, mend="mend user or password") from error

    def _password(self) -> str:
        given = self.server.get("password")
        if given is None:
            from vedette.config.secret_reference import read_secret

            given = read_secret(self.server, "password", where=self.where)
        if given is None:
            mend = "write password_env ="
            raise Permanent("there is no password", where=self.where, mend=mend)
        return str(given)

    @contextmanager
    def _command(self) -> Iterator[None]:
        """Give one command its time; turn what goes wrong into our errors."""
        if hasattr(self, "connection"):
            self.connection.reset_limits()
        try:
            yield
        except VedetteError:
            raise
        except ssl.SSLCertVerificationError as error:
            self.broken = True
            mend = "name the certificate's own host, or set ca_file"
            what = f"its certificate is not trusted: {error.verify_message}"
            raise Permanent(what, where=self.where, mend=mend) from error
        except (imaplib.IMAP4.abort, OSError, EOFError) as error:
            self.broken = True
            raise Temporary(_error_text(error), where=self.where) from error
        except imaplib.IMAP4.error as error:
            raise Permanent(_error_text(error), where=self.where) from error
        except ValueError as error:
            # What the library cannot say to a server; its words would tell of what it is.
            self.broken = True
            what = f"it cannot be asked: {type(error).__name__}"
            raise Permanent(what, where=self.where, mend="see that the host is a name") from None

    def _run_uid(self, command: str, *args: str) -> tuple[str, list[Any]]:
        with self._command():
            return self.connection.uid(command, *args)

    def _uid_data(self, command: str, *args: str) -> list[Any]:
        kind, answer = self._run_uid(command, *args)
        if kind != "OK":
            raise Permanent(f"{command} refused: {_text(answer)}", where=self.where)
        return answer

    def _check_target(self, kind: str, answer: Sequence[Any], folder: str) -> None:
        if kind == "OK":
            return
        code = _CODE.search(b" ".join(part for part in answer if part))
        what = f"folder {folder!r} takes no mail: {_text(answer)}"
        if code is not None and code[1] in (b"TRYCREATE", b"NONEXISTENT"):
            raise NoFolder(what, where=self.where)
        if code is not None and code[1] in _TRANSIENT_CODES:
            raise Temporary(what, where=self.where)
        raise Permanent(what, where=self.where)

    def _expunge(self, uid: int) -> None:
        self._uid_data("STORE", str(uid), "+FLAGS.SILENT", r"(\Deleted)")
        self._uid_data("EXPUNGE", str(uid))

    def _number(self, name: str) -> int:
        text = self._code(name).strip()
        return int(text) if text.isdigit() else 0

    def _code(self, name: str) -> bytes:
        """Return what an answer said beside OK, in its brackets."""
        _, answer = self.connection.response(name)
        return b" ".join(part for part in answer if isinstance(part, bytes))


def _context(server: Mapping[str, Any]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=server.get("ca_file"))


def _capabilities(connection: ImapConnection) -> tuple[str, ...]:
    kind, answer = connection.capability()
    text = b" ".join(part for part in answer if part) if kind == "OK" else b""
    found = text.decode("ascii", "replace").upper().split()
    return tuple(dict.fromkeys(found)) or tuple(connection.capabilities)


def _name(folder: str) -> str:
    try:
        return quote_name(folder)
    except ValueError as error:
        raise NoFolder(str(error)) from error


def _flags(flags: Iterable[str]) -> str:
    return "(" + " ".join(flags) + ")"


def _text(answer: object) -> str:
    """Return what a server said as one line that is safe to print, and not long."""
    if isinstance(answer, list | tuple):
        return " ".join(_text(part) for part in answer if part)
    text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:200]


def _error_text(error: BaseException) -> str:
    if isinstance(error, socket.gaierror):
        return "its name is not known here"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return _text(error.args[0] if error.args else "") or type(error).__name__
