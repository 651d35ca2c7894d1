"""Loads the libraries that check a JWT, so that no first request has the line wait for them."""

from __future__ import annotations


def preload() -> None:
    """Import what checks a JWT (joserfc): half a second of work, so call it in a thread."""
    import joserfc.jwk
    import joserfc.jws  # noqa: F401

    import vedette.adapters.http_client  # noqa: F401
