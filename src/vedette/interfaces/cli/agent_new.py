"""`vedette agent new`: a new agent like one that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vedette.app.stores import store_reader
from vedette.domain.base.errors import BadCommand, BadPolicy
from vedette.interfaces.cli.fleet import command_prefix, current_settings
from vedette.interfaces.cli.output import print_result, sanitize_text

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.operations.scaffold import NewAgent


@click.command()
@click.argument("name")
@click.option("--like", required=True, metavar="AGENT", help="Which agent it is to be like.")
@click.option("--title", metavar="TEXT", help="What it is for, in a few words.")
@click.option("--owner", metavar="WHO", help="Who answers for it. Default: as of the other.")
def new(name: str, like: str, title: str | None, owner: str | None) -> None:
    """Write agents/NAME like AGENT: charter, judge, tools, cases. It starts in observe.

    The policy grants it what it grants the other, but for the mode, and banks let it read what the
    other reads. All of it or nothing is written, and only what passes `vedette check`. The other
    agent keeps all its events: both wake.
    """
    from vedette.app.check import check_content
    from vedette.operations.scaffold import scaffold_agent

    settings = current_settings()
    _refuse_stale_folder(settings)
    plan = scaffold_agent(settings, name, like, title, owner, check_content)
    value = _plan_json(plan, settings)
    print_result(value, "\n".join(_lines(value, command_prefix())))


def _refuse_stale_folder(settings: Settings) -> None:
    """Raise BadCommand if the policy folder was offered and something else is live.

    A rollback did that, say. Adding to the folder makes it a new one, and the next start would
    publish all of it: what somebody had taken back would be in force again.
    """
    from vedette.adapters.policy_engines.regorus.stage import read_bundle
    from vedette.app.stores import store_exists
    from vedette.policy.folder import POLICY_FOLDER

    if not store_exists(settings):
        return
    try:
        digest = read_bundle(settings.policies).digest
    except BadPolicy:
        return  # said by the check
    with store_reader(settings) as store:
        live = store.policy.live_revision()[1]
        if live and digest != live and digest == store.meta(POLICY_FOLDER):
            what = "the live policy is another than the folder's, and this would publish all of it"
            mend = "see `vedette policy status`; publish the folder, or bring it back, first"
            raise BadCommand(what, where=str(settings.policies), mend=mend)


def _plan_json(plan: NewAgent, settings: Settings) -> dict[str, Any]:
    from vedette.operations.permissions import describe_triggers

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
        "wakes": describe_triggers(plan.like),
        "look": plan.review_lines,
        "collection": plan.name if plan.like.collection is not None else None,
    }


def _lines(value: dict[str, Any], prefix: str) -> list[str]:
    name, like = value["agent"], value["like"]
    lines = [f"wrote {sanitize_text(path)}" for path in value["written"]]
    if value["look"]:
        lines += [
            f"These lines have a word that is also the name or the collection of {like}; they are "
            "left as they are. See what they mean:",
            *(f"  {sanitize_text(place)}" for place in value["look"]),
        ]
    lines += [
        f"{name} starts in observe: it is judged and decided, nothing is done.",
        f"It wakes on what wakes {like}, which keeps all its events:",
        *(f"  {sanitize_text(line)}" for line in value["wakes"]),
        f"To narrow it, give its triggers a source or a subject: agents/{name}/agent.yaml",
        "next:",
        f"  {prefix} check && {prefix} check cases {name}",
        f"  {prefix} agent show {name}",
        f"  {prefix} run          (a fleet that runs takes it up when it is started again)",
        f"  {prefix} report --agent {name}     what it would have done",
        f"  {prefix} agent mode {name} ask --reason …   when people agree with it",
    ]
    return lines
