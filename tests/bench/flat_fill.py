"""Fills a store with what the whole line wrote for one event, again and again under other names.

One event is put through the line while its steps are noted: that is the pattern. Its steps are
then handed to the store's own `accept` and `send` for as many events as asked, with the ids of
each. So entries, bodies, indexes, read tables and the proof tree are the real ones in kind, size
and order; what is left out is judging, deciding and calling. Digests of arguments and the spending
of budgets are not made anew.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace
from tests.bench.bench_fleet import AGENT
from tests.bench.flat_fleet import SOURCE, TYPE, asking, keeper
from tests.bench.stencil import Stencil

from vedette.domain.action import action_id
from vedette.domain.effect import RowWrite
from vedette.domain.entry import Body, Draft
from vedette.domain.event import ENVELOPE, Event, subject_of
from vedette.domain.ports.run_store import Arrival
from vedette.domain.run import ActionRow, CommitResult, CommitStatus, Run, Step
from vedette.store.postgres import PostgresStore
from vedette.store.sqlite import SqliteStore
from vedette.testing.harness import FleetHarness

BATCH = 512
KEYS = 2000
CHECKPOINT_EVERY = 256
FAR_US = 2**52
SUBJECT = "thepatternkey"
_KEPT = "bench_{}"


@dataclass(slots=True)
class Pattern:
    """What the line wrote for one event: its steps, and which seqs each of them was given."""

    event: Event
    run: Run
    position: int
    steps: list[Step]
    firsts: list[int]
    action: str
    turn: int
    ordinal: int


async def note(fleet: FleetHarness, events: Sequence[Event]) -> Pattern:
    """Put events through the line and return the pattern of the last."""
    *before, last = events
    store: Any = fleet.app.store
    for event in before:
        await fleet.app.intake.accept([event])
    await fleet.wait_until_idle()
    steps: list[Step] = []
    answers: list[asyncio.Future[CommitResult]] = []
    onward = store.steps.send

    def send(step: Step) -> asyncio.Future[CommitResult]:
        # As it is now: the store writes numbers into the rows of a step.
        steps.append(replace(step, actions=[replace(row) for row in step.actions]))
        answers.append(onward(step))
        return answers[-1]

    store.steps.send = send
    try:
        await fleet.app.intake.accept([last])
        await fleet.wait_until_idle()
    finally:
        del store.steps.send
    (run,) = fleet.runs(last)
    results = await asyncio.gather(*answers)
    firsts = [
        answer.last - len(step.drafts) + 1 for answer, step in zip(results, steps, strict=True)
    ]
    (action,) = fleet.actions(last)
    assert run.state in ("done", "waiting"), run
    ids = action.id, action.turn, action.ordinal
    return Pattern(last, run, run.position, steps, firsts, *ids)


class Stencils:
    """All texts of one pattern, each looked through once."""

    def __init__(self, of: Pattern) -> None:
        half = of.event.key[4:20]
        assert of.run.id[4:20] == of.action[4:20] == half
        self._words = (
            half, of.event.key[20:], of.run.id[20:], of.action[20:], of.event.id, SUBJECT,
            of.run.agent,
        )  # fmt: skip
        self._known: dict[str, Stencil] = {}
        self.payload = of.event.to_body()

    def text(self, value: str, words: Sequence[str]) -> str:
        """Return a text of the pattern with these words instead of its own."""
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = Stencil(value, self._words)
        return known.cut(words)

    def data(self, value: bytes, words: Sequence[str]) -> bytes:
        """Do as `text` does."""
        return self.text(value.decode(), words).encode()


class Copy:
    """One event's steps after a pattern."""

    def __init__(
        self,
        pattern: Pattern,
        cut: Stencils,
        store: PostgresStore | SqliteStore,
        agent: str,
        name: str,
        key: str,
    ) -> None:
        self._of, self._cut, self._store = pattern, cut, store
        self._agent, self._key = agent, key
        kind = pattern.event.type.replace(pattern.run.agent, agent)
        self.event = replace(pattern.event, id=name, subject=key, type=kind)
        self._words = ("", "", "", "", name, key, agent)
        self._seqs: dict[int, int] = {}
        self._rows: dict[str, ActionRow] = {}
        self.run: Run | None = None

    def arrival(self) -> Arrival:
        """Return the event on its way in."""
        payload = self._cut.data(self._cut.payload, self._words)
        return Arrival(self.event, payload, ((self._agent, self._key),), subject_of(self.event))

    def accepted(self, run: Run) -> None:
        """Learn the run, which says what every id is."""
        self.run = run
        self._seqs[self._of.position] = run.position
        action = action_id(run.id, self._of.turn, self._of.ordinal)
        ids = (run.event[4:20], run.event[20:], run.id[20:], action[20:])
        self._words = (*ids, *self._words[4:])

    def _text(self, value: Any) -> Any:
        return self._cut.text(value, self._words) if isinstance(value, str) else value

    def _data(self, value: bytes) -> bytes:
        return self._cut.data(value, self._words)

    def step(self, number: int, checkpoint: bytes | None) -> Step:
        """Return the step of a number; `committed` has been told of those before it."""
        of, run = self._of.steps[number], self.run
        assert run is not None
        store = self._store
        return replace(
            of,
            drafts=[self._draft(draft) for draft in of.drafts],
            run=run.id, position=run.position, agent=self._agent, epoch=store.cluster.epoch,
            policy_rev=None if of.policy_rev is None else store.cluster.policy_rev,
            stop_epoch=None if of.stop_epoch is None else store.cluster.stop_epoch,
            wake_us=FAR_US if of.wake_us else 0,
            order=None if of.order is None else (self._key, -1, run.position),
            actions=[self._row(row) for row in of.actions],
            rows=[RowWrite(row.collection, self._text(row.key), row.row) for row in of.rows],
            spend={}, limits=(), refunds=[],
            checkpoint=None if of.order is None or checkpoint is None
            else (self._key, run.position, checkpoint),
        )  # fmt: skip

    def committed(self, number: int, answer: CommitResult) -> None:
        """Learn where a step's entries are."""
        assert answer.status is CommitStatus.COMMITTED, answer
        drafts = self._of.steps[number].drafts
        for offset in range(len(drafts)):
            self._seqs[self._of.firsts[number] + offset] = answer.last - len(drafts) + 1 + offset

    def _draft(self, draft: Draft) -> Draft:
        body = draft.body
        if body is not None:
            body = Body(self._data(body.data), self._text(body.subject))
        fields = {name: self._text(value) for name, value in draft.fields.items()}
        cause = None if draft.cause is None else self._seqs[draft.cause]
        return Draft(draft.kind, fields, cause, draft.cause_offset, body)

    def _row(self, row: ActionRow) -> ActionRow:
        known = self._rows.get(row.id)
        made = self._rows[row.id] = replace(
            row, id=self._text(row.id), run=self._text(row.run), agent=self._agent,
            record=self._data(row.record), until_us=FAR_US if row.until_us else 0,
            answer=None if row.answer is None else self._data(row.answer),
            seq=0 if known is None else known.seq, last=0 if known is None else known.last,
        )  # fmt: skip
        return made


