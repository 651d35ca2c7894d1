"""Policy engines for tests that need more than this process: a real OPA server, and its Wasm."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import orjson
from tests.opa import find_opa
from tests.opa_server import OpaServer, opa_server

from vedette.adapters.policy_engines.opa import OpaConnection, OpaEngine
from vedette.adapters.policy_engines.opa_wasm import WasmEngine, compile_wasm
from vedette.adapters.telemetry.prometheus import PrometheusMetrics
from vedette.domain.bundle import Bundle
from vedette.domain.decision import Decision, NullPolicyEngine, parse_decision

# Long enough for a machine that does other things, and may stop a process for a minute: these
# tests are about what is answered.
TIMEOUT_US = 120_000_000
_AT_A_TIME = 16


class Engines:
    """Makes engines of bundles, one server or module for each bundle, until the block ends."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._servers: dict[str, OpaServer] = {}
        self._links: dict[str, OpaConnection] = {}
        self._wasm: dict[str, WasmEngine] = {}

    def __enter__(self) -> Engines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def opa(self, bundle: Bundle) -> OpaEngine:
        """Return an engine on a real server. Nobody is behind it: what it cannot decide raises."""
        digest = bundle.digest
        if digest not in self._links:
            server = self._servers[digest] = self._stack.enter_context(opa_server(bundle))
            link = OpaConnection(
                server.url, token=None, timeout_us=TIMEOUT_US, metrics=PrometheusMetrics()
            )
            self._stack.callback(link.close)
            link.open(digest)
            self._links[digest] = link
        return OpaEngine(NullPolicyEngine(), self._links[digest], PrometheusMetrics(), digest)

    def opa_says(self, bundle: Bundle, questions: Sequence[Any]) -> list[Decision]:
        """Return what the server decides of many questions, several on their way at a time.

        Beside the engine, which asks one at a time and waits for each.
        """
        engine = self.opa(bundle)
        link = self._links[bundle.digest]
        found: list[Decision] = []

        async def all_of_them() -> None:
            for start in range(0, len(questions), _AT_A_TIME):
                part = [orjson.dumps(one) for one in questions[start : start + _AT_A_TIME]]
                for answer in await asyncio.gather(*(link._ask(one) for one in part)):
                    assert answer.digest == engine.digest
                    found.append(parse_decision(answer.result))

        link._schedule(all_of_them()).result()
        return found

    def wasm(self, bundle: Bundle) -> WasmEngine:
        """Return an engine on the Wasm that the real opa makes of a bundle."""
        if bundle.digest not in self._wasm:
            self._wasm[bundle.digest] = WasmEngine(bundle, compile_wasm(find_opa(), bundle))
        return self._wasm[bundle.digest]
