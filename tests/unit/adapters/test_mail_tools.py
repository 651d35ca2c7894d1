"""The mail tools on a real Maildir: idempotent, crash-safe, and confined to it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from vedette.adapters.mail.event import mail_event
from vedette.config.agent_loader import load_module
from vedette.domain.effect import Call, Outcome

TOOLS = load_module(Path(__file__).resolve().parents[3] / "agents" / "inbox_triage", "tools")
NAME = "1772331742.M0001.harbour"
RAW = (
    b"From: Ann <ann@stranger.example>\nTo: desk@harbourlights.example\n"
    b"Subject: =?utf-8?q?Caf=C3=A9?= at the quay\nMessage-ID: <one@stranger.example>\n\n"
    b"Hello \xff\x00 there\n"
)


@pytest.fixture
def box(tmp_path: Path) -> Path:
    root = tmp_path / "mailbox"
    for place in ("new", "cur", "tmp"):
        (root / place).mkdir(parents=True)
    (root / "new" / NAME).write_bytes(RAW)
    (root / "cur" / "1772331743.M0002.harbour:2,S").write_bytes(RAW)
    return root


def call(box: Path, **args: Any) -> Call:
    return Call(
        tool="mail.any",
        args={"message": NAME, **args},
        key="k4x7abcdefghijklmnopqrstuv",
        agent="inbox_triage",
        run="run_1",
        target={"kind": "maildir", "path": str(box), "address": "desk@harbourlights.example"},
        lineage=("inbox_triage",),
        attempt=1,
        timeout_us=1_000_000,
    )


def letter(box: Path, to: str = "ann@stranger.example") -> Call:
    return call(box, to=to, subject="Re: Café\nBcc: x@evil.example", body="Grüße,\nthe desk")


def files(box: Path) -> list[str]:
    """Return all mails of the Maildir as FOLDER/PLACE/NAME; what lies in tmp is no mail."""
    return sorted(
        str(path.relative_to(box))
        for path in box.rglob("*")
        if path.is_file() and path.parent.name in ("new", "cur")
    )


def only(box: Path, folder: str) -> Message:
    found = [path for path in (box / folder).rglob("*.vedette*") if path.parent.name != "tmp"]
    assert len(found) == 1
    return message_from_bytes(found[0].read_bytes())


def test_filing_moves_and_a_repeat_is_done(box: Path) -> None:
    for _ in range(2):
        assert TOOLS.file_mail(call(box, folder="Invoices")).state == "done"
        assert f".Invoices/new/{NAME}" in files(box)
        assert len(files(box)) == 2
    assert (box / ".Invoices" / "maildirfolder").is_file()


def test_unfiling_takes_it_back(box: Path) -> None:
    before = files(box)
    TOOLS.file_mail(call(box, folder="Invoices"))
    for _ in range(2):
        assert TOOLS.unfile_mail(call(box, folder="Invoices")).state == "done"
        assert files(box) == before


def test_flags_survive_filing_and_filing_survives_flags(box: Path) -> None:
    seen = replace(call(box, flag="important"), args={"message": "1772331743.M0002.harbour"})
    flagged = replace(seen, args={**seen.args, "flag": "important"})
    assert TOOLS.flag_mail(flagged).state == "done"
    assert "cur/1772331743.M0002.harbour:2,FS" in files(box)
    filed = replace(seen, args={**seen.args, "folder": "Legal"})
    assert TOOLS.file_mail(filed).state == "done"
    assert TOOLS.unflag_mail(flagged).state == "done"
    assert ".Legal/cur/1772331743.M0002.harbour:2,S" in files(box)


def test_flagging_a_new_mail_moves_it_to_cur(box: Path) -> None:
    for _ in range(2):
        assert TOOLS.flag_mail(call(box, flag="important")).state == "done"
        assert f"cur/{NAME}:2,F" in files(box)
        assert len(files(box)) == 2
    assert TOOLS.unflag_mail(call(box, flag="important")).state == "done"
    assert f"cur/{NAME}:2," in files(box)


def test_a_repeat_still_knows_what_was_there_before_the_first_try(box: Path) -> None:
    """As after a crash between the change and its answer: the mail alone no longer tells."""
    filed, flagged = call(box, folder="Invoices"), call(box, flag="important")
    first = [TOOLS.flag_mail(flagged), TOOLS.file_mail(filed)]
    repeat = [TOOLS.flag_mail(flagged), TOOLS.file_mail(filed)]
    new = {"flags": "", "folder": "INBOX", "place": "new"}
    assert [outcome.data["was"] for outcome in first] == [
        new,
        {**new, "flags": "F", "place": "cur"},
    ]
    assert [outcome.data["was"] for outcome in repeat] == [outcome.data["was"] for outcome in first]
    # Another call of the same mail finds what is there now.
    other = TOOLS.flag_mail(replace(flagged, key="other"))
    assert other.data["was"] == {"flags": "F", "folder": "Invoices", "place": "cur"}
    assert not [path for path in files(box) if "vedette-was" in path]


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b'{"flags": 1}'])
def test_a_note_that_says_nothing_is_not_written_anew(box: Path, torn: bytes) -> None:
    """The change may have been made: what lies there now is not what lay there before."""
    flagged = call(box, flag="important")
    assert TOOLS.flag_mail(flagged).state == "done"
    (note,) = (box / "vedette-was").iterdir()
    note.write_bytes(torn)
    before = files(box)
    repeat = TOOLS.flag_mail(flagged)
    assert repeat.state == "failed"
    assert f"vedette-was/{note.name}" in repeat.error
    assert (files(box), note.read_bytes()) == (before, torn)


@pytest.mark.parametrize("what", ["file", "flag"])
def test_what_undo_needs_is_durable_before_the_mailbox_is_changed(
    box: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note's bytes, its name, the name of its folder: before the first rename of a mail."""
    steps: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def kind_of(path: object) -> str:
        return str(path).replace(str(box), "") or "/"

    def fsync(handle: int) -> None:
        steps.append(f"sync {kind_of(Path(f'/proc/self/fd/{handle}').readlink())}")
        real_fsync(handle)

    def rename(source: Any, target: Any, **kwargs: Any) -> None:
        steps.append(f"{kind_of(source)} to {kind_of(target)}")
        real_rename(source, target, **kwargs)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    tool, args = CALLS[what]
    tool(call(box, **args))
    change = next(n for n, step in enumerate(steps) if " to " in step and "-was" not in step)
    folder, written, named, kept = steps[:change][:4]
    note = f"/vedette-was/{call(box).key}.{what}"
    assert (folder, kept) == ("sync /", "sync /vedette-was")
    assert written.startswith(f"sync {note}.")
    assert named == f"{written.removeprefix('sync ')} to {note}"
    # An earlier try may have died when its name was not durable yet.
    steps.clear()
    tool(call(box, **args))
    assert steps[0] == "sync /vedette-was"


