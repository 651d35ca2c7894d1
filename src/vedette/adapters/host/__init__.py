"""This machine as a source of metrics."""
