"""The parts of the store's writer: what writes a group, over the writing connection."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from vedette.domain.base.errors import BadStore
from vedette.ledger.merkle import SigningKey
from vedette.store.dialect import Database
from vedette.store.ledger_writer import LedgerWriter
from vedette.store.meta import STOP_EPOCH, read_meta
from vedette.store.witness import Witness
from vedette.store.write_buffer import WriteBuffer
from vedette.store.write_commands import CommandWriter
from vedette.store.write_runs import Fences, StepWriter


class WriteParts(Struct):
    """Parts of the store's writer, for who writes the group in its transaction: its thread, or its
    event loop.
    """

    database: Database
    witness: Witness
    ledger: LedgerWriter
    buffer: WriteBuffer
    fences: Fences
    steps: StepWriter
    commands: CommandWriter
    now_us: Callable[[], int]

    def reload(self) -> None:
        """Take fences and steps from what stands.

        A publication, a stop or a step moves them as soon as it has its place in a group; if the
        item or the group is lost they must not stay ahead of the store, or every later step would
        be refused.
        """
        self.steps.forget()
        ((policy_rev,),) = self.database.rows("SELECT COALESCE(MAX(number),0) FROM policy")
        self.fences.policy_rev = int(policy_rev)
        self.fences.stop_epoch = int(read_meta(self.database, STOP_EPOCH) or 0)


def open_write_parts(
    database: Database,
    witness: Witness,
    fences: Fences,
    *,
    fleet: str,
    key: SigningKey,
    key_name: str,
    now_us: Callable[[], int],
) -> WriteParts:
    """Return what writes a fleet's store. Raises BadStore for another fleet's, or another key."""
    named = read_meta(database, "fleet")
    if named not in (None, fleet):
        raise BadStore(
            f"this store belongs to the fleet {named!r}, not {fleet!r}",
            where=str(witness.path.parent),
            mend="use another state folder or the fleet's own name",
        )
    ledger = LedgerWriter(
        database, origin=f"vedette/{fleet}", key_name=key_name, key=key, witness=witness,
        now_us=now_us,
    )  # fmt: skip
    buffer = WriteBuffer(database, ledger)
    shared = (database, ledger, buffer, fences, now_us)
    steps, commands = StepWriter(*shared), CommandWriter(*shared)
    return WriteParts(database, witness, ledger, buffer, fences, steps, commands, now_us)
