"""Time as a parameter: nobody but a Clock reads it.

Instants are integer microseconds since the Unix epoch, UTC; durations are integer microseconds
too, so that they survive canonical JSON unchanged.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vedette.domain.base import machine

if TYPE_CHECKING:
    import asyncio

MICROS = 1_000_000
# Timers of an event loop do not count a machine's sleep: a long wait looks this often.
_MAX_SLEEP_S = 60
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
# The calendar: the first and the last instant that `iso` can write, in years 1 to 9999.
EARLIEST_US = -62_135_596_800 * MICROS
LATEST_US = 253_402_300_800 * MICROS - 1


class Clock(Protocol):
    """Time as a parameter: the wall clock, and a clock that never goes back."""

    def now_us(self) -> int:
        """Return the wall clock in microseconds since the epoch, UTC."""
        ...

    def monotonic_us(self) -> int:
        """Return microseconds of a clock that never goes back; only differences mean anything."""
        ...

    async def sleep_until(self, at_us: int) -> None:
        """Return when as much time has passed as lies between now and `at_us`.

        By the monotonic clock: a wall clock that is set meanwhile changes nothing.
        """
        ...


class MachineClock(Clock, Protocol):
    """A clock that fleet time is made of (see `vedette.domain.base.fleet_clock`)."""

    @property
    def boot(self) -> str | None:
        """Return what names the run of the monotonic clock; None where nothing does."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    @property
    def boot(self) -> str | None:
        with suppress(OSError):
            return _BOOT_ID_FILE.read_text(encoding="ascii").strip()
        return None  # not Linux

    def monotonic_us(self) -> int:
        return machine.boot_us()

    async def sleep_until(self, at_us: int) -> None:
        import asyncio  # whoever reads the settings or tries a policy needs no event loop

        end_us = self.monotonic_us() + at_us - self.now_us()
        while (left := end_us - self.monotonic_us()) > 0:  # noqa: ASYNC110 (see _NAP_S)
            await asyncio.sleep(min(left / MICROS, _MAX_SLEEP_S))


def aligned_delay_s(period_s: float) -> float:
    """Return the seconds to the next multiple of a period on the running loop's clock.

    What looks around regularly does so together then: a machine at rest is woken once for all.
    """
    import asyncio

    return period_s - asyncio.get_running_loop().time() % period_s


async def sleep_aligned(period_s: float) -> None:
    """Sleep until the next multiple of a period on the running loop's clock."""
    import asyncio

    await asyncio.sleep(aligned_delay_s(period_s))


async def wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an asyncio.Event so long at most; return whether it came, be it before."""
    import asyncio

    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def iso(at_us: int) -> str:
    """Write an instant as RFC 3339 in UTC with microseconds.

    Raises ValueError for one before EARLIEST_US or after LATEST_US.
    """
    whole, micros = divmod(at_us, MICROS)
    return f"{_utc(whole).isoformat()[:19]}.{micros:06d}Z"


def utc_time(at_us: int) -> str:
    """Write an instant in UTC to the second; one outside the calendar as the calendar's end."""
    return f"{iso(_clamp(at_us))[:19]}Z"


def local_time(at_us: int) -> str:
    """Write an instant to the second in this machine's time zone, with its offset.

    Where that is UTC, or has no such day, it reads as `utc_time` writes it.
    """
    try:
        moment = _utc(at_us // MICROS).astimezone()
    except (OverflowError, ValueError):
        # At either end of the calendar, or beyond it, a zone's offset leads out of it.
        return utc_time(at_us)
    if not moment.utcoffset():
        return utc_time(at_us)
    return moment.isoformat(sep=" ", timespec="seconds")


def from_iso(text: str) -> int:
    """Read an RFC 3339 instant; without an offset it is taken as UTC.

    Raises ValueError, also where its offset leads out of the calendar: `iso` could not write it.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    whole = moment.replace(microsecond=0)
    at_us = int(whole.timestamp()) * MICROS + moment.microsecond
    if not EARLIEST_US <= at_us <= LATEST_US:
        raise ValueError(f"{text!r} is before the year 1 or after 9999 in UTC")
    return at_us


def instant_before(at_us: int, length_us: int) -> int:
    """Return the instant `length_us` before another, at the earliest the calendar's first."""
    return _clamp(at_us - length_us)


def _utc(seconds: int) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError) as error:
        raise ValueError(f"{seconds} seconds lie outside the calendar") from error


def _clamp(at_us: int) -> int:
    return min(max(at_us, EARLIEST_US), LATEST_US)


def duration_us(text: str) -> int:
    """Return a duration such as `250ms`, `30s`, `5m`, `2h`, `7d` in a clock's microseconds.

    Raises ValueError with the accepted form.
    """
    units = {"ms": 1000, "s": MICROS, "m": 60 * MICROS, "h": 3600 * MICROS, "d": 86400 * MICROS}
    stripped = text.strip()
    for unit in ("ms", "s", "m", "h", "d"):
        number = stripped.removesuffix(unit)
        if number != stripped and number.isdigit():
            return int(number) * units[unit]
    raise ValueError(f"{text!r} is not a duration; write a whole number and ms, s, m, h or d")
