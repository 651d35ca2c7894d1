"""GET /v1/bundles/FLEET.tar.gz: who may read, what is answered when, and a real OPA that polls."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from tests.opa import find_opa

from vedette.adapters.bundles import PUBLIC_FILE, format_revision, unpack
from vedette.adapters.bundles.tar import read_tar, write_tar
from vedette.domain.base.errors import BadFleet
from vedette.domain.bundle import Bundle
from vedette.interfaces.http.bundle_server import (
    CONTENT_TYPE,
    MAX_WAIT_S,
    PLAIN_TYPE,
    BundleAccess,
    _parse_wait,
    routes,
)
from vedette.policy.distribution import Archive, BundleDistributor
from vedette.testing.harness import FleetHarness, copy_policies

NAME = "harbour.tar.gz"
PATH = f"/v1/bundles/{NAME}"
TOKEN = "token-of-the-lighthouse"
OPEN = BundleAccess.of(None, "127.0.0.1")


@asynccontextmanager
async def serving(
    distributor: BundleDistributor, readers: BundleAccess = OPEN, host: str = "127.0.0.1"
) -> AsyncIterator[httpx.AsyncClient]:
    app = Starlette(routes=routes(distributor, readers, NAME))
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with socket.create_server((host, 0)) as listening:
        port = listening.getsockname()[1]
        task = asyncio.create_task(server.serve(sockets=[listening]))
        url = f"http://{host}:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
            try:
                yield client
            finally:
                distributor.close()
                server.should_exit = server.force_exit = True
                await task


class Nothing:
    """A record that keeps nothing; and a sealer that is never asked."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


def distributor_of(archive: Archive | None) -> BundleDistributor:
    nothing: Any = Nothing()
    made = BundleDistributor(nothing, nothing, None, NAME, lambda: 0)
    made.set_live(archive)
    return made


FIRST = Archive.from_raw(1, "a" * 64, "key", b"the first")
SECOND = Archive.from_raw(2, "b" * 64, "key", b"the second")


# --- who may read --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "host", "peer", "shows", "status"),
    [
        (None, "127.0.0.1", "127.0.0.1", "", None),
        (None, "::1", "::1", "", None),
        (None, "localhost", "127.0.0.1", "", None),
        (None, "0.0.0.0", "127.0.0.1", "", 403),
        (None, "127.0.0.1", "192.0.2.7", "", 403),
        (None, "192.0.2.1", "192.0.2.7", "", 403),
        (None, "127.0.0.1", None, "", 403),
        (TOKEN, "127.0.0.1", "127.0.0.1", "", 401),
        (TOKEN, "0.0.0.0", "192.0.2.7", f"Bearer {TOKEN}", None),
        (TOKEN, "0.0.0.0", "192.0.2.7", f"bearer {TOKEN} ", None),
        (TOKEN, "0.0.0.0", "192.0.2.7", f"Bearer {TOKEN}x", 401),
        (TOKEN, "0.0.0.0", "192.0.2.7", f"Basic {TOKEN}", 401),
        (TOKEN, "0.0.0.0", "192.0.2.7", "Bearer", 401),
    ],
)
def test_who_may_read(
    token: str | None, host: str, peer: str | None, shows: str, status: int | None
) -> None:
    refused = BundleAccess.of(token, host).refusal(peer, shows)
    assert (refused[0] if refused else None) == status


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(BadFleet, match="fewer than 16"):
        BundleAccess.of("short", "0.0.0.0")


async def test_refusals_over_http() -> None:
    held = distributor_of(FIRST)
    async with serving(held, BundleAccess.of(TOKEN, "127.0.0.1")) as client:
        answer = await client.get(PATH)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "the first" not in answer.text
        shown = await client.get(PATH, headers={"Authorization": f"Bearer {TOKEN}"})
        assert (shown.status_code, shown.content) == (200, b"the first")
    async with serving(distributor_of(FIRST), BundleAccess.of(None, "0.0.0.0")) as client:
        answer = await client.get(PATH)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


# --- what is answered when -----------------------------------------------------------------------


