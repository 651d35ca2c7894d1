"""An event loop in simulated time, for several engines in one process, drawn from one seed.

Time moves in two ways only: each callback takes `STEP_S`, and when nobody is ready the clock jumps
to the next timer. Callbacks that are ready run first in, first out, as asyncio promises; what is
drawn is how long things take, never their order.

Every callback belongs to an `Owner`, one life of one engine, which its context carries; the world
outside (targets, sources, people, faults) has none. An owner that was killed is dropped wherever it
comes up: nothing of it is cancelled and no `finally` runs. A frozen one is kept for later.

Threads are greenlets that this loop alone resumes (`threads`). The main thread of an engine may
wait as well, as in life, where a blocking read stops that engine and no other: whichever greenlet
runs the loop stays behind in the callback that waits, and the loop goes on in a new one.

Private to asyncio and used here: `Handle._run`, `Handle._context`, `tasks._enter_task` and
`tasks._leave_task`. Tried with CPython 3.11 and greenlet 3.2.4.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import random
import sys
import warnings
from asyncio import events, tasks
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

T = TypeVar("T")

STEP_S = 2e-6
# Where simulated time begins: the wall clock, and the monotonic one, of a machine that is up.
EPOCH_US = 1_750_000_000_000_000
BOOT_S = 1000.0
# A history that takes more goes round in a circle; a long one takes a tenth.
MOST_STEPS = 1_500_000


class Deadlock(Exception):
    """Nobody is ready and nobody waits for an instant."""


class Owner:
    """One life of one engine. `wall_offset_us` is how wrong its wall clock is, `boots` how often
    its machine was started.

    Killed by `SimLoop.kill` alone; `kept` holds what must not be collected before the history
    ends, as the collector would run its `finally`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = self.frozen = self.blocked = False
        self.wall_offset_us = self.boots = 0
        self.kept: list[object] = []
        # What came up while it was frozen, and for its main thread while that waited.
        self.held: list[_Ready] = []
        self.waiting: list[_Ready] = []

    def context(self) -> contextvars.Context:
        """Return a context that carries this owner and nothing else."""
        made = contextvars.Context()
        made.run(OWNER.set, self)
        return made

    def __repr__(self) -> str:
        return f"<Owner {self.name}>"


OWNER: contextvars.ContextVar[Owner | None] = contextvars.ContextVar("OWNER", default=None)


class Thread(greenlet):  # type: ignore[misc]
    """What runs a thread of an engine; any other greenlet is somebody's main one."""


class Wake:
    """A thread that is to be resumed, of whichever owner. Goes off once, unless it is cancelled."""

    __slots__ = ("let", "owner")

    def __init__(self, let: Any, owner: Owner | None) -> None:
        self.let, self.owner = let, owner

    def cancel(self) -> None:
        """Resume it no more."""
        self.let = None

    def cancelled(self) -> bool:
        """Say whether it is not to be resumed any more."""
        return self.let is None


_Ready = asyncio.Handle | Wake
_LOOPS: list[SimLoop] = []


def current_loop() -> SimLoop:
    """Return the loop of the history that runs. Raises LookupError without one."""
    if not _LOOPS:
        raise LookupError("no history runs")
    return _LOOPS[-1]


# Untyped here, as most of what it names (sockets, signals, processes) does not exist in here.
_AnyLoop: Any = asyncio.AbstractEventLoop


