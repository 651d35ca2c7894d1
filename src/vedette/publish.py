"""For agents' tools.py: publish an event to a Pub/Sub topic as the effect of a call.

    from vedette.publish import publish

    def announce(call):
        return publish(call, {"text": call.args["text"]}, type="harbour.notice",
                       subject=call.args["berth"])

The tool names a target of `kind = "pubsub"` in vedette.toml and `settles: idempotent` in
agent.yaml: the message's `ce-id` is the call's key, so a repeat is the same event to every consumer
that knows events by source and id.
"""

from __future__ import annotations

from typing import Any

from vedette.effect import Call, Outcome


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

    `source` is the target's `source` or `agent:NAME` unless given; `vedette:` is refused by other
    fleets. Return what came of it; raises nothing of the broker's.
    """
    from vedette.adapters.pubsub import sink  # loads the broker's client, which takes a second

    return sink.publish(
        call, data, type=type, subject=subject, source=source, ordering_key=ordering_key
    )
