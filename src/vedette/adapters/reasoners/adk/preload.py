"""Imports all that a turn through ADK needs, so that whoever is forked has it already."""

from __future__ import annotations

import importlib

from vedette.adapters.reasoners.adk.reasoner import import_adk

import_adk()
for _module in ("vedette.adapters.reasoners.adk.root_agent", "google.genai.client", "httpx"):
    importlib.import_module(_module)
