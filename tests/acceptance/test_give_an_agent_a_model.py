"""docs/guides/models.md, done word for word: from `vedette init` to a mail that a model has filed.

Nothing but what the page shows is written, but for the address of the test server and of /v1 here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
OTHER_WIRES = {
    "anthropic": {'"gemini"': '"anthropic"', "gemini-3-flash": "claude-opus-5-5"},
    "openai": {'"gemini"': '"openai"', "gemini-3-flash": "gpt-5.5"},
}

pytestmark = pytest.mark.timeout(240)


TRIAL = "## Try it before it acts"


def block(kind: str, *, trial: bool = False) -> str:
    """Return the only block of a kind of the page's main part, or of its part on trials."""
    main, rest = PAGE.read_text("utf-8").split(TRIAL)
    text = rest if trial else main
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.S)
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
        last = PAGE.read_text("utf-8").splitlines().index(TRIAL)
        shown = doc_page.commands(PAGE)
        self.commands = [one.command for one in shown if one.line < last]
        self.trial = [one.command for one in shown if one.line > last]

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

    @contextmanager
    def running(self) -> Iterator[Path]:
        """Have the page's fleet run while the context lasts; what it prints is in the file."""
        environ, log = {**self.shell.environ, "GEMINI_API_KEY": KEY}, self.shell.folder / "run.log"
        with log.open("w") as printed, subprocess.Popen(
            ["bash", "-c", f"exec {self.commands[2]}"],
            cwd=self.shell.folder, env=environ, stdout=printed, stderr=printed,
        ) as running:  # fmt: skip
            try:
                yield log
            finally:
                running.terminate()
                running.wait(60)

    def agree(self, command: str) -> str:
        """Carry a command out at a terminal and say yes to what it asks; return what it shows."""
        ours, theirs = os.openpty()
        with os.fdopen(ours, "rb+", buffering=0) as terminal:
            with subprocess.Popen(
                ["bash", "-c", command], cwd=self.shell.folder, env=dict(self.shell.environ),
                stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            ) as asking:  # fmt: skip
                os.close(theirs)
                shown = b""
                while b"?" not in shown.rpartition(b"approve")[2]:
                    shown += terminal.read(4096) or b""
                terminal.write(b"y\n")
                with suppress(OSError):  # so a terminal says that all programs have left it
                    while more := terminal.read(4096):
                        shown += more
            assert asking.returncode == 0, shown.decode()
        return shown.decode()

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
    _, check, _, look, approve = person.commands
    person.give_a_model(WIRES[wire])
    assert "ok   model fast: answers as" in person.give(check, GEMINI_API_KEY=KEY)
    with person.running() as log:
        hold = ""
        until = time.monotonic() + 90
        while not hold and time.monotonic() < until:
            time.sleep(1)
            listed = person.give(f"{look} --limit 200")
            found = re.search(r"^(hold_\w+) +inbox_triage: mail.file", listed, re.MULTILINE)
            hold = found[1] if found else ""
        assert hold, log.read_text()
        said = person.agree(approve.replace("HOLD", hold))
        until = time.monotonic() + 30
        filed = person.shell.folder / ".vedette/mailbox/.Invoices"
        while not list(filed.rglob("*.harbour*")) and time.monotonic() < until:
            time.sleep(0.2)
        assert len(list(filed.rglob("*.harbour*"))) == 1, said
    assert {status for status in server.statuses if status >= 400} == set()
    assert server.max_calls_in_flight <= 8
    assert KEY not in log.read_text()


@pytest.mark.parametrize("wire", sorted({*WIRES, *OTHER_WIRES} - {"ollama"}))
def test_eighty_mails_by_a_strict_provider_with_thinking_on(
    server: ModelServer, tmp_path: Path, wire: str
) -> None:
    """Every run is done, nothing is refused: whatever a provider signs goes back unchanged."""
    person = Person(tmp_path, server.url + ("/v1" if wire == "openai" else ""))
    faster = {"calls_per_minute = 60": "calls_per_minute = 6000"}
    person.give_a_model({**WIRES, **OTHER_WIRES}[wire] | faster)
    limits = person.shell.folder / "policies/limits/data.yaml"  # nobody has measured it
    text = limits.read_text("utf-8")
    assert text.count("    inbox_triage:\n      default: 800\n") == 1
    limits.write_text(
        text.replace("inbox_triage:\n      default: 800", "inbox_triage:\n      default: 0")
    )
    done: list[str] = []
    with person.running() as log:
        until = time.monotonic() + 150
        while len(done) < 80 and time.monotonic() < until:
            time.sleep(2)
            listed = person.give("vedette runs --agent inbox_triage --limit 100")
            done = re.findall(r"inbox_triage +done$", listed, re.MULTILINE)
        assert len(done) == 80, listed[-300:] + log.read_text()[-300:]
    assert {status: n for status, n in server.statuses.items() if status != 200} == {}
    assert server.statuses[200] == 160
    assert 1 <= server.max_calls_in_flight <= 8
    filed = person.shell.folder / ".vedette/mailbox/.Invoices"
    assert len(list(filed.rglob("*.harbour*"))) == 80


