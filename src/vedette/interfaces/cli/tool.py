"""`vedette tool`: tools of MCP servers, declared in an agent's agent.yaml."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from vedette.domain.base.errors import BadCommand, NotFound
from vedette.interfaces.cli.fleet import command_prefix, current_settings, find_agent, load_agents
from vedette.interfaces.cli.output import print_result, sanitize_text

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.domain.agent import Agent
    from vedette.domain.tool import Tool
    from vedette.operations.server_tools import ToolChoice, ToolProposal

_SETTLES, _ERRORS = ("none", "idempotent"), ("unknown", "not_done")


@click.group()
def tool() -> None:
    """Declare the tools of an MCP server in an agent's agent.yaml."""


@tool.command("add")
@click.argument("agent")
@click.option("--mcp", "target", required=True, metavar="TARGET", help="A target of kind mcp.")
@click.option("--tool", "names", multiple=True, metavar="NAME", help="A tool of it; repeatable.")
@click.option("--sink", "sinks", multiple=True, metavar="POINTER", help="Only these are sinks.")
@click.option("--no-sinks", is_flag=True, help="No argument is a sink.")
@click.option("--settles", type=click.Choice(_SETTLES), help="A lost outcome. Default: none.")
@click.option(
    "--errors",
    type=click.Choice(_ERRORS),
    help="What an error of it says. Default: unknown.",
)
@click.option("--description", metavar="TEXT", help="What it does, for a model; in your words.")
@click.option(
    "--again", is_flag=True, help="Take what the server says now of a tool that is there."
)
@click.option("--yes", is_flag=True, help="Ask nothing; needed where there is no terminal.")
def add(
    agent: str,
    target: str,
    names: Sequence[str],
    sinks: Sequence[str],
    no_sinks: bool,
    settles: str | None,
    errors: str | None,
    description: str | None,
    again: bool,
    yes: bool,
) -> None:
    """Read the tools of the MCP server TARGET and declare them in agent.yaml of AGENT, pinned.

    Each is shown as the server describes it, which nobody vouches for, and asked about: which
    arguments decide who, where or which (every one, unless you say otherwise), how a lost outcome
    is settled, and whether its errors say that nothing was done. What is written has the digest of
    all that the server says of the tool: if the server changes it, the tool is refused until you
    have looked and given --again. Nobody may
    use it before policy grants it.
    """
    from vedette.app.check import check_content
    from vedette.operations.server_tools import declare_tools, propose_tool

    settings = current_settings()
    found = find_agent(load_agents(settings).fleet.agents, agent)
    listed = _list_tools(settings, target)
    proposals = {one["name"]: propose_tool(one, target) for one in listed.tools}
    wanted = _select(proposals, names, yes=yes)
    for name in wanted:
        if (why := proposals[name].problem) != "":
            raise BadCommand(f"{name} cannot be declared: {why}", mend="leave it out")
    if len(wanted) != 1 and (sinks or no_sinks or description):
        what = "sinks and a description are of one tool"
        raise BadCommand(what, mend="name it with --tool, one at a time")
    if description is not None and not description.strip():
        raise BadCommand("a description has no words", mend="leave out --description")
    _refuse_wrong_state(found, target, wanted, again=again)
    asks = _Questions(interactive=not yes)
    choices = []
    for name in wanted:
        given = () if no_sinks else tuple(sinks) or None
        said = _Said(given, settles, errors, description)
        choices.append(asks.choose(found, target, proposals[name], said))
    path = declare_tools(settings, agent, target, choices, check_content)
    value = {
        "agent": agent, "target": target, "server": listed.server, "protocol": listed.protocol,
        "file": str(path),
        "tools": [
            {
                "name": choice.proposal.name, "tool": choice.proposal.server_name,
                "digest": choice.proposal.digest, "sinks": list(choice.sinks),
                "settles": choice.settles, "errors": choice.errors,
                "description": choice.description,
            }
            for choice in choices
        ],
    }  # fmt: skip
    print_result(value, "\n".join(_result_lines(value)))


@tool.command("list")
@click.option("--mcp", "target", required=True, metavar="TARGET", help="A target of kind mcp.")
def list_(target: str) -> None:
    """List the tools of the MCP server TARGET, as it describes them itself."""
    listed = _list_tools(current_settings(), target)
    value = {"server": listed.server, "protocol": listed.protocol, "tools": list(listed.tools)}
    lines = [f"{sanitize_text(listed.server or target)}, MCP {listed.protocol}:"]
    for one in listed.tools:
        text = " ".join(str(one.get("description", "")).split())[:120]
        lines.append(f"  {sanitize_text(one['name'])}  {sanitize_text(text)}".rstrip())
    print_result(value, "\n".join(lines))


def _list_tools(settings: Settings, target: str) -> Any:
    """Return what a target's server has. Raises NotFound, BadCommand, Unavailable."""
    from vedette.adapters.identity.secrets import register_secret_manager
    from vedette.adapters.mcp.probe import list_server
    from vedette.app.workers import box_settings

    table = settings.targets.get(target)
    if table is None or table.get("kind") != "mcp":
        names = [name for name, one in settings.targets.items() if one.get("kind") == "mcp"]
        mend = f"there are: {', '.join(names)}" if names else f'add [targets.{target}] kind = "mcp"'
        raise NotFound(f"vedette.toml has no target {target!r} of kind mcp", mend=mend)
    register_secret_manager()
    return asyncio.run(list_server(table, box_settings(settings)))


