"""A week of twelve papers out of the sample week, and a checker of reports that believes nobody.

The checker shares no code with the agent: it reads the report as a person does, and the papers from
the samples, byte for byte.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vedette.testing.harness import FleetHarness, copy_policies, remove_tests

ROOT = Path(__file__).parents[1]
WEEK = "2026-W19"
SAMPLES = ROOT / "samples" / "harbour_week"
TWELVE = ("011", "013", "037", "041", "045", "056", "078", "082", "114", "138", "144", "156")
UNREADABLE, ORDERS, LARGE = "144", "138", "156"
GOAL = "Review the week."


def write_small_week(folder: Path, papers: Sequence[str] = TWELVE) -> Path:
    """Write a few papers of the sample week and its incidents; return the folder of weeks."""
    week = folder / "weeks" / WEEK
    week.mkdir(parents=True)
    for name in (*(f"{number}.txt" for number in papers), "incidents.jsonl"):
        shutil.copy(SAMPLES / WEEK / name, week / name)
    return week.parent


def week_target(folder: Path, weeks: Path) -> dict[str, Any]:
    """Return the target's table of a fleet in `folder`."""
    path = str(folder / "week")
    return {"kind": "folder", "path": path, "create": True, "read": [str(weeks)]}


def write_content(folder: Path) -> Path:
    """Write a fleet's content with the shipped agent alone, under the shipped policy."""
    content = folder / "content"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "agents/weekly_review", content / "agents/weekly_review", ignore=ignored)
    (content / "memory").mkdir()
    copy_policies(content / "policies")
    return content


def weekly_fleet(folder: Path, weeks: Path, **more: Any) -> FleetHarness:
    """Return a fleet of the shipped agent, not opened, over these weeks."""
    content = write_content(folder)
    remove_tests(content / "policies")
    return FleetHarness(
        folder, content=content, targets={"week": week_target(folder, weeks)}, **more
    )


def check_report(report: str, weeks: Path) -> dict[str, list[str]]:
    """Return the report's claims with the ids of their sources.

    Raises AssertionError for a claim without a source, a source that nobody wrote, and a quote that
    does not stand there.
    """
    texts = {file.stem: file.read_bytes() for file in (weeks / WEEK).glob("*.txt")}
    lines = (weeks / WEEK / "incidents.jsonl").read_text("utf-8").splitlines()
    texts |= {one["id"]: one["summary"].encode() for one in map(json.loads, lines)}
    body, _, brief = report.partition("\n## Sources of the numbers and kinds\n")
    claims, _, _ = body.partition("\n## Set aside\n")
    claims, _, _ = claims.partition("\n## To be followed up\n")
    quoted: dict[str, list[str]] = {}
    beside: dict[str, list[str]] = {}
    told: dict[str, list[str]] = {}
    for line in claims.splitlines():
        if line.startswith("  - "):
            source, quotes = _read_source(line[4:])
            beside.setdefault(list(told)[-1], []).append(source)
            quoted.setdefault(source, []).extend(quotes)
        elif line.startswith("- "):
            found = re.fullmatch(r"- (.+) \[([^\]]+)\]", line)
            assert found, f"a claim without a source: {line}"
            told[found[1]] = found[2].replace("incident ", "").split(", ")
    for line in filter(None, brief.splitlines()):
        source, quotes = _read_source(line.removeprefix("- "))
        quoted.setdefault(source, []).extend(quotes)
    for source, quotes in quoted.items():
        assert source in texts, f"nobody wrote {source}"
        for quote in quotes:
            assert quote.encode() in texts[source], f"{source} does not say {quote!r}"
    for claim, sources in told.items():
        assert set(sources) <= quoted.keys(), f"a source without a quote: {claim}"
        assert set(beside.get(claim, sources)) == set(sources), f"not its sources: {claim}"
    assert told, "the report claims nothing"
    return told


def _read_source(line: str) -> tuple[str, list[str]]:
    found = re.fullmatch(r"(?:incident )?(\w+)(?:, [^“]+)?: (“.+”)", line)
    assert found, f"no source: {line}"
    plain = re.sub(r"\\(.)", r"\1", found[2]).replace("&lt;", "<").replace("&amp;", "&")
    return found[1], re.findall(r"“([^”]+)”", plain)


def read_report(state: Path) -> str:
    """Return the one report that was written below the target's folder."""
    (file,) = (state / "week" / "reports" / WEEK).iterdir()
    return file.read_text("utf-8")


def sent(state: Path) -> list[Mapping[str, Any]]:
    """Return the messages that were let go."""
    folder = state / "week" / "outbox"
    return [json.loads(file.read_bytes()) for file in sorted(folder.glob("*.json"))]
