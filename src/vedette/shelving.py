"""Shelving: the signed archive of each revision, in the store's record and on a shelf.

The record comes first. An archive is kept in the commit that makes its revision live, so what the
record holds was live from that instant on, and nothing else ever is there. The shelf is a copy for
others: first `archives/DIGEST.tar.gz`, which never changes, then `FLEET.tar.gz`, which is the live
one and takes higher numbers only. A process that dies in between leaves a shelf that is late and
never wrong; whoever leads the fleet next brings it up to the record.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from vedette.bundle import Bundle
from vedette.crashpoint import reach
from vedette.digest import sha256_hex
from vedette.errors import BadPolicy, BadStore, Unavailable, VedetteError
from vedette.ports import Shelf

# Under these names the record keeps the live revision's archive, and who signs.
ARCHIVE, KEY = "policy_archive", "policy_key"

TRIES = 5
# How long a publication waits for the shelf; what takes longer goes on without it.
WAIT_S = 5.0
RETRY_S = 5.0
LEAD_S = 0.5


class Record(Protocol):
    """What of the store is needed here."""

    def meta(self, name: str) -> str | None:
        """Return a value kept under a name."""
        ...

    def remember(self, name: str, value: str) -> Awaitable[None]:
        """Keep a value under a name."""
        ...

    def revision(self) -> tuple[int, str]:
        """Return the live revision's number and digest."""
        ...

    def bundle(self, digest: str) -> Mapping[str, bytes] | None:
        """Return the files of a recorded bundle."""
        ...


class Sealer(Protocol):
    """Signs archives and reads them back."""

    def key_id(self, *, make: bool) -> str | None:
        """Return the id of the key here; None if there is none and none is to be made."""
        ...

    def pack(self, bundle: Bundle, number: int, who: str, commit: str | None, at_us: int) -> bytes:
        """Return the signed archive of a bundle as a revision. Raises BadPolicy."""
        ...

    def read(self, raw: bytes) -> tuple[int, str]:
        """Return the number and bundle digest that an archive of this key tells.

        Raises BadPolicy for every other bytes.
        """
        ...


@dataclass(frozen=True, slots=True)
class Archive:
    """The signed archive of one revision; `digest` is the SHA-256 of its bytes."""

    number: int
    bundle: str
    key: str
    raw: bytes = field(repr=False)
    digest: str = ""

    @classmethod
    def of(cls, number: int, bundle: str, key: str, raw: bytes) -> Archive:
        """Return an archive with the digest of its bytes."""
        return cls(number, bundle, key, raw, sha256_hex(raw))

    def marks(self) -> dict[str, str]:
        """Return what the record keeps of it, under its names."""
        told = {
            "number": self.number,
            "bundle": self.bundle,
            "key": self.key,
            "raw": base64.b64encode(self.raw).decode("ascii"),
        }
        return {ARCHIVE: orjson.dumps(told).decode(), KEY: self.key}

    @classmethod
    def kept(cls, record: Record) -> Archive | None:
        """Return what the record keeps, if it is the live revision's."""
        mark = record.meta(ARCHIVE)
        if mark is None:
            return None
        told: dict[str, Any] = orjson.loads(mark)
        raw = base64.b64decode(told["raw"])
        found = cls.of(told["number"], told["bundle"], told["key"], raw)
        return found if (found.number, found.bundle) == record.revision() else None


