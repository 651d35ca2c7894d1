"""Thirty virtual days of a harbour with twenty agents (docs/design/month.md)."""
