"""What holds for every test."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from tests.bigquery import bigquery as bigquery
from tests.bigquery import warehouse as warehouse
from tests.long import catalogue
from tests.pubsub import pubsub_emulator as pubsub_emulator

from vedette.testing.faults import is_single_threaded

# Tests read whole lines; who wants them folded at a width sets it for that test.
os.environ.pop("COLUMNS", None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is long; let the files with tests of many seconds go first, so that the workers
    end together.

    pytest-xdist would begin with the files of most tests: those of minutes hold the fewest.
    """
    rows = catalogue.load()
    if [config.invocation_params.dir / each for each in config.args] == [catalogue.ROOT / "tests"]:
        wrong = catalogue.unknown(rows, [item.nodeid for item in items])
        assert not wrong, f"{catalogue.FILE}: not in the gate, or no test: {wrong}"
    for item in items:
        name, given = catalogue.split(item.nodeid)
        if name in rows and given not in rows[name].but:
            item.add_marker("long")
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)


# Set for a test that was given a process of its own.
OWN = "VEDETTE_TEST_OWN_PROCESS"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that forks in a process of its own where an earlier test has left a thread.

    gRPC's asynchronous client keeps one for as long as the process lives.
    """
    forks = pyfuncitem.get_closest_marker("forks")
    if forks is None or is_single_threaded() or OWN in os.environ:
        return None
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider",
         pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath, env={**kept, OWN: "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "1 passed" in done.stdout, done.stdout[-2000:]
    return True


_UMASK = os.umask(0o022)
os.umask(_UMASK)
_THRESHOLDS = gc.get_threshold()


@pytest.fixture(autouse=True)
def process_is_given_back() -> Iterator[None]:
    """The command line closes what it makes to others for its whole process, and collects garbage
    in its own way; later tests are not its process, nor is what a fixture of a whole module ran
    before them.
    """
    os.umask(_UMASK)
    yield
    os.umask(_UMASK)
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
    gc.unfreeze()


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
