"""Undo: what an effect did is taken back exactly, once, through the gateway; or refused clearly."""

from __future__ import annotations

import asyncio
import gc
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace
from tests.contract.ledger.test_edited_rows import edit

from vedette.domain.action import Proposal
from vedette.domain.agent import undo_source
from vedette.domain.base.canonical import short_id
from vedette.domain.base.clock import LATEST_US
from vedette.domain.base.errors import AlreadyDone, BadCommand, NotFound
from vedette.domain.event import DATA, ENVELOPE, PRINCIPAL, UNDO_ACTION, UNDO_TYPE, Event
from vedette.domain.identity import Principal
from vedette.domain.memory import Briefing
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import ActionRow
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.interfaces.render.explain_text import explain_text
from vedette.ledger.history.explain import explain
from vedette.ledger.history.lists import hold_item
from vedette.ledger.history.series import plot
from vedette.operations.commands import Order
from vedette.testing.faults import run_in_child
from vedette.testing.harness import FleetHarness, checkout, copy_policies, remove_tests
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import wait_until

NEW = "1772331742.M0001.harbour"
FLAGGED = "1772331743.M0002.harbour"
MESSAGE = Ref("/event/subject")
FILE = Proposal(
    "mail.file", {"message": MESSAGE, "folder": Ref("/charter/folders/invoice")}, "a bill"
)
FLAG = Proposal("mail.flag", {"message": MESSAGE, "flag": "important"}, "urgent")


def lay(box: Path) -> Path:
    """Lay out a Maildir with a new mail and one that a person has flagged already."""
    for place in ("new", "cur", "tmp"):
        (box / place).mkdir(parents=True)
    (box / "new" / NEW).write_bytes(b"From: ann@stranger.example\n\nnew\n")
    (box / "cur" / f"{FLAGGED}:2,F").write_bytes(b"From: bob@stranger.example\n\nold\n")
    return box


def files(box: Path) -> list[str]:
    """Return all mails as FOLDER/PLACE/NAME: the name holds the flags."""
    return sorted(
        str(path.relative_to(box))
        for path in box.rglob("*")
        if path.is_file() and path.parent.name in ("new", "cur")
    )


def mail(unique: str, sender: str = "ann@stranger.example") -> Event:
    data = {"from": sender, "subject": "hello", "text": "hello"}
    return Event("maildir:sample", unique, "mail.received", unique, None, data)


def plan(*proposals: Proposal) -> ScriptedReasoner:
    return ScriptedReasoner(
        {"inbox_triage": [ReasonerJudgement(label="invoice", proposals=proposals)]}
    )


def content(folder: Path, agent: str = "inbox_triage", bank: str = "inbox") -> Path:
    """Lay out a fleet of one agent alone, beside the tests' own folders: nobody changes it."""
    root = folder.parent / f"content-{agent}"
    if not root.exists():
        left_out = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(checkout() / "agents" / agent, root / "agents" / agent, ignore=left_out)
        shutil.copytree(checkout() / "memory" / bank, root / "memory" / bank)
        remove_tests(copy_policies(root / "policies"))
    return root


def harness(folder: Path, *proposals: Proposal, policies: Path | None = None) -> FleetHarness:
    return FleetHarness(
        folder,
        content=content(folder),
        reasoners={"judge": plan(*proposals)},
        policies=policies,
        targets={"mailbox": {"kind": "maildir", "path": str(folder / "mail")}},
    )


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[FleetHarness]:
    lay(tmp_path / "mail")
    async with harness(tmp_path, FILE, FLAG) as found:
        yield found


async def done(fleet: FleetHarness, event: Event) -> dict[str, ActionRow]:
    """Let an event be handled; return its actions by tool."""
    await fleet.send(event)
    await fleet.wait_until_idle()
    return {row.tool: row for row in fleet.actions(event)}


