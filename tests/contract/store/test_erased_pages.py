"""Of erased content nothing is left in the store's files: neither in a page nor in the log.

Content lies packed with that of other entries, so what is looked for is any stretch of the packed
bytes that were there before, and are in no row after.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.older_store import turn_back_file
from tests.segments import read_entries

from vedette.adapters.signing_keys import format_verifier_key
from vedette.domain.base.canonical import canonical_json
from vedette.domain.entry import Body, Draft
from vedette.domain.erasure import ErasureTarget
from vedette.domain.event import Event
from vedette.store import stored_entries
from vedette.store.sqlite import SqliteReader, SqliteStore
from vedette.store.sqlite.upgrade import upgrade_file
from vedette.testing.clock import ManualClock
from vedette.testing.sample_steps import accept_events, agents_of, closing_step

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
# Long enough that none is there twice by chance.
STRETCH = 12
PAGE = 4096
WORDS = ("berth", "pier", "storm", "invoice", "night", "harbour", "crane", "tide", "mooring")


def open_store(folder: Path) -> SqliteStore:
    return SqliteStore(
        folder, fleet="harbour", key=KEY, key_name="vedette/harbour",
        now_us=ManualClock().now_us, synchronous="OFF",
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = open_store(tmp_path)
    yield made
    made.close()


def letter(number: int, words: int, chance: random.Random) -> Event:
    text = " ".join(f"{chance.choice(WORDS)} {chance.random():.9f}" for _ in range(words))
    return Event("test", str(number), "letter", f"of-{number}", None, {"text": text})


def packed_content(store: SqliteStore) -> list[bytes]:
    sql = "SELECT bodies FROM segment WHERE bodies IS NOT NULL"
    return [bytes(bodies) for (bodies,) in store.database.rows(sql)]


def stretches(packed: list[bytes]) -> set[bytes]:
    return {one[at : at + STRETCH] for one in packed for at in range(len(one) - STRETCH + 1)}


def found_in(folder: Path, wanted: set[bytes]) -> dict[str, int]:
    """Return how many of some stretches each file holds, of those that hold any."""
    counts = {}
    for path in folder.iterdir():
        raw = path.read_bytes() if path.is_file() else b""
        pages = [raw[at : at + PAGE] for at in range(0, len(raw), PAGE)]
        held = stretches([page for page in pages if any(page)]) & wanted
        if held:
            counts[path.name] = len(held)
    return counts


async def fill(store: SqliteStore, sizes: list[int]) -> list[str]:
    """Let events come in groups of four, of so many words each; return their ids."""
    chance = random.Random(7)
    ids: list[str] = []
    for at in range(0, len(sizes), 4):
        letters = [letter(at + n, words, chance) for n, words in enumerate(sizes[at : at + 4])]
        runs = await accept_events(store, *letters)
        for run in runs:
            await store.steps.commit(closing_step(store, run))
        ids += [run.event for run in runs]
    return ids


def left_in_pages(path: Path, words: list[str]) -> list[str]:
    """Return which words a closed store's file holds more often than one made anew of its rows."""
    anew = path.with_name("anew.db")
    connection = apsw.Connection(str(path))
    connection.execute(f"VACUUM INTO '{anew}'")
    connection.close()
    there, in_rows = path.read_bytes(), anew.read_bytes()
    return [one for one in words if there.count(one.encode()) > in_rows.count(one.encode())]


def scrub(store: SqliteStore) -> bool:
    """Write the log back and cut it, as an erasure does in the end."""
    database: Any = store.parts.database
    return bool(database.scrub(1000))


def by_person(reason: str) -> Draft:
    body = Body(canonical_json({"reason": reason}))
    return Draft("body.erased", {"actor": "person:kim"}, body=body)


# Within a page, over several, and a group of both; enough of them for many pages.
SIZES = {
    "small": [3] * 64,
    "pages": [200] * 16,
    "mixed": [3, 200, 20, 700, 3, 3, 3, 3] * 3,
}


