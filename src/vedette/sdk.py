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

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a type checker is told in its own way
    from vedette.adapters.mail.imap.address import MailAddress as MailAddress
    from vedette.adapters.mail.imap.address import read_mail_address as read_mail_address
    from vedette.adapters.mail.imap.pool import mail_session as mail_session
    from vedette.adapters.mail.imap.session import MAX_MAIL as MAX_MAIL
    from vedette.adapters.mail.imap.session import MailSession as MailSession
    from vedette.adapters.mail.imap.session import NoFolder as NoFolder
    from vedette.adapters.mail.smtp import Unanswered as Unanswered
    from vedette.adapters.mail.smtp import send_mail as send_mail
    from vedette.adapters.reasoners.adk.tools import declared_tools as declared_tools
    from vedette.adapters.tools.plain_function import perform_function as perform_function
    from vedette.config.field import Field as Field
    from vedette.config.secret_reference import read_secret as read_secret
    from vedette.config.settings_table import Duration as Duration
    from vedette.config.settings_table import SettingsTable as Table  # noqa: F401
    from vedette.domain.base.clock import Clock as Clock
    from vedette.domain.base.clock import duration_us as duration_us
    from vedette.domain.base.errors import BadFleet as BadFleet
    from vedette.domain.base.errors import Permanent as Permanent
    from vedette.domain.base.errors import Temporary as Temporary
    from vedette.domain.base.errors import Unavailable as Unavailable
    from vedette.domain.base.errors import Unsendable as Unsendable
    from vedette.domain.base.errors import VedetteError as VedetteError
    from vedette.domain.base.failpoint import hit_failpoint as failpoint  # noqa: F401
    from vedette.domain.effect import Call as Call
    from vedette.domain.effect import Outcome as Outcome
    from vedette.domain.effect import RowWrite as RowWrite
    from vedette.domain.event import Event as Event
    from vedette.domain.ports.plugin import BoxSettings as BoxSettings
    from vedette.domain.ports.plugin import Notification as Notification
    from vedette.domain.ports.plugin import NotifierPlugin as NotifierPlugin
    from vedette.domain.ports.plugin import PushedSource as PushedSource
    from vedette.domain.ports.plugin import ReasonerContext as ReasonerContext
    from vedette.domain.ports.plugin import ReasonerPlugin as ReasonerPlugin
    from vedette.domain.ports.plugin import SourceContext as SourceContext
    from vedette.domain.ports.plugin import SourcePlugin as SourcePlugin
    from vedette.domain.ports.plugin import TableContext as TableContext
    from vedette.domain.ports.plugin import TargetPlugin as TargetPlugin
    from vedette.domain.ports.plugin import ToolPerformer as ToolPerformer
    from vedette.domain.ports.plugin import ToolPlugin as ToolPlugin
    from vedette.domain.ports.reasoner import Reasoner as Reasoner
    from vedette.domain.ports.reasoner import ReasonerJudgement as ReasonerJudgement
    from vedette.domain.ports.reasoner import StatelessReasoner as StatelessReasoner
    from vedette.domain.ports.sources import Intake as Intake
    from vedette.domain.ports.sources import Receipt as Receipt
    from vedette.domain.ports.sources import Refused as Refused
    from vedette.domain.ports.sources import Source as Source
    from vedette.domain.target_record import TargetEffect as TargetEffect
    from vedette.domain.target_record import TargetRecord as TargetRecord
    from vedette.domain.tool import Tool as Tool
else:
    from vedette.domain.base.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "vedette.adapters.reasoners.adk.tools": ("declared_tools",),
            "vedette.adapters.mail.imap.address": (
                "MailAddress",
                "read_mail_address",
            ),
            "vedette.adapters.mail.imap.pool": ("mail_session",),
            "vedette.adapters.mail.imap.session": ("MAX_MAIL", "MailSession", "NoFolder"),
            "vedette.adapters.mail.smtp": ("Unanswered", "send_mail"),
            "vedette.adapters.tools.plain_function": ("perform_function",),
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
                "BoxSettings",
                "NotifierPlugin",
                "Notification",
                "PushedSource",
                "ReasonerContext",
                "ReasonerPlugin",
                "SourceContext",
                "SourcePlugin",
                "TableContext",
                "TargetPlugin",
                "ToolPerformer",
                "ToolPlugin",
            ),
            "vedette.domain.ports.reasoner": (
                "Reasoner",
                "ReasonerJudgement",
                "StatelessReasoner",
            ),
            "vedette.domain.target_record": ("TargetEffect", "TargetRecord"),
            "vedette.domain.tool": ("Tool",),
            "vedette.domain.ports.sources": ("Intake", "Receipt", "Refused", "Source"),
        },
    )
    __all__.append("publish")


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
