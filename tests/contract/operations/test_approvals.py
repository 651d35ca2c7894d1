"""Answering holds: alike ones together, each for its digest; claims, notes; who answered how."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.operations.test_undo import content, lay, mail

from vedette.domain.action import Proposal
from vedette.domain.base.errors import BadCommand, Forbidden, NotFound
from vedette.domain.event import Event
from vedette.domain.identity import Principal
from vedette.domain.memory import Briefing
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.interfaces.cli.hold_text import fold_lines, group_lines, hold_lines, safe_json
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.ledger.history.hold_groups import list_hold_groups, show_hold_group
from vedette.ledger.history.lists import hold_item
from vedette.ledger.history.report import report
from vedette.operations.approvals import CLAIM_US, MAX_HOLDS
from vedette.operations.commands import Order
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner

ANN = Principal("person", "ann", frozenset({"approver"}))
BOB = Principal("person", "bob", frozenset({"approver"}))


def judged(briefing: Briefing) -> ReasonerJudgement:
    """Judge a mail by the first letter of its name: i is an invoice, b a booking."""
    label = {"i": "invoice", "b": "booking"}[str(briefing.event.subject)[0]]
    args = {"message": Ref("/event/subject"), "folder": Ref(f"/charter/folders/{label}")}
    return ReasonerJudgement(label=label, proposals=(Proposal("mail.file", args, "unsure", 0.1),))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def fleet(tmp_path: Path, clock: ManualClock) -> AsyncIterator[FleetHarness]:
    lay(tmp_path / "mail")
    for name in ("i1", "i2", "i3", "b1"):
        (tmp_path / "mail" / "new" / name).write_bytes(b"From: a@b.example\n\nx\n")
    reasoner = ScriptedReasoner({"inbox_triage": [judged]})
    targets = {"mailbox": {"kind": "maildir", "path": str(tmp_path / "mail")}}
    async with FleetHarness(
        tmp_path, content=content(tmp_path), reasoners={"judge": reasoner}, targets=targets,
        clock=clock,
    ) as found:  # fmt: skip
        await found.send(*(mail(name) for name in ("i1", "i2", "b1")))
        await found.wait_until_idle()
        yield found


def now(fleet: FleetHarness) -> int:
    return fleet.app.services.clock.now_us()


async def give(
    fleet: FleetHarness, verb: str, args: dict[str, Any], who: Principal = ANN, id: str = ""
) -> dict[str, Any]:
    order = Order(who, "because", id or None)
    done = await dispatch(fleet.app.commands, verb, order, args)
    await fleet.wait_until_idle()
    return done


def hold_of(fleet: FleetHarness, event: Event) -> str:
    (row,) = fleet.actions(event)
    return row.id.replace("act_", "hold_")


def seen(fleet: FleetHarness, event: Event) -> dict[str, str]:
    """Return what an approval of the event's hold names: the hold, and what was shown of it."""
    (row,) = fleet.actions(event)
    return {"hold": hold_of(fleet, event), "digest": fleet.shown_digest(row)}


async def test_holds_that_are_alike_are_one_group(fleet: FleetHarness) -> None:
    found = list_hold_groups(fleet.app.store, now(fleet))
    assert [(each["label"], each["count"]) for each in found["items"]] == [
        ("invoice", 2), ("booking", 1),
    ]  # fmt: skip
    first = found["items"][0]
    assert first["same"] == {"folder": "Invoices"}
    assert first["differ"] == {"message": {"values": ["i1", "i2"], "different": 2}}
    assert set(first["holds"]) == {hold_of(fleet, mail(name)) for name in ("i1", "i2")}
    lines = group_lines(first)
    assert all(len(line) <= 80 for line in lines)
    assert 'message differs: "i1", "i2"' in "\n".join(lines)
    with pytest.raises(NotFound, match="no group of open holds"):
        show_hold_group(fleet.app.store, now(fleet), "grp_ffff")


