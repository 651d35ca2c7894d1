"""The auditor: says what is wrong after a crash, from outside.

It imports nothing of the engine. It reads the target's own record, the list of what the source was
told is accepted, and the bytes of an exported ledger, and does its own hashing and counting. What
it finds is only as good as what it looks at, so the negative controls are its test.

    wrong = audit(folder, plan, undisturbed)
"""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.segments import read_entries

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """One effect that has to be at the target in the end, once: whose, for which key, what."""

    event: str
    agent: str
    key: str
    tool: str
    text: str
    ordered: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """What the script hands in: the keys of all events, and every effect they must come to."""

    events: tuple[str, ...]
    wanted: tuple[Wanted, ...]
    position: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What a run came to, in terms that do not depend on when it ran or how often it was killed."""

    decisions: Mapping[str, tuple[Any, ...]]
    judgements: Mapping[str, tuple[Any, ...]]
    told: Mapping[str, Any] = field(default_factory=dict)


def audit(folder: Path, plan: Plan, undisturbed: Facts | None = None) -> list[str]:
    """Return all that is wrong with the end of a run; an empty list if nothing is."""
    export = folder / "export"
    raws = (export / "entries.jsonl").read_bytes().splitlines()
    entries = [json.loads(raw) for raw in raws]
    record = _lines(folder / "world.jsonl")
    wrong = [
        *_events(plan, _answered_keys(folder / "accepted"), entries),
        *_effects(plan.wanted, record),
        *_order(plan.wanted, record),
        *_permits(record, entries),
        *find_gaps(entries),
        *_tree(raws, export),
        *_bodies(entries, export),
    ]
    facts = facts_of(folder, entries)
    if facts.told["position"] != plan.position:
        wrong.append(f"the feed stands at {facts.told['position']}, not {plan.position}")
    if undisturbed is not None:
        wrong += _differences(undisturbed, facts)
    return wrong


@dataclass(frozen=True, slots=True)
class Held:
    """What a store holds durably: permitted actions, accepted events, commands carried out."""

    permitted: frozenset[str] = frozenset()
    events: frozenset[str] = frozenset()
    commands: frozenset[str] = frozenset()


def at_crash(folder: Path, held: Held | None = None) -> list[str]:
    """Return what is wrong with a folder whose process just died, before anybody recovers it.

    Whatever has taken effect must have a durable permit; what the source was told is accepted and
    what a person was told is done must be there. `held` is read from the SQLite file of the
    folder unless it is given.
    """
    if held is None:
        held = _held(folder / "state" / "store.db")
    wrong = [
        f"effect without a durable permit: {line['tool']} {line['text']!r}"
        for line in _lines(folder / "world.jsonl")
        if line["effect"] and f"act_{line['key']}" not in held.permitted
    ]
    for what, lost in (
        ("event", _answered_keys(folder / "accepted") - held.events),
        ("command", _answered_keys(folder / "answered") - held.commands),
    ):
        wrong += [f"{what} {name} was answered for and is not durable" for name in sorted(lost)]
    return wrong


# True of every store, as is where the entries lie: the ids of commands.
COMMANDS = "SELECT id FROM command"


def _held(path: Path) -> Held:
    if not path.exists():
        return Held()
    store = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        if not store.execute("SELECT 1 FROM sqlite_master WHERE name='segment'").fetchone():
            return Held()
        return held_of(
            [one.raw for one in read_entries(store)], [id for (id,) in store.execute(COMMANDS)]
        )
    finally:
        store.close()


def held_of(raws: Iterable[bytes], commands: Iterable[str]) -> Held:
    """Return what stands in some entries' bytes and commands' ids."""
    entries = [json.loads(raw) for raw in raws]
    return Held(
        frozenset(_permitted(entries)),
        frozenset(e["event"] for e in entries if e["kind"] == "event.accepted"),
        frozenset(commands),
    )


def _permitted(entries: Iterable[Entry]) -> dict[str, int]:
    """Return the actions that may be done by the last word on them, and the first such word.

    What policy permits the budget may still refuse, in the same step.
    """
    permits: dict[str, int] = {}
    for entry in entries:
        if entry["kind"] == "action.decided" and entry["outcome"] == "permit":
            permits.setdefault(entry["action"], entry["seq"])
        elif entry["kind"] in ("action.decided", "budget.refused"):
            permits.pop(entry.get("action", ""), None)
    return permits


# --- what was promised ----------------------------------------------------------------------


def _events(plan: Plan, accepted: set[str], entries: Sequence[Entry]) -> list[str]:
    """Nothing lost: what was answered for is in the ledger once, and its run has ended."""
    seen = Counter(e["event"] for e in entries if e["kind"] == "event.accepted")
    closed = Counter(e["event"] for e in entries if e["kind"] == "run.closed")
    dead = [e["event"] for e in entries if e["kind"] == "run.dead"]
    wrong = [f"event {key} became a dead letter" for key in dead]
    for key in sorted({*plan.events, *accepted}):
        if seen[key] != 1:
            wrong.append(f"event {key} was accepted {seen[key]} times")
        if closed[key] != 1:
            wrong.append(f"the run of event {key} closed {closed[key]} times")
    return wrong + [f"event {key} was never sent" for key in seen if key not in plan.events]


def _effects(wanted: Sequence[Wanted], record: Sequence[Entry]) -> list[str]:
    """Nothing twice: each wanted effect is in the target's record once, and no other is."""
    happened = Counter((line["tool"], line["text"]) for line in record if line["effect"])
    keys: dict[tuple[str, str], set[str]] = defaultdict(set)
    for line in record:
        keys[line["tool"], line["text"]].add(line["key"])
    wrong = []
    for want in wanted:
        times = happened.pop((want.tool, want.text), 0)
        if times != 1:
            fate = "lost" if not times else f"done {times} times"
            wrong.append(f"effect {fate}: {want.tool} {want.text!r}")
        if len(keys[want.tool, want.text]) > 1:
            wrong.append(f"{want.tool} {want.text!r} came under several keys")
    return wrong + [f"effect nobody permitted: {tool} {text!r}" for tool, text in happened]


