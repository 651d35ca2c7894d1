"""The sample webhook target: its record is what kill tests trust, so it is tested by itself."""

from __future__ import annotations

import http.client
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "samples" / "receiver" / "receiver.py"
_spec = importlib.util.spec_from_file_location("receiver_under_test", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
receiver = importlib.util.module_from_spec(_spec)
sys.modules["receiver_under_test"] = receiver
_spec.loader.exec_module(receiver)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    record = receiver.Record(tmp_path / "deep" / "record.jsonl")
    made = receiver.Server("127.0.0.1", 0, record)
    thread = Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()
    record.close()


def ask(
    port: int, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def post(port: int, key: str, body: object = 1) -> tuple[int, Any]:
    return ask(port, "POST", "/hook", json.dumps(body).encode(), Idempotency_Key=key)


def test_a_repeat_is_recorded_and_counts_as_no_effect(server: Any, tmp_path: Path) -> None:
    port = server.server_address[1]
    assert post(port, "a", {"x": 1}) == (200, {"id": "msg-1", "duplicate": False})
    assert post(port, "a", {"x": 2}) == (200, {"id": "msg-1", "duplicate": True})
    assert post(port, "b") == (200, {"id": "msg-3", "duplicate": False})
    counted = {"calls": 3, "effects": 2, "duplicates": 1}
    assert ask(port, "GET", "/counts") == (200, counted)
    status, calls = ask(port, "GET", "/record")
    assert status == 200
    assert [(c["key"], c["first"], c["effect"], c["body"]) for c in calls] == [
        ("a", True, True, {"x": 1}),
        ("a", False, False, {"x": 2}),
        ("b", True, True, 1),
    ]
    lines = (tmp_path / "deep" / "record.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == calls


def test_a_failure_on_purpose_has_no_effect_and_a_lost_answer_has_one(server: Any) -> None:
    port = server.server_address[1]
    server.record.fail_every = 1
    assert post(port, "a")[0] == 503
    server.record.fail_every, server.record.lose_every = 0, 1
    with pytest.raises(http.client.RemoteDisconnected):
        post(port, "a")
    server.record.lose_every = 0
    assert post(port, "a")[1]["duplicate"] is True
    assert server.record.counts() == {"calls": 3, "effects": 1, "duplicates": 1}


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/hook", b"1", {}, 400),
        ("/hook", b"{", {"Idempotency_Key": "k"}, 400),
        ("/other", b"1", {"Idempotency_Key": "k"}, 404),
        # Announced only: what is too long is refused before it is read.
        ("/hook", b"1", {"Idempotency_Key": "k", "Content_Length": "1000001"}, 413),
        ("/hook", b"1", {"Idempotency_Key": "k", "Content_Length": "-1"}, 411),
    ],
)
def test_what_is_no_call_is_refused(
    server: Any, path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    assert ask(server.server_address[1], "POST", path, body, **headers)[0] == status
    assert server.record.counts()["calls"] == 0


def test_a_record_is_taken_up_again_without_its_torn_end(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    first = receiver.Record(path)
    first.take("a", 1, {})
    first.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "torn')
    repeat = receiver.Record(path)
    assert repeat.take("a", 1, {})["duplicate"] is True
    assert repeat.take("b", 1, {})["effect"] is True
    repeat.close()
    assert [json.loads(line)["n"] for line in path.read_bytes().splitlines()] == [1, 2, 3]


def test_many_threads_make_one_effect(server: Any) -> None:
    port = server.server_address[1]
    threads = [Thread(target=post, args=(port, "same")) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.record.counts() == {"calls": 16, "effects": 1, "duplicates": 15}


def test_as_a_program_it_prints_its_port_and_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    command = [sys.executable, str(SCRIPT), "--port", "0", "--record", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[-1])
        assert post(port, "a")[0] == 200
        process.kill()
    assert json.loads(path.read_text())["key"] == "a"
