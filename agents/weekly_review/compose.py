"""What a week comes to: claims with their sources, and what has to be followed up.

A paper is what `reading.Reader` found in it, under its id. Whatever is said here of the week names
the papers it was made of, each with words that stand there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .reading import agreed_value, count_of

Papers = Mapping[str, Mapping[str, Any]]
Claim = dict[str, Any]
Sources = Sequence[tuple[str, str]]

# What a report may hold, by the schema of report.write; in bytes, what is proposed of it.
_MAX_CLAIMS, _MAX_SOURCES, _MAX_BYTES = 200, 300, 100_000


def claims(
    papers: Papers, incidents: Sequence[Mapping[str, Any]], charter: Mapping[str, Any]
) -> list[Claim]:
    """Return all that the report claims, in its order, as much as one report holds.

    A claim without a source is none. Where a claim has more sources than fit, it names the first;
    its text tells of how many it was made.
    """
    made = [
        *_themes(papers, charter),
        *_other(papers),
        *_contradictions(papers, charter),
        *_incidents(incidents),
        *_numbers(papers, charter),
        *_duplicates(papers),
        *_orders(papers),
        *_kinds(papers),
    ]
    sourced = [claim for claim in made if claim["sources"]][:_MAX_CLAIMS]
    for most in (_MAX_SOURCES, 60, 12, 3):
        fit = [{**claim, "sources": claim["sources"][:most]} for claim in sourced]
        if len(json.dumps(fit, ensure_ascii=False).encode()) <= _MAX_BYTES:
            break
    return fit


def follow_ups(papers: Papers, charter: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what has to be followed up inside: by whom, why, and out of which papers."""
    found = []
    for theme, about in charter["themes"].items():
        on = _on_theme(papers, theme, "trouble")
        against = [claim for claim in _contradictions(papers, charter) if claim["theme"] == theme]
        if not against and len(on) < charter["enough"]:
            continue
        named = [*on, *(one["document"] for claim in against for one in claim["sources"])]
        why = " ".join([_told_of(len(on)), *(claim["text"] for claim in against)])
        found.append(_follow_up(about["title"], about["owner"], why, named))
    first = _first(papers)
    if other := [id for id in papers if id in first and papers[id].get("other")]:
        why = f"{_count(len(other), 'paper')} with trouble that fits no theme: somebody reads them."
        found.append(_follow_up("Trouble that fits no theme", charter["owner"], why, other))
    return found


