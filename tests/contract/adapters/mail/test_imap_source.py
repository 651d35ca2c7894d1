"""A mailbox on a real IMAP server as a source: each mail once, nothing marked, whatever happens."""

from __future__ import annotations

import asyncio
import socket
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests import imap

from vedette.adapters.mail.imap.address import read_mail_address
from vedette.adapters.mail.imap.config import ImapFile
from vedette.adapters.mail.imap.fetch_response import mails_of
from vedette.adapters.mail.imap.plugin import IMAP
from vedette.adapters.mail.imap.session import MailSession
from vedette.adapters.mail.imap.source import ImapSource, SourceUnavailable
from vedette.adapters.mail.imap.target import IMAP as TARGET
from vedette.config.settings import load_settings, read_settings
from vedette.domain.base.clock import MICROS, SystemClock
from vedette.domain.base.errors import BadFleet, Permanent, StoreFailed, Temporary
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.ports.sources import Receipt, Refused


def raw(number: int) -> bytes:
    return (
        f"From: ann@stranger.example\r\nDate: Mon, 02 Mar 2026 13:05:11 +0000\r\n"
        f"Message-ID: <{number}@stranger.example>\r\nSubject: s{number}\r\n\r\ntext\r\n"
    ).encode()


class Kept:
    """An intake that keeps what it is given, as the store does: by key, the position with it."""

    def __init__(self) -> None:
        self.batches: list[list[Event | Refused]] = []
        self.positions: list[str] = []
        self.during: Callable[[int], Awaitable[None]] | None = None

    @property
    def handed(self) -> list[Event]:
        return [item for batch in self.batches for item in batch if isinstance(item, Event)]

    @property
    def events(self) -> list[Event]:
        return list({event.key: event for event in reversed(self.handed)}.values())[::-1]

    @property
    def refused(self) -> list[Refused]:
        return [item for batch in self.batches for item in batch if isinstance(item, Refused)]

    async def accept(
        self, deliveries: Sequence[Event | Refused], *, position: tuple[str, str] | None = None
    ) -> list[Receipt]:
        if self.during is not None:
            await self.during(len(self.batches) + 1)
        self.batches.append(list(deliveries))
        assert position is not None
        assert position[0] == "imap:t"
        self.positions.append(position[1])
        return [Receipt("accepted") for _ in deliveries]

    def position(self, source: str) -> str | None:
        return self.positions[-1] if self.positions else None


def source(box: imap.Mailbox, *, watch: bool = False, **more: Any) -> ImapSource:
    leads, max_mail = more.pop("leads", lambda: True), more.pop("max_mail", 100_000)
    return ImapSource(
        box.source(**more), SystemClock(), watch=watch, is_leader=leads, max_mail=max_mail
    )


@pytest.fixture
def box() -> imap.Mailbox:
    return imap.server().mailbox()


async def test_each_mail_once_in_order_and_nothing_is_marked(box: imap.Mailbox) -> None:
    box.fill(raw(number) for number in range(3))
    before = box.folders()
    kept = Kept()
    await source(box).deliver(kept)
    assert [event.data["subject"] for event in kept.events] == ["s0", "s1", "s2"]
    first = kept.events[0]
    assert (first.source, first.type, first.vouched) == (
        "imap:t",
        "mail.received",
        ENVELOPE - {"time"},
    )
    assert first.time == "2026-03-02T13:05:11Z"
    at = read_mail_address(first.subject or "")
    assert at is not None
    assert (at.uid, at.size, at.folder) == (1, len(raw(0)), "INBOX")
    assert box.folders() == before
    assert all(not flags for _, _, flags in before["INBOX"])


async def test_it_goes_on_where_it_was(box: imap.Mailbox) -> None:
    box.fill([raw(1)])
    kept = Kept()
    await source(box).deliver(kept)
    box.fill([raw(2)])
    await source(box).deliver(kept)
    await source(box).deliver(kept)
    assert [event.data["subject"] for event in kept.handed] == ["s1", "s2"]


