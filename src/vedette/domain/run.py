"""A Run: one agent handling one event. And the Step, the unit in which a run becomes durable.

ready --lease--> (handled) --+--> done
  ^                          +--> dead      (dead letter, with its reason; a person may redrive it)
  |                          +--> waiting   (approval, time, budget, target, resume)
  +--------- wake -----------------+
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from enum import Enum
from typing import Any, Literal

from msgspec import Struct, field

from vedette.domain.base.canonical import short_id
from vedette.domain.budget import Alert, Cap, Shortage
from vedette.domain.decision import DecisionOutcome as Decided
from vedette.domain.effect import EffectState, RowWrite
from vedette.domain.entry import Draft
from vedette.domain.hold import HoldState
from vedette.domain.memory import Candidate

RunState = Literal["ready", "waiting", "done", "dead"]


def run_id(source: str, event_id: str, agent: str) -> str:
    """Return the run id: a function of (source, event id, agent), so a redelivery finds the run.

    It is deterministic rather than sortable; lists are sorted by seq.
    """
    return event_run_id(short_id("evt", source, event_id), agent)


def event_run_id(event: str, agent: str) -> str:
    """Return the id of an event's run; its first half is the event's, so that it leads there."""
    return f"run_{event[4:20]}{short_id('run', event, agent)[4:20]}"


class Run(Struct):
    """What the store knows of a run.

    `position` (the seq of the accepted event) orders the runs of one key. `steps` counts the
    commits, `entries` the ledger entries, `turn` the recorded turns, `last` is the seq of the
    run's last entry: together they let a step say exactly what it expects to follow.
    `observed` says that the judge's state includes this event.
    """

    id: str
    event: str
    agent: str
    key: str
    position: int
    state: RunState = "ready"
    steps: int = 0
    entries: int = 0
    turn: int = 0
    last: int = 0
    attempts: int = 0
    wake_us: int = 0
    waits: str | None = None
    observed: bool = False


class Lease(Struct, frozen=True):
    """The right to handle a run, fenced by the epoch of the worker that holds it."""

    run: Run
    epoch: int


class ActionRow(Struct):
    """What the store knows of one action of a run: decision, hold and effect in one row.

    `record` is the action's canonical JSON (arguments, origins, sources, why), `answer` the
    outcome's; `obliges` names the obligations of the last decision. An action not decided yet, or
    to be decided again, has `decided` None. `seq` is the first entry of the step it came with,
    `last` the action's own last entry: the cause of its next. `counted_us` is when its permit
    was counted against the rate limits (0: it is not counted).
    """

    id: str
    run: str
    turn: int
    ordinal: int
    agent: str
    tool: str
    digest: str
    record: bytes
    decided: Decided | None = None
    rule: str = ""
    policy_rev: int = 0
    decisions: int = 0
    hold: HoldState | None = None
    waits: str | None = None
    until_us: int = 0
    approver: str | None = None
    effect: EffectState | None = None
    tries: int = 0
    not_before_us: int = 0
    answer: bytes | None = None
    obliges: str = ""
    seq: int = 0
    last: int = 0
    counted_us: int = 0

    @property
    def is_final(self) -> bool:
        """Say whether nothing more will happen to this action."""
        if self.effect is not None:
            return self.effect in ("done", "failed", "cancelled")
        return self.decided == "deny"

    def copy(self) -> ActionRow:
        """Return a row of its own that says the same."""
        return copy(self)

    def may_try(self, now_us: int) -> bool:
        """Say whether the effect may be tried now."""
        return (
            self.effect in ("intended", "started", "unknown")
            and self.not_before_us <= now_us
            and self.waits != "approval"
        )


class Step(Struct):
    """All that one turn of the line makes durable, in one transaction.

    `expected_steps` is the run's step count before it: a step that comes twice is answered
    *duplicate*. `epoch`, `policy_rev` and `stop_epoch` are those it was made under; the store
    refuses older ones. `spend` is by unit; the store refuses what would go beyond one of `limits`.
    `refunds` gives back (unit, when it was spent, amount). A step that makes a run wait for a
    budget says in `shortfall` what it has no room for beside `spend`: it is refused if there is
    room by now. `order` is (key, the position the judge's state was at, the position it is at now):
    events of a key may be judged ahead of the commits before them, and the store refuses a step
    whose predecessor did not stand, or that passes over an event which still waits to be judged.
    The step with which a run becomes observed has one; -1 before stands for whatever came before,
    or waits. `wait_stop_epoch` is the stop epoch as of which it says that its run waits for a
    resume: as of an older one the run is due at once, as that resume may have been. A step without
    `run` (a person's command, a publication) is fenced by nothing. `position` is the run's; 0 lets
    the store look it up.
    """

    drafts: list[Draft]
    run: str | None = None
    position: int = 0
    agent: str | None = None
    expected_steps: int = 0
    entries_before: int = 0
    epoch: int = 0
    policy_rev: int | None = None
    stop_epoch: int | None = None
    wait_stop_epoch: int | None = None
    state: RunState = "ready"
    turn: int = 0
    attempts: int = 0
    wake_us: int = 0
    waits: str | None = None
    observed: bool = False
    order: tuple[str, int, int] | None = None
    actions: list[ActionRow] = field(default_factory=list)
    rows: list[RowWrite] = field(default_factory=list)
    spend: Mapping[str, int] = field(default_factory=dict)
    limits: Sequence[Cap] = ()
    shortfall: Mapping[str, int] = field(default_factory=dict)
    refunds: list[tuple[str, int, int]] = field(default_factory=list)
    checkpoint: tuple[str, int, bytes] | None = None
    candidates: list[Candidate] = field(default_factory=list)


class CommitStatus(Enum):
    """What the store answers to a step, after COMMIT and never before."""

    COMMITTED = "committed"
    DUPLICATE = "duplicate"
    FENCED_LEASE = "fenced: lease"
    FENCED_POLICY = "fenced: policy"
    FENCED_STOP = "fenced: stop"
    FENCED_ORDER = "fenced: order"
    FENCED_EARLIER = "fenced: an earlier event waits"
    STATE_ERASED = "behind a state whose events are gone"
    OVER_BUDGET = "over budget"
    BUDGET_AVAILABLE = "room"


class CommitResult(Struct, frozen=True):
    """The answer to a step, with the seq of the last entry it wrote.

    `shortage` says why it is over budget; `alerts` which limits it has brought to the alert.
    """

    status: CommitStatus
    last: int = 0
    shortage: Shortage | None = None
    alerts: tuple[Alert, ...] = ()


def count_actions(actions: list[ActionRow]) -> dict[str, Any]:
    """Return how many actions stand where: permits, holds, denials, and settled effects."""
    counts = {"permit": 0, "hold": 0, "deny": 0, "open": 0}
    for action in actions:
        if action.decided:
            counts[action.decided] += 1
        if not action.is_final:
            counts["open"] += 1
    return counts
