"""A link that is cut under a request: what has not arrived in the call's time never does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.namespaces import may_run, need

ROOT = Path(__file__).parents[4]
NAMESPACE_COMMAND = ["unshare", "-rn", sys.executable]


def need_links(may: bool, environ: Mapping[str, str] = os.environ) -> None:
    """Skip the test if there is no network of its own; fail it where CI is set."""
    fail = "no link may be cut here. Mend: let `unshare -rn` do so"
    need(may, skip="may not have a network of its own here", fail=fail, environ=environ)


def test_without_a_network_of_its_own_a_person_skips_and_ci_fails() -> None:
    need_links(True, {"CI": "1"})
    with pytest.raises(pytest.skip.Exception):
        need_links(False, {})
    with pytest.raises(pytest.fail.Exception, match="Mend"):
        need_links(False, {"CI": "1"})


@pytest.mark.parametrize("what", ["POST", "mail"])
def test_what_a_cut_link_held_back_is_not_delivered_after_its_time(what: str) -> None:
    """The target is asked by then, knows nothing, and the call would be made again.

    What a connection held that was just closed comes when the link is back: that is the kernel's
    way, and shows that this could have.
    """
    need_links(may_run([*NAMESPACE_COMMAND, "-c", ""]))
    done = subprocess.run(
        [*NAMESPACE_COMMAND, "-m", "tests.contract.adapters.http.cut_link_child", what],
        capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == ["plain"]
