"""A task of a thousand turns on two workers of one store, each killed -9 again and again.

`make long-task-kills`. Two `vedette run` as they are shipped (agents' code in boxed processes)
share a PostgreSQL database; a scripted model behind the strict server sends one letter a turn to a
server with a record of its own. At random points of the run whoever has it is killed, and started
again. The task has to end by its conditions, with each letter sent once and no more than one call
of the model repeated for each kill.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from tests.pg import server
from tests.receiving_server import ReceivingServer
from tests.relay import Relay
from tests.said import START, Said, environment, vedette
from tests.task_fleet import BOUND, GOAL, ROOM, Greeter, asks_hand_off, fenced, size, task_policies

from vedette.adapters.ledger_export import verify_store
from vedette.domain.run import Run
from vedette.store.postgres import PostgresReader
from vedette.testing.harness import copy_policies
from vedette.testing.model_server import ModelServer

KEY = "test-key"
NAMES = ("one", "two")
_AGENT = """\
version: 1
name: worker
title: Sends greetings
owner: desk@example.org
model: fast
mode: act
order_by: subject
work: {max_turns: 10000, no_progress: 50}
triggers: [{on: worker.job}]
charter: {desk: desk@example.org}
budget: {actions_per_run: 10000, actions_per_hour: 1000000, actions_per_day: 1000000,
  model_calls_per_run: 100000, model_calls_per_day: 1000000,
  input_tokens_per_call: ROOM, output_tokens_per_call: 2000}
tools:
  - {name: wire.send, verb: send, resource: wire, args: {to: string, text: string}, sinks: [/to],
     settles: idempotent, target: wire, attempts: 5,
     http: {method: POST, url: /send, body: {to: "{to}", text: "{text}"},
            idempotency_header: Idempotency-Key}}
"""
_GRANT = """
worker:
  mode: act
  owner: desk@example.org
  tools:
    wire.send: {verb: send, resource: wire, impact: low}
"""
_DONE = "version: 1\nconditions:\n  - {name: sent, action: wire.send, at_least: MOST}\n"
_TOML = """\
fleet = "harbour"
state = "state"
[store]
kind = "postgresql"
url_env = "WORKERS_URL"
lease = "1s"
[content]
agents = "../content/agents"
policies = "../content/policies"
memory = "../content/memory"
[serve]
http = ""
[targets.wire]
kind = "http"
base_url = "WIRE"
private = true
[models.fast]
provider = "gemini"
model = "gemini-3-pro-preview"
base_url = "MODEL"
key_env = "MODEL_KEY"
timeout = "60s"
"""


class Kill(Struct, frozen=True):
    """A kill: before which turn, of which worker, and after how many seconds the run went on."""

    turn: int
    worker: str
    after_s: float


class Found(Struct):
    """What a run came to: `wrong` is what must not be."""

    turns: int
    hand_offs: int
    requests: int
    largest: int
    first_third: int
    last_third: int
    kills: list[Kill]
    calls: int
    wrong: list[str]


class TwoWorkers:
    """The two engines on one store."""

    def __init__(self, root: Path, url: str, model: str, wires: list[str], most: int) -> None:
        self.root, self.url = root, url
        self.engines: dict[str, subprocess.Popen[bytes]] = {}
        content = root / "content"
        agent = content / "agents" / "worker"
        agent.mkdir(parents=True)
        (content / "memory").mkdir()
        (agent / "__init__.py").touch()
        (agent / "agent.yaml").write_text(_AGENT.replace("ROOM", str(ROOM)))
        (agent / "instruction.md").write_text("Send greetings, one a turn.\n")
        (agent / "done.yaml").write_text(_DONE.replace("MOST", str(most)))
        copy_policies(content / "policies", task_policies(_GRANT))
        for name, wire in zip(NAMES, wires, strict=True):
            (root / name).mkdir()
            toml = _TOML.replace("WIRE", wire).replace('MODEL"', f'{model}"')
            (root / name / "vedette.toml").write_text(toml)

    def start(self, name: str) -> None:
        """Start a worker; it is ready a little later."""
        words = environment(WORKERS_URL=self.url, MODEL_KEY=KEY)
        with (self.root / name / "output.txt").open("ab") as file:
            self.engines[name] = subprocess.Popen(
                [*START, "run", "--plain"], cwd=self.root / name, stdout=file, stderr=file,
                env=words,
            )  # fmt: skip

    def verb(self, name: str, *arguments: str) -> Said:
        """Run a verb beside a worker."""
        return vedette(self.root / name, *arguments, WORKERS_URL=self.url, MODEL_KEY=KEY)

    def open(self) -> None:
        """Start both: they have one signing key. Raises AssertionError if the first fails."""
        self.start("one")
        key = self.root / "one" / "state" / "ledger.key"
        socket = self.root / "one" / "state" / "api.sock"
        self.wait(lambda: key.exists() and socket.exists(), 120, "the first worker is not ready")
        (self.root / "two" / "state").mkdir()
        shutil.copy(key, self.root / "two" / "state" / "ledger.key")
        self.start("two")

    def kill(self, name: str) -> None:
        """Kill -9 a worker's engine, and start it again; its children end by themselves."""
        process = self.engines[name]
        assert process.poll() is None, self.output(name)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        self.start(name)

    def close(self) -> None:
        """End both."""
        for process in self.engines.values():
            process.send_signal(signal.SIGTERM)
        for process in self.engines.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def output(self, name: str) -> str:
        """Return the end of what a worker wrote."""
        path = self.root / name / "output.txt"
        return path.read_text(errors="replace")[-3000:] if path.exists() else ""

    def wait(self, holds: Callable[[], bool], within_s: float, what: str) -> None:
        """Return when something holds. Raises AssertionError when that is late."""
        end = time.monotonic() + within_s
        while not holds():
            ended = [one for one, process in self.engines.items() if process.poll() is not None]
            assert not ended, f"{ended[0]} ended:\n{self.output(ended[0])}"
            if time.monotonic() > end:
                dead = self.verb("one", "dead", "--json").out
                raise AssertionError(f"{what}:\n{dead}\n{self.output('one')}\n{self.output('two')}")
            time.sleep(0.01)


