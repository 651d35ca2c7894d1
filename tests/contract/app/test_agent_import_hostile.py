"""`agent import` of a hostile folder, and of functions that answer what JSON has not."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.contract.app.test_agent_import import (
    CHOICES,
    HEAD,
    ROOT,
    imported,
    settings,
    write_source,
    written,
)

from vedette.adapters.reasoners.workers.sandbox_probe import Protection
from vedette.app.agent_import import import_adk_agent
from vedette.app.workers import Containment, require_foreign_box
from vedette.config.fleet import load_fleet, read_fleet
from vedette.config.settings import Isolation, Settings
from vedette.domain.base.errors import BadCommand, BadFleet
from vedette.domain.effect import Call
from vedette.sdk import perform_function

__all__ = ["settings", "written"]  # fixtures

PLAIN = f"{HEAD}{ROOT}tools=[greet])"
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform != "linux", reason="what is imported is boxed by Linux only"),
]


# --- the folder -------------------------------------------------------------------------------


def make_pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def make_socket(folder: Path) -> None:
    # A path of a socket is short; the folder's name is not.
    before = Path.cwd()
    os.chdir(folder)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("socket")
    finally:
        os.chdir(before)


def make_file(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")

    return make


def make_code(code: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / "more.py").write_text(code)


# A file's name that would be code if it were a module's (`from .source.NAME import greet`).
ESCAPE = "x import greet as function\n\n    import os\n    from os"
FOLDERS: dict[str, Callable[[Path], Any]] = {
    "a pipe": make_pipe,
    "a socket": make_socket,
    "a link to a folder": lambda folder: (folder / "up").symlink_to("/etc"),
    "a module's name that is code": make_file(f"{ESCAPE}.py"),
    "a folder's name that is code": make_file("x import y/z.py"),
    "a keyword": make_file("class.py"),
    "a name beyond ASCII": make_file("\ufb01le.py"),
    "a lone surrogate": make_file("\udcff.txt"),
    "an escape of a terminal": make_file("a\x1b[2J.txt"),
    "no Python": make_code("def ("),
    "nested deeply": make_code("x = " + "-" * 200_000 + "1\n"),
    "a null": make_code("x = 1\0"),
}


@pytest.mark.parametrize("kind", sorted(FOLDERS))
def test_a_hostile_folder_is_refused(settings: Settings, tmp_path: Path, kind: str) -> None:
    source = write_source(tmp_path, PLAIN)
    FOLDERS[kind](source)
    with pytest.raises(BadCommand) as refused:
        imported(settings, source)
    assert refused.value.mend
    assert not (settings.agents / "desk").exists()


def test_a_folder_that_cannot_be_read_is_refused(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `os.walk` cannot read it leaves out without a word, unless it is asked."""
    source = write_source(tmp_path, PLAIN, {"more/data.txt": "x"})
    listed = os.scandir

    def scan(path: Any) -> Any:
        if os.fspath(path).endswith("/more"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scan)
    with pytest.raises(BadCommand, match="cannot be read"):
        imported(settings, source)


# --- keys in it -------------------------------------------------------------------------------

SECRETS = [
    "service_account.json", "my-service-account-key.json", "service-account.prod.json",
    "credentials.json", "google_credentials.prod.json", "client_secret_1.json", "secrets.yaml",
    "prod.env", "env", "tls.pem", "host.key", "token.json", "token.pickle", "api_key.txt", "id_rsa",
    "app.p12", "cached-token.json",
]  # fmt: skip
PLAIN_FILES = ["tokens_of_boats.csv", "keyboard.txt", "environment.yaml", "menu.json"]


def test_keys_by_their_names_are_not_copied_and_all_that_is_no_python_is_told(
    settings: Settings, tmp_path: Path
) -> None:
    more = dict.fromkeys([*SECRETS, *PLAIN_FILES, ".netrc", ".git/config", "sub/.env.local"], "k")
    more |= {
        "token.py": "",
        "__pycache__/agent.pyc": "",
        "sub/notes.md": "",
        "sub/credentials/a": "",
        "sub/credentials/__init__.py": "",
    }
    done = imported(settings, write_source(tmp_path, PLAIN, more))
    there = settings.agents / "desk/source"
    copied = {path.relative_to(there).as_posix() for path in there.rglob("*") if path.is_file()}
    assert copied == {
        "__init__.py",
        "agent.py",
        "token.py",
        "sub/credentials/__init__.py",
        *done.copied,
    }
    assert done.copied == sorted([*PLAIN_FILES, "sub/notes.md"])
    left = [*SECRETS, ".netrc", ".git/", "sub/.env.local", "sub/credentials/a"]
    assert done.not_copied == sorted(left)


