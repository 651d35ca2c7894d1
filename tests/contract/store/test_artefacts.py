"""Artefacts in every store: kept with the outcome that refers to them, found, erased, verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.artefacts import long_text
from tests.contract.store.test_store import ADAPTERS, KEY, by_person
from tests.segments import SEGMENTS, edit_content, remove_content

from vedette.adapters.ledger_export import verify_store, write_segment
from vedette.adapters.signing_keys import format_verifier_key
from vedette.domain.artefact import (
    STORED_KIND,
    Artefact,
    ArtefactHead,
    artefact_id,
    extract_artefacts,
)
from vedette.domain.base.canonical import canonical_json, salted_digest
from vedette.domain.effect import Outcome
from vedette.domain.entry import Draft
from vedette.domain.erasure import ErasureTarget
from vedette.domain.run import CommitStatus, Run
from vedette.ledger.verify import Code
from vedette.store.segment import MAX_BYTES
from vedette.testing.sample_steps import (
    accept_events,
    action,
    agents_of,
    closing_step,
    entry,
    event,
    step,
)

LINE = format_verifier_key("vedette/harbour", KEY)
TEXT = long_text(400_000)
SALT = bytes(range(100, 116))
READERS = frozenset({"hr@example.org"})

Opener = Callable[[], Any]


@pytest.fixture(params=sorted(ADAPTERS))
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Open the same store again and again."""
    opened: list[Any] = []

    def again() -> Any:
        opened.append(ADAPTERS[request.param](tmp_path / "state"))
        return opened[-1]

    yield again
    for store in reversed(opened):
        store.close()


@pytest.fixture
def store(opener: Opener) -> Any:
    return opener()


def outcome_drafts(run: Run, text: str = TEXT) -> tuple[str, list[Draft]]:
    """Return the id of an artefact, and the drafts of the step that keeps it."""
    outcome, ((artefact, body),) = extract_artefacts(
        Outcome("done", {"id": 1, "text": text}), run.event, "pump", lambda number: SALT,
        label="untrusted", readers=READERS,
    )  # fmt: skip
    row = action(run)
    stored = entry(run, STORED_KIND, action=row.id, tool=row.tool, what=artefact.type)
    closed = entry(run, "run.closed", label="quiet", confidence_milli=990)
    fields = {**stored.fields, "size": len(text)}
    return outcome.data["text"]["artefact"], [
        Draft(stored.kind, fields, stored.cause, 0, body), closed,
    ]  # fmt: skip


async def keep(store: Any, number: int = 1, text: str = TEXT) -> tuple[Run, str]:
    """Accept an event and commit the outcome of its run; return the run and the artefact's id."""
    (run,) = await accept_events(store, event(number))
    id, drafts = outcome_drafts(run, text)
    made = closing_step(store, run)
    made.drafts, made.actions = drafts, [action(run)]
    result = await store.steps.commit(made)
    assert result.status is CommitStatus.COMMITTED
    return run, id


def report(store: Any, tmp_path: Path) -> Any:
    return verify_store(store.ledger, LINE, tmp_path / "state" / "witness.log")


def seq_of(store: Any) -> int:
    ((seq, _, _, _),) = store.ledger.walk((STORED_KIND,))
    return int(seq)


# --- kept, and found ----------------------------------------------------------------------------


