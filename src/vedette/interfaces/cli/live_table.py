"""The live table that `vedette run` shows on a terminal; elsewhere a line now and then."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct, field

from vedette.interfaces.cli.output import fit_to_terminal, format_time, sanitize_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from vedette.interfaces.daemon import Daemon

_NOTABLE_KINDS = (
    "action.decided", "effect.failed", "effect.unknown", "hold.approved", "hold.denied",
    "hold.expired", "run.dead", "policy.published", "policy.refused", "stop.set", "stop.lifted",
    "body.erased", "run.redriven", "run.dropped", "notice.raised",
)  # fmt: skip
_MAX_LINES, _ID_CHARS = 8, 16
# How many entries one look reads at most: the newest.
_MAX_ENTRIES = 200
_PLAIN_INTERVAL_S = 5.0
# Looking costs the fleet's own time: a twentieth of it, but none is put off for long.
_COST_FACTOR = 20
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 0.4, 10.0


class FleetStatus(Struct):
    """What the live table saw of a running fleet at one moment."""

    agents: Mapping[str, Mapping[str, int]]
    events: int
    rate: float
    pending: int
    revision: int
    stopped: list[str]
    seconds: float


class FleetMonitor(Struct):
    """The live table's look at a fleet, no oftener than it can afford; keeps notable lines."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_LINES))
    status: FleetStatus | None = None
    _next_at: float = 0.0
    _started_at: float = field(default_factory=time.monotonic)
    _last_sample: tuple[float, int] = (0.0, 0)
    _last_seq: int | None = None
    _trouble_count: int = 0

    def tick(self, daemon: Daemon, *, force: bool = False) -> bool:
        """Look if it is time to; return whether it was."""
        began = time.monotonic()
        if began < self._next_at and not force:
            return False
        self.status = self._read_status(daemon, began)
        self._collect_lines(daemon)
        took = time.monotonic() - began
        self._next_at = began + min(_MAX_INTERVAL_S, max(_MIN_INTERVAL_S, took * _COST_FACTOR))
        return True

    def _read_status(self, daemon: Daemon, at: float) -> FleetStatus:
        app = daemon.app
        counts = app.store.tables.counts()
        agents = {}
        for name in app.services.fleet.agents:
            found = counts.get(name, {})
            agents[name] = {
                "events": sum(v for k, v in found.items() if k.startswith("run.")),
                "actions": sum(v for k, v in found.items() if k.startswith("decided.")),
                "permits": found.get("decided.permit", 0),
                "held": found.get("hold.open", 0),
                "denied": found.get("decided.deny", 0),
                "would": app.metrics.total("would", agent=name),
                "effects": found.get("effect.done", 0),
                "dead": found.get("run.dead", 0),
                "backlog": found.get("run.ready", 0),
            }
        events = app.metrics.total("events", outcome="accepted")
        before_at, before = self._last_sample
        rate = (events - before) / (at - before_at) if before_at else 0.0
        self._last_sample = (at, events)
        stopped = [f"{scope} {name}".strip() for scope, name in app.services.stops.list_scopes()]
        return FleetStatus(
            agents=agents,
            events=events,
            rate=max(0.0, rate),
            pending=app.dispatcher.pending,
            revision=app.rollout.live.number,
            stopped=stopped,
            seconds=at - self._started_at,
        )

    def _collect_lines(self, daemon: Daemon) -> None:
        store = daemon.app.store
        # Some of them are known by the read model alone: beyond it a line would be passed over.
        end = store.view.lag().reached
        if self._last_seq is None:
            self._last_seq = end
        for seq, raw in store.ledger.latest_entries(_NOTABLE_KINDS, self._last_seq, _MAX_ENTRIES):
            line = notable_line(json.loads(raw)) if seq <= end else None
            if line is not None:
                self.lines.append(line)
        self._last_seq = max(self._last_seq, end)
        fresh = daemon.troubles[self._trouble_count :]
        self._trouble_count = len(daemon.troubles)
        self.lines.extend(sanitize_text(trouble) for trouble in fresh)


