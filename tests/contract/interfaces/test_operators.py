"""The operator API over real HTTP, with tokens of a real OpenID Connect provider."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from tests.oidc import Provider, find_node, new_key

from vedette.app import canaries, releases, rollbacks
from vedette.config.deployment import Deployment, PeoplePlan
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import Forbidden
from vedette.domain.event import Event
from vedette.domain.identity import Principal
from vedette.domain.ports.tokens import Claims
from vedette.domain.roles import READ_VERBS, REQUIRED_ROLES, ROLES, WRITE_VERBS, may_use_verb
from vedette.interfaces.http.command_dispatch import VERBS
from vedette.interfaces.http.operator_api import MAX_WAITING, person_of
from vedette.interfaces.http.server import serve_http
from vedette.ledger.pruned_log import ArchivedPrefix
from vedette.operations import approvals, corrections, curation, modes, undo
from vedette.operations import work as tasks
from vedette.operations.commands import Order
from vedette.testing.harness import FleetHarness, checkout

AUDIENCE = "urn:vedette"
GROUPS: Mapping[str, tuple[str, ...]] = {role: (f"fleet-{role}",) for role in ROLES}
PEOPLE: Mapping[str, Mapping[str, Any]] = {
    **{role: {"roles": [f"fleet-{role}", "staff"]} for role in ROLES},
    "stranger": {"roles": ["staff"]},
    "noroles": {"roles": None},
    "spiffe://harbour/agent/gull": {"roles": ["fleet-operator"]},
    "wide": {"roles": "fleet-viewer"},
    "day": {"roles": ["fleet-operator"], "life": 86_400},
    "morrow": {"roles": ["fleet-operator"], "life": 86_401},
    "decade": {"roles": ["fleet-operator"], "life": 315_360_000},
}


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    running = Provider(PEOPLE)
    yield running
    running.stop()


class Shifted(SystemClock):
    """The system's clock, which a test may put forward."""

    ahead_us = 0

    def now_us(self) -> int:
        """Return the time, put forward."""
        return super().now_us() + self.ahead_us

    def monotonic_us(self) -> int:
        """Return the time since the boot: as much more has passed."""
        return super().monotonic_us() + self.ahead_us


class Served:
    """A fleet and where its operator API is."""

    def __init__(
        self, fleet: FleetHarness, clock: Shifted, address: str, client: httpx.AsyncClient
    ) -> None:
        self.client = client
        self.fleet = fleet
        self.clock = clock
        self.address = address

    async def ask(
        self, method: str, path: str, token: str | None, **more: Any
    ) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        url = f"{self.address}/v1/operator/{path}"
        answer = await self.client.request(method, url, headers=headers, **more)
        document: dict[str, Any] = answer.json()
        if answer.status_code == 401:
            assert answer.headers["www-authenticate"].startswith("Bearer ")
        assert answer.headers["cache-control"] == "no-store"
        return answer.status_code, document

    async def command(
        self, verb: str, token: str | None, reason: str = "a test", **args: Any
    ) -> tuple[int, dict[str, Any]]:
        question = {"reason": reason, "args": args}
        return await self.ask("POST", f"commands/{verb}", token, json=question)


@asynccontextmanager
async def serving(folder: Path, people: PeoplePlan) -> AsyncIterator[Served]:
    clock = Shifted()
    async with FleetHarness(folder, clock=clock) as fleet:
        app = fleet.app
        app.settings = replace(
            app.settings, http=("127.0.0.1", 0), deployment=replace(Deployment(), people=people)
        )
        async with serve_http(app) as address, httpx.AsyncClient(trust_env=False) as client:
            assert address is not None
            yield Served(fleet, clock, address, client)


@pytest.fixture(scope="module")
def plan(provider: Provider) -> PeoplePlan:
    return PeoplePlan(issuer=provider.issuer, audience=AUDIENCE, roles=GROUPS)


