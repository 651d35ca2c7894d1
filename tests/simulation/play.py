"""Plays a plan: sources, people and faults act on the lives of a cluster; what comes of it is told.

Nothing here belongs to an engine: all of it outlives every kill. What a source or a person was not
told they try again, with any worker that is up, as in life; a command under the same id.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulation.clock import SimClock
from tests.simulation.disk import SimDisk, octets_of
from tests.simulation.durable import Durable
from tests.simulation.engine import CrashPoints, Life, read_once, settings_of
from tests.simulation.fleet import (
    POLICIES,
    Manners,
    Targets,
    event_of,
    text_of,
    write_content,
    write_keys,
)  # fmt: skip
from tests.simulation.fleet_images import FleetImages, machine_of, store_of
from tests.simulation.history import NEVER, Event, Fault, History, Order, Want
from tests.simulation.loop import BOOT_S, Deadlock, Owner, SimLoop
from tests.simulation.model import Violation, judge
from tests.simulation.plan import AGENTS, DISK_FAULTS, HELD, ROW, Operation, Plan
from tests.simulation.server import Server, in_place
from tests.simulation.world import closed_world, collect_histories

from vedette.adapters.ledger_export import archived_part, checkpoint_size_before, write_segment
from vedette.domain.base.errors import AlreadyDone, BadCommand, Temporary, VedetteError
from vedette.ledger.history.lists import hold_item
from vedette.operations import commands as product
from vedette.store import spare_space
from vedette.testing.harness import TESTER

# How long all may take to end after the last fault, and how long a history may last at all.
BOUND_S = 60.0
_WHOLE_S = 300.0
# How long a source waits for an answer before it delivers again, a person before asking again.
_SOURCE_S, _PERSON_S = 3.0, 12.0
_GONE = (ConnectionError, Temporary)
# How much a history may write, and how often that is looked at.
_MOST_OCTETS, _LOOK_S = 256 << 20, 2.0
# How often a worker is started that does not come up. Each start leaves files behind.
_STARTS = 20
# So many histories leave files open that only the collector closes.
_COLLECT = 8
_SPARE = 1 << 16


@dataclass
class Played:
    """What came of a plan: its history, what is wrong with it, what was traced, what it took."""

    plan: Plan
    history: History
    wrong: list[Violation]
    lines: list[str] = field(repr=False)
    ledger: list[bytes] = field(repr=False)
    steps: int = 0
    seconds: float = 0.0

    @property
    def digest(self) -> str:
        """Return the digest of every byte that was traced and recorded."""
        whole = b"\n".join([*(line.encode() for line in self.lines), *self.ledger])
        return hashlib.sha256(whole).hexdigest()


def play(plan: Plan, content: Path, folder: Path) -> Played:
    """Play a plan over the fleet of `content`, in `folder`, and judge it."""
    read_once()
    return Play(plan, content, folder).run()


class Play:
    """One plan that is carried out. `loop` is a new one of the plan's seed unless it is given."""

    def __init__(
        self, plan: Plan, content: Path, folder: Path, loop: SimLoop | None = None
    ) -> None:
        self.plan, self.content, self.folder = plan, content, folder
        self.loop = loop or SimLoop(plan.seed)
        self.draw = random.Random(f"{plan.seed}/world")
        self.lines: list[str] = []
        self.history = History()
        self.server: Server | None = None
        if plan.store == "postgresql":
            self.server = Server(self.loop, folder, self.trace)
        self.durable = Durable(folder, self.server, lambda: self.numbers[0])
        self.targets = Targets(self.loop, plan.seed, self.durable.head, self.trace)
        watched = any(one.do in DISK_FAULTS for one in plan.operations)
        self.disk = SimDisk(str(folder), watched=watched)
        self.points = CrashPoints(self.loop)
        self.lives: list[Life | None] = [None] * plan.workers
        self.offsets, self.boots = [0] * plan.workers, [0] * plan.workers
        self.numbers = [0] * plan.workers
        self.events: dict[str, Event] = {}
        self.commands = 0
        self.image: tuple[float, Path] | None = None
        self.reorder_s = 0.0
        self.restoring = asyncio.Lock()  # nobody starts upon half a store

    def run(self) -> Played:
        with closed_world(self.loop, self.plan.seed, self.points.reach), in_place():
            try:
                self.loop.run(self.within_bounds(), _WHOLE_S)
            except Deadlock:
                self.history.errors.append("nobody is ready and nobody waits for an instant")
            except TimeoutError:
                self.history.errors.append(f"no end within {_WHOLE_S:.0f} s")
            except Exception as error:
                # What nobody outside may see, such as an error of a vendor's library.
                self.history.errors.append(f"an order ends in a traceback: {error!r}")
            finally:
                ledger = self.durable.collect(self.history)
                self.targets.collect(self.history)
                self.loop.close()
                self.durable.close()
                if self.server is not None:
                    self.server.close()
                self.disk.close()
        self.history.errors += [said for life in self.lives if life for said in life.errors]
        self.history.errors += [f"uncaught: {error!r}" for error in self.loop.errors]
        return Played(
            self.plan, self.history, judge(self.history), self.lines, ledger, self.loop.steps,
            self.history.end_s - BOOT_S,
        )  # fmt: skip

    def trace(self, line: str) -> None:
        self.lines.append(f"{self.loop.time():.6f} {line}")

    # --- the course of it ---------------------------------------------------------------

    async def within_bounds(self) -> None:
        """Play to the end, or until too much lies in memory."""
        whole = asyncio.ensure_future(self.main())
        while not whole.done() and (octets := octets_of(self.folder)) <= _MOST_OCTETS:
            await asyncio.wait({whole}, timeout=_LOOK_S)
        if whole.done():
            return whole.result()
        self.history.errors.append(f"the history grew to {octets} octets")

    async def main(self) -> None:
        await asyncio.gather(*(self.boot(slot) for slot in range(self.plan.workers)))
        self.began_s = self.loop.time()
        sources: dict[str, list[Operation]] = {}
        acts: list[Coroutine[Any, Any, None]] = []
        for one in self.plan.operations:
            if one.do == "deliver":
                sources.setdefault(one.what, []).append(one)
            else:
                acts.append(self.operate(one))
        acts += [self.source(name, operations) for name, operations in sources.items()]
        await asyncio.gather(*acts)
        await self.finish()

    async def until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, self.began_s + at_s - self.loop.time()))

    async def operate(self, one: Operation) -> None:
        await self.until(one.at_s)
        act: Callable[[Operation], Awaitable[None]] = getattr(self, f"do_{one.do}")
        from_s = self.loop.time()
        await act(one)
        if one.do not in ("stop", "resume", "publish", "answer", "erase", "rotate", "backup"):
            where = f"w{one.worker}"
            self.history.faults.append(Fault(one.do, where, from_s, self.loop.time()))

    async def finish(self) -> None:
        """End all faults, answer all that is asked, and give everything time to end."""
        self.targets.manners = Manners(late=0.0)
        end_s = self.loop.time() + BOUND_S
        while self.loop.time() < end_s:
            await asyncio.sleep(0.25)
            for scope, name in self.durable.rows("SELECT scope, name FROM stop"):
                await self.do_resume(Operation(0.0, "resume", f"{scope}:{name}"))
            await self.do_answer(Operation(0.0, "answer", "yes"))
            going = "SELECT 1 FROM run WHERE state IN ('ready','waiting') LIMIT 1"
            if not self.durable.rows(going):
                break
        self.history.end_s = self.loop.time()

    # --- lives --------------------------------------------------------------------------

    async def boot(self, slot: int) -> None:
        """Start a worker, a number of times until it comes up, as a person would."""
        troubles: set[str] = set()
        pause_s = 0.2
        for _ in range(_STARTS):
            async with self.restoring:
                folder = self.machine(slot)
            self.stamp(folder)
            life = self.make_life(folder)
            life.owner.wall_offset_us, life.owner.boots = self.offsets[slot], self.boots[slot]
            self.lives[slot] = life
            try:
                await life.open()
            except ConnectionError:  # killed meanwhile: whoever did it starts the next
                return
            except Exception as error:
                said = f"{type(error).__name__}: {error}".replace(str(self.folder), "")
                self.trace(f"{life.owner.name} does not come up: {said}")
                if not isinstance(error, VedetteError) and said not in troubles:
                    self.history.errors.append(f"a start ends in a traceback: {said}")
                troubles.add(said)
                self.end(slot)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 10.0)
                continue
            self.trace(f"{life.owner.name} is up")
            return
        self.history.errors.append(f"w{slot} has not come up in {_STARTS} starts")

    def make_life(self, folder: Path) -> Life:
        """Return a life over a state folder, not opened."""
        store = store_of(self.server, folder)
        settings = settings_of(self.content, folder, self.targets, store)
        mortal = any(one.do == "death" for one in self.plan.operations)
        return Life(self.loop, folder.name, settings, mortal=mortal)

    def machine(self, slot: int) -> Path:
        """Return the state folder of a worker's present or next life."""
        folder = machine_of(self.folder, slot, self.numbers[slot])
        if not folder.exists():
            write_keys(folder)
        return folder

    def stamp(self, folder: Path) -> None:
        """Let the files that a life finds be as old as this machine's clock says."""
        now_ns = self.loop.now_us() * 1000
        for file in folder.iterdir():
            os.utime(file, ns=(now_ns, now_ns))

    def end(self, slot: int, cut: random.Random | None = None) -> None:
        """Kill a worker and keep what its disk has, for its next life; its connections break."""
        life, before = self.lives[slot], self.machine(slot)
        assert life is not None
        self.numbers[slot] += 1
        self.disk.image(before, machine_of(self.folder, slot, self.numbers[slot]), cut)
        self.history.errors += life.errors
        if self.server is not None:
            self.server.drop(life.owner)
        life.kill()

    def up(self) -> list[Life]:
        """Return the lives that may be asked something; a frozen one does not look otherwise."""
        return [life for life in self.lives if life is not None and life.up]

    async def anybody(self) -> Life:
        """Return some worker that is up."""
        while not (up := self.up()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return self.draw.choice(up)

    async def rise(self, slot: int) -> None:
        """Start a worker anew a moment from now."""
        await asyncio.sleep(self.draw.uniform(0.01, 0.5))
        await self.boot(slot)

    # --- sources ------------------------------------------------------------------------

    async def source(self, name: str, operations: list[Operation]) -> None:
        """Deliver at least once, in order, until told that it is durable."""
        for one in operations:
            await self.until(one.at_s)
            parts = [[each] for each in one.events] if self.loop.time() < self.reorder_s else None
            if parts is not None:
                self.draw.shuffle(parts)
            given = [self.deliver(name, part) for part in parts or [list(one.events)]]
            if one.again:
                given.append(self.deliver(name, list(one.events)))
            await asyncio.gather(*given)

    async def deliver(self, source: str, deliveries: list[Any]) -> None:
        events = [event_of(each, source) for each in deliveries]
        for each, event in zip(deliveries, events, strict=True):
            if each.name not in self.events:
                wants = tuple(
                    Want(tool, text_of(each, at), row=tool == ROW, held=tool == HELD)
                    for at, tool in enumerate(each.tools)
                )
                agents = AGENTS if each.wakes == "all" else (each.wakes,)
                delivery = Event(event.key, agents, each.key, each.value, wants, self.loop.time())
                self.events[each.name] = delivery
                self.history.events.append(delivery)
        while True:
            life = await self.anybody()
            try:
                await self.within(life.do(life.app.intake.accept(events)), _SOURCE_S)
            except _GONE:
                await asyncio.sleep(self.draw.uniform(0.02, 0.2))
                continue
            for each in deliveries:
                delivery = self.events[each.name]
                if delivery.told_s == NEVER:
                    delivery.told_s, delivery.by = self.loop.time(), life.owner.name
                    self.trace(f"{life.owner.name} accepted {each.name}")
            return

    async def within(self, answer: asyncio.Future[Any], seconds: float) -> Any:
        """Wait for an answer for so long. Raises ConnectionError if there was none."""
        await asyncio.wait({answer}, timeout=seconds)
        if not answer.done():
            answer.add_done_callback(lambda late: late.cancelled() or late.exception())
            raise ConnectionError("no answer")
        return answer.result()

    # --- people -------------------------------------------------------------------------

    async def order(
        self, operation: Order, give: Callable[[Life, product.Order], Coroutine[Any, Any, Any]]
    ) -> Any:
        """Give an order until it is answered; what is refused binds nobody."""
        self.commands += 1
        order = product.Order(TESTER, "the plan says so", f"cmd-{self.commands}")
        operation.asked_s = self.loop.time()
        self.history.orders.append(operation)
        self.trace(f"person asks {operation.verb} {operation.what}")
        answer = None
        while True:
            life = await self.anybody()
            try:
                answer = await self.within(life.do(give(life, order)), _PERSON_S)
                break
            except AlreadyDone:
                break
            except BadCommand as error:
                self.trace(f"person is refused {operation.verb} {operation.what}: {error}")
                self.history.refuse(operation, str(error))
                return None
            except _GONE:
                await asyncio.sleep(self.draw.uniform(0.02, 0.2))
        operation.told_s = self.loop.time()
        if isinstance(answer, dict) and answer.get("recorded") is False:
            operation.by, operation.recorded = life.owner.name, False
        self.trace(f"person is told {operation.verb} {operation.what} by {life.owner.name}")
        return answer

    async def do_stop(self, one: Operation) -> None:
        scope, _, name = one.what.partition(":")
        args: dict[str, Any] = {scope: name or True}
        recorded = False
        while not recorded:
            order = Order(one.do, 0.0, what=one.what)
            answer = await self.order(
                order, lambda life, by: getattr(life.app.commands, one.do)(by, **args)
            )
            # One that holds in its worker's memory alone is ordered anew, as its answer says.
            recorded = answer is None or answer["recorded"]
            if not recorded:
                await asyncio.sleep(0.5)

    do_resume = do_stop

    async def do_publish(self, one: Operation) -> None:
        folder = self.content / POLICIES[one.what]
        order = Order("publish", 0.0, what=one.what)
        order.denies = ("wire.send",) if one.what == "strict" else ()

        async def give(life: Life, by: product.Order) -> Any:
            said = await life.app.commands.policy_apply(by, folder)
            if said["confirm"]:
                said = await life.app.commands.policy_apply(by, folder, confirm=said["confirm"])
            return said

        answer = await self.order(order, give)
        if answer:
            order.revision = answer["revision"]

    async def do_answer(self, one: Operation) -> None:
        """Answer every open hold; one whose outcome is unknown by what the target's record says."""
        holds = "SELECT id, effect FROM action WHERE hold='open' AND waits='approval'"
        for name, effect in self.durable.rows(holds):
            key = name.removeprefix("act_")
            verb = "approve" if one.what == "yes" else "deny"
            if effect == "unknown":
                verb = "deny" if self.targets.did(key) else "approve"

            async def give(
                life: Life, by: product.Order, name: str = name, verb: str = verb
            ) -> Any:
                row = life.app.store.runs.action(name)
                if row is None:
                    raise BadCommand("the store went back, and knows nothing of it")
                shown = hold_item(life.app.store, row, life.app.services.clock.now_us())
                return await getattr(life.app.commands, verb)(by, name, shown["shown_digest"])

            await self.order(Order(verb, 0.0, what=key), give)

    async def do_erase(self, one: Operation) -> None:
        event = self.events.get(one.what)
        if event is None or event.told_s == NEVER:
            return
        order = Order("erase", 0.0, what=event.ref)
        await self.order(
            order, lambda life, by: life.app.commands.erase(by, event=event.ref, deny_holds=True)
        )

    async def do_rotate(self, one: Operation) -> None:
        async def give(life: Life, by: product.Order) -> Any:
            upkeep = life.app.commands.maintenance
            assert upkeep is not None
            return await upkeep.rotate_key(by.principal, by.reason, by.command_id)

        await self.order(Order("rotate", 0.0), give)

    async def do_archive(self, one: Operation) -> None:
        """Move what is closed into the archive, as `vedette ledger archive` does."""

        async def give(life: Life, by: product.Order) -> Any:
            store, upkeep = life.app.store, life.app.commands.maintenance
            assert upkeep is not None
            size = checkpoint_size_before(
                store.ledger, life.app.services.clock.now_us(), store.ledger.first_open_entry()
            )
            if size <= archived_part(store.ledger).size:
                raise BadCommand("nothing is closed that is not archived")
            key = (life.settings.state / "ledger.pub").read_text(encoding="utf-8").strip()
            archived = write_segment(store.ledger, self.durable.segments, size, key)
            return await upkeep.prune_archived(by.principal, by.reason, archived, by.command_id)

        await self.order(Order("archive", 0.0), give)

    # --- faults -------------------------------------------------------------------------

    async def do_backup(self, one: Operation) -> None:
        """Copy the store as it is now, as a replica that stands still does, or a backup."""
        life, clock = await self.anybody(), SimClock(self.loop)
        since_s = self.loop.time()
        with suppress(ConnectionError, VedetteError):
            self.image = since_s, await life.do(self.durable.keep(life.settings, clock))

    async def do_failover(self, one: Operation) -> None:
        """Go over to the copy, with all workers started anew, as the runbook says."""
        if self.image is None:
            return
        since_s, image = self.image
        self.image = None
        order = Order("restore", self.loop.time(), what="failover", since_s=since_s)
        self.history.orders.append(order)
        self.trace(f"failover to a copy that is {self.loop.time() - since_s:.3f} s old")
        slots = [slot for slot, life in enumerate(self.lives) if life and not life.owner.dead]
        for slot in slots:
            self.end(slot)
        settings = settings_of(self.content, self.machine(0), None)
        put_back = self.durable.put_back(image, settings, SimClock(self.loop))
        async with self.restoring:
            await self.loop.spawn(Owner("restore"), put_back)
            order.told_s = self.loop.time()  # the store knows from here on what is done
        self.disk.forget(self.machine(0))
        await asyncio.gather(*(self.rise(slot) for slot in slots))

    async def do_kill(self, one: Operation, cut: random.Random | None = None) -> None:
        life = self.lives[one.worker]
        if life is None or life.owner.dead:
            return
        self.trace(f"{one.do} {life.owner.name}")
        self.boots[one.worker] += cut is not None
        self.end(one.worker, cut)
        await self.rise(one.worker)

    async def do_cut(self, one: Operation) -> None:
        """Cut the power of a worker's machine."""
        await self.do_kill(one, self.draw)

    async def do_point(self, one: Operation) -> None:
        """Kill a worker at one of its next crash points."""
        life = self.lives[one.worker]
        if life is None or life.owner.dead:
            return
        owner = life.owner

        def end(point: str) -> None:
            self.trace(f"kill {owner.name} at {point}")
            self.loop.spawn(None, self.rise(one.worker), "rise")
            self.end(one.worker)

        self.points.end_at(owner, one.n, end)
        await asyncio.sleep(2.0)

    async def do_death(self, one: Operation) -> None:
        """Let the process of an agent die, of what is asked of it."""
        life = self.lives[one.worker]
        if life is not None and life.up and life.processes is not None:
            self.trace(f"the process of {one.what} at {life.owner.name} dies of its {one.n}. task")
            life.processes.die_at(one.what, one.n)

    async def do_io(self, one: Operation) -> None:
        """Let one of the next calls of a worker's disk fail."""
        self.disk.fail(self.machine(one.worker), one.what, one.n)
        self.trace(f"the {one.n}. {one.what} of w{one.worker} will fail")

    async def do_full(self, one: Operation) -> None:
        """Fill a worker's disk for a while."""
        self.trace(f"the disk of w{one.worker} is full")
        self.disk.leave_room(self.machine(one.worker), one.n)
        await asyncio.sleep(one.for_s)
        for at in range(self.numbers[one.worker] + 1):
            self.disk.leave_room(machine_of(self.folder, one.worker, at), None)
        self.trace(f"the disk of w{one.worker} has room")

    async def do_freeze(self, one: Operation) -> None:
        life = self.lives[one.worker]
        if life is None or life.owner.dead:
            return
        self.trace(f"freeze {life.owner.name} for {one.for_s:.3f} s")
        self.loop.freeze(life.owner)
        await asyncio.sleep(one.for_s)
        if not life.owner.dead:
            self.trace(f"thaw {life.owner.name}")
            self.loop.thaw(life.owner)

    async def do_stall(self, one: Operation) -> None:
        """Stall a worker's link to the server; without one, its event loop."""
        life = self.lives[one.worker]
        if life is None or life.owner.dead:
            return
        self.trace(f"stall {life.owner.name} for {one.for_s:.3f} s")
        if self.server is not None:
            self.server.stall(life.owner, one.for_s)
        else:
            self.loop.stall(life.owner, one.for_s)
        await asyncio.sleep(one.for_s)

    async def do_drop(self, one: Operation) -> None:
        life = self.lives[one.worker]
        if self.server is not None and life is not None:
            self.trace(f"drop the connections of {life.owner.name}")
            self.server.drop(life.owner)

    async def do_away(self, one: Operation) -> None:
        if self.server is not None:
            self.trace(f"the server is away for {one.for_s:.3f} s")
            self.server.stop()
            await asyncio.sleep(one.for_s)
            self.server.start()

    async def do_duplicate(self, one: Operation) -> None:
        """Deliver once more what was delivered before."""
        events = [each for each in self.plan.deliveries if each.name in self.events]
        if events:
            each = self.draw.choice(events)
            sources = (o.what for o in self.plan.operations if each in o.events)
            await self.deliver(next(sources), [each])

    async def do_reorder(self, one: Operation) -> None:
        self.reorder_s = self.loop.time() + one.for_s
        await asyncio.sleep(one.for_s)

    async def do_slow(self, one: Operation) -> None:
        before = self.targets.manners
        self.targets.manners = Manners(late=0.7, lost=0.1, away=0.1)
        await asyncio.sleep(one.for_s)
        self.targets.manners = before

    async def do_clock(self, one: Operation) -> None:
        """Let a worker's wall clock jump; it stays wrong over restarts."""
        self.trace(f"the clock of w{one.worker} jumps by {one.for_s:.0f} s")
        self.offsets[one.worker] += round(one.for_s * 1e6)
        life = self.lives[one.worker]
        if life is not None:
            life.owner.wall_offset_us = self.offsets[one.worker]


@contextmanager
def player() -> Iterator[Callable[[Plan], Played]]:
    """Give a function that plays plans, over one fleet, in memory where there is such."""
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="vedette-simulation-", dir=where) as name:
        base = Path(name)
        write_content(base / "content")
        images = FleetImages(base / "content", base / "founded")
        count = itertools.count()
        # A machine of a simulation has little room, and there are many.
        spare, spare_space.SPARE_BYTES = spare_space.SPARE_BYTES, _SPARE

        def one(plan: Plan) -> Played:
            # The folder's name reaches nothing that is recorded.
            number = next(count)
            if number % _COLLECT == 0:
                collect_histories()
            folder = base / f"history{number}"
            folder.mkdir()
            if plan.founded:
                images.copy(plan.store, plan.workers, folder)
            try:
                return play(plan, base / "content", folder)
            finally:
                shutil.rmtree(folder)

        try:
            yield one
        finally:
            spare_space.SPARE_BYTES = spare
