"""A run whose tool answers much: references in its turns, ranges read by the engine's own tool."""

from __future__ import annotations

import base64
import tracemalloc
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
from msgspec.structs import replace
from tests.artefacts import (
    LOOK,
    answer,
    artefact_fleet,
    edit_agent,
    long_text,
    outcomes_of,
    read,
    say,
)

from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.adapters.reasoners.adk.tools import read_declared_tools
from vedette.domain.action import Proposal, bind_proposal
from vedette.domain.agent import schedule_source
from vedette.domain.artefact import HEAD_CHARS, MAX_OUTCOME_BYTES, MAX_RANGE_CHARS, STORED_KIND
from vedette.domain.base.canonical import canonical_json, salted_digest
from vedette.domain.base.errors import BadFleet, Permanent
from vedette.domain.decision import DecisionContext, evaluate_request
from vedette.domain.effect import Outcome
from vedette.domain.event import DATA, ENVELOPE, TICK_TYPE, Event
from vedette.domain.memory import Briefing
from vedette.domain.origin import Ref, Roots
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.engine import artefacts, effect_executor
from vedette.ledger.history.explain import explain
from vedette.operations.permissions import PermissionQuery, effective_permissions
from vedette.policy.replay import replay
from vedette.store import segment
from vedette.testing.harness import FleetHarness, TrustingStage
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import World, job, toy_fleet

TEXT = long_text(2_000_000)
# What is changed of agent.yaml so that not everybody may read what is looked up.
LOOK_UP = "settles: idempotent, function: act, target: world}\n  - {name: book.sure"
SECRET = (LOOK_UP, LOOK_UP.replace("}", ",\n     permitted_readers: ['hr@example.org']}", 1))


def reference(briefing: Briefing) -> dict[str, Any]:
    """Return the reference to the text of the first outcome."""
    found: dict[str, Any] = outcomes_of(briefing)[0]["text"]
    return found


def reads_all(briefing: Briefing) -> ReasonerJudgement:
    """Read on where the last range ended; send the number of characters when there is no more."""
    told = outcomes_of(briefing)
    last = told[-1]
    if "next" in last or len(told) == 1:
        return say(read(reference(briefing)["artefact"], offset=last.get("next", 0)))
    return say(final=True)


async def settled(fleet: FleetHarness, *events: Any) -> None:
    await fleet.send(*events)
    await fleet.wait_until_idle(60)


async def test_a_text_is_told_by_reference_and_read_in_ranges(tmp_path: Path) -> None:
    world = World(answer=answer({"id": 7, "text": TEXT}))
    script = ScriptedReasoner([say(LOOK), *[reads_all] * 12])
    async with artefact_fleet(
        tmp_path, world, reasoners={"adk": script}, reasoner="adk", max_turns=16
    ) as fleet:
        short = TEXT[: 10 * MAX_RANGE_CHARS + 5]
        world.answer = answer({"id": 7, "text": short})
        await settled(fleet, job("1"))
        (run,) = fleet.runs(job("1"))
        assert run.state == "done"
        first = script.briefings[1]
        assert outcomes_of(first)[0] == {
            "id": 7,
            "text": {
                "artefact": reference(first)["artefact"], "head": short[:HEAD_CHARS],
                "label": "untrusted", "size": len(short), "type": "text/plain",
            },
        }  # fmt: skip
        ranges = outcomes_of(script.briefings[-1])[1:]
        assert [one["offset"] for one in ranges] == [at * MAX_RANGE_CHARS for at in range(11)]
        assert "".join(one["text"] for one in ranges) == short
        assert "next" not in ranges[-1]
        assert all(len(one["text"]) <= MAX_RANGE_CHARS for one in ranges)
    assert len(world.calls) == 1


async def test_no_turn_and_no_row_holds_the_two_megabytes(tmp_path: Path) -> None:
    world = World(answer=answer({"text": TEXT}))
    script = ScriptedReasoner(
        [say(LOOK), lambda b: say(read(reference(b)["artefact"], offset=1_900_000, length=100))]
    )
    async with artefact_fleet(tmp_path, world, reasoners={"adk": script}, reasoner="adk") as fleet:
        await settled(fleet, job("1"))
        assert outcomes_of(script.briefings[-1])[1]["text"] == TEXT[1_900_000:1_900_100]
        sizes = {seq: len(data or b"") for seq, _, _, data in fleet.app.store.ledger.walk()}
        (stored,) = fleet.entries("artefact.stored")
        large = [seq for seq, size in sizes.items() if size > MAX_OUTCOME_BYTES]
        assert large == [stored["seq"]]
        assert all(len(row.answer or b"") < 2000 for row in fleet.actions(job("1")))
        assert len(str(script.briefings[-1].turns)) < 5000


