"""All that agents and plugins may import of the engine, beside the kit of `vedette.judging`.

    from vedette.sdk import Call, Outcome

    def file_mail(call: Call) -> Outcome:
        ...

Public are `vedette.sdk`, `vedette.judging` with the modules in it, and `vedette.testing`: what they
name in `__all__`, with the parameters and results that are documented there. A name or a parameter
that goes is deprecated in one release, with a DeprecationWarning that names what takes its place,
and removed no earlier than in the next; docs/reference/sdk.md says more. Every other module is
private and may change in any release; a test holds `agents/` and `samples/` to that.

A name is imported when it is first asked for (PEP 562): a worker that performs an agent's tools
loads no mail client and no ADK unless the agent names it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vedette.adapters.mail.imap.address import MailAddress as MailAddress
    from vedette.adapters.mail.imap.address import read_mail_address as read_mail_address
    from vedette.adapters.mail.imap.pool import mail_session as mail_session
    from vedette.adapters.mail.imap.session import MAX_MAIL, NoFolder
    from vedette.adapters.mail.imap.session import MailSession as MailSession
    from vedette.adapters.mail.smtp import Unanswered
    from vedette.adapters.mail.smtp import send_mail as send_mail
    from vedette.adapters.reasoners.adk.tools import declared_tools
    from vedette.config.field import Field
    from vedette.config.secret_reference import read_secret
    from vedette.config.settings_table import Duration
    from vedette.config.settings_table import SettingsTable as Table
    from vedette.domain.base.clock import Clock, duration_us
    from vedette.domain.base.errors import (
        BadFleet,
        Permanent,
        Temporary,
        Unavailable,
        Unsendable,
        VedetteError,
    )
    from vedette.domain.base.failpoint import hit_failpoint as failpoint
    from vedette.domain.effect import Call, Outcome, RowWrite
    from vedette.domain.event import Event
    from vedette.domain.ports.plugin import (
        Notification,
        NotifierPlugin,
        PushedSource,
        SourceContext,
        SourcePlugin,
        TableContext,
    )
    from vedette.domain.ports.sources import Intake, Receipt, Refused, Source

__all__ = [
    "MAX_MAIL",
    "BadFleet",
    "Call",
    "Clock",
    "Duration",
    "Event",
    "Field",
    "Intake",
    "MailAddress",
    "MailSession",
    "NoFolder",
    "Notification",
    "NotifierPlugin",
    "Outcome",
    "Permanent",
    "PushedSource",
    "Receipt",
    "Refused",
    "RowWrite",
    "Source",
    "SourceContext",
    "SourcePlugin",
    "Table",
    "TableContext",
    "Temporary",
    "Unanswered",
    "Unavailable",
    "Unsendable",
    "VedetteError",
    "declared_tools",
    "duration_us",
    "failpoint",
    "mail_session",
    "publish",
    "read_mail_address",
    "read_secret",
    "send_mail",
]

# Where each name is found; a name of another spelling there stands after a colon.
_NAMES_BY_MODULE = {
    "vedette.adapters.reasoners.adk.tools": ("declared_tools",),
    "vedette.adapters.mail.imap.address": (
        "MailAddress",
        "read_mail_address",
    ),
    "vedette.adapters.mail.imap.pool": ("mail_session",),
    "vedette.adapters.mail.imap.session": ("MAX_MAIL", "MailSession", "NoFolder"),
    "vedette.adapters.mail.smtp": ("Unanswered", "send_mail"),
    "vedette.domain.base.clock": ("Clock", "duration_us"),
    "vedette.domain.base.failpoint": ("failpoint:hit_failpoint",),
    "vedette.domain.effect": ("Call", "Outcome", "RowWrite"),
    "vedette.domain.base.errors": (
        "BadFleet",
        "Permanent",
        "Temporary",
        "Unavailable",
        "Unsendable",
        "VedetteError",
    ),
    "vedette.domain.event": ("Event",),
    "vedette.config.field": ("Field",),
    "vedette.config.settings_table": ("Duration", "Table:SettingsTable"),
    "vedette.config.secret_reference": ("read_secret",),
    "vedette.domain.ports.plugin": (
        "NotifierPlugin",
        "Notification",
        "PushedSource",
        "SourceContext",
        "SourcePlugin",
        "TableContext",
    ),
    "vedette.domain.ports.sources": ("Intake", "Receipt", "Refused", "Source"),
}
_LOCATIONS = {
    public: (module, private or public)
    for module, names in _NAMES_BY_MODULE.items()
    for public, _, private in (name.partition(":") for name in names)
}


if not TYPE_CHECKING:  # to a type checker a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name not in _LOCATIONS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, private = _LOCATIONS[name]
        found = getattr(importlib.import_module(module), private)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted(__all__)


def publish(
    call: Call,
    data: Any,
    *,
    type: str,
    subject: str | None = None,
    source: str | None = None,
    ordering_key: str | None = None,
) -> Outcome:
    """Publish one CloudEvent to the call's target; `data` is JSON.

        def announce(call):
            return publish(call, {"text": call.args["text"]}, type="harbour.notice",
                           subject=call.args["berth"])

    The tool names a target of `kind = "pubsub"` in vedette.toml and `settles: idempotent` in
    agent.yaml: the message's `ce-id` is the call's key, so a repeat is the same event to every
    consumer that knows events by source and id. `source` is the target's `source` or `agent:NAME`
    unless given; `vedette:` is refused by other fleets. Return what came of it; raises nothing of
    the broker's.
    """
    from vedette.adapters.pubsub import publisher  # loads the broker's client, which takes a second

    return publisher.publish(
        call, data, type=type, subject=subject, source=source, ordering_key=ordering_key
    )
