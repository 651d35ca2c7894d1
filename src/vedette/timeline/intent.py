"""One intended action as the ledger tells it: what was decided of it, by whom, what came of it.

An intent is found by its idempotency key, which is the id of its action. Every entry about it is
held against those before: an effect that nothing permitted, a plan made twice, an approval that
nobody gave and a question about another action are findings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from vedette.effect import state_after
from vedette.entry import EFFECT_KINDS
from vedette.quick_data import dataclass
from vedette.timeline.record import Shown

OPEN = ("intended", "started", "unknown")

Finding = dict[str, Any]


def finding(code: str, seq: int, what: str) -> Finding:
    """Return a finding: its code, the entry it was found at, and a sentence."""
    return {"code": code, "seq": seq, "what": what}


@dataclass(slots=True)
class Intent:
    """An action. `revision`, `bundle`, `rule` and `origins` are those of the decision that stands.

    `plan` is the entry that intended the effect and was not taken back; `state` the last state of
    the effect. `lacks` names what the ledger does not tell though it should, erased content aside.
    """

    id: str
    run: str
    agent: str
    event: str | None
    tool: str
    digest: str | None = None
    identity: str | None = None
    release: str | None = None
    turn: int | None = None
    trigger: Mapping[str, Any] | None = None
    origins: Mapping[str, str] | None = None
    settles: str | None = None
    outcome: str | None = None
    rule: str | None = None
    revision: int | None = None
    bundle: str | None = None
    approval: dict[str, Any] | None = None
    plan: int | None = None
    state: str | None = None
    erased: bool = False
    decisions: list[dict[str, Any]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Return the idempotency key under which the target knows the effect."""
        return self.id.removeprefix("act_")

    @property
    def open(self) -> bool:
        """Say whether the end of the effect is not known."""
        return self.state in OPEN

    @property
    def outside(self) -> bool:
        """Say whether the effect is done at a target, not in the fleet's own rows."""
        return self.settles != "transactional"

    @property
    def _needs_no_plan(self) -> bool:
        """Say whether the effect may be written in the step itself, as far as that is known."""
        return self.erased or not self.outside

    @property
    def _decided_since_unknown(self) -> bool:
        """Say whether a call of unknown outcome may be planned anew: it was decided again since.

        What was begun is not cancelled when it is taken back: nobody may know what came of it.
        """
        return self.state == "unknown" and self.decisions[-1]["seq"] > self.states[-1]["seq"]

    @property
    def lacks(self) -> list[str]:
        """Return what the ledger does not tell of an effect; an empty list if it tells all."""
        told: dict[str, Any] = {"event": self.event, "revision": self.revision}
        told["bundle"] = self.bundle
        told |= {"decision": self.outcome, "digest": self.digest}
        if not self.erased:
            told |= {"identity": self.identity, "origins": self.origins}
        if self.outside:
            told["intent"] = self.plan
        return [name for name, value in told.items() if value is None]

    def take(self, entry: Shown) -> list[Finding]:
        """Take in the next entry about the action; return what is wrong with it."""
        work = MOVES.get(entry.kind)
        return work(self, entry) if work is not None else []

    def to_json(self) -> dict[str, Any]:
        """Return the intent as `--json` prints it."""
        names = (
            "id", "key", "run", "agent", "event", "tool", "turn", "digest", "identity", "release",
            "trigger", "origins", "settles", "outcome", "rule", "revision", "bundle", "approval",
            "plan", "state", "open", "erased", "lacks", "decisions", "answers", "states",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    # --- decisions --------------------------------------------------------------------------

    def _decide(self, entry: Shown) -> list[Finding]:
        self.outcome, self.rule = str(entry.get("outcome")), entry.get("rule")
        self.revision, self.bundle = entry.get("policy_rev"), entry.get("bundle")
        self.digest, self.release = entry.get("action_digest"), entry.get("release")
        self.decisions.append(
            {
                "seq": entry.seq, "at": entry.get("at"), "outcome": self.outcome,
                "rule": self.rule, "revision": self.revision, "bundle": self.bundle,
                "wait": entry.get("wait"), "would": entry.get("would"),
            }
        )  # fmt: skip
        if entry.erased or entry.body is None:
            self.erased = True
            return []
        question = entry.told("question") or {}
        action, context = question.get("action") or {}, question.get("context") or {}
        self.identity = (question.get("subject") or {}).get("id")
        self.origins, self.settles = action.get("origins"), action.get("settles")
        self.turn, self.trigger = context.get("turn"), context.get("event")
        wrong = []
        if action.get("digest") != self.digest:
            what = f"{self.id} was decided by a question about another action"
            wrong.append(finding("digest", entry.seq, what))
        return wrong + self._approved(entry, context.get("approvals") or [])

    def _approved(self, entry: Shown, shown: list[Mapping[str, Any]]) -> list[Finding]:
        """Find the answer of a person that the decision was shown."""
        self.approval = None
        if not shown or self.outcome != "permit":
            return []
        by, digest = shown[0].get("by"), shown[0].get("action_digest")
        given = [a for a in self.answers if a["answer"] == "approved" and a["by"] == by]
        if not given or digest != self.digest:
            what = f"{self.id} was permitted by an approval that nobody gave"
            return [finding("approval", entry.seq, what)]
        self.approval = given[-1]
        return []

    def _answer(self, entry: Shown) -> list[Finding]:
        answer = entry.kind.removeprefix("hold.")
        told = {"seq": entry.seq, "at": entry.get("at"), "answer": answer}
        self.answers.append({**told, "by": entry.get("actor"), "reason": entry.told("reason")})
        if answer != "approved":
            self.outcome, self.rule = "deny", entry.kind
        return []

    def _take_back(self, entry: Shown) -> list[Finding]:
        """It had been permitted and there was no room, or it is not what it was any more."""
        self.outcome = "hold" if entry.kind == "budget.refused" else "deny"
        self.rule = entry.get("rule") or "engine.changed"
        return []

    # --- the effect -------------------------------------------------------------------------

    def _move(self, entry: Shown) -> list[Finding]:
        state = entry.kind.removeprefix("effect.")
        wrong = self._wrong(entry, state)
        if state == "intended":
            self.plan = entry.seq
        elif state == "cancelled":
            self.plan = None
        self.state = state_after(entry.kind)
        self.states.append(
            {
                "seq": entry.seq, "at": entry.get("at"), "state": state,
                "revision": entry.get("policy_rev"), "tries": entry.get("tries"),
            }
        )  # fmt: skip
        return wrong

    def _wrong(self, entry: Shown, state: str) -> list[Finding]:
        seq, wrong = entry.seq, []
        if entry.get("effect_key") not in (None, self.key):
            wrong.append(finding("key", seq, f"{self.id} has an effect under another key"))
        if state == "intended":
            if self.outcome != "permit":
                wrong.append(finding("unpermitted", seq, f"{self.id} was intended unpermitted"))
            if self.plan is not None and not self._decided_since_unknown:
                wrong.append(finding("twice", seq, f"{self.id} was intended twice"))
        elif self.plan is None and not (self.outcome == "permit" and self._needs_no_plan):
            wrong.append(finding("unplanned", seq, f"{self.id} came to {state} without a plan"))
        return wrong


MOVES: Mapping[str, Callable[[Intent, Shown], list[Finding]]] = {
    "action.decided": Intent._decide,
    "hold.approved": Intent._answer,
    "hold.denied": Intent._answer,
    "hold.expired": Intent._answer,
    "budget.refused": Intent._take_back,
    "action.refused": Intent._take_back,
    **dict.fromkeys(EFFECT_KINDS, Intent._move),
}
