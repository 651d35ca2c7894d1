"""Trajectory: what the entries of one task's run come to, in order (docs/design/trajectory.md).

A projection and no second truth: everything follows from entries that were written for other
reasons. Each count is made at an entry, so a day is the counts at its end less those at its
beginning; a wait is counted where it ends.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from typing import Any

from msgspec import Struct, field

from vedette.domain.ports.ledger_reader import EntryWithBody, LedgerReader
from vedette.domain.task_item import ITEM_STATES
from vedette.domain.task_words import (
    ADDED,
    CANCELLED,
    PAUSED,
    RESUMED,
    REVISED,
    STALLED,
    STEERED,
    TASK_KINDS,
)
from vedette.domain.work_tools import (
    ADD_ITEM_TOOL,
    CLOSE_ITEM_TOOL,
    FINISH_TOOL,
    PLAN_TOOL,
    WORK_TOOLS,
)
from vedette.ledger.history.entry_view import (
    AnswerEntry,
    DecisionEntry,
    EffectEntry,
    EntryView,
    JudgementEntry,
    WithdrawalEntry,
    read_entry,
)

_PAGE = 500  # entries of a run that are read at once
_HAND_OFF = "hand-off"
REPEATED = "repeated-proposal"
_PERSON = "person"
_WORDS = {
    STALLED: "stalls", PAUSED: "pauses", RESUMED: "resumes", STEERED: "steers", ADDED: "additions",
    REVISED: "revisions",
}  # fmt: skip

# What is counted: a name of what, and which of it ("" where there is but one).
Counts = Counter[tuple[str, str]]


class ItemCourse(Struct):
    """What was done for one item; `item` is it as its last action left it, `turns` worked on it."""

    item: Mapping[str, Any]
    turns: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    spend: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        """Return it as commands print it."""
        names = ("id", "title", "state", "why", "phase")
        return {
            **{name: self.item[name] for name in names if name in self.item},
            "attempts": self.turns,
            **{name: self.counts[name] for name in ("done", "failed", "refused", "repeated")},
            "recovered": self.item["state"] == "done" and bool(self.counts["failed"]),
            "spend": dict(self.spend),
        }


class Trajectory(Struct):
    """The trajectory of one run, fed with its entries in order, and with the fleet's starts.

    Of a run that is no task it says so (`is_task`). `state` is open, done, cancelled or dead;
    `waits` has what a person is waited for, with since when; `course` what happened beside turns;
    `closed_items` what its end says of its items: done, of how many.
    """

    run: str
    agent: str = ""
    is_task: bool = False
    state: str = "open"
    began_us: int = 0
    last_us: int = 0
    turn: int = 0
    counts: Counts = field(default_factory=Counter)
    conditions: list[Mapping[str, Any]] = field(default_factory=list)
    drifts: list[dict[str, Any]] = field(default_factory=list)
    course: list[dict[str, Any]] = field(default_factory=list)
    waits: dict[str, int] = field(default_factory=dict)
    is_finished: bool = False
    closed_items: tuple[int, int] | None = None
    _items: dict[str, ItemCourse] = field(default_factory=dict)
    _item_of: dict[int, str | None] = field(default_factory=dict)
    _turn_of: dict[str, int] = field(default_factory=dict)
    _digest_of: dict[str, str] = field(default_factory=dict)
    _by_people: set[str] = field(default_factory=set)
    _unknown: set[str] = field(default_factory=set)
    _failed: set[str] = field(default_factory=set)
    _booked: dict[int, tuple[int, Mapping[str, int]]] = field(default_factory=dict)
    _spent: dict[int, Counter[str]] = field(default_factory=dict)
    _tally: dict[int, Counter[str]] = field(default_factory=dict)
    _waits_since: int = 0

    def add_raw(self, seq: int, raw: bytes, data: bytes | None) -> None:
        """Take the next entry as the ledger has it; one that is damaged is counted, and no more."""
        try:
            self.add_entry(read_entry(seq, raw, data))
        except (ValueError, KeyError):
            self.counts["unreadable", ""] += 1

    def add_entry(self, entry: EntryView) -> None:
        """Take the next entry: of its run, or of a runner that took the store."""
        kind, at = entry.kind, int(entry.at or 0)
        if kind == "store.opened":
            if self.began_us and self.state == "open" and entry.get("what") != "visit":
                self.counts["starts", ""] += 1
                self._note(entry, "start")
            return
        self.began_us = self.began_us or at
        self.agent, self.last_us = self.agent or str(entry.agent or ""), at
        if isinstance(entry, JudgementEntry) and kind == "turn.reasoned":
            self._add_turn(entry)
        elif isinstance(entry, DecisionEntry):
            self._add_decision(entry)
        elif isinstance(entry, WithdrawalEntry) and kind == "action.refused":
            self._add_refusal(entry)
        elif isinstance(entry, AnswerEntry):
            self._stop_waiting(str(entry.action), at)
            self._note(entry, entry.answer, tool=entry.tool, by=entry.actor)
        elif isinstance(entry, EffectEntry):
            self._add_effect(entry)
        elif kind == "budget.reserved":
            self._booked[entry.seq] = (int(entry.get("turn") or 0), entry.get("spend") or {})
        elif kind == "budget.settled":
            self._add_settlement(entry)
        elif kind == "task.drift":
            self._add_drift(entry)
        elif kind in _WORDS or kind == CANCELLED:
            self._add_word(entry)
        elif kind in ("run.closed", "run.dead", "run.dropped", "run.redriven"):
            self._add_end(entry)

    # --- what happened ------------------------------------------------------------------------

    def _add_turn(self, entry: JudgementEntry) -> None:
        self.turn = int(entry.turn or 0)
        self.counts["turns", ""] += 1
        self.counts["begun", ""] += self.turn == 1
        self.is_task = self.is_task or shows_task(entry)
        told: Mapping[str, Any] | None = entry.content("task")
        if told is not None:
            self.conditions = list(told["conditions"])
            self._item_of[self.turn] = told["item"]
        hand_off = (entry.content("briefed") or {}).get("hand_off")
        if (entry.content("model") or {}).get("opens") == _HAND_OFF and hand_off:
            by = str(hand_off.get("by", "engine"))
            self.counts["hand_offs", by] += 1
            self._note(entry, "hand-off", by=by, why=hand_off.get("why"))

    def _add_decision(self, entry: DecisionEntry) -> None:
        action, at = str(entry.action), int(entry.at or 0)
        if action not in self._turn_of:
            self._turn_of[action] = int(entry.get("turn") or self.turn)
            self.counts["actions", ""] += 1
        self._digest_of[action] = f"{entry.tool} {entry.digest}"
        if entry.requested_action.get("settles") == "none":
            self._by_people.add(action)
        if entry.needs_approval:
            self.counts["holds", ""] += action not in self.waits
            self._wait(action, at)
            self._note(entry, "hold", tool=entry.tool)
        else:
            self._stop_waiting(action, at)
        if entry.outcome == "deny":
            self.counts["refused", str(entry.rule)] += 1
            self._tally_of(action)["refused"] += 1
        if entry.tool == FINISH_TOOL:
            found = (entry.context.get("task") or {}).get("conditions")
            if found is not None:
                by_name = {one["name"]: one for one in found}
                self.conditions = [by_name.get(one["name"], one) for one in self.conditions]

    def _add_refusal(self, entry: WithdrawalEntry) -> None:
        if entry.action is not None:  # what was decided, and is denied as it stands by now
            self.counts["refused", entry.rule] += 1
            self._stop_waiting(str(entry.action), int(entry.at or 0))
            return
        code, turn = str(entry.get("what") or "no-action"), int(entry.turn or self.turn)
        tally = self._tally.setdefault(turn, Counter())
        if code == REPEATED:
            self.counts["repeated", ""] += 1
            tally["repeated"] += 1
        else:
            self.counts["refused", code] += 1
            tally["refused"] += 1

    def _add_effect(self, entry: EffectEntry) -> None:
        action, at, state = str(entry.action), int(entry.at or 0), entry.change
        tally, digest = self._tally_of(action), self._digest_of.get(action, action)
        if state in ("done", "failed", "unknown"):
            self.counts["effects", state] += 1
        if state == "unknown":
            self._unknown.add(action)
            if action in self._by_people:
                self._wait(action, at)
                self._note(entry, "unknown", tool=entry.tool)
        else:
            self._stop_waiting(action, at)
        if state == "done":
            if action in self._unknown or digest in self._failed:
                self.counts["recovered", "effects"] += 1
            self._unknown.discard(action)
            self._failed.discard(digest)
            self._take_item(entry)
        elif state == "failed":
            self._failed.add(digest)
        if entry.tool in WORK_TOOLS:
            return  # what keeps the list is no work on an item
        if state == "done":
            tally["done"] += 1
        elif state in ("failed", "unknown"):
            tally["failed"] += 1
            if (item := self._item_of_turn(self._turn_of.get(action, self.turn))) is not None:
                item.counts["failed"] += 1

    def _take_item(self, entry: EffectEntry) -> None:
        """Take what an item's tool answered; a finish ends what the task is to do.

        What was erased of it has no name, and is counted as far as the entry tells.
        """
        self.is_finished = self.is_finished or entry.tool == FINISH_TOOL
        data = entry.data or {}
        if entry.tool == PLAN_TOOL:
            self.counts["plans", data.get("plan", {}).get("trigger", "")] += 1
        for item in data.get("items", [data.get("item")]):
            self._take_item_state(entry.tool, item)

    def _take_item_state(self, tool: str | None, item: Mapping[str, Any] | None) -> None:
        is_new = tool == ADD_ITEM_TOOL
        if tool == PLAN_TOOL and item is not None:
            is_new = item["id"] not in self._items
        if is_new:
            self.counts["items", "added"] += 1
            if item is not None:
                self._items[item["id"]] = ItemCourse(item)
        elif tool in (CLOSE_ITEM_TOOL, PLAN_TOOL) and item is not None:
            known = self._items.setdefault(item["id"], ItemCourse(item))
            known.item = item
            if item["state"] != "open":
                self.counts["items", item["state"]] += 1
            if item["state"] == "done" and known.counts["failed"]:
                self.counts["recovered", "items"] += 1

    def _add_settlement(self, entry: EntryView) -> None:
        turn, spend = int(entry.get("turn") or 0), entry.get("spend") or {}
        self._booked.pop(int(entry.get("cause") or 0), None)
        self._spent.setdefault(turn, Counter()).update(spend)
        for unit, amount in spend.items():
            self.counts["spend", unit] += amount

    def _add_drift(self, entry: EntryView) -> None:
        self.is_task = True
        rule, turn = str(entry.get("rule")), int(entry.get("turn") or self.turn)
        self.counts["drifts", rule] += 1
        at = {"seq": entry.seq, "at": entry.at, "turn": turn}
        what = {"memory": entry.get("what")} if entry.get("memory") is not None else {}
        self.drifts.append({**at, "rule": rule, **what, "text": entry.content("text")})
        self._note(entry, "drift", rule=rule)

    def _add_word(self, entry: EntryView) -> None:
        self.is_task = True
        kind, at = entry.kind, int(entry.at or 0)
        if kind in _WORDS:
            self.counts[_WORDS[kind], ""] += 1
        if kind in (STALLED, PAUSED):
            self._wait(_PERSON, at)
        elif kind == CANCELLED:
            self._stop_all(at)
        else:
            self._stop_waiting(_PERSON, at)
        if kind == ADDED:
            self._take_item_state(ADD_ITEM_TOOL, entry.content("item"))
        why = entry.content("note") or entry.content("why") or entry.content("reason")
        self._note(entry, kind.partition(".")[2], by=entry.actor, why=why)

    def _add_end(self, entry: EntryView) -> None:
        kind = entry.kind
        self.is_task = self.is_task or entry.get("items") is not None
        if kind == "run.redriven":
            self.state = "open"
        elif kind == "run.closed":
            self.state = "cancelled" if entry.get("what") == "cancelled" else "done"
            if self.is_task:
                self.closed_items = (
                    int(entry.get("items_done") or 0),
                    int(entry.get("items") or 0),
                )
        else:
            self.state = "dead"
        self._stop_all(int(entry.at or 0))
        self._note(entry, "redriven" if kind == "run.redriven" else self.state)

    def _note(self, entry: EntryView, what: str, **more: Any) -> None:
        known = {name: value for name, value in more.items() if value}
        self.course.append({"at": entry.at, "turn": self.turn, "what": what, **known})

    # --- whom it waits for ----------------------------------------------------------------------

    def _wait(self, what: str, at_us: int) -> None:
        self._waits_since = self._waits_since if self.waits else at_us
        self.waits.setdefault(what, at_us)

    def _stop_waiting(self, what: str, at_us: int) -> None:
        if self.waits.pop(what, None) is not None and not self.waits:
            self.counts["waited_us", ""] += max(0, at_us - self._waits_since)

    def _stop_all(self, at_us: int) -> None:
        for what in [*self.waits]:
            self._stop_waiting(what, at_us)

    # --- what it comes to ------------------------------------------------------------------------

    def booked(self) -> dict[str, int]:
        """Return what is booked for turns and was never settled, by unit."""
        found: Counter[str] = Counter()
        for _, spend in self._booked.values():
            found.update(spend)
        return dict(found)

    def items(self) -> list[ItemCourse]:
        """Return its items in the order in which they were added, with what their turns cost."""
        courses = {id: ItemCourse(one.item) for id, one in self._items.items()}
        for turn, item in self._item_of.items():
            course = courses.get(item or "")
            if course is not None:
                course.turns += 1
                course.counts.update(self._tally.get(turn, {}))
                course.spend.update(self._spent.get(turn, {}))
        return list(courses.values())

    def other_spend(self) -> dict[str, int]:
        """Return what was spent in turns that worked on no item."""
        found: Counter[str] = Counter()
        for turn, spend in self._spent.items():
            if (self._item_of.get(turn) or "") not in self._items:
                found.update(spend)
        return dict(found)

    def met(self) -> list[str]:
        """Return the names of the conditions that are met; by a permitted finish, all are."""
        return [one["name"] for one in self.conditions if self.is_finished or one["held"]]

    def credit(self) -> dict[str, Any]:
        """Return the partial credit: items done, conditions met, by phase, thousandths of all."""
        items = [one.item for one in self._items.values()]
        done, item_count = sum(item["state"] == "done" for item in items), len(items)
        if self.closed_items is not None:  # which is known of what was erased, too
            done, item_count = self.closed_items
        met = len(self.met())
        of = item_count + len(self.conditions)
        phases: dict[str, dict[str, int]] = {}
        for item in items:
            if "phase" in item:
                phase = phases.setdefault(str(item["phase"]), {"done": 0, "of": 0})
                phase["of"] += 1
                phase["done"] += item["state"] == "done"
        return {
            "items": {"done": done, "of": item_count},
            "conditions": {"met": met, "of": len(self.conditions)},
            "phases": phases,
            "credit_milli": (done + met) * 1000 // of if of else 0,
        }

    def to_json(self) -> dict[str, Any]:
        """Return all of it, as `work show --trajectory` prints it."""
        return {
            **counts_json(self.counts),
            "booked": self.booked(),
            "credit": self.credit(),
            "item_list": [one.to_json() for one in self.items()],
            "other_spend": self.other_spend(),
            "drift_list": self.drifts,
            "waits_for": [{"what": what, "since": at} for what, at in self.waits.items()],
            "course": self.course,
        }

    def _tally_of(self, action: str) -> Counter[str]:
        return self._tally.setdefault(self._turn_of.get(action, self.turn), Counter())

    def _item_of_turn(self, turn: int) -> ItemCourse | None:
        return self._items.get(self._item_of.get(turn) or "")


def counts_json(counts: Counts) -> dict[str, Any]:
    """Return counts as reports and commands print them; `waited_us` are microseconds."""

    def one(name: str) -> int:
        return counts[name, ""]

    def by(name: str) -> dict[str, int]:
        return {word: n for (what, word), n in sorted(counts.items()) if what == name and n}

    return {
        "turns": one("turns"),
        "actions": one("actions"),
        "effects": {word: counts["effects", word] for word in ("done", "failed", "unknown")},
        "repeated": one("repeated"),
        "hand_offs": {word: counts["hand_offs", word] for word in ("model", "engine")},
        "drifts": by("drifts"),
        "refused": by("refused"),
        "recovered": {word: counts["recovered", word] for word in ("items", "effects")},
        "starts": one("starts"),
        "unreadable": one("unreadable"),
        "interrupts": {name: one(name) for name in ("holds", *_WORDS.values())},
        "waited_us": one("waited_us"),
        "items": {word: counts["items", word] for word in ("added", *ITEM_STATES[1:])},
        "plans": by("plans"),
        "spend": by("spend"),
    }


def shows_task(entry: EntryView) -> bool:
    """Say whether an entry of a run tells by itself, and though its body is erased, that the run is
    a task.
    """
    return entry.kind in TASK_KINDS or entry.kind == "task.drift" or entry.get("items") is not None


def read_starts(record: LedgerReader) -> list[EntryWithBody]:
    """Return the entries of runners that took the store, oldest first."""
    return [(seq, raw, data) for seq, raw, _, data in record.walk(("store.opened",))]


def run_entries(
    record: LedgerReader, run: str, starts: Sequence[EntryWithBody]
) -> Iterator[EntryWithBody]:
    """Yield the entries of a run and the fleet's starts since, in the order of the ledger."""
    own = _read_pages(record, run)
    for first in own:
        yield first
        since = bisect(starts, first[0], key=_seq)
        yield from merge(own, starts[since:], key=_seq)


def _seq(entry: EntryWithBody) -> int:
    return entry[0]


def _read_pages(record: LedgerReader, run: str) -> Iterator[EntryWithBody]:
    page = record.entries("run", run, _PAGE)
    while page:
        yield from page
        page = record.entries("run", run, _PAGE, page[-1][0]) if len(page) == _PAGE else []


def read_trajectory(record: LedgerReader, run: str) -> Trajectory:
    """Return the trajectory of a run as far as it is recorded."""
    found = Trajectory(run)
    for entry in run_entries(record, run, read_starts(record)):
        found.add_raw(*entry)
    return found
