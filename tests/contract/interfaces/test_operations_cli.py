"""The verbs of operations as a person gives them: backup, restore, keys, archive, prove, verify."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.said import said, vedette

from vedette.domain.base.errors import BadCommand
from vedette.testing.toy_fleet import World, job, note_proposal, toy_fleet

SETTINGS = """\
fleet = "harbour"
state = "state"
[content]
agents = "content/agents"
policies = "policies"
memory = "content/memory"
[targets.world]
kind = "world"
"""


@pytest.fixture
async def fleet(tmp_path: Path) -> Path:
    """A fleet that has handled a few events, and stands still."""
    async with toy_fleet(tmp_path, World()) as made:
        await made.send(*(job(str(n), note_proposal(f"note {n}"), value=n) for n in range(4)))
        await made.wait_until_idle()
    (tmp_path / "vedette.toml").write_text(SETTINGS)
    return tmp_path


def test_an_order_to_erase_is_bound_to_what_was_shown_also_where_that_was_nothing(
    fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes between the survey and the order was not shown to anybody."""
    orders = []

    def obey(settings: Any, verb: str, args: Any, order: Any) -> Any:
        orders.append(args["digest"])
        raise BadCommand("the test ends here")

    monkeypatch.setattr("vedette.interfaces.cli.erase.submit_command", obey)
    nothing = ["erase", "subject:nobody", "--reason", "asked to"]
    for more in (["--yes"], ["--digest", "0123abcd"], []):
        assert said(fleet, *nothing, *more).code == 2
    first, given, asked = orders
    assert (len(first), given, asked) == (64, "0123abcd", first)


def test_a_digest_that_is_empty_names_nothing_that_was_shown(fleet: Path) -> None:
    run = said(fleet, "runs", "--json").json["items"][0]["id"]
    event = said(fleet, "explain", run, "--json").json["event"]["id"]
    done = said(fleet, "erase", f"event:{event}", "--digest", "", "--reason", "why", "--json")
    assert (done.code, "nobody can be asked" in done.error["what"]) == (2, True)


def test_from_a_backup_over_a_lost_disk_to_a_fleet_that_goes_on(fleet: Path) -> None:
    done = vedette(fleet, "backup", "kept", "--with-keys", "--json")
    assert done.code == 0, done.err
    size = done.json["size"]
    stopped = vedette(fleet, "stop", "worker", "--reason", "moving house")
    assert stopped.code == 0, stopped.err
    shutil.copy(fleet / "state" / "witness.log", fleet / "elsewhere.log")
    shutil.copy(fleet / "state" / "ledger.pub", fleet / "first.pub")
    refused = vedette(fleet, "restore", "kept", "--witness=none", "--reason", "try")
    assert (refused.code, "there is a store here" in refused.err) == (2, True)
    shutil.rmtree(fleet / "state")
    answer = vedette(fleet, "restore", "kept", "--reason", "the disk is gone")
    assert (answer.code, "--witness none" in answer.err) == (2, True)
    done = vedette(fleet, "restore", "kept", "--witness", "elsewhere.log", "--reason", "disk")
    assert done.code == 0, done.err
    assert f"restored up to entry {size}" in done.out
    assert "everything is stopped" in done.out
    verified = vedette(fleet, "verify", "--key", "first.pub", "--witness", "elsewhere.log")
    assert verified.code == 0, verified.out
    assert f"restored at entry {size + 1}: entries {size + 1} to" in verified.out
    assert "the ledger stands" in verified.out
    status = vedette(fleet, "status", "--json")
    assert status.json["stops"] == [{"scope": "all", "name": ""}]
    lifted = vedette(fleet, "resume", "--all", "--reason", "checked")
    assert "nothing" in lifted.out
    settled = vedette(fleet, "restore", "--settled", "--reason", "all delivered again")
    assert settled.code == 0, settled.err
    repeat = vedette(fleet, "restore", "--settled", "--reason", "all delivered again")
    assert (repeat.code, "no doubt" in repeat.err) == (2, True)


