"""What each source vouches for: never a value that a stranger chose.

Each case hands a source's real decoder what a stranger wrote, and looks at the origin that a value
drawn from there has. Beside it stands what the source itself, or its operator's list, vouches for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from vedette.adapters.bigquery.rows import RowMapper as TableMaker
from vedette.adapters.bigquery.sql import AT_COLUMN, ROW_COLUMN
from vedette.adapters.mail.event import mail_event
from vedette.adapters.prometheus.config import VOUCHED_LABELS
from vedette.adapters.prometheus.series import index_series, series_points
from vedette.adapters.pubsub.decoder import Decoder
from vedette.adapters.sql.config import SqlFile
from vedette.adapters.sql.rows import RowMapper
from vedette.config.settings import read_settings
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.origin import Ref, Roots, resolve
from vedette.domain.ports.sources import Refused
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.testing.toy_fleet import World, job, propose, toy_fleet

EVIL = "pay@evil.example"
HEAD = f"From: {EVIL}\r\nSubject: {EVIL}\r\nDate: Mon, 1 Jun 2026 10:00:00 +0000\r\n"
MAIL = f"{HEAD}\r\n{EVIL}\r\n".encode()


def origin(event: Event | Refused, pointer: str) -> str:
    """Return the origin of a value that an agent draws from an event."""
    assert isinstance(event, Event), event
    roots = Roots(
        event=event.root(), vouched=event.vouched, charter={}, registry={}, memory={},
        trusted_memories=frozenset(), outcome={}, trusted_outcomes=frozenset(), row={},
    )  # fmt: skip
    return resolve(Ref(pointer), roots)[1]


def mail() -> Event:
    return mail_event("maildir:desk", "m1", MAIL, subject="m1.harbour", received_us=0)


def row(**more: Any) -> Event | Refused:
    plan = SqlFile(
        name="board", table="comment", type="comment.posted", id_column="id", order_column="seq",
        path="x", subject_column="author", time_column="posted",
        columns=["id", "author", "text"], **more,
    )  # fmt: skip
    fields = {"id": "c1", "author": EVIL, "text": EVIL, "posted": "2026-06-01T10:00:00Z"}
    return RowMapper(plan, tuple(plan.columns), max_bytes=10_000).to_event("c1", fields)


def table(**more: Any) -> Event | Refused:
    maker = TableMaker("bigquery:orders", "order", "order.placed", "id", "buyer", **more)
    return maker.to_event({ROW_COLUMN: "o1", AT_COLUMN: 0, "id": "o1", "buyer": EVIL, "text": EVIL})


def point(**labels: str) -> Event:
    series = {"metric": {"__name__": "hits", **labels}, "values": [[60, "1"]]}
    (event,), _ = series_points(
        "prometheus:site", index_series("hits", [series], "x"), VOUCHED_LABELS
    )
    return event


def message(vouches: str) -> Event | Refused:
    fields = {
        "specversion": "1.0", "id": "e1", "source": "shop", "type": "order", "subject": EVIL,
        "data": {"to": EVIL},
    }  # fmt: skip
    attributes = {"content-type": "application/cloudevents+json"}
    return Decoder("in", vouches=vouches).decode(
        "1", json.dumps(fields).encode(), attributes, "", 0
    )


# Who wrote it, and where it is drawn from: each is a value that a stranger chose.
CHOSEN: dict[str, tuple[Callable[[], Event | Refused], list[str]]] = {
    "a mail": (mail, ["/event/time", "/event/data/from", "/event/data/subject"]),
    "a row": (row, ["/event/subject", "/event/id", "/event/time", "/event/data/author"]),
    "a row, its id listed": (
        lambda: row(vouched=("id",)), ["/event/subject", "/event/data/author", "/event/data/text"],
    ),
    "a row, one column listed": (
        lambda: row(vouched=("author",)), ["/event/id", "/event/data/text"],
    ),
    "a row of BigQuery": (table, ["/event/subject", "/event/id", "/event/data/buyer"]),
    "a row of BigQuery, its id listed": (
        lambda: table(vouched=("id",)), ["/event/subject", "/event/data/text"],
    ),
    "a series by a path": (lambda: point(path=EVIL), ["/event/subject", "/event/id"]),
    "a series by a path too": (
        lambda: point(path=EVIL, job="web"), ["/event/subject", "/event/id"],
    ),
    "a message of strangers' subjects": (
        lambda: message("event"), ["/event/subject", "/event/data/to"],
    ),
    "a message of nobody": (
        lambda: message("none"), ["/event/subject", "/event/source", "/event/id"],
    ),
}  # fmt: skip

# What the source made itself, or its operator listed.
VOUCHED: dict[str, tuple[Callable[[], Event | Refused], list[str]]] = {
    "a mail": (mail, ["/event/subject", "/event/id", "/event/source"]),
    "a row": (row, ["/event/source", "/event/type"]),
    "a row, its id listed": (
        lambda: row(vouched=("id",)), ["/event/id", "/event/data/id", "/event/source"],
    ),
    "a row of a trusted writer": (lambda: row(vouches="envelope"), ["/event/id", "/event/subject"]),
    "a row of BigQuery, its id listed": (lambda: table(vouched=("id",)), ["/event/data/id"]),
    "a series by its job": (lambda: point(job="web"), ["/event/subject", "/event/id"]),
    "a message": (lambda: message("envelope"), ["/event/subject", "/event/id"]),
    "a message of strangers' subjects": (lambda: message("event"), ["/event/id", "/event/source"]),
}  # fmt: skip


@pytest.mark.parametrize("what", list(CHOSEN))
def test_what_a_stranger_chose_is_not_trusted(what: str) -> None:
    make, pointers = CHOSEN[what]
    assert {origin(make(), pointer) for pointer in pointers} == {"untrusted"}


@pytest.mark.parametrize("what", list(VOUCHED))
def test_what_the_source_or_its_operator_vouches_for_is_trusted(what: str) -> None:
    make, pointers = VOUCHED[what]
    assert {origin(make(), pointer) for pointer in pointers} == {"trusted"}


ROWS = {
    "sql": 'path = "a.db"\ntable = "t"\ntype = "t"\nid_column = "id"\norder_column = "seq"\n',
    "bigquery": 'project = "p"\ndataset = "d"\ntable = "t"\ntype = "t"\ntime_column = "at"\n',
}


@pytest.mark.parametrize("kind", [*ROWS])
def test_a_column_in_the_place_of_an_undo_cannot_be_vouched_for(tmp_path: Path, kind: str) -> None:
    table = f'fleet = "x"\n[[sources]]\nkind = "{kind}"\nname = "n"\n{ROWS[kind]}'
    for vouched, paths in (["id"], []), (["id", "action"], ["sources[0].vouched[1]"]):
        (tmp_path / "vedette.toml").write_text(f"{table}vouched = {json.dumps(vouched)}\n")
        _, problems = read_settings(tmp_path / "vedette.toml")
        assert [problem.field for problem in problems] == paths


def test_of_columns_only_those_that_are_handed_over_can_be(tmp_path: Path) -> None:
    table = f'fleet = "x"\n[[sources]]\nkind = "sql"\nname = "n"\n{ROWS["sql"]}'
    more = 'columns = ["id", "text"]\nvouched = ["seq", "text", "hidden"]\n'
    (tmp_path / "vedette.toml").write_text(table + more)
    _, problems = read_settings(tmp_path / "vedette.toml")
    assert [problem.field for problem in problems] == [
        "sources[0].vouched[0]", "sources[0].vouched[2]",
    ]  # fmt: skip


# --- on its way through the fleet -----------------------------------------------------------------


async def sent(tmp_path: Path, event: Event, pointer: str) -> str:
    """Let an agent of the toy fleet send to a place of an event; return what was decided."""
    world = World()
    async with toy_fleet(tmp_path, world) as fleet:
        proposal = propose("wire.send", to={"ref": pointer}, text="x")
        given = replace(event, data={**event.data, "do": [proposal]})
        await fleet.app.intake.accept([given])
        await fleet.wait_until_idle()
        (action,) = fleet.actions(given)
        assert bool(world.calls) == (action.decided == "permit")
        return str(action.decided)


@pytest.mark.parametrize(
    ("vouched", "pointer", "decided"),
    [
        (ENVELOPE, "/event/subject", "permit"),
        (ENVELOPE - {"subject"}, "/event/subject", "deny"),
        (ENVELOPE | {"data/listed"}, "/event/data/listed", "permit"),
        (ENVELOPE | {"data/listed"}, "/event/data/other", "deny"),
        # Of the payload as a whole, and of the place that names an undo, the engine alone speaks.
        (ENVELOPE | {"data"}, "/event/data/other", "deny"),
        (ENVELOPE | {"data/action"}, "/event/data/action", "deny"),
    ],
)
async def test_a_sink_takes_what_is_vouched_for(
    tmp_path: Path, vouched: frozenset[str], pointer: str, decided: str
) -> None:
    data = {"listed": EVIL, "other": EVIL, "action": EVIL}
    event = Event("test", "1", "worker.job", EVIL, None, data, vouched=vouched)
    assert await sent(tmp_path, event, pointer) == decided


@pytest.mark.parametrize("pointer", ["/event/subject", "/event/time", "/event/data/listed"])
async def test_what_an_agent_wrote_is_no_better_for_coming_back(
    tmp_path: Path, pointer: str
) -> None:
    """Another agent's incident, published and delivered by an authenticated sender."""
    event = Event(
        "test", "1", "worker.job", EVIL, "2026-06-01T10:00:00Z", {"listed": EVIL}, hops=1,
        lineage=("helper",), vouched=ENVELOPE | {"data/listed"},
    )  # fmt: skip
    assert await sent(tmp_path, event, pointer) == "deny"


@pytest.mark.parametrize("vouched", [True, False])
async def test_a_correction_has_its_subject_from_whoever_chose_it(
    tmp_path: Path, vouched: bool
) -> None:
    async with toy_fleet(tmp_path, World()) as fleet:
        event = replace(job("1", key=EVIL), vouched=ENVELOPE if vouched else frozenset({"source"}))
        await fleet.app.intake.accept([event])
        await fleet.wait_until_idle()
        (run,) = fleet.runs(event)
        args = {"run": run.id, "should": "sum 2 of 2", "new_label": True}
        answer = await dispatch(fleet.app.commands, "correct", fleet.order(), args)
        correction = fleet.app.store.runs.event(answer["event"])
        assert correction is not None
        assert correction.subject == EVIL
        assert ("subject" in correction.vouched) == vouched
