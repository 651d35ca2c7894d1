"""The shipped policy folder, by the real opa and by our own staging; and broken folders."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.opa import find_opa

from vedette.adapters.policy_engines.regorus import stage as policy_stage
from vedette.adapters.policy_engines.regorus.stage import SubprocessStage, read_bundle
from vedette.domain.artefact import ARTEFACT_TOOLS
from vedette.domain.base.errors import BadPolicy
from vedette.domain.bundle import Bundle, Finding
from vedette.domain.work_tools import WAIT_TOOL, WORK_TOOLS
from vedette.policy.bundle_data import mount, read_data

ROOT = Path(__file__).parents[2]
POLICIES = ROOT / "policies"


@pytest.fixture(scope="module")
def opa() -> str:
    return find_opa()


@pytest.fixture(scope="module")
def shipped() -> dict[str, bytes]:
    return dict(read_bundle(POLICIES).files)


def run(opa: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([opa, *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "arguments",
    [("fmt", "--fail", "--diff"), ("check", "--strict", "--bundle"), ("test", "--bundle")],
    ids=lambda arguments: arguments[0],
)
def test_opa_passes(opa: str, arguments: tuple[str, ...]) -> None:
    answer = run(opa, *arguments, str(POLICIES))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    if arguments[0] == "test":
        assert "PASS: " in answer.stdout
        assert "PASS: 0/" not in answer.stdout


def test_opa_reads_the_same_data(opa: str, shipped: dict[str, bytes]) -> None:
    import orjson

    answer = run(opa, "eval", "--bundle", str(POLICIES), "--format", "raw", "data")
    found = orjson.loads(answer.stdout)
    assert {name: part for name, part in found.items() if name != "vedette"} == mount(shipped)


async def test_stage_admits_the_shipped_policy(shipped: dict[str, bytes]) -> None:
    bundle = Bundle.of(shipped)
    assert await SubprocessStage().try_out(bundle) == []
    engine = SubprocessStage().load(bundle)
    assert engine.digest == bundle.digest
    assert engine.name.startswith("regorus/")


def test_policy_grants_what_the_shipped_agents_request(shipped: dict[str, bytes]) -> None:
    """Every tool, its verb, resource and sinks, the scopes, the owner: both sides say the same."""
    from ruamel.yaml import YAML

    data = mount(shipped)
    folders = sorted((ROOT / "agents").glob("*/agent.yaml"))
    assert {path.parent.name for path in folders} == set(data["grants"])
    for path in folders:
        agent = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
        grant = data["grants"][agent["name"]]
        assert grant["owner"] == agent["owner"]
        requested = {f"{m['bank']}/{m['scope']}" for m in agent["memory"]}
        if any(trigger.get("data", {}).get("gather") for trigger in agent["triggers"]):
            requested.add("ledger/outcomes")
        assert set(grant["memory"]) == requested
        own = {**(WORK_TOOLS if "work" in agent else {}),
               **(ARTEFACT_TOOLS if agent.get("artefacts") else {})}  # fmt: skip
        if "waits_for" not in agent.get("work", {}):
            own.pop(WAIT_TOOL, None)
        for name, tool in own.items():
            granted = {"verb": tool.verb, "resource": tool.resource, "impact": "low"}
            assert grant["tools"][name] == granted
        assert set(grant["tools"]) == {*own, *(tool["name"] for tool in agent["tools"])}
        for tool in agent["tools"]:
            given = grant["tools"][tool["name"]]
            impact = "high" if tool.get("high_impact") else "low"
            assert given == {"verb": tool["verb"], "resource": tool["resource"], "impact": impact}
            assert set(data["sinks"]["tools"][tool["name"]]) == set(tool["sinks"])


DENIES = "vedette/denies/denies.rego"
LIMITS = "limits/data.yaml"


def with_lines(text: str) -> tuple[str, int]:
    """Return the shipped denies module with `text` added, and the line that `text` begins at."""
    before = (POLICIES / DENIES).read_text(encoding="utf-8")
    return before + "\n" + text + "\n", before.count("\n") + 2


# What is added to a shipped module, how many lines below its beginning, and words of the finding.
BROKEN: dict[str, tuple[str, int, str]] = {
    "does not compile": ("deny contains {", 0, "expecting"),
    "half-written": ('deny contains "x" if {\n\tinput.action.tool == ', 2, "error|expecting"),
    "unsafe variable": ("other if nobody == 1", 0, "nobody"),
    "unknown function": ("other if frobnicate(input.action.tool)", 0, "frobnicate"),
    "recursion": ("one if two\n\ntwo if three\n\nthree if one", 0, "recursion"),
    "recursive function": ("one(x) if two(x)\n\ntwo(x) if one(x)", 0, "recursion"),
    "recursion through packages": (
        'deny contains "x" if data.vedette.gateway.permitted',
        0,
        "recursion",
    ),
    "data that does not exist": ("other if not data.fleet.agnets", 0, "data.fleet.agnets"),
    "rule that does not exist": ("other if not data.vedette.grant.okay", 0, "okay"),
    "data without that key": ("other if data.limits.hop > 1", 0, "'hop'"),
    "default function": ("default mild(_) := true\n\nmild(x) if x > 1", 0, "default function"),
    "negated input": ("other if not input.context.stopped", 0, "`not`"),
    "negated comparison": ("other if not input.now > 3", 0, "`not`"),
    "negated brackets": ("other if not data.grants[input.subject.agent]", 0, "`not`"),
    "with": ("other if data.vedette.grant.listed with input as {}", 0, "`with`"),
    "reference head": ("other.deep := 1", 0, "reference as its head"),
    "partial object": ("other[tool] := 1 if some tool in data.denies.tools", 0, "reference"),
    "walk": ("other if walk(input, [[], 1])", 0, "walk"),
    "clock": ("other if time.now_ns() > 1", 0, "time.now_ns"),
    "network": ('other := http.send({"method": "GET", "url": "x"})', 0, "http.send"),
    "chance": ('other := rand.intn("a", 5)', 0, "rand.intn"),
    "environment": ("other := opa.runtime()", 0, "opa.runtime"),
    "fraction": ("other := 0.5", 0, "0.5"),
    "division": ("other := input.now / 3", 0, "division"),
    "all of data": ("other := data", 0, "`data`"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_broken_module_is_refused_with_file_and_line(
    shipped: dict[str, bytes], name: str
) -> None:
    added, below, words = BROKEN[name]
    text, line = with_lines(added)
    findings = await SubprocessStage().try_out(Bundle.of({**shipped, DENIES: text.encode()}))
    assert findings, "the bundle was admitted"
    places = {(each.file, each.line) for each in findings}
    if name != "recursion through packages":  # the circle may be told from either end
        assert any(file == DENIES and line <= at <= line + below + 1 for file, at in places)
    assert any(word in str(each) for each in findings for word in words.split("|")), findings


async def refused(files: Mapping[str, bytes]) -> list[Finding]:
    findings = await SubprocessStage().try_out(Bundle.of(files))
    assert findings, "the bundle was admitted"
    assert all(each.file and each.line > 0 for each in findings)
    return findings


async def test_missing_proof_is_refused(shipped: dict[str, bytes]) -> None:
    for proof in ("identity", "grant", "origins", "secrecy", "limits", "done", "holds"):
        files = {p: raw for p, raw in shipped.items() if not p.startswith(f"vedette/{proof}/")}
        found = await refused(files)
        assert any(f"vedette.{proof}" in each.what for each in found)


async def test_failing_test_is_refused_with_its_line(shipped: dict[str, bytes]) -> None:
    path = "vedette/denies/denies_test.rego"
    text = (
        shipped[path].decode() + "\ntest_wrong if denies.ok with input as 1 with data.denies as 2\n"
    )
    found = await refused({**shipped, path: text.encode()})
    assert found == [Finding(path, text.count("\n"), "test_wrong failed: it is undefined", "")]


async def test_missing_tests_are_refused(shipped: dict[str, bytes]) -> None:
    path = "vedette/limits/limits_test.rego"
    found = await refused({name: raw for name, raw in shipped.items() if name != path})
    assert [(each.file, each.line) for each in found] == [("vedette/limits/limits.rego", 1)]


async def test_policy_that_permits_everybody_is_refused(shipped: dict[str, bytes]) -> None:
    path = "vedette/gateway/decide.rego"
    text = shipped[path].decode()
    start = text.index("decision := ")
    careless = text[:start] + (
        'decision := {"schema": "vedette.decision/1", "outcome": "permit", "rule": "x",\n'
        '"reasons": [], "wait": null, "until": 0, "would": null, "obligations": []}\n'
    )
    files = {**shipped, path: careless.encode()}
    files["vedette/gateway/decide_test.rego"] = (
        b"package vedette.gateway_test\n\ntest_none if true\n"
    )
    found = await refused(files)
    assert any("an unknown agent is not denied" in each.what for each in found)


async def test_deny_in_a_file_of_tests_is_refused(shipped: dict[str, bytes]) -> None:
    """It would never decide, though its own test passes."""
    text = """package vedette.denies

