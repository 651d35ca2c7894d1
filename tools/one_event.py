"""Writes docs/one-event.md: one mail and one incident of the samples, through the real line.

    .venv/bin/python -m tools.one_event          rewrite docs/one-event.md
    .venv/bin/python -m tools.one_event --print  print it instead

The shipped agents, policies, memories and samples, the real sources, store, policy engine and
targets. Given are the clock, which stands still, and policies that were not staged again (the gate
does that). tests/acceptance/test_one_event.py compares the page with what comes out today.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import tempfile
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.one_event_text import INCIDENT, MAIL, REST
from tools.real_fleet import ROOT, receiver

from vedette.adapters.files.source import CsvSource
from vedette.adapters.mail.maildir.source import MaildirSource
from vedette.testing import FleetHarness, ListIntake, ManualClock

PAGE = ROOT / "docs" / "one-event.md"
MESSAGE = "1778324478.M0063.harbour"
SERIES = "pump_pressure"
ALARM = "pump_pressure:0001102"
NOW_US = 1_780_300_800_000_000  # 2026-06-01T08:00:00Z
WIDTH = 118

# Digests are salted or change with every edit of the content; a signature differs each time.
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
# Of what a judge is made of, and of the places in the ledger of what its state has seen: rows of a
# batch lie there as they became durable.
_STATE = re.compile(r'("state": ?")[0-9a-f]{8}(?:[0-9a-f]{12})?"')
# The last digits of a fraction depend on the machine's arithmetic.
_FRACTION = re.compile(r"\b(\d+\.\d{4})\d+")


@dataclass
class Story:
    """What happened to one run: its entries (raw, in order) and their bodies, parsed."""

    run: str
    entries: list[dict[str, Any]] = field(default_factory=list)
    raw: dict[int, str] = field(default_factory=dict)
    bodies: dict[int, Any] = field(default_factory=dict)

    def seq(self, kind: str, nth: int = 0) -> int:
        """Return the seq of the nth entry of a kind."""
        found = [entry["seq"] for entry in self.entries if entry["kind"] == kind]
        seq: int = found[nth]
        return seq

    def line(self, kind: str, nth: int = 0) -> str:
        """Return an entry as the page shows it."""
        return wrap(mask(self.raw[self.seq(kind, nth)]))

    def body(self, kind: str, nth: int = 0) -> Any:
        """Return the body of an entry."""
        return self.bodies[self.seq(kind, nth)]


async def page(work: Path) -> str:
    """Run the line on the two events in the empty folder `work`; return the page."""
    mailbox = work / "one"
    (mailbox / "new").mkdir(parents=True)
    shutil.copy(ROOT / "samples/mailbox/new" / MESSAGE, mailbox / "new")
    clock = ManualClock(NOW_US)
    with receiver(work / "receiver.jsonl") as hook:
        targets = {
            "mailbox": {
                "kind": "maildir",
                "path": str(work / "mailbox"),
                "address": "desk@harbourlights.example",
            },
            "oncall": {"kind": "webhook", "url": hook},
            "board": {"kind": "board", "path": str(work / "board.db")},
            "week": {"kind": "folder", "path": str(work / "week")},
        }
        async with FleetHarness(work / "fleet", clock=clock, targets=targets) as fleet:
            source = MaildirSource("sample", work / "mailbox", clock=clock, copy_from=mailbox)
            await source.deliver(fleet.app.intake)
            await fleet.wait_until_idle()
            mail = read_story(fleet, 'agent="inbox_triage"')
            note = checkpoint(fleet)
            rows = await series(fleet, clock)
            incident = read_story(fleet, "incident.open")
            if incident.body("event.accepted")["id"] != ALARM:
                raise ValueError(f"ALARM is {incident.body('event.accepted')['id']} now")
            row = fleet.app.store.runs.row("incidents", SERIES)
    calls = [json.loads(line) for line in (work / "receiver.jsonl").read_text().splitlines()]
    outbox = len(list((work / "mailbox" / ".Outbox").rglob("*.*")))
    mail_paths = sorted(
        p.relative_to(work / "mailbox") for p in (work / "mailbox").rglob("*harbour*")
    )
    return "\n".join(
        (
            mail_part(mail, note, str(mail_paths[0]), outbox),
            incident_part(incident, dict(row or {}), calls, rows),
            reflow(REST),
        )
    )


async def series(fleet: FleetHarness, clock: ManualClock) -> int:
    """Hand over the series; return how many rows it has.

    The alarm alone, so that the place in the ledger of what its run wrote is always the same: a
    batch becomes durable in parts, a call takes its time, and other rows go on meanwhile.
    """
    rows = ListIntake()
    csv = CsvSource("series", str(ROOT / f"samples/metrics/{SERIES}.csv"), clock)
    await csv.deliver(rows)
    at = next(at for at, event in enumerate(rows.events) if event.id == ALARM)
    for part in (rows.events[:at], rows.events[at : at + 1], rows.events[at + 1 :]):
        await fleet.app.intake.accept(part)
        await fleet.wait_until_idle(60)
    return len(rows.events)


def read_story(fleet: FleetHarness, what: str) -> Story:
    """Collect the first run that decided about a tool (or the only one of an agent)."""
    walked = [(seq, bytes(raw)) for seq, raw, _, _ in fleet.app.store.ledger.walk()]
    parsed = {seq: json.loads(raw) for seq, raw in walked}
    decided = [e for e in parsed.values() if e["kind"] == "action.decided"]
    first = next(e for e in decided if e["tool"] == what or f'agent="{e["agent"]}"' == what)
    story = Story(first["run"])
    for seq, raw in walked:
        entry = parsed[seq]
        mine = entry.get("run") == story.run or (
            entry["kind"] == "event.accepted" and entry.get("event") == first["event"]
        )
        read = entry["kind"] == "recall.decided" and entry.get("run") == story.run
        if mine or read:
            story.entries.append(entry)
            story.raw[seq] = raw.decode()
            if "body" in entry:
                story.bodies[seq] = fleet.body(seq)
    return story


def checkpoint(fleet: FleetHarness) -> str:
    """Return what the last checkpoint that the witness saw says, without what is random in it."""
    text = (fleet.folder / "state" / "witness.log").read_text(encoding="utf-8")
    origin, size, _root = text.strip().rsplit("\n\n", 1)[0].splitlines()[-3:]
    return f"`{origin}`, {size} entries, the root, the signature"


# --- the page --------------------------------------------------------------------------------


def mail_part(story: Story, note: str, mail_path: str, outbox: int) -> str:
    """Return the first part: the mail that is filed and not forwarded."""
    event = story.body("event.accepted")
    turn = story.body("turn.reasoned")
    permit, deny = story.body("action.decided"), story.body("action.decided", 1)
    permitted, forward = permit["question"], deny["question"]
    detail = turn["detail"]
    return reflow(
        MAIL,
        message=MESSAGE,
        run=story.run,
        event=compact({**event, "data": cut(event["data"])}),
        accepted=story.line("event.accepted"),
        recalled=story.line("recall.decided"),
        reasoned=story.line("turn.reasoned"),
        memories=", ".join(f"`{cite}`" for cite in dict.fromkeys(turn["memories"])),
        label=turn["label"],
        confidence=mask(turn["confidence"]),
        nearest=detail["nearest"][0]["id"],
        words=detail["requests"][0]["words"],
        proposals="\n".join(compact(proposal) for proposal in turn["proposals"]),
        question=members(permitted),
        decision=compact(permit["decision"]),
        permitted=story.line("action.decided"),
        args=compact(forward["action"]["args"]),
        origins=compact(forward["action"]["origins"]),
        denial=compact(deny["decision"]),
        denied=story.line("action.decided", 1),
        intended=story.line("effect.intended"),
        done=story.line("effect.done"),
        outcome=compact(story.body("effect.done")),
        path=mail_path,
        outbox=f"{outbox or 'no'} mails",
        closed=story.line("run.closed"),
        note=note,
    )


def incident_part(story: Story, row: dict[str, Any], calls: list[dict[str, Any]], rows: int) -> str:
    """Return the second part: the incident that is opened and sent to whoever is on call."""
    event, turn = story.body("event.accepted"), story.body("turn.reasoned")
    transactional = story.body("effect.done")["data"]["rows"][0]
    key = next(e["effect_key"] for e in story.entries if e["kind"] == "effect.intended")
    call = next(call for call in calls if call["key"] == key)
    return reflow(
        INCIDENT,
        series=SERIES,
        rows=f"{rows:,}",
        run=story.run,
        event=compact(event),
        why=turn["proposals"][0]["why"],
        confidence=mask(turn["confidence"]),
        reasoned=story.line("turn.reasoned"),
        opened=story.line("action.decided"),
        written=story.line("effect.done"),
        row=compact(transactional),
        done=story.line("effect.done", 1),
        call=compact({name: call[name] for name in ("key", "effect") if name in call}),
        state=row["state"],
        closed_at=row["closed_at"],
    )


def cut(data: dict[str, Any]) -> dict[str, Any]:
    """Return a mail's data with what is empty left out and its text cut."""
    part = {name: value for name, value in data.items() if value not in (None, [], False, "")}
    part["facts"] = {name: value for name, value in part["facts"].items() if value != 0}
    part["text"] = part["text"][:62] + "…"
    return part


