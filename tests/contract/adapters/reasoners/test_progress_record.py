"""What a worker writes down of the calls that it begins, as its engine reads it after a death."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vedette.adapters.reasoners.workers.confinement import (
    PROGRESS_BYTES,
    ProgressRecord,
    read_begun_calls,
    read_progress,
)


@pytest.fixture
def progress_fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "progress", os.O_RDWR | os.O_CREAT, 0o600)
    os.truncate(fd, PROGRESS_BYTES)
    yield fd
    os.close(fd)


def test_a_call_has_begun_if_that_is_written_down(progress_fd: int) -> None:
    record = ProgressRecord(progress_fd)
    assert not any(map(read_begun_calls(progress_fd), range(1, 200)))
    record.begin_call(3)
    has_begun = read_begun_calls(progress_fd)
    assert [number for number in range(1, 200) if has_begun(number)] == [3]


def test_who_shares_a_slot_with_a_later_call_counts_as_begun(progress_fd: int) -> None:
    """Whether it had cannot be told any more; the later one is told exactly, in either order."""
    record = ProgressRecord(progress_fd)
    for first, second in ((5, 69), (134, 70)):
        record.begin_call(first)
        record.begin_call(second)
        has_begun = read_begun_calls(progress_fd)
        assert has_begun(first)
        assert has_begun(second)
        assert not has_begun(max(first, second) + 64)


def test_the_question_that_a_worker_is_at_stands_beside_its_calls(progress_fd: int) -> None:
    record = ProgressRecord(progress_fd)
    record.begin(7)
    record.begin_call(9)
    record.advance(7)
    assert read_progress(progress_fd) == (7, 1)
    assert read_begun_calls(progress_fd)(9)


def test_a_file_that_does_not_tell_any_more_tells_nothing_away(progress_fd: int) -> None:
    os.truncate(progress_fd, PROGRESS_BYTES - 1)
    assert read_begun_calls(progress_fd)(1)
    assert read_begun_calls(None)(1)
