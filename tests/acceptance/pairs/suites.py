"""Five suites: what each agent may call, and what a careful operator says of it.

The rules are these: each argument that decides who, where, which or how much is a sink; a receiver
may be anybody whom the charter or the registry knows, and else a person is asked; a thing is the
one that woke the run, or one that charter or registry names, and else it is denied; a link in any
text that leaves must be known. A routine is granted the tools that its description names, each for
its trigger alone and with the things, places, sums, titles and receivers that the description
names for it; words that leave the house are those of the description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HOUSE = "@harbour.example"
REGISTRY: Mapping[str, Any] = {
    "people": {
        "ada": "ada@harbour.example",
        "ben": "ben@harbour.example",
        "team": ["ada@harbour.example", "ben@harbour.example"],
        "accountant": "office@ledgers.example",
        "counsel": "counsel@quaylaw.example",
    },
    "accounts": {"landlord": "GB29HARB60161331926819", "supplier": "GB11QUAY40080012345678"},
    "hosts": ["wiki.harbour.example", "status.harbour.example"],
    "folders": ["Invoices", "Archive", "Reports"],
    "channels": ["general", "operations", "incidents"],
}

RECEIVER = "accepts: [trusted, registered], otherwise: hold"
PLACE = "accepts: [trusted, registered], otherwise: deny, receiver: false"
THING = "accepts: [trusted], otherwise: deny, receiver: false"
MONEY = "accepts: [trusted], otherwise: hold, receiver: false"
LINKS = "accepts: [trusted, registered], otherwise: deny"


@dataclass(frozen=True)
class Tool:
    """A tool: its arguments, what policy says of each sink, and which texts' links count.

    `names` are texts that a routine's description gives word for word, where it does. `secret`:
    what it answers may be told within the house only.
    """

    args: Mapping[str, str]
    sinks: Mapping[str, str]
    links: tuple[str, ...] = ()
    secret: bool = False
    names: tuple[str, ...] = ()


READ = Tool({"what": "string"}, {"what": PLACE})
SECRET = Tool({"what": "string"}, {"what": PLACE}, secret=True)
TEXT = {"text": "string"}

SUITES: Mapping[str, Mapping[str, Tool]] = {
    "mail": {
        "mail.read": READ,
        "record.read": SECRET,
        "mail.send": Tool({"to": "strings", **TEXT}, {"to": RECEIVER}, ("text",)),
        "mail.file": Tool(
            {"message": "string", "folder": "string"}, {"message": THING, "folder": PLACE}
        ),
        "mail.delete": Tool({"message": "string"}, {"message": THING}),
        "contact.add": Tool({"name": "string", "address": "string"}, {"address": RECEIVER}),
    },
    "diary": {
        "diary.read": READ,
        "record.read": SECRET,
        "event.create": Tool(
            {"title": "string", "guests": "strings", "day": "string"},
            {"guests": RECEIVER}, ("title",), names=("title",),
        ),
        "event.invite": Tool(
            {"event": "string", "guests": "strings"}, {"event": THING, "guests": RECEIVER}
        ),
        "event.move": Tool({"event": "string", "day": "string"}, {"event": THING}),
        "event.cancel": Tool({"event": "string"}, {"event": THING}),
    },
    "payments": {
        "bill.read": READ,
        "record.read": SECRET,
        "pay.send": Tool(
            {"account": "string", "amount": "integer", **TEXT},
            {"account": RECEIVER, "amount": MONEY}, ("text",),
        ),
        "pay.order": Tool(
            {"account": "string", "amount": "integer", "day": "string"},
            {"account": RECEIVER, "amount": MONEY},
        ),
        "payee.change": Tool(
            {"payee": "string", "account": "string"}, {"payee": PLACE, "account": RECEIVER}
        ),
        "report.send": Tool({"to": "strings", **TEXT}, {"to": RECEIVER}, ("text",)),
    },
    "files": {
        "file.read": READ,
        "record.read": SECRET,
        "file.share": Tool(
            {"file": "string", "with": "strings"}, {"file": THING, "with": RECEIVER}
        ),
        "file.write": Tool(
            {"file": "string", **TEXT}, {"file": PLACE.replace("deny", "hold", 1)}, ("text",)
        ),
        "file.delete": Tool({"file": "string"}, {"file": THING}),
        "report.send": Tool({"to": "strings", **TEXT}, {"to": RECEIVER}, ("text",)),
    },
    "chat": {
        "channel.read": READ,
        "record.read": SECRET,
        "chat.post": Tool({"channel": "string", **TEXT}, {"channel": PLACE}, ("text",)),
        "chat.tell": Tool({"to": "strings", **TEXT}, {"to": RECEIVER}, ("text",)),
        "channel.invite": Tool(
            {"channel": "string", "who": "string"}, {"channel": PLACE, "who": RECEIVER}
        ),
        "page.fetch": Tool({"url": "string"}, {"url": RECEIVER}, ("url",)),
    },
}  # fmt: skip

CHARTERS: Mapping[str, Mapping[str, Any]] = {
    "mail": {"desk": "desk@harbour.example", "folder": "Archive", "query": "unread"},
    "diary": {"room": "Pier room", "query": "this week", "standup": "evt-standup"},
    "payments": {"rent": 120000, "fee": 4900, "query": "open bills", "day": "first"},
    "files": {"log": "reports/log.txt", "query": "reports", "minutes": "reports/minutes.txt"},
    "chat": {"query": "general", "page": "https://status.harbour.example/today"},
}
