"""`vedette audit`: what the world says of what the fleet did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.common import (
    as_json_option,
    format_time,
    print_result,
    sanitize_text,
    settings_of,
    store_reader,
)
from vedette.interfaces.cli.ship import ship

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.ledger.history.audit import RecordedEffects

_MAX_SHOWN = 50
# How far the clocks of several workers on one database may be apart.
_CLOCK_SKEW_US = 5_000_000


@click.group()
def audit() -> None:
    """Hold the fleet's record against what others recorded."""


audit.add_command(ship)


@audit.command("targets")
@click.argument("names", nargs=-1, metavar="[TARGET]…")
@click.option(
    "--since", metavar="TIME", help="From then on: an instant (UTC), or 24h, 7d back. Default: all."
)
@as_json_option
@click.pass_context
def audit_targets(
    ctx: click.Context, names: tuple[str, ...], since: str | None, as_json: bool
) -> int:
    """Compare each target's own record with the ledger's intents.

    Lists what is at a target without an intent, what the ledger says was done and the target does
    not know, and what is there in spite of the ledger. Exits with 1 on any.
    """
    settings = settings_of(ctx)
    now_us = SystemClock().now_us()
    report = _build_report(settings, names, _parse_instant(since, now_us), now_us)
    print_result(as_json, report, _text(report))
    return 0 if report["ok"] else 1


def _build_report(
    settings: Settings, names: Sequence[str], since_us: int, now_us: int
) -> dict[str, Any]:
    from vedette.config.reach import target_plugin
    from vedette.ledger.history.audit import AUDIT, read_effects

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
        ledger = read_effects(store, _build_target_lookup(settings))
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
    from vedette.config.reach import target_plugin

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
    from vedette.ledger.history.audit import audit_keys, audit_mailbox

    given: dict[str, Any] = {**times, "names": names}
    kept_us = 0 if record.retention_us is None else end_us + _CLOCK_SKEW_US - record.retention_us
    if record.mails is not None:
        seen = record.mails
        found = audit_mailbox(seen, ledger, name, emptied=record.drained_folders, **given)
    else:
        seen = items
        found = audit_keys(seen, ledger, name, kept_us=kept_us, **given)
    claims = ledger.at_target(name)
    return {
        "target": name,
        "recorded": len(seen),
        "intents": len(claims),
        "done": sum(claim.state == "done" for claim in claims),
        "open": sum(claim.is_open for claim in claims),
        "erased": sum(claim.erased for claim in claims),
        "kept_since": kept_us or None,
        "findings": found,
    }


def _build_target_lookup(settings: Settings) -> Callable[[str, str], str | None]:
    """Return what names the target of an agent's tool, as the fleet is declared today."""
    known: dict[tuple[str, str], str | None] = {}

    def load() -> Mapping[tuple[str, str], str | None]:
        from vedette.config.fleet import load_fleet

        agents = load_fleet(settings.root, settings, now_us=SystemClock().now_us()).fleet.agents
        return {(a.name, t.name): t.target for a in agents.values() for t in a.tools.values()}

    def find_target(agent: str, tool: str) -> str | None:
        if not known:
            known.update(load() or {("", ""): None})
        return known.get((agent, tool))

    return find_target


def _parse_instant(since: str | None, now_us: int) -> int:
    from vedette.domain.base.clock import duration_us, from_iso, instant_before

    if since is None:
        return 0
    try:
        return instant_before(now_us, duration_us(since))
    except ValueError:
        pass
    try:
        return from_iso(since)
    except ValueError as error:
        mend = "for example --since 24h, or --since 2026-05-01T06:00:00Z"
        raise BadCommand(f"{since!r} is no time", mend=mend) from error


def _text(report: Mapping[str, Any]) -> str:
    lines = []
    if report["archived_before"]:
        lines.append(f"entries before {format_time(report['archived_before'])} are archived")
    for target in report["targets"]:
        found = target["findings"]
        lines.append(
            f"{target['target']}: {target['recorded']:,} in its record, {target['done']:,} of "
            f"{target['intents']:,} intents done, {target['open']:,} open: "
            + (f"{len(found):,} findings" if found else "as the ledger says")
        )
        if target["erased"]:
            lines.append(f"  of {target['erased']:,} intents the content is erased")
        if target["kept_since"]:
            lines.append(f"  its record begins at {format_time(target['kept_since'])}")
        lines += [
            f"  FOUND {one['code']}: {sanitize_text(one['what'])}" for one in found[:_MAX_SHOWN]
        ]
        if len(found) > _MAX_SHOWN:
            lines.append(f"  … and {len(found) - _MAX_SHOWN:,} more (--json has all)")
    lines += [f"{one['target']}: not audited: {one['why']}" for one in report["skipped"]]
    if not report["targets"]:
        lines.append("nothing was audited")
    return "\n".join(lines)
