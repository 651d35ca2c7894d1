"""Entries of the ledger: the closed list of kinds and fields, and their canonical bytes.

Fields hold ids, digests, numbers and words from closed lists. Whatever a sender or a person wrote
goes into the body, which can be erased; the entry keeps the body's salted digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from vedette.domain.base.canonical import canonical_json, salted_digest

VERSION = 1

KINDS = frozenset(
    {
        "store.opened",  # a runner took the store (epoch); for one command only, `what` is visit
        "fleet.loaded",  # the releases of all agents and the versions of all banks
        # A person made its folder the release (before: `what`), or one that an earlier entry
        # (`back_to`) began; with `moves_tasks` no task stays on another; body: reason.
        "agent.released",
        # Another release runs beside an agent's release (`what`) for a share of its keys,
        # until an instant; body: reason.
        "canary.started",
        "canary.aborted",  # the engine found it worse, by `rule`; body: the numbers of both
        "canary.ended",  # its time was over, a release was made or a person ended it; body: numbers
        "policy.published",  # a bundle became the live revision
        "policy.refused",  # a bundle was offered and refused; body: findings
        "event.accepted",  # durable; `woke` says how many runs it made (0: it woke nobody)
        "event.refused",  # delivered, not an event we can accept; body: what and why
        "recall.decided",  # policy decided whether an agent may read a memory scope
        "turn.reasoned",  # a reasoner answered; body: briefing citations, judgement, proposals
        "action.refused",  # a proposal that is not an action; body: why
        "action.decided",  # body: the exact question and the decision
        "engine.differed",  # two policy engines said otherwise of one question; body: both answers
        "effect.intended",
        "event.joined",  # an event (cause) of its session, which this run takes in
        "event.matched",  # an event (cause) was accepted that an action waits for
        "effect.started",  # a call begins that takes `timeout` (microseconds) at most
        "effect.done",  # body: outcome
        "effect.failed",
        "effect.unknown",
        "effect.absent",  # it is sure that it did not happen, so it may be called; `what` says how
        # A large text out of an outcome, in the same step; `what` is its type, `size` its
        # characters. Body: the text, its label, who may read it.
        "artefact.stored",
        "effect.cancelled",  # decided again and no longer permitted, before it started
        "hold.approved",  # a person, for what was shown (`shown_digest`); body: reason, display
        "hold.denied",
        "hold.expired",
        "hold.claimed",  # a person looks at it until an instant; nobody is kept from answering
        "hold.noted",  # a person noted something about it; body: note
        "memory.proposed",  # a candidate, `what` is its id; body: text, and what it rests on
        "memory.promoted",  # a person made a candidate a memory; body: reason
        "memory.rejected",
        "memory.retired",  # a person took a memory back: it is not recalled
        "memory.restored",
        "budget.reserved",  # the worst case of a turn, before it begins; `spend` by unit
        # What the turn spent; `model_call` says how its call went, `what` why it came to nothing
        # though its model answered.
        "budget.settled",
        "budget.refused",  # no room for a turn or an action: it waits
        # A part of its agent's budget was set aside for the run that an action asks, by unit …
        "budget.escrowed",
        "budget.returned",  # … and what that did not spend came back
        # A hand-off broke a rule of its check, and the engine's is told if the rule is sure (body:
        # text); or a memory that a task proposed (`what` is its id) breaks one.
        "task.drift",
        "model.away",  # its model did not answer; `what` says why, `target` which: it waits
        "budget.alerted",  # most of a limit is taken; once in a window
        "budget.raised",  # a person gave more room until an instant; body: reason
        "run.closed",
        "run.corrected",  # a person said what should have been; body: should, was, note, reason
        "task.stalled",  # a task came to a bound of its plan and waits for a person; body: why
        "task.steered",  # a person noted something to a task, at its turn; body: note, reason
        "task.paused",  # a person has a task wait; body: reason
        "task.resumed",  # a person has a task go on, its bounds counted anew; body: reason
        "task.cancelled",  # a person ends a task; body: reason
        # A task goes on under another release than the one it ran on (`what`), by `rule`; of a
        # person, body: reason.
        "task.moved",
        "task.added",  # a person added an item to a task; body: item, reason
        # A person gave a task another goal, and conditions if they say so; body: both, reason.
        "task.revised",
        "run.dead",  # dead letter; body: reason
        "run.redriven",  # a person had a dead letter taken up again; body: reason
        "run.dropped",  # a person ended a dead letter, or what they erased, for good; body: reason
        "notice.raised",  # a permit that a person is to be told of
        "identity.changed",  # a person issued, rotated or revoked a key; body: reason
        "identity.refused",  # a token, or a worker's answer, was not taken; `what` is the code
        "clock.jumped",  # the wall clock is off by `what` seconds, or `away`; body: in words
        "clock.confirmed",  # a person takes the wall clock for right; body: reason, jump, by_us
        "stop.set",
        "stop.lifted",
        "body.erased",  # `erased` names the digests
        "key.rotated",  # `key` is the next verifier key; the present one signs this (keychain)
        "ledger.archived",  # entries 1 to `size`, of that `root`, are in an archive from here on
        "store.restored",  # a backup took the lost store's place; `heads` were lost (verify.heads)
        "store.copied",  # all before it was copied here from another store; body: reason
        "store.upgraded",  # all before it lay in a store of the schema `what`; body: reason
        "source.redriven",  # a person had dead letters of a broker published again; body: reason
        "store.settled",  # a person says that nothing lost is delivered again; body: reason
    }
)

# An event that an awaited action waits for was accepted: its entry is the cause.
MATCHED_KIND = "event.matched"
# What a hold is answered: by a person, or by nobody in time.
HOLD_ANSWERS = ("hold.approved", "hold.denied", "hold.expired")

# Those that move an effect; see `vedette.domain.effect.state_after`.
EFFECT_KINDS = frozenset(kind for kind in KINDS if kind.startswith("effect."))

# Every field an entry may have. v, seq, at, about, run, n and body are set when it gets its place.
FIELDS = frozenset(
    {
        "v", "seq", "at", "kind", "about", "run", "n", "cause", "body",
        "event", "agent", "release", "turn", "action", "ordinal", "tool", "action_digest",
        "shown_digest", "outcome", "rule", "policy_rev", "bundle", "engine", "wait", "until",
        "would",
        "effect_key", "tries", "memory", "actor", "label", "confidence_milli", "score_milli",
        "threshold_milli", "proposals", "woke", "state", "epoch", "what", "erased", "releases",
        "banks", "unit", "amount", "spend", "scope",
        "window", "limit", "target", "hops", "settled", "key", "size", "root", "heads",
        "verified", "signature", "signer", "commit", "archive", "back_to", "wasm", "restores",
        "timeout", "checkpoint", "model_call", "route", "share_milli", "items", "items_done",
        "joined", "moves_tasks",
    }
)  # fmt: skip


# The kinds that say which release of an agent the fleet runs: the last one counts.
RELEASE_KINDS = ("fleet.loaded", "agent.released")
# Those that begin and end a canary beside it.
CANARY_KINDS = ("canary.started", "canary.aborted", "canary.ended")


class Body(Struct, frozen=True):
    """The content beside an entry.

    It is found, and erased, by the entry's event or by `subject` (the CloudEvents subject; for
    mail the sender), which is kept with the body alone. A `salt` is given where another body of
    the step names this one by its digest; else its writer draws one.
    """

    data: bytes
    subject: str | None = None
    salt: bytes | None = None


class Draft(Struct, frozen=True):
    """The draft of an entry, before it has its place.

    `cause` is the seq of an earlier entry; `cause_offset` (>= 1) instead means the entry that many
    places before this one in the same step. An accepted event and a person's command have neither.
    """

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    cause: int | None = None
    cause_offset: int = 0
    body: Body | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is no kind of entry")
        if not FIELDS.issuperset(self.fields):
            raise ValueError(f"no entry has a field {sorted(set(self.fields) - FIELDS)[0]!r}")


def releases_of(entry: Mapping[str, Any]) -> Mapping[str, str]:
    """Return which releases an entry of RELEASES makes the fleet's, by agent.

    Who opens the store for one command decides none.
    """
    if entry["kind"] == "agent.released":
        return {entry["agent"]: entry["release"]}
    return {} if entry.get("what") == "visit" else entry.get("releases") or {}


def is_body_of(entry: Mapping[str, Any], salt: bytes, data: bytes) -> bool:
    """Say whether a body is the one that an entry names by its salted digest."""
    return salted_digest(bytes(salt), data) == entry.get("body")


def encode_entry(
    draft: Draft,
    *,
    seq: int,
    at_us: int,
    run: str | None,
    n: int,
    body: str | None,
    about: int | None = None,
) -> bytes:
    """Return the canonical bytes of a draft at its place: stored as made, never made again.

    `n` is the entry's number within its run, without a gap from 1; it means nothing without one.
    `about` is the seq of the entry that accepted the event this belongs to.
    """
    value: dict[str, Any] = {"v": VERSION, "seq": seq, "at": at_us, "kind": draft.kind}
    if about is not None:
        value["about"] = about
    for name, item in draft.fields.items():
        if item is not None:
            value[name] = item
    if run is not None:
        value["run"] = run
        value["n"] = n
    cause = seq - draft.cause_offset if draft.cause_offset else draft.cause
    if cause is not None:
        value["cause"] = cause
    if body is not None:
        value["body"] = body
    return canonical_json(value)
