"""What a week comes to: claims with their sources, and what has to be followed up.

A paper is what `reading.Reader` found in it, under its id. Whatever is said here of the week names
the papers it was made of, each with words that stand there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .reading import value_of

Papers = Mapping[str, Mapping[str, Any]]
Claim = dict[str, Any]


def claims(
    papers: Papers, incidents: Sequence[Mapping[str, Any]], charter: Mapping[str, Any]
) -> list[Claim]:
    """Return all that the report claims, in its order."""
    return [
        *_themes(papers, charter),
        *_contradictions(papers, charter),
        *_incidents(incidents),
        *_numbers(papers, charter),
        *_duplicates(papers),
        *_orders(papers),
        *_kinds(papers),
    ]


def follow_ups(papers: Papers, charter: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what has to be followed up inside: by whom, why, and out of which papers."""
    found = []
    for theme, about in charter["themes"].items():
        on = _on_theme(papers, theme)
        against = [claim for claim in _contradictions(papers, charter) if claim["theme"] == theme]
        if not against and len(on) < charter["enough"]:
            continue
        named = [*on, *(one["document"] for claim in against for one in claim["sources"])]
        why = f"{len(on)} papers tell of trouble. " + " ".join(claim["text"] for claim in against)
        found.append({
            "title": about["title"], "owner": about["owner"], "why": why.strip()[:1000],
            "documents": list(dict.fromkeys(named)),
        })  # fmt: skip
    return found


def messages(papers: Papers, charter: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what somebody outside has to know: their name in the registry, a subject, a text."""
    filed = {one["title"]: one for one in follow_ups(papers, charter)}
    for about in charter["themes"].values():
        if "outside" in about and (one := filed.get(about["title"])):
            where = ", ".join(one["documents"])
            yield about["outside"], about["title"], f"{one['why']} Papers: {where}."


def _claim(section: str, text: str, sources: Sequence[tuple[str, str]], theme: str = "") -> Claim:
    told = [{"document": id, "quote": quote} for id, quote in sources if quote]
    return {"section": section, "text": text, "sources": told, "theme": theme}


def _on_theme(papers: Papers, theme: str) -> dict[str, Sequence[Any]]:
    """Return the papers on a theme: quote, place, and whether it tells that it was mended."""
    told = {id: paper.get("themes", {}).get(theme) for id, paper in papers.items()}
    first = {paper["same"]: id for id, paper in reversed(papers.items())}
    # A paper that says what another said tells of the same trouble.
    return {id: one for id, one in told.items() if one and first[papers[id]["same"]] == id}


def _themes(papers: Papers, charter: Mapping[str, Any]) -> Iterator[Claim]:
    for theme, about in charter["themes"].items():
        on = _on_theme(papers, theme)
        if not on:
            continue
        places = sorted({place for _, place, _ in on.values() if place})
        where = f", at {', '.join(places)}" if places else ""
        days = sorted(papers[id]["date"][:10] for id in on)
        when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
        text = f"{about['title']}: {_count(len(on), 'paper')}{where}, {when}."
        yield _claim(
            "What the week was about",
            text,
            [(id, quote) for id, (quote, _, _) in on.items()],
            theme,
        )


def _contradictions(papers: Papers, charter: Mapping[str, Any]) -> Iterator[Claim]:
    section = "What does not agree"
    for theme, about in charter["themes"].items():
        on = sorted(_on_theme(papers, theme).items(), key=lambda one: papers[one[0]]["date"])
        for at, (id, (quote, place, mended)) in enumerate(on):
            later = [(i, q) for i, (q, p, m) in on[at + 1 :] if p == place and not m]
            if mended and later:
                where = f"{about['title']} {place}".strip()
                text = f"{where}: said to be mended, and in trouble again after that."
                yield _claim(section, text, [(id, quote), *later], theme)
    for name in charter["agreed"]:
        said = [
            (id, paper["values"][name])
            for id, paper in papers.items()
            if name in paper.get("values", {})
        ]
        values = list(dict.fromkeys(value_of(quote) for _, quote in said))
        if len(values) > 1:
            theme = next((id for id, one in charter["themes"].items() if one["title"] == name), "")
            yield _claim(section, f"{name}: the papers say {' and '.join(values)}.", said, theme)


def _incidents(incidents: Sequence[Mapping[str, Any]]) -> Iterator[Claim]:
    for one in incidents:
        over = f"closed at {one['closed_at']}" if one["closed_at"] else "still open"
        text = f"{one['series']}: opened at {one['opened_at']}, {over}."
        yield _claim("Incidents", text, [(one["id"], one["summary"][:300])])


def _numbers(papers: Papers, charter: Mapping[str, Any]) -> Iterator[Claim]:
    for name in charter["counted"]:
        said = [
            (id, paper["values"][name])
            for id, paper in papers.items()
            if name in paper.get("values", {})
        ]
        counted = [(id, quote) for id, quote in said if value_of(quote).isdigit()]
        if counted:
            total = sum(int(value_of(quote)) for _, quote in counted)
            text = f"{name}: {total} in all, out of {_count(len(counted), 'paper')}."
            yield _claim("The week in numbers", text, counted)


def _duplicates(papers: Papers) -> Iterator[Claim]:
    alike: dict[str, list[str]] = {}
    for id, paper in papers.items():
        # A notice of each day, or a report without news, is no repetition of a letter.
        if paper.get("themes") or paper.get("order"):
            alike.setdefault(paper["same"], []).append(id)
    for same in alike.values():
        if len(same) > 1:
            text = f"{' and '.join(_short(id) for id in same)} say the same; it counts once."
            yield _claim("Said twice", text, [(id, papers[id]["subject"]) for id in same])


def _orders(papers: Papers) -> Iterator[Claim]:
    for id, paper in papers.items():
        if "order" in paper:
            text = f"{_short(id)} gives orders to whoever reads it. They were not followed."
            yield _claim("Papers that give orders", text, [(id, paper["order"])])


def _kinds(papers: Papers) -> Iterator[Claim]:
    kinds: dict[str, list[str]] = {}
    for id, paper in papers.items():
        kinds.setdefault(paper["kind"], []).append(id)
    for kind, ids in sorted(kinds.items(), key=lambda one: (-len(one[1]), one[0])):
        text = f"{_count(len(ids), kind if kind != 'other' else 'other paper')}."
        yield _claim("The papers, by kind", text, [(id, papers[id]["subject"]) for id in ids])


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _short(id: str) -> str:
    return id.rpartition("/")[2]
