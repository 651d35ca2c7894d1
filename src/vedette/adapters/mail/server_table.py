"""The table of a mail server, as the source `imap`, the targets `imap` and `smtp` have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vedette.config.secret_reference import secret_keys
from vedette.domain.base.urls import is_loopback
from vedette.domain.ports.plugin import TableProblem

# The ports of a protocol by its TLS; the first is what is meant where a table says neither.
PORTS: Mapping[str, Mapping[str, int]] = {
    "imap": {"implicit": 993, "starttls": 143, "none": 143},
    "smtp": {"starttls": 587, "implicit": 465, "none": 25},
}
SECRET_KEYS = ("password_env", "password_file", "password_secret")
# What a session with a server is opened with.
SERVER_KEYS = ("host", "port", "tls", "user", *SECRET_KEYS, "ca_file")


def server_problems(table: Mapping[str, Any]) -> Iterator[TableProblem]:
    """Yield what is wrong with what a table says of its mail server."""
    tls, host = table.get("tls"), str(table.get("host", ""))
    if tls is not None and tls not in PORTS["imap"]:
        yield ("tls",), f"{tls!r} is not known", "write implicit, starttls or none"
    if tls == "none" and not is_loopback(host):
        what = "a password and mails would go over the net for all to read"
        yield ("tls",), what, "write tls = implicit or starttls"
    given = secret_keys(table, "password")
    if len(given) > 1:
        yield (), "password is referred to more than once", "leave one of _env, _file and _secret"
    if table.get("user") and not given:
        yield ("user",), "has no password", "add password_env ="
    if given and not table.get("user"):
        yield (), "there is a password and nobody it is of", "add user ="
