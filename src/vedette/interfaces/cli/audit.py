"""`vedette audit`: what the world says of what the fleet did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.common import (
    as_json_option,
    plain,
    reading,
    say,
    settings_of,
    shown_time,
)
from vedette.interfaces.cli.ship import ship

if TYPE_CHECKING:
    from vedette.config import Settings
    from vedette.ledger.history.audit import Ledger

_SHOWN = 50
# How far the clocks of several workers on one database may be apart.
_APART_US = 5_000_000


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
    told = _audit(settings, names, _instant(since, now_us), now_us)
    say(as_json, told, _text(told))
    return 0 if told["ok"] else 1


def _audit(settings: Settings, names: Sequence[str], since_us: int, now_us: int) -> dict[str, Any]:
    from vedette.adapters.audit import keeps_record, read_record
    from vedette.ledger.history.audit import AUDIT, read_ledger

    odd = sorted(set(names) - set(settings.targets))
    if odd:
        mend = f"one of: {', '.join(settings.targets)}"
        raise BadCommand(f"there is no target {odd[0]!r}", mend=mend)
    skipped, records = [], {}
    for name in names or settings.targets:
        why = keeps_record(settings.targets[name])
        if why is not None and names:
            raise BadCommand(f"target {name} cannot be audited: {why}")
        if why is not None:
            skipped.append({"target": name, "why": why})
            continue
        record = read_record(name, settings.targets[name], since_us)
        # All of it now: whatever it holds has its intent in the ledger that is read afterwards.
        records[name] = record, None if record.items is None else list(record.items)
    # What a record forgot while it was read counts as forgotten, too.
    over_us = SystemClock().now_us()
    with reading(settings) as store, store.snapshot():
        ledger = read_ledger(store, _targets(settings))
    if ledger.cut:
        since_us = max(since_us, ledger.first_us)
    read_us = now_us - (_APART_US if settings.store.kind == "postgresql" else 0)
    times = {"since_us": since_us, "read_us": read_us}
    targets = [
        _one(name, record, items, ledger, over_us, _names(name, settings, ledger), times)
        for name, (record, items) in records.items()
    ]
    return {
        "schema": AUDIT,
        "ok": not any(target["findings"] for target in targets),
        "since": since_us,
        "archived_before": ledger.first_us if ledger.cut else None,
        "targets": targets,
        "skipped": skipped,
    }


def _names(name: str, settings: Settings, ledger: Ledger) -> frozenset[str]:
    """Return the names under which the ledger may know a target.

    Its own, those of targets that are the same place, and those that no target has any more: it
    may have been called so.
    """
    from vedette.adapters.audit import same_place

    here = settings.targets[name]
    same = {other for other, table in settings.targets.items() if same_place(here, table)}
    known = {claim.target for claim in ledger.claims.values() if claim.target is not None}
    return frozenset({name} | same | (known - set(settings.targets)))


def _one(
    name: str,
    record: Any,
    items: Any,
    ledger: Ledger,
    over_us: int,
    names: frozenset[str],
    times: Mapping[str, int],
) -> dict[str, Any]:
    from vedette.ledger.history.audit import audit_keys, audit_mailbox

    given: dict[str, Any] = {**times, "names": names}
    kept_us = 0 if record.keeps_us is None else over_us + _APART_US - record.keeps_us
    if record.mails is not None:
        seen = record.mails
        found = audit_mailbox(seen, ledger, name, emptied=record.emptied, **given)
    else:
        seen = items
        found = audit_keys(seen, ledger, name, kept_us=kept_us, **given)
    claims = ledger.of(name)
    return {
        "target": name,
        "recorded": len(seen),
        "intents": len(claims),
        "done": sum(claim.state == "done" for claim in claims),
        "open": sum(claim.open for claim in claims),
        "erased": sum(claim.erased for claim in claims),
        "kept_since": kept_us or None,
        "findings": found,
    }


def _targets(settings: Settings) -> Callable[[str, str], str | None]:
    """Return what names the target of an agent's tool, as the fleet is declared today."""
    known: dict[tuple[str, str], str | None] = {}

    def load() -> Mapping[tuple[str, str], str | None]:
        from vedette.config import load_fleet

        agents = load_fleet(settings.root, settings, now_us=SystemClock().now_us()).fleet.agents
        return {(a.name, t.name): t.target for a in agents.values() for t in a.tools.values()}

    def target_of(agent: str, tool: str) -> str | None:
        if not known:
            known.update(load() or {("", ""): None})
        return known.get((agent, tool))

    return target_of


def _instant(since: str | None, now_us: int) -> int:
    from vedette.domain.base.clock import ago, duration_us, from_iso

    if since is None:
        return 0
    try:
        return ago(now_us, duration_us(since))
    except ValueError:
        pass
    try:
        return from_iso(since)
    except ValueError as error:
        mend = "for example --since 24h, or --since 2026-05-01T06:00:00Z"
        raise BadCommand(f"{since!r} is no time", mend=mend) from error


def _text(told: Mapping[str, Any]) -> str:
    lines = []
    if told["archived_before"]:
        lines.append(f"entries before {shown_time(told['archived_before'])} are archived")
    for target in told["targets"]:
        found = target["findings"]
        lines.append(
            f"{target['target']}: {target['recorded']:,} in its record, {target['done']:,} of "
            f"{target['intents']:,} intents done, {target['open']:,} open: "
            + (f"{len(found):,} findings" if found else "as the ledger says")
        )
        if target["erased"]:
            lines.append(f"  of {target['erased']:,} intents the content is erased")
        if target["kept_since"]:
            lines.append(f"  its record begins at {shown_time(target['kept_since'])}")
        lines += [f"  FOUND {one['code']}: {plain(one['what'])}" for one in found[:_SHOWN]]
        if len(found) > _SHOWN:
            lines.append(f"  … and {len(found) - _SHOWN:,} more (--json has all)")
    lines += [f"{one['target']}: not audited: {one['why']}" for one in told["skipped"]]
    if not told["targets"]:
        lines.append("nothing was audited")
    return "\n".join(lines)