def test_a_full_disk_leaves_no_half_of_a_note(box: Path) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", full)
        assert TOOLS.flag_mail(call(box, flag="important")).state == "retry"
    assert list((box / "vedette-was").iterdir()) == []


def test_a_mail_somebody_else_filed_stays_there(box: Path) -> None:
    TOOLS.file_mail(call(box, folder="Legal"))
    outcome = TOOLS.file_mail(call(box, folder="Junk"))
    assert outcome.state == "failed"
    assert "lies in Legal" in outcome.error
    assert f".Legal/new/{NAME}" in files(box)


def test_a_draft_is_written_once(box: Path) -> None:
    for _ in range(3):
        assert TOOLS.draft_mail(letter(box)).state == "done"
    draft = only(box, ".Drafts")
    assert draft["To"] == "ann@stranger.example"
    assert draft["In-Reply-To"] == "<one@stranger.example>"
    assert draft["X-Vedette-Run"] == "run_1"
    assert draft["vedettelineage"] == "inbox_triage"
    assert draft["vedettehops"] == "1"
    assert draft["Bcc"] is None
    payload = draft.get_payload(decode=True)
    assert isinstance(payload, bytes)
    assert payload.decode() == "Grüße,\nthe desk"
    assert not list((box / ".Drafts" / "tmp").iterdir())


def test_a_draft_says_who_may_read_it(box: Path) -> None:
    readers = frozenset(f"person{n}@harbourlights.example" for n in range(40))
    TOOLS.draft_mail(replace(letter(box), readers=readers))
    (path,) = (box / ".Drafts" / "cur").iterdir()
    event = mail_event("maildir:x", "1", path.read_bytes(), subject="1", received_us=0)
    assert (event.readers, event.lineage) == (readers, ("inbox_triage",))


def test_a_draft_a_person_edited_or_moved_is_not_written_again(box: Path) -> None:
    TOOLS.draft_mail(letter(box))
    (path,) = (box / ".Drafts" / "cur").iterdir()
    (box / ".Sent" / "cur").mkdir(parents=True)
    path.write_bytes(b"edited")
    path.rename(box / ".Sent" / "cur" / (path.name.split(":")[0] + ":2,S"))
    assert TOOLS.draft_mail(letter(box)).state == "done"
    assert not list((box / ".Drafts" / "cur").iterdir())


