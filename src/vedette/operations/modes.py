"""Modes: how an agent comes to observe, ask or act, as one more revision of the policy.

The mode stands in policies/grants/data.yaml, where people read and review it, so that is where it
is changed: one word, with every comment kept. The new bundle is tried out and published first and
the file is written after it. So a refusal leaves the file as it was; a crash in between leaves
the live policy with the new mode and a folder that lacks it, which the next start leaves alone
and the same order, given again, completes. What others published or saved meanwhile stays: the
bundle is made anew from what is live then, and a file that changed is not written.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from vedette.domain.agent import Mode
from vedette.domain.base import failpoint
from vedette.domain.base.errors import BadCommand, BadPolicy, NotFound, WriteConflict
from vedette.domain.base.fsync import sync
from vedette.domain.bundle import Bundle
from vedette.domain.roles import require_role
from vedette.operations.commands import Commands, Order, publication_to_json
from vedette.policy.bundle_data import mount
from vedette.policy.folder import remember_folder
from vedette.policy.rollout import PublishRequest

MODES: tuple[str, ...] = get_args(Mode)
GRANTS = "grants/data.yaml"
# How often the bundle is made anew because somebody else published.
_TRIES = 5

VERBS: Mapping[str, Mapping[str, type]] = {"mode": {"agent": str, "mode": str, "confirm": str}}
NEEDED = {"mode": "agent"}


async def dispatch(commands: Commands, order: Order, args: Mapping[str, Any]) -> dict[str, Any]:
    """Set an agent's mode, as ordered; answer once no worker starts or commits under the old one.

    Returns what a publication tells, with `agent`, `was`, `mode`, `requested`, `effective_mode`
    and, as `folder`, what became of the file. Raises Forbidden for another role; NotFound for what
    is no agent; BadCommand for what is no mode, for a folder that says more than what is live, and
    for grants that cannot be edited by lines; WriteConflict if others publish all the time.
    """
    require_role(order.principal, order.principal.roles, "mode")
    agent, mode = args["agent"], args.get("mode")
    known = commands.services.fleet.agents
    if agent not in known:
        mend = (
            f"one of: {', '.join(known)}; a new agent is taken up when the fleet is started again"
        )
        raise NotFound(f"the fleet runs no agent {agent!r}", mend=mend)
    if mode not in MODES:
        raise BadCommand(f"{mode!r} is no mode", mend=f"one of: {', '.join(MODES)}")
    if not order.reason.strip():
        raise BadCommand("a reason is missing", mend="add --reason 'why'")
    async with commands.folder_lock:
        for _ in range(_TRIES - 1):
            try:
                return await _set_mode(commands, order, agent, mode, args.get("confirm"))
            except WriteConflict:
                continue  # what was published meanwhile is what is edited now
        return await _set_mode(commands, order, agent, mode, args.get("confirm"))


async def _set_mode(
    commands: Commands, order: Order, agent: str, mode: str, confirmed: str | None
) -> dict[str, Any]:
    store = commands.services.store
    number, digest = store.policy.live_revision()
    live = store.policy.bundle_files(digest)
    if live is None:
        raise BadCommand("the live policy's bytes are not in the store")
    was = read_grant(live, agent)["mode"]
    wanted = replace_mode(live, agent, mode)
    path, why_not = _grants_file(commands)
    mine: Bundle | None = None
    if path is not None:
        assert commands.policies is not None
        mine = commands.read_bundle(commands.policies)
        if replace_mode(mine.files, agent, mode).digest != wanted.digest:
            what = "the policy folder says more than the live policy; this would publish it all"
            mend = "see `vedette policy status`; publish the folder, or bring it back, first"
            raise BadCommand(what, where=str(commands.policies), mend=mend)
    failpoint.hit_failpoint("mode-publish:before")
    wish = PublishRequest(
        order.principal, order.reason, expected_revision=number, confirmed=confirmed
    )
    done = publication_to_json(await commands.rollout.publish(wanted, wish, order.command_id))
    failpoint.hit_failpoint("mode-publish:after")
    requested = commands.services.fleet.agents[agent].requested_mode
    mode_result = {
        "agent": agent, "was": was, "mode": mode, "requested": requested,
        "in_force": effective_mode(requested, mode), "folder": why_not or "written",
    }  # fmt: skip
    if not done["ok"]:
        mode_result["folder"] = "left as it is: this was refused"
    if done["ok"] and path is not None and mine is not None:
        if write_edited_file(path, wanted.files[GRANTS], "mode-file", mine.files[GRANTS]):
            # So that the watcher of the folder finds nothing new in it.
            await remember_folder(store, wanted.digest, commands.rollout.live)
        else:
            mode_result["folder"] = (
                f"{path} was saved meanwhile and is left as it is: write `mode: {mode}` below "
                f"{agent} there, or what it says takes the place of this"
            )
    return {**done, **mode_result}


def _grants_file(commands: Commands) -> tuple[Path | None, str]:
    """Return the file to write, or None and what a person is to do instead."""
    keep = "the live policy has it now; make the same change where the folder is kept"
    if commands.policies is None:
        return None, f"this fleet has no policy folder: {keep}"
    if commands.services.store.cluster.multi_worker:
        return None, f"workers share this store, each with a folder of its own: {keep}"
    path = commands.policies / GRANTS
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return None, f"{path} cannot be written here: {keep}"
    return path.resolve(), ""


def read_grant(files: Mapping[str, bytes], agent: str) -> dict[str, Any]:
    """Return an agent's grant in a bundle, with its `mode`: observe where silent or odd."""
    grants = mount(files).get("grants")
    found = grants.get(agent) if isinstance(grants, dict) else None
    own = dict(found) if isinstance(found, dict) else {}
    return {**own, "mode": own["mode"] if own.get("mode") in MODES else "observe"}


