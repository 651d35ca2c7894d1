"""Agents' code in processes of its own, which may be killed: judges and tools.

    engine (judges, hands, pool, link)  --socket-->  worker (judge_side, hands_side)
                  |                                        ^
                  +--control--> zygote ------fork----------+

One clean process, the zygote, has imported what judges need and forks a worker for each agent
when it first has work. `docs/design/workers.md` says why, and what it costs.
"""
