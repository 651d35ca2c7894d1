"""Series of Prometheus as events: pure.

A point has the shape that the csv source gives it, so whoever watches series watches these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from vedette.domain.base.canonical import sha256_hex
from vedette.domain.base.clock import MICROS, iso
from vedette.domain.base.errors import BadFleet
from vedette.domain.event import ENVELOPE, Event

MAX_NAME = 500  # characters of a series' name
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def series_name(query: str, metric: Mapping[str, str]) -> str:
    """Return a Prometheus series' name: the query's, and the labels in the order of their names.

    The name of the metric is left out, since the query has one. A long name ends in its digest.
    """
    labels = ",".join(
        f'{label}="{value.translate(_ESCAPED)}"'
        for label, value in sorted(metric.items())
        if label != "__name__"
    )
    name = f"{query}{{{labels}}}" if labels else query
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 34]}… {sha256_hex(name.encode('utf-8', 'replace'))[:32]}"


def index_series(query: str, result: Sequence[Any], where: str) -> dict[str, Any]:
    """Return the series of a Prometheus answer by name.

    Raises BadFleet if two have one name: their points would be taken for one series.
    """
    found: dict[str, Any] = {}
    for series in result:
        name = series_name(query, series["metric"])
        if name in found:
            what = f"two series of query {query!r} are called {name!r}"
            mend = "ask for one metric in each query, or tell them apart with label_replace()"
            raise BadFleet(what, where=where, mend=mend)
        found[name] = series
    return found


def cut_series_after(series: Mapping[str, Any], end_s: int) -> dict[str, Any]:
    """Return Prometheus series without the samples behind an instant."""

    def cut(samples: Sequence[Any]) -> list[Any]:
        return [sample for sample in samples if round(sample[0]) <= end_s]

    return {
        name: {key: cut(one.get(key, ())) for key in ("values", "histograms")}
        | {"metric": one["metric"]}
        for name, one in series.items()
    }


def choose_series(known: Sequence[str], found: Sequence[str], limit: int) -> list[str]:
    """Return which Prometheus series are taken if they are too many: known ones come first."""
    there = set(found)
    before = [name for name in known if name in there]
    return (before + sorted(there.difference(before)))[:limit]


def series_points(
    source: str, series_by_name: Mapping[str, Any], vouched: Collection[str]
) -> tuple[list[Event], Counter[str]]:
    """Return the points of Prometheus series, oldest first, and how many were skipped, by why.

    The values of other labels than `vouched` may be anybody's (a path that was asked for, the name
    of a user), so a series that has such is vouched for neither in its name nor in its ids.

    A sample that is no number (NaN, an infinity) is skipped; where a series has no sample there is
    none, and so no event.
    """
    found: list[tuple[int, str, float]] = []
    skipped: Counter[str] = Counter()
    for name, series in series_by_name.items():
        skipped["histogram"] += len(series.get("histograms", ()))
        for at, text in series.get("values", ()):
            value = float(text)
            if math.isfinite(value):
                found.append((round(at), name, value))
            else:
                skipped["not-finite"] += 1
    found.sort(key=lambda point: point[:2])
    theirs = ENVELOPE - {"id", "subject"}
    known = {
        name: ENVELOPE if set(series["metric"]) <= {"__name__", *vouched} else theirs
        for name, series in series_by_name.items()
    }
    events = [
        Event(
            source,
            f"{name}@{at}",
            "metric.point",
            name,
            iso(at * MICROS),
            {"value": value},
            vouched=known[name],
        )
        for at, name, value in found
    ]
    return events, +skipped