def compact(value: Any) -> str:
    """Return JSON on as few lines as fit."""
    return wrap(mask(dumps(value)))


def dumps(value: Any) -> str:
    """Return JSON on one line, its keys in order."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def members(value: dict[str, Any]) -> str:
    """Return a JSON object with each of its members on lines of its own."""
    parts = [wrap(f'"{name}": {mask(dumps(item))}') for name, item in sorted(value.items())]
    return "{" + ",\n".join(parts) + "}"


def reflow(text: str, **filled: str) -> str:
    """Fill in a text and break its prose; boxes, headings and comments stay as they are."""
    blocks = []
    for block in text.format(**filled).strip().split("\n\n"):
        prose = not block.startswith(("```", "#", "<!--"))
        if prose:
            block = textwrap.fill(block, WIDTH, break_long_words=False, break_on_hyphens=False)
        blocks.append(block)
    return "\n\n".join(blocks) + "\n"


def mask(text: str) -> str:
    """Cut what differs each time or from machine to machine."""
    return _FRACTION.sub(r"\1…", _STATE.sub(r'\1…"', _DIGEST.sub("…", text)))


def wrap(line: str) -> str:
    """Break a line after commas, so that it fits the page."""
    lines, present = [], ""
    for part in re.split(r"(?<=,)", line):
        if present and len(present) + len(part) > WIDTH:
            lines.append(present.rstrip())
            present = "  "
            part = part.lstrip()
        present += part
    return "\n".join([*lines, present])


def main(arguments: list[str]) -> int:
    """Write or print the page."""
    with tempfile.TemporaryDirectory(prefix="vedette-one-event-") as folder:
        text = asyncio.run(page(Path(folder)))
    if "--print" in arguments:
        sys.stdout.write(text)
    else:
        PAGE.write_text(text, encoding="utf-8")
        print(f"{PAGE.relative_to(ROOT)}: {len(text.splitlines())} lines")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
