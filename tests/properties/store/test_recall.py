"""What is held in memory answers as the file does, whatever was done to the bank before."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from vedette.domain.memory import BankPlan, Candidate, Memory
from vedette.domain.memory_state import LedgerMemory
from vedette.store.banks import SqliteBank

NOW = 1_780_000_000_000_000
WORDS = ("berth", "pier", "storm", "boat", "ships", "ship", "invoice", "night", "the", "灯台")
TOPICS = ("berths", "weather")
SCOPES = ("desk", "vault")
EVENTS = ("evt_1", "evt_2")
DAY_US = 86_400_000_000
IDS = tuple(f"m{number}" for number in range(6))

texts = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
memories = st.builds(
    Memory,
    id=st.sampled_from(IDS),
    bank=st.just("harbour"),
    revision=st.just(0),
    scope=st.sampled_from(SCOPES),
    kind=st.just("fact"),
    topics=st.lists(st.sampled_from(TOPICS), unique=True, max_size=2).map(tuple),
    text=texts,
    digest=st.just(""),
    reviewed_by=st.just("desk@harbour.example"),
    reviewed_on=st.just("2026-03-01"),
    expires_us=st.sampled_from((0, NOW + 5, NOW + 9)),
).map(lambda one: replace(one, digest=repr(one)))
plans = st.lists(memories, unique_by=lambda one: one.id, max_size=6)
candidates = st.builds(
    Candidate,
    bank=st.just("harbour"),
    scope=st.sampled_from(SCOPES),
    text=texts,
    topics=st.lists(st.sampled_from(TOPICS), unique=True, max_size=1).map(tuple),
    event=st.sampled_from(EVENTS),
    replaces=st.none() | st.sampled_from(IDS),
    id=st.sampled_from(("c1", "c2", "c3")),
)
reviewed = st.builds(
    LedgerMemory, st.just("harbour"), st.sampled_from(IDS), st.sampled_from(("off", "active"))
)
promoted = candidates.map(
    lambda one: LedgerMemory(
        "harbour", one.id, "active", candidate=one, proposed_us=NOW - 9, promoted_us=NOW - DAY_US
    )
)
erased = st.sampled_from(EVENTS).map(lambda event: {event})
states = reviewed | promoted
# What is asked after every change: of each scope, at instants that memories expire between and at,
# with the clock going back, too.
ASKED = tuple(product(SCOPES, ((), ("berths",)), (NOW - 3, NOW + 7, NOW, NOW + 5, NOW + 9)))


@settings(max_examples=100, deadline=None)
@given(st.lists(plans | states | erased, min_size=2, max_size=12), texts, st.integers(1, 8))
def test_held_and_in_the_file_a_scope_is_ranked_alike(
    changes: list[object], text: str, limit: int
) -> None:
    held, in_file = SqliteBank(":memory:"), SqliteBank(":memory:", max_postings=-1)
    try:
        for change in changes:
            if isinstance(change, set):
                assert held.forget(change) == in_file.forget(change)
            elif isinstance(change, list):
                # With a day's retention what was promoted has expired at some instants.
                days = 1 if len(change) % 2 else 365
                writers = dict.fromkeys(SCOPES, ())
                plan = BankPlan("harbour", "t", writers, TOPICS, days, tuple(change), repr(change))
                assert held.load([plan]) == in_file.load([plan])
            elif isinstance(change, LedgerMemory):
                assert held.sync_states([change]) == in_file.sync_states([change])
            for scope, topics, now_us in ASKED:
                for asked in (text, " ".join(WORDS)):
                    question = "harbour", scope, topics, asked, now_us, limit
                    assert held.recall(*question) == in_file.recall(*question)
        assert in_file.held_postings == held.scopes_in_file == 0
    finally:
        held.close()
        in_file.close()
