"""Targets' own records, held against what the ledger says was done to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vedette.app.stores import store_reader
from vedette.config.fleet import load_fleet
from vedette.config.reach import target_plugin
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import BadCommand
from vedette.ledger.history.audit import AUDIT, audit_keys, audit_mailbox, read_effects

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.ledger.history.audit import RecordedEffects

# How far the clocks of several workers on one database may be apart.
_CLOCK_SKEW_US = 5_000_000


def audit_targets(
    settings: Settings, names: Sequence[str], since_us: int, now_us: int
) -> dict[str, Any]:
    """Compare the records of targets (without names: of all) since an instant with the ledger.

    Raises BadCommand for a name that is no target, or that cannot be audited.
    """
    odd = sorted(set(names) - set(settings.targets))
    if odd:
        mend = f"one of: {', '.join(settings.targets)}"
        raise BadCommand(f"there is no target {odd[0]!r}", mend=mend)
    skipped, records = [], {}
    for name in names or settings.targets:
        table = settings.targets[name]
        why = target_plugin(table).record_problem(table)
        if why is not None and names:
            raise BadCommand(f"target {name} cannot be audited: {why}")
        if why is not None:
            skipped.append({"target": name, "why": why})
            continue
        record = target_plugin(table).read_record(table, f"target {name}", since_us)
        # All of it now: whatever it holds has its intent in the ledger that is read afterwards.
        records[name] = record, None if record.items is None else list(record.items)
    # What a record forgot while it was read counts as forgotten, too.
    end_us = SystemClock().now_us()
    with store_reader(settings) as store, store.snapshot():
        ledger = read_effects(store.ledger, _target_lookup(settings))
    if ledger.is_truncated:
        since_us = max(since_us, ledger.first_us)
    read_us = now_us - (_CLOCK_SKEW_US if settings.store.kind == "postgresql" else 0)
    times = {"since_us": since_us, "read_us": read_us}
    targets = [
        _audit_target(
            name, record, items, ledger, end_us, _known_names(name, settings, ledger), times
        )
        for name, (record, items) in records.items()
    ]
    return {
        "schema": AUDIT,
        "ok": not any(target["findings"] for target in targets),
        "since": since_us,
        "archived_before": ledger.first_us if ledger.is_truncated else None,
        "targets": targets,
        "skipped": skipped,
    }


def _known_names(name: str, settings: Settings, ledger: RecordedEffects) -> frozenset[str]:
    """Return the names under which the ledger may know a target.

    Its own, those of targets that are the same place, and those that no target has any more: it
    may have been called so.
    """
    here = settings.targets[name]
    plugin = target_plugin(here)
    same = {other for other, table in settings.targets.items() if plugin.is_same_place(here, table)}
    known = {claim.target for claim in ledger.effects.values() if claim.target is not None}
    return frozenset({name} | same | (known - set(settings.targets)))


def _audit_target(
    name: str,
    record: Any,
    items: Any,
    ledger: RecordedEffects,
    end_us: int,
    names: frozenset[str],
    times: Mapping[str, int],
) -> dict[str, Any]:
    given: dict[str, Any] = {**times, "names": names}
    retained_since_us = (
        0 if record.retention_us is None else end_us + _CLOCK_SKEW_US - record.retention_us
    )
    if record.mails is not None:
        seen = record.mails
        found = audit_mailbox(seen, ledger, name, emptied=record.drained_folders, **given)
    else:
        seen = items
        found = audit_keys(seen, ledger, name, retained_since_us=retained_since_us, **given)
    claims = ledger.at_target(name)
    return {
        "target": name,
        "recorded": len(seen),
        "intents": len(claims),
        "done": sum(claim.state == "done" for claim in claims),
        "open": sum(claim.is_open for claim in claims),
        "erased": sum(claim.erased for claim in claims),
        "kept_since": retained_since_us or None,
        "findings": found,
    }


def _target_lookup(settings: Settings) -> Callable[[str, str], str | None]:
    """Return what names the target of an agent's tool, as the fleet is declared today.

    The fleet is read when it is first asked: the record alone names most targets.
    """
    known: dict[tuple[str, str], str | None] = {}

    def find_target(agent: str, tool: str) -> str | None:
        if not known:
            now_us = SystemClock().now_us()
            agents = load_fleet(settings.root, settings, now_us=now_us).fleet.agents
            known[("", "")] = None
            known.update(
                {(a.name, t.name): t.target for a in agents.values() for t in a.tools.values()}
            )
        return known.get((agent, tool))

    return find_target
