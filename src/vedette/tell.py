"""Followers of the ledger that tell others of it: traces to a collector, log lines to stderr.

Both read committed entries, so they tell of nothing that did not happen, and they cost the line
nothing. Traces remember how far they got; log lines begin where this process began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TextIO

import orjson

from vedette.errors import StoreFailed
from vedette.timeline.trace import ENDS, sampled, spans

if TYPE_CHECKING:
    from vedette.app import App
    from vedette.timeline.trace import Span

TRACED = "traces_at"
_EVERY_US = 500_000
_RETRY_US = 5_000_000
_PAGE = 200
_MOST_ENTRIES = 1000

# What a log line leaves out of an entry: it is in its own place, or of use to proofs alone.
_DULL = frozenset({"v", "body", "n", "seq", "at", "kind"})
_ERRORS = frozenset({"run.dead", "effect.unknown", "policy.refused", "event.refused"})
_WARNINGS = frozenset({"effect.failed", "action.refused", "budget.alerted", "stop.set"})


def tellers(app: App, err: TextIO) -> list[tuple[str, Coroutine[Any, Any, None]]]:
    """Return the followers that the settings ask for, as (name, coroutine). Raises BadFleet."""
    plan = app.settings.edges.telemetry
    found: list[tuple[str, Coroutine[Any, Any, None]]] = []
    if plan.traces == "otlp" and plan.endpoint:
        from vedette.adapters.otel import OtlpSpans

        collector = OtlpSpans(plan.endpoint, app.line.fleet.name)
        found.append(("traces", _trace(app, collector.send, plan.sample)))
    if plan.logs != "none":
        found.append(("logs", _log(app, plan.logs == "json", err)))
    return found


async def _trace(app: App, send: Callable[[list[Span]], bool], share: float) -> None:
    """Send the traces of runs that end, for as long as the run lasts."""
    clock, known = app.line.clock, app.store.meta(TRACED)
    at = _opened(app) if known is None else int(known)
    while True:
        wait = _EVERY_US
        try:
            if app.store.leads:  # of several workers on one store, one tells
                found, to = traces_after(app.store, at, share)
                if to == at:
                    pass
                elif not found or await asyncio.to_thread(send, found):
                    app.metrics.count("spans", len(found))
                    await app.store.remember(TRACED, str(to))
                    at, wait = to, 0
                else:
                    app.metrics.count("trace_failures")
                    wait = _RETRY_US
        except StoreFailed:
            wait = _RETRY_US
        await clock.sleep_until(clock.now_us() + wait)


def _opened(app: App) -> int:
    """Return where this process began: what it did before its followers came counts too."""
    latest = app.store.latest(("store.opened",), 0, 1)
    return latest[-1][0] if latest else app.store.head()


def traces_after(store: Any, after: int, share: float) -> tuple[list[Span], int]:
    """Return the spans of the runs that end in the next page of entries, and how far it goes."""
    found: list[Span] = []
    page = store.entries_after(after, _PAGE)
    for _, raw in page:
        entry = orjson.loads(raw)
        if entry["kind"] in ENDS and "run" in entry and sampled(entry["run"], share):
            found += _of_run(store, entry)
    return found, page[-1][0] if page else after


def _of_run(store: Any, end: Mapping[str, Any]) -> list[Span]:
    accepted = store.entry(end.get("about", 0))
    if accepted is None:
        return []  # archived meanwhile
    body = orjson.loads(accepted[2]) if accepted[2] else {}
    sender = (body.get("extensions") or {}).get("traceparent")
    told = [orjson.loads(raw) for _, raw, _ in store.entries("run", end["run"], _MOST_ENTRIES)]
    until = [entry for entry in told if entry["seq"] <= end["seq"]]
    return spans(orjson.loads(accepted[1]), until, sender if isinstance(sender, str) else None)


async def _log(app: App, as_json: bool, err: TextIO) -> None:
    """Write a line for each entry from now on. Entries hold no content and no secret."""
    clock, at = app.line.clock, _opened(app)
    while True:
        try:
            for seq, raw in app.store.entries_after(at, _PAGE):
                err.write(line_of(orjson.loads(raw), as_json))
                at = seq
            err.flush()
        except (StoreFailed, OSError):
            app.metrics.count("log_failures")
        await clock.sleep_until(clock.now_us() + _EVERY_US)


def line_of(entry: Mapping[str, Any], as_json: bool) -> str:
    """Return one log line: JSON in the fields Google Cloud Logging and others read, or text."""
    kind = str(entry["kind"])
    severity = "ERROR" if kind in _ERRORS else "WARNING" if kind in _WARNINGS else "INFO"
    fields = {name: value for name, value in entry.items() if name not in _DULL}
    seconds, micros = divmod(int(entry["at"]), 1_000_000)
    if as_json:
        stamp = {"seconds": seconds, "nanos": micros * 1000}
        told = {"severity": severity, "timestamp": stamp, "message": kind, "seq": entry["seq"]}
        return orjson.dumps({**told, **fields}).decode() + "\n"
    listed = " ".join(
        f"{name}={value if isinstance(value, str | int) else orjson.dumps(value).decode()}"
        for name, value in fields.items()
    )
    return f"{seconds}.{micros:06d} {severity} {kind} seq={entry['seq']} {listed}\n"
