"""Rollout: how another bundle becomes the live one, without a redeploy.

Tried out apart from the fleet; made the live revision by the store, which from then on refuses
steps made under older ones; made live in the gateway; and answered only when no call that
started under an older revision is still on its way. A bundle that is refused changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vedette.bundle import Bundle, Revision
from vedette.clock import Clock
from vedette.digest import canonical
from vedette.entry import Body, Draft
from vedette.errors import BadPolicy
from vedette.identity import Principal
from vedette.ports import Finding, Metrics, PolicyEngine, PolicyStage, Store

_DRAIN_US = 2_000_000


@dataclass(frozen=True, slots=True)
class Published:
    """What came of a publication.

    `took_us` is the time from the wish to the answer; `still_calling` how many calls of older
    revisions had not ended when the bound for waiting was reached (0 is the rule).
    """

    revision: Revision
    changed: bool
    took_us: int
    still_calling: int = 0
    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Say whether the bundle is live."""
        return not self.findings


@dataclass(slots=True)
class Rollout:
    """Publishes bundles, one after the other.

    `prepare` decides under a bundle, as the revision it would get, what must be decided before
    it is live; its entries become durable with the publication. `swap` makes it live here. `admits`
    says what of a bundle does not fit this fleet.
    """

    store: Store
    stage: PolicyStage
    clock: Clock
    live: Revision
    prepare: Callable[[PolicyEngine, int], Sequence[Draft]]
    swap: Callable[[PolicyEngine, Revision], None]
    in_flight_before: Callable[[int], int]
    metrics: Metrics
    _one_at_a_time: asyncio.Lock
    admits: Callable[[Bundle], Sequence[Finding]] = lambda bundle: ()

    async def publish(
        self, bundle: Bundle, who: Principal, reason: str, command: str | None = None
    ) -> Published:
        """Make `bundle` live, or say why not; the last good one stays."""
        async with self._one_at_a_time:
            began = self.clock.monotonic_us()
            if bundle.digest == self.live.digest:
                return Published(self.live, False, 0)
            findings = [*await self.stage.try_out(bundle), *self.admits(bundle)]
            if findings:
                await self._refuse(bundle.digest, [str(finding) for finding in findings], who)
                return Published(self.live, False, 0, findings=tuple(findings))
            engine = self.stage.load(bundle)
            body = Body(canonical({"reason": reason}))
            fields = {"bundle": bundle.digest, "engine": engine.name, "actor": str(who)}
            draft = Draft("policy.published", fields, body=body)
            decided = self.prepare(engine, self.live.number + 1)
            number = await self.store.publish(bundle, [draft, *decided], command=command)
            self.live = Revision(number, bundle.digest)
            self.swap(engine, self.live)
            self.store.adopt(number, 0)
            left = await self._drain(number)
            await self.store.everywhere()
            took = self.clock.monotonic_us() - began
            self.metrics.count("policy_published")
            self.metrics.observe("publish_seconds", took / 1e6)
            return Published(self.live, True, took, left)

    async def follow(self, bundle: Bundle, number: int) -> None:
        """Make live here what another worker published. Raises BadPolicy."""
        async with self._one_at_a_time:
            if number <= self.live.number:
                return
            engine = self.stage.load(bundle)
            # What this decides was made durable with the publication.
            self.prepare(engine, number)
            self.live = Revision(number, bundle.digest)
            self.swap(engine, self.live)
            self.store.adopt(number, 0)

    async def refuse(self, why: BadPolicy, who: Principal) -> None:
        """Record that a folder could not even be read; the last good bundle stays."""
        await self._refuse(None, [str(why)], who)

    async def _refuse(self, digest: str | None, why: Sequence[str], who: Principal) -> None:
        fields: Mapping[str, Any] = {"bundle": digest, "actor": str(who)}
        body = Body(canonical({"findings": list(why[:100])}))
        await self.store.note([Draft("policy.refused", fields, body=body)])
        self.metrics.count("policy_refused")

    async def _drain(self, number: int) -> int:
        end = self.clock.monotonic_us() + _DRAIN_US
        while self.in_flight_before(number) and self.clock.monotonic_us() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return self.in_flight_before(number)
