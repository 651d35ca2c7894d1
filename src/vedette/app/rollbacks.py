"""Rollbacks: a former release of an agent made the one that runs, with what was in force with it.

The release, the policy and the memories are the orders that they always are, each with its checks;
nothing but the release is returned unless the person says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import orjson
from msgspec import Struct
from msgspec.structs import replace

from vedette.app.release_archive import load_kept_release
from vedette.domain.agent import Agent
from vedette.domain.base.errors import (
    AlreadyDone,
    BadCommand,
    Unavailable,
)
from vedette.domain.roles import require_role
from vedette.ledger.history.release_history import (
    count_memory_changes,
    find_end,
    find_former_release,
    find_memory_differences,
    read_release_history,
)
from vedette.operations.commands import Commands, Order
from vedette.operations.curation import MOST_AT_ONCE
from vedette.operations.release_comparison import find_wider_requests

if TYPE_CHECKING:
    from vedette.app.releases import Releases

VERBS: Mapping[str, Mapping[str, type]] = {
    "agent_rollback": {
        "agent": str, "to": str, "policy": bool, "memory": bool, "move_tasks": bool, "confirm": str,
    },
}  # fmt: skip
NEEDED = dict.fromkeys(VERBS, "agent")

Publish = Callable[[int], Awaitable[dict[str, Any]]]
Retire = Callable[[Sequence[str]], Awaitable[list[dict[str, Any]]]]


async def roll_back(
    releases: Releases,
    order: Order,
    name: str,
    to: str | None = None,
    publish: Publish | None = None,
    retire: Retire | None = None,
    *,
    move_tasks: bool = False,
) -> dict[str, Any]:
    """Make a former release of an agent the one that runs, out of its snapshot.

    `to` is the beginning of its digest; without it, it is the release before. `publish` makes the
    content of a policy revision live again, and answers as `policy_rollback`: what was last in
    force with the release is published first, and where it is refused or is to be confirmed nothing
    is changed. `retire` takes back memories by name, before the release is made: so the same order
    finds that done, and goes on, where the release was refused. With `move_tasks` no task of the
    agent stays on another release; without, none on one that was made since. Raises as
    `Releases.release`; what stands by then is said in what is raised.
    """
    releases.check_order(order, name, "agent_rollback")
    services = releases.services
    async with releases.order_lock:
        ledger = services.store.ledger
        periods = read_release_history(ledger, name, runs=False)
        before, target = periods[0].release, find_former_release(periods, name, to)
        now_us = services.clock.now_us()
        made = load_kept_release(releases.settings, services.store, name, target.release, now_us)
        if made is None:
            what = f"the files of release {target.release[:12]} of {name} are not kept here"
            mend = "bring its folder back from where it is kept, and `vedette agent release`"
            raise BadCommand(what, mend=mend)
        changes = _find_memory_changes(releases, made, find_end(periods, target) or target.entry)
        if retire is not None and len(changes.learned) > MOST_AT_ONCE:
            what = f"{len(changes.learned)} memories at once are too many"
            mend = "take some back first with `vedette memory off --from`; nothing was changed"
            raise BadCommand(what, mend=mend)
        answer: dict[str, Any] = {
            "agent": name, "was": before, "release": target.release, "since": target.at,
            "in_force": {
                "policy_rev": target.last_policy_rev, "banks": target.banks,
                "memory_changes_since": count_memory_changes(ledger, target.entry),
                "memories": changes.learned,
                "retired_memories": changes.retired,
                "shared_memories": changes.shared,
            },
            "wider": find_wider_requests(services.fleet.agent(name), made),
            "policy": None,
            "memory": None,
        }  # fmt: skip
        if publish is not None or retire is not None:
            # What refuses the release is found before anything is changed.
            releases.refuse_fixed(services.fleet.agent(name), made)
            await releases.try_code(made)
        stands = []
        if publish is not None:
            answer["policy"] = published = await publish(target.last_policy_rev)
            if not published["ok"]:
                return {**published, **answer, "changed": False}
            if published["changed"]:
                stands.append(f"policy revision {published['revision']} is live")
        try:
            if retire is not None and changes.learned:
                answer["memory"] = moved = await retire(changes.learned)
                stands += [f"{len(moved)} memories are retired"] if moved else []
            await releases.make_release(order, made, before, target.entry, move_tasks=move_tasks)
        except (BadCommand, Unavailable) as error:
            if not stands:
                raise
            what = f"{', '.join(stands)}, and {name} stays release {before[:12]}: {error.what}"
            mend = "give the same order again, or take that back"
            raise type(error)(what, where=error.where, mend=mend) from error
        return {**answer, "changed": True}


class _MemoryChanges(Struct, frozen=True):
    """What became of memories since an entry, in the banks that an agent alone reads: those that
    were `learned`, and are read by now; those that were `retired`, with the reason that was given
    (None: erased). `shared` are those that changed in banks which others read, too.
    """

    learned: list[str]
    retired: dict[str, str | None]
    shared: list[str]


def _find_memory_changes(releases: Releases, made: Agent, since: int) -> _MemoryChanges:
    services = releases.services
    own = {one.bank for one in made.scopes}
    others = [one for one in services.fleet.agents.values() if one.name != made.name]
    read_by_others = {scope.bank for one in others for scope in one.scopes}
    found, ledger = _MemoryChanges([], {}, []), services.store.ledger
    stands = services.store.memories.all()
    for name, was_active in sorted(find_memory_differences(ledger, since).items()):
        bank, state = name.partition("/")[0], stands[name].state if name in stands else "erased"
        if bank not in own or state not in ("active", "off") or was_active == (state == "active"):
            continue
        if bank in read_by_others:
            found.shared.append(name)
        elif was_active:
            entry = ledger.entry(stands[name].last)
            body = None if entry is None else entry[2]
            found.retired[name] = None if body is None else orjson.loads(body).get("reason")
        else:
            found.learned.append(name)
    return found


async def dispatch(
    commands: Commands, verb: str, order: Order, args: Mapping[str, Any]
) -> dict[str, Any]:
    """Carry out a verb of VERBS. Raises as `roll_back`."""
    if commands.releases is None:
        raise BadCommand("this fleet's agents are released elsewhere")
    releases, confirm = cast("Releases", commands.releases), args.get("confirm")

    async def publish(number: int) -> dict[str, Any]:
        # An order of its own under an id of its own: a repeat finds it done, and goes on.
        part = replace(order, command_id=_part_id(order, "policy"))
        try:
            return await commands.policy_rollback(part, number, confirm)
        except AlreadyDone:
            live = commands.rollout.live.number
            return {"ok": True, "changed": False, "revision": live, "confirm": None}

    async def retire(names: Sequence[str]) -> list[dict[str, Any]]:
        curation: Any = commands.curation
        id, moves = _part_id(order, "memory"), {"memory.retired": names}
        try:
            moved: list[dict[str, Any]] = await curation.move_memories(
                moves, order.principal, order.reason, id
            )
        except AlreadyDone:
            moved = []
        curation.refresh_judges()
        return moved

    for flag, verbs in (("policy", ["policy_rollback"]), ("memory", ["memory_off"])):
        for other in verbs if args.get(flag) else ():
            require_role(order.principal, order.principal.roles, other)
    if args.get("memory") and commands.curation is None:
        raise BadCommand("this fleet's memories are kept elsewhere")
    return await roll_back(
        releases,
        order,
        args["agent"],
        args.get("to"),
        publish if args.get("policy") else None,
        retire if args.get("memory") else None,
        move_tasks=bool(args.get("move_tasks")),
    )


def _part_id(order: Order, part: str) -> str | None:
    return None if order.command_id is None else f"{order.command_id}/{part}"
