"""The plain ADK Runner: one session per event, three events of the agent's own in each.

Variants: `sqlite` keeps sessions with SqliteSessionService, `database` with
DatabaseSessionService over aiosqlite. The Runner appends each event to the session before it goes
on. It takes no work up again after a crash: that is less than the others do.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import logging
from collections.abc import AsyncGenerator
from typing import Any

from tests.bench.peers.work import Event, Work, drive_tasks, options, report

APP = "bench"
USER = "bench"
LOCK_S = 60


def agent_of(work: Work) -> Any:
    """Return an agent that does the three steps, each told as an event with its state."""
    agents: Any = importlib.import_module("google.adk.agents")
    adk_events: Any = importlib.import_module("google.adk.events")

    class Keeper(agents.BaseAgent):  # type: ignore[misc]
        async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Any, None]:
            def step(**delta: Any) -> Any:
                actions = adk_events.EventActions(state_delta=delta)
                return adk_events.Event(
                    author=self.name, invocation_id=ctx.invocation_id, actions=actions
                )

            event: Event = json.loads(ctx.user_content.parts[0].text)
            row = work.recall(event)
            yield step(row=row)
            mark = work.judge(event, ctx.session.state["row"])
            yield step(mark=mark)
            done = work.act(event["id"])
            yield step(done=done)

    return Keeper(name="gauge_keeper")


async def run() -> None:
    """Run one variant."""
    given = options(("sqlite", "database"))
    logging.disable(logging.WARNING)
    work = Work(given.folder)
    runners: Any = importlib.import_module("google.adk.runners")
    types: Any = importlib.import_module("google.genai.types")
    path = given.folder / "adk.sqlite"
    # Longer than the usual 5 s: with events beside one another it fails on a locked database.
    # SqliteSessionService opens a connection for each call and has no setting for it.
    sqlite: Any = importlib.import_module("aiosqlite")
    sqlite.connect = functools.partial(sqlite.connect, timeout=LOCK_S)
    service: Any
    if given.variant == "sqlite":
        module: Any = importlib.import_module("google.adk.sessions.sqlite_session_service")
        service = module.SqliteSessionService(str(path))
    else:
        module = importlib.import_module("google.adk.sessions.database_session_service")
        service = module.DatabaseSessionService(
            f"sqlite+aiosqlite:///{path}", connect_args={"timeout": LOCK_S}
        )
    runner = runners.Runner(app_name=APP, agent=agent_of(work), session_service=service)

    async def handle(event: Event) -> object:
        await service.create_session(app_name=APP, user_id=USER, session_id=event["id"])
        said = types.Content(role="user", parts=[types.Part(text=json.dumps(event))])
        run = runner.run_async(user_id=USER, session_id=event["id"], new_message=said)
        return [message async for message in run]

    report(given, await drive_tasks(given, handle), work)
    await runner.close()


if __name__ == "__main__":
    asyncio.run(run())
