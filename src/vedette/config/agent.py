"""An agent's folder, read into an Agent, and everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from vedette.config.agent_file import (
    CASCADE,
    AgentFile,
    ToolFile,
    memory_bytes,
    performers,
)
from vedette.config.agent_folder import (
    ModuleOutline,
    eval_problems,
    init_file_problems,
    link_problems,
    name_problems,
    read_code,
    release_digest,
)
from vedette.config.cascade_table import (
    cascade_problems,
    read_cascade,
    read_confidence_plan,
    read_reasoners,
)
from vedette.config.done_file import done_conditions
from vedette.config.models import ModelPlan, install_extra
from vedette.config.plugins import plugins
from vedette.config.problem import Problem, did_you_mean
from vedette.config.shape import check_document
from vedette.config.tool_table import tool_problems
from vedette.config.trigger_table import read_triggers
from vedette.config.yaml import Document, KeyPath, read_text, read_yaml
from vedette.domain.agent import Agent, MemoryScope, ResourceLimits, Subscription, WorkPlan
from vedette.domain.artefact import ARTEFACT_TOOLS
from vedette.domain.base.canonical import canonicalize, normalize_json, normalize_numbers
from vedette.domain.base.clock import duration_us
from vedette.domain.base.errors import BadFleet
from vedette.domain.budget import Budget
from vedette.domain.done_condition import DoneCondition
from vedette.domain.identity import Identity
from vedette.domain.memory import BankPlan
from vedette.domain.origin import split_pointer
from vedette.domain.ports.plugin import REASONERS, TOOLS, ReasonerPlugin
from vedette.domain.rate_limit import RateLimits
from vedette.domain.tool import Tool
from vedette.domain.work_tools import ASK_TOOLS, WORK_TOOLS

# Of an agent that names a model and says nothing else: turns to act in, and one to say it is done.
_MODEL_TURNS = 4


class FleetContext(Struct, frozen=True):
    """What an agent is checked against: the fleet's name, its banks, the kinds of its targets.

    A target whose kind is "" may be of any. `models` are the entries of [models].
    """

    fleet: str
    banks: Mapping[str, BankPlan]
    targets: Mapping[str, str]
    models: Mapping[str, ModelPlan] = {}


def read_agent(
    folder: Path, relative_path: str, context: FleetContext
) -> tuple[Agent | None, list[Problem]]:
    """Return the agent of a folder, or None and every problem. `relative_path` is the folder's
    name.

    Its release is that of the folder before anything else of it was read: whoever takes a snapshot
    finds out by it whether it was changed meanwhile.
    """
    linked = link_problems(folder, relative_path)
    release = "" if linked else release_digest(folder)
    problems = [*name_problems(folder, relative_path), *linked]
    if not (folder / "agent.yaml").is_file():
        what = "has no agent.yaml"
        return None, [
            *problems,
            Problem(relative_path, 0, "", what, "add one, or move the folder away"),
        ]
    document, found = read_yaml(folder / "agent.yaml", f"{relative_path}/agent.yaml")
    problems += found
    shape, found = (None, []) if found else check_document(AgentFile, document)
    problems += found
    code, found = _read_modules(folder, relative_path)
    problems += found
    instruction, found = _read_instruction(folder, relative_path)
    problems += found
    if shape is None:
        return None, problems
    if shape.name != folder.name:
        what = f"is {shape.name!r}, but the folder is {folder.name!r}"
        problem_code = "bad-fleet"
        if (folder.parent / shape.name / "agent.yaml").is_file():
            what += f": two agents would be {shape.name!r}"
            problem_code = "duplicate-name"
        mend = f"write name: {folder.name}"
        problems.append(document.problem(("name",), what, mend, code=problem_code))
    problems += _charter_problems(shape, document)
    problems += _reasoner_problems(shape, document, code, relative_path, context)
    problems += _scope_problems(shape, document, context)
    problems += tool_problems(shape, document, code.get("tools"), context.targets)
    own = {tool.name: tool for tool in shape.tools}
    engine_tools = {
        **(ARTEFACT_TOOLS if shape.artefacts else {}),
        **(WORK_TOOLS if shape.work is not None else {}),
        **(ASK_TOOLS if shape.work is not None and shape.work.asks else {}),
    }
    known = {**own, **engine_tools}
    problems += eval_problems(folder, relative_path, known)
    subscriptions, schedules, found = read_triggers(shape, document)
    problems += found
    conditions, found = done_conditions(folder, relative_path, shape)
    problems += found
    problems += _session_problems(shape, document, subscriptions)
    if any(not problem.warning for problem in problems):
        return None, problems
    reasoners = read_reasoners(shape)
    agent = Agent(
        name=shape.name,
        identity=Identity(context.fleet, shape.name),
        title=shape.title,
        owner=shape.owner,
        release=release,
        folder=str(folder.resolve()),
        instruction=instruction,
        charter=_full_charter(shape),
        subscriptions=subscriptions,
        schedules=schedules,
        tools={
            **{tool.name: _tool(tool) for tool in shape.tools},
            **engine_tools,
        },
        scopes=tuple(
            MemoryScope(
                s.bank,
                s.scope,
                tuple(s.topics),
                s.limit,
                context.banks[s.bank].permitted_readers.get(s.scope),
            )
            for s in shape.memory
        ),
        budget=_budget(shape, context),
        requested_mode=shape.mode,
        order_by=shape.order_by,
        collection=shape.collection,
        reasoner=reasoners[0],
        asks_model=plugins(REASONERS).get(reasoners[-1]).asks_model,
        model=shape.model,
        fallback_prices=tuple(
            plan.model.price for plan in _routes(shape, context)[1:] if plan.model.price
        ),
        max_turns=_max_turns(shape),
        rate_limits=RateLimits(**shape.ceilings.model_dump()),
        limits=ResourceLimits(duration_us(shape.limits.time), memory_bytes(shape.limits.memory)),
        cascade=read_cascade(shape),
        confidence=read_confidence_plan(shape),
        artefacts=shape.artefacts,
        work=_work_plan(shape, conditions),
        session=() if shape.session is None else split_pointer(shape.session)[1:],
    )
    return agent, problems


def _work_plan(shape: AgentFile, conditions: tuple[DoneCondition, ...]) -> WorkPlan | None:
    work = shape.work
    if work is None:
        return None
    deadline_us = duration_us(work.deadline)
    return WorkPlan(
        work.max_turns,
        work.no_progress,
        deadline_us,
        conditions,
        tuple(work.waits_for),
        tuple(work.asks),
    )


def _session_problems(
    shape: AgentFile, document: Document, subscriptions: Sequence[Subscription]
) -> list[Problem]:
    """Only a task that is open can take in another event, and its key says which."""
    if shape.session is None:
        return []
    problems = []
    if shape.work is None or not all(one.goal for one in subscriptions):
        what = "an event can only join a task that is open"
        mend = "add work: {} and give each trigger a goal:"
        problems.append(document.problem(("session",), what, mend))
    if "order_by" in shape.model_fields_set:
        what = "session says what the key is, and so does order_by"
        problems.append(document.problem(("order_by",), what, "leave one of them out"))
    return problems


def _full_charter(shape: AgentFile) -> dict[str, Any]:
    """Return the charter, with the agents that this one may ask, and the types of events that it
    may wait for: a value of it is what a sink takes.
    """
    work = shape.work
    listed = {} if work is None else {"asks": work.asks, "waits_for": work.waits_for}
    return {**shape.charter, **{name: values for name, values in listed.items() if values}}


def _routes(shape: AgentFile, context: FleetContext) -> list[ModelPlan]:
    """Return the entries that an agent may ask, the first choice first, as far as they are there.

    A circle, which vedette.toml is refused for, ends where it begins.
    """
    found: list[ModelPlan] = []
    plan = context.models.get(shape.model or "")
    while plan is not None and plan not in found:
        found.append(plan)
        plan = context.models.get(plan.model.fallback or "")
    return found


def _max_turns(shape: AgentFile) -> int:
    named = shape.model is not None or shape.reasoner == CASCADE
    implied = named and "max_turns" not in shape.model_fields_set
    return _MODEL_TURNS if implied else shape.max_turns


def _budget(shape: AgentFile, context: FleetContext) -> Budget:
    """Return an agent's budget, with the price of its model if that has one."""
    values = shape.budget.model_dump()
    plan = context.models.get(shape.model or "")
    if plan is not None and plan.model.price is not None:
        values["price"] = plan.model.price
    return Budget(**values)


