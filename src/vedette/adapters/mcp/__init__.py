"""Tools of MCP servers: pinned in agent.yaml, called from a process of their own."""
