"""What goes wrong at a provider, and for which requests or when."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from msgspec import Struct, field

# What a provider may be in. `internal` is 500, `overloaded` Anthropic's 529 (503 elsewhere).
Trouble = Literal["rate_limit", "daily_quota", "billing", "unavailable", "overloaded", "internal"]


class ErrorAnswer(Struct, frozen=True):
    """The provider's own error, in its words and with its status.

    `retry_after_s` is told where the wire tells it: a header, Gemini's `RetryInfo`. `code` stands
    for the wire's code where there are several (OpenAI's `insufficient_quota`).
    """

    trouble: Trouble
    retry_after_s: int | None = None
    code: str = ""


class RawAnswer(Struct, frozen=True):
    """Bytes in place of an answer: no JSON, half a JSON, a proxy's page."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})


class CutAnswer(Struct, frozen=True):
    """The connection is reset after so many bytes of the script's answer."""

    after_bytes: int


class ResetConnection(Struct, frozen=True):
    """The connection is reset before anything is said."""


class StallAnswer(Struct, frozen=True):
    """Nothing more comes after so many bytes of the answer, until the client leaves."""

    after_bytes: int = 0


class SlowAnswer(Struct, frozen=True):
    """The answer comes in pieces, with a pause of real seconds before each."""

    piece_bytes: int
    pause_s: float


Fault = ErrorAnswer | RawAnswer | CutAnswer | ResetConnection | StallAnswer | SlowAnswer


class FaultRule(Struct, frozen=True):
    """A fault, and for whom: requests by their number, a time [from, until) in us, a wire.

    What is not given does not narrow it.
    """

    fault: Fault
    requests: Collection[int] | None = None
    period_us: tuple[int, int] | None = None
    wire: str | None = None

    def applies(self, number: int, wire: str, now_us: int) -> bool:
        """Tell whether request `number` of `wire`, arriving at `now_us`, meets with the fault."""
        if self.requests is not None and number not in self.requests:
            return False
        if self.wire is not None and wire != self.wire:
            return False
        return self.period_us is None or self.period_us[0] <= now_us < self.period_us[1]
