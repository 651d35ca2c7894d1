"""The command line itself: exit codes, errors, what is imported, what is shown."""

from __future__ import annotations

import errno
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import click
import pytest

from vedette import __version__
from vedette.domain.base import errors
from vedette.domain.base.errors import BadCommand, VedetteError
from vedette.interfaces.cli import VERBS, main
from vedette.interfaces.cli.error_report import exit_code
from vedette.interfaces.cli.fleet import program
from vedette.interfaces.cli.live_table import FleetStatus, notable_line, render_view, status_line
from vedette.interfaces.cli.output import format_table, sanitize_text, write_output
from vedette.interfaces.cli.run import next_commands, summary_text
from vedette.interfaces.http.local_api import http_status
from vedette.interfaces.http.local_client import parse_error

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def go(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        said = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, said.out, said.err

    return go


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Makes `vedette completion` raise, whatever it is asked."""

    def put(error: BaseException) -> None:
        @click.command()
        def broken() -> None:
            raise error

        module = importlib.import_module("vedette.interfaces.cli.completion")
        monkeypatch.setattr(module, "completion", broken)

    return put


# --- the table of verbs ----------------------------------------------------------------------


def test_every_verb_of_the_table_is_there_and_says_what_it_does() -> None:
    for verb, (module, name, value) in VERBS.items():
        command = getattr(importlib.import_module(f"vedette.interfaces.cli.{module}"), name)
        assert isinstance(command, click.Command)
        assert command.name in (verb, name)
        assert value.endswith(".")
        leaves = command.commands.values() if isinstance(command, click.Group) else [command]
        assert all(leaf.help for leaf in leaves), verb


def test_every_order_of_a_person_needs_a_reason(run: Run) -> None:
    orders = (
        ("approve", "hold_1"),
        ("deny", "hold_1"),
        ("stop", "--all"),
        ("resume", "--all"),
        ("erase", "subject:who"),
        ("policy", "publish"),
        ("send", "--type", "a.b"),
    )
    for order in orders:
        code, _, said = run(*order)
        assert (code, "--reason" in said) == (2, True), order


def test_help_imports_no_verb() -> None:
    code = (
        "import sys\nfrom vedette.interfaces.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "print(*[name for name in sys.modules if name.startswith('vedette.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert set(done.stdout.splitlines()[-1].split()) == {
        *(
            "vedette.interfaces.cli",
            "vedette.interfaces.cli.error_report",
            "vedette.interfaces.cli.old_spellings",
            "vedette.interfaces.cli.output",
            "vedette.interfaces",
            "vedette.domain",
            "vedette.domain.base",
            "vedette.domain.base.disk_errors",
            "vedette.domain.base.errors",
        )
    }


# --- exit codes and errors -------------------------------------------------------------------

KINDS = sorted(
    (
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, VedetteError)
    ),
    key=lambda kind: kind.__name__,
)
THREE = {
    "Temporary", "StoreFailed", "StoreBusy", "Unavailable", "BadStore", "DamagedSegment",
    "WriteConflict",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_exit_code_of_every_error(kind: type[VedetteError]) -> None:
    assert exit_code(kind("it broke")) == (3 if kind.__name__ in THREE else 2)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_the_way_over_the_socket(kind: type[VedetteError]) -> None:
    error = kind("it broke", where="a.yaml:3", mend="mend it")
    repeat = parse_error(json.loads(json.dumps(error.to_json())))
    assert (type(repeat), str(repeat)) == (kind, str(error))
    assert http_status(repeat) in (400, 403, 409, 503)


def test_an_unknown_error_keeps_its_words() -> None:
    error = parse_error(
        {"code": "of-the-future", "what": "it broke", "where": None, "mend": "wait"}
    )
    assert error.to_json()["code"] == "of-the-future"
    assert str(error) == "it broke (wait)"


def test_a_pipe_to_something_else_that_breaks_is_no_success(
    run: Run, failing: Callable[[BaseException], None]
) -> None:
    failing(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    code, out, said = run("completion")
    assert (code, out) == (3, "")
    assert "closed at its other end" in said


def test_an_error_is_one_line_with_its_mend(
    run: Run, failing: Callable[[BaseException], None]
) -> None:
    failing(errors.BadFleet("must be a list", where="agents/a/agent.yaml:3", mend="write a dash"))
    code, out, said = run("completion")
    assert (code, out) == (2, "")
    assert said == "error[bad-fleet]: agents/a/agent.yaml:3: must be a list (write a dash)\n"


def test_an_error_in_json(run: Run, failing: Callable[[BaseException], None]) -> None:
    failing(errors.StoreBusy("another runner owns this store", where="/s", mend="stop it"))
    code, out, said = run("completion", "--json")
    assert (code, out) == (3, "")
    assert json.loads(said) == {
        "error": {
            "code": "store-busy",
            "what": "another runner owns this store",
            "where": "/s",
            "mend": "stop it",
        }
    }


def test_what_was_done_before_is_done(run: Run, failing: Callable[[BaseException], None]) -> None:
    failing(errors.AlreadyDone("command c1 was carried out before"))
    assert run("completion") == (0, "nothing to do: command c1 was carried out before\n", "")
    code, out, _ = run("completion", "--json")
    assert (code, json.loads(out)["already_done"]) == (0, True)


def test_a_full_disk_is_told_plainly(run: Run, failing: Callable[[BaseException], None]) -> None:
    failing(OSError(28, "No space left on device", "/s/store.db"))
    code, _, said = run("completion")
    assert (code, said) == (
        3,
        "error[no-space]: /s/store.db: No space left on device"
        " (make room, then start again; nothing accepted is lost)\n",
    )


def test_a_disk_that_fails_under_sqlite_is_no_bug_of_ours(
    run: Run, failing: Callable[[BaseException], None]
) -> None:
    failing(apsw.IOError("disk I/O error"))
    code, _, said = run("completion")
    assert (code, "Traceback" in said) == (3, False)
    assert said.startswith("error[disk-failed]: the state folder: the disk failed: disk I/O error")


@pytest.mark.timeout(20)
def test_an_error_that_is_its_own_cause_is_told(
    run: Run, failing: Callable[[BaseException], None]
) -> None:
    error = errors.Unavailable("moved away", where="/s")
    error.__cause__ = error
    failing(error)
    code, _, said = run("completion")
    assert (code, said) == (3, "error[unavailable]: /s: moved away\n")


def test_a_bug_is_no_finding(run: Run, failing: Callable[[BaseException], None]) -> None:
    failing(ZeroDivisionError("by hand"))
    code, _, said = run("completion")
    assert code == 3
    assert "Traceback" in said
    assert "bug in vedette" in said


@pytest.mark.parametrize(
    "arguments", [("launch",), ("completion",), ("completion", "ship"), ("runs", "--limit", "many")]
)
def test_usage_errors(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, said = run(*arguments)
    assert (code, out) == (2, "")
    assert said.startswith("error[usage]: ")
    assert said.count("\n") == 1
    assert "--help`" in said
    code, _, said = run(*arguments, "--json")
    assert (code, json.loads(said)["error"]["code"]) == (2, "usage")


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"vedette {__version__}\n", "")


def test_schema_is_a_schema(run: Run) -> None:
    for what in ("agent", "bank"):
        code, out, _ = run("completion", what)
        assert code == 0
        assert json.loads(out)["$schema"].startswith("https://json-schema.org/")


# --- what is shown ---------------------------------------------------------------------------


def test_a_strangers_text_moves_no_cursor() -> None:
    assert sanitize_text("a\x1b[2Jb\rc\x9b\u202ed") == "a\ufffd[2Jb\ufffdc\ufffd\ufffdd"


def test_a_table_lines_up() -> None:
    shown = format_table(["agent", "runs"], [["gull", "1,200"], ["tern", "3"]])
    assert shown == "agent   runs\ngull   1,200\ntern       3"
    assert format_table(["agent"], []) == "agent"


@pytest.mark.parametrize(
    ("called", "on_path", "shown"),
    [
        ("/home/ann/fleet/.venv/bin/vedette", None, ".venv/bin/vedette"),
        ("/home/ann/fleet/.venv/bin/vedette", "/usr/bin/vedette", ".venv/bin/vedette"),
        ("/home/ann/fleet/.venv/bin/vedette", "/home/ann/fleet/.venv/bin/vedette", "vedette"),
        ("/opt/a b/vedette", None, "'/opt/a b/vedette'"),
        ("/lib/vedette/__main__.py", "/usr/bin/vedette", "/opt/python -m vedette"),
        ("-c", None, "vedette"),
    ],
)
def test_what_is_shown_can_be_pasted(
    monkeypatch: pytest.MonkeyPatch, called: str, on_path: str | None, shown: str
) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr(sys, "executable", "/opt/python")
    monkeypatch.setattr("shutil.which", lambda name: on_path)
    assert program(below=Path("/home/ann/fleet")) == shown


def test_three_commands_to_try_whatever_there_is() -> None:
    full = {"effect": "run_3", "denied": "run_1", "incident": "run_2", "hold": "hold_1"}
    assert next_commands(full) == [
        "explain run_1",
        "hold hold_1",
        "explain run_2",
    ]
    assert next_commands({"effect": "run_3"}) == ["explain run_3", "hold", "status"]
    assert next_commands({}) == ["hold", "status", "verify decisions"]


def summary() -> dict[str, Any]:
    return {
        "agents": {"gull": {"runs": 1200, "actions": 3, "denials": 1, "failed": 0}},
        "events": {"accepted": 1200, "woke_nobody": 0},
        "seconds": 2.5,
        "events_per_second": 480.0,
        "cpu_us_per_event": 800.1,
        "policy_revision": 2,
        "troubles": ["a source \x1b[31mended"],
        "try_next": {"denied": "run_1"},
    }


def test_the_summary_ends_with_what_to_try() -> None:
    lines = summary_text(summary(), "vedette --config f.toml").splitlines()
    assert lines[1].split() == ["agent", "runs", "actions", "denials"]
    assert lines[2].split() == ["gull", "1,200", "3", "1"]
    assert lines[-3] == "  vedette --config f.toml explain run_1"
    assert "\x1b" not in "".join(lines)


AGENT = {
    "events": 12, "actions": 5, "permits": 2, "held": 1, "denied": 2, "would": 0, "effects": 2,
    "dead": 0, "backlog": 0,
}  # fmt: skip


def look(**more: Any) -> FleetStatus:
    given = {
        "agents": {"gull": AGENT}, "events": 12, "rate": 3.4, "pending": 1, "revision": 2,
        "stopped": [], "seconds": 4.0,
    }  # fmt: skip
    return FleetStatus(**{**given, **more})


def test_a_status_line_says_all_in_words() -> None:
    line = status_line(look())
    for part in ("events 12 (3/s)", "permits 2", "held 1", "denied 2", "pending 1", "policy 2"):
        assert part in line
    assert "dead" not in line
    assert "STOPPED tool mail.send" in status_line(look(stopped=["tool mail.send"]))


def test_the_live_view_needs_no_colour() -> None:
    from rich.console import Console

    console = Console(width=110, color_system=None, force_terminal=False, record=True)
    with console.capture() as caught:
        shown = look(stopped=["agent gull"])
        console.print(render_view("harbour", "http://x:1", shown, ["12:00:00 held \x1b[2J gull"]))
    text = caught.get()
    for word in ("gull", "held", "denied", "STOPPED: agent gull", "policy revision 2", "http://x"):
        assert word in text
    assert "\x1b" not in text


def test_notable_entries_say_what_and_where_to_look() -> None:
    held = {
        "kind": "action.decided", "at": 1_750_000_000_000_000, "outcome": "hold", "agent": "gull",
        "tool": "mail.send", "rule": "impact.high", "run": "run_1",
    }  # fmt: skip
    assert notable_line(held) == "15:06:40 held   gull mail.send by impact.high  run_1"
    assert notable_line({**held, "outcome": "permit"}) is None
    assert "denied" in str(notable_line({**held, "outcome": "deny"}))
    actor = {"kind": "stop.set", "at": 1, "what": "agent:gull", "actor": "person:ann"}
    assert notable_line(actor) == "00:00:00 stop set: agent:gull by person:ann"


# --- what goes into a file ---------------------------------------------------------------------


def test_what_goes_into_a_file_may_go_to_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "page.html"
    assert write_output(file, "<p>ü</p>", "page", "--html")
    assert (file.read_text("utf-8"), capsys.readouterr().out) == ("<p>ü</p>", "")
    assert not write_output(Path("-"), "<p>ü</p>", "page", "--html")
    assert capsys.readouterr().out == "<p>ü</p>"
    with pytest.raises(BadCommand, match="the page cannot be written") as refusal:
        write_output(tmp_path / "no" / "page.html", "", "page", "--html")
    assert refusal.value.mend == "name a file that you may write: --html FILE"
