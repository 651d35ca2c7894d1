"""A worker process: where agents' code runs, apart from the engine.

Started by the engine as `python -m vedette.app.worker_main CONTROL` (an open file). What it imports
here every worker has for nothing; it holds no store, no key, no socket but its own.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vedette.adapters.reasoners.in_process import LocalJudges
from vedette.adapters.reasoners.workers.confinement import Note, confine, name_process
from vedette.adapters.reasoners.workers.fork_server import run_zygote, say_entered
from vedette.adapters.reasoners.workers.reasoner_worker import Judges, serve_judge
from vedette.adapters.reasoners.workers.root_agents import serve_root_agent
from vedette.adapters.reasoners.workers.sandbox import NOT_ENTERED, Box, enter
from vedette.adapters.reasoners.workers.tool_worker import Hands, serve_hands
from vedette.adapters.tools.in_process import LocalHands
from vedette.config.agent_loader import judge_of, load_module
from vedette.domain.judge_state import made_of
from vedette.domain.memory import Memory
from vedette.judging import Judge


def make_judges(
    agent: str,
    folder: str,
    release: str | None,
    charter: Mapping[str, Any],
    lessons: Sequence[Memory],
    every: int,
) -> Judges:
    """Return the judges of a worker: one, of one agent."""

    def make(_: str) -> Judge:
        return judge_of(Path(folder), charter, lessons, release)

    return LocalJudges(make, checkpoint_every=every, made=lambda _: made_of(release, lessons))


def make_hands(agent: str, folder: str, release: str | None) -> Hands:
    """Return the hands of a worker: the tools of one agent."""
    return LocalHands(lambda _: load_module(Path(folder), "tools", release))


def describe_root(folder: Path, release: str | None) -> dict[str, Any]:
    """Return the root_agent of an agent that a model reasons for, as plain data. Imports ADK."""
    from vedette.adapters.reasoners.adk.root_agent import describe_root_agent

    return describe_root_agent(folder, release)


def serve(line: socket.socket, note: int, lock: int, entering: int, told: dict[str, Any]) -> None:
    """Be the worker that the start message tells of, until the engine hangs up."""
    # What agents' code prints must not be taken for the answer of a `--json` verb.
    os.dup2(2, 1)
    confine(int(told["memory"]))
    agent = str(told["agent"])
    name_process(str(told["kind"]), agent)
    if told["box"] is not None:
        try:
            enter(Box.of_json(told["box"]), (line.fileno(), note, lock, entering))
        except Exception:
            sys.excepthook(*sys.exc_info())
            os._exit(NOT_ENTERED)
    say_entered(entering)
    if told["kind"] == "judge":
        serve_judge(line, Note(note), agent, make_judges)
    elif told["kind"] == "model":
        serve_root_agent(line, Note(note), describe_root)
    else:
        serve_hands(line, Note(note), agent, make_hands, asks_names=told["box"] is not None)


def warm(names: Sequence[str]) -> None:
    """Import modules of ours, or what most judges need: they are slow to import."""
    for name in names or ("judging.examples", "judging.rank_anomaly"):
        # An agent's code may name what is not there; that is said to whoever makes its judge.
        with suppress(ImportError):
            importlib.import_module(f"vedette.{name}")


def main(args: Sequence[str]) -> int:
    """Run the zygote on the open file that the engine handed down."""
    (control,) = (int(arg) for arg in args)
    run_zygote(socket.socket(fileno=control), serve, warm)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
