"""Notices: people are told of what waits, once a minute and group, over restarts, with no power."""

from __future__ import annotations

import asyncio
import json
import re
import socketserver
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_string
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from tests.contract.operations.test_undo import NEW, content, lay, mail

from vedette.adapters.mail.smtp.config import MailPlan
from vedette.adapters.notify import post
from vedette.adapters.notify.config import WebhookFile
from vedette.app.followers.notifications import (
    GROUP_INTERVAL_US,
    MAX_IDS,
    MAX_PENDING,
    RETRY_LIMIT_US,
    Notice,
    Outbox,
    mail_text,
    notice_facts,
    notice_fields,
    notice_title,
)
from vedette.app.followers.notifier import NOTICES, Notifier
from vedette.app.followers.telemetry import RecordReader
from vedette.config.notify import NotifyPlan
from vedette.config.settings import read_settings
from vedette.domain.action import Proposal
from vedette.domain.base.errors import Permanent, Temporary, Unsendable
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.ledger.history.lists import status
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner

HOUR_US = 3_600_000_000
SEND = Proposal(
    "mail.send",
    {
        "message": Ref("/event/subject"), "to": Ref("/registry/contacts/counsel"),
        "subject": "s", "body": "b",
    },
    "asks for it",
)  # fmt: skip


@dataclass
class Hook:
    """A webhook that is really there. `status` is what it answers."""

    url: str = ""
    status: int = 200
    got: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)

    def texts(self) -> list[str]:
        return [body["text"] for _, body in self.got]


@contextmanager
def listening() -> Iterator[Hook]:
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            hook.got.append((headers, json.loads(body)))
            self.send_response(hook.status)
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    hook.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    try:
        yield hook
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def hook() -> Iterator[Hook]:
    with listening() as found:
        yield found


class Notices:
    """A fleet with one way to tell, and its follower driven by hand."""

    def __init__(self, fleet: FleetHarness, clock: ManualClock, plan: NotifyPlan) -> None:
        self.fleet, self.clock = fleet, clock
        self.troubles: list[str] = []
        fleet.app.settings = replace(fleet.app.settings, notify=plan)
        self.again()

    def again(self) -> None:
        """Begin as the next process does."""
        self.telling = Notifier(self.fleet.app, self.troubles.append)

    async def round(self, times: int = 1) -> None:
        with RecordReader(self.fleet.app) as reader:
            for _ in range(times):
                while await self.telling.run_round(reader):
                    await self.telling.drain()
                await self.telling.drain()

    async def holds(self, *names: str) -> None:
        await self.fleet.send(*(mail(name, "eve\x1b[31m@evil.example") for name in names))
        await self.fleet.wait_until_idle()


def harness(tmp_path: Path, clock: ManualClock) -> FleetHarness:
    reasoner = ScriptedReasoner(
        {"inbox_triage": [ReasonerJudgement(label="legal", proposals=(SEND,))]}
    )
    lay(tmp_path / "mail")
    return FleetHarness(
        tmp_path, content=content(tmp_path), reasoners={"judge": reasoner}, clock=clock,
        targets={"mailbox": {"kind": "maildir", "path": str(tmp_path / "mail")}},
    )  # fmt: skip


LINK = "https://ops.example/holds/{hold}"


async def test_the_first_hold_is_told_at_once_and_the_next_of_its_kind_after_a_minute(
    tmp_path: Path, hook: Hook
) -> None:
    clock = ManualClock()
    async with harness(tmp_path, clock) as fleet:
        notices = Notices(
            fleet,
            clock,
            NotifyPlan(LINK, to=(WebhookFile(kind="webhook", name="ops", url=hook.url),)),
        )
        await notices.holds("m1")
        await notices.round()
        assert hook.texts() == [
            "[harbour] A hold waits for a person: inbox_triage mail.send (impact.high)"
        ]
        (headers, body) = hook.got[0]
        (row,) = fleet.actions(mail("m1"))
        assert body["look"] == LINK.replace("{hold}", row.id.replace("act_", "hold_"))
        assert headers["idempotency-key"] == body["id"]
        await notices.holds("m2", "m3", "m4")
        clock.advance(GROUP_INTERVAL_US - 1)
        await notices.round(2)
        assert len(hook.got) == 1
        clock.advance(1)
        await notices.round()
        assert hook.texts()[1:] == [
            "[harbour] 3 holds wait for a person: inbox_triage mail.send (impact.high)"
        ]
        # Everything was told: nothing comes twice.
        clock.advance(HOUR_US)
        await notices.round(2)
        assert len(hook.got) == 2


