"""What is served without a token is served under names that no web page can rebind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from vedette.config.settings import read_settings
from vedette.interfaces.http.hosts import AllowedHosts
from vedette.interfaces.http.server import build_application
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, toy_fleet

OPEN = ("/metrics", "/healthz", "/readyz")
EVENT = {"specversion": "1.0", "id": "1", "source": "web", "type": "ping", "data": {}}
OURS = ("127.0.0.1", "127.0.0.1:8088", "localhost:8088", "LOCALHOST", "[::1]:8088", "10.1.2.3:80",
        "metrics.example.com", "metrics.example.com:443", "Metrics.Example.com.")  # fmt: skip
THEIRS = ("evil.example", "evil.example:8088", "127.0.0.1.evil.example", "localhost.evil.example",
          "metrics.example.com.evil.example", "127.0.0.1@evil.example", "", "0x7f.1.evil", "[::1",
          "localhost:80:80", "metrics.example.com:x", "xmetrics.example.com")  # fmt: skip


@asynccontextmanager
async def served(folder: Path, *, anonymous: bool = False) -> AsyncIterator[httpx.AsyncClient]:
    async with toy_fleet(folder, World()) as fleet:
        yield client_of(fleet, anonymous=anonymous)


def client_of(fleet: FleetHarness, *, anonymous: bool) -> httpx.AsyncClient:
    app = fleet.app
    app.settings = replace(app.settings, hosts=("metrics.example.com",), anonymous=anonymous)
    transport = httpx.ASGITransport(build_application(app))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


@pytest.mark.parametrize("path", OPEN)
async def test_only_by_an_address_localhost_or_a_declared_name(path: str, tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        for host in OURS:
            answer = await client.get(path, headers={"Host": host})
            assert answer.status_code == 200, (host, answer.text)
        for host in THEIRS:
            answer = await client.get(path, headers={"Host": host})
            assert answer.status_code == 421, host
            assert answer.json()["error"]["code"] == "wrong-host"
        twice = [("Host", "127.0.0.1"), ("Host", "evil.example")]
        assert (await client.get(path, headers=twice)).status_code == 421


async def test_nobody_sends_events_under_another_name_without_a_token(tmp_path: Path) -> None:
    content = {"Content-Type": "application/cloudevents+json"}
    async with served(tmp_path, anonymous=True) as client:
        for host, status in (("evil.example", 421), ("localhost", 202)):
            headers = {**content, "Host": host}
            answer = await client.post("/v1/events", headers=headers, content=json.dumps(EVENT))
            assert answer.status_code == status, answer.text


def test_a_request_without_a_name_is_refused() -> None:
    assert not AllowedHosts(()).is_allowed("")
    assert not AllowedHosts(("",)).is_allowed("evil.example")


@pytest.mark.parametrize("name", ["a b", "http://here", "here:80", "", "-x", "*.example.com"])
def test_what_is_no_name_is_refused_by_the_settings(name: str, tmp_path: Path) -> None:
    toml = tmp_path / "vedette.toml"
    toml.write_text(f'fleet = "harbour"\n\n[serve]\nhosts = ["{name}"]\n')
    _, problems = read_settings(toml)
    assert [problem.what for problem in problems] == [f"{name!r} is no host name"]
