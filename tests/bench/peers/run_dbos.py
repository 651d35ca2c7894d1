"""DBOS Transact: a workflow of three steps per event, its id the event's (so a repeat is known).

Variants: `threads` runs plain functions on as many threads as events in flight, `tasks` runs
coroutines; `…-lean` makes a step of the effect alone, as one would who counts them. On SQLite
`…-wal` sets the file to write-ahead logging first, which DBOS does not do by
itself. Synchronous stays as DBOS leaves it: full.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import sqlite3
from typing import Any

from tests.bench.peers.work import (
    Event,
    Row,
    Work,
    drive_tasks,
    drive_threads,
    options,
    report,
)


def main() -> None:
    """Run one variant."""
    given = options(("threads", "tasks", "threads-wal", "tasks-wal", "threads-lean", "tasks-lean"))
    dbos: Any = importlib.import_module("dbos")
    DBOS, SetWorkflowID = dbos.DBOS, dbos.SetWorkflowID
    work = Work(given.folder)
    url = given.url or f"sqlite:///{given.folder}/dbos.sqlite"
    if given.variant.endswith("-wal"):
        made = sqlite3.connect(given.folder / "dbos.sqlite")
        made.execute("PRAGMA journal_mode=WAL")
        made.close()
    pool = max(20, min(64, given.concurrency + 8))
    config = {
        "name": "bench",
        "system_database_url": url,
        "sys_db_pool_size": pool,
        "max_executor_threads": max(64, given.concurrency),
        "log_level": "ERROR",
        "enable_otlp": False,
    }
    logging.disable(logging.WARNING)
    DBOS(config=config)
    lean = given.variant.endswith("-lean")
    handle_sync = _threads(DBOS, SetWorkflowID, work, lean)
    handle_async = _tasks(DBOS, SetWorkflowID, work, lean)
    DBOS.launch()
    if given.variant.startswith("tasks"):
        clock = asyncio.run(drive_tasks(given, handle_async))
    else:
        clock = drive_threads(given, handle_sync)
    report(given, clock, work, pool=pool)
    DBOS.destroy()


def _threads(DBOS: Any, SetWorkflowID: Any, work: Work, lean: bool) -> Any:
    def recall(event: Event) -> Row:
        return work.recall(event)

    def judge(event: Event, row: Row) -> str:
        return work.judge(event, row)

    def act(event: str, mark: str) -> bool:
        return work.act(event)

    first: list[Any] = [recall, judge]
    steps = [*(first if lean else map(DBOS.step(), first)), DBOS.step()(act)]

    def story(event: Event) -> str:
        row = steps[0](event)
        mark: str = steps[1](event, row)
        steps[2](event["id"], mark)
        return mark

    workflow = DBOS.workflow(name="story")(story)

    def handle(event: Event) -> object:
        with SetWorkflowID(event["id"]):
            return workflow(event)

    return handle


def _tasks(DBOS: Any, SetWorkflowID: Any, work: Work, lean: bool) -> Any:
    async def recall_async(event: Event) -> Row:
        return work.recall(event)

    async def judge_async(event: Event, row: Row) -> str:
        return work.judge(event, row)

    async def act_async(event: str, mark: str) -> bool:
        return work.act(event)

    first: list[Any] = [recall_async, judge_async]
    steps = [*(first if lean else map(DBOS.step(), first)), DBOS.step()(act_async)]

    async def story_async(event: Event) -> str:
        row = await steps[0](event)
        mark: str = await steps[1](event, row)
        await steps[2](event["id"], mark)
        return mark

    workflow = DBOS.workflow(name="story_async")(story_async)

    async def handle(event: Event) -> object:
        with SetWorkflowID(event["id"]):
            return await workflow(event)

    return handle


if __name__ == "__main__":
    main()
