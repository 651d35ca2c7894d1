"""Requests of declarative HTTP tools, made of a template and exact arguments: pure.

A template is text with `{argument}` in it, or `{@key}` for the effect's idempotency key; a brace of
its own is written twice. What is put in can change neither where a request goes nor how it is
read: in a URL it is percent-encoded (RFC 3986), and in a path it stays within its segment. A host
is never part of a template.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any
from urllib.parse import quote

from vedette.domain.base.dataclass import dataclass

KEY = "@key"
# Statuses that say that a POST was done and where to look (RFC 9110, 15.4.4), or ask for a login.
SEE_OTHER = (302, 303)
_PART = re.compile(r"\{\{|\}\}|\{(@key|[A-Za-z_][A-Za-z0-9_]*)\}|[{}]")
# What may stand in a path and in a query beside the places for arguments (RFC 3986, 3.3 and 3.4).
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*\Z")
_QUERY = re.compile(r"[A-Za-z0-9._~!$'()*+,;:@%/?-]*\Z")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}\Z")
_LONGEST = 2000  # characters of one argument in a URL or a header


class BadTemplate(ValueError):
    """The template itself is wrong: ` | ` stands between what is wrong and the mend."""


class BadArgument(ValueError):
    """An argument cannot stand where the template puts it; nothing was sent."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, but for its host: path and query are encoded, the body is JSON."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    has_body: bool = False


def parts(template: str) -> list[tuple[str, str | None]]:
    """Return a template as (text, argument behind it or None). Raises BadTemplate."""
    found: list[tuple[str, str | None]] = []
    text, at = "", 0
    for match in _PART.finditer(template):
        text += template[at : match.start()]
        at = match.end()
        if match[0] in ("{{", "}}"):
            text += match[0][0]
        elif match[1] is None:
            raise BadTemplate(f"{template!r} has a brace alone | write it twice, or {{argument}}")
        else:
            found.append((text, match[1]))
            text = ""
    return [*found, (text + template[at:], None)]


def names(template: str) -> list[str]:
    """Return the arguments that a template asks for. Raises BadTemplate."""
    return [name for _, name in parts(template) if name is not None and name != KEY]


def body_names(template: Any) -> Iterator[str]:
    """Yield the arguments that the template of a body asks for. Raises BadTemplate."""
    if isinstance(template, str):
        yield from names(template)
    elif isinstance(template, Mapping):
        for value in template.values():
            yield from body_names(value)
    elif isinstance(template, list):
        for value in template:
            yield from body_names(value)


def check_url(template: str) -> None:
    """Raise BadTemplate for a URL that is no path of the target."""
    if not template.startswith("/") or template.startswith("//"):
        mend = "write the path alone, as /v1/items/{item}; the host stands in the target's base_url"
        raise BadTemplate(f"{template!r} is no path | {mend}")
    path, _, query = template.partition("?")
    fixed = "".join(text for text, _ in parts(path))
    if not _PATH.match(fixed):
        raise BadTemplate(f"{template!r} has characters that no path has | percent-encode them")
    if any(segment in (".", "..") for segment in path.split("/")):
        raise BadTemplate(f"{template!r} goes up or nowhere | leave . and .. out")
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        fixed = name + "".join(text for text, _ in parts(value))
        if not _QUERY.match(fixed) or (query and not name):
            mend = "write name={argument}&name={argument}"
            raise BadTemplate(f"{template!r} has a query that cannot be read | {mend}")


def header_problem(name: str) -> str | None:
    """Say why a tool may not set a header; None if it may."""
    lower = name.lower()
    if not _TOKEN.match(name):
        return "is no name of a header"
    owned = lower in _OURS or lower.startswith(("proxy-", "sec-", "vedette"))
    return "is set by the engine alone" if owned else None


_OURS = frozenset(
    {"host", "authorization", "cookie", "connection", "content-length", "content-type", "expect",
     "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "traceparent",
     "x-forwarded-for", "forwarded"}
)  # fmt: skip


