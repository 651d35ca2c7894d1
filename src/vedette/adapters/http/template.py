"""Requests of declarative HTTP tools, made of a template and exact arguments: pure.

A template is text with `{argument}` in it, or `{@key}` for the effect's idempotency key; a brace of
its own is written twice. What is put in can change neither where a request goes nor how it is
read: in a URL it is percent-encoded (RFC 3986), and in a path it stays within its segment. A host
is never part of a template.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from msgspec import Struct, field

from vedette.domain.base.canonical import canonicalize_numbers

KEY_ARGUMENT = "@key"
# Statuses that say that a POST was done and where to look (RFC 9110, 15.4.4), or ask for a login.
SEE_OTHER = (302, 303)
_PART = re.compile(r"\{\{|\}\}|\{(@key|[A-Za-z_][A-Za-z0-9_]*)\}|[{}]")
# What may stand in a path and in a query beside the places for arguments (RFC 3986, 3.3 and 3.4).
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*\Z")
_QUERY = re.compile(r"[A-Za-z0-9._~!$'()*+,;:@%/?-]*\Z")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}\Z")
_MAX_ARGUMENT = 2000  # characters of one argument in a URL or a header


class BadTemplate(ValueError):
    """An HTTP tool's template is wrong: ` | ` stands between what is wrong and the mend."""


class BadArgument(ValueError):
    """An argument cannot stand where an HTTP tool's template puts it; nothing was sent."""


class Request(Struct, frozen=True):
    """One HTTP tool's request, but for its host: path and query are encoded, the body is JSON."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    has_body: bool = False


def split_template(template: str) -> list[tuple[str, str | None]]:
    """Return an HTTP tool's template as (text, argument behind it or None). Raises BadTemplate."""
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


def template_arguments(template: str) -> list[str]:
    """Return the arguments that an HTTP tool's template asks for. Raises BadTemplate."""
    return [
        name for _, name in split_template(template) if name is not None and name != KEY_ARGUMENT
    ]


def body_arguments(template: Any) -> Iterator[tuple[str, bool]]:
    """Yield the arguments that an HTTP tool's template of a body asks for, and whether each stands
    alone: it is then itself, of whatever type, and else a part of a text. Raises BadTemplate.
    """
    if isinstance(template, str):
        for name in template_arguments(template):
            yield name, _lone_argument(split_template(template)) is not None
    elif isinstance(template, Mapping):
        for value in template.values():
            yield from body_arguments(value)
    elif isinstance(template, list):
        for value in template:
            yield from body_arguments(value)


def _lone_argument(parts: list[tuple[str, str | None]]) -> str | None:
    return parts[0][1] if len(parts) == 2 and parts[0][0] == parts[1][0] == "" else None


def check_url(template: str) -> None:
    """Raise BadTemplate for an HTTP tool's URL that is no path of the target."""
    if not template.startswith("/") or template.startswith("//"):
        mend = "write the path alone, as /v1/items/{item}; the host stands in the target's base_url"
        raise BadTemplate(f"{template!r} is no path | {mend}")
    path, _, query = template.partition("?")
    fixed = "".join(text for text, _ in split_template(path))
    if not _PATH.match(fixed):
        raise BadTemplate(f"{template!r} has characters that no path has | percent-encode them")
    if any(segment in (".", "..") for segment in path.split("/")):
        raise BadTemplate(f"{template!r} goes up or nowhere | leave . and .. out")
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        fixed = name + "".join(text for text, _ in split_template(value))
        if not _QUERY.match(fixed) or (query and not name):
            mend = "write name={argument}&name={argument}"
            raise BadTemplate(f"{template!r} has a query that cannot be read | {mend}")


def header_problem(name: str) -> str | None:
    """Say why an HTTP tool may not set a header; None if it may."""
    lower = name.lower()
    if not _TOKEN.match(name):
        return "is no name of a header"
    owned = lower in _ENGINE_HEADERS or lower.startswith(("proxy-", "sec-", "vedette"))
    return "is set by the engine alone" if owned else None


_ENGINE_HEADERS = frozenset(
    {"host", "authorization", "cookie", "connection", "content-length", "content-type", "expect",
     "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "traceparent",
     "x-forwarded-for", "forwarded"}
)  # fmt: skip


