"""`vedette check`: everything that is wrong, by file and line, before anything runs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import click

from vedette.cli.common import as_json_option, config_file, problem_json, say, table
from vedette.errors import BadPolicy


@click.command()
@click.option("-v", "--verbose", is_flag=True, help="Also the effective settings, and where from.")
@as_json_option
@click.pass_context
def check(ctx: click.Context, verbose: bool, as_json: bool) -> int:
    """Check settings, agents and their cases, memory and policy, by file and line. Runs nothing.

    Exits with 1 if there are problems; warnings alone are no problem.
    """
    path = config_file(ctx.find_root().obj)
    problems = _problems(path)
    bad = [problem for problem in problems if not problem["warning"]]
    settings = effective(path) if verbose or as_json else []
    lines = []
    if verbose:
        rows = [[row["name"], str(row["value"]), row["from"]] for row in settings]
        lines += [table(["setting", "value", "from"], rows), ""]
    lines += [_line(problem) for problem in problems]
    warnings = len(problems) - len(bad)
    told = f"{len(bad)} problem{'s' * (len(bad) != 1)}"
    if warnings:
        told += f", {warnings} warning{'s' * (warnings != 1)}"
    lines.append(told if problems else "all is well")
    value: dict[str, Any] = {"ok": not bad, "problems": problems, "settings": settings}
    say(as_json, value, "\n".join(lines))
    return 1 if bad else 0


def _problems(path: Path) -> list[dict[str, Any]]:
    from vedette.clock import SystemClock
    from vedette.load import check_fleet, read_settings

    settings, found = read_settings(path)
    problems: list[dict[str, Any]] = [dict(problem.to_json()) for problem in found]
    if settings is None:
        return problems
    now_us = SystemClock().now_us()
    problems += [dict(p.to_json()) for p in check_fleet(settings.root, settings, now_us=now_us)]
    root = settings.root
    shown = settings.policies
    if shown.is_relative_to(root):
        shown = shown.relative_to(root)
    return problems + policy_findings(settings.policies, shown.as_posix())


def policy_findings(folder: Path, shown: str) -> list[dict[str, Any]]:
    """Return what keeps a policy folder from becoming live; files are named below `shown`."""
    from vedette.adapters.rego.stage import SubprocessStage, read_bundle

    try:
        findings = asyncio.run(SubprocessStage().try_out(read_bundle(folder)))
    except BadPolicy as error:
        found = problem_json(error)
        if not Path(found["file"]).is_absolute():
            found["file"] = f"{shown}/{found['file']}"
        return [found]
    return [
        {
            "file": f"{shown}/{finding.file}" if finding.file != "policies" else shown,
            "line": finding.line,
            "field": "",
            "what": finding.what,
            "mend": finding.mend,
            "warning": False,
        }
        for finding in findings
    ]


def _line(problem: dict[str, Any]) -> str:
    place = f"{problem['file']}:{problem['line']}" if problem["line"] else problem["file"]
    field = f" {problem['field']}:" if problem["field"] else ""
    kind = "warning: " if problem["warning"] else ""
    mend = f" ({problem['mend']})" if problem["mend"] else ""
    return f"{place}:{field} {kind}{problem['what']}{mend}"


def effective(path: Path) -> list[dict[str, Any]]:
    """Return every plain setting with its value and where it comes from; [] if none can be read."""
    import tomllib

    from pydantic import ValidationError

    from vedette.load.settings_file import ENV, SettingsFile, toml_lines

    try:
        text = path.read_text(encoding="utf-8")
        shape = SettingsFile(**tomllib.loads(text))
    except (ValueError, ValidationError):
        return []
    lines = toml_lines(text)
    set_here = {name.upper() for name in os.environ}
    found = []
    for at, value in _leaves(shape.model_dump(exclude={"targets", "sources"}), ()):
        variable = ENV + "__".join(part.upper() for part in at)
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
