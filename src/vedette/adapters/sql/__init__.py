"""Rows of a table of SQLite or PostgreSQL as events."""
