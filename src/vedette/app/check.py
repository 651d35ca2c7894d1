"""The check of a fleet: what is wrong with it as written, by file and line, before it runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vedette.config.problem import Problem, did_you_mean
from vedette.domain.base.errors import BadFleet, BadPolicy, VedetteError

if TYPE_CHECKING:
    from vedette.config.fleet import FleetContents
    from vedette.config.settings import Settings
    from vedette.domain.agent import Agent
    from vedette.domain.bundle import Bundle, Finding
    from vedette.operations.evaluation import EvalCase

# What vedette.grant reads of the grant of a tool.
GRANT_KEYS = ("verb", "resource", "impact", "only")


def check_fleet_files(path: Path) -> list[Problem]:
    """Return what `vedette check` finds wrong: settings, agents, memory and policy.

    Imports the agents' code. What stands in the policy folder is also compared with what is live.
    """
    from vedette.config.fleet import read_fleet
    from vedette.config.settings import read_settings
    from vedette.domain.base.clock import SystemClock

    settings, found = read_settings(path)
    if settings is None:
        return list(found)
    contents = read_fleet(settings.root, settings, now_us=SystemClock().now_us())
    problems = [*found, *_content_problems(settings, contents)]
    shown = relative_path(settings.root, settings.policies).as_posix()
    bundle, findings = check_policy_folder(settings.policies, shown, settings)
    problems += findings + _folder_warnings(settings, shown)
    if bundle is None:
        return problems
    agents = contents[0]
    problems += grant_warnings(bundle, settings, shown, agents)
    problems += sink_warnings(bundle, shown, agents)
    problems += row_warnings(settings, path.name)
    return problems + budget_problems(bundle, shown, agents)


def check_content(settings: Settings) -> list[Problem]:
    """Check a fleet's agents, memory and policy, before they are put in place.

    Imports the agents' code. Of the policy no engine is asked but the embedded one.
    """
    from vedette.config.fleet import read_fleet
    from vedette.domain.base.clock import SystemClock

    contents = read_fleet(settings.root, settings, now_us=SystemClock().now_us())
    return [
        *_content_problems(settings, contents),
        *check_policy_folder(settings.policies, "policies")[1],
    ]


def _content_problems(settings: Settings, contents: FleetContents) -> list[Problem]:
    from vedette.config.fleet import check_fleet
    from vedette.domain.base.clock import SystemClock
    from vedette.operations.eval_cases import read_evals
    from vedette.operations.recordings import recording_problems

    def check_evals(agent: Agent, relative_path: str) -> tuple[list[EvalCase], list[Problem]]:
        cases, problems = read_evals(agent, relative_path)
        if agent.asks_model and not problems:
            problems = recording_problems(agent, relative_path, [case.name for case in cases])
        return cases, problems

    now_us = SystemClock().now_us()
    found = check_fleet(settings.root, settings, check_evals, now_us=now_us, contents=contents)
    return [*found, *code_problems(settings.root, settings, now_us, contents)]


def relative_path(root: Path, path: Path) -> Path:
    """Return a path as a check of the fleet shows it: below the fleet's folder, if it is."""
    return path.relative_to(root) if path.is_relative_to(root) else path


# --- the agents' code ------------------------------------------------------------------------


def code_problems(
    root: Path, settings: Settings, now_us: int, contents: FleetContents | None = None
) -> list[Problem]:
    """Import every readable agent's code and make its judge, for the check of a fleet.

    A judge is made of all memories of its agent's scopes: what the policy lets it read is never
    more. Whatever the code prints goes to standard error.
    """
    from vedette.config.agent_loader import build_judge, load_module
    from vedette.config.fleet import read_fleet
    from vedette.store.banks import SqliteBank

    agents, plans, _ = contents or read_fleet(root, settings, now_us=now_us)
    banks = SqliteBank(":memory:")
    banks.load(plans)
    found: list[Problem] = []
    with redirect_stdout(sys.stderr):
        for agent in agents.values():
            folder = Path(agent.folder)
            shown = relative_path(root, folder)
            if agent.has_judge:
                scopes = dict.fromkeys((scope.bank, scope.scope) for scope in agent.scopes)
                lessons = [m for at in scopes for m in banks.lessons(*at, now_us)]
                found += _load_problems(shown, "judge", partial(build_judge, agent, lessons))
            if any(tool.performer is None for tool in agent.tools.values()):
                failed = _load_problems(shown, "tools", partial(load_module, folder, "tools"))
                found += failed or _missing_functions(agent, load_module(folder, "tools"), shown)
    return found