def _order(wanted: Sequence[Wanted], record: Sequence[Entry]) -> list[str]:
    """Per key, effects came in the order of the events (held and put off ones aside)."""
    place = {(w.tool, w.text): (w.agent, w.key, at) for at, w in enumerate(wanted) if w.ordered}
    last: dict[tuple[str, str], int] = {}
    wrong = []
    for line in record:
        agent, key, at = place.get((line["tool"], line["text"]), ("", "", 0))
        if not agent or not line["effect"]:
            continue
        if last.get((agent, key), -1) > at:
            wrong.append(f"{line['tool']} {line['text']!r} came after a later one of {key}")
        last[agent, key] = at
    return wrong


def _permits(record: Sequence[Entry], entries: Sequence[Entry]) -> list[str]:
    """Every effect has a permit of its key in the ledger, before what came of it."""
    permit = _permitted(entries)
    done: dict[str, int] = {}
    for entry in entries:
        if entry["kind"] in ("effect.started", "effect.done"):
            done.setdefault(entry["action"], entry["seq"])
    wrong = [
        f"no permit in the ledger: {line['tool']} {line['text']!r}"
        for line in record
        if line["effect"] and f"act_{line['key']}" not in permit
    ]
    unpermitted = [action for action, seq in done.items() if permit.get(action, seq) >= seq]
    return wrong + [f"{action} was begun before it was permitted" for action in unpermitted]


# --- the ledger -----------------------------------------------------------------------------


def find_gaps(entries: Sequence[Entry]) -> list[str]:
    """Places are dense, in the fleet and within each run; causes lie before."""
    wrong = []
    counts: Counter[str] = Counter()
    for at, entry in enumerate(entries, start=1):
        if entry["seq"] != at:
            return [f"entry {at} says that it is {entry['seq']}"]
        if "run" in entry:
            counts[entry["run"]] += 1
            if entry["n"] != counts[entry["run"]]:
                wrong.append(f"entry {at} is number {entry['n']} of its run")
        if entry.get("cause", 0) >= at:
            wrong.append(f"entry {at} names a later cause")
    return wrong


def _tree(raws: Sequence[bytes], export: Path) -> list[str]:
    """Every checkpoint and every witnessed head is the root of its first entries (RFC 9162)."""
    points = dict(read_heads((export / "checkpoints").read_text("utf-8")))
    seen = read_heads((export / "witness").read_text("utf-8"))
    wrong: list[str] = []
    roots = dict(compute_roots(raws))
    if max(points, default=0) != len(raws):
        wrong.append(f"{len(raws)} entries, the last checkpoint covers {max(points, default=0)}")
    for what, heads in (("checkpoint", points.items()), ("witnessed head", seen)):
        wrong += [f"{what} {size} differs" for size, root in heads if roots.get(size) != root]
    sizes = [size for size, _ in seen]
    if sizes != sorted(sizes):
        wrong.append("the witness saw the ledger shrink")
    return wrong


