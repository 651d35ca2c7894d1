"""The PolicyEngine on an OPA server. It decides only what the server says under our bundle.

Everything else (no answer, late, another status, another revision, another shape) is decided by
the engine that stands behind it: the embedded one, made of the same bundle, or nobody, which the
gateway turns into a deny.
"""

from __future__ import annotations

import asyncio
import threading

import orjson

from vedette.adapters.policy_engines.opa.connection import (
    FailureReason,
    OpaConnection,
    OpaUnavailable,
)
from vedette.domain.bundle import Bundle, Finding
from vedette.domain.decision import NullPolicyEngine, parse_decision
from vedette.domain.ports.policy_engine import PolicyEngine, PolicyStage
from vedette.domain.ports.reasoner import Metrics


class OpaEngine:
    """The engine that decides by an OPA server that serves its bundle, from any thread.

    `name` says who gave the last answer on this thread: `opa/VERSION server`, or the name of the
    engine behind it. A decision waits for the server until the connection's deadline at most; after
    a failure the engine behind decides at once, until the server was seen to serve the bundle
    again.
    """

    def __init__(
        self,
        fallback: PolicyEngine | NullPolicyEngine,
        connection: OpaConnection,
        metrics: Metrics,
        digest: str,
    ):
        """Ask by `connection`; `fallback` decides what the server does not."""
        self.digest = digest
        self._fallback = fallback
        self._connection = connection
        self._metrics = metrics
        self._thread_state = threading.local()

    @property
    def name(self) -> str:
        """Return the name of the engine that decided last on this thread."""
        return getattr(self._thread_state, "name", "opa server")

    def decide(self, request: bytes) -> object:
        """Return what the entry point says of a canonical question; None if undefined.

        Raises ValueError if the question is not JSON, and what the engine behind raises.
        """
        orjson.loads(request)
        reason: FailureReason = "down"
        if self._connection.is_ready(self.digest):
            try:
                answer = self._connection.ask(request)
            except OpaUnavailable as error:
                reason = error.reason
                self._connection.mark_unreachable(self.digest)
            else:
                if answer.digest != self.digest:
                    reason = "revision"
                    self._connection.start_probing(self.digest)
                elif answer.result is None or _is_exact(answer.result):
                    self._metrics.gauge("policy_engine_up", 1)
                    self._thread_state.name = f"opa/{answer.version} server"
                    return answer.result
                else:
                    reason = "shape"
        else:
            self._connection.start_probing(self.digest)
        self._metrics.count("policy_fallbacks", reason=reason)
        self._thread_state.name = self._fallback.name
        return self._fallback.decide(request)


def _is_exact(result: object) -> bool:
    return not parse_decision(result).rule.startswith("engine.")


class OpaStage:
    """Tries bundles as the stage within does, and loads them for an OPA server.

    `fallback` says who decides what the server does not: `embedded` or (by nobody) `deny`.
    """

    def __init__(
        self, inner: PolicyStage, connection: OpaConnection, metrics: Metrics, *, fallback: str
    ) -> None:
        self._inner = inner
        self._connection = connection
        self._metrics = metrics
        self._fallback = fallback

    async def try_out(self, bundle: Bundle) -> list[Finding]:
        """Return what is wrong with the bundle; an empty list admits it."""
        return await self._inner.try_out(bundle)

    async def warm(self, bundle: Bundle) -> None:
        """Connect, if nothing did so yet: waits for the server 5 s at most."""
        await asyncio.to_thread(self._connection.open, bundle.digest)

    def load(self, bundle: Bundle) -> PolicyEngine:
        """Make an engine of an admitted bundle. Raises BadPolicy.

        The embedded engine is made in any case: what it cannot load no server shall decide.
        """
        embedded = self._inner.load(bundle)
        self._connection.open(bundle.digest)
        fallback = NullPolicyEngine() if self._fallback == "deny" else embedded
        return OpaEngine(fallback, self._connection, self._metrics, bundle.digest)

    def close(self) -> None:
        """Let go of the server."""
        self._connection.close()