async def test_every_role_with_every_verb(
    tmp_path: Path, provider: Provider, plan: PeoplePlan
) -> None:
    """The whole matrix: what a role is not enough for is refused, and changes nothing."""
    tokens = {role: provider.token(role) for role in ROLES}
    wrong = []
    async with serving(tmp_path, plan) as served:
        for verb in VERBS:
            for role in ROLES:
                head = served.fleet.app.store.ledger.last_seq()
                status, answer = await served.command(verb, tokens[role])
                if may_use_verb((role,), verb) != (status != 403):
                    wrong.append((role, verb, status, answer))
                if not may_use_verb((role,), verb):
                    assert answer["error"]["code"] == "forbidden"
                    assert served.fleet.app.store.ledger.last_seq() == head
        for read in READ_VERBS:
            if read in VERBS:
                continue
            path = {
                "explain": "explain/run_0",
                "changes": "changes?after=0",
                "erasable": "erasable?entry=1",
                "artefact": "artefact?id=art_0",
                "releases": "releases?agent=inbox_triage",
            }.get(read, read)
            unknown = read in ("explain", "artefact")
            for role in ROLES:
                status, answer = await served.ask("GET", path, tokens[role])
                if status not in ((400,) if unknown else (200,)):
                    wrong.append((role, read, status, answer))
        assert not wrong
        refused = served.fleet.app.metrics.total("operator_refusals", code="forbidden")
        assert refused == sum(not may_use_verb((role,), verb) for verb in VERBS for role in ROLES)


async def test_who_did_it_is_on_record_with_the_issuer_of_the_name(
    tmp_path: Path, provider: Provider, plan: PeoplePlan
) -> None:
    async with serving(tmp_path, plan) as served:
        operator = provider.token("operator")
        status, answer = await served.command("stop", operator, "it barks", agent="inbox_triage")
        assert (status, answer["result"]["stopped"]) == (200, ["agent:inbox_triage"])
        host = provider.issuer.removeprefix("http://")
        (entry,) = served.fleet.entries("stop.set")
        assert entry["actor"] == f"person:{host}/operator"
        assert served.fleet.body(entry["seq"])["reason"] == "it barks"
        viewer = provider.token("viewer")
        _, me = await served.ask("GET", "me", viewer)
        assert me["result"]["roles"] == ["viewer"]
        assert set(me["result"]["may"]) == set(READ_VERBS)
        _, seen = await served.ask("GET", "status", viewer)
        assert seen["result"]["stopped"] == ["agent:inbox_triage"]
        _, page = await served.ask("GET", f"entries?actor={entry['actor']}", viewer)
        assert [item["seq"] for item in page["result"]["items"]] == [entry["seq"]]


async def test_a_token_that_lives_too_long_is_refused_however_good_it_is(
    tmp_path: Path, provider: Provider, plan: PeoplePlan
) -> None:
    async with serving(tmp_path / "day", plan) as served:
        for who, code in (("day", None), ("morrow", "too-long"), ("decade", "too-long")):
            head = served.fleet.app.store.ledger.last_seq()
            status, answer = await served.command("stop", provider.token(who), all=True)
            assert (status, answer.get("error", {}).get("code")) == (401 if code else 200, code)
            assert (served.fleet.app.store.ledger.last_seq() == head) == (code is not None)
    hour = replace(plan, max_token_life_us=3_600_000_000)
    async with serving(tmp_path / "hour", hour) as served:
        status, answer = await served.ask("GET", "me", provider.token("day"))
        assert (status, answer["error"]["code"]) == (401, "too-long")


async def test_a_command_id_is_done_once_and_a_reason_is_asked_for(
    tmp_path: Path, provider: Provider, plan: PeoplePlan
) -> None:
    async with serving(tmp_path, plan) as served:
        operator = provider.token("operator")
        question = {"reason": "why", "command_id": "one", "args": {"all": True}}
        first, _ = await served.ask("POST", "commands/stop", operator, json=question)
        repeat, answer = await served.ask("POST", "commands/stop", operator, json=question)
        assert (first, repeat, answer["error"]["code"]) == (200, 409, "already-done")
        status, answer = await served.command("resume", operator, " ", all=True)
        assert (status, answer["error"]["code"]) == (400, "bad-command")
        status, _ = await served.command("vanish", operator)
        assert status == 404
        for body in (b"[", b'{"who": "me"}', b"x" * (9 << 20)):
            status, _ = await served.ask("POST", "commands/stop", operator, content=body)
            assert status == 400
        assert (await served.ask("GET", "runs?offset=7", operator))[0] == 400
        assert (await served.ask("GET", "secrets", operator))[0] == 404


