"""The Metrics port on prometheus-client. Names and labels are documented in docs/telemetry.md."""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from vedette import __version__

Labels = tuple[tuple[str, str], ...]

# Label sets of one metric in one process; what comes after them is counted under OVERFLOW.
MAX_SERIES = 2000
OVERFLOW = "overflow"
BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# What the way of an event takes: milliseconds, or days where it waits for a person.
_EVENT_BUCKETS = (
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0,
    3600.0, 14_400.0, 86_400.0, 259_200.0,
)  # fmt: skip
# As the semantic conventions for generative AI say of gen_ai.client.operation.duration and
# gen_ai.client.token.usage.
_CALL_BUCKETS = tuple(0.01 * 2**n for n in range(14))
_TOKEN_BUCKETS = tuple(4**n for n in range(14))
# A judge's task takes a few turns, a long one a thousand.
_TURN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
# A person's word comes within a minute, or after weeks.
_WAIT_BUCKETS = (60, 300, 900, 3600, 14_400, 43_200, 86_400, 259_200, 604_800, 1_209_600, 2_419_200)
# Of the histograms that have others than BUCKETS.
BUCKETS_OF: Mapping[str, tuple[float, ...]] = {
    "event_decided_seconds": _EVENT_BUCKETS,
    "event_effect_seconds": _EVENT_BUCKETS,
    "model_call_seconds": _CALL_BUCKETS,
    "model_tokens": _TOKEN_BUCKETS,
    "turn_cost_micros": _TOKEN_BUCKETS,
    "task_turns": _TURN_BUCKETS,
    "task_wait_seconds": _WAIT_BUCKETS,
}

