"""What a module of histories did to this process is undone when it ends."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest
from tests.simulation.engine import read_anew


@pytest.fixture(autouse=True, scope="module")
def _undo_the_world() -> Iterator[None]:
    """Give back what all lives shared, and let go of the files that those were killed with."""
    yield
    read_anew()
    with warnings.catch_warnings():
        # Of a process that is killed the kernel closes the files; here nobody else does.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.unfreeze()
        gc.collect()
