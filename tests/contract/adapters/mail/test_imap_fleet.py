"""A whole fleet on an IMAP mailbox: observed without a trace, acted on, taken back exactly."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests import imap

from vedette.adapters.mail.imap.pool import close_all
from vedette.adapters.mail.imap.source import ImapSource
from vedette.domain.action import Proposal
from vedette.domain.base.errors import BadCommand
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.testing.harness import FleetHarness, checkout, copy_policies, remove_tests
from vedette.testing.scripted import ScriptedReasoner

MESSAGE = Ref("/event/subject")
PROPOSALS = (
    Proposal("mail.file", {"message": MESSAGE, "folder": Ref("/charter/folders/invoice")}, "bill"),
    Proposal("mail.flag", {"message": MESSAGE, "flag": "important"}, "urgent"),
)


def mail(number: int) -> bytes:
    return (
        f"Received: by b id {number}\r\nFrom: ann@stranger.example\r\nSubject: s{number}\r\n"
        f"Message-ID: <{number}@stranger.example>\r\n\r\ntext\r\n"
    ).encode()


def fleet_of(folder: Path, box: imap.Mailbox, mode: str) -> FleetHarness:
    root = folder / "content"
    left_out = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(
        checkout() / "agents/inbox_triage", root / "agents/inbox_triage", ignore=left_out
    )
    shutil.copytree(checkout() / "memory/inbox", root / "memory/inbox")
    policies = remove_tests(copy_policies(root / "policies"))
    grants = policies / "grants/data.yaml"
    head, name, rest = grants.read_text().partition("\ninbox_triage:")
    grants.write_text(head + name + rest.replace("mode: act", f"mode: {mode}", 1))
    thought = ReasonerJudgement(label="invoice", proposals=PROPOSALS)
    return FleetHarness(
        folder, content=root, reasoners={"judge": ScriptedReasoner({"inbox_triage": [thought]})},
        targets={"mailbox": box.table(create_folders=True)},
    )  # fmt: skip


@pytest.fixture
async def box() -> AsyncIterator[imap.Mailbox]:
    yield imap.server().mailbox()
    close_all()


async def read(fleet: FleetHarness, box: imap.Mailbox) -> None:
    """Let the source read the mailbox as it is now, and the fleet handle what is new."""
    await ImapSource(box.source(name="desk"), fleet.app.services.clock, watch=False).deliver(
        fleet.app.intake
    )
    await fleet.wait_until_idle()


async def test_observed_nothing_is_touched(box: imap.Mailbox, tmp_path: Path) -> None:
    box.fill(mail(number) for number in range(5))
    before = box.folders()
    async with fleet_of(tmp_path, box, "observe") as fleet:
        await read(fleet, box)
        assert fleet.outcomes() == {"deny": 10}
        assert fleet.entries("effect.intended", "effect.started", "effect.done") == []
    assert box.folders() == before


async def test_acted_on_and_taken_back_exactly_once_and_it_wakes_nobody_again(
    box: imap.Mailbox, tmp_path: Path
) -> None:
    box.fill([mail(1)])
    before = states(box)
    async with fleet_of(tmp_path, box, "act") as fleet:
        await read(fleet, box)
        done = {row["tool"]: row for row in fleet.entries("effect.done")}
        assert set(done) == {"mail.file", "mail.flag"}
        assert {folder for folder, _, _ in states(box)} == {"Invoices"}
        for tool in ("mail.flag", "mail.file"):
            args = {"effect": done[tool]["action"].replace("act_", "eff_")}
            await dispatch(fleet.app.commands, "undo", fleet.order("wrong"), args)
            await fleet.wait_until_idle()
            with pytest.raises(BadCommand, match="undone already"):
                await dispatch(fleet.app.commands, "undo", fleet.order("wrong"), args)
        assert states(box) == before
        # It lies in the INBOX under a new number, and is the same event.
        await read(fleet, box)
        assert states(box) == before
        assert len(fleet.entries("effect.done")) == 4


def states(box: imap.Mailbox) -> set[tuple[str, str, frozenset[str]]]:
    return {(f, name, flags) for f, mails in box.folders().items() for _, name, flags in mails}
