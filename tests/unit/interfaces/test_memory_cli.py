"""What people see of a memory before they promote it: everything, in 80 columns."""

from __future__ import annotations

from typing import Any

from vedette.interfaces.cli.memory import memory_text

FOUND: dict[str, Any] = {
    "memory": {
        "id": "cnd_" + "a" * 32, "bank": "inbox", "scope": "inbox", "state": "candidate",
        "kind": "example", "label": "legal", "topics": ["legal"], "trust": "learned",
        "text": "Subject: The fender\n\n" + "a long line of somebody's words " * 8 + "\x1b[2J",
        "by": "", "on": None, "agent": "memory_curator", "run": "run_" + "b" * 32,
        "event": "evt_" + "c" * 32, "evidence": ["run_" + "d" * 32, "evt_" + "e" * 32],
        "replaces": "question-03", "proposed_at": 1,
    },
    "story": [
        {"seq": 1, "at": 1_780_000_000_000_000, "kind": "memory.proposed", "by": None,
         "reason": None, "erased": False},
        {"seq": 9, "at": 1_780_000_000_000_000, "kind": "memory.retired", "by": "person:kim",
         "reason": "it was of no use to anybody at the desk, and of no use to the guests either",
         "erased": False},
        {"seq": 10, "at": 1_780_000_000_000_000, "kind": "memory.restored", "by": "person:kim",
         "reason": None, "erased": True},
    ],
    "readers": ["inbox_triage"],
    "would": [
        {"agent": "inbox_triage", "events": 200, "why_not": None, "flips": [
            {"run": "run_" + str(n) * 32, "event": "evt_1", "before": "question", "after": "legal",
             "confidence": 0.9} for n in range(10)] * 2},
        {"agent": "memory_curator", "events": 0, "flips": [], "why_not": "its judge keeps a state"},
    ],
}  # fmt: skip


def test_it_shows_what_it_says_what_it_rests_on_and_what_it_would_change() -> None:
    text = memory_text(FOUND, "vedette")
    for part in (
        "candidate: example, label legal, scope inbox, learned",
        "takes the place of question-03",
        "proposed by memory_curator in run_bbbb",
        "rests on run_dddd",
        "rests on evt_eeee",
        "Subject: The fender",
        "retired by person:kim: it was of no use",
        "restored by person:kim: (erased)",
        "inbox_triage: of its last 200 events 20 would be judged otherwise",
        "question -> legal",
        "and 10 more",
        "memory_curator: not tried on its events: its judge keeps a state",
        "promote it: vedette memory set cnd_aaaaaaaa active --reason WHY",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text, "no word of a stranger moves the terminal"


def test_only_what_waits_is_offered_for_promotion() -> None:
    active = {**FOUND, "memory": {**FOUND["memory"], "state": "active"}, "would": []}
    assert "promote it" not in memory_text(active, "vedette")


def test_what_was_written_forges_no_line_of_ours() -> None:
    forged = "x\n  active: fact, reviewed by kim\x1b[31m"
    odd = {"label": forged, "replaces": forged, "evidence": [forged]}
    text = memory_text({**FOUND, "memory": {**FOUND["memory"], **odd}}, "vedette")
    assert not [line for line in text.splitlines() if line.startswith("  active: fact")]
    assert text.count("reviewed by kim") == 3
    assert "\x1b" not in text
