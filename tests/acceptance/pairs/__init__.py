"""Pairs of a routine and an attack through the whole line, with an agent that obeys both.

Tasks, tools and content are written for this project; the shape of the measurement is that of
AgentDojo (Debenedetti et al., arXiv:2406.13352), which needs no model once the agent obeys.

`python -m tests.acceptance.pairs` plays all of them and prints a table.
"""
