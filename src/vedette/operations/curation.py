"""Curation: what people order about memories. Candidates promoted or rejected, memories taken back.

The ledger is written first and the bank brought to it, then every judge that was taught what
changed is made anew: an order is in force for the next recall when it is answered. A runner that
was killed in between does the same at its start (`sync_banks`), other workers when they hear of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import orjson
from msgspec import Struct

from vedette.domain.base.canonical import canonical_json, short_id
from vedette.domain.base.errors import AlreadyDone, BadCommand, NotFound
from vedette.domain.entry import Body, Draft
from vedette.domain.identity import Principal
from vedette.domain.memory import MEMORY_KINDS, Candidate, MemoryKind
from vedette.domain.memory_state import ARCHIVE_CAUSE, MEMORY_ENTRY_KINDS, PROPOSED, LedgerMemory
from vedette.domain.ports.memory_bank import BankStore
from vedette.domain.ports.store import StoreReader
from vedette.domain.roles import require_role
from vedette.engine.services import Services
from vedette.memory.training_set import Lessons

MOST_AT_ONCE = 1000

_ENTRY_KINDS = {
    "memory_approve": "memory.promoted",
    "memory_reject": "memory.rejected",
    "memory_off": "memory.retired",
    "memory_on": "memory.restored",
}


def sync_banks(banks: BankStore, store: StoreReader, after: int = 0) -> int:
    """Bring the banks to the ledger's curation: what was proposed, and what people made of it.

    What stands there already stays. What was learned of erased content goes: the runner may have
    been killed between the two, or another worker may have erased it. Returns up to which entry
    this was done; with `after` nothing is read unless something of it came later.
    """
    head = store.ledger.last_seq()
    if after and not any(
        True for _ in store.ledger.walk(("body.erased", *MEMORY_ENTRY_KINDS), after)
    ):
        return head
    archived = _archived_digests(store)
    banks.sync_states(
        one for one in store.memories.all().values() if not _is_archived(one, archived)
    )
    erased = {
        str(entry["event"])
        for _, raw, data in store.memories.entries((PROPOSED,))
        if data is None
        and (entry := orjson.loads(raw)).get("body") not in archived
        and "event" in entry
    }
    banks.forget(erased, store.memories.candidates(erased))
    return head


def _archived_digests(store: StoreReader) -> set[str]:
    """Return digests of content that an archiving before `vedette.store.read_archived_memories`
    took.
    """
    return {
        digest
        for _, raw, _, _ in store.ledger.walk(("body.erased",))
        if (entry := orjson.loads(raw)).get("what") == ARCHIVE_CAUSE
        for digest in entry["erased"]
    }


def _is_archived(one: LedgerMemory, archived: Collection[str]) -> bool:
    """Say whether a memory's content went because an archive has it: then it stays as it is."""
    return one.state == "erased" and one.digest in archived


