"""A Pub/Sub message as an event, pulled or pushed.

Three forms are known, of which the attributes decide:
- `content-type: application/cloudevents+json`: the data is a CloudEvent in JSON (structured mode).
- `ce-specversion`: the `ce-` attributes are a CloudEvent's (binary mode), as strings in UTF-8
  without escapes: https://github.com/googleapis/google-cloudevents/blob/main/docs/spec/pubsub.md
- otherwise bare data, JSON unless a content type says what else, of the type that the source's
  settings give. Its source is `pubsub:NAME` and its id the attribute `ce-id` or `event_id`; without
  these, the message id. A publisher that tries again makes a message with another id, so only an
  id of its own makes one event of the two.

An event without a subject gets the ordering key as its subject: what the broker keeps in order is
then also what an agent does in order. Lineage is taken as claimed, as over HTTP: it can only keep
agents asleep. What is the engine's own (its sources, types and attributes) is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from vedette.config.reserved_names import check_unreserved
from vedette.domain import cloudevents
from vedette.domain.base.clock import iso
from vedette.domain.base.errors import BadEvent
from vedette.domain.event import HOPS, LINEAGE, READERS, VOUCH_LEVELS, Event
from vedette.domain.ports.sources import Refused

# Of a message that was refused this much is kept.
RAW_BYTES = 4096

_CE = "ce-"
_VERSION = "ce-specversion"
_CONTENT_TYPE = "content-type"
_LENGTH = len(_CONTENT_TYPE)

# Takes attributes, data, when the broker took the message (µs), and what to call it.
TickDecoder = Callable[[Mapping[str, str], bytes, int, str], Event | Refused]


class Decoder:
    """Turns the messages of one Pub/Sub source into events; pure.

    `type` is that of bare data, None where there is none. `vouches` is a word of VOUCHES. Data
    of more than `max_bytes` are refused unread: strict JSON of a message of 10 MB takes a second.
    With `decode_tick` the messages are a scheduler's: it says which tick each of them stands for,
    and may raise StoreFailed.
    """

    def __init__(
        self,
        name: str,
        *,
        type: str | None = None,
        vouches: str = "envelope",
        max_bytes: int = 262_144,
        decode_tick: TickDecoder | None = None,
    ) -> None:
        self.source = f"pubsub:{name}"
        self._type = type
        self._vouched = VOUCH_LEVELS[vouches]
        self._max_bytes = max_bytes
        self._decode_tick = decode_tick

    def decode(
        self,
        id: str,
        data: bytes,
        attributes: Mapping[str, str],
        ordering_key: str,
        published_us: int,
    ) -> Event | Refused:
        """Return the event of a message, or why it is none. `id` is its message id."""
        if self._decode_tick is not None:
            where = f"{self.source} message {id}"
            return self._decode_tick(attributes, data, published_us, where)
        try:
            if len(data) > self._max_bytes:
                raise BadEvent(
                    f"event data is {len(data)} bytes, the limit is {self._max_bytes}",
                    mend="send a reference instead of the content, or raise max_event_bytes",
                )
            event = self._event(id, data, attributes, ordering_key, published_us)
            check_unreserved(event, self.source)
        except BadEvent as error:
            where = f"{self.source} message {id}"
            return Refused(where, str(error), data[:RAW_BYTES], subject=_subject(ordering_key))
        if event.subject is None and ordering_key:
            return replace(event, subject=ordering_key)
        return event

    def _event(
        self,
        id: str,
        data: bytes,
        attributes: Mapping[str, str],
        ordering_key: str,
        published_us: int,
    ) -> Event:
        media = _content_type(attributes)
        if media.startswith("application/cloudevents"):
            if cloudevents.content_mode([("content-type", media)]) != "structured":
                raise BadEvent(
                    f"content type {media[:64]!r} is not one event in JSON and UTF-8",
                    mend=f"send one event a message, as {cloudevents.STRUCTURED}",
                )
            return cloudevents.from_json(data, vouched=self._vouched)
        if _VERSION in attributes:
            own = {n[3:]: v for n, v in attributes.items() if n[:3] == _CE}
            if own.pop("datacontenttype", media) != media:
                raise BadEvent("datacontenttype differs from content-type", mend="send one of them")
            return cloudevents.from_attributes(own, data, media, vouched=self._vouched)
        if self._type is None:
            raise BadEvent(
                "the message is no CloudEvent, and the source gives bare data no type",
                mend="publish CloudEvents, or set `type` of the source in vedette.toml",
            )
        bare = {
            "specversion": "1.0",
            "id": attributes.get("ce-id") or attributes.get("event_id") or id,
            "source": self.source,
            "type": self._type,
            "time": iso(published_us),
        }
        for name in (LINEAGE, HOPS, READERS):
            claimed = attributes.get(_CE + name) or attributes.get(name)
            if claimed:
                bare[name] = claimed
        if ordering_key:
            bare["subject"] = ordering_key
        return cloudevents.from_attributes(
            bare, data, media or "application/json", vouched=self._vouched
        )


def _content_type(attributes: Mapping[str, str]) -> str:
    """Return what the attributes say of the data, "" if nothing. Raises BadEvent if two differ."""
    said = {v for n, v in attributes.items() if len(n) == _LENGTH and n.lower() == _CONTENT_TYPE}
    if not said:
        return attributes.get("ce-datacontenttype", "").strip()
    if len(said) > 1:
        raise BadEvent("the content type is given twice", mend="give it once")
    return said.pop().strip()


def _subject(ordering_key: str) -> str | None:
    """Return an ordering key as what a refusal is found by, None if it cannot be."""
    sound = ordering_key and len(ordering_key) <= 1024 and "\0" not in ordering_key
    return ordering_key if sound else None
