"""`agent new`: a whole agent that passes its checks, or nothing at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broken_disk import failing_sync
from tests.said import said
from tests.small import AGENT, cases, small

from vedette.config.code_rename import rename_code
from vedette.config.fleet import load_fleet
from vedette.config.problem import Problem
from vedette.config.settings import Settings, load_settings
from vedette.domain.base import failpoint
from vedette.domain.base.errors import BadCommand
from vedette.domain.event import Event
from vedette.operations.scaffold import scaffold_agent
from vedette.policy.bundle_data import mount
from vedette.testing.harness import FleetHarness, checkout

NEW = "billing"


def nothing_wrong(settings: Settings) -> list[Problem]:
    return []


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("fleet"), each=1)


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "own"))


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    failpoint.hook = None


def settings(root: Path) -> Settings:
    return load_settings(root / "vedette.toml")


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def data(root: Path) -> dict[str, object]:
    folder = root / "policies"
    return mount(
        {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("data.yaml")}
    )


def test_the_new_agent_passes_check_and_its_cases_and_is_granted_the_same_in_observe(
    tmp_path: Path,
) -> None:
    root = small(tmp_path / "own", each=9)
    cases(root, 2)
    before = data(root)
    done = said(root, "agent", "new", NEW, "--like", AGENT, "--title", "Bills: all", "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["written"] == [
        f"agents/{NEW}", "memory/inbox/bank.yaml", "policies/grants/data.yaml",
        "policies/limits/data.yaml",
    ]  # fmt: skip
    # What `check` finds was asked before it was put in place (test_what_would_not_pass…).
    tried = said(root, "check", "cases", NEW, "--json")
    assert tried.code == 0, tried.out
    assert [case["agent"] for case in json.loads(tried.out)["cases"]] == [NEW] * 2
    after = data(root)
    granted = dict(before["grants"][AGENT], mode="observe")  # type: ignore[index]
    assert after["grants"] == {**before["grants"], NEW: granted}  # type: ignore[dict-item]
    agents = load_fleet(root, settings(root)).fleet.agents
    assert agents[NEW].title == "Bills: all"
    assert agents[NEW].identity.spiffe_id.endswith(f"/agent/{NEW}")
    assert agents[NEW].tools == agents[AGENT].tools


async def test_both_wake_and_the_new_one_does_nothing(root: Path, tmp_path: Path) -> None:
    scaffold_agent(settings(root), NEW, AGENT, None, None, nothing_wrong)
    text = "Please find invoice 7713 attached. The amount including VAT is due in thirty days."
    mail = {"from": "a@ropewalk.example", "subject": "Invoice 7713 for mooring lines", "text": text}
    event = Event("maildir:x", "1", "mail.received", "1", None, mail)
    async with FleetHarness(tmp_path / "fleet", content=root) as fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        rows = fleet.actions(event)
        assert {run.agent for run in fleet.runs(event)} == {AGENT, NEW}
        assert {row.agent for row in rows if row.decided == "permit"} <= {AGENT}
        mine = [row for row in rows if row.agent == NEW]
        assert mine
        assert {(row.decided, row.rule, row.effect) for row in mine} == {
            ("deny", "mode.observe", None)
        }


def test_an_agent_with_rows_gets_a_collection_of_its_own(tmp_path: Path) -> None:
    root = small(tmp_path / "own", agent="anomaly_detection", bank="operations")
    toml = root / "vedette.toml"
    more = '\n[targets.oncall]\nkind = "webhook"\nurl = "http://127.0.0.1:9/x"\n'
    toml.write_text(toml.read_text() + more)
    scaffold_agent(settings(root), "pumps", "anomaly_detection", None, None, nothing_wrong)
    agents = load_fleet(root, settings(root)).fleet.agents
    owned = {agent.collection for agent in agents.values()}
    assert owned == {"incidents", "pumps"}
    assert 'COLLECTION = "pumps"' in (root / "agents/pumps/tools.py").read_text()


def test_a_word_of_the_code_that_is_also_a_name_is_left_and_told(root: Path) -> None:
    """A label, say: under another name the judge would mean something else by it."""
    scaffold_agent(settings(root), "spam", AGENT, None, None, nothing_wrong)
    judge = root / "agents" / "spam" / "judge.py"
    assert '"spam"' in judge.read_text()
    plan = scaffold_agent(settings(root), "junk", "spam", None, None, nothing_wrong)
    assert (root / "agents" / "junk" / "judge.py").read_text() == judge.read_text()
    lines = judge.read_text().splitlines()
    messages = [
        int(place.rpartition(":")[2]) for place in plan.review_lines if "/judge.py:" in place
    ]
    assert messages
    assert messages == [at for at, line in enumerate(lines, 1) if '"spam"' in line]
    assert '"junk"' in (root / "agents" / "junk" / "agent.py").read_text()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('ROWS = "old"\nRowWrite(ROWS, key)', 'ROWS = "new"\nRowWrite(ROWS, key)'),
        ("effect.RowWrite('old', key)", "effect.RowWrite('new', key)"),
        ('RowWrite(key="k", collection="old")', 'RowWrite(key="k", collection="new")'),
        ('ü = "ü"; RowWrite("old", "old")', 'ü = "ü"; RowWrite("new", "old")'),
        ('ROWS = "old"\nlabel == "old"', 'ROWS = "old"\nlabel == "old"'),
        ('f(name="old")', 'f(name="old")'),
        ("not python: 'old'", "not python: 'old'"),
    ],
)
def test_only_what_names_the_collection_is_renamed(before: str, after: str) -> None:
    assert rename_code(Path("tools.py"), before, {}, {"old": "new"}) == after


def test_what_was_rolled_back_does_not_come_back_with_a_new_agent(
    root: Path, tmp_path: Path
) -> None:
    why = ("--reason", "an incident")
    assert said(root, "run", "--until-idle").code == 0
    assert said(root, "agent", "mode", AGENT, "observe", *why).code == 0
    before = files(root / "agents")
    assert said(root, "policy", "rollback", "1", "--yes", *why).code == 0
    refused = said(root, "agent", "new", NEW, "--like", AGENT)
    assert refused.code == 2
    assert "would publish all of it" in refused.err
    assert files(root / "agents") == before
    # What nobody offered yet is an edit like any other.
    grants = root / "policies" / "grants" / "data.yaml"
    grants.write_text(grants.read_text("utf-8") + "# reviewed\n", "utf-8")
    assert said(root, "agent", "new", NEW, "--like", AGENT).code == 0


@pytest.mark.parametrize(
    ("name", "like", "what"),
    [
        (AGENT, AGENT, "already"),
        ("Bad-Name", AGENT, "not a lower-case Python identifier"),
        ("json", AGENT, "shadows"),
        ("../escape", AGENT, "no name of a folder"),
        (NEW, "inbox_triag", "to be like"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(
    root: Path, name: str, like: str, what: str
) -> None:
    before = files(root)
    with pytest.raises(BadCommand, match=what):
        scaffold_agent(settings(root), name, like, None, None, nothing_wrong)
    assert files(root) == before


def test_rights_that_lie_about_under_the_name_are_not_taken_over(root: Path) -> None:
    grants = root / "policies/grants/data.yaml"
    grants.write_text(grants.read_text() + f"{NEW}:\n  mode: act\n")
    before = files(root)
    with pytest.raises(BadCommand, match="already, and otherwise"):
        scaffold_agent(settings(root), NEW, AGENT, None, None, nothing_wrong)
    assert files(root) == before


def test_what_would_not_pass_the_check_is_not_written(root: Path) -> None:
    before = files(root)
    with pytest.raises(BadCommand, match="would not pass its check with it: no good"):
        scaffold_agent(
            settings(root), NEW, AGENT, None, None, lambda s: [Problem("x", 1, "", "no good")]
        )
    assert files(root) == before


@pytest.mark.parametrize("when", ["check", "found-grants:before", "found-limits:before"])
def test_what_somebody_saves_meanwhile_is_kept_and_the_new_agent_refused(
    root: Path, when: str
) -> None:
    """Between the copy and the first file; right before the grants; and when they are in place."""
    file = "limits" if when.startswith("found-limits") else "grants"
    path = root / f"policies/{file}/data.yaml"

    def save(at: str) -> None:
        if at == when:
            path.write_bytes(path.read_bytes() + b"# saved by kim\n")

    def check(settings: Settings) -> list[Problem]:
        save("check")
        return []

    before = files(root)
    failpoint.hook = save
    with pytest.raises(BadCommand, match="saved by somebody"):
        scaffold_agent(settings(root), NEW, AGENT, None, None, check)
    name = str(path.relative_to(root))
    assert files(root) == {**before, name: before[name] + b"# saved by kim\n"}
    # The same order again takes up what they saved.
    failpoint.hook = None
    scaffold_agent(settings(root), NEW, AGENT, None, None, nothing_wrong)
    assert path.read_bytes().count(b"# saved by kim") == 1
    assert data(root)["grants"][NEW]["mode"] == "observe"  # type: ignore[index]


def test_where_something_cannot_be_written_all_is_as_it_was(root: Path) -> None:
    before = files(root)

    def fail(at: str) -> None:
        if at == "found-folder:before":
            raise OSError(28, "No space left on device", "agents")

    failpoint.hook = fail
    with pytest.raises(BadCommand, match="No space left") as refusal:
        scaffold_agent(settings(root), NEW, AGENT, None, None, nothing_wrong)
    assert "nothing was changed" in str(refusal.value)
    failpoint.hook = None
    assert files(root) == before


def test_an_error_after_the_rename_does_not_say_that_nothing_was_changed(root: Path) -> None:
    with failing_sync(root / "agents"), pytest.raises(OSError, match="Input/output error"):
        scaffold_agent(settings(root), NEW, AGENT, None, None, nothing_wrong)
    assert NEW in load_fleet(root, settings(root)).fleet.agents


def test_after_a_crash_before_the_folder_the_same_order_completes_it(root: Path) -> None:
    whole = Path(shutil.copytree(root, root.parent / "whole"))
    scaffold_agent(settings(whole), NEW, AGENT, None, None, nothing_wrong)
    if (child := os.fork()) == 0:
        failpoint.hook = lambda at: os._exit(9) if at == "found-folder:before" else None
        scaffold_agent(settings(root), NEW, AGENT, None, None, nothing_wrong)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    # Its grant and its place among the readers are there; the agent is not, and nothing is wrong.
    assert NEW not in load_fleet(root, settings(root)).fleet.agents
    scaffold_agent(settings(root), NEW, AGENT, None, None, nothing_wrong)
    assert files(root) == files(whole)


def test_the_shipped_agents_can_all_be_copied(tmp_path: Path) -> None:
    """The template's own files stay plain enough to be edited by lines."""
    from vedette.config.yaml_edit import copy_block, set_value

    text = (checkout() / "policies/grants/data.yaml").read_text(encoding="utf-8")
    for folder in sorted((checkout() / "agents").glob("*/agent.yaml")):
        name = folder.parent.name
        assert set_value(copy_block(text, [name], "other"), ["other", "mode"], "observe")
