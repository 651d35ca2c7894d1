"""The report as one page of plain lines, and a reconstruction as lines to read or to search.

What strangers wrote is made safe for a terminal. A section that would not fit says how much more
there is; `--json` has all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vedette.domain.base.clock import utc_time
from vedette.domain.base.safe_text import BAR
from vedette.domain.display_text import format_event_line
from vedette.interfaces.render.explain_text import safe_text
from vedette.interfaces.render.task_text import task_lines
from vedette.ledger.history.action import ActionHistory
from vedette.ledger.history.approval_times import format_answer_times
from vedette.ledger.history.observe_mode import format_observe_mode
from vedette.ledger.history.reconstruction import Reconstruction

TimeFormat = Callable[[int], str]

_MAX_CHANGES, _MAX_EXCEPTIONS, _MAX_SPENT, _MAX_CHARS = 10, 14, 8, 100
_MAX_TASK_LINES = 24
# As much of an id as names one action for `explain`: the half of its event, and a bit.
_ID_CHARS = 28


def would_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the lines of a report's section on what agents would have done."""
    return ["WOULD HAVE", *format_observe_mode(report["would"], safe_text)]


def report_text(report: Mapping[str, Any], format_time: TimeFormat = utc_time) -> list[str]:
    """Return the lines of a report; `format_time` writes an instant for its reader."""
    return [
        f"REPORT {safe_text(report['fleet'])}  {_time_text(report['from'], format_time)} "
        f"to {_time_text(report['to'], format_time)}",
        *_traffic(report["traffic"]),
        "CHANGED",
        *_limit_lines(
            [_change(one, format_time) for one in report["changed"]], _MAX_CHANGES, "nothing"
        ),
        "EXCEPTIONS",
        *_limit_lines(
            list(_exceptions(report["exceptions"], format_time)), _MAX_EXCEPTIONS, "none"
        ),
        "BUDGETS",
        *_budgets(report["budgets"]),
        "WHO SETTLED IT",
        *_limit_lines([_wakeup(one) for one in report["wakeups"]], _MAX_SPENT, "nothing woke"),
        *_tasks(report["tasks"]),
        "RULES NEVER HIT",
        *_rules(report["rules"]),
        "QUESTIONS",
        *_questions(report["questions"]),
        "WHO ANSWERED",
        *format_answer_times(report["answered"], safe_text),
        *would_lines(report),
        f"CHECK THESE {len(report['sample'])} PERMITTED ACTIONS "
        f"(drawn by {safe_text(report['seed'])!r})",
        *(line for one in report["sample"] for line in _sample_lines(one)),
    ]


def _time_text(instant: Any, format_time: TimeFormat) -> str:
    return format_time(instant) if isinstance(instant, int) else "?"


def _limit_lines(lines: Sequence[str], max_lines: int, none: str) -> Iterator[str]:
    if not lines:
        yield f"  {none}"
    for line in lines[:max_lines]:
        yield f"  {line}"
    if len(lines) > max_lines:
        yield f"  and {len(lines) - max_lines:,} more"


def _traffic(traffic: Mapping[str, Any]) -> Iterator[str]:
    decided, effects = traffic["decisions"], traffic["effects"]
    yield (
        f"  {traffic['events']:,} events, {traffic['refused']:,} refused; "
        f"{traffic['runs_closed']:,} runs closed, {traffic['runs_dead']:,} dead; "
        f"the fleet was started {traffic['starts']:,} times"
    )
    yield (
        f"  {decided['permit']:,} permits, {decided['hold']:,} holds, {decided['deny']:,} denials; "
        f"effects: {effects['done']:,} done, {effects['failed']:,} failed, "
        f"{effects['unknown']:,} times unknown"
    )
    if traffic["unreadable"]:
        yield f"  {traffic['unreadable']:,} entries cannot be read: see `vedette verify`"


