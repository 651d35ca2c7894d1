"""The image: its steps run in a clean folder, since `docker build` needs a daemon and a registry.

What is not shown here is what Docker itself does: the base image, the layers, the user's creation.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from runpy import run_path

import pytest
from tests.opa import find_opa

from vedette.config.models import EXTRAS

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "infra/image"
USER = 10001
_PIN = re.compile(r"(?m)^([a-z0-9._-]+)(?:\[[^]]*\])?==(\S+)((?:\\\n|.)*)")


def instructions(text: str) -> list[tuple[str, str]]:
    """Return a Dockerfile's instructions in order: their word, and the rest of the line."""
    whole = re.sub(r"(?m)^#.*\n", "", text).replace("\\\n", " ")
    lines = [line.split(None, 1) for line in whole.splitlines() if line.strip()]
    return [(word, rest) for word, rest in lines]


DOCKERFILE = instructions((ROOT / "Dockerfile").read_text("utf-8"))
_SECOND = [n for n, (word, _) in enumerate(DOCKERFILE) if word == "FROM"][1]
BUILD, FINAL = DOCKERFILE[:_SECOND], DOCKERFILE[_SECOND:]


def ignored() -> tuple[set[str], set[str]]:
    """Return what .dockerignore lets in, and the names that it keeps out at any depth."""
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    kept = {rule[1:] for rule in rules if rule.startswith("!")}
    dropped = {rule.removeprefix("**/") for rule in rules if rule.startswith("**/")}
    assert len(kept) + len(dropped) + 1 == len(rules)
    return kept, dropped


def context(to: Path) -> None:
    """Copy what the Dockerfile's COPY lines name, as far as .dockerignore lets them see it."""
    kept, dropped = ignored()
    for word, rest in BUILD:
        if word != "COPY":
            continue
        if rest.startswith("--from="):  # another image, which the machine's own opa stands for
            continue
        *sources, target = rest.split()
        for source in sources:
            assert source in kept, f".dockerignore hides {source}"
            single = len(sources) == 1 and not target.endswith("/")
            place = to / target if single else to / target / Path(source).name
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns(*dropped))
            else:
                shutil.copy2(ROOT / source, place)


def runs_for(user: int) -> str:
    """Return an interpreter that another user may run too; ours if there is no other."""
    for python in ("/usr/bin/python3", "/usr/local/bin/python3", sys.executable):
        version = [python, "-c", "import sys, venv; sys.exit(sys.version_info < (3, 11))"]
        try:
            if subprocess.run(version, user=user, capture_output=True, cwd="/").returncode == 0:
                return python
        except OSError:
            continue
    return sys.executable


