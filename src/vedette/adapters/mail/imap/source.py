"""A mailbox on an IMAP server as a source: one event per mail, in the order of their numbers.

A mail's event is named by the digest of its bytes. So one that is moved back into the folder, by a
person or by `vedette undo`, is the same event, and wakes nobody; so is each after the server has
numbered the folder anew. Mails are only read, by EXAMINE and BODY.PEEK: nothing marks them.

The position is the last number taken of each folder, and becomes durable with the events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import orjson

from vedette.adapters.mail.event import mail_event
from vedette.adapters.mail.imap.address import Address, digest_of
from vedette.adapters.mail.imap.answers import Mail
from vedette.adapters.mail.imap.session import MAX_MAIL, Session
from vedette.domain.base.backoff import delay_us
from vedette.domain.base.canonical import sha256_hex
from vedette.domain.base.clock import MICROS, Clock
from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.errors import BadFleet, Permanent, StoreFailed, Temporary
from vedette.domain.event import Event
from vedette.domain.ports import Intake, Refused

if TYPE_CHECKING:
    from vedette.config.mail_servers import ImapPlan

BATCH = 64  # mails handed over at once
BATCH_BYTES = 4 * 1024 * 1024  # and fetched at once, but for a single larger one
FACTS = 1000  # mails whose size and date are asked for at once
ALONE = 3  # how often a mail may fail that was asked for alone
RAW_BYTES = 256  # how much of a refused mail is kept
IDLE_S = 25 * 60.0  # servers end an IDLE after half an hour (RFC 2177)
FIRST_US, LAST_US = 500_000, 60 * MICROS  # backoff while the server does not answer
_DAY_US = 86_400 * MICROS
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_P = ParamSpec("_P")
_R = TypeVar("_R")


class AwayError(Exception):
    """The server did not answer as it should; it is asked again, later each time."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a folder is read up to: the mail `last` of the numbering `validity`.

    Of the mails up to the number `until`, which were there when the numbering was first seen, those
    received before `since_us` (microseconds UTC) are none of ours. What has come since always is.
    """

    validity: int
    last: int
    until: int
    since_us: int

    def takes(self, mail: Mail) -> bool:
        """Say whether a mail is one of ours: not too old, and not one that somebody deleted."""
        if "\\Deleted" in mail.flags:
            return False
        return mail.uid > self.until or mail.received_us >= self.since_us


class ImapSource:
    """Reads the folders of one mailbox; with `watch` it stays and waits for more.

    `leads` says whether this worker still runs the fleet's sources.
    """

    def __init__(
        self,
        plan: ImapPlan,
        clock: Clock,
        *,
        watch: bool = True,
        leads: Callable[[], bool] = lambda: True,
        max_mail: int = MAX_MAIL,
    ) -> None:
        """`max_mail` is in bytes: a longer mail is refused and stays where it is."""
        self.name = f"imap:{plan.name}"
        self.finite = not watch
        self._plan, self._clock, self._leads, self._max_mail = plan, clock, leads, max_mail
        self._places: dict[str, Place] = {}
        self._tries = 0
        self._was_there = False
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
        told = intake.position(self.name)
        places = orjson.loads(told)["folders"] if told else {}
        self._places = {folder: Place(**place) for folder, place in places.items()}
        line = _Line(self._plan.server)
        try:
            await line.connect()
            self._was_there = True
            while True:
                for folder in self._plan.folders:
                    await self._read(intake, line, folder)
                self._tries = 0
                if self.finite:
                    return
                await self._wait(line)
        except StoreFailed:
            raise
        except BadFleet as error:
            if not self._was_there:
                raise
            # It was right before: somebody is at work on the password.
            self._tries += 1
            raise AwayError(str(error)[:300]) from error
        except (Temporary, Permanent) as error:
            # Folders are made, certificates renewed, servers mended without us: it is asked again.
            self._tries += 1
            raise AwayError(str(error)[:300]) from error
        finally:
            line.close()

    async def _wait(self, line: _Line) -> None:
        every_us = self._plan.every_us
        if self._plan.idle and len(self._plan.folders) == 1 and line.session.can("IDLE"):
            await line.run(line.session.wait, min(every_us / MICROS, IDLE_S))
        else:
            await self._clock.sleep_until(self._clock.now_us() + every_us)

    # --- one folder ---------------------------------------------------------------------------

    async def _read(self, intake: Intake, line: _Line, folder: str) -> None:
        """Hand over what a folder holds behind the place where we were."""
        session = line.session
        opened = await line.run(session.open, folder)
        place = self._places.get(folder)
        if place is None or place.validity != opened.validity:
            place = await line.run(self._begin, session, folder, opened.validity, place)
            await self._hand_over(intake, folder, place, [])
        uids = await line.run(_behind, session, place)
        for part in self._parts(folder, place.validity, uids):
            names = [(folder, place.validity, uid) for uid in part]
            failed = self._suspects.get(names[0], 0)
            if failed == ALONE - 1:
                # The last time counts only where the server delivers others just now.
                await line.run(self._see_another, session, part[0])
            if failed >= ALONE:
                why = "the server does not deliver it; it stays there"
                place = replace(place, last=part[0])
                refused = Refused(f"{self.name}/{folder};{part[0]}", why)
                await self._hand_over(intake, folder, place, [refused])
                del self._suspects[names[0]]
                continue
            with self._suspecting(names):
                facts = await line.run(session.mails, part)
            ours = [mail for uid in part if (mail := facts.get(uid)) is not None]
            ours = [mail for mail in ours if place.takes(mail)]
            for few in _few(ours, self._max_mail):
                with self._suspecting([(folder, place.validity, mail.uid) for mail in few]):
                    batch = await line.run(self._made, session, folder, place.validity, few)
                place = replace(place, last=few[-1].uid)
                await self._hand_over(intake, folder, place, batch)
            if place.last < part[-1]:
                place = replace(place, last=part[-1])
                await self._hand_over(intake, folder, place, [])
            for name in names:
                self._suspects.pop(name, None)

    def _parts(self, folder: str, validity: int, uids: Sequence[int]) -> Iterator[list[int]]:
        """Cut numbers into parts that are asked for at once; each suspect is alone."""
        part: list[int] = []
        for uid in uids:
            alone = (folder, validity, uid) in self._suspects
            if part and (alone or len(part) >= FACTS):
                yield part
                part = []
            if alone:
                yield [uid]
            else:
                part.append(uid)
        if part:
            yield part

    @contextmanager
    def _suspecting(self, names: Sequence[tuple[str, int, int]]) -> Iterator[None]:
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

    def _see_another(self, session: Session, uid: int) -> None:
        """Read the beginning of another mail: who delivers none has a trouble that passes.

        Another one each time, since more than one may be beyond delivery.
        """
        others = [other for other in session.search("ALL") if other != uid]
        if others:
            some = others[-1 - self._tries % len(others)]
            session.beginnings([some])

    def _begin(self, session: Session, folder: str, validity: int, known: Place | None) -> Place:
        """Return where to begin in a folder that was never read, or that was numbered anew.

        In the second case all of what was ours is read again: the store knows what it has.
        """
        now, uids = self._clock.now_us(), session.search("ALL")
        until = uids[-1] if uids else 0
        if known is not None:
            return Place(validity, 0, until, known.since_us)
        if self._plan.since_us is not None:
            return Place(validity, 0, until, max(0, now - self._plan.since_us))
        newest = uids[-self._plan.newest :] if self._plan.newest else []
        # The dates need not follow the numbers: the floor is the oldest of those that we take.
        oldest = now
        for start in range(0, len(newest), FACTS):
            some = session.mails(newest[start : start + FACTS])
            oldest = min([oldest, *(mail.received_us for mail in some.values())])
        return Place(validity, newest[0] - 1 if newest else until, until, oldest)

    def _made(
        self, session: Session, folder: str, validity: int, few: Sequence[Mail]
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
            at = Address(validity, mail.uid, mail.size, digest_of(raw), folder)
            try:
                batch.append(self._event(raw, at, mail.received_us))
            except Exception as error:
                # A stranger's mail must not end the source, or it would be read for ever.
                why = f"cannot be read: {type(error).__name__}: {error}"
                batch.append(Refused(where, why, raw[:RAW_BYTES]))
        return batch

    def _event(self, raw: bytes, at: Address, received_us: int) -> Event:
        return mail_event(
            self.name, sha256_hex(raw)[:40], raw, subject=str(at), received_us=received_us
        )

    async def _hand_over(
        self, intake: Intake, folder: str, place: Place, batch: list[Event | Refused]
    ) -> None:
        if not self._leads():
            raise StoreFailed("another worker leads")
        places = {**self._places, folder: place}
        value = {"folders": {name: asdict(each) for name, each in places.items()}}
        await intake.accept(batch, position=(self.name, orjson.dumps(value).decode()))
        self._places = places


class _Line:
    """A session and the one thread that it is used on, so that the loop never waits for it."""

    def __init__(self, server: dict[str, object]) -> None:
        self._server = server
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vedette-imap")
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        assert self._session is not None
        return self._session

    async def connect(self) -> None:
        """Open the session. Raises as `Session`."""
        await self.run(self._connect)

    async def run(self, work: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Do something with it on its thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Break off what goes on, and let the thread close the session and end."""
        if self._session is not None:
            self._session.interrupt()
        self._thread.submit(self._end)
        self._thread.shutdown(wait=False)

    def _connect(self) -> None:
        self._session = Session(self._server)

    def _end(self) -> None:
        if self._session is not None:
            self._session.close()


def _behind(session: Session, place: Place) -> list[int]:
    """Return the numbers of the mails behind a place, as far as the server can tell by the day."""
    known: list[int] = []
    if place.last < place.until:
        asked = ["UID", f"{place.last + 1}:{place.until}"]
        if place.since_us >= _DAY_US:
            # The server goes by its own day, so one more is asked for; the rest is done here.
            day = datetime.fromtimestamp((place.since_us - _DAY_US) / MICROS, UTC)
            asked += ["SINCE", f"{day.day}-{_MONTHS[day.month - 1]}-{day.year}"]
        known = session.search(*asked)
    first = max(place.last, place.until) + 1
    # "n:*" is the last mail at least, whatever its number.
    return known + [uid for uid in session.search("UID", f"{first}:*") if uid >= first]


def _few(mails: Sequence[Mail], max_mail: int) -> Iterator[list[Mail]]:
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
