"""The PolicyEngine on an OPA server. It decides only what the server says under our bundle.

Everything else (no answer, late, another status, another revision, another shape) is decided by
the engine that stands behind it: the embedded one, made of the same bundle, or nobody, which the
gateway turns into a deny.
"""

from __future__ import annotations

import asyncio
import threading

import orjson

from vedette.adapters.policy_engines.opa.connection import NoAnswer, OpaLink, Why
from vedette.domain.bundle import Bundle
from vedette.domain.decision import read_decision
from vedette.domain.decision_request import Nobody
from vedette.domain.ports import Finding, Metrics, PolicyEngine, PolicyStage


class OpaEngine:
    """Decides under one bundle by a server that serves it. May be used from any thread.

    `name` says who gave the last answer on this thread: `opa/VERSION server`, or the name of the
    engine behind it. A decision waits for the server at most until the link's deadline; after a
    failure the engine behind decides at once, until the server was seen to serve the bundle again.
    """

    def __init__(self, behind: PolicyEngine | Nobody, link: OpaLink, metrics: Metrics, digest: str):
        """Ask by `link`; `behind` decides what the server does not."""
        self.digest = digest
        self._behind = behind
        self._link = link
        self._metrics = metrics
        self._last = threading.local()

    @property
    def name(self) -> str:
        """Return the name of the engine that decided last on this thread."""
        return getattr(self._last, "name", "opa server")

    def decide(self, question: bytes) -> object:
        """Return what the entry point says of a canonical question; None if undefined.

        Raises ValueError if the question is not JSON, and what the engine behind raises.
        """
        orjson.loads(question)
        why: Why = "down"
        if self._link.ready(self.digest):
            try:
                answer = self._link.ask(question)
            except NoAnswer as error:
                why = error.reason
                self._link.away(self.digest)
            else:
                if answer.digest != self.digest:
                    why = "revision"
                    self._link.missed(self.digest)
                elif answer.result is None or _exact(answer.result):
                    self._metrics.gauge("policy_engine_up", 1)
                    self._last.name = f"opa/{answer.version} server"
                    return answer.result
                else:
                    why = "shape"
        else:
            self._link.missed(self.digest)
        self._metrics.count("policy_fallbacks", reason=why)
        self._last.name = self._behind.name
        return self._behind.decide(question)


def _exact(result: object) -> bool:
    return not read_decision(result).rule.startswith("engine.")


class OpaStage:
    """Tries bundles as the stage within does, and loads them for an OPA server.

    `otherwise` says who decides what the server does not: `embedded` or (by nobody) `deny`.
    """

    def __init__(
        self, within: PolicyStage, link: OpaLink, metrics: Metrics, *, otherwise: str
    ) -> None:
        self._within = within
        self._link = link
        self._metrics = metrics
        self._otherwise = otherwise

    async def try_out(self, bundle: Bundle) -> list[Finding]:
        """Return what is wrong with the bundle; an empty list admits it."""
        return await self._within.try_out(bundle)

    async def warm(self, bundle: Bundle) -> None:
        """Connect, if nothing did so yet: waits for the server 5 s at most."""
        await asyncio.to_thread(self._link.open, bundle.digest)

    def load(self, bundle: Bundle) -> PolicyEngine:
        """Make an engine of an admitted bundle. Raises BadPolicy.

        The embedded engine is made in any case: what it cannot load no server shall decide.
        """
        embedded = self._within.load(bundle)
        self._link.open(bundle.digest)
        behind = Nobody() if self._otherwise == "deny" else embedded
        return OpaEngine(behind, self._link, self._metrics, bundle.digest)

    def close(self) -> None:
        """Let go of the server."""
        self._link.close()
