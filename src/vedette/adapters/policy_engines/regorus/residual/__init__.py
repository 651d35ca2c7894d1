"""The residual of a policy: a Python function made of it by partial evaluation of its rules."""
