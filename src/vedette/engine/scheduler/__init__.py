"""The scheduler: which run goes on next, which waits, and what becomes of one that fails."""
