"""CloudEvents 1.0 over HTTP, parsed strictly: structured, batched and binary content mode.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md, its JSON event format and its
HTTP protocol binding. Whatever is doubtful (a JSON key given twice, text that is not UTF-8, a
number that is no number) is refused rather than guessed at: two readers who guess differently
about one event are a way round a policy. docs/decisions/0003-cloudevents-by-hand.md says why this
is not left to the `cloudevents` package.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NoReturn
from urllib.parse import unquote

from vedette.domain.base.clock import from_iso
from vedette.domain.base.errors import BadEvent
from vedette.domain.event import HOPS, LINEAGE, READERS, Event
from vedette.domain.readers import Readers, parse_readers

ContentMode = Literal["structured", "batch", "binary"]

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"

MAX_DEPTH = 64
MAX_LINEAGE = 64
INT32 = 2**31

_NAME = re.compile(r"[a-z0-9]{1,128}")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
)
# What the specification excludes from the type String; surrogates are not characters.
_NOT_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
# What can be in no URI-reference (RFC 3986); letters beyond ASCII are let pass.
_NOT_URI = re.compile(r'[\s<>"{}|\\^`]')
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPED = re.compile(r"\\(.)")

_TEXT_ATTRIBUTES = ("id", "source", "type", "subject", "time", "datacontenttype", "dataschema")


class _DuplicateKey(ValueError):
    """A JSON object names a member twice."""


def content_mode(headers: Iterable[tuple[str, str]]) -> ContentMode | None:
    """Return the CloudEvents content mode of an HTTP message; None if it holds no event we read."""
    seen = {name.lower(): value for name, value in headers}
    media, charset = _parse_media_type(seen.get("content-type", ""))
    if media in (STRUCTURED, BATCH):
        utf8 = charset in ("", "utf-8", "us-ascii")
        return ("batch" if media == BATCH else "structured") if utf8 else None
    if media.startswith("application/cloudevents"):
        return None
    return "binary" if any(name.startswith("ce-") for name in seen) else None


def parse_message(
    headers: Iterable[tuple[str, str]], body: bytes, *, vouched: frozenset[str] = frozenset()
) -> list[Event]:
    """Return the Events of an HTTP message of CloudEvents, all of them or none.

    `vouched` names the envelope attributes for which the sender was authenticated. Lineage is
    taken as claimed: it can only keep agents asleep. Raises BadEvent naming the attribute and the
    mend, in a batch with the index of the event.
    """
    listed = list(headers)
    form = content_mode(listed)
    if form == "structured":
        return [from_json(body, vouched=vouched)]
    if form == "batch":
        batch = load_json(body)
        if not isinstance(batch, list):
            raise BadEvent("a batch is a JSON array of events", mend=f"send one as {STRUCTURED}")
        return [_from_object(item, vouched, f"events[{at}]") for at, item in enumerate(batch)]
    if form == "binary":
        return [_from_headers(listed, body, vouched)]
    raise BadEvent(
        "the content type is not that of a CloudEvent",
        where="header content-type",
        mend=f"send {STRUCTURED} or {BATCH} in UTF-8, or the attributes as ce-* headers",
    )


def from_json(
    raw: bytes, *, vouched: frozenset[str] = frozenset(), where: str | None = None
) -> Event:
    """Return the Event that `raw` describes in CloudEvents' JSON format. Raises BadEvent."""
    return _from_object(load_json(raw, where=where), vouched, where)


def from_attributes(
    attributes: Mapping[str, str],
    raw: bytes,
    content_type: str = "",
    *,
    vouched: frozenset[str] = frozenset(),
    where: str | None = None,
) -> Event:
    """Return the Event of CloudEvents attributes, unescaped, and of its data. Raises BadEvent."""
    named: dict[str, Any] = dict(attributes)
    if content_type:
        named["datacontenttype"] = content_type
    return _build_event(named, _decode_data(raw, content_type, where), vouched, where)


