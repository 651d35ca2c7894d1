"""The ledger proves itself, and can forget: every kind of tampering, and the untouched ledger.

The ledger here is attacked by someone who owns the store but not the signing key, except where
a test says that the key itself signed two histories.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vedette.domain.base.canonical import canonical_json, salted_digest
from vedette.ledger.merkle import (
    Checkpoint,
    Frontier,
    ProofError,
    leaf_hash,
    sign_note,
    verifier_key,
)
from vedette.ledger.verify import Code, Report, verify_ledger
from vedette.ledger.verify.entry_check import EntryChecker
from vedette.ledger.verify.finding import Findings

NAME = "vedette/first"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
FORGER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
VERIFIER = verifier_key(NAME, KEY.public_key().public_bytes_raw())

SIZE = 24
GROUP = 4  # entries per checkpoint
WITNESSED = 20

Entry = tuple[int, bytes]
Bodies = dict[str, tuple[bytes, bytes]]


@dataclass(frozen=True)
class Ledger:
    """Everything a verifier is handed."""

    entries: list[Entry]
    checkpoints: list[str]
    witness: list[str]
    bodies: Bodies = field(default_factory=dict)

    def verify(self, **options: str | int) -> Report:
        origin, limit = options.get("origin"), options.get("limit", 100)
        assert origin is None or isinstance(origin, str)
        assert isinstance(limit, int)
        return verify_ledger(
            iter(self.entries),
            iter(self.checkpoints),
            VERIFIER,
            iter(self.witness),
            self.bodies,
            origin=origin,
            limit=limit,
        )


def put_body(bodies: Bodies, number: int) -> str:
    salt, data = bytes([number]) * 16, b"what somebody wrote, number %d" % number
    digest = salted_digest(salt, data)
    bodies[digest] = (salt, data)
    return digest


def entry(seq: int, **fields: object) -> Entry:
    value = {"v": 1, "seq": seq, "at": 1_700_000_000_000_000 + seq, **fields}
    return seq, canonical_json(value)


def plain_entries(size: int, bodies: Bodies) -> list[Entry]:
    """Two runs, alternating; each third entry has a body, each one but the first a cause."""
    made = []
    for seq in range(1, size + 1):
        fields: dict[str, object] = {
            "kind": "turn.reasoned",
            "run": f"run_{seq % 2}",
            "n": (seq + 1) // 2,
        }
        if seq > 1:
            fields["cause"] = seq // 2
        if seq % 3 == 0:
            fields["body"] = put_body(bodies, seq)
        made.append(entry(seq, **fields))
    return made


def sign(entries: list[Entry], size: int, key: Ed25519PrivateKey = KEY, origin: str = NAME) -> str:
    tree = Frontier()
    for _, raw in entries[:size]:
        tree.append(leaf_hash(raw))
    assert tree.size == size
    return sign_note(Checkpoint(origin, size, tree.root()).body(), NAME, key)


def signed(entries: list[Entry], sizes: Iterable[int]) -> list[str]:
    return [sign(entries, size) for size in sizes]


def ledger_of(entries: list[Entry], bodies: Bodies) -> Ledger:
    size = len(entries)
    heads = signed(entries, [*range(GROUP, size, GROUP), size])
    return Ledger(entries, heads, heads[: WITNESSED // GROUP], bodies)


@pytest.fixture(scope="module")
def whole() -> Ledger:
    bodies: Bodies = {}
    return ledger_of(plain_entries(SIZE, bodies), bodies)


def codes(report: Report) -> set[Code]:
    assert {finding.code for finding in report.findings} == set(report.counts)
    assert report.ok is not bool(report.findings)
    return set(report.counts)


# --- the controls: what must pass -----------------------------------------------------------


def test_the_untouched_ledger_passes(whole: Ledger) -> None:
    report = whole.verify()
    assert report.findings == ()
    assert report.ok
    tree = Frontier()
    for _, raw in whole.entries:
        tree.append(leaf_hash(raw))
    assert (report.size, report.root) == (SIZE, tree.root())
    assert (report.signed, report.witnessed) == (SIZE, WITNESSED)
    assert (report.checkpoints, report.witness_checkpoints) == (6, 5)
    assert (report.runs, report.bodies, report.erased) == (2, 8, 0)


def test_the_empty_ledger_passes_and_its_first_checkpoint_too() -> None:
    assert Ledger([], [], []).verify().ok
    assert Ledger([], [sign([], 0)], []).verify().ok


def test_a_ledger_passes_without_bodies_and_says_they_were_not_looked_at(whole: Ledger) -> None:
    report = verify_ledger(whole.entries, whole.checkpoints, VERIFIER, whole.witness)
    assert report.ok
    assert report.bodies is None


def test_a_witness_alone_is_enough_where_it_reaches_the_end(whole: Ledger) -> None:
    assert replace(whole, checkpoints=[], witness=whole.checkpoints).verify().ok


def test_a_witness_line_written_twice_is_no_fault(whole: Ledger) -> None:
    twice = [text for text in whole.witness for _ in range(2)]
    assert replace(whole, witness=twice).verify().ok


def test_entries_outside_any_run_and_without_a_cause_pass() -> None:
    entries = [entry(seq, kind="store.opened", epoch=seq) for seq in range(1, 4)]
    assert ledger_of(entries, {}).verify().ok


def test_the_report_is_json(whole: Ledger) -> None:
    written = json.loads(json.dumps(whole.verify().to_json()))
    assert (written["ok"], written["size"], written["witnessed"]) == (True, SIZE, WITNESSED)
    cut = json.loads(json.dumps(replace(whole, entries=whole.entries[:8]).verify().to_json()))
    assert cut["ok"] is False
    assert cut["counts"]["tail-cut"] == 2
    assert cut["findings"][0]["code"] in cut["counts"]


# --- entries --------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(SIZE))
def test_one_changed_byte_in_any_entry_is_found(whole: Ledger, at: int) -> None:
    seq, raw = whole.entries[at]
    for place in range(len(raw)):
        bent = raw[:place] + bytes([raw[place] ^ 1 << (place + at) % 8]) + raw[place + 1 :]
        entries = [*whole.entries[:at], (seq, bent), *whole.entries[at + 1 :]]
        report = replace(whole, entries=entries).verify()
        assert Code.ROOT_MISMATCH in codes(report)
        first = min(f.seq or 0 for f in report.findings if f.code is Code.ROOT_MISMATCH)
        assert first == -(-seq // GROUP) * GROUP  # the first checkpoint that covers it
        assert report.signed == first - GROUP


@pytest.mark.parametrize("at", range(SIZE))
def test_any_deleted_entry_is_found(whole: Ledger, at: int) -> None:
    rest = [*whole.entries[:at], *whole.entries[at + 1 :]]
    found = codes(replace(whole, entries=rest).verify())
    assert Code.TAIL_CUT in found
    assert at == SIZE - 1 or Code.SEQ_GAP in found

    renumbered = [(seq, raw) for seq, (_, raw) in enumerate(rest, 1)]
    found = codes(replace(whole, entries=renumbered).verify())
    assert Code.TAIL_CUT in found
    assert at == SIZE - 1 or Code.SEQ_MISMATCH in found
    assert at >= WITNESSED or Code.ROOT_MISMATCH in found


@pytest.mark.parametrize("at", range(SIZE - 1))
def test_any_two_swapped_entries_are_found(whole: Ledger, at: int) -> None:
    swapped = whole.entries.copy()
    swapped[at], swapped[at + 1] = swapped[at + 1], swapped[at]
    found = codes(replace(whole, entries=swapped).verify())
    assert Code.SEQ_GAP in found
    renumbered = [(seq, raw) for seq, (_, raw) in enumerate(swapped, 1)]
    found = codes(replace(whole, entries=renumbered).verify())
    assert Code.SEQ_MISMATCH in found
    assert Code.ROOT_MISMATCH in found


@pytest.mark.parametrize("at", range(SIZE))
def test_any_duplicated_entry_is_found(whole: Ledger, at: int) -> None:
    twice = [*whole.entries[: at + 1], *whole.entries[at:]]
    found = codes(replace(whole, entries=twice).verify())
    assert Code.SEQ_GAP in found
    renumbered = [(seq, raw) for seq, (_, raw) in enumerate(twice, 1)]
    found = codes(replace(whole, entries=renumbered).verify())
    assert {Code.SEQ_MISMATCH, Code.UNSIGNED_TAIL} <= found


@pytest.mark.parametrize("size", range(SIZE))
def test_a_cut_before_the_last_witnessed_checkpoint_is_found(whole: Ledger, size: int) -> None:
    """The attacker drops the store's checkpoints beyond the cut too: only the witness tells."""
    kept = [text for text in whole.checkpoints if int(text.split("\n")[1]) <= size]
    report = replace(whole, entries=whole.entries[:size], checkpoints=kept).verify()
    if size < WITNESSED:
        assert Code.TAIL_CUT in codes(report)
    else:
        # The stated limit: nothing outside the store knows of what came after.
        assert Code.TAIL_CUT not in codes(report)
    if size in (WITNESSED, 22):
        assert report.ok is (size == WITNESSED)


