"""Rollout: how another bundle becomes the live one, without a redeploy.

Tried out apart from the fleet; made the live revision by the store, which from then on refuses
steps made under older ones; made live in the gateway; and answered only when no call that
started under an older revision is still on its way. A bundle that is refused changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from vedette.domain.agent import Agent
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.clock import Clock
from vedette.domain.base.errors import AlreadyDone, BadPolicy, VedetteError, WriteConflict
from vedette.domain.bundle import Bundle, Finding, Revision, find_bundle
from vedette.domain.entry import Body, Draft
from vedette.domain.identity import Principal
from vedette.domain.policy_wasm import PolicyWasm
from vedette.domain.ports.policy_engine import (
    CompilationStage,
    PolicyEngine,
    PolicyStage,
    WarmupStage,
)
from vedette.domain.ports.reasoner import Metrics
from vedette.domain.ports.store import Store
from vedette.policy.compatibility import build_check_mark
from vedette.policy.distribution import TRIES, WAIT_S, Archive, BundleDistributor
from vedette.policy.loosening import Loosening
from vedette.policy.residuals import ResidualFactory
from vedette.policy.second_opinion import SecondOpinion, SecondOpinionFactory

_DRAIN_US = 2_000_000
# A worker that died is waited for until its lease has run out (5 s unless set otherwise), one that
# lives until its calls have ended, 2 s at most. What takes longer than this is told.
PATIENCE_S = 30.0


class PublishRequest(Struct, frozen=True):
    """Who wants a bundle live and why; `commit` is where it comes from, as they told.

    `back_to` is the number of the revision whose content it is, for a rollback. `new_key` signs
    with the key that is here though another signed before. `expected_revision` is the number of the
    revision that the bundle was made from: where another is live by then, nothing is published.
    `confirmed` is the digest of the loosening that was shown to them: without it nothing that
    loosens is.
    """

    who: Principal
    reason: str
    commit: str | None = None
    back_to: int | None = None
    new_key: bool = False
    expected_revision: int | None = None
    confirmed: str | None = None


class PublishResult(Struct, frozen=True):
    """What came of a policy bundle's publication.

    `took_us` is the time from the wish until no call starts and no step commits under anything
    older, `trial_us` the part of it that the trial took; `open_calls` how many calls of older
    revisions had not ended when the bound for waiting was reached (0 is the rule). `archive` is the
    digest of the signed archive; `message` is what a person should know of it or of the repository.
    `lagging_workers` are workers that had not said in time that they start nothing older (none is
    the rule). `loosening` is what the bundle loosens; where that was not confirmed, nothing was
    published.
    """

    revision: Revision
    changed: bool
    took_us: int
    open_calls: int = 0
    findings: tuple[Finding, ...] = ()
    trial_us: int = 0
    archive: str | None = None
    message: str | None = None
    lagging_workers: tuple[str, ...] = ()
    loosening: Loosening = Loosening()
    confirmed: bool = True

    @property
    def ok(self) -> bool:
        """Say whether the bundle is live."""
        return not self.findings and self.confirmed


class Rollout(Struct):
    """Publishes policy bundles, one after the other.

    `prepare` decides under a bundle, as the revision it would get, what must be decided before it
    is live; its entries become durable with the publication. `swap` makes it live here.
    `load_releases` returns the agents of the releases that the fleet runs, and the ledger's entry
    up to which that is so (None where nobody else releases); `check_agents` says what of a bundle
    does not fit them. `swap_lock` is held from there to the swap, and likewise by who puts a
    release in place: what one decides of the other stays true until it is live. `distributor` signs
    it and hands it to others. `second_opinions` makes what another engine says of it; a bundle that
    the other refuses is refused. `engine_reason` says for people why the engine of the live bundle
    decides, which `swap` sets. `find_loosening` says what a bundle loosens against the live one,
    `evidence` what recorded questions would be answered by its engine. `residuals` makes what may
    permit in the live engine's place.
    """

    store: Store
    stage: PolicyStage
    clock: Clock
    live: Revision
    prepare: Callable[[PolicyEngine, int], Sequence[Draft]]
    swap: Callable[[PolicyEngine, SecondOpinion, Revision, Bundle], None]
    count_calls_before: Callable[[int], int]
    metrics: Metrics
    second_opinions: SecondOpinionFactory
    residuals: ResidualFactory
    _publish_lock: asyncio.Lock
    load_releases: Callable[[], tuple[Mapping[str, Agent], int | None]] = lambda: ({}, None)
    check_agents: Callable[[Bundle, Mapping[str, Agent]], Sequence[Finding]] = (
        lambda bundle, agents: ()
    )
    distributor: BundleDistributor | None = None
    find_loosening: Callable[[Bundle], Loosening] = lambda bundle: Loosening()
    evidence: Callable[[PolicyEngine], tuple[str, ...]] = lambda engine: ()
    patience_s: float = PATIENCE_S
    engine_reason: str = ""
    swap_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def publish(
        self, bundle: Bundle, request: PublishRequest, command: str | None = None
    ) -> PublishResult:
        """Make `bundle` live, or say why not; the last good one stays.

        Raises WriteConflict if it was made from another revision than the one that is live.
        """
        async with self._publish_lock:
            done, upload = await self._retry_publish(bundle, request, command)
        # Whoever publishes next need not wait for the repository.
        return replace(done, message=await self._await_upload(upload)) if done.changed else done

    async def _retry_publish(
        self, bundle: Bundle, request: PublishRequest, command: str | None
    ) -> tuple[PublishResult, asyncio.Task[str | None] | None]:
        """Publish; begin anew where another worker was faster.

        What is loosened is other then, and what does not fit an agent that was released. The number
        stands in the archive and in what is decided, so these are made anew too.
        """
        for _ in range(TRIES):
            try:
                return await self._publish(bundle, request, command)
            except WriteConflict:
                if (
                    request.expected_revision is not None
                    and request.expected_revision < self._newest_revision()
                ):
                    raise
        raise WriteConflict("other workers publish all the time", mend="try again")

    async def _publish(
        self, bundle: Bundle, request: PublishRequest, command: str | None
    ) -> tuple[PublishResult, asyncio.Task[str | None] | None]:
        began = self.clock.monotonic_us()
        live = self._newest_revision()
        if request.expected_revision is not None and request.expected_revision < live:
            raise WriteConflict(f"revision {live} was published meanwhile", mend="try again")
        if bundle.digest == self.live.digest and live == self.live.number and not self._is_behind():
            await self._record_unchanged(bundle, command)
            await self.second_opinions.retry()
            return PublishResult(self.live, False, 0), None
        # The trial runs in other processes; what signing needs is loaded meanwhile.
        warm = self.distributor.warm() if self.distributor else asyncio.sleep(0)
        found, _ = await asyncio.gather(self.stage.try_out(bundle), warm)
        tried = self.clock.monotonic_us() - began
        async with self.swap_lock:
            done, archive = await self._make_live(bundle, found, request, command, live)
        if not done.changed:
            return done, None
        upload = self._distribute(archive)
        left = await self._drain(done.revision.number)
        behind = await self._await_workers()
        took = self.clock.monotonic_us() - began
        self.metrics.count("policy_published")
        self.metrics.observe("publish_seconds", took / 1e6)
        digest = archive.digest if archive else None
        result = replace(
            done,
            took_us=took,
            open_calls=left,
            trial_us=tried,
            archive=digest,
            lagging_workers=behind,
        )
        return result, upload

    def _newest_revision(self) -> int:
        """Return the number of the live revision: another worker may have been faster."""
        return max(self.live.number, self.store.cluster.policy_rev)

    async def _make_live(
        self,
        bundle: Bundle,
        found: Sequence[Finding],
        request: PublishRequest,
        command: str | None,
        live: int,
    ) -> tuple[PublishResult, Archive | None]:
        """Make a bundle that was tried live here, with its archive, or say why not."""
        agents, released = self.load_releases()
        findings = [*found, *self.check_agents(bundle, agents)]
        if findings:
            return await self._refuse_bundle(bundle, findings, request), None
        engine = await self._load_engine(bundle)
        loosening = self.find_loosening(bundle)
        if loosening.statements and request.confirmed != loosening.digest:
            if command is not None and self.store.is_command_done(command):
                raise AlreadyDone(f"command {command} was carried out before")
            shown = replace(loosening, evidence=self.evidence(engine))
            return PublishResult(self.live, False, 0, loosening=shown, confirmed=False), None
        try:
            second = await self.second_opinions.create(bundle)
            number, archive = await self._commit(
                bundle, engine, request, command, loosening, live, released
            )
        except BadPolicy as error:  # what the other engine, or an archive, does not take
            finding = Finding(error.where or "policies", 1, error.what, error.mend or "")
            return await self._refuse_bundle(bundle, [finding], request), None
        self.live = Revision(number, bundle.digest)
        self.swap(engine, second, self.live, bundle)
        self.store.cluster.adopt(number, 0)
        return PublishResult(self.live, True, 0, loosening=loosening), archive

    async def _record_unchanged(self, bundle: Bundle, command: str | None) -> None:
        """Keep the id of an order that found everything so already.

        Should another order change it, a repeat of this one must not change it back. Where
        somebody edited the bundle's row, it is written anew.
        """
        if find_bundle(self.store.policy.bundle_files, bundle.digest) is None:
            await self.store.commands.append_entries([], bundle)
        if command is not None:
            with suppress(AlreadyDone):
                await self.store.commands.append_entries([], command=command)

    async def _load_engine(self, bundle: Bundle) -> PolicyEngine:
        """Make an engine, holding the event loop up no longer than the embedded one takes."""
        if isinstance(self.stage, WarmupStage):
            await self.stage.warm(bundle)
        return self.stage.load(bundle)

    async def _await_workers(self) -> tuple[str, ...]:
        """Wait for the other workers, within a bound; return those that were still behind.

        The revision is live and durable without them: nothing that they decide under an older one
        commits. Whoever publishes next must not wait for them too.
        """
        try:
            await asyncio.wait_for(self.store.cluster.wait_for_barrier(), self.patience_s)
        except TimeoutError:
            return tuple(self.store.cluster.lagging_workers)
        return ()

    async def _refuse_bundle(
        self, bundle: Bundle, findings: Sequence[Finding], request: PublishRequest
    ) -> PublishResult:
        await self._note_refusal(bundle.digest, [str(finding) for finding in findings], request.who)
        return PublishResult(self.live, False, 0, findings=tuple(findings))

    async def _commit(
        self,
        bundle: Bundle,
        engine: PolicyEngine,
        request: PublishRequest,
        command: str | None,
        loosening: Loosening,
        live: int,
        released: int | None,
    ) -> tuple[int, Archive | None]:
        """Make the revision durable under its number, with its archive and what it decides.

        `live` is the number of the revision that it was compared with, `load_releases` the entry up
        to which releases were. Raises WriteConflict if another is live by now.
        """
        details = {"loosens": list(loosening.statements)} if loosening.statements else {}
        body = Body(canonical_json({"reason": request.reason, **details}))
        wasm = self.stage.wasm(bundle) if isinstance(self.stage, CompilationStage) else None
        number = self.distributor.next_number(live) if self.distributor else live + 1
        archive = self._pack(bundle, number, request, wasm)
        marks = (archive.marks() if archive else {}) | (wasm.to_meta() if wasm else {})
        marks |= build_check_mark(bundle.digest, ())
        fields = {
            "bundle": bundle.digest,
            "engine": engine.name,
            "wasm": wasm.digest if wasm else None,
            "actor": str(request.who),
            "commit": request.commit,
            "back_to": request.back_to,
            "archive": archive.digest if archive else None,
            "signer": archive.key if archive else None,
        }
        draft = Draft("policy.published", fields, body=body)
        drafts = self.prepare(engine, number)
        expects = live if request.expected_revision is None else request.expected_revision
        await self.store.commands.publish(
            bundle, [draft, *drafts], command=command, number=number,
            meta=marks, expected_revision=expects, released=released,
        )  # fmt: skip
        return number, archive

    def _pack(
        self, bundle: Bundle, number: int, request: PublishRequest, wasm: PolicyWasm | None
    ) -> Archive | None:
        if self.distributor is None:
            return None
        return self.distributor.pack(
            bundle, number, str(request.who), request.commit, wasm, new_key=request.new_key
        )

    def _is_behind(self) -> bool:
        return self.distributor is not None and self.distributor.is_behind(self.live.number)

    def _distribute(self, archive: Archive | None) -> asyncio.Task[str | None] | None:
        """Hand out the archive of what is live now, and bring it to the repository meanwhile."""
        if self.distributor is None:
            return None
        self.distributor.set_live(archive)
        if archive is None:
            return None
        return asyncio.create_task(self.distributor.upload(archive), name="shelf")

    async def _await_upload(self, upload: asyncio.Task[str | None] | None) -> str | None:
        """Wait for the repository, within a bound; the policy is in force without it."""
        if upload is None:
            return self.distributor.find_signing_fault() if self.distributor else None
        done, _ = await asyncio.wait({upload}, timeout=WAIT_S)
        return upload.result() if done else "the shelf does not answer; it is tried on"

    async def catch_up(self) -> None:
        """Make live here what is live in the store. Raises BadPolicy, StoreFailed, Unavailable.

        Another worker published it, or this one did by a commit that stood although it raised.
        """
        number, digest = self.store.policy.live_revision()
        files = self.store.policy.bundle_files(digest)
        if files is not None:
            await self.follow_revision(Bundle.from_record(files, digest), number)

    async def retry_catch_up(self) -> None:
        """Catch up if that is possible now: not while something is published."""
        if not self._publish_lock.locked():
            with suppress(VedetteError):  # what is in the way is tried again
                await self.catch_up()

    async def follow_revision(self, bundle: Bundle, number: int) -> None:
        """Make live here what another worker published. Raises BadPolicy."""
        async with self._publish_lock:
            if number <= self.live.number:
                return
            engine = await self._load_engine(bundle)
            second = await self.second_opinions.create_live(bundle)
            async with self.swap_lock:
                # What this decides was made durable with the publication.
                self.prepare(engine, number)
                self.live = Revision(number, bundle.digest)
                self.swap(engine, second, self.live, bundle)
                self.store.cluster.adopt(number, 0)
            if self.distributor is not None:
                self.distributor.refresh()

    async def maintain_repository(
        self, leads: Callable[[], bool], trouble: Callable[[str], None]
    ) -> None:
        """Keep archive and repository up to what is live, for as long as the fleet runs."""
        if self.distributor is None:
            await asyncio.Event().wait()
        else:
            await self.distributor.maintain(leads, trouble)

    async def record_refusal(self, why: BadPolicy, who: Principal) -> None:
        """Record that a folder could not even be read; the last good bundle stays."""
        await self._note_refusal(None, [str(why)], who)

    async def _note_refusal(self, digest: str | None, why: Sequence[str], who: Principal) -> None:
        fields: Mapping[str, Any] = {"bundle": digest, "actor": str(who)}
        body = Body(canonical_json({"findings": list(why[:100])}))
        await self.store.commands.append_entries([Draft("policy.refused", fields, body=body)])
        self.metrics.count("policy_refused")

    async def _drain(self, number: int) -> int:
        end = self.clock.monotonic_us() + _DRAIN_US
        while self.count_calls_before(number) and self.clock.monotonic_us() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return self.count_calls_before(number)