# name: (kind, help, labels). What is not listed here is a bug, not a new metric.
METRICS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "build_info": ("gauge", "1; the labels say what runs", ("version", "python")),
    "events": ("counter", "Deliveries by what became of them", ("outcome",)),
    "runs": ("counter", "Runs that ended", ("agent", "state")),
    "decisions": ("counter", "Decisions of the gateway", ("agent", "tool", "outcome", "rule")),
    "would": ("counter", "Permits that mode observe kept back", ("agent", "tool")),
    "notices": ("counter", "Permits that policy obliges to tell a person of", ("agent", "tool")),
    "notices_sent": ("counter", "Notices that a way took", ("way",)),
    "notices_failed": ("counter", "Attempts to tell that failed", ("way",)),
    "effects": ("counter", "Effects by state", ("agent", "tool", "state")),
    "budget_refusals": ("counter", "No room in a limit", ("agent", "scope", "unit", "window")),
    "tasks_open": ("gauge", "Runs of agents that take tasks, by state", ("agent", "state")),
    "tasks_stalled": ("gauge", "Tasks that wait for a person's word", ()),
    "tasks_ended": ("counter", "Tasks that ended", ("agent", "state")),
    "task_turns": ("histogram", "Turns of a task that ended", ("agent",)),
    "task_wait_seconds": ("histogram", "How long tasks waited for a person's word", ("agent",)),
    "items_closed": ("counter", "Items of tasks that were closed", ("agent", "state")),
    "hand_offs": ("counter", "Contexts begun with a hand-off, by who made it", ("agent", "by")),
    "drifts": ("counter", "Rules that hand-offs or memories broke", ("agent", "rule", "of")),
    "stalls": ("counter", "Tasks that wait for a person at a bound of their plan", ("agent",)),
    "budget_alerts": ("counter", "Limits of which 80 % are taken", ("agent", "unit", "window")),
    "worker_deaths": ("counter", "Workers that did not end by our wish", ("agent", "kind")),
    "workers_connected": ("gauge", "Workers of an agent connected to the gateway", ("agent",)),
    "identity_refusals": ("counter", "Tokens and workers refused, by code", ("agent", "code")),
    "store_failures": ("counter", "Commits that did not stand", ()),
    "policy_published": ("counter", "Revisions published", ()),
    "policy_refused": ("counter", "Bundles refused", ()),
    "policy_revision": ("gauge", "The live policy revision", ()),
    "policy_fallbacks": ("counter", "Decisions the policy server did not make", ("reason",)),
    "second_opinions": ("counter", "Decisions put to a second policy engine too", ("where",)),
    "samples_dropped": ("counter", "Sampled decisions that no second engine was asked about", ()),
    "rows_refused": ("counter", "Rows that are not what the ledger says", ("agent", "what")),
    "engine_differences": ("counter", "Decisions on which policy engines differ", ("where",)),
    "second_opinion": ("gauge", "1 while there is a second policy engine", ()),
    "second_opinion_missing": ("gauge", "1 while the second engine cannot be made", ()),
    "policy_live_refused": ("gauge", "1 if this version's check refuses the live policy", ()),
    "policy_folder_differs": ("gauge", "1 while the policy folder says else than what is live", ()),
    "policy_engine_up": ("gauge", "1 while the policy server serves the live bundle", ()),
    "policy_engine_wasm": ("gauge", "1 while OPA's Wasm decides, 0 while another engine does", ()),
    "residuals": ("gauge", "Residuals that permit in the policy engine's place", ()),
    "residual_permits": ("counter", "Permits that a residual of the policy gave", ()),
    "residuals_refused": ("counter", "Bundles of which a residual differed from its engine", ()),
    "publish_seconds": ("histogram", "From the wish to publish to no older revision", ()),
    "pending_runs": ("gauge", "Runs in memory, queued or being handled", ()),
    "ledger_head": ("gauge", "Seq of the last ledger entry", ()),
    "view_entries_behind": ("gauge", "Entries that the read model lacks", ()),
    "view_seconds_behind": ("gauge", "Age of the first entry that the read model lacks", ()),
    "view_follower": ("gauge", "1 while this worker's follower of the read model lives", ()),
    "stops": ("gauge", "Stops in force", ()),
    "clock_jumps": ("counter", "Jumps of the wall clock that were told", ()),
    "clock_jump_seconds": ("gauge", "By how much the wall clock is off, until confirmed", ()),
    "stops_unrecorded": ("gauge", "Stops that hold in this process and are not durable yet", ()),
    "store_ready": ("gauge", "1 while the store commits; nothing is called while it is 0", ()),
    "releases_changed": ("gauge", "Agents whose folder is not the release that runs", ()),
    "operator_refusals": ("counter", "Requests of people that were refused", ("code",)),
    "stop_seconds": ("histogram", "From the order to stop to its answer", ()),
    "parked": ("counter", "Agents that were stopped by the engine, over a ceiling", ("agent",)),
    "parked_keys": ("gauge", "Keys whose effects wait for a target, or behind one that does", ()),
    "breaker_opened": ("counter", "Targets that were left alone after failures", ("target",)),
    "breakers_open": ("gauge", "Targets that are left alone now", ()),
    "model_calls": ("counter", "Calls of models, by what became of them", ("model", "outcome")),
    "deferred": ("counter", "Events that a judge left to a model", ("agent",)),
    "model_calls_in_flight": ("gauge", "Calls of models on their way", ("model",)),
    "model_call_seconds": (
        "histogram",
        "How long calls of models took",
        ("model", "provider", "outcome"),
    ),
    "model_tokens": ("histogram", "Tokens of a turn, by kind", ("model", "type")),
    "turn_cost_micros": ("histogram", "What a turn cost, in micro units", ("agent", "model")),
    "event_decided_seconds": ("histogram", "From an event to what is decided of it", ("agent",)),
    "event_effect_seconds": ("histogram", "From an event to its effect", ("agent", "held")),
    "model_runs_waiting": ("gauge", "Runs that wait for a model", ("model",)),
    "recall_postings": ("gauge", "Postings of memories that are held in memory", ()),
    "recall_scopes_in_file": ("gauge", "Scopes of memories ranked in the file, for room", ()),
    "push_requests": ("counter", "Pushed messages by what became of them", ("source", "outcome")),
    "accepted_unfinished": ("gauge", "Runs that intake has credits out for", ()),
    "accepted_unfinished_bytes": ("gauge", "The bytes of their events", ()),
    "oldest_unfinished_seconds": ("gauge", "Age of the oldest run that is ready", ()),
    "stuck_keys": ("gauge", "Keys whose oldest ready run has not moved beyond the bound", ()),
    "stuck": ("counter", "Runs that were told not to move", ("agent", "reason")),
    "stuck_mended": ("counter", "Times that all ready runs were read again as one was lost", ()),
    "spans": ("counter", "Spans that a collector took", ()),
    "shipped": ("counter", "Entries shipped to BigQuery", ()),
    "unshipped": ("gauge", "Entries that are still to be shipped there", ()),
    "ship_failures": ("counter", "Attempts to ship that failed; made again", ()),
    "trace_failures": ("counter", "Batches of spans that no collector took; sent again", ()),
    "spans_dropped": ("counter", "Spans of runs that a collector never took", ()),
    "log_failures": ("counter", "Reads of the ledger for log lines that failed", ()),
    "series_dropped": ("counter", "Counts under one label set too many", ("metric",)),
    "pubsub_messages": ("counter", "Messages received by a pull", ("source",)),
    "pubsub_redelivered": ("counter", "Messages whose event was known", ("source",)),
    "pubsub_poison": ("counter", "Messages that were no event, each delivery", ("source",)),
    "pubsub_acks": ("counter", "Deliveries settled, by what became of it", ("source", "outcome")),
    "pubsub_leases_lost": ("counter", "Deliveries whose lease ran out in hand", ("source",)),
    "pubsub_streams_ended": ("counter", "Streams that ended, by status", ("source", "code")),
    "prometheus_skipped": ("counter", "Samples and series that are no event", ("source", "why")),
    "pubsub_outstanding": ("gauge", "Deliveries received and not settled", ("source",)),
}


