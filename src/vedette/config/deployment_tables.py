"""The tables of vedette.toml that say how the fleet meets the world of a deployment."""

from __future__ import annotations

from typing import Literal

from vedette.config.field import Field
from vedette.config.secret_reference import VERSION_PATTERN
from vedette.config.settings_table import NAME, Address, Duration, Number, SettingsTable, Whole

# What BigQuery calls its things by; nothing else goes into a query as a name.
PROJECT = r"^[a-z0-9][a-z0-9.:-]{0,62}$"
DATASET = r"^[A-Za-z0-9_]{1,1024}$"
TABLE = r"^[A-Za-z0-9_-]{1,1024}$"
COLUMN = r"^[A-Za-z_][A-Za-z0-9_]{0,299}$"


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


class BigQueryFile(SettingsTable):
    """New rows of a BigQuery table as events."""

    kind: Literal["bigquery"]
    name: str = Field(description="names the source", pattern=NAME)
    project: str = Field(description="the Google Cloud project", pattern=PROJECT)
    dataset: str = Field(pattern=DATASET)
    table: str = Field(pattern=TABLE)
    type: str = Field(description="the type of its events", min_length=1)
    time_column: str = Field(description="when the row was inserted", pattern=COLUMN)
    id_column: str | None = Field(default=None, description="what tells rows apart", pattern=COLUMN)
    subject_column: str | None = Field(
        default=None, description="the subject of its events", pattern=COLUMN
    )
    every: Duration = Field(default="30s", description="how often new rows are asked for")
    overlap: Duration = Field(default="5m", description="how late a row may come")
    behind: Duration = Field(default="2s", description="how far behind the clock is read")
    method: Literal["watermark", "appends"] = "watermark"
    begin: Literal["now", "start"] = Field(
        default="now", description="where it begins that was never here: now, or the first row"
    )
    location: str | None = None
    vouches: Literal["columns", "envelope"] = Field(
        default="columns",
        description="envelope: an id or a subject of a column is trusted, as its writers are",
    )
    vouched: list[str] = Field(
        default_factory=list, description="the columns whose values no stranger chooses"
    )


class PolicyFile(SettingsTable):
    """Which engine decides, and where published bundles are kept."""

    engine: Literal["auto", "embedded", "opa", "wasm"] = Field(
        default="auto", description="auto: OPA's Wasm where there is one of these rules, or an opa"
    )
    opa_url: str = Field(default="http://127.0.0.1:8181", description="the OPA server")
    opa_token_env: str | None = None
    opa_token_file: str | None = None
    opa_token_secret: str | None = Field(default=None, pattern=VERSION_PATTERN)
    timeout: Duration = Field(
        default="50ms", description="how long a decision waits for the OPA server"
    )
    otherwise: Literal["embedded", "deny"] = Field(
        default="embedded", description="who decides while the OPA server does not"
    )
    sample: int = Field(
        default=64, ge=1, le=1_000_000, description="one decision in so many is compared with a "
        "second engine's beside the line; each permit of an outward or high-impact tool always is",
    )  # fmt: skip
    bundles: str | None = Field(
        default=None, description="where signed bundles are put: a folder or gs://BUCKET/PREFIX"
    )
    bundle_token_env: str | None = Field(
        default=None, description="what readers of GET /v1/bundles/FLEET.tar.gz must show"
    )
    bundle_token_file: str | None = None
    bundle_token_secret: str | None = Field(default=None, pattern=VERSION_PATTERN)


class TokensFile(SettingsTable):
    """Who vouches for an agent's identity."""

    kind: Literal["embedded", "google"] = "embedded"
    life: Duration = Field(default="5m", description="how long a token lasts; 5m at most")
    audience: str | None = Field(default=None, description="of the gateway; the fleet by default")
    service_account: str | None = Field(
        default=None,
        description="the agents' service accounts, for example {agent}@PROJECT.iam"
        ".gserviceaccount.com",
    )


class PeopleFile(SettingsTable):
    """Who may use the operator API over HTTP, by OIDC; nobody without an issuer."""

    issuer: str | None = Field(default=None, description="the OIDC provider")
    audience: str = "vedette"
    name_claim: str = Field(default="sub", description="the claim that names the person")
    role_claim: str = Field(default="roles", description="the claim that lists groups or roles")
    max_token_life: Duration = Field(
        default="24h", description="tokens that last longer, from iat to exp, are refused"
    )
    viewer: list[str] = Field(default_factory=list, description="values of it that may read")
    approver: list[str] = Field(default_factory=list)
    operator: list[str] = Field(default_factory=list)
    policy_author: list[str] = Field(default_factory=list)


class GatewayFile(SettingsTable):
    """Where workers on other hosts reach the gateway, and which agents live there."""

    listen: Address = Field(default="", description='host:port; "" is the Unix socket alone')
    agents: list[str] = Field(
        default_factory=list, description='agents of `vedette worker`; ["*"] is all of them'
    )


class TelemetryFile(SettingsTable):
    """Traces and logs."""

    traces: Literal["none", "otlp"] = "none"
    endpoint: str | None = Field(default=None, description="the collector, over HTTP")
    sample: Number = Field(default=1.0, ge=0, le=1, description="the share of events traced")
    logs: Literal["none", "text", "json"] = "none"


class AuditFile(SettingsTable):
    """Where the ledger is shipped to, beside being kept."""

    project: str | None = Field(
        default=None, description="the Google Cloud project", pattern=PROJECT
    )
    dataset: str | None = Field(
        default=None, description="the dataset of its tables", pattern=DATASET
    )
    every: Duration = Field(default="10s", description="how often it is shipped")
