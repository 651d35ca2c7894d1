"""Upkeep on every store: rotate, expire, archive, restore; the same on SQLite and PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.contract.store.test_store import ADAPTERS, CLOCK, KEY

from vedette.adapters.ledger_export import (
    Archive,
    JoinedLedger,
    prove_inclusion,
    verify_inclusion_proof,
    verify_store,
    write_segment,
)
from vedette.adapters.signing_keys import format_verifier_key
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import AlreadyDone, BadCommand, BadStore
from vedette.domain.entry import Body, Draft
from vedette.domain.erasure import ErasureTarget
from vedette.domain.run import LossWindow, Run
from vedette.store.loss_detection import Loss
from vedette.testing.sample_steps import accept_events, agents_of, closing_step, entry, event, step

NAME = "vedette/harbour"
NEXT = Ed25519PrivateKey.from_private_bytes(bytes(range(2, 34)))
LINE = format_verifier_key(NAME, KEY)

pytestmark = pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS.keys())


def draft(kind: str, **fields: Any) -> Draft:
    return Draft(
        kind, {"actor": "person:kim", **fields}, body=Body(canonical_json({"reason": "why"}))
    )


async def grow(store: Any, numbers: range) -> None:
    for number in numbers:
        (run,) = await accept_events(store, event(number))
        await store.steps.commit(closing_step(store, run))


async def test_rotate_archive_and_verify(adapter: Any, tmp_path: Path) -> None:
    store = adapter(tmp_path / "state")
    await grow(store, range(3))
    seq = await store.maintenance.rotate(
        NEXT, format_verifier_key(NAME, NEXT), draft("key.rotated"), command="once"
    )
    with pytest.raises(AlreadyDone):
        await store.maintenance.rotate(
            NEXT, format_verifier_key(NAME, NEXT), draft("key.rotated"), command="once"
        )
    assert store.ledger.key_in_force() == format_verifier_key(NAME, NEXT)
    await grow(store, range(3, 6))
    witness = tmp_path / "state" / "witness.log"
    report = verify_store(store.ledger, LINE, witness)
    assert (report.findings, report.keys) == ((), 2)

    size = [size for size, _ in store.ledger.sized_checkpoints() if size > seq][-2]
    archived = write_segment(store.ledger, tmp_path / "archive", size, LINE)
    while rows := store.maintenance.expiring_bodies(size):
        await store.maintenance.expire(rows, draft("body.erased"), stateless=agents_of(store))
    await store.maintenance.record_archive(archived, draft("ledger.archived"))
    with pytest.raises(BadCommand, match="not those of this store"):
        await store.maintenance.record_archive(
            type(archived)(size + 1, archived.peaks), draft("ledger.archived")
        )
    deleted = 0
    while count := await store.maintenance.trim():
        deleted += count
    assert deleted >= size
    assert await store.maintenance.trim() == 0
    await grow(store, range(6, 8))
    alone = verify_store(store.ledger, LINE, witness)
    assert (alone.findings, alone.archived, alone.keys) == ((), size, 2)
    joined = JoinedLedger(Archive(tmp_path / "archive"), store.ledger)
    assert verify_store(joined, LINE, witness).findings == ()
    assert (
        verify_inclusion_proof(prove_inclusion(store.ledger, store.ledger.last_seq()), LINE).size
        == store.ledger.last_seq()
    )
    store.close()
    # The store begins anew behind the archive; with the key of before it does not.
    with pytest.raises(BadStore, match="not the one that the ledger's last rotation named"):
        adapter(tmp_path / "state")


async def test_expiring_spares_what_is_open_and_what_banks_keep(
    adapter: Any, tmp_path: Path
) -> None:
    store = adapter(tmp_path / "state")
    (open_run,) = await accept_events(store, event(100))
    await grow(store, range(3))
    (taught,) = await accept_events(store, event(101))
    proposed = Draft(
        "memory.proposed",
        {"event": taught.event, "agent": taught.agent, "memory": "inbox"},
        body=Body(canonical_json({"scope": "inbox", "text": "noon", "topics": []})),
    )
    closed = closing_step(store, taught)
    closed.drafts.insert(0, proposed)
    await store.steps.commit(closed)
    assert store.ledger.first_open_entry() == open_run.position
    before_us = CLOCK.now_us() + 1
    assert store.ledger.seq_at(before_us - 1) == store.ledger.last_seq()
    assert store.ledger.seq_at(-1) == 0
    rows = store.maintenance.expiring_bodies(store.ledger.last_seq())
    seqs = {row[0] for row in rows}
    assert open_run.position not in seqs
    assert taught.position in seqs
    assert len(rows) == 4
    erased = await store.maintenance.expire(rows, draft("body.erased"), stateless=agents_of(store))
    assert len(erased.digests) == 4
    assert store.runs.event(open_run.event) is not None
    assert store.runs.event(taught.event) is None
    report = verify_store(store.ledger, LINE, tmp_path / "state" / "witness.log")
    assert (report.findings, report.erased) == ((), 4)
    store.close()


async def dead_letter(store: Any, number: int) -> Run:
    (run,) = await accept_events(store, event(number))
    await store.steps.commit(step(store, run, entry(run, "run.dead"), state="dead"))
    return run


async def test_what_was_taken_up_again_does_not_expire(adapter: Any, tmp_path: Path) -> None:
    """Between the look and the delete a dead letter is redriven, and another event erased."""
    store = adapter(tmp_path / "state")
    dead = await dead_letter(store, 100)
    expired = await dead_letter(store, 101)
    await grow(store, range(3))
    rows = store.maintenance.expiring_bodies(store.ledger.last_seq())
    assert {dead.position, expired.position} < {row[0] for row in rows}
    await store.commands.redrive([dead.id], draft("run.redriven"))
    await store.commands.erase(
        ErasureTarget("event", expired.event), draft("body.erased"), stateless=agents_of(store)
    )
    erased = await store.maintenance.expire(rows, draft("body.erased"), stateless=agents_of(store))
    assert len(erased.digests) == len(rows) - 2
    assert store.runs.event(dead.event) is not None
    head = store.ledger.last_seq()
    assert (
        await store.maintenance.expire(rows, draft("body.erased"), stateless=agents_of(store))
    ).digests == ()
    assert (
        await store.maintenance.expire([], draft("body.erased"), stateless=agents_of(store))
    ).digests == ()
    assert store.ledger.last_seq() == head, "nothing went, so nothing is said"
    report = verify_store(store.ledger, LINE, tmp_path / "state" / "witness.log")
    assert (report.findings, report.erased) == ((), len(rows) - 1)
    store.close()


async def test_what_a_judge_observed_after_states_were_kept_does_not_expire(
    adapter: Any, tmp_path: Path
) -> None:
    store = adapter(tmp_path / "state")
    (one,) = await accept_events(store, event(100))
    await store.steps.commit(closing_step(store, one))
    await grow(store, range(3))
    rows = store.maintenance.expiring_bodies(store.ledger.last_seq())
    await store.maintenance.expire(rows, draft("body.erased"))
    assert store.runs.event(one.event) is not None
    await store.maintenance.expire(rows, draft("body.erased"), stateless={one.agent})
    assert store.runs.event(one.event) is None
    store.close()


async def test_what_was_promoted_after_the_look_is_not_forgotten(
    adapter: Any, tmp_path: Path
) -> None:
    """Its retention counts from its promotion. What nobody decided, and what is old, goes."""
    store = adapter(tmp_path / "state")
    for name in ("late", "waits", "early"):
        body = Body(canonical_json({"scope": "inbox", "text": name, "topics": []}))
        fields = {"actor": "person:kim", "memory": "inbox", "what": name}
        await store.commands.propose_memory(Draft("memory.proposed", fields, body=body))
    await store.commands.move_memories((draft("memory.promoted"), ["inbox/early"]))
    upto, old = store.ledger.last_seq(), list(store.memories.all().values())
    assert len(old) == 3
    await store.commands.move_memories((draft("memory.promoted"), ["inbox/late"]))
    count = await store.maintenance.forget_memories(old, upto, draft("body.erased"))
    assert len(count.digests) == 2
    stands = {one.id: one.state for one in store.memories.all().values()}
    assert stands == {"late": "active", "waits": "erased", "early": "erased"}
    head = store.ledger.last_seq()
    assert (await store.maintenance.forget_memories(old, upto, draft("body.erased"))).digests == ()
    assert store.ledger.last_seq() == head, "nothing went, so nothing is said"
    await store.maintenance.forget_memories(old, head, draft("body.erased"))
    assert store.memories.all()["inbox/late"].state == "erased", "the control: as of a later look"
    store.close()


async def test_what_was_taken_up_again_is_not_let_go(adapter: Any, tmp_path: Path) -> None:
    store = adapter(tmp_path / "state")
    dead = await dead_letter(store, 100)
    await grow(store, range(3))
    size = [size for size, _ in store.ledger.sized_checkpoints()][-2]
    archived = write_segment(store.ledger, tmp_path / "archive", size, LINE)
    store.maintenance.refuse_open(archived)  # the control: nothing is open
    await store.commands.redrive([dead.id], draft("run.redriven"))
    with pytest.raises(BadCommand, match="open again"):
        store.maintenance.refuse_open(archived)
    await store.maintenance.expire(
        store.maintenance.expiring_bodies(size), draft("body.erased"), stateless=agents_of(store)
    )
    with pytest.raises(BadCommand, match="open again"):
        await store.maintenance.record_archive(archived, draft("ledger.archived"))
    # It ended after the content of the others went: its own is not erased yet.
    (repeat,) = [run for run in store.runs.runs_at([dead.position]) if run.id == dead.id]
    await store.steps.commit(step(store, repeat, entry(repeat, "run.dead"), state="dead"))
    with pytest.raises(BadCommand, match="was not erased"):
        await store.maintenance.record_archive(archived, draft("ledger.archived"))
    assert await store.maintenance.trim() == 0
    assert store.runs.event(dead.event) is not None
    await store.maintenance.expire(
        store.maintenance.expiring_bodies(size), draft("body.erased"), stateless=agents_of(store)
    )
    await store.maintenance.record_archive(archived, draft("ledger.archived"))
    store.close()


async def test_a_restore_leaves_doubt_until_it_is_settled(adapter: Any, tmp_path: Path) -> None:
    store = adapter(tmp_path / "state")
    assert store.ledger.loss_window() is None
    with pytest.raises(BadCommand, match="no doubt"):
        await store.maintenance.close_loss_window(draft("store.settled"))
    seq = await store.maintenance.record_restore(Loss(0), actor="person:kim", reason="why")
    assert store.policy.stop_scopes() == [("all", "")]
    assert store.ledger.loss_window() == LossWindow(seq)
    until = await store.maintenance.close_loss_window(draft("store.settled"))
    store.close()
    store = adapter(tmp_path / "state")
    assert store.ledger.loss_window() == LossWindow(seq, until)
    found = store.ledger.loss_window()
    assert found is not None
    assert found.covers(seq - 1)
    assert found.covers(until)
    assert not found.covers(until + 1)
    store.close()