async def undo(fleet: FleetHarness, row: ActionRow, reason: str = "wrong folder") -> dict[str, Any]:
    effect = row.id.replace("act_", "eff_")
    answer = await dispatch(fleet.app.commands, "undo", fleet.order(reason), {"effect": effect})
    await fleet.wait_until_idle()
    return answer


def run_of(fleet: FleetHarness, answer: dict[str, Any]) -> list[ActionRow]:
    return list(fleet.app.store.runs.actions(answer["run"]))


async def test_undo_restores_folder_and_flags_exactly(fleet: FleetHarness) -> None:
    box = fleet.folder / "mail"
    before = files(box)
    rows = await done(fleet, mail(NEW))
    assert files(box) == [f".Invoices/cur/{NEW}:2,F", f"cur/{FLAGGED}:2,F"]
    for tool in ("mail.flag", "mail.file"):
        (inverse,) = run_of(fleet, await undo(fleet, rows[tool]))
        assert (inverse.effect, inverse.decided) == ("done", "permit")
    assert files(box) == before


async def test_erasing_the_event_takes_the_undo_and_the_undo_s_undo(fleet: FleetHarness) -> None:
    event = mail(NEW)
    filed = (await done(fleet, event))["mail.file"]
    (back,) = run_of(fleet, await undo(fleet, filed))
    (repeat,) = run_of(fleet, await undo(fleet, back))
    assert [back.effect, repeat.effect] == ["done", "done"]

    def holding() -> list[int]:
        return [
            seq
            for seq, _, _, data in fleet.app.store.ledger.walk()
            if data and NEW.encode() in data
        ]

    assert len(holding()) > 5
    others = {one["event"] for one in fleet.entries("event.accepted")} - {event.key}
    answer = await fleet.app.commands.erase(fleet.order(), event=event.key)
    assert len(answer["erased"]) > 3
    assert holding() == []
    assert [fleet.app.store.runs.event(one) for one in others] == [None, None]
    records = [fleet.app.store.runs.action(row.id) for row in (filed, back, repeat)]
    assert [row.record for row in records if row is not None] == [b"", b"", b""]


async def test_a_flag_that_a_person_had_set_stays_when_the_agent_s_is_taken_back(
    fleet: FleetHarness,
) -> None:
    box = fleet.folder / "mail"
    before = files(box)
    rows = await done(fleet, mail(FLAGGED))
    for tool in ("mail.flag", "mail.file"):
        await undo(fleet, rows[tool])
    assert files(box) == before
    assert f"cur/{FLAGGED}:2,F" in before


async def test_the_inverse_alone_would_not_restore(fleet: FleetHarness) -> None:
    """Negative control: without what the effect found, unflagging takes the person's flag too."""
    from vedette.config.agent_loader import load_module

    tools = load_module(fleet.content / "agents" / "inbox_triage", "tools")
    box = fleet.folder / "mail"
    before = files(box)
    rows = await done(fleet, mail(FLAGGED))
    from vedette.engine.tool_calls import build_call

    row = rows["mail.flag"]
    agent = fleet.app.services.fleet.agents["inbox_triage"]
    (run,) = fleet.runs(mail(FLAGGED))
    event = fleet.app.store.runs.event(run.event)
    assert event is not None
    from vedette.domain.action import Action

    action = Action(
        run.id, 1, 0, agent.tools["mail.unflag"], {"message": FLAGGED, "flag": "important"}, {},
        {}, "", 1000,
    )  # fmt: skip
    target = fleet.targets["mailbox"]
    assert tools.unflag_mail(build_call(action, agent, event, target, 1)).state == "done"
    await undo(fleet, rows["mail.file"])
    assert row.effect == "done"
    assert files(box) != before


