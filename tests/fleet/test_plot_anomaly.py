"""`vedette plot` over what the shipped agent made of a series."""

from __future__ import annotations

import asyncio
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from vedette.domain.event import Event
from vedette.interfaces.cli import main
from vedette.judging.series import generate
from vedette.testing.harness import FleetHarness

ROOT = Path(__file__).resolve().parents[2]
UNIT = "bar\x1b]0;x\x07"  # whoever sends points chooses it
TOML = """\
fleet = "harbour"
state = "{state}"
[content]
agents = "{root}/agents"
policies = "{root}/policies"
memory = "{root}/memory"
[targets.mailbox]
kind = "maildir"
path = "@state/mailbox"
[targets.oncall]
kind = "webhook"
url = "http://127.0.0.1:9/hook"
[targets.board]
kind = "board"
path = "@state/board/board.db"
[targets.week]
kind = "folder"
path = "@state/week"
"""


async def watch(folder: Path) -> None:
    """A series that leaves its level at minute 200 and comes back at 230."""
    spec = {"n": 320, "seed": 6, "base": 20, "shift_at": 200, "shift_until": 230, "shift": 60}
    events = [
        Event(
            "csv:x", str(row), "metric.point", "pump",
            f"2026-03-02T{row // 60:02d}:{row % 60:02d}:00Z",
            {"value": value, "unit": UNIT},
        )
        for row, value in enumerate(generate(spec))
    ]  # fmt: skip
    async with FleetHarness(folder) as fleet:
        await fleet.send(*events[:205])
        await fleet.wait_until_idle()
        # Too short a past to be sure: a person opens the incident.
        opening = next(row for row in fleet.actions(events[200]) if row.tool == "incident.open")
        await fleet.approve(opening, "the pump is off")
        await fleet.wait_until_idle()
        await fleet.send(*events[205:])
        await fleet.wait_until_idle()


def said(capsys: Any, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    text = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, text.out, text.err


def test_a_series_is_drawn_from_the_record(tmp_path: Path, capsys: Any) -> None:
    asyncio.run(watch(tmp_path))
    (tmp_path / "vedette.toml").write_text(TOML.format(root=ROOT, state=tmp_path / "state"))
    config = ("--config", str(tmp_path), "--utc")
    out = tmp_path / "pump.svg"
    code, output, _ = said(capsys, *config, "plot", "pump", "--out", str(out))
    assert code == 0
    assert "320 events recorded" in output
    assert "bar" in output
    assert "\x1b" not in output
    root = ET.parse(out).getroot()
    assert "incident" in "".join(root.itertext())

    code, output, _ = said(capsys, *config, "plot", "pump", "--json")
    value = json.loads(output)
    assert value["schema"] == "vedette.plot/1"
    assert (value["unit"], value["agent"], len(value["points"])) == (
        UNIT,
        "anomaly_detection",
        320,
    )
    (incident,) = value["incidents"]
    minutes = [(incident[end] - value["from"]) // 60_000_000 for end in ("from", "to")]
    assert minutes[0] == 200
    assert 230 < minutes[1] < 320
    assert [(mark["what"], mark["tool"]) for mark in value["marks"]][:4] == [
        ("alarm", None),
        ("held", "incident.open"),
        ("held", "incident.notify"),
        ("approved", "incident.open"),
    ]
    rung = [point for point in value["points"] if point["label"] == "alarm"]
    assert rung[0]["score"] >= rung[0]["threshold"]

    code, _, output = said(capsys, *config, "plot", "pumps")
    assert code == 2
    assert "subject" in output
    nowhere = str(tmp_path / "none" / "x.svg")
    code, _, output = said(capsys, *config, "plot", "pump", "--out", nowhere)
    assert code == 2
    assert "--out" in output
    mark = next(mark for mark in value["marks"] if mark["tool"])
    code, _, output = said(capsys, *config, "explain", mark["run"], "--html", nowhere)
    assert code == 2
    assert "--html" in output
