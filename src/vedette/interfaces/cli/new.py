"""`vedette new agent`: a new agent like one that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.errors import BadCommand, BadPolicy
from vedette.interfaces.cli.check import code_problems, policy_findings
from vedette.interfaces.cli.common import as_json_option, plain, prefix, reading, say, settings_of

if TYPE_CHECKING:
    from vedette.config import Problem, Settings
    from vedette.operations.scaffold import Plan


@click.group()
def new() -> None:
    """Write something new into the fleet."""


@new.command("agent")
@click.argument("name")
@click.option("--like", required=True, metavar="AGENT", help="Which agent it is to be like.")
@click.option("--title", metavar="TEXT", help="What it is for, in a few words.")
@click.option("--owner", metavar="WHO", help="Who answers for it. Default: as of the other.")
@as_json_option
@click.pass_context
def new_agent(
    ctx: click.Context, name: str, like: str, title: str | None, owner: str | None, as_json: bool
) -> None:
    """Write agents/NAME like AGENT: charter, judge, tools, cases. It starts in observe.

    The policy grants it what it grants the other, but for the mode, and banks let it read what the
    other reads. All of it or nothing is written, and only what passes `vedette check`. The other
    agent keeps all its events: both wake.
    """
    from vedette.operations.scaffold import found

    settings = settings_of(ctx)
    _refuse_what_was_taken_back(settings)
    plan = found(settings, name, like, title, owner, problems_of)
    value = _value(plan, settings)
    say(as_json, value, "\n".join(_lines(value, prefix(ctx))))


def _refuse_what_was_taken_back(settings: Settings) -> None:
    """Raise BadCommand if the policy folder was offered and something else is live.

    A rollback did that, say. Adding to the folder makes it a new one, and the next start would
    publish all of it: what somebody had taken back would be in force again.
    """
    from vedette.adapters.policy_engines.regorus.stage import read_bundle
    from vedette.app.stores import is_there
    from vedette.policy.folder import POLICY_FOLDER

    if not is_there(settings):
        return
    try:
        digest = read_bundle(settings.policies).digest
    except BadPolicy:
        return  # said by the check
    with reading(settings) as store:
        live = store.revision()[1]
        if live and digest != live and digest == store.meta(POLICY_FOLDER):
            what = "the live policy is another than the folder's, and this would publish all of it"
            mend = "see `vedette policy status`; publish the folder, or bring it back, first"
            raise BadCommand(what, where=str(settings.policies), mend=mend)


def problems_of(settings: Settings) -> list[Problem]:
    """Return what `vedette check` would say of a fleet's agents, memory and policy."""
    from vedette.config import Problem, check_fleet, read_fleet
    from vedette.domain.base.clock import SystemClock
    from vedette.operations.eval_cases import read_evals

    now_us = SystemClock().now_us()
    read = read_fleet(settings.root, settings, now_us=now_us)
    found = check_fleet(settings.root, settings, read_evals, now_us=now_us, read=read)
    found += code_problems(settings.root, settings, now_us, read)
    told = policy_findings(settings.policies, "policies")
    return found + [Problem(t["file"], t["line"], t["field"], t["what"], t["mend"]) for t in told]


def _value(plan: Plan, settings: Settings) -> dict[str, Any]:
    from vedette.operations.permissions import triggers_in_words

    root = settings.root
    written = [plan.folder, *sorted(plan.files)]
    return {
        "agent": plan.name,
        "like": plan.like.name,
        "mode": "observe",
        "requested": plan.like.requested_mode,
        "folder": str(plan.folder),
        "written": [
            path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
            for path in written
        ],
        "wakes": triggers_in_words(plan.like),
        "look": plan.look,
        "collection": plan.name if plan.like.collection is not None else None,
    }


def _lines(value: dict[str, Any], vedette: str) -> list[str]:
    name, like = value["agent"], value["like"]
    lines = [f"wrote {plain(path)}" for path in value["written"]]
    if value["look"]:
        lines += [
            f"These lines have a word that is also the name or the collection of {like}; they are "
            "left as they are. See what they mean:",
            *(f"  {plain(place)}" for place in value["look"]),
        ]
    lines += [
        f"{name} starts in observe: it is judged and decided, nothing is done.",
        f"It wakes on what wakes {like}, which keeps all its events:",
        *(f"  {plain(told)}" for told in value["wakes"]),
        f"To narrow it, give its triggers a source or a subject: agents/{name}/agent.yaml",
        "next:",
        f"  {vedette} check && {vedette} eval {name}",
        f"  {vedette} agent show {name}",
        f"  {vedette} run          (a fleet that runs takes it up when it is started again)",
        f"  {vedette} report --agent {name}     what it would have done",
        f"  {vedette} mode {name} ask --reason …   when people agree with it",
    ]
    return lines
