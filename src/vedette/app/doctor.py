"""The doctor: whether the world is as the settings say it is, looked at without changing any of it.

Each thing that is looked at becomes one line: ok, warn or fail, with the mend. Nothing is sent,
taken or written but a file of our own in the state folder, which goes at once. A target or source
is logged into where its adapter has a `probe`; what nobody can look at is said to be not tested.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import asdict

from vedette.app.server_watch import tools_of_target
from vedette.app.workers import box_settings
from vedette.config.plugins import plugins
from vedette.config.reach import target_plugin
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import VedetteError
from vedette.domain.ports.plugin import NOTIFIERS, SOURCES, Plan
from vedette.operations.permissions import next_ticks

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.domain.agent import Agent
    from vedette.domain.bundle import Bundle
    from vedette.domain.ports.policy_engine import PolicyEngine

State = Literal["ok", "warn", "fail", "untested"]

PYTHON = (3, 11)
WAIT_S = 5.0
_SYNCS, _SLOW_SYNC_S = 12, 0.050
_FULL, _LOW = 64 << 20, 1 << 30
_LAG_WARN_S = 5.0
_SKEW_WARN_S, _SKEW_FAIL_S = 5.0, 60.0


class CheckResult(Struct, frozen=True):
    """One thing that the doctor looked at: ok, warn or fail, and the mend."""

    what: str
    state: State
    told: str
    mend: str = ""

    def to_json(self) -> dict[str, str]:
        """Return it as `--json` prints it."""
        return asdict(self)


def check_live(settings: Settings, *, is_running: bool) -> list[CheckResult]:
    """Look at everything, in the order in which a person mends it. `is_running`: a fleet answers.

    Runs an event loop of its own.
    """
    import orjson

    from vedette.adapters.identity.secrets import register_secret_manager
    from vedette.adapters.policy_engines.regorus.stage import read_bundle
    from vedette.app.stores import store_exists, store_reader
    from vedette.config.fleet import read_fleet
    from vedette.domain.bundle import Bundle

    register_secret_manager()
    found = list(check_machine(settings, is_running=is_running))
    last_us: int | None = None
    engines: list[CheckResult] = []
    try:
        if store_exists(settings):
            with store_reader(settings) as store:
                head = store.ledger.last_seq()
                entry = store.ledger.entry(head) if head else None
                last_us = int(orjson.loads(entry[1])["at"]) if entry else None
                number, digest = store.policy.live_revision()
                files = store.policy.bundle_files(digest) if number else None
                if files is not None:
                    bundle = Bundle.from_record(files, digest)
                    engines = list(check_engines(settings, bundle, store))
                lag = store.tables.lag(SystemClock().now_us())
            found.append(CheckResult("store", "ok", f"can be read; {head:,} entries"))
            found.append(check_read_model(lag, is_running=is_running))
        else:
            found.append(CheckResult("store", "ok", "none yet; the first run makes it"))
    except VedetteError as error:
        found.append(CheckResult("store", "fail", error.what, error.mend or ""))
    now_us = SystemClock().now_us()
    found += check_secrets(settings)
    try:
        found += engines or check_engines(settings, read_bundle(settings.policies))
    except VedetteError as error:
        found.append(CheckResult("policy engine", "fail", error.what, error.mend or ""))
    dates: dict[str, tuple[str, int]] = {}
    found += check_clocks(now_us, last_us, dates)
    agents, _, _ = read_fleet(settings.root, settings, now_us=now_us)
    found += asyncio.run(check_network(settings, dates, agents))
    found += asyncio.run(check_models(settings, agents))
    found += check_zones(agents, now_us)
    found.append(check_sandbox(settings, agents))
    return found


def check_read_model(lag: Mapping[str, Any], *, is_running: bool) -> CheckResult:
    """Look at how far lists are behind the ledger, and whether a running fleet has a follower."""
    if lag["failure"]:
        mend = "`vedette verify views --repair` makes them anew; the line does not need them"
        return CheckResult("lists", "fail", str(lag["failure"]), mend)
    behind, seconds = int(lag["behind"]), float(lag["seconds"])
    told = f"{behind:,} entries behind the ledger" if behind else "at the ledger's end"
    if not is_running:
        return CheckResult("lists", "ok", f"{told}; made by whoever reads them")
    if not lag["followed"]:
        mend = "see what `vedette run` tells of the follower; lists cost their readers more"
        return CheckResult("lists", "warn", f"{told}; no follower runs", mend)
    if seconds > _LAG_WARN_S:
        mend = "see whether the machine has a core to spare, and the disk room"
        return CheckResult("lists", "warn", f"{told}, {seconds:,.1f} s", mend)
    return CheckResult("lists", "ok", f"{told}; a follower keeps them")


def check_machine(settings: Settings, *, is_running: bool) -> Iterator[CheckResult]:
    """Check Python, disk, sync, another run and ports. `is_running`: a fleet answers."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info >= PYTHON:
        yield CheckResult("python", "ok", version)
    else:
        needed = ".".join(str(part) for part in PYTHON)
        yield CheckResult("python", "fail", version, f"install Python {needed} or newer")
    yield from _disk(settings.state)
    if is_running:
        yield CheckResult("another run", "ok", "this fleet runs and answers")
    else:
        yield _lock(settings.state)
    yield from _ports(settings, is_running=is_running)