async def test_a_policy_is_sent_not_named(
    tmp_path: Path, provider: Provider, plan: PeoplePlan
) -> None:
    root = checkout() / "policies"
    files = {
        str(path.relative_to(root)): path.read_text()
        for path in sorted(root.rglob("*"))
        if path.suffix in (".rego", ".yaml", ".json") or path.name == ".manifest"
    }
    rego = next(name for name in files if name.endswith(".rego"))
    changed = {**files, rego: files[rego] + "\n# changed\n"}
    author = provider.token("policy_author")
    async with serving(tmp_path, plan) as served:
        before = served.fleet.app.rollout.live.number
        status, answer = await served.command("policy_apply", author, files=changed)
        assert (status, answer["result"]["ok"], answer["result"]["revision"]) == (
            200,
            True,
            before + 1,
        )
        odd: list[dict[str, Any]] = [
            {"folder": str(root)},
            {"files": {}},
            {"files": {"../x.rego": "package x"}},
            {"files": {"/etc/x.rego": "package x"}},
            {"files": {".git/x.rego": "package x"}},
            {"files": {"x.rego": "package x", "x.rego/y.rego": "package y"}},
            {"files": {"x.rego": 7}},
        ]
        for args in odd:
            status, answer = await served.command("policy_apply", author, **args)
            assert (status, answer["error"]["code"]) == (400, "bad-command"), args
        assert served.fleet.app.rollout.live.number == before + 1
        status, answer = await served.command("policy_rollback", author, number=before)
        assert (status, answer["result"]["revision"]) == (200, before + 2)


async def test_an_event_is_explained_to_whoever_may_read(
    tmp_path: Path, provider: Provider, plan: PeoplePlan
) -> None:
    event = Event("test", "1", "ping", "pump", None, {"value": 3})
    async with serving(tmp_path, plan) as served:
        await served.fleet.send(event)
        status, answer = await served.ask("GET", f"explain/{event.key}", provider.token("approver"))
        assert (status, answer["result"]["event"]["attributes"]["type"]) == (200, "ping")


async def test_who_is_nobody_here(tmp_path: Path, provider: Provider, plan: PeoplePlan) -> None:
    cases = {
        "stranger": "no-role",
        "noroles": "no-role",
        "spiffe://harbour/agent/gull": "not-a-person",
        "wide": None,  # control: the claim may be one word
    }
    async with serving(tmp_path, plan) as served:
        for client, code in cases.items():
            answered, answer = await served.ask("GET", "me", provider.token(client))
            found = (answered, answer.get("error", {}).get("code"))
            assert found == (403 if code else 200, code), client


@pytest.mark.parametrize(
    ("more", "expected", "code"),
    [
        ({}, {"roles": ["fleet-viewer"]}, None),
        ({}, {"roles": [["fleet-viewer"], 7]}, "no-role"),
        ({}, {"realm": {"groups": ["fleet-viewer"]}}, "no-role"),
        ({"role_claim": "realm.groups"}, {"realm": {"groups": ["fleet-viewer"]}}, None),
        ({"role_claim": "realm.groups"}, {"realm": "groups"}, "no-role"),
        ({"name_claim": "nick"}, {"roles": "fleet-viewer", "nick": "kim\n[x]"}, "no-name"),
        ({"name_claim": "nick"}, {"roles": "fleet-viewer", "nick": ""}, "no-name"),
        ({"name_claim": "nick"}, {"roles": "fleet-viewer"}, "no-name"),
        ({"name_claim": "email"}, {"roles": "fleet-viewer", "email": "k@x.example"}, "no-name"),
        (
            {"name_claim": "email"},
            {"roles": "fleet-viewer", "email": "k@x.example", "email_verified": True},
            None,
        ),
    ],
)
def test_which_claim_names_a_person_and_their_roles(
    more: dict[str, Any], expected: dict[str, Any], code: str | None
) -> None:
    plan = PeoplePlan(issuer="https://id.example/realm/", audience=AUDIENCE, roles=GROUPS)
    claims = Claims(
        "https://id.example/realm/", "kim", (AUDIENCE,), 0, 0, "", "k", {"sub": "kim", **expected}
    )
    if code is None:
        name = expected.get("email", "kim")
        assert str(person_of(claims, replace(plan, **more))) == f"person:id.example/realm/{name}"
        return
    with pytest.raises(Forbidden) as refused:
        person_of(claims, replace(plan, **more))
    assert refused.value.code == code


