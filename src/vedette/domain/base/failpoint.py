"""Failpoints around everything durable, by name: where a crash is worth trying.

Whoever writes something durable, or calls a target, passes `hit_failpoint` before and after it.
Nothing happens there unless a fault test has set `hook`; then the test decides whether the process
dies.
"""

from __future__ import annotations

from collections.abc import Callable

hook: Callable[[str], None] | None = None


def hit_failpoint(point: str) -> None:
    """Pass a failpoint, named `what:when` (`commit:before`, `call:after`, …)."""
    if hook is not None:
        hook(point)
