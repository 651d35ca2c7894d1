"""Orders as data: a verb and its arguments in JSON, handed to Commands.

The same for whoever comes over the local socket and for the CLI when no fleet runs, so that a
command means the same either way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vedette.app import canaries, releases, rollbacks
from vedette.domain.base.disk_errors import convert_disk_errors
from vedette.domain.base.errors import BadCommand
from vedette.domain.cloudevents import from_json
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.roles import require_role
from vedette.operations import approvals, corrections, curation, maintenance, modes, undo, work
from vedette.operations.commands import Commands, Order

# What a verb takes: the type of each argument. All may be left out; the command says what it needs.
VERBS: Mapping[str, Mapping[str, type]] = {
    "send": {"events": list},
    "would_wake": {"event": dict},
    "redrive": {"runs": list},
    "drop": {"runs": list},
    "stop": {"agent": str, "tool": str, "all": bool, "for_us": int},
    "resume": {"agent": str, "tool": str, "all": bool},
    "clock_confirm": {},
    "budget_raise": {"for_us": int, "agent": str, "unit": str, "window": str, "by": int},
    "policy_apply": {"folder": str, "commit": str, "new_key": bool, "confirm": str},
    "policy_rollback": {"number": int, "confirm": str},
    "erase": {"event": str, "subject": str, "entry": int, "deny_holds": bool, "digest": str},
    **maintenance.VERBS,
    **curation.VERBS,
    **corrections.VERBS,
    **modes.VERBS,
    **undo.VERBS,
    **work.VERBS,
    **approvals.VERBS,
    **releases.VERBS,
    **rollbacks.VERBS,
    **canaries.VERBS,
}

_REQUIRED = {
    "send": "events",
    "would_wake": "event",
    "redrive": "runs",
    "drop": "runs",
    "budget_raise": "for_us",
    "policy_apply": "folder",
    "policy_rollback": "number",
    **maintenance.NEEDED,
    **curation.NEEDED,
    **corrections.NEEDED,
    **modes.NEEDED,
    **undo.NEEDED,
    **work.NEEDED,
    **approvals.NEEDED,
    **releases.NEEDED,
    **rollbacks.NEEDED,
    **canaries.NEEDED,
}


async def dispatch(
    commands: Commands, verb: str, order: Order, args: Mapping[str, Any]
) -> dict[str, Any]:
    """Hand a verb's JSON to Commands. Raises BadCommand for arguments not taken, and its errors.

    StoreFailed, too, where a file of the state folder could not be written. A principal whose
    roles are not enough for the verb is refused before anything is looked at.
    """
    require_role(order.principal, order.principal.roles, verb)
    with convert_disk_errors("the state folder"):
        return await _dispatch(commands, verb, order, _check_arguments(verb, args))


async def _dispatch(
    commands: Commands, verb: str, order: Order, arguments: dict[str, Any]
) -> dict[str, Any]:
    if verb == "send":
        return await commands.send(order, [parse_event(item) for item in arguments["events"]])
    if verb == "would_wake":
        return commands.would_wake(parse_event(arguments["event"]))
    if verb == "policy_apply":
        return await commands.policy_apply(order, Path(arguments.pop("folder")), **arguments)
    if verb == "policy_rollback":
        return await commands.policy_rollback(order, **arguments)
    if verb == "redrive":
        return await commands.redrive(order, arguments["runs"])
    if verb == "drop":
        return await commands.drop(order, arguments["runs"])
    if verb == "stop":
        return await commands.stop(order, **arguments)
    if verb == "resume":
        return await commands.resume(order, **arguments)
    if verb == "clock_confirm":
        return await commands.clock_confirm(order)
    if verb == "budget_raise":
        return await commands.budget_raise(order, arguments.pop("for_us"), **arguments)
    if verb in corrections.VERBS:
        return await corrections.dispatch(commands, order, arguments)
    if verb in curation.VERBS:
        who, why = order.principal, order.reason
        return await curation.dispatch(
            commands.curation, verb, who, why, order.command_id, arguments
        )
    if verb in maintenance.VERBS:
        who, why = order.principal, order.reason
        return await maintenance.dispatch(
            commands.maintenance, verb, who, why, order.command_id, arguments
        )
    if verb in undo.VERBS:
        return await undo.dispatch(commands, verb, order, arguments)
    if verb in work.VERBS:
        return await work.dispatch(commands, verb, order, arguments)
    if verb in approvals.VERBS:
        return await approvals.dispatch(commands, verb, order, arguments)
    if verb in rollbacks.VERBS:
        return await rollbacks.dispatch(commands, verb, order, arguments)
    if verb in releases.VERBS:
        return await releases.dispatch(commands, verb, order, arguments)
    if verb in canaries.VERBS:
        return await canaries.dispatch(commands, verb, order, arguments)
    if verb in modes.VERBS:
        return await modes.dispatch(commands, order, arguments)
    return await commands.erase(order, **arguments)


def _check_arguments(verb: str, args: Mapping[str, Any]) -> dict[str, Any]:
    known = VERBS[verb]
    given = {name: value for name, value in args.items() if value is not None}
    for name, value in given.items():
        if name not in known:
            raise BadCommand(f"{verb} takes no argument {name!r}", mend=f"it takes {list(known)}")
        if not isinstance(value, known[name]):
            raise BadCommand(f"{verb}: {name} must be a {known[name].__name__}")
    needed = _REQUIRED.get(verb)
    if needed and needed not in given:
        raise BadCommand(f"{verb}: {needed} is missing", mend=f"give {needed}")
    if verb == "policy_apply" and not Path(given["folder"]).is_absolute():
        raise BadCommand("the folder must be an absolute path", where=given["folder"])
    return given


def parse_event(value: Any) -> Event:
    """Return a CloudEvent sent in JSON as an event whose envelope a person vouches for.

    Raises BadEvent; and BadCommand for what only the engine may say.
    """
    event = from_json(json.dumps(value).encode("utf-8"), vouched=ENVELOPE)
    if event.source.startswith("vedette:") or event.type.startswith("vedette."):
        raise BadCommand(
            f"source {event.source!r} with type {event.type!r} is the engine's own",
            mend="send it under a source and a type of yours",
        )
    return event
