"""Policy engines: which decides, as `[policy]` of vedette.toml names it, and which is asked too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vedette.domain.base.errors import BadCommand, BadPolicy
from vedette.domain.ports.policy_engine import PolicyEngine, PolicyStage, ResidualCompiler
from vedette.domain.ports.reasoner import Metrics

if TYPE_CHECKING:
    from vedette.adapters.policy_engines.opa_wasm import WasmRepository
    from vedette.config.settings import Settings
    from vedette.domain.bundle import Bundle
    from vedette.domain.policy_wasm import WasmRecord


def policy_stage(
    settings: Settings,
    embedded: PolicyStage,
    metrics: Metrics,
    record: WasmRecord | None = None,
) -> PolicyStage:
    """Wire the stage of the policy engine that the settings name, around the embedded one's.

    `record` is the store, where there is one: it keeps what was compiled. Raises BadFleet if what
    that engine needs is not here.
    """
    plan = settings.deployment.policy
    if plan.engine == "opa":
        from vedette.adapters.policy_engines.opa import OpaConnection, OpaStage
        from vedette.config.secret_reference import read_secret

        table = {"token_env": plan.opa_token_env, "token_file": plan.opa_token_file}
        table["token_secret"] = plan.opa_token_secret
        token = read_secret(table, "token", where="[policy]")
        link = OpaConnection(plan.opa_url, token=token, timeout_us=plan.timeout_us, metrics=metrics)
        return OpaStage(embedded, link, metrics, fallback=plan.fallback)
    if plan.engine == "embedded":
        return embedded
    return _wasm_stage(settings, embedded, record)


def has_shipped_rules(settings: Settings, bundle: Bundle) -> bool:
    """Say whether a bundle has the rules vedette shipped, and [policy] lets their Wasm decide."""
    from vedette.adapters.policy_engines.opa_wasm.repository import shipped_file

    return settings.deployment.policy.engine in ("auto", "wasm") and shipped_file(bundle).exists()


def trial_stage(
    settings: Settings, embedded: PolicyStage, record: WasmRecord | None = None
) -> PolicyStage:
    """Wire the stage by which a bundle is tried where nothing may be written and no server asked.

    What it loads decides as the fleet would, but for an OPA server.
    """
    if settings.deployment.policy.engine in ("embedded", "opa"):
        return embedded
    return _wasm_stage(settings, embedded, record, read_only=True)


def _wasm_stage(
    settings: Settings, embedded: PolicyStage, record: WasmRecord | None, *, read_only: bool = False
) -> PolicyStage:
    from vedette.adapters.policy_engines.opa_wasm import MachineCodeCache, WasmStage

    return WasmStage(
        embedded,
        _repository(settings, record),
        code_cache=MachineCodeCache(settings.state / "machine-code", read_only=read_only),
        required=settings.deployment.policy.engine == "wasm",
    )


def wasm_maker(settings: Settings, record: WasmRecord) -> Callable[[Bundle], PolicyEngine]:
    """Wire what makes policy engines by OPA's Wasm: of the record, this installation, or by opa.

    What it returns raises BadPolicy for a bundle whose Wasm is nowhere.
    """
    from vedette.adapters.policy_engines.opa_wasm import WasmEngine
    from vedette.adapters.policy_engines.opa_wasm.stage import MEND, NO_OPA

    repository = _repository(settings, record)

    def build_engine(bundle: Bundle) -> PolicyEngine:
        repository.load_recorded(bundle)
        wasm = repository.find(bundle)
        if wasm is None:
            raise BadPolicy(NO_OPA, mend=MEND)
        return WasmEngine(bundle, wasm.raw)

    return build_engine


REPLAY_ENGINES = ("regorus", "wasm", "opa")


@contextmanager
def replay_engine(
    settings: Settings, record: WasmRecord, name: str
) -> Iterator[Callable[[Bundle], PolicyEngine]]:
    """Wire what makes one of REPLAY_ENGINES of a recorded bundle. Raises BadCommand without opa.

    A server of the program opa ends with the block.
    """
    if name == "regorus":
        from vedette.adapters.policy_engines.regorus.stage import SubprocessStage

        yield SubprocessStage().load
    elif name == "wasm":
        yield wasm_maker(settings, record)
    else:
        from vedette.adapters.policy_engines.opa import LocalOpaServer
        from vedette.adapters.policy_engines.opa_wasm import find_opa

        opa = find_opa(settings.root)
        if opa is None:
            mend = "put opa on PATH or name it in VEDETTE_OPA"
            raise BadCommand("--engine opa needs the program opa", mend=mend)
        with LocalOpaServer(opa) as server:
            yield server.load


def build_other_engine(stage: Any, bundle: Bundle) -> PolicyEngine | None:
    """Wire the engine that does not decide under an admitted bundle; None where there is none."""
    other = getattr(stage, "second_engine", None)
    made: PolicyEngine | None = other(bundle) if other is not None else None
    return made


def engine_reason(stage: Any) -> str:
    """Say for people why the policy engine that a stage loaded last decides."""
    return getattr(stage, "choice_reason", "") or "as [policy] engine says"


def wasm_trouble(reason: str) -> str | None:
    """Return the trouble of an opened fleet whose OPA Wasm was to decide and cannot; else None.

    `reason` is what `engine_reason` said of the engine that decides.
    """
    from vedette.adapters.policy_engines.opa_wasm.stage import MEND, NO_OPA

    if reason != NO_OPA:
        return None
    return f"the embedded engine decides: {NO_OPA} ({MEND})"


def second_engine_maker(
    settings: Settings, stage: PolicyStage, embedded: PolicyStage, *, read_only: bool = False
) -> Callable[[Bundle], PolicyEngine | None]:
    """Wire what makes the engine that gives the second opinion beside the one of `stage`.

    Beside OPA's Wasm it is the embedded one. Beside the embedded one, or a server, it is OPA's Wasm
    where this installation has it or can compile it; else beside a server the embedded one (which
    may be who stands in for that server, and then agrees with nothing), and beside the embedded one
    None. What it returns may be asked on any thread and raises BadPolicy. With `read_only` no
    machine code is kept.
    """
    engine = settings.deployment.policy.engine
    if engine not in ("embedded", "opa"):
        return lambda bundle: build_other_engine(stage, bundle)
    from vedette.adapters.policy_engines.opa_wasm import MachineCodeCache, WasmEngine

    repository = _repository(settings, None)
    code = MachineCodeCache(settings.state / "machine-code", read_only=read_only)

    def build_engine(bundle: Bundle) -> PolicyEngine | None:
        wasm = repository.find(bundle)
        if wasm is not None:
            return WasmEngine(bundle, wasm.raw, code_cache=code)
        return embedded.load(bundle) if engine == "opa" else None

    return build_engine


def residual_loader(settings: Settings) -> Callable[[Bundle], ResidualCompiler] | None:
    """Wire what makes the residuals of an admitted bundle; None where there are to be none."""
    if not settings.deployment.policy.residual:
        return None

    def load_compiler(bundle: Bundle) -> ResidualCompiler:
        from vedette.adapters.policy_engines.regorus.residual.compiler import BundleCompiler

        return BundleCompiler(bundle)

    return load_compiler


def close_stage(stage: Any) -> None:
    """Let go of what a policy stage holds, if it holds anything."""
    close = getattr(stage, "close", None)
    if close is not None:
        close()


def _repository(settings: Settings, record: WasmRecord | None) -> WasmRepository:
    from vedette.adapters.policy_engines.opa_wasm import WasmRepository, find_opa

    return WasmRepository(find_opa(settings.root), record)
