"""Schedules as a source of events."""
