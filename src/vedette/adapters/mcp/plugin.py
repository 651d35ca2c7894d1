"""The `mcp:` of a tool in agent.yaml: a tool of an MCP server, pinned by a digest."""

from __future__ import annotations

from collections.abc import Iterator

from vedette.adapters.mcp.config import McpFile
from vedette.config.agent_file import ToolFile
from vedette.domain.ports.plugin import BoxSettings, TableProblem, ToolPerformer, ToolPlugin


class McpPlugin(ToolPlugin):
    """The plugin of a tool's `mcp:` in agent.yaml: a call of a tool of a target of kind mcp."""

    table = McpFile
    description = "a tool of an MCP server, instead of a function"
    target_kind = "mcp"

    def problems(self, tool: ToolFile, table: McpFile) -> Iterator[TableProblem]:
        """Yield what is wrong with a tool beyond its shape."""
        if tool.schema is None:
            what = "a server's tool has its arguments by schema:, as the server says them"
            yield ("mcp",), what, "let `vedette tool add` write it"
        if tool.settles == "queryable":
            what = "MCP cannot be asked what came of a call"
            yield ("settles",), what, "write none, or idempotent if a repeat is harmless"

    def build_with(self, box: BoxSettings) -> ToolPerformer:
        """Make what calls the servers, each in a box."""
        from vedette.adapters.mcp.tools import McpTools

        return McpTools(box)


MCP = McpPlugin()
