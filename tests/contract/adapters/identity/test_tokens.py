"""The contract of the Tokens port, on both issuers, and every token that is not to be taken.

Google's side is a local server that answers as its documentation says: no real Google is met here.
"""

from __future__ import annotations

import base64
import hmac
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from joserfc.jwk import ECKey, RSAKey
from joserfc.jws import serialize_compact
from tests.googles import PATTERN, FakeGoogle, fake_google, google_tokens
from tests.remote import FLEET, now_us, svid_tokens

from vedette.adapters.identity.spiffe import Issuer
from vedette.domain.base import failpoint
from vedette.domain.identity import Identity
from vedette.domain.ports.tokens import BadToken, TokenAuthority

LEEWAY_S = 30


@dataclass
class Side:
    """One issuer: the port, and how to sign any claims as it would."""

    tokens: TokenAuthority
    issuer: Issuer
    forge: Callable[..., str]
    pem: bytes
    life_s: int
    required: tuple[str, ...]
    google: FakeGoogle | None = None


@pytest.fixture(params=["embedded", "google"])
async def side(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Side]:
    issuer, svids = svid_tokens(tmp_path)
    if request.param == "embedded":
        signer = issuer.signer("sorter")
        key = signer._key

        def forge(key: Any = key, kid: str = signer.kid, **more: Any) -> str:
            now = int(time.time())
            claims = {
                "iss": f"spiffe://{FLEET}", "sub": f"spiffe://{FLEET}/agent/sorter",
                "aud": [issuer.audience], "iat": now, "exp": now + 300, "jti": "j1", **more,
            }  # fmt: skip
            fields = {name: value for name, value in claims.items() if value is not None}
            header = {"alg": "ES256", "kid": kid}
            return serialize_compact(header, orjson.dumps(fields), key, algorithms=["ES256"])

        pem = key.as_pem(private=False)
        required = ("exp", "iat", "aud", "sub", "jti")
        yield Side(svids, issuer, forge, pem, 300, required)
        return
    async with fake_google() as google:
        tokens = google_tokens(google, issuer)

        def forge_google(key: Any = None, kid: str = "g1", **more: Any) -> str:
            audience = more.pop("aud", issuer.audience)
            email = more.pop("email", PATTERN.format(agent="sorter"))
            return google.token(email, audience, kid=kid, key=key, **more)

        pem = google.keys["g1"].as_pem(private=False)
        required = ("exp", "iat", "aud", "sub", "email")
        yield Side(tokens, issuer, forge_google, pem, 3600, required, google)


def _part(answer: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(answer)).rstrip(b"=").decode()


def _read(part: str) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(base64.urlsafe_b64decode(part + "=="))
    return found


async def refused(side: Side, token: str, agent: str | None = None) -> str:
    with pytest.raises(BadToken) as error:
        await side.tokens.verify(token, agent)
    assert token not in str(error.value) or not token
    return error.value.code


async def test_a_minted_token_is_taken_for_its_agent_until_it_expires(side: Side) -> None:
    token = await side.tokens.mint("sorter")
    for agent in ("sorter", None, "sorter"):
        identity, claims = await side.tokens.verify(token, agent)
        assert identity == Identity(FLEET, "sorter")
        assert side.issuer.audience in claims.audience
        assert 0 < claims.expires_us - claims.issued_us <= side.life_s * 1_000_000
        assert not side.tokens.is_revoked(claims)


async def test_the_signature_of_a_token_is_checked_once(side: Side) -> None:
    tokens: Any = side.tokens
    verifier = getattr(tokens, "verifier", None) or tokens._verifier
    token = side.forge()
    for _ in range(5):
        await side.tokens.verify(token)
    assert verifier.signature_checks == 1


async def test_what_was_forged_is_taken_if_nothing_is_wrong_with_it(side: Side) -> None:
    """The control of all below: the same forgery without its one fault is taken."""
    assert (await side.tokens.verify(side.forge(), "sorter"))[0].agent == "sorter"


async def test_a_bad_signature(side: Side) -> None:
    head, payload, signature = side.forge().split(".")
    turned = signature[:10] + ("A" if signature[10] != "A" else "B") + signature[11:]
    assert await refused(side, f"{head}.{payload}.{turned}") == "bad-signature"
    other = _part({**_read(payload), "jti": "another"})
    assert await refused(side, f"{head}.{other}.{signature}") == "bad-signature"


