"""Releases: an agent's folder, as it is now, becomes the release that runs, between two turns.

What runs is a snapshot in the state folder (`vedette.config.snapshot`). `agent release` checks the
folder's present content, keeps it, tries its code where it would run, lets the agent come to rest,
records who wanted it and why, and puts the new release in the place of the old one. With several
workers on one store the record decides which release the fleet runs: each takes up that one, or
takes nothing of that agent's until it can.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from vedette.app.release_archive import keep_in_store, load_kept_release
from vedette.app.remote_workers import RoutingReasoner
from vedette.app.workers import try_judge
from vedette.config.plugins import plugins
from vedette.config.snapshot import (
    folder_stamps,
    keep_snapshot,
    remove_unfinished_snapshots,
)
from vedette.domain.agent import Agent
from vedette.domain.base.errors import (
    AlreadyDone,
    BadCommand,
    BadFleet,
    NotFound,
    StoreFailed,
    Unavailable,
    VedetteError,
    WriteConflict,
)
from vedette.domain.entry import RELEASE_KINDS, Draft, releases_of
from vedette.domain.ports.plugin import REASONERS, ReasonerPlugin
from vedette.domain.roles import require_role
from vedette.engine.reservation import (
    find_budget_gap,
    pause_unbounded_agents,
    refuse_unbounded_agents,
)
from vedette.engine.scheduler.dispatcher import Dispatcher
from vedette.engine.services import Services
from vedette.ledger.history.release_history import (
    find_waiting_folders,
)
from vedette.memory.training_set import Lessons, ReadableScopes
from vedette.operations.commands import ChangedAgent, Commands, Order
from vedette.policy.rollout import Rollout

if TYPE_CHECKING:
    from vedette.config.fleet import LoadedFleet
    from vedette.config.settings import Settings

VERBS: Mapping[str, Mapping[str, type]] = {
    "agent_release": {"agent": str, "move_tasks": bool},
}
NEEDED = dict.fromkeys(VERBS, "agent")

# How long an agent may take to end what it is at: its command waits for it.
REST_S = 30.0
_POLL_S = 0.01
# What the parts of a fleet are made of at its start, and what each is called in agent.yaml.
_FIXED_FIELDS = {
    "reasoner": "reasoner", "last_reasoner": "reasoner", "order_by": "order_by",
    "session": "session", "collection": "collection", "schedules": "schedules",
}  # fmt: skip


class Releases(Struct):
    """The releases of one running fleet. Belongs to its event loop.

    `scopes` are the memory scopes that were loaded, (bank, scope); `missing` the agents of which
    the fleet runs a release that is not here, with its digest. Which release the fleet runs is
    read off the record alone, also after one that was made here.
    """

    settings: Settings
    services: Services
    lessons: Lessons
    dispatcher: Dispatcher
    rollout: Rollout
    scopes: frozenset[tuple[str, str]]
    missing: dict[str, str] = field(default_factory=dict)
    order_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _last_seq: int = 0
    _wanted_releases: dict[str, str] = field(default_factory=dict)
    _stamps: dict[str, tuple[object, str]] = field(default_factory=dict)
    _unbounded: dict[str, str] = field(default_factory=dict)

    # --- a person's order ---------------------------------------------------------------------

    async def release(self, order: Order, name: str, *, move_tasks: bool = False) -> dict[str, Any]:
        """Make the present content of an agent's folder its release; return what became of it.

        With `move_tasks` no task of it stays on another.

        Raises NotFound for what is no agent of the running fleet; BadCommand for what needs a
        restart, for a folder that does not pass its check, and for code that cannot be loaded;
        Unavailable if the agent does not come to rest. Then nothing was changed.
        """
        self.check_order(order, name, "agent_release")
        async with self.order_lock:
            return await self._release(order, name, move_tasks)

    def check_order(self, order: Order, name: str, verb: str) -> None:
        """Refuse an order that may not be given, was carried out, or lacks what it needs."""
        require_role(order.principal, order.principal.roles, verb)
        if not order.reason.strip():
            raise BadCommand("a reason is missing", mend="add --reason 'why'")
        if order.command_id and self.services.store.is_command_done(order.command_id):
            raise AlreadyDone(f"command {order.command_id} was carried out before")
        if name not in self.services.fleet.agents:
            mend = "a new agent is taken up when the fleet is started again"
            raise NotFound(f"the fleet runs no agent {name!r}", mend=mend)

    async def _release(self, order: Order, name: str, move_tasks: bool) -> dict[str, Any]:
        current = self.services.fleet.agent(name)
        before = current.release
        if not self.settings.store.visit:
            self._read_ledger()
            before = self._wanted_releases.get(name, before)
        made = self.read_folder(name)
        answer = {"agent": name, "was": before, "release": made.release, "folder": made.folder}
        waits = name in find_waiting_folders(self.services.store.ledger)
        is_same = made.release == current.release == before
        if is_same and not (waits or move_tasks) and name not in self.missing:
            if order.command_id is not None:
                await self.services.store.commands.append_entries([], command=order.command_id)
            return {**answer, "changed": False}
        await self.make_release(order, made, before, move_tasks=move_tasks)
        return {**answer, "changed": True}

    async def make_release(
        self,
        order: Order,
        made: Agent,
        before: str,
        back_to: int | None = None,
        *,
        move_tasks: bool = False,
    ) -> None:
        """Make a release that was read the one that runs, in place of `before`."""
        self.refuse_fixed(self.services.fleet.agent(made.name), made)
        place = await self.try_code(made)
        await keep_in_store(self.services.store, [made])
        async with self._hold_idle(made.name):
            fields = {"agent": made.name, "release": made.release, "what": before,
                      "back_to": back_to, "actor": str(order.principal),
                      "moves_tasks": move_tasks or None}  # fmt: skip
            draft = Draft("agent.released", fields, body=order.body())
            await self._install(made, place, [draft], order.command_id)

    def read_folder(self, name: str) -> Agent:
        """Return the agent that the folder holds now, as a snapshot. Raises BadCommand."""
        from vedette.config.fleet import read_fleet

        settings = self.settings
        now_us = self.services.clock.now_us()
        agents, _, problems = read_fleet(settings.root, settings, now_us=now_us)
        found = agents.get(name)
        if found is None:
            mine = [p for p in problems if not p.warning and Path(p.file).is_relative_to(
                _relative_path(settings.root, settings.agents / name))]  # fmt: skip
            if not mine:
                mend = "bring the folder back, or start the fleet again without it"
                raise BadCommand("is not there", where=str(settings.agents / name), mend=mend)
            first = mine[0]
            more = f" (and {len(mine) - 1} more)" if len(mine) > 1 else ""
            where = f"{first.file}:{first.line}" if first.line else first.file
            raise BadCommand(f"{first.what}{more}", where=where, mend=first.mend or None)
        try:
            return snapshot_agent(found, settings.state)
        except BadFleet as error:
            raise BadCommand(error.what, where=error.where, mend=error.mend) from error

    def refuse_fixed(self, current: Agent, release: Agent) -> None:
        """Raise BadCommand for what parts of the fleet were made of that do not change."""
        changed = (n for n in _FIXED_FIELDS if getattr(current, n) != getattr(release, n))
        fixed = list(dict.fromkeys(_FIXED_FIELDS[name] for name in changed))
        unknown = [f"{s.bank}/{s.scope}" for s in release.scopes]
        fixed += [f"memory {s}" for s in unknown if tuple(s.split("/", 1)) not in self.scopes]
        if fixed:
            what = f"a running fleet cannot change {', '.join(fixed)} of {release.name}"
            where = f"{release.name}/agent.yaml"
            mend = "start the fleet again: that is a release"
            if release.name in find_waiting_folders(self.services.store.ledger):
                mend = (
                    "its folder waits, so a start does not release it: bring back what runs, "
                    "`vedette agent release`, then change it and start the fleet again"
                )
            raise BadCommand(what, where=where, mend=mend)
        self._refuse_unbounded(release)

    def _refuse_unbounded(self, release: Agent) -> None:
        """Raise BadCommand for a release whose tokens the live limits could not bound."""
        if (gap := find_budget_gap(self.services.budgets, release)) is not None:
            mend = "mend its agent.yaml, or policies/budgets/data.yaml"
            raise BadCommand(
                f"{release.name}: {gap}", where=f"{release.name}/agent.yaml", mend=mend
            )

    async def try_code(self, release: Agent) -> Callable[[], None]:
        """Load the code of a release beside the present one; return what puts it in place.

        Raises BadCommand with the file and line of the agent's code where that failed.
        """
        reasoner: Any = self.services.reasoners.get(release.reasoner)
        try:
            install: Callable[[], None] | None = None
            if release.last_reasoner != "judge":
                plugin: ReasonerPlugin = plugins(REASONERS).get(release.last_reasoner)
                last: Any = self.services.reasoners.get(release.last_reasoner)
                install = await plugin.prepare(last, release)
                if not release.has_judge:
                    return install
            taught = self.lessons.preview_lessons(release.name, self.services.clock.now_us())
            near = (
                reasoner.local_reasoner(release.name)
                if isinstance(reasoner, RoutingReasoner)
                else reasoner
            )
            await try_judge(near, release, taught)
        except VedetteError as error:
            raise BadCommand(error.what, where=error.where, mend=error.mend) from error
        except Exception as error:
            # Whatever the agent's code raised in its worker.
            what = f"{type(error).__name__}: {error}"
            mend = "correct the agent's code"
            raise BadCommand(what, where=f"{release.name}/judge.py", mend=mend) from error
        return install or (lambda: None)

    # --- the swap -----------------------------------------------------------------------------

    @asynccontextmanager
    async def _hold_idle(self, name: str) -> AsyncIterator[None]:
        """Hold an agent that begins nothing and has ended what it was at. Raises Unavailable."""
        self.services.stops.pause(name, "rest")
        try:
            await self._wait_until_idle(name)
            yield
        finally:
            self.services.stops.unpause(name, "rest")

    async def _wait_until_idle(self, name: str) -> None:
        clock, judges = self.services.clock, self.services.reasoners.get("judge")
        # Who waits for a worker to come is not waited for: it may come with the new release only.
        is_remote = isinstance(judges, RoutingReasoner) and name in judges.releases
        end = clock.monotonic_us() + int(REST_S * 1e6)
        while self.dispatcher.is_active(name, judging=not is_remote):
            if clock.monotonic_us() >= end:
                what = f"{name} did not end what it is at within {REST_S:.0f} s"
                raise Unavailable(what, mend="nothing was changed; give the same order again")
            await asyncio.sleep(_POLL_S)

    async def _install(
        self,
        release: Agent,
        install: Callable[[], None],
        drafts: Sequence[Draft] = (),
        command: str | None = None,
    ) -> None:
        """Put a release in the place of the one that runs. The agent is at rest.

        Whether the live revision bounds its tokens, and what it may be taught, is decided anew; the
        reads are one commit with `drafts`, which stands only if that revision is still live, and
        nothing is put in place before it. Raises BadCommand, what the store raises, and as
        `Rollout.catch_up`; then nothing was put in place.
        """
        services = self.services
        while True:
            async with self.rollout.swap_lock:
                self._refuse_unbounded(release)
                policy_rev = services.gateway.policy_rev
                readable, reads = self.lessons.decide_scopes(
                    services.gateway, services.clock.now_us(), release
                )
                if await self._record(release, drafts, reads, command, policy_rev):
                    self._swap(release, install, readable)
                    return
            # Another worker published: that is asked before this is made.
            await self.rollout.catch_up()

    async def _record(
        self,
        release: Agent,
        drafts: Sequence[Draft],
        reads: Sequence[Draft],
        command: str | None,
        policy_rev: int,
    ) -> bool:
        """Make a release and its reads durable; False if another revision is live by now."""
        try:
            await self.services.store.commands.append_entries(
                [*drafts, *reads], command=command, policy_rev=policy_rev
            )
        except WriteConflict:
            return False
        except StoreFailed:
            # A commit may have stood although it raised, and nobody else would put it in place.
            if not drafts:
                raise
            self._read_ledger()
            if self._wanted_releases.get(release.name) != release.release:
                raise
        return True

    def _swap(self, release: Agent, install: Callable[[], None], readable: ReadableScopes) -> None:
        """Let another release run from now on.

        Nothing is awaited: there is no instant at which half of it is in place.
        """
        services, name, lessons = self.services, release.name, self.lessons
        services.fleet.replace(release)
        services.fleet.canaries.pop(name, None)  # that was compared with the one before
        services.canary_code.pop(name, None)
        install()
        if name in lessons.agents:
            lessons.agents[name] = release
        reasoner: Any = services.reasoners.get(release.reasoner)
        if isinstance(reasoner, RoutingReasoner):
            reasoner.set_release(name, release.release)
        if hasattr(reasoner, "renew"):
            reasoner.renew(name)
        tools: Any = services.tool_executor
        tools.renew(name)
        services.recall.forget_permits()
        self._clear_missing(name)
        pause_unbounded_agents(services)
        for changed in lessons.adopt(readable, services.gateway.policy_rev):
            judges: Any = services.reasoners["judge"]
            judges.renew(changed)

    def _clear_missing(self, name: str) -> None:
        self.missing.pop(name, None)
        self.services.stops.unpause(name, "release")

    # --- what the record names, whoever released it -----------------------------------------

    def _read_ledger(self) -> None:
        """Read off the record which releases the fleet runs. Raises StoreFailed."""
        for seq, raw, _, _ in self.services.store.ledger.walk(RELEASE_KINDS, self._last_seq):
            self._wanted_releases.update(releases_of(orjson.loads(raw)))
            self._last_seq = seq

    def live_agents(self) -> tuple[Mapping[str, Agent], int]:
        """Return the agents of the releases that the fleet runs, and which entry was read last.

        Of one that is not here, what runs here is returned. Raises StoreFailed.
        """
        self._read_ledger()
        agents = dict(self.services.fleet.agents)
        for name, agent in self.services.fleet.agents.items():
            release = self._wanted_releases.get(name, agent.release)
            if release != agent.release:
                with suppress(BadCommand):
                    agents[name] = self._find_release(name, release)
        return agents, self._last_seq

    async def follow(self, trouble: Callable[[str], None]) -> None:
        """Take up the releases that the record names; what is not here is not run here.

        Raises StoreFailed, and Unavailable for an agent that does not come to rest: it is to be
        asked again.
        """
        self._read_ledger()
        for name in list(self._wanted_releases):
            if self._has_changed(name):
                async with self.order_lock:
                    # A person's order that was waited for here may have made another since.
                    self._read_ledger()
                    if self._has_changed(name):
                        await self._adopt_release(name, self._wanted_releases[name], trouble)
        self._report_unbounded(trouble)

    def _has_changed(self, name: str) -> bool:
        agent = self.services.fleet.agents.get(name)
        return agent is not None and (
            agent.release != self._wanted_releases[name] or name in self.missing
        )

    async def _adopt_release(self, name: str, release: str, trouble: Callable[[str], None]) -> None:
        was = self.services.fleet.agent(name)
        if was.release == release:
            self._clear_missing(name)
            return
        try:
            made = self._find_release(name, release)
            self.refuse_fixed(was, made)
            place = await self.try_code(made)
            async with self._hold_idle(name):
                await self._install(made, place)
        except BadCommand as error:
            if self.missing.get(name) != release:
                self.missing[name] = release
                self.services.stops.pause(name, "release")
                trouble(
                    f"{name} is not run here: the fleet runs release {release[:12]} of it, and "
                    f"{error}"
                )
            return
        trouble(f"{name}: release {release[:12]} was taken up")

    def _report_unbounded(self, trouble: Callable[[str], None]) -> None:
        """Tell once of each agent that `pause_unbounded_agents` has begin nothing."""
        found = (
            (a.name, find_budget_gap(self.services.budgets, a))
            for a in self.services.fleet.agents.values()
        )
        gaps = {name: gap for name, gap in found if gap is not None}
        for name, gap in gaps.items():
            if self._unbounded.get(name) != gap:
                trouble(
                    f"{name} begins nothing here: {gap}; release it with what is missing, or "
                    "publish other limits"
                )
        self._unbounded = gaps

    def _find_release(self, name: str, release: str) -> Agent:
        """Return a release of an agent that another worker made, if it is here.

        Raises BadCommand.
        """
        now_us = self.services.clock.now_us()
        found = load_kept_release(self.settings, self.services.store, name, release, now_us)
        if found is not None:
            return found
        made = self.read_folder(name)
        if made.release != release:
            what = f"its folder here is {made.release[:12]}"
            raise BadCommand(what, mend="bring the same folder here; it is taken up then")
        return made

    # --- what lies in the folders ---------------------------------------------------------------

    def changed_agents(self) -> list[ChangedAgent]:
        """Return the agents whose folder is not the release that runs; reads what is new there.

        A folder that cannot be read has the digest "".
        """
        from vedette.config.agent_folder import release_digest

        found = []
        for name, agent in list(self.services.fleet.agents.items()):
            folder = self.settings.agents / name
            try:
                stamps = folder_stamps(folder)
                known = self._stamps.get(name)
                if known is None or known[0] != stamps:
                    known = self._stamps[name] = (stamps, release_digest(folder))
                now = known[1]
            except (OSError, BadFleet):
                now = ""
            canary = self.services.fleet.canaries.get(name)
            if now not in (agent.release, canary and canary.agent.release):
                found.append(ChangedAgent(name, agent.release, now))
        return found


def _relative_path(root: Path, path: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else path


def snapshot_agent(agent: Agent, state: Path) -> Agent:
    """Return an agent whose release runs out of a snapshot of its folder. Raises BadFleet.

    Also for a folder that was changed between the reading of agent.yaml and the snapshot.
    """
    snapshot = keep_snapshot(state, Path(agent.folder))
    if snapshot.release != agent.release:
        mend = "do it again once nobody saves files there"
        raise BadFleet("was changed while it was read", where=agent.folder, mend=mend)
    return replace(agent, folder=str(snapshot.folder))


def snapshot_fleet(loaded: LoadedFleet, state: Path) -> None:
    """Have the release of every agent of a fleet run out of a snapshot. Raises BadFleet."""
    remove_unfinished_snapshots(state)
    for agent in list(loaded.fleet.agents.values()):
        loaded.fleet.replace(snapshot_agent(agent, state))


async def record_start(
    services: Services, rollout: Rollout, lessons: Lessons, drafts: Sequence[Draft]
) -> None:
    """Record the releases a worker starts with, and what its agents may be taught. Raises BadFleet.

    It is a release of every agent: it fits the live revision, or it is none.
    """
    read = lessons.catch_up(services.gateway, rollout.live.number, services.clock.now_us())
    while True:
        refuse_unbounded_agents(services)
        live = rollout.live.number
        try:
            await services.store.commands.append_entries([*drafts, *read], policy_rev=live)
        except WriteConflict:
            # Another worker published: what that says of these agents is recorded instead.
            await rollout.catch_up()
            _, read = lessons.decide_scopes(services.gateway, services.clock.now_us())
        else:
            return


async def dispatch(
    commands: Commands, verb: str, order: Order, args: Mapping[str, Any]
) -> dict[str, Any]:
    """Have `Releases` carry out a verb of VERBS. Raises as its methods do."""
    if commands.releases is None:
        raise BadCommand("this fleet's agents are released elsewhere")
    moves = bool(args.get("move_tasks"))
    return await commands.releases.release(order, args["agent"], move_tasks=moves)
