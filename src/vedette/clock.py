"""Time as a parameter: nobody but a Clock reads it.

Instants are integer microseconds since the Unix epoch, UTC; durations are integer microseconds
too, so that they survive canonical JSON unchanged.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

MICROS = 1_000_000
# The calendar: the first and the last instant that `iso` can write, in years 1 to 9999.
EARLIEST_US = -62_135_596_800 * MICROS
LATEST_US = 253_402_300_800 * MICROS - 1


class Clock(Protocol):
    """What the engine knows of time."""

    def now_us(self) -> int:
        """Return the wall clock in microseconds since the epoch, UTC."""
        ...

    def monotonic_us(self) -> int:
        """Return microseconds of a clock that never goes back; only differences mean anything."""
        ...

    async def sleep_until(self, at_us: int) -> None:
        """Return when the wall clock has reached `at_us`; at once if it has already."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000

    async def sleep_until(self, at_us: int) -> None:
        import asyncio  # whoever reads the settings or tries a policy needs no event loop

        while (left := at_us - self.now_us()) > 0:  # noqa: ASYNC110 (the wall clock may jump)
            await asyncio.sleep(min(left / MICROS, 3600))


def until_beat(period_s: float) -> float:
    """Return the seconds to the next multiple of a period on the running loop's clock.

    What looks around regularly does so together then: a machine at rest is woken once for all.
    """
    import asyncio

    return period_s - asyncio.get_running_loop().time() % period_s


async def next_beat(period_s: float) -> None:
    """Return at the next multiple of a period on the running loop's clock."""
    import asyncio

    await asyncio.sleep(until_beat(period_s))


async def within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event so long at most; return whether it came, be it before."""
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


def utc_second(at_us: int) -> str:
    """Write an instant in UTC to the second; one outside the calendar as the calendar's end."""
    return f"{iso(_within(at_us))[:19]}Z"


def local(at_us: int) -> str:
    """Write an instant to the second in this machine's time zone, with its offset.

    Where that is UTC, or has no such day, it reads as `utc_second` writes it.
    """
    try:
        moment = _utc(at_us // MICROS).astimezone()
    except (OverflowError, ValueError):
        # At either end of the calendar, or beyond it, a zone's offset leads out of it.
        return utc_second(at_us)
    if not moment.utcoffset():
        return utc_second(at_us)
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


def ago(at_us: int, length_us: int) -> int:
    """Return the instant `length_us` before another, at the earliest the calendar's first."""
    return _within(at_us - length_us)


def _utc(seconds: int) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError) as error:
        raise ValueError(f"{seconds} seconds lie outside the calendar") from error


def _within(at_us: int) -> int:
    return min(max(at_us, EARLIEST_US), LATEST_US)


def duration_us(text: str) -> int:
    """Read a duration such as `250ms`, `30s`, `5m`, `2h`, `7d` as microseconds.

    Raises ValueError with the accepted form.
    """
    units = {"ms": 1000, "s": MICROS, "m": 60 * MICROS, "h": 3600 * MICROS, "d": 86400 * MICROS}
    stripped = text.strip()
    for unit in ("ms", "s", "m", "h", "d"):
        number = stripped.removesuffix(unit)
        if number != stripped and number.isdigit():
            return int(number) * units[unit]
    raise ValueError(f"{text!r} is not a duration; write a whole number and ms, s, m, h or d")
