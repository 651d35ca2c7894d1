"""Report: one page about a stretch of time, for the person who answers for the fleet.

What changed, what went wrong, what was spent, which rules never spoke, how often people were
asked, and a few permitted actions drawn at random to look at by hand. Everything is counted from
the ledger's entries; the rules come from the bundle that was live at the end.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from vedette.domain.base.clock import instant_before, iso
from vedette.domain.ports.ledger_reader import EntryLog
from vedette.domain.ports.store import StoreReader
from vedette.ledger.history.approval_times import AnswerTimes
from vedette.ledger.history.counts import ReportCounts, rules_of
from vedette.ledger.history.entry_view import read_entry
from vedette.ledger.history.observe_mode import ObserveModeCounts
from vedette.ledger.history.review import about_run
from vedette.ledger.history.sample import Sample
from vedette.ledger.history.task_counts import TaskCounts
from vedette.ledger.history.time_window import find_window, parse_fields
from vedette.ledger.history.wakeups import WakeupCounts

REPORT = "vedette.report/1"
SAMPLED = 20

_ACCEPTED = b'"kind":"event.accepted"'
_CAUSE = b'"cause":'  # of accepted events undos alone have one


def report(
    record: StoreReader,
    since_us: int,
    until_us: int,
    seed: str | None = None,
    agent: str | None = None,
) -> dict[str, Any]:
    """Return the report on the entries from `since_us` until before `until_us` (microseconds, UTC).

    The actions to check are drawn by `seed`; the default is the fleet's name and the last day, so
    that whoever makes the same report again is shown the same ones. With `agent` the section on
    what agents would have done is that agent's, whether a mode held it back or not. How often an
    open effect was tried, and its next try, are those of now.
    """
    part = find_window(record.ledger, since_us, until_us)
    fleet = str(record.meta("fleet") or "")
    seed = seed or f"{fleet} {iso(instant_before(until_us, 1))[:10]}"
    tally = ReportCounts(Sample(seed, SAMPLED), record.runs.action)
    would = ObserveModeCounts(part.first, record.ledger.entry)
    answered, wakeups = AnswerTimes(record.ledger.entries), WakeupCounts()
    tasks = TaskCounts(record.ledger, part)
    for seq, raw, _, data in part.walk(record.ledger):
        if _ACCEPTED in raw:
            tally.events += 1
            if _CAUSE not in raw:
                continue
        try:
            entry = read_entry(seq, raw, data)
            if entry.kind != "event.accepted":
                tally.add_entry(entry)
            would.add_entry(entry)
            wakeups.add_entry(entry)
            tasks.add_entry(entry)
            answered.add_entry(entry)
        except (ValueError, KeyError):
            # No entry, or no body. What stands and what does not is for `verify` to say.
            tally.unreadable += 1
    bundle = live_bundle(record.ledger, until_us)
    return {
        "schema": REPORT,
        "fleet": fleet,
        "from": since_us,
        "to": until_us,
        "first": part.first,
        "seed": seed,
        "traffic": tally.traffic(),
        "changed": [*tally.changes, *release_changes(record.ledger, since_us, until_us)],
        "exceptions": tally.exceptions(),
        "budgets": tally.budgets(),
        "wakeups": wakeups.to_json(),
        "tasks": tasks.to_json(),
        "rules": rule_hits(record, bundle, tally.rules),
        "questions": tally.questions(),
        "answered": answered.to_json(),
        "would": would.to_json(agent),
        "sample": [
            {**one, "about": about_run(record, one["run"])} for one in tally.sample.to_json()
        ],
    }


def release_changes(record: EntryLog, since_us: int, until_us: int) -> list[dict[str, Any]]:
    """Return the starts on record at which an agent's release was another, new or gone."""
    before: dict[str, str] | None = None
    changed = []
    for seq, raw, _, _ in record.walk(("fleet.loaded",)):
        entry = parse_fields(raw)
        now: dict[str, str] = entry.get("releases") or {}
        at = int(entry.get("at", 0))
        if before is not None and since_us <= at < until_us and now != before:
            names = sorted(n for n in now.keys() | before.keys() if now.get(n) != before.get(n))
            changed.append({"seq": seq, "at": at, "kind": "fleet.loaded", "agents": names})
        before = now
    return changed


def live_bundle(record: EntryLog, until_us: int) -> str | None:
    """Return the digest of the bundle that was live at the end of a report, as entries tell."""
    live = None
    for _, raw, _, _ in record.walk(("policy.published",)):
        entry = parse_fields(raw)
        if int(entry.get("at", 0)) < until_us:
            live = str(entry.get("bundle"))
    return live


def rule_hits(record: StoreReader, bundle: str | None, hits: Counter[str]) -> dict[str, Any]:
    """Return for the report which rules spoke, how often, and which live ones never did."""
    files = record.policy.bundle_files(bundle) if bundle else None
    known = rules_of(files or {})
    return {
        "bundle": bundle,
        "known": len(known),
        "hit": dict(hits.most_common()),
        "never": sorted(known - hits.keys()),
    }
