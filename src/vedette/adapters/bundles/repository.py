"""Shelves for signed bundles: a folder, or a bucket of Google Cloud Storage."""

from __future__ import annotations

from vedette.adapters.bundles.bucket import BucketShelf
from vedette.adapters.bundles.directory import DirectoryShelf

__all__ = ["BucketShelf", "DirectoryShelf", "open_shelf"]


def open_shelf(where: str) -> DirectoryShelf | BucketShelf:
    """Return the shelf of `[policy] bundles`: an absolute folder, or gs://BUCKET/PREFIX.

    Nothing is looked at yet. Raises BadFleet for a bucket without a name.
    """
    if where.startswith("gs://"):
        return BucketShelf.of(where)
    return DirectoryShelf(where)
