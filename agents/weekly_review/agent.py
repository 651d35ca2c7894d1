"""The agent as ADK sees it: `adk web agents`, or `model:` in agent.yaml."""

import os
from pathlib import Path

from google.adk.agents import LlmAgent

from vedette.sdk import declared_tools

FOLDER = Path(__file__).resolve().parent

# A call of a tool proposes; the gateway decides, and tools.py is never reached from here.
root_agent = LlmAgent(
    name="weekly_review",
    model=os.environ.get("VEDETTE_MODEL", "gemini-2.5-flash"),
    description="Reads the papers of a week and reports on it, with its sources.",
    instruction=(FOLDER / "instruction.md").read_text(encoding="utf-8"),
    tools=declared_tools(FOLDER),
)
