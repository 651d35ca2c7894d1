"""The mail tools do the same on a Maildir and on an IMAP server: once, findable, taken back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pytest
from tests import imap

from vedette.adapters.mail.imap.address import MailAddress, mail_digest
from vedette.adapters.mail.imap.pool import close_all
from vedette.config.agent_loader import load_module
from vedette.domain.effect import Call, Outcome

AGENT = Path(__file__).parents[4] / "agents/inbox_triage"
KEY = "k4x7abcdefghijklmnopqrstuv"
UNIQUE = "177233174{}.M000{}.harbour"


def tools() -> ModuleType:
    """Return the shipped agent's tools, anew if another folder of its name was loaded since."""
    return load_module(AGENT, "tools")


def raw(number: int, message_id: str = "") -> bytes:
    """Return one mail as a server keeps it."""
    name = message_id or f"<{number}@stranger.example>"
    return (
        f"Received: from a by b id {number}\r\nFrom: Ann <ann@stranger.example>\r\n"
        f"Subject: Café\r\nMessage-ID: {name}\r\n\r\nHello {number}\r\n"
    ).encode()


class Box(Protocol):
    """What the tests see of a mailbox."""

    target: dict[str, Any]

    def lay(self, number: int, *, flags: str = "") -> str:
        """Put a mail into the INBOX (flags: "important seen"); return what tools know it by."""
        ...

    def person_moves(self, message: str, folder: str) -> None: ...

    def person_removes(self, message: str) -> None: ...

    def state(self) -> set[tuple[str, str, str]]:
        """Return each mail: its folder, what it is, and all of its flags."""
        ...


class MaildirBox:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.target: dict[str, Any] = {
            "kind": "maildir", "path": str(root), "address": "desk@lights.example"
        }  # fmt: skip
        for place in ("new", "cur", "tmp"):
            (root / place).mkdir(parents=True)

    def lay(self, number: int, *, flags: str = "") -> str:
        name = UNIQUE.format(number, number)
        info = "".join(sorted({"important": "F", "seen": "S"}[flag] for flag in flags.split()))
        path = f"cur/{name}:2,{info}" if flags else f"new/{name}"
        (self.root / path).write_bytes(raw(number))
        return name

    def person_moves(self, message: str, folder: str) -> None:
        to = self.root / f".{folder}" / "cur"
        to.mkdir(parents=True)
        (path,) = self.root.rglob(f"{message}*")
        path.rename(to / path.name)

    def person_removes(self, message: str) -> None:
        (path,) = self.root.rglob(f"{message}*")
        path.unlink()

    def state(self) -> set[tuple[str, str, str]]:
        found = set()
        for path in self.root.rglob("*"):
            if path.is_file() and path.parent.name in ("new", "cur"):
                folder = path.parent.parent.name.lstrip(".") if path.parts[-3][0] == "." else ""
                flags = path.name.partition(":2,")[2]
                found.add((folder or "INBOX", path.name.split(":")[0], path.parent.name + flags))
        return found


class ImapBox:
    def __init__(self) -> None:
        self.box = imap.server().mailbox()
        self.target = self.box.table(create_folders=True, address="desk@lights.example")

    def lay(self, number: int, *, flags: str = "") -> str:
        words = {"important": "\\Flagged", "seen": "\\Seen"}
        mail = raw(number)
        self.box.fill([mail], flags=" ".join(words[flag] for flag in flags.split()))
        with self.box.client("INBOX") as client:
            uid = int(client.uid("SEARCH", "ALL")[1][0].split()[-1])
            validity = int(client.response("UIDVALIDITY")[1][0] or b"0")
        return str(MailAddress(validity, uid, len(mail), mail_digest(mail), "INBOX"))

    def person_moves(self, message: str, folder: str) -> None:
        self.box.create(folder)
        with self.box.client("INBOX") as client:
            client.uid("MOVE", message.split(";")[1], folder)

    def person_removes(self, message: str) -> None:
        with self.box.client("INBOX") as client:
            client.uid("STORE", message.split(";")[1], "+FLAGS", r"(\Deleted)")
            client.expunge()

    def state(self) -> set[tuple[str, str, str]]:
        return {
            (folder, name, " ".join(sorted(flags)))
            for folder, mails in self.box.folders().items()
            for _, name, flags in mails
        }


@pytest.fixture(params=["maildir", "imap"])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Box]:
    found: Box = MaildirBox(tmp_path / "mailbox") if request.param == "maildir" else ImapBox()
    yield found
    close_all()


@dataclass
class MailTool:
    """Calls tools as the engine does; a call that was cut short is made again with its key."""

    target: dict[str, Any]
    number: int = 0

    def __call__(self, function: str, message: str, again: bool = False, **args: Any) -> Outcome:
        self.number += not again
        call = Call(
            "mail.any", {"message": message, **args}, f"{KEY}{self.number}", "inbox_triage",
            "run_1", self.target, ("inbox_triage",), 1, 20_000_000,
        )  # fmt: skip
        outcome: Outcome = getattr(tools(), function)(call)
        return outcome


def folder_of(box: Box) -> list[str]:
    return sorted(folder for folder, _, _ in box.state())


