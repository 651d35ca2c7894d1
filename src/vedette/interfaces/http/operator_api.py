"""The operator API: the commands of the local API, and what people read, over HTTP with OIDC.

Everything below /v1/operator asks for `Authorization: Bearer TOKEN`, a JSON Web Token of the
people's issuer for the people's audience. One claim names the person, one lists roles; what a role
is enough for stands in `vedette.domain.roles`, and the commands themselves ask it. Agents have
tokens of another issuer and audience, and names below spiffe://: neither is ever taken here.

POST /v1/operator/commands/VERB  as the local API's /v1/commands/VERB; policy_apply takes `files`
GET  /v1/operator/READ           me, status, changes, holds, runs, entries, dead, artefact,
                             explain/ID
Errors are {"error": {code, what, where, mend}} with 400 (not as asked), 401 (no token that is
good), 403 (not you), 404 (no such thing), 408 (too slow), 409 (done before under this
command_id) or 503 (not now).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from vedette.domain.base.errors import BadCommand, Forbidden, VedetteError
from vedette.domain.identity import Principal
from vedette.domain.roles import REQUIRED_ROLES, ROLES, may_use_verb, require_role
from vedette.interfaces.http.command_dispatch import VERBS, dispatch
from vedette.interfaces.http.local_api import NoSuchVerb, http_status, live_status, read_order
from vedette.interfaces.http.operator_queries import READS
from vedette.interfaces.http.policy_upload import unpack_files
from vedette.operations.commands import Commands, Order

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from vedette.adapters.identity.jwt import Claims, Verifier
    from vedette.app.composition_root import App
    from vedette.config.deployment import PeoplePlan

PATH_PREFIX = "/v1/operator"
# What an issuer of people may sign with; a shared secret is not among it.
ALGORITHMS = ("RS256", "ES256")
MAX_WAITING = 64
READ_TIMEOUT_S = 10.0
_MAX_READERS = 4
_MAX_NAME_CHARS = 200

RecordOpener = Callable[[], Any]


def routes(app: App) -> list[Route]:
    """Return the operator API of an opened fleet: nothing where no issuer of people is named."""
    people = app.settings.deployment.people
    if people.issuer is None:
        return []
    from vedette.adapters.identity.jwt import Jwks, Verifier
    from vedette.app.stores import open_reader

    now_us = app.services.clock.now_us
    verifier = Verifier(
        keys=Jwks(issuer=people.issuer, now_us=now_us),
        issuer=people.issuer,
        audience=people.audience,
        now_us=now_us,
        algorithms=ALGORITHMS,
        max_life_us=people.max_token_life_us,
    )
    api = OperatorApi(app.commands, people, verifier, lambda: open_reader(app.settings))
    return api.routes()


class OperatorApi:
    """The operator API: who comes, what they may, the answer. `open_record` opens the store."""

    def __init__(
        self, commands: Commands, people: PeoplePlan, verifier: Verifier, open_record: RecordOpener
    ) -> None:
        self._commands = commands
        self._people = people
        self._verifier = verifier
        self._open_record = open_record
        self._waiting = 0
        self._readers = asyncio.Semaphore(_MAX_READERS)

    def routes(self) -> list[Route]:
        """Return the routes."""
        from starlette.routing import Route

        return [
            Route(f"{PATH_PREFIX}/commands/{{verb}}", self.command, methods=["POST"]),
            Route(f"{PATH_PREFIX}/explain/{{id}}", self.explain, methods=["GET"]),
            Route(f"{PATH_PREFIX}/{{read}}", self.read, methods=["GET"]),
        ]

    async def command(self, request: Request) -> Response:
        """Carry out a command as the person who comes."""
        return await self._answer(request, self._command)

    async def explain(self, request: Request) -> Response:
        """Tell the whole story of an id."""
        return await self._answer(request, self._explain)

    async def read(self, request: Request) -> Response:
        """Answer what is read."""
        return await self._answer(request, self._read)

    # --- who --------------------------------------------------------------------------------

    async def _person(self, request: Request) -> Principal:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        claims = await self._verifier.verify(token.strip() if scheme.lower() == "bearer" else "")
        return person_of(claims, self._people)

    async def _answer(
        self, request: Request, work: Callable[[Request, Principal], Awaitable[Any]]
    ) -> Response:
        from vedette.domain.ports.tokens import BadToken

        if self._waiting >= MAX_WAITING:
            return _error_response(
                503, "overloaded", f"{self._waiting} requests wait", {"Retry-After": 1}
            )
        self._waiting += 1
        try:
            who = await self._person(request)
            return _json_response(200, {"result": await work(request, who)})
        except BadToken as error:
            self._count_refusal(error)
            asks = f'Bearer realm="{self._people.audience}", error="invalid_token"'
            return _json_response(401, {"error": error.to_json()}, {"WWW-Authenticate": asks})
        except VedetteError as error:
            if isinstance(error, Forbidden):
                self._count_refusal(error)
            return _json_response(http_status(error), {"error": error.to_json()})
        except NoSuchVerb as error:
            return _json_response(404, {"error": error.error})
        except TimeoutError:
            return _error_response(408, "too-slow", "the request did not come in time")
        finally:
            self._waiting -= 1

    def _count_refusal(self, error: Forbidden) -> None:
        self._commands.services.metrics.count("operator_refusals", code=error.code)

    # --- what -------------------------------------------------------------------------------

    async def _command(self, request: Request, who: Principal) -> Mapping[str, Any]:
        verb = request.path_params["verb"]
        if verb not in VERBS:
            raise NoSuchVerb(verb)
        # Before the body is read: it may be large, and is none of theirs.
        require_role(who, who.roles, verb)
        async with asyncio.timeout(READ_TIMEOUT_S):
            document = await read_order(request)
        order = Order(who, document["reason"], document["command_id"])
        # The work goes on if the client hangs up: half a command is worse than an unread answer.
        return await asyncio.shield(self._dispatch(verb, order, document["args"]))

    async def _dispatch(
        self, verb: str, order: Order, args: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        if verb != "policy_apply":
            return await dispatch(self._commands, verb, order, args)
        with unpack_files(args) as given:
            return await dispatch(self._commands, verb, order, given)

    async def _explain(self, request: Request, who: Principal) -> Any:
        from vedette.ledger.history.explain import explain

        require_role(who, who.roles, "explain")
        wanted = request.path_params["id"]
        return await self._read_record(lambda record: explain(record, wanted))

    async def _read(self, request: Request, who: Principal) -> Any:
        name = request.path_params["read"]
        if name == "me":
            return {
                "principal": str(who),
                "roles": sorted(who.roles),
                "may": sorted(verb for verb in REQUIRED_ROLES if may_use_verb(who.roles, verb)),
            }
        if name == "status":
            require_role(who, who.roles, name)
            return live_status(self._commands)
        work = READS.get(name)
        if work is None:
            raise NoSuchVerb(name)
        require_role(who, who.roles, name)
        params, now_us = dict(request.query_params), self._commands.services.clock.now_us()
        return await self._read_record(lambda record: work(record, now_us, params))

    async def _read_record(self, work: Callable[[Any], Any]) -> Any:
        """Read with a connection of its own beside the line, which must not wait for a reader."""

        def read() -> Any:
            record = self._open_record()
            try:
                with record.snapshot():
                    return work(record)
            finally:
                record.close()

        async with self._readers:
            return await asyncio.to_thread(read)


def person_of(claims: Claims, people: PeoplePlan) -> Principal:
    """Return the operator API's person of a verified token, with the roles its claim gives.

    Named with the issuer, so that nobody of another issuer, or of this machine, has the name.
    Raises Forbidden for an agent, for who has no name, and for who has no role here.
    """
    if claims.subject.startswith("spiffe:"):
        raise _forbidden(
            "not-a-person", f"{claims.subject} is an agent", "agents propose; people decide"
        )
    name = _claim(claims.all, people.name_claim)
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME_CHARS or not name.isprintable():
        what = f"the token's claim {people.name_claim!r} names nobody"
        raise _forbidden("no-name", what, "set [people] name_claim to a claim that does")
    if people.name_claim == "email" and claims.all.get("email_verified") is not True:
        what = "nobody has verified that the e-mail address is theirs"
        raise _forbidden("no-name", what, "set [people] name_claim to another claim, as sub")
    claim = _claim(claims.all, people.role_claim)
    has = {claim} if isinstance(claim, str) else {one for one in claim if isinstance(one, str)}
    given = people.roles or {}
    roles = frozenset(role for role in ROLES if has.intersection(given.get(role, ())))
    principal = Principal("person", f"{_host(people.issuer or '')}/{name}", roles)
    if not roles:
        mend = f"have the issuer give a value of [people] in the claim {people.role_claim!r}"
        raise _forbidden("no-role", f"{principal} has no role in this fleet", mend)
    return principal


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its name, or by its path (`realm_access.roles`); () if there is none."""
    if name in claims:
        return claims[name] if isinstance(claims[name], str | list) else ()
    at: Any = claims
    for part in name.split("."):
        at = at.get(part) if isinstance(at, dict) else None
    return at if isinstance(at, str | list) else ()


def _host(issuer: str) -> str:
    return issuer.partition("://")[2].rstrip("/")


def _forbidden(code: str, what: str, mend: str) -> Forbidden:
    error = Forbidden(what, mend=mend)
    error.code = code
    return error


def _error_response(
    status: int, code: str, what: str, extra_headers: Mapping[str, Any] | None = None
) -> Response:
    error = BadCommand(what)
    error.code = code
    return _json_response(status, {"error": error.to_json()}, extra_headers)


def _json_response(
    status: int, value: Any, extra_headers: Mapping[str, Any] | None = None
) -> Response:
    from starlette.responses import Response

    body = json.dumps(value, default=str, ensure_ascii=False).encode("utf-8", "replace")
    headers = {"Cache-Control": "no-store", **{k: str(v) for k, v in (extra_headers or {}).items()}}
    if status != 200:
        # What is left of a body that was refused is not read: the connection ends with it.
        headers["Connection"] = "close"
    return Response(body, status, headers, "application/json")
