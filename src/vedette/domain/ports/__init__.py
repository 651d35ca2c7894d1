"""Ports: what the engine asks of the world. Adapters need not import these; they only have to fit.

No transaction object, no SQL and no vendor's type crosses a port.
"""