async def test_what_was_kept_is_found_by_its_id(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    run, id = await keep(store)
    for _ in range(2):
        found = store.runs.artefact(id)
        assert found.artefact == Artefact(TEXT, "text/plain", "untrusted", READERS)
        assert (found.run, found.agent, found.seq) == (run.id, run.agent, seq_of(store))
        assert found.action == action(run).id
        assert report(store, tmp_path).findings == ()
        store.close()
        store = opener()


async def test_its_id_is_of_its_digest(store: Any) -> None:
    run, id = await keep(store)
    ((_, raw, salt, data),) = store.ledger.walk((STORED_KIND,))
    fields = orjson.loads(raw)
    assert salt == SALT
    assert fields["body"] == salted_digest(SALT, data)
    assert id == artefact_id(run.event, fields["body"])
    assert TEXT[:20].encode() not in raw


@pytest.mark.parametrize(
    "wrong", ["", "art_", "art_" + "0" * 32, "art_" + "g" * 32, "evt_" + "0" * 32, "art_%", "art_1"]
)
async def test_what_is_no_id_finds_nothing(store: Any, wrong: str) -> None:
    await keep(store)
    assert store.runs.artefact(wrong) is None


async def test_another_digest_of_the_same_event_finds_nothing(store: Any) -> None:
    run, id = await keep(store)
    assert store.runs.artefact(f"art_{run.event[4:20]}{'0' * 16}") is None
    assert store.runs.artefact(id.upper()) is None


async def test_a_refused_step_leaves_neither(store: Any) -> None:
    (run,) = await accept_events(store, event(1))
    id, drafts = outcome_drafts(run)
    refused = await store.steps.commit(step(store, run, *drafts, **{"epoch": 10_000}))
    assert refused.status is CommitStatus.FENCED_LEASE
    assert store.runs.artefact(id) is None
    assert list(store.ledger.walk((STORED_KIND,))) == []


async def test_a_large_one_lies_alone(store: Any) -> None:
    """Or whoever asks for an entry beside it would unpack it, too."""
    (run,) = await accept_events(store, event(1))
    _, drafts = outcome_drafts(run, TEXT * 2)
    made = closing_step(store, run)
    # What comes with it in the same group, before and after it.
    made.drafts = [entry(run, "turn.reasoned", text="short", turn=1), *drafts]
    made.actions = [action(run)]
    assert (await store.steps.commit(made)).status is CommitStatus.COMMITTED
    seq = seq_of(store)
    assert len(TEXT * 2) > MAX_BYTES
    rows = store.parts.database.rows(SEGMENTS)
    assert [(first, last) for last, first, _, _ in rows if first <= seq <= last] == [(seq, seq)]


# --- erased -------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["event", "subject", "entry"])
async def test_erased_it_is_known_and_gone(store: Any, tmp_path: Path, by: str) -> None:
    run, id = await keep(store)
    target = {
        "event": ErasureTarget("event", run.event),
        "subject": ErasureTarget("subject", "pump"),
        "entry": ErasureTarget("entry", seq_of(store)),
    }[by]
    digest = orjson.loads(store.ledger.entry(seq_of(store))[1])["body"]
    erased = await store.commands.erase(
        target, by_person("body.erased"), stateless=agents_of(store)
    )
    assert digest in erased.digests
    found = store.runs.artefact(id)
    assert (found.id, found.artefact) == (id, None)
    told = report(store, tmp_path)
    assert told.findings == ()
    assert told.erased >= 1
    assert TEXT[:20] not in str([data for _, _, _, data in store.ledger.walk()])


async def test_retention_takes_it_with_the_bodies_of_its_run(store: Any, tmp_path: Path) -> None:
    _, id = await keep(store)
    rows = store.maintenance.expiring_bodies(store.ledger.last_seq())
    assert seq_of(store) in {row[0] for row in rows}
    await store.maintenance.expire(rows, by_person("body.erased"), stateless=agents_of(store))
    assert store.runs.artefact(id).artefact is None
    assert report(store, tmp_path).findings == ()


async def test_archived_and_trimmed_it_is_no_more_in_the_store(store: Any, tmp_path: Path) -> None:
    _, id = await keep(store)
    await keep(store, 2)
    upto = seq_of_first(store)
    size = next(size for size, _ in store.ledger.sized_checkpoints() if size > upto)
    archived = write_segment(store.ledger, tmp_path / "archive", size, LINE)
    while rows := store.maintenance.expiring_bodies(size):
        await store.maintenance.expire(rows, by_person("body.erased"), stateless=agents_of(store))
    await store.maintenance.record_archive(archived, by_person("ledger.archived"))
    while await store.maintenance.trim():
        pass
    assert store.runs.artefact(id) is None
    assert report(store, tmp_path).findings == ()


def seq_of_first(store: Any) -> int:
    return min(int(seq) for seq, _, _, _ in store.ledger.walk((STORED_KIND,)))


# --- verified -----------------------------------------------------------------------------------


async def test_changed_content_is_found_and_not_read(store: Any, tmp_path: Path) -> None:
    _, id = await keep(store)
    database, seq = store.parts.database, seq_of(store)
    forged = canonical_json({"label": "trusted", "text": "forged", "type": "text/plain"})
    database.begin()
    edit_content(database, seq, data=forged)
    database.commit()
    assert store.runs.artefact(id).artefact is None
    assert [one.code for one in report(store, tmp_path).findings] == [Code.BODY_MISMATCH]


async def test_missing_content_is_not_taken_for_erased(store: Any, tmp_path: Path) -> None:
    _, id = await keep(store)
    database = store.parts.database
    database.begin()
    remove_content(database, seq_of(store))
    database.commit()
    assert store.runs.artefact(id).artefact is None
    findings = report(store, tmp_path).findings
    assert [one.seq for one in findings] == [seq_of(store)]
    assert findings[0].code is Code.BODY_MISSING


async def test_the_heads_of_a_run_tell_of_all_without_content(store: Any, tmp_path: Path) -> None:
    """And the content is that of the entry, unless it was edited."""
    run, id = await keep(store)
    other, _ = await keep(store, 2, TEXT[:50_000])
    (head,) = store.runs.artefact_heads(run.id)
    stored = store.runs.artefact(id)
    assert head == ArtefactHead(
        stored.seq, stored.action, stored.tool, stored.artefact.type, len(TEXT)
    )
    assert store.runs.artefact_heads(run.id, head.seq) == []
    assert [one.size for one in store.runs.artefact_heads(other.id)] == [50_000]
    assert store.runs.artefact_of(head.seq) == stored.artefact
    database = store.parts.database
    database.begin()
    forged = canonical_json({"label": "trusted", "text": "forged", "type": "text/plain"})
    edit_content(database, head.seq, data=forged)
    database.commit()
    assert store.runs.artefact_of(head.seq) is None
    assert store.runs.artefact_of(10_000) is None
