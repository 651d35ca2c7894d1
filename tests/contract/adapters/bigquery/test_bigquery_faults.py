"""What BigQuery does now and then, and the emulator does not: jobs that fail for the moment,
answers that are lost, queries that take long; and what a source and `--check` do when others work.

The client is the real one, over a service in memory that speaks as much of its HTTP as is needed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud.bigquery import Client
from tests.contract.adapters.bigquery.bigquery_child import SECOND, T0, plan_of
from tests.store_parts import store_of

from vedette.adapters.bigquery import query, reconciliation, shipper
from vedette.adapters.bigquery import source as module
from vedette.adapters.bigquery.clients import is_transient
from vedette.adapters.bigquery.config import BigQueryFile
from vedette.adapters.bigquery.query import Query, QueryPendingError
from vedette.adapters.bigquery.reconciliation import find_differences
from vedette.adapters.bigquery.rows import RowMapper
from vedette.adapters.bigquery.source import BigQuerySource, SourceUnavailable
from vedette.adapters.bigquery.sql import AT_COLUMN, ROW_COLUMN
from vedette.adapters.bigquery.tables import KINDS
from vedette.adapters.bigquery.warehouse import Warehouse
from vedette.adapters.telemetry.prometheus import PrometheusMetrics
from vedette.app.ledger_followers import check_shipped
from vedette.app.sources import build_source
from vedette.config.deployment import AuditPlan, Deployment
from vedette.config.settings import load_settings
from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.base.errors import BadFleet, StoreFailed
from vedette.domain.event import ENVELOPE
from vedette.domain.origin import Ref, Roots, resolve
from vedette.interfaces import daemon
from vedette.interfaces.daemon import Daemon
from vedette.testing.clock import ManualClock
from vedette.testing.intake import ListIntake
from vedette.testing.toy_fleet import wait_until

Answer = tuple[int, dict[str, Any]]


def wrong(reason: str | None, code: int = 400) -> Answer:
    errors = [] if reason is None else [{"reason": reason, "message": "said so"}]
    return code, {"error": {"code": code, "message": "said so", "errors": errors}}


@dataclass
class Service:
    """BigQuery's HTTP in memory. `table` has (id, instant); each asking for a job is in `asked`.

    A job is done when it was looked at `turns` times. `lost` answers of a job's beginning do not
    come, though it begins; the results of a job are `answers`, one after the other, before rows.
    """

    table: list[tuple[str, int]] = field(default_factory=list)
    turns: int = 0
    lost: int = 0
    answers: list[Answer] = field(default_factory=list)
    begun: dict[str, dict[str, Any]] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)

    is_mtls = False  # as of a session of google-auth

    def request(self, method: str, url: str, data: Any = None, **more: Any) -> requests.Response:
        parts = urlsplit(url)
        code, answer = self.answer(method, parts.path, parse_qs(parts.query), data)
        response = requests.Response()
        response.status_code = code
        response._content = json.dumps(answer).encode()
        response.headers["content-type"] = "application/json"
        response.request = requests.Request(method, url).prepare()
        return response

    def answer(self, method: str, path: str, question: Mapping[str, Any], data: Any) -> Answer:
        *_, kind, name = path.rsplit("/", 2)
        if method == "POST" and name == "jobs":
            return self.begin(json.loads(data))
        if name == "cancel":
            self.cancelled.append(kind)
            return 200, {"job": self.job(kind)}
        if kind == "jobs":
            return (200, self.job(name)) if name in self.begun else wrong("notFound", 404)
        return self.results(name)

    def begin(self, wanted: dict[str, Any]) -> Answer:
        name = wanted["jobReference"]["jobId"]
        if name in self.begun:
            return wrong("duplicate", 409)
        self.begun[name] = {**wanted, "looked": 0}
        if self.lost:
            self.lost -= 1
            raise requests.exceptions.ReadTimeout("no answer")
        return 200, self.job(name)

    def job(self, name: str) -> dict[str, Any]:
        wanted = self.begun[name]
        done = wanted["looked"] >= self.turns
        return {
            "jobReference": {**wanted["jobReference"], "location": "EU"},
            "configuration": wanted["configuration"],
            "status": {"state": "DONE" if done else "RUNNING"},
        }

    def results(self, name: str) -> Answer:
        if self.answers:
            return self.answers.pop(0)
        self.begun[name]["looked"] += 1
        document: dict[str, Any] = {"jobReference": self.begun[name]["jobReference"]}
        if self.begun[name]["looked"] < self.turns:
            return 200, {**document, "jobComplete": False}
        fields = [{"name": "id", "type": "STRING"}, {"name": AT_COLUMN, "type": "INTEGER"}]
        fields.append({"name": ROW_COLUMN, "type": "STRING"})
        rows = [
            {"f": [{"v": value} for value in (each, str(at), each)]} for each, at in self.of(name)
        ]
        schema = {"schema": {"fields": fields}, "totalRows": str(len(rows))}
        return 200, {**document, **schema, "jobComplete": True, "rows": rows}

    def of(self, name: str) -> list[tuple[str, int]]:
        """Return the rows that a job's parameters ask for."""
        given = {
            each["name"]: each["parameterValue"]["value"]
            for each in self.begun[name]["configuration"]["query"]["queryParameters"]
        }
        last = int(given.get("last", given.get("after", 0))), given.get("row", "~")
        rows = [(at, each) for each, at in self.table if last < (at, each)]
        end = int(given.get("until", 1 << 62))
        return [(each, at) for at, each in sorted(rows) if at <= end][: module.LIMIT]

    def client(self) -> Client:
        session: Any = self
        credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
        return Client(project="test-project", credentials=credentials, _http=session)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a turn of waiting be one look."""
    monkeypatch.setattr(query, "_NO_RETRY", {"retry": None, "timeout": 0.0})


def asking(service: Service, at_s: float = 100, **more: Any) -> BigQuerySource:
    clock = ManualClock(T0 + int(at_s * SECOND))
    plan = plan_of("d").replace(subject_column=None, **more)
    return BigQuerySource(plan, clock, watch=False, client=service.client)


async def deliver(source: BigQuerySource, intake: ListIntake) -> None:
    """Deliver at once, however long it would wait."""
    source._tries = 0
    await source.deliver(intake)


def ids(intake: ListIntake) -> list[str]:
    return [event.data["id"] for event in intake.events]


# --- what passes ----------------------------------------------------------------------------

PASSING = (
    "jobInternalError", "jobBackendError", "jobRateLimitExceeded", "tableUnavailable",
    "resourcesExceeded", "resourceInUse", "billingTierLimitExceeded", None,
)  # fmt: skip


@pytest.mark.parametrize("reason", PASSING)
async def test_a_fault_that_passes_does_not_end_the_source(reason: str | None) -> None:
    """Though it is answered with 400."""
    service, intake = Service([("a", T0)], answers=[wrong(reason)]), ListIntake()
    source = asking(service)
    with pytest.raises(SourceUnavailable, match="said so"):
        await source.deliver(intake)
    await deliver(source, intake)
    assert ids(intake) == ["a"]


@pytest.mark.parametrize("reason", ["invalidQuery", "invalid", "invalidParameter"])
async def test_what_is_called_wrong_ends_it(reason: str) -> None:
    """The control."""
    with pytest.raises(BadFleet, match="refuses the query"):
        await asking(Service(answers=[wrong(reason)])).deliver(ListIntake())
    error = exceptions.BadRequest("no", errors=[{"reason": reason}])  # type: ignore[no-untyped-call]
    assert not is_transient(error)


# --- whom a row is trusted for ----------------------------------------------------------------


def origins(**more: Any) -> dict[str, str]:
    """Return the origin of each envelope attribute of a row's event."""
    given = {"id_column": "ticket", "subject": "reply_to", **more}
    maker = RowMapper("bigquery:tickets", "p.d.t", "ticket.opened", **given)
    row = {"ticket": "T1", "reply_to": "attacker@evil.example", AT_COLUMN: T0, ROW_COLUMN: "T1"}
    event = maker.to_event(row)
    envelope = {name: getattr(event, name) for name in ("source", "id", "type", "subject", "time")}
    roots = Roots(
        envelope, event.vouched, {}, {}, {}, frozenset(), {}, frozenset(), {}  # type: ignore[union-attr]
    )  # fmt: skip
    return {name: resolve(Ref(f"/event/{name}"), roots)[1] for name in envelope}


