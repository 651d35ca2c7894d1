"""What is told of a turn's call of a model: in its entry, and as metrics.

The entry is the one that settles the turn's budget: each turn that was booked has one, whatever
came of it, unless its process ended or that commit did not stand. Traces are made of it
(`vedette.ledger.history.trace`). Durations are those of clocks that never go back.

Who asked a model tells what its provider said, and either may say anything. So what goes on from
here is made of what is configured, of closed lists, and of numbers within those of the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from vedette.domain.base.errors import VedetteError
from vedette.domain.budget import INPUT_TOKENS, MONEY, OUTPUT_TOKENS
from vedette.domain.entry import Draft
from vedette.domain.model import Provider
from vedette.domain.model_turn import (
    CACHE_CREATION,
    CACHE_READ,
    FINISH_REASONS,
    NO_METADATA,
    REASONING,
    ModelCallMetadata,
    ModelError,
    ModelUse,
)
from vedette.domain.ports.reasoner import Metrics, ReasonerJudgement
from vedette.engine.model_calls import ModelCall
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services

_MICROS = 1e6
_PROVIDERS = frozenset(get_args(Provider))
_NAME = re.compile(r"[A-Za-z0-9_.:@/-]{1,128}\Z")
# What providers add to the name that was asked: a date, a version. There is no room for more.
_SUFFIX = re.compile(r"(?:[-.:@](?:v?[0-9]{1,8}|preview|exp|latest)){0,4}\Z")
_WHOLES = {CACHE_READ: INPUT_TOKENS, CACHE_CREATION: INPUT_TOKENS, REASONING: OUTPUT_TOKENS}


def note_result(call: ModelCall, result: ReasonerJudgement | BaseException) -> None:
    """Note in a call's place what came of it, as far as that may be told on."""
    if isinstance(result, BaseException):
        call.error = error_code(result)
    if isinstance(result, ReasonerJudgement | ModelError):
        call.use = result.use
        call.metadata = check_metadata(result.metadata, call)
    else:
        call.use = ModelUse(1)  # it may have been asked all the same
        call.metadata = check_metadata(NO_METADATA, call)


def error_code(error: BaseException) -> str:
    """Return the code of an error, of a closed list: that of its class if a worker may have made it
    up.
    """
    if isinstance(error, ModelError):
        return str(error.code)
    return str(type(error).code) if isinstance(error, VedetteError) else VedetteError.code


def check_metadata(told: ModelCallMetadata, call: ModelCall) -> ModelCallMetadata:
    """Return what was told of a call, without what is not known to be what it says it is.

    Provider and name are those of the entry of [models], where there is one. Parts of tokens are no
    more than the whole was that they are of, and the client waited no longer than its turn took.
    """
    provider = call.model.provider or told.provider
    asked = call.model.served_name or (told.asked if _NAME.match(told.asked) else "")
    return ModelCallMetadata(
        calls=max(told.calls, call.use.calls),
        provider=provider if provider in _PROVIDERS or not provider else "other",
        asked=asked,
        answered=_check_answered(told.answered, asked),
        finish_reason=told.finish_reason if told.finish_reason in FINISH_REASONS else "",
        tokens=_check_parts(told.tokens, call.use.spent),
        took_us=min(told.took_us, call.took_us),
    )


def _check_answered(answered: str, asked: str) -> str:
    """Return the name under which a model answered if it is the one that was asked, or a version of
    it; else "": whatever else a provider says there may be content, or a key.
    """
    own = asked.rpartition("/")[2]
    name = answered.rpartition("/")[2]
    is_own = bool(own) and name.startswith(own) and _SUFFIX.match(name, len(own)) is not None
    return name if is_own and _NAME.match(name) else ""


def _check_parts(told: Mapping[str, int], spent: Mapping[str, int]) -> dict[str, int]:
    """Return the parts of tokens that are no more than the whole, those of one whole together."""
    found = {kind: told[kind] for kind in _WHOLES if told.get(kind, 0) > 0}
    sums = dict.fromkeys(_WHOLES.values(), 0)
    for kind, tokens in found.items():
        sums[_WHOLES[kind]] += tokens
    return {k: n for k, n in found.items() if sums[_WHOLES[k]] <= spent.get(_WHOLES[k], 0)}


def model_call_field(call: ModelCall) -> dict[str, Any]:
    """Return what an entry says of a turn's call: the field `model_call` of `budget.settled`.

    `model` is its entry of [models], `calls` how many were made, `tokens` what they used by kind,
    as far as that was counted; `began` is the instant, `took` the microseconds, of the reasoner's
    work on the turn, `call_took` those that the model's client waited (none: nobody told). What is
    not known is left out. `error` is the code of what came in an answer's place.
    """
    told = call.metadata
    found = {
        "model": call.model.name,
        "provider": told.provider,
        "asked": told.asked,
        "answered": told.answered,
        "finish": told.finish_reason,
        "tokens": _count_tokens(call),
        "call_took": told.took_us,
        "error": call.error,
    }
    known = {name: value for name, value in found.items() if value}
    return {**known, "calls": told.calls, "began": call.at_us, "took": call.took_us}


def observe_model_call(metrics: Metrics, call: ModelCall) -> None:
    """Count, as metrics, how long a call of a model took and what it used, if it was made."""
    told, name = call.metadata, call.model.name
    if not told.calls:
        return
    metrics.observe(
        "model_call_seconds", (told.took_us or call.took_us) / _MICROS,
        model=name, provider=told.provider, outcome=call.error or "answered",
    )  # fmt: skip
    for kind, tokens in _count_tokens(call).items():
        metrics.observe("model_tokens", tokens, model=name, type=kind)


def observe_cost(services: Services, context: RunContext, drafts: Iterable[Draft]) -> None:
    """Count, as a metric, what a turn of a model cost, out of the entries that settled it."""
    call = context.model_call
    for draft in drafts:
        if draft.kind == "budget.settled" and call is not None and MONEY in draft.fields["spend"]:
            services.metrics.observe(
                "turn_cost_micros", draft.fields["spend"][MONEY],
                agent=context.agent.name, model=call.model.name,
            )  # fmt: skip


def _count_tokens(call: ModelCall) -> dict[str, int]:
    """Return the tokens that a provider counted, by kind; a call that was refused used none."""
    if not call.use.calls:
        return {}
    kinds, spent = {INPUT_TOKENS: "input", OUTPUT_TOKENS: "output"}, call.use.spent
    found = {kind: spent[name] for name, kind in kinds.items() if name in spent}
    return {**found, **call.metadata.tokens}
