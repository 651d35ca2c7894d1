"""A model's turn: a place for its call, its budget, the call; or its run waits for its model.

A run whose model is away waits as one whose target is: durably, at no compute, until the breaker
lets it try. Nothing of that counts as an attempt or an error. What was booked for a call that was
not answered is given back, unless the provider may charge for it.
"""

from __future__ import annotations

from msgspec import Struct

from vedette.domain.base.backoff import delay_us
from vedette.domain.budget import INPUT_TOKENS, OUTPUT_TOKENS
from vedette.domain.entry import Draft
from vedette.domain.model_turn import ModelAway, ModelUse
from vedette.engine.model_calls import ModelCalls
from vedette.engine.parked_runs import RECHECK_US
from vedette.engine.reservation import priced_budget, release_reservation
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services
from vedette.engine.tool_calls import LAST_RETRY_US

_FIRST_RETRY_US = 500_000


class _Wait(Struct, frozen=True):
    """What a run waits for: one of these models, an instant, or its turn in its key."""

    models: tuple[ModelCalls, ...] = ()
    wake_us: int = 0


async def acquire_model(services: Services, context: RunContext) -> bool:
    """Take a place for the call of a run's next turn; False if there is none, then it waits."""
    agent, run, parked = context.agent, context.run, services.parked_runs
    if not run.turn and parked.has_unjudged_before(run):
        await _wait(services, context, _Wait())
        return False
    now, budget = services.clock.now_us(), agent.budget
    tokens = (budget.input_tokens_per_call or 0) + (budget.output_tokens_per_call or 0)
    routes = tuple(services.models.routes(agent))
    for calls in routes:
        priced = priced_budget(budget, calls.model)
        if calls.is_away(now) or services.budgets.find_gap(agent.name, priced) is not None:
            continue
        if not parked.is_released(run.id) and parked.count_waiting(calls.breaker.target):
            break  # who waits already goes first
        if not budget.has_token_bounds:
            tokens = calls.model.tokens_per_minute or 0
        call = calls.begin(now, tokens)
        if call is None:
            break
        context.model_call = call
        parked.unpark(run)
        return True
    await _wait(services, context, _Wait(routes))
    return False


def release_model(
    services: Services,
    context: RunContext,
    use: ModelUse | None = None,
    *,
    failure: ModelAway | None = None,
) -> None:
    """Give back the place of a run's call, if it has one; without a use or failure it was not made.

    With a use and no failure the model answered, whatever became of its answer.
    """
    call = context.model_call
    if call is None or not call.in_flight:
        return
    models, name, now = services.models, call.model.name, services.clock.now_us()
    tokens = None
    if use is not None and {INPUT_TOKENS, OUTPUT_TOKENS} <= use.spent.keys():
        tokens = use.spent[INPUT_TOKENS] + use.spent[OUTPUT_TOKENS]
    breaker = models.calls_of(name).breaker
    is_made = failure is not None or (use is not None and use.calls > 0)
    was_open = breaker.state == "open"
    models.calls_of(name).end(call, now, tokens=tokens, failure=failure, is_made=is_made)
    if breaker.state == "open" and not was_open:
        services.metrics.count("breaker_opened", target=breaker.target)
    if failure is None and is_made:
        models.failures.pop(context.run.id, None)
    if is_made:
        outcome = "answered" if failure is None else failure.kind
        services.metrics.count("model_calls", model=name, outcome=outcome)


async def wait_for_model(services: Services, context: RunContext, failure: ModelAway) -> None:
    """Have a run wait whose model gave no answer; what was booked for it is given back."""
    models, run, now = services.models, context.run, services.clock.now_us()
    failures = models.count_failure(run.id)
    routes = tuple(models.routes(context.agent))
    wait = _Wait(routes)
    if not all(calls.is_away(now) for calls in routes):
        # The model is well, as far as that is known: the run comes back by the clock.
        after_us = delay_us(failures, first_us=_FIRST_RETRY_US, last_us=LAST_RETRY_US, seed=run.id)
        wait = _Wait(wake_us=now + after_us)
    await _wait(services, context, wait, failure)


async def _wait(
    services: Services, context: RunContext, wait: _Wait, failure: ModelAway | None = None
) -> None:
    """Make durable that a run waits, and count it as waiting."""
    run, parked, now = context.run, services.parked_runs, services.clock.now_us()
    failures = services.models.failures.get(run.id, 0)
    drafts: list[Draft] = []
    beyond: dict[str, int] = {}
    returns: list[tuple[str, int, int]] = []
    if failure is not None:
        drafts, beyond, returns = release_reservation(services, context, failure.use)
        context.reservation = None
    why = wait.models[0].breaker.why if failure is None and wait.models else ""
    if (failure is not None and failures == 1) or (why and run.waits != "model"):
        # Once: an outage is one thing that happened to the run, however often it tried.
        body = None if failure is None else context.body({"why": str(failure)})
        call = context.model_call if failure is not None else None
        asked = wait.models[0].model.name if call is None else call.model.name
        drafts.append(
            context.entry(
                "model.away", turn=run.turn + 1, wait="model", body=body,
                what=why if failure is None else failure.code,
                target=services.models.calls_of(asked).breaker.target,
            )
        )  # fmt: skip
    stands = (run.state, run.waits) == ("waiting", "model") and run.wake_us > now
    if drafts or wait.wake_us or not stands:
        step = context.build_step(
            drafts, [], now,
            spend=beyond, refunds=returns,
            state="waiting", wake_us=wait.wake_us or now + RECHECK_US, waits="model",
        )  # fmt: skip
        await context.commit(step)
    if wait.models:
        for calls in wait.models:
            parked.park_for_model(run, calls.breaker.target, failures)
    elif wait.wake_us:
        if not run.turn:
            parked.park_timed(run)
    else:
        parked.park_behind(run)
        parked.wake_if_first(run.id, (run.agent, run.key))