def test_entries_rewritten_after_their_checkpoints_were_dropped_are_found(whole: Ledger) -> None:
    forged = [*whole.entries[:20], *plain_entries(SIZE, {})[20:22]]
    kept = whole.checkpoints[:5]
    assert codes(replace(whole, entries=forged, checkpoints=kept).verify()) == {Code.UNSIGNED_TAIL}
    assert Code.UNSIGNED_TAIL in codes(replace(whole, checkpoints=[], witness=[]).verify())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"\xff",
        b'{"v":1,"seq":1}',
        b'{"seq":1, "v":1}',
        b'{"seq":1,"v":1}\n',
        b'{"seq":1,"seq":1,"v":1}',
        b'{"seq":1.0,"v":1}',
        b'{"score":0.5,"seq":1,"v":1}',
        b'{"seq":1,"v":1,"what":9007199254740992}',
        b'{"seq":1,"v":1,"what":-9007199254740992}',
        b'{"seq":1,"v":1,"what":99999999999999999999}',
        b'{"erased":[9007199254740992],"seq":1,"v":1}',
        b'{"erased":[0.5],"seq":1,"v":1}',
        b'{"seq":1,"v":1,"what":"\\u0041"}',
        b'{"seq":1,"v":1,"what":{"b":1,"a":1}}',
        '{"seq":1,"v":1,"ä":1}'.encode(),
        b'{"seq":1,"v":1,"what":' + b"[" * 1000 + b"]" * 1000 + b"}",
        b'{"seq":1,"v":1,"what":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_bytes_that_are_not_canonical_are_found(raw: bytes) -> None:
    assert codes(ledger_of([(1, raw)], {}).verify()) == {Code.NOT_CANONICAL}


