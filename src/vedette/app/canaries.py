"""Canaries: other releases that run beside an agent's, for a share of its keys.

A canary is what the ledger says it is: `canary.started` begins it, and what both sides did since is
read off the entries after it. The engine ends it with `canary.aborted` where the canary does
worse (`vedette.operations.canary_comparison`), or with `canary.ended`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct, field

from vedette.app.canary_code import OpenedCode
from vedette.config.agent_snapshot import load_released_agent
from vedette.domain.agent import Agent, Canary
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadCommand, StoreFailed, Unavailable, VedetteError
from vedette.domain.entry import CANARY_KINDS, Body, Draft
from vedette.domain.identity import ENGINE
from vedette.engine.reservation import find_budget_gap
from vedette.operations.canary_comparison import COSTS, Comparison, Look
from vedette.operations.commands import Commands, Order
from vedette.operations.release_comparison import find_wider_requests

if TYPE_CHECKING:
    from vedette.app.releases import Releases

VERBS: Mapping[str, Mapping[str, type]] = {
    "agent_canary": {"agent": str, "share_milli": int, "for_us": int, "min_runs": int},
    "agent_canary_end": {"agent": str},
}
NEEDED = dict.fromkeys(VERBS, "agent")

FOR_US = 2 * 3_600_000_000
MIN_RUNS = 50
MAX_SHARE_MILLI = 500
_MAX_FOR_US = 31 * 86_400_000_000
_EVERY_S = 1.0
# How many entries are read at a time, before others have their turn of the loop.
_SLICE = 100
# How long what a canary is at may take to end before its workers are.
_LINGER_S = 30.0
_READ_KINDS = (
    "turn.reasoned", "run.closed", "run.dead", "run.corrected", "action.decided",
    "effect.failed", "effect.unknown", "hold.denied", "hold.approved",
    "budget.settled",
)  # fmt: skip
_FAILURES = frozenset({"run.dead", "effect.failed", "effect.unknown"})


class CanaryTrial(Struct):
    """A canary that runs: its release, what it is compared with, and what it is to come to."""

    canary: Canary
    baseline: str
    until_us: int
    min_runs: int
    opened: OpenedCode
    comparison: Comparison
    last: Look | None = None

    @property
    def agent(self) -> Agent:
        """Return the canary as it is declared."""
        return self.canary.agent

    @property
    def is_faulty(self) -> bool:
        """Say whether its last look found the canary worse."""
        return self.last is not None and self.last.fault is not None

    def to_json(self) -> dict[str, Any]:
        """Return it as `status --json` prints it."""
        look = self.comparison.preview()
        return {
            "agent": self.agent.name,
            "release": self.baseline,
            "canary": self.agent.release,
            "entry": self.canary.since,
            "share_milli": self.canary.share_milli,
            "until": self.until_us,
            "min_runs": self.min_runs,
            **look.to_json(),
        }


class Canaries(Struct):
    """The canaries of one running fleet, by agent. Belongs to its event loop."""

    releases: Releases
    open_code: Callable[[Agent], Awaitable[OpenedCode]]
    running: dict[str, CanaryTrial] = field(default_factory=dict)
    _last_seq: int = 0
    _closing: set[asyncio.Task[None]] = field(default_factory=set)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _begun: asyncio.Event = field(default_factory=asyncio.Event)

    # --- a person's orders ----------------------------------------------------------------------

    async def start(
        self,
        order: Order,
        name: str,
        share_milli: int,
        for_us: int = FOR_US,
        min_runs: int = MIN_RUNS,
    ) -> dict[str, Any]:
        """Let the present content of an agent's folder run beside its release.

        Raises as `Releases.release`; then nothing was changed.
        """
        self.releases.check_order(order, name, "agent_canary")
        _check_numbers(share_milli, for_us, min_runs)
        self._refuse_place(name)
        services = self.releases.services
        async with self.releases.order_lock:
            if name in self.running:
                mend = "end it first: vedette agent canary --end"
                raise BadCommand(f"{name} has a canary already", mend=mend)
            current, made = services.fleet.agent(name), self.releases.read_folder(name)
            if made.release == current.release:
                mend = "change it, or see `vedette agent diff`"
                raise BadCommand(f"the folder of {name} is the release that runs", mend=mend)
            self._refuse_changes(current, made)
            opened = await self._open(made)
            until_us = services.clock.now_us() + for_us
            fields = {
                "agent": name, "release": made.release, "what": current.release,
                "share_milli": share_milli, "until": until_us, "limit": min_runs,
                "actor": str(order.principal),
            }  # fmt: skip
            # Until the canary is in its place nothing of its keys is begun, and nothing is read.
            services.stops.pause(name, "canary")
            try:
                async with self._lock:
                    started = Draft("canary.started", fields, body=order.body())
                    since = await self._record(started, order.command_id)
                    trial = _make_canary(made, opened, {**fields, "seq": since})
                    self._put(trial)
            except BaseException:
                await opened.close()
                raise
            finally:
                services.stops.unpause(name, "canary")
        return {**trial.to_json(), "wider": find_wider_requests(current, made)}

    async def _record(self, draft: Draft, command: str | None) -> int:
        """Make a canary's start or end durable; return its entry. Raises as the store does."""
        store = self.releases.services.store
        before = store.ledger.last_seq()
        try:
            return await store.commands.append_entries([draft], command=command)
        except StoreFailed:
            # A commit may have stood although it raised: then it is so, as a restart would say.
            for seq, raw, _, _ in store.ledger.walk((draft.kind,), before):
                entry = orjson.loads(raw)
                if all(entry.get(name) == value for name, value in draft.fields.items()):
                    return seq
            raise

    async def end(self, order: Order, name: str) -> dict[str, Any]:
        """End an agent's canary; its keys are the release's again."""
        self.releases.check_order(order, name, "agent_canary_end")
        async with self._lock:
            trial = self.running.get(name)
            if trial is None:
                raise BadCommand(f"{name} has no canary")
            look = trial.comparison.preview()
            fields = {"outcome": "person", "actor": str(order.principal)}
            body = {"reason": order.reason, **look.to_json()}
            await self._end(trial, "canary.ended", fields, body, order.command_id)
        return {"agent": name, "release": trial.baseline, **look.to_json()}

    def _refuse_place(self, name: str) -> None:
        settings = self.releases.settings
        if settings.store.visit:
            raise Unavailable("a canary runs in a running fleet", mend="start it: vedette run")
        if self.releases.services.store.cluster.multi_worker:
            what = "a store of several workers takes no canary: they share no look at the ledger"
            raise BadCommand(what, mend="release it to all with `vedette agent release`")
        if settings.deployment.gateway.is_remote(name):
            what = f"{name} is judged on another host, which has one release of it"
            raise BadCommand(what, mend="release it with `vedette agent release`")

    def _refuse_changes(self, current: Agent, made: Agent) -> None:
        self.releases.refuse_fixed(current, made)
        where = f"{made.name}/agent.yaml"
        if made.last_reasoner not in ("judge", "adk"):
            what = f"{made.last_reasoner} reasons for {made.name}, and has one release of it"
            raise BadCommand(what, where=where, mend="release it with `vedette agent release`")
        same = {"subscriptions": "triggers", "scopes": "memory"}
        changed = [same[name] for name in same if getattr(current, name) != getattr(made, name)]
        if changed:
            what = f"a canary cannot change {', '.join(changed)}: both sides see the same"
            raise BadCommand(what, where=where, mend="release it with `vedette agent release`")

    async def _open(self, agent: Agent) -> OpenedCode:
        try:
            return await self.open_code(agent)
        except VedetteError as error:
            raise BadCommand(error.what, where=error.where, mend=error.mend) from error
        except Exception as error:
            # Whatever the canary's code raised in its worker.
            what, where = f"{type(error).__name__}: {error}", f"{agent.name}/judge.py"
            raise BadCommand(what, where=where, mend="correct the agent's code") from error

    # --- what the ledger says -------------------------------------------------------------------

    async def restore(self) -> list[str]:
        """Take up the canaries that the ledger says run; return what a person should see of it."""
        store, told = self.releases.services.store, []
        open_entries: dict[str, dict[str, Any]] = {}
        for _, raw, _, _ in store.ledger.walk(CANARY_KINDS):
            entry = orjson.loads(raw)
            open_entries.pop(entry["agent"], None)
            if entry["kind"] == "canary.started":
                open_entries[entry["agent"]] = entry
        for name, entry in open_entries.items():
            why = await self._take_up(name, entry)
            if why is not None:
                told.append(f"the canary of {name} is over: {why}")
                fields = {"agent": name, "release": entry["release"], "what": entry["what"],
                          "outcome": "release", "actor": str(ENGINE)}  # fmt: skip
                ended = Draft("canary.ended", fields, body=Body(canonical_json({"reason": why})))
                with suppress(StoreFailed):  # the next start finds the same, and says so then
                    await store.commands.append_entries([ended])
        return told

    async def _take_up(self, name: str, entry: Mapping[str, Any]) -> str | None:
        """Take up a canary; return why it cannot go on."""
        agent = self.releases.services.fleet.agents.get(name)
        if agent is None or agent.release != entry["what"]:
            return "another release of it was made"
        try:
            made = load_released_agent(self.releases.settings, name, entry["release"])
            if made is None:
                return "its files are not kept"
            self._refuse_place(name)
            self._refuse_changes(agent, made)
            self._put(_make_canary(made, await self._open(made), entry))
        except VedetteError as error:
            return str(error)
        return None

    def _put(self, trial: CanaryTrial) -> None:
        """Let a canary run. Nothing is awaited: no turn sees half of it."""
        services, name = self.releases.services, trial.agent.name
        since = trial.canary.since
        self._last_seq = min(self._last_seq, since) if self.running else since
        self.running[name] = trial
        self._begun.set()
        services.canary_code[name] = trial.opened.code
        services.fleet.canaries[name] = trial.canary

    async def tick(self) -> list[str]:
        """Read on, and end what is to end; return what a person should see. Raises StoreFailed."""
        if not self.running:
            return []
        async with self._lock:
            await self._read_on()
            told = [await self._judge(trial) for trial in list(self.running.values())]
        return [line for line in told if line]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the canaries that run, as `status --json` prints them."""
        return [trial.to_json() for trial in self.running.values()]

    async def watch(self, trouble: Callable[[str], None]) -> None:
        """Compare the canaries for as long as the fleet runs."""
        while True:
            if not self.running:
                self._begun.clear()
                await self._begun.wait()
            await asyncio.sleep(_EVERY_S)
            with suppress(StoreFailed):  # it is asked again
                for line in await self.tick():
                    trouble(line)

    async def _read_on(self) -> None:
        store = self.releases.services.store
        keys: dict[str, str] = {}
        while True:
            count = 0
            agents = [f'"agent":"{name}"'.encode() for name in self.running]
            for seq, raw, _, _ in store.ledger.walk(_READ_KINDS, self._last_seq):
                self._last_seq, count = seq, count + 1
                if not any(agent in raw for agent in agents):
                    continue
                entry = orjson.loads(raw)
                trial = self.running.get(entry.get("agent", ""))
                if trial is not None and not trial.is_faulty:
                    self._take_in(trial, entry, keys)
                    if trial.comparison.is_due:
                        # Here, not later: whoever reads this again makes the same looks.
                        trial.last = trial.comparison.look()
                if count == _SLICE:
                    break
            if count < _SLICE:
                return
            await asyncio.sleep(0)

    def _take_in(self, trial: CanaryTrial, entry: Mapping[str, Any], keys: dict[str, str]) -> None:
        if entry["seq"] <= trial.canary.since or entry.get("about", 0) <= trial.canary.since:
            return  # of a run that was begun before
        runs, id, kind = self.releases.services.store.runs, entry.get("run"), entry["kind"]
        if id is None:
            return
        if (key := keys.get(id)) is None:
            run = runs.run(id)
            if run is None:
                return
            key = keys[id] = run.key
        comparison = trial.comparison
        if kind == "turn.reasoned" and entry["turn"] == 1:
            event = runs.event_at(entry["about"]) if entry.get("label") == "undo" else None
            if event is not None and event.is_undo:
                comparison.mark(key, "corrections")
            else:
                comparison.count_run(key)
        elif kind == "run.closed" and "confidence_milli" in entry:
            comparison.count_run(key)
        elif kind in _FAILURES:
            if kind == "run.dead" and (dead := runs.run(id)) is not None and not dead.turn:
                comparison.count_run(key)
            comparison.mark(key, "errors")
        elif kind == "action.decided":
            # In mode observe it is denied, and what it would have been is told.
            outcome = entry.get("would") or entry["outcome"]
            if outcome == "permit":
                comparison.spend(key, "actions", 1)
            elif outcome == "hold" and entry.get("wait") in ("approval", None):
                comparison.mark(key, "holds")
        elif kind == "hold.denied" or (kind == "run.corrected" and entry["outcome"] == "wrong"):
            comparison.mark(key, "corrections")
        elif kind == "budget.settled":
            for unit, amount in (entry.get("spend") or {}).items():
                if unit in COSTS:
                    comparison.spend(key, unit, amount)

    async def _judge(self, trial: CanaryTrial) -> str | None:
        """End a canary that is to end; return what a person should see of it."""
        services, name = self.releases.services, trial.agent.name
        if services.fleet.canaries.get(name) is not trial.canary:
            # Another release was made, and has taken its place already.
            await self._end(trial, "canary.ended", {"outcome": "release"}, {})
            return f"{name}: its canary is over, as another release of it was made"
        is_over = services.clock.now_us() >= trial.until_us
        if (gap := find_budget_gap(services.budgets, trial.agent)) is not None:
            await self._end(trial, "canary.aborted", {"rule": "budget"}, {"reason": gap})
            return f"{name}: its canary was aborted: {gap}"
        if trial.is_faulty:
            return await self._abort(trial)
        if (ceiling := trial.opened.code.ceiling) is not None:
            body = {"reason": ceiling, **trial.comparison.preview().to_json()}
            await self._end(trial, "canary.aborted", {"rule": "ceiling"}, body)
            return f"{name}: its canary was aborted: {ceiling}, which is the agent's ceiling"
        return await self._finish(trial) if is_over else None

    async def _abort(self, trial: CanaryTrial) -> str:
        """End a canary that its last look found worse."""
        look = trial.last
        assert look is not None
        await self._end(trial, "canary.aborted", {"rule": look.fault}, look.to_json())
        return f"{trial.agent.name}: {_abort_text(trial, look)}"

    async def _finish(self, trial: CanaryTrial) -> str:
        """End a canary whose time is over. Whether it becomes the release, a person says."""
        name = trial.agent.name
        trial.last = look = trial.comparison.look()
        if look.fault is not None:
            return await self._abort(trial)
        if look.canary.runs < trial.min_runs or not look.can_find_fault:
            await self._end(trial, "canary.ended", {"outcome": "few"}, look.to_json())
            few = f"{look.canary.runs} runs of {look.canary.keys} keys"
            return f"{name}: its canary is over; {few} prove nothing"
        await self._end(trial, "canary.ended", {"outcome": "ask"}, look.to_json())
        return f"{name}: its canary is over without a fault; `vedette agent release {name}`"

    async def _end(
        self,
        trial: CanaryTrial,
        kind: str,
        fields: Mapping[str, Any],
        body: Mapping[str, Any],
        command: str | None = None,
    ) -> None:
        """Make the end of a canary durable, then give its keys back."""
        services, name = self.releases.services, trial.agent.name
        about = {"agent": name, "release": trial.agent.release, "what": trial.baseline}
        draft = Draft(
            kind, {**about, "actor": str(ENGINE), **fields}, body=Body(canonical_json(dict(body)))
        )
        await self._record(draft, command)
        del self.running[name]
        if services.fleet.canaries.get(name) is trial.canary:
            del services.fleet.canaries[name], services.canary_code[name]
        closing = asyncio.create_task(self._close_code(trial), name=f"canary of {name}")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close_code(self, trial: CanaryTrial) -> None:
        """Let go of a canary's workers once nobody waits for them, in a bounded time.

        A call that has begun has its tool's time to end: cut off, nobody would know what it did.
        """
        longest_us = max((tool.timeout_us for tool in trial.agent.tools.values()), default=0)
        try:
            async with asyncio.timeout(max(_LINGER_S, longest_us / 1e6)):
                while self._is_at_work(trial):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pass
        finally:
            await trial.opened.close()

    def _is_at_work(self, trial: CanaryTrial) -> bool:
        """Say whether a canary's code is asked or called by a run that it has begun."""
        dispatcher, code = self.releases.dispatcher, trial.opened.code
        if any(context.code is code for context in dispatcher.active_runs.values()):
            return True
        return any(map(trial.canary.has_key, dispatcher.judged_keys(trial.agent.name)))

    async def close(self) -> None:
        """Let go of all canaries' workers; the canaries go on with the next start."""
        for task in list(self._closing):
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        for trial in self.running.values():
            await trial.opened.close()
        self.running.clear()