def test_a_column_is_no_trusted_origin() -> None:
    """Whoever writes the row must not choose a trusted value by the column it stands in."""
    ours = {"source": "trusted", "type": "trusted", "time": "trusted"}
    assert origins() == {**ours, "id": "untrusted", "subject": "untrusted"}
    # A digest that BigQuery made, and no subject: nobody chose these.
    found = origins(id_column=None, subject=None)
    assert found == {**ours, "id": "trusted", "subject": "trusted"}


def test_a_trusted_writer_is_said_to_be_one(tmp_path: Path) -> None:
    assert set(origins(vouches="envelope").values()) == {"trusted"}
    table = (
        'fleet = "f"\n[[sources]]\nkind = "bigquery"\nname = "jobs"\nproject = "p"\n'
        'dataset = "d"\ntable = "t"\ntype = "x.y"\ntime_column = "at"\nid_column = "id"\n'
    )
    path = tmp_path / "vedette.toml"
    vouched = []
    for more in ("", 'vouches = "envelope"\n'):
        path.write_text(table + more)
        (plan,) = load_settings(path).sources
        assert isinstance(plan, BigQueryFile)
        vouched.append(BigQuerySource(plan, ManualClock())._mapper._vouched)
    assert vouched == [{"source", "type", "subject", "time"}, ENVELOPE]


