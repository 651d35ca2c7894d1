"""Triggers of agent.yaml, made into Subscriptions and Schedules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from msgspec.structs import replace

from vedette.config.agent_file import AgentFile, TriggerFile
from vedette.config.problem import Problem
from vedette.config.yaml import Document, KeyPath
from vedette.domain.agent import TASK_TRIGGER, UNDO_TRIGGER, Schedule, Subscription
from vedette.domain.base.canonical import canonicalize, normalize_json
from vedette.domain.base.clock import duration_us
from vedette.domain.event import CALL_TYPE, TASK_TYPE, TICK_TYPE

_KINDS = ("on", "every", "cron", "daily")
_DAILY = re.compile(r"([01]\d|2[0-3]):[0-5]\d\Z")
_NAME = re.compile(r"[a-z][a-z0-9_-]*\Z")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CRON = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("weekday", None, None, _DAYS),
)

# Names that no trigger of an agent has, and what they stand for.
_OWN_TRIGGERS = {
    UNDO_TRIGGER: "what a person takes back",
    TASK_TRIGGER: "a task that a person gives",
}

Triggers = tuple[tuple[Subscription, ...], tuple[Schedule, ...], list[Problem]]


def read_triggers(shape: AgentFile, document: Document) -> Triggers:
    """Return the subscriptions and schedules of agent.yaml, and what is wrong with them."""
    subscriptions: list[Subscription] = []
    schedules: list[Schedule] = []
    problems: list[Problem] = []
    names: set[str] = set()
    for index, trigger in enumerate(shape.triggers):
        path: KeyPath = ("triggers", index)
        if trigger.goal is not None and shape.work is None:
            what = "gives a task to an agent that takes none"
            problems.append(document.problem((*path, "goal"), what, "add work: {}"))
        given = [kind for kind in _KINDS if getattr(trigger, kind) is not None]
        if len(given) != 1:
            what = f"has {' and '.join(given)}" if given else "wakes on nothing"
            mend = f"give exactly one of {', '.join(_KINDS)}"
            problems.append(document.problem(path, what, mend))
        elif trigger.on is not None:
            problems += _subscription_problems(trigger, document, path)
            if CALL_TYPE in _to_patterns(trigger.on) and shape.reasoner != "client":
                what = "calls wake whoever is reasoned for by its client"
                problems.append(document.problem((*path, "on"), what, "write reasoner: client"))
            subscriptions.append(_subscription(trigger))
            problems += _name_problems(
                subscriptions[-1].trigger_name, trigger, names, document, path
            )
        else:
            name = trigger.name or given[0]
            problems += _schedule_problems(trigger, document, path)
            problems += _name_problems(name, trigger, names, document, path)
            schedules.append(_schedule(trigger, name))
    return tuple(subscriptions), tuple(schedules), problems


def _name_problems(
    name: str, trigger: TriggerFile, names: set[str], document: Document, path: KeyPath
) -> list[Problem]:
    """Say what is wrong with a trigger's name, its own or the one it is called by without."""
    problems = []
    if trigger.name is not None and not _NAME.match(trigger.name):
        what, mend = f"{trigger.name!r} cannot name a trigger", "use a-z, 0-9, _ and -"
        problems.append(document.problem((*path, "name"), what, mend))
    if name in _OWN_TRIGGERS:
        what = f"{name!r} names the trigger of {_OWN_TRIGGERS[name]}"
        problems.append(document.problem((*path, "name"), what, "choose another name"))
    if name in names:
        what = f"two triggers are named {name!r}"
        problems.append(document.problem(path, what, "give each a name of its own"))
    names.add(name)
    return problems


def _to_patterns(value: str | list[str] | None) -> tuple[str, ...]:
    if value is None:
        return ("*",)
    return (value,) if isinstance(value, str) else tuple(value)


def _subscription(trigger: TriggerFile) -> Subscription:
    patterns = (
        _to_patterns(trigger.on),
        _to_patterns(trigger.source),
        _to_patterns(trigger.subject),
    )
    return Subscription(*patterns, trigger.name or "", trigger.goal or "")


