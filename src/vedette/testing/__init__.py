"""The public test kit: a clock that tests move, an intake that records."""
