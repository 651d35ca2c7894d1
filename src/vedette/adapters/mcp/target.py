"""The target `mcp`: a server of tools, as a program on this machine or behind a URL."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vedette.adapters.mcp.server_table import (
    code_files,
    find_program,
    program_folders,
    server_memory,
)
from vedette.config.models import install_extra
from vedette.config.reach import parse_address
from vedette.config.secret_reference import is_secret_literal, secret_names
from vedette.domain.base.addresses import is_ip_address
from vedette.domain.base.urls import carries_secrets, parse_url
from vedette.domain.ports.plugin import BoxSettings, TableProblem, TargetPlugin

if TYPE_CHECKING:
    from vedette.domain.tool import Tool

_STDIO_KEYS = ("command", "read", "write", "environment", "secrets", "memory", "reach")
_HTTP_KEYS = ("url", "private", "token_header", "ca_file", "memory")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}\Z")
# They lead the engine's own processes elsewhere, or are the box's to say.
_OWN_VARIABLES = frozenset({"HOME", "TMPDIR", "LD_PRELOAD", "LD_LIBRARY_PATH"})


class McpTarget(TargetPlugin):
    """The target `mcp`: a server whose tools agents call, one process of it for each agent."""

    path_lists = ("command", "write")
    pins_tools = True

    def problems(
        self, table: Mapping[str, Any], targets: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[TableProblem]:
        """Yield what is wrong beyond what all targets hold to."""
        if find_spec("mcp") is None:
            yield ("kind",), "needs packages that are not installed", install_extra("mcp")
        if ("command" in table) == ("url" in table):
            yield (), "an mcp target is a program or a URL", "write one of command = and url ="
            return
        known = _STDIO_KEYS if "command" in table else _HTTP_KEYS
        secrets = secret_names(table)
        own = {"kind", *(f"{name}_{way}" for name in secrets for way in ("env", "file", "secret"))}
        for key in table:
            if key not in known and key not in own:
                yield (key,), "is no key of such an mcp target", f"there are: {', '.join(known)}"
        yield from _memory_problems(table)
        if "command" in table:
            yield from _program_problems(table, secrets)
        else:
            yield from _url_problems(table, secrets)

    def uses_udp(self, table: Mapping[str, Any]) -> bool:
        """Say whether its program has to ask name servers: one may reach a host by its name.

        Of a URL the engine looks up the host.
        """
        reached = [parse_address(text) for text in table.get("reach", ())]
        return not all(is_ip_address(host) for host, _ in reached)

    def folders(self, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield what a server's box opens: the key of the table, and a path."""
        for key in ("read", "write"):
            for path in table.get(key, ()):
                yield key, path
        if "command" in table:
            for path in program_folders(table["command"]):
                yield "command", path

    def probe_with(
        self, table: Mapping[str, Any], tools: Sequence[tuple[str, Tool]], box: BoxSettings
    ) -> Awaitable[str]:
        """List its tools and call none; say whether those of agents are as they were pinned."""
        from vedette.adapters.mcp.probe import probe_server

        return probe_server(table, tools, box)


def _memory_problems(table: Mapping[str, Any]) -> Iterator[TableProblem]:
    try:
        server_memory(table)
    except (ValueError, TypeError, AttributeError):
        yield ("memory",), "is no amount of memory", "write for example 512MiB or 2GiB"


def _program_problems(table: Mapping[str, Any], secrets: list[str]) -> Iterator[TableProblem]:
    command = table["command"]
    if not _is_texts(command) or not command:
        yield ("command",), "is no list of texts", 'write ["/path/of/program", "argument"]'
        return
    if find_program(command) is None:
        what = f"there is no program {command[0]!r}"
        yield ("command", 0), what, "install it, and write the path of the program"
    if Path(command[0]).name in ("npx", "uvx", "pipx", "docker"):
        what = f"{Path(command[0]).name} fetches and starts another program, which has no network"
        yield ("command", 0), what, "install the server, and write the path of its own program"
    written = table.get("write", [])
    if not _is_texts(written) or not all(path.startswith("/") for path in written):
        mend = 'write ["/srv/files"], or ["@state/files"]'
        yield ("write",), "is no list of absolute paths", mend
    yield from _code_problems(table)
    given = table.get("environment", {})
    if not isinstance(given, Mapping) or not all(isinstance(one, str) for one in given.values()):
        yield ("environment",), "is no table of texts", 'write {NAME = "value"}'
        return
    for name, value in given.items():
        if not _VARIABLE.match(name) or name in _OWN_VARIABLES:
            yield ("environment", name), f"{name!r} is no variable to set", "leave it out"
        elif is_secret_literal(name, value):
            what = "a secret does not stand in a file of the fleet"
            mend = f'write secrets = {{{name} = "token"}} and token_env ='
            yield ("environment", name), what, mend
    taken = table.get("secrets", {})
    if not isinstance(taken, Mapping):
        yield ("secrets",), "is no table", 'write {VARIABLE = "token"} and token_env ='
        return
    for name, secret in taken.items():
        if not _VARIABLE.match(name) or name in _OWN_VARIABLES:
            yield ("secrets", name), f"{name!r} is no variable to set", "leave it out"
        elif secret not in secrets:
            what = f"the table refers to no secret {secret!r}"
            yield (
                ("secrets", name),
                what,
                f"add {secret}_env =, {secret}_file = or {secret}_secret =",
            )


def _code_problems(table: Mapping[str, Any]) -> Iterator[TableProblem]:
    """Yield what is written to and is the server's own code, too: who writes there is the server.

    What `read` names may be code.
    """
    command, read, write = table["command"], table.get("read", []), table.get("write", [])
    if not (_is_texts(read) and _is_texts(write)):
        return  # said already
    code = [Path(one).resolve() for one in (*code_files(command), *program_folders(command))]
    for at, text in enumerate(write):
        path = Path(text).resolve()
        within = [one for one in code if path.is_relative_to(one)]
        held = [one for one in [*code, *(Path(one).resolve() for one in read)]
                if one.is_relative_to(path)]  # fmt: skip
        if within or held:
            what = (
                f"{text} would be written to, and the server is started from {[*held, *within][0]}"
            )
            yield ("write", at), what, "name a folder for its files alone"


def _url_problems(table: Mapping[str, Any], secrets: list[str]) -> Iterator[TableProblem]:
    parts = parse_url(str(table["url"]))
    if parts is None:
        return  # said of the URL itself
    if "private" in table and not isinstance(table["private"], bool):
        yield ("private",), "must be true or false", "write private = true"
    if "token" in secrets and not carries_secrets(parts):
        yield ("url",), "a token is not sent over plain HTTP", "write https"
    header = table.get("token_header")
    if header is not None and not (isinstance(header, str) and _HEADER.match(header)):
        yield ("token_header",), f"{header!r} is no name of a header", "write for example X-Api-Key"


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and one for one in value)


MCP = McpTarget()
