"""The shape of agent.yaml, as models that check it and as JSON Schema for editors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from vedette.config.field import AfterValidator, Field, FieldInfo, Shape, json_schema
from vedette.config.kinds import Either, Errors, Loc, build_error
from vedette.config.plugins import PluginName, PluginTable, plugins
from vedette.domain.argument_schema import ArgumentSchema
from vedette.domain.base.clock import duration_us
from vedette.domain.ports.plugin import REASONERS, TOOLS
from vedette.domain.readers import check_reader
from vedette.domain.schema_check import DRAFTS

SETTLES_MEND = "say how an unknown outcome is settled: transactional, idempotent, queryable or none"
ARG_KINDS = ("string", "integer", "boolean", "strings", "list", "object")
# The one reasoner that is two.
CASCADE = ["judge", "model"]

_NAME = r"^[a-z][a-z0-9_]*$"
_WORD = r"^[a-z][a-z0-9_.-]*$"


def _duration(text: str) -> str:
    try:
        length = duration_us(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a duration | write for example 30s, 5m or 1h") from error
    if length <= 0:
        raise ValueError(f"{text!r} is no time at all | write for example 30s, 5m or 1h")
    return text


def _check_text(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty | write it out")
    return text


Duration = Annotated[
    str, AfterValidator(_duration), Field(description="a whole number and ms, s, m, h or d")
]


def memory_bytes(text: str) -> int:
    """Read agent.yaml's amount of memory, such as `512MiB`, as bytes. Raises ValueError."""
    number, unit = text[:-3].strip(), text[-3:]
    power = {"MiB": 20, "GiB": 30}.get(unit)
    if power is None or not (number.isascii() and number.isdigit()):
        raise ValueError(f"{text!r} is no amount of memory | write for example 512MiB or 2GiB")
    return int(number) << power


def _memory(text: str) -> str:
    if memory_bytes(text) < 32 << 20:
        raise ValueError(f"{text!r} is too little for any judge | at least 32MiB")
    return text


MemorySize = Annotated[str, AfterValidator(_memory)]
Reader = Annotated[str, AfterValidator(check_reader)]
NonBlankText = Annotated[str, AfterValidator(_check_text)]
OneOrMore = NonBlankText | list[NonBlankText]


class TriggerFile(Shape):
    """One trigger: exactly one of `on`, `every`, `cron` and `daily`."""

    on: OneOrMore | None = Field(default=None, description="event type pattern or patterns")
    source: OneOrMore | None = Field(default=None, description="event source pattern or patterns")
    subject: OneOrMore | None = Field(default=None, description="event subject pattern or patterns")
    every: Duration | None = Field(default=None, description="a period, counted from the epoch")
    cron: NonBlankText | None = Field(
        default=None, description="five fields; weekdays by name (mon … sun)"
    )
    daily: NonBlankText | None = Field(default=None, description="local time of day, HH:MM")
    name: str | None = Field(default=None, description="names the trigger; policy is told it")
    zone: NonBlankText = Field(default="UTC", description="IANA time zone of a schedule")
    missed: Literal["skip", "latest", "all"] = Field(
        default="latest", description="what becomes of instants that passed while nothing ran"
    )
    max_age: Duration | None = Field(default=None, description="older missed instants are let go")
    data: dict[str, Any] = Field(default_factory=dict, description="payload of the ticks")
    goal: NonBlankText | None = Field(
        default=None,
        description="each run that it wakes is a task with this goal; the agent needs work:",
    )


class ScopeFile(Shape):
    """A memory scope that the agent asks to read."""

    bank: NonBlankText = Field(description="a folder of memory/")
    scope: NonBlankText = Field(description="a scope of that bank that lists this agent as reader")
    topics: list[NonBlankText] = Field(default_factory=list, description="only these topics")
    limit: int = Field(
        default=4, ge=1, le=50, description="how many memories a briefing takes at most"
    )


class BudgetFile(Shape):
    """What the agent asks to spend; policy may grant less."""

    actions_per_hour: int | None = Field(default=None, ge=1)
    actions_per_day: int | None = Field(default=None, ge=1)
    actions_per_run: int = Field(default=16, ge=1, le=100_000)
    model_calls_per_hour: int | None = Field(default=None, ge=0)
    model_calls_per_day: int = Field(default=0, ge=0)
    model_calls_per_run: int = Field(default=8, ge=0)
    model_calls_per_turn: int = Field(
        default=1, ge=1, le=100, description="the most that one turn of the model makes"
    )
    tokens_per_hour: int | None = Field(default=None, ge=0)
    tokens_per_day: int | None = Field(default=None, ge=0)
    tokens_per_run: int | None = Field(default=None, ge=0)
    money_micros_per_hour: int | None = Field(
        default=None, ge=0, description="millionths of the fleet's currency"
    )
    money_micros_per_day: int | None = Field(default=None, ge=0)
    money_micros_per_run: int | None = Field(default=None, ge=0)
    input_tokens_per_call: int | None = Field(
        default=None, ge=1, description="the most that a call reads; a longer one is not made"
    )
    output_tokens_per_call: int | None = Field(
        default=None, ge=1, description="the most that a call may write"
    )
    price: str | None = Field(
        default=None, description="an entry of `prices` in policies/budgets/data.yaml"
    )


