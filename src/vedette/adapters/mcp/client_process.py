"""The process that speaks to one MCP server, as the engine has it: started, asked, killed.

The engine never loads the SDK, nor reads a byte that a server wrote but in frames of a bounded
size. Whatever becomes of that process, its calls end here.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import vedette
from vedette.adapters.http_client import token_headers
from vedette.adapters.mcp.frames import pack_frame, read_frame
from vedette.adapters.mcp.scratch import ScratchFolder
from vedette.adapters.mcp.server_table import (
    program_folders,
    sent_secrets,
    server_environment,
    server_memory,
)
from vedette.config.reach import build_reach
from vedette.domain.base.addresses import refusal_reason
from vedette.domain.ports.plugin import BoxSettings
from vedette.domain.redaction import SecretRedactor

_COMMAND = (sys.executable, "-P", "-m", "vedette.app.mcp_main")
# What the process itself is started with; the server gets what its target says, and no more.
_ENVIRONMENT = ("LANG", "LC_ALL", "PATH", "PYTHONPATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "TZ")
# How long a process may take to end once its line is hung up.
_END_S = 5.0


class ProcessLost(Exception):
    """The process ended, was killed, or never came up."""


class UnsendableMessage(Exception):
    """A message is too long for a frame, or has no JSON form; nothing of it was sent."""


class ClientProcess:
    """One process for one server; belongs to one event loop."""

    def __init__(self, table: Mapping[str, Any], box: BoxSettings) -> None:
        self._table, self._box = table, box
        secrets = sent_secrets(table)
        # Short ones too, but not in a listing: its names, values and digests are to stay true.
        self._errors = SecretRedactor(secrets, "***", min_chars=1)
        self._listing = SecretRedactor(secrets, "***")
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._scratch: ScratchFolder | None = None
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last = 0

    @property
    def is_alive(self) -> bool:
        """Say whether it runs, as far as is known."""
        return self._reading is not None and not self._reading.done()

    async def start(self) -> None:
        """Start it. Raises ProcessLost if that cannot be, with why."""
        try:
            first = await self._first_message()
            self._line = self._spawn()
        except OSError as error:
            raise ProcessLost(f"cannot be started: {error.strerror or error}") from error
        reader, self._writer = await asyncio.open_connection(sock=self._line)
        self._reading = asyncio.create_task(self._read(reader))
        self._write(first)

    async def ask(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer to a message; what it says beside a result is without secrets.

        Raises ProcessLost, TimeoutError, and UnsendableMessage.
        """
        if not self.is_alive:
            raise ProcessLost("ended")
        self._last += 1
        number = self._last
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        try:
            self._write({**message, "id": number})
            async with asyncio.timeout(seconds):
                found = await answer
        finally:
            self._pending.pop(number, None)
        if "result" in found:
            return found
        redactor = self._listing if "tools" in found else self._errors
        # The message's own keys are ours, whatever a secret is.
        return {key: redactor.redact(value) for key, value in found.items()}

    def kill(self) -> None:
        """End it, and all that it started."""
        process, self._process = self._process, None
        if self._line is not None:
            with suppress(OSError):  # hung up already
                self._line.shutdown(socket.SHUT_RDWR)  # its watcher kills the rest
        if self._writer is not None:
            self._writer.close()
        self._fail("ended")
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()  # it may be what calls this, and then is at its end
        scratch, self._scratch = self._scratch, None

        def clean() -> None:
            if process is not None:
                try:
                    process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    process.kill()  # with whom its client dies
                    process.wait()
            if scratch is not None:
                scratch.remove()

        try:
            asyncio.get_running_loop().run_in_executor(None, clean)
        except RuntimeError:  # the loop is closed: nobody waits behind this
            clean()

    # --- start ------------------------------------------------------------------------------

    def _spawn(self) -> socket.socket:
        """Start the process, in a session of its own; return our end of its line."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 (our own command)
                _COMMAND, stdin=theirs.fileno(), stdout=subprocess.DEVNULL,
                start_new_session=True, cwd="/",
                env=_environment(),
            )  # fmt: skip
        return ours

    async def _first_message(self) -> dict[str, Any]:
        table = self._table
        self._scratch = ScratchFolder(self._box.scratch)
        scratch = str(self._scratch.path)
        first: dict[str, Any] = {
            "version": vedette.__version__, "memory": server_memory(table), "addresses": {},
            # A program's own, and empty: where it starts, an interpreter looks for code.
            "cwd": scratch, "box": None,
        }  # fmt: skip
        reach, is_program = build_reach((table,)), "command" in table
        read, write = [*table.get("read", ()), *reach.files], list(table.get("write", ()))
        if is_program:
            environment = server_environment(table, scratch)
            first |= {"command": list(table["command"]), "environment": environment}
            read += program_folders(table["command"])
            _make_folders(write)
        else:
            host = reach.addresses[0][0]
            if not _fits_header(table.get("token") or ""):
                raise ProcessLost("cannot be started: the target's token cannot stand in a header")
            first |= {
                "url": table["url"], "headers": token_headers(table),
                "ca_file": table.get("ca_file"), "addresses": {host: await self._lookup(host)},
            }  # fmt: skip
        if self._box.sandboxed:
            first["box"] = {
                "scratch": scratch, "read": read, "write": write, "ports": list(reach.ports),
                "datagrams": reach.allows_udp, "closed": [str(one) for one in self._box.closed],
                "programs": is_program,
            }  # fmt: skip
        return first

    async def _lookup(self, host: str) -> list[str]:
        """Return a host's addresses, if it may be gone to. Raises ProcessLost."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, None, type=socket.SOCK_STREAM
            )
        except OSError as error:
            raise ProcessLost(f"{host} is not known: {error.strerror or error}") from error
        addresses = list(dict.fromkeys(str(row[4][0]).partition("%")[0] for row in found))
        for address in addresses:
            why = refusal_reason(ip_address(address), private=self._table.get("private") is True)
            if why is not None:
                raise ProcessLost(f"{host} leads to {address}, {why}")
        return addresses

    # --- frames -----------------------------------------------------------------------------

    def _write(self, message: Mapping[str, Any]) -> None:
        if self._writer is None or self._writer.is_closing():
            raise ProcessLost("ended")
        try:
            frame = pack_frame(dict(message))
        except ValueError as error:
            raise UnsendableMessage(str(error)) from error
        self._writer.write(frame)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                message = await read_frame(reader)
                answer = self._pending.get(message.get("id", 0))
                if answer is not None and not answer.done():
                    answer.set_result(message)
        except (EOFError, ValueError, ConnectionError):
            pass
        finally:
            self.kill()

    def _fail(self, what: str) -> None:
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(ProcessLost(what))


def _make_folders(paths: Sequence[str]) -> None:
    """Make what a server may write to, where it is not there yet."""
    for path in paths:
        Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)


def _environment() -> dict[str, str]:
    """Return what the process itself is started with; it runs in another folder than we do."""
    found = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    if "PYTHONPATH" in found:
        places = found["PYTHONPATH"].split(os.pathsep)
        found["PYTHONPATH"] = os.pathsep.join(str(Path(one).absolute()) for one in places)
    return found


def _fits_header(token: str) -> bool:
    """Say whether a token can be sent; whoever could not would name it in an error."""
    return token.isascii() and token.strip() == token and (token.isprintable() or not token)
