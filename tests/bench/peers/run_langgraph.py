"""LangGraph: a graph of three nodes per event, one thread of its checkpointer for each.

Variants: durability `sync` (each super-step is durable before the next) and `exit` (nothing is
durable before the end), each with the asynchronous SQLite checkpointer and, as `…-threads`, with
the plain one on threads; `…-lean` is a graph of one node, which does all three. The checkpointers
set write-ahead logging and leave synchronous full.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Any, TypedDict

from tests.bench.peers.work import Event, Row, Work, drive_tasks, drive_threads, options, report


class State(TypedDict, total=False):
    """What goes from node to node."""

    event: Event
    row: Row
    mark: str
    done: bool


def graph_of(work: Work, lean: bool = False) -> Any:
    """Return the graph, not compiled: of three nodes, or lean, of one."""
    graphs: Any = importlib.import_module("langgraph.graph")

    def recall(state: State) -> State:
        return {"row": work.recall(state["event"])}

    def judge(state: State) -> State:
        return {"mark": work.judge(state["event"], state["row"])}

    def act(state: State) -> State:
        return {"done": work.act(state["event"]["id"])}

    def story(state: State) -> State:
        event = state["event"]
        mark = work.judge(event, work.recall(event))
        return {"mark": mark, "done": work.act(event["id"])}

    made = graphs.StateGraph(State)
    if lean:
        made.add_node("story", story)
        made.add_edge(graphs.START, "story")
        made.add_edge("story", graphs.END)
        return made
    for node in (recall, judge, act):
        made.add_node(node.__name__, node)
    made.add_edge(graphs.START, "recall")
    made.add_edge("recall", "judge")
    made.add_edge("judge", "act")
    made.add_edge("act", graphs.END)
    return made


def main() -> None:
    """Run one variant."""
    given = options(
        ("sync", "exit", "sync-threads", "exit-threads", "sync-lean", "sync-threads-lean")
    )
    work = Work(given.folder)
    path = str(given.folder / "langgraph.sqlite")
    durability = given.variant.partition("-")[0]
    lean = given.variant.endswith("-lean")

    def config(event: Event) -> dict[str, Any]:
        return {"configurable": {"thread_id": event["id"]}}

    async def tasks() -> None:
        saver: Any = importlib.import_module("langgraph.checkpoint.sqlite.aio").AsyncSqliteSaver
        async with saver.from_conn_string(path) as checkpointer:
            graph = graph_of(work, lean).compile(checkpointer=checkpointer)

            async def handle(event: Event) -> object:
                return await graph.ainvoke({"event": event}, config(event), durability=durability)

            report(given, await drive_tasks(given, handle), work)

    if "-threads" not in given.variant:
        asyncio.run(tasks())
        return
    saver: Any = importlib.import_module("langgraph.checkpoint.sqlite").SqliteSaver
    with saver.from_conn_string(path) as checkpointer:
        graph = graph_of(work, lean).compile(checkpointer=checkpointer)

        def handle(event: Event) -> object:
            return graph.invoke({"event": event}, config(event), durability=durability)

        report(given, drive_threads(given, handle), work)


if __name__ == "__main__":
    main()
