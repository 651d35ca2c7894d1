"""Erasures of content: whose is to go, what would go with it, and what went."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from vedette.domain.action import hold_id
from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.base.errors import BadCommand
from vedette.domain.run import ActionRow, Run


class ErasureTarget(Struct, frozen=True):
    """The target of an erasure: content of an event (id), of a subject, or of one entry (seq)."""

    by: Literal["event", "subject", "entry"]
    value: str | int

    @classmethod
    def of(
        cls, *, event: str | None = None, subject: str | None = None, entry: int | None = None
    ) -> ErasureTarget:
        """Return the one that is given. Raises BadCommand if it is not exactly one."""
        if sum(given is not None for given in (event, subject, entry)) != 1:
            mend = "give one of event:ID, subject:WHO and entry:SEQ"
            raise BadCommand("say what to erase", mend=mend)
        if event is not None:
            return cls("event", event)
        return cls("subject", subject) if subject is not None else cls("entry", entry or 0)


class ErasureSurvey(Struct, frozen=True):
    """What an erasure would find: keys of events, their runs, contents, and what waits on them.

    `bodies` are the entries (seq) whose content would go, in order; `open_runs` the runs that have
    not ended, `holds` the actions of those that are held. It would have to deny these, or is
    refused.
    """

    events: tuple[str, ...]
    runs: int
    bodies: tuple[int, ...]
    open_runs: tuple[Run, ...]
    holds: tuple[ActionRow, ...]

    @property
    def body_count(self) -> int:
        """Return how many contents would go."""
        return len(self.bodies)

    @property
    def digest(self) -> str:
        """Return the digest (SHA-256, hexadecimal) of what would go and of what would be ended."""
        value = {
            "schema": "vedette.survey/1",
            "events": list(self.events),
            "bodies": list(self.bodies),
            "open": [run.id for run in self.open_runs],
            "holds": [row.id for row in self.holds],
        }
        return sha256_hex(canonical_json(value))

    def to_json(self, memories: int) -> dict[str, Any]:
        """Return it as `--json` prints it; `memories` were learned of it."""
        return {
            "events": list(self.events),
            "runs": self.runs,
            "contents": self.body_count,
            "memories": memories,
            "open": [
                {"run": run.id, "state": run.state, "waits": run.waits} for run in self.open_runs
            ],
            "holds": [
                {"hold": hold_id(row.id), "tool": row.tool, "run": row.run} for row in self.holds
            ],
            "digest": self.digest,
        }


class ErasureResult(Struct, frozen=True):
    """What was erased: the digests of the bodies, and the keys of the events they belonged to.

    `is_scrubbed` is false while a reader keeps older pages of the store's files from being cut.
    """

    digests: tuple[str, ...]
    events: tuple[str, ...]
    is_scrubbed: bool = True
