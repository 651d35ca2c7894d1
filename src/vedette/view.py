"""The read side: small tables that are a function of the ledger's entries alone, in their order.

A row has a name, an id, the seq of the entry that changed it last, a number to sort it by that
never changes, and data. What has ended is deleted at once, so the tables stay as small as what is
open; what is counted is counted per agent and per minute. Nothing of a body is kept: a body can be
erased.

name     id                    what it says
fleet    (empty)               events accepted, refused and that woke nobody; examples of ids
agent    its name              runs that ended, decisions, holds and effects by state; last at
run      its id                a run that has entries of its own and has not ended; dead letters
hold     the action's id       an action that waits, until it is decided
effect   the action's id       an effect whose end is not known yet
minute   minute|agent          entries by kind and outcome, spend, latencies; for two days
memory   its bank              what was proposed
rollout  live                  the live revision; refusals
stop     scope:name            a stop in force
budget   scope|agent|unit|span alerts and refusals of one limit
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from vedette.view_action import OPEN_EFFECTS, OPEN_HOLDS, State, bury, move, settled

Key = tuple[str, str]
# seq, at (microseconds), kind, run, number within the run, seq of the event, fields.
Told = tuple[int, int, str, "str | None", int, "int | None", Mapping[str, Any]]

MINUTE_US = 60_000_000
KEEP_MINUTES = 2880
FLEET: Key = ("fleet", "")

# What of an action's state is counted per agent.
_COUNTED = ("decided", "hold", "effect")
_OWN = frozenset({"hold", "effect"})


class Row:
    """One row. `stored` says that the tables have it, as far as this fold knows."""

    __slots__ = ("data", "sort", "stored", "version")

    def __init__(self, version: int, sort: int, data: State, *, stored: bool = False) -> None:
        self.version, self.sort, self.data, self.stored = version, sort, data, stored


class View:
    """Folds entries into rows. `fetch` gives a row as it is stored, or None.

    `rows` are those in memory, `changed` those that differ from what is stored; `gone` must be
    deleted before `changed` is written, and minutes before `first_minute` after it.
    """

    def __init__(self, fetch: Callable[[Key], Row | None] = lambda _: None) -> None:
        self._fetch = fetch
        self.rows: dict[Key, Row] = {}
        self.changed: set[Key] = set()
        self.gone: set[Key] = set()
        self._newest = -1
        self.turned = False

    def forget(self) -> None:
        """Forget every row: the tables may not be as this fold left them."""
        self.rows.clear()
        self.changed.clear()
        self.gone.clear()
        self._newest, self.turned = -1, False

    @property
    def first_minute(self) -> int:
        """Return the oldest minute that is kept."""
        return self._newest - KEEP_MINUTES

    def take(self, told: Iterable[Told]) -> None:
        """Fold entries, in the order of the ledger."""
        for entry in told:
            seq, at_us, kind, run, n, about, fields = entry
            agent = fields.get("agent") or ""
            counts = self._open(("agent", agent), seq, 0) if agent else {}
            if agent:
                counts["at"] = at_us
            minute = self._minute(agent, at_us, seq)
            outcome = fields.get("outcome")
            if minute is not None:
                kinds = minute["kinds"]
                name = kind if outcome is None else f"{kind}|{outcome}"
                kinds[name] = kinds.get(name, 0) + 1
            if run is not None and agent:
                self._of_run(entry, counts, minute)
            elif (work := _OTHERS.get(kind)) is not None:
                work(self, seq, at_us, fields)

    # --- rows -------------------------------------------------------------------------------

    def _find(self, key: Key) -> Row | None:
        row = self.rows.get(key)
        if row is None and key not in self.gone:
            row = self._fetch(key)
            if row is not None:
                self.rows[key] = row
        return row

    def _open(self, key: Key, seq: int, sort: int) -> State:
        """Return the data of a row that an entry changes, made if there is none."""
        row = self.rows.get(key) or self._find(key)
        if row is None:
            row = self.rows[key] = Row(seq, sort, {})
        row.version = seq
        self.changed.add(key)
        return row.data

    def _put(self, key: Key, seq: int, sort: int, data: State, stored: object = True) -> None:
        """Replace a row whatever it was; it need not be looked up for that."""
        row = self.rows.get(key)
        if row is None:
            self.rows[key] = Row(seq, sort, data, stored=bool(stored))
        else:
            row.version, row.sort, row.data = seq, sort, data
        self.changed.add(key)

    def _drop(self, key: Key) -> None:
        row = self.rows.pop(key, None)
        self.changed.discard(key)
        if row is None or row.stored:
            self.gone.add(key)

    def written(self) -> None:
        """Take note that everything changed is stored."""
        for key in self.changed:
            if key[0] in _OWN:
                # It is never read back: it is made of its run's row whenever that changes.
                del self.rows[key]
            else:
                self.rows[key].stored = True
        if self.turned:
            self.rows = {key: row for key, row in self.rows.items() if key[0] != "minute"}
        self.changed.clear()
        self.gone.clear()
        self.turned = False

    # --- minutes and totals -----------------------------------------------------------------

    def _minute(self, agent: str, at_us: int, seq: int) -> State | None:
        """Return an agent's row of a minute; None for one that is not kept any more."""
        minute = at_us // MINUTE_US
        if minute > self._newest:
            self._turn(minute, seq)
        if minute < self._newest - KEEP_MINUTES:
            return None
        data = self._open(("minute", f"{minute}|{agent}"), seq, minute)
        if not data:
            data["kinds"] = {}
        return data

    def _turn(self, minute: int, seq: int) -> None:
        row = self._find(FLEET)
        self._newest = -1 if row is None else row.data.get("minute", -1)
        if minute > self._newest:
            self._newest = self._open(FLEET, seq, 0)["minute"] = minute
            self.turned = True

    def _accepted(self, seq: int, at_us: int, fields: Mapping[str, Any]) -> None:
        fleet = self._open(FLEET, seq, 0)
        fleet["events"] = fleet.get("events", 0) + 1
        if not fields.get("woke"):
            fleet["woke_nobody"] = fleet.get("woke_nobody", 0) + 1

    def _not_accepted(self, seq: int, at_us: int, fields: Mapping[str, Any]) -> None:
        fleet = self._open(FLEET, seq, 0)
        fleet["refused"] = fleet.get("refused", 0) + 1

    # --- runs and their actions -------------------------------------------------------------

    def _of_run(self, entry: Told, counts: State, minute: State | None) -> None:
        seq, at_us, kind, run, n, about, fields = entry
        key = ("run", run or "")
        row = self._find(key) if n > 1 else None
        if kind == "run.closed" or kind == "run.dropped":
            if row is not None and row.data.get("dead"):
                _add(counts, "run.dead", -1)
            _add(counts, "run.done", 1)
            if row is not None:
                self._end(key, row, at_us, minute)
            return
        if row is None:
            row = self.rows[key] = Row(seq, about or seq, {})
            row.data = {"agent": fields["agent"], "since": at_us, "event": fields.get("event")}
        row.version = seq
        self.changed.add(key)
        if kind == "run.dead":
            self._bury(seq, row, counts, at_us)
        elif kind == "run.redriven":
            if row.data.pop("dead", None):
                _add(counts, "run.dead", -1)
        elif kind == "turn.reasoned":
            row.data["turn"] = fields.get("turn")
        elif "action" in fields:
            self._of_action(entry, row, counts, minute)
        if (work := _OTHERS.get(kind)) is not None:
            work(self, seq, at_us, fields)
        spend = fields.get("spend")
        if spend and minute is not None and kind == "budget.settled":
            for unit, amount in spend.items():
                _add(minute.setdefault("spend", {}), unit, amount)

    def _end(self, key: Key, row: Row, at_us: int, minute: State | None) -> None:
        for action in row.data.get("actions", ()):
            self._drop(("hold", action))
            self._drop(("effect", action))
        if minute is not None:
            _add(minute.setdefault("runs_us", {}), bucket(at_us - row.data["since"]), 1)
        self._drop(key)

    def _bury(self, seq: int, row: Row, counts: State, at_us: int) -> None:
        _add(counts, "run.dead", 1)
        row.data["dead"] = at_us
        for name, action in row.data.get("actions", {}).items():
            before = _counted(action)
            bury(action)
            _recount(counts, before, action)
            self._mirror(seq, name, action, row)

    def _of_action(self, entry: Told, row: Row, counts: State, minute: State | None) -> None:
        seq, at_us, kind, run, _, _, fields = entry
        actions = row.data.setdefault("actions", {})
        name = fields["action"]
        action = actions.get(name)
        if action is None:
            action = actions[name] = {"seq": seq, "run": run, "tool": fields.get("tool")}
        before = _counted(action)
        move(action, kind, fields, at_us)
        _recount(counts, before, action)
        if kind == "action.decided":
            if fields.get("would") is not None:
                _add(counts, f"would.{fields['would']}", 1)
            if fields["outcome"] == "deny":
                self._open(FLEET, seq, 0)["denied"] = run
        elif kind == "effect.done":
            self._open(FLEET, seq, 0)["effect"] = run
            if minute is not None and "begun" in action:
                _add(minute.setdefault("effects_us", {}), bucket(at_us - action["begun"]), 1)
        self._mirror(seq, name, action, row)
        # What a dead letter left behind is kept with it: it may be taken up again.
        if settled(action) and "dead" not in row.data:
            del actions[name]
            if not actions:
                del row.data["actions"]

    def _mirror(self, seq: int, name: str, action: State, row: Row) -> None:
        """Let the lists of open holds and effects say what an action's state says."""
        about = {"agent": row.data["agent"], "run": action["run"], "tool": action["tool"]}
        if action.get("hold") in OPEN_HOLDS:
            told = {"state": action["hold"], "rule": action.get("rule"), "at": action.get("asked")}
            told |= {"wait": action.get("wait"), "until": action.get("until")}
            self._put(("hold", name), seq, action["seq"], {**about, **told}, action.get("held"))
            action["held"] = 1
        elif action.pop("held", 0):
            self._drop(("hold", name))
        if action.get("effect") in OPEN_EFFECTS:
            told = {"state": action["effect"], "at": action["begun"]}
            listed = action.get("listed")
            self._put(("effect", name), seq, action["seq"], {**about, **told}, listed)
            action["listed"] = 1
        elif action.pop("listed", 0):
            self._drop(("effect", name))

    # --- what belongs to no run -------------------------------------------------------------

    def _published(self, seq: int, at_us: int, fields: Mapping[str, Any]) -> None:
        live = self._open(("rollout", "live"), seq, 0)
        live |= {"revision": fields.get("policy_rev"), "bundle": fields.get("bundle"), "at": at_us}

    def _not_published(self, seq: int, at_us: int, fields: Mapping[str, Any]) -> None:
        live = self._open(("rollout", "live"), seq, 0)
        live["refused"], live["refused_at"] = live.get("refused", 0) + 1, at_us

    def _stopped(self, seq: int, at_us: int, fields: Mapping[str, Any]) -> None:
        told = {"at": at_us, "actor": fields.get("actor"), "until": fields.get("until")}
        self._put(("stop", str(fields.get("what"))), seq, 0, told)

    def _lifted(self, seq: int, at_us: int, fields: Mapping[str, Any]) -> None:
        self._drop(("stop", str(fields.get("what"))))

    def _proposed(self, seq: int, at_us: int, fields: Mapping[str, Any]) -> None:
        bank = self._open(("memory", str(fields.get("memory"))), seq, 0)
        bank["proposed"], bank["at"] = bank.get("proposed", 0) + 1, at_us

    def _limited(self, seq: int, at_us: int, fields: Mapping[str, Any], name: str) -> None:
        parts = ("scope", "agent", "unit", "window")
        limit = "|".join(str(fields.get(part) or "") for part in parts)
        row = self._open(("budget", limit), seq, 0)
        row |= {"limit": fields.get("limit"), name: row.get(name, 0) + 1, f"{name}_at": at_us}

    def _alerted(self, seq: int, at_us: int, fields: Mapping[str, Any]) -> None:
        self._limited(seq, at_us, fields, "alerted")

    def _short(self, seq: int, at_us: int, fields: Mapping[str, Any]) -> None:
        self._limited(seq, at_us, fields, "refused")