def _tool(shape: ToolFile) -> Tool:
    own = {"timeout", "sinks", "permitted_readers", "schema", *performers()}
    values = shape.model_dump(exclude=own)
    if shape.schema is not None:
        values["schema"] = normalize_numbers(shape.schema)
    values["description"] = shape.description or ""
    if shape.permitted_readers is not None:
        values["readers"] = frozenset(shape.permitted_readers)
    if (name := shape.performer) is not None:
        plugin, request = plugins(TOOLS).get(name), vars(shape)[name]
        asks = name if plugin.queries(request) else None
        values |= {"function": name, "query": asks, "performer": name}
        values["verify"] = asks if plugin.verifies(request) else None
        values["request"] = request.model_dump(exclude_none=True)
    return Tool(**values, sinks=tuple(shape.sinks), timeout_us=duration_us(shape.timeout))


def _read_modules(
    folder: Path, relative_path: str
) -> tuple[dict[str, ModuleOutline], list[Problem]]:
    problems = init_file_problems(folder / "__init__.py", f"{relative_path}/__init__.py")
    code: dict[str, ModuleOutline] = {}
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            code[path.stem], found = read_code(path, f"{relative_path}/{path.name}")
            problems += found
    return code, problems


def _read_instruction(folder: Path, relative_path: str) -> tuple[str, list[Problem]]:
    file = f"{relative_path}/instruction.md"
    text, problems = read_text(folder / "instruction.md", file)
    if not problems and not text.strip():
        mend = "say what the agent is for and what it must not do"
        problems = [Problem(file, 0, "", "is empty", mend)]
    return text, problems


