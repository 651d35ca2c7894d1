"""The error tree: what is wrong, where, and the mend.

The only fork that code needs is permanent or temporary: a permanent error will come back
however often the work is repeated, a temporary one may not.
"""

from __future__ import annotations


class VedetteError(Exception):
    """The base of the error tree: something went wrong that a person can be told about.

    `code` is stable and may be matched on (`vedette explain --error CODE` tells more of it);
    `where` names a file, line or field; `mend` says what to change.
    """

    code = "error"

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        mend: str | None = None,
        code: str | None = None,
    ) -> None:
        if code is not None:
            self.code = code
        self.what = what
        self.where = where
        self.mend = mend
        text = f"{where}: {what}" if where else what
        super().__init__(f"{text} ({mend})" if mend else text)

    def to_json(self) -> dict[str, str | None]:
        """Return the error as the object that `--json` prints."""
        return {"code": self.code, "what": self.what, "where": self.where, "mend": self.mend}


class Permanent(VedetteError):
    """An error that repeating the work cannot mend."""

    code = "permanent"


class Unsendable(Permanent):
    """The error of one thing that will never be taken, whatever is mended; the next may be."""

    code = "unsendable"


class Temporary(VedetteError):
    """An error after which the same work may succeed later."""

    code = "temporary"


class BadFleet(Permanent):
    """The error of a wrong file of the fleet (agent, memory bank, settings)."""

    code = "bad-fleet"


class NoFleetHere(BadFleet):
    """The error where no settings file is where one was looked for."""

    code = "no-fleet-here"


class BadPolicy(Permanent):
    """The error of a policy folder that cannot become the live bundle."""

    code = "bad-policy"


class NoPolicy(BadPolicy):
    """The error where there is no policy folder, or nothing in it."""

    code = "no-policy"


class EngineFailed(Permanent):
    """The error of an engine that could not evaluate a policy: a panic, a limit, an error in it."""

    code = "engine-failed"


class BadEvent(Permanent):
    """The error of what a source delivered and is not an event we can accept."""

    code = "bad-event"


class BadProposal(Permanent):
    """The error of a proposal that is not an action (unknown tool, lost reference)."""

    code = "bad-proposal"


class RepeatedProposal(BadProposal):
    """The error of a proposal that is done for the same item of a task, by action `where`."""

    code = "repeated-proposal"


class BadConfidence(BadProposal):
    """The error of a judgement or a proposal whose confidence is no probability, 0..1."""

    code = "bad-confidence"


class BadNotes(Permanent):
    """The error of a judgement whose notes for the run's next turn are no JSON, or too long."""

    code = "bad-notes"


class TurnLimit(Permanent):
    """The error of a run that wants more turns than it may take."""

    code = "turn-limit"


class BadCommand(Permanent):
    """The error of a person's command that cannot be done as asked."""

    code = "bad-command"


class LooseningUnconfirmed(BadCommand):
    """The error of an order that loosens the policy unconfirmed; nothing was changed."""

    code = "loosening-unconfirmed"


class NotFound(BadCommand):
    """The error of a command or a question that names what is not in the record."""

    code = "not-found"


class DisplayMismatch(BadCommand):
    """The error of an order for what its person was not shown, or cannot be shown any more."""

    code = "not-shown"


class StateNotKept(BadCommand):
    """The error of an erasure of what a judge has observed before its state is kept."""

    code = "state-not-kept"


class AlreadyDone(BadCommand):
    """The error of a command whose id was carried out before; it is not done again."""

    code = "already-done"


class Forbidden(BadCommand):
    """The error of a command that the principal may not give."""

    code = "forbidden"


class FleetProcess(Forbidden):
    """The error of a command from a process that the fleet itself has started."""

    code = "fleet-process"


class StoreFailed(Temporary):
    """The error of a commit that was not made durable; nothing of it was answered."""

    code = "store-failed"


class WriteConflict(Temporary):
    """The error of an order outrun by another worker's publication or release: it goes behind."""

    code = "outrun"


class StoreBusy(Permanent):
    """The error of a store that another runner owns."""

    code = "store-busy"


class BadStore(Permanent):
    """The error of a store that we cannot read (another version, another fleet, damaged)."""

    code = "bad-store"


class DamagedSegment(BadStore):
    """The error of a segment of a store whose entries cannot be read."""

    code = "damaged-segment"


class Unavailable(Temporary):
    """The error of a part that is needed and not there (no running fleet, no engine)."""

    code = "unavailable"
