"""Plays one day of the month upon the disks that the day before left.

What outlives the day is in the `Record`; what the engine left is in the machine's folder.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.month.content import ASKS, OBSERVES, WOKEN_TOGETHER
from tests.month.plan import DAY_S, HOUR_S, DayPlan
from tests.month.record import Notice, Record, TaskPlan, Undo, share
from tests.month.world import MonthTargets, OnCall, Provider
from tests.simulation.engine import Life, forget_agent, read_once, settings_of
from tests.simulation.fleet import Manners, event_of, text_of
from tests.simulation.fleet_images import store_of
from tests.simulation.history import NEVER, Event, Fault, Want
from tests.simulation.history import Order as Told
from tests.simulation.loop import BOOT_S, EPOCH_US, Deadlock, SimLoop
from tests.simulation.plan import HELD, ROW, Operation
from tests.simulation.play import Play
from tests.simulation.server import in_place
from tests.simulation.world import closed_world, collect_histories

from vedette.domain.base.errors import AlreadyDone, BadCommand, Temporary
from vedette.domain.event import ENVELOPE
from vedette.domain.event import Event as Wire
from vedette.engine.scheduler import wakeups
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.ledger.history.lists import hold_item
from vedette.ledger.history.tasks import list_tasks
from vedette.operations.commands import Order
from vedette.testing.harness import TESTER

# The first midnight (UTC) after the simulation's time begins.
FIRST_S = BOOT_S + (DAY_S - EPOCH_US / 1e6 % DAY_S)
# A day takes this much more than its own time: calls that its deaths left come to their end.
_AFTER_S = 10.0
_TICK_S, _CLERK_S, _PERSON_S = 240.0, 1800.0, 60.0
# At rest an engine looks for what comes due within so long, and then rests as long: 1 s in life,
# which is most of what a quiet day costs here. What comes due, or is committed, wakes it as ever.
_REST_S = 10.0
_MOST_STEPS = 60_000_000
_GONE = (ConnectionError, Temporary)


def midnight_s(day: int) -> float:
    """Return the instant at which a day of the month begins, by the loop's clock."""
    return FIRST_S + day * DAY_S


def wall_us(at_s: float) -> int:
    """Return an instant of the loop's clock in microseconds, UTC."""
    return EPOCH_US + round((at_s - BOOT_S) * 1e6)


class MonthLife(Life):
    """A life with what a run has beside the line: schedules, and the model of the month."""

    def __init__(
        self, loop: SimLoop, name: str, settings: Any, provider: Provider, starts: list[float]
    ) -> None:
        super().__init__(loop, name, settings, mortal=True)
        self._provider, self._starts = provider, starts

    async def open(self) -> None:
        """Open the fleet; what that took of the processor is noted, in seconds."""
        began = time.process_time()
        await super().open()
        self._starts.append(time.process_time() - began)

    async def _open(self) -> Any:
        from vedette.adapters.reasoners.adk.reasoner import AdkReasoner
        from vedette.adapters.schedule.source import ScheduleSource
        from vedette.app.reasoner_plugins import _token_bounds
        from vedette.app.sources import build_outcome_reader

        app = await super()._open()
        services = app.services
        asking = [one for one in services.fleet.agents.values() if one.last_reasoner == "adk"]
        services.reasoners = {
            **services.reasoners,
            "adk": AdkReasoner(
                {one.name: Path(one.folder) for one in asking},
                model_for=self._provider.model_for,
                bounds={one.name: _token_bounds(one) for one in asking},
                releases={one.name: one.release for one in asking},
            ),
        }
        schedules = ScheduleSource(services.fleet, services.clock, build_outcome_reader(app))

        async def tick() -> None:
            while True:
                with suppress(Temporary):
                    await schedules.wake(app.intake, services.clock.now_us())
                await asyncio.sleep(_TICK_S)

        task = asyncio.create_task(tick())
        task.add_done_callback(lambda ended: self._failed("schedules", ended.exception()))
        return app