class PrometheusMetrics:
    """Counts in memory at once, and for /metrics through prometheus-client when it is asked for.

    The tally is what the live view reads; the vendor is loaded on the first scrape only.
    """

    def __init__(self) -> None:
        self.counters: Tally[tuple[str, tuple[tuple[str, str], ...]]] = Tally()
        self._series: Tally[str] = Tally()
        self._gauges: dict[tuple[str, Labels], float] = {}
        self._histograms: dict[tuple[str, Labels], _Histogram] = {}
        self.gauge("build_info", 1, version=__version__, python=platform.python_version())

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Count `amount` under a name and its labels."""
        at = (name, tuple(sorted(labels.items())))
        if at not in self.counters and not self._may_add_series(name):
            at = _overflow(at)
        self.counters[at] += amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a present value."""
        at = (name, tuple(sorted(labels.items())))
        if at in self._gauges or self._may_add_series(name):
            self._gauges[at] = value

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Count one value of a distribution into its buckets."""
        at = (name, tuple(sorted(labels.items())))
        found = self._histograms.get(at)
        if found is None:
            if not self._may_add_series(name):
                at = _overflow(at)
            found = self._histograms.setdefault(at, _Histogram(BUCKETS_OF.get(name, BUCKETS)))
        found.add(value)

    def _may_add_series(self, name: str) -> bool:
        """Say whether a metric may have one more set of labels; count it if not."""
        if self._series[name] >= MAX_SERIES:
            self.counters[("series_dropped", (("metric", name),))] += 1
            return False
        self._series[name] += 1
        return True

    def total(self, name: str, **labels: str) -> int:
        """Return the sum of a counter over all label sets that contain `labels`."""
        wanted = set(labels.items())
        return sum(
            number
            for (counted, at), number in self.counters.items()
            if counted == name and wanted.issubset(at)
        )

    def scrape(self) -> tuple[bytes, str]:
        """Return what /metrics answers, and its content type."""
        from prometheus_client import (
            CONTENT_TYPE_LATEST,
            CollectorRegistry,
            ProcessCollector,
            generate_latest,
        )

        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_Collector(self))
        return generate_latest(registry), CONTENT_TYPE_LATEST

    def families(self) -> list[Any]:
        """Return everything as prometheus-client's metric families."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        families: list[Any] = []
        for name, (kind, description, labels) in METRICS.items():
            if kind == "counter":
                counter = CounterMetricFamily(f"vedette_{name}", description, labels=labels)
                for (counted, at), number in self.counters.items():
                    if counted == name:
                        counter.add_metric(_label_values(labels, at), number)
                if not labels and not counter.samples:
                    # An increase is seen from something: of an absent series the first is none.
                    counter.add_metric([], 0)
                families.append(counter)
            elif kind == "gauge":
                gauge = GaugeMetricFamily(f"vedette_{name}", description, labels=labels)
                for (found, at), value in self._gauges.items():
                    if found == name:
                        gauge.add_metric(_label_values(labels, at), value)
                if gauge.samples:
                    families.append(gauge)
            else:
                histogram = HistogramMetricFamily(f"vedette_{name}", description, labels=labels)
                for (found, at), observed in self._histograms.items():
                    if found == name:
                        shown = _label_values(labels, at)
                        histogram.add_metric(shown, observed.buckets(), observed.sum)
                if histogram.samples:
                    families.append(histogram)
        return families


def _overflow(at: tuple[str, Labels]) -> tuple[str, Labels]:
    return at[0], tuple((label, OVERFLOW) for label, _ in at[1])


def _label_values(labels: Sequence[str], at: Labels) -> list[str]:
    """Return the values of a series' labels, with `?` for what UTF-8 has no bytes for: of one such
    value the whole page would fail.
    """
    values = dict(at)
    return [values.get(label, "").encode(errors="replace").decode() for label in labels]


class _Histogram:
    """A distribution as Prometheus counts it: how many values came up to each edge."""

    __slots__ = ("counts", "edges", "sum")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, int]]:
        edges = [*(str(float(edge)) for edge in self.edges), "+Inf"]
        return list(zip(edges, accumulate(self.counts), strict=True))


class _Collector:
    def __init__(self, metrics: PrometheusMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> list[Any]:
        return self._metrics.families()