def check_sandbox(settings: Settings, agents: Mapping[str, Agent]) -> CheckResult:
    """Look at how tightly this kernel closes agents' code in, as the settings have it."""
    from vedette.app.workers import assess_containment

    found = assess_containment(settings, agents)
    gaps = found.gaps()
    summary = "in no box"
    if (kernel := found.protection) is not None:
        abi = f"Landlock ABI {kernel.landlock}" if kernel.landlock else "no Landlock"
        summary = f"in a box ({abi}, {'seccomp' if kernel.seccomp else 'no seccomp'})"
    if not gaps:
        return CheckResult("agents' code", "ok", f"{summary}; open: nothing")
    state: State = "fail" if settings.isolation.require_sandbox else "warn"
    mend = "docs/threat-model.md says what that lets an agent's code do"
    return CheckResult("agents' code", state, f"{summary}; open: {'; '.join(gaps)}", mend)


def _disk(state: Path) -> Iterator[CheckResult]:
    there = next(path for path in (state, *state.parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        mend = f"chown it to whoever runs the fleet, or set state = … in vedette.toml: {there}"
        yield CheckResult("state folder", "fail", f"{there} cannot be written", mend)
        return
    yield CheckResult("state folder", "ok", str(state))
    free = shutil.disk_usage(there).free
    message = f"{free >> 20:,} MiB free"
    if free < _FULL:
        yield CheckResult("disk", "fail", message, "make room: nothing can be committed without it")
        return
    yield CheckResult(
        "disk", "ok" if free >= _LOW else "warn", message, "" if free >= _LOW else "make room"
    )
    try:
        took = _sync_s(there)
    except OSError as error:
        yield CheckResult(
            "fsync", "fail", f"{error.strerror}", "use a disk of this machine for the state"
        )
        return
    message = f"{took * 1000:.1f} ms for 4 KiB (median of {_SYNCS})"
    mend = "every commit waits so long: put the state on a faster disk"
    slow = took > _SLOW_SYNC_S
    yield CheckResult("fsync", "warn" if slow else "ok", message, mend if slow else "")


def _sync_s(folder: Path) -> float:
    """Return the median time that writing and syncing 4 KiB takes, in seconds."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_SYNCS):
            began = time.perf_counter()
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def _lock(state: Path) -> CheckResult:
    from vedette.domain.base.errors import StoreBusy
    from vedette.store.runner_lock import LOCK_FILE, acquire_lock

    if not (state / LOCK_FILE).exists():
        return CheckResult("another run", "ok", "none")
    try:
        acquire_lock(state / LOCK_FILE).close()
    except StoreBusy as error:
        mend = "wait until it has started, or stop it"
        return CheckResult("another run", "fail", f"{error.what}, and it does not answer", mend)
    except OSError as error:
        return CheckResult(
            "another run", "fail", f"{state / LOCK_FILE}: {error.strerror}", "see who owns it"
        )
    return CheckResult("another run", "ok", "none")


def _ports(settings: Settings, *, is_running: bool) -> Iterator[CheckResult]:
    wanted = [("[serve] http", settings.http, settings.http_fallback)]
    gateway = settings.deployment.gateway
    if gateway.is_gateway:
        wanted.append(("[gateway] listen", gateway.listen, False))
    for name, address, fallback in wanted:
        if address is None or not address[1]:
            continue
        shown = f"{address[0]}:{address[1]}"
        if is_running:
            yield CheckResult(name, "ok", f"{shown} is for the fleet that runs")
            continue
        try:
            _bind(address)
        except OSError as error:
            message = f"{shown}: {error.strerror}"
            mend = "stop who listens there, or name another port"
            yield CheckResult(name, "warn" if fallback else "fail", message, mend)
        else:
            yield CheckResult(name, "ok", f"{shown} is free")


def _bind(address: tuple[str, int]) -> None:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(address)


# --- time ---------------------------------------------------------------------------------------


def check_clocks(
    now_us: int, last_us: int | None, dates: Mapping[str, tuple[str, int]]
) -> Iterator[CheckResult]:
    """Compare the clock with the store's last entry, and with the Date that servers gave.

    `now_us` is when the entry was read; with each Date comes what our clock said then.
    """
    if last_us is None:
        yield CheckResult("clock", "ok", "no entry is in the ledger yet to compare it with")
    elif last_us > now_us:
        behind = (last_us - now_us) / 1e6
        state: State = "fail" if behind > _SKEW_FAIL_S else "warn"
        yield CheckResult(
            "clock", state, f"{behind:.1f} s behind the ledger's last entry", "set the clock"
        )
    else:
        yield CheckResult("clock", "ok", "not behind the ledger's last entry")
    for where, (text, at_us) in dates.items():
        try:
            skew = at_us / 1e6 - parsedate_to_datetime(text).timestamp()
        except ValueError:
            continue
        # The header has whole seconds, and the answer took a moment.
        difference_s = abs(skew) if abs(skew) > 1.5 else 0.0
        state = (
            "fail"
            if difference_s > _SKEW_FAIL_S
            else "warn"
            if difference_s > _SKEW_WARN_S
            else "ok"
        )
        mend = "" if state == "ok" else "have both clocks set by NTP"
        yield CheckResult(f"clock against {where}", state, f"{skew:+.0f} s", mend)


def check_zones(agents: Mapping[str, Agent], now_us: int) -> Iterator[CheckResult]:
    """Look for the time zone database, and say when each schedule is due next."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    from vedette.adapters.schedule.source import cron_walls
    from vedette.domain.base.clock import iso

    try:
        ZoneInfo("Europe/London")
    except ZoneInfoNotFoundError:
        mend = "install tzdata (the system's, or the Python package)"
        yield CheckResult("time zones", "fail", "there is no time zone database", mend)
        return
    yield CheckResult("time zones", "ok", f"the database is there; now is {iso(now_us)[:19]}Z")
    for agent in agents.values():
        try:
            for name, at in next_ticks(agent, now_us, cron_walls).items():
                message = f"next {iso(at)[:19]}Z" if at else "never due"
                yield CheckResult(f"schedule {agent.name}/{name}", "ok" if at else "warn", message)
        except (ValueError, VedetteError) as error:
            yield CheckResult(f"schedules of {agent.name}", "fail", str(error), "see agent.yaml")


# --- targets, sources, secrets -------------------------------------------------------------------


def check_secrets(settings: Settings) -> Iterator[CheckResult]:
    """Resolve every reference of the settings to a secret; none is shown."""
    from vedette.config.secret_reference import read_secret, secret_names

    tables = [(f"[targets.{name}]", table) for name, table in settings.targets.items()]
    tables += [
        (
            f"sender {one.name}",
            {f: getattr(one, f) for f in ("token_env", "token_file", "token_secret")},
        )
        for one in settings.senders
    ]
    tables += [
        (f"agent {one.agent}", {f: getattr(one, f) for f in one.__struct_fields__})
        for one in settings.served_agents
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


async def check_models(settings: Settings, agents: Mapping[str, Agent]) -> list[CheckResult]:
    """Ask each model that an agent may ask for one token, fallbacks too."""
    from vedette.app.reasoner_plugins import named_models

    names = named_models(settings, agents.values())
    if not names:
        return []
    from vedette.adapters.reasoners.adk.model import AskedModel, ask_one_token

    async def check(name: str) -> CheckResult:
        what, asked = f"model {name}", AskedModel(settings.models[name])
        try:
            answered = await ask_one_token(asked)
        except VedetteError as error:
            return CheckResult(what, "fail", error.what, error.mend or "")
        finally:
            await asked.close()
        return CheckResult(what, "ok", f"answers as {answered}")

    return await asyncio.gather(*(check(name) for name in names))


async def check_network(
    settings: Settings,
    dates: dict[str, tuple[str, int]],
    agents: Mapping[str, Agent] | None = None,
) -> list[CheckResult]:
    """Look at every target and source; `dates` takes the Date that a server gave, and when.

    Of `agents` a target is told the tools that name it.
    """
    probes = [
        *(
            _probe_with_timeout(
                f"target {name}", _probe_target(settings, name, (agents or {}).values())
            )
            for name in settings.targets
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
        message = str(error.strerror or error) or type(error).__name__
        return CheckResult(what, "fail", message, "see whether it runs and the address is right")
    except ValueError as error:  # a host that is no name, a secret that cannot be said
        message = f"cannot be asked: {type(error).__name__}"
        return CheckResult(what, "fail", message, "see its address and its secrets")


async def _probe_target(settings: Settings, name: str, agents: Iterable[Agent]) -> CheckResult:
    what, table = f"target {name}", settings.targets[name]
    tools = tools_of_target(name, agents)
    probe = target_plugin(table).probe_with(table, tools, box_settings(settings))
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


# --- the policy engine ---------------------------------------------------------------------------


def check_engines(settings: Settings, bundle: Bundle, record: Any = None) -> Iterator[CheckResult]:
    """Ask the engine of [policy] one question under the live policy, then the second engine.

    `record` is the store, where there is one: it may hold what was compiled of the policy.
    """
    from vedette.adapters.policy_engines.regorus.stage import SubprocessStage
    from vedette.adapters.telemetry.prometheus import PrometheusMetrics
    from vedette.app.policy_engines import (
        close_stage,
        engine_reason,
        policy_stage,
        second_engine_maker,
        trial_stage,
    )

    name, what = settings.deployment.policy.engine, "policy engine"
    within = SubprocessStage()
    stage: Any = None
    try:
        if name == "opa":
            stage = policy_stage(settings, within, PrometheusMetrics())
        else:
            stage = trial_stage(settings, within, record)
        made = stage.load(bundle)
        yield _query_engine(what, made, f", {engine_reason(stage)}")
        what = "second opinion"
        other = second_engine_maker(settings, stage, within, read_only=True)(bundle)
        if other is None:
            message = (
                "there is no second policy engine: nobody finds a fault of the one that decides"
            )
            mend = "put opa on PATH or name it in VEDETTE_OPA"
            yield CheckResult(what, "warn", message, mend)
        elif other.name == made.name:
            message = f"{other.name} decides itself, so nothing outward is permitted"
            yield CheckResult(what, "fail", message, "bring the policy server back")
        else:
            yield _query_engine(what, other)
    except VedetteError as error:
        yield CheckResult(what, "fail", f"{name}: {error.what}", error.mend or "")
    finally:
        if stage is not None:
            close_stage(stage)


def _query_engine(what: str, engine: PolicyEngine, why: str = "") -> CheckResult:
    """Ask an engine the empty question, which every policy denies. Raises what the engine does."""
    from vedette.domain.decision import parse_decision

    began = time.perf_counter()
    decision = parse_decision(engine.decide(b"{}"))
    took = (time.perf_counter() - began) * 1000
    if decision.outcome != "deny":
        return CheckResult(
            what, "fail", f"{engine.name} permits an empty question", "stop the fleet"
        )
    return CheckResult(what, "ok", f"{engine.name} answers in {took:.1f} ms{why}")
