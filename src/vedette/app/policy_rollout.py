"""The roll-out of a fleet's policy, and what the live one carries for the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from vedette.app.policy_engines import (
    engine_reason,
    policy_stage,
    residual_loader,
    second_engine_maker,
    wasm_trouble,
)
from vedette.app.policy_publication import build_distributor
from vedette.domain.agent import Agent
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadPolicy
from vedette.domain.budget import BudgetPolicy
from vedette.domain.bundle import Bundle, Finding, Revision, find_bundle
from vedette.domain.entry import Draft
from vedette.domain.identity import ENGINE
from vedette.domain.ports.policy_engine import PolicyEngine, PolicyStage
from vedette.engine.reservation import find_budget_gap, pause_unbounded_agents
from vedette.engine.services import Services
from vedette.memory.training_set import Lessons, ReadableScopes
from vedette.policy.budget_data import parse_budgets
from vedette.policy.folder import offer_folder, remember_folder
from vedette.policy.gateway import Gateway
from vedette.policy.loosening import Loosening, find_loosening, find_looser_decisions
from vedette.policy.residuals import ResidualFactory
from vedette.policy.rollout import PublishRequest, Rollout
from vedette.policy.second_opinion import SecondOpinion, SecondOpinionFactory

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.domain.ports.store import Store

# How many recorded questions are answered again to show what a bundle loosens.
EVIDENCE_LIMIT = 200


class NoPolicy:
    """The engine that the composition root begins with: before a first bundle it denies all."""

    name = "none"
    digest = ""

    def decide(self, request: bytes) -> object:
        return None


async def open_rollout(
    settings: Settings,
    store: Store,
    services: Services,
    embedded_stage: PolicyStage | None,
    second_engine: Callable[[Bundle], PolicyEngine | None] | None,
    lessons: Lessons,
) -> tuple[Rollout, list[str]]:
    """Wire the roll-out: take up the live revision, then the folder if it says something else.

    Returns the troubles there were beside it.
    """
    from vedette.adapters.policy_engines.regorus.stage import SubprocessStage
    from vedette.policy.bundle_data import mount

    embedded = embedded_stage or SubprocessStage()
    stage = policy_stage(settings, embedded, services.metrics, store)
    load = second_engine or second_engine_maker(settings, stage, embedded)
    opinions = SecondOpinionFactory(
        load, mount, services.metrics, settings.deployment.policy.sample
    )
    residuals = ResidualFactory(
        residual_loader(settings), services.metrics, settings.deployment.policy.sample
    )
    prepared: list[ReadableScopes] = []

    def prepare(engine: PolicyEngine, number: int) -> list[Draft]:
        gate = Gateway(engine, number, counts=services.gateway.counts)
        readable, drafts = lessons.decide_scopes(gate, services.clock.now_us())
        prepared[:] = [readable]
        return drafts

    def admits(bundle: Bundle, agents: Mapping[str, Agent]) -> list[Finding]:
        # Who is unbounded already begins nothing; that keeps no other mend of the policy back.
        looked_at = {
            name: one
            for name, one in agents.items()
            if find_budget_gap(services.budgets, one) is None
        }
        return read_bundle_budgets(bundle.files, looked_at)[1]

    def swap(engine: PolicyEngine, second: SecondOpinion, live: Revision, bundle: Bundle) -> None:
        services.gateway.swap(engine, live.number, second, residuals.set_live(bundle, engine))
        rollout.engine_reason = engine_reason(stage)  # of the bundle loaded last: this one
        opinions.live = second
        if prepared:
            for agent in lessons.adopt(prepared.pop(), live.number):
                judges: Any = services.reasoners["judge"]
                judges.renew(agent)
        found = read_engine_data(store, live.digest)
        services.registry, services.budgets, services.grants = found
        pause_unbounded_agents(services)
        services.metrics.gauge("policy_revision", live.number)
        services.metrics.gauge("policy_engine_wasm", int(engine.name.startswith("opa wasm")))

    number, digest = store.policy.live_revision()
    rollout = Rollout(
        store,
        stage,
        services.clock,
        Revision(number, digest),
        prepare,
        swap,
        services.calls.count_before,
        services.metrics,
        opinions,
        residuals,
        asyncio.Lock(),
        lambda: (services.fleet.agents, None),
        admits,
        build_distributor(settings, store, services.clock.now_us),
        lambda bundle: compare_with_live(store, bundle),
        lambda engine: collect_loosening_evidence(store, services.gateway.engine, engine),
    )
    if number:
        bundle = await _live_bundle(settings, store, digest)
        engine = stage.load(bundle)
        swap(engine, await opinions.create_live(bundle), rollout.live, bundle)
    troubles = await _offer_policy_folder(settings, store, rollout)
    if (trouble := wasm_trouble(rollout.engine_reason)) is not None:
        troubles.append(trouble)
    if opinions.live is not None and opinions.live.is_missing:
        troubles.append(f"the second policy engine is {opinions.live.name} (tried each minute)")
    return rollout, troubles


async def _live_bundle(settings: Settings, store: Store, digest: str) -> Bundle:
    """Return the live bundle as it was recorded.

    Where its row was edited or is gone the policy folder's bytes make it right again, if they are
    that policy. Raises BadPolicy if they are not.
    """
    from vedette.adapters.policy_engines.regorus.stage import read_bundle

    recorded = find_bundle(store.policy.bundle_files, digest)
    if recorded is not None:
        return recorded
    what = f"the recorded bundle {digest[:12]}, which is live, was changed or is gone"
    mend = "bring exactly that policy back into the policy folder, or the state from a backup"
    try:
        found = read_bundle(settings.policies)
    except BadPolicy as error:
        raise BadPolicy(what, mend=mend) from error
    if found.digest != digest:
        raise BadPolicy(what, mend=mend)
    await store.commands.append_entries([], found)
    return found


async def _offer_policy_folder(settings: Settings, store: Store, rollout: Rollout) -> list[str]:
    """Offer the policy folder if it says something new; return why it was refused, if it was.

    Raises BadPolicy if no revision is live then.
    """
    from vedette.adapters.policy_engines.regorus.stage import read_bundle

    stays = f"policy refused, revision {rollout.live.number} stays"
    try:
        bundle = read_bundle(settings.policies)
    except BadPolicy as error:
        if not rollout.live.number:
            raise
        await rollout.record_refusal(error, ENGINE)
        return [f"{stays}: {error}"]
    if rollout.live.number and settings.store.visit:
        # Who comes for one command publishes under that person's name, or nothing: the next `run`
        # takes up what a person left in the folder.
        return []
    wish = PublishRequest(ENGINE, "found in the policy folder at start")
    if rollout.live.number:
        why_not = await offer_folder(store, rollout, bundle, wish)
        return [f"{stays}: {why_not}"] if why_not else []
    published = await rollout.publish(bundle, wish)
    if published.findings:
        first = published.findings[0]
        raise BadPolicy(first.what, where=f"{first.file}:{first.line}", mend=first.mend or None)
    await remember_folder(store, bundle.digest, rollout.live)
    return []


def compare_with_live(store: Store, bundle: Bundle) -> Loosening:
    """Return what a bundle loosens of the live policy; the first one loosens nothing."""
    from vedette.policy.bundle_data import mount

    number, digest = store.policy.live_revision()
    if not number:
        return Loosening()
    live = find_bundle(store.policy.bundle_files, digest)
    if live is None:
        changes = ("the live policy's bytes are not in the store",)
        return Loosening(changes, bundle_digests=(digest, bundle.digest))
    return find_loosening(live, bundle, mount)


def collect_loosening_evidence(
    store: Store, live: PolicyEngine, other: PolicyEngine
) -> tuple[str, ...]:
    """Say which of the last recorded questions come out looser under another bundle."""
    requests = []
    for seq in store.ledger.latest_decisions(EVIDENCE_LIMIT):
        found = store.ledger.entry(seq)
        if found is not None and found[2] is not None:
            requests.append(canonical_json(orjson.loads(found[2])["question"]))
    return find_looser_decisions(live, other, requests)


def read_engine_data(
    store: Store, digest: str
) -> tuple[dict[str, Any], BudgetPolicy, dict[str, Any]]:
    """Return what a bundle's data give the engine: the registry, the budgets and the grants."""
    from vedette.policy.bundle_data import mount

    data = mount(store.policy.bundle_files(digest) or {})
    found = {name: data.get(name) for name in ("registry", "grants")}
    registry, grants = (one if isinstance(one, dict) else {} for one in found.values())
    return registry, parse_budgets(data.get("budgets")), grants


def read_bundle_budgets(
    files: Mapping[str, bytes], agents: Mapping[str, Agent]
) -> tuple[BudgetPolicy, list[Finding]]:
    """Return the budgets of a bundle (policies/budgets/data.yaml), and what is wrong with them."""
    from vedette.policy.bundle_data import mount

    file = "budgets/data.yaml"
    try:
        found = parse_budgets(mount(files).get("budgets"))
    except ValueError as error:
        return BudgetPolicy(), [Finding(file, 1, str(error), "see docs/design/budgets.md")]
    return found, [
        Finding(file, 1, f"{agent.name}: {gap}", "mend its agent.yaml, or the limits here")
        for agent in agents.values()
        if (gap := find_budget_gap(found, agent)) is not None
    ]
