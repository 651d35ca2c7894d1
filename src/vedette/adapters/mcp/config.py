"""What stands under `mcp:` of a tool in agent.yaml: a tool of the server, as it was read."""

from __future__ import annotations

from typing import Literal

from vedette.config.field import Field, Shape


class McpFile(Shape):
    """The tool of an MCP server. Which server that is, its target says."""

    tool: str = Field(description="its name there", pattern=r"^[ -~]{1,128}$")
    digest: str = Field(
        description="of what the server says of it, as `vedette tool add` writes it; if it says "
        "another thing, the tool is refused",
        pattern=r"^sha256:[0-9a-f]{64}$",
    )
    errors: Literal["unknown", "not_done"] = Field(
        default="unknown",
        description="what an error that it answers with says: not_done if you know that nothing "
        "was done then; of a tool that settles none, else nobody knows",
    )
