"""`make run`: the sample webhook target beside `vedette run`, and nothing left behind.

The arguments go to `vedette run`. The target is started first, because the sample agents'
webhook tool calls it, and is stopped by its own process id whatever way the run ends.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
VEDETTE = Path(sys.executable).with_name("vedette")
PORT = 8099
# The first start compiles bytecode on a cold disk; after this the machine is in trouble.
READY_WITHIN_S = 15.0
UNAVAILABLE = 3


class Signals:
    """Hands the signals of this process on to the fleet, once there is one.

    Set up before anything is started, so that no signal can end this process and leave the
    webhook target behind.
    """

    def __init__(self) -> None:
        self.fleet: subprocess.Popen[bytes] | None = None
        self.first: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._forward_signal)

    def _forward_signal(self, number: int, _frame: FrameType | None) -> None:
        self.first = self.first or number
        # A terminal sends Ctrl-C to the whole foreground group, the fleet included; sent twice
        # it would mean "at once".
        if number == signal.SIGINT and sys.stdin.isatty():
            return
        if self.fleet is not None and self.fleet.poll() is None:
            self.fleet.send_signal(number)


def main(arguments: list[str]) -> int:
    """Returns the exit code of `vedette run`, or 3 when the webhook target cannot start."""
    signals = Signals()
    if answers(PORT):
        print(
            f"make run: port {PORT} is taken; the sample agents' webhook target listens there.\n"
            f"  Mend: stop what listens on {PORT} (another `make run`?) and try again.",
            file=sys.stderr,
        )
        return UNAVAILABLE
    receiver = start_receiver()
    try:
        if not ready(receiver, signals):
            if signals.first is None:
                print("make run: the webhook target did not start; see above.", file=sys.stderr)
            return UNAVAILABLE if signals.first is None else 128 + signals.first
        fleet = subprocess.Popen([str(VEDETTE), "run", *arguments], cwd=ROOT)
        signals.fleet = fleet
        if signals.first is not None and fleet.poll() is None:
            fleet.send_signal(signals.first)
        code = fleet.wait()
        return 128 - code if code < 0 else code
    finally:
        stop(receiver)


def start_receiver() -> subprocess.Popen[bytes]:
    """Starts the webhook target of the samples, with its record in the state folder."""
    state = ROOT / ".vedette"
    state.mkdir(mode=0o700, exist_ok=True)
    script = ROOT / "samples" / "receiver" / "receiver.py"
    record = state / "receiver.jsonl"
    return subprocess.Popen(
        [sys.executable, str(script), "--port", str(PORT), "--record", str(record)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        # A session of its own: Ctrl-C must reach the fleet first, which still calls the target
        # while it finishes what it has begun.
        start_new_session=True,
    )


def answers(port: int) -> bool:
    """Whether something accepts connections on this port of the loopback."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def ready(receiver: subprocess.Popen[bytes], signals: Signals) -> bool:
    """Waits until the target accepts connections; False when it ended, took too long, or a
    signal came."""
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and signals.first is None:
        if receiver.poll() is not None:
            return False
        if answers(PORT):
            return receiver.poll() is None
        time.sleep(0.05)
    return False


def stop(receiver: subprocess.Popen[bytes]) -> None:
    """Ends the target: asked first, then forced."""
    if receiver.poll() is None:
        receiver.terminate()
        try:
            receiver.wait(5)
        except subprocess.TimeoutExpired:
            receiver.kill()
            receiver.wait()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
