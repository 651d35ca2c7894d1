"""Looks up the sources of a report's claims, and sets the report in Markdown.

Nothing here believes the agent: which papers there are, which of them this run has read, and what
stands in them comes from the archive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .archive import MAX_PAPERS, Archive, Refused, Unreadable
from .reading import sentences, split

Claims = Sequence[Mapping[str, Any]]
# Of what is wrong, so much is told.
_MOST = 20
# A quote is a whole line or sentence, or so much of one.
_MIN_CHARS, _MIN_WORDS, _LONG = 20, 3, 60
# The sections of a report in their order, as agent.yaml names them; in these the sources are many
# and of few words, and are told at the end.
SECTIONS = (
    "What the week was about", "Trouble that fits no theme", "What does not agree", "Incidents",
    "The week in numbers", "Said twice", "Papers that give orders", "The papers, by kind",
)  # fmt: skip
_BRIEF = ("The week in numbers", "The papers, by kind")
_PLAIN = str.maketrans({**{mark: f"\\{mark}" for mark in "\\[]*_`#|"}, "<": "&lt;", "&": "&amp;"})


class Week:
    """The papers and incidents of a week, as far as one run has read them."""

    def __init__(self, archive: Archive, week: str) -> None:
        self._archive, self.week = archive, week
        self.incidents = {one["id"]: one["summary"] for one in archive.incidents(week)}
        papers = list(archive.papers(week))
        self.papers, self.left_out = papers[:MAX_PAPERS], papers[MAX_PAPERS:]
        # Papers that this run has not read, by why; those that nobody can read are apart.
        self.unread: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}
        for id in self.papers:
            try:
                why = archive.why_unread(id)
            except Unreadable as unreadable:
                self.unreadable[id] = str(unreadable)
            else:
                if why:
                    self.unread[id] = why
        self.incidents_read = sum(
            archive.was_read(f"incidents/{id}", told) for id, told in self.incidents.items()
        )

    def says_nothing(self) -> bool:
        """Say whether there is nothing to claim: no incident, and no word in what was read."""
        read = (id for id in self.papers if id not in self.unread and id not in self.unreadable)
        return not self.incidents_read and not any(self._archive.text(id).strip() for id in read)

    def find_wrong(self, claims: Claims) -> tuple[list[str], list[str], int]:
        """Return what is wrong with claims' sources, which those are, and how many claims are left
        without one.

        Each source must be a paper, or an incident, that this run has read, and hold the quote to
        the letter; a claim of which one is not so counts as one without a source.
        """
        wrong: list[str] = []
        at_fault: dict[str, None] = {}
        unsourced = 0
        for number, claim in enumerate(claims, 1):
            found = [(one["document"], self._find_fault(one)) for one in claim["sources"]]
            faults = {id: fault for id, fault in found if fault}
            at_fault.update(dict.fromkeys(faults))
            said = faults.values() if found else ["it names no source"]
            wrong += [f"claim {number}: {fault}" for fault in said]
            unsourced += bool(faults) or not found
        return wrong[:_MOST], list(at_fault)[:_MOST], unsourced

    def _find_fault(self, source: Mapping[str, str]) -> str:
        id, quote = source["document"], source["quote"].strip()
        if id in self.incidents:
            noted, text = f"incidents/{id}", self.incidents[id]
        elif not id.startswith(f"{self.week}/"):
            return f"{id} is no paper or incident of {self.week}"
        else:
            try:
                noted, text = id, self._archive.text(id)
            except Refused as refused:
                return str(refused)
        if not self._archive.was_read(noted, text):
            return f"{id} was not read in this review, or has changed since"
        if quote not in text:
            return f"{id} does not say {quote[:60]!r}"
        return "" if _is_quote(quote, text) else (
            f"{id}: {quote[:60]!r} is no quote; take a whole line or sentence, or at least "
            f"{_MIN_CHARS} characters and {_MIN_WORDS} words of one"
        )  # fmt: skip

    def head(self, id: str) -> str:
        """Return what a source is called: its id, and a paper's date and writer."""
        if id in self.incidents:
            return f"incident {id}"
        head, _ = split(self._archive.text(id))
        told = (head.get("Date", "")[:16], head.get("From", "")[:60])
        return ", ".join([_short(id), *(_plain(one) for one in told if one.strip())])


def _is_quote(quote: str, text: str) -> bool:
    long = len(quote) >= _LONG or (len(quote) >= _MIN_CHARS and len(quote.split()) >= _MIN_WORDS)
    return bool(quote) and (
        long
        or any(quote == line.strip() for line in text.splitlines())
        or quote in sentences(split(text)[1])
    )


def render(
    week: Week,
    claims: Claims,
    follow_ups: Sequence[Mapping[str, Any]],
    set_aside: Sequence[Mapping[str, str]],
    by: str,
) -> str:
    """Return the report in Markdown. How many papers were read is counted here."""
    of, unread = len(week.papers), {**week.unread, **week.unreadable}
    left_out = (
        f" {len(week.left_out)} more are beyond what one review reads." if week.left_out else ""
    )
    lines = [
        f"# The harbour's week {week.week}", "",
        f"{of - len(unread)} of {of} papers read, {week.incidents_read} of {len(week.incidents)} "
        f"incidents.{left_out} What is said here is {by}'s; that each quote stands in "
        f"the source it names was looked up, and not whether it bears the claim out.",
    ]  # fmt: skip
    if not claims:
        lines += ["", "There was nothing to report." if of else "There are no papers of this week."]
    brief: dict[str, dict[str, None]] = {}
    for section in SECTIONS:
        told = [claim for claim in claims if claim["section"] == section]
        lines += ["", f"## {section}", ""] if told else []
        for claim in told:
            ids = dict.fromkeys(_called(week, source["document"]) for source in claim["sources"])
            lines.append(f"- {_plain(claim['text'])} [{', '.join(ids)}]")
            for source in claim["sources"]:
                id, quote = source["document"], _plain(source["quote"])
                if section in _BRIEF:
                    brief.setdefault(id, {})[quote] = None
                else:
                    lines.append(f"  - {week.head(id)}: “{quote}”")
    if follow_ups:
        lines += ["", "## To be followed up", ""]
        lines += [
            f"- {_plain(one['title'])} ({_plain(one['owner'])}): {_plain(one['why'])}"
            for one in follow_ups
        ]
    cited = {source["document"] for claim in claims for source in claim["sources"]}
    said = {
        one["document"]: f"{by} says: {_plain(one['why'])}"
        for one in set_aside
        if one["document"] in week.papers and one["document"] not in cited
    }
    aside = {**said, **{id: _plain(why) for id, why in unread.items()}}
    if aside or week.left_out:
        lines += ["", "## Set aside", ""]
        lines += [f"- {_short(id)}: {text}" for id, text in sorted(aside.items())]
        lines += [f"- {_short(id)}: beyond what one review reads" for id in week.left_out[:_MOST]]
    if brief:
        lines += ["", "## Sources of the numbers and kinds", ""]
        lines += [
            f"- {week.head(id)}: {' '.join(f'“{quote}”' for quote in quotes)}"
            for id, quotes in sorted(brief.items())
        ]
    return "\n".join(lines) + "\n"


def _called(week: Week, id: str) -> str:
    return f"incident {id}" if id in week.incidents else _short(id)


def _short(id: str) -> str:
    return id.rpartition("/")[2]


def _plain(text: str) -> str:
    """Return a text on one line, of which neither Markdown nor HTML takes anything for its own."""
    return " ".join(text.split()).translate(_PLAIN)
