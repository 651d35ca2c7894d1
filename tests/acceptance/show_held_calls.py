"""`python -m tests.acceptance.show_held_calls`: calls from outside that a person leaves waiting.

A daemon as it is shipped, and the sample agents before it, each in the environment that it names: a
plain script, LangGraph's agent and that of the OpenAI Agents SDK (`tools/clients`). Each acts, and
its second call is held. Nobody answers for `--minutes` of real time; then a person approves all,
and each client goes on by itself. Held against the promise: no effect before, one each after.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.acceptance.test_foreign_agents import find_python, start_sample, wait_for_hold
from tests.bench.machine import described
from tests.bench.verdict import Verdict, print_verdicts
from tests.client_daemon import ClientDaemon

CLIENTS = (
    (None, "http_agent.py"),
    ("langgraph", "langgraph_agent.py"),
    ("openai", "openai_agent.py"),
)
DONE_WITHIN_S = 60.0


def show_client(folder: Path, framework: str | None, sample: str, minutes: float) -> list[Verdict]:
    """Have one client's call held for so long; return what came of it."""
    name = framework or "script"
    python = sys.executable if framework is None else find_python(framework)
    folder.mkdir()
    with ClientDaemon(folder) as daemon:
        child = start_sample(daemon, python, sample)
        try:
            wait_for_hold(daemon, child)
            began = time.monotonic()
            while time.monotonic() - began < 60 * minutes:
                assert child.poll() is None, f"{name} gave up: {child.communicate()}"
                time.sleep(1)
            before = len(daemon.lines)
            held_s = time.monotonic() - began
            daemon.approve()
            approved = time.monotonic()
            out, err = child.communicate(timeout=DONE_WITHIN_S)
            took = time.monotonic() - approved
        except subprocess.TimeoutExpired:
            out, err, took = "", "it did not go on", float("inf")
        finally:
            child.kill()
        effects = [line.partition(" ")[2] for line in daemon.lines]
        keys = {line.partition(" ")[0] for line in daemon.lines}
    answers = [json.loads(line) for line in out.splitlines()[1:]]
    done = [one["call"] for one in answers if one["status"] == "done"]
    print(f"{name}: held for {held_s:.0f} s; {effects}; ended with {child.returncode} {err[-300:]}")
    return [
        Verdict(f"{name}: effects while it was held", before, 1),
        Verdict(f"{name}: effects in the end", len(effects), 2),
        Verdict(f"{name}: of keys of their own", len(keys), 2, least=True),
        Verdict(f"{name}: calls that the client saw done", len(set(done)), 2, least=True),
        Verdict(f"{name}: from the approval to its end", took, DONE_WITHIN_S, "s"),
        Verdict(f"{name}: ended otherwise than with 0", float(child.returncode != 0), 0),
    ]


def main(argv: list[str] | None = None) -> int:
    """Show it; 1 if a promise is not met."""
    parser = argparse.ArgumentParser(prog="tests.acceptance.show_held_calls", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="that each call is held")
    parser.add_argument("--only", choices=[framework or "script" for framework, _ in CLIENTS])
    options = parser.parse_args(argv)
    print(described(), flush=True)
    found: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="vedette-show-") as made:
        for framework, sample in CLIENTS:
            name = framework or "script"
            if options.only in (None, name):
                found += show_client(Path(made) / name, framework, sample, options.minutes)
    return print_verdicts(found)


if __name__ == "__main__":
    sys.exit(main())
