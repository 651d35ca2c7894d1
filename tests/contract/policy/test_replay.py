"""Replay decides every recorded decision again from the record alone, and agrees on all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.segments import edit_content, edit_entry, remove_content

from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.domain.action import Action, bind_proposal
from vedette.domain.action import Proposal as Asked
from vedette.domain.agent import Agent
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadPolicy
from vedette.domain.budget import Budget
from vedette.domain.bundle import Bundle
from vedette.domain.decision import DecisionContext, DecisionRecord
from vedette.domain.entry import Body, Draft
from vedette.domain.erasure import ErasureTarget
from vedette.domain.event import Event
from vedette.domain.identity import Identity
from vedette.domain.origin import Ref, Roots
from vedette.domain.ports.policy_engine import PolicyEngine
from vedette.domain.ports.run_store import Arrival
from vedette.domain.tool import Tool
from vedette.policy.gateway import Gateway
from vedette.policy.replay import Difference, replay
from vedette.store.sqlite import SqliteReader, SqliteStore
from vedette.testing.clock import ManualClock
from vedette.testing.sample_steps import agents_of, event

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
TOOL = Tool("valve.close", "close", "valve", {"valve": "string"}, ("/valve",), "none", "close")
AGENT = Agent(
    name="watcher", identity=Identity("harbour", "watcher"), title="", owner="desk@x.example",
    release="r" * 64, folder="", instruction="", charter={"main": "v1"}, subscriptions=(),
    schedules=(), tools={TOOL.name: TOOL}, scopes=(), budget=Budget(), requested_mode="act",
)  # fmt: skip

# Permits what is drawn from the charter, holds what comes from elsewhere, denies on Sundays.
POLICY = """package vedette.gateway

import rego.v1

none := {"wait": null, "until": 0, "would": null, "obligations": []}

decision := object.union(none, {
	"schema": "vedette.decision/1", "outcome": "deny", "rule": "RULE", "reasons": ["closed", "b"],
}) if input.context.stopped

else := object.union(none, {
	"schema": "vedette.decision/1", "outcome": "permit", "rule": "origins", "reasons": ["a"],
}) if input.action.origins["/valve"] == "trusted"

else := object.union(none, {
	"schema": "vedette.decision/1", "outcome": "hold", "rule": "ask", "reasons": ["b"],
	"wait": "approval", "until": input.now + 5,
})
"""


def bundle(rule: str = "closed", file: str = "vedette/gateway/decide.rego") -> Bundle:
    return Bundle.of({file: POLICY.replace("RULE", rule).encode()})


def action(value: Any, ordinal: int) -> Action:
    roots = Roots(
        event={}, vouched=frozenset(), charter=AGENT.charter, registry={}, memory={},
        trusted_memories=frozenset(), outcome={}, trusted_outcomes=frozenset(), row={},
    )  # fmt: skip
    proposal = Asked(TOOL.name, {"valve": value})
    return bind_proposal(
        proposal, {TOOL.name: TOOL}, roots, run="run_1", turn=1, ordinal=ordinal, confidence=1.0
    )


def draft(decided: DecisionRecord, of: Event) -> Draft:
    decision = decided.decision
    fields = {
        "event": of.key,
        "agent": AGENT.name,
        "outcome": decision.outcome,
        "rule": decision.rule,
        "policy_rev": decided.policy_rev,
        "bundle": decided.bundle,
        "engine": decided.engine,
    }
    return Draft("action.decided", fields, body=Body(decided.to_body()))


class Recorder:
    """Puts questions to a gateway and its answers into a store."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.gateway = Gateway(RegorusEngine(bundle()), 0)
        self._count = 0

    async def publish(self, new: Bundle) -> None:
        number = await self.store.commands.publish(new, [])
        self.gateway.swap(RegorusEngine(new), number)

    async def decide(self, value: Any, *, stopped: bool = False) -> DecisionRecord:
        self._count += 1
        of = event(self._count)
        situation = DecisionContext(AGENT, of, 1, 1000 + self._count, stopped=stopped)
        decided = self.gateway.decide(action(value, self._count), situation)
        await self.store.steps.accept([Arrival(of, b"{}", (), None)], None)
        await self.store.commands.append_entries([draft(decided, of)])
        return decided

    async def some(self) -> None:
        """Record a permit, two holds, a deny, and a read of memory."""
        await self.decide(Ref("/charter/main"))
        await self.decide("v1")
        await self.decide("другой")
        await self.decide("v1", stopped=True)
        read = self.gateway.may_read(DecisionContext(AGENT, event(1), 1, 5), "inbox", "desk")
        fields = dict(draft(read, event(1)).fields) | {"memory": "inbox/desk"}
        del fields["event"]
        await self.store.commands.append_entries(
            [Draft("recall.decided", fields, body=Body(read.to_body()))]
        )


