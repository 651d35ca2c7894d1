"""Calls of models: how many there may be, and who is left alone.

Before a turn asks its model it is given a place here, which keeps what its entry of [models] says:
calls in flight, and calls and tokens of any minute. There is none while the model's circuit breaker
is open; then its fallback is asked, if it has one, or the run waits. Nothing of this is durable:
each worker counts for itself, from its start. Instants are microseconds, given by the caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct, field

from vedette.domain.agent import Agent
from vedette.domain.budget import MINUTE_US
from vedette.domain.model import HELD_US, Model
from vedette.domain.model_turn import (
    NO_METADATA,
    UNCHARGED,
    ModelAway,
    ModelCallMetadata,
    ModelUse,
    RequestRefused,
)
from vedette.domain.ports.reasoner import Metrics
from vedette.engine.circuit_breaker import Breaker, CircuitBreakers, Leave

# So many requests refused without an answer between them are no matter of these requests: the model
# is left alone for so long, as a code does not tell a refused fleet from a refused request.
_REFUSED_IN_A_ROW, _REFUSED_US = 5, 60_000_000
# Of runs of which it is remembered that their model gave no answer; the oldest go first.
_MAX_FAILURES = 65_536
# What the breakers and the runs that wait call a model.
PREFIX = "model:"


class ModelCall(Struct):
    """A place for one call of a model, that begins at `at_us`.

    `tokens` are those that it may take, then those it took. What came of it is noted once it is
    over: `took_us` is how long its reasoner worked on it, `use` what it cost (nothing, if it was
    not made), `metadata` what else is known of it, `error` the code of what came in the place of
    an answer.
    """

    model: Model
    leave: Leave
    at_us: int
    tokens: int
    in_flight: bool = True
    took_us: int = 0
    use: ModelUse = UNCHARGED
    metadata: ModelCallMetadata = NO_METADATA
    error: str = ""


class ModelCalls(Struct):
    """The calls of one model."""

    model: Model
    breaker: Breaker
    in_flight: int = 0
    # When the model answered last, as far as this worker knows; 0: not since its start.
    answered_us: int = 0
    _refused: int = 0
    # What the last call might have taken for which there was no room: who waits asks for as much.
    _wanted: int = 0
    # Those that count: in flight, or begun within the last minute; oldest first.
    _recent: deque[ModelCall] = field(default_factory=deque)

    def next_start_us(self, now_us: int, tokens: int | None = None) -> int | None:
        """Return when the limits let another call begin, now or later.

        None: not before one in flight has ended. `tokens` are what it may take (None: as the last
        one that waits); more than there are in a minute take all of them.
        """
        model = self.model
        if self.in_flight >= model.calls_in_flight:
            return None
        self._forget_old(now_us)
        most, room = model.calls_per_minute, model.tokens_per_minute
        if most is None and room is None:
            return now_us
        # A call counts for a minute from its start; its tokens also for as long as it is in flight.
        calls = sum(call.at_us > now_us - MINUTE_US for call in self._recent)
        taken = sum(call.tokens for call in self._recent)
        tokens = self._wanted if tokens is None else tokens
        tokens = tokens if room is None else min(tokens, room)
        start_us = now_us
        for call in (*self._recent, None):
            over = room is not None and taken + tokens > room
            if not over and (most is None or calls < most):
                return start_us
            if call is not None and call.at_us > now_us - MINUTE_US:
                calls -= 1
                start_us = max(start_us, call.at_us + MINUTE_US)
            if call is not None and not call.in_flight:
                taken -= call.tokens
        return None

    def _forget_old(self, now_us: int) -> None:
        recent, before_us = self._recent, now_us - MINUTE_US
        while recent and recent[0].at_us <= before_us and not recent[0].in_flight:
            recent.popleft()
        if recent and recent[0].at_us <= before_us:  # one that takes long hides those after it
            left = [call for call in recent if call.in_flight or call.at_us > before_us]
            self._recent = deque(left)

    def begin(self, now_us: int, tokens: int) -> ModelCall | None:
        """Return a place for a call that begins now; None if there is none."""
        start_us = self.next_start_us(now_us, tokens)
        if start_us is None or start_us > now_us:
            self._wanted = tokens
            return None
        leave = self.breaker.acquire(now_us)
        if leave is None:
            return None
        call = ModelCall(self.model, leave, now_us, tokens)
        self.in_flight += 1
        self._recent.append(call)
        return call

    def end(
        self,
        call: ModelCall,
        now_us: int,
        *,
        tokens: int | None = None,
        failure: ModelAway | RequestRefused | None = None,
        is_made: bool = True,
        is_answered: bool = True,
    ) -> None:
        """Give a call's place back, with the tokens it took (None: nobody counted) or its failure.

        One that was not made counts for nothing; of one whose answer was lost the breaker learns
        nothing.
        """
        call.in_flight = False
        self.in_flight -= 1
        if not is_made:
            self._recent.remove(call)
            self.breaker.release(call.leave, None, now_us)
        elif isinstance(failure, RequestRefused):
            call.tokens = 0
            # It may be for what the request gave back: then the next call tells, and not this one.
            self._refused += not failure.may_begin_anew
            if failure.may_begin_anew or self._refused < _REFUSED_IN_A_ROW:
                self.breaker.release(call.leave, None, now_us)
            else:
                until_us, why = now_us + _REFUSED_US, str(failure.code)
                self.breaker.release(call.leave, False, now_us, until_us=until_us, why=why)
        elif failure is None:
            self._refused = 0 if is_answered else self._refused
            self.answered_us = now_us if is_answered else self.answered_us
            call.tokens = call.tokens if tokens is None else tokens
            self.breaker.release(call.leave, True if is_answered else None, now_us)
        else:
            call.tokens = call.tokens if failure.use.calls else 0
            wait_us = max(failure.retry_after_us, HELD_US.get(failure.kind, 0))
            until_us = now_us + wait_us if wait_us else 0
            self.breaker.release(call.leave, False, now_us, until_us=until_us, why=failure.code)

    def move_clock(self, by_us: int) -> None:
        """Have the calls of the last minute have begun so much later."""
        for call in self._recent:
            call.at_us += by_us
        self.answered_us += by_us if self.answered_us else 0

    def is_away(self, now_us: int) -> bool:
        """Say whether the model is left alone now."""
        return self.breaker.state != "closed" and not self.breaker.is_trial_due(now_us)


class Models(Struct):
    """The models of a fleet, by name; who has no entry of [models] asks one of its own."""

    entries: Mapping[str, Model] = field(default_factory=dict)
    breakers: CircuitBreakers = field(default_factory=CircuitBreakers)
    # How often the model gave no answer to a run, since its last answer or this worker's start; 0
    # for one of which it is recorded that its model is away.
    failures: dict[str, int] = field(default_factory=dict)
    # Runs of which a provider refused what their model had said: to be begun anew.
    _refused: dict[str, None] = field(default_factory=dict)
    _calls: dict[str, ModelCalls] = field(default_factory=dict)

    def calls_of(self, name: str) -> ModelCalls:
        """Return the calls of a model, by its name."""
        found = self._calls.get(name)
        if found is None:
            model = self.entries.get(name) or Model(name)
            breaker = self.breakers.for_target(f"{PREFIX}{name}")
            found = self._calls[name] = ModelCalls(model, breaker)
        return found

    def routes(self, agent: Agent) -> Iterator[ModelCalls]:
        """Yield the calls of the models that an agent's turn may ask, the first choice first."""
        name: str | None = agent.model or f"{agent.name}/agent.py"
        while name is not None:
            found = self.calls_of(name)
            yield found
            name = found.model.fallback

    def move_clock(self, by_us: int) -> None:
        """Have calls have begun so much later: the clock that they are counted by was set."""
        for calls in self.in_use():
            calls.move_clock(by_us)

    def count_failure(self, run: str) -> int:
        """Return how often a run's model gave it no answer, this time included."""
        self.failures[run] = self.failures.pop(run, 0) + 1
        self._forget_oldest()
        return self.failures[run]

    def note_told(self, run: str) -> None:
        """Note that it was recorded of a run that its model is away, until it is answered."""
        self.failures.setdefault(run, 0)
        self._forget_oldest()

    def note_refused(self, run: str) -> None:
        """Note that a run's context is to be begun anew, whenever its model can be asked."""
        self._refused[run] = None
        self._forget_oldest()

    def is_refused(self, run: str) -> bool:
        """Say whether a run's context is to be begun anew."""
        return run in self._refused

    def note_answered(self, run: str) -> None:
        """Note that a run's model answered it."""
        self.failures.pop(run, None)
        self._refused.pop(run, None)

    def _forget_oldest(self) -> None:
        for known in (self.failures, self._refused):
            if len(known) > _MAX_FAILURES:
                del known[next(iter(known))]

    def in_use(self) -> Iterator[ModelCalls]:
        """Yield the calls of all models that were asked here."""
        yield from self._calls.values()

    def set_gauges(self, metrics: Metrics, count_waiting: Callable[[str], int]) -> None:
        """Set, as metrics, how many calls of each model are on their way, and who waits for it."""
        for calls in self.in_use():
            name, waiting = calls.model.name, count_waiting(calls.breaker.target)
            metrics.gauge("model_calls_in_flight", calls.in_flight, model=name)
            metrics.gauge("model_runs_waiting", waiting, model=name)
