"""Where the tests find Prometheus: missing is a skip for a person, and a failure in CI."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.prometheus import find


@pytest.mark.parametrize("name", ["prometheus", "promtool", "alertmanager"])
def test_a_missing_server_is_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=name):
        find(name, tmp_path, {})
    with pytest.raises(pytest.fail.Exception, match="make setup"):
        find(name, tmp_path, {"CI": "true"})
    there = tmp_path / ".tools/prometheus/bin" / name
    there.parent.mkdir(parents=True)
    there.touch()
    assert find(name, tmp_path, {"CI": "true"}) == str(there)
