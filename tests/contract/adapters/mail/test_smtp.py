"""SMTP against a real server: delivered whole or said why not, and a sending is found out about."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from email import message_from_string
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
from tests import imap, smtp
from tests.contract.adapters.mail.test_mail_targets import ImapBox, MaildirBox, MailTool, tools

from vedette.adapters.mail.imap.pool import close_all
from vedette.adapters.mail.imap.session import NoFolder
from vedette.adapters.mail.imap.target import IMAP
from vedette.adapters.mail.smtp import Unanswered, probe, send_mail, send_mail_to_some
from vedette.config.targets import resolve_targets
from vedette.domain.base import failpoint
from vedette.domain.base.errors import Permanent, Temporary, Unsendable
from vedette.domain.effect import Call, Outcome

MAIL = b"Subject: x\n\n.a line that begins with a dot\r.\nend"


class Killed(BaseException):
    """The process would be dead now."""


def to(name: str, request: pytest.FixtureRequest) -> str:
    """Return an address that no other test writes to; its name says how it is answered."""
    return f"{name}@d{abs(hash(request.node.nodeid))}.example"


# --- deliver ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", ["none", "starttls", "implicit"])
def test_a_mail_is_delivered_as_it_is(tls: str, request: pytest.FixtureRequest) -> None:
    both = [to("ann", request), to("bob", request)]
    send_mail(smtp.server().table(tls), MAIL, "desk@lights.example", both)
    (mail,) = smtp.server().mails(both[0])
    assert (mail["from"], mail["to"], mail["user"]) == ("desk@lights.example", both, "known")
    expected = "Subject: x\r\n\r\n.a line that begins with a dot\r\n.\r\nend\r\n"
    assert mail["content"] == expected


@pytest.mark.parametrize(
    ("name", "error"),
    [("refused", Permanent), ("later", Temporary), ("rejected", Permanent), ("lost", Unanswered)],
)
def test_a_no_is_told_from_a_not_now_and_from_nobody_knows(
    name: str, error: type[Exception], request: pytest.FixtureRequest
) -> None:
    address = to(name, request)
    with pytest.raises(error) as caught:
        send_mail(smtp.server().table(), MAIL, "desk@lights.example", [address])
    assert isinstance(caught.value, Unanswered) is (error is Unanswered)
    assert len(smtp.server().mails(address)) == (1 if name == "lost" else 0)


@pytest.mark.parametrize(
    ("answer", "error"),
    [("250 2.0.0 taken", None), ("251 will forward", None), ("252 taken unseen", None),
     ("354 go on", Unanswered), ("150 wait", Unanswered), ("hm", Unanswered),
     ("452 4.3.1 full", Temporary), ("554 5.7.1 no", Permanent)],
)  # fmt: skip
def test_the_answer_to_the_mail_itself_counts_by_its_first_digit(
    answer: str, error: type[Exception] | None
) -> None:
    """Else a mail that was taken with other words than usual is handed over again."""
    with saying(answer) as port:
        table = {"host": "127.0.0.1", "port": port, "tls": "none"}
        if error is None:
            send_mail(table, MAIL, "desk@lights.example", ["ann@here.example"])
            return
        with pytest.raises(error) as caught:
            send_mail(table, MAIL, "desk@lights.example", ["ann@here.example"])
        assert isinstance(caught.value, Unanswered) is (error is Unanswered)


@contextmanager
def saying(answer: str) -> Iterator[int]:
    """Serve one SMTP dialogue, in which the mail itself is answered so; give the port."""

    def serve() -> None:
        line, _ = listening.accept()
        with line, line.makefile("rb") as file:
            line.sendall(b"220 here\r\n")
            for command in file:
                word = command[:4].upper().strip()
                if word == b"DATA":
                    line.sendall(b"354 go\r\n")
                    while file.readline() != b".\r\n":
                        pass
                    line.sendall(f"{answer}\r\n".encode())
                else:
                    line.sendall(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


def test_one_recipient_refused_is_none_written_to(request: pytest.FixtureRequest) -> None:
    fine, refused = to("fine", request), to("refused", request)
    with pytest.raises(Permanent, match="nobody of that name"):
        send_mail(smtp.server().table(), MAIL, "desk@lights.example", [fine, refused])
    assert smtp.server().mails(fine) == []


def test_those_who_take_it_are_written_to_and_the_others_returned(
    request: pytest.FixtureRequest,
) -> None:
    fine, refused, later = (to(name, request) for name in ("fine", "refused", "later"))
    table, sender = smtp.server().table(), "desk@lights.example"
    missed = send_mail_to_some(table, MAIL, sender, [refused, fine, later])
    assert {address: type(error) for address, error in missed.items()} == {
        refused: Permanent, later: Temporary
    }  # fmt: skip
    assert [mail["to"] for mail in smtp.server().mails(fine)] == [[fine]]
    assert send_mail_to_some(table, MAIL, sender, [fine]) == {}
    # Nobody takes it: then no mail is begun.
    assert send_mail_to_some(table, MAIL, sender, [refused, later]).keys() == {refused, later}
    rejected = to("rejected", request)
    with pytest.raises(Permanent, match="not this"):
        send_mail_to_some(table, MAIL, sender, [rejected, refused])


@pytest.mark.parametrize(
    "address", ["", "a", "a@b\r\nRCPT TO:<x@y.example>", "<a@b.example>", "a b@c.example", "@"]
)
def test_an_address_is_one_plain_address(address: str) -> None:
    for sender, recipient in ((address, "ok@b.example"), ("ok@b.example", address)):
        with pytest.raises(Permanent, match="not one plain address"):
            send_mail(smtp.server().table(), MAIL, sender, [recipient])


@pytest.mark.parametrize(
    ("more", "error", "match"),
    [
        ({"password": "guess me"}, Temporary, "login of relay refused"),
        ({"port": 1}, Temporary, "refused"),
        ({"host": "mail.example"}, Permanent, "only loopback"),
        ({"tls": "starttls"}, Permanent, "no STARTTLS"),
        ({"password": None}, Permanent, "no password"),
        ({"tls": "later"}, Permanent, "needs host"),
    ],
)
async def test_what_is_wrong_with_a_server_is_said(
    more: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match) as caught:
        await probe({**smtp.server().table(), **more})
    assert "guess me" not in str(caught.value)


async def test_the_certificate_counts() -> None:
    table = smtp.server().table("implicit")
    assert "TLSv1" in await probe(table)
    with pytest.raises(Permanent, match="certificate is not trusted"):
        await probe({**table, "ca_file": None})


async def test_a_password_by_reference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = {**smtp.server().table(), "password": None}
    monkeypatch.setenv("RELAY_PASSWORD", smtp.SmtpServer.password)
    assert "logged in as relay" in await probe({**table, "password_env": "RELAY_PASSWORD"})


def test_a_mail_too_large_for_the_server_is_not_sent() -> None:
    with pytest.raises(Unsendable, match="the server takes"):
        send_mail(smtp.server().table(), b"x" * 1_100_000, "a@b.example", ["c@d.example"])


# --- mail.send -------------------------------------------------------------------------------


@pytest.fixture(params=["maildir", "imap"])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MaildirBox | ImapBox]:
    found = MaildirBox(tmp_path / "mailbox") if request.param == "maildir" else ImapBox()
    relay = smtp.server().table()
    targets = {"mailbox": {**found.target, "smtp": "relay"}, "relay": relay}
    # The password comes with the call, as the engine gives it; the rest from the settings.
    found.target = {**resolve_targets(targets)["mailbox"], "smtp_password": relay["password"]}
    yield found
    failpoint.hook = None
    close_all()


def query_sent(tool: MailTool, message: str, **args: Any) -> Outcome | None:
    """Ask what came of the call before."""
    return tool("sent_mail", message, again=True, **args)


def letter(address: str) -> dict[str, Any]:
    return {"to": address, "subject": "Re: Café", "body": "Grüße"}


def kept(box: MaildirBox | ImapBox) -> list[str]:
    return sorted(folder for folder, _, _ in box.state())


def test_a_mail_is_sent_once(box: MaildirBox | ImapBox, request: pytest.FixtureRequest) -> None:
    address, tool, message = to("ann", request), MailTool(box.target), box.lay(1)
    first = tool("send_mail", message, **letter(address))
    assert first.state == "done"
    for _ in range(2):
        assert tool("send_mail", message, again=True, **letter(address)).state == "done"
    (mail,) = smtp.server().mails(address)
    sent = message_from_string(mail["content"])
    assert (sent["To"], sent["Message-ID"]) == (address, f"<{key_of(tool)}@lights.example>")
    assert parsedate_to_datetime(sent["Date"]).utcoffset() == timedelta(0)
    assert kept(box) == ["INBOX", "Sent"]
    said = query_sent(tool, message, **letter(address))
    assert said is not None
    assert said.state == "done"


def test_what_is_passed_on_is_there_whole(
    box: MaildirBox | ImapBox, request: pytest.FixtureRequest
) -> None:
    address, tool, message = to("ann", request), MailTool(box.target), box.lay(1)
    assert tool("forward_mail", message, to=address, note="as asked").state == "done"
    (mail,) = smtp.server().mails(address)
    parts: Any = message_from_string(mail["content"]).get_payload()
    note, passed = parts
    assert "as asked" in note.get_payload(decode=True).decode()
    (inside,) = passed.get_payload()
    assert inside["Message-ID"] == "<1@stranger.example>"
    assert inside.get_payload().strip() == "Hello 1"


def key_of(tool: MailTool) -> str:
    from tests.contract.adapters.mail.test_mail_targets import KEY

    return f"{KEY}{tool.number}"


def test_killed_at_each_point_it_is_sent_once_or_a_person_is_asked(
    box: MaildirBox | ImapBox, request: pytest.FixtureRequest
) -> None:
    """After each crash the engine asks first, and calls again only where nothing was sent."""
    tool, message, ends = MailTool(box.target), box.lay(1), []
    for number in range(1, 40):
        address = to(f"n{number}", request)
        points: list[str] = []

        def hook(point: str, number: int = number, points: list[str] = points) -> None:
            points.append(point)
            if len(points) == number:
                raise Killed(point)

        failpoint.hook = hook
        try:
            tool("send_mail", message, **letter(address))
            break
        except Killed:
            failpoint.hook = None
        said = query_sent(tool, message, **letter(address))
        if said is None:
            outcome = tool("send_mail", message, again=True, **letter(address))
            assert outcome.state == "done"
            said = query_sent(tool, message, **letter(address))
        sent = len(smtp.server().mails(address))
        assert said is not None
        if said.state == "done":
            assert sent == 1
        else:
            # Nobody knows: it is not sent again, whether or not it was.
            assert (said.state, sent <= 1) == ("unknown", True)
            repeat = tool("send_mail", message, again=True, **letter(address))
            assert repeat.state == "unknown"
            assert len(smtp.server().mails(address)) == sent
        ends.append((said.state, sent))
    assert ("unknown", 0) in ends  # killed before the mail was handed over
    assert ("unknown", 1) in ends  # killed before it was among the sent
    if isinstance(box, ImapBox):
        assert ("done", 1) in ends


def test_what_nobody_knows_a_person_settles_in_the_mailbox(
    box: MaildirBox | ImapBox, request: pytest.FixtureRequest
) -> None:
    address, tool, message = to("lost", request), MailTool(box.target), box.lay(1)
    outcome = tool("send_mail", message, **letter(address))
    assert (outcome.state, kept(box)) == ("unknown", ["INBOX", "Sending"])
    assert "find out" in outcome.error
    said = query_sent(tool, message, **letter(address))
    assert said is not None
    assert said.state == "unknown"
    # It has arrived: the person moves it.
    move_sending(box)
    said = query_sent(tool, message, **letter(address))
    assert said is not None
    assert said.state == "done"
    assert len(smtp.server().mails(address)) == 1


def move_sending(box: MaildirBox | ImapBox) -> None:
    if isinstance(box, MaildirBox):
        (path,) = (box.root / ".Sending" / "cur").iterdir()
        path.rename(box.root / ".Sent" / "cur" / path.name)
    else:
        with box.box.client("Sending") as client:
            client.uid("MOVE", "1:*", "Sent")


@pytest.mark.parametrize(
    ("folder", "flags", "state"),
    [(".Trash", "ST", None), (".Trash", "S", None), (".Deleted Messages", "S", None),
     (".Sending", "ST", None), (".Sent", "S", "done"), (".Sent", "ST", "done"),
     (".Archive", "S", "unknown"), ("", "S", "unknown")],
)  # fmt: skip
def test_only_a_mail_among_the_sent_was_sent(
    tmp_path: Path, folder: str, flags: str, state: str | None, request: pytest.FixtureRequest
) -> None:
    """A mail program moves what is deleted to its trash, or flags it where it lies."""
    box, address = MaildirBox(tmp_path / "mailbox"), to("lost", request)
    relay = smtp.server().table()
    targets = {"mailbox": {**box.target, "smtp": "relay"}, "relay": relay}
    relayed = {**resolve_targets(targets)["mailbox"], "smtp_password": relay["password"]}
    tool, message = MailTool(relayed), box.lay(1)
    assert tool("send_mail", message, **letter(address)).state == "unknown"
    (path,) = (box.root / ".Sending" / "cur").iterdir()
    there = box.root / folder / "cur"
    there.mkdir(parents=True, exist_ok=True)
    path.rename(there / path.name.replace(":2,S", f":2,{flags}"))
    said = query_sent(tool, message, **letter(address))
    assert (said.state if said else None) == state
    sent = len(smtp.server().mails(address))
    assert sent == 1
    # Sent again where the person removed it, and there alone.
    repeat = tool("send_mail", message, again=True, **letter(address))
    assert repeat.state == (state or "unknown")
    assert len(smtp.server().mails(address)) == sent + (state is None)
    if state is None:
        (path,) = (box.root / ".Sending" / "cur").iterdir()
        assert path.name.endswith(":2,S")
        said = query_sent(tool, message, **letter(address))
        assert said is not None
        assert said.state == "unknown"
        path.rename(box.root / ".Sent" / "cur" / path.name)
        said = query_sent(tool, message, **letter(address))
        assert said is not None
        assert said.state == "done"


def test_what_is_sent_again_is_put_among_the_sent_and_not_what_was_removed(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, address = MaildirBox(tmp_path / "mailbox"), to("ann", request)
    relay = smtp.server().table()
    targets = {"mailbox": {**box.target, "smtp": "relay"}, "relay": relay}
    relayed = {**resolve_targets(targets)["mailbox"], "smtp_password": relay["password"]}
    tool, message = MailTool(relayed), box.lay(1)
    sending = sys.modules[f"{tools().__package__}.sending"]

    def lose(*args: Any) -> None:
        raise Unanswered("lost")

    with monkeypatch.context() as patch:
        patch.setattr(sending, "send_mail", lose)
        assert tool("send_mail", message, **letter(address)).state == "unknown"
    (path,) = (box.root / ".Sending" / "cur").iterdir()
    # Listed before `.Sending` and before `.Sent`.
    trash = box.root / ".Deleted Items" / "cur"
    trash.mkdir(parents=True)
    path.rename(trash / path.name)
    assert query_sent(tool, message, **letter(address)) is None
    assert tool("send_mail", message, again=True, **letter(address)).state == "done"
    assert kept(box) == ["Deleted Items", "INBOX", "Sent"]
    said = query_sent(tool, message, **letter(address))
    assert said is not None
    assert said.state == "done"
    assert len(smtp.server().mails(address)) == 1


@pytest.mark.parametrize("missing", ["Sending", "Sent"])
async def test_without_a_folder_for_it_a_mail_is_not_sent(
    missing: str, request: pytest.FixtureRequest
) -> None:
    """What is found out after it has left would be told as a failure, and be sent again."""
    box, address = ImapBox(), to("ann", request)
    box.box.create({"Sending": "Sent", "Sent": "Sending"}[missing])
    relay = smtp.server().table()
    target = {**box.target, "smtp": "relay", "create_folders": False}
    relayed = resolve_targets({"mailbox": target, "relay": relay})["mailbox"]
    target = {**relayed, "smtp_password": relay["password"]}
    tool, message = MailTool(target), box.lay(1)
    outcome = tool("send_mail", message, **letter(address))
    assert (outcome.state, "create_folders" in outcome.error) == ("failed", True)
    assert (smtp.server().mails(address), kept(box)) == ([], ["INBOX"])
    with pytest.raises(NoFolder, match=f"no folder '{missing}'"):
        await IMAP.probe(target)
    assert f"{missing} (will be made)" in await IMAP.probe({**target, "create_folders": True})
    box.box.create(missing)
    assert "Sending, Sent" in await IMAP.probe(target)
    assert tool("send_mail", message, **letter(address)).state == "done"
    assert len(smtp.server().mails(address)) == 1
    close_all()


def test_whatever_goes_wrong_behind_it_a_mail_that_has_left_was_sent(
    box: MaildirBox | ImapBox, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder goes while the mail is handed over: nobody is told that it failed."""
    address, tool, message = to("ann", request), MailTool(box.target), box.lay(1)
    sending = sys.modules[f"{tools().__package__}.sending"]
    refused = sys.modules[f"{tools().__package__}.maildir"].Refused

    def handed(*args: Any) -> None:
        send_mail(*args)
        monkeypatch.setattr(
            out, "finish", lambda self: (_ for _ in ()).throw(refused("no folder 'Sent'"))
        )

    out = sys.modules[
        f"{tools().__package__}.{'tools' if isinstance(box, MaildirBox) else 'imap'}"
    ]._Out
    monkeypatch.setattr(sending, "send_mail", handed)
    outcome = tool("send_mail", message, **letter(address))
    assert (outcome.state, "no folder 'Sent'" in outcome.data["note"]) == ("done", True)
    assert len(smtp.server().mails(address)) == 1


