"""Maintenance: what operators order for the record itself. Keys, archives, retention, restores.

Like all commands these name a principal and a reason. They do nothing to what agents do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadCommand
from vedette.domain.entry import Body, Draft
from vedette.domain.erasure import ErasureResult
from vedette.domain.identity import Principal
from vedette.domain.memory_state import ARCHIVE_CAUSE, LedgerMemory
from vedette.domain.roles import require_role
from vedette.domain.run import Run
from vedette.engine.services import Services
from vedette.ledger.history.release_history import find_waiting_folders
from vedette.ledger.merkle import ProofError, SigningKey
from vedette.ledger.pruned_log import ArchivedPrefix

Row = tuple[Any, ...]


class MaintenanceStore(Protocol):
    """The store as orders of upkeep ask it. All writes answer after COMMIT."""

    async def rotate(
        self, key: SigningKey, line: str, draft: Draft, *, command: str | None = None
    ) -> int:
        """Hand over to a key, whose verifier key is `line`; return the entry's seq."""
        ...

    async def record_archive(
        self, archived: ArchivedPrefix, draft: Draft, *, command: str | None = None
    ) -> int:
        """Let the archived entries go, as far as that is one entry; `trim` deletes the rows."""
        ...

    async def trim(self) -> int:
        """Delete some of what was let go; return how many rows went, 0 when all have."""
        ...

    def expiring_bodies(self, upto: int, *, after: int = 0) -> Sequence[Row]:
        """Return (seq, entry bytes, about) of the next bodies up to an entry that may go.

        Content that an open run needs stays; so do proposed memories, whose bank has a retention
        of its own (`forget_memories`).
        """
        ...

    async def forget_memories(
        self, old: Sequence[LedgerMemory], upto: int, draft: Draft
    ) -> ErasureResult:
        """Delete what was proposed of memories; record the digests of what was there.

        Not of those about which anything was ordered after entry `upto`.
        """
        ...

    def refuse_open(self, archived: ArchivedPrefix) -> None:
        """Raise BadCommand if an archived part holds entries of a run that has not ended."""
        ...

    async def expire(
        self, rows: Sequence[Row], draft: Draft, *, stateless: Collection[str] = ()
    ) -> ErasureResult:
        """Delete bodies that `expiring_bodies` found and that may still go; record their digests.

        What judges have observed goes if a kept state holds it, or the agent is `stateless`.
        """
        ...

    async def close_loss_window(self, draft: Draft, *, command: str | None = None) -> int:
        """End the doubt that a restore left: what is accepted from now on was not lost before."""
        ...


class KeyStore(Protocol):
    """Where an ordered rotation has its keys: the next one is made durable before it is named."""

    def prepare(self) -> tuple[SigningKey, str]: ...

    def finish(self, key: SigningKey) -> None: ...

    def drop(self, key: SigningKey) -> None: ...


class BrokerDeadLetters(Protocol):
    """Dead letters of a broker that are redriven as ordered (`vedette.adapters.pubsub.redrive`)."""

    async def redrive(
        self, name: str, most: int, record: Callable[[int], Awaitable[None]]
    ) -> dict[str, Any]: ...


