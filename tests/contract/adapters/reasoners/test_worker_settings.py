"""What settings and agent.yaml say about worker processes, and how a worker confines itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.workers import alive, until

from vedette.adapters.reasoners.workers.confinement import resident_bytes
from vedette.config.fleet import load_fleet
from vedette.config.settings import Isolation, Settings, load_settings
from vedette.domain.agent import ResourceLimits
from vedette.domain.base.errors import BadFleet
from vedette.testing.toy_fleet import World, toy_fleet


def settings(folder: Path, text: str = "") -> Settings:
    file = folder / "vedette.toml"
    file.write_text(f'fleet = "harbour"\n{text}')
    return load_settings(file)


def test_a_fleet_isolates_its_agents_unless_told_otherwise(tmp_path: Path) -> None:
    assert settings(tmp_path).isolation == Isolation(True, 300_000_000)
    isolation = settings(tmp_path, '[isolation]\nworkers = "none"\nidle = "30s"\n')
    assert isolation.isolation == Isolation(False, 30_000_000)
    assert Settings.of(tmp_path).isolation == Isolation(False, 300_000_000)
    isolation = settings(tmp_path, '[isolation]\nbox = "none"\nrequire = true\n')
    assert (isolation.isolation.sandbox, isolation.isolation.require_sandbox) == (False, True)


@pytest.mark.parametrize(
    "wrong",
    ['workers = "threads"', 'idle = "soon"', 'idle = "0s"', "box = true", 'require = "very"'],
)
def test_a_wrong_isolation_is_told_with_its_line(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(BadFleet, match=r"vedette\.toml:3"):
        settings(tmp_path, f"[isolation]\n{wrong}\n")


def limits(folder: Path, text: str) -> ResourceLimits:
    fleet = toy_fleet(folder, World())
    content = fleet.content
    if text:
        with (content / "agents/worker/agent.yaml").open("a") as file:
            file.write(text)
    where = Settings.of(content, "harbour")
    where = type(where)(**{name: getattr(where, name) for name in where.__struct_fields__} | {
        "targets": fleet.targets
    })  # fmt: skip
    return load_fleet(content, where).fleet.agents["worker"].limits


def test_limits_of_an_agent(tmp_path: Path) -> None:
    assert limits(tmp_path / "a", "") == ResourceLimits(5_000_000, 512 << 20)
    text = "limits: {time: 250ms, memory: 2GiB}\n"
    assert limits(tmp_path / "b", text) == ResourceLimits(250_000, 2 << 30)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("{time: 0s}", "no time at all"),
        ("{memory: 512}", "must be text"),
        ("{memory: 512MB}", "512MiB or 2GiB"),
        ("{memory: MiB}", "512MiB or 2GiB"),
        ("{memory: 16MiB}", "at least 32MiB"),
        ("{seconds: 5}", "unknown key"),
    ],
)
def test_wrong_limits_are_told_with_their_line(tmp_path: Path, wrong: str, why: str) -> None:
    with pytest.raises(BadFleet, match=rf"agent\.yaml:\d+: .*{why}"):
        limits(tmp_path, f"limits: {wrong}\n")


def test_the_size_of_a_process_is_told_with_and_without_proc() -> None:
    mine = resident_bytes(os.getpid(), "/nowhere")
    assert mine > 10_000_000
    if Path("/proc/self/statm").exists():
        assert abs(resident_bytes(os.getpid()) - mine) < mine / 2
    assert resident_bytes(0) == 0
    assert resident_bytes(2**22 + 1, "/nowhere") == 0


ORPHAN = """
import os, subprocess, sys, time
child = [sys.executable, "-c", "import sys, time; sys.platform = {platform!r};"
    "from vedette.adapters.reasoners.workers import confinement as confine;"
    "confine._die_with_parent();"
    "print('ready', flush=True); time.sleep(60)"]
process = subprocess.Popen(child, stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("platform", [sys.platform, "darwin"])
async def test_a_worker_dies_with_its_parent_on_either_system(platform: str) -> None:
    parent = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", ORPHAN.format(platform=platform)], stdout=subprocess.PIPE
    )
    try:
        assert parent.stdout is not None
        pid = int(await asyncio.to_thread(parent.stdout.readline))
        assert alive(pid)
        parent.kill()
        await until(lambda: not alive(pid), 5)
    finally:
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()