async def test_an_archive_a_reader_has_is_not_sent_again() -> None:
    held = distributor_of(FIRST)
    async with serving(held) as client:
        first = await client.get(PATH)
        etag = first.headers["etag"]
        assert etag == f'"{FIRST.digest}"'
        assert first.headers["content-type"] == CONTENT_TYPE
        assert first.headers["vedette-revision"] == f"1 {'a' * 64}"
        same = await client.get(PATH, headers={"If-None-Match": f'"other", {etag}'})
        assert (same.status_code, same.content) == (304, b"")
        assert same.headers["content-type"] == CONTENT_TYPE
        held.set_live(SECOND)
        other = await client.get(PATH, headers={"If-None-Match": etag})
        assert (other.status_code, other.content) == (200, b"the second")


async def test_a_reader_that_waits_is_answered_when_there_is_another() -> None:
    held = distributor_of(FIRST)
    async with serving(held) as client:
        has = {"If-None-Match": f'"{FIRST.digest}"', "Prefer": "modes=snapshot,delta;wait=60"}
        waiting = asyncio.create_task(client.get(PATH, headers=has))
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        assert not done
        held.set_live(SECOND)
        answer = await asyncio.wait_for(waiting, 5)
        assert (answer.status_code, answer.content) == (200, b"the second")
        # It does not wait for what it has not got; and a short wait ends by itself.
        assert (await client.get(PATH, headers=has)).content == b"the second"
        short = {"If-None-Match": f'"{SECOND.digest}"', "Prefer": "wait=1"}
        assert (await client.get(PATH, headers=short)).status_code == 304


async def test_a_fleet_that_ends_answers_who_waits() -> None:
    held = distributor_of(FIRST)
    has = {"If-None-Match": f'"{FIRST.digest}"', "Prefer": "wait=60"}
    async with serving(held) as client:
        waiting = asyncio.create_task(client.get(PATH, headers=has))
        await asyncio.wait({waiting}, timeout=0.2)
        held.close()
        assert (await asyncio.wait_for(waiting, 5)).status_code == 304
        assert (await client.get(PATH, headers=has)).status_code == 304


async def test_too_many_who_wait_are_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vedette.interfaces.http.bundle_server.MAX_WAITING", 0)
    has = {"If-None-Match": f'"{FIRST.digest}"', "Prefer": "wait=60"}
    async with serving(distributor_of(FIRST)) as client:
        answer = await asyncio.wait_for(client.get(PATH, headers=has), 5)
        assert answer.status_code == 304
        # OPA takes the other content type for a promise, and would ask again at once.
        assert answer.headers["content-type"] == PLAIN_TYPE


async def test_who_hangs_up_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vedette.interfaces.http.bundle_server.MAX_WAITING", 1)
    held = distributor_of(FIRST)
    has = {"If-None-Match": f'"{FIRST.digest}"', "Prefer": "wait=60"}
    question = {"If-None-Match": f'"{FIRST.digest}"'}
    async with serving(held) as client:

        async def room() -> bool:
            return (await client.get(PATH, headers=question)).headers[
                "content-type"
            ] == CONTENT_TYPE

        async def until(there: bool) -> None:
            async with asyncio.timeout(5):
                while await room() != there:  # noqa: ASYNC110 (a server tells)
                    await asyncio.sleep(0.01)

        waiting = asyncio.create_task(client.get(PATH, headers=has))
        await until(False)
        waiting.cancel()  # which closes its connection
        await asyncio.gather(waiting, return_exceptions=True)
        await until(True)
        # The place is of use: the next reader is held back in it, and answered.
        waiting = asyncio.create_task(client.get(PATH, headers=has))
        await until(False)
        held.set_live(SECOND)
        assert (await asyncio.wait_for(waiting, 5)).content == b"the second"


async def test_without_a_signed_archive_the_reader_keeps_what_it_has() -> None:
    async with serving(distributor_of(None)) as client:
        answer = await client.get(PATH, headers={"Prefer": "wait=60"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ("", 0), ("wait=10", 10), ("modes=snapshot,delta;wait=30", 30), ("wait=0", 0),
        ("wait=999999", MAX_WAIT_S), ("await=10", 0), ("wait=1e9", 0), ("wait=-1", 0),
    ],
)  # fmt: skip
def test_how_long_a_reader_wants_to_wait(prefer: str, seconds: int) -> None:
    assert _parse_wait(prefer) == seconds


# --- a real OPA ----------------------------------------------------------------------------------


