"""Which engine decides, and by which Wasm: from the record, the installation or an opa."""

from __future__ import annotations

import asyncio
import base64
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.opa import find_opa
from tests.questions import BUNDLE
from tests.store_parts import store_of
from tools.policy_wasm import compile_rules, digest, rules

from vedette.adapters.bundles import PUBLIC_FILE, unpack
from vedette.adapters.bundles.tar import read_tar
from vedette.adapters.ledger_export import checkpoint_size_before, write_segment
from vedette.adapters.policy_engines import opa_wasm
from vedette.adapters.policy_engines.opa_wasm import (
    WasmEngine,
    WasmRepository,
    WasmStage,
    compile_wasm,
    repository,
)
from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.app.policy_engines import build_other_engine, engine_reason, policy_stage, wasm_maker
from vedette.config.deployment import Deployment, PolicyPlan
from vedette.domain.base.canonical import sha256_hex
from vedette.domain.base.errors import BadPolicy
from vedette.domain.bundle import Bundle, Finding
from vedette.domain.policy_wasm import PolicyWasm
from vedette.domain.ports.policy_engine import PolicyEngine, PolicyStage
from vedette.policy.bundle_data import mount
from vedette.policy.golden_requests import forbidden_requests, golden_requests
from vedette.policy.replay import replay
from vedette.store import retention
from vedette.store.sqlite import SqliteReader
from vedette.testing.harness import TESTER, FleetHarness, TrustingStage, copy_policies
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet, wait_until

ROOT = Path(__file__).parents[4]
GATEWAY = "vedette/gateway/decide.rego"


@pytest.fixture(scope="module")
def opa() -> str:
    return find_opa()


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An installation without opa and without anything shipped; the folder for what is."""
    monkeypatch.setattr(opa_wasm, "find_opa", lambda root: None)
    monkeypatch.setattr(repository, "SHIPPED_FOLDER", tmp_path / "shipped")
    (tmp_path / "shipped").mkdir()
    return tmp_path / "shipped"


@pytest.fixture
def with_opa(monkeypatch: pytest.MonkeyPatch, opa: str, nowhere: Path) -> str:
    monkeypatch.setattr(opa_wasm, "find_opa", lambda root: opa)
    return opa


def bundle(rules: str) -> Bundle:
    return Bundle.of({GATEWAY: f"package vedette.gateway\n\n{rules}\n".encode()})


class BranchStage(TrustingStage):
    """A stage that knows the questions it was given as those of any bundle's branches."""

    def __init__(self, asked: Sequence[tuple[str, object]] = ()) -> None:
        self._asked = asked

    async def try_rules(self, bundle: Bundle) -> list[Finding]:
        return await self.try_out(bundle)

    def branch_requests(self, bundle: Bundle) -> list[tuple[str, object]]:
        return list(self._asked)


def stage_of(
    opa: str | None,
    *,
    required: bool = False,
    asked: Sequence[tuple[str, object]] = (),
    within: PolicyStage | None = None,
) -> WasmStage:
    return WasmStage(
        within or BranchStage(asked),
        WasmRepository(opa),
        required=required,
    )


# --- which engine ---------------------------------------------------------------------------------


def test_without_opa_and_wasm_the_embedded_engine_decides_and_it_is_told(nowhere: Path) -> None:
    stage = stage_of(None)
    assert isinstance(stage.load(BUNDLE), RegorusEngine)
    assert "no opa is here" in engine_reason(stage)
    assert build_other_engine(stage, BUNDLE) is None
    with pytest.raises(BadPolicy, match="no opa is here") as refused:
        stage_of(None, required=True).load(BUNDLE)
    assert refused.value.mend
    assert build_other_engine(TrustingStage(), BUNDLE) is None


def test_the_shipped_wasm_decides_whatever_the_grants_say(opa: str, nowhere: Path) -> None:
    raw = compile_wasm(opa, BUNDLE)
    (nowhere / f"{BUNDLE.rules_digest}.wasm").write_bytes(raw)
    stage = stage_of(None)
    assert isinstance(stage.load(BUNDLE), WasmEngine)
    assert "shipped" in engine_reason(stage)
    grants = BUNDLE.files["grants/data.yaml"]
    other = Bundle.of({**BUNDLE.files, "grants/data.yaml": grants.replace(b"  mode: act\n", b"")})
    assert isinstance(stage.load(other), WasmEngine)
    assert isinstance(build_other_engine(stage, other), RegorusEngine)
    ruled = Bundle.of({**BUNDLE.files, "vedette/more.rego": b"package vedette.more\n\none := 1\n"})
    assert isinstance(stage.load(ruled), RegorusEngine)


