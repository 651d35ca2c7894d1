"""The mailbox agent on the sample mails, with the shipped memories and the shipped policy."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fleet.deciding import REGISTRY, ROOT, Outcome, decided, shipped, yaml

from vedette.adapters.mail.parser import parse_mail
from vedette.config.agent_loader import build_judge
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.memory import Memory
from vedette.judging import Judge

FOLDER = ROOT / "agents" / "inbox_triage"
LABELS: dict[str, dict[str, Any]] = json.loads(
    (ROOT / "tests/fleet/mailbox_labels.json").read_text(encoding="utf-8")
)
CASES = yaml(FOLDER / "evals/mails.yaml")


def agent() -> Any:
    return shipped("inbox_triage", "inbox", "mailbox")


def lessons() -> tuple[Memory, ...]:
    """Return the lessons as the engine gathers them: scope by scope, as agent.yaml names them."""
    plan, memories = agent()
    return tuple(
        memory
        for scope in plan.scopes
        for memory in memories
        if (memory.bank, memory.scope) == (scope.bank, scope.scope)
    )


@cache
def judge() -> Judge:
    return build_judge(agent()[0], lessons())


def decide(event: Event, using: Judge | None = None) -> Outcome:
    """Return what becomes of a mail; of each proposal also whom it would go to."""
    plan, reviewed = agent()
    recalled = ("opening-hours", "cancellation-terms")
    memories = tuple(memory for memory in reviewed if memory.id in recalled)
    return decided(
        plan, using or judge(), event, lambda action, _: str(action.args.get("to", "")), memories
    )


def mail(unique: str) -> Event:
    raw = (ROOT / "samples/mailbox/new" / unique).read_bytes()
    return Event(
        "maildir:sample",
        unique,
        "mail.received",
        unique,
        "2026-01-01T00:00:00Z",
        parse_mail(raw),
        vouched=ENVELOPE,
    )


@cache
def outcomes() -> dict[str, Outcome]:
    return {unique: decide(mail(unique)) for unique in LABELS}


def test_labels_of_the_sample_mails() -> None:
    found = outcomes()
    right = [LABELS[u]["label"] == o.judgement.label for u, o in found.items()]
    assert len(found) >= 60
    assert sum(right) / len(right) >= 0.85


def test_what_it_is_sure_of_is_right() -> None:
    sure = {u: o for u, o in outcomes().items() if o.judgement.confidence >= 0.8}
    right = [LABELS[u]["label"] == o.judgement.label for u, o in sure.items()]
    assert len(sure) >= 0.4 * len(LABELS)
    assert sum(right) / len(right) >= 0.95


def test_permit_hold_and_denial_each_happen_on_the_samples() -> None:
    happened = {verdict for o in outcomes().values() for _, verdict, _ in o.verdicts}
    assert happened == {"permit", "hold", "deny"}


def test_nothing_that_leaves_is_permitted_and_strangers_are_denied() -> None:
    known = set(REGISTRY["contacts"].values())
    leaving = [
        (verdict, to)
        for o in outcomes().values()
        for tool, verdict, to in o.verdicts
        if tool in ("mail.send", "mail.forward")
    ]
    assert leaving
    assert {verdict for verdict, to in leaving if to in known} == {"hold"}
    assert {verdict for verdict, to in leaving if to not in known} == {"deny"}


def test_every_request_to_forward_is_read_and_denied() -> None:
    for unique, truth in LABELS.items():
        if truth["asks_forward"]:
            assert "mail.forward" in outcomes()[unique].tools("deny"), unique


def test_a_mail_that_asks_for_nothing_is_forwarded_nowhere() -> None:
    for unique, truth in LABELS.items():
        if not truth["asks_forward"] and not truth["injected"]:
            tools = [tool for tool, _, _ in outcomes()[unique].verdicts]
            assert "mail.forward" not in tools, unique


def test_contacts_get_an_answer_for_a_person_to_approve() -> None:
    answered = {u for u, o in outcomes().items() if "mail.send" in o.tools("hold")}
    assert answered
    assert all(LABELS[unique]["from_contact"] for unique in answered)


def test_injections_that_name_an_address_in_the_text_are_obeyed_by_the_judge_only() -> None:
    naive = [u for u, t in LABELS.items() if t["injected"] and outcomes()[u].tools("deny")]
    assert len(naive) >= 5


def test_uncertain_labels_ask_one_question() -> None:
    for unique, outcome in outcomes().items():
        if outcome.judgement.confidence < 0.8:
            tools = [t for t, _, _ in outcome.verdicts if t not in ("mail.forward", "mail.send")]
            assert tools in ([], ["mail.file"]), unique


def test_detail_names_reviewed_examples() -> None:
    ids = {lesson.id for lesson in lessons()} | {f"about:{k}" for k in agent()[0].charter["about"]}
    for outcome in outcomes().values():
        detail = outcome.judgement.detail
        assert {near["id"] for near in detail["nearest"]} <= ids
        json.dumps(detail)


def test_a_draft_quotes_the_recalled_facts() -> None:
    drafted = [
        p for o in outcomes().values() for p in o.judgement.proposals if p.tool == "mail.draft"
    ]
    assert drafted
    assert all("08:30 to 17:30" in proposal.args["body"] for proposal in drafted)


def test_without_a_charter_folder_nothing_is_filed() -> None:
    plan = replace(agent()[0], charter={**agent()[0].charter, "folders": {}})
    bare = build_judge(plan, lessons())
    event = mail(min(LABELS))
    assert "mail.file" not in [tool for tool, _, _ in decide(event, bare).verdicts]


def test_the_judge_is_deterministic_and_survives_odd_data() -> None:
    repeat = build_judge(agent()[0], tuple(reversed(lessons())))
    event = mail(max(LABELS))
    assert decide(event, repeat) == decide(event)
    strange: list[Any] = [None, [], "text", {}, {"from": None, "subject": 3, "text": None}]
    for data in strange:
        odd = replace(event, data=data)
        assert decide(odd, repeat).judgement.proposals == ()


def test_without_examples_it_knows_nothing_and_proposes_nothing() -> None:
    facts = tuple(replace(lesson, kind="fact") for lesson in lessons())
    for given in ((), facts):
        taught_nothing = build_judge(agent()[0], given)
        for unique in LABELS:
            judgement = decide(mail(unique), taught_nothing).judgement
            assert (judgement.label, judgement.confidence) == ("other", 0.0)
            assert judgement.proposals == ()


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_eval(case: dict[str, Any]) -> None:
    event = Event(time="2026-06-01T08:00:00Z", vouched=ENVELOPE, **case["event"])
    outcome = decide(event)
    expect = case["expect"]
    if "label" in expect:
        assert outcome.judgement.label == expect["label"]
    for name, verdict in (("permitted", "permit"), ("held", "hold"), ("denied", "deny")):
        if name in expect:
            assert outcome.tools(verdict) == expect[name], (name, outcome.verdicts)
