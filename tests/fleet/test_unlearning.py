"""What was learned can be taken back and erased for good: by its entry, by age, out of an archive.

A fleet whose judges are scripted: the mailbox's agent labels, the curator makes of a correction
exactly what it saw.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace
from tests.broken_disk import broken_disk
from tests.fleet.test_learning import content, learned, order
from tests.segments import is_in

from vedette.adapters.ledger_export import write_segment
from vedette.adapters.reasoners.adk.conversation import compose_prompt
from vedette.adapters.reasoners.adk.wire import Speaker
from vedette.adapters.signing_keys import format_verifier_key, open_ledger_key
from vedette.domain.action import Proposal
from vedette.domain.base import failpoint
from vedette.domain.base.errors import AlreadyDone, BadCommand, NotFound, StoreFailed, VedetteError
from vedette.domain.event import Event
from vedette.domain.memory import Briefing, Candidate
from vedette.domain.model_turn import ModelTurn
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import Run
from vedette.interfaces.daemon import Daemon
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import wait_until

DAY = 86_400_000_000
NOW = 1_780_000_000_000_000
PHRASE = "the squeaking fender of pontoon Zephyr"
HAND = "a fact that somebody typed with a telephone number in it"


def who(name: str) -> str:
    return f"guest-{name}@stranger.example"


def mail(name: str, text: str = "hello") -> Event:
    data = {"from": who(name), "subject": "The fender", "text": text, "list": False}
    return Event("maildir:test", name, "mail.received", name, None, data)


def curates(briefing: Briefing) -> ReasonerJudgement:
    data = briefing.event.data
    saw = data["saw"]["data"]
    text = saw.get("text") or saw["saw"]["data"]["text"]
    example = Candidate(
        "inbox", "inbox", text, kind="example", label=str(data["should"]),
        evidence=(str(data["run"]), str(data["event"])),
    )  # fmt: skip
    return ReasonerJudgement(label="proposed", candidates=(example,))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


def desk(folder: Path, clock: ManualClock) -> FleetHarness:
    script = {
        "inbox_triage": [lambda _: ReasonerJudgement(label="question")],
        "memory_curator": [curates],
    }
    agents = content(folder, "inbox_triage", "memory_curator")
    reasoners = {"judge": ScriptedReasoner(script)}
    return FleetHarness(folder, content=agents, reasoners=reasoners, clock=clock)


@pytest.fixture
async def fleet(tmp_path: Path, clock: ManualClock) -> AsyncIterator[FleetHarness]:
    async with desk(tmp_path, clock) as found:
        yield found


async def labelled(fleet: FleetHarness, name: str, text: str) -> Run:
    await fleet.send(mail(name, text))
    await fleet.wait_until_idle()
    (run,) = fleet.runs(mail(name))
    return run


async def candidate(fleet: FleetHarness, name: str, text: str, *orders: str) -> tuple[Run, str]:
    """Have a candidate made of a corrected mail, and give orders about it."""
    run = await labelled(fleet, name, text)
    await order(fleet, "correct", run=run.id, should="legal", new_label=True)
    (id,) = [one["id"] for one in await learned(fleet) if one["text"] == text]
    for verb in orders:
        await order(fleet, verb, id=id)
    return run, id


async def by_hand(fleet: FleetHarness, clock: ManualClock, text: str, *orders: str) -> str:
    given = {"into": "inbox/inbox", "text": text, "kind": "fact"}
    clock.advance(1)  # an id without a command is the instant's
    id = str((await order(fleet, "memory_propose", **given))["candidate"])
    for verb in orders:
        await order(fleet, verb, id=id)
    return id


def recalled(fleet: FleetHarness, text: str) -> list[str]:
    now = fleet.app.services.clock.now_us()
    found = fleet.app.banks.recall("inbox", "inbox", (), text, now, 50)
    taught = {one.id for one in fleet.app.banks.lessons("inbox", "inbox", now)}
    assert {one.id for one in found} <= taught
    return [one.id for one in found if one.trust == "learned"]


def holding(fleet: FleetHarness, phrase: str) -> list[str]:
    """Return the files of the state that hold a phrase, its end being in no other phrase."""
    files = [path for path in (fleet.folder / "state").rglob("*") if path.is_file()]
    return sorted(path.name for path in files if is_in(phrase.encode(), path.read_bytes()))


async def states(fleet: FleetHarness) -> dict[str, str]:
    return {one["id"]: one["state"] for one in await learned(fleet)}


async def expire(fleet: FleetHarness, before_us: int) -> int:
    return int((await order(fleet, "expire", before_us=before_us))["erased"])


async def let_go(fleet: FleetHarness, to: Path) -> int:
    """Archive all that can be, as the verb does; return the last entry of it."""
    store, line = fleet.app.store, fleet.app.services
    name = f"vedette/{line.fleet.name}"
    key = open_ledger_key(fleet.folder / "state", name, lambda: None)
    size = [size for size, _ in store.ledger.sized_checkpoints()][-1]
    archived = write_segment(store.ledger, to, size, format_verifier_key(name, key))
    await order(fleet, "let_go", archived=archived.to_bytes().decode())
    assert [seq for seq, *_ in store.ledger.walk() if seq <= size] == []
    return size


# --- a bank that takes nothing --------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["memory_off", "erase"])
async def test_a_bank_that_takes_nothing_is_brought_up_and_nobody_is_briefed_before(
    fleet: FleetHarness, clock: ManualClock, verb: str
) -> None:
    erased = await by_hand(fleet, clock, HAND, "memory_approve")
    seq = next(e["seq"] for e in fleet.entries("memory.proposed") if e["what"] == erased)
    file = apsw.Connection(str(fleet.folder / "state" / "memory.db"))
    for what in ("UPDATE", "DELETE"):
        file.execute(
            f"CREATE TRIGGER no_{what} BEFORE {what} ON memory "
            "BEGIN SELECT RAISE(FAIL, 'the disk takes no more'); END"
        )
    given = {"id": erased} if verb == "memory_off" else {"entry": seq}
    answer = await order(fleet, verb, **given)
    assert not answer.get("scrubbed")
    assert recalled(fleet, HAND) == [erased]
    await fleet.send(mail("late", HAND))
    await fleet.wait_until_idle()
    (run,) = fleet.runs(mail("late"))
    assert (run.state, run.turn, run.attempts) == ("ready", 0, 0)
    for what in ("UPDATE", "DELETE"):
        file.execute(f"DROP TRIGGER no_{what}")
    file.close()
    for _ in range(3):
        clock.advance(5_000_000)
        await asyncio.sleep(0.3)
    await fleet.wait_until_idle()
    (run,) = fleet.runs(mail("late"))
    assert run.state == "done"
    assert recalled(fleet, HAND) == []


def once_durable(fleet: FleetHarness, commit: str, then: Callable[[], None]) -> None:
    """Let something happen, which may raise, as soon as the next commit of a kind stands."""
    store = fleet.app.store
    part: Any = store.maintenance if commit == "forget_memories" else store.commands
    onward = getattr(part, commit)

    async def first(*arguments: Any, **more: Any) -> Any:
        answer = await onward(*arguments, **more)
        delattr(part, commit)
        then()
        return answer

    setattr(part, commit, first)


def refuse() -> None:
    raise StoreFailed("the disk failed: Input/output error")


ERASURES: dict[str, tuple[str, dict[str, Any]]] = {
    "erase": ("erase", {}),
    "expire": ("forget_memories", {"before_us": 0}),
}


@pytest.mark.parametrize(
    ("verb", "read"),
    [(verb, read) for verb in ERASURES for read in ("all", "walk")] + [("erase", "candidates")],
)
async def test_what_was_erased_is_not_recalled_where_the_store_cannot_be_read_after_it(
    fleet: FleetHarness, clock: ManualClock, verb: str, read: str
) -> None:
    erased = await by_hand(fleet, clock, HAND, "memory_approve")
    commit, given = ERASURES[verb]
    if verb == "erase":
        given = {"entry": fleet.entries("memory.proposed")[-1]["seq"]}
    else:
        clock.advance(366 * DAY)
    store = fleet.app.store
    part: Any = store.ledger if read == "walk" else store.memories

    def broken(*arguments: Any, **more: Any) -> Any:
        refuse()

    once_durable(fleet, commit, lambda: setattr(part, read, broken))
    answer = await order(fleet, verb, **given)
    assert answer["erased"], "it stands"
    assert not answer.get("scrubbed")
    assert "Input/output error" in fleet.app.services.recall.lag_reason
    await fleet.send(mail("late", HAND))
    await fleet.wait_until_idle()
    (run,) = fleet.runs(mail("late"))
    assert (run.state, run.turn, run.attempts) == ("ready", 0, 0), "nobody is briefed out of it"
    delattr(part, read)
    for _ in range(3):
        clock.advance(5_000_000)
        await asyncio.sleep(0.3)
    await fleet.wait_until_idle()
    assert fleet.runs(mail("late"))[0].state == "done"
    assert erased not in await states(fleet)
    assert recalled(fleet, HAND) == []
    if verb == "erase":
        with pytest.raises(BadCommand, match="no body is found"):
            await order(fleet, "erase", **given)


@pytest.mark.parametrize("verb", [*ERASURES, "memory_off", "memory_propose"])
async def test_an_order_whose_commit_stood_unheard_reaches_the_bank(
    fleet: FleetHarness, clock: ManualClock, verb: str
) -> None:
    """The second order finds nothing left to do, so it cannot be left to that."""
    erased = await by_hand(fleet, clock, HAND, "memory_approve")
    seq = fleet.entries("memory.proposed")[-1]["seq"]
    orders: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
        "erase": ("erase", {"entry": seq}, {}),
        "expire": ("forget_memories", {"before_us": 0}, {}),
        "memory_off": ("move_memories", {"id": erased}, {erased: "off"}),
        "memory_propose": (
            "propose_memory",
            {"into": "inbox/inbox", "text": "x", "kind": "fact"},
            {},
        ),
    }
    commit, given, stands = orders[verb]
    if verb == "expire":
        clock.advance(366 * DAY)
    clock.advance(1)
    once_durable(fleet, commit, refuse)
    with pytest.raises(StoreFailed):
        await order(fleet, verb, **given)
    if verb == "memory_propose":
        made = fleet.entries("memory.proposed")[-1]["what"]
        stands = {erased: "active", made: "candidate"}
    await wait_until(lambda: not fleet.app.services.recall.lag_reason)
    assert await states(fleet) == stands


@pytest.mark.timeout(60)
async def test_a_candidate_whose_step_stood_unheard_reaches_the_bank(
    fleet: FleetHarness, clock: ManualClock
) -> None:
    store: Any = fleet.app.store
    onward, lost = store.steps.send, list[str]()

    def send(step: Any) -> Any:
        async def unheard() -> Any:
            answer = await onward(step)
            if step.candidates and not lost:
                lost.append(step.run)
                refuse()
            return answer

        return asyncio.ensure_future(unheard())

    store.steps.send = send
    run = await labelled(fleet, "1", PHRASE)
    await order(fleet, "correct", run=run.id, should="legal", new_label=True)
    await wait_until(lambda: len(lost) == 1)
    while not await states(fleet):
        clock.advance(1_000_000)
        await asyncio.sleep(0.05)
    assert list((await states(fleet)).values()) == ["candidate"]


async def test_a_bank_that_cannot_be_read_is_told_and_no_event_is_lost_to_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    with broken_disk("memory.db") as disk:
        async with desk(tmp_path, clock) as fleet:
            await fleet.app.dispatcher.close()
            running = Daemon(fleet.app, until_idle=False)
            task = asyncio.create_task(running.run())
            try:
                # Before anybody asked for the scope: what is held in memory needs no disk.
                disk.fail(tmp_path / "state" / "memory.db")
                await fleet.app.intake.accept([mail("late", HAND)])
                await wait_until(lambda: bank_troubles(running) != [])
                for _ in range(5):
                    clock.advance(5_000_000)
                    await asyncio.sleep(0.1)
                (run,) = fleet.runs(mail("late", HAND))
                assert (run.state, run.turn, run.attempts) == ("ready", 0, 0)
                assert len(bank_troubles(running)) == 1
                assert "the disk failed" in bank_troubles(running)[0]
                disk.broken = False
                while len(bank_troubles(running)) == 1:
                    clock.advance(5_000_000)
                    await asyncio.sleep(0.1)
                await wait_until(lambda: fleet.runs(mail("late", HAND))[0].state == "done")
            finally:
                disk.broken = False
                running.stop()
                await task


def bank_troubles(running: Daemon) -> list[str]:
    return [message for message in running.troubles if "the memory bank" in message]


# --- by its entry ---------------------------------------------------------------------------------


async def test_what_a_person_proposed_is_erased_by_its_entry(
    fleet: FleetHarness, clock: ManualClock
) -> None:
    kept = await by_hand(fleet, clock, "a fact that stays", "memory_approve")
    erased = await by_hand(fleet, clock, HAND, "memory_approve")
    assert set(recalled(fleet, HAND)) == {kept, erased}
    assert "memory.db-wal" in holding(fleet, HAND)
    seq = fleet.entries("memory.proposed")[-1]["seq"]
    await order(fleet, "erase", entry=seq)
    assert recalled(fleet, HAND) == [kept]
    assert await states(fleet) == {kept: "active"}
    assert holding(fleet, HAND) == []
    with pytest.raises(NotFound):
        await order(fleet, "memory_off", id=erased)


# --- copies of copies -----------------------------------------------------------------------------


async def test_a_copy_of_a_copy_goes_with_the_original(fleet: FleetHarness) -> None:
    mailed, _ = await candidate(fleet, "1", PHRASE)
    other, stays = await candidate(fleet, "2", "something else")
    # The curator's own run is corrected: its event holds the mail, and now another one does, too.
    (woken,) = fleet.app.store.runs.runs_of_event(fleet.entries("run.corrected")[0]["what"])
    await order(fleet, "correct", run=woken.id, should="nothing to learn", new_label=True)
    copies = [
        data for _, _, _, data in fleet.app.store.ledger.walk() if data and PHRASE.encode() in data
    ]
    assert len(copies) >= 4
    await order(fleet, "erase", event=mailed.event)
    assert holding(fleet, PHRASE) == []
    assert set(await states(fleet)) == {stays}
    assert fleet.app.store.runs.event(other.event) is not None


# --- age ------------------------------------------------------------------------------------------


async def test_a_memory_outlives_its_mail_and_neither_its_bank_s_retention_nor_an_erasure(
    fleet: FleetHarness, clock: ManualClock
) -> None:
    mailed, id = await candidate(fleet, "1", PHRASE, "memory_approve")
    clock.advance(100 * DAY)
    _, other = await candidate(fleet, "2", f"again {PHRASE}", "memory_approve")
    _, third = await candidate(fleet, "3", f"thirdly {PHRASE}", "memory_approve")
    clock.advance(100 * DAY)
    assert await expire(fleet, clock.now_us()) > 0
    assert fleet.app.store.runs.event(mailed.event) is None
    assert set(recalled(fleet, PHRASE)) == {id, other, third}, "the control: it is young enough"
    # Nothing is left of the mail itself, and the way from it to what was learned is.
    (second,) = fleet.runs(mail("2"))
    await order(fleet, "erase", event=second.event)
    assert set(recalled(fleet, PHRASE)) == {id, third}
    clock.advance(164 * DAY)
    assert set(recalled(fleet, PHRASE)) == {id, third}
    clock.advance(2 * DAY)
    assert recalled(fleet, PHRASE) == [third], "366 days after its promotion"
    await fleet.restart()
    assert recalled(fleet, PHRASE) == [third]
    assert holding(fleet, f"again {PHRASE}") == []
    assert await expire(fleet, clock.now_us() - 300 * DAY) == 1
    assert await states(fleet) == {third: "active"}
    with pytest.raises(BadCommand, match="no body is found"):
        await order(fleet, "erase", event=mailed.event)
    # By whom it came the last of it is found, too.
    await order(fleet, "erase", subject=who("3"))
    assert recalled(fleet, PHRASE) == []
    assert holding(fleet, PHRASE) == []


async def test_what_is_promoted_while_retention_is_at_work_stays(
    fleet: FleetHarness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, promoted = await candidate(fleet, "1", PHRASE)
    await candidate(fleet, "2", f"again {PHRASE}")
    clock.advance(400 * DAY)
    store: Any = fleet.app.store
    forget = store.maintenance.forget_memories

    async def forget_later(*given: Any) -> Any:
        await order(fleet, "memory_approve", id=promoted)
        return await forget(*given)

    monkeypatch.setattr(store.maintenance, "forget_memories", forget_later)
    await expire(fleet, clock.now_us())
    assert recalled(fleet, PHRASE) == [promoted]
    assert await states(fleet) == {promoted: "active"}, "the control: what nobody promoted is gone"


# --- an archive -----------------------------------------------------------------------------------


async def test_what_was_learned_is_governed_after_its_entries_are_archived(
    fleet: FleetHarness, clock: ManualClock, tmp_path: Path
) -> None:
    _, off = await candidate(fleet, "1", f"one {PHRASE}", "memory_approve", "memory_off")
    second, on = await candidate(fleet, "2", f"two {PHRASE}", "memory_approve")
    third, waits = await candidate(fleet, "3", f"three {PHRASE}")
    own = await by_hand(fleet, clock, HAND)
    before = await states(fleet)
    await let_go(fleet, tmp_path / "archive")
    await fleet.restart()
    assert await states(fleet) == before
    with pytest.raises(AlreadyDone):
        await order(fleet, "memory_on", id=on)
    await order(fleet, "memory_on", id=off)
    await order(fleet, "memory_off", id=off)
    await order(fleet, "memory_approve", id=own)
    await order(fleet, "memory_off", source=second.event)
    assert await states(fleet) == {off: "off", on: "off", waits: "candidate", own: "active"}
    # Once more, so that what came since joins what was kept before; and the bank is lost.
    await let_go(fleet, tmp_path / "archive")
    await fleet.close()
    for path in (fleet.folder / "state").glob("memory.db*"):
        path.unlink()
    await fleet.open()
    assert await states(fleet) == {off: "off", on: "off", waits: "candidate", own: "active"}
    story = (await order(fleet, "memory_show", id=off))["story"]
    assert [one["kind"] for one in story] == [
        "memory.proposed", "memory.promoted", "memory.retired", "memory.restored", "memory.retired",
    ]  # fmt: skip
    await order(fleet, "erase", event=third.event)
    await order(fleet, "erase", subject=who("2"))
    assert set(await states(fleet)) == {off, own}
    assert holding(fleet, f"three {PHRASE}") == holding(fleet, f"two {PHRASE}") == []
    seq = next(one.seq for one in fleet.app.store.memories.all().values() if one.id == own)
    await order(fleet, "erase", entry=seq)
    assert await states(fleet) == {off: "off"}
    assert holding(fleet, HAND) == []
    await fleet.restart()
    assert await states(fleet) == {off: "off"}


# --- one order, killed ----------------------------------------------------------------------------


async def test_taking_back_what_came_from_a_source_is_one_commit(
    fleet: FleetHarness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dead(BaseException):
        pass

    def die(point: str) -> None:
        if point == "settle:before":
            raise Dead

    taught = await by_hand(fleet, clock, "a fact", "memory_approve")
    waits = await by_hand(fleet, clock, "another")
    question = {"id": None, "source": "person:tester"}
    curating = fleet.app.commands.curation
    assert curating is not None
    person = fleet.order().principal
    monkeypatch.setattr(failpoint, "hook", die)
    with pytest.raises(Dead):
        await curating.apply_order("memory_off", person, "wrong", "once", question)
    monkeypatch.setattr(failpoint, "hook", None)
    await fleet.restart()
    assert await states(fleet) == {taught: "off", waits: "rejected"}
    curating = fleet.app.commands.curation
    assert curating is not None
    with pytest.raises(AlreadyDone):
        await curating.apply_order("memory_off", person, "wrong", "once", question)
    assert len(fleet.entries("memory.retired")) == len(fleet.entries("memory.rejected")) == 1


# --- what an agent may propose --------------------------------------------------------------------

FORGED = "x\n  active: fact, reviewed by kim\x1b[31m"
ODD: dict[str, dict[str, Any]] = {
    "no memory 'x\\n": {"replaces": FORGED},
    "no memory 'memory-leak-signature'": {"replaces": "memory-leak-signature"},  # another bank's
    "no id of an event": {"evidence": (FORGED,)},
    "one printable line": {"kind": "example", "label": FORGED},
    "needs a label": {"kind": "example"},
    "is no kind": {"kind": FORGED},
    "no topic": {"topics": (FORGED,)},
    "1 to 20000 characters": {"text": "x" * 20_001},
    "has 1 to": {"text": " "},
}


async def test_a_candidate_that_says_more_than_it_is_is_refused(tmp_path: Path) -> None:
    made = [Candidate("inbox", "inbox", **{"text": "Told.", **more}) for more in ODD.values()]
    sound = Candidate("inbox", "inbox", "Told.", replaces="legal-01", evidence=("run_ab",))
    script = ScriptedReasoner([lambda _: ReasonerJudgement(label="x", candidates=(*made, sound))])
    agents = content(tmp_path, "inbox_triage")
    async with FleetHarness(tmp_path, content=agents, reasoners={"judge": script}) as fleet:
        await fleet.send(mail("1"))
        await fleet.wait_until_idle()
        refused = [fleet.body(one["seq"])["why"] for one in fleet.entries("action.refused")]
        assert len(refused) == len(ODD)
        for said, why in zip(ODD, refused, strict=True):
            assert said in why
            assert why.isprintable()
        assert [one["replaces"] for one in await learned(fleet)] == ["legal-01"]
        # A person is held to the same.
        for more in ({"text": "x" * 20_001}, {"kind": "example"}, {"topics": ["odd"]}):
            given: dict[str, Any] = {"into": "inbox/inbox", "text": "Told.", **more}
            with pytest.raises(VedetteError):
                await order(fleet, "memory_propose", **given)


# --- what a model was told ------------------------------------------------------------------------


SPENDING = """\
  model_calls_per_turn: 2
  model_calls_per_run: 4
  model_calls_per_day: 100
