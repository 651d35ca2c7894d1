"""Compatibility: whether this version's check admits the live policy, be it of another version.

A bundle is tried out before it is published, by the version of then. What a later version refuses
stays live, since to drop it would stop the fleet at an upgrade, and is told wherever a person
looks: at the start, in `status` and in `policy status`. The answer is kept with the store, so a
policy is tried once by each version.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson

import vedette
from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.bundle import Bundle, Finding
from vedette.domain.ports.store import StoreReader

CHECK_MARK = "policy_checked"
# What says what is admitted: all that reads, compares and tries Rego.
_CODE = (
    "adapters/policy_engines/regorus",
    "adapters/policy_engines/opa_wasm",
    "policy/bundle_data.py",
    "policy/golden_requests.py",
    "config/yaml.py",
)


@cache
def checker_digest() -> str:
    """Return the digest of the code by which this version checks a policy."""
    root = Path(vedette.__file__).parent
    files = [
        file
        for name in _CODE
        for file in sorted((root / name).rglob("*.py") if (root / name).is_dir() else [root / name])
    ]
    return sha256_hex(b"\0".join(file.read_bytes() for file in files))


def build_check_mark(digest: str, findings: Sequence[str]) -> dict[str, str]:
    """Return what the store's meta keeps of this version's check of a policy bundle."""
    value = {"bundle": digest, "checker": checker_digest(), "findings": list(findings)}
    return {CHECK_MARK: canonical_json(value).decode()}


def read_check(store: StoreReader, digest: str) -> list[str] | None:
    """Return what this version's check found in a policy bundle; None if it did not look yet."""
    text = store.meta(CHECK_MARK)
    value: Any = orjson.loads(text) if text else {}
    if (value.get("bundle"), value.get("checker")) != (digest, checker_digest()):
        return None
    found: list[str] = value["findings"]
    return found


async def check_live(
    store: StoreReader, digest: str, try_out: Callable[[Bundle], Awaitable[Sequence[Finding]]]
) -> list[str] | None:
    """Return what this version's check finds in the live policy; None if it could not say.

    Looks up what is kept, else tries the bundle out. A trial that was too slow finds nothing out.
    """
    known = read_check(store, digest)
    files = store.policy.bundle_files(digest)
    if known is not None or files is None:
        return known
    findings = await try_out(Bundle.from_record(files, digest))
    if any(not finding.verdict for finding in findings):
        return None
    return [str(finding) for finding in findings]


def format_refusal(number: int, findings: Sequence[str]) -> str:
    """Say that the live policy is one that this version refuses."""
    more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
    return (
        f"this version's check refuses the live policy, revision {number}: {findings[0]}{more}. It "
        "stays live as it was admitted; mend the policy folder and publish it"
    )