@pytest.mark.parametrize(
    "text",
    [
        '{"seq":1,"v":1,"what":"A"}',
        '{"seq":1,"v":1,"what":9007199254740991}',
        '{"seq":1,"v":1,"what":[-9007199254740991,{"a":null,"b":true}]}',
        '{"seq":1,"v":1,"what":"ä\\u0001€"}',
    ],
)
def test_bytes_that_are_canonical_pass(text: str) -> None:
    assert ledger_of([(1, text.encode())], {}).verify().ok


@pytest.mark.parametrize("value", [None, 2, 0, "1", True])
def test_an_entry_that_claims_another_place_is_found(value: object) -> None:
    entries = [(1, canonical_json({"kind": "stop.set", "seq": value}))]
    assert codes(ledger_of(entries, {}).verify()) == {Code.SEQ_MISMATCH}


@pytest.mark.parametrize("cause", [2, 3, 0, -1, "1", True])
def test_a_cause_that_is_not_earlier_is_found(cause: object) -> None:
    entries = [entry(1, kind="stop.set"), entry(2, kind="stop.lifted", cause=cause)]
    assert codes(ledger_of(entries, {}).verify()) == {Code.CAUSE_NOT_EARLIER}


@pytest.mark.parametrize(
    ("run", "numbers"),
    [
        ("a", [2]),
        ("a", [0]),
        ("a", [1, 3, 4]),
        ("a", [1, 1]),
        ("a", [1, 2, 1]),
        ("a", [None]),
        ("a", [True]),
        ("a", ["1"]),
        (7, [1]),
        ({}, [1]),
    ],
)
def test_a_gap_in_a_run_is_found_even_if_all_was_signed(run: object, numbers: list[object]) -> None:
    entries = [
        entry(seq, kind="run.closed", run=run, n=number) for seq, number in enumerate(numbers, 1)
    ]
    report = ledger_of(entries, {}).verify()
    assert codes(report) == {Code.RUN_GAP}
    assert report.counts[Code.RUN_GAP] == 1


