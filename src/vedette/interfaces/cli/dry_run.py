"""`vedette try`: one event put to one agent, without effect or trace."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from vedette.app.stores import store_reader
from vedette.domain.base.clock import from_iso
from vedette.domain.base.errors import BadCommand, BadEvent
from vedette.interfaces.cli.agent import FOLDER_DIFFERS_NOTE
from vedette.interfaces.cli.fleet import current_settings, find_agent, load_agents
from vedette.interfaces.cli.output import format_time, format_usage, print_result, sanitize_text

if TYPE_CHECKING:
    from vedette.app.dry_run import PriorState
    from vedette.config.settings import Settings
    from vedette.domain.agent import Agent
    from vedette.domain.event import Event
    from vedette.store.reader import StoreReader

_OUTCOME_WORDS = {
    "permit": "would be done",
    "hold": "would wait for a person",
    "deny": "would be denied",
}
_MAX_EXAMPLES, _WIDTH = 3, 76


@click.command("try")
@click.argument("agent")
@click.argument("event")
@click.option("--live", is_flag=True, help="Ask the agent's model anew, which costs.")
def try_(agent: str, event: str, live: bool) -> None:
    """Try EVENT on AGENT: what it would be judged as, and what would become of it.

    EVENT is a file (a CloudEvent in JSON; a mail; SERIES.csv:ROW) or the id of a recorded event or
    run. Judge, memories and live policy are the real ones. Nothing is done, and nothing is written,
    not even to the ledger; a fleet may run meanwhile.

    Of an agent that a model reasons for, what the model said to EVENT is taken out of the ledger
    and put to the live rules, as sure as people's answers say by now; no model is asked. With
    --live its model is asked, on the account of its key: within what is left of the agent's and the
    fleet's budgets, but it is not booked in them; and not while the agent is stopped. In a cascade
    the judge goes first: out of the ledger as well where it deferred to the model.

    Of a judge with several turns (max_turns of agent.yaml) the later ones are told what the ledger
    says came of the same calls; where it says nothing the trial ends, as no tool is called.

    The agent's code runs as you, in no box: not on a folder that nobody has read.
    """
    with redirect_stdout(sys.stderr):  # whatever the agent's code prints
        value = _run_trial(current_settings(), agent, event, live)
    lines = _lines(value) if "turns" not in value else _turns_lines(value)
    print_result(value, "\n".join(lines))


class _TrialInput(Struct, frozen=True):
    """The event; the events of its file before it; its position if it is on record."""

    event: Event
    preceding_events: tuple[Event, ...] = ()
    position: int | None = None


def _run_trial(settings: Settings, name: str, text: str, live: bool) -> dict[str, Any]:
    import asyncio

    from vedette.app.dry_run import PriorState
    from vedette.app.policy_state import folder_digest
    from vedette.app.stores import store_exists
    from vedette.app.trial import open_dry_run
    from vedette.domain.base.clock import SystemClock

    now_us = SystemClock().now_us()
    loaded = load_agents(settings)
    agent = find_agent(loaded.fleet.agents, name)
    if not (agent.has_judge or agent.asks_model):
        what = f"{name} is reasoned for by {agent.reasoner!r}, which is asked from outside"
        raise BadCommand(what, mend="try an agent with a judge or a model")
    if live and not agent.asks_model:
        raise BadCommand(f"{name} asks no model", mend="leave out --live")

    def run(store: StoreReader | None, end_reading: Callable[[], None]) -> dict[str, Any]:
        given = _find_input(settings, text, store)
        prior = _find_history(store, agent, given) or PriorState()
        if agent.asks_model:
            from vedette.app.model_dry_run import try_model_event

            work = try_model_event(
                settings, loaded, agent, given.event, prior, store,
                live=live, end_reading=end_reading,
            )  # fmt: skip
            return asyncio.run(work)
        if agent.max_turns > 1:
            from vedette.app.judge_dry_run import try_judge_event

            turns = try_judge_event(
                settings, loaded, agent, given.event, prior, store, end_reading=end_reading
            )
            return asyncio.run(turns)
        trial = open_dry_run(settings, loaded, agent, store, now_us)
        return trial.run(given.event, prior)

    if not store_exists(settings):
        return {**run(None, lambda: None), "folder_differs": False}
    with store_reader(settings) as store, ExitStack() as reading:
        reading.enter_context(store.snapshot())
        number, digest = store.policy.live_revision()
        value = run(store, reading.close)
    return {**value, "folder_differs": bool(number) and folder_digest(settings) != digest}


# --- the event ----------------------------------------------------------------------------------


def _find_input(settings: Settings, text: str, store: StoreReader | None) -> _TrialInput:
    path, _, row = text.rpartition(":")
    if row.isdigit() and Path(path).suffix == ".csv" and Path(path).is_file():
        given = _read_csv_row(settings, Path(path), int(row))
    elif Path(text).is_file():
        given = _TrialInput(_read_event(settings, Path(text)))
    elif store is None or "/" in text or Path(text.partition(":")[0]).suffix:
        mend = "name a file, or a recorded event or run by its id"
        raise BadCommand(f"there is no file {text!r}", mend=mend)
    else:
        return _load_recorded_event(store, text)
    if store is not None:
        for run in store.runs.runs_of_event(given.event.key):
            return _TrialInput(given.event, (), run.position)
    return given


def _load_recorded_event(store: StoreReader, text: str) -> _TrialInput:
    from vedette.ledger.history.reader import resolve

    kind, name = resolve(store, text)
    if kind not in ("event", "run"):
        row = store.runs.action("act_" + name.partition("_")[2])
        name = row.run if row is not None else name
    run = store.runs.run(name) if kind != "event" else None
    key = run.event if run is not None else name
    runs = store.runs.runs_of_event(key)
    event = store.runs.event(key)
    if event is None:
        raise BadCommand(f"the content of {key} was erased", mend="try another event")
    if event.is_undo:
        raise BadCommand("the engine answers an undo itself; it is put to no judge")
    return _TrialInput(event, (), runs[0].position if runs else None)


def _read_event(settings: Settings, path: Path) -> Event:
    raw = path.read_bytes()
    if raw.lstrip()[:1] in (b"{", b"["):
        from vedette.domain.cloudevents import load_json
        from vedette.interfaces.http.command_dispatch import parse_event

        value = load_json(raw, where=str(path))
        if isinstance(value, list):
            if len(value) != 1:
                raise BadEvent(f"holds {len(value)} events", where=str(path), mend="give one")
            value = value[0]
        return parse_event(value)
    from vedette.adapters.mail.event import mail_event

    plans = [plan for plan in settings.sources if plan.kind == "maildir"]
    source = f"maildir:{plans[0].name if plans else 'try'}"
    unique = path.name.partition(":")[0]
    received_us = path.stat().st_mtime_ns // 1000
    return mail_event(source, unique, raw, subject=unique, received_us=received_us)


def _read_csv_row(settings: Settings, path: Path, row: int) -> _TrialInput:
    from glob import glob

    from vedette.adapters.files.config import CsvFile
    from vedette.adapters.files.source import CsvSource
    from vedette.domain.base.clock import SystemClock

    here = str(path.resolve())
    names = [
        plan.name
        for plan in settings.sources
        if isinstance(plan, CsvFile) and here in glob(plan.path)  # noqa: PTH207 (absolute pattern)
    ]
    events = CsvSource(names[0] if names else "try", here, SystemClock()).read_first(row)
    if len(events) < row:
        raise BadEvent(f"has {len(events)} rows", where=str(path), mend="rows count from 1")
    return _TrialInput(events[-1], tuple(events[:-1]))


def _find_history(
    store: StoreReader | None, agent: Agent, trial_input: _TrialInput
) -> PriorState | None:
    from vedette.app.dry_run import PriorState, load_prior_state

    if store is not None:
        found = load_prior_state(
            store, agent, agent.key_of(trial_input.event), trial_input.position
        )
        if found != PriorState():
            return found
    if trial_input.preceding_events and trial_input.position is None:
        since = tuple(enumerate(trial_input.preceding_events, start=1))
        return PriorState(
            since=since, description=f"after the {len(since):,} rows before it in the file"
        )
    return None


# --- the page -----------------------------------------------------------------------------------


def _lines(value: dict[str, Any]) -> list[str]:
    lines = _head_lines(value, [f"  what it knew of its key: {value['state']}"])
    sure = f"{value['confidence']:.3f}" if value["confidence"] is not None else "?"
    lines.append(f"JUDGED {sanitize_text(str(value['label']))}, sure to {sure}")
    if value["score"] is not None:
        bar = f", threshold {value['threshold']:.3f}" if value["threshold"] is not None else ""
        lines.append(f"  score {value['score']:.3f}{bar}")
    if value["deferred"]:
        lines.append("  not sure enough to settle it: its model would be asked")
    why = value["detail"].get("why")
    for reason in why if isinstance(why, list) else [why] if why else []:
        lines += _wrap_text(f"because {sanitize_text(str(reason))}")
    for near in _example_texts(value["detail"]):
        lines.append(f"  nearest: {near}")
    for memory in value["memories"]:
        first = sanitize_text(" ".join(memory["text"].split()))
        lines.append(f"  reads {sanitize_text(memory['cite'])}: {first}"[:_WIDTH])
    lines.append("WOULD" if value["actions"] else "WOULD do nothing")
    for action in value["actions"]:
        lines += _action_lines(action)
    for refusal in value["refused"]:
        lines += _wrap_text(f"no action: {sanitize_text(refusal)}")
    for candidate in value["candidates"]:
        lines += _wrap_text(f"would propose to remember: {sanitize_text(candidate['text'])}")
    return lines


def _head_lines(value: dict[str, Any], basis: list[str]) -> list[str]:
    """Return what is said first of a tried event; `basis` is what it was tried from."""
    event = value["event"]
    live = f"revision {value['revision']}" if value["revision"] else "the policy of the folder"
    lines = [
        f"TRY {value['agent']} on {sanitize_text(event['type'])} "
        f"{sanitize_text(str(event['subject'] or ''))}",
        f"  nothing was done or written; decided under {live}",
        *basis,
    ]
    if value["folder_differs"]:
        lines.append(FOLDER_DIFFERS_NOTE)
    if not value["wakes"]:
        lines += _wrap_text(f"it would not wake: {sanitize_text(value['why_wakes'])}")
    return lines


def _turns_lines(value: dict[str, Any]) -> list[str]:
    """Return the page of a trial of several turns: what it was tried from, the turns, the end."""
    if "models" in value:
        basis, end = _model_basis(value), _wrap_text(format_usage(value["usage"]))
    else:
        basis, end = [f"  what it knew of its key: {value['state']}"], []
    lines = _head_lines(value, basis)
    for turn in value["turns"]:
        lines += _turn_lines(turn)
    ended = "is done" if value["ended"] == "done" else sanitize_text(value["ended"])
    return [*lines, *_wrap_text(f"ENDS the run {ended}", 0), *end]


def _model_basis(value: dict[str, Any]) -> list[str]:
    models = sanitize_text(", ".join(value["models"]) or "its model")
    basis = _wrap_text(f"{models} was asked anew")
    if value["is_recording"]:
        when = format_time(from_iso(value["recorded_at"]))
        release = sanitize_text(value["recorded_release"])[:12]
        basis = _wrap_text(f"a recording: {models} said this at {when}, to release {release}")
    if value["agent_differs"]:
        basis += _wrap_text(
            "today's agent is another: what its model would say to it is not known (--live asks)"
        )
    return basis


def _turn_lines(turn: dict[str, Any]) -> list[str]:
    tokens = (turn.get("input_tokens"), turn.get("output_tokens"))
    counted = "tokens not counted" if None in tokens else f"{tokens[0]:,} + {tokens[1]:,} tokens"
    if turn["judged"]:
        counted = "its judge"
    sure = f"sure to {turn['confidence']:.3f}"
    lines = _wrap_text(f"TURN {turn['turn']} {sanitize_text(turn['label'])} ({counted}, {sure})", 0)
    if turn["deferred"]:
        lines.append("  not sure enough to settle it: its model is asked")
    if turn.get("text"):
        lines += _wrap_text(f"says: {sanitize_text(' '.join(turn['text'].split()))[:400]}")
    for code in turn.get("failures", ()):
        lines.append(f"  an answer before it was not taken: {code}")
    for action in turn["actions"]:
        lines += _action_lines(action)
        lines.append(f"      came of it: {action['end']}")
    for refusal in turn["refused"]:
        lines += _wrap_text(f"no action: {sanitize_text(refusal)}")
    return lines


def _example_texts(detail: dict[str, Any]) -> list[str]:
    found = detail.get("nearest")
    if not isinstance(found, list):
        return []
    return [
        sanitize_text(
            f"{near.get('id') or near.get('example')} ({near.get('label')}), "
            f"similarity {near.get('similarity')}"
        )
        for near in found[:_MAX_EXAMPLES]
        if isinstance(near, dict)
    ]


def _action_lines(action: dict[str, Any]) -> list[str]:
    said = _OUTCOME_WORDS[action["would"] or action["outcome"]]
    lines = [f"  {action['tool']}: {said} ({action['rule']})"]
    others = [reason for reason in action["reasons"] if reason.partition(":")[0] != action["rule"]]
    if others:
        lines += _wrap_text(f"because of {sanitize_text(', '.join(others))}", 6)
    for name, arg in action["args"].items():
        origin = action["origins"].get(f"/{name}", "?")
        shown = sanitize_text(" ".join(str(arg).split()))
        shown = shown if len(shown) <= _WIDTH // 2 else shown[: _WIDTH // 2] + "…"
        lines.append(f"      {name} = {shown}  [{origin}]")
    inverse = f"; undone by {action['inverse']}" if action["inverse"] else "; cannot be undone"
    lines += _wrap_text(f"touches {sanitize_text(action['touches'])}{inverse}", 6)
    return lines


def _wrap_text(text: str, indent: int = 2) -> list[str]:
    blank = " " * indent
    return wrap(text, _WIDTH, initial_indent=blank, subsequent_indent=blank + "  ")
