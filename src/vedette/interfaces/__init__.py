"""How people and programs come in: command line, HTTP, daemon, and how answers look."""
