"""[notify] in vedette.toml: whom the fleet tells of what waits for people, and how."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from vedette.config.field import AfterValidator, Field, Tagged
from vedette.config.plugins import PluginTables, plugins
from vedette.config.problem import Problem
from vedette.config.secret_reference import VERSION_PATTERN, read_secret
from vedette.config.settings_table import NAME, Duration, SettingsTable, is_loopback
from vedette.config.yaml import Document, KeyPath
from vedette.domain.base.clock import duration_us
from vedette.domain.ports.plugin import NOTIFIERS, Plan, TableContext, TableProblem

_ADDRESS = re.compile(r"[!-;=?A-~]{1,64}@[!-;=?A-~]{1,255}")


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is no address | write one plain address: desk@example.com")
    return text


MailAddress = Annotated[str, AfterValidator(_address)]


class WebhookFile(SettingsTable):
    """Tells by a POST of JSON."""

    kind: Literal["webhook"]
    name: str = Field(default="webhook", description="names it in status and metrics", pattern=NAME)
    url: str = Field(description="where to post to, for example https://chat.example/hook")
    token_env: str | None = Field(
        default=None, description="the environment variable with its bearer token"
    )
    token_file: str | None = Field(default=None, description="the file with its bearer token")
    token_secret: str | None = Field(
        default=None, pattern=VERSION_PATTERN, description="its bearer token in Secret Manager"
    )


class MailFile(SettingsTable):
    """Tells by e-mail."""

    kind: Literal["mail"]
    name: str = Field(default="mail", description="names it in status and metrics", pattern=NAME)
    target: str = Field(description="the [targets.NAME] of kind smtp", min_length=1)
    sender: MailAddress = Field(description="whom the mail comes from")
    to: list[MailAddress] = Field(description="whom it goes to")


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


class WebhookPlan(Struct, frozen=True):
    """A webhook that takes notices."""

    kind: ClassVar[str] = "webhook"
    name: str
    url: str
    token_env: str | None = None
    token_file: str | None = None
    token_secret: str | None = None

    def token(self) -> str | None:
        """Return its bearer token; None if it needs none. Raises BadFleet, Unavailable."""
        table = {"token_env": self.token_env, "token_file": self.token_file}
        table["token_secret"] = self.token_secret
        return read_secret(table, "token", where=f"[notify] {self.name}")


class MailPlan(Struct, frozen=True):
    """People who take notices by mail. `server` is the table of the SMTP target."""

    kind: ClassVar[str] = "mail"
    name: str
    server: Mapping[str, Any]
    sender: str
    to: tuple[str, ...]


class NotifyPlan(Struct, frozen=True):
    """Who is told, and of a hold how long before it expires (microseconds).

    With `content` a notice shows what it names; without, people look it up.
    """

    link: str | None = None
    before_us: int = 4 * 3_600_000_000
    to: tuple[Plan, ...] = ()
    content: bool = True


def notify_plan(shape: Any, context: TableContext) -> NotifyPlan:
    """Return what [notify] comes to."""
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
        for inside, what, mend in plugins(NOTIFIERS).problems(each, context):
            problems.append(document.problem((*path, *inside), what, mend))
    return problems


def mail_plan(table: MailFile, context: TableContext) -> MailPlan:
    """Return the plan of a table."""
    return MailPlan(table.name, context.targets[table.target], table.sender, tuple(table.to))


def mail_problems(table: MailFile, context: TableContext) -> list[TableProblem]:
    """Return what is wrong with a table beyond its shape."""
    found: list[TableProblem] = []
    named = context.targets.get(table.target)
    if named is None or named.get("kind") != "smtp":
        what = f"{table.target!r} is no target of kind smtp"
        found.append((("target",), what, f'add [targets.{table.target}] with kind = "smtp"'))
    if not table.to:
        found.append((("to",), "nobody is told", 'write to = ["ops@example.com"]'))
    return found


def webhook_plan(table: WebhookFile, context: TableContext) -> WebhookPlan:
    """Return the plan of a table."""
    file = str(context.path(table.token_file)) if table.token_file else None
    return WebhookPlan(table.name, table.url, table.token_env, file, table.token_secret)


def webhook_problems(table: WebhookFile) -> list[TableProblem]:
    """Return what is wrong with a table beyond its shape."""
    try:
        parts = urlsplit(table.url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.username
        parts.port  # noqa: B018 (raises for what is no port)
        # What goes over the wire: no line of HTTP holds more, and no resolver another name.
        fits = fits and all("!" <= c <= "~" for c in table.url)
        (parts.hostname or "").encode("idna")
    except ValueError:
        fits = False
    if not fits:
        mend = "write https://host/path, without a user or a password in it"
        return [(("url",), f"{table.url!r} cannot be posted to", mend)]
    given = [getattr(table, f"token_{kind}") is not None for kind in ("env", "file", "secret")]
    if sum(given) > 1:
        return [((), "token is referred to more than once", "leave one of them")]
    if any(given) and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        return [(("url",), "a token is not sent over plain HTTP", "write https://")]
    return []


def _is_link(text: str) -> bool:
    rest = text.replace("{hold}", "")
    try:
        parts = urlsplit(rest)
    except ValueError:
        return False
    sound = parts.scheme in ("http", "https") and bool(parts.hostname)
    return sound and "{hold}" in text and not set(rest) & set("{}<>\"' \r\n")
