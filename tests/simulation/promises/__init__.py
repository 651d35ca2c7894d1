"""What vedette promises, a module for each kind of promise; `tests.simulation.model` judges by all.

None of it shares code with the engine.
"""
