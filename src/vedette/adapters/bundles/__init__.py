"""Signed bundle archives: what an OPA server loads, and what a fleet reads back byte for byte."""

from __future__ import annotations

from vedette.adapters.bundles.archive import Manifest, format_revision, pack, parse_revision, unpack
from vedette.adapters.bundles.key import KEY_FILE, PUBLIC_FILE, PolicyKey

__all__ = [
    "KEY_FILE",
    "PUBLIC_FILE",
    "Manifest",
    "PolicyKey",
    "format_revision",
    "pack",
    "parse_revision",
    "unpack",
]
