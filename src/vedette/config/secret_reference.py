"""Secrets by reference: no file of the fleet holds one, a table names where it is.

`NAME_env` names an environment variable, `NAME_file` a file, `NAME_secret` a version of a secret in
Secret Manager (`projects/P/secrets/S/versions/V`). Who reads the third is given by
`set_secret_fetcher`: this floor knows no vendor.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from vedette.domain.base.errors import BadFleet

# Returns the value of a version of a secret. Raises BadFleet and Unavailable.
SecretFetcher = Callable[[str], str]

_LITERAL = re.compile(r"(^|_)(token|secret|password|passwd|passphrase|api_?key|credentials?)\Z")
VERSION_PATTERN = (
    r"^projects/[a-z0-9][a-z0-9.:-]{0,99}/secrets/[A-Za-z0-9_-]{1,255}/versions/"
    r"([0-9]{1,19}|[A-Za-z][A-Za-z0-9_-]{0,62})$"
)
_VERSION = re.compile(VERSION_PATTERN)
_KINDS = ("env", "file", "secret")
_fetchers: list[SecretFetcher] = []


def set_secret_fetcher(fetch: SecretFetcher) -> None:
    """Have what tables refer to in Secret Manager read by this from now on."""
    _fetchers[:] = [fetch]


def is_secret_version(text: object) -> TypeGuard[str]:
    """Say whether a table's text names a version of a secret in Secret Manager."""
    return isinstance(text, str) and _VERSION.fullmatch(text) is not None


def is_secret_literal(key: str, value: object) -> bool:
    """Say whether a key of a table holds a secret itself, not a reference to one."""
    if key.endswith("_secret") and is_secret_version(value):
        return False
    return _LITERAL.search(key.lower()) is not None


def secret_names(table: Mapping[str, Any]) -> list[str]:
    """Return the names of the secrets that a table refers to, in order."""
    found = set()
    for key, value in table.items():
        name, _, kind = key.rpartition("_")
        if kind == "secret" and not is_secret_version(value):
            continue
        # A plain file may be named, too: it is a secret's if its name is that of one.
        if name and kind in _KINDS and (kind == "secret" or _LITERAL.search(name.lower())):
            found.add(name)
    return sorted(found)


def secret_keys(table: Mapping[str, Any], name: str) -> list[str]:
    """Return the keys of a table that refer to one secret: one, unless nobody checked it yet."""
    return [key for kind in _KINDS if table.get(key := f"{name}_{kind}")]


def require_secret(table: Mapping[str, Any], name: str, *, where: str) -> str:
    """Return a table's secret as `read_secret` does. Raises BadFleet if none is referred to."""
    found = read_secret(table, name, where=where)
    if found is None:
        raise BadFleet(f"has no {name}", where=where, mend=f"add {name}_env")
    return found


def read_secret(table: Mapping[str, Any], name: str, *, where: str) -> str | None:
    """Return the secret that `NAME_env`, `NAME_file` or `NAME_secret` of a table refers to.

    None if none of them is there. Raises BadFleet if what is named is not there, empty or of
    several lines, or if two are named; Unavailable if Secret Manager cannot be asked now.
    """
    given = secret_keys(table, name)
    if not given:
        return None
    if len(given) > 1:
        what = f"{given[0]} and {given[1]} are both given"
        raise BadFleet(what, where=where, mend="leave one")
    (named,) = given
    found = _READERS[named.rpartition("_")[2]](str(table[named]), where)
    if "\r" in found or "\n" in found:
        # No header and no URL can carry it, and whoever tries may print it in pieces.
        mend = "leave one line there, the secret alone"
        raise BadFleet(f"what {named} names has several lines", where=where, mend=mend)
    return found


def _read_environment(variable: str, where: str) -> str:
    found = os.environ.get(variable, "")
    if not found:
        mend = f"set {variable}"
        raise BadFleet(f"environment variable {variable} is not set", where=where, mend=mend)
    return found


def _read_file(file: str, where: str) -> str:
    try:
        found = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadFleet(f"cannot read {file}", where=where, mend="put the secret there") from error
    if not found:
        raise BadFleet(f"{file} is empty", where=where, mend="put the secret there")
    return found


def _read_secret_manager(version: str, where: str) -> str:
    if not is_secret_version(version):
        mend = "write projects/PROJECT/secrets/NAME/versions/latest"
        raise BadFleet(f"{version!r} is no version of a secret", where=where, mend=mend)
    if not _fetchers:
        what = "nothing here reads Secret Manager"
        raise BadFleet(
            what, where=where, mend="call vedette.adapters.identity.secrets.wire() first"
        )
    found = _fetchers[0](version)
    if not found:
        raise BadFleet(f"{version} is empty", where=where, mend="add a version that is not")
    return found


_READERS: Mapping[str, Callable[[str, str], str]] = {
    "env": _read_environment,
    "file": _read_file,
    "secret": _read_secret_manager,
}