def build_request(spec: Mapping[str, Any], args: Mapping[str, Any], key: str) -> Request:
    """Return the request of an HTTP tool's template. Raises BadArgument, naming the argument."""
    values = {**args, KEY_ARGUMENT: key}
    headers = {name: _header(value, values) for name, value in spec.get("headers", {}).items()}
    if idempotency := spec.get("idempotency_header"):
        headers[idempotency] = key
    has_body = spec.get("body") is not None
    body = _fill_body(spec["body"], values) if has_body else None
    return Request(spec.get("method", "GET"), _url(spec["url"], values), headers, body, has_body)


def fill_text(template: str, args: Mapping[str, Any], key: str) -> str:
    """Return an HTTP tool's template with its arguments put in, not encoded. Raises BadArgument."""
    return _text(template, {**args, KEY_ARGUMENT: key})


def _url(template: str, values: Mapping[str, Any]) -> str:
    path, asks, query = template.partition("?")
    segments = [_segment(segment, values) for segment in path.split("/")[1:]]
    target = "/" + "/".join(segments)
    if not asks:
        return target
    pairs = [pair for text in query.split("&") if (pair := _pair(text, values)) is not None]
    return f"{target}?{'&'.join(pairs)}" if pairs else target


def _segment(template: str, values: Mapping[str, Any]) -> str:
    text = ""
    for fixed, name in split_template(template):
        text += fixed
        if name is not None:
            text += quote(_path_value(name, values), safe="")
    if text in (".", "..") or (template and not text):
        raise BadArgument(f"the arguments make {text!r} of {template!r}, which names nothing")
    return text


def _path_value(name: str, values: Mapping[str, Any]) -> str:
    value = _argument_text(name, values)
    # Encoded they would be harmless here; some servers decode a path once more than they should.
    if wrong := next((c for c in "/\\%" if c in value), None):
        raise BadArgument(f"argument {name!r} holds {wrong!r}, which may not be part of a path")
    if value.strip(".") == "":
        raise BadArgument(f"argument {name!r} is {value!r}, which names nothing in a path")
    return value


def _pair(template: str, values: Mapping[str, Any]) -> str | None:
    """Return one pair of a query; None if an argument of it was left out."""
    name, equals, value = template.partition("=")
    text = ""
    for fixed, argument in split_template(value):
        text += fixed
        if argument is not None:
            if argument not in values:
                return None
            text += quote(_argument_text(argument, values), safe="")
    return f"{name}{equals}{text}"


def _header(template: str, values: Mapping[str, Any]) -> str:
    text = _text(template, values)
    if not text.isascii() or not text.isprintable():
        raise BadArgument("a header would hold a character that none may hold")
    return text


def _text(template: str, values: Mapping[str, Any]) -> str:
    return "".join(
        fixed + ("" if name is None else _argument_text(name, values))
        for fixed, name in split_template(template)
    )


def _argument_text(name: str, values: Mapping[str, Any]) -> str:
    value = values.get(name)
    if isinstance(value, bool):
        return "true" if value else "false"
    is_fraction = isinstance(value, float) and math.isfinite(value)
    if not is_fraction and not isinstance(value, str | int):
        raise BadArgument(f"argument {name!r} is missing, or is no text and no number")
    text = _plain_text(value)
    if len(text) > _MAX_ARGUMENT:
        raise BadArgument(f"argument {name!r} is longer than {_MAX_ARGUMENT} characters")
    if any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in text):
        raise BadArgument(f"argument {name!r} holds a control character")
    return text


def _plain_text(value: Any) -> str:
    return canonicalize_numbers(value).decode() if isinstance(value, float) else str(value)


_OMITTED = object()


def _fill_body(template: Any, values: Mapping[str, Any]) -> Any:
    """Return the body: `{argument}` alone is the argument itself, whatever its type, and left out
    where that was; null was given.
    """
    if isinstance(template, Mapping):
        pairs = ((name, _fill_body(value, values)) for name, value in template.items())
        return {name: value for name, value in pairs if value is not _OMITTED}
    if isinstance(template, list):
        return [v for value in template if (v := _fill_body(value, values)) is not _OMITTED]
    if not isinstance(template, str):
        return template
    parts = split_template(template)
    if (name := _lone_argument(parts)) is not None:
        return values.get(name, _OMITTED)
    return "".join(fixed + _body_text(name, values) for fixed, name in parts)


def _body_text(name: str | None, values: Mapping[str, Any]) -> str:
    if name is None or name not in values:
        return ""
    if values[name] is None:
        raise BadArgument(f"argument {name!r} is null, which has no form in a text")
    return _plain_text(values[name])
