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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vedette.adapters.reasoners.in_process import InProcessReasoner
from vedette.adapters.reasoners.workers.confinement import ProgressRecord, confine, name_process
from vedette.adapters.reasoners.workers.fork_server import report_entered, run_fork_server
from vedette.adapters.reasoners.workers.reasoner_worker import JudgeRunner, serve_judge
from vedette.adapters.reasoners.workers.root_agents import serve_root_agent
from vedette.adapters.reasoners.workers.sandbox import NOT_ENTERED, Sandbox, enter_sandbox
from vedette.adapters.reasoners.workers.tool_worker import ToolRunner, serve_tools
from vedette.adapters.tools.in_process import InProcessTools
from vedette.config.agent_loader import load_judge, load_module
from vedette.domain.judge_state import judge_digest
from vedette.domain.memory import Memory
from vedette.judging import Judge

if TYPE_CHECKING:
    from vedette.adapters.reasoners.workers.model_worker import ModelParts, ModelRunner


def build_judge_runner(
    agent: str,
    folder: str,
    release: str | None,
    charter: Mapping[str, Any],
    lessons: Sequence[Memory],
    every: int,
    takes_tasks: bool,
) -> JudgeRunner:
    """Wire the judges of a worker process: one, of one agent."""

    def make(_: str) -> Judge:
        return load_judge(Path(folder), charter, lessons, release, takes_tasks=takes_tasks)

    return InProcessReasoner(
        make, checkpoint_every=every, digest_of=lambda _: judge_digest(release, lessons)
    )


def build_tool_runner(agent: str, folder: str, release: str | None) -> ToolRunner:
    """Wire the tool runner of a worker process: the tools of one agent."""
    return InProcessTools(lambda _: load_module(Path(folder), "tools", release))


def describe_root(folder: Path, release: str | None, source: str | None) -> dict[str, Any]:
    """Return in `worker_main` an agent's root_agent, which a model reasons for, as plain data.

    With `source` it is the foreign one of that folder within.
    """
    if source is not None:
        from vedette.adapters.reasoners.adk.foreign_root import describe_foreign_agent

        # What a stranger's code prints would stand on a person's terminal, as if we said it.
        null = os.open(os.devnull, os.O_RDWR)
        for opened in (0, 1, 2):
            os.dup2(null, opened)
        return describe_foreign_agent(folder, release, source)
    from vedette.adapters.reasoners.adk.root_agent import describe_root_agent

    return describe_root_agent(folder, release)


def build_model_runner(agent: str, parts: ModelParts) -> ModelRunner:
    """Wire what asks the model of a worker process: by one agent's described root_agent."""
    from vedette.adapters.reasoners.adk.model import AskedModel
    from vedette.adapters.reasoners.adk.reasoner import AdkReasoner

    models = {
        plan.model.name: AskedModel(plan, partial(parts.keys.__getitem__, plan.model.name))
        for plan in parts.models
    }
    return AdkReasoner(
        {agent: Path(parts.folder)}, timeout_s=parts.timeout_s, bounds={agent: parts.bounds},
        descriptions={agent: parts.description}, models=models,
    )  # fmt: skip


def serve_worker(
    connection: socket.socket, note: int, lock: int, entering: int, start_message: dict[str, Any]
) -> None:
    """Be `worker_main`'s worker that the start message describes, until the engine hangs up."""
    # What agents' code prints must not be taken for the answer of a `--json` verb.
    os.dup2(2, 1)
    confine(int(start_message["memory"]))
    agent = str(start_message["agent"])
    name_process(str(start_message["kind"]), agent)
    if start_message["box"] is not None:
        try:
            enter_sandbox(
                Sandbox.from_json(start_message["box"]), (connection.fileno(), note, lock, entering)
            )
        except Exception:
            sys.excepthook(*sys.exc_info())
            os._exit(NOT_ENTERED)
    report_entered(entering)
    kind, progress = start_message["kind"], ProgressRecord(note)
    is_boxed = start_message["box"] is not None
    if kind == "judge":
        serve_judge(connection, progress, agent, build_judge_runner)
    elif kind == "description":
        serve_root_agent(connection, progress, describe_root)
    elif kind == "model":
        # What it imports no judge's worker needs.
        from vedette.adapters.reasoners.workers.model_worker import serve_model

        memory = int(start_message["memory"])
        serve_model(
            connection, progress, agent, build_model_runner, memory=memory, asks_names=is_boxed
        )
    else:
        serve_tools(connection, progress, agent, build_tool_runner, asks_names=is_boxed)


def preload_modules(names: Sequence[str]) -> None:
    """Import in `worker_main` our modules, or what most judges need: they are slow to import."""
    for name in names or ("judging.examples", "judging.rank_anomaly"):
        # What is not there, or broken, is said to whoever makes its judge, or asks its model.
        with suppress(Exception):
            importlib.import_module(f"vedette.{name}")


def main(args: Sequence[str]) -> int:
    """Run `worker_main`: the fork server on the open file that the engine handed down."""
    (control,) = (int(arg) for arg in args)
    run_fork_server(socket.socket(fileno=control), serve_worker, preload_modules)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
