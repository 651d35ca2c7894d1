"""The publication of a fleet's policy: who signs its revisions, and where others find them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vedette.domain.base.errors import BadPolicy
from vedette.domain.bundle import Bundle
from vedette.policy.distribution import BundleDistributor

if TYPE_CHECKING:
    from vedette.adapters.bundles import PolicyKey
    from vedette.config.settings import Settings
    from vedette.domain.ports.bundle_repository import BundleRepository
    from vedette.domain.ports.store import Store


class FolderSigner:
    """Signs policy with the key of a state folder (`policy.key`), loaded when it is needed."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._key: PolicyKey | None = None

    def key_id(self, *, make: bool) -> str | None:
        """Return the id of the key here; None if there is none and none is to be made."""
        key = self._load_key(make=make)
        return key.id if key is not None else None

    def pack(
        self, bundle: Bundle, number: int, who: str, commit: str | None, at_us: int,
        wasm: bytes | None = None,
    ) -> bytes:  # fmt: skip
        """Return the signed archive of a bundle as a revision. Raises BadPolicy."""
        from vedette.adapters.bundles import pack

        key = self._load_key(make=True)
        assert key is not None
        return pack(
            bundle, number=number, key=key, signer=who, commit=commit, reason="", at_us=at_us,
            wasm=wasm,
        )  # fmt: skip

    def public_key(self) -> str:
        """Return the PEM of the public half of the key here, which is made if there is none."""
        key = self._load_key(make=True)
        assert key is not None
        return key.public.decode("ascii")

    def read(self, raw: bytes, public: str | None = None) -> tuple[int, str]:
        """Return the number and bundle digest of an archive that a key signed: the one here.

        `public_key` is the PEM of another. Raises BadPolicy, BadStore if the key here is none.
        """
        from vedette.adapters.bundles import unpack

        if public is None:
            key = self._load_key(make=False)
            if key is None:
                mend = "copy policy.key of the worker that publishes into this state folder"
                raise BadPolicy("there is no policy key to verify it with", mend=mend)
            public = key.public.decode("ascii")
        _, manifest = unpack(raw, public.encode("ascii"))
        return manifest.number, manifest.digest

    def _load_key(self, *, make: bool) -> PolicyKey | None:
        from vedette.adapters.bundles import KEY_FILE, PolicyKey

        if self._key is None and (make or (self._state / KEY_FILE).exists()):
            self._key = PolicyKey.open(self._state)
        return self._key


def open_bundle_repository(settings: Settings) -> BundleRepository | None:
    """Wire the bundle repository that [policy] of the settings names, if it names one."""
    if settings.deployment.policy.bundles is None:
        return None
    from vedette.adapters.bundles.repository import open_repository

    return open_repository(settings.deployment.policy.bundles)


def bundle_name(fleet: str) -> str:
    """Return the name under which a fleet publishes its bundle, in a repository and over HTTP."""
    return f"{fleet}.tar.gz"


def build_distributor(
    settings: Settings, record: Store, now_us: Callable[[], int]
) -> BundleDistributor:
    """Wire what signs this fleet's policy revisions and hands them to others."""
    distributor = BundleDistributor(
        record,
        FolderSigner(settings.state),
        open_bundle_repository(settings),
        bundle_name(settings.fleet),
        now_us,
    )
    distributor.refresh()
    return distributor