def _make_canary(made: Agent, opened: OpenedCode, entry: Mapping[str, Any]) -> CanaryTrial:
    canary = Canary(made, entry["seq"], entry["share_milli"])
    return CanaryTrial(
        canary,
        entry["what"],
        entry["until"],
        entry["limit"],
        opened,
        Comparison(canary.has_key),
    )


def _check_numbers(share_milli: int, for_us: int, min_runs: int) -> None:
    if not 1 <= share_milli <= MAX_SHARE_MILLI:
        what = f"a share of {share_milli / 10:g}% is none that can be compared"
        raise BadCommand(what, mend="between 0.1% and 50%")
    if not 1_000_000 <= for_us <= _MAX_FOR_US:
        raise BadCommand("a canary takes between a second and 31 days", mend="--for 2h")
    if not 1 <= min_runs < 2**31:
        raise BadCommand("at least one run", mend="--min-runs 50")


def _abort_text(trial: CanaryTrial, look: Look) -> str:
    fault = look.fault or ""
    ours, theirs = look.canary, look.baseline
    return (
        f"its canary was aborted for {fault}: {ours.marked[fault]} of {ours.keys} keys, where "
        f"release {trial.baseline[:12]} has {theirs.marked[fault]} of {theirs.keys}"
    )


async def dispatch(
    commands: Commands, verb: str, order: Order, args: Mapping[str, Any]
) -> dict[str, Any]:
    """Have `Canaries` carry out a verb of VERBS. Raises as its methods do."""
    if commands.canaries is None:
        raise BadCommand("this fleet's agents are released elsewhere")
    given = dict(args)
    if verb == "agent_canary_end":
        return await commands.canaries.end(order, given["agent"])
    if "share_milli" not in given:
        raise BadCommand("agent_canary: share_milli is missing", mend="give share_milli")
    return await commands.canaries.start(order, given.pop("agent"), **given)
