"""The ports of plugins: each an object, named by an entry point, that brings one adapter.

The entry point's name is the `kind` of the tables that the plugin is for, its group says what it
brings: `vedette.sources` a `SourcePlugin`, `vedette.notifiers` a `NotifierPlugin`,
`vedette.targets` a `TargetPlugin`, `vedette.tools` a `ToolPlugin`, `vedette.reasoners` a
`ReasonerPlugin`. One is imported when a file first names it, and for `vedette check` no more is
wanted of it than its table: it imports its client where it builds or sends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

if TYPE_CHECKING:  # settings are read by every verb, and read these only for their names
    from vedette.domain.agent import Agent, Fleet
    from vedette.domain.base.clock import Clock
    from vedette.domain.base.errors import VedetteError
    from vedette.domain.effect import Call, Outcome
    from vedette.domain.ports.reasoner import Metrics, Reasoner
    from vedette.domain.ports.sources import Intake, Source
    from vedette.domain.target_record import TargetRecord
    from vedette.domain.tool import Tool

SOURCES = "vedette.sources"
NOTIFIERS = "vedette.notifiers"
TARGETS = "vedette.targets"
TOOLS = "vedette.tools"
REASONERS = "vedette.reasoners"

# A key of the table (with the keys inside it), what is wrong there, and the mend; () is the table.
TableProblem = tuple[tuple[str | int, ...], str, str]


class Plan(Protocol):
    """What a plugin makes of its table: an immutable value with all that building needs."""

    @property
    def kind(self) -> str:
        """Return the plugin's name."""
        ...

    @property
    def name(self) -> str:
        """Return the name that the table gives it."""
        ...


class TableContext(Struct, frozen=True):
    """The context in which a plugin's table is read.

    `path` resolves a path of the file, `pattern` a glob pattern, both as vedette.toml means them:
    relative to its folder, `@state/…` in the state folder. `serves_http` says that events can be
    posted to this fleet, `targets` are the tables of `[targets.NAME]`, with absolute paths.
    """

    path: Callable[[str], Path]
    pattern: Callable[[str], str]
    serves_http: bool
    targets: Mapping[str, Mapping[str, Any]]

    def resolve(self, table: Any, *paths: str) -> Any:
        """Return a table with its paths absolute: `path`, what ends in `_file`, and `paths`."""
        found = {
            key: str(self.path(value))
            for key, value in vars(table).items()
            if (key == "path" or key.endswith("_file") or key in paths)
            and isinstance(value, str)
            and value
        }
        return table.replace(**found) if found else table


class SourceContext(Struct, frozen=True):
    """The context in which a plugin builds a source.

    With `watch` it goes on for ever; without, it ends when there is nothing more at once. `leads`
    says whether this worker is the one that reads what only one may read. `max_event_bytes` bounds
    the payload of one event. `is_known` says of an event's key whether it was handled; `cron_walls`
    reads the calendar of an agent's schedule.
    """

    clock: Clock
    metrics: Metrics
    watch: bool
    max_event_bytes: int
    leads: Callable[[], bool]
    fleet: Fleet
    is_known: Callable[[str], bool]
    cron_walls: Callable[..., Any]


class SourcePlugin:
    """Base of plugins that bring one kind of source; name an instance in `vedette.sources`.

    `table` is the shape of its `[[sources]]` tables: a class of `vedette.sdk.Table` with the fields
    `kind`, a Literal of the entry point's name, and `name`. A source with `late` takes time to load
    and has nothing to deliver at once: it is built after the others.
    """

    table: type[Any]
    late = False

    def problems(self, table: Any, context: TableContext) -> Iterable[TableProblem]:
        """Yield what is wrong with a table whose shape fits; none of it is accepted then."""
        return ()

    def plan(self, table: Any, context: TableContext) -> Plan:
        """Return what a sound table comes to: the table itself, with its paths resolved.

        Opens, reads and connects nothing.
        """
        plan: Plan = context.resolve(table)
        return plan

    def build(self, plan: Any, context: SourceContext) -> Source:
        """Make the source. Raises BadFleet for what only shows now."""
        raise NotImplementedError

    def probe(self, plan: Any) -> Awaitable[str] | None:
        """Look at the outside that a plan names and change nothing; None where nobody can.

        The answer says in one sentence what was found. Raises VedetteError with a mend, OSError.
        """
        return None

    def dead_letters(self, plans: Sequence[Plan]) -> Any:
        """Return what publishes the dead letters of these sources' broker again; None without."""
        return None


