"""One MCP server as the process that speaks to it has it: connected, listed, called.

This runs in a process of its own, in a box: the SDK and whatever a server answers are never in the
engine. Both eras of the protocol are spoken: `server/discover` (2026-07-28) is tried, then
`initialize`. A server's requests for sampling, roots and elicitation are refused, as none is
offered; its log and progress are not read.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter, ValidationError

from vedette.adapters.mcp.frames import MAX_MESSAGE_BYTES, pack_frame, read_frame
from vedette.adapters.mcp.listing import pinned_part, tool_digest
from vedette.adapters.mcp.transport import STATUSES, BoundedHttp, StdioServer
from vedette.domain.base import machine

# Pages and tools of a list; what is more is not read, and the server not used.
MAX_PAGES, MAX_TOOLS = 20, 500
# How long a list is believed at most, whatever the server says of it.
LIST_LIFE_S = 60.0
# How long a call may follow the look at the list that it was checked by.
_CALL_LIFE_S = 5.0
_CONNECT_S = 20.0
# Statuses (RFC 9110) of a server that does not take our credential, and of one that did not take
# the message: it is elsewhere, or there is no such session. A 302 and a 303 may follow the work.
_REFUSED, _NOT_TAKEN = (401, 403), (301, 307, 308, 404)
_RAW: TypeAdapter[Any] = TypeAdapter(dict[str, Any])


class Away(Exception):
    """The server cannot be spoken to now."""


class ServerSession:
    """What answers the engine's messages about one server.

    `check` says whether a tool is as it was pinned, `call` calls it if it is, `list` tells all.
    """

    def __init__(self, start: Mapping[str, Any]) -> None:
        self._start = start
        self._client: Client | None = None
        self._closing: asyncio.Event | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._tools: dict[str, dict[str, Any]] = {}
        self._listed_until = self._callable_until = 0.0
        self._stdio: StdioServer | None = None

    async def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the engine is told to a message."""
        STATUSES.set([])
        try:
            if message["do"] == "call":
                return await self._call(message)
            await self._ensure_listed()
            if message["do"] == "list":
                return self._describe()
            refusal = self._refusal(message["tool"], message["digest"])
            return {"refused": refusal} if refusal else {"ok": True}
        except Away as error:
            return {"away": str(error), "said": self._said()}

    # --- connection -------------------------------------------------------------------------

    async def _ensure_listed(self) -> None:
        """Be connected, and know what tools there are now. Raises Away."""
        async with self._connecting:
            if self._client is not None and self._keeper is not None and self._keeper.done():
                await self.disconnect()
            if self._client is None:
                await self._connect()
            if time.monotonic() >= self._listed_until:
                try:
                    async with asyncio.timeout(_CONNECT_S):
                        await self._list()
                except Exception as error:
                    why = self._why(error)
                    await self.disconnect()
                    raise Away(why) from error

    async def _connect(self) -> None:
        """Connect. A task of its own holds the connection, as the SDK's scopes belong to one."""
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep(ready, self._closing))
        try:
            async with asyncio.timeout(_CONNECT_S):
                both: set[asyncio.Future[Any]] = {self._keeper, ready}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if not ready.done():
                    await self._keeper  # raises what it ended with
                    raise Away("the connection was closed")
                self._client = ready.result()
        except Exception as error:
            why = self._why(error)
            await self.disconnect()
            raise Away(why) from error

    async def _keep(self, ready: asyncio.Future[Client], closing: asyncio.Event) -> None:
        async with self._transport() as transport:
            client = Client(
                transport, mode="auto", cache=None, message_handler=self._on_message,
                client_info=types.Implementation(name="vedette", version=self._start["version"]),
            )  # fmt: skip
            async with client:
                ready.set_result(client)
                await closing.wait()

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        """Give the transport to the server that the start message names."""
        start = self._start
        if "command" in start:
            self._stdio = StdioServer(start["command"], start["environment"], start["cwd"])
            yield self._stdio.transport()
            return
        async with httpx2.AsyncClient(
            transport=BoundedHttp(start["url"], start.get("ca_file")),
            headers=start["headers"], trust_env=False,
            timeout=httpx2.Timeout(_CONNECT_S, read=3600.0),
        ) as http:  # fmt: skip
            yield streamable_http_client(
                start["url"], http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES
            )

    async def disconnect(self) -> None:
        """Let go of the server; what is under way with it has no answer."""
        keeper, closing = self._keeper, self._closing
        self._client = self._keeper = self._closing = None
        self._tools, self._listed_until, self._callable_until = {}, 0.0, 0.0
        if keeper is not None and closing is not None:
            closing.set()
            await asyncio.wait({keeper}, timeout=2.0)
            keeper.cancel()
            with suppress(BaseException):
                await keeper

    async def _on_message(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._listed_until = self._callable_until = 0.0

    # --- tools ------------------------------------------------------------------------------

    async def _list(self) -> None:
        assert self._client is not None
        found: dict[str, dict[str, Any]] = {}
        cursor, life = None, LIST_LIFE_S
        for _ in range(MAX_PAGES):
            begun = time.monotonic()
            params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
            page = await self._client.session.list_tools(params=params)
            for tool in page.tools:
                raw = tool.model_dump(mode="json", by_alias=True, exclude_unset=True)
                if tool.name in found:
                    raise Away(f"the server names two tools {tool.name!r}")
                found[tool.name] = raw
            if len(found) > MAX_TOOLS:
                raise Away(f"the server has more than {MAX_TOOLS} tools")
            if "ttl_ms" in page.model_fields_set:
                life = min(life, max(0, page.ttl_ms) / 1000)
            cursor = page.next_cursor
            if cursor is None:
                self._tools, self._listed_until = found, begun + life
                self._callable_until = begun + max(life, _CALL_LIFE_S)
                return
        raise Away(f"the server's list of tools has more than {MAX_PAGES} pages")

    def _describe(self) -> dict[str, Any]:
        assert self._client is not None
        tools = []
        for tool in self._tools.values():
            part = pinned_part(tool)
            # One that is too large for a message is named all the same: a person is to know.
            small = len(pack_frame({"tool": part})) < MAX_MESSAGE_BYTES // len(self._tools)
            tools.append({**(part if small else {"name": tool["name"]}), "digest": _digest(tool)})
        info = self._client.server_info
        return {
            "tools": tools,
            "protocol": self._client.protocol_version,
            "server": f"{info.name} {info.version}"[:200] if info is not None else "",
        }

    def _refusal(self, name: str, digest: str) -> str:
        """Say why a pinned tool may not be called; empty if it may."""
        tool = self._tools.get(name)
        if tool is None:
            return f"the server has no tool {name!r} any more"
        if _digest(tool) != digest:
            return f"the server's tool {name!r} is another than was pinned"
        return ""

    async def _call(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Call a tool if it is as pinned, and the permit still holds; once."""
        if self._client is None or time.monotonic() >= self._callable_until:
            return {"again": True}
        if refusal := self._refusal(message["tool"], message["digest"]):
            return {"refused": refusal}
        if machine.boot_us() >= message["until_us"]:
            return {"again": True}
        request = types.CallToolRequest(
            params=types.CallToolRequestParams(
                name=message["tool"], arguments=message["arguments"], _meta=message["meta"]
            )
        )
        try:
            async with asyncio.timeout(message["seconds"]):
                # Raw: the SDK would raise for an answer that its own schema does not fit, though
                # the tool has done its work.
                result = await self._client.session.send_request(request, _RAW)
        except TimeoutError:
            return {"lost": f"no answer within {message['seconds']:g} s"}
        except MCPError as error:
            if self._stdio is not None and self._stdio.ended:
                return {"lost": self._stdio.ended}
            text = f"the server answers with error {error.code}: {error.message}"[:500]
            # Once one of its POSTs was taken, what comes later is no word on whether it was.
            if _last_status() and all(one in _REFUSED + _NOT_TAKEN for one in STATUSES.get() or ()):
                if _last_status() in _REFUSED:
                    return {"failed": self._why(error)}
                return {"rejected": text}
            says = error.code in (types.METHOD_NOT_FOUND, types.INVALID_PARAMS)
            return {"error" if says else "lost": text}
        except ValidationError:
            return {"lost": "the server's answer is none of the protocol's"}
        except Exception as error:
            return {"lost": self._why(error)}
        return {"result": result}

    def _said(self) -> str:
        if self._stdio is None:
            return ""
        return " ".join(self._stdio.error_tail.decode("utf-8", "replace").split())

    def _why(self, error: BaseException) -> str:
        """Say in a few words why the server cannot be spoken to."""
        if self._stdio is not None and self._stdio.ended:
            return self._stdio.ended
        if (status := _last_status()) in _REFUSED:
            return f"the server answers {status}: see the target's token"
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, TimeoutError):
            return f"no answer within {_CONNECT_S:g} s"
        if isinstance(error, Away):
            return str(error)
        if isinstance(error, FileNotFoundError | PermissionError) and self._stdio is not None:
            return f"{self._start['command'][0]} cannot be started: {error.strerror}"
        return (str(error) or type(error).__name__)[:300]


def _last_status() -> int:
    """Return the status of the last answer to what this task posted; 0 without one."""
    return (STATUSES.get() or [0])[-1]


def _digest(tool: Mapping[str, Any]) -> str:
    try:
        return tool_digest(tool)
    except ValueError:
        return ""  # no pin is it


async def serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, start: Mapping[str, Any]
) -> None:
    """Answer the engine's messages, several at once, until it hangs up.

    Raises what an answer failed with: nobody is to wait for one that does not come.
    """
    session = ServerSession(start)
    sending = asyncio.Lock()

    async def reply(message: dict[str, Any]) -> None:
        answer = await session.answer(message)
        try:
            frame = pack_frame({**answer, "id": message["id"]})
        except ValueError as error:
            what = f"the server's answer is none: {error}"
            frame = pack_frame({"lost": what[:300], "id": message["id"]})
        async with sending:  # one at a time, so no more than one is held
            writer.write(frame)
            await writer.drain()

    try:
        async with asyncio.TaskGroup() as replies:
            while True:
                replies.create_task(reply(await read_frame(reader)))
    except* EOFError:
        pass
    await session.disconnect()


def answer_names(addresses: Mapping[str, list[str]]) -> None:
    """Have names looked up in what the engine has looked up: a box has no name server."""
    system_lookup = socket.getaddrinfo

    def lookup(host: Any, port: Any, *args: Any, **more: Any) -> list[Any]:
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
        found: list[Any] = []
        for address in addresses.get(name, ()):
            found += system_lookup(address, port, *args, **more)
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, f"{name} is not this target's host")
        return found

    socket.getaddrinfo = lookup
