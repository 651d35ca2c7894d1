"""Rego in this process: the embedded PolicyEngine, and the stage where bundles are tried."""
