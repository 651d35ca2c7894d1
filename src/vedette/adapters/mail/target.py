"""What mail servers and mailboxes have in common as targets: texts, a server, a relay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vedette.adapters.mail.server_table import (
    PORTS,
    SECRET_KEYS,
    SERVER_KEYS,
    server_problems,
)
from vedette.domain.ports.plugin import TableProblem, TargetPlugin

_TEXTS = ("host", "user", "ca_file", "address", "drafts", "sent", "sending", "smtp", *SECRET_KEYS)

Targets = Mapping[str, Mapping[str, Any]]


class MailTarget(TargetPlugin):
    """A mailbox or a mail server as a target; one with `smtp` sends through the target named so."""

    protocol = ""  # that its own host speaks; "" is none

    def problems(self, table: Mapping[str, Any], targets: Targets) -> Iterator[TableProblem]:
        """Yield what is wrong: types first, then what they are put to."""
        found = list(_type_problems(table))
        if not found and self.protocol:
            found += server_problems(table)
        if not found and "smtp" in table:
            found += _relay_problems(table, targets)
        yield from found

    def resolve(self, table: Mapping[str, Any], targets: Targets) -> Mapping[str, Any]:
        """Return the table with what its relay's says, as `smtp_…`."""
        relay = targets.get(str(table.get("smtp", "")), {})
        return {**table, **{f"smtp_{key}": relay[key] for key in SERVER_KEYS if key in relay}}

    def addresses(self, table: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
        """Yield where its own server and its relay are."""
        for prefix, protocol in (("", self.protocol), ("smtp_", "smtp")):
            host, port = table.get(f"{prefix}host"), table.get(f"{prefix}port")
            if port is None and protocol:
                tls, ports = table.get(f"{prefix}tls"), PORTS[protocol]
                port = ports.get(str(tls)) if tls is not None else next(iter(ports.values()))
            if isinstance(host, str) and host and isinstance(port, int):
                yield host, port


def _type_problems(table: Mapping[str, Any]) -> Iterator[TableProblem]:
    for key in _TEXTS:
        if key in table and not (isinstance(table[key], str) and table[key]):
            yield (key,), "must be a text", f'write {key} = "…"'
    port = table.get("port")
    if "port" in table and not (type(port) is int and 0 < port < 65536):
        yield ("port",), f"{port!r} is no port", "write a number from 1 to 65535"
    if not isinstance(table.get("create_folders", False), bool):
        yield ("create_folders",), "must be true or false", "write create_folders = true"


def _relay_problems(table: Mapping[str, Any], targets: Targets) -> Iterator[TableProblem]:
    named = targets.get(table["smtp"])
    if named is None or named.get("kind") != "smtp":
        what = f"{table['smtp']!r} is no target of kind smtp"
        yield ("smtp",), what, f'add [targets.{table["smtp"]}] with kind = "smtp"'
    if not table.get("address"):
        what = "it is not said whom mails come from"
        yield ("smtp",), what, 'add address = "desk@example.com"'
