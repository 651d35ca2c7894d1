"""Must-show 6 in small: three processes on one PostgreSQL, six publications under load.

The whole of it (20 processes, 60 publications, and a fleet without the barrier, where calls do come
late) is `make bench-publish`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench.publish_fleet import Change, fleet, publishing, recorded
from tests.pg import server

MOST = 16


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_older_starts_or_commits_at_any_process_once_publish_returned(
    tmp_path: Path,
) -> None:
    url = server(fsync=False).fresh()
    with (
        # A call takes long beside the look for a commit, so that one is seen while calls are made.
        fleet(tmp_path, url, 3, rate=60, events=30_000, delay_ms=400) as made,
        publishing(made, look_s=0.2) as publisher,
    ):
        publisher.begin()
        changes = [publisher.change(typed=at == 3) for at in range(4)]
        # Whether any call is under way at a commit is a matter of luck on a machine that is busy.
        while not _early(changes) and len(changes) < MOST:
            changes += [publisher.change(), publisher.change()]
    ledger = recorded(url)
    count = len(changes)
    assert [change.revision for change in changes] == list(range(3, 3 + count))
    assert [change.late for change in changes if change.denies] == [0] * (count // 2)
    assert ledger.wrong == 0
    # There was something that could have come late, and the load went on under every policy.
    assert all(change.between > 0 for change in changes if change.denies)
    assert min(ledger.permits, ledger.denials) > 0
    assert (ledger.revisions, ledger.workers) == (2 + count, 3)
    # The control: had publish returned with its commit, these would have been late.
    assert _early(changes) > 0


def _early(changes: list[Change]) -> int:
    """Return how many calls came between the commit of a deny and its answer."""
    return sum(change.early for change in changes if change.denies)