async def test_what_was_not_taken_is_told_after_a_restart_under_the_same_id(
    tmp_path: Path, hook: Hook
) -> None:
    clock = ManualClock()
    async with harness(tmp_path, clock) as fleet:
        notices = Notices(
            fleet,
            clock,
            NotifyPlan(LINK, to=(WebhookFile(kind="webhook", name="ops", url=hook.url),)),
        )
        hook.status = 503
        await notices.holds("m1")
        await notices.round(3)
        assert len(hook.got) == 1, "after a failure it waits"
        stood = status(fleet.app.store, clock.now_us())["notices"]
        assert stood == {"pending": 1, "sent": 0, "failed": 1, "dropped": 0, "failing": ["ops"]}
        assert notices.troubles
        assert "503" in notices.troubles[0]
        hook.status = 200
        notices.again()
        clock.advance(HOUR_US)
        await notices.round()
        assert [body["id"] for _, body in hook.got] == [hook.got[0][1]["id"]] * 2
        # Taken, and killed before that was durable: it goes once more, and its id says so.
        kept = fleet.app.store.meta(NOTICES)
        await notices.holds("m2")
        clock.advance(GROUP_INTERVAL_US)
        await notices.round()
        assert len(hook.got) == 3
        notices.telling.outbox = Outbox.from_json(json.loads(str(kept)))
        await notices.round()
        assert hook.got[3][1]["id"] == hook.got[2][1]["id"]


async def test_a_notice_shows_what_it_is_about_and_holds_no_power(
    tmp_path: Path, hook: Hook
) -> None:
    clock = ManualClock()
    async with harness(tmp_path, clock) as fleet:
        notices = Notices(
            fleet,
            clock,
            NotifyPlan(None, to=(WebhookFile(kind="webhook", name="ops", url=hook.url),)),
        )
        await notices.holds(NEW)
        await notices.round()
        ((_, body),) = hook.got
        (about,) = body.pop("about")
        assert about["written"] == "outside"
        assert (about["who"], about["title"], about["text"]) == (
            "eve\\u001b[31m[@]evil[.]example", "hello", "hello",
        )  # fmt: skip
        text = json.dumps(body)
        for stranger in ("evil", "hello", "counsel", NEW):
            assert stranger not in text, "what a chat shows is in our words alone"
        for power in ("digest", "token", "approve"):
            assert power not in text + json.dumps(about)
        assert body["look"].startswith("vedette explain hold_")
        (row,) = fleet.actions(mail(NEW))
        assert row.digest not in text


async def test_a_notice_shows_nothing_that_was_erased_or_is_not_to_leave(
    tmp_path: Path, hook: Hook
) -> None:
    clock = ManualClock()
    async with harness(tmp_path, clock) as fleet:
        ways = (WebhookFile(kind="webhook", name="ops", url=hook.url),)
        quiet = Notices(fleet, clock, NotifyPlan(None, to=ways, content=False))
        await quiet.holds(NEW)
        await quiet.round()
        assert hook.got[0][1]["about"] == []
        notices = Notices(fleet, clock, NotifyPlan(None, to=ways))
        # Not taken at first: the words are not kept with the notice, but looked up as it is sent.
        hook.status = 503
        await notices.holds("m1")
        clock.advance(GROUP_INTERVAL_US)
        await notices.round()
        assert "hello" not in str(fleet.app.store.meta(NOTICES))
        assert notices.telling.outbox.pending
        hook.status = 200
        clock.advance(72 * HOUR_US)
        await fleet.wait_until_idle()
        await fleet.app.commands.erase(fleet.order(), event=mail("m1").key)
        notices.again()
        await notices.round()
        erased = [one for _, body in hook.got[2:] for one in body["about"]]
        assert erased
        assert all(one["erased"] and "title" not in one for one in erased)


