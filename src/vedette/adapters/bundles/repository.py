"""Repositories of signed bundles: a folder, or a bucket of Google Cloud Storage."""

from __future__ import annotations

from vedette.adapters.bundles.bucket import BucketRepository
from vedette.adapters.bundles.directory import DirectoryRepository

__all__ = ["BucketRepository", "DirectoryRepository", "open_repository"]


def open_repository(where: str) -> DirectoryRepository | BucketRepository:
    """Return the repository of `[policy] bundles`: an absolute folder, or gs://BUCKET/PREFIX.

    Nothing is looked at yet. Raises BadFleet for a bucket without a name.
    """
    if where.startswith("gs://"):
        return BucketRepository.from_url(where)
    return DirectoryRepository(where)