# --- checkpoints ----------------------------------------------------------------------------


def test_a_checkpoint_forged_with_another_key_is_found(whole: Ledger) -> None:
    for at in range(len(whole.checkpoints)):
        heads = whole.checkpoints.copy()
        heads[at] = sign(whole.entries, (at + 1) * GROUP, FORGER)
        report = replace(whole, checkpoints=heads).verify()
        assert Code.BAD_NOTE in codes(report)
    witness = [*whole.witness, sign(whole.entries, SIZE, FORGER)]
    assert codes(replace(whole, witness=witness).verify()) == {Code.BAD_NOTE}


def test_a_rewritten_ledger_signed_with_another_key_is_found(whole: Ledger) -> None:
    anew = whole.entries.copy()
    anew[2] = entry(3, kind="stop.set")
    heads = [sign(anew, size, FORGER) for size in range(GROUP, SIZE + 1, GROUP)]
    found = codes(Ledger(anew, heads, whole.witness, whole.bodies).verify())
    assert {Code.BAD_NOTE, Code.ROOT_MISMATCH, Code.UNSIGNED_TAIL} <= found
    found = codes(Ledger(anew, heads, [], whole.bodies).verify())
    assert {Code.BAD_NOTE, Code.UNSIGNED_TAIL} <= found


def test_every_changed_character_of_a_checkpoint_is_found(whole: Ledger) -> None:
    text = whole.checkpoints[-1]
    for at in range(len(text)):
        bent = text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]
        report = replace(whole, checkpoints=[*whole.checkpoints[:-1], bent]).verify()
        assert Code.BAD_NOTE in codes(report)


def test_a_checkpoint_of_another_ledger_is_found(whole: Ledger) -> None:
    other = sign(whole.entries, SIZE, origin="vedette/second")
    heads = [*whole.checkpoints, other]
    assert codes(replace(whole, checkpoints=heads).verify()) == {Code.BAD_NOTE}
    assert replace(whole, checkpoints=[other], witness=[]).verify(origin="vedette/second").ok


def test_a_signed_note_that_is_no_checkpoint_is_found(whole: Ledger) -> None:
    heads = [*whole.checkpoints, sign_note("no checkpoint\n", NAME, KEY), "torn"]
    report = replace(whole, checkpoints=heads).verify()
    assert codes(report) == {Code.BAD_NOTE}
    assert report.counts[Code.BAD_NOTE] == 2