def messages(papers: Papers, charter: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what somebody outside has to know: their name in the registry, a subject, a text.

    In the house's own voice stands nothing that a paper's writer could have made up: of a paper
    there are its id, its writer in quotation marks, and what fits the charter's pattern of a value.
    """
    filed = {one["title"]: one for one in follow_ups(papers, charter)}
    for theme, about in charter["themes"].items():
        if "outside" not in about or about["title"] not in filed:
            continue
        said = [
            f"{_short(id)}, by “{papers[id]['from']}”, {papers[id]['date'][:10]}: “{value}”."
            for id, (value, _) in _agreed(papers, charter, about["title"]).items()
        ]
        on = _on_theme(papers, theme, "trouble")
        told = f"{_told_of(len(on))} They are {', '.join(map(_short, on))}." if on else ""
        disagree = len(_values(_agreed(papers, charter, about["title"]))) > 1
        lead = f"Our papers do not agree on “{about['title']}”." if disagree else ""
        text = "\n".join(filter(None, [lead, *(said if disagree else ()), told]))
        yield about["outside"], about["title"], text


def _follow_up(title: str, owner: str, why: str, named: Sequence[str]) -> dict[str, Any]:
    documents = list(dict.fromkeys(named))[:_MAX_SOURCES]
    return {"title": title, "owner": owner, "why": why[:1000], "documents": documents}


def _claim(section: str, text: str, sources: Sources, theme: str = "") -> Claim:
    told = [{"document": id, "quote": quote} for id, quote in sources if quote]
    return {"section": section, "text": text[:1000], "sources": told, "theme": theme}


def _on_theme(papers: Papers, theme: str, state: str) -> dict[str, Sequence[Any]]:
    """Return what papers say on a theme of `trouble` or of what was `mended`: [quote, place]s."""
    told = {id: paper.get("themes", {}).get(theme, {}).get(state) for id, paper in papers.items()}
    first = _first(papers)
    return {id: one for id, one in told.items() if one and id in first}


def _themes(papers: Papers, charter: Mapping[str, Any]) -> Iterator[Claim]:
    for theme, about in charter["themes"].items():
        on = _on_theme(papers, theme, "trouble")
        mended = _on_theme(papers, theme, "mended")
        if not on and not mended:
            continue
        said = [(id, quote, place) for told in (on, mended) for id in told
                for quote, place in told[id]]  # fmt: skip
        places = sorted({place for _, _, place in said if place})
        where = f", at {', '.join(places)}" if places else ""
        days = sorted(filter(None, (papers[id]["date"][:10] for id in {**on, **mended})))
        when = f", {days[0]}" if days else ""
        when += f" to {days[-1]}" if days and days[0] != days[-1] else ""
        repair = f" {_count(len(mended), 'paper')} of a repair." if mended else ""
        text = f"{about['title']}: {_count(len(on), 'paper')} of trouble{where}{when}.{repair}"
        sources = sorted(
            ((id, quote) for id, quote, _ in said), key=lambda one: _order(papers, one)
        )
        yield _claim("What the week was about", text, sources, theme)


def _first(papers: Papers) -> frozenset[str]:
    """Return the papers but those that say what another said: they tell of the same trouble."""
    return frozenset({paper["same"]: id for id, paper in reversed(papers.items())}.values())


def _other(papers: Papers) -> Iterator[Claim]:
    first = _first(papers)
    said = [(id, quote) for id in papers if id in first for quote in papers[id].get("other", ())]
    if said:
        count = _count(len({id for id, _ in said}), "paper")
        yield _claim("Trouble that fits no theme", f"{count} of damage, danger or trouble.", said)


def _contradictions(papers: Papers, charter: Mapping[str, Any]) -> Iterator[Claim]:
    section = "What does not agree"
    for theme, about in charter["themes"].items():
        on = _on_theme(papers, theme, "trouble")
        for id, told in _on_theme(papers, theme, "mended").items():
            # Without a place nobody knows whether the same thing is meant.
            for quote, place in [one for one in told if one[1]]:
                later = [
                    (other, words)
                    for other, troubles in on.items()
                    for words, where in troubles
                    if where == place and papers[other]["date"] > papers[id]["date"] > ""
                ]
                if later:
                    what = "said to be mended, and in trouble again after that"
                    sources = [(id, quote), *later]
                    yield _claim(section, f"{about['title']} {place}: {what}.", sources, theme)
    for name in charter["agreed"]:
        said = _agreed(papers, charter, name)
        values = _values(said)
        if len(values) > 1:
            theme = next((id for id, one in charter["themes"].items() if one["title"] == name), "")
            text = f"{name}: the papers say {' and '.join(values)}."
            sources = [(id, papers[id]["values"][name]) for id in said]
            yield _claim(section, text, sources, theme)


def _agreed(papers: Papers, charter: Mapping[str, Any], name: str) -> dict[str, tuple[str, str]]:
    """Return what papers say of a value that all should agree on, and the same to compare."""
    found: dict[str, tuple[str, str]] = {}
    if (pattern := charter["agreed"].get(name)) is None:
        return found
    for id, paper in papers.items():
        value = agreed_value(paper.get("values", {}).get(name, ""), pattern)
        if value is not None:
            found[id] = value
    return found


def _values(said: Mapping[str, tuple[str, str]]) -> list[str]:
    return list({plain: value for value, plain in reversed(said.values())}.values())[::-1]


def _incidents(incidents: Sequence[Mapping[str, Any]]) -> Iterator[Claim]:
    for one in incidents:
        over = f"closed at {one['closed_at']}" if one["closed_at"] else "still open"
        text = f"{one['series']}: opened at {one['opened_at']}, {over}."
        yield _claim("Incidents", text, [(one["id"], one["summary"][:300])])


def _numbers(papers: Papers, charter: Mapping[str, Any]) -> Iterator[Claim]:
    for name in charter["counted"]:
        said = {
            id: (quote, count)
            for id, paper in papers.items()
            if (quote := paper.get("values", {}).get(name, ""))
            and (count := count_of(quote)) is not None
        }
        if said:
            total = sum(count for _, count in said.values())
            text = f"{name}: {total} in all, out of {_count(len(said), 'paper')}."
            sources = [(id, quote) for id, (quote, _) in said.items()]
            yield _claim("The week in numbers", text, sources)


def _duplicates(papers: Papers) -> Iterator[Claim]:
    alike: dict[str, list[str]] = {}
    for id, paper in papers.items():
        # A notice of each day, or a report without news, is no repetition of a letter.
        if any(name in paper for name in ("themes", "other", "order")):
            alike.setdefault(paper["same"], []).append(id)
    for same in alike.values():
        if len(same) > 1:
            text = f"{' and '.join(_short(id) for id in same)} say the same; it counts once."
            yield _claim("Said twice", text, [(id, papers[id]["first"]) for id in same])


def _orders(papers: Papers) -> Iterator[Claim]:
    said = [(id, paper["order"]) for id, paper in papers.items() if "order" in paper]
    if said:
        count, verb = _count(len(said), "paper"), "gives" if len(said) == 1 else "give"
        text = f"{count} {verb} orders to whoever reads it. They were not followed."
        yield _claim("Papers that give orders", text, said)


def _kinds(papers: Papers) -> Iterator[Claim]:
    kinds: dict[str, list[str]] = {}
    for id, paper in papers.items():
        if paper["first"]:
            kinds.setdefault(paper["kind"], []).append(id)
    for kind, ids in sorted(kinds.items(), key=lambda one: (-len(one[1]), one[0])):
        what = kind if kind != "other" else "other paper"
        text = f"{_count(len(ids), what)}; the first of them is the source."
        yield _claim("The papers, by kind", text, [(ids[0], papers[ids[0]]["first"])])


def _order(papers: Papers, source: tuple[str, str]) -> tuple[str, str]:
    return papers[source[0]]["date"], source[0]


def _told_of(number: int) -> str:
    return f"{_count(number, 'paper')} {'tells' if number == 1 else 'tell'} of trouble."


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _short(id: str) -> str:
    return id.rpartition("/")[2]
