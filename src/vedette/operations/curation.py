"""Curating: what people order about memories. Candidates promoted or rejected, memories taken back.

The ledger is written first and the bank brought to it, then every judge that was taught what
changed is made anew: an order is in force for the next recall when it is answered. A runner that
was killed in between does the same at its start (`feed`), other workers when they hear of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import orjson

from vedette.domain.base.canonical import canonical, short_id
from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.errors import AlreadyDone, BadCommand, NotFound
from vedette.domain.entry import Body, Draft
from vedette.domain.identity import Principal
from vedette.domain.memory import KINDS, Candidate, Kind
from vedette.domain.memory_state import ARCHIVING, PROPOSED, TOLD, Learned
from vedette.domain.ports import BankStore
from vedette.domain.roles import require
from vedette.engine.services import Line
from vedette.memory.training_set import Lessons

MOST_AT_ONCE = 1000

_ORDERS = {
    "memory_approve": "memory.promoted",
    "memory_reject": "memory.rejected",
    "memory_off": "memory.retired",
    "memory_on": "memory.restored",
}


class Told(Protocol):
    """What `feed` asks of the store."""

    def head(self) -> int: ...

    def walk(
        self, kinds: tuple[str, ...] | None = None, after: int = 0
    ) -> Iterator[tuple[int, bytes, bytes | None, bytes | None]]: ...

    def told(self, kinds: tuple[str, ...]) -> list[tuple[int, bytes, bytes | None]]: ...

    def learned(self) -> dict[str, Learned]: ...

    def candidates(self, events: set[str]) -> list[Candidate]: ...


def feed(banks: BankStore, store: Told, after: int = 0) -> int:
    """Bring the banks to what the ledger says: what was proposed, and what people made of it.

    What stands there already stays. What was learned of erased content goes: the runner may have
    been killed between the two, or another worker may have erased it. Returns up to which entry
    this was done; with `after` nothing is read unless something of it came later.
    """
    head = store.head()
    if after and not any(True for _ in store.walk(("body.erased", *TOLD), after)):
        return head
    archived = _archived(store)
    banks.settle(one for one in store.learned().values() if not _elsewhere(one, archived))
    erased = {
        str(entry["event"])
        for _, raw, data in store.told((PROPOSED,))
        if data is None
        and (entry := orjson.loads(raw)).get("body") not in archived
        and "event" in entry
    }
    banks.forget(erased, store.candidates(erased))
    return head


def _archived(store: Told) -> set[str]:
    """Return digests of content that an archiving before `vedette.store.read_archived_memories`
    took.
    """
    return {
        digest
        for _, raw, _, _ in store.walk(("body.erased",))
        if (entry := orjson.loads(raw)).get("what") == ARCHIVING
        for digest in entry["erased"]
    }


def _elsewhere(one: Learned, archived: Collection[str]) -> bool:
    """Say whether a memory's content went because an archive has it: then it stays as it is."""
    return one.state == "erased" and one.digest in archived


