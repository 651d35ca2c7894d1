"""Imports all that a turn through ADK needs, so that whoever is forked has it already."""

from __future__ import annotations

import importlib

from vedette.adapters.reasoners.adk.reasoner import import_adk

import_adk()
for _module in (
    "vedette.adapters.reasoners.adk.root_agent",
    # What Google's client imports when it is first used.
    "google.genai.client", "google.auth.aio", "httpcore", "httpx",
):  # fmt: skip
    importlib.import_module(_module)