def _change(one: Mapping[str, Any], format_time: TimeFormat) -> str:
    line = f"{_time_text(one['at'], format_time)}  {one['kind']}"
    if one.get("policy_rev") is not None:
        line += f" revision {one['policy_rev']}"
    for name in ("what", "agent", "scope"):
        if one.get(name):
            line += f" {safe_text(one[name], 60)}"
    if one.get("agents"):
        line += f" {safe_text(', '.join(one['agents']), 80)}"
    by = f" by {safe_text(one['by'], 40)}" if one.get("by") else ""
    return line + by + (f": {safe_text(one['reason'], 60)}" if one.get("reason") else "")


def _exceptions(exceptions: Sequence[Mapping[str, Any]], format_time: TimeFormat) -> Iterator[str]:
    """Yield a line for each kind, tool and reason, whoever it happened to."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for one in exceptions:
        groups.setdefault((one["kind"], one["tool"], one["why"]), []).append(one)
    for (kind, tool, why), same in groups.items():
        count = sum(one["count"] for one in same)
        who = ", ".join(f"{one['agent']} {one['count']:,}" for one in same[:2])
        who += f" and {len(same) - 2} agents more" if len(same) > 2 else ""
        of = f" {safe_text(tool, 60)}" if tool else ""
        named = f" [{safe_text(who, 80)}]" if same[0]["agent"] else ""
        tries = [one["next_try_at"] for one in same if one["next_try_at"]]
        next_try = f", next try {_time_text(min(tries), format_time)}" if tries else ""
        id = same[0]["example"]
        reason = safe_text(why, _MAX_CHARS)
        yield f"{count:>6,}  {kind}{of}: {reason}{next_try}{named} e.g. {id[:_ID_CHARS]}"


def _budgets(budgets: Mapping[str, Any]) -> Iterator[str]:
    spent = sorted(budgets["spent"], key=lambda one: (one["unit"], -one["spent"], one["agent"]))
    lines = []
    for unit in dict.fromkeys(one["unit"] for one in spent):
        mine = [one for one in spent if one["unit"] == unit]
        total, booked = (sum(one[name] for one in mine) for name in ("spent", "booked"))
        first = ", ".join(f"{one['agent']} {one['spent']:,}" for one in mine[:3])
        more = f", {booked:,} booked" if booked else ""
        lines.append(f"{unit}: {total:,} by {len(mine)} agents{more} (most: {safe_text(first)})")
    for one in budgets["limits"]:
        whose = one["agent"] or "the fleet"
        lines.append(
            f"{safe_text(whose, 60)} {one['unit']} per {one['window']}, limit {one['limit']}: "
            f"{one['alerted']} alerts, {one['refused']} refusals"
        )
    yield from _limit_lines(lines, _MAX_SPENT, "nothing was spent")


def _wakeup(one: Mapping[str, Any]) -> str:
    line = (
        f"{safe_text(one['agent'], 60)}: {one['runs']:,} runs, {one['at_no_cost']:,} at no cost, "
        f"{one['by_model']:,} by its model, {one['by_people']:,} by people"
    )
    line += f", {one['dead']:,} dead letters" if one["dead"] else ""
    if not one["model_calls"]:
        return line
    per = f" ({one['calls_per_useful']} for each)" if one["calls_per_useful"] else ""
    line += f"; {one['model_calls']:,} calls for {one['useful']:,} actions done{per}"
    line += f", {one['tokens']:,} tokens" if one["tokens"] else ""
    return line + (f", {one['money_micros']:,} millionths" if one["money_micros"] else "")


def _tasks(tasks: Mapping[str, Any]) -> Iterator[str]:
    """Yield the section on tasks; a fleet that has none is not told of any."""
    if tasks["agents"]:
        yield "TASKS"
        yield from _limit_lines([*task_lines(tasks)], _MAX_TASK_LINES, "none")


def _rules(rules: Mapping[str, Any]) -> Iterator[str]:
    if rules["bundle"] is None:
        yield "  no policy was live"
        return
    never = ", ".join(rules["never"]) or "every rule spoke"
    yield f"  {safe_text(never, 900)}"
    yield f"  ({len(rules['never'])} of the {rules['known']} in bundle {rules['bundle'][:12]})"


def _questions(questions: Mapping[str, Any]) -> Iterator[str]:
    per = f", {questions['per_1000']} per 1,000 events" if questions["per_1000"] is not None else ""
    yield (
        f"  {questions['asked']:,} asked{per}; {questions['approved']:,} approved, "
        f"{questions['denied']:,} denied, {questions['expired']:,} expired"
    )


def _sample_lines(one: Mapping[str, Any]) -> Iterator[str]:
    args = "(erased)" if one["erased"] else safe_text(one["args"], 70)
    by = (
        f", approved by {safe_text(', '.join(one['approved_by']), 40)}"
        if one["approved_by"]
        else ""
    )
    yield f"  {one['action'][:_ID_CHARS]}  {one['agent']} {one['tool']} {args} by {one['rule']}{by}"
    if one["about"] is not None:
        yield format_event_line(one["about"], f"    {BAR}", _MAX_CHARS)


# --- a reconstruction ---------------------------------------------------------------------------


def reconstruction_text(
    reconstruction: Reconstruction, format_time: TimeFormat = utc_time
) -> Iterator[str]:
    """Yield the lines of a reconstruction: each agent's timeline, what is open, what is wrong.

    `format_time` writes an instant for its reader.
    """
    start, end = (
        _time_text(at, format_time)
        for at in (reconstruction.window.since_us, reconstruction.window.until_us)
    )
    yield f"FROM {start} TO {end}, to entry {reconstruction.last:,}"
    for name in sorted(reconstruction.agents):
        agent = reconstruction.agents[name]
        yield f"AGENT {name} ({agent.identity or 'its identity is not recorded'})"
        for item in agent.items:
            yield _item_line(item, reconstruction.events, format_time)
    if reconstruction.fleet:
        yield "THE FLEET"
    for item in reconstruction.fleet:
        yield _item_line(item, reconstruction.events, format_time)
    yield f"OPEN INTENTS: {len(reconstruction.open_intents)}"
    yield from (f"  {_open_intent(action, format_time)}" for action in reconstruction.open_intents)
    if reconstruction.truncated_runs:
        yield f"RUNS WHOSE BEGINNING IS ARCHIVED: {len(reconstruction.truncated_runs)}"
    yield f"FINDINGS: {len(reconstruction.findings)}"
    yield from (
        f"  entry {one['seq']}: {one['code']}: {safe_text(one['what'])}"
        for one in reconstruction.findings
    )


def _item_line(
    item: Mapping[str, Any], events: Mapping[str, Mapping[str, Any]], format_time: TimeFormat
) -> str:
    """Return an entry with its time and number."""
    at = _time_text(item["at"], format_time)
    return f"  {at}  {item['seq']:>9}  {_item_text(item, events)}"


def _item_text(item: Mapping[str, Any], events: Mapping[str, Mapping[str, Any]]) -> str:
    """Say one entry in a line."""
    parts = [str(item["kind"])]
    for name, word in (
        ("tool", ""), ("outcome", ""), ("rule", "by "), ("policy_rev", "revision "),
        ("label", "judged "), ("wait", "waits for "), ("what", ""), ("actor", "by "),
        ("action", ""), ("run", ""),
    ):  # fmt: skip
        if item.get(name) not in (None, ""):
            parts.append(word + safe_text(item[name], 80))
    event = events.get(str(item.get("event")))
    if event is not None and item["kind"] in ("turn.reasoned", "run.closed", "run.dead"):
        subject = f" of {safe_text(event['subject'], 60)}" if event["subject"] else ""
        what = "an erased event" if event["erased"] else f"{safe_text(event['type'], 60)}{subject}"
        parts.append(f"on {what}")
    return ", ".join(parts)


def _open_intent(action: ActionHistory, format_time: TimeFormat) -> str:
    last = action.effects[-1]
    return (
        f"{action.id} {action.agent} {action.tool}: {action.state} since entry {last.seq} "
        f"({_time_text(last.at, format_time)}); nobody recorded how it ended"
    )
