"""Each long test is there, something of it stays in the gate, and `make long` says what failed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.long.__main__ import play
from tests.long.catalogue import ROOT, LongTest, load, split, unknown

ROWS = load()


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
def test_it_is_there_and_what_stays_is(row: LongTest) -> None:
    for name in (row.name, *([row.stays] if row.stays else [])):
        file, _, function = name.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        found = {
            one.name
            for one in ast.walk(tree)
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert function in found, name
    if row.stays in ROWS:
        assert ROWS[row.stays].but, f"{row.stays} is long itself"


def test_a_row_that_names_nothing_is_found() -> None:
    there = ["a.py::test_a[one]", "a.py::test_a[two]", "a.py::test_b", "a.py::test_c"]
    rows = {
        "a.py::test_a": LongTest("a.py::test_a", frozenset({"one", "three"})),
        "a.py::test_b": LongTest("a.py::test_b", stays="a.py::test_c"),
        "a.py::test_c": LongTest("a.py::test_c", stays="a.py::test_gone"),
        "a.py::test_d": LongTest("a.py::test_d", frozenset({"one"})),
    }
    wrong = unknown(rows, there)
    assert sorted(wrong) == [
        "a.py::test_a[three]", "a.py::test_c", "a.py::test_d", "a.py::test_gone",
    ]  # fmt: skip
    assert split("a.py::test_a[x[1]]") == ("a.py::test_a", "x[1]")


LONG = """
import pytest

pytestmark = pytest.mark.long


@pytest.mark.parametrize("number", [1, 2])
def test_one(number):
    assert number == 1


@pytest.fixture
def broken():
    raise OSError("no such thing")


def test_other(broken):
    pass
"""


def test_what_failed_is_told(tmp_path: Path) -> None:
    path = tmp_path / "test_some.py"
    path.write_text(LONG, encoding="utf-8")
    report = play(path)
    assert (report.singles, report.wrong) == (3, 2)
    one, other = report.findings
    assert one.startswith("test_one[2]: ")
    assert other.startswith("test_other: ")
    assert "no such thing" in other
    path.write_text("def test_short():\n    pass\n", encoding="utf-8")
    assert play(path).findings == ["test_some.py: pytest ended with 5 after 0 tests"]