@pytest.fixture
async def recorded(tmp_path: Path) -> AsyncIterator[Recorder]:
    clock = ManualClock()
    store = SqliteStore(
        tmp_path / "state", fleet="harbour", key=KEY, key_name="vedette/harbour",
        now_us=clock.now_us, synchronous="OFF",
    )  # fmt: skip
    recorder = Recorder(store)
    await recorder.publish(bundle("first"))
    await recorder.some()
    await recorder.publish(bundle("second"))
    await recorder.some()
    yield recorder
    store.close()


def load(policy: Bundle) -> PolicyEngine:
    return RegorusEngine(policy)


async def test_every_decision_of_both_revisions_comes_out_again(recorded: Recorder) -> None:
    report = replay(recorded.store, load)
    assert report.ok
    assert (report.decisions, report.agreed, report.differed) == (10, 10, 0)
    assert report.unreplayable == {}
    each = {"permit": 1, "hold": 3, "deny": 1}
    assert report.to_json()["revisions"] == {"1": each, "2": each}
    assert report.bundles == {bundle("first").digest, bundle("second").digest}
    assert report.engines == report.engine
    rules = [
        orjson.loads(raw)["rule"]
        for _, raw, _, _ in recorded.store.ledger.walk(("action.decided",))
    ]
    assert rules == ["origins", "ask", "ask", "first", "origins", "ask", "ask", "second"]


async def test_nothing_is_read_but_the_record(recorded: Recorder, tmp_path: Path) -> None:
    """Each bundle is loaded once, by the digest that the entries name."""
    loaded: list[str] = []

    def counting(policy: Bundle) -> PolicyEngine:
        loaded.append(policy.digest)
        return load(policy)

    reader = SqliteReader(tmp_path / "state")
    assert replay(reader, counting).ok
    assert loaded == [bundle("first").digest, bundle("second").digest]
    reader.close()


async def test_another_policy_s_answers_are_told_apart(recorded: Recorder) -> None:
    """The control: a replay under the wrong bundle differs, and says where and how."""
    report = replay(recorded.store, lambda policy: RegorusEngine(bundle("third")))
    assert not report.ok
    assert (report.agreed, report.differed) == (8, 2)
    first = report.differences[0]
    assert isinstance(first, Difference)
    assert (first.recorded["rule"], first.replayed["rule"]) == ("first", "third")
    found = recorded.store.ledger.entry(first.seq)
    assert found is not None
    assert orjson.loads(found[1])["rule"] == "first"


class Failing:
    name = "failing"
    digest = ""

    def __init__(self, error: Exception | None, answer: object = None) -> None:
        self._error, self._answer = error, answer

    def decide(self, question: bytes) -> object:
        if self._error is not None:
            raise self._error
        return self._answer


@pytest.mark.parametrize("engine", [Failing(RuntimeError("x")), Failing(None), Failing(None, 3)])
async def test_the_denials_of_the_gateway_itself_come_out_again(
    recorded: Recorder, engine: Failing
) -> None:
    before = replay(recorded.store, load).decisions
    engine.digest = bundle("first").digest
    recorded.gateway.swap(engine, recorded.gateway.policy_rev)
    decided = await recorded.decide(Ref("/charter/main"))
    assert decided.decision.outcome == "deny"
    assert decided.decision.rule.startswith("engine.")

    def choose(policy: Bundle) -> PolicyEngine:
        return engine if policy.digest == engine.digest else load(policy)

    report = replay(recorded.store, choose)
    # The failing engine now answers for the whole first revision; the last decision agrees.
    assert report.decisions == before + 1
    assert all(d.seq < recorded.store.ledger.last_seq() for d in report.differences)
    assert report.agreed == 5 + 1
    # The control: an engine that works does not agree with that last one.
    assert [d.seq for d in replay(recorded.store, load).differences] == [
        recorded.store.ledger.last_seq()
    ]