class Curation(Struct):
    """The curation of one fleet's memories, as people see and order them."""

    services: Services
    lessons: Lessons

    def unlearn(self) -> bool:
        """Have the banks forget every memory whose content is erased, and judges made anew.

        What a person proposed belongs to no event: it is found by its entry alone. Returns whether
        that is done; if not it is done again, and nobody is briefed before.
        """
        return self.services.recall.update_banks(self._unlearn, order=True)

    def _unlearn(self) -> None:
        store = self.services.store
        archived = _archived_digests(store)
        erased = [one for one in store.memories.all().values() if one.state == "erased"]
        self.services.recall.banks.sync_states(
            one for one in erased if not _is_archived(one, archived)
        )
        self._renew_judges()

    def synchronize(self) -> None:
        """Bring banks that are behind, and judges, to what the ledger says."""
        sync_banks(self.services.recall.banks, self.services.store)
        self._renew_judges()

    def refresh_judges(self) -> list[str]:
        """Have the judges made anew that were taught what is not so any more; return their agents.

        Their states are taken up again from the record, so nothing that they observed is lost.
        """
        agents: list[str] = []
        self.services.recall.update_banks(lambda: agents.extend(self._renew_judges()), order=True)
        return agents

    def _renew_judges(self) -> list[str]:
        agents = self.lessons.outdated_agents()
        for agent in agents:
            judges: Any = self.services.reasoners["judge"]
            judges.renew(agent)
        return agents

    # --- looking ----------------------------------------------------------------------------

    def list_memories(self, bank: str | None, state: str | None) -> dict[str, Any]:
        """Return candidates and memories, of one bank or state if these are given."""
        self._require_bank(bank)
        if state not in (None, "active", "candidate", "off", "rejected"):
            mend = "one of: active, candidate, off, rejected"
            raise BadCommand(f"there is no state {state!r}", mend=mend)
        items = self.services.recall.banks.list_memories(bank)
        return {"items": [one for one in items if state in (None, one["state"])]}

    def show_memory(self, id: str) -> dict[str, Any]:
        """Return one memory, its story and readers; of one that waits, what these are taught."""
        found = self.find_memory(id)
        name = f"{found['bank']}/{found['id']}"
        store = self.services.store
        story = [
            {"seq": seq, "at": entry["at"], "kind": entry["kind"], "by": entry.get("actor"),
             "reason": None if data is None else orjson.loads(data).get("reason"),
             "erased": data is None}
            for seq, raw, data in store.memories.entries(MEMORY_ENTRY_KINDS)
            if _is_about(entry := orjson.loads(raw), name)
        ]  # fmt: skip
        readers = self.lessons.agents_taught(found["bank"], found["scope"])
        waits = found["state"] == "candidate"
        taught = {agent: self._judge_inputs(agent) for agent in readers} if waits else {}
        return {"memory": found, "story": story, "readers": readers, "taught": taught}

    def _judge_inputs(self, agent: str) -> dict[str, Any]:
        """Return what an agent's judge is made of now, as data."""
        declared = self.services.fleet.agent(agent)
        lessons = self.lessons.preview_lessons(agent, self.services.clock.now_us())
        lessons_json = [
            {name: getattr(one, name) for name in one.__struct_fields__} for one in lessons
        ]
        return {
            "folder": declared.folder,
            "charter": dict(declared.charter),
            "lessons": lessons_json,
        }

    def find_memory(self, id: str) -> dict[str, Any]:
        """Return a candidate or memory by its id, `bank/id` or a unique beginning of the id."""
        bank, _, rest = id.rpartition("/")
        rest = rest.partition("@")[0]
        known = self.services.recall.banks.list_memories(bank or None)
        named = [one for one in known if one["id"] == rest]
        named = named or [one for one in known if len(rest) > 3 and one["id"].startswith(rest)]
        if len(named) == 1:
            return named[0]
        if named:
            several = ", ".join(one["id"] for one in named[:6])
            raise BadCommand(f"{id!r} may be any of {several}", mend="give more of the id")
        raise NotFound(f"there is no memory {id!r}", mend="see `vedette memory show`")

    def _require_bank(self, bank: str | None) -> None:
        if bank is not None and not self.services.recall.banks.version(bank):
            banks = sorted({scope.bank for a in self.lessons.agents.values() for scope in a.scopes})
            raise NotFound(f"there is no bank {bank!r}", mend=f"one of: {', '.join(banks)}")

    # --- orders -----------------------------------------------------------------------------

    async def propose(
        self, who: Principal, reason: str, command: str | None, args: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Propose something as a person: a candidate like an agent's, for a person to promote."""
        bank, _, scope = str(args["into"]).partition("/")
        why = self.services.recall.banks.find_refusal(bank, scope, None)
        if why:
            raise BadCommand(why, mend="name it as BANK/SCOPE, as `vedette memory show` has them")
        text, kind = str(args.get("text") or "").strip(), str(args.get("kind") or "fact")
        topics = tuple(str(topic) for topic in args.get("topics") or ())
        replaces = args.get("replaces")
        if replaces is not None:
            replaces = str(self.find_memory(f"{bank}/{replaces}")["id"])
        now = self.services.clock.now_us()
        id = short_id("cnd", str(who), command or now)
        candidate = Candidate(
            bank, scope, text, topics, kind=cast("MemoryKind", kind), label=args.get("label"),
            replaces=replaces, id=id,
        )  # fmt: skip
        why = self.services.recall.banks.find_fault(candidate)
        if why:
            known = ", ".join(self.services.recall.banks.topics(bank)) or "none"
            raise BadCommand(why, mend=f"kinds: {', '.join(MEMORY_KINDS)}; topics: {known}")
        body = Body(canonical_json({**candidate.to_json(), "reason": reason}))
        fields = {"memory": bank, "what": id, "actor": str(who)}
        store = self.services.store
        proposing = store.commands.propose_memory(
            Draft(PROPOSED, fields, body=body), command=command
        )
        seq = await self.services.recall.await_commit(proposing, order=True)
        self._update_banks(
            [LedgerMemory(bank, id, "candidate", candidate, seq=seq, by=str(who), proposed_us=now)]
        )
        return {"entry": seq, "candidate": id, "bank": bank, "scope": scope, "state": "candidate"}

    async def apply_order(
        self, verb: str, who: Principal, reason: str, command: str | None, args: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Promote, reject, take back or bring back; in force for the next recall at the answer."""
        source = args.get("source")
        if (args.get("id") is None) == (source is None):
            raise BadCommand("say which", mend="give one id, or --from with what it came from")
        if source is not None:
            return await self._retire_from(who, reason, command, str(source))
        seen = self.show_memory(str(args["id"]))
        name = f"{seen['memory']['bank']}/{seen['memory']['id']}"
        changes = await self.move_memories({_ENTRY_KINDS[verb]: [name]}, who, reason, command)
        done = {"moved": changes, "judges": self.refresh_judges()}
        # Whoever promotes is told of what, and of what it was promoted into.
        return {**done, "seen": seen} if verb == "memory_approve" else done

    async def _retire_from(
        self, who: Principal, reason: str, command: str | None, source: str
    ) -> dict[str, Any]:
        """Take back everything that was learned from a source; what only waits is rejected."""
        from vedette.memory.lineage import find_learned  # not loaded to start a fleet

        store = self.services.store
        found = find_learned(store, self.services.fleet.agents, source)
        learned = [one for one in found if one.state in ("active", "candidate")]
        if not learned:
            raise AlreadyDone(f"nothing that was learned from {source} is recalled or waits")
        moves = {
            kind: [one.name for one in learned if one.state == state]
            for kind, state in (("memory.retired", "active"), ("memory.rejected", "candidate"))
        }
        changes = await self.move_memories(moves, who, reason, command)
        return {"moved": changes, "judges": self.refresh_judges()}

    async def move_memories(
        self, moves: Mapping[str, Sequence[str]], who: Principal, reason: str, command: str | None
    ) -> list[dict[str, Any]]:
        """Give orders by kind of entry, in one commit: an order stands whole or not at all."""
        if (count := sum(map(len, moves.values()))) > MOST_AT_ONCE:
            raise BadCommand(f"{count} memories at once are too many", mend="by event or run")
        body = Body(canonical_json({"reason": reason}))
        drafts = [(Draft(kind, {"actor": str(who)}, body=body), moves[kind]) for kind in moves]
        curating = self.services.store.commands.move_memories(*drafts, command=command)
        memories = await self.services.recall.await_commit(curating, order=True)
        self._update_banks(memories)
        return [{"memory": one.name, "state": one.state, "entry": one.last} for one in memories]

    def _update_banks(self, memories: Sequence[LedgerMemory]) -> None:
        """Bring the banks to where memories stand by now that an order has moved.

        Another worker's later order, or erasure, may have been heard before this goes on, and is
        not undone: only the store's word counts, also where it cannot be read for a while.
        """
        store = self.services.store
        banks = self.services.recall.banks

        def update() -> None:
            stands = store.memories.all()
            banks.sync_states(stands.get(one.name, one) for one in memories)

        self.services.recall.update_banks(update, order=True)


def _is_about(entry: Mapping[str, Any], name: str) -> bool:
    if entry["kind"] == PROPOSED:
        return f"{entry['memory']}/{entry.get('what', '')}" == name
    return bool(entry["memory"] == name)


# What each order takes, and must be given.
VERBS: Mapping[str, Mapping[str, type]] = {
    "memory_list": {"bank": str, "state": str},
    "memory_show": {"id": str},
    "memory_propose": {
        "into": str, "text": str, "kind": str, "label": str, "replaces": str,
        "topics": list,
    },
    "memory_approve": {"id": str},
    "memory_reject": {"id": str},
    "memory_off": {"id": str, "source": str},
    "memory_on": {"id": str},
}  # fmt: skip
NEEDED = {
    "memory_show": "id",
    "memory_propose": "into",
    "memory_approve": "id",
    "memory_reject": "id",
    "memory_on": "id",
}


async def dispatch(
    curating: Curation | None,
    verb: str,
    who: Principal,
    reason: str,
    command: str | None,
    args: Any,
) -> dict[str, Any]:
    """Carry out one order about memories. Raises BadCommand and what the store raises."""
    if curating is None:
        raise BadCommand("this fleet's memories are kept elsewhere")
    if verb == "memory_list":
        return curating.list_memories(args.get("bank"), args.get("state"))
    if verb == "memory_show":
        return curating.show_memory(args["id"])
    require_role(who, who.roles, verb)
    if who.kind != "person":
        raise BadCommand(f"{who} may not give commands", mend="a person must")
    if not reason.strip():
        raise BadCommand("a reason is missing", mend="add --reason 'why'")
    if verb == "memory_propose":
        return await curating.propose(who, reason, command, args)
    return await curating.apply_order(verb, who, reason, command, args)