def play(
    root: Path, url: str, *, turns: int, kills: int, seed: int, tell: Callable[[str], None]
) -> Found:
    """Play the task to its end over so many kills; return what it came to."""
    draw, model = random.Random(seed), Greeter(turns)
    last = ["one"]  # who sent a letter
    points = sorted(draw.sample(range(2, turns), kills))
    done: list[Kill] = []
    with (
        ReceivingServer() as wire,
        ModelServer(model) as served,
        Relay(_port(wire.address), lambda: last.append("one")) as first,
        Relay(_port(wire.address), lambda: last.append("two")) as second,
    ):
        # By which address it calls the target tells who has the run; the model has one for both.
        wires = [f"http://127.0.0.1:{relay.port}" for relay in (first, second)]
        both = TwoWorkers(root, url, served.url, wires, turns)
        try:
            both.open()
            given = ("work", "start", "worker", "--goal", GOAL, "--reason", "a test", "--json")
            run_id = both.verb("one", *given).json["run"]
            for point in points:
                both.wait(partial(_has, model, point + len(done)), 300, "no turn")
                time.sleep(draw.uniform(0, 0.08))
                asked, worker = len(model.requests), last[-1]
                began = time.monotonic()
                both.kill(worker)
                both.wait(partial(_has, model, asked + 1), 120, "nobody took it up")
                done.append(Kill(asked, worker, time.monotonic() - began))
                tell(
                    f"kill {len(done)} of {kills}: worker {worker} after request {asked}; asked "
                    f"again after {done[-1].after_s:.1f} s, by worker {last[-1]}"
                )
            store = PostgresReader(url)
            try:
                both.wait(lambda: _run(store, run_id).state in ("done", "dead"), 900, "no end")
                both.close()
                found = audit(store, run_id, model, wire, done)
            finally:
                store.close()
            statuses = {one.status for one in served.exchanges}
            if statuses - {200, None}:
                found.wrong.append(f"the model's server answered {statuses}")
            for name in NAMES:
                line = (root / name / "state" / "ledger.pub").read_text().strip()
                store = PostgresReader(url)
                log = root / name / "state" / "witness.log"
                found.wrong += [str(one) for one in verify_store(store.ledger, line, log).findings]
                store.close()
            return found
        finally:
            both.close()


