"""Promise 11: decisions replay; with a control that shows the test can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.acceptance.promises.common import MIXED, approve
from tests.store_parts import store_of

from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.domain.base.canonical import canonical_json
from vedette.domain.bundle import Bundle
from vedette.policy.replay import ReplayReport, replay
from vedette.testing.harness import FleetHarness, copy_policies, remove_tests
from vedette.testing.toy_fleet import World, deny_policy, job, toy_fleet, write_policies

Walked = tuple[int, bytes, bytes | None, bytes | None]


async def two_revisions(fleet: FleetHarness, folder: Path) -> int:
    """Let decisions of every kind be made under two revisions; return how many."""
    events = [job(f"a{n}", *MIXED) for n in range(4)]
    await fleet.send(*events)
    await fleet.wait_until_idle()
    await fleet.apply_policy(write_policies(folder / "p2", extra=deny_policy("wire.send")))
    await approve(fleet, fleet.actions(events[0])[3])
    await fleet.send(*(job(f"b{n}", *MIXED) for n in range(4)))
    await fleet.wait_until_idle()
    await fleet.restart()
    return len(fleet.entries("action.decided", "recall.decided"))


async def test_promise_11_decisions_replay(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        decisions = await two_revisions(fleet, tmp_path)
        report = replay(fleet.app.store, RegorusEngine)
        assert report.ok, report.differences
        assert (report.decisions, report.agreed) == (decisions, decisions)
        assert set(report.revisions) == {1, 2}
        for revision in (1, 2):
            assert set(report.revisions[revision]) == {"permit", "hold", "deny"}


class Altered:
    """A record in which something was changed on the way out: what an auditor may be handed."""

    def __init__(self, record: Any, change: Callable[[Walked], Walked], files: Any = None) -> None:
        self._record, self._change, self._files = record, change, files

    def walk(self, kinds: tuple[str, ...] | None = None, after: int = 0) -> Iterator[Walked]:
        return (self._change(each) for each in self._record.ledger.walk(kinds, after))

    def bundle_files(self, digest: str) -> dict[str, bytes] | None:
        found: dict[str, bytes] | None = self._record.policy.bundle_files(digest)
        return found if self._files is None or found is None else self._files(found)


def says(name: str, was: str, now: str) -> Callable[[Walked], Walked]:
    """Return the change of one word of every entry that has it."""

    def change(each: Walked) -> Walked:
        seq, raw, salt, data = each
        entry = orjson.loads(raw)
        if entry.get(name) == was:
            entry[name] = now
        return seq, orjson.dumps(entry, option=orjson.OPT_SORT_KEYS), salt, data

    return change


def other_answer(each: Walked) -> Walked:
    """Change the recorded decision, and leave the digest that the entry holds."""
    seq, raw, salt, data = each
    return seq, raw, salt, data and data.replace(b'"outcome":"deny"', b'"outcome":"hold"')


def without_body(each: Walked) -> Walked:
    return each[0], each[1], None, None


def other_rules(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return another policy in the place of a bundle; these decisions come out all the same."""
    return {**files, "vedette/denies/more.rego": b"package vedette.denies\n"}


