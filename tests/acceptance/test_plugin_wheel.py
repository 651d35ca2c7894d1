"""samples/plugin_logfile, built to a wheel, installed into a clean folder, and used by a fleet.

Nothing is downloaded: it is built by the hatchling of the development environment, and installed
without its dependencies, as vedette is there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from tests.bench.start_fleet import SmallFleet, small_fleet

ROOT = Path(__file__).resolve().parents[2]
TABLE = """\
[[sources]]
kind = "logfile"
name = "lamps"
path = "lamps.log"
match = "ASK (?P<subject>\\\\S+) (?P<lamp>.*)"
type = "lamp.asked"
every = "100ms"
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the wheel's content and nothing else."""
    base = tmp_path_factory.mktemp("plugin")
    source, dist, target = base / "source", base / "dist", base / "site"
    shutil.copytree(ROOT / "samples" / "plugin_logfile", source)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist)]
    subprocess.run(build, cwd=source, check=True, capture_output=True, timeout=120)
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert tops == {"vedette_logfile", "vedette_logfile-0.1.0.dist-info"}
    install = [str(ROOT / "tools" / "uv"), "pip", "install", "--offline", "--no-index", "--no-deps"]
    install += ["--no-cache", "--python", sys.executable, "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    return target


@pytest.fixture
def fleet(tmp_path: Path) -> SmallFleet:
    made = small_fleet(tmp_path, "")
    text = made.config.read_text()
    made.config.write_text(text[: text.index("[[sources]]")] + TABLE)
    return made


def vedette(fleet: SmallFleet, site: Path | None, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if site is not None:
        environ["PYTHONPATH"] = str(site)
    command = [sys.executable, "-m", "vedette", "--config", str(fleet.config), *words]
    return subprocess.run(
        command, env=environ, cwd=fleet.config.parent, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def calls(fleet: SmallFleet) -> int:
    return fleet.record.read_text().count("\n") if fleet.record.exists() else 0


def test_a_line_of_the_log_becomes_one_effect(fleet: SmallFleet, site: Path) -> None:
    log = fleet.config.with_name("lamps.log")
    log.write_text("INFO started\nASK north now\nASK half")
    done = vedette(fleet, site, "run", "--plain", "--until-idle")
    assert done.returncode == 0, done.stderr
    assert calls(fleet) == 1, done.stderr

    # Once over restarts, and a line counts when it is whole.
    with log.open("a") as more:
        more.write("way now\nnothing\n")
    done = vedette(fleet, site, "run", "--plain", "--until-idle")
    assert done.returncode == 0, done.stderr
    assert calls(fleet) == 2, done.stderr

    # A rotated file is read from its beginning.
    log.rename(log.with_suffix(".1"))
    log.write_text("ASK south later\n")
    done = vedette(fleet, site, "run", "--plain", "--until-idle")
    assert done.returncode == 0, done.stderr
    assert calls(fleet) == 3, done.stderr
    assert vedette(fleet, site, "verify").returncode == 0


def test_what_waits_for_a_person_is_told_by_a_line(fleet: SmallFleet, site: Path) -> None:
    folder = fleet.config.parent
    for place in ("agents/beacon/agent.yaml", "policies/grants/data.yaml"):
        text = (folder / place).read_text()
        at = text.index("beacon")
        (folder / place).write_text(text[:at] + text[at:].replace("mode: act", "mode: ask", 1))
    (folder / "lamps.log").write_text("ASK north now\n")
    path = folder / "notices.jsonl"
    with fleet.config.open("a") as more:
        more.write('[[notify.to]]\nkind = "logfile"\npath = "notices.jsonl"\n')
    command = [sys.executable, "-m", "vedette", "--config", str(fleet.config), "run", "--plain"]
    environ = {**os.environ, "PYTHONPATH": str(site)}
    with subprocess.Popen(command, env=environ, cwd=folder, stderr=subprocess.PIPE) as process:
        try:
            end = time.monotonic() + 90
            while not (path.exists() and path.read_text().endswith("\n")):
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < end
                time.sleep(0.1)
        finally:
            process.terminate()
            process.communicate(timeout=60)
    (notice,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert (notice["schema"], notice["agent"], notice["tool"]) == (
        "vedette.notice/1", "beacon", "lamp.light"
    )  # fmt: skip
    assert "beacon lamp.light" in notice["title"]
    assert calls(fleet) == 0


def test_its_table_is_checked_and_its_file_looked_at(fleet: SmallFleet, site: Path) -> None:
    text = fleet.config.read_text()
    fleet.config.write_text(text.replace("(?P<lamp>", "(?P<lamp").replace("100ms", "0s"))
    done = vedette(fleet, site, "check", "--json")
    document = [f"{p['file']}:{p['line']} {p['what']}" for p in json.loads(done.stdout)["problems"]]
    (line,) = [n for n, row in enumerate(text.splitlines(), 1) if row.startswith("every")]
    assert document == [f"vedette.toml:{line} '0s' is no time at all"]
    fleet.config.write_text(text.replace("(?P<lamp>", "(?P<lamp"))
    done = vedette(fleet, site, "check", "--json")
    (problem,) = json.loads(done.stdout)["problems"]
    assert (problem["line"], problem["field"]) == (line - 2, "sources[0].match")
    assert problem["what"].startswith("is no regular expression: ")


def test_without_the_wheel_the_fleet_does_not_start(fleet: SmallFleet) -> None:
    done = vedette(fleet, None, "run", "--plain", "--until-idle")
    assert done.returncode == 2
    assert "sources[0]: 'logfile' is not known here" in done.stderr
    assert not fleet.state.exists()


AGENT = """\
version: 1
name: beacon
title: Lights the lamp that an event names
owner: desk@example.org
mode: act
order_by: subject
reasoner: rules
triggers: [{on: lamp.asked}]
charter:
  lamps: [north, south]
  rules:
    - {field: lamp, has: now, label: asked, tool: lamp.light, args: {lamp: /charter/lamps/0}}
tools:
  - name: lamp.light
    verb: light
    resource: lamp
    args: {lamp: string}
    sinks: [/lamp]
    settles: queryable
    target: lamps
    logfile: {text: "{lamp} is lit"}
"""


@pytest.fixture
def codeless(fleet: SmallFleet) -> SmallFleet:
    """The same fleet, whose agent has no code: a reasoner, a tool and a target of the wheel."""
    folder = fleet.config.parent
    for name in ("judge.py", "tools.py"):
        (folder / "agents" / "beacon" / name).unlink()
    (folder / "agents" / "beacon" / "agent.yaml").write_text(AGENT)
    (folder / "lit").mkdir()
    with fleet.config.open("a") as more:
        more.write('[targets.lamps]\nkind = "logfile"\npath = "lit/lamps.jsonl"\n')
    return fleet


def lit(fleet: SmallFleet) -> list[str]:
    path = fleet.config.with_name("lit") / "lamps.jsonl"
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def test_an_agent_of_a_wheel_s_reasoner_tool_and_target(codeless: SmallFleet, site: Path) -> None:
    codeless.config.with_name("lamps.log").write_text("ASK north now\nASK south later\n")
    done = vedette(codeless, site, "run", "--plain", "--until-idle")
    assert done.returncode == 0, done.stderr
    # The rule proposed, policy permitted, the tool wrote; of the other line nothing came.
    assert lit(codeless) == ["north is lit"]
    audit = vedette(codeless, site, "audit", "targets", "--json")
    (document,) = json.loads(audit.stdout)["targets"]
    assert (audit.returncode, document["target"], document["findings"]) == (0, "lamps", [])

    # What nobody intended is found in the target's own record.
    with (codeless.config.with_name("lit") / "lamps.jsonl").open("a") as more:
        more.write('{"key": "k", "text": "by hand"}\n')
    audit = vedette(codeless, site, "audit", "targets", "--json")
    (document,) = json.loads(audit.stdout)["targets"]
    assert [one["code"] for one in document["findings"]] == ["no-intent"]
    assert vedette(codeless, site, "ledger", "verify").returncode == 0


def test_what_policy_denies_a_wheel_s_tool_does_not_do(codeless: SmallFleet, site: Path) -> None:
    grants = codeless.config.parent / "policies" / "grants" / "data.yaml"
    grants.write_text(grants.read_text().replace("lamp.light:", "lamp.other:"))
    codeless.config.with_name("lamps.log").write_text("ASK north now\n")
    done = vedette(codeless, site, "run", "--plain", "--until-idle")
    assert done.returncode == 0, done.stderr
    assert not (codeless.config.with_name("lit") / "lamps.jsonl").exists()


@pytest.mark.parametrize(
    ("old", "new", "file", "field", "what"),
    [
        ("settles: queryable", "settles: idempotent", "agents/beacon/agent.yaml",
         "tools[0].settles", "is there twice"),
        ("{lamp} is lit", "{light} is lit", "agents/beacon/agent.yaml",
         "tools[0].logfile.text", "'light' is no argument"),
        ("logfile: {text", "logfile: {txt", "agents/beacon/agent.yaml",
         "tools[0].logfile.txt", "unknown key"),
        ("tool: lamp.light", "tool: lamp.lite", "agents/beacon/agent.yaml",
         "charter.rules[0].tool", "is no tool"),
        ("reasoner: rules", "reasoner: rule", "agents/beacon/agent.yaml",
         "reasoner", "'rule' is not known here"),
        ("target: lamps", "target: record", "agents/beacon/agent.yaml",
         "tools[0].target", "is not of kind logfile"),
        ("lamps.jsonl", "lamps.log", "vedette.toml",
         "targets.lamps.path", "is no file of JSON lines"),
    ],
)  # fmt: skip
def test_each_is_checked_with_file_line_and_mend(
    codeless: SmallFleet, site: Path, old: str, new: str, file: str, field: str, what: str
) -> None:
    path = codeless.config.parent / file
    path.write_text(path.read_text().replace(old, new))
    done = vedette(codeless, site, "check", "--json")
    problems = [one for one in json.loads(done.stdout)["problems"] if one["field"] == field]
    assert len(problems) >= 1, done.stdout
    assert what in problems[0]["what"]
    assert problems[0]["file"].endswith(file)
    assert problems[0]["line"] > 0
    assert problems[0]["mend"]


def test_check_live_looks_at_a_wheel_s_target(codeless: SmallFleet, site: Path) -> None:
    done = vedette(codeless, site, "check", "--live", "--json")
    document = [one for one in json.loads(done.stdout)["live"] if one["what"] == "target lamps"]
    assert (document[0]["state"], "can be written" in document[0]["told"]) == ("ok", True), (
        done.stdout
    )
