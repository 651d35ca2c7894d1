"""docs/telemetry.md names every metric and every kind of entry, and nothing else."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

from vedette import __version__
from vedette.adapters.telemetry.prometheus import MAX_SERIES, METRICS, PrometheusMetrics
from vedette.domain.entry import KINDS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "telemetry.md"

Row = tuple[str, tuple[str, ...]]


def metrics(text: str) -> dict[str, Row]:
    """Return name -> (kind, labels) of the page's metric table."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].startswith("`vedette_") and len(cells) == 4:
            found[cells[0].strip("`")] = (cells[1], tuple(re.findall(r"`(\w+)`", cells[2])))
    return found


def kinds(text: str) -> list[str]:
    """Return the kinds of the page's last table."""
    return re.findall(r"^\| `([a-z]+\.[a-z]+)` \|", text, re.MULTILINE)


def exposed() -> dict[str, Row]:
    return {
        f"vedette_{name}" + "_total" * (kind == "counter"): (kind, labels)
        for name, (kind, _, labels) in METRICS.items()
    }


def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    assert metrics(PAGE.read_text(encoding="utf-8")) == exposed()


def test_every_kind_of_entry_is_documented_once_and_exists() -> None:
    found = kinds(PAGE.read_text(encoding="utf-8"))
    assert sorted(found) == sorted(KINDS)


def test_a_missing_row_a_wrong_label_and_an_invented_kind_are_found() -> None:
    """Negative control: what the tests above must find, they can find."""
    text = PAGE.read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| `vedette_events_total`"))
    assert metrics(text.replace(row, "")) != exposed()
    assert metrics(text.replace(row, row.replace("`outcome`", "`result`"))) != exposed()
    assert "run.invented" in kinds(text + "| `run.invented` | never | |\n")


def test_a_scrape_says_what_runs_and_what_the_process_takes() -> None:
    body = PrometheusMetrics().scrape()[0].decode()
    labels = f'python="{platform.python_version()}",version="{__version__}"'
    assert f"vedette_build_info{{{labels}}} 1.0" in body
    if sys.platform == "linux":
        found = re.findall(r"^process_resident_memory_bytes (\S+)$", body, re.MULTILINE)
        assert float(found[0]) > 1_000_000


def test_what_is_one_label_set_too_many_is_observed_under_overflow_as_it_is_counted() -> None:
    metrics = PrometheusMetrics()
    for number in range(MAX_SERIES + 2):
        metrics.observe("model_tokens", 3, model=f"m{number}", type="input")
        metrics.count("parked", agent=f"a{number}")
    page = metrics.scrape()[0].decode()
    assert 'vedette_parked_total{agent="overflow"} 2.0' in page
    assert 'vedette_model_tokens_count{model="overflow",type="overflow"} 2.0' in page
    assert 'vedette_model_tokens_sum{model="overflow",type="overflow"} 6.0' in page
    assert metrics.total("series_dropped", metric="model_tokens") == 2


def test_a_label_that_is_no_text_in_utf_8_spoils_no_page() -> None:
    metrics = PrometheusMetrics()
    metrics.count("parked", agent="a\ud800")
    metrics.gauge("model_calls_in_flight", 1, model="b\udfff")
    metrics.observe("model_tokens", 3, model="c\ud800", type="input")
    page = metrics.scrape()[0].decode()
    for name in ('agent="a?"', 'model="b?"', 'model="c?"'):
        assert name in page