def effective_mode(requested: str, granted_mode: str) -> str:
    """Return an agent's mode: the more careful of what is requested and what is granted."""
    return min(requested, granted_mode, key=MODES.index)


def replace_mode(files: Mapping[str, bytes], agent: str, mode: str) -> Bundle:
    """Return a bundle in which an order changes only the agent's mode. Raises BadCommand."""
    from vedette.config.yaml_edit import NotEditable, set_value

    before: Any = mount(files)
    if not isinstance(before.get("grants", {}).get(agent), dict):
        what = f"the policy grants {agent!r} nothing, so it has no mode"
        raise BadCommand(what, where=GRANTS, mend="give it an entry there; see its comments")
    raw = files.get(GRANTS)
    try:
        if raw is None:
            raise NotEditable("the grants stand in another file")
        edited = {**files, GRANTS: set_value(raw.decode(), [agent, "mode"], mode).encode()}
        after: Any = mount(edited)
        before["grants"][agent]["mode"] = mode
        if after != before:
            raise NotEditable("more than the mode would change")
    except (NotEditable, BadPolicy) as error:
        mend = f"write `mode: {mode}` below {agent} by hand; it takes effect when saved"
        raise BadCommand(f"cannot be edited here: {error}", where=GRANTS, mend=mend) from error
    return Bundle.of(edited)


def write_edited_file(path: Path, raw: bytes, point: str, expected: bytes) -> bool:
    """Put what an order edits in the place of a file that holds `expected`, durably and whole.

    Returns False, and writes nothing, where it holds something else by now: somebody saved it.
    Raises OSError. Its mode bits stay; hidden files beside it are passed over by whoever reads.
    """
    failpoint.hit_failpoint(f"{point}:before")
    handle, name = tempfile.mkstemp(prefix=".vedette-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        if not path.is_file() or path.read_bytes() != expected:
            Path(name).unlink()
            return False
        Path(name).chmod(path.stat().st_mode & 0o777)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync(path.parent)
    failpoint.hit_failpoint(f"{point}:after")
    return True
