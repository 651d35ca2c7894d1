"""Rollout: how another bundle becomes the live one, without a redeploy.

Tried out apart from the fleet; made the live revision by the store, which from then on refuses
steps made under older ones; made live in the gateway; and answered only when no call that
started under an older revision is still on its way. A bundle that is refused changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import Any

from vedette.domain.agent import Agent
from vedette.domain.base.canonical import canonical
from vedette.domain.base.clock import Clock
from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.errors import AlreadyDone, BadPolicy, Outrun, VedetteError
from vedette.domain.bundle import Bundle, Revision, find_bundle
from vedette.domain.entry import Body, Draft
from vedette.domain.identity import Principal
from vedette.domain.policy_wasm import PolicyWasm
from vedette.domain.ports import (
    Compiling,
    Finding,
    Metrics,
    PolicyEngine,
    PolicyStage,
    Store,
    Warming,
)
from vedette.policy.compatibility import checked_mark
from vedette.policy.distribution import TRIES, WAIT_S, Archive, Shelving
from vedette.policy.loosening import Loosening
from vedette.policy.second_opinion import SecondOpinion, SecondOpinions

_DRAIN_US = 2_000_000
# A worker that died is waited for until its lease has run out (5 s unless set otherwise), one that
# lives until its calls have ended, 2 s at most. What takes longer than this is told.
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Wish:
    """Who wants a bundle live and why; `commit` is where it comes from, as they told.

    `back_to` is the number of the revision whose content it is, for a rollback. `new_key` signs
    with the key that is here though another signed before. `expects` is the number of the revision
    that the bundle was made from: where another is live by then, nothing is published. `confirmed`
    is the digest of the loosening that was shown to them: without it nothing that loosens is.
    """

    who: Principal
    reason: str
    commit: str | None = None
    back_to: int | None = None
    new_key: bool = False
    expects: int | None = None
    confirmed: str | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """What came of a publication.

    `took_us` is the time from the wish until no call starts and no step commits under anything
    older, `trial_us` the part of it that the trial took; `still_calling` how many calls of older
    revisions had not ended when the bound for waiting was reached (0 is the rule). `archive` is
    the digest of the signed archive; `told` is what a person should know of it or of the shelf.
    `behind` are workers that had not said in time that they start nothing older (none is the rule).
    `loosens` is what the bundle loosens; where that was not confirmed, nothing was published.
    """

    revision: Revision
    changed: bool
    took_us: int
    still_calling: int = 0
    findings: tuple[Finding, ...] = ()
    trial_us: int = 0
    archive: str | None = None
    told: str | None = None
    behind: tuple[str, ...] = ()
    loosens: Loosening = Loosening()
    confirmed: bool = True

    @property
    def ok(self) -> bool:
        """Say whether the bundle is live."""
        return not self.findings and self.confirmed


@dataclass(slots=True)
class Rollout:
    """Publishes bundles, one after the other.

    `prepare` decides under a bundle, as the revision it would get, what must be decided before
    it is live; its entries become durable with the publication. `swap` makes it live here.
    `released` returns the agents of the releases that the fleet runs, and the ledger's entry up to
    which that is so (None where nobody else releases); `admits` says what of a bundle does not fit
    them. `swap_lock` is held from there to the swap, and likewise by who puts a release in place:
    what one decides of the other stays true until it is live. `shelving` signs it and hands it to
    others. `opinions` makes what another engine says of it; a bundle that the other refuses is
    refused. `why` says for people why the engine of the live bundle decides, which `swap` sets.
    `loosens` says what a bundle loosens against the live one, `evidence` what recorded questions
    would be answered by its engine.
    """

    store: Store
    stage: PolicyStage
    clock: Clock
    live: Revision
    prepare: Callable[[PolicyEngine, int], Sequence[Draft]]
    swap: Callable[[PolicyEngine, SecondOpinion, Revision], None]
    in_flight_before: Callable[[int], int]
    metrics: Metrics
    opinions: SecondOpinions
    _one_at_a_time: asyncio.Lock
    released: Callable[[], tuple[Mapping[str, Agent], int | None]] = lambda: ({}, None)
    admits: Callable[[Bundle, Mapping[str, Agent]], Sequence[Finding]] = lambda bundle, agents: ()
    shelving: Shelving | None = None
    loosens: Callable[[Bundle], Loosening] = lambda bundle: Loosening()
    evidence: Callable[[PolicyEngine], tuple[str, ...]] = lambda engine: ()
    patience_s: float = PATIENCE_S
    why: str = ""
    swap_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def publish(self, bundle: Bundle, wish: Wish, command: str | None = None) -> Published:
        """Make `bundle` live, or say why not; the last good one stays.

        Raises Outrun if it was made from another revision than the one that is live.
        """
        async with self._one_at_a_time:
            done, placing = await self._retry_publish(bundle, wish, command)
        # Whoever publishes next need not wait for the shelf.
        return replace(done, told=await self._placed(placing)) if done.changed else done

    async def _retry_publish(
        self, bundle: Bundle, wish: Wish, command: str | None
    ) -> tuple[Published, asyncio.Task[str | None] | None]:
        """Publish; begin anew where another worker was faster.

        What is loosened is other then, and what does not fit an agent that was released. The number
        stands in the archive and in what is decided, so these are made anew too.
        """
        for _ in range(TRIES):
            try:
                return await self._publish(bundle, wish, command)
            except Outrun:
                if wish.expects is not None and wish.expects < self._newest():
                    raise
        raise Outrun("other workers publish all the time", mend="try again")

    async def _publish(
        self, bundle: Bundle, wish: Wish, command: str | None
    ) -> tuple[Published, asyncio.Task[str | None] | None]:
        began = self.clock.monotonic_us()
        live = self._newest()
        if wish.expects is not None and wish.expects < live:
            raise Outrun(f"revision {live} was published meanwhile", mend="try again")
        if bundle.digest == self.live.digest and live == self.live.number and not self._behind():
            await self._keep(bundle, command)
            await self.opinions.retry()
            return Published(self.live, False, 0), None
        # The trial runs in other processes; what signing needs is loaded meanwhile.
        warm = self.shelving.warm() if self.shelving else asyncio.sleep(0)
        found, _ = await asyncio.gather(self.stage.try_out(bundle), warm)
        tried = self.clock.monotonic_us() - began
        async with self.swap_lock:
            done, archive = await self._make_live(bundle, found, wish, command, live)
        if not done.changed:
            return done, None
        placing = self._show(archive)
        left = await self._drain(done.revision.number)
        behind = await self._everywhere()
        took = self.clock.monotonic_us() - began
        self.metrics.count("policy_published")
        self.metrics.observe("publish_seconds", took / 1e6)
        digest = archive.digest if archive else None
        told = replace(
            done, took_us=took, still_calling=left, trial_us=tried, archive=digest, behind=behind
        )
        return told, placing

    def _newest(self) -> int:
        """Return the number of the live revision: another worker may have been faster."""
        return max(self.live.number, self.store.policy_rev)

    async def _make_live(
        self,
        bundle: Bundle,
        found: Sequence[Finding],
        wish: Wish,
        command: str | None,
        live: int,
    ) -> tuple[Published, Archive | None]:
        """Make a bundle that was tried live here, with its archive, or say why not."""
        agents, released = self.released()
        findings = [*found, *self.admits(bundle, agents)]
        if findings:
            return await self._refused(bundle, findings, wish), None
        engine = await self._loaded(bundle)
        loosened = self.loosens(bundle)
        if loosened.says and wish.confirmed != loosened.digest:
            if command is not None and self.store.carried_out(command):
                raise AlreadyDone(f"command {command} was carried out before")
            shown = replace(loosened, evidence=self.evidence(engine))
            return Published(self.live, False, 0, loosens=shown, confirmed=False), None
        try:
            second = await self.opinions.make(bundle)
            number, archive = await self._commit(
                bundle, engine, wish, command, loosened, live, released
            )
        except BadPolicy as error:  # what the other engine, or an archive, does not take
            finding = Finding(error.where or "policies", 1, error.what, error.mend or "")
            return await self._refused(bundle, [finding], wish), None
        self.live = Revision(number, bundle.digest)
        self.swap(engine, second, self.live)
        self.store.adopt(number, 0)
        return Published(self.live, True, 0, loosens=loosened), archive

    async def _keep(self, bundle: Bundle, command: str | None) -> None:
        """Keep the id of an order that found everything so already.

        Should another order change it, a repeat of this one must not change it back. Where
        somebody edited the bundle's row, it is written anew.
        """
        if find_bundle(self.store.bundle, bundle.digest) is None:
            await self.store.note([], bundle)
        if command is not None:
            with suppress(AlreadyDone):
                await self.store.note([], command=command)

    async def _loaded(self, bundle: Bundle) -> PolicyEngine:
        """Make an engine, holding the event loop up no longer than the embedded one takes."""
        if isinstance(self.stage, Warming):
            await self.stage.warm(bundle)
        return self.stage.load(bundle)

    async def _everywhere(self) -> tuple[str, ...]:
        """Wait for the other workers, within a bound; return those that were still behind.

        The revision is live and durable without them: nothing that they decide under an older one
        commits. Whoever publishes next must not wait for them too.
        """
        try:
            await asyncio.wait_for(self.store.everywhere(), self.patience_s)
        except TimeoutError:
            return tuple(self.store.behind)
        return ()

    async def _refused(self, bundle: Bundle, findings: Sequence[Finding], wish: Wish) -> Published:
        await self._refuse(bundle.digest, [str(finding) for finding in findings], wish.who)
        return Published(self.live, False, 0, findings=tuple(findings))

    async def _commit(
        self,
        bundle: Bundle,
        engine: PolicyEngine,
        wish: Wish,
        command: str | None,
        loosened: Loosening,
        live: int,
        released: int | None,
    ) -> tuple[int, Archive | None]:
        """Make the revision durable under its number, with its archive and what it decides.

        `live` is the number of the revision that it was compared with, `released` the entry up to
        which releases were. Raises Outrun if another is live by now.
        """
        told = {"loosens": list(loosened.says)} if loosened.says else {}
        body = Body(canonical({"reason": wish.reason, **told}))
        wasm = self.stage.wasm(bundle) if isinstance(self.stage, Compiling) else None
        number = self.shelving.next_number(live) if self.shelving else live + 1
        archive = self._pack(bundle, number, wish, wasm)
        marks = (archive.marks() if archive else {}) | (wasm.marks() if wasm else {})
        marks |= checked_mark(bundle.digest, ())
        fields = {
            "bundle": bundle.digest,
            "engine": engine.name,
            "wasm": wasm.digest if wasm else None,
            "actor": str(wish.who),
            "commit": wish.commit,
            "back_to": wish.back_to,
            "archive": archive.digest if archive else None,
            "signer": archive.key if archive else None,
        }
        draft = Draft("policy.published", fields, body=body)
        decided = self.prepare(engine, number)
        expects = live if wish.expects is None else wish.expects
        await self.store.publish(
            bundle, [draft, *decided], command=command, number=number,
            marks=marks, expects=expects, released=released,
        )  # fmt: skip
        return number, archive

    def _pack(
        self, bundle: Bundle, number: int, wish: Wish, wasm: PolicyWasm | None
    ) -> Archive | None:
        if self.shelving is None:
            return None
        return self.shelving.pack(
            bundle, number, str(wish.who), wish.commit, wasm, new_key=wish.new_key
        )

    def _behind(self) -> bool:
        return self.shelving is not None and self.shelving.behind(self.live.number)

    def _show(self, archive: Archive | None) -> asyncio.Task[str | None] | None:
        """Hand out the archive of what is live now, and bring it to the shelf meanwhile."""
        if self.shelving is None:
            return None
        self.shelving.show(archive)
        if archive is None:
            return None
        return asyncio.create_task(self.shelving.place(archive), name="shelf")

    async def _placed(self, placing: asyncio.Task[str | None] | None) -> str | None:
        """Wait for the shelf, within a bound; the policy is in force without it."""
        if placing is None:
            return self.shelving.unsigned() if self.shelving else None
        done, _ = await asyncio.wait({placing}, timeout=WAIT_S)
        return placing.result() if done else "the shelf does not answer; it is tried on"

    async def catch_up(self) -> None:
        """Make live here what is live in the store. Raises BadPolicy, StoreFailed, Unavailable.

        Another worker published it, or this one did by a commit that stood although it raised.
        """
        number, digest = self.store.revision()
        files = self.store.bundle(digest)
        if files is not None:
            await self.follow(Bundle.recorded(files, digest), number)

    async def retry(self) -> None:
        """Catch up if that is possible now: not while something is published."""
        if not self._one_at_a_time.locked():
            with suppress(VedetteError):  # what is in the way is tried again
                await self.catch_up()

    async def follow(self, bundle: Bundle, number: int) -> None:
        """Make live here what another worker published. Raises BadPolicy."""
        async with self._one_at_a_time:
            if number <= self.live.number:
                return
            engine = await self._loaded(bundle)
            second = await self.opinions.make_live(bundle)
            async with self.swap_lock:
                # What this decides was made durable with the publication.
                self.prepare(engine, number)
                self.live = Revision(number, bundle.digest)
                self.swap(engine, second, self.live)
                self.store.adopt(number, 0)
            if self.shelving is not None:
                self.shelving.refresh()

    async def keep_shelf(self, leads: Callable[[], bool], trouble: Callable[[str], None]) -> None:
        """Keep archive and shelf up to what is live, for as long as the fleet runs."""
        if self.shelving is None:
            await asyncio.Event().wait()
        else:
            await self.shelving.keep(leads, trouble)

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
