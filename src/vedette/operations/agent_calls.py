"""Calls of agents from outside: what their clients may call, call, and learn of it.

A client reasons for its agent elsewhere and calls the agent's tools over HTTP or MCP. A call is an
event of the agent: the line decides it, holds it, performs it once and records it, as any other.
Nothing here performs or permits anything.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
from msgspec.structs import replace

from vedette.config.agent_folder import tool_summaries
from vedette.domain.action import bind_proposal
from vedette.domain.agent import Agent
from vedette.domain.argument_schema import offer_references
from vedette.domain.base.errors import BadCommand, BadEvent, BadFleet, NotFound, Unavailable
from vedette.domain.budget import MINUTE_US
from vedette.domain.client_call import (
    ClientCall,
    call_proposal,
    client_confidence,
    count_generations,
)
from vedette.domain.decision import DecisionContext
from vedette.domain.event import CALL_TYPE, Event
from vedette.domain.readers import argument_readers, meet_labels, unpack_row
from vedette.domain.row_proof import parse_record
from vedette.domain.run import ActionRow, Run, event_run_id
from vedette.domain.tool import Tool
from vedette.engine.ingest import EventIntake
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services
from vedette.engine.tool_calls import answer_data
from vedette.operations.permissions import PermissionQuery, granted_tools

# How long a client waits for its call at most, in seconds, and for the outcome of one.
CALL_WAIT_S, MAX_WAIT_S = 4.0, 30.0
# A call that is not over: another look may find it so.
OPEN = frozenset({"held", "pending"})
# When to look again, in seconds: a person takes longer than the line.
_AFTER_S: Mapping[str, int] = {"held": 30, "pending": 2}
# A store that commits all the time is not read at each commit: how long after one, in seconds.
_READ_PAUSES_S: Mapping[str, float] = {"held": 0.25, "pending": 0.01}
_KIND_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "string": {"type": "string"}, "integer": {"type": "integer"}, "boolean": {"type": "boolean"},
    "strings": {"type": "array", "items": {"type": "string"}}, "list": {"type": "array"},
    "object": {"type": "object"},
}  # fmt: skip
_USAGE = (
    "Calling it proposes it; policy decides whether it happens, and a person may have to approve. "
    "A value may be given as a text that is a reference: ref:/charter/… or ref:/registry/… stands "
    "for the value there."
)

Outcome = dict[str, Any]


class AgentCalls:
    """The calls of a fleet's agents from outside. Belongs to the event loop of the line."""

    def __init__(
        self,
        services: Services,
        intake: EventIntake,
        *,
        window_us: int,
        per_minute: int,
        most_open: int,
    ) -> None:
        """`per_minute` bounds an agent's new calls, `most_open` those that are not over."""
        self._services = services
        self._intake = intake
        self._window_us = window_us
        self._per_minute, self._most_open = per_minute, most_open
        # By agent: when its last new calls came, of the last minute.
        self._recent: defaultdict[str, deque[int]] = defaultdict(deque)
        self._committed = asyncio.Event()
        # What those who wait were told since the last commit, by agent and call.
        self._told: dict[tuple[str, str], Outcome] = {}
        self._granted: dict[str, tuple[tuple[str, int], list[dict[str, Any]]]] = {}
        services.store.subscribe(self._wake)

    @property
    def fleet(self) -> str:
        """Return the fleet's name."""
        return self._services.fleet.name

    def agent(self, name: str) -> Agent | None:
        """Return an agent if its client reasons for it now."""
        found = self._services.fleet.agents.get(name)
        return found if found is not None and found.reasoner == "client" else None

    # --- what it may call -------------------------------------------------------------------

    def tools(self, agent: Agent) -> list[dict[str, Any]]:
        """Return the tools that the live policy grants an agent, as the agents' API tells them."""
        services = self._services
        state = (agent.release, services.gateway.policy_rev)
        known = self._granted.get(agent.name)
        if known is None or known[0] != state:
            _, digest = services.store.policy.live_revision()
            query = PermissionQuery(
                agent, services.gateway.engine, services.gateway.policy_rev,
                services.store.policy.bundle_files(digest) or {}, {}, services.clock.now_us(),
                lambda _: lambda at: None,
            )  # fmt: skip
            summaries, _ = tool_summaries(Path(agent.folder))
            known = self._granted[agent.name] = (
                state,
                [
                    {
                        "name": tool.name,
                        "description": _describe(
                            tool, tool.description or summaries.get(tool.function, "")
                        ),
                        "input_schema": argument_schema(tool),
                        "resource": evaluated_resource(agent, tool),
                    }
                    for tool in granted_tools(query)
                ],
            )
        return known[1]

    # --- calling ----------------------------------------------------------------------------

    async def call(self, agent: Agent, call: ClientCall, wait_s: float = CALL_WAIT_S) -> Outcome:
        """Make a call durable and return what came of it, or that it is held or not over.

        A call that is known gives the outcome of the first. Whoever stops waiting stops nothing.
        Raises BadCommand for a key that another call has, or one whose content was erased (nobody
        can say whether it is the same call), BadEvent for a call that is too large, BadFleet for an
        agent that it does not wake,
        Temporary if nothing is known to be durable: the same may be called again.
        """
        now_us = self._services.clock.now_us()
        event = self._find_event(agent, call, now_us)
        run = event_run_id(event.key, agent.name)
        if self._services.store.runs.run(run) is None:
            self._require_room(agent)
        deadline = asyncio.get_running_loop().time() + wait_s  # of all that is waited for here
        try:
            async with asyncio.timeout_at(deadline):
                receipt = await self._intake.accept_own(event)
        except TimeoutError:
            raise Unavailable("the line takes no more now", mend="send the same later") from None
        if receipt.status == "refused":
            raise BadEvent(receipt.error or "it is no event")
        if receipt.status == "accepted" and not receipt.runs:
            raise BadFleet(
                f"a call of {agent.name} wakes nobody", where=f"{agent.name}/agent.yaml: triggers",
                mend=f"write on: {CALL_TYPE} and nothing beside it", code="wakes-nobody",
            )  # fmt: skip
        if receipt.status == "duplicate" and call.key is not None:
            first = self._services.store.runs.event(event.key)
            if first is None:
                what = f"what the key {call.key!r} stood for was erased; it was the call {run}"
                mend = "ask for its outcome; give what is to be done anew a key of its own"
                raise BadCommand(what, mend=mend, code="key-erased")
            if not call.is_call_of(first):
                what = f"the key {call.key!r} is that of another call"
                raise BadCommand(what, mend="give each call a key of its own", code="key-reused")
        return await self._follow(agent, run, deadline, {"pending"})

    def _require_room(self, agent: Agent) -> None:
        """Count a new call of an agent. Raises Unavailable if it has made too many.

        The record is for ever and people's attention is not: a client may fill neither.
        """
        recent, now_us = self._recent[agent.name], self._services.clock.monotonic_us()
        while recent and recent[0] <= now_us - MINUTE_US:
            recent.popleft()
        if len(recent) >= self._per_minute:
            what = f"you made {self._per_minute} calls in the last minute"
            raise Unavailable(what, mend="send the same later", code="too-many")
        read = self._services.store.runs.runs_page
        still_open = sum(
            len(read(agent=agent.name, state=state, before=None, limit=self._most_open))
            for state in ("waiting", "ready")
        )
        if still_open >= self._most_open:
            what = f"{self._most_open} calls of yours are not over"
            raise Unavailable(what, mend="wait until some are", code="too-many")
        recent.append(now_us)

    def _find_event(self, agent: Agent, call: ClientCall, now_us: int) -> Event:
        """Return the event of a call: without a key of the newest like it, or of one after that.

        Two that find the same newest one too old make one event: its id is of no clock, and the
        store takes an id once.
        """
        fleet, runs = self._services.fleet.name, self._services.store.runs

        def find_run(generation: int) -> Run | None:
            event = call.event(fleet, agent, now_us, generation)
            return runs.run(event_run_id(event.key, agent.name))

        if call.key is not None:
            return call.event(fleet, agent, now_us)
        known = count_generations(lambda generation: find_run(generation) is not None)
        newest = find_run(known - 1) if known else None
        if newest is not None and self._accepted_us(newest) > now_us - self._window_us:
            known -= 1
        return call.event(fleet, agent, now_us, known)

    def _accepted_us(self, run: Run) -> int:
        """Return when a run's event was accepted, by the ledger: that stays when it is erased."""
        entry = self._services.store.ledger.entry(run.position)
        return 0 if entry is None else int(orjson.loads(entry[1])["at"])

    async def outcome(self, agent: Agent, call: str, wait_s: float = 0.0) -> Outcome:
        """Return what came of a call, after waiting as long as it is not over.

        Raises NotFound for one that is not this agent's, as for one that is nobody's.
        """
        # In this order, so that NaN is no wait: an event loop that sleeps for NaN loses its timers.
        wait_s = min(max(0.0, wait_s), MAX_WAIT_S)
        return await self._follow(agent, call, asyncio.get_running_loop().time() + wait_s, OPEN)

    async def _follow(
        self, agent: Agent, call: str, deadline: float, until: Collection[str]
    ) -> Outcome:
        """Read what came of a call at each commit, for as long as its status is one of `until`.

        `deadline` is in the loop's time.
        """
        committed = self._committed
        found = self._read_outcome(agent, call)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while found["status"] in until:
                    await committed.wait()
                    await asyncio.sleep(_READ_PAUSES_S.get(found["status"], 0.0))
                    committed, place = self._committed, (agent.name, call)
                    if place not in self._told:
                        self._told[place] = self._read_outcome(agent, call)
                    found = self._told[place]
        return found

    def _wake(self) -> None:
        committed, self._committed = self._committed, asyncio.Event()
        self._told.clear()
        committed.set()

    # --- what came of it --------------------------------------------------------------------

    def _read_outcome(self, agent: Agent, call: str) -> Outcome:
        store = self._services.store
        run = store.runs.run(call)
        if run is None or run.agent != agent.name:
            raise NotFound(f"you have made no call {call[:64]!r}", mend="give `call` of an answer")
        rows = store.runs.actions(run.id)
        found = self._describe_row(agent, run, rows[0]) if rows else self._describe_run(run)
        after = _AFTER_S.get(found["status"])
        return {**found, "call": run.id, **({} if after is None else {"after_s": after})}

    def _describe_run(self, run: Run) -> Outcome:
        """Say what came of a call of which there is no action: none yet, or none at all."""
        if run.state == "dead":
            return {"status": "failed", "reason": "dead-letter"}
        if run.turn:
            for _, raw, body in self._services.store.ledger.entries("run", run.id):
                entry = orjson.loads(raw)
                if entry["kind"] == "action.refused":
                    why = orjson.loads(body)["why"] if body else "erased"
                    return {"status": "refused", "reason": entry.get("what"), "why": why}
            if run.state == "done":
                return {"status": "refused", "reason": "archived"}
        if self._services.stops.is_agent_stopped(run.agent):
            return {"status": "held", "waits": "resume"}
        return {"status": "pending"}

    def _describe_row(self, agent: Agent, run: Run, row: ActionRow) -> Outcome:
        """Say what came of a call's action: enough to go on, too little to probe policy by."""
        if row.effect == "done":
            # Of what was erased nobody can say any more who might have read it.
            if not row.record or self._is_labelled(agent, run, row):
                return {"status": "done", "withheld": True}
            return {"status": "done", "data": dict(answer_data(row))}
        if row.effect == "failed" or row.decided == "deny" or run.state == "dead":
            if self._may_have_happened(row):
                return {"status": "unknown"}
            if row.effect == "failed":
                return {"status": "failed", "reason": "tool"}
            if row.rule == "run.dead" or run.state == "dead":
                return {"status": "failed", "reason": "dead-letter"}
            return {"status": "denied", "reason": _coarse_reason(row.rule)}
        if row.decided == "hold" or row.effect == "unknown":
            return {"status": "held", "waits": row.waits or "person"}
        return {"status": "pending"}

    def _may_have_happened(self, row: ActionRow) -> bool:
        """Say whether of a call that is over nobody knows if it happened.

        One that failed without an answer, or without one that is known by now, may have. Of what
        was denied after a try, or is a dead letter, the ledger says it; not each row does.
        """
        if row.effect == "failed":
            return not row.answer or orjson.loads(row.answer)["state"] == "unknown"
        kinds = [
            orjson.loads(raw)["kind"]
            for _, raw, _ in self._services.store.ledger.entries("action", row.id)
        ]
        effects = [kind for kind in kinds if kind.startswith("effect.")]
        # Without any entry of it the ledger was archived: nobody looks there for a client.
        return not kinds or (bool(effects) and effects[-1] in ("effect.unknown", "effect.started"))

    def _is_labelled(self, agent: Agent, run: Run, row: ActionRow) -> bool:
        """Say whether what a tool answered may not be told to everybody."""
        tool = agent.tools.get(row.tool)
        if tool is None:
            return True  # of which nobody can say by now
        labels = [tool.readers, *argument_readers(parse_record(row.record)).values()]
        if tool.settles == "transactional" and agent.collection is not None:
            kept = self._services.store.runs.row(agent.collection, run.key)
            labels.append(unpack_row(kept or {})[1])
        return meet_labels(*labels) is not None

    # --- asking only ------------------------------------------------------------------------

    def evaluate(self, agent: Agent, call: ClientCall) -> dict[str, Any]:
        """Return what policy would decide of a call now; nothing is made, booked or counted.

        Raises BadProposal for what the line would refuse before it decides.
        """
        services = self._services
        now_us = services.clock.now_us()
        event = call.event(services.fleet.name, agent, now_us)
        run = Run(event_run_id(event.key, agent.name), event.key, agent.name, event.id, 0)
        # Of the rows of its collection a call that there is not has none.
        context = RunContext(services, run, 0, replace(agent, collection=None), event, [])
        action = bind_proposal(
            call_proposal(event), agent.tools, context.roots(), run=run.id, turn=1, ordinal=0,
            confidence=client_confidence(agent.name, agent.charter),
        )  # fmt: skip
        stopped = services.stops.is_agent_stopped(agent.name)
        stopped |= services.stops.is_tool_stopped(agent.name, action.tool.name)
        found = services.gateway.decide(
            action, DecisionContext(agent, event, 1, now_us, stopped=stopped)
        ).decision
        waits = {} if found.wait is None else {"waits": found.wait}
        return {"outcome": found.outcome, "reason": _coarse_reason(found.rule), **waits}


