"""What a target of kind mcp says of its server: its program, what that reads, what it is given."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vedette.config.agent_file import memory_bytes

_DEFAULT_MEMORY = "1GiB"
_PATH = "/usr/local/bin:/usr/bin:/bin"


def server_memory(table: Mapping[str, Any]) -> int:
    """Return how many bytes each process of a server may take. Raises ValueError."""
    return memory_bytes(str(table.get("memory", _DEFAULT_MEMORY)))


def find_program(command: Sequence[str]) -> str | None:
    """Return the path of the program of a command; None if there is none."""
    return shutil.which(command[0], path=_PATH)


def program_folders(command: Sequence[str]) -> tuple[str, ...]:
    """Return what a program is read from: itself, and the environment that it is installed in.

    That is a Python environment (its pyvenv.cfg says so) or a folder node_modules; a server that
    is installed otherwise needs it said by `read`.
    """
    found = find_program(command)
    if found is None:
        return ()
    folders = {found, os.path.realpath(found)}
    for path in (Path(found), Path(os.path.realpath(found))):
        environment = path.parent.parent
        if (environment / "pyvenv.cfg").is_file():
            folders |= {str(environment), *_interpreter(environment)}
        if "node_modules" in path.parts:
            at = path.parts.index("node_modules")
            folders.add(str(Path(*path.parts[: at + 1])))
    return tuple(sorted(folders))


def code_files(command: Sequence[str]) -> tuple[str, ...]:
    """Return the files among a command's arguments: what an interpreter is to run."""
    return tuple(one for one in command[1:] if one.startswith("/") and Path(one).is_file())


def _interpreter(environment: Path) -> set[str]:
    """Return where the interpreter of a Python environment lies, and its library."""
    real = Path(os.path.realpath(environment / "bin" / "python"))
    library = real.parent.parent / "lib"
    return {str(real), *([str(library)] if library.is_dir() else [])}


def server_environment(table: Mapping[str, Any], scratch: str) -> dict[str, str]:
    """Return the variables that a server's program gets: nothing of the engine's own.

    `table` has its secrets as they are.
    """
    secrets = {name: str(table[key]) for name, key in table.get("secrets", {}).items()}
    return {
        "PATH": _PATH, "LANG": "C.UTF-8", "HOME": scratch, "TMPDIR": scratch,
        **table.get("environment", {}), **secrets,
    }  # fmt: skip


def sent_secrets(table: Mapping[str, Any]) -> set[str]:
    """Return the secrets that a server is given; `table` has them as they are."""
    names = {"token", *table.get("secrets", {}).values()}
    return {str(table[name]) for name in names if table.get(name)}