def test_what_the_wheel_carries_is_what_the_engine_looks_for(opa: str) -> None:
    """tools/policy_wasm.py knows nothing of this package, so that a wheel can be built alone."""
    modules = rules(ROOT / "policies")
    assert digest(modules) == BUNDLE.rules_digest
    assert compile_rules(opa, modules) == compile_wasm(opa, BUNDLE)


def test_the_rules_name_the_wasm_and_nothing_else_does() -> None:
    data = Bundle.of({**BUNDLE.files, "grants/data.yaml": b"{}"})
    tests = Bundle.of({**BUNDLE.files, "vedette/more_test.rego": b"package vedette.more_test\n"})
    assert BUNDLE.rules_digest == data.rules_digest == tests.rules_digest
    path = next(iter(BUNDLE.modules()))
    for files in (
        {path: BUNDLE.files[path] + b"\n"},
        {"vedette/more.rego": b"package vedette.more\n"},
    ):
        assert Bundle.of({**BUNDLE.files, **files}).rules_digest != BUNDLE.rules_digest


@pytest.mark.parametrize(("engine", "kind"), [("auto", WasmStage), ("wasm", WasmStage)])
def test_the_settings_name_the_engine(
    engine: str, kind: type, tmp_path: Path, with_opa: str
) -> None:
    harness = FleetHarness(tmp_path)
    from vedette.config.settings import Settings

    settings = Settings.of(harness.content, "harbour")
    assert settings.deployment.policy.engine == "auto"
    settings = _with(settings, engine)
    assert isinstance(policy_stage(settings, TrustingStage(), _metrics()), kind)
    within = TrustingStage()
    assert policy_stage(_with(settings, "embedded"), within, _metrics()) is within


async def test_wasm_that_lacks_an_added_rule_is_found_before_it_decides(
    tmp_path: Path, opa: str, nowhere: Path
) -> None:
    """The question that shows it is drawn from the rule: no grant speaks of it."""
    from vedette.adapters.policy_engines.regorus.stage import SubprocessStage
    from vedette.config.settings import Settings

    deny = b'package vedette.denies\n\ndeny contains "denies.night" if input.now == 7\n'
    added = Bundle.of({**BUNDLE.files, "vedette/denies/night.rego": deny})
    settings = _with(Settings.of(FleetHarness(tmp_path).content, "harbour"), "wasm")
    stage = policy_stage(settings, SubprocessStage(), _metrics())
    (nowhere / f"{added.rules_digest}.wasm").write_bytes(compile_wasm(opa, BUNDLE))
    (found,) = await stage.try_out(added)
    assert "the engines differ on" in found.what
    assert "night.rego" in found.what
    (nowhere / f"{BUNDLE.rules_digest}.wasm").write_bytes(compile_wasm(opa, BUNDLE))
    assert await policy_stage(settings, SubprocessStage(), _metrics()).try_out(BUNDLE) == []


def _with(settings: Any, engine: str) -> Any:
    from msgspec.structs import replace

    return replace(settings, deployment=Deployment(policy=PolicyPlan(engine=engine)))


def _metrics() -> Any:
    from vedette.adapters.telemetry.prometheus import PrometheusMetrics

    return PrometheusMetrics()


# --- trying out -----------------------------------------------------------------------------------


async def test_what_opa_refuses_is_a_finding_with_its_place(opa: str) -> None:
    stage = stage_of(opa)
    found = await stage.try_out(bundle("decision := nothing_of_that_name"))
    assert [(each.file, each.line) for each in found] == [(GATEWAY, 3)]
    found = await stage.try_out(bundle('decision := sprintf("%v", [input.x])'))
    assert "sprintf" in found[0].what


async def test_what_the_stage_within_refuses_is_refused(opa: str) -> None:
    class Refusing(TrustingStage):
        async def try_out(self, bundle: Bundle) -> list[Finding]:
            return [Finding("a.rego", 1, "no")]

    stage = stage_of(opa, within=Refusing())
    assert [each.what for each in await stage.try_out(BUNDLE)] == ["no"]