def _select(proposals: dict[str, Any], names: Sequence[str], *, yes: bool) -> list[str]:
    if names:
        for name in names:
            if name not in proposals:
                from vedette.config.problem import did_you_mean

                mend = did_you_mean(name, list(proposals))
                raise NotFound(f"the server has no tool {name!r}", mend=mend)
        return list(dict.fromkeys(names))
    if yes or not sys.stdin.isatty():
        raise BadCommand("it is not said which tools", mend="add --tool NAME for each")
    for name, proposal in proposals.items():
        text = " ".join(proposal.description.split())[:100]
        click.echo(f"  {sanitize_text(name)}  {sanitize_text(text)}", err=True)
    given = click.prompt("Which of them, separated by spaces", err=True)
    return _select(proposals, given.split(), yes=yes)


def _refuse_wrong_state(agent: Agent, target: str, wanted: Sequence[str], *, again: bool) -> None:
    """Raise BadCommand for a tool that is there already, and with `again` for one that is not."""
    there = _tools_by_server_name(agent, target)
    for name in wanted:
        if name in there and not again:
            what = f"{agent.name} has the server's tool {name} already"
            raise BadCommand(what, mend="add --again to take what the server says of it now")
        if again and name not in there:
            raise BadCommand(f"{agent.name} has no such tool {name}", mend="leave out --again")


def _tools_by_server_name(agent: Agent, target: str) -> dict[str, Tool]:
    """Return what an agent has of a server, by the names that the server gives.

    Of two with one name the first counts, which is the one that `declare_tools` replaces.
    """
    return {
        str(one.request["tool"]): one
        for one in reversed(list(agent.tools.values()))
        if one.performer == "mcp" and one.target == target and one.request
    }


class _Said(Struct, frozen=True):
    """What the options say of a tool; None where they say nothing."""

    sinks: tuple[str, ...] | None
    settles: str | None
    errors: str | None
    description: str | None


class _Questions:
    """What a person is asked about each tool; without a terminal, what the flags say."""

    def __init__(self, *, interactive: bool) -> None:
        if interactive and not sys.stdin.isatty():
            raise BadCommand("nobody can be asked here", mend="add --yes, and --sink, --settles")
        self._interactive = interactive

    def choose(
        self,
        agent: Agent,
        target: str,
        proposal: ToolProposal,
        said: _Said,
    ) -> ToolChoice:
        """Return what is decided about one tool; of one that is there, what is not said stays."""
        from vedette.operations.server_tools import ToolChoice, describe_change, keep_sinks

        before = _tools_by_server_name(agent, target).get(proposal.server_name)
        proposed = proposal.arguments
        self._tell([f"{sanitize_text(proposal.server_name)} says of itself:"])
        self._tell([f"  | {sanitize_text(line)}" for line in proposal.description.split("\n")[:20]])
        if before is not None:
            proposed = keep_sinks(before, proposal)
            self._tell([sanitize_text(line) for line in describe_change(before, proposal)])
        sinks, settles = said.sinks, said.settles
        errors, description = said.errors, said.description
        asks = self._interactive and before is None
        if sinks is None:
            sinks = self._ask_sinks(proposal, proposed)
        if settles is None:
            settles = "none" if before is None else before.settles
            if asks:
                settles = self._ask_settles(proposal)
        if errors is None:
            errors = "unknown" if before is None else str((before.request or {})["errors"])
            if asks and settles == "none":
                errors = self._ask_errors()
        if description is None and before is not None:
            description = before.description
        if description is None and asks:
            text = "What it does, in your words, for a model (empty: only its name)"
            description = click.prompt(text, default="", show_default=False, err=True)
        if self._interactive and not click.confirm("Declare it so?", default=False, err=True):
            raise BadCommand("it was not declared", mend="nothing was changed")
        return ToolChoice(proposal, sinks, settles, errors, (description or "").strip())

    def _ask_sinks(self, proposal: ToolProposal, proposed: tuple[str, ...]) -> tuple[str, ...]:
        if not self._interactive or not proposal.arguments:
            return proposed
        names = " ".join(proposed) or "none"
        text = f"Of {' '.join(proposal.arguments)}: which decide who, where or which"
        given = click.prompt(text, default=names, err=True).split()
        return (
            () if given == ["none"] else tuple(one if one[0] == "/" else f"/{one}" for one in given)
        )

    def _ask_settles(self, proposal: ToolProposal) -> str:
        if proposal.hints.get("idempotentHint") is True:
            self._tell(["The server says that a repeat is harmless; nobody vouches for that."])
        text = "If an answer is lost: none (a person decides) or idempotent (it is called again)"
        found: str = click.prompt(text, type=click.Choice(_SETTLES), default="none", err=True)
        return found

    def _ask_errors(self) -> str:
        text = "If it answers with an error: unknown (a person decides) or not_done (it failed)"
        found: str = click.prompt(text, type=click.Choice(_ERRORS), default="unknown", err=True)
        return found

    def _tell(self, lines: Sequence[str]) -> None:
        if self._interactive:
            for line in lines:
                click.echo(line, err=True)


def _result_lines(value: dict[str, Any]) -> list[str]:
    agent, prefix = value["agent"], command_prefix()
    lines = [f"wrote {sanitize_text(value['file'])}:"]
    for one in value["tools"]:
        sinks = ", ".join(one["sinks"]) or "none"
        lines.append(
            f"  {one['name']}  sinks: {sanitize_text(sinks)}; settles: {one['settles']}; "
            f"errors: {one['errors']}"
        )
    lines += [
        f"{agent} may use none of it before a grant in policies/grants/data.yaml names it, as",
        *(
            f"    {one['name']}: {{verb: {one['name'].partition('.')[2]}, "
            f"resource: {one['name'].partition('.')[0]}, impact: IMPACT}}"
            for one in value["tools"]
        ),
        "  where IMPACT is yours to say: low, or high if a person is to look at each call",
        f"next: {prefix} check && {prefix} agent show {agent}",
    ]
    return lines
