"""Residuals: functions that permit what one bundle's full engine permits, at a part of its cost.

Each is made for what one (release of an agent, tool) asks, once that was permitted often enough, on
another thread; compared with the full engine on the questions that were asked and on many around
them; and used from then on until another bundle is live. It permits or gives way, so a hold or a
denial is always the full engine's. One difference, then or later in a sample, and no residual of
the bundle answers any more. Nothing here is a cache: each question is evaluated.

A residual stands for the full engine where that engine's word alone counts. For what is outward or
of high impact, and where a second engine must agree before a permit counts, the full engine is
asked; replay and verification never meet one.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from msgspec import Struct, field

from vedette.domain.base.canonical import canonical_json
from vedette.domain.bundle import Bundle
from vedette.domain.decision import Decision, check_request, evaluate_request
from vedette.domain.ports.policy_engine import (
    MAX_QUESTION_BYTES,
    PolicyEngine,
    Residual,
    ResidualCompiler,
)
from vedette.domain.ports.reasoner import Metrics

# To make and compare one costs what it then spares in some 4,000 permits: who asks seldom has none.
THRESHOLD = 1000
# Of what is asked until then the last are compared; so many more are drawn around them.
_MOST_RECORDED = 24
DRAWN = 600
# Of more (agent, release, tool) than these, the one that was asked least lately is forgotten.
MOST_KEYS = 512
# Knuth, The Art of Computer Programming 3, 6.4: 2**32 by the golden ratio, as an odd number.
_MIX = 0x9E3779B1

_Key = tuple[str, str, str]


class _Asked(Struct):
    """What was asked of the full engine for one (agent, release, tool) so far."""

    permits: int = 0
    recorded: deque[bytes] = field(default_factory=lambda: deque(maxlen=_MOST_RECORDED))
    permitted: bytes = b""


class ResidualSet:
    """The residuals of one bundle, beside the full engine that it is loaded in.

    `load_compiler` makes what makes them, on another thread. One permit in `one_in` is asked of
    the full engine too, which ones is a function of the question's bytes. After `threshold` permits
    of a tool there is one to make. Then, and when all are refused, `on_event` is called. At most
    `most_keys` (agent, release, tool) are kept.
    """

    def __init__(
        self,
        engine: PolicyEngine,
        load_compiler: Callable[[], ResidualCompiler],
        metrics: Metrics,
        *,
        one_in: int,
        threshold: int = THRESHOLD,
        most_keys: int = MOST_KEYS,
        on_event: Callable[[], object] = lambda: None,
    ) -> None:
        self._engine = engine
        self._load_compiler = load_compiler
        self._compiler: ResidualCompiler | None = None
        self._metrics = metrics
        self._one_in = one_in
        self.threshold = threshold
        self._most_keys = most_keys
        self._on_event = on_event
        self._asked: dict[_Key, _Asked] = {}
        self._residuals: dict[_Key, Residual | None] = {}
        self._waiting: deque[_Key] = deque()
        # Keys of both, in the order in which they were last asked.
        self._used: dict[_Key, None] = {}
        self._note = ""
        self.refusal: str | None = None

    @property
    def name(self) -> str:
        """Return by which name a record says that a residual permitted."""
        return f"{self._engine.name} residual"

    @property
    def count(self) -> int:
        """Return how many residuals answer."""
        return sum(residual is not None for residual in self._residuals.values())

    @property
    def state(self) -> str:
        """Say in words how the residuals stand."""
        if self.refusal is not None:
            return f"refused, the full engine alone decides: {self.refusal}"
        made = f"{self.count} answer"
        without = sum(residual is None for residual in self._residuals.values())
        return f"{made}, {without} could not be made: {self._note}" if without else made

    def permit(self, request: Mapping[str, Any], raw: bytes) -> Decision | None:
        """Return the permit of a residual; None where the full engine is to be asked."""
        key = _key(request)
        residual = self._residuals.get(key)
        if residual is None:
            return None
        self._use(key)
        decision = residual.permit(raw)
        if decision is None:
            return None
        if _is_sampled(raw, self._one_in):
            right = evaluate_request(self._engine, raw)
            if right != decision:
                self.refuse(f"{_name(key)}: {_describe_difference(right)}")
                return None
        self._metrics.count("residual_permits")
        return decision

    def note(self, request: Mapping[str, Any], raw: bytes, decision: Decision) -> None:
        """Note what the full engine decided, so that what is permitted often gets a residual.

        A question that is too long for any is none that one is made or compared by.
        """
        if self.refusal is not None or len(raw) > MAX_QUESTION_BYTES:
            return
        key = _key(request)
        self._use(key)
        if key in self._residuals:
            return
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = _Asked()
        asked.recorded.append(raw)
        if decision.outcome != "permit":
            return
        asked.permitted = raw
        asked.permits += 1
        if asked.permits == self.threshold:
            self._waiting.append(key)
            self._on_event()

    def refuse(self, why: str) -> None:
        """Let no residual of this bundle answer any more."""
        self.refusal = why
        self._residuals = dict.fromkeys(self._residuals)
        self._waiting.clear()
        self._asked.clear()
        self._used.clear()
        self._metrics.count("residuals_refused")
        self._on_event()

    async def make_next(self) -> bool:
        """Make and compare the next residual on another thread; say whether there was one."""
        found = self._take_waiting()
        if found is None:
            return False
        made = await asyncio.to_thread(self._make, *found)
        if self.refusal is None:
            self._adopt(found[0], made)
        return True

    def make_now(self) -> None:
        """Make and compare all that are to be made, on this thread."""
        while (found := self._take_waiting()) is not None:
            self._adopt(found[0], self._make(*found))

    def _take_waiting(self) -> tuple[_Key, bytes, list[bytes]] | None:
        """Take the next key whose residual is to be made, with what was permitted, and asked."""
        while self._waiting:
            key = self._waiting.popleft()
            asked = self._asked.get(key)
            if asked is not None:  # else it was forgotten meanwhile
                return key, asked.permitted, [asked.permitted, *asked.recorded]
        return None

    def _adopt(self, key: _Key, made: Residual | str | None) -> None:
        if isinstance(made, str):
            self.refuse(made)
            return
        if self._asked.pop(key, None) is not None:
            self._residuals[key] = made

    def _use(self, key: _Key) -> None:
        """Count a key as asked last; forget the one that was asked least lately of too many."""
        self._used.pop(key, None)
        self._used[key] = None
        if len(self._used) > self._most_keys:
            oldest = next(iter(self._used))
            del self._used[oldest]
            self._asked.pop(oldest, None)
            self._residuals.pop(oldest, None)

    def _make(self, key: _Key, permitted: bytes, recorded: list[bytes]) -> Residual | str | None:
        """Return a residual that was compared, why it is refused, or None if none can be made."""
        try:
            if self._compiler is None:
                self._compiler = self._load_compiler()
            residual = self._compiler.compile(orjson.loads(permitted))
            compared, difference = compare_residual(
                residual, self._engine, recorded, f"{self._engine.digest} {key}"
            )
        except Exception as error:  # whatever it is, the full engine decides
            self._note = f"{_name(key)}: {error}"
            return None
        if difference is not None:
            return f"{_name(key)}: {difference}"
        if not compared:
            self._note = f"{_name(key)}: it permits nothing that was asked"
            return None
        return residual


def compare_residual(
    residual: Residual, engine: PolicyEngine, recorded: list[bytes], seed: str, many: int = DRAWN
) -> tuple[int, str | None]:
    """Put questions that were asked, and many around them, to a residual and the full engine.

    Returns how many the residual permitted, and in words the first on which they differ.
    """
    from vedette.policy.residual_requests import RequestVariation

    compared = 0
    for request in RequestVariation(recorded, residual.literals, seed).draw(many):
        raw = canonical_json(request)
        decision = residual.permit(raw)
        if decision is None or check_request(request) is not None:
            continue
        compared += 1
        right = evaluate_request(engine, raw)
        if right != decision:
            return compared, _describe_difference(right)
    return compared, None


class ResidualFactory:
    """Makes the residuals of each bundle that becomes live. `live` are those of the live one.

    `load_compiler` makes of a bundle what makes its residuals, None where there are to be none.
    `threshold` is how many permits of a tool go before its residual, of bundles from now on.
    """

    def __init__(
        self,
        load_compiler: Callable[[Bundle], ResidualCompiler] | None,
        metrics: Metrics,
        one_in: int,
        threshold: int = THRESHOLD,
    ) -> None:
        self._load_compiler = load_compiler
        self._metrics = metrics
        self._one_in = one_in
        self.threshold = threshold
        self._arrival = asyncio.Event()
        self.live: ResidualSet | None = None

    @property
    def state(self) -> str:
        """Say in words how the residuals of the live policy stand."""
        return "none: the full engine decides all" if self.live is None else self.live.state

    def set_live(self, bundle: Bundle, engine: PolicyEngine) -> ResidualSet | None:
        """Return the residuals of the bundle that becomes live with this: none are made yet.

        They stand for OPA's Wasm alone, by which they are proved.
        """
        self.live = None
        self._metrics.gauge("residuals", 0)
        load = self._load_compiler
        if load is not None and engine.name.startswith("opa wasm"):
            self.live = ResidualSet(
                engine, lambda: load(bundle), self._metrics, one_in=self._one_in,
                threshold=self.threshold, on_event=self._arrival.set,
            )  # fmt: skip
        return self.live

    async def watch(self, trouble: Callable[[str], None]) -> None:
        """Make residuals for as long as the fleet runs; tell what is refused."""
        told: ResidualSet | None = None
        while True:
            await self._arrival.wait()
            self._arrival.clear()
            live = self.live
            if live is None:
                continue
            while live is self.live and await live.make_next():
                if live is self.live:  # another may have become live meanwhile
                    self._metrics.gauge("residuals", live.count)
            if live.refusal is not None and told is not live:
                told = live
                if live is self.live:
                    self._metrics.gauge("residuals", 0)
                trouble(f"residuals of the policy are {live.state}")


def _key(request: Mapping[str, Any]) -> _Key:
    subject = request["subject"]
    return subject["agent"], subject["release"], request["action"]["tool"]


def _is_sampled(raw: bytes, one_in: int) -> bool:
    """Say whether a permit is asked of the full engine too: a function of the question's bytes.

    Not that of the second engine's sample, or both would always look at the same questions.
    """
    return ((zlib.crc32(raw) * _MIX & 0xFFFFFFFF) >> 8) % one_in == 0


def _name(key: _Key) -> str:
    agent, release, tool = key
    return f"{agent} {release[:12]} {tool}"


def _describe_difference(right: Decision) -> str:
    return f"a residual permits what is a {right.outcome} by {right.rule}, or permits it otherwise"
