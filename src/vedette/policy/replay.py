"""Replay: decide every recorded decision again, from the record alone, and compare.

The bundle comes from the record by the digest the entry names, the question from the entry's
body. Nothing else is needed, and nothing else is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from msgspec import Struct, field

from vedette.domain.base.canonical import SALT_BYTES, canonical_json, salted_digest
from vedette.domain.base.errors import VedetteError
from vedette.domain.bundle import Bundle
from vedette.domain.decision import (
    Decider,
    Decision,
    NullPolicyEngine,
    build_difference_denial,
    request_decision,
)
from vedette.domain.ports.policy_engine import PolicyEngine
from vedette.domain.ports.store import StoreReader

ERASURE = "body.erased"
NOBODY = NullPolicyEngine()
DECISION_KINDS = ("action.decided", "recall.decided")

# How many differences are kept in full; all are counted.
MAX_DIFFERENCES = 100


class Difference(Struct, frozen=True):
    """A decision that came out otherwise: at which entry, what stands there, what came now."""

    seq: int
    recorded: Mapping[str, Any]
    replayed: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the difference as `--json` prints it."""
        return {"seq": self.seq, "recorded": dict(self.recorded), "again": dict(self.replayed)}


class ReplayReport(Struct):
    """What came of a replay of policy's recorded decisions.

    `unreplayable` counts decisions by why they could not be made again: `erased` (its question
    was erased on purpose, as a later entry says), `missing` (it is gone and nobody said so),
    `no bundle` and `bad bundle` (the bundle's bytes
    are missing, altered or no longer load), `bad body` (not the one whose digest the entry holds).
    `disputed` counts those that agreed as the deny of two engines that differed at the time.
    `revisions` counts the outcomes decided again under each policy revision; `engines` names the
    engines that decided first, `engine` those that decided now.
    """

    decisions: int = 0
    agreed: int = 0
    differed: int = 0
    disputed: int = 0
    differences: list[Difference] = field(default_factory=list)
    unreplayable: Counter[str] = field(default_factory=Counter)
    revisions: dict[int, Counter[str]] = field(default_factory=dict)
    bundles: set[str] = field(default_factory=set)
    engines: set[str] = field(default_factory=set)
    engine: set[str] = field(default_factory=set)

    @property
    def ok(self) -> bool:
        """True if every decision whose question was not erased came out exactly as recorded."""
        return not self.differed and not set(self.unreplayable) - {"erased"}

    def to_json(self) -> dict[str, Any]:
        """Return the report as the object that `--json` prints."""
        return {
            "ok": self.ok,
            "decisions": self.decisions,
            "agreed": self.agreed,
            "differed": self.differed,
            "disputed": self.disputed,
            "differences": [difference.to_json() for difference in self.differences],
            "unreplayable": dict(self.unreplayable),
            "revisions": {str(rev): dict(found) for rev, found in sorted(self.revisions.items())},
            "bundles": sorted(self.bundles),
            "engines": sorted(self.engines),
            "engine": sorted(self.engine),
        }


def replay(record: StoreReader, engine_for: Callable[[Bundle], PolicyEngine]) -> ReplayReport:
    """Replay every decision of policy. `engine_for` makes an engine of a bundle (PolicyStage.load).

    Each bundle is loaded once and kept: a record names few. Takes one decision of the engine for
    every recorded one; raises nothing for what is wrong with the record.
    """
    report = ReplayReport()
    engines: dict[str, PolicyEngine | str] = {}
    erased = erasures(record)
    for seq, raw, salt, data in record.ledger.walk(DECISION_KINDS):
        entry = orjson.loads(raw)
        report.decisions += 1
        report.engines.add(str(entry.get("engine")))
        digest = str(entry.get("bundle"))
        if data is None or salt is None:
            on_purpose = erased.get(str(entry.get("body")), 0) > seq
            report.unreplayable["erased" if on_purpose else "missing"] += 1
            continue
        if len(salt) != SALT_BYTES or salted_digest(salt, data) != entry.get("body"):
            report.unreplayable["bad body"] += 1
            continue
        if digest not in engines:
            engines[digest] = _load_engine(record, digest, engine_for)
        engine = engines[digest]
        if isinstance(engine, str):
            report.unreplayable[engine] += 1
            continue
        report.bundles.add(digest)
        report.engine.add(engine.name)
        # Where nobody answered, the deny that the gateway made of that is what must come again.
        _compare(report, seq, entry, data, NOBODY if entry.get("engine") == NOBODY.name else engine)
    return report


def erasures(record: StoreReader) -> dict[str, int]:
    """Return the erased bodies' digests, for a replay, each with the seq of the last to name it."""
    named: dict[str, int] = {}
    for seq, raw, _, _ in record.ledger.walk((ERASURE,)):
        found = orjson.loads(raw).get("erased")
        if isinstance(found, list):
            named |= {digest: seq for digest in found if isinstance(digest, str)}
    return named


def _load_engine(
    record: StoreReader, digest: str, engine_for: Callable[[Bundle], PolicyEngine]
) -> PolicyEngine | str:
    try:
        files = record.policy.bundle_files(digest)
        if files is None:
            return "no bundle"
        return engine_for(Bundle.from_record(files, digest))
    except VedetteError:
        return "bad bundle"


def _compare(
    report: ReplayReport, seq: int, entry: Mapping[str, Any], data: bytes, engine: Decider
) -> None:
    body = orjson.loads(data)
    recorded, request = body["decision"], body["question"]
    decision, request_bytes = request_decision(engine, request)
    answers = body.get("answers", ())
    if any(
        canonical_json(decision.to_json()) == canonical_json(one["decision"]) for one in answers
    ):
        # Two engines differed, and this is what one of them said: together they are a deny again.
        decision = build_difference_denial(answers)
        report.disputed += 1
    replayed = decision.to_json()
    # The entry's own words about the decision must be those of its body.
    same_question = canonical_json(request) == request_bytes
    same_entry = all(entry.get(name) == value for name, value in _decision_fields(decision).items())
    if same_question and same_entry and canonical_json(replayed) == canonical_json(recorded):
        report.agreed += 1
    else:
        report.differed += 1
        if len(report.differences) < MAX_DIFFERENCES:
            words = {name: entry.get(name) for name in _decision_fields(decision)}
            report.differences.append(Difference(seq, {**recorded, "entry": words}, replayed))
    revision = int(entry.get("policy_rev") or 0)
    report.revisions.setdefault(revision, Counter())[decision.outcome] += 1


def _decision_fields(decision: Decision) -> dict[str, Any]:
    return {"outcome": decision.outcome, "rule": decision.rule}
