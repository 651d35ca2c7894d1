"""The port of the live policy, the revisions before it, and what is stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from vedette.domain.stop import Stop


class PolicyReader(Protocol):
    """The port of what policy was published, and what is in force."""

    def live_revision(self) -> tuple[int, str]:
        """Return the live policy revision and its bundle's digest; (0, '') before the first."""
        ...

    def revisions(self) -> list[tuple[int, str, int]]:
        """Return (number, digest, instant) of every revision there was, newest first."""
        ...

    def bundle_files(self, digest: str) -> Mapping[str, bytes] | None:
        """Return the files of a recorded bundle. Raises BadPolicy for a row that was changed."""
        ...

    def published_wasm(self, digest: str) -> str | None:
        """Return the digest of the Wasm that a bundle was published with last, if any was."""
        ...

    def stop_scopes(self) -> list[tuple[str, str]]:
        """Return what is stopped: (scope, name) with scope all, agent or tool."""
        ...

    def active_stops(self) -> list[Stop]:
        """Return the stops in force, with the entries that set them and when they end."""
        ...
