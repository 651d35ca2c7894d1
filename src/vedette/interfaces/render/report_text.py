"""The report as one page of plain lines, and a reconstruction as lines to read or to search.

What strangers wrote is made safe for a terminal. A section that would not fit says how much more
there is; `--json` has all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vedette.domain.base.clock import utc_second
from vedette.domain.base.safe_text import BAR
from vedette.domain.display_text import about_line
from vedette.interfaces.render.explain_text import safe
from vedette.ledger.history.action import ActionHistory
from vedette.ledger.history.approval_times import answered_text
from vedette.ledger.history.observe_mode import would_text
from vedette.ledger.history.reconstruction import Reconstruction

When = Callable[[int], str]

_CHANGES, _EXCEPTIONS, _SPENT, _LONG = 10, 14, 8, 100
# As much of an id as names one action for `explain`: the half of its event, and a bit.
_ID = 28


def would_lines(told: Mapping[str, Any]) -> list[str]:
    """Return the lines of a report's section on what agents would have done."""
    return ["WOULD HAVE", *would_text(told["would"], safe)]


def report_text(told: Mapping[str, Any], when: When = utc_second) -> list[str]:
    """Return the lines of a report; `when` writes an instant for its reader."""
    return [
        f"REPORT {safe(told['fleet'])}  {_at(told['from'], when)} to {_at(told['to'], when)}",
        *_traffic(told["traffic"]),
        "CHANGED",
        *_some([_change(one, when) for one in told["changed"]], _CHANGES, "nothing"),
        "EXCEPTIONS",
        *_some(list(_exceptions(told["exceptions"], when)), _EXCEPTIONS, "none"),
        "BUDGETS",
        *_budgets(told["budgets"]),
        "RULES NEVER HIT",
        *_rules(told["rules"]),
        "QUESTIONS",
        *_questions(told["questions"]),
        "WHO ANSWERED",
        *answered_text(told["answered"], safe),
        *would_lines(told),
        f"CHECK THESE {len(told['sample'])} PERMITTED ACTIONS (drawn by {safe(told['seed'])!r})",
        *(line for one in told["sample"] for line in _sampled(one)),
    ]


def _at(instant: Any, when: When) -> str:
    return when(instant) if isinstance(instant, int) else "?"


def _some(lines: Sequence[str], most: int, none: str) -> Iterator[str]:
    if not lines:
        yield f"  {none}"
    for line in lines[:most]:
        yield f"  {line}"
    if len(lines) > most:
        yield f"  and {len(lines) - most:,} more"


def _traffic(told: Mapping[str, Any]) -> Iterator[str]:
    decided, effects = told["decisions"], told["effects"]
    yield (
        f"  {told['events']:,} events, {told['refused']:,} refused; {told['runs_closed']:,} runs "
        f"closed, {told['runs_dead']:,} dead; the fleet was started {told['starts']:,} times"
    )
    yield (
        f"  {decided['permit']:,} permits, {decided['hold']:,} holds, {decided['deny']:,} denials; "
        f"effects: {effects['done']:,} done, {effects['failed']:,} failed, "
        f"{effects['unknown']:,} times unknown"
    )
    if told["unreadable"]:
        yield f"  {told['unreadable']:,} entries cannot be read: see `vedette ledger verify`"


def _change(one: Mapping[str, Any], when: When) -> str:
    line = f"{_at(one['at'], when)}  {one['kind']}"
    if one.get("policy_rev") is not None:
        line += f" revision {one['policy_rev']}"
    for name in ("what", "agent", "scope"):
        if one.get(name):
            line += f" {safe(one[name], 60)}"
    if one.get("agents"):
        line += f" {safe(', '.join(one['agents']), 80)}"
    by = f" by {safe(one['by'], 40)}" if one.get("by") else ""
    return line + by + (f": {safe(one['reason'], 60)}" if one.get("reason") else "")


