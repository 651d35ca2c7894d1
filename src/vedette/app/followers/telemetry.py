"""Followers of the ledger that tell others of it: traces to a collector, log lines to stderr.

Both read committed entries, on a connection and a thread of their own: they tell of nothing that
did not happen, and the line waits for none of it. Traces remember how far they got; log lines
begin where this process began. Of several workers on one store the one that leads tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO

import orjson
from msgspec import Struct

from vedette.domain.base import machine
from vedette.domain.base.errors import BadStore, StoreFailed
from vedette.ledger.history.trace import RUN_ENDS, is_sampled, spans

if TYPE_CHECKING:
    from vedette.app.composition_root import App
    from vedette.ledger.history.trace import Span
    from vedette.store.reader import StoreReader

TRACES_KEY = "traces_at"
_EVERY_US = 500_000
_RETRY_US = 5_000_000
# How often it is made durable how far traces got: what was sent since is sent again after a crash.
_MARK_US = 5_000_000
_PAGE = 200
_MOST_ENTRIES = 1000
# Spans of one request, at most: collectors bound requests. Of one that is not taken half is tried.
MOST_SPANS = 512
# After so many refusals of one run alone the next one is tried: it may be this one that is too big.
_REFUSALS = 3

# What a log line leaves out of an entry: it is in its own place, or of use to proofs alone.
_OMITTED_FIELDS = frozenset({"v", "body", "n", "seq", "at", "kind"})
_SEVERITIES = ("INFO", "WARNING", "ERROR")
_ERRORS = frozenset({"run.dead", "effect.unknown", "policy.refused"})
_WARNINGS = frozenset(
    {"effect.failed", "action.refused", "budget.alerted", "stop.set", "event.refused"}
    | {"identity.refused"}
)


def telemetry_followers(app: App, err: TextIO) -> list[tuple[str, Coroutine[Any, Any, None]]]:
    """Return the followers that [telemetry] asks for, as (name, coroutine). Raises BadFleet."""
    plan = app.settings.deployment.telemetry
    found: list[tuple[str, Coroutine[Any, Any, None]]] = []
    if plan.traces == "otlp":
        from vedette.adapters.telemetry.otel import OtlpExporter

        collector = OtlpExporter(plan.endpoint, app.services.fleet.name)
        found.append(("traces", _trace(app, collector.send, plan.sample)))
    if plan.logs != "none":
        found.append(("logs", _log(app, plan.logs == "json", plan.level, err)))
    return found


# --- traces ----------------------------------------------------------------------------------


class Batch(Struct, frozen=True):
    """A follower's batch: the spans of some ended runs, and the entry that it has looked up to."""

    spans: Sequence[Span]
    to: int
    runs: int