async def test_a_notice_shows_nothing_that_not_everybody_may_read(
    tmp_path: Path, hook: Hook
) -> None:
    clock = ManualClock()
    async with harness(tmp_path, clock) as fleet:
        notices = Notices(
            fleet,
            clock,
            NotifyPlan(None, to=(WebhookFile(kind="webhook", name="ops", url=hook.url),)),
        )
        here = frozenset({"@quaylaw.example"})
        for name in ("m1", "m2"):
            await fleet.send(replace(mail(name, "eve@evil.example"), readers=here))
        await notices.holds(NEW)
        await notices.round()
        clock.advance(GROUP_INTERVAL_US)
        await notices.round()
        held = [row for name in ("m1", "m2", NEW) for row in fleet.actions(mail(name))]
        assert [row.decided for row in held] == ["hold"] * 3
        assert {id for _, body in hook.got for id in body["ids"]} >= {
            "hold_" + row.id.removeprefix("act_") for row in held
        }
        shown = [about["id"] for _, body in hook.got for about in body["about"]]
        (row,) = fleet.actions(mail(NEW))
        assert shown == ["hold_" + row.id.removeprefix("act_")]


async def test_a_hold_that_was_answered_first_is_not_told_of(tmp_path: Path, hook: Hook) -> None:
    clock = ManualClock()
    async with harness(tmp_path, clock) as fleet:
        notices = Notices(
            fleet,
            clock,
            NotifyPlan(LINK, to=(WebhookFile(kind="webhook", name="ops", url=hook.url),)),
        )
        await notices.holds("m1")
        (row,) = fleet.actions(mail("m1"))
        await fleet.app.commands.deny(fleet.order(), row.id)
        await notices.round()
        assert not hook.got


async def test_a_hold_about_to_expire_is_told_once(tmp_path: Path, hook: Hook) -> None:
    clock = ManualClock()
    async with harness(tmp_path, clock) as fleet:
        plan = NotifyPlan(
            LINK, 4 * HOUR_US, to=(WebhookFile(kind="webhook", name="ops", url=hook.url),)
        )
        notices = Notices(fleet, clock, plan)
        await notices.holds("m1", "m2")
        await notices.round()
        clock.advance(67 * HOUR_US)
        await notices.round()
        assert len(hook.got) == 1
        clock.advance(HOUR_US + 1)
        await notices.round()
        notices.again()
        clock.advance(HOUR_US)
        await notices.round(2)
        assert [body["kind"] for _, body in hook.got] == ["hold.opened", "hold.expiring"]
        assert hook.got[1][1]["count"] == 2
        assert hook.got[1][1]["expires"]


async def test_a_way_that_hangs_back_keeps_no_other_waiting(tmp_path: Path, hook: Hook) -> None:
    clock = ManualClock()
    async with harness(tmp_path, clock) as fleet:
        ways = (
            WebhookFile(kind="webhook", name="gone", url="http://127.0.0.1:9/hook"),
            WebhookFile(kind="webhook", name="ops", url=hook.url),
        )
        notices = Notices(fleet, clock, NotifyPlan(LINK, to=ways))
        await notices.holds("m1")
        await notices.round()
        assert len(hook.got) == 1
        stood = status(fleet.app.store, clock.now_us())["notices"]
        assert (stood["pending"], stood["failing"]) == (1, ["gone"])
        clock.advance(RETRY_LIMIT_US + HOUR_US)
        await notices.round()
        stood = status(fleet.app.store, clock.now_us())["notices"]
        assert (stood["dropped"], stood["sent"]) == (1, 1)


