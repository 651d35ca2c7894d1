"""Rollbacks: a former release of an agent made the one that runs, with what was in force with it.

The release, the policy and the memories are the orders that they always are, each with its checks;
nothing but the release is returned unless the person says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from vedette.app.release_archive import load_kept_release
from vedette.domain.agent import Agent
from vedette.domain.base.errors import (
    AlreadyDone,
    BadCommand,
    Unavailable,
    VedetteError,
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
MoveMemories = Callable[[Mapping[str, list[str]]], Awaitable[list[dict[str, Any]]]]


async def roll_back(
    releases: Releases,
    order: Order,
    name: str,
    to: str | None = None,
    publish: Publish | None = None,
    move_memories: MoveMemories | None = None,
    *,
    move_tasks: bool = False,
) -> dict[str, Any]:
    """Make a former release of an agent the one that runs, out of its snapshot.

    `to` is the beginning of its digest; without one it is the release before. `publish` makes the
    content of a policy revision live again, and answers as `policy_rollback`: what was last in
    force with the release is published first, and where it is refused or is to be confirmed nothing
    is changed. `move_memories` gives orders by kind of entry; it is asked last. With `move_tasks`
    no task of the agent stays on another release; without, none on one that was made since. Raises
    as `Releases.release`; what stands by then is said in what is raised.
    """
    releases.check_order(order, name, "agent_rollback")
    services = releases.services
    async with releases.order_lock:
        ledger = services.store.ledger
        periods = read_release_history(ledger, name, runs=False)
        before, target = periods[0].release, find_former_release(periods, name, to)
        now_us = services.clock.now_us()
        made = load_kept_release(
            releases.settings, services.store, name, target.release, now_us
        )
        if made is None:
            what = f"the files of release {target.release[:12]} of {name} are not kept here"
            mend = "bring its folder back from where it is kept, and `vedette agent release`"
            raise BadCommand(what, mend=mend)
        moves, shared = _memory_moves(releases, made, find_end(periods, target) or target.entry)
        answer: dict[str, Any] = {
            "agent": name, "was": before, "release": target.release, "since": target.at,
            "in_force": {
                "policy_rev": target.last_policy_rev, "banks": target.banks,
                "memory_changes_since": count_memory_changes(ledger, target.entry),
                "memories": sorted(one for names in moves.values() for one in names),
                "shared_memories": shared,
            },
            "wider": find_wider_requests(services.fleet.agent(name), made),
            "policy": None,
            "memory": None,
        }  # fmt: skip
        if publish is not None:
            # What refuses the release is found before anything is published.
            releases.refuse_fixed(services.fleet.agent(name), made)
            await releases.try_code(made)
            answer["policy"] = published = await publish(target.last_policy_rev)
            if not published["ok"]:
                return {**published, **answer, "changed": False}
        try:
            await releases.make_release(order, made, before, target.entry, move_tasks=move_tasks)
        except (BadCommand, Unavailable) as error:
            published = answer["policy"]
            if published is None or not published["changed"]:
                raise
            what = (
                f"policy revision {published['revision']} is live, and {name} stays release "
                f"{before[:12]}: {error.what}"
            )
            mend = "give the same order again, or `vedette policy rollback`"
            raise type(error)(what, where=error.where, mend=mend) from error
        if move_memories is not None and any(moves.values()):
            answer["memory"] = await _return_memories(move_memories, moves, answer)
        return {**answer, "changed": True}


def _memory_moves(
    releases: Releases, made: Agent, since: int
) -> tuple[dict[str, list[str]], list[str]]:
    """Return what returns the memories that an agent alone reads to where they stood at an entry,
    by kind of entry; and the names of those that changed in banks which others read, too.
    """
    services = releases.services
    own = {one.bank for one in made.scopes}
    others = [one for one in services.fleet.agents.values() if one.name != made.name]
    read_by_others = {scope.bank for one in others for scope in one.scopes}
    moves: dict[str, list[str]] = {"memory.retired": [], "memory.restored": []}
    shared: list[str] = []
    stands = services.store.memories.all()
    for name, was_active in find_memory_differences(services.store.ledger, since).items():
        bank, state = name.partition("/")[0], stands[name].state if name in stands else "erased"
        if bank not in own or state not in ("active", "off") or was_active == (state == "active"):
            continue
        if bank in read_by_others:
            shared.append(name)
        else:
            moves["memory.restored" if was_active else "memory.retired"].append(name)
    return moves, sorted(shared)


async def _return_memories(
    move_memories: MoveMemories, moves: Mapping[str, list[str]], answer: Mapping[str, Any]
) -> list[dict[str, Any]]:
    try:
        return await move_memories({kind: names for kind, names in moves.items() if names})
    except AlreadyDone:
        return []
    except VedetteError as error:
        what = f"{answer['agent']} runs release {answer['release'][:12]}, and memory stays: {error}"
        mend = "`vedette memory off` and `memory on` return one by one"
        raise BadCommand(what, mend=mend) from error


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

    async def move_memories(moves: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        curation: Any = commands.curation
        id = _part_id(order, "memory")
        moved: list[dict[str, Any]] = await curation.move_memories(
            moves, order.principal, order.reason, id
        )
        curation.refresh_judges()
        return moved

    for flag, verbs in (("policy", ["policy_rollback"]), ("memory", ["memory_off", "memory_on"])):
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
        move_memories if args.get("memory") else None,
        move_tasks=bool(args.get("move_tasks")),
    )


def _part_id(order: Order, part: str) -> str | None:
    return None if order.command_id is None else f"{order.command_id}/{part}"
