"""`vedette agent import`: an agent made of an ADK agent."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vedette.interfaces.cli.fleet import command_prefix, current_settings
from vedette.interfaces.cli.output import print_result, sanitize_text

if TYPE_CHECKING:
    from vedette.operations.agent_import import ImportedAgent

_EACH = "TOOL=…"


@click.command("import")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--on", "wakes_on", metavar="TYPE", help="The event type that wakes it. Asked for.")
@click.option("--owner", metavar="WHO", help="Who answers for it. Asked for.")
@click.option("--name", metavar="NAME", help="What to call it. Default: as FOLDER.")
@click.option("--model", metavar="ENTRY", help="The entry of [models] that it asks. Default: the "
              "one that has its model.")  # fmt: skip
@click.option("--target", metavar="TARGET", help="A [targets.TARGET] that its functions reach.")
@click.option("--sinks", multiple=True, metavar="TOOL=A,B", help="The arguments of a tool that "
              "decide who, where or which; TOOL= for none. Default: all. Asked for at a "
              "terminal.")  # fmt: skip
@click.option("--settles", multiple=True, metavar="TOOL=HOW", help="How a lost outcome is settled: "
              "none (a person decides), or idempotent (call again). Default: none. Asked for at a "
              "terminal.")  # fmt: skip
@click.option("--without", multiple=True, metavar="NAME", help="Leave out what would be refused by "
              "this name, or a tool.")  # fmt: skip
@click.option("--state", type=click.Choice(["refuse", "call"]), default="refuse",
              help="What of functions that use the session's state: refuse them, or give each call "
              "an empty one.")  # fmt: skip
def import_(folder: Path, wakes_on: str | None, owner: str | None, name: str | None,
            model: str | None, target: str | None, sinks: tuple[str, ...],
            settles: tuple[str, ...], without: tuple[str, ...], state: str) -> None:  # fmt: skip
    """Write an agent like the ADK agent in FOLDER: its instruction, and its functions as tools.

    Its code is read in a box, copied, and performed by the hands only. What is not imported is
    refused by its name, and then nothing is written. It starts in observe; policy grants it nothing
    until somebody adds the grant that is printed.
    """
    from vedette.app.agent_import import import_adk_agent
    from vedette.operations.agent_import import ImportChoices

    settings = current_settings()
    choices = ImportChoices(
        name=name or folder.resolve().name,
        owner=_require(owner, "--owner", "Who answers for it"),
        wakes_on=_require(wakes_on, "--on", "Which event type wakes it, for example ticket.opened"),
        model=model,
        target=target,
        sinks={tool: _words(given) for tool, given in _by_tool("--sinks", sinks)},
        settles={tool: _settlement(given) for tool, given in _by_tool("--settles", settles)},
        without=frozenset(without),
        keeps_state=state == "call",
    )
    done = import_adk_agent(settings, folder, choices, _ask if sys.stdin.isatty() else None)
    value = _to_json(done, settings.root)
    print_result(value, "\n".join(_lines(value, command_prefix())))


def _require(given: str | None, option: str, question: str) -> str:
    """Return an option's value, asked for at a terminal. Raises click.MissingParameter."""
    if given is not None:
        return given
    if not sys.stdin.isatty():
        context = click.get_current_context()
        raise click.MissingParameter(ctx=context, param_type="option", param_hint=f"'{option}'")
    return str(click.prompt(question, err=True))


def _by_tool(option: str, given: Iterable[str]) -> list[tuple[str, str]]:
    found = []
    for text in given:
        tool, mark, words = text.partition("=")
        if not mark or not tool:
            raise click.BadParameter(f"{text!r} is not {_EACH}", param_hint=f"'{option}'")
        found.append((tool.strip(), words.strip()))
    return found


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _settlement(text: str) -> Any:
    if text not in ("none", "idempotent"):
        raise click.BadParameter(f"{text!r} is not none or idempotent", param_hint="'--settles'")
    return text


def _ask(tool: str, arguments: list[str]) -> tuple[tuple[str, ...], Any]:
    """Ask at the terminal about a tool that no option names; return its sinks and settlement."""
    sinks = tuple(arguments)
    if arguments:
        question = (
            f"{tool}: which of {', '.join(arguments)} decide who, where or which (- for none)"
        )
        given = click.prompt(question, default=",".join(arguments), err=True)
        sinks = () if given.strip() == "-" else _words(given)
    question = f"{tool}: if its outcome is lost: none (a person decides), idempotent (call again)"
    how = click.prompt(
        question, type=click.Choice(["none", "idempotent"]), default="none", err=True
    )
    return sinks, how


def _to_json(done: ImportedAgent, root: Path) -> dict[str, Any]:
    folder = done.folder
    return {
        "agent": done.name,
        "mode": "observe",
        "folder": folder.relative_to(root).as_posix()
        if folder.is_relative_to(root)
        else str(folder),
        "model": done.model,
        "tools": done.tools,
        "left_out": [
            {"name": one.name, "what": one.what, "mend": one.mend} for one in done.left_out
        ],
        "hosts": done.hosts,
        "variables": done.variables,
        "copied": done.copied,
        "not_copied": done.not_copied,
        "notes": done.notes,
        "grant": done.grant,
    }


def _lines(value: dict[str, Any], prefix: str) -> list[str]:
    name = value["agent"]
    lines = [
        f"wrote {sanitize_text(value['folder'])}: asks [models.{value['model']}], "
        f"{len(value['tools'])} tools: {', '.join(value['tools']) or 'none'}"
    ]
    lines += [sanitize_text(f"note: {note}") for note in value["notes"]]
    lines += [
        sanitize_text(f"left out: {one['name']} {one['what']}; {one['mend']}")
        for one in value["left_out"]
    ]
    lines += [
        sanitize_text(f"not copied: {file}; a key goes into vedette.toml")
        for file in value["not_copied"]
    ]
    lines += [sanitize_text(f"copied, and no Python: {file}") for file in value["copied"]]
    if value["hosts"]:
        lines += [
            "These hosts stand in its code; it reaches none that no target of its tools declares:",
            *(f"  {sanitize_text(host)}" for host in value["hosts"]),
        ]
    if value["variables"]:
        names = ", ".join(value["variables"])
        lines.append(sanitize_text(f"It reads variables that it will not find: {names}"))
    return [
        *lines,
        "Policy grants it nothing. In policies/grants/data.yaml this would, in observe:",
        *value["grant"].splitlines(),
        "next:",
        f"  {prefix} check",
        f"  {prefix} agent show {name}",
        f"  {prefix} run          (a fleet that runs takes it up when it is started again)",
    ]
