"""Ten wrong moves of a newcomer: each error, read aloud, makes sense and names the mend."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.contract.store.test_store_sqlite import mounts, need_mounts
from tests.said import environment

from vedette.interfaces.cli.error_codes import EXPLANATIONS

CI = os.environ.get("CI") == "true"
SAID = re.compile(r"error\[(?P<code>[a-z-]+)\]: (?P<what>.+?) \((?P<mend>.+)\)")

pytestmark = pytest.mark.timeout(180)


def vedette(
    folder: Path, *arguments: str, before: tuple[str, ...] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    """Give a command in a folder, as a newcomer does."""
    return subprocess.run(
        [*before, sys.executable, "-m", "vedette", *arguments],
        cwd=folder, env=environment(**environ),
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet as `init` writes it, without what takes long to hand over."""
    folder = tmp_path_factory.mktemp("newcomer") / "fleet"
    assert vedette(folder.parent, "init", "fleet").returncode == 0
    settings = (folder / "vedette.toml").read_text("utf-8")
    kept = settings.partition("# --- sources:")[0].replace(":8088", ":0")
    (folder / "vedette.toml").write_text(kept, "utf-8")
    return folder


@pytest.fixture
def fleet(template: Path, tmp_path: Path) -> Path:
    """A copy of the fleet to spoil."""
    return shutil.copytree(template, tmp_path / "fleet")


