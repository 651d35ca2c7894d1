"""Agents from outside before a real daemon: the samples as they are, and what nobody gets done.

Each sample runs in the environment that it names: the plain script in this one, LangGraph's agent
and that of the OpenAI Agents SDK in their own (`tools/clients`; `make clients` runs these alone).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.client_daemon import (
    ARRIVALS,
    COURIER,
    MONITOR,
    PORTER,
    SAMPLES,
    TOKENS,
    ClientDaemon,
)
from tests.pg import database_for

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ClientDaemon]:
    with ClientDaemon(tmp_path) as started:
        yield started


def find_python(name: str) -> str:
    """Return the Python that has a framework; skips without it, and fails where CI is set."""
    folder = Path(os.environ.get("VEDETTE_CLIENTS") or ROOT / ".tools" / "clients") / name
    if (folder / "installed.lock").exists():
        return str(folder / "bin" / "python")
    if os.environ.get("CI"):
        pytest.fail(f"{name}'s agents are missing. Mend: make setup", pytrace=False)
    pytest.skip(f"{name}'s agents are not here; make setup installs them")


def start_sample(daemon: ClientDaemon, python: str, name: str) -> subprocess.Popen[str]:
    """Start a sample as the courier's client."""
    words = {"PATH": os.environ["PATH"], "VEDETTE_URL": daemon.address, "VEDETTE_TOKEN": COURIER}
    return subprocess.Popen(
        [python, str(SAMPLES / name)], env=words, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for_hold(daemon: ClientDaemon, beside: subprocess.Popen[str] | None = None) -> None:
    """Return when something waits for a person."""
    end = time.monotonic() + 90
    while not daemon.verb("hold", "--json").json["items"]:
        assert beside is None or beside.poll() is None, beside.communicate()
        assert time.monotonic() < end, daemon.output
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "sample"),
    [
        (None, "http_agent.py"),
        ("langgraph", "langgraph_agent.py"),
        ("openai", "openai_agent.py"),
    ],
)
def test_a_sample_acts_and_waits_for_the_person(
    daemon: ClientDaemon, framework: str | None, sample: str
) -> None:
    python = sys.executable if framework is None else find_python(framework)
    child = start_sample(daemon, python, sample)
    try:
        wait_for_hold(daemon, child)
        assert [line.partition(" ")[2] for line in daemon.lines] == ["arrivals: the Petrel, 06:30"]
        daemon.approve()
        out, err = child.communicate(timeout=90)
    finally:
        child.kill()
    assert child.returncode == 0, err
    tools, *answers = out.splitlines()
    names = {name.replace(".", "_") for name in tools.removeprefix("tools: ").split(", ")}
    assert names - {"outcome"} == {"book_write", "book_publish"}
    found = [json.loads(line) for line in answers]
    assert [answer["status"] for answer in found if answer["status"] != "held"] == ["done", "done"]
    assert found[1]["status"] == "held"
    assert found[1]["call"] == found[-1]["call"]
    assert [line.partition(" ")[2] for line in daemon.lines] == [
        "arrivals: the Petrel, 06:30",
        "arrivals: published",
    ]
    # Whose it was, and who said yes, stands in the record.
    story = daemon.verb("explain", found[-1]["call"]).out
    assert "spiffe://harbour/agent/courier" in story
    assert "it is right" in story


@pytest.mark.slow
def test_a_sample_that_is_killed_leaves_its_hold_and_the_next_start_is_the_same_call(
    daemon: ClientDaemon,
) -> None:
    python = find_python("langgraph")
    first = start_sample(daemon, python, "langgraph_agent.py")
    try:
        wait_for_hold(daemon, first)
    finally:
        first.kill()
        first.communicate(timeout=30)
    daemon.kill()  # the fleet, too, is gone for a while
    daemon.start()
    second = start_sample(daemon, python, "langgraph_agent.py")
    try:
        wait_for_hold(daemon, second)
        daemon.approve()
        out, err = second.communicate(timeout=90)
    finally:
        second.kill()
    assert second.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["status"] == "done"
    # Both ran the whole script; what they asked for was done once each.
    assert [line.partition(" ")[2] for line in daemon.lines] == [
        "arrivals: the Petrel, 06:30",
        "arrivals: published",
    ]


