"""The contract of every BankStore: revisions, scopes, expiry, ranking, candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace
from tests.broken_disk import broken_disk

from vedette.domain.base.errors import BadStore, Permanent, StoreFailed
from vedette.domain.memory import BankPlan, Candidate, Memory, MemoryState
from vedette.domain.memory_state import LedgerMemory
from vedette.store.banks import MAX_POSTINGS, SqliteBank
from vedette.store.banks.terms import MAX_TERMS, query_terms

NOW = 1_780_000_000_000_000
TEXTS = {
    "berth-large": "Ships over thirty metres are given the large berth on the north pier.",
    "berth-small": "Small boats lie at the south pier.",
    "invoices": "Invoices go to the folder Invoices; the accountant reads it on Mondays.",
    "storm": "In a storm nobody is given a berth on the north pier.",
}


def memory(id: str, text: str, scope: str = "desk", topics: tuple[str, ...] = ()) -> Memory:
    return Memory(
        id=id,
        bank="harbour",
        revision=0,
        scope=scope,
        kind="fact",
        topics=topics,
        text=text,
        digest=f"{scope}:{text}",
        reviewed_by="desk@harbourlights.example",
        reviewed_on="2026-03-01",
    )


def plan(*memories: Memory, name: str = "harbour") -> BankPlan:
    held = tuple(replace(one, bank=name) for one in memories)
    digest = repr(held)
    return BankPlan(name, "tests", {"desk": (), "vault": ()}, (), 365, held, digest)


def usual() -> list[Memory]:
    return [memory(id, text) for id, text in TEXTS.items()]


@pytest.fixture(params=[MAX_POSTINGS, -1], ids=["held", "in-file"])
def bank(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SqliteBank]:
    """A bank whose scopes are held in memory, and one that has no room for any."""
    store = SqliteBank(tmp_path / "banks.db", max_postings=request.param)
    yield store
    store.close()


def ids(found: list[Memory]) -> list[str]:
    return [one.id for one in found]


def recall(bank: SqliteBank, text: str, *topics: str, scope: str = "desk") -> list[str]:
    return ids(bank.recall("harbour", scope, topics, text, NOW, 10))


def test_the_best_match_comes_first_and_words_are_stemmed(bank: SqliteBank) -> None:
    bank.load([plan(*usual())])
    assert recall(bank, "Where do I file an INVOICE?") == ["invoices"]
    assert recall(bank, "a large ship at the pier")[0] == "berth-large"
    assert recall(bank, "xylophone") == []
    assert recall(bank, "") == []
    assert len(bank.recall("harbour", "desk", (), "north pier berth", NOW, 1)) == 1


def test_ties_go_by_id_and_answers_repeat(bank: SqliteBank) -> None:
    same = [memory(id, "The tide turns at noon.") for id in ("c", "a", "d", "b")]
    bank.load([plan(*same, *usual())])
    assert recall(bank, "tide turning noon") == ["a", "b", "c", "d"]
    asked = {tuple(recall(bank, "pier berth storm tide")) for _ in range(20)}
    assert len(asked) == 1


def test_words_of_other_scripts_are_found(bank: SqliteBank) -> None:
    bank.load([plan(memory("de", "Schlüssel für die Hütte"), memory("ja", "港の規則は厳しい"))])
    assert recall(bank, "SCHLÜSSEL?") == ["de"]
    assert recall(bank, "規則") == ["ja"]


def test_nothing_of_another_scope_or_bank_is_found_or_counted(bank: SqliteBank) -> None:
    bank.load([plan(*usual(), memory("secret", "The storm pier code is 7.", scope="vault"))])
    alone = recall(bank, "storm pier code")
    assert "secret" not in alone
    assert recall(bank, "storm pier code", scope="vault") == ["secret"]
    assert ids(bank.lessons("harbour", "desk", NOW)) == sorted(TEXTS)
    crowd = [memory(f"v{n}", "storm pier code", scope="vault") for n in range(30)]
    bank.load([plan(*usual(), *crowd), plan(*crowd, name="other")])
    assert recall(bank, "storm pier code") == alone


def test_topics_narrow_what_is_found(bank: SqliteBank) -> None:
    one = memory("one", "The pier is closed.", topics=("works", "pier"))
    bank.load([plan(one, memory("two", "The pier is open.", topics=("hours",)))])
    assert recall(bank, "pier") == ["one", "two"]
    assert recall(bank, "pier", "works") == ["one"]
    assert recall(bank, "pier", "hours", "works") == ["one", "two"]
    assert recall(bank, "pier", "ships") == []


def test_an_expired_memory_is_gone_from_that_instant(bank: SqliteBank) -> None:
    until = replace(memory("until", "The bridge is closed."), expires_us=NOW)
    bank.load([plan(until)])
    before = bank.recall("harbour", "desk", (), "bridge", NOW - 1, 5)
    assert ids(before) == ["until"]
    assert bank.recall("harbour", "desk", (), "bridge", NOW, 5) == []
    assert ids(bank.lessons("harbour", "desk", NOW - 1)) == ["until"]
    assert bank.lessons("harbour", "desk", NOW) == []


def test_a_scope_that_finds_no_room_is_ranked_in_the_file_and_counted(tmp_path: Path) -> None:
    bank = SqliteBank(tmp_path / "banks.db", max_postings=40)
    bank.load([plan(*usual(), memory("key", "The key of the berths lies in the vault.", "vault"))])
    assert (bank.held_postings, bank.scopes_in_file) == (0, 0)
    assert ids(bank.recall("harbour", "desk", (), "large berth", NOW, 1)) == ["berth-large"]
    held = bank.held_postings
    assert 0 < held <= 40
    assert ids(bank.recall("harbour", "vault", (), "keys", NOW, 1)) == ["key"]
    assert (bank.held_postings, bank.scopes_in_file) == (held, 1)
    bank.close()


def test_what_is_held_lets_go_of_a_memory_before_it_is_asked_again(bank: SqliteBank) -> None:
    """What was taken back is not kept anywhere until somebody happens to ask."""
    bank.load([plan(*usual())])
    assert recall(bank, "invoice") == ["invoices"]
    held = bank.held_postings
    bank.load([plan(*usual()[:2])])
    assert bank.held_postings < held or held == 0
    assert recall(bank, "invoice") == []


def test_what_was_learned_ends_when_the_bank_s_retention_says_now(bank: SqliteBank) -> None:
    """Though it was asked for before, and its end was another then."""
    learned = Candidate("harbour", "desk", "The fog horn is tested on Fridays.", id="c1")
    year = replace(plan(*usual()), writers={"desk": ()})
    bank.load([year])
    day_us = 86_400_000_000
    promoted = LedgerMemory(
        "harbour", "c1", "active", candidate=learned, promoted_us=NOW - 2 * day_us
    )
    bank.sync_states([promoted])
    assert recall(bank, "fog horn") == ["c1"]
    bank.load([replace(year, retention_days=1, digest="another")])
    assert recall(bank, "fog horn") == []
    bank.load([replace(year, retention_days=3, digest="a third")])
    assert recall(bank, "fog horn") == ["c1"]


def test_revisions_follow_the_files(bank: SqliteBank) -> None:
    assert bank.version("harbour") == 0
    first = memory("tide", "The tide turns at noon.")
    assert bank.load([plan(first, *usual())]) == {"harbour": 1}
    assert bank.load([plan(first, *usual())]) == {"harbour": 1}
    second = memory("tide", "The tide turns at one.")
    assert bank.load([plan(second, *usual())]) == {"harbour": 2}
    (found,) = bank.recall("harbour", "desk", (), "tide", NOW, 5)
    assert (found.text, found.cite()) == (second.text, "harbour/tide@2")
    assert {one.revision for one in bank.lessons("harbour", "desk", NOW)} == {1, 2}
    assert bank.load([plan(*usual())]) == {"harbour": 3}
    assert recall(bank, "tide") == []
    assert bank.load([plan(first, *usual())]) == {"harbour": 4}
    assert bank.revisions("harbour", "tide") == [
        (1, "active", first.digest, 1),
        (2, "active", second.digest, 2),
        (3, "retired", second.digest, 3),
        (4, "active", first.digest, 4),
    ]
    assert bank.version("harbour") == 4
    assert bank.version("nobody") == 0


def test_what_was_cited_can_be_shown_later(bank: SqliteBank) -> None:
    first = memory("tide", "The tide turns at noon.", topics=("tides",))
    bank.load([plan(first)])
    bank.load([plan(memory("tide", "The tide turns at one."))])
    assert bank.read_revision("harbour", "tide", 1) == replace(first, revision=1)
    assert bank.read_revision("harbour", "tide", 3) is None


def test_a_bank_that_is_gone_is_retired(bank: SqliteBank) -> None:
    bank.load([plan(*usual()), plan(memory("x", "The pier."), name="other")])
    assert bank.load([plan(*usual())]) == {"harbour": 1, "other": 2}
    assert bank.recall("other", "desk", (), "pier", NOW, 5) == []


def test_a_load_that_fails_changes_nothing(bank: SqliteBank) -> None:
    bank.load([plan(*usual())])
    broken = replace(memory("bad", "x"), expires_us="never")
    with pytest.raises((apsw.Error, TypeError, ValueError, AttributeError)):
        bank.load([plan(memory("new", "new pier")), plan(replace(broken, text=None), name="b")])
    assert bank.version("harbour") == 1
    assert recall(bank, "invoice") == ["invoices"]
    assert recall(bank, "new") == []


def test_revisions_cannot_be_rewritten(bank: SqliteBank, tmp_path: Path) -> None:
    bank.load([plan(*usual())])
    other = apsw.Connection(str(tmp_path / "banks.db"))
    for statement in ("DELETE FROM memory_rev", "UPDATE memory_rev SET revision = 9"):
        with pytest.raises(apsw.ConstraintError, match="append-only"):
            other.execute(statement)
    other.close()


def unnamed(candidates: list[Candidate]) -> list[Candidate]:
    """Return candidates as they were proposed: the bank gives each its id."""
    return [replace(one, id="") for one in candidates]


def test_a_candidate_changes_nothing(bank: SqliteBank) -> None:
    bank.load([plan(*usual())])
    wish = Candidate("harbour", "desk", "Forward storms.", ("x",), "watch", "run_1", "evt_1")
    for _ in range(2):
        bank.propose(wish, NOW)
    assert unnamed(bank.candidates("harbour")) == [wish]
    assert recall(bank, "forward") == []
    assert "Forward storms." not in [m.text for m in bank.lessons("harbour", "desk", NOW)]
    assert bank.version("harbour") == 1
    with pytest.raises(Permanent, match="no bank"):
        bank.propose(replace(wish, bank="nowhere"), NOW)


def test_everything_is_there_after_opening_again(tmp_path: Path) -> None:
    file = tmp_path / "banks.db"
    store = SqliteBank(file)
    store.load([plan(*usual())])
    before = store.recall("harbour", "desk", (), "north pier", NOW, 5)
    store.close()
    again = SqliteBank(file)
    assert again.load([plan(*usual())]) == {"harbour": 1}
    assert again.recall("harbour", "desk", (), "north pier", NOW, 5) == before
    again.close()


def test_postings_are_made_again_for_another_stemmer(tmp_path: Path) -> None:
    file = tmp_path / "banks.db"
    store = SqliteBank(file)
    store.load([plan(*usual())])
    store.close()
    spoilt = apsw.Connection(str(file))
    spoilt.execute("DELETE FROM post; UPDATE meta SET value = 'older' WHERE name = 'stemmer'")
    spoilt.close()
    again = SqliteBank(file)
    assert recall(again, "invoice") == ["invoices"]
    again.close()


def test_a_file_of_another_kind_or_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, but long enough to be taken for one" * 9)
    with pytest.raises(BadStore, match="is no bank store"):
        SqliteBank(tmp_path / "text.db")
    SqliteBank(tmp_path / "new.db").close()
    newer = apsw.Connection(str(tmp_path / "new.db"))
    newer.execute("UPDATE meta SET value = '3' WHERE name = 'format'")
    newer.close()
    with pytest.raises(BadStore, match=r"newer version of vedette .* \(format 3\)"):
        SqliteBank(tmp_path / "new.db")


def test_a_query_is_bounded_and_has_no_function_words() -> None:
    assert query_terms("What is the tide?") == ["tide"]
    assert query_terms("to be or not to be") == ["to", "be", "or", "not"]
    assert len(query_terms(" ".join(f"word{n}" for n in range(500)))) == MAX_TERMS
    assert query_terms("x" * 5000) == []


def test_what_an_erased_event_led_to_is_forgotten(bank: SqliteBank, tmp_path: Path) -> None:
    bank.load([plan(*usual())])
    wishes = [
        Candidate("harbour", "desk", text, (), "watch", "run_1", event)
        for text, event in (("Secret one.", "evt_1"), ("Secret two.", "evt_1"), ("Kept.", "evt_2"))
    ]
    for at, wish in enumerate(wishes):
        bank.propose(wish, NOW + at)
    assert bank.forget([]) == bank.forget(["evt_9"]) == 0
    assert bank.forget(["evt_1"], kept=[wishes[1]]) == 1
    assert unnamed(bank.candidates("harbour")) == wishes[1:]
    assert bank.forget(["evt_1"]) == 1
    assert unnamed(bank.candidates("harbour")) == wishes[2:]
    raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"Secret" not in raw
    assert b"Kept." in raw


# --- what people make of candidates -----------------------------------------------------------

WISH = Candidate(
    "harbour", "desk", "Moor the ferry at the east quay.", ("x",), "watch", "run_1", "evt_1",
    kind="example", label="ferry", evidence=("run_0", "evt_0"), id="cnd_1",
)  # fmt: skip


def stands(candidate: Candidate, state: MemoryState, by: str = "person:kim") -> LedgerMemory:
    return LedgerMemory(
        candidate.bank, candidate.key, state, candidate, candidate.event, 7, 8, by, NOW, NOW
    )


def taken_back(id: str, state: MemoryState = "off") -> LedgerMemory:
    return LedgerMemory("harbour", id, state, last=9, by="person:kim", at_us=NOW)


def lessons(bank: SqliteBank) -> list[str]:
    return ids(bank.lessons("harbour", "desk", NOW))


def test_a_promoted_candidate_is_recalled_and_taught_until_it_is_taken_back(
    bank: SqliteBank,
) -> None:
    bank.load([plan(*usual())])
    bank.propose(WISH, NOW)
    assert bank.sync_states([stands(WISH, "candidate", "")]) == set()
    assert bank.sync_states([stands(WISH, "active")]) == {"harbour"}
    assert bank.version("harbour") == 2
    (found,) = bank.recall("harbour", "desk", (), "ferry quay", NOW, 5)
    assert (found.id, found.trust, found.reviewed_by) == ("cnd_1", "learned", "person:kim")
    assert (found.kind, found.label, found.text) == ("example", "ferry", WISH.text)
    assert "cnd_1" in lessons(bank)
    assert bank.candidates("harbour") == []

    assert bank.sync_states([stands(WISH, "active")]) == set(), "it stands there already"
    assert bank.version("harbour") == 2
    assert bank.sync_states([stands(WISH, "off")]) == {"harbour"}
    assert bank.recall("harbour", "desk", (), "ferry quay", NOW, 5) == []
    assert "cnd_1" not in lessons(bank)
    assert bank.sync_states([stands(WISH, "active")]) == {"harbour"}
    assert ids(bank.recall("harbour", "desk", (), "ferry quay", NOW, 5)) == ["cnd_1"]
    states = [state for _, state, _, _ in bank.revisions("harbour", "cnd_1")]
    assert states == ["active", "off", "active"]


def test_a_rejected_candidate_stays_out_and_one_that_is_unknown_is_kept_first(
    bank: SqliteBank,
) -> None:
    bank.load([plan(*usual())])
    assert bank.sync_states([stands(WISH, "rejected")]) == set()
    assert lessons(bank) == sorted(TEXTS)
    assert bank.candidates("harbour") == []
    assert [one["state"] for one in bank.list_memories("harbour") if one["id"] == "cnd_1"] == [
        "rejected"
    ]


def test_a_reviewed_memory_taken_back_stays_so_through_loads_until_it_is_brought_back(
    bank: SqliteBank,
) -> None:
    bank.load([plan(*usual())])
    assert bank.sync_states([taken_back("storm")]) == {"harbour"}
    assert "storm" not in lessons(bank)
    assert "storm" not in recall(bank, "storm north pier")
    changed = [memory("storm", "In a storm the berth is shut."), *usual()[:3]]
    bank.load([plan(*changed)])
    assert "storm" not in lessons(bank), "a new revision of the file does not bring it back"
    bank.sync_states([taken_back("storm", "active")])
    (back,) = [one for one in bank.lessons("harbour", "desk", NOW) if one.id == "storm"]
    assert back.text == "In a storm the berth is shut."
    bank.load([plan(*usual()[:3])])
    bank.sync_states([taken_back("storm", "active")])
    assert "storm" not in lessons(bank), "its file is gone"


def test_what_is_replaced_is_back_when_the_other_is_taken_back(bank: SqliteBank) -> None:
    bank.load([plan(*usual())])
    other = replace(WISH, replaces="storm", id="cnd_2")
    bank.sync_states([stands(other, "candidate", "")])
    assert "storm" in lessons(bank), "a candidate replaces nothing"
    bank.sync_states([stands(other, "active")])
    assert ("storm" in lessons(bank), "cnd_2" in lessons(bank)) == (False, True)
    bank.load([plan(*usual()[:3], memory("storm", "Another text."))])
    assert "storm" not in lessons(bank)
    bank.sync_states([stands(other, "off")])
    assert ("storm" in lessons(bank), "cnd_2" in lessons(bank)) == (True, False)


@pytest.mark.parametrize("by", ["event", "id"])
def test_what_was_promoted_out_of_erased_content_is_gone_from_the_file(
    bank: SqliteBank, tmp_path: Path, by: str
) -> None:
    bank.load([plan(*usual())])
    secret = replace(WISH, text="Secret quay.", replaces="storm", id="cnd_3")
    bank.sync_states([stands(secret, "active"), stands(WISH, "active")])
    if by == "event":
        assert bank.forget(["evt_1"], kept=[WISH]) == 1
    else:
        bank.sync_states([LedgerMemory("harbour", "cnd_3", "erased", None, "evt_1", 7, 8, "", NOW)])
    assert lessons(bank) == sorted([*TEXTS, "cnd_1"]), "what it had replaced is back"
    raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"Secret" not in raw
    assert b"east quay" in raw


def test_a_file_of_the_first_format_keeps_its_candidates(tmp_path: Path) -> None:
    file = tmp_path / "banks.db"
    store = SqliteBank(file)
    store.load([plan(*usual())])
    store.close()
    old = apsw.Connection(str(file))
    old.execute(
        "DROP TABLE candidate; DROP TABLE taken_back; CREATE TABLE candidate ("
        "id TEXT PRIMARY KEY, bank TEXT NOT NULL, scope TEXT NOT NULL, text TEXT NOT NULL,"
        "topics TEXT NOT NULL, agent TEXT NOT NULL, run TEXT NOT NULL, event TEXT NOT NULL,"
        "state TEXT NOT NULL, proposed_us INTEGER NOT NULL) WITHOUT ROWID;"
        "INSERT INTO candidate VALUES ('cnd_old', 'harbour', 'desk', 'Old wish.', '[]', 'watch',"
        "'run_1', 'evt_1', 'candidate', 5); UPDATE meta SET value = '1' WHERE name = 'format'"
    )
    old.close()
    for _ in range(2):
        again = SqliteBank(file)
        (found,) = again.candidates("harbour")
        assert (found.id, found.text, found.kind, found.label) == (
            "cnd_old", "Old wish.", "fact", None,
        )  # fmt: skip
        again.close()


def test_a_bank_takes_candidates_of_its_writers_and_of_people(bank: SqliteBank) -> None:
    bank.load([replace(plan(*usual()), writers={"desk": ("watch",), "vault": ()})])
    assert (
        bank.find_refusal("harbour", "desk", "watch")
        == bank.find_refusal("harbour", "vault", None)
        == ""
    )
    assert "no bank 'bay'" in bank.find_refusal("bay", "desk", "watch")
    assert "no scope 'attic'" in bank.find_refusal("harbour", "attic", None)
    assert "does not list 'watch' as writer" in bank.find_refusal("harbour", "vault", "watch")


# --- a disk that fails ----------------------------------------------------------------------------

ASKED: dict[str, Callable[[SqliteBank], object]] = {
    "version": lambda bank: bank.version("another"),
    "recall": lambda bank: bank.recall("harbour", "desk", (), "berth", NOW, 5),
    "lessons": lambda bank: bank.lessons("harbour", "desk", NOW),
    "listed": lambda bank: bank.list_memories(),
    "load": lambda bank: bank.load([plan(*usual()[1:])]),
    "propose": lambda bank: bank.propose(Candidate("harbour", "desk", "Told.", id="c1"), NOW),
    "settle": lambda bank: bank.sync_states([LedgerMemory("harbour", "storm", "off")]),
    "forget": lambda bank: bank.forget(["evt_1"]),
}


@pytest.mark.parametrize("asked", ASKED)
def test_what_a_disk_refuses_is_told_as_that_whoever_asks(tmp_path: Path, asked: str) -> None:
    """Not as SQLite's own error, which ends whoever meets it as a bug of ours would."""
    path = tmp_path / "banks.db"
    with broken_disk("banks.db") as disk:
        bank = SqliteBank(path)
        try:
            bank.load([plan(*usual())])
            disk.fail(path)
            with pytest.raises(StoreFailed, match=r"banks\.db: the disk failed") as told:
                ASKED[asked](bank)
            assert (told.value.code, disk.refused > 0) == ("disk-failed", True)
            disk.broken = False
            ASKED[asked](bank)
        finally:
            disk.broken = False
            bank.close()


def test_a_file_that_is_damaged_is_told_with_its_mend(tmp_path: Path) -> None:
    """What would be recalled waits for it; as any other error it made dead letters of events."""
    path = tmp_path / "banks.db"
    bank = SqliteBank(path)
    bank.load([plan(*usual())])
    bank.close()
    whole = path.read_bytes()
    half = len(whole) // 2  # past what is read as it is opened
    path.write_bytes(whole[:half] + b"\xff" * half)
    bank = SqliteBank(path)
    with pytest.raises(StoreFailed, match=r"banks\.db: is damaged: .* move the file away"):
        recall(bank, "invoice")
    bank.close()