deny contains "denies.secret" if input.resource.id == "Secret"

test_secret_is_denied if "denies.secret" in deny with input as {"resource": {"id": "Secret"}}
"""
    path = "vedette/denies/secret_test.rego"
    found = await refused({**shipped, path: text.encode()})
    assert [(each.file, each.line) for each in found] == [(path, 1)]
    assert "whose rules decide" in found[0].what


async def test_default_function_that_hides_a_deny_is_what_the_profile_is_for() -> None:
    """Control: without the profile the compiled program drops the rule without a word."""
    import regorus

    text = "package t\n\ndefault bad(_) := true\n\nbad(x) := false if x == 1\n\ndeny if bad(2)\n"
    program = regorus.Program.compile_from_modules("{}", [("t.rego", text)], ["data.t.deny"])
    vm = regorus.Rvm()
    vm.load_program(program)
    vm.set_input_json("{}")
    assert vm.execute_entry_point("data.t.deny") == '"<undefined>"'


async def test_manifest_is_required(shipped: dict[str, bytes]) -> None:
    found = await refused({path: raw for path, raw in shipped.items() if path != ".manifest"})
    assert found[0].file == ".manifest"
    found = await refused({**shipped, ".manifest": b'{"roots": ["vedette"], "rego_version": 1}'})
    assert any("no root covers grants/" in each.what for each in found)


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ("hops: 9", "duplicate key"),
        ("night: yes", "different things"),
        ("often: 010", "different things"),
        ("at: 1:30", "different things"),
        ("part: 0.5", "different things"),
        ("much: 90071992547409920", "safe integers"),
        ("shared: &a [1]", "anchors"),
        ("odd: !!set {a}", "tag"),
        ("1: one", "not a text"),
        ("broken: [", "expected"),
        ("none: ~", "different things"),
    ],
)
async def test_loose_data_is_refused_with_file_and_line(
    shipped: dict[str, bytes], added: str, words: str
) -> None:
    text = shipped[LIMITS].decode() + added + "\n"
    found = await refused({**shipped, LIMITS: text.encode()})
    assert found[0].file == LIMITS
    assert found[0].line in (text.count("\n"), text.count("\n") + 1)
    assert words in found[0].what


def test_json_data_is_read_as_strictly() -> None:
    assert read_data("a/data.json", b'{"a": [1, true, null, "\\u00e9"]}') == {
        "a": [1, True, None, "é"]
    }
    for raw, words in (
        (b'{"a": 1,\n "a": 2}', "data.json:2: duplicate key"),
        (b'{"a": 1.5}', "data.json:1: 1.5 is not"),
        (b'{"a": 1e3}', "not a safe integer"),
        (b'{"a": NaN}', "not a safe integer"),
        (b'{"a":\n\n}', "data.json:3"),
        (b"[1]", "holds an object"),
        (b"\xff", "not UTF-8"),
    ):
        with pytest.raises(BadPolicy, match="(?s)" + words.replace(".", r"\.")):
            read_data("a/data.json", raw)


def test_two_files_of_one_path_are_refused() -> None:
    with pytest.raises(BadPolicy, match="by another data file"):
        mount({"a/data.json": b'{"b": 1}', "data.yaml": b"a: {b: 2}\n"})


# --- reading a folder -------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(POLICIES, tmp_path / "policies"))


def test_what_editors_leave_is_passed_over(folder: Path) -> None:
    before = read_bundle(folder)
    (folder / "vedette/grant/.#grant.rego").symlink_to("ada@harbour.4242:1795257600")
    (folder / "vedette/grant/#grant.rego#").write_text("half")
    (folder / "vedette/grant/grant.rego~").write_text("half")
    (folder / "vedette/grant/.grant.rego.swp").write_bytes(b"\0")
    (folder / "vedette/grant/4913").write_text("")
    (folder / "README.md").write_text("words")
    (folder / ".git").mkdir()
    (folder / ".git/data.yaml").write_text("x: 1\n")
    after = read_bundle(folder)
    assert after.digest == before.digest
    assert after.files.keys() == before.files.keys()


def test_every_taken_byte_counts(folder: Path) -> None:
    before = read_bundle(folder)
    path = folder / "vedette/grant/grant.rego"
    path.write_text(path.read_text() + "\n")
    assert read_bundle(folder).digest != before.digest


def test_link_that_leads_out_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.rego").write_text("package vedette.denies\n")
    (folder / "vedette/denies/more.rego").symlink_to(tmp_path / "outside.rego")
    with pytest.raises(BadPolicy, match=r"vedette/denies/more\.rego:1: a link leads out"):
        read_bundle(folder)


def test_link_that_leads_nowhere_is_refused(folder: Path) -> None:
    (folder / "vedette/denies/more.rego").symlink_to(folder / "gone.rego")
    with pytest.raises(BadPolicy, match=r"vedette/denies/more\.rego:1: cannot be read"):
        read_bundle(folder)


def test_link_within_the_folder_is_read(folder: Path) -> None:
    """Mounted configuration is often a tree of links into a hidden folder beside them."""
    before = read_bundle(folder)
    (folder / "..data").mkdir()
    (folder / "grants/data.yaml").rename(folder / "..data/grants.yaml")
    (folder / "grants/data.yaml").symlink_to("../..data/grants.yaml")
    assert read_bundle(folder).digest == before.digest


def test_bytes_that_are_no_text_are_refused(folder: Path) -> None:
    path = folder / "vedette/grant/grant.rego"
    path.write_bytes(b"package vedette.grant\n\nok if \xff\n")
    with pytest.raises(BadPolicy, match=r"grant\.rego:3: not UTF-8"):
        read_bundle(folder)
    path.write_bytes(b"package vedette.grant\n\0\0\0\0")
    with pytest.raises(BadPolicy, match=r"grant\.rego:2: holds a NUL"):
        read_bundle(folder)


def test_folder_that_is_too_large_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_stage, "MAX_BYTES", 1000)
    with pytest.raises(BadPolicy, match="too large"):
        read_bundle(folder)
    monkeypatch.setattr(policy_stage, "MAX_FILE_BYTES", 100)
    with pytest.raises(BadPolicy, match="larger than"):
        read_bundle(folder)


def test_folder_without_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadPolicy, match=r"no \*\.rego"):
        read_bundle(tmp_path)
    with pytest.raises(BadPolicy, match="no such policy folder"):
        read_bundle(tmp_path / "gone")


# --- a trial that does not come back ----------------------------------------------------------


async def test_trial_that_takes_too_long_is_refused(shipped: dict[str, bytes]) -> None:
    ten = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
    loops = "\n".join(f"\tsome x{n} in {ten}" for n in range(9))
    text, _ = with_lines(f"deny contains x0 if {{\n{loops}\n\tx0 + x8 == 100\n}}")
    found = await SubprocessStage(deadline_s=2).try_out(
        Bundle.of({**shipped, DENIES: text.encode()})
    )
    assert [each.what for each in found] == ["the trial took longer than 2 s"]


async def test_trial_that_crashes_is_refused_with_its_place(
    shipped: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    crashing = tmp_path / "python"
    crashing.write_text(
        "#!/bin/sh\ncat >/dev/null\n"
        'echo \'{"at":"vedette/a.rego:7","step":"compiling"}\'\nkill -SEGV $$\n'
    )
    crashing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(crashing))
    found = await SubprocessStage().try_out(Bundle.of(shipped))
    assert found == [
        Finding("vedette/a.rego", 7, "the trial ended with signal SIGSEGV while compiling")
    ]


def test_load_past_staging_still_refuses_what_does_not_compile(shipped: dict[str, bytes]) -> None:
    files = {**shipped, DENIES: b"package vedette.denies\n\nok if {\n"}
    with pytest.raises(BadPolicy, match=r"denies\.rego:"):
        SubprocessStage().load(Bundle.of(files))
