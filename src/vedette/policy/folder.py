"""The policy folder beside the live policy: when it speaks, and when it waits.

The folder is the developer's fast path: what is saved there becomes live by itself, if it loosens
nothing. It speaks only as long as folder and live policy have one history. After a publication
that did not come from it (a rollback, another folder, a mode set where the file could not be
written) it waits: its next save would bring back all that was taken back. It speaks again when it
says what is live, or when a person publishes it.
"""

from __future__ import annotations

from msgspec.structs import replace

from vedette.domain.base.errors import WriteConflict
from vedette.domain.bundle import Bundle, Revision
from vedette.domain.ports.store import Store, StoreReader
from vedette.policy.rollout import PublishRequest, PublishResult, Rollout

# The digest of the folder as it was last looked at, and why that is not live, if it is not.
POLICY_FOLDER, POLICY_REFUSED = "policy_folder", "policy_folder_refused"
# The number of the revision that was live when the folder last said the same.
POLICY_AGREED = "policy_folder_agreed"

_PUBLISH_HINT = "`vedette policy publish --reason TEXT` shows what it changes and asks"


async def remember_folder(store: Store, digest: str, live: Revision, why_not: str = "") -> None:
    """Remember what the policy folder says, and why that is not live, if it is not."""
    await _set_if_changed(store, POLICY_FOLDER, digest)
    await _set_if_changed(store, POLICY_REFUSED, why_not)
    if digest == live.digest:
        await _set_if_changed(store, POLICY_AGREED, str(live.number))


async def _set_if_changed(store: Store, name: str, value: str) -> None:
    if (store.meta(name) or "") != value:
        await store.commands.set_meta(name, value)


def is_folder_waiting(store: StoreReader, live: Revision) -> bool:
    """Say whether the policy folder waits: what is live was published by another way since."""
    return (
        store.meta(POLICY_AGREED) != str(live.number) and store.meta(POLICY_FOLDER) != live.digest
    )


async def offer_folder(
    store: Store, rollout: Rollout, bundle: Bundle, request: PublishRequest
) -> str:
    """Publish the policy folder if it says something new, loosens nothing, and need not wait.

    Returns why it is not live; "" if it is.
    """
    live = rollout.live
    if live.number and bundle.digest != live.digest:
        if bundle.digest == store.meta(POLICY_FOLDER):
            return store.meta(POLICY_REFUSED) or folder_wait_reason(live)
        if is_folder_waiting(store, live):
            await remember_folder(store, bundle.digest, live, folder_wait_reason(live))
            return folder_wait_reason(live)
    result = None
    if bundle.digest != live.digest:
        try:
            result = await rollout.publish(bundle, replace(request, expected_revision=live.number))
        except WriteConflict:  # then the folder waits, as after any publication from elsewhere
            return f"another revision was published meanwhile: {_PUBLISH_HINT}"
    why_not = folder_refusal_reason(result)
    if result is None or all(finding.verdict for finding in result.findings):
        # A trial that came to no verdict was no answer: the folder is to be offered again.
        await remember_folder(store, bundle.digest, rollout.live, why_not)
    return why_not


def folder_refusal_reason(result: PublishResult | None) -> str:
    """Return why a policy folder that was offered is not live; "" if it is."""
    if result is None or result.ok:
        return ""
    if result.findings:
        return str(result.findings[0])
    first, *rest = result.loosening.statements
    more = f" and {len(rest)} more" if rest else ""
    return f"it loosens what is live ({first}{more}): {_PUBLISH_HINT}"


def folder_wait_reason(live: Revision) -> str:
    """Return why the policy folder waits: what is live was not published from it."""
    return (
        f"the folder waits, as revision {live.number} was not published from it: bring it to what "
        f"is live (`vedette policy diff`), or {_PUBLISH_HINT}"
    )
