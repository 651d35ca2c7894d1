"""Reconstruction: what every agent did in a stretch of time, from the ledger alone.

Nothing is read but entries and their bodies: no table of present state, no cache, no memory of a
process. So an exported ledger tells the same as the store it came from. An intent whose end the
ledger does not know is flagged as open and never guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import orjson
from msgspec import Struct, field

from vedette.domain.base.canonical import SALT_BYTES, salted_digest
from vedette.domain.ports.ledger_reader import EntryLog, RawEntry
from vedette.ledger.history.action import ActionHistory, Finding, effect_states, finding
from vedette.ledger.history.entry_view import AcceptanceEntry, AnswerEntry, EntryView, build_view
from vedette.ledger.history.time_window import (
    Window,
    earlier_entries,
    find_window,
    parse_fields,
    runs_before,
)

RECONSTRUCTION = "vedette.reconstruct/1"

# What of an entry a timeline has no use for.
_OMITTED_FIELDS = frozenset(
    {"v", "seq", "at", "kind", "body", "about", "agent", "n", "engine", "effect_key"}
)


class AgentTimeline(Struct):
    """What one agent did: its runs, and every entry of the window about it, oldest first."""

    name: str
    identity: str | None = None
    releases: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    items: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {
            "agent": self.name,
            "identity": self.identity,
            "releases": self.releases,
            "counts": dict(sorted(self.counts.items())),
            "items": self.items,
        }


class Reconstruction(Struct):
    """The fleet's work in a window, rebuilt from the ledger; `intents` are histories by action id.

    `events` are those that the window's runs belong to. `truncated_runs` are runs whose beginning
    is not in the record (it was archived): what is told of them is not complete.
    """

    window: Window
    agents: dict[str, AgentTimeline] = field(default_factory=dict)
    fleet: list[dict[str, Any]] = field(default_factory=list)
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    intents: dict[str, ActionHistory] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    truncated_runs: set[str] = field(default_factory=set)
    last: int = 0

    @property
    def open_intents(self) -> list[ActionHistory]:
        """Return the intents whose end is not known, in order."""
        return [intent for intent in self.intents.values() if intent.is_open]

    @property
    def ok(self) -> bool:
        """Say whether the entries agree with each other."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """Return all of it as `--json` prints it."""
        return {
            "schema": RECONSTRUCTION,
            "from": self.window.since_us,
            "to": self.window.until_us,
            "first": self.window.first,
            "last": self.last,
            "ok": self.ok,
            "agents": [self.agents[name].to_json() for name in sorted(self.agents)],
            "fleet": self.fleet,
            "events": self.events,
            "intents": [_intent(intent) for intent in self.intents.values()],
            "open": [intent.id for intent in self.open_intents],
            "cut": sorted(self.truncated_runs),
            "findings": self.findings,
        }


def reconstruct(
    record: EntryLog, since_us: int, until_us: int, agents: Iterable[str] = ()
) -> Reconstruction:
    """Rebuild every agent's timeline from `since_us` until before `until_us` (microseconds, UTC).

    What began earlier is told from its beginning where it is an intent; timelines hold the window
    alone. With `agents` only these. Memory grows with the entries of the window.
    """
    part = find_window(record, since_us, until_us)
    result = Reconstruction(part)
    only = frozenset(agents)
    fold = _Builder(result, only)
    before = runs_before(record, part) if part.first > 1 else {}
    for walked in earlier_entries(record, part, before):
        fold.add_entry(walked, inside=False)
    last = 0
    for walked in part.walk(record):
        if last and walked[0] != last + 1:
            what = f"entries {last + 1} to {walked[0] - 1} are missing"
            result.findings.append(finding("missing", walked[0], what))
        last = walked[0]
        fold.add_entry(walked, inside=True)
    result.last = last
    fold.finish(_erased_digests(record))
    return result


def _erased_digests(record: EntryLog) -> frozenset[str]:
    """Return the digests of all bodies that were erased on purpose."""
    named = (parse_fields(raw).get("erased") for _, raw, _, _ in record.walk(("body.erased",)))
    return frozenset(digest for digests in named for digest in digests or ())


class _Builder:
    """Takes entries in order, first what came before the window, then the window."""

    def __init__(self, result: Reconstruction, only: frozenset[str]) -> None:
        self.result, self.agents = result, only
        self._run_numbers: dict[str, int] = {}
        self._has_bodies = False
        self._missing_bodies: list[tuple[int, str]] = []

    def add_entry(self, walked: RawEntry, *, inside: bool) -> None:
        """Take the next entry."""
        entry = self._read_entry(walked)
        if entry is None:
            return
        agent, run = entry.agent, entry.run
        if self.agents and agent is not None and agent not in self.agents:
            return
        if run is not None:
            self._check_place(entry, str(run))
        if isinstance(entry, AcceptanceEntry):
            self._event(entry)
        item = _item(entry)
        if agent is not None and inside:
            self._add_to_timeline(entry, str(agent), item)
        elif agent is None and inside and not isinstance(entry, AcceptanceEntry):
            self.result.fleet.append(item)
        if entry.action is not None and agent is not None:
            self._add_to_intent(entry, str(agent), item)

    def finish(self, erased: frozenset[str]) -> None:
        """Finish. What is said of runs without a beginning is no finding, nor is erased content.

        A record without any bodies (an export of entries alone) lacks none.
        """
        result = self.result
        cut = {i.id for i in result.intents.values() if i.run in result.truncated_runs}
        result.findings = [f for f in result.findings if f.get("action") not in cut]
        result.findings += [
            finding("body", seq, f"the body of entry {seq} is missing and nobody erased it")
            for seq, digest in self._missing_bodies
            if self._has_bodies and digest not in erased
        ]
        result.findings.sort(key=lambda found: int(found["seq"]))

    def _read_entry(self, walked: RawEntry) -> EntryView | None:
        """Read an entry; a body that is not the one it names is left aside."""
        seq, raw, salt, data = walked
        fields = parse_fields(raw)
        if not fields:
            what = f"entry {seq} cannot be read"
            self.result.findings.append(finding("entry", seq, what))
            return None
        named = fields.get("body")
        entry = build_view(seq, fields, None, erased=named is not None)
        if data is None:
            if named is not None:
                self._missing_bodies.append((seq, str(named)))
            return entry
        self._has_bodies = True
        # (Without a salt it came by an index from the store, for what lies before the window.)
        if salt is not None and (len(salt) != SALT_BYTES or salted_digest(salt, data) != named):
            what = f"the body of entry {seq} is not the one that the entry names"
            self.result.findings.append(finding("body", seq, what))
            return entry
        try:
            return build_view(seq, fields, orjson.loads(data), erased=False) if named else entry
        except ValueError:
            self.result.findings.append(finding("body", seq, f"the body of entry {seq} is no JSON"))
            return entry

    def _check_place(self, entry: EntryView, run: str) -> None:
        number, last = int(entry.get("n") or 0), self._run_numbers.get(run, 0)
        if last == 0 and number > 1:
            self.result.truncated_runs.add(run)
        elif number != last + 1:
            what = f"{run} goes from its entry {last} to its entry {number}"
            self.result.findings.append(finding("gap", entry.seq, what))
        self._run_numbers[run] = number

    def _event(self, entry: AcceptanceEntry) -> None:
        names = ("type", "source", "id", "subject", "time")
        event = {"seq": entry.seq, "at": entry.at, "erased": entry.erased}
        self.result.events[str(entry.event)] = event | {name: entry.content(name) for name in names}

    def _add_to_timeline(self, entry: EntryView, name: str, item: dict[str, Any]) -> None:
        agent = self.result.agents.get(name)
        if agent is None:
            agent = self.result.agents[name] = AgentTimeline(name)
        release, outcome = entry.get("release"), entry.get("outcome")
        if release is not None and release not in agent.releases:
            agent.releases.append(str(release))
        agent.counts[entry.kind if outcome is None else f"{entry.kind}.{outcome}"] += 1
        if entry.kind == "run.closed" and entry.get("n") == 1:
            agent.counts["quiet"] += 1
        agent.items.append(item)

    def _add_to_intent(self, entry: EntryView, agent: str, item: dict[str, Any]) -> None:
        id = str(entry.action)
        intent = self.result.intents.get(id) or ActionHistory.start(entry)
        self.result.findings += [{**found, "action": id} for found in intent.faults(entry)]
        intent = self.result.intents[id] = intent.with_entry(entry.without_content(item))
        owner = self.result.agents.get(agent)
        if owner is not None and owner.identity is None:
            owner.identity = intent.identity


def _item(entry: EntryView) -> dict[str, Any]:
    """Return an entry as an item of a timeline: without content, which `explain` shows."""
    fields = {name: value for name, value in entry.entry.items() if name not in _OMITTED_FIELDS}
    return {"seq": entry.seq, "at": entry.get("at"), "kind": entry.kind, **fields}


def _intent(action: ActionHistory) -> dict[str, Any]:
    """Return an intent as `--json` prints it."""
    last, readable, approval = action.decision, action.readable_decision, action.approval
    return {
        "id": action.id,
        "key": action.key,
        "run": action.run,
        "agent": action.agent,
        "event": action.event,
        "tool": action.tool,
        "turn": readable and readable.context.get("turn"),
        "digest": action.digest,
        "identity": action.identity,
        "release": last and last.release,
        "trigger": readable and readable.context.get("event"),
        "origins": action.origins,
        "settles": action.settles,
        "outcome": action.outcome,
        "rule": action.rule,
        "revision": last and last.revision,
        "bundle": last and last.bundle,
        "approval": approval and _answer(approval),
        "plan": action.plan,
        "state": action.state,
        "open": action.is_open,
        "erased": action.erased,
        "lacks": action.missing_fields,
        "decisions": [
            {
                "seq": one.seq,
                "at": one.at,
                "outcome": one.outcome,
                "rule": one.rule,
                "revision": one.revision,
                "bundle": one.bundle,
                "wait": one.wait,
                "would": one.would,
            }
            for one in action.decisions
        ],
        "answers": [_answer(one) for one in action.answers],
        "states": effect_states(action),
    }


def _answer(one: AnswerEntry) -> dict[str, Any]:
    return {
        "seq": one.seq,
        "at": one.at,
        "answer": one.answer,
        "by": one.actor,
        "reason": one.reason,
    }
