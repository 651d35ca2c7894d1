"""`approve` shows before it asks, groups are answered as shown, `undo` finds what is meant."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.contract.operations.test_approvals import judged
from tests.contract.operations.test_undo import content, files, lay, mail

from vedette.interfaces.cli import main
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner

TOML = """\
fleet = "harbour"
state = "{state}"
[content]
agents = "{root}/agents"
policies = "{root}/policies"
memory = "{root}/memory"
[isolation]
workers = "none"
[targets.mailbox]
kind = "maildir"
path = "{box}"
"""
NAMES = ("i1", "i2", "b1")


class Terminal(io.StringIO):
    """Somebody at a keyboard, who types this."""

    def isatty(self) -> bool:
        return True


async def hold_some(folder: Path, root: Path) -> None:
    reasoner = ScriptedReasoner({"inbox_triage": [judged]})
    targets = {"mailbox": {"kind": "maildir", "path": str(folder / "mail")}}
    async with FleetHarness(
        folder, content=root, reasoners={"judge": reasoner}, targets=targets
    ) as fleet:
        await fleet.send(*(mail(name) for name in NAMES))
        await fleet.wait_until_idle()


async def act_on_it(folder: Path, root: Path) -> None:
    targets = {"mailbox": {"kind": "maildir", "path": str(folder / "mail")}}
    async with FleetHarness(folder, content=root, targets=targets) as fleet:
        await fleet.wait_until_idle()


class Cli:
    """The command line on one fleet, in this process."""

    def __init__(self, root: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root, self._capsys, self._monkeypatch = root, capsys, monkeypatch

    def __call__(self, *words: str, typed: str | None = None) -> tuple[int, str, str]:
        stdin = io.StringIO() if typed is None else Terminal(typed)
        self._monkeypatch.setattr("sys.stdin", stdin)
        with pytest.raises(SystemExit) as ended:
            main(["--config", str(self._root), *words])
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err, said.err
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    def json(self, *words: str) -> Any:
        code, out, err = self(*words, "--json")
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
def cli(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Cli:
    root = content(tmp_path)
    lay(tmp_path / "mail")
    for name in NAMES:
        (tmp_path / "mail/new" / name).write_bytes(b"From: a@b.example\n\nx\n")
    asyncio.run(hold_some(tmp_path, root))
    toml = TOML.format(root=root, state=tmp_path / "state", box=tmp_path / "mail")
    (tmp_path / "vedette.toml").write_text(toml)
    return Cli(tmp_path, capsys, monkeypatch)


def test_the_verbs_of_people_from_hold_to_undo(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(tmp_path / "mail")
    invoices, bookings = cli.json("hold", "--group")["items"]
    (hold,) = bookings["holds"]
    why = ("--reason", "seen")
    # Nobody to ask: refused, with the command that shows it, and no digest that nobody looked at.
    code, _, err = cli("approve", hold, *why)
    assert (code, "no terminal" in err, f"hold {hold}" in err) == (2, True, True)
    assert bookings["holds"][hold][:8] not in err
    code, out, _ = cli("hold", hold)
    digest = bookings["holds"][hold][:16]
    assert f"approve {hold} --digest {digest} --reason …" in out
    # A digest that is empty names nothing that was shown.
    code, _, err = cli("approve", hold, "--digest", "", *why)
    assert (code, "no terminal" in err) == (2, True)
    for wrong in ("0" * 64, digest[:7], bookings["members"][0]["digest"], "x" * 64):
        code, _, err = cli("approve", hold, "--digest", wrong, *why)
        assert (code, "look at it again" in err) == (2, True), wrong
    # Shown whole, and asked; no is the answer of whoever just presses return.
    code, out, _ = cli("approve", hold, *why, typed="\n")
    assert code == 130
    for part in ('folder = "Bookings"', "trusted, from /charter", "undo      mail.unfile", "[y/N]"):
        assert part in out, part
    assert all(len(line) <= 80 for line in out.splitlines())
    assert len(cli.json("hold")["items"]) == 3
    # Notes and claims are there for whoever comes next.
    cli.json("hold", hold, "--claim")
    cli.json("hold", hold, "--note", "ask Ann")
    code, out, _ = cli("approve", hold, *why, typed="y\n")
    assert code == 0
    assert "ask Ann" in out
    assert "claimed   by" in out
    # A group: every digest is shown before the question, and is part of the group's own.
    code, out, _ = cli("approve", *why, invoices["group"], typed="n\n")
    assert code == 130
    assert all(f"shown as  {digest[:16]}" in out for digest in invoices["holds"].values())
    code, _, err = cli("approve", *why, invoices["group"])
    assert (code, f"hold {invoices['group']}" in err) == (2, True)
    code, _, err = cli("approve", "--digest", "0" * 16, *why, invoices["group"])
    assert (code, "is not what was shown" in err) == (2, True)
    # One at a time: what is too many at once was there all the same, and is left.
    with monkeypatch.context() as patched:
        patched.setattr("vedette.operations.approvals.MAX_HOLDS", 1)
        code, out, _ = cli("deny", *why, invoices["group"])
    assert code == 0
    assert "1 of the group are left: repeat this" in out
    assert "joined" not in out
    done = cli.json("deny", *why, invoices["group"])
    assert (done["answered"], done["refused"], done["joined"], done["left"]) == (1, 0, [], [])
    code, _, err = cli("approve", "--digest", "0" * 16, *why, invoices["group"])
    assert (code, "no group of open holds" in err) == (2, True)
    code, _, err = cli("approve", *why)
    assert (code, "name one hold, or a group" in err) == (2, True)
    # What was approved is done at the next run; `undo` takes it by its run, and once.
    asyncio.run(act_on_it(tmp_path, content(tmp_path)))
    assert files(tmp_path / "mail") != before
    run = cli.json("explain", hold)["runs"][0]["id"]
    done = cli.json("undo", run, "--reason", "no booking")
    assert (done["inverse"], done["by"], done["outcome"]) == ("mail.unfile", "here", None)
    asyncio.run(act_on_it(tmp_path, content(tmp_path)))
    assert files(tmp_path / "mail") == before
    code, _, err = cli("undo", run, "--reason", "again")
    assert (code, "was undone already" in err) == (2, True)
    assert "UNDONE by" in cli("explain", run)[1]
    # Three runs of the fleet; a command opens the store too, and starts nothing.
    assert cli.json("report")["traffic"]["starts"] == 3
    look_at_odd_arguments(cli)


def look_at_odd_arguments(cli: Cli) -> None:
    """What can be said of the record, and cannot be meant, is told plainly."""
    series: tuple[str, ...] = ("plot", NAMES[0])
    assert cli("report", "--agent", "inbox_triage")[0] == 0
    for words in (("report",), series):
        code, _, err = cli(*words, "--agent", "inbox_triag")
        assert (code, "did you mean 'inbox_triage'?" in err) == (2, True), err
    for words in (("report", "--last", "9999999d"), ("report", "--until", "0001-01-01")):
        code, out, err = cli("--utc", *words)
        assert (code, "0001-01-01T00:00:00Z" in out) == (0, True), err
    # Bytes that are no text reach a program as half a pair.
    for verb in ("plot", "report --agent", "stop inbox_triage --reason"):
        code, _, err = cli(*verb.split(), "\udcff")
        assert (code, r"the argument '\udcff' is no text" in err) == (2, True), err