# --- the promise ---------------------------------------------------------------------------------

PAGES = (
    ARRIVALS,
    "ref:/charter/pages/departures",
    "arrivals",
    "/etc/passwd",
    "ref:/event/data/key",
)
WRITERS = ("book.write", "book.write", "book.publish", "book.publish", "book.erase", "book_write")


def random_body(chance: random.Random) -> dict[str, Any]:
    """Return what a client may send: mostly calls, some of them no calls at all."""
    args: Any = {"page": chance.choice(PAGES), "text": f"line {chance.randrange(12)}"}
    tool = chance.choice(WRITERS)
    if tool == "book.publish" or chance.random() < 0.1:
        args.pop("text")
    if chance.random() < 0.1:
        args = chance.choice([[], "x", {"page": 5}, {"page": ["ref:/charter/pages/arrivals"]}])
    key = chance.choice([None, "arrivals", f"k{chance.randrange(12)}"])
    return {"tool": tool, "args": args, **({} if key is None else {"key": key})}


def as_mcp(body: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a call as a request of MCP."""
    params = {"name": body["tool"], "arguments": body["args"]}
    params |= {"_meta": {"vedette/key": body["key"]}} if "key" in body else {}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def forged(body: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a call as an event that somebody sends."""
    return {
        "specversion": "1.0", "id": f"call_{number}", "type": "vedette.call",
        "source": "vedette://harbour/call/courier", "data": {"caller": "me", **body},
    }  # fmt: skip


def test_nothing_is_done_that_the_gateway_did_not_permit(daemon: ClientDaemon) -> None:
    """By whatever door, whoever asks, whatever they say: each effect has its permit before it."""
    chance = random.Random(65)
    statuses: set[str] = set()
    for number in range(150):
        body = random_body(chance)
        token = chance.choice(
            [COURIER, COURIER, COURIER, PORTER, PORTER, MONITOR, "nobody-" + "n" * 32]
        )
        door = chance.choice(["calls", "calls", "mcp", "evaluation", "events"])
        with daemon.client(token) as who:
            if door == "mcp":
                accept = {"Accept": "application/json, text/event-stream"}
                answer = who.post("/mcp", json=as_mcp(body, number), headers=accept)
            elif door == "events":
                content = {"Content-Type": "application/cloudevents+json"}
                answer = who.post("/v1/events", json=forged(body, number), headers=content)
                assert answer.status_code in (401, 403), answer.text
            elif door == "evaluation":
                name = "courier" if token == COURIER else "porter"
                answer = who.post(
                    "/access/v1/evaluation",
                    json={
                        "subject": {"type": "agent", "id": name},
                        "action": {"name": body["tool"]},
                        "resource": {"type": "book", "id": "book", "properties": body["args"]},
                    },
                )
            else:
                answer = who.post("/v1/agent/calls", json=body)
        assert answer.status_code < 500 or answer.status_code == 501, answer.text
        if token not in (COURIER, PORTER):
            assert answer.status_code in (401, 403)
        elif door == "calls" and answer.status_code == 200:
            statuses.add(answer.json()["status"])
    # The control: the drive came to every kind of answer, so that it could have failed.
    assert statuses == {"done", "denied", "refused", "held"}
    keys = [line.partition(" ")[0] for line in daemon.lines]
    assert keys
    assert len(keys) == len(set(keys))
    for key in keys:
        story = daemon.verb("explain", f"act_{key}", "--json").json
        (action,) = [one for one in story["runs"][0]["actions"] if one["id"] == f"act_{key}"]
        assert action["decisions"][-1]["outcome"] == "permit"
        assert action["tool"] == "book.write"
        assert {one["origin"] for one in action["arguments"] if one["sink"]} <= {
            "trusted", "registered",
        }  # fmt: skip
        assert story["event"]["attributes"]["type"] == "vedette.call"
    assert not any("passwd" in line for line in daemon.lines)
    assert daemon.verb("verify").code == 0


def test_no_token_is_written_anywhere(daemon: ClientDaemon) -> None:
    held = daemon.call({"tool": "book.publish", "args": {"page": ARRIVALS}})
    daemon.call({"tool": "book.write", "args": {"page": "x", "text": "y"}}, PORTER)
    with httpx.Client(base_url=daemon.address, trust_env=False) as nobody:
        for path in ("/mcp", "/v1/agent/calls"):
            answer = nobody.post(path, json={}, headers={"Authorization": f"Bearer {COURIER}x"})
            assert answer.status_code == 401
            assert COURIER not in answer.text
    story = daemon.verb("explain", held["call"], "--json").out
    assert daemon.child is not None
    daemon.child.send_signal(signal.SIGTERM)
    assert daemon.child.wait(60) == 0
    assert "Traceback" not in daemon.output
    written = [story, daemon.output]
    written += [
        file.read_bytes().decode("latin-1")
        for file in (daemon.root / ".vedette").rglob("*")
        if file.is_file()
    ]
    assert any(held["call"] in text for text in written)  # the control: the record is among it
    for token in TOKENS.values():
        assert not any(token in text for text in written)


def test_it_ends_in_time_while_clients_wait(daemon: ClientDaemon) -> None:
    held = daemon.call({"tool": "book.publish", "args": {"page": ARRIVALS}})
    with daemon.client() as who:  # what MCP is made of is loaded with the first request
        accept = {"Accept": "application/json, text/event-stream"}
        assert who.post(
            "/mcp", json=as_mcp({"tool": "x", "args": {}}, 1), headers=accept
        ).is_success
    code = (
        "import httpx,sys\n"
        "mcp = {'jsonrpc': '2.0', 'id': 1, 'method': 'tools/call', 'params':\n"
        "       {'name': 'outcome', 'arguments': {'call': sys.argv[3], 'wait_s': 30}}}\n"
        "http = httpx.Client(base_url=sys.argv[1], timeout=60, trust_env=False,\n"
        "  headers={'Authorization': 'Bearer ' + sys.argv[2], 'Accept': 'application/json'})\n"
        "print('go', flush=True)\n"
        "if sys.argv[4] == 'mcp': http.post('/mcp', json=mcp)\n"
        "else: http.get('/v1/agent/calls/' + sys.argv[3] + '?wait_s=30')\n"
    )
    waiting = [
        subprocess.Popen(
            [sys.executable, "-c", code, daemon.address, COURIER, held["call"], door],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for door in ("mcp", "http")
    ]  # fmt: skip
    try:
        for child in waiting:
            assert child.stdout is not None
            assert child.stdout.readline() == "go\n"
        time.sleep(2)  # no other sign tells that both wait by now
        assert all(child.poll() is None for child in waiting)
        assert daemon.child is not None
        begun = time.monotonic()
        daemon.child.send_signal(signal.SIGTERM)
        assert daemon.child.wait(60) == 0
        assert time.monotonic() - begun < 15
    finally:
        for child in waiting:
            child.kill()
            child.communicate()
    assert "Traceback" not in daemon.output, daemon.output


def test_a_call_of_one_worker_is_known_to_the_others(tmp_path: Path) -> None:
    """Two workers on one PostgreSQL: a retry, and the question what came of it, go anywhere."""
    url = database_for(tmp_path)
    first = ClientDaemon(tmp_path / "first", database=url)
    second = ClientDaemon(tmp_path / "second", database=url)
    shutil.rmtree(second.root / "book")
    (second.root / "book").symlink_to(first.root / "book")
    write = {"tool": "book.write", "args": {"page": ARRIVALS, "text": "x"}, "key": "k"}
    publish = {"tool": "book.publish", "args": {"page": ARRIVALS}}
    with first:
        (second.root / ".vedette").mkdir(mode=0o700)
        shutil.copy(first.root / ".vedette" / "ledger.key", second.root / ".vedette")
        with second:
            both = [one.call(write) for one in (first, second, first, second)]
            assert {found["status"] for found in both} == {"done"}
            assert len({found["call"] for found in both}) == 1
            held = first.call(publish)
            assert second.call(publish)["call"] == held["call"]
            with ThreadPoolExecutor() as pool, first.client() as one, second.client() as other:
                path = f"/v1/agent/calls/{held['call']}?wait_s=30"
                waiting = [pool.submit(who.get, path) for who in (one, other)]
                second.approve()
                assert [found.result().json()["status"] for found in waiting] == ["done", "done"]
    assert [line.partition(" ")[2] for line in first.lines] == [
        "arrivals: x",
        "arrivals: published",
    ]
