"""`vedette send`: an event from a person's hand."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.errors import BadEvent
from vedette.interfaces.cli.fleet import current_settings, load_agents
from vedette.interfaces.cli.orders import (
    OrderCommand,
    OrderOptions,
    deferred_note,
    submit_command,
)
from vedette.interfaces.cli.output import print_result, sanitize_text

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.domain.event import Event


@click.command(cls=OrderCommand, needs_reason=False, repeatable=False)
@click.argument("file", required=False, type=click.Path(allow_dash=True, path_type=Path))
@click.option("--type", "type_", metavar="TYPE", help="The event's type, such as metric.point.")
@click.option("--source", metavar="URI", help="Its source. Default: cli:YOU.")
@click.option("--subject", metavar="TEXT", help="Its subject: for a metric the series' name.")
@click.option("--data", metavar="JSON|@FILE", help="Its data.")
@click.option("--id", "id_", metavar="ID", help="Its id; the same again is the same event.")
@click.option("--time", metavar="RFC3339", help="When it happened. Default: now.")
@click.option("--dry-run", is_flag=True, help="Only say who would wake, and why; no reason needed.")
def send(file: Path | None, dry_run: bool, order: OrderOptions, **options: Any) -> int:
    """Hand an event to the fleet: of the options, or CloudEvents JSON out of FILE (- is stdin).

    FILE holds one event or a list of them. You vouch for the envelope, never for the data; your
    name and your reason become part of the event.
    With --dry-run neither a running fleet nor a store is needed. Exits with 1 if one is refused.
    """
    if not dry_run:
        order.require_reason("'--reason' (or --dry-run)")
    settings = current_settings()
    events = _events(file, options)
    if dry_run:
        return _dry_run(settings, events)
    done = submit_command(settings, "send", {"events": events}, order)
    lines = []
    for receipt in done["receipts"]:
        if receipt["status"] == "refused":
            lines.append(f"refused: {receipt['error']}")
        elif receipt["status"] == "duplicate":
            lines.append(f"known already: {receipt['event']}; see vedette explain")
        else:
            runs = ", ".join(receipt["runs"]) or "nobody"
            lines.append(f"accepted {receipt['event']}; woke {runs}")
    if any(receipt["runs"] for receipt in done["receipts"]):
        lines += deferred_note(done, "it is handled")
    print_result(done, "\n".join(lines))
    return 1 if any(receipt["status"] == "refused" for receipt in done["receipts"]) else 0


def _events(file: Path | None, options: dict[str, Any]) -> list[Any]:
    from vedette.domain.cloudevents import load_json

    used = [name for name, value in options.items() if value is not None]
    if file is not None:
        if used:
            raise click.UsageError(f"FILE says everything; leave out --{used[0].rstrip('_')}")
        name = "stdin" if str(file) == "-" else str(file)
        raw = sys.stdin.buffer.read() if name == "stdin" else _read_bytes(file)
        found = load_json(raw, where=name)
        return found if isinstance(found, list) else [found]
    if options["type_"] is None:
        raise click.UsageError("give --type, or a FILE with CloudEvents")
    return [_build_event(options)]


def _build_event(options: dict[str, Any]) -> dict[str, Any]:
    from vedette.domain.base.clock import SystemClock, iso
    from vedette.interfaces.http.unix_socket import current_person

    event = {
        "specversion": "1.0",
        "id": options["id_"] or str(uuid.uuid4()),
        "source": options["source"] or f"cli:{current_person().name}",
        "type": options["type_"],
        "time": options["time"] or iso(SystemClock().now_us()),
    }
    if options["subject"] is not None:
        event["subject"] = options["subject"]
    if options["data"] is not None:
        event["data"] = _parse_data(options["data"])
    return event


def _parse_data(text: str) -> Any:
    from vedette.domain.cloudevents import load_json

    if text.startswith("@"):
        return load_json(_read_bytes(Path(text[1:])), where=text[1:])
    try:
        return load_json(text.encode("utf-8", "surrogateescape"))
    except BadEvent as error:
        mend = "write JSON, for example '{\"value\": 3.2}', or @FILE"
        raise BadEvent(error.what, where="--data", mend=mend) from error


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise BadEvent(what, where=str(path), mend="name a file with JSON") from error


def _dry_run(settings: Settings, events: list[Any]) -> int:
    from vedette.domain.event import check_event
    from vedette.interfaces.http.command_dispatch import parse_event

    fleet = load_agents(settings).fleet
    found: list[dict[str, Any]] = []
    lines: list[str] = []
    for value in events:
        event: Event = parse_event(value)
        size = len(check_event(event, max_bytes=settings.max_event_bytes))
        matches = fleet.match(event)
        found.append(
            {
                "event": event.key,
                "bytes": size,
                "agents": [
                    {"agent": match.agent, "wakes": match.wakes, "why": match.why}
                    for match in matches
                ],
            }
        )
        lines.append(f"{event.key} {sanitize_text(json.dumps(event.type))}, {size} bytes")
        for match in matches:
            mark = "wakes" if match.wakes else "stays asleep"
            lines.append(f"  {match.agent} {mark}: {sanitize_text(match.why)}")
    print_result({"events": found}, "\n".join(lines))
    return 0
