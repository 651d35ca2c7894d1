"""What a module of histories did to this process is undone when it ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.simulation.engine import read_anew
from tests.simulation.world import collect_histories


@pytest.fixture(autouse=True, scope="module")
def _undo_the_world() -> Iterator[None]:
    """Give back what all lives shared, and let go of the files that those were killed with."""
    yield
    read_anew()
    collect_histories()
