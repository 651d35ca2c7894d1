"""The signed archive of each revision: in the store's record, and in a bundle repository.

The record comes first. An archive is kept in the commit that makes its revision live, so what the
record holds was live from that instant on, and nothing else ever is there. The repository is a copy
for others: first `archives/DIGEST.tar.gz`, which never changes, then `FLEET.tar.gz`, which is the
live one and takes higher numbers only. A process that dies in between leaves a repository that is
late and never wrong; whoever leads the fleet next brings it up to the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct, field

from vedette.domain.base.errors import BadPolicy, BadStore, Unavailable, VedetteError
from vedette.domain.base.failpoint import hit_failpoint
from vedette.domain.bundle import Bundle
from vedette.domain.policy_wasm import PolicyWasm, load_wasm
from vedette.domain.ports.bundle_repository import BundleRepository
from vedette.domain.ports.store import Store
from vedette.policy.signed_archive import HIGHEST_MARK, KEY, Archive, ArchiveSigner

__all__ = ["TRIES", "WAIT_S", "Archive", "BundleDistributor", "read_repository"]

TRIES = 5
# How long a publication waits for the repository; what takes longer goes on without it.
WAIT_S = 5.0
RETRY_S = 5.0
LEAD_S = 0.5
# How long a look at the repository may take before a publication: no longer than a trial does.
LOOK_S = 0.5


class ForeignArchive(Struct, frozen=True):
    """What lies in the bundle repository and neither the fleet's key nor ours signed."""

    version: str
    why: str


