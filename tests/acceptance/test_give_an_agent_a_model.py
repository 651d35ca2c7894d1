"""docs/guides/models.md, done word for word: from `vedette init` to a mail that a model has filed.

Nothing but what the page shows is written, but for the address of the test server and of /v1 here.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance import doc_page

import vedette
from vedette.testing.model_server import ModelServer
from vedette.testing.model_server.script import mail_agent

_SOURCES = Path(vedette.__file__).parents[1]
PAGE = Path(__file__).resolve().parents[2] / "docs/guides/models.md"
KEY = "test-key"
ARGS = {"message": "ref:/event/subject", "folder": "ref:/charter/folders/invoice"}
WIRES = {
    "gemini": {"gemini-3-flash": "gemini-3-pro-preview"},
    "ollama": {'"gemini"': '"ollama"', "gemini-3-flash": "qwen3", "key_env": "# key_env"},
}

pytestmark = pytest.mark.timeout(240)


def block(kind: str) -> str:
    """Return the page's only block of a kind."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.S)
    return str(found)


class Person:
    """Who reads the page, with a shell of their own."""

    def __init__(self, folder: Path, url: str) -> None:
        programs = folder / "bin"
        programs.mkdir(parents=True)
        self.program = programs / "vedette"
        self.find_packages_in(_SOURCES)
        self.shell = doc_page.shell(folder, programs, folder / "home")
        self.url = url
        self.commands = [shown.command for shown in doc_page.commands(PAGE)]

    def find_packages_in(self, *folders: Path) -> None:
        """Have the program look for its packages in these folders first."""
        places = ":".join(map(str, folders))
        self.program.write_text(
            f'#!/bin/sh\nexport PYTHONPATH={places}\nexec {sys.executable} -P -m vedette "$@"\n'
        )
        self.program.chmod(0o755)

    def give(self, command: str, **environ: str) -> str:
        """Carry a command out; return what it prints."""
        shell = doc_page.Shell(self.shell.folder, {**self.shell.environ, **environ})
        done = shell.give(doc_page.Shown(0, command, ()))
        self.shell.folder = shell.folder
        return done.out

    def give_a_model(self, changes: dict[str, str]) -> None:
        """Write what the page says into vedette.toml and agent.yaml."""
        self.give(self.commands[0])
        table = block("toml")
        for old, new in changes.items():
            assert old in table
            table = table.replace(old, new)
        settings = self.shell.folder / "vedette.toml"
        text = settings.read_text("utf-8").replace('http = "127.0.0.1:8088"', 'http = ""')
        settings.write_text(f'{text}\n{table}base_url = "{self.url}"\n')
        model, turns, calls = block("yaml").splitlines()
        file = self.shell.folder / "agents/inbox_triage/agent.yaml"
        text = file.read_text("utf-8")
        for old, new in (
            ("reasoner: judge\nmax_turns: 1\n", f"{model}\n{turns}\n"),
            ("\nbudget:\n", f"\nbudget:\n{calls}\n"),
        ):
            assert text.count(old) == 1
            text = text.replace(old, new)
        file.write_text(text)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(mail_agent(args=ARGS), keys=(KEY,)) as server:
        yield server


@pytest.mark.parametrize("wire", sorted(WIRES))
def test_from_nothing_to_a_mail_that_a_model_has_filed(
    server: ModelServer, tmp_path: Path, wire: str
) -> None:
    person = Person(tmp_path, server.url)
    assert len(person.commands) == 5
    _, check, run, look, approve = person.commands
    person.give_a_model(WIRES[wire])
    assert "ok   model fast: answers as" in person.give(check, GEMINI_API_KEY=KEY)
    environ = {**person.shell.environ, "GEMINI_API_KEY": KEY}
    log = (tmp_path / "run.log").open("w")
    with (
        log,
        subprocess.Popen(
            ["bash", "-c", f"exec {run}"],
            cwd=person.shell.folder,
            env=environ,
            stdout=log,
            stderr=log,
        ) as running,
    ):
        try:
            hold = ""
            until = time.monotonic() + 90
            while not hold and time.monotonic() < until:
                time.sleep(1)
                listed = person.give(f"{look} --limit 200")
                found = re.search(r"^(hold_\w+) +inbox_triage: mail.file", listed, re.MULTILINE)
                hold = found[1] if found else ""
            assert hold, (tmp_path / "run.log").read_text()
            said = person.give(approve.replace("HOLD", hold))
            filed = person.shell.folder / ".vedette/mailbox/.Invoices"
            while not list(filed.rglob("*.harbour*")) and time.monotonic() < until:
                time.sleep(0.2)
            assert len(list(filed.rglob("*.harbour*"))) == 1, said
        finally:
            running.terminate()
            running.wait(60)
    assert {status for status in server.statuses if status >= 400} == set()
    assert server.max_calls_in_flight <= 8
    assert KEY not in (tmp_path / "run.log").read_text()


def test_each_wrong_step_ends_in_one_sentence_and_its_mend(
    server: ModelServer, tmp_path: Path
) -> None:
    person = Person(tmp_path, server.url)
    person.give_a_model(WIRES["gemini"])
    fleet = person.shell.folder
    agent, settings = fleet / "agents/inbox_triage/agent.yaml", fleet / "vedette.toml"
    before = {file: file.read_text("utf-8") for file in (agent, settings)}

    def said(file: Path, old: str, new: str, command: str = "vedette check") -> str:
        assert old in before[file]
        file.write_text(before[file].replace(old, new))
        out = person.give(command)
        file.write_text(before[file])
        assert "Traceback" not in out
        return out

    live = "vedette check --live"
    assert "GEMINI_API_KEY is not set" in said(agent, "version: 1", "version: 1", live)
    assert "GEMINI_API_KEY is not set" in said(agent, "version: 1", "version: 1", "vedette run")
    out = said(agent, "model: fast", "model: fats")
    assert re.search(r"agent.yaml:5: model: .*'fats'.*\(.*fast.*\)", out), out
    out = said(agent, "model_calls_per_day: 200", "model_calls_per_day: 0")
    assert re.search(r"agent.yaml:\d+: budget.model_calls_per_day: has room for 0.*\(write", out)
    out = said(agent, "max_turns: 4", "max_turns: 1")
    assert re.search(r"agent.yaml:6: max_turns: .*\(write max_turns: 4\)", out), out
    out = said(agent, "model: fast", "model: fast\nreasoner: judge")
    assert re.search(r"agent.yaml:5: model: a judge asks no model.*\(remove", out), out
    out = said(settings, '"gemini-3-pro-preview"', '"gemini-4-nothing"')
    assert "problem" not in out or "0 problems" in out, "whether it exists the provider knows"
    wrong = {"GEMINI_API_KEY": "another"}
    assert re.search(r"FAIL model fast: .*key.*\n +mend: ", person.give(live, **wrong))


def test_a_missing_extra_is_named_with_its_mend(tmp_path: Path) -> None:
    """Without the package the command is one sentence, and no traceback."""
    person = Person(tmp_path, "https://models.example")
    changes = {'"gemini"': '"anthropic"', "gemini-3-flash": "claude-opus-5-5"}
    person.give_a_model(changes)
    hidden = tmp_path / "hidden/anthropic"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError('no anthropic')\n")
    person.find_packages_in(hidden.parent, _SOURCES)
    out = person.give("vedette check --live", GEMINI_API_KEY=KEY)
    assert 'pip install "vedette[anthropic]"' in " ".join(out.split())
    assert "Traceback" not in out