class Notification(Struct, frozen=True):
    """One notification of a plugin to people: of holds, dead letters, parked agents and the like.

    `id` is the same each time it is tried. `facts` are its fields as JSON (schema
    `vedette.notice/1`), `title` is it in one line, `text` in several. `recipients` are who still
    misses what the others took; None where nobody has it yet.
    """

    id: str
    facts: Mapping[str, Any]
    title: str
    text: str
    recipients: tuple[str, ...] | None


# The recipients that a notification did not come to, and why, where it came to others.
MissedRecipients = Mapping[str, "VedetteError"]


class NotifierPlugin:
    """Base of plugins that bring one way to tell people; name an instance in `vedette.notifiers`.

    `table` is the shape of its `[[notify.to]]` tables: as a source's, but `name` has a default.
    """

    table: type[Any]

    def problems(self, table: Any, context: TableContext) -> Iterable[TableProblem]:
        """Yield what is wrong with a table whose shape fits; none of it is accepted then."""
        return ()

    def plan(self, table: Any, context: TableContext) -> Plan:
        """Return what a sound table comes to: the table itself, with its paths resolved.

        Opens, reads and connects nothing.
        """
        plan: Plan = context.resolve(table)
        return plan

    def send(self, plan: Any, notification: Notification) -> MissedRecipients | None:
        """Send one; return who was missed, if others were not. Blocks, in a thread of its own.

        Raises Temporary or Permanent if nobody took it (it is tried again after either, as it is
        the way that has to be mended), Unsendable if this one is never taken. It may be sent twice.
        """
        raise NotImplementedError

    def probe(self, plan: Any) -> Awaitable[str] | None:
        """Look at the outside that a plan names and send nothing; None where nobody can.

        The answer says in one sentence what was found. Raises VedetteError with a mend, OSError.
        """
        return None


class BoxSettings(Struct, frozen=True):
    """What a plugin that starts programs is told of this fleet's boxes.

    `scratch` is a folder for scratch folders, `closed` are folders that no program may have whole;
    without `sandboxed` the settings want no boxes.
    """

    scratch: Path
    closed: tuple[Path, ...] = ()
    sandboxed: bool = True