class BundleDistributor(Struct):
    """Makes the signed archives of a fleet's policy, brings them to its bundle repository, if any.

    `highest_seen` is the highest number seen in the repository: after a restore the record may be
    behind it, and the next revision goes above it. It is kept in the record too, as who is told to
    publish again may do so in another process. `live` is the archive of the live revision, None
    while there is none that the fleet's key signed.
    """

    store: Store
    signer: ArchiveSigner
    repository: BundleRepository | None
    name: str
    now_us: Callable[[], int]
    highest_seen: int = 0
    live: Archive | None = None
    is_closing: bool = False
    _change_event: asyncio.Event = field(default_factory=asyncio.Event)
    _upload_wanted: asyncio.Event = field(default_factory=asyncio.Event)

    # --- making -----------------------------------------------------------------------------

    def next_number(self, live: int) -> int:
        """Return the number of the next revision."""
        return max(live, self._highest_number()) + 1

    def is_behind(self, live: int) -> bool:
        """Say whether the repository has another revision of the live number, or a higher one."""
        return self._highest_number() >= live

    def _highest_number(self) -> int:
        return max(self.highest_seen, int(self.store.meta(HIGHEST_MARK) or 0))

    def find_signing_fault(self) -> str | None:
        """Say why nothing can be signed here; None if it can. The first to ask makes the key."""
        signing = self.store.meta(KEY)
        try:
            ours = self.signer.key_id(make=signing is None)
        except BadStore as error:
            return f"not signed: {error}"
        if signing in (None, ours):
            return None
        has = f"another policy.key ({ours})" if ours else "no policy.key"
        return (
            f"not signed: this state folder has {has}, and the fleet signs with {signing}; copy"
            " policy.key of the worker that signed before, or publish with --new-key"
        )

    async def warm(self) -> None:
        """Load the key, or make it, and see how far the repository is, before both are needed.

        What is wrong with either is told then, and a repository that is slow is not waited for.
        """
        with suppress(BadStore):
            await asyncio.to_thread(self.signer.key_id, make=self.store.meta(KEY) is None)
        if self.repository is None:
            return
        last = Archive.load_last(self.store)
        with suppress(VedetteError, TimeoutError):
            async with asyncio.timeout(LOOK_S):
                there = await asyncio.to_thread(
                    self._read_repository, self.repository, last.public if last else ""
                )
            if there is not None and self._is_unknown(there):
                await self._record_highest(there[0])

    def pack(
        self,
        bundle: Bundle,
        number: int,
        who: str,
        commit: str | None,
        wasm: PolicyWasm | None = None,
        *,
        new_key: bool = False,
    ) -> Archive | None:
        """Return the signed archive of a revision to be; None if the fleet's key is not here.

        `wasm` is what was compiled of its rules; it travels with them.

        The reason is not in it: a reason can be erased, and an archive in a repository cannot.
        Raises BadPolicy for what no archive can hold.
        """
        if not new_key and self.find_signing_fault() is not None:
            return None
        key = self.signer.key_id(make=True)
        assert key is not None
        compiled = wasm.raw if wasm is not None else None
        raw = self.signer.pack(bundle, number, who, commit, self.now_us(), compiled)
        return Archive.from_raw(number, bundle.digest, key, raw, self.signer.public_key())

    # --- showing ----------------------------------------------------------------------------

    def set_live(self, archive: Archive | None) -> None:
        """Hand out another archive from now on, and wake who waits for one."""
        self.live = archive
        self.wake_waiters()

    def refresh(self) -> None:
        """Look up what the record says is live: another worker published it."""
        self.set_live(Archive.load_live(self.store))
        # Who published it may have died before it was in the repository.
        self._upload_wanted.set()

    def wake_waiters(self) -> None:
        """Wake who waits for another archive."""
        turn, self._change_event = self._change_event, asyncio.Event()
        turn.set()

    def close(self) -> None:
        """Let nobody wait any more."""
        self.is_closing = True
        self.wake_waiters()

    async def wait_for_change(self, within_s: float) -> None:
        """Return when another archive is handed out, or after a while."""
        if self.is_closing:
            return
        turn = self._change_event
        try:
            async with asyncio.timeout(within_s):
                await turn.wait()
        except TimeoutError:
            return

    # --- the repository -----------------------------------------------------------------------

    async def upload(self, archive: Archive) -> str | None:
        """Bring an archive to the repository; return what a person should know, if anything.

        Never raises for the repository's sake: the revision is live, and `maintain` tries again.
        """
        if self.repository is None:
            return None
        message = None
        try:
            found = await asyncio.to_thread(self._upload, self.repository, archive)
            if isinstance(found, ForeignArchive):
                # Seen before we look here: whoever was faster is in the record by now.
                if not self._is_current(archive):
                    return None
                message = f"{self.name} on the shelf was none of ours and is replaced: {found.why}"
                found = await asyncio.to_thread(
                    self._upload, self.repository, archive, found.version
                )
            if isinstance(found, ForeignArchive):
                raise Unavailable("somebody else keeps changing it", where=self.repository.where)
            if found == (archive.number, archive.bundle) or not self._is_unknown(found):
                return message  # else another worker was faster with a newer one
            await self._record_highest(found[0])
        except VedetteError as error:
            self._upload_wanted.set()
            return f"revision {archive.number} is not on the shelf yet: {error}"
        return (
            f"the shelf holds revision {found[0]} with other content, and {archive.number} is"
            " live: was the store restored? Publish again; it becomes a higher revision"
        )

    def _is_current(self, archive: Archive) -> bool:
        """Say whether an archive is still of the live revision and the fleet's key."""
        live = self.store.policy.live_revision()
        return live == (archive.number, archive.bundle) and self.store.meta(KEY) == archive.key

    def _is_unknown(self, there: tuple[int, str]) -> bool:
        """Say whether the record knows nothing of a revision: it is behind, as after a restore."""
        number, digest = self.store.policy.live_revision()
        return there[0] > number or (there[0] == number and there[1] != digest)

    async def _record_highest(self, number: int) -> None:
        self.highest_seen = max(self.highest_seen, number)
        if int(self.store.meta(HIGHEST_MARK) or 0) < number:
            await self.store.commands.set_meta(HIGHEST_MARK, str(number))

    async def maintain(self, leads: Callable[[], bool], trouble: Callable[[str], None]) -> None:
        """Keep record and repository whole for as long as the fleet runs; whoever leads it does."""
        self._upload_wanted.set()
        while True:
            await self._wait_to_lead(leads)
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._upload_wanted.wait()
            if not (self._upload_wanted.is_set() and leads()):
                continue  # who led before may not any more
            self._upload_wanted.clear()
            try:
                message = await self.repair()
            except VedetteError as error:
                self._upload_wanted.set()
                message = f"the live policy has no archive yet: {error}"
            if message is not None:
                trouble(message)
            if self._upload_wanted.is_set():
                await asyncio.sleep(RETRY_S)

    async def _wait_to_lead(self, leads: Callable[[], bool]) -> None:
        """Return when this worker leads; until then show what another one signs."""
        looked = asyncio.get_running_loop().time()
        while not leads():
            await asyncio.sleep(LEAD_S)
            now = asyncio.get_running_loop().time()
            if now - looked >= RETRY_S:
                looked = now
                # A revision may be live before it is signed, and nobody says when it is. A store
                # that is away is looked at again.
                with suppress(VedetteError):
                    self._catch_up()

    def _catch_up(self) -> None:
        if self.live is None or self.live.number < self.store.policy.live_revision()[0]:
            archive = Archive.load_live(self.store)
            if archive is not None:
                self.set_live(archive)

    async def repair(self) -> str | None:
        """See to it that the live revision has an archive and the repository has that one.

        Returns what a person should know, None if all is well.
        """
        number, _ = self.store.policy.live_revision()
        archive = Archive.load_live(self.store)
        if archive is None and number:
            if (why := self.find_signing_fault()) is not None:
                return f"revision {number} is {why}"
            await self._sign_live()
            # Looked up again: what was signed may not be live any more.
            archive = Archive.load_live(self.store)
        if archive is None:
            return None
        if self.live is None or self.live.number < archive.number:
            self.set_live(archive)
        return await self.upload(archive)

    async def _sign_live(self) -> None:
        """Sign a live revision that has no archive: it was published before there were any.

        Another worker may publish meanwhile, or sign the same one; then nothing is kept of ours.
        """
        for _ in range(TRIES):
            number, digest = self.store.policy.live_revision()
            signing, files = self.store.meta(KEY), self.store.policy.bundle_files(digest)
            if files is None or Archive.load_live(self.store) is not None:
                return
            bundle = Bundle.from_record(files, digest)
            _, wasm = load_wasm(self.store, bundle)
            archive = self.pack(bundle, number, "engine:vedette", None, wasm)
            if archive is None:
                return
            if await self.store.commands.set_meta_if_live(number, archive.marks(), KEY, signing):
                return

    def _upload(
        self, repository: BundleRepository, archive: Archive, over: str | None = None
    ) -> tuple[int, str] | ForeignArchive:
        """Return the number and bundle that lie in the repository in the end.

        What none of our keys signed is returned, unless it has the version `over`; that one is
        replaced. Raises Unavailable, BadPolicy.
        """
        hit_failpoint("bundle:before")
        repository.put(f"archives/{archive.digest}.tar.gz", archive.raw)
        hit_failpoint("bundle:after")
        ours = (archive.number, archive.bundle)
        for _ in range(TRIES):
            found = repository.get(self.name)
            if found is not None and found[0] == archive.raw:
                return ours
            if found is not None and found[1] != over:
                try:
                    there = self._read_archive(found[0], archive.public)
                except BadPolicy as error:
                    return ForeignArchive(found[1], str(error))
                if there[0] >= archive.number:
                    return there
            hit_failpoint("shelf:before")
            if repository.replace(self.name, archive.raw, found[1] if found else None):
                hit_failpoint("shelf:after")
                return ours
        raise Unavailable(
            "somebody else keeps changing it", where=f"{repository.where}/{self.name}"
        )

    def _read_repository(self, repository: BundleRepository, public: str) -> tuple[int, str] | None:
        found = repository.get(self.name)
        return self._read_archive(found[0], public) if found is not None else None

    def _read_archive(self, raw: bytes, public: str) -> tuple[int, str]:
        """Return what an archive tells that the fleet's key signed, or ours. Raises BadPolicy.

        Ours too: after a restore the record may have gone back to the key before it.
        """
        try:
            return self.signer.read(raw, public)
        except BadPolicy:
            with suppress(BadPolicy, BadStore):
                return self.signer.read(raw)
            raise


def read_repository(
    repository: BundleRepository, name: str, signer: ArchiveSigner, seen: int
) -> tuple[int, str] | None:
    """Return which policy lies in a bundle repository, as (number, digest); None if nothing does.

    `seen` is the highest number ever seen live. Raises BadPolicy for an archive that was not
    signed by the fleet's key, was changed, or is older than that; Unavailable.
    """
    found = repository.get(name)
    if found is None:
        return None
    number, digest = signer.read(found[0])
    if number < seen:
        raise BadPolicy(
            f"revision {number} lies on the shelf, and {seen} was live already",
            where=f"{repository.where}/{name}",
            mend="a fleet that runs puts the live one there; see who put the old one back",
        )
    return number, digest
