"""`make eval-real`: the shipped judges on the evaluation data, beside simple baselines.

Nothing is fitted to a file name or to a held-out row: whatever files lie under VEDETTE_DATA in the
layout of its README are read. The baselines run in an environment of their own (tools/eval).
"""