def _load_problems(display_path: Path, name: str, load: Callable[[], Any]) -> list[Problem]:
    """Return what keeps `load` from being done, by the line of the agent's own code."""
    try:
        load()
    except BadFleet as error:
        file, line = _place(error)
        file = (display_path.parent / file).as_posix()
        return [Problem(file, line or 1, "", error.what, error.mend or "")]
    except SystemExit as error:
        file = (display_path / f"{name}.py").as_posix()
        what = f"ends the process (SystemExit: {error})"
        return [Problem(file, 1, "", what, "correct the agent's code")]
    return []


def _missing_functions(agent: Agent, module: ModuleType, display_path: Path) -> list[Problem]:
    """Say which declared functions are none once tools.py is imported."""
    from vedette.config.yaml import read_yaml

    document, _ = read_yaml(
        Path(agent.folder) / "agent.yaml", f"{display_path.as_posix()}/agent.yaml"
    )
    return [
        document.problem(
            ("tools", index, key),
            f"{name!r} is no function once tools.py is imported",
            f"define it in tools.py: def {name}(call)",
        )
        for index, tool in enumerate(agent.tools.values())
        if tool.performer is None
        for key, name in (("function", tool.function), ("query", tool.query))
        if name is not None and not callable(getattr(module, name, None))
    ]


# --- the policy ------------------------------------------------------------------------------


def check_policy_folder(
    folder: Path, display_path: str, settings: Settings | None = None
) -> tuple[Bundle | None, list[Problem]]:
    """Check a policy folder; return its bundle, None if it cannot be read, and what
    keeps it from becoming live; files are named below `display_path`.

    With `settings` also what the engine that they name has to say of it.
    """
    from vedette.adapters.policy_engines.regorus.stage import SubprocessStage, read_bundle
    from vedette.app.policy_engines import trial_stage

    bundle: Bundle | None = None
    try:
        bundle = read_bundle(folder)
        stage = SubprocessStage()
        by = stage if settings is None else trial_stage(settings, stage)
        findings = asyncio.run(by.try_out(bundle))
    except BadPolicy as error:
        file, line = _place(error)
        if file == str(folder):
            file = display_path
        elif not Path(file).is_absolute():
            file = f"{display_path}/{file}"
        return bundle, [Problem(file, line, "", error.what, error.mend or "", code=error.code)]
    return bundle, [_finding_problem(each, display_path) for each in findings]


def _place(error: VedetteError) -> tuple[str, int]:
    """Return the file and the line that an error names; line 0 where it names none."""
    where = error.where or ""
    file, _, line = where.rpartition(":")
    return (file, int(line)) if file and line.isdigit() else (where, 0)


def _finding_problem(finding: Finding, display_path: str) -> Problem:
    file = f"{display_path}/{finding.file}" if finding.file != "policies" else display_path
    mend = finding.mend or "correct this line; nothing of the folder goes live before"
    return Problem(file, finding.line, "", finding.what, mend, code=BadPolicy.code)


def _folder_warnings(settings: Settings, display_path: str) -> list[Problem]:
    """Return a warning where the policy folder says something else than the live policy."""
    from vedette.app.policy_state import folder_state
    from vedette.app.stores import store_exists, store_reader

    if not store_exists(settings):
        return []
    with store_reader(settings) as store:
        if not store.policy.live_revision()[0]:
            return []
        state = folder_state(settings, store)
    if not state["differs"] or state["digest"] is None:
        return []
    mend = "see `vedette policy diff`; publish the folder, or bring it to what is live"
    return [Problem(display_path, 0, "", state["says"], mend, True, "policy-folder-differs")]