class CeilingsFile(Shape):
    """What is too much of it: over a ceiling the agent is parked until a person resumes it."""

    errors_per_hour: int | None = Field(
        default=100, ge=1, description="attempts that broke off and effects that failed; or null"
    )
    effects_per_minute: int | None = Field(
        default=None, ge=1, description="calls of tools that were started"
    )


class CodeLimitsFile(Shape):
    """What the agent's own code may take, where it runs in a process of its own."""

    time: Duration = Field(default="5s", description="of one judgement")
    memory: MemorySize = Field(
        default="512MiB", description="of one process, beyond the engine's kit"
    )


def performers() -> list[str]:
    """Return the plugins that may perform a tool: each is a key of one in agent.yaml."""
    return [name for name in plugins(TOOLS).names() if name not in _TOOL_KEYS]


class ToolFile(Shape):
    """One tool: what it does to the world. Declared here, performed by `function` or `http`."""

    # Beside these, a key for each plugin of `vedette.tools`: see `fields`.

    name: str = Field(
        description="for example incident.open", pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$"
    )
    verb: str = Field(description="the word that policy grants, for example open", pattern=_WORD)
    resource: str = Field(description="the type of resource it acts on", pattern=_WORD)
    args: dict[str, str] = Field(
        default_factory=dict,
        description="string, integer, boolean, strings, list or object; '?' for optional",
    )
    schema: dict[str, Any] | None = Field(
        default=None,
        description="instead of args: the arguments as JSON Schema (2020-12), an object with "
        "properties, as the inputSchema of an MCP server is",
    )
    sinks: list[str] = Field(
        description="JSON Pointers to the arguments that decide who, where or which, `*` for each "
        "element: /to/*/address; [] if none"
    )
    settles: Literal["transactional", "idempotent", "queryable", "none"] = Field(
        description=SETTLES_MEND
    )
    description: NonBlankText | None = Field(
        default=None,
        description="what it does, in your words: what a model is told of it; left out, the "
        "docstring of its function",
    )
    function: str | None = Field(default=None, description="a function of tools.py")
    query: str | None = Field(
        default=None,
        description="a function of tools.py that asks the target; idempotent tools are asked "
        "after a restore only",
    )
    verify: str | None = Field(
        default=None,
        description="a function of tools.py that asks the target, after the tool said done, "
        "whether it is there; without one an outcome is only claimed",
    )
    inverse: str | None = Field(
        default=None, description="another tool of this agent that undoes it"
    )
    target: str | None = Field(default=None, description="a [targets.NAME] table of vedette.toml")
    output: Literal["trusted", "untrusted"] = "untrusted"
    permitted_readers: list[Reader] | None = Field(
        default=None, description="to whom what it answers may be told; left out: to everybody"
    )
    high_impact: bool = False
    timeout: Duration = "10s"
    attempts: int = Field(default=5, ge=1, le=100)

    @classmethod
    def fields(cls) -> dict[str, FieldInfo]:
        """Return the fields by name; behind `function` what else may perform a tool."""
        found: dict[str, FieldInfo] = {}
        for name, field in super().fields().items():
            found[name] = field
            if name == "function":
                found |= {
                    plugin: FieldInfo(default=None, kind=Either([PluginTable(TOOLS, plugin)], True))
                    for plugin in performers()
                }
        return found

    @property
    def kinds(self) -> Mapping[str, str]:
        """Return the arguments by name, each with a word for its kind; '?' where it is optional."""
        return self.args if self.schema is None else ArgumentSchema(self.schema).kinds()

    @property
    def performer(self) -> str | None:
        """Return the plugin that performs the tool; None if its function does."""
        return next((name for name in performers() if vars(self)[name] is not None), None)


class Reasoners(PluginName):
    """The kind of `reasoner`: a plugin's name, or the two of a cascade."""

    def check(self, value: Any, loc: Loc, errors: Errors) -> Any:
        """Take `[judge, model]` beside the names that there are."""
        if isinstance(value, list) and value != CASCADE:
            what = f"{value!r} is no cascade | write reasoner: [judge, model]"
            errors.append(build_error("value_error", loc, value, {"error": what}))
            return value
        return value if isinstance(value, list) else super().check(value, loc, errors)

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        """Offer the names and the list."""
        return {"anyOf": [super().schema(defs), {"const": CASCADE}]}


class CascadeFile(Shape):
    """How a judge and a model share an agent's work."""

    settle_at: int = Field(
        default=900, ge=1, le=1000,
        description="the confidence, in thousandths, from which the judge settles an event itself",
    )  # fmt: skip
    person_after: Duration | None = Field(
        default=None,
        description="a model away for so long: what the judge would do waits for a person instead",
    )


