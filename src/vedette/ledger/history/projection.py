"""Projection: small tables that are a function of the ledger's entries alone, in their order.

A row has a name, an id, the seq of the entry that changed it last, a number to sort it by that
never changes, and data. A row that says what is open is deleted when it ends, so the tables stay
as small as what is open; what is counted is counted per agent and per minute. Nothing of a body is
kept: a body can be erased.

name     id                    what it says
fleet    (empty)               events accepted, refused and that woke nobody; examples of ids
agent    its name              runs that ended, decisions, holds and effects by state; last at
run      its id                a run that waits for somebody or for room; a dead letter
hold     the action's id       an action that waits, until it is decided
effect   the action's id       an effect of which nobody knows whether it happened
minute   minute|agent          entries by kind and outcome, spend, latencies; for two days
memory   its bank              what was proposed
rollout  live                  the live revision; refusals
stop     scope:name            a stop in force
budget   scope|agent|unit|span alerts and refusals of one limit

A run that goes from its turn to its end without a wait has no row: writing one only to delete it a
moment later would cost more than all the rest. Its state is kept in memory, and made again of its
own entries where it is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vedette.domain.effect import OPEN_STATES, state_after
from vedette.domain.task_words import PAUSED, STALLED, TASK_KINDS
from vedette.domain.work_tools import ENGINE_TOOLS
from vedette.ledger.history.ledger_entry import LedgerEntry

MINUTE_US = 60_000_000
KEEP_MINUTES = 2880
FLEET: Key = ("fleet", "")

State = dict[str, Any]
Key = tuple[str, str]

OPEN_HOLDS = ("open", "approved")


class ProjectionRow:
    """One row of the projection. `stored` says that the tables may have it already."""

    __slots__ = ("data", "sort", "stored", "version")

    def __init__(self, version: int, sort: int, data: State, *, stored: bool = False) -> None:
        self.version, self.sort, self.data, self.stored = version, sort, data, stored


class MinuteCounter:
    """Where the projection counts an agent's entries of one minute."""

    __slots__ = ("agent", "at_us", "counts", "kinds", "minute", "row", "seq")

    def __init__(self, minute: int, agent: ProjectionRow | None, row: ProjectionRow | None) -> None:
        self.minute, self.agent, self.row = minute, agent, row
        self.counts: State = {} if agent is None else agent.data
        self.kinds: State = {} if row is None else row.data.setdefault("kinds", {})
        self.seq = self.at_us = 0

    def stamp_rows(self) -> None:
        """Let the rows say which entry was the last of those counted here, and its instant."""
        self.counts["at"] = self.at_us
        for row in (self.agent, self.row):
            if row is not None and row.version < self.seq:
                row.version = self.seq


def latency_bucket(micros: int) -> str:
    """Return the projection's bucket of a latency: the octave, and the quarter of it from below."""
    micros = max(micros, 1)
    octave = micros.bit_length() - 1
    quarter = ((micros << 2) >> octave) & 3
    return f"{octave}.{quarter}"


def add_to_count(table: State, name: str, amount: int) -> None:
    """Add to a number in a row of the projection, which is absent when it is 0."""
    number = table.get(name, 0) + amount
    if number:
        table[name] = number
    else:
        table.pop(name, None)


