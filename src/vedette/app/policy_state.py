"""State of the policy folder, the record and the bundle repository, beside the live policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from vedette.domain.base.errors import BadPolicy, Unavailable
from vedette.domain.bundle import Bundle, Revision

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.store.reader import StoreReader

_MAX_REFUSALS = 3


def folder_digest(settings: Settings) -> str | None:
    """Return the digest of the settings' policy folder; None where it cannot be read."""
    from vedette.adapters.policy_engines.regorus.stage import read_bundle

    try:
        return read_bundle(settings.policies).digest
    except BadPolicy:
        return None


def live_bundle(settings: Settings, store: StoreReader | None) -> tuple[int, Bundle]:
    """Return the live revision and its bundle; 0 and that of the folder where none is live."""
    from vedette.adapters.policy_engines.regorus.stage import read_bundle

    number, digest = store.policy.live_revision() if store is not None else (0, "")
    files = store.policy.bundle_files(digest) if store is not None and number else None
    found = (
        Bundle.from_record(files, digest) if files is not None else read_bundle(settings.policies)
    )
    return number, found


def folder_state(settings: Settings, store: StoreReader) -> dict[str, Any]:
    """Return whether the policy folder differs from what is live, or waits, and that in words."""
    from vedette.adapters.policy_engines.regorus.stage import read_bundle
    from vedette.policy.folder import (
        POLICY_FOLDER,
        POLICY_REFUSED,
        folder_wait_reason,
        is_folder_waiting,
    )

    live = Revision(*store.policy.live_revision())
    waits = is_folder_waiting(store, live)
    state: dict[str, Any] = {"path": str(settings.policies), "digest": None, "differs": True}
    try:
        digest = read_bundle(settings.policies).digest
    except BadPolicy as error:
        return {**state, "waits": waits, "says": str(error)}
    state["digest"] = digest
    if digest == live.digest:
        return {**state, "differs": False, "waits": False, "says": "the same as live"}
    says = f"differs from live (digest {digest[:12]}); `vedette check policy` says if it may be"
    why_not = store.meta(POLICY_REFUSED) if store.meta(POLICY_FOLDER) == digest else None
    if waits:
        why_not = folder_wait_reason(live)
    if why_not:
        says = f"differs from live (digest {digest[:12]}): {why_not}"
    return {**state, "waits": waits, "says": says}


def policy_status(settings: Settings, store: StoreReader) -> dict[str, Any]:
    """Return the live policy: who published it and why, the policy folder, the last refusals."""
    number, digest = store.policy.live_revision()
    published = _last_entries(store, "policy.published", 1)
    entry, body = published[0] if published else ({"at": 0}, {})
    return {
        "revision": number,
        "digest": digest,
        "since": entry["at"],
        "by": entry.get("actor"),
        "reason": (body or {}).get("reason"),
        "engine": entry.get("engine"),
        "commit": entry.get("commit"),
        "archive": entry.get("archive") or "",
        "signer": entry.get("signer"),
        "folder": folder_state(settings, store),
        "shelf": _repository_state(settings, number, digest),
        "refusals": [
            {
                "at": refused["at"],
                "by": refused.get("actor"),
                "bundle": refused.get("bundle"),
                "findings": (why or {}).get("findings", ["(erased)"]),
            }
            for refused, why in _last_entries(store, "policy.refused", _MAX_REFUSALS)
        ],
    }


def _last_entries(store: StoreReader, kind: str, number: int) -> list[tuple[dict[str, Any], Any]]:
    """Return the last entries of a kind with their bodies, newest first."""
    found = list(store.ledger.walk((kind,)))[-number:]
    return [
        (orjson.loads(raw), orjson.loads(data) if data else None)
        for _, raw, _, data in reversed(found)
    ]


def _repository_state(settings: Settings, number: int, digest: str) -> dict[str, Any] | None:
    """Say what lies in the fleet's bundle repository, verified; None if it has none."""
    from vedette.app.policy_publication import FolderSigner, bundle_name, open_bundle_repository
    from vedette.policy.distribution import read_repository

    repository = open_bundle_repository(settings)
    if repository is None:
        return None
    state: dict[str, Any] = {"where": repository.where, "revision": None, "ok": False}
    signer = FolderSigner(settings.state)
    try:
        found = read_repository(repository, bundle_name(settings.fleet), signer, number)
    except (BadPolicy, Unavailable) as error:
        return {**state, "says": str(error)}
    if found is None:
        return {**state, "says": "nothing is there; a fleet that runs puts the live one there"}
    there, what = found
    if found == (number, digest):
        says = f"revision {there}, verified; it is the live one"
    else:
        says = f"revision {there} (digest {what[:12]}), verified; {number} is live"
    return {**state, "revision": there, "ok": found == (number, digest), "says": says}
