"""Outside: the targets, sources and secrets that the settings name, looked at from here.

A target or source is logged into where its adapter has a `probe`; what nobody can look at is said
to be not tested. Nothing is sent, taken or written.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from vedette.app.doctor import CheckResult
from vedette.config.plugins import plugins
from vedette.config.reach import target_plugin
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import VedetteError
from vedette.domain.ports.plugin import NOTIFIERS, SOURCES, Plan

if TYPE_CHECKING:
    from vedette.config.settings import Settings

WAIT_S = 5.0


def check_secrets(settings: Settings) -> Iterator[CheckResult]:
    """Resolve every reference to a secret; none is shown."""
    from vedette.config.secret_reference import read_secret, secret_names

    tables = [(f"[targets.{name}]", table) for name, table in settings.targets.items()]
    tables += [
        (
            f"sender {one.name}",
            {f: getattr(one, f) for f in ("token_env", "token_file", "token_secret")},
        )
        for one in settings.senders
    ]
    for plan in (*settings.sources, *settings.notify.to):
        # A plugin's plan may be of any class.
        declared = getattr(plan, "__struct_fields__", ()) or getattr(plan, "__slots__", ())
        fields = {f: getattr(plan, f) for f in declared or vars(plan)}
        server = fields.get("server")
        fields |= dict(server) if isinstance(server, Mapping) else {}
        tables.append((plan.name, fields))
    for where, table in tables:
        given = {key: value for key, value in table.items() if isinstance(value, str) and value}
        for name in secret_names(given):
            try:
                read_secret(given, name, where=where)
            except VedetteError as error:
                yield CheckResult(f"secret {name} of {where}", "fail", error.what, error.mend or "")
            else:
                yield CheckResult(f"secret {name} of {where}", "ok", "is there")


async def check_network(settings: Settings, dates: dict[str, tuple[str, int]]) -> list[CheckResult]:
    """Look at every target and source; `dates` takes the Date that a server gave, and when."""
    probes = [
        *(
            _probe_with_timeout(f"target {name}", _probe_target(f"target {name}", table))
            for name, table in settings.targets.items()
        ),
        *(
            _probe_with_timeout(f"source {plan.name}", _probe_source(plan, dates))
            for plan in settings.sources
        ),
        *(
            _probe_with_timeout(f"notices to {one.name}", _probe_notifier(one))
            for one in settings.notify.to
        ),
    ]
    return list(await asyncio.gather(*probes))


async def _probe_with_timeout(what: str, probe: Coroutine[Any, Any, CheckResult]) -> CheckResult:
    try:
        async with asyncio.timeout(2 * WAIT_S):
            return await probe
    except TimeoutError:
        return CheckResult(
            what, "fail", f"no answer within {2 * WAIT_S:.0f} s", "see whether it runs"
        )
    except VedetteError as error:
        return CheckResult(
            what, "fail", error.what, error.mend or "see its settings in vedette.toml"
        )
    except OSError as error:
        told = str(error.strerror or error) or type(error).__name__
        return CheckResult(what, "fail", told, "see whether it runs and the address is right")
    except ValueError as error:  # a host that is no name, a secret that cannot be said
        told = f"cannot be asked: {type(error).__name__}"
        return CheckResult(what, "fail", told, "see its address and its secrets")


async def _probe_target(what: str, table: Mapping[str, Any]) -> CheckResult:
    probe = target_plugin(table).probe(table)
    if probe is not None:
        return CheckResult(what, "ok", str(await probe))
    if isinstance(path := table.get("path"), str):
        there = next(p for p in (Path(path), *Path(path).parents) if p.exists())
        if os.access(there, os.W_OK):
            return CheckResult(what, "ok", f"{there} can be written")
        return CheckResult(what, "fail", f"{there} cannot be written", "see who owns it")
    url = table.get("url")
    if isinstance(url, str) and urlsplit(url).hostname:
        from vedette.adapters.notify.plugin import connect_to

        return CheckResult(what, "ok", await asyncio.to_thread(connect_to, url))
    return CheckResult(what, "untested", f"nothing here can look at a {table.get('kind')}")


async def _probe_source(plan: Any, dates: dict[str, tuple[str, int]]) -> CheckResult:
    what = f"source {plan.name}"
    probe = plugins(SOURCES).get(plan.kind).probe(plan)
    if probe is None:
        return CheckResult(what, "untested", f"nothing here can look at a {plan.kind}")
    seen = CheckResult(what, "ok", str(await probe))
    url = getattr(plan, "url", None)
    if isinstance(url, str):
        dates[what] = (await asyncio.to_thread(_date, url), SystemClock().now_us())
    return seen


async def _probe_notifier(plan: Plan) -> CheckResult:
    what = f"notices to {plan.name}"
    probe = plugins(NOTIFIERS).get(plan.kind).probe(plan)
    if probe is None:
        return CheckResult(what, "untested", f"nothing here can look at a {plan.kind}")
    return CheckResult(what, "ok", str(await probe))


def _date(url: str) -> str:
    """Return the Date header of a server that a source only reads, "" if none is had."""
    from vedette.adapters.http_client import NoResponse, SendFailure, request

    parts = urlsplit(url)
    root = parts._replace(path="/", query="", fragment="").geturl()
    try:
        answer = request("HEAD", root, {}, timeout_s=WAIT_S, max_bytes=0)
    except (SendFailure, NoResponse, ValueError):
        return ""
    return answer.headers.get("date", "")
