"""The upgrade of a fleet's store to this program's schema, ordered by hand while nothing runs.

The store says so in its ledger: the entry `store.upgraded` names the schema of before and who
ordered it. Whoever was killed before it stood orders the upgrade again, and it is written then.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from vedette.app.stores import open_reader, open_signing_key, open_store, store_exists
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.disk_errors import convert_disk_errors
from vedette.domain.base.errors import AlreadyDone, BadStore, VedetteError
from vedette.domain.base.state_folder import secure_folder
from vedette.domain.entry import Body, Draft
from vedette.domain.identity import Principal
from vedette.store.entry_upgrade import UPGRADED, Progress, UpgradeResult
from vedette.store.runner_lock import LOCK_FILE, acquire_lock
from vedette.store.schema import SCHEMA

if TYPE_CHECKING:
    from vedette.config.settings import Settings

# The id of the order in the store: its entry is written once, whoever is killed.
_COMMAND = f"upgrade:{SCHEMA}"


async def upgrade_store(
    settings: Settings, who: Principal, reason: str, progress: Progress
) -> tuple[UpgradeResult | None, Sequence[str]]:
    """Upgrade the settings' store; return what was done, None if it has this program's schema.

    With it come remarks for a person; that the entry is lacking is one, if the store was upgraded
    now. Raises StoreBusy if the fleet runs, BadStore for a store that does not verify, StoreFailed
    where the disk has no room, Unavailable without a server; then the store is whole as it was, and
    the same order goes on.
    """
    if not store_exists(settings):
        raise BadStore(
            "there is no store here", where=str(settings.state), mend="start `vedette run` once"
        )
    secure_folder(settings.state)
    with (
        convert_disk_errors(settings.state),
        acquire_lock(settings.state / LOCK_FILE, mend="stop it first"),
    ):
        done = _upgrade(settings, progress)
    try:
        return done, await _record_upgrade(settings, who, reason)
    except Exception as error:
        if done is None:
            raise
        # The new store is in its place: what was done is told all the same.
        what = error.what if isinstance(error, VedetteError) else str(error)
        return done, (
            f"the ledger does not say so yet ({what}): while nothing runs, `vedette upgrade` "
            "again makes it",
        )


def _upgrade(settings: Settings, progress: Progress) -> UpgradeResult | None:
    from vedette.adapters.signing_keys import KEY_FILE

    public = settings.state / "ledger.pub"
    try:
        key = public.read_text(encoding="utf-8").strip()
    except FileNotFoundError as error:
        raise BadStore(
            "the fleet's first public key is not here, and nothing can be proved without it",
            where=str(public), mend="put a copy of it there; one lies in every backup",
        ) from error  # fmt: skip
    # Before anything is made: what is upgraded must be signed after.
    if not (secret := settings.state / KEY_FILE).exists():
        raise BadStore(
            "the signing key of this store is missing", where=str(secret),
            mend="restore it; a new key would not match the ledger's checkpoints",
        )  # fmt: skip
    open_signing_key(settings)
    if settings.store.kind == "postgresql":
        from vedette.store.postgres.database import translate_server_errors
        from vedette.store.postgres.upgrade import upgrade_tables

        patience_s = settings.store.lease_us * 1.25 / 1e6
        with translate_server_errors():
            return upgrade_tables(settings.store.url(), key, progress, patience_s=patience_s)
    from vedette.store.sqlite.upgrade import upgrade_file

    return upgrade_file(settings.state, key, progress)


async def _record_upgrade(settings: Settings, who: Principal, reason: str) -> Sequence[str]:
    """Write the entry of an upgrade that has none yet; return what a person should know."""
    reader = open_reader(settings)
    try:
        before = reader.meta(UPGRADED)
        told = reader.database.rows("SELECT 1 FROM command WHERE id=?", (_COMMAND,))
    finally:
        reader.close()
    if before is None or told:
        return ()
    visiting = replace(settings, store=replace(settings.store, visit=True))
    store = open_store(visiting, SystemClock().now_us)
    try:
        draft = Draft(
            "store.upgraded", {"actor": str(who), "what": before},
            body=Body(canonical_json({"reason": reason})),
        )  # fmt: skip
        with suppress(AlreadyDone):
            await store.commands.append_entries([draft], command=_COMMAND)
        if store.loss is None:
            return ()
        return (f"{store.loss.sentence}; everything is stopped: see docs/guides/restore.md",)
    finally:
        store.close()
