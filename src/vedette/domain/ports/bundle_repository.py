"""The port of a bundle repository: where signed bundles are put for whoever else reads them."""

from __future__ import annotations

from typing import Protocol


class BundleRepository(Protocol):
    """The port of a folder or a bucket. Names are paths with "/"; calls wait for disk or network.

    What cannot be done now raises Unavailable; the caller tries again.
    """

    where: str

    def get(self, name: str) -> tuple[bytes, str] | None:
        """Return the bytes under a name and their version; None if there are none."""
        ...

    def put(self, name: str, raw: bytes) -> None:
        """Put bytes under a name that tells their content: durable when this returns.

        What is there already stays. Raises BadPolicy if that is something else.
        """
        ...

    def replace(self, name: str, raw: bytes, version: str | None) -> bool:
        """Put bytes under a name if it still has this version (None: it does not exist).

        Returns whether it had. Durable when this returns; readers see the old bytes or the new.
        """
        ...
