"""Errors of a worker, raised again in the engine.

What agents' code raised comes by name and words. What the engine's own code raised in a worker
comes as what it is: its class, its code and all its fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated

from msgspec import Meta, Struct, ValidationError, convert, to_builtins

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.frames import BadFrame
from vedette.adapters.reasoners.workers.plain_data import pack_plain, read_plain
from vedette.domain.base.errors import BadNotes, Permanent, StoreFailed, Temporary, VedetteError
from vedette.domain.model import FailureKind
from vedette.domain.model_turn import (
    BadModelAnswer,
    ModelAway,
    ModelCallMetadata,
    ModelError,
    ModelFailed,
    ModelNotAsked,
    ModelUse,
    RequestRefused,
)

_MAX_CHARS = 4096


class Raised(Exception):
    """An error of agents' code in a worker. Subclasses bear the name that it had there.

    Whatever it was there (SystemExit, a cancellation), here it is an error and nothing else.
    """


def read_error(plain: bytes) -> tuple[Exception, str]:
    """Return the error that a worker reported, and of which kind it is. Raises BadFrame."""
    values = read_plain(plain)
    if (
        not isinstance(values, list)
        or len(values) != 3
        or not all(isinstance(t, str) for t in values)
    ):
        raise BadFrame("no error where one belongs")
    name, words, kind = values
    if kind == "temporary":
        return Temporary(words), kind
    if kind == "notes":
        return BadNotes(words), kind
    return _error_class(name if name.isidentifier() and len(name) < 80 else "Raised")(words), kind


@lru_cache(maxsize=256)
def _error_class(name: str) -> type[Exception]:
    return type(name, (Raised,), {})


# --- errors of the engine's own code ----------------------------------------------------------


_Text = Annotated[str, Meta(max_length=_MAX_CHARS)]
_MAX_FIELDS = 32


class _ErrorFields(Struct, array_like=True, forbid_unknown_fields=True):
    classes: Annotated[list[_Text], Meta(max_length=_MAX_FIELDS)]
    what: _Text
    where: _Text | None
    mend: _Text | None
    others: Annotated[dict[_Text, bool | int | float | _Text | None], Meta(max_length=_MAX_FIELDS)]
    use: protocol.UseFields | None = None
    metadata: ModelCallMetadata | None = None


class _AwayFields(Struct):
    """The fields of ModelAway beside those of all."""

    kind: FailureKind
    retry_after_us: Annotated[int, Meta(ge=0, le=86_400_000_000)]


class _RefusedFields(Struct):
    may_begin_anew: bool = False


def pack_own_error(error: VedetteError) -> bytes:
    """Return an error of the engine's own code in a worker as plain data, with all its fields.

    Fields that are no texts, numbers or truths stay behind, but what a model's call cost.
    """
    others = {
        name: value
        for name, value in vars(error).items()
        if name not in _NAMED and isinstance(value, bool | int | float | str | None)
    }
    classes = [one.__name__ for one in type(error).__mro__ if issubclass(one, VedetteError)]
    use = metadata = None
    if isinstance(error, ModelError):
        use = [error.use.calls, dict(error.use.spent)]
        metadata = to_builtins(error.metadata) if error.metadata.calls else None
    texts = (error.what, error.where, error.mend)
    what, where, mend = (text if text is None else text[:_MAX_CHARS] for text in texts)
    return pack_plain([classes, what, where, mend, others, use, metadata])


def read_own_error(plain: bytes) -> VedetteError:
    """Return the error that `pack_own_error` wrote. Raises BadFrame.

    It is of the first of its classes that is known here, be it temporary or permanent. That a
    store refused something, or that a run was moved on, no worker has to say.
    """
    try:
        found = convert(read_plain(plain), _ErrorFields)
    except (ValidationError, UnicodeEncodeError) as failure:
        raise BadFrame(f"no error: {failure}") from failure
    known = {one.__name__: one for base in (Permanent, Temporary) for one in _walk_classes(base)}
    kind = next((known[name] for name in found.classes if name in known), Permanent)
    if issubclass(kind, ModelError):
        made = _build_model_error(kind, found)
        if found.metadata is not None:
            made.metadata = found.metadata
        return made
    # Each class has a construction of its own; all of it is in the fields.
    error = kind.__new__(kind)
    VedetteError.__init__(error, found.what, where=found.where, mend=found.mend)
    vars(error).update({name: v for name, v in found.others.items() if name not in _NAMED})
    if not isinstance(error.code, str):
        raise BadFrame("an error whose code is no text")
    return error


def _build_model_error(kind: type[ModelError], found: _ErrorFields) -> ModelError:
    """Return an error of asking a model, each field of which was looked at. Raises BadFrame."""
    if found.use is None:
        raise BadFrame("an error of a model that does not say what it cost")
    use, mend = ModelUse(found.use.calls, found.use.spent), found.mend
    try:
        if kind is ModelAway:
            away = convert(found.others, _AwayFields)
            return ModelAway(
                found.what, away.kind, use, mend=mend, retry_after_us=away.retry_after_us
            )
        if kind is RequestRefused:
            refused = RequestRefused(found.what, use, mend=mend)
            if convert(found.others, _RefusedFields).may_begin_anew:
                refused.may_begin_anew = True
            return refused
    except (ValidationError, UnicodeEncodeError) as failure:
        raise BadFrame(f"no error of a model: {failure}") from failure
    return kind(found.what, use, mend=mend)


_NAMED = frozenset({"what", "where", "mend"})
_MODEL_ERRORS = (ModelAway, RequestRefused, ModelFailed, BadModelAnswer, ModelNotAsked)


def _walk_classes(base: type[VedetteError]) -> Iterator[type[VedetteError]]:
    if issubclass(base, ModelError) and base not in _MODEL_ERRORS:
        return  # only who lost a worker knows that it did
    if not issubclass(base, StoreFailed):
        yield base
        for one in base.__subclasses__():
            yield from _walk_classes(one)