async def test_tokens_that_are_not_taken(
    tmp_path: Path, provider: Provider, plan: PeoplePlan
) -> None:
    good = provider.token("operator")
    stranger = Provider(PEOPLE)
    try:
        # The same name and role, even the same issuer's claim, of another provider's key.
        others = stranger.token("operator")
    finally:
        stranger.stop()
    head, payload, signature = good.split(".")
    cases = {
        None: "no-token",
        "abc": "no-token",
        provider.token("operator", "urn:other"): "wrong-audience",
        others: "unknown-key",
        f"{head}.{payload}.{signature[:-6]}AAAAAA": "bad-signature",
        f"{others.split('.')[0]}.{payload}.{signature}": "unknown-key",
        _unsigned(good): "bad-algorithm",
        _agents_own(): "unknown-key",
    }
    async with serving(tmp_path, plan) as served:
        for token, code in cases.items():
            answered, answer = await served.command("stop", token, all=True)
            assert (answered, answer["error"]["code"]) == (401, code), code
            assert token is None or len(token) < 20 or token not in str(answer)
        assert not served.fleet.entries("stop.set")
        # Control: with the good one it is done; once it has expired it is not taken, though it
        # was seen before.
        assert (await served.command("stop", good, all=True))[0] == 200
        served.clock.ahead_us = 631_000_000
        answered, answer = await served.command("resume", good, all=True)
        assert (answered, answer["error"]["code"]) == (401, "expired")
        assert not served.fleet.entries("stop.lifted")


def _unsigned(token: str) -> str:
    import base64

    head = base64.urlsafe_b64encode(b'{"alg":"none","kid":"x"}').decode().rstrip("=")
    return f"{head}.{token.split('.')[1]}."


def _agents_own() -> str:
    """Return a JWT-SVID as an agent has it: another issuer, key and audience."""
    from joserfc import jwt
    from joserfc.jwk import ECKey

    key = new_key("ES256")
    now = int(time.time())
    claims = {
        "sub": "spiffe://harbour/agent/gull", "aud": "vedette", "iat": now, "exp": now + 300,
        "jti": "1", "roles": ["fleet-operator"],
    }  # fmt: skip
    return jwt.encode({"alg": "ES256", "kid": key["kid"]}, claims, ECKey.import_key(key))


async def test_the_providers_keys_may_be_rotated_and_the_old_one_is_taken_no_longer(
    tmp_path: Path,
) -> None:
    provider = Provider(PEOPLE, key=new_key("ES256"))
    try:
        plan = PeoplePlan(issuer=provider.issuer, audience=AUDIENCE, roles=GROUPS)
        async with serving(tmp_path, plan) as served:
            seen, unseen = provider.token("viewer"), provider.token("viewer")
            assert (await served.ask("GET", "me", seen))[0] == 200
            provider.rotate()
            served.clock.ahead_us = 31_000_000
            assert (await served.ask("GET", "me", provider.token("viewer")))[0] == 200
            answered, answer = await served.ask("GET", "me", unseen)
            assert (answered, answer["error"]["code"]) == (401, "unknown-key")
    finally:
        provider.stop()


async def test_while_the_provider_is_away_nobody_new_comes_in_and_who_did_stays(
    tmp_path: Path,
) -> None:
    provider = Provider(PEOPLE)
    plan = PeoplePlan(issuer=provider.issuer, audience=AUDIENCE, roles=GROUPS)
    try:
        known, late = provider.token("viewer"), provider.token("operator")
        async with serving(tmp_path / "a", plan) as served:
            assert (await served.ask("GET", "me", known))[0] == 200
            provider.stop()
            assert (await served.ask("GET", "me", known))[0] == 200
        async with serving(tmp_path / "b", plan) as served:
            answered, answer = await served.command("stop", late, all=True)
            assert (answered, answer["error"]["code"]) == (503, "unavailable")
            assert not served.fleet.entries("stop.set")
    finally:
        provider.stop()


async def test_without_an_issuer_there_is_no_operator_api(tmp_path: Path) -> None:
    async with serving(tmp_path, PeoplePlan()) as served:
        answer = await served.client.get(f"{served.address}/v1/operator/me")
        assert answer.status_code == 404


async def test_more_requests_than_may_wait_are_sent_away(
    tmp_path: Path, provider: Provider, plan: PeoplePlan
) -> None:
    """A body that does not come occupies one place; with all places taken the answer is 503."""
    operator = provider.token("operator")
    async with serving(tmp_path, plan) as served:
        host, _, port = served.address.removeprefix("http://").partition(":")
        held = []
        head = (
            f"POST /v1/operator/commands/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
            f"Authorization: Bearer {operator}\r\n\r\n"
        ).encode()
        try:
            for _ in range(MAX_WAITING):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(head)
                await writer.drain()
                held.append((reader, writer))
            async with asyncio.timeout(10):
                while (await served.ask("GET", "me", operator))[0] != 503:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            held[0][1].write(b'{"a": 1} ')
            assert b" 400 " in await held[0][0].readline()
            assert (await served.ask("GET", "me", operator))[0] == 200
        finally:
            for _, writer in held:
                writer.close()