async def test_a_key_of_ones_own_under_a_known_id(side: Side) -> None:
    if side.google is None:
        token = side.forge(key=ECKey.generate_key("P-256"))
    else:
        token = side.forge(key=RSAKey.generate_key(2048))
    assert await refused(side, token) == "bad-signature"


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE"])
async def test_alg_none(side: Side, name: str) -> None:
    head, payload, signature = side.forge().split(".")
    plain = _part({**_read(head), "alg": name})
    assert await refused(side, f"{plain}.{payload}.") == "bad-algorithm"
    assert await refused(side, f"{plain}.{payload}.{signature}") == "bad-algorithm"


async def test_hs256_keyed_with_the_public_key(side: Side) -> None:
    """Made by hand: joserfc does not lend itself to it."""
    head, payload, _ = side.forge().split(".")
    header = {**_read(head), "alg": "HS256"}
    for secret in (side.pem, side.pem.strip()):
        signed = f"{_part(header)}.{payload}"
        mac = hmac.digest(secret, signed.encode(), "sha256")
        token = f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
        assert await refused(side, token) == "bad-algorithm"


async def test_expired(side: Side) -> None:
    now = int(time.time())
    assert await refused(side, side.forge(iat=now - 240, exp=now - LEEWAY_S - 1)) == "expired"
    await side.tokens.verify(side.forge(iat=now - 240, exp=now - LEEWAY_S + 20))


async def test_a_token_that_was_taken_expires_like_any_other(tmp_path: Path) -> None:
    at = [now_us()]
    _, tokens = svid_tokens(tmp_path, lambda: at[0])
    token = await tokens.mint("sorter")
    await tokens.verify(token)
    at[0] += 329_000_000
    await tokens.verify(token)
    at[0] += 2_000_000
    with pytest.raises(BadToken) as error:
        await tokens.verify(token)
    assert error.value.code == "expired"


async def test_not_yet_valid(side: Side) -> None:
    now = int(time.time())
    later = now + LEEWAY_S + 5
    assert await refused(side, side.forge(nbf=later)) == "not-yet"
    assert await refused(side, side.forge(iat=later, exp=later + 60)) == "not-yet"


async def test_a_life_that_is_too_long(side: Side) -> None:
    """Five minutes for our own; Google's last an hour, and no longer."""
    now = int(time.time())
    assert await refused(side, side.forge(iat=now, exp=now + side.life_s + 1)) == "too-long"
    assert await refused(side, side.forge(iat=now - 10, exp=now + 86_400)) == "too-long"


@pytest.mark.parametrize("nothing", [None, ""])
async def test_each_claim_that_is_missing(side: Side, nothing: str | None) -> None:
    for name in side.required:
        if name == "email" and nothing is None:
            token = side.forge(email=None) if side.google is None else no_email(side)
        else:
            token = side.forge(**{name: nothing})
        assert await refused(side, token) == "missing-claim", name


def no_email(side: Side) -> str:
    assert side.google is not None
    token: Any = side.google.token
    return str(token(None, side.issuer.audience))


@pytest.mark.parametrize("odd", ["soon", True, float("inf"), -1, [1], 1e30])
async def test_an_instant_that_is_none(side: Side, odd: Any) -> None:
    if odd == float("inf"):
        odd = 1e300
    assert await refused(side, side.forge(exp=odd)) == "missing-claim"


@pytest.mark.parametrize("aud", ["https://elsewhere.example", ["a", "b"], {"x": 1}])
async def test_a_wrong_audience(side: Side, aud: Any) -> None:
    assert await refused(side, side.forge(aud=aud)) == "wrong-audience"


async def test_a_wrong_issuer(side: Side) -> None:
    assert await refused(side, side.forge(iss="https://evil.example")) == "wrong-issuer"


async def test_an_unknown_key_and_none(side: Side) -> None:
    if side.google is None:
        assert await refused(side, side.forge(kid="nobody")) == "unknown-key"
    else:
        token = side.forge(kid="nobody", key=side.google.keys["g1"])
        assert await refused(side, token) == "unknown-key"
    head, payload, signature = side.forge().split(".")
    bare = _part({name: value for name, value in _read(head).items() if name != "kid"})
    assert await refused(side, f"{bare}.{payload}.{signature}") == "unknown-key"