class Filler:
    """Fills the store of an opened fleet whose dispatcher does nothing any more."""

    def __init__(
        self, store: PostgresStore | SqliteStore, agents: int, done: Pattern, asks: Pattern
    ) -> None:
        self._store, self._agents, self._done, self._asks = store, agents, done, asks

    @classmethod
    async def of(cls, fleet: FleetHarness, agents: int) -> Filler:
        """Note both patterns through the line, then let it handle nothing more."""
        # Other names at each opening: a repeat of an event does nothing.
        epoch = fleet.app.store.cluster.epoch
        warm = [_reading(f"warm-{epoch}-{number}", SUBJECT) for number in range(20)]
        done = await note(fleet, [*warm, _reading(f"thepatternreading-{epoch}-", SUBJECT)])
        asks = await note(fleet, [asking(keeper(0), f"thepatternask-{epoch}-", SUBJECT)])
        await fleet.app.dispatcher.close()
        return cls(fleet.app.store, agents, done, asks)

    def filled(self, what: str) -> int:
        """Return how many events of a kind ("done", "waiting") were filled in."""
        return int(self._store.meta(_KEPT.format(what)) or 0)

    async def waiting(self, until: int) -> None:
        """Fill in events of the crowd until so many runs wait for a person."""
        crowd = self._agents - 1
        await self._fill(
            "waiting", self._asks, until,
            lambda n: (keeper(n % crowd), f"ask-{n}", f"desk-{n % KEYS}"),
        )  # fmt: skip

    async def entries(self, until: int) -> None:
        """Fill in events that are done until the ledger has so many entries."""
        each = 1 + sum(len(step.drafts) for step in self._done.steps)
        while (missing := until - self._store.ledger.last_seq()) > 0:
            events = self.filled("done") + max(1, min(20 * BATCH, missing // each))
            await self._fill("done", self._done, events,
                             lambda n: (AGENT, f"fill-{n}", f"gauge-{n % KEYS}"))  # fmt: skip

    async def _fill(self, what: str, pattern: Pattern, until: int, named: Any) -> None:
        numbers, cut = iter(range(self.filled(what), until)), Stencils(pattern)
        while batch := list(itertools.islice(numbers, BATCH)):
            copies = [Copy(pattern, cut, self._store, *named(number)) for number in batch]
            answers = await self._store.steps.accept([copy.arrival() for copy in copies], None)
            new = []
            for number, copy, answer in zip(batch, copies, answers, strict=True):
                # Killed between a batch and its mark: what was accepted then is there.
                if answer.runs:
                    copy.accepted(answer.runs[0])
                    new.append((copy, _state(number)))
            for number in range(len(pattern.steps)):
                sent = [self._store.steps.send(copy.step(number, state)) for copy, state in new]
                for (copy, _), committed in zip(new, await asyncio.gather(*sent), strict=True):
                    copy.committed(number, committed)
            await self._store.commands.set_meta(_KEPT.format(what), str(batch[-1] + 1))


def _state(number: int) -> bytes | None:
    """Return the judge's state if a checkpoint is due with an event of this number."""
    seen = number // KEYS + 1
    return json.dumps([seen, 20.0, 4.0 * seen]).encode() if seen % CHECKPOINT_EVERY == 0 else None


def _reading(name: str, subject: str) -> Event:
    data = {"value": 20.1, "note": "x" * 960}
    return Event(SOURCE, name, TYPE, subject, None, data, vouched=ENVELOPE)
