"""HTML of a mail as text, in one pass however broken it is."""

from __future__ import annotations

import re
from html import unescape

_MAX_UNCLOSED = 20_000  # characters kept of what follows a tag that never closes
_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        "address article blockquote body br dd div dl dt footer form h1 h2 h3 h4 h5 h6 head header "
        "hr html li ol option p pre section select table td textarea th title tr ul",
    )
)
# Elements whose content is code or is not shown as part of the mail.
_SILENT = frozenset({"script", "style", "title"})
_TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9]{0,20})")
_ALT = re.compile(r"""\balt\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
_TAGS = re.compile(r"<[^<>]{0,2000}>")
_ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def strip_html(page: str, defects: list[str]) -> str:
    """Return the text of a mail's HTML: no scripts, styles and comments; hidden text stays.

    Hidden text is there for some reader, so a judge must see it. One pass over the page, by hand:
    the standard parser needs quadratic time for tags that never close (15 kB: seconds).
    """
    pieces: list[str] = []
    lower = page.lower() if page.isascii() else page.translate(_ASCII_LOWER)
    at = 0
    while (opening := page.find("<", at)) >= 0:
        # Line ends of the source are spaces in HTML; only blocks break lines.
        pieces.append(page[at:opening].replace("\n", " "))
        if page.startswith("<!--", opening):
            closing = page.find("-->", opening + 2)
            at = closing + 3
        elif page[opening + 1 : opening + 2] in ("!", "?"):
            closing = page.find(">", opening)
            at = closing + 1
        elif match := _TAG.match(page, opening):
            closing = page.find(">", opening)
            at = closing + 1
            name = match[1].lower()
            pieces.append(_tag_text(name, page[opening : min(closing, opening + 4000)]))
            if name in _SILENT and page[opening + 1] != "/" and closing >= 0:
                closing = lower.find(f"</{name}", at)
                at = closing
        else:
            pieces.append("<")
            at = opening + 1
            continue
        if closing < 0:
            defects.append("HTML not closed")
            pieces.append(_TAGS.sub(" ", page[opening : opening + _MAX_UNCLOSED]))
            return unescape("".join(pieces))
    pieces.append(page[at:].replace("\n", " "))
    return unescape("".join(pieces))


def _tag_text(name: str, tag: str) -> str:
    if name in _BLOCKS:
        return "\n"
    if name == "img" and (alt := _ALT.search(tag)):
        return f" {alt[1] or alt[2] or alt[3] or ''} "
    return ""
