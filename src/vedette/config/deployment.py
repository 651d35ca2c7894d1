"""Plans of a deployment: what `deployment_tables` come to, with durations in microseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from vedette.config.policy_table import policy_problems
from vedette.config.problem import Problem
from vedette.config.yaml import Document, KeyPath
from vedette.domain.base.clock import duration_us
from vedette.domain.base.urls import is_loopback

# OpenTelemetry's variables, as its "Environment Variable Specification" names them.
_DISABLED = "OTEL_SDK_DISABLED"
_EXPORTER = "OTEL_TRACES_EXPORTER"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_SAMPLER = "OTEL_TRACES_SAMPLER"
_SAMPLER_ARG = "OTEL_TRACES_SAMPLER_ARG"
# The share of events that each traces; None is that of the argument. An event is its trace's root.
_SAMPLERS = {"always_on": 1.0, "always_off": 0.0, "traceidratio": None}


class PolicyPlan(Struct, frozen=True):
    """[policy]: which engine decides (auto, embedded, opa, wasm); where signed bundles are put."""

    engine: str = "auto"
    opa_url: str = "http://127.0.0.1:8181"
    opa_token_env: str | None = None
    opa_token_file: str | None = None
    timeout_us: int = 50_000
    fallback: str = "embedded"
    bundles: str | None = None
    bundle_token_env: str | None = None
    bundle_token_file: str | None = None
    opa_token_secret: str | None = None
    bundle_token_secret: str | None = None
    sample: int = 64
    residual: bool = False


class TokensPlan(Struct, frozen=True):
    """[tokens]: who vouches for an agent's identity (embedded, google), and for how long."""

    kind: str = "embedded"
    life_us: int = 300_000_000
    audience: str | None = None
    service_account: str | None = None


class PeoplePlan(Struct, frozen=True):
    """[people]: who may use the operator API. `roles`: role -> values of the claim that give it."""

    issuer: str | None = None
    audience: str = "vedette"
    name_claim: str = "sub"
    role_claim: str = "roles"
    roles: Mapping[str, tuple[str, ...]] | None = None
    max_token_life_us: int = 86_400_000_000


class GatewayPlan(Struct, frozen=True):
    """[gateway]: where workers of other hosts reach the gateway, and the agents that live there."""

    listen: tuple[str, int] | None = None
    agents: tuple[str, ...] = ()
    # Set by `vedette run --gateway`: without it both live on one host, whatever the table says.
    is_gateway: bool = False

    def is_remote(self, agent: str) -> bool:
        """Say whether an agent's judge runs in a `vedette worker`."""
        return self.is_gateway and (agent in self.agents or "*" in self.agents)


class TelemetryPlan(Struct, frozen=True):
    """[telemetry]: traces (none, otlp) and logs (none, text, json), from a level on.

    Without an `endpoint` the exporter takes that of OpenTelemetry's variables.
    """

    traces: str = "none"
    endpoint: str | None = None
    sample: float = 1.0
    logs: str = "none"
    level: str = "info"


class AuditPlan(Struct, frozen=True):
    """[audit]: where the ledger is shipped to; nowhere without a dataset."""

    project: str | None = None
    dataset: str | None = None
    every_us: int = 10_000_000


class Deployment(Struct, frozen=True):
    """All plans that the deployment tables of vedette.toml come to."""

    policy: PolicyPlan = PolicyPlan()
    tokens: TokensPlan = TokensPlan()
    people: PeoplePlan = PeoplePlan()
    gateway: GatewayPlan = GatewayPlan()
    telemetry: TelemetryPlan = TelemetryPlan()
    audit: AuditPlan = AuditPlan()


def build_deployment(
    shape: Any, path: Callable[[str], Path], environ: Mapping[str, str]
) -> Deployment:
    """Return what vedette.toml's deployment tables come to. `path` resolves a relative one."""
    policy, tokens, people = shape.policy, shape.tokens, shape.people
    gateway, telemetry, audit = shape.gateway, shape.telemetry, shape.audit
    bundles = policy.bundles
    if bundles and not bundles.startswith("gs://"):
        bundles = str(path(bundles))
    host, _, port = gateway.listen.rpartition(":")
    return Deployment(
        PolicyPlan(
            policy.engine, policy.opa_url, policy.opa_token_env,
            str(path(policy.opa_token_file)) if policy.opa_token_file else None,
            duration_us(policy.timeout), policy.otherwise, bundles, policy.bundle_token_env,
            str(path(policy.bundle_token_file)) if policy.bundle_token_file else None,
            policy.opa_token_secret, policy.bundle_token_secret, sample=policy.sample,
            residual=policy.residual,
        ),
        TokensPlan(
            tokens.kind, duration_us(tokens.life), tokens.audience, tokens.service_account
        ),
        PeoplePlan(
            people.issuer, people.audience, people.name_claim, people.role_claim,
            {
                "viewer": tuple(people.viewer),
                "approver": tuple(people.approver),
                "operator": tuple(people.operator),
                "policy_author": tuple(people.policy_author),
            },
            duration_us(people.max_token_life),
        ),
        GatewayPlan((host.strip("[]"), int(port)) if host else None, tuple(gateway.agents)),
        _telemetry_plan(telemetry, environ),
        AuditPlan(audit.project, audit.dataset, duration_us(audit.every)),
    )  # fmt: skip


