"""`vedette tool`: what is read off a server, asked, and written into agent.yaml."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.said import START, environment, vedette

from vedette.adapters.mcp.target import MCP
from vedette.app.workers import assess_containment
from vedette.config.settings import load_settings
from vedette.config.yaml import parse_yaml
from vedette.interfaces.cli.fleet import load_agents

RAW = Path(__file__).parents[1] / "adapters/mcp/raw_server.py"
AGENT = "agents/inbox_triage/agent.yaml"


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    folder = tmp_path / "fleet"
    assert vedette(tmp_path, "init", str(folder)).code == 0
    tables = [
        f'[targets.{name}]\nkind = "mcp"\ncommand = ["{sys.executable}", "{RAW}", "{name}"]\n'
        f'read = ["{RAW}"]\nenvironment = {{MARK = "{tmp_path}/mark/mark"}}\n'
        f'write = ["{tmp_path}/mark"]\n'
        for name in ("raw", "remote-ref")
    ]
    settings = folder / "vedette.toml"
    settings.write_text("\n".join([settings.read_text(), *tables]))
    return folder


def add(fleet: Path, *arguments: str) -> tuple[int, str]:
    done = vedette(fleet, "tool", "add", "inbox_triage", "--mcp", *arguments)
    return done.code, " ".join((done.out + done.err).split())


def declared(fleet: Path) -> list[dict[str, Any]]:
    document, problems = parse_yaml((fleet / AGENT).read_text(), AGENT)
    assert not problems
    return [tool for tool in document.value["tools"] if "mcp" in tool]


def test_a_tool_is_written_pinned_and_may_not_be_used_before_policy_grants_it(
    fleet: Path,
) -> None:
    before = (fleet / AGENT).read_text()
    code, told = add(fleet, "raw", "--tool", "echo", "--tool", "orders", "--yes")
    assert code == 0, told
    assert "may use none of it before a grant" in told
    after = (fleet / AGENT).read_text()
    assert after.startswith(before.rstrip("\n"))
    assert "Does echo" not in after
    one, two = declared(fleet)
    assert one["name"] == "raw.echo"
    assert one["sinks"] == two["sinks"] == ["/text"]
    assert one["settles"] == "none"
    assert vedette(fleet, "check").code == 0
    shown = vedette(fleet, "agent", "show", "inbox_triage").out
    assert "raw.echo" in shown
    # What is there is not taken again by itself, and what differs is looked at.
    code, told = add(fleet, "raw", "--tool", "echo", "--yes")
    assert code == 2
    assert "has the server's tool echo already" in told
    (fleet.parent / "mark").mkdir(exist_ok=True)
    (fleet.parent / "mark/mark").touch()
    code, told = add(fleet, "raw", "--tool", "echo", "--again", "--yes")
    assert code == 0, told
    assert [tool["mcp"] for tool in declared(fleet)] != [one["mcp"], two["mcp"]]
    assert declared(fleet)[1] == two


def test_how_much_harm_a_tool_can_do_is_not_suggested(fleet: Path) -> None:
    _, told = add(fleet, "raw", "--tool", "echo", "--yes")
    assert "raw.echo: {verb: echo, resource: raw, impact: IMPACT}" in told
    assert "impact: low" not in told


def test_what_is_said_with_again_is_written_and_what_is_not_said_stays(fleet: Path) -> None:
    first = ("--settles", "idempotent", "--errors", "not_done", "--yes")
    assert add(fleet, "raw", "--tool", "echo", *first)[0] == 0
    (one,) = declared(fleet)
    assert one["mcp"]["errors"] == "not_done"
    code, told = add(fleet, "raw", "--tool", "echo", "--again", "--yes")
    assert code == 0, told
    assert "settles: idempotent; errors: not_done" in told
    assert declared(fleet) == [one]
    said = ("--settles", "none", "--errors", "unknown", "--description", "new: words", "--yes")
    code, told = add(fleet, "raw", "--tool", "echo", "--again", *said)
    assert code == 0, told
    assert "settles: none; errors: unknown" in told
    (two,) = declared(fleet)
    assert (two["settles"], two["description"]) == ("none", "new: words")
    assert "errors" not in two["mcp"]
    code, told = add(fleet, "raw", "--tool", "echo", "--again", "--description", " ", "--yes")
    assert code == 2
    assert "a description has no words" in told
    assert declared(fleet) == [two]


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("write", "./vedette.toml"), ("write", "./agents/inbox_triage"), ("write", "./policies/x"),
        ("write", "./memory"), ("write", "."), ("write", "@state/programs"),
        ("write", "@state/releases/x"), ("write", "@state/scratch"), ("write", "@state/identities"),
        ("read", "@state/ledger.key"), ("read", "@state/policy.key"), ("read", "@state/store.db"),
        ("read", "./tokens"), ("write", "./tokens/github"),
    ],
)  # fmt: skip
def test_no_program_opens_what_is_the_engines(fleet: Path, key: str, path: str) -> None:
    settings = fleet / "vedette.toml"
    (fleet / "tokens").mkdir()
    (fleet / "tokens/github").write_text("x")
    opened = path if path.startswith("@") else str(fleet / path)
    table = f'\n[targets.mine]\nkind = "mcp"\ncommand = ["sh"]\n{key} = ["{opened}"]\n'
    secret = 'token_file = "./tokens/github"\nsecrets = {TOKEN = "token"}\n'
    settings.write_text(settings.read_text() + table + secret)
    done = vedette(fleet, "check")
    told = " ".join((done.out + done.err).split())
    assert done.code == 1, told
    assert "tools would reach" in told


def test_udp_of_a_servers_program_is_a_gap_of_the_box(fleet: Path) -> None:
    def gaps() -> list[str]:
        settings = load_settings(fleet / "vedette.toml")
        return assess_containment(settings, load_agents(settings).fleet.agents).gaps()

    assert add(fleet, "raw", "--tool", "echo", "--yes")[0] == 0
    assert not any("UDP" in gap for gap in gaps())
    settings = fleet / "vedette.toml"
    text = settings.read_text().replace('"raw"]\n', '"raw"]\nreach = ["192.0.2.1:443"]\n')
    settings.write_text(text)
    assert not any("UDP" in gap for gap in gaps())
    settings.write_text(text.replace("192.0.2.1:443", "api.example.com:443"))
    assert any("UDP" in gap and "inbox_triage" in gap for gap in gaps())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nowhere", "--tool", "echo", "--yes"), "no target 'nowhere' of kind mcp"),
        (("raw", "--tool", "ecko", "--yes"), "did you mean 'echo'"),
        (("raw", "--yes"), "add --tool NAME"),
        (("raw", "--tool", "echo"), "nobody can be asked here"),
        (("raw", "--tool", "echo", "--tool", "ask", "--sink", "/text", "--yes"), "of one tool"),
        (("raw", "--tool", "echo", "--sink", "/txt", "--yes"), "no argument of"),
        (("raw", "--tool", "echo", "--again", "--yes"), "leave out --again"),
        (("remote-ref", "--tool", "echo", "--yes"), "https://example.com/schema.json"),
    ],
)
def test_what_cannot_be_added_says_why_and_writes_nothing(
    fleet: Path, arguments: tuple[str, ...], told: str
) -> None:
    before = (fleet / AGENT).read_text()
    code, said = add(fleet, *arguments)
    assert code == 2, said
    assert told in said
    assert (fleet / AGENT).read_text() == before


def test_a_person_is_asked_and_may_say_no(fleet: Path) -> None:
    before = (fleet / AGENT).read_text()
    said = converse(fleet, "none", "none", "not_done", "Says it again.", "n")
    assert "Does echo." in said  # the server's words, for a person's eyes
    assert (fleet / AGENT).read_text() == before
    converse(fleet, "none", "idempotent", "Says it again.", "y")
    (tool,) = declared(fleet)
    assert tool["sinks"] == []
    assert tool["settles"] == "idempotent"
    assert tool["description"] == "Says it again."


def converse(fleet: Path, *answers: str) -> str:
    """Add the tool echo at a terminal; return what is shown there."""
    ours, theirs = os.openpty()
    verb = [*START, "tool", "add", "inbox_triage", "--mcp", "raw", "--tool", "echo"]
    with (
        os.fdopen(ours, "rb+", buffering=0) as terminal,
        subprocess.Popen(
            verb, cwd=fleet, env=environment(), stdin=theirs, stdout=theirs, stderr=theirs
        ),
    ):
        os.close(theirs)
        terminal.write("".join(f"{answer}\n" for answer in answers).encode())
        shown = b""
        with suppress(OSError):  # so a terminal says that all programs have left it
            while more := terminal.read(4096):
                shown += more
    return shown.decode()


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({}, "is a program or a URL"),
        ({"command": ["sh"], "url": "https://a.example/mcp"}, "is a program or a URL"),
        ({"command": []}, "is no list of texts"),
        ({"command": ["no-such-program-here"]}, "there is no program"),
        ({"command": ["sh"], "token": "x"}, ""),
        ({"command": ["sh"], "wirte": ["/x"]}, "is no key of such an mcp target"),
        ({"command": ["sh"], "write": ["x"]}, "is no list of absolute paths"),
        ({"command": ["sh"], "write": 5}, "is no list of absolute paths"),
        ({"command": ["sh"], "write": ["/srv/x", 5]}, "is no list of absolute paths"),
        ({"command": [sys.executable, str(RAW)], "write": [str(RAW.parent)]}, "is started from"),
        ({"command": [sys.executable, str(RAW)], "write": [sys.executable]}, "is started from"),
        ({"command": ["sh"], "read": ["/srv/x/code"], "write": ["/srv/x"]}, "is started from"),
        ({"command": ["sh"], "memory": "much"}, "is no amount of memory"),
        ({"command": ["sh"], "environment": {"HOME": "/"}}, "is no variable to set"),
        ({"command": ["sh"], "environment": {"API_TOKEN": "x"}}, "a secret does not stand"),
        ({"command": ["sh"], "secrets": {"KEY": "token"}}, "refers to no secret 'token'"),
        ({"url": "http://a.example/mcp", "token_env": "T"}, "not sent over plain HTTP"),
        ({"url": "https://a.example/mcp", "write": ["/x"]}, "is no key of such an mcp target"),
        ({"url": "https://a.example/mcp", "token_header": "a b"}, "is no name of a header"),
    ],
)
def test_what_is_wrong_with_a_target_is_said(table: dict[str, object], told: str) -> None:
    found = [what for _, what, _ in MCP.problems({"kind": "mcp", **table}, {})]
    assert any(told in what for what in found), found


def test_targets_that_are_right_have_no_problem() -> None:
    for table in (
        {"command": ["sh", "-c", "x"], "write": ["/srv/x"], "reach": ["a.example:443"]},
        {"command": ["sh"], "secrets": {"KEY": "token"}, "token_env": "T"},
        {"url": "https://a.example/mcp", "token_env": "T", "token_header": "X-Api-Key"},
        {"url": "http://127.0.0.1:8000/mcp", "private": True, "token_file": "/x"},
    ):
        assert list(MCP.problems({"kind": "mcp", **table}, {})) == []


@pytest.mark.parametrize("line", ["write = 5", "write = [5]", "read = true", "command = 5"])
def test_a_table_of_other_types_is_a_problem_of_its_line(fleet: Path, line: str) -> None:
    settings = fleet / "vedette.toml"
    command = "" if line.startswith("command") else 'command = ["sh"]\n'
    table = f'\n[targets.mine]\nkind = "mcp"\n{command}{line}\n'
    settings.write_text(settings.read_text() + table)
    done = vedette(fleet, "check")
    told = " ".join((done.out + done.err).split())
    assert done.code == 1, told
    assert "is no list of" in told
    assert "vedette.toml:" in told
