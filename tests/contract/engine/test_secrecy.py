"""What not everybody may read reaches its permitted readers alone, whatever way it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from vedette.config.settings import read_settings
from vedette.domain.action import Proposal
from vedette.domain.effect import RowWrite
from vedette.domain.event import Event
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.readers import ReaderRule, Readers
from vedette.engine.ingest import EventIntake
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.testing import toy_fleet as toy
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import (
    DESK,
    World,
    job,
    note_proposal,
    propose,
    send_proposal,
    toy_fleet,
)

HOUSE = frozenset({"@example.org"})
OTHERS = frozenset({"@elsewhere.example"})
TEXT = Ref("/event/data/told")


async def decided(fleet: FleetHarness, *events: Any) -> list[tuple[str | None, str | None]]:
    await fleet.send(*events)
    await fleet.wait_until_idle()
    return [(row.decided, row.rule) for event in events for row in fleet.actions(event)]


@pytest.mark.parametrize(
    ("readers", "outcome"),
    [(None, "permit"), (HOUSE, "permit"), (frozenset({"desk@example.org"}), "permit"),
     (frozenset({"target:world"}), "permit"), (frozenset({"resource:wire"}), "permit"),
     (OTHERS, "deny"), (frozenset(), "deny"), (frozenset({"@org"}), "deny")],
)  # fmt: skip
async def test_an_event_goes_to_its_readers(tmp_path: Path, readers: Readers, outcome: str) -> None:
    world = World()
    async with toy_fleet(tmp_path, world) as fleet:
        bare = replace(job("1", send_proposal("what it says")), readers=readers)
        drawn = replace(
            job("2", propose("wire.send", to=DESK, text=TEXT), told="a text"), readers=readers
        )
        found = await decided(fleet, bare, drawn)
        assert [each[0] for each in found[:1]] == [outcome]
        if outcome == "deny":
            assert set(found) == {("deny", "secrecy.readers")}
        assert world.effects("wire.send") == (2 if outcome == "permit" else 0)


async def test_what_is_drawn_from_the_charter_is_public_all_the_same(tmp_path: Path) -> None:
    world = World()
    async with toy_fleet(tmp_path, world) as fleet:
        fixed = propose("wire.send", to=DESK, text=Ref("/charter/note"))
        secret = replace(job("1", fixed), readers=frozenset[str]())
        assert await decided(fleet, secret) == [("permit", "permit.tool")]


async def test_it_is_kept_in_rows_and_no_tool_sees_that(tmp_path: Path) -> None:
    world = World()
    async with toy_fleet(tmp_path, world) as fleet:
        written = replace(job("1", note_proposal("a secret")), readers=OTHERS)
        assert await decided(fleet, written) == [("permit", "permit.tool")]
        drawn = propose("wire.send", to=DESK, text=Ref("/row/texts/0"))
        later = [
            job("2", drawn),
            job("3", send_proposal("I recall it")),
            job("4", note_proposal("more")),
        ]
        assert [each[0] for each in await decided(fleet, *later)] == ["deny", "deny", "permit"]
        # Another key has another row.
        assert (await decided(fleet, job("5", send_proposal("hello"), key="other")))[0][
            0
        ] == "permit"
        await fleet.restart()
        assert (await decided(fleet, job("6", drawn)))[0] == ("deny", "secrecy.readers")
        assert world.texts() == ["hello"]


async def test_it_is_kept_by_what_a_tool_answers(tmp_path: Path) -> None:
    world = World()
    looked = Proposal("book.look", {"name": Ref("/event/data/value")}, confidence=1.0)
    said = Proposal("book.look", {"name": "x"}, confidence=1.0)
    ref = Ref("/outcome/0/id")
    sent = Proposal("wire.send", {"to": DESK, "text": ref}, confidence=1.0)
    for name, first, outcome in (("drawn", looked, "deny"), ("bare", said, "deny")):
        reasoner = ScriptedReasoner(
            [ReasonerJudgement(proposals=(first,), final=False, confidence=1.0),
             ReasonerJudgement(proposals=(sent,), confidence=1.0)]
        )  # fmt: skip
        async with toy_fleet(tmp_path / name, world, reasoners={"judge": reasoner}) as fleet:
            secret = frozenset({"@elsewhere.example", "resource:wire"})
            event = replace(job("1", value="v"), readers=secret)
            await fleet.send(event)
            await fleet.wait_until_idle()
            # Looking is within the readers, and so is what came of it; a stranger is not.
            assert [row.decided for row in fleet.actions(event)] == ["permit", "permit"]
            narrow = replace(job("2", value="v"), readers=frozenset({"target:book"}))
            await fleet.send(narrow)
            await fleet.wait_until_idle()
            assert {row.decided for row in fleet.actions(narrow)} == {outcome}


_DROPS = """tools:
  - {{name: note.drop, verb: drop, resource: note, args: {{key: string}},
     sinks: [], settles: transactional, function: drop_note, inverse: note.put}}
  - {{name: note.put, verb: put, resource: note, args: {{key: string, was: object?}},
     sinks: [], settles: transactional, function: put_note}}
"""
_DROP_PY = """

def drop_note(call, row):
    return [RowWrite(f"{call.agent}_notes", call.args["key"], None)]