def _telemetry_plan(telemetry: Any, environ: Mapping[str, str]) -> TelemetryPlan:
    """Return what [telemetry] comes to where OpenTelemetry's own variables have the last word.

    `_otel_problems` checked them. What concerns a request alone (headers, certificate, compression,
    timeout) the exporter reads.
    """
    endpoint, sample = telemetry.endpoint, telemetry.sample
    if any(environ.get(name) for name in _ENDPOINTS):
        endpoint = None
    if name := environ.get(_SAMPLER):
        share = _SAMPLERS[name.removeprefix("parentbased_")]
        sample = float(environ.get(_SAMPLER_ARG) or 1) if share is None else share
    traces = environ.get(_EXPORTER) or telemetry.traces
    if environ.get(_DISABLED, "").lower() == "true":
        traces = "none"
    return TelemetryPlan(traces, endpoint, sample, telemetry.logs, telemetry.level)


def _otel_problems(environ: Mapping[str, str]) -> list[Problem]:
    """Return what OpenTelemetry's variables say that is not done here."""
    found = []
    if environ.get(_EXPORTER) not in (None, "", "otlp", "none"):
        what = f"{environ[_EXPORTER]!r} is no exporter that is known here"
        found.append(Problem("environment", 0, _EXPORTER, what, "write otlp or none"))
    name = environ.get(_SAMPLER) or "always_on"
    if name.removeprefix("parentbased_") not in _SAMPLERS:
        what, mend = f"{name!r} is no sampler that is known here", f"write {', '.join(_SAMPLERS)}"
        found.append(Problem("environment", 0, _SAMPLER, what, mend))
    elif environ.get(_SAMPLER_ARG):
        try:
            share = float(environ[_SAMPLER_ARG])
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            what = f"{environ[_SAMPLER_ARG]!r} is no share"
            found.append(Problem("environment", 0, _SAMPLER_ARG, what, "write 0 to 1"))
    return found


def deployment_problems(
    shape: Any, document: Document, environ: Mapping[str, str]
) -> list[Problem]:
    """Return what is wrong with vedette.toml's deployment tables beyond their shape."""
    found: list[Problem] = []

    def add(at: KeyPath, what: str, mend: str) -> None:
        found.append(document.problem(at, what, mend))

    if not 1_000_000 <= duration_us(shape.tokens.life) <= 300_000_000:
        add(("tokens", "life"), "a token lasts from 1s to 5m", "write for example 5m")
    if shape.tokens.kind == "google" and not shape.tokens.service_account:
        add(("tokens",), "google tokens need the agents' service accounts", "add service_account")
    for place, what, mend in _people_problems(shape):
        add(place, what, mend)
    found += policy_problems(shape.policy, document)
    if (shape.audit.project is None) != (shape.audit.dataset is None):
        add(("audit",), "needs both project and dataset", "give both, or leave the table out")
    found += (otel := _otel_problems(environ))
    if not otel:
        plan = _telemetry_plan(shape.telemetry, environ)
        named = plan.endpoint or any(environ.get(name) for name in _ENDPOINTS)
        if plan.traces == "otlp" and not named:
            add(("telemetry",), "traces need a collector", "add endpoint")
    return found


def _people_problems(shape: Any) -> list[tuple[KeyPath, str, str]]:
    """Return what is wrong with [people]: an issuer anybody could stand in for, no roles at all."""
    people, found = shape.people, list[tuple[KeyPath, str, str]]()
    if people.issuer is None:
        return found
    parts = urlsplit(people.issuer)
    here = is_loopback(parts.hostname or "")
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and here)):
        found.append((("people", "issuer"), "is no https address", "write https://HOST"))
    if not (people.viewer or people.approver or people.operator or people.policy_author):
        what = "nobody has a role, so nobody comes in"
        found.append((("people",), what, "give viewer, approver, operator or policy_author"))
    if people.audience == (shape.tokens.audience or f"spiffe://{shape.fleet}/gateway"):
        what = "agents' tokens are for the same audience"
        found.append((("people", "audience"), what, "give people one of their own"))
    return found
