"""Entries of [models] before the test server, and agents of a toy fleet that ask them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.model_server import KEY, WIRES

from vedette.config.models import ModelPlan
from vedette.domain.model import Model, Provider
from vedette.testing.harness import FleetHarness
from vedette.testing.model_server import ModelServer


def make_plan(
    folder: Path,
    server: ModelServer,
    provider: Provider = "gemini",
    *,
    name: str = "fast",
    key: str = KEY,
    **limits: Any,
) -> ModelPlan:
    """Return an entry of a server's model; its key is written into a file of `folder`."""
    served, path = WIRES[provider]
    file = folder / f"{name}.key"
    file.write_text(key)
    model = Model(name, provider=provider, served_name=served, **limits)
    return ModelPlan(model, server.url + path, key_file=str(file))


def ask_entry(fleet: FleetHarness, plan: ModelPlan, agent: str = "worker") -> None:
    """Have an agent of a toy fleet ask an entry, by its agent.yaml alone."""
    folder = fleet.content / "agents" / agent
    (folder / "agent.py").unlink()
    text = (folder / "agent.yaml").read_text()
    (folder / "agent.yaml").write_text(text.replace("reasoner: judge", f"model: {plan.model.name}"))
    fleet.models = {**fleet.models, plan.model.name: plan}