def load_json(raw: bytes, *, where: str | None = None) -> Any:
    """Read an event's JSON strictly (RFC 8259 in UTF-8, keys once, finite numbers, bounded depth).

    Raises BadEvent.
    """
    try:
        value = _STRICT_DECODER.decode(raw.decode("utf-8"))
        if _SURROGATE.search(raw):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise BadEvent(
            f"byte {error.start} is not UTF-8", where=where, mend="send UTF-8"
        ) from error
    except UnicodeEncodeError as error:
        raise BadEvent(
            "a string holds half of a surrogate pair", where=where, mend="send whole characters"
        ) from error
    except RecursionError as error:
        raise _depth_error(where) from error
    except _DuplicateKey as error:
        raise BadEvent(str(error), where=where, mend="give every key once") from error
    except ValueError as error:
        raise BadEvent(f"not JSON: {error}", where=where, mend="send JSON in UTF-8") from error
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise _depth_error(where)
    return value


def _from_object(value: Any, vouched: frozenset[str], where: str | None) -> Event:
    if not isinstance(value, dict):
        raise BadEvent("an event is a JSON object", where=where, mend="send one object per event")
    attributes = {name: item for name, item in value.items() if item is not None}
    data = attributes.pop("data", None)
    encoded = attributes.pop("data_base64", None)
    if encoded is not None:
        if "data" in value:
            raise _attribute_error(
                "data_base64", "is given beside data", where, "send one of the two"
            )
        try:
            raw = b64decode(encoded, validate=True)
        except (ValueError, TypeError) as error:
            raise _attribute_error(
                "data_base64", "is not Base64", where, "encode it (RFC 4648)"
            ) from error
        data = _decode_data(raw, str(attributes.get("datacontenttype", "")), where)
    return _build_event(attributes, data, vouched, where)


def _from_headers(
    headers: Iterable[tuple[str, str]], body: bytes, vouched: frozenset[str]
) -> Event:
    attributes: dict[str, Any] = {}
    content_type = ""
    for header, value in headers:
        name = header.lower()
        if name == "content-type":
            content_type = value
        if not name.startswith("ce-"):
            continue
        name = name.removeprefix("ce-")
        if name in attributes:
            raise _attribute_error(
                name, "is given twice", f"header {header}", "send the header once"
            )
        if name in ("data", "datacontenttype"):
            raise _attribute_error(
                name, "is not a header", f"header {header}", "use body and Content-Type"
            )
        attributes[name] = _decode_header(value, f"header {header}")
    if content_type:
        attributes["datacontenttype"] = content_type
    return _build_event(attributes, _decode_data(body, content_type, "body"), vouched, None)


def _decode_header(value: str, where: str) -> str:
    """Decode a header value (HTTP protocol binding, 3.1.3.2): unquote, then %-decode once."""
    text = value.strip(" \t")
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = _ESCAPED.sub(r"\1", text[1:-1])
    if not text.isascii():
        raise BadEvent("the value is not ASCII", where=where, mend="percent-encode its UTF-8")
    try:
        return unquote(text, encoding="utf-8", errors="strict")
    except UnicodeDecodeError as error:
        raise BadEvent(
            "the percent-encoded value is not UTF-8", where=where, mend="percent-encode its UTF-8"
        ) from error


def _decode_data(raw: bytes, content_type: str, where: str | None) -> Any:
    """Return binary data as the event carries it: a JSON value, a text, or its Base64."""
    if not raw:
        return None
    media, charset = _parse_media_type(content_type)
    is_json = media in ("application/json", "text/json") or media.endswith("+json")
    if not is_json and not media.startswith("text/"):
        return {"data_base64": b64encode(raw).decode("ascii")}
    if charset not in ("", "utf-8", "us-ascii"):
        raise _attribute_error("datacontenttype", f"has charset {charset!r}", where, "send UTF-8")
    if is_json:
        return load_json(raw, where=where)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadEvent(
            f"byte {error.start} of the data is not UTF-8", where=where, mend="send UTF-8"
        ) from error