class ConfidenceFile(Shape):
    """How a model's confidence is measured: by people's answers to what it proposed."""

    cases: int = Field(
        default=100, ge=100, le=200,
        description="with fewer answers it has none, and a person decides what it proposes",
    )  # fmt: skip
    audit_share: int = Field(
        default=50, ge=20, le=1000,
        description="of a thousand turns so many go to a person, however sure it is",
    )  # fmt: skip


class WorkFile(Shape):
    """The bounds of the agent's tasks; at one of them a task waits for a person."""

    max_turns: int = Field(default=1000, ge=2, le=10_000, description="of one task")
    no_progress: int = Field(
        default=10, ge=1, le=1000,
        description="turns in a row in which no condition came to hold, no item was closed and no "
        "effect done; to set aside an item added since then does not count",
    )  # fmt: skip
    deadline: Duration = Field(default="14d", description="from the event that gave the task")
    proposes_conditions: bool = Field(
        default=False,
        description="its first turn may propose done conditions; where nobody gave any, these are "
        "the task's, and no person is asked",
    )
    plans: bool = Field(
        default=False, description="it may lay a task out in phases, and replan where that is due"
    )
    waits_for: list[NonBlankText] = Field(
        default_factory=list,
        description="the types of events that its tasks may wait for with task.wait; they stand in "
        "the charter as waits_for, too",
    )
    asks: list[NonBlankText] = Field(
        default_factory=list,
        description="the agents that its tasks may ask with agent.ask; they stand in the charter "
        "as asks, too",
    )


# What policy is told of every tool, so that no plugin can have the name.
_TOOL_KEYS = frozenset({*ToolFile.__annotations__, "readers"})


class AgentFile(Shape):
    """agent.yaml: what an agent is and what it requests. Policy grants."""

    version: Literal[1] = Field(description="write version: 1")
    name: str = Field(description="the name of the folder")
    title: NonBlankText = Field(description="one line for people")
    owner: NonBlankText = Field(description="who answers for the agent")
    reasoner: Annotated[Any, Reasoners(REASONERS, "judge")] = Field(
        default="judge",
        description="what reasons for it; [judge, model]: its judge settles what it is sure of, "
        "and the model takes the rest",
    )
    model: str | None = Field(
        default=None,
        description="an entry of [models] in vedette.toml: the agent asks it, by reasoner adk and "
        "in up to 4 turns if these are not given; agent.py may be left out",
    )
    cascade: CascadeFile | None = Field(
        default=None, description="how judge and model share the work: reasoner [judge, model]"
    )
    confidence: ConfidenceFile | None = Field(
        default=None, description="how a model's confidence is measured"
    )
    max_turns: int = Field(
        default=1,
        ge=1,
        le=64,
        description="how many turns a run may take, of its judge or its model",
    )
    mode: Literal["observe", "ask", "act"] = Field(
        default="observe", description="the mode it requests; policy grants"
    )
    order_by: Literal["subject", "id", "source"] = "subject"
    collection: str | None = Field(
        default=None,
        description="where its transactional tools keep one row per key; no other agent's",
        pattern=_NAME,
    )
    triggers: list[TriggerFile] = Field(min_length=1, description="say what wakes the agent")
    memory: list[ScopeFile] = Field(default_factory=list)
    charter: dict[str, Any] = Field(
        default_factory=dict, description="free values; the trusted root /charter"
    )
    artefacts: bool = Field(
        default=False,
        description="it is told of large outcomes by reference, and has the tool artefact.read",
    )
    work: WorkFile | None = Field(
        default=None, description="the agent takes tasks, within these bounds; {} for the usual"
    )
    session: str | None = Field(
        default=None,
        description="events with the same value there, as /event/data/thread, go to the same task "
        "while it is open; the value is the key, in the place of order_by",
        pattern=r"^/event/(data/.+|subject|source)$",
    )
    budget: BudgetFile = Field(default_factory=BudgetFile)
    ceilings: CeilingsFile = Field(default_factory=CeilingsFile)
    limits: CodeLimitsFile = Field(default_factory=CodeLimitsFile)
    tools: list[ToolFile] = Field(description="the tools it may propose; [] if none")


def agent_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of agent.yaml, for editors."""
    schema = json_schema(AgentFile)
    kinds = ("on", "every", "cron", "daily")
    schema["$defs"]["TriggerFile"]["oneOf"] = [{"required": [kind]} for kind in kinds]
    tool = schema["$defs"]["ToolFile"]
    tool["oneOf"] = [{"required": [name]} for name in ("function", *performers())]
    for name in performers():
        tool["properties"][name]["description"] = plugins(TOOLS).get(name).description
    kind = "|".join(ARG_KINDS)
    values = {"type": "string", "pattern": rf"^({kind})\??$"}
    tool["properties"]["args"]["additionalProperties"] = values
    described = tool["properties"]["schema"]["description"]
    own = {"type": "object", "description": described, "allOf": [{"$ref": DRAFTS[0]}]}
    tool["properties"]["schema"] = own
    tool["not"] = {"required": ["args", "schema"]}
    return {"$schema": DRAFTS[0], **schema}