async def test_the_entry_tells_type_and_size_and_is_named_by_its_digest(tmp_path: Path) -> None:
    world = World(answer=answer({"text": TEXT[:50_000]}))
    script = ScriptedReasoner([say(LOOK), say(LOOK)])
    async with artefact_fleet(tmp_path, world, reasoners={"adk": script}, reasoner="adk") as fleet:
        event = job("1")
        await settled(fleet, event)
        rows = fleet.actions(event)
        found = []
        for entry, row in zip(fleet.entries("artefact.stored"), rows, strict=True):
            assert (entry["size"], entry["what"]) == (50_000, "text/plain")
            assert (entry["action"], entry["tool"]) == (row.id, "book.look")
            told = orjson.loads(row.answer or b"")["data"]["text"]
            assert told["artefact"] == f"art_{event.key[4:20]}{entry['body'][:16]}"
            ((salt, data),) = [
                (salt, data)
                for seq, _, salt, data in fleet.app.store.ledger.walk(("artefact.stored",))
                if seq == entry["seq"]
            ]
            assert salted_digest(salt or b"", data or b"") == entry["body"]
            found.append((told["artefact"], entry["body"]))
        # The same content, and nothing tells so.
        assert len(set(found)) == 2
        outcomes = [one["seq"] for one in fleet.entries("effect.done")]
        assert [seq + 1 for seq in (e["seq"] for e in fleet.entries("artefact.stored"))] == outcomes


async def test_of_many_small_parts_the_largest_member_becomes_one_artefact(tmp_path: Path) -> None:
    data = {"total": 3000, "items": [{"n": n, "name": f"item {n}"} for n in range(3000)]}
    world = World(answer=answer(data))
    script = ScriptedReasoner(
        [say(LOOK), lambda b: say(read(outcomes_of(b)[0]["items"]["artefact"], length=20))]
    )
    async with artefact_fleet(tmp_path, world, reasoners={"adk": script}, reasoner="adk") as fleet:
        await settled(fleet, job("1"))
        told, part = outcomes_of(script.briefings[-1])
        assert (told["total"], told["items"]["type"]) == (3000, "application/json")
        assert part["text"] == '[{"n":0,"name":"item'


def test_a_tool_of_the_same_name_in_adk_is_told_by_its_place(tmp_path: Path) -> None:
    fleet = artefact_fleet(tmp_path, World(), reasoner="adk")
    edit_agent(fleet, "worker", "book.look", "artefact_read")
    folder = fleet.content / "agents" / "worker"
    lines = (folder / "agent.yaml").read_text().splitlines()
    (at,) = [number for number, line in enumerate(lines, 1) if "artefact_read" in line]
    with pytest.raises(BadFleet) as refused:
        read_declared_tools(folder)
    assert str(refused.value.where).startswith(f"worker/agent.yaml:{at}: tools[6].name")
    assert refused.value.mend == "rename 'artefact_read'"


# --- who has none -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, MAX_OUTCOME_BYTES - 100])
async def test_small_outcomes_leave_the_entries_that_they_left(tmp_path: Path, size: int) -> None:
    """Byte for byte but for what is drawn or measured: instants, salted digests, the release."""

    async def entries(folder: Path, make: Any) -> list[dict[str, Any]]:
        world = World(answer=answer({"text": "x" * size}))
        script = ScriptedReasoner([say(LOOK)])
        async with make(folder, world, reasoners={"adk": script}, reasoner="adk") as fleet:
            await settled(fleet, job("1"))
            found = fleet.entries()
            return [
                {
                    name: one[name]
                    for name in one
                    if name not in ("at", "body", "release", "bundle", "model_call")
                }
                for one in found
                if one["kind"] not in ("policy.published", "fleet.loaded", "store.opened")
            ]

    plain = await entries(tmp_path / "plain", toy_fleet)
    assert await entries(tmp_path / "artefacts", artefact_fleet) == plain
    assert "effect.done" in {one["kind"] for one in plain}


