"""Tokens for single calls, and published keys. A local server plays Google's part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from joserfc.jwk import RSAKey
from msgspec.structs import replace
from tests.googles import MASTER, FakeGoogle, fake_google

from vedette.adapters.identity.google import IamCredentials, MetadataServer, TokenTools
from vedette.adapters.identity.jwt import Jwks
from vedette.adapters.identity.jwt.keys import import_jwk
from vedette.domain.base.errors import BadFleet, Unavailable
from vedette.domain.effect import Call, Outcome, RowWrite
from vedette.domain.ports.tokens import BadToken
from vedette.domain.tool import Tool

SCOPES = ["https://www.googleapis.com/auth/pubsub"]
CALL = Call("wire.send", {}, "k1", "sorter", "run_1", {}, (), 1, 1_000_000)
TOOL: Any = object()


@pytest.fixture
async def google() -> AsyncIterator[FakeGoogle]:
    async with fake_google() as fake:
        yield fake


class InnerTools:
    """A performer that keeps what it was called with, and answers with all that it saw."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.raises = False

    def compute_rows(self, tool: Tool, call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
        self.calls.append(call)
        return []

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        if not may_start():
            return None
        self.calls.append(call)
        token = str(call.target.get("token"))
        if self.raises:
            raise ValueError(f"the target said no to {token}")
        data = {"echo": f"<{token}>", "deep": [{"n": (token, 1)}], token: 1}
        return Outcome("done", data, f"sent with {token}")

    async def query(self, tool: Tool, call: Call) -> Outcome | None:
        return await self.perform(tool, call, lambda: True)

    def close(self) -> None: ...


def token_tools(google: FakeGoogle) -> tuple[TokenTools, InnerTools]:
    inner = InnerTools()
    broker = IamCredentials(MetadataServer(google.host), base=google.base)
    return TokenTools(inner, broker, lambda agent: f"{agent}@proj.example"), inner


def to(**target: Any) -> Call:
    return replace(CALL, target=target)


async def test_a_call_gets_a_token_of_its_agent_for_its_scopes_only(google: FakeGoogle) -> None:
    made, inner = token_tools(google)
    for _ in range(2):
        await made.perform(TOOL, to(google_scopes=SCOPES), lambda: True)
    questions = [one for one in google.asked if one[0] == "generateAccessToken"]
    wanted = ("generateAccessToken", "sorter@proj.example", {"scope": SCOPES, "lifetime": "300s"})
    assert questions == [wanted, wanted], "one for each call: none is kept"
    assert [call.target["token"] for call in inner.calls] == google.minted
    assert len(set(google.minted)) == 2
    assert MASTER not in str(inner.calls), "the gateway's own token is nobody else's"


async def test_a_target_that_asks_for_an_audience_gets_an_id_token(google: FakeGoogle) -> None:
    made, inner = token_tools(google)
    await made.query(TOOL, to(google_audience="https://run.example"))
    assert google.asked[-1] == (
        "generateIdToken",
        "sorter@proj.example",
        {"audience": "https://run.example", "includeEmail": True},
    )
    assert inner.calls[0].target["token"].count(".") == 2


async def test_other_targets_get_none_and_nobody_is_asked(google: FakeGoogle) -> None:
    made, inner = token_tools(google)
    await made.perform(TOOL, to(url="x"), lambda: True)
    made.compute_rows(TOOL, to(google_scopes=SCOPES), None)
    assert google.asked == []
    assert all("token" not in call.target for call in inner.calls)


async def test_what_comes_back_is_rid_of_the_token(google: FakeGoogle) -> None:
    made, inner = token_tools(google)
    outcome = await made.perform(TOOL, to(google_scopes=SCOPES), lambda: True)
    (token,) = google.minted
    assert outcome is not None
    assert token not in repr(outcome)
    assert outcome.data["echo"] == "<[token]>", "the control: it was there"
    inner.raises = True
    with pytest.raises(RuntimeError, match=r"no to \[token\]") as raised:
        await made.perform(TOOL, to(google_scopes=SCOPES), lambda: True)
    assert google.minted[-1] not in repr(raised.value)
    assert raised.value.__cause__ is None


async def test_what_may_not_start_is_not_called(google: FakeGoogle) -> None:
    made, inner = token_tools(google)
    assert await made.perform(TOOL, to(google_scopes=SCOPES), lambda: False) is None
    assert inner.calls == []


@pytest.mark.parametrize("status", [403, 404, 500])
async def test_without_a_token_nothing_is_called(google: FakeGoogle, status: int) -> None:
    made, inner = token_tools(google)
    google.status = status
    outcome = await made.perform(TOOL, to(google_scopes=SCOPES), lambda: True)
    assert outcome is not None
    assert (outcome.state, inner.calls) == ("retry", [])
    assert "secret words" not in outcome.error
    answer = await made.query(TOOL, to(google_scopes=SCOPES))
    assert answer is not None
    assert answer.state == "unknown"


async def test_the_metadata_server_is_known_by_its_flavor(google: FakeGoogle) -> None:
    assert (await MetadataServer(google.host).id_token("aud")).count(".") == 2
    google.flavored = False
    for ask in (
        MetadataServer(google.host).id_token("aud"),
        MetadataServer(google.host).access_token(),
    ):
        with pytest.raises(Unavailable, match="no metadata server"):
            await ask


async def test_the_gateways_own_token_is_kept_while_it_holds(google: FakeGoogle) -> None:
    metadata = MetadataServer(google.host)
    assert {await metadata.access_token() for _ in range(3)} == {MASTER}
    assert [what for what, _, _ in google.asked] == ["token"]


Answers = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(answer: Answers) -> AsyncIterator[str]:
    """Serve on a free port of this machine, below HTTP; ends once every connection has."""
    tasks: set[asyncio.Task[Any]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with suppress(ConnectionError):
                await answer(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.wait_for(asyncio.gather(*tasks), 10)


def in_pieces(*parts: bytes) -> Answers:
    """Answer as the metadata server, each piece once the one before is likely to be read."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = "HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: {}\r\n\r\n"
        writer.write(head.format(sum(map(len, parts))).encode())
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.05)

    return answer


async def test_an_answer_that_comes_in_pieces_is_read_to_its_end() -> None:
    first, second = b'{"access_token": "ya29.wh', b'ole", "expires_in": 9}'
    async with listening(in_pieces(first, second)) as host:
        assert await MetadataServer(host).access_token() == "ya29.whole"
    async with listening(in_pieces(b"head.", b"body.", b"signature")) as host:
        assert await MetadataServer(host).id_token("aud") == "head.body.signature"
    async with listening(in_pieces(b"x" * 65_536, b"y")) as host:
        with pytest.raises(Unavailable, match="over 65536 bytes"):
            await MetadataServer(host).id_token("aud")


# --- published keys --------------------------------------------------------------------------


async def test_keys_are_fetched_once_and_a_new_one_is_found(google: FakeGoogle) -> None:
    at = [0]
    keys = Jwks(f"{google.base}/certs", now_us=lambda: at[0])
    for _ in range(3):
        await keys.key("g1")
    assert keys.fetch_count == 1
    google.keys["g2"] = RSAKey.generate_key(2048)
    with pytest.raises(BadToken):
        await keys.key("g2")
    assert keys.fetch_count == 1, "strangers may name any key: not asked again at once"
    at[0] += 31_000_000
    await keys.key("g2")
    assert keys.fetch_count == 2


async def test_the_last_good_keys_are_kept_and_dropped_ones_go(google: FakeGoogle) -> None:
    at = [0]
    keys = Jwks(f"{google.base}/certs", now_us=lambda: at[0], max_age_us=60_000_000)
    await keys.key("g1")
    google.status, at[0] = 500, 61_000_000
    await keys.key("g1")
    assert keys.fetch_count == 2
    google.status, at[0] = 200, 130_000_000
    google.keys["g2"] = google.keys.pop("g1")
    with pytest.raises(BadToken) as error:
        await keys.key("g1")
    assert error.value.code == "unknown-key"


async def test_without_any_keys_nobody_can_be_checked(google: FakeGoogle) -> None:
    google.status = 500
    at = [0]
    keys = Jwks(f"{google.base}/certs", now_us=lambda: at[0])
    with pytest.raises(Unavailable, match="HTTP 500"):
        await keys.key("g1")
    google.status, at[0] = 200, 2_000_000
    await keys.key("g1")


async def hanging(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take a request and say nothing until whoever asked has gone."""
    while await reader.read(65_536):
        pass


async def test_an_issuer_that_hangs_keeps_all_who_wait_for_one_try() -> None:
    """Ten at once wait for one time limit, not one after the other for ten."""
    at = [0]
    async with listening(hanging) as host:
        keys = Jwks(f"http://{host}/", now_us=lambda: at[0], timeout_s=0.2)

        async def error_of(kid: str) -> str:
            with pytest.raises(Unavailable) as refused:
                await keys.key(kid)
            return refused.value.what

        said = await asyncio.gather(*(error_of(f"k{n}") for n in range(10)))
        assert keys.fetch_count == 1
        assert set(said) == {"the issuer's keys cannot be had: TimeoutError"}, "each is told why"
        at[0] = 1_999_999
        await error_of("k")
        assert keys.fetch_count == 1
        at[0] = 2_000_000
        await error_of("k")
        assert keys.fetch_count == 2


async def test_who_gives_up_waiting_is_no_failed_try(google: FakeGoogle) -> None:
    entered = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        entered.set()
        await hanging(reader, writer)

    async with listening(answer) as host:
        keys = Jwks(f"http://{host}/", now_us=lambda: 0)
        asking = asyncio.create_task(keys.key("g1"))
        await asyncio.wait_for(entered.wait(), 10)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        keys._url = f"{google.base}/certs"
        await keys.key("g1")


@pytest.mark.parametrize("url", ["http://keys.example/certs", "file:///etc/keys", "keys"])
def test_keys_are_not_fetched_in_the_clear(url: str) -> None:
    with pytest.raises(BadFleet, match="plain HTTP"):
        Jwks(url, now_us=lambda: 0)
    Jwks("https://keys.example/certs", now_us=lambda: 0)


def test_a_key_of_a_set_is_a_public_key(google: FakeGoogle) -> None:
    whole = google.keys["g1"]
    key = import_jwk(whole.as_dict(private=True))
    assert key.thumbprint() == whole.thumbprint()
    assert not key.is_private, "a private part is never kept"
    for odd in ({"kty": "oct", "k": "c2VjcmV0"}, {"kty": "EC", "crv": "P-256"}, {}):
        with pytest.raises(ValueError, match="key"):
            import_jwk(odd)