@contextmanager
def polling_opa(url: str, public: Path) -> Iterator[tuple[int, Path]]:
    """Run a real OPA that polls and verifies; yields its port and its log. Ended by its own pid."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    config = {
        "services": {"fleet": {"url": f"{url}/v1"}},
        "keys": {"fleet": {"algorithm": "ES256", "key": public.read_text()}},
        "bundles": {
            "harbour": {
                "service": "fleet",
                "resource": f"bundles/{NAME}",
                "signing": {"keyid": "fleet"},
                "polling": {
                    "min_delay_seconds": 1, "max_delay_seconds": 2,
                    "long_polling_timeout_seconds": 30,
                },
            }
        },
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="vedette-opa-") as folder:
        path = Path(folder) / "opa.json"
        path.write_text(json.dumps(config))
        log = Path(folder) / "log"
        with log.open("wb") as said:
            process = subprocess.Popen(
                [find_opa(), "run", "--server", "--addr", f"127.0.0.1:{port}",
                 "--disable-telemetry", "--log-level", "error", "--config-file", str(path)],
                stdout=said, stderr=said, env={**os.environ, "NO_PROXY": "127.0.0.1"},
            )  # fmt: skip
        try:
            yield port, log
        finally:
            process.terminate()
            process.wait(10)


class Opa:
    """What a polling OPA answers."""

    def __init__(self, port: int, log: Path, client: httpx.AsyncClient) -> None:
        self._log = log
        self._url = f"http://127.0.0.1:{port}"
        self._client = client

    async def revision(self) -> str | None:
        """Return the revision that answers questions; None while there is none."""
        try:
            answer = await self._client.post(
                f"{self._url}/v1/data/vedette/denies?provenance", json={"input": {}}
            )
        except httpx.TransportError:
            return None
        bundles = answer.json().get("provenance", {}).get("bundles", {})
        found: str | None = bundles.get("harbour", {}).get("revision")
        return found

    def trouble(self) -> str:
        """Return what it said of bundles that it did not take up."""
        return self._log.read_text()

    async def until(self, revision: str, within_s: float = 30) -> float:
        """Wait until it answers with a revision; return the instant (monotonic seconds)."""
        async with asyncio.timeout(within_s):
            while await self.revision() != revision:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
        return time.monotonic()


def tampered(archive: Archive) -> Archive:
    """Return an archive in which data was changed after it was signed."""
    members = dict(read_tar(archive.raw))
    changed = members["data.json"].replace(b'"denies":{"agents":[]', b'"denies":{"agents":["x"]')
    assert changed != members["data.json"]
    raw = write_tar({**members, "data.json": changed})
    return Archive.from_raw(archive.number, archive.bundle, archive.key, raw)


@pytest.mark.timeout(90)
async def test_a_real_opa_has_a_revision_a_moment_after_it_is_live_and_refuses_a_changed_one(
    tmp_path: Path,
) -> None:
    find_opa()
    policies = copy_policies(tmp_path / "edited")
    async with FleetHarness(tmp_path / "fleet") as fleet:
        held = fleet.app.rollout.distributor
        assert held is not None
        public = tmp_path / "fleet" / "state" / PUBLIC_FILE
        async with serving(held) as client:
            with polling_opa(str(client.base_url), public) as (port, log):
                opa = Opa(port, log, client)
                await opa.until(format_revision(*fleet.app.store.policy.live_revision()))
                lags = []
                for number in range(3):
                    denies = policies / "denies" / "data.yaml"
                    denies.write_text(denies.read_text() + f"# {number}\n")
                    done = await fleet.apply_policy(policies)
                    live = time.monotonic()
                    wanted = format_revision(done["revision"], done["digest"])
                    lags.append(await opa.until(wanted) - live)
                # Long polling, or the least of three would be a whole polling interval.
                assert min(lags) < 1.0, lags
                good = held.live
                assert good is not None
                assert "Bundle load failed" not in opa.trouble()
                held.set_live(tampered(good))
                async with asyncio.timeout(30):
                    while "data.json" not in opa.trouble():  # noqa: ASYNC110 (another process)
                        await asyncio.sleep(0.02)
                assert await opa.revision() == wanted
                assert "Bundle load failed" in opa.trouble()
                held.set_live(good)
                done = await fleet.apply_policy(fleet.policies)
                await opa.until(format_revision(done["revision"], done["digest"]))
                bundle, manifest = unpack((await client.get(PATH)).content, public.read_bytes())
                assert manifest.number == done["revision"]
                assert bundle.digest == Bundle.of(bundle.files).digest == done["digest"]
    print(f"publication to a real OPA's answers: {[f'{lag * 1000:.0f} ms' for lag in lags]}")
