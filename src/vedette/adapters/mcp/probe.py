"""A look at an MCP server: which tools it has, and whether those of agents are as pinned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from vedette.adapters.mcp.client_process import ClientProcess, ProcessLost
from vedette.config.secret_reference import require_secret, secret_names
from vedette.domain.base.errors import Unavailable, VedetteError
from vedette.domain.ports.plugin import BoxSettings
from vedette.domain.tool import Tool

_LIST_S = 30.0


class ServerListing(Struct, frozen=True):
    """What a server says of itself: its tools as tools/list has them, each with its `digest`."""

    server: str
    protocol: str
    tools: tuple[Mapping[str, Any], ...]


async def list_server(table: Mapping[str, Any], box: BoxSettings) -> ServerListing:
    """Start or reach a server, list its tools, and let it go.

    Raises Unavailable, and BadFleet for a secret that is not there.
    """
    secrets = {
        name: require_secret(table, name, where="vedette.toml") for name in secret_names(table)
    }
    process = ClientProcess({**table, **secrets}, box)
    try:
        await process.start()
        answer = await process.ask({"do": "list"}, _LIST_S)
    except (ProcessLost, TimeoutError) as error:
        what = f"the server's process {str(error) or 'hangs'}"
        raise Unavailable(what, mend="see its target in vedette.toml") from error
    finally:
        process.kill()
    if "tools" not in answer:
        said = f" (it says: {answer['said'][-300:]})" if answer.get("said") else ""
        raise Unavailable(f"{answer.get('away')}{said}", mend="see its target in vedette.toml")
    return ServerListing(answer["server"], answer["protocol"], tuple(answer["tools"]))


async def probe_server(
    table: Mapping[str, Any], tools: Sequence[tuple[str, Tool]], box: BoxSettings
) -> str:
    """Say what a server has, in a sentence. Raises Unavailable, and VedetteError for a change."""
    found = await list_server(table, box)
    digests = {tool["name"]: tool["digest"] for tool in found.tools}
    for agent, tool in tools:
        request = tool.request or {}
        if tool.performer != "mcp" or digests.get(request["tool"]) == request["digest"]:
            continue
        how = "is another than was pinned" if request["tool"] in digests else "is not there"
        raise VedetteError(
            f"{request['tool']}, which {agent} has as {tool.name}, {how}; it is refused",
            mend=f"vedette tool add {agent} --mcp {tool.target} --tool {request['tool']} --again",
            code="tool-changed",
        )
    name = f"{found.server}, " if found.server else ""
    return f"{name}MCP {found.protocol}, {len(found.tools)} tools"
