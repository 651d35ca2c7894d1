"""What undos count as: no agreement, but disagreement; and an unknown one is not done again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.operations.test_undo import (
    FILE,
    NEW,
    done,
    files,
    harness,
    lay,
    mail,
    run_of,
    undo,
)

from vedette.domain.base.errors import BadCommand
from vedette.domain.run import ActionRow
from vedette.engine.scheduler.failure_policy import dead_letter
from vedette.interfaces.render.explain_text import explain_text
from vedette.ledger.history.explain import explain
from vedette.ledger.history.report import report
from vedette.testing.harness import FleetHarness, copy_policies, remove_tests

AGENT = "inbox_triage"
FOREVER = 10**16


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[FleetHarness]:
    """A fleet whose agent asks about everything, the undos too."""
    lay(tmp_path / "mail")
    policies = remove_tests(copy_policies(tmp_path / "policies"))
    grants = policies / "grants/data.yaml"
    head, name, rest = grants.read_text("utf-8").partition(f"{AGENT}:\n  mode: act")
    assert name
    grants.write_text(f"{head}{AGENT}:\n  mode: ask{rest}", "utf-8")
    async with harness(tmp_path, FILE, policies=policies) as found:
        yield found


async def approve(fleet: FleetHarness, row: ActionRow) -> ActionRow:
    await fleet.approve(row, "as asked")
    await fleet.wait_until_idle()
    found = fleet.app.store.runs.action(row.id)
    assert found is not None
    return found


def counts_of(fleet: FleetHarness, since_us: int = 0) -> dict[str, Any]:
    (found,) = report(fleet.app.store, since_us, FOREVER, agent=AGENT)["would"]
    return dict(found)


async def test_an_undo_is_no_agreement_but_a_no_to_what_it_took_back(
    asking: FleetHarness,
) -> None:
    row = (await done(asking, mail(NEW)))["mail.file"]
    filed = await approve(asking, row)
    before = counts_of(asking)
    assert (before["reviewed"], before["agreed"], before["actions"]) == (1, 1, 1)

    (inverse,) = run_of(asking, await undo(asking, filed))
    # Asked for and not done yet: the effect stands, and so does the yes to it.
    assert (counts_of(asking)["reviewed"], counts_of(asking)["agreed"]) == (1, 1)
    inverse_row = await approve(asking, inverse)
    assert inverse_row.effect == "done"
    after = counts_of(asking)
    assert (after["reviewed"], after["agreed"], after["actions"]) == (1, 0, 1)
    assert list(after["tools"]) == ["mail.file"]
    assert list(after["labels"]) == ["invoice"]
    assert after["disagreed"] == {"invoice": 1}
    assert after["by_correction"] == 0

    # The same from the middle on, where effect and undo began before the window.
    (answer,) = [e for e in asking.entries("hold.approved") if e["action"] == inverse.id]
    last_counts = counts_of(asking, answer["at"])
    assert (last_counts["reviewed"], last_counts["agreed"], last_counts["actions"]) == (1, 0, 0)

    # To take the undo back is to agree with the effect after all.
    (repeat,) = run_of(asking, await undo(asking, inverse_row))
    assert (await approve(asking, repeat)).effect == "done"
    last = counts_of(asking)
    assert (last["reviewed"], last["agreed"], last["actions"]) == (1, 1, 1)


async def test_an_undo_that_nobody_knows_of_is_not_done_a_second_time(tmp_path: Path) -> None:
    box = lay(tmp_path / "mail")
    async with harness(tmp_path, FILE) as fleet:
        row = (await done(fleet, mail(NEW)))["mail.file"]
        # The target is broken for a while: the call is tried, and waits.
        new = box / "new"
        new.rename(box / "away")
        new.write_text("in the way")
        first = await undo(fleet, row)
        run = fleet.app.store.runs.run(first["run"])
        assert run is not None
        assert run.state == "waiting"
        epoch = fleet.app.store.cluster.lease_epoch(run)
        assert epoch is not None
        await dead_letter(fleet.app.services, run, epoch, "Test: buried by hand")
        fleet.app.services.parked_runs.unpark(run)
        (inverse,) = run_of(fleet, first)
        assert inverse.effect == "unknown"
        await fleet.app.commands.drop(fleet.order("of no use"), [run.id])
        new.unlink()
        (box / "away").rename(new)
        stands = files(box)
        with pytest.raises(BadCommand, match=f"nobody knows whether .* by {run.id}; look at its"):
            await undo(fleet, row)
        assert files(box) == stands
        lines = [line for _, line in explain_text(explain(fleet.app.store, row.run))]
        shown = " ".join(" ".join(lines).replace("│", "").split())
        assert f"UNDONE OR NOT, nobody knows; look at its target: {run.id}" in shown
