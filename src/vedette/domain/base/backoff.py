"""Backoff: how long to wait before the next try.

Exponential, with jitter that is drawn from a seed: spread over many waiting things, and the same
in every replay of one of them.
"""

from __future__ import annotations

from vedette.domain.base.canonical import sha256_hex


def delay_us(tries: int, *, first_us: int, last_us: int, seed: str) -> int:
    """Return the microseconds of backoff after so many tries (1 after the first).

    Doubles from twice `first_us` up to `last_us`; the jitter takes off up to half of it.
    """
    wait = min(last_us, first_us << min(tries, 32))
    spread = int(sha256_hex(f"{seed}/{tries}".encode())[:8], 16) / 0xFFFFFFFF
    return int(wait * (0.5 + spread / 2))
