"""The Metrics port on prometheus-client. Names and labels are documented in docs/telemetry.md."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping
from typing import Any

# name: (kind, help, labels). What is not listed here is a bug, not a new metric.
METRICS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "events": ("counter", "Deliveries by what became of them", ("outcome",)),
    "runs": ("counter", "Runs that ended", ("agent", "state")),
    "decisions": ("counter", "Decisions of the gateway", ("agent", "tool", "outcome", "rule")),
    "would": ("counter", "Permits that mode observe kept back", ("agent", "tool")),
    "notices": ("counter", "Permits that policy obliges to tell a person of", ("agent", "tool")),
    "effects": ("counter", "Effects by state", ("agent", "tool", "state")),
    "budget_refusals": ("counter", "No room in a limit", ("agent", "scope", "unit", "window")),
    "budget_alerts": ("counter", "Limits of which 80 % are taken", ("agent", "unit", "window")),
    "worker_deaths": ("counter", "Workers that did not end by our wish", ("agent", "kind")),
    "store_failures": ("counter", "Commits that did not stand", ()),
    "policy_published": ("counter", "Revisions published", ()),
    "policy_refused": ("counter", "Bundles refused", ()),
    "policy_revision": ("gauge", "The live policy revision", ()),
    "publish_seconds": ("histogram", "From the wish to publish to no older revision", ()),
    "pending_runs": ("gauge", "Runs in memory, queued or being handled", ()),
    "ledger_head": ("gauge", "Seq of the last ledger entry", ()),
    "stops": ("gauge", "Stops in force", ()),
    "stop_seconds": ("histogram", "From the order to stop to its being in force", ()),
    "parked": ("counter", "Agents that were stopped by the engine, over a ceiling", ("agent",)),
    "parked_keys": ("gauge", "Keys whose effects wait for a target, or behind one that does", ()),
    "breaker_opened": ("counter", "Targets that were left alone after failures", ("target",)),
    "breakers_open": ("gauge", "Targets that are left alone now", ()),
    "accepted_unfinished": ("gauge", "Runs that intake has credits out for", ()),
    "accepted_unfinished_bytes": ("gauge", "The bytes of their events", ()),
}


class PrometheusMetrics:
    """Counts in memory at once, and for /metrics through prometheus-client when it is asked for.

    The tally is what the live view reads; the vendor is loaded on the first scrape only.
    """

    def __init__(self) -> None:
        self.tally: Tally[tuple[str, tuple[tuple[str, str], ...]]] = Tally()
        self._gauges: dict[str, float] = {}
        self._observed: dict[str, list[float]] = {}

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Count `amount` under a name and its labels."""
        self.tally[(name, tuple(sorted(labels.items())))] += amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a present value."""
        self._gauges[name] = value

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Observe one value of a distribution (kept in memory, at most the last 10,000)."""
        values = self._observed.setdefault(name, [])
        values.append(value)
        del values[:-10_000]

    def total(self, name: str, **labels: str) -> int:
        """Return the sum of a counter over all label sets that contain `labels`."""
        wanted = set(labels.items())
        return sum(
            number
            for (counted, at), number in self.tally.items()
            if counted == name and wanted.issubset(at)
        )

    def scrape(self) -> tuple[bytes, str]:
        """Return what /metrics answers, and its content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

        registry = CollectorRegistry()
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
        for name, (kind, told, labels) in METRICS.items():
            if kind == "counter":
                counter = CounterMetricFamily(f"vedette_{name}", told, labels=labels)
                for (counted, at), number in self.tally.items():
                    if counted == name:
                        values = dict(at)
                        counter.add_metric([values.get(label, "") for label in labels], number)
                families.append(counter)
            elif kind == "gauge" and name in self._gauges:
                gauge = GaugeMetricFamily(f"vedette_{name}", told)
                gauge.add_metric([], self._gauges[name])
                families.append(gauge)
            elif kind == "histogram" and name in self._observed:
                families.append(_histogram(HistogramMetricFamily, name, told, self._observed[name]))
        return families


_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


def _histogram(family: Any, name: str, told: str, values: list[float]) -> Any:
    buckets = [(str(edge), sum(1 for v in values if v <= edge)) for edge in _BUCKETS]
    histogram = family(f"vedette_{name}", told)
    histogram.add_metric([], [*buckets, ("+Inf", len(values))], sum(values))
    return histogram


class _Collector:
    def __init__(self, metrics: PrometheusMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> list[Any]:
        return self._metrics.families()
