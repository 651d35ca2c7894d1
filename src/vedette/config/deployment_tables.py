"""The tables of vedette.toml that say how the fleet meets the world of a deployment."""

from __future__ import annotations

from typing import Literal

from vedette.config.field import Field
from vedette.config.secret_reference import VERSION_PATTERN
from vedette.config.settings_table import Address, Duration, Number, SettingsTable

# What BigQuery calls its things by.
_PROJECT = r"^[a-z0-9][a-z0-9.:-]{0,62}$"
_DATASET = r"^[A-Za-z0-9_]{1,1024}$"


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
    residual: bool = Field(
        default=False, description="whether functions made of the policy may permit what its "
        "engine permits, at a part of the cost; what one may cost is bounded by forms and sizes, "
        "not proved against the engine's steps (decision 57)",
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
    level: Literal["info", "warning", "error"] = Field(
        default="info", description="the least severe log line that is written"
    )


class AuditFile(SettingsTable):
    """Where the ledger is shipped to, beside being kept."""

    project: str | None = Field(
        default=None, description="the Google Cloud project", pattern=_PROJECT
    )
    dataset: str | None = Field(
        default=None, description="the dataset of its tables", pattern=_DATASET
    )
    every: Duration = Field(default="10s", description="how often it is shipped")
