"""The issuer of agents' SPIFFE keys: its book in the state folder, and the private keys beside it.

`identities/issuer.json` is public (ids, public keys, until when, what is revoked); the private keys
are files of their own that the owner alone may read. The book is replaced as a whole, so whoever
reads it reads one state. A gateway looks at each use whether it was replaced: what is revoked is
refused with the next use, in the same instant on this machine.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct

from vedette.adapters.identity.spiffe.signer import Signer, format_identity
from vedette.domain.base import failpoint
from vedette.domain.base.errors import BadCommand, BadFleet
from vedette.domain.base.fsync import sync
from vedette.domain.base.state_folder import open_file
from vedette.domain.identity import Identity, is_valid_name
from vedette.domain.ports.tokens import BadToken, Claims

FOLDER = "identities"
MAX_LIFE_US = 300_000_000
_BOOK = "issuer.json"


class IssuedKey(Struct, frozen=True):
    """A key in the SPIFFE issuer's book: microseconds UTC; dropped at `until_us` if not 0."""

    key: str
    agent: str
    created_us: int
    until_us: int
    revoked_us: int


class Issuer:
    """The SPIFFE issuer of one fleet, in its state folder. Fits the KeySet port for a verifier."""

    def __init__(
        self,
        state: Path,
        fleet: str,
        *,
        audience: str | None = None,
        now_us: Callable[[], int],
        life_us: int = MAX_LIFE_US,
    ) -> None:
        self.fleet = fleet
        self.audience = audience or f"spiffe://{fleet}/gateway"
        self.life_us = min(life_us, MAX_LIFE_US)
        self._folder = state / FOLDER
        self._now_us = now_us
        self._stamp: tuple[int, int, int] | None = None
        self._book: dict[str, Any] = _empty_book(fleet)
        self._public_keys: dict[str, Any] = {}

    # --- for a verifier ---------------------------------------------------------------------

    async def key(self, kid: str) -> Any:
        """Return the public key of an id. Raises BadToken for one that is unknown or dropped."""
        self._reload_book()
        known = self._book["keys"].get(kid)
        if known is None or self._is_dropped(known):
            raise BadToken("unknown-key", "it is signed with a key that is not known")
        made = self._public_keys.get(kid)
        if made is None:
            from joserfc.jwk import ECKey

            made = self._public_keys[kid] = ECKey.import_key(known["jwk"])
        return made

    def check_revocation(self, claims: Claims) -> None:
        """Raise BadToken for a token whose key, agent or id is revoked or is another agent's."""
        self._reload_book()
        known = self._book["keys"].get(claims.key)
        if known is None or self._is_dropped(known):
            raise BadToken("unknown-key", "its key has been dropped")
        if known["revoked"]:
            raise BadToken("revoked", "its key was revoked")
        self.check_agent(known["agent"], claims)
        if claims.subject != Identity(self.fleet, known["agent"]).spiffe_id:
            raise BadToken("wrong-subject", "its key is not the key of its subject")

    def check_agent(self, agent: str, claims: Claims) -> None:
        """Raise BadToken if an agent, or this one token of it, is revoked."""
        self._reload_book()
        if agent in self._book["agents"]:
            raise BadToken("revoked", "its agent was revoked")
        if claims.id and claims.id in self._book["tokens"]:
            raise BadToken("revoked", "it was revoked")

    def agent_of(self, claims: Claims) -> str:
        """Return whose key a verified token was signed with."""
        agent: str = self._book["keys"][claims.key]["agent"]
        return agent

    def _is_dropped(self, known: dict[str, Any]) -> bool:
        return bool(known["until"]) and self._now_us() >= known["until"]

    # --- for people -------------------------------------------------------------------------

    def signer(self, agent: str, *, actor: str = "", reason: str = "") -> Signer:
        """Return an agent's signer; its key is made if it has none. Raises BadToken if revoked."""
        self._reload_book()
        if agent in self._book["agents"]:
            raise BadToken("revoked", f"agent {agent} is revoked")
        key = self._private_key(agent)
        if key is None:
            self.rotate(agent, first=True, actor=actor, reason=reason)
            key = self._private_key(agent)
        assert key is not None
        return Signer(self.fleet, agent, self.audience, key, life_us=self.life_us)

    def issue(self, agent: str, out: Path, *, actor: str = "", reason: str = "") -> str:
        """Write a worker's identity file, for its owner alone; return the key's id.

        Raises BadToken if the agent is revoked, BadCommand if the file is there already.
        """
        signer = self.signer(agent, actor=actor, reason=reason)
        key = self._private_key(agent)
        assert key is not None
        content = format_identity(self.fleet, agent, self.audience, key, self.life_us)
        try:
            file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as error:
            mend = "name another file, or remove it"
            raise BadCommand("there is such a file already", where=str(out), mend=mend) from error
        with os.fdopen(file, "wb") as written:
            written.write(content)
            written.flush()
            os.fsync(written.fileno())
        with self._edit_book() as book:
            self._record_change(book, "issued", agent, signer.kid, actor, reason)
        return signer.kid

    def rotate(
        self,
        agent: str,
        *,
        first: bool = False,
        reinstate: bool = False,
        actor: str = "",
        reason: str = "",
    ) -> IssuedKey:
        """Give an agent a new key; the old ones hold for two more lives of a token.

        `first` makes one only if there is none; `reinstate` takes back that the agent was revoked,
        its revoked keys stay so. Raises BadCommand.
        """
        if not is_valid_name(agent):
            raise BadCommand(f"{agent!r} cannot name an agent")
        from joserfc.jwk import ECKey

        with self._edit_book() as book:
            now = self._now_us()
            if agent in book["agents"] and not reinstate:
                mend = "add --reinstate to take that back"
                raise BadCommand(f"agent {agent} is revoked", mend=mend)
            back = book["agents"].pop(agent, None) is not None
            mine = {kid: k for kid, k in book["keys"].items() if k["agent"] == agent}
            live = [kid for kid, k in mine.items() if not k["until"] and not k["revoked"]]
            if first and live:
                return self._issued_key(live[0], mine[live[0]])
            for kid in live:
                mine[kid]["until"] = now + 2 * self.life_us
            made = ECKey.generate_key("P-256")
            kid = made.thumbprint()
            path = self._key_file(agent, kid)
            _write(path, orjson.dumps(made.as_dict(private=True)), "identity-key")
            fresh = {"agent": agent, "jwk": made.as_dict(private=False), "made": now}
            book["keys"][kid] = {**fresh, "until": 0, "revoked": 0}
            what = "reinstated" if back else "made" if first else "rotated"
            self._record_change(book, what, agent, kid, actor, reason)
            return self._issued_key(kid, book["keys"][kid])

    def revoke(self, what: str, *, actor: str = "", reason: str = "") -> list[str]:
        """Revoke an agent with all its keys, a key, or (by its jti) a token; return the keys.

        Raises BadCommand if it is none that is known: `token:JTI` is taken as it is.
        """
        with self._edit_book() as book:
            now = self._now_us()
            if what.startswith("token:"):
                book["tokens"][what.removeprefix("token:")] = now + _REVOCATION_US
                self._record_change(book, "revoked", None, what, actor, reason)
                return []
            found = [kid for kid, k in book["keys"].items() if kid == what or k["agent"] == what]
            if not found and not is_valid_name(what):
                mend = "see `vedette identity show`"
                raise BadCommand(f"{what!r} is no agent, no key and no token:JTI", mend=mend)
            for kid in found:
                known = book["keys"][kid]
                known["revoked"] = known["revoked"] or now
            agent = book["keys"][what]["agent"] if what in book["keys"] else what
            if what not in book["keys"]:
                book["agents"][what] = now
            key = what if what in book["keys"] else None
            self._record_change(book, "revoked", agent, key, actor, reason)
            return found

    def has_name(self, name: str) -> bool:
        """Say whether the book has an agent or a key of this name."""
        self._reload_book()
        keys: dict[str, Any] = self._book["keys"]
        mine = any(known["agent"] == name for known in keys.values())
        return mine or name in keys or name in self._book["agents"]

    def changes(self) -> tuple[str, list[dict[str, Any]]]:
        """Return the book's id and what people changed, as far back as it is kept.

        A change is known by number and instant: a book out of a backup counts on from an older
        number, and a new one from 1.
        """
        self._reload_book()
        return self._book["id"], list(self._book["changes"])

    def _record_change(
        self,
        book: dict[str, Any],
        what: str,
        agent: str | None,
        key: str | None,
        actor: str,
        reason: str,
    ) -> None:
        """Write a change down in the book: a gateway puts it into its ledger."""
        book["number"] += 1
        change = {"n": book["number"], "at": self._now_us(), "what": what, "agent": agent}
        book["changes"].append({**change, "key": key, "actor": actor, "reason": reason})
        del book["changes"][:-_CHANGES]

    def list_keys(self) -> list[IssuedKey]:
        """Return every key that is not dropped, and dropped ones for a day."""
        self._reload_book()
        keys = self._book["keys"].items()
        return sorted(
            (self._issued_key(kid, known) for kid, known in keys),
            key=lambda k: (k.agent, k.created_us),
        )

    def revoked_agents(self) -> dict[str, int]:
        """Return the agents that are revoked, and since when (microseconds UTC)."""
        self._reload_book()
        return dict(self._book["agents"])

    def trust_bundle(self) -> dict[str, Any]:
        """Return the public keys in force as a JWK set (RFC 7517), for verifiers elsewhere."""
        self._reload_book()
        keys = self._book["keys"].items()
        return {
            "keys": [
                {**known["jwk"], "kid": kid, "use": "jwt-svid"}
                for kid, known in keys
                if not known["revoked"] and not self._is_dropped(known)
            ]
        }

    @staticmethod
    def _issued_key(kid: str, entry: dict[str, Any]) -> IssuedKey:
        return IssuedKey(kid, entry["agent"], entry["made"], entry["until"], entry["revoked"])

    # --- files ------------------------------------------------------------------------------

    def _key_file(self, agent: str, kid: str) -> Path:
        return self._folder / f"{agent}.{kid}.key"

    def _private_key(self, agent: str) -> dict[str, Any] | None:
        for kid, known in self._book["keys"].items():
            if known["agent"] == agent and not known["until"] and not known["revoked"]:
                path = self._key_file(agent, kid)
                try:
                    key: dict[str, Any] = orjson.loads(path.read_bytes())
                except (OSError, ValueError) as error:
                    mend = f"vedette identity issue --rotate {agent}"
                    raise BadFleet("the key cannot be read", where=str(path), mend=mend) from error
                return key
        return None

    def _reload_book(self) -> None:
        """Read the book if it was replaced since."""
        try:
            seen = os.stat(self._folder / _BOOK)  # noqa: PTH116 (asked at every use of a token)
        except FileNotFoundError:
            if self._stamp is not None:
                self._book, self._stamp, self._public_keys = _empty_book(self.fleet), None, {}
            return
        stamp = (seen.st_mtime_ns, seen.st_ino, seen.st_size)
        if stamp != self._stamp:
            self._book = _read(self._folder / _BOOK, self.fleet)
            self._stamp, self._public_keys = stamp, {}

    @contextmanager
    def _edit_book(self) -> Iterator[dict[str, Any]]:
        """Give the book to be changed, and put it in its place; one writer at a time."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = open_file(self._folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = self._folder / _BOOK
            book = _read(path, self.fleet) if path.exists() else _empty_book(self.fleet)
            yield book
            _prune_book(book, self._now_us())
            _write(path, orjson.dumps(book, option=orjson.OPT_INDENT_2), "identity-book")
            self._remove_stale_keys(book)
        finally:
            os.close(lock)
        self._reload_book()

    def _remove_stale_keys(self, book: dict[str, Any]) -> None:
        """Remove private keys that sign no more; also those that a crash left behind."""
        live = {
            self._key_file(known["agent"], kid).name
            for kid, known in book["keys"].items()
            if not known["until"] and not known["revoked"]
        }
        for path in self._folder.glob("*.key"):
            if path.name not in live:
                path.unlink(missing_ok=True)


_DAY_US = 86_400_000_000
# How long a revoked token is remembered: longer than any lasts that is taken, Google's too.
_REVOCATION_US = 2 * 3_600_000_000
_CHANGES = 1000


def _prune_book(book: dict[str, Any], now_us: int) -> None:
    """Forget what nothing depends on any more."""
    for kid, known in list(book["keys"].items()):
        if known["until"] and now_us > known["until"] + _DAY_US:
            del book["keys"][kid]
    for jti, until_us in list(book["tokens"].items()):
        if now_us > until_us:
            del book["tokens"][jti]


def _empty_book(fleet: str) -> dict[str, Any]:
    parts: dict[str, Any] = {"keys": {}, "agents": {}, "tokens": {}}
    book = secrets.token_hex(8)
    return {"v": 1, "id": book, "fleet": fleet, **parts, "number": 0, "changes": []}


def _read(path: Path, fleet: str) -> dict[str, Any]:
    """Read the book. Raises BadFleet: nobody is taken for anybody by a book that is damaged."""
    try:
        book = orjson.loads(path.read_bytes())
        parts = all(isinstance(book[name], dict) for name in ("keys", "agents", "tokens"))
        parts = parts and isinstance(book["changes"], list) and isinstance(book["number"], int)
        if book["v"] != 1 or book["fleet"] != fleet or not parts:
            raise ValueError("another fleet's, or of another version")
        book.setdefault("id", "")  # of one that was begun before books had ids
    except (OSError, ValueError, KeyError, TypeError) as error:
        mend = "restore it from a backup"
        raise BadFleet(f"is no book of identities: {error}", where=str(path), mend=mend) from error
    found: dict[str, Any] = book
    return found


def _write(path: Path, content: bytes, point: str) -> None:
    """Put a private file in its place: durable, and whole or not there."""
    failpoint.hit_failpoint(f"{point}:before")
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    Path(name).replace(path)
    sync(path.parent)
    failpoint.hit_failpoint(f"{point}:after")
