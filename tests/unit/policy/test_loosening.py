"""What a bundle loosens is named exactly, key by key; what tightens is not called a loosening."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from vedette.domain.bundle import Bundle
from vedette.domain.decision import DECISION_SCHEMA
from vedette.policy.loosening import find_loosening, find_looser_decisions

Data = dict[str, Any]
Edit = Callable[[Data], None]

SEND = {"verb": "send", "resource": "outbox", "impact": "high"}
FILE = {"verb": "move", "resource": "mailbox", "impact": "low", "only": {"/folder": ["Junk"]}}
TIED = {"verb": "move", "resource": "x", "impact": "low", "triggers": {"rent": {"/to": ["a"]}}}
DATA: Data = {
    "grants": {
        "desk": {
            "mode": "ask", "owner": "o@x.example", "memory": ["inbox/inbox"], "inward": [],
            "tools": {"mail.send": SEND, "mail.file": FILE, "mail.tie": TIED},
        },
        "watch": {"mode": "act", "tools": {}},
    },
    "limits": {
        "hops": 2, "complete": True,
        "actions": {"default": {"minute": 5, "hour": 9, "day": 9},
                    "agents": {"desk": {"minute": 2, "hour": 9, "day": 9}}},
        "confidence_milli": {"default": 800,
                             "agents": {"desk": {"default": 850, "tools": {"mail.send": 900}}}},
    },
    "budgets": {"fleet": {"actions": {"hour": 10}}, "agents": {"desk": {"tokens": {"day": 5}}},
                "prices": {"m": {"input": 3}}, "complete": True},
    "sinks": {"complete": True,
              "tools": {"mail.send": {"/to": {"accepts": ["trusted"], "otherwise": "deny"}}}},
    "registry": {"contacts": {"counsel": "c@law.example"}},
    "denies": {"agents": ["watch"], "tools": ["mail.send"], "complete": True},
    "house": {"quiet": 22},
}  # fmt: skip


def put(path: str, value: Any) -> Edit:
    def edit(data: Data) -> None:
        *inner, last = path.split("|")
        for step in inner:
            data = data[step]
        data[last] = value

    return edit


def take(path: str) -> Edit:
    def edit(data: Data) -> None:
        *inner, last = path.split("|")
        for step in inner:
            data = data[step]
        del data[last]

    return edit


def says(edit: Edit) -> tuple[str, ...]:
    now = copy.deepcopy(DATA)
    edit(now)
    old, new = Bundle.of({"a/data.json": b"1"}), Bundle.of({"a/data.json": b"2"})
    return find_loosening(old, new, lambda files: DATA if files == old.files else now).statements


LOOSER: list[tuple[Edit, tuple[str, ...]]] = [
    (put("grants|desk|mode", "act"), ("desk: mode ask -> act",)),
    (take("grants|desk|owner"), ("desk: owner o@x.example -> None",)),
    (put("grants|desk|owner", "p@x.example"), ("desk: owner o@x.example -> p@x.example",)),
    (put("grants|desk|memory", ["inbox/inbox", "m/n"]), ("desk: may read m/n",)),
    (put("grants|desk|inward", ["mail.send"]),
     ("desk: mail.send is called inward, its permits wait for no second opinion",)),
    (put("grants|desk|tools|mail.burn", SEND), ("desk: mail.burn is granted",)),
    (put("grants|desk|tools|mail.send|impact", "low"), ("desk: mail.send: impact high -> low",)),
    (put("grants|desk|tools|mail.send|verb", "burn"), ("desk: mail.send: verb send -> burn",)),
    (put("grants|desk|tools|mail.send|resource", "x"),
     ("desk: mail.send: resource outbox -> x",)),
    (take("grants|desk|tools|mail.file|only"),
     ("desk: mail.file: any value of its arguments, where only some were granted",)),
    (put("grants|desk|tools|mail.file|only", {"/folder": ["Junk", "Out"]}),
     ("desk: mail.file: /folder may be Out",)),
    (put("grants|desk|tools|mail.file|only", {"/other": ["Junk"]}),
     ("desk: mail.file: any value of /folder",)),
    (put("grants|new", {"mode": "act", "tools": {"t": SEND}}),
     ("new: known to policy", "new: mode observe -> act", "new: t is granted")),
    (put("limits|hops", 3), ("hops 2 -> 3",)),
    (put("limits|actions|agents|desk|minute", 3), ("desk: actions a minute 2 -> 3",)),
    (take("limits|actions|agents|desk"), ("desk: actions a minute 2 -> 5",)),
    (put("limits|actions|default|day", 10), ("every agent: actions a day 9 -> 10",)),
    (put("limits|confidence_milli|agents|desk|tools|mail.send", 899),
     ("desk: mail.send: needs a confidence of 899 thousandths, was 900",)),
    (take("limits|confidence_milli|agents|desk|tools|mail.send"),
     ("desk: mail.send: needs a confidence of 850 thousandths, was 900",)),
    (put("budgets|fleet|actions|hour", 11), ("budget fleet/actions/hour: 10 -> 11",)),
    (take("budgets|agents|desk|tokens"), ("budget agents/desk/tokens/day: 5 -> none",)),
    (put("budgets|prices|m|input", 2), ("budget prices/m/input: 3 -> 2",)),
    (put("sinks|tools|mail.send|/to|accepts", ["trusted", "untrusted"]),
     ("mail.send /to: takes untrusted",)),
    (put("sinks|tools|mail.send|/to|otherwise", "hold"),
     ("mail.send /to: else a person may allow it, where it was denied",)),
    (put("sinks|tools|mail.file", {"/x": {"accepts": ["derived"], "otherwise": "deny"}}),
     ("mail.file /x: takes derived",)),
    (take("sinks|tools|mail.send"),
     ("mail.send /to: no longer listed, so free where the tool does not declare it",)),
    (put("registry|contacts|counsel", "x@y.example"),
     ('registry/contacts/counsel is "x@y.example"',)),
    (put("registry|contacts|new", "x@y.example"), ('registry/contacts/new is "x@y.example"',)),
    (put("denies|agents", []), ("agent watch is denied no longer",)),
    (put("denies|tools", []), ("tool mail.send is denied no longer",)),
    (put("house|quiet", 23), ("data.house/quiet: changed",)),
    (put("more", {"a": 1}), ("data.more/a: changed",)),
    (put("grants|desk|nights", True), ("data.grants/desk/nights: changed",)),
    (put("grants|desk|tools|mail.file|only", {}), ("desk: mail.file: any value of /folder",)),
    (put("grants|desk|tools|mail.file|only", True),
     ("desk: mail.file: other values of its arguments, in another shape",)),
    (put("grants|desk|tools|mail.file|only", {"/folder": {"a": "Out"}}),
     ("desk: mail.file: /folder may be {'a': 'Out'}",)),
    (take("grants|desk|tools|mail.tie|triggers"),
     ("desk: mail.tie: for any run, where only some triggers were granted",)),
    (put("grants|desk|tools|mail.tie|triggers|inbox", {}),
     ("desk: mail.tie: runs of trigger inbox have it",)),
    (put("grants|desk|tools|mail.tie|triggers", ["rent"]),
     ("desk: mail.tie: trigger rent: any value of /to",)),
    (put("grants|desk|tools|mail.tie|triggers|rent|/to", ["a", "b"]),
     ("desk: mail.tie: trigger rent: /to may be b",)),
    (put("grants|desk|tools|mail.tie|triggers", "rent"),
     ("desk: mail.tie: other triggers, in another shape",)),
    (put("grants|desk|tools|mail.send|nights", True),
     ("data.desk: mail.send/nights: changed",)),
    (put("grants|desk|memory", {"a": "m/n"}), ("desk: may read {'a': 'm/n'}",)),
    (put("grants|watch|memory", {"a": "m/n"}), ("watch: may read {'a': 'm/n'}",)),
    (put("sinks|tools|mail.send|/to|accepts", {"a": "untrusted"}),
     ("mail.send /to: takes {'a': 'untrusted'}",)),
    (put("sinks|tools|mail.file", {"/x": {"accepts": [], "receiver": False}}),
     ("mail.file /x: receives nothing, so it may be none of the permitted readers",)),
    (put("sinks|tools|mail.send|/to|receiver", False),
     ("mail.send /to: receives nothing, so it may be none of the permitted readers",)),
    (put("sinks|tools|mail.send|/to|other", 1), ("data.sinks/tools/mail.send/to/other: changed",)),
    (put("denies|tools", {"a": "mail.send"}),
     ("tool mail.send is denied no longer", "denies/tools: is no list")),
    (put("limits|hops", "2"), ("hops 2 -> 2",)),
    (put("limits|confidence_milli|default", 0.5),
     ("every agent: needs a confidence of 0.5 thousandths, was 800",)),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "expected"), LOOSER)
def test_what_loosens_is_named(edit: Edit, expected: tuple[str, ...]) -> None:
    found = says(edit)
    assert set(expected) <= set(found), found
    assert len(found) <= len(expected) + 1, found


TIGHTER: list[Edit] = [
    put("grants|desk|mode", "observe"),
    put("grants|watch|mode", "ask"),
    take("grants|watch"),
    put("grants|desk|memory", []),
    take("grants|desk|tools|mail.send"),
    put("grants|desk|tools|mail.file|impact", "high"),
    put("grants|desk|tools|mail.file|only", {"/folder": []}),
    put("grants|desk|tools|mail.send|only", {"/to": ["a"]}),
    put("grants|desk|tools|mail.tie|triggers", {}),
    put("grants|desk|tools|mail.tie|triggers|rent|/to", []),
    put("grants|desk|tools|mail.tie|triggers|rent|/account", ["a"]),
    put("grants|desk|tools|mail.send|triggers", ["rent"]),
    put("sinks|tools|mail.send|/to|receiver", True),
    put("limits|hops", 1),
    put("limits|actions|agents|desk|minute", 1),
    put("limits|actions|agents|watch", {"minute": 1, "hour": 1, "day": 1}),
    put("limits|confidence_milli|default", 900),
    put("limits|confidence_milli|agents|watch", {"default": 900}),
    put("budgets|fleet|actions|hour", 9),
    put("budgets|fleet|tokens", {"hour": 1}),
    put("budgets|prices|m|input", 4),
    put("sinks|tools|mail.file", {"/x": {"accepts": ["trusted"], "otherwise": "deny"}}),
    take("registry|contacts|counsel"),
    put("denies|tools", ["mail.send", "mail.file"]),
]


@pytest.mark.parametrize("edit", TIGHTER)
def test_what_tightens_needs_nobody(edit: Edit) -> None:
    assert says(edit) == ()


def test_data_that_goes_or_takes_another_shape_is_no_silent_change() -> None:
    for name in DATA:
        assert says(take(name)), name
        assert says(put(name, ["x"])), name


def rules(text: str, path: str = "vedette/denies/denies.rego") -> Bundle:
    return Bundle.of({path: text.encode()})


def test_what_is_confirmed_is_these_words_about_these_bundles() -> None:
    """A changed rule is said by its file alone: another change of it is another loosening."""
    old, *others = (rules(f"package p\n\nok if input.x == {n}\n") for n in range(3))
    found = [find_loosening(old, new, lambda files: {}) for new in others]
    assert found[0].statements == found[1].statements
    back = [find_loosening(new, old, lambda files: {}) for new in others]
    assert len({each.digest for each in (*found, *back)}) == 4


def test_a_changed_rule_is_a_loosening_and_a_changed_comment_or_test_is_not() -> None:
    old = rules("package p\n\nok if false\n")

    def says_of(new: Bundle) -> tuple[str, ...]:
        return find_loosening(old, new, lambda files: {}).statements

    path = "vedette/denies/denies.rego"
    assert says_of(rules("package p\n\nok if true\n")) == (f"rules changed: {path}",)
    assert says_of(rules("package p\n\nok if false\n# why\n\n")) == ()
    assert says_of(Bundle.of({**old.files, "a_test.rego": b"package a"})) == ()
    assert says_of(Bundle.of({**old.files, "b/x.rego": b"package b"})) == ("rules added: b/x.rego",)
    assert says_of(rules("package q", "q/q.rego")) == (
        "rules added: q/q.rego", f"rules taken away: {path}"
    )  # fmt: skip
    # What Rego reads as one line is one line here: nothing of it may pass for a comment.
    for end in ("\u2028", "\u2029", "\x85", "\x0c"):
        one = f'package p\n\nok if input.x != "{end}# "; input.y == 1\n'
        other = rules(one.replace("== 1", "== 2"))
        assert find_loosening(rules(one), other, lambda files: {}).statements, repr(end)
    raw = "package p\n\nx := `a\n# b`\n"
    assert find_loosening(rules(raw), rules(raw.replace("# b", "# c")), lambda files: {}).statements


def test_the_digest_is_of_the_words_alone() -> None:
    old, new = rules("package p\nok if false\n"), rules("package p\nok if true\n")
    found = find_loosening(old, new, lambda files: {})
    assert found.digest == find_loosening(old, new, lambda files: {}).digest
    assert (
        found.digest != find_loosening(old, rules("package q", "q.rego"), lambda files: {}).digest
    )


class Says:
    name, digest = "says", ""

    def __init__(self, outcome: str) -> None:
        self.outcome = outcome

    def decide(self, question: bytes) -> object:
        return {
            "schema": DECISION_SCHEMA, "outcome": self.outcome, "rule": "r", "reasons": [],
            "wait": "approval" if self.outcome == "hold" else None, "until": 0, "would": None,
            "obligations": [],
        }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "looser"),
    [("deny", "permit", 3), ("deny", "hold", 3), ("hold", "permit", 3), ("permit", "deny", 0),
     ("permit", "hold", 0), ("hold", "deny", 0), ("permit", "permit", 0)],
)  # fmt: skip
def test_recorded_questions_are_answered_under_both(old: str, new: str, looser: int) -> None:
    question = b'{"subject":{"agent":"desk"},"action":{"tool":"mail.send"}}'
    report = find_looser_decisions(Says(old), Says(new), [question] * 3)
    assert report[0] == f"of the last 3 decisions {looser} would have come out looser"
    more = (f"3 x desk mail.send: {old} (r) -> {new} (r)",) if looser else ()
    assert report[1:] == more
