"""What holds for every test."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.bigquery import bigquery as bigquery
from tests.bigquery import warehouse as warehouse
from tests.pubsub import pubsub_emulator as pubsub_emulator


@pytest.fixture(autouse=True)
def no_writer_is_left_behind() -> Iterator[None]:
    """A store that a test leaves open goes on in later tests, and lets no later test fork."""
    before = set(threading.enumerate())
    yield
    left = [
        thread.name
        for thread in threading.enumerate()
        if thread not in before and thread.name.startswith("vedette-writer")
    ]
    assert not left, "the test left a store open"