async def test_evaluators_are_compared_within_unless_the_rules_were_shipped(
    nowhere: Path, opa: str
) -> None:
    """Else a bundle could go live that the engine within decides alone and nobody compared."""
    requests: list[str] = []
    held = bundle("decision := 1")
    shipped = nowhere / f"{held.rules_digest}.wasm"

    class Within(BranchStage):
        gone = False

        async def try_out(self, bundle: Bundle) -> list[Finding]:
            requests.append("compared")
            return [Finding("a.rego", 1, "no")]

        async def try_rules(self, bundle: Bundle) -> list[Finding]:
            requests.append("rules")
            return []

    assert await stage_of(None, within=Within()).try_out(held)
    stage = stage_of(opa, within=Within())
    for _ in range(2):  # what was compiled for a bundle that was refused is no reason to spare it
        assert await stage.try_out(held)
    shipped.write_bytes(compile_wasm(opa, held))
    assert await stage_of(None, within=Within()).try_out(held) == []
    assert requests == ["compared", "compared", "compared", "rules"]


async def test_a_shipped_wasm_that_goes_during_the_trial_spares_nothing(
    nowhere: Path, opa: str
) -> None:
    held = bundle("decision := 1")
    shipped = nowhere / f"{held.rules_digest}.wasm"
    shipped.write_bytes(compile_wasm(opa, held))

    class Within(TrustingStage):
        async def try_out(self, bundle: Bundle) -> list[Finding]:
            return [Finding("a.rego", 1, "no")]

        async def try_rules(self, bundle: Bundle) -> list[Finding]:
            return []

    stage = stage_of(None, within=Within())
    stage._repository.find = lambda bundle: None  # type: ignore[method-assign]
    assert [found.what for found in await stage.try_out(held)] == ["no"]


async def test_an_engine_that_fails_on_what_is_granted_is_found(opa: str) -> None:
    """Both fail alike, so they do not differ; but nothing that the bundle grants could be done."""
    two = bundle("decision := 1 if input.now > 1\n\ndecision := 2 if input.now > 1")
    granted = Bundle.of(
        {**two.files, "grants/data.json": b'{"sorter": {"tools": {"mail.file": {}}}}'}
    )
    found = (await stage_of(opa).try_out(granted))[0]
    assert found.what.startswith("an engine fails on 'sorter mail.file', which is granted: deny")
    assert "deny by engine.error as OPA compiles it" in found.what
    assert await stage_of(opa, asked=[("a branch", {"now": 2})]).try_out(two) == []


async def test_a_bundle_whose_wasm_permits_what_must_be_denied_is_refused(opa: str) -> None:
    free = bundle(
        'decision := {"schema": "vedette.decision/1", "outcome": "permit", "rule": "all", '
        '"reasons": [], "wait": null, "until": 0, "would": null, "obligations": []}'
    )
    (found,) = await stage_of(opa).try_out(free)
    assert found.what == "an empty question is not denied but permit by all"
    assert await stage_of(opa).try_out(BUNDLE) == []


async def test_what_was_tried_out_is_compiled_once(opa: str) -> None:
    stage = stage_of(opa)
    held = bundle("decision := 1")
    assert await stage.try_out(held) == []
    stage._repository.opa = "/nowhere/opa"
    for _ in range(2):
        engine = stage.load(held)
        assert isinstance(engine, WasmEngine)
        assert engine.decide(b"{}") == 1
    with pytest.raises(BadPolicy, match="opa check did not end well"):
        stage.load(bundle("decision := 2"))


async def test_engines_that_differ_on_the_bundle_s_own_questions_are_found(opa: str) -> None:
    """A planted difference: the engine within says another thing on one question."""

    class Planted(BranchStage):
        def load(self, bundle: Bundle) -> PolicyEngine:
            engine = super().load(bundle)

            class Other:
                name, digest = engine.name, engine.digest

                def decide(self, question: bytes) -> object:
                    answer: Any = engine.decide(question)
                    if b"nothing/at-all" in question:
                        return {**answer, "reasons": [*answer["reasons"], "planted"]}
                    return answer

            return Other()

    data = mount(BUNDLE.files)
    questions = [*golden_requests(data), *forbidden_requests(data)]
    odd = ("odd", {**questions[0][1], "schema": "nothing/at-all"})

    def stage(*more: tuple[str, object]) -> WasmStage:
        return stage_of(opa, within=Planted([*questions, *more]))

    assert await stage().try_out(BUNDLE) == []
    found = await stage(odd).try_out(BUNDLE)
    assert len(found) == 1
    assert "the engines differ on 'odd'" in found[0].what


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