def _subscription_problems(
    trigger: TriggerFile, document: Document, path: KeyPath
) -> list[Problem]:
    problems = []
    for key in ("on", "source", "subject"):
        if getattr(trigger, key) == []:
            problems.append(document.problem((*path, key), "is an empty list", "name a pattern"))
    if any(fnmatchcase(TICK_TYPE, kind) and "*" not in kind for kind in _to_patterns(trigger.on)):
        what = "ticks are not subscribed to"
        problems.append(document.problem((*path, "on"), what, "use every, cron or daily"))
    if TASK_TYPE in _to_patterns(trigger.on):
        what = "tasks are not subscribed to: `vedette work start` gives them"
        problems.append(document.problem((*path, "on"), what, "add work: {}, and remove it"))
    for key in sorted(trigger.model_fields_set & {"zone", "missed", "max_age", "data"}):
        what = "belongs to a schedule, and this is a subscription"
        problems.append(document.problem((*path, key), what, "remove it"))
    return problems


def _schedule(trigger: TriggerFile, name: str) -> Schedule:
    every = duration_us(trigger.every) if trigger.every else None
    schedule = Schedule(
        name=name,
        every_us=every,
        cron=trigger.cron,
        daily=trigger.daily,
        zone=trigger.zone,
        missed=trigger.missed,
        data=normalize_json(trigger.data),
        goal=trigger.goal or "",
    )
    if trigger.max_age is None:
        return schedule
    return replace(schedule, max_age_us=duration_us(trigger.max_age))


def _schedule_problems(trigger: TriggerFile, document: Document, path: KeyPath) -> list[Problem]:
    def add_problem(key: str, what: str, mend: str) -> None:
        problems.append(document.problem((*path, key), what, mend))

    problems: list[Problem] = []
    for key in sorted(trigger.model_fields_set & {"source", "subject"}):
        add_problem(key, "belongs to a subscription, and this is a schedule", "remove it")
    if not zone_exists(trigger.zone):
        add_problem(
            "zone", f"there is no time zone {trigger.zone!r}", "for example Europe/London or UTC"
        )
    if trigger.daily is not None and not _DAILY.match(trigger.daily):
        add_problem("daily", f"{trigger.daily!r} is no time of day", 'write it as "06:30"')
    if trigger.every is not None and duration_us(trigger.every) < 1_000_000:
        add_problem("every", "is shorter than a second", "subscribe to events instead")
    if trigger.cron is not None:
        for what, mend in cron_problems(trigger.cron):
            add_problem("cron", what, mend)
    try:
        canonicalize(normalize_json(trigger.data))
    except ValueError as error:
        add_problem(
            "data", f"has no JSON form: {error}", "use text, whole numbers, lists and mappings"
        )
    return problems


def zone_exists(name: str) -> bool:
    """Say whether a trigger's time zone is known to this machine or to the tzdata package."""
    from zoneinfo import ZoneInfo  # few agents have a schedule

    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True


def cron_problems(text: str) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a trigger's cron expression of five fields, and the mend.

    Numeric weekdays are refused: cron counts them from Sunday, APScheduler from Monday, so
    `0 0 * * 0` would silently run on another day. Day of month and weekday together are refused
    for the same reason: cron takes either, APScheduler both.
    """
    fields = text.lower().split()
    if len(fields) != len(_CRON):
        yield (
            f"{text!r} has {len(fields)} fields",
            "five are needed: minute hour day-of-month month weekday",
        )
        return
    for field, (name, low, high, words) in zip(fields, _CRON, strict=True):
        for part in field.split(","):
            what = _part_problem(part, low, high, words)
            if what:
                mend = "name weekdays: mon … sun" if name == "weekday" else "see crontab(5)"
                yield f"{name} {part!r} {what}", mend
    if fields[2] != "*" and fields[4] != "*":
        yield "has both a day of month and a weekday", "make two triggers of it"


def _part_problem(part: str, low: int | None, high: int | None, words: tuple[str, ...]) -> str:
    """Say what is wrong with one part of a field: `*`, `7`, `1-5`, `mon-fri`, each with `/2`."""
    span, slash, step = part.partition("/")
    if slash and not (step.isdigit() and int(step) > 0):
        return "has a step that is no positive number"
    if span == "*":
        return ""
    ends = span.split("-")
    if slash and len(ends) == 1:
        return "has a step without a range"
    if len(ends) > 2:
        return "is not a range"
    places = []
    for end in ends:
        if end in words:
            places.append(words.index(end) + 1)
        elif not end.isdigit():
            return "is not known"
        elif low is None or high is None:
            return "is a number, and the days are counted differently by cron and by us"
        elif not low <= int(end) <= high:
            return f"is outside {low} to {high}"
        else:
            places.append(int(end))
    return "runs backwards" if places != sorted(places) else ""