async def test_the_position_moves_with_the_batch_and_no_earlier(box: imap.Mailbox) -> None:
    """Cut off at every other hand-over, the next start brings the rest: none lost, none twice."""
    box.fill(raw(number) for number in range(150))
    kept, handed, cut = Kept(), 0, 0

    async def fail(count: int) -> None:
        nonlocal handed
        handed += 1
        if handed % 2 == 0:
            raise StoreFailed("the disk is full")

    kept.during = fail
    while cut < 20:
        try:
            await source(box).deliver(kept)
            break
        except StoreFailed:
            cut += 1
    subjects = [event.data["subject"] for event in kept.handed]
    assert subjects == [f"s{number}" for number in range(150)]
    assert 1 < cut < 20
    assert max(len(batch) for batch in kept.batches) == 64


async def test_numbered_anew_all_is_read_again_and_known_again(box: imap.Mailbox) -> None:
    box.fill(raw(number) for number in range(5))
    kept = Kept()
    await source(box).deliver(kept)
    box.renumber()
    box.fill([raw(5)])
    await source(box).deliver(kept)
    assert (len(kept.handed), len(kept.events)) == (11, 6)
    places = [orjson.loads(position)["folders"]["INBOX"]["validity"] for position in kept.positions]
    assert places[0] != places[-1]


async def test_what_was_left_out_at_first_stays_out_when_numbered_anew(box: imap.Mailbox) -> None:
    now = datetime.now(UTC)
    box.fill([raw(0)], at=now - timedelta(days=30))
    box.fill([raw(1), raw(2)], at=now - timedelta(days=1))
    kept = Kept()
    await source(box, newest=2).deliver(kept)
    box.renumber()
    await source(box, newest=2).deliver(kept)
    assert {event.data["subject"] for event in kept.events} == {"s1", "s2"}


async def test_a_mail_that_is_moved_back_is_no_new_event(box: imap.Mailbox) -> None:
    box.fill([raw(1)])
    kept = Kept()
    await source(box).deliver(kept)
    box.create("Legal")
    for here, there in (("INBOX", "Legal"), ("Legal", "INBOX")):
        with box.client(here) as client:
            client.uid("MOVE", "1:*", there)
    assert box.only("INBOX")[0] == 2
    await source(box).deliver(kept)
    assert (len(kept.handed), len(kept.events)) == (2, 1)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"newest": 2}, {"s2", "s3"}),
        ({"newest": 0}, set()),
        ({"newest": 0, "since": "7d"}, {"s1", "s2", "s3"}),
        ({}, {"s0", "s1", "s2", "s3"}),
    ],
)
async def test_it_begins_where_it_is_told_to(
    box: imap.Mailbox, more: dict[str, Any], expected: set[str]
) -> None:
    now = datetime.now(UTC)
    for number, days in enumerate((30, 3, 2, 1)):
        box.fill([raw(number)], at=now - timedelta(days=days))
    kept = Kept()
    await source(box, **more).deliver(kept)
    assert {event.data["subject"] for event in kept.handed} == expected
    # What comes later always counts, however old the server says that it is.
    box.fill([raw(9)], at=now - timedelta(days=300))
    await source(box, **more).deliver(kept)
    assert {event.data["subject"] for event in kept.handed} == {*expected, "s9"}


async def test_what_somebody_deleted_is_no_event(box: imap.Mailbox) -> None:
    box.fill([raw(1)], flags=r"(\Deleted)")
    box.fill([raw(2)], flags=r"(\Seen \Flagged)")
    kept = Kept()
    await source(box).deliver(kept)
    assert [event.data["subject"] for event in kept.handed] == ["s2"]


async def test_several_folders_of_any_name(box: imap.Mailbox) -> None:
    box.fill([raw(1)])
    box.fill([raw(2)], "&-Co")
    with box.client() as client:
        client.create('"B&APw-ro"')
        client.append('"B&APw-ro"', "", "", raw(3))
    kept = Kept()
    await source(box, folders=("INBOX", "&Co", "Büro")).deliver(kept)
    assert [event.data["subject"] for event in kept.handed] == ["s1", "s2", "s3"]
    assert (kept.handed[2].subject or "").endswith(";Büro")


@pytest.mark.parametrize("keyword", ["a[b", "NIL", "UID", "123"])
async def test_a_mail_with_a_keyword_of_any_spelling_is_taken(
    box: imap.Mailbox, keyword: str
) -> None:
    """Whoever may write to the mailbox chooses it; it must not hold back the mails beside it."""
    box.fill([raw(1)], flags=f"({keyword})")
    box.fill([raw(2)])
    kept, session = Kept(), MailSession(box.table())
    await source(box).deliver(kept)
    assert [event.data["subject"] for event in kept.handed] == ["s1", "s2"]
    session.open("INBOX")
    assert session.mails([1])[1].flags == {keyword}
    session.close()