def put_note(call, row):
    return [RowWrite(f"{call.agent}_notes", call.args["key"], call.args["was"])]
"""


async def test_a_row_that_an_undo_brings_back_is_as_secret_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy, "AGENT_YAML", toy.AGENT_YAML.replace("tools:\n", _DROPS, 1))
    monkeypatch.setattr(toy, "TOOLS_PY", toy.TOOLS_PY + _DROP_PY)
    grants = "".join(
        f"    note.{verb}: {{{{verb: {verb}, resource: note, impact: low}}}}\n"
        for verb in ("drop", "put")
    )
    monkeypatch.setattr(
        toy, "GRANTS", toy.GRANTS.replace("    note.add:", grants + "    note.add:", 1)
    )
    world = World()
    async with toy_fleet(tmp_path, world) as fleet:
        line = fleet.app.services
        await decided(fleet, replace(job("1", note_proposal("a secret")), readers=OTHERS))
        before = line.keys.row("worker_notes", "k")
        dropped = job("2", propose("note.drop", key=Ref("/event/subject")))
        assert await decided(fleet, dropped) == [("permit", "permit.tool")]
        assert line.keys.row("worker_notes", "k") == {}
        (row,) = fleet.actions(dropped)
        effect = row.id.replace("act_", "eff_")
        await dispatch(fleet.app.commands, "undo", fleet.order("back"), {"effect": effect})
        await fleet.wait_until_idle()
        assert line.keys.row("worker_notes", "k") == before
        assert before["texts"] == ["a secret"]
        assert await decided(
            fleet, job("3", propose("wire.send", to=DESK, text=Ref("/row/texts/0")))
        ) == [("deny", "secrecy.readers")]


async def test_a_correction_is_as_secret_as_what_its_run_read(tmp_path: Path) -> None:
    async with toy_fleet(tmp_path, World()) as fleet:
        store = fleet.app.store

        async def corrected(event: Event) -> Readers:
            await fleet.send(event)
            await fleet.wait_until_idle()
            (run,) = store.runs.runs_of_event(event.key)
            args = {"run": run.id, "should": "other", "new_label": True}
            done = await dispatch(fleet.app.commands, "correct", fleet.order("looked"), args)
            correction = store.runs.event(done["event"])
            assert correction is not None
            return correction.readers

        assert await corrected(job("0")) is None
        assert await corrected(replace(job("1", told="a secret"), readers=HOUSE)) == HOUSE
        # The event is public, but the row that the run read is not.
        await fleet.send(replace(job("2", note_proposal("a secret"), key="row"), readers=OTHERS))
        await fleet.wait_until_idle()
        assert await corrected(job("3", key="row")) == OTHERS


async def test_a_correction_goes_by_the_row_in_the_store_and_keeps_nothing_of_it(
    tmp_path: Path,
) -> None:
    """Whoever corrects may hold no lease of the key: another worker writes its row meanwhile."""
    async with toy_fleet(tmp_path, World()) as fleet:
        await decided(fleet, replace(job("1", note_proposal("a secret")), readers=OTHERS))
        await decided(fleet, job("2"))
        await fleet.restart()
        services, store = fleet.app.services, fleet.app.store
        (run,) = store.runs.runs_of_event(job("2").key)

        async def corrected(should: str) -> Readers:
            args = {"run": run.id, "should": should, "new_label": True}
            done = await dispatch(fleet.app.commands, "correct", fleet.order("looked"), args)
            correction = store.runs.event(done["event"])
            assert correction is not None
            return correction.readers

        assert await corrected("other") == OTHERS
        assert len(services.keys) == 0
        # What was known of it under a lease that is another's by now.
        services.keys.cache_rows([RowWrite("worker_notes", "k", {"texts": []})])
        assert await corrected("another") == OTHERS


async def test_the_settings_label_events_by_source_and_type(tmp_path: Path) -> None:
    file = tmp_path / "vedette.toml"
    file.write_text(
        'fleet = "harbour"\n[[secrecy]]\nsource = "te*"\ntype = "worker.*"\n'
        'permitted_readers = ["@elsewhere.example"]\n'
    )
    settings, problems = read_settings(file)
    assert problems == []
    assert settings is not None
    assert settings.secrecy == (ReaderRule("te*", "worker.*", OTHERS),)
    world = World()
    async with toy_fleet(tmp_path, world) as fleet:
        app = fleet.app
        intake = EventIntake(
            app.services, app.dispatcher, max_event_bytes=1 << 16, secrecy=settings.secrecy
        )
        await intake.accept([job("1", send_proposal("secret"))])
        await fleet.wait_until_idle()
        assert [row.rule for row in fleet.actions(job("1"))] == ["secrecy.readers"]


@pytest.mark.parametrize("reader", ["", "a b", "A@x.example", "a,b", "-", "é"])
def test_a_word_that_names_no_reader_is_refused_with_its_line(tmp_path: Path, reader: str) -> None:
    file = tmp_path / "vedette.toml"
    file.write_text(f'fleet = "harbour"\n[[secrecy]]\npermitted_readers = ["{reader}"]\n')
    settings, (problem, *_) = read_settings(file)
    assert settings is None
    assert "names no reader" in problem.what
    assert problem.line == 3