@pytest.mark.parametrize("which", SIZES)
async def test_no_page_holds_what_was_erased(
    tmp_path: Path, store: SqliteStore, which: str
) -> None:
    ids = await fill(store, SIZES[which])
    store.parts.database.rows("PRAGMA wal_checkpoint(PASSIVE)")
    before = stretches(packed_content(store))
    gone = [one for at, one in enumerate(ids) if at % 4 in (1, 2) or at % 16 < 4]
    assert set(found_in(tmp_path, before)) >= {"store.db", "store.db-wal"}
    for id in gone:
        done = await store.commands.erase(
            ErasureTarget("event", id), by_person("law"), stateless=agents_of(store)
        )
        assert done.digests
    assert scrub(store)
    left = before - stretches(packed_content(store))
    assert len(left) > len(before) // 4
    assert found_in(tmp_path, left) == {}
    # The control: what stays is there.
    assert set(found_in(tmp_path, stretches(packed_content(store)))) == {"store.db"}
    connection = apsw.Connection(str(tmp_path / "store.db"), apsw.SQLITE_OPEN_READONLY)
    kept = {one.seq for one in read_entries(connection) if one.data and b'"text"' in one.data}
    connection.close()
    assert len(kept) == len(ids) - len(gone)


async def test_no_page_holds_what_expired_or_was_let_go_of(
    tmp_path: Path, store: SqliteStore
) -> None:
    await fill(store, SIZES["mixed"])
    store.parts.database.rows("PRAGMA wal_checkpoint(PASSIVE)")
    before = stretches(packed_content(store))
    assert found_in(tmp_path, before)["store.db"] > len(before) // 2
    write, half = store.parts.database, store.ledger.last_seq() // 2
    write.begin()
    stored_entries.erase_content(write, range(1, half))
    write.commit()
    write.begin()
    assert stored_entries.delete_segments(write, store.ledger.last_seq(), 10_000) > 12
    write.commit()
    assert scrub(store)
    assert found_in(tmp_path, before) == {}


async def test_the_control_a_file_that_is_not_wiped_holds_it(
    tmp_path: Path, store: SqliteStore
) -> None:
    ids = await fill(store, SIZES["mixed"])
    assert store.parts.database.rows("PRAGMA secure_delete=OFF") == [(0,)]
    store.parts.database.rows("PRAGMA wal_checkpoint(PASSIVE)")
    before = stretches(packed_content(store))
    for id in ids:
        await store.commands.erase(
            ErasureTarget("event", id), by_person("law"), stateless=agents_of(store)
        )
    assert scrub(store)
    assert found_in(tmp_path, before - stretches(packed_content(store)))


async def test_a_reader_that_looked_before_finds_nothing_after(
    tmp_path: Path, store: SqliteStore
) -> None:
    (id, *_) = await fill(store, [40] * 4)
    reader = SqliteReader(tmp_path)
    entry = reader.ledger.entry(1)
    assert entry is not None
    assert entry[2]
    await store.commands.erase(
        ErasureTarget("event", id), by_person("law"), stateless=agents_of(store)
    )
    again = reader.ledger.entry(1)
    assert again is not None
    assert again[1:] == (entry[1], None)
    reader.close()


async def test_no_page_of_an_upgraded_file_holds_it_either(tmp_path: Path) -> None:
    """Rows moved from page to page while the new file was filled; the words of many are erased."""
    made = open_store(tmp_path)
    chance = random.Random(3)
    subjects = [f"{chance.getrandbits(64):016x}@person.example" for _ in range(600)]
    ids: list[str] = []
    for at in range(0, len(subjects), 20):
        letters = [
            Event("test", str(number), "letter", subjects[number], None, {"text": "a"})
            for number in range(at, at + 20)
        ]
        runs = await accept_events(made, *letters)
        for run in runs:
            await made.steps.commit(closing_step(made, run))
        ids += [run.event for run in runs]
    made.close()
    turn_back_file(tmp_path)
    key = format_verifier_key("vedette/harbour", KEY)
    assert upgrade_file(tmp_path, key, lambda step, count, total: None)
    shutil.rmtree(tmp_path / "before")
    made = open_store(tmp_path)
    for id in ids:
        await made.commands.erase(
            ErasureTarget("event", id), by_person("law"), stateless=agents_of(made)
        )
    assert scrub(made)
    made.close()
    assert left_in_pages(tmp_path / "store.db", subjects) == []