async def test_a_revoked_agent_is_refused_with_its_next_use(side: Side) -> None:
    token = side.forge()
    _, claims = await side.tokens.verify(token)
    side.issuer.revoke("sorter")
    assert await refused(side, token) == "revoked"
    assert side.tokens.is_revoked(claims)


async def test_one_revoked_token_is_refused_and_no_other(side: Side) -> None:
    token, other = side.forge(jti="one"), side.forge(jti="two")
    _, claims = await side.tokens.verify(token)
    side.issuer.revoke("token:one")
    assert await refused(side, token) == "revoked"
    assert side.tokens.is_revoked(claims)
    await side.tokens.verify(other)


async def test_a_token_of_one_agent_is_not_taken_for_another(side: Side) -> None:
    token = await side.tokens.mint("sorter")
    assert await refused(side, token, "other") == "wrong-subject"


@pytest.mark.parametrize("token", ["", "a.b", "a.b.c", "....", "\N{SNOWMAN}", "x" * 20_000])
async def test_what_is_no_token(side: Side, token: str) -> None:
    assert await refused(side, token) == "no-token"


async def test_a_header_that_asks_for_more_is_refused(side: Side) -> None:
    head, payload, signature = side.forge().split(".")
    for more in ({"crit": ["exp"]}, {"b64": False}):
        odd = _part({**_read(head), **more})
        assert await refused(side, f"{odd}.{payload}.{signature}") == "bad-algorithm"


# --- of the embedded issuer alone ------------------------------------------------------------


async def test_the_sub_of_another_agent_under_ones_own_key(tmp_path: Path) -> None:
    """A worker holds a key and may sign anything with it: it is taken for its own agent only."""
    issuer, tokens = svid_tokens(tmp_path)
    issuer.signer("other")
    signer = issuer.signer("sorter")
    now = int(time.time())
    claims = {
        "iss": f"spiffe://{FLEET}", "sub": f"spiffe://{FLEET}/agent/other",
        "aud": issuer.audience, "iat": now, "exp": now + 60, "jti": "x",
    }  # fmt: skip
    header = {"alg": "ES256", "kid": signer.kid}
    token = serialize_compact(header, orjson.dumps(claims), signer._key, algorithms=["ES256"])
    for agent in ("other", "sorter", None):
        with pytest.raises(BadToken) as error:
            await tokens.verify(token, agent)
        assert error.value.code == "wrong-subject"


async def test_a_rotated_key_holds_for_two_lives_and_is_dropped_then(tmp_path: Path) -> None:
    at = [now_us()]
    issuer, tokens = svid_tokens(tmp_path, lambda: at[0])
    old = issuer.signer("sorter")
    fresh = issuer.rotate("sorter")
    assert fresh.key != old.kid
    assert {one["kid"] for one in issuer.trust_bundle()["keys"]} == {old.kid, fresh.key}
    at[0] += 599_000_000
    last_token = old.mint(at[0])
    await tokens.verify(last_token)
    at[0] += 2_000_000
    for token in (last_token, old.mint(at[0])):
        with pytest.raises(BadToken) as error:
            await tokens.verify(token)
        assert error.value.code == "unknown-key", "also for one whose signature was checked"
    await tokens.verify(await tokens.mint("sorter"), "sorter")
    assert [one["kid"] for one in issuer.trust_bundle()["keys"]] == [fresh.key]


async def test_one_revoked_key_takes_no_other_with_it(tmp_path: Path) -> None:
    issuer, tokens = svid_tokens(tmp_path)
    old = issuer.signer("sorter")
    stolen = old.mint(now_us())
    issuer.rotate("sorter")
    await tokens.verify(stolen)
    issuer.revoke(old.kid)
    with pytest.raises(BadToken) as error:
        await tokens.verify(stolen)
    assert error.value.code == "revoked"
    await tokens.verify(await tokens.mint("sorter"), "sorter")


async def test_another_process_that_revokes_is_seen_at_once(tmp_path: Path) -> None:
    """`vedette identity revoke` runs beside the gateway."""
    _, tokens = svid_tokens(tmp_path)
    token = await tokens.mint("sorter")
    await tokens.verify(token)
    other, _ = svid_tokens(tmp_path)
    other.revoke("sorter")
    with pytest.raises(BadToken) as error:
        await tokens.verify(token)
    assert error.value.code == "revoked"
    with pytest.raises(BadToken):
        await tokens.mint("sorter")


