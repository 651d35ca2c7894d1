"""What an MCP server says of its tools, and the digest that pins it; pure.

The digest is over all of a tool that a caller, a person or a model could go by: its name,
description, schemas and annotations (https://modelcontextprotocol.io/specification, *Tools*).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

PINNED = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")


def pinned_part(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a tool of tools/list is pinned; what is null counts as not there."""
    return {key: tool[key] for key in PINNED if tool.get(key) is not None}


def tool_digest(tool: Mapping[str, Any]) -> str:
    """Return the digest of a tool of tools/list, `sha256:` and 64 digits.

    Raises ValueError for what has no JSON form.
    """
    text = json.dumps(pinned_part(tool), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
