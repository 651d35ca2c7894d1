"""Samples of a Prometheus server as points."""
