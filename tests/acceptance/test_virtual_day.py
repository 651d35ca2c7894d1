"""A day of a fleet, killed again and again, is rebuilt from its ledger alone.

At least 10,000 events and 20 agents, approvals, denials, retries, three policy revisions and at
least 50 deaths by SIGKILL (in the gate a fifth of it); then everything but the ledger is taken
away. What is rebuilt is held against what the world knows by itself: the target's own record, the
script of the day, and the answers that people were told they had given.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from tests.acceptance.day_played import (
    END_US,
    SEED,
    SHORT,
    WHOLE,
    Line,
    Played,
    Spoilt,
    lines,
    played,
)
from tests.acceptance.day_world import AGENTS, events
from tests.acceptance.virtual_day import DAY_US, START_US
from tests.said import vedette
from tests.segments import edit_content, edit_entry, read_entries

from vedette.adapters.ledger_export import LedgerExport
from vedette.domain.base.canonical import canonical_json
from vedette.domain.ports.ledger_reader import RawEntry
from vedette.ledger.history.reconstruction import reconstruct
from vedette.ledger.history.report import report
from vedette.ledger.history.target_match import match_target_record
from vedette.policy.replay import replay
from vedette.store.sqlite import SqliteReader
from vedette.testing.harness import TrustingStage

OPEN = ("effect.intended", "effect.started", "effect.unknown")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]


@pytest.fixture(
    scope="module", params=[pytest.param(SHORT, id="short"), pytest.param(WHOLE, id="whole")]
)
def day(request: pytest.FixtureRequest) -> Iterator[Played]:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="vedette-day-", dir=memory if memory.is_dir() else None))
    try:
        yield played(folder, request.param)
    finally:
        shutil.rmtree(folder)


# --- what is rebuilt --------------------------------------------------------------------------


def test_the_day_was_as_rough_as_it_is_said_to_be(day: Played) -> None:
    kinds = Counter(entry["kind"] for entry in day.entries)
    calls = Counter(line["key"] for line in day.record)
    answers = Counter(line["yes"] for line in lines(day.folder / "answers.jsonl"))
    share = day.number / WHOLE[0]
    assert day.told["kills"] >= day.kills, day.told
    assert day.told["killed_calling"]
    # Which point a life dies at is chance: few deaths may fall on few.
    assert len(day.told["points"]) >= min(5, day.kills // 4), day.told["points"]
    assert kinds["event.accepted"] >= day.number
    assert len(day.rebuilt.agents) == len(AGENTS) >= 20
    assert kinds["policy.published"] == 3
    assert answers[True] > 100 * share
    assert answers[False] > 50 * share
    assert sum(1 for key in calls if calls[key] > 1) > 50 * share
    assert kinds["run.dead"] > 10 * share
    assert kinds["action.refused"] > 10 * share
    assert len(day.effects) > 2000 * share


def test_every_effect_has_exactly_one_intent_that_tells_everything(day: Played) -> None:
    account = day.rebuilt
    assert account.findings == []
    assert account.truncated_runs == set()
    found = match_target_record(account, day.happened)
    assert found.ok, found.to_json()
    assert found.matched == found.effects == len(day.effects)

    # Not only that something is told: that it is right, by what the world itself knows.
    keys = {event.id: event.key for event in events(day.number, SEED)}
    published = [entry for entry in day.entries if entry["kind"] == "policy.published"]
    for line in day.effects:
        intent = account.intents[f"act_{line['key']}"]
        name = line["text"].split(" ")[0]
        if name != "last":
            assert intent.event == keys[name]
        assert intent.agent == line["agent"]
        assert intent.identity == f"spiffe://harbour/agent/{line['agent']}"
        assert intent.origins == {"/to": "trusted", "/text": "derived"}
        permits = [d for d in intent.decisions if d.outcome == "permit"]
        live = [entry for entry in published if entry["seq"] < permits[-1].seq][-1]
        assert (permits[-1].revision, permits[-1].bundle) == (
            live["policy_rev"], live["bundle"],
        )  # fmt: skip


def test_every_answer_of_a_person_is_where_it_was_given(day: Played) -> None:
    intents = day.rebuilt.intents
    given = lines(day.folder / "answers.jsonl")
    for line in given:
        answers = [one.answer for one in intents[line["action"]].answers]
        assert ("approved" if line["yes"] else "denied") in answers
    # What needs a person has one; a no is never followed by a first effect.
    needs = [line for line in day.effects if line["tool"] == "big.send"]
    assert len(needs) > day.number / 100
    for line in needs:
        approval = intents[f"act_{line['key']}"].approval
        assert approval is not None
        assert approval.actor == "person:tester"
        assert approval.reason == "as the day says"


def test_every_open_intent_is_flagged_and_no_other(day: Played) -> None:
    last: dict[str, str] = {}
    for entry in day.entries:
        if entry["kind"].startswith("effect."):
            last[entry["action"]] = entry["kind"]
    wanted = {action for action, kind in last.items() if kind in OPEN}
    assert {intent.id for intent in day.rebuilt.open_intents} == wanted
    # The last process was killed between a call and its record: that is one of them.
    done = {f"act_{line['key']}" for line in day.effects}
    assert wanted & done


def test_every_decision_replays_to_the_same_answer(day: Played) -> None:
    store = SqliteReader(day.state)
    try:
        found = replay(store, TrustingStage().load)
    finally:
        store.close()
    question = sum(1 for e in day.entries if e["kind"] in ("action.decided", "recall.decided"))
    assert found.ok, found.to_json()
    assert found.agreed == found.decisions == question > day.number / 2
    assert sorted(found.revisions) == [1, 2, 3]


def test_an_export_tells_the_same_as_the_store(day: Played) -> None:
    repeat = reconstruct(LedgerExport(day.folder / "export"), START_US, END_US)
    assert repeat.to_json() == day.rebuilt.to_json()


def test_parts_of_the_day_make_the_day(day: Played) -> None:
    whole = day.rebuilt
    store, read = SqliteReader(day.state), LedgerExport(day.folder / "export")
    edges = [START_US, START_US + DAY_US // 3, START_US + DAY_US * 4 // 5, END_US]
    try:
        parts = [reconstruct(store.ledger, a, b) for a, b in pairwise(edges)]
        assert parts[1].to_json() == reconstruct(read, edges[1], edges[2]).to_json()
    finally:
        store.close()
    for name, agent in whole.agents.items():
        items = [item for part in parts for item in part.agents[name].items]
        assert items == agent.items
    # What began before a part is told from its beginning, and nothing of it looks wrong.
    assert [part.findings for part in parts] == [[], [], []]
    assert {id for part in parts for id in part.intents} == set(whole.intents)
    assert any(set(parts[0].intents) & set(part.intents) for part in parts[1:])


def test_the_report_of_the_day_takes_less_than_ten_seconds(day: Played) -> None:
    store = SqliteReader(day.state)
    try:
        # (Of its own time: the machine may be busy with other tests.)
        began = time.process_time()
        result = report(store, START_US, END_US)
        assert time.process_time() - began < 10
        assert report(store, START_US, END_US) == result
        other = report(store, START_US, END_US, "another seed")
    finally:
        store.close()
    intents = day.rebuilt.intents
    drawn = [one["action"] for one in result["sample"]]
    assert len(set(drawn)) == 20
    assert drawn != [one["action"] for one in other["sample"]]
    for one in result["sample"]:
        assert one["rule"] in ("permit.tool", "permit.approved")
        assert any(d.seq == one["seq"] for d in intents[one["action"]].decisions)
    assert result["traffic"]["events"] == day.number + 4
    assert result["traffic"]["starts"] == day.told["kills"] + 1
    never, hit = result["rules"]["never"], result["rules"]["hit"]
    assert not set(never) & set(hit)
    assert {"permit.tool", "impact.high", "mode.ask", "mode.observe"} <= set(hit)
    assert {"limits.hops", "identity.spiffe"} <= set(never)
    held = {
        entry["action"]
        for entry in day.entries
        if entry["kind"] == "action.decided" and entry.get("wait") == "approval"
    }
    assert result["questions"]["asked"] >= len(held)
    assert [one["kind"] for one in result["changed"]] == ["policy.published"] * 3


def test_the_verbs_say_so_too(day: Played) -> None:
    verbs = ["report", "--last", "48h", "--until", "2026-01-03", "--json"]
    before = os.times()
    done = vedette(day.folder, *verbs)
    after = os.times()
    assert after.children_user + after.children_system < (
        before.children_user + before.children_system + 10
    )
    assert done.code == 0
    assert done.json["traffic"]["events"] == day.number + 4
    repeat = ["ledger", "reconstruct", "export", "--last", "48h", "--until", "2026-01-03"]
    spoilt, number = day.folder / "spoilt.jsonl", len(day.effects)
    more = json.dumps({"tool": "wire.send", "key": "0" * 32}).encode()
    spoilt.write_bytes((day.folder / "world.jsonl").read_bytes() + more + b"\n")
    done = vedette(day.folder, *repeat, "--against", str(spoilt))
    assert done.code == 1
    assert f"{number:,} of {number + 1:,} effects have exactly one intent" in done.out
    assert f"effect without intent: wire.send {'0' * 32}: no intent has this key" in done.out
    assert f"OPEN INTENTS: {len(day.rebuilt.open_intents)}" in done.out
    assert "FINDINGS: 0" in done.out


# --- negative controls: what must be found ----------------------------------------------------


def test_an_effect_that_the_ledger_does_not_have_is_found(day: Played) -> None:
    found = match_target_record(day.rebuilt, [*day.happened, ("wire.send", "0" * 32)])
    assert [one["why"] for one in found.unmatched] == ["no intent has this key"]
    tool, key = day.happened[0]
    other = "bell.ring" if tool != "bell.ring" else "wire.send"
    assert not match_target_record(day.rebuilt, [*day.happened[1:], (other, key)]).ok


def test_an_effect_that_happened_twice_is_found(day: Played) -> None:
    found = match_target_record(day.rebuilt, [*day.happened, day.happened[7]])
    assert found.repeated == [day.happened[7][1]]


def test_an_effect_that_only_the_ledger_knows_is_found(day: Played) -> None:
    done = {i.key for i in day.rebuilt.intents.values() if i.state == "done"}
    at = next(at for at, (_, key) in enumerate(day.happened) if key in done)
    found = match_target_record(day.rebuilt, day.happened[:at] + day.happened[at + 1 :])
    assert found.phantoms == [f"act_{day.happened[at][1]}"]


def test_an_effect_of_what_was_never_permitted_is_found(day: Played) -> None:
    denied = next(i for i in day.rebuilt.intents.values() if i.outcome == "deny" and not i.effects)
    found = match_target_record(day.rebuilt, [*day.happened, (denied.tool, denied.key)])
    assert len(found.unmatched) == 1


def test_a_removed_entry_is_found(day: Played) -> None:
    of_runs = [at for at, entry in enumerate(day.entries[:-1]) if "run" in entry]
    for at in random.Random(SEED).sample(of_runs, 2):
        left = Spoilt(day.walked[:at] + day.walked[at + 1 :])
        codes = {one["code"] for one in reconstruct(left, START_US, END_US).findings}
        assert "missing" in codes


@pytest.mark.parametrize(
    ("kind", "code"), [("effect.intended", "unplanned"), ("hold.approved", "approval")]
)
def test_a_removed_entry_is_found_even_if_all_others_are_numbered_anew(
    day: Played, kind: str, code: str
) -> None:
    used = {i.id for i in day.rebuilt.intents.values() if i.outcome == "permit" and i.effects}
    removed_entry = next(e for e in day.entries if e["kind"] == kind and e["action"] in used)
    account = reconstruct(Spoilt(list(renumbered(day, removed_entry))), START_US, END_US)
    assert {(one["code"], one.get("action")) for one in account.findings} == {
        (code, removed_entry["action"])
    }


def renumbered(day: Played, removed_entry: Line) -> Iterator[RawEntry]:
    """Yield all entries but one, as somebody would write them who wants nobody to see it."""
    at = removed_entry["seq"]
    for entry, (seq, raw, salt, data) in zip(day.entries, day.walked, strict=True):
        if seq < at:
            yield seq, raw, salt, data
        elif seq > at:
            less = entry.get("run") == removed_entry["run"]
            new = {**entry, "seq": seq - 1, **({"n": entry["n"] - 1} if less else {})}
            yield seq - 1, canonical_json(new), salt, data


def test_an_altered_decision_is_found(day: Played, tmp_path: Path) -> None:
    denied = next(
        e for e in day.entries if e["kind"] == "action.decided" and e["outcome"] == "deny"
    )
    shutil.copytree(day.state, tmp_path / "state")
    path = tmp_path / "state" / "store.db"
    salt, data = altered(path, denied["seq"])
    store = SqliteReader(tmp_path / "state")
    try:
        account = reconstruct(store.ledger, START_US, END_US)
        assert [one["code"] for one in account.findings] == ["body"]
        assert replay(store, TrustingStage().load).unreplayable == {"bad body": 1}
    finally:
        store.close()

    # Somebody who mends the digest as well is found by asking the policy again.
    entry = {**denied, "outcome": "permit", "body": hashlib.sha256(salt + data).hexdigest()}
    with closing(sqlite3.connect(path)) as file, file:
        edit_entry(file, denied["seq"], canonical_json(entry))
    store = SqliteReader(tmp_path / "state")
    try:
        found = replay(store, TrustingStage().load)
    finally:
        store.close()
    assert [one.seq for one in found.differences] == [denied["seq"]]


def altered(path: Path, seq: int) -> tuple[bytes, bytes]:
    """Make a recorded denial a permit; return the body's salt and its new text."""
    with closing(sqlite3.connect(path)) as file, file:
        (entry,) = [one for one in read_entries(file) if one.seq == seq]
        assert entry.salt is not None
        assert entry.data is not None
        new = entry.data.replace(b'"outcome":"deny"', b'"outcome":"permit"')
        assert new != entry.data
        edit_content(file, seq, data=new)
    return entry.salt, new
