"""A way to tell that is set up wrongly, hangs or trickles harms neither fleet nor other ways."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.contract.app.test_notifications import (
    Hook,
    Notices,
    entry,
    harness,
    hook,
    mail_server,
)

from vedette.adapters import notify as webhook
from vedette.adapters.mail.smtp import send_mail
from vedette.adapters.mail.smtp.config import MailPlan
from vedette.adapters.notify.config import WebhookFile
from vedette.app.doctor import _probe_notifier, _probe_with_timeout
from vedette.app.followers.notifications import (
    MAX_PENDING,
    RETRY_LIMIT_US,
    Notice,
    Outbox,
    notice_facts,
)
from vedette.app.followers.notifier import follow_for_notices
from vedette.config.notify import NotifyPlan
from vedette.domain.base.errors import Permanent, Temporary
from vedette.ledger.history.lists import status
from vedette.testing.clock import ManualClock

__all__ = ["hook"]  # a fixture

MAIL = b"From: a@b.example\r\nTo: c@d.example\r\n\r\nhello\r\n"
TOKEN = "sécret-łtoken"


# --- what no library can say --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("http://127.0.0.1:PORT/h\u00f6k", None),
        (f"http://{'a' * 64}.example/secret", None),
        ("http://127.0.0.1:PORT/secret", TOKEN),
        ("http://127.0.0.1:PORT/secret", "two\nlines"),
    ],
)
def test_a_webhook_that_cannot_be_asked_is_refused_for_good(
    hook: Hook, url: str, token: str | None
) -> None:
    url = url.replace("PORT", hook.url.rpartition(":")[2].partition("/")[0])
    with pytest.raises(Permanent, match="cannot be asked") as refusal:
        webhook.post(url, b"{}", "k", token)
    for secret in ("secret", "token", "two", "ł"):
        assert secret not in str(refusal.value).replace("address and token", "")
    assert not hook.got


def test_the_secret_path_is_in_no_refusal() -> None:
    for error, url in (
        (Permanent, "http://hooks.example/secret"), (Temporary, "http://127.0.0.1:9/secret"),
    ):  # fmt: skip
        with pytest.raises(error) as refusal:
            webhook.post(url, b"{}", "k", "token" if error is Permanent else None)
        assert "secret" not in str(refusal.value)


def test_a_host_that_only_begins_like_this_machine_is_not_given_the_token() -> None:
    with pytest.raises(Permanent, match="plain HTTP"):
        webhook.post("http://127.evil.example/x", b"{}", "k", "token")


def test_a_password_that_smtp_cannot_say_is_refused_for_good() -> None:
    with mail_server(("250-here", "250 AUTH PLAIN LOGIN")) as (port, taken):
        server = {"host": "127.0.0.1", "port": port, "tls": "none", "user": "kim"}
        with pytest.raises(Permanent, match="cannot be asked") as refusal:
            send_mail({**server, "password": "p\u00e4ssword"}, MAIL, "a@b.example", ["c@d.example"])
        assert "\u00e4" not in str(refusal.value)
        assert not taken


async def test_check_live_tells_of_a_host_that_is_no_name() -> None:
    seen = await _probe_with_timeout(
        "ops",
        _probe_notifier(
            WebhookFile(kind="webhook", name="ops", url=f"https://{'a' * 64}.example/")
        ),
    )
    assert (seen.state, seen.what) == ("fail", "ops")
    assert "cannot be asked" in seen.told


# --- the fleet goes on, and so do the other ways --------------------------------------------------


async def test_a_way_that_raises_anything_ends_no_fleet(tmp_path: Path, hook: Hook) -> None:
    clock = ManualClock()
    async with harness(tmp_path, clock) as fleet:
        ways = (
            WebhookFile(kind="webhook", name="bad", url=f"{hook.url}/h\u00f6k"),
            WebhookFile(kind="webhook", name="ops", url=hook.url),
        )
        told = Notices(fleet, clock, NotifyPlan(to=ways))

        def raise_it(notice: Notice) -> None:
            raise LookupError("secret")

        told.telling._senders["bad"] = raise_it
        await told.holds("m1")
        await told.round()
        assert len(hook.got) == 1
        assert told.troubles == ["notices by bad: LookupError"]
        # It is tried again, as what is Temporary is; the follower of the next start goes on too.
        notices = status(fleet.app.store, clock.now_us())["notices"]
        assert (notices["pending"], notices["failing"]) == (1, ["bad"])
        following = asyncio.create_task(follow_for_notices(fleet.app, told.troubles.append))
        clock.advance(10_000_000)
        for _ in range(2000):
            if len(told.troubles) > 1 or following.done():
                break
            await asyncio.sleep(0.002)
        assert not following.done()
        assert "cannot be asked" in told.troubles[1]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_way_that_hangs_ends_in_time_and_others_are_told_meanwhile(
    tmp_path: Path, hook: Hook
) -> None:
    clock, let_go = ManualClock(), threading.Event()
    async with harness(tmp_path, clock) as fleet:
        ways = (
            WebhookFile(kind="webhook", name="slow", url="http://127.0.0.1:9/"),
            WebhookFile(kind="webhook", name="ops", url=hook.url),
        )
        notices = Notices(fleet, clock, NotifyPlan(to=ways))
        begun: list[Notice] = []

        def hang(notice: Notice) -> None:
            begun.append(notice)
            let_go.wait(30)

        notices.telling._senders["slow"] = hang
        from vedette.app.followers.telemetry import RecordReader

        # Nobody waits for it: while it hangs, two rounds tell the other way of two things.
        with RecordReader(fleet.app) as reader:
            for name, count in (("m1", 1), ("m2", 2)):
                await notices.holds(name)
                clock.advance(60_000_000)
                await notices.telling.run_round(reader)
                await notices.telling._sending["ops"]
                assert len(hook.got) == count
        assert len(begun) == 1
        slow = notices.telling._sending["slow"]
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        notices.telling._sending.clear()
        notices.telling.longest_s = 0.02
        for _ in range(6):
            clock.advance(600_000_000)
            await notices.round()
        assert notices.troubles == ["notices by slow: not taken within 0.02 s"]
        # Threads that hang do not pile up.
        assert len(begun) == 1 + 3
        let_go.set()
        notices.telling.longest_s = 30.0
        for thread in threading.enumerate():
            if thread.name == "notice":
                thread.join(5)
        clock.advance(600_000_000)
        await notices.round()
        assert status(fleet.app.store, clock.now_us())["notices"]["pending"] == 0


# --- a way that says no ---------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [302, 401, 403, 404])
async def test_a_no_is_tried_again_until_the_way_is_mended(
    tmp_path: Path, hook: Hook, answer: int
) -> None:
    clock = ManualClock()
    async with harness(tmp_path, clock) as fleet:
        notices = Notices(
            fleet, clock, NotifyPlan(to=(WebhookFile(kind="webhook", name="ops", url=hook.url),))
        )
        hook.status = answer
        for name in ("m1", "m2"):
            await notices.holds(name)
            await notices.round()
            clock.advance(60_000_000)
        stood = status(fleet.app.store, clock.now_us())["notices"]
        assert stood == {"pending": 2, "sent": 0, "failed": 2, "dropped": 0, "failing": ["ops"]}
        assert len(notices.troubles) == 1
        tried = len(hook.got)
        hook.status = 200
        await notices.round()
        assert len(hook.got) == tried + 2
        stood = status(fleet.app.store, clock.now_us())["notices"]
        assert (stood["pending"], stood["sent"], stood["failing"]) == (0, 2, [])
        # And not for ever: what nobody takes for a day is given up, and that is counted.
        hook.status = answer
        await notices.holds("m3")
        await notices.round()
        clock.advance(RETRY_LIMIT_US + 1)
        await notices.round()
        stood = status(fleet.app.store, clock.now_us())["notices"]
        assert (stood["pending"], stood["dropped"], stood["failing"]) == (0, 1, ["ops"])


async def test_what_can_never_be_sent_is_dropped_and_the_way_goes_on(
    tmp_path: Path, hook: Hook
) -> None:
    clock = ManualClock()
    async with harness(tmp_path, clock) as fleet:
        notices = Notices(
            fleet, clock, NotifyPlan(to=(WebhookFile(kind="webhook", name="ops", url=hook.url),))
        )
        hook.status = 413
        await notices.holds("m1")
        await notices.round()
        stood = status(fleet.app.store, clock.now_us())["notices"]
        assert stood == {"pending": 0, "sent": 0, "failed": 1, "dropped": 1, "failing": ["ops"]}
        hook.status = 200
        await notices.holds("m2")
        clock.advance(60_000_000)
        await notices.round()
        stood = status(fleet.app.store, clock.now_us())["notices"]
        assert (stood["sent"], stood["failing"]) == (1, [])


def test_a_notice_that_no_one_takes_keeps_no_other_back() -> None:
    outbox = Outbox(0)
    for number in range(3):
        outbox.add_entry(number, entry("run.dead", agent=f"a{number}", run="r"), ["ops"], 5)
    first, *others = outbox.due_notices("ops", 5)
    outbox.schedule_retry("ops", first, 5, 1_000)
    assert outbox.due_notices("ops", 1_004) == []
    assert outbox.due_notices("ops", 1_005) == [*others, first]
    assert Outbox.from_json(outbox.to_json()).due_notices("ops", 1_005) == [*others, first]


# --- a mail to several ----------------------------------------------------------------------------

ANN, BOB = "ann@harbour.example", "bob@harbour.example"


def mailing(port: int, tls: str = "none") -> NotifyPlan:
    server = {"kind": "smtp", "host": "127.0.0.1", "port": port, "tls": tls}
    return NotifyPlan(to=(MailPlan("mail", server, "fleet@harbour.example", (ANN, BOB)),))


async def test_one_who_has_left_keeps_nobody_from_being_told(tmp_path: Path) -> None:
    clock, whom = ManualClock(), list[list[str]]()
    with mail_server(noes={BOB: "550 5.1.1 no such user"}, whom=whom) as (port, _):
        async with harness(tmp_path, clock) as fleet:
            notices = Notices(fleet, clock, mailing(port))
            for name in ("m1", "m2"):
                await notices.holds(name)
                await notices.round()
                clock.advance(3_600_000_000)
            await notices.round()
            assert whom == [[ANN], [ANN]]
            assert notices.troubles == [
                f"notices by mail: {BOB} was not told: the server answered 550 5.1.1 no such user"
            ]
            stood = status(fleet.app.store, clock.now_us())["notices"]
    assert stood == {"pending": 0, "sent": 2, "failed": 2, "dropped": 0, "failing": ["mail"]}


async def test_who_takes_a_mail_later_gets_it_alone_and_others_are_not_kept_waiting(
    tmp_path: Path,
) -> None:
    clock, whom = ManualClock(), list[list[str]]()
    noes = {BOB: "450 4.2.0 not now"}
    with mail_server(noes=noes, whom=whom) as (port, taken):
        async with harness(tmp_path, clock) as fleet:
            notices = Notices(fleet, clock, mailing(port))
            await notices.holds("m1")
            await notices.round(2)
            assert whom == [[ANN]]
            clock.advance(60_000_000)
            notices.again()  # who was told is durable
            await notices.round()
            # He is asked again in a minute; she is told of what is new at once.
            await notices.holds("m2")
            await notices.round(2)
            assert whom == [[ANN], [ANN]]
            noes.clear()
            clock.advance(3_600_000_000)
            await notices.round(2)
            assert whom == [[ANN], [ANN], [BOB], [BOB]]
            ids = [line for mail in taken for line in mail.splitlines() if "Message-ID" in line]
            assert sorted(ids[2:]) == sorted(ids[:2])
            stood = status(fleet.app.store, clock.now_us())["notices"]
            assert stood == {"pending": 0, "sent": 2, "failed": 3, "dropped": 0, "failing": []}
            # He left before he could be told: that ends it, as she was.
            noes[BOB] = "450 4.2.0 not now"
            await notices.holds("m3")
            await notices.round()
            noes[BOB] = "550 5.1.1 no such user"
            clock.advance(3_600_000_000)
            await notices.round()
            stood = status(fleet.app.store, clock.now_us())["notices"]
            assert (stood["pending"], stood["sent"], stood["failing"]) == (0, 3, ["mail"])
            # Nor is one tried for longer than a day.
            noes[BOB] = "450 4.2.0 not now"
            await notices.holds("m4")
            await notices.round()
            clock.advance(RETRY_LIMIT_US + 1)
            await notices.round()
            stood = status(fleet.app.store, clock.now_us())["notices"]
            assert (stood["pending"], stood["dropped"]) == (0, 1)
    assert whom[4:] == [[ANN], [ANN]]


@pytest.mark.parametrize("tls", ["none", "starttls"])
async def test_a_no_to_everyone_is_the_relays_and_is_tried_again(tmp_path: Path, tls: str) -> None:
    clock, whom = ManualClock(), list[list[str]]()
    noes = dict.fromkeys((ANN, BOB), "554 5.7.1 relay access denied")
    with mail_server(noes=noes, whom=whom) as (port, _):
        async with harness(tmp_path, clock) as fleet:
            notices = Notices(fleet, clock, mailing(port, tls))
            await notices.holds("m1")
            await notices.round()
            stood = status(fleet.app.store, clock.now_us())["notices"]
            assert (stood["pending"], stood["failing"]) == (1, ["mail"])
            assert ("554" if tls == "none" else "no STARTTLS") in notices.troubles[0]
            noes.clear()
            clock.advance(3_600_000_000)
            await notices.round()
    assert whom == ([[ANN, BOB]] if tls == "none" else [])


@contextmanager
def trickling() -> Iterator[str]:
    """A server that sends one byte of its answer now and then, for ever."""
    server = socket.create_server(("127.0.0.1", 0))
    ending = threading.Event()

    def serve() -> None:
        held, _ = server.accept()
        with held:
            held.recv(65536)
            held.sendall(b"HTTP/1.0 200 OK\r\nX: ")
            while not ending.wait(0.01):
                try:
                    held.sendall(b"x")
                except OSError:
                    return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
    finally:
        ending.set()
        thread.join()
        server.close()


def test_a_webhook_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "DEADLINE_S", 0.1)
    ended: list[Any] = []
    with trickling() as url:

        def ask() -> None:
            with suppress(Temporary):  # what came of the head until then may do
                webhook.post(url, b"{}", "k", None)
            ended.append(url)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(5)
        assert len(ended) == 1, "the deadline is not kept"


# --- the outbox ---------------------------------------------------------------------------------


def test_a_dead_way_takes_no_place_of_a_healthy_one() -> None:
    outbox = Outbox(0)
    for number in range(MAX_PENDING + 20):
        outbox.add_entry(
            number, entry("run.dead", agent=f"a{number}", run="r"), ["dead", "well"], 5
        )
        for notice in outbox.due_notices("well", 5):
            outbox.record_sent("well", notice)
        outbox.due_notices("dead", 5)
    assert outbox.sent == MAX_PENDING + 20
    assert outbox.dropped == 20
    # What the dead way owes is bounded, and the newest are kept.
    assert [notice.agent for notice in outbox.pending] == [
        f"a{n}" for n in range(20, MAX_PENDING + 20)
    ]


def test_holds_that_were_all_answered_are_not_told_of_however_many_they_were() -> None:
    def held(number: int) -> dict[str, Any]:
        return entry("action.decided", outcome="hold", wait="approval", action=f"act_{number}")

    outbox = Outbox(0)
    for number in range(8):
        outbox.add_entry(number, held(number), ["ops"], 5)
    assert notice_facts(outbox.pending[0], "f", None)["ids"] == [f"hold_{n}" for n in range(5)]
    for number in range(8):
        assert outbox.pending, "told of too few"
        outbox.add_entry(8 + number, entry("hold.denied", action=f"act_{number}"), ["ops"], 5)
    assert not outbox.due_notices("ops", 10**9)
