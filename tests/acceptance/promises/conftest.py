"""What the tests of the promises are given."""

from __future__ import annotations

import pytest

from vedette.testing.clock import ManualClock
from vedette.testing.toy_fleet import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
