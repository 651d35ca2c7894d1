"""The failure policy: what becomes of a run whose handling broke off: another attempt, or its end.

Whatever an agent's code raises ends its own run only. What a store refuses is no attempt of the
run: it is tried again for as long as it takes, and kept in `refused_runs` for the watchdog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Coroutine, Mapping
from traceback import format_exception
from typing import Any, TypeVar

from vedette.domain.base.backoff import delay_us
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import StoreFailed, Temporary, VedetteError
from vedette.domain.delegation import find_delegation
from vedette.domain.entry import Body, Draft
from vedette.domain.event import subject_of
from vedette.domain.run import ActionRow, EarlierEventPending, Run, RunWake, Step, Superseded
from vedette.engine.delegation import cancel_children, open_asks
from vedette.engine.kill_switch import count_error
from vedette.engine.services import Services
from vedette.engine.task_telemetry import count_dead_task
from vedette.engine.task_wait import release

T = TypeVar("T")

ATTEMPTS = 5
_RETRY_US = 500_000
_LAST_RETRY_US = 60_000_000
# How much a dead letter keeps of where its error arose: the innermost frames, and their text.
_FRAMES, _TRACE = 8, 4096


class FailurePolicy:
    """Does the work of runs so that nothing it raises comes out. Belongs to a dispatcher."""

    def __init__(self, services: Services, on_overtake: Callable[[Run], None]) -> None:
        """`on_overtake` is called with a run that went before an earlier one of its key."""
        self._services, self._on_overtake = services, on_overtake
        # By id: the run, and why a store refused its last attempt.
        self.refused_runs: dict[str, tuple[Run, str]] = {}

    async def apply(self, run: Run, work: Coroutine[Any, Any, T]) -> T | int | None:
        """Do a run's work; return an instant if it has to be tried again then."""
        services, before = self._services, self.refused_runs.get(run.id)
        try:
            return await work
        except StoreFailed as error:
            self._note_refusal(run, error)
            return self._prepare_retry(run, services.clock.now_us() + _RETRY_US)
        except Superseded as error:
            if isinstance(error, EarlierEventPending):
                self._on_overtake(run)
            return self._prepare_retry(run, services.clock.now_us() + error.wait_us)
        except Temporary as error:
            run.attempts += 1
            if run.attempts >= ATTEMPTS:
                return await self._dead_letter(run, error)
            await self._count_error(run)
            wait = delay_us(run.attempts, first_us=_RETRY_US, last_us=_LAST_RETRY_US, seed=run.id)
            return self._prepare_retry(run, services.clock.now_us() + wait)
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                raise
            # A judge or a tool's pure part is agents' code: whatever it raises ends this run only,
            # a cancellation of its own that it let escape too.
            return await self._dead_letter(run, error)
        finally:
            if self.refused_runs.get(run.id) is before:
                self.refused_runs.pop(run.id, None)

    def retain_refused(self, known: Container[str]) -> dict[str, tuple[Run, str]]:
        """Return what is refused of these runs, by their id, and forget the others.

        They are another worker's by now, or their agent is stopped.
        """
        self.refused_runs = {id: held for id, held in self.refused_runs.items() if id in known}
        return self.refused_runs

    def _note_refusal(self, run: Run, error: Exception) -> None:
        self._services.metrics.count("store_failures")
        self.refused_runs[run.id] = (run, str(error) or type(error).__name__)

    def _prepare_retry(self, run: Run, at_us: int) -> int:
        """Read the run anew for another attempt and drop what its judge learned meanwhile."""
        services = self._services
        services.forget_key(run)
        try:
            fresh = services.store.runs.run(run.id)
        except StoreFailed as error:
            # It is tried as it was known; what was moved on is refused, and read again then.
            self._note_refusal(run, error)
            return max(at_us, services.clock.now_us() + _RETRY_US)
        if fresh is not None:
            attempts = run.attempts
            for name in Run.__struct_fields__:
                setattr(run, name, getattr(fresh, name))
            run.attempts = max(attempts, run.attempts)
        return at_us

    async def _dead_letter(self, run: Run, error: BaseException) -> int | None:
        services = self._services
        services.forget_key(run)
        try:
            fresh = services.store.runs.run(run.id) or run
            epoch = services.store.cluster.lease_epoch(fresh)
            if epoch is None:
                # Another worker has it by now, and finds out for itself.
                return services.clock.now_us()
            trace = "".join(format_exception(error, limit=-_FRAMES))[-_TRACE:]
            code = error.code if isinstance(error, VedetteError) else None
            await dead_letter(
                services, fresh, epoch, f"{type(error).__name__}: {error}", trace, code
            )
        except Exception as failure:
            # Whatever it is must not end this handler: the run stays and is tried again.
            self._note_refusal(run, failure)
            return services.clock.now_us() + _RETRY_US
        run.state = "dead"
        services.parked_runs.unpark(run)
        await self._count_error(run)
        return None

    async def _count_error(self, run: Run) -> None:
        try:
            await count_error(self._services, run)
        except StoreFailed:
            # It is not parked yet; its next error tries again.
            self._services.metrics.count("store_failures")


