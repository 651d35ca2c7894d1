"""The tests that the gate has no time for, and what of each stays in it."""
