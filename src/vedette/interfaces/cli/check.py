"""`vedette check`: everything that is wrong, by file and line, before anything runs."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.errors import BadFleet, BadPolicy
from vedette.interfaces.cli.common import (
    as_json_option,
    find_config_file,
    format_table,
    print_result,
    problem_json,
    settings_of,
)

if TYPE_CHECKING:
    from vedette.config.fleet import FleetContents
    from vedette.config.problem import Problem
    from vedette.config.settings import Settings
    from vedette.domain.agent import Agent
    from vedette.domain.bundle import Bundle, Finding


# What vedette.grant reads of the grant of a tool.
GRANT_KEYS = ("verb", "resource", "impact", "only")


@click.command()
@click.option("-v", "--verbose", is_flag=True, help="Also the effective settings, and where from.")
@click.option("--live", is_flag=True, help="Also look at targets, credentials, clock, disk.")
@as_json_option
@click.pass_context
def check(ctx: click.Context, verbose: bool, live: bool, as_json: bool) -> int:
    """Check settings, agents and their cases, memory and policy, by file and line.

    Agents' code is imported and every judge made, as in a fleet that starts; nothing is handled,
    stored or called. With --live the machine, targets and sources are looked at as well: they are
    connected to and logged into, and nothing is sent. Exits with 1 if there are problems; warnings
    alone are no problem.

    The agents' code runs as you, in no box: not on a folder that nobody has read.
    """
    path = find_config_file(ctx.find_root().obj)
    problems = _find_problems(path)
    bad = [problem for problem in problems if not problem["warning"]]
    settings = effective_settings(path) if verbose or as_json else []
    lines = []
    if verbose:
        rows = [[row["name"], str(row["value"]), row["from"]] for row in settings]
        lines += [format_table(["setting", "value", "from"], rows), ""]
    lines += [_line(problem) for problem in problems]
    warnings = len(problems) - len(bad)
    told = f"{len(bad)} problem{'s' * (len(bad) != 1)}"
    if warnings:
        told += f", {warnings} warning{'s' * (warnings != 1)}"
    lines.append(told if problems else "all is well")
    value: dict[str, Any] = {"ok": not bad, "problems": problems, "settings": settings}
    if live and not any(problem["file"] in (path.name, "environment") for problem in bad):
        from vedette.interfaces.cli.doctor import check_lines, checks_json, run_checks

        seen = run_checks(settings_of(ctx))
        lines += ["", *check_lines(seen)]
        value["live"] = checks_json(seen)
        value["ok"] = not bad and not any(one.state == "fail" for one in seen)
    print_result(as_json, value, "\n".join(lines))
    return 0 if value["ok"] else 1


def _find_problems(path: Path) -> list[dict[str, Any]]:
    from vedette.config.fleet import check_fleet, read_fleet
    from vedette.config.settings import read_settings
    from vedette.domain.base.clock import SystemClock
    from vedette.operations.eval_cases import read_evals

    settings, found = read_settings(path)
    problems: list[dict[str, Any]] = [dict(problem.to_json()) for problem in found]
    if settings is None:
        return problems
    now_us = SystemClock().now_us()
    root = settings.root
    read = read_fleet(root, settings, now_us=now_us)
    told = check_fleet(root, settings, read_evals, now_us=now_us, contents=read)
    told += code_problems(root, settings, now_us, read)
    problems += [dict(problem.to_json()) for problem in told]
    shown = settings.policies
    if shown.is_relative_to(root):
        shown = shown.relative_to(root)
    bundle, findings = _check_policy(settings.policies, shown.as_posix(), settings)
    problems += findings + folder_warnings(settings, shown.as_posix())
    if bundle is None:
        return problems
    problems += grant_warnings(bundle, settings, shown.as_posix(), read[0])
    problems += sink_warnings(bundle, shown.as_posix(), read[0])
    problems += row_warnings(settings, path.name)
    return problems + budget_findings(bundle, shown.as_posix(), read[0])


def folder_warnings(settings: Settings, display_path: str) -> list[dict[str, Any]]:
    """Return a warning where the policy folder says something else than the live policy."""
    from vedette.app.stores import store_exists
    from vedette.config.problem import Problem
    from vedette.interfaces.cli.common import store_reader
    from vedette.interfaces.cli.folder_state import folder_state

    if not store_exists(settings):
        return []
    with store_reader(settings) as store:
        if not store.live_revision()[0]:
            return []
        state = folder_state(settings, store)
    if not state["differs"] or state["digest"] is None:
        return []
    mend = "see `vedette policy diff`; publish the folder, or bring it to what is live"
    problem = Problem(display_path, 0, "", state["says"], mend, True, "policy-folder-differs")
    return [dict(problem.to_json())]


def grant_warnings(
    bundle: Bundle, settings: Settings, display_path: str, agents: Mapping[str, Agent]
) -> list[dict[str, Any]]:
    """Return a warning for every agent to which the policy's data grants nothing.

    And one for every key of a grant that no rule reads: by it each call waits for a person.
    """
    from vedette.config.problem import Problem, did_you_mean
    from vedette.policy.bundle_data import mount

    try:
        grants = mount(bundle.files).get("grants")
    except BadPolicy:
        return []  # said of the policy itself
    if not isinstance(grants, dict):
        return []  # its rules grant in a way of their own
    folder = settings.agents
    if folder.is_relative_to(settings.root):
        folder = folder.relative_to(settings.root)
    return [
        dict(
            Problem(
                f"{display_path}/grants/data.yaml", 0, field,
                "no rule reads this key, so a person is asked about each call of the tool",
                did_you_mean(key, GRANT_KEYS), True, "no-such-key",
            ).to_json()
        )
        for field, key in _unknown_keys(grants)
    ] + [
        dict(
            Problem(
                (folder / name / "agent.yaml").as_posix(), 0, "",
                "the policy grants this agent nothing: whatever it proposes is denied",
                f"add {name}: to {display_path}/grants/data.yaml", True, "no-grant",
            ).to_json()
        )
        for name in agents
        if not grants.get(name)
    ]  # fmt: skip


def sink_warnings(
    bundle: Bundle, display_path: str, agents: Mapping[str, Agent]
) -> list[dict[str, Any]]:
    """Return a warning for every sink of an agent's tool that the policy lets free text reach.

    A sink that no policy names takes what is trusted and nothing else.
    """
    from vedette.config.problem import Problem
    from vedette.policy.bundle_data import mount

    try:
        told = mount(bundle.files).get("sinks")
    except BadPolicy:
        return []  # said of the policy itself
    tools = told.get("tools") if isinstance(told, dict) else None
    used = {tool: name for name, agent in agents.items() for tool in agent.tools}
    return [
        dict(
            Problem(
                f"{display_path}/sinks/data.yaml", 0, f"tools.{tool}.{sink}.accepts",
                f"text that {used[tool]} reads can decide this sink: it accepts {', '.join(free)}",
                "name what it may be in charter or registry, and accept trusted and registered",
                True, "sink-reached",
            ).to_json()
        )
        for tool, sinks in (tools.items() if isinstance(tools, dict) else ())
        if tool in used and isinstance(sinks, dict)
        for sink, row in sinks.items()
        if isinstance(row, dict)
        and (free := [o for o in row.get("accepts") or () if o in ("derived", "untrusted")])
    ]  # fmt: skip


def row_warnings(settings: Settings, display_path: str) -> list[dict[str, Any]]:
    """Return a warning for every source of rows whose columns are all trusted in the envelope."""
    from vedette.config.problem import Problem

    return [
        dict(
            Problem(
                display_path, 0, f"sources.{plan.name}.vouches",
                "whoever writes its rows chooses what is taken for trusted as id and subject",
                "leave it out, and list in vouched the columns that no stranger chooses",
                True, "sink-reached",
            ).to_json()
        )
        for plan in settings.sources
        if hasattr(plan, "vouched") and getattr(plan, "vouches", None) == "envelope"
    ]  # fmt: skip


def _unknown_keys(grants: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the place and the name of every key in the grant of a tool that no rule reads."""
    for agent, own in grants.items():
        tools = own.get("tools") if isinstance(own, dict) else None
        for tool, row in tools.items() if isinstance(tools, dict) else ():
            for key in row if isinstance(row, dict) else ():
                if key not in GRANT_KEYS:
                    yield f"{agent}.tools.{tool}.{key}", key


