"""The tables of the sources `pubsub` and `pubsub-push`: messages of a subscription as events."""

from __future__ import annotations

from typing import Literal

from vedette.config.field import Field
from vedette.config.settings_table import NAME, Duration, SettingsTable, Whole


class PubsubFile(SettingsTable):
    """Messages of a Pub/Sub subscription, pulled over an asynchronous stream."""

    kind: Literal["pubsub"]
    name: str = Field(description="names the source", pattern=NAME)
    project: str = Field(description="the Google Cloud project", min_length=1)
    subscription: str = Field(description="the subscription's short name", min_length=1)
    topic: str | None = Field(default=None, description="its topic, for `vedette pubsub --apply`")
    dead_letter_topic: str | None = Field(
        default=None, description="where the broker puts what it could not hand over"
    )
    max_delivery_attempts: Whole = Field(default=5, ge=5, le=100)
    ordered: bool = Field(default=False, description="ordering keys are kept by the broker")
    exactly_once: bool = Field(default=False, description="the broker confirms each ack")
    ack_deadline: Duration = Field(default="60s", description="10s to 10m; extended while we work")
    max_messages: Whole = Field(default=2000, ge=1, le=100_000)
    max_bytes: Whole = Field(default=33_554_432, ge=1024)
    streams: Whole = Field(default=1, ge=1, le=64, description="streaming pulls side by side")
    vouches: Literal["envelope", "event", "none"] = Field(
        default="envelope",
        description="what of an event its publishers are trusted for; event: source, id and type, "
        "where strangers choose subject or time",
    )
    type: str | None = Field(default=None, description="the type of events given as bare data")
    filter: str | None = Field(default=None, description="a filter of the broker, beside ours")
    schedules: bool = Field(
        default=False, description="the messages are Cloud Scheduler's, and name a schedule"
    )


class PushFile(SettingsTable):
    """Messages that Pub/Sub pushes to POST /v1/pubsub/NAME."""

    kind: Literal["pubsub-push"]
    name: str = Field(description="names the source", pattern=NAME)
    project: str = Field(description="the Google Cloud project", min_length=1)
    subscription: str = Field(description="the subscription's short name", min_length=1)
    topic: str | None = Field(default=None, description="its topic, for `vedette pubsub --apply`")
    endpoint: str | None = Field(default=None, description="the URL that is pushed to")
    audience: str = Field(description="the audience of its OIDC token", min_length=1)
    service_account: str = Field(description="whose token it is: an e-mail", min_length=3)
    issuer: str = "https://accounts.google.com"
    vouches: Literal["envelope", "event", "none"] = "envelope"
    type: str | None = Field(default=None, description="the type of events given as bare data")
    schedules: bool = False
    dead_letter_topic: str | None = Field(
        default=None, description="where the broker puts what is no event"
    )
    max_delivery_attempts: Whole = Field(default=5, ge=5, le=100)
    ack_deadline: Duration = Field(default="60s", description="10s to 10m: how long an answer has")
    filter: str | None = Field(default=None, description="a filter of the broker, beside ours")