class Projection:
    """Folds the ledger's entries into rows, which lists and counts are read from.

    `fetch` gives a row as it is stored, or None; `earlier_entries` the entries of a run before a
    seq. `rows` are those in memory, `changed_keys` those that differ from what is stored;
    `dropped_keys` must be deleted before `changed_keys` is written, and minutes before
    `first_minute` after it. `runs` has the state of runs that have entries and have not ended, as
    far as it is known.
    """

    def __init__(
        self,
        fetch: Callable[[Key], ProjectionRow | None] = lambda _: None,
        earlier_entries: Callable[[str, int | None, int], Iterable[LedgerEntry]] = lambda *_: (),
    ) -> None:
        self._fetch, self._earlier_entries = fetch, earlier_entries
        self.rows: dict[Key, ProjectionRow] = {}
        self.runs: dict[str, State] = {}
        self.changed_keys: set[Key] = set()
        self.dropped_keys: set[Key] = set()
        self.newest_minute, self.has_new_minute = -1, False
        self._events = self._woke_nobody = self._last_accepted = 0
        self._examples: dict[str, tuple[int, str]] = {}

    def forget(self) -> None:
        """Forget everything: what was folded may not stand, or somebody else may write."""
        self.runs.clear()
        self.rows.clear()
        self.changed_keys.clear()
        self.dropped_keys.clear()
        self.newest_minute, self.has_new_minute = -1, False
        self._events = self._woke_nobody = 0
        self._examples.clear()

    @property
    def first_minute(self) -> int:
        """Return the oldest minute that is kept."""
        return self.newest_minute - KEEP_MINUTES

    def drop_old_minutes(self) -> None:
        """Drop rows of minutes that are not kept, where all rows are in memory."""
        first, self.has_new_minute = self.first_minute, False
        self.rows = {
            key: row for key, row in self.rows.items() if key[0] != "minute" or row.sort >= first
        }

    def add_entries(self, entries: Iterable[LedgerEntry]) -> None:
        """Fold entries, in the order of the ledger."""
        spots: dict[str, MinuteCounter] = {}
        # What changes with nearly every entry is written into its rows at the end.
        used: list[MinuteCounter] = []
        for entry in entries:
            seq, at_us, kind, agent = entry.seq, entry.at, entry.kind, entry.agent or ""
            spot = spots.get(agent)
            if spot is None or spot.minute != at_us // MINUTE_US:
                spot = spots[agent] = self._minute_counter(agent, at_us // MINUTE_US, seq)
                used.append(spot)
            spot.seq, spot.at_us = seq, at_us
            name = kind if entry.outcome is None else f"{kind}|{entry.outcome}"
            spot.kinds[name] = spot.kinds.get(name, 0) + 1
            if kind == "event.accepted":
                self._events += 1
                self._woke_nobody += not entry.woke
                self._last_accepted = seq
                continue
            if agent and entry.run is not None:
                self._add_run_entry(entry, entry.run, spot)
            work = _HANDLERS.get(kind)
            if work is not None:
                work(self, entry)
        for spot in used:
            spot.stamp_rows()
        self._write_totals()

    def _write_totals(self) -> None:
        """Write into the fleet's row what was gathered on the way."""
        if self._events:
            data = self._row(FLEET, self._last_accepted).data
            add_to_count(data, "events", self._events)
            add_to_count(data, "woke_nobody", self._woke_nobody)
            self._events = self._woke_nobody = 0
        for name, (seq, run) in self._examples.items():
            self._row(FLEET, seq).data[name] = run
        self._examples.clear()

    # --- rows -------------------------------------------------------------------------------

    def _find_row(self, key: Key) -> ProjectionRow | None:
        row = self.rows.get(key)
        if row is None and key not in self.dropped_keys:
            row = self._fetch(key)
            if row is not None:
                self.rows[key] = row
        return row

    def _row(self, key: Key, seq: int, sort: int = 0) -> ProjectionRow:
        """Return a row that an entry changes, made if there is none."""
        row = self._find_row(key)
        if row is None:
            row = self.rows[key] = ProjectionRow(seq, sort, {})
        if row.version < seq:
            row.version = seq
        self.changed_keys.add(key)
        return row

    def _replace_row(
        self, key: Key, seq: int, sort: int, data: State, stored: object = True
    ) -> None:
        """Replace a row whatever it was; it need not be looked up for that."""
        row = self.rows.get(key)
        if row is None:
            self.rows[key] = ProjectionRow(seq, sort, data, stored=bool(stored))
        else:
            row.version, row.sort, row.data = seq, sort, data
        self.changed_keys.add(key)

    def _drop(self, key: Key) -> None:
        row = self.rows.pop(key, None)
        self.changed_keys.discard(key)
        if row is None or row.stored:
            self.dropped_keys.add(key)

    def mark_stored(self) -> None:
        """Take note that everything changed is stored."""
        for key in self.changed_keys:
            self.rows[key].stored = True
        if self.has_new_minute:
            self.rows = {key: row for key, row in self.rows.items() if key[0] != "minute"}
        self.changed_keys.clear()
        self.dropped_keys.clear()
        self.has_new_minute = False

    # --- minutes and totals -----------------------------------------------------------------

    def _minute_counter(self, agent: str, minute: int, seq: int) -> MinuteCounter:
        if minute > self.newest_minute:
            self._advance_minute(minute, seq)
        of = self._row(("agent", agent), seq) if agent else None
        if minute < self.first_minute:
            # The clock was put back by days: such a minute is not kept any more.
            return MinuteCounter(minute, of, None)
        return MinuteCounter(minute, of, self._row(("minute", f"{minute}|{agent}"), seq, minute))

    def _advance_minute(self, minute: int, seq: int) -> None:
        row = self._find_row(FLEET)
        self.newest_minute = -1 if row is None else row.data.get("minute", -1)
        if minute > self.newest_minute:
            self.newest_minute = self._row(FLEET, seq).data["minute"] = minute
            self.has_new_minute = True

    def count(self, key: Key, name: str, seq: int, **fields: Any) -> None:
        """Count one more of something in a row, and set other fields of it."""
        data = self._row(key, seq).data
        data[name] = data.get(name, 0) + 1
        data |= fields

    # --- runs and their actions -------------------------------------------------------------

    def _state(self, entry: LedgerEntry, run: str) -> State | None:
        """Return what is known of a run that has entries before this one; None if it has none."""
        if entry.n == 1:
            return None
        state = self.runs.get(run)
        if state is None or state["n"] != entry.n - 1:
            own = Projection()
            own.add_entries(self._earlier_entries(run, entry.about, entry.seq))
            state = own.runs.get(run)
        return state

    def _add_run_entry(self, entry: LedgerEntry, run: str, spot: MinuteCounter) -> None:
        kind, n = entry.kind, entry.n
        if kind == "run.corrected":
            # What people say of a run moves nothing, and may come long after its end.
            if (known := self.runs.get(run)) is not None and known["n"] == n - 1:
                known["n"] = n
            return
        state = self._state(entry, run)
        if kind in ("run.closed", "run.dropped"):
            add_to_count(spot.counts, "run.done", 1)
            if state is not None:
                self._end_run(run, state, entry.at, spot)
            return
        if state is None:
            state = {
                "agent": entry.agent, "event": entry.event, "since": entry.at,
                "sort": entry.about or entry.seq, "actions": {}, "marked": 0,
            }  # fmt: skip
        state["n"] = n
        self.runs[run] = state
        if entry.action is not None:
            self._add_action_entry(entry, run, state, spot)
        elif kind == "turn.reasoned":
            state["turn"], state["room"] = entry.turn, 0
        elif kind in ("budget.reserved", "budget.refused"):
            state["room"] = int(kind == "budget.refused")
        elif kind == "budget.settled":
            self._add_spend(entry, spot)
        elif kind == "run.dead":
            self._dead_letter(entry.seq, entry.at, state, spot)
        elif kind in TASK_KINDS:
            state["person"] = int(kind in (STALLED, PAUSED))
        elif kind == "run.redriven" and state.pop("dead", None):
            self._redrive(entry.seq, state, spot)
        self._list_run(run, entry.seq, state)

    def _list_run(self, run: str, seq: int, state: State) -> None:
        """Let the list of runs have this one if it waits or is dead."""
        if state["marked"] or state.get("room") or state.get("person") or "dead" in state:
            data = {name: state.get(name) for name in ("agent", "event", "since", "turn", "dead")}
            data |= {"open": state["marked"], "room": state.get("room", 0)}
            self._replace_row(("run", run), seq, state["sort"], data, state.get("shown"))
            state["shown"] = 1
        elif state.pop("shown", 0):
            self._drop(("run", run))

    def _end_run(self, run: str, state: State, at_us: int, spot: MinuteCounter) -> None:
        self.runs.pop(run, None)
        if "dead" in state:
            add_to_count(spot.counts, "run.dead", -1)
        for name, action in state["actions"].items():
            for mark in ("hold", "effect"):
                if mark in action["marks"]:
                    self._drop((mark, name))
        if state.get("shown"):
            self._drop(("run", run))
        self._add_latency(spot, "runs_us", at_us - state["since"])

    def _dead_letter(self, seq: int, at_us: int, state: State, spot: MinuteCounter) -> None:
        add_to_count(spot.counts, "run.dead", 1)
        state["dead"] = at_us
        for name, action in state["actions"].items():
            before = action.get("decided"), action.get("hold"), action.get("effect")
            dead_letter(action)
            recount(spot.counts, before, action)
            self._list_action(seq, name, action, state)

    def _redrive(self, seq: int, state: State, spot: MinuteCounter) -> None:
        add_to_count(spot.counts, "run.dead", -1)
        for name, action in state["actions"].items():
            before = action.get("decided"), action.get("hold"), action.get("effect")
            reopen_action(action)
            recount(spot.counts, before, action)
            self._list_action(seq, name, action, state)

    def _add_action_entry(
        self, entry: LedgerEntry, run: str, state: State, spot: MinuteCounter
    ) -> None:
        seq, at_us, kind = entry.seq, entry.at, entry.kind
        name, actions = entry.action, state["actions"]
        action = actions.get(name)
        if action is None:
            action = actions[name] = {
                "seq": seq, "run": run, "agent": state["agent"], "tool": entry.tool,
                "marks": set(),
            }  # fmt: skip
        before = action.get("decided"), action.get("hold"), action.get("effect")
        apply_entry(action, entry)
        recount(spot.counts, before, action)
        if kind == "action.decided":
            if entry.would is not None:
                add_to_count(spot.counts, f"would.{entry.would}", 1)
            if entry.outcome == "deny":
                self._examples["denied"] = seq, run
        elif kind == "effect.done":
            self._examples["effect"] = seq, run
            # What waits by itself is late for nobody.
            if "begun" in action and entry.tool not in ENGINE_TOOLS:
                self._add_latency(spot, "effects_us", at_us - action["begun"])
        self._list_action(seq, name, action, state)
        # What a dead letter left behind is kept with it: it may be taken up again.
        if is_final(action) and "dead" not in state:
            del actions[name]

    def _list_action(self, seq: int, name: str, action: State, state: State) -> None:
        """Let the lists of holds and of unknown effects say what an action's state says."""
        marks, hold = action["marks"], action.get("hold")
        if not marks and hold not in OPEN_HOLDS and action.get("effect") != "unknown":
            return
        about = {part: action[part] for part in ("agent", "run", "tool")}
        held = {part: action.get(part) for part in ("rule", "wait", "until")}
        held |= {"state": hold, "at": action.get("asked")}
        unknown = {"at": action.get("begun")}
        for mark, is_open, more in (
            ("hold", hold in OPEN_HOLDS, held),
            ("effect", action.get("effect") == "unknown", unknown),
        ):
            if is_open:
                self._replace_row(
                    (mark, name), seq, action["seq"], {**about, **more}, mark in marks
                )
                state["marked"] += mark not in marks
                marks.add(mark)
            elif mark in marks:
                self._drop((mark, name))
                state["marked"] -= 1
                marks.remove(mark)

    def _add_latency(self, spot: MinuteCounter, name: str, micros: int) -> None:
        if spot.row is not None:
            add_to_count(spot.row.data.setdefault(name, {}), latency_bucket(micros), 1)

    def _add_spend(self, entry: LedgerEntry, spot: MinuteCounter) -> None:
        if spot.row is not None:
            for unit, amount in (entry.spend or {}).items():
                add_to_count(spot.row.data.setdefault("spend", {}), unit, amount)

    # --- what is true of the fleet, whatever run it came with ---------------------------------

    def set_stop(self, entry: LedgerEntry) -> None:
        """A stop is in force."""
        data = {"at": entry.at, "actor": entry.actor, "until": entry.until}
        self._replace_row(("stop", str(entry.what)), entry.seq, 0, data)

    def lift_stop(self, entry: LedgerEntry) -> None:
        """A stop is over."""
        self._drop(("stop", str(entry.what)))

    def set_revision(self, entry: LedgerEntry) -> None:
        """A revision is live."""
        live = self._row(("rollout", "live"), entry.seq).data
        live |= {"revision": entry.policy_rev, "bundle": entry.bundle, "at": entry.at}

    def count_limit(self, entry: LedgerEntry, name: str) -> None:
        """A budget's limit was alerted of, or refused something."""
        parts = (entry.scope, entry.agent, entry.unit, entry.window)
        limit = "|".join(str(part or "") for part in parts)
        more = {"limit": entry.limit, f"{name}_at": entry.at}
        self.count(("budget", limit), name, entry.seq, **more)


_HANDLERS: Mapping[str, Callable[[Projection, LedgerEntry], None]] = {
    "event.refused": lambda view, entry: view.count(FLEET, "refused", entry.seq),
    "policy.published": Projection.set_revision,
    "policy.refused": lambda view, entry: view.count(
        ("rollout", "live"), "refused", entry.seq, refused_at=entry.at
    ),
    "stop.set": Projection.set_stop,
    "stop.lifted": Projection.lift_stop,
    "memory.proposed": lambda view, entry: view.count(
        ("memory", str(entry.memory)), "proposed", entry.seq, at=entry.at
    ),
    "budget.alerted": lambda view, entry: view.count_limit(entry, "alerted"),
    "budget.refused": lambda view, entry: view.count_limit(entry, "refused"),
}


# --- how entries move one action: its decision, its hold, its effect ------------------------------


def apply_entry(action: State, entry: LedgerEntry) -> None:
    """Change an action's state in the projection as an entry about it tells.

    `action` has `decided`, `rule`, `hold`, `wait`, `until`, `effect`, as far as they are known;
    `asked` is when its hold was opened and `begun` when its effect was intended, in microseconds.
    """
    kind, at_us = entry.kind, entry.at
    if kind == "action.decided":
        _apply_decision(action, entry)
    elif kind[:7] == "effect.":
        state = state_after(kind)
        if state == "cancelled" and action.get("decided") == "hold":
            # It was planned, waits again, and will be planned anew if it is permitted.
            action.pop("effect", None)
            return
        if kind == "effect.intended" or (state in OPEN_STATES and "begun" not in action):
            action["begun"] = at_us
        action["effect"] = state
        if state not in OPEN_STATES and action.get("hold") in OPEN_HOLDS:
            # What has ended waits for nobody.
            action["hold"] = "released"
    elif (transition := _TRANSITIONS.get(kind)) is not None:
        transition(action, entry)
        if action.get("hold") == "open":
            action.setdefault("asked", at_us)


def is_final(action: State) -> bool:
    """Say whether an action's state in the projection is final: nothing more will happen to it."""
    effect = action.get("effect")
    if effect is not None:
        return effect not in OPEN_STATES
    return action.get("decided") == "deny"


def dead_letter(action: State) -> None:
    """Deny in the projection what is open of an action whose run became a dead letter."""
    if action.get("hold") in ("open", "approved", "released"):
        action["hold"] = "denied"
    _deny(action, "run.dead")


def reopen_action(action: State) -> None:
    """Undo `dead_letter` of an action in the projection: a person had its run redriven."""
    if action.get("rule") != "run.dead":
        return
    if action.get("hold") == "denied":
        del action["hold"]
    if action.get("effect") == "unknown":
        action["decided"], action["rule"] = "permit", "run.redriven"
    else:
        for name in ("decided", "rule", "effect", "begun"):
            action.pop(name, None)


def recount(counts: State, before: tuple[Any, Any, Any], action: State) -> None:
    """Count an action in a row of the projection by its states now, no longer by those `before`."""
    decided, hold, effect = before
    if (now := action.get("decided")) != decided:
        _move_count(counts, "decided.", decided, now)
    if (now := action.get("hold")) != hold:
        _move_count(counts, "hold.", hold, now)
    if (now := action.get("effect")) != effect:
        _move_count(counts, "effect.", effect, now)


def _apply_decision(action: State, entry: LedgerEntry) -> None:
    outcome, had = entry.outcome, action.get("hold")
    action["decided"], action["rule"] = outcome, entry.rule
    if outcome == "hold":
        wait = entry.wait
        # An approval already given stays with the action while it waits for something else.
        if had not in ("approved", "used") or wait == "approval":
            action["hold"] = "open"
            if had != "open":
                action["asked"] = entry.at
        action["wait"], action["until"] = wait, entry.until
        return
    action.pop("wait", None)
    action.pop("until", None)
    if had is not None:
        # What is permitted again was denied for a moment only, and its approval stands.
        used = "used" if had in ("approved", "used", "denied") else "released"
        action["hold"] = used if outcome == "permit" else "denied"


def _deny(action: State, rule: str) -> None:
    action["decided"], action["rule"] = "deny", rule
    action.pop("wait", None)
    action.pop("until", None)


def _apply_shortage(action: State, entry: LedgerEntry) -> None:
    """There was no room for what had just been permitted: it waits, with an approval it had."""
    action["hold"] = "approved" if action.get("hold") == "used" else "open"
    action["decided"], action["rule"] = "hold", entry.rule
    action["wait"], action["until"] = "budget", entry.until
    action.pop("effect", None)


def _apply_approval(action: State, entry: LedgerEntry) -> None:
    action["hold"], action["until"] = "approved", entry.until


def _apply_denial(action: State, entry: LedgerEntry) -> None:
    action["hold"] = "denied"
    _deny(action, "hold.denied")


def _apply_expiry(action: State, entry: LedgerEntry) -> None:
    action["hold"] = "expired"
    _deny(action, "hold.expired")


def _apply_refusal(action: State, entry: LedgerEntry) -> None:
    """It is not any more what it was when it was decided."""
    if action.get("hold") is not None:
        action["hold"] = "denied"
    _deny(action, "engine.changed")


def _move_count(counts: State, name: str, was: str | None, now: str | None) -> None:
    if was is not None:
        add_to_count(counts, name + was, -1)
    if now is not None:
        add_to_count(counts, name + now, 1)


_TRANSITIONS: Mapping[str, Callable[[State, LedgerEntry], None]] = {
    "budget.refused": _apply_shortage,
    "hold.approved": _apply_approval,
    "hold.denied": _apply_denial,
    "hold.expired": _apply_expiry,
    "action.refused": _apply_refusal,
}