def _build_event(
    attributes: dict[str, Any], data: Any, vouched: frozenset[str], where: str | None
) -> Event:
    version = attributes.pop("specversion", None)
    if version != "1.0":
        what = "is missing" if version is None else f"is {version!r}"
        raise _attribute_error("specversion", what, where, 'set it to "1.0"')
    for name, value in attributes.items():
        _check_attribute(name, value, where)
    for name in ("id", "source", "type"):
        if not attributes.get(name, "").strip():
            raise _attribute_error(name, "is missing or empty", where, f"give the event a {name}")
    if attributes.get("subject") == "":
        raise _attribute_error("subject", "is empty", where, "leave it out or fill it")
    if _NOT_URI.search(attributes["source"]):
        raise _attribute_error(
            "source", "is not a URI-reference", where, "percent-encode it (RFC 3986)"
        )
    lineage = _parse_lineage(attributes.pop(LINEAGE, ""), where)
    hops = _parse_hops(attributes.pop(HOPS, None), len(lineage), where)
    readers = _parse_readers(attributes.pop(READERS, None), where)
    if attributes.get("datacontenttype") == "application/json":
        del attributes["datacontenttype"]  # what is meant where it is absent
    return Event(
        source=attributes.pop("source"),
        id=attributes.pop("id"),
        type=attributes.pop("type"),
        subject=attributes.pop("subject", None),
        time=_parse_time(attributes.pop("time", None), where),
        data=data,
        hops=hops,
        lineage=lineage,
        vouched=vouched,
        extensions=attributes,
        readers=readers,
    )


def _check_attribute(name: str, value: Any, where: str | None) -> None:
    if not _NAME.fullmatch(name):
        raise _attribute_error(name, "is no attribute name", where, "use only a-z and 0-9")
    if isinstance(value, str):
        if _NOT_TEXT.search(value):
            raise _attribute_error(
                name, "holds a control character or half a one", where, "send plain text"
            )
        return
    if name in _TEXT_ATTRIBUTES:
        raise _attribute_error(name, "is not a string", where, "send a string")
    if isinstance(value, bool):
        return
    if not isinstance(value, int) or not -INT32 <= value < INT32:
        raise _attribute_error(
            name, "is none of string, boolean, 32-bit integer", where, "move it into data"
        )


def _parse_time(text: str | None, where: str | None) -> str | None:
    if text is None:
        return None
    upper = text.upper()
    try:
        if _TIME.fullmatch(upper):
            from_iso(upper)
            return upper
    except (ValueError, OverflowError):
        pass
    mend = "send an instant such as 2026-03-01T06:00:00Z"
    raise _attribute_error("time", f"{text[:64]!r} is not RFC 3339", where, mend)


def _parse_lineage(claimed: Any, where: str | None) -> tuple[str, ...]:
    names = tuple(claimed.split(",")) if isinstance(claimed, str) and claimed else ()
    names = tuple(name.strip() for name in names)
    if not isinstance(claimed, str) or len(names) > MAX_LINEAGE or not all(names):
        what = f"is no list of at most {MAX_LINEAGE} names"
        raise _attribute_error(LINEAGE, what, where, "separate the agents' names by commas")
    return names


def _parse_hops(claimed: Any, least: int, where: str | None) -> int:
    if claimed is None:
        return least
    if isinstance(claimed, str) and claimed.isascii() and claimed.isdigit() and len(claimed) < 10:
        claimed = int(claimed)
    if isinstance(claimed, bool) or not isinstance(claimed, int) or claimed < 0:
        raise _attribute_error(HOPS, "is not a count", where, "send a whole number from 0")
    if claimed < least:
        raise _attribute_error(
            HOPS, f"is less than the {least} names of {LINEAGE}", where, "send both"
        )
    return claimed


def _parse_readers(claimed: Any, where: str | None) -> Readers:
    if claimed is None:
        return None
    try:
        return parse_readers(claimed if isinstance(claimed, str) else "")
    except ValueError as error:
        raise _attribute_error(
            READERS, str(error), where, "separate the readers by commas"
        ) from error


def _parse_media_type(content_type: str) -> tuple[str, str]:
    """Return the media type and the charset of a Content-Type, both in lower case."""
    media, *parameters = content_type.split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return media.strip().lower(), value.strip().strip('"').lower()
    return media.strip().lower(), ""


def _unique_members(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _DuplicateKey(f"the key {twice[:64]!r} is given twice")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _parse_finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:32]} is beyond the range of a number")
    return value


# Made once: making one costs as much as reading a small event.
_STRICT_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_members, parse_constant=_refuse_constant, parse_float=_parse_finite
)


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            item
            for outer in level
            if isinstance(outer, dict | list)
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return any(isinstance(item, dict | list) for item in level)


def _depth_error(where: str | None) -> BadEvent:
    return BadEvent(f"nested deeper than {MAX_DEPTH} levels", where=where, mend="send it flatter")


def _attribute_error(name: str, what: str, where: str | None, mend: str) -> BadEvent:
    return BadEvent(f"attribute {name[:64]!r} {what}", where=where, mend=mend)
