"""kill -9 of the daemon between the acceptance of a call and its answer: a retry is one effect."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.client_daemon import ARRIVALS, COURIER, SAMPLES, ClientDaemon

# The sample's tools, which stand still before the line is written, or after, while `gate` is there.
GATED = """
import time as _time

_add_line = _add


def _add(call, text):
    book = Path(call.target["path"])
    if text.endswith("after"):
        found = _add_line(call, text)
    (book / "begun").touch()
    while (book / "gate").exists():
        _time.sleep(0.01)
    return found if text.endswith("after") else _add_line(call, text)
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ClientDaemon]:
    tools = (SAMPLES / "agents" / "courier" / "tools.py").read_text() + GATED
    with ClientDaemon(tmp_path, tools=tools) as started:
        yield started


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("key", ["k-1", None])
@pytest.mark.timeout(300)
def test_a_retry_after_kill_9_is_one_effect(
    daemon: ClientDaemon, moment: str, key: str | None
) -> None:
    gate, begun = daemon.root / "book" / "gate", daemon.root / "book" / "begun"
    gate.touch()
    body: dict[str, Any] = {"tool": "book.write", "args": {"page": ARRIVALS, "text": moment}}
    body |= {} if key is None else {"key": key}
    broken: list[Exception] = []

    def call() -> None:
        try:
            daemon.call(body)
        except httpx.HTTPError as error:
            broken.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    end = time.monotonic() + 60
    while not begun.exists():
        assert time.monotonic() < end, daemon.output
        time.sleep(0.01)
    daemon.kill()
    caller.join(60)
    assert len(broken) == 1, "the answer came before the kill"
    gate.unlink()
    assert len(daemon.lines) == (moment == "after")

    daemon.start()
    found = daemon.call(body)
    assert found["status"] == "done", found
    again = daemon.call(body)
    assert again["call"] == found["call"]
    assert [line.partition(" ")[2] for line in daemon.lines] == [f"arrivals: {moment}"]
    assert COURIER not in daemon.output