async def dead_letter(
    services: Services, run: Run, epoch: int, why: str, trace: str = "", code: str | None = None
) -> None:
    """Make a run that cannot be handled a dead letter, with its reason and where it arose.

    `code` is that of the error, if it has one: it stays when the content is erased.
    Raises Superseded if the run moved on meanwhile, StoreFailed if nothing is durable.
    """
    if run.state in ("done", "dead"):
        return
    event = services.store.runs.event(run.event)
    parts = {"why": why, "trace": trace} if trace else {"why": why}
    details = {part: text.encode("utf-8", "replace").decode() for part, text in parts.items()}
    body = Body(canonical_json(details), None if event is None else subject_of(event))
    fields = {"event": run.event, "agent": run.agent}
    drafts = [Draft("run.dead", {**fields, "what": code}, run.last, body=body)]
    rows = [row for row in services.store.runs.actions(run.id) if not row.is_final]
    asks = [row.copy() for row in open_asks(rows)]
    fleet = services.fleet
    is_known = run.agent in fleet.agents
    tools = fleet.release_of(run.agent, run.key, run.position).tools if is_known else {}
    own_rows = release(rows)
    for row in rows:
        settles = tools[row.tool].settles if row.tool in tools else None
        may_have_started = services.calls.may_have_started(
            row, settles, others=services.store.cluster.multi_worker
        )
        drafts += cancel_action(row, fields, may_have_started)
    given = None if event is None else find_delegation(event)
    step = Step.following(
        run, epoch, drafts=drafts, state="dead", wake_us=0, waits=None, attempts=run.attempts + 1,
        actions=rows, own_rows=own_rows, wakes=() if given is None else (RunWake(given.run),),
    )  # fmt: skip
    (await services.store.steps.commit(step)).raise_for_status()
    count_dead_task(services, run, event)
    services.metrics.count("runs", agent=run.agent, state="dead")
    await cancel_children(services, asks, "the run that asked is a dead letter")


def cancel_action(row: ActionRow, fields: Mapping[str, str], may_have_started: bool) -> list[Draft]:
    """End an open action of a run that became a dead letter; say what is not known of it.

    `may_have_started` says that a call without a durable mark may have been made.
    """
    about = {**fields, "action": row.id, "tool": row.tool}
    denied_since, awaited = row.waits == "policy", row.is_awaited
    if row.hold in ("open", "approved", "released"):
        row.hold = "denied"
    row.decided, row.rule, row.waits, row.until_us = "deny", "run.dead", None, 0
    if denied_since:
        # It is not to be taken up again under a permit: the last decision is a deny.
        row.effect = "cancelled"
        return [Draft("effect.unknown", about, row.last)]
    if row.effect is None:
        return []
    started = row.effect != "intended" or row.tries > 0 or may_have_started
    started = started and not awaited
    row.effect = "unknown" if started else "cancelled"
    return [Draft(f"effect.{row.effect}", about, row.last)]