def notable_line(entry: Mapping[str, Any]) -> str | None:
    """Return one entry as a line worth showing at the live table, or None."""
    kind, at = entry["kind"], format_time(entry["at"])[11:19]
    # Either id will do for `vedette explain`, and so does its beginning.
    where = str(entry.get("run") or entry.get("event", ""))[:_ID_CHARS]
    if kind == "action.decided":
        if entry["outcome"] == "permit":
            return None
        word = "held  " if entry["outcome"] == "hold" else "denied"
        return f"{at} {word} {entry['agent']} {entry['tool']} by {entry['rule']}  {where}"
    if kind == "run.dead":
        return f"{at} dead   {entry['agent']}  {where}"
    if kind == "notice.raised":
        return f"{at} NOTICE {entry['agent']} may {entry['tool']} ({entry['rule']})  {where}"
    if kind.startswith(("hold.", "effect.")):
        word = kind.partition(".")[2].ljust(6)
        actor = f" by {entry['actor']}" if entry.get("actor") else ""
        return f"{at} {word} {entry.get('agent', '')} {entry.get('tool', '')}{actor}"
    if kind.startswith("policy."):
        number = entry.get("policy_rev")
        which = f" revision {number}" if number else f" bundle {str(entry.get('bundle'))[:12]}"
        return f"{at} policy {kind.partition('.')[2]}{which} by {entry.get('actor')}"
    if kind.startswith("stop."):
        return f"{at} stop {kind.partition('.')[2]}: {entry.get('what')} by {entry.get('actor')}"
    return f"{at} {kind} by {entry.get('actor')}"


class PlainView:
    """What `vedette run` shows in logs and pipes: a line every few seconds."""

    def __init__(self, *, silent: bool = False) -> None:
        self._monitor = FleetMonitor()
        self._silent = silent
        self._next_at = 0.0

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def tick(self, daemon: Daemon) -> None:
        """Say how the fleet does, if it is time to."""
        if self._silent or time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + _PLAIN_INTERVAL_S
        self._monitor.tick(daemon, force=True)
        look = self._monitor.status
        assert look is not None
        click.echo(fit_to_terminal(status_line(look)))


def status_line(status: FleetStatus) -> str:
    """Return as one line what `vedette run` sees of its fleet."""
    parts = [f"{status.seconds:7.1f} s", f"events {status.events:,} ({status.rate:,.0f}/s)"]
    for name in ("actions", "permits", "held", "denied", "would", "effects", "dead"):
        number = sum(agent[name] for agent in status.agents.values())
        if number or name not in ("would", "dead"):
            parts.append(f"{name} {number:,}")
    parts += [f"pending {status.pending:,}", f"policy {status.revision}"]
    if status.stopped:
        parts.append(f"STOPPED {', '.join(status.stopped)}")
    return "  ".join(parts)


class LiveView:
    """The live table of `vedette run`, drawn again in place."""

    def __init__(self, fleet: str) -> None:
        self._fleet = fleet
        self._monitor = FleetMonitor()
        self._live: Live | None = None

    def __enter__(self) -> LiveView:
        from rich.live import Live

        self._live = Live(auto_refresh=False, redirect_stdout=True, redirect_stderr=True)
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*error)

    def tick(self, daemon: Daemon) -> None:
        """Draw again, if it is time to."""
        if self._live is None or not self._monitor.tick(daemon, force=daemon.stop_event.is_set()):
            return
        assert self._monitor.status is not None
        shown = render_view(
            self._fleet, daemon.address, self._monitor.status, list(self._monitor.lines)
        )
        self._live.update(shown, refresh=True)


_COLUMNS = (
    ("events", None), ("actions", None), ("permits", "green"), ("held", "yellow"),
    ("denied", "red"), ("would", "cyan"), ("effects", None), ("dead", "red"), ("backlog", None),
)  # fmt: skip

# Columns that are there only when they have something to say.
_OPTIONAL_COLUMNS = ("would", "dead")


def render_view(
    fleet: str, address: str | None, status: FleetStatus, lines: list[str]
) -> RenderableType:
    """Return what the live view shows. Every colour stands beside a word or a number."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    # In 80 columns there is room for words and numbers, but not for lines between them.
    table = Table(box=None, expand=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("agent", overflow="fold", header_style="bold underline")
    shown = [
        (name, style)
        for name, style in _COLUMNS
        if name not in _OPTIONAL_COLUMNS or any(agent[name] for agent in status.agents.values())
    ]
    for name, style in shown:
        table.add_column(
            name, justify="right", style=style, no_wrap=True, header_style="bold underline"
        )
    for agent, numbers in status.agents.items():
        table.add_row(agent, *(f"{numbers[name]:,}" for name, _ in shown))
    head = (
        f"{status.seconds:.0f} s  events {status.events:,}  {status.rate:,.0f}/s  "
        f"in hand {status.pending:,}  policy revision {status.revision}"
    )
    parts: list[RenderableType] = [Text(f"fleet {fleet}", style="bold"), table, Text(head)]
    if status.stopped:
        parts.append(Text(f"STOPPED: {', '.join(status.stopped)}", style="bold red"))
    parts += [Text(sanitize_text(line), no_wrap=True, overflow="ellipsis") for line in lines]
    foot = "Ctrl-C ends; `vedette hold` in another terminal shows what waits for you"
    parts.append(Text(foot if address is None else f"{foot}; metrics: {address}", style="dim"))
    return Group(*parts)