class Maintenance(Struct):
    """The upkeep of one fleet's store, as operators order it."""

    services: Services
    store: MaintenanceStore
    keys: KeyStore
    dead_letters: BrokerDeadLetters | None = None
    # Has banks and judges forget what was erased (`Curation.unlearn`).
    unlearn: Callable[[], object] = lambda: None
    _rotating: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def rotate_key(
        self, who: Principal, reason: str, command: str | None = None
    ) -> dict[str, Any]:
        """Hand over to a new signing key; the present one is destroyed.

        The entry that names the new key is signed by the old: whoever knows the first key can
        follow. One rotation at a time. Raises what the store raises: after BadCommand the present
        key stays; after anything else nobody knows yet, and the next start asks the store.
        """
        draft = _draft("key.rotated", who, reason, "rotate_key")
        async with self._rotating:
            key, line = self.keys.prepare()
            try:
                seq = await self.store.rotate(key, line, draft, command=command)
            except BadCommand:
                self.keys.drop(key)
                raise
            self.keys.finish(key)
        return {"seq": seq, "key": line}

    async def expire(self, who: Principal, reason: str, before_us: int) -> dict[str, Any]:
        """Erase content older than an instant, except what an open run still needs.

        What judges learned of it is kept as state. Of what was proposed to be remembered, promoted
        or not, goes what is older than its bank keeps it.
        """
        draft = _draft("body.erased", who, reason, "expire")
        counts = await self._expire(draft, self.services.store.ledger.seq_at(before_us - 1))
        return {"erased": counts["erased"] + await self._forget_memories(draft)}

    async def _forget_memories(self, draft: Draft) -> int:
        """Erase memories past the retention of their banks; the banks and judges follow."""
        keeps_us, now = self.services.recall.banks.retention_us, self.services.clock.now_us()
        upto = self.services.store.ledger.last_seq()  # before what is looked at
        old = [
            one
            for one in self.services.store.memories.all().values()
            if one.candidate is not None and 0 < keeps_us(one.bank) <= now - one.retention_start_us
        ]
        if not old:
            return 0
        forgetting = self.store.forget_memories(old, upto, draft)
        done = await self.services.recall.await_commit(forgetting, order=True)
        self.unlearn()
        return len(done.digests)

    async def prune_archived(
        self, who: Principal, reason: str, archived: ArchivedPrefix, command: str | None = None
    ) -> dict[str, Any]:
        """Delete the entries that an archive now holds, and what is left of their content.

        Raises BadCommand if a run in them is open (again), or they are not those of the store.
        """
        draft = _draft("ledger.archived", who, reason, "let_go")
        erasing = _draft("body.erased", who, reason, "let_go")
        # So that banks keep what was learned of it: it is not to be forgotten, it is elsewhere.
        erasing = replace(erasing, fields={**erasing.fields, "what": ARCHIVE_CAUSE})
        self.store.refuse_open(archived)  # before any content goes
        self._refuse_waiting(archived)
        counts = await self._expire(erasing, archived.size)
        seq = await self.store.record_archive(archived, draft, command=command)
        rows = 0
        while deleted := await self.store.trim():
            rows += deleted
        return {"seq": seq, "archived": archived.size, **counts}

    def _refuse_waiting(self, archived: ArchivedPrefix) -> None:
        """Raise BadCommand for entries that say what a start runs in place of a folder."""
        for name, waiting in find_waiting_folders(self.services.store.ledger).items():
            if waiting.entry <= archived.size:
                raise BadCommand(
                    f"the folder of {name} waits since entry {waiting.entry}, which says what a "
                    "start runs instead",
                    mend=f"`vedette agent release {name}` ends that; no entry was deleted",
                )

    async def finish_trimming(self) -> None:
        """Delete what an archiving that was broken off had let go already."""
        while await self.store.trim():
            pass

    async def close_loss_window(
        self, who: Principal, reason: str, command: str | None = None
    ) -> dict[str, Any]:
        """Say that sources deliver nothing again that a restore had lost."""
        draft = _draft("store.settled", who, reason, "settle_restore")
        try:
            seq = await self.store.close_loss_window(draft, command=command)
        except BadCommand:
            # It may have ended by an order whose commit stood unheard.
            self.services.loss_window = self.services.store.ledger.loss_window()
            raise
        if self.services.loss_window is not None:  # as the ledger says now, which may fail
            self.services.loss_window = replace(self.services.loss_window, until=seq)
        return {"seq": seq}

    async def redrive(
        self, who: Principal, reason: str, source: str, most: int, command: str | None = None
    ) -> dict[str, Any]:
        """Have a broker's dead letters of a source published again.

        The entry says how many and is durable before the first of them is published.
        """
        draft = _draft("source.redriven", who, reason, "pubsub_redrive")
        if self.dead_letters is None:
            raise BadCommand("this fleet has no source with dead letters")

        async def record(number: int) -> None:
            fields = {**draft.fields, "what": source, "size": number}
            await self.services.store.commands.append_entries(
                [replace(draft, fields=fields)], command=command
            )

        return await self.dead_letters.redrive(source, most, record)

    async def _expire(self, draft: Draft, upto: int) -> dict[str, Any]:
        erased = after = 0
        while rows := self.store.expiring_bodies(upto, after=after):
            after = rows[-1][0]
            unkept = self.services.store.runs.without_state_of(rows)
            stateless = await keep_states(self.services, unkept)
            done = await self.store.expire(rows, draft, stateless=stateless)
            erased += len(done.digests)
        return {"erased": erased}