# --- several workers --------------------------------------------------------------------------


async def test_a_worker_that_leads_no_more_asks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """And when it leads again, it goes on where the other one was."""
    monkeypatch.setattr(daemon, "TICK_S", 0.001)
    service, intake = Service([("a", T0)]), ListIntake()
    store = SimpleNamespace(cluster=SimpleNamespace(is_leader=True))
    clock = ManualClock(T0 + 100 * SECOND)
    plan = plan_of("d").replace(subject_column=None)
    monkeypatch.setattr(module, "query_client", lambda project, location: service.client())
    services = SimpleNamespace(clock=clock, metrics=None, fleet=None)
    settings = SimpleNamespace(max_event_bytes=1_000_000)
    app: Any = SimpleNamespace(services=services, store=store, intake=intake, settings=settings)
    messages: list[str] = []
    running: Any = SimpleNamespace(app=app, report_trouble=messages.append, open_sources=0)
    task = asyncio.create_task(
        Daemon._run_source(running, build_source(plan, app, until_idle=False))
    )

    def later() -> int:
        clock.advance(60 * SECOND)
        return len(service.begun)

    try:
        await wait_until(lambda: ids(intake) == ["a"])
        await wait_until(lambda: later() > 3)
        store.cluster.is_leader = False
        await wait_until(lambda: bool(later() and messages))
        deposed = len(service.begun)
        for _ in range(20):
            assert later() == deposed
            await asyncio.sleep(0.005)
        assert messages == ["bigquery:jobs: another worker leads"]

        # Another worker took in a row, and refused one: what we knew of the position is old.
        service.table += [("b", clock.now_us()), ("", clock.now_us())]
        clock.advance(60 * SECOND)
        other = BigQuerySource(plan, clock, watch=False, client=service.client)
        await other.deliver(intake)
        assert (ids(intake), len(intake.refusals)) == (["a", "b"], 1)
        position = intake.positions["bigquery:jobs"]

        store.cluster.is_leader = True
        await wait_until(lambda: later() > deposed + 3)
        service.table.append(("c", clock.now_us()))
        await wait_until(lambda: bool(later() and len(intake.events) == 3))
        assert ids(intake) == ["a", "b", "c"]
        assert len(intake.refusals) == 1, "it knows what the other one refused"
        assert intake.positions["bigquery:jobs"] != position
        assert not task.done()
    finally:
        task.cancel()


async def test_rows_of_a_lost_lead_are_not_handed_over() -> None:
    """It may be lost while BigQuery is asked: the rows are the other worker's."""
    answers = [True, True, False]
    service, intake = Service([("a", T0)]), ListIntake()
    clock, plan = ManualClock(T0 + 100 * SECOND), plan_of("d")
    source = BigQuerySource(
        plan, clock, watch=False, is_leader=lambda: answers.pop(0), client=service.client
    )
    service.turns = 3
    with pytest.raises(StoreFailed, match="another worker leads"):
        await source.deliver(intake)
    assert not intake.events
    assert service.cancelled == list(service.begun)
    quick = Service([("a", T0)])
    answers = [True, False]
    source = BigQuerySource(
        plan, clock, watch=False, is_leader=lambda: answers.pop(0), client=quick.client
    )
    with pytest.raises(StoreFailed, match="another worker leads"):
        await source.deliver(intake)
    assert not intake.events


