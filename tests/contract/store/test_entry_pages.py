"""Pages of entries and changes: what they give, and that no index is missing for it."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import orjson
import pytest
from tests.bench.pages import filled_postgres, filled_sqlite, questions

from vedette.domain.base.errors import BadCommand
from vedette.ledger.history.changes import FILTERS, MAX_GAP, entries_page, list_ledger_changes
from vedette.store.reader import StoreReader

NUMBER = 3000


@pytest.fixture(scope="module", params=["postgres", "sqlite"])
def record(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoreReader]:
    """Return a store of a few thousand entries of seven agents."""
    if request.param == "sqlite":
        opened = filled_sqlite(tmp_path_factory.mktemp("pages"), NUMBER, 7)
    else:
        opened = filled_postgres(NUMBER, 7)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def everything(record: StoreReader) -> list[dict[str, Any]]:
    return [orjson.loads(raw) for _, raw in record.ledger.entries_after(0, 10 * NUMBER)]


def fitting(everything: list[dict[str, Any]], filters: dict[str, Any]) -> list[int]:
    """Return the seqs of fitting entries, newest first, the slow way."""
    seqs = [
        entry["seq"]
        for entry in everything
        if all(entry.get(name) == value for name, value in filters.items())
    ]
    return seqs[::-1]


def test_every_filter_there_is_has_a_question(record: StoreReader) -> None:
    asked = {frozenset(filters) for filters in questions(record, NUMBER).values()}
    assert asked == {frozenset(names) for names in FILTERS}


def test_pages_meet_and_give_all_there_is(
    record: StoreReader, everything: list[dict[str, Any]]
) -> None:
    for name, filters in questions(record, NUMBER).items():
        wanted = fitting(everything, filters)
        assert wanted, name
        size = max(2, len(wanted) // 4) if len(wanted) < 400 else 150
        seen: list[int] = []
        pages = [entries_page(record.ledger, 5, filters, limit=min(size, 200))]
        while (older := pages[-1]["older"]) is not None:
            pages.append(
                entries_page(record.ledger, 5, filters, before=older, limit=min(size, 200))
            )
        for page in pages:
            seen += [item["seq"] for item in page["items"]]
        assert seen == wanted, name
        assert pages[0]["newer"] is None
        for newer, older_page in pairwise(pages):
            after = older_page["newer"]
            again = entries_page(record.ledger, 5, filters, after=after, limit=min(size, 200))
            assert again["items"] == newer["items"], name


def test_a_page_anywhere_is_what_is_next_to_it(
    record: StoreReader, everything: list[dict[str, Any]]
) -> None:
    dice = random.Random(11)
    for name, filters in questions(record, NUMBER).items():
        wanted = fitting(everything, filters)
        for _ in range(8):
            at = dice.randrange(NUMBER + 2)
            before = entries_page(record.ledger, 5, filters, before=at, limit=20)["items"]
            assert [item["seq"] for item in before] == [s for s in wanted if s < at][:20], name
            after = entries_page(record.ledger, 5, filters, after=at, limit=20)["items"]
            newer = [s for s in wanted if s > at]
            assert [item["seq"] for item in after] == newer[
                len(newer) - 20 if len(newer) > 20 else 0 :
            ]


def test_one_lane_with_all_of_a_page_is_read_to_its_end(record: StoreReader) -> None:
    """A page that lies in one lane alone is whole, though each lane is read a little at first."""
    only = {"agent": "agent3"}
    page = entries_page(record.ledger, 5, only, limit=200)
    assert len(page["items"]) == 200
    kinds = {item["kind"] for item in page["items"]}
    assert "run.closed" in kinds


def test_a_page_at_an_instant(record: StoreReader, everything: list[dict[str, Any]]) -> None:
    middle = everything[NUMBER // 2]
    for at_us, first in (
        (middle["at"], middle["seq"]),
        (middle["at"] - 1, middle["seq"] - 1),
        (everything[-1]["at"] + 10**9, everything[-1]["seq"]),
    ):
        page = entries_page(record.ledger, 5, {}, at_us=at_us, limit=3)
        assert [item["seq"] for item in page["items"]] == [first, first - 1, first - 2]
    assert entries_page(record.ledger, 5, {}, at_us=everything[0]["at"] - 1)["items"] == []


@pytest.mark.parametrize(
    "filters",
    [
        {"tool": "x"}, {"agent": "a", "outcome": "deny"}, {"rule": "r"}, {"kind": "no.kind"},
        {"rule": "r", "outcome": "perhaps"}, {"policy_rev": "1", "outcome": "deny"},
        {"agent": 7}, {"text": "what a mail said"}, {"actor": "a\0b"},
    ],
)  # fmt: skip
def test_what_no_index_answers_is_refused(record: StoreReader, filters: dict[str, Any]) -> None:
    with pytest.raises(BadCommand):
        entries_page(record.ledger, 5, filters)


def test_a_page_has_bounds(record: StoreReader) -> None:
    for wrong in ({"limit": 0}, {"limit": 201}, {"before": -1}, {"before": 1, "after": 1}):
        with pytest.raises(BadCommand):
            entries_page(record.ledger, 5, {}, **wrong)


def test_no_filter_scans_the_ledger(tmp_path: Path) -> None:
    """The plans say SEARCH for every table of the record, and nothing is sorted but pages."""
    store = filled_sqlite(tmp_path, 300, 7)
    store.view.refresh()
    plans: list[tuple[str, str]] = []

    def explain(database: Any, name: str) -> Callable[..., list[tuple[Any, ...]]]:
        kept = getattr(database, name)

        def rows(sql: str, values: Any = ()) -> list[tuple[Any, ...]]:
            told = kept("EXPLAIN QUERY PLAN " + sql, values)
            plans.extend((sql, str(row[3])) for row in told)
            return list(kept(sql, values))

        setattr(database, name, rows)
        return rows

    rows = explain(store.database, "rows")
    explain(store.view, "rows")
    explain(store.view, "stored_rows")
    for filters in questions(store, 300).values():
        entries_page(store.ledger, 5, filters, before=200)
        entries_page(store.ledger, 5, filters, after=20)
    list_ledger_changes(store.ledger, 200)
    store.ledger.latest_entries(["action.decided", "run.dead"], 20, 10)
    store.ledger.seq_at(10**15)
    store.tables.counts()
    store.tables.event_counts()
    store.tables.wait_counts()
    store.tables.examples()
    bad = [
        (sql, plan)
        for sql, plan in plans
        if plan.startswith("SCAN")
        # What a lane's index has given by then, a page at most.
        and plan not in ("SCAN l", "SCAN CONSTANT ROW")
        # Only ready runs are in this index.
        and plan != "SCAN run USING INDEX run_ready"
    ]
    assert len(plans) > 100
    assert bad == []
    # The negative control: what is not among the filters would have been scanned for.
    rows("SELECT last FROM segment WHERE first>5 ORDER BY last DESC LIMIT 1")
    assert plans[-1][1].startswith("SCAN segment")
    store.close()


# --- changes --------------------------------------------------------------------------------


def test_changes_name_what_was_touched(
    record: StoreReader, everything: list[dict[str, Any]]
) -> None:
    head = record.ledger.last_seq()
    told = list_ledger_changes(record.ledger, head - 300)
    assert (told["gap"], told["head"]) == (False, head)
    assert ["head", "", head] in told["items"]
    newest = {
        agent: max(e["seq"] for e in everything if e.get("agent") == agent)
        for agent in {e["agent"] for e in everything[-300:] if "agent" in e}
    }
    agents = {id: seq for topic, id, seq in told["items"] if topic == "agent"}
    assert agents == newest
    seqs = [seq for _, _, seq in told["items"]]
    assert seqs == sorted(seqs)
    assert len({(topic, id) for topic, id, _ in told["items"]}) == len(told["items"])


def test_changes_are_nothing_at_the_head_and_of_topics_asked_for(record: StoreReader) -> None:
    head = record.ledger.last_seq()
    assert list_ledger_changes(record.ledger, head) == {"items": [], "head": head, "gap": False}
    told = list_ledger_changes(record.ledger, head - 1500, frozenset({"inbox", "memory"}))
    assert {topic for topic, _, _ in told["items"]} == {"inbox", "memory"}
    with pytest.raises(BadCommand):
        list_ledger_changes(record.ledger, head, frozenset({"weather"}))


def test_who_is_too_far_behind_is_told_to_read_again(record: StoreReader) -> None:
    head = record.ledger.last_seq()
    for after in (head + 1, head - MAX_GAP - 1):
        assert list_ledger_changes(record.ledger, after)["gap"]


async def test_changes_over_the_local_api(record: StoreReader) -> None:
    from vedette.interfaces.http.local_api import serve_local

    services = SimpleNamespace(store=record, fleet=SimpleNamespace(name="harbour"))
    app: Any = SimpleNamespace(commands=SimpleNamespace(services=services), containment=None)
    head = record.ledger.last_seq()
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="v") as folder:
        async with serve_local(app, Path(folder)) as path:
            transport = httpx.AsyncHTTPTransport(uds=str(path))
            async with httpx.AsyncClient(transport=transport, base_url="http://local") as client:
                asked: dict[str, str | int] = {"after": head - 50, "topics": "agent,head"}
                told = await client.get("/v1/changes", params=asked)
                assert told.json()["result"] == list_ledger_changes(
                    record.ledger, head - 50, frozenset({"agent", "head"})
                )
                for wrong in ("", "x", "-1", "1.5"):
                    refused = await client.get("/v1/changes", params={"after": wrong})
                    assert refused.status_code == 400
