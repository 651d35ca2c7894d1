"""An MCP server made with the SDK: revision 2026-07-28, without sessions."""

from __future__ import annotations

from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

server = MCPServer("modern")


@server.tool()
def echo(text: str) -> str:
    """Say it again."""
    return text


class Answer(BaseModel):
    """What it would like to be told."""

    password: str


@server.tool()
async def ask(ctx: Context) -> str:
    """Ask whoever calls."""
    return str(await ctx.elicit("Your password?", Answer))


if __name__ == "__main__":
    server.run("stdio")
