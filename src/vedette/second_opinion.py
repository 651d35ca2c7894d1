"""The second opinion: the engine that does not decide is asked too, and a difference is a deny.

A fault of one policy engine is found by another that shares no code with it. Every permit of a
tool that is outward or high-impact is asked of both before it counts. Of all other decisions a
sample is compared beside the line; one difference there, and for the rest of the revision every
permit is asked of both.

Policy data says which tools are *inward*: `inward: [TOOL, …]` of an agent in grants/data.yaml. What
is not listed there is outward, and so is whatever is of high impact by its grant or declaration.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from threading import Thread
from typing import Any, Protocol

from vedette.bundle import Bundle
from vedette.decision import denied
from vedette.digest import canonical
from vedette.entry import Body, Draft
from vedette.ports import Metrics, PolicyEngine
from vedette.question import Answer, Decided, answer_of, differing

# One decision in so many is compared beside the line, unless `[policy] sample` says otherwise.
ONE_IN = 64
# A decision waits so long for an engine that is still being made; the start does not wait for it.
PATIENCE_S = 10.0
_MOST_WAITING = 1000
_AT_ONCE = 50
_EVERY_S = 0.05


class SecondOpinion:
    """Asks a second engine about decisions under one bundle.

    `engine` may still be on its way: who needs it waits `PATIENCE_S` at most. None means that
    there is no other engine here; one that cannot be made, or fails, agrees with no permit.
    `grants` is the bundle's `data.grants`.
    """

    def __init__(
        self,
        engine: Future[PolicyEngine | None],
        grants: object,
        metrics: Metrics,
        *,
        one_in: int = ONE_IN,
    ) -> None:
        self._engine = engine
        self._inward = inward_tools(grants)
        self._metrics = metrics
        self.one_in = one_in
        self._waiting: deque[Decided] = deque(maxlen=_MOST_WAITING)
        self.doubted = False

    @property
    def name(self) -> str | None:
        """Return the name of the engine, or what keeps it away; None where there is none."""
        if not self._engine.done():
            return "still being made"
        error = self._engine.exception()
        if error is not None:
            return f"missing, so nothing outward is permitted: {error}"
        engine = self._engine.result()
        return None if engine is None else engine.name

    @property
    def ready(self) -> bool:
        """Say whether there is another engine and it can be asked at once."""
        made = self._engine.done() and self._engine.exception() is None
        return made and self._engine.result() is not None

    def review(self, decided: Decided, question: Mapping[str, Any]) -> Decided:
        """Return a decision about a tool as it is, or the deny where a permit meets a difference.

        What is no permit, or inward and of low impact, is left for the sample, unless a difference
        was found before.
        """
        permitted = decided.decision.outcome == "permit"
        if not permitted or (self.inward(question) and not self.doubted):
            self.sample(decided)
            return decided
        answers = self._compare(decided, "permit")
        if answers is None:
            return decided
        told = [answer.to_json() for answer in answers]
        return replace(decided, decision=differing(told), answers=answers)

    def inward(self, question: Mapping[str, Any]) -> bool:
        """Say whether policy calls the tool inward, and nobody calls it of high impact."""
        action = question["action"]
        own = (question["subject"]["agent"], action["tool"])
        return own in self._inward and action["high_impact"] is False

    def sample(self, decided: Decided) -> None:
        """Put a decision aside to be compared beside the line, if it is one of the sample.

        Which ones is a function of the question's bytes: the same in every run of a record.
        """
        if zlib.crc32(decided.question) % self.one_in == 0:
            self._waiting.append(decided)

    def take(self) -> list[Decided]:
        """Return the next decisions to compare, oldest first."""
        waiting = self._waiting
        return [waiting.popleft() for _ in range(min(len(waiting), _AT_ONCE))]

    def compare(self, sampled: list[Decided]) -> list[Decided]:
        """Return those on which the engines differ, each with both answers. May take a while."""
        found = []
        for decided in sampled:
            answers = self._compare(decided, "sample")
            if answers is not None:
                self.doubted = True
                found.append(replace(decided, answers=answers))
        return found

    def _compare(self, decided: Decided, where: str) -> tuple[Answer, Answer] | None:
        try:
            engine = self._engine.result(PATIENCE_S)
            if engine is None:
                return None
            other = Answer(engine.name, answer_of(engine, decided.question))
        except Exception as error:
            why = f"the second policy engine is missing: {type(error).__name__}"
            other = Answer("none", denied("engine.error", why))
        self._metrics.count("second_opinions", where=where)
        if other.decision == decided.decision:
            return None
        self._metrics.count("engine_differences", where=where)
        return Answer(decided.engine, decided.decision), other


class SecondOpinions:
    """Makes the second opinion of each bundle.

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

    async def make(self, bundle: Bundle) -> SecondOpinion:
        """Make the second opinion of an admitted bundle, off the event loop. Raises BadPolicy."""
        coming: Future[PolicyEngine | None] = Future()
        coming.set_result(await asyncio.to_thread(self._load, bundle))
        return self._of(bundle, coming)

    def begin(self, bundle: Bundle) -> SecondOpinion:
        """Begin to make the second opinion of a bundle that is live already; waits for nothing."""
        coming: Future[PolicyEngine | None] = Future()

        def work() -> None:
            try:
                coming.set_result(self._load(bundle))
            except BaseException as error:  # whoever waits is told, whatever it was
                coming.set_exception(error)

        Thread(target=work, name="second opinion", daemon=True).start()
        return self._of(bundle, coming)

    def _of(self, bundle: Bundle, coming: Future[PolicyEngine | None]) -> SecondOpinion:
        grants = self._mount(bundle.files).get("grants")
        return SecondOpinion(coming, grants, self._metrics, one_in=self._one_in)


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


class _Judged(Protocol):
    @property
    def second(self) -> SecondOpinion | None: ...


class _Notes(Protocol):
    async def note(self, drafts: list[Draft]) -> int: ...


async def compare_samples(gateway: _Judged, store: _Notes, trouble: Callable[[str], None]) -> None:
    """Compare what was sampled, beside the line, for as long as the fleet runs.

    A difference becomes an entry and is told. Raises StoreFailed if the entry cannot be written.
    """
    while True:
        second = gateway.second
        sampled = second.take() if second is not None else []
        if second is None or not sampled:
            await asyncio.sleep(_EVERY_S)
            continue
        for decided in await asyncio.to_thread(second.compare, sampled):
            await store.note([difference(decided, "sample")])
            first, other = decided.answers
            trouble(
                f"policy engines differ: {first.engine} says {first.decision.outcome}, "
                f"{other.engine} {other.decision.outcome}; see entry engine.differed"
            )


def difference(decided: Decided, where: str, **fields: Any) -> Draft:
    """Return the entry of a difference: who would have decided, and in the body both answers.

    `where` is `permit` (it was a deny at once) or `sample` (found beside the line).
    """
    first = decided.answers[0]
    return Draft(
        "engine.differed",
        {
            "what": where,
            "engine": first.engine,
            "outcome": first.decision.outcome,
            "rule": first.decision.rule,
            "policy_rev": decided.policy_rev,
            "bundle": decided.bundle,
            **fields,
        },
        body=Body(canonical({"answers": [answer.to_json() for answer in decided.answers]})),
    )
