"""Wiring of brain and hands apart: judges in `vedette worker`, and who vouches for them.

The gateway holds store, credentials and hands; an agent's judge lives where its identity does. With
`vedette run` both are on one host, and `[gateway] agents` has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vedette.domain.agent import Fleet
from vedette.domain.base.clock import Clock
from vedette.domain.base.errors import BadFleet
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.ports import Performer, Reasoner, Thought
from vedette.domain.ports.tokens import Tokens
from vedette.memory.training_set import Lessons

if TYPE_CHECKING:
    from vedette.adapters.identity.spiffe import Issuer
    from vedette.adapters.reasoners.workers.remote_reasoner import RemoteJudges, RemotePool
    from vedette.config import Settings

_GOOGLE_LIFE_US = 3_600_000_000


def issuer_of(settings: Settings, now_us: Callable[[], int]) -> Issuer:
    """Return the fleet's embedded issuer: its keys, and what is revoked."""
    from vedette.adapters.identity.spiffe import Issuer

    plan = settings.edges.tokens
    return Issuer(
        settings.state, settings.fleet, audience=plan.audience, now_us=now_us, life_us=plan.life_us
    )


def tokens_of(settings: Settings, now_us: Callable[[], int]) -> Tokens:
    """Return what vouches for the fleet's agents. Belongs to the event loop that first uses it."""
    from vedette.adapters.identity.jwt import Jwks, Verifier

    issuer = issuer_of(settings, now_us)
    plan = settings.edges.tokens
    if plan.kind == "google":
        from vedette.adapters.identity.google import GOOGLE, GoogleTokens, IamCredentials, Metadata

        keys = Jwks(issuer=GOOGLE, now_us=now_us)
        google = GoogleTokens(
            settings.fleet,
            plan.service_account or "",
            IamCredentials(Metadata()),
            audience=issuer.audience,
            refuse=issuer.refuse_agent,
        )
        google.verifier = Verifier(
            keys=keys, issuer=(GOOGLE, GOOGLE.removeprefix("https://")), audience=issuer.audience,
            now_us=now_us, algorithms=("RS256",), max_life_us=_GOOGLE_LIFE_US,
            required=("exp", "iat", "aud", "sub", "email"), refused=google.refused,
        )  # fmt: skip
        return google
    from vedette.adapters.identity.spiffe import MOST_LIFE_US, SvidTokens

    verifier = Verifier(
        keys=issuer, issuer=f"spiffe://{settings.fleet}", audience=issuer.audience,
        now_us=now_us, algorithms=("ES256",), max_life_us=MOST_LIFE_US,
        required=("exp", "iat", "aud", "sub", "jti"), refused=issuer.refused,
    )  # fmt: skip
    return SvidTokens(issuer, verifier, now_us)


def with_tokens(settings: Settings, hands: Performer) -> Performer:
    """Return hands that get a token for each call of a target that asks for one of Google's.

    Raises BadFleet if it is not said which service accounts the agents have.
    """
    asking = [
        name
        for name, target in settings.targets.items()
        if "google_scopes" in target or "google_audience" in target
    ]
    if not asking:
        return hands
    pattern = settings.edges.tokens.service_account
    if pattern is None:
        mend = "add [tokens] service_account"
        where = f"vedette.toml: targets.{asking[0]}"
        raise BadFleet("its tokens are of the agents' service accounts", where=where, mend=mend)
    from vedette.adapters.identity.google import GoogleTokens, IamCredentials, Metadata, TokenHands

    broker = IamCredentials(Metadata())
    google = GoogleTokens(settings.fleet, pattern, broker, audience="", refuse=lambda *_: None)
    return TokenHands(hands, broker, google.account)