def test_filing_is_taken_back_exactly_also_when_both_are_repeated(box: Box) -> None:
    message, tool = box.lay(1, flags="seen"), MailTool(box.target)
    box.lay(2)
    before = box.state()
    first = tool("file_mail", message, folder="Invoices")
    assert (first.state, folder_of(box)) == ("done", ["INBOX", "Invoices"])
    after = box.state()
    # Killed before the answer was recorded: the call is made again, and knows the same of before.
    assert tool("file_mail", message, again=True, folder="Invoices") == first
    assert box.state() == after
    for repeat in (False, True):
        outcome = tool(
            "unfile_mail", message, again=repeat, folder="Invoices", was=first.data["was"]
        )
        assert (outcome.state, outcome.data["folder"]) == ("done", "INBOX")
        assert box.state() == before


def test_what_a_person_had_filed_there_stays_when_ours_is_taken_back(box: Box) -> None:
    message, tool = box.lay(1), MailTool(box.target)
    box.person_moves(message, "Invoices")
    before = box.state()
    outcome = tool("file_mail", message, folder="Invoices")
    assert (outcome.state, outcome.data["was"]["folder"]) == ("done", "Invoices")
    outcome = tool("unfile_mail", message, folder="Invoices", was=outcome.data["was"])
    assert outcome.state == "done"
    assert box.state() == before


def test_without_what_was_it_would_not_stay(box: Box) -> None:
    """Negative control of the one above."""
    message, tool = box.lay(1), MailTool(box.target)
    box.person_moves(message, "Invoices")
    tool("file_mail", message, folder="Invoices")
    tool("unfile_mail", message, folder="Invoices")
    assert folder_of(box) == ["INBOX"]


@pytest.mark.parametrize("flags", ["", "seen", "important", "important seen"])
def test_a_flag_is_taken_back_exactly(box: Box, flags: str) -> None:
    message, tool = box.lay(1, flags=flags), MailTool(box.target)
    before = box.state()
    first = tool("flag_mail", message, flag="important")
    after = box.state()
    assert first.data["set"] is True
    assert tool("flag_mail", message, again=True, flag="important") == first
    assert box.state() == after
    assert (after == before) is ("important" in flags)
    for repeat in (False, True):
        outcome = tool(
            "unflag_mail", message, again=repeat, flag="important", was=first.data["was"]
        )
        assert outcome.state == "done"
        assert box.state() == before
    redone = tool("flag_mail", message, flag="important", was=outcome.data["was"])
    assert redone.state == "done"


def test_both_are_taken_back_in_any_order(box: Box) -> None:
    message, tool = box.lay(1), MailTool(box.target)
    before = box.state()
    filed = tool("file_mail", message, folder="Legal")
    flagged = tool("flag_mail", message, flag="important")
    assert tool("unfile_mail", message, folder="Legal", was=filed.data["was"]).state == "done"
    outcome = tool("unflag_mail", message, flag="important", was=flagged.data["was"])
    assert outcome.state == "done"
    assert box.state() == before


def test_what_a_person_filed_elsewhere_is_left_there(box: Box) -> None:
    message, tool = box.lay(1), MailTool(box.target)
    box.person_moves(message, "Legal")
    before = box.state()
    outcome = tool("file_mail", message, folder="Junk")
    assert outcome.state == "failed"
    assert "lies in Legal, not in INBOX" in outcome.error
    assert box.state() == before
    assert tool("flag_mail", message, flag="important").state == "done"


def test_a_mail_that_is_gone_is_said_to_be(box: Box) -> None:
    message, tool = box.lay(1), MailTool(box.target)
    box.person_removes(message)
    letter: dict[str, Any] = {"to": "a@b.example", "subject": "s", "body": "b"}
    questions: list[tuple[str, dict[str, Any]]] = [
        ("file_mail", {"folder": "Junk"}), ("flag_mail", {"flag": "seen"}), ("draft_mail", letter),
    ]  # fmt: skip
    for function, args in questions:
        outcome = tool(function, message, **args)
        assert outcome.state == "failed"
        assert "is not in the mailbox" in outcome.error


def test_a_draft_is_written_once(box: Box) -> None:
    message, tool = box.lay(1), MailTool(box.target)
    args: dict[str, Any] = {
        "to": "ann@stranger.example",
        "subject": "Re: Café\nBcc: x@y.example",
        "body": "Hello",
    }
    first = tool("draft_mail", message, **args)
    assert first.state == "done"
    for _ in range(2):
        assert tool("draft_mail", message, again=True, **args) == first
    assert folder_of(box) == ["Drafts", "INBOX"]
    assert tool("draft_mail", message, **args).state == "done"
    assert folder_of(box) == ["Drafts", "Drafts", "INBOX"]


def test_what_no_tool_of_this_mailbox_answered_is_refused(box: Box) -> None:
    message, tool = box.lay(1), MailTool(box.target)
    assert tool("unflag_mail", message, flag="seen", was={"flags": ["S"]}).state == "failed"
    assert tool("flag_mail", message, flag="starred").state == "failed"
    assert tool("file_mail", message, folder="../x").state == "failed"
    assert tool("file_mail", "../../x", folder="Junk").state == "failed"


def test_another_target_s_message_is_not_taken_for_one_of_ours(tmp_path: Path) -> None:
    """The control of the suite: each box knows its own addresses alone."""
    here = MaildirBox(tmp_path / "mailbox")
    there = ImapBox()
    outcome = MailTool(there.target)("file_mail", here.lay(1), folder="Junk")
    assert (outcome.state, "is not the address of a mail" in outcome.error) == ("failed", True)
    outcome = MailTool(here.target)("file_mail", there.lay(1), folder="Junk")
    assert (outcome.state, "is not in the mailbox" in outcome.error) == ("failed", True)
    close_all()
