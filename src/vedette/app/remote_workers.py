"""Wiring of judges on other hosts: `vedette worker`, and who vouches for them.

The gateway holds store, credentials and tools; an agent's judge lives where its identity does. With
`vedette run` both are on one host, and `[gateway] agents` has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from vedette.domain.agent import Fleet
from vedette.domain.base.clock import Clock
from vedette.domain.base.errors import BadFleet
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import Reasoner, ReasonerJudgement, ToolExecutor
from vedette.domain.ports.tokens import TokenAuthority
from vedette.memory.training_set import Lessons

if TYPE_CHECKING:
    from vedette.adapters.identity.spiffe import Issuer
    from vedette.adapters.reasoners.workers.remote_reasoner import RemotePool, RemoteReasoner
    from vedette.config.settings import Settings

_GOOGLE_LIFE_US = 3_600_000_000


def build_issuer(settings: Settings, now_us: Callable[[], int]) -> Issuer:
    """Wire the fleet's embedded issuer: its keys, and what is revoked."""
    from vedette.adapters.identity.spiffe import Issuer

    plan = settings.deployment.tokens
    return Issuer(
        settings.state, settings.fleet, audience=plan.audience, now_us=now_us, life_us=plan.life_us
    )


def build_tokens(settings: Settings, now_us: Callable[[], int]) -> TokenAuthority:
    """Wire what vouches for the fleet's agents. Belongs to the event loop that first uses it."""
    from vedette.adapters.identity.jwt import Jwks, Verifier

    issuer = build_issuer(settings, now_us)
    plan = settings.deployment.tokens
    if plan.kind == "google":
        from vedette.adapters.identity.google import (
            GOOGLE_ISSUER,
            GoogleTokens,
            IamCredentials,
            MetadataServer,
        )

        keys = Jwks(issuer=GOOGLE_ISSUER, now_us=now_us)
        google = GoogleTokens(
            settings.fleet,
            plan.service_account or "",
            IamCredentials(MetadataServer()),
            audience=issuer.audience,
            check_agent=issuer.check_agent,
        )
        google.verifier = Verifier(
            keys=keys,
            issuer=(GOOGLE_ISSUER, GOOGLE_ISSUER.removeprefix("https://")),
            audience=issuer.audience,
            now_us=now_us,
            algorithms=("RS256",),
            max_life_us=_GOOGLE_LIFE_US,
            required=("exp", "iat", "aud", "sub", "email"),
            check_revocation=google.check_revocation,
        )
        return google
    from vedette.adapters.identity.spiffe import MAX_LIFE_US, SvidTokens

    verifier = Verifier(
        keys=issuer, issuer=f"spiffe://{settings.fleet}", audience=issuer.audience,
        now_us=now_us, algorithms=("ES256",), max_life_us=MAX_LIFE_US,
        required=("exp", "iat", "aud", "sub", "jti"), check_revocation=issuer.check_revocation,
    )  # fmt: skip
    return SvidTokens(issuer, verifier, now_us)


def add_google_tokens(settings: Settings, tools: ToolExecutor) -> ToolExecutor:
    """Wire tools that get a token for each call of a target that asks for one of Google's.

    Raises BadFleet if it is not said which service accounts the agents have.
    """
    token_targets = [
        name
        for name, target in settings.targets.items()
        if "google_scopes" in target or "google_audience" in target
    ]
    if not token_targets:
        return tools
    pattern = settings.deployment.tokens.service_account
    if pattern is None:
        mend = "add [tokens] service_account"
        where = f"vedette.toml: targets.{token_targets[0]}"
        raise BadFleet("its tokens are of the agents' service accounts", where=where, mend=mend)
    from vedette.adapters.identity.google import (
        GoogleTokens,
        IamCredentials,
        MetadataServer,
        TokenTools,
    )

    broker = IamCredentials(MetadataServer())
    google = GoogleTokens(settings.fleet, pattern, broker, audience="", check_agent=lambda *_: None)
    return TokenTools(tools, broker, google.account)


