"""`vedette check`: what is wrong with what people wrote, before anything runs."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.fleet import (
    current_settings,
    find_agent,
    find_config_file,
    load_agents,
)
from vedette.interfaces.cli.output import (
    format_table,
    format_usage,
    print_result,
    sanitize_text,
    wants_json,
)

if TYPE_CHECKING:
    from vedette.app.doctor import CheckResult
    from vedette.config.problem import Problem
    from vedette.operations.evaluation import EvalResult

_MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL", "untested": "-   "}
_WIDTH = 78


@click.command()
@click.argument("part", type=click.Choice(("fleet", "policy", "cases")), default="fleet")
@click.argument("what", metavar="[FOLDER|AGENT]", required=False)
@click.option("-v", "--verbose", is_flag=True, help="Also the effective settings, and where from.")
@click.option(
    "--live",
    is_flag=True,
    help="Also look at targets, credentials, models, clock, disk. Of cases: ask the models anew.",
)
@click.option("--record", is_flag=True, help="Of cases, with --live: keep what the models say.")
def check(part: str, what: str | None, verbose: bool, live: bool, record: bool) -> int:
    """Check the fleet: settings, agents, memory and policy, by file and line.

    \b
    check                  all of it, as it is written
    check policy [FOLDER]  what would keep the fleet's policy, or FOLDER, from becoming live
    check cases [AGENT]    every agent, or AGENT, on the cases of its evals/*.yaml

    Agents' code is imported and every judge made, as in a fleet that starts; nothing is handled,
    stored or called. With --live the machine, targets and sources are looked at as well: they are
    connected to and logged into, and nothing is sent. A policy is tried out in a process of its
    own: parsed, its tests run, both evaluators compared. A case goes through the agent's judge and
    the policy as it lies in the folder.

    What a model says to a case comes out of its recording, evals/recordings/CASE.json, and nobody
    is asked. With --live the model of [models] is asked, which costs; with --record as well, what
    it says is kept there, unless it is not as expected and the recording before is, or the run was
    cut off by a limit. A case without a recording, or of a recording of something else, is not as
    expected, unless a cascade's judge settles it. No tool is called in any case.

    Exits with 1 if there are problems; warnings alone are no problem. The agents' code runs as you,
    in no box: not on a folder that nobody has read.
    """
    if verbose and part != "fleet":
        raise click.UsageError("--verbose is for the fleet as a whole")
    if live and part == "policy":
        raise click.UsageError("--live is for the fleet as a whole, and for cases")
    if record and not (live and part == "cases"):
        raise click.UsageError("--record is for `check cases --live`: nothing else is asked")
    if part == "policy":
        return _check_policy(what)
    if part == "cases":
        return _check_cases(what, live, record)
    if what is not None:
        raise click.UsageError(f"the fleet is checked as a whole: leave out {what}")
    return _check_fleet(verbose, live)


# --- the fleet -------------------------------------------------------------------------------


def _check_fleet(verbose: bool, live: bool) -> int:
    from vedette.app.check import check_fleet_files

    path = find_config_file()
    problems = check_fleet_files(path)
    bad = [problem for problem in problems if not problem.warning]
    settings = _effective_settings(path) if verbose or wants_json() else []
    lines = []
    if verbose:
        rows = [[row["name"], str(row["value"]), row["from"]] for row in settings]
        lines += [format_table(["setting", "value", "from"], rows), ""]
    lines += [_line(problem) for problem in problems]
    warnings = len(problems) - len(bad)
    count = f"{len(bad)} problem{'s' * (len(bad) != 1)}"
    if warnings:
        count += f", {warnings} warning{'s' * (warnings != 1)}"
    lines.append(count if problems else "all is well")
    value: dict[str, Any] = {
        "ok": not bad, "problems": [one.to_json() for one in problems], "settings": settings,
    }  # fmt: skip
    if live and not any(problem.file in (path.name, "environment") for problem in bad):
        results = _look_at_live()
        lines += ["", *_live_lines(results)]
        value["live"] = [dict(one.to_json()) for one in results]
        value["ok"] = not bad and not any(one.state == "fail" for one in results)
    print_result(value, "\n".join(lines))
    return 0 if value["ok"] else 1


def _look_at_live() -> list[CheckResult]:
    from vedette.app.doctor import check_live
    from vedette.interfaces.http.local_client import LocalClient

    settings = current_settings()
    return check_live(settings, is_running=LocalClient(settings.state).is_alive())


def _line(problem: Problem) -> str:
    place = f"{problem.file}:{problem.line}" if problem.line else problem.file
    field = f" {problem.field}:" if problem.field else ""
    kind = "warning: " if problem.warning else ""
    mend = f" ({problem.mend})" if problem.mend else ""
    return f"{place}:{field} {kind}{problem.what}{mend}"


def _live_lines(results: list[CheckResult]) -> list[str]:
    """Return a line for each thing that was looked at, and its mend where there is one."""
    lines = []
    for one in results:
        text = f"{_MARKS[one.state]} {sanitize_text(one.what)}: {sanitize_text(one.told)}"
        text += ", not tested" if one.state == "untested" else ""
        lines += wrap(text, _WIDTH, subsequent_indent="       ")
        if one.mend:
            mend = f"mend: {sanitize_text(one.mend)}"
            lines += wrap(mend, _WIDTH, initial_indent="       ", subsequent_indent="         ")
    return lines


def _effective_settings(path: Path) -> list[dict[str, Any]]:
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
        elif key in ("senders", "agents") and at == ("serve",):
            # How a sender or an agent proves itself is nobody's business here.
            names = ", ".join(str(one.get("name") or one["agent"]) for one in item)
            found.append(((*at, key), names or "none"))
        else:
            found.append(((*at, key), item))
    return found


# --- the policy ------------------------------------------------------------------------------


def policy_folder(named: Path) -> Path:
    """Return the absolute path of a policy folder that a verb was given. Raises BadCommand."""
    found = named.absolute()
    if not found.is_dir():
        raise BadCommand("there is no such folder", where=str(found), mend="name the policy folder")
    return found


def _check_policy(folder: str | None) -> int:
    from vedette.app.check import check_policy_folder

    settings = current_settings() if folder is None else None
    shown = folder if settings is None else str(settings.policies)
    assert shown is not None
    problems = check_policy_folder(policy_folder(Path(shown)), shown, settings)[1]
    lines = [
        f"{one.file}:{one.line}: {one.what}" + (f" ({one.mend})" if one.mend else "")
        for one in problems
    ]
    value = {"ok": not problems, "findings": [one.to_json() for one in problems]}
    print_result(value, "\n".join(lines or ["it may become live"]))
    return 1 if problems else 0


# --- the agents' cases -----------------------------------------------------------------------


def _check_cases(agent: str | None, live: bool, record: bool) -> int:
    from vedette.app.trial import run_cases
    from vedette.domain.base.clock import SystemClock
    from vedette.operations.evaluation import ModelUsage

    settings = current_settings()
    loaded = load_agents(settings)
    agents = loaded.fleet.agents
    wanted = agents.values() if agent is None else [find_agent(agents, agent)]
    results, skipped = run_cases(
        settings, loaded, wanted, SystemClock().now_us(), live=live, record=record
    )
    lines = [line for result in results for line in _case_lines(result)]
    failed = sum(not result.ok for result in results)
    lines += [f"skipped {name}: {why}" for name, why in skipped]
    lines.append(f"{len(results)} cases, {len(results) - failed} as expected, {failed} not")
    value: dict[str, Any] = {
        "ok": not failed,
        "cases": [result.to_json() for result in results],
        "skipped": [{"agent": name, "why": why} for name, why in skipped],
    }
    usages = [result.usage for result in results if result.usage is not None]
    if usages:
        total = ModelUsage()
        for usage in usages:
            total.add(usage)
        lines += wrap(f"models in all: {format_usage(total.to_json())}", _WIDTH)
        value["usage"] = total.to_json()
    print_result(value, "\n".join(lines))
    return 1 if failed else 0


def _case_lines(result: EvalResult) -> list[str]:
    mark = "ok  " if result.ok else "FAIL"
    lines = [f"{mark} {result.agent}: {result.case.name}"]
    said: list[str] = [result.basis] if result.basis else []
    if result.usage is not None:
        said.append(format_usage(result.usage.to_json()))
    if result.task is not None:
        from vedette.interfaces.render.task_text import format_score

        said.append(format_score(result.task.to_json()))
    if result.ended not in ("", "done"):
        said.append(f"the last run {result.ended}")
    if not result.ok:
        said += [result.case.where, *result.differences]
        said += [f"{tool}: {outcome} by {rule}" for tool, outcome, rule in result.rules]
    for sentence in said:
        lines += wrap(
            sanitize_text(sentence), _WIDTH, initial_indent=" " * 7, subsequent_indent=" " * 9,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return lines
