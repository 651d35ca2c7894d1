"""Reservation: the worst case of a turn is booked before anything is spent.

A judge spends nothing. What a model may spend at worst (calls, tokens, money) is booked durably
before it is asked, against the limits of its run, its agent and the fleet, and settled with its
turn: a crash in between can only overcount. Where there is no room the run waits, durably, until
the window turns, another run gives room back, or a person raises the limit.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from vedette.domain.agent import Agent
from vedette.domain.base.errors import BadFleet, TurnLimit
from vedette.domain.budget import (
    Budget,
    BudgetCap,
    BudgetPolicy,
    Price,
    Reservation,
    Shortage,
    actual_use,
    worst_case,
)
from vedette.domain.entry import Draft
from vedette.domain.model import Model
from vedette.domain.run import Fenced, OverBudget, Step, Superseded
from vedette.domain.work_tools import ASK_TOOL
from vedette.engine.model_telemetry import error_code, model_call_field, observe_cost
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services


async def reserve_budget(services: Services, context: RunContext) -> bool:
    """Book a turn's worst case; False if there is no room, then the run waits for its budget.

    Raises TurnLimit (`check_turn_limit`), and Superseded if its turns have no worst case in what is
    limited by now (`pause_unbounded_agents`).
    """
    agent = context.agent
    check_turn_limit(context, context.run.turn)
    if not agent.asks_model:
        return True
    while True:
        now, revision = services.clock.now_us(), services.gateway.policy_rev
        if (gap := find_budget_gap(services.budgets, agent)) is not None:
            raise Superseded(f"{agent.name}: {gap}")
        worst = worst_case(agent.budget, find_price(services, context))
        limits = reservation_limits(services, context, worst)
        booked = context.entry("budget.reserved", turn=context.run.turn + 1, spend=worst)
        step = context.build_step(
            [booked], [], now, spend=worst, limits=limits, policy_rev=revision
        )
        try:
            await context.commit(step)
        except OverBudget as error:
            if await wait_for_budget(
                services, context, worst, limits, error.shortage, revision, now
            ):
                return False
        except Fenced:
            pass
        else:
            context.reservation = Reservation(worst, now, context.run.last)
            count_use(context, worst)
            return True


def check_turn_limit(context: RunContext, turns: int) -> None:
    """Raise TurnLimit if so many turns are all that a run may take, and it wants another.

    A task asks a person instead (`task_control.yield_to_person`).
    """
    agent = context.agent
    if context.task is None and turns - (agent.cascade is not None) >= agent.max_turns:
        number = f"{agent.max_turns} turn{'s' if agent.max_turns > 1 else ''}"
        what = f"the run wanted more than {number}"
        raise TurnLimit(what, mend=f"raise max_turns in {agent.name}/agent.yaml")


def find_price(services: Services, context: RunContext) -> Price | None:
    """Return what the model that a turn asks costs: as its entry says, or as the agent does."""
    asked = None if context.model_call is None else context.model_call.model
    return services.budgets.price_of(priced_budget(context.agent.budget, asked))


def priced_budget(budget: Budget, model: Model | None) -> Budget:
    """Return an agent's budget with the price of a model that has one of its own."""
    return budget if model is None or model.price is None else replace(budget, price=model.price)


def find_budget_gap(budgets: BudgetPolicy, agent: Agent) -> str | None:
    """Say why the worst case of an agent's turns cannot be reserved, whichever of its models they
    ask; None if it can.
    """
    if not agent.asks_model:
        return None
    budget = agent.budget
    priced = (budget, *(replace(budget, price=price) for price in agent.fallback_prices))
    return next(filter(None, (budgets.find_gap(agent.name, one) for one in priced)), None)


def pause_unbounded_agents(services: Services) -> None:
    """Have agents begin nothing here while the worst case of their turns cannot be reserved.

    To be asked whenever another release or another revision is live here. Nothing like that is
    released or published; but a worker may hear of one when it is so already, of releases that
    who published did not have at hand.
    """
    for agent in services.fleet.agents.values():
        if find_budget_gap(services.budgets, agent) is None:
            services.stops.unpause(agent.name, "budget")
        else:
            services.stops.pause(agent.name, "budget")


def refuse_unbounded_agents(services: Services) -> None:
    """Raise BadFleet if the live limits allow no reservation for an agent changed meanwhile."""
    for agent in services.fleet.agents.values():
        if (gap := find_budget_gap(services.budgets, agent)) is not None:
            mend = "mend its agent.yaml, or policies/budgets/data.yaml"
            raise BadFleet(f"{agent.name}: {gap}", where=f"{agent.name}/agent.yaml", mend=mend)


