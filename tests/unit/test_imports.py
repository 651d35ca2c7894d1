"""`import vedette` and `vedette --help` load no vendor; a start loads few before its first event.

A fleet's start, and every short verb, would else pay for what it does not use, and a missing or
broken vendor would take down commands that never needed it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.bench.start_fleet import TOOLS, SmallFleet, events, small_fleet

VENDORS = frozenset(
    {
        "aiohttp",
        "apscheduler",
        "apsw",
        "cryptography",
        "google",
        "grpc",
        "httpcore",
        "httpx",
        "jsonschema",
        "numpy",
        "opa_client",
        "prometheus_client",
        "psutil",
        "pydantic",
        "pydantic_settings",
        "re2",
        "regorus",
        "rich",
        "snowballstemmer",
        "sqlite3",
        "stamina",
        "starlette",
        "uvicorn",
        "watchdog",
        "yaml",
    }
)

IMPORT = "import vedette"
HELP = """
sys.argv = ["vedette", "--help"]
from vedette.interfaces.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""
# Last line of the output, since --help prints too.
REPORT = "\nprint(*sorted({name.partition('.')[0] for name in sys.modules}))"


def loaded(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after running `code`."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys\n" + code + REPORT],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("code", [IMPORT, HELP], ids=["import", "help"])
def test_no_vendor_is_loaded(code: str) -> None:
    modules = loaded(code)
    assert "vedette" in modules
    assert not modules & VENDORS


@pytest.mark.parametrize("vendor", ["psutil", "google.auth", "yaml"])
def test_a_loaded_vendor_would_be_seen(vendor: str) -> None:
    assert loaded(f"import {vendor}") & VENDORS


def test_help_is_really_run() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys\n" + HELP],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Usage: vedette" in done.stdout


# What a fleet may hold when it does its first event; the rest is loaded while it works.
FIRST = frozenset({"apsw", "cryptography", "regorus", "yaml"})
# What it may not hold then, of ours and of Python's: it cost every start its time once.
LATER = frozenset(
    {
        "email",
        "html",
        "http",
        "sqlite3",
        "statistics",
        "zoneinfo",
        "vedette.adapters.host.source",
        "vedette.adapters.schedule.source",
        "vedette.operations.corrections",
        "vedette.operations.scaffold",
        "vedette.judging.examples",
        "vedette.app.doctor",
        "vedette.adapters.mail",
        "vedette.interfaces.http.server",
        "vedette.ledger.history.entry_view",
        "vedette.app.dry_run",
        "vedette.ledger.verify",
    }
)
# Tells what is loaded when the tool is first called, and at each call after.
TELLS = """
import sys as _sys
_light = light
def light(call):
    with open(call.target["path"] + ".modules", "a") as record:
        print(*sorted(_sys.modules), file=record)
    return _light(call)
"""


def loaded_at_effects(fleet: SmallFleet, then: str = "") -> list[set[str]]:
    """Run a fleet; return what was loaded at the effect of its first event, and of one more.

    The second event is given when the local API is there.
    """
    from vedette.interfaces.http.unix_socket import socket_of

    path = fleet.record.with_name(f"{fleet.record.name}.modules")
    process = subprocess.Popen(
        [sys.executable, "-m", "vedette", "--config", str(fleet.config), "run", "--plain"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )

    def until(lines: int) -> None:
        end = time.monotonic() + 60
        while not path.exists() or path.read_text().count("\n") < lines:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.02)

    try:
        until(1)
        while not socket_of(fleet.state).exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        send = [sys.executable, "-m", "vedette", "--config", str(fleet.config), "send"]
        event = fleet.config.with_name("event.json")
        event.write_text(events(1, first=1))
        subprocess.run([*send, str(event), "--reason", "test"], check=True, capture_output=True)
        until(2)
    finally:
        process.kill()
        process.communicate()
    return [set(line.split()) for line in path.read_text().splitlines()]


def test_a_start_loads_no_more_than_the_first_event_needs(tmp_path: Path) -> None:
    fleet = small_fleet(tmp_path, events(1))
    (tmp_path / "agents" / "beacon" / "tools.py").write_text(TOOLS + TELLS)
    with fleet.config.open("a") as settings:
        # So that the tool sees what the engine holds, and not what a worker does.
        settings.write('[isolation]\nworkers = "none"\n')
    first, second = loaded_at_effects(fleet)
    assert first & VENDORS <= FIRST
    assert not first & LATER
    # The control: what is served with is loaded by then, and would have been seen.
    assert {"starlette", "uvicorn"} <= second
    assert {
        "vedette.ledger.history.entry_view",
        "vedette.interfaces.http.server",
        "http",
        "email",
    } <= second & LATER


def test_the_trial_of_a_policy_and_the_fork_server_begin_before_the_event_loop_is_loaded() -> None:
    """What another process works on meanwhile is begun before what this one needs itself."""
    begins = """
import vedette.interfaces.cli.run, vedette.config.settings
from vedette.adapters.policy_engines.regorus.stage import SubprocessStage
from vedette.adapters.reasoners.workers.fork_server_start import ForkServerProcess
"""
    assert "asyncio" not in loaded(begins)
    assert "asyncio" in loaded(begins + "import vedette.app.composition_root")
