"""Must-show 6 in small: three processes on one PostgreSQL, six publications under load.

The whole of it (20 processes, 60 publications, and a fleet without the barrier, where calls do come
late) is `make bench-publish`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench.publish_fleet import fleet, publishing, recorded
from tests.pg import server


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_older_starts_or_commits_at_any_process_once_publish_returned(
    tmp_path: Path,
) -> None:
    url = server(fsync=False).fresh()
    with (
        fleet(tmp_path, url, 3, rate=60, events=30_000, delay_ms=100) as made,
        publishing(made, look_s=0.2) as publisher,
    ):
        publisher.begin()
        changes = [publisher.change(typed=at == 3) for at in range(4)]
    ledger = recorded(url)
    assert [change.revision for change in changes] == [3, 4, 5, 6]
    assert [change.late for change in changes if change.denies] == [0, 0]
    assert ledger.wrong == 0
    # There was something that could have come late, and the load went on under every policy.
    assert all(change.between > 0 for change in changes if change.denies)
    assert min(ledger.permits, ledger.denials) > 0
    assert (ledger.revisions, ledger.workers) == (6, 3)
    # The control: had publish returned with its commit, these would have been late.
    assert sum(change.early for change in changes if change.denies) > 0
