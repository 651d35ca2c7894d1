"""Releasing: an agent's folder, as it is now, becomes the release that runs, between two turns.

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
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from vedette.app.remote_workers import Apart
from vedette.app.workers import try_judge
from vedette.config.snapshot import drop_unfinished, find_snapshot, keep_snapshot, marks_of
from vedette.domain.agent import Agent
from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.errors import (
    BadCommand,
    BadFleet,
    NotFound,
    Outrun,
    StoreFailed,
    Unavailable,
    VedetteError,
)
from vedette.domain.entry import RELEASES, Draft, releases_of
from vedette.domain.roles import require
from vedette.engine.reservation import gap_of, pause_unbounded, refuse_unbounded
from vedette.engine.scheduler.dispatcher import Dispatcher
from vedette.engine.services import Line
from vedette.memory.training_set import Lessons, Readable
from vedette.operations.commands import Commands, Order
from vedette.policy.rollout import Rollout

if TYPE_CHECKING:
    from vedette.config import Loaded, Settings

VERBS: Mapping[str, Mapping[str, type]] = {"agent_release": {"agent": str}}
NEEDED = {"agent_release": "agent"}

# How long an agent may take to end what it is at: its command waits for it.
REST_S = 30.0
_LOOK_S = 0.01
# What the parts of a fleet are made of at its start, and what each is called in agent.yaml.
_FIXED = ("reasoner", "order_by", "collection", "schedules")


@dataclass(slots=True)
class Changed:
    """An agent whose folder is not the release that runs any more. `now` is its digest."""

    agent: str
    release: str
    now: str

    def to_json(self) -> dict[str, str]:
        """Return it as `--json` prints it."""
        return {"agent": self.agent, "release": self.release, "now": self.now}


@dataclass(slots=True)
class Releases:
    """The releases of one running fleet. Belongs to its event loop.

    `scopes` are the memory scopes that were loaded, (bank, scope); `missing` the agents of which
    the fleet runs a release that is not here, with its digest. Which release the fleet runs is
    read off the record alone, also after one that was made here.
    """

    settings: Settings
    line: Line
    lessons: Lessons
    dispatcher: Dispatcher
    rollout: Rollout
    scopes: frozenset[tuple[str, str]]
    missing: dict[str, str] = field(default_factory=dict)
    _alone: asyncio.Lock = field(default_factory=asyncio.Lock)
    _seen: int = 0
    _wanted: dict[str, str] = field(default_factory=dict)
    _marks: dict[str, tuple[object, str]] = field(default_factory=dict)
    _unbounded: dict[str, str] = field(default_factory=dict)

    # --- a person's order ---------------------------------------------------------------------

    async def release(self, order: Order, name: str) -> dict[str, Any]:
        """Make the present content of an agent's folder its release; return what became of it.

        Raises NotFound for what is no agent of the running fleet; BadCommand for what needs a
        restart, for a folder that does not pass its check, and for code that cannot be loaded;
        Unavailable if the agent does not come to rest. Then nothing was changed.
        """
        require(order.principal, order.principal.roles, "agent_release")
        if not order.reason.strip():
            raise BadCommand("a reason is missing", mend="add --reason 'why'")
        if name not in self.line.fleet.agents:
            mend = "a new agent is taken up when the fleet is started again"
            raise NotFound(f"the fleet runs no agent {name!r}", mend=mend)
        async with self._alone:
            return await self._release(order, name)

    async def _release(self, order: Order, name: str) -> dict[str, Any]:
        was = self.line.agent(name)
        before = was.release
        if not self.settings.store.visit:
            self._look()
            before = self._wanted.get(name, before)
        made = self._read(name)
        told = {"agent": name, "was": before, "release": made.release, "folder": made.folder}
        if made.release == was.release == before and name not in self.missing:
            if order.command_id is not None:
                await self.line.store.note([], command=order.command_id)
            return {**told, "changed": False}
        self._refuse_fixed(was, made)
        place = await self._try(made)
        async with self._at_rest(name):
            fields = {"agent": name, "release": made.release, "what": before}
            fields["actor"] = str(order.principal)
            draft = Draft("agent.released", fields, body=order.body())
            await self._place(made, place, [draft], order.command_id)
        return {**told, "changed": True}

    def _read(self, name: str) -> Agent:
        """Return the agent that the folder holds now, as a snapshot. Raises BadCommand."""
        from vedette.config import read_fleet

        settings = self.settings
        now_us = self.line.clock.now_us()
        agents, _, problems = read_fleet(settings.root, settings, now_us=now_us)
        found = agents.get(name)
        if found is None:
            mine = [p for p in problems if not p.warning and Path(p.file).is_relative_to(
                _shown(settings.root, settings.agents / name))]  # fmt: skip
            if not mine:
                mend = "bring the folder back, or start the fleet again without it"
                raise BadCommand("is not there", where=str(settings.agents / name), mend=mend)
            first = mine[0]
            more = f" (and {len(mine) - 1} more)" if len(mine) > 1 else ""
            where = f"{first.file}:{first.line}" if first.line else first.file
            raise BadCommand(f"{first.what}{more}", where=where, mend=first.mend or None)
        try:
            return kept(found, settings.state)
        except BadFleet as error:
            raise BadCommand(error.what, where=error.where, mend=error.mend) from error

    def _refuse_fixed(self, was: Agent, made: Agent) -> None:
        """Raise BadCommand for what parts of the fleet were made of that do not change."""
        fixed = [word for word in _FIXED if getattr(was, word) != getattr(made, word)]
        tools = [t for a in self.line.fleet.agents.values() for t in a.tools.values()]
        if any(t.http for t in made.tools.values()) and not any(t.http for t in tools):
            fixed.append("http (the fleet had no such tool)")
        unknown = [f"{s.bank}/{s.scope}" for s in made.scopes]
        fixed += [f"memory {s}" for s in unknown if tuple(s.split("/", 1)) not in self.scopes]
        if fixed:
            what = f"a running fleet cannot change {', '.join(fixed)} of {made.name}"
            where = f"{made.name}/agent.yaml"
            raise BadCommand(what, where=where, mend="start the fleet again: that is a release")
        self._refuse_unbounded(made)

    def _refuse_unbounded(self, made: Agent) -> None:
        """Raise BadCommand for a release whose tokens the live limits could not bound."""
        if (gap := gap_of(self.line.budgets, made)) is not None:
            mend = "mend its agent.yaml, or policies/budgets/data.yaml"
            raise BadCommand(f"{made.name}: {gap}", where=f"{made.name}/agent.yaml", mend=mend)

    async def _try(self, made: Agent) -> Callable[[], None]:
        """Load the code of a release beside the present one; return what puts it in place.

        Raises BadCommand with the file and line of the agent's code where that failed.
        """
        reasoner: Any = self.line.reasoners.get(made.reasoner)
        try:
            if made.reasoner == "adk" and hasattr(reasoner, "prepare"):
                budget = made.budget
                bounds = (budget.input_tokens_per_call, budget.output_tokens_per_call)
                place: Callable[[], None] = await reasoner.prepare(
                    made.name, Path(made.folder), made.release, bounds
                )
                return place
            taught = self.lessons.now(made.name, self.line.clock.now_us())
            near = reasoner.near(made.name) if isinstance(reasoner, Apart) else reasoner
            await try_judge(near, made, taught)
        except VedetteError as error:
            raise BadCommand(error.what, where=error.where, mend=error.mend) from error
        except Exception as error:
            # Whatever the agent's code raised in its worker.
            what = f"{type(error).__name__}: {error}"
            mend = "correct the agent's code"
            raise BadCommand(what, where=f"{made.name}/judge.py", mend=mend) from error
        return lambda: None

    # --- the swap -----------------------------------------------------------------------------

    @asynccontextmanager
    async def _at_rest(self, name: str) -> AsyncIterator[None]:
        """Hold an agent that begins nothing and has ended what it was at. Raises Unavailable."""
        self.line.stops.pause(name, "rest")
        try:
            await self._rest(name)
            yield
        finally:
            self.line.stops.go_on(name, "rest")

    async def _rest(self, name: str) -> None:
        clock, judges = self.line.clock, self.line.reasoners.get("judge")
        # Who waits for a worker to come is not waited for: it may come with the new release only.
        far = isinstance(judges, Apart) and name in judges.releases
        end = clock.monotonic_us() + int(REST_S * 1e6)
        while self.dispatcher.at_work(name, judging=not far):
            if clock.monotonic_us() >= end:
                what = f"{name} did not end what it is at within {REST_S:.0f} s"
                raise Unavailable(what, mend="nothing was changed; give the same order again")
            await asyncio.sleep(_LOOK_S)

    async def _place(
        self,
        made: Agent,
        place: Callable[[], None],
        drafts: Sequence[Draft] = (),
        command: str | None = None,
    ) -> None:
        """Put a release in the place of the one that runs. The agent is at rest.

        Whether the live revision bounds its tokens, and what it may be taught, is decided anew; the
        reads are one commit with `drafts`, which stands only if that revision is still live, and
        nothing is put in place before it. Raises BadCommand, what the store raises, and as
        `Rollout.catch_up`; then nothing was put in place.
        """
        line = self.line
        while True:
            async with self.rollout.swap_lock:
                self._refuse_unbounded(made)
                policy_rev = line.gateway.policy_rev
                readable, reads = self.lessons.decide(line.gateway, line.clock.now_us(), made)
                if await self._record(made, drafts, reads, command, policy_rev):
                    self._swap(made, place, readable)
                    return
            # Another worker published: that is asked before this is made.
            await self.rollout.catch_up()

    async def _record(
        self,
        made: Agent,
        drafts: Sequence[Draft],
        reads: Sequence[Draft],
        command: str | None,
        policy_rev: int,
    ) -> bool:
        """Make a release and its reads durable; False if another revision is live by now."""
        try:
            await self.line.store.note([*drafts, *reads], command=command, policy_rev=policy_rev)
        except Outrun:
            return False
        except StoreFailed:
            # A commit may have stood although it raised, and nobody else would put it in place.
            if not drafts:
                raise
            self._look()
            if self._wanted.get(made.name) != made.release:
                raise
        return True

    def _swap(self, made: Agent, place: Callable[[], None], readable: Readable) -> None:
        """Let another release run from now on.

        Nothing is awaited: there is no instant at which half of it is in place.
        """
        line, name, lessons = self.line, made.name, self.lessons
        line.fleet.replace(made)
        place()
        if name in lessons.agents:
            lessons.agents[name] = made
        reasoner: Any = line.reasoners.get(made.reasoner)
        if isinstance(reasoner, Apart):
            reasoner.release(name, made.release)
        if hasattr(reasoner, "renew"):
            reasoner.renew(name)
        hands: Any = line.performer
        hands.renew(name)
        line.recall.forget()
        self._found_again(name)
        pause_unbounded(line)
        for changed in lessons.take(readable, line.gateway.policy_rev):
            judges: Any = line.reasoners["judge"]
            judges.renew(changed)

    def _found_again(self, name: str) -> None:
        self.missing.pop(name, None)
        self.line.stops.go_on(name, "release")

    # --- what the record names, whoever released it -----------------------------------------

    def _look(self) -> None:
        """Read off the record which releases the fleet runs. Raises StoreFailed."""
        store: Any = self.line.store
        for seq, raw, _, _ in store.walk(RELEASES, self._seen):
            self._wanted.update(releases_of(orjson.loads(raw)))
            self._seen = seq

    def live(self) -> tuple[Mapping[str, Agent], int]:
        """Return the agents of the releases that the fleet runs, and which entry was read last.

        Of one that is not here, what runs here is returned. Raises StoreFailed.
        """
        self._look()
        agents = dict(self.line.fleet.agents)
        for name, agent in self.line.fleet.agents.items():
            release = self._wanted.get(name, agent.release)
            if release != agent.release:
                with suppress(BadCommand):
                    agents[name] = self._found(name, release)
        return agents, self._seen

    async def follow(self, trouble: Callable[[str], None]) -> None:
        """Take up the releases that the record names; what is not here is not run here.

        Raises StoreFailed, and Unavailable for an agent that does not come to rest: it is to be
        asked again.
        """
        self._look()
        for name in list(self._wanted):
            if self._differs(name):
                async with self._alone:
                    # A person's order that was waited for here may have made another since.
                    self._look()
                    if self._differs(name):
                        await self._take_up(name, self._wanted[name], trouble)
        self._tell_unbounded(trouble)

    def _differs(self, name: str) -> bool:
        agent = self.line.fleet.agents.get(name)
        return agent is not None and (agent.release != self._wanted[name] or name in self.missing)

    async def _take_up(self, name: str, release: str, trouble: Callable[[str], None]) -> None:
        was = self.line.agent(name)
        if was.release == release:
            self._found_again(name)
            return
        try:
            made = self._found(name, release)
            self._refuse_fixed(was, made)
            place = await self._try(made)
            async with self._at_rest(name):
                await self._place(made, place)
        except BadCommand as error:
            if self.missing.get(name) != release:
                self.missing[name] = release
                self.line.stops.pause(name, "release")
                trouble(
                    f"{name} is not run here: the fleet runs release {release[:12]} of it, and "
                    f"{error}"
                )
            return
        trouble(f"{name}: release {release[:12]} was taken up")

    def _tell_unbounded(self, trouble: Callable[[str], None]) -> None:
        """Tell once of each agent that `pause_unbounded` has begin nothing."""
        found = ((a.name, gap_of(self.line.budgets, a)) for a in self.line.fleet.agents.values())
        gaps = {name: gap for name, gap in found if gap is not None}
        for name, gap in gaps.items():
            if self._unbounded.get(name) != gap:
                trouble(
                    f"{name} begins nothing here: {gap}; release it with what is missing, or "
                    "publish other limits"
                )
        self._unbounded = gaps

    def _found(self, name: str, release: str) -> Agent:
        """Return a release of an agent that another worker made, if it is here.

        Raises BadCommand.
        """
        from vedette.config import read_fleet

        settings = self.settings
        kept_here = find_snapshot(settings.state, release, name)
        if kept_here is None:
            made = self._read(name)
            if made.release != release:
                what = f"its folder here is {made.release[:12]}"
                raise BadCommand(what, mend="bring the same folder here; it is taken up then")
            return made
        # Read as any folder of agents, one that holds this agent alone.
        beside = replace(settings, agents=kept_here.folder.parent)
        agents, _, problems = read_fleet(settings.root, beside, now_us=self.line.clock.now_us())
        if name not in agents:
            first = next(p for p in problems if not p.warning)
            raise BadCommand(first.what, where=first.file, mend=first.mend or None)
        return replace(agents[name], folder=str(kept_here.folder), release=release)

    # --- what lies in the folders ---------------------------------------------------------------

    def changed(self) -> list[Changed]:
        """Return the agents whose folder is not the release that runs; reads what is new there.

        A folder that cannot be read has the digest "".
        """
        from vedette.config.agent_folder import release_digest

        found = []
        for name, agent in list(self.line.fleet.agents.items()):
            folder = self.settings.agents / name
            try:
                marks = marks_of(folder)
                known = self._marks.get(name)
                if known is None or known[0] != marks:
                    known = self._marks[name] = (marks, release_digest(folder))
                now = known[1]
            except (OSError, BadFleet):
                now = ""
            if now != agent.release:
                found.append(Changed(name, agent.release, now))
        return found


def _shown(root: Path, path: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else path


def kept(agent: Agent, state: Path) -> Agent:
    """Return an agent that runs out of a snapshot of its folder. Raises BadFleet.

    Also for a folder that was changed between the reading of agent.yaml and the snapshot.
    """
    snapshot = keep_snapshot(state, Path(agent.folder))
    if snapshot.release != agent.release:
        mend = "do it again once nobody saves files there"
        raise BadFleet("was changed while it was read", where=agent.folder, mend=mend)
    return replace(agent, folder=str(snapshot.folder))


def keep_all(loaded: Loaded, state: Path) -> None:
    """Have every agent of a fleet run out of a snapshot. Raises BadFleet."""
    drop_unfinished(state)
    for agent in list(loaded.fleet.agents.values()):
        loaded.fleet.replace(kept(agent, state))


async def record_start(
    line: Line, rollout: Rollout, lessons: Lessons, drafts: Sequence[Draft]
) -> None:
    """Record what this worker starts with, and what its agents may be taught. Raises BadFleet.

    It is a release of every agent: it fits the live revision, or it is none.
    """
    read = lessons.catch_up(line.gateway, rollout.live.number, line.clock.now_us())
    while True:
        refuse_unbounded(line)
        live = rollout.live.number
        try:
            await line.store.note([*drafts, *read], policy_rev=live)
        except Outrun:
            # Another worker published: what that says of these agents is recorded instead.
            await rollout.catch_up()
            _, read = lessons.decide(line.gateway, line.clock.now_us())
        else:
            return


async def carry_out(commands: Commands, order: Order, args: Mapping[str, Any]) -> dict[str, Any]:
    """Make a release of an agent's folder. Raises as `Releases.release`."""
    if commands.releases is None:
        raise BadCommand("this fleet's agents are released elsewhere")
    return await commands.releases.release(order, args["agent"])
