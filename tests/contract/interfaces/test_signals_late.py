"""A run that was asked to end and does not is ended, as a second signal would."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

STUCK = """
import sys, time
from vedette.interfaces.signals import Signals
with Signals(grace_s={grace}) as signals:
    print("ready", flush=True)
    end = time.monotonic() + 30
    while time.monotonic() < end and not ({leaves} and signals.first is not None):
        pass
print("left", flush=True)
"""


@pytest.mark.parametrize(("leaves", "code"), [(False, 130), (True, 0)])
def test_a_run_that_is_stuck_ends_in_time(leaves: bool, code: int) -> None:
    """The control: one that leaves by itself is not hurried, and no alarm is left behind."""
    script = STUCK.format(grace=0.5, leaves=leaves)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, output = process.communicate(timeout=20)
    assert process.returncode == code
    assert time.monotonic() - began < 5
    assert (b"did not end in time" in output) is not leaves
    assert (b"left" in out) is leaves