@dataclass(frozen=True, slots=True)
class Built:
    """What the steps made, and the user who runs it: None is who runs the tests."""

    target: Path
    state: Path
    user: int | None
    compiled: Path

    def run(self, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run what the image's entry point would."""
        # The image's modules are compiled when it is built. Here each start finds what the one
        # before compiled, in a folder of its own: nothing is written into the image.
        given = {
            "PATH": "/usr/bin:/bin", "VEDETTE_STATE": str(self.state),
            "PYTHONPYCACHEPREFIX": str(self.compiled), **environ,
        }  # fmt: skip
        return subprocess.run(
            [self.target / "entrypoint", *command], cwd=self.target / "fleet", env=given,
            user=self.user, group=self.user, extra_groups=None if self.user is None else [],
            capture_output=True, text=True, timeout=100,
        )  # fmt: skip


@pytest.fixture(scope="module")
def built() -> Iterator[Built]:
    # pytest's own folders are closed to other users.
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        context(folder / "src")
        (step,) = [rest for word, rest in BUILD if word == "RUN"]
        words = [word for word in shlex.split(step) if "=" not in word]
        assert words == ["infra/image/build.sh", "/src", "/opt/vedette"]
        other = USER if os.geteuid() == 0 else None
        python = sys.executable if other is None else runs_for(other)
        user = None if python == sys.executable else other
        environ = {**os.environ, "PYTHON": python, "VEDETTE_OPA": find_opa()}
        command = [folder / "src" / words[0], folder / "src", folder / "opt"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=110)
        assert done.returncode == 0, done.stderr
        state = folder / "state"
        state.mkdir(0o700)
        compiled = folder / "compiled"
        compiled.mkdir(0o700)
        if user is not None:
            os.chown(state, user, user)
            os.chown(compiled, user, user)
        yield Built(folder / "opt", state, user, compiled)


def snapshot(folder: Path) -> Mapping[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }


def test_it_answers(built: Built) -> None:
    done = built.run("--help")
    assert done.returncode == 0, done.stderr
    assert "Usage: vedette" in done.stdout
    verbs = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert {"run", "verify", "worker"} <= verbs


def test_it_runs_as_nobody_in_particular_and_writes_state_only(built: Built) -> None:
    before = snapshot(built.target / "fleet")
    quiet = {"VEDETTE_SOURCES": "[]", "VEDETTE_SERVE__HTTP": ""}
    done = built.run("run", "--plain", "--until-idle", **quiet)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (built.state / "store.db").exists()
    assert snapshot(built.target / "fleet") == before
    if built.user is not None:
        assert (built.state / "store.db").stat().st_uid == USER


def test_keys_are_taken_once(built: Built, tmp_path: Path) -> None:
    keys = Path(tempfile.mkdtemp())
    state = Path(tempfile.mkdtemp())
    try:
        (keys / "ledger").mkdir()
        (keys / "ledger/ledger.key").write_bytes(b"k" * 32)
        (keys / "ledger/ledger.key").chmod(0o644)
        for path in (keys, keys / "ledger", state):
            path.chmod(0o777)
        given = {"VEDETTE_KEYS": str(keys), "VEDETTE_STATE": str(state)}
        assert built.run("--version", **given).returncode == 0
        found = state / "ledger.key"
        assert found.read_bytes() == b"k" * 32
        assert stat.S_IMODE(found.stat().st_mode) == 0o600
        (keys / "ledger/ledger.key").write_bytes(b"n" * 32)
        assert built.run("--version", **given).returncode == 0
        assert found.read_bytes() == b"k" * 32
        lost = built.run("--version", VEDETTE_KEYS=str(keys), VEDETTE_STATE="")
        assert lost.returncode == 2
        assert "VEDETTE_STATE" in lost.stderr
    finally:
        shutil.rmtree(keys)
        shutil.rmtree(state)


def test_everything_it_needs_is_pinned_and_nothing_else(built: Built) -> None:
    python = built.target / "venv/bin/python"
    whole = subprocess.run(
        [ROOT / "tools/uv", "pip", "check", "--python", python], capture_output=True, text=True
    )
    assert whole.returncode == 0, whole.stdout + whole.stderr
    product = (
        "psycopg_binary", "google.cloud.bigquery_storage_v1", "google.cloud.secretmanager",
        "opentelemetry.exporter.otlp.proto.http",
    )  # fmt: skip
    tools = ("pytest", "mypy", "ruff", "hypothesis", "hatchling")
    find = "import sys, psycopg; from importlib.util import find_spec as find; "
    find += "print(*[name for name in sys.argv[1:] if find(name)])"
    done = subprocess.run(
        [python, "-c", find, *product, *tools], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [*product]


# --- the files alone ------------------------------------------------------------------------------


def pins(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Return the pins of a lock: name, version, hashes."""
    return {
        name: (version, frozenset(re.findall(r"--hash=(\S+)", rest)))
        for name, version, rest in _PIN.findall(text)
    }


def differing(lock: str, whole: str) -> list[str]:
    """Return the pins of a lock that the project's own lock does not have exactly so."""
    ours = pins(whole)
    return sorted(name for name, pin in pins(lock).items() if ours.get(name) != pin)


@pytest.mark.parametrize("lock", ["runtime.lock", "build.lock"])
def test_the_image_s_locks_agree_with_the_project_s(lock: str) -> None:
    """Else the gate would have tested other versions. Mend: make lock."""
    text, whole = (IMAGE / lock).read_text("utf-8"), (ROOT / "requirements.lock").read_text("utf-8")
    found = pins(text)
    assert found
    assert all(hashes for _, hashes in found.values())
    assert differing(text, whole) == []
    name = next(iter(found))
    assert differing(text.replace(f"{name}==", f"{name}==9", 1), whole) == [name]


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_a_model_that_terraform_takes_has_its_packages_in_the_image(provider: str) -> None:
    found = pins((IMAGE / "runtime.lock").read_text("utf-8"))
    assert set(EXTRAS[provider][1]) <= found.keys()


def test_it_is_not_root_and_holds_no_secret() -> None:
    words = [word for word, _ in FINAL]
    (user,) = [rest for word, rest in FINAL if word == "USER"]
    assert user == f"{USER}:{USER}"
    assert words.index("USER") > max(n for n, word in enumerate(words) if word in ("RUN", "COPY"))
    assert "HEALTHCHECK" in words
    text = " ".join(rest for word, rest in DOCKERFILE if word in ("ENV", "ARG", "COPY"))
    assert not re.search(r"(?i)secret|token|password|\.key|\.vedette|\.git", text)


def test_the_base_is_named_and_can_be_pinned() -> None:
    (argument,) = [rest for word, rest in DOCKERFILE if word == "ARG"]
    name, _, base = argument.partition("=")
    assert re.fullmatch(r"python:3\.1[1-9]-slim-[a-z]+", base)
    bases = [rest.split()[0] for word, rest in DOCKERFILE if word == "FROM"]
    assert set(bases) == {f"${{{name}}}"}


class Answers(BaseHTTPRequestHandler):
    """Says 200 at /healthz, 503 elsewhere."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 503)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_the_health_check_asks_whoever_serves() -> None:
    healthy = run_path(str(IMAGE / "healthy.py"))["healthy"]
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            gateway = b"\0".join([b"vedette", b"--config", b"f.toml", b"run", b"--gateway", b""])
            assert healthy(gateway, f"{url}/healthz")
            assert not healthy(gateway, f"{url}/sick")
        finally:
            server.shutdown()
            thread.join()
    assert not healthy(gateway, f"{url}/healthz"), "nobody listens any more"
    assert healthy(b"vedette\0worker\0--agent\0night_watch\0", f"{url}/healthz")
    with pytest.raises(ValueError, match="not on this host"):
        healthy(gateway, "http://elsewhere.example/healthz")


def test_the_image_compiles_its_policies_by_the_opa_that_is_pinned(built: Built) -> None:
    (version,) = re.findall(r"(?m)^version=(\S+)$", (ROOT / "tools/opa").read_text("utf-8"))
    copies = [rest for word, rest in BUILD if word == "COPY" and rest.startswith("--from=")]
    assert copies == [f"--from=openpolicyagent/opa:{version}-static /opa /usr/local/bin/opa"]
    assert list((built.target / "venv").rglob("vedette/_wasm/*.wasm"))


def test_the_image_has_its_policies_as_machine_code_that_it_cannot_change(built: Built) -> None:
    (code,) = (built.target / "venv").rglob("vedette/_wasm/*.cwasm")
    package = code.parent.parent
    assert code.stat().st_uid == code.parent.stat().st_uid == package.stat().st_uid
    assert (code.stat().st_mode & 0o777, code.parent.stat().st_mode & 0o777) == (0o644, 0o755)