# --- queries that take long -------------------------------------------------------------------


async def test_a_long_query_is_waited_for_and_asked_once() -> None:
    service, intake = Service([("a", T0)], turns=5), ListIntake()
    await asking(service).deliver(intake)
    assert ids(intake) == ["a"]
    assert len(service.begun) == 1


async def test_a_try_that_failed_is_taken_up_again() -> None:
    """Whether the answer to its beginning was lost, or one while it was waited for."""
    service, intake = (
        Service([("a", T0)], turns=2, lost=1, answers=[wrong("backendError", 503)]),
        ListIntake(),
    )
    source = asking(service)
    for _ in range(2):
        with pytest.raises(SourceUnavailable):
            await deliver(source, intake)
        assert len(service.begun) == 1
    # It was asked up to then; what came since is not left for later.
    service.table.append(("b", T0 + 101 * SECOND))
    clock: Any = source._clock
    clock.advance(10 * SECOND)
    await deliver(source, intake)
    assert ids(intake) == ["a", "b"]
    assert len(service.begun) == 2
    limits = {job["configuration"]["jobTimeoutMs"] for job in service.begun.values()}
    assert limits == {str(query.JOB_TIMEOUT_MS)}


async def test_a_job_that_is_known_no_more_is_asked_anew() -> None:
    service, intake = Service([("a", T0)], turns=3, answers=[wrong(None, 503)]), ListIntake()
    source = asking(service)
    with pytest.raises(SourceUnavailable):
        await source.deliver(intake)
    service.begun.clear()
    with pytest.raises(SourceUnavailable, match="NotFound"):
        await deliver(source, intake)
    await deliver(source, intake)
    assert ids(intake) == ["a"]


def test_a_query_that_is_given_up_is_cancelled() -> None:
    service = Service(turns=99)
    pending_query = Query("SELECT 1", [])
    with pytest.raises(QueryPendingError):
        pending_query.rows(service.client())
    assert not service.cancelled
    pending_query.request_cancel()
    assert service.cancelled == [pending_query.id]
    # One that was at its beginning then is cancelled when that is over.
    slow_query = Query("SELECT 1", [])
    slow_query.request_cancel()
    with pytest.raises(QueryPendingError):
        slow_query.rows(service.client())
    assert service.cancelled == [pending_query.id, slow_query.id]


async def test_a_source_that_is_stopped_leaves_no_job() -> None:
    service = Service(turns=1 << 60)
    task = asyncio.create_task(asking(service).deliver(ListIntake()))
    await wait_until(lambda: bool(service.begun))
    task.cancel()
    await wait_until(lambda: bool(service.cancelled))
    assert set(service.cancelled) == set(service.begun)


def test_the_warehouse_waits_as_long_as_a_query_runs() -> None:
    service = Service([("a", T0)], turns=7)
    warehouse = Warehouse("p", "d", queries=service.client)
    assert [row["id"] for row in warehouse.run_query("SELECT 1", after=0)] == ["a"]
    assert len(service.begun) == 1


async def test_a_fleet_that_stops_does_not_wait_for_the_shipper_s_query() -> None:
    service = Service(turns=1 << 60)
    warehouse = Warehouse("p", "d", queries=service.client)
    client: Any = SimpleNamespace(warehouse=warehouse)

    async def shipping() -> int:
        return len(list(await asyncio.to_thread(warehouse.run_query, "SELECT 1")))

    client.ship = shipping
    work = shipper.ship_ledger(
        client, ManualClock(), 1, PrometheusMetrics(), lambda: True, lambda: 0, lambda message: None
    )
    task = asyncio.create_task(work)
    await wait_until(lambda: bool(service.begun))
    task.cancel()
    try:
        await wait_until(lambda: bool(service.cancelled))
    finally:
        service.turns = 0  # so that the thread ends, whatever came of it


# --- one asking of many rows ------------------------------------------------------------------


