"""The stage of the Wasm engine: what the embedded one admits, decided by OPA's Wasm of it."""

from __future__ import annotations

import asyncio

import orjson

from vedette.adapters.policy_engines.opa_wasm.engine import WasmEngine
from vedette.adapters.policy_engines.opa_wasm.machine_code import MachineCodeCache
from vedette.adapters.policy_engines.opa_wasm.repository import WasmRepository, shipped_file
from vedette.domain.base.errors import BadPolicy
from vedette.domain.bundle import Bundle, Finding
from vedette.domain.decision import Decision, build_denial, parse_decision
from vedette.domain.policy_wasm import PolicyWasm
from vedette.domain.ports.policy_engine import ComparisonStage, PolicyEngine, PolicyStage
from vedette.policy.bundle_data import mount
from vedette.policy.golden_requests import forbidden_requests, golden_requests

NO_OPA = "these rules were never compiled to Wasm, and no opa is here to do it"
MEND = "put opa on PATH or name it in VEDETTE_OPA"
_ENTRY = "vedette/gateway/decide.rego"


class WasmStage:
    """The stage that tries bundles as the one within does, and decides by OPA's Wasm of them.

    Where there is none, and nothing to make it with, the engine within decides; with `required` the
    bundle is refused. Before a bundle is admitted both engines are asked what it grants, which they
    must answer, and, where the stage within is a ComparisonStage, the questions that take each
    branch. What no bundle may permit is put to each engine that is made, and one that does not deny
    it decides nothing. `choice_reason` says for people why the engine that was loaded last decides.
    """

    def __init__(
        self,
        inner: PolicyStage,
        repository: WasmRepository,
        *,
        code_cache: MachineCodeCache | None = None,
        required: bool = False,
    ) -> None:
        self._inner = inner
        self._repository = repository
        self._code_cache = code_cache
        self._required = required
        self._engines: dict[str, WasmEngine] = {}
        self.choice_reason = ""

    async def try_out(self, bundle: Bundle) -> list[Finding]:
        """Return what is wrong with the bundle; an empty list admits it.

        opa checks and compiles changed rules beside the trial within: it is another program.
        Of the rules that vedette shipped the trial need not compare two evaluators of its own:
        what it loads is compared with their Wasm.
        """
        try:
            self._repository.load_recorded(bundle)
        except BadPolicy as error:
            return [Finding.of(error)]
        inner, spared = self._inner, False
        trial = inner.try_out
        if isinstance(inner, ComparisonStage) and shipped_file(bundle).exists():
            trial, spared = inner.try_rules, True
        found, wasm = await asyncio.gather(
            trial(bundle), asyncio.to_thread(self._load_wasm, bundle)
        )
        if found:
            return found
        if not isinstance(wasm, PolicyWasm):
            # Then the engine within decides, and nothing else has compared it.
            return wasm or (await inner.try_out(bundle) if spared else [])
        return await asyncio.to_thread(self._compare_engines, bundle)

    async def warm(self, bundle: Bundle) -> None:
        """Make the engine of a bundle on another thread. Raises BadPolicy.

        To compile takes a part of a second, on a busy machine up to 30 s: the fleet must not wait.
        """
        self._repository.load_recorded(bundle)
        await asyncio.to_thread(self._engine, bundle)

    def load(self, bundle: Bundle) -> PolicyEngine:
        """Make an engine of an admitted bundle. Raises BadPolicy.

        A bundle that was tried out or warmed here is compiled already; another is compiled now.
        """
        self._repository.load_recorded(bundle)
        engine = self._engine(bundle)
        if engine is None:
            self.choice_reason = NO_OPA
            return self._inner.load(bundle)
        self._engines.pop(bundle.digest, None)
        wasm = self.wasm(bundle)
        self.choice_reason = wasm.origin if wasm else ""
        return engine

    def wasm(self, bundle: Bundle) -> PolicyWasm | None:
        """Return the Wasm of a bundle's rules, None if nobody can make it. Raises BadPolicy.

        May run opa.
        """
        return self._repository.find(bundle)

    def second_engine(self, bundle: Bundle) -> PolicyEngine | None:
        """Make the engine that does not decide under an admitted bundle: the one within.

        None where that one decides. Raises BadPolicy.
        """
        return self._inner.load(bundle) if self.wasm(bundle) is not None else None

    def _engine(self, bundle: Bundle) -> WasmEngine | None:
        """Return the engine of a bundle, made once until it is taken; None without Wasm."""
        found = self._engines.get(bundle.digest)
        if found is None:
            wasm = self.wasm(bundle)
            if wasm is None:
                if self._required:
                    raise BadPolicy(NO_OPA, where="[policy] engine", mend=MEND)
                return None
            found = WasmEngine(bundle, wasm.raw, code_cache=self._code_cache)
            self._refuse_permissive(found, bundle)
            self._engines = {bundle.digest: found}
        return found

    def _refuse_permissive(self, engine: WasmEngine, bundle: Bundle) -> None:
        """Raise BadPolicy for an engine that does not deny what must be denied.

        Whatever took the place of the Wasm that was tried: no record and no file is asked here.
        """
        for name, request in forbidden_requests(mount(bundle.files)):
            decision = _decide(engine, request)
            if decision.outcome != "deny":
                what = f"{name} is not denied but {decision.outcome} by {decision.rule}"
                raise BadPolicy(what, where=f"{_ENTRY}:1", mend="deny what proves nothing")

    def _load_wasm(self, bundle: Bundle) -> PolicyWasm | list[Finding]:
        """Return the Wasm of a bundle that loads, or what is wrong with it: nothing without one."""
        try:
            wasm = self.wasm(bundle)
            self._engine(bundle)
            return wasm or []
        except BadPolicy as error:
            return [Finding.of(error)]

    def _compare_engines(self, bundle: Bundle) -> list[Finding]:
        """Put the bundle's own questions to both engines; return where they differ or fail."""
        wasm, inner = self._engine(bundle), self._inner.load(bundle)
        assert wasm is not None
        data = mount(bundle.files)
        granted = golden_requests(data)
        others = forbidden_requests(data)
        if isinstance(self._inner, ComparisonStage):
            others = [*self._inner.branch_requests(bundle), *others]
        found = []
        for at, (name, request) in enumerate([*granted, *others]):
            first, second = _decide(wasm, request), _decide(inner, request)
            both = f"{first.outcome} by {first.rule} as OPA compiles it"
            both = f"{both}, and {second.outcome} by {second.rule}"
            failed = "engine.error" in (first.rule, second.rule)
            if failed and at < len(granted):
                what = f"an engine fails on {name!r}, which is granted: {both}"
                found.append(Finding(_ENTRY, 1, what, "look for a rule that multiplies data"))
            elif not (first.outcome == second.outcome == "deny" if failed else first == second):
                what = f"the engines differ on {name!r}: {both}"
                found.append(Finding(_ENTRY, 1, what, "keep within the portable profile"))
        return found


def _decide(engine: PolicyEngine, request: object) -> Decision:
    try:
        return parse_decision(engine.decide(orjson.dumps(request)))
    except Exception:  # whatever it is, the gateway makes a deny of it
        return build_denial("engine.error")
