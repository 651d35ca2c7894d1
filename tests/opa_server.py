"""A real OPA server for tests: serves one signed archive, and ends with whoever started it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.opa import find_opa

from vedette.adapters.bundles import PUBLIC_FILE, PolicyKey, pack
from vedette.domain.bundle import Bundle

UP_S = 20.0


class OpaServer:
    """One `opa run --server` on a loopback port, with a bundle that it verifies.

    The port stays the same over restarts, as it does where a supervisor restarts a server.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = PolicyKey.open(folder)
        self.port = _free_port()
        self.number = 0
        self._opa = find_opa()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def archive(self) -> Path:
        return self.folder / "bundle.tar.gz"

    def pack(self, bundle: Bundle) -> bytes:
        """Sign a bundle as the next revision, and put it where the server reads it."""
        self.number += 1
        raw = pack(
            bundle, number=self.number, key=self.key, signer="person:ada", commit="c0ffee",
            reason="a test", at_us=1_795_257_600_123_456,
        )  # fmt: skip
        self.archive.write_bytes(raw)
        return raw

    def start(self) -> None:
        """Start it, and wait until it answers. Raises RuntimeError with what it said if it ends."""
        command = [
            self._opa, "run", "--server", "--addr", f"127.0.0.1:{self.port}", "--disable-telemetry",
            "--log-level", "error", "--verification-key", str(self.folder / PUBLIC_FILE),
            "--signing-alg", "ES256", "--bundle", str(self.archive),
        ]  # fmt: skip
        said = tempfile.TemporaryFile()  # noqa: SIM115 - it is the process's, and closed below
        self._process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        end = time.monotonic() + UP_S
        try:
            while not self._up():
                if self._process.poll() is not None or time.monotonic() > end:
                    said.seek(0)
                    words = said.read().decode("utf-8", "replace")
                    self.stop()
                    raise RuntimeError(f"opa did not come up: {words}")
                time.sleep(0.02)
        finally:
            said.close()

    def _up(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health?bundles", timeout=1) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def kill(self) -> None:
        """Kill -9."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def suspend(self) -> None:
        """Stop it in its tracks: connections stay open, and nothing answers."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        self.kill()


@contextlib.contextmanager
def opa_server(bundle: Bundle) -> Iterator[OpaServer]:
    """Serve a bundle by a real OPA until the block ends."""
    with tempfile.TemporaryDirectory(prefix="vedette-opa-") as name:
        server = OpaServer(Path(name))
        server.pack(bundle)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