async def keep_states(services: Services, unkept: Sequence[Run]) -> set[str]:
    """Keep what judges learned of content that an order makes go, as states without it.

    Returns the agents of these runs that keep no state: their judges have none, or no worker runs
    them. Raises BadCommand, and nothing is kept, for an agent that only other workers run.
    """
    agents = {run.agent for run in unkept}
    stateless = agents - set(services.fleet.agents)
    for agent in sorted(stateless):
        if services.store.cluster.has_other_runner(agent):
            raise BadCommand(
                f"{agent} has observed some of it, and this worker does not run {agent}: what it "
                "has learned cannot be kept here, so nothing was erased",
                mend=f"order it at a worker that runs {agent}",
            )
    for agent, key in sorted({(run.agent, run.key) for run in unkept}):
        needed = max(run.position for run in unkept if (run.agent, run.key) == (agent, key))
        while agent not in stateless:
            history = services.store.judge_states.history(agent, key, 2**62)
            if history.checkpoint_position >= needed:
                break
            fold = services.reasoners[services.fleet.agent(agent).reasoner].fold_state
            blob = fold(agent, history.checkpoint, history.later_events)
            if blob is None:
                stateless.add(agent)
            elif await services.store.steps.keep_state(agent, key, history, blob):
                break
    return stateless


def _draft(kind: str, who: Principal, reason: str, verb: str) -> Draft:
    if who.kind != "person":
        raise BadCommand(f"{who} may not give commands", mend="a person must")
    require_role(who, who.roles, verb)
    if not reason.strip():
        raise BadCommand("a reason is missing", mend="add --reason 'why'")
    return Draft(kind, {"actor": str(who)}, body=Body(canonical_json({"reason": reason})))


# What each order takes, and must be given.
VERBS: Mapping[str, Mapping[str, type]] = {
    "rotate_key": {},
    "expire": {"before_us": int},
    "let_go": {"archived": str},
    "settle_restore": {},
    "pubsub_redrive": {"source": str, "most": int},
}
NEEDED = {"expire": "before_us", "let_go": "archived", "pubsub_redrive": "source"}

# How many messages one order publishes again unless it says.
DEFAULT_MESSAGES = 1000


async def dispatch(
    maintenance: Maintenance | None,
    verb: str,
    who: Principal,
    reason: str,
    command: str | None,
    args: Any,
) -> dict[str, Any]:
    """Carry out one order of upkeep. Raises BadCommand."""
    if maintenance is None:
        raise BadCommand("this fleet's store is kept up elsewhere")
    if verb == "rotate_key":
        return await maintenance.rotate_key(who, reason, command)
    if verb == "expire":
        return await maintenance.expire(who, reason, args["before_us"])
    if verb == "pubsub_redrive":
        most = args.get("most", DEFAULT_MESSAGES)
        return await maintenance.redrive(who, reason, args["source"], most, command)
    if verb == "settle_restore":
        return await maintenance.close_loss_window(who, reason, command)
    try:
        archived = ArchivedPrefix.from_bytes(args["archived"].encode())
    except ProofError as error:
        raise BadCommand(f"that is no archived part: {error}") from error
    return await maintenance.prune_archived(who, reason, archived, command)
