"""A mailbox on an IMAP server as a source: one event per mail, in the order of their numbers.

A mail's event is named by the digest of its bytes. So one that is moved back into the folder, by a
person or by `vedette undo`, is the same event, and wakes nobody; so is each after the server has
numbered the folder anew. Mails are only read, by EXAMINE and BODY.PEEK: nothing marks them.

The position is the last number taken of each folder, and becomes durable with the events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeVar

import orjson
from msgspec import Struct
from msgspec.structs import asdict, replace

from vedette.adapters.mail.event import mail_event
from vedette.adapters.mail.imap.address import MailAddress, mail_digest
from vedette.adapters.mail.imap.config import ImapFile
from vedette.adapters.mail.imap.fetch_response import Mail
from vedette.adapters.mail.imap.session import MAX_MAIL, MailSession
from vedette.domain.base.backoff import delay_us
from vedette.domain.base.canonical import sha256_hex
from vedette.domain.base.clock import MICROS, Clock, duration_us
from vedette.domain.base.errors import BadFleet, Permanent, StoreFailed, Temporary
from vedette.domain.event import Event
from vedette.domain.ports.sources import Intake, Refused

BATCH = 64  # mails handed over at once
BATCH_BYTES = 4 * 1024 * 1024  # and fetched at once, but for a single larger one
FETCH_BATCH = 1000  # mails whose size and date are asked for at once
MAX_FAILURES = 3  # how often a mail may fail that was asked for alone
RAW_BYTES = 256  # how much of a refused mail is kept
IDLE_S = 25 * 60.0  # servers end an IDLE after half an hour (RFC 2177)
FIRST_US, LAST_US = 500_000, 60 * MICROS  # backoff while the server does not answer
_DAY_US = 86_400 * MICROS
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_P = ParamSpec("_P")
_R = TypeVar("_R")


class SourceUnavailable(Exception):
    """The IMAP server did not answer as it should; it is asked again, later each time."""


class FolderPosition(Struct, frozen=True):
    """Where an IMAP folder is read up to: the mail `last` of the numbering `validity`.

    Of the mails up to the number `until`, which were there when the numbering was first seen, those
    received before `since_us` (microseconds UTC) are none of ours. What has come since always is.
    """

    validity: int
    last: int
    until: int
    since_us: int

    def accepts(self, mail: Mail) -> bool:
        """Say whether a mail is one of ours: not too old, and not one that somebody deleted."""
        if "\\Deleted" in mail.flags:
            return False
        return mail.uid > self.until or mail.received_us >= self.since_us


class ImapSource:
    """Reads the folders of one mailbox; with `watch` it stays and waits for more.

    `is_leader` says whether this worker still runs the fleet's sources.
    """

    def __init__(
        self,
        plan: ImapFile,
        clock: Clock,
        *,
        watch: bool = True,
        is_leader: Callable[[], bool] = lambda: True,
        max_mail: int = MAX_MAIL,
    ) -> None:
        """`max_mail` is in bytes: a longer mail is refused and stays where it is."""
        self.name = f"imap:{plan.name}"
        self.finite = not watch
        self._plan, self._clock, self._is_leader, self._max_mail = plan, clock, is_leader, max_mail
        self._positions: dict[str, FolderPosition] = {}
        self._tries = 0
        self._has_connected = False
        # Mails that a failed command asked for: how often each has failed alone since.
        self._suspects: dict[tuple[str, int, int], int] = {}

    async def deliver(self, intake: Intake) -> None:
        """Hand over what is new until cancelled, or once (`finite`).

        Raises AwayError where the server may be better later: the next call waits longer before it
        asks. BadFleet if there is no password; StoreFailed if another worker leads.
        """
        if self._tries:
            wait = delay_us(self._tries, first_us=FIRST_US, last_us=LAST_US, seed=self.name)
            await self._clock.sleep_until(self._clock.now_us() + wait)
        position = intake.position(self.name)
        places = orjson.loads(position)["folders"] if position else {}
        self._positions = {folder: FolderPosition(**place) for folder, place in places.items()}
        session_thread = _SessionThread(self._plan.server)
        try:
            await session_thread.connect()
            self._has_connected = True
            while True:
                for folder in self._plan.folders:
                    await self._read_folder(intake, session_thread, folder)
                self._tries = 0
                if self.finite:
                    return
                await self._wait_for_mail(session_thread)
        except StoreFailed:
            raise
        except BadFleet as error:
            if not self._has_connected:
                raise
            # It was right before: somebody is at work on the password.
            self._tries += 1
            raise SourceUnavailable(str(error)[:300]) from error
        except (Temporary, Permanent) as error:
            # Folders are made, certificates renewed, servers mended without us: it is asked again.
            self._tries += 1
            raise SourceUnavailable(str(error)[:300]) from error
        finally:
            session_thread.close()

    async def _wait_for_mail(self, session_thread: _SessionThread) -> None:
        every_us = duration_us(self._plan.every)
        if self._plan.idle and len(self._plan.folders) == 1 and session_thread.session.can("IDLE"):
            await session_thread.run(session_thread.session.wait, min(every_us / MICROS, IDLE_S))
        else:
            await self._clock.sleep_until(self._clock.now_us() + every_us)

    # --- one folder ---------------------------------------------------------------------------

    async def _read_folder(
        self, intake: Intake, session_thread: _SessionThread, folder: str
    ) -> None:
        """Hand over what a folder holds behind the place where we were."""
        session = session_thread.session
        opened = await session_thread.run(session.open, folder)
        position = self._positions.get(folder)
        if position is None or position.validity != opened.validity:
            position = await session_thread.run(
                self._initial_position, session, folder, opened.validity, position
            )
            await self._hand_over(intake, folder, position, [])
        uids = await session_thread.run(_search_after, session, position)
        for part in self._split_uids(folder, position.validity, uids):
            names = [(folder, position.validity, uid) for uid in part]
            failed = self._suspects.get(names[0], 0)
            if failed == MAX_FAILURES - 1:
                # The last time counts only where the server delivers others just now.
                await session_thread.run(self._probe_other, session, part[0])
            if failed >= MAX_FAILURES:
                why = "the server does not deliver it; it stays there"
                position = replace(position, last=part[0])
                refused = Refused(f"{self.name}/{folder};{part[0]}", why)
                await self._hand_over(intake, folder, position, [refused])
                del self._suspects[names[0]]
                continue
            with self._track_failures(names):
                facts = await session_thread.run(session.mails, part)
            ours = [mail for uid in part if (mail := facts.get(uid)) is not None]
            ours = [mail for mail in ours if position.accepts(mail)]
            for few in _split_batches(ours, self._max_mail):
                with self._track_failures([(folder, position.validity, mail.uid) for mail in few]):
                    batch = await session_thread.run(
                        self._fetch_events, session, folder, position.validity, few
                    )
                position = replace(position, last=few[-1].uid)
                await self._hand_over(intake, folder, position, batch)
            if position.last < part[-1]:
                position = replace(position, last=part[-1])
                await self._hand_over(intake, folder, position, [])
            for name in names:
                self._suspects.pop(name, None)

    def _split_uids(self, folder: str, validity: int, uids: Sequence[int]) -> Iterator[list[int]]:
        """Cut numbers into parts that are asked for at once; each suspect is alone."""
        part: list[int] = []
        for uid in uids:
            alone = (folder, validity, uid) in self._suspects
            if part and (alone or len(part) >= FETCH_BATCH):
                yield part
                part = []
            if alone:
                yield [uid]
            else:
                part.append(uid)
        if part:
            yield part

    @contextmanager
    def _track_failures(self, names: Sequence[tuple[str, int, int]]) -> Iterator[None]:
        """Suspect the mails of a command that fails: next time each is asked for alone.

        A server that cannot deliver one mail often drops the line, or refuses all that were asked
        for with it; asked for together again, that one would block its folder for good.
        """
        try:
            yield
        except (Temporary, Permanent):
            for name in names:
                self._suspects[name] = self._suspects.get(name, 0) + (len(names) == 1)
            raise

    def _probe_other(self, session: MailSession, uid: int) -> None:
        """Read the beginning of another mail: who delivers none has a trouble that passes.

        Another one each time, since more than one may be beyond delivery.
        """
        others = [other for other in session.search("ALL") if other != uid]
        if others:
            some = others[-1 - self._tries % len(others)]
            session.beginnings([some])

    def _initial_position(
        self, session: MailSession, folder: str, validity: int, known: FolderPosition | None
    ) -> FolderPosition:
        """Return where to begin in a folder that was never read, or that was numbered anew.

        In the second case all of what was ours is read again: the store knows what it has.
        """
        now, uids = self._clock.now_us(), session.search("ALL")
        until = uids[-1] if uids else 0
        if known is not None:
            return FolderPosition(validity, 0, until, known.since_us)
        if self._plan.since is not None:
            since_us = max(0, now - duration_us(self._plan.since))
            return FolderPosition(validity, 0, until, since_us)
        newest = uids[-self._plan.newest :] if self._plan.newest else []
        # The dates need not follow the numbers: the floor is the oldest of those that we take.
        oldest = now
        for start in range(0, len(newest), FETCH_BATCH):
            some = session.mails(newest[start : start + FETCH_BATCH])
            oldest = min([oldest, *(mail.received_us for mail in some.values())])
        return FolderPosition(validity, newest[0] - 1 if newest else until, until, oldest)

    def _fetch_events(
        self, session: MailSession, folder: str, validity: int, few: Sequence[Mail]
    ) -> list[Event | Refused]:
        """Fetch a few mails and make events of them; a mail that is gone meanwhile is none."""
        wanted = [mail.uid for mail in few if mail.size <= self._max_mail]
        found = session.mails(wanted, items="BODY.PEEK[]")
        batch: list[Event | Refused] = []
        for mail in few:
            where = f"{self.name}/{folder};{mail.uid}"
            if mail.size > self._max_mail:
                why = f"mail is {mail.size} bytes, the limit is {self._max_mail}; it stays there"
                batch.append(Refused(where, why))
                continue
            raw = found[mail.uid].content if mail.uid in found else None
            if raw is None:
                continue
            at = MailAddress(validity, mail.uid, mail.size, mail_digest(raw), folder)
            try:
                batch.append(self._event(raw, at, mail.received_us))
            except Exception as error:
                # A stranger's mail must not end the source, or it would be read for ever.
                why = f"cannot be read: {type(error).__name__}: {error}"
                batch.append(Refused(where, why, raw[:RAW_BYTES]))
        return batch

    def _event(self, raw: bytes, at: MailAddress, received_us: int) -> Event:
        return mail_event(
            self.name, sha256_hex(raw)[:40], raw, subject=str(at), received_us=received_us
        )

    async def _hand_over(
        self, intake: Intake, folder: str, position: FolderPosition, batch: list[Event | Refused]
    ) -> None:
        if not self._is_leader():
            raise StoreFailed("another worker leads")
        places = {**self._positions, folder: position}
        value = {"folders": {name: asdict(each) for name, each in places.items()}}
        await intake.accept(batch, position=(self.name, orjson.dumps(value).decode()))
        self._positions = places


class _SessionThread:
    """A session and the one thread that it is used on, so that the loop never waits for it."""

    def __init__(self, server: Mapping[str, Any]) -> None:
        self._server = server
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="vedette-imap")
        self._session: MailSession | None = None

    @property
    def session(self) -> MailSession:
        assert self._session is not None
        return self._session

    async def connect(self) -> None:
        """Open the session. Raises as `Session`."""
        await self.run(self._open_session)

    async def run(self, work: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Do something with it on its thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Break off what goes on, and let the thread close the session and end."""
        if self._session is not None:
            self._session.interrupt()
        self._executor.submit(self._close_session)
        self._executor.shutdown(wait=False)

    def _open_session(self) -> None:
        self._session = MailSession(self._server)

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()


