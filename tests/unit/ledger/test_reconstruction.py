"""What is wrong with the entries about one action is found; rules and samples are read rightly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from vedette.domain.base.canonical import SALT_BYTES, canonical_json, salted_digest
from vedette.domain.ports.ledger_reader import RawEntry
from vedette.domain.run import ActionRow
from vedette.ledger.history.counts import ReportCounts, rules_of
from vedette.ledger.history.entry_view import read_entry
from vedette.ledger.history.reconstruction import reconstruct
from vedette.ledger.history.sample import Sample
from vedette.ledger.history.time_window import find_window, parse_fields, read_instant
from vedette.testing.harness import checkout

RUN, ACTION = "run_1", "act_1"
SALT = b"s" * SALT_BYTES
T0 = 1_750_000_000_000_000


class Book:
    """Entries in a list: all that a reconstruction reads."""

    def __init__(self) -> None:
        self.walked: list[RawEntry] = []

    def add(self, kind: str, body: Any = None, **fields: Any) -> Book:
        seq = len(self.walked) + 1
        data = None if body is None else canonical_json(body)
        value = {"seq": seq, "at": T0 + seq, "kind": kind, "agent": "worker", "event": "evt_1"}
        if "run" not in fields:
            value |= {"run": RUN, "n": seq, "action": ACTION, "tool": "wire.send"}
        if data is not None:
            value["body"] = salted_digest(SALT, data)
        raw = canonical_json({k: v for k, v in {**value, **fields}.items() if v is not None})
        self.walked.append((seq, raw, SALT if data else None, data))
        return self

    def decided(self, outcome: str, *, approved: str = "", digest: str = "d1") -> Book:
        given = [{"action_digest": "d1", "by": approved, "until": 0}] if approved else []
        question = {
            "subject": {"id": "spiffe://harbour/agent/worker"},
            "action": {"digest": digest, "origins": {"/to": "trusted"}, "settles": "idempotent"},
            "context": {"turn": 1, "approvals": given, "event": {"type": "job"}},
        }
        return self.add(
            "action.decided", {"question": question, "decision": {"reasons": []}}, outcome=outcome,
            rule="some.rule", policy_rev=1, bundle="b1", action_digest="d1", release="r1",
        )  # fmt: skip

    def walk(self, kinds: tuple[str, ...] | None = None, after: int = 0) -> Iterator[RawEntry]:
        for walked in self.walked:
            if walked[0] > after and (
                kinds is None or parse_fields(walked[1]).get("kind") in kinds
            ):
                yield walked


def codes(book: Book) -> list[str]:
    return [one["code"] for one in reconstruct(book, T0, T0 + 1000).findings]


def test_a_sound_life_has_no_findings() -> None:
    book = Book().decided("hold").add("hold.approved", {"reason": "yes"}, actor="person:ann")
    book.decided("permit", approved="person:ann").add("effect.intended").add("effect.done")
    account = reconstruct(book, T0, T0 + 1000)
    intent, (shown,) = account.intents[ACTION], account.to_json()["intents"]
    assert account.findings == []
    assert intent.missing_fields == []
    assert (intent.state, intent.is_open, intent.plan) == ("done", False, 4)
    assert shown["approval"] == {
        "seq": 2, "at": T0 + 2, "answer": "approved", "by": "person:ann", "reason": "yes",
    }  # fmt: skip


@pytest.mark.parametrize("state", ["intended", "started", "unknown"])
def test_an_end_that_nobody_recorded_is_open(state: str) -> None:
    book = Book().decided("permit").add("effect.intended")
    if state != "intended":
        book.add(f"effect.{state}")
    account = reconstruct(book, T0, T0 + 1000)
    assert account.findings == []
    assert [intent.id for intent in account.open_intents] == [ACTION]


@pytest.mark.parametrize(
    ("book", "code"),
    [
        (Book().decided("deny").add("effect.intended"), "unpermitted"),
        (Book().decided("hold").add("hold.denied").add("effect.intended"), "unpermitted"),
        (Book().decided("permit").add("budget.refused").add("effect.intended"), "unpermitted"),
        (Book().decided("permit").add("effect.intended").add("effect.intended"), "twice"),
        (Book().decided("permit").add("effect.done"), "unplanned"),
        (Book().decided("permit").add("effect.intended", effect_key="2"), "key"),
        (Book().decided("permit", digest="d2"), "digest"),
        (Book().decided("permit", approved="person:ann"), "approval"),
        (
            Book().decided("hold").add("hold.approved", actor="person:bob")
            .decided("permit", approved="person:ann"),
            "approval",
        ),
        (Book().decided("permit").add("effect.intended", n=5), "gap"),
    ],
)  # fmt: skip
def test_what_does_not_agree_is_found(book: Book, code: str) -> None:
    assert codes(book) == [code]


def test_a_plan_that_was_taken_back_may_be_made_again() -> None:
    book = Book().decided("permit").add("effect.intended").decided("hold").add("effect.cancelled")
    assert codes(book.decided("permit").add("effect.intended").add("effect.done")) == []
    assert codes(Book().decided("permit").add("effect.intended").add("effect.cancelled")) == []


def test_a_call_of_unknown_outcome_may_be_planned_again_once_it_is_decided_again() -> None:
    """A stop, or a person who is asked, comes between: nobody cancels what may have happened."""
    book = Book().decided("permit").add("effect.intended").add("effect.started")
    stopped = book.decided("hold").add("effect.unknown", tries=1)
    assert codes(stopped.decided("permit").add("effect.intended", tries=1)) == []
    assert codes(stopped.add("effect.started", tries=1).add("effect.done", tries=2)) == []
    unasked = Book().decided("permit").add("effect.intended").add("effect.unknown", tries=1)
    assert codes(unasked.add("effect.intended", tries=1)) == ["twice"]
    unasked = Book().decided("permit").add("effect.intended").decided("hold")
    assert codes(unasked.add("effect.unknown").add("effect.intended")) == ["unpermitted", "twice"]


def test_a_body_that_is_another_or_gone_is_found() -> None:
    book = Book().decided("permit").decided("permit")
    seq, raw, salt, data = book.walked[0]
    book.walked[0] = (seq, raw, salt, b"{}" + (data or b""))
    assert codes(book) == ["body"]
    book.walked[0] = (seq, raw, salt, b" " + (data or b""))
    assert codes(book) == ["body"]
    book.walked[0] = (seq, raw, None, None)
    assert codes(book) == ["body"]
    named = [orjson.loads(raw)["body"]]
    book.add("body.erased", erased=named, run=None, agent=None, action=None)
    assert codes(book) == []


def test_an_entry_that_cannot_be_read_is_found() -> None:
    book = Book().decided("permit").add("effect.intended").add("effect.done")
    seq, raw, salt, data = book.walked[1]
    book.walked[1] = (seq, raw[:-9], salt, data)
    assert codes(book) == ["entry", "gap", "unplanned"]


def test_where_a_window_begins() -> None:
    book = Book()
    for _ in range(5):
        book.add("run.closed")
    assert find_window(book, T0 + 3, T0 + 9).first == 3
    assert [w[0] for w in find_window(book, T0 + 2, T0 + 4).walk(book)] == [2, 3]
    assert list(find_window(book, T0 + 99, T0 + 999).walk(book)) == []


def test_an_instant_is_read_off_the_bytes() -> None:
    assert read_instant(b'{"agent":"a","at":123,"kind":"x"}') == 123
    assert read_instant(b'{"at":7}') == 7
    assert read_instant(b'{"kind":"x"}') == 0


def test_rules_are_read_off_the_policy() -> None:
    text = b"""package vedette.denies
