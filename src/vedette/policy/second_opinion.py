"""The second opinion: the engine that does not decide is asked too, and a difference is a deny.

A fault of one policy engine is found by another that shares no code with it. Every permit of a
tool that is outward or high-impact is asked of both before it counts. Of all other decisions a
sample is compared beside the line; one difference there, and for the rest of the revision every
permit is asked of both. An engine agrees with nothing that it decided itself.

Policy data says which tools are *inward*: `inward: [TOOL, …]` of an agent in grants/data.yaml. What
is not listed there is outward, and so is whatever is of high impact by its grant or declaration.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from vedette.domain.base.clock import MICROS, Clock
from vedette.domain.base.errors import StoreFailed, VedetteError
from vedette.domain.bundle import Bundle
from vedette.domain.decision import (
    NO_ENGINE,
    DecisionRecord,
    EngineAnswer,
    build_denial,
    build_difference_denial,
    build_difference_entry,
    difference_kind,
    evaluate_request,
)
from vedette.domain.ports.command_store import CommandQueue
from vedette.domain.ports.policy_engine import PolicyEngine
from vedette.domain.ports.reasoner import Metrics

# One decision in so many is compared beside the line, unless `[policy] sample` says otherwise.
ONE_IN = 64
_MOST_WAITING = 1000
_BATCH_SIZE = 50
_GATHER_S = 0.05
# How long a store that is away is left alone before what is sampled next is compared.
_AWAY_S = 1.0
# How often an engine that could not be made is made again.
RETRY_US = 60 * MICROS


class SecondOpinion:
    """Asks a second engine about decisions under one bundle. It waits for nothing.

    `engine` is None where there is no other engine here; one that could not be made is the error
    that says why, and agrees with no permit, as one that fails does. `grants` is the bundle's
    `data.grants`. What is put aside for comparing goes to `samples`.
    """

    def __init__(
        self,
        engine: PolicyEngine | Exception | None,
        grants: object,
        metrics: Metrics,
        samples: SampledDecisions | None = None,
        *,
        one_in: int = ONE_IN,
    ) -> None:
        self._engine = engine
        self._inward = inward_tools(grants)
        self._metrics = metrics
        self._samples = SampledDecisions(metrics) if samples is None else samples
        self.one_in = one_in
        self.has_differed = False

    @property
    def name(self) -> str | None:
        """Return the name of the engine, or what keeps it away; None where there is none."""
        if isinstance(self._engine, Exception):
            return f"missing, so nothing outward is permitted: {self._engine}"
        return None if self._engine is None else self._engine.name

    @property
    def is_missing(self) -> bool:
        """Say whether there should be another engine, which could not be made."""
        return isinstance(self._engine, Exception)

    @property
    def is_ready(self) -> bool:
        """Say whether there is another engine that can be asked."""
        return self._engine is not None and not self.is_missing

    def is_due(self, *, outward: bool) -> bool:
        """Say whether another engine must agree to a permit before it counts."""
        return self._engine is not None and (outward or self.has_differed)

    def set_engine(self, engine: PolicyEngine | Exception) -> None:
        """Take the engine that was missing, or why it is missing still."""
        self._engine = engine

    def review(self, decision_record: DecisionRecord, *, outward: bool) -> DecisionRecord:
        """Return a decision as it is, or the deny where a permit meets a difference.

        What is no permit, or not `is_outward`, is left for the sample, unless a difference was
        found before.
        """
        permitted = decision_record.decision.outcome == "permit"
        if not permitted or not (outward or self.has_differed):
            self.sample(decision_record)
            return decision_record
        answers = self._ask_other(decision_record, "permit")
        if answers is None:
            return decision_record
        answer_json = [answer.to_json() for answer in answers]
        return replace(
            decision_record, decision=build_difference_denial(answer_json), answers=answers
        )

    def is_outward(self, request: Mapping[str, Any]) -> bool:
        """Say whether somebody calls a tool of high impact, or policy does not call it inward."""
        action = request["action"]
        own = (request["subject"]["agent"], action["tool"])
        return own not in self._inward or action["high_impact"] is not False

    def sample(self, decision_record: DecisionRecord) -> None:
        """Put a decision aside to be compared beside the line, if it is one of the sample.

        Which ones is a function of the question's bytes: the same in every run of a record.
        """
        if self.is_ready and zlib.crc32(decision_record.request) % self.one_in == 0:
            self._samples.add(self, decision_record)

    def compare(self, decision_record: DecisionRecord) -> DecisionRecord | None:
        """Return a sampled decision with both answers where the engines differ, else None."""
        if not self.is_ready or self._is_same_engine(decision_record):
            return None  # an answer that nobody gave is no difference
        answers = self._ask_other(decision_record, "sample")
        if answers is None:
            return None
        self.has_differed = True
        return replace(decision_record, answers=answers)

    def _is_same_engine(self, decision_record: DecisionRecord) -> bool:
        """Say whether the other engine is the one that decided: behind a server that is away."""
        return getattr(self._engine, "name", None) == decision_record.engine

    def _ask_other(
        self, decision_record: DecisionRecord, where: str
    ) -> tuple[EngineAnswer, EngineAnswer] | None:
        engine = self._engine
        if engine is None:
            return None
        if isinstance(engine, Exception):
            why = f"the second policy engine is missing: {type(engine).__name__}"
            other = EngineAnswer(NO_ENGINE, build_denial("engine.error", why))
        elif self._is_same_engine(decision_record):
            why = "the engine that decided is the only one here"
            other = EngineAnswer(NO_ENGINE, build_denial("engine.error", why))
        else:
            other = EngineAnswer(engine.name, evaluate_request(engine, decision_record.request))
        where = difference_kind(other, where)
        self._metrics.count("second_opinions", where=where)
        if other.decision == decision_record.decision:
            return None
        self._metrics.count("engine_differences", where=where)
        return EngineAnswer(decision_record.engine, decision_record.decision), other


class SampledDecisions:
    """The decisions put aside for a second opinion, each with whom to ask, until they are compared.

    They outlive the revision they were made under. Beyond 1,000 the next ones are dropped, and
    counted.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._waiting: deque[tuple[SecondOpinion, DecisionRecord]] = deque()
        self._arrival = asyncio.Event()

    def add(self, second: SecondOpinion, decision_record: DecisionRecord) -> None:
        """Put a decision aside."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append((second, decision_record))
            self._arrival.set()
        else:
            self._metrics.count("samples_dropped")

    def pop_batch(self) -> list[tuple[SecondOpinion, DecisionRecord]]:
        """Return the next to compare, oldest first, each with whom to ask."""
        waiting = self._waiting
        return [waiting.popleft() for _ in range(min(len(waiting), _BATCH_SIZE))]

    async def compare_batch(self, commands: CommandQueue, trouble: Callable[[str], None]) -> bool:
        """Compare some of them on another thread; say whether there were any.

        A difference becomes an entry and is told. Raises StoreFailed if it cannot be written; then
        it is compared again with all that is left.
        """
        batch = self.pop_batch()
        if not batch:
            return False
        try:
            compared = await asyncio.to_thread(lambda: [one.compare(each) for one, each in batch])
        except asyncio.CancelledError:
            self._waiting.extendleft(reversed(batch))  # who ends the run finishes them
            raise
        for at, decision_record in enumerate(compared):
            if decision_record is None:
                continue
            try:
                await commands.append_entries([build_difference_entry(decision_record, "sample")])
            except BaseException:
                self._waiting.extendleft(reversed(batch[at:]))
                raise
            first, other = decision_record.answers
            trouble(
                f"policy engines differ: {first.engine} says {first.decision.outcome}, "
                f"{other.engine} {other.decision.outcome}; see entry engine.differed"
            )
        return True

    async def watch(self, commands: CommandQueue, trouble: Callable[[str], None]) -> None:
        """Compare what is put aside for as long as the fleet runs, over a store that is away."""
        while True:
            try:
                await self._arrival.wait()
                self._arrival.clear()
                await asyncio.sleep(_GATHER_S)
                while await self.compare_batch(commands, trouble):
                    pass
            except StoreFailed:
                self._arrival.set()
                self._metrics.count("store_failures")
                await asyncio.sleep(_AWAY_S)

    async def finish(self, commands: CommandQueue, trouble: Callable[[str], None]) -> None:
        """Compare all that is waiting by now, at the end; a store that is away ends it early."""
        with suppress(VedetteError):
            for _ in range(0, len(self._waiting), _BATCH_SIZE):
                await self.compare_batch(commands, trouble)


class SecondOpinionFactory:
    """Makes the second opinion of each bundle. `live` is that of the live one, once there is one.

    `load` makes the engine that does not decide: None where there is none, and raises BadPolicy
    where it does not take the bundle. `mount` returns a bundle's data.
    """

    def __init__(
        self,
        load: Callable[[Bundle], PolicyEngine | None],
        mount: Callable[[Mapping[str, bytes]], Mapping[str, Any]],
        metrics: Metrics,
        one_in: int = ONE_IN,
    ) -> None:
        self._load = load
        self._mount = mount
        self._metrics = metrics
        self._one_in = one_in
        self.samples = SampledDecisions(metrics)
        self.live: SecondOpinion | None = None
        self._missing: tuple[SecondOpinion, Bundle] | None = None

    async def create(self, bundle: Bundle) -> SecondOpinion:
        """Make the second opinion of an admitted bundle, off the event loop. Raises BadPolicy."""
        return self._build(bundle, await asyncio.to_thread(self._load, bundle))

    async def create_live(self, bundle: Bundle) -> SecondOpinion:
        """Make the second opinion of a bundle that is live already, off the event loop.

        Where its engine cannot be made, whyever, no permit that needs it is agreed to until
        `retry` could make it.
        """
        try:
            return await self.create(bundle)
        except Exception as error:
            second = self._build(bundle, error)
            self._missing = second, bundle
            return second

    async def retry(self) -> bool:
        """Make the engine that is missing under what is live; say whether it is there now.

        One that is there, or that nobody misses, is left alone.
        """
        if self._missing is None or self._missing[0] is not self.live:
            return False
        second, bundle = self._missing
        try:
            engine = await asyncio.to_thread(self._load, bundle)
        except Exception as error:
            second.set_engine(error)
            return False
        if engine is None:  # it was to be there when the bundle became live: less is no mend
            return False
        second.set_engine(engine)
        if self._missing is not None and self._missing[0] is second:
            self._missing = None
        return True

    async def keep_retrying(self, clock: Clock, trouble: Callable[[str], None]) -> None:
        """Make a missing engine again each minute, for as long as the fleet runs."""
        while True:
            await clock.sleep_until(clock.now_us() + RETRY_US)
            if await self.retry():
                trouble("the second policy engine is there: what is outward is permitted again")

    def _build(self, bundle: Bundle, engine: PolicyEngine | Exception | None) -> SecondOpinion:
        grants = self._mount(bundle.files).get("grants")
        return SecondOpinion(engine, grants, self._metrics, self.samples, one_in=self._one_in)


def inward_tools(grants: object) -> frozenset[tuple[str, str]]:
    """Return the (agent, tool) that grants call inward and of low impact; odd shapes give none."""
    found = set()
    for agent, grant in grants.items() if isinstance(grants, dict) else ():
        listed = grant.get("inward") if isinstance(grant, dict) else None
        tools = grant.get("tools") if isinstance(grant, dict) else None
        for tool in listed if isinstance(listed, list) else ():
            own = tools.get(tool) if isinstance(tools, dict) and isinstance(tool, str) else None
            if isinstance(own, dict) and own.get("impact") == "low":
                found.add((agent, tool))
    return frozenset(found)