def test_the_same_call_writes_the_same_bytes(box: Path, tmp_path: Path) -> None:
    TOOLS.send_mail(letter(box))
    (first,) = (box / ".Outbox" / "new").iterdir()
    kept = first.read_bytes()
    first.unlink()
    TOOLS.send_mail(letter(box))
    assert first.read_bytes() == kept


def test_forwarding_carries_the_original_byte_for_byte(box: Path) -> None:
    done = TOOLS.forward_mail(call(box, to="counsel@quaylaw.example", note="as asked"))
    assert done == Outcome(
        "done",
        {
            "message": "k4x7abcdefghijklmnopqrstuv.vedette",
            "folder": "Outbox",
            "to": "counsel@quaylaw.example",
        },
    )
    (path,) = (box / ".Outbox" / "new").iterdir()
    assert RAW in path.read_bytes()
    sent = only(box, ".Outbox")
    parts = sent.get_payload()
    assert isinstance(parts, list)
    note, original = parts
    assert isinstance(note, Message)
    assert isinstance(original, Message)
    assert note.get_payload(decode=True) == b"as asked"
    assert original.get_content_type() == "message/rfc822"
    assert original["Content-Transfer-Encoding"] == "binary"
    assert sent["To"] == "counsel@quaylaw.example"


@pytest.mark.parametrize(
    "message",
    ["../secret", "new/x", "/etc/passwd", ".hidden", "..", "", "a\nb", "a\0b", "x:2,S", "a" * 300],
)
def test_a_message_is_named_by_its_unique_name_only(box: Path, message: str) -> None:
    before = files(box)
    for tool, args in (
        (TOOLS.file_mail, {"folder": "Legal"}),
        (TOOLS.flag_mail, {"flag": "important"}),
        (TOOLS.draft_mail, {"to": "a@b.example", "subject": "s", "body": "b"}),
        (TOOLS.forward_mail, {"to": "a@b.example", "note": "n"}),
    ):
        bad = replace(call(box), args={"message": message, **args})
        assert tool(bad).state == "failed"
    assert files(box) == before


@pytest.mark.parametrize(
    "folder",
    ["../x", "a/b", ".Legal", "..", "", "a.b", "a\0", "x\n", " lead", "trail ", "é", "a" * 65],
)
def test_a_folder_is_a_plain_name(box: Path, folder: str) -> None:
    outside = sorted(box.parent.iterdir())
    assert TOOLS.file_mail(call(box, folder=folder)).state == "failed"
    assert TOOLS.unfile_mail(call(box, folder=folder)).state == "failed"
    assert sorted(box.parent.iterdir()) == outside
    assert f"new/{NAME}" in files(box)


@pytest.mark.parametrize(
    "to",
    ["", "nobody", "a@b.example, x@evil.example", "a@b.example\nBcc: x@evil.example", "A <a@b.c>"],
)
def test_a_recipient_is_one_plain_address(box: Path, to: str) -> None:
    assert TOOLS.send_mail(letter(box, to)).state == "failed"
    assert TOOLS.forward_mail(call(box, to=to, note="n")).state == "failed"
    assert not (box / ".Outbox").exists()


def test_a_link_in_the_mailbox_is_not_followed(box: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"Subject: secret\n\nsecret")
    (box / "cur" / "link:2,").symlink_to(secret)
    linked = replace(
        call(box), args={"message": "link", "to": "counsel@quaylaw.example", "note": "n"}
    )
    assert TOOLS.forward_mail(linked).state != "done"
    assert not [name for name in files(box) if "vedette" in name]


def test_unknown_flag_missing_mail_and_missing_mailbox(box: Path) -> None:
    assert TOOLS.flag_mail(call(box, flag="purple")).state == "failed"
    missing = replace(call(box), args={"message": "nowhere", "folder": "Legal"})
    assert TOOLS.file_mail(missing).state == "failed"
    assert TOOLS.file_mail(call(box / "elsewhere", folder="Legal")).state == "retry"
    assert TOOLS.file_mail(replace(call(box, folder="Legal"), target={})).state == "failed"


# --- crashes ---------------------------------------------------------------------------------

CALLS: dict[str, tuple[Callable[[Call], Outcome], dict[str, str]]] = {
    "file": (TOOLS.file_mail, {"folder": "Invoices"}),
    "flag": (TOOLS.flag_mail, {"flag": "important"}),
    "draft": (TOOLS.draft_mail, {"to": "a@b.example", "subject": "s", "body": "b"}),
    "send": (TOOLS.send_mail, {"to": "a@b.example", "subject": "s", "body": "b"}),
    "forward": (TOOLS.forward_mail, {"to": "a@b.example", "note": "n"}),
}
SYSCALLS = ("mkdir", "open", "write", "fsync", "close", "link", "rename", "unlink", "utime")