async def test_twice_is_one(fleet: FleetHarness) -> None:
    rows = await done(fleet, mail(NEW))
    answer = await undo(fleet, rows["mail.file"])
    with pytest.raises(BadCommand, match=f"undone already, by {answer['run']}"):
        await undo(fleet, rows["mail.file"])
    together = await asyncio.gather(
        *(undo(fleet, rows["mail.flag"]) for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(each, dict) for each in together) == 1
    assert all(isinstance(each, dict | BadCommand) for each in together)
    undone = [row for row in fleet.entries("effect.done") if row["tool"] == "mail.unflag"]
    assert len(undone) == 1


async def test_a_repeat_of_a_command_is_not_done_again_whatever_came_of_it(tmp_path: Path) -> None:
    lay(tmp_path / "mail")
    async with harness(tmp_path, FILE) as fleet:
        rows = await done(fleet, mail(NEW))
        await fleet.apply_policy(stopped("ask")(remove_tests(copy_policies(tmp_path / "ask"))))
        order = replace(fleet.order("wrong folder"), command_id="cmd-1")
        args = {"effect": rows["mail.file"].id.replace("act_", "eff_")}
        first = await dispatch(fleet.app.commands, "undo", order, args)
        await fleet.wait_until_idle()
        (held,) = run_of(fleet, first)
        hold = {"hold": held.id.replace("act_", "hold_"), "digest": fleet.shown_digest(held)}
        await dispatch(fleet.app.commands, "deny", fleet.order("it stays"), hold)
        await fleet.wait_until_idle()
        # Denied, so it may be asked for again: by another order, not by the one that was answered.
        with pytest.raises(AlreadyDone, match="cmd-1"):
            await dispatch(fleet.app.commands, "undo", order, args)
        await fleet.wait_until_idle()
        repeat = replace(order, command_id="cmd-2")
        second = await dispatch(fleet.app.commands, "undo", repeat, args)
        await fleet.wait_until_idle()
        assert second["run"] != first["run"]
        # The id is taken for every other order, too.
        (held,) = run_of(fleet, second)
        hold = {"hold": held.id.replace("act_", "hold_"), "digest": fleet.shown_digest(held)}
        with pytest.raises(AlreadyDone, match="cmd-2"):
            await dispatch(fleet.app.commands, "approve", repeat, hold)


async def test_the_same_command_twice_at_once_is_one(fleet: FleetHarness) -> None:
    rows = await done(fleet, mail(NEW))
    order = replace(fleet.order("wrong folder"), command_id="cmd-1")
    args = {"effect": rows["mail.flag"].id.replace("act_", "eff_")}
    together = await asyncio.gather(
        *(dispatch(fleet.app.commands, "undo", order, args) for _ in range(3)),
        return_exceptions=True,
    )
    assert sum(isinstance(each, dict) for each in together) == 1
    assert sum(isinstance(each, AlreadyDone) for each in together) == 2
    await fleet.wait_until_idle()
    with pytest.raises(AlreadyDone, match="cmd-1"):  # and not: it was undone already
        await dispatch(fleet.app.commands, "undo", order, args)


async def test_whoever_asked_may_go_and_the_undo_is_done(fleet: FleetHarness) -> None:
    rows = await done(fleet, mail(NEW))
    args = {"effect": rows["mail.flag"].id.replace("act_", "eff_")}
    asking = asyncio.create_task(dispatch(fleet.app.commands, "undo", fleet.order("wrong"), args))
    await asyncio.sleep(0)  # it is on its way into the store
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await wait_until(
        lambda: [one["tool"] for one in fleet.entries("effect.done")][-1] == "mail.unflag"
    )


async def test_an_undo_can_itself_be_undone(fleet: FleetHarness) -> None:
    box = fleet.folder / "mail"
    rows = await done(fleet, mail(NEW))
    after = files(box)
    for tool in ("mail.flag", "mail.file"):
        (inverse,) = run_of(fleet, await undo(fleet, rows[tool]))
        (repeat,) = run_of(fleet, await undo(fleet, inverse))
        assert repeat.tool == tool
    assert files(box) == after


async def test_the_ledger_tells_cause_person_and_origins(fleet: FleetHarness) -> None:
    rows = await done(fleet, mail(NEW))
    effect = next(e for e in fleet.entries("effect.done") if e["action"] == rows["mail.file"].id)
    answer = await undo(fleet, rows["mail.file"], "it is a booking")
    accepted = next(e for e in fleet.entries("event.accepted") if e["event"] == answer["event"])
    assert accepted["cause"] == effect["seq"]
    body = fleet.body(accepted["seq"])
    assert body["extensions"][PRINCIPAL] == "person:tester"
    (inverse,) = run_of(fleet, answer)
    story = explain(fleet.app.store, answer["run"])
    arguments = {a["name"]: a for a in story["runs"][0]["actions"][0]["arguments"]}
    assert arguments["message"]["origin"] == "trusted"
    assert arguments["folder"]["origin"] == "trusted"
    # A tool's own word stays what it is.
    assert arguments["was"]["origin"] == "untrusted"
    assert arguments["was"]["value"]["folder"] == "INBOX"
    (first,) = explain(fleet.app.store, rows["mail.file"].run)["runs"]
    (undone,) = [a["undone"] for a in first["actions"] if a["tool"] == "mail.file"]
    assert (undone["run"], undone["state"]) == (answer["run"], "undone")
    lines = [line for _, line in explain_text(explain(fleet.app.store, rows["mail.file"].run))]
    assert f"UNDONE by {answer['run']}" in "\n".join(lines)
    assert inverse.rule == "permit.tool"


async def test_origins_are_not_laundered(tmp_path: Path) -> None:
    """A folder that came out of content is out of content when it is taken back, too."""
    lay(tmp_path / "mail")
    content = {"message": MESSAGE, "folder": Ref("/event/data/subject")}
    sinks = (
        "tools:\n"
        "  mail.file:\n"
        "    /message: {accepts: [trusted], otherwise: deny}\n"
        "    /folder: {accepts: [trusted, untrusted], otherwise: deny}\n"
        "  mail.unfile:\n"
        "    /message: {accepts: [trusted], otherwise: deny}\n"
        "    /folder: {accepts: [trusted], otherwise: deny}\n"
        "complete: true\n"
    )
    policies = remove_tests(copy_policies(tmp_path / "p", {"sinks/data.yaml": sinks}))
    async with harness(tmp_path, Proposal("mail.file", content), policies=policies) as fleet:
        rows = await done(fleet, mail(NEW))
        assert rows["mail.file"].effect == "done"
        (inverse,) = run_of(fleet, await undo(fleet, rows["mail.file"]))
        assert (inverse.decided, inverse.rule) == ("deny", "origins.untrusted")
        assert f".hello/new/{NEW}" in files(tmp_path / "mail")


async def test_the_judge_neither_sees_an_undo_nor_learns_of_it(fleet: FleetHarness) -> None:
    rows = await done(fleet, mail(NEW))
    answer = await undo(fleet, rows["mail.file"])
    reasoner: Any = fleet.app.services.reasoners["judge"]
    assert [briefing.event.type for briefing in reasoner.briefings] == ["mail.received"]
    run = fleet.app.store.runs.run(answer["run"])
    assert run is not None
    assert not run.observed
    assert run.key == NEW


async def test_it_wakes_the_effect_s_agent_alone_and_nobody_else_can_send_it(
    fleet: FleetHarness,
) -> None:
    rows = await done(fleet, mail(NEW))
    source = undo_source("harbour", "inbox_triage")
    data = {"action": rows["mail.file"].id, "key": NEW, "cause": 1, "inverse": "mail.unfile"}
    forged = Event(source, rows["mail.file"].id, UNDO_TYPE, None, None, data, vouched=ENVELOPE)
    (receipt,) = await fleet.app.intake.accept([forged])
    assert receipt.runs == ()
    made = replace(forged, type="mail.received", id="2", vouched=ENVELOPE | {DATA, UNDO_ACTION})
    (receipt,) = await fleet.app.intake.accept([made])
    stored = fleet.app.store.runs.event(short_id("evt", source, "2"))
    assert stored is not None
    assert stored.vouched == ENVELOPE
    with pytest.raises(BadCommand, match="the engine's own"):
        await dispatch(
            fleet.app.commands, "send", fleet.order(),
            {"events": [{"specversion": "1.0", "id": "1", "source": "x", "type": UNDO_TYPE}]},
        )  # fmt: skip


def stopped(mode: str) -> Callable[[Path], Path]:
    def changed(to: Path) -> Path:
        text = (to / "grants/data.yaml").read_text(encoding="utf-8")
        head, name, rest = text.partition("inbox_triage:\n  mode: act")
        assert name
        (to / "grants/data.yaml").write_text(head + f"inbox_triage:\n  mode: {mode}" + rest)
        return to

    return changed


async def test_under_observe_it_is_a_would_and_under_ask_it_waits(tmp_path: Path) -> None:
    box = lay(tmp_path / "mail")
    async with harness(tmp_path, FILE) as fleet:
        rows = await done(fleet, mail(NEW))
        after = files(box)
        for mode, outcome in (("observe", "deny"), ("ask", "hold")):
            policies = stopped(mode)(remove_tests(copy_policies(tmp_path / mode)))
            await fleet.apply_policy(policies)
            answer = await undo(fleet, rows["mail.file"])
            (inverse,) = run_of(fleet, answer)
            assert (inverse.decided, inverse.rule) == (outcome, f"mode.{mode}")
            assert files(box) == after
        # What observe came to nothing with is no reason not to ask again; a hold is.
        with pytest.raises(BadCommand, match="is being undone already"):
            await undo(fleet, rows["mail.file"])
        # Who approves it sees who asked for it, and why.
        about = hold_item(fleet.app.store, inverse, 0)["about"]
        answer = {name: about[name]["value"] for name in ("who", "title", "text")}
        assert answer == {"who": "person:tester", "title": "mail.unfile", "text": "wrong folder"}
        assert about["who"]["trusted"]
        await fleet.approve(inverse)
        await fleet.wait_until_idle()
        assert files(box) == [f"cur/{FLAGGED}:2,F", f"new/{NEW}"]


async def test_a_stopped_agent_s_undo_waits(fleet: FleetHarness) -> None:
    rows = await done(fleet, mail(NEW))
    await fleet.app.commands.stop(fleet.order(), agent="inbox_triage")
    answer = await undo(fleet, rows["mail.file"])
    assert not run_of(fleet, answer)
    await fleet.app.commands.resume(fleet.order(), agent="inbox_triage")
    await fleet.wait_until_idle()
    assert [row.effect for row in run_of(fleet, answer)] == ["done"]


async def test_what_cannot_be_undone_is_refused_and_says_why(tmp_path: Path) -> None:
    lay(tmp_path / "mail")
    draft = {"message": MESSAGE, "to": Ref("/event/data/from"), "subject": "s", "body": "b"}
    send = {**draft, "to": Ref("/registry/contacts/counsel")}
    proposals = (
        Proposal("mail.draft", draft), Proposal("mail.send", send),
        Proposal("mail.forward", {"message": MESSAGE, "to": Ref("/event/data/from"), "note": "n"}),
        Proposal("mail.file", {"message": MESSAGE, "folder": "Invoices"}, confidence=0.1),
        FILE,
    )  # fmt: skip
    async with harness(tmp_path, *proposals) as fleet:
        await fleet.send(mail(NEW))
        await fleet.wait_until_idle()
        drafted, held, denied, unsure, filed = fleet.actions(mail(NEW))
        for row, why in (
            (drafted, "mail.draft declares no inverse"),
            (held, "is held: nothing to undo"),
            (denied, "is denied: nothing to undo"),
            (unsure, "is held: nothing to undo"),
        ):
            with pytest.raises(BadCommand, match=why):
                await undo(fleet, row)
        with pytest.raises(NotFound, match="no effect 'eff_nothing'"):
            await dispatch(fleet.app.commands, "undo", fleet.order(), {"effect": "eff_nothing"})
        viewer = Principal("person", "eve", frozenset({"viewer"}))
        with pytest.raises(BadCommand, match="undo needs operator"):
            await dispatch(fleet.app.commands, "undo", Order(viewer, "why"), {"effect": filed.id})
        for row in (held, unsure):
            await fleet.app.commands.deny(fleet.order(), row.id)
        await fleet.wait_until_idle()
        await fleet.app.commands.erase(fleet.order(), event=mail(NEW).key)
        with pytest.raises(BadCommand, match="was erased"):
            await undo(fleet, filed)


async def test_what_is_erased_while_its_undo_is_accepted_leaves_no_copy(
    fleet: FleetHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = mail(NEW)
    filed = (await done(fleet, event))["mail.file"]
    store: Any = fleet.app.store
    submit = store.writer.submit

    async def submit_later(work: Any, **more: Any) -> Any:
        monkeypatch.setattr(store.writer, "submit", submit)
        await fleet.app.commands.erase(fleet.order(), event=event.key)
        return await submit(work, **more)

    monkeypatch.setattr(store.writer, "submit", submit_later)
    with pytest.raises(BadCommand, match="was erased, and with it what to take back"):
        await undo(fleet, filed)
    assert [seq for seq, _, _, body in store.ledger.walk() if body and NEW.encode() in body] == []
    assert [e["kind"] for e in fleet.entries()][-1] == "body.erased"


# --- killed in between ------------------------------------------------------------------------


async def file_it(folder: Path) -> None:
    async with harness(folder, FILE, FLAG) as fleet:
        await done(fleet, mail(NEW))


async def take_back(folder: Path) -> None:
    """Take both effects back: whatever of that was not ordered yet."""
    async with harness(folder, FILE, FLAG) as fleet:
        await fleet.wait_until_idle()
        for row in reversed(fleet.actions(mail(NEW))):
            try:
                await undo(fleet, row)
            except BadCommand as error:
                if "already" not in error.what:
                    raise


@pytest.mark.forks
@pytest.mark.timeout(200)
def test_killed_at_every_point_of_an_undo_the_mailbox_is_as_it_was(tmp_path: Path) -> None:
    before = files(lay(tmp_path / "mail"))
    asyncio.run(file_it(tmp_path))
    assert files(tmp_path / "mail") != before
    gc.collect()

    def another(name: str) -> Path:
        # The targets of the copy are its own: the harness makes them of the folder.
        to = tmp_path.parent / f"{tmp_path.name}-{name}"
        return Path(shutil.copytree(tmp_path, to))

    calm = another("calm")
    ended = run_in_child(lambda: asyncio.run(take_back(calm)))
    assert not ended.error, ended.error
    assert files(calm / "mail") == before
    assert {"call:before", "call:after", "commit:before", "commit:mid"} <= set(ended.points)
    # Around the call itself, and among the commits before and after it.
    last_points = [ended.passes * part // 8 for part in (5, 7)]
    points = [point for point in ended.points if point.startswith("call:")]
    schedules: list[int | str] = [*points, *last_points]
    for at in schedules:
        left = another(f"k{at}".replace(":", "-"))
        died = run_in_child(lambda: asyncio.run(take_back(left)), die_at=at)  # noqa: B023
        assert died.killed, died
        ended = run_in_child(lambda: asyncio.run(take_back(left)))  # noqa: B023
        assert not ended.error, ended.error
        assert files(left / "mail") == before, f"killed at {at} ({died.last_point})"


# --- the fleet's own rows ---------------------------------------------------------------------


async def test_an_incident_is_withdrawn_as_if_it_had_not_been_opened(tmp_path: Path) -> None:
    opening = {
        "series": MESSAGE, "score": "9.1", "value": "50", "at": "2026-05-01", "summary": "s",
    }  # fmt: skip
    closing = {name: opening[name] for name in ("series", "score", "value", "at")}

    def judged(briefing: Briefing) -> ReasonerJudgement:
        close = briefing.event.id == "2"
        tool, args = ("incident.close", closing) if close else ("incident.open", opening)
        return ReasonerJudgement(proposals=(Proposal(tool, args),))

    root = content(tmp_path, "anomaly_detection", "operations")
    async with FleetHarness(
        tmp_path, content=root, reasoners={"judge": ScriptedReasoner([judged])}
    ) as fleet:
        rows = []
        for number in ("1", "2", "3"):
            point = Event("csv:pump", number, "metric.point", "pump", None, {"value": 3})
            (row,) = (await done(fleet, point)).values()
            rows.append((row, fleet.app.services.keys.row("incidents", "pump")))
        first, (_, closed), (third, opened) = rows[0][0], rows[1], rows[2]
        assert (closed["state"], opened["state"]) == ("closed", "open")
        # Another was opened since: taking the first back would lose that one.
        (refused,) = run_of(fleet, await undo(fleet, first))
        assert refused.effect == "failed"
        assert fleet.app.services.keys.row("incidents", "pump") == opened
        assert len(plot(fleet.app.store.ledger, "pump", 0, LATEST_US)["incidents"]) == 2
        (withdrawn,) = run_of(fleet, await undo(fleet, third))
        assert (withdrawn.tool, withdrawn.effect) == ("incident.withdraw", "done")
        series = plot(fleet.app.store.ledger, "pump", 0, LATEST_US)
        assert [one["opened_by"] for one in series["incidents"]] == [first.run]
        assert series["recorded"] == 3
        assert fleet.app.services.keys.row("incidents", "pump") == closed
        assert fleet.app.store.runs.row("incidents", "pump") == closed
        # What failed came to nothing, so it may be asked for again: now it is the one there.
        (repeat,) = run_of(fleet, await undo(fleet, first))
        assert repeat.effect == "done"
        assert fleet.app.store.runs.row("incidents", "pump") in (None, {})


@pytest.mark.parametrize("column", ["record", "origins", "answer", "obliges"])
async def test_what_somebody_wrote_into_the_row_is_not_undone(tmp_path: Path, column: str) -> None:
    """The inverse is made of the row: another message in it, or an origin, was taken as decided."""
    lay(tmp_path / "mail")
    async with harness(tmp_path, FILE, FLAG) as fleet:
        row = (await done(fleet, mail(NEW)))["mail.file"]
        before = files(tmp_path / "mail")
        record, answer = orjson.loads(row.record), orjson.loads(row.answer or b"")
        if column == "record":
            record["args"]["message"] = FLAGGED
        elif column == "origins":
            record["origins"] = dict.fromkeys(record["origins"], "derived")
        elif column == "answer":
            answer["data"] |= {"was": "elsewhere"}
        forged = {
            "record": orjson.dumps(record), "answer": orjson.dumps(answer),
            "obliges": f"{row.obliges},verify" if column == "obliges" else row.obliges,
        }  # fmt: skip
        sql = "UPDATE action SET record=?, answer=?, obliges=? WHERE id=?"
        assert edit(fleet, sql, *forged.values(), row.id) == 1
        with pytest.raises(BadCommand, match="not what the ledger says"):
            await undo(fleet, row)
        assert files(tmp_path / "mail") == before
        assert fleet.app.metrics.total("rows_refused", agent="inbox_triage", what="row") == 1
        # The control: as it was, it is taken back.
        assert edit(fleet, sql, row.record, row.answer, row.obliges, row.id) == 1
        (inverse,) = run_of(fleet, await undo(fleet, row))
        assert inverse.effect == "done"
