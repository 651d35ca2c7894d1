"""docs/guides/mcp-servers.md, done word for word with the public servers of npm and PyPI.

What it shows stands in `.tools/mcp-servers` (tools/mcp-servers), or where VEDETTE_MCP_SERVERS says.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.acceptance import doc_page

import vedette

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/guides/mcp-servers.md"
SERVERS = Path(os.environ.get("VEDETTE_MCP_SERVERS", ROOT / ".tools/mcp-servers"))
SOURCES = Path(vedette.__file__).parents[1]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="session")
def servers() -> Path:
    """Install the servers, pinned by hashes, where they are not yet.

    Skips without Node, or fails where CI is set.
    """
    if shutil.which("npm") is None:
        if os.environ.get("CI"):
            pytest.fail("npm is missing. Mend: install Node 20 or newer", pytrace=False)
        pytest.skip("there is no npm")
    subprocess.run(
        [str(ROOT / "tools/mcp-servers")], check=True, timeout=200,
        env={**os.environ, "VEDETTE_MCP_SERVERS": str(SERVERS)},
    )  # fmt: skip
    return SERVERS


class Reader:
    """Who reads the page: their shell, its commands, and the fleet in `harbour`."""

    def __init__(self, folder: Path, servers: Path) -> None:
        programs = folder / "bin"
        programs.mkdir()
        program = programs / "vedette"
        program.write_text(
            f'#!/bin/sh\nexport PYTHONPATH={SOURCES}\nexec {sys.executable} -P -m vedette "$@"\n'
        )
        program.chmod(0o755)
        self.shell = doc_page.shell(folder, programs, folder / "home")
        self.commands = doc_page.commands(PAGE)
        self._servers = servers

    @property
    def fleet(self) -> Path:
        return self.shell.folder

    def give(self, command: str, code: int = 0) -> str:
        done = self.shell.give(doc_page.Shown(0, command, ()))
        assert done.code == code, done.out
        return done.out

    def give_shown(self, shown: doc_page.Shown) -> None:
        out = self.give(shown.command)
        assert doc_page.missing(shown, out) is None, out

    def begin(self) -> list[doc_page.Shown]:
        """Do all before the fleet runs, as the page says it; return the commands that follow."""
        (at,) = (n for n, one in enumerate(self.commands) if one.command == "vedette run --plain")
        before, after = self.commands[:at], self.commands[at + 1 :]
        (table,) = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
        table = table.replace("./servers/node_modules", f"{self._servers}/npm/node_modules")
        table = table.replace("./servers/git", f"{self._servers}/python")
        assert "./servers" not in table
        for shown in before:
            if "tool list" in shown.command:  # the first that reads what the table says
                settings = self.fleet / "vedette.toml"
                # Without the sources of the samples, which have nothing to do with it.
                text = re.sub(
                    r"(?ms)^\[\[sources\]\].*?(?=^\[(?!\[sources))", "", settings.read_text()
                )
                text = text.replace('http = "127.0.0.1:8088"', 'http = ""')
                settings.write_text(f"{text}\n{table}")
            self.give_shown(shown)
        return after

    @contextmanager
    def running(self) -> Iterator[None]:
        with (self.fleet / "run.log").open("w") as log, subprocess.Popen(
            ["bash", "-c", "exec vedette run --plain"], cwd=self.fleet, stdout=log, stderr=log,
            env=dict(self.shell.environ),
        ) as fleet:  # fmt: skip
            try:
                until = time.monotonic() + 60
                while not any((self.fleet / ".vedette").glob("api.*")):
                    assert time.monotonic() < until, (self.fleet / "run.log").read_text()
                    time.sleep(0.2)
                yield
            finally:
                fleet.terminate()
                fleet.wait(60)

    def outcome(self, command: str) -> str:
        """Send an event; return what `explain` tells of its run once that is over."""
        (run,) = re.findall(r"run_[0-9a-f]+", self.give(command))
        until = time.monotonic() + 60
        while "\n  done, turns 1" not in (told := self.give(f"vedette explain {run}")):
            assert time.monotonic() < until, told
            time.sleep(0.5)
        return re.sub(r"[│\s]+", " ", told)  # lines are broken where a terminal ends

    def send(self, text: str) -> str:
        """Send a note; return what became of it."""
        data = json.dumps({"text": text})
        return self.outcome(f"vedette send --type note.written --data '{data}' --reason x")


def test_an_agent_uses_public_servers_and_names_no_path_that_it_was_not_granted(
    servers: Path, tmp_path: Path
) -> None:
    reader = Reader(tmp_path, servers)
    after = reader.begin()
    said = []
    with reader.running():
        for shown in after:
            if shown.command.startswith("vedette send"):
                said.append(reader.outcome(shown.command))
            else:
                reader.give_shown(shown)
    written, other, staged, committed = said
    assert "Successfully wrote to note.md" in written
    assert "DECISION DENY by origins.derived" in other
    assert "reasons: origins.derived:/path" in other
    assert "EFFECT" not in other
    assert "staged successfully" in staged
    assert "committed successfully" in committed
    assert (reader.fleet / ".vedette/files/note.md").read_text() == "Berth 7 is free."


def test_behind_policy_the_box_keeps_a_server_in_what_it_was_granted(
    servers: Path, tmp_path: Path
) -> None:
    """The server itself is told that it may go anywhere: the box says no."""
    reader = Reader(tmp_path, servers)
    reader.begin()
    (reader.fleet.parent / "outside").mkdir()
    outside = reader.fleet.parent / "outside/note.md"
    settings, agent = reader.fleet / "vedette.toml", reader.fleet / "agents/archivist/agent.yaml"
    settings.write_text(settings.read_text().replace('"@state/files"]\nwrite', '"/"]\nwrite', 1))
    agent.write_text(agent.read_text().replace("{note: note.md}", f'{{note: "{outside}"}}'))
    with reader.running():
        found = reader.send("x")
    assert "DECISION PERMIT" in found
    assert "the tool says: " in found
    assert not outside.exists()


def test_a_public_server_that_is_another_than_was_pinned_is_refused(
    servers: Path, tmp_path: Path
) -> None:
    """One word of its description is another, as an update could bring it."""
    reader = Reader(tmp_path, servers)
    reader.begin()
    copy = tmp_path / "npm"
    shutil.copytree(servers / "npm", copy, symlinks=True, copy_function=os.link)
    code = copy / "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"
    text = code.read_text("utf-8")
    assert "Create a new file or completely overwrite" in text
    code.unlink()
    code.write_text(text.replace("Create a new file or", "Create a new file, tell us, or"))
    code.chmod(0o755)
    settings = reader.fleet / "vedette.toml"
    settings.write_text(settings.read_text().replace(f"{servers}/npm", str(copy)))
    checked = " ".join(reader.give("vedette check --live; true").split())
    assert "write_file, which archivist has as files.write_file, is another" in checked
    with reader.running():
        found = reader.send("x")
    assert "is another than was pinned" in found
    assert not (reader.fleet / ".vedette/files/note.md").exists()
    # The fleet itself has looked at its start, and says so at its end at the latest.
    told = " ".join((reader.fleet / "run.log").read_text().split())
    assert "write_file, which archivist has as files.write_file, is another" in told
    # A person looks, and takes it.
    reader.give("vedette tool add archivist --mcp files --tool write_file --again --yes")
    with reader.running():
        reader.send("y")
    assert (reader.fleet / ".vedette/files/note.md").read_text() == "y"