def test_keys_are_rotated_and_the_first_key_still_verifies(fleet: Path) -> None:
    first = (fleet / "state" / "ledger.pub").read_text()
    done = vedette(fleet, "ledger", "rotate-key", "--reason", "a year is over", "--json")
    assert done.code == 0, done.err
    assert vedette(fleet, "stop", "worker", "--reason", "so that more is signed").code == 0
    (fleet / "first.pub").write_text(first)
    verified = vedette(fleet, "verify", "--key", "first.pub")
    assert (verified.code, "keys: 2, each handed over" in verified.out) == (0, True)
    (fleet / "next.pub").write_text(done.json["key"] + "\n")
    assert vedette(fleet, "verify", "--key", "next.pub").code == 1
    proof = vedette(fleet, "ledger", "prove", str(done.json["seq"] + 1))
    (fleet / "entry.json").write_text(proof.out)
    assert vedette(fleet, "verify", "entry.json", "--key", "first.pub").code == 0
    growth = vedette(fleet, "ledger", "prove", "--since", str(done.json["seq"]))
    assert growth.code == 0, growth.err
    (fleet / "growth.json").write_text(growth.out)
    answer = vedette(fleet, "verify", "growth.json", "--key", "first.pub")
    assert (answer.code, "grew to" in answer.out) == (0, True)
    changed = {**json.loads(growth.out), "from": json.loads(growth.out)["to"]}
    (fleet / "growth.json").write_text(json.dumps(changed))
    assert vedette(fleet, "verify", "growth.json", "--key", "first.pub").code == 1
    nothing = vedette(fleet, "ledger", "prove")
    assert (nothing.code, "say what to prove" in nothing.err) == (2, True)


def test_an_archive_by_hand_and_by_declared_retention(fleet: Path) -> None:
    nothing = vedette(fleet, "ledger", "archive", "--reason", "old")
    assert (nothing.code, "how old is old" in nothing.err) == (2, True)
    wrong = vedette(fleet, "ledger", "archive", "--before", "May", "--reason", "old")
    assert (wrong.code, "neither an instant nor" in wrong.err) == (2, True)
    early = vedette(fleet, "ledger", "archive", "--before", "30d", "--reason", "old")
    assert (early.code, "no closed entries from before" in early.out) == (0, True), early.err
    by_id = ("--reason", "old", "--command-id", "a", "--json")
    done = vedette(fleet, "ledger", "archive", "--before", "0s", *by_id)
    assert done.code == 0, done.err
    assert vedette(fleet, "stop", "--all", *by_id).json["already_done"]
    assert done.json["archived"] > 10
    assert Path(done.json["segment"]).is_dir()
    alone = vedette(fleet, "verify")
    assert (alone.code, "archived: entries 1 to" in alone.out) == (0, True), alone.out
    both = vedette(fleet, "verify", "--archive", "state/archive")
    assert (both.code, "archived:" in both.out) == (0, False)
    runs = vedette(fleet, "runs", "--json")
    assert runs.code == 0, runs.err
    answer = vedette(fleet, "explain", runs.json["items"][-1]["id"])
    assert answer.code == 0, answer.err
    assert vedette(fleet, "verify", "decisions").code == 0
    gone = vedette(fleet, "ledger", "prove", "3")
    assert (gone.code, "--archive FOLDER" in gone.err) == (2, True)
    assert vedette(fleet, "ledger", "prove", "3", "--archive", "state/archive").code == 0
    assert vedette(fleet, "verify", done.json["segment"]).code == 0
    text = SETTINGS + '[retention]\nbodies = "5ms"\nentries = "400d"\n'
    (fleet / "vedette.toml").write_text(text)
    kept = vedette(fleet, "ledger", "archive", "--reason", "by the rules", "--json")
    assert kept.code == 0, kept.err
    assert kept.json["erased"] > 0
    (fleet / "vedette.toml").write_text(text.replace('"5ms"', '"401d"'))
    outlives = vedette(fleet, "ledger", "archive", "--reason", "by the rules")
    assert (outlives.code, "outlive" in outlives.err) == (2, True)