def grant_warnings(
    bundle: Bundle, settings: Settings, display_path: str, agents: Mapping[str, Agent]
) -> list[Problem]:
    """Warn, in a check of a fleet, of each agent that the policy grants nothing.

    And one for every key of a grant that no rule reads: by it each call waits for a person.
    """
    from vedette.policy.bundle_data import mount

    try:
        grants = mount(bundle.files).get("grants")
    except BadPolicy:
        return []  # said of the policy itself
    if not isinstance(grants, dict):
        return []  # its rules grant in a way of their own
    folder, file = relative_path(settings.root, settings.agents), f"{display_path}/grants/data.yaml"
    what = "no rule reads this key, so a person is asked about each call of the tool"
    found = [
        Problem(file, 0, field, what, did_you_mean(key, GRANT_KEYS), True, "no-such-key")
        for field, key in _unknown_keys(grants)
    ]
    what = "the policy grants this agent nothing: whatever it proposes is denied"
    return found + [
        Problem(
            (folder / name / "agent.yaml").as_posix(), 0, "", what, f"add {name}: to {file}", True,
            "no-grant",
        )
        for name in agents
        if not grants.get(name)
    ]  # fmt: skip


def _unknown_keys(grants: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the place and the name of every key in the grant of a tool that no rule reads."""
    for agent, own in grants.items():
        tools = own.get("tools") if isinstance(own, dict) else None
        for tool, row in tools.items() if isinstance(tools, dict) else ():
            for key in row if isinstance(row, dict) else ():
                if key not in GRANT_KEYS:
                    yield f"{agent}.tools.{tool}.{key}", key


def sink_warnings(bundle: Bundle, display_path: str, agents: Mapping[str, Agent]) -> list[Problem]:
    """Warn, in a check of a fleet, of each tool's sink that free text can reach.

    A sink that no policy names takes what is trusted and nothing else.
    """
    from vedette.policy.bundle_data import mount

    try:
        sinks = mount(bundle.files).get("sinks")
    except BadPolicy:
        return []  # said of the policy itself
    tools = sinks.get("tools") if isinstance(sinks, dict) else None
    used = {tool: name for name, agent in agents.items() for tool in agent.tools}
    mend = "name what it may be in charter or registry, and accept trusted and registered"
    return [
        Problem(
            f"{display_path}/sinks/data.yaml", 0, f"tools.{tool}.{sink}.accepts",
            f"text that {used[tool]} reads can decide this sink: it accepts {', '.join(free)}",
            mend, True, "sink-reached",
        )
        for tool, rows in (tools.items() if isinstance(tools, dict) else ())
        if tool in used and isinstance(rows, dict)
        for sink, row in rows.items()
        if isinstance(row, dict)
        and (free := [o for o in row.get("accepts") or () if o in ("derived", "untrusted")])
    ]  # fmt: skip


def row_warnings(settings: Settings, display_path: str) -> list[Problem]:
    """Warn, in a check of a fleet, of sources of rows that trust every column."""
    what = "whoever writes its rows chooses what is taken for trusted as id and subject"
    mend = "leave it out, and list in vouched the columns that no stranger chooses"
    return [
        Problem(display_path, 0, f"sources.{plan.name}.vouches", what, mend, True, "sink-reached")
        for plan in settings.sources
        if hasattr(plan, "vouched") and getattr(plan, "vouches", None) == "envelope"
    ]


def budget_problems(
    bundle: Bundle, display_path: str, agents: Mapping[str, Agent]
) -> list[Problem]:
    """Return the policy's limits that cannot be kept, as the check of a fleet finds them."""
    from vedette.app.policy_rollout import read_bundle_budgets

    try:
        found = read_bundle_budgets(bundle.files, agents)[1]
    except BadPolicy:
        return []  # said of the policy itself
    return [_finding_problem(each, display_path) for each in found]