def test_an_agent_is_tried_before_it_acts(server: ModelServer, tmp_path: Path) -> None:
    """What the model says is kept; after that nobody is asked, and no key is needed."""
    person = Person(tmp_path, server.url)
    record, replay, look_back, ask_anew = person.trial

    def give(command: str, **environ: str) -> str:
        return " ".join(person.give(command, **environ).split())  # of the terminal's width

    person.give_a_model(WIRES["gemini"])
    evals = person.shell.folder / "agents/inbox_triage/evals"
    for file in evals.glob("*.yaml"):
        file.unlink()
    (evals / "model.yaml").write_text(block("yaml", trial=True))
    assert "not recorded: vedette check cases inbox_triage --live --record" in give(replay)
    out = give(record, GEMINI_API_KEY=KEY)
    assert "1 cases, 1 as expected, 0 not" in out
    assert "2 turns, 2 calls, 200 + 40 tokens, cost unknown, recoveries: none" in out
    asked = dict(server.statuses)
    assert "1 cases, 1 as expected, 0 not" in give(replay)
    assert dict(server.statuses) == asked, "nobody was asked"
    assert "0 problems" in give("vedette check")
    assert "GEMINI_API_KEY is not set" in give(record)

    with person.running() as log:
        hold = None
        until = time.monotonic() + 90
        while hold is None and time.monotonic() < until:
            time.sleep(1)
            listed = person.give(f"{person.commands[3]} --limit 200")
            hold = re.search(r"^(hold_\w+) +inbox_triage: mail.file", listed, re.MULTILINE)
        assert hold, log.read_text()
    asked = dict(server.statuses)
    said = give(look_back.replace("EVENT", hold[1]))
    assert "a recording: gemini-3-pro-preview said this at" in said
    assert "mail.file: would wait for a person" in said
    assert dict(server.statuses) == asked, "nobody was asked"
    anew = give(ask_anew.replace("EVENT", hold[1]), GEMINI_API_KEY=KEY)
    assert "gemini-3-pro-preview was asked anew" in anew
    assert server.statuses[200] == asked[200] + 1
    assert KEY not in "".join(path.read_text() for path in evals.rglob("*.*"))


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
        return " ".join(out.split())  # of the terminal's width

    live = "vedette check --live"
    assert "GEMINI_API_KEY is not set" in said(agent, "version: 1", "version: 1", live)
    assert "GEMINI_API_KEY is not set" in said(agent, "version: 1", "version: 1", "vedette run")
    out = said(agent, "model: fast", "model: fats")
    assert re.search(r"agent.yaml:5: model: .*models.fats.*\(did you mean 'fast'\?\)", out), out
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


def test_a_judge_goes_first_and_the_model_is_asked_of_the_rest(
    server: ModelServer, tmp_path: Path
) -> None:
    """The page's last block, in workers of their own: what the judge settles asks nobody."""
    person = Person(tmp_path, server.url)
    person.give_a_model(WIRES["gemini"] | {"calls_per_minute = 60": "calls_per_minute = 6000"})
    agent = person.shell.folder / "agents/inbox_triage/agent.yaml"
    first, model, shares = block("text").splitlines()
    text = agent.read_text("utf-8")
    (named,) = [line for line in text.splitlines() if line.startswith(model)]
    agent.write_text(text.replace(f"{named}\n", f"{first}\n{named}\n{shares}\n"))
    with person.running() as log:
        until = time.monotonic() + 150
        waking: dict[str, int] = {}
        while sum(waking.values()) < 80 and time.monotonic() < until:
            time.sleep(2)
            listed = person.give("vedette runs --agent inbox_triage --limit 100")
            states = re.findall(r"inbox_triage +(done|waiting)\b", listed)
            waking = {state: states.count(state) for state in ("done", "waiting")}
        assert sum(waking.values()) == 80, listed[-300:] + log.read_text()[-300:]
        time.sleep(2)
        found = json.loads(person.give("vedette report --json"))
        (one,) = [each for each in found["wakeups"] if each["agent"] == "inbox_triage"]
    asked = server.statuses[200]
    assert 0 < asked < 80
    assert one["model_calls"] == asked
    # Nobody has measured the model: each run that asked it waits for a person.
    assert waking["waiting"] >= asked
    assert one["at_no_cost"] > 0
    assert one["by_model"] == 0
    held = person.give("vedette hold --limit 200")
    hold = re.search(r"^(hold_\w+) +inbox_triage: mail.file", held, re.MULTILINE)
    assert hold is not None
    assert "opinion   the judge says" in person.give(f"vedette hold {hold[1]}")