def _has(model: Greeter, requests: int) -> bool:
    return len(model.requests) >= requests


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def _run(store: PostgresReader, id: str) -> Run:
    found = store.runs.run(id)
    assert found is not None
    return found


def audit(
    store: PostgresReader, id: str, model: Greeter, wire: ReceivingServer, kills: list[Kill]
) -> Found:
    """Return what a run came to, by its store, by what its model was asked, and by its target."""
    run, wrong = _run(store, id), list[str]()

    def expect(holds: bool, what: str) -> None:
        if not holds:
            wrong.append(what)

    expect(run.state == "done", f"the run is {run.state}, not done")
    kinds = Counter(json.loads(raw)["kind"] for _, raw, _, _ in store.ledger.walk())
    expect(kinds["run.closed"] == 1, f"{kinds['run.closed']} ends")
    expect(kinds["turn.reasoned"] == run.turn, f"{kinds['turn.reasoned']} turns for {run.turn}")
    finishes = [row for row in store.runs.actions(id) if row.tool == "task.finish"]
    expect([row.decided for row in finishes] == ["permit"], "the finish was not permitted once")
    expect(not list(store.ledger.row_mismatches()), "rows are not what the ledger says")
    effects = Counter(text.partition(" ")[0] for text in wire.effects.elements())
    wanted = Counter({str(number): 1 for number in range(1, model.most + 1)})
    expect(effects == wanted, f"letters: {(effects - wanted) + (wanted - effects)}")
    requests = model.requests
    repeated = len(requests) - run.turn
    expect(0 <= repeated <= len(kills), f"{repeated} calls of the model were repeated")
    goals = {fenced(one, "task")["goal"] for one in requests}
    expect(goals == {GOAL}, "another goal was told")
    sizes = [size(one) for one in requests]
    expect(max(sizes) <= 1.2 * BOUND, f"a prompt has {max(sizes)} bytes")
    third = len(sizes) // 3
    first, last = sum(sizes[:third]), sum(sizes[-third:])
    if run.turn > 200:  # of few contexts it is chance which third begins more of them
        expect(0.8 * first <= last <= 1.25 * first, f"tokens: {first} at first, {last} at last")
    hand_offs = sum(asks_hand_off(one) for one in requests)
    calls = wire.calls.total()
    return Found(
        run.turn, hand_offs, len(requests), max(sizes), first, last, kills, calls, wrong
    )  # fmt: skip


def main() -> int:
    """Play it and print what came of it; 1 if anything is wrong."""
    options = argparse.ArgumentParser(prog="make long-task-kills", description=__doc__)
    options.add_argument("--turns", type=int, default=1000, help="letters to send")
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--seed", type=int, default=16)
    given = options.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vedette-long-task-") as name:
        found = play(
            Path(name), server().fresh(), turns=given.turns, kills=given.kills, seed=given.seed,
            tell=lambda line: print(line, flush=True),
        )  # fmt: skip
    print(f"{report(found)}\n{time.monotonic() - began:.0f} s, seed {given.seed}")
    return 1 if found.wrong else 0


def report(found: Found) -> str:
    """Return what a run came to, for people."""
    workers: dict[str, Any] = Counter(kill.worker for kill in found.kills)
    slowest = max((kill.after_s for kill in found.kills), default=0)
    lines = [
        f"{found.turns} turns, {found.hand_offs} hand-offs, {len(found.kills)} kills "
        f"({', '.join(f'{number} of worker {name}' for name, number in workers.items())})",
        f"model asked {found.requests} times: {found.requests - found.turns} repeated",
        f"largest prompt {found.largest:,} bytes; its bound is {BOUND:,.0f}, "
        f"{found.largest / BOUND:.2f} of it",
        f"bytes of the first third {found.first_third:,}, of the last {found.last_third:,}",
        f"the target was called {found.calls} times; the run went on after {slowest:.1f} s at most",
        *(f"WRONG: {one}" for one in found.wrong),
        ""
        if found.wrong
        else "conditions met: each letter once, each goal to the letter, no more "
        "than one call of the model repeated a kill, the ledger proved",
    ]
    return "\n".join(filter(None, lines))


if __name__ == "__main__":
    sys.exit(main())