class Day(Play):
    """One day of the month, over the content of `content`, in the folder of the month's machines.

    The last day is followed by the time that everything open needs to end (`ends`).
    """

    def __init__(
        self, day: DayPlan, record: Record, content: Path, folder: Path, *, ends: bool = False
    ) -> None:
        self.began_s = midnight_s(day.number)
        start_s = max(self.began_s, record.end_s + 0.001)
        loop = SimLoop(day.plan.seed, start_s, most_steps=_MOST_STEPS)
        super().__init__(day.plan, content, folder, loop)
        self.day, self.record, self.ends = day, record, ends
        self.history.events, self.history.orders = record.events, record.orders
        self.history.faults, self.history.refused = record.faults, record.refused
        self.history.errors = record.errors
        self.events = {}
        self.commands = record.commands
        self.numbers = list(record.machines) or [0]
        self.boots = list(record.boots) or [0]
        draw = random.Random(f"{day.plan.seed}/provider")
        self.provider = Provider(self.loop, record, draw)
        self.targets = self.places = MonthTargets(
            self.loop, day.plan.seed, self.durable.head, self.trace, record
        )
        self.starts: list[float] = []
        self.on_call = OnCall()
        self.on_call.record = record.hooks

    def run(self) -> Any:
        """Play it; what came of it is in the record and in the machine's folder."""
        read_once()
        rest_s, wakeups.REST_S = wakeups.REST_S, _REST_S
        with closed_world(self.loop, self.day.plan.seed, self.points.reach), in_place():
            try:
                self.loop.run(self.main(), 6 * DAY_S)
            except (Deadlock, TimeoutError) as error:
                self.record.errors.append(f"day {self.day.number}: {type(error).__name__} {error}")
            finally:
                wakeups.REST_S = rest_s
                self.record.end_s = self.loop.time()
                self.loop.close()
                self.durable.close()
                self.disk.close()
                self.on_call.close()
        self.record.errors += [f"uncaught: {error!r}" for error in self.loop.errors]
        self.record.commands = self.commands
        self.record.machines, self.record.boots = list(self.numbers), list(self.boots)
        collect_histories()

    def make_life(self, folder: Path) -> Life:
        """Return a life over a state folder, not opened."""
        settings = settings_of(self.content, folder, self.targets, store_of(self.server, folder))
        settings = replace(
            settings,
            targets={**settings.targets, "oncall": {"kind": "webhook", "url": self.on_call.url}},
        )
        return MonthLife(self.loop, folder.name, settings, self.provider, self.starts)

    async def main(self) -> None:
        """Play the day from midnight to midnight."""
        await asyncio.gather(*(self.boot(slot) for slot in range(len(self.lives))))
        if not self.up():
            raise RuntimeError(f"nobody comes up: {self.lines[-1:]}")
        acts: list[Coroutine[Any, Any, Any]] = []
        sources: dict[str, list[Operation]] = {}
        for one in self.plan.operations:
            if one.do == "deliver":
                sources.setdefault(one.what, []).append(one)
            else:
                acts.append(self.operate(within_day(one)))
        acts += [self.source(name, operations) for name, operations in sources.items()]
        acts += [self.points_of(), self.letters_of()]
        world = [self.loop.spawn(None, act) for act in acts]
        clerks = self.loop.spawn(None, self.clerks())
        await self.until(DAY_S)
        unfinished = [task for task in world if not task.done()]
        if unfinished:
            await asyncio.wait(unfinished, timeout=30.0)
        for task in world:
            if task.done() and not task.cancelled() and task.exception() is not None:
                self.record.errors.append(f"the world broke: {task.exception()!r}")
        if self.ends:
            await self.finish()
        clerks.cancel()
        for slot, life in enumerate(self.lives):
            if life is not None and not life.owner.dead:
                self.end(slot)
        await asyncio.sleep(_AFTER_S)

    async def finish(self) -> None:
        """End all faults, answer all that is asked, and let everything end: up to four days."""
        self.targets.manners = Manners(late=0.0)
        self.provider.away = self.provider.lost = 0.0
        self.on_call.away = False
        await self.do_publish(Operation(0.0, "publish", "base"))
        end_s = self.loop.time() + 4 * DAY_S
        tried: set[str] = set()
        going = "SELECT 1 FROM run WHERE state IN ('ready','waiting') LIMIT 1"
        while self.loop.time() < end_s and self.durable.rows(going):
            await asyncio.sleep(600.0)
            for scope, name in self.durable.rows("SELECT scope, name FROM stop"):
                await self.do_resume(Operation(0.0, "resume", f"{scope}:{name}"))
            await self.answer_holds(hours=0.0)
            await self.answer_tasks(hours=0.0)
            await self.redrive(tried)
        self.history.end_s = self.loop.time()

    async def operate(self, one: Operation) -> None:
        """Do one thing of the plan."""
        await self.until(one.at_s)
        act: Callable[[Operation], Coroutine[Any, Any, None]] = getattr(self, f"do_{one.do}")
        from_s = self.loop.time()
        await act(one)
        if one.for_s or one.do in ("kill", "point", "cut", "io", "death"):
            self.record.faults.append(Fault(one.do, "w0", from_s, self.loop.time()))

    # --- what comes in ------------------------------------------------------------------------

    async def deliver(self, source: str, deliveries: list[Any]) -> None:
        """Deliver events of the keepers until told that they are durable."""
        events = [event_of(each, source) for each in deliveries]
        for each, event in zip(deliveries, events, strict=True):
            if each.name not in self.events:
                agents = WOKEN_TOGETHER if each.wakes == "all" else (each.wakes,)
                wants = () if each.wakes == OBSERVES else tuple(
                    Want(tool, text_of(each, at), row=tool == ROW,
                         held=tool == HELD or each.wakes == ASKS)
                    for at, tool in enumerate(each.tools)
                )  # fmt: skip
                known = Event(event.key, agents, each.key, each.value, wants, self.loop.time())
                self.events[each.name] = known
                self.record.events.append(known)
        life = await self.send(events)
        for each in deliveries:
            known = self.events[each.name]
            if known.told_s == NEVER:
                known.told_s, known.by = self.loop.time(), life.owner.name

    async def send(self, events: list[Wire]) -> Life:
        """Hand events over until somebody says that they are durable."""
        while True:
            life = await self.anybody()
            try:
                await self.within(life.do(life.app.intake.accept(events)), 3.0)
            except _GONE:
                await asyncio.sleep(self.draw.uniform(0.02, 2.0))
                continue
            return life

    async def points_of(self) -> None:
        """Deliver the points of the series."""
        for at, (at_s, series, value) in enumerate(self.day.points):
            await self.until(at_s)
            name = f"{series}:{self.day.number:02}{at:05}"
            event = Wire("csv:series", name, "metric.point", series, None, {"value": value},
                         vouched=ENVELOPE)  # fmt: skip
            self.record.sent["metric.point"] = self.record.sent.get("metric.point", 0) + 1
            await self.send([event])

    async def letters_of(self) -> None:
        """Deliver the letters that the desk's model answers."""
        for at, at_s in enumerate(self.day.letters):
            await self.until(at_s)
            name = f"letter{self.day.number:02}{at:03}"
            event = Wire("post", name, "desk.letter", f"from{at % 3}", None,
                         {"text": f"Is there a berth, {name}?"}, vouched=ENVELOPE)  # fmt: skip
            self.record.sent["desk.letter"] = self.record.sent.get("desk.letter", 0) + 1
            await self.send([event])

    async def do_duplicate(self, one: Operation) -> None:
        """Deliver once more what was delivered today."""
        if self.events:
            known = [each for each in self.plan.deliveries if each.name in self.events]
            each = self.draw.choice(known)
            for operation in self.plan.operations:
                if each in operation.events:
                    await self.deliver(operation.what, [each])

    # --- people -------------------------------------------------------------------------------

    async def tell(self, verb: str, **args: Any) -> Any:
        """Give an order until it is answered; None if people were told no, and why is kept."""
        self.commands += 1
        order = Order(TESTER, "the plan says so", f"cmd-{self.commands}")
        while True:
            life = await self.anybody()
            try:
                work = dispatch(life.app.commands, verb, order, args)
                return await self.within(life.do(work), _PERSON_S)
            except AlreadyDone:
                return {}
            except BadCommand as error:
                self.record.refusals.append((verb, str(error)))
                self.trace(f"person is refused {verb} {args}: {error}")
                return None
            except _GONE:
                await asyncio.sleep(self.draw.uniform(0.02, 0.5))

    async def clerks(self) -> None:
        """Answer what waits for people, by day; some of it never."""
        while True:
            await asyncio.sleep(_CLERK_S)
            hour = (self.loop.time() - self.began_s) / HOUR_S % 24
            if 8 <= hour < 18:
                await self.answer_holds()
                await self.answer_tasks()
                await self.redrive(self.record.redriven)

    async def answer_holds(self, hours: float = 20.0) -> None:
        """Answer the open holds that have waited as long as somebody takes for each."""
        holds = "SELECT id, effect, run, tool FROM action WHERE hold='open' AND waits='approval'"
        for name, effect, _, tool in self.durable.rows(holds):
            key = name.removeprefix("act_")
            luck = share(self.record.seed, "answer", key)
            asked_s = self.record.asked_since.setdefault(f"{name} {effect}", self.loop.time())
            if hours and luck < 0.04 and effect != "unknown":
                continue
            if self.loop.time() - asked_s < luck * hours * HOUR_S:
                continue
            says_yes = tool == "task.finish" or share(self.record.seed, "yes", key) < 0.85
            await self.answer_one(name, key, effect, says_yes)

    async def answer_one(self, name: str, key: str, effect: str, says_yes: bool) -> None:
        """Answer one hold; of an unknown outcome by what the target's record says."""
        verb = "approve" if says_yes else "deny"
        if effect == "unknown":
            verb = "deny" if self.targets.did(key) else "approve"

        async def give(life: Life, by: Any) -> Any:
            row = life.app.store.runs.action(name)
            if row is None:
                raise BadCommand("the store went back, and knows nothing of it")
            shown = hold_item(life.app.store, row, life.app.services.clock.now_us())
            return await getattr(life.app.commands, verb)(by, name, shown["shown_digest"])

        await self.order(Told(verb, 0.0, what=key), give)

    async def answer_tasks(self, hours: float = 6.0) -> None:
        """Speak to the tasks that wait for a person."""
        by_run = {plan.run: plan for plan in self.record.tasks.values() if plan.run}
        waits = "SELECT id, turn FROM run WHERE state='waiting' AND waits='person'"
        for run, turn in self.durable.rows(waits):
            asked_s = self.record.asked_since.setdefault(f"{run} {turn}", self.loop.time())
            luck = share(self.record.seed, run, turn)
            if run not in by_run or self.loop.time() - asked_s < luck * hours * HOUR_S:
                continue
            if luck < 0.06:
                await self.cancel(by_run[run])
            elif luck < 0.6:
                await self.tell("work_steer", run=run, note="Go on, please.")
            else:
                await self.tell("work_resume", run=run)

    async def redrive(self, tried: set[str]) -> None:
        """Take up again what ended as a dead letter, once each."""
        for (run,) in self.durable.rows("SELECT id FROM run WHERE state='dead'"):
            if run in tried:
                continue
            tried.add(run)
            await self.tell("redrive", runs=[run])

    async def do_start(self, one: Operation) -> None:
        """Give a task."""
        plan = next(task for task in self.day.tasks if task.name == one.what)
        self.record.tasks[plan.name] = plan
        self.places.refuse(plan)
        conditions: list[dict[str, Any]] = []
        if plan.letters:
            conditions.append(
                {
                    "name": "sent",
                    "action": "wire.send",
                    "at_least": plan.letters - len(set(plan.asks)),
                }
            )
        if plan.person:
            conditions.append({"name": "seen", "person": "has seen it"})
        inputs = {
            "task": plan.name, "items": list(plan.items), "claims": plan.claims,
            "asks": list(plan.asks), "stands": list(plan.stands), "repeats": list(plan.repeats),
            "delegates": list(plan.delegates), "waits": list(plan.waits),
        }  # fmt: skip
        given: dict[str, Any] = {"inputs": inputs} if plan.items else {}
        if conditions:
            given["conditions"] = conditions
        if plan.deadline:
            given["deadline"] = plan.deadline
        said = await self.tell("work_start", agent=plan.agent, goal=plan.goal, **given)
        while said == {}:  # it was carried out, and the answer was lost: it is found by its goal
            said = {"run": await self.find_task(plan)}
        if said is not None:
            plan.run = said["run"]

    async def find_task(self, plan: TaskPlan) -> str:
        """Return the run of a task whose receipt was lost, as `work list` shows it."""
        while True:
            life = await self.anybody()
            with suppress(*_GONE):
                agents = life.app.services.fleet.agents
                for one in list_tasks(life.app.store, agents, ended=True, limit=500):
                    if f"[{plan.name}]" in str(one):
                        return str(one["run"])
            await asyncio.sleep(1.0)

    async def say(self, one: Operation, verb: str, **more: Any) -> None:
        plan = self.record.tasks.get(one.what)
        if plan is not None and plan.run:
            await self.tell(verb, run=plan.run, **more)

    async def do_tide(self, one: Operation) -> None:
        """Let the tide turn for a task that may wait for it."""
        event = Wire("harbour", f"tide-{one.what}", "tide.turned", "tide", None,
                     {"for": one.what}, vouched=ENVELOPE)  # fmt: skip
        await self.send([event])

    async def do_pause(self, one: Operation) -> None:
        await self.say(one, "work_pause")

    async def do_go_on(self, one: Operation) -> None:
        await self.say(one, "work_resume")

    async def do_steer(self, one: Operation) -> None:
        await self.say(one, "work_steer", note="Mind the tide.")

    async def do_cancel(self, one: Operation) -> None:
        plan = self.record.tasks.get(one.what)
        if plan is not None and plan.run:
            await self.cancel(plan)

    async def cancel(self, plan: TaskPlan) -> None:
        """End a task; nothing of it begins after the answer."""
        if await self.tell("work_cancel", run=plan.run) is not None:
            plan.cancelled_s = self.loop.time()

    async def do_erase(self, one: Operation) -> None:
        """Erase an event of today."""
        told = [event for event in self.events.values() if event.told_s < NEVER]
        if told:
            await self.erase(self.draw.choice(told).ref)

    async def erase(self, ref: str) -> None:
        await self.order(
            Told("erase", 0.0, what=ref),
            lambda life, by: life.app.commands.erase(by, event=ref, deny_holds=True),
        )

    async def do_undo(self, one: Operation) -> None:
        """Take back a flag that a reader raised."""
        done = [
            (act.key, act.text)
            for act in self.record.acts[-4000:]
            if act.what == "told" and act.tool == "flag.raise"
            and act.key not in {undo.key for undo in self.record.undone}
        ]  # fmt: skip
        if done:
            key, text = self.draw.choice(sorted(set(done)))
            if await self.tell("undo", effect=f"act_{key}") is not None:
                self.record.undone.append(Undo(key, text))

    async def do_raise(self, one: Operation) -> None:
        """Give more room for some hours."""
        which = {"agent": one.what} if one.what else {}
        from_us = self.loop.now_us()
        said = await self.tell("budget_raise", for_us=int(5 * HOUR_S * 1e6), **which)
        if said:
            more = said["raised"].get("actions.day", 0)
            self.record.raises.append((one.what, from_us, int(said["until"]), int(more)))

    async def do_promote(self, one: Operation) -> None:
        """Propose a notice as a person, and promote it."""
        # (What a letter asks, and the types of ticks and tasks: they are asked for by words.)
        text = f"Notice {self.day.number} for each letter, tick and task: no berth at low water."
        said = await self.tell(
            "memory_propose", into="harbour/notices", text=text, topics=["tides"]
        )
        if not said:
            return
        name = f"harbour/{said['candidate']}"
        asked_us = self.loop.now_us()
        if await self.tell("memory_approve", id=name) is not None:
            notice = Notice(name, promoted=(asked_us, self.loop.now_us()))
            self.record.notices.append(notice)

    async def do_withdraw(self, one: Operation) -> None:
        """Take back a notice that is in force."""
        live = [notice for notice in self.record.notices if notice.withdrawn is None]
        if live:
            notice = self.draw.choice(live)
            asked_us = self.loop.now_us()
            if await self.tell("memory_off", id=notice.name) is not None:
                notice.withdrawn = asked_us, self.loop.now_us()

    async def do_release(self, one: Operation) -> None:
        """Make another release of an agent, that does the same."""
        folder = self.content / "agents" / one.what
        (folder / "instruction.md").write_text(f"Do what the event says. Day {self.day.number}.\n")
        forget_agent(self.content, one.what)
        await self.tell("agent_release", agent=one.what)

    async def do_rollback(self, one: Operation) -> None:
        """Go back to the release before."""
        await self.tell("agent_rollback", agent=one.what)

    # --- faults of the world ------------------------------------------------------------------

    async def do_model(self, one: Operation) -> None:
        """Let the model's provider be away, or lose answers that it bills, for a while."""
        self.provider.away, self.provider.lost = 0.8, 0.3
        await asyncio.sleep(one.for_s)
        self.provider.away = self.provider.lost = 0.0

    async def do_hook(self, one: Operation) -> None:
        """Let the on-call webhook be away for a while."""
        self.on_call.away = True
        await asyncio.sleep(one.for_s)
        self.on_call.away = False


def within_day(one: Operation) -> Operation:
    """Return an operation of the day, at its end at the latest."""
    return dataclasses.replace(one, at_s=min(one.at_s, DAY_S - 90.0))