_OTHERS: Mapping[str, Callable[[View, int, int, Mapping[str, Any]], None]] = {
    "event.accepted": View._accepted,
    "event.refused": View._not_accepted,
    "policy.published": View._published,
    "policy.refused": View._not_published,
    "stop.set": View._stopped,
    "stop.lifted": View._lifted,
    "memory.proposed": View._proposed,
    "budget.alerted": View._alerted,
    "budget.refused": View._short,
}


def folded(told: Iterable[Told]) -> dict[Key, Row]:
    """Return all rows that entries come to, from the first entry on."""
    view = View()
    view.take(told)
    first = view.first_minute
    return {k: row for k, row in view.rows.items() if k[0] != "minute" or row.sort >= first}


def told_of(seq: int, entry: Mapping[str, Any]) -> Told:
    """Return a sealed entry as the fold takes it."""
    run, n, about = entry.get("run"), entry.get("n", 0), entry.get("about")
    return seq, entry["at"], entry["kind"], run, n, about, entry


def bucket(micros: int) -> str:
    """Return the name of a latency's bucket: the octave, and the quarter of it, from below."""
    micros = max(micros, 1)
    octave = micros.bit_length() - 1
    quarter = ((micros << 2) >> octave) & 3
    return f"{octave}.{quarter}"


def floor_us(name: str) -> int:
    """Return the least latency of a bucket, in microseconds."""
    octave, _, quarter = name.partition(".")
    return ((4 + int(quarter)) << int(octave)) >> 2


def _add(table: State, name: str, amount: int) -> None:
    number = table.get(name, 0) + amount
    if number:
        table[name] = number
    else:
        table.pop(name, None)


def _counted(action: State) -> Sequence[Any]:
    return [action.get(name) for name in _COUNTED]


def _recount(counts: State, before: Sequence[Any], action: State) -> None:
    for name, was in zip(_COUNTED, before, strict=True):
        now = action.get(name)
        if was != now:
            if was is not None:
                _add(counts, f"{name}.{was}", -1)
            if now is not None:
                _add(counts, f"{name}.{now}", 1)
