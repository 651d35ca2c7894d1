"""Commands: what people may do, in one place for the CLI, the API and the console.

Every command names its principal and a reason, both recorded; a repeated `command_id` is answered
and not done again. A command is refused with BadCommand or Forbidden and then changed nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import AlreadyDone, BadCommand, Forbidden, NotFound, StateNotKept
from vedette.domain.base.fleet_clock import describe_jump
from vedette.domain.budget import (
    ACTIONS,
    DAY_US,
    FLEET,
    MODEL_UNITS,
    UNITS,
    Budget,
    BudgetCap,
    BudgetRaise,
)
from vedette.domain.bundle import Bundle
from vedette.domain.entry import Body, Draft
from vedette.domain.erasure import ErasureTarget
from vedette.domain.event import PRINCIPAL, REASON, Event
from vedette.domain.hold import HoldState, transition
from vedette.domain.identity import Principal
from vedette.domain.ports.command_store import DeadLetterResult
from vedette.domain.ports.sources import Intake
from vedette.domain.roles import require_role
from vedette.domain.stop import scope_of
from vedette.engine.action_holds import HOLD_EXPIRY_US
from vedette.engine.kill_switch import set_stop
from vedette.engine.services import Services
from vedette.operations.curation import Curation
from vedette.operations.maintenance import Maintenance, keep_states
from vedette.policy.folder import remember_folder
from vedette.policy.rollout import PublishRequest, PublishResult, Rollout

MAX_RAISE_US = 31 * DAY_US
_COMMIT = re.compile(r"[0-9A-Za-z][0-9A-Za-z._/+-]{0,99}")
_MAX_STOP_US = 3653 * DAY_US


class DeadLetterAction(Protocol):
    """What an order has the store do to dead letters: take them up again, or close them."""

    async def __call__(
        self, runs: Sequence[str], draft: Draft, *, command: str | None = None
    ) -> DeadLetterResult: ...


class ChangedAgent(Struct):
    """An agent to order a release of: its folder is not what runs. `digest` is its digest."""

    agent: str
    release: str
    digest: str

    def to_json(self) -> dict[str, str]:
        """Return it as `--json` prints it."""
        return {"agent": self.agent, "release": self.release, "now": self.digest}


class AgentReleaser(Protocol):
    """What carries out the order of a release (see `vedette.app.releases`)."""

    async def release(
        self, order: Order, name: str, *, move_tasks: bool = False
    ) -> dict[str, Any]: ...

    def changed_agents(self) -> Sequence[ChangedAgent]: ...


class CanaryKeeper(Protocol):
    """What carries out the orders of canaries (see `vedette.app.canaries`)."""

    async def start(
        self,
        order: Order,
        name: str,
        share_milli: int,
        for_us: int = ...,
        min_runs: int = ...,
    ) -> dict[str, Any]: ...

    async def end(self, order: Order, name: str) -> dict[str, Any]: ...

    def to_json(self) -> list[dict[str, Any]]: ...


class Order(Struct, frozen=True):
    """An order: who wants something, why, under which id (a repeat of the id is the same order)."""

    principal: Principal
    reason: str
    command_id: str | None = None

    def body(self, **more: Any) -> Body:
        """Return the body of the entry that records the order: what a person wrote."""
        return Body(canonical_json({"reason": self.reason, **more}))


class Commands(Struct):
    """The commands that people order of a fleet. `read_bundle` reads a policy folder."""

    services: Services
    intake: Intake
    rollout: Rollout
    read_bundle: Callable[[Path], Bundle]
    maintenance: Maintenance | None = None
    policies: Path | None = None
    folder_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    clock_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    curation: Curation | None = None
    releases: AgentReleaser | None = None
    canaries: CanaryKeeper | None = None

    # --- events -----------------------------------------------------------------------------

    async def send(self, order: Order, events: Sequence[Event]) -> dict[str, Any]:
        """Hand events to the fleet as a person's; their envelope is vouched for by the person.

        Who sent them and why becomes part of each, whatever it said of that itself.
        """
        self._authorize(order, "send")
        who = {PRINCIPAL: str(order.principal), REASON: order.reason}
        receipts = await self.intake.accept(
            [
                replace(
                    event,
                    extensions={**event.extensions, **who},
                    vouched=event.vouched | who.keys(),
                )
                for event in events
            ]
        )
        return {
            "receipts": [
                {"status": r.status, "event": r.event, "runs": list(r.runs), "error": r.error}
                for r in receipts
            ]
        }

    def would_wake(self, event: Event) -> dict[str, Any]:
        """Say who would wake, and why, without accepting anything."""
        return {
            "event": event.key,
            "agents": [
                {"agent": match.agent, "wakes": match.wakes, "why": match.why}
                for match in self.services.fleet.match(event)
            ],
        }

    # --- holds ------------------------------------------------------------------------------

    async def approve(self, order: Order, hold: str, digest: str) -> dict[str, Any]:
        """Approve exactly the action that is held. It is decided again before it is done.

        `digest` is the beginning, at least 8 digits, of the `shown_digest` that came with what the
        person was shown (`vedette.ledger.history.lists.hold_item`). Raises DisplayMismatch for
        any other.
        """
        return await self._answer(order, hold, "approved", digest)

    async def deny(self, order: Order, hold: str, digest: str | None = None) -> dict[str, Any]:
        """Deny what is held, for good; with `digest` only what was shown."""
        return await self._answer(order, hold, "denied", digest)

    async def _answer(
        self, order: Order, hold: str, to: HoldState, digest: str | None
    ) -> dict[str, Any]:
        from vedette.ledger.history.lists import hold_item
        from vedette.ledger.history.review import refuse_erased, refuse_unseen

        self._authorize(order, "approve" if to == "approved" else "deny")
        action = f"act_{hold.removeprefix('hold_').removeprefix('act_')}"
        held = self.services.store.runs.action(action)
        if held is None or held.hold is None:
            raise NotFound(f"there is no hold {hold!r}", mend="see `vedette hold`")
        until, now = 0, self.services.clock.now_us()
        ends_us = self.services.clock.expiry_us()
        if order.command_id is not None and self.services.store.is_command_done(order.command_id):
            # Before anything is looked at: it is another by now because of this very order.
            raise AlreadyDone(f"command {order.command_id} was carried out before")
        transition(held.hold, to)
        item = hold_item(self.services.store, held, now)
        # The commit compares it again: what was shown may become another until then.
        if digest is not None:
            refuse_unseen(item, digest)
        if to == "approved":
            refuse_erased(item)
            waits_for_approval = held.waits == "approval"
            if waits_for_approval and held.until_us <= ends_us:
                raise BadCommand(f"hold {hold} has expired", mend="see `vedette hold`")
            # A hold that waits for time or a resume ends then; the approval outlasts that. So does
            # one of a hold whose end nobody can tell has come.
            until = (
                held.until_us
                if waits_for_approval and held.until_us > now
                else now + HOLD_EXPIRY_US
            )
        draft = Draft(
            f"hold.{to}",
            {
                "agent": held.agent,
                "action": held.id,
                "action_digest": held.digest,
                "shown_digest": item["shown_digest"] if digest is not None else None,
                "tool": held.tool,
                "actor": str(order.principal),
                "until": until or None,
            },
            body=order.body(display=item["about"].get("display")),
        )
        row = await self.services.store.commands.transition_hold(
            held.id, to, draft, approver=str(order.principal), until_us=until,
            command=order.command_id,
        )  # fmt: skip
        return {"hold": hold, "state": row.hold, "run": row.run, "tool": row.tool}

    # --- dead letters -----------------------------------------------------------------------

    async def redrive(self, order: Order, runs: Sequence[str]) -> dict[str, Any]:
        """Have dead letters handled again, all in one commit; what may have happened is asked."""
        return await self._end_dead_letters(
            order, "run.redriven", runs, self.services.store.commands.redrive
        )

    async def drop(self, order: Order, runs: Sequence[str]) -> dict[str, Any]:
        """Close dead letters for good; nothing of them is repeated."""
        return await self._end_dead_letters(
            order, "run.dropped", runs, self.services.store.commands.drop
        )

    async def _end_dead_letters(
        self, order: Order, kind: str, runs: Sequence[str], end_runs: DeadLetterAction
    ) -> dict[str, Any]:
        from vedette.ledger.history.dead_letters import MAX_BATCH

        self._authorize(order, "redrive" if kind == "run.redriven" else "drop")
        if not all(isinstance(run, str) for run in runs):
            raise BadCommand("runs are named by their ids", mend="see `vedette dead`")
        if not 0 < len(runs) <= MAX_BATCH:
            raise BadCommand(
                f"a command names 1 to {MAX_BATCH} runs", mend="repeat it for the rest"
            )
        draft = Draft(kind, {"actor": str(order.principal)}, body=order.body())
        ended = await end_runs(list(dict.fromkeys(runs)), draft, command=order.command_id)
        refused = [{"run": run, "why": why} for run, why in ended.refusals]
        return {"moved": list(ended.runs), "refused": refused}

    # --- stops ------------------------------------------------------------------------------

    async def stop(
        self,
        order: Order,
        *,
        agent: str | None = None,
        tool: str | None = None,
        all: bool = False,
        for_us: int | None = None,
    ) -> dict[str, Any]:
        """Stop an agent, a tool or everything; in force when this returns, and after restarts.

        If the store cannot commit it holds in this process at once: `recorded` is false then, and
        `why` says what is in the way. It is recorded as soon as the store takes writes again.

        With `for_us` it lifts itself after so many microseconds. A stop that lasts longer takes
        the place of one that lifts itself; one that would end sooner is refused.
        """
        if for_us is not None and not 0 < for_us <= _MAX_STOP_US:
            raise BadCommand("a stop lasts for some time, and no longer than ten years")
        return await self._stop(order, scope_of(agent, tool, all), True, for_us or 0)

    async def resume(
        self, order: Order, *, agent: str | None = None, tool: str | None = None, all: bool = False
    ) -> dict[str, Any]:
        """Lift a stop. An agent that was over a ceiling starts with a clean sheet."""
        return await self._stop(order, scope_of(agent, tool, all), False)

    async def _stop(
        self, order: Order, what: tuple[str, str], on: bool, for_us: int = 0
    ) -> dict[str, Any]:
        self._authorize(order, "stop" if on else "resume")
        scope, name = what
        self._require_known(scope, name)
        began = self.services.clock.monotonic_us()
        until_us = self.services.clock.now_us() + for_us if for_us else 0
        draft = Draft(
            "stop.set" if on else "stop.lifted",
            {
                "what": f"{scope}:{name}",
                "actor": str(order.principal),
                "until": until_us or None,
            },
            body=order.body(),
        )
        why = await set_stop(self.services, draft, what, on, command=order.command_id)
        took_us = self.services.clock.monotonic_us() - began
        if on:
            self.services.metrics.observe("stop_seconds", took_us / 1e6)
        return {
            "stopped": [f"{s}:{n}" for s, n in self.services.stops.list_scopes()],
            "until": until_us or None,
            "took_us": took_us,
            "recorded": why is None,
            "why": why,
            "others": self.services.store.cluster.is_shared,
        }

    # --- the clock --------------------------------------------------------------------------

    async def clock_confirm(self, order: Order) -> dict[str, Any]:
        """Take this machine's wall clock for right: fleet time follows it, and expiries with it.

        By what the entry says, and no further: a jump that comes meanwhile is another.
        Raises BadCommand if there is nothing to confirm.
        """
        self._authorize(order, "clock_confirm")
        clock = self.services.clock
        async with self.clock_lock:
            clock.check_wall_clock()
            jump = clock.jump
            if jump is None:
                raise BadCommand("the clock has not jumped; there is nothing to confirm")
            description = describe_jump(jump)
            draft = Draft(
                "clock.confirmed",
                {"actor": str(order.principal)},
                body=order.body(jump=description, by_us=jump.by_us),
            )
            seq = await self.services.store.commands.append_entries(
                [draft], command=order.command_id
            )
            clock.confirm(jump)
        return {"seq": seq, "by_us": jump.by_us, "was": description}

    def _require_known(self, scope: str, name: str) -> None:
        agents = self.services.fleet.agents
        if scope == "agent" and name not in agents:
            raise NotFound(f"there is no agent {name!r}", mend=f"one of: {', '.join(agents)}")
        releases = (one for agent in agents for one in self.services.fleet.releases(agent))
        tools = sorted({tool for release in releases for tool in release.tools})
        if scope == "tool" and name not in tools:
            raise NotFound(f"there is no tool {name!r}", mend=f"one of: {', '.join(tools)}")

    # --- budgets ----------------------------------------------------------------------------

    async def budget_raise(
        self,
        order: Order,
        for_us: int,
        *,
        agent: str | None = None,
        unit: str | None = None,
        window: str | None = None,
        by: int | None = None,
    ) -> dict[str, Any]:
        """Give an agent's limits (without one: the fleet's) more room for a while.

        Without `by` each is doubled. What waits goes on at once; the raise ends by itself.
        """
        self._authorize(order, "budget_raise")
        if not 0 < for_us <= MAX_RAISE_US:
            raise BadCommand("a raise lasts up to 31 days", mend="for example --raise 2h")
        if by is not None and by < 1:
            raise BadCommand(f"{by} is no more room", mend="give --by a number of at least 1")
        until = self.services.clock.now_us() + for_us
        name = FLEET if agent is None else agent
        raises = [
            BudgetRaise(name, cap.unit, cap.span, by or cap.limit, until)
            for cap in self._limits(agent)
            if unit in (None, cap.unit) and window in (None, cap.span) and (by or cap.limit)
        ]
        if not raises:
            whose = "the fleet" if agent is None else agent
            raise BadCommand(
                f"{whose} has no such limit", mend="see `vedette budget`, and give --by"
            )
        more = {f"{one.unit}.{one.span}": one.amount for one in raises}
        fields = {"agent": agent, "scope": "fleet" if agent is None else "agent", "spend": more}
        draft = Draft(
            "budget.raised",
            {**fields, "until": until, "actor": str(order.principal)},
            body=order.body(),
        )
        seq = await self.services.store.commands.raise_budget(
            draft, raises, command=order.command_id
        )
        self.services.shortages.clear()
        return {"entry": seq, "raised": more, "until": until}

    def _limits(self, agent: str | None) -> list[BudgetCap]:
        """Return the limits that a raise can widen: an agent's own, or the fleet's."""
        budgets = self.services.budgets
        if agent is None:
            return [cap for cap in budgets.caps(FLEET, Budget(), UNITS) if cap.scope == "fleet"]
        self._require_known("agent", agent)
        declared = self.services.fleet.agents[agent]
        budget = declared.budget
        if not declared.asks_model:
            return [cap for cap in budgets.caps(agent, budget, (ACTIONS,)) if cap.scope == "agent"]
        return [
            *(
                BudgetCap("run", unit, "run", most)
                for unit in MODEL_UNITS
                if (most := budget.limit(unit, "run")) is not None
            ),
            *(cap for cap in budgets.caps(agent, budget, UNITS) if cap.scope == "agent"),
        ]

    # --- policy -----------------------------------------------------------------------------

    async def policy_apply(
        self,
        order: Order,
        folder: Path,
        commit: str | None = None,
        new_key: bool = False,
        confirm: str | None = None,
    ) -> dict[str, Any]:
        """Make a policy folder live; when this returns no older revision can commit any more.

        `commit` says where it comes from; `new_key` signs with the key that is here. What loosens
        the live policy is answered with what it loosens and changes nothing, unless `confirm` is
        the digest of exactly that.
        """
        self._authorize(order, "policy_apply")
        if commit is not None and _COMMIT.fullmatch(commit) is None:
            raise BadCommand(f"{commit!r} names no commit", mend="for example --commit 3f9c2ab")
        bundle: Bundle = self.read_bundle(folder)
        wish = PublishRequest(
            order.principal, order.reason, commit, new_key=new_key, confirmed=confirm
        )
        done = await self.rollout.publish(bundle, wish, order.command_id)
        if done.ok and folder == self.policies:
            # So that the folder speaks on, also where it had to wait before.
            await remember_folder(self.services.store, bundle.digest, done.revision)
        return publication_to_json(done)

    async def policy_rollback(
        self, order: Order, number: int, confirm: str | None = None
    ) -> dict[str, Any]:
        """Publish the content of an earlier revision again, as a new one, through its trial.

        As with `policy_apply`, what that loosens must be confirmed.
        """
        self._authorize(order, "policy_rollback")
        numbers = {known: digest for known, digest, _ in self.services.store.policy.revisions()}
        digest = numbers.get(number, "")
        files = self.services.store.policy.bundle_files(digest)
        if files is None:
            raise BadCommand(f"there was no revision {number}", mend="see `vedette policy history`")
        wish = PublishRequest(order.principal, order.reason, back_to=number, confirmed=confirm)
        bundle = Bundle.from_record(files, digest)
        return publication_to_json(await self.rollout.publish(bundle, wish, order.command_id))

    # --- content ----------------------------------------------------------------------------

    async def erase(
        self,
        order: Order,
        *,
        event: str | None = None,
        subject: str | None = None,
        entry: int | None = None,
        deny_holds: bool = False,
        digest: str | None = None,
    ) -> dict[str, Any]:
        """Erase the content of an event, all under a subject, or one entry's. The proof holds.

        What agents proposed to remember out of it leaves the banks too. With `deny_holds` what
        waits on it is denied by the same person for the same reason, and its runs end. With
        `digest`, the beginning of a survey's, nothing but what that survey found:
        else DisplayMismatch.
        """
        self._authorize(order, "erase")
        if deny_holds:
            self._authorize(order, "deny")
        target = ErasureTarget.of(event=event, subject=subject, entry=entry)
        if entry is not None and (isinstance(entry, bool) or not 0 < entry < 2**63):
            raise BadCommand(f"{entry} is no entry", mend="give its seq, as the ledger has it")
        store = self.services.store
        draft = Draft("body.erased", {"actor": str(order.principal)}, body=order.body())
        recall = self.services.recall
        while True:
            stateless = await keep_states(self.services, store.runs.without_state(target))
            erasing = store.commands.erase(
                target, draft, stateless=stateless, end=deny_holds, shown=digest,
                command=order.command_id,
            )  # fmt: skip
            try:
                erased = await recall.await_commit(erasing, order=True)
                break
            except StateNotKept:  # a run of it was judged meanwhile, here or by another worker
                continue
        forgot = recall.update_banks(
            lambda: recall.banks.forget(erased.events, store.memories.candidates(erased.events)),
            order=True,
        )
        if self.curation is not None:
            forgot = self.curation.unlearn() and forgot
        return {"erased": list(erased.digests), "scrubbed": erased.is_scrubbed and forgot}

    def _authorize(self, order: Order, verb: str) -> None:
        if order.principal.kind != "person":
            raise Forbidden(f"{order.principal} may not give commands", mend="a person must")
        require_role(order.principal, order.principal.roles, verb)
        if not order.reason.strip():
            raise BadCommand("a reason is missing", mend="add --reason 'why'")


def publication_to_json(done: PublishResult) -> dict[str, Any]:
    """Return what an order to publish is answered, as JSON."""
    return {
        "ok": done.ok,
        "revision": done.revision.number,
        "digest": done.revision.digest,
        "changed": done.changed,
        "took_us": done.took_us,
        "trial_us": done.trial_us,
        "still_calling": done.open_calls,
        "behind": list(done.lagging_workers),
        "archive": done.archive,
        "told": done.message,
        "findings": [str(finding) for finding in done.findings],
        "loosens": list(done.loosening.statements),
        "evidence": list(done.loosening.evidence),
        "confirm": None if done.confirmed else done.loosening.digest,
    }