def made(spec: Mapping[str, Any], args: Mapping[str, Any], key: str) -> Request:
    """Return the request of a template. Raises BadArgument, naming the argument."""
    given = {**args, KEY: key}
    headers = {name: _header(value, given) for name, value in spec.get("headers", {}).items()}
    if idempotency := spec.get("idempotency_header"):
        headers[idempotency] = key
    has_body = spec.get("body") is not None
    body = _filled(spec["body"], given) if has_body else None
    return Request(spec.get("method", "GET"), _url(spec["url"], given), headers, body, has_body)


def filled_text(template: str, args: Mapping[str, Any], key: str) -> str:
    """Return a text with its arguments put in, not encoded. Raises BadArgument."""
    return _text(template, {**args, KEY: key})


def _url(template: str, given: Mapping[str, Any]) -> str:
    path, asks, query = template.partition("?")
    segments = [_segment(segment, given) for segment in path.split("/")[1:]]
    told = "/" + "/".join(segments)
    if not asks:
        return told
    pairs = [pair for text in query.split("&") if (pair := _pair(text, given)) is not None]
    return f"{told}?{'&'.join(pairs)}" if pairs else told


def _segment(template: str, given: Mapping[str, Any]) -> str:
    told = ""
    for fixed, name in parts(template):
        told += fixed
        if name is not None:
            told += quote(_in_path(name, given), safe="")
    if told in (".", "..") or (template and not told):
        raise BadArgument(f"the arguments make {told!r} of {template!r}, which names nothing")
    return told


def _in_path(name: str, given: Mapping[str, Any]) -> str:
    value = _plain(name, given)
    # Encoded they would be harmless here; some servers decode a path once more than they should.
    if wrong := next((c for c in "/\\%" if c in value), None):
        raise BadArgument(f"argument {name!r} holds {wrong!r}, which may not be part of a path")
    if value.strip(".") == "":
        raise BadArgument(f"argument {name!r} is {value!r}, which names nothing in a path")
    return value


def _pair(template: str, given: Mapping[str, Any]) -> str | None:
    """Return one pair of a query; None if an argument of it was left out."""
    name, equals, value = template.partition("=")
    told = ""
    for fixed, argument in parts(value):
        told += fixed
        if argument is not None:
            if given.get(argument) is None:
                return None
            told += quote(_plain(argument, given), safe="")
    return f"{name}{equals}{told}"


def _header(template: str, given: Mapping[str, Any]) -> str:
    told = _text(template, given)
    if not told.isascii() or not told.isprintable():
        raise BadArgument("a header would hold a character that none may hold")
    return told


def _text(template: str, given: Mapping[str, Any]) -> str:
    return "".join(
        fixed + ("" if name is None else _plain(name, given)) for fixed, name in parts(template)
    )


def _plain(name: str, given: Mapping[str, Any]) -> str:
    value = given.get(name)
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int):
        raise BadArgument(f"argument {name!r} is missing, or is no text and no number")
    told = str(value)
    if len(told) > _LONGEST:
        raise BadArgument(f"argument {name!r} is longer than {_LONGEST} characters")
    if any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in told):
        raise BadArgument(f"argument {name!r} holds a control character")
    return told


_LEFT_OUT = object()


def _filled(template: Any, given: Mapping[str, Any]) -> Any:
    """Return the body: `{argument}` alone is the argument itself, whatever its type."""
    if isinstance(template, Mapping):
        pairs = ((name, _filled(value, given)) for name, value in template.items())
        return {name: value for name, value in pairs if value is not _LEFT_OUT}
    if isinstance(template, list):
        return [v for value in template if (v := _filled(value, given)) is not _LEFT_OUT]
    if not isinstance(template, str):
        return template
    whole = parts(template)
    if len(whole) == 2 and whole[0][0] == "" and whole[1][0] == "":
        name = whole[0][1]
        return _LEFT_OUT if name is None or given.get(name) is None else given[name]
    return "".join(
        fixed + ("" if name is None or given.get(name) is None else str(given[name]))
        for fixed, name in whole
    )