@dataclass(slots=True)
class Curating:
    """The memories of one fleet, as people see and order them."""

    line: Line
    lessons: Lessons

    def unlearn(self) -> bool:
        """Have the banks forget every memory whose content is erased, and judges made anew.

        What a person proposed belongs to no event: it is found by its entry alone. Returns whether
        that is done; if not it is done again, and nobody is briefed before.
        """
        return self.line.recall.follow(self._unlearn, order=True)

    def _unlearn(self) -> None:
        store: Any = self.line.store
        archived = _archived(store)
        gone = [one for one in store.learned().values() if one.state == "erased"]
        self.line.recall.banks.settle(one for one in gone if not _elsewhere(one, archived))
        self._renew()

    def bring_up(self) -> None:
        """Bring banks that are behind, and judges, to what the ledger says."""
        feed(self.line.recall.banks, cast("Told", self.line.store))
        self._renew()

    def refresh(self) -> list[str]:
        """Have the judges made anew that were taught what is not so any more; return their agents.

        Their states are taken up again from the record, so nothing that they observed is lost.
        """
        moved: list[str] = []
        self.line.recall.follow(lambda: moved.extend(self._renew()), order=True)
        return moved

    def _renew(self) -> list[str]:
        moved = self.lessons.moved()
        for agent in moved:
            judges: Any = self.line.reasoners["judge"]
            judges.renew(agent)
        return moved

    # --- looking ----------------------------------------------------------------------------

    def listed(self, bank: str | None, state: str | None) -> dict[str, Any]:
        """Return candidates and memories, of one bank or state if these are given."""
        self._known_bank(bank)
        if state not in (None, "active", "candidate", "off", "rejected"):
            mend = "one of: active, candidate, off, rejected"
            raise BadCommand(f"there is no state {state!r}", mend=mend)
        items = self.line.recall.banks.listed(bank)
        return {"items": [one for one in items if state in (None, one["state"])]}

    def show(self, id: str) -> dict[str, Any]:
        """Return one memory, its story and readers; of one that waits, what these are taught."""
        found = self.find(id)
        name = f"{found['bank']}/{found['id']}"
        store: Any = self.line.store
        story = [
            {"seq": seq, "at": entry["at"], "kind": entry["kind"], "by": entry.get("actor"),
             "reason": None if data is None else orjson.loads(data).get("reason"),
             "erased": data is None}
            for seq, raw, data in store.told(TOLD)
            if _about(entry := orjson.loads(raw), name)
        ]  # fmt: skip
        readers = self.lessons.readers(found["bank"], found["scope"])
        waits = found["state"] == "candidate"
        taught = {agent: self._taught(agent) for agent in readers} if waits else {}
        return {"memory": found, "story": story, "readers": readers, "taught": taught}

    def _taught(self, agent: str) -> dict[str, Any]:
        """Return what an agent's judge is made of now, as data."""
        declared = self.line.agent(agent)
        lessons = self.lessons.now(agent, self.line.clock.now_us())
        told = [{name: getattr(one, name) for name in type(one).__slots__} for one in lessons]
        return {"folder": declared.folder, "charter": dict(declared.charter), "lessons": told}

    def find(self, id: str) -> dict[str, Any]:
        """Return a candidate or memory by its id, `bank/id` or a unique beginning of the id."""
        bank, _, rest = id.rpartition("/")
        rest = rest.partition("@")[0]
        known = self.line.recall.banks.listed(bank or None)
        named = [one for one in known if one["id"] == rest]
        named = named or [one for one in known if len(rest) > 3 and one["id"].startswith(rest)]
        if len(named) == 1:
            return named[0]
        if named:
            several = ", ".join(one["id"] for one in named[:6])
            raise BadCommand(f"{id!r} may be any of {several}", mend="give more of the id")
        raise NotFound(f"there is no memory {id!r}", mend="see `vedette memory list`")

    def _known_bank(self, bank: str | None) -> None:
        if bank is not None and not self.line.recall.banks.version(bank):
            banks = sorted({scope.bank for a in self.lessons.agents.values() for scope in a.scopes})
            raise NotFound(f"there is no bank {bank!r}", mend=f"one of: {', '.join(banks)}")

    # --- orders -----------------------------------------------------------------------------

    async def propose(
        self, who: Principal, reason: str, command: str | None, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Propose something as a person: a candidate like an agent's, for a person to promote."""
        bank, _, scope = str(given["into"]).partition("/")
        why = self.line.recall.banks.takes(bank, scope, None)
        if why:
            raise BadCommand(why, mend="name it as BANK/SCOPE, as `vedette memory list` has them")
        text, kind = str(given.get("text") or "").strip(), str(given.get("kind") or "fact")
        topics = tuple(str(topic) for topic in given.get("topics") or ())
        replaces = given.get("replaces")
        if replaces is not None:
            replaces = str(self.find(f"{bank}/{replaces}")["id"])
        now = self.line.clock.now_us()
        id = short_id("cnd", str(who), command or now)
        candidate = Candidate(
            bank, scope, text, topics, kind=cast("Kind", kind), label=given.get("label"),
            replaces=replaces, id=id,
        )  # fmt: skip
        why = self.line.recall.banks.unfit(candidate)
        if why:
            known = ", ".join(self.line.recall.banks.topics(bank)) or "none"
            raise BadCommand(why, mend=f"kinds: {', '.join(KINDS)}; topics: {known}")
        body = Body(canonical({**candidate.body(), "reason": reason}))
        fields = {"memory": bank, "what": id, "actor": str(who)}
        store: Any = self.line.store
        proposing = store.propose(Draft(PROPOSED, fields, body=body), command=command)
        seq = await self.line.recall.await_commit(proposing, order=True)
        self._settle(
            [Learned(bank, id, "candidate", candidate, seq=seq, by=str(who), proposed_us=now)]
        )
        return {"entry": seq, "candidate": id, "bank": bank, "scope": scope, "state": "candidate"}

    async def order(
        self, verb: str, who: Principal, reason: str, command: str | None, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Promote, reject, take back or bring back; in force for the next recall at the answer."""
        source = given.get("source")
        if (given.get("id") is None) == (source is None):
            raise BadCommand("say which", mend="give one id, or --from with what it came from")
        if source is not None:
            return await self._off_from(who, reason, command, str(source))
        seen = self.show(str(given["id"]))
        name = f"{seen['memory']['bank']}/{seen['memory']['id']}"
        moved = await self._move({_ORDERS[verb]: [name]}, who, reason, command)
        done = {"moved": moved, "judges": self.refresh()}
        # Whoever promotes is told of what, and of what it was promoted into.
        return {**done, "seen": seen} if verb == "memory_approve" else done

    async def _off_from(
        self, who: Principal, reason: str, command: str | None, source: str
    ) -> dict[str, Any]:
        """Take back everything that was learned from a source; what only waits is rejected."""
        from vedette.memory.lineage import learned_from  # not loaded to start a fleet

        store: Any = self.line.store
        found = learned_from(store, self.line.fleet.agents, source)
        learned = [one for one in found if one.state in ("active", "candidate")]
        if not learned:
            raise AlreadyDone(f"nothing that was learned from {source} is recalled or waits")
        if len(learned) > MOST_AT_ONCE:
            raise BadCommand(
                f"{len(learned)} memories at once are too many", mend="by event or run"
            )
        moves = {
            kind: [one.name for one in learned if one.state == state]
            for kind, state in (("memory.retired", "active"), ("memory.rejected", "candidate"))
        }
        moved = await self._move(moves, who, reason, command)
        return {"moved": moved, "judges": self.refresh()}

    async def _move(
        self, moves: Mapping[str, Sequence[str]], who: Principal, reason: str, command: str | None
    ) -> list[dict[str, Any]]:
        """Give orders by kind of entry, all in one commit: an order stands whole or not at all."""
        body = Body(canonical({"reason": reason}))
        drafts = [(Draft(kind, {"actor": str(who)}, body=body), moves[kind]) for kind in moves]
        curating = self.line.store.curate(*drafts, command=command)
        moved = await self.line.recall.await_commit(curating, order=True)
        self._settle(moved)
        return [{"memory": one.name, "state": one.state, "entry": one.last} for one in moved]

    def _settle(self, moved: Sequence[Learned]) -> None:
        """Bring the banks to where memories stand by now that an order has moved.

        Another worker's later order, or erasure, may have been heard before this goes on, and is
        not undone: only the store's word counts, also where it cannot be read for a while.
        """
        store: Any = self.line.store
        banks = self.line.recall.banks

        def settle() -> None:
            stands = store.learned()
            banks.settle(stands.get(one.name, one) for one in moved)

        self.line.recall.follow(settle, order=True)


def _about(entry: Mapping[str, Any], name: str) -> bool:
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


async def carry_out(
    curating: Curating | None,
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
        return curating.listed(args.get("bank"), args.get("state"))
    if verb == "memory_show":
        return curating.show(args["id"])
    require(who, who.roles, verb)
    if who.kind != "person":
        raise BadCommand(f"{who} may not give commands", mend="a person must")
    if not reason.strip():
        raise BadCommand("a reason is missing", mend="add --reason 'why'")
    if verb == "memory_propose":
        return await curating.propose(who, reason, command, args)
    return await curating.order(verb, who, reason, command, args)