class TargetPlugin:
    """Base of plugins that bring one kind of target; name an instance in `vedette.targets`.

    A target's table belongs to the tools that get it as `call.target`, so its keys are theirs. This
    class itself stands for a kind that nobody brings. Every table is checked for what all hold to
    (name, kind, URL, secrets, `reach`, `read`, `create`); its `path`, its URL, its `host` and
    `port`, and what it says under `reach` and `read`, is reached.

    `required` are the keys that a table must give as text. With `path_is_folder` its `path` is a
    folder, whatever its name; with `allows_udp` its tools ask name servers by themselves. One of
    `record_keys` names its record; two targets are one place where all of a row of `place_keys` are
    alike. With `pins_tools` a target may offer other tools than were declared, which its probe
    tells: it is asked at each start. In the lists of its `path_lists` a text `@state/…` is a path
    in the state folder, `./…` one beside vedette.toml.
    """

    required: tuple[str, ...] = ()
    path_is_folder = False
    allows_udp = False
    record_keys: tuple[str, ...] = ()
    place_keys: tuple[tuple[str, ...], ...] = ()
    path_lists: tuple[str, ...] = ()
    pins_tools = False

    def problems(
        self, table: Mapping[str, Any], targets: Mapping[str, Mapping[str, Any]]
    ) -> Iterable[TableProblem]:
        """Yield what else is wrong with a table; `targets` are all of them."""
        return ()

    def resolve(
        self, table: Mapping[str, Any], targets: Mapping[str, Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Return the table as tools get it."""
        return table

    def addresses(self, table: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
        """Yield more addresses (host, TCP port) that its tools connect to."""
        return ()

    def probe(self, table: Mapping[str, Any]) -> Awaitable[str] | None:
        """Look at a target and change nothing; None where nobody can.

        The answer says in one sentence what was found. Raises VedetteError with a mend, OSError.
        """
        return None

    def uses_udp(self, table: Mapping[str, Any]) -> bool:
        """Say whether the tools of a target, or its programs, ask name servers by themselves."""
        return self.allows_udp

    def folders(self, table: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        """Yield folders and files, each behind its key of the table, that programs may open."""
        return ()

    def probe_with(
        self, table: Mapping[str, Any], tools: Sequence[tuple[str, Tool]], box: BoxSettings
    ) -> Awaitable[str] | None:
        """Look at a target as `probe` does, told which tools of which agents name it, and how
        programs are boxed.
        """
        return self.probe(table)

    def record_problem(self, table: Mapping[str, Any]) -> str | None:
        """Return why a target cannot be audited as it is declared; None if it can."""
        if not self.record_keys:
            return f"nothing here reads the record of a {table.get('kind')}"
        if not any(table.get(name) for name in self.record_keys):
            return f"its record is not named: add {' or '.join(self.record_keys)}"
        return None

    def is_same_place(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Say whether what was done to one target may stand in the record of the other."""
        return one.get("kind") == other.get("kind") and any(
            all(one.get(name) and one.get(name) == other.get(name) for name in row)
            for row in self.place_keys
        )

    def read_record(self, table: Mapping[str, Any], where: str, since_us: int) -> TargetRecord:
        """Read what a target knows of what was done to it; older than `since_us` may be left out.

        Raises BadFleet if it cannot be read as the settings say, Unavailable if it does not answer.
        """
        raise NotImplementedError


class ToolPerformer(Protocol):
    """The port that performs tools declared in full, without any code of an agent."""

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        """Do what `tool.request` says, once, within `call.timeout_us`; `call.target` is its target.

        `may_start` is asked immediately before the first effect: on no, nothing is done and None is
        returned. An Outcome says what came of it; what is raised counts as not known.
        """
        ...

    async def query(self, tool: Tool, call: Call) -> Outcome | None:
        """Ask the target what came of `call.key`; None if it knows nothing of it."""
        ...

    def close(self) -> None:
        """Let go of what is held; waits for nothing."""
        ...


class ToolPlugin:
    """Base of plugins that bring one way to perform tools; name an instance in `vedette.tools`.

    The entry point's name is a key of a tool in agent.yaml, beside `function`; `table` is the shape
    of what stands under it, `description` what people are told of it. What is declared there is
    part of the tool: policy sees it, and an approval is bound to it. Its tools name a target of
    `target_kind`, if there is one.
    """

    table: type[Any]
    description = ""
    target_kind: str | None = None

    def problems(self, tool: Any, table: Any) -> Iterable[TableProblem]:
        """Yield what is wrong with a tool of agent.yaml whose shape fits; `table` is its request.

        Places are those of the tool: ("settles",), ("http", "url").
        """
        return ()

    def queries(self, table: Any) -> bool:
        """Say whether the target can be asked what came of a call."""
        return False

    def verifies(self, table: Any) -> bool:
        """Say whether it is asked after each call, too."""
        return False

    def build(self) -> ToolPerformer:
        """Make what performs its tools, for one event loop."""
        raise NotImplementedError

    def build_with(self, box: BoxSettings) -> ToolPerformer:
        """Make it as `build` does, told how this fleet boxes programs."""
        return self.build()


class ReasonerContext(Struct, frozen=True):
    """A plugin's context for a reasoner; `fleet.agents` are the releases that run now and later."""

    fleet: Fleet
    clock: Clock
    metrics: Metrics


class ReasonerPlugin:
    """Base of plugins that bring one way to reason; name an instance in `vedette.reasoners`.

    The entry point's name is what `reasoner:` of an agent.yaml says. `defines` is what the agent's
    folder must hold for it: a module, a name in it, and how to mend that it is not there. One that
    never calls a model says `asks_model = False`; the turns of all others are taken out of the
    agent's budget of model calls before they begin.
    """

    defines: tuple[str, str, str] | None = None
    asks_model = True

    def problems(self, agent: Any) -> Iterable[TableProblem]:
        """Yield what is wrong with an agent.yaml whose shape fits."""
        return ()

    async def build(self, context: ReasonerContext) -> Reasoner:
        """Make what reasons for all agents that name it. Raises BadFleet."""
        raise NotImplementedError

    async def prepare(self, reasoner: Reasoner, agent: Agent) -> Callable[[], None]:
        """Load another release of an agent beside the present one; return what puts it in place.

        Raises BadFleet; then the present one stays.
        """
        return lambda: None


class PushedSource:
    """A source of what is sent to us: it brings nothing itself, a route of `serve` takes it."""

    finite = False

    def __init__(self, name: str) -> None:
        self.name = name

    async def deliver(self, intake: Intake) -> None:
        """Wait until cancelled."""
        import asyncio

        await asyncio.Event().wait()
