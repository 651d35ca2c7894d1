"""A new agent at a stranger's IMAP mailbox: observe, ask, then act on one folder only.

    python -m tests.acceptance.show_imap          1,000 mails; prints what was seen

The mailbox is a real server's. `show` is what the test runs with fewer mails. The agent is made by
what `vedette agent new` does, of the shipped inbox_triage; every change of mode is a command.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.imap import Kept, Mailbox, server
from tests.small import AGENT, small

from vedette.adapters.mail.imap.source import ImapSource
from vedette.config.settings import load_settings
from vedette.domain.base.clock import SystemClock
from vedette.ledger.history.report import report
from vedette.operations.modes import GRANTS
from vedette.operations.scaffold import scaffold_agent
from vedette.testing.harness import FleetHarness, checkout

NEW, FOLDER, ONE = "billing", "INBOX", "Invoices"
_MESSAGE_ID = re.compile(rb"(?im)^Message-ID:.*(?:\r?\n[ \t].*)*\r?\n")
# What is not filing is left to a person: beside the folder nothing of the mailbox is touched.
_LIMITED = f"impact: low, only: {{/folder: [{ONE}]}}}}"


@dataclass(slots=True)
class Shown:
    """What was seen in each of the three modes; a test compares it, a person reads it."""

    mails: int
    before: dict[str, set[Kept]] = field(default_factory=dict)
    observed: dict[str, set[Kept]] = field(default_factory=dict)
    effects: dict[str, int] = field(default_factory=dict)
    decided: dict[str, Counter[str]] = field(default_factory=dict)
    would: dict[str, Any] = field(default_factory=dict)
    approved: int = 0
    asked: dict[str, set[Kept]] = field(default_factory=dict)
    acted: dict[str, set[Kept]] = field(default_factory=dict)
    filed: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    cpu: float = 0.0


def letters(number: int, batch: str) -> Iterator[bytes]:
    """Yield so many of the sample mails, each with a Message-ID of its own."""
    samples = sorted((checkout() / "samples/mailbox/new").iterdir())
    for at in range(number):
        raw = _MESSAGE_ID.sub(b"", samples[at % len(samples)].read_bytes(), count=1)
        yield f"Message-ID: <{batch}.{at}@show.example>\r\n".encode() + raw


def show(root: Path, mails: int, more: int, *, each: int = 9, workers: bool = False) -> Shown:
    """Go through the three modes: `mails` are there in observe, `more` come in each of the others.

    `each` is how many examples the judge has of a label.
    """
    small(root, each=each)
    agent = root / "agents" / AGENT / "agent.yaml"
    text = agent.read_text(encoding="utf-8")
    agent.write_text(text.replace('"imap:*"', '"imap:desk"'), encoding="utf-8")
    scaffold_agent(load_settings(root / "vedette.toml"), NEW, AGENT, None, None, lambda s: [])
    # The one that was there keeps its own mailbox; the new one is pointed at this.
    agent.write_text(text.replace('"imap:*"', '"imap:nowhere"'), encoding="utf-8")
    return asyncio.run(_show(root, mails, more, workers))


async def _show(root: Path, mails: int, more: int, workers: bool) -> Shown:
    box = server().mailbox()
    box.fill(letters(mails, "first"))
    for name in ("Invoices", "Bookings", "Questions", "Newsletters", "Alerts", "Junk", "Legal"):
        box.create(name)
    shown = Shown(mails, before=box.folders())
    address = "desk@harbourlights.example"
    target = box.table(address=address, create_folders=True, drafts="Drafts")
    fleet = FleetHarness(root / "fleet", content=root, targets={"mailbox": target}, workers=workers)
    async with fleet:
        began, cpu = time.monotonic(), time.process_time()
        await _take(fleet, box)
        shown.seconds, shown.cpu = time.monotonic() - began, time.process_time() - cpu
        _count(fleet, shown, "observe")
        shown.observed = box.folders()
        store = fleet.app.store
        shown.would = report(store, 0, 2**52, agent=NEW)["would"][0]

        await _mode(fleet, "ask")
        box.fill(letters(more, "second"))
        await _take(fleet, box)
        _count(fleet, shown, "ask")
        waiting = next(
            row for row in store.runs.holds_page(after=0, limit=99) if row.tool == "mail.file"
        )
        await fleet.approve(waiting)
        await fleet.wait_until_idle()
        shown.approved = _effects(fleet)
        shown.asked = box.folders()

        _limit(root / "policies" / GRANTS)
        assert (await fleet.apply_policy(root / "policies"))["ok"]
        await _mode(fleet, "act")
        since = store.ledger.last_seq()
        box.fill(letters(more, "third"))
        await _take(fleet, box)
        _count(fleet, shown, "act")
        shown.acted = box.folders()
        for entry in fleet.entries("action.decided"):
            if entry["seq"] > since:
                shown.rules[f"{entry['outcome']} {entry['rule']}"] += 1
                if entry["outcome"] == "permit":
                    args = fleet.body(entry["seq"])["question"]["action"]["args"]
                    shown.filed[str(args.get("folder"))] += 1
    return shown


async def _take(fleet: FleetHarness, box: Mailbox) -> None:
    """Let the source bring what is there, and the fleet handle it."""
    plan = box.source(name="desk", folders=[FOLDER], newest=100_000)
    source = ImapSource(plan, SystemClock(), watch=False, is_leader=lambda: True)
    await source.deliver(fleet.app.intake)
    await fleet.wait_until_idle(within_s=600)


async def _mode(fleet: FleetHarness, to: str) -> None:
    done = await fleet.submit_confirmed("mode", reason="step by step", agent=NEW, mode=to)
    assert done["ok"]
    assert done["folder"] == "written"


def _limit(grants: Path) -> None:
    """Let the new agent file into one folder, and leave all else to a person."""
    head, _, own = grants.read_text(encoding="utf-8").partition(f"{NEW}:\n")
    own = own.replace("impact: low}", "impact: high}")
    filing = "mail.file: {verb: move, resource: mailbox, "
    own = own.replace(f"{filing}impact: high}}", f"{filing}{_LIMITED}")
    grants.write_text(f"{head}{NEW}:\n{own}", encoding="utf-8")


def _count(fleet: FleetHarness, shown: Shown, mode: str) -> None:
    shown.effects[mode] = _effects(fleet)
    shown.decided[mode] = Counter(
        entry["outcome"] for entry in fleet.entries("action.decided") if entry["agent"] == NEW
    )


def _effects(fleet: FleetHarness) -> int:
    return len(fleet.entries("effect.done", "effect.failed", "effect.unknown"))


def main() -> None:
    """Show it with 1,000 mails."""
    mails = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory(prefix="vedette-show-") as folder:
        shown = show(Path(folder), mails, 80, each=99)
    print(f"observe: {mails} mails in {shown.seconds:.1f} s ({mails / shown.seconds:.0f}/s),")
    print(f"  {shown.cpu / mails * 1e6:.0f} us of CPU each; {shown.effects['observe']} effects,")
    print(f"  the mailbox is {'' if shown.observed == shown.before else 'NOT '}as it was")
    print(f"  decided {dict(shown.decided['observe'])}; the report says {shown.would['tools']}")
    print(f"ask: {shown.effects['ask']} effects; {shown.approved} after one approval")
    print(f"act: filed {dict(shown.filed)}; decided by {dict(shown.rules)}")


if __name__ == "__main__":
    main()
