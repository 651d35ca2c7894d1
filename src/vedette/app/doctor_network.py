"""Outside: the targets, sources and secrets that the settings name, looked at from here.

A target or source is logged into where its adapter has a `probe`; what nobody can look at is said
to be not tested. Nothing is sent, taken or written.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from vedette.app.doctor import Seen
from vedette.config.plugins import plugins
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import VedetteError
from vedette.domain.ports.plugin import NOTIFIERS, SOURCES, Plan

if TYPE_CHECKING:
    from vedette.config import Settings

WAIT_S = 5.0

# Where the probe of a target's kind is found. A missing one is no fault.
PROBES: Mapping[str, str] = {
    "imap": "vedette.adapters.mail.imap",
    "smtp": "vedette.adapters.mail.smtp",
    "http": "vedette.adapters.http",
}


def secrets(settings: Settings) -> Iterator[Seen]:
    """Resolve every reference to a secret; none is shown."""
    from vedette.config.secret_reference import read_secret, references

    tables = [(f"[targets.{name}]", table) for name, table in settings.targets.items()]
    tables += [
        (
            f"sender {one.name}",
            {f: getattr(one, f) for f in ("token_env", "token_file", "token_secret")},
        )
        for one in settings.senders
    ]
    for plan in (*settings.sources, *settings.notify.to):
        names = getattr(plan, "__slots__", ()) or vars(plan)
        fields = {f: getattr(plan, f) for f in names}
        server = fields.get("server")
        fields |= dict(server) if isinstance(server, Mapping) else {}
        tables.append((plan.name, fields))
    for where, table in tables:
        given = {key: value for key, value in table.items() if isinstance(value, str) and value}
        for name in references(given):
            try:
                read_secret(given, name, where=where)
            except VedetteError as error:
                yield Seen(f"secret {name} of {where}", "fail", error.what, error.mend or "")
            else:
                yield Seen(f"secret {name} of {where}", "ok", "is there")


async def outside(settings: Settings, dates: dict[str, tuple[str, int]]) -> list[Seen]:
    """Look at every target and source; `dates` takes the Date that a server gave, and when."""
    looks = [
        *(
            _bounded(f"target {name}", _target(f"target {name}", table))
            for name, table in settings.targets.items()
        ),
        *(_bounded(f"source {plan.name}", _source(plan, dates)) for plan in settings.sources),
        *(_bounded(f"notices to {one.name}", _notices(one)) for one in settings.notify.to),
    ]
    return list(await asyncio.gather(*looks))


async def _bounded(what: str, look: Coroutine[Any, Any, Seen]) -> Seen:
    try:
        async with asyncio.timeout(2 * WAIT_S):
            return await look
    except TimeoutError:
        return Seen(what, "fail", f"no answer within {2 * WAIT_S:.0f} s", "see whether it runs")
    except VedetteError as error:
        return Seen(what, "fail", error.what, error.mend or "see its settings in vedette.toml")
    except OSError as error:
        told = str(error.strerror or error) or type(error).__name__
        return Seen(what, "fail", told, "see whether it runs and the address is right")
    except ValueError as error:  # a host that is no name, a secret that cannot be said
        told = f"cannot be asked: {type(error).__name__}"
        return Seen(what, "fail", told, "see its address and its secrets")


async def _target(what: str, table: Mapping[str, Any]) -> Seen:
    kind = str(table.get("kind"))
    probe = probe_of(kind)
    if probe is not None:
        return Seen(what, "ok", str(await probe(table)))
    if kind == "maildir":
        from vedette.adapters.mail.maildir.plugin import look_at

        return Seen(what, "ok", look_at(Path(str(table["path"])), made=True))
    if isinstance(path := table.get("path"), str):
        there = next(p for p in (Path(path), *Path(path).parents) if p.exists())
        if os.access(there, os.W_OK):
            return Seen(what, "ok", f"{there} can be written")
        return Seen(what, "fail", f"{there} cannot be written", "see who owns it")
    url = table.get("url")
    if isinstance(url, str) and urlsplit(url).hostname:
        from vedette.adapters.notify.plugin import connect_to

        return Seen(what, "ok", await asyncio.to_thread(connect_to, url))
    return Seen(what, "untested", f"nothing here can look at a {kind}")


async def _source(plan: Any, dates: dict[str, tuple[str, int]]) -> Seen:
    what = f"source {plan.name}"
    look = plugins(SOURCES).get(plan.kind).probe(plan)
    if look is None:
        return Seen(what, "untested", f"nothing here can look at a {plan.kind}")
    seen = Seen(what, "ok", str(await look))
    url = getattr(plan, "url", None)
    if isinstance(url, str):
        dates[what] = (await asyncio.to_thread(_date, url), SystemClock().now_us())
    return seen


async def _notices(plan: Plan) -> Seen:
    what = f"notices to {plan.name}"
    look = plugins(NOTIFIERS).get(plan.kind).probe(plan)
    if look is None:
        return Seen(what, "untested", f"nothing here can look at a {plan.kind}")
    return Seen(what, "ok", str(await look))


def probe_of(kind: str) -> Callable[[Any], Awaitable[str]] | None:
    """Return the probe of a target's kind; None if there is none."""
    if kind not in PROBES:
        return None
    try:
        found: Any = getattr(importlib.import_module(PROBES[kind]), "probe", None)
    except ImportError:
        return None
    return found  # type: ignore[no-any-return]


def _date(url: str) -> str:
    """Return the Date header of a server that a source only reads, "" if none is had."""
    from vedette.adapters.http_client import NoAnswer, NotSent, request

    parts = urlsplit(url)
    root = parts._replace(path="/", query="", fragment="").geturl()
    try:
        answer = request("HEAD", root, {}, seconds=WAIT_S, most_bytes=0)
    except (NotSent, NoAnswer, ValueError):
        return ""
    return answer.headers.get("date", "")