async def test_a_group_is_answered_over_exactly_what_was_shown(fleet: FleetHarness) -> None:
    shown = list_hold_groups(fleet.app.store, now(fleet))["items"][0]
    # One more joins after the group was shown.
    await fleet.send(mail("i3"))
    await fleet.wait_until_idle()
    done = await give(fleet, "approve_group", {"holds": shown["holds"], "group": shown["group"]})
    assert (done["answered"], done["refused"]) == (2, 0)
    states = {name: fleet.actions(mail(name))[0] for name in ("i1", "i2", "i3", "b1")}
    assert {name: row.effect for name, row in states.items()} == {
        "i1": "done", "i2": "done", "i3": None, "b1": None,
    }  # fmt: skip
    assert states["i3"].hold == "open"
    left = show_hold_group(fleet.app.store, now(fleet), shown["group"])
    assert list(left["holds"]) == [hold_of(fleet, mail("i3"))]
    # Each was approved alone, for its own digest, and is used up.
    entries = fleet.entries("hold.approved")
    assert {entry["shown_digest"] for entry in entries} == set(shown["holds"].values())
    repeat = await give(fleet, "approve_group", {"holds": shown["holds"]})
    assert (repeat["answered"], repeat["refused"]) == (0, 2)
    assert len(fleet.entries("effect.done")) == 2


async def test_an_action_that_is_another_by_now_is_not_touched(fleet: FleetHarness) -> None:
    shown = list_hold_groups(fleet.app.store, now(fleet))["items"][0]["holds"]
    first, second = shown
    changed = {first: shown[first], second: "0" * 64}
    done = await give(fleet, "approve_group", {"holds": changed})
    assert [result["refused"] is None for result in done["results"]] == [True, False]
    assert "is not what was shown" in done["results"][1]["refused"]
    assert [row.hold for row in fleet.actions(mail("i2"))] == ["open"]


async def test_a_repeat_of_the_command_answers_what_was_left(fleet: FleetHarness) -> None:
    """As after a kill in between: some are answered, and the same command comes again."""
    shown = list_hold_groups(fleet.app.store, now(fleet))["items"][0]["holds"]
    first = dict(list(shown.items())[:1])
    await give(fleet, "deny_group", {"holds": first}, id="c1")
    done = await give(fleet, "deny_group", {"holds": shown}, id="c1")
    assert [(r["state"], r["refused"]) for r in done["results"]] == [("denied", None)] * 2
    assert len(fleet.entries("hold.denied")) == 2


async def test_a_list_without_digests_or_too_long_is_refused(fleet: FleetHarness) -> None:
    many = {f"hold_{number}": "d" for number in range(MAX_HOLDS + 1)}
    for holds in ({}, many, {"hold_1": ""}, {"hold_1": None}):
        with pytest.raises(BadCommand):
            await give(fleet, "approve_group", {"holds": holds})
    viewer = Principal("person", "eve", frozenset({"viewer"}))
    for verb, args in (
        ("approve_group", {"holds": {"hold_1": "d" * 8}}), ("claim", {"hold": "hold_1"}),
        ("note", {"hold": "hold_1", "text": "x"}),
    ):  # fmt: skip
        with pytest.raises(Forbidden, match="needs approver"):
            await give(fleet, verb, args, viewer)


async def test_a_claim_is_shown_for_half_an_hour_and_keeps_nobody_out(
    fleet: FleetHarness,
) -> None:
    hold = hold_of(fleet, mail("i1"))
    (row,) = fleet.actions(mail("i1"))
    await give(fleet, "claim", {"hold": hold})
    item = hold_item(fleet.app.store, row, now(fleet))
    assert item["claim"]["by"] == "person:ann"
    assert hold_item(fleet.app.store, row, now(fleet) + CLAIM_US)["claim"] is None
    claim = await give(fleet, "claim", {"hold": hold}, BOB)
    assert claim["was"] == "person:ann"
    mine = await give(fleet, "approve", {"hold": hold, "digest": fleet.shown_digest(row)}, BOB)
    assert mine["claimed_by"] is None
    other = hold_of(fleet, mail("i2"))
    await give(fleet, "claim", {"hold": other})
    done = await give(fleet, "deny", {"hold": other}, BOB)
    assert (done["state"], done["claimed_by"]) == ("denied", "person:ann")
    with pytest.raises(BadCommand, match="is used already"):
        await give(fleet, "claim", {"hold": hold})