async def test_a_way_that_hangs_does_not_keep_the_fleet_from_ending(tmp_path: Path) -> None:
    clock, begun, let_go = ManualClock(), threading.Event(), threading.Event()

    def hang(notice: Notice) -> None:
        begun.set()
        let_go.wait(60)

    async with harness(tmp_path, clock) as fleet:
        notices = Notices(
            fleet,
            clock,
            NotifyPlan(to=(WebhookFile(kind="webhook", name="ops", url="http://127.0.0.1:9/"),)),
        )
        notices.telling._senders = {"ops": hang}
        await notices.holds("m1")
        sending = asyncio.create_task(notices.round())
        assert await asyncio.to_thread(begun.wait, 10)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(sending, 5)
        (thread,) = [one for one in threading.enumerate() if one.name == "notice"]
        assert thread.daemon, "the interpreter would wait for it"
        let_go.set()
        thread.join(5)
        # It is told by the next one: whether it went is not known.
        kept = status(fleet.app.store, clock.now_us())["notices"]
        assert (kept["pending"], kept["sent"]) == (1, 0)


# --- mail ------------------------------------------------------------------------------------


@contextmanager
def mail_server(
    hello: Sequence[str] = ("250 ok",),
    noes: Mapping[str, str] | None = None,
    whom: list[list[str]] | None = None,
) -> Iterator[tuple[int, list[str]]]:
    """A mail server of RFC 5321's few needed commands; yields its port and the mails it took.

    `noes` are answered to recipients, by address; `whom` is told for whom each mail was.
    """
    taken: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say("220 here")
            people: list[str] = []
            while line := self.rfile.readline().decode().strip():
                verb = line.split()[0].upper()
                if verb == "DATA":
                    self.say("354 go on")
                    lines = iter(self.rfile.readline, b".\r\n")
                    taken.append(b"".join(lines).decode())
                    if whom is not None:
                        whom.append(people)
                if verb == "RCPT":
                    address = line.partition("<")[2].partition(">")[0]
                    if no := (noes or {}).get(address):
                        self.say(no)
                        continue
                    people.append(address)
                for line_back in hello if verb == "EHLO" else ("250 ok",):
                    self.say("221 bye" if verb == "QUIT" else line_back)
                if verb == "QUIT":
                    return

        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1], taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_people_are_told_by_mail(tmp_path: Path) -> None:
    clock = ManualClock()
    with mail_server() as (port, taken):
        async with harness(tmp_path, clock) as fleet:
            server = {"kind": "smtp", "host": "127.0.0.1", "port": port, "tls": "none"}
            way = MailPlan("mail", server, "fleet@harbour.example", ("ops@harbour.example",))
            notices = Notices(fleet, clock, NotifyPlan(LINK, to=(way,)))
            await notices.holds("m1")
            await notices.round()
            assert not notices.troubles
            (row,) = fleet.actions(mail("m1"))
    (raw,) = taken
    message = message_from_string(raw, policy=default)
    assert str(message["Subject"]).startswith("[harbour] A hold waits for a person: inbox_triage")
    assert message["Auto-Submitted"] == "auto-generated"
    assert LINK.replace("{hold}", row.id.replace("act_", "hold_")) in message.get_content()
    assert "evil.example" not in raw
    text = message.get_content()
    shown = ["  │ from: eve\\u001b[31m[@]evil[.]example", "  │ about: hello"]
    assert shown == [line for line in text.splitlines() if "from:" in line or "about:" in line]


# --- the webhook, the outbox, the settings --------------------------------------------------------


def test_a_token_goes_to_this_machine_or_over_tls_alone(hook: Hook) -> None:
    post(hook.url, b"{}", "k", "secret")
    assert hook.got[0][0]["authorization"] == "Bearer secret"
    with pytest.raises(Permanent, match="plain HTTP"):
        post("http://hooks.example/x", b"{}", "k", "secret")
    for answered, error in (
        (302, Permanent), (404, Permanent), (413, Unsendable), (429, Temporary), (500, Temporary),
    ):  # fmt: skip
        hook.status = answered
        with pytest.raises(error, match=str(answered)):
            post(hook.url, b"{}", "k", None)
    hook.status = 409
    post(hook.url, b"{}", "k", None)