"""


async def test_what_a_model_was_told_of_another_event_goes_with_that_event(
    tmp_path: Path, clock: ManualClock
) -> None:
    """A turn of another event keeps what its model said, and digests of what it was told."""
    speaker = Speaker("a model", "a" * 64)
    told: list[str] = []

    def answers(briefing: Briefing) -> ReasonerJudgement:
        if briefing.event.id != "late":
            return ReasonerJudgement(label="question")
        prompt = compose_prompt(briefing, {}, speaker, 400_000)
        told.extend((part.text or "") for part in prompt.contents[0].parts or [])
        turn = ModelTurn(
            speaker.model, speaker.route, prompt.opens, prompt.told, prompt.shown,
            prompt.outcomes, '{"role":"model","parts":[{"text":"Fine."}]}',
        )  # fmt: skip
        proposal = Proposal("no.such", {"x": "1"}, "", 0.5)
        return ReasonerJudgement(label="question", proposals=(proposal,), model_turn=turn)

    def teaches(briefing: Briefing) -> ReasonerJudgement:
        (found,) = curates(briefing).candidates
        found = replace(found, topics=("questions",))
        return ReasonerJudgement(label="proposed", candidates=(found,))

    script = {"inbox_triage": [answers], "memory_curator": [teaches]}
    agents = content(tmp_path, "inbox_triage", "memory_curator")
    declared = agents / "agents/inbox_triage/agent.yaml"
    text = declared.read_text().replace("reasoner: judge", "reasoner: adk")
    text = text.replace("max_turns: 1", "max_turns: 2")
    declared.write_text(text.replace("budget:\n", f"budget:\n{SPENDING}"))
    scripted = ScriptedReasoner(script)
    reasoners = {"judge": scripted, "adk": scripted}
    async with FleetHarness(tmp_path, content=agents, reasoners=reasoners, clock=clock) as fleet:
        await candidate(fleet, "first", PHRASE, "memory_approve")
        await fleet.send(mail("late", PHRASE[:30]))
        await fleet.wait_until_idle()
        (run,) = fleet.runs(mail("late"))
        (turn,) = fleet.app.store.runs.turns(run.id)
        assert PHRASE in told[0]
        assert turn["model"]["opens"] == "first"
        assert (await order(fleet, "erase", event=mail("first").key))["scrubbed"]
        assert holding(fleet, PHRASE) == []
        assert fleet.app.store.runs.turns(run.id) == [turn]


async def test_a_run_keeps_what_it_recalled_as_long_as_it_may_be_read(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That others matter more by now takes nothing away; a person does."""
    heard: list[list[str]] = []

    def answers(briefing: Briefing) -> ReasonerJudgement:
        if briefing.event.id != "late":
            return ReasonerJudgement(label="question")
        heard.append([one.id for one in briefing.memories if one.trust == "learned"])
        monkeypatch.setattr(banks, "recall", lambda *query: [])
        if len(heard) == 2:
            monkeypatch.setattr(banks, "lessons", lambda *scope: [])
        clock.advance(61_000_000)  # or an answer of before is good enough
        proposal = Proposal("no.such", {"x": "1"}, "", 0.5)
        return ReasonerJudgement(label="question", proposals=(proposal,), final=len(heard) == 3)

    reasoners = {"judge": ScriptedReasoner({"inbox_triage": [answers] * 3})}
    agents = content(tmp_path, "inbox_triage")
    declared = agents / "agents/inbox_triage/agent.yaml"
    declared.write_text(declared.read_text().replace("max_turns: 1", "max_turns: 3"))
    async with FleetHarness(tmp_path, content=agents, reasoners=reasoners, clock=clock) as fleet:
        banks = fleet.app.services.recall.banks
        given = {"into": "inbox/inbox", "text": PHRASE, "kind": "fact", "topics": ["questions"]}
        id = str((await order(fleet, "memory_propose", **given))["candidate"])
        await order(fleet, "memory_approve", id=id)
        await fleet.send(mail("late", PHRASE))
        await fleet.wait_until_idle()
        assert heard == [[id], [id], []]
