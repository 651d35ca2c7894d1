"""The notifier tells people: it follows the ledger beside the line, and sends the notices that
`vedette.app.followers.notifications` says are due.

What is to be told is durable before it is sent, with how far the ledger was read; so after a crash
nothing is lost, and what was on its way goes again under the same id. The line waits for none of
it, and no way for another: each sends in a task of its own, within a bound of time. Of several
workers on one store the one that leads tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from msgspec.structs import replace

from vedette.app.followers.notifications import (
    MAX_NAMED,
    Notice,
    Outbox,
    mail_text,
    notice_facts,
    notice_title,
)
from vedette.app.followers.telemetry import RecordReader, start_position
from vedette.config.notify import NotifyPlan
from vedette.config.plugins import plugins
from vedette.domain.base import machine
from vedette.domain.base.backoff import delay_us
from vedette.domain.base.errors import BadStore, StoreFailed, Temporary, Unsendable, VedetteError
from vedette.domain.ports.plugin import NOTIFIERS, MissedRecipients, Notification, Plan
from vedette.domain.run import ActionRow
from vedette.ledger.history.review import about_id

if TYPE_CHECKING:
    from vedette.app.composition_root import App
    from vedette.store.reader import StoreReader

NOTICES = "notices"
_EVERY_US = 500_000
_RETRY_US = 5_000_000
_FIRST_RETRY_US, _LAST_RETRY_US = 1_000_000, 300_000_000
# How often holds are looked through for what expires, and how far they are looked through.
_SCAN_US = 60_000_000
_MOST_HOLDS = 20_000
# How often it is made durable how far the ledger was read, where that led to nothing.
_MARK_US = 5_000_000
_PAGE = 200
# Of one way in one round; the rest goes in the next.
_BATCH = 20
# How long one notice may take, and how many threads of a way may hang beyond that.
_LONGEST_S = 30.0
_MOST_HUNG = 3

# What an entry that has anybody told of anything says of itself; the others are not parsed.
_MARKERS = (
    b'"outcome":"hold"', b'"kind":"hold.', b'"kind":"effect.unknown"', b'"kind":"notice.raised"',
    b'"kind":"run.dead"', b'"kind":"budget.alerted"', b'"kind":"stop.set"',
    b'"kind":"canary.aborted"', b'"kind":"canary.ended"',
    b'"kind":"task.stalled"', b'"kind":"task.drift"',
)  # fmt: skip

# Sends one notice. Blocks. Raises Temporary or Permanent; of any other error nothing is known.
SendNotice = Callable[[Notice], MissedRecipients | None]
PageEntry = tuple[int, Mapping[str, Any] | None]


def build_senders(plan: NotifyPlan, fleet: str) -> dict[str, SendNotice]:
    """Return what sends the notifier's notices, by the name of each way; connects to nothing."""
    return {way.name: partial(_send_notice, way, fleet, plan.link) for way in plan.to}


def _send_notice(
    way: Plan, fleet: str, link: str | None, notice: Notice
) -> MissedRecipients | None:
    before = notice.whom.get(way.name)
    notification = Notification(
        notice.id,
        notice_facts(notice, fleet, link),
        notice_title(notice, fleet),
        mail_text(notice, fleet, link),
        None if before is None else tuple(before),
    )
    missed: MissedRecipients | None = plugins(NOTIFIERS).get(way.kind).send(way, notification)
    return missed