def entry(kind: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "agent": "a", **fields}


@pytest.mark.parametrize(
    ("expected", "kind"),
    [
        (entry("action.decided", outcome="hold", wait="approval", action="act_1"), "hold.opened"),
        (entry("action.decided", outcome="hold", wait="time", action="act_1"), None),
        (entry("action.decided", outcome="permit", action="act_1"), None),
        (entry("run.dead", run="run_1"), "run.dead"),
        (entry("budget.alerted", scope="agent", unit="actions", window="day"), "budget.alerted"),
        (entry("stop.set", what="agent:a", actor="engine:vedette"), "agent.parked"),
        (entry("stop.set", what="agent:a", actor="person:kim"), None),
        (entry("notice.raised", rule="permit.approved", action="act_1"), "notice.raised"),
        (entry("task.drift", rule="drift.goal", action="act_1"), "task.drift"),
        (entry("effect.unknown", action="act_1"), "effect.unknown"),
        (entry("run.closed"), None),
    ],
)
def test_what_is_told_of_and_what_is_not(expected: dict[str, Any], kind: str | None) -> None:
    found = notice_fields(expected)
    assert (found[0] if found else None) == kind
    if kind is not None:
        outbox = Outbox(0)
        outbox.add_entry(1, expected, ["ops"], 5)
        (notice,) = outbox.due_notices("ops", 5)
        text = notice_facts(notice, "f", None)["text"]
        assert re.match(r"\[f\] (A [^aeiou]|An [aeiou])", text), text
        assert "decides nothing" in mail_text(notice, "f", LINK)


def test_the_outbox_is_bounded_and_says_what_it_dropped() -> None:
    outbox = Outbox(0)
    for number in range(MAX_PENDING + 7):
        outbox.add_entry(number, entry("run.dead", agent=f"a{number}", run="run_1"), ["ops"], 5)
    assert (len(outbox.pending), outbox.dropped) == (MAX_PENDING, 7)
    many = Outbox(0)
    for number in range(5000):
        many.add_entry(number, entry("run.dead", run=f"run_{number}"), ["ops"], 5)
    (notice,) = many.pending
    assert (notice.count, len(notice.ids), many.dropped) == (5000, MAX_IDS, 0)
    assert notice_facts(notice, "f", None)["ids"] == [f"run_{number}" for number in range(5)]
    assert "and 4995 more" in mail_text(notice, "f", None)
    assert Outbox.from_json(json.loads(json.dumps(many.to_json()))) == many


def test_what_has_no_id_names_none() -> None:
    for stored in (
        entry("stop.set", what="agent:a", actor="engine:vedette"),
        entry("budget.alerted", scope="agent", unit="actions", window="day"),
    ):
        outbox = Outbox(0)
        outbox.add_entry(1, stored, ["ops"], 5)
        assert notice_facts(outbox.pending[0], "f", None)["ids"] == []


def expiring(outbox: Outbox, *hours: int) -> None:
    rows: list[Any] = [
        SimpleNamespace(
            waits="approval", agent="a", tool="t", rule="r", id=f"act_{number}", last=number,
            until_us=hour * HOUR_US,
        )
        for number, hour in enumerate(hours)
    ]  # fmt: skip
    outbox.add_expiring(rows, ["ops"], 100 * HOUR_US)


def test_a_hold_that_was_answered_takes_its_deadline_along() -> None:
    outbox = Outbox(0)
    expiring(outbox, 1, 3, 2)
    deadlines = []
    for number in range(2):
        outbox = Outbox.from_json(json.loads(json.dumps(outbox.to_json())))
        deadlines.append(notice_facts(outbox.pending[0], "f", None)["expires"])
        outbox.add_entry(9 + number, entry("hold.approved", action=f"act_{2 * number}"), ["ops"], 5)
    deadlines.append(notice_facts(outbox.pending[0], "f", None)["expires"])
    assert deadlines == [f"1970-01-01T0{hour}:00:00Z" for hour in (1, 2, 3)]
    assert "denied at 1970-01-01T03:00:00Z" in mail_text(outbox.pending[0], "f", None)
    # Of those that are not kept nobody knows when: the earliest of all is said.
    many = Outbox(0)
    expiring(many, 2, *[9] * MAX_IDS, 1)
    many.add_entry(9, entry("hold.approved", action="act_0"), ["ops"], 5)
    assert notice_facts(many.pending[0], "f", None)["expires"] == "1970-01-01T01:00:00Z"