def _charter_problems(shape: AgentFile, document: Document) -> list[Problem]:
    """Policies and the ledger see the charter in canonical form, so it must have one."""
    problems = []
    for key, value in shape.charter.items():
        try:
            canonicalize({key: normalize_json(value)})
        except ValueError as error:
            mend = "use ASCII keys, text, numbers, lists and mappings"
            problems.append(document.problem(("charter", key), f"has no JSON form: {error}", mend))
    if shape.work is not None and shape.work.asks and "asks" in shape.charter:
        what = "work: asks: stands in the charter under this name"
        problems.append(document.problem(("charter", "asks"), what, "name it otherwise"))
    listed = [] if shape.work is None else shape.work.waits_for
    if listed and "waits_for" in shape.charter:
        what = "work: waits_for: stands in the charter under this name"
        problems.append(document.problem(("charter", "waits_for"), what, "name it otherwise"))
    for at, type in enumerate(listed):
        if type.startswith("vedette.") or any(char in type for char in "*?["):
            what = f"{type!r} is no type that a task may wait for"
            mend = "name one type of events from outside, without a pattern"
            problems.append(document.problem(("work", "waits_for", at), what, mend))
    return problems


def _reasoner_problems(
    shape: AgentFile,
    document: Document,
    code: Mapping[str, ModuleOutline],
    relative_path: str,
    context: FleetContext,
) -> list[Problem]:
    names = read_reasoners(shape)
    try:
        found: list[ReasonerPlugin] = [plugins(REASONERS).get(name) for name in names]
    except BadFleet as error:
        return [document.problem(("reasoner",), error.what, error.mend or "")]
    if shape.model is not None and not found[-1].asks_model:
        what = f"a {names[-1]} asks no model, and model: names one"
        mend = "remove model:, or reasoner: (reasoner: [judge, model] has both)"
        return [document.problem(("model",), what, mend)]
    for reasoner, plugin in zip(names, found, strict=True):
        missing = _missing_parts(reasoner, plugin, shape, document, code, relative_path)
        if missing:
            return missing
    problems = [
        document.problem(inside, what, mend)
        for reasoner in names
        for inside, what, mend in plugins(REASONERS).problems(reasoner, shape)
    ]
    problems += cascade_problems(shape, document, found[-1])
    if shape.artefacts and names[-1] == "client":
        what = "each call of a client is a run of its own, so no later one could read an artefact"
        problems.append(document.problem(("artefacts",), what, "remove it"))
    if shape.model is not None:
        problems += _entry_problems(shape.model, shape, document, context)
    return problems + (_model_problems(shape, document, context) if found[-1].asks_model else [])


def _missing_parts(
    reasoner: str,
    plugin: ReasonerPlugin,
    shape: AgentFile,
    document: Document,
    code: Mapping[str, ModuleOutline],
    relative_path: str,
) -> list[Problem]:
    """Say what an agent's folder lacks of what one of its reasoners needs."""
    if plugin.defines is not None:
        module, name, mend = plugin.defines
        if plugin.asks_model and module not in code and shape.model is not None:
            name = ""  # instruction.md and the tools say all there is to it
        elif module not in code:
            what = f"{reasoner!r} needs {relative_path}/{module}.py, which is not there"
            return [document.problem(("reasoner",), what, f"add {module}.py with {name}")]
        if name and name not in code[module].names and not code[module].broken:
            return [Problem(code[module].file, 1, "", f"defines no {name}", mend)]
    return []