class SimLoop(_AnyLoop):  # type: ignore[misc]
    """See the module. `draw` is for what scheduling draws; everybody else has a stream of its own.

    It begins at `at_s`, by the monotonic clock. `steps` counts what was run, `errors` are those
    that no callback caught.
    """

    def __init__(self, seed: int, at_s: float = BOOT_S, *, most_steps: int = MOST_STEPS) -> None:
        self._most_steps = most_steps
        self.draw = random.Random(f"{seed}/schedule")
        self.steps = 0
        self.errors: list[BaseException] = []
        self._now = at_s
        self._ready: deque[_Ready] = deque()
        self._timers: list[tuple[float, int, _Ready]] = []
        self._numbered = 0
        self._end = 0.0
        self._root: Any = None
        self._runner: Any = None
        # Greenlets that have run the loop and may again: a new one costs memory from the kernel.
        self._idle: list[Any] = []
        self._stopping = self._closed = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        # What is left standing in the midst of something, if it is never resumed.
        self._threads: dict[Any, None] = {}
        self._killed: list[Owner] = []

    # --- what asyncio asks of a loop ----------------------------------------------------------

    def time(self) -> float:
        """Return the simulated monotonic clock, in seconds."""
        return self._now

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Run a callback after all that are ready."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    # Threads are greenlets: they never run beside a callback.
    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback `delay` seconds from now."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback at an instant; those of one instant in the order in which they came."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._at(when, timer)
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        """Run a coroutine; it is kept until it ends, also if nobody else keeps it."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._forget, context=contextvars.Context())
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def run_in_executor(
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run a function on a thread of its own."""
        future = self.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                self.call_soon(_settle, future, None, error, context=context)
            else:
                self.call_soon(_settle, future, result, None, context=context)

        self.start_thread(work, "executor")
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what no callback caught; a task that a kill left behind is not worth a word."""
        error = context.get("exception")
        if error is not None and not self._closed:
            self.errors.append(error)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Do as `call_exception_handler`."""
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._root is not None

    def is_closed(self) -> bool:
        return self._closed

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None: ...

    # --- a history ----------------------------------------------------------------------------

    def run(self, coro: Coroutine[Any, Any, T], within_s: float) -> T:
        """Run a coroutine of the world to its end, and all others meanwhile; return its result.

        Raises what it raises, TimeoutError after `within_s` simulated seconds, and Deadlock.
        """
        task: asyncio.Task[T] = self.spawn(None, coro, "history")
        task.add_done_callback(self._stop, context=contextvars.Context())
        self._end = self._now + within_s
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finalize)
        self._root, self._stopping = getcurrent(), False
        _LOOPS.append(self)
        events._set_running_loop(self)
        try:
            while not self._stopping:
                self._runner = self._idle.pop() if self._idle else greenlet(self._run_all)
                self._runner.parent = self._root
                self._runner.switch()
        finally:
            events._set_running_loop(None)
            _LOOPS.pop()
            self._root = self._runner = None
            self._idle.clear()
            sys.set_asyncgen_hooks(*hooks)
        return task.result()

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed:
            self.create_task(generator.aclose())

    def close(self) -> None:
        """End what is left, so that nothing of this history is found by the next.

        Code that a kill left behind runs its `finally` here, where it can do nothing any more:
        whatever it waits for, or asks of this loop's threads, ends it at once.
        """
        self._closed = True
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        _LOOPS.append(self)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the dead have closed no file
            self._end_all()
            # Only what this history made is looked through: what was there before it is frozen.
            gc.collect()
            gc.freeze()
        _LOOPS.pop()
        sys.unraisablehook = hook

    def _end_all(self) -> None:
        for let in list(self._threads):
            if not let.dead:
                with suppress(BaseException):
                    let.parent = getcurrent()
                    let.throw(GreenletExit)
        for task in list(self._tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(BaseException):
                task.get_coro().close()
        for owner in self._killed:
            owner.kept.clear()
        for kept in (self._threads, self._tasks, self._ready, self._timers, self._killed):
            kept.clear()

    def spawn(
        self, owner: Owner | None, coro: Coroutine[Any, Any, T], name: str = ""
    ) -> asyncio.Task[T]:
        """Run a coroutine as a task of an owner, or of the world; whoever calls."""
        context = owner.context() if owner is not None else contextvars.Context()
        task: asyncio.Task[T] = self.create_task(coro, name=name or "spawned", context=context)
        return task

    def later(
        self, delay_s: float, callback: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        """Run a callback of the world after a while; whoever calls."""
        return self.call_later(delay_s, callback, *args, context=contextvars.Context())

    def now_us(self) -> int:
        """Return the true wall clock in microseconds; an owner's own may be wrong."""
        return EPOCH_US + round((self._now - BOOT_S) * 1e6)

    def some(self, low_s: float, high_s: float) -> float:
        """Draw how long something takes."""
        return self.draw.uniform(low_s, high_s)

    # --- one turn -----------------------------------------------------------------------------

    def _at(self, when: float, what: _Ready) -> None:
        self._numbered += 1
        heapq.heappush(self._timers, (when, self._numbered, what))

    def _run_all(self) -> None:
        ready, timers, me = self._ready, self._timers, getcurrent()
        while not self._stopping:
            if not ready:
                while timers and timers[0][2].cancelled():
                    heapq.heappop(timers)
                if not timers:
                    raise Deadlock("nobody is ready and nobody waits for an instant")
                self._now = max(self._now, timers[0][0])
            self._now += STEP_S
            if self._now > self._end or self.steps > self._most_steps:
                raise TimeoutError("the history has not ended in its time")
            while timers and timers[0][0] <= self._now:
                ready.append(heapq.heappop(timers)[2])
            what = ready.popleft()
            if what.cancelled():
                continue
            self.steps += 1
            if isinstance(what, Wake):
                self._wake(what)
            else:
                self._call(what)
                if self._runner is not me:
                    # It waited: the loop has gone on in another greenlet, which resumed this one.
                    self._idle.append(me)
                    me.parent.switch()

    def _call(self, handle: asyncio.Handle) -> None:
        owner: Owner | None = handle._context.get(OWNER)  # type: ignore[attr-defined]
        if owner is not None and (owner.dead or owner.frozen or owner.blocked):
            if owner.dead:
                owner.kept.append(handle)
            elif owner.frozen:
                owner.held.append(handle)
            else:
                owner.waiting.append(handle)
            return
        handle._run()

    def _wake(self, wake: Wake) -> None:
        owner, let = wake.owner, wake.let
        if let.dead or (owner is not None and owner.dead):
            return
        if owner is not None and owner.frozen:
            owner.held.append(wake)
            return
        let.parent = getcurrent()
        if isinstance(let, Thread):
            # A thread has no running loop, and finds that out by asking.
            events._set_running_loop(None)
            let.switch()
            events._set_running_loop(self)
            if let.dead:
                del self._threads[let]
        else:
            let.switch()

    # --- threads ------------------------------------------------------------------------------

    def start_thread(
        self, work: Callable[[], object], name: str, delay_s: float | None = None
    ) -> Any:
        """Run `work` as a thread of whoever calls, after a drawn delay; return its greenlet."""
        self._check()
        let = Thread(work)
        let.gr_context = contextvars.copy_context()
        self._threads[let] = None
        self.resume(let, OWNER.get(), self.some(1e-5, 3e-4) if delay_s is None else delay_s)
        return let

    @property
    def on_thread(self) -> bool:
        """Say whether a thread asks that is nobody's main one."""
        return isinstance(getcurrent(), Thread)

    def here(self) -> tuple[Any, Owner | None]:
        """Return what `resume` needs to resume the present thread."""
        return getcurrent(), OWNER.get()

    def resume(self, let: Any, owner: Owner | None, delay_s: float) -> Wake:
        """Let a thread that gave way go on after a while, unless its owner is dead by then."""
        wake = Wake(let, owner)
        self._at(self._now + delay_s, wake)
        return wake

    def give_way(self) -> None:
        """Leave the present thread until somebody resumes it.

        Raises LookupError in the world outside: it is not a machine, and nothing in it waits.
        """
        self._check()
        let, owner = getcurrent(), OWNER.get()
        if isinstance(let, Thread):
            let.parent.switch()
            self._check()
            return
        self._refuse_world()
        assert owner is not None
        task = asyncio.current_task(self)
        if task is not None:
            tasks._leave_task(self, task)
        owner.blocked = True
        self._threads[let] = None
        if let is self._runner:
            # The loop goes on in a new greenlet, begun from the root: a new one counts its calls
            # from where it was begun, and one begun here would have ever less room for its own.
            self._root.switch()
        else:
            let.parent.switch()
        self._check()
        self._threads.pop(let, None)
        owner.blocked = False
        self._give_back(owner.waiting)
        if task is not None:
            tasks._enter_task(self, task)

    def pause(self, seconds: float) -> None:
        """Let simulated time pass in this thread, be it an engine's main one."""
        when, timers = self._now + seconds, self._timers
        if not self._ready and not (timers and timers[0][0] <= when) and when < self._end:
            # The next to run would be this thread: nobody need take its place meanwhile.
            self._check()
            self._refuse_world()
            self._now = when + STEP_S
            self.steps += 1
            return
        self.resume(*self.here(), seconds)
        self.give_way()

    def _refuse_world(self) -> None:
        if OWNER.get() is None and not isinstance(getcurrent(), Thread):
            raise LookupError("only an engine may wait here")

    def _check(self) -> None:
        if self._closed:
            raise GreenletExit

    # --- what befalls an engine -----------------------------------------------------------------

    def kill(self, owner: Owner) -> None:
        """End an owner here and now; called from inside of it, it does not return."""
        owner.dead = True
        self._killed.append(owner)
        owner.kept += [*owner.held, *owner.waiting]
        owner.held.clear()
        owner.waiting.clear()
        if OWNER.get() is owner:
            self.give_way()

    def freeze(self, owner: Owner) -> None:
        """Stop an owner, all its threads included, until it is thawed."""
        owner.frozen = True

    def thaw(self, owner: Owner) -> None:
        """Let a frozen owner go on with what came up meanwhile."""
        owner.frozen = False
        self._give_back(owner.held)

    def stall(self, owner: Owner, seconds: float) -> None:
        """Keep an owner's main thread busy for a while; its other threads go on."""
        self.call_soon(self.pause, seconds, context=owner.context())

    def _give_back(self, held: list[_Ready]) -> None:
        """Put what was kept back in front: it came before all that is ready now."""
        self._ready.extendleft(reversed(held))
        held.clear()


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return  # whoever asked has gone
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