class Apart:
    """The Reasoner port on judges here and judges elsewhere.

    `releases` has those that are elsewhere, with the release that their workers must have: the
    door, on a thread of its own, looks at it for each connection, and while it lasts.
    """

    def __init__(
        self, near: Any, away: RemoteJudges, pool: RemotePool, releases: dict[str, str]
    ) -> None:
        self._near = near
        self._away = away
        self.pool = pool
        self.releases = releases

    def _of(self, agent: str) -> Any:
        return self._away if agent in self.releases else self._near

    def near(self, agent: str) -> Any | None:
        """Return what runs an agent's judge here; None if it lives elsewhere."""
        return None if agent in self.releases else self._near

    def release(self, agent: str, release: str) -> None:
        """Let in only workers with another release of an agent from now on."""
        if agent in self.releases:
            self.releases[agent] = release

    async def reason(self, briefing: Briefing) -> Thought:
        """Judge one event where the agent's judge lives."""
        thought: Thought = await self._of(briefing.agent).reason(briefing)
        return thought

    def restore(
        self,
        agent: str,
        key: str,
        checkpoint: bytes | None,
        at: int,
        since: Sequence[tuple[int, Event]],
    ) -> None:
        """Bring the state of a key to the last of `since`."""
        self._of(agent).restore(agent, key, checkpoint, at, since)

    def forget(self, agent: str, key: str) -> None:
        """Drop the state of a key."""
        self._of(agent).forget(agent, key)

    def fold(
        self, agent: str, checkpoint: bytes | None, since: Sequence[tuple[int, Event]]
    ) -> bytes | None:
        """Return the checkpoint after `since`. Raises Unavailable if the worker is not there."""
        folded: bytes | None = self._of(agent).fold(agent, checkpoint, since)
        return folded

    def renew(self, agent: str) -> None:
        """Have an agent's judge made anew when it is next needed."""
        self._of(agent).renew(agent)


def apart(
    settings: Settings,
    fleet: Fleet,
    reasoners: dict[str, Reasoner],
    lessons: Lessons,
    clock: Clock,
) -> dict[str, Reasoner]:
    """Put the judges that live elsewhere beside those here, if this is a gateway.

    Raises BadFleet for an agent that is named and has no judge.
    """
    plan = settings.edges.gateway
    if not plan.apart:
        return reasoners
    for name in plan.agents:
        if name != "*" and name not in fleet.agents:
            what = f"there is no agent {name!r}"
            raise BadFleet(what, where="vedette.toml: gateway.agents", mend="correct the name")
        if name != "*" and fleet.agents[name].reasoner != "judge":
            what = f"agent {name} reasons with a model, which only the gateway may call"
            raise BadFleet(what, where="vedette.toml: gateway.agents", mend="leave it out")
    judged = {name for name, agent in fleet.agents.items() if agent.reasoner == "judge"}
    far = {name: fleet.agents[name].release for name in judged if plan.remote(name)}
    from vedette.adapters.reasoners.workers.reasoner_client import Making
    from vedette.adapters.reasoners.workers.remote_reasoner import RemoteJudges, RemotePool

    def make(name: str) -> Making:
        agent = fleet.agents[name]
        taught = lessons.of(name, clock.now_us())
        return Making(agent.folder, agent.charter, taught, agent.limits, release=agent.release)

    pool = RemotePool()

    def expired(name: str) -> bool:
        return lessons.expired(name, clock.now_us())

    both = Apart(reasoners["judge"], RemoteJudges(pool, make, expired), pool, far)
    return {**reasoners, "judge": both}


def close_apart(reasoners: Mapping[str, Reasoner]) -> None:
    """Hang up on workers elsewhere, if there are any."""
    for reasoner in reasoners.values():
        if isinstance(reasoner, Apart):
            reasoner.pool.close()


def as_gateway(settings: Settings) -> Settings:
    """Return the settings of a gateway: the judges of `[gateway] agents` live elsewhere.

    All of them, if the table names none.
    """
    plan = settings.edges.gateway
    told = replace(plan, apart=True, agents=plan.agents or ("*",))
    return replace(settings, edges=replace(settings.edges, gateway=told))