def _exceptions(found: Sequence[Mapping[str, Any]], when: When) -> Iterator[str]:
    """Yield a line for each kind, tool and reason, whoever it happened to."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for one in found:
        groups.setdefault((one["kind"], one["tool"], one["why"]), []).append(one)
    for (kind, tool, why), same in groups.items():
        count = sum(one["count"] for one in same)
        who = ", ".join(f"{one['agent']} {one['count']:,}" for one in same[:2])
        who += f" and {len(same) - 2} agents more" if len(same) > 2 else ""
        of = f" {safe(tool, 60)}" if tool else ""
        named = f" [{safe(who, 80)}]" if same[0]["agent"] else ""
        tries = [one["next_try_at"] for one in same if one["next_try_at"]]
        again = f", next try {_at(min(tries), when)}" if tries else ""
        id = same[0]["example"]
        yield f"{count:>6,}  {kind}{of}: {safe(why, _LONG)}{again}{named} e.g. {id[:_ID]}"


def _budgets(told: Mapping[str, Any]) -> Iterator[str]:
    spent = sorted(told["spent"], key=lambda one: (one["unit"], -one["spent"], one["agent"]))
    lines = []
    for unit in dict.fromkeys(one["unit"] for one in spent):
        mine = [one for one in spent if one["unit"] == unit]
        total, booked = (sum(one[name] for one in mine) for name in ("spent", "booked"))
        first = ", ".join(f"{one['agent']} {one['spent']:,}" for one in mine[:3])
        more = f", {booked:,} booked" if booked else ""
        lines.append(f"{unit}: {total:,} by {len(mine)} agents{more} (most: {safe(first)})")
    for one in told["limits"]:
        whose = one["agent"] or "the fleet"
        lines.append(
            f"{safe(whose, 60)} {one['unit']} per {one['window']}, limit {one['limit']}: "
            f"{one['alerted']} alerts, {one['refused']} refusals"
        )
    yield from _some(lines, _SPENT, "nothing was spent")


def _rules(told: Mapping[str, Any]) -> Iterator[str]:
    if told["bundle"] is None:
        yield "  no policy was live"
        return
    never = ", ".join(told["never"]) or "every rule spoke"
    yield f"  {safe(never, 900)}"
    yield f"  ({len(told['never'])} of the {told['known']} in bundle {told['bundle'][:12]})"


def _questions(told: Mapping[str, Any]) -> Iterator[str]:
    per = f", {told['per_1000']} per 1,000 events" if told["per_1000"] is not None else ""
    yield (
        f"  {told['asked']:,} asked{per}; {told['approved']:,} approved, {told['denied']:,} "
        f"denied, {told['expired']:,} expired"
    )


def _sampled(one: Mapping[str, Any]) -> Iterator[str]:
    args = "(erased)" if one["erased"] else safe(one["args"], 70)
    by = f", approved by {safe(', '.join(one['approved_by']), 40)}" if one["approved_by"] else ""
    yield f"  {one['action'][:_ID]}  {one['agent']} {one['tool']} {args} by {one['rule']}{by}"
    if one["about"] is not None:
        yield about_line(one["about"], f"    {BAR}", _LONG)


# --- a reconstruction ---------------------------------------------------------------------------


def reconstruction_text(told: Reconstruction, when: When = utc_second) -> Iterator[str]:
    """Yield the lines of a reconstruction: each agent's timeline, what is open, what is wrong.

    `when` writes an instant for its reader.
    """
    begun, ended = (_at(at, when) for at in (told.window.since_us, told.window.until_us))
    yield f"FROM {begun} TO {ended}, to entry {told.last:,}"
    for name in sorted(told.agents):
        agent = told.agents[name]
        yield f"AGENT {name} ({agent.identity or 'its identity is not recorded'})"
        for item in agent.items:
            yield f"  {_at(item['at'], when)}  {item['seq']:>9}  {_told(item, told.events)}"
    if told.fleet:
        yield "THE FLEET"
    for item in told.fleet:
        yield f"  {_at(item['at'], when)}  {item['seq']:>9}  {_told(item, told.events)}"
    yield f"OPEN INTENTS: {len(told.open)}"
    yield from (f"  {_open(action, when)}" for action in told.open)
    if told.cut:
        yield f"RUNS WHOSE BEGINNING IS ARCHIVED: {len(told.cut)}"
    yield f"FINDINGS: {len(told.findings)}"
    yield from (
        f"  entry {one['seq']}: {one['code']}: {safe(one['what'])}" for one in told.findings
    )


def _told(item: Mapping[str, Any], events: Mapping[str, Mapping[str, Any]]) -> str:
    """Say one entry in a line."""
    parts = [str(item["kind"])]
    for name, word in (
        ("tool", ""), ("outcome", ""), ("rule", "by "), ("policy_rev", "revision "),
        ("label", "judged "), ("wait", "waits for "), ("what", ""), ("actor", "by "),
        ("action", ""), ("run", ""),
    ):  # fmt: skip
        if item.get(name) not in (None, ""):
            parts.append(word + safe(item[name], 80))
    event = events.get(str(item.get("event")))
    if event is not None and item["kind"] in ("turn.reasoned", "run.closed", "run.dead"):
        subject = f" of {safe(event['subject'], 60)}" if event["subject"] else ""
        what = "an erased event" if event["erased"] else f"{safe(event['type'], 60)}{subject}"
        parts.append(f"on {what}")
    return ", ".join(parts)


def _open(action: ActionHistory, when: When) -> str:
    last = action.effects[-1]
    return (
        f"{action.id} {action.agent} {action.tool}: {action.state} since entry {last.seq} "
        f"({_at(last.at, when)}); nobody recorded how it ended"
    )
