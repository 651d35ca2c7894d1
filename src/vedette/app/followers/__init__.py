"""Followers of the ledger beside the line, which may fall behind it."""
