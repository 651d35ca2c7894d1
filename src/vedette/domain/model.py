"""A Model as the fleet's engine knows it: how often it may be asked, why it did not answer.

A provider in trouble is weather: who waits for its model waits as for a target that is away. What
a provider refuses for good (a key, a bill, a name) holds all that the model is asked, too, until
somebody mends it; only what it refuses of one request ends that request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from vedette.domain.base.errors import Temporary

# rate, unavailable, timeout, connection: over by themselves. quota: over with the provider's day.
# billing, key, forbidden, missing: until somebody mends it.
FailureKind = Literal[
    "rate", "unavailable", "timeout", "connection",
    "quota", "billing", "key", "forbidden", "missing",
]  # fmt: skip
# How long a model is left alone after a failure that does not pass by itself (microseconds): then
# one call tries whether it was mended.
HELD_US: Mapping[str, int] = {
    "quota": 900_000_000,
    "billing": 300_000_000,
    "key": 300_000_000,
    "forbidden": 300_000_000,
    "missing": 300_000_000,
}


class Model(Struct, frozen=True):
    """What may be asked of one model: an entry of [models] in vedette.toml, without its key.

    Of any 60 s at most `calls_per_minute` calls begin, and `tokens_per_minute` tokens are taken;
    `fallback` is who is asked while it is left alone, `price` an entry of the price list.
    """

    name: str
    calls_in_flight: int = 8
    calls_per_minute: int | None = None
    tokens_per_minute: int | None = None
    timeout_us: int = 60_000_000
    fallback: str | None = None
    price: str | None = None


class ModelFailed(Temporary):
    """The error of a model that gave no answer: its provider is away, or refuses the fleet.

    `retry_after_us` is for how long the provider asked to be left alone (0: it did not say);
    `is_charged` says that the call may have been answered, and paid, though no answer came.
    """

    def __init__(
        self,
        what: str,
        kind: FailureKind,
        *,
        mend: str | None = None,
        retry_after_us: int = 0,
        is_charged: bool = False,
    ) -> None:
        super().__init__(what, mend=mend, code=f"model-{kind}")
        self.kind = kind
        self.retry_after_us = retry_after_us
        self.is_charged = is_charged
