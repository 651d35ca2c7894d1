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
from vedette.domain.model_turn import ModelAway, ModelError, RequestRefused
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.engine.model_calls import ModelCalls
from vedette.engine.model_telemetry import note_result, observe_cost, observe_model_call
from vedette.engine.parked_runs import RECHECK_US
from vedette.engine.reservation import release_reservation
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services
from vedette.engine.takeover import is_away, person_due_us
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
    wanted: list[ModelCalls] = []
    for calls in services.models.routes(agent):
        wanted.append(calls)
        if calls.is_away(now):
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
    # Not for those behind one that is well: they are not asked now, whatever room they have.
    is_told = run.id in services.models.failures
    await _wait(services, context, _Wait(tuple(wanted)), is_told=is_told)
    return False


def release_model(
    services: Services,
    context: RunContext,
    result: ReasonerJudgement | BaseException | None = None,
) -> None:
    """Give back the place of a run's call, if it has one; without a result it was not made.

    What came of it is noted in it. Of an error that does not say what it cost nobody knows whether
    the model answered: then it counts among the calls of its minute.
    """
    call = context.model_call
    if call is None or not call.in_flight:
        return
    if result is not None:
        note_result(call, result)
    failure = result if isinstance(result, ModelAway | RequestRefused) else None
    is_answered = (
        result.is_answered
        if isinstance(result, ModelError)
        else isinstance(result, ReasonerJudgement)
    )
    models, name, now = services.models, call.model.name, services.clock.now_us()
    tokens, use = None, call.use
    if {INPUT_TOKENS, OUTPUT_TOKENS} <= use.spent.keys():
        tokens = use.spent[INPUT_TOKENS] + use.spent[OUTPUT_TOKENS]
    breaker = models.calls_of(name).breaker
    is_made = failure is not None or use.calls > 0
    before = breaker.state
    models.calls_of(name).end(
        call, now, tokens=tokens, failure=failure, is_made=is_made, is_answered=is_answered
    )
    if before == "closed" != breaker.state and call.model.fallback is not None:
        services.parked_runs.wake_all(breaker.target)  # who waited for room there asks the next
    if breaker.state == "open" != before:
        services.metrics.count("breaker_opened", target=breaker.target)
    if failure is None and is_made and is_answered:
        models.note_answered(context.run.id)
    if is_made:
        services.metrics.count("model_calls", model=name, outcome=call.error or "answered")
        observe_model_call(services.metrics, call)


def refuses_all(services: Services, context: RunContext) -> bool:
    """Say whether a run's request was refused as a trial of a model that refuses whatever it is
    asked: then that says nothing of the request.
    """
    call = context.model_call
    return (
        call is not None
        and call.leave == "trial"
        and services.models.calls_of(call.model.name).breaker.why == RequestRefused.code
    )


async def wait_for_model(
    services: Services, context: RunContext, failure: ModelAway | None
) -> None:
    """Have a run wait whose model gave no answer; what was booked for it is given back.

    Without a failure the model refuses whatever it is asked (`refuses_all`).
    """
    models, run, now = services.models, context.run, services.clock.now_us()
    is_told = run.id in models.failures
    failures = models.count_failure(run.id)
    routes = tuple(models.routes(context.agent))
    wait = _Wait(routes)
    if not all(calls.is_away(now) for calls in routes):
        # The model is well, as far as that is known: the run comes back by the clock.
        after_us = delay_us(failures, first_us=_FIRST_RETRY_US, last_us=LAST_RETRY_US, seed=run.id)
        wait = _Wait(wake_us=now + after_us)
    await _wait(services, context, wait, failure, is_told=is_told)


async def _wait(
    services: Services,
    context: RunContext,
    wait: _Wait,
    failure: ModelAway | None = None,
    *,
    is_told: bool = False,
) -> None:
    """Make durable that a run waits, and count it as waiting. Unless it `is_told`, so is why.

    An outage is one thing that happened to the run, however often it tried.
    """
    run, parked, now = context.run, services.parked_runs, services.clock.now_us()
    models = services.models
    drafts: list[Draft] = []
    beyond: dict[str, int] = {}
    returns: list[tuple[str, int, int]] = []
    if failure is not None:
        drafts, beyond, returns = release_reservation(services, context)
        context.reservation = context.used = None
    call, body, asked, why = context.model_call, None, None, None
    if failure is not None and call is not None:
        asked, why, body = models.calls_of(call.model.name), failure.code, {"why": str(failure)}
    elif wait.models:
        asked, why = wait.models[0], wait.models[0].breaker.why
    if asked is not None and why and not is_told:
        models.note_told(run.id)
        drafts.append(
            context.entry(
                "model.away", turn=run.turn + 1, wait="model",
                body=None if body is None else context.body(body),
                what=why, target=asked.breaker.target,
            )
        )  # fmt: skip
    stands = (run.state, run.waits) == ("waiting", "model") and run.wake_us > now
    if drafts or wait.wake_us or not stands:
        wake_us = wait.wake_us or now + RECHECK_US
        if is_away(services, context) and (person_us := person_due_us(services, context, now)):
            # Soon if it is over by now: what is being tried may take a while.
            wake_us = min(wake_us, max(person_us, now + _FIRST_RETRY_US))
        step = context.build_step(
            drafts, [], now,
            spend=beyond, refunds=returns,
            state="waiting", wake_us=wake_us, waits="model",
        )  # fmt: skip
        await context.commit(step)
        observe_cost(services, context, drafts)
    if wait.models:
        for calls in wait.models:
            parked.park_for_model(run, calls.breaker.target, models.failures.get(run.id, 0))
        last = wait.models[-1]
        if last.model.fallback is not None and last.is_away(services.clock.now_us()):
            parked.wake(run.id)  # it went away meanwhile, so the next is asked
    elif wait.wake_us:
        if not run.turn:
            parked.park_timed(run)
    else:
        parked.park_behind(run)
        parked.wake_if_first(run.id, (run.agent, run.key))