class RoutingReasoner:
    """The Reasoner port, wired to judges here and to judges of remote workers.

    `releases` has those that are elsewhere, with the release that their workers must have: the
    worker server, on a thread of its own, looks at it for each connection, and while it lasts.
    """

    def __init__(
        self, local: Reasoner, remote: RemoteReasoner, pool: RemotePool, releases: dict[str, str]
    ) -> None:
        self._near = local
        self._away = remote
        self.pool = pool
        self.releases = releases

    def _reasoner_for(self, agent: str) -> Reasoner:
        return self._away if agent in self.releases else self._near

    def local_reasoner(self, agent: str) -> Any | None:
        """Return what runs an agent's judge here; None if it lives elsewhere."""
        return None if agent in self.releases else self._near

    def set_release(self, agent: str, release: str) -> None:
        """Let in only workers with another release of an agent from now on."""
        if agent in self.releases:
            self.releases[agent] = release

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        """Judge one event where the agent's judge lives."""
        return await self._reasoner_for(briefing.agent).reason(briefing)

    def restore_state(
        self,
        agent: str,
        key: str,
        checkpoint: bytes | None,
        at: int,
        since: Sequence[tuple[int, Event]],
    ) -> None:
        """Bring the state of a key to the last of `since`."""
        self._reasoner_for(agent).restore_state(agent, key, checkpoint, at, since)

    def drop_state(self, agent: str, key: str) -> None:
        """Drop the state of a key."""
        self._reasoner_for(agent).drop_state(agent, key)

    def fold_state(
        self, agent: str, checkpoint: bytes | None, since: Sequence[tuple[int, Event]]
    ) -> bytes | None:
        """Return the checkpoint after `since`. Raises Unavailable if the worker is not there."""
        return self._reasoner_for(agent).fold_state(agent, checkpoint, since)

    def renew(self, agent: str) -> None:
        """Have an agent's judge made anew when it is next needed."""
        reasoner: Any = self._reasoner_for(agent)
        reasoner.renew(agent)


def add_remote_reasoners(
    settings: Settings,
    fleet: Fleet,
    reasoners: dict[str, Reasoner],
    lessons: Lessons,
    clock: Clock,
) -> dict[str, Reasoner]:
    """Wire the judges of remote workers beside those here, if this is a gateway.

    Raises BadFleet for an agent that is named and has no judge.
    """
    plan = settings.deployment.gateway
    if not plan.is_gateway:
        return reasoners
    for name in plan.agents:
        if name != "*" and name not in fleet.agents:
            what = f"there is no agent {name!r}"
            raise BadFleet(what, where="vedette.toml: gateway.agents", mend="correct the name")
        if name != "*" and not fleet.agents[name].has_judge:
            reasoner = "a model" if fleet.agents[name].asks_model else fleet.agents[name].reasoner
            what = f"agent {name} reasons with {reasoner}, which only the gateway may call"
            raise BadFleet(what, where="vedette.toml: gateway.agents", mend="leave it out")
    judged = {name for name, agent in fleet.agents.items() if agent.has_judge}
    releases = {name: fleet.agents[name].release for name in judged if plan.is_remote(name)}
    from vedette.adapters.reasoners.workers.reasoner_client import JudgeSpec
    from vedette.adapters.reasoners.workers.remote_reasoner import RemotePool, RemoteReasoner

    def make(name: str) -> JudgeSpec:
        agent = fleet.agents[name]
        taught = lessons.load_lessons(name, clock.now_us())
        return JudgeSpec(
            agent.folder, agent.charter, taught, agent.limits, release=agent.release,
            takes_tasks=agent.judges_tasks,
        )  # fmt: skip

    pool = RemotePool()

    def expired(name: str) -> bool:
        return lessons.pop_expired(name, clock.now_us())

    router = RoutingReasoner(
        reasoners["judge"], RemoteReasoner(pool, make, expired), pool, releases
    )
    return {**reasoners, "judge": router}


def close_remote_pools(reasoners: Mapping[str, Reasoner]) -> None:
    """Hang up on the remote workers that were wired, if there are any."""
    for reasoner in reasoners.values():
        if isinstance(reasoner, RoutingReasoner):
            reasoner.pool.close()


def gateway_settings(settings: Settings) -> Settings:
    """Return the settings a gateway is wired by: the judges of `[gateway] agents` live elsewhere.

    All of them, if the table names none.
    """
    plan = settings.deployment.gateway
    gateway = replace(plan, is_gateway=True, agents=plan.agents or ("*",))
    return replace(settings, deployment=replace(settings.deployment, gateway=gateway))