# --- who runs it ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "isolation", [Isolation(False), Isolation(True, sandbox=False)], ids=["workers", "box"]
)
def test_where_hands_have_no_box_nothing_is_imported_and_nothing_imported_opens(
    settings: Settings, tmp_path: Path, isolation: Isolation
) -> None:
    source = write_source(tmp_path, PLAIN)
    with pytest.raises(BadCommand, match="not boxed") as refused:
        imported(replace(settings, isolation=isolation), source)
    assert "[isolation]" in str(refused.value.mend)
    assert not (settings.agents / "desk").exists()
    imported(settings, source)
    assert "desk" in load_fleet(settings.root, settings).fleet.agents
    loose = replace(settings, isolation=isolation)
    with pytest.raises(BadFleet) as unopened:
        load_fleet(loose.root, loose)
    assert unopened.value.code == "not-boxed"
    (problem,) = [one for one in read_fleet(loose.root, loose)[2] if not one.warning]
    assert problem.file == "agents/desk/source"
    assert "[isolation]" in problem.mend


def test_where_the_kernel_has_no_box_nothing_imported_opens(
    settings: Settings, tmp_path: Path
) -> None:
    imported(settings, write_source(tmp_path, PLAIN))
    agents = load_fleet(settings.root, settings).fleet.agents
    require_foreign_box(Containment(Protection(7, True)), agents)
    for kernel in (Protection(0, True), Protection(7, False)):
        with pytest.raises(BadFleet, match="desk was imported") as refused:
            require_foreign_box(Containment(kernel), agents)
        assert refused.value.code == "not-boxed"
        others = {name: agent for name, agent in agents.items() if name != "desk"}
        require_foreign_box(Containment(kernel), others)


def test_what_its_code_prints_reaches_no_terminal(
    settings: Settings, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = 'import os, sys\nprint("OUT\\x1b[2J")\nsys.stderr.write("ERR\\x1b]0;t\\x07")\n'
    code += "".join(f'os.write({opened}, b"RAW\\x1b[2J")\n' for opened in (0, 1, 2))
    import_adk_agent(settings, write_source(tmp_path, PLAIN + "\n" + code), CHOICES)
    printed = "".join(capfd.readouterr())
    assert not any(word in printed for word in ("OUT", "ERR", "RAW", "\x1b"))


# --- what a call answers ----------------------------------------------------------------------


def called(function: Callable[..., Any], context: str | None = None, **args: Any) -> Any:
    call = Call("t", args, "key", "desk", "run", {}, (), 1, 1_000_000)
    return perform_function(call, function, context=context)


def make_circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


class Mute:
    def __str__(self) -> str:
        raise ValueError("nothing to say")


@pytest.mark.parametrize("made", [make_circle(), Mute(), "\ud800", {"t": ["\ud800"]}, {"é": 1}])
def test_a_call_that_is_done_is_told_as_done(made: Any) -> None:
    outcome = called(lambda: made)
    assert outcome.state == "done"
    assert "no form that a record keeps" in outcome.data["result"]


def test_numbers_and_bytes_that_json_has_not_are_told_as_it_can() -> None:
    made = {"none": float("nan"), "far": [float("-inf")], "bytes": b"\xff\xfe", "half": 0.5}
    outcome = called(lambda: made)
    assert outcome.data == {"none": None, "far": [None], "bytes": "__4=", "half": 0.5}


def test_a_state_of_its_own_stands_beside_the_one_it_leaves() -> None:
    def move(tool_context: Any) -> dict[str, str]:
        tool_context.state["seen"] = float("inf")
        return {"state": "CA"}

    assert called(move, "tool_context").data == {
        "result": {"state": "CA"}, "state": {"seen": None},
    }  # fmt: skip


def test_what_a_hint_raises_by_its_own_code_is_no_refusal() -> None:
    """It may have done anything by then, so that nobody may say that nothing was called."""
    from typing import Annotated

    from pydantic import BeforeValidator

    def look(value: Any) -> Any:
        raise RuntimeError("after its effect")

    def book(boat: Any) -> None:
        raise AssertionError("it is not called")

    book.__annotations__ = {"boat": Annotated[str, BeforeValidator(look)]}
    with pytest.raises(RuntimeError):
        called(book, boat="x")