async def test_an_agent_that_does_not_ask_for_them_is_told_the_whole(tmp_path: Path) -> None:
    world = World(answer=answer({"text": TEXT[:100_000]}))
    script = ScriptedReasoner([say(LOOK)])
    async with toy_fleet(tmp_path, world, reasoners={"adk": script}, reasoner="adk") as fleet:
        await settled(fleet, job("1"))
        assert outcomes_of(script.briefings[-1])[0]["text"] == TEXT[:100_000]
        assert fleet.entries("artefact.stored") == []
        assert "artefact.read" not in fleet.app.services.fleet.agents["worker"].tools


async def test_what_an_inverse_is_made_of_stays_whole(tmp_path: Path) -> None:
    world = World(answer=answer({"text": TEXT[:100_000]}))
    script = ScriptedReasoner([say(LOOK)])
    fleet = artefact_fleet(tmp_path, world, reasoners={"adk": script}, reasoner="adk")
    edit_agent(fleet, "worker", LOOK_UP, LOOK_UP.replace("}", ", inverse: book.sure}", 1))
    async with fleet:
        await settled(fleet, job("1"))
        assert outcomes_of(script.briefings[-1])[0]["text"] == TEXT[:100_000]


# --- who may read what --------------------------------------------------------------------------


async def denials(fleet: FleetHarness, *events: Any) -> list[tuple[str | None, str]]:
    return [
        (row.decided, row.rule)
        for event in events
        for row in fleet.actions(event)
        if row.tool == "artefact.read"
    ]


async def test_another_runs_artefact_is_denied_by_name(tmp_path: Path) -> None:
    world = World(answer=answer({"text": TEXT[:50_000]}))
    ids: list[str] = []

    def reads(briefing: Briefing) -> ReasonerJudgement:
        ids.append(reference(briefing)["artefact"])
        return say(read(ids[0]), read("art_" + "0" * 32), read("../../etc/passwd"), read(ids[-1]))

    script = ScriptedReasoner([say(LOOK), reads])
    async with artefact_fleet(
        tmp_path, world, agents=("worker", "other"), reasoners={"adk": script}, reasoner="adk"
    ) as fleet:
        await settled(fleet, job("1"))
        second, third = job("2"), job("3", agent="other")
        await settled(fleet, second)
        await settled(fleet, third)
        own, no = ("permit", "permit"), ("deny", "artefact.other")
        for event in (second, third):
            assert [one[0] for one in await denials(fleet, event)] == [
                "deny", "deny", "deny", "permit",
            ]  # fmt: skip
            assert (await denials(fleet, event))[:3] == [no] * 3
        assert (await denials(fleet, job("1")))[0][0] == own[0]
        # Whether it exists is not told: the questions and answers are alike.
        questions = [
            fleet.body(one["seq"])["question"]["context"]["artefact"]
            for one in fleet.entries("action.decided")
            if one["tool"] == "artefact.read" and one["outcome"] == "deny"
        ]
        assert set(questions) == {"other"}


async def test_an_id_in_an_event_hands_nothing_over(tmp_path: Path) -> None:
    """Not even in data that the engine vouches for: erased, it would stay in another run."""
    world = World(answer=answer({"text": TEXT[:50_000]}))
    ids: list[str] = []

    def first(briefing: Briefing) -> ReasonerJudgement:
        if (named := briefing.event.data.get("doc")) is not None:
            return say(read(Ref("/event/data/doc/artefact"), length=10), read(named["artefact"]))
        return say(LOOK)

    def second(briefing: Briefing) -> ReasonerJudgement:
        if "doc" not in briefing.event.data:
            ids.append(reference(briefing)["artefact"])
        return say(final=True)

    script = ScriptedReasoner([first, second])
    fleet = artefact_fleet(tmp_path, world, reasoners={"adk": script}, reasoner="adk")
    daily = "{daily: '03:00', name: handing}"
    edit_agent(fleet, "worker", "[{on: worker.job}]", f"[{{on: worker.job}}, {daily}]")
    async with fleet:
        await settled(fleet, job("1"))
        stranger = job("2", doc={"artefact": ids[0]})
        tick = Event(
            schedule_source("harbour", "worker"), "3", TICK_TYPE, "handing", None,
            stranger.data, vouched=ENVELOPE | {DATA},
        )  # fmt: skip
        for event in (stranger, tick):
            await fleet.send(event, vouched=False)
            await fleet.wait_until_idle()
            assert await denials(fleet, event) == [("deny", "artefact.other")] * 2