def _search_after(session: MailSession, position: FolderPosition) -> list[int]:
    """Return the numbers of the mails behind a place, as far as the server can tell by the day."""
    known: list[int] = []
    if position.last < position.until:
        criteria = ["UID", f"{position.last + 1}:{position.until}"]
        if position.since_us >= _DAY_US:
            # The server goes by its own day, so one more is asked for; the rest is done here.
            day = datetime.fromtimestamp((position.since_us - _DAY_US) / MICROS, UTC)
            criteria += ["SINCE", f"{day.day}-{_MONTHS[day.month - 1]}-{day.year}"]
        known = session.search(*criteria)
    first = max(position.last, position.until) + 1
    # "n:*" is the last mail at least, whatever its number.
    return known + [uid for uid in session.search("UID", f"{first}:*") if uid >= first]


def _split_batches(mails: Sequence[Mail], max_mail: int) -> Iterator[list[Mail]]:
    """Cut mails into batches that are bounded in number and in bytes."""
    few: list[Mail] = []
    octets = 0
    for mail in mails:
        size = mail.size if mail.size <= max_mail else 0
        if few and (len(few) >= BATCH or octets + size > BATCH_BYTES):
            yield few
            few, octets = [], 0
        few.append(mail)
        octets += size
    if few:
        yield few