def reservation_limits(
    services: Services, context: RunContext, worst: Mapping[str, int]
) -> list[BudgetCap]:
    """Return every limit on a turn's reservation: its run's, with its use, then by hour and day."""
    agent, units = context.agent, tuple(worst)
    if context.used is None or ASK_TOOL in agent.tools:
        # The run may have booked turns that a crash kept it from taking: they count, and so does
        # what its asks have set aside.
        found = services.store.spend.of_run(context.run.id) if context.run.entries else {}
        context.used = dict(found)
    before = context.used
    limits = [
        BudgetCap("run", unit, "run", most, before.get(unit, 0))
        for unit in units
        if (most := agent.budget.limit(unit, "run")) is not None
    ]
    if context.task is not None and (given := context.task.task.delegation) is not None:
        limits += [
            BudgetCap("run", unit, "run", given.budget.get(unit, 0), before.get(unit, 0))
            for unit in units
        ]
    return [*limits, *services.budgets.caps(agent.name, agent.budget, units)]


def find_turn_excess(services: Services, context: RunContext) -> str | None:
    """Say in what the budget of a task that an agent gave has no room for its next turn, whichever
    model that asks; None if it has.
    """
    agent, task = context.agent, context.task
    given = None if task is None else task.task.delegation
    if given is None or not (context.spends and agent.asks_model):
        return None
    budget, used = agent.budget, services.store.spend.of_run(context.run.id)
    for priced in (budget, *(replace(budget, price=price) for price in agent.fallback_prices)):
        for unit, amount in worst_case(budget, services.budgets.price_of(priced)).items():
            if used.get(unit, 0) + amount > given.budget.get(unit, 0):
                most = given.budget.get(unit, 0)
                return f"its budget is used up: {used.get(unit, 0)} of {most} {unit} are taken, " \
                    f"and a turn may take {amount}"  # fmt: skip
    return None


async def wait_for_budget(
    services: Services,
    context: RunContext,
    worst: Mapping[str, int],
    limits: list[BudgetCap],
    shortage: Shortage,
    revision: int,
    now: int,
) -> bool:
    """Record that a turn had no room and let its run wait; False if there is room by now."""
    refused = context.entry("budget.refused", turn=context.run.turn + 1, **shortage.entry_fields())
    step = context.build_step(
        [refused], [], now, shortfall=worst, limits=limits, policy_rev=revision,
        state="waiting", wake_us=shortage.until_us, waits="budget",
    )  # fmt: skip
    try:
        await context.commit(step)
    except Fenced:
        return False
    count_refusal(services, context, shortage)
    return True


def count_refusal(services: Services, context: RunContext, shortage: Shortage) -> None:
    """Count, as a metric, that a run found no room in a budget."""
    services.metrics.count(
        "budget_refusals", agent=context.agent.name, scope=shortage.scope, unit=shortage.unit,
        window=shortage.span,
    )  # fmt: skip


def release_reservation(
    services: Services, context: RunContext, failure: str | None = None
) -> tuple[list[Draft], dict[str, int], list[tuple[str, int, int]]]:
    """Return what settles a turn's reservation: its entry, what was spent beyond, what goes back.

    Its entry also says how its call went; `failure` is the code of why the turn came to nothing
    though its model answered.

    What it spent beyond its worst case (a vendor's own retries, say) is counted all the same: it
    is gone.
    """
    held, call = context.reservation, context.model_call
    if held is None or call is None:
        return [], {}, []
    budget, use = context.agent.budget, call.use
    spent = actual_use(budget, find_price(services, context), use.calls, use.spent)
    beyond, returns = {}, []
    for unit in sorted({*held.spend, *spent}):
        over = spent.get(unit, 0) - held.spend.get(unit, 0)
        if unit not in spent:
            # Its price went with a new revision: what was booked stays booked.
            spent[unit] = held.spend[unit]
        elif over > 0:
            beyond[unit] = over
        elif over < 0:
            returns.append((unit, held.at_us, -over))
    settled = context.entry(
        "budget.settled",
        after=held.seq,
        turn=context.run.turn + 1,
        spend=spent,
        what=failure,
        model_call=model_call_field(call),
    )
    return [settled], beyond, returns


def count_use(context: RunContext, spend: Mapping[str, int]) -> None:
    """Count what was booked, or settled (less what was booked), as used by the run."""
    used = context.used
    if used is not None:
        for unit, amount in spend.items():
            used[unit] = used.get(unit, 0) + amount


def settle_use(context: RunContext, step: Step) -> None:
    """Count a turn's reservation as settled by a committed step."""
    held, context.reservation = context.reservation, None
    for draft in step.drafts:
        if held is not None and draft.kind == "budget.settled":
            count_use(context, draft.fields["spend"])
            count_use(context, {unit: -amount for unit, amount in held.spend.items()})


async def settle_failure(services: Services, context: RunContext, error: Exception) -> None:
    """Make durable what a turn cost that came to nothing; the rest of its reservation goes back.

    Raises as `RunContext.commit`: then the reservation stays booked whole.
    """
    call = context.model_call
    failure = None if call is None or call.error else error_code(error)
    settlement, beyond, returns = release_reservation(services, context, failure)
    if settlement:
        now = services.clock.now_us()
        # A task that was cancelled while its model thought is over with that.
        drafts = settlement + context.end_entries([])
        step = context.build_step(drafts, [], now, spend=beyond, refunds=returns)
        context.reservation = context.used = None
        await context.commit(step)
        observe_cost(services, context, settlement)