# "in.comment"
deny contains "denies.night" if input.action.tool == "mail.file"
deny contains sprintf("denies.tool:%s", [x]) if input.action.tool in {"a.b", "c.d"}
manner := "permit.approved" if data.things["some.key"] else := "permit.tool"
plain := "nodots"
"""
    files = {"vedette/denies/denies.rego": text, "vedette/denies/d_test.rego": b'x := "t.t"'}
    assert rules_of({**files, "data.yaml": b'"y.y"'}) == {
        "denies.night", "denies.tool", "permit.approved", "permit.tool",
    }  # fmt: skip


def test_the_shipped_rules_are_known() -> None:
    root = checkout() / "policies"
    rules = rules_of({str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*.rego")})
    assert {"permit.tool", "permit.memory", "mode.observe", "mode.ask", "impact.high"} <= rules
    assert {"confidence.low", "limits.hour", "denies.agent", "proof.missing"} <= rules
    assert "memory.read" not in rules  # it is compared with, and decides nothing


def sampled(seed: str, number: int, refused: frozenset[int] = frozenset()) -> list[str]:
    sample = Sample(seed, 20)
    for seq in range(number):
        fields = {"kind": "action.decided", "outcome": "permit", "action": f"act_{seq}", "at": seq}
        sample.add_entry(read_entry(seq, canonical_json(fields), None))
        if seq in refused:
            sample.add_entry(
                read_entry(
                    seq, canonical_json({"kind": "budget.refused", "action": f"act_{seq}"}), None
                )
            )
    return [one["action"] for one in sample.to_json()]


def test_a_sample_is_repeatable_and_drawn_from_all() -> None:
    drawn = sampled("monday", 1000)
    assert len(drawn) == 20
    assert sampled("monday", 1000) == drawn
    assert sampled("tuesday", 1000) != drawn
    assert len(sampled("monday", 7)) == 7
    first = sum(1 for n in range(40) for a in sampled(f"{n}", 1000) if int(a[4:]) < 500)
    assert 330 < first < 470  # of 800, half to be expected
    erased = frozenset({int(drawn[0][4:]), int(drawn[1][4:])})
    repeat = sampled("monday", 1000, erased)
    assert set(drawn) - set(repeat) == set(drawn[:2])


# --- what a report says of effects and starts ---------------------------------------------------


def tally_of(book: Book, rows: dict[str, ActionRow] | None = None) -> ReportCounts:
    tally = ReportCounts(Sample("seed", 1), None if rows is None else rows.get)
    for seq, raw, _, data in book.walk():
        tally.add_entry(read_entry(seq, raw, data))
    return tally


def test_a_command_given_while_no_fleet_ran_is_no_start() -> None:
    book = Book()
    for what in (None, "visit", "visit", None):  # a record of before has no word for it
        book.add("store.opened", epoch=1, what=what)
    assert tally_of(book).traffic()["starts"] == 2


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"state": "retry", "error": "refused"}, "its tries are used up"),
        ({"state": "unknown", "error": "no answer"}, "its tries are used up"),
        ({"state": "failed", "error": "400"}, "the call failed for good"),
        (None, "nobody knows whether it happened, and it was let be"),
    ],
)
def test_why_an_effect_failed_is_told_by_its_outcome(body: Any, why: str) -> None:
    book = Book().decided("permit").add("effect.intended").add("effect.failed", body, tries=5)
    (odd,) = tally_of(book).exceptions()
    assert (odd["kind"], odd["why"], odd["next_try_at"]) == ("effect.failed", why, None)
    if body is not None:
        seq, raw, salt, _ = book.walked[-1]
        book.walked[-1] = (seq, raw, salt, None)
        (odd,) = tally_of(book).exceptions()
        assert odd["why"] == "it was called, and not done"


@pytest.mark.parametrize(
    ("tries", "effect", "why", "next_try"),
    [
        (0, "intended", "permitted and not begun", None),
        (1, "intended", "called once and not done yet", T0 + 9),
        (4, "intended", "called 4 times and not done yet", T0 + 9),
        (4, "done", "permitted and not begun", None),  # since: the window did not see it
    ],
)
def test_what_was_tried_of_an_open_effect_is_told(
    tries: int, effect: Any, why: str, next_try: int | None
) -> None:
    book = Book().decided("permit").add("effect.intended")
    row = ActionRow(ACTION, RUN, 1, 0, "worker", "wire.send", "d1", b"{}")
    row.effect, row.tries, row.not_before_us = effect, tries, T0 + 9
    (odd,) = tally_of(book, {ACTION: row}).exceptions()
    assert (odd["kind"], odd["why"], odd["next_try_at"]) == ("effect.intended", why, next_try)
    (alone,) = tally_of(book).exceptions()
    assert alone["why"] == "permitted and not begun"
