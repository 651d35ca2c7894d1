"""[notify] in vedette.toml: whom the fleet tells of what waits for people, and how."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from vedette.clock import duration_us
from vedette.load.field import AfterValidator, Field
from vedette.load.part import NAME, Duration, Part, is_here
from vedette.load.problem import Problem
from vedette.load.secrets import VERSION, read_secret
from vedette.load.yaml import Document, KeyPath
from vedette.quick_data import dataclass

_ADDRESS = re.compile(r"[!-;=?A-~]{1,64}@[!-;=?A-~]{1,255}")


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is no address | write one plain address: desk@example.com")
    return text


MailAddress = Annotated[str, AfterValidator(_address)]


class WebhookFile(Part):
    """Tells by a POST of JSON."""

    kind: Literal["webhook"]
    name: str = Field(default="webhook", description="names it in status and metrics", pattern=NAME)
    url: str = Field(description="where to post to, for example https://chat.example/hook")
    token_env: str | None = Field(
        default=None, description="the environment variable with its bearer token"
    )
    token_file: str | None = Field(default=None, description="the file with its bearer token")
    token_secret: str | None = Field(
        default=None, pattern=VERSION, description="its bearer token in Secret Manager"
    )


class MailFile(Part):
    """Tells by e-mail."""

    kind: Literal["mail"]
    name: str = Field(default="mail", description="names it in status and metrics", pattern=NAME)
    target: str = Field(description="the [targets.NAME] of kind smtp", min_length=1)
    sender: MailAddress = Field(description="whom the mail comes from")
    to: list[MailAddress] = Field(description="whom it goes to")


class NotifyFile(Part):
    """Who is told of new holds, of holds about to expire, of dead letters and of parked agents."""

    link: str | None = Field(
        default=None, description="where to look, with {hold}: https://ops.example/holds/{hold}"
    )
    before: Duration = Field(default="4h", description="how long before a hold expires it is told")
    content: bool = Field(
        default=True, description="whether what waits is shown (who, about what), or named alone"
    )
    to: list[Annotated[WebhookFile | MailFile, Field(discriminator="kind")]] = Field(
        default_factory=list, description="the ways to tell"
    )


@dataclass(frozen=True, slots=True)
class WebhookPlan:
    """A webhook that takes notices."""

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


@dataclass(frozen=True, slots=True)
class MailPlan:
    """People who take notices by mail. `server` is the table of the SMTP target."""

    name: str
    server: Mapping[str, Any]
    sender: str
    to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NotifyPlan:
    """Who is told, and of a hold how long before it expires (microseconds).

    With `content` a notice shows what it names; without, people look it up.
    """

    link: str | None = None
    before_us: int = 4 * 3_600_000_000
    to: tuple[WebhookPlan | MailPlan, ...] = ()
    content: bool = True


def notify_plan(shape: Any, targets: Mapping[str, Mapping[str, Any]], path: Any) -> NotifyPlan:
    """Return what [notify] comes to; `targets` are the fleet's, `path` resolves a relative path."""
    to: list[WebhookPlan | MailPlan] = []
    for each in shape.notify.to:
        if isinstance(each, WebhookFile):
            file = str(path(each.token_file)) if each.token_file else None
            to.append(WebhookPlan(each.name, each.url, each.token_env, file, each.token_secret))
        else:
            to.append(MailPlan(each.name, targets[each.target], each.sender, tuple(each.to)))
    before_us, content = duration_us(shape.notify.before), shape.notify.content
    return NotifyPlan(shape.notify.link, before_us, tuple(to), content)


def notify_problems(shape: Any, document: Document) -> list[Problem]:
    """Return what is wrong with [notify] beyond its shape."""
    notify, problems = shape.notify, []
    if notify.link is not None and not _is_link(notify.link):
        what = f"{notify.link!r} is no link to a hold"
        mend = "for example https://ops.example/holds/{hold}"
        problems.append(document.problem(("notify", "link"), what, mend))
    seen: set[str] = set()
    for index, each in enumerate(notify.to):
        at: KeyPath = ("notify", "to", index)
        if each.name in seen:
            what = f"{each.name!r} is the name of another one already"
            problems.append(document.problem((*at, "name"), what, 'give it its own: name = "ops"'))
        seen.add(each.name)
        problems += _way_problems(each, at, shape.targets, document)
    return problems


def _way_problems(
    each: Any, at: KeyPath, targets: Mapping[str, Any], document: Document
) -> list[Problem]:
    if isinstance(each, MailFile):
        problems = []
        table = targets.get(each.target)
        if not isinstance(table, Mapping) or table.get("kind") != "smtp":
            what = f"{each.target!r} is no target of kind smtp"
            mend = f'add [targets.{each.target}] with kind = "smtp"'
            problems.append(document.problem((*at, "target"), what, mend))
        if not each.to:
            what, mend = "nobody is told", 'write to = ["ops@example.com"]'
            problems.append(document.problem((*at, "to"), what, mend))
        return problems
    try:
        parts = urlsplit(each.url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.username
        parts.port  # noqa: B018 (raises for what is no port)
        # What goes over the wire: no line of HTTP holds more, and no resolver another name.
        fits = fits and all("!" <= c <= "~" for c in each.url)
        (parts.hostname or "").encode("idna")
    except ValueError:
        fits = False
    if not fits:
        mend = "write https://host/path, without a user or a password in it"
        return [document.problem((*at, "url"), f"{each.url!r} cannot be posted to", mend)]
    if sum(getattr(each, f"token_{kind}") is not None for kind in ("env", "file", "secret")) > 1:
        what, mend = "token is referred to more than once", "leave one of them"
        return [document.problem(at, what, mend)]
    known = any(getattr(each, f"token_{kind}") is not None for kind in ("env", "file", "secret"))
    if known and parts.scheme == "http" and not is_here(parts.hostname or ""):
        what = "a token is not sent over plain HTTP"
        return [document.problem((*at, "url"), what, "write https://")]
    return []


def _is_link(text: str) -> bool:
    rest = text.replace("{hold}", "")
    try:
        parts = urlsplit(rest)
    except ValueError:
        return False
    sound = parts.scheme in ("http", "https") and bool(parts.hostname)
    return sound and "{hold}" in text and not set(rest) & set("{}<>\"' \r\n")