def test_names_are_made_plain_whatever_they_are() -> None:
    outbox = Outbox(0)
    outbox.add_entry(
        1, entry("run.dead", agent="a\x1b]8;;http://evil\x07" * 50, run="r"), ["ops"], 5
    )
    facts = notice_facts(outbox.pending[0], "f", None)["text"]
    assert facts.isprintable()
    assert len(facts) < 300
    assert isinstance(outbox.pending[0], Notice)


TOML = """\
fleet = "harbour"
[targets.relay]
kind = "smtp"
host = "127.0.0.1"
tls = "none"
[notify]
link = "https://ops.example/{hold}"
before = "2h"
[[notify.to]]
kind = "webhook"
url = "https://chat.example/hook"
token_env = "CHAT_TOKEN"
[[notify.to]]
kind = "mail"
target = "relay"
sender = "fleet@harbour.example"
to = ["ops@harbour.example"]
"""


def problems(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "vedette.toml").write_text(text)
    return [str(problem) for problem in read_settings(tmp_path / "vedette.toml")[1]]


def test_the_settings_of_notices(tmp_path: Path) -> None:
    (tmp_path / "vedette.toml").write_text(TOML)
    settings, wrong = read_settings(tmp_path / "vedette.toml")
    assert not wrong
    assert settings is not None
    notify = settings.notify
    assert (notify.link, notify.before_us) == ("https://ops.example/{hold}", 2 * HOUR_US)
    assert [way.name for way in notify.to] == ["webhook", "mail"]
    assert isinstance(notify.to[1], MailPlan)
    assert notify.to[1].server["host"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("/{hold}", "/", "vedette.toml:7"),
        ('"2h"', '"soon"', "vedette.toml:8"),
        ("https://chat.example/hook", "ftp://chat.example", "vedette.toml:11"),
        ("https://chat.example/hook", "https://a:b@chat.example", "vedette.toml:11"),
        ("https://chat.example/hook", "https://chat.example/hök", "cannot be posted to"),
        ("https://chat.example/hook", f"https://{'a' * 64}.example/", "cannot be posted to"),
        ("https://chat.example/hook", "http://chat.example/hook", "vedette.toml:11"),
        ("https://chat.example/hook", "http://127.chat.example/hook", "over plain HTTP"),
        ('target = "relay"', 'target = "board"', "is no target of kind smtp"),
        ('["ops@harbour.example"]', "[]", "nobody is told"),
        ('["ops@harbour.example"]', '["ops, x@y.example"]', "is no address"),
        ('kind = "mail"', 'kind = "mail"\nname = "webhook"', "the name of another one"),
    ],
)
def test_what_is_wrong_with_them_is_told_by_line(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    (found,) = problems(tmp_path, TOML.replace(old, new))
    assert expected in found


def test_the_end_of_a_canary_is_told() -> None:
    about = {"seq": 1, "agent": "worker", "release": "b" * 64, "what": "a" * 64, "at": 1}
    box = Outbox(0)
    box.add_entry(7, {**about, "kind": "canary.aborted", "rule": "errors"}, ["mail"], 1)
    box.add_entry(8, {**about, "kind": "canary.ended", "outcome": "ask"}, ["mail"], 1)
    titles = [notice_title(notice, "harbour") for notice in box.pending]
    assert titles == [
        "[harbour] A canary was aborted: its release is worse: worker (errors)",
        "[harbour] A canary is over: worker (ask)",
    ]