def _entry_problems(
    name: str, shape: AgentFile, document: Document, context: FleetContext
) -> list[Problem]:
    """Say what keeps an agent from asking its entry of [models], or one of its fallbacks."""
    if name not in context.models:
        what = f"vedette.toml has no table [models.{name}]"
        mend = did_you_mean(name, sorted(context.models)) if context.models else "add it there"
        return [document.problem(("model",), what, mend)]
    problems = []
    bounds = (shape.budget.input_tokens_per_call, shape.budget.output_tokens_per_call)
    spans = ("run", "hour", "day")
    pays = any(getattr(shape.budget, f"money_micros_per_{span}") is not None for span in spans)
    for plan in _routes(shape, context):
        model = plan.model
        if (extra := plan.missing_extra) is not None:
            what = f"[models.{model.name}] needs packages that are not installed ({plan.provider})"
            problems.append(document.problem(("model",), what, install_extra(extra)))
        if pays and model.name != name and model.price is None:
            what = f"money is limited, and nobody knows what its fallback {model.name} costs"
            problems.append(document.problem(("model",), what, "add price = to its entry there"))
        room = model.tokens_per_minute
        if room is not None and None in bounds:
            what = f"[models.{model.name}] limits tokens, and nobody knows what a call may take"
            mend = "add input_tokens_per_call and output_tokens_per_call"
            problems.append(document.problem(("budget",), what, mend))
        elif room is not None and sum(bound or 0 for bound in bounds) > room:
            what = f"a call may take more than the {room} tokens a minute of [models.{model.name}]"
            mend = "lower input_tokens_per_call, or raise tokens_per_minute there"
            problems.append(document.problem(("budget", "input_tokens_per_call"), what, mend))
    return problems


def _model_problems(shape: AgentFile, document: Document, context: FleetContext) -> list[Problem]:
    """A model needs a turn to act and one to say that it is done, and calls to do so."""
    problems = []
    if _max_turns(shape) < 2:
        what = "a model needs a turn to act and one to say it is done"
        problems.append(document.problem(("max_turns",), what, "write max_turns: 4"))
    budget = shape.budget
    per_turn = budget.model_calls_per_turn
    for name in ("model_calls_per_day", "model_calls_per_run"):
        room = getattr(budget, name)
        if room < per_turn:
            what = f"has room for {room} model calls, a turn may make {per_turn}"
            mend = f"write {name}: 200, or at least {per_turn}"
            problems.append(document.problem(("budget", name), what, mend))
    wants = [
        name
        for unit in ("tokens", "money_micros")
        for span in ("run", "hour", "day")
        if getattr(budget, name := f"{unit}_per_{span}") is not None
    ]
    if wants and (budget.input_tokens_per_call is None or budget.output_tokens_per_call is None):
        what = "limits what has no worst case"
        mend = "add input_tokens_per_call and output_tokens_per_call"
        problems.append(document.problem(("budget", wants[0]), what, mend))
    money = [name for name in wants if name.startswith("money")]
    if money and _budget(shape, context).price is None:
        what = "limits money, and no price is named"
        mend = "add price: NAME here, or price = to the model's entry of [models]"
        problems.append(document.problem(("budget", money[0]), what, mend))
    return problems


def _scope_problems(shape: AgentFile, document: Document, context: FleetContext) -> list[Problem]:
    problems = []
    for index, wanted in enumerate(shape.memory):
        path: KeyPath = ("memory", index)
        bank = context.banks.get(wanted.bank)
        if bank is None:
            what = f"there is no bank {wanted.bank!r}"
            mend = did_you_mean(wanted.bank, list(context.banks))
            problems.append(document.problem((*path, "bank"), what, mend))
            continue
        if wanted.scope not in bank.scopes:
            what = f"bank {bank.name!r} has no scope {wanted.scope!r}"
            mend = did_you_mean(wanted.scope, list(bank.scopes))
            problems.append(document.problem((*path, "scope"), what, mend))
        elif shape.name not in bank.scopes[wanted.scope]:
            what = f"bank {bank.name!r} does not list {shape.name!r} as reader of {wanted.scope!r}"
            mend = f"add it to the readers in the bank's bank.yaml: {bank.name}"
            problems.append(document.problem((*path, "scope"), what, mend))
        for place, topic in enumerate(wanted.topics):
            if topic not in bank.topics:
                what = f"bank {bank.name!r} has no topic {topic!r}"
                mend = did_you_mean(topic, bank.topics)
                problems.append(document.problem((*path, "topics", place), what, mend))
    return problems
