"""Task releases: the former releases of agents that tasks still run on, each in workers of its own.

What the record names is read off it: which release the fleet runs, which were taken back. A
release's code is made when the first task of it is taken up here, and let go when none was for a
while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import orjson
from msgspec import Struct, field

from vedette.app.canary_code import OpenedCode
from vedette.app.release_archive import restore_snapshot
from vedette.config.agent_snapshot import load_released_agent
from vedette.domain.agent import Agent
from vedette.domain.base.errors import BadCommand, VedetteError
from vedette.domain.entry import RELEASE_KINDS, releases_of
from vedette.engine.reservation import find_budget_gap
from vedette.engine.services import CanaryCode, Services
from vedette.operations.release_comparison import find_wider_limits

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.engine.scheduler.dispatcher import Dispatcher

# What nobody used for so long is let go; how often that is looked at.
_IDLE_US = 60_000_000
_EVERY_S = 5.0
# What the agent's runs have in common, whatever their release: who reasons, its row, what it is
# taught and may take for known.
_FIXED_FIELDS = ("reasoner", "last_reasoner", "collection", "scopes", "charter")


class FormerReleases(Struct):
    """The former releases of one running fleet. Belongs to its event loop.

    `_kept` are, by agent, the releases that tasks may be on, with the entry by which each was last
    made; `_used_us` is when one was last asked for.
    """

    settings: Settings
    services: Services
    dispatcher: Dispatcher
    open_release: Callable[[Agent], Awaitable[OpenedCode]]
    _last_seq: int = 0
    _live: dict[str, str] = field(default_factory=dict)
    _kept: dict[str, dict[str, int]] = field(default_factory=dict)
    _opened: dict[tuple[str, str], OpenedCode] = field(default_factory=dict)
    _used_us: dict[tuple[str, str], int] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _begun: asyncio.Event = field(default_factory=asyncio.Event)

    def read_record(self) -> None:
        """Read off the record which releases were made, and withdrawn. Raises StoreFailed.

        A rollback withdraws what was made after the release it goes back to.
        """
        for seq, raw, _, _ in self.services.store.ledger.walk(RELEASE_KINDS, self._last_seq):
            self._last_seq, entry = seq, orjson.loads(raw)
            for name, release in releases_of(entry).items():
                kept = self._kept.setdefault(name, {})
                if (back_to := entry.get("back_to")) is not None:
                    for other in [one for one, since in kept.items() if since > back_to]:
                        del kept[other]
                if entry.get("moves_tasks"):
                    kept.clear()
                if self._live.get(name) != release or release not in kept:
                    self._live[name], kept[release] = release, seq
        for name, release in list(self.services.former_code):
            if self.is_withdrawn(name, release):
                del self.services.former_code[name, release]

    def live_release(self, agent: str) -> str:
        """Return the release of an agent that the record says the fleet runs."""
        return self._live.get(agent) or self.services.fleet.agent(agent).release

    def is_withdrawn(self, agent: str, release: str) -> bool:
        """Say whether no task may stay on a release: taken back, only tried, or named no more."""
        return release not in self._kept.get(agent, {})

    async def open_code(self, agent: str, release: str) -> CanaryCode | str:
        """Return what runs a release's code, or the rule by which its tasks cannot stay on it.

        Raises BadCommand for a release whose files are not kept, or cannot be loaded any more.
        """
        key = (agent, release)
        async with self._lock:
            self._used_us[key] = self.services.clock.monotonic_us()
            found = self.services.former_code.get(key)
            made = self._load(agent, release) if found is None else found.agent
            # Also of what is open: another release, or other limits, may be live by now.
            if (rule := self._find_obstacle(made)) is not None:
                return rule
            if found is not None:
                return found
            opened = await self._open(made)
            await self._close_code(key)  # one that was withdrawn, and made again
            self._opened[key], self.services.former_code[key] = opened, opened.code
            self._begun.set()
            return opened.code

    def _load(self, name: str, release: str) -> Agent:
        snapshot = restore_snapshot(self.settings, self.services.store, name, release)
        found = None
        if snapshot is not None:
            now_us = self.services.clock.now_us()
            found = load_released_agent(self.settings, name, release, now_us=now_us)
        if found is None:
            mend = f"move the task: `vedette work move`, or bring its folder back: {release[:12]}"
            raise BadCommand("its files are kept nowhere", mend=mend)
        return found

    def _find_obstacle(self, made: Agent) -> str | None:
        """Return the rule by which tasks cannot stay on a release beside the live one."""
        live = self.services.fleet.agent(made.name)
        is_remote = self.settings.deployment.gateway.is_remote(made.name)
        if is_remote or made.last_reasoner not in ("judge", "adk"):
            return "host"
        if any(getattr(live, one) != getattr(made, one) for one in _FIXED_FIELDS):
            return "limits"
        is_wider = find_wider_limits(live, made) or find_budget_gap(self.services.budgets, made)
        return "limits" if is_wider else None

    async def _open(self, made: Agent) -> OpenedCode:
        try:
            return await self.open_release(made)
        except VedetteError as error:
            raise BadCommand(error.what, where=error.where, mend=error.mend) from error
        except Exception as error:
            # Whatever the release's code raised in its worker.
            what = f"{type(error).__name__}: {error}"
            raise BadCommand(what, mend="move the task: `vedette work move`") from error

    # --- what is not used any more ------------------------------------------------------------

    async def close_idle(self) -> None:
        """Let go of the code that no task uses, and none did for a while."""
        now_us = self.services.clock.monotonic_us()
        used = {id(context.code) for context in self.dispatcher.active_runs.values()}
        for key, opened in list(self._opened.items()):
            is_over = self.services.former_code.get(key) is not opened.code
            is_idle = now_us - self._used_us[key] >= _IDLE_US
            if id(opened.code) not in used and (is_over or is_idle):
                async with self._lock:
                    await self._close_code(key)

    async def _close_code(self, key: tuple[str, str]) -> None:
        opened = self._opened.pop(key, None)
        if opened is None:
            return
        if self.services.former_code.get(key) is opened.code:
            del self.services.former_code[key]
        await opened.close()

    async def watch(self) -> None:
        """Let go of what is not used for as long as the fleet runs."""
        while True:
            if not self._opened:
                self._begun.clear()
                await self._begun.wait()
            await asyncio.sleep(_EVERY_S)
            await self.close_idle()

    async def close(self) -> None:
        """Let go of all of it; the tasks go on with the next start."""
        for key in list(self._opened):
            await self._close_code(key)
