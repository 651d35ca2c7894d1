"""What answers the port ToolExecutor, beside workers: agents' tools.py, and plugins."""