@pytest.mark.parametrize(("name", "state"), [("refused", "failed"), ("later", "retry")])
def test_what_was_not_sent_does_not_look_as_if_it_were(
    box: MaildirBox | ImapBox, name: str, state: str, request: pytest.FixtureRequest
) -> None:
    address, tool, message = to(name, request), MailTool(box.target), box.lay(1)
    outcome = tool("send_mail", message, **letter(address))
    assert (outcome.state, kept(box)) == (state, ["INBOX"])
    assert query_sent(tool, message, **letter(address)) is None


def test_a_mailbox_that_does_not_answer_is_no_proof_that_nothing_was_sent(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for target in (
        {"kind": "imap", "host": "127.0.0.1", "port": 1, "tls": "none", "user": "u"},
        {"kind": "maildir", "path": str(tmp_path / "not mounted"), "smtp_host": "127.0.0.1"},
    ):
        tool = MailTool({**target, "password": "p", "address": "desk@lights.example"})
        said = tool("sent_mail", "1;2;3;" + "a" * 24 + ";INBOX", **letter("a@b.example"))
        assert said.state == "unknown"


def test_a_folder_that_the_server_lists_and_does_not_open_proves_nothing(
    request: pytest.FixtureRequest,
) -> None:
    box, address = ImapBox(), to("ann", request)
    relay = smtp.server().table()
    target = resolve_targets({"box": {**box.target, "smtp": "relay"}, "relay": relay})["box"]
    tool, message = MailTool({**target, "smtp_password": relay["password"]}), box.lay(1)
    assert query_sent(tool, message, **letter(address)) is None, "the control: there are none yet"
    assert tool("send_mail", message, **letter(address)).state == "done"
    folder = imap.server().mails_at(box.box.user) / ".Sent"
    folder.chmod(0)
    close_all()
    try:
        said = query_sent(tool, message, **letter(address))
        assert said is not None
        assert (said.state, "though the server lists it" in said.error) == ("unknown", True)
        repeat = tool("send_mail", message, again=True, **letter(address))
        assert repeat.state == "retry"
    finally:
        folder.chmod(0o700)
        close_all()
    assert len(smtp.server().mails(address)) == 1


def test_without_a_relay_an_imap_mailbox_sends_nothing() -> None:
    box = ImapBox()
    outcome = MailTool(box.target)("send_mail", box.lay(1), **letter("a@b.example"))
    assert (outcome.state, "names no relay" in outcome.error) == ("failed", True)
    close_all()


def test_a_maildir_without_a_relay_keeps_its_outgoing_mails(tmp_path: Path) -> None:
    box = MaildirBox(tmp_path / "mailbox")
    tool, message = MailTool(box.target), box.lay(1)
    call = Call("mail.send", {"message": message, **letter("a@b.example")}, "none", "a", "run_1",
                box.target, (), 1, 1_000_000)  # fmt: skip
    assert tools().sent_mail(call) is None
    assert tool("send_mail", message, **letter("a@b.example")).state == "done"
    assert kept(box) == ["INBOX", "Outbox"]
    said = query_sent(tool, message, **letter("a@b.example"))
    assert said is not None
    assert said.state == "done"
