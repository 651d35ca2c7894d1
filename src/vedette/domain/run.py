"""A Run: one agent handling one event. And the Step, the unit in which a run becomes durable, with
what the store answers to one.

ready --lease--> (handled) --+--> done
  ^                          +--> dead      (dead letter, with its reason; a person may redrive it)
  |                          +--> waiting   (approval, time, budget, target, resume, event, child)
  +--------- wake -----------------+
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from enum import Enum
from typing import Any, Literal

from msgspec import Struct, field

from vedette.domain.base.canonical import short_id
from vedette.domain.base.errors import Permanent, VedetteError
from vedette.domain.budget import Alert, BudgetCap, Shortage
from vedette.domain.decision import DecisionOutcome
from vedette.domain.effect import FINAL_STATES, OPEN_STATES, EffectState, RowWrite
from vedette.domain.entry import Draft
from vedette.domain.hold import HoldState
from vedette.domain.memory import Candidate

RunState = Literal["ready", "waiting", "done", "dead"]
# What an action waits for that has begun and whose outcome comes later.
AWAITED = frozenset({"time", "event", "child"})


def run_id(source: str, event_id: str, agent: str) -> str:
    """Return the run id: a function of (source, event id, agent), so a redelivery finds the run.

    It is deterministic rather than sortable; lists are sorted by seq.
    """
    return event_run_id(short_id("evt", source, event_id), agent)


def event_run_id(event: str, agent: str) -> str:
    """Return the id of an event's run; its first half is the event's, so that it leads there."""
    return f"run_{event[4:20]}{short_id('run', event, agent)[4:20]}"


class Run(Struct):
    """One agent's handling of one event, as far as it is durable.

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
    """One action of a run as far as it is durable: decision, hold and effect in one row.

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
    decided: DecisionOutcome | None = None
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
            return self.effect in FINAL_STATES
        return self.decided == "deny"

    @property
    def is_awaited(self) -> bool:
        """Say whether it has begun and its outcome comes later (`engine.async_completion`)."""
        return self.effect == "started" and self.waits in AWAITED

    def copy(self) -> ActionRow:
        """Return a row of its own that says the same."""
        return copy(self)

    def may_try(self, now_us: int) -> bool:
        """Say whether the effect may be tried now."""
        return (
            self.effect in OPEN_STATES and self.not_before_us <= now_us and self.waits != "approval"
        )


class RunWake(Struct, frozen=True):
    """Another run that a step makes due.

    Only if an action of it is awaited; whoever has it finds that it was moved on. With a `draft`
    that entry is written into it, awaited or not, and it must be open, or the step is refused.
    """

    run: str
    draft: Draft | None = None


class Step(Struct):
    """The unit of work of one turn: all that it makes durable, in one transaction.

    Without `run` (a person's command, a publication) nothing refuses it. Else `expected_steps` and
    `entries_before` are the run's counts before it, so that a step that comes twice is known, and
    `epoch`, `policy_rev` and `stop_epoch` are those it was made under: older ones are refused.
    """

    drafts: list[Draft]
    run: str | None = None
    # The run's; 0 lets the store look it up.
    position: int = 0
    agent: str | None = None
    expected_steps: int = 0
    entries_before: int = 0
    epoch: int = 0
    policy_rev: int | None = None
    stop_epoch: int | None = None
    # The stop epoch as of which its run waits for a resume: as of an older one the run is due at
    # once, since that resume may have been.
    wait_stop_epoch: int | None = None
    state: RunState = "ready"
    turn: int = 0
    attempts: int = 0
    wake_us: int = 0
    waits: str | None = None
    observed: bool = False
    # (key, the position the judge's state was at, the position it is at now), of the step with
    # which its run becomes observed. Events of a key may be judged ahead of the commits before
    # them: the store refuses a step whose predecessor did not stand, or that passes over an event
    # which still waits to be judged. -1 before stands for whatever came before, or waits.
    order: tuple[str, int, int] | None = None
    actions: list[ActionRow] = field(default_factory=list)
    rows: list[RowWrite] = field(default_factory=list)
    # By unit; refused if one of `limits` would be passed.
    spend: Mapping[str, int] = field(default_factory=dict)
    limits: Sequence[BudgetCap] = ()
    # What it has no room for beside `spend`, so that its run waits: refused if there is room by
    # now.
    shortfall: Mapping[str, int] = field(default_factory=dict)
    # What is given back: unit, when it was spent, amount.
    refunds: list[tuple[str, int, int]] = field(default_factory=list)
    # What is set aside for a child's run, and what of such is given back, in the same forms: of the
    # agent's budget alone, as what the child spends counts for the fleet.
    escrow: Mapping[str, int] = field(default_factory=dict)
    returned: Sequence[tuple[str, int, int]] = ()
    checkpoint: tuple[str, int, bytes] | None = None
    candidates: list[Candidate] = field(default_factory=list)
    wakes: Sequence[RunWake] = ()
    # Rows of the engine's own, of collections that no agent has (`vedette:…`).
    own_rows: Sequence[RowWrite] = ()

    @classmethod
    def following(cls, run: Run, epoch: int, **moves: Any) -> Step:
        """Return a step that follows a run as it stands; `moves` are what it changes."""
        fields: dict[str, Any] = {
            "drafts": [], "run": run.id, "position": run.position, "agent": run.agent,
            "expected_steps": run.steps, "entries_before": run.entries, "epoch": epoch,
            "state": run.state, "turn": run.turn, "attempts": run.attempts,
            "wake_us": run.wake_us, "waits": run.waits, "observed": run.observed, **moves,
        }  # fmt: skip
        return cls(**fields)


class CommitStatus(Enum):
    """The status that answers a Step, after COMMIT and never before."""

    COMMITTED = "committed"
    DUPLICATE = "duplicate"
    FENCED_LEASE = "fenced: lease"
    FENCED_POLICY = "fenced: policy"
    FENCED_STOP = "fenced: stop"
    FENCED_ORDER = "fenced: order"
    FENCED_EARLIER = "fenced: an earlier event waits"
    FENCED_RUN = "fenced: the run to be woken has ended"
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

    def raise_for_status(self) -> None:
        """Return if the step stands. Raises Fenced, OverBudget or Superseded.

        Permanent, if no step of its run can stand any more.
        """
        status = self.status
        if status is CommitStatus.COMMITTED:
            return
        if status is CommitStatus.FENCED_EARLIER:
            raise EarlierEventPending("an earlier event of its key waits to be judged")
        if status is CommitStatus.STATE_ERASED:
            raise Permanent(
                "it comes too late: later events of its key are in the judge's state, which cannot "
                "be made again with it, because content that it was made of was erased"
            )
        if status in (CommitStatus.FENCED_POLICY, CommitStatus.FENCED_STOP):
            raise Fenced("the live policy or a stop changed")
        if status is CommitStatus.BUDGET_AVAILABLE:
            raise Fenced("the budget has room by now")
        if status is CommitStatus.OVER_BUDGET and self.shortage is not None:
            raise OverBudget(self.shortage)
        raise Superseded(f"the run was moved on by somebody else ({status.value})")


class Superseded(VedetteError):
    """The error of a Run that somebody else moved on (a lease, a person's answer): look afresh.

    `wait_us` is how long that may wait (microseconds), for a run that could not be begun.
    """

    code = "superseded"

    def __init__(self, what: str, *, wait_us: int = 0) -> None:
        super().__init__(what)
        self.wait_us = wait_us


class EarlierEventPending(Superseded):
    """The error of a Run while an earlier event of its key waits: read the key from the oldest."""


class OverBudget(VedetteError):
    """The error of a Step for which a budget has no room; `shortage` says which."""

    code = "over-budget"

    def __init__(self, shortage: Shortage) -> None:
        super().__init__(f"no room in {shortage.rule}: {shortage.total} of {shortage.limit} taken")
        self.shortage = shortage


class Fenced(VedetteError):
    """The error of a Step under which policy, a stop or a budget's room changed: decide again."""

    code = "fenced"


class LossWindow(Struct, frozen=True):
    """The window of runs whose effects may have happened in history that was lost.

    After a restore from a backup nobody knows what was accepted between backup and failure, and a
    source may deliver it again: with the same ids, so under the same keys, but with any `time`.
    So every run accepted after the restore counts as one that perhaps was handled, until a person
    says that nothing lost is delivered again. `seq` is the entry of the loss, `until` the last
    entry that is in doubt, 0 while nobody has said so.
    """

    seq: int
    until: int = 0

    def covers(self, position: int) -> bool:
        """Say whether the lost history may have held a run of the event accepted at an entry."""
        return not self.until or position <= self.until