def test_private_keys_are_their_owners_alone(tmp_path: Path) -> None:
    issuer, _ = svid_tokens(tmp_path)
    signer = issuer.signer("sorter")
    issuer.issue("sorter", tmp_path / "worker.id")
    files = [*(tmp_path / "identities").iterdir(), tmp_path / "worker.id"]
    assert {oct(file.stat().st_mode & 0o777) for file in files} == {"0o600"}
    private = issuer._private_key("sorter")
    assert private is not None
    book = (tmp_path / "identities" / "issuer.json").read_text()
    assert private["d"] not in book
    assert signer.kid in book
    issuer.revoke("sorter")
    assert not list((tmp_path / "identities").glob("*.key")), "what is revoked is not kept"


CHANGES: dict[str, Callable[[Issuer], object]] = {
    "rotate": lambda issuer: issuer.rotate("sorter"),
    "revoke": lambda issuer: issuer.revoke("sorter"),
    "first": lambda issuer: issuer.signer("other"),
}


@pytest.mark.parametrize("change", list(CHANGES))
async def test_a_change_that_is_broken_off_is_there_or_not(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each point where the process may die the book is whole, and every live key is there."""
    for at in range(4):
        folder = tmp_path / str(at)
        issuer, _ = svid_tokens(folder)
        token = issuer.signer("sorter").mint(now_us())
        died = _dies(partial(CHANGES[change], issuer), at, monkeypatch)
        assert died or (change, at) in {("revoke", 2), ("revoke", 3)}, "the book alone is written"
        repeat, tokens = svid_tokens(folder)
        if change != "revoke" or not repeat.revoked_agents():
            await tokens.verify(token, "sorter")
            await tokens.verify(await tokens.mint("sorter"), "sorter")
        else:
            assert at > 0, "nothing is in force before the book is replaced"
            with pytest.raises(BadToken):
                await tokens.verify(token, "sorter")
        repeat.rotate("sorter", reinstate="sorter" in repeat.revoked_agents())
        files = (folder / "identities").glob("*.key")
        live = {
            f"{k.agent}.{k.key}.key" for k in repeat.list_keys() if not k.until_us | k.revoked_us
        }
        assert {file.name for file in files} == live


def _dies(work: Callable[[], object], at: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Do something and break it off at its crash point number `at`; False if it has fewer."""
    left = [at]

    def reached(point: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt(point)

    with monkeypatch.context() as patch:
        patch.setattr(failpoint, "hook", reached)
        try:
            work()
        except KeyboardInterrupt:
            return True
    return False


# --- of Google alone -------------------------------------------------------------------------


@pytest.mark.parametrize("verified", [False, None, "true"])
async def test_an_address_that_google_has_not_verified(tmp_path: Path, verified: Any) -> None:
    issuer, _ = svid_tokens(tmp_path)
    async with fake_google() as google:
        email = PATTERN.format(agent="sorter")
        tokens = google_tokens(google, issuer)
        await tokens.verify(google.token(email, issuer.audience), "sorter")
        with pytest.raises(BadToken) as error:
            await tokens.verify(google.token(email, issuer.audience, email_verified=verified))
        assert error.value.code == "wrong-subject"


@pytest.mark.parametrize(
    "email",
    ["sorter@proj.iam.gserviceaccount.com.evil.example", "sorter@other.iam.gserviceaccount.com",
     "x.sorter@proj.iam.gserviceaccount.com", "Sorter@proj.iam.gserviceaccount.com"],
)  # fmt: skip
async def test_an_account_of_nobody_here(tmp_path: Path, email: str) -> None:
    issuer, _ = svid_tokens(tmp_path)
    async with fake_google() as google:
        tokens = google_tokens(google, issuer)
        with pytest.raises(BadToken) as error:
            await tokens.verify(google.token(email, issuer.audience))
        assert error.value.code == "wrong-subject"


async def test_an_agents_underscores_are_its_accounts_hyphens(tmp_path: Path) -> None:
    issuer, _ = svid_tokens(tmp_path)
    async with fake_google() as google:
        tokens = google_tokens(google, issuer)
        assert tokens.account("inbox_triage") == "inbox-triage@proj.iam.gserviceaccount.com"
        token = await tokens.mint("inbox_triage")
        assert (await tokens.verify(token, "inbox_triage"))[0].agent == "inbox_triage"
