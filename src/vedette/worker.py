"""A worker process: where agents' judges and tools run, apart from the engine.

Started by the engine as `python -m vedette.worker CONTROL LOCK` (two open files). What it imports
here every worker has for nothing; it holds no store, no key, no socket but its own.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vedette.adapters.local_hands import LocalHands
from vedette.adapters.local_judges import LocalJudges
from vedette.adapters.worker_pool.confine import Note, confine, name_process
from vedette.adapters.worker_pool.hands_side import Hands, serve_hands
from vedette.adapters.worker_pool.judge_side import Judges, serve_judge
from vedette.adapters.worker_pool.zygote import run_zygote
from vedette.judging import Judge
from vedette.load.modules import judge_of, load_module
from vedette.memory import Memory


def make_judges(
    agent: str, folder: str, charter: Mapping[str, Any], lessons: Sequence[Memory], every: int
) -> Judges:
    """Return the judges of a worker: one, of one agent."""

    def make(_: str) -> Judge:
        return judge_of(Path(folder), charter, lessons)

    return LocalJudges(make, checkpoint_every=every)


def make_hands(agent: str, folder: str) -> Hands:
    """Return the hands of a worker: the tools of one agent."""
    return LocalHands(lambda _: load_module(Path(folder), "tools"))


def serve(line: socket.socket, note: int, told: dict[str, Any]) -> None:
    """Be the worker that the start message tells of, until the engine hangs up."""
    # What agents' code prints must not be taken for the answer of a `--json` verb.
    os.dup2(2, 1)
    confine(int(told["memory"]))
    agent = str(told["agent"])
    name_process(str(told["kind"]), agent)
    if told["kind"] == "judge":
        serve_judge(line, Note(note), agent, make_judges)
    else:
        serve_hands(line, Note(note), agent, make_hands)


def warm() -> None:
    """Import what most judges need, once nobody waits for a worker: it is slow to import."""
    import vedette.judging.examples
    import vedette.judging.ranks  # noqa: F401


def main(args: Sequence[str]) -> int:
    """Run the zygote on the two open files that the engine handed down."""
    control, lock = (int(arg) for arg in args)
    run_zygote(socket.socket(fileno=control), lock, serve, warm)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