def said(done: subprocess.CompletedProcess[str], code: str, *words: str) -> None:
    """Check an error that is read aloud: one line, its code, what, and the mend."""
    assert done.returncode in (2, 3), (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    found = SAID.fullmatch(line)
    assert found is not None, line
    assert found["code"] == code, line
    assert code in EXPLANATIONS
    for word in words:
        assert word in line, (word, line)


def found(
    done: subprocess.CompletedProcess[str],
    code: str,
    where: str,
    *words: str,
    warning: bool = False,
) -> None:
    """Check a finding of `vedette check --json`."""
    problems = json.loads(done.stdout)["problems"]
    (problem,) = [p for p in problems if p["code"] == code]
    assert f"{problem['file']}:{problem['line']}".startswith(where), problem
    assert problem["mend"], problem
    assert problem["warning"] is warning
    assert code in EXPLANATIONS
    for word in words:
        assert word in problem["what"] + problem["mend"], (word, problem)


def test_1_a_typo_in_a_verb(fleet: Path) -> None:
    said(vedette(fleet, "rum"), "usage", "'rum'", "did you mean `vedette run`?")
    said(vedette(fleet, "zzz"), "usage", "'zzz'", "see `vedette --help`")


def test_2_a_missing_policy(fleet: Path) -> None:
    (fleet / "policies").rename(fleet / "elsewhere")
    said(vedette(fleet, "run", "--until-idle"), "no-policy", "policies", "bring it back")
    checked = vedette(fleet, "check", "--json")
    assert checked.returncode == 1
    found(checked, "no-policy", "policies", "bring it back")


def test_3_an_agent_without_a_grant(fleet: Path) -> None:
    grants = fleet / "policies" / "grants" / "data.yaml"
    text = grants.read_text("utf-8")
    assert "inbox_triage:" in text
    grants.write_text(text.replace("inbox_triage:", "somebody_else:"), "utf-8")
    checked = vedette(fleet, "check", "--json")
    found(checked, "no-grant", "agents/inbox_triage/agent.yaml", "grants/data.yaml", warning=True)


def test_2_data_of_the_policy_that_cannot_be_read(fleet: Path) -> None:
    """It is one problem among the others, by file and line, and hides none of them."""
    (fleet / "policies" / "limits" / "data.yaml").write_text("agents: {\n  bad\n", "utf-8")
    charter = fleet / "agents" / "inbox_triage" / "agent.yaml"
    charter.write_text(charter.read_text("utf-8").replace("max_turns:", "max_turms:"), "utf-8")
    checked = vedette(fleet, "check", "--json")
    assert checked.returncode == 1
    found(checked, "bad-policy", "policies/limits/data.yaml", "expected")
    found(checked, "no-such-key", "agents/inbox_triage/agent.yaml", "max_turns")


def test_3_a_limit_of_a_grant_that_is_misspelt(fleet: Path) -> None:
    grants = fleet / "policies" / "grants" / "data.yaml"
    text = grants.read_text("utf-8")
    mistyped = text.replace("mail.file: {", "mail.file: {onyl: {/folder: [Invoices]}, ")
    assert mistyped != text
    grants.write_text(mistyped, "utf-8")
    checked = vedette(fleet, "check", "--json")
    found(
        checked, "no-such-key", "policies/grants/data.yaml", "did you mean 'only'", warning=True
    )  # fmt: skip


def test_4_a_wrong_type_in_yaml(fleet: Path) -> None:
    file = fleet / "agents" / "inbox_triage" / "agent.yaml"
    text = file.read_text("utf-8")
    line = text[: text.index("max_turns:")].count("\n") + 1
    file.write_text(text.replace("max_turns: 1", 'max_turns: "one"'), "utf-8")
    checked = vedette(fleet, "check", "--json")
    assert checked.returncode == 1
    found(checked, "wrong-type", f"agents/inbox_triage/agent.yaml:{line}", "whole number", "'one'")
    said(vedette(fleet, "run", "--until-idle"), "wrong-type", f"agent.yaml:{line}", "max_turns")


def test_5_two_agents_of_one_name(fleet: Path) -> None:
    shutil.copytree(fleet / "agents" / "inbox_triage", fleet / "agents" / "front_desk")
    checked = vedette(fleet, "check", "--json")
    found(checked, "duplicate-name", "agents/front_desk/agent.yaml:", "two agents",
          "write name: front_desk")  # fmt: skip


def test_6_a_port_that_is_taken(fleet: Path) -> None:
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        file = fleet / "vedette.toml"
        text = file.read_text("utf-8").replace("127.0.0.1:0", f"127.0.0.1:{port}")
        file.write_text(text.replace("fallback = true", "fallback = false"), "utf-8")
        done = vedette(fleet, "run", "--until-idle")
    said(done, "port-taken", str(port), "port 0")


def test_7_no_space(fleet: Path, tmp_path: Path) -> None:
    need_mounts(mounts())
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size=64k tmpfs {shlex.quote(str(disk))} && exec "$@"'
    done = vedette(
        fleet, "run", "--until-idle", before=("unshare", "-rm", "sh", "-c", mount, "sh"),
        VEDETTE_STATE=str(disk / "state"),
    )  # fmt: skip
    said(done, "no-space", "disk", "make room")


def test_8_no_permission(fleet: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    # Root passes every permission; without that capability it does not.
    plain = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") * (os.geteuid() == 0)
    if plain and shutil.which("setpriv") is None:
        if CI:
            pytest.fail("setpriv is missing: it belongs to util-linux")
        pytest.skip("run as root, this needs setpriv (util-linux)")
    done = vedette(fleet, "run", "--until-idle", before=plain, VEDETTE_STATE=str(closed / "state"))
    said(done, "no-permission", str(closed), "VEDETTE_STATE")


def test_9_a_python_that_is_too_old(fleet: Path) -> None:
    code = "import sys; sys.version_info = (3, 9, 18, 'final', 0); import vedette"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env=environment(),
    )  # fmt: skip
    assert done.returncode == 1
    assert SAID.fullmatch(done.stderr.strip()), done.stderr
    assert "3.11 or newer" in done.stderr
    assert "wrong-python" in EXPLANATIONS


@pytest.fixture
def running(fleet: Path) -> Iterator[int]:
    """A run that is at work; its process id."""
    with ExitStack() as closing_up:
        process = subprocess.Popen(
            [sys.executable, "-m", "vedette", "run", "--plain"], cwd=fleet,
            env=environment(),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        closing_up.callback(process.communicate)
        closing_up.callback(process.terminate)
        for _ in range(300):
            if vedette_is_up(fleet):
                break
            assert process.poll() is None
            try:
                process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
        yield process.pid


def vedette_is_up(fleet: Path) -> bool:
    from vedette.interfaces.http.local_client import LocalClient

    return LocalClient(fleet / ".vedette").is_alive()


def test_10_a_run_that_is_running_already(fleet: Path, running: int) -> None:
    said(vedette(fleet, "run", "--until-idle"), "store-busy", str(running), "stop it")