class TraceSender:
    """The follower that sends traces from an entry on, in batches that the collector takes.

    `next_batch` returns the next batch after an entry, with at most so many spans, but one run
    whole.
    """

    def __init__(
        self,
        position: int,
        next_batch: Callable[[int, int], Batch],
        send: Callable[[Sequence[Span]], bool],
    ) -> None:
        self.at = position
        self.counts: dict[str, int] = {"spans": 0, "trace_failures": 0, "spans_dropped": 0}
        self._look = next_batch
        self._send = send
        self._most = MOST_SPANS
        self._refused = 0

    def step(self) -> Literal["idle", "more", "refused"]:
        """Look once and send what there is. Blocks."""
        batch = self._look(self.at, self._most)
        if batch.to == self.at:
            return "idle"
        if not batch.spans or self._send(batch.spans):
            self._advance(batch)
            return "more"
        self.counts["trace_failures"] += 1
        if batch.runs > 1:
            self._most = max(1, self._most // 2)
            return "refused"
        self._refused += 1
        if self._refused >= _REFUSALS and self._skip(batch):
            return "more"
        return "refused"

    def _advance(self, batch: Batch) -> None:
        self.counts["spans"] += len(batch.spans)
        self.at = batch.to
        self._most = min(MOST_SPANS, self._most * 2)
        self._refused = 0

    def _skip(self, batch: Batch) -> bool:
        """Give one run up if the collector takes the next: then it is not away."""
        after = self._look(batch.to, 1)
        if not (after.spans and self._send(after.spans)):
            return False
        self.counts["spans_dropped"] += len(batch.spans)
        self._advance(after)
        return True


async def _trace(app: App, send: Callable[[Sequence[Span]], bool], share: float) -> None:
    """Send the traces of runs that end, for as long as the run lasts."""
    clock, known = app.services.clock, app.store.meta(TRACES_KEY)
    at = start_position(app) if known is None else int(known)
    with RecordReader(app) as reader:
        sending = TraceSender(
            at, lambda after, most: read_traces(reader.store, after, share, most), send
        )
        reported = dict(sending.counts)
        marked, mark_us = at, clock.monotonic_us() + _MARK_US
        while True:
            result = "idle"
            try:
                if app.store.cluster.is_leader:
                    result = await asyncio.to_thread(reader.run_exclusive, sending.step)
                    for name, number in sending.counts.items():
                        app.metrics.count(name, number - reported[name])
                    reported = dict(sending.counts)
                    is_due = clock.monotonic_us() >= mark_us
                    if sending.at != marked and (is_due or result != "more"):
                        await app.store.commands.set_meta(TRACES_KEY, str(sending.at))
                        marked, mark_us = sending.at, clock.monotonic_us() + _MARK_US
            except (StoreFailed, BadStore):
                result = "refused"
            wait = {"idle": _EVERY_US, "more": 0, "refused": _RETRY_US}[result]
            await clock.sleep_until(clock.now_us() + wait)


class RecordReader:
    """A follower's own connection to the record, for one thread at a time; closed once free."""

    def __init__(self, app: App) -> None:
        from vedette.app.stores import open_reader

        self.store: StoreReader = open_reader(app.settings)
        self._lock = machine.Lock()
        self._closed = False

    def __enter__(self) -> RecordReader:
        return self

    def __exit__(self, *args: object) -> None:
        self._closed = True
        # Whoever reads at this moment closes it.
        if self._lock.acquire(blocking=False):
            self.store.close()

    def run_exclusive(self, work: Callable[[], Any]) -> Any:
        """Read. What is asked for after the end, or goes wrong by it, is nobody's any more."""
        with self._lock:
            try:
                return work()
            finally:
                if self._closed:
                    self.store.close()


def start_position(app: App) -> int:
    """Return the entry that followers begin at: where this process did, though they came later."""
    latest = app.store.ledger.latest_entries(("store.opened",), 0, 1)
    return latest[-1][0] if latest else app.store.ledger.last_seq()


def read_traces(store: StoreReader, after: int, share: float, most: int = MOST_SPANS) -> Batch:
    """Return the spans that a follower sends of runs that end in the next page, at most `most`.

    One run is never cut, so its spans alone may be more.
    """
    found: list[Span] = []
    runs, to = 0, after
    for seq, raw in store.ledger.entries_after(after, _PAGE):
        entry = orjson.loads(raw)
        if entry["kind"] in RUN_ENDS and "run" in entry and is_sampled(entry["run"], share):
            of_run = _run_spans(store, entry)
            if found and len(found) + len(of_run) > most:
                break
            found += of_run
            runs += 1
        to = seq
    return Batch(found, to, runs)


def _run_spans(store: StoreReader, end: Mapping[str, Any]) -> list[Span]:
    accepted = store.ledger.entry(end.get("about", 0))
    if accepted is None:
        return []  # archived meanwhile
    body = orjson.loads(accepted[2]) if accepted[2] else {}
    sender = (body.get("extensions") or {}).get("traceparent")
    entries = [
        orjson.loads(raw) for _, raw, _ in store.ledger.entries("run", end["run"], _MOST_ENTRIES)
    ]
    until = [entry for entry in entries if entry["seq"] <= end["seq"]]
    return spans(orjson.loads(accepted[1]), until, sender if isinstance(sender, str) else None)


# --- log lines -------------------------------------------------------------------------------


async def _log(app: App, as_json: bool, level: str, err: TextIO) -> None:
    """Write a line for each entry from now on. Entries hold no content and no secret."""
    least = _SEVERITIES.index(level.upper())
    clock, at = app.services.clock, start_position(app)
    with RecordReader(app) as reader:

        def write() -> tuple[int, bool]:
            page = reader.store.ledger.entries_after(at, _PAGE)
            entries = (orjson.loads(raw) for _, raw in page)
            err.writelines(
                format_entry(entry, as_json)
                for entry in entries
                if _SEVERITIES.index(severity_of(entry["kind"])) >= least
            )
            err.flush()
            return (page[-1][0] if page else at), len(page) == _PAGE

        while True:
            more = False
            try:
                if app.store.cluster.is_leader:
                    at, more = await asyncio.to_thread(reader.run_exclusive, write)
                else:
                    at = app.store.ledger.last_seq()
            except (StoreFailed, BadStore, OSError):
                app.metrics.count("log_failures")
            await clock.sleep_until(clock.now_us() + (0 if more else _EVERY_US))


def severity_of(kind: str) -> str:
    """Return how severe an entry of a kind is in the words of log lines: one of _SEVERITIES."""
    return "ERROR" if kind in _ERRORS else "WARNING" if kind in _WARNINGS else "INFO"


def format_entry(entry: Mapping[str, Any], as_json: bool) -> str:
    """Return a follower's log line: JSON as Google Cloud Logging and others read it, or text."""
    kind = str(entry["kind"])
    severity = severity_of(kind)
    fields = {name: value for name, value in entry.items() if name not in _OMITTED_FIELDS}
    seconds, micros = divmod(int(entry["at"]), 1_000_000)
    if as_json:
        stamp = {"seconds": seconds, "nanos": micros * 1000}
        head = {"severity": severity, "timestamp": stamp, "message": kind, "seq": entry["seq"]}
        return orjson.dumps({**head, **fields}).decode() + "\n"
    listed = " ".join(
        f"{name}={value if isinstance(value, str | int) else orjson.dumps(value).decode()}"
        for name, value in fields.items()
    )
    return f"{seconds}.{micros:06d} {severity} {kind} seq={entry['seq']} {listed}\n"
