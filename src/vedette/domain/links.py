"""Links in texts: every URL and address that a reader's program may make one of.

What is found errs on the side of too much: a file name with the ending of a domain is a link. What
is spelled so that no program makes a link of it (`evil dot example`) is not found.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from vedette.domain.origin import KnownValues, Origin, escape_pointer

MAX_LINKS = 64
MAX_LINK_CHARS = 512  # characters of a link that are told


class Link(Struct, frozen=True):
    """One link: the JSON Pointer of the text it stands in, itself, its host, its origin.

    `host` is in lower case and ASCII; "" where it has none or none can be read for certain.
    """

    pointer: str
    link: str
    host: str
    origin: Origin

    def to_json(self) -> dict[str, str]:
        """Return the link as policy is told it."""
        return {"at": self.pointer, "link": self.link, "host": self.host, "origin": self.origin}


def find_argument_links(
    args: Mapping[str, Any], origins: Mapping[str, Origin], known: Callable[[], KnownValues]
) -> tuple[Link, ...]:
    """Return the links in all texts of some arguments but those that are trusted as they stand.

    A link that stands in charter or registry, or whose host does, is registered; any other has
    the origin of its text. Beyond 64 one stands for all that are left, and is untrusted.
    """
    if not _may_have_links(args):
        return ()
    found: dict[tuple[str, str], Link] = {}
    values: KnownValues | None = None
    for at, text, origin in _iter_texts(args, origins):
        for link, host, same in find_links(text):
            if len(found) == MAX_LINKS:
                found[at, ""] = Link(at, f"more than {MAX_LINKS} links", "", "untrusted")
                return tuple(found.values())
            if values is None:
                values = known()
            registered = link in values or any(name and name in values for name in (host, same))
            excerpt = link[:MAX_LINK_CHARS]
            found[at, link] = Link(at, excerpt, host, "registered" if registered else origin)
    return tuple(found.values())


def _may_have_links(args: Mapping[str, Any]) -> bool:
    """Say whether there may be a link in some arguments: lists and objects are not looked into."""
    texts = []
    for value in args.values():
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict | list):
            return True
    # What hints at a link holds no NUL, so no hint is made of two texts.
    return _HINT.search("\0".join(texts)) is not None


def _iter_texts(
    args: Mapping[str, Any], origins: Mapping[str, Origin]
) -> Iterator[tuple[str, str, Origin]]:
    waiting: list[tuple[str, Any, Origin]] = [
        (f"/{escape_pointer(name)}", value, "untrusted")
        for name, value in args.items()
        if not isinstance(value, str) or _HINT.search(value)
    ]
    while waiting:
        at, value, above = waiting.pop()
        origin = origins.get(at, above)
        if isinstance(value, str):
            if origin != "trusted" and _HINT.search(value):
                yield at, value, origin
        elif isinstance(value, dict):
            for name, item in value.items():
                if origin != "trusted" and _HINT.search(name):
                    yield at, name, origin
                waiting.append((f"{at}/{escape_pointer(name)}", item, origin))
        elif isinstance(value, list):
            waiting += [(f"{at}/{index}", item, origin) for index, item in enumerate(value)]


# Without one of these there is no link, and most arguments have none: nor has a number.
# A break may stand anywhere: within a tag it is dropped.
_HINT = re.compile(
    r"\.[\t\r\n]*[A-Za-z]|\d[\t\r\n]*\.[\t\r\n]*\d[\d\t\r\n]*\.|[@:&\\]|/[\t\r\n]*/|[^\x00-\x7f]"
)
_SCHEME = re.compile(
    r"""(?<![a-z0-9])
    (?: (?:https?|ftp|wss?):[/\\]*                      # browsers need no slashes, or take any
      | [a-z][a-z0-9+-]{0,30}:[/\\]{2}
      | (?:mailto|tel|sms|data|javascript|vbscript|file|blob|xmpp|sips?|callto|skype|intent|magnet
           |matrix|geo|facetime|whatsapp|tg|ldaps?|news|nntp|view-source|about|cid):
      | (?<![:/\\])[/\\]{2}(?=[^\s/\\])                 # the scheme of the page, or a share
    )(?=[^\s<>"'`])""",
    re.IGNORECASE | re.VERBOSE,
)
_URL_REST = re.compile(r"""[^\s<>"'`]*""")
_MAX_URL_CHARS = 2048  # characters after which a URL's host cannot be read for certain
# Where some programs end a URL and others do not: what follows may be a link of its own.
_URL_END = re.compile(r"[)\]}|,;*]|[^\x00-\x7f]")
_ADDRESS = re.compile(r"[^\s@<>()\[\]\"',;:?&=/\\]{1,64}@[^\W_](?:[\w-]*\.)*[\w-]*\w", re.UNICODE)
_DOMAIN = re.compile(
    r"(?<![\w.@-])(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.)+(?:[^\W\d_]{2,24}|xn--[a-z0-9-]{2,59})(?![\w-])",
    re.IGNORECASE,
)
_NUMERIC = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")
# Endings of files that are no top-level domains; .zip, .mov, .md and .sh are.
_FILE_SUFFIXES = frozenset(
    """csv doc docx gif htm html ics jpeg jpg js json log odt ods pdf png ppt pptx rego svg toml txt
    tsv wav webp xls xlsx xml yaml yml""".split()  # noqa: SIM905 - a list of 30 lines says no more
)
_TAG = re.compile(r"<[^<>]*>|\([^()]*\)")
_BREAKS = re.compile(r"[\t\r\n]+")
_DOT = re.compile("(?<=[A-Za-z0-9])[\u3002\uff61](?=[A-Za-z0-9])")
_TRAILING_CHARS = ".,;:!?)]}*_|"
# Letters of a host that IDNA 2003 and 2008 read as different names: programs differ, too.
_DISPUTED_LETTERS = "\u00df\u03c2\u200c\u200d"
_HOST_SCHEMES = ("http", "https", "ftp", "ws", "wss", "mailto", "")


def find_links(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield each link of a text once: as it is read, its host, and the address or host it names.

    A text is read as it stands and as a program shows it: without invisible characters, in the
    compatible form of each letter, with HTML's entities resolved and breaks within tags dropped.
    """
    seen: set[str] = set()
    for form in _readings(text):
        spans: list[tuple[int, int]] = []
        for start, url, ends in _urls(form):
            spans.append((start, ends))
            if url not in seen:
                seen.add(url)
                yield url, *_parse_url(url)
        for match in _ADDRESS.finditer(form):
            spans.append(match.span())
            address = match[0].lower().lstrip("*_|.{")
            if address not in seen and f"mailto:{address}" not in seen:
                seen.add(address)
                yield address, _normalize_host(address.rpartition("@")[2]), address
        covers = _Spans(spans)
        for pattern in (_DOMAIN, _NUMERIC):
            for match in pattern.finditer(form):
                domain = match[0].lower()
                if domain in seen or domain.rpartition(".")[2] in _FILE_SUFFIXES:
                    continue
                if match.start() in covers:
                    continue
                seen.add(domain)
                yield domain, _normalize_host(domain), domain


def _urls(form: str) -> Iterator[tuple[int, str, int]]:
    """Yield each URL of a text, also one within another: its place, itself, where it ends at least.

    Programs do not agree on where a URL ends, so each that begins within another is one, too.
    """
    end = 0
    for match in _SCHEME.finditer(form):
        start = match.start()
        # A path may have two slashes in a row: that is no URL of its own.
        if start < end and form[start] in "/\\" and form[start - 1].isalnum():
            continue
        rest = _URL_REST.match(form, match.end(), match.end() + _MAX_URL_CHARS + 1)
        assert rest is not None  # it matches nothing, too
        end = max(end, rest.end())
        least = _URL_END.search(form, match.end(), rest.end())
        url = form[start : rest.end()]
        if len(url) <= _MAX_URL_CHARS:
            url = url.rstrip(_TRAILING_CHARS)
        yield start, url, least.start() if least else rest.end()


class _Spans:
    """Stretches of a text, asked for what lies in one. A question takes logarithmic time."""

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        ordered = sorted(spans)
        self._starts = [start for start, _ in ordered]
        self._ends = list(accumulate((end for _, end in ordered), max))

    def __contains__(self, place: int) -> bool:
        at = bisect_right(self._starts, place)
        return at > 0 and place < self._ends[at - 1]


def _readings(text: str) -> Iterator[str]:
    shown = text
    if not text.isascii():
        shown = unicodedata.normalize("NFKC", text)
        characters = (
            c for c in shown if c in "\t\r\n" or unicodedata.category(c) not in ("Cf", "Cc")
        )
        shown = _DOT.sub(".", "".join(characters))
    forms = [shown, text]
    if "&" in shown:
        from html import unescape  # few texts need its tables

        forms.append(unescape(shown))
    for form in list(forms):
        if ("<" in form or "(" in form) and ("\n" in form or "\t" in form or "\r" in form):
            forms.append(_TAG.sub(lambda tag: _BREAKS.sub("", tag[0]), form))
    yield from dict.fromkeys(forms)


def _parse_url(url: str) -> tuple[str, str]:
    """Return a URL's host, and the address that a plain mailto names or else the host."""
    # As browsers do: a backslash is a slash, and after http: any number of slashes is two.
    plain = url.replace("\\", "/")
    scheme, colon, rest = plain.partition(":")
    if plain.startswith("//"):
        scheme, colon, rest = "", ":", plain
    scheme = scheme.lower()
    if scheme not in _HOST_SCHEMES or not colon or len(url) > _MAX_URL_CHARS:
        return "", ""
    if scheme == "mailto":
        address = unquote(rest).lower()
        lone = address.count("@") == 1 and not re.search(r"[\s,;?&]", address)
        return (_normalize_host(address.rpartition("@")[2]), address) if lone else ("", "")
    rest = rest.lstrip("/")
    before_host = re.split("[/?#]", rest, maxsplit=1)[0].rpartition("@")[0]
    if _URL_END.search(before_host):
        return "", ""  # a program that ends the URL there reads another host
    try:
        host = urlsplit("http://" + rest).hostname or ""
    except ValueError:
        return "", ""
    found = _normalize_host(host)
    return found, found


def _normalize_host(text: str) -> str:
    """Return a host in lower case and ASCII; "" for what is none."""
    name = unquote(text).lower().rstrip(".")
    if not name.isascii():
        if len(name) > 253 or any(letter in name for letter in _DISPUTED_LETTERS):
            return ""
        try:
            name = name.encode("idna").decode("ascii")
        except UnicodeError:
            return ""
    return name if re.fullmatch(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?", name) else ""
