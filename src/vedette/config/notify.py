"""[notify] in vedette.toml: whom the fleet tells of what waits for people, and how."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct

from vedette.config.field import Field, Tagged
from vedette.config.plugins import PluginTables, plugins
from vedette.config.problem import Problem
from vedette.config.settings_table import Duration, SettingsTable
from vedette.config.yaml import Document, KeyPath
from vedette.domain.base.clock import duration_us
from vedette.domain.base.urls import parse_url
from vedette.domain.ports.plugin import NOTIFIERS, Plan, TableContext


class NotifyFile(SettingsTable):
    """Who is told of new holds, of holds about to expire, of dead letters and of parked agents."""

    link: str | None = Field(
        default=None, description="where to look, with {hold}: https://ops.example/holds/{hold}"
    )
    before: Duration = Field(default="4h", description="how long before a hold expires it is told")
    content: bool = Field(
        default=True, description="whether what waits is shown (who, about what), or named alone"
    )
    # Each is checked as the plugin of its `kind` says (`vedette.domain.ports.plugin`).
    to: list[Annotated[Any, Tagged("kind", PluginTables(NOTIFIERS))]] = Field(
        default_factory=list, description="the ways to tell"
    )


class NotifyPlan(Struct, frozen=True):
    """[notify]: who is told, and of a hold how long before it expires (microseconds).

    With `content` a notice shows what it names; without, people look it up.
    """

    link: str | None = None
    before_us: int = 4 * 3_600_000_000
    to: tuple[Plan, ...] = ()
    content: bool = True


def notify_plan(shape: Any, context: TableContext) -> NotifyPlan:
    """Return the plan that [notify] of vedette.toml comes to."""
    to = tuple(plugins(NOTIFIERS).plan(each, context) for each in shape.notify.to)
    before_us, content = duration_us(shape.notify.before), shape.notify.content
    return NotifyPlan(shape.notify.link, before_us, to, content)


def notify_problems(shape: Any, document: Document, context: TableContext) -> list[Problem]:
    """Return what is wrong with [notify] beyond its shape."""
    notify, problems = shape.notify, []
    if notify.link is not None and not _is_link(notify.link):
        what = f"{notify.link!r} is no link to a hold"
        mend = "for example https://ops.example/holds/{hold}"
        problems.append(document.problem(("notify", "link"), what, mend))
    seen: set[str] = set()
    for index, each in enumerate(notify.to):
        path: KeyPath = ("notify", "to", index)
        if each.name in seen:
            what = f"{each.name!r} is the name of another one already"
            problems.append(
                document.problem((*path, "name"), what, 'give it its own: name = "ops"')
            )
        seen.add(each.name)
        for inside, what, mend in plugins(NOTIFIERS).problems(each.kind, each, context):
            problems.append(document.problem((*path, *inside), what, mend))
    return problems


def _is_link(text: str) -> bool:
    rest = text.replace("{hold}", "")
    return parse_url(rest) is not None and "{hold}" in text and not set(rest) & set("{}<>\"' \r\n")