class Notifier:
    """The ledger's follower that sends notices: what it knows between two rounds."""

    def __init__(self, app: App, trouble: Callable[[str], None]) -> None:
        self._app = app
        self._trouble = trouble
        self._plan = app.settings.notify
        self._senders = build_senders(self._plan, app.services.fleet.name)
        # By way: the recipients that it missed, none where it took nothing at all.
        self._failing: dict[str, tuple[str, ...]] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._hung: dict[str, set[machine.Thread]] = {}
        self.longest_s = _LONGEST_S
        self._look_us = self._mark_us = 0
        known = app.store.meta(NOTICES)
        self.outbox = Outbox(start_position(app)) if known is None else _parse_outbox(str(known))
        self.outbox.retain_ways(self._senders)
        self._stored_text = known

    async def run_round(self, reader: RecordReader) -> bool:
        """Read on, and begin to send what is due; say whether there is more to read at once."""
        self._collect_finished()
        app, clock, outbox = self._app, self._app.services.clock, self.outbox
        now = clock.now_us()
        page = await asyncio.to_thread(reader.run_exclusive, lambda: _page(reader.store, outbox.at))
        before = (len(outbox.pending), outbox.dropped)
        for seq, entry in page:
            if entry is None:
                outbox.at = seq
            else:
                outbox.add_entry(seq, entry, self._senders, now)
        if now >= self._look_us:
            self._look_us = now + _SCAN_US
            rows = await asyncio.to_thread(reader.run_exclusive, lambda: _holds(reader.store))
            outbox.add_expiring(rows, self._senders, now + self._plan.before_us)
        idle = [way for way in self._senders if way not in self._sending]
        due = {way: outbox.due_notices(way, now)[:_BATCH] for way in idle}
        is_due = now >= self._mark_us
        if any(due.values()) or before != (len(outbox.pending), outbox.dropped) or is_due:
            await self._save_outbox(now)
        for way, found in due.items():
            if found:
                self._sending[way] = asyncio.create_task(
                    self._send_notices(reader, way, found), name=way
                )
        return len(page) == _PAGE and app.store.cluster.is_leader

    async def drain(self) -> None:
        """Wait until nothing is on its way. Raises StoreFailed."""
        await asyncio.gather(*self._sending.values())
        self._collect_finished()

    async def close(self) -> None:
        """Stop sending. What was on its way goes again."""
        tasks = list(self._sending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _collect_finished(self) -> None:
        """Forget what ended; raise what the store said to it."""
        for way, task in list(self._sending.items()):
            if task.done():
                del self._sending[way]
                task.result()

    async def _save_outbox(self, now_us: int) -> None:
        text = orjson.dumps(self.outbox.to_json()).decode()
        self._mark_us = now_us + _MARK_US
        if text != self._stored_text:
            await self._app.store.commands.set_meta(NOTICES, text)
            self._stored_text = text

    async def _send_notices(self, reader: RecordReader, way: str, found: list[Notice]) -> None:
        """Send some notices one way, and make durable what came of it. Raises StoreFailed."""
        await self._send_each(reader, way, found)
        # Not where it was cancelled: by then another worker may keep the outbox.
        await self._save_outbox(self._app.services.clock.now_us())

    async def _send_each(self, reader: RecordReader, way: str, found: list[Notice]) -> None:
        count, outbox = self._app.metrics.count, self.outbox
        for notice in found:
            complete = await self._add_contents(reader, notice)
            try:
                missed = await self._send_with_timeout(way, complete)
            except Unsendable as error:
                count("notices_failed", way=way)
                outbox.record_refused(way, notice)
                self._report(way, str(error))
            except Exception as error:
                # Whatever a way does, the fleet goes on; an unknown error's words may hold secrets.
                # A no is tried again as well: it is the way that has to be mended, not the notice.
                message = str(error) if isinstance(error, VedetteError) else type(error).__name__
                count("notices_failed", way=way)
                now, tries = self._app.services.clock.now_us(), outbox.tries.get(way, 0) + 1
                wait = delay_us(tries, first_us=_FIRST_RETRY_US, last_us=_LAST_RETRY_US, seed=way)
                outbox.schedule_retry(way, notice, now, wait)
                self._report(way, message)
                return
            else:
                self._record_sent(way, notice, missed or {})

    async def _add_contents(self, reader: RecordReader, notice: Notice) -> Notice:
        """Return a notice with what the named ones are about, as the record has it now."""
        if not self._plan.content:
            return notice

        def read_contents() -> dict[str, Any]:
            found = {id: about_id(reader.store, id) for id in notice.ids[:MAX_NAMED]}
            # Who reads along on a way is not known: what has readers leaves on none.
            return {id: about for id, about in found.items() if about and "readers" not in about}

        return replace(notice, about=await asyncio.to_thread(reader.run_exclusive, read_contents))

    def _record_sent(self, way: str, notice: Notice, missed: MissedRecipients) -> None:
        """Take in that a notice went, but for who was missed: who may take it later is tried on."""
        count, now = self._app.metrics.count, self._app.services.clock.now_us()
        if way not in notice.whom:
            count("notices_sent", way=way)
        if not missed:
            self.outbox.record_sent(way, notice)
            self._failing.pop(way, None)
            return
        count("notices_failed", way=way)
        left = [whom for whom, error in missed.items() if isinstance(error, Temporary)]
        wait = min(max(now - notice.at_us, _FIRST_RETRY_US), _LAST_RETRY_US)
        self.outbox.record_partial(way, notice, left, now, wait)
        message = "; ".join(f"{whom} was not told: {error}" for whom, error in missed.items())
        self._report(way, message, tuple(sorted(missed)))

    async def _send_with_timeout(self, way: str, notice: Notice) -> MissedRecipients | None:
        """Send one notice, in a bounded time; raises Temporary when that is over."""
        hung = {thread for thread in self._hung.get(way, ()) if thread.is_alive()}
        self._hung[way] = hung
        if len(hung) >= _MOST_HUNG:
            raise Temporary(f"{len(hung)} attempts before have not ended yet")
        done, thread = _run_in_thread(partial(self._senders[way], notice))
        try:
            async with asyncio.timeout(self.longest_s):
                return await done
        except TimeoutError as error:
            if not done.cancelled():
                raise  # a way's own
            hung.add(thread)
            raise Temporary(f"not taken within {self.longest_s:g} s") from error

    def _report(self, way: str, message: str, missed: tuple[str, ...] = ()) -> None:
        """Tell of the first failure of its kind in a row."""
        if self._failing.get(way) != missed:
            self._failing[way] = missed
            self._trouble(f"notices by {way}: {message}")


async def follow_for_notices(
    app: App, trouble: Callable[[str], None] = lambda message: None
) -> None:
    """Follow the ledger and notify people of what waits for them, for as long as the run lasts."""
    clock = app.services.clock
    notifier: Notifier | None = None
    reported = False
    try:
        with RecordReader(app) as reader:
            while True:
                wait = _EVERY_US
                try:
                    if app.store.cluster.is_leader:
                        notifier = notifier or Notifier(app, trouble)
                        wait = 0 if await notifier.run_round(reader) else _EVERY_US
                    elif notifier is not None:  # whoever leads meanwhile keeps the outbox
                        await notifier.close()
                        notifier = None
                    reported = False
                except (StoreFailed, BadStore) as error:
                    if not reported:
                        trouble(f"nobody is told of anything: {error}")
                    wait, reported = _RETRY_US, True
                await clock.sleep_until(clock.now_us() + wait)
    finally:
        if notifier is not None:
            await notifier.close()


def _run_in_thread(
    work: Callable[[], MissedRecipients | None],
) -> tuple[asyncio.Future[MissedRecipients | None], machine.Thread]:
    """Do work in a thread that nobody waits for at the end: what hangs must not keep the fleet."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[MissedRecipients | None] = loop.create_future()

    def resolve(missed: MissedRecipients | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(missed)
        else:
            done.set_exception(error)

    def run() -> None:
        missed: MissedRecipients | None = None
        failed: BaseException | None = None
        try:
            missed = work()
        except BaseException as error:
            failed = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(resolve, missed, failed)

    thread = machine.Thread(target=run, name="notice", daemon=True)
    thread.start()
    return done, thread


def _page(store: StoreReader, after: int) -> list[PageEntry]:
    """Return the next entries: those that may have somebody told, and the places of the others."""
    return [
        (seq, orjson.loads(raw) if any(says in raw for says in _MARKERS) else None)
        for seq, raw in store.ledger.entries_after(after, _PAGE)
    ]


def _holds(store: StoreReader) -> list[ActionRow]:
    found: list[ActionRow] = []
    place, beside = 0, ""
    while len(found) < _MOST_HOLDS:
        rows = store.runs.holds_page(after=place, beside=beside, limit=_PAGE)
        found += [row for row in rows if row.hold == "open"]
        if len(rows) < _PAGE:
            break
        place, beside = rows[-1].seq, rows[-1].id
    return found


def _parse_outbox(text: str) -> Outbox:
    """Return the outbox that was kept. Raises BadStore for what is none."""
    try:
        return Outbox.from_json(orjson.loads(text))
    except (ValueError, TypeError, KeyError) as error:
        raise BadStore(f"what was kept of notices cannot be read: {error}") from error
