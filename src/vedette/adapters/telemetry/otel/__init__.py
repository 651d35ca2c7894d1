"""Sends spans to an OpenTelemetry collector, by OTLP over HTTP (extra `otlp`).

The spans are made of the ledger (vedette.ledger.history.trace) with ids and times of their own, so
the SDK's tracer, which gives both itself, is not used: its span type and the exporter are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from vedette.domain.base.errors import BadFleet
from vedette.ledger.history.trace import Span

_TIMEOUTS = ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")


class OtlpExporter:
    """One OpenTelemetry collector; `endpoint` is its base address or the whole path, as in OTLP.

    Without one it is that of OTEL_EXPORTER_OTLP_ENDPOINT or …_TRACES_ENDPOINT. The exporter takes
    headers, certificates and compression from its variables, and its timeout (2 s else);
    OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say more of the resource, or something else.

    Raises BadFleet if the exporter is not installed.
    """

    def __init__(self, endpoint: str | None, fleet: str, *, timeout_s: float = 2.0) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as error:
            raise BadFleet(
                "traces need the OTLP exporter",
                where="vedette.toml: [telemetry]",
                mend="install vedette[otlp]",
            ) from error
        url = endpoint and endpoint.rstrip("/").removesuffix("/v1/traces") + "/v1/traces"
        timeout = None if any(os.environ.get(name) for name in _TIMEOUTS) else timeout_s
        self._exporter = OTLPSpanExporter(endpoint=url, timeout=timeout)
        own = Resource({"service.name": "vedette", "service.namespace": fleet})
        self._resource = own.merge(OTELResourceDetector().detect())
        self._scope = InstrumentationScope("vedette")

    def send(self, spans: Sequence[Span]) -> bool:
        """Send spans; blocks. Returns whether the collector took them; never raises for it."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            done = self._exporter.export([self._span(span) for span in spans])
        except Exception:
            # Whatever a network does is a reason to come again, never to end the fleet.
            return False
        return done is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Let go of the connection."""
        exporter: Any = self._exporter
        exporter.shutdown()

    def _span(self, span: Span) -> Any:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Link, SpanKind, Status, StatusCode

        status = Status(StatusCode.ERROR, span.failed) if span.failed else Status(StatusCode.UNSET)
        parent = _context(span.trace, span.parent) if span.parent else None
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace, span.id),
            parent=parent,
            resource=self._resource,
            attributes=dict(span.attributes),
            links=[Link(_context(*span.link))] if span.link else [],
            kind=SpanKind[span.kind.upper()],
            status=status,
            start_time=span.start_us * 1000,
            end_time=span.end_us * 1000,
            instrumentation_scope=self._scope,
        )


def _context(trace: str, span: str) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    sampled = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=sampled)