@dataclass(slots=True)
class Shelving:
    """Makes the archives of one fleet and brings them to its shelf, if it has one.

    `ahead` is the highest number seen on the shelf: after a restore the record may be behind it,
    and the next revision goes above it. `live` is the archive of the live revision, None while
    there is none that the fleet's key signed.
    """

    record: Record
    sealer: Sealer
    shelf: Shelf | None
    name: str
    now_us: Callable[[], int]
    ahead: int = 0
    live: Archive | None = None
    closing: bool = False
    _turn: asyncio.Event = field(default_factory=asyncio.Event)
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)

    # --- making -----------------------------------------------------------------------------

    def next_number(self, live: int) -> int:
        """Return the number of the next revision."""
        return max(live, self.ahead) + 1

    def behind(self, live: int) -> bool:
        """Say whether the shelf has another revision of the live number, or a higher one."""
        return self.ahead >= live

    def unsigned(self) -> str | None:
        """Say why nothing can be signed here; None if it can. The first to ask makes the key."""
        signing = self.record.meta(KEY)
        try:
            ours = self.sealer.key_id(make=signing is None)
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
        """Load the key, or make it, before it is needed; what is wrong with it is told then."""
        with suppress(BadStore):
            await asyncio.to_thread(self.sealer.key_id, make=self.record.meta(KEY) is None)

    def pack(
        self, bundle: Bundle, number: int, who: str, commit: str | None, *, new_key: bool = False
    ) -> Archive | None:
        """Return the signed archive of a revision to be; None if the fleet's key is not here.

        The reason is not in it: a reason can be erased, and an archive on a shelf cannot.
        Raises BadPolicy for what no archive can hold.
        """
        if not new_key and self.unsigned() is not None:
            return None
        key = self.sealer.key_id(make=True)
        assert key is not None
        raw = self.sealer.pack(bundle, number, who, commit, self.now_us())
        return Archive.of(number, bundle.digest, key, raw)

    # --- showing ----------------------------------------------------------------------------

    def show(self, archive: Archive | None) -> None:
        """Hand out another archive from now on, and wake who waits for one."""
        self.live = archive
        self.wake()

    def refresh(self) -> None:
        """Look up what the record says is live: another worker published it."""
        self.show(Archive.kept(self.record))
        # Who published it may have died before it was on the shelf.
        self._wanted.set()

    def wake(self) -> None:
        """Wake who waits for another archive."""
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()

    def close(self) -> None:
        """Let nobody wait any more."""
        self.closing = True
        self.wake()

    async def changed(self, within_s: float) -> None:
        """Return when another archive is handed out, or after a while."""
        if self.closing:
            return
        turn = self._turn
        try:
            async with asyncio.timeout(within_s):
                await turn.wait()
        except TimeoutError:
            return

    # --- the shelf ----------------------------------------------------------------------------

    async def place(self, archive: Archive) -> str | None:
        """Bring an archive to the shelf; return what a person should know of it, if anything.

        Never raises for the shelf's sake: the revision is live, and `keep` tries again.
        """
        if self.shelf is None:
            return None
        try:
            found, told = await asyncio.to_thread(self._place, self.shelf, archive)
        except VedetteError as error:
            self._wanted.set()
            return f"revision {archive.number} is not on the shelf yet: {error}"
        if found == (archive.number, archive.bundle):
            return told
        number, _ = found
        if archive.number < number <= self.record.revision()[0]:
            return told  # another worker was faster with a newer one
        self.ahead = max(self.ahead, number)
        return (
            f"the shelf holds revision {number} with other content, and {archive.number} is live:"
            " was the store restored? Publish again; it becomes a higher revision"
        )

    async def keep(self, leads: Callable[[], bool], trouble: Callable[[str], None]) -> None:
        """Keep record and shelf whole for as long as the fleet runs; whoever leads it does."""
        self._wanted.set()
        while True:
            await self._wanted.wait()
            while not leads():  # noqa: ASYNC110 (a thread tells)
                await asyncio.sleep(LEAD_S)
            self._wanted.clear()
            try:
                told = await self.mend()
            except VedetteError as error:
                self._wanted.set()
                told = f"the live policy has no archive yet: {error}"
            if told is not None:
                trouble(told)
            if self._wanted.is_set():
                await asyncio.sleep(RETRY_S)

    async def mend(self) -> str | None:
        """See to it that the live revision has an archive and the shelf has that one.

        Returns what a person should know, None if all is well.
        """
        number, _ = self.record.revision()
        archive = Archive.kept(self.record)
        if archive is None and number:
            if (why := self.unsigned()) is not None:
                return f"revision {number} is {why}"
            archive = await self._restate()
        if archive is None:
            return None
        if self.live is None or self.live.number < archive.number:
            self.show(archive)
        return await self.place(archive)

    async def _restate(self) -> Archive | None:
        """Sign a live revision that has no archive: it was published before there were any."""
        for _ in range(TRIES):
            number, digest = self.record.revision()
            files = self.record.bundle(digest)
            if files is None:
                return None
            archive = self.pack(Bundle.of(files), number, "engine:vedette", None)
            if archive is None:
                return None
            for name, value in archive.marks().items():
                await self.record.remember(name, value)
            if self.record.revision() == (number, digest):
                return archive
        return None

    def _place(self, shelf: Shelf, archive: Archive) -> tuple[tuple[int, str], str | None]:
        """Return the number and bundle that lie on the shelf in the end, and what to tell."""
        reach("bundle:before")
        shelf.put(f"archives/{archive.digest}.tar.gz", archive.raw)
        reach("bundle:after")
        ours, told = (archive.number, archive.bundle), None
        for _ in range(TRIES):
            found = shelf.get(self.name)
            if found is not None:
                try:
                    there = self.sealer.read(found[0])
                except BadPolicy as error:
                    told = f"{self.name} on the shelf was none of ours and is replaced: {error}"
                else:
                    if there[0] >= archive.number:
                        return there, told
            reach("shelf:before")
            if shelf.replace(self.name, archive.raw, found[1] if found else None):
                reach("shelf:after")
                return ours, told
        raise Unavailable("somebody else keeps changing it", where=f"{shelf.where}/{self.name}")


def on_shelf(shelf: Shelf, name: str, sealer: Sealer, seen: int) -> tuple[int, str] | None:
    """Return the number and bundle digest of what lies on a shelf; None if nothing does.

    `seen` is the highest number ever seen live. Raises BadPolicy for an archive that was not
    signed by the fleet's key, was changed, or is older than that; Unavailable.
    """
    found = shelf.get(name)
    if found is None:
        return None
    number, digest = sealer.read(found[0])
    if number < seen:
        raise BadPolicy(
            f"revision {number} lies on the shelf, and {seen} was live already",
            where=f"{shelf.where}/{name}",
            mend="a fleet that runs puts the live one there; see who put the old one back",
        )
    return number, digest
