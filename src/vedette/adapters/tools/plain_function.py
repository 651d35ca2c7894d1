"""A plain Python function as a tool: how a function of an imported ADK agent is performed."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, get_type_hints

from msgspec import Struct, field

from vedette.domain.base.canonical import canonicalize_normalized, normalize_json
from vedette.domain.effect import Call, Outcome

if TYPE_CHECKING:
    from pydantic_core import ValidationError


class CallContext(Struct):
    """What a function gets in the place of ADK's ToolContext: a state that lasts for one call."""

    state: MutableMapping[str, Any] = field(default_factory=dict)


def perform_function(
    call: Call, function: Callable[..., Any], *, context: str | None = None
) -> Outcome:
    """Call a plain function with the arguments of a call; what it returns is the outcome's data.

    Arguments become what the function's hints say (`Enum`, `date`, a pydantic model); a coroutine
    is run to its end. As ADK has it, whatever is no mapping is `{"result": …}`. `context` names the
    parameter that gets a CallContext; what the function leaves in its state is in the data under
    `state`, beside the whole of what it returned under `result` if that has a `state` of its own.
    Where arguments do not fit the hints it has `failed`, and was not called: so hints must not run
    code of their own (`agent import` refuses such). What has no form that a record keeps is told as
    such: it is done by then. Raises what the function raises: whether anything happened before it
    then is not known.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        hints = get_type_hints(function, include_extras=True)
        readers = {name: TypeAdapter(hints[name]) for name in call.args if name in hints}
    except Exception as error:
        # Hints that cannot be read at run time, say.
        return Outcome("failed", error=f"not called: {type(error).__name__} in its hints")
    try:
        given = {
            name: readers[name].validate_python(value) if name in readers else value
            for name, value in call.args.items()
        }
    except ValidationError as error:
        return Outcome("failed", error=f"not called: {_describe_misfit(error)}")
    own = CallContext()
    if context is not None:
        given[context] = own
    returned = function(**given)
    if inspect.isawaitable(returned):
        returned = asyncio.run(_wait_for(returned))
    value = _to_json(returned)
    data = dict(value) if isinstance(value, dict) else {"result": value}
    if own.state:
        if "state" in data:
            data = {"result": data}
        data["state"] = _to_json(dict(own.state))
    return Outcome("done", data)


async def _wait_for(awaitable: Any) -> Any:
    return await awaitable


def _describe_misfit(error: ValidationError) -> str:
    """Return what is wrong with an argument, without its value."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ".".join([error.title, *map(str, first["loc"])]) + f": {first['msg']}"


def _to_json(value: Any) -> Any:
    """Return a value as JSON has it; NaN and infinities are null, bytes base64.

    It is done by now, so what has no such form must not make a failure of it: a text says so.
    """
    from pydantic_core import to_jsonable_python

    try:
        plain = to_jsonable_python(
            value, fallback=str, bytes_mode="base64", inf_nan_mode="null", by_alias=True
        )
        canonicalize_normalized(normalize_json(plain))
    except Exception as error:
        what, why = type(value).__name__, type(error).__name__
        return f"it is done; its {what} has no form that a record keeps: {why}"
    return plain
