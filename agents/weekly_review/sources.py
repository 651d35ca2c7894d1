"""Looks up the sources of a report's claims, and sets the report in Markdown.

Nothing here believes the agent: which papers there are, which of them this run has read, and what
stands in them comes from the archive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .archive import Archive, Refused

Claims = Sequence[Mapping[str, Any]]
# Of what is wrong, so much is told.
_MOST = 20
_PLAIN = str.maketrans({**{mark: f"\\{mark}" for mark in "\\[]*_`#|"}, "<": "&lt;", "&": "&amp;"})


def find_wrong(archive: Archive, week: str, claims: Claims) -> tuple[list[str], int]:
    """Return what is wrong with the claims' sources, and how many claims are left without one.

    Each source must be a paper, or an incident, that this run has read, and hold the quote to the
    letter; a claim of which one is not so counts as one without a source.
    """
    told = {one["id"]: one["summary"] for one in archive.incidents(week)}
    wrong, unsourced = [], 0
    for number, claim in enumerate(claims, 1):
        found = [_find_fault(archive, week, told, source) for source in claim["sources"]]
        faults = [fault for fault in found if fault] if found else ["it names no source"]
        wrong += [f"claim {number}: {fault}" for fault in faults]
        unsourced += bool(faults)
    return wrong[:_MOST], unsourced


def _find_fault(
    archive: Archive, week: str, incidents: Mapping[str, str], source: Mapping[str, str]
) -> str:
    id, quote = source["document"], source["quote"]
    if id in incidents:
        noted, text = f"incidents/{id}", incidents[id]
    elif not id.startswith(f"{week}/"):
        return f"{id} is no paper or incident of {week}"
    else:
        try:
            noted, text = id, archive.text(id)
        except Refused as refused:
            return str(refused)
    if not archive.was_read(noted, text):
        return f"{id} was not read in this review, or has changed since"
    if not quote.strip():
        return f"{id} is quoted with no word"
    return "" if quote in text else f"{id} does not say {quote[:60]!r}"


def render(
    archive: Archive, week: str, claims: Claims, set_aside: Sequence[Mapping[str, str]], by: str
) -> str:
    """Return the report in Markdown. How many papers were read is counted here."""
    papers = archive.papers(week)
    unread = {id: why for id in papers if (why := _why_unread(archive, id))}
    said = {one["document"]: one["why"] for one in set_aside}
    aside = {**{id: why for id, why in said.items() if id in papers}, **unread}
    lines = [
        f"# The harbour's week {week}", "",
        f"{len(papers) - len(unread)} of {len(papers)} papers read. Every claim names its sources, "
        f"and each quote was looked up. Written by {by}.",
    ]  # fmt: skip
    section = None
    for claim in claims:
        if claim["section"] != section:
            section = claim["section"]
            lines += ["", f"## {_plain(section)}", ""]
        ids = dict.fromkeys(_short(source["document"]) for source in claim["sources"])
        lines.append(f"- {_plain(claim['text'])} [{', '.join(ids)}]")
    if aside:
        lines += ["", "## Set aside", ""]
        lines += [f"- {_short(id)}: {_plain(text)}" for id, text in sorted(aside.items())]
    lines += ["", "## Sources", ""]
    quotes = {
        (source["document"], source["quote"]): None
        for claim in claims
        for source in claim["sources"]
    }
    lines += [f"- {_short(id)}: “{_plain(quote)}”" for id, quote in sorted(quotes)]
    return "\n".join(lines) + "\n"


def _why_unread(archive: Archive, id: str) -> str:
    try:
        return "" if archive.was_read(id, archive.text(id)) else "it was not read"
    except Refused as refused:
        return str(refused)


def _short(id: str) -> str:
    return id.rpartition("/")[2]


def _plain(text: str) -> str:
    """Return a text on one line, of which neither Markdown nor HTML takes anything for its own."""
    return " ".join(text.split()).translate(_PLAIN)
