"""A series as the record has it, and its picture: nothing is made up, nothing gets out of it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import pytest

from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.clock import from_iso, utc_time
from vedette.domain.base.errors import BadCommand
from vedette.domain.entry import Body, Draft, encode_entry
from vedette.domain.event import Event
from vedette.domain.ports.ledger_reader import RawEntry
from vedette.interfaces.render.series_svg import picture
from vedette.ledger.history.series import plot

T0 = from_iso("2026-03-02T00:00:00Z")
MINUTE = 60_000_000
SVG = "{http://www.w3.org/2000/svg}"


class Record:
    """A ledger in memory: `walk` is all that a plot reads."""

    def __init__(self) -> None:
        self.sealed: list[tuple[int, bytes, bytes | None]] = []

    def walk(self, kinds: tuple[str, ...] | None = None, after: int = 0) -> Iterator[RawEntry]:
        for seq, raw, data in self.sealed:
            if seq > after and (kinds is None or json.loads(raw)["kind"] in kinds):
                yield seq, raw, None, data

    def write(self, kind: str, body: Any = None, **fields: Any) -> None:
        seq = len(self.sealed) + 1
        data = None if body is None else body if isinstance(body, bytes) else canonical_json(body)
        cause = fields.pop("cause", None)
        draft = Draft(kind, fields, cause, body=None if data is None else Body(data))
        digest = None if data is None else "0" * 64
        raw = encode_entry(
            draft, seq=seq, at_us=T0 + seq, run=fields.pop("run", None), n=1, body=digest
        )
        self.sealed.append((seq, raw, data))

    def point(
        self,
        minute: int,
        value: object,
        score: int | None = 500,
        series: str = "pump",
        cause: int | None = None,
        **data: Any,
    ) -> str:
        event = Event(
            "csv:x", f"{series}:{minute}", "metric.point", series,
            utc_time(T0 + minute * MINUTE), {"value": value, **data},
        )  # fmt: skip
        self.write("event.accepted", event.to_body(), cause=cause, event=event.key)
        if score is not None:
            self.write(
                "run.closed", event=event.key, agent="watcher", label="quiet",
                confidence_milli=910, score_milli=score, threshold_milli=3860,
            )  # fmt: skip
        return event.key


def drawn(answer: dict[str, Any]) -> ET.Element:
    return ET.fromstring(picture(answer, utc_time))


def of(record: Record, series: str = "pump", **more: Any) -> dict[str, Any]:
    return plot(record, series, T0, T0 + 10**9, **more)


@pytest.fixture
def record() -> Record:
    """Forty minutes with an alarm, a hold, an answer, an incident and a gap."""
    made = Record()
    for minute in range(40):
        if 20 <= minute < 28:
            continue
        event = made.point(minute, "3.5" if minute != 10 else 9, unit="bar", measure="pressure")
        made.point(minute, 100, series="pumpe")
        base = {"event": event, "agent": "watcher"}
        if minute == 10:
            made.write(
                "turn.reasoned", {}, label="alarm", score_milli=6500, threshold_milli=3860,
                run="run_1", turn=1, **base,
            )  # fmt: skip
            made.write("effect.done", {}, tool="incident.open", run="run_1", **base)
        if minute == 14:
            held = {"tool": "incident.notify", **base}
            made.write("action.decided", {}, outcome="hold", wait="approval", **held)
            made.write("hold.denied", {"reason": "a test"}, actor="ann", **held)
        if minute == 16:
            made.write("effect.done", {}, tool="incident.close", run="run_2", **base)
            made.write("run.corrected", {"should": "<b>"}, outcome="wrong", actor="ann", **base)
    return made


def test_points_are_the_events_of_the_series_alone(record: Record) -> None:
    series = of(record)
    assert (series["recorded"], series["measure"], series["unit"]) == (32, "pressure", "bar")
    assert [p["value"] for p in series["points"]] == [3.5] * 10 + [9.0] + [3.5] * 21
    assert series["points"][3]["at"] == T0 + 3 * MINUTE
    assert {p["threshold"] for p in series["points"]} == {3.86}
    assert series["agent"] == "watcher"
    other = of(record, "pumpe")
    assert {p["value"] for p in other["points"]} == {100.0}
    assert (other["marks"], other["incidents"]) == ([], [])


def test_incidents_gaps_and_answers_stand_at_the_instants_of_their_events(record: Record) -> None:
    series = of(record)
    assert series["incidents"] == [
        {
            "from": T0 + 10 * MINUTE, "to": T0 + 16 * MINUTE, "agent": "watcher",
            "opened_by": "run_1", "closed_by": "run_2",
        }
    ]  # fmt: skip
    assert series["gaps"] == [{"from": T0 + 19 * MINUTE, "to": T0 + 28 * MINUTE}]
    assert [
        (mark["what"], (mark["at"] - T0) // MINUTE, mark["by"]) for mark in series["marks"]
    ] == [
        ("held", 14, None),
        ("denied", 14, "ann"),
        ("corrected wrong", 16, "ann"),
    ]


def test_an_incident_that_nobody_closed_lasts_to_the_end() -> None:
    made = Record()
    for minute in range(5):
        event = made.point(minute, minute)
    made.write("effect.done", {}, tool="incident.open", event=event, agent="watcher", run="run_1")
    (one,) = of(made)["incidents"]
    assert (one["from"], one["to"], one["closed_by"]) == (T0 + 4 * MINUTE, T0 + 4 * MINUTE, None)
    assert "incident, open" in "".join(drawn(of(made)).itertext())


def test_what_a_person_had_made_is_no_event_of_the_series(record: Record) -> None:
    """An undo and a correction have its name and the time on the wall: no axis runs up to there."""
    series = of(record)
    for number in (90, 91):
        record.point(number, None, score=None, cause=record.sealed[-1][0])
    assert of(record) == series


def test_an_event_without_a_number_moves_no_end_of_the_axis() -> None:
    made = Record()
    for minute in range(5):
        event = made.point(minute, None if minute in (0, 4) else minute, score=None)
    series = of(made)
    assert (series["from"], series["to"]) == (T0 + MINUTE, T0 + 3 * MINUTE)
    assert (series["recorded"], series["unreadable"]) == (5, 2)
    made.write("run.corrected", {}, outcome="wrong", actor="ann", event=event, agent="watcher")
    assert of(made)["to"] == T0 + 4 * MINUTE  # a mark is shown, so there is a place for it


def withdraw(made: Record, what: str, seq: int, *, erased: bool = False) -> None:
    """Write the undo of an effect and its own effect, the action `back:…`."""
    undo = made.point(50 + seq, None, score=None, cause=seq, action=what)
    if erased:
        made.sealed[-1] = (*made.sealed[-1][:2], None)
    made.write("effect.done", {}, tool="incident.withdraw", event=undo, action=f"back:{what}")


@pytest.mark.parametrize("erased", [False, True])
def test_an_incident_that_was_withdrawn_is_as_if_it_had_not_been(erased: bool) -> None:
    made = Record()
    event = made.point(0, 1)
    about = {"event": event, "agent": "watcher"}
    made.write("effect.done", {}, tool="incident.open", action="act_1", run="run_1", **about)
    made.point(1, 2)
    (one,) = of(made)["incidents"]
    assert (one["opened_by"], one["closed_by"]) == ("run_1", None)
    withdraw(made, "act_1", 3, erased=erased)
    assert of(made)["incidents"] == []
    assert "incident, open" not in "".join(drawn(of(made)).itertext())
    # Nothing is taken back before the undo's own effect is done, or if that one was undone in turn.
    last = made.sealed.pop()
    assert len(of(made)["incidents"]) == 1
    made.sealed.append(last)
    withdraw(made, "back:act_1", last[0])
    assert len(of(made)["incidents"]) == 1


def test_incidents_of_several_agents_are_told_apart() -> None:
    made = Record()
    for minute, word, agent in (
        (1, "open", "a"),
        (2, "open", "b"),
        (3, "close", "b"),
        (9, "close", "a"),
    ):
        event = made.point(minute, 1)
        made.write(
            "effect.done",
            {},
            tool=f"incident.{word}",
            event=event,
            agent=agent,
            run=f"{word}_{agent}",
        )
    rows = [
        [
            (one["from"] - T0) // MINUTE,
            (one["to"] - T0) // MINUTE,
            one["agent"],
            one["opened_by"],
            one["closed_by"],
        ]
        for one in of(made)["incidents"]
    ]
    assert rows == [[1, 9, "a", "open_a", "close_a"], [2, 3, "b", "open_b", "close_b"]]
    (alone,) = of(made, agent="b")["incidents"]
    assert alone["opened_by"] == "open_b"
    titles = [one.text or "" for one in drawn(of(made)).iter(f"{SVG}title")]
    assert sum("incident of a from" in title for title in titles) == 1


def test_many_points_keep_the_extremes_of_every_stretch() -> None:
    made = Record()
    for minute in range(3000):
        odd = {1234: 99.0, 2345: -50.0}.get(minute, float(minute % 7))
        made.point(minute, odd, score=7000 if minute == 777 else minute % 50)
    series = of(made, most=300)
    assert len(series["points"]) <= 300
    assert (series["recorded"], len(series["points"]) > 150) == (3000, True)
    values = [p["value"] for p in series["points"]]
    assert (max(values), min(values)) == (99.0, -50.0)
    assert max(p["score"] for p in series["points"]) == 7.0
    instants = [p["at"] for p in series["points"]]
    assert instants == sorted(instants)
    assert series["gaps"] == []
    assert len(picture(series, utc_time)) < 40_000


def test_values_that_are_no_numbers_are_counted_and_not_drawn() -> None:
    made = Record()
    for minute, value in enumerate([1, True, "x", None, "1e999", 2]):
        made.point(minute, value)
    series = of(made)
    assert [p["value"] for p in series["points"]] == [1.0, 2.0]
    assert (series["recorded"], series["unreadable"]) == (6, 4)
    assert "4 without a number" in "".join(drawn(series).itertext())


def test_what_was_erased_is_not_there() -> None:
    made = Record()
    made.point(0, 1)
    made.point(1, 2)
    made.sealed = [
        (seq, raw, None if n == 0 else data) for n, (seq, raw, data) in enumerate(made.sealed)
    ]
    assert [p["value"] for p in of(made)["points"]] == [2.0]


def test_only_the_time_that_was_asked_for_counts() -> None:
    made = Record()
    for minute in range(4):
        made.point(minute, minute, score=None)
    # Entries are recorded a microsecond apart, from T0 + 1 on.
    assert [p["value"] for p in plot(made, "pump", T0 + 2, T0 + 4)["points"]] == [1.0, 2.0]
    with pytest.raises(BadCommand, match="no event with the subject"):
        plot(made, "pump", T0 + 10, T0 + 20)
    with pytest.raises(BadCommand, match="no picture"):
        of(made, most=3)


def test_of_two_judges_the_one_that_scored_most_is_drawn() -> None:
    made = Record()
    for minute in range(6):
        event = made.point(minute, 1, score=None)
        for agent, score in (("a", 1000), ("b", 2000)):
            if agent == "b" or minute < 3:
                made.write(
                    "run.closed", event=event, agent=agent, label="quiet", score_milli=score,
                    threshold_milli=3000,
                )  # fmt: skip
    assert {p["score"] for p in of(made)["points"]} == {2.0}
    assert {p["score"] for p in of(made, agent="a")["points"]} == {1.0, None}


def test_the_picture_says_everything_in_words_and_shapes(record: Record) -> None:
    root = drawn(of(record))
    text = " ".join(root.itertext())
    said = root.get("aria-label")
    assert said is not None
    for word in ("1 incident", "1 denied", "1 held", "1 gap", "bar", "between 3.5 and 9"):
        assert word in said, word
    for word in ("pump: pressure (bar)", "incident", "denied (1)", "held (1)", "times UTC"):
        assert word in text, word
    shapes = {
        path.get("d")
        for path in root.iter(f"{SVG}path")
        if path.get("class", "").startswith("mark")
    }
    assert len(shapes) == 3
    # The gap breaks the line of the values.
    assert len([one for one in root.iter(f"{SVG}polyline") if one.get("class") == "value"]) == 2


def test_the_picture_reaches_for_nothing_and_runs_nothing(record: Record) -> None:
    hostile = 'x"/><script>alert(1)</script>\x07&'
    made = Record()
    for minute in range(3):
        event = made.point(minute, 1, series=hostile, unit="</svg>", measure="<img src=//e>")
    made.write("run.corrected", {"should": "<b>\x00"}, outcome="wrong", event=event, agent="w")
    svg = picture(of(made, hostile), utc_time)
    root = ET.fromstring(svg)
    assert {one.tag.removeprefix(SVG) for one in root.iter()} <= {
        *("svg", "title", "style", "defs", "pattern", "line", "text", "rect", "g"),
        *("polyline", "circle", "path"),
    }
    assert not re.search(r"\bhref|\bon\w+=|@import|url\((?!#hatch\))", svg.replace("&quot;", '"'))
    links = list(re.findall(r"https?://[^\"' <]+", svg))
    assert set(links) == {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize(
    "values", [[5], [5, 5, 5], [1e308, -1e308], [1e-300, 2e-300], [0], [-3, -2]]
)
def test_any_range_of_values_has_a_picture(values: list[float]) -> None:
    made = Record()
    for minute, value in enumerate(values):
        made.point(minute, value, score=None)
    root = drawn(of(made))
    places = [
        float(number)
        for line in root.iter(f"{SVG}polyline")
        for number in re.split(r"[ ,]", line.get("points", ""))
    ]
    assert all(0 <= place <= 960 for place in places)
    assert root.find(f"{SVG}text") is not None


def test_times_are_the_readers(record: Record) -> None:
    def eastern(at_us: int) -> str:
        return utc_time(at_us + 330 * MINUTE).replace("T", " ").replace("Z", "+05:30")

    text = " ".join(ET.fromstring(picture(of(record), eastern)).itertext())
    assert "times +05:30" in text
    assert "05:30" in text
    assert "2026-03-02" in text
