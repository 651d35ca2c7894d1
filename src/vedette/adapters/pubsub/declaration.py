"""Declaration of a fleet's Pub/Sub topics and subscriptions, and how what is there differs.

Plain data, without the broker's client. A subscription is its fields, each a number or a text:

| Field | From | Can be changed |
| --- | --- | --- |
| topic, ordered, filter | the source | no: the broker fixes them at creation |
| ack_deadline_s, exactly_once | the source | yes |
| dead_letter_topic, max_delivery_attempts | the source | yes |
| retry_min_s, retry_max_s | here: 1 s to 60 s | yes |
| push_endpoint, push_audience, push_service_account | the source | yes |
| expires_s | here: 0, never (the broker's own default forgets an idle one after 31 days) | yes |

A dead-letter topic gets a subscription of the same short name, or what is put there would be lost;
`vedette pubsub --redrive` empties it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct, field

from vedette.adapters.pubsub.client import subscription_path, topic_path
from vedette.adapters.pubsub.config import PubsubFile, PushFile
from vedette.domain.base.clock import MICROS, duration_us
from vedette.domain.base.errors import BadFleet

Value = int | str | bool
Fields = Mapping[str, Value]
Action = Literal["create", "update", "same", "fixed", "missing", "extra"]

IMMUTABLE_FIELDS = frozenset({"topic", "ordered", "filter"})

# Waits between deliveries of a message that was given back (the broker doubles them). Without a
# policy it would come again at once, and five attempts be over within a second.
RETRY_MIN_S, RETRY_MAX_S = 1, 60
_DEAD_LETTER_DEADLINE_S = 60


class Declaration(Struct, frozen=True):
    """Pub/Sub topics and subscriptions by full name; `blockers`: what keeps one from being made."""

    topics: tuple[str, ...]
    subscriptions: Mapping[str, Fields]
    blockers: Mapping[str, str] = field(default_factory=dict)


class Difference(Struct, frozen=True):
    """One field of a Pub/Sub subscription: as found, as declared, and whether it can be changed."""

    name: str
    found: Value
    wanted: Value

    @property
    def is_mutable(self) -> bool:
        """Say whether the broker lets it be changed."""
        return self.name not in IMMUTABLE_FIELDS


class Change(Struct, frozen=True):
    """What becomes of one Pub/Sub topic or subscription.

    `fixed`: it differs in what cannot be changed. `missing`: it is not there and cannot be made
    (`why` says what is not declared). `extra`: it is there, on a declared topic, and not declared.
    """

    resource: Literal["topic", "subscription"]
    name: str
    action: Action
    fields: tuple[Difference, ...] = ()
    wanted: Fields = field(default_factory=dict)
    why: str = ""

    @property
    def is_unresolved(self) -> bool:
        """Say whether something is left as it should not be, whatever is applied."""
        unmade = self.action in ("fixed", "missing")
        return unmade or any(not one.is_mutable for one in self.fields)


def dead_letter_subscription(plan: PubsubFile | PushFile) -> str | None:
    """Return the full name of the Pub/Sub subscription of a source's dead letters, if any."""
    if plan.dead_letter_topic is None:
        return None
    return subscription_path(plan.project, plan.dead_letter_topic.rpartition("/")[2])


def build_declaration(
    plans: Iterable[object], targets: Mapping[str, Mapping[str, Any]]
) -> Declaration:
    """Return what Pub/Sub sources and targets declare. Raises BadFleet for a contradiction."""
    topics: dict[str, None] = {}
    subscriptions: dict[str, Fields] = {}
    blockers: dict[str, str] = {}
    ours = [plan for plan in plans if isinstance(plan, PubsubFile | PushFile)]
    for plan in ours:
        name = subscription_path(plan.project, plan.subscription)
        wanted = _fields(plan)
        if subscriptions.setdefault(name, wanted) != wanted:
            what = f"subscription {name} is declared twice, and differently"
            raise BadFleet(what, where=f"source {plan.name}", mend="make the two alike")
        if plan.topic is None:
            blockers[name] = f"source {plan.name} names no topic"
        elif isinstance(plan, PushFile) and not plan.endpoint:
            blockers[name] = f"source {plan.name} names no endpoint"
        if plan.topic is not None:
            topics[topic_path(plan.project, plan.topic)] = None
    for plan in ours:
        dead = dead_letter_subscription(plan)
        if dead is not None and plan.dead_letter_topic is not None:
            topics[topic_path(plan.project, plan.dead_letter_topic)] = None
            subscriptions.setdefault(
                dead, _dead_letter_fields(plan.project, plan.dead_letter_topic)
            )
    for table in targets.values():
        if table.get("kind") == "pubsub":
            topics[topic_path(str(table["project"]), str(table["topic"]))] = None
    return Declaration(tuple(topics), subscriptions, blockers)


def compare_declaration(
    wanted: Declaration, topics: Iterable[str], subscriptions: Mapping[str, Fields]
) -> list[Change]:
    """Return what becomes of all that is declared of Pub/Sub, and of what else is there."""
    there = set(topics)
    changes = [
        Change("topic", name, "same" if name in there else "create") for name in wanted.topics
    ]
    for name, fields in wanted.subscriptions.items():
        found = subscriptions.get(name)
        if found is None:
            why = wanted.blockers.get(name, "")
            action: Action = "missing" if why else "create"
            changes.append(Change("subscription", name, action, wanted=fields, why=why))
            continue
        differences = tuple(
            Difference(key, found[key], value)
            for key, value in fields.items()
            if found[key] != value
        )
        action = "same"
        if differences:
            action = "update" if any(one.is_mutable for one in differences) else "fixed"
        changes.append(Change("subscription", name, action, differences, fields))
    extra = sorted(subscriptions.keys() - wanted.subscriptions.keys())
    return changes + [Change("subscription", name, "extra") for name in extra]


def _fields(plan: PubsubFile | PushFile) -> Fields:
    fields: dict[str, Value] = {
        "ack_deadline_s": duration_us(plan.ack_deadline) // MICROS,
        "dead_letter_topic": "",
        "max_delivery_attempts": 0,
        "retry_min_s": RETRY_MIN_S,
        "retry_max_s": RETRY_MAX_S,
        "expires_s": 0,
        "ordered": plan.ordered if isinstance(plan, PubsubFile) else False,
        "exactly_once": plan.exactly_once if isinstance(plan, PubsubFile) else False,
        "filter": plan.filter or "",
        "push_endpoint": "",
        "push_audience": "",
        "push_service_account": "",
    }
    if plan.topic is not None:
        fields["topic"] = topic_path(plan.project, plan.topic)
    if plan.dead_letter_topic is not None:
        fields["dead_letter_topic"] = topic_path(plan.project, plan.dead_letter_topic)
        fields["max_delivery_attempts"] = plan.max_delivery_attempts
    if isinstance(plan, PushFile):
        fields["push_endpoint"] = plan.endpoint or ""
        fields["push_audience"] = plan.audience
        fields["push_service_account"] = plan.service_account
    return fields


def _dead_letter_fields(project: str, topic: str) -> Fields:
    return {
        "topic": topic_path(project, topic),
        "ack_deadline_s": _DEAD_LETTER_DEADLINE_S,
        "expires_s": 0,
        "ordered": False,
        "exactly_once": False,
        "filter": "",
        "push_endpoint": "",
    }
