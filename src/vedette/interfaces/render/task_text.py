"""Tasks in lines: the report's section on them, and the trajectory of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vedette.domain.base.clock import utc_time
from vedette.domain.budget import MODEL_UNITS
from vedette.interfaces.render.explain_text import safe_text

_MAX_TEXT = 60
# Of its course so many steps are told, the first and the last ones.
_MAX_COURSE = 40
_MAX_DRIFTS = 8


def task_lines(tasks: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the report's section on tasks (`TaskCounts.to_json`)."""
    for drift in tasks["drifts"][:_MAX_DRIFTS]:
        yield f"drift in {drift['run']} {_drift(drift)}"
    more = len(tasks["drifts"]) - _MAX_DRIFTS + tasks["left_out"]["drifts"]
    if more > 0:
        yield f"and {more:,} more drifts"
    for one in tasks["agents"]:
        own = one["tasks"]
        yield (
            f"{safe_text(one['agent'], _MAX_TEXT)}: {own['begun']:,} begun, {own['done']:,} done, "
            f"{own['cancelled']:,} cancelled, {own['dead']:,} dead, {own['open']:,} open "
            f"({own['waiting']:,} wait for a person)"
        )
        yield from (f"  {line}" for line in _count_lines(one))


def _count_lines(counts: Mapping[str, Any]) -> Iterator[str]:
    items, stops, hand_offs = counts["items"], counts["interrupts"], counts["hand_offs"]
    effects, refused, recovered = (counts[name] for name in ("effects", "refused", "recovered"))
    yield (
        f"items: {items['added']:,} added, {items['done']:,} done, {items['failed']:,} failed, "
        f"{items['set_aside']:,} set aside"
    )
    yield (
        f"{counts['turns']:,} turns, {counts['actions']:,} actions, {effects['done']:,} done, "
        f"{effects['failed']:,} failed, {effects['unknown']:,} times unknown, "
        f"{counts['repeated']:,} not repeated"
    )
    by_rule = ", ".join(f"{safe_text(rule, 40)} {number:,}" for rule, number in refused.items())
    if by_rule:
        yield f"refused: {by_rule}"
    yield (
        f"recovered: {recovered['items']:,} items, {recovered['effects']:,} effects; "
        f"{counts['starts']:,} starts of workers; hand-offs: {hand_offs['model']:,} by "
        f"models, {hand_offs['engine']:,} by the engine"
    )
    yield (
        f"people: {stops['holds']:,} holds, {stops['stalls']:,} stalls, {stops['pauses']:,} "
        f"pauses, {stops['steers']:,} notes; waited for {format_length(counts['waited_us'])}"
    )
    if counts["spend"]:
        yield f"spent: {_spend(counts['spend'])}"


def trajectory_lines(
    found: Mapping[str, Any], format_time: Callable[[int], str] = utc_time
) -> Iterator[str]:
    """Yield the lines of a task's trajectory (`Trajectory.to_json`), but for its table of items."""
    credit = found["credit"]
    items, met = credit["items"], credit["conditions"]
    yield (
        f"credit: {credit['credit_milli'] / 10:g} %, items {items['done']:,} of {items['of']:,}, "
        f"conditions {met['met']} of {met['of']}"
    )
    for phase, share in credit["phases"].items():
        yield f"  phase {safe_text(phase, _MAX_TEXT)}: {share['done']:,} of {share['of']:,}"
    yield from _count_lines(found)
    if found["booked"]:
        yield f"booked and not settled: {_spend(found['booked'])}"
    if found["other_spend"]:
        yield f"spent for no item: {_spend(found['other_spend'])}"
    for drift in found["drift_list"]:
        yield f"drift in {_drift(drift)}"
    for wait in found["waits_for"]:
        yield f"waits for {safe_text(wait['what'], _MAX_TEXT)} since {format_time(wait['since'])}"
    yield f"course: {_course(found)}"


def format_score(score: Mapping[str, Any]) -> str:
    """Return, in words, what a tried task reached (`TaskScore.to_json`)."""
    items, met = score["items"], score["conditions"]
    refused, recovered = (sum(score[name].values()) for name in ("refused", "recovered"))
    line = (
        f"task {score['state']}: credit {score['credit_milli'] / 10:g} %, items {items['done']:,} "
        f"of {items['of']:,}, conditions {met['met']} of {met['of']}; {score['turns']:,} turns, "
        f"{refused:,} refused, {recovered:,} recovered, {score['repeated']:,} not repeated"
    )
    return line + (f"; spent {_spend(score['spend'])}" if score["spend"] else "")


def item_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of a trajectory's items, without its heads (`ITEM_HEADS`)."""
    return [
        [
            safe_text(item["id"], 24), item["state"], str(item["attempts"]),
            *(str(item[name]) for name in ("done", "failed", "refused", "repeated")),
            *(f"{item['spend'].get(unit, 0):,}" for unit in MODEL_UNITS),
        ]
        for item in found["item_list"]
    ]  # fmt: skip


ITEM_HEADS = [
    "item", "state", "turns", "done", "failed", "refused", "again", "calls", "tokens", "micros",
]  # fmt: skip


def _course(found: Mapping[str, Any]) -> str:
    """Return a task's course in one line: the turns between what happened beside them."""
    parts: list[str] = []
    last = 0
    for one in found["course"]:
        if one["turn"] > last:
            parts.append(f"turns {last + 1}-{one['turn']}" if one["turn"] > last + 1
                         else f"turn {one['turn']}")  # fmt: skip
            last = one["turn"]
        parts.append(_course_word(one))
    if found["turns"] > last:
        parts.append(f"turns {last + 1}-{found['turns']}")
    if len(parts) > _MAX_COURSE:
        half = _MAX_COURSE // 2
        parts = [*parts[:half], f"{len(parts) - 2 * half:,} more", *parts[-half:]]
    return ", ".join(parts)


def _course_word(one: Mapping[str, Any]) -> str:
    more = " ".join(safe_text(one[name], 40) for name in ("tool", "rule") if name in one)
    by = f" by {safe_text(one['by'], 40)}" if "by" in one else ""
    return f"{one['what']}{' ' if more else ''}{more}{by}"


def _drift(drift: Mapping[str, Any]) -> str:
    if "memory" in drift:  # its text is the memory's, and goes with that
        text = f"memory {drift['memory']}"
    else:
        text = "(erased)" if drift["text"] is None else safe_text(drift["text"], _MAX_TEXT)
    return f"turn {drift['turn']}: {drift['rule']}: {text}"


def _spend(spend: Mapping[str, int]) -> str:
    return ", ".join(f"{amount:,} {unit}" for unit, amount in spend.items() if amount)


def format_length(us: int) -> str:
    """Return a length of time for people: `90 s`, `30 min`, `2.5 h`."""
    seconds = us / 1e6
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
