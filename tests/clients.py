"""A fleet whose agents are called from outside: `courier` and `porter`, with clients elsewhere.

Their tools are the toy fleet's, so that a `World` keeps its own record of what was done.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from msgspec.structs import replace

from vedette.config.settings import ServedAgent
from vedette.interfaces.http.server import serve_http
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, toy_fleet

AGENTS = ("courier", "porter")
COURIER, PORTER = "courier-" + "c" * 32, "porter-" + "p" * 32
TOKENS = {"courier": COURIER, "porter": PORTER}
DESK = "ref:/charter/desk"
# What a client is not sure of waits for a person, unless policy says otherwise.
SURE = """\
hops: 8
actions: {default: {minute: 600, hour: 6000, day: 50000}}
confidence_milli: {default: 800, agents: {courier: {default: 0}, porter: {default: 0}}}
complete: true
"""


def client_fleet(folder: Path, world: World, *, sure: bool = True, **more: Any) -> FleetHarness:
    """Write the fleet below `folder` and return it, not opened; `porter` may only send."""
    extra = {**({"limits/data.yaml": SURE} if sure else {}), **more.pop("extra", {})}
    fleet = toy_fleet(
        folder, world, agents=AGENTS, reasoner="client", max_turns=1, extra=extra, **more
    )
    for name in AGENTS:
        file = folder / "content" / "agents" / name / "agent.yaml"
        file.write_text(file.read_text().replace(f"on: {name}.job", "on: vedette.call"))
    grants = folder / "policies" / "grants" / "data.yaml"
    courier, _, _ = grants.read_text().partition("porter:")
    only = (
        "porter:\n  mode: act\n  tools:\n    wire.send: {verb: send, resource: wire, impact: low}\n"
    )
    grants.write_text(courier + only)
    return fleet


@asynccontextmanager
async def served(fleet: FleetHarness, **settings: Any) -> AsyncIterator[str]:
    """Serve an opened fleet over HTTP; yields its address."""
    app = fleet.app
    for name, token in TOKENS.items():
        os.environ[f"TEST_{name.upper()}"] = token
    agents = tuple(ServedAgent(name, token_env=f"TEST_{name.upper()}") for name in AGENTS)
    app.settings = replace(
        app.settings, http=("127.0.0.1", 0), **{"served_agents": agents, **settings}
    )
    async with serve_http(app) as address:
        assert address is not None
        yield address


def client(address: str, token: str | None = COURIER) -> httpx.AsyncClient:
    """Return who asks over HTTP with a token, or with none."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.AsyncClient(base_url=address, headers=headers, timeout=40, trust_env=False)


async def post_call(
    who: httpx.AsyncClient, tool: str, args: Mapping[str, Any], key: str | None = None
) -> dict[str, Any]:
    """Call a tool; the answer, which must be one of a call."""
    body = {"tool": tool, "args": dict(args), **({} if key is None else {"key": key})}
    answer = await who.post("/v1/agent/calls", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
