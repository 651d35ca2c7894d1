"""`vedette try`: one event put to one agent, without effect or trace."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.errors import BadCommand, BadEvent, NotFound
from vedette.interfaces.cli.agent import NOTE, folder_digest
from vedette.interfaces.cli.common import as_json_option, plain, reading, say, settings_of

if TYPE_CHECKING:
    from vedette.app.dry_run import Before, Trial
    from vedette.config import Settings
    from vedette.domain.agent import Agent
    from vedette.domain.event import Event
    from vedette.store.read_runs import Reads

_WORDS = {"permit": "would be done", "hold": "would wait for a person", "deny": "would be denied"}
_NEAREST, _WIDE = 3, 76


@click.command("try")
@click.argument("agent")
@click.argument("event")
@as_json_option
@click.pass_context
def try_(ctx: click.Context, agent: str, event: str, as_json: bool) -> None:
    """Try EVENT on AGENT: what it would be judged as, and what would become of it.

    EVENT is a file (a CloudEvent in JSON; a mail; SERIES.csv:ROW) or the id of a recorded event or
    run. Judge, memories and live policy are the real ones. Nothing is done, and nothing is written,
    not even to the ledger; a fleet may run meanwhile.

    The agent's code runs as you, in no box: not on a folder that nobody has read.
    """
    settings = settings_of(ctx)
    with redirect_stdout(sys.stderr):  # whatever the agent's code prints
        value = _tried(settings, agent, event)
    say(as_json, value, "\n".join(_lines(value)))


@dataclass(frozen=True, slots=True)
class _Given:
    """The event; the events of its file before it; its position if it is on record."""

    event: Event
    earlier: tuple[Event, ...] = ()
    position: int | None = None


def _tried(settings: Settings, name: str, text: str) -> dict[str, Any]:
    from vedette.app.dry_run import Before
    from vedette.app.stores import is_there
    from vedette.config import load_fleet
    from vedette.config.problem import did_you_mean
    from vedette.domain.base.clock import SystemClock

    now_us = SystemClock().now_us()
    loaded = load_fleet(settings.root, settings, now_us=now_us)
    agents = loaded.fleet.agents
    if name not in agents:
        raise NotFound(f"there is no agent {name!r}", mend=did_you_mean(name, list(agents)))
    agent = agents[name]
    if agent.reasoner != "judge":
        what = f"{name} reasons with a model; to ask it would cost and leave a trace there"
        raise BadCommand(what, mend="try an agent with a judge")
    if not is_there(settings):
        given = _given(settings, text, None)
        trial = _trial(settings, loaded, agent, None, now_us)
        value = trial.run(given.event, _before(None, agent, given) or Before())
        return {**value, "folder_differs": False}
    with reading(settings) as store, store.snapshot():
        given = _given(settings, text, store)
        trial = _trial(settings, loaded, agent, store, now_us)
        value = trial.run(given.event, _before(store, agent, given) or Before())
        live = store.revision()
    return {**value, "folder_differs": bool(live[0]) and folder_digest(settings) != live[1]}


# --- the event ----------------------------------------------------------------------------------


def _given(settings: Settings, text: str, store: Reads | None) -> _Given:
    path, _, row = text.rpartition(":")
    if row.isdigit() and Path(path).suffix == ".csv" and Path(path).is_file():
        given = _csv_row(settings, Path(path), int(row))
    elif Path(text).is_file():
        given = _Given(_read(settings, Path(text)))
    elif store is None or "/" in text or Path(text.partition(":")[0]).suffix:
        mend = "name a file, or a recorded event or run by its id"
        raise BadCommand(f"there is no file {text!r}", mend=mend)
    else:
        return _recorded(store, text)
    if store is not None:
        for run in store.runs_of_event(given.event.key):
            return _Given(given.event, (), run.position)
    return given


def _recorded(store: Reads, text: str) -> _Given:
    from vedette.domain.compensation import is_undo
    from vedette.ledger.history.reader import resolve

    kind, name = resolve(store, text)
    if kind not in ("event", "run"):
        row = store.action("act_" + name.partition("_")[2])
        name = row.run if row is not None else name
    run = store.run(name) if kind != "event" else None
    key = run.event if run is not None else name
    runs = store.runs_of_event(key)
    event = store.event(key)
    if event is None:
        raise BadCommand(f"the content of {key} was erased", mend="try another event")
    if is_undo(event):
        raise BadCommand("the engine answers an undo itself; it is put to no judge")
    return _Given(event, (), runs[0].position if runs else None)


def _read(settings: Settings, path: Path) -> Event:
    raw = path.read_bytes()
    if raw.lstrip()[:1] in (b"{", b"["):
        from vedette.domain.cloudevents import load_json
        from vedette.interfaces.http.command_dispatch import event_of

        value = load_json(raw, where=str(path))
        if isinstance(value, list):
            if len(value) != 1:
                raise BadEvent(f"holds {len(value)} events", where=str(path), mend="give one")
            value = value[0]
        return event_of(value)
    from vedette.adapters.mail.event import mail_event
    from vedette.config import MaildirPlan

    plans = [plan for plan in settings.sources if isinstance(plan, MaildirPlan)]
    source = f"maildir:{plans[0].name if plans else 'try'}"
    unique = path.name.partition(":")[0]
    received_us = path.stat().st_mtime_ns // 1000
    return mail_event(source, unique, raw, subject=unique, received_us=received_us)


def _csv_row(settings: Settings, path: Path, row: int) -> _Given:
    from glob import glob

    from vedette.adapters.files.source import CsvSource
    from vedette.config import CsvPlan
    from vedette.domain.base.clock import SystemClock

    here = str(path.resolve())
    names = [
        plan.name
        for plan in settings.sources
        if isinstance(plan, CsvPlan) and here in glob(plan.path)  # noqa: PTH207 (absolute pattern)
    ]
    events = CsvSource(names[0] if names else "try", here, SystemClock()).first(row)
    if len(events) < row:
        raise BadEvent(f"has {len(events)} rows", where=str(path), mend="rows count from 1")
    return _Given(events[-1], tuple(events[:-1]))


def _before(store: Reads | None, agent: Agent, given: _Given) -> Before | None:
    from vedette.app.dry_run import Before, before

    if store is not None:
        found = before(store, agent, agent.key_of(given.event), given.position)
        if found != Before():
            return found
    if given.earlier and given.position is None:
        since = tuple(enumerate(given.earlier, start=1))
        return Before(since=since, says=f"after the {len(since):,} rows before it in the file")
    return None


# --- what is live -------------------------------------------------------------------------------


def _trial(
    settings: Settings, loaded: Any, agent: Agent, store: Reads | None, now_us: int
) -> Trial:
    from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
    from vedette.adapters.policy_engines.regorus.stage import read_bundle
    from vedette.app.dry_run import Trial
    from vedette.config import build_judge
    from vedette.domain.budget import DAY_US, MINUTE_US, window_start
    from vedette.domain.bundle import Bundle
    from vedette.memory.retrieval import Recall
    from vedette.memory.training_set import Lessons
    from vedette.operations.curation import feed
    from vedette.policy.bundle_data import mount
    from vedette.policy.gateway import Gateway
    from vedette.store.banks import SqliteBank

    number, digest = store.revision() if store is not None else (0, "")
    files = store.bundle(digest) if store is not None and number else None
    bundle = Bundle.recorded(files, digest) if files is not None else read_bundle(settings.policies)
    gateway = Gateway(RegorusEngine(bundle), number)
    banks = SqliteBank(":memory:")
    banks.load(loaded.banks)
    stopped: frozenset[str] = frozenset()
    if store is not None:
        feed(banks, store)
        for of, unit, minute, amount in store.spent(window_start(now_us, DAY_US) // MINUTE_US):
            gateway.counts.add(of, unit, minute * MINUTE_US, amount)
        stopped = frozenset(
            tool
            for scope, name in store.stops()
            for tool in agent.tools
            if scope == "all" or name in (agent.name, tool)
        )
    lessons = Lessons(banks, {agent.name: agent})
    lessons.take(lessons.decide(gateway, now_us)[0], number)
    registry: Any = mount(bundle.files).get("registry") or {}
    return Trial(
        agent, loaded.fleet, lambda: build_judge(agent, lessons.of(agent.name, now_us)), gateway,
        Recall(banks, gateway), registry, settings.targets, now_us, stopped,
    )  # fmt: skip


# --- the page -----------------------------------------------------------------------------------


def _lines(value: dict[str, Any]) -> list[str]:
    event = value["event"]
    live = f"revision {value['revision']}" if value["revision"] else "the policy of the folder"
    lines = [
        f"TRY {value['agent']} on {plain(event['type'])} {plain(str(event['subject'] or ''))}",
        f"  nothing was done or written; decided under {live}",
        f"  what it knew of its key: {value['state']}",
    ]
    if value["folder_differs"]:
        lines.append(NOTE)
    if not value["wakes"]:
        lines += _wrapped(f"it would not wake: {plain(value['why_wakes'])}")
    sure = f"{value['confidence']:.3f}" if value["confidence"] is not None else "?"
    lines.append(f"JUDGED {plain(str(value['label']))}, sure to {sure}")
    if value["score"] is not None:
        bar = f", threshold {value['threshold']:.3f}" if value["threshold"] is not None else ""
        lines.append(f"  score {value['score']:.3f}{bar}")
    why = value["detail"].get("why")
    for told in why if isinstance(why, list) else [why] if why else []:
        lines += _wrapped(f"because {plain(str(told))}")
    for near in _nearest(value["detail"]):
        lines.append(f"  nearest: {near}")
    for memory in value["memories"]:
        first = plain(" ".join(memory["text"].split()))
        lines.append(f"  reads {plain(memory['cite'])}: {first}"[:_WIDE])
    lines.append("WOULD" if value["actions"] else "WOULD do nothing")
    for action in value["actions"]:
        lines += _action(action)
    for told in value["refused"]:
        lines += _wrapped(f"no action: {plain(told)}")
    for told in value["candidates"]:
        lines += _wrapped(f"would propose to remember: {plain(told['text'])}")
    return lines


def _nearest(detail: dict[str, Any]) -> list[str]:
    found = detail.get("nearest")
    if not isinstance(found, list):
        return []
    return [
        plain(
            f"{near.get('id') or near.get('example')} ({near.get('label')}), "
            f"similarity {near.get('similarity')}"
        )
        for near in found[:_NEAREST]
        if isinstance(near, dict)
    ]


def _action(action: dict[str, Any]) -> list[str]:
    said = _WORDS[action["would"] or action["outcome"]]
    lines = [f"  {action['tool']}: {said} ({action['rule']})"]
    others = [reason for reason in action["reasons"] if reason.partition(":")[0] != action["rule"]]
    if others:
        lines += _wrapped(f"because of {plain(', '.join(others))}", 6)
    for name, arg in action["args"].items():
        origin = action["origins"].get(f"/{name}", "?")
        shown = plain(" ".join(str(arg).split()))
        shown = shown if len(shown) <= _WIDE // 2 else shown[: _WIDE // 2] + "…"
        lines.append(f"      {name} = {shown}  [{origin}]")
    inverse = f"; undone by {action['inverse']}" if action["inverse"] else "; cannot be undone"
    lines += _wrapped(f"touches {plain(action['touches'])}{inverse}", 6)
    return lines


def _wrapped(text: str, indent: int = 2) -> list[str]:
    blank = " " * indent
    return wrap(text, _WIDE, initial_indent=blank, subsequent_indent=blank + "  ")
