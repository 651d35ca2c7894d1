"""Outcomes of MCP tools: what an answer of a server means for an effect; pure."""

from __future__ import annotations

import hashlib
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Literal

from vedette.domain.base.canonical import canonical_json, normalize_json
from vedette.domain.effect import Outcome

# Of an answer that are kept, as canonical JSON.
MAX_ANSWER_BYTES = 64 << 10
_EXCERPT = 300

OutcomeState = Literal["done", "failed", "retry", "unknown"]


def outcome_of(
    result: Mapping[str, Any], *, if_error: OutcomeState, if_unreadable: OutcomeState
) -> Outcome:
    """Return the outcome of a call by the result of tools/call.

    `isError` says that something went wrong, not that nothing was done: `if_error` is what it comes
    to. So it is with a result that asks the caller for something (sampling, elicitation, roots):
    nobody here answers a server. `if_unreadable` is what an answer comes to that says neither.
    """
    if result.get("resultType") == "input_required" or "inputRequests" in result:
        return Outcome(if_error, error="the server asks for more input, and gets none")
    content, is_error = result.get("content"), result.get("isError", False)
    if not isinstance(content, list):
        return Outcome(if_unreadable, error="the server's answer has no content")
    if not isinstance(is_error, bool):
        return Outcome(if_unreadable, error="the server's isError is neither true nor false")
    data: dict[str, Any] = {"content": [_describe(block) for block in content]}
    if isinstance(result.get("structuredContent"), Mapping):
        data["structured"] = result["structuredContent"]
    data = _bounded(data)
    if is_error:
        return Outcome(if_error, data, error=f"the tool says: {_excerpt(data)}")
    return Outcome("done", data)


def _describe(block: Any) -> dict[str, Any]:
    """Return a block of content: text as it is, bytes by their digest and size."""
    if not isinstance(block, Mapping):
        return {"type": "unknown"}
    kind = str(block.get("type", ""))[:32]
    if kind == "text":
        return {"type": kind, "text": _clean(str(block.get("text", "")))}
    described: dict[str, Any] = {"type": kind}
    resource = block.get("resource")
    inner = resource if isinstance(resource, Mapping) else block
    for key in ("uri", "mimeType", "text"):
        if isinstance(inner.get(key), str):
            described[key] = _clean(inner[key])
    raw = inner.get("data", inner.get("blob"))
    if isinstance(raw, str):
        try:
            content = b64decode(raw, validate=True)
        except ValueError:
            return {**described, "unreadable": True}
        described["sha256"] = hashlib.sha256(content).hexdigest()
        described["bytes"] = len(content)
    return described


def _clean(text: str) -> str:
    """Return a server's text as one that can be stored: no NUL, no half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode().replace("\0", "�")


def _bounded(data: dict[str, Any]) -> dict[str, Any]:
    """Return data that a record takes, cut to what is kept; `cut` says that it was."""
    try:
        plain: dict[str, Any] = normalize_json(data)
        if len(canonical_json(plain)) <= MAX_ANSWER_BYTES:
            return plain
    except (ValueError, TypeError, RecursionError):
        data = {"content": data["content"]}
    texts = [one for one in data["content"] if isinstance(one.get("text"), str)]
    left = MAX_ANSWER_BYTES // 8  # a character takes up to six bytes, escaped
    kept: list[dict[str, Any]] = []
    for one in texts[:100]:
        kept.append({"type": one["type"], "text": one["text"][:left]})
        left -= len(kept[-1]["text"])
        if left <= 0:
            break
    return {"content": kept, "cut": True}


def _excerpt(data: Mapping[str, Any]) -> str:
    texts = [one["text"] for one in data["content"] if isinstance(one.get("text"), str)]
    return " ".join(" ".join(texts).split())[:_EXCERPT] or "no more than that it failed"