async def test_a_note_is_kept_shown_and_erased_with_what_it_is_about(
    fleet: FleetHarness,
) -> None:
    hold = hold_of(fleet, mail("i1"))
    (row,) = fleet.actions(mail("i1"))
    await give(fleet, "note", {"hold": hold, "text": "asked \x1b[31mCem\u202e"})
    item = hold_item(fleet.app.store, row, now(fleet))
    assert [(note["by"], note["text"]) for note in item["notes"]] == [
        ("person:ann", "asked \x1b[31mCem\u202e")
    ]
    text = "\n".join(hold_lines(item))
    assert "asked \\u001b[31mCem\\u202e" in text
    assert "\x1b" not in text
    for wrong in ("", "x" * 3000):
        with pytest.raises(BadCommand, match="a note has"):
            await give(fleet, "note", {"hold": hold, "text": wrong})
    await give(fleet, "deny", {"hold": hold})
    await fleet.app.commands.erase(fleet.order(), event=mail("i1").key)
    (row,) = fleet.actions(mail("i1"))
    (note,) = hold_item(fleet.app.store, row, now(fleet))["notes"]
    assert (note["text"], note["erased"]) == (None, True)


async def test_what_is_shown_before_an_approval_is_whole_and_safe(fleet: FleetHarness) -> None:
    (row,) = fleet.actions(mail("i1"))
    item = hold_item(fleet.app.store, row, now(fleet))
    text = "\n".join(hold_lines(item))
    for part in (
        'folder = "Invoices"', "trusted, from /charter/folders/invoice; decides who",
        'message = "i1"', "trusted, from /event/subject", "mailbox mailbox: move",
        "undo      mail.unfile", "confidence.low", "expires",
    ):  # fmt: skip
        assert part in text, part
    long = "so long " * 200 + "\x1b]8;;http://evil\x07\u202eend"
    shown = fold_lines([f"  body = {safe_json(long)}"])
    assert all(len(line) <= 80 for line in shown)
    whole = shown[0] + "".join(line[6:] for line in shown[1:])
    assert json.loads(whole.removeprefix("  body = ")) == long
    assert whole.isprintable()


async def test_the_report_tells_who_answered_and_how_fast(
    fleet: FleetHarness, clock: ManualClock
) -> None:
    start = now(fleet)
    await give(fleet, "deny", {"hold": hold_of(fleet, mail("i1"))})
    clock.advance(60_000_000)
    await give(fleet, "approve", seen(fleet, mail("i2")))
    await give(fleet, "approve", seen(fleet, mail("b1")), BOB)
    result = report(fleet.app.store, start, now(fleet) + 1)["answered"]
    assert result == [
        {
            "by": "person:ann", "answered": 2, "approved": 1, "denied": 1, "share_approved": 500,
            "median_us": 0, "fast": 1,
        },
        {
            "by": "person:bob", "answered": 1, "approved": 1, "denied": 0, "share_approved": 1000,
            "median_us": 60_000_000, "fast": 0,
        },
    ]  # fmt: skip
    # A hold that was opened before the window is timed from its opening all the same.
    later = report(fleet.app.store, start + 1, now(fleet) + 1)["answered"]
    assert [one["median_us"] for one in later] == [60_000_000, 60_000_000]


async def test_a_group_does_not_join_what_differs_where_it_matters(fleet: FleetHarness) -> None:
    """Negative control: another folder, label or rule is another question."""
    from vedette.ledger.history.hold_groups import hold_group_id

    (row,) = fleet.actions(mail("i1"))
    item = hold_item(fleet.app.store, row, now(fleet))
    assert hold_group_id({**item, "why": "other", "hold": "hold_2"}) == hold_group_id(item)
    for name, value in (
        ("agent", "a"), ("tool", "t"), ("rule", "impact.high"), ("label", "booking"),
    ):  # fmt: skip
        assert hold_group_id({**item, name: value}) != hold_group_id(item)
    folder = [a for a in item["arguments"] if a["name"] == "folder"]
    variants = [replace_value(a, "Junk") if a in folder else a for a in item["arguments"]]
    assert hold_group_id({**item, "arguments": variants}) != hold_group_id(item)


def replace_value(argument: dict[str, Any], value: str) -> dict[str, Any]:
    return {**argument, "value": value}