def compute_roots(raws: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Give (size, root) of the tree of the first so many entries, from none on (RFC 9162, 2.1)."""
    peaks: list[bytes] = []
    yield 0, hashlib.sha256().digest()
    for size, raw in enumerate(raws, start=1):
        node, left = hashlib.sha256(b"\0" + raw).digest(), size - 1
        while left & 1:
            node = hashlib.sha256(b"\1" + peaks.pop() + node).digest()
            left >>= 1
        peaks.append(node)
        root = peaks[-1]
        for peak in peaks[-2::-1]:
            root = hashlib.sha256(b"\1" + peak + root).digest()
        yield size, root


def read_heads(text: str) -> list[tuple[int, bytes]]:
    """Return (size, root) of each signed note; their signatures are the verifier's business."""
    heads = []
    for note in text.split("\n\n"):
        lines = note.strip("\n").split("\n")
        if len(lines) >= 3 and lines[1].isdigit():
            heads.append((int(lines[1]), base64.b64decode(lines[2])))
    return heads


def _bodies(entries: Sequence[Entry], export: Path) -> list[str]:
    """Each body is what its entry's salted digest says; only erased ones are missing.

    What was proposed to be remembered is kept elsewhere in the store once its entry is archived.
    """
    text = json.loads((export / "export.json").read_text("utf-8")).get("archived", {})
    erased = {digest for e in entries for digest in e.get("erased", ())}
    held = {b["seq"]: b for b in _lines(export / "bodies.jsonl")}
    wrong = []
    for entry in entries:
        body = held.get(entry["seq"])
        if "body" not in entry:
            continue
        if body is None:
            is_proposal = entry["kind"] == "memory.proposed" and entry["seq"] <= text.get("size", 0)
            if entry["body"] not in erased and not is_proposal:
                wrong.append(f"the body of entry {entry['seq']} is missing")
            continue
        data = bytes.fromhex(body["salt"]) + body["data"].encode()
        if hashlib.sha256(data).hexdigest() != entry["body"]:
            wrong.append(f"the body of entry {entry['seq']} differs")
    return wrong


# --- against an undisturbed run ---------------------------------------------------------------


def facts_of(folder: Path, entries: Sequence[Entry] | None = None) -> Facts:
    """Return what an exported run decided and judged, and what the fleet says of its own rows."""
    if entries is None:
        entries = _lines(folder / "export" / "entries.jsonl")
    decisions: dict[str, list[Any]] = defaultdict(list)
    judgements: dict[str, tuple[Any, ...]] = {}
    unknown: set[str] = set()
    for entry in entries:
        if entry["kind"] == "effect.unknown":
            unknown.add(entry["action"])
        elif entry["kind"] == "budget.refused" and "action" in entry:
            decisions[entry["action"]].append(("budget.refused", entry["rule"]))
        elif entry["kind"] == "action.decided" and entry["action"] not in unknown:
            # (An effect whose outcome a crash left unknown is a person's to decide.)
            said = (entry["tool"], entry["action_digest"], entry["outcome"], entry["rule"])
            # Decided again under a newer policy, with the same answer, is the same answer.
            if said not in decisions[entry["action"]][-1:]:
                decisions[entry["action"]].append(said)
        elif "label" in entry:
            place = f"{entry['run']} {entry.get('turn', 1)}"
            judgement = (entry["label"], entry.get("confidence_milli"), entry.get("score_milli"))
            if judgements.setdefault(place, judgement) != judgement:
                judgements[place] = ("judged twice", judgement)
    fixed = {action: tuple(said) for action, said in decisions.items()}
    return Facts(fixed, judgements, json.loads((folder / "told.json").read_text("utf-8")))


def _differences(calm: Facts, disturbed: Facts) -> list[str]:
    wrong = []
    for name in ("decisions", "judgements", "told"):
        a, b = getattr(calm, name), getattr(disturbed, name)
        wrong += [
            f"{name} {key}: {a.get(key)} undisturbed, {b.get(key)} after a crash"
            for key in sorted(a.keys() | b.keys())
            if a.get(key) != b.get(key)
        ]
    return wrong


def _answered_keys(path: Path) -> set[str]:
    return set(path.read_text("ascii").splitlines()) if path.exists() else set()


def _lines(path: Path) -> list[Entry]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().splitlines()]