async def test_who_does_not_say_whose_it_is_has_it_denied(tmp_path: Path) -> None:
    async with artefact_fleet(tmp_path, World()) as fleet:
        services, event = fleet.app.services, replace(job("1"), vouched=ENVELOPE)
        agent = services.fleet.agents["worker"]
        nothing: dict[str, Any] = {}
        none = frozenset[str]()
        roots = Roots(
            event.root(), event.vouched, nothing, nothing, nothing, none, nothing, none, nothing
        )
        action = bind_proposal(
            read("art_" + "0" * 32), agent.tools, roots, run="run_" + "0" * 32, turn=1, ordinal=0,
            confidence=1.0,
        )  # fmt: skip
        asked = DecisionContext(agent, event, 1, services.clock.now_us())
        ruled = [
            services.gateway.decide(action, replace(asked, artefact=owner)).decision.rule
            for owner in ("", "other", "mine", "handed", "own")
        ]
        assert ruled == ["artefact.other"] * 4 + ["permit.tool"]


async def test_a_denial_replays(tmp_path: Path) -> None:
    """And with the engine's rule away it would not: policy alone permits."""
    world = World(answer=answer({"text": TEXT[:50_000]}))
    script = ScriptedReasoner([say(LOOK), say(read("art_" + "0" * 32))])
    async with artefact_fleet(tmp_path, world, reasoners={"adk": script}, reasoner="adk") as fleet:
        await settled(fleet, job("1"))
        assert await denials(fleet, job("1")) == [("deny", "artefact.other")]
        found = replay(fleet.app.store, TrustingStage().load)
        assert (found.decisions, found.agreed, found.ok) == (2, 2, True)
        (entry,) = [
            one for one in fleet.entries("action.decided") if one["tool"] == "artefact.read"
        ]
        question = fleet.body(entry["seq"])["question"]
        question["context"]["artefact"] = "own"
        raw = canonical_json(question)
        assert evaluate_request(fleet.app.services.gateway.engine, raw).outcome == "permit"


async def test_without_a_grant_nothing_is_read(tmp_path: Path) -> None:
    world = World(answer=answer({"text": TEXT[:50_000]}))
    script = ScriptedReasoner([say(LOOK), lambda b: say(read(reference(b)["artefact"]))])
    async with artefact_fleet(
        tmp_path, world, grant=False, reasoners={"adk": script}, reasoner="adk"
    ) as fleet:
        await settled(fleet, job("1"))
        ((decided, rule),) = await denials(fleet, job("1"))
        assert (decided, rule != "artefact.other") == ("deny", True)


@pytest.mark.parametrize("wrong", [{"offset": -1}, {"length": 0}, {"length": MAX_RANGE_CHARS + 1}])
async def test_a_range_that_is_none_fails(tmp_path: Path, wrong: dict[str, int]) -> None:
    world = World(answer=answer({"text": TEXT[:50_000]}))
    script = ScriptedReasoner(
        [say(LOOK), lambda b: say(read(reference(b)["artefact"], **wrong)),
         lambda b: say(read(reference(b)["artefact"], offset=60_000))]
    )  # fmt: skip
    async with artefact_fleet(tmp_path, world, reasoners={"adk": script}, reasoner="adk") as fleet:
        await settled(fleet, job("1"))
        _, failed, beyond = fleet.actions(job("1"))
        assert failed.effect == "failed"
        assert b"offset is at least 0" in (failed.answer or b"")
        assert orjson.loads(beyond.answer or b"")["data"]["text"] == ""


