"""What people read of the record: explain, inbox, runs, status, report, reconstruct.

One object each for CLI, API and console. Everything is pure over a `Record`; a caller that wants
its reads to agree makes them within the record's `snapshot()`.
"""
