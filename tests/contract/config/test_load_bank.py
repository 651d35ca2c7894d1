"""Loading memory banks: strict front matter, errors by file and line, digests per memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from vedette.config.bank import bank_schema, read_bank
from vedette.config.problem import Problem
from vedette.domain.base.clock import from_iso
from vedette.domain.memory import BankPlan

BANK = """\
bank: inbox
purpose: What the desk knows
scopes:
  - name: inbox
    readers: [inbox_triage]
    writers: []
topics: [folders, replies]
retention:
  days: 90
"""

MEMORY = """\
---
id: tariff
scope: inbox
topics: [replies]
kind: example
label: question
reviewed_by: desk@harbourlights.example
reviewed_on: 2026-03-01
expires_on: 2026-06-30
---
A berth for one night costs what the tariff says.

---
That line is text, not front matter.
"""


def read(folder: Path, now_us: int = 0) -> tuple[BankPlan | None, list[Problem]]:
    return read_bank(folder, "memory/inbox", now_us, {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "inbox"
    (folder / "rules").mkdir(parents=True)
    (folder / "bank.yaml").write_text(BANK)
    (folder / "rules" / "tariff.md").write_text(MEMORY)
    (folder / "README.md").write_text("How this bank is kept.")
    return folder


def test_a_bank_is_read(folder: Path) -> None:
    plan, problems = read(folder)
    assert problems == []
    assert plan is not None
    assert plan.scopes == {"inbox": ("inbox_triage",)}
    assert (plan.topics, plan.retention_days) == (("folders", "replies"), 90)
    (memory,) = plan.memories
    assert (memory.id, memory.bank, memory.revision) == ("tariff", "inbox", 0)
    assert (memory.kind, memory.label, memory.trust) == ("example", "question", "reviewed")
    assert memory.text.endswith("not front matter.")
    assert memory.expires_us == from_iso("2026-07-01")
    assert memory.cite() == "inbox/tariff@0"


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "what", "mend"),
    [
        ("scope: inbox", "scope: inbux", 3, "scope", "no scope", "'inbox'"),
        ("[replies]", "[reply]", 4, "topics[0]", "no topic", "'replies'"),
        ("kind: example", "kind: examples", 5, "kind", "'examples'", "'example'"),
        ("label: question\n", "", 5, "kind", "needs a label", "add label:"),
        ("reviewed_by: desk@harbourlights.example\n", "", 2, "reviewed_by", "missing", "who"),
        ("2026-03-01", "last spring", 8, "reviewed_on", "no date", "2026-03-31"),
        ("2026-06-30", "2026-01-31", 9, "expires_on", "before the review", "correct"),
        ("label:", "lable:", 6, "lable", "unknown key", "'label'"),
        ("id: tariff", "id: Tariff 1", 2, "id", "pattern", ""),
        ("id: tariff", "id: [tariff", 3, "", "is not YAML", ""),
        ("---\nid", "id", 1, "", "no front matter", "---"),
        (MEMORY[MEMORY.index("A berth") :], "", 11, "", "no text", "write"),
        ("A berth", "A berth " * 3000, 11, "", "the limit is 20000", "keep"),
    ],
)
def test_a_wrong_memory(
    folder: Path, old: str, new: str, line: int, field: str, what: str, mend: str
) -> None:
    assert old in MEMORY
    (folder / "rules" / "tariff.md").write_text(MEMORY.replace(old, new, 1))
    plan, problems = read(folder)
    assert plan is not None
    assert plan.memories == ()
    found = [p for p in problems if p.field == field]
    assert found, [str(problem) for problem in problems]
    assert (found[0].file, found[0].line) == ("memory/inbox/rules/tariff.md", line)
    assert what in found[0].what
    assert mend in found[0].mend


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "what"),
    [
        ("bank: inbox", "bank: inbax", 1, "bank", "the folder is"),
        ("readers:", "reader:", 5, "scopes[0].reader", "unknown key"),
        ("[folders, replies]", "[replies, replies]", 7, "topics[1]", "twice"),
        ("days: 90", "days: 0", 9, "retention.days", "at least 1"),
        ("purpose: What the desk knows\n", "", 1, "purpose", "is missing"),
    ],
)
def test_a_wrong_bank_yaml(
    folder: Path, old: str, new: str, line: int, field: str, what: str
) -> None:
    (folder / "bank.yaml").write_text(BANK.replace(old, new))
    found = [p for p in read(folder)[1] if p.field == field]
    assert found
    assert (found[0].file, found[0].line) == ("memory/inbox/bank.yaml", line)
    assert what in found[0].what


def test_an_id_is_unique_over_all_banks(folder: Path) -> None:
    (folder / "second.md").write_text(MEMORY)
    known: dict[str, str] = {}
    _, problems = read_bank(folder, "memory/inbox", 0, known)
    assert "is the id of memory/inbox/rules/tariff.md already" in problems[0].what
    assert known == {"tariff": "memory/inbox/rules/tariff.md"}


def test_expiry_is_a_warning_and_only_from_the_day_after(folder: Path) -> None:
    last_moment = from_iso("2026-06-30T23:59:59")
    assert read(folder, last_moment)[1] == []
    plan, problems = read(folder, last_moment + 1_000_000)
    assert [problem.warning for problem in problems] == [True]
    assert plan is not None
    assert len(plan.memories) == 1


def test_digests_change_with_what_they_cover(folder: Path) -> None:
    def digests() -> tuple[str, str]:
        plan, _ = read(folder)
        assert plan is not None
        return plan.digest, plan.memories[0].digest

    first = digests()
    assert digests() == first
    file = folder / "rules" / "tariff.md"
    file.write_text(MEMORY.replace("one night", "two nights"))
    assert digests()[0] != first[0]
    assert digests()[1] != first[1]
    file.write_text(MEMORY)
    (folder / "bank.yaml").write_text(BANK.replace("days: 90", "days: 91"))
    assert digests()[0] != first[0]
    assert digests()[1] == first[1]


def test_a_folder_without_bank_yaml(tmp_path: Path) -> None:
    plan, problems = read(tmp_path)
    assert plan is None
    assert str(problems[0]).startswith("memory/inbox: has no bank.yaml")


def test_the_schema_requires_readers() -> None:
    assert "readers" in bank_schema()["$defs"]["BankScopeFile"]["required"]
