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
from tests.contract.test_notices import (
    Hook,
    Told,
    entry,
    harness,
    hook,
    mail_server,
)

from vedette.adapters import notify as webhook
from vedette.adapters.smtp import deliver
from vedette.errors import Permanent, Temporary
from vedette.load.notify_file import NotifyPlan, WebhookPlan
from vedette.notices import MOST, Notice, Outbox, facts
from vedette.notify import follow
from vedette.outside import _bounded, _notices
from vedette.testing.clock import ManualClock
from vedette.timeline import status

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
    with pytest.raises(Permanent, match="cannot be asked") as told:
        webhook.post(url, b"{}", "k", token)
    for secret in ("secret", "token", "two", "ł"):
        assert secret not in str(told.value).replace("address and token", "")
    assert not hook.got


def test_the_secret_path_is_in_no_refusal() -> None:
    for error, url in (
        (Permanent, "http://hooks.example/secret"), (Temporary, "http://127.0.0.1:9/secret"),
    ):  # fmt: skip
        with pytest.raises(error) as told:
            webhook.post(url, b"{}", "k", "token" if error is Permanent else None)
        assert "secret" not in str(told.value)


def test_a_host_that_only_begins_like_this_machine_is_not_given_the_token() -> None:
    with pytest.raises(Permanent, match="plain HTTP"):
        webhook.post("http://127.evil.example/x", b"{}", "k", "token")


def test_a_password_that_smtp_cannot_say_is_refused_for_good() -> None:
    with mail_server(("250-here", "250 AUTH PLAIN LOGIN")) as (port, taken):
        server = {"host": "127.0.0.1", "port": port, "tls": "none", "user": "kim"}
        with pytest.raises(Permanent, match="cannot be asked") as told:
            deliver({**server, "password": "p\u00e4ssword"}, MAIL, "a@b.example", ["c@d.example"])
        assert "\u00e4" not in str(told.value)
        assert not taken


async def test_check_live_tells_of_a_host_that_is_no_name() -> None:
    seen = await _bounded("ops", _notices(WebhookPlan("ops", f"https://{'a' * 64}.example/")))
    assert (seen.state, seen.what) == ("fail", "ops")
    assert "cannot be asked" in seen.told


# --- the fleet goes on, and so do the other ways --------------------------------------------------


async def test_a_way_that_raises_anything_ends_no_fleet(tmp_path: Path, hook: Hook) -> None:
    clock = ManualClock()
    async with harness(tmp_path, clock) as fleet:
        ways = (WebhookPlan("bad", f"{hook.url}/h\u00f6k"), WebhookPlan("ops", hook.url))
        told = Told(fleet, clock, NotifyPlan(to=ways))

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
        following = asyncio.create_task(follow(fleet.app, told.troubles.append))
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
        ways = (WebhookPlan("slow", "http://127.0.0.1:9/"), WebhookPlan("ops", hook.url))
        told = Told(fleet, clock, NotifyPlan(to=ways))
        begun: list[Notice] = []

        def hang(notice: Notice) -> None:
            begun.append(notice)
            let_go.wait(30)

        told.telling._senders["slow"] = hang
        from vedette.tell import Reader

        # Nobody waits for it: while it hangs, two rounds tell the other way of two things.
        with Reader(fleet.app) as reader:
            for name, count in (("m1", 1), ("m2", 2)):
                await told.holds(name)
                clock.advance(60_000_000)
                await told.telling.round(reader)
                await told.telling._sending["ops"]
                assert len(hook.got) == count
        assert len(begun) == 1
        slow = told.telling._sending["slow"]
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        told.telling._sending.clear()
        told.telling.longest_s = 0.02
        for _ in range(6):
            clock.advance(600_000_000)
            await told.round()
        assert told.troubles == ["notices by slow: not taken within 0.02 s"]
        # Threads that hang do not pile up.
        assert len(begun) == 1 + 3
        let_go.set()
        told.telling.longest_s = 30.0
        for thread in threading.enumerate():
            if thread.name == "notice":
                thread.join(5)
        clock.advance(600_000_000)
        await told.round()
        assert status(fleet.app.store, clock.now_us())["notices"]["pending"] == 0


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
    for number in range(MOST + 20):
        outbox.take(number, entry("run.dead", agent=f"a{number}", run="r"), ["dead", "well"], 5)
        for notice in outbox.due("well", 5):
            outbox.gone("well", notice)
        outbox.due("dead", 5)
    assert outbox.sent == MOST + 20
    assert outbox.dropped == 20
    # What the dead way owes is bounded, and the newest are kept.
    assert [notice.agent for notice in outbox.pending] == [f"a{n}" for n in range(20, MOST + 20)]


def test_holds_that_were_all_answered_are_not_told_of_however_many_they_were() -> None:
    def held(number: int) -> dict[str, Any]:
        return entry("action.decided", outcome="hold", wait="approval", action=f"act_{number}")

    outbox = Outbox(0)
    for number in range(8):
        outbox.take(number, held(number), ["ops"], 5)
    assert facts(outbox.pending[0], "f", None)["ids"] == [f"hold_{n}" for n in range(5)]
    for number in range(8):
        assert outbox.pending, "told of too few"
        outbox.take(8 + number, entry("hold.denied", action=f"act_{number}"), ["ops"], 5)
    assert not outbox.due("ops", 10**9)