# --- what it costs ------------------------------------------------------------------------------


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the last seq of each segment whose content is unpacked."""
    seqs: list[int] = []
    unpack = segment.unpack_bodies

    def note(last: int, packed: bytes | None) -> Any:
        seqs.append(last)
        return unpack(last, packed)

    monkeypatch.setattr(segment, "unpack_bodies", note)
    return seqs


@pytest.mark.parametrize("is_granted", [False, True])
async def test_a_denied_read_unpacks_no_content_and_a_turns_reads_do_it_once(
    tmp_path: Path, unpacked: list[int], is_granted: bool
) -> None:
    world = World(answer=answer({"text": TEXT}))
    ids: list[str] = []

    def reads(briefing: Briefing) -> ReasonerJudgement:
        ids.append(reference(briefing)["artefact"])
        # The first run's too, which the second may not read.
        return say(*[read(one, offset=at) for one in ids for at in range(4)])

    script = ScriptedReasoner([say(LOOK), reads])
    async with artefact_fleet(
        tmp_path, world, grant=is_granted, reasoners={"adk": script}, reasoner="adk"
    ) as fleet:
        await settled(fleet, job("1"))
        await settled(fleet, job("2"))
        seen = list(unpacked)
        stored = [entry["seq"] for entry in fleet.entries("artefact.stored")]
        assert [seen.count(seq) for seq in stored] == [int(is_granted)] * 2
        found = [row for row in fleet.actions(job("2")) if row.tool == "artefact.read"]
        assert [row.effect for row in found] == [None] * 4 + ["done" if is_granted else None] * 4


async def test_one_turn_reads_no_more_artefacts_than_are_unpacked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artefacts, "MAX_STEP_CHARS", 60_000)
    world = World(answer=answer({"one": TEXT[:40_000], "other": TEXT[:90_000]}))

    def reads(briefing: Briefing) -> ReasonerJudgement:
        told = outcomes_of(briefing)[0]
        one, other = told["one"]["artefact"], told["other"]["artefact"]
        return say(read(one), read(one, offset=10), read(other))

    def reads_on(briefing: Briefing) -> ReasonerJudgement:
        return say(read(outcomes_of(briefing)[0]["other"]["artefact"]))

    script = ScriptedReasoner([say(LOOK), reads, reads_on])
    async with artefact_fleet(
        tmp_path, world, reasoners={"adk": script}, reasoner="adk", max_turns=6
    ) as fleet:
        await settled(fleet, job("1"))
        found = [row for row in fleet.actions(job("1")) if row.tool == "artefact.read"]
        # One that is larger by itself is read all the same.
        assert [row.effect for row in found] == ["done", "done", "failed", "done"]
        assert b"read it in the next" in (found[2].answer or b"")


def peak_of(work: Any) -> int:
    """Return how many bytes were held at most while something was done."""
    work()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_turns_and_explain_hold_no_more_than_one_artefact(tmp_path: Path) -> None:
    """Though a run has many, and whoever lists its entries sees how each begins."""
    size = 1_000_000
    # As good as no compression: a segment is about as large as what is in it.
    texts = [base64.b64encode(Random(n).randbytes(size * 3 // 4)).decode() for n in range(8)]
    world = World(answer=answer({"text": texts[0]}))

    def looks(briefing: Briefing) -> ReasonerJudgement:
        world.answer = answer({"text": texts[len(outcomes_of(briefing))]})
        return say(LOOK)

    script = ScriptedReasoner([looks] * 8)
    async with artefact_fleet(
        tmp_path, world, reasoners={"adk": script}, reasoner="adk", max_turns=12
    ) as fleet:
        await settled(fleet, job("1"))
        (run,), store = fleet.runs(job("1")), fleet.app.store
        told = explain(store, run.id)["runs"][0]
        assert len(store.runs.turns(run.id)) == len(told["judgements"]) == 9
        items = [one["body"]["head"] for one in told["timeline"] if one["kind"] == STORED_KIND]
        assert items == [text[:HEAD_CHARS] for text in texts]
        assert peak_of(lambda: store.runs.turns(run.id)) < size // 2
        assert peak_of(lambda: list(store.runs.turns_back(run.id))) < size // 2
        kinds = ("turn.reasoned", "effect.done")
        assert len(store.ledger.run_entries(run.id, kinds)) == 17
        assert peak_of(lambda: store.ledger.run_entries(run.id, kinds)) < size // 2
        # Packed, unpacked, parsed.
        assert peak_of(lambda: explain(store, run.id)) < 5 * size


async def test_a_dead_letter_is_taken_up_again_without_reading_artefacts(tmp_path: Path) -> None:
    text = base64.b64encode(Random(1).randbytes(3_000_000)).decode()
    world, is_broken = World(answer=answer({"text": text})), True

    def breaks(briefing: Briefing) -> ReasonerJudgement:
        if is_broken:
            raise Permanent("it is broken")
        return say(final=True)

    script = ScriptedReasoner([say(LOOK), say(LOOK), breaks])
    async with artefact_fleet(
        tmp_path, world, reasoners={"adk": script}, reasoner="adk", max_turns=6
    ) as fleet:
        await settled(fleet, job("1"))
        (run,) = fleet.runs(job("1"))
        assert run.state == "dead"
        is_broken = False
        tracemalloc.start()
        try:
            await fleet.app.commands.redrive(fleet.order(), [run.id])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < len(text) // 2
        await fleet.wait_until_idle()
        assert [one.state for one in fleet.runs(job("1"))] == ["done"]


async def test_a_long_error_is_cut_and_says_so(tmp_path: Path) -> None:
    long = Outcome("failed", error="e" * 3_000_000)
    world = World(answer=lambda call: long if call.tool.startswith("book.") else None)
    script = ScriptedReasoner([say(LOOK)])
    async with artefact_fleet(tmp_path, world, reasoners={"adk": script}, reasoner="adk") as fleet:
        await settled(fleet, job("1"))
        (row,) = fleet.actions(job("1"))
        said = orjson.loads(row.answer or b"")["error"]
        assert said == "e" * effect_executor.MAX_ERROR_CHARS + "… (cut: 3000000 characters)"


# --- who asks what an agent may do --------------------------------------------------------------


@pytest.mark.parametrize("is_granted", [False, True])
async def test_permissions_tell_of_reading_an_own_artefact(
    tmp_path: Path, is_granted: bool
) -> None:
    async with artefact_fleet(tmp_path, World(), grant=is_granted) as fleet:
        services = fleet.app.services
        live, fleet_of = services.gateway, services.fleet
        query = PermissionQuery(
            fleet_of.agents["worker"], live.engine, live.policy_rev,
            read_bundle(fleet.policies).files, {}, services.clock.now_us(),
            lambda cron: pytest.fail(cron),
        )  # fmt: skip
        told = effective_permissions(query, fleet_of, [])
        (found,) = [one for one in told["tools"] if one["tool"] == "artefact.read"]
        assert (found["outcome"] == "permit") == is_granted
        assert found["rule"] == ("permit.tool" if is_granted else "grant.tool")
        assert ("artefact.read" in told["not_granted"]) == (not is_granted)


# --- labels -------------------------------------------------------------------------------------


async def test_what_is_read_is_as_secret_as_what_it_was_read_of(tmp_path: Path) -> None:
    """Though the id that was named by value says nothing of that."""
    world = World(answer=answer({"text": TEXT[:50_000]}))

    def sends(briefing: Briefing) -> ReasonerJudgement:
        return say(
            Proposal("wire.send", {"to": Ref("/charter/desk"), "text": Ref("/outcome/1/text")})
        )

    script = ScriptedReasoner(
        [say(LOOK), lambda b: say(read(reference(b)["artefact"], length=50)), sends]
    )
    fleet = artefact_fleet(tmp_path, world, reasoners={"adk": script}, reasoner="adk", max_turns=6)
    edit_agent(fleet, "worker", *SECRET)
    async with fleet:
        await settled(fleet, job("1"))
        assert reference(script.briefings[1])["readers"] == ["hr@example.org"]
        assert outcomes_of(script.briefings[2])[1]["readers"] == ["hr@example.org"]
        sent = [row for row in fleet.actions(job("1")) if row.tool == "wire.send"]
        assert orjson.loads(sent[0].record)["readers"]["/text"] == ["hr@example.org"]
        assert orjson.loads(sent[0].record)["origins"]["/text"] == "untrusted"
        assert sent[0].decided == "deny"


async def test_a_trusted_tools_artefact_is_trusted_and_its_range_is_not(tmp_path: Path) -> None:
    world = World(answer=answer({"text": TEXT[:50_000]}))
    sure = Proposal("book.sure", {"name": Ref("/charter/note")})
    script = ScriptedReasoner(
        [
            say(sure), lambda b: say(read(reference(b)["artefact"], length=10)),
            say(Proposal("book.look", {"name": Ref("/outcome/1/text")})),
        ]
    )  # fmt: skip
    async with artefact_fleet(
        tmp_path, world, reasoners={"adk": script}, reasoner="adk", max_turns=6
    ) as fleet:
        await settled(fleet, job("1"))
        assert reference(script.briefings[1])["label"] == "trusted"
        look = fleet.actions(job("1"))[-1]
        assert orjson.loads(look.record)["origins"]["/name"] == "untrusted"


async def test_a_tool_that_answers_a_reference_of_its_own_gains_nothing(tmp_path: Path) -> None:
    world = World(answer=answer({"text": TEXT[:50_000]}))
    ids: list[str] = []

    def spoofed(briefing: Briefing) -> ReasonerJudgement:
        told = outcomes_of(briefing)[0]["text"]["artefact"]
        ids.append(told)
        return say(read(told))

    script = ScriptedReasoner([say(LOOK), spoofed])
    async with artefact_fleet(tmp_path, world, reasoners={"adk": script}, reasoner="adk") as fleet:
        await settled(fleet, job("1"))
        world.answer = lambda call: Outcome("done", {"text": {"artefact": ids[0], "head": "…"}})
        await settled(fleet, job("2"))
        assert ids[0] == ids[1]
        assert await denials(fleet, job("2")) == [("deny", "artefact.other")]
