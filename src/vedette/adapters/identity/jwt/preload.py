"""Loads what checking a token is made of, so that no first request has the line wait for it."""

from __future__ import annotations


def preload() -> None:
    """Import the libraries: half a second of work, so call it in a thread."""
    import joserfc.jwk
    import joserfc.jws  # noqa: F401

    import vedette.adapters.http_client  # noqa: F401