async def test_promise_11_whatever_was_changed_since_is_a_difference(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        decisions = await two_revisions(fleet, tmp_path)
        store = fleet.app.store
        denied = len([e for e in fleet.entries("action.decided") if e["outcome"] == "deny"])

        def again(change: Callable[[Walked], Walked], files: Any = None) -> ReplayReport:
            return replay(store_of(Altered(store, change, files)), RegorusEngine)

        assert again(lambda each: each).ok
        assert again(says("outcome", "deny", "permit")).differed == denied
        assert again(says("rule", "permit.tool", "permit.more")).differed > 0
        assert again(other_answer).unreplayable["bad body"] == denied
        assert again(without_body).unreplayable == {"missing": decisions}
        assert not again(without_body).ok
        assert again(lambda each: each, other_rules).unreplayable == {"bad bundle": decisions}


async def test_promise_11_a_decision_that_comes_out_otherwise_is_found_whatever_it_was(
    tmp_path: Path, world: World
) -> None:
    """A denial that becomes a permit, and the same outcome for another reason."""
    async with toy_fleet(tmp_path, world) as fleet:
        await two_revisions(fleet, tmp_path)
        outcomes = [entry["outcome"] for entry in fleet.entries("action.decided")]

        class Lying:
            def __init__(self, bundle: Bundle, lie: Callable[[dict[str, Any]], None]) -> None:
                self._engine, self._lie = RegorusEngine(bundle), lie
                self.name, self.digest = "lying", bundle.digest

            def decide(self, question: bytes) -> object:
                answer: Any = self._engine.decide(question)
                self._lie(answer)
                return answer

        def permits(answer: dict[str, Any]) -> None:
            if answer["outcome"] == "deny":
                answer.update(outcome="permit", would=None)

        def reasons(answer: dict[str, Any]) -> None:
            answer["reasons"].append("another")

        found = replay(fleet.app.store, lambda bundle: Lying(bundle, permits))
        assert found.differed == outcomes.count("deny") > 0
        found = replay(fleet.app.store, lambda bundle: Lying(bundle, reasons))
        assert found.differed == found.decisions


@pytest.mark.parametrize("as_text", [True, False])
async def test_promise_11_what_is_recorded_is_what_was_asked(
    tmp_path: Path, world: World, as_text: bool
) -> None:
    """Byte for byte, whether a rule reads it or not; and asked of the very action it decides.

    Of an engine that answers by a value, and of one that answers by its text.
    """
    async with toy_fleet(tmp_path, world) as fleet:
        gateway = fleet.app.services.gateway
        requests: list[bytes] = []
        engine = gateway.engine

        class Listening:
            name, digest = engine.name, engine.digest

            def decide(self, question: bytes) -> object:
                requests.append(question)
                return engine.decide(question)

        class ListeningByText(Listening):
            def decide_json(self, question: bytes) -> bytes:
                return orjson.dumps(self.decide(question))

        gateway.swap(ListeningByText() if as_text else Listening(), gateway.policy_rev)
        events = [job(f"a{n}", *MIXED) for n in range(4)]
        await fleet.send(*events)
        await fleet.wait_until_idle()
        entries = fleet.entries("action.decided")
        recorded = [canonical_json(fleet.body(entry["seq"])["question"]) for entry in entries]
        assert sorted(recorded) == sorted(requests)
        assert len(requests) == 4 * len(MIXED)
        rows = {row.id: row for event in events for row in fleet.actions(event)}
        for entry, raw in zip(entries, recorded, strict=True):
            question, row = orjson.loads(raw), rows[entry["action"]]
            assert question["action"]["digest"] == entry["action_digest"] == row.digest
            assert question["action"]["tool"] == entry["tool"] == row.tool
            assert question["action"]["args"] == orjson.loads(row.record)["args"]
            assert question["subject"]["agent"] == entry["agent"] == row.agent
            assert question["subject"]["release"] == entry["release"]


async def test_promise_11_decided_reads_of_memory_replay_too(tmp_path: Path) -> None:
    async with FleetHarness(
        tmp_path, policies=remove_tests(copy_policies(tmp_path / "p"))
    ) as fleet:
        reads = fleet.entries("recall.decided")
        assert reads
        report = replay(fleet.app.store, RegorusEngine)
        assert report.ok, report.differences
        assert report.decisions == len(reads)


async def test_promise_11_control_another_policy_is_seen(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        await two_revisions(fleet, tmp_path)

        def other(bundle: Bundle) -> RegorusEngine:
            grants = dict(bundle.files)
            grants["grants/data.yaml"] = grants["grants/data.yaml"].replace(b"act", b"ask")
            return RegorusEngine(Bundle.of(grants))

        report = replay(fleet.app.store, other)
        assert not report.ok
        assert report.differed > 0