class Killed(BaseException):
    """Stands for kill -9: nothing of the process runs after it, no `finally` either."""


@contextmanager
def failing(at: int, error: Callable[[], BaseException], *, dead: bool) -> Iterator[list[int]]:
    """Fail the `at`-th syscall (from 1); with `dead`, all that follow too."""
    count = [0]
    with pytest.MonkeyPatch.context() as patch:
        for name in SYSCALLS:
            real = getattr(os, name)

            def counted(*args: Any, _real: Callable[..., Any] = real, **kwargs: Any) -> Any:
                count[0] += 1
                if count[0] == at or (dead and count[0] > at):
                    raise error()
                return _real(*args, **kwargs)

            patch.setattr(os, name, counted)
        yield count


def undisturbed(box: Path, what: str) -> tuple[list[str], int]:
    tool, args = CALLS[what]
    with failing(0, Killed, dead=False) as count:
        assert tool(call(box, **args)).state == "done"
    return files(box), count[0]


def fresh(box: Path, at: int) -> Path:
    repeat = box.parent / f"again{at}"
    for place in ("new", "cur", "tmp"):
        (repeat / place).mkdir(parents=True)
    (repeat / "new" / NAME).write_bytes(RAW)
    (repeat / "cur" / "1772331743.M0002.harbour:2,S").write_bytes(RAW)
    return repeat


@pytest.mark.parametrize("what", CALLS)
def test_killed_between_any_two_syscalls_leaves_no_second_copy(box: Path, what: str) -> None:
    wanted, syscalls = undisturbed(box, what)
    assert syscalls >= 3
    tool, args = CALLS[what]
    died = 0
    for at in range(1, syscalls + 1):
        repeat = fresh(box, at)
        try:
            with failing(at, Killed, dead=True):
                tool(call(repeat, **args))
        except Killed:
            died += 1
        assert set(files(repeat)) <= set(wanted) | {f"new/{NAME}"}
        assert tool(call(repeat, **args)).state == "done"
        assert files(repeat) == wanted
    assert died == syscalls


@pytest.mark.parametrize("what", CALLS)
def test_a_full_disk_is_a_retry_and_harms_nothing(box: Path, what: str) -> None:
    wanted, syscalls = undisturbed(box, what)
    tool, args = CALLS[what]
    for at in range(1, syscalls + 1):
        repeat = fresh(box, at)
        with failing(at, lambda: OSError(errno.ENOSPC, "No space left on device"), dead=False):
            assert tool(call(repeat, **args)).state in ("retry", "done")
        assert tool(call(repeat, **args)).state == "done"
        assert files(repeat) == wanted


def test_the_crash_test_would_find_a_second_copy(box: Path) -> None:
    """Control: adding a copy and removing the original is what these tests must refuse."""

    def by_copy(given: Call) -> None:
        root = Path(str(given.target["path"]))
        target = root / ".Invoices" / "new"
        target.mkdir(parents=True, exist_ok=True)
        handle = os.open(target / NAME, os.O_WRONLY | os.O_CREAT)
        os.write(handle, (root / "new" / NAME).read_bytes())
        os.close(handle)
        os.unlink(root / "new" / NAME)  # noqa: PTH108 - counted as a syscall

    doubled = 0
    for at in range(1, 12):
        repeat = fresh(box, at)
        try:
            with failing(at, Killed, dead=True):
                by_copy(call(repeat))
        except Killed:
            doubled += sum(name.endswith(NAME) for name in files(repeat)) == 2
    assert doubled


def test_no_links_on_this_file_system(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    for _ in range(2):
        assert TOOLS.send_mail(letter(box)).state == "done"
    assert len(list((box / ".Outbox" / "new").iterdir())) == 1


def test_a_mail_that_moves_while_we_look_is_found(box: Path) -> None:
    """A mail reader marks the mail as read between our look and our rename."""
    real = os.rename
    moves: list[str] = []

    def reader(source: Any, target: Any, **kwargs: Any) -> None:
        if not moves and NAME in str(source):
            moves.append(str(source))
            real(source, box / "cur" / f"{NAME}:2,S")
        real(source, target, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", reader)
        assert TOOLS.file_mail(call(box, folder="Invoices")).state == "done"
    assert f".Invoices/cur/{NAME}:2,S" in files(box)
