"""The record that a target itself keeps of what was done to it: the other half of an audit."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

INBOX = "INBOX"


class TargetEffect(Struct, frozen=True):
    """One effect in a target's record: its key, and when (0: the record does not say)."""

    key: str
    at_us: int = 0
    what: str = ""


class Mail(Struct, frozen=True):
    """One mail of a target's record: where it lies, under its unique name, and since when."""

    name: str
    folder: str
    flags: str
    at_us: int = 0


class TargetRecord(Struct, frozen=True):
    """The record of one target: effects by key, or the mails of a mailbox.

    `retention_us` is for how long it keeps what it has, in microseconds; None if for good.
    `drained_folders` are those that others take mails out of.
    """

    items: Iterable[TargetEffect] | None = None
    mails: list[Mail] | None = None
    drained_folders: frozenset[str] = frozenset()
    retention_us: int | None = None
