"""The standard library's IMAP client over a connection that is bounded in time and in size.

`imaplib` reads as many bytes as a server announces and waits as long as it likes. Here every
command has a deadline and a number of bytes that its answers may have, a connection can be broken
off from another thread, and IDLE (RFC 2177) waits for news.
"""

from __future__ import annotations

import imaplib
import select
import socket
import ssl
import time
from contextlib import suppress

_READ = 65_536
_MAX_LINE = 16 * 1024 * 1024  # a SEARCH of a million mails is one line


class ImapConnection(imaplib.IMAP4):
    """One connection to an IMAP server, not for two threads at once, but `interrupt`."""

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext | None,
        *,
        timeout_s: float,
        max_bytes: int,
    ) -> None:
        """Connect; with a `context` in TLS from the first byte on.

        Each command may take `timeout_s` seconds and be answered by `max_bytes` bytes. Raises
        OSError and imaplib.IMAP4.error.
        """
        self._context = context
        self._buffer = bytearray()
        self._timeout_s, self._max_bytes = timeout_s, max_bytes
        self.reset_limits()
        super().__init__(host, port, timeout_s)

    def reset_limits(self) -> None:
        """Let the time and the bytes of the next command begin."""
        self._deadline = time.monotonic() + self._timeout_s
        self._bytes_left = self._max_bytes

    def interrupt(self) -> None:
        """Break the connection off, from whatever thread: who waits for it fails."""
        with suppress(OSError):
            # Not the TLS socket's own: that one forgets its keys under whoever reads.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Go on in TLS. Raises imaplib.IMAP4.error where the server does not."""
        if self.state != "NONAUTH" or "STARTTLS" not in self.capabilities:
            # Logged in already, without TLS: so would whoever stands in between have it.
            raise self.error("the server offers no STARTTLS")
        self.reset_limits()
        kind, _ = self._simple_command("STARTTLS")
        if kind != "OK" or self._buffer:
            # What came before TLS and would be read after it is from whoever is in between.
            raise self.abort("no TLS after STARTTLS")
        self._encrypt(context)
        self._get_capabilities()

    def wait(self, seconds: float) -> bool:
        """Wait by IDLE until something happens in the folder; say whether it did.

        Raises as any command does, at once if `interrupt` is called.
        """
        tag = self._new_tag()
        self.tagged_commands.pop(tag, None)
        self.reset_limits()
        self.send(tag + b" IDLE\r\n")
        news = False
        while not (line := self._read_line()).startswith(b"+"):
            if line.startswith(tag):
                raise self.error(f"IDLE refused: {line[:200]!r}")
            news |= _is_news(line)
        end = time.monotonic() + seconds
        while not news and self._readable(max(0.0, end - time.monotonic())):
            self.reset_limits()
            line = self._read_line()
            if line.startswith(b"* BYE"):
                raise self.abort("the server ended the connection")
            news = _is_news(line)
        self.reset_limits()
        self.send(b"DONE\r\n")
        while not self._read_line().startswith(tag):
            pass
        return news

    # --- what imaplib is made of --------------------------------------------------------------

    def open(self, host: str = "", port: int = 143, timeout: float | None = None) -> None:
        """Connect."""
        self.host, self.port = host, port
        self.sock = socket.create_connection((host, port), timeout)
        if self._context is not None:
            self._encrypt(self._context)

    def read(self, size: int) -> bytes:
        """Read a literal of `size` bytes."""
        if size > self._bytes_left:
            raise self.abort(f"an answer of {size} bytes, the limit is {self._max_bytes}")
        while len(self._buffer) < size:
            self._fill()
        return self._cut(size)

    def readline(self) -> bytes:
        """Read one line, with its end."""
        searched = 0
        while (at := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > _MAX_LINE:
                raise self.abort("a line without end")
            self._fill()
        return self._cut(at + 1)

    def shutdown(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    # --- bytes --------------------------------------------------------------------------------

    def _encrypt(self, context: ssl.SSLContext) -> None:
        plain = self.sock
        try:
            self.sock = context.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise

    def _fill(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no answer within {self._timeout_s:g} s")
        self.sock.settimeout(left)
        data = self.sock.recv(_READ)
        if not data:
            raise self.abort("the server ended the connection")
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise self.abort(f"an answer of more than {self._max_bytes} bytes")
        self._buffer += data

    def _cut(self, size: int) -> bytes:
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        return found

    def _read_line(self) -> bytes:
        return self.readline().rstrip(b"\r\n")

    def _readable(self, seconds: float) -> bool:
        """Say whether the server sends something within these seconds."""
        if self._buffer or (isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()):
            return True
        ready, _, _ = select.select([self.sock], [], [], seconds)
        return bool(ready)


def _is_news(line: bytes) -> bool:
    """Say whether a line tells that the folder holds more or less than before."""
    return line.split()[2:3] in ([b"EXISTS"], [b"EXPUNGE"])
