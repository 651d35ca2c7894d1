"""One Kafka broker in KRaft mode: made in a temporary folder, killed and started by its own pid.

It is broker and controller at once, listens on free loopback ports, and ends with this process,
however that ends: a shell waits for our end of a pipe to close, as that of tests/pg.py does.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from tests.bench.kafka.installation import broker_jars, find_java

_GUARD = (
    '"$@" & pid=$!; echo $pid > "$0/pid.new"; mv "$0/pid.new" "$0/pid"; '
    "cat >/dev/null; kill -9 $pid 2>/dev/null; wait $pid"
)
_CLUSTER = "dmVkZXR0ZS1raHJhZnQtMQ"
_SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
message.max.bytes=16777216
replica.fetch.max.bytes=16777216
"""


class Broker:
    """A broker that listens on `address` ("127.0.0.1:port").

    `flushes`: it syncs each append to disk before it answers (log.flush.interval.messages=1), the
    logs of transactions and of metadata too. Else it never does by itself, which is Kafka's
    default: there what is acknowledged survives a killed process, not a power cut.
    """

    def __init__(self, *, flushes: bool) -> None:
        """Make its folder and start it. Raises InstallationError, or RuntimeError (its words)."""
        self._java, self._jars = find_java(), broker_jars()
        self.folder = Path(tempfile.mkdtemp(prefix="vedette-kafka-"))
        self._guards: list[subprocess.Popen[bytes]] = []
        atexit.register(self.stop)
        port, controller = _free_ports()
        self.address = f"127.0.0.1:{port}"
        text = _SETTINGS.format(port=port, controller=controller, folder=self.folder)
        if flushes:
            text += "log.flush.interval.messages=1\n"
        self._settings = self.folder / "server.properties"
        self._settings.write_text(text, "utf-8")
        made = subprocess.run(
            [*self._command("kafka.tools.StorageTool"), "format", "--cluster-id", _CLUSTER,
             "-c", str(self._settings)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if made.returncode:
            raise RuntimeError(f"the broker's folder was not made: {made.stderr[-2000:]}")
        self.start()

    def _command(self, name: str) -> list[str]:
        return [self._java, "-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=4",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                "-cp", f"{self._jars}/*", name]  # fmt: skip

    @property
    def pid(self) -> int:
        """The process id of the broker itself."""
        return int((self.folder / "pid").read_text())

    def start(self) -> None:
        """Start it on what its folder holds. Raises RuntimeError with what it said."""
        (self.folder / "pid").unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as out:
            guard = subprocess.Popen(
                ["sh", "-c", _GUARD, str(self.folder), *self._command("kafka.Kafka"),
                 str(self._settings)],
                stdin=subprocess.PIPE, stdout=out, stderr=out, cwd=self.folder,
            )  # fmt: skip
        self._guards.append(guard)
        host, _, port = self.address.partition(":")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if (self.folder / "pid").exists() and not _is_alive(self.pid):
                break
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex((host, int(port))) == 0:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"the broker did not start: {self._told()}")

    def kill(self) -> None:
        """Kill it (SIGKILL) and wait until it is gone."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        while _is_alive(pid):
            time.sleep(0.005)
        self._release()

    def stop(self) -> None:
        """End it and remove its folder; once is enough."""
        self._release()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _release(self) -> None:
        for guard in self._guards:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait(30)
        self._guards.clear()

    def _told(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return _answers(pid)
    return state != "Z"


def _answers(pid: int) -> bool:
    """Say whether there is such a process, where no /proc tells."""
    if Path("/proc/self").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1]), int(other.getsockname()[1])
