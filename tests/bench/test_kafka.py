"""The write path over a log and a head, without a broker: framing, recovery, both fences."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.bench.kafka.__main__ import WAYS, Round, ratios
from tests.bench.kafka.drive import Figures
from tests.bench.kafka.faults import KINDS, ZOMBIES, Kept, Result, summary
from tests.bench.kafka.installation import (
    JARS,
    LOCK,
    InstallationError,
    Jar,
    check_jars,
    find_java,
    read_jars,
)
from tests.bench.kafka.memory import MemoryHeads, MemoryLog, Partition
from tests.bench.kafka.owner import POINTS, LeaseError, LogError, Owner
from tests.bench.kafka.segment import (
    KEY_NAME,
    NOTHING,
    RECORDS_AN_EVENT,
    Segment,
    check_chain,
    make_records,
    make_segment,
    read_chain,
)
from tests.unit.test_lock import pins, places

from vedette.ledger.merkle import Frontier, verifier_key

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
VERIFIER = verifier_key(KEY_NAME, KEY.public_key().public_bytes_raw())
EVENTS = 3


class Killed(Exception):
    """What stands for a kill in one process."""


class Bench:
    """A shard in memory, and all that was acknowledged."""

    def __init__(self, *, log_fences: bool = True, head_fences: bool = True) -> None:
        self.partition = Partition()
        self.heads = MemoryHeads(1, fences=head_fences)
        self.acked: list[tuple[int, bytes]] = []
        self._log_fences = log_fences

    def owner(self, reach: Callable[[str], None] = lambda point: None) -> Owner:
        return Owner(0, MemoryLog(self.partition, fences=self._log_fences), self.heads, KEY, reach)

    def commit(self, owner: Owner) -> bool:
        segment = owner.make(EVENTS)
        stood = owner.commit(segment)
        if stood:
            self.acked.append((segment.end, owner.head.root))
        return stood

    def chain(self) -> list[Segment]:
        head = self.heads.read(0)
        found = [one for _, one in read_chain(dict(self.partition.read()), head.offset)][::-1]
        assert check_chain(found, 0, VERIFIER) == (head.size, head.root)
        return found

    def check(self) -> None:
        """Every acknowledged group is on the chain, once, with the root it had."""
        there = {one.end: one.tree.root() for one in self.chain()}
        assert len(set(self.acked)) == len(self.acked)
        assert all(there[size] == root for size, root in self.acked)


def killer(point: str, cycle: int) -> Callable[[str], None]:
    """Return what kills at the nth time that a point is passed."""
    passed = itertools.count(1)

    def reach(now: str) -> None:
        if now == point and next(passed) == cycle:
            raise Killed

    return reach


def run(bench: Bench, reach: Callable[[str], None], groups: int = 3) -> None:
    try:
        owner = bench.owner(reach)
        owner.take()
        for _ in range(groups):
            bench.commit(owner)
    except Killed:
        pass


@pytest.mark.parametrize("first", POINTS)
@pytest.mark.parametrize("second", POINTS)
def test_two_kills_lose_nothing_and_repeat_nothing(first: str, second: str) -> None:
    for cycle in (1, 2):
        bench = Bench()
        run(bench, killer(first, cycle))
        run(bench, killer(second, cycle))
        run(bench, lambda point: None, groups=2)
        bench.check()
        assert bench.heads.read(0).size >= 2 * EVENTS


@pytest.mark.parametrize(
    ("point", "void", "answer_lost"),
    [
        ("produce:before", 0, 0),
        ("produce:after", 0, 0),
        ("commit:after", 1, 0),
        ("head:after", 0, 1),
    ],
)
def test_what_a_kill_leaves(point: str, void: int, answer_lost: int) -> None:
    """Before the head a segment that no chain reaches; after it a commit nobody was told of."""
    bench = Bench()
    run(bench, killer(point, 2))
    owner = bench.owner()
    owner.take()
    assert owner.void == void
    assert len(bench.chain()) - len(bench.acked) == answer_lost
    assert bench.commit(owner)
    bench.check()


def zombie(bench: Bench, point: str) -> LeaseError | None:
    """Stop an owner at a point, let another commit, let the first go on; return what it is told."""
    taken = False

    def reach(now: str) -> None:
        nonlocal taken
        if now == point and not taken:
            taken = True
            other = bench.owner()
            other.take()
            assert bench.commit(other)

    first = bench.owner()
    first.take()
    assert bench.commit(first)
    first._reach = reach
    try:
        bench.commit(first)
    except LeaseError as told:
        return told
    return None


@pytest.mark.parametrize("point", [point for point in ZOMBIES if not point.startswith("take")])
def test_a_zombie_is_fenced_by_the_log_or_the_head(point: str) -> None:
    bench = Bench()
    told = zombie(bench, point)
    assert told is not None
    assert told.by == ZOMBIES[point]
    bench.check()


def test_without_the_logs_fence_the_head_fences() -> None:
    bench = Bench(log_fences=False)
    told = zombie(bench, "produce:before")
    assert told is not None
    assert told.by == "head"
    bench.check()
    assert len(bench.partition.read()) == len(bench.chain()) + 1  # what it left is void


def test_heads_that_ignore_the_epoch_let_a_zombie_commit() -> None:
    """Negative control: it is the epoch in the compare-and-set that keeps it out."""
    bench = Bench(log_fences=False, head_fences=False)
    first, second = bench.owner(), bench.owner()
    first.take()
    second.take()
    assert bench.commit(first)
    assert bench.chain()[-1].epoch < bench.heads.read(0).epoch


def test_a_publish_between_log_and_head_makes_the_segment_void() -> None:
    bench = Bench()
    owner = bench.owner(
        lambda point: bench.heads.publish(7, 0) if point == "commit:after" else None
    )
    owner.take()
    assert not bench.commit(owner)
    assert owner.head.fence == (7, 0)
    assert bench.commit(owner)
    (segment,) = bench.chain()
    assert segment.policy_rev == 7
    bench.check()


def test_nobody_goes_on_where_the_log_has_lost_what_the_head_names() -> None:
    bench = Bench()
    run(bench, lambda point: None)
    lost = bench.heads.read(0).offset
    del bench.partition.held[lost:]
    with pytest.raises(LogError, match="has lost the head's segment"):
        bench.owner().take()


def test_a_void_segment_does_not_stand_for_a_lost_one() -> None:
    bench = Bench()
    run(bench, killer("commit:after", 3))
    head = bench.heads.read(0)
    bench.partition.held[head.offset] = None
    assert bench.partition.read(head.offset)  # what the kill left behind is still there
    with pytest.raises(LogError, match="has lost the head's segment"):
        bench.owner().take()


def test_nobody_goes_on_where_the_head_names_another_segment() -> None:
    bench = Bench()
    run(bench, lambda point: None)
    head = bench.heads.read(0)
    bench.heads.heads[0] = msgspec.structs.replace(head, root=b"x" * 32)
    with pytest.raises(LogError, match="is not the head's"):
        bench.owner().take()


def test_an_owner_asks_before_it_takes_a_shard_again() -> None:
    bench = Bench()
    first, second = bench.owner(), bench.owner()
    first.take()
    first.check_lease()
    second.take()
    with pytest.raises(LeaseError, match="epoch 2 has the shard"):
        first.check_lease()


# --- segments --------------------------------------------------------------------------------


def segment(at: int = 0, previous: int = NOTHING, events: int = 2) -> Segment:
    return make_segment(
        0, 1, at, previous, (3, 4), Frontier(), make_records(0, at, events, 3), KEY
    )  # fmt: skip


def test_a_segment_is_read_as_it_was_written() -> None:
    made = segment()
    assert Segment.from_bytes(made.to_bytes()) == made
    assert (made.end, made.tree.size) == (2, 2 * RECORDS_AN_EVENT)
    with pytest.raises(ValueError, match="not a segment"):
        Segment.from_bytes(made.to_bytes()[:-1])


def test_an_acting_event_takes_about_one_and_a_half_kilobytes() -> None:
    records = make_records(3, 1_000_000, 100, 12)
    assert len(set(records)) == 300
    assert 1_200 < sum(map(len, records)) / 100 < 1_600


def test_a_chain_that_leads_nowhere_or_forwards_is_told() -> None:
    with pytest.raises(ValueError, match="offset 9, where no segment is"):
        list(read_chain({}, 9))
    with pytest.raises(ValueError, match="behind itself"):
        list(read_chain({3: segment(2, previous=5)}, 3))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"at": 1}, "0 events before it"),
        ({"shard": 1}, "0 events before it"),
        ({"epoch": -1}, "epoch -1 after 0"),
        ({"policy_rev": -1}, "an older policy"),
        ({"records": make_records(0, 5, 2, 3)}, "not those of its events"),
        ({"frontier": Frontier().to_bytes()}, "not the one before it, grown"),
        ({"note": segment(events=1).note}, "its note signs another head"),
        ({"note": "unsigned"}, "shard 0, segment at event 0"),
    ],
)
def test_a_segment_that_does_not_follow_is_told(changes: dict[str, object], told: str) -> None:
    made = segment()
    assert check_chain([made], 0, VERIFIER)[0] == 2
    with pytest.raises(ValueError, match=told):
        check_chain([msgspec.structs.replace(made, **changes)], 0, VERIFIER)


# --- installation, the bench's arithmetic, the run of faults -----------------------------------


def test_the_clients_lock_and_the_jars_are_pinned_and_name_no_place() -> None:
    text = LOCK.read_text("utf-8")
    assert "confluent-kafka" in pins(text)
    assert places(text) == []
    jars = read_jars(JARS.read_text("utf-8"))
    assert (jars[0].group, jars[0].artifact) == ("org.apache.kafka", "kafka_2.13")
    assert len(jars) > 40
    # What both environments have is of one version: the same bytes are hashed and signed.
    ours = pins((Path(__file__).parents[2] / "requirements.lock").read_text("utf-8"))
    for name in ("cryptography", "msgspec", "orjson", "psycopg"):
        assert pins(text)[name][0].specifier == ours[name][0].specifier, name


@pytest.mark.parametrize(
    "line", ["a:b 0", "a:b:1", f"a:b:1 {'g' * 64}", f"a::1 {'0' * 64}"]
)  # fmt: skip
def test_a_loose_jar_is_found(line: str) -> None:
    with pytest.raises(ValueError, match="not `group:artifact:version sha256`"):
        read_jars(line)


def test_a_jar_that_is_another_than_pinned_is_told(tmp_path: Path) -> None:
    jar = Jar("a.b", "c", "1", "0" * 64)
    assert jar.path == "a/b/c/1/c-1.jar"
    with pytest.raises(InstallationError, match="missing or too many jars"):
        check_jars([jar], tmp_path)
    (tmp_path / "c-1.jar").write_bytes(b"other")
    with pytest.raises(InstallationError, match=r"c-1\.jar is not what jars\.lock says"):
        check_jars([jar], tmp_path)


def test_where_there_is_no_java_the_mend_is_told() -> None:
    with pytest.raises(InstallationError, match="install Java 17"):
        find_java({"PATH": ""})


def test_ratios_are_of_the_same_turn() -> None:
    def round_(way: int, events: int, cpu: float) -> Round:
        return Round(WAYS[way], 4, 1.0, Figures(events=events, cpu=cpu))

    rounds = [
        round_(way, events, 1.0)
        for events in (100, 50)
        for way, events in ((0, events), (1, events // 2), (2, events), (3, events))
    ]
    first, *_ = ratios(rounds).splitlines()
    assert "Kafka transaction, synced" in first
    assert "events/s x 0.50 (0.50 to 0.50), CPU x 2.00 (2.00 to 2.00)" in first


def test_a_run_of_faults_goes_on_where_it_was(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 5, fresh=False)
    kept.add(Result(0, "zombie", acked=3, seen={"fenced by the head": 1}))
    again = Kept(tmp_path, 6, fresh=False)
    assert (again.seed, again.results[0].acked) == (5, 3)
    assert not Kept(tmp_path, 6, fresh=True).results
    text = summary([*again.results.values(), Result(1, "kill", wrong=["it is lost"])])
    assert "1 wrong\ntrial 1 (kill): it is lost" in text
    assert len(KINDS) == 12
