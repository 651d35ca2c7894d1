"""The dashboard and the alert rules ask only for metrics, labels and values that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from vedette.adapters.telemetry.prometheus import METRICS, PrometheusMetrics
from vedette.config.yaml import parse_yaml

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = ROOT / "infra" / "grafana" / "vedette.json"
RULES = ROOT / "infra" / "prometheus" / "vedette.rules.yml"

_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
SERIES = {
    f"vedette_{name}{suffix}": {*labels, *(("le",) if suffix == "_bucket" else ())}
    for name, (kind, _, labels) in METRICS.items()
    for suffix in _SUFFIXES[kind]
}
# What the labels of a selector may be compared with, as far as the code has a closed list.
VALUES = {
    "state": {"done", "dead", "failed", "unknown", "intended", "started"},
    "outcome": {"accepted", "duplicate", "refused", "permit", "hold", "deny"},
}


def rules() -> list[dict[str, object]]:
    document, problems = parse_yaml(RULES.read_text(encoding="utf-8"), RULES.name)
    assert document is not None, problems
    groups = document.value["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        yield from (str(target["expr"]) for target in panel["targets"])
    yield from (str(rule["expr"]) for rule in rules())


def wrong(expression: str) -> list[str]:
    """Return what an expression asks for that is not there."""
    found = []
    names = re.findall(r"\bvedette_\w+", expression)
    found += [name for name in names if name not in SERIES]
    labels = set().union(*(SERIES.get(name, set()) for name in names))
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        found += [label for label in re.split(r"\s*,\s*", grouped) if label not in labels]
    for name, selector in re.findall(r"\b(vedette_\w+)\{([^}]*)\}", expression):
        for label, value in re.findall(r'(\w+)="([^"]*)"', selector):
            if label not in SERIES.get(name, set()) or value not in VALUES.get(label, {value}):
                found.append(f"{label}={value}")
    return found if names else [*found, "no metric"]


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_every_expression_asks_for_what_there_is(expression: str) -> None:
    assert wrong(expression) == []


@pytest.mark.parametrize(
    "expression",
    [
        "rate(vedette_event_total[5m])",
        "sum by (agnet) (rate(vedette_runs_total[5m]))",
        'rate(vedette_runs_total{state="dying"}[5m])',
        'rate(vedette_stop_seconds_bucket{agent="a"}[5m])',
        "up == 0",
    ],
)
def test_a_wrong_expression_is_found(expression: str) -> None:
    """Negative control."""
    assert wrong(expression)


def test_the_first_count_of_a_process_is_seen() -> None:
    """`increase` over a series that was absent is nothing: it is there at 0, or looked for anew."""
    body, _ = PrometheusMetrics().scrape()
    there = set(re.findall(rb"^(vedette_\w+) 0.0$", body, re.MULTILINE))
    for rule in rules():
        for name in re.findall(r"increase\((vedette_\w+)", str(rule["expr"])):
            assert name.encode() in there or f"unless {name}" in str(rule["expr"]), rule["alert"]


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        annotations, labels = rule["annotations"], rule["labels"]
        assert isinstance(annotations, dict)
        assert isinstance(labels, dict)
        assert annotations["summary"]
        assert annotations["mend"]
        assert labels["severity"] in ("page", "ticket")


def test_no_two_panels_share_an_id_or_a_place() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