def budget_findings(
    bundle: Bundle, display_path: str, agents: Mapping[str, Agent]
) -> list[dict[str, Any]]:
    """Return what of the policy's limits cannot be kept for the agents that can be read."""
    from vedette.app.composition_root import read_bundle_budgets

    try:
        found = read_bundle_budgets(bundle.files, agents)[1]
    except BadPolicy:
        return []  # said of the policy itself
    return [_finding_json(each, display_path) for each in found]


def code_problems(
    root: Path, settings: Settings, now_us: int, read: FleetContents | None = None
) -> list[Problem]:
    """Import the code of every agent that can be read, and make its judge.

    A judge is made of all memories of its agent's scopes: what the policy lets it read is never
    more. Whatever the code prints goes to standard error.
    """
    from vedette.config.agent_loader import build_judge, load_module
    from vedette.config.fleet import read_fleet
    from vedette.store.banks import SqliteBank

    agents, plans, _ = read or read_fleet(root, settings, now_us=now_us)
    banks = SqliteBank(":memory:")
    banks.load(plans)
    found: list[Problem] = []
    with redirect_stdout(sys.stderr):
        for agent in agents.values():
            folder = Path(agent.folder)
            shown = folder.relative_to(root) if folder.is_relative_to(root) else folder
            if agent.has_judge:
                scopes = dict.fromkeys((scope.bank, scope.scope) for scope in agent.scopes)
                lessons = [m for at in scopes for m in banks.lessons(*at, now_us)]
                found += _check_code(shown, "judge", partial(build_judge, agent, lessons))
            if any(tool.performer is None for tool in agent.tools.values()):
                failed = _check_code(shown, "tools", partial(load_module, folder, "tools"))
                found += failed or _missing_functions(agent, load_module(folder, "tools"), shown)
    return found


