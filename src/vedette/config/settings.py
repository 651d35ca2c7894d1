"""Settings: vedette.toml with its defaults filled in and its paths resolved.

Relative paths are relative to the folder of vedette.toml, `@state/…` lies in the state folder.
Secrets stand in no file of the fleet: a table names the environment variable (`token_env`), the
file (`token_file`) or the secret of Secret Manager (`token_secret`) that holds one.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from glob import escape
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from vedette.config.deployment import Deployment, build_deployment, deployment_problems
from vedette.config.displays import build_displays, display_problems
from vedette.config.models import ModelPlan, build_models, model_problems
from vedette.config.notify import NotifyPlan, notify_plan, notify_problems
from vedette.config.plugins import plugins
from vedette.config.problem import Problem, raise_first_error, sort_problems
from vedette.config.secret_reference import read_secret
from vedette.config.settings_file import ENV_PREFIX, SettingsFile, parse_settings, toml_lines
from vedette.config.shape import describe_shape_error, to_problem
from vedette.config.targets import (
    folder_problems,
    program_problems,
    resolve_paths,
    resolve_targets,
    target_problems,
)
from vedette.config.yaml import Document, KeyPath, read_text
from vedette.domain.base.clock import duration_us
from vedette.domain.base.errors import BadFleet
from vedette.domain.display import Display
from vedette.domain.ports.plugin import SOURCES, Plan, TableContext
from vedette.domain.readers import ReaderRule

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\Z")


class Sender(Struct, frozen=True):
    """A sender of [serve] over HTTP; its token is read when it is needed (see `read_secret`)."""

    name: str
    token_env: str | None = None
    token_file: str | None = None
    prefix: str | None = None
    token_secret: str | None = None
    vouches: str = "envelope"

    def token(self) -> str:
        """Return the token. Raises BadFleet if it is not there."""
        table = {"token_env": self.token_env, "token_file": self.token_file}
        table["token_secret"] = self.token_secret
        found = read_secret(table, "token", where=f"sender {self.name}")
        if found is None:
            raise BadFleet("has no token", where=f"sender {self.name}", mend="add token_env")
        return found


class ServedAgent(Struct, frozen=True):
    """An agent of [serve] whose client calls; its token is read when it is needed."""

    agent: str
    token_env: str | None = None
    token_file: str | None = None
    token_secret: str | None = None

    def token(self) -> str | None:
        """Return the token; None if only its JWT-SVID is taken. Raises BadFleet."""
        table = {"token_env": self.token_env, "token_file": self.token_file}
        table["token_secret"] = self.token_secret
        return read_secret(table, "token", where=f"agent {self.agent}")


class StorePlan(Struct, frozen=True):
    """[store]: where the state is kept, `sqlite` in the state folder, or `postgresql` at a URL.

    Who opens it for one command only visits: the workers keep their keys. `survives` is what an
    answered commit outlives: power loss, or (SQLite only) no more than a killed process.
    """

    kind: str = "sqlite"
    url_env: str | None = None
    url_file: str | None = None
    lease_us: int = 5_000_000
    visit: bool = False
    survives: str = "power-loss"
    url_secret: str | None = None

    def url(self) -> str:
        """Return the database's URL. Raises BadFleet if it is not there."""
        table = {"url_env": self.url_env, "url_file": self.url_file, "url_secret": self.url_secret}
        found = read_secret(table, "url", where="[store]")
        if found is None:
            raise BadFleet("a postgresql store needs its URL", where="[store]", mend="add url_env")
        return found


class Isolation(Struct, frozen=True):
    """[isolation]: whether agents' code runs in worker processes, how long an idle one is kept.

    `sandbox` closes them in a box, `require_sandbox` refuses a fleet that would run any of it
    outside one.
    """

    use_processes: bool
    idle_us: int = 300_000_000
    sandbox: bool = True
    require_sandbox: bool = False

    @property
    def is_boxed(self) -> bool:
        """Say whether agents' code is to run in a box, as far as the kernel has one."""
        return self.use_processes and self.sandbox


