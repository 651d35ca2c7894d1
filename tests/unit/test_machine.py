"""Nothing of the engine takes time, entropy, threads or processes past their ports."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/design/simulation.md"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]

LEAKS = [
    "import time\nprint(time.monotonic())",
    "from time import time_ns\nprint(time_ns())",
    "import datetime\nprint(datetime.datetime.now(datetime.UTC))",
    "import os\nprint(os.urandom(8))",
    "import secrets\nprint(secrets.token_hex(8))",
    "import random\nprint(random.random())",
    "from random import uniform\nprint(uniform(0, 1))",
    "import uuid\nprint(uuid.uuid4())",
    "import threading\nthreading.Thread(target=print).start()",
    "from threading import Lock\nprint(Lock())",
    "from concurrent.futures import ThreadPoolExecutor\nprint(ThreadPoolExecutor)",
    "import subprocess\nsubprocess.run(['true'], check=True)",
    "import multiprocessing\nprint(multiprocessing)",
    "import os\nos.fork()",
    "import asyncio\nprint(asyncio.create_subprocess_exec)",
    "def later() -> None:\n    import time\n    time.sleep(1)",
    "from cryptography.hazmat.primitives.asymmetric import ec\nec.generate_private_key(0)",
]


def refused(code: str) -> set[int]:
    """Return the lines that the gate's linter refuses as leaks in a module of the engine."""
    done = subprocess.run(
        [
            sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "TID251",
            "--output-format", "concise", "--stdin-filename", "src/vedette/planted.py", "-",
        ],
        input=code,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return {int(line) for line in re.findall(r"planted\.py:(\d+):", done.stdout)}


def test_each_new_leak_is_refused() -> None:
    found = refused("\n".join(LEAKS))
    line = 1
    for leak in LEAKS:
        lines = range(line, line := line + leak.count("\n") + 1)
        assert found.intersection(lines), leak


def test_the_ports_are_not_refused() -> None:
    assert not refused(
        "from vedette.domain.base import machine\nprint(machine.monotonic_s(), machine.Lock())\n"
    )


def test_the_rooms_that_may_are_those_that_the_page_gives_reasons_for() -> None:
    rooms = {
        where
        for where, rules in SETTINGS["lint"]["per-file-ignores"].items()
        if "TID251" in rules and where.startswith("src/")
    }
    text = set(re.findall(r"^\| `(src/[^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert text == rooms