def rewritten(whole: Ledger, at: int = 2) -> list[Entry]:
    anew = whole.entries.copy()
    anew[at] = entry(at + 1, kind="turn.reasoned", run=f"run_{(at + 1) % 2}", n=at // 2 + 1)
    return anew


@pytest.mark.parametrize("size", [4, 6, 20, 24])
def test_a_fork_is_found_at_any_size_the_witness_saw(whole: Ledger, size: int) -> None:
    """The key signed both: the store shows one history, the witness was shown another."""
    other = sign(rewritten(whole), size)
    found = codes(replace(whole, witness=[other]).verify())
    assert found == {Code.ROOT_MISMATCH, Code.FORK}
    report = replace(whole, witness=[other]).verify()
    assert report.counts[Code.FORK] == 1
    assert report.witnessed == 0


def test_a_fork_of_the_store_is_found_from_the_witness_s_side(whole: Ledger) -> None:
    heads = [sign(rewritten(whole), 8)]
    found = codes(replace(whole, checkpoints=heads, witness=whole.checkpoints).verify())
    assert found == {Code.ROOT_MISMATCH, Code.FORK}


def test_a_fork_is_found_beyond_the_end_of_a_cut_ledger(whole: Ledger) -> None:
    other = sign(rewritten(whole), SIZE)
    report = replace(whole, entries=whole.entries[:8], witness=[other]).verify()
    assert codes(report) == {Code.TAIL_CUT, Code.FORK}


def test_a_whole_ledger_written_anew_with_the_key_is_found_by_the_witness(whole: Ledger) -> None:
    anew = ledger_of(rewritten(whole), whole.bodies)
    assert anew.verify().ok  # the control: without the old witness nothing is wrong with it
    found = codes(replace(anew, witness=whole.witness).verify())
    assert found == {Code.ROOT_MISMATCH, Code.FORK}


def test_successive_checkpoints_that_do_not_extend_each_other_are_found(whole: Ledger) -> None:
    anew = rewritten(whole)
    heads = [*whole.checkpoints[:2], *signed(anew, [12, 24])]
    report = Ledger(anew, heads, [], whole.bodies).verify()
    assert codes(report) == {Code.ROOT_MISMATCH, Code.NOT_CONSISTENT}
    assert [f.seq for f in report.findings if f.code is Code.NOT_CONSISTENT] == [4, 8]
    both = Ledger(anew, [whole.checkpoints[5], sign(anew, 24)], [], whole.bodies).verify()
    assert codes(both) == {Code.ROOT_MISMATCH, Code.NOT_CONSISTENT}


def test_a_ledger_that_shrank_between_two_checkpoints_is_found(whole: Ledger) -> None:
    for heads, fine in (([8, 12, 24], True), ([12, 8, 24], False)):
        report = replace(whole, checkpoints=[], witness=signed(whole.entries, heads)).verify()
        assert report.ok is fine
        assert fine or codes(report) == {Code.NOT_CONSISTENT}


def test_a_wrong_root_of_the_empty_ledger_is_found(whole: Ledger) -> None:
    wrong = sign_note(Checkpoint(NAME, 0, bytes(32)).body(), NAME, KEY)
    report = replace(whole, checkpoints=[wrong, *whole.checkpoints], witness=[]).verify()
    assert codes(report) == {Code.ROOT_MISMATCH, Code.NOT_CONSISTENT}


# --- bodies ---------------------------------------------------------------------------------


def test_a_changed_body_is_found(whole: Ledger) -> None:
    for digest, (salt, data) in whole.bodies.items():
        for stored in (
            (salt, data + b"!"),
            (salt, data[:-1]),
            (data[:16], data),
            (salt + data[:4], data[4:]),  # the digest is right, the body is not
            (b"", salt + data),
        ):
            report = replace(whole, bodies={**whole.bodies, digest: stored}).verify()
            assert codes(report) == {Code.BODY_MISMATCH}
            assert report.bodies == len(whole.bodies) - 1


def test_a_body_that_is_missing_is_found(whole: Ledger) -> None:
    for digest in whole.bodies:
        rest = {name: body for name, body in whole.bodies.items() if name != digest}
        report = replace(whole, bodies=rest).verify()
        assert codes(report) == {Code.BODY_MISSING}
        assert report.erased == 0


@pytest.mark.parametrize("value", [7, "short", "X" * 64, "A" * 64, [], {}])
def test_a_body_field_that_is_no_digest_is_found(value: object) -> None:
    entries = [entry(1, kind="turn.reasoned", body=value)]
    assert codes(ledger_of(entries, {}).verify()) == {Code.BODY_MISMATCH}


def erasing(named: object, *, before: bool = False, again: bool = False) -> Ledger:
    """A ledger of two bodies, both gone, with an entry that says which were erased."""
    bodies: Bodies = {}
    holders: list[dict[str, object]] = [
        {"kind": "turn.reasoned", "body": put_body(bodies, 1)},
        {"kind": "turn.reasoned", "body": put_body(bodies, 2)},
    ]
    erasure: list[dict[str, object]] = [{"kind": "body.erased", "erased": named}]
    order = [*erasure, *holders] if before else [*holders, *erasure]
    if again:
        order += holders[:1]
    return ledger_of([entry(seq, **fields) for seq, fields in enumerate(order, 1)], {})


DIGESTS = [salted_digest(bytes([n]) * 16, b"what somebody wrote, number %d" % n) for n in (1, 2)]


def test_an_erased_body_passes_and_is_counted() -> None:
    for repeat in (False, True):  # a body that was erased may be named again
        report = erasing(DIGESTS, again=repeat).verify()
        assert report.ok
        assert (report.bodies, report.erased) == (0, 2)


def test_erasure_may_name_a_single_digest() -> None:
    report = erasing(DIGESTS[0]).verify()
    assert codes(report) == {Code.BODY_MISSING}
    assert [finding.seq for finding in report.findings] == [2]
    assert report.erased == 1


@pytest.mark.parametrize("named", [None, [], ["0" * 64], [7, {}], {DIGESTS[0]: 1}, True])
def test_an_erasure_that_does_not_name_the_body_excuses_nothing(named: object) -> None:
    report = erasing(named).verify()
    assert codes(report) == {Code.BODY_MISSING}
    assert report.counts[Code.BODY_MISSING] == 2


def test_an_erasure_before_the_body_excuses_nothing() -> None:
    report = erasing(DIGESTS, before=True).verify()
    assert report.counts == {Code.BODY_MISSING: 2}
    assert report.erased == 0


def test_an_erasure_entry_cannot_erase_its_own_body() -> None:
    own = DIGESTS[0]
    entries = [entry(1, kind="body.erased", erased=[own], body=own)]
    assert codes(ledger_of(entries, {}).verify()) == {Code.BODY_MISSING}


# --- the report -----------------------------------------------------------------------------


def test_a_flood_of_findings_is_counted_but_not_kept(whole: Ledger) -> None:
    renumbered = [(seq, raw) for seq, (_, raw) in enumerate(whole.entries[1:], 1)]
    report = replace(whole, entries=renumbered).verify(limit=3)
    assert report.counts[Code.SEQ_MISMATCH] == SIZE - 1
    kept = [finding.seq for finding in report.findings if finding.code is Code.SEQ_MISMATCH]
    assert kept == [1, 2, 3]
    assert Code.TAIL_CUT in codes(report)


def test_a_forged_value_reaches_the_reader_short_and_without_controls() -> None:
    entries = [entry(1, kind="run.closed", run="\x1b[2J" + "ä" * 500, n=9)]
    (finding,) = ledger_of(entries, {}).verify().findings
    assert finding.sentence.isascii()
    assert finding.sentence.isprintable()
    assert len(finding.sentence) < 200


def test_only_a_malformed_key_is_raised(whole: Ledger) -> None:
    for origin in (None, NAME):
        with pytest.raises(ProofError):
            verify_ledger(whole.entries, whole.checkpoints, "no key", origin=origin)


def test_the_event_of_an_ask_and_the_ask_name_one_another() -> None:
    def checked(*entries: dict[str, Any]) -> list[str]:
        findings = Findings(10)
        checker = EntryChecker(findings, None)
        for seq, entry in enumerate(entries, 1):
            checker.read(seq, canonical_json({"seq": seq, **entry}))
        checker.close()
        return [f"{one.code.value} {one.seq}" for one in findings.items]

    begun = {"kind": "effect.started", "tool": "agent.ask", "action": "act_1"}
    child = {"kind": "event.accepted", "hops": 1, "cause": 1}
    done = {"kind": "effect.done", "tool": "agent.ask", "action": "act_1"}
    assert checked(begun, child, done) == []
    assert checked(begun, done) == ["ask-broken 2"]
    other = {**begun, "tool": "wire.send"}
    assert checked(other, child) == ["ask-broken 2"]
    # An undo's event has a cause, too, and came through no agent.
    assert checked(other, {"kind": "event.accepted", "cause": 1}) == []
