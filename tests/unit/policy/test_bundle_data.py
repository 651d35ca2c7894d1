"""The data of a bundle, which is read once and mounted for everybody anew."""

from __future__ import annotations

import pytest

from vedette.domain.base.errors import BadPolicy
from vedette.policy.bundle_data import mount


@pytest.mark.parametrize("name", ["data.yaml", "data.json"])
def test_what_one_reader_does_to_the_data_no_other_sees(name: str) -> None:
    files = {f"grants/{name}": b'{"desk": {"folders": ["in", "out"], "limit": 9007199254740991}}'}
    said = {"grants": {"desk": {"folders": ["in", "out"], "limit": 9007199254740991}}}
    first = mount(files)
    assert first == said
    first["grants"]["desk"]["folders"].append("trash")
    first["grants"]["desk"]["limit"] = 0
    assert mount(files) == said


def test_a_file_that_is_refused_is_refused_again_by_its_own_name() -> None:
    for name in ("one", "two", "one"):
        with pytest.raises(BadPolicy, match="duplicate") as told:
            mount({f"{name}/data.yaml": b"a: 1\na: 2\n"})
        assert told.value.where == f"{name}/data.yaml:2"


def test_what_cannot_be_written_again_is_read_again() -> None:
    """Half a letter of two, as JSON may escape it, is what orjson does not write."""
    files = {"grants/data.json": rb'{"desk": "\ud800"}'}
    assert mount(files) == mount(files) == {"grants": {"desk": "\ud800"}}
