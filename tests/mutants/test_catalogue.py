"""The catalogue fits the code as it is, and each promise's test kills one of its mutants.

`make mutants` tries all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from tests.mutants.__main__ import copies, try_mutant
from tests.mutants.catalogue import ROOT, Mutant, listed, load, load_tasks, own_test

MUTANTS = load()
TASKS = load_tasks()
FIRST = {mutant.promise: mutant for mutant in reversed(MUTANTS)}


@pytest.mark.parametrize(
    "mutant", MUTANTS + TASKS, ids=lambda mutant: f"{mutant.promise}-{mutant.name}"
)
def test_it_fits_the_code_as_it_is_and_changes_it(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    changed = mutant.apply(text)
    assert changed != text
    if mutant.file.endswith(".py"):
        compile(changed, mutant.file, "exec")


def test_every_promise_has_eight_and_a_test_of_its_own() -> None:
    each = Counter(mutant.promise for mutant in MUTANTS)
    assert set(each) == {
        int(path.name.split("_")[2]) for path in own_test(1).parent.glob("test_promise_*.py")
    }
    assert min(each.values()) >= 8
    names = Counter((mutant.promise, mutant.name) for mutant in MUTANTS)
    assert max(names.values()) == 1


def test_each_mutant_of_tasks_has_a_name_and_a_test_that_is_there() -> None:
    assert len({mutant.name for mutant in TASKS}) == len(TASKS) >= 25
    for mutant in TASKS:
        file, _, name = mutant.test.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {name.partition('[')[0]}(" in text, mutant.name


def test_the_list_for_people_is_that_of_the_catalogue() -> None:
    page = (ROOT / "docs" / "design" / "faults.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("<!-- mutants -->\n")
    found, _, _ = rest.partition("<!-- /mutants -->")
    assert found == listed(MUTANTS), "python -m tests.mutants --list writes it"


@pytest.fixture(scope="module")
def free() -> Iterator[SimpleQueue[Path]]:
    with copies(1) as copied:
        yield copied


@pytest.mark.slow
@pytest.mark.parametrize("promise", sorted(FIRST))
def test_the_promises_own_test_kills_its_first(free: SimpleQueue[Path], promise: int) -> None:
    ran = try_mutant(free, FIRST[promise])
    assert ran.verdict == "killed", ran.said
