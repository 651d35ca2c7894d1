"""What takes the place of threads and locks in a simulation: greenlets of its loop.

A thread runs until it waits: for a lock, a condition, time, or another thread's end. Whoever it
waits for wakes it a drawn moment later, as a kernel would. Only what waits gives way, so no lock is
ever contended within a piece of code that does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from greenlet import getcurrent
from tests.simulation.loop import Owner, Wake, current_loop

T = TypeVar("T")

# How long a kernel takes to let a woken thread run, in seconds.
WAKING = (1e-6, 2e-4)


class _Waiters:
    """Threads that wait for something, in the order in which they came."""

    def __init__(self) -> None:
        self._all: deque[tuple[Any, Owner | None]] = deque()

    def wait(self, timeout: float | None) -> bool:
        """Give way until woken; False if `timeout` seconds passed before."""
        loop = current_loop()
        handle = loop.here()
        timer: Wake | None = None
        if timeout is not None:
            timer = loop.resume(*handle, max(0.0, timeout))
        self._all.append(handle)
        loop.give_way()
        if handle in self._all:
            self._all.remove(handle)
            return False
        if timer is not None:
            timer.cancel()
        return True

    def wake(self, n: int = 1) -> None:
        """Wake the first `n` that wait."""
        loop = current_loop()
        while self._all and n:
            n -= 1
            loop.resume(*self._all.popleft(), loop.some(*WAKING))

    def wake_all(self) -> None:
        """Wake all."""
        self.wake(len(self._all))


class RLock:
    """A lock; whoever has it may take it again if it is reentrant."""

    _reentrant = True

    def __init__(self) -> None:
        self._holder: Any = None
        self._depth = 0
        self._waiters = _Waiters()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; False if it was not free in time."""
        me = getcurrent()
        if self._reentrant and self._holder is me:
            self._depth += 1
            return True
        end = None if timeout < 0 else current_loop().time() + timeout
        while self._holder is not None:
            if not blocking:
                return False
            left = None if end is None else end - current_loop().time()
            if (left is not None and left <= 0) or not self._waiters.wait(left):
                return False
        self._holder, self._depth = me, 1
        return True

    def release(self) -> None:
        """Give the lock back. Raises RuntimeError if nobody has it."""
        if self._holder is None or (self._reentrant and self._holder is not getcurrent()):
            raise RuntimeError("this lock is not held here")
        self._depth -= 1
        if not self._depth:
            self._holder = None
            if self._waiters._all:
                self._waiters.wake()

    def locked(self) -> bool:
        """Say whether anybody has the lock."""
        return self._holder is not None

    def give_up(self) -> int:
        """Give the lock back however often it was taken; return how often, for `reopen_action`."""
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def take_up(self, depth: int) -> None:
        """Take the lock as often as it was given up."""
        self.acquire()
        self._depth = depth

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Lock(RLock):
    """A lock that is taken once; anybody may give it back."""

    _reentrant = False


class Condition:
    """Waits, with a lock given up meanwhile, for another thread to tell."""

    def __init__(self, lock: RLock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiters = _Waiters()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be told; False if `timeout` seconds passed before."""
        depth = self._lock.give_up()
        is_notified = self._waiters.wait(timeout)
        self._lock.take_up(depth)
        return is_notified

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Wait until something is true; return what it was at the end."""
        end = None if timeout is None else current_loop().time() + timeout
        while not (result := predicate()):
            left = None if end is None else end - current_loop().time()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def _must_hold(self) -> None:
        if not self._lock.locked():
            raise RuntimeError("cannot notify without the lock")

    def notify(self, n: int = 1) -> None:
        """Tell the first `n` that wait. Raises RuntimeError without the lock."""
        self._must_hold()
        self._waiters.wake(n)

    def notify_all(self) -> None:
        """Tell all that wait. Raises RuntimeError without the lock."""
        self._must_hold()
        self._waiters.wake_all()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Event:
    """A flag that may be waited for."""

    def __init__(self) -> None:
        self._set = False
        self._waiters = _Waiters()

    def is_set(self) -> bool:
        """Say whether the flag is up."""
        return self._set

    def set(self) -> None:
        """Put the flag up."""
        self._set = True
        self._waiters.wake_all()

    def clear(self) -> None:
        """Take the flag down."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the flag; say whether it is up."""
        if not self._set:
            self._waiters.wait(timeout)
        return self._set


class Semaphore:
    """So many may pass, and one more for each release."""

    def __init__(self, value: int = 1) -> None:
        self._value = value
        self._waiters = _Waiters()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Pass; False if nobody could in time."""
        end = None if timeout is None else current_loop().time() + timeout
        while not self._value:
            left = None if end is None else end - current_loop().time()
            if not blocking or (left is not None and left <= 0):
                return False
            self._waiters.wait(left)
        self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        """Let `n` more pass."""
        self._value += n
        self._waiters.wake(n)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Queue(Generic[T]):
    """First in, first out, without a bound."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._there = Semaphore(0)

    def put(self, item: T) -> None:
        """Add an item."""
        self._items.append(item)
        self._there.release()

    def get(self, timeout: float | None = None) -> T | None:
        """Take the oldest item; None if there was none in time."""
        return self._items.popleft() if self._there.acquire(timeout=timeout) else None


class Thread:
    """A thread of whoever starts it: it dies with its owner."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self.name = name or "thread"
        self.daemon = daemon
        self.ident: int | None = None
        self._ended = Event()

    def run(self) -> None:
        """Do what the thread is for."""
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        """Begin, a drawn moment from now."""
        loop = current_loop()

        def work() -> None:
            try:
                self.run()
            except Exception as error:
                loop.call_exception_handler({"exception": error})
            self._ended.set()

        self.ident = id(loop.start_thread(work, self.name))

    def is_alive(self) -> bool:
        """Say whether it has begun and not ended."""
        return self.ident is not None and not self._ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        self._ended.wait(timeout)


class Timer(Thread):
    """Calls a function after a while, unless it is cancelled before."""

    def __init__(self, interval: float, function: Callable[..., object], args: Any = ()) -> None:
        super().__init__(target=function, args=tuple(args), name="timer")
        self._interval, self._over = interval, Event()

    def cancel(self) -> None:
        """Do not call it any more."""
        self._over.set()

    def run(self) -> None:
        """Wait, and call."""
        if not self._over.wait(self._interval):
            super().run()


class ThreadPoolExecutor:
    """Runs what is submitted on threads, up to `max_workers` at once, in the order it came."""

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "pool") -> None:
        self._most, self._name = max_workers or 8, thread_name_prefix
        self._queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running = 0
        self._shut = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Have a function called; its future must not be waited for, only asked or watched."""
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[T] = Future()
        self._queue.append((future, lambda: fn(*args, **kwargs)))
        if self._running < self._most:
            self._running += 1
            current_loop().start_thread(self._work, self._name)
        return future

    def _work(self) -> None:
        while self._queue:
            future, call = self._queue.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except Exception as error:
                    future.set_exception(error)
        self._running -= 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take nothing more; what waits is dropped if so asked. Waits for nobody."""
        self._shut = True
        if cancel_futures:
            for future, _ in self._queue:
                future.cancel()
            self._queue.clear()


def get_ident() -> int:
    """Return what tells this thread from others."""
    return id(getcurrent())
