"""The real bqemulator for tests: run from an environment of its own, stopped by its pid.

tools/bqemulator makes the environment (it needs another protobuf than the product). Without it a
test is skipped for a person and fails where CI is set. One server serves the whole test process
and ends with it, however that ends: a shell waits for our end of a pipe to close. It keeps
everything in memory: `kill` and `start` give the same addresses and nothing else.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import socket
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.guarded import Guarded

from vedette.adapters.bigquery.clients import GRPC_EMULATOR_HOST, REST_EMULATOR_HOST, query_client
from vedette.adapters.bigquery.warehouse import Warehouse

ROOT = Path(__file__).parents[1]
LAUNCHER = Path(__file__).with_name("bqemulator_launcher.py")
PROJECT = "test-project"

_NUMBERS = itertools.count(1)


def find_python(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> str:
    """Return the Python that has bqemulator.

    Skips the test if there is none, and fails it where CI is set.
    """
    found = shutil.which(str(root / ".tools/bqemulator/bin/python"))
    if found and (root / ".tools/bqemulator/installed.lock").exists():
        return found
    if environ.get("CI"):
        pytest.fail("bqemulator is missing. Mend: make setup", pytrace=False)
    pytest.skip("bqemulator is not here; make setup installs it")


class Emulator(Guarded):
    """One emulator: REST and gRPC."""

    within_s = 90.0

    def __init__(self, python: str) -> None:
        """Start it. Raises RuntimeError with what it said."""
        self._python = python
        super().__init__("bigquery", 2)

    @property
    def environ(self) -> dict[str, str]:
        """Return the variables that name it to a client."""
        rest, grpc = self.ports
        return {REST_EMULATOR_HOST: f"127.0.0.1:{rest}", GRPC_EMULATOR_HOST: f"127.0.0.1:{grpc}"}

    def dataset(self) -> str:
        """Return the name of a dataset that nobody used yet: tests share one server."""
        return f"test_{os.getpid()}_{next(_NUMBERS)}"

    def cpu_s(self) -> float:
        """Return the seconds of a core that it has used."""
        parts = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    def command(self) -> list[str]:
        """Return what runs it."""
        rest, grpc = map(str, self.ports)
        ports = ["--rest-port", rest, "--grpc-port", grpc]
        return [self._python, str(LAUNCHER), "start", *ports, "--log-level", "warning"]

    def ready(self, log: bytes) -> bool:
        """Say whether both doors are open."""
        rest, grpc = self.ports
        return _answers(rest) and _listens(grpc)


def _answers(port: int) -> bool:
    url = f"http://127.0.0.1:{port}/bigquery/v2/projects/{PROJECT}/datasets"
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@functools.cache
def server() -> Emulator:
    """Return this process's emulator; it ends with the process."""
    return Emulator(find_python())


class Dataset:
    """A dataset of its own on the emulator, and SQL for it; `{d}` stands for its name."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator, self.short = emulator, emulator.dataset()
        self.name = f"{PROJECT}.{self.short}"
        self.client = query_client(PROJECT, environ=emulator.environ)
        self.client.create_dataset(self.name)

    def ask(self, text: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        rows = self.client.query(text.replace("{d}", self.name)).result(timeout=60)
        return [tuple(row.values()) for row in rows]

    def insert(self, table: str, columns: str, rows: Sequence[str]) -> None:
        """Insert rows, each written as SQL without its parentheses."""
        values = ", ".join(f"({row})" for row in rows)
        self.ask(f"INSERT INTO `{{d}}.{table}` ({columns}) VALUES {values}")

    def close(self) -> None:
        """Let go of the connection."""
        self.client.close()  # type: ignore[no-untyped-call]


@pytest.fixture
def bigquery(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dataset]:
    """Give a dataset of the real emulator, which the tests of a process share."""
    emulator = server()
    for name, value in emulator.environ.items():
        monkeypatch.setenv(name, value)
    dataset = Dataset(emulator)
    yield dataset
    dataset.close()


@pytest.fixture
def warehouse(bigquery: Dataset) -> Iterator[Warehouse]:
    """Give the same dataset as the shipper sees it."""
    found = Warehouse(PROJECT, bigquery.short)
    yield found
    found.close()
