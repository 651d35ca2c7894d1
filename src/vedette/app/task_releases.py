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
from vedette.app.release_archive import load_kept_release
from vedette.domain.agent import Agent
from vedette.domain.base.backoff import delay_us
from vedette.domain.base.errors import BadCommand, StoreFailed, Temporary, VedetteError
from vedette.domain.entry import RELEASE_KINDS, releases_of
from vedette.domain.run import Superseded
from vedette.engine.reservation import find_budget_gap
from vedette.engine.services import CanaryCode, MoveReason, Services
from vedette.operations.release_comparison import find_wider_limits

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.engine.scheduler.dispatcher import Dispatcher

# What nobody used for so long is let go; how often that is looked at.
_IDLE_US = 60_000_000
_EVERY_S = 5.0
# How often a fault that may pass is tried, and how long after the first.
_ATTEMPTS = 10
_RETRY_US = 1_000_000
# How many former releases of an agent are open at once.
_MOST_OPEN = 4
# What the agent's runs have in common, whatever their release: who reasons, its row, what it is
# taught and may take for known.
_FIXED_FIELDS = ("reasoner", "last_reasoner", "collection", "scopes", "charter")


class _Fault(Struct, frozen=True):
    """How often in a row a release could not be opened, and until when that is not tried again."""

    tries: int = 0
    until_us: int = 0


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
    _locks: dict[tuple[str, str], asyncio.Lock] = field(default_factory=dict)
    _faults: dict[tuple[str, str], _Fault] = field(default_factory=dict)
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

    async def open_code(self, agent: str, release: str) -> CanaryCode | MoveReason:
        """Return what runs a release's code, or why its tasks cannot stay on it.

        Raises StoreFailed, and Superseded where it may be had a while later: a disk, or a worker,
        did not do its part. It is tried again with backoff, and `_ATTEMPTS` times in a row at most.
        """
        key, now_us = (agent, release), self.services.clock.monotonic_us()
        async with self._locks.setdefault(key, asyncio.Lock()):
            self._used_us[key] = now_us
            fault = self._faults.get(key, _Fault())
            if fault.until_us > now_us:
                raise Superseded("its release could not be opened", wait_us=fault.until_us - now_us)
            try:
                return await self._open(key)
            except (StoreFailed, Superseded):
                raise
            except (Temporary, OSError, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    raise
                tries = fault.tries + 1
                if tries < _ATTEMPTS:
                    wait = delay_us(tries, first_us=_RETRY_US, last_us=_IDLE_US, seed=release)
                    self._faults[key] = _Fault(tries, now_us + wait)
                    raise Superseded(f"its release: {error}", wait_us=wait) from error
                why = f"{type(error).__name__}: {error}"
            except VedetteError as error:
                why = str(error)
            except Exception as error:
                # Whatever the release's code raised as it was made.
                why = f"{type(error).__name__}: {error}"
            self._faults.pop(key, None)
            return MoveReason("lost", why)

    async def _open(self, key: tuple[str, str]) -> CanaryCode | MoveReason:
        found = self.services.former_code.get(key)
        made = self._load(*key) if found is None else found.agent
        # Also of what is open: another release, or other limits, may be live by now.
        if (reason := self._find_obstacle(made)) is not None:
            return reason
        if found is not None:
            return found if found.ceiling is None else MoveReason("ceiling", found.ceiling)
        await self._make_room(key[0])
        opened = await self.open_release(made)
        await self._close_code(key)  # one that was withdrawn, and made again
        self._faults.pop(key, None)
        self._opened[key], self.services.former_code[key] = opened, opened.code
        self._begun.set()
        return opened.code

    def _load(self, name: str, release: str) -> Agent:
        now_us = self.services.clock.now_us()
        found = load_kept_release(self.settings, self.services.store, name, release, now_us)
        if found is None:
            raise BadCommand(f"the files of release {release[:12]} are kept nowhere")
        return found

    def _find_obstacle(self, made: Agent) -> MoveReason | None:
        """Return why tasks cannot stay on a release beside the live one; None if they can."""
        live = self.services.fleet.agent(made.name)
        is_remote = self.settings.deployment.gateway.is_remote(made.name)
        if is_remote or made.last_reasoner not in ("judge", "adk"):
            return MoveReason("host")
        found = [one for one in _FIXED_FIELDS if getattr(live, one) != getattr(made, one)]
        found = found or find_wider_limits(live, made)
        gap = find_budget_gap(self.services.budgets, made)
        found += [] if gap is None else [gap]
        return MoveReason("limits", "; ".join(found)) if found else None

    # --- what is not used any more ------------------------------------------------------------

    async def close_idle(self) -> None:
        """Let go of the code that no task uses, and none did for a while."""
        for key in list(self._opened):
            await self._close_unused(key, _IDLE_US)

    async def _make_room(self, agent: str) -> None:
        """Keep the open releases of an agent to `_MOST_OPEN`, the one that is opened next among
        them. Raises Superseded if tasks use all of them.
        """
        others = [key for key in self._opened if key[0] == agent]
        for key in sorted(others, key=self._used_us.__getitem__):
            if sum(name == agent for name, _ in self._opened) < _MOST_OPEN:
                return
            if not self._locks[key].locked():
                # One that a task has just been given is no second old.
                await self._close_unused(key, _RETRY_US)
        if sum(name == agent for name, _ in self._opened) >= _MOST_OPEN:
            raise Superseded(f"tasks of {agent} use {_MOST_OPEN} releases", wait_us=_RETRY_US)

    async def _close_unused(self, key: tuple[str, str], idle_us: int) -> None:
        """Let go of a release's code, unless a task uses it or did in the last `idle_us`."""
        async with self._locks[key]:
            opened = self._opened.get(key)
            if opened is None:
                return
            runs = self.dispatcher.active_runs.values()
            is_over = self.services.former_code.get(key) is not opened.code
            is_idle = self.services.clock.monotonic_us() - self._used_us[key] >= idle_us
            if (is_over or is_idle) and all(context.code is not opened.code for context in runs):
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