def _check_code(display_path: Path, name: str, load: Callable[[], Any]) -> list[Problem]:
    """Return what keeps `load` from being done, by the line of the agent's own code."""
    from vedette.config.problem import Problem

    try:
        load()
    except BadFleet as error:
        told = problem_json(error)
        file = (display_path.parent / told["file"]).as_posix()
        return [Problem(file, told["line"] or 1, "", error.what, error.mend or "")]
    except SystemExit as error:
        file, what = (
            (display_path / f"{name}.py").as_posix(),
            f"ends the process (SystemExit: {error})",
        )
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


def policy_findings(
    folder: Path, display_path: str, settings: Settings | None = None
) -> list[dict[str, Any]]:
    """Return what keeps a policy folder from becoming live; files are named below `display_path`.

    With `settings` also what the engine that they name has to say of it.
    """
    return _check_policy(folder, display_path, settings)[1]


def _check_policy(
    folder: Path, display_path: str, settings: Settings | None = None
) -> tuple[Bundle | None, list[dict[str, Any]]]:
    """Return the bundle of a policy folder, None if it cannot be read, and its findings."""
    from vedette.adapters.policy_engines.regorus.stage import SubprocessStage, read_bundle
    from vedette.app.policy_engines import trial_stage

    bundle: Bundle | None = None
    try:
        bundle = read_bundle(folder)
        stage = SubprocessStage()
        by = stage if settings is None else trial_stage(settings, stage)
        findings = asyncio.run(by.try_out(bundle))
    except BadPolicy as error:
        found = problem_json(error)
        if found["file"] == str(folder):
            found["file"] = display_path
        elif not Path(found["file"]).is_absolute():
            found["file"] = f"{display_path}/{found['file']}"
        return bundle, [found]
    return bundle, [_finding_json(each, display_path) for each in findings]


def _finding_json(finding: Finding, display_path: str) -> dict[str, Any]:
    return {
        "file": f"{display_path}/{finding.file}" if finding.file != "policies" else display_path,
        "line": finding.line,
        "field": "",
        "what": finding.what,
        "mend": finding.mend or "correct this line; nothing of the folder goes live before",
        "warning": False,
        "code": BadPolicy.code,
    }


def _line(problem: dict[str, Any]) -> str:
    place = f"{problem['file']}:{problem['line']}" if problem["line"] else problem["file"]
    field = f" {problem['field']}:" if problem["field"] else ""
    kind = "warning: " if problem["warning"] else ""
    mend = f" ({problem['mend']})" if problem["mend"] else ""
    return f"{place}:{field} {kind}{problem['what']}{mend}"


def effective_settings(path: Path) -> list[dict[str, Any]]:
    """Return every plain setting with its value and where it comes from; [] if none can be read."""
    import tomllib

    from vedette.config.settings_file import ENV_PREFIX, parse_settings, toml_lines

    try:
        text = path.read_text(encoding="utf-8")
        shape, _ = parse_settings(tomllib.loads(text), os.environ)
    except ValueError:
        return []
    if shape is None:
        return []
    lines = toml_lines(text)
    set_here = {name.upper() for name in os.environ}
    found = []
    for at, value in _leaves(shape.model_dump(exclude={"targets", "sources"}), ()):
        variable = ENV_PREFIX + "__".join(part.upper() for part in at)
        origin = "default"
        if variable in set_here:
            origin = f"environment {variable}"
        elif at in lines:
            origin = f"{path.name}:{lines[at]}"
        found.append({"name": ".".join(at), "value": value, "from": origin})
    for key, names in (
        ("sources", [f"{source.kind} {source.name}" for source in shape.sources]),
        ("targets", list(shape.targets)),
    ):
        line = next((line for at, line in lines.items() if at and at[0] == key), None)
        origin = f"{path.name}:{line}" if line else "default"
        found.append({"name": key, "value": ", ".join(names) or "none", "from": origin})
    return found


def _leaves(value: dict[str, Any], at: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, item in value.items():
        if isinstance(item, dict):
            found += _leaves(item, (*at, key))
        elif key == "senders":
            # How a sender proves itself is nobody's business here.
            names = ", ".join(str(sender["name"]) for sender in item)
            found.append(((*at, key), names or "none"))
        else:
            found.append(((*at, key), item))
    return found