async def test_what_another_worker_published_is_compiled_beside_the_event_loop(
    opa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler here ends only when the event loop has done something meanwhile."""
    monkeypatch.setattr(sys.modules[compile_wasm.__module__], "DEADLINE_S", 10.0)
    began, go = tmp_path / "began", tmp_path / "go"
    slow = f'touch {began}; while [ ! -e {go} ]; do sleep 0.02; done; exec {opa} "$@"'
    async with toy_fleet(tmp_path / "fleet", World()) as fleet:
        rollout = fleet.app.rollout
        rollout.stage = stage_of(script(tmp_path / "opa", slow))
        files = fleet.app.store.policy.bundle_files(rollout.live.digest)
        assert files is not None
        held = Bundle.of({**files, "vedette/more.rego": b"package vedette.more\n\none := 1\n"})
        number = rollout.live.number + 1
        following = asyncio.create_task(rollout.follow_revision(held, number))
        await wait_until(began.exists)
        assert rollout.live.number == number - 1
        go.touch()
        await asyncio.wait_for(following, 30)
        assert (rollout.live.number, rollout.live.digest) == (number, held.digest)
        assert fleet.app.services.gateway.policy_rev == number


# --- fleets ---------------------------------------------------------------------------------------


def harness(folder: Path, policies: Path | None = None, engine: str = "auto") -> FleetHarness:
    edges = Deployment(policy=PolicyPlan(engine=engine, bundles=str(folder / "shelf")))
    return FleetHarness(folder, policies=policies, edges=edges)


async def test_a_fleet_decides_by_wasm_and_both_engines_replay_it(
    tmp_path: Path, with_opa: str
) -> None:
    world = World()
    async with toy_fleet(tmp_path, world, edges=Deployment(policy=PolicyPlan())) as fleet:
        await fleet.send(job("1", send_proposal("hello")))
        await fleet.wait_until_idle()
        assert world.texts() == ["hello"]
        (decided,) = fleet.entries("action.decided")
        assert decided["engine"].startswith("opa wasm/")
        assert decided["bundle"] == fleet.app.rollout.live.digest
        store = fleet.app.store
        for maker in (RegorusEngine, wasm_maker(fleet.app.settings, store)):
            report = replay(store, maker)
            assert report.ok
            assert report.agreed >= 1


async def test_the_wasm_is_published_with_the_bundle_and_travels_in_its_archive(
    tmp_path: Path, with_opa: str
) -> None:
    async with harness(tmp_path) as fleet:
        (entry,) = fleet.entries("policy.published")
        raw = compile_wasm(with_opa, BUNDLE)
        assert entry["engine"].startswith("opa wasm/")
        assert entry["wasm"] == sha256_hex(raw)
        assert entry["bundle"] == BUNDLE.digest
        shelved = (tmp_path / "shelf/harbour.tar.gz").read_bytes()
        held, manifest = unpack(shelved, (tmp_path / "state" / PUBLIC_FILE).read_bytes())
        assert (held, manifest.wasm) == (BUNDLE, entry["wasm"])
        assert read_tar(shelved)["policy.wasm.txt"] == raw


async def test_restarts_and_other_workers_need_no_opa(
    tmp_path: Path, with_opa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = copy_policies(tmp_path / "policies")
    (policies / "vedette/more.rego").write_text("package vedette.more\n\none := 1\n")
    async with harness(tmp_path, policies) as fleet:
        published = fleet.entries("policy.published")[-1]
    monkeypatch.setattr(opa_wasm, "find_opa", lambda root: None)
    async with harness(tmp_path, policies) as fleet:
        app = fleet.app
        assert app.services.gateway.engine.name.startswith("opa wasm/")
        assert "published" in app.rollout.engine_reason
        files = app.store.policy.bundle_files(published["bundle"])
        assert files is not None
        assert wasm_maker(app.settings, app.store)(Bundle.of(files)).decide(b"{}")
        # A change of data needs nobody to compile; a change of rules does.
        grants = policies / "grants/data.yaml"
        grants.write_text(grants.read_text() + "# another\n")
        done = await app.commands.policy_apply(fleet.order("data"), policies)
        assert done["ok"]
        assert fleet.entries("policy.published")[-1]["wasm"] == published["wasm"]
        assert app.services.gateway.engine.name.startswith("opa wasm/")
        (policies / "vedette/more.rego").write_text("package vedette.more\n\ntwo := 2\n")
        done = await fleet.submit_confirmed("policy_apply", reason="rules", folder=str(policies))
        assert done["ok"]
        last = fleet.entries("policy.published")[-1]
        assert "wasm" not in last
        assert last["engine"].startswith("regorus")
        assert "no opa is here" in app.rollout.engine_reason
        # What an older revision was published with is there for a rollback.
        number = published["policy_rev"]
        back = await fleet.submit_confirmed("policy_rollback", reason="back", number=number)
        assert back["ok"]
        assert fleet.entries("policy.published")[-1]["wasm"] == published["wasm"]


async def test_a_bundle_that_does_not_go_live_is_not_why_the_live_one_decides(
    tmp_path: Path, with_opa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changed rules, found at a start and at a publication that nobody confirms; no opa is here."""
    policies = copy_policies(tmp_path / "policies")
    async with harness(tmp_path, policies) as fleet:
        number = fleet.app.rollout.live.number
    monkeypatch.setattr(opa_wasm, "find_opa", lambda root: None)
    (policies / "vedette/more.rego").write_text("package vedette.more\n\none := 1\n")
    async with harness(tmp_path, policies) as fleet:
        app = fleet.app
        done = await app.commands.policy_apply(fleet.order("not confirmed"), policies)
        assert not done["ok"]
        assert app.rollout.live.number == number
        assert app.services.gateway.engine.name.startswith("opa wasm/")
        assert "published" in app.rollout.engine_reason
        assert not any("the embedded engine decides" in message for message in app.troubles)


async def archived(fleet: FleetHarness, folder: Path) -> None:
    """Archive all that can be, as the verb does."""
    state = fleet.folder / "state"
    reading = SqliteReader(state)
    size = checkpoint_size_before(
        reading.ledger, fleet.app.services.clock.now_us() + 1, reading.ledger.first_open_entry()
    )
    made = write_segment(reading.ledger, folder, size, (state / "ledger.pub").read_text().strip())
    reading.close()
    upkeep = fleet.app.commands.maintenance
    assert upkeep is not None
    await upkeep.prune_archived(TESTER, "old", made)


async def test_which_wasm_decides_is_signed_after_its_publication_was_archived(
    tmp_path: Path, with_opa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice, as an archiving takes the entry of the one before; nothing unsigned is believed."""
    deny = 'package vedette.denies\n\ndeny contains "denies.x" if input.now == 7\n'
    policies = copy_policies(tmp_path / "policies", {"vedette/denies/x.rego": deny})
    async with harness(tmp_path, policies) as fleet:
        (published,) = fleet.entries("policy.published")
        live = Bundle.of(fleet.app.store.policy.bundle_files(published["bundle"]) or {})
        for at in ("first", "second"):
            await archived(fleet, tmp_path / at)
        assert fleet.entries("policy.published") == []
        (entry,) = fleet.entries("ledger.archived")
        assert entry["wasm"] == {published["bundle"]: published["wasm"]}
        store = fleet.app.store
        assert list(store.ledger.row_mismatches()) == []
        # Whoever can write to the store plants a Wasm that permits all, under every name there was.
        planted = PolicyWasm.of(live, compile_wasm(with_opa, bundle(PERMISSIVE)), "planted")
        for name, value in planted.to_meta().items():
            await store.commands.set_meta(name, value)
        await store.commands.set_meta(f"policy_wasm_of:{published['bundle']}", planted.digest)
    monkeypatch.setattr(opa_wasm, "find_opa", lambda root: None)
    async with harness(tmp_path, policies) as fleet:
        assert fleet.app.services.gateway.engine.name.startswith("opa wasm/")
        assert "published" in fleet.app.rollout.engine_reason
        assert fleet.app.store.policy.published_wasm(published["bundle"]) == published["wasm"]
        wasm = fleet.app.store.meta(f"policy_wasm:{published['wasm']}")
        await fleet.app.store.commands.set_meta(
            f"policy_wasm:{published['wasm']}", _other(planted.raw)
        )
        (odd,) = fleet.app.store.ledger.row_mismatches()
        assert (odd.table, odd.row, odd.column) == (
            "meta", f"policy_wasm:{published['wasm'][:12]}", "value",
        )  # fmt: skip
        assert (odd.actual, odd.expected) == (planted.digest, published["wasm"])
        assert wasm is not None
    with pytest.raises(BadPolicy, match="not the one that was published"):
        await harness(tmp_path, policies).open()


PERMISSIVE = """decision := {
	"schema": "vedette.decision/1", "outcome": "permit", "rule": "all", "reasons": [],
	"wait": null, "until": 0, "would": null, "obligations": [],
}"""
# Denies the empty question, and permits whoever calls themselves what they like.
ANYBODY = f'{PERMISSIVE} if input.schema == "vedette.question/2"'


@pytest.mark.parametrize("rules", [PERMISSIVE, ANYBODY])
async def test_wasm_that_permits_what_must_be_denied_is_not_loaded(
    opa: str, nowhere: Path, tmp_path: Path, rules: str
) -> None:
    """Under the shipped rules' own name, where no record and no trial would find it."""
    from vedette.config.settings import Settings

    settings = _with(Settings.of(FleetHarness(tmp_path).content, "harbour"), "wasm")
    shipped = nowhere / f"{BUNDLE.rules_digest}.wasm"
    shipped.write_bytes(compile_wasm(opa, bundle(rules)))
    with pytest.raises(BadPolicy, match="is not denied but permit"):
        policy_stage(settings, TrustingStage(), _metrics()).load(BUNDLE)
    shipped.write_bytes(compile_wasm(opa, BUNDLE))
    policy_stage(settings, TrustingStage(), _metrics()).load(BUNDLE)


def _other(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw)).decode()


@pytest.mark.parametrize(
    "planted", ["", "no base64 !", _other(b"\0asm\1\0\0\0"), base64.b64encode(b"x").decode()]
)
async def test_wasm_in_the_store_that_was_not_published_decides_nothing(
    tmp_path: Path, with_opa: str, planted: str
) -> None:
    async with harness(tmp_path) as fleet:
        (entry,) = fleet.entries("policy.published")
        store = fleet.app.store
        assert store.meta(f"policy_wasm:{entry['wasm']}")
        await store.commands.set_meta(f"policy_wasm:{entry['wasm']}", planted)
    with pytest.raises(BadPolicy, match="not the one that was published"):
        await harness(tmp_path).open()
    async with harness(tmp_path, engine="embedded") as fleet:
        assert fleet.app.services.gateway.engine.name.startswith("regorus")


async def test_wasm_that_was_published_and_is_gone_is_not_replaced_by_another(
    tmp_path: Path, with_opa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Record:
        def meta(self, name: str) -> str | None:
            return None

        def published_wasm(self, digest: str) -> str | None:
            return named

    named = sha256_hex(compile_wasm(with_opa, BUNDLE))
    recalled = WasmRepository(with_opa, store_of(Record()))
    recalled.load_recorded(BUNDLE)
    found = recalled.find(BUNDLE)
    assert isinstance(found, PolicyWasm)
    assert found.digest == named
    for opa, says in ((None, named), (with_opa, "0" * 64)):
        named = says
        recalled = WasmRepository(opa, store_of(Record()))
        recalled.load_recorded(BUNDLE)
        with pytest.raises(BadPolicy, match="is not in the store"):
            recalled.find(BUNDLE)


async def test_wasm_that_no_entry_names_goes_with_the_last_of_what_was_archived(
    tmp_path: Path, with_opa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is live, and what the archiving names, stays; an older one could not be found anyway."""
    monkeypatch.setattr(retention, "BUNDLES", 1)
    deny = 'package vedette.denies\n\ndeny contains "denies.x" if input.now == {}\n'
    policies = copy_policies(tmp_path / "policies", {"vedette/denies/x.rego": deny.format(7)})
    async with harness(tmp_path, policies) as fleet:
        (policies / "vedette/denies/x.rego").write_text(deny.format(8))
        assert (await fleet.apply_policy(policies))["ok"]
        older, live = [entry["wasm"] for entry in fleet.entries("policy.published")]
        store = fleet.app.store

        def kept() -> set[str]:
            return {wasm for wasm in (older, live) if store.meta(f"policy_wasm:{wasm}")}

        assert kept() == {older, live}
        await archived(fleet, tmp_path / "first")
        (entry,) = fleet.entries("ledger.archived")
        assert set(entry["wasm"].values()) == {live}
        assert kept() == {live}
        assert list(store.ledger.row_mismatches()) == []
        await archived(fleet, tmp_path / "second")
        assert kept() == {live}
        assert list(store.ledger.row_mismatches()) == []
    async with harness(tmp_path, policies) as fleet:
        assert "published" in fleet.app.rollout.engine_reason
