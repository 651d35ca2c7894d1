"""The agent for ADK: `adk web agents` and the model-backed reasoner load `root_agent`."""

from __future__ import annotations

import os
from pathlib import Path

from google.adk.agents import LlmAgent

from vedette.sdk import declared_tools

_FOLDER = Path(__file__).parent

root_agent = LlmAgent(
    name="memory_curator",
    model=os.environ.get("VEDETTE_MODEL", "gemini-2.5-flash"),
    description="Gathers people's corrections and answers into proposals to remember.",
    instruction=(_FOLDER / "instruction.md").read_text(encoding="utf-8"),
    tools=declared_tools(_FOLDER),
)
