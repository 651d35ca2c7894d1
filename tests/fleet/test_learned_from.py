"""What came of a person is found, whoever promoted it, and nothing of anybody else's is."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fleet.test_learning import learned
from tests.fleet.test_unlearning import clock, fleet, labelled, let_go, states

from vedette.domain.base.errors import NotFound
from vedette.domain.identity import Principal
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.memory.lineage import find_learned
from vedette.operations.commands import Order
from vedette.testing.harness import FleetHarness

__all__ = ["clock", "fleet"]


async def give(fleet: FleetHarness, who: str, verb: str, **args: Any) -> dict[str, Any]:
    by = Order(Principal.owner(who), "because", f"{who}-{verb}-{sorted(args.items())}")
    answer = await dispatch(fleet.app.commands, verb, by, args)
    await fleet.wait_until_idle()
    return answer


async def proposed(fleet: FleetHarness, who: str, text: str, promoted_by: str) -> str:
    given = {"into": "inbox/inbox", "text": text, "kind": "fact"}
    id = str((await give(fleet, who, "memory_propose", **given))["candidate"])
    await give(fleet, promoted_by, "memory_approve", id=id)
    return id


async def corrected(fleet: FleetHarness, who: str, name: str, should: str) -> str:
    """Have somebody correct a mail; return the candidate that the curator makes of it."""
    known = {one["id"] for one in await learned(fleet)}
    run = (
        fleet.app.store.runs.run(name)
        if name.startswith("run_")
        else await labelled(fleet, name, f"mail {name}")
    )
    assert run is not None
    await give(fleet, who, "correct", run=run.id, should=should, new_label=True)
    (id,) = {one["id"] for one in await learned(fleet)} - known
    return str(id)


def of(fleet: FleetHarness, person: str) -> set[str]:
    found = find_learned(fleet.app.store, fleet.app.services.fleet.agents, f"person:{person}")
    return {one.id for one in found}


async def test_what_a_person_proposed_stays_theirs_whoever_promotes_it(
    fleet: FleetHarness,
) -> None:
    hers = await proposed(fleet, "ada", "moorings are free", promoted_by="bob")
    his = await proposed(fleet, "bob", "the pier is shut", promoted_by="carol")
    await give(fleet, "root", "memory_off", source="person:ada")
    assert await states(fleet) == {hers: "off", his: "active"}
    # Not even somebody's bringing it back makes it another's.
    await give(fleet, "bob", "memory_on", id=hers)
    assert of(fleet, "ada") == {hers}
    await fleet.restart()
    assert (of(fleet, "ada"), of(fleet, "carol")) == ({hers}, {his})
    await let_go(fleet, fleet.folder / "archive")
    assert (of(fleet, "ada"), of(fleet, "carol")) == ({hers}, {his})


async def test_what_came_of_a_person_s_corrections_is_taken_back_and_nobody_else_s(
    fleet: FleetHarness,
) -> None:
    hers = await corrected(fleet, "ada", "1", "legal")
    await give(fleet, "bob", "memory_approve", id=hers)
    waits = await corrected(fleet, "ada", "2", "legal")
    # Of the same mail, and right: what ada said of it does not make it hers.
    (run,) = (one["evidence"][0] for one in await learned(fleet) if one["id"] == hers)
    his = await corrected(fleet, "bob", str(run), "booking")
    await give(fleet, "carol", "memory_approve", id=his)
    await give(fleet, "root", "memory_off", source="person:ada")
    assert await states(fleet) == {hers: "off", waits: "rejected", his: "active"}


async def test_what_a_person_had_recalled_counts_as_theirs(fleet: FleetHarness) -> None:
    promoted = await proposed(fleet, "bob", "moorings are free", promoted_by="ada")
    back = await proposed(fleet, "bob", "the pier is shut", promoted_by="carol")
    await proposed(fleet, "bob", "the crane is mended", promoted_by="carol")
    await give(fleet, "carol", "memory_off", id=back)
    await give(fleet, "ada", "memory_on", id=back)
    assert of(fleet, "ada") == {promoted, back}


async def test_who_never_said_anything_is_no_source(fleet: FleetHarness) -> None:
    await proposed(fleet, "ada", "moorings are free", promoted_by="bob")
    # A name with a slip in it must not look as if there had been nothing to take back.
    with pytest.raises(NotFound, match="nothing was learned from 'person:aba'"):
        await give(fleet, "root", "memory_off", source="person:aba")
