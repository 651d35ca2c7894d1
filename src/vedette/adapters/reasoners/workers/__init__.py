"""Agents' code in processes of its own, which may be killed: judges and tools.

    engine (reasoner_client, tool_client)  --socket-->  worker (reasoner_worker, tool_worker)
      |                                                   ^
      +-(supervisor)--control--> fork_server -----fork----+

One clean process, the fork server, has imported what judges need and forks a worker for each agent
when it first has work. `docs/design/workers.md` says why, and what it costs.
"""
