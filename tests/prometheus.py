"""A real Prometheus and a real Alertmanager for tests, on free loopback ports.

They are found through what tools/prometheus put in place; without them a test is skipped for a
person and fails where CI is set.
"""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.guarded import Guarded

ROOT = Path(__file__).parents[1]


def find(name: str, root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of `prometheus`, `promtool` or `alertmanager`."""
    found = root / ".tools/prometheus/bin" / name
    if found.exists():
        return str(found)
    if environ.get("CI"):
        pytest.fail(f"{name} is missing. Mend: make setup", pytrace=False)
    pytest.skip(f"{name} is not here; make setup installs it where apt-get is")


def answers(url: str) -> bool:
    """Say whether a server says that it is ready."""
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return int(answer.status) == 200
    except (OSError, urllib.error.URLError):
        return False


class Prometheus(Guarded):
    """One server. `load` gives it samples of the past; `scrape` has it read a target."""

    def __init__(self, scrape: str | None = None) -> None:
        """`scrape` is the host and port of an exporter, read five times a second."""
        self._scrape = scrape
        super().__init__("prometheus", 1)

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self.ports[0]}"

    def command(self) -> list[str]:
        """Return what runs it."""
        config = self._folder / "prometheus.yml"
        text = "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        if self._scrape:
            target = f"static_configs: [{{targets: ['{self._scrape}']}}]"
            text += f"scrape_configs: [{{job_name: here, {target}}}]\n"
        config.write_text(text)
        return [
            find("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={self.data}",
            f"--web.listen-address=127.0.0.1:{self.ports[0]}", "--storage.tsdb.retention.time=100y",
            "--log.level=warn",
        ]  # fmt: skip

    @property
    def data(self) -> Path:
        """Return where its blocks lie."""
        return self._folder / "data"

    def ready(self, log: bytes) -> bool:
        """Say whether it answers."""
        return answers(self.url)

    def load(self, lines: Sequence[str]) -> None:
        """Give it samples of the past, as lines of OpenMetrics with seconds, and start it anew."""
        file = self._folder / "samples.txt"
        file.write_text("\n".join([*lines, "# EOF", ""]))
        self.kill()
        subprocess.run(
            [find("promtool"), "tsdb", "create-blocks-from", "openmetrics", "-q", str(file),
             str(self.data)],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        self.start()


class Alertmanager(Guarded):
    """One server that posts every alert to one URL with a bearer token."""

    def __init__(self, hook: str, token: str) -> None:
        self._hook, self._token = hook, token
        super().__init__("alertmanager", 1)

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self.ports[0]}"

    def command(self) -> list[str]:
        """Return what runs it."""
        config = self._folder / "alertmanager.yml"
        config.write_text(
            "route: {receiver: fleet, group_wait: 10ms, group_interval: 100ms, group_by: [...]}\n"
            "receivers:\n- name: fleet\n  webhook_configs:\n"
            f"  - url: {self._hook}\n"
            f"    http_config: {{authorization: {{credentials: {self._token}}}}}\n"
        )
        templates, link = Path(find("alertmanager")).parents[1] / "templates", "alertmanager"
        if templates.exists() and not (self._folder / link).exists():
            (self._folder / link).symlink_to(templates)
        return [
            "sh", "-c", 'cd "$0" && exec "$@"', str(self._folder),
            find("alertmanager"), f"--config.file={config}",
            f"--storage.path={self._folder / 'data'}", "--cluster.listen-address=",
            f"--web.listen-address=127.0.0.1:{self.ports[0]}", "--log.level=warn",
        ]  # fmt: skip

    def ready(self, log: bytes) -> bool:
        """Say whether it answers."""
        return answers(self.url)
