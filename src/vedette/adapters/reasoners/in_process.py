"""The Reasoner port on local judges, in this process: the engine's own, or a worker's.

A judge's state is held per (agent, key) together with the position of the last event it saw. If
that is not what the briefing says, the state is asked for: the store gives the last checkpoint
and what came since, and the judge observes it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from vedette.domain.event import Event
from vedette.domain.judge_state import (
    advance_digest,
    advance_digest_all,
    format_state_name,
    initial_digest,
    judge_digest,
)
from vedette.domain.memory import Briefing
from vedette.domain.notes import decode_notes, encode_notes
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.judging import Judge, Judgement

CHECKPOINT_EVERY = 256


class _JudgeState(Struct):
    state: Any
    position: int
    since_checkpoint: int
    seen_digest: bytes


class InProcessReasoner:
    """The reasoner on judges in this process. Judges are made on first use by `make_judge`.

    `is_expired` says, once, that an agent's is to be made anew: what it was taught holds no longer.
    `digest_of` is asked after `make_judge`: the digest of what the agent's judge was made of.
    """

    def __init__(
        self,
        make_judge: Callable[[str], Judge],
        *,
        checkpoint_every: int = CHECKPOINT_EVERY,
        is_expired: Callable[[str], bool] = lambda agent: False,
        digest_of: Callable[[str], str] = lambda agent: judge_digest(None, ()),
    ) -> None:
        self._make_judge = make_judge
        self._digest_of = digest_of
        self._is_expired = is_expired
        self._checkpoint_every = checkpoint_every
        self._judges: dict[str, Judge] = {}
        self._has_state: dict[str, bool] = {}
        self._digests: dict[str, str] = {}
        self._states: dict[tuple[str, str], _JudgeState] = {}

    def judge(self, agent: str) -> Judge:
        """Return the agent's judge, made and trained on first use."""
        judge = self._judges.get(agent)
        if judge is None:
            judge = self._judges[agent] = self._make_judge(agent)
            self._has_state[agent] = type(judge).observe is not Judge.observe
            self._digests[agent] = self._digest_of(agent)
        return judge

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        """Judge one event; ask for state if what is held is not at `briefing.previous`."""
        return self.reason_sync(briefing)

    def reason_sync(self, briefing: Briefing) -> ReasonerJudgement:
        """Do what `reason` does, where nobody waits."""
        if self._is_expired(briefing.agent):
            self.renew(briefing.agent)
        judge = self.judge(briefing.agent)
        if briefing.turn > 1 or not self._has_state[briefing.agent]:
            # A later turn has no state: that is of the key, which may be events ahead.
            later = briefing.turn > 1
            said = judge.judge_outcomes(briefing) if later else judge.judge(None, briefing)
            state = format_state_name(self._digests[briefing.agent], None)
            return _build_judgement(judge, said, None, state)
        key = (briefing.agent, briefing.key)
        held = self._states.get(key)
        if held is None and briefing.previous == 0:
            held = self._states[key] = _JudgeState(judge.blank(), 0, 0, initial_digest(0))
        if held is None or held.position != briefing.previous:
            return ReasonerJudgement(needs_state=True, observed=False)
        # Should the judge raise, its state is half-way: nobody may go on from it.
        del self._states[key]
        seen = judge.observe(held.state, briefing.event)
        judgement = judge.judge(seen, briefing)
        held.position = briefing.position
        held.seen_digest = advance_digest(held.seen_digest, held.position)
        state = format_state_name(self._digests[briefing.agent], held.seen_digest)
        held.since_checkpoint += 1
        checkpoint = None
        if held.since_checkpoint >= self._checkpoint_every:
            checkpoint, held.since_checkpoint = judge.dump(held.state), 0
            held.seen_digest = initial_digest(held.position)
        self._states[key] = held
        return _build_judgement(judge, judgement, checkpoint, state)

    def restore_state(
        self,
        agent: str,
        key: str,
        checkpoint: bytes | None,
        at: int,
        since: Sequence[tuple[int, Event]],
    ) -> None:
        """Take up a key's state from its checkpoint and observe what came since."""
        judge = self.judge(agent)
        state = judge.blank() if checkpoint is None else judge.load(checkpoint)
        seen = advance_digest_all(initial_digest(at), (position for position, _ in since))
        for position, event in since:
            judge.observe(state, event)
            at = position
        self._states[(agent, key)] = _JudgeState(state, at, len(since), seen)

    def fold_state(
        self, agent: str, checkpoint: bytes | None, since: Sequence[tuple[int, Event]]
    ) -> bytes | None:
        """Return the checkpoint after `since`; None for a judge without state."""
        judge = self.judge(agent)
        if not self._has_state[agent]:
            return None
        state = judge.blank() if checkpoint is None else judge.load(checkpoint)
        for _, event in since:
            judge.observe(state, event)
        return judge.dump(state)

    def renew(self, agent: str) -> None:
        """Drop an agent's judge and every state it holds; both are made anew when next needed.

        A state is then taken up from its checkpoint and what came since, so nothing that the
        dropped judge was made of is left in it.
        """
        self._judges.pop(agent, None)
        self._has_state.pop(agent, None)
        for held in [key for key in self._states if key[0] == agent]:
            del self._states[held]

    def drop_state(self, agent: str, key: str) -> None:
        """Drop a key's state: what it learned last was not committed."""
        self._states.pop((agent, key), None)


def _build_judgement(
    judge: Judge, judgement: Judgement, checkpoint: bytes | None, state: str
) -> ReasonerJudgement:
    if not judgement.final and type(judge).judge_outcomes is Judge.judge_outcomes:
        # Now, not in the next turn: nothing of this one is decided yet.
        raise NotImplementedError(
            "the judgement asks for another turn, and the judge has none: define judge_outcomes"
        )
    detail: Mapping[str, Any] = judgement.detail
    notes = None
    if not judgement.final and judgement.notes is not None:
        # Here, so that a worker's are refused for the same reason as this process's.
        notes = decode_notes(encode_notes(judgement.notes))
    return ReasonerJudgement(
        label=judgement.label,
        confidence=judgement.confidence,
        proposals=judgement.proposals,
        score=judgement.score,
        threshold=judgement.threshold,
        detail=detail,
        final=judgement.final,
        observed=True,
        checkpoint=checkpoint,
        candidates=judgement.candidates,
        state=state,
        notes=notes,
    )
