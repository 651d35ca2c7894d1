"""Policy history: every revision with who made it live and why, and how two bundles differ."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import orjson
from msgspec import Struct

from vedette.domain.ports.store import StoreReader

# So many lines around a change, as `diff -u` shows.
CONTEXT = 3
_NO_END = "\\ No newline at end of file"


def history(record: StoreReader) -> list[dict[str, Any]]:
    """Return the policy's history in the record: every revision, newest first.

    What the entry told is None where the entry is archived; the reason is None where it was erased.
    """
    publications: dict[int, tuple[int, dict[str, Any], bytes | None]] = {}
    for seq, raw, _, body in record.ledger.walk(("policy.published",)):
        entry = orjson.loads(raw)
        publications[entry["policy_rev"]] = (seq, entry, body)
    return [
        _row(number, digest, at, publications.get(number))
        for number, digest, at in record.policy.revisions()
    ]


def _row(
    number: int, digest: str, at: int, publication: tuple[int, dict[str, Any], bytes | None] | None
) -> dict[str, Any]:
    seq, entry, body = publication if publication is not None else (None, {}, None)
    return {
        "revision": number,
        "digest": digest,
        "at": at,
        "by": entry.get("actor"),
        "reason": orjson.loads(body).get("reason") if body else None,
        "commit": entry.get("commit"),
        "rolled_back_to": entry.get("back_to"),
        "archive": entry.get("archive"),
        "signer": entry.get("signer"),
        "engine": entry.get("engine"),
        "entry": seq,
    }


class Difference(Struct, frozen=True):
    """One file that two bundles do not have alike; `text` is the change as `diff -u` writes it."""

    path: str
    how: str
    text: str


def differences(
    old: Mapping[str, bytes], new: Mapping[str, bytes], names: tuple[str, str]
) -> list[Difference]:
    """Return how two bundles of the policy's history differ, file by file. `names` tell the two."""
    found = []
    for path in sorted(old.keys() | new.keys()):
        before, after = old.get(path), new.get(path)
        if before == after:
            continue
        how = "added" if before is None else "removed" if after is None else "changed"
        found.append(Difference(path, how, _unified(path, before, after, names)))
    return found


def _unified(path: str, old: bytes | None, new: bytes | None, names: tuple[str, str]) -> str:
    lines = difflib.unified_diff(
        _lines(old), _lines(new),
        "/dev/null" if old is None else f"{names[0]}/{path}",
        "/dev/null" if new is None else f"{names[1]}/{path}",
        n=CONTEXT,
    )  # fmt: skip
    return "".join(line if line.endswith("\n") else f"{line}\n{_NO_END}\n" for line in lines)


def _lines(raw: bytes | None) -> list[str]:
    """Return the lines with their ends; only a line feed ends one."""
    text = "" if raw is None else raw.decode("utf-8", "replace")
    *lines, last = text.split("\n")
    return [*(f"{line}\n" for line in lines), *([last] if last else [])]