async def test_a_question_of_another_shape_is_denied_again(
    recorded: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Gateway._build_request

    def broken(spoil: Callable[[dict[str, Any]], object]) -> Callable[..., dict[str, Any]]:
        def make(self: Gateway, *args: Any, **kwargs: Any) -> dict[str, Any]:
            question = whole(self, *args, **kwargs)
            spoil(question)
            return question

        return make

    def too_large(question: dict[str, Any]) -> None:
        question["now"] = 2**60

    for spoil in (lambda q: q.pop("now"), lambda q: q.update(now="later"), too_large):
        monkeypatch.setattr(Gateway, "_build_request", broken(spoil))
        decided = await recorded.decide(Ref("/charter/main"))
        assert decided.decision.rule == "engine.question"
        orjson.loads(decided.request)
    report = replay(recorded.store, load)
    assert (report.ok, report.decisions) == (True, 13)


async def test_what_was_erased_is_unreplayable_and_said_to_be(recorded: Recorder) -> None:
    drafted = Draft(
        "body.erased", {"actor": "person:kim"}, body=Body(canonical_json({"reason": "x"}))
    )
    await recorded.store.commands.erase(
        ErasureTarget("event", event(2).key), drafted, stateless=agents_of(recorded.store)
    )
    report = replay(recorded.store, load)
    assert report.ok
    assert (report.decisions, report.agreed) == (10, 9)
    assert report.to_json()["unreplayable"] == {"erased": 1}


async def test_only_what_a_later_entry_names_was_erased(recorded: Recorder, tmp_path: Path) -> None:
    """A body that is gone unsaid is missing, and so is one that was named before it was there."""
    store = recorded.store
    decisions = [orjson.loads(raw) for _, raw, _, _ in store.ledger.walk(("action.decided",))][:2]
    await store.commands.append_entries([Draft("body.erased", {"erased": [decisions[0]["body"]]})])
    decided = await recorded.decide(Ref("/charter/main"))
    assert decided.decision.outcome == "permit"
    *_, last = (orjson.loads(raw) for _, raw, _, _ in store.ledger.walk(("action.decided",)))
    store.close()
    with edited(tmp_path / "state") as file:
        remove_content(file, *(entry["seq"] for entry in (*decisions, last)))
    # Forge the erasure to name what came after it.
    store_ = SqliteReader(tmp_path / "state")
    ((seq, raw, _, _),) = store_.ledger.walk(("body.erased",))
    store_.close()
    document = orjson.loads(raw)
    document["erased"].append(last["body"])
    with edited(tmp_path / "state") as file:
        edit_entry(file, seq, canonical_json(document))
    store_ = SqliteReader(tmp_path / "state")
    report = replay(store_, load)
    store_.close()
    assert report.unreplayable == {"erased": 1, "missing": 2}
    assert not report.ok


@contextmanager
def edited(folder: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(folder / "store.db"))
    with connection:
        yield connection
    connection.close()


def spoil(connection: apsw.Connection, sql: str, *values: Any) -> None:
    connection.execute(sql, values)
    assert connection.changes()


@pytest.mark.parametrize(
    ("tamper", "found"),
    [
        (
            lambda file: spoil(file, "DELETE FROM bundle WHERE digest=?", bundle("first").digest),
            {"no bundle": 5},
        ),
        (
            lambda file: spoil(
                file,
                "UPDATE bundle SET files=? WHERE digest=?",
                orjson.dumps({"a.rego": "package a"}),
                bundle("first").digest,
            ),
            {"bad bundle": 5},
        ),
        (lambda file: edit_content(file, 6, data=b"{}"), {"bad body": 1}),
        (lambda file: edit_content(file, 6, salt=bytes(16)), {"bad body": 1}),
    ],
)
async def test_a_record_that_was_tampered_with_is_not_agreed_with(
    recorded: Recorder,
    tmp_path: Path,
    tamper: Callable[[apsw.Connection], None],
    found: dict[str, int],
) -> None:
    recorded.store.close()
    with edited(tmp_path / "state") as file:
        tamper(file)
    store = SqliteReader(tmp_path / "state")
    report = replay(store, load)
    store.close()
    assert not report.ok
    assert report.unreplayable == found
    assert report.agreed == 10 - sum(found.values())


async def test_an_entry_that_says_otherwise_than_its_body_differs(
    recorded: Recorder, tmp_path: Path
) -> None:
    recorded.store.close()
    store = SqliteReader(tmp_path / "state")
    seq, raw, _, _ = next(store.ledger.walk(("action.decided",)))
    store.close()
    forged = raw.replace(b'"outcome":"permit"', b'"outcome":"deny"')
    assert forged != raw
    with edited(tmp_path / "state") as file:
        edit_entry(file, seq, forged)
    store = SqliteReader(tmp_path / "state")
    report = replay(store, load)
    store.close()
    assert [difference.seq for difference in report.differences] == [seq]


async def test_a_bundle_that_no_longer_loads_is_told(recorded: Recorder) -> None:
    def refuse(policy: Bundle) -> PolicyEngine:
        raise BadPolicy("this engine knows it no more")

    report = replay(recorded.store, refuse)
    assert (report.ok, report.agreed) == (False, 0)
    assert report.unreplayable == {"bad bundle": 10}