async def test_the_commands_themselves_ask_for_the_role(tmp_path: Path) -> None:
    """Whatever door lets somebody in: past it, and past `dispatch`, the answer is the same."""
    nobody = Order(Principal("person", "kim", frozenset({"viewer"})), "because")
    who, why = nobody.principal, nobody.reason
    async with FleetHarness(tmp_path) as fleet:
        commands, upkeep, head = (
            fleet.app.commands,
            fleet.app.commands.maintenance,
            fleet.app.store.ledger.last_seq,
        )
        assert upkeep is not None
        archived = ArchivedPrefix()
        questions: list[tuple[str, Callable[[], Awaitable[Any]]]] = [
            ("send", lambda: commands.send(nobody, [Event("a", "1", "ping")])),
            ("approve", lambda: commands.approve(nobody, "hold_1", "0" * 64)),
            ("deny", lambda: commands.deny(nobody, "hold_1")),
            ("redrive", lambda: commands.redrive(nobody, ["run_1"])),
            ("drop", lambda: commands.drop(nobody, ["run_1"])),
            ("stop", lambda: commands.stop(nobody, all=True)),
            ("resume", lambda: commands.resume(nobody, all=True)),
            ("budget_raise", lambda: commands.budget_raise(nobody, 1)),
            ("policy_apply", lambda: commands.policy_apply(nobody, tmp_path)),
            ("policy_rollback", lambda: commands.policy_rollback(nobody, 1)),
            ("erase", lambda: commands.erase(nobody, subject="x")),
            ("rotate_key", lambda: upkeep.rotate_key(who, why)),
            ("expire", lambda: upkeep.expire(who, why, 1)),
            ("let_go", lambda: upkeep.prune_archived(who, why, archived)),
            ("settle_restore", lambda: upkeep.close_loss_window(who, why)),
            ("pubsub_redrive", lambda: upkeep.redrive(who, why, "s", 1, None)),
            ("correct", lambda: corrections.dispatch(commands, nobody, {"run": "run_1"})),
            ("mode", lambda: modes.dispatch(commands, nobody, {"agent": "x", "mode": "ask"})),
            ("clock_confirm", lambda: commands.clock_confirm(nobody)),
        ]
        given = {"agent": "x", "share_milli": 100}
        questions += [
            (verb, partial(canaries.dispatch, commands, verb, nobody, given))
            for verb in canaries.VERBS
        ]
        task = {"agent": "x", "goal": "y", "run": "run_1"}
        questions += [
            (verb, partial(tasks.dispatch, commands, verb, nobody, task)) for verb in tasks.VERBS
        ]
        questions += [
            (verb, partial(curation.dispatch, commands.curation, verb, who, why, None, {}))
            for verb in WRITE_VERBS.keys() & curation.VERBS.keys()
        ]
        named: dict[str, Any] = {
            "hold": "hold_1",
            "holds": {"hold_1": "d"},
            "text": "x",
            "effect": "eff_1",
        }
        named = {**named, "agent": "x"}
        for module in (approvals, undo, releases, rollbacks):
            questions += [
                (verb, partial(module.dispatch, commands, verb, nobody, named))
                for verb in WRITE_VERBS.keys() & module.VERBS.keys()
            ]
        before = head()
        for verb, work in questions:
            with pytest.raises(Forbidden, match=f"{verb} needs "):
                await work()
        assert head() == before
        assert {verb for verb, _ in questions} >= set(WRITE_VERBS)
        # Control: with the role it is done.
        await commands.stop(fleet.order(), all=True)
        assert head() > before


def test_without_a_provider_a_person_skips_and_ci_fails(tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="make setup"):
        find_node(tmp_path, {"PATH": ""})
    with pytest.raises(pytest.fail.Exception, match="make setup"):
        find_node(tmp_path, {"PATH": "", "CI": "true"})


def test_the_matrix_has_refusals_for_every_role() -> None:
    """Control: a table that grants everything to everybody would pass nothing off as refused."""
    for role in ROLES:
        assert any(not may_use_verb((role,), verb) for verb in WRITE_VERBS)
    assert set(VERBS) <= set(REQUIRED_ROLES)