async def test_what_cannot_be_taken_is_refused_once_and_nothing_is_stuck(box: imap.Mailbox) -> None:
    odd = [
        b"", b"\r\n", b"no header at all\r\n", b"Subject: \xff\xfe\r\n\r\n\xff\x80\r\n",
        b'Content-Type: multipart/mixed; boundary="a"\r\n\r\n--a\r\n' * 200,
        b"From: " + b"<" * 5000 + b"\r\n\r\nx\r\n",
    ]  # fmt: skip
    box.fill([raw(1), *odd[1:], raw(2) + b"x" * 200_000, raw(3)])
    kept = Kept()
    for _ in range(2):
        await source(box).deliver(kept)
    (refused,) = kept.refused
    assert "the limit is 100000" in refused.why
    assert len(kept.handed) == len(odd) - 1 + 2
    assert kept.handed[-1].data["subject"] == "s3"


async def test_a_waiting_source_hears_at_once_of_a_new_mail(box: imap.Mailbox) -> None:
    box.fill([raw(1)])
    kept, came = Kept(), asyncio.Event()

    async def wait_for(count: int) -> None:
        came.set()

    # Far longer than the test: only IDLE can bring the second mail.
    watching = source(box, watch=True, every="10m")
    assert watching.finite is False
    task = asyncio.create_task(watching.deliver(kept))
    while len(kept.handed) < 1:  # noqa: ASYNC110 (the batch is kept after it is told)
        await asyncio.sleep(0.01)
    kept.during = wait_for
    await asyncio.to_thread(box.fill, [raw(2)])
    await asyncio.wait_for(came.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event.data["subject"] for event in kept.handed] == ["s1", "s2"]


async def test_without_idle_it_looks_again_and_again(box: imap.Mailbox) -> None:
    kept = Kept()
    task = asyncio.create_task(source(box, watch=True, every="20ms", idle=False).deliver(kept))
    await asyncio.sleep(0.1)
    await asyncio.to_thread(box.fill, [raw(1)])
    async with asyncio.timeout(10):
        while not kept.handed:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_server_that_goes_away_is_asked_again_and_nothing_is_lost() -> None:
    server = imap.ImapServer()
    try:
        box = server.mailbox()
        box.fill([raw(1)])
        kept = Kept()
        lost = source(box)
        await lost.deliver(kept)
        server.kill()
        with pytest.raises(SourceUnavailable):
            await lost.deliver(kept)
        server.start()
        box.fill([raw(2)])
        await lost.deliver(kept)
        assert [event.data["subject"] for event in kept.handed] == ["s1", "s2"]
    finally:
        server.stop()


async def test_a_line_that_breaks_while_it_waits_is_noticed(box: imap.Mailbox) -> None:
    session = MailSession(box.table())
    session.open("INBOX")
    waiting = asyncio.create_task(asyncio.to_thread(session.wait, 600))
    await asyncio.sleep(0.1)
    session.interrupt()
    with pytest.raises(Temporary):
        await asyncio.wait_for(waiting, 5)
    session.close()


async def test_what_is_wrong_is_said_and_tried_again(
    box: imap.Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUESSED", "guess me")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"password_env": "GUESSED"}, "login of"),
        ({"port": 1}, "refused"),
        ({"folders": ["Nowhere"]}, "no folder 'Nowhere'"),
    ]
    for more, match in wrong:
        with pytest.raises(SourceUnavailable, match=match) as caught:
            await source(box, **more).deliver(Kept())
        assert "guess me" not in str(caught.value)
    nothing: dict[str, Any] = {"password_env": "VEDETTE_TEST_NO_SUCH_VARIABLE"}
    with pytest.raises(BadFleet, match="VEDETTE_TEST_NO_SUCH_VARIABLE"):
        await source(box, **nothing).deliver(Kept())