class Settings(Struct, frozen=True):
    """Everything that vedette.toml says, with absolute paths.

    `http` is None where nothing is served; `http_fallback` takes any free port if the one named
    is taken. `anonymous` lets anybody send events, vouched for in nothing. Without a file agents'
    code runs in the engine's process: for tests and tiny fleets.
    `targets` are the tables that calling tools get as `call.target`; `displays` say what people are
    shown of events; `models` are what agents may ask. The retentions say how long
    content and entries stay in the store (microseconds), None for ever. `stuck_us` is the bound of
    the watchdog.
    """

    root: Path
    fleet: str
    state: Path
    agents: Path
    policies: Path
    memory: Path
    store: StorePlan = StorePlan()
    retention_bodies_us: int | None = None
    retention_entries_us: int | None = None
    max_event_bytes: int = 262_144
    max_hops: int = 8
    stuck_us: int = 60_000_000
    http: tuple[str, int] | None = None
    http_fallback: bool = False
    anonymous: bool = False
    hosts: tuple[str, ...] = ()
    senders: tuple[Sender, ...] = ()
    served_agents: tuple[ServedAgent, ...] = ()
    call_window_us: int = 600_000_000
    calls_per_minute: int = 300
    open_calls: int = 100
    targets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sources: tuple[Plan, ...] = ()
    isolation: Isolation = field(default_factory=lambda: Isolation(False))
    deployment: Deployment = field(default_factory=Deployment)
    notify: NotifyPlan = field(default_factory=NotifyPlan)
    secrecy: tuple[ReaderRule, ...] = ()
    displays: tuple[Display, ...] = ()
    models: Mapping[str, ModelPlan] = field(default_factory=dict)

    @property
    def content_folders(self) -> tuple[Path, ...]:
        """Return the folders of the fleet as code."""
        return self.agents, self.policies, self.memory

    @property
    def protected_folders(self) -> tuple[Path, ...]:
        """Return the folders that no agent's code may have whole."""
        return self.root, self.state, *self.content_folders

    @classmethod
    def of(cls, root: Path, fleet: str = "fleet") -> Settings:
        """Return settings with the usual folders under `root` and nothing else."""
        root = root.resolve()
        return cls(
            root=root,
            fleet=fleet,
            state=root / ".vedette",
            agents=root / "agents",
            policies=root / "policies",
            memory=root / "memory",
        )


def load_settings(path: Path) -> Settings:
    """Read vedette.toml, or raise BadFleet with the first problem and how many more there are."""
    settings, problems = read_settings(path)
    raise_first_error(problems)
    if settings is None:
        raise BadFleet("cannot be read", where=path.name)
    return settings


def read_settings(path: Path) -> tuple[Settings | None, list[Problem]]:
    """Return the settings of vedette.toml, or None and everything that is wrong with it."""
    text, problems = read_text(path, path.name)
    if problems:
        return None, problems
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        number = int(line[1]) if line else text.count("\n") + 1
        what = f"is not TOML: {str(error).split(' (at ')[0]}"
        return None, [Problem(path.name, number, "", what, "correct the syntax")]
    document = Document(path.name, value, toml_lines(text))
    try:
        shape, errors = parse_settings(value, os.environ)
    except ValueError as error:
        return None, [
            Problem("environment", 0, "", str(error), f"correct the {ENV_PREFIX}… variable")
        ]
    if shape is None:
        return None, sort_problems([_shape_problem(document, found) for found in errors])
    root = path.resolve().parent
    context = _table_context(shape, root)
    problems = sort_problems(_problems(shape, document, context))
    if problems:
        return None, problems
    settings = _settings(shape, root, context)
    if settings.isolation.is_boxed:
        closed, content = settings.protected_folders, settings.content_folders
        found = folder_problems(settings.targets, closed, content, document)
        programs = program_problems(
            settings.targets, (*closed, path), content, settings.state, document
        )
        problems = sort_problems([*found, *programs])
    return (None, problems) if problems else (settings, [])


def _shape_problem(document: Document, error: Any) -> Problem:
    """Say where a value stands that does not fit: in the file or in the environment."""
    words = [str(part).upper() for part in error["loc"]]
    for length in range(len(words), 0, -1):
        variable = ENV_PREFIX + "__".join(words[:length])
        if os.environ.get(variable):
            what, mend = describe_shape_error(error)
            return Problem("environment", 0, variable, what, mend)
    return to_problem(document, error)


def _problems(shape: SettingsFile, document: Document, context: TableContext) -> list[Problem]:
    problems: list[Problem] = []
    for key, group in (("sources", shape.sources), ("senders", shape.serve.senders)):
        seen: set[str] = set()
        for index, item in enumerate(group):
            at: KeyPath = (key, index) if key == "sources" else ("serve", key, index)
            if item.name in seen:
                what = f"{item.name!r} is the name of another one already"
                problems.append(document.problem((*at, "name"), what, "give it its own name"))
            seen.add(item.name)
    plan = shape.store
    if plan.kind == "postgresql" and _count_references(plan, "url") != 1:
        what, mend = "a postgresql store needs its URL", "give one of url_env, url_file, url_secret"
        problems.append(document.problem(("store",), what, mend))
    if plan.kind == "postgresql" and plan.survives != "power-loss":
        what, mend = "is for the SQLite store only", "leave it out; the server's own setting counts"
        problems.append(document.problem(("store", "survives"), what, mend))
    if duration_us(plan.lease) < 1_000_000:
        what, mend = f"{plan.lease!r} is too short a lease", "write 1s or more"
        problems.append(document.problem(("store", "lease"), what, mend))
    if duration_us(shape.limits.stuck) < 10_000_000:
        what, mend = (
            f"{shape.limits.stuck!r} is too short to tell what is slow",
            "write 10s or more",
        )
        problems.append(document.problem(("limits", "stuck"), what, mend))
    retention = shape.retention
    if (
        retention.bodies
        and retention.entries
        and duration_us(retention.bodies) > duration_us(retention.entries)
    ):
        what = "content would outlive the entries that prove it"
        mend = "keep bodies no longer than entries"
        problems.append(document.problem(("retention", "bodies"), what, mend))
    for index, sender in enumerate(shape.serve.senders):
        if _count_references(sender, "token") != 1:
            what, mend = "needs its token", "give one of token_env, token_file, token_secret"
            problems.append(document.problem(("serve", "senders", index), what, mend))
    names = [one.agent for one in shape.serve.agents]
    for index, served in enumerate(shape.serve.agents):
        at = ("serve", "agents", index)
        if _count_references(served, "token") > 1:
            what, mend = "has several tokens", "give one of token_env, token_file, token_secret"
            problems.append(document.problem(at, what, mend))
        if served.agent in names[:index]:
            what = f"{served.agent!r} is served already"
            problems.append(document.problem((*at, "agent"), what, "keep one of the two"))
    for index, host in enumerate(shape.serve.hosts):
        if not _HOST.match(host):
            what, mend = f"{host!r} is no host name", "write one as vedette.example.com, no port"
            problems.append(document.problem(("serve", "hosts", index), what, mend))
    problems += [
        *deployment_problems(shape, document, os.environ),
        *notify_problems(shape, document, context),
    ]
    for index, source in enumerate(shape.sources):
        for inside, what, mend in plugins(SOURCES).problems(source.kind, source, context):
            problems.append(document.problem(("sources", index, *inside), what, mend))
    problems += display_problems(shape, document)
    problems += model_problems(shape.models, document)
    return [*problems, *target_problems(context.targets, document)]


