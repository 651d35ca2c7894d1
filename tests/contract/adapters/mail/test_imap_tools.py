"""The mail tools on a real IMAP server that dies, renumbers, lies and lacks extensions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.contract.adapters.mail.test_mail_targets import ImapBox, MailTool, raw

from vedette.adapters.mail.imap.address import read_mail_address
from vedette.adapters.mail.imap.folder_name import decode_name, quote_name
from vedette.adapters.mail.imap.pool import close_all, mail_session
from vedette.adapters.mail.imap.session import MailSession
from vedette.domain.base import failpoint
from vedette.domain.base.errors import Permanent, Temporary


class Killed(BaseException):
    """The process would be dead now."""


@pytest.fixture
def box() -> Iterator[ImapBox]:
    yield ImapBox()
    failpoint.hook = None
    close_all()


def points_of(act: Callable[[], object]) -> list[str]:
    """Return the points around what is written that `act` passes."""
    found: list[str] = []
    failpoint.hook = found.append
    act()
    failpoint.hook = None
    return found


def die_at(number: int) -> None:
    left = [number]

    def hook(point: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed(point)

    failpoint.hook = hook


TRIED: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("file_mail", "unfile_mail", {"folder": "Invoices"}, {"folder": "Invoices"}),
    ("flag_mail", "unflag_mail", {"flag": "important"}, {"flag": "important"}),
]


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize(("do", "undo", "args", "back"), TRIED)
def test_killed_at_each_point_it_ends_as_undisturbed_and_is_taken_back_exactly(
    do: str,
    undo: str,
    args: dict[str, Any],
    back: dict[str, Any],
    moves: bool,
    box: ImapBox,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every crash point, of the effect and of its undoing, on a server with and without MOVE."""
    if not moves:
        able = MailSession.can
        monkeypatch.setattr(
            MailSession, "can", lambda self, what: what != "MOVE" and able(self, what)
        )
    box.box.create("Invoices")
    tool = MailTool(box.target)
    message = box.lay(1, flags="seen")
    before = box.state()
    seen: list[Any] = []
    passed = points_of(lambda: seen.append(tool(do, message, **args)))
    after, undisturbed = box.state(), seen[0]
    was = undisturbed.data["was"]
    passed_back = points_of(lambda: tool(undo, message, was=was, **back))
    assert len(passed) >= 2
    assert len(passed_back) >= 2
    assert (after != before, box.state() == before) == (True, True)
    for number in range(1, max(len(passed), len(passed_back)) + 1):
        die_at(number)
        if number <= len(passed):
            with pytest.raises(Killed):
                tool(do, message, **args)
            failpoint.hook = None
            assert tool(do, message, again=True, **args) == undisturbed
        else:
            failpoint.hook = None
            tool(do, message, **args)
        assert box.state() == after
        if number <= len(passed_back):
            die_at(number)
            with pytest.raises(Killed):
                tool(undo, message, was=was, **back)
            failpoint.hook = None
            assert tool(undo, message, again=True, was=was, **back).state == "done"
        else:
            tool(undo, message, was=was, **back)
        assert box.state() == before


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("filed", ["before", "after"])
def test_a_person_s_own_copy_stays_where_it_is_and_what_it_is(
    filed: str, moves: bool, box: ImapBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep one in each folder: ours is filed and taken back, theirs is never touched.

    After each step it is done again, as after a crash behind it.
    """
    if not moves:
        able = MailSession.can
        monkeypatch.setattr(
            MailSession, "can", lambda self, what: what != "MOVE" and able(self, what)
        )
    tool, message = MailTool(box.target), box.lay(1)
    if filed == "before":
        box.box.fill([raw(1)], "Invoices", flags="Theirs")
    else:
        box.box.create("Invoices")
    before = box.state()
    outcome = tool("file_mail", message, folder="Invoices")
    assert (outcome.state, outcome.data["was"]["folder"]) == ("done", "INBOX")
    after = box.state()
    assert {(f, flags) for f, _, flags in after} == (
        {("Invoices", "$VedetteFiled")} | ({("Invoices", "Theirs")} if filed == "before" else set())
    )
    assert tool("file_mail", message, again=True, folder="Invoices") == outcome
    assert box.state() == after
    if filed == "after":
        box.box.fill([raw(1)], "Invoices", flags="Theirs")
        before |= {("Invoices", "<1@stranger.example>", "Theirs")}
    for repeat in (False, True):
        back = tool(
            "unfile_mail", message, again=repeat, folder="Invoices", was=outcome.data["was"]
        )  # fmt: skip
        assert back.state == "done"
        assert box.state() == before


def test_a_mail_is_found_after_the_server_has_numbered_it_anew(box: ImapBox) -> None:
    message = box.lay(1)
    box.lay(2)
    box.box.renumber()
    outcome = MailTool(box.target)("file_mail", message, folder="Legal")
    assert outcome.state == "done"
    assert {(f, n) for f, n, _ in box.state()} == {
        ("INBOX", "<2@stranger.example>"), ("Legal", "<1@stranger.example>"),
    }  # fmt: skip


def test_another_mail_with_its_message_id_and_size_is_not_taken_for_it(box: ImapBox) -> None:
    """What a stranger may choose does not decide which mail is acted on."""
    message = box.lay(1)
    box.person_removes(message)
    twin = raw(1).replace(b"by b id 1", b"by b id 2")
    assert len(twin) == len(raw(1))
    box.box.fill([twin])
    outcome = MailTool(box.target)("flag_mail", message, flag="important")
    assert outcome.state == "failed"
    assert {flags for _, _, flags in box.state()} == {""}


def test_a_folder_that_is_missing_is_made_only_where_the_target_says_so(box: ImapBox) -> None:
    message = box.lay(1)
    before = box.state()
    strict = MailTool({**box.target, "create_folders": False})
    for _ in range(2):
        outcome = strict("file_mail", message, folder="Invoices")
        assert outcome.state == "failed"
        assert "create_folders" in outcome.error
        assert box.state() == before
    assert MailTool(box.target)("file_mail", message, folder="Invoices").state == "done"


def test_what_follows_a_move_looks_there_first_and_elsewhere_if_it_moved_on(
    box: ImapBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        box.box.create(f"Folder{number}")
    message, tool = box.lay(1), MailTool(box.target)
    tool("file_mail", message, folder="Zoo")
    opened: list[str] = []
    real = MailSession.open

    def counted(self: MailSession, folder: str, *, write: bool = False) -> Any:
        opened.append(folder)
        return real(self, folder, write=write)

    monkeypatch.setattr(MailSession, "open", counted)
    assert tool("flag_mail", message, flag="seen").state == "done"
    assert opened == ["INBOX", "Zoo"]
    with box.box.client("Zoo") as client:
        client.uid("MOVE", "1:*", "Folder3")
    assert tool("flag_mail", message, flag="important").state == "done"
    assert {f for f, _, flags in box.state() if "Flagged" in flags} == {"Folder3"}


def test_an_answer_is_no_draft_again_once_a_person_has_sent_it(box: ImapBox) -> None:
    message, tool = box.lay(1), MailTool(box.target)
    args: dict[str, Any] = {"to": "ann@stranger.example", "subject": "s", "body": "b"}
    tool("draft_mail", message, **args)
    box.box.create("Sent")
    with box.box.client("Drafts") as client:
        client.uid("MOVE", "1:*", "Sent")
    assert tool("draft_mail", message, again=True, **args).state == "done"
    assert sorted(folder for folder, _, _ in box.state()) == ["INBOX", "Sent"]


def test_a_server_that_is_away_or_lets_nobody_in_is_tried_again(box: ImapBox) -> None:
    message = box.lay(1)
    away = MailTool({**box.target, "port": 1})("flag_mail", message, flag="seen")
    assert (away.state, "refused" in away.error.lower()) == ("retry", True)
    wrong = MailTool({**box.target, "password": "guess me"})("flag_mail", message, flag="seen")
    assert (wrong.state, "guess me" in wrong.error) == ("retry", False)
    assert "login of" in wrong.error


def test_a_session_is_kept_and_a_broken_one_is_not(box: ImapBox) -> None:
    with mail_session(box.target) as first:
        first.open("INBOX")
    with mail_session(box.target) as second:
        assert second is first
        second.interrupt()
        with pytest.raises(Temporary):
            second.search("ALL")
    with mail_session(box.target) as third:
        assert third is not first
        third.open("INBOX")


def test_no_more_connections_than_the_target_says(box: ImapBox) -> None:
    target = {**box.target, "connections": 1}
    with (
        mail_session(target),
        pytest.raises(Temporary, match="in use"),
        mail_session(target, wait_s=0.01),
    ):
        pass


def test_tls_is_checked_and_never_left_out(box: ImapBox) -> None:
    server = box.box.server
    trusted = {**box.target, "ca_file": server.ca_file}
    for more in ({"tls": "implicit", "port": server.tls_port}, {"tls": "starttls"}):
        session = MailSession({**trusted, **more})
        assert session.open("INBOX").folder == "INBOX"
        session.close()
        with pytest.raises(Permanent, match="certificate is not trusted"):
            MailSession({**box.target, **more})
    with pytest.raises(Permanent, match="only loopback"):
        MailSession({**box.target, "host": "mail.example"})


def test_an_answer_is_bounded(box: ImapBox) -> None:
    box.box.fill([b"Subject: big\r\n\r\n" + b"x" * 200_000 + b"\r\n"])
    session = MailSession(box.target)
    session.connection._max_bytes = 100_000
    session.open("INBOX")
    with pytest.raises(Temporary, match="limit is 100000"):
        session.raw(1)
    assert session.broken
    session.close()


@pytest.mark.parametrize("name", ["INBOX", "Büro & Co", "会議/議事", 'a "b" \\c', "&"])
def test_names_of_folders_come_back_as_they_went(name: str) -> None:
    wire = quote_name(name)
    assert wire.isascii()
    assert decode_name(wire[1:-1].replace('\\"', '"').replace("\\\\", "\\")) == name


@pytest.mark.parametrize("name", ["A[b", "Büro & Co", 'q"x'])
def test_a_folder_of_any_name_is_listed_beside_the_others(name: str, box: ImapBox) -> None:
    session = MailSession(box.target)
    session.create(name)
    assert {name, "INBOX"} <= set(session.folders())
    session.close()


@pytest.mark.parametrize("name", ["", "a\r\nb", "x" * 300, "nul\0"])
def test_a_name_that_would_be_another_command_is_none(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        quote_name(name)


def test_what_is_no_address_is_none() -> None:
    for text in ("", "1;2;3;INBOX", "1;2;3;" + "g" * 24 + ";INBOX", "1;2;3;" + "a" * 24 + ";a\nb"):
        assert read_mail_address(text) is None
    text = "1;2;3;" + "a" * 24 + ";a;b"
    assert str(read_mail_address(text)) == text