@contextmanager
def without_plain() -> Iterator[tuple[int, list[bytes]]]:
    """Serve one IMAP login without AUTH=PLAIN; give the port, and what was said to it."""
    said: list[bytes] = []

    def serve() -> None:
        line, _ = listening.accept()
        with line, line.makefile("rb") as file:
            line.sendall(b"* OK [CAPABILITY IMAP4rev1] here\r\n")
            for command in file:
                said.append(command)
                if b"CAPABILITY" in command:
                    line.sendall(b"* CAPABILITY IMAP4rev1\r\n")
                line.sendall(command.split()[0] + b" OK done\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1], said
        thread.join()


@pytest.mark.parametrize("password", ["geheim\u00fc", "two\r\nA1 LOGOUT", "plain"])
def test_a_password_that_login_cannot_say_is_refused_without_a_word_of_it(password: str) -> None:
    with without_plain() as (port, said):
        table = {"host": "127.0.0.1", "port": port, "tls": "none", "user": "kim"}
        if password == "plain":
            MailSession({**table, "password": password}).close()
        else:
            with pytest.raises(Permanent, match="plain ASCII") as caught:
                MailSession({**table, "password": password})
            text = "".join(traceback.format_exception(caught.value))
            assert not [secret for secret in ("geheim", "\u00fc", "xfc", "two") if secret in text]
    assert any(b"LOGIN" in command for command in said) is (password == "plain")


def test_a_host_that_is_no_name_is_said_as_an_error_of_ours() -> None:
    with pytest.raises(Permanent, match="cannot be asked"):
        MailSession({"host": f"{'a' * 64}.example", "user": "kim", "password": "x"})


class Hasty(SystemClock):
    """Waits for nothing."""

    async def sleep_until(self, at_us: int) -> None:
        await asyncio.sleep(0)


async def test_a_mail_that_the_server_cannot_deliver_is_passed_by_and_named(
    box: imap.Mailbox,
) -> None:
    """Cut off on the server's disk: it fails thrice alone, and those behind it come."""
    box.fill(raw(number) for number in range(4))
    (broken,) = [path for path in box.server.mails_at(box.user).rglob("*,S=*")
                 if b"<1@stranger" in path.read_bytes()]  # fmt: skip
    broken.write_bytes(broken.read_bytes()[:40])
    kept, tries = Kept(), 0
    desk = ImapSource(box.source(), Hasty(), watch=False)
    while True:
        try:
            await desk.deliver(kept)
            break
        except SourceUnavailable:
            tries += 1
            assert tries < 8
            assert kept.refused == []
    assert [event.data["subject"] for event in kept.events] == ["s0", "s2", "s3"]
    assert [refused.where for refused in kept.refused] == ["imap:t/INBOX;2"]
    assert tries == 4


async def test_no_mail_is_passed_by_while_the_server_delivers_none(
    box: imap.Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.fill(raw(number) for number in range(2))
    mails, away = MailSession.mails, True

    def none(self: MailSession, uids: Sequence[int], *, items: str = "") -> Any:
        if items and away:
            raise Temporary("its disk is away")
        return mails(self, uids, items=items)

    monkeypatch.setattr(MailSession, "mails", none)
    kept, desk = Kept(), ImapSource(box.source(), Hasty(), watch=False)
    for _ in range(9):
        with pytest.raises(SourceUnavailable):
            await desk.deliver(kept)
    assert kept.refused == []
    away = False
    await desk.deliver(kept)
    assert [event.data["subject"] for event in kept.events] == ["s0", "s1"]


async def test_a_password_that_goes_for_a_while_is_waited_for(
    box: imap.Mailbox, tmp_path: Path
) -> None:
    word = tmp_path / "word"
    plan = box.source(password_env=None, password_file=str(word))
    with pytest.raises(BadFleet):
        await ImapSource(plan, Hasty(), watch=False).deliver(Kept())
    word.write_text(box.server.password)
    desk, kept = ImapSource(plan, Hasty(), watch=False), Kept()
    await desk.deliver(kept)
    word.unlink()
    with pytest.raises(SourceUnavailable):
        await desk.deliver(kept)
    word.write_text(box.server.password)
    box.fill([raw(1)])
    await desk.deliver(kept)
    assert len(kept.events) == 1


async def test_who_does_not_lead_hands_nothing_over(box: imap.Mailbox) -> None:
    box.fill([raw(1)])
    kept = Kept()
    with pytest.raises(StoreFailed, match="another worker leads"):
        await source(box, leads=lambda: False).deliver(kept)
    assert kept.batches == []


async def test_probe_logs_in_and_changes_nothing(box: imap.Mailbox) -> None:
    box.fill([raw(1)])
    before = box.folders()
    assert "logged in" in await IMAP.probe(box.source())
    assert "logged in" in await TARGET.probe(box.table())
    with pytest.raises(Exception, match="no folder 'Legal'"):
        await IMAP.probe(box.source(folders=["INBOX", "Legal"]))
    assert box.folders() == before


# --- answers and settings --------------------------------------------------------------------


def test_what_a_server_says_beside_the_answer_is_put_together_or_left_out() -> None:
    found = mails_of([
        b'1 (UID 7 FLAGS (\\Seen UID 9 \\Recent) INTERNALDATE " 2-Mar-2026 01:02:03 +0100")',
        b"2 (FLAGS (\\Deleted))",
        (b"3 (RFC822.SIZE 5 BODY[] {5}", b"UID 8"),
        b" UID 4)",
        b"1 (UID 7 RFC822.SIZE 12)",
        b'5 (UID 6 BODY[]<0> "a\\"b")',
        None,
    ])  # fmt: skip
    assert set(found) == {4, 6, 7}
    assert found[7].flags == {"\\Seen", "UID", "9"}
    assert (found[7].size, found[7].received_us) == (12, 1_772_409_723 * MICROS)
    assert (found[4].content, found[4].size) == (b"UID 8", 5)
    assert found[6].content == b'a"b'


SETTINGS = """
fleet = "f"
[targets.relay]
kind = "smtp"
host = "smtp.example"
user = "relay"
password_env = "RELAY"
[targets.mailbox]
kind = "imap"
host = "imap.example"
user = "desk"
password_file = "secrets/mail"
address = "desk@lights.example"
smtp = "relay"
[[sources]]
kind = "imap"
name = "desk"
host = "imap.example"
user = "desk"
password_env = "MAIL"
ca_file = "ca.pem"
since = "7d"
folders = ["INBOX", "INBOX"]
"""


def test_settings_say_where_the_mail_is(tmp_path: Path) -> None:
    (tmp_path / "vedette.toml").write_text(SETTINGS)
    settings = load_settings(tmp_path / "vedette.toml")
    (plan,) = settings.sources
    assert isinstance(plan, ImapFile)
    assert plan.server == {
        "host": "imap.example", "user": "desk", "password_env": "MAIL", "tls": "implicit",
        "ca_file": str(tmp_path / "ca.pem"),
    }  # fmt: skip
    assert (plan.folders, plan.since, plan.idle) == (["INBOX"], "7d", True)
    mailbox = settings.targets["mailbox"]
    assert (mailbox["smtp_host"], mailbox["smtp_password_env"]) == ("smtp.example", "RELAY")
    assert mailbox["password_file"] == str(tmp_path / "secrets" / "mail")


@pytest.mark.parametrize(
    ("old", "new", "line", "match"),
    [
        ('kind = "smtp"\nhost = "smtp.example"', 'kind = "smtp"', 3, "needs a host"),
        ('password_env = "RELAY"', "", 6, "has no password"),
        ('password_env = "RELAY"', 'password = "x"', 7, "does not stand in a file"),
        ('smtp = "relay"', 'smtp = "rely"', 14, "no target of kind smtp"),
        ('address = "desk@lights.example"\n', "", 13, "whom mails come from"),
        ('user = "relay"', 'user = "relay"\nport = 0', 7, "no port"),
        ('user = "relay"', 'user = "relay"\ntls = "none"', 7, "go over the net"),
        ('user = "relay"', 'user = "relay"\ntls = "ssl"', 7, "is not known"),
        ('smtp = "relay"', "create_folders = 1", 14, "true or false"),
        ('password_env = "MAIL"', 'password_env = "MAIL"\ntls = "none"', 21, "go over the net"),
        ('password_env = "MAIL"\n', "", 19, "has no password"),
        ('folders = ["INBOX", "INBOX"]', "folders = []", 23, "names no folder"),
        ('since = "7d"', 'since = "soon"', 22, "not a duration"),
    ],
)
def test_a_wrong_setting_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, match: str
) -> None:
    assert SETTINGS.count(old) == 1
    (tmp_path / "vedette.toml").write_text(SETTINGS.replace(old, new))
    settings, problems = read_settings(tmp_path / "vedette.toml")
    assert settings is None
    messages = [str(problem) for problem in problems]
    assert any(match in one for one in messages), messages
    assert line in [problem.line for problem in problems], messages
    assert all(problem.mend for problem in problems)
