"""The error tree: what is wrong, where, and the mend.

The only fork that code needs is permanent or temporary: a permanent error will come back
however often the work is repeated, a temporary one may not.
"""

from __future__ import annotations


class VedetteError(Exception):
    """Something went wrong that a person can be told about.

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
    """Repeating the work cannot help."""

    code = "permanent"


class Unsendable(Permanent):
    """This one thing will never be taken, whatever is mended around it; the next may be."""

    code = "unsendable"


class Temporary(VedetteError):
    """The same work may succeed later."""

    code = "temporary"


class BadFleet(Permanent):
    """A file of the fleet (agent, memory bank, settings) is wrong."""

    code = "bad-fleet"


class NoFleetHere(BadFleet):
    """There is no settings file where one was looked for."""

    code = "no-fleet-here"


class BadPolicy(Permanent):
    """A policy folder cannot become the live bundle."""

    code = "bad-policy"


class NoPolicy(BadPolicy):
    """There is no policy folder, or nothing in it."""

    code = "no-policy"


class EngineFailed(Permanent):
    """The engine could not evaluate: a panic, a limit, or an error inside the policy."""

    code = "engine-failed"


class BadEvent(Permanent):
    """What a source delivered is not an event we can accept."""

    code = "bad-event"


class BadProposal(Permanent):
    """A reasoner proposed something that is not an action (unknown tool, lost reference)."""

    code = "bad-proposal"


class BadConfidence(BadProposal):
    """A judgement or a proposal does not say how sure it is as a probability, 0..1."""

    code = "bad-confidence"


class BadCommand(Permanent):
    """A person asked for something that cannot be done as asked."""

    code = "bad-command"


class LooseningUnconfirmed(BadCommand):
    """An order loosens the policy and nobody confirmed it; nothing was changed."""

    code = "loosening-unconfirmed"


class NotFound(BadCommand):
    """What a command or a question names is not in the record."""

    code = "not-found"


class DisplayMismatch(BadCommand):
    """What an order is for is not what its person was shown, or cannot be shown any more."""

    code = "not-shown"


class StateNotKept(BadCommand):
    """A judge has observed what is to be erased, and its state is not kept yet."""

    code = "state-not-kept"


class AlreadyDone(BadCommand):
    """A command of this id was carried out before; it is not done again."""

    code = "already-done"


class Forbidden(BadCommand):
    """The principal may not give this command."""

    code = "forbidden"


class FleetProcess(Forbidden):
    """Whoever asks was started by the fleet that it would give commands to."""

    code = "fleet-process"


class StoreFailed(Temporary):
    """The store could not make a commit durable; nothing of that commit was answered."""

    code = "store-failed"


class WriteConflict(Temporary):
    """Another worker published or released in between; the same order goes behind it."""

    code = "outrun"


class StoreBusy(Permanent):
    """Another runner owns this store."""

    code = "store-busy"


class BadStore(Permanent):
    """The store is not one we can read (another version, another fleet, damaged)."""

    code = "bad-store"


class Unavailable(Temporary):
    """A part that this needs is not there (no running fleet, no engine)."""

    code = "unavailable"
