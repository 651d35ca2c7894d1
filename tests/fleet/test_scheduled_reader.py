"""A scheduled judge without any model: it reads three pages, adds them up, and writes one row."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.contract.app.test_judge_replay import replay_all

from vedette.adapters.schedule.source import ScheduleSource
from vedette.domain.base.clock import MICROS
from vedette.testing.harness import FleetHarness, copy_policies, remove_tests
from vedette.testing.intake import ListIntake

HOUR = 3600 * MICROS
PAGES = {"north": 12, "south": 30, "quay": 0.5}

AGENT_YAML = """\
version: 1
name: berth_tally
title: Adds up what lies at the berths
owner: desk@example.org
reasoner: judge
max_turns: 4
mode: act
order_by: subject
collection: berth_tally
triggers: [{every: 1h, name: hourly}]
charter: {pages: [north, south, quay]}
budget: {actions_per_run: 8}
tools:
  - name: page.read
    verb: read
    resource: pages
    args: {page: string}
    sinks: [/page]
    settles: idempotent
    target: pages
    function: read_page
  - name: tally.write
    verb: write
    resource: tally
    args: {schedule: string, pages: list, tons: string}
    sinks: []
    settles: transactional
    function: write_tally
"""

JUDGE_PY = '''\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref


class Judge(Base):
    """Reads the charter's pages, one a turn; then writes their sum."""

    def judge(self, seen, briefing):
        return self._read_next({"tons": 0, "read": []})

    def judge_outcomes(self, briefing):
        (answer,) = briefing.turns[-1]["answers"]
        if answer["status"] != "done":
            return Judgement("a page could not be read", 1.0)
        page, notes = answer["data"], briefing.notes
        return self._read_next(
            {"tons": notes["tons"] + float(page["tons"]), "read": [*notes["read"], page["name"]]}
        )

    def _read_next(self, notes):
        at = len(notes["read"])
        if at < len(self.charter["pages"]):
            read = Proposal("page.read", {"page": Ref(f"/charter/pages/{at}")}, "it is due")
            return Judgement(f"page {at + 1}", 1.0, (read,), final=False, notes=notes)
        args = {"schedule": Ref("/event/subject"), "pages": notes["read"],
                "tons": str(notes["tons"])}
        return Judgement("added up", 1.0, (Proposal("tally.write", args, "all were read"),))
'''

TOOLS_PY = """\
import json
from urllib.request import urlopen

from vedette.sdk import Outcome, RowWrite


def read_page(call):
    with urlopen(f"{call.target['base_url']}/pages/{call.args['page']}") as page:
        return Outcome("done", json.load(page))


def write_tally(call, row):
    value = {"pages": call.args["pages"], "tons": call.args["tons"]}
    return [RowWrite("berth_tally", call.args["schedule"], value)]
"""

GRANTS = """\
berth_tally:
  mode: act
  tools:
    page.read: {verb: read, resource: pages, impact: low}
    tally.write: {verb: write, resource: tally, impact: low}
"""


@pytest.fixture
def pages() -> Iterator[tuple[str, Counter[str]]]:
    """A server of pages: its address, and how often each was read."""
    reads: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            reads[name] += 1
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps({"name": name, "tons": PAGES[name]}).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", reads
    server.shutdown()
    thread.join()
    server.server_close()


def write_fleet(folder: Path, url: str, *, workers: bool) -> FleetHarness:
    agent = folder / "content/agents/berth_tally"
    agent.mkdir(parents=True)
    (folder / "content/memory").mkdir()
    texts = {"agent.yaml": AGENT_YAML, "judge.py": JUDGE_PY, "tools.py": TOOLS_PY,
             "instruction.md": "Add up what lies at the berths.\n", "__init__.py": ""}  # fmt: skip
    for name, text in texts.items():
        (agent / name).write_text(text, encoding="utf-8")
    return FleetHarness(
        folder,
        content=folder / "content",
        policies=remove_tests(copy_policies(folder / "policies", {"grants/data.yaml": GRANTS})),
        targets={"pages": {"kind": "http", "base_url": url, "private": True}},
        workers=workers,
    )


@pytest.mark.parametrize("workers", [False, True], ids=["here", "workers"])
async def test_it_reads_adds_up_and_writes_one_row_a_tick(
    tmp_path: Path, pages: tuple[str, Counter[str]], workers: bool
) -> None:
    url, reads = pages
    async with write_fleet(tmp_path, url, workers=workers) as fleet:
        services, intake = fleet.app.services, ListIntake()
        source = ScheduleSource(services.fleet, services.clock)
        await source.wake(intake, services.clock.now_us())
        await source.wake(intake, services.clock.now_us() + HOUR)
        (tick,) = intake.events
        await fleet.send(tick, vouched=False)
        await fleet.wait_until_idle(60)
        (run,) = fleet.runs(tick)
        assert (run.state, run.turn) == ("done", 4)
        assert reads == {"north": 1, "south": 1, "quay": 1}
        row = fleet.app.store.runs.row("berth_tally", "hourly")
        assert row == {"pages": ["north", "south", "quay"], "tons": "42.5"}
        assert [(row.tool, row.effect) for row in fleet.actions(tick)] == [
            ("page.read", "done"), ("page.read", "done"), ("page.read", "done"),
            ("tally.write", "done"),
        ]  # fmt: skip
        assert not fleet.entries("budget.reserved"), "a judge spends nothing"
        await fleet.restart()
        report = await replay_all(fleet.app)
        assert (report.to_json()["differences"], report.equal) == ([], 4)