async def test_what_is_remembered_does_not_grow_with_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only what the next asking looks at again is, however many rows one asking goes over."""
    monkeypatch.setattr(module, "LIMIT", 10)
    monkeypatch.setattr(module, "PAGE", 5)
    service = Service([(f"r{n:03}", T0 + n * SECOND) for n in range(95)])
    intake, most = ListIntake(), [0]
    source = asking(service, 1000, overlap="10s")
    hand_over_page = source._hand_over

    async def hand_over(intake: Any, page: Any) -> None:
        await hand_over_page(intake, page)
        most[0] = max(most[0], len(source._seen))

    monkeypatch.setattr(source, "_hand_over", hand_over)
    await source.deliver(intake)
    assert len(intake.events) == 95
    assert most[0] <= 10 + 11  # a query's rows and those of the overlap
    assert sorted(name[-4:] for name in source._seen) == [f"r{n:03}" for n in range(84, 95)]
    await source.deliver(intake)
    assert len(intake.batches) == 1 + 19, "the rows of the overlap are known"


# --- the comparison ---------------------------------------------------------------------------


class Ledger:
    """A ledger of decisions, as `--check` reads it, with the marks of a shipper."""

    def __init__(self, count: int, marks: Mapping[str, int]) -> None:
        kind = "action.decided"
        self.entries = [
            (n, canonical_json({"v": 1, "seq": n, "at": n, "kind": kind}))
            for n in range(1, count + 1)
        ]
        self.marks = marks

    def entries_after(self, after: int, limit: int) -> list[tuple[int, bytes]]:
        return self.entries[after : after + limit]

    def meta(self, name: str) -> str | None:
        table = name.removeprefix("audit.")
        if table not in self.marks:
            return None
        return json.dumps({"to": f"p.d.{table}", "seq": self.marks[table]})

    def last_seq(self) -> int:
        return len(self.entries)


class LaggingWarehouse(Warehouse):
    """A dataset whose tables have the entries up to a seq each; notes what it was asked."""

    def __init__(self, ledger: Ledger, there: Mapping[str, int]) -> None:
        super().__init__("p", "d")
        self.asked: list[tuple[int, int]] = []
        self._ledger, self._has = ledger, there

    def run_query(self, text: str, **values: str | int) -> Iterator[Mapping[str, Any]]:
        after, last = int(values["after"]), int(values["last"])
        self.asked.append((after, last))
        has = self._has["decisions" if "JOIN" in text else "ledger"]
        for seq, raw in self._ledger.entries[after : min(last, has)]:
            yield {"seq": seq, "digest": sha256_hex(raw), "content": sha256_hex(raw)}


def test_a_table_that_lags_is_not_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are shipped one after the other, so one may be behind while a fleet runs."""
    marks = {"ledger": 9, "decisions": 4}
    ledger = Ledger(12, marks)

    class Reading:
        def __enter__(self) -> Any:
            return store_of(ledger)

        def __exit__(self, *details: object) -> None: ...

    monkeypatch.setattr("vedette.app.stores.store_reader", lambda settings: Reading())
    settings: Any = SimpleNamespace(fleet="f", deployment=Deployment(audit=AuditPlan("p", "d", 1)))
    monkeypatch.setattr(
        "vedette.app.ledger_followers.open_warehouse",
        lambda settings: LaggingWarehouse(ledger, marks),
    )
    details = check_shipped(settings)
    assert (details["ok"], details["last"], details["head"]) == (True, 4, 12)
    # The control: a row that its mark says is there, and is not.
    lags = {"ledger": 9, "decisions": 3}
    monkeypatch.setattr(
        "vedette.app.ledger_followers.open_warehouse",
        lambda settings: LaggingWarehouse(ledger, lags),
    )
    details = check_shipped(settings)
    assert details["tables"]["decisions"]["wrong"] == ["entry 4 is not there"]
    # A table that was never shipped to has nothing that could be wrong.
    ledger.marks = {"ledger": 9}
    assert check_shipped(settings)["last"] == 0


def test_the_comparison_asks_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciliation, "SLICE", 5)
    ledger = Ledger(12, {})
    repository = LaggingWarehouse(ledger, dict.fromkeys(KINDS, 12))
    found = find_differences(repository, "f", store_of(ledger).ledger, 12)
    assert found == {table: (12, []) for table in KINDS}
    assert repository.asked == [(0, 5), (5, 10), (10, 12)] * 2
    warehouse = LaggingWarehouse(ledger, {"ledger": 11, "decisions": 12})
    assert find_differences(warehouse, "f", store_of(ledger).ledger, 12)["ledger"] == (
        11,
        ["entry 12 is not there"],
    )