def _count_references(table: Any, name: str) -> int:
    """Return in how many ways a secret is referred to."""
    return sum(getattr(table, f"{name}_{kind}") is not None for kind in ("env", "file", "secret"))


def _optional_us(text: str | None) -> int | None:
    return None if text is None else duration_us(text)


def _table_context(shape: SettingsFile, root: Path) -> TableContext:
    state = _resolve_path(root, shape.state)

    def path(text: str) -> Path:
        inside = text.removeprefix("@state/")
        return state / inside if inside != text or text == "@state" else _resolve_path(root, text)

    def pattern(text: str) -> str:
        inside = text.removeprefix("@state/")
        start = state if inside != text else root
        return inside if Path(inside).is_absolute() else str(Path(escape(str(start))) / inside)

    targets = {name: resolve_paths(table, path) for name, table in shape.targets.items()}
    return TableContext(path, pattern, bool(shape.serve.http), targets)


def _settings(shape: SettingsFile, root: Path, context: TableContext) -> Settings:
    path = context.path
    host, _, port = shape.serve.http.rpartition(":")
    return Settings(
        root=root,
        fleet=shape.fleet,
        state=_resolve_path(root, shape.state),
        agents=path(shape.content.agents),
        policies=path(shape.content.policies),
        memory=path(shape.content.memory),
        store=StorePlan(
            shape.store.kind,
            shape.store.url_env,
            _optional_path(path, shape.store.url_file),
            duration_us(shape.store.lease),
            survives=shape.store.survives,
            url_secret=shape.store.url_secret,
        ),
        retention_bodies_us=_optional_us(shape.retention.bodies),
        retention_entries_us=_optional_us(shape.retention.entries),
        max_event_bytes=shape.limits.max_event_bytes,
        max_hops=shape.limits.max_hops,
        stuck_us=duration_us(shape.limits.stuck),
        http=(host.strip("[]"), int(port)) if host else None,
        http_fallback=shape.serve.fallback,
        anonymous=shape.serve.anonymous,
        hosts=tuple(shape.serve.hosts),
        senders=tuple(
            Sender(
                s.name,
                s.token_env,
                _optional_path(path, s.token_file),
                s.prefix,
                s.token_secret,
                s.vouches,
            )
            for s in shape.serve.senders
        ),
        served_agents=tuple(
            ServedAgent(
                one.agent, one.token_env, _optional_path(path, one.token_file), one.token_secret
            )
            for one in shape.serve.agents
        ),
        call_window_us=duration_us(shape.serve.call_window),
        calls_per_minute=shape.serve.calls_per_minute,
        open_calls=shape.serve.open_calls,
        targets=resolve_targets(context.targets),
        sources=tuple(plugins(SOURCES).plan(source, context) for source in shape.sources),
        isolation=Isolation(
            shape.isolation.workers == "processes",
            duration_us(shape.isolation.idle),
            shape.isolation.box == "kernel",
            shape.isolation.require,
        ),
        deployment=build_deployment(shape, path, os.environ),
        notify=notify_plan(shape, context),
        secrecy=tuple(
            ReaderRule(one.source, one.type, frozenset(one.permitted_readers))
            for one in shape.secrecy
        ),
        displays=build_displays(shape),
        models=build_models(shape.models, path),
    )


def _optional_path(path: Callable[[str], Path], text: str | None) -> str | None:
    return str(path(text)) if text else None


def _resolve_path(root: Path, text: str) -> Path:
    return root / Path(text).expanduser()
