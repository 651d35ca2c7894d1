"""Release history: which release of an agent ran since when, who wanted it, what was in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from msgspec import Struct, field
from msgspec.structs import asdict

from vedette.domain.base.errors import BadCommand, NotFound
from vedette.domain.entry import RELEASE_KINDS, releases_of
from vedette.domain.identity import ENGINE
from vedette.domain.ports.ledger_reader import EntryLog

MIN_PREFIX = 4
_MEMORY_KINDS = ("memory.promoted", "memory.retired", "memory.restored")
_RUN_KINDS = ("turn.reasoned", "run.closed")


class ReleasePeriod(Struct):
    """A time in which one release of an agent was the fleet's.

    `entry` is the ledger's that began it, at `at` (microseconds); `how` says by what: a start of
    the fleet, or a person's release or rollback, whose `reason` is None where it was erased.
    `policy_rev` and `banks` (each memory bank's version) were in force then, `last_policy_rev` when
    it ended (or is now): what a start published that began the next is that one's. `memory_entry`
    is the last entry before it by which a memory was promoted, retired or restored (0: none), with
    `memory_changes` of them since `banks` was recorded. `runs` are the runs whose first turn the
    release thought in that time.
    """

    release: str
    at: int
    entry: int
    how: str
    by: str | None
    reason: str | None
    policy_rev: int
    banks: Mapping[str, int]
    memory_entry: int
    memory_changes: int
    last_policy_rev: int
    runs: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return asdict(self)


class _InForce(Struct):
    policy_rev: int = 0
    banks: Mapping[str, int] = field(default_factory=dict)
    memory_entry: int = 0
    memory_changes: int = 0


def read_release_history(record: EntryLog, agent: str, *, runs: bool = True) -> list[ReleasePeriod]:
    """Return the releases of an agent as the ledger tells of them, newest first.

    Without `runs` these are not counted: that reads what every run left. What is archived is not
    told. Raises NotFound for an agent that the ledger does not name.
    """
    periods: list[ReleasePeriod] = []
    now = _InForce()
    kinds = (*RELEASE_KINDS, "policy.published", *_MEMORY_KINDS, *(_RUN_KINDS if runs else ()))
    for seq, raw, _, body in record.walk(kinds):
        entry = orjson.loads(raw)
        kind = entry["kind"]
        if kind == "policy.published":
            now.policy_rev = entry["policy_rev"]
            if periods and entry.get("actor") != str(ENGINE):
                periods[-1].last_policy_rev = now.policy_rev
        elif kind in _MEMORY_KINDS:
            now.memory_entry, now.memory_changes = seq, now.memory_changes + 1
        elif kind in _RUN_KINDS:
            if entry["agent"] == agent:
                _count_run(periods, entry)
        else:
            if entry.get("banks") is not None:
                now.banks, now.memory_changes = entry["banks"], 0
            release = releases_of(entry).get(agent)
            if release is not None and (not periods or periods[-1].release != release):
                periods.append(_begin_period(seq, entry, body, release, now))
            elif release is not None:
                periods[-1].last_policy_rev = now.policy_rev
    if not periods:
        raise NotFound(f"the ledger names no release of an agent {agent!r}")
    return periods[::-1]


def _begin_period(
    seq: int, entry: Mapping[str, Any], body: bytes | None, release: str, now: _InForce
) -> ReleasePeriod:
    how = "start"
    if entry["kind"] == "agent.released":
        how = "release" if entry.get("back_to") is None else "rollback"
    return ReleasePeriod(
        release=release,
        at=entry["at"],
        entry=seq,
        how=how,
        by=entry.get("actor"),
        reason=orjson.loads(body).get("reason") if body else None,
        policy_rev=now.policy_rev,
        banks=now.banks,
        memory_entry=now.memory_entry,
        memory_changes=now.memory_changes,
        last_policy_rev=now.policy_rev,
    )


def _count_run(periods: list[ReleasePeriod], entry: Mapping[str, Any]) -> None:
    """Count a run by its first turn; one without any action has that in its last entry."""
    if entry["kind"] == "turn.reasoned":
        if entry["turn"] != 1:
            return
    elif "confidence_milli" not in entry:
        return
    release = entry.get("release")
    for period in reversed(periods):
        if release is None or period.release == release:
            period.runs += 1
            return


def find_release(periods: list[ReleasePeriod], prefix: str) -> ReleasePeriod:
    """Return the last period of the release whose digest begins so. Raises BadCommand."""
    found = {p.release: p for p in reversed(periods) if p.release.startswith(prefix)}
    if len(prefix) < MIN_PREFIX or len(found) != 1:
        what = "is no release of it" if not found else "names several"
        if len(prefix) < MIN_PREFIX:
            what = f"is shorter than {MIN_PREFIX} characters"
        raise BadCommand(f"{prefix!r} {what}", mend="see `vedette agent history NAME`")
    return next(iter(found.values()))


def find_former_release(periods: list[ReleasePeriod], name: str, to: str | None) -> ReleasePeriod:
    """Return the last period of a release of an agent to go back to: `to`, or else the one before.

    What was taken back is not before it: so the same order again goes no way forward. Raises
    BadCommand if there is none, or it is the present one.
    """
    if to is None:
        standing = _standing_releases(periods)
        found = next((p for p in periods if p.release in standing[-2:-1]), None)
        if found is None:
            mend = "name one that was taken back with --to, or mend the folder and release it"
            raise BadCommand(f"{name} had no release before this one", mend=mend)
        return found
    target = find_release(periods, to)
    if target.release == periods[0].release:
        raise BadCommand(f"{name} runs release {target.release[:12]} already")
    return target


def _standing_releases(periods: list[ReleasePeriod]) -> list[str]:
    """Return the releases in order, oldest first, without those that a rollback took back."""
    standing: list[str] = []
    for period in reversed(periods):
        if period.how == "rollback" and period.release in standing:
            while standing[-1] != period.release:
                standing.pop()
        else:
            standing.append(period.release)
    return standing


def find_end(periods: list[ReleasePeriod], period: ReleasePeriod) -> int | None:
    """Return the entry of the ledger that ended a period; None for the present one."""
    at = periods.index(period)
    return periods[at - 1].entry if at else None


class WaitingFolder(Struct, frozen=True):
    """A folder that a start does not release: `release` runs, as `entry` of the ledger says."""

    release: str
    entry: int


def find_waiting_folders(record: EntryLog) -> dict[str, WaitingFolder]:
    """Return, by agent, the folders that wait: since a rollback, or since a canary began.

    Only `agent release` ends that.
    """
    found: dict[str, WaitingFolder] = {}
    for seq, raw, _, _ in record.walk((*RELEASE_KINDS, "canary.started")):
        entry = orjson.loads(raw)
        if entry["kind"] == "canary.started":
            found[entry["agent"]] = WaitingFolder(entry["what"], seq)
        elif entry["kind"] == "agent.released" and entry.get("back_to") is not None:
            found[entry["agent"]] = WaitingFolder(entry["release"], seq)
        else:
            for name, release in releases_of(entry).items():
                waiting = found.get(name)
                is_start = entry["kind"] == "fleet.loaded"
                if waiting is not None and not (is_start and release == waiting.release):
                    del found[name]
    return found


def count_memory_changes(record: EntryLog, after: int) -> int:
    """Return how many memories were promoted, retired or restored after an entry."""
    return sum(1 for _ in record.walk(_MEMORY_KINDS, after))


def find_memory_differences(record: EntryLog, after: int) -> dict[str, bool]:
    """Return, by name, whether the memories that people moved after an entry were active at it."""
    found: dict[str, bool] = {}
    for _, raw, _, _ in record.walk(_MEMORY_KINDS, after):
        entry = orjson.loads(raw)
        found.setdefault(str(entry["memory"]), entry["kind"] == "memory.retired")
    return found
