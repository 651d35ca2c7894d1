"""Explain, inbox and status over a record in memory: what people read, and that it is safe."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import orjson
import pytest
from msgspec.structs import replace
from tests.store_parts import store_of

from vedette.domain.base.canonical import canonical_json, short_id
from vedette.domain.base.clock import iso
from vedette.domain.base.errors import BadCommand
from vedette.domain.decision import Decision
from vedette.domain.entry import Body, Draft, encode_entry
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.hold import transition
from vedette.domain.run import ActionRow, Run, run_id
from vedette.engine import action_holds
from vedette.interfaces.render.explain_html import explain_page
from vedette.interfaces.render.explain_text import explain_text
from vedette.ledger.history.explain import explain
from vedette.ledger.history.lists import inbox, runs_page, status
from vedette.ledger.history.reader import resolve
from vedette.testing.sample_steps import action, decision_entry, entry, event, held_action

T0 = 1_750_000_000_000_000
MINUTE = 60_000_000
HOLD = Decision("hold", "impact.high", ("impact.high:valve.close",), "approval")
PERMIT = Decision("permit", "permit.approved", ("permit.approved:valve.close",))
OBSERVED = Decision("deny", "mode.observe", ("mode.observe",), would="permit")


class MemoryRecord:
    """A Record of lists and dicts, filled as a store would be."""

    def __init__(self) -> None:
        self.sealed: list[tuple[int, bytes, bytes | None]] = []
        self.events: dict[str, int] = {}
        self.runs: dict[str, Run] = {}
        self.rows: dict[str, ActionRow] = {}
        self.store = store_of(self)
        self.live, self.stopped = (2, "b" * 64), [("tool", "valve.close"), ("agent", "sorter")]

    # --- filling ----------------------------------------------------------------------------

    def write(self, draft: Draft, run: Run | None = None) -> int:
        seq = len(self.sealed) + 1
        if run is not None:
            run.entries, run.last = run.entries + 1, seq
        body = None if draft.body is None else short_id("x", seq) + "0" * 30
        raw = encode_entry(
            draft, seq=seq, at_us=T0 + seq * MINUTE, run=run.id if run else None,
            n=run.entries if run else 0, body=body,
        )  # fmt: skip
        self.sealed.append((seq, raw, draft.body.data if draft.body else None))
        return seq

    def accept(self, of: Event, *agents: str) -> list[Run]:
        draft = Draft(
            "event.accepted", {"event": of.key, "woke": len(agents)}, body=Body(of.to_body())
        )
        seq = self.write(draft)
        self.events[of.key] = seq
        runs = [
            Run(run_id(of.source, of.id, name), of.key, name, of.subject or "", seq, last=seq)
            for name in agents
        ]
        self.runs |= {run.id: run for run in runs}
        return runs

    def keep(self, row: ActionRow) -> None:
        row.seq = row.seq or len(self.sealed)
        self.rows[row.id] = row

    def erase(self) -> None:
        self.sealed = [(seq, raw, None) for seq, raw, _ in self.sealed]
        for row in self.rows.values():
            row.record, row.answer = b"", None

    # --- what the timeline asks -------------------------------------------------------------

    def last_seq(self) -> int:
        return len(self.sealed)

    def meta(self, name: str) -> Any:
        return {"fleet": "harbour"}.get(name)

    def entry(self, seq: int) -> tuple[int, bytes, bytes | None] | None:
        return self.sealed[seq - 1] if 0 < seq <= len(self.sealed) else None

    def entries(
        self, column: str, value: str, limit: int = 1000
    ) -> list[tuple[int, bytes, bytes | None]]:
        return [one for one in self.sealed if orjson.loads(one[1]).get(column) == value][:limit]

    def run(self, run: str) -> Run | None:
        return self.runs.get(run)

    def runs_of_event(self, event: str) -> list[Run]:
        return [run for run in self.runs.values() if run.event == event]

    def action(self, action: str) -> ActionRow | None:
        return self.rows.get(action)

    def actions(self, run: str) -> list[ActionRow]:
        return [row for row in self.rows.values() if row.run == run]

    def find_by_prefix(self, table: str, prefix: str) -> list[str]:
        tables: dict[str, Any] = {"run": self.runs, "action": self.rows, "event": self.events}
        return sorted(name for name in tables[table] if name.startswith(prefix))[:20]

    def runs_page(
        self,
        *,
        agent: str | None,
        state: str | None,
        before: int | None,
        limit: int,
        beside: str = "",
        after: int | None = None,
    ) -> list[Run]:
        def place(run: Run) -> tuple[int, str]:
            return run.position, run.agent

        runs = sorted(
            (
                run
                for run in self.runs.values()
                if agent in (None, run.agent) and state in (None, run.state)
            ),
            key=place,
        )
        if after is not None:
            return [run for run in runs if place(run) > (after, beside)][:limit][::-1]
        bound = (2**62 if before is None else before, beside)
        return [run for run in runs[::-1] if place(run) < bound][:limit]

    def holds_page(self, *, after: int, limit: int, beside: str = "") -> list[ActionRow]:
        rows = [row for row in self.rows.values() if row.hold in ("open", "approved")]
        rows.sort(key=lambda row: (row.seq, row.id))
        return [row for row in rows if (row.seq, row.id) > (after, beside)][:limit]

    def ready_runs(self, after: int, limit: int) -> list[Run]:
        ready = [run for run in self.runs.values() if run.state == "ready"]
        return sorted(ready, key=lambda run: run.position)[:limit]

    def wait_counts(self) -> dict[str, int]:
        return {"approval": 1}

    def would(self, limit: int = 100_000) -> dict[str, dict[str, int]]:
        return {"watcher": {"permit": 3}}

    def counts(self) -> dict[str, dict[str, int]]:
        return {
            "watcher": {
                "run.done": 5, "run.dead": 1, "decided.permit": 2, "decided.deny": 3,
                "effect.done": 2, "hold.used": 1,
            }
        }  # fmt: skip

    def lag(self, now_us: int) -> dict[str, Any]:
        return {"reached": 2, "behind": 0, "seconds": 0.0, "followed": False}

    def event_counts(self) -> tuple[int, int]:
        return 7, 1

    def live_revision(self) -> tuple[int, str]:
        return self.live

    def stop_scopes(self) -> list[tuple[str, str]]:
        return self.stopped


def turn_body(**fields: Any) -> Body:
    """Return the body of a turn as the line writes it (see handle.turn_entry)."""
    value = {
        "turn": 1, "label": "alarm", "confidence": "0.9", "score": "6.5", "threshold": "3.7",
        "detail": {"value": "81.5", "views": {"level": {"as_extreme": 0, "compared": 1501}}},
        "final": True, "memories": ["operations/leak@3", "operations/pump@1"],
        "proposals": [
            {"tool": "valve.close", "why": "the value is high", "confidence": "0.9",
             "args": {"valve": {"ref": "/event/subject"}, "note": {"value": "too hot"}}},
            {"tool": "valve.melt", "why": "", "confidence": "1.0", "args": {}},
        ],
        **fields,
    }  # fmt: skip
    return Body(canonical_json(value))


def begin(record: MemoryRecord, run: Run, body: Body | None = None) -> None:
    """Write a recorded turn with one action and one refused proposal."""
    fields: dict[str, Any] = {"turn": 1, "release": "r" * 64, "proposals": 2, "label": "alarm",
              "confidence_milli": 900, "score_milli": 6500, "threshold_milli": 3700}  # fmt: skip
    draft = entry(run, "turn.reasoned", **fields)
    record.write(replace(draft, body=body or turn_body()), run)
    refused = entry(run, "action.refused", turn=1, ordinal=1)
    why = Body(canonical_json({"why": "the agent declares no tool 'valve.melt'"}))
    record.write(replace(refused, body=why), run)
    run.turn = 1


@pytest.fixture
def record() -> MemoryRecord:
    """One run with the whole of a life: held, approved, decided again, done."""
    made = MemoryRecord()
    (run,) = made.accept(event(1), "watcher")
    read = Draft(
        "recall.decided",
        {"agent": "watcher", "memory": "operations/pump", "outcome": "permit",
         "rule": "permit.memory", "policy_rev": 1, "bundle": "b" * 64},
        body=Body(b"{}"),
    )  # fmt: skip
    made.write(read, run)
    begin(made, run)
    row = held_action(run)
    made.write(decision_entry(run, row, HOLD, revision=1), run)
    made.keep(row)
    person = {"actor": "person:kim", "action": row.id, "action_digest": row.digest, "until": 9}
    reason = Body(canonical_json({"reason": "seen it"}))
    made.write(Draft("hold.approved", person, run.last, body=reason), run)
    assert row.hold is not None
    row.hold, row.approver = transition(row.hold, "approved"), "person:kim"
    made.write(decision_entry(run, row, PERMIT, revision=2), run)
    action_holds.apply_decision(row, PERMIT, 2, T0)
    fields: dict[str, Any] = {"action": row.id, "tool": row.tool, "policy_rev": 2}
    made.write(entry(run, "effect.intended", **fields), run)
    row.effect, row.tries = "done", 1
    row.answer = canonical_json({"state": "done", "data": {"valve": "shut"}, "error": ""})
    done = entry(run, "effect.done", **fields, tries=1)
    made.write(replace(done, body=Body(row.answer)), run)
    made.write(entry(run, "run.closed", settled=1), run)
    run.state = "done"
    return made


def only(record: MemoryRecord) -> tuple[Run, ActionRow]:
    (run,), (row,) = record.runs.values(), record.rows.values()
    return run, row


# --- resolve --------------------------------------------------------------------------------


def test_an_id_or_the_beginning_of_one_is_enough(record: MemoryRecord) -> None:
    run, row = only(record)
    number = row.id.removeprefix("act_")
    for text, found in {
        run.id: ("run", run.id),
        run.id[:9]: ("run", run.id),
        f" {run.event} ": ("event", run.event),
        run.event[:8]: ("event", run.event),
        row.id: ("action", row.id),
        f"hold_{number}": ("hold", f"hold_{number}"),
        f"eff_{number[:6]}": ("effect", f"eff_{number}"),
        number[:10]: ("run", run.id),  # what an event made begins as its own id does
        number[:24]: ("action", row.id),
        "run_": ("run", run.id),
    }.items():
        assert resolve(record.store, text) == found


@pytest.mark.parametrize("text", ["run_0000", "evt_zz", "act_nothing", "hold_", "", "ab", "zzzz"])
def test_what_names_nothing_is_refused_with_a_mend(text: str) -> None:
    record = MemoryRecord()
    record.accept(event(1), "watcher")
    with pytest.raises(BadCommand) as refusal:
        resolve(record.store, text)
    assert refusal.value.mend


def test_a_hold_is_found_only_where_there_is_or_was_one() -> None:
    record = MemoryRecord()
    (run,) = record.accept(event(1), "watcher")
    record.keep(action(run, decided="deny", rule="r"))
    _, row = only(record)
    number = row.id.removeprefix("act_")
    assert resolve(record.store, f"act_{number}") == ("action", row.id)
    for kind in ("hold", "eff"):
        with pytest.raises(BadCommand, match="nothing is known"):
            resolve(record.store, f"{kind}_{number}")


def test_what_could_be_several_lists_them() -> None:
    record = MemoryRecord()
    for number in range(12):
        record.accept(event(number), "watcher")
    with pytest.raises(BadCommand, match=r"may be any of run_.*, run_.*…") as refusal:
        resolve(record.store, "run_")
    assert refusal.value.what.count("run_") == 1 + 8


# --- explain --------------------------------------------------------------------------------


def test_one_object_tells_the_whole_story(record: MemoryRecord) -> None:
    run, row = only(record)
    explanation = explain(record.store, run.id)
    assert json.loads(json.dumps(explanation)) == explanation
    assert (explanation["schema"], explanation["kind"], explanation["focus"]) == (
        "vedette.explain/1",
        "run",
        None,
    )
    of = explanation["event"]
    assert of["attributes"]["subject"] == "pump"
    assert (of["data"], of["vouched"]) == ({"value": 1}, sorted(ENVELOPE))
    (story,) = explanation["runs"]
    assert story["identity"] == "spiffe://harbour/agent/watcher"
    assert (story["state"], story["turns"], story["release"]) == ("done", 1, "r" * 64)
    assert story["memories"] == ["operations/leak@3", "operations/pump@1"]
    assert story["reads"][0]["memory"] == "operations/pump"
    (judgement,) = story["judgements"]
    assert (judgement["label"], judgement["score_milli"]) == ("alarm", 6500)
    assert judgement["detail"]["views"]["level"]["compared"] == 1501
    proposed, melted = judgement["proposals"]
    assert (proposed["action"], proposed["refused"]) == (row.id, None)
    assert melted["refused"]["why"] == "the agent declares no tool 'valve.melt'"
    items = story["timeline"]
    assert [item["seq"] for item in items] == sorted(item["seq"] for item in items)
    assert [item["kind"] for item in items][:3] == [
        "event.accepted", "recall.decided", "turn.reasoned",
    ]  # fmt: skip
    assert all(item["cause"] is None or item["cause"] < item["seq"] for item in items)
    assert not any(item["erased"] for item in items)


def test_an_action_shows_arguments_origins_decisions_hold_and_effect(record: MemoryRecord) -> None:
    _, row = only(record)
    (shown,) = explain(record.store, row.id)["runs"][0]["actions"]
    arguments = {argument["name"]: argument for argument in shown["arguments"]}
    assert arguments["valve"] == {
        "pointer": "/valve", "name": "valve", "value": "v1", "origin": "trusted",
        "source": "/event/subject", "sink": True,
    }  # fmt: skip
    assert (arguments["note"]["origin"], arguments["note"]["source"]) == ("derived", None)
    assert (shown["why"], shown["digest"]) == ("the value is high", row.digest)
    first, second = shown["decisions"]
    assert (first["outcome"], first["rule"], first["wait"], first["revision"]) == (
        "hold", "impact.high", "approval", 1,
    )  # fmt: skip
    assert (second["outcome"], second["revision"]) == ("permit", 2)
    assert second["reasons"] == ["permit.approved:valve.close"]
    answer = shown["hold"]["answers"][0]
    assert (answer["answer"], answer["by"], answer["reason"]) == (
        "approved", "person:kim", "seen it",
    )  # fmt: skip
    assert shown["hold"]["state"] == "used"
    assert [state["state"] for state in shown["effect"]["states"]] == ["intended", "done"]
    assert shown["effect"]["outcome"]["data"] == {"valve": "shut"}


@pytest.mark.parametrize("prefix", ["act_", "hold_", "eff_"])
def test_a_part_of_a_run_gives_its_run_and_the_focus(record: MemoryRecord, prefix: str) -> None:
    run, row = only(record)
    explanation = explain(record.store, prefix + row.id.removeprefix("act_"))
    assert (explanation["focus"], [story["id"] for story in explanation["runs"]]) == (
        row.id,
        [run.id],
    )


@pytest.mark.parametrize(
    ("effect", "outcome", "said"),
    [
        ("intended", None, "tried 4 times so far, next try 2025-06-15T15:28:20.000000Z"),
        ("unknown", None, "tried 4 times so far, next try 2025-06-15T15:28:20.000000Z"),
        ("failed", "retry", "its tries are used up"),
        ("failed", "unknown", "its tries are used up"),
        ("failed", "failed", None),
        ("done", "done", None),
    ],
)
def test_what_was_tried_of_an_effect_is_told(
    effect: Any, outcome: str | None, said: str | None, record: MemoryRecord
) -> None:
    """No entry tells of a try that led to nothing yet: the row does."""
    run, row = only(record)
    row.effect, row.tries, row.not_before_us = effect, 4, T0 + 1_300 * 1_000_000
    if outcome is not None:
        last = entry(run, "effect.failed", action=row.id, tool=row.tool, policy_rev=2, tries=5)
        raw = canonical_json({"state": outcome, "data": {}, "error": "refused"})
        record.write(replace(last, body=Body(raw)), run)
    lines = "\n".join(line for _, line in explain_text(explain(record.store, row.id), 200))
    page = explain_page(explain(record.store, row.id), iso, T0)
    for text in (lines, re.sub("<[^>]+>", "", page)):
        if said is None:
            assert "tried" not in text
            assert "used up" not in text
        else:
            assert said in text


def test_an_event_gives_all_its_runs() -> None:
    record = MemoryRecord()
    runs = record.accept(event(1), "watcher", "sorter")
    explanation = explain(record.store, runs[0].event)
    assert (explanation["kind"], [story["agent"] for story in explanation["runs"]]) == (
        "event", ["watcher", "sorter"],
    )  # fmt: skip
    record.accept(event(2))
    nobody = explain(record.store, event(2).key)
    assert nobody["runs"] == []
    assert ("text", "It woke no agent.") in explain_text(nobody)


def test_an_uneventful_run_is_told_from_its_one_entry() -> None:
    record = MemoryRecord()
    (run,) = record.accept(event(1), "watcher")
    record.write(entry(run, "run.closed", label="quiet", confidence_milli=990, score_milli=0), run)
    (judgement,) = explain(record.store, run.id)["runs"][0]["judgements"]
    assert (judgement["label"], judgement["confidence_milli"]) == ("quiet", 990)
    lines = "\n".join(line for _, line in explain_text(explain(record.store, run.id)))
    assert "quiet, confidence 0.99, score 0" in lines
    assert "proposed nothing" in lines


def test_what_was_erased_is_null_and_said_to_be(record: MemoryRecord) -> None:
    run, _ = only(record)
    record.erase()
    explanation = explain(record.store, run.id)
    text = json.dumps(explanation)
    for secret in ("too hot", "seen it", "pump@1", '"value": 1', "shut"):
        assert secret not in text
    assert explanation["event"]["erased"]
    (story,) = explanation["runs"]
    assert all(item["erased"] for item in story["timeline"] if "actor" in item)
    shown = story["actions"][0]
    assert (shown["erased"], shown["arguments"]) == (True, None)
    # What the entries themselves hold is still told: outcome, rule, revision, who approved.
    assert [d["rule"] for d in shown["decisions"]] == ["impact.high", "permit.approved"]
    assert shown["hold"]["answers"][0]["by"] == "person:kim"
    lines = [line for _, line in explain_text(explanation)]
    assert sum("erased" in line for line in lines) >= 4


def test_a_body_that_no_entry_vouches_for_is_not_shown() -> None:
    record = MemoryRecord()
    (run,) = record.accept(event(1), "watcher")
    record.write(entry(run, "run.closed", label="quiet"), run)
    seq, raw, _ = record.sealed[-1]
    record.sealed[-1] = (seq, raw, b'{"label":"forged"}')
    assert "forged" not in json.dumps(explain(record.store, run.id))


def test_a_dead_letter_tells_its_reason() -> None:
    record = MemoryRecord()
    (run,) = record.accept(event(1), "watcher")
    dead = entry(run, "run.dead")
    record.write(replace(dead, body=Body(canonical_json({"why": "ValueError: no"}))), run)
    run.state = "dead"
    explanation = explain(record.store, run.id)
    assert explanation["runs"][0]["dead"]["why"] == "ValueError: no"
    assert any(
        style == "failed" and "ValueError: no" in line for style, line in explain_text(explanation)
    )


# --- text -----------------------------------------------------------------------------------


def test_the_text_follows_the_order_of_the_line(record: MemoryRecord) -> None:
    run, row = only(record)
    lines = [line for _, line in explain_text(explain(record.store, run.id))]
    text = "\n".join(lines)
    order = [
        f"EVENT {run.event}", f"RUN {run.id}", "MEMORIES", "operations/leak@3", "JUDGEMENT turn 1",
        "alarm, confidence 0.9, score 6.5, threshold 3.7", "as_extreme 0, compared 1501",
        "REFUSED valve.melt", "PROPOSAL valve.close", "/valve = v1  [trusted, from /event/subject;",
        "DECISION HOLD by impact.high, revision 1", "waits for approval",
        "DECISION PERMIT by permit.approved, revision 2", f"HOLD hold_{row.id[4:]}: used",
        "approved by person:kim: seen it", f"EFFECT eff_{row.id[4:]}: done", "OUTCOME done:",
    ]  # fmt: skip
    places = [text.find(part) for part in order]
    assert -1 not in places
    assert places == sorted(places)
    assert iso(T0 + MINUTE) in text
    assert all(len(line) <= 80 for line in lines)


def test_no_colour_is_needed_to_tell_outcomes_apart(record: MemoryRecord) -> None:
    run, _ = only(record)
    for style, line in explain_text(explain(record.store, run.id)):
        if style in ("permit", "hold", "deny") and line.startswith("DECISION"):
            assert style.upper() in line


HOSTILE = "ok\x1b[2J\x1b]0;owned\x07\r\n\u202egnp.exe\u200b\x9b31m" + "A" * 5000


def test_nothing_that_strangers_wrote_reaches_the_terminal_as_a_control(
    record: MemoryRecord,
) -> None:
    loud = MemoryRecord()
    of = Event("mail", HOSTILE[:900], "mail.received", HOSTILE[:900], None, {"text": HOSTILE})
    (run,) = loud.accept(of, "watcher")
    run.key = HOSTILE
    proposals = [{"tool": HOSTILE, "why": HOSTILE, "confidence": "1.0", "args": {}}] * 2
    begin(
        loud, run,
        turn_body(label=HOSTILE, detail={HOSTILE: HOSTILE, "x": {"y": {"z": HOSTILE}}},
                  memories=[HOSTILE], proposals=proposals),
    )  # fmt: skip
    row = held_action(run)
    row.record = canonical_json(
        {**orjson.loads(row.record), "args": {"valve": HOSTILE, "note": "x"}}
    )
    loud.write(decision_entry(run, row, replace(HOLD, reasons=(HOSTILE,))), run)
    loud.keep(row)
    person = {"actor": "person:" + HOSTILE, "action": row.id}
    reason = Body(canonical_json({"reason": HOSTILE}))
    loud.write(Draft("hold.denied", person, run.last, body=reason), run)
    lines = explain_text(explain(loud.store, run.id))
    assert len(lines) > 40
    for _, line in lines:
        assert line.isprintable()
        assert len(line) <= 80
    # The control: the same object does hold what was written.
    assert "\x1b" in json.dumps(explain(loud.store, run.id), ensure_ascii=False).replace(
        "\\u001b", "\x1b"
    )


# --- pages ----------------------------------------------------------------------------------


def many(record: MemoryRecord, events: int) -> None:
    for number in range(events):
        for run in record.accept(event(number), "watcher", "sorter"):
            record.keep(held_action(run, seq=run.position))


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 200])
def test_pages_of_runs_meet_without_gap_or_overlap(limit: int) -> None:
    record = MemoryRecord()
    many(record, 11)
    seen: list[str] = []
    cursor: str | None = None
    pages = []
    while True:
        page = runs_page(record.store, T0, before=cursor, limit=limit)
        assert (page["head"], page["now"]) == (record.last_seq(), T0)
        pages.append(page)
        seen += [item["id"] for item in page["items"]]
        cursor = page["older"]
        if cursor is None:
            break
    places = [(record.runs[name].position, record.runs[name].agent) for name in seen]
    assert places == sorted(places, reverse=True)
    assert len(set(seen)) == len(seen) == 22
    assert pages[0]["newer"] is None
    # And back again: each page is found from the one after it.
    for earlier, later in pairwise(pages):
        back = runs_page(record.store, T0, after=later["newer"], limit=limit)
        assert back["items"] == earlier["items"]
        assert (back["newer"] is None) == (earlier is pages[0])


def test_a_page_does_not_shift_while_runs_are_added() -> None:
    record = MemoryRecord()
    many(record, 5)
    first = runs_page(record.store, T0, limit=4)
    record.accept(event(100), "watcher")
    second = runs_page(record.store, T0, before=first["older"], limit=200)
    assert len(second["items"]) == 6
    newer = runs_page(record.store, T0, after=first["newer"] or "0.", limit=200)
    assert len(newer["items"]) == 11


def test_runs_are_filtered_by_agent_and_state() -> None:
    record = MemoryRecord()
    many(record, 3)
    next(iter(record.runs.values())).state = "dead"
    assert len(runs_page(record.store, T0, agent="sorter")["items"]) == 3
    (dead,) = runs_page(record.store, T0, state="dead")["items"]
    assert dead["agent"] == "watcher"


@pytest.mark.parametrize(
    "question",
    [
        {"state": "asleep"}, {"limit": 0}, {"limit": 201}, {"before": "x"}, {"before": "²."},
        {"before": "9" * 30}, {"before": "1.a", "after": "1.a"},
    ],
)  # fmt: skip
def test_a_page_that_cannot_be_is_refused(question: dict[str, Any]) -> None:
    with pytest.raises(BadCommand):
        runs_page(MemoryRecord().store, T0, **question)


def test_the_inbox_shows_what_a_person_has_to_know() -> None:
    record = MemoryRecord()
    (run,) = record.accept(event(1), "watcher")
    begin(record, run)
    row = held_action(run, until_us=T0 + 72 * 60 * MINUTE)
    at = record.write(decision_entry(run, row, HOLD), run)
    record.keep(row)
    page = inbox(record.store, T0 + 30 * MINUTE)
    (item,) = page["items"]
    assert item["hold"] == "hold_" + row.id.removeprefix("act_")
    assert (item["agent"], item["tool"], item["digest"]) == ("watcher", "valve.close", row.digest)
    assert [argument["origin"] for argument in item["arguments"]] == ["derived", "trusted"]
    assert (item["rule"], item["reasons"]) == ("impact.high", ["impact.high:valve.close"])
    assert item["age_us"] == 30 * MINUTE - at * MINUTE
    assert item["expires"] == T0 + 72 * 60 * MINUTE
    assert json.loads(json.dumps(page)) == page


@pytest.mark.parametrize("limit", [1, 3, 4, 200])
def test_pages_of_the_inbox_meet_and_pass_over_what_no_person_is_asked(limit: int) -> None:
    record = MemoryRecord()
    (run,) = record.accept(event(1), "watcher")
    for ordinal in range(12):
        timed: dict[str, Any] = {"waits": "time", "until_us": 0} if ordinal % 3 == 0 else {}
        record.keep(held_action(run, ordinal, seq=5, **timed))
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = inbox(record.store, T0, after=cursor, limit=limit)
        seen += [item["action"] for item in page["items"]]
        cursor = page["newer"]
        if cursor is None:
            break
    expected = sorted(row.id for row in record.rows.values() if row.waits == "approval")
    assert seen == expected
    assert len(inbox(record.store, T0, waits="time")["items"]) == 4
    assert len(inbox(record.store, T0, waits=None)["items"]) == 12
    with pytest.raises(BadCommand, match="nothing waits for"):
        inbox(record.store, T0, waits="godot")


def test_status_says_what_is_live_stopped_and_old() -> None:
    record = MemoryRecord()
    (first,) = record.accept(event(1), "watcher")
    record.accept(event(2), "watcher")
    now = T0 + 90 * MINUTE
    state = status(record.store, now)
    assert json.loads(json.dumps(state)) == state
    assert (state["revision"], state["head"], state["fleet"]) == (2, 2, "harbour")
    assert state["stops"][0] == {"scope": "agent", "name": "sorter"}
    agent = state["agents"]["watcher"]
    assert (agent["events"], agent["permits"], agent["holds"], agent["denials"]) == (6, 2, 0, 3)
    assert (agent["would"], agent["effects"], agent["dead"]) == ({"permit": 3}, {"done": 2}, 1)
    assert state["oldest"] == {
        "run": first.id, "agent": "watcher", "at": T0 + MINUTE, "age_us": 89 * MINUTE,
    }  # fmt: skip
    for run in record.runs.values():
        run.state = "done"
    assert status(record.store, now)["oldest"] is None


def test_what_observe_would_have_done_is_told() -> None:
    record = MemoryRecord()
    (run,) = record.accept(event(1), "watcher")
    row = action(run)
    record.write(decision_entry(run, row, OBSERVED), run)
    action_holds.apply_decision(row, OBSERVED, 1, T0)
    record.keep(row)
    explanation = explain(record.store, run.id)
    assert explanation["runs"][0]["actions"][0]["decisions"][0]["would"] == "permit"
    lines = [line for _, line in explain_text(explanation)]
    assert "  in mode act it would be: permit" in lines
