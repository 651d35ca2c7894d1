"""`vedette dead`: dead letters listed, shown, taken up again and closed, with no fleet running."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet

_START = [sys.executable, "-c", "from vedette.interfaces.cli import main; main()"]
_TOML = """\
fleet = "harbour"
state = "state"
[content]
agents = "content/agents"
policies = "policies"
memory = "content/memory"
[targets.world]
kind = "webhook"
url = "http://127.0.0.1:9/hook"
"""

pytestmark = pytest.mark.slow


def vedette(fleet: Path, *words: str, code: int = 0) -> Any:
    done = subprocess.run(
        [*_START, "dead", *words, "--json"], cwd=fleet, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout if code == 0 else done.stderr)


async def dead_letters(folder: Path) -> None:
    async with toy_fleet(folder, World()) as fleet:
        fails: dict[str, Any] = {"raise": True}
        await fleet.send(*(job(f"{n}", send_proposal(), key=f"k{n}", **fails) for n in range(4)))
        await fleet.wait_until_idle()


def test_dead_letters_from_list_to_drop(tmp_path: Path) -> None:
    asyncio.run(dead_letters(tmp_path))
    (tmp_path / "vedette.toml").write_text(_TOML)
    page = vedette(tmp_path, "list", "--limit", "3")
    assert len(page["items"]) == 3
    (last,) = vedette(tmp_path, "list", "--before", page["older"])["items"]
    assert {item["error"] for item in page["items"]} == {"RuntimeError"}
    assert "gave up" in vedette(tmp_path, "show", last["run"][:24])["trace"]
    why = ("--reason", "mended")
    counted = vedette(tmp_path, "redrive", "--all", "--agent", "worker", *why)
    assert counted == {"dead": 4, "more": False, "done": False}
    assert len(vedette(tmp_path, "list")["items"]) == 4, "they were only counted"
    one = ("redrive", last["run"], *why, "--command-id", "one")
    done = vedette(tmp_path, *one)
    assert (done["moved"], done["by"]) == ([last["run"]], "here")
    assert vedette(tmp_path, *one)["already_done"]
    assert (
        "is no dead letter"
        in vedette(tmp_path, "redrive", last["run"], *why, code=2)["error"]["what"]
    )
    nothing = vedette(tmp_path, "drop", "--all", "--error", "KeyError", "--yes", *why)
    assert nothing["moved"] == []
    dropped = vedette(tmp_path, "drop", "--all", "--error", "RuntimeError", "--yes", *why)
    assert len(dropped["moved"]) == 3
    assert vedette(tmp_path, "list")["items"] == []


@pytest.mark.parametrize("words", [(), ("run_0", "--all")])
def test_which_must_be_said(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "vedette.toml").write_text('fleet = "harbour"\n')
    answer = vedette(tmp_path, "redrive", *words, "--reason", "why", code=2)
    assert answer["error"]["what"] == "say which"
