"""An OPA server of one's own: the real `opa`, for as long as decisions are made again.

It listens on a Unix socket in a folder of its own, so it takes no port and nobody else reaches it.
Which bundle it serves is the last one that was asked about; another is served by starting it anew
(0.1 s), as a record names few bundles and its decisions follow one another.
"""

from __future__ import annotations

import http.client
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

import orjson

from vedette.domain.base import machine
from vedette.domain.base.errors import BadPolicy, EngineFailed, Unavailable
from vedette.domain.bundle import ENTRY_PATH, Bundle
from vedette.policy.bundle_data import write_bundle_folder

START_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 10.0
_PATH = f"/v1/data/{ENTRY_PATH}"


class LocalOpaServer:
    """Makes engines that decide by the program `opa`. Use it in a `with`: the server ends there."""

    def __init__(self, opa: str) -> None:
        self._opa = opa
        self._folder = tempfile.TemporaryDirectory(prefix="vedette-opa-")
        self._process: subprocess.Popen[bytes] | None = None
        self._served_digest: str | None = None
        self._connection: _Connection | None = None
        self.version = _version(opa)

    def __enter__(self) -> LocalOpaServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        self._folder.cleanup()

    def load(self, bundle: Bundle) -> LocalOpaEngine:
        """Return an engine of a bundle. Raises BadPolicy if opa does not take it."""
        engine = LocalOpaEngine(self, bundle)
        self.serve(bundle)
        return engine

    def serve(self, bundle: Bundle) -> http.client.HTTPConnection:
        """Have the server serve a bundle; return the connection to ask by. Raises BadPolicy."""
        if self._connection is None or self._served_digest != bundle.digest:
            self._stop()
            socket_path = Path(self._folder.name) / "opa.sock"
            self._start(bundle, socket_path)
            self._served_digest = bundle.digest
            self._connection = _Connection(socket_path)
        return self._connection

    def _start(self, bundle: Bundle, socket_path: Path) -> None:
        folder = Path(self._folder.name) / bundle.digest
        if not folder.is_dir():
            write_bundle_folder(bundle, folder)
        command = [
            self._opa, "run", "--server", "--addr", f"unix://{socket_path}", "--disable-telemetry",
            "--log-level", "error", "--v1-compatible", str(folder),
        ]  # fmt: skip
        log = Path(self._folder.name) / "said"
        with log.open("wb") as out:
            self._process = subprocess.Popen(  # noqa: S603 - the opa that the settings lead to
                command,
                cwd=folder,
                env=machine.program_environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        end = time.monotonic() + START_TIMEOUT_S
        while not _is_healthy(socket_path):
            if self._process.poll() is not None or time.monotonic() > end:
                self._stop()
                words = " ".join(log.read_text("utf-8", "replace").split())[:400]
                raise BadPolicy(f"opa does not serve the bundle: {words}")
            time.sleep(0.01)

    def _stop(self) -> None:
        process, self._process, self._served_digest = self._process, None, None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class LocalOpaEngine:
    """The PolicyEngine of one bundle, decided by the server's `opa`. For one thread."""

    def __init__(self, server: LocalOpaServer, bundle: Bundle) -> None:
        self.name = f"opa/{server.version} server"
        self.digest = bundle.digest
        self._server = server
        self._bundle = bundle

    def decide(self, request: bytes) -> object:
        """Return what the entry point says of a canonical question; None if undefined.

        Raises EngineFailed for another status, Unavailable if the server is gone.
        """
        connection = self._server.serve(self._bundle)
        try:
            body = b'{"input":%b}' % request
            connection.request("POST", _PATH, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            raw = answer.read()
        except (OSError, http.client.HTTPException) as error:
            what = f"opa went away before it answered ({type(error).__name__})"
            raise Unavailable(what, mend="try again") from error
        if answer.status != 200:
            raise EngineFailed(
                f"opa answered {answer.status}: {raw[:200].decode(errors='replace')}"
            )
        found: object = orjson.loads(raw).get("result")
        return found


class _Connection(http.client.HTTPConnection):
    def __init__(self, socket_path: Path) -> None:
        super().__init__("localhost", timeout=ANSWER_TIMEOUT_S)
        self._socket_path = socket_path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._socket_path))


def _is_healthy(socket_path: Path) -> bool:
    connection = _Connection(socket_path)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _version(opa: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - as above
            [opa, "version"], capture_output=True, timeout=START_TIMEOUT_S, check=True, text=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        mend = "name another in VEDETTE_OPA"
        raise Unavailable(f"{opa} cannot be run: {error}", mend=mend) from error
    return done.stdout.partition("\n")[0].partition(":")[2].strip() or "unknown"
