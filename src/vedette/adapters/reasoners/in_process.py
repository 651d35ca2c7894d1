"""The Reasoner port on local judges, in this process: the engine's own, or a worker's.

A judge's state is held per (agent, key) together with the position of the last event it saw. If
that is not what the briefing says, the state is asked for: the store gives the last checkpoint
and what came since, and the judge observes it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vedette.domain.base.dataclass import dataclass
from vedette.domain.event import Event
from vedette.domain.judge_state import made_of, name_state, see, see_all, seen_from
from vedette.domain.memory import Briefing
from vedette.domain.ports import Thought
from vedette.judging import Judge

CHECKPOINT_EVERY = 256


@dataclass(slots=True)
class _Held:
    state: Any
    at: int
    since_checkpoint: int
    seen: bytes


class LocalJudges:
    """Runs each agent's judge. Judges are made on first use by `make`.

    `expired` says, once, that an agent's is to be made anew: what it was taught holds no longer.
    `made` is asked after `make`: the digest of what the agent's judge was made of.
    """

    def __init__(
        self,
        make: Callable[[str], Judge],
        *,
        checkpoint_every: int = CHECKPOINT_EVERY,
        expired: Callable[[str], bool] = lambda agent: False,
        made: Callable[[str], str] = lambda agent: made_of(None, ()),
    ) -> None:
        self._make = make
        self._made = made
        self._expired = expired
        self._every = checkpoint_every
        self._judges: dict[str, Judge] = {}
        self._stateful: dict[str, bool] = {}
        self._digests: dict[str, str] = {}
        self._held: dict[tuple[str, str], _Held] = {}

    def judge(self, agent: str) -> Judge:
        """Return the agent's judge, made and trained on first use."""
        judge = self._judges.get(agent)
        if judge is None:
            judge = self._judges[agent] = self._make(agent)
            self._stateful[agent] = type(judge).observe is not Judge.observe
            self._digests[agent] = self._made(agent)
        return judge

    async def reason(self, briefing: Briefing) -> Thought:
        """Judge one event; ask for state if what is held is not at `briefing.previous`."""
        return self.think(briefing)

    def think(self, briefing: Briefing) -> Thought:
        """Do what `reason` does, where nobody waits."""
        if self._expired(briefing.agent):
            self.renew(briefing.agent)
        judge = self.judge(briefing.agent)
        if not self._stateful[briefing.agent]:
            state = name_state(self._digests[briefing.agent], None)
            return _thought(judge.judge(None, briefing), None, state)
        key = (briefing.agent, briefing.key)
        held = self._held.get(key)
        if held is None and briefing.previous == 0:
            held = self._held[key] = _Held(judge.blank(), 0, 0, seen_from(0))
        if held is None or held.at != briefing.previous:
            return Thought(needs_state=True, observed=False)
        # Should the judge raise, its state is half-way: nobody may go on from it.
        del self._held[key]
        seen = judge.observe(held.state, briefing.event)
        judgement = judge.judge(seen, briefing)
        held.at = briefing.position
        held.seen = see(held.seen, held.at)
        state = name_state(self._digests[briefing.agent], held.seen)
        held.since_checkpoint += 1
        checkpoint = None
        if held.since_checkpoint >= self._every:
            checkpoint, held.since_checkpoint = judge.dump(held.state), 0
            held.seen = seen_from(held.at)
        self._held[key] = held
        return _thought(judgement, checkpoint, state)

    def restore(
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
        seen = see_all(seen_from(at), (position for position, _ in since))
        for position, event in since:
            judge.observe(state, event)
            at = position
        self._held[(agent, key)] = _Held(state, at, len(since), seen)

    def fold(
        self, agent: str, checkpoint: bytes | None, since: Sequence[tuple[int, Event]]
    ) -> bytes | None:
        """Return the checkpoint after `since`; None for a judge without state."""
        judge = self.judge(agent)
        if not self._stateful[agent]:
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
        self._stateful.pop(agent, None)
        for held in [key for key in self._held if key[0] == agent]:
            del self._held[held]

    def forget(self, agent: str, key: str) -> None:
        """Drop a key's state: what it learned last was not committed."""
        self._held.pop((agent, key), None)


def _thought(judgement: Any, checkpoint: bytes | None, state: str) -> Thought:
    detail: Mapping[str, Any] = judgement.detail
    return Thought(
        label=judgement.label,
        confidence=judgement.confidence,
        proposals=judgement.proposals,
        score=judgement.score,
        threshold=judgement.threshold,
        detail=detail,
        final=True,
        observed=True,
        checkpoint=checkpoint,
        candidates=judgement.candidates,
        state=state,
    )