def _coarse_reason(rule: str) -> str:
    """Return what a client is told of a rule: its package; of a hold's end, which it was."""
    return rule if rule.startswith("hold.") else rule.partition(".")[0]


# --- a tool as a client sees it -----------------------------------------------------------------


def argument_schema(tool: Tool) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of what a client gives a tool: its own, if it has one.

    Wherever a value may be, a reference may be.
    """
    if tool.schema is not None:
        return offer_references(tool.schema)
    return {
        "type": "object",
        "properties": {one.name: dict(_KIND_SCHEMAS[one.kind]) for one in tool.parameters},
        "required": [one.name for one in tool.parameters if not one.is_optional],
        "additionalProperties": False,
    }


def evaluated_resource(agent: Agent, tool: Tool) -> dict[str, str]:
    """Return a tool's resource as an evaluation names it (AuthZEN): type and id."""
    return {"type": tool.resource, "id": tool.target or agent.collection or tool.resource}


def _describe(tool: Tool, summary: str) -> str:
    sentences = [summary or f"{tool.verb} ({tool.resource})."]
    sinks = ", ".join(pointer.removeprefix("/") for pointer in tool.sinks)
    if sinks:
        sentences.append(f"What it acts on is decided by: {sinks}.")
    if tool.high_impact:
        sentences.append("It has high impact and waits for a person.")
    return " ".join([*sentences, _USAGE])
